"""The families of layouts: each is written down here, and only here.

A family is a way to choose the linearisation or the swizzle of a layout. What it is called, its row in
`compare` and what `explain` takes away from a layout of it stand in its record; docs/families.md says what it
holds and costs. Which layouts these are is a stream of candidates, which needs the tile and its accesses:
`layoutopt.model.linearisations` and `layoutopt.model.pads` have one for each family that places elements,
`layoutopt.model.swizzle_rules` the rules of those that flip bits.

To add one, write its record into `FAMILIES` and its candidates into `layoutopt.model.pads.PADDED`.
"""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.layout.layout import Digit, Layout, tight_digits

# A part of a layout in words, and the layout without it.
Part = tuple[str, Layout]


def _without_pads(layout: Layout) -> tuple[Digit, ...] | None:
    """The digits with the strides that they have without pads; None where they have these."""
    tight = tight_digits(layout.digits)
    # A digit of one value moves nothing, whatever its stride.
    return tight if any(a != b for a, b in zip(layout.digits, tight, strict=True) if a.size > 1) else None


def _pads(layout: Layout) -> Iterator[Part]:
    tight = _without_pads(layout)
    if tight is not None:
        wide = max(d.stride for d in layout.digits) * layout.element_bytes
        yield f"the pad (slowest stride {wide:,} bytes)", replace(layout, digits=tight)


def _interval(layout: Layout) -> Iterator[Part]:
    every, extra = (count * layout.packed for count in layout.interval)
    if every:
        without = replace(layout, interval=(0, 0))
        yield f"the pad of {extra} after every {every} elements", without


def _rotation(layout: Layout) -> Iterator[Part]:
    if layout.turn:
        yield f"the rotation by {layout.turn * layout.packed}", replace(layout, turn=0)


def _flipped_bits(layout: Layout) -> Iterator[Part]:
    step = layout.packed.bit_length() - 1  # bits of offsets in elements are counted
    for target in layout.swizzle:
        for source in range(target.mask.bit_length()):
            if target.mask >> source & 1:
                less = replace(target, mask=target.mask & ~(1 << source))
                swizzle = tuple(less if t is target else t for t in layout.swizzle)
                yield (
                    f"the XOR of offset bit {source + step} into bit {target.bit + step}",
                    replace(layout, swizzle=tuple(t for t in swizzle if t.mask)),
                )


def _pad_label(layout: Layout) -> str:
    if _without_pads(layout) is None:
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
    """One way to choose a layout."""

    name: str  # as problem files, options and answers write it
    row: str = ""  # name of its row in `compare`, which families may share; empty for none
    title: str = ""  # of that row, for people
    beside: tuple[str, ...] = ("none",)  # families that the layouts of that row may use, too
    label: Callable[[Layout], str] = _pad_label  # what a layout of the row is called
    shows_label: bool = False  # the text of `compare` says it, since the formula does not
    # What of a layout the family brought, for "without this pad"
    parts: Callable[[Layout], Iterator[Part]] = lambda _: iter(())
    counted: bool = True  # the row's best is found by counting every layout, not by the solver
    # The families that problem files and options name to allow it; empty for its own
    special_case_of: tuple[str, ...] = ()
    orders: bool = False  # it is about the order of dimensions, and nothing where the problem fixes that


FAMILIES: Final[tuple[Family, ...]] = (
    Family(name="none", row="none", title="row-major, no pad", beside=()),
    Family(name="order", row="order/split", title="order or split", label=_order_label, orders=True),
    Family(name="pad", row="pad", title="best pad", parts=_pads),
    Family(name="split", row="order/split", title="order or split", label=_order_label, orders=True),
    Family(
        name="interval",
        row="interval",
        title="best interval pad",
        label=_interval_label,
        shows_label=True,
        parts=_interval,
    ),
    Family(name="rotate", parts=_rotation),
    Family(
        name="cute",
        row="cute",
        title="best CuTe swizzle",
        beside=("none", "order"),
        label=_cute_label,
        shows_label=True,
        special_case_of=("xor",),
    ),
    Family(
        name="xor",
        row="xor",
        title="best XOR",
        beside=("none", "order"),
        parts=_flipped_bits,
        counted=False,
    ),
    Family(
        name="pad+xor",
        row="pad+xor",
        title="pad and XOR together",
        beside=("none", "order", "pad", "xor"),
        counted=False,
        special_case_of=("pad", "xor"),
    ),
    Family(name="matrix"),
    Family(name="table"),
)

# Names that problem files and options may use.
NAMES: Final = tuple(family.name for family in FAMILIES if not family.special_case_of)


def comparison_rows() -> dict[str, tuple[Family, ...]]:
    """The rows of `compare`: their families, by the row's name, the plainest first."""
    names = dict.fromkeys(family.row for family in FAMILIES if family.row)
    return {name: tuple(f for f in FAMILIES if f.row == name) for name in names}


def families_of(layout: Layout) -> list[str]:
    """The families without which there is no such layout: of its parts, or of tables."""
    parts = [family.name for family in FAMILIES if next(family.parts(layout), None) is not None]
    return ["table"] if layout.lookup else parts


def without_each_part(layout: Layout) -> Iterator[Part]:
    """The layout with one part taken away, for each of its parts; a table has none."""
    if not layout.lookup:
        for family in FAMILIES:
            yield from family.parts(layout)
