"""Triton Gluon: the layout object that `allocate_shared_memory` takes.

Gluon's shared layouts map offsets to coordinates, and each is one of three kinds: a row-major tile
whose vectors are XORed by rows (`SwizzledSharedLayout`), any map that is linear over F2
(`SharedLinearLayout`), or such a map with padding inserted every power of two of elements
(`PaddedSharedLayout`). A tile that TMA or a matrix instruction reaches must be a fourth
(`NVMMASharedLayout`), whatever else it is equal to. All need extents that are powers of two. The layout's
table is compared with each kind, so what is printed is equal to it everywhere or is not printed.
"""

from itertools import permutations, product
from typing import Final

import numpy as np

from layoutopt.codegen.plan import Plan
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.imports.triton_shared import offsets as shared_offsets
from layoutopt.imports.triton_shared import swizzled
from layoutopt.layout.forms import offset_bases, padded_form

_TYPES: Final = {
    "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32",
    "i64": "int64", "u64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32",
    "f64": "float64", "e4m3": "float8e4nv", "e5m2": "float8e5", "tf32": "float32",
}  # fmt: skip


def emit(plan: Plan) -> str:
    """A Python module that defines the layout.

    Raises:
        LayoutError: none of Gluon's layouts is this one.
    """
    element, shape = plan.problem.tile.element, list(plan.problem.tile.shape)
    name = f"{plan.name}_layout"
    kind = f"gl.{_TYPES[element]}" if isinstance(element, str) and element in _TYPES else "dtype"
    lines = [
        *(f"# {line}" for line in plan.headlines),
        "from triton.experimental.gluon import language as gl",
        "",
        f"{name} = gl.{expression(plan)}",
        f"# smem = gl.allocate_shared_memory({kind}, {shape}, {name})",
    ]
    return "\n".join(lines) + "\n"


def expression(plan: Plan) -> str:
    """The layout object, without the module in front."""
    shape = plan.problem.tile.shape
    offsets = plan.table // plan.element_bytes
    if any(n & (n - 1) for n in shape):
        raise LayoutError(
            f"Gluon's shared layouts need extents that are powers of two, not {'x'.join(map(str, shape))}; "
            "--lang cuda, c, cute, tilelang or numba can express this layout"
        )
    if plan.dictated:
        return _of_matrices(offsets, 8 * plan.element_bytes)
    bases = offset_bases(offsets)
    dense = bool((np.sort(offsets.ravel()) == np.arange(offsets.size)).all())
    if bases is not None and dense:
        return _swizzled(bases, shape) or f"SharedLinearLayout({bases}, [], {plan.alignment_bytes})"
    form = padded_form(offsets)
    if form.data is not None:
        return f"PaddedSharedLayout({', '.join(map(str, form.data.values()))}, [], {list(shape)})"
    raise LayoutError(
        "Gluon's shared layouts are XOR swizzles, or pads of a power of two after every power of two of "
        "elements, and this layout is neither; --lang cuda, c, cute, tilelang or numba can express it: "
        f"{form.reason}"
    )


def _of_matrices(offsets: IntArray, bits: int) -> str:
    """`NVMMASharedLayout`, which Gluon's TMA and matrix instructions take, and no other that is equal."""
    rank = offsets.ndim
    for width, turned in product((128, 64, 32, 0), (False, True) if rank == 2 else (False,)):
        fields = f"swizzlingByteWidth = {width}, transposed = {str(turned).lower()}, elementBitWidth = {bits}"
        try:
            made, _ = shared_offsets(f"#ttg.nvmma_shared<{{{fields}, rank = {rank}}}>", offsets.shape)
        except ProblemFileError:  # the tile is narrower than the width
            continue
        if (made == offsets).all():
            return f"NVMMASharedLayout({width}, {bits}, {rank}" + (", transposed=True)" if turned else ")")
    raise LayoutError(
        "Gluon's TMA and matrix instructions take NVMMASharedLayout: pages as wide as the swizzle, each with "
        "all rows; this layout is none; --lang cuda can express it"
    )


def _swizzled(bases: list[list[int]], shape: tuple[int, ...]) -> str | None:
    """`SwizzledSharedLayout(vec, per_phase, max_phase, order)` of these bases, if there is one."""
    for order in permutations(range(len(shape))) if len(shape) > 1 else ():
        fast, rows, columns = order[0], shape[order[1]], shape[order[0]]
        # Without what rows move along the fastest dimension, it is the layout without a swizzle.
        inside = columns.bit_length() - 1
        unmoved = [v if k < inside else [*v[:fast], 0, *v[fast + 1 :]] for k, v in enumerate(bases)]
        if unmoved != list(map(list, swizzled(shape, order, 1, 1, 1))):
            continue
        for vec, per_phase, max_phase in product(_powers(columns), _powers(rows), _powers(columns)):
            made = swizzled(shape, order, vec, per_phase, max_phase)
            if vec * max_phase <= columns and list(map(list, made)) == bases:
                return f"SwizzledSharedLayout({vec}, {per_phase}, {max_phase}, {list(order)})"
    return None


def _powers(limit: int) -> list[int]:
    return [1 << k for k in range(limit.bit_length())]
