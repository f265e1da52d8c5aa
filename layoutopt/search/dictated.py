"""Layouts that the hardware dictates: of `"layout": {"must_be": "tma.128B"}`, or of accesses by itself.

TMA, the tensor cores and bulk copies reach shared memory in a few layouts only. `candidates` lists all that
serve every such access of the tile, and what is left to choose is which: the fewest wavefronts of the other
accesses, then bytes, then the fewest boxes and instructions, then the published layout, then boxes of the
longest rows, then the cheapest swizzle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from layoutopt.accesses.lower import byte_table, offset_formula
from layoutopt.engine.by_hardware import descriptor, descriptors
from layoutopt.engine.case import Case
from layoutopt.engine.referee import rounded_count
from layoutopt.errors import ExpressionError, LayoutError, ProblemFileError
from layoutopt.files.checks import check_dictated
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import OutOfTime, current, spending
from layoutopt.hardware.dictated import Mode, engine, modes
from layoutopt.hardware.operations import is_direct_load
from layoutopt.layout.layout import MAX_BITS, Layout
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, Descriptor, TensorMap
from layoutopt.problems.hardware_use import HardwareUse
from layoutopt.problems.types import Access, Problem
from layoutopt.search.direct import NOT_ALL, SAID, direct_layouts, may_be_others
from layoutopt.search.modes import Named, in_mode, of_access
from layoutopt.search.proposal import STOPPED, Ask, Proposal

# Candidates that an answer names.
_NAMED: Final = 12
_NEEDED_S: Final = 0.5  # to count the first of them where lanes choose

# What lies without gaps where layouts are listed.
_LISTED: Final = {"tma": "boxes", "wgmma": "pages", "tcgen05": "pages"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that the hardware allows for the tile.

    Attributes:
        name: mode, and the contiguous dimension.
        alignment_bytes: that the base address must have.
        instructions: boxes, matrix instructions and bulk copies that reach the tile once.
        noun: what these are, in a word.
        box_rows: contiguous runs that the boxes of TMA are made of; longer runs are fewer.
    """

    name: str
    layout: Layout
    alignment_bytes: int
    instructions: int
    noun: str = "instruction"
    box_rows: int = 0

    @property
    def title(self) -> str:
        """Its name, and how often the hardware reaches for it."""
        plural = {"box": "boxes", "copy": "copies"}.get(self.noun, f"{self.noun}s")
        return f"{self.name}, {self.instructions:,} {self.noun if self.instructions == 1 else plural}"


class Reach(NamedTuple):
    """How the hardware comes to a tile whose layout is given.

    Attributes:
        alignment_bytes: that the base address must have; 1 where it asks for nothing.
        instructions: boxes, matrix instructions and bulk copies that reach the tile once.
    """

    alignment_bytes: int
    instructions: int


def names(problem: Problem) -> tuple[str, ...]:
    """What `must_be` asks for."""
    asked = problem.layout.must_be
    return (asked,) if isinstance(asked, str) else asked or ()


def _is_direct(problem: Problem) -> bool:
    return any(is_direct_load(access.op) for access in problem.accesses)


def _engines(problem: Problem) -> set[str]:
    """Who reaches the tile, by its accesses or `must_be`."""
    by_itself = {a.hardware.engine for a in problem.accesses if a.hardware is not None}
    return {*by_itself, *(name.partition(".")[0] for name in names(problem))}


def propose(case: Case, ask: Ask) -> Proposal:
    """The best of the few layouts that the hardware allows: every one is counted, run-time values included.

    Raises:
        ProblemFileError: as for `candidates`.
    """
    problem, objective = case.lowered, case.lowered.layout.objective
    direct, limit = _is_direct(problem), problem.layout.max_bytes
    ranked, refused, complete = _ranked(case)
    fitting = [r for r in ranked if limit is None or r.bytes <= limit]
    reason = _reason(case, ranked, fitting, refused)
    scope = f"the layouts of {_said(problem)}" + ("" if direct else side_by_side(problem))
    found = next((r for r in fitting if not (ask.conflict_free and r.weighted)), None)
    if found and objective.instructions_first:  # excess is the price of what comes first
        fitting = [r for r in fitting if r.flips == found.flips]
        scope += " that flip the fewest bits"
    elif found and objective.bytes_first and not ask.conflict_free:
        fitting = [r for r in fitting if r.bytes == found.bytes]
        scope += f" within {found.bytes} bytes"
    if complete and found is None and not direct:
        reason = f"{reason} ({scope})"
    elif complete and found is None and may_be_others(problem, case.lanes):
        complete, reason = False, "; ".join(part for part in (NOT_ALL, reason) if part)
    elif not complete:
        reason = "; ".join([STOPPED, *([reason] if ranked else [])])
    least = min((r.weighted for r in fitting), default=0) if complete else 0
    plain = min((r.plain for r in fitting), default=0) if complete else 0
    size = found.bytes if found else min((r.bytes for r in ranked), default=problem.tile.bytes)
    least_size = size if complete else problem.tile.bytes
    return Proposal(
        layout=found.candidate.layout if found else None,
        family=found.candidate.name if found else "",
        weighted_excess=found.weighted if found else 0,
        bytes=size,
        excess_bound=Bound(least, scope),
        plain_floor=0,
        bytes_bound=Bound(least_size, EVERY_LAYOUT if least_size == problem.tile.bytes else scope),
        refuted=complete and found is None,
        left_open=not complete,
        reason=reason,
        alignment_bytes=found.alignment_bytes if found else None,
        plain_bound=Bound(plain, scope),
        decided_by="hardware",
    )


def _reason(case: Case, ranked: Sequence[_Ranked], fitting: Sequence[_Ranked], refused: list[str]) -> str:
    """What the candidates cost, and why others are none; of direct loads, only why there is none."""
    problem = case.lowered
    if _is_direct(problem) and fitting:
        return ""  # nobody asked for its many candidates by name
    best: dict[str, _Ranked] = {}  # of each mode, whose larger boxes need not be said
    for r in fitting:
        best.setdefault(r.candidate.name, r)
    smallest = {r.candidate.name: r for r in sorted(ranked, key=lambda r: -r.bytes)}
    larger = [
        f"{name}: takes {r.bytes:,} bytes, max_bytes is {problem.layout.max_bytes:,}"
        for name, r in smallest.items()
        if name not in best
    ]
    unit = case.lanes.weight_unit
    costs = [f"{r.candidate.title}, {r.weighted / unit:g} excess" for r in best.values()]
    refused = list(dict.fromkeys([*larger, *refused]))
    if len(costs) > _NAMED:
        costs[_NAMED:] = [f"and {len(costs) - _NAMED} more, none better"]
    if len(refused) > _NAMED:
        refused[_NAMED:] = [f"and {len(refused) - _NAMED} more that do not serve"]
    by_itself = dict.fromkeys(a.hardware.engine for a in problem.accesses if a.hardware is not None)
    rules = "".join(f"; {name}: {engine(name).rule}" for name in by_itself)
    return "; ".join([*costs, *refused]) or f"no layout of {_said(problem)} holds this tile{rules}"


def _said(problem: Problem) -> str:
    if _is_direct(problem):
        return SAID
    by_itself = dict.fromkeys(a.op for a in problem.accesses if a.hardware is not None)
    parts = [" or ".join(names(problem))] if names(problem) else []
    return " and ".join([*parts, *by_itself])


def side_by_side(problem: Problem) -> str:
    """Of all layouts that the hardware could reach, those that are listed: what a scope says of them."""
    if _is_direct(problem):
        return ", as listed for direct loads"
    listed = dict.fromkeys(text for name, text in _LISTED.items() if name in _engines(problem))
    if not listed:
        return ", row-major with pads below 128 bytes" if "cp.async.bulk" in _engines(problem) else ""
    return f", {' and '.join(listed)} side by side"


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A candidate that serves the accesses, its excess with weights (in the trace's unit) and without."""

    candidate: Candidate
    weighted: float
    plain: float
    bytes: int
    published: bool
    alignment_bytes: int

    @property
    def flips(self) -> int:
        return MAX_BITS if self.candidate.layout.lookup else len(self.candidate.layout.swizzle)

    @property
    def rest(self) -> tuple[float, ...]:
        c = self.candidate
        return self.bytes, c.instructions, not self.published, c.box_rows, self.flips


def _ranked(case: Case) -> tuple[list[_Ranked], list[str], bool]:
    """The candidates that serve the accesses, the best first; why the others do not; whether these are all.

    Short boxes take no fewer bytes, and more instructions: they are counted where the best has conflicts. All
    is counted as long as there is time, of what the hardware reaches by itself at least until one serves.
    """
    problem, budget = case.lowered, current()
    direct = _is_direct(problem)
    listed = budget.while_left(_direct(case)) if direct else _listed(problem, short=False)
    ranked, refused = _counted(case, listed)
    if budget.spent:
        return ranked, refused, False
    most = problem.layout.max_bytes
    best = [r.weighted for r in ranked if most is None or r.bytes <= most][:1]
    if best == [0] or "tma" not in _engines(problem):
        return ranked, refused, True
    more = _counted(case, budget.while_left(_listed(problem, short=True)))
    if budget.spent:
        return _sorted(case, [*ranked, *more[0]]), refused, False
    return *more, True


def _counted(case: Case, listed: Iterable[Candidate | str]) -> tuple[list[_Ranked], list[str]]:
    """Those of the listed that serve the accesses, the best first; and why the others do not.

    Where the time is over, one that serves is enough.
    """
    ranked: list[_Ranked] = []
    refused, unfit = [], []
    limit, published = case.lowered.layout.alignment_bytes, _published(case)
    for candidate in listed:
        if ranked and current().spent:
            break
        if isinstance(candidate, str):
            unfit.append(candidate)
            continue
        table = case.table(candidate.layout)
        try:
            case.check(table)
        except LayoutError as error:
            refused.append(f"{candidate.name}: {error}")
            continue
        unit = max(candidate.alignment_bytes, case.alignment(bool(candidate.layout.swizzle)))
        if limit is not None and unit > limit:
            needs = f"needs a base at a multiple of {unit} bytes"
            refused.append(f"{candidate.name}: {needs}, alignment_bytes is {limit}")
            continue
        try:
            with spending(current() if ranked else current().at_least(_NEEDED_S)):
                counts = case.count(table)
        except OutOfTime:
            if ranked:
                break
            raise
        plain = rounded_count(sum(r.excess for r in case.reports(counts)))
        as_published = published is not None and bool((table == published).all())
        weighted = case.weighted_excess(counts)
        ranked.append(_Ranked(candidate, weighted, plain, case.size(table), as_published, unit))

    return _sorted(case, ranked), refused if ranked else [*refused, *unfit]


def _sorted(case: Case, ranked: list[_Ranked]) -> list[_Ranked]:
    objective = case.lowered.layout.objective
    return sorted(ranked, key=lambda r: (*objective.key(r.weighted, r.bytes, r.flips)[:2], *r.rest))


def _direct(case: Case) -> Iterator[Candidate | str]:
    """Candidates for AMD's direct loads; must_be speaks of another vendor's hardware."""
    check_dictated(case.lowered)
    if names(case.lowered):
        raise ProblemFileError("layout.must_be", "direct loads past the registers know no such layout")
    for name, layout in direct_layouts(case.lowered, case.lanes):
        yield Candidate(name, layout, 1, 0)


def _published(case: Case) -> IntArray | None:
    published, tile = case.problem.published, case.problem.tile
    if published is None:
        return None
    try:
        return byte_table(offset_formula(published.offset, tile), tile)
    except (ExpressionError, LayoutError):
        return None  # `check` says what is wrong with it


def candidates(problem: Problem) -> Iterator[Candidate]:
    """Every layout of the tile that `must_be` and the accesses of the hardware by itself allow.

    Raises:
        ProblemFileError: an unknown mode, or another constraint beside what is dictated.
    """
    yield from (listed for listed in _listed(problem) if isinstance(listed, Candidate))


def ranked_candidates(case: Case) -> list[Candidate]:
    """Those of them that serve the accesses, in the order of `propose`; none of direct loads, which are many.

    Raises:
        ProblemFileError: as for `candidates`.
    """
    return [] if _is_direct(case.lowered) else [r.candidate for r in _ranked(case)[0]]


def reach(problem: Problem, table: IntArray) -> Reach:
    """How the hardware comes to the tile under a layout that is given.

    Raises:
        LayoutError: it does not reach the tile, or `must_be` names another layout.
    """
    found = descriptors(problem, table).values()
    needed = [d.alignment_bytes for d in found]
    count = sum(d.instructions for d in found)
    if names(problem):
        same = named_candidate(problem, table)
        if same is None:
            raise LayoutError(f"no layout of {' or '.join(names(problem))}")
        needed.append(same.alignment_bytes)
        count = same.instructions
    return Reach(max(needed, default=1), count)


def named_candidate(problem: Problem, table: IntArray) -> Candidate | None:
    """The candidate that a given layout is; None if it is none of them."""
    listed = _listed(problem, only=table)
    return next((same for same in listed if isinstance(same, Candidate)), None)


def _listed(
    problem: Problem, *, short: bool = True, only: IntArray | None = None
) -> Iterator[Candidate | str]:
    """The candidates, or those of one table `only`; and why what one access or mode allows is none."""
    check_dictated(problem)
    seen: set[bytes] = set()
    order = problem.layout.order
    noun = {"tma": "box", "cp.async.bulk": "copy"}.get("".join(_engines(problem)), "instruction")
    for name, layout, mode in (_must_be if names(problem) else _of_accesses)(problem, short):
        table = layout.table().ravel()
        if table.tobytes() in seen or (only is not None and (table != only).any()):
            continue
        if not names(problem):  # else what one mode refuses may be of another
            seen.add(table.tobytes())
        if order is not None and layout.digits[-1].dim != order[-1]:
            yield f"{name}: layout.order asks for x{order[-1]} contiguous"
            continue
        try:
            needed, pages = _needed(problem, mode, table)
        except LayoutError as error:
            yield f"{name}: {error}"
            continue
        seen.add(table.tobytes())
        named = mode.alignment_bytes if mode is not None and names(problem) else 1
        alignment = max([named, *(d.alignment_bytes for d in needed)])
        count = sum(d.instructions for d in needed) + pages
        yield Candidate(name, layout, alignment, count, noun, sum(map(_box_rows, needed)))


def _needed(problem: Problem, mode: Mode | None, table: IntArray) -> tuple[list[Descriptor], int]:
    """How the hardware reaches the tile, the boxes of `must_be` included; and its pages of a matrix."""
    found = [*descriptors(problem, table).values()]
    if not names(problem) or mode is None:
        return found, 0
    if mode.engine != "tma":
        return found, _pages(problem, mode)
    boxes = descriptor(_load(problem, mode), problem.tile, table)
    return (found if any(isinstance(d, TensorMap) for d in found) else [*found, boxes]), 0


def _box_rows(found: Descriptor) -> int:
    return found.boxes * math.prod(found.box_dim[1:]) if isinstance(found, TensorMap) else 0


def _of_accesses(problem: Problem, short: bool) -> Iterator[Named]:
    dictating = [access for access in problem.accesses if access.hardware is not None]
    for access in sorted(dictating, key=lambda access: access.op != "tma.load"):
        yield from of_access(access, problem.tile, short=short)


def _pages(problem: Problem, mode: Mode) -> int:
    """Pages of a matrix, where only the mode is known."""
    shape, inner = problem.tile.shape, _contiguous(problem)
    line = shape[inner] * problem.tile.element_bytes
    others = math.prod(-(-n // engine("tma").max_box) for d, n in enumerate(shape) if d != inner)
    return others * (line // mode.span_bytes if mode.span_bytes else 1)


def _contiguous(problem: Problem) -> int:
    """The dimension that is contiguous in global memory: the last, if the file says no other."""
    order = problem.layout.order
    return order[-1] if order is not None else len(problem.tile.shape) - 1


def _must_be(problem: Problem, short: bool) -> Iterator[Named]:
    """The layouts of the modes that `must_be` names: those that a load of TMA may have, and pages."""
    wanted: dict[str, Mode] = {}
    for name in names(problem):
        found = [mode for mode in modes() if name in (mode.name, mode.engine)]
        if not found:
            known = ", ".join([*dict.fromkeys(mode.engine for mode in modes()), *(m.name for m in modes())])
            raise ProblemFileError("layout.must_be", f"unknown layout {name!r}; known: {known}")
        wanted |= {mode.name: mode for mode in found}
    major, tile = _contiguous(problem), problem.tile
    for mode in wanted.values():
        layout = in_mode(tile.shape, tile.element_bytes, mode, major)
        if layout is not None:
            yield f"{mode.name}, x{major} contiguous", layout, mode
        if mode.engine == "tma":
            yield from of_access(_load(problem, mode), tile, short=short)


def _load(problem: Problem, mode: Mode) -> Access:
    use = HardwareUse(engine="tma", mode=mode.short, order=problem.layout.order)
    return Access(name="must_be", op="tma.load", index=(), hardware=use)
