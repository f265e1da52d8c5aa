"""Triton's shared layouts: where each element of a tensor lies, as the compiler or Gluon prints it.

    #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>
    #ttg.padded_shared<[32:+4] {order = [1, 0], shape = [128, 64]}>
    #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>

also `amd_rotating_shared` and `shared_linear`. But for the pads all are linear over F2: bit i of the offset,
in elements, has a basis vector in the tensor (Triton, lib/Dialect/TritonGPU/IR/LinearLayoutConversions.cpp).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from layoutopt.expressions.bits import combinations
from layoutopt.expressions.fit import fit, join
from layoutopt.expressions.grammar import Const, Op, tabulated, to_text
from layoutopt.ground.arrays import IntArray
from layoutopt.imports.triton import along
from layoutopt.imports.triton_text import PrintedLayout, Vector, of_tile, parse, wrong

KINDS: Final = ("swizzled_shared", "padded_shared", "nvmma_shared", "amd_rotating_shared", "shared_linear")
MAX_ELEMENTS: Final = 1 << 20
TMA_BOX: Final = 256  # elements of a box along a dimension at most (CUDA driver API, cuTensorMapEncodeTiled)


def is_shared(text: str) -> bool:
    """Whether the text is a layout of shared memory."""
    return parse(text).kind in KINDS


def offsets(text: str, tile: Sequence[int]) -> tuple[IntArray, str | None]:
    """Where each element lies, and the formula for it.

    Args:
        text: the layout, and the aliases that it uses.
        tile: extents of the tensor, powers of two.

    Returns:
        int64 offsets in elements, in the shape of the tile, and the expression over x0, x1, ...: None where
        none is found.

    Raises:
        ProblemFileError: the text is no layout that is read here, or does not go with the tile.
    """
    layout = of_tile(text, tile, MAX_ELEMENTS)
    bases = _bases(layout, tuple(tile))
    table = np.full(tuple(tile), -1, np.int64)
    if 1 << len(bases) != table.size or any(x >= e for v in bases for x, e in zip(v, tile, strict=True)):
        raise wrong(f"its {len(bases)} bases are not those of a tensor of {'x'.join(map(str, tile))}")
    coordinates = combinations(bases, len(tile))
    table[tuple(coordinates.T)] = np.arange(len(coordinates))
    if (table < 0).any():
        raise wrong("two offsets hold one element")
    formula, pads = fit(table, {f"x{d}": n for d, n in enumerate(tile)}), _pads(layout)
    padded = table + sum((table // interval * pad for interval, pad in pads), np.zeros_like(table))
    if formula is None:
        return padded, None
    left_out = [Op("*", (Op("//", (formula, Const(interval))), Const(pad))) for interval, pad in pads]
    whole = join("+", [formula, *left_out])
    return padded, to_text(whole) if (tabulated(whole, tile) == padded).all() else None


def _pads(layout: PrintedLayout) -> list[Vector]:
    """Elements left out after every so many, of a padded layout."""
    if layout.kind != "padded_shared":
        return []
    pairs = layout.vectors("interval_padding_pairs", 2)
    if any(n < 1 or n & (n - 1) or n > 1 << 20 for pair in pairs for n in pair):
        raise wrong("intervals and pads are powers of two")
    return pairs


def _bases(layout: PrintedLayout, tile: Vector) -> list[Vector]:
    """The coordinates of each power-of-two offset, without pads."""
    rank = len(tile)
    match layout.kind:
        case "swizzled_shared" | "amd_rotating_shared":
            order, rotates = layout.order(rank), layout.kind == "amd_rotating_shared"
            vector, per_phase, phases = map(layout.power, ("vec", "perPhase", "maxPhase"))
            return swizzled(tile, order, vector, per_phase, phases, rotates=rotates)
        case "nvmma_shared":
            return _nvmma(layout, tile)
        case "padded_shared" if "offset" not in layout.fields:
            return [vector for dim in layout.order(rank) for vector in along(dim, 1, tile[dim], rank)]
        case "shared_linear" | "padded_shared":
            return layout.vectors("offset", rank)
    raise wrong(f"{layout.kind!r} is no shared layout: {', '.join(KINDS)}")


def swizzled(
    tile: Vector, order: Sequence[int], vector: int, per_phase: int, phases: int, *, rotates: bool = False
) -> list[Vector]:
    """Vectors of `vector` elements change place with the row: each `per_phase` rows the next of `phases`.

    A layout that rotates (AMD) starts each `per_phase * phases` rows at another phase. `order` lists the
    fastest dimension first.
    """
    rank, fast = len(tile), order[0]
    found = along(fast, 1, tile[fast], rank)
    for dim in order[1:]:
        for row in along(dim, 1, tile[dim], rank):
            phase = row[dim] // per_phase % phases
            if rotates:
                phase ^= row[dim] // per_phase // phases % phases
            found.append(_moved(row, fast, vector * phase % tile[fast] if dim == order[1] else 0))
    return found


def _moved(vector: Vector, dim: int, to: int) -> Vector:
    return (*vector[:dim], to, *vector[dim + 1 :])


def _nvmma(layout: PrintedLayout, tile: Vector) -> list[Vector]:
    """Boxes as TMA writes them: rows of the swizzle's width, whose 16-byte pieces XOR with the row."""
    rank = len(tile)
    width, bits = layout.integer("swizzlingByteWidth"), layout.power("elementBitWidth")
    transposed = bool(layout.fields.get("transposed"))
    if rank > 2 and transposed:
        raise wrong("nvmma_shared with transposed = true is read for two dimensions")
    if layout.fields.get("fp4Padded"):
        raise wrong("nvmma_shared with fp4Padded leaves gaps between elements of 4 bits")
    if width not in (0, 32, 64, 128) or bits not in (8, 16, 32, 64):
        raise wrong("nvmma_shared is read for 0, 32, 64 and 128 bytes and elements of 8, 16, 32 and 64 bits")
    # The dimension that lies contiguous, and the others from fast to slow.
    fast, *others = range(rank) if transposed else range(rank)[::-1]
    box = [min(extent, TMA_BOX) for extent in tile]
    if width:
        box[fast] = min(box[fast], width * 8 // bits)
        if box[fast] * bits < width * 8 or rank < 2:
            raise wrong(f"its rows are {width} bytes wide, and the tile is narrower")
    found = along(fast, 1, box[fast], rank)
    piece, phases, row = 128 // bits, width // 16, 1
    for vector in [vector for dim in others for vector in along(dim, 1, box[dim], rank)]:
        phase = row // (8 // phases) % phases if width and row < 8 else 0
        found.append(_moved(vector, fast, piece * phase))
        row *= 2
    return found + [vector for dim in range(rank) for vector in along(dim, box[dim], tile[dim], rank)]
