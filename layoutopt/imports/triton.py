"""Triton's distributed layouts, as the compiler or Gluon prints them.

    #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
    BlockedLayout(size_per_thread=[1, 8], threads_per_warp=[4, 8], warps_per_cta=[4, 1], order=[1, 0])

also `nvidia_mma`, `amd_mfma`, `amd_wmma`, `dot_op`, `slice` and `linear`, with aliases (`#mma = ...` lines
before). All are linear over F2: a power-of-two place of a register, lane or warp has a basis vector in the
tile, and what a thread holds is the XOR of the bases of its bits (Triton,
include/triton/Tools/LinearLayout.h). A layout smaller than the tile is repeated in more registers; of one
that is larger, the bases beyond the tile are zero (and left out of a blocked layout's registers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.imports.linear_bases import PARTS, Bases, Vector, combinations, fitted
from layoutopt.imports.triton_amd import mfma, wmma
from layoutopt.imports.triton_text import PrintedLayout, check_tile, parse, wrong

MATRICES: Final = ("nvidia_mma", "amd_mfma", "amd_wmma")
MAX_VALUES: Final = 1 << 22
MAX_BASES: Final = 22


def thread_values(text: str, tile: Sequence[int], lanes: int = 32) -> IntArray:
    """The element of each thread and register.

    Args:
        text: the layout, and the aliases that it uses.
        tile: extents of the tensor, powers of two.
        lanes: threads of a warp of the GPU.

    Returns:
        int64, shape (threads, registers, dimensions).

    Raises:
        ProblemFileError: the text is no layout that is read here, or does not go with the tile.
    """
    check_tile(tile)
    layout = parse(text)
    if math.prod(tile) > MAX_VALUES:
        raise ProblemFileError("--tile", f"at most {MAX_VALUES} elements")
    bases = _bases(layout, tuple(tile))
    if 1 << len(bases["lane"]) != lanes:
        raise wrong(f"its warps have {1 << len(bases['lane'])} threads, those of the target {lanes}")
    if sum(map(len, bases.values())) > MAX_BASES:
        raise wrong(f"it has more than 2**{MAX_BASES} values")
    registers, within, warps = (combinations(bases[part], len(tile)) for part in PARTS)
    threads = (warps[:, None] ^ within[None, :]).reshape(-1, len(tile))
    return threads[:, None] ^ registers[None, :]


def _bases(layout: PrintedLayout, tile: Vector) -> dict[str, list[Vector]]:
    """The bases of each part, for a tensor of extents `tile`."""
    match layout.kind:
        case "slice":
            dim = layout.integer("dim")
            parent = layout.layout("parent")
            if not 0 <= dim <= len(tile):
                raise wrong(f"slice of dimension {dim} does not go with {len(tile)} dimensions")
            whole = (*tile[:dim], 1, *tile[dim:])
            found = _bases(parent, whole)
            cut = {part: [(*v[:dim], *v[dim + 1 :]) for v in vectors] for part, vectors in found.items()}
            # A register that differs only in what is sliced away holds the same element again.
            return {**cut, "register": [v for v in cut["register"] if any(v)]}
        case "linear":
            found = {part: layout.vectors(part, len(tile)) for part in PARTS}
            return fitted(found, tile, list(range(len(tile)))[::-1])
        case "blocked":
            order = layout.integers("order", len(tile))
            if sorted(order) != list(range(len(tile))):
                raise wrong(f"order {order} is no order of {len(tile)} dimensions")
            built = Bases(order)
            for part, name in zip(PARTS, ("sizePerThread", "threadsPerWarp", "warpsPerCTA"), strict=True):
                counts = layout.powers(name, len(tile))
                for dim in order:
                    built.grow(part, dim, counts[dim])
            within = fitted(built.bases, tile, order)
            return {**within, "register": [v for v in within["register"] if any(v)]}
        case "dot_op":
            parent, operand = layout.layout("parent"), layout.integer("opIdx")
            if operand not in (0, 1):
                raise wrong("dot_op has operands 0 and 1")
            if parent.kind == "blocked":
                return _multiplied(parent, tile, 1 - operand)
            return _matrix(parent, tile, operand, layout.power("kWidth"))
        case "nvidia_mma" | "amd_mfma" | "amd_wmma":
            return _matrix(layout, tile, None, 2)
    raise wrong(f"{layout.kind!r} is none of blocked, {', '.join(MATRICES)}, dot_op, slice, linear")


def _multiplied(parent: PrintedLayout, tile: Vector, inner: int) -> dict[str, list[Vector]]:
    """Operand of a product without matrix instructions: all of dimension `inner`, which is summed over."""
    order = parent.integers("order", 2)
    if sorted(order) != [0, 1] or len(tile) != 2:
        raise wrong("dot_op of a blocked layout is read for two dimensions")
    built = Bases(order)
    held = parent.powers("sizePerThread", 2)
    for dim in order:
        built.grow("register", dim, tile[inner] if dim == inner else held[dim])
    for part, name in (("lane", "threadsPerWarp"), ("warp", "warpsPerCTA")):
        counts = parent.powers(name, 2)
        for dim in order:
            if dim == inner:
                built.repeat(part, counts[dim])
            else:
                built.grow(part, dim, counts[dim])
    return fitted(built.bases, tile, order)


def _matrix(
    layout: PrintedLayout, tile: Vector, operand: int | None, k_width: int
) -> dict[str, list[Vector]]:
    """Accumulator (`operand` None) or operand of a matrix instruction."""
    if layout.kind not in MATRICES:
        raise wrong(f"dot_op is read for {', '.join(MATRICES)}")
    if len(tile) not in (2, 3):
        raise wrong(f"{layout.kind} is read for two dimensions, and three of which the first is a batch")
    if layout.kind == "nvidia_mma":
        return _mma(layout, tile, operand, k_width)
    return (mfma if layout.kind == "amd_mfma" else wmma)(layout, tile, operand, k_width)


def _mma(layout: PrintedLayout, tile: Vector, operand: int | None, k_width: int) -> dict[str, list[Vector]]:
    """Accumulator (`operand` None) or operand of mma.sync and wgmma, by Triton's rules for them."""
    version = layout.version()
    if version not in (2, 3):
        raise wrong("nvidia_mma is read for versions 2 and 3")
    rank = len(tile)
    row, column = rank - 2, rank - 1
    warps = layout.powers("warpsPerCTA", rank)
    instruction = layout.integers("instrShape", None)
    inner, outer = (row, column) if operand == 1 else (column, row)
    if operand is None:
        place = column if version == 2 else 1
        extent = {row: 16, column: instruction[place] if len(instruction) > place else 8}
    else:
        extent = {inner: 8 * k_width, outer: 16 if operand == 0 else 8}
    if extent[inner] & (extent[inner] - 1) or extent[inner] < 4 * k_width:
        raise wrong(f"instrShape {instruction} is not read: {extent[inner]} columns")
    batch = list(range(row))
    built = Bases([inner, outer, *batch])
    built.grow("register", inner, k_width)
    built.grow("lane", inner, 4)
    built.grow("lane", outer, 8)
    built.grow("register", outer, extent[outer] // 8)
    built.grow("register", inner, extent[inner] // (4 * k_width))
    # Warps follow rows first on Ampere, columns first on Hopper; along k they hold the same.
    for dim in (column, row, *batch) if version == 2 else (*batch, row, column):
        if operand is not None and dim == inner:
            built.repeat("warp", warps[dim])
        else:
            built.grow("warp", dim, warps[dim])
    return fitted(built.bases, tile, [inner, outer, *batch])
