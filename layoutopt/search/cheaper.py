"""Of layouts with the same excess in the same bytes, one whose index code is cheap.

A search stops at the first layout that nothing beats in excess and bytes, by the operations of its offset.
What the code of its accesses takes, lanes and loops inserted, is another matter: another order of the
dimensions, a swizzle of CuTe's form over one, or a split without any swizzle often takes a fraction of it.
A few of each are asked for the cost that the answer reports (`layoutopt.index.cost`).
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from operator import itemgetter

import numpy as np

from layoutopt.ground.budget import OutOfTime, current
from layoutopt.model.layout_model import Solution
from layoutopt.model.linearisations import (
    MAX_CUTS,
    Linearisation,
    Together,
    by_cost,
    candidate_of,
    keeps_vectors,
    of_own_bytes,
    unpadded,
)
from layoutopt.model.pitches import described
from layoutopt.model.swizzle_rules import SHIFT_OPERATIONS, shifts_of
from layoutopt.search.refuters import Refuters
from layoutopt.search.scene import EFFORT_A_CANDIDATE, Scene, for_listing

# Layouts of each kind whose index code is compared with that of the best.
_MOST_KNOWN, _MOST_USUAL, _MOST_UNSWIZZLED = 1, 3, 3
_MOST_ORDERS = 24  # under swizzles of CuTe's form
_MOST_COUNTED, _MOST_PLAIN = 1024, 12  # orders without a swizzle: counted, and asked for their index code
_FIRST_PHASES = 6  # that a swizzle is asked of, before all
_EFFORT_AN_ORDER, _EFFORT_OF_MANY = 5e-4, 1e-6  # seconds of a quiet machine; of one of many counted together


class Cheaper:
    """Layouts like the best, whose index code may be cheaper."""

    def __init__(self, scene: Scene, refuters: Refuters) -> None:
        self.scene, self._refuters = scene, refuters
        self._textbook: dict[tuple[Linearisation, int], list[Solution]] = {}  # swizzles, by their most excess

    def alike(self, best: Solution, known: Sequence[Solution], excess: int) -> Solution:
        """Of a few layouts of this excess, as small as the best, the one of the cheapest index code.

        Args:
            best: the layout found, the cheapest by its operations.
            known: layouts that were found on the way, at the floor of the excess.
            excess: weighted, of `best` and of what may replace it.
        """
        best = dataclasses.replace(best, excess=excess)
        others = [s for s in self._orders_alike(best) if self.scene.holds(s, excess)]
        # With one stride for each whole dimension, none rotated (`turn`), only another order may be cheaper.
        whole_dims = not best.masks and not best.candidate.turn and "split" not in best.candidate.family
        if whole_dims and not others:
            return best
        if not whole_dims:
            others += self._usual_alike(best, excess)
        at_floor = excess == self.scene.floor  # `known` and the refuters are of layouts at the floor
        if at_floor and not whole_dims:
            same_size = [s for s in known if s.candidate.span == best.candidate.span and s != best]
            few = sorted(same_size, key=lambda solution: solution.operations)[:_MOST_KNOWN]
            same_swizzled = self.of_few_shifts(best, than=best)
            others += [s for s in (*same_swizzled, *few) if self.scene.holds(s, excess)]
        cost, best = min(((self.scene.instructions(s), s) for s in (best, *others)), key=itemgetter(0))
        if at_floor and not whole_dims:
            # Fewer operations than the best has instructions, which operations only estimate; or no more than
            # its linearisation has, to which a swizzle adds.
            unswizzled = self._unswizzled_alike(best, below=max(cost, best.candidate.operations + 1))
            for solution in itertools.islice(unswizzled, _MOST_UNSWIZZLED):
                if (instructions := self.scene.instructions(solution)) < cost:
                    cost, best = instructions, solution
        return dataclasses.replace(best, excess=excess)

    def _orders_alike(self, best: Solution) -> list[Solution]:
        """A few orders as small as the best without more excess, those that threads run through first."""
        space = self.scene.space
        if "order" not in space.families or space.order is not None or self.scene.ask.lanes_open:
            return []
        orders = dict.fromkeys(self._orders_of_lanes())
        part = for_listing()
        with contextlib.suppress(OutOfTime):
            for candidate in part.while_left(itertools.islice(unpadded(space, 0), _MOST_COUNTED)):
                part.charge(EFFORT_A_CANDIDATE)
                orders[candidate] = None
        listed = [c for c in orders if c.span <= best.candidate.span and c != best.candidate]
        counted = self._refuters.counted(listed, best.excess)
        return list(itertools.islice((s for s in counted if s.excess <= best.excess), _MOST_PLAIN))

    def _orders_of_lanes(self) -> Iterator[Linearisation]:
        """The tile's dimensions as the threads of an access run through them, for each access.

        The index of that access is often little more than the number of the thread.
        """
        scene, shape = self.scene, self.scene.tile.shape
        for access in scene.counted.taking_part:
            at = np.array(np.unravel_index(access.element[access.active], shape))
            changes = at != at[:, :1]  # of each coordinate, thread by thread, then iteration by iteration
            first = np.where(changes.any(axis=1), changes.argmax(axis=1), at.shape[1])
            pieces = tuple((d, 1, shape[d]) for d in np.argsort(-first, kind="stable").tolist())
            candidate = candidate_of(scene.space, pieces) if keeps_vectors(scene.space, pieces) else None
            if candidate is not None:
                yield candidate

    def of_few_shifts(self, known: Solution, *, than: Solution | None) -> Iterator[Solution]:
        """`known` with masks of the fewest shifts, if cheaper than another layout.

        None over pitches: the masks that the model gives have the fewest already.
        """
        if known.masks and not described(known.candidate, self.scene.space):
            phases, candidate = self.scene.phases(known.candidate), known.candidate
            ceilings, most = self.scene.ceilings(phases), len(shifts_of(known.masks)) - 1
            if than is not None and than.candidate.span <= candidate.span:
                most = min(most, (than.operations - candidate.operations - 1) // SHIFT_OPERATIONS)
            for count in range(1, most + 1):
                searched = self.scene.within_ceilings(candidate, phases, ceilings, shifts=count)
                if searched.best is not None:
                    yield self.scene.swizzled(candidate, phases, searched.best.masks)
                    return

    def _usual_alike(self, best: Solution, excess: int) -> list[Solution]:
        """The cheapest few `Swizzle<B, M, S>` of this excess, over dimension orders as small as the best.

        Cheap by their operations, then by how few digits a swizzle cuts; index code is not counted.
        """
        if self.scene.field is None or current().spent:
            return []
        found = self.usual(best.candidate, excess) if best.masks else []
        orders = itertools.islice(unpadded(self.scene.space, 0), _MOST_ORDERS)
        part = for_listing()
        for candidate in part.while_left(c for c in orders if c.span <= best.candidate.span):
            if candidate != best.candidate:
                part.charge(_EFFORT_AN_ORDER)
                found += self.usual(candidate, excess)
        found.sort(key=lambda solution: (solution.operations, self._cut_digits(solution)))
        usual = (s for s in found if s != best and self.scene.holds(s, excess))
        return list(itertools.islice(usual, _MOST_USUAL))

    def usual(self, candidate: Linearisation, excess: int) -> list[Solution]:
        """Every `Swizzle<B, M, S>` over a linearisation that has no more excess in the model's arithmetic."""
        if (candidate, excess) not in self._textbook:
            phases = self.scene.phases(candidate)
            step = max(1, len(phases) // _FIRST_PHASES)  # most swizzles fall to a few of the phases
            listed = [*self.scene.textbook(candidate)]
            left = itertools.compress(listed, phases.only(slice(None, None, step)).excess(*listed) <= excess)
            within = [m for m in left if step == 1 or phases.excess(m)[0] <= excess]
            solutions = [self.scene.swizzled(candidate, phases, masks) for masks in within]
            self._textbook[candidate, excess] = solutions
        return [*self._textbook[candidate, excess]]

    def _cut_digits(self, solution: Solution) -> int:
        """How often a `Swizzle<B, M, S>` cuts digits: each costs the index an instruction or two.

        1 for each end of the bits read that lies inside a digit, 2 for each boundary of digits that the bits
        read or flipped straddle. Every target reads one bit: its mask is that bit's value.
        """
        assert self.scene.field is not None
        word_bytes, size = self.scene.field.word_bytes, self.scene.tile.element_bytes
        ends = {digit.stride * size for digit in solution.candidate.digits}
        ends.add(1 << (solution.candidate.span * size - 1).bit_length())
        read = [mask * word_bytes for mask in solution.masks.values()]
        flipped = [word_bytes << bit for bit in solution.masks]
        joined = sum(min(bits) < end <= max(bits) for bits in (read, flipped) for end in ends)
        return (min(read) not in ends) + (2 * max(read) not in ends) + 2 * joined

    def _unswizzled_alike(self, best: Solution, below: int) -> Iterator[Solution]:
        """Layouts at the floor in the tile's own bytes without a swizzle, of fewer operations than `below`.

        Those with fewer cuts (coordinates divided into digits) come first. Where the lanes are cut
        alike, the compiler's index code costs less than the operations say, so that many are worth a look.
        """
        if best.candidate.span > self.scene.tile.elements or self.scene.ask.lanes_open:
            return  # with lanes open, nothing is known of the index code yet
        space, part = self.scene.space, for_listing()
        by_cuts = (of_own_bytes(space, cuts, below) for cuts in range(MAX_CUTS + 1))
        # What the best needs its swizzle for, if it has one: many others have a conflict there, too.
        self._refuters.learn(best.candidate)
        with contextlib.suppress(OutOfTime):
            for together in itertools.chain.from_iterable(by_cuts):
                part.charge(_EFFORT_OF_MANY * len(together))
                part.check()
                listed = (candidate_of(space, together.pieces(n)) for n in self._unrefuted(together))
                # Strides that must be multiples may pad what takes its own bytes with strides of any length.
                dense = (c for c in listed if c is not None and c.span <= best.candidate.span)
                left = sorted(dense, key=by_cost)
                while left:
                    unswizzled = Solution(left.pop(0), {})
                    if self.scene.holds(unswizzled, self.scene.floor):
                        yield unswizzled
                    else:  # the phase that it falls to may refute those after it
                        self._refuters.learn(unswizzled.candidate)
                        left = [left[n] for n in self._unrefuted(Together.of(left))] if left else []

    def _unrefuted(self, together: Together) -> list[int]:
        """Indices of the linearisations that the refuters do not refute without a swizzle."""
        refuted = self._refuters.refuted(together, np.zeros(len(together), np.bool_))
        unrefuted: list[int] = np.flatnonzero(~refuted).tolist()
        return unrefuted
