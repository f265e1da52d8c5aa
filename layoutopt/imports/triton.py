"""Triton's distributed layouts, as the compiler or Gluon prints them.

    #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
    BlockedLayout(size_per_thread=[1, 8], threads_per_warp=[4, 8], warps_per_cta=[4, 1], order=[1, 0])

also `nvidia_mma`, `amd_mfma`, `amd_wmma`, `dot_op`, `slice` and `linear`, with aliases (`#mma = ...` lines
before). All are linear over F2: a power-of-two place of a register, lane or warp has a basis vector in the
tile, and what a thread holds is the XOR of the bases of its bits (Triton,
include/triton/Tools/LinearLayout.h, lib/Dialect/TritonGPU/IR/LinearLayoutConversions.cpp; the matrix
instructions of AMD: the ISA documents of CDNA3 and RDNA3 and 4). Nearly all are told by steps: so many
consecutive registers, lanes or warps go along one dimension. A layout smaller than the tile is repeated in
more registers; of one that is larger, the bases beyond the tile are zero (and left out of a blocked layout's
registers).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from layoutopt.expressions.bits import held_coordinates
from layoutopt.ground.arrays import IntArray
from layoutopt.imports.triton_text import PrintedLayout, Vector, of_tile, wrong

PARTS: Final = ("register", "lane", "warp")
MAX_VALUES: Final = 1 << 22
MAX_BASES: Final = 22
_MFMA_LANES: Final = 64
_WMMA_LANES: Final = 32

Bases = dict[str, list[Vector]]
# So many consecutive values of a part go along a dimension (None: hold the same), in units of what the steps
# before cover of it; 0 for as many as are left of the tile. Or one bit of a part, by its vector.
Step = tuple[str, int | None, int] | tuple[str, Vector]


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
    return held_coordinates(linear_bases(text, tile, lanes), len(tile))


def linear_bases(text: str, tile: Sequence[int], lanes: int = 32) -> Bases:
    """What each bit of a register, lane and warp adds to the coordinates, by XOR.

    Arguments and errors are those of `thread_values`.
    """
    bases = _bases(of_tile(text, tile, MAX_VALUES), tuple(tile))
    if 1 << len(bases["lane"]) != lanes:
        raise wrong(f"its warps have {1 << len(bases['lane'])} threads, those of the target {lanes}")
    if sum(map(len, bases.values())) > MAX_BASES:
        raise wrong(f"it has more than 2**{MAX_BASES} values")
    return bases


def unit(dim: int | None, length: int, rank: int) -> Vector:
    """The vector of this length along a dimension; zero along None."""
    return tuple(length if d == dim else 0 for d in range(rank))


def along(dim: int | None, start: int, stop: int, rank: int) -> list[Vector]:
    """Unit vectors along a dimension, from `start` to before `stop`; zeros along None."""
    return [unit(dim, 1 << step, rank) for step in range(start.bit_length() - 1, stop.bit_length() - 1)]


def _grown(steps: Iterable[Step], tile: Vector) -> Bases:
    """The bases after these steps, one after another."""
    bases: Bases = {part: [] for part in PARTS}
    size = [1] * len(tile)
    for part, where, *count in steps:
        if isinstance(where, tuple):
            bases[part].append(where)
            continue
        start = size[where or 0]
        end = start * (count[0] or max(1, tile[where or 0] // start))
        bases[part] += along(where, start, end, len(tile))
        if where is not None:
            size[where] = 1 << (end.bit_length() - 1)
    return bases


def _fitted(bases: Bases, tile: Vector, dims: Sequence[int]) -> Bases:
    """Bases within the tile: those beyond it zero, and registers along `dims` for what they do not reach."""
    rank = len(tile)
    cut = {
        part: [v if all(x < e for x, e in zip(v, tile, strict=True)) else (0,) * rank for v in vectors]
        for part, vectors in bases.items()
    }
    every = [v for vectors in bases.values() for v in vectors]
    for dim in dims:
        reach = 1 << max((v[dim].bit_length() for v in every), default=0)
        cut["register"] += along(dim, reach, tile[dim], rank)
    return cut


def _bases(layout: PrintedLayout, tile: Vector) -> Bases:
    """The bases of each part, for a tensor of extents `tile`."""
    rank = len(tile)
    match layout.kind:
        case "slice":
            dim, parent = layout.integer("dim"), layout.layout("parent")
            if not 0 <= dim <= rank:
                raise wrong(f"slice of dimension {dim} does not go with {rank} dimensions")
            found = _bases(parent, (*tile[:dim], 1, *tile[dim:]))
            return _needed({part: [(*v[:dim], *v[dim + 1 :]) for v in found[part]] for part in PARTS})
        case "linear":
            found = {part: layout.vectors(part, rank) for part in PARTS}
            return _fitted(found, tile, range(rank)[::-1])
        case "blocked":
            order, counts = layout.order(rank), _counts(layout, rank)
            steps = [(part, dim, counts[part][dim]) for part in PARTS for dim in order]
            return _needed(_fitted(_grown(steps, tile), tile, order))
        case "dot_op":
            parent, operand = layout.layout("parent"), layout.integer("opIdx")
            if operand not in (0, 1):
                raise wrong("dot_op has operands 0 and 1")
            if parent.kind == "blocked":
                return _multiplied(parent, tile, rank - 1 - operand)
            return _matrix(parent, tile, operand, layout.power("kWidth"))
        case kind if kind in _INSTRUCTIONS:
            return _matrix(layout, tile, None, 2)
    raise wrong(f"{layout.kind!r} is none of blocked, {', '.join(_INSTRUCTIONS)}, dot_op, slice, linear")


def _needed(bases: Bases) -> Bases:
    """Without registers that hold the same element again."""
    return {**bases, "register": [v for v in bases["register"] if any(v)]}


def _counts(layout: PrintedLayout, rank: int) -> dict[str, list[int]]:
    names = zip(PARTS, ("sizePerThread", "threadsPerWarp", "warpsPerCTA"), strict=True)
    return {part: layout.powers(name, rank) for part, name in names}


def _multiplied(parent: PrintedLayout, tile: Vector, inner: int) -> Bases:
    """Operand of a product without matrix instructions: all of dimension `inner`, which is summed over."""
    if len(tile) < 2:
        raise wrong("dot_op is of at least two dimensions")
    order, counts = parent.order(len(tile)), _counts(parent, len(tile))
    counts["register"][inner] = tile[inner]
    steps = [
        (part, None if dim == inner and part != "register" else dim, counts[part][dim])
        for part in PARTS
        for dim in order
    ]
    return _fitted(_grown(steps, tile), tile, order)


def _matrix(layout: PrintedLayout, tile: Vector, operand: int | None, k_width: int) -> Bases:
    """Accumulator (`operand` None) or operand of a matrix instruction."""
    if layout.kind not in _INSTRUCTIONS:
        raise wrong(f"dot_op is read for {', '.join(_INSTRUCTIONS)}")
    rank = len(tile)
    if rank not in (2, 3):
        raise wrong(f"{layout.kind} is read for two dimensions, and three of which the first is a batch")
    row, column = rank - 2, rank - 1
    inner, outer = (row, column) if operand == 1 else (column, row)
    steps = _INSTRUCTIONS[layout.kind](layout, (inner, outer), operand, k_width)
    return _fitted(_grown(steps, tile), tile, [inner, outer, *range(row)])


def _mma(layout: PrintedLayout, dims: Vector, operand: int | None, k_width: int) -> list[Step]:
    """mma.sync and wgmma; `dims` are k and the other one, of an accumulator columns and rows."""
    version, (inner, outer), rank = layout.version(), dims, max(dims) + 1
    if version not in (2, 3):
        raise wrong("nvidia_mma is read for versions 2 and 3")
    warps, instruction = layout.powers("warpsPerCTA", rank), layout.integers("instrShape", None)
    if operand is None:
        place = rank - 1 if version == 2 else 1
        along, across = instruction[place] if len(instruction) > place else 8, 16
    else:
        along, across = 8 * k_width, 16 if operand == 0 else 8
    if along & (along - 1) or along < 4 * k_width:
        raise wrong(f"instrShape {instruction} is not read: {along} columns")
    steps: list[Step] = [
        ("register", inner, k_width), ("lane", inner, 4), ("lane", outer, 8),
        ("register", outer, across // 8), ("register", inner, along // (4 * k_width)),
    ]  # fmt: skip
    # Warps follow rows first on Ampere, columns first on Hopper; along k they hold the same.
    order = range(rank) if version == 3 else (rank - 1, rank - 2, *range(rank - 2))
    return steps + [("warp", _but_k(dim, inner, operand), warps[dim]) for dim in order]


def _but_k(dim: int, inner: int, operand: int | None) -> int | None:
    """The dimension along which warps go; none where it is the one that an operand has all of."""
    return None if operand is not None and dim == inner else dim


def _mfma(layout: PrintedLayout, dims: Vector, operand: int | None, k_width: int) -> list[Step]:
    """AMD's matrix instructions of CDNA."""
    sides = layout.integers("instrShape", None)[:2]
    if sides not in ([16, 16], [32, 32], [4, 64], [64, 4]):
        raise wrong(f"amd_mfma is read for 16x16, 32x32, 4x64 and 64x4, not {sides}")
    inner, rank = dims[0], max(dims) + 1
    row, column = rank - 2, rank - 1
    warps = layout.powers("warpsPerCTA", rank)
    tiles = layout.powers("tilesPerWarp", rank) if layout.fields.get("tilesPerWarp") else [1] * rank
    steps: list[Step]
    if operand is None:
        along, across = _turned(layout, row, column)
        height = 1 if layout.fields.get("elementBitWidth") == 64 else 4
        extent = sides[across - row]
        steps = [
            ("register", along, height), ("lane", across, extent), ("lane", along, _MFMA_LANES // extent),
            ("register", along, sides[0] * sides[1] // (_MFMA_LANES * height)),
        ]  # fmt: skip
    else:
        steps = _pieces(dims, k_width, sides[operand], _MFMA_LANES // sides[operand])
        steps.append(("register", inner, 0))
    for dim in (column, row, *range(row)):
        if _but_k(dim, inner, operand) is None:
            steps.append(("warp", None, warps[dim]))
        else:
            of_warp = tiles[dim] if dim in dims else 1
            steps += [("register", dim, of_warp), ("warp", dim, warps[dim]), ("register", dim, 0)]
    return steps


def _turned(layout: PrintedLayout, row: int, column: int) -> tuple[int, int]:
    """The dimension along which a lane's registers run, and the other: the columns where transposed."""
    return (column, row) if layout.integer("transposed") else (row, column)


def _wmma(layout: PrintedLayout, dims: Vector, operand: int | None, k_width: int) -> list[Step]:
    """AMD's matrix instructions of RDNA, versions 1 to 3."""
    version = layout.version()
    shape = layout.integers("instrShape", None) if layout.fields.get("instrShape") else [16, 16]
    if version not in (1, 2, 3) or shape[:2] != [16, 16]:
        raise wrong("amd_wmma is read for versions 1 to 3 and 16x16")
    inner, rank = dims[0], max(dims) + 1
    steps: list[Step]
    if operand is None:
        along, across = _turned(layout, rank - 2, rank - 1)
        registers: list[Step] = [("register", along, 8)]
        lanes: list[Step] = [("lane", across, 16), ("lane", along, 2)]
        # In version 1 the halves of a wave hold alternate rows.
        steps = lanes + registers if version == 1 else registers + lanes
    elif version == 1:  # both halves of a wave hold the operand
        steps = [*_pieces(dims, 16, 16, 1), ("lane", None, 2)]
    else:
        steps = _pieces(dims, k_width, 16, _WMMA_LANES // 16)
    given = [part for part in ("register", "warp") if layout.fields.get(part)]
    bases: Bases = {"register": [], "warp": []} | {part: layout.vectors(part, rank) for part in given}
    if "warpsPerCTA" in layout.fields:
        if bases["warp"]:
            raise wrong("amd_wmma with warpsPerCTA and ctaLayout: the compiler prints one of them")
        counts = layout.powers("warpsPerCTA", rank)
        order = (rank - 1, rank - 2, *range(rank - 2))
        bases["warp"] = _grown([("warp", dim, counts[dim]) for dim in order], tuple(counts))["warp"]
    for part, vectors in bases.items():
        for vector in vectors:  # in units of an instruction's tile
            kept = [
                x * (16 if d in dims else 1) if _but_k(d, inner, operand) is not None else 0
                for d, x in enumerate(vector)
            ]
            if part == "warp" or any(kept):
                steps.append((part, tuple(kept)))
    return steps if operand is None else [*steps, ("register", inner, 0)]


def _pieces(dims: Vector, k_width: int, extent: int, groups: int) -> list[Step]:
    """An operand: pieces of `k_width` along k, `groups` of them side by side."""
    return [("register", dims[0], k_width), ("lane", dims[1], extent), ("lane", dims[0], groups)]


_INSTRUCTIONS: Final = {"nvidia_mma": _mma, "amd_mfma": _mfma, "amd_wmma": _wmma}
