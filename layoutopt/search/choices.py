"""What a file leaves open beside the layout: which instructions move what, which lane handles which piece.

Both are decided in the same way (`_answered`), one inside the other:

    choices    narrower problems, in which it is decided, the most promising first
    _answered  each by itself, whatever else it leaves open
    solved     its layout with the best instructions or lanes for it, verified in the file's own coordinates
    answer     the best of these, with what is proved of every choice

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
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.free_lanes import FreeAccess, FreeLanes
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
from layoutopt.accesses.view import Step, vector_steps, view_of
from layoutopt.engine.case import Case, case_of
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import LayoutError, ProblemFileError, VerificationError
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import OutOfTime, current, spending, unhurried
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import parse_operation
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, Proof, Result, Status
from layoutopt.problems.types import Access, Constraints, Problem
from layoutopt.search.lanes import under_layout
from layoutopt.search.proposal import COUNTED, STOPPED, Ask, Found, Proposal, Proved
from layoutopt.search.solve import solve_fixed
from layoutopt.search.verify import Answer, verified

_MOST_SOLVED: Final = 8  # orders of elements that a layout is sought for
_SHARE: Final = 0.5  # of the time left, for each of these orders
_NEEDED_S: Final = 0.5  # seconds at least for the lanes under a layout, without which there is no answer
_EVERY_CHOICE: Final = f"{EVERY_LAYOUT} and every choice of instructions"
_INSTRUCTIONS_LEFT: Final = "other instructions are not refuted"
_LANES_LEFT: Final = (
    "assignments that are bits of threads and iterations in any order, XORs of two, and other places in a "
    "warp were searched under a few layouts"
)
_INDEX_LEFT: Final = "the time limit ended the search for a cheaper index"
_OTHERS_LEFT: Final = "the time limit ended the search for layouts outside the scope, or for a cheaper index"


def solve_tile(problem: Problem, gpu: Device, ask: Ask) -> Answer | None:
    """The answer to a problem of one tile; None where the time was over before there was anything to say.

    Errors are those of `block.solve`.
    """
    try:
        answer = _answered(problem, gpu, ask)
        return answer.saying(reason=what_ended(answer.result))
    except OutOfTime:
        return None


def what_ended(result: Result | Arrangement) -> str:
    """The result's `reason`; of a search cut short, with what ended it: time, a request or the effort."""
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


def settled_under(
    problem: Problem, gpu: Device, table: IntArray, free: Sequence[FreeAccess] | None = None
) -> Problem:
    """The problem with the best instructions and lanes that are found under a layout that is given.

    Arguments and errors are those of `layoutopt.search.lanes.under_layout`.
    """
    if problem.chooses_instructions and table.min() >= 0:
        problem = _with_instructions(problem, gpu, table)
    return under_layout(problem, gpu, table, free)


class _Choice(Struct, frozen=True):
    """A problem in which instructions or lanes are decided, and the device that it is solved for."""

    problem: Problem
    gpu: Device
    # Where instructions are chosen: wavefronts that all accesses take at least, weights applied
    wavefronts: Fraction = Fraction(0)
    instructions: int = 0  # likewise: how many instructions all warps execute for the accesses left open


class _Solved(Struct, frozen=True):
    """A verified answer under one choice."""

    # The best least. Of instructions: wavefronts, bytes, instructions; of lanes: as `verify.Answer.rank`
    rank: tuple[float, ...]
    answer: Answer  # its case has nothing left open
    complete: bool = False  # whether nothing is better, whatever the choice


class _Open(abc.ABC):
    """Instructions or lanes that a file leaves open.

    Attributes:
        best: of the choices so far.
        refused: the first answer without a layout.
        unrefuted: what may have a layout though no choice has one; empty where nothing may.
        leaves_time: whether other choices follow, so that each may use a share of the time left.
    """

    unrefuted = ""
    leaves_time = False

    def __init__(self, problem: Problem, gpu: Device, ask: Ask) -> None:
        self.problem, self.gpu, self.ask = problem, gpu, ask
        self.best: _Solved | None = None
        self.refused: Answer | None = None

    def consider(self, choice: _Choice) -> None:
        """Solve a choice, in its share of the time, and keep the answer where none so far is better."""
        with spending(current().part(_SHARE)) if self.leaves_time else contextlib.nullcontext():
            answer = _answered(choice.problem, choice.gpu, self.ask)
        if answer.result.layout is None:
            self.refused = self.refused or answer
        else:
            solved = self.solved(choice, answer.result)
            self.best = min(self.best or solved, solved, key=lambda solved: solved.rank)

    @abc.abstractmethod
    def choices(self) -> Iterator[_Choice]:
        """The choices to solve, one after another; which come next depends on `best` and `refused`."""

    @abc.abstractmethod
    def solved(self, choice: _Choice, result: Result) -> _Solved:
        """The layout of `result`, the answer to a choice, verified; LayoutError if it does not serve."""

    @abc.abstractmethod
    def answer(self, best: _Solved) -> Result:
        """The best, with what is proved of every choice."""


def _answered(problem: Problem, gpu: Device, ask: Ask) -> Answer:
    """The answer to a problem: where instructions or lanes are open, the best over the choices of them.

    Raises:
        OutOfTime: the time was over before there was a layout.
        ProblemFileError: an access's instructions or lanes cannot be free.
    """
    if not problem.is_free:
        return solve_fixed(problem, gpu, ask)
    left_open = (_Instructions if problem.chooses_instructions else _Lanes)(problem, gpu, ask)
    with contextlib.suppress(OutOfTime):  # while a choice was made; the best so far stays
        for number, choice in enumerate(left_open.choices()):
            if left_open.best is not None and current().spent:
                break
            try:
                left_open.consider(choice)
            except ProblemFileError:  # a constraint contradicts what an access becomes
                if number == 0:  # as the file has it, or with nothing chosen yet: the file is wrong
                    raise
            except (OutOfTime, LayoutError):  # as where lanes of a direct load do not write side by side
                pass
    if left_open.best is not None:
        return replace(left_open.best.answer, result=left_open.answer(left_open.best))
    # No choice has a layout: the first answer stands for all, unless others may have one (`unrefuted`).
    refused, max_bytes, unrefuted = left_open.refused, problem.layout.max_bytes, left_open.unrefuted
    if refused is None:
        raise OutOfTime
    too_large = max_bytes is not None and max_bytes < problem.tile.bytes  # whatever the choice
    if unrefuted and refused.result.status is Status.INFEASIBLE and not too_large:
        return refused.unproved(f"{unrefuted}; {refused.result.reason}")
    return refused


# Instructions ------------------------------------------------------------------------------------


class _Instructions(_Open):
    """The instructions of some accesses.

    Attributes:
        bound: wavefronts of all accesses that no layout and no instructions undercut, weights applied.
        as_in_file: the problem with the file's own instructions.
        rank_in_file: of the answer to it, once it has a layout.
    """

    unrefuted = _INSTRUCTIONS_LEFT
    rank_in_file: tuple[float, ...] | None = None

    def choices(self) -> Iterator[_Choice]:
        """The file's own instructions, then those of one order after another, fewest wavefronts first.

        No order whose wavefronts, tile bytes and instructions do not rank below the best answer.
        """
        problem, gpu = self.problem, self.gpu
        free = free_ownerships(problem, gpu)
        self.bound = _lower_bound(problem, free, gpu)
        unchanged = [a if a.instructions is None else with_given_instructions(a) for a in problem.accesses]
        first = _choice(problem, unchanged, gpu)
        others = [c for c in _by_order(first, problem, free, gpu) if _differs(c, first)]
        self.as_in_file = first.problem
        self.leaves_time = bool(others)
        yield first
        solved = 0
        for choice in others:
            may_rank = float(choice.wavefronts), problem.tile.bytes, choice.instructions
            if solved < _MOST_SOLVED and (self.best is None or may_rank < self.best.rank):
                solved += 1
                yield choice

    def solved(self, choice: _Choice, result: Result) -> _Solved:
        """The answer to a choice, counted in the file's own coordinates."""
        assert result.layout is not None
        with unhurried():
            chosen = assigned(choice.problem, result)
            case = case_of(chosen, self.gpu)
            counts = case.count(case.table(result.layout))
            wavefronts = case.weighted_wavefronts(counts) / case.lanes.weight_unit
        rank = wavefronts, result.bytes or 0, choice.instructions
        solved = _Solved(rank, Answer(case, result, wavefronts))
        if choice.problem is self.as_in_file:
            self.rank_in_file = solved.rank
        return solved

    def answer(self, best: _Solved) -> Result:
        """Optimal where nothing takes fewer wavefronts or bytes."""
        problem, case, result = self.problem, best.answer.case, best.answer.result
        layout, chosen = result.layout, best.answer.case.asked
        assert layout is not None
        with unhurried():
            check_instructions(problem, chosen, self.gpu)
            case.check(case.table(layout))
            if [r.wavefronts for r in case.measure(layout)] != [r.wavefronts for r in result.accesses]:
                raise VerificationError(
                    "the accesses cost another number of wavefronts in their own coordinates"
                )
        bound = self.bound
        least = Bound(float(bound) if bound.denominator > 1 else int(bound), _EVERY_CHOICE)
        wavefronts, size, _ = best.rank
        if result.status is Status.OPTIMAL and not (wavefronts == bound and size == problem.tile.bytes):
            least_text = f"{wavefronts:g} wavefronts, at least {bound} in {_EVERY_CHOICE}"
            result = result.unproved(f"{_INSTRUCTIONS_LEFT}: {least_text}")
        return replace(
            result,
            proof=replace(result.proof, wavefronts=least),
            hints=(*result.hints, *self._gain(best)),
            accesses=named_choices(result.accesses, problem, chosen),
        )

    def _gain(self, best: _Solved) -> Iterator[str]:
        """A hint with what the file's own instructions cost at best, where others were chosen."""
        if self.rank_in_file not in (None, best.rank):
            (before, size, _), (after, *_) = self.rank_in_file, best.rank
            what = "weighted wavefronts" if best.answer.case.has_weights else "wavefronts"
            yield (
                f"with the instructions as the file has them, the best layout found takes {before:,g} "
                f"{what} in {size:,} bytes; these take {after:,g}"
            )


def _widest_given(problem: Problem) -> Sequence[Step]:
    """The steps of the widest vector of the accesses that are given."""
    given = (vector_steps(access, problem.tile) for access in problem.accesses if not access.is_free)
    return max(given, key=len, default=[])


def _with_instructions(problem: Problem, gpu: Device, table: IntArray) -> Problem:
    """The problem with the instructions of fewest wavefronts under a layout, each access by itself.

    Of as many wavefronts, the fewest instructions; the file's own where no others are served as well.

    `table`: byte offsets by row-major index.
    """

    def cost(access: Access) -> tuple[float, int]:
        """Weighted wavefronts and instructions of all warps; infinitely many where it is not served."""
        with unhurried():
            # The layout is given, whatever the file asks of it.
            case = case_of(replace(problem, accesses=(access,), layout=Constraints()), gpu)
            offsets = case.seen(table)
            try:
                case.check_lanes(offsets)
            except LayoutError:
                return math.inf, 0
            executed = int(case.lanes.accesses[0].active.any(axis=1).sum())
            return case.weighted_wavefronts(case.count(offsets)), executed

    accesses, free = list(problem.accesses), free_ownerships(problem, gpu)
    # Any order, and those that begin with the steps of the widest given vector: then both can be vectors.
    starts = ((), _widest_given(problem)) if free else ()
    orders = dict.fromkeys(order for start in starts for order in vector_orders(free, start))
    for owner in free:
        written = [with_given_instructions(owner.access)]
        for order in current().while_left(orders):
            with contextlib.suppress(ProblemFileError):  # too many pieces of the coordinates
                written += (a for a in accesses_in_order(owner, order, problem, gpu) if a not in written)
        # The file's own whatever the time, so that there is an answer.
        costs = [cost(written[0]), *map(cost, current().while_left(written[1:]))]
        accesses[owner.number] = written[costs.index(min(costs))]
    return replace(problem, accesses=tuple(accesses))


def _differs(choice: _Choice, first: _Choice) -> bool:
    """Whether a choice has other instructions than the first, or fewer; not the same in another order."""
    pairs = zip(choice.problem.accesses, first.problem.accesses, strict=True)
    same = (
        a.vector == b.vector
        and parse_operation(a.op, a.single_width) == parse_operation(b.op, b.single_width)
        for a, b in pairs
    )
    return choice.instructions != first.instructions or not all(same)


def _choice(problem: Problem, accesses: Sequence[Access], gpu: Device) -> _Choice:
    """The problem with these accesses in place of its own, ranked by what they take."""
    needs = [_least_need(problem, access, gpu) for access in accesses]
    wavefronts = sum((need.wavefronts for need in needs), Fraction(0))
    instructions = sum(
        need.instructions
        for need, access in zip(needs, problem.accesses, strict=True)
        if access.instructions is not None
    )
    return _Choice(replace(problem, accesses=tuple(accesses)), gpu, wavefronts, instructions)


def _by_order(first: _Choice, problem: Problem, free: Sequence[Owned], gpu: Device) -> list[_Choice]:
    """Choices of instructions, those of fewest wavefronts first, one for each order of elements in a vector.

    An order says which elements of the tile follow one another in a vector. It extends that of the widest
    access that is given, so that both can be vectors. With each, every open access takes the instruction
    that needs the fewest wavefronts by itself.

    Args:
        first: with the instructions of the file.
        problem: whose instructions are open.
        free: the accesses whose instructions are open.
    """
    found: list[_Choice] = []
    for order in vector_orders(free, _widest_given(problem)) if free else ():
        accesses = list(first.problem.accesses)
        with contextlib.suppress(ProblemFileError):  # too many pieces of the coordinates
            for access in free:
                candidates = list(accesses_in_order(access, order, problem, gpu))
                if not candidates:
                    break  # the GPU has no access as narrow as this one would be
                accesses[access.number] = min(candidates, key=lambda c: _least_need(problem, c, gpu))
            else:  # every open access has an instruction
                if all(choice.problem.accesses != tuple(accesses) for choice in found):
                    found.append(_choice(problem, accesses, gpu))
    return sorted(found, key=lambda choice: (choice.wavefronts, choice.instructions))


class _Need(NamedTuple):
    """What an access takes by itself: weighted wavefronts, and instructions executed by a warp."""

    wavefronts: Fraction
    instructions: int


def _least_need(problem: Problem, access: Access, gpu: Device, *, words_open: bool = False) -> _Need:
    """The fewest wavefronts that an access takes by itself, weighted, and its instructions.

    The bound holds for layouts whose words hold the elements that they hold row by row; with `words_open`
    for every layout. It is 0 where the lanes are open.
    """
    if access.is_free or access.any:
        return _Need(Fraction(0), 0)
    part = replace(problem, accesses=(access,), layout=Constraints())
    if (view := view_of(part)) is not None:
        part = view.problem(part)
    traced = trace(part, gpu)
    (lanes,) = traced.accesses
    counts = count_wavefronts(
        lanes.element * problem.tile.element_bytes, lanes.active, lanes.operation, lanes.rule
    )
    least = counts.phases if words_open else counts.ideal
    weighted = int((least * lanes.weight).sum())
    return _Need(Fraction(weighted, traced.weight_unit), int(lanes.active.any(axis=1).sum()))


def _lower_bound(problem: Problem, free: Sequence[Owned], gpu: Device) -> Fraction:
    """Wavefronts that no layout and no instructions undercut, of all accesses, weights applied.

    A wavefront of a warp moves no more distinct bytes than the banks have words. Nor does it move more than
    the lanes of a phase can take at their widest; of two phases, where the device merges pairs.
    """
    element_bytes = problem.tile.element_bytes
    # A layout may put any elements narrower than a word into one: then each phase takes a single wavefront.
    narrow = element_bytes < gpu.bank_bytes
    fixed = [access for access in problem.accesses if access.instructions is None]
    needs = [_least_need(problem, access, gpu, words_open=narrow) for access in fixed]
    total = sum((need.wavefronts for need in needs), Fraction(0))
    for access in free:
        kinds = (access.kind, "ldmatrix" if access.kind == "load" else "stmatrix")
        rules = [(rule, width) for (name, width), rule in gpu.rules.items() if name in kinds]
        # Bytes of a wavefront: a word of every bank, or a group of words that never conflict (`row_words`);
        # and what the lanes of a phase can take, a word each where the words of a lane go one by one.
        most_of_banks = max(max(rule.banks, rule.row_words) * rule.bank_bytes for rule, _ in rules)
        most_of_lanes = 0
        for rule, width in rules:
            lanes = len(rule.phases[0]) * (2 if rule.merges_pairs else 1)
            served_bytes = min(width, rule.bank_bytes) if rule.split_words else width
            most_of_lanes = max(most_of_lanes, lanes * served_bytes)
        weight = Fraction(str(access.access.weight))
        for start in range(0, len(access.element), gpu.lanes):
            of_warp = access.element[start : start + gpu.lanes]
            moved = of_warp[of_warp >= 0]  # an element that several lanes hold comes as often
            by_lanes = math.ceil(len(moved) * element_bytes / most_of_lanes)
            by_banks = math.ceil(len(np.unique(moved)) * element_bytes / most_of_banks)
            total += weight * max(by_lanes, by_banks)
    return total


# Lanes -------------------------------------------------------------------------------------------


class _Lanes(_Open):
    """The lanes of some accesses.

    Attributes:
        natural: the problem with consecutive threads on consecutive vectors.
        relaxed: the problem in which a free access is its segments alone: it bounds every assignment.
        floor: an answer whose bounds hold for every assignment, once there is one.
    """

    def __init__(self, problem: Problem, gpu: Device, ask: Ask) -> None:
        super().__init__(problem, gpu, replace(ask, conflict_free=False, lanes_open=True))
        self.conflict_free = ask.conflict_free
        self.lanes = FreeLanes(problem, gpu)
        self.natural, self.relaxed = self.lanes.natural, self.lanes.relaxed()
        self.floor: Result | None = None
        if self.lanes.direct:  # which the relaxed problem has write as they stand
            self.unrefuted = _LANES_LEFT

    def choices(self) -> Iterator[_Choice]:
        """The relaxed problem, then problems with fixed lanes whose layouts may do better than the best."""
        yield _Choice(self.relaxed, self.lanes.together)
        if self.best is None and self.refused is None:
            yield _Choice(self.natural, self.gpu)  # the relaxed problem has direct loads as they are written
        for problem in self._with_fixed_lanes():
            assert self.best is not None
            result = self.best.answer.result
            if self.conflict_free and result.proof.objective.lower_bound > 0:
                return
            # Natural lanes may have a cheaper index.
            if not self.best.complete or (problem is self.natural and not self._is_natural(result)):
                yield _Choice(problem, self.gpu)

    def _with_fixed_lanes(self) -> Iterator[Problem]:
        """The problem with fixed lanes, of `FreeLanes.others` and then of the best answer so far."""
        if self.best is not None:
            yield from self.lanes.others()
            yield assigned(self.problem, self.best.answer.result)

    def answer(self, best: _Solved) -> Result:
        """The best; where conflicts are ruled out and it has some, an answer without a layout."""
        result, bound = best.answer.result, best.answer.result.proof.objective
        if not (self.conflict_free and result.excess):
            return result
        status, reason = Status.UNKNOWN, f"no layout without conflicts was found; {_LANES_LEFT}"
        if bound.lower_bound > 0:
            status = Status.INFEASIBLE
            least = f"at least {bound.lower_bound} excess wavefronts in {bound.scope}"
            reason = f"{least}, however threads are assigned"
        return Result(result.problem, result.target, status, result.proof, reason)

    def _is_natural(self, result: Result) -> bool:
        natural = [tuple(map(str, self.natural.accesses[free.number].index)) for free in self.lanes.free]
        return natural == [result.accesses[free.number].index for free in self.lanes.free]

    def _floor(self, relaxed: Result) -> Result | None:
        """An answer whose bounds hold for every assignment of lanes.

        That is the answer to the relaxed problem; where lanes of a warp may also change places, to that
        problem with the lanes of a warp in any order. None where the time is over, or where direct loads are
        free: the relaxed problem fixes what each of their lanes writes, so that its bounds need not hold.
        """
        if self.lanes.direct:
            return None
        proof = relaxed.proof
        says_more = proof.objective.lower_bound or proof.bytes.lower_bound > self.problem.tile.bytes
        if not (self.lanes.may_be_dealt and says_more):
            return relaxed  # that no excess and the tile's own bytes are the least holds in any order
        with contextlib.suppress(OutOfTime):
            return _answered(self.lanes.relaxed(dealt=True), self.lanes.together, self.ask).result
        return None

    def solved(self, choice: _Choice, result: Result) -> _Solved:
        """The layout of a result with the best assignment of each free access, verified."""
        assert result.layout is not None
        if choice.problem is self.relaxed:
            self.floor = self._floor(result)
        lanes_time, widths = current().at_least(_NEEDED_S), chosen_widths(self.problem, result)
        with unhurried():
            table = case_of(self.natural, self.gpu, widths).own_table(result.layout)
            with spending(lanes_time):
                table = np.repeat(table, self.problem.tile.packed)
                settled = under_layout(self.problem, self.gpu, table, self.lanes.free)
            case = case_of(settled, self.gpu, widths)
            layout, table = case.as_lowered(result.layout), case.table(result.layout)
            excess = case.weighted_excess(case.count(table))
            case.check(table)
            # The hardware that dictates the layout fixes its alignment; free lanes do not change it.
            alignment = result.alignment_bytes if self.problem.is_dictated else None
            found = Found(layout, result.family or "", excess, case.size(table), alignment)
            proposal = self._proposal(case, found, result, self.floor)
            answer = verified(case, proposal)
        reports = named_choices(answer.result.accesses, self.problem, settled)
        answer = answer.saying(accesses=reports, method=self.ask.method)
        return _Solved(answer.rank, answer, complete=proposal.complete)

    def _proposal(self, case: Case, found: Found, result: Result, floor: Result | None) -> Proposal:
        """A layout under the lanes chosen for it, with the bounds that hold for every assignment of lanes.

        Args:
            case: with the lanes chosen.
            found: the layout of `result`, and what it has with them.
            result: the answer that gave the layout.
            floor: that to the problem in which a free access is its segments alone (*relaxed*, see the
                module), which bounds every assignment; None where nothing does.
        """
        objective, nothing_proved = self.problem.layout.objective, Bound(0, EVERY_LAYOUT)
        proof = floor.proof if floor is not None else Proof(nothing_proved, nothing_proved)
        # A proof for another order of objectives bounds neither the excess nor the bytes alone.
        bound = proof.objective if objective.excess_first else nothing_proved

        def in_trace_unit(weighted: float) -> Fraction:
            """Excess of the relaxed problem, whose weights are `scale` times those of the file."""
            return Fraction(str(weighted)) * case.lanes.weight_unit / self.lanes.scale

        least = in_trace_unit(bound.lower_bound)
        by = (floor.decided_by if floor is not None else None) or COUNTED
        proved = floor is not None and floor.status is Status.OPTIMAL
        # The relaxed problem proves its bytes at its own excess, which may be a fraction of a wavefront: at
        # the next whole number, a smaller layout may exist.
        bytes_bound = Proved(self.problem.tile.bytes)
        if objective.excess_first and proved and found.weighted_excess == least:
            bytes_bound = Proved(proof.bytes.lower_bound, proof.bytes.scope, by)
        # Of every layout of any kind, and what that rests on.
        general = bound if bound.everywhere and bound.lower_bound else proof.every_layout
        every_layout = None
        if general is not None:
            every_layout = math.ceil(in_trace_unit(general.lower_bound)), proof.evidence
        return Proposal(
            found,
            excess_bound=Proved(math.ceil(least), bound.scope, by),
            bytes_bound=bytes_bound,
            plain_bound=Proved(0),
            left_open=not objective.counts_only,
            left=_LANES_LEFT if floor is None or proved else floor.reason,
            every_layout=every_layout,
        )
