"""Results out of JSON files: read, and refused where they contradict themselves.

A result is rebuilt from its layout alone. What stands beside it (bytes, offset, totals) is for readers,
reaches comments of code, and must be what the layout gives.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import numpy as np

from layoutopt.errors import ExpressionError, LayoutError, ProblemFileError
from layoutopt.expressions.grammar import evaluate, parse, to_text
from layoutopt.ground import json_data
from layoutopt.ground.escape import shown
from layoutopt.layout.formula import element_expression
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import RESULT_SCHEMA, Result, Status
from layoutopt.problems.file import MAX_ELEMENTS

# Of a tile, pads included; far more than any GPU has, far less than integers of 64 bits hold.
MAX_BYTES: Final = 1 << 32


def layout_from_data(raw: Any) -> Layout:
    """A layout from decoded JSON data, whose table can be computed.

    Raises:
        ProblemFileError: the data is no layout, a number is out of range, or elements overlap.
    """
    if not isinstance(raw, dict):
        raise ProblemFileError("layout", "expected the layout that `solve --json` prints, an object")
    try:
        layout = json_data.convert(raw, Layout, "layout")
        _check_sizes(layout)
    except LayoutError as error:
        raise ProblemFileError("layout", str(error)) from None
    starts = np.sort(layout.table()[..., :: layout.packed], axis=None)
    if (np.diff(starts) < layout.element_bytes).any():
        raise ProblemFileError("layout", "elements overlap")
    return layout


def result_from_data(raw: Any) -> Result:
    """A result from decoded JSON data, as `solve --json` prints it.

    Raises:
        ProblemFileError: the data is no result, or says of its layout what does not hold.
    """
    if not isinstance(raw, dict) or raw.get("schema") != RESULT_SCHEMA:
        raise ProblemFileError("schema", f"expected {RESULT_SCHEMA!r}, as `solve --json` prints")
    layout = None if raw.get("layout") is None else layout_from_data(raw["layout"])
    result = json_data.convert({**raw, "layout": None}, Result)
    has = result.status in (Status.OPTIMAL, Status.FEASIBLE)
    if has != (layout is not None):
        raise ProblemFileError(
            "status", f"{result.status}, and {'no' if layout is None else 'a'} layout beside it"
        )
    if layout is None:
        return result
    size = int(layout.table().max()) + layout.element_bytes
    for field, given, required in (
        ("bytes", result.bytes, size),
        ("declared_bytes", result.declared_bytes, max(size, layout.declared_bytes)),
        ("excess", result.excess, _total([access.excess for access in result.accesses])),
    ):
        if given != required:
            raise ProblemFileError(field, f"the layout gives {required}, not {given}")
    alignment = result.alignment_bytes
    if alignment is None or alignment < 1 or alignment & (alignment - 1) or alignment > MAX_BYTES:
        raise ProblemFileError("alignment_bytes", f"expected a power of two, given {alignment}")
    for field, bound, value in (
        ("excess", result.proof.excess, result.excess),
        ("bytes", result.proof.bytes, result.bytes),
    ):
        if value is not None and bound.lower_bound > value:
            raise ProblemFileError(
                f"proof.{field}.lower_bound", f"{bound.lower_bound} is more than what the layout has, {value}"
            )
    _check_offset(layout, result.offset)
    for k, access in enumerate(result.accesses):
        if _total([access.ideal, access.excess]) != _total([access.wavefronts]) or access.excess < 0:
            raise ProblemFileError(
                f"accesses[{k}].excess",
                f"{access.wavefronts} wavefronts, {access.ideal} of them ideal, are not {access.excess} more",
            )
    return msgspec.structs.replace(result, layout=layout)


def _check_sizes(layout: Layout) -> None:
    """Bounds that keep every intermediate value of the table far from where integers wrap.

    Raises:
        LayoutError: the layout is beyond them.
    """
    if math.prod(layout.shape) > MAX_ELEMENTS:
        raise LayoutError(f"at most {MAX_ELEMENTS} elements, not {math.prod(layout.shape)}")
    every, extra = layout.interval
    reach = sum((digit.size - 1) * digit.stride for digit in layout.digits)
    if reach + (reach // every * extra if every else 0) > MAX_BYTES:
        raise LayoutError("elements lie outside what a tile can have")


def _check_offset(layout: Layout, text: str | None) -> None:
    """Check that the text is the layout's formula, or another one of the same table."""
    if text == to_text(element_expression(layout)):
        return
    grids = np.indices(layout.shape, dtype=np.int64, sparse=True)
    env = {f"x{d}": grid for d, grid in enumerate(grids)}
    try:
        values = evaluate(parse(text or "", frozenset(env)), env)
    except ExpressionError as error:
        raise ProblemFileError("offset", error.reason) from None
    if (np.broadcast_to(values, layout.shape) != layout.element_offset(*grids)).any():
        raise ProblemFileError("offset", f"{shown(text or '')} is not what the layout gives")


def _total(numbers: list[int | float]) -> int | float:
    """A sum as results print it: rounded where expectations are added."""
    return round(sum(numbers), 6)
