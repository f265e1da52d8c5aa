"""CuTe layouts as they are printed: thread-value layouts, `((4,8),(2,2)):((32,1),(16,8))`, and shared memory.

A CuTe layout maps a coordinate, read colexicographically (the leftmost digit runs fastest), to a number:
each digit times its stride, all added up. The first mode of a thread-value layout counts threads, the second
values, and the number is the place in the tile, whose leftmost dimension runs fastest too.

A layout of shared memory says where each element of a tile lies; each mode is a dimension of the tile.

    Sw<3,3,3> o _0 o (_8,_64):(_64,_1)                       a swizzle of element offsets
    Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)     of byte offsets, elements of 16 bits; or S<
    (64,(8,4)):(32,(1,8))                                    no swizzle

`Sw<B,M,S>` flips the B bits from M on with those from M + S on; for S below 0 those from M - S on with those
from M on (CUTLASS, include/cute/swizzle.hpp).
"""

import ast
import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.expressions.fit import fit, join
from layoutopt.expressions.grammar import Const, Op, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import IntArray

Tree = int | tuple["Tree", ...]

_PLAIN: Final = re.compile(r"[\d(),\s]*")
_MOST_STRIDE: Final = 1 << 40
MAX_VALUES: Final = 1 << 22
MAX_ELEMENTS: Final = 1 << 20
_SWIZZLE: Final = re.compile(r"\s*(?:Sw?<|SW_)(\d{1,2})[,_](\d{1,2})[,_](-?\d{1,2})>?\s*o\s*(.*)", re.S)
_START: Final = re.compile(r"\s*(?:smem_ptr\[(\d{1,3})b\]\([^()]*\)|_?0)\s*o\s*(.*)", re.S)


def thread_values(text: str, tile: Sequence[int]) -> IntArray:
    """The element of each thread and value.

    Args:
        text: a layout of two modes, threads and values; underscores of static integers may stay.
        tile: extents of the tile.

    Returns:
        int64, shape (threads, values, dimensions).

    Raises:
        ProblemFileError: the text is no such layout, or leaves the tile.
    """
    parts = modes(text)
    if len(parts) != 2:
        raise _wrong(text, "expected two modes, threads and values")
    threads, values = parts
    place = threads[:, None] + values[None, :]
    if place.max() >= math.prod(tile):
        wrong = f"the layout reaches element {int(place.max())} of {math.prod(tile)}"
        raise ProblemFileError("--tile", wrong)
    return np.stack(np.unravel_index(place, tuple(tile), order="F"), axis=-1).astype(np.int64)


def modes(text: str) -> list[IntArray]:
    """The numbers that each mode of a printed layout takes, in colexicographic order.

    Raises:
        ProblemFileError: the text is no layout, or has more than 2**22 values.
    """
    shape_text, colon, stride_text = text.partition(":")
    if not colon or ":" in stride_text:
        raise _wrong(text, "expected shape:stride")
    shape, stride = _tree(shape_text, text), _tree(stride_text, text)
    if _product(shape) > MAX_VALUES:
        raise _wrong(text, f"more than {MAX_VALUES} values")
    if isinstance(shape, int) or isinstance(stride, int) or len(shape) != len(stride):
        return [_mode(shape, stride, text)]
    return [_mode(s, d, text) for s, d in zip(shape, stride, strict=True)]


def _mode(shape: Tree, stride: Tree, text: str) -> IntArray:
    """The numbers that a mode takes, in colexicographic order."""
    if isinstance(shape, int) and isinstance(stride, int):
        if shape == 0:
            raise _wrong(text, "an extent of 0")
        return np.arange(shape, dtype=np.int64) * min(stride, _MOST_STRIDE)
    if isinstance(shape, int) or isinstance(stride, int) or len(shape) != len(stride):
        raise _wrong(text, "shape and stride are not alike")
    total = np.zeros(1, np.int64)
    for s, d in zip(shape, stride, strict=True):
        total = (total[None, :] + _mode(s, d, text)[:, None]).ravel()
    return total


def _product(tree: Tree) -> int:
    return tree if isinstance(tree, int) else math.prod(map(_product, tree))


def _tree(text: str, whole: str) -> Tree:
    """Nested integers; `(a,b)` is a tuple, and so is `(a)`."""
    plain = re.sub(r"(?<!\d)_(?=\d)", "", text)
    wrong = _wrong(whole, "expected integers, commas and matching parentheses")
    if not _PLAIN.fullmatch(plain):
        raise wrong
    try:  # as Python, for which `(a,)` is a tuple
        (tree,) = ast.literal_eval(f"[{plain.replace(')', ',)')}]")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise wrong from None
    found: Tree = tree
    return found


def _wrong(text: str, reason: str) -> ProblemFileError:
    shown = " ".join(text.split())
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ProblemFileError(
        "", f"{shown!r} is no thread-value layout such as ((4,8),(2,2)):((32,1),(16,8)): {reason}"
    )


# Shared memory ------------------------------------------------------------------------------------


Swizzle = tuple[int, int, int]
"""How many bits, the lowest that is read, and the lowest that is flipped, of element offsets."""


def is_swizzled(text: str) -> bool:
    """Whether the text is a swizzled layout, which is one of shared memory."""
    return _SWIZZLE.match(text) is not None


def offsets(text: str, tile: Sequence[int], element_bytes: int) -> tuple[IntArray, str | None]:
    """Where each element lies, and the formula for it.

    Args:
        text: the layout as printed, underscores of static integers and all.
        tile: extents of the tile, one a mode.
        element_bytes: of an element.

    Returns:
        int64 element offsets in the shape of the tile, and the expression over x0, x1, ...: None where none
        is found.

    Raises:
        ProblemFileError: the text is no such layout, puts two elements in one place, or does not go with the
            tile or the element.
    """
    if math.prod(tile) > MAX_ELEMENTS:
        raise ProblemFileError("--tile", f"at most {MAX_ELEMENTS} elements")
    swizzle, plain = _swizzle(text, element_bytes)
    parts = modes(plain)
    if [len(part) for part in parts] != list(tile):
        raise ProblemFileError(
            "--tile",
            f"the modes of the layout have {'x'.join(str(len(part)) for part in parts)} elements, "
            f"the tile {'x'.join(map(str, tile))}",
        )
    table = np.asarray(sum(np.ix_(*parts)), np.int64)
    if table.max() >= 1 << 40:
        raise ProblemFileError("", f"the layout reaches element {int(table.max())}")
    _check_apart(table)
    formula = fit(table, {f"x{d}": extent for d, extent in enumerate(tile)})
    if swizzle is not None:
        bits, source, target = swizzle
        table = table ^ (table >> source & (1 << bits) - 1) << target
        if formula is not None:
            digit = Op("%", (Op("//", (formula, Const(1 << source))), Const(1 << bits)))
            flipped = join("^", [formula, Op("*", (digit, Const(1 << target)))])
            formula = simplify(flipped, {f"x{d}": (0, extent - 1) for d, extent in enumerate(tile)})
    return table, None if formula is None else to_text(formula)


def _check_apart(table: IntArray) -> None:
    """No two elements lie in one place; a swizzle, which permutes places, changes nothing about that."""
    places, counts = np.unique(table, return_counts=True)
    if (counts > 1).any():
        place = int(places[counts.argmax()])
        first, second = (", ".join(map(str, at)) for at in np.argwhere(table == place)[:2].tolist())
        wrong = f"the layout puts ({first}) and ({second}) in one place, {place} elements in"
        raise ProblemFileError("", wrong)


def _swizzle(text: str, element_bytes: int) -> tuple[Swizzle | None, str]:
    """The swizzle, if there is one, and the layout below it."""
    head = _SWIZZLE.match(text)
    if head is None:
        return None, text
    bits, base, shift = (int(head[k]) for k in (1, 2, 3))
    start = _START.match(head[4])
    if start is not None and start[1] is None and head[0].lstrip().startswith("S<"):
        raise ProblemFileError(
            "",
            "S<B,M,S> of CuTe DSL counts bytes of a pointer, or elements of the layout below it: write "
            "smem_ptr[16b](unset) for 0 where it is the pointer's, Sw for S where it is the layout's",
        )
    if start is None:
        raise ProblemFileError("", "expected Sw<B,M,S> o _0 o shape:stride, or smem_ptr[16b](..) for _0")
    if start[1] is not None:
        unit = element_bytes.bit_length() - 1
        if int(start[1]) != 8 * element_bytes:
            raise ProblemFileError(
                "--element", f"the layout swizzles elements of {start[1]} bits, not of {8 * element_bytes}"
            )
        if 1 << unit != element_bytes or base < unit:
            pieces = f"pieces of 2**{base} bytes, which are no whole elements of {element_bytes}"
            raise ProblemFileError("", f"a pointer's Sw<{head[1]},{head[2]},{head[3]}> moves {pieces}")
        base -= unit
    if bits > 20 or base > 30 or abs(shift) > 40 or abs(shift) < bits:
        raise ProblemFileError("", f"Sw<{head[1]},{head[2]},{head[3]}> is no swizzle that is read here")
    return ((bits, base + max(0, shift), base - min(0, shift)) if bits else None), start[2]
