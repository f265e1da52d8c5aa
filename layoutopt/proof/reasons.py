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

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from layoutopt.accesses.trace import Trace
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import EFFORT, FreeAssignment, free_assignment
from layoutopt.problems.types import Problem, Tile
from layoutopt.proof.obstructions import (
    MAX_PARITY_PHASES,
    Board,
    Clique,
    Parity,
    board,
    counting_excess,
    find_clique,
    find_parity,
)
from layoutopt.proof.packing import Packing, every_share_holds, find_packing
from layoutopt.proof.reason_data import clique_data, packing_data, parity_data, solver_data
from layoutopt.proof.reason_words import clique_words, counting_words, packing_words, parity_words

# What a question is worth whose answer changes no layout: deterministic time, and phases of a parity.
_BRIEF_EFFORT: Final = 0.5
_BRIEF_PARITY_PHASES: Final = 128

Finding = TypeVar("Finding")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a reason is about.

    Attributes:
        tile: the tile.
        device: whose rules.
        lanes: the accesses.
        board: their words and phases; None where cliques and parities are not looked for.
        counting: weighted excess that counting gives; cliques and parities add to it.
    """

    tile: Tile
    device: Device
    lanes: Trace
    board: Board | None
    counting: int


@dataclass(frozen=True, slots=True)
class Search:
    """How far to look.

    Attributes:
        budget: the time there is.
        workers: solver threads.
        briefly: spend about a second: no layout outside the families may be the answer.
        max_bytes: the solver's assignment is no larger; the bounds hold for every size.
        hint: byte offsets of a layout for the solver to start from.
        bound: what is known already, in units of `Trace.weight_unit`.
    """

    budget: Budget
    workers: int = 1
    briefly: bool = False
    max_bytes: int | None = None
    hint: IntArray | None = None
    bound: int = 0


@dataclass(frozen=True, slots=True)
class Reason(Generic[Finding]):
    """One kind of reason.

    Attributes:
        evidence: what a result says that its bound rests on.
        find: looks for it; None where there is none, none was found, or the time is over.
        bound: the weighted excess of every layout that follows, in units of `Trace.weight_unit`.
        data: what a certificate holds of it, in the coordinates of the problem given.
        words: sentences for people, in the coordinates of the problem given.
        check: whether the finding holds, by plain loops that share nothing with `find`; None where only a
            solver can say.
    """

    evidence: str
    find: Callable[[Subject, Search], Finding | None]
    bound: Callable[[Subject, Finding], int]
    data: Callable[[Subject, Problem, Finding], dict[str, Any]]
    words: Callable[[Subject, Problem, Finding], Iterator[str]]
    check: Callable[[Subject, Finding], bool] | None


def subject_of(tile: Tile, device: Device, lanes: Trace) -> Subject:
    """What the reasons of one problem are about."""
    on = board(lanes, tile, device)
    return Subject(tile, device, lanes, on, counting_excess(on) if on is not None else 0)


# Counting -------------------------------------------------------------------------------------


def _counting_words(subject: Subject, problem: Problem, found: int) -> Iterator[str]:
    return counting_words(subject.lanes, subject.board) if subject.board is not None else iter(())


def _count_again(subject: Subject, found: int) -> bool:
    """For each phase, whether some place really holds as many words as its excess needs."""
    on, total = subject.board, 0
    assert on is not None
    for phase in on.phases:
        crowded = 0
        for k in (1, 2, 4):
            for p in range(k):
                held = [w for w in phase.words if on.vector_words[w] >= k and on.place[w] % k == p]
                crowded = max(crowded, -(-len(held) // max(1, on.banks // k)))
        if phase.least > max(0, crowded - -(-len(phase.words) // on.banks)):
            return False
        total += phase.weight * phase.least
    return total == found


COUNTING: Final[Reason[int]] = Reason(
    evidence="counting: words that share a place in their vectors share too few banks",
    find=lambda subject, search: subject.counting or None,
    bound=lambda subject, found: found,
    data=lambda subject, problem, found: {},
    words=_counting_words,
    check=_count_again,
)


# Clique ---------------------------------------------------------------------------------------


def _find_clique(subject: Subject, search: Search) -> Clique | None:
    return find_clique(subject.board) if subject.board is not None else None


def _clique_data(subject: Subject, problem: Problem, found: Clique) -> dict[str, Any]:
    assert subject.board is not None
    return clique_data(problem, subject.device, subject.board, found)


def _clique_words(subject: Subject, problem: Problem, found: Clique) -> Iterator[str]:
    yield clique_words(_clique_data(subject, problem, found))


def _every_pair_meets(subject: Subject, found: Clique) -> bool:
    on = subject.board
    assert on is not None
    (k, p), words = found.view, sorted(set(found.words))
    if len(words) <= on.banks // k or list(found.words) != words:
        return False
    if any(on.vector_words[w] < k or on.place[w] % k != p for w in words):
        return False
    touched: dict[int, set[int]] = {w: set() for w in words}
    for i, phase in enumerate(on.phases):
        for w in touched.keys() & set(phase.words) if phase.firm else ():
            touched[w].add(i)
    for pair in itertools.combinations(words, 2):
        both = touched[pair[0]] & touched[pair[1]]
        if found.meetings[pair] not in both or found.excess > sum(on.phases[i].weight for i in both):
            return False
    return True


CLIQUE: Final[Reason[Clique]] = Reason(
    evidence="clique: more words that pairwise meet than banks for them",
    find=_find_clique,
    bound=lambda subject, found: subject.counting + found.excess,
    data=_clique_data,
    words=_clique_words,
    check=_every_pair_meets,
)


# Packing --------------------------------------------------------------------------------------


def _find_packing(subject: Subject, search: Search) -> Packing | None:
    """Where no clique is found, there are none to share the phases out to."""
    if subject.board is None or find_clique(subject.board) is None:
        return None
    return find_packing(subject.board, search.budget)


def _packing_data(subject: Subject, problem: Problem, found: Packing) -> dict[str, Any]:
    assert subject.board is not None
    return packing_data(problem, subject.device, subject.board, found)


def _packing_words(subject: Subject, problem: Problem, found: Packing) -> Iterator[str]:
    assert subject.board is not None
    yield packing_words(subject.lanes, subject.board, found)


def _shares_hold(subject: Subject, found: Packing) -> bool:
    assert subject.board is not None
    return every_share_holds(subject.board, found)


PACKING: Final[Reason[Packing]] = Reason(
    evidence="packing: cliques that share the phases out between them, each with a conflict of its own",
    find=_find_packing,
    bound=lambda subject, found: subject.counting + found.excess,
    data=_packing_data,
    words=_packing_words,
    check=_shares_hold,
)


# Parity ---------------------------------------------------------------------------------------


def _find_parity(subject: Subject, search: Search) -> Parity | None:
    if subject.board is None or search.budget.spent:
        return None
    most = _BRIEF_PARITY_PHASES if search.briefly else MAX_PARITY_PHASES
    return find_parity(subject.board, most, search.budget)


def _parity_data(subject: Subject, problem: Problem, found: Parity) -> dict[str, Any]:
    assert subject.board is not None
    return parity_data(problem, subject.device, subject.board, found)


def _parity_words(subject: Subject, problem: Problem, found: Parity) -> Iterator[str]:
    assert subject.board is not None
    yield parity_words(subject.lanes, subject.board, found)


def _weights_contradict(subject: Subject, found: Parity) -> bool:
    on = subject.board
    assert on is not None
    k, _ = found.view
    in_all = set(range(len(on.phases)))
    used: set[int] = set()
    for modulus, weight in found.combinations:
        of_word: dict[int, int] = {}
        for i, y in weight.items():
            held = on.within(on.phases[i].words, found.view)
            if not on.phases[i].firm or len(held) != on.banks // k:
                return False
            for w in held:
                of_word[w] = of_word.get(w, 0) + y
        if any(total % modulus for total in of_word.values()) or not sum(weight.values()) % modulus:
            return False
        in_all &= set(weight)
        used |= set(weight)
    weights = sorted(on.phases[i].weight for i in used)
    return found.excess <= (weights[0] if in_all else weights[0] + weights[1])


PARITY: Final[Reason[Parity]] = Reason(
    evidence="parity: no bank can take one word of every phase that fills all banks",
    find=_find_parity,
    bound=lambda subject, found: subject.counting + found.excess,
    data=_parity_data,
    words=_parity_words,
    check=_weights_contradict,
)


# Solver ---------------------------------------------------------------------------------------


def _ask_solver(subject: Subject, search: Search) -> FreeAssignment | None:
    return free_assignment(
        phase_sets(subject.lanes, subject.tile, subject.device),
        subject.lanes,
        subject.tile,
        budget=search.budget,
        workers=search.workers,
        effort=_BRIEF_EFFORT if search.briefly else EFFORT,
        max_bytes=search.max_bytes,
        hint=search.hint,
        bound=search.bound,
    )


def _solver_data(subject: Subject, problem: Problem, found: FreeAssignment) -> dict[str, Any]:
    return solver_data(problem, subject.device, subject.lanes, subject.board, found.bound)


def _solver_words(subject: Subject, problem: Problem, found: FreeAssignment) -> Iterator[str]:
    if found.bound:
        yield (
            "Solver: CP-SAT tried every placement of vectors in banks, any layout included, and proved that "
            f"none has a weighted excess below {found.bound / subject.lanes.weight_unit:g} "
            "(solve --certificate writes the question for another solver)."
        )


SOLVER: Final[Reason[FreeAssignment]] = Reason(
    evidence="solver: CP-SAT over every placement of vectors in banks",
    find=_ask_solver,
    bound=lambda subject, found: found.bound,
    data=_solver_data,
    words=_solver_words,
    check=None,
)

REASONS: Final[tuple[Reason[Any], ...]] = (COUNTING, CLIQUE, PACKING, PARITY, SOLVER)
BY_HAND: Final = tuple(reason for reason in REASONS if reason.check is not None)
