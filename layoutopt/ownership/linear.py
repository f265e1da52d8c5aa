"""The fewest wavefronts that move a tile from one linear register layout to another, in closed form.

Elements are vectors over F2, the bits of their coordinates side by side; a side (source or destination)
holds them by a basis vector for each bit of a register, lane and warp. Both sides meet in one scratch
layout, which is linear, too: the bits of an offset are functionals of the element.

A **move** is how a side could touch memory: vectors of 2**k registers (ld.shared and st.shared of 1 to 16
bytes), or rows of 16 bytes that a matrix instruction makes of several lanes. Two moves fix which elements
are consecutive, a space V. The functionals of the bits inside a vector must vanish on all that numbers the
vectors of a side, else the order of its registers would depend on the lane. What is left is the swizzle
problem on the quotient: words of one phase must lie in distinct banks, so that the elements on which all
bank bits vanish must meet neither side's phase, and two subspaces always have a common complement.

Pairs of moves are tried in the order of what they would cost without conflicts, which is a bound.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from layoutopt.accesses.ownership import ROW_BYTES
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation
from layoutopt.ownership.spaces import Span, independent, intersection, kernel, total

_MATRIX_LANES: Final = 5  # lane bits that hold a matrix of 8 rows

Kind = Literal["vector", "matrix", "matrix.trans"]


class Side(Struct, frozen=True):
    """Who holds which elements, as far as memory is concerned.

    Attributes:
        stores: the source's side.
        registers: basis vectors, independent.
        lanes: a basis vector a lane bit; None where lanes with that bit take no part.
        warps: likewise of warps.
    """

    stores: bool
    registers: tuple[int, ...]
    lanes: tuple[int | None, ...]
    warps: tuple[int | None, ...]

    @property
    def held_lanes(self) -> list[int]:
        """The lanes' basis vectors that tell elements apart."""
        return [v for v in self.lanes if v]

    @property
    def held_warps(self) -> list[int]:
        """Likewise of warps."""
        return [v for v in self.warps if v]

    @property
    def threads(self) -> list[int]:
        """Both."""
        return self.held_lanes + self.held_warps


class Phase(NamedTuple):
    """What shared memory serves at once: the lanes of one phase are a coset of these lane masks.

    Attributes:
        lanes: a basis, as masks of the lane's bits.
        merges: the next phase is served with it, where lanes l and l ^ 1, or l ^ 2, agree throughout.
        next_lane: the mask that leads there.
    """

    lanes: tuple[int, ...]
    merges: bool
    next_lane: int


class Memory(NamedTuple):
    """A device's shared memory as linear algebra sees it.

    Attributes:
        line_bits: log2 of the bytes of all banks' words: 7 for 32 banks of 4 bytes.
        wavefront_bits: log2 of the most bytes that a wavefront serves.
        word_bits: log2 of a word's bytes.
        phases: by direction (stores or not) and log2 of the width.
        matrices: directions in which there are matrix instructions.
    """

    line_bits: int
    wavefront_bits: int
    word_bits: int
    phases: dict[tuple[bool, int], Phase]
    matrices: frozenset[bool]


def memory(gpu: Device) -> Memory:
    """The device's rules for loads, stores and matrices; widths whose phases are no cosets are left out."""
    phases: dict[tuple[bool, int], Phase] = {}
    for stores, kind in ((False, "load"), (True, "store")):
        for bits in range(5):
            rule = gpu.rules.get((kind, 1 << bits))
            if rule is None:
                continue
            basis = independent(rule.phases[0])
            if 1 << len(basis) != len(rule.phases[0]) or any(
                lane ^ phase[0] not in rule.phases[0] for phase in rule.phases for lane in phase
            ):
                continue
            other = rule.phases[1][0] if len(rule.phases) > 1 else 0
            phases[stores, bits] = Phase(tuple(basis), rule.merges_pairs and other != 0, other)
    has = frozenset(s for s, kind in ((False, "ldmatrix"), (True, "stmatrix")) if gpu.has(kind))
    line = (gpu.banks * gpu.bank_bytes).bit_length() - 1
    most = max(max(rule.banks, rule.row_words) * rule.bank_bytes for rule in gpu.rules.values())
    return Memory(line, most.bit_length() - 1, gpu.bank_bytes.bit_length() - 1, phases, has)


class Move(Struct, frozen=True):
    """How a side touches memory.

    Attributes:
        side: whose.
        kind: of instruction.
        bits: offset bits within what one address reaches: a vector, or a row of a matrix.
        own: of these, the low ones that count registers of one lane.
        row_lanes: lane bits that count the others.
        numbers: element vectors of one phase, beyond what an address reaches.
        wavefronts: of all warps, without conflicts.
        instructions: of a warp.
    """

    side: Side
    kind: Kind
    bits: int
    own: int
    row_lanes: tuple[int, ...]
    numbers: tuple[int, ...]
    wavefronts: int
    instructions: int

    def operation(self, element_bits: int, matrices: int = 4) -> Operation:
        """What an instruction is to the hardware."""
        stores = self.side.stores
        if self.kind == "vector":
            return Operation("store" if stores else "load", 1 << (element_bits + self.bits))
        kind = "stmatrix" if stores else "ldmatrix"
        return Operation(kind, ROW_BYTES, matrices, self.kind == "matrix.trans")


def moves(side: Side, element_bits: int, shared: Memory) -> Iterator[Move]:
    """How a side could touch memory.

    Args:
        side: whose moves.
        element_bits: log2 of an element's bytes.
        shared: the memory.
    """
    rank = len(side.registers)
    warps = 1 << sum(w is not None for w in side.warps)
    taking_part = [1 << i for i, lane in enumerate(side.lanes) if lane is not None]
    for k in range(min(rank, 4 - element_bits) + 1):
        phase = shared.phases.get((side.stores, element_bits + k))
        if phase is None:
            continue
        masks = phase.lanes
        phases = len(independent(taking_part, masks))
        if phase.merges and phases and 0 in side.lanes[:2]:
            masks = (*masks, phase.next_lane)
            phases -= 1
        numbers = (total(side.lanes, mask) for mask in intersection(taking_part, masks))
        count = 1 << (rank - k)
        yield Move(side, "vector", k, k, (), tuple(independent(numbers)), count * warps << phases, count)
    word = max(0, 2 - element_bits)
    whole = side.stores in shared.matrices and len(taking_part) == len(side.lanes) == _MATRIX_LANES
    if not whole or element_bits > 2 or rank < word:
        return
    count = 1 << (rank - word)
    cost = count * warps, -(-count // 4)
    yield Move(side, "matrix", word + 2, word, (0, 1), tuple(v for v in side.lanes[2:] if v), *cost)
    if word:  # two units of 16 bits a register: one row of a matrix each
        yield Move(
            side, "matrix.trans", word + 2, word - 1, (2, 3, 4), tuple(v for v in side.lanes[:2] if v), *cost
        )


class Room(NamedTuple):
    """Scratch.

    Attributes:
        max_bits: log2 of the elements that it may have.
        fills: for fewer rounds it has as many as that, else no more than all warps need at a time.
    """

    max_bits: int
    fills: bool


class Plan(Struct, frozen=True):
    """A conversion: a layout of scratch, and how both sides touch it.

    Attributes:
        moves: of the source, of the destination.
        offset: basis vectors of the element offset, lowest bit first; above them those of the round.
        offset_bits: how many are the offset's.
        pairs: of a transposing side, the register vector whose bit is the lowest of a row's number; else 0.
        wavefronts: of both sides.
    """

    moves: tuple[Move, Move]
    offset: tuple[int, ...]
    offset_bits: int
    pairs: tuple[int, int]
    wavefronts: int

    @property
    def rounds(self) -> int:
        """Times that scratch is filled and read."""
        return 1 << (len(self.offset) - self.offset_bits)

    @property
    def instructions(self) -> int:
        """Of a warp, both sides."""
        return self.moves[0].instructions + self.moves[1].instructions


def plans(
    sources: Iterable[Side], destination: Side, element_bits: int, shared: Memory, room: Room
) -> Iterator[Plan]:
    """A plan for every pair of moves that goes together and could have the fewest wavefronts.

    Args:
        sources: the source, by each choice of who stores an element that several hold.
        destination: who wants them.
        element_bits: log2 of an element's bytes.
        shared: the memory.
        room: for scratch.
    """
    starts = [move for side in sources for move in moves(side, element_bits, shared)]
    ends = list(moves(destination, element_bits, shared))
    pairs = sorted(((a, b) for a in starts for b in ends), key=lambda p: p[0].wavefronts + p[1].wavefronts)
    least: int | None = None
    for a, b in pairs:
        if least is not None and a.wavefronts + b.wavefronts > least:
            return
        plan = _Pair((a, b), element_bits, shared).plan(room)
        if plan is not None:
            least = min(plan.wavefronts, least or plan.wavefronts)
            yield plan


class _Pair:
    """A move of either side, and the layout under which both are possible."""

    def __init__(self, moves: tuple[Move, Move], element_bits: int, shared: Memory) -> None:
        self.moves = moves
        self.sides = (moves[0].side, moves[1].side)
        self.word = max(0, shared.word_bits - element_bits)
        self.line = max(0, shared.line_bits - element_bits)

    def plan(self, room: Room) -> Plan | None:
        """The layout; None where the moves do not go together, or scratch is too small for them."""
        chain = self._row_vectors() if any(m.row_lanes for m in self.moves) else self._register_vectors()
        pairs = None if chain is None else self._pairs(chain)
        if chain is None or pairs is None:
            return None
        vectors = self._whole_words(chain)
        functionals = self._functionals(vectors, pairs)
        space = self._space([*vectors, *filter(None, pairs)], room)
        if functionals is None or space is None:
            return None

        def reduced(vector: int) -> int:
            """Moved along V to where all functionals vanish."""
            for v, f in zip(vectors, functionals, strict=True):
                if (f & vector).bit_count() & 1:
                    vector ^= v
            return vector

        source = self.sides[0]
        rounds = independent([*source.registers, *source.held_warps, *source.held_lanes], space)
        banks = max(0, self.line - len(vectors))
        met = []
        wavefronts = 0
        for move, pair in zip(self.moves, pairs, strict=True):
            numbers = independent([*move.numbers, *([pair] if pair else [])])
            inside = kernel(numbers, functionals[max(move.bits, self.word) :])
            met.append(independent(map(reduced, inside)))
            wavefronts += move.wavefronts << max(0, len(met[-1]) - banks)
        bank, segments = _apart(independent(map(reduced, space)), met[0], met[1], banks)
        offset = (*vectors, *bank, *segments)
        return Plan(self.moves, (*offset, *map(reduced, rounds)), len(offset), pairs, wavefronts)

    def _register_vectors(self) -> list[int] | None:
        """V as a chain, the lowest offset bit first, where both sides move registers of one lane."""
        a, b = self.moves
        both = min(a.bits, b.bits)
        chain: list[int] = []
        if both:
            every = self.sides[0].threads + self.sides[1].threads
            chain = independent(intersection(self.sides[0].registers, self.sides[1].registers), every)[:both]
        wide, narrow = (a.side, b) if a.bits > b.bits else (b.side, a)
        beyond = independent(
            # The narrower side's threads then spread over the words of a vector.
            [
                *intersection(wide.registers, narrow.numbers),
                *intersection(wide.registers, narrow.side.threads),
                *wide.registers,
            ],
            [*wide.threads, *chain],
        )
        length = max(a.bits, b.bits)
        chain = [*chain, *beyond[: length - both]] if len(chain) == both else []
        return chain if len(chain) == length else None

    def _row_vectors(self) -> list[int] | None:
        """The same where a matrix instruction makes rows of lanes."""
        rows = [move for move in self.moves if move.row_lanes]
        own = max(move.own for move in rows)
        shared = min(own, *(move.own for move in self.moves))
        every = self.sides[0].threads + self.sides[1].threads
        chain = independent(intersection(self.sides[0].registers, self.sides[1].registers), every)[:shared]
        holder = next(move.side for move in rows if move.own == own)
        chain += independent(holder.registers, [*holder.threads, *chain])[: own - len(chain)]
        chains = [
            [*chain[: move.own], *(v for i in move.row_lanes if (v := move.side.lanes[i]))] for move in rows
        ]
        longest = max(chains, key=len)
        if len(independent(longest)) < max(move.bits for move in rows):
            return None
        for move in self.moves:
            within = Span(move.side.registers)
            if not move.row_lanes and (
                move.bits > len(longest) or any(v not in within for v in longest[: move.bits])
            ):
                return None
        return longest if all(c == longest[: len(c)] for c in chains) else None

    def _pairs(self, chain: list[int]) -> tuple[int, int] | None:
        """For a transposing side, a register that numbers rows, rather one that is in scratch anyway."""
        found = [0, 0]
        threads = self.sides[0].threads + self.sides[1].threads
        for i, move in enumerate(self.moves):
            if move.kind == "matrix.trans":
                registers = move.side.registers
                likely = [*intersection(registers, independent([*threads, *chain])), *registers]
                pair = independent(likely, [*chain[: move.own], *move.side.threads])
                if not pair:
                    return None
                found[i] = pair[0]
        return found[0], found[1]

    def _whole_words(self, chain: list[int]) -> list[int]:
        """V up to a word, rather by lanes of both sides: lanes that share a word are served at once."""
        a, b = self.sides
        lanes = intersection(a.held_lanes, b.held_lanes)
        missing = max(0, self.word - len(chain))
        more = independent([*lanes, *b.held_lanes, *a.held_lanes, *b.held_warps, *a.held_warps], chain)
        return chain + more[:missing]

    def _functionals(self, vectors: list[int], pairs: tuple[int, int]) -> list[int] | None:
        """Of each offset bit within V, as masks of an element's bits; None where there are none."""
        # Bits before which the same vectors are numbered have one span; a tag holds the values of all.
        groups: dict[tuple[int, ...], list[int]] = {}
        for i in range(len(vectors)):
            groups.setdefault(tuple(self._numbering(i)), []).append(i)
        found = [0] * len(vectors)
        for numbering, bits in groups.items():
            span = Span()
            for i, vector in enumerate(vectors):
                span.add(vector, 1 << i)
            mask = sum(1 << i for i in bits)
            for vector in numbering:
                rest, tag = span.remainder(vector)
                if rest:
                    span.add(vector)
                elif tag & mask:
                    return None
            for move, pair in zip(self.moves, pairs, strict=True):
                beyond = [1 << i for i in bits if i >= max(move.bits, self.word)]
                self._spread(span, [*move.numbers, pair], beyond)
            for i in bits:
                found[i] = span.functional(i)
        return found

    @staticmethod
    def _spread(span: Span, numbers: list[int], bits: list[int]) -> None:
        """Give the functionals of `bits`, where they are free, values that tell a phase's lanes apart."""
        known, free = span.copy(), []
        told = Span()
        for vector in numbers:
            rest, tag = known.remainder(vector)
            if rest:
                known.add(vector)
                free.append(vector)
            else:
                told.add(tag & sum(bits))
        for vector, tag in zip(free, independent(bits, told.vectors()), strict=False):
            span.add(vector, tag)

    def _numbering(self, bit: int) -> Iterator[int]:
        """What numbers the vectors and rows that offset bit `bit` lies in."""
        for move in self.moves:
            if bit < move.bits:
                yield from (v for i, v in enumerate(move.side.lanes) if v and i not in move.row_lanes)
                yield from move.side.held_warps
                if bit >= move.own:
                    yield from move.side.registers

    def _space(self, needed: list[int], room: Room) -> list[int] | None:
        """A basis of what is in scratch at a time: all lanes, then as many warps as there is room for."""
        a, b = self.sides
        space = independent([*needed, *a.held_lanes, *b.held_lanes])
        if len(space) > room.max_bits:
            return None
        more = [*a.held_warps, *b.held_warps, *(a.registers if room.fills else ())]
        return independent([*space, *more])[: room.max_bits]


def _apart(space: list[int], a: list[int], b: list[int], bits: int) -> tuple[list[int], list[int]]:
    """A basis of `space`: `bits` vectors of banks, and the rest, which meets neither `a` nor `b`.

    Where `a` or `b` has more than `bits` dimensions, the rest meets it in as few as can be: what either has
    and the other has not is added pairwise, and what neither has completes the banks.
    """
    common = intersection(a, b)[:bits]
    only_a = independent(a, common)[: bits - len(common)]
    only_b = independent(b, [*common, *only_a])[: bits - len(common)]
    longer, shorter = (only_a, only_b) if len(only_a) >= len(only_b) else (only_b, only_a)
    outside = independent(space, [*common, *longer, *shorter])
    spare = bits - len(common) - len(longer)
    mixed = [x ^ y for x, y in zip(longer, shorter, strict=False)]
    return [*common, *longer, *outside[:spare]], [*mixed, *outside[spare:]]
