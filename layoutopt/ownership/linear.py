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
from layoutopt.expressions.spaces import Span, independent, intersection, kernel, sum_of_bits
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation

_WIDEST_BITS: Final = 4  # log2 of the bytes of the widest vector
_MATRIX_LANES: Final = 5  # lane bits that hold a matrix of 8 rows

Kind = Literal["vector", "matrix", "matrix.trans"]


class Side(Struct, frozen=True):
    """Who holds which elements, as far as memory is concerned."""

    stores: bool  # the source's side
    registers: tuple[int, ...]  # basis vectors, independent
    lanes: tuple[int | None, ...]  # a basis vector a lane bit; None where lanes with that bit take no part
    warps: tuple[int | None, ...]  # likewise of warps

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
    """What shared memory serves at once: the lanes of one phase are a coset of these lane masks."""

    lanes: tuple[int, ...]  # a basis, as masks of the lane's bits
    merges: bool  # the next phase is served with it, where lanes l and l ^ 1, or l ^ 2, agree throughout
    next_lane: int  # the mask that leads there


class Memory(NamedTuple):
    """A device's shared memory as linear algebra sees it."""

    line_bits: int  # log2 of the bytes of all banks' words: 7 for 32 banks of 4 bytes
    wavefront_bits: int  # log2 of the most bytes that a wavefront serves
    word_bits: int  # log2 of a word's bytes
    phases: dict[tuple[bool, int], Phase]  # by direction (stores or not) and log2 of the width
    matrices: frozenset[bool]  # directions in which there are matrix instructions


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
            second = rule.phases[1][0] if len(rule.phases) > 1 else 0  # a lane of the second phase, if any
            phases[stores, bits] = Phase(tuple(basis), rule.merges_pairs and second != 0, next_lane=second)
    has = frozenset(s for s, kind in ((False, "ldmatrix"), (True, "stmatrix")) if gpu.has(kind))
    line_bits = (gpu.banks * gpu.bank_bytes).bit_length() - 1
    # A wavefront may serve more words than there are banks: on Kepler, all of a row.
    served_bytes = max(max(rule.banks, rule.row_words) * rule.bank_bytes for rule in gpu.rules.values())
    wavefront_bits, word_bits = served_bytes.bit_length() - 1, gpu.bank_bytes.bit_length() - 1
    return Memory(line_bits, wavefront_bits, word_bits, phases, matrices=has)


class Move(Struct, frozen=True):
    """How a side touches memory."""

    side: Side  # whose
    kind: Kind  # of instruction
    address_bits: int  # offset bits within what one address reaches: a vector, or a row of a matrix
    register_bits: int  # of these, the low ones that count registers of one lane
    row_lanes: tuple[int, ...]  # lane bits that count the others
    phase_vectors: tuple[int, ...]  # a basis of the differences between the addresses of one phase
    wavefronts: int  # of all warps, without conflicts
    instructions: int  # of a warp

    def operation(self, element_bits: int, matrices: int = 4) -> Operation:
        """What an instruction is to the hardware."""
        stores = self.side.stores
        if self.kind == "vector":
            return Operation("store" if stores else "load", 1 << (element_bits + self.address_bits))
        kind = "stmatrix" if stores else "ldmatrix"
        return Operation(kind, ROW_BYTES, matrices=matrices, transposed=self.kind == "matrix.trans")


def moves(side: Side, element_bits: int, shared: Memory) -> Iterator[Move]:
    """How a side could touch memory: by vectors of each width that there is, and by matrices.

    Args:
        side: whose moves; for each bit of the lane number `side.lanes` has the bits of the element index that
            it flips: 0 where both lanes hold the same, None where lanes with that bit take no part.
        element_bits: log2 of an element's bytes.
        shared: the memory.
    """
    register_bits = len(side.registers)
    warps = 1 << sum(w is not None for w in side.warps)
    active_lanes = [1 << i for i, lane in enumerate(side.lanes) if lane is not None]
    for k in range(min(register_bits, _WIDEST_BITS - element_bits) + 1):  # vectors of 2**k registers
        phase = shared.phases.get((side.stores, element_bits + k))
        if phase is None:
            continue
        lane_masks = phase.lanes  # bits of the lane number that change within a phase
        phase_bits = len(independent(active_lanes, lane_masks))  # the others: log2 of the phases of a warp
        if phase.merges and phase_bits and 0 in side.lanes[:2]:  # where neighbours agree, two phases are one
            lane_masks = (*lane_masks, phase.next_lane)
            phase_bits -= 1
        # Two lanes of a phase address elements that differ by the sum of what their lane bits flip.
        of_phase = (sum_of_bits(side.lanes, mask) for mask in intersection(active_lanes, lane_masks))
        count = 1 << (register_bits - k)  # instructions of a warp
        cost = {"wavefronts": count * warps << phase_bits, "instructions": count}
        cost |= {"address_bits": k, "register_bits": k}
        yield Move(side, "vector", row_lanes=(), phase_vectors=tuple(independent(of_phase)), **cost)
    # A matrix: 8 rows of 4 words. Of each row, two bits of the lane's number choose the word.
    word = max(0, 2 - element_bits)  # log2 of the elements of a word
    whole_warps = len(active_lanes) == len(side.lanes) == _MATRIX_LANES
    if side.stores not in shared.matrices or not whole_warps or element_bits > 2 or register_bits < word:
        return
    count = 1 << (register_bits - word)  # matrices of a warp, each of which takes a wavefront
    cost = {"address_bits": word + 2, "wavefronts": count * warps, "instructions": -(-count // 4)}
    in_row, by_row = (tuple(v for v in lanes if v) for lanes in (side.lanes[:2], side.lanes[2:]))
    yield Move(side, "matrix", register_bits=word, row_lanes=(0, 1), phase_vectors=by_row, **cost)
    if word:  # transposed, lanes change places, and the two halves of a register belong to two rows
        cost["register_bits"] = word - 1
        yield Move(side, "matrix.trans", row_lanes=(2, 3, 4), phase_vectors=in_row, **cost)


class Room(NamedTuple):
    """How large scratch may be."""

    max_bits: int  # log2 of the most elements
    fills: bool  # take all of that for fewer rounds; else no more than all warps need at a time


class Plan(Struct, frozen=True):
    """A conversion: a layout of scratch, and how both sides touch it."""

    moves: tuple[Move, Move]  # of the source, of the destination
    # Basis vectors of the element offset, lowest bit first; above them those of the round
    offset: tuple[int, ...]
    offset_bits: int  # how many are the offset's, log2 of the elements of scratch
    # For each side, if it transposes, the vector from one half of its registers to the other; else 0
    half_steps: tuple[int, int]
    wavefronts: int  # of both sides

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
    """A plan for each pair of moves that go together, as long as a pair could have the fewest wavefronts.

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
    """A move of either side, and the layout under which both are possible.

    Attributes:
        word_bits: log2 of the elements of a bank's word.
        line_bits: log2 of those of all banks' words.
    """

    def __init__(self, moves: tuple[Move, Move], element_bits: int, shared: Memory) -> None:
        self.moves = moves
        self.sides = (moves[0].side, moves[1].side)
        self.word_bits = max(0, shared.word_bits - element_bits)
        self.line_bits = max(0, shared.line_bits - element_bits)

    def plan(self, room: Room) -> Plan | None:
        """The layout of scratch, and what it costs; None where no V serves both moves, or there is no room.

        V is spanned by the elements of one word, and those that one address of either move reaches: they lie
        next to each other, numbered by the lowest offset bits. Above these come the bits that choose a bank,
        those that choose a line of all banks, and those of rounds.
        """
        # A basis of V, lowest offset bit first: an address reaches the first ones, as many as its move says.
        reached = self._row_vectors() if any(m.row_lanes for m in self.moves) else self._register_vectors()
        half_steps = None if reached is None else self._half_steps(reached)
        if reached is None or half_steps is None:
            return None
        vectors = self._whole_words(reached)
        functionals = self._functionals(vectors, half_steps)  # of mask i, an element's parity is offset bit i
        in_scratch = self._space([*vectors, *filter(None, half_steps)], room)  # basis of a round's elements
        if functionals is None or in_scratch is None:
            return None
        half_steps = self._aligned(half_steps, vectors, functionals)  # between rows of a transposed register

        def beyond_v(vector: int) -> int:
            """The vector plus one of V, so that all functionals vanish: it changes no offset bit of V."""
            for v, f in zip(vectors, functionals, strict=True):
                if (f & vector).bit_count() & 1:
                    vector ^= v
            return vector

        # The source holds every element: what it holds beyond one round numbers them, registers first.
        source = self.sides[0]
        rounds = independent([*source.registers, *source.held_warps, *source.held_lanes], in_scratch)
        bank_bits = max(0, self.line_bits - len(vectors))  # those that V leaves
        to_part = []  # of each side, the differences within a phase that the bank bits must tell apart
        wavefronts = 0
        for move, half_step in zip(self.moves, half_steps, strict=True):
            of_phase = independent([*move.phase_vectors, *([half_step] if half_step else [])])
            # Lower offset bits lie within one address's reach or one word; V's others choose banks.
            same_in_v = kernel(of_phase, functionals[max(move.address_bits, self.word_bits) :])
            to_part.append(independent(map(beyond_v, same_in_v)))
            # Each dimension beyond the bank bits doubles a phase; `_apart` lets none be lost on either side.
            wavefronts += move.wavefronts << max(0, len(to_part[-1]) - bank_bits)
        banks, lines = _apart(independent(map(beyond_v, in_scratch)), to_part[0], to_part[1], bank_bits)
        offset = (*vectors, *banks, *lines)
        basis = (*offset, *map(beyond_v, rounds))
        return Plan(self.moves, basis, offset_bits=len(offset), half_steps=half_steps, wavefronts=wavefronts)

    def _register_vectors(self) -> list[int] | None:
        """A basis of V, lowest offset bit first, where both sides move vectors of registers; None: no V.

        Its first vectors are registers of both sides, as many as the shorter vector needs; the others are
        registers of the wider side.
        """
        a, b = self.moves
        wide, narrow = (a, b) if a.address_bits > b.address_bits else (b, a)
        both = narrow.address_bits
        chain = self._shared_registers(both) if both else []
        wide_registers = wide.side.registers
        beyond = independent(
            # The narrower side's threads then spread over the words of a vector.
            [
                *intersection(wide_registers, narrow.phase_vectors),
                *intersection(wide_registers, narrow.side.threads),
                *wide_registers,
            ],
            [*wide.side.threads, *chain],
        )
        chain = [*chain, *beyond[: wide.address_bits - both]] if len(chain) == both else []
        return chain if len(chain) == wide.address_bits else None

    def _shared_registers(self, count: int) -> list[int]:
        """Up to `count` independent vectors that are registers of both sides and no thread's of either."""
        a, b = self.sides
        return independent(intersection(a.registers, b.registers), a.threads + b.threads)[:count]

    def _row_vectors(self) -> list[int] | None:
        """A basis of V, lowest offset bit first, where a side uses matrix instructions; None: no V.

        A matrix row is a run of registers of one lane, then those of the next lanes (`Move.row_lanes`). One V
        has both sides' rows, or one's rows and the other's vectors: the longer begin with the shorter.
        """
        of_rows = [move for move in self.moves if move.row_lanes]
        longest_run = max(of_rows, key=lambda move: move.register_bits)  # of registers in a row
        side, count = longest_run.side, longest_run.register_bits
        # Registers of both sides, for the offset bits that count both; then of the longer run alone.
        run = self._shared_registers(min(move.register_bits for move in self.moves))
        run += independent(side.registers, [*side.threads, *run])[: count - len(run)]
        rows = [
            [*run[: move.register_bits], *(v for i in move.row_lanes if (v := move.side.lanes[i]))]
            for move in of_rows
        ]
        longest = max(rows, key=len)
        if len(independent(longest)) < max(move.address_bits for move in of_rows):
            return None  # lanes of a row hold the same elements
        for move in self.moves:
            if not move.row_lanes:  # a vector of registers of one thread
                vector, of_thread = longest[: move.address_bits], Span(move.side.registers)
                if len(vector) < move.address_bits or any(v not in of_thread for v in vector):
                    return None
        return longest if all(row == longest[: len(row)] for row in rows) else None

    def _half_steps(self, reached: list[int]) -> tuple[int, int] | None:
        """For each side that transposes, the vector from one half of its registers to the other; else 0.

        A register outside the rows, whose basis is `reached`: one that is in scratch anyway, as threads or
        rows reach it, if possible. None where a side has no such register.
        """
        steps = [0, 0]
        threads = self.sides[0].threads + self.sides[1].threads
        for i, move in enumerate(self.moves):
            if move.kind == "matrix.trans":
                registers = move.side.registers
                in_scratch = intersection(registers, independent([*threads, *reached]))
                outside_row = [*reached[: move.register_bits], *move.side.threads]
                choices = independent([*in_scratch, *registers], outside_row)
                if not choices:
                    return None
                steps[i] = choices[0]
        return steps[0], steps[1]

    def _aligned(self, steps: tuple[int, int], vectors: list[int], functionals: list[int]) -> tuple[int, int]:
        """The half steps plus registers of their rows: both rows then begin at a multiple of their bytes."""
        aligned = []
        for move, step in zip(self.moves, steps, strict=True):
            for vector, functional in zip(vectors[: move.register_bits], functionals, strict=False):
                step ^= vector * ((functional & step).bit_count() & 1)
            aligned.append(step)
        return aligned[0], aligned[1]

    def _whole_words(self, chain: list[int]) -> list[int]:
        """The basis of V up to a word, if possible by lanes of both sides, which are then free."""
        a, b = self.sides
        lanes = intersection(a.held_lanes, b.held_lanes)
        missing = max(0, self.word_bits - len(chain))
        more = independent([*lanes, *b.held_lanes, *a.held_lanes, *b.held_warps, *a.held_warps], chain)
        return chain + more[:missing]

    def _functionals(self, vectors: list[int], half_steps: tuple[int, int]) -> list[int] | None:
        """The functional (a mask) of each offset bit within V, the span of `vectors`; None: they contradict.

        Functional i is 1 at vector i of the basis, 0 at its others, and 0 between vectors or rows of a side
        (`_numbering`), so that all lanes order registers alike. What is open tells a phase's words apart.
        """
        # Functionals that vanish at the same vectors are chosen together.
        groups: dict[tuple[int, ...], list[int]] = {}
        for i in range(len(vectors)):
            groups.setdefault(tuple(self._numbering(i)), []).append(i)
        functionals = [0] * len(vectors)
        for numbering, bits in groups.items():
            chosen = Span()  # bit i of a vector's tag: the value of functional i there
            for i, vector in enumerate(vectors):
                chosen.add(vector, 1 << i)
            of_group = sum(1 << i for i in bits)
            for vector in numbering:
                rest, values = chosen.remainder(vector)
                if rest:
                    chosen.add(vector)
                elif values & of_group:  # where the group must vanish, one is 1 already
                    return None
            for move, half_step in zip(self.moves, half_steps, strict=True):
                # Bits beyond the access and the word choose banks: a phase must not meet itself there.
                beyond = [1 << i for i in bits if i >= max(move.address_bits, self.word_bits)]
                self._tell_apart(chosen, [*move.phase_vectors, half_step], beyond)  # adds to `chosen`
            for i in bits:
                functionals[i] = chosen.functional(i)
        return functionals

    @staticmethod
    def _tell_apart(span: Span, of_phase: list[int], bits: list[int]) -> None:
        """Choose the functionals of `bits` at vectors outside the span, so that they differ within a phase.

        Args:
            span: vectors at which they are chosen already; grows by the others.
            of_phase: differences between the addresses of a phase.
            bits: one-bit tags.
        """
        chosen, open_vectors = span.copy(), []
        told_apart = Span()
        for vector in of_phase:
            rest, tag = chosen.remainder(vector)
            if rest:
                chosen.add(vector)
                open_vectors.append(vector)
            else:
                told_apart.add(tag & sum(bits))
        for vector, tag in zip(open_vectors, independent(bits, told_apart.vectors()), strict=False):
            span.add(vector, tag)

    def _numbering(self, bit: int) -> Iterator[int]:
        """The vectors that lead from one vector, or row, with offset bit `bit` to others: lanes and warps.

        The functional of the bit vanishes at them, so that registers have one order in all of them.
        """
        for move in self.moves:
            if bit < move.address_bits:
                yield from (v for i, v in enumerate(move.side.lanes) if v and i not in move.row_lanes)
                yield from move.side.held_warps
                if bit >= move.register_bits:
                    yield from move.side.registers

    def _space(self, needed: list[int], room: Room) -> list[int] | None:
        """A basis of the elements that are in scratch at a time: all lanes' of as many warps as have room.

        None where there is no room for the lanes of a warp and the vectors `needed`.
        """
        a, b = self.sides
        space = independent([*needed, *a.held_lanes, *b.held_lanes])
        if len(space) > room.max_bits:
            return None
        more = [*a.held_warps, *b.held_warps, *(a.registers if room.fills else ())]
        return independent([*space, *more])[: room.max_bits]


def _apart(space: list[int], a: list[int], b: list[int], bits: int) -> tuple[list[int], list[int]]:
    """A basis of `space`: `bits` vectors of banks, and the rest, whose span meets neither `a` nor `b`.

    Where `a` or `b` has more than `bits` dimensions, the rest meets it in as few as can be. The rest holds
    sums of a vector of `a` alone and one of `b` alone; vectors of neither complete the banks.
    """
    common = intersection(a, b)[:bits]
    only_a = independent(a, common)[: bits - len(common)]
    only_b = independent(b, [*common, *only_a])[: bits - len(common)]
    longer, shorter = (only_a, only_b) if len(only_a) >= len(only_b) else (only_b, only_a)
    outside = independent(space, [*common, *longer, *shorter])
    spare = bits - len(common) - len(longer)
    mixed = [x ^ y for x, y in zip(longer, shorter, strict=False)]
    return [*common, *longer, *outside[:spare]], [*mixed, *outside[spare:]]
