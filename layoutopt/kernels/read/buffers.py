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
from layoutopt.kernels.number_types import element_type
from layoutopt.kernels.program import Program

MAX_BYTES: Final = 1 << 28
# A fill has as many: what lies behind is unknown.
FILL_BYTES: Final = 1 << 24


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
    if kind.kind == "b":
        return random.integers(0, 2, count).astype(kind)
    return random.integers(0, 256, FILL_BYTES, np.uint8).view(kind)


def _element(program: Program, name: str) -> np.dtype[Any]:
    listed = [(str(k), p.name, f"+{p.offset}", p.type) for k, p in enumerate(program.parameters or ())]
    kind = next((element_type(kind) for *names, kind in listed if name in names), None)
    return np.dtype(np.int32) if kind is None else kind


def _file(path: Path) -> npt.NDArray[Any]:
    found = header(path, "--data")
    if found.dtype.hasobject:
        raise ProblemFileError("--data", f"{shown(str(path))} holds objects, no numbers")
    if int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize > MAX_BYTES:
        raise ProblemFileError("--data", f"{shown(str(path))} has more than {MAX_BYTES:,} bytes")
    array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    return array
