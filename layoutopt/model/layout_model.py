"""The choice of a layout as one CP-SAT model: pitches, dimension order and XOR masks are its variables.

    offset(x) = X(sum of x_d * pitch_d),   X(v) = v ^ sum over targets t of parity(v & mask_t) << t

    variable            meaning
    pitch_d, ...        pitches and dimension order: see `layoutopt.model.pitches`
    y                   conjunction of the `at` of all dimensions: one linearisation
    mask_{t,s}          source bit s flips target bit t; s lies above t, so X is unit triangular
    parity_{t,v}        parity(mask_t & v), along a trie over v: one XOR a step
    e_d                 words at the XOR difference d share a bank; no linearisation is part of it
    used                elements that the layout takes

Which differences occur depends on the pitches, so a linearisation's are in the model only once it is
*written out*. Before that the model knows what it takes, and is right to propose it; after that it knows
which masks it needs. Since pitches range over all integers, nothing has to be listed to be sure that
nothing smaller was overlooked:

    solve -> a proposal not written out   -> count it; if it is not good enough, write it out, solve again
          -> a proposal that is           -> nothing better exists

A rule each, with its constraint:

    one at a time    at most one of (e_d, y, y', ...) for the linearisations y, y', ... in which d occurs:
                     no word pair of a phase that must not conflict shares a bank
    ceilings         y => the words that share a bank with w are at most c - 1, where a phase may cost c
    whole vectors    y => parity_{t,v} = 0 where a flip of t by v would tear a vector
    last block       y and a pattern of flips of a last block that is not full => used >= what that takes
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from layoutopt.ground.budget import checkpoint
from layoutopt.model.cp_sat import FAR, Answer, Model, Outcome
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.masks import Swizzle
from layoutopt.model.phases import Masks, PhaseSet, phases_of
from layoutopt.model.pitches import PitchVariables, pitches_of
from layoutopt.model.space import Space
from layoutopt.model.swizzle_rules import (
    SHIFT_OPERATIONS,
    Field,
    last_block,
    rules,
    shift_operations,
    shortened,
)
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.problems.types import Tile

# Weights in the objective: an element used, an operation of the index, a mask bit, and two dimensions in
# another order than the tile's.
_ELEMENT, _OPERATION, _BIT, _TURN = 1 << 26, 1 << 14, 1 << 5, 1


@dataclass(frozen=True, slots=True)
class Solution:
    """A linearisation with a swizzle: a layout that was proposed or examined."""

    candidate: Linearisation  # its linearisation; its span is what the layout takes, or may take
    # Of the swizzle, by target bit, in bits of the word offset; none where it is not written out.
    masks: Masks
    excess: int = field(default=0, compare=False)  # weighted, where it was counted
    written: bool = field(default=True, compare=False)  # whether the model knows what the linearisation needs

    @property
    def operations(self) -> int:
        """Operations of the linearisation, and of each distinct shift: a proxy of the index cost."""
        return self.candidate.operations + shift_operations(self.masks)

    @property
    def family(self) -> str:
        """The families that it combines, such as `pad+xor`."""
        names = [self.candidate.family] * (self.candidate.family != "none") + ["xor"] * bool(self.masks)
        return "+".join(names) or "none"

    @property
    def size_and_cost(self) -> tuple[int, int]:
        """Sorting key of layouts of the same excess."""
        return self.candidate.span, self.operations

    @property
    def rank(self) -> tuple[float, ...]:
        """Sorting key of layouts of one search, which seeks the least excess within its limit of bytes."""
        return EXCESS_FIRST.key(self.excess, *self.size_and_cost)


class LayoutModel:
    """Pitches, order and masks: the smallest layout under which every phase keeps to its ceiling.

    What is allowed, written out and forbidden becomes constraints when there is something to solve, in the
    order in which it came: most often a layout is known to be best before that.
    """

    def __init__(
        self,
        space: Space,
        field: Field | None,
        sets: Sequence[PhaseSet],
        tile: Tile,
        most: int,
        *,
        ideal: bool,
    ) -> None:
        """The model without any linearisation written out.

        Args:
            space: what bounds the pitches.
            field: the bits on which a swizzle acts; None for no swizzle.
            sets: the phases of the accesses to `tile`.
            most: elements that a layout takes at most.
            ideal: whether the ceiling of a phase is its ideal, else its counting bound.
        """
        self.model = Model()
        self.space = space
        self.tile = tile
        self.sets = sets
        self.ideal = ideal
        # A swizzle may make a layout shorter than its pitches span, by less than a row of banks.
        shortens = space.period - 1 if field is not None else 0
        self.pitches = PitchVariables(self.model, space, most + shortens)
        self.swizzle = Swizzle(self.model, field) if field is not None else None
        self._used = self.model.integer(1, most, "used")
        self.written: dict[Linearisation, None] = {}  # in the order in which they were
        self._later: deque[Callable[[], None]] = deque()  # what becomes constraints before the next question
        self._shorter = self.model.boolean("shorter")  # the layout takes less than its pitches span
        self._saving: list[int] = []  # literals of linearisations that a swizzle may shorten
        self._reaches: dict[int, int] = {}  # by number of elements, the literal: `used` is at least that
        # By (lowest bit that is flipped, literal that two words share a bank): literals of the linearisations
        # in which such words meet in a phase that allows no conflict.
        self._conflicts: dict[tuple[int, int], list[int]] = {}
        self._unflipped: dict[int, int] = {}  # by target bit, the literal: no lower one is flipped
        self.asked = Model()  # the last question
        self.answers: list[Answer] = []  # to all questions so far
        # used >= 1 + sum of pitch * (extent - 1), unless the layout is shorter (-x - 1 negates literal x).
        used_less_span = [(self._used, 1), *((pitch, -steps) for pitch, steps in self.pitches.span_terms)]
        self.model.linear(used_less_span, [1, FAR], only_if=[-self._shorter - 1])

    def least_used(self, candidate: Linearisation) -> int:
        """Elements that a layout over this linearisation takes at least, whatever its swizzle."""
        if self.swizzle is None or not candidate.may_swizzle:
            return candidate.span
        last = last_block(candidate, self.swizzle.field, self.tile)
        return candidate.span if last is None else min(last.reach.values())

    def write_out(self, candidate: Linearisation) -> None:
        """Add what holds if this is the linearisation."""
        if candidate not in self.written:
            self.written[candidate] = None
            self._later.append(partial(self._write_out, candidate))

    def _write_out(self, candidate: Linearisation) -> None:
        """All rules of the module's text for one linearisation, as constraints enforced by its literal y."""
        pitches = pitches_of(candidate, len(self.space.shape))
        y = self.pitches.chosen(pitches)
        phases = phases_of(candidate, self.sets, self.tile)
        ceilings = phases.ideal if self.ideal else phases.target
        if self.swizzle is None:
            if (phases.costs({})[0] > ceilings).any():
                self.model.clause((-y - 1,))
            return
        targets = self.swizzle.field.targets
        lowest_target = targets.stop
        if candidate.may_swizzle:
            lowest_target = self._keep_vectors(self.swizzle, candidate, y)
        if lowest_target > targets.start:
            self.model.clause([-y - 1, self._no_target_below(lowest_target)])
        for shared in self.swizzle.within_ceilings(phases, ceilings, lowest_target, y):
            self._conflicts.setdefault((lowest_target, shared), []).append(y)

    def _keep_vectors(self, swizzle: Swizzle, candidate: Linearisation, y: int) -> int:
        """Add the rules `whole vectors` and `last block`.

        Returns the lowest target that may be flipped, the end of the targets where none may.
        """
        obeyed = rules(candidate, swizzle.field, self.tile)
        for torn in swizzle.torn(obeyed):
            self.model.clause((-y - 1, -torn - 1))
        if (last := last_block(candidate, swizzle.field, self.tile)) is not None:
            if min(last.reach.values()) < candidate.span:
                self._saving.append(y)
            for pattern, reach in last.reach.items():
                unless = swizzle.unless_flipped(last.sources, pattern, swizzle.field.targets)
                if unless is not None:
                    self.model.clause((-y - 1, *unless, self._at_least(reach)))
        return obeyed.targets.start if obeyed.targets else swizzle.field.targets.stop

    def _no_target_below(self, lowest: int) -> int:
        """A literal under which no target below `lowest` is flipped."""
        if lowest not in self._unflipped:
            self._unflipped[lowest] = self.model.boolean(f"flat_{lowest}")
        return self._unflipped[lowest]

    def _at_least(self, reach: int) -> int:
        """A literal that makes `used` at least `reach`."""
        if reach not in self._reaches:
            literal = self._reaches[reach] = self.model.boolean(f"reaches_{reach}")
            self.model.linear([(self._used, 1)], [reach, FAR], [literal])
        return self._reaches[reach]

    def at_most(self, used: int) -> None:
        """Rule out what takes more elements."""
        self._later.append(partial(self.model.linear, [(self._used, 1)], [1, used]))

    def forbid(self, candidate: Linearisation) -> None:
        """Rule out a linearisation of pitches."""
        self._later.append(partial(self.pitches.forbid, candidate))

    def solve(
        self,
        *,
        effort: float | None = None,
        index: bool = True,
        most: int | None = None,
        hint: Solution | None = None,
    ) -> tuple[Outcome, Solution | None]:
        """What the solver says, and the smallest layout that no constraint forbids; None if it found none.

        Args:
            effort: deterministic time; None for no limit.
            index: whether the cheapest index is sought among the smallest layouts.
            most: elements that the layout may take, where fewer than the model allows.
            hint: a layout to start from.

        Raises:
            OutOfTime: the time was over before the model was made.
        """
        while self._later:
            checkpoint()
            self._later.popleft()()
        question = self._question(index, most)
        if hint is not None:
            self._hint(question, hint)
        self.asked = question
        answer = question.solve(effort=effort, presolve=False)  # small, and asked again and again
        self.answers.append(answer)
        if not answer.values:
            return answer.outcome, None
        return answer.outcome, self._choice(answer)

    def _question(self, index: bool, most: int | None) -> Model:
        """The model of all linearisations added so far: constraints over them together, and the objective."""
        question = self.model.copy()
        # `-x - 1` negates literal x. Where some words share a bank, no linearisation has them in a phase.
        for (_, shared), linearisations in self._conflicts.items():
            question.at_most_one([shared, *linearisations])
        # Only over some linearisations is a layout shorter than its pitches say.
        question.clause([-self._shorter - 1, *self._saving])
        if self.swizzle is not None:
            for lowest, unflipped in self._unflipped.items():
                for bit in self.swizzle.bits_below(lowest):
                    question.clause((-unflipped - 1, -bit - 1))
        if most is not None:
            question.linear([(self._used, 1)], [1, most])
        cost = [(self._used, _ELEMENT)]
        if index:
            cost += [(inside, _TURN) for inside in self.pitches.turned]
        if index and self.swizzle is not None:
            cost += self.swizzle.index_cost(question, _OPERATION * SHIFT_OPERATIONS, _BIT)
        question.minimise(cost)
        return question

    def _hint(self, question: Model, known: Solution) -> None:
        question.hint(self._used, known.candidate.span)
        pitches = pitches_of(known.candidate, len(self.space.shape))
        for d, pitch in self.pitches.pitch.items():
            question.hint(pitch, pitches[d])
        if self.swizzle is not None:
            self.swizzle.hint(question, known.masks)

    def _choice(self, answer: Answer) -> Solution:
        """The layout in a solution; without masks if its linearisation is not written out."""
        candidate = self.pitches.linearisation(answer.values)
        if candidate not in self.written:
            return Solution(candidate, {}, written=False)
        candidate = replace(candidate, span=answer.values[self._used])  # to which `shortened` keeps
        masks: Masks = {}
        if self.swizzle is not None:
            highest = int(candidate.table(self.tile.shape).max()) * self.tile.element_bytes
            masks = self.swizzle.masks(answer.values, (highest // self.swizzle.field.word_bytes).bit_length())
            masks = shortened(candidate, self.swizzle.field, self.tile, masks)
        return Solution(candidate, masks)
