"""CuTe thread-value layouts as they are printed: `((4,8),(2,2)):((32,1),(16,8))`.

A CuTe layout maps a coordinate, read colexicographically (the leftmost digit runs fastest), to a number:
each digit times its stride, all added up. The first mode of a thread-value layout counts threads, the second
values, and the number is the place in the tile, whose leftmost dimension runs fastest too.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray

Tree = int | tuple["Tree", ...]

_PLAIN: Final = re.compile(r"[\d(),\s]*")
_MOST_STRIDE: Final = 1 << 40
MAX_VALUES: Final = 1 << 22


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
        raise ProblemFileError(
            "--tile",
            f"the layout reaches element {int(place.max())} of {math.prod(tile)}",
        )
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
    if isinstance(shape, int) and isinstance(stride, int):
        shape, stride = (shape,), (stride,)
    if isinstance(shape, int) or isinstance(stride, int) or len(shape) != len(stride):
        raise _wrong(text, "shape and stride are not alike")
    if _product(shape) > MAX_VALUES:
        raise _wrong(text, f"more than {MAX_VALUES} values")
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
