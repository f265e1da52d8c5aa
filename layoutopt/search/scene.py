"""What all stages of a search over formulas share: the problem, candidates, their excess, the answer."""

import contextlib
import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from layoutopt.accesses.alignment import base_alignment
from layoutopt.accesses.lower import with_loops
from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case
from layoutopt.engine.referee import excess_under
from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget, OutOfTime, checkpoint, current, unhurried
from layoutopt.index.index_code import index_code
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Layout, Target
from layoutopt.model.layout_model import Solution
from layoutopt.model.linearisations import (
    MAX_CUTS,
    Linearisation,
    by_cost,
    least_matrix_operations,
    matrices,
    rotated,
    unpadded,
)
from layoutopt.model.pads import padded
from layoutopt.model.phases import Masks, Phases, counting_excess, phase_sets, phases_of
from layoutopt.model.pitches import by_span
from layoutopt.model.space import space_of, stride_multiple
from layoutopt.model.swizzle_rules import (
    Field,
    last_block,
    left_out,
    rules,
    shortened,
    swizzle_field,
    textbook,
)
from layoutopt.problems.answer import ModelGrowth
from layoutopt.problems.types import FAMILIES, Problem
from layoutopt.search.mask_tree import Question, Searched, within_ceilings
from layoutopt.search.proposal import COUNTED, STOPPED, Ask, Found, Proposal, Proved, standing

# Classes that the tree of masks counts for one linearisation, about 0.1 s; for fewer shifts, and at first.
STEPS, _STEPS_OF_FEW_SHIFTS, FEW_STEPS = 1 << 26, 1 << 22, 1 << 19
# Linearisations of whole dimensions among which pads may be a period or more.
_MOST_FAR = 1024
# Share of the work left, and effort at most, to list candidates of other kinds before any is tried.
_LISTING_SHARE, _MOST_LISTING = 0.2, 2.0
EFFORT_A_CANDIDATE = 2e-5  # of listing one, in seconds of a quiet machine
_COST_OPEN: Final = "that no index of these families is cheaper is not proved"
TOGETHER = 256  # linearisations that are looked at at once, at most


@dataclass(slots=True)
class Tally:
    """What the stages of a search found and leave open."""

    # Elements of the smallest candidate left undecided; None: there is none.
    undecided_span: int | None = None
    refuted: int = 0  # no layout of the families has less excess than this
    # What refuted swizzles, beside counting: "tree", "cp-sat".
    deciders: set[str] = field(default_factory=set)
    exhausted: bool = True  # whether every candidate of the families was tried
    counted: list[Solution] = field(default_factory=list)  # layouts whose excess is known, most unswizzled
    growth: ModelGrowth | None = None  # statistics of the CP-SAT model, where there was one


def for_listing() -> Budget:
    """What the budget in force allows for listing candidates of one kind."""
    return current().portion(_LISTING_SHARE, _MOST_LISTING)


def _is_binary(shape: tuple[int, ...]) -> bool:
    return not any(extent & (extent - 1) for extent in shape)


def searched_families(problem: Problem) -> list[str]:
    """The families of formulas that are searched, as a scope names them.

    Not those of which the constraints allow no layout. Where a file allows tables alone, the search for one
    starts from row-major, of the family none.
    """
    named = problem.layout.families or FAMILIES
    formulas = [family for family in FAMILIES if family in named and family != "table"] or ["none"]
    without = {"order", "split", "matrix"} if problem.layout.order is not None else set()
    if stride_multiple(problem) > 1:
        without |= {"interval", "matrix"}
    return [family for family in formulas if family not in without] or formulas


def _check_alignment(trace: Trace, alignment: int | None) -> None:
    """Refuse an alignment of the base, in bytes, at which counts do not hold: ProblemFileError."""
    needed = base_alignment(trace, swizzled=False)
    if alignment is not None and alignment < needed:
        widest = max(a.operation.width_bytes for a in trace.accesses)
        what = f"the {widest}-byte accesses need" if widest == needed else "counts that hold need"
        raise ProblemFileError("layout.alignment_bytes", f"{what} {needed}, not {alignment}")


class Scene:
    """The problem as every stage of a search sees it.

    Attributes:
        trace: the accesses whose lanes are certain before run time.
        counted: the instructions of `trace` whose excess counts: all, or a sample; `sets`: their phases.
        limit: bytes that a layout may take; None for any number.
        field: where a swizzle may act; None where there is no swizzle.
        counts_swizzles: whether swizzles that the model knows nothing of are to be counted one by one.
        scope: the families searched, in words.
        floor, plain_floor: the excess that counting proves of every layout, weighted and not.
    """

    def __init__(self, case: Case, ask: Ask, counted: Trace | None = None) -> None:
        """The candidates that the problem allows, and the counting bound of its excess.

        Args:
            case: accesses whose lanes choose at run time are left out here.
            ask: options of the search.
            counted: the instructions whose excess counts (None: all); others only keep their vectors whole.

        Raises:
            ProblemFileError: no access has an active lane, or the constraints contradict the accesses.
        """
        problem, device, trace = case.lowered, case.device, case.certain
        self.case, self.problem, self.trace, self.ask = case, problem, trace, ask
        self.counted = counted or trace
        self.tile, self.conflict_free = problem.tile, ask.conflict_free
        self.objective, self.limit = problem.layout.objective, problem.layout.max_bytes
        self._sizes: dict[Linearisation, tuple[int, ...]] = {}  # see `reaches`
        self.sets = phase_sets(self.counted, self.tile, whole=trace if counted else None)
        families, alignment = problem.layout.families or FAMILIES, problem.layout.alignment_bytes
        _check_alignment(trace, alignment)
        # A row of banks; after as many bytes, banks repeat.
        row_bytes = max(
            (s.rule.banks * s.rule.bank_bytes for s in self.sets), default=device.banks * device.bank_bytes
        )
        self.space = space_of(problem, trace, row_bytes, families)
        self.field: Field | None = None
        self.counts_swizzles = False  # see the class
        self._left_out = ""  # swizzles of the families that are not searched, as the scope names them
        # A swizzle reads bits of the address: its base lies at a row of banks.
        if {"xor", "matrix"} & set(families) and self.sets and (alignment is None or alignment >= row_bytes):
            size = self.tile.element_bytes
            self.field = swizzle_field(self.sets, self.tile, trace)
            self._left_out = left_out((s.rule for s in self.sets), size)
            # Of elements of 12 bytes, say, no bits of the bank are bits of the index: CuTe's are listed.
            self.counts_swizzles = bool(size & (size - 1)) and "xor" in families
            self._left_out += " but CuTe's over the dense tile" if self.counts_swizzles else ""
        named = searched_families(problem)  # of `families`, those that the constraints leave
        # Matrices choose bits of coordinates, and are listed with a field only: the scope leaves them out
        # where there is none, if the tile has any (extents that are powers of two).
        self._left_out_matrices = "matrix" in named and self.field is None and _is_binary(self.tile.shape)
        self.scope = self._families(named) + self._left_out
        # Where conflicts are ruled out, the fewest bytes without any are the aim anyway.
        if self.objective.bytes_first and not self.conflict_free:
            least = self._least_span() * self.tile.element_bytes
            self.limit = least if self.limit is None else min(self.limit, least)
        if self.limit is not None:
            self._widen(self.limit)  # pads of any length that fits, where these are few
            self.scope += f" within {self.limit} bytes"
        self.floor, self.plain_floor = counting_excess(self.sets)
        self.tally = Tally()

    @property
    def wants_plainest(self) -> bool:
        """Whether the plainest formula is sought, whatever excess it has."""
        return self.objective.instructions_first and not self.conflict_free

    def _families(self, named: list[str]) -> str:
        """The scope of a search of these families, in words, without matrices where none is searched."""
        listed = [family for family in named if not (family == "matrix" and self._left_out_matrices)]
        return "families " + ", ".join(listed or ["none"])

    def _widen(self, limit: int) -> None:
        """Let pads be of any length within the limit of bytes, if that gives few linearisations.

        Without a swizzle, a pad of a period more moves no word to another bank. With one, it gives the
        swizzle other bits to read.
        """
        if self.field is None or not {"pad", "xor"} <= self.space.families:
            return  # no swizzle is possible, or not asked for
        if math.factorial(sum(extent > 1 for extent in self.tile.shape)) > _MOST_FAR:
            return  # the orders alone are too many
        far = replace(self.space, far=True)
        # Whatever the time: the scope must not depend on the clock. A swizzle shortens by less than a block.
        listed = by_span(far, limit // self.tile.element_bytes + self.block - 1)
        with unhurried():
            few = sum(1 for _ in itertools.islice(listed, _MOST_FAR + 1)) <= _MOST_FAR
        if few:
            self.space = far
            self.scope += ", pads of any length"

    def _least_span(self) -> int:
        """Elements of the smallest layout in the families, of those tried before the time is over.

        `reaches` gives the sizes under swizzles, the least first, which are less than a block below the span.
        """
        least: float = math.inf
        unpads = itertools.chain.from_iterable(unpadded(self.space, cuts) for cuts in range(MAX_CUTS + 1))
        with contextlib.suppress(OutOfTime):
            for candidate in itertools.chain(unpads, rotated(self.space)):
                least = min([least, candidate.span, *self.reaches(candidate)[:1]])
                if least == self.tile.elements:
                    return self.tile.elements
            for candidate in padded(self.space):  # by rising span: none behind the first too large is smaller
                if candidate.span - self.block + 1 > least:
                    break
                least = min([least, candidate.span, *self.reaches(candidate)[:1]])
                checkpoint()
        return self.tile.elements if least == math.inf else int(least)

    @property
    def block(self) -> int:
        """Elements by which a swizzle may shorten or lengthen a layout, at most."""
        return self.space.period if self.field is not None else 1

    @property
    def knows_sizes(self) -> bool:
        """Whether `reaches` gives all sizes of swizzled layouts, so that a bound of bytes may rest on it."""
        return self.field is None or self.field.alike

    @property
    def limit_elements(self) -> int | None:
        """Elements that a layout may take; None for any number."""
        return None if self.limit is None else self.limit // self.tile.element_bytes

    def fits(self, span: int) -> bool:
        """Whether a layout of so many elements is small enough."""
        return self.limit is None or span * self.tile.element_bytes <= self.limit

    def reaches(self, candidate: Linearisation) -> list[int]:
        """Sizes that a swizzle over `candidate` can give, in elements, rising; empty for no swizzle."""
        if self.field is None or not candidate.may_swizzle:
            return []
        if candidate not in self._sizes:  # every stage asks
            last = last_block(candidate, self.field, self.tile)
            sizes = {candidate.span} if last is None else set(last.reach.values())
            self._sizes[candidate] = tuple(sorted(sizes))
        return [size for size in self._sizes[candidate] if self.fits(size)]

    def candidates(
        self, dense_cost: Callable[[], int | None] = lambda: None
    ) -> Iterator[list[Linearisation]]:
        """Candidate linearisations in batches, by rising span, then operations; built only as needed.

        First those of the tile's own bytes: a batch of no cuts, of one, ..., of matrices; then the others.

        `dense_cost` gives the operations of the best layout of the tile's own bytes, once there is one: from
        then on only candidates as small, of fewer operations, are given.
        """
        larger: list[Linearisation] = []  # than the tile's own bytes
        for cuts in range(MAX_CUTS + 1):
            tight: list[Linearisation] = []
            candidates = unpadded(self.space, cuts, below=dense_cost())
            rotations = rotated(self.space) if cuts == 0 else ()
            part = for_listing()  # of each number of cuts
            try:
                for candidate in itertools.chain(candidates, rotations):
                    (tight if candidate.span == self.tile.elements else larger).append(candidate)
                    part.charge(EFFORT_A_CANDIDATE)
                    part.check()
            except OutOfTime:
                self.tally.exhausted = False
            yield sorted(tight, key=by_cost)
        yield list(self._matrices(dense_cost()))
        if dense_cost() is not None:
            return
        # By rising span, up to the first too large for any swizzle, which shortens by less than a block.
        by_span = heapq.merge(sorted(larger, key=by_cost), padded(self.space), key=by_cost)
        fitting = itertools.takewhile(lambda c: self.fits(c.span - self.block + 1), by_span)
        count = 1
        while batch := list(itertools.islice(fitting, count)):
            yield batch
            count = min(2 * count, TOGETHER)

    def _matrices(self, dense_cost: int | None) -> Iterator[Linearisation]:
        """Candidates of the family matrix, unless all take `dense_cost` operations or more."""
        field, shape = self.field, self.tile.shape
        if field is None or "matrix" not in self.space.families or self.space.order:
            return
        if not _is_binary(shape) or self.space.stride_multiple > 1:
            return
        if dense_cost is not None and dense_cost <= least_matrix_operations(self.space):
            return
        word_elements = field.word_bytes // math.gcd(field.word_bytes, self.tile.element_bytes)
        yield from matrices(self.space, word_elements.bit_length() - 1, len(field.targets))

    def within_ceilings(
        self,
        candidate: Linearisation,
        phases: Phases,
        ceilings: IntArray,
        steps: int = _STEPS_OF_FEW_SHIFTS,
        shifts: int | None = None,
    ) -> Searched:
        """Masks over `candidate` under which no phase exceeds its ceiling, and the layout not its span.

        `steps` limits the search, `shifts` the different distances that bits move over.
        """
        asked = replace(self.question(candidate, phases, candidate.span), shifts=shifts)
        return within_ceilings(asked, ceilings, steps)

    def question(
        self, candidate: Linearisation, phases: Phases, most: int | None, below: tuple[int, int] = (0, 0)
    ) -> Question:
        """What is asked of masks over `candidate`: see `layoutopt.search.mask_tree.Question`."""
        field, tile = self.field, self.tile
        assert field is not None
        obeyed, last = rules(candidate, field, tile), last_block(candidate, field, tile)
        return Question(phases, field, obeyed, last, candidate.span, most, below)

    def plain(self, candidate: Linearisation) -> Solution:
        """A linearisation as it is."""
        return Solution(candidate, {}, int(self.phases(candidate).excess({})[0]))

    def textbook(self, candidate: Linearisation) -> Iterator[Masks]:
        """The masks of every `Swizzle<B, M, S>` that may lie over it."""
        if self.field is not None and candidate.may_swizzle:
            yield from textbook(candidate, self.field, self.tile)

    def phases(self, candidate: Linearisation) -> Phases:
        """The phases of the accesses under a linearisation."""
        return phases_of(candidate, self.sets, self.tile)

    def ceilings(self, phases: Phases) -> IntArray:
        """Wavefronts that each phase may cost: its counting bound, or its ideal where no excess will do."""
        return phases.ideal if self.conflict_free else phases.target

    def swizzled(self, candidate: Linearisation, phases: Phases, masks: Masks) -> Solution:
        """The layout with these masks, row operations added so that it takes at most `candidate.span`."""
        assert self.field is not None
        masks = shortened(candidate, self.field, self.tile, masks)
        return Solution(candidate, masks, int(phases.excess(masks)[0]))

    def holds(self, solution: Solution, excess: int) -> bool:
        """Whether the conflict engine counts this weighted excess."""
        return excess_under(self.layout(solution), self.counted) == excess

    def tell(self, excess: int, span: int, bound: int, doing: str) -> None:
        """Report progress: excess and elements of the best so far, the proved bound, and what comes next."""
        unit, size = self.trace.weight_unit, span * self.tile.element_bytes
        self.ask.progress(standing(excess / unit, size, bound / unit, doing))

    def layout(self, solution: Solution) -> Layout:
        """The layout of a solution, over elements."""
        size = self.tile.element_bytes
        swizzle = []
        if solution.masks:
            assert self.field is not None
            word_bytes = self.field.word_bytes
            for bit, mask in sorted(solution.masks.items()):
                # A bit of the word offset is this bit of the element offset.
                swizzle.append(
                    Target(((1 << bit) * word_bytes // size).bit_length() - 1, mask * word_bytes // size)
                )
        return solution.candidate.layout(self.tile.shape, size, tuple(swizzle))

    def instructions(self, solution: Solution) -> int:
        """Instructions of the index code of a layout, all accesses together."""
        layout = self.layout(solution)
        problem, offset = with_loops(self.problem), offset_expression(layout)
        codes = index_code(problem, self.trace, offset, layout.table())
        return sum(code.instructions.total for code in codes)

    def proposal(self, solution: Solution, excess_bound: int) -> Proposal:
        """The proposal of a solution, or of an unswizzled one where it turns out larger than the limit.

        `excess_bound`: proved of the weighted excess of every layout of the families, within the limit.
        """
        layout = self.layout(solution)
        size = int(layout.table().max()) + self.tile.element_bytes
        if self.limit is not None and not self.knows_sizes:
            # A swizzle may take other bytes than the candidate's span, which the limit was held against: of
            # layouts within it, more than the floor is not proved.
            excess_bound = self.floor
            if size > self.limit:
                return self.unswizzled("the layouts that were looked at are larger")
        excess_proved = Proved(min(excess_bound, solution.excess))
        if excess_bound > self.floor:
            excess_proved = Proved(excess_proved.lower_bound, self.scope, self._decider)
        bytes_proved = Proved(self.tile.bytes)
        if solution.excess == excess_bound and size > self.tile.bytes and self.knows_sizes:
            # All spans below the smallest left undecided are refuted; None where none is left.
            undecided = self.tally.undecided_span
            least = size if undecided is None else min(size, undecided * self.tile.element_bytes)
            if least > self.tile.bytes:
                bytes_proved = Proved(least, self.scope, self._decider)
        return Proposal(
            Found(layout, solution.family, solution.excess, size),
            excess_bound=excess_proved,
            bytes_bound=bytes_proved,
            plain_bound=Proved(self.plain_floor),  # of the excess without weights
            left_open=self.objective.instructions_first,  # what the index costs is not bounded here
            left=_COST_OPEN if self.objective.instructions_first else STOPPED,
            model=self.tally.growth,
        )

    @property
    def _decider(self) -> str:
        return next((name for name in ("cp-sat", "tree") if name in self.tally.deciders), COUNTED)

    def unswizzled(self, reason: str) -> Proposal:
        """The best layout without a swizzle so far; where there is none, `reason` says why."""
        enough = self.floor if self.conflict_free else math.inf
        serving = [s for s in self.tally.counted if s.excess <= enough and not s.masks]
        fitting = [s for s in serving if self.fits(s.candidate.span)]
        if not fitting:
            return self.none(reason, self.scope, False)
        return self.proposal(min(fitting, key=lambda s: s.rank), self.floor)

    def none(self, reason: str, scope: str, complete: bool) -> Proposal:
        """A proposal without a layout, for a reason that holds in a scope; `complete`: and is proved."""
        unknown_sizes = self.limit is not None and not self.knows_sizes
        if scope == self.scope and (unknown_sizes or self._left_out or self._left_out_matrices):
            complete = False
        return Proposal(
            None,
            Proved(self.floor, by=self._decider),
            Proved(self.tile.bytes),
            Proved(self.plain_floor),
            left_open=not complete,
            left=f"{reason} ({scope})",
            model=self.tally.growth,
        )
