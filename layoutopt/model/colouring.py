"""Chunks in banks without any conflict, by exchanging two banks at a time.

A bank is a colour, a phase a set of chunks whose colours differ, and no colour has more chunks than fit below
one another in the tile's own bytes. Chunks get colours one after the other. Where none is left for one, two
colours a and b are exchanged along a **Kempe chain**: the chunk of colour a in its way becomes b, which makes
a way for a, and so on until nothing meets:

    phases {x y} {y z} {z w}     colours y: a, z: b, w: a      x wants a: y: b, z: a, w: b

Where each chunk is in two phases at most there is always a chain (Koenig 1916: the edges of a bipartite graph
need no more colours than meet at a vertex), so that two accesses never conflict. With more there most often
is one; where there is none, the chunks in the way lose their colours and are coloured again. Nothing is
refuted: what takes too many steps is left to others.
"""

import random
from collections.abc import Sequence

from layoutopt.ground.budget import current

_SEED = 1
_TENURE = 10  # steps back at least before a chunk may have a colour again that it lost
_EFFORT_A_STEP = 3e-7
# Share of the chunks that may be without a colour, and of the steps that more of them have.
_MOST_LEFT, _LEAST_HOPE = 0.25, 0.04


def coloured(
    phases: Sequence[Sequence[int]], start: Sequence[int], room: Sequence[int], steps: int
) -> list[int] | None:
    """A colour for every chunk; None where none is found in so many steps.

    Args:
        phases: chunks whose colours must differ, as their numbers.
        start: of each chunk the colour that it has at first, if it can.
        room: of each colour, chunks that may have it.
        steps: chunks of chains that are looked at, at most, and fewer where many have no colour for long; the
            same number gives the same answer.
    """
    board = _Colours(phases, len(start), room)
    board.begin(start)
    while board.left:
        hope = max(_LEAST_HOPE, 1 - len(board.left) / (_MOST_LEFT * len(start)))
        if board.steps > hope * steps or current().spent:
            break
        board.colour(board.left.pop(), round(hope * steps))
    current().charge(_EFFORT_A_STEP * board.steps)
    return None if board.left else board.colour_of


class _Colours:
    """colour_of: of each chunk, -1 for none; left: chunks without one; owner: of each phase, by colour."""

    def __init__(self, phases: Sequence[Sequence[int]], chunks: int, room: Sequence[int]) -> None:
        of: list[list[dict[int, int]]] = [[] for _ in range(chunks)]
        for phase in phases:
            owner: dict[int, int] = {}
            for c in phase:
                of[c].append(owner)
        self.owners = of
        self.colour_of, self.left = [-1] * chunks, list[int]()
        self.room, self.steps = list(room), 0
        self.random = random.Random(_SEED)
        self.lost: dict[tuple[int, int], int] = {}  # until which kick a chunk does without a colour
        self.kicks = 0

    def begin(self, start: Sequence[int]) -> None:
        """Colour what can have its first colour; those in most phases are the first."""
        for c in sorted(range(len(start)), key=lambda c: -len(self.owners[c])):
            if self.room[start[c]] and not self.in_way(c, start[c]):
                self.put(c, start[c])
            else:
                self.left.append(c)
        self.left.reverse()

    def in_way(self, c: int, colour: int) -> set[int]:
        """The chunks of a colour that meet a chunk."""
        return {owner[colour] for owner in self.owners[c] if colour in owner}

    def put(self, c: int, colour: int) -> None:
        self.colour_of[c] = colour
        self.room[colour] -= 1
        for owner in self.owners[c]:
            owner[colour] = c

    def take(self, c: int) -> None:
        colour, self.colour_of[c] = self.colour_of[c], -1
        self.room[colour] += 1
        for owner in self.owners[c]:
            del owner[colour]

    def colour(self, c: int, steps: int) -> None:
        """Give a chunk a colour: a free one, or by a chain; or take it from others, which are then left."""
        met = set().union(*self.owners[c])
        having_room = [colour for colour, room in enumerate(self.room) if room]
        if free := [colour for colour in having_room if colour not in met]:
            self.put(c, max(free, key=self.room.__getitem__))
            return
        ways = {one: self.in_way(c, one) for one in having_room}
        for one in sorted(ways, key=lambda one: (len(ways[one]), self.random.random())):
            for other in self.random.sample(range(len(self.room)), len(self.room)):
                if other != one and self.exchange(c, ways[one], one, other):
                    self.put(c, one)
                    return
            if self.steps > steps:
                break
        self.kick(c)

    def exchange(self, c: int, way: set[int], one: int, other: int) -> bool:
        """Exchange two colours from `way` on, so that `c` may have `one`; whether that can be."""
        chain, stack, colour_of = set(way), list(way), self.colour_of
        while stack:
            v = stack.pop()
            turned = one + other - colour_of[v]
            for owner in self.owners[v]:
                u = owner.get(turned, v)
                if u not in chain:
                    chain.add(u)
                    stack.append(u)
        self.steps += len(chain)
        gained = sum(1 if colour_of[v] == other else -1 for v in chain)  # chunks of `one`
        if self.room[one] <= gained or self.room[other] < -gained or self.in_way(c, other) & chain:
            return False
        turned_to = {v: one + other - colour_of[v] for v in chain}
        for v in chain:
            self.take(v)
        for v, colour in turned_to.items():
            self.put(v, colour)
        return True

    def kick(self, c: int) -> None:
        """Take the colour that costs the fewest others theirs, but for a while none that it lost."""
        self.kicks += 1
        self.steps += 1  # so that a board without a second colour comes to its end

        def cost(colour: int) -> tuple[float, float]:
            recently = self.lost.get((c, colour), 0) > self.kicks
            return len(self.in_way(c, colour)) + (not self.room[colour]) + 5 * recently, self.random.random()

        colour = min(range(len(self.room)), key=cost)
        out = self.in_way(c, colour)
        if not out and not self.room[colour]:
            out = {self.random.choice([v for v, its in enumerate(self.colour_of) if its == colour])}
        for v in sorted(out):
            self.take(v)
            self.lost[v, colour] = self.kicks + _TENURE + self.random.randrange(_TENURE)
        self.put(c, colour)
        self.left += sorted(out)
