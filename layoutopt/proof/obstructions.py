"""Reasons why no layout of any kind is free of conflicts, each checkable by hand.

All of them speak of **words** that must lie in different banks because some phase touches both. The
layout is free to put a vector anywhere (aligned: `layoutopt.accesses.alignment`), but a word keeps its
place inside its vector, so the words at one place of aligned vectors of k words share `banks / k` banks.
A **view** is the words of one place:

    counting  one phase touches more words of a view than the view has banks
    clique    more words of a view than it has banks, every two of them met in some phase
    parity    each bank takes exactly one word of every phase that fills the view. If integers y_f
              make every word's sum of y_f over such phases divisible by m, but not the sum of all
              y_f, no bank can do that: summing over the bank's words gives both. (Rows, columns and
              wrapped diagonals of an even square are the case y = row, -column, column - row.)

A clique is the smallest reason to print; the parity finds what cliques cannot, and is complete for
"some phase that fills the view must have a conflict, by arithmetic modulo powers of two".

This module reads the traces on its own and shares no code with `layoutopt.cpmodel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from layoutopt.accesses.alignment import blocks
from layoutopt.accesses.trace import LaneTrace, Trace
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.problems.types import Tile

UIntArray = npt.NDArray[np.uint64]

# Sizes beyond which nothing is looked for.
MAX_LANES: Final = 1 << 17
MAX_CLIQUE_WORDS: Final = 1 << 12
MAX_PARITY_PHASES: Final = 512
# Nodes of the branch and bound for cliques.
_CLIQUE_NODES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Place:
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


@dataclass(frozen=True, slots=True)
class Phase:
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


@dataclass(frozen=True, slots=True)
class Board:
    """A problem as phases over words.

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

    def views(self) -> Iterator[tuple[int, int]]:
        """Vector width in words and place, of every view with a word; widest first."""
        kinds = {(k, p) for w, p in self.place.items() for k in (1, 2, 4) if k <= self.vector_words[w]}
        yield from sorted({(k, p % k) for k, p in kinds}, key=lambda v: (-v[0], v[1]))

    def within(self, words: Sequence[int], view: tuple[int, int]) -> list[int]:
        """The words that lie in a view."""
        k, p = view
        return [w for w in words if self.vector_words[w] >= k and self.place[w] % k == p]


@dataclass(frozen=True, slots=True)
class Clique:
    """Words of one view that pairwise meet, more than the view has banks.

    Attributes:
        view: words of the aligned vectors, and the place in them.
        words: the words, sorted.
        meetings: for each pair, the index of a phase of the board that touches both.
        excess: weighted excess that every layout has because of it.
    """

    view: tuple[int, int]
    words: tuple[int, ...]
    meetings: dict[tuple[int, int], int]
    excess: int


@dataclass(frozen=True, slots=True)
class Parity:
    """Weights of phases that no perfect spread can satisfy.

    Attributes:
        view: words of the aligned vectors, and the place in them.
        combinations: (modulus, weight of each phase by index); no phase has a weight in all of them
            where there is more than one.
        excess: weighted excess that every layout has because of it.
    """

    view: tuple[int, int]
    combinations: tuple[tuple[int, dict[int, int]], ...]
    excess: int


def board(trace: Trace, tile: Tile, device: Device) -> Board | None:
    """The problem as phases over words; None where that form does not apply or is too large."""
    rules = {(r := device.rule(a.operation)).banks * 1000 + r.bank_bytes for a in trace.accesses}
    size = tile.element_bytes
    lanes = sum(a.element.size for a in trace.accesses)
    shared_rows = any(device.rule(a.operation).row_words > 1 for a in trace.accesses)
    if len(rules) != 1 or size & (size - 1) or shared_rows or lanes > MAX_LANES:
        return None
    rule = device.rule(trace.accesses[0].operation)
    bank_bytes, banks = rule.bank_bytes, rule.banks
    held_by = blocks(trace, tile)
    width, start = held_by.width, held_by.head
    gathered: dict[tuple[tuple[int, ...], int, bool], tuple[int, Place]] = {}
    for a, access in enumerate(trace.accesses):
        for row, request, together, words, loose in _served(access, device, start, width, size, bank_bytes):
            touched: dict[int, list[int]] = {}
            for lane, word in zip(together, words, strict=True):
                touched.setdefault(word, []).append(lane)
            repeats = device.rule(access.operation).serialises_equal and len(touched) < len(words)
            key = tuple(sorted(touched)), loose, repeats
            weight, place = gathered.get(
                key, (0, Place(a, row, request, {w: tuple(lanes) for w, lanes in touched.items()}))
            )
            gathered[key] = weight + int(access.weight[row]), place
    words = sorted({w for held, _, _ in gathered for w in held})
    element = [w // size for w in words]
    vector = {w: max(1, int(width[e]) // bank_bytes) for w, e in zip(words, element, strict=True)}
    places = {w: (w - int(start[e]) * size) // bank_bytes for w, e in zip(words, element, strict=True)}
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
    access: LaneTrace, device: Device, start: IntArray, width: IntArray, size: int, bank_bytes: int
) -> Iterator[tuple[int, int | None, list[int], list[int], int]]:
    """Of everything served together: instruction, request, lanes, their words, and how many others there are.

    The request is the place in each lane's words, where words are requests of their own; else None.
    """
    rule = device.rule(access.operation)
    count = max(1, access.operation.width_bytes // bank_bytes)
    for row in range(len(access.element)):
        element = access.element[row]
        on = [
            lane for lane in np.flatnonzero(access.active[row]).tolist() if width[element[lane]] >= bank_bytes
        ]
        heads = {lane: int(start[element[lane]]) for lane in on}
        # Where the lane's first word starts.
        first = {
            lane: head * size + (int(element[lane]) - head) * size // bank_bytes * bank_bytes
            for lane, head in heads.items()
        }
        for together in phases_served(rule, element.tolist(), access.active[row].tolist()):
            lanes = [lane for lane in together if lane in first]
            loose = sum(1 for lane in together if access.active[row, lane] and lane not in first)
            requests = [[k] for k in range(count)] if rule.split_words else [list(range(count))]
            for request in requests:
                pairs = [(lane, first[lane] + k * bank_bytes) for lane in lanes for k in request]
                if pairs:
                    number = request[0] if rule.split_words else None
                    yield row, number, [lane for lane, _ in pairs], [word for _, word in pairs], loose


def phases_served(
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


def counting_excess(on: Board) -> int:
    """Weighted excess of every layout, phase by phase."""
    return sum(p.weight * p.least for p in on.phases)


# Cliques --------------------------------------------------------------------------------------


def find_clique(on: Board) -> Clique | None:
    """The smallest clique over all views that is larger than the view's banks; None if none is found.

    Only phases where a conflict costs more than the counting bound count as meetings, so that
    `counting_excess` and the clique's excess add up.
    """
    usable = [i for i, p in enumerate(on.phases) if p.firm]
    best: Clique | None = None
    for view in on.views():
        banks = on.banks // view[0]
        held = {i: on.within(on.phases[i].words, view) for i in usable}
        words = sorted({w for some in held.values() for w in some})
        if len(words) <= banks or len(words) > MAX_CLIQUE_WORDS or banks < 1:
            continue
        number = {w: n for n, w in enumerate(words)}
        meets = [0] * len(words)
        for some in held.values():
            mask = 0
            for w in some:
                mask |= 1 << number[w]
            for w in some:
                meets[number[w]] |= mask
        meets = [m & ~(1 << n) for n, m in enumerate(meets)]
        found = _clique(meets, banks + 1)
        if found is not None and (best is None or len(found) < len(best.words)):
            best = _with_meetings(on, view, tuple(words[n] for n in found), usable)
    return best


def _with_meetings(on: Board, view: tuple[int, int], words: tuple[int, ...], usable: list[int]) -> Clique:
    chosen = set(words)
    meetings: dict[tuple[int, int], int] = {}
    weight: dict[tuple[int, int], int] = {}
    for i in usable:
        some = sorted(chosen.intersection(on.phases[i].words))
        for a, u in enumerate(some):
            for v in some[a + 1 :]:
                meetings.setdefault((u, v), i)
                weight[u, v] = weight.get((u, v), 0) + on.phases[i].weight
    return Clique(view, words, dict(sorted(meetings.items())), min(weight.values()))


def _clique(meets: list[int], size: int) -> list[int] | None:
    """A clique of `size` vertices, or None; the search is cut off after a number of nodes.

    Branch and bound with greedy colouring (Tomita and Seki 2003), on integers as bit sets.
    """
    nodes = 0

    def colours(rest: int) -> list[tuple[int, int]]:
        """Vertices with their colour number, rising."""
        order, colour = [], 0
        while rest:
            colour += 1
            free = rest
            while free:
                low = free & -free
                v = low.bit_length() - 1
                order.append((v, colour))
                rest ^= low
                free &= ~meets[v] & ~low
        return order

    def grow(chosen: list[int], rest: int) -> list[int] | None:
        nonlocal nodes
        nodes += 1
        if len(chosen) == size:
            return chosen
        if nodes > _CLIQUE_NODES:
            return None
        for v, colour in reversed(colours(rest)):
            if len(chosen) + colour < size or nodes > _CLIQUE_NODES:
                return None
            found = grow([*chosen, v], rest & meets[v])
            if found is not None:
                return found
            rest &= ~(1 << v)
        return None

    everyone = sum(1 << v for v, m in enumerate(meets) if m.bit_count() >= size - 1)
    found = grow([], everyone)
    return sorted(found) if found is not None else None


# Parity ---------------------------------------------------------------------------------------


def find_parity(
    on: Board, most_phases: int = MAX_PARITY_PHASES, budget: Budget | None = None
) -> Parity | None:
    """Phases that fill a view and cannot all be free of conflicts, by arithmetic; None if none.

    Args:
        on: the words and the phases.
        most_phases: views that more phases fill are left out, for the time grows with their cube.
        budget: the time there is; what was found by then is found.
    """
    best: Parity | None = None
    budget = budget or Budget()
    for view in on.views():
        banks = on.banks // view[0]
        full = {}
        for i, phase in enumerate(on.phases):
            held = on.within(phase.words, view)
            if len(held) == banks > 1 and phase.firm:
                full[i] = held
        if not full or len(full) > most_phases:
            continue
        first = _combination(full, budget)
        if first is None:
            continue
        found = _strengthened(on, view, full, first, budget)
        if best is None or found.excess > best.excess:
            best = found
    return best


def _strengthened(
    on: Board,
    view: tuple[int, int],
    full: dict[int, list[int]],
    first: tuple[int, dict[int, int]],
    budget: Budget,
) -> Parity:
    """More combinations until no phase is in all of them: then two phases must have a conflict."""
    combinations = [first]
    common = set(first[1])
    one = min(on.phases[i].weight for i in common)
    while common:
        left_out = min(common)
        another = _combination({i: held for i, held in full.items() if i != left_out}, budget)
        if another is None:
            return Parity(view, (first,), one)
        combinations.append(another)
        common &= set(another[1])
    weights = sorted(on.phases[i].weight for i in set().union(*(set(y) for _, y in combinations)))
    return Parity(view, tuple(combinations), weights[0] + weights[1])


def _combination(full: dict[int, list[int]], budget: Budget) -> tuple[int, dict[int, int]] | None:
    """A modulus and weights that contradict one word of every phase in each bank; None if none were found.

    Gaussian elimination of `sum over the words of a phase of x_w = 1` over the 2-adic integers, to
    64 bits: the pivot always has the fewest factors of two, so a row whose left side is divisible by
    a power of two that does not divide its right side is a contradiction, and the only kind.
    """
    phases = list(full)
    words = sorted({w for held in full.values() for w in held})
    column = {w: n for n, w in enumerate(words)}
    count = len(phases)
    left = np.zeros((count, len(words)), np.uint64)
    for n, i in enumerate(phases):
        left[n, [column[w] for w in full[i]]] = 1
    # Right side, then how the row is made of the phases.
    right = np.concatenate([np.ones((count, 1), np.uint64), np.eye(count, dtype=np.uint64)], axis=1)
    todo = list(range(count))
    while todo and not budget.spent:
        twos = _lowest_bit(left[todo])
        flat = int(np.where(twos == 0, np.uint64(2**64 - 1), twos).argmin())
        n, c = todo[flat // len(words)], flat % len(words)
        pivot = int(left[n, c])
        power = pivot & -pivot  # 0 where nothing is left
        for m in todo if power == 0 else [n]:
            value = int(right[m, 0])
            if value % (power or 2**64):
                modulus = 2 * (value & -value)
                y = {phases[k]: int(right[m, 1 + k]) % modulus for k in range(count)}
                return modulus, {i: weight for i, weight in y.items() if weight}
        if power == 0:
            return None
        todo.remove(n)
        if todo:
            inverse = pow(pivot // power, -1, 2**64)
            factor = (left[todo, c] // np.uint64(power)) * np.uint64(inverse)
            left[todo] -= factor[:, None] * left[n]
            right[todo] -= factor[:, None] * right[n]
    return None


def _lowest_bit(values: UIntArray) -> UIntArray:
    return values & (~values + np.uint64(1))
