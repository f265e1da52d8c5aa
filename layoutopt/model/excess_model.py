"""The least excess over a few linearisations at once, where no layout reaches the floor.

    variable            meaning
    mask_{t,s}, e_d     as in `layoutopt.model.masks`
    y                   this linearisation is the one
    z_{p,k}             phase p costs k wavefronts more than an even spread; with the last k: or more still.
                        A function of the masks alone, so that linearisations share the phases that they have
                        in common
    excess, used        weighted excess wavefronts, and elements that the layout takes

A rule each, with its constraint:

    load            for each word w of p: sum of e_(w ^ w') <= ideal - 1 + sum over k of z_{p,k}
    cost            y => sum over p of weight_p * z_{p,k} + what no mask changes <= excess
    whole vectors   y => parity_{t,v} = 0 where a flip of t by v would tear a vector
    last block      y and a pattern of flips of a last block that is not full => used >= what that takes
    below           excess and used are lexicographically smaller than the best so far

The last makes the model easy: phases that weigh more than what is left of the excess may have none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from layoutopt.ground.budget import Budget
from layoutopt.model.cp_sat import Model, Outcome, Work
from layoutopt.model.linear_phases import Phases
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.masks import Swizzle
from layoutopt.model.swizzle_rules import Field, LastBlock, Masks, Rules, last_block, rules
from layoutopt.problems.types import Tile

_Key = tuple[tuple[int, ...], int, int, int]  # words, log2 of the banks, lowest target, ideal


@dataclass(frozen=True, slots=True)
class Least:
    """What the model gave.

    Attributes:
        outcome: the solver's word.
        bound: no layout over these linearisations that takes less than the best so far has less excess.
        number: of the linearisation; -1 without a solution.
        excess: weighted.
        used: elements that the layout takes.
        masks: of the swizzle.
        work: what it took.
    """

    outcome: Outcome
    bound: int
    work: Work
    number: int = -1
    excess: int = 0
    used: int = 0
    masks: Masks | None = None


@dataclass(frozen=True, slots=True)
class _Phase:
    key: _Key
    weight: int


@dataclass(frozen=True, slots=True)
class _Member:
    """A linearisation, its literal, what it obeys, its phases that masks change, and what the others cost."""

    y: int
    span: int
    given: Rules
    last: LastBlock | None
    phases: tuple[_Phase, ...]
    constant: int


class ExcessModel:
    """Masks, and the choice of one linearisation out of a few, as CP-SAT variables."""

    def __init__(
        self,
        batch: Sequence[tuple[Linearisation, Phases]],
        field: Field,
        tile: Tile,
        below: tuple[int, int],
        most: int | None,
    ) -> None:
        """The whole model.

        Args:
            batch: linearisations and their phases.
            field: where swizzles act.
            tile: the tile.
            below: excess and elements of the best so far.
            most: elements that a layout may take; None for any number.
        """
        self.model = Model()
        self.field = field
        self.swizzle = Swizzle(self.model, field)
        self.below = below
        self._members = [self._member(candidate, phases, tile) for candidate, phases in batch]
        self.model.exactly_one([member.y for member in self._members])
        reaches = [m.last.reach.values() if m.last is not None else [m.span] for m in self._members]
        self._largest = max(max(reach) for reach in reaches)
        self.excess = self.model.integer(0, max(0, below[0]))
        self.used = self.model.integer(1, self._largest)
        self._steps: dict[_Key, list[int]] = {}
        lightest: dict[_Key, int] = {}
        for member in self._members:
            for phase in member.phases:
                lightest[phase.key] = min(phase.weight, lightest.get(phase.key, phase.weight))
        for key, weight in lightest.items():
            self._steps[key] = self._loads(key, below[0] // weight + 1)
        for member in self._members:
            self._cost(member)
            self._last_block(member, most)
            self._keep_vectors(member)
        self._below()

    def solve(self, budget: Budget, effort: float | None) -> Least:
        """The least excess, then the fewest elements, below the best so far."""
        scale = self._largest + 1
        self.model.minimise([(self.excess, scale), (self.used, 1)])
        # Presolve takes several times as long as the search does without it.
        answer = self.model.solve(budget, effort=effort, presolve=False)
        work = Work()
        work.add(answer)
        if answer.outcome is Outcome.INFEASIBLE:
            return Least(answer.outcome, self.below[0], work)
        bound = max(0, answer.bound // scale)
        if not answer.values:
            return Least(answer.outcome, bound, work)
        number = next(k for k, member in enumerate(self._members) if answer.values[member.y])
        masks = self.swizzle.masks(answer.values, 64)
        return Least(
            answer.outcome, bound, work, number, answer.values[self.excess], answer.values[self.used], masks
        )

    def _member(self, candidate: Linearisation, phases: Phases, tile: Tile) -> _Member:
        given, last = rules(candidate, self.field, tile), last_block(candidate, self.field, tile)
        lowest = given.targets.start if len(given.targets) else self.field.targets.stop
        constant, left = 0, []
        for k in range(len(phases)):
            words, weight = phases.held(k), int(phases.weight[k])
            ideal, target = int(phases.ideal[k]), int(phases.target[k])
            if len(words) <= target:
                constant += weight * (target - ideal)
                continue
            low = max(lowest, int(phases.chunk_bits[k]))
            left.append(_Phase((words, int(phases.bank_bits[k]), low, ideal), weight))
        return _Member(self.model.boolean(), candidate.span, given, last, tuple(left), constant)

    def _loads(self, key: _Key, steps: int) -> list[int]:
        """Rule `load`: literals of which as many are true as the phase costs more; the last says or more."""
        words, bank_bits, low, ideal = key
        count = min(len(words) - ideal, steps)
        costs = [self.model.boolean() for _ in range(count)]
        for one, two in itertools.pairwise(costs):
            self.model.clause((-two - 1, one))
        weights = [1] * (count - 1) + [len(words)]
        more = [(cost, -weight) for cost, weight in zip(costs, weights, strict=True)]
        for row in sorted({tuple(sorted(u ^ v for v in words)[1:]) for u in words}):
            terms: dict[int, int] = {}
            constant = 0
            for difference in row:
                shared = self.swizzle.shared_bank(difference, bank_bits, low)
                if shared is True:
                    constant += 1
                elif shared is not None:
                    terms[shared] = terms.get(shared, 0) + 1
            if constant + sum(terms.values()) >= ideal:
                self.model.at_most([*terms.items(), *more], ideal - 1 - constant)
        return costs

    def _cost(self, member: _Member) -> None:
        """Rule `cost`."""
        terms = [(self.excess, -1)]
        for phase in member.phases:
            costs = self._steps[phase.key]
            if phase.weight + member.constant > self.below[0]:
                self.model.clause((-member.y - 1, -costs[0] - 1))
            else:
                terms += [(cost, phase.weight) for cost in costs]
        self.model.linear(terms, [-(1 << 50), -member.constant], [member.y])

    def _keep_vectors(self, member: _Member) -> None:
        """Rule `whole vectors`; targets that no mask may flip over this linearisation have no mask bits."""
        for target, offsets in member.given.still:
            for offset in offsets:
                parity = self.swizzle.parity(target, offset & self.field.sources(target))
                if parity is not None:
                    self.model.clause((-member.y - 1, -parity - 1))
        for target, bit in self.swizzle.mask_bits():
            if target not in member.given.targets:
                self.model.clause((-member.y - 1, -bit - 1))

    def _last_block(self, member: _Member, most: int | None) -> None:
        """Rule `last block`."""
        if member.last is None:
            self.model.linear([(self.used, 1)], [member.span, self._largest], [member.y])
            if most is not None and member.span > most:
                self.model.clause((-member.y - 1,))
            return
        for pattern, reach in member.last.reach.items():
            differs = self.swizzle.differs(member.last.sources, pattern)
            if differs is None:
                continue
            takes = [-member.y - 1, *differs]
            if most is None or reach <= most:
                takes.append(more := self.model.boolean())
                self.model.linear([(self.used, 1)], [reach, self._largest], [more])
            self.model.clause(takes)

    def _below(self) -> None:
        """Rule `below`."""
        excess, used = self.below
        smaller = self.model.boolean()
        self.model.linear([(self.excess, 1)], [-1, excess - 1], [-smaller - 1])
        self.model.linear([(self.used, 1)], [0, max(0, used - 1)], [smaller])
