"""Reasons in words: why a layout works, or why none can and what to give up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.budget import Budget
from layoutopt.engine.case import case_of
from layoutopt.engine.witness import PhaseWitness, witness
from layoutopt.errors import LayoutError
from layoutopt.hardware.devices import Device, device
from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.families import without_each_part
from layoutopt.layout.layout import Layout, row_major
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import FreeAssignment, lane_order
from layoutopt.problems.answer import EVERY_LAYOUT, Result
from layoutopt.problems.lower import chosen_widths, whole
from layoutopt.problems.trace import LaneTrace, Trace, trace
from layoutopt.problems.types import Access, Problem
from layoutopt.problems.words import listed
from layoutopt.proof.every_layout import every_layout
from layoutopt.proof.reason_data import instruction_at
from layoutopt.proof.reasons import BY_HAND, CLIQUE, COUNTING, SOLVER, Search, subject_of
from layoutopt.search.proposal import Ask
from layoutopt.synthesis.solve import solve, solve_cases

EXPLANATION_SCHEMA: Final = "layoutopt.explanation/1"
# Accesses beyond which no smallest clash is looked for: each is one question to the solver.
MAX_CLASH: Final = 16
_SHOWN: Final = 8
# Shares of the time left: the first search, and each question after it.
_SEARCH_SHARE, _QUESTION_SHARE = 0.5, 0.25


class Relaxation(Struct, frozen=True):
    """Something to give up, after which a layout without conflicts exists.

    Attributes:
        kind: drop_access, narrower, lane_order, families or max_bytes.
        access: what it concerns, if an access.
        message: for people.
        order: of a lane_order: lane k is to do what lane order[k] does now, in every warp.
    """

    kind: str
    message: str
    access: str | None = None
    order: tuple[int, ...] = ()


class Explanation(Struct, frozen=True, rename={"schema_": "schema"}):
    """Why.

    Attributes:
        conflict_free: whether a layout without conflicts exists; None where that is open.
        scope: the layouts for which `conflict_free` holds when it is false, and `lower_bound`.
        lower_bound: of the (weighted) excess.
        evidence: what the bound rests on.
        excess: of the best layout found; None without one.
        offset: that layout.
        clique: words that pairwise meet, more than banks, as in a certificate.
        clashing_accesses: accesses that cannot all be served without conflicts; without any one of
            them the others of these can, where `clash_is_minimal`.
        other_clashes: more sets of that kind, each found with one of `clashing_accesses` left out.
        relaxations: what to give up.
        reasons: sentences and drawings for people.
        widths: where the file leaves widths open, those that the solver chose, in bytes by access name;
            all else is about them.
    """

    problem: str
    target: str
    conflict_free: bool | None
    scope: str
    lower_bound: int | float
    evidence: str
    excess: int | float | None
    offset: str | None
    clique: dict[str, Any] | None
    clashing_accesses: tuple[str, ...]
    clash_is_minimal: bool
    other_clashes: tuple[tuple[str, ...], ...]
    relaxations: tuple[Relaxation, ...]
    reasons: tuple[str, ...]
    widths: dict[str, int]
    schema_: str = EXPLANATION_SCHEMA

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON-ready data, the schema first."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": data.pop("schema"), **data}


def explain(problem: Problem, *, budget: Budget, target: Device | None = None) -> Explanation:
    """Solve `problem` and say why the answer is what it is.

    Args:
        problem: what to explain.
        budget: the time there is; the search may use half of it, the questions after it the rest.
        target: the device, where it is not the one the problem names.

    Raises:
        ProblemFileError: the problem contradicts itself.
    """
    return _Explainer(problem, target or device(problem.target), budget).run()


class _Explainer:
    def __init__(self, problem: Problem, gpu: Device, budget: Budget) -> None:
        self.gpu = gpu
        self.budget = budget
        self.warps = -(-problem.threads // gpu.lanes)
        trace(whole(problem, {}), gpu)  # what cannot be explained is refused before the search
        # A budget of its own, so that the search goes as it would without questions to follow.
        self.result = solve(problem, target=gpu, budget=budget.part(_SEARCH_SHARE))
        self.widths = chosen_widths(problem, self.result)
        self.case = case_of(problem, gpu, self.widths)
        self.source = self.case.problem
        self.problem = self.case.lowered  # bytes for packed elements, which only people see
        self.lanes: Trace = self.case.lanes
        self.answers: dict[bytes, bool | None] = {}

    def run(self) -> Explanation:
        result = self.result
        free = bool(result.layout is not None and result.excess == 0)
        verdict: bool | None = True if free else None
        bound = result.proof.objective
        clique, reasons = None, list(self._why(result))
        if bound.lower_bound > 0 or (result.layout is None and result.proof.excess.lower_bound > 0):
            verdict = False
        clash: list[Access] = []
        minimal = False
        others: list[tuple[str, ...]] = []
        relaxations: list[Relaxation] = []
        every = bound.everywhere or (
            result.proof.every_layout is not None and result.proof.every_layout.lower_bound > 0
        )
        if not free and self._restricted():
            relaxations += self._widen()
        if verdict is False and every:
            subject = subject_of(self.problem.tile, self.gpu, self.lanes)
            findings = ((r, r.find(subject, Search(Budget()))) for r in BY_HAND)
            for reason, found in findings:
                if found is None:
                    continue
                reasons += reason.words(subject, self.source, found)
                if reason is CLIQUE:
                    clique = reason.data(subject, self.source, found)
                if reason is not COUNTING:
                    break  # the easiest of those that add to counting
            if result.proof.evidence == SOLVER.evidence:
                least = FreeAssignment(round(bound.lower_bound * self.lanes.weight_unit))
                reasons += SOLVER.words(subject, self.source, least)
            clash, minimal = self._clash(self.problem.accesses)
            others = self._other_clashes(clash)
            relaxations += self._relaxations(clash)
        if result.layout is not None and not free:
            relaxations += self._lane_orders(self._over_bytes(result.layout), clash)
        return Explanation(
            self.problem.name,
            self.gpu.name,
            verdict,
            bound.scope if not (every and not free) else EVERY_LAYOUT,
            bound.lower_bound,
            result.proof.evidence,
            result.excess,
            result.offset,
            clique,
            _names(clash),
            minimal,
            tuple(others),
            tuple(relaxations),
            tuple(reasons),
            self.widths,
        )

    def _over_bytes(self, layout: Layout) -> Layout:
        """A layout of packed elements as one of the bytes that they share."""
        return msgspec.structs.replace(layout, shape=self.problem.tile.shape, packed=1)

    # Why a layout works -----------------------------------------------------------------------

    def _why(self, result: Result) -> Iterator[str]:
        """Row-major's worst phase, the same phase now, and what each part of the layout buys."""
        plain = row_major(self.problem.tile.shape, self.problem.tile.element_bytes)
        if (problem := self._unsound(plain)) is not None:
            yield f"Row-major, with no pad and no swizzle, cannot hold this tile: {problem}."
        before = self.case.measure(plain)
        worst = max(range(len(before)), key=lambda k: before[k].excess)
        place = None
        if before[worst].excess > 0:
            place = self.case.worst(worst, self.case.table(plain))
            yield from self._phase(plain, worst, place, "Row-major")
        else:
            yield "Row-major, with no pad and no swizzle, has no conflicts already."
        if result.layout is None:
            yield f"No layout: {result.reason}."
            return
        layout = self._over_bytes(result.layout)
        name = "a table of offsets" if layout.lookup else result.offset
        if layout != plain:
            if place is not None:
                yield from self._phase(layout, worst, place, f"With {name}")
            yield from self._parts(result.layout)
        over = [a for a in result.accesses if a.excess]
        for report in over:
            k = [a.name for a in self.lanes.accesses].index(report.name)
            row = self.case.worst(k, self.case.table(layout))
            if place is None or (k, row) != (worst, place):
                yield from self._phase(layout, k, row, f"Left over with {name}")

    def _phase(self, layout: Layout, k: int, row: int, title: str) -> Iterator[str]:
        """The worst phase of one instruction, in a sentence and a drawing."""
        access, source = self.lanes.accesses[k], self.problem.accesses[k]
        address = layout.table().ravel()[access.element[row]]
        served = witness(address.tolist(), access.active[row].tolist(), access.operation, self.gpu)
        worst = max(served, key=lambda p: p.wavefronts)
        warp, iteration = instruction_at(source, row, self.warps)
        where = "".join(f", {name} = {value}" for name, value in iteration.items())
        verb = "read" if access.operation.is_read else "write"
        count = len({t.word for t in worst.touches})
        lanes = sorted({t.lane for t in worst.touches})
        text = (
            f"{title}: `{access.name}` (warp {warp}{where}): {len(worst.lanes)} lanes are served together. "
        )
        if count > 1:
            elements = [self._coordinates(int(access.element[row, lane])) for lane in lanes]
            text += (
                f"Lanes {listed(lanes)} {verb} {_places(elements)}: {self._distance(address, lanes)}"
                f"bank {worst.bank} holds {count} of their words, so they take {worst.wavefronts} wavefronts."
            )
        else:
            text += "No two of their words share a bank, so they take one wavefront."
        yield text + "\n" + self._drawing(address, access, worst)

    def _distance(self, address: np.ndarray, lanes: Sequence[int]) -> str:
        rows = self.gpu.banks * self.gpu.bank_bytes
        apart = math.gcd(*(int(address[b] - address[a]) for a, b in itertools.pairwise(lanes)))
        if apart and apart % rows == 0:
            return f"their addresses lie multiples of {apart:,} bytes apart, and banks repeat every {rows}; "
        return ""

    def _drawing(self, address: np.ndarray, access: LaneTrace, phase: PhaseWitness) -> str:
        """Bank groups as columns, wavefronts as rows, lanes in the cells."""
        rule = self.gpu.rule(access.operation)
        unit = max(access.operation.width_bytes, rule.bank_bytes)
        columns = max(1, rule.banks * rule.bank_bytes // unit)
        held: list[dict[int, list[int]]] = [{} for _ in range(columns)]
        for lane in phase.lanes:
            word = int(address[lane]) // unit
            held[word % columns].setdefault(word, []).append(lane)
        if columns == rule.banks:
            names = [str(column) for column in range(columns)]
        else:
            step = rule.banks // columns
            names = [f"{column * step}-{column * step + step - 1}" for column in range(columns)]
        cells = [[_cell(lanes) for lanes in column.values()] for column in held]
        width = max(2, *(len(text) for column in (names, *cells) for text in column))
        height = max(map(len, cells))
        lines = ["    bank  " + " ".join(name.rjust(width) for name in names)]
        for depth in range(min(height, _SHOWN)):
            row = [column[depth] if depth < len(column) else "." for column in cells]
            lines.append(
                f"    {'lane' if depth == 0 else '':<6}" + " ".join(cell.rjust(width) for cell in row)
            )
        if height > _SHOWN:
            lines.append(f"    and {height - _SHOWN} more wavefronts")
        return "\n".join(lines)

    def _parts(self, layout: Layout) -> Iterator[str]:
        """What each pad, rotation and XOR bit buys: the wavefronts that come back without it."""
        now = {a.name: a.wavefronts for a in self.case.measure(layout)}
        for what, less in without_each_part(layout):
            other = self._over_bytes(less)
            if (problem := self._unsound(other)) is not None:
                yield f"Without {what} the tile would not fit: {problem}."
                continue
            more = {a.name: a.wavefronts - now[a.name] for a in self.case.measure(other)}
            worse = [f"`{name}` {change:+,}" for name, change in more.items() if change]
            effect = ", ".join(worse) if worse else "no change: it keeps the vectors whole or the tile dense"
            yield f"Without {what}: {effect}" + (" wavefronts." if worse else ".")

    def _unsound(self, layout: Layout) -> str | None:
        """Why a layout cannot hold the tile, if it cannot."""
        try:
            self.case.check(self.case.table(layout))
        except LayoutError as error:
            return str(error)
        return None

    # Why none can -----------------------------------------------------------------------------

    def _clash(self, accesses: Sequence[Access]) -> tuple[list[Access], bool]:
        """Of accesses that cannot all be served, some that cannot; and whether each is needed for that.

        What stays open while other accesses are still there may be decided once they are gone.
        """
        kept = list(accesses)
        if len(kept) > MAX_CLASH:
            return kept, False
        for access in kept:
            if self._possible([access]) is False:
                return [access], True
        open_, before = list(kept), len(kept) + 1
        while open_ and len(kept) < before:
            before, asked, open_ = len(kept), open_, []
            for access in asked:
                rest = [a for a in kept if a is not access]
                verdict = self._possible(rest)
                if verdict is False:
                    kept = rest
                elif verdict is None:
                    open_.append(access)
        return kept, not open_

    def _other_clashes(self, clash: Sequence[Access]) -> list[tuple[str, ...]]:
        """What still clashes with one access of `clash` left out."""
        found = []
        for access in clash:
            rest = [a for a in self.problem.accesses if a is not access]
            if self._possible(rest) is False:
                found.append(_names(self._clash(rest)[0]))
        return list(dict.fromkeys(found))

    def _possible(self, accesses: Sequence[Access]) -> bool | None:
        """Whether a layout without conflicts exists for these accesses alone; None where that is open."""
        key = msgspec.json.encode(accesses)
        if key not in self.answers:
            self.answers[key] = self._asked(accesses)
        return self.answers[key]

    def _asked(self, accesses: Sequence[Access]) -> bool | None:
        if not accesses:
            return True
        smaller = msgspec.structs.replace(self.problem, accesses=tuple(accesses))
        lanes = trace(smaller, self.gpu)
        if not any(a.active.any() for a in lanes.accesses):
            return True
        subject = subject_of(smaller.tile, self.gpu, lanes)
        if any(reason.find(subject, Search(Budget())) is not None for reason in BY_HAND):
            return False
        free = msgspec.structs.replace(self.problem.layout, families=None, max_bytes=None)
        smaller = msgspec.structs.replace(smaller, layout=free)
        part = self.budget.part(_QUESTION_SHARE)
        result = solve(smaller, target=self.gpu, budget=part, conflict_free=True)
        if result.layout is not None:
            return True
        if result.proof.excess.lower_bound:
            return False
        general = every_layout(smaller.tile, self.gpu, lanes, enough=1, budget=part)
        if general.bound:
            return False
        return True if general.free is not None and general.free.excess == 0 else None

    # What to give up --------------------------------------------------------------------------

    def _relaxations(self, clash: Sequence[Access]) -> Iterator[Relaxation]:
        accesses = self.problem.accesses
        for access in clash:
            if self._possible([a for a in accesses if a is not access]):
                yield Relaxation(
                    "drop_access", f"without `{access.name}` a layout free of conflicts exists", access.name
                )
            for narrow in self._narrower(access):
                width = parse_operation(narrow.op, narrow.single_width).width_bytes
                if self._possible([narrow if a is access else a for a in accesses]):
                    yield Relaxation(
                        "narrower",
                        f"`{access.name}` as {narrow.loops[_half(access)]} accesses of {width} bytes each: "
                        "a layout free of conflicts exists",
                        access.name,
                    )
                    break

    def _narrower(self, access: Access) -> Iterator[Access]:
        """The access as several narrower ones, the widest first."""
        operation = parse_operation(access.op, access.single_width)
        size = self.problem.tile.element_bytes
        width = operation.width_bytes // 2
        if operation.matrices or operation.kind not in ("load", "store", "cp.async.ca", "cp.async.cg"):
            return
        while width >= max(size, self.gpu.bank_bytes):
            kind = operation.kind if operation.kind in ("load", "store") else "cp.async"
            *outer, last = access.index
            name = _half(access)
            yield msgspec.structs.replace(
                access,
                op=kind,
                bytes=width,
                index=(*outer, f"({last}) + {name}*{width // size}"),
                loops={**access.loops, name: operation.width_bytes // width},
            )
            width //= 2

    def _lane_orders(self, layout: Layout, clash: Sequence[Access]) -> Iterator[Relaxation]:
        """Accesses whose lanes, dealt to the phases in another order, leave no conflict at all.

        Orders are sought for the layout found, then for any; the solver says whether one holds. Of
        accesses that clash it must be one.
        """
        tile = self.problem.tile
        for access in self.lanes.accesses:
            rule = self.gpu.rule(access.operation)
            one_order = len(rule.phases) < 2 or access.operation.matrices or rule.serialises_equal
            if one_order or (clash and access.name not in _names(clash)):
                continue
            others = Trace(tuple(a for a in self.lanes.accesses if a is not access), self.lanes.weight_unit)
            sets = phase_sets(others, tile, self.gpu) if others.accesses else ()
            for table in (layout.table(), None):
                part = self.budget.part(_QUESTION_SHARE)
                order = lane_order(sets, self.lanes, tile, access, rule, budget=part, table=table)
                found = self._reordered(access, order) if order is not None else None
                if order is not None and found is not None:
                    lanes = ", ".join(map(str, order))
                    yield Relaxation(
                        "lane_order",
                        f"`{access.name}` with its lanes in another order: {found.offset} has no conflicts "
                        f"if lane k does what lane n does now, for k = 0, 1, ... and n = {lanes}",
                        access.name,
                        order,
                    )
                    break

    def _reordered(self, access: LaneTrace, order: Sequence[int]) -> Result | None:
        """The result with the lanes of `access` in another order; None unless it is free of conflicts."""
        lanes = list(order)
        moved = replace(access, element=access.element[:, lanes], active=access.active[:, lanes])
        changed = Trace(
            tuple(moved if a is access else a for a in self.lanes.accesses), self.lanes.weight_unit
        )
        part = self.budget.part(_QUESTION_SHARE)
        result = solve_cases([self.case.with_lanes(changed)], Ask(part, conflict_free=True))
        if result.layout is None or result.excess:
            return None
        return result

    def _restricted(self) -> bool:
        return self.problem.layout.families is not None or self.problem.layout.max_bytes is not None

    def _widen(self) -> Iterator[Relaxation]:
        """Constraints of the file that are in the way."""
        for field, what in (("families", "with every family of layouts"), ("max_bytes", "with more memory")):
            if getattr(self.problem.layout, field) is None:
                continue
            freed = msgspec.structs.replace(self.source.layout, **{field: None})
            problem = msgspec.structs.replace(self.source, layout=freed)
            result = solve(problem, target=self.gpu, budget=self.budget.part(_QUESTION_SHARE))
            if result.layout is not None and result.excess == 0:
                yield Relaxation(field, f"{what}: {result.offset}, {result.bytes:,} bytes, no conflicts")

    def _coordinates(self, element: int) -> tuple[int, ...]:
        tile = self.source.tile
        return tuple(int(c) for c in np.unravel_index(element * tile.packed, tile.shape))


def _names(accesses: Sequence[Access]) -> tuple[str, ...]:
    return tuple(a.name for a in accesses)


def _half(access: Access) -> str:
    """A loop variable that the access does not use yet."""
    name = "part"
    while name in access.loops:
        name += "_"
    return name


def _cell(lanes: Sequence[int]) -> str:
    return str(lanes[0]) + ("+" if len(lanes) > 1 else "")


def _places(elements: Sequence[tuple[int, ...]]) -> str:
    """Coordinates in few words: what they share is said once."""
    distinct = list(dict.fromkeys(elements))
    if len(distinct[0]) == 1:
        return f"elements {listed([e[0] for e in distinct])}"
    varying = [d for d in range(len(distinct[0])) if len({e[d] for e in distinct}) > 1]
    if len(distinct[0]) == 2 and len(varying) == 1:
        (d,) = varying
        names = ("rows", "column") if d == 0 else ("columns", "row")
        return f"{names[0]} {listed([e[d] for e in distinct])} of {names[1]} {distinct[0][1 - d]}"
    return f"{listed(distinct)}"
