"""CuTe thread-value layouts as they are printed: `((4,8),(2,2)):((32,1),(16,8))`.

A CuTe layout maps a coordinate, read colexicographically (the leftmost digit runs fastest), to a number:
each digit times its stride, all added up. The first mode of a thread-value layout counts threads, the second
values, and the number is the place in the tile, whose leftmost dimension runs fastest too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray

Tree = int | tuple["Tree", ...]

_TOKEN: Final = re.compile(r"\s*(?:_?(\d+)|([(),]))")
MAX_DEPTH: Final = 20
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
    if not isinstance(shape, tuple) or not isinstance(stride, tuple) or len(shape) != len(stride):
        raise _wrong(text, "shape and stride are not alike")
    if _product(shape) > MAX_VALUES:
        raise _wrong(text, f"more than {MAX_VALUES} values")
    return [_mode(s, d, text) for s, d in zip(shape, stride, strict=True)]


def _mode(shape: Tree, stride: Tree, text: str) -> IntArray:
    """The numbers that a mode takes, in colexicographic order."""
    if isinstance(shape, int) and isinstance(stride, int):
        if shape == 0:
            raise _wrong(text, "an extent of 0")
        return np.arange(shape, dtype=np.int64) * stride
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
    place = 0
    stack: list[list[Tree]] = [[]]
    wanted = True
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None:
            raise _wrong(whole, f"{text[place:].strip()[:10]!r} is no integer, comma or parenthesis")
        place = match.end()
        if match[1] is not None or match[2] == "(":
            if not wanted:
                raise _wrong(whole, "a comma is missing")
            if match[2] == "(":
                stack.append([])
                if len(stack) > MAX_DEPTH:
                    raise _wrong(whole, "nested too deeply")
            else:
                stack[-1].append(min(int(match[1][:12]), 1 << 40))
                wanted = False
        elif wanted or len(stack) < 2:
            raise _wrong(whole, f"{match[2]!r} where an integer is expected")
        elif match[2] == ",":
            wanted = True
        else:
            done = tuple(stack.pop())
            stack[-1].append(done)
    if len(stack) != 1 or len(stack[0]) != 1 or wanted:
        raise _wrong(whole, "parentheses do not match")
    return stack[0][0]


def _wrong(text: str, reason: str) -> ProblemFileError:
    shown = " ".join(text.split())
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ProblemFileError(
        "", f"{shown!r} is no thread-value layout such as ((4,8),(2,2)):((32,1),(16,8)): {reason}"
    )
