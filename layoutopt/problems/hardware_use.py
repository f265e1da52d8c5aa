"""What the hardware does to a tile by itself, as a problem knows it."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Dimension = Annotated[int, Meta(ge=0, lt=8)]


Size = Annotated[int, Meta(ge=1)]


class HardwareChoices(Struct, frozen=True, forbid_unknown_fields=True):
    """What an access of the hardware may say; None leaves the choice."""

    box: Annotated[
        tuple[Size, ...] | None,
        Meta(
            description="tma: extents of one copy, in elements, one a dimension; the fewest boxes otherwise"
        ),
    ] = None
    element: Annotated[
        str | None, Meta(description="tma: the type that the tensor map names; the tile's otherwise")
    ] = None
    mode: Annotated[
        str | None, Meta(description="tma, wgmma, tcgen05: none, 32B, 64B or 128B; the best otherwise")
    ] = None
    order: Annotated[
        tuple[Dimension, ...] | None,
        Meta(description="tma: dimensions from slowest to fastest in global memory; row-major otherwise"),
    ] = None
    multicast: Annotated[
        Size | None,
        Meta(description="tma.load: blocks of the cluster that share the tile: each copies its part to all"),
    ] = None
    major: Annotated[
        Literal["K", "MN"] | None,
        Meta(description="wgmma, tcgen05: the contiguous dimension; K otherwise, or either where k is given"),
    ] = None
    k: Annotated[
        Dimension | None,
        Meta(
            description="wgmma, tcgen05: the dimension that is K; the last one, for MN-major the one before"
        ),
    ] = None
    mn: Annotated[
        tuple[Dimension, ...] | None,
        Meta(description="wgmma, tcgen05: dimensions that are M or N together, slowest first; one otherwise"),
    ] = None
    rows: Annotated[
        Size | None,
        Meta(
            description="wgmma, tcgen05: M (operand A) or N (operand B) of an instruction; the most there are"
        ),
    ] = None
    bytes: Annotated[
        Size | None, Meta(description="cp.async.bulk: bytes of one copy, rows that follow one another")
    ] = None


class HardwareUse(HardwareChoices, frozen=True, omit_defaults=True, kw_only=True):
    """What one access asks of the layout, and who reads or writes."""

    engine: Literal["tma", "wgmma", "tcgen05", "cp.async.bulk"]
