"""Register layouts as callers have them: bases, a Triton object or its text, a CuTe thread-value layout."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from layoutopt.accesses.array_access import Bases
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.bits import held_coordinates
from layoutopt.ground import json_data
from layoutopt.ground.arrays import IntArray
from layoutopt.imports import cute, triton

# A line of a printed LinearLayout: `- lane=4 -> (1, 0)`, the dash where a part begins.
_STEP: Final = re.compile(r"(?:-\s*)?(\w+)=(\d+)\s*->\s*\(([-\d,\s]*)\)")


def bases_of(given: Any, shape: Sequence[int], lanes: int, field: str) -> Bases:
    """A register layout by what each bit of a register, lane and warp adds to the coordinates.

    Args:
        given: bases, also as a mapping; Triton's `LinearLayout` or what it prints; any distributed layout as
            Triton or Gluon prints it; a CuTe thread-value layout or what it prints.
        shape: of the tile.
        lanes: of a warp.
        field: what it was given as, for errors.

    Raises:
        ProblemFileError: it is none of these, or not linear over F2.
    """
    if isinstance(given, Bases):
        return given
    pairs = getattr(given, "bases", None)
    if isinstance(pairs, list):  # Triton's LinearLayout: parts and their vectors
        given = dict(pairs)
    if isinstance(given, Mapping):  # of one block, `block` is empty
        parts = {part: vectors for part, vectors in given.items() if part != "block" or vectors}
        return json_data.convert(parts, Bases, field)
    text = str(given)
    try:
        if "->" in text:
            return json_data.convert(_printed(text), Bases, field)
        if re.match(r"\s*\(", text):
            return _of_coordinates(cute.thread_values(text, shape), lanes)
        return json_data.convert(triton.linear_bases(text, shape, lanes), Bases, field)
    except ProblemFileError as error:
        raise ProblemFileError(field, error.reason) from None


def _printed(text: str) -> dict[str, list[list[int]]]:
    """The bases of a printed LinearLayout."""
    bases: dict[str, list[list[int]]] = {}
    for part, value, vector in _STEP.findall(text):
        vectors = bases.setdefault(part, [])
        if int(value) != 1 << len(vectors):
            raise ProblemFileError("", f"expected {part}={1 << len(vectors)}, got {part}={value}")
        vectors.append([int(x) for x in vector.split(",") if x.strip()])
    return bases


def _of_coordinates(coordinates: IntArray, lanes: int) -> Bases:
    """The bases of a table of coordinates, shape (threads, values, dimensions)."""
    numbered = {"register": coordinates[0], "lane": coordinates[:lanes, 0], "warp": coordinates[::lanes, 0]}
    if not any(len(of_part) & (len(of_part) - 1) for of_part in numbered.values()):
        bases = {
            part: tuple(tuple(map(int, of_part[1 << k])) for k in range(len(of_part).bit_length() - 1))
            for part, of_part in numbered.items()
        }
        if np.array_equal(held_coordinates(bases, coordinates.shape[2]), coordinates):
            return Bases(**bases)
    raise ProblemFileError("", "the layout is not linear over F2")
