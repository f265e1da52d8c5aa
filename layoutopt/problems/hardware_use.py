"""What the hardware does to a tile by itself, as a problem knows it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Dimension = Annotated[int, Meta(ge=0, lt=8)]


class HardwareUse(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one access asks of the layout; None leaves the choice. The fields are those of `HardwareAccess`.

    Attributes:
        engine: who reads or writes.
        box: extents of one copy, in elements of the tile, one a dimension.
        element: the type that the tensor map names.
        mode: of the engine, such as `128B`.
        order: dimensions from slowest to fastest, in global memory.
        multicast: blocks of the cluster that share the tile: each copies its part to all of them.
        major: which dimension of a matrix is contiguous.
        k: the dimension along which a matrix product sums.
        mn: the dimensions that are M or N together, slowest first.
        rows: M or N of one instruction.
        bytes: of one row of a bulk copy.
    """

    engine: Literal["tma", "wgmma", "tcgen05", "cp.async.bulk"]
    box: tuple[Annotated[int, Meta(ge=1)], ...] | None = None
    element: str | None = None
    mode: str | None = None
    order: tuple[Dimension, ...] | None = None
    multicast: Annotated[int, Meta(ge=1)] | None = None
    major: Literal["K", "MN"] | None = None
    k: Dimension | None = None
    mn: tuple[Dimension, ...] | None = None
    rows: Annotated[int, Meta(ge=1)] | None = None
    bytes: Annotated[int, Meta(ge=1)] | None = None
