"""What a file leaves open beside the layout: which instructions move what, which lane handles which piece.

Both are decided in the same way (`_answered`), one inside the other:

    choices   narrower problems, in which it is decided, the most promising first
    solved    each by itself, whatever else it leaves open
    found     the layout with the best that is known for it, counted in the file's own coordinates, verified
    answer    the best, with what is proved of every choice

Instructions: an order of elements, which a layout makes consecutive so that they may go in one access, gives
each free access the instructions of fewest wavefronts. An order ends the search that takes as few as nothing
undercuts: of a warp, in a wavefront, no more than a word of every bank, and to a lane no more than its widest
access.

Lanes: what every assignment has in common is that consecutive threads cover segments of global memory. So
first comes the relaxed problem, in which a free access is its segments alone: no assignment costs less. Where
the best lanes under its layout (`layoutopt.search.lanes`) meet it, nothing is better, whatever the threads
do, but a cheaper index. Else other layouts are tried: those that are best for an assignment that is fixed.
"""

import abc
import contextlib
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.free_lanes import FreeLanes
from layoutopt.accesses.instructions import (
    Owned,
    accesses_in_order,
    check_instructions,
    free_ownerships,
    vector_orders,
    with_given_instructions,
)
from layoutopt.accesses.lower import assigned, chosen_widths, named_choices
from layoutopt.accesses.trace import trace
from layoutopt.accesses.view import vector_steps, view_of
from layoutopt.engine.case import Case, case_of
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import LayoutError, ProblemFileError, VerificationError
from layoutopt.ground.budget import OutOfTime, current, spending, unhurried
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, Proof, Result, Status
from layoutopt.problems.types import Access, Constraints, Problem
from layoutopt.search.lanes import under_layout
from layoutopt.search.proposal import COUNTED, STOPPED, Ask, Proposal, Proved
from layoutopt.search.solve import solve_fixed
from layoutopt.search.verify import verified

_MOST_SOLVED: Final = 8  # orders that a layout is sought for
_SHARE: Final = 0.5  # of the time left, for each
_NEEDED_S: Final = 0.5  # for lanes under a layout, without which there is no answer
_EVERYTHING: Final = f"{EVERY_LAYOUT} and every choice of instructions"
_LEFT: Final = "other instructions are not refuted"
_NOT_ALL: Final = (
    "assignments that are bits of threads and iterations in any order, XORs of two, and other places in a "
    "warp were searched under a few layouts"
)
_INDEX_LEFT: Final = "the time limit ended the search for a cheaper index"
_OTHERS_LEFT: Final = "the time limit ended the search for layouts outside the scope, or for a cheaper index"


def solve_tile(problem: Problem, gpu: Device, ask: Ask) -> Result:
    """The answer to a problem of one tile, in the time there is; errors are those of `block.solve`."""
    try:
        found = _answered(problem, gpu, ask)
        return msgspec.structs.replace(found, reason=what_ended(found))
    except OutOfTime:
        proof = Proof(Bound(0, EVERY_LAYOUT), Bound(problem.tile.bytes, EVERY_LAYOUT))
        return Result(problem.name, gpu.name, Status.UNKNOWN, proof, "out of time")


def what_ended(result: Result | Arrangement) -> str:
    """The reason of the result; where a search was cut short, with what ended it."""
    budget = current()
    if result.status is Status.OPTIMAL and budget.ran_out and not result.reason:
        if not result.proof.objective.everywhere:
            return _OTHERS_LEFT
        cost = result.proof.index_cost
        return "" if cost is None or cost.proved else _INDEX_LEFT
    if result.status is not Status.FEASIBLE:
        return result.reason
    if budget.stopped:
        by = "by request"
    else:
        by = "by the time limit" if budget.ran_out else "by the solver's effort: more time changes nothing"
    return result.reason.replace(STOPPED, f"{STOPPED}, {by}")


class _Choice(Struct, frozen=True):
    """A narrower problem, and the device that it is solved for.

    Attributes:
        rank: of instructions, the wavefronts that they take alone, how many they are, and what tells equal
            ones apart.
        share: of the time left, that it may use.
    """

    problem: Problem
    gpu: Device
    rank: tuple[Fraction, int, int] = (Fraction(0), 0, 0)
    share: float = 1


class _Found(Struct, frozen=True):
    """An answer under one choice, the problem with all that was chosen, and what it is compared by."""

    rank: tuple[float, ...]
    result: Result
    chosen: Problem
    case: Case
    complete: bool = False


class _Open(abc.ABC):
    """Something that a file leaves open.

    Attributes:
        best: of the choices so far; `refused`, where there is none: why the first had no layout.
    """

    def __init__(self, problem: Problem, gpu: Device, ask: Ask) -> None:
        self.problem, self.gpu, self.ask = problem, gpu, ask
        self.best: _Found | None = None
        self.refused: Result | None = None

    @abc.abstractmethod
    def choices(self) -> Iterator[_Choice]:
        """Problems in which it is decided, one after another; it sees `best` and `refused`."""

    @abc.abstractmethod
    def found(self, choice: _Choice, result: Result) -> _Found:
        """What is made of the answer to one, which has a layout; LayoutError if it does not serve."""

    @abc.abstractmethod
    def answer(self, best: _Found) -> Result:
        """The best, with what is proved of every choice."""

    @property
    def left(self) -> str:
        """What no choice refutes, though none has a layout; empty where there is nothing."""
        return ""


def _answered(problem: Problem, gpu: Device, ask: Ask) -> Result:
    """The answer to a problem, whatever it leaves open.

    Raises:
        OutOfTime: the time was over before there was a layout.
        ProblemFileError: an access's instructions or lanes cannot be free.
    """
    if not problem.is_free:
        return solve_fixed(problem, gpu, ask)
    opened = (_Instructions if problem.chooses_instructions else _Lanes)(problem, gpu, ask)
    with contextlib.suppress(OutOfTime):  # while a choice was made; what is found stays
        for number, choice in enumerate(opened.choices()):
            if opened.best is not None and current().spent:
                break
            try:
                with spending(current() if choice.share == 1 else current().part(choice.share)):
                    result = _answered(choice.problem, choice.gpu, opened.ask)
                if result.layout is None:
                    opened.refused = opened.refused or result
                    continue
                found = opened.found(choice, result)
            except ProblemFileError:  # a constraint contradicts what an access becomes
                if number == 0:
                    raise
            except (OutOfTime, LayoutError):  # lanes of a direct load do not write side by side
                continue
            else:
                opened.best = min(opened.best or found, found, key=lambda found: found.rank)
    if opened.best is not None:
        return opened.answer(opened.best)
    if opened.refused is None:
        raise OutOfTime
    refused, most = opened.refused, problem.layout.max_bytes
    if not opened.left or refused.status is not Status.INFEASIBLE or (most or math.inf) < problem.tile.bytes:
        return refused
    return refused.unproved(f"{opened.left}; {refused.reason}")


# Instructions ------------------------------------------------------------------------------------


class _Instructions(_Open):
    left = _LEFT
    given: _Found | None = None  # with the file's own instructions

    def choices(self) -> Iterator[_Choice]:
        """The file's own instructions, then those of one order after another, by wavefronts alone."""
        problem, gpu = self.problem, self.gpu
        free = free_ownerships(problem, gpu)
        self.bound = _lower_bound(problem, free, gpu)
        plain = [
            access if access.instructions is None else with_given_instructions(access)
            for access in problem.accesses
        ]
        first = _choice(problem, plain, -1, gpu)
        others = [c for c in _choices(first, problem, free, gpu) if _differs(c, first)]
        yield replace(first, share=_SHARE if others else 1)
        solved = 1
        for choice in others:
            least, instructions, _ = choice.rank
            may_rank = float(least), problem.tile.bytes, instructions
            if solved <= _MOST_SOLVED and (self.best is None or may_rank < self.best.rank):
                solved += 1
                yield choice

    def found(self, choice: _Choice, result: Result) -> _Found:
        """A result, counted in the file's own coordinates."""
        assert result.layout is not None
        with unhurried():
            chosen = assigned(choice.problem, result)
            case = case_of(chosen, self.gpu)
            taken = case.weighted_wavefronts(case.count(case.table(result.layout))) / case.lanes.weight_unit
        found = _Found((taken, result.bytes or 0, choice.rank[1]), result, chosen, case)
        self.given = found if choice.rank[2] < 0 else self.given
        return found

    def answer(self, best: _Found) -> Result:
        """Optimal where nothing takes fewer wavefronts or bytes."""
        problem, result, layout, case = self.problem, best.result, best.result.layout, best.case
        assert layout is not None
        with unhurried():
            check_instructions(problem, best.chosen, self.gpu)
            case.check(case.table(layout))
            if [r.wavefronts for r in case.measure(layout)] != [r.wavefronts for r in result.accesses]:
                raise VerificationError(
                    "the accesses cost another number of wavefronts in their own coordinates"
                )
        bound = self.bound
        least = Bound(float(bound) if bound.denominator > 1 else int(bound), _EVERYTHING)
        wavefronts, size, _ = best.rank
        if result.status is Status.OPTIMAL and not (wavefronts == bound and size == problem.tile.bytes):
            result = result.unproved(f"{_LEFT}: {wavefronts:g} wavefronts, at least {bound} in {_EVERYTHING}")
        return msgspec.structs.replace(
            result,
            proof=msgspec.structs.replace(result.proof, wavefronts=least),
            hints=(*result.hints, *_before(self.given, best)),
            accesses=named_choices(result.accesses, problem, best.chosen),
        )


def _differs(choice: _Choice, given: _Choice) -> bool:
    """Whether it has other instructions, or fewer, and not the same in another order."""
    pairs = zip(choice.problem.accesses, given.problem.accesses, strict=True)
    same = (
        a.vector == b.vector
        and parse_operation(a.op, a.single_width) == parse_operation(b.op, b.single_width)
        for a, b in pairs
    )
    return choice.rank[1] != given.rank[1] or not all(same)


def _choice(problem: Problem, accesses: Sequence[Access], number: int, gpu: Device) -> _Choice:
    """The problem with these accesses, some of which have instructions where it leaves them open."""
    alone = [_alone(problem, access, gpu) for access in accesses]
    total = sum((wavefronts for wavefronts, _ in alone), Fraction(0))
    freed = (n for (_, n), a in zip(alone, problem.accesses, strict=True) if a.instructions is not None)
    chosen = msgspec.structs.replace(problem, accesses=tuple(accesses))
    return _Choice(chosen, gpu, (total, sum(freed), number), _SHARE)


def _choices(first: _Choice, problem: Problem, free: Sequence[Owned], gpu: Device) -> list[_Choice]:
    """The problem with instructions of one order after another, those of fewest wavefronts first.

    Args:
        first: with the instructions of the file.
        problem: whose instructions are open.
        free: which of them.
        gpu: its device.
    """
    known = [vector_steps(a, problem.tile) for a in problem.accesses if not a.is_free]
    fixed = max(known, key=len, default=[])
    found: list[_Choice] = []
    for number, steps in enumerate(vector_orders(free, fixed) if free else ()):
        try:
            ways = {one.number: list(accesses_in_order(one, steps, problem, gpu)) for one in free}
            if not all(ways.values()):
                continue  # the GPU has no access as narrow as some would be
            best = {k: min(each, key=lambda way: _alone(problem, way, gpu)) for k, each in ways.items()}
        except ProblemFileError:
            continue  # too many pieces of the coordinates
        accesses = tuple(best.get(k, access) for k, access in enumerate(first.problem.accesses))
        if all(choice.problem.accesses != accesses for choice in found):
            found.append(_choice(problem, accesses, number, gpu))
    return sorted(found, key=lambda choice: choice.rank)


def _alone(problem: Problem, access: Access, gpu: Device, *, shared: bool = False) -> tuple[Fraction, int]:
    """The fewest wavefronts that an access takes, weighted, and its instructions.

    Where words are `shared`, of any layout; else of those in which elements share words as row by row.
    """
    if access.is_free or access.any:
        return Fraction(0), 0
    part = msgspec.structs.replace(problem, accesses=(access,), layout=Constraints())
    if (view := view_of(part)) is not None:
        part = view.problem(part)
    traced = trace(part, gpu)
    (lanes,) = traced.accesses
    counts = count_wavefronts(
        lanes.element * problem.tile.element_bytes, lanes.active, lanes.operation, lanes.rule
    )
    least = counts.phases if shared else counts.ideal
    weighted = int((least * lanes.weight).sum())
    return Fraction(weighted, traced.weight_unit), int(lanes.active.any(axis=1).sum())


def _lower_bound(problem: Problem, free: Sequence[Owned], gpu: Device) -> Fraction:
    """Wavefronts that no layout and no instructions undercut, of all accesses, weights applied.

    A wavefront of a warp moves no more distinct bytes than the banks have words. Nor does it move more than
    the lanes of a phase can take at their widest; of two phases, where the device merges pairs.
    """
    size = problem.tile.element_bytes
    # A layout may put any elements narrower than a word into one: then each phase takes a single wavefront.
    given = (a for a in problem.accesses if a.instructions is None)
    total = sum((_alone(problem, a, gpu, shared=size < gpu.bank_bytes)[0] for a in given), Fraction(0))
    for one in free:
        kinds = one.kind, "ldmatrix" if one.kind == "load" else "stmatrix"
        rules = [(rule, width) for (name, width), rule in gpu.rules.items() if name in kinds]
        banks = max(max(rule.banks, rule.row_words) * rule.bank_bytes for rule, _ in rules)
        lanes = max(
            len(rule.phases[0]) * (min(width, rule.bank_bytes) if rule.split_words else width)
            << rule.merges_pairs
            for rule, width in rules
        )
        total += Fraction(str(one.access.weight)) * sum(
            max(math.ceil(held * size / lanes), math.ceil(distinct * size / banks))
            for held, distinct in _by_warp(one, gpu.lanes)
        )
    return total


def _by_warp(one: Owned, lanes: int) -> Iterator[tuple[int, int]]:
    """Elements of all lanes of each warp, and different ones of these."""
    for start in range(0, len(one.element), lanes):
        element = one.element[start : start + lanes]
        held = element[element >= 0]
        yield len(held), len(np.unique(held))


def _before(given: _Found | None, found: _Found) -> Iterator[str]:
    """What the file's own instructions cost at best, where others were chosen."""
    if given is not None and given is not found:
        (before, size, _), (after, *_) = given.rank, found.rank
        yield (
            f"with the instructions as the file has them, the best layout found takes {before:,g} wavefronts "
            f"in {size:,} bytes; these take {after:,g}"
        )


# Lanes -------------------------------------------------------------------------------------------


class _Lanes(_Open):
    def __init__(self, problem: Problem, gpu: Device, ask: Ask) -> None:
        super().__init__(problem, gpu, replace(ask, conflict_free=False, lanes_open=True))
        self.conflict_free = ask.conflict_free
        self.lanes = FreeLanes(problem, gpu)
        self.natural, self.relaxed = self.lanes.natural, self.lanes.relaxed()
        self.floor: Result | None = None  # what bounds every assignment

    @property
    def left(self) -> str:
        """The relaxed problem has direct loads write as they stand."""
        return _NOT_ALL if self.lanes.direct else ""

    def choices(self) -> Iterator[_Choice]:
        """The relaxed problem, and where more may be had those whose layouts may do better."""
        yield _Choice(self.relaxed, self.lanes.together)
        if self.best is None and self.refused is None:
            yield _Choice(self.natural, self.gpu)  # direct loads stand otherwise than those that are natural
        for problem in self._others():
            assert self.best is not None
            result = self.best.result
            if self.conflict_free and result.proof.objective.lower_bound > 0:
                return
            # Natural lanes may have a cheaper index.
            if not self.best.complete or (problem is self.natural and not self._is_natural(result)):
                yield _Choice(problem, self.gpu)

    def _others(self) -> Iterator[Problem]:
        """Problems whose layouts may do better than what is found."""
        if self.best is not None:
            yield from self.lanes.others()
            yield assigned(self.problem, self.best.result)

    def answer(self, best: _Found) -> Result:
        """The best; where conflicts are ruled out and it has some, that it is none."""
        result, bound = best.result, best.result.proof.objective
        if not (self.conflict_free and result.excess):
            return result
        status, reason = Status.UNKNOWN, f"no layout without conflicts was found; {_NOT_ALL}"
        if bound.lower_bound > 0:
            status = Status.INFEASIBLE
            least = f"at least {bound.lower_bound} excess wavefronts in {bound.scope}"
            reason = f"{least}, however threads are assigned"
        return Result(result.problem, result.target, status, result.proof, reason)

    def _is_natural(self, result: Result) -> bool:
        natural = [tuple(map(str, self.natural.accesses[free.number].index)) for free in self.lanes.free]
        return natural == [result.accesses[free.number].index for free in self.lanes.free]

    def _floor(self, relaxed: Result) -> Result | None:
        """A result that bounds every assignment: of the relaxed problem, or with lanes in any order, too.

        None where direct loads are free: the relaxed problem has their lanes write as they stand.
        """
        if self.lanes.direct:
            return None
        proof = relaxed.proof
        bounds = proof.objective.lower_bound or proof.bytes.lower_bound > self.problem.tile.bytes
        if not (self.lanes.may_be_dealt and bounds):
            return relaxed
        with contextlib.suppress(OutOfTime):
            return _answered(self.lanes.relaxed(dealt=True), self.lanes.together, self.ask)
        return None

    # What is made of an answer -----------------------------------------------------------------

    def found(self, choice: _Choice, result: Result) -> _Found:
        """The layout of a result with the best assignment of each free access, verified."""
        assert result.layout is not None
        if choice.problem is self.relaxed:
            self.floor = self._floor(result)
        lanes_time, widths = current().at_least(_NEEDED_S), chosen_widths(self.problem, result)
        with unhurried():
            table = case_of(self.natural, self.gpu, widths).table(result.layout)
            with spending(lanes_time):
                table = np.repeat(table, self.problem.tile.packed)
                settled = under_layout(self.problem, self.gpu, table, self.lanes.free)
            case = case_of(settled, self.gpu, widths)
            layout = case.as_bytes(result.layout)
            excess = case.weighted_excess(case.count(case.table(layout)))
            case.check(case.table(layout))
            proposal = self._proposal(case, layout, excess, result, self.floor)
            answer = verified(case, proposal)
        reports = named_choices(answer.result.accesses, self.problem, settled)
        shown = msgspec.structs.replace(answer.result, accesses=reports, method=self.ask.method)
        return _Found(answer.rank, shown, settled, case, proposal.complete)

    def _proposal(
        self, case: Case, layout: Layout, excess: float, result: Result, floor: Result | None
    ) -> Proposal:
        """A layout under the lanes chosen for it, with the bounds that hold for every assignment of lanes.

        Args:
            case: with the lanes chosen.
            layout: of `result`, over bytes.
            excess: what it has with them, weighted.
            result: the answer that gave the layout.
            floor: that to the relaxed problem, which bounds every assignment; None where nothing does.
        """
        objective = self.problem.layout.objective
        nothing_proved = Bound(0, EVERY_LAYOUT)
        proof = floor.proof if floor is not None else Proof(nothing_proved, nothing_proved)
        # A proof for another order of objectives bounds neither the excess nor the bytes alone.
        bound = proof.objective if objective.excess_first else nothing_proved

        def in_trace_unit(weighted: float) -> Fraction:
            """Excess of the relaxed problem, whose weights are `scale` times those of the file."""
            return Fraction(str(weighted)) * case.lanes.weight_unit / self.lanes.scale

        exact_bound = in_trace_unit(bound.lower_bound)
        by = (floor.decided_by if floor is not None else None) or COUNTED
        excess_bound = Proved(math.ceil(exact_bound), bound.scope, by)
        proved = floor is not None and floor.status is Status.OPTIMAL
        # The relaxed problem proves its bytes at its own excess, which may be a fraction of a wavefront: at
        # the next whole number, a smaller layout may exist.
        bytes_bound = Proved(self.problem.tile.bytes)
        if objective.excess_first and proved and excess == exact_bound:
            bytes_bound = Proved(proof.bytes.lower_bound, proof.bytes.scope, by)
        size = case.size(case.table(layout))
        every_layout = None
        if bound.everywhere and excess_bound.lower_bound:
            every_layout = math.ceil(exact_bound), proof.evidence
        elif proof.every_layout is not None:
            every_layout = math.ceil(in_trace_unit(proof.every_layout.lower_bound)), proof.evidence
        return Proposal(
            layout=layout,
            family=result.family or "",
            weighted_excess=excess,
            bytes=size,
            excess_bound=excess_bound,
            plain_floor=0,
            bytes_bound=bytes_bound,
            left_open=not objective.counts_only,
            left=_NOT_ALL if floor is None or proved else floor.reason,
            every_layout=every_layout,
            # The hardware that dictates the layout fixes its alignment; free lanes do not change it.
            alignment_bytes=result.alignment_bytes if self.problem.is_dictated else None,
        )
