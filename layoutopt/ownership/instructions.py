"""A plan of a conversion as instructions: which registers each moves, and every lane's byte address."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from layoutopt.accesses.ownership import WORD_BYTES
from layoutopt.expressions.bits import combinations
from layoutopt.expressions.spaces import Span
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.hardware.operations import Operation
from layoutopt.ownership.linear import Move, Plan


class Instruction(Struct, frozen=True, eq=False):
    """One instruction of every warp.

    Attributes:
        kind: "store" or "load".
        op: in PTX's spelling, without what follows from the type: "st.shared.v4.b32", "ldmatrix.x2.trans".
        operation: the same, as the conflict engine takes it.
        bytes: that one lane's registers have.
        round: of the conversion; all stores of a round come before its loads, with a barrier between, and
            another before the next round's stores.
        registers: elements of a thread that it moves, in the order of the bytes.
        byte_address: int64, shape (warps, lanes): -1 where a lane gives no address.
    """

    kind: Literal["store", "load"]
    op: str
    operation: Operation
    bytes: int
    round: int
    registers: tuple[int, ...]
    byte_address: IntArray


def instructions(plan: Plan, registers: Sequence[Sequence[int]], element_bits: int) -> Iterator[Instruction]:
    """The instructions of a plan in order: by round, its stores, then its loads.

    Args:
        plan: the conversion.
        registers: a basis vector for each bit of a register's number, of the source and of the destination.
        element_bits: log2 of an element's bytes.
    """
    places = Span()  # a vector's tag: its place
    for i, vector in enumerate(plan.offset):
        places.add(vector, 1 << i)
    sides = [
        _Side(plan, move, half_step, bases, places, element_bits)
        for move, half_step, bases in zip(plan.moves, plan.half_steps, registers, strict=True)
    ]
    for round_ in range(plan.rounds):
        for side in sides:
            yield from side.round(round_)


class _Side:
    """The instructions of a side, round by round.

    The *place* of an element is its offset in scratch, `plan.offset_bits` bits, with the number of its round
    in the bits above. Places are linear: that of a register of a lane of a warp is the XOR of three places.

    Attributes:
        lane_places, warp_places: int64, by lane and by warp.
        row_places: int64, of the rows of a matrix.
        active: bool, shape (warps, lanes): who takes part.
        half_step: the place between the two halves of registers that are transposed; 0 where none are.
        register_at: the register by its place in lane 0 of warp 0.
        starts: places of the first registers of the instructions in lane 0 of warp 0, by round.
    """

    def __init__(
        self, plan: Plan, move: Move, half_step: int, bases: Sequence[int], places: Span, element_bits: int
    ) -> None:
        """The side of `move` in a plan.

        Args:
            plan: the conversion.
            move: how the side touches memory.
            half_step: the vector between the two halves of transposed registers; 0 where none are.
            bases: a basis vector for each bit of a register's number.
            places: the tag of an element's vector is its place: its offset, and its round above that.
            element_bits: log2 of an element's bytes.
        """

        def place(vector: int | None) -> int:
            return places.remainder(vector or 0)[1]

        self.plan, self.move, self.element_bits = plan, move, element_bits
        side = move.side
        self.offset_mask = (1 << plan.offset_bits) - 1
        self.half_step = place(half_step)
        self.lane_places = combinations([place(v) for v in side.lanes])
        self.warp_places = combinations([place(v) for v in side.warps])
        # Lanes and warps that have a bit set without a vector take no part.
        idle_lanes = combinations([int(v is None) << i for i, v in enumerate(side.lanes)])
        idle_warps = combinations([int(v is None) << i for i, v in enumerate(side.warps)])
        self.active = np.multiply.outer(idle_warps == 0, idle_lanes == 0)
        # The rows of a matrix are told apart by the lanes that do not share one, and by the halves.
        rows = [place(v) for i, v in enumerate(side.lanes) if i not in move.row_lanes]
        self.row_places = combinations([self.half_step, *rows] if half_step else rows)
        # Registers that repeat others are moved once.
        kept = [i for i, v in enumerate(bases) if v in side.registers and v not in bases[:i]]
        registers = combinations([1 << i for i in kept]).tolist()
        register_places = combinations([place(bases[i]) for i in kept]).tolist()
        self.register_at = dict(zip(register_places, registers, strict=True))
        # Registers of one instruction differ by sums of these places, and so have one remainder: where it
        # starts. Remainders are linear, so that addresses are, too.
        in_instruction = Span([*(1 << i for i in range(move.register_bits)), self.half_step])
        self.starts: dict[int, list[int]] = {}
        for start in sorted({in_instruction.remainder(at)[0] for at in register_places}):
            self.starts.setdefault(start >> plan.offset_bits, []).append(start)

    def round(self, round_: int) -> Iterator[Instruction]:
        """The instructions of one round; warps whose elements come in another take no part in one."""
        warp_rounds = self.warp_places >> self.plan.offset_bits
        for warp_round in np.unique(warp_rounds).tolist():
            # Rounds add up as places do: what warp 0 moves in this round, others move in another.
            starts = self.starts.get(round_ ^ warp_round, [])
            active = self.active & (warp_rounds == warp_round)[:, None]
            if self.move.kind == "vector":
                for start in starts:
                    yield self._vector(round_, start, active)
                continue
            first = 0
            while first < len(starts):
                matrices = 1 << min(2, (len(starts) - first).bit_length() - 1)
                yield self._matrices(round_, starts[first : first + matrices], active)
                first += matrices

    def _vector(self, round_: int, start: int, active: BoolArray) -> Instruction:
        """The ld.shared or st.shared of the registers from place `start` on."""
        place = self.warp_places[:, None] ^ self.lane_places ^ start
        address = np.where(active, (place & self.offset_mask) << self.element_bits, -1)
        registers = tuple(self.register_at[start ^ i] for i in range(1 << self.move.register_bits))
        return self._instruction(round_, registers, address, self.move.operation(self.element_bits))

    def _matrices(self, round_: int, starts: list[int], active: BoolArray) -> Instruction:
        """One ldmatrix or stmatrix of a matrix for each of `starts`.

        The first lanes give the addresses of the rows, 8 a matrix; others have -1. A transposed matrix fills
        two halves of registers, `half_step` apart.
        """
        address = np.full(active.shape, -1, np.int64)
        places = self.warp_places[:, None, None] ^ np.array(starts)[:, None] ^ self.row_places
        rows = (places & self.offset_mask).reshape(len(address), -1)
        address[:, : rows.shape[1]] = rows << self.element_bits
        address[~active.any(axis=1)] = -1
        registers = tuple(
            self.register_at[start ^ half ^ i]
            for start in starts
            for half in ((0, self.half_step) if self.half_step else (0,))
            for i in range(1 << self.move.register_bits)
        )
        operation = self.move.operation(self.element_bits, len(starts))
        return self._instruction(round_, registers, address, operation)

    def _instruction(
        self, round_: int, registers: tuple[int, ...], address: IntArray, operation: Operation
    ) -> Instruction:
        stores = self.move.side.stores
        width = operation.width_bytes
        if operation.matrices:
            op, width = operation.text, WORD_BYTES * operation.matrices
        else:
            vector = f".v{width // 4}" if width > 4 else ""
            op = f"{'st' if stores else 'ld'}.shared{vector}.b{min(width, 4) * 8}"
        kind: Literal["store", "load"] = "store" if stores else "load"
        return Instruction(kind, op, operation, width, round_, registers, byte_address=address)
