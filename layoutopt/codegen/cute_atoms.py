"""CuTe's atoms of wgmma and tcgen05 (`GMMA::Layout_K_SW128_Atom`, ...), tiled until they are a layout.

CuTe's traits of TMA and of the matrix instructions recognise these types, and not a `Swizzle` over elements
that is equal everywhere. An atom is 8 rows of a mode's span; `tile_to_shape` repeats it along the first
coordinate first (`Step<_1, _2>`) or along the second (`Step<_2, _1>`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from layoutopt.codegen.plan import Plan
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.dictated import ATOM_ROWS, Mode, modes
from layoutopt.problems.answer import MatrixDescriptor

_NAMES: Final = {"none": "INTER", "32B": "SW32", "64B": "SW64", "128B": "SW128"}
_TYPES: Final = {
    "f16": "cute::half_t", "bf16": "cute::bfloat16_t", "f32": "float", "tf32": "cute::tfloat32_t",
    "e4m3": "cute::float_e4m3_t", "e5m2": "cute::float_e5m2_t", "i8": "int8_t", "u8": "uint8_t",
}  # fmt: skip
_BY_SIZE: Final = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t"}


class Tiling(NamedTuple):
    """An atom that tiles a layout.

    Attributes:
        atom: its name, such as `Layout_K_SW128_Atom`.
        step: the order in which it is repeated.
        dims: the tile's dimensions in the order of CuTe's coordinates: M or N, K, matrices.
    """

    atom: str
    step: str
    dims: tuple[int, ...]


def tiling(plan: Plan) -> Tiling | None:
    """The atom that is the layout of a tile of two dimensions, or of three whose first numbers matrices."""
    offsets = plan.table // plan.element_bytes
    if not 2 <= offsets.ndim <= 3 or plan.element_bytes not in _BY_SIZE:
        return None
    dims = _dims(plan)
    turned = offsets.transpose(dims)
    for name, step, table in _tilings(turned.shape, plan.element_bytes):
        if (table == turned).all():
            return Tiling(name, step, dims)
    return None


def _dims(plan: Plan) -> tuple[int, ...]:
    """M or N, then K, then what numbers matrices; where no matrix is read, as in the tile."""
    count = plan.table.ndim
    last = (count - 2, count - 1)
    found = [a.descriptor for a in plan.by_hardware if isinstance(a.descriptor, MatrixDescriptor)]
    if found and found[0].k_dim == count - 2:
        last = (count - 1, count - 2)
    return (*last, *range(count - 2))


def _tilings(shape: tuple[int, ...], size: int) -> Iterator[tuple[str, str, IntArray]]:
    """Every atom in both orders: its name, the order, and element offsets in this shape."""
    a, b = shape[:2]
    for mode in modes("wgmma"):
        span = (mode.span_bytes or 0) // size
        for major, (rows, line) in (("K", (a, b)), ("MN", (b, a))):
            if rows % ATOM_ROWS or line % span:
                continue
            for step, page in (("1, 2", major == "K"), ("2, 1", major == "MN")):
                table = _table(rows, line, span, mode, size, rows_first=page)
                table = table if major == "K" else table.T
                if len(shape) > 2:
                    table = table[..., None] + np.arange(shape[2]) * a * b
                    step += ", 3"
                name = f"Layout_{major}_{_NAMES[mode.short]}_Atom"
                yield name, ", ".join(f"cute::_{n}" for n in step.split(", ")), table


def _table(rows: int, line: int, span: int, mode: Mode, size: int, *, rows_first: bool) -> IntArray:
    """Element offsets of an atom of 8 rows that is repeated along rows first, or along lines first."""
    r, c = np.arange(rows)[:, None], np.arange(line)
    across, along = r // ATOM_ROWS, c // span
    number = across + along * (rows // ATOM_ROWS) if rows_first else along + across * (line // span)
    linear = number * ATOM_ROWS * span + r % ATOM_ROWS * span + c % span
    moved: IntArray = mode.flipped(linear * size) // size
    return moved


def atom_lines(plan: Plan) -> list[str]:
    """The layout as CuTe's TMA and matrix instructions know it, where they reach the tile."""
    if not plan.dictated:
        return []
    found = tiling(plan)
    if found is None:
        return [
            "// For CuTe's TMA and matrix instructions an atom (GMMA::Layout_K_SW128_Atom, ...) would have",
            "// to tile it, and none does.",
        ]
    name, shape = f"{plan.name}_smem", plan.problem.tile.shape
    element = plan.problem.tile.element
    kind = _TYPES.get(element if isinstance(element, str) else "", _BY_SIZE[plan.element_bytes])
    extents = ", ".join(f"cute::Int<{shape[d]}>" for d in found.dims)
    coordinates = ", ".join(f"x{d}" for d in found.dims)
    return [
        "",
        "// The same for CuTe's TMA and matrix instructions, which know it by its atom; its coordinates are",
        f"// {coordinates}.",
        "#include <cute/tensor.hpp>",
        "#include <cute/atom/mma_traits_sm90_gmma.hpp>",
        f"using {name} = decltype(cute::tile_to_shape(",
        f"    cute::GMMA::{found.atom}<{kind}>{{}},",
        f"    cute::Shape<{extents}>{{}}, cute::Step<{found.step}>{{}}));",
        f"using {name}_offset = decltype(cute::as_position_independent_swizzle_layout({name}{{}}));",
        *(
            f"static_assert({name}_offset{{}}({', '.join(str(point[d]) for d in found.dims)}) == "
            f'{offset // plan.element_bytes}, "the atom");'
            for point, offset in plan.sample
        ),
    ]
