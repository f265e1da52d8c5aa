"""CuTe: a `Layout`, composed with `Swizzle<B, M, S>` where the layout is one, else with a functor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layoutopt.codegen.c_text import to_c
from layoutopt.codegen.cute_atoms import atom_lines
from layoutopt.codegen.plan import Plan
from layoutopt.errors import VerificationError
from layoutopt.expressions.grammar import Var, evaluate
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import IntArray
from layoutopt.layout.formula import stages
from layoutopt.layout.layout import Layout

_SAMPLE = 2048  # elements


def emit(plan: Plan) -> str:
    """A header for CuTe. Offsets count elements, as CuTe's do."""
    lines = [
        *(f"// {line}" for line in (*plan.header, *(access.headline for access in plan.accesses))),
        "#pragma once",
        "#include <cute/layout.hpp>",
        "#include <cute/swizzle.hpp>",
        "#include <cute/swizzle_layout.hpp>",
        "",
        f"constexpr int {plan.name}_bytes = {plan.bytes};",
        f"constexpr int {plan.name}_alignment = {plan.alignment_bytes};",
        "",
    ]
    lines += _formula(plan) if plan.layout is None else _layout(plan, plan.layout)
    name = f"{plan.name}_layout"
    lines += [
        f"// cute::make_tensor(cute::make_smem_ptr(smem), {name}{{}}), smem aligned to {plan.name}_alignment",
        *(
            f"static_assert({name}{{}}({', '.join(map(str, point))}) == {offset // plan.element_bytes}, "
            '"the layout");'
            for point, offset in plan.sample
        ),
        *atom_lines(plan),
    ]
    return "\n".join(lines) + "\n"


def swizzle_of(layout: Layout) -> tuple[int, int, int] | None:
    """B, M, S such that `Swizzle<B, M, S>` of the linear offset is the layout at every element, or None."""
    if layout.packed > 1 or not layout.swizzle or len(stages(layout)) > 1:
        return None
    linear = Layout(layout.shape, layout.element_bytes, layout.digits).table() // layout.element_bytes
    table = layout.table() // layout.element_bytes
    linear, table = linear.ravel(), table.ravel()
    # Most are refuted by the first elements, or by some of all.
    some = np.r_[: min(len(table), _SAMPLE), 0 : len(table) : max(1, len(table) // _SAMPLE) | 1]
    for bits, base, shift in _candidates(int(linear.max()).bit_length()):
        source = ((1 << bits) - 1) << (base + shift)
        if _swizzles(linear[some], table[some], source, shift) and _swizzles(linear, table, source, shift):
            return bits, base, shift
    return None


def _swizzles(linear: IntArray, table: IntArray, source: int, shift: int) -> bool:
    return bool(((linear ^ (linear & source) >> shift) == table).all())


def _candidates(width: int) -> Iterator[tuple[int, int, int]]:
    for bits in range(1, width):
        for base in range(width - bits):
            for shift in range(bits, width - base):
                yield bits, base, shift


def _layout(plan: Plan, layout: Layout) -> list[str]:
    name = plan.name
    linear, note = _linear_type(layout)
    if not stages(layout):
        return [*note, f"using {name}_layout = {linear};", ""]
    swizzle = swizzle_of(layout)
    if swizzle is not None:
        outer = f"cute::Swizzle<{', '.join(map(str, swizzle))}>"
        lines = []
    else:
        outer = f"{name}_swizzle"
        lines = _functor(plan, layout)
    return [
        *lines,
        *note,
        f"using {name}_layout =",
        f"    cute::ComposedLayout<{outer}, cute::Int<0>, {linear}>;",
        "",
    ]


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


def _functor(plan: Plan, layout: Layout) -> list[str]:
    """What no `Swizzle` says: a functor on the linear offset, checked at every element."""
    value = Layout(layout.shape, layout.element_bytes, layout.digits).table() // layout.element_bytes
    steps = stages(layout)
    last = steps.pop() if layout.swizzle else Var("v")
    lines = []
    for step in steps:
        ranges = {"v": (0, int(value.max()))}
        lines.append(f"        v = {to_c(simplify(step, ranges), ranges)};")
        value = evaluate(step, {"v": value})
    lines.append(f"        return {to_c(last, {'v': (0, 2 * int(value.max()) + 1)})};")
    if (evaluate(last, {"v": value}) * layout.element_bytes != layout.table()).any():
        raise VerificationError("the functor does not equal the table")
    return [
        "// No Swizzle<B, M, S> is this layout: CuTe's moves one run of bits, this one moves others too.",
        "// The functor takes Swizzle's place; it maps the Layout's offset to the one in the tile.",
        f"struct {plan.name}_swizzle {{",
        "    template <class Offset>",
        "    CUTE_HOST_DEVICE constexpr int operator()(Offset const& offset) const {",
        "        int v = offset;",
        *lines,
        "    }",
        "};",
    ]


def _formula(plan: Plan) -> list[str]:
    """A layout known as a formula only: a functor of the coordinates."""
    ranges = plan.coordinate_ranges
    text = to_c(plan.offset, ranges)
    return [
        "// The layout is given as a formula, so this is a functor of the coordinates, not a cute::Layout:",
        "// it can be called as one, but not partitioned.",
        f"struct {plan.name}_layout {{",
        f"    CUTE_HOST_DEVICE constexpr int operator()({', '.join(f'int {x}' for x in ranges)}) const {{",
        *(f"        (void){x};" for x in ranges if x not in text),
        f"        return {text};",
        "    }",
        "};",
        "",
    ]
