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
# Kicks (`_Colours.kick`) at least before a chunk may have a colour again that it lost; earlier only where
# every other colour would have so many more losers.
_TENURE, _AS_MANY_LOSERS = 10, 5
_EFFORT_A_STEP = 3e-7  # seconds of work for a chunk of a chain that is visited
# The more chunks have no colour, the smaller a share of its steps the search has: the least where so many of
# them have none.
_MOST_LEFT, _LEAST_SHARE = 0.25, 0.04


def coloured(
    phases: Sequence[Sequence[int]], start: Sequence[int], room: Sequence[int], steps: int
) -> list[int] | None:
    """A colour for every chunk; None where none is found in so many steps.

    Args:
        phases: chunks whose colours must differ, as their numbers.
        start: of each chunk the colour that it has at first, if it can.
        room: of each colour, chunks that may have it.
        steps: chunks of chains visited at most, fewer while many have no colour; the same number gives the
            same answer.
    """
    board = _Colours(phases, len(start), room)
    board.begin(start)
    while board.left:
        share = max(_LEAST_SHARE, 1 - len(board.left) / (_MOST_LEFT * len(start)))
        if board.steps > share * steps or current().spent:
            break
        board.colour(board.left.pop(), round(share * steps))
    current().charge(_EFFORT_A_STEP * board.steps)
    return None if board.left else board.colour_of


class _Colours:
    """Chunks with colours.

    Attributes:
        phases_of: of each chunk; a phase is its chunks by colour.
        colour_of: of each chunk, -1 for none.
        left: chunks without a colour.
        room: of each colour, chunks that may still have it.
        steps: chunks of chains visited.
        barred_until: for a chunk and a colour that it lost, the kick from which on it may have that again.
    """

    def __init__(self, phases: Sequence[Sequence[int]], chunks: int, room: Sequence[int]) -> None:
        self.phases_of: list[list[dict[int, int]]] = [[] for _ in range(chunks)]
        for phase in phases:
            by_colour: dict[int, int] = {}
            for c in phase:
                self.phases_of[c].append(by_colour)
        self.colour_of, self.left = [-1] * chunks, list[int]()
        self.room, self.steps = list(room), 0
        self.random = random.Random(_SEED)
        self.barred_until: dict[tuple[int, int], int] = {}
        self.kicks = 0

    def begin(self, start: Sequence[int]) -> None:
        """Colour what can have its first colour; those in most phases are the first."""
        for c in sorted(range(len(start)), key=lambda c: -len(self.phases_of[c])):
            if self.room[start[c]] and not self.in_way(c, start[c]):
                self.put(c, start[c])
            else:
                self.left.append(c)
        self.left.reverse()

    def in_way(self, c: int, colour: int) -> set[int]:
        """The chunks of a colour that meet a chunk."""
        return {phase[colour] for phase in self.phases_of[c] if colour in phase}

    def put(self, c: int, colour: int) -> None:
        self.colour_of[c] = colour
        self.room[colour] -= 1
        for phase in self.phases_of[c]:
            phase[colour] = c

    def take(self, c: int) -> None:
        colour, self.colour_of[c] = self.colour_of[c], -1
        self.room[colour] += 1
        for phase in self.phases_of[c]:
            del phase[colour]

    def colour(self, c: int, steps: int) -> None:
        """Give a chunk a colour: a free one, or by an exchange along a chain; else take it from others.

        No further colours are tried once `steps` chunks of chains were visited.
        """
        taken = set().union(*self.phases_of[c])  # colours of the chunks that it meets
        with_room = [colour for colour, room in enumerate(self.room) if room]
        if free := [colour for colour in with_room if colour not in taken]:
            self.put(c, max(free, key=self.room.__getitem__))
            return
        in_way = {wanted: self.in_way(c, wanted) for wanted in with_room}
        for wanted in sorted(in_way, key=lambda wanted: (len(in_way[wanted]), self.random.random())):
            for other in self.random.sample(range(len(self.room)), len(self.room)):
                if other != wanted and self.exchange(c, in_way[wanted], wanted, other):
                    self.put(c, wanted)
                    return
            if self.steps > steps:
                break
        self.kick(c)

    def exchange(self, c: int, in_way: set[int], wanted: int, other: int) -> bool:
        """Exchange two colours along the chains from `in_way`, so that `c` may be `wanted`; False if not."""
        chain, stack, colour_of = set(in_way), list(in_way), self.colour_of
        while stack:
            member = stack.pop()
            new_colour = wanted + other - colour_of[member]
            for phase in self.phases_of[member]:
                neighbour = phase.get(new_colour, member)  # itself, in the chain already, if there is none
                if neighbour not in chain:
                    chain.add(neighbour)
                    stack.append(neighbour)
        self.steps += len(chain)
        gained = sum(1 if colour_of[member] == other else -1 for member in chain)  # chunks of `wanted`
        # `wanted` must have room for `c`, too, and no chunk that meets `c` may become `wanted`.
        if self.room[wanted] <= gained or self.room[other] < -gained or self.in_way(c, other) & chain:
            return False
        new_colours = {member: wanted + other - colour_of[member] for member in chain}
        for member in chain:
            self.take(member)
        for member, colour in new_colours.items():
            self.put(member, colour)
        return True

    def kick(self, c: int) -> None:
        """Give `c` the colour that the fewest others lose, but for a while none that it lost itself."""
        self.kicks += 1
        self.steps += 1  # so that a board without a second colour comes to its end

        def cost(colour: int) -> tuple[float, float]:
            barred = self.barred_until.get((c, colour), 0) > self.kicks
            losers = len(self.in_way(c, colour)) + (not self.room[colour])
            return losers + _AS_MANY_LOSERS * barred, self.random.random()

        colour = min(range(len(self.room)), key=cost)
        losing = self.in_way(c, colour)
        if not losing and not self.room[colour]:
            losing = {self.random.choice([v for v, its in enumerate(self.colour_of) if its == colour])}
        for loser in sorted(losing):
            self.take(loser)
            self.barred_until[loser, colour] = self.kicks + _TENURE + self.random.randrange(_TENURE)
        self.put(c, colour)
        self.left += sorted(losing)
