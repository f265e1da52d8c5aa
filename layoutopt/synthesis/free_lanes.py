"""Layout and lanes together, where accesses leave open which thread handles which piece.

What every assignment has in common is that consecutive threads cover segments of global memory. So:

    relaxed     the problem in which a free access is its segments alone: no assignment costs less
    assigned    the best assignment of each free access under the layout of the relaxed problem
    verified    that assignment written out, and counted as any other access is

Where the two meet, nothing is better, whatever the threads do. Else other layouts are tried: linear ones,
which every assignment completes, and those that are best for an assignment that is fixed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import msgspec
import numpy as np

from layoutopt.engine.case import Case, case_of
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import Device
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, Result, Status
from layoutopt.problems.assignments import segments_alone
from layoutopt.problems.free_lanes import (
    FreeAccess,
    check_lanes,
    free_accesses,
    is_free,
    naturally,
    settled_with,
)
from layoutopt.problems.lower import assigned, chosen_widths, named_lanes, with_fixed_lanes
from layoutopt.problems.trace import IntArray, trace
from layoutopt.problems.types import FAMILIES, Access, Problem
from layoutopt.search.assign import Assigner
from layoutopt.search.proposal import Ask, Proposal
from layoutopt.search.reorder import Reorderer, reordered
from layoutopt.synthesis.verify import verified

Solver = Callable[[Problem, Ask], Result]

_RELAXED_SHARE: Final = 0.5
_LINEAR: Final = ("none", "order", "xor")
_NOT_ALL: Final = (
    "assignments that are bits of threads and iterations in any order, and XORs of two, were searched under "
    "a few layouts"
)


@dataclass(frozen=True, slots=True)
class _Found:
    """An answer, and what it is compared by."""

    result: Result
    rank: tuple[float, ...]
    complete: bool


def solve_free(problem: Problem, gpu: Device, ask: Ask, solver: Solver) -> Result:
    """The best layout and lanes, verified; proved where no assignment can do better.

    Args:
        problem: some of whose accesses are free.
        gpu: its device.
        ask: as for every search.
        solver: answers problems whose lanes are fixed.

    Raises:
        OutOfTime: the time was over before there was a layout.
        ProblemFileError: an access cannot be free.
    """
    return _Joint(problem, gpu, ask, solver).run()


class _Joint:
    def __init__(self, problem: Problem, gpu: Device, ask: Ask, solver: Solver) -> None:
        self.problem, self.gpu, self.solver = problem, gpu, solver
        self.conflict_free = ask.conflict_free
        self.ask = replace(ask, conflict_free=False)
        self.free = free_accesses(problem, gpu)
        self.scale = math.lcm(*(self._sharing(free) or 1 for free in self.free))

    def run(self) -> Result:
        try:
            relaxed = self._solved(self._relaxed())
        except OutOfTime:  # its share was too short to begin
            relaxed = self.solver(self._relaxed(), self.ask)
        if relaxed.layout is None:
            return msgspec.structs.replace(relaxed, problem=self.problem.name, accesses=())
        best = self._found(relaxed, relaxed)
        with contextlib.suppress(OutOfTime):
            for problem in self.ask.budget.while_left(self._others(best)):
                if best.complete or self._hopeless(best.result):
                    break
                result = self._solved(problem)
                if result.layout is not None:
                    found = self._found(result, relaxed)
                    best = min(best, found, key=lambda f: f.rank)
        result = best.result
        if self.conflict_free and result.excess:
            return self._refused(result)
        return result

    def _solved(self, problem: Problem) -> Result:
        budget = self.ask.budget.part(_RELAXED_SHARE)
        return self.solver(problem, replace(self.ask, budget=budget))

    def _hopeless(self, result: Result) -> bool:
        """Whether conflicts are not allowed, and are proved not to be avoidable."""
        return self.conflict_free and result.proof.objective.lower_bound > 0

    def _refused(self, result: Result) -> Result:
        """The same without a layout, where conflicts are not allowed."""
        bound, never = result.proof.objective, self._hopeless(result)
        return Result(
            result.problem,
            result.target,
            Status.INFEASIBLE if never else Status.UNKNOWN,
            result.proof,
            f"at least {bound.lower_bound} excess wavefronts in {bound.scope}, however threads are assigned"
            if never
            else f"no layout without conflicts was found; {_NOT_ALL}",
        )

    # What is asked of the solver ---------------------------------------------------------------

    def _sharing(self, free: FreeAccess) -> int | None:
        """Segments that share a phase; None where nothing is known of a segment by itself."""
        rule = self.gpu.rule(free.lanes.operation)
        phase, segment = len(rule.phases[0]), free.work.segment
        words = max(1, free.lanes.operation.width_bytes // rule.bank_bytes)
        bound = segment > 1 and phase % segment == 0 and phase * words <= rule.banks
        whole = free.work.units % segment == 0 and self.problem.threads >= segment
        return phase // segment if bound and whole and not free.work.first else None

    def _relaxed(self) -> Problem:
        """Each free access as its segments alone, which weigh as much as their share of a phase."""
        accesses = [self._weighted(a, Fraction(self.scale)) for a in self.problem.accesses]
        for number, access in enumerate(self.problem.accesses):
            if access.is_free:
                accesses[number] = msgspec.structs.replace(with_fixed_lanes(access), weight=0)
        for free in self.free:
            access = self.problem.accesses[free.number]
            sharing = self._sharing(free)
            if sharing is not None:
                alone = segments_alone(free.work, access, self.problem.threads, self.gpu.lanes)
                accesses[free.number] = self._weighted(alone, Fraction(self.scale, sharing))
        return msgspec.structs.replace(self.problem, accesses=tuple(accesses))

    @staticmethod
    def _weighted(access: Access, factor: Fraction) -> Access:
        """The access with its weight times a whole number."""
        weight = access.weight
        if isinstance(weight, str):
            return msgspec.structs.replace(access, weight=f"({weight})*{factor}")
        scaled = Fraction(str(weight)) * factor
        whole = int(scaled) if scaled.denominator == 1 else float(scaled)
        return msgspec.structs.replace(access, weight=whole)

    @property
    def _natural(self) -> Problem:
        return naturally(self.problem, self.free)

    def _others(self, best: _Found) -> Iterator[Problem]:
        """Problems whose layouts may do better than what is found."""
        yield self._natural
        relaxed, families = self._relaxed(), self.problem.layout.families or FAMILIES
        linear = tuple(f for f in _LINEAR if f in families)
        if linear and set(linear) != set(families) and not relaxed.is_dictated:
            layout = msgspec.structs.replace(relaxed.layout, families=linear)
            yield msgspec.structs.replace(relaxed, layout=layout)
        yield assigned(self.problem, best.result)

    # What is made of an answer -----------------------------------------------------------------

    def _found(self, result: Result, relaxed: Result) -> _Found:
        """The layout of a result with the best assignment of each free access, verified."""
        assert result.layout is not None
        widths = chosen_widths(self.problem, result)
        table = case_of(self._natural, self.gpu, widths).table(result.layout)
        table = np.repeat(table, self.problem.tile.packed)
        settled = under_table(self.problem, self.free, self.gpu, table, self.ask.budget)
        check_lanes(self.problem, settled, self.gpu)
        case = case_of(settled, self.gpu, widths)
        layout = case.as_bytes(result.layout)
        counts = case.count(case.table(layout))
        excess = case.weighted_excess(counts)
        proposal = self._proposal(case, layout, excess, result, relaxed)
        answer = verified(case, proposal)
        reports = named_lanes(answer.result.accesses, self.problem, settled)
        shown = msgspec.structs.replace(answer.result, accesses=reports, method=self.ask.method)
        wavefronts, size = answer.wavefronts, proposal.bytes
        cost = answer.result.proof.index_cost
        rank = {
            "bytes": (size, wavefronts),
            "instructions": (cost.value if cost is not None else 0, wavefronts, size),
        }.get(self.problem.layout.minimise, (wavefronts, size))
        return _Found(shown, rank, proposal.complete)

    def _proposal(
        self, case: Case, layout: Layout, excess: float, result: Result, relaxed: Result
    ) -> Proposal:
        """What holds of a layout under lanes that are chosen, by what is proved of the relaxed problem."""
        # What is proved of another order of objectives is no bound on each of them.
        plainly = self.problem.layout.minimise == "excess"
        unit = case.lanes.weight_unit
        bound = relaxed.proof.objective if plainly else Bound(0, EVERY_LAYOUT)
        least = math.ceil(Fraction(str(bound.lower_bound)) * unit / self.scale)
        met = excess == least
        size = case.size(case.table(layout))
        decided = plainly and met and relaxed.status is Status.OPTIMAL
        size_bound = relaxed.proof.bytes if decided else Bound(self.problem.tile.bytes, EVERY_LAYOUT)
        counted = self.problem.layout.minimise in ("excess", "bytes")  # which no time or code decides
        complete = met and size == size_bound.lower_bound and counted
        cost = result.proof.index_cost
        every = relaxed.proof.every_layout
        known = None
        if bound.everywhere and least:
            known = least, relaxed.proof.evidence
        elif every is not None:
            known = math.ceil(Fraction(str(every.lower_bound)) * unit / self.scale), relaxed.proof.evidence
        reason = relaxed.reason if complete or relaxed.status is not Status.OPTIMAL else _NOT_ALL
        return Proposal(
            layout=layout,
            family=result.family or "",
            weighted_excess=excess,
            bytes=size,
            operations=cost.value if cost is not None else None,
            operations_proved=False,
            excess_bound=Bound(least, bound.scope),
            plain_floor=0,
            bytes_bound=size_bound,
            complete=complete,
            reason=reason,
            every_layout=known,
            decided_by=relaxed.decided_by or "",
        )


def under_layout(problem: Problem, gpu: Device, table: IntArray, budget: Budget | None = None) -> Problem:
    """The problem with the best lanes that are found under a layout that is given; itself where none is free.

    Args:
        problem: some of whose accesses may be free.
        gpu: its device.
        table: byte offset of the element, or of the byte that holds it, by row-major index, int64.
        budget: the time there is; None for no limit.

    Raises:
        ProblemFileError: an access cannot be free.
    """
    if not is_free(problem):
        return problem
    free = free_accesses(problem, gpu)
    if table.min() < 0:  # no layout, as whoever asks will find
        return naturally(problem, free)
    chosen = under_table(problem, free, gpu, table, budget or Budget())
    check_lanes(problem, chosen, gpu)
    return chosen


def under_table(
    problem: Problem, free: Sequence[FreeAccess], gpu: Device, table: IntArray, budget: Budget
) -> Problem:
    """The problem with the best lanes that are found for each free access under a layout.

    Args:
        problem: some of whose accesses are free.
        free: of them, those whose lanes are.
        gpu: its device.
        table: byte offset of the element, or of the byte that holds it, by row-major index, int64.
        budget: the time there is.
    """
    found = {}
    for one in free:
        assigner = Assigner(one.work, one.lanes, gpu, problem.tile.shape, table, budget)
        found[one.number] = assigner.run()[1]
    settled = settled_with(problem, found, free)
    accesses = list(settled.accesses)
    steps = {one.number: one.work.step_loop for one in free}
    for k, access in enumerate(problem.accesses):
        if access.values is not None:
            own = steps.get(k)
            loops = list(accesses[k].loops)[::-1] if k not in steps else [own] if own else []
            accesses[k] = _reordered(settled, accesses[k], loops, gpu, table, budget)
    return msgspec.structs.replace(settled, accesses=tuple(accesses))


def _reordered(
    problem: Problem, access: Access, loops: Sequence[str], gpu: Device, table: IntArray, budget: Budget
) -> Access:
    """The access with the best order that is found for one of its loops."""
    lanes = trace(msgspec.structs.replace(problem, accesses=(access,)), gpu, budget).accesses[0]
    best = None
    for loop in loops:
        if access.loops[loop] > 1:
            found = Reorderer(lanes, access.loops, loop, gpu, table, budget).run()
            if best is None or found[0] < best[0]:
                best = found
    return access if best is None else reordered(access, best[1], problem, gpu.lanes)
