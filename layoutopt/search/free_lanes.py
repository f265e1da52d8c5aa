"""Layout and lanes together, where accesses leave open which thread handles which piece.

What every assignment has in common is that consecutive threads cover segments of global memory. So:

    relaxed     the problem in which a free access is its segments alone: no assignment costs less
    assigned    the best assignment of each free access under the layout of the relaxed problem
    verified    that assignment written out, and counted as any other access is

Where the two meet, nothing is better, whatever the threads do, but a cheaper index. Else other layouts are
tried: those that are best for an assignment that is fixed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec
import numpy as np

from layoutopt.accesses.assignments import Assignment
from layoutopt.accesses.free_lanes import (
    FreeAccess,
    check_lanes,
    free_accesses,
    is_free,
    naturally,
    segments_alone,
    settled_with,
    with_idle,
)
from layoutopt.accesses.lower import assigned, chosen_widths, named_lanes, with_fixed_lanes
from layoutopt.accesses.trace import trace
from layoutopt.engine.case import Case, case_of
from layoutopt.errors import LayoutError
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import OutOfTime, current, spending, unhurried
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import is_direct_load
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, Proof, Result, Status
from layoutopt.problems.types import Access, Problem
from layoutopt.search.deal import can_deal, dealt_lanes, whole_warps
from layoutopt.search.lanes import Digits, Given, as_written, reordered
from layoutopt.search.proposal import Ask, Proposal
from layoutopt.search.verify import verified

Solver = Callable[[Problem, Ask, Device], Result]

_NEEDED_S: Final = 0.5  # for lanes under a layout, without which there is no answer
_NOT_ALL: Final = (
    "assignments that are bits of threads and iterations in any order, XORs of two, and other places in a "
    "warp were searched under a few layouts"
)


class _Found(NamedTuple):
    """An answer, and what it is compared by."""

    result: Result
    rank: tuple[float, ...]
    complete: bool


def solve_free(problem: Problem, gpu: Device, ask: Ask, solver: Solver) -> Result:
    """The best layout and lanes, verified; proved where no assignment can do better.

    Args:
        problem: some of whose accesses are free.
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
        self.natural = naturally(problem, self.free)
        self.direct = any(is_direct_load(problem.accesses[free.number].op) for free in self.free)
        self.dealt = frozenset(f.number for f in self.free if can_deal(gpu, f.lanes.operation))
        self.together = self._together()
        self.scale = math.lcm(*(self._sharing(free) or 1 for free in self.free))

    def run(self) -> Result:
        """The relaxed problem's layout with the best lanes, and where more may be had those of others."""
        relaxed = self.solver(self._relaxed(), self.ask, self.together)
        floor = self._floor(relaxed) if relaxed.layout is not None else None
        try:
            best = self._found(relaxed, floor)
        except LayoutError:  # lanes of a direct load that stand otherwise than those that are natural
            relaxed = self.solver(self.natural, self.ask, self.gpu)
            best = self._found(relaxed, floor)
        if best is None:
            return self._nothing(relaxed)
        with contextlib.suppress(OutOfTime):
            for problem in current().while_left(self._others(best)):
                if self.conflict_free and best.result.proof.objective.lower_bound > 0:
                    break
                if best.complete and (problem is not self.natural or self._is_natural(best.result)):
                    continue  # natural lanes may have a cheaper index
                with contextlib.suppress(LayoutError):  # lanes of a direct load do not write side by side
                    other = self._found(self.solver(problem, self.ask, self.gpu), floor)
                    best = min(best, other or best, key=lambda found: found.rank)
        return self._refused(best.result) if self.conflict_free and best.result.excess else best.result

    def _is_natural(self, result: Result) -> bool:
        natural = [tuple(map(str, self.natural.accesses[free.number].index)) for free in self.free]
        return natural == [result.accesses[free.number].index for free in self.free]

    def _nothing(self, relaxed: Result) -> Result:
        """No layout serves the relaxed problem: infeasible, but where direct loads stand as they are."""
        most, status, reason = self.problem.layout.max_bytes, relaxed.status, relaxed.reason
        if self.direct and (most is None or most >= self.problem.tile.bytes):
            status, reason = Status.UNKNOWN, f"{_NOT_ALL}; {reason}"
        return msgspec.structs.replace(
            relaxed, problem=self.problem.name, accesses=(), status=status, reason=reason
        )

    def _refused(self, result: Result) -> Result:
        bound = result.proof.objective
        status, reason = Status.UNKNOWN, f"no layout without conflicts was found; {_NOT_ALL}"
        if bound.lower_bound > 0:
            status = Status.INFEASIBLE
            least = f"at least {bound.lower_bound} excess wavefronts in {bound.scope}"
            reason = f"{least}, however threads are assigned"
        return Result(result.problem, result.target, status, result.proof, reason)

    def _floor(self, relaxed: Result) -> Result | None:
        """A result that bounds every assignment: of the relaxed problem, or with lanes in any order, too.

        None where direct loads are free: the relaxed problem has their lanes write as they stand.
        """
        if self.direct:
            return None
        weighs = any(self._moves(free) and self._sharing(free) for free in self.free)
        proof = relaxed.proof
        bounds = proof.objective.lower_bound or proof.bytes.lower_bound > self.problem.tile.bytes
        if not (weighs and bounds):
            return relaxed
        with contextlib.suppress(OutOfTime):
            return self.solver(self._relaxed(dealt=True), self.ask, self.together)
        return None

    # What is asked of the solver ---------------------------------------------------------------

    def _together(self) -> Device:
        """The device, if the lanes that may change places were served in any order, and no others."""
        gpu = self.gpu
        for free in self.free:
            if free.number in self.dealt:
                gpu = whole_warps(gpu, free.lanes.operation)
        fixed = (a for k, a in enumerate(self.problem.accesses) if k not in self.dealt and a.hardware is None)
        lanes = trace(
            msgspec.structs.replace(self.problem, accesses=tuple(map(with_fixed_lanes, fixed))), gpu
        )
        same = all(gpu.rule(a.operation) == self.gpu.rule(a.operation) for a in lanes.accesses)
        return gpu if same else self.gpu

    def _sharing(self, free: FreeAccess) -> int | None:
        """Segments that share a phase; None where nothing is known of a segment by itself."""
        if self._is_warp(free):
            return 1
        rule = self.gpu.rule(free.lanes.operation)
        phase, segment = len(rule.phases[0]), free.work.segment
        words = max(1, free.lanes.operation.width_bytes // rule.bank_bytes)
        bound = segment > 1 and phase % segment == 0 and phase * words <= rule.banks
        whole = free.work.units % segment == 0 and self.problem.threads >= segment
        return phase // segment if bound and whole and not free.work.first else None

    def _is_warp(self, free: FreeAccess) -> bool:
        """Whether each instruction is a segment, and is counted as one."""
        work, warp = free.work, self.gpu.lanes
        whole = work.segment == warp and not (work.first or work.threads % warp or work.units % warp)
        return whole and free.number in self.dealt and self.together is not self.gpu

    def _moves(self, free: FreeAccess) -> bool:
        """Whether pieces of a segment may go to several phases."""
        return free.number in self.dealt and not self._is_warp(free)

    def _relaxed(self, *, dealt: bool = False) -> Problem:
        """Each free access as its segments alone, which weigh as much as their share of a phase.

        Where lanes of a warp may change places, its segments need not stay in one phase: `dealt`, those weigh
        nothing.
        """
        accesses = [_weighted(a, Fraction(self.scale)) for a in self.problem.accesses]
        for number, access in enumerate(self.problem.accesses):
            if access.is_free:
                accesses[number] = msgspec.structs.replace(with_fixed_lanes(access), weight=0)
        for free in self.free:
            access = self.problem.accesses[free.number]
            sharing = self._sharing(free)
            if sharing is not None and not is_direct_load(access.op) and not (dealt and self._moves(free)):
                alone = segments_alone(free.work, access, self.problem.threads, self.gpu.lanes)
                accesses[free.number] = _weighted(alone, Fraction(self.scale, sharing))
        return msgspec.structs.replace(self.problem, accesses=tuple(accesses))

    def _others(self, best: _Found) -> Iterator[Problem]:
        """Problems whose layouts may do better than what is found."""
        if self.direct and (past_registers := self._as_stores()) is not None:
            yield past_registers
        yield self.natural
        idle = [with_idle(free, self.gpu) or free for free in self.free]
        if idle != list(self.free):
            yield naturally(self.problem, idle)
        yield assigned(self.problem, best.result)

    def _as_stores(self) -> Problem | None:
        """Where direct loads are free: XORs of the tile's bytes, which threads may write in turn."""
        accesses = list(self._relaxed().accesses)
        for free in self.free:
            access, width = accesses[free.number], free.lanes.operation.width_bytes
            if is_direct_load(access.op):
                accesses[free.number] = msgspec.structs.replace(access, op="store", bytes=width)
        layout = msgspec.structs.replace(self.problem.layout, families=("none", "xor"))
        whole = msgspec.structs.replace(self.problem, accesses=tuple(accesses), layout=layout)
        return None if whole.is_dictated else whole

    # What is made of an answer -----------------------------------------------------------------

    def _found(self, result: Result, floor: Result | None) -> _Found | None:
        """The layout of a result, if any, with the best assignment of each free access, verified."""
        if result.layout is None:
            return None
        lanes_time, widths = current().at_least(_NEEDED_S), chosen_widths(self.problem, result)
        with unhurried():
            table = case_of(self.natural, self.gpu, widths).table(result.layout)
            with spending(lanes_time):
                table = np.repeat(table, self.problem.tile.packed)
                settled = under_layout(self.problem, self.gpu, table, self.free)
            case = case_of(settled, self.gpu, widths)
            layout = case.as_bytes(result.layout)
            excess = case.weighted_excess(case.count(case.table(layout)))
            case.check(case.table(layout))
            proposal = self._proposal(case, layout, excess, result, floor)
            answer = verified(case, proposal)
        reports = named_lanes(answer.result.accesses, self.problem, settled)
        shown = msgspec.structs.replace(answer.result, accesses=reports, method=self.ask.method)
        return _Found(shown, answer.rank, proposal.complete)

    def _proposal(
        self, case: Case, layout: Layout, excess: float, result: Result, floor: Result | None
    ) -> Proposal:
        """A layout under the lanes chosen for it, with the bounds that hold for every assignment of lanes."""
        objective = self.problem.layout.objective
        nothing_proved = Bound(0, EVERY_LAYOUT)
        proof = floor.proof if floor is not None else Proof(nothing_proved, nothing_proved)
        # A proof for another order of objectives bounds neither the excess nor the bytes alone.
        bound = proof.objective if objective.excess_first else nothing_proved

        def in_trace_unit(weighted: float) -> Fraction:
            """Excess of the relaxed problem, whose weights are `scale` times those of the file."""
            return Fraction(str(weighted)) * case.lanes.weight_unit / self.scale

        exact_bound = in_trace_unit(bound.lower_bound)
        excess_bound = Bound(math.ceil(exact_bound), bound.scope)
        proved = floor is not None and floor.status is Status.OPTIMAL
        # The relaxed problem proves its bytes at its own excess, which may be a fraction of a wavefront: at
        # the next whole number, a smaller layout may exist.
        bytes_bound = Bound(self.problem.tile.bytes, EVERY_LAYOUT)
        if objective.excess_first and proved and excess == exact_bound:
            bytes_bound = proof.bytes
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
            decided_by=(floor.decided_by if floor is not None else None) or "",
        )


def under_layout(
    problem: Problem, gpu: Device, table: IntArray, free: Sequence[FreeAccess] | None = None
) -> Problem:
    """The problem with the best lanes that are found under a layout that is given; itself where none is free.

    Args:
        problem: some of whose accesses may be free.
        table: byte offset of the element, or of the byte that holds it, by row-major index, int64.
        free: the accesses whose lanes are free, where they are known.

    Raises:
        ProblemFileError: an access cannot be free.
    """
    if not is_free(problem):
        return problem
    free = free_accesses(problem, gpu) if free is None else free
    if table.min() < 0:  # no layout, as whoever asks will find
        return naturally(problem, free)
    found: dict[int, Assignment] = {}
    chosen: list[FreeAccess] = []
    for one in free:
        direct = is_direct_load(problem.accesses[one.number].op)
        idle = None if direct else with_idle(one, gpu)
        each = [(*_best(problem, other, gpu, table), other) for other in (one, idle) if other]
        _, found[one.number], taken = min(each, key=lambda best: best[0])
        chosen.append(taken)
    settled = settled_with(problem, found, chosen)
    accesses = list(settled.accesses)
    steps = {one.number: [one.work.step_loop] for one in chosen}
    for k, access in enumerate(problem.accesses):
        if access.values is not None:
            loops = steps.get(k, [*accesses[k].loops][::-1])
            with unhurried():
                lanes = trace(msgspec.structs.replace(settled, accesses=(accesses[k],)), gpu)
            several = [loop for loop in loops if loop is not None and accesses[k].loops[loop] > 1]
            accesses[k] = reordered(settled, accesses[k], several, Given(lanes.accesses[0], table, gpu))
    settled = msgspec.structs.replace(settled, accesses=tuple(accesses))
    with unhurried():  # whose time is over has them checked all the same
        check_lanes(problem, settled, gpu)
    return settled


def _best(problem: Problem, free: FreeAccess, gpu: Device, table: IntArray) -> tuple[int, Assignment]:
    """The fewest wavefronts that are found, and the assignment."""
    choices = Digits(free.lanes, table, gpu, free.work, problem.tile.shape)
    if is_direct_load(problem.accesses[free.number].op):
        found = as_written(choices) or free.work.natural
    else:
        found = choices.best()
        if choices.excess(choices.under(found)) and can_deal(gpu, free.lanes.operation):
            # Where instructions come first, none of them is to look anything up.
            found = dealt_lanes(choices, found, tables=problem.layout.objective.counts_only)
    return choices.wavefronts(found), found


def _weighted(access: Access, factor: Fraction) -> Access:
    weight = access.weight
    if isinstance(weight, str):
        return msgspec.structs.replace(access, weight=f"({weight})*{factor}")
    scaled = Fraction(str(weight)) * factor
    whole = int(scaled) if scaled.denominator == 1 else float(scaled)
    return msgspec.structs.replace(access, weight=whole)
