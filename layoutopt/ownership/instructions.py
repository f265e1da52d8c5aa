"""A plan of a conversion as instructions: which registers each moves, and every lane's byte address."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from layoutopt.accesses.ownership import WORD_BYTES
from layoutopt.expressions.bits import combinations
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.operations import Operation
from layoutopt.ownership.linear import Move, Plan
from layoutopt.ownership.spaces import Span


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
    place = Span()
    for i, vector in enumerate(plan.offset):
        place.add(vector, 1 << i)
    sides = [
        _Side(plan, move, pair, bases, place, element_bits)
        for move, pair, bases in zip(plan.moves, plan.pairs, registers, strict=True)
    ]
    for number in range(plan.rounds):
        for side in sides:
            yield from side.round(number)


class _Side:
    """The instructions of a side, round by round."""

    def __init__(
        self, plan: Plan, move: Move, pair: int, bases: Sequence[int], place: Span, element_bits: int
    ) -> None:
        self.plan, self.move, self.element_bits = plan, move, element_bits

        def at(vector: int | None) -> int:
            return place.remainder(vector or 0)[1]

        side = move.side
        self.inside = (1 << plan.offset_bits) - 1
        self.pair = at(pair)
        self.lanes = combinations([at(v) for v in side.lanes])
        self.warps = combinations([at(v) for v in side.warps])
        self.takes_part = np.multiply.outer(
            combinations([int(v is None) << i for i, v in enumerate(side.warps)]) == 0,
            combinations([int(v is None) << i for i, v in enumerate(side.lanes)]) == 0,
        )
        row = [at(v) for i, v in enumerate(side.lanes) if i not in move.row_lanes]
        self.rows = combinations([self.pair, *row] if pair else row)
        # Registers that repeat others are moved once.
        kept = [i for i, v in enumerate(bases) if v in side.registers and v not in bases[:i]]
        numbers = combinations([1 << i for i in kept]).tolist()
        places = combinations([at(bases[i]) for i in kept]).tolist()
        self.number_at = dict(zip(places, numbers, strict=True))
        # One place stands for those of an instruction: by a linear map, so that addresses are linear.
        within = Span([*(1 << i for i in range(move.own)), self.pair])
        starts = {within.remainder(p)[0] for p in places}
        self.starts: dict[int, list[int]] = {}  # by the round of warp 0
        for start in sorted(starts):
            self.starts.setdefault(start >> plan.offset_bits, []).append(start)

    def round(self, number: int) -> Iterator[Instruction]:
        """Those of one round; warps whose elements come in another take no part."""
        by_warp = self.warps >> self.plan.offset_bits
        for shift in np.unique(by_warp).tolist():
            starts = self.starts.get(number ^ shift, [])
            takes_part = self.takes_part & (by_warp == shift)[:, None]
            if self.move.kind == "vector":
                for start in starts:
                    yield self._vector(number, start, takes_part)
                continue
            first = 0
            while first < len(starts):
                count = 1 << min(2, (len(starts) - first).bit_length() - 1)
                yield self._matrices(number, starts[first : first + count], takes_part)
                first += count

    def _vector(self, number: int, start: int, takes_part: IntArray) -> Instruction:
        place = self.warps[:, None] ^ self.lanes ^ start
        address = np.where(takes_part, (place & self.inside) << self.element_bits, -1)
        registers = tuple(self.number_at[start ^ i] for i in range(1 << self.move.own))
        return self._instruction(number, registers, address, self.move.operation(self.element_bits))

    def _matrices(self, number: int, starts: list[int], takes_part: IntArray) -> Instruction:
        """One ldmatrix or stmatrix of a matrix for each of `starts`, which are XORed with lane and warp.

        The first lanes give the addresses of the rows, 8 a matrix; others have -1. A transposed matrix fills
        two units of registers, `pair` apart.
        """
        address = np.full(takes_part.shape, -1, np.int64)
        rows = (self.warps[:, None, None] ^ np.array(starts)[:, None] ^ self.rows).reshape(len(address), -1)
        address[:, : rows.shape[1]] = (rows & self.inside) << self.element_bits
        address[~takes_part.any(axis=1)] = -1
        registers = tuple(
            self.number_at[start ^ unit ^ i]
            for start in starts
            for unit in ((0, self.pair) if self.pair else (0,))
            for i in range(1 << self.move.own)
        )
        operation = self.move.operation(self.element_bits, len(starts))
        return self._instruction(number, registers, address, operation)

    def _instruction(
        self, number: int, registers: tuple[int, ...], address: IntArray, operation: Operation
    ) -> Instruction:
        stores = self.move.side.stores
        width = operation.width_bytes
        if operation.matrices:
            op, width = operation.text, WORD_BYTES * operation.matrices
        else:
            vector = f".v{width // 4}" if width > 4 else ""
            op = f"{'st' if stores else 'ld'}.shared{vector}.b{min(width, 4) * 8}"
        return Instruction("store" if stores else "load", op, operation, width, number, registers, address)
