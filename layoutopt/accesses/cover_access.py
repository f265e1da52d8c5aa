"""Accesses that say what is covered, and leave to the solver which thread handles what."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from layoutopt.accesses.assignments import work_on, written_out
from layoutopt.errors import ProblemFileError
from layoutopt.problems.types import Access, GlobalSide, Identifier, Name, Order, Positive, Problem

Bound = Annotated[int, Meta(ge=0)]


class CoverAccess(
    Struct, frozen=True, forbid_unknown_fields=True, rename={"loops": "for", "global_": "global"}
):
    """A fill or a drain of the tile, or of a box of it, by threads that choose their pieces."""

    name: Name
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
    notes: str | None = None


def from_cover(access: CoverAccess, place: str, head: Problem) -> Access:
    """The same as an ordinary access with free lanes, its index that of consecutive threads.

    Raises:
        ProblemFileError: there is no such box, or pieces do not divide it.
    """
    tile, dims = head.tile, len(head.tile.shape)
    box = access.covers if access.covers is not None else tuple((0, extent) for extent in tile.shape)
    if len(box) != dims:
        raise ProblemFileError(f"{place}.covers", f"expected one pair for each of {dims} dimensions")
    for d, (low, high) in enumerate(box):
        if not low < high <= tile.shape[d]:
            raise ProblemFileError(
                f"{place}.covers[{d}]", f"expected 0 <= first < end <= {tile.shape[d]}, got [{low}, {high}]"
            )
    threads = access.threads or head.threads
    if threads > head.threads:
        raise ProblemFileError(f"{place}.threads", f"the block has {head.threads} threads, not {threads}")
    if 8 * access.bytes % tile.element_bits and 8 * access.bytes > tile.element_bits:
        raise ProblemFileError(
            f"{place}.bytes", f"{access.bytes} bytes are no whole number of {tile.element_bits}-bit elements"
        )
    piece = max(1, 8 * access.bytes // tile.element_bits)
    if box[-1][0] % piece:
        raise ProblemFileError(
            f"{place}.covers[{dims - 1}]", f"a piece is {piece} elements and starts at a multiple of them"
        )
    plain = Access(
        name=access.name, op=access.op, index=(0,) * dims, bytes=access.bytes, weight=access.weight,
        lanes=access.lanes, values=access.values, global_=access.global_, order=access.order,
        notes=access.notes,
    )  # fmt: skip
    begin, end = zip(*box, strict=True)
    work = work_on(head, plain, place, begin, end, 0, threads, piece)
    if access.loops:
        trips = math.prod(access.loops.values())
        if trips != work.rounds * work.steps:
            raise ProblemFileError(
                f"{place}.for",
                f"{work.threads} threads cover this in {work.rounds * work.steps} iterations, not {trips}",
            )
        work = replace(work, loops=access.loops)
    written = written_out(work, work.natural, plain, head.threads)
    kept = {"lanes": plain.lanes, "values": plain.values, "global_": plain.global_, "order": plain.order}
    return msgspec.structs.replace(written, **kept)
