"""Why no layout has less excess: the reasons, from the one easiest to check to the hardest.

    reason    what it finds                                        checked
    counting  phases with more words at one place than banks       phase by phase
    clique    more words that pairwise meet than banks             pair by pair
    packing   cliques that share the phases out between them       clique by clique
    parity    weights of full phases that contradict themselves    sum by sum
    solver    CP-SAT's bound over every placement of vectors       by another solver, from its question

Whoever bounds every layout, writes a certificate or explains asks `REASONS` in this order; a further
reason is a further record.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.trace import Trace
from layoutopt.errors import VerificationError
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current
from layoutopt.hardware.devices import Device
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import EFFORT, FreeAssignment, free_assignment, question
from layoutopt.problems.text import listed
from layoutopt.problems.types import Problem, Tile
from layoutopt.proof import parity
from layoutopt.proof.board import Subject, View, subject_of
from layoutopt.proof.cliques import find_clique, find_packing
from layoutopt.proof.cnf import dimacs
from layoutopt.proof.parity import Parity, find_parity

# What a question is worth whose answer changes no layout: deterministic time, and phases of a parity.
_BRIEF_EFFORT: Final = 0.5
_BRIEF_PARITY_PHASES: Final = 128
_IN_NO_TIME: Final = 1 << 13  # lane accesses of which everything is asked in no time


class SearchLimits(Struct, frozen=True):
    """How far to look."""

    workers: int = 1
    briefly: bool = False  # spend about a second: no layout outside the families may be the answer
    max_bytes: int | None = None  # the solver's assignment is no larger; the bounds hold for every size
    hint: IntArray | None = None  # byte offsets of a layout for the solver to start from
    bound: int = 0  # what is known already, in units of `Trace.weight_unit`


class Reason(Struct, frozen=True):
    """One kind of reason; what it finds may be of any type.

    The defaults ask the finding itself, as of cliques, packings and parities; its excess adds to the counted.
    """

    evidence: str  # what a result says that its bound rests on
    # Looks for it; None where there is none, none was found, or the time is over
    find: Callable[[Subject, SearchLimits], Any]
    # The weighted excess of every layout that follows, in units of `Trace.weight_unit`
    bound: Callable[[Subject, Any], int] = lambda subject, found: subject.board.counted_excess + found.excess
    # What a certificate holds of it, in the coordinates of the problem given
    data: Callable[[Subject, Problem, Any], dict[str, Any]] = lambda subject, problem, found: found.data(
        subject, problem
    )
    # For people, in the coordinates of the problem given
    sentences: Callable[[Subject, Problem, Any], Iterator[str]] = lambda subject, problem, found: (
        found.sentences(subject, problem)
    )
    # Whether it holds, by plain loops that share nothing with `find`; None where only a solver can say
    check: Callable[[Subject, Any], bool] | None = lambda subject, found: found.holds(subject)


def _counting_sentences(subject: Subject, _: Problem, found: int) -> Iterator[str]:
    """Phases in which counting alone forces conflicts, one sentence for each access and width of vectors."""
    board, lanes = subject.board, subject.lanes
    # By access and words of a vector: the excess of its phases; of the phase with most words in one place,
    # these and its ideal wavefronts.
    excess: dict[tuple[int, int], int] = {}
    fullest: dict[tuple[int, int], tuple[int, int]] = {}
    for phase in board.phases:
        if phase.least_excess:
            counts = [(k, len(board.within(phase.words, View(k, place)))) for k, place in board.views()]
            k, words = max(counts, key=math.prod)  # which has the fewest banks for its words
            key = phase.first.access, k
            ideal = -(-words // max(1, board.banks // k)) - phase.least_excess
            excess[key] = excess.get(key, 0) + phase.least_excess * phase.weight
            fullest[key] = max(fullest.get(key, (0, 0)), (words, ideal))
    for (access, k), (words, ideal) in fullest.items():
        total = subject.in_weights(excess[access, k])
        wide, banks = k * board.bank_bytes, max(1, board.banks // k)
        holders = [
            f"`{t.name}`" for t in lanes.accesses if t.width_elements > 1 and t.operation.width_bytes >= wide
        ]
        why, where = f"elements start at multiples of {wide} bytes", "its place in them"
        if holders:
            why = f"{listed(holders)} move{'s' if len(holders) == 1 else ''} whole vectors of {wide} bytes"
            where = "its place in its vector"
        yield (
            f"Counting: {why}, so each of their words keeps {where} in every layout. "
            f"`{lanes.accesses[access].name}` touches up to {words} words at one such place at a time, "
            f"which can lie in {banks} of the {board.banks} banks only: {-(-words // banks)} wavefronts "
            f"where {'one' if ideal == 1 else ideal} could do. In all {total} that no layout avoids."
        )


COUNTING: Final = Reason(
    evidence="counting: words that share a place in their vectors share too few banks, or equal ones wait",
    find=lambda subject, limits: subject.board.counted_excess or None,
    bound=lambda subject, excess: excess,
    data=lambda subject, problem, excess: {},
    sentences=_counting_sentences,
    check=lambda subject, excess: subject.board.count_again(excess),
)

CLIQUE: Final = Reason(
    evidence="clique: more words that pairwise meet than banks for them",
    find=lambda subject, limits: find_clique(subject.board),
)

PACKING: Final = Reason(
    evidence="packing: cliques that share the phases out between them, each with a conflict of its own",
    # Where no clique is found, there are none to share the phases out to.
    find=lambda subject, limits: find_packing(subject.board) if find_clique(subject.board) else None,
)


def _find_parity(subject: Subject, limits: SearchLimits) -> Parity | None:
    if current().spent:
        return None
    return find_parity(subject.board, _BRIEF_PARITY_PHASES if limits.briefly else parity.MAX_PHASES)


PARITY: Final = Reason(
    evidence="parity: no bank can take one word of every phase that fills all banks",
    find=_find_parity,
)


def _ask_solver(subject: Subject, limits: SearchLimits) -> FreeAssignment | None:
    return free_assignment(
        phase_sets(subject.lanes, subject.tile),
        subject.lanes,
        subject.tile,
        workers=limits.workers,
        effort=_BRIEF_EFFORT if limits.briefly else EFFORT,
        max_bytes=limits.max_bytes,
        hint=limits.hint,
        bound=limits.bound,
    )


def _solver_data(subject: Subject, problem: Problem, assignment: FreeAssignment) -> dict[str, Any]:
    """What the solver was asked of every placement, to be asked of another: is there less than the bound?"""
    board, lanes, most = subject.board, subject.lanes, assignment.bound - 1
    allowed = most / lanes.weight_unit
    asks = f"is there a placement of vectors in banks with a weighted excess of {allowed:g} or less?"
    # Where one more conflict than counting gives is too many, the question needs no sums: CNF can say it.
    least_weight = min((phase.weight for phase in board.phases), default=0)
    no_more = most < board.counted_excess + least_weight
    text = question(phase_sets(lanes, problem.tile), lanes, problem.tile, None if no_more else most)
    return {"asks": asks, "answer": "no", "cp_sat": text, "dimacs": dimacs(text, f"{problem.name}: {asks}")}


def _solver_sentences(subject: Subject, _: Problem, assignment: FreeAssignment) -> Iterator[str]:
    if assignment.bound:
        yield (
            "Solver: CP-SAT tried every placement of vectors in banks, any layout included, and proved that "
            f"none has a weighted excess below {assignment.bound / subject.lanes.weight_unit:g} "
            "(solve --certificate writes the question for another solver)."
        )


SOLVER: Final = Reason(
    evidence="solver: CP-SAT over every placement of vectors in banks",
    find=_ask_solver,
    bound=lambda subject, assignment: assignment.bound,
    data=_solver_data,
    sentences=_solver_sentences,
    check=None,
)

REASONS: Final = (COUNTING, CLIQUE, PACKING, PARITY, SOLVER)
NO_SOLVER: Final = (COUNTING, CLIQUE, PACKING)
BY_HAND: Final = tuple(reason for reason in REASONS if reason.check is not None)


class EveryLayout(Struct, frozen=True):
    """Lower bounds of the weighted excess, in units of `Trace.weight_unit`."""

    bound: int  # the best of them
    evidence: str  # what it rests on, the text of a reason; empty for a bound of 0
    # What the solver found of free assignments; None where it was not needed or not possible
    free: FreeAssignment | None


def every_layout(
    tile: Tile,
    device: Device,
    trace: Trace,
    limits: SearchLimits,
    *,
    enough: int | None,
    progress: Callable[[int, str], None] = lambda bound, doing: None,
    quick: bool = False,
) -> EveryLayout:
    """Bound the excess of every layout by each reason in turn.

    Args:
        limits: how far to look.
        enough: an excess that some layout has: a bound that reaches it ends the search. None to
            look for the best assignment whatever the bound.
        progress: told the bound so far and what is asked next.
        quick: ask only what takes no solver.

    Raises:
        VerificationError: a reason was found that does not hold; nothing is returned.
    """
    # Small problems are asked everything, whatever time is left.
    takes_time = sum(access.element.size for access in trace.accesses) > _IN_NO_TIME
    if takes_time and current().spent:
        return EveryLayout(bound=0, evidence="", free=None)
    subject = subject_of(tile, device, trace)
    bound, evidence, free = 0, "", None
    reasons = NO_SOLVER if quick else REASONS
    for reason in current().while_left(reasons) if takes_time else reasons:
        if enough is not None and bound >= enough:
            break
        name = reason.evidence.partition(":")[0]
        progress(bound, f"what every layout has: {name}")
        found = reason.find(subject, replace(limits, bound=bound))
        if found is None:
            continue
        if reason.check is not None and not reason.check(subject, found):
            raise VerificationError(f"this reason does not hold: {reason.evidence}")
        if isinstance(found, FreeAssignment):
            free = found
        if reason.bound(subject, found) > bound:
            bound, evidence = reason.bound(subject, found), reason.evidence
    return EveryLayout(bound, evidence, free)
