"""Layouts that the hardware dictates: `"layout": {"must_be": "tma.128B"}`.

TMA and wgmma reach shared memory through a few fixed swizzles. A tile that they read or write has one of
those layouts, in one of its majors, and what is left to choose is which. `candidates` lists them all.

For rows of 64 bf16 and `tma.128B`, eight rows of eight 16-byte chunks:

    row 0   0 1 2 3 4 5 6 7
    row 1   1 0 3 2 5 4 7 6
    row 2   2 3 0 1 6 7 4 5      chunk c of row r lies at place c ^ (r % 8)
    ...
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import msgspec
from msgspec import Struct

from layoutopt.engine.case import Case
from layoutopt.engine.run_time_values import rounded_count
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.problems.answer import EVERY_LAYOUT, Bound
from layoutopt.problems.file import check_must_be
from layoutopt.problems.types import Problem
from layoutopt.search.proposal import Ask, Proposal

MAX_BOX_ELEMENTS = 256  # cuTensorMapEncodeTiled, boxDim
ATOM_ROWS = 8


class Mode(Struct, frozen=True, forbid_unknown_fields=True):
    """One mode, as in `hardware/dictated.json`, which explains the fields."""

    name: str
    span_bytes: int | None
    alignment_bytes: int
    xor: tuple[tuple[int, int], ...]
    source: str


class ModeFile(Struct, frozen=True, forbid_unknown_fields=True, rename={"schema_": "schema"}):
    """The data file."""

    schema_: Literal["layoutopt.dictated/1"]
    about: str
    modes: tuple[Mode, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that the hardware allows for the tile.

    Attributes:
        name: mode, and the contiguous dimension.
        layout: the layout.
        alignment_bytes: that the base address must have.
    """

    name: str
    layout: Layout
    alignment_bytes: int


@cache
def modes() -> tuple[Mode, ...]:
    """Every mode, in the order of the data."""
    data = resources.files("layoutopt.hardware").joinpath("dictated.json").read_bytes()
    return msgspec.json.decode(data, type=ModeFile).modes


def names(problem: Problem) -> tuple[str, ...]:
    """What `must_be` asks for."""
    asked = problem.layout.must_be
    return (asked,) if isinstance(asked, str) else asked or ()


def propose(case: Case, ask: Ask) -> Proposal:
    """The best of the few layouts that the hardware allows: every one is counted, run-time values included.

    Raises:
        ProblemFileError: as for `candidates`.
    """
    problem = case.lowered
    scope = f"the layouts of {' or '.join(names(problem))}"
    ranked, refused = _ranked(case)
    costs = [f"{r.candidate.name} {r.weighted / case.lanes.weight_unit:g} excess" for r in ranked]
    reason = "; ".join([*costs, *refused]) or f"no layout of {' or '.join(names(problem))} holds this tile"
    limit = problem.layout.max_bytes
    fits = limit is None or problem.tile.bytes <= limit
    found = ranked[0] if ranked and fits and not (ask.conflict_free and ranked[0].weighted) else None
    if found and problem.layout.minimise == "instructions":  # excess is the price of what comes first
        ranked = [r for r in ranked if r.flips == found.flips]
        scope += " that flip the fewest bits"
    least = min((r.weighted for r in ranked), default=0)
    return Proposal(
        layout=found.candidate.layout if found else None,
        family=found.candidate.name if found else "",
        weighted_excess=found.weighted if found else 0,
        bytes=problem.tile.bytes,
        operations=None,
        operations_proved=False,
        excess_bound=Bound(least, scope),
        plain_floor=0,
        bytes_bound=Bound(problem.tile.bytes, EVERY_LAYOUT),
        complete=True,
        reason=reason,
        alignment_bytes=found.candidate.alignment_bytes if found else None,
        plain_bound=Bound(min((r.plain for r in ranked), default=0), scope),
        decided_by="hardware",
    )


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A candidate that serves the accesses, its excess with weights (in the trace's unit) and without."""

    candidate: Candidate
    weighted: float
    plain: float

    @property
    def flips(self) -> int:
        """Bits that its swizzle flips."""
        return len(self.candidate.layout.swizzle)


def _ranked(case: Case) -> tuple[list[_Ranked], list[str]]:
    """The candidates that serve the accesses, the best first; and why the others do not."""
    ranked, refused = [], []
    limit = case.lowered.layout.alignment_bytes
    for candidate in candidates(case.lowered):
        table = case.table(candidate.layout)
        try:
            case.check(table)
        except LayoutError as error:
            refused.append(f"{candidate.name}: {error}")
            continue
        if limit is not None and candidate.alignment_bytes > limit:
            needs = f"needs a base at a multiple of {candidate.alignment_bytes} bytes"
            refused.append(f"{candidate.name}: {needs}, alignment_bytes is {limit}")
            continue
        counts = case.count(table)
        plain = rounded_count(sum(r.excess for r in case.reports(counts)))
        ranked.append(_Ranked(candidate, case.weighted_excess(counts), plain))

    def rank(r: _Ranked) -> tuple[float, float]:
        instructions = case.lowered.layout.minimise == "instructions"
        return (r.flips, r.weighted) if instructions else (r.weighted, r.flips)

    return sorted(ranked, key=rank), refused


def candidates(problem: Problem) -> Iterator[Candidate]:
    """Every layout of the tile that `must_be` allows.

    Raises:
        ProblemFileError: an unknown mode, or another constraint beside must_be.
    """
    check_must_be(problem.layout)
    wanted: dict[str, Mode] = {}
    for name in names(problem):
        found = [mode for mode in modes() if mode.name == name or mode.name.partition(".")[0] == name]
        if not found:
            known = ", ".join(["tma", "wgmma", *(mode.name for mode in modes())])
            raise ProblemFileError("layout.must_be", f"unknown layout {name!r}; known: {known}")
        wanted |= {mode.name: mode for mode in found}
    for mode in wanted.values():
        for major in range(len(problem.tile.shape))[::-1]:
            layout = _layout(problem.tile.shape, problem.tile.element_bytes, mode, major)
            if layout is not None:
                yield Candidate(f"{mode.name}, x{major} contiguous", layout, mode.alignment_bytes)


def _layout(shape: tuple[int, ...], element_bytes: int, mode: Mode, major: int) -> Layout | None:
    """The tile in this mode with dimension `major` contiguous; None if it does not fit the mode."""
    line_bytes = shape[major] * element_bytes
    span_bytes = mode.span_bytes or line_bytes
    if element_bytes & (element_bytes - 1) or line_bytes % 16 or line_bytes % span_bytes:
        return None
    span = span_bytes // element_bytes
    if span > MAX_BOX_ELEMENTS:
        return None
    others = [d for d in range(len(shape)) if d != major]
    rows = others[-1] if others else None
    if mode.name.startswith("wgmma") and (rows is None or shape[rows] % ATOM_ROWS):
        return None
    # Outermost first: what lies before the matrix, then its pages, rows and elements.
    digits = [Digit(major, 1, span, 1)]
    stride = span
    if rows is not None:
        digits.insert(0, Digit(rows, 1, shape[rows], stride))
        stride *= shape[rows]
    if shape[major] > span:
        digits.insert(0, Digit(major, span, shape[major] // span, stride))
        stride *= shape[major] // span
    for d in reversed(others[:-1]):
        digits.insert(0, Digit(d, 1, shape[d], stride))
        stride *= shape[d]
    unit = math.frexp(element_bytes)[1] - 1
    swizzle = tuple(Target(target - unit, 1 << (source - unit)) for target, source in mode.xor)
    return Layout(shape, element_bytes, tuple(digits), swizzle)
