"""Why a layout works, in sentences and drawings of single phases."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from layoutopt.engine.case import Case
from layoutopt.engine.run_time_values import ChoiceTrace
from layoutopt.engine.witness import Served
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.ground.arrays import IntArray
from layoutopt.layout.families import without_each_part
from layoutopt.layout.layout import Layout, row_major
from layoutopt.problems.answer import Result
from layoutopt.problems.text import listed
from layoutopt.study.instruction import Instruction

_SHOWN: Final = 8  # wavefronts drawn of one phase


def why(case: Case, result: Result, in_use: Node | None = None) -> Iterator[str]:
    """The worst phase before, the same phase now, and what each part of the layout buys.

    Args:
        case: the tile and its accesses.
        result: what was found.
        in_use: the layout to start from, element offset over x0, x1, ...; row-major where there is none,
            or where that has no conflicts.

    Raises:
        ExpressionError: the formula cannot be evaluated.
    """
    stored = case.problem.tile.storage
    start: Layout | Node = row_major(stored.shape, stored.element_bytes)
    name, what, good = "Row-major", "Row-major, with no pad and no swizzle,", None
    if (
        in_use is not None
        and _unsound(case, in_use) is None
        and not any(a.excess for a in case.measure(in_use))
    ):
        good = in_use
    elif in_use is not None:
        start, name, what = in_use, f"In use, {to_text(in_use)}", f"The layout in use, {to_text(in_use)},"
    if (problem := _unsound(case, start)) is not None:
        yield f"{what} cannot hold this tile: {problem}."
    place: Instruction | None = None  # that of the most excess
    if problem is None or start is not in_use:
        before = case.reports(case.count(case.table(start)))
        worst = max(range(len(before)), key=lambda k: before[k].excess)
        if before[worst].excess > 0:
            place = Instruction.worst(case, worst, case.table(start))
            yield _phase(place, start, name)
        elif problem is None:
            yield f"{what} has no conflicts already."
    yield from _after(case, result, start, place)
    if case.problem.is_dictated and result.layout is not None and result.reason:
        yield f"Of {result.proof.excess.scope}: {result.reason}."
    if good is not None:
        yield f"The layout in use, {to_text(good)}, has no conflicts."


def _after(case: Case, result: Result, start: Layout | Node, place: Instruction | None) -> Iterator[str]:
    """Sentences on the solved layout: phase `place`, the effect of each part, the conflicts that remain."""
    if result.layout is None:
        yield f"No layout: {result.reason}."
        return
    layout = case.as_bytes(result.layout)
    found = "a table of offsets" if layout.lookup else result.offset
    if layout != start:
        if place is not None:
            yield _phase(place, layout, f"With {found}")
        if not case.problem.is_dictated:  # a mode has no parts to leave out
            yield from _parts(case, result.layout)
    for k, report in enumerate(result.accesses):
        if report.excess:
            left = Instruction.worst(case, k, case.table(layout))
            if left != place:
                yield _phase(left, layout, f"Left over with {found}")


def _phase(instruction: Instruction, layout: Layout | Node, title: str) -> str:
    """The worst phase of an instruction, in a sentence and a drawing; a sentence where lanes choose."""
    case, name, table = instruction.case, instruction.lanes.name, instruction.case.table(layout)
    if isinstance(chosen := case.accesses[instruction.access], ChoiceTrace):
        counts = chosen.count(table)
        over = "at worst over all values" if chosen.any_is == "worst" else "expected over uniform values"
        took, least = counts.wavefronts[instruction.row], counts.ideal[instruction.row]
        return f"{title}: `{name}`: {over}, one takes {took:g} wavefronts, where {least:g} could do."
    worst, (warp, iteration) = instruction.worst_phase(table), instruction.at
    where = "".join(f", {name} = {value}" for name, value in iteration.items())
    text = f"{title}: `{name}` (warp {warp}{where}): {len(worst.lanes)} lanes are served together. "
    count = len({t.word for t in worst.touches})
    if count > 1:
        lanes = sorted({t.lane for t in worst.touches})
        places = _places([instruction.coordinates(lane) for lane in lanes])
        text += (
            f"Lanes {listed(lanes)} {'read' if instruction.lanes.operation.is_read else 'write'} {places}: "
            f"{_distance(instruction, table, lanes)}bank {worst.bank} holds {count} of their words, so they "
            f"take {worst.wavefronts} wavefronts."
        )
    else:
        text += "No two of their words share a bank, so they take one wavefront."
    return "\n".join([text, *_drawing(instruction, table, worst)])


def _distance(instruction: Instruction, table: IntArray, lanes: Sequence[int]) -> str:
    """That addresses lie whole rows of banks apart, where they do."""
    device, address = instruction.case.device, instruction.addresses(table)
    rows = device.banks * device.bank_bytes
    apart = math.gcd(*(address[b] - address[a] for a, b in itertools.pairwise(lanes)))
    if not apart or apart % rows:
        return ""
    return f"their addresses lie multiples of {apart:,} bytes apart, and banks repeat every {rows}; "


def _drawing(instruction: Instruction, table: IntArray, phase: Served) -> Iterator[str]:
    """Bank groups as columns, wavefronts as rows, lanes in the cells."""
    operation, address = instruction.lanes.operation, instruction.addresses(table)
    rule = instruction.lanes.rule
    unit = max(operation.width_bytes, rule.bank_bytes)
    columns = max(1, rule.banks * rule.bank_bytes // unit)
    held: list[dict[int, list[int]]] = [{} for _ in range(columns)]
    for lane in phase.lanes:
        word = address[lane] // unit
        held[word % columns].setdefault(word, []).append(lane)
    step = rule.banks // columns
    names = [f"{k * step}" + (f"-{k * step + step - 1}" if step > 1 else "") for k in range(columns)]
    cells = [[f"{lanes[0]}{'+' * (len(lanes) > 1)}" for lanes in column.values()] for column in held]
    width = max(2, *(len(text) for column in (names, *cells) for text in column))
    rows = list(itertools.zip_longest(*cells, fillvalue="."))
    for title, row in zip(("bank", "lane", *[""] * (_SHOWN - 1)), (names, *rows), strict=False):
        yield f"    {title:<6}" + " ".join(cell.rjust(width) for cell in row)
    if len(rows) > _SHOWN:
        yield f"    and {len(rows) - _SHOWN} more wavefronts"


def _parts(case: Case, layout: Layout) -> Iterator[str]:
    """A sentence on each pad, rotation and XOR bit: the wavefronts that the layout has more without it."""
    now = {a.name: a.wavefronts for a in case.measure(layout)}
    for what, less in without_each_part(layout):
        other = case.as_bytes(less)
        if (problem := _unsound(case, other)) is not None:
            yield f"Without {what} the tile would not fit: {problem}."
            continue
        more = {a.name: a.wavefronts - now[a.name] for a in case.measure(other)}
        worse = [f"`{name}` {change:+,}" for name, change in more.items() if change]
        effect = f"{', '.join(worse)} wavefronts" if worse else ""
        yield f"Without {what}: {effect or 'no change: it keeps the vectors whole or the tile dense'}."


def _unsound(case: Case, layout: Layout | Node) -> str | None:
    """Why a layout cannot hold the tile, if it cannot."""
    try:
        case.check(case.table(layout))
    except LayoutError as error:
        return str(error)
    return None


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
