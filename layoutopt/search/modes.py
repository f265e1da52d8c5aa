"""A tile in one mode of the hardware, as layouts: pages or boxes, one after the other."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from layoutopt.accesses.hardware_access import bulk_elements, map_element, matrix_dims
from layoutopt.hardware.dictated import ATOM_ROWS, Mode, engine, modes
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.problems.hardware_use import HardwareUse
from layoutopt.problems.types import ELEMENT_BYTES, Access, Tile

# A pad by as many bytes as all banks have changes no bank.
_BANK_ROW_BYTES = 128
_MOST_PADDED_DIMS = 3

Named = tuple[str, Layout]
Cut = tuple[int, int, int]  # dimension d, divisor and size: the piece `x_d // divisor % size` of a coordinate


def of_access(access: Access, tile: Tile, *, short: bool = True) -> Iterator[Named]:
    """Layouts, with names, that may serve one access of the hardware; some more than once.

    Args:
        access: with `hardware`.
        tile: over whole bytes.
        short: whether boxes of TMA may have rows shorter than the span of their swizzle, and be smaller than
            the largest of their rows.
    """
    use = access.hardware
    assert use is not None
    if use.engine == "cp.async.bulk":
        yield from _padded_rows(use, tile)
        return
    if tile.element_bytes & (tile.element_bytes - 1) and use.engine != "tma":
        return
    for mode in modes(use.engine):
        if use.mode in (None, mode.short):
            yield from _of_tma(use, tile, mode, short) if use.engine == "tma" else _of_matrix(use, tile, mode)


def _of_tma(use: HardwareUse, tile: Tile, mode: Mode, short: bool) -> Iterator[Named]:
    """Boxes of every size in every order; of layouts with the same banks, those of the largest boxes."""
    shape, size = tile.shape, tile.element_bytes
    order = list(use.order or range(len(shape)))
    major = order[-1]
    seen: set[tuple[int, tuple[bytes, ...]]] = set()  # row of a box, and what banks depend on
    for box in [list(use.box)] if use.box is not None else _boxes(use, tile, mode, order, short):
        row = box[major] * size  # bytes, which TMA wants in multiples of 16
        if row % 16 or (mode.span_bytes or row) < row or (mode.xor and size & (size - 1)):
            continue
        box_bytes = math.prod(box) // box[major] * (mode.span_bytes or row)
        several = [d for d in order if box[d] < shape[d]]  # dimensions of more than one box
        # The contiguous dimension last: its boxes lie one beside the other.
        several.sort(key=lambda d: d == major)
        # In which order boxes follow one another changes banks only if they are no whole number of periods.
        for grid in itertools.permutations(several) if box_bytes % _period(mode) else [several]:
            layout = _boxed(shape, size, mode, order, box, grid)
            same_banks = box[major], _residues(layout, mode)
            if same_banks not in seen:
                seen.add(same_banks)
                yield f"{mode.name}, x{major} contiguous", layout


def _period(mode: Mode) -> int:
    """Bytes after which a mode moves bytes between banks as before."""
    return max(_BANK_ROW_BYTES, mode.alignment_bytes)


def _residues(layout: Layout, mode: Mode) -> tuple[bytes, ...]:
    """What each coordinate adds to a byte offset, modulo the mode's period: all that banks depend on."""
    added = [np.zeros(n, np.int64) for n in layout.shape]
    for d in layout.digits:
        added[d.dim] += np.arange(layout.shape[d.dim]) // d.divide % d.size * d.stride * layout.element_bytes
    return tuple((a % _period(mode)).tobytes() for a in added)


def _boxes(
    use: HardwareUse, tile: Tile, mode: Mode, order: Sequence[int], short: bool
) -> Iterator[list[int]]:
    """Extents of TMA boxes that divide the tile, longest rows first, then largest boxes.

    Args:
        use: whose data type limits the extents.
        tile: whole bytes.
        mode: whose span limits a row.
        order: dimensions, slowest first.
        short: also rows shorter than the span, and boxes other than the largest.
    """
    shape, size, rules = tile.shape, tile.element_bytes, engine("tma")
    inner = order[-1]
    type_bytes = ELEMENT_BYTES[map_element(use, tile)]  # TMA counts a row in elements of its data type
    rows = [n for n in divisors(shape[inner]) if n * size // type_bytes <= rules.max_box]
    if mode.span_bytes is not None:  # shorter rows take more bytes, and have fewer conflicts at times
        rows = [n for n in rows if n * size <= mode.span_bytes]
        fill_the_span = [n for n in rows if n * size == min(mode.span_bytes, shape[inner] * size)]
        rows = rows if short else fill_the_span or rows
    extents = [[n for n in divisors(extent) if n <= rules.max_box] for extent in shape]
    for row in reversed(rows):
        extents[inner] = [row]
        boxes = sorted(map(list, itertools.product(*extents)), key=math.prod, reverse=True)
        row_bytes = mode.span_bytes or row * size  # as it lies, unfilled bytes of the span included
        yield boxes[0]
        for box in boxes[1:] if short else ():
            if math.prod(box) // row * row_bytes % rules.base_bytes == 0:  # each of several boxes is aligned
                yield box


def divisors(number: int) -> list[int]:
    """Its divisors, rising."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _of_matrix(use: HardwareUse, tile: Tile, mode: Mode) -> Iterator[Named]:
    """Layouts for the matrix instructions: pages of all rows, or groups of eight rows of all pages.

    K-major and MN-major, as far as the access allows. A page is as wide as the span of the mode's swizzle.
    """
    shape, size = tile.shape, tile.element_bytes
    k, mn = matrix_dims(use, len(shape))  # k: the dimension that is summed over
    rest = [d for d in range(len(shape)) if d != k and d not in mn]
    *slower, fast = mn
    # Where the file says no major: K, or either if it names the dimension of K.
    may_be_contiguous = {None: (k, fast) if use.k is not None else (k,), "K": (k,), "MN": (fast,)}[use.major]
    # The contiguous dimension, the others of the matrix, and those of several matrices around it.
    for major, others, outer in ((k, list(mn), rest), (fast, [k], [*rest, *slower])):
        span, rows = (mode.span_bytes or 16) // size, math.prod(shape[d] for d in others)
        if major not in may_be_contiguous or shape[major] % span or rows % ATOM_ROWS:
            continue
        page = [1] * len(shape)  # all rows
        page[major] = span
        group = list(page)  # a few of them
        for d in others:
            page[d] = shape[d]
        group[others[-1]] = ATOM_ROWS
        for box, grid in ((page, (*outer, major)), (group, (*outer, *others, major))):
            if shape[others[-1]] % box[others[-1]] == 0:
                layout = _boxed(shape, size, mode, [*outer, *others, major], box, grid)
                yield f"{mode.name}, x{major} contiguous", layout


def _padded_rows(use: HardwareUse, tile: Tile) -> Iterator[Named]:
    """Row-major, each copy whole, with every pad between copies that changes banks."""
    shape, size = tile.shape, tile.element_bytes
    assert use.bytes is not None
    count = bulk_elements(use.bytes, tile)
    assert count is not None
    cuts: list[Cut] = []  # fastest first
    padded: list[int] = []  # indices of the cuts before which a pad may be
    left = count  # elements of a copy not yet in a cut
    for d in reversed(range(len(shape))):
        in_copy = min(shape[d], left)
        left //= in_copy
        cuts += [(d, 1, in_copy)] if in_copy > 1 or shape[d] == 1 else []
        if in_copy < shape[d]:
            padded.append(len(cuts))
            cuts.append((d, in_copy, shape[d] // in_copy))
    padded = padded[:_MOST_PADDED_DIMS]
    steps = range(0, _BANK_ROW_BYTES, engine("cp.async.bulk").chunk_bytes)
    for pads in itertools.product([pad for pad in steps if pad % size == 0], repeat=len(padded)):
        text = ", ".join(map(str, pads))
        name = f"rows of {use.bytes} bytes" + (f", pads of {text} bytes" if any(pads) else "")
        gaps = {k: pad // size for k, pad in zip(padded, pads, strict=True)}
        yield name, Layout(shape, size, laid(cuts, gaps))


def _boxed(
    shape: tuple[int, ...],
    element_bytes: int,
    mode: Mode,
    order: Sequence[int],
    box: Sequence[int],
    grid: Sequence[int],
) -> Layout:
    """Boxes of a mode one after another: `order` inside a box, `grid` of the boxes, slowest first."""
    cuts = [(d, 1, box[d]) for d in reversed(order)]
    cuts += [(d, box[d], shape[d] // box[d]) for d in reversed(grid)]
    # A row that is shorter than the span of a swizzle leaves the rest of it unfilled.
    row = mode.span_bytes // element_bytes if mode.xor and mode.span_bytes else cuts[0][2]
    unit = math.frexp(element_bytes)[1] - 1  # log2 of its bytes: a layout's targets are bits of elements
    swizzle = tuple(Target(target - unit, 1 << (source - unit)) for target, source in mode.xor)
    return Layout(shape, element_bytes, laid(cuts, {1: row - cuts[0][2]}), swizzle)


def laid(cuts: Iterable[Cut], gaps: Mapping[int, int] = MappingProxyType({})) -> tuple[Digit, ...]:
    """Digits of pieces of coordinates; neighbours of one dimension that continue each other are one.

    Args:
        cuts: the pieces, the fastest first.
        gaps: elements that are left out before each step of the k-th of them.
    """
    stride = 1
    digits: list[Digit] = []
    for k, (dim, divide, size) in enumerate(cuts):
        stride += gaps.get(k, 0)
        inner = digits[-1] if digits else Digit(dim=-1, divide=1, size=1, stride=1)
        if (dim, divide, stride) == (inner.dim, inner.divide * inner.size, inner.stride * inner.size):
            digits[-1] = Digit(dim, inner.divide, inner.size * size, inner.stride)
        else:
            digits.append(Digit(dim, divide, size, stride))
        stride *= size
    return tuple(reversed(digits))
