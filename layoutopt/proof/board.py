"""A problem as words that phases touch: what the reasons that hold for every layout speak of.

A layout may put a vector anywhere (aligned: `layoutopt.accesses.alignment`), but a word keeps its place
inside its vector, so the words at one place of aligned vectors of k words share `banks / k` banks. A **view**
is the words of one place. What one phase touches of a view, beyond its banks, is excess in every layout.

This module reads the traces on its own and shares no code with `layoutopt.model`.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.alignment import Blocks, blocks
from layoutopt.accesses.trace import LaneTrace, Trace, instruction_at
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.problems.types import Problem, Tile

_KEPT: Final = 4  # boards
MAX_LANES: Final = 1 << 17  # lane accesses beyond which there is no board


class View(NamedTuple):
    """The words at one place of aligned vectors, of `vector_words` words: 1, 2 or 4."""

    vector_words: int
    place: int


class Occurrence(Struct, frozen=True):
    """One execution of a phase."""

    access: int  # index of the access in the trace
    instruction: int  # row of the access's trace
    request: int | None  # which word of each lane it is about, where each is a request of its own; else None
    lanes: dict[int, tuple[int, ...]]  # for each word of the phase, the active lanes that touch it

    def data(self, problem: Problem, device: Device) -> dict[str, Any]:
        """The warp instruction, in the coordinates of the problem."""
        access = problem.accesses[self.access]
        warp, iteration = instruction_at(access, self.instruction, -(-problem.threads // device.lanes))
        return {"access": access.name, "warp": warp, "iteration": iteration}

    def phase_data(self, problem: Problem, device: Device) -> dict[str, Any]:
        """The same with the lanes that are served together."""
        lanes = sorted(set().union(*self.lanes.values()))
        request = {} if self.request is None else {"request": self.request}
        return {**self.data(problem, device), **request, "lanes": lanes}


class Phase(Struct, frozen=True):
    """Words served together, once for each distinct set."""

    words: tuple[int, ...]  # sorted word numbers (see `Board`)
    weight: int  # of all its executions together
    least_excess: int  # excess wavefronts that every layout has in it, by counting
    any_pair_costs: bool  # whether two of its words in one bank always are an excess wavefront more
    first: Occurrence  # its first execution


class Board(Struct, frozen=True, eq=False, dict=True):
    """A problem as phases over words; equal only to itself, so that what was found on it is kept.

    A word's number is the byte at which it starts in the row-major tile. Words of elements that no
    vector of a word's size holds have no fixed content and are left out.
    """

    phases: tuple[Phase, ...]  # every distinct phase
    vector_words: dict[int, int]  # for each word, the words of the vector that holds it
    place: dict[int, int]  # for each word, its place in that vector
    banks: int  # number of banks
    bank_bytes: int  # bytes of a bank word

    @cached_property
    def _views(self) -> dict[View, set[int]]:
        """Every view with a word, and its words; widest vectors first."""
        by_place: dict[tuple[int, int], list[int]] = {}
        for word, place in self.place.items():
            by_place.setdefault((self.vector_words[word], place), []).append(word)
        views: dict[View, set[int]] = {}
        for (vector_words, place), words in by_place.items():
            for k in (1, 2, 4):
                if k <= vector_words:
                    views.setdefault(View(k, place % k), set()).update(words)
        return dict(sorted(views.items(), key=lambda of: (-of[0].vector_words, of[0].place)))

    def views(self) -> list[View]:
        """Every view with a word; widest vectors first."""
        return list(self._views)

    def view_banks(self, view: View) -> int:
        """Banks that the words of a view share in every layout; 0 where a vector takes more than all."""
        return self.banks // view.vector_words

    def within(self, words: Sequence[int], view: View) -> list[int]:
        """The words that lie in a view."""
        in_view = self._views.get(view, set())
        return [w for w in words if w in in_view]

    @cached_property
    def sharp_phases(self) -> dict[View, dict[int, list[int]]]:
        """The words in each view of the phases in which two words in one bank always cost (`any_pair_costs`).

        By the phase's index. What they force adds to what counting gives, which is nothing for such phases.
        Of views in which the same vectors meet, at another place, the first alone is there.
        """
        sharp, seen = [(i, p.words) for i, p in enumerate(self.phases) if p.any_pair_costs], set()
        found = {}
        for view in self.views():
            of_view = {i: self.within(words, view) for i, words in sharp}
            start = view.place * self.bank_bytes
            met = view.vector_words, tuple(tuple(w - start for w in words) for words in of_view.values())
            if met not in seen:
                seen.add(met)
                found[view] = of_view
        return found

    def wavefronts_of(self, words: Sequence[int], view: View) -> int:
        """Wavefronts that the words in a view take at least, in every layout."""
        count = len(self._views.get(view, set()).intersection(words))
        return -(-count // max(1, self.view_banks(view)))

    def view_data(self, view: View) -> dict[str, int]:
        """A view as a certificate names it."""
        vector_bytes = view.vector_words * self.bank_bytes
        return {"vector_bytes": vector_bytes, "place": view.place, "banks": self.view_banks(view)}

    @property
    def counted_excess(self) -> int:
        """Weighted excess of every layout, phase by phase."""
        return sum(phase.weight * phase.least_excess for phase in self.phases)

    def count_again(self, excess: int) -> bool:
        """Whether phases really hold as many words at one place as this weighted excess needs."""
        every_view = [View(k, place) for k in (1, 2, 4) for place in range(k)]
        for phase in self.phases:
            needed = max(self.wavefronts_of(phase.words, view) for view in every_view)
            if phase.least_excess > max(0, needed - -(-len(phase.words) // self.banks)):
                return False
        return self.counted_excess == excess


NO_BOARD: Final = Board((), vector_words={}, place={}, banks=0, bank_bytes=0)


class Subject(Struct, frozen=True):
    """What a reason is about: a tile, its device and accesses."""

    tile: Tile
    device: Device
    lanes: Trace
    board: Board  # the words and phases; `NO_BOARD` where that form does not apply or is too large

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


class _Kind(NamedTuple):
    """What phases of one kind have in common."""

    words: tuple[int, ...]  # sorted word numbers
    wordless: int  # active lanes without a word
    waits: bool  # whether lanes that touch one word wait for each other


@lru_cache(_KEPT)  # of one case, which each stage of a search asks about
def _board(trace: Trace, tile: Tile) -> Board:
    """The words that the accesses touch, phase by phase.

    A word is named by the byte of the row-major tile at which it begins. `NO_BOARD` where banks differ or
    have several words at once, elements are no power of two of bytes, or there are too many lanes.
    """
    rules = [access.rule for access in trace.accesses]
    element_bytes, lanes = tile.element_bytes, sum(a.element.size for a in trace.accesses)
    alike = len({(rule.banks, rule.bank_bytes) for rule in rules}) == 1
    one_at_once = all(rule.row_words <= 1 for rule in rules)  # words of a bank
    if not (alike and one_at_once) or element_bytes & (element_bytes - 1) or lanes > MAX_LANES:
        return NO_BOARD
    bank_bytes, banks = rules[0].bank_bytes, rules[0].banks
    vectors = blocks(trace, tile)
    # Phases of the same kind are one, which weighs as much as they do together.
    gathered: dict[_Kind, tuple[int, Occurrence]] = {}  # weight, first execution
    for number, access in enumerate(trace.accesses):
        # `wordless`: active lanes whose elements no vector holds as a word.
        for occurrence, wordless in _occurrences(access, number, vectors, element_bytes):
            touches = sum(map(len, occurrence.lanes.values()))
            waits = access.rule.serialises_equal and len(occurrence.lanes) < touches
            kind = _Kind(tuple(sorted(occurrence.lanes)), wordless, waits)
            weight, first = gathered.get(kind, (0, occurrence))
            gathered[kind] = weight + int(access.weight[occurrence.instruction]), first
    words = sorted({w for kind in gathered for w in kind.words})
    of_word = np.array(words, np.int64) // element_bytes
    vector_words = np.maximum(1, vectors.width[of_word] // bank_bytes).tolist()
    places = ((words - vectors.head[of_word] * element_bytes) // bank_bytes).tolist()
    of_vector, place = (dict(zip(words, values, strict=True)) for values in (vector_words, places))
    board = Board((), of_vector, place, banks, bank_bytes)
    views = board.views()  # words at one place of vectors, which share `view_banks` banks in every layout
    phases = []
    for kind, (weight, first) in gathered.items():
        if weight == 0:
            continue
        needed = max(board.wavefronts_of(kind.words, view) for view in views)
        # The ideal is what the layout's distinct words would need; lanes without a word may share words.
        ideal = -(-(len(kind.words) + kind.wordless) // banks)
        least_excess = max(0, needed - ideal)
        # A second wavefront is excess then, unless one is there anyway: equal addresses wait for each other.
        any_pair_costs = needed == ideal == 1 and not kind.waits
        phases.append(Phase(kind.words, weight, least_excess, any_pair_costs, first))
    return replace(board, phases=tuple(phases))


def _occurrences(
    access: LaneTrace, number: int, vectors: Blocks, element_bytes: int
) -> Iterator[tuple[Occurrence, int]]:
    """Each execution of a phase with a word, and its active lanes without one.

    A lane has no word where layouts may place its elements anywhere in one.

    Args:
        access: access number `number` of the trace.
        vectors: by element, the aligned block that holds it in every layout.
    """
    rule = access.rule
    word_bytes = rule.bank_bytes
    lane_words = range(max(1, access.operation.width_bytes // word_bytes))
    # (number, words) of each request: all words of a lane, or one after another where the device splits them.
    requests = [(k, [k]) for k in lane_words] if rule.split_words else [(None, [*lane_words])]
    # By element, its first word; -1 for none.
    head = vectors.head * element_bytes
    starts = head + (np.arange(len(head)) * element_bytes - head) // word_bytes * word_bytes
    first = np.where(vectors.width >= word_bytes, starts, -1).tolist()
    instructions = zip(access.element.tolist(), access.active.tolist(), strict=True)
    for row, (element, active) in enumerate(instructions):
        first_word = {lane: first[e] for lane, e in enumerate(element) if active[lane] and first[e] >= 0}
        for phase in _phases_served(rule, element, active):
            with_word = [lane for lane in phase if lane in first_word]
            wordless = sum(active[lane] for lane in phase) - len(with_word)
            for request, words in requests if with_word else ():
                lanes: dict[int, tuple[int, ...]] = {}
                for lane in with_word:
                    for word in (first_word[lane] + k * word_bytes for k in words):
                        lanes[word] = (*lanes.get(word, ()), lane)
                yield Occurrence(number, instruction=row, request=request, lanes=lanes), wordless


def _phases_served(
    rule: PhaseRule, element: Sequence[int], active: Sequence[bool]
) -> tuple[tuple[int, ...], ...]:
    """The lanes served together in one warp instruction: the rule's phases, merged where it says so."""
    phases = rule.phases
    if rule.merges_pairs:
        on = [lane for lane, is_active in enumerate(active) if is_active]
        for bit in (1, 2):
            if all(not active[lane ^ bit] or element[lane ^ bit] == element[lane] for lane in on):
                return tuple(a + b for a, b in zip(phases[::2], phases[1::2], strict=True))
    return phases
