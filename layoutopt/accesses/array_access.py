"""Accesses given as arrays, for programs: coordinates of every lane, or the bases of a linear layout.

    {"name": "rows", "op": "store", "bytes": 4,
     "coordinates": [[[0, 0], [0, 1], ...], ...], "active": [[1, 1, ...], ...]}
    {"name": "A", "op": "load",
     "bases": {"register": [[0, 1], [0, 2]], "lane": [[0, 4], ...], "warp": [[16, 0]]}}

Both become ordinary accesses: a formula where one gives the same numbers, else a table.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import astuple

from layoutopt.accesses.ownership import index_fields_by_warp, widest_access
from layoutopt.accesses.trace import MAX_LANE_ACCESSES
from layoutopt.errors import ProblemFileError, under
from layoutopt.expressions.bits import held_coordinates
from layoutopt.ground import json_data
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.hardware.devices import device
from layoutopt.hardware.operations import parse_operation
from layoutopt.problems.types import Access, NamedAccess, Problem

Vector = tuple[int, ...]

MAX_BASES: Final = 22


class ArrayAccess(NamedAccess, frozen=True, kw_only=True):
    """An access by the coordinates that every lane touches."""

    op: Annotated[str, Meta(description="As for other accesses")]
    coordinates: Annotated[
        tuple[tuple[tuple[int, ...], ...], ...],
        Meta(
            description="Of the first element that a lane touches: by warp instruction, lane and dimension; "
            "instructions by iteration, then by warp, so that the first ones are those of warps 0, 1, ..."
        ),
    ]
    active: Annotated[
        tuple[tuple[int | bool, ...], ...] | None,
        Meta(description="By warp instruction and lane; 0: the lane does not take part. All, if left out"),
    ] = None
    bytes: Annotated[int | None, Meta(description="As for other accesses")] = None


class Bases(Struct, frozen=True, forbid_unknown_fields=True):
    """A linear layout: what each bit of a register, lane or warp adds to the coordinates, by XOR."""

    register: tuple[Vector, ...] = ()
    lane: tuple[Vector, ...] = ()
    warp: tuple[Vector, ...] = ()

    def of_block(self, shape: Sequence[int], threads: int, lanes: int) -> dict[str, tuple[Vector, ...]]:
        """The vectors by part, checked for a tile of this shape and a block of `threads` in warps of `lanes`.

        Raises:
            ProblemFileError: a vector leaves the tile, or lanes and warps are not as many as the block has.
        """
        parts = {part: getattr(self, part) for part in self.__struct_fields__}
        for part, vectors in parts.items():
            for k, vector in enumerate(vectors):
                inside = (0 <= x < extent for x, extent in zip(vector, shape, strict=False))
                if len(vector) != len(shape) or not all(inside):
                    expected = f"expected coordinates in {list(shape)}"
                    raise ProblemFileError(f"{part}[{k}]", f"{expected}, got {list(vector)}")
        for part, count in (("lane", lanes), ("warp", -(-threads // lanes))):
            if 1 << len(parts[part]) != count or threads % lanes:
                given = f"{1 << len(self.warp)} of {1 << len(self.lane)}"
                has = f"{threads} threads are {threads // lanes} warps of {lanes} lanes"
                raise ProblemFileError(part, f"{has}, not {given}")
        return parts


class BasesAccess(NamedAccess, frozen=True, kw_only=True):
    """An access in which every thread moves all values that a linear layout gives it, the widest first."""

    op: Annotated[str, Meta(description="load, store or cp.async")]
    bases: Annotated[Bases, Meta(description="Vectors in the tile, as Triton prints linear layouts")]
    bytes: Annotated[int | None, Meta(description="That a thread moves at once; the most possible")] = None


def from_coordinates(data: Mapping[str, Any], head: Problem) -> Access:
    """An access by coordinates, as one with index expressions.

    Args:
        data: fields of an `ArrayAccess`, lists or NumPy arrays by warp instruction, lane and dimension.
        head: a problem with the tile, the threads and the target.

    Raises:
        ProblemFileError: a field is wrong.
    """
    coordinates = _integers(data["coordinates"], "coordinates", ndim=3)
    # The arrays may be large, or NumPy's: they are checked here, all else as the type says.
    other_fields = {key: value for key, value in data.items() if key not in ("coordinates", "active")}
    access = json_data.convert({**other_fields, "coordinates": ()}, ArrayAccess)
    operation = parse_operation(access.op, access.bytes)
    shape, (instructions, lanes, dims) = head.tile.shape, coordinates.shape
    expected = _lanes_of(head.target)
    if expected not in (None, lanes):
        raise ProblemFileError("coordinates", f"expected {expected} lanes on {head.target}, got {lanes}")
    if dims != len(shape):
        raise ProblemFileError("coordinates", f"expected {len(shape)} coordinates for each lane, got {dims}")
    warps = -(-head.threads // lanes)
    # A lane beyond the last thread of the block takes part in nothing. Warps take turns in the instructions.
    has_thread = np.arange(warps * lanes).reshape(warps, lanes) < head.threads
    active = _active(data.get("active"), has_thread[np.arange(instructions) % warps])
    address_lanes = operation.address_lanes(lanes)
    addressing = active & (np.arange(lanes) < address_lanes)
    _check_inside(coordinates, addressing, shape)
    iterations = -(-instructions // warps)
    if iterations * warps * lanes > MAX_LANE_ACCESSES:
        raise ProblemFileError("coordinates", f"more than {MAX_LANE_ACCESSES} lane accesses")
    used = tuple(np.moveaxis(np.where(addressing[..., None], coordinates, 0), -1, 0))
    starts = np.ravel_multi_index(used, shape)
    missing = ((0, iterations * warps - instructions), (0, 0))  # warps of the last iteration: inactive
    starts, active = (np.pad(a, missing).reshape(iterations, warps, lanes) for a in (starts, active))
    fields = ("coordinates", "active")
    found = index_fields_by_warp(starts, active, shape, head.threads, address_lanes, fields)
    return access.ordinary(index=tuple(found["index"]), loops=found.get("for", {}), where=found.get("where"))


def from_bases(data: Mapping[str, Any], head: Problem) -> Access:
    """An access by the bases of a linear layout, as one with index expressions.

    Args:
        data: fields of a `BasesAccess`.
        head: a problem with the tile, the threads and the target.

    Raises:
        ProblemFileError: a field is wrong, or the layout does not go with the tile or the threads.
    """
    access = json_data.convert(data, BasesAccess)
    tile = head.tile
    lanes = _lanes_of(head.target) or 1 << len(access.bases.lane)  # a bit for each vector
    with under("bases"):
        if sum(map(len, astuple(access.bases))) > MAX_BASES:
            raise ProblemFileError("", f"at most {MAX_BASES} vectors")
        parts = access.bases.of_block(tile.shape, head.threads, lanes)
    coordinates = held_coordinates(parts, len(tile.shape))  # shape (threads, registers, dimensions)
    # Each vector lies in the tile, but not their XOR where an extent is no power of two.
    if (coordinates >= np.array(tile.shape)).any():
        raise ProblemFileError("bases", f"the layout leaves the tile {list(tile.shape)}")
    if access.op not in ("load", "store", "cp.async"):
        raise ProblemFileError("op", f"expected load, store or cp.async, got {access.op!r}")
    how = access.name, access.op, access.bytes
    found = widest_access(coordinates, tile.shape, tile.element_bytes, *how, lanes=lanes, bytes_field="bytes")
    return json_data.convert({**found, "weight": access.weight, "notes": access.notes}, Access)


def _integers(raw: Any, field: str, ndim: int) -> IntArray:
    """The value of a field as an int64 array of `ndim` dimensions, or an error that names the field."""
    try:
        array = np.asarray(raw)
    except ValueError:  # rows of different lengths
        array = np.zeros(0)
    if array.dtype.kind not in "biu" or array.ndim != ndim or not array.size:
        given = f"{array.dtype} of shape {array.shape}" if array.size else "none, or rows of other lengths"
        what = "(instructions, lanes, dimensions)" if ndim == 3 else "(instructions, lanes)"
        raise ProblemFileError(field, f"expected integers of shape {what}, got {given}")
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise ProblemFileError(field, "expected integers of 64 bits with a sign")
    return array.astype(np.int64)


def _active(raw: Any, has_thread: BoolArray) -> BoolArray:
    """The field `active` as booleans; every lane that has a thread, where it is left out."""
    if raw is None:
        return has_thread
    active: BoolArray = _integers(raw, "active", 2) != 0
    if active.shape != has_thread.shape:
        wrong = f"expected shape {has_thread.shape}, as of coordinates, got {active.shape}"
        raise ProblemFileError("active", wrong)
    if (active & ~has_thread).any():
        row, lane = (int(k) for k in np.argwhere(active & ~has_thread)[0])
        raise ProblemFileError(f"active[{row}][{lane}]", "the block has no such thread")
    return active


def _lanes_of(target: str) -> int | None:
    """Lanes of a warp; None of a device that only the caller knows."""
    try:
        return device(target).lanes
    except ProblemFileError:
        return None


def _check_inside(coordinates: IntArray, used: BoolArray, shape: tuple[int, ...]) -> None:
    outside = ((coordinates < 0) | (coordinates >= np.array(shape))) & used[..., None]
    if outside.any():
        row, lane, d = (int(k) for k in np.argwhere(outside)[0])
        given = int(coordinates[row, lane, d])
        wrong = f"x{d} must lie in 0..{shape[d] - 1}, not {given}"
        raise ProblemFileError(f"coordinates[{row}][{lane}][{d}]", wrong)
