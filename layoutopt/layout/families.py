"""The families of layouts: each is written down here, and only here.

A family is a way to choose the linearisation or the swizzle of a layout. What it is called, what it costs in
words, its row in `compare`, its picture in docs/families.md and what `explain` takes away from a layout of it
stand in its record. Which layouts it holds is a stream of candidates, which needs the tile and its accesses:
`layoutopt.model.linearisations` and `layoutopt.model.pads` have one for each family that places elements,
`layoutopt.model.swizzle_rules` the rules of those that flip bits.

To add one, write its record into `FAMILIES` and its candidates into `layoutopt.model.pads.PADDED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from layoutopt.layout.layout import Layout, tight_digits

# A part of a layout in words, and the layout without it.
Part = tuple[str, Layout]


def _no_parts(layout: Layout) -> Iterator[Part]:
    yield from ()


def _pads(layout: Layout) -> Iterator[Part]:
    tight = tight_digits(layout.digits)
    if tight != layout.digits:
        wide = max(d.stride for d in layout.digits) * layout.element_bytes
        yield f"the pad (slowest stride {wide:,} bytes)", msgspec.structs.replace(layout, digits=tight)


def _interval(layout: Layout) -> Iterator[Part]:
    every, extra = (count * layout.packed for count in layout.interval)
    if every:
        without = msgspec.structs.replace(layout, interval=(0, 0))
        yield f"the pad of {extra} after every {every} elements", without


def _rotation(layout: Layout) -> Iterator[Part]:
    if layout.turn:
        yield f"the rotation by {layout.turn * layout.packed}", msgspec.structs.replace(layout, turn=0)


def _flipped_bits(layout: Layout) -> Iterator[Part]:
    step = layout.packed.bit_length() - 1  # bits of offsets in elements are counted
    for target in layout.swizzle:
        for source in range(target.mask.bit_length()):
            if target.mask >> source & 1:
                less = msgspec.structs.replace(target, mask=target.mask & ~(1 << source))
                swizzle = tuple(less if t is target else t for t in layout.swizzle)
                yield (
                    f"the XOR of offset bit {source + step} into bit {target.bit + step}",
                    msgspec.structs.replace(layout, swizzle=tuple(t for t in swizzle if t.mask)),
                )


def _pad_label(layout: Layout) -> str:
    if tight_digits(layout.digits) == layout.digits:
        return "no pad"
    return f"strides {', '.join(str(d.stride) for d in layout.digits)}"


def _interval_label(layout: Layout) -> str:
    every, extra = layout.interval
    return f"{extra} after every {every}" if every else "no pad"


def _cute_label(layout: Layout) -> str:
    dims = [d.dim for d in layout.digits]
    base = "row-major" if dims == sorted(dims) else f"order {', '.join(f'x{d}' for d in dims)}"
    if not layout.swizzle:
        return f"no swizzle, {base}"
    first = layout.swizzle[0]
    distance = first.mask.bit_length() - 1 - first.bit
    return f"Swizzle<{len(layout.swizzle)},{first.bit},{distance}> over {base}"


def _order_label(layout: Layout) -> str:
    dims = [d.dim for d in layout.digits]
    if len(dims) > len(layout.shape):
        return "split"
    return "row-major" if dims == sorted(dims) else "order"


class Family(Struct, frozen=True):
    """One way to choose a layout.

    Attributes:
        name: as problem files, options and answers write it.
        heading: what it is, in the heading of its section of docs/families.md.
        adds: the layouts it holds, in one sentence.
        bytes, index: what it costs in bytes and in operations of the index, in words.
        picture: element offset over x0, x1 of a 4x4 tile, on the page; empty for none.
        row: name of its row in `compare`, which families may share; empty for none.
        title: of that row, for people.
        beside: families that the layouts of that row may use, too.
        label: what a layout of the row is called.
        shows_label: the text of `compare` says it, since the formula does not.
        parts: what of a layout the family brought, for "without this pad".
        counted: the row's best is found by counting every layout, not by the solver.
        special_case_of: the families that problem files and options name to allow it; empty for its own.
        orders: it is about the order of dimensions, and nothing where the problem fixes that.
    """

    name: str
    heading: str
    adds: str
    bytes: str
    index: str
    picture: str = ""
    row: str = ""
    title: str = ""
    beside: tuple[str, ...] = ("none",)
    label: Callable[[Layout], str] = _pad_label
    shows_label: bool = False
    parts: Callable[[Layout], Iterator[Part]] = _no_parts
    counted: bool = True
    special_case_of: tuple[str, ...] = ()
    orders: bool = False

    @property
    def allowed_by(self) -> tuple[str, ...]:
        """What must be among the families that a problem allows."""
        return self.special_case_of or (self.name,)


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        name="none",
        heading="row-major",
        adds="row-major",
        bytes="none",
        index="a multiplication and an addition for each dimension but the last",
        picture="x0*4 + x1",
        row="none",
        title="row-major, no pad",
        beside=(),
    ),
    Family(
        name="order",
        heading="which dimension runs fastest",
        adds="any order of the dimensions",
        bytes="none",
        index="none",
        picture="x1*4 + x0",
        row="order/split",
        title="order or split",
        label=_order_label,
        orders=True,
    ),
    Family(
        name="pad",
        heading="gaps between rows",
        adds="a pad of less than one bank period on any of the strides but the fastest, which is as small as "
        "alignment allows, in any order allowed",
        bytes="the pads",
        index="none",
        picture="x0*5 + x1",
        row="pad",
        title="best pad",
        parts=_pads,
    ),
    Family(
        name="split",
        heading="pages, blocks and interval pads",
        adds="one or two cuts `x // d`, `x % d` at divisors of the extents, up to six digits in any order "
        "but those that keep the pieces of a cut together, which are as if not cut, and (with pad) one pad "
        "on a single cut",
        bytes="none",
        index="a division, a remainder, a multiplication and an addition for each cut",
        picture="x1 // 2 * 8 + x0*2 + x1 % 2",
        row="order/split",
        title="order or split",
        label=_order_label,
        orders=True,
    ),
    Family(
        name="interval",
        heading="a pad after every N elements",
        adds="a pad of less than one bank period after every N elements of a dense order, N from 2 on, "
        "a power of two or a length that cuts one dimension evenly",
        bytes="the pads",
        index="a shift, an addition, perhaps a multiplication",
        picture="x0*4 + x1 + (x0*4 + x1) // 8",
        row="interval",
        title="best interval pad",
        label=_interval_label,
        shows_label=True,
        parts=_interval,
    ),
    Family(
        name="rotate",
        heading="lines turned",
        adds="the lines of row-major (with order: of any order; with pad: at a padded pitch) rotated, each "
        "by the same number of elements against the line before",
        bytes="none",
        index="an addition, a remainder, perhaps a multiplication",
        picture="x0*4 + (x1 + x0) % 4",
        parts=_rotation,
    ),
    Family(
        name="cute",
        heading="CuTe's swizzles",
        adds="`Swizzle<B, M, S>`, S positive, over row-major (with order: any order)",
        bytes="none",
        index="a shift, a mask and an XOR",
        row="cute",
        title="best CuTe swizzle",
        beside=("none", "order"),
        label=_cute_label,
        shows_label=True,
        special_case_of=("xor",),
    ),
    Family(
        name="xor",
        heading="swizzles",
        adds="a swizzle over row-major, dimension order, pads, a rotation without pad, or a cut without pad",
        bytes="none",
        index="a shift, a mask and an XOR for each distance that bits move",
        picture="x0*4 + (x1 ^ x0)",
        row="xor",
        title="best XOR",
        beside=("none", "order"),
        parts=_flipped_bits,
        counted=False,
    ),
    Family(
        name="pad+xor",
        heading="pads and a swizzle together",
        adds="a swizzle over pads",
        bytes="the pads",
        index="a shift, a mask and an XOR for each distance that bits move",
        row="pad+xor",
        title="pad and XOR together",
        beside=("none", "order", "pad", "xor"),
        counted=False,
        special_case_of=("pad", "xor"),
    ),
    Family(
        name="matrix",
        heading="any coordinate bits select the bank",
        adds="where every extent is a power of two: a swizzle over any choice of the coordinate bits that "
        "select the bank, so that every invertible bit matrix that leaves together the elements of a bank "
        "word is one of them, as far as banks go",
        bytes="none",
        index="those of two cuts and more, and of the swizzle",
        picture="x1 // 2 * 4 + x0 // 2 * 8 + x0 % 2 * 2 + x1 % 2",
    ),
    Family(
        name="table",
        heading="any placement at all",
        adds="any placement of the vectors of a small tile, as a table of constants",
        bytes="none",
        index="row-major's and a look-up",
        picture="x0*4 + (x1 ^ x0 // 2 ^ x0 % 2 * 2)",
    ),
)

# Names that problem files and options may use.
NAMES: Final = tuple(family.name for family in FAMILIES if not family.special_case_of)


def comparison_rows() -> dict[str, tuple[Family, ...]]:
    """The rows of `compare`: their families, by the row's name, the plainest first."""
    names = dict.fromkeys(family.row for family in FAMILIES if family.row)
    return {name: tuple(f for f in FAMILIES if f.row == name) for name in names}


def without_each_part(layout: Layout) -> Iterator[Part]:
    """The layout with one part taken away, for each of its parts; a table has none."""
    if not layout.lookup:
        for family in FAMILIES:
            yield from family.parts(layout)
