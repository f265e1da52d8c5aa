"""Triton's shared layouts: where each element of a tensor lies, as the compiler or Gluon prints it.

    #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>
    #ttg.padded_shared<[32:+4] {order = [1, 0], shape = [128, 64]}>
    #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>

also `amd_rotating_shared` and `shared_linear`. But for the pads all are linear over F2: bit i of the offset,
in elements, has a basis vector in the tensor (Triton, lib/Dialect/TritonGPU/IR/LinearLayoutConversions.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.expressions.fit import fit, join
from layoutopt.expressions.grammar import Const, Node, Op, evaluate, to_text
from layoutopt.ground.arrays import IntArray
from layoutopt.imports.linear_bases import Vector, combinations
from layoutopt.imports.triton_text import PrintedLayout, check_tile, parse, wrong

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
        int64 element offsets in the shape of the tile, and the expression over x0, x1, ...: None where none
        is found.

    Raises:
        ProblemFileError: the text is no shared layout that is read here, or does not go with the tile.
    """
    check_tile(tile)
    if math.prod(tile) > MAX_ELEMENTS:
        raise ProblemFileError("--tile", f"at most {MAX_ELEMENTS} elements")
    layout = parse(text)
    bases = _bases(layout, tuple(tile))
    table = np.full(tuple(tile), -1, np.int64)
    if 1 << len(bases) != table.size or any(x >= e for v in bases for x, e in zip(v, tile, strict=True)):
        raise wrong(f"its {len(bases)} bases are not those of a tensor of {'x'.join(map(str, tile))}")
    coordinates = combinations(bases, len(tile))
    table[tuple(coordinates.T)] = np.arange(len(coordinates))
    if (table < 0).any():
        raise wrong("two offsets hold one element")
    formula = fit(table, {f"x{d}": extent for d, extent in enumerate(tile)})
    pads = _pads(layout)
    padded = table + sum((table // interval * pad for interval, pad in pads), np.zeros_like(table))
    return padded, None if formula is None else _padded_text(formula, pads, padded)


def _padded_text(formula: Node, pads: list[tuple[int, int]], table: IntArray) -> str | None:
    """The formula with `pad` more for every `interval`, if that is the table."""
    left_out = [Op("*", (Op("//", (formula, Const(interval))), Const(pad))) for interval, pad in pads]
    whole = join("+", [formula, *left_out])
    coordinates: dict[str, IntArray] = {}
    for d, extent in enumerate(table.shape):
        coordinates[f"x{d}"] = np.arange(extent).reshape([-1 if e == d else 1 for e in range(table.ndim)])
    return to_text(whole) if (evaluate(whole, coordinates) == table).all() else None


def _pads(layout: PrintedLayout) -> list[tuple[int, int]]:
    """Elements left out after every so many, of a padded layout."""
    if layout.kind != "padded_shared":
        return []
    pairs = layout.vectors("interval_padding_pairs", 2)
    if any(n < 1 or n & (n - 1) or n > 1 << 20 for pair in pairs for n in pair):
        raise wrong("intervals and pads are powers of two")
    return [(pair[0], pair[1]) for pair in pairs]


def _bases(layout: PrintedLayout, tile: Vector) -> list[Vector]:
    """The coordinates of each power-of-two offset, without pads."""
    rank = len(tile)
    match layout.kind:
        case "swizzled_shared" | "amd_rotating_shared":
            return _swizzled(layout, tile)
        case "nvmma_shared":
            return _nvmma(layout, tile)
        case "shared_linear":
            return layout.vectors("offset", rank)
        case "padded_shared":
            if "offset" in layout.fields:
                return layout.vectors("offset", rank)
            return [vector for dim in _order(layout, rank) for vector in _along(dim, 1, tile[dim], rank)]
    raise wrong(f"{layout.kind!r} is no shared layout: {', '.join(KINDS)}")


def _order(layout: PrintedLayout, rank: int) -> list[int]:
    order = layout.integers("order", rank)
    if sorted(order) != list(range(rank)):
        raise wrong(f"order {order} is no order of {rank} dimensions")
    return order


def _along(dim: int, start: int, stop: int, rank: int) -> list[Vector]:
    """Unit vectors along a dimension, from `start` to before `stop`."""
    steps = range(start.bit_length() - 1, stop.bit_length() - 1)
    return [tuple(1 << step if d == dim else 0 for d in range(rank)) for step in steps]


def _swizzled(layout: PrintedLayout, tile: Vector) -> list[Vector]:
    """Vectors of `vec` elements change place with the row: each `perPhase` rows the next of `maxPhase`.

    A rotating layout (AMD) starts each `perPhase * maxPhase` rows at another phase.
    """
    rank = len(tile)
    order = _order(layout, rank)
    vector, per_phase, phases = (layout.power(name) for name in ("vec", "perPhase", "maxPhase"))
    found = _along(order[0], 1, tile[order[0]], rank)
    for number, dim in enumerate(order[1:]):
        for unit in _along(dim, 1, tile[dim], rank):
            phase = unit[dim] // per_phase % phases
            if layout.kind == "amd_rotating_shared":
                phase ^= unit[dim] // per_phase // phases % phases
            moved = list(unit)
            moved[order[0]] = vector * phase % tile[order[0]] if number == 0 else 0
            found.append(tuple(moved))
    return found


def _nvmma(layout: PrintedLayout, tile: Vector) -> list[Vector]:
    """Boxes as TMA writes them: rows of the swizzle's width, whose 16-byte pieces XOR with the row."""
    rank = len(tile)
    width, bits = layout.integer("swizzlingByteWidth"), layout.power("elementBitWidth")
    if rank > 2 and layout.fields.get("transposed"):
        raise wrong("nvmma_shared with transposed = true is read for two dimensions")
    if layout.fields.get("fp4Padded"):
        raise wrong(f"nvmma_shared with {layout.spelt('fp4Padded')} leaves gaps between elements of 4 bits")
    if width not in (0, 32, 64, 128) or bits not in (8, 16, 32, 64):
        raise wrong("nvmma_shared is read for 0, 32, 64 and 128 bytes and elements of 8, 16, 32 and 64 bits")
    transposed = bool(layout.fields.get("transposed"))
    # The dimension that lies contiguous, and the others from fast to slow.
    fast = 0 if transposed else rank - 1
    others = list(range(1, rank))[::-1] if transposed else list(range(rank - 1))[::-1]
    box = [min(extent, TMA_BOX) for extent in tile]
    if width:
        box[fast] = min(box[fast], width * 8 // bits)
        if box[fast] * bits < width * 8 or rank < 2:
            raise wrong(f"its rows are {width} bytes wide, and the tile is narrower")
    found = _along(fast, 1, box[fast], rank)
    piece, phases, row = 128 // bits, width // 16, 1
    for dim in others:
        for unit in _along(dim, 1, box[dim], rank):
            moved = list(unit)
            if width and row < 8:
                moved[fast] = piece * (row // (8 // phases) % phases)
            found.append(tuple(moved))
            row *= 2
    for dim in range(rank):
        found += _along(dim, box[dim], tile[dim], rank)
    return found
