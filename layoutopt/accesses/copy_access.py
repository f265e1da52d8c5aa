"""Accesses that say what of a tile is copied, by consecutive threads or by threads that the solver chooses.

{"name": "fill", "op": "cp.async", "copy": {"bytes": 16, "threads": 256}}
{"name": "drain", "op": "load", "bytes": 4, "lanes": "free", "global": {"contiguous": 32}}
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from layoutopt.accesses.assignments import with_assignment, work_on_box
from layoutopt.errors import ProblemFileError, under
from layoutopt.ground import json_data
from layoutopt.problems.types import Access, GlobalSide, Identifier, NamedAccess, Order, Positive, Problem

Bound = Annotated[int, Meta(ge=0)]


class Copy(Struct, frozen=True, forbid_unknown_fields=True):
    """How a block copies a whole tile."""

    bytes: Annotated[Literal[1, 2, 4, 8, 16], Meta(description="Bytes that one thread copies at once")]
    threads: Annotated[Positive | None, Meta(description="Threads that copy; all, if left out")] = None
    order: Annotated[
        tuple[int, ...] | None,
        Meta(description="Dimensions from slowest to fastest, in the order that threads follow; row-major"),
    ] = None


class CopyAccess(NamedAccess, frozen=True, kw_only=True):
    """A copy of the whole tile, consecutive threads at consecutive pieces."""

    op: Annotated[str, Meta(description="cp.async, store or load")]
    copy: Copy


class CoverAccess(NamedAccess, frozen=True, kw_only=True, rename={"loops": "for", "global_": "global"}):
    """A fill or a drain of the tile, or of a box of it, by threads that choose their pieces."""

    op: Annotated[str, Meta(description="load, store or cp.async")]
    lanes: Literal["free"]
    bytes: Annotated[Literal[1, 2, 4, 8, 16], Meta(description="Bytes of one access to the tile: a piece")]
    covers: Annotated[
        tuple[tuple[Bound, Positive], ...] | None,
        Meta(description="For each dimension, the first element and the one after the last; the whole tile"),
    ] = None
    threads: Annotated[Positive | None, Meta(description="Threads that take part; all, if left out")] = None
    global_: Annotated[GlobalSide | None, Meta(description="What they keep to in global memory")] = None
    order: Annotated[Order | None, Meta(description="The same as order in global")] = None
    loops: Annotated[
        dict[Identifier, Positive], Meta(description="Loop variables, where they are to be called something")
    ] = field(default_factory=dict)
    values: Annotated[Literal["free"] | None, Meta(description="As for other accesses")] = None
    weight: Annotated[int | float, Meta(description="As for other accesses")] = 1


def from_copy(data: Mapping[str, Any], head: Problem) -> Access:
    """The data of a `CopyAccess` as an ordinary access: consecutive threads take consecutive pieces.

    Raises:
        ProblemFileError: there is no such order, or pieces do not divide the tile.
    """
    access = json_data.convert(data, CopyAccess)
    tile, copy, dims = head.tile, access.copy, len(head.tile.shape)
    order = copy.order if copy.order is not None else tuple(range(dims))
    with under("copy"):
        if sorted(order) != list(range(dims)):
            raise ProblemFileError("order", f"expected each of 0..{dims - 1} once, got {list(order)}")
        threads, moved = _threads_and_elements(copy, head)
        if moved > 1 and (order[-1] != dims - 1 or tile.shape[-1] % moved):
            must = f"must lie along the last dimension and divide its extent, {tile.shape[-1]}"
            raise ProblemFileError("bytes", f"{copy.bytes} bytes are {moved} elements, which {must}")
    plain = access.ordinary(index=(0,) * dims, bytes=copy.bytes, order=order)
    box = [(0, extent) for extent in tile.shape]
    work = work_on_box(head, plain, box, first=0, threads=threads, width=moved)
    return with_assignment(work, work.natural, plain, head.threads)


def _threads_and_elements(given: Copy | CoverAccess, head: Problem) -> tuple[int, int]:
    """How many threads take part, all of the block where none are given; and elements that one moves at once.

    Raises:
        ProblemFileError: the block has fewer threads, or a thread would move a part of an element.
    """
    size, bits = given.bytes, head.tile.element_bits
    if given.threads is not None and given.threads > head.threads:
        raise ProblemFileError("threads", f"the block has {head.threads} threads, not {given.threads}")
    # What covers a tile may move an element in several accesses; a copy moves whole ones.
    if 8 * size % bits and (8 * size > bits or isinstance(given, Copy)):
        raise ProblemFileError("bytes", f"{size} bytes are no whole number of {bits}-bit elements")
    return given.threads or head.threads, max(1, 8 * size // bits)


def from_cover(data: Mapping[str, Any], head: Problem) -> Access:
    """The data of a `CoverAccess` as an access with an index, whose lanes stay free.

    The index is a first assignment of pieces to threads, consecutive threads at consecutive pieces; the
    search may choose another.

    Args:
        data: the access as the file has it.
        head: a problem with the tile and threads; its own accesses do not matter.

    Raises:
        ProblemFileError: the box lies outside the tile, pieces do not divide it, or the loops given do not
            run as often as the threads need.
    """
    access = json_data.convert(data, CoverAccess)
    tile, dims = head.tile, len(head.tile.shape)
    box = access.covers if access.covers is not None else tuple((0, extent) for extent in tile.shape)
    if len(box) != dims:
        raise ProblemFileError("covers", f"expected one pair for each of {dims} dimensions")
    for d, (low, high) in enumerate(box):
        if not low < high <= tile.shape[d]:
            wanted = f"0 <= first < end <= {tile.shape[d]}"
            raise ProblemFileError(f"covers[{d}]", f"expected {wanted}, got [{low}, {high}]")
    threads, moved = _threads_and_elements(access, head)  # elements of a piece
    if box[-1][0] % moved:
        wrong = f"a piece is {moved} elements and starts at a multiple of them"
        raise ProblemFileError(f"covers[{dims - 1}]", wrong)
    plain = access.ordinary(index=(0,) * dims)  # until the index is known
    work = work_on_box(head, plain, box, first=0, threads=threads, width=moved)
    if access.loops:
        given, needed = math.prod(access.loops.values()), work.rounds * work.steps
        if given != needed:
            cover = f"{work.threads} threads cover this in {needed} iterations"
            raise ProblemFileError("for", f"{cover}, not {given}")
        work = replace(work, loops=access.loops)
    fixed = with_assignment(work, work.natural, plain, head.threads)
    return replace(plain, index=fixed.index, loops=fixed.loops, where=fixed.where)
