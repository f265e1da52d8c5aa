"""Memories by byte: what they hold, what of it is unknown, and which warps may rely on it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.groups import NOBODY
from layoutopt.kernels.machine.values import Bits, Bools, Value, hidden_where, made, mask_of, unknown
from layoutopt.kernels.program import CLUSTER_BITS, MOST_CLUSTER, MOST_SHARED_BYTES, Program


def check_reach(named: str, last: int, width_bytes: int, program: Program, dynamic_bytes: int) -> None:
    """Refuse a step that accesses bytes at its last address behind the end of a block's shared memory."""
    end = program.shared_end(dynamic_bytes)
    if 1 << CLUSTER_BITS <= last < MOST_CLUSTER << CLUSTER_BITS:
        raise ProblemFileError("", f"{named} reaches shared memory of another block of the cluster")
    if (reached := last + width_bytes) <= end:
        return
    needed = reached - end + dynamic_bytes
    dynamic = f"at least --shared {needed}" if needed <= MOST_SHARED_BYTES else "--shared BYTES"
    if not dynamic_bytes and len(program.arrays) == 1:
        (array,) = program.arrays
        reaches = f"{array.name} has {array.size:,} bytes, and {named} reaches byte {reached - array.start:,}"
        asked = f"is --block right? (if it has dynamic memory, too: {dynamic})"
        raise ProblemFileError("--block", f"{reaches} of it: {asked}")
    reaches = f"{named} reaches byte {reached:,} of shared memory, and a block has {end:,}"
    asked = f"give its dynamic shared memory ({dynamic}), or a block of another shape (--block)"
    raise ProblemFileError("--shared", f"{reaches}: {asked}")


class Bytes:
    """Rows of bytes of one length: a row a block (shared), a lane (local), or one for all (constant, global).

    Each byte of shared memory has a mask of the warps that may not rely on it, because another one wrote it
    and they have not waited for that since. Warps that wait for each other learn all that each of them knows.

    Args:
        rows: how many.
        size: bytes of a row.
        content: what every row holds at first; unknown if not given.
        given: which bytes of it are known, shape (size,); None for all.
        warps: of a block, for shared memory; 0 for memory that every warp may rely on.
    """

    def __init__(
        self,
        rows: int,
        size: int,
        content: bytes | None = None,
        given: Bools | None = None,
        warps: int = 0,
    ) -> None:
        self.size = size
        self._data = np.zeros((rows, size), np.uint8)
        self._hidden = np.full((rows, size), 0xFF, np.uint8)
        self._everyone = np.uint32((1 << warps) - 1)
        self._late = np.zeros((rows, size if warps else 0), np.uint32)
        if content is not None:
            self._data[:] = np.frombuffer(content[:size].ljust(size, b"\0"), np.uint8)
            self._hidden[:, : len(content)] = 0
        if given is not None:
            self.hide(slice(None), ~given)

    @property
    def bytes(self) -> int:
        """Of all rows."""
        return self._data.size

    def differs(self, other: "Bytes") -> tuple[int, int]:
        """Bytes that differ, or are known in one alone, and bytes that are known in neither."""
        apart = (self._data != other._data) | (self._hidden != other._hidden)
        return int(apart.sum()), int((self._hidden & other._hidden != 0).sum())

    def merge(self, one: "Bytes", other: "Bytes") -> None:
        """Hold what both hold; what differs is unknown, and relied on by those who may in both."""
        differs = (one._data != other._data) | (one._hidden != other._hidden)
        self._data = np.where(differs, np.uint8(0), one._data)
        self._hidden = np.where(differs, np.uint8(0xFF), one._hidden)
        self._late = one._late | other._late

    def late(self, row: IntArray, warp: IntArray, address: IntArray, width: int) -> Bools:
        """Where another warp wrote a byte and the reader has not waited for it since."""
        if not self._everyone:
            return NOBODY
        at = np.clip(address, 0, self.size - width)[..., None] + np.arange(width)
        masks = self._late[row[..., None], at]
        found: Bools = (masks >> warp[..., None].astype(np.uint32) & 1).any(axis=-1)
        return found

    def wrote(self, row: IntArray, warp: IntArray, address: IntArray, width: int, where: Bools) -> None:
        """The warps write there; of one that writes late it is not known whose bytes stay."""
        if not self._everyone:
            return
        where = where & self.inside(address, width)
        at = address[where][:, None] + np.arange(width)
        rows, mine = (np.broadcast_to(part, address.shape)[where][:, None] for part in (row, warp))
        own = np.uint32(1) << mine.astype(np.uint32)
        late = (self._late[rows, at] & own).any(axis=1, keepdims=True)
        self._late[rows, at] = np.where(late, self._everyone, self._everyone & ~own)

    def met(self, warps: Bools) -> None:
        """These warps of each block, shape (blocks, warps), waited for each other."""
        for block in np.flatnonzero(warps.any(axis=1)).tolist() if self._everyone else ():
            those = mask_of(np.pad(warps[block], (0, 32 - warps.shape[1])))[0].astype(np.uint32)
            late = self._late[block]
            known = (late & those != those) | (those == self._everyone)
            self._late[block] = np.where(known, late & ~those, late)

    def hide(self, row: Any, at: Any = slice(None)) -> None:
        """Bytes become unknown."""
        self._data[row, at] = 0
        self._hidden[row, at] = 0xFF

    def inside(self, address: IntArray, width: int) -> Bools:
        """Which accesses lie within a row."""
        return (address >= 0) & (address <= self.size - width)

    def load(self, row: IntArray, address: IntArray, width: int) -> Value:
        """Little-endian numbers of `width` (1 to 8) bytes; unknown where the address is outside.

        `address` is of shape (warps, 32), and `row` broadcasts to it.
        """
        if width > self.size:  # all are outside
            return unknown(8 * width)
        here = self.inside(address, width)
        at = np.where(here, address, 0)
        bits, hidden = (_numbers(table, row, at, width) for table in (self._data, self._hidden))
        return hidden_where(~here, made(bits, hidden, 8 * width), 8 * width)

    def store(self, row: IntArray, address: IntArray, width: int, value: Value, where: Bools) -> None:
        """Write numbers of `width` bytes; bytes that lanes give different values become unknown."""
        where = where & self.inside(address, width)
        rows = np.broadcast_to(row, address.shape)[where][:, None]
        at = address[where][:, None] + np.arange(width)
        data, hidden = (_bytes(part, address.shape, where, width) for part in value[:2])
        self._data[rows, at] = data
        self._hidden[rows, at] = hidden
        clash = (self._data[rows, at] != data) | (self._hidden[rows, at] != hidden)
        if clash.any():
            self._data[np.broadcast_to(rows, at.shape)[clash], at[clash]] = 0
            self._hidden[np.broadcast_to(rows, at.shape)[clash], at[clash]] = 0xFF


def _numbers(table: npt.NDArray[np.uint8], row: IntArray, at: IntArray, width: int) -> Bits:
    """Bytes in a row from these on, the lowest first, as numbers."""
    if table.shape[1] % width == 0 and not (at & (width - 1)).any():
        return table.view(f"<u{width}")[row, at // width].astype(np.uint64)
    parts = table[row[..., None], at[..., None] + np.arange(width)].astype(np.uint64)
    found: Bits = np.bitwise_or.reduce(parts << (8 * np.arange(width, dtype=np.uint64)), axis=-1)
    return found


def _bytes(bits: Bits, shape: tuple[int, ...], where: Bools, width: int) -> npt.NDArray[np.uint8]:
    chosen = np.ascontiguousarray(np.broadcast_to(bits, shape)[where])
    return chosen[:, None].view(np.uint8).reshape(len(chosen), 8)[:, :width]
