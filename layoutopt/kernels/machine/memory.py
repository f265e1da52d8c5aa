"""Memories by byte: what they hold, what of it is unknown, and who wrote it when."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.values import Bits, Bools, Value, hidden_where, made

# Shared memory of the blocks of a cluster lies so far apart, of so many at most.
_CLUSTER_STEP: Final = 1 << 24
_MOST_CLUSTER: Final = 16
# Who wrote a byte, where it is no single warp.
_NOBODY: Final = -1
_SEVERAL: Final = -2


def check_reach(named: str, last: int, width_bytes: int, end: int) -> None:
    """Refuse a step that accesses bytes at its last address behind the end of a block's shared memory."""
    if _CLUSTER_STEP <= last < _MOST_CLUSTER * _CLUSTER_STEP:
        raise ProblemFileError("", f"{named} reaches shared memory of another block of the cluster")
    if (reached := last + width_bytes) > end:
        raise ProblemFileError(
            "--shared",
            f"{named} reaches byte {reached:,} of shared memory, and a block has {end:,}: "
            "give the bytes of dynamic shared memory that the launch asks for",
        )


class Bytes:
    """Rows of bytes of one length: a row a block (shared), a lane (local), or one for all (constant, global).

    Args:
        rows: how many.
        size: bytes of a row.
        content: what every row holds at first; unknown if not given.
    """

    def __init__(self, rows: int, size: int, content: bytes | None = None) -> None:
        self.size = size
        self._data = np.zeros((rows, size), np.uint8)
        self._hidden = np.full((rows, size), 0xFF, np.uint8)
        if content is not None:
            self._data[:] = np.frombuffer(content[:size].ljust(size, b"\0"), np.uint8)
            self._hidden[:, : len(content)] = 0

    @property
    def bytes(self) -> int:
        """Of all rows."""
        return self._data.size

    def merge(self, one: Bytes, other: Bytes) -> None:
        """Hold what both hold; what differs is unknown."""
        differs = (one._data != other._data) | (one._hidden != other._hidden)
        self._data = np.where(differs, np.uint8(0), one._data)
        self._hidden = np.where(differs, np.uint8(0xFF), one._hidden)

    def hide(self, row: Any, start: int, size: int) -> None:
        """Bytes become unknown."""
        self._data[row, start : start + size] = 0
        self._hidden[row, start : start + size] = 0xFF

    def inside(self, address: IntArray, width: int) -> Bools:
        """Which accesses lie within a row."""
        return (address >= 0) & (address <= self.size - width)

    def load(self, row: IntArray, address: IntArray, width: int) -> Value:
        """Little-endian numbers of `width` (1 to 8) bytes; unknown where the address is outside.

        `address` is of shape (warps, 32), and `row` broadcasts to it.
        """
        here = self.inside(address, width)
        at = np.where(here, address, 0)[..., None] + np.arange(width)
        rows = np.broadcast_to(row, address.shape)[..., None]
        bits = _number(self._data[rows, at])
        return hidden_where(~here, made(bits, _number(self._hidden[rows, at]), 8 * width), 8 * width)

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


def _number(parts: npt.NDArray[np.uint8]) -> Bits:
    """Bytes along the last axis, the lowest first, as numbers."""
    total = parts[..., 0].astype(np.uint64)
    for k in range(1, parts.shape[-1]):
        total |= parts[..., k].astype(np.uint64) << np.uint64(8 * k)
    return total


def _bytes(bits: Bits, shape: tuple[int, ...], where: Bools, width: int) -> npt.NDArray[np.uint8]:
    chosen = np.ascontiguousarray(np.broadcast_to(bits, shape)[where])
    return chosen[:, None].view(np.uint8).reshape(len(chosen), 8)[:, :width]


class Writers:
    """Which warp last wrote each byte of shared memory, and whether another warp may rely on it.

    Every warp has a clock that tells, for each other warp of its block, up to when it has waited for it: at
    a barrier the warps that meet learn all that each of them knows.
    """

    def __init__(self, blocks: int, warps: int, size: int) -> None:
        self._warps = warps
        self._when = np.zeros((blocks, size), np.int64)
        self._who = np.full((blocks, size), _NOBODY, np.int16)
        self._seen = np.zeros((blocks, warps, warps), np.int64)
        self._now = 1

    def wrote(self, block: IntArray, warp: IntArray, address: IntArray, width: int, where: Bools) -> None:
        """The warps (one a row of `address`) write."""
        late = self.unsure(block, warp, np.where(where, address, 0), width)[where]
        self._now += 1
        at = address[where][:, None] + np.arange(width)
        rows = np.broadcast_to(block[:, None], address.shape)[where][:, None]
        who = np.broadcast_to(warp[:, None], address.shape)[where]
        self._when[rows, at] = self._now
        self._who[rows, at] = np.where(late, _SEVERAL, who)[:, None]

    def merge(self, one: Writers, other: Writers) -> None:
        """What is sure after either of two ways: the latest writer counts, and the least that was seen."""
        self._when = np.maximum(one._when, other._when)
        self._who = np.where(one._who == other._who, one._who, np.int16(_SEVERAL))
        self._seen = np.minimum(one._seen, other._seen)
        self._now = max(one._now, other._now)

    def unsure(self, block: IntArray, warp: IntArray, address: IntArray, width: int) -> Bools:
        """Where a byte was written by another warp that the reader has not waited for since."""
        at = address[..., None] + np.arange(width)
        rows = block[:, None, None]
        who = self._who[rows, at]
        seen = self._seen[rows, warp[:, None, None], np.maximum(who, 0)]
        if (who == _SEVERAL).any():
            seen = np.where(who == _SEVERAL, self._seen[block, warp].min(axis=1)[:, None, None], seen)
        other = (who != _NOBODY) & (who != warp[:, None, None])
        late: Bools = (other & (self._when[rows, at] > seen)).any(axis=-1)
        return late

    def met(self, block: int, warps: IntArray) -> None:
        """These warps of a block wait for each other."""
        self._now += 1
        seen = self._seen[block]
        known = seen[warps].max(axis=0)
        known[warps] = self._now
        seen[warps] = known
