"""Try to refute a claim: any placement of the elements that is better than a bound for every layout.

Vectors that overlap are one block of consecutive bytes; a block may stand wherever its elements and its
accesses are aligned. Tiny problems are enumerated, others descended at random: what is found refutes, what
is not found proves nothing.
"""

import math
import random
import time
from dataclasses import dataclass

from oracle.problem_file import Access, Tile, count, span

MAX_PLACEMENTS = 3000


@dataclass
class Block:
    """Elements (bytes, where packed) that every layout keeps together, and where they may start."""

    first: int
    elements: int
    modulus: int
    residues: list[int]
    bytes: int


def blocks(tile: Tile, accesses: list[Access]) -> list[Block] | None:
    """The blocks of a tile; None where some block cannot stand anywhere."""
    units = tile.elements // tile.packed
    joined, demands = [False] * units, [[tile.align] for _ in range(units)]
    for access in accesses:
        wide = access.width & -access.width
        for issue in access.issues:
            for start in {s for starts in issue.first.values() for s in starts}:
                unit = start // tile.packed
                demands[unit].append(wide)
                for k in range(1, span(access, tile) // tile.packed or 1):
                    joined[unit + k] = True
    found: list[Block] = []
    starts = [u for u in range(units) if not joined[u]]
    for first, end in zip(starts, [*starts[1:], units], strict=True):
        modulus = max(a for u in range(first, end) for a in demands[u])
        places = [((u - first) * tile.size, a) for u in range(first, end) for a in demands[u]]
        residues = [r for r in range(modulus) if all((r + at) % a == 0 for at, a in places)]
        if not residues:
            return None
        found.append(Block(first, end - first, modulus, residues, (end - first) * tile.size))
    return found


def cost(tile: Tile, accesses: list[Access], table: list[int]) -> float:
    return sum(count(access, table).weighted_excess for access in accesses)


class Placements:
    """Placements of the blocks within so many bytes."""

    def __init__(self, tile: Tile, accesses: list[Access], parts: list[Block], room: int) -> None:
        self.tile, self.accesses, self.parts, self.room = tile, accesses, parts, room
        self.at = [0] * len(parts)
        self.taken = bytearray(room)

    def table(self) -> list[int]:
        found = [0] * (self.tile.elements)
        for part, at in zip(self.parts, self.at, strict=True):
            for k in range(part.elements):
                for inside in range(self.tile.packed):
                    found[(part.first + k) * self.tile.packed + inside] = at + k * self.tile.size
        return found

    def value(self) -> float:
        return cost(self.tile, self.accesses, self.table())

    def free(self, part: Block, at: int) -> bool:
        return at + part.bytes <= self.room and not any(self.taken[at : at + part.bytes])

    def put(self, k: int, at: int) -> None:
        part = self.parts[k]
        self.at[k] = at
        self.taken[at : at + part.bytes] = b"\1" * part.bytes

    def lift(self, k: int) -> None:
        part = self.parts[k]
        self.taken[self.at[k] : self.at[k] + part.bytes] = bytes(part.bytes)

    def pack(self, rng: random.Random) -> bool:
        """A random first placement, most blocks as low as they fit; False where none was found."""
        lowest: dict[tuple[int, int, tuple[int, ...]], int] = {}
        for k in sorted(range(len(self.parts)), key=lambda k: (-self.parts[k].bytes, rng.random())):
            part = self.parts[k]
            like = (part.bytes, part.modulus, tuple(part.residues))
            if rng.random() < 0.2:
                at = self.anywhere(part, rng)
                if self.free(part, at):
                    self.put(k, at)
                    continue
            first = lowest.get(like, 0)
            spots = (base + r for base in range(first, self.room, part.modulus) for r in part.residues)
            at = next((spot for spot in spots if self.free(part, spot)), -1)
            if at < 0:
                return False
            lowest[like] = at - at % part.modulus
            self.put(k, at)
        return True

    def anywhere(self, part: Block, rng: random.Random) -> int:
        return rng.randrange(0, self.room, part.modulus) + rng.choice(part.residues)

    def move(self, rng: random.Random) -> list[tuple[int, int]] | None:
        """Move one block or swap two of a size; where they were, or None where that does not fit."""
        k = rng.randrange(len(self.parts))
        part = self.parts[k]
        if rng.random() < 0.5:
            other = rng.randrange(len(self.parts))
            mate, mine, its = self.parts[other], self.at[k], self.at[other]
            fit = its % part.modulus in part.residues and mine % mate.modulus in mate.residues
            if other == k or mate.bytes != part.bytes or not fit:
                return None
            self.at[k], self.at[other] = its, mine
            return [(k, mine), (other, its)]
        old, at = self.at[k], self.anywhere(part, rng)
        self.lift(k)
        fits = self.free(part, at)
        self.put(k, at if fits else old)
        return [(k, old)] if fits else None

    def undo(self, moves: list[tuple[int, int]]) -> None:
        for k, _ in moves:
            self.lift(k)
        for k, at in moves:
            self.put(k, at)


def better_placement(
    tile: Tile, accesses: list[Access], room: int, below: float, seconds: float, rng: random.Random
) -> list[int] | None:
    """Byte offsets within `room` bytes of less weighted excess than `below`; None if none was found."""
    parts = blocks(tile, accesses)
    if not parts or any(access.any_is for access in accesses):
        return None
    end = time.process_time() + seconds
    while time.process_time() < end:
        state = Placements(tile, accesses, parts, room)
        if not state.pack(rng):
            return None
        value, still = state.value(), 0
        while value >= below and still < 60 + 4 * len(parts) and time.process_time() < end:
            undo = state.move(rng)
            if undo is None:
                still += 1
                continue
            new = state.value()
            if new > value and rng.random() > math.exp((value - new) / 0.3):
                state.undo(undo)
                still += 1
            else:
                still = 0 if new < value else still + 1
                value = new
        if value < below:
            return state.table()
    return None


def enumerate_placements(
    tile: Tile, accesses: list[Access], room: int, below: float, most: int = MAX_PLACEMENTS * 20
) -> list[int] | None:
    """Every placement within `room` bytes, where there are at most so many: one below, or None."""
    parts = blocks(tile, accesses)
    if not parts or any(access.any_is for access in accesses):
        return None
    every = ([b + r for b in range(0, room, p.modulus) for r in p.residues] for p in parts)
    spots = [[at for at in some if at + p.bytes <= room] for p, some in zip(parts, every, strict=True)]
    if math.prod(map(len, spots)) > most:
        return None
    state, seen = Placements(tile, accesses, parts, room), 0

    def place(k: int) -> list[int] | None:
        nonlocal seen
        if k == len(parts):
            seen += 1
            return state.table() if seen <= MAX_PLACEMENTS and state.value() < below else None
        for at in spots[k]:
            end = at + parts[k].bytes
            if all(end <= state.at[j] or state.at[j] + parts[j].bytes <= at for j in range(k)):
                state.at[k] = at
                if found := place(k + 1):
                    return found
        return None

    return place(0)
