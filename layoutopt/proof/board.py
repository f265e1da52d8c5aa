"""A problem as words that phases touch: what the reasons that hold for every layout speak of.

A layout may put a vector anywhere (aligned: `layoutopt.accesses.alignment`), but a word keeps its place
inside its vector, so the words at one place of aligned vectors of k words share `banks / k` banks. A **view**
is the words of one place. What one phase touches of a view, beyond its banks, is excess in every layout.

This module reads the traces on its own and shares no code with `layoutopt.model`.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from msgspec import Struct

from layoutopt.accesses.alignment import blocks
from layoutopt.accesses.trace import LaneTrace, Trace, instruction_at
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.problems.types import Problem, Tile

_KEPT: Final = 4
MAX_LANES: Final = 1 << 17  # lane accesses beyond which there is no board

View = tuple[int, int]  # words of the aligned vectors, and the place in them


class Place(Struct, frozen=True):
    """One execution of lanes together.

    Attributes:
        access: index of the access in the trace.
        instruction: row of the access's trace.
        request: which word of each lane it is about, where each is a request of its own; else None.
        lanes: active lanes served together, and for each word of the phase those that touch it.
    """

    access: int
    instruction: int
    request: int | None
    lanes: dict[int, tuple[int, ...]]

    def data(self, problem: Problem, device: Device) -> dict[str, Any]:
        """The warp instruction, in the coordinates of the problem."""
        access = problem.accesses[self.access]
        warp, iteration = instruction_at(access, self.instruction, -(-problem.threads // device.lanes))
        return {"access": access.name, "warp": warp, "iteration": iteration}

    def phase_data(self, problem: Problem, device: Device) -> dict[str, Any]:
        """The same with the lanes that are served together."""
        lanes = sorted({lane for some in self.lanes.values() for lane in some})
        request = {} if self.request is None else {"request": self.request}
        return {**self.data(problem, device), **request, "lanes": lanes}


class Phase(Struct, frozen=True):
    """Words served together, once for each distinct set.

    Attributes:
        words: sorted word numbers (see `Board`).
        weight: weighted number of times.
        least: excess wavefronts that every layout has in it, by counting.
        firm: any two of its words in one bank are an excess wavefront, beyond `least`.
        place: where it happens first.
    """

    words: tuple[int, ...]
    weight: int
    least: int
    firm: bool
    place: Place


class Board(Struct, frozen=True, eq=False):
    """A problem as phases over words; equal only to itself, so that what was found on it is kept.

    A word's number is the byte at which it starts in the row-major tile. Words of elements that no
    vector of a word's size holds have no fixed content and are left out.

    Attributes:
        phases: every distinct phase.
        vector_words: for each word, the words of the vector that holds it.
        place: for each word, its place in that vector.
        banks: number of banks.
        bank_bytes: bytes of a bank word.
    """

    phases: tuple[Phase, ...]
    vector_words: dict[int, int]
    place: dict[int, int]
    banks: int
    bank_bytes: int

    def views(self) -> Iterator[View]:
        """Every view with a word; widest vectors first."""
        kinds = {(k, p) for w, p in self.place.items() for k in (1, 2, 4) if k <= self.vector_words[w]}
        yield from sorted({(k, p % k) for k, p in kinds}, key=lambda v: (-v[0], v[1]))

    def within(self, words: Sequence[int], view: View) -> list[int]:
        """The words that lie in a view."""
        k, p = view
        return [w for w in words if self.vector_words[w] >= k and self.place[w] % k == p]

    def view_data(self, view: View) -> dict[str, int]:
        """A view as a certificate names it."""
        k, p = view
        return {"vector_bytes": k * self.bank_bytes, "place": p, "banks": self.banks // k}

    @property
    def counting(self) -> int:
        """Weighted excess of every layout, phase by phase."""
        return sum(p.weight * p.least for p in self.phases)

    def count_again(self, excess: int) -> bool:
        """Whether phases really hold as many words at one place as this weighted excess needs."""
        total = 0
        for phase in self.phases:
            crowded = 0
            for k in (1, 2, 4):
                for p in range(k):
                    held = [w for w in phase.words if self.vector_words[w] >= k and self.place[w] % k == p]
                    crowded = max(crowded, -(-len(held) // max(1, self.banks // k)))
            if phase.least > max(0, crowded - -(-len(phase.words) // self.banks)):
                return False
            total += phase.weight * phase.least
        return total == excess


class Subject(Struct, frozen=True):
    """What a reason is about.

    Attributes:
        board: their words and phases; None where that form does not apply or is too large.
    """

    tile: Tile
    device: Device
    lanes: Trace
    board: Board | None

    @property
    def on(self) -> Board:
        """The board, which whatever was found on it has."""
        assert self.board is not None
        return self.board

    @property
    def counting(self) -> int:
        """Weighted excess that counting gives; cliques and parities add to it."""
        return self.board.counting if self.board is not None else 0

    def in_weights(self, excess: int) -> str:
        """An excess as the file's weights give it, and what it is called."""
        return f"{excess / self.lanes.weight_unit:g} {self.lanes.excess}"

    def named(self, accesses: set[int]) -> list[str]:
        """Names of accesses, in the order of the file."""
        return [f"`{self.lanes.accesses[a].name}`" for a in sorted(accesses)]


def subject_of(tile: Tile, device: Device, lanes: Trace) -> Subject:
    """What the reasons of one problem are about."""
    return Subject(tile, device, lanes, _board(lanes, tile))


def word_data(problem: Problem, word: int) -> dict[str, Any]:
    """A word by its first element, and the byte of the element where it starts."""
    unit, byte = divmod(word, problem.tile.storage.element_bytes)
    first = unit * problem.tile.packed
    return {"element": [int(c) for c in np.unravel_index(first, problem.tile.shape)], "byte": byte}


@lru_cache(_KEPT)  # of one case, which each stage of a search asks about
def _board(trace: Trace, tile: Tile) -> Board | None:
    """`board_of`: phases of the same words are one, which weighs as much as they do together."""
    rules = [access.rule for access in trace.accesses]
    size, lanes = tile.element_bytes, sum(a.element.size for a in trace.accesses)
    alike = len({(rule.banks, rule.bank_bytes) for rule in rules}) == 1
    if not alike or size & (size - 1) or any(rule.row_words > 1 for rule in rules) or lanes > MAX_LANES:
        return None
    bank_bytes, banks = rules[0].bank_bytes, rules[0].banks
    held_by = blocks(trace, tile)
    width, start = held_by.width, held_by.head
    gathered: dict[tuple[tuple[int, ...], int, bool], tuple[int, Place]] = {}
    for a, (access, rule) in enumerate(zip(trace.accesses, rules, strict=True)):
        for row, request, pairs, loose in _served(access, rule, start, width, size):
            touched: dict[int, list[int]] = {}
            for lane, word in pairs:
                touched.setdefault(word, []).append(lane)
            repeats = rule.serialises_equal and len(touched) < len(pairs)
            key = tuple(sorted(touched)), loose, repeats
            weight, place = gathered.get(
                key, (0, Place(a, row, request, {w: tuple(lanes) for w, lanes in touched.items()}))
            )
            gathered[key] = weight + int(access.weight[row]), place
    words = sorted({w for held, _, _ in gathered for w in held})
    vector = {w: max(1, int(width[w // size]) // bank_bytes) for w in words}
    places = {w: (w - int(start[w // size]) * size) // bank_bytes for w in words}
    empty = Board((), vector, places, banks, bank_bytes)
    views = list(empty.views())
    phases = []
    for (held, loose, repeats), (weight, place) in gathered.items():
        if weight == 0:
            continue
        least = max(-(-len(empty.within(held, v)) // max(1, banks // v[0])) for v in views)
        # The ideal is what the layout's distinct words would need; loose elements may share words.
        ideal = -(-(len(held) + loose) // banks)
        # Where equal addresses wait for each other, a phase costs more than its distinct words do.
        firm = least == ideal == 1 and not repeats
        phases.append(Phase(held, weight, max(0, least - ideal), firm, place))
    return Board(tuple(phases), vector, places, banks, bank_bytes)


def _served(
    access: LaneTrace, rule: PhaseRule, start: IntArray, width: IntArray, size: int
) -> Iterator[tuple[int, int | None, list[tuple[int, int]], int]]:
    """Each phase of an access: row of the trace, request, (lane, word) pairs, active lanes without a word.

    Words are byte offsets in the row-major tile; a lane has none where layouts may place its elements
    anywhere in one. The request is the index of its word where every word is a request of its own, else None.
    """
    word = rule.bank_bytes
    count = max(1, access.operation.width_bytes // word)
    requests = [(k, [k]) for k in range(count)] if rule.split_words else [(None, [*range(count)])]
    for row, (element, active) in enumerate(
        zip(access.element.tolist(), access.active.tolist(), strict=True)
    ):
        # Where the first word of a lane starts, of those whose words have a fixed content.
        first = {}
        for lane, e in enumerate(element):
            if active[lane] and width[e] >= word:
                head = int(start[e])
                first[lane] = head * size + (e - head) * size // word * word
        for together in _phases_served(rule, element, active):
            loose = sum(1 for lane in together if active[lane] and lane not in first)
            for request, places in requests:
                pairs = [(lane, first[lane] + k * word) for lane in together if lane in first for k in places]
                if pairs:
                    yield row, request, pairs, loose


def _phases_served(
    rule: PhaseRule, element: Sequence[int], active: Sequence[bool]
) -> tuple[tuple[int, ...], ...]:
    """The lanes served together in one warp instruction: the rule's phases, merged where it says so."""
    phases = rule.phases
    if rule.merges_pairs:
        on = [lane for lane, a in enumerate(active) if a]
        for bit in (1, 2):
            if all(not active[lane ^ bit] or element[lane ^ bit] == element[lane] for lane in on):
                return tuple(a + b for a, b in zip(phases[::2], phases[1::2], strict=True))
    return phases
