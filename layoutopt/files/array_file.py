"""Arrays of integers in .npy files, which are mapped, not loaded."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.escape import shown

# Larger than every shared memory, and far from where arithmetic on bits of 64-bit integers wraps.
MAX_OFFSET_BYTES: Final = 1 << 40


def opened(path: Path, field: str = "") -> npt.NDArray[Any]:
    """The array in an .npy file, mapped for reading.

    Args:
        path: the file.
        field: the option that names it, for errors.

    Raises:
        ProblemFileError: it is no such file, or longer or shorter than its header says.
    """
    why, wrong = "it is no regular file", f"{str(path)!r} is no whole .npy file"
    try:
        size = path.stat().st_size
        array = open_memmap(path, mode="r") if path.is_file() else None
    except OSError as error:
        raise ProblemFileError(field, f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except Exception as error:  # whatever a literal in the header does to the parsers behind it
        array, why = None, shown(" ".join(str(error).split()), 200)
    if array is None:
        raise ProblemFileError(field, f"{wrong}: {why}")
    if behind := size - array.offset - array.nbytes:
        raise ProblemFileError(field, f"{wrong}: {behind:,} bytes follow the array")
    return array


def read_offsets(path: Path, shape: Sequence[int], field: str) -> IntArray:
    """Byte offsets of every element, int64, from an .npy file of integers.

    Args:
        path: the file.
        shape: of the tile, which the array must have.
        field: the option that names the file, for errors.

    Raises:
        ProblemFileError: the file holds no such array.
    """
    array = opened(path, field)
    if array.shape != tuple(shape) or array.dtype.kind not in "iu":
        given = f"{array.dtype} of shape {shape_text(array.shape)}"
        raise ProblemFileError(field, f"expected integers of shape {shape_text(shape)}, got {given}")
    if array.min() < -MAX_OFFSET_BYTES or array.max() > MAX_OFFSET_BYTES:
        raise ProblemFileError(field, f"an offset has at most {MAX_OFFSET_BYTES} bytes")
    return np.array(array, np.int64, order="C")


def shape_text(shape: Sequence[int]) -> str:
    """A shape as in Python, shortened."""
    extents = [str(n) if n < 1 << 64 else "more" for n in shape[:8]]
    return f"({', '.join([*extents, '...'] if len(shape) > 8 else extents)}{',' * (len(shape) == 1)})"


def offsets_file(offsets: IntArray | Mapping[str, IntArray]) -> bytes:
    """The .npy file of a table of byte offsets, or the .npz archive of several by name."""
    buffer = io.BytesIO()
    if isinstance(offsets, Mapping):
        arrays: dict[str, Any] = dict(offsets)
        np.savez(buffer, **arrays)
    else:
        np.save(buffer, offsets)
    return buffer.getvalue()
