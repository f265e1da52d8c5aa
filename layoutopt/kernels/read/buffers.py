"""Contents of global memory that a launch is told: arrays of files, and fills."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.errors import ProblemFileError
from layoutopt.files.array_file import header
from layoutopt.ground.escape import shown
from layoutopt.kernels.program import Program
from layoutopt.kernels.read.names import parameter_types

MAX_BYTES: Final = 1 << 28
# A fill has as many: what lies behind is unknown.
FILL_BYTES: Final = 1 << 24

_TYPES: Final = {
    "float": np.float32, "double": np.float64, "int": np.int32, "unsigned int": np.uint32, "long": np.int64,
    "unsigned long": np.uint64, "long long": np.int64, "unsigned long long": np.uint64, "short": np.int16,
    "unsigned short": np.uint16, "char": np.int8, "signed char": np.int8, "unsigned char": np.uint8,
}  # fmt: skip


def buffer(program: Program, name: str, text: str) -> npt.NDArray[Any]:
    """What a pointer parameter points to.

    Args:
        program: the kernel; the type of a fill's elements is that of the parameter where its name says it,
            else a 32-bit integer.
        name: position or name of the parameter.
        text: a file, or `zeros`, `iota` (0, 1, 2, ...) or `random:SEED` (integers of all sizes, floats from
            0 to 1).

    Raises:
        ProblemFileError: the file cannot be read or is too large.
    """
    match = re.fullmatch(r"(zeros|iota|random)(?::(\d{1,9}))?", text)
    if match is None:
        return _file(Path(text))
    kind = _element(program, name)
    count = FILL_BYTES // kind.itemsize
    if match[1] == "zeros":
        return np.zeros(count, kind)
    if match[1] == "iota":
        return np.arange(count).astype(kind)
    random = np.random.default_rng(int(match[2] or 0))
    if kind.kind == "f":
        return random.random(count).astype(kind)
    return random.integers(0, 256, FILL_BYTES, np.uint8).view(kind)


def _element(program: Program, name: str) -> np.dtype[Any]:
    types = parameter_types(program.title) or []
    if name.isdecimal() and len(name) < 6 and int(name) < len(types):
        plain = types[int(name)].replace("const", "").replace("__restrict", "").replace("*", "").strip()
        return np.dtype(_TYPES.get(plain, np.int32))
    return np.dtype(np.int32)


def _file(path: Path) -> npt.NDArray[Any]:
    found = header(path, "--data")
    if found.dtype.hasobject:
        raise ProblemFileError("--data", f"{shown(str(path))} holds objects, no numbers")
    if int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize > MAX_BYTES:
        raise ProblemFileError("--data", f"{shown(str(path))} has more than {MAX_BYTES:,} bytes")
    array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    return array
