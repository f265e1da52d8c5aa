"""Why a layout works, in sentences and drawings of single phases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from layoutopt.accesses.trace import LaneTrace
from layoutopt.engine.case import Case
from layoutopt.engine.run_time_values import ChoiceTrace
from layoutopt.engine.witness import PhaseWitness, witness
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.ground.arrays import IntArray
from layoutopt.layout.families import without_each_part
from layoutopt.layout.layout import Layout, row_major
from layoutopt.problems.answer import Result
from layoutopt.problems.text import listed

# Wavefronts drawn of one phase.
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class PhaseWords:
    """What there is to say about layouts of one case."""

    case: Case

    def why(self, result: Result, in_use: Node | None = None) -> Iterator[str]:
        """The worst phase before, the same phase now, and what each part of the layout buys.

        Args:
            result: what was found.
            in_use: the layout to start from, element offset over x0, x1, ...; row-major where there is none,
                or where that has no conflicts.

        Raises:
            ExpressionError: the formula cannot be evaluated.
        """
        case = self.case
        used = None if in_use is None or self._is_free(in_use) else in_use
        start: Layout | Node = row_major(case.lowered.tile.shape, case.lowered.tile.element_bytes)
        name, what = "Row-major", "Row-major, with no pad and no swizzle,"
        if used is not None:
            start, name, what = used, f"In use, {to_text(used)}", f"The layout in use, {to_text(used)},"
        if (problem := self._unsound(start)) is not None:
            yield f"{what} cannot hold this tile: {problem}."
        place: tuple[int, int] | None = None  # an access, and its instruction with the most excess
        if problem is None or used is None:
            before = case.reports(case.count(case.table(start)))
            worst = max(range(len(before)), key=lambda k: before[k].excess)
            if before[worst].excess > 0:
                place = worst, case.worst(worst, case.table(start))
                yield from self._phase(start, place, name)
            elif problem is None:
                yield f"{what} has no conflicts already."
        yield from self._after(result, start, place)
        if case.problem.is_dictated and result.layout is not None and result.reason:
            yield f"Of {result.proof.excess.scope}: {result.reason}."
        if in_use is not None and used is None:
            yield f"The layout in use, {to_text(in_use)}, has no conflicts."

    def _after(self, result: Result, start: Layout | Node, place: tuple[int, int] | None) -> Iterator[str]:
        """The same phase in the layout found, what each part of it buys, and what is left over."""
        if result.layout is None:
            yield f"No layout: {result.reason}."
            return
        layout = self.case.as_bytes(result.layout)
        found = "a table of offsets" if layout.lookup else result.offset
        if layout != start:
            if place is not None:
                yield from self._phase(layout, place, f"With {found}")
            if not self.case.problem.is_dictated:  # a mode has no parts to leave out
                yield from self._parts(result.layout)
        for k, report in enumerate(result.accesses):
            if report.excess and (left := (k, self.case.worst(k, self.case.table(layout)))) != place:
                yield from self._phase(layout, left, f"Left over with {found}")

    def _phase(self, layout: Layout | Node, place: tuple[int, int], title: str) -> Iterator[str]:
        """The worst phase of one instruction, in a sentence and a drawing; a sentence where lanes choose."""
        k, row = place
        access, table = self.case.lanes.accesses[k], self.case.table(layout)
        if isinstance(chosen := self.case.accesses[k], ChoiceTrace):
            counts = chosen.count(table)
            over = "at worst over all values" if chosen.any_is == "worst" else "expected over uniform values"
            took, least = counts.wavefronts[row], counts.ideal[row]
            text = f"{over}, one takes {took:g} wavefronts, where {least:g} could do."
            yield f"{title}: `{access.name}`: {text}"
            return
        address = table[access.element[row]]
        served = witness(address.tolist(), access.active[row].tolist(), access.operation, self.case.device)
        worst = max(served, key=lambda p: p.wavefronts)
        warp, iteration = self.case.place(k, row)
        where = "".join(f", {name} = {value}" for name, value in iteration.items())
        verb = "read" if access.operation.is_read else "write"
        count = len({t.word for t in worst.touches})
        lanes = sorted({t.lane for t in worst.touches})
        text = (
            f"{title}: `{access.name}` (warp {warp}{where}): {len(worst.lanes)} lanes are served together. "
        )
        if count > 1:
            elements = [self.case.coordinates(int(access.element[row, lane])) for lane in lanes]
            text += (
                f"Lanes {listed(lanes)} {verb} {_places(elements)}: {self._distance(address, lanes)}"
                f"bank {worst.bank} holds {count} of their words, so they take {worst.wavefronts} wavefronts."
            )
        else:
            text += "No two of their words share a bank, so they take one wavefront."
        yield text + "\n" + self._drawing(address, access, worst)

    def _distance(self, address: IntArray, lanes: Sequence[int]) -> str:
        rows = self.case.device.banks * self.case.device.bank_bytes
        apart = math.gcd(*(int(address[b] - address[a]) for a, b in itertools.pairwise(lanes)))
        if apart and apart % rows == 0:
            return f"their addresses lie multiples of {apart:,} bytes apart, and banks repeat every {rows}; "
        return ""

    def _drawing(self, address: IntArray, access: LaneTrace, phase: PhaseWitness) -> str:
        """Bank groups as columns, wavefronts as rows, lanes in the cells."""
        rule = self.case.device.rule(access.operation)
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
            other = self.case.as_bytes(less)
            if (problem := self._unsound(other)) is not None:
                yield f"Without {what} the tile would not fit: {problem}."
                continue
            more = {a.name: a.wavefronts - now[a.name] for a in self.case.measure(other)}
            worse = [f"`{name}` {change:+,}" for name, change in more.items() if change]
            effect = ", ".join(worse) if worse else "no change: it keeps the vectors whole or the tile dense"
            yield f"Without {what}: {effect}" + (" wavefronts." if worse else ".")

    def _is_free(self, layout: Node) -> bool:
        """Whether a layout holds the tile and has no conflicts."""
        return self._unsound(layout) is None and not any(a.excess > 0 for a in self.case.measure(layout))

    def _unsound(self, layout: Layout | Node) -> str | None:
        """Why a layout cannot hold the tile, if it cannot."""
        try:
            self.case.check(self.case.table(layout))
        except LayoutError as error:
            return str(error)
        return None


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
