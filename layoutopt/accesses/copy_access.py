"""Accesses that copy a whole tile, as ordinary ones."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from msgspec import Meta, Struct

from layoutopt.errors import ProblemFileError
from layoutopt.expressions.grammar import Const, Node, Op, Var, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.problems.types import Access, Expression, Name, Positive, Tile


class Copy(Struct, frozen=True, forbid_unknown_fields=True):
    """How a block copies a whole tile."""

    bytes: Annotated[Literal[1, 2, 4, 8, 16], Meta(description="Bytes that one thread copies at once")]
    threads: Annotated[Positive | None, Meta(description="Threads that copy; all, if left out")] = None
    order: Annotated[
        tuple[int, ...] | None,
        Meta(description="Dimensions from slowest to fastest, in the order that threads follow; row-major"),
    ] = None


class CopyAccess(Struct, frozen=True, forbid_unknown_fields=True):
    """A copy of the whole tile, consecutive threads at consecutive pieces."""

    name: Name
    op: Annotated[str, Meta(description="cp.async, store or load")]
    copy: Copy
    weight: Annotated[int | float | Expression, Meta(description="As for other accesses")] = 1
    notes: str | None = None


def part_of_number(inner: int, extent: int, workers: int, slowest: bool) -> Node:
    """`(tid + workers * i) // inner % extent`, where possible without adding tid and i first."""
    tid, i = Op("//", (Var("tid"), Const(inner))), Var("i")
    step = workers // inner
    if workers % inner == 0 and (slowest or extent % step == 0 or step % extent == 0):
        turn: Node = i if slowest else Op("%", (i, Const(max(1, extent // step))))
        own: Node = tid if slowest else Op("%", (tid, Const(extent)))
        return Op("+", (own, Op("*", (Const(step), turn))))
    if inner % workers == 0:
        whole: Node = Op("//", (i, Const(inner // workers)))
    else:
        whole = Op("//", (Op("+", (Var("tid"), Op("*", (Const(workers), i)))), Const(inner)))
    return whole if slowest else Op("%", (whole, Const(extent)))


def written_out(access: CopyAccess, place: str, tile: Tile, threads: int) -> Access:
    """The copy as an ordinary access: piece `tid + threads * i` of the tile, in the order given."""
    dims = len(tile.shape)
    order = access.copy.order if access.copy.order is not None else tuple(range(dims))
    if sorted(order) != list(range(dims)):
        raise ProblemFileError(
            f"{place}.copy.order", f"expected each of 0..{dims - 1} once, got {list(order)}"
        )
    workers = access.copy.threads or threads
    if workers > threads:
        raise ProblemFileError(f"{place}.copy.threads", f"the block has {threads} threads, not {workers}")
    vector = max(1, 8 * access.copy.bytes // tile.element_bits)
    if 8 * access.copy.bytes % tile.element_bits:
        raise ProblemFileError(
            f"{place}.copy.bytes",
            f"{access.copy.bytes} bytes are no whole number of {tile.element_bits}-bit elements",
        )
    if vector > 1 and (order[-1] != dims - 1 or tile.shape[-1] % vector):
        raise ProblemFileError(
            f"{place}.copy.bytes",
            f"{access.copy.bytes} bytes are {vector} elements, which must lie along the last dimension "
            f"and divide its extent, {tile.shape[-1]}",
        )
    extents = [tile.shape[d] // (vector if d == order[-1] else 1) for d in order]
    pieces = math.prod(extents)
    trips = -(-pieces // workers)
    ranges = {"tid": (0, workers - 1), "i": (0, trips - 1)}
    once = {} if trips > 1 else {"i": Const(0)}
    index: dict[int, Node] = {}
    inner = pieces
    for d, extent in zip(order, extents, strict=True):
        inner //= extent
        node = part_of_number(inner, extent, workers, slowest=d == order[0])
        if d == order[-1] and vector > 1:
            node = Op("*", (Const(vector), node))
        index[d] = simplify(substituted(node, once), ranges)
    limits = [f"tid < {workers}"] * (workers < threads)
    if trips * workers > pieces:
        limits.append(f"tid + {workers}*i < {pieces}" if trips > 1 else f"tid < {pieces}")
    return Access(
        name=access.name,
        op=access.op,
        index=tuple(to_text(index[d]) for d in range(dims)),
        bytes=access.copy.bytes,
        loops={"i": trips} if trips > 1 else {},
        where=" and ".join(limits) or None,
        weight=access.weight,
        notes=access.notes,
    )
