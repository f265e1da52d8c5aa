"""Which shared buffer a value of Triton's GPU IR is, and which part of it.

Followed from definition to use: indices, slices, transposes and reshapes, arguments and results of loops and
branches, captures of warp specialisation. Two buffers of one type stay two; a value that may be several
(`arith.select`, a loop that swaps them) is each of them.
"""

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec import Struct

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray

Extents = tuple[int, ...]

MAX_ELEMENTS: Final = 1 << 20
MAX_VIEWS: Final = 64  # of one value
_NAME: Final = r"%[\w.$-]+(?:#\d+)?"


@functools.cache
def _numbers() -> IntArray:
    """0, 1, ...: all views are views of this array, so that equal ones have one address."""
    return np.arange(MAX_ELEMENTS, dtype=np.int64)


class View(Struct, frozen=True, eq=False):
    """A buffer, or a part of it."""

    buffer: int  # its number in the function
    elements: IntArray  # which element of the buffer, counted row by row, each coordinate is: int64

    @property
    def key(self) -> tuple[int, int, Extents, Extents]:
        """What two views of the same elements have in common."""
        m = self.elements
        return self.buffer, m.__array_interface__["data"][0], m.shape, m.strides


@dataclass
class _Region:
    """What a brace has opened: an operation, the values that it defines, and its arguments."""

    number: int
    operation: str
    results: str
    arguments: list[str]


@dataclass
class Values:
    """The values of a function, as its lines are read from the first to the last."""

    known: dict[str, dict[int, list[View]]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    # Views that a loop gives back to its arguments, by the line of the loop and their number. Where it has
    # grown after the last line, the lines are to be read again
    fed: dict[tuple[int, int], list[View]] = field(default_factory=dict)
    regions: list[_Region] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    grown: bool = False

    def again(self) -> None:
        """Forget all but what loops give back."""
        self.known, self.constants, self.regions, self.grown = {}, {}, [], False

    def define(self, name: str, views: Sequence[View]) -> None:
        """A value is these."""
        base, number = _split(name)
        self.known.setdefault(base, {})[number] = list(views)

    def views(self, name: str) -> list[View]:
        """The buffers and parts that a value may be; none where it is not known.

        Raises:
            ProblemFileError: more than `MAX_VIEWS`.
        """
        base, number = _split(name)
        found = self.known.get(base, {}).get(number, [])
        if len(found) > MAX_VIEWS:
            raise ProblemFileError("", f"{name} may be more than {MAX_VIEWS} buffers")
        return found

    def line(self, number: int, line: str) -> None:
        """Follow values through the control flow of a line."""
        text = line.strip()
        closed = self.regions.pop() if text.startswith("}") and self.regions else None
        defined = re.match(rf"({_NAME})(?::\d+)?\s*=\s*", text)
        if defined:
            self.known.pop(defined[1], None)
            self.constants.pop(defined[1], None)
        names = defined[1] if defined else ""
        if constant := re.match(rf"({_NAME})\s*=\s*arith\.constant\s+(-?\d{{1,18}})\s*:", text):
            self.constants[constant[1]] = int(constant[2])
        elif "arith.select" in text and "memdesc" in text and names:
            self.define(names, _union([self.views(name) for name in _names(text)[1:4]]))
        elif given := re.match(rf"(scf\.yield|scf\.condition\s*\({_NAME}\))\s+(.*)", text):
            self._given(given[1], _names(given[2].partition(" : ")[0]))
        elif captured := re.search(r"\bttg\.warp_specialize\s*\(([^)]*)\)", text):
            self.passed = _names(captured[1])
        if started := re.match(r"(?:partition\d+\s*|\^\w+\s*)\(([^)]*)\)", text):
            self._bind(re.findall(rf"({_NAME})\s*:", started[1]), [self.views(name) for name in self.passed])
        if text.endswith("{"):
            self.regions.append(self._opened(number, text, names, closed))

    def _opened(self, number: int, text: str, results: str, closed: _Region | None) -> _Region:
        if closed is not None and re.match(r"\}\s*(else|do)\b", text):
            return closed
        operation = re.search(r"\b(scf\.\w+)", text)
        carried = re.search(r"(?:\biter_args\s*|\bscf\.while\s*)\(([^)]*)\)", text)
        pairs = re.findall(rf"({_NAME})\s*=\s*({_NAME})", carried[1]) if carried else []
        arguments = [name for name, _ in pairs]
        starts = [self.views(start) for _, start in pairs]
        views = [_union([start, self.fed.get((number, k), [])]) for k, start in enumerate(starts)]
        self._bind(arguments, views)
        if results and operation is not None and operation[1] == "scf.for":
            self._results(results, views)
        return _Region(number, operation[1] if operation else "", results, arguments)

    def _given(self, operation: str, names: list[str]) -> None:
        """What a region gives back: to the arguments of its loop, and as results."""
        region = next((r for r in reversed(self.regions) if r.operation), None)
        if region is None:
            return
        views = [self.views(name) for name in names]
        if operation.startswith("scf.condition"):
            self.passed = names
        elif region.operation != "scf.if":
            for k in range(min(len(views), len(region.arguments))):
                before = self.views(region.arguments[k])
                if len(after := _union([before, views[k]])) > len(before):
                    self.fed[region.number, k] = after
                    self.grown = True
        if region.results and (region.operation == "scf.if" or operation.startswith("scf.condition")):
            self._results(region.results, views)

    def _results(self, base: str, views: list[list[View]]) -> None:
        for k, found in enumerate(views):
            if found:
                self.define(f"{base}#{k}", _union([self.views(f"{base}#{k}"), found]))

    def _bind(self, arguments: list[str], views: list[list[View]]) -> None:
        for name in arguments:
            self.known.pop(name, None)
        for name, found in zip(arguments, views, strict=False):
            if found:
                self.define(name, found)


def whole(buffer: int, shape: Extents) -> View:
    """All of a buffer.

    Raises:
        ProblemFileError: it is larger than any shared memory.
    """
    if math.prod(shape) > MAX_ELEMENTS:
        raise ProblemFileError("", f"a buffer of more than {MAX_ELEMENTS} elements")
    return View(buffer, _numbers()[: math.prod(shape)].reshape(shape))


def part(view: View, start: Extents, shape: Extents) -> View:
    """A slice; where it leaves the buffer, it has fewer elements than its type says."""
    rank = view.elements.ndim
    cut = tuple(slice(s, s + n) for s, n in zip(start[-rank:], shape[-rank:], strict=False))
    return View(view.buffer, view.elements[cut])


def transposed(view: View, order: Extents) -> list[View]:
    """Dimension d is dimension order[d] of the view; none where the stages of a buffer move."""
    stages = len(order) - view.elements.ndim
    if stages < 0 or list(order[:stages]) != list(range(stages)) or sorted(order) != list(range(len(order))):
        return []
    return [View(view.buffer, view.elements.transpose([d - stages for d in order[stages:]]))]


def reshaped(view: View, shape: Extents) -> list[View]:
    """Of a whole buffer, row by row in other extents; else none."""
    if math.prod(shape) != view.elements.size or not view.elements.flags.c_contiguous:
        return []
    return [View(view.buffer, view.elements.reshape(shape))]


def along(view: View, dim: int, shape: Extents) -> int:
    """The dimension of a buffer of extents `shape` along which this dimension of the view lies."""
    elements = view.elements
    if elements.shape[dim] < 2 or not elements.size:
        return dim
    step = int(np.take(elements, 1, dim).flat[0] - elements.flat[0])
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    return max((d for d in range(len(shape)) if strides[d] <= step), key=lambda d: (strides[d], shape[d]))


def _union(sets: Sequence[Sequence[View]]) -> list[View]:
    return list({view.key: view for views in sets for view in views}.values())


def _names(text: str) -> list[str]:
    return re.findall(_NAME, text)


def _split(name: str) -> tuple[str, int]:
    base, _, number = name.partition("#")
    return base, int(number or 0)
