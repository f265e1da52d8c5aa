"""CuTe: a `Layout`, composed with `Swizzle<B, M, S>` where the layout is one, else with a functor.

What TMA or a matrix instruction reaches is also an atom of wgmma and tcgen05 (`Layout_K_SW128_Atom`, ...),
tiled until it is the layout: CuTe's traits know these types, and not a `Swizzle` that is equal everywhere.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from layoutopt.codegen.c_text import to_c
from layoutopt.codegen.plan import Plan
from layoutopt.codegen.templates import filled, lines
from layoutopt.errors import LayoutError, VerificationError
from layoutopt.expressions.grammar import Var, evaluate, lookups
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.dictated import ATOM_ROWS, modes
from layoutopt.layout.formula import stages
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import MatrixDescriptor

_NAMES: Final = {"none": "INTER", "32B": "SW32", "64B": "SW64", "128B": "SW128"}
_TYPES: Final = {
    "f16": "cute::half_t", "bf16": "cute::bfloat16_t", "f32": "float", "tf32": "cute::tfloat32_t",
    "e4m3": "cute::float_e4m3_t", "e5m2": "cute::float_e5m2_t", "i8": "int8_t", "u8": "uint8_t",
}  # fmt: skip
_BY_SIZE: Final = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t"}


def emit(plan: Plan) -> str:
    """A header for CuTe. Offsets count elements, as CuTe's do.

    Raises:
        LayoutError: the formula looks up a table.
    """
    name, dims = plan.name, range(plan.table.ndim)
    head = filled("cute", "head", NAME=name, BYTES=plan.bytes, ALIGNMENT=plan.alignment_bytes)
    layout = _formula(plan) if plan.layout is None else _layout(plan, plan.layout)
    use = filled("cute", "use", NAME=name) + _asserted(plan, f"{name}_layout", dims, "the layout")
    return lines(f"// {line}" for line in plan.headlines) + head + layout + use + _atom(plan)


def _asserted(plan: Plan, name: str, dims: Sequence[int], what: str) -> str:
    """What a layout, whose coordinates are the tile's in this order, gives for a few elements."""
    return lines(
        f"static_assert({name}{{}}({', '.join(str(point[d]) for d in dims)}) == "
        f'{offset // plan.element_bytes}, "{what}");'
        for point, offset in plan.sample
    )


def _layout(plan: Plan, layout: Layout) -> str:
    linear, note = _linear_type(layout)
    if not stages(layout):
        return lines([*note, f"using {plan.name}_layout = {linear};", ""])
    swizzle = layout.swizzle_triple()
    functor = _functor(plan, layout) if swizzle is None else ""
    outer = f"cute::Swizzle<{', '.join(map(str, swizzle))}>" if swizzle else f"{plan.name}_swizzle"
    return functor + lines(note) + filled("cute", "composed", NAME=plan.name, OUTER=outer, LINEAR=linear)


def _linear_type(layout: Layout) -> tuple[str, list[str]]:
    """The linearisation as a CuTe type; a coordinate cut into digits becomes a nested mode."""
    shapes, strides, note = [], [], []
    for d, extent in enumerate(layout.shape):
        digits = sorted((g for g in layout.digits if g.dim == d), key=lambda g: g.divide)
        digits = [g for g in digits if g.size > 1] or digits[:1]
        shape = [f"cute::Int<{g.size}>" for g in digits]
        stride = [f"cute::Int<{g.stride}>" for g in digits]
        shapes.append(shape[0] if len(shape) == 1 else f"cute::Shape<{', '.join(shape)}>")
        strides.append(stride[0] if len(stride) == 1 else f"cute::Stride<{', '.join(stride)}>")
        reach = int(np.prod([g.size for g in digits]))
        if reach != extent:
            note.append(f"// mode {d} reaches {reach} values; the tile uses the first {extent}")
    shape_text, stride_text = ", ".join(shapes), ", ".join(strides)
    return f"cute::Layout<cute::Shape<{shape_text}>, cute::Stride<{stride_text}>>", note


def _functor(plan: Plan, layout: Layout) -> str:
    """What no `Swizzle` says: a functor on the linear offset, checked at every element."""
    value = Layout(layout.shape, layout.element_bytes, layout.digits).table() // layout.element_bytes
    steps = stages(layout)
    last = steps.pop() if layout.swizzle else Var("v")
    body = []
    for step in steps:
        ranges = {"v": (0, int(value.max()))}
        body.append(f"v = {to_c(simplify(step, ranges), ranges)};")
        value = evaluate(step, {"v": value})
    body.append(f"return {to_c(last, {'v': (0, 2 * int(value.max()) + 1)})};")
    if (evaluate(last, {"v": value}) * layout.element_bytes != layout.table()).any():
        raise VerificationError("the functor does not equal the table")
    return filled("cute", "functor", NAME=plan.name, STEPS=lines(body, 8))


def _formula(plan: Plan) -> str:
    """A layout known as a formula only: a functor of the coordinates."""
    ranges = plan.coordinate_ranges
    if lookups(plan.offset):
        raise LayoutError("cute has no functor that looks up a table; --lang cuda, c or numba have")
    text, declared = to_c(plan.offset, ranges), ", ".join(f"int {x}" for x in ranges)
    unused = lines((f"(void){x};" for x in ranges if x not in text), 8)
    return filled("cute", "formula", NAME=plan.name, PARAMETERS=declared, UNUSED=unused, TEXT=text)


class Tiling(NamedTuple):
    """An atom that tiles a layout."""

    atom: str  # its name, such as `Layout_K_SW128_Atom`
    step: str  # the order in which it is repeated
    dims: tuple[int, ...]  # the tile's dimensions in the order of CuTe's coordinates: M or N, K, matrices


def tiling(plan: Plan) -> Tiling | None:
    """The atom that is the layout of a tile of two dimensions, or of three whose first numbers matrices."""
    offsets = plan.table // plan.element_bytes
    if not 2 <= offsets.ndim <= 3 or plan.element_bytes not in _BY_SIZE:
        return None
    # M or N, then K, then what numbers matrices; where no matrix is read, as in the tile.
    last = offsets.ndim - 1
    read = [a.descriptor for a in plan.by_hardware if isinstance(a.descriptor, MatrixDescriptor)]
    swapped = bool(read) and read[0].k_dim == last - 1
    dims = (last, last - 1, *range(last - 1)) if swapped else (last - 1, last, *range(last - 1))
    turned = offsets.transpose(dims)
    for name, step, table in tilings(turned.shape, plan.element_bytes):
        if (table == turned).all():
            return Tiling(name, step, dims)
    return None


def tilings(shape: tuple[int, ...], size: int) -> Iterator[tuple[str, str, IntArray]]:
    """Every atom in both orders: its name, the order, and element offsets in this shape.

    An atom is 8 rows of a mode's span; `tile_to_shape` repeats it along the first coordinate first
    (`Step<_1, _2>`) or along the second (`Step<_2, _1>`).
    """
    x0, x1 = np.indices(shape[:2], sparse=True)
    for mode, major in itertools.product(modes("wgmma"), ("K", "MN")):
        span = (mode.span_bytes or 0) // size
        row, column = (x0, x1) if major == "K" else (x1, x0)
        rows, spans = row.size // ATOM_ROWS, column.size // span
        if row.size % ATOM_ROWS or column.size % span:
            continue
        for step in ((1, 2), (2, 1)):
            rows_first = (step == (1, 2)) == (major == "K")
            down, along = row // ATOM_ROWS, column // span
            number = down + along * rows if rows_first else along + down * spans
            linear = (number * ATOM_ROWS + row % ATOM_ROWS) * span + column % span
            table = mode.flipped(linear * size) // size
            if len(shape) > 2:
                table = table[..., None] + np.arange(shape[2]) * x0.size * x1.size
            name = f"Layout_{major}_{_NAMES[mode.short]}_Atom"
            yield name, ", ".join(f"cute::_{n}" for n in (*step, 3)[: len(shape)]), table


def _atom(plan: Plan) -> str:
    """The layout as CuTe's TMA and matrix instructions know it, where they reach the tile."""
    if not plan.dictated:
        return ""
    found = tiling(plan)
    if found is None:
        return filled("cute", "no_atom")
    name, tile = f"{plan.name}_smem", plan.problem.tile
    kind = _TYPES.get(tile.element if isinstance(tile.element, str) else "", _BY_SIZE[plan.element_bytes])
    extents = ", ".join(f"cute::Int<{tile.shape[d]}>" for d in found.dims)
    coordinates = ", ".join(f"x{d}" for d in found.dims)
    spelled = {"ATOM": found.atom, "KIND": kind, "EXTENTS": extents, "STEP": found.step}
    text = filled("cute", "atom", NAME=name, COORDINATES=coordinates, **spelled)
    return text + _asserted(plan, f"{name}_offset", found.dims, "the atom")
