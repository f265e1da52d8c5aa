"""Whether the hardware by itself reaches a tile under a finished layout, and by which descriptor.

Like all of the engine it sees byte offsets, not where they come from. The rules are those of
`layoutopt.hardware.dictated`: a box or a matrix lies as a mode has it, or it does not, element by element.
"""

import math
from functools import cache
from typing import Final

import numpy as np

from layoutopt.accesses.hardware_access import (
    DATA_TYPES,
    bulk_elements,
    instruction_rows,
    map_element,
    matrix_dims,
)
from layoutopt.accesses.trace import Trace
from layoutopt.errors import LayoutError
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.dictated import ATOM_ROWS, Engine, Mode, engine, modes
from layoutopt.problems.answer import BulkCopy, Descriptor, MatrixDescriptor, TensorMap
from layoutopt.problems.hardware_use import HardwareUse
from layoutopt.problems.types import ELEMENT_BYTES, Access, Problem, Tile

# The offsets of a matrix descriptor have 14 bits for multiples of 16 bytes.
_OFFSET_END: Final = 1 << 18


def descriptors(problem: Problem, table: IntArray) -> dict[str, Descriptor]:
    """The descriptor by which the hardware reaches the tile, for each access that it executes, by name.

    Args:
        problem: over whole bytes.
        table: byte offsets by row-major index, int64, shape (elements,).

    Raises:
        LayoutError: one of the accesses cannot reach it; the text says why.
    """
    found: dict[str, Descriptor] = {}
    offsets = table.reshape(problem.tile.shape)
    for access in problem.accesses:
        if (use := access.hardware) is not None:
            try:
                if use.engine == "tma":
                    found[access.name] = _tensor_map(use, problem.tile, offsets)
                elif use.engine == "cp.async.bulk":
                    found[access.name] = _bulk_copy(use, problem.tile, offsets)
                else:
                    found[access.name] = _matrix(access, use, problem.tile, offsets)
            except LayoutError as error:
                raise LayoutError(f"access {access.name!r}: {error}") from None
    return found


def check_direct_loads(lanes: Trace, table: IntArray) -> None:
    """Check that lanes of AMD's direct loads write side by side, from the base that their wave gives.

    Args:
        table: byte offsets by row-major index.

    Raises:
        LayoutError: a lane does not; the text names it.
    """
    for access in lanes.accesses:
        if access.operation.kind != "load.lds":
            continue
        width, offset = access.operation.width_bytes, table[access.element]
        needed_base = offset - width * np.arange(offset.shape[1])  # lane l writes at the base + l * width
        first = access.active.argmax(axis=1)  # lane, of each instruction
        base = np.take_along_axis(needed_base, first[:, None], axis=1)
        wrong = access.active & (needed_base != base)
        if wrong.any():
            row, lane = np.argwhere(wrong)[0].tolist()
            start = int(first[row])
            raise LayoutError(
                f"access {access.name!r}: lane {lane} writes {width * (lane - start)} bytes behind lane "
                f"{start}, and its element lies {int(offset[row, lane] - offset[row, start])} behind"
            )


def _allowed(use: HardwareUse) -> list[Mode]:
    return [mode for mode in modes(use.engine) if use.mode in (None, mode.short)]


# TMA -------------------------------------------------------------------------------------------


def _tensor_map(use: HardwareUse, tile: Tile, offsets: IntArray) -> TensorMap:
    """The tensor map of the fewest boxes that fill this layout, and of these the smallest swizzle.

    Args:
        use: what the file says of the copy: dimension order, box and mode are free where it does not say.
        tile: whole bytes.
        offsets: byte offset of every element, in the tile's shape.
    """
    order = use.order or tuple(range(offsets.ndim))
    turned = offsets.transpose(order)  # slowest dimension first, as in all boxes below
    asked = tuple(use.box[d] for d in order) if use.box is not None else None
    best: tuple[Mode, tuple[int, ...], IntArray] | None = None  # mode, extents of a box, starts of all boxes
    best_rank = (turned.size + 1, 0)  # worse than any
    # Modes that swizzle most first, though the rank prefers the others: they fill more with a box, and what
    # takes more boxes than the best need not be looked at.
    for mode in sorted(_allowed(use), key=lambda mode: -len(mode.xor)):
        for box in _boxes(turned, use, tile, mode, asked):
            rank = turned.size // math.prod(box), len(mode.xor)  # boxes, bits of the swizzle
            if rank >= best_rank:
                break  # _boxes yields the fewest boxes first
            if rank[0] % (use.multicast or 1):  # so many blocks copy the same number of boxes each
                continue
            starts = _box_starts(turned, box, tile.element_bytes, mode)
            if starts is not None:
                best, best_rank = (mode, box, starts), rank
                break
    if best is None:
        names = ", ".join(mode.short for mode in _allowed(use))
        size = f"a box of {'x'.join(map(str, use.box))}" if use.box is not None else "boxes"
        raise LayoutError(f"no tensor map of mode {names} fills {size} in this layout")
    mode, box, starts = best
    kind = map_element(use, tile)
    row = box[-1] * tile.element_bytes // ELEMENT_BYTES[kind]  # in elements of the map
    return TensorMap(
        mode=mode.short,
        swizzle=mode.spelling,
        code=mode.code,
        data_type=f"CU_TENSOR_MAP_DATA_TYPE_{DATA_TYPES[kind]}",
        boxes=len(starts),
        box=tuple(box[order.index(d)] for d in range(len(order))),  # by dimension of the tile
        box_dim=(row, *reversed(box[:-1])),  # fastest first
        order=order,
        box_offsets=tuple(starts.tolist()),
        alignment_bytes=mode.alignment_bytes,
        multicast=use.multicast or 1,
    )


def _boxes(
    turned: IntArray, use: HardwareUse, tile: Tile, mode: Mode, asked: tuple[int, ...] | None
) -> list[tuple[int, ...]]:
    """Extents of the boxes that may fill the layout, slowest dimension first; the largest boxes come first.

    Extents divide the tile's, or are those asked for. Of the first box only the ends of its edges are looked
    at, whether they lie as the mode has them: `_box_starts` looks at all elements of all boxes.
    """
    rules, size, dims = engine("tma"), tile.element_bytes, turned.ndim
    unit = ELEMENT_BYTES[map_element(use, tile)]
    first = mode.flipped(int(turned[(0,) * dims]))  # flipped undoes the swizzle, or makes it
    # Extents of the dimensions so far, and the bytes of such a box: the step along the next dimension.
    boxes: dict[tuple[int, ...], int] = {(): size}
    for d in reversed(range(dims)):
        # Offsets of the elements along dimension d that have coordinate 0 in all others.
        edge = turned[tuple(slice(None) if k == d else 0 for k in range(dims))].tolist()
        extents = _divisors(len(edge)) if asked is None else [asked[d]]
        if d == dims - 1:  # rows of whole chunks within the span, counted in elements of the map
            within = [n for n in extents if n * size <= (mode.span_bytes or math.inf)]
            whole = [n for n in within if n * size % rules.chunk_bytes == 0]
            extents = [n for n in whole if n * size // unit <= rules.max_box]
        else:
            extents = [n for n in extents if n <= rules.max_box]
        boxes = {
            # Rows lie a span of the mode apart, even where they are shorter.
            (n, *inner): (mode.span_bytes or n * step) if d == dims - 1 else n * step
            for inner, step in boxes.items()
            for n in extents
            if mode.flipped(first + (n - 1) * step) == edge[n - 1]
        }
    return sorted(boxes, key=lambda box: (-math.prod(box), box))


@cache
def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def _box_starts(turned: IntArray, box: tuple[int, ...], size: int, mode: Mode) -> IntArray | None:
    """Where each box starts, row-major; None where one does not lie as the mode has it."""
    boxes = _cut(turned, box)
    starts: IntArray = mode.flipped(boxes[:, 0])  # the XOR of its first element, undone
    if (starts % engine("tma").base_bytes).any():
        return None
    row, column = np.divmod(np.arange(boxes.shape[1]), box[-1])
    inside = row * (mode.span_bytes or box[-1] * size) + column * size  # a short row leaves its span unfilled
    return starts if (mode.flipped(starts[:, None] + inside) == boxes).all() else None


def _cut(table: IntArray, box: tuple[int, ...]) -> IntArray:
    """The elements of each box, row-major; shape (boxes, elements of one)."""
    grid = [n // b for n, b in zip(table.shape, box, strict=True)]
    pieces = table.reshape([n for pair in zip(grid, box, strict=True) for n in pair])
    dims = range(len(box))
    turned = pieces.transpose([*(2 * d for d in dims), *(2 * d + 1 for d in dims)])
    return turned.reshape(math.prod(grid), math.prod(box))


# Bulk copies -----------------------------------------------------------------------------------


def _bulk_copy(use: HardwareUse, tile: Tile, offsets: IntArray) -> BulkCopy:
    assert use.bytes is not None
    count = bulk_elements(use.bytes, tile)
    assert count is not None
    rows = offsets.reshape(-1, count)
    starts, rules = rows[:, 0], engine("cp.async.bulk")
    if (rows != starts[:, None] + np.arange(count) * tile.element_bytes).any():
        raise LayoutError(f"a copy of {use.bytes} bytes is torn")
    if (starts % rules.base_bytes).any():
        raise LayoutError(f"a copy does not begin at a multiple of {rules.base_bytes} bytes")
    return BulkCopy(use.bytes, len(rows), starts=tuple(starts.tolist()), alignment_bytes=rules.base_bytes)


# Matrices --------------------------------------------------------------------------------------


def _matrix(access: Access, use: HardwareUse, tile: Tile, offsets: IntArray) -> MatrixDescriptor:
    """The descriptor by which the tensor cores read every operand of an access in this layout.

    `use`: what the file says of the operand, which leaves mode and major open where it does not say them;
    `offsets`: byte offset of every element, in the tile's shape. LayoutError where no mode reads it.
    """
    rules, size = engine(use.engine), tile.element_bytes
    k_dim, mn_dims = matrix_dims(use, offsets.ndim)
    number_dims = [d for d in range(offsets.ndim) if d != k_dim and d not in mn_dims]
    rows, depth = instruction_rows(access, tile), rules.k_bytes // size  # of an instruction: M or N, and K
    assert rows is not None  # checked when the problem was read
    # Shape (matrices, M or N, K), then (instructions, rows, depth)
    turned = offsets.transpose([*number_dims, *mn_dims, k_dim])
    turned = turned.reshape(-1, math.prod(offsets.shape[d] for d in mn_dims), offsets.shape[k_dim])
    operands = _cut(turned, (1, rows, depth)).reshape(-1, rows, depth)
    for mode in _allowed(use):  # in the order of the data file, and the first that reads all
        for major in _majors(use, rules, size):
            # `flipped` undoes the mode's XOR. The first operand by itself excludes most modes.
            found = _fields(mode.flipped(operands[:1]), size, mode, major)
            if found is not None:
                found = _fields(mode.flipped(operands), size, mode, major)
            if found is None:
                continue
            leading, stride, starts = found
            return MatrixDescriptor(
                mode=mode.short,
                code=mode.code,
                major=major,
                k_dim=k_dim,
                instructions=len(operands),
                shape=(rows, depth),
                leading_byte_offset=leading,
                stride_byte_offset=stride,
                base_offset=0,  # `_fields` has every pattern begin at its alignment
                descriptor=f"{_bits(rules, mode, leading, stride):#018x}",  # with start 0
                starts=tuple(starts.tolist()),
                alignment_bytes=mode.alignment_bytes,
            )
    names = ", ".join(mode.short for mode in _allowed(use))
    majors = " or ".join(_majors(use, rules, size))
    raise LayoutError(
        f"no {majors}-major matrix descriptor of mode {names} reads {rows}x{depth} in this layout"
    )


def _majors(use: HardwareUse, rules: Engine, size: int) -> tuple[str, ...]:
    """Which dimension may be contiguous: what the file says, K, or either where it names K's dimension."""
    if use.major is not None:
        return (use.major,)
    return ("K", "MN") if use.k is not None and size in rules.mn_major_bytes else ("K",)


def _fields(operands: IntArray, size: int, mode: Mode, major: str) -> tuple[int, int, IntArray] | None:
    """Leading and stride byte offset, and the start of each operand; None where no one descriptor reads all.

    The canonical layouts of the PTX ISA, in bytes, T elements to 16 bytes, c the contiguous dimension, r the
    other one, S the span:

        K    none      r % 8 * 16 + r // 8 * stride + c % T * size + c // T * leading
        K    swizzled  r % 8 * S  + r // 8 * stride + c * size
        MN   none      r % 8 * 16 + r // 8 * leading + c % T * size + c // T * stride
        MN   swizzled  r % 8 * S  + r // 8 * stride + c % (S / size) * size + c // (S / size) * leading

    Args:
        operands: byte offsets before the swizzle, shape (instructions, rows, elements of K).
        size: of an element, in bytes.
        major: "K" or "MN".
    """
    # All four are one formula, that of `expected`: the span of no swizzle has 16 bytes, and swizzled K is no
    # longer than a span.
    span = mode.span_bytes or 0
    table = operands if major == "K" else operands.transpose(0, 2, 1)
    r, c = np.arange(table.shape[1])[:, None], np.arange(table.shape[2])
    starts: IntArray = table[:, 0, 0]
    inside = table - starts[:, None, None]
    page = span // size  # elements of a span
    across = int(inside[0, ATOM_ROWS, 0]) if table.shape[1] > ATOM_ROWS else 0  # from 8 rows to the next 8
    along = int(inside[0, 0, page]) if table.shape[2] > page else 0  # from a span to the next in the same row
    expected = r % ATOM_ROWS * span + r // ATOM_ROWS * across + c % page * size + c // page * along
    # Descriptors hold starts and offsets in units of 16 bytes.
    if (inside != expected).any() or (starts % 16).any() or across % 16 or along % 16:
        return None
    if not (0 <= across < _OFFSET_END and 0 <= along < _OFFSET_END):
        return None
    # A pattern begins at its alignment, as no base offset is given: a start may lie in its first row alone.
    if mode.xor and (starts % mode.alignment_bytes >= span).any():
        return None
    if major == "K" and mode.xor:
        return 16, across, starts  # the leading offset is not used
    swapped = major == "MN" and not mode.xor
    return (across, along, starts) if swapped else (along, across, starts)


def _bits(rules: Engine, mode: Mode, leading: int, stride: int) -> int:
    """The 64 bits of a matrix descriptor: leading offset from bit 16, stride from 32, swizzle at the top."""
    top = 62 if rules.name == "wgmma" else 61
    return rules.fixed_bits | (leading >> 4 & 0x3FFF) << 16 | (stride >> 4 & 0x3FFF) << 32 | mode.code << top
