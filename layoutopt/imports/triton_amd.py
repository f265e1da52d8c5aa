"""Accumulators and operands of AMD's matrix instructions, as Triton lays them over registers and lanes.

Rules: Triton, lib/Dialect/TritonGPU/IR/LinearLayoutConversions.cpp; the layouts of the instructions
themselves: AMD's ISA documents of CDNA3 and RDNA3 and 4.
"""

from __future__ import annotations

from layoutopt.imports.linear_bases import Bases, Vector, fitted
from layoutopt.imports.triton_text import PrintedLayout, wrong

MFMA_LANES = 64
WMMA_LANES = 32


def mfma(layout: PrintedLayout, tile: Vector, operand: int | None, k_width: int) -> dict[str, list[Vector]]:
    """Bases of an `amd_mfma` layout or of an operand of it (`operand` 0 or 1).

    Raises:
        ProblemFileError: another instruction than 16x16, 32x32, 4x64 and 64x4.
    """
    sides = layout.integers("instrShape", None)[:2]
    if sides not in ([16, 16], [32, 32], [4, 64], [64, 4]):
        raise wrong(f"amd_mfma is read for 16x16, 32x32, 4x64 and 64x4, not {sides}")
    rank = len(tile)
    row, column = rank - 2, rank - 1
    batch = list(range(row))
    warps = layout.powers("warpsPerCTA", rank)
    tiles = layout.powers("tilesPerWarp", rank) if layout.fields.get("tilesPerWarp") else [1] * rank
    if operand is None:
        # Transposed, a lane's registers run along the columns; else along the rows.
        along, across = (column, row) if layout.integer("transposed") else (row, column)
        height = 1 if layout.fields.get("elementBitWidth") == 64 else 4
        extent = sides[across - row]
        built = Bases([column, row, *batch])
        built.grow("register", along, height)
        built.grow("lane", across, extent)
        built.grow("lane", along, MFMA_LANES // extent)
        built.grow("register", along, sides[0] * sides[1] // (MFMA_LANES * height))
        inner = column
    else:
        built, inner = _operand(tile, operand, k_width, sides[operand], MFMA_LANES // sides[operand])
        _over_k(built, tile, inner)
    for dim in (column, row, *batch):
        if operand is None or dim != inner:
            built.grow("register", dim, tiles[dim] if dim in (row, column) else 1)
            built.grow("warp", dim, warps[dim])
            built.grow("register", dim, max(1, tile[dim] // built.size.get(dim, 1)))
        else:
            built.repeat("warp", warps[dim])
    return fitted(built.bases, tile, [inner, row + column - inner, *batch])


def wmma(layout: PrintedLayout, tile: Vector, operand: int | None, k_width: int) -> dict[str, list[Vector]]:
    """Bases of an `amd_wmma` layout of version 1 to 3 or of an operand of it.

    Raises:
        ProblemFileError: another version or instruction.
    """
    version = layout.version()
    shape = layout.integers("instrShape", None) if layout.fields.get("instrShape") else [16, 16]
    if version not in (1, 2, 3) or shape[:2] != [16, 16]:
        raise wrong("amd_wmma is read for versions 1 to 3 and 16x16")
    rank = len(tile)
    row, column = rank - 2, rank - 1
    batch = list(range(row))
    if operand is None:
        along, across = (column, row) if layout.integer("transposed") else (row, column)
        built = Bases([column, row, *batch])
        if version == 1:  # the halves of a wave hold alternate rows
            built.grow("lane", across, 16)
            built.grow("lane", along, 2)
            built.grow("register", along, 8)
        else:
            built.grow("register", along, 8)
            built.grow("lane", across, 16)
            built.grow("lane", along, 2)
        inner = column
    elif version == 1:  # both halves of a wave hold the operand
        built, inner = _operand(tile, operand, 16, 16, 1)
        built.repeat("lane", 2)
    else:
        built, inner = _operand(tile, operand, k_width, 16, WMMA_LANES // 16)
    bases = {part: layout.bases(part, rank) for part in ("register", "warp")}
    if "warpsPerCTA" in layout.fields:
        if bases["warp"]:
            raise wrong("amd_wmma with warpsPerCTA and ctaLayout: the compiler prints one of them")
        bases["warp"] = _warps(layout.powers("warpsPerCTA", rank))
    unit = [16 if d in (row, column) else 1 for d in range(rank)]
    for part, vectors in bases.items():
        for vector in vectors:
            kept = [unit[d] * x if operand is None or d != inner else 0 for d, x in enumerate(vector)]
            if part == "warp" or any(kept):
                built.bases[part].append(tuple(kept))
    if operand is not None:
        _over_k(built, tile, inner)
    return fitted(built.bases, tile, [inner, row + column - inner, *batch])


def _warps(counts: list[int]) -> list[Vector]:
    """Bases of warps side by side, along the columns first, in units of an instruction's tile."""
    order = list(range(len(counts)))[::-1]
    order = [*order[:2], *sorted(order[2:])]
    built = Bases(order)
    for dim in order:
        built.grow("warp", dim, counts[dim])
    return built.bases["warp"]


def _operand(tile: Vector, operand: int, k_width: int, extent: int, groups: int) -> tuple[Bases, int]:
    """Pieces of `k_width` along k, `groups` of them side by side; and which dimension k is."""
    row, column = len(tile) - 2, len(tile) - 1
    inner, outer = (column, row) if operand == 0 else (row, column)
    built = Bases([inner, outer, *range(row)])
    built.grow("register", inner, k_width)
    built.grow("lane", outer, extent)
    built.grow("lane", inner, groups)
    return built, inner


def _over_k(built: Bases, tile: Vector, inner: int) -> None:
    """Further registers for the rest of dimension `inner`."""
    built.grow("register", inner, max(1, tile[inner] // built.size.get(inner, 1)))
