"""Layouts that the hardware dictates by its accesses: the best of the few that it knows.

TMA, the tensor cores and bulk copies reach shared memory in a few layouts only, AMD's direct loads in those
whose waves write side by side. All that may serve are listed by name; those that every access reaches are
counted, run-time values included; and the best is that of the fewest wavefronts of the other accesses, then
bytes, then the fewest boxes and instructions, then the published layout, then boxes of the longest rows, then
the cheapest swizzle.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from layoutopt.accesses.lower import offset_formula
from layoutopt.engine.by_hardware import descriptors
from layoutopt.engine.case import Case
from layoutopt.engine.referee import rounded_count
from layoutopt.errors import ExpressionError, LayoutError
from layoutopt.files.checks import check_dictated
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import OutOfTime, current, spending
from layoutopt.hardware.dictated import engine
from layoutopt.hardware.operations import is_direct_load
from layoutopt.layout.layout import MAX_BITS, Layout
from layoutopt.problems.answer import EVERY_LAYOUT, Descriptor, TensorMap
from layoutopt.problems.types import Problem
from layoutopt.search.direct import NOT_ALL, SAID, direct_layouts, may_be_others
from layoutopt.search.modes import Named, of_access
from layoutopt.search.proposal import STOPPED, Found, Proposal, Proved
from layoutopt.search.search import Search

# Candidates that an answer names.
_NAMED: Final = 12
_NEEDED_S: Final = 0.5  # seconds at least, to count the first of them where lanes choose

# What lies without gaps where layouts are listed.
_NOUNS: Final = {"tma": "box", "cp.async.bulk": "copy"}
_LISTED: Final = {"tma": "boxes", "wgmma": "pages", "tcgen05": "pages"}


class Candidate(Struct, frozen=True):
    """A layout of the tile that serves every access, and what it costs."""

    name: str  # mode, and the contiguous dimension
    layout: Layout
    alignment_bytes: int  # that the base address must have
    instructions: int  # boxes, matrix instructions and bulk copies that reach the tile once
    noun: str  # the word for one of `instructions`: box, copy or instruction
    box_rows: int  # contiguous runs that the boxes of TMA are made of; longer runs are fewer
    weighted_excess: float  # in wavefronts times weights, in the trace's unit
    plain_excess: float  # in wavefronts, without weights
    bytes: int  # last offset plus element size
    unpublished: bool  # whether it is not the layout that the file calls published, if it names one

    @property
    def title(self) -> str:
        """Its name, and how often the hardware reaches for it."""
        plural = {"box": "boxes", "copy": "copies"}.get(self.noun, f"{self.noun}s")
        return f"{self.name}, {self.instructions:,} {self.noun if self.instructions == 1 else plural}"

    @property
    def flips(self) -> int:
        """Bits that the swizzle flips; more than any where a table is looked up."""
        return MAX_BITS if self.layout.lookup else len(self.layout.swizzle)


class Ranked(NamedTuple):
    """The layouts that serve the accesses, the best first; why others do not; whether these are all."""

    served: list[Candidate]
    refused: list[str]
    complete: bool


def _is_direct(problem: Problem) -> bool:
    return any(is_direct_load(access.op) for access in problem.accesses)


def _engines(problem: Problem) -> list[str]:
    """The units of the hardware that reach the tile without lanes: tma, wgmma, tcgen05, cp.async.bulk."""
    return list(dict.fromkeys(a.hardware.engine for a in problem.accesses if a.hardware is not None))


def propose(search: Search, _: Proposal | None) -> Proposal | None:
    """The best of the few layouts that the hardware allows; None where it dictates none.

    Raises:
        ProblemFileError: another constraint stands beside what is dictated.
    """
    case, ask = search.case, search.ask
    problem, objective = case.lowered, case.lowered.layout.objective
    if not problem.is_dictated:
        return None
    direct, limit = _is_direct(problem), problem.layout.max_bytes
    served, refused, complete = ranked(case)
    fitting = [c for c in served if limit is None or c.bytes <= limit]
    best = next((c for c in fitting if not (ask.conflict_free and c.weighted_excess)), None)
    scope = f"the layouts of {_named(problem)}" + ("" if direct else side_by_side(problem))
    # The bound of the excess holds for the layouts that are as good in what the objective has before it.
    alike = fitting
    if best and objective.instructions_first:
        alike = [c for c in fitting if c.flips == best.flips]
        scope += " that flip the fewest bits"
    elif best and objective.bytes_first and not ask.conflict_free:
        alike = [c for c in fitting if c.bytes == best.bytes]
        scope += f" within {best.bytes} bytes"
    left, reason = "", _reason(case, served, fitting, refused)
    if not complete:
        left, reason = STOPPED, reason if served else ""
    elif best is None and not direct:
        reason = f"{reason} ({scope})"  # layouts outside it are not refuted
    elif best is None and may_be_others(problem, case.lanes):
        complete, left = False, NOT_ALL  # direct loads can write more layouts than are listed
    least, plain, size = 0.0, 0.0, problem.tile.bytes  # lower bounds
    if complete:
        least = min((c.weighted_excess for c in alike), default=0)
        plain = min((c.plain_excess for c in alike), default=0)
        # Of the layouts with the least excess, the best is the smallest.
        size = best.bytes if best else min((c.bytes for c in served), default=size)
    found = None
    if best is not None:
        found = Found(best.layout, best.name, best.weighted_excess, best.bytes, best.alignment_bytes)
    return Proposal(
        found,
        excess_bound=Proved(least, scope, by="hardware"),
        bytes_bound=Proved(size, EVERY_LAYOUT if size == problem.tile.bytes else scope),
        plain_bound=Proved(plain, scope),
        left_open=not complete,
        left=left,
        notes=(reason,),
    )


def _reason(case: Case, served: Sequence[Candidate], fitting: Sequence[Candidate], refused: list[str]) -> str:
    """In words, the excess of the best candidate of each mode, and why other modes do not serve.

    Empty if direct loads have a layout. A mode is the `name` of a candidate.

    Args:
        served: layouts that serve the accesses, best first.
        fitting: those of them within `max_bytes`.
        refused: why other layouts do not serve.
    """
    problem = case.lowered
    if _is_direct(problem) and fitting:
        return ""  # nobody asked for its many candidates by name
    best: dict[str, Candidate] = {}  # of each mode
    for c in fitting:
        best.setdefault(c.name, c)
    smallest = {c.name: c for c in sorted(served, key=lambda c: -c.bytes)}  # of each mode, which comes last
    too_large = [
        f"{name}: takes {c.bytes:,} bytes, max_bytes is {problem.layout.max_bytes:,}"
        for name, c in smallest.items()
        if name not in best
    ]
    costs = [f"{c.title}, {case.in_weights(c.weighted_excess):g} excess" for c in best.values()]
    refused = list(dict.fromkeys([*too_large, *refused]))
    if len(costs) > _NAMED:
        costs[_NAMED:] = [f"and {len(costs) - _NAMED} more, none better"]
    if len(refused) > _NAMED:
        refused[_NAMED:] = [f"and {len(refused) - _NAMED} more that do not serve"]
    rules = "".join(f"; {name}: {engine(name).rule}" for name in _engines(problem))
    return "; ".join([*costs, *refused]) or f"no layout of {_named(problem)} holds this tile{rules}"


def _named(problem: Problem) -> str:
    """The accesses that dictate layouts, in words."""
    if _is_direct(problem):
        return SAID
    return " and ".join(dict.fromkeys(a.op for a in problem.accesses if a.hardware is not None))


def side_by_side(problem: Problem) -> str:
    """The end of a scope in words: which of the layouts that the hardware could reach are searched."""
    if _is_direct(problem):
        return ", as listed for direct loads"
    listed = dict.fromkeys(text for name, text in _LISTED.items() if name in _engines(problem))
    if not listed:
        return ", row-major with pads below 128 bytes" if _engines(problem) else ""
    return f", {' and '.join(listed)} side by side"


def ranked(case: Case) -> Ranked:
    """The layouts that the hardware allows, best first, as many as were counted in time.

    Raises:
        OutOfTime: the time was over before one was counted.
        ProblemFileError: as for `propose`.
    """
    problem, published = case.lowered, _published(case)  # which wins among equals
    check_dictated(problem)  # the constraints of the file
    served: list[Candidate] = []
    unreached: list[str] = []  # by the hardware itself: not said where another layout serves
    refused: list[str] = []  # by the other accesses, or the constraints
    seen: set[bytes] = set()
    for name, layout in _listed(case, served):  # which looks at what serves so far
        table = case.table(layout)
        if table.tobytes() in seen:
            continue
        seen.add(table.tobytes())
        try:
            needed = _needed(problem, layout, table)
        except LayoutError as error:
            unreached.append(f"{name}: {error}")
            continue
        try:
            # Without the first there is no answer.
            with spending(current() if served else current().at_least(_NEEDED_S)):
                served.append(_counted(case, name, layout, table, needed, published))
        except LayoutError as error:
            refused.append(f"{name}: {error}")
        except OutOfTime:
            if not served:
                raise
            break
    return Ranked(
        served=_best_first(case, served),
        refused=refused if served else [*refused, *unreached],
        complete=not current().spent,
    )


def _listed(case: Case, served: Sequence[Candidate]) -> Iterator[Named]:
    """Candidate layouts with names, with repeats; ends with the time once one is in `served`.

    The caller adds to `served` what serves, while it goes through them. Short boxes of TMA take no fewer
    bytes, and more instructions: they follow where the best has conflicts.
    """
    problem, limit = case.lowered, case.lowered.layout.max_bytes
    if _is_direct(problem):
        yield from current().while_left(direct_layouts(problem, case.lanes))
        return
    own = [access for access in problem.accesses if access.hardware is not None]
    own.sort(key=lambda access: access.op != "tma.load")
    for access in own:
        for named in of_access(access, problem.tile, short=False):
            if served and current().spent:
                return
            yield named
    best = _best_first(case, [c for c in served if limit is None or c.bytes <= limit])
    if "tma" in _engines(problem) and not (best and best[0].weighted_excess == 0):
        for access in own:
            yield from current().while_left(of_access(access, problem.tile, short=True))


def _needed(problem: Problem, layout: Layout, table: IntArray) -> list[Descriptor]:
    """The descriptors by which the hardware reaches the tile; LayoutError where it does not."""
    order = problem.layout.order
    if order is not None and not _is_direct(problem) and layout.digits[-1].dim != order[-1]:
        raise LayoutError(f"layout.order asks for x{order[-1]} contiguous")
    return list(descriptors(problem, table).values())


def _counted(
    case: Case,
    name: str,
    layout: Layout,
    table: IntArray,
    needed: Sequence[Descriptor],
    published: IntArray | None,
) -> Candidate:
    """A layout as a candidate, its accesses by lanes counted; LayoutError if it does not serve them.

    Args:
        name: see `Candidate`.
        table: byte offsets of the layout by row-major index.
        needed: descriptors by which the hardware reaches the tile.
        published: byte offsets of the published layout, if any.
    """
    case.check_lanes(table)
    limit = case.lowered.layout.alignment_bytes
    alignment = max(case.alignment(bool(layout.swizzle)), *(d.alignment_bytes for d in needed), 1)
    if limit is not None and alignment > limit:
        raise LayoutError(f"needs a base at a multiple of {alignment} bytes, alignment_bytes is {limit}")
    counts = case.count(table)
    return Candidate(
        name=name,
        layout=layout,
        alignment_bytes=alignment,
        instructions=sum(d.instructions for d in needed),
        noun=_NOUNS.get(" ".join(_engines(case.lowered)), "instruction"),
        # A box lists its extents from the contiguous one on: the others count its rows.
        box_rows=sum(d.boxes * math.prod(d.box_dim[1:]) for d in needed if isinstance(d, TensorMap)),
        weighted_excess=case.weighted_excess(counts),
        plain_excess=rounded_count(sum(report.excess for report in case.reports(counts))),
        bytes=case.size(table),
        unpublished=published is None or not np.array_equal(table, published),
    )


def _best_first(case: Case, served: Sequence[Candidate]) -> list[Candidate]:
    def rank(c: Candidate) -> tuple[float, ...]:
        first = case.lowered.layout.objective.key(c.weighted_excess, c.bytes, c.flips)[:2]
        return *first, c.bytes, c.instructions, c.unpublished, c.box_rows, c.flips

    return sorted(served, key=rank)


def _published(case: Case) -> IntArray | None:
    """Byte offsets of the layout that the file says a library ships; None without one that can be read."""
    published = case.problem.published
    if published is None:
        return None
    try:
        return case.table(offset_formula(published.offset, case.problem.tile))
    except (ExpressionError, LayoutError):
        return None  # `check` says what is wrong with it
