"""Answers out of JSON files: read, and refused where they contradict themselves.

A result is rebuilt from its layout alone. What stands beside it (bytes, offset, totals) is for readers,
reaches comments of code, and must be what the layout gives.
"""

import math
from typing import Any, Final

import numpy as np

from layoutopt.errors import LayoutError, ProblemFileError, under
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


def is_answer(raw: Any) -> bool:
    """Whether decoded JSON data is what `solve --json` prints."""
    return isinstance(raw, dict) and raw.get("schema") in (RESULT_SCHEMA, ARRANGEMENT_SCHEMA)


def answer_from_data(raw: Any) -> Result | Arrangement:
    """The answer to a problem of one tile or of several from decoded JSON data, as `solve --json` prints it.

    Raises:
        ProblemFileError: the data is no answer, or says of a layout what does not hold.
    """
    several = isinstance(raw, dict) and raw.get("schema") == ARRANGEMENT_SCHEMA
    kind: type[Result | Arrangement] = Arrangement if several else Result
    try:
        answer = json_data.convert(raw, kind)
    except LayoutError as error:
        raise ProblemFileError("layout", str(error)) from None
    if isinstance(answer, Result):
        _check_result(answer)
    else:
        _check_arrangement(answer)
    return answer


def _check_arrangement(arrangement: Arrangement) -> None:
    """Check what an answer of several tiles says of each layout, of the places, and of all together."""
    tiles = arrangement.tiles
    _check_status(arrangement.status, tiles or None, "tiles")
    if not tiles and (arrangement.bytes, arrangement.excess) != (None, None):
        raise ProblemFileError("tiles", "there are none, and bytes or an excess of them")
    for k, layout in enumerate(tiles):
        with under(f"tiles[{k}].result"):
            _check_result(layout.result)
        with under(f"tiles[{k}]"):
            _check_places(layout)
    if tiles:
        end = max(place.end for layout in tiles for place in layout.places)
        alignment = arrangement.alignment_bytes or 0
        if arrangement.bytes != end:
            raise ProblemFileError("bytes", f"the tiles end at byte {end}, not {arrangement.bytes}")
        if any(alignment % (layout.result.alignment_bytes or 1) for layout in tiles) or alignment < 1:
            expected = f"expected a multiple of those of the tiles, got {alignment}"
            raise ProblemFileError("alignment_bytes", expected)


def _check_layout(layout: Layout) -> None:
    """Check that no elements overlap, and that no value on the way to an offset overflows 64 bits."""
    interval, pad = layout.interval
    last = sum((digit.size - 1) * digit.stride for digit in layout.digits)
    if math.prod(layout.shape) > MAX_ELEMENTS:
        raise ProblemFileError("layout", f"at most {MAX_ELEMENTS} elements, not {math.prod(layout.shape)}")
    if last + (last // interval * pad if interval else 0) > MAX_BYTES:
        raise ProblemFileError("layout", "elements lie outside what a tile can have")
    starts = np.sort(layout.table()[..., :: layout.packed], axis=None)
    if (np.diff(starts) < layout.element_bytes).any():
        raise ProblemFileError("layout", "elements overlap")


def _check_status(status: Status, found: object, what: str) -> None:
    """Check that an answer with layouts, and no other, claims to have found some (`what`; None without)."""
    if (status in (Status.OPTIMAL, Status.FEASIBLE)) != (found is not None):
        raise ProblemFileError("status", f"{status}, and {'no ' if found is None else ''}{what} beside it")


def _check_result(result: Result) -> None:
    """Check what a result says beside its layout."""
    layout = result.layout
    _check_status(result.status, layout, "layout")
    if layout is None:
        _check_bounds(result)
        return
    _check_layout(layout)
    size = int(layout.table().max()) + layout.element_bytes
    total = _total([access.excess for access in result.accesses])
    required = {"bytes": size, "declared_bytes": max(size, layout.declared_bytes), "excess": total}
    for field, value in required.items():
        if (given := getattr(result, field)) != value:
            raise ProblemFileError(field, f"the layout gives {value}, not {given}")
    alignment = result.alignment_bytes or 0
    if alignment < 1 or alignment & (alignment - 1) or alignment > MAX_BYTES:
        raise ProblemFileError("alignment_bytes", f"expected a power of two, given {result.alignment_bytes}")
    _check_bounds(result)
    _check_offset(layout, result.offset)
    for k, access in enumerate(result.accesses):
        if access.bank_conflicts < 0:
            raise ProblemFileError(f"accesses[{k}].bank_conflicts", f"{access.bank_conflicts} are none")
        if _total([access.ideal, access.excess]) != _total([access.wavefronts]) or access.excess < 0:
            apart = f"{access.ideal} of them ideal, are not {access.excess} more"
            raise ProblemFileError(f"accesses[{k}].excess", f"{access.wavefronts} wavefronts, {apart}")


def _check_bounds(result: Result) -> None:
    """Check that no bound is above what the layout has, and none of an optimal one below it."""
    proof = result.proof
    for field, bound, value, decides in (
        ("excess", proof.excess, result.excess, proof.weighted_excess is None),
        ("weighted_excess", proof.objective, result.weighted_excess, True),
        ("bytes", proof.bytes, result.bytes, True),
    ):
        if value is not None and result.layout is None:
            raise ProblemFileError(field, f"{value}, and no layout beside it")
        least = bound.lower_bound
        if least < 0 or (value is not None and least > value + _ROUNDING):
            least_of = "0" if least < 0 else f"at most what the layout has, {value}"
            raise ProblemFileError(f"proof.{field}.lower_bound", f"expected {least_of}, given {least}")
        if result.status is Status.OPTIMAL and decides and value is not None and least < value - _ROUNDING:
            raise ProblemFileError("status", f"optimal, and proof.{field} is {least}, less than {value}")


def _check_offset(layout: Layout, text: str | None) -> None:
    """Check that the text is the layout's formula, or another one of the same table."""
    if text == to_text(element_expression(layout)):
        return
    grids = coordinates(layout.shape)
    with under("offset"):
        values = tabulated(parse(text or "", frozenset(grids)), layout.shape)
    if (values != layout.element_offset(*grids.values())).any():
        raise ProblemFileError("offset", f"{shown(text or '')} is not what the layout gives")


def _total(numbers: list[int | float]) -> int | float:
    """A sum as results print it: rounded where expectations are added."""
    return round(sum(numbers), 6)


def _check_places(layout: PlacedTile) -> None:
    """Check that every tile of the layout has one place, within reach, and that the summary says the same."""
    if layout.result.layout is None:
        raise ProblemFileError("result.layout", "expected a layout")
    if layout.tiles != tuple(place.tile for place in layout.places) or not layout.tiles:
        raise ProblemFileError("places", f"expected one of each of {', '.join(layout.tiles)}")
    for k, place in enumerate(layout.places):
        stage = place.bytes if place.stages > 1 else 1  # stages do not overlap
        for name, least in (("base_bytes", 0), ("stages", 1), ("bytes", 1), ("stage_bytes", stage)):
            if not least <= (value := getattr(place, name)) <= MAX_BYTES:
                expected = f"expected {least} to {MAX_BYTES}, got {value}"
                raise ProblemFileError(f"places[{k}].{name}", expected)
    bases = tuple(place.base_bytes for place in layout.places)
    stage = max(place.stage_bytes for place in layout.places)
    for name, value in (("base_bytes", bases[0]), ("bases_bytes", bases), ("stage_bytes", stage)):
        if getattr(layout, name) != value:
            raise ProblemFileError(name, f"expected {value}, as `places` has it")
