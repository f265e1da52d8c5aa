"""The search over linearisations and swizzles, by rising bytes.

Stage 1 looks for the smallest layout under which every phase costs no more than its counting bound,
which is optimal among all layouts where it needs only the tile's own bytes. Where no candidate
reaches the bounds, stage 2 minimises the weighted excess over all of them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from layoutopt.budget import Budget
from layoutopt.engine.referee import Referee
from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import Device
from layoutopt.layout.index_cost import index_cost, least_index_cost
from layoutopt.layout.layout import Layout, Target
from layoutopt.model.cp_sat import Outcome
from layoutopt.model.layout_model import Choice
from layoutopt.model.linear_phases import Phases, phases_of
from layoutopt.model.linearisations import (
    MAX_CUTS,
    IntArray,
    Linearisation,
    by_cost,
    least_matrix_operations,
    least_operations,
    matrices,
    rotated,
    space_of,
    unpadded,
)
from layoutopt.model.pads import padded
from layoutopt.model.phases import PhaseSet, phase_sets
from layoutopt.model.pitches import BEYOND, MOST_ELEMENTS, most_elements
from layoutopt.model.placement import FreeAssignment, free_assignment
from layoutopt.model.swizzle import SHIFT_OPERATIONS, SwizzleModel
from layoutopt.model.swizzle_rules import (
    Field,
    Masks,
    Rules,
    distances,
    last_block,
    rules,
    shortened,
    swizzle_field,
    textbook,
)
from layoutopt.problems.alignment import base_alignment
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, Method, ModelGrowth
from layoutopt.problems.trace import Trace
from layoutopt.problems.types import FAMILIES, Problem, Tile
from layoutopt.search.joint import Growth, needs_no_list, smallest
from layoutopt.search.proposal import Progress, Proposal
from layoutopt.search.walsh import Question, decide

# Rounds of stage 2: how many candidates, most promising first, and the deterministic time that each gets.
_ROUNDS = ((24, 0.05), (24, 0.5), (None, 0.05), (24, 5.0), (None, 0.5), (None, 5.0), (None, None))
# Before this round a table is tried, with this effort: it may be the answer, and be proved to be.
_TABLE_ROUND, _TABLE_EFFORT = 1, 2.0
# Said of a layout whose index another may undercut, where the index comes first.
_COST_LEFT: Final[dict[str, Any]] = {
    "complete": False,
    "operations_proved": False,
    "reason": "that no index of these families is cheaper is not proved",
}
# Elements beyond which no kernel would want a table of offsets: to have less excess, and to save bytes.
MAX_LOOKUP = 4096
MAX_LOOKUP_FOR_BYTES = 512
# Share of the time that one model of everything gets where excess is allowed.
_MODEL_SHARE = 0.5
# What it gets in stage 1 before the next candidate is looked at.
_STAGE_1_EFFORT = 0.2
# What it gets to find the cheapest swizzle where one is known to exist.
_POLISH_EFFORT = 0.2
_FALLBACK_CANDIDATES = 4096
_SEED = 1
# Shares of the time left: to look at them, and of that to list them; to list other kinds before any is tried.
_FALLBACK_SHARE, _PADS_SHARE, _GATHER_SHARE = 0.7, 0.4, 0.2
# Smallest and least conflicting linearisations over which the usual swizzles are evaluated.
_TEXTBOOK_CANDIDATES = 48


@dataclass(frozen=True, slots=True)
class _Found:
    candidate: Linearisation
    masks: Masks
    excess: int
    operations: int
    cheapest: bool = True  # no swizzle over this candidate is known to be cheaper

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.excess, self.candidate.span, self.operations


@dataclass(slots=True)
class _Tally:
    """What the stages leave open."""

    undecided_span: int | None = None  # smallest candidate that stage 1 left open
    refuted: int = 0  # no layout of the families has this excess or less than this
    deciders: set[str] = field(default_factory=set)  # who refuted swizzles, beside counting
    exhausted: bool = True  # every candidate of the families was looked at
    unswizzled: list[_Found] = field(default_factory=list)


def search(
    problem: Problem,
    device: Device,
    trace: Trace,
    *,
    conflict_free: bool,
    budget: Budget,
    workers: int,
    progress: Progress,
    counted: Trace | None = None,
    method: Method = "auto",
) -> Proposal:
    """Find the layout with the least weighted excess, then bytes, then index cost.

    `counted` are the instructions of `trace` whose excess counts, where not all of them: the others bind
    vectors only. `method` is that of `Ask`.

    Raises:
        ProblemFileError: no access has an active lane, or the constraints contradict the accesses.
    """
    return _Search(problem, device, trace, conflict_free, budget, workers, progress, counted, method).run()


def why_no_table(problem: Problem) -> str:
    """Why a table of offsets may not be the answer; empty where it may."""
    elements = problem.tile.elements
    if "table" not in (problem.layout.families or FAMILIES):
        return "tables are not among the families"
    if problem.layout.order is not None:
        return "a table has no order of dimensions, which the problem fixes"
    if stride_multiple(problem) > 1:
        return "a table has no pitch, which the problem wants to be a multiple"
    if elements > MAX_LOOKUP:
        return f"a table has at most {MAX_LOOKUP:,} elements, the tile has {elements:,}"
    return ""


def stride_multiple(problem: Problem) -> int:
    """Elements of which every stride but the innermost is a multiple."""
    pitch = problem.layout.pitch_multiple_bytes or 1
    return pitch // math.gcd(pitch, problem.tile.element_bytes)


def look_up(tile: Tile, free: FreeAssignment, proposal: Proposal) -> Proposal:
    """A free assignment as a layout, in place of `proposal`, which is worse."""
    assert free.table is not None
    assert free.bytes is not None
    assert free.excess is not None
    size = tile.element_bytes
    row_major = 2 * (sum(1 for extent in tile.shape if extent > 1) - 1)
    return replace(
        proposal,
        layout=Layout(tile.shape, size, (), lookup=tuple((free.table.ravel() // size).tolist())),
        family="table",
        weighted_excess=free.excess,
        bytes=free.bytes,
        operations=row_major + 1,
        operations_proved=False,
        excess_bound=Bound(free.bound, EVERY_LAYOUT),
        bytes_bound=Bound(free.bytes_bound if free.excess == free.bound else tile.bytes, EVERY_LAYOUT),
        complete=free.complete,
        decided_by="placement",
        reason="" if free.complete else "stopped before the proof was complete",
    )


def plain_layouts(
    problem: Problem, device: Device, trace: Trace, budget: Budget
) -> Iterator[tuple[Layout, str, int]]:
    """Layouts of the families without a swizzle, with their families and operations.

    First those without cuts and pads, then pads of whole dimensions by rising bytes, then cuts.
    """
    search = _Search(problem, device, trace, False, budget, 1, lambda _: None)
    space = search.space
    cut = (candidate for cuts in (1, 2) for candidate in unpadded(space, cuts))
    for candidate in itertools.chain(unpadded(space, 0), padded(space, cuts=False), rotated(space), cut):
        if search._fits(candidate.span):
            found = _Found(candidate, {}, 0, candidate.operations)
            yield search._layout(found), candidate.family, candidate.operations


class _Search:
    def __init__(
        self,
        problem: Problem,
        device: Device,
        trace: Trace,
        conflict_free: bool,
        budget: Budget,
        workers: int,
        progress: Progress,
        counted: Trace | None = None,
        method: Method = "auto",
    ) -> None:
        self.method = method
        self.model: ModelGrowth | None = None
        self.engine = Referee(counted or trace, device)
        self.tile = problem.tile
        self.trace = trace
        self.may_look_up = not why_no_table(problem)
        self.budget = budget
        self.workers = workers
        self.progress = progress
        self.conflict_free = conflict_free
        self.limit = problem.layout.max_bytes
        self.sets: tuple[PhaseSet, ...] = phase_sets(counted or trace, self.tile, device)
        families = problem.layout.families or FAMILIES
        alignment = problem.layout.alignment_bytes
        needed = base_alignment(trace, device, swizzled=False)
        if alignment is not None and alignment < needed:
            widest = max(a.operation.width_bytes for a in trace.accesses)
            what = f"the {widest}-byte accesses need" if widest == needed else "counts that hold need"
            raise ProblemFileError("layout.alignment_bytes", f"{what} {needed}, not {alignment}")
        row_bytes = (
            max(s.rule.banks * s.rule.bank_bytes for s in self.sets)
            if self.sets
            else device.banks * device.bank_bytes
        )
        size = self.tile.element_bytes
        self.space = space_of(problem, trace, row_bytes, families)
        self.field: Field | None = None
        if {"xor", "matrix"} & set(families) and self.sets and (alignment is None or alignment >= row_bytes):
            self.field = swizzle_field(self.sets, self.tile, trace)
        self.minimise = problem.layout.minimise
        # Row-major, of the family none, is where a table alone starts from.
        formulas = [f for f in FAMILIES if f in families and f != "table"] or ["none"]
        self.scope = "families " + ", ".join(formulas)
        # Where conflicts are ruled out, the fewest bytes without any are the aim anyway.
        if self.minimise == "bytes" and not conflict_free:
            least = self._least_span() * size
            self.limit = least if self.limit is None else min(self.limit, least)
        if self.limit is not None:
            self.scope += f" within {self.limit} bytes"
        self.floor, self.plain_floor = self._floor()
        self.tally = _Tally()
        self.level: _Found | None = None  # the best that reaches the floor
        self.stream = self._candidates()

    def _floor(self) -> tuple[int, int]:
        """Excess that the counting bound leaves in every layout: weighted, and not."""
        weighted = plain = 0
        for s in self.sets:
            chunk_words = max(1, s.width_bytes // s.rule.bank_bytes)
            requests = chunk_words if s.rule.split_words else 1
            distinct = s.elements >= 0
            distinct[:, 1:] &= s.elements[:, 1:] != s.elements[:, :-1]
            ideal = -(-distinct.sum(axis=1) * chunk_words // (s.rule.banks * requests))
            over = np.maximum(s.floor - ideal, 0)
            weighted += int((s.weight * over).sum()) * requests
            plain += int((s.repeats * over).sum()) * requests
        return weighted, plain

    def run(self) -> Proposal:
        """The answer, and who decided it."""
        proposal = self._answer()
        return replace(
            proposal, decided_by=proposal.decided_by or self._decided_by(proposal), model=self.model
        )

    def _decided_by(self, proposal: Proposal) -> str:
        everywhere = proposal.excess_bound.everywhere and proposal.bytes_bound.everywhere
        if not self.tally.deciders or (everywhere and proposal.layout is not None):
            return "counting"
        return "cp-sat" if "cp-sat" in self.tally.deciders else "walsh"

    def _answer(self) -> Proposal:
        if self.limit is not None and self.tile.bytes > self.limit:
            return self._none(
                f"the elements alone need {self.tile.bytes} bytes; max_bytes is {self.limit}",
                EVERY_LAYOUT,
                True,
            )
        if self.conflict_free and self.floor:
            return self._none("the counting bound: every layout has conflicts", EVERY_LAYOUT, True)
        if self.minimise != "instructions":
            return self._excess_first()
        if (cheapest := self._least_operations()) is not None:
            return cheapest
        proposal = self._excess_first()
        return proposal if proposal.layout is None else replace(proposal, **_COST_LEFT)

    def _excess_first(self) -> Proposal:
        """Least excess, then bytes, then index cost."""
        stage1 = self._reach_floor()
        if not self.tally.unswizzled:
            if self.budget.spent:
                return self._none("out of time", self.scope, False)
            return self._none("no layout of these families keeps to the constraints", self.scope, True)
        if stage1 is not None and stage1.excess == self.floor:
            if not self.tally.exhausted:
                self.tally.undecided_span = self.tile.elements
            if stage1.candidate.span > self.tile.elements <= MAX_LOOKUP_FOR_BYTES:
                answer = self._by_table(stage1)
                if answer is not None:
                    return answer
            proved = self.tally.undecided_span is None and stage1.cheapest
            return self._proposal(stage1, self.floor, operations_proved=proved)
        if self.conflict_free:
            complete = self.tally.undecided_span is None and self.tally.exhausted
            reason = "every layout of these families has conflicts" if complete else "out of time"
            return self._none(reason, self.scope, complete)
        return self._least_excess()

    # Other orders of the objective -------------------------------------------------------------

    def _least_span(self) -> int:
        """Elements of the smallest layout in the families."""
        spans = []
        for cuts in range(MAX_CUTS + 1):
            for candidate in unpadded(self.space, cuts):
                if candidate.span == self.tile.elements:
                    return candidate.span
                spans += [candidate.span, *self._reaches(candidate)[:1]]
        return min(spans, default=self.tile.elements)

    def _least_operations(self) -> Proposal | None:
        """The cheapest index (with `conflict_free`, that serves every phase), then excess, then bytes.

        None where no layout was found that needs no swizzle, or one without conflicts.
        """
        best: _Found | None = None
        least = least_operations(self.space)
        for candidate in self._by_operations():
            if best is not None and candidate.operations > best.operations:
                continue
            if self.budget.spent and best is not None:
                self.tally.exhausted = False
                break
            phases = phases_of(candidate, self.sets, self.tile)
            found: _Found | None = _Found(candidate, {}, phases.excess({}), candidate.operations)
            if self.conflict_free and found is not None and found.excess:
                found = self._swizzled_within(candidate, phases, best)
            if found is not None and self._fits(found.candidate.span):
                best = found if best is None else min(best, found, key=lambda f: (f.operations, *f.rank))
            if best is not None and (best.operations, best.excess) <= (least, self.floor):
                break  # what follows is larger
        return None if best is None else self._cheapest(best)

    def _by_operations(self) -> Iterator[Linearisation]:
        """The candidates that a cheapest index may come from, by rising operations where that matters.

        Without `conflict_free` any candidate serves, so that only those as cheap as row-major, or cheaper,
        need be looked at; of them the smallest that reaches the floor ends the search.
        """
        if self.conflict_free:
            gathered = list(self.budget.part(_GATHER_SHARE).while_left(self._candidates()))
            self.tally.exhausted = self.tally.exhausted and self.budget.share_left > 1 - _GATHER_SHARE
            yield from sorted(gathered, key=lambda c: (c.operations, c.span))
            return
        yield from self._candidates()

    def _swizzled_within(
        self, candidate: Linearisation, phases: Phases, best: _Found | None
    ) -> _Found | None:
        """A swizzle over `candidate` without conflicts that is as cheap as `best`, or cheaper."""
        for reach in self._reaches(candidate):
            if best is not None and candidate.operations + SHIFT_OPERATIONS > best.operations:
                return None
            found, decided = self._swizzle(replace(candidate, span=reach), phases, phases.ideal, None)
            if not decided:
                self.tally.exhausted = False
            if found is not None:
                return found
        return None

    def _cheapest(self, found: _Found) -> Proposal:
        cost = index_cost(self._layout(found))
        self.scope += f" with at most {cost} operations"
        least = least_index_cost(self.tile.shape, bool(found.masks))
        proved = self.tally.exhausted and found.cheapest and cost <= least
        bound = found.excess if proved else self.floor
        size = int(self._layout(found).table().max()) + self.tile.element_bytes
        self.tally.undecided_span = None if proved else self.tile.elements
        proposal = self._proposal(found, bound, operations_proved=proved)
        least = size if proved else self.tile.bytes
        scope = EVERY_LAYOUT if least == self.tile.bytes else self.scope
        proposal = replace(proposal, bytes_bound=Bound(least, scope))
        return (
            replace(proposal, operations_proved=True, complete=True, reason="")
            if proved
            else replace(proposal, **_COST_LEFT)
        )

    # Stage 1 -----------------------------------------------------------------------------------

    def _reach_floor(self) -> _Found | None:
        return self._by_model() if self.method == "model" else self._by_candidates()

    def _by_model(self) -> _Found | None:
        """Pads, order and masks decided by one model, until the conflict engine confirms what it proposes."""
        every_pitch = most_elements(self.space)
        if self.limit is not None:
            every_pitch = min(every_pitch, self.limit // self.tile.element_bytes)
        growth = Growth(
            self.space,
            self.field,
            self.sets,
            self.tile,
            min(every_pitch, MOST_ELEMENTS),
            ideal=self.conflict_free,
            holds=lambda choice: self.engine.excess(self._layout(self._chosen(choice))) == self.floor,
            budget=self.budget,
            patience=self.budget if self.conflict_free else self.budget.part(_MODEL_SHARE),
            progress=self.progress,
        )
        every = unpadded(self.space, 0) if needs_no_list(self.space) else self._candidates()
        reached = smallest(growth, every)
        self.model = reached.growth
        self.tally.deciders.add("cp-sat")
        self.tally.exhausted = self.tally.exhausted and reached.proved
        if reached.choice is not None:
            self.level = self._chosen(reached.choice)
            self.tally.unswizzled.append(self.level)
        else:
            self.tally.exhausted = self.tally.exhausted and every_pitch <= MOST_ELEMENTS
            self.tally.refuted = self.floor + 1 if self.tally.exhausted else 0
            self._count_plain()
        return self.level

    def _chosen(self, choice: Choice) -> _Found:
        masks, candidate = choice.masks, choice.candidate
        operations = candidate.operations + SHIFT_OPERATIONS * distances(masks)
        # Of other families what is as small and cheaper is not sought.
        cheapest = choice.cheapest and not self.space.families & BEYOND
        return _Found(candidate, masks, self.floor, operations, cheapest)

    def _count_plain(self) -> None:
        """All candidates without their swizzles, as far as time allows, where none reaches the floor."""
        part = self.budget.part(_GATHER_SHARE)
        for candidate in self.stream:
            excess = phases_of(candidate, self.sets, self.tile).excess({})
            self.tally.unswizzled.append(_Found(candidate, {}, excess, candidate.operations))
            if self.conflict_free:
                return
            if part.spent:
                self._fall_back()
                return

    def _by_candidates(self) -> _Found | None:
        deferred: list[Linearisation] = []
        for candidate in self.stream:
            # Where nothing reaches the floor, the other half is for the swizzles that come nearest, or
            # two fifths for pads that are not the smallest.
            needed = 0.4 if self.field is None else 0.5
            if self.level is not None or self.conflict_free:
                needed = 0.0
            if self.budget.share_left <= needed and self.tally.unswizzled:
                self._fall_back()
                return self.level
            if self.level is not None and candidate.span >= self.level.candidate.span + self._block:
                break
            if self._is_no_better(candidate, self.level):
                continue
            found, decided = self._try(candidate, self.level, _STAGE_1_EFFORT)
            if not decided:
                deferred.append(candidate)
            self.level = _better(self.level, found)
        if self.level is None and not self.conflict_free:
            return None  # stage 2 decides the deferred ones, too
        for candidate in sorted(deferred, key=by_cost):
            mine = self.level is not None and candidate.digits == self.level.candidate.digits
            if not mine and self._is_no_better(candidate, self.level):
                continue
            found, decided = self._try(candidate, self.level, None)
            if not decided:
                self._leave_open(candidate)
            self.level = _better(self.level, found)
        return self.level

    @property
    def _block(self) -> int:
        """Elements by which a swizzle may shorten or lengthen a layout, at most."""
        return self.space.period if self.field is not None else 1

    def _is_no_better(self, candidate: Linearisation, level: _Found | None) -> bool:
        """Whether nothing over `candidate` can be smaller than `level`, or as small and cheaper."""
        if level is None or candidate.span < level.candidate.span:
            return False
        if candidate.span == level.candidate.span and candidate.operations < level.operations:
            return False
        if candidate.span == self.tile.elements:
            return True
        size = level.candidate.span
        least = candidate.operations + SHIFT_OPERATIONS
        return not any(r < size or (r == size and least < level.operations) for r in self._reaches(candidate))

    def _reaches(self, candidate: Linearisation) -> list[int]:
        """Sizes that a swizzle over `candidate` can give, in elements, rising; empty for no swizzle."""
        if self.field is None or not candidate.may_swizzle:
            return []
        last = last_block(candidate, self.field, self.tile)
        sizes = [candidate.span] if last is None else sorted(set(last.reach.values()))
        return [size for size in sizes if self._fits(size)]

    def _try(
        self, candidate: Linearisation, level: _Found | None, effort: float | None
    ) -> tuple[_Found | None, bool]:
        """A layout over `candidate` that reaches the floor, if there is one; and whether that is sure."""
        phases = phases_of(candidate, self.sets, self.tile)
        costs = phases.costs({})
        plain = _Found(candidate, {}, phases.excess_at(costs), candidate.operations)
        self.tally.unswizzled.append(plain)
        ceilings = phases.ideal if self.conflict_free else phases.target
        serves = bool((costs <= ceilings).all()) and self._fits(candidate.span)
        level = _better(level, plain if serves else None)
        reaches = self._reaches(candidate)
        if level is not None:
            least = candidate.operations + SHIFT_OPERATIONS
            size = level.candidate.span
            reaches = [r for r in reaches if r < size or (r == size and least < level.operations)]
        shorter, decided = self._try_reaches(candidate, phases, ceilings, reaches, effort)
        return _better(plain if serves else None, shorter), decided

    def _try_reaches(
        self,
        candidate: Linearisation,
        phases: Phases,
        ceilings: IntArray,
        reaches: list[int],
        effort: float | None,
    ) -> tuple[_Found | None, bool]:
        """The shortest swizzled layout over `candidate` within the ceilings; and whether that is sure."""
        if not reaches:
            return None, True
        self.progress(f"{candidate.family}, {candidate.span * self.tile.element_bytes} bytes")
        # The roomiest first: where that fails, the tighter ones need not be tried.
        for reach in (reaches[-1], *reaches[:-1]):
            roomy = replace(candidate, span=reach)
            found, decided = self._swizzle(roomy, phases, ceilings, effort)
            if not decided:
                return found, False
            if reach == reaches[-1]:
                if found is None or len(reaches) == 1:
                    return found, True
                widest = found
            elif found is not None:
                return found, True
        return widest, True

    def _swizzle(
        self,
        candidate: Linearisation,
        phases: Phases,
        ceilings: IntArray,
        effort: float | None,
    ) -> tuple[_Found | None, bool]:
        """The cheapest swizzle over `candidate` within the ceilings; and whether its existence is sure."""
        assert self.field is not None
        given = rules(candidate, self.field, self.tile)
        outcome, hint = decide(self._question(phases, ceilings, given), self.budget)
        if outcome is Outcome.INFEASIBLE:
            self.tally.deciders.add("walsh")
            return None, True
        known = hint if outcome is Outcome.FEASIBLE else None
        model = SwizzleModel(phases, self.field, given)
        if known is not None:
            effort = min(effort or _POLISH_EFFORT, _POLISH_EFFORT)
        solution = model.solve_targets(ceilings, self.budget, effort, known)
        solved = solution.outcome in (Outcome.OPTIMAL, Outcome.FEASIBLE)
        if not solved and known is None:
            self.tally.deciders.add("cp-sat")
        masks = solution.masks if solved else known
        found = None if masks is None else self._swizzled(candidate, phases, masks)
        if found is not None and solution.outcome is not Outcome.OPTIMAL:
            found = replace(found, cheapest=False)
        return found, known is not None or solution.outcome in (Outcome.OPTIMAL, Outcome.INFEASIBLE)

    def _question(self, phases: Phases, ceilings: IntArray, given: Rules) -> Question:
        assert self.field is not None
        return Question(
            phases.words,
            phases.chunk_bits,
            phases.bank_bits,
            ceilings,
            given.targets,
            self.field.first_source,
            given.still,
            given.last,
        )

    def _model(self, candidate: Linearisation, phases: Phases) -> SwizzleModel:
        assert self.field is not None
        return SwizzleModel(phases, self.field, rules(candidate, self.field, self.tile))

    def _fall_back(self) -> None:
        """Out of time: look at plain pads, near and far, which cost next to nothing to evaluate."""
        self.tally.exhausted = False
        time = self.budget.part(_FALLBACK_SHARE)
        few = itertools.islice(padded(self.space, cuts=False), _FALLBACK_CANDIDATES)
        pads = [pad for pad in time.part(_PADS_SHARE).while_left(few) if self._fits(pad.span)]
        smallest = math.inf  # that reaches the floor
        for k in time.while_left(np.random.default_rng(_SEED).permutation(len(pads)).tolist()):
            candidate = pads[k]
            if candidate.span < smallest:
                excess = phases_of(candidate, self.sets, self.tile).excess({})
                self.tally.unswizzled.append(_Found(candidate, {}, excess, candidate.operations))
                smallest = candidate.span if excess == self.floor else smallest

    def _fits(self, span: int) -> bool:
        return self.limit is None or span * self.tile.element_bytes <= self.limit

    def _leave_open(self, candidate: Linearisation) -> None:
        spans = [*self._reaches(candidate)[:1], candidate.span, self.tally.undecided_span]
        self.tally.undecided_span = min(s for s in spans if s is not None)

    def _candidates(self) -> Iterator[Linearisation]:
        """All candidates by rising span, then operations, as lazily as can be."""
        rest: list[Linearisation] = []
        for cuts in range(MAX_CUTS + 1):
            tight: list[Linearisation] = []
            candidates = unpadded(self.space, cuts)
            part = self.budget.part(_GATHER_SHARE)
            for candidate in itertools.chain(candidates, rotated(self.space)) if cuts == 0 else candidates:
                (tight if candidate.span == self.tile.elements else rest).append(candidate)
                if part.spent:
                    self.tally.exhausted = False
                    break
            yield from sorted(tight, key=by_cost)
        yield from self._matrices()
        for candidate in heapq.merge(sorted(rest, key=by_cost), padded(self.space), key=by_cost):
            if self._fits(candidate.span - self._block + 1):
                yield candidate

    def _matrices(self) -> Iterator[Linearisation]:
        """Bit matrices, unless they can only be dearer than what is known."""
        field, shape = self.field, self.tile.shape
        if field is None or "matrix" not in self.space.families or self.space.order:
            return
        if any(extent & (extent - 1) for extent in shape) or self.space.stride_multiple > 1:
            return
        if self.level is not None and self.level.operations <= least_matrix_operations(self.space):
            return
        word_elements = field.word_bytes // math.gcd(field.word_bytes, self.tile.element_bytes)
        inside = (word_elements.bit_length() - 1) if word_elements > 1 else 0
        yield from matrices(self.space, inside, len(field.targets))

    # Stage 2 -----------------------------------------------------------------------------------

    def _least_excess(self) -> Proposal:
        fitting = [f for f in self.tally.unswizzled if self._fits(f.candidate.span)]
        # Where only swizzles fit: worse than every one of them, and no answer.
        nothing = replace(self.tally.unswizzled[0], excess=1 + self._most_excess())
        best = min(fitting, key=lambda f: f.rank, default=nothing)
        hints: dict[Linearisation, Masks] = {}
        nearest = dict.fromkeys(
            found.candidate
            for key in (lambda f: by_cost(f.candidate), lambda f: f.rank)
            for found in sorted(self.tally.unswizzled, key=key)[:_TEXTBOOK_CANDIDATES]
        )
        promise = {f.candidate: f.excess for f in self.tally.unswizzled}
        for candidate in nearest:
            for found in self._textbook(candidate):
                if found.excess < promise[candidate]:
                    promise[candidate], hints[candidate] = found.excess, found.masks
                best = min(best, found, key=lambda f: f.rank)
        by_size = sorted(promise, key=_by_cost_then_digits)
        by_promise = sorted(by_size, key=promise.__getitem__)
        # The smallest candidates in turn with the most promising.
        order = dict.fromkeys(c for pair in zip(by_promise, by_size, strict=True) for c in pair)
        pending = [
            (replace(candidate, span=reach), hints.get(candidate), max(self.floor, self.tally.refuted))
            for candidate in order
            for reach in self._reaches(candidate)
        ]
        # Every candidate gets a little effort before any gets much: good layouts come early.
        for number, (count, effort) in enumerate(_ROUNDS):
            if number == _TABLE_ROUND and (answer := self._by_table(best)) is not None:
                return answer
            left = []
            for candidate, hint, bound in pending[:count]:
                best, bound = self._improve(candidate, hint, best, bound, effort)
                if bound < best.excess or (bound == best.excess and candidate.span < best.candidate.span):
                    left.append((candidate, hint, bound))
            pending = left + pending[len(pending) if count is None else count :]
        best = self._go_on(best)
        bound = min((bound for *_, bound in pending), default=best.excess)
        self.tally.undecided_span = min((candidate.span for candidate, *_ in pending), default=None)
        if not self.tally.exhausted:
            bound = max(self.floor, self.tally.refuted)
            self.tally.undecided_span = self.tile.elements
        if best is nothing:
            complete = self.tally.exhausted and not pending
            reason = "no layout of these families keeps to the constraints" if complete else "out of time"
            return self._none(reason, self.scope, complete)
        return self._proposal(best, max(self.floor, min(bound, best.excess)), operations_proved=False)

    def _go_on(self, best: _Found) -> _Found:
        """The best, after the candidates that stage 1 left when it had had its share of the time."""
        for candidate in self.budget.while_left(self.stream if not self.tally.exhausted else ()):
            if best.excess == self.floor:
                break
            found, _ = self._try(candidate, None, _STAGE_1_EFFORT)
            plain = self.tally.unswizzled[-1]
            fitting = [f for f in (best, found, plain) if f is not None and self._fits(f.candidate.span)]
            best = min(fitting, key=lambda f: f.rank, default=best)
        return best

    def _most_excess(self) -> int:
        """Weighted excess that no layout exceeds: every lane waits for every other."""
        return sum(
            int(s.weight.sum()) * s.elements.shape[1] * max(1, s.width_bytes // s.rule.bank_bytes)
            for s in self.sets
        )

    def _by_table(self, best: _Found) -> Proposal | None:
        """The best table, where it is proved to be, and better than formulas so far."""
        if not self.may_look_up:
            return None
        free = free_assignment(
            self.sets,
            self.trace,
            self.tile,
            budget=self.budget,
            effort=_TABLE_EFFORT,
            max_bytes=self.limit,
            hint=self._layout(best).table() if self._fits(best.candidate.span) else None,
        )
        if free is None or not free.complete or free.excess is None or free.bytes is None:
            return None
        if (free.excess, free.bytes) >= (best.excess, best.candidate.span * self.tile.element_bytes):
            return None
        return look_up(self.tile, free, self._proposal(best, self.floor, operations_proved=False))

    def _textbook(self, candidate: Linearisation) -> Iterator[_Found]:
        """The usual swizzles over `candidate`: a good start, for it costs little to evaluate them."""
        phases: Phases | None = None
        for reach in self._reaches(candidate):
            assert self.field is not None
            exact = replace(candidate, span=reach)
            given = rules(exact, self.field, self.tile)
            phases = phases or phases_of(candidate, self.sets, self.tile)
            highest = (reach * self.tile.element_bytes - 1) // self.field.word_bytes
            for masks in textbook(self.field, given, highest):
                if self.budget.spent:
                    return
                yield self._swizzled(exact, phases, masks)

    def _improve(
        self, candidate: Linearisation, hint: Masks | None, best: _Found, bound: int, effort: float | None
    ) -> tuple[_Found, int]:
        """Try to beat `best` with a swizzle over `candidate`; the new best, and its proved bound."""
        most = best.excess if candidate.span < best.candidate.span else best.excess - 1
        if most < bound:
            return best, most + 1
        if self.budget.spent:
            return best, bound
        phases = phases_of(candidate, self.sets, self.tile)
        self.progress(f"{candidate.family}, excess at most {most}")
        # Several workers only where nothing but the proved minimum counts: the rest depends on luck.
        workers = self.workers if effort is None else 1
        self.tally.deciders.add("cp-sat")
        solution = self._model(candidate, phases).solve_excess(most, self.budget, workers, effort, hint)
        if solution.outcome is Outcome.INFEASIBLE:
            return best, most + 1
        bound = max(bound, solution.bound)
        if solution.outcome is Outcome.UNKNOWN:
            return best, bound
        if solution.outcome is Outcome.OPTIMAL:
            bound = solution.value
            cheap = self._model(candidate, phases).solve_index_cost(solution.value, self.budget)
            solution = cheap if cheap.masks else solution
        found = self._swizzled(candidate, phases, solution.masks)
        return min(best, found, key=lambda f: f.rank), bound

    # Results -----------------------------------------------------------------------------------

    def _swizzled(self, candidate: Linearisation, phases: Phases, masks: Masks) -> _Found:
        assert self.field is not None
        plain, masks = masks, shortened(candidate, self.field, self.tile, masks)
        operations = candidate.operations + SHIFT_OPERATIONS * distances(masks)
        # Which row operations are cheapest together with the masks, nobody asked.
        return _Found(candidate, masks, phases.excess(masks), operations, cheapest=masks == plain)

    def _layout(self, found: _Found) -> Layout:
        size = self.tile.element_bytes
        swizzle = []
        if found.masks:
            assert self.field is not None
            word_bytes = self.field.word_bytes
            for bit, mask in sorted(found.masks.items()):
                # A bit of the word offset is this bit of the element offset.
                swizzle.append(
                    Target(((1 << bit) * word_bytes // size).bit_length() - 1, mask * word_bytes // size)
                )
        return found.candidate.layout(self.tile.shape, size, tuple(swizzle))

    def _proposal(self, found: _Found, excess_bound: int, *, operations_proved: bool) -> Proposal:
        layout = self._layout(found)
        used = int(layout.table().max()) + self.tile.element_bytes
        bound_scope = EVERY_LAYOUT if excess_bound <= self.floor else self.scope
        complete = found.excess == excess_bound
        bytes_bound, bytes_scope = self.tile.bytes, EVERY_LAYOUT
        if used > self.tile.bytes and complete:
            span = self.tally.undecided_span
            open_bytes = used if span is None else min(used, span * self.tile.element_bytes)
            if open_bytes > self.tile.bytes:
                bytes_bound, bytes_scope = open_bytes, self.scope
        complete = complete and used == bytes_bound
        family = found.candidate.family
        if found.masks:
            family = "xor" if family == "none" else family + "+xor"
        return Proposal(
            layout,
            family,
            found.excess,
            used,
            found.operations,
            operations_proved and complete,
            Bound(min(excess_bound, found.excess), bound_scope),
            self.plain_floor,
            Bound(bytes_bound, bytes_scope),
            complete,
            "" if complete else "stopped before the proof was complete",
        )

    def _none(self, reason: str, scope: str, complete: bool) -> Proposal:
        return Proposal(
            None, "", 0, 0, 0, False, Bound(self.floor, EVERY_LAYOUT), self.plain_floor,
            Bound(self.tile.bytes, EVERY_LAYOUT), complete, f"{reason} ({scope})",
        )  # fmt: skip


def _better(a: _Found | None, b: _Found | None) -> _Found | None:
    if a is None or b is None:
        return a or b
    return min(a, b, key=lambda f: f.rank)


def _by_cost_then_digits(candidate: Linearisation) -> tuple[object, ...]:
    """A total order, so that the search does not depend on the order of a set."""
    return (
        *by_cost(candidate),
        candidate.turn,
        candidate.interval,
        [(d.dim, d.divide, d.stride) for d in candidate.digits],
    )
