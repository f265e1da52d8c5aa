"""Answers out of JSON files: read, and refused where they contradict themselves.

A result is rebuilt from its layout alone. What stands beside it (bytes, offset, totals) is for readers,
reaches comments of code, and must be what the layout gives.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import numpy as np

from layoutopt.errors import ExpressionError, LayoutError, ProblemFileError
from layoutopt.expressions.grammar import coordinates, parse, tabulated, to_text
from layoutopt.files.checks import MAX_ELEMENTS
from layoutopt.ground import json_data
from layoutopt.ground.escape import shown
from layoutopt.layout.formula import element_expression
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import (
    ARRANGEMENT_SCHEMA,
    RESULT_SCHEMA,
    Arrangement,
    PlacedTile,
    Result,
    Status,
)

# Of a tile, pads included; far more than any GPU has, far less than integers of 64 bits hold.
MAX_BYTES: Final = 1 << 32
_ROUNDING: Final = 1e-6  # of sums of weights and expectations


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


def is_answer(raw: Any) -> bool:
    """Whether decoded JSON data is what `solve --json` prints."""
    return isinstance(raw, dict) and raw.get("schema") in (RESULT_SCHEMA, ARRANGEMENT_SCHEMA)


def answer_from_data(raw: Any) -> Result | Arrangement:
    """The answer to a problem of one tile or of several; as `result_from_data`."""
    several = isinstance(raw, dict) and raw.get("schema") == ARRANGEMENT_SCHEMA
    return arrangement_from_data(raw) if several else result_from_data(raw)


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
        beside = f"{result.status}, and {'no' if layout is None else 'a'} layout beside it"
        raise ProblemFileError("status", beside)
    if layout is None:
        _check_bounds(result, found=False)
        return result
    size = int(layout.table().max()) + layout.element_bytes
    total = _total([access.excess for access in result.accesses])
    required = {"bytes": size, "declared_bytes": max(size, layout.declared_bytes), "excess": total}
    for field, value in required.items():
        if (given := getattr(result, field)) != value:
            raise ProblemFileError(field, f"the layout gives {value}, not {given}")
    alignment = result.alignment_bytes or 0
    if alignment < 1 or alignment & (alignment - 1) or alignment > MAX_BYTES:
        raise ProblemFileError("alignment_bytes", f"expected a power of two, given {result.alignment_bytes}")
    _check_bounds(result, found=True)
    _check_offset(layout, result.offset)
    for k, access in enumerate(result.accesses):
        if access.bank_conflicts < 0:
            raise ProblemFileError(f"accesses[{k}].bank_conflicts", f"{access.bank_conflicts} are none")
        if _total([access.ideal, access.excess]) != _total([access.wavefronts]) or access.excess < 0:
            apart = f"{access.ideal} of them ideal, are not {access.excess} more"
            raise ProblemFileError(f"accesses[{k}].excess", f"{access.wavefronts} wavefronts, {apart}")
    return msgspec.structs.replace(result, layout=layout)


def _check_bounds(result: Result, *, found: bool) -> None:
    """Check that no bound is above what the layout has, and none of an optimal one below it."""
    proof = result.proof
    for field, bound, value, decides in (
        ("excess", proof.excess, result.excess, proof.weighted_excess is None),
        ("weighted_excess", proof.objective, result.weighted_excess, True),
        ("bytes", proof.bytes, result.bytes, True),
    ):
        if value is not None and not found:
            raise ProblemFileError(field, f"{value}, and no layout beside it")
        least = bound.lower_bound
        if least < 0 or (value is not None and least > value + _ROUNDING):
            least_of = "0" if least < 0 else f"at most what the layout has, {value}"
            raise ProblemFileError(f"proof.{field}.lower_bound", f"expected {least_of}, given {least}")
        if result.status is Status.OPTIMAL and decides and value is not None and least < value - _ROUNDING:
            raise ProblemFileError("status", f"optimal, and proof.{field} is {least}, less than {value}")


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
    grids = coordinates(layout.shape)
    try:
        values = tabulated(parse(text or "", frozenset(grids)), layout.shape)
    except ExpressionError as error:
        raise ProblemFileError("offset", error.reason) from None
    if (values != layout.element_offset(*grids.values())).any():
        raise ProblemFileError("offset", f"{shown(text or '')} is not what the layout gives")


def _total(numbers: list[int | float]) -> int | float:
    """A sum as results print it: rounded where expectations are added."""
    return round(sum(numbers), 6)


def arrangement_from_data(raw: Any) -> Arrangement:
    """An arrangement from decoded JSON data, as `solve --json` prints it.

    Raises:
        ProblemFileError: the data is no arrangement, or says of a layout what does not hold.
    """
    if not isinstance(raw, dict) or raw.get("schema") != ARRANGEMENT_SCHEMA:
        raise ProblemFileError("schema", f"expected {ARRANGEMENT_SCHEMA!r}, as `solve --json` prints")
    arrangement = json_data.convert(raw, Arrangement)
    if bool(arrangement.tiles) != (arrangement.status in (Status.OPTIMAL, Status.FEASIBLE)):
        beside = "tiles" if arrangement.tiles else "no tiles"
        raise ProblemFileError("status", f"{arrangement.status}, and {beside} beside it")
    if not arrangement.tiles and (arrangement.bytes, arrangement.excess) != (None, None):
        raise ProblemFileError("tiles", "there are none, and bytes or an excess of them")
    placed = []
    for k, (part, own) in enumerate(zip(arrangement.tiles, raw.get("tiles", ()), strict=True)):
        try:
            part = msgspec.structs.replace(part, result=result_from_data(own["result"]))
        except ProblemFileError as error:
            raise ProblemFileError(f"tiles[{k}].result.{error.field}", error.reason) from None
        _check_place(part, f"tiles[{k}]")
        placed.append(part)
    if placed:
        end = max(place.end for part in placed for place in part.places)
        alignment = arrangement.alignment_bytes or 0
        if arrangement.bytes != end:
            raise ProblemFileError("bytes", f"the tiles end at byte {end}, not {arrangement.bytes}")
        if any(alignment % (part.result.alignment_bytes or 1) for part in placed) or alignment < 1:
            expected = f"expected a multiple of those of the tiles, got {alignment}"
            raise ProblemFileError("alignment_bytes", expected)
    return msgspec.structs.replace(arrangement, tiles=tuple(placed))


def _check_place(part: PlacedTile, field: str) -> None:
    if part.result.layout is None:
        raise ProblemFileError(f"{field}.result.layout", "expected a layout")
    if part.tiles != tuple(place.tile for place in part.places) or not part.tiles:
        raise ProblemFileError(f"{field}.places", f"expected one of each of {', '.join(part.tiles)}")
    for k, place in enumerate(part.places):
        step = place.bytes if place.stages > 1 else 1  # stages do not lie in one another
        for name, least in (("base_bytes", 0), ("stages", 1), ("bytes", 1), ("stage_bytes", step)):
            if not least <= (given := getattr(place, name)) <= MAX_BYTES:
                expected = f"expected {least} to {MAX_BYTES}, got {given}"
                raise ProblemFileError(f"{field}.places[{k}].{name}", expected)
    bases = tuple(place.base_bytes for place in part.places)
    stage = max(place.stage_bytes for place in part.places)
    for name, value in (("base_bytes", bases[0]), ("bases_bytes", bases), ("stage_bytes", stage)):
        if getattr(part, name) != value:
            raise ProblemFileError(f"{field}.{name}", f"expected {value}, as `places` has it")
