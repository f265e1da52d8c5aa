"""Arrays of integers in .npy files: the header is checked against the file before anything is loaded."""

from __future__ import annotations

import io
import math
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.lib import format as npy

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray

MAGIC: Final = b"\x93NUMPY"
# Larger than every shared memory, and far from where arithmetic on bits of 64-bit integers wraps.
MAX_OFFSET_BYTES: Final = 1 << 40
MAX_DIMENSIONS: Final = 32  # of arrays, in every version of NumPy
_HEADERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Header(NamedTuple):
    """What a file says that it holds; it has the bytes for it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def is_array(path: Path) -> bool:
    """Whether a file is meant as one of these, by its name or its first bytes; a pipe is none."""
    try:
        if not path.is_file():
            return False  # whoever reads it as something else says why
        with open(path, "rb") as file:
            return path.suffix == ".npy" or file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def header(path: Path, field: str = "") -> Header:
    """The header of an .npy file.

    Args:
        path: the file.
        field: the option that names it, for errors.

    Raises:
        ProblemFileError: it is no such file, or longer or shorter than its header says.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _wrong(path, field, "no regular file")
            shape, dtype = _read_header(path, field, file)
            left = status.st_size - file.tell()
    except OSError as error:
        raise ProblemFileError(field, f"cannot read {str(path)!r}: {error.strerror or error}") from None
    needed = math.prod(shape) * dtype.itemsize
    if needed != left:
        what = f"shape {shape_text(shape)} of {dtype.str}"
        raise _wrong(path, field, f"its header announces {what}, and not so many bytes follow")
    return Header(shape, dtype)


def read_offsets(path: Path, shape: Sequence[int], field: str) -> IntArray:
    """Byte offsets of every element, int64, from an .npy file of integers.

    Args:
        path: the file.
        shape: of the tile, which the array must have.
        field: the option that names the file, for errors.

    Raises:
        ProblemFileError: the file holds no such array.
    """
    found = header(path, field)
    if found.shape != tuple(shape) or found.dtype.kind not in "iu":
        given = f"{found.dtype} of shape {shape_text(found.shape)}"
        raise ProblemFileError(field, f"expected integers of shape {shape_text(shape)}, got {given}")
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _wrong(path, field, str(error)) from None
    if array.min() < -MAX_OFFSET_BYTES or array.max() > MAX_OFFSET_BYTES:
        raise ProblemFileError(field, f"an offset has at most {MAX_OFFSET_BYTES} bytes")
    return np.ascontiguousarray(array, np.int64)


def _read_header(path: Path, field: str, file: BinaryIO) -> Header:
    try:
        shape, _, dtype = _HEADERS[npy.read_magic(file)](file)
    except Exception:  # whatever a literal does to the parsers behind it
        raise _wrong(path, field, "its header cannot be read") from None
    if min(shape, default=0) < 0 or len(shape) > MAX_DIMENSIONS:
        raise _wrong(path, field, "its header cannot be read")
    return Header(shape, dtype)


def shape_text(shape: Sequence[int]) -> str:
    """A shape as in Python, shortened."""
    extents = [str(n) if n < 1 << 64 else "more" for n in shape[:8]]
    return f"({', '.join([*extents, '...'] if len(shape) > 8 else extents)}{',' * (len(shape) == 1)})"


def _wrong(path: Path, field: str, reason: str) -> ProblemFileError:
    return ProblemFileError(field, f"{str(path)!r} is no whole .npy file: {reason}")


def offsets_file(table: IntArray) -> bytes:
    """The .npy file of a table of byte offsets."""
    buffer = io.BytesIO()
    np.save(buffer, table)
    return buffer.getvalue()


def named_offsets_file(tables: Mapping[str, IntArray]) -> bytes:
    """The .npz archive of several tables of byte offsets, by name."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = dict(tables)
    np.savez(buffer, **arrays)
    return buffer.getvalue()
