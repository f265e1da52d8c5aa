"""Why a layout works, in sentences and drawings of single phases."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from layoutopt.engine.case import Case
from layoutopt.engine.run_time_values import ChoiceTrace
from layoutopt.engine.witness import Instruction, Served
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.ground.arrays import IntArray
from layoutopt.layout.families import without_each_part
from layoutopt.layout.layout import Layout, row_major
from layoutopt.problems.answer import Result
from layoutopt.problems.text import listed

_MOST_SHOWN: Final = 8  # wavefronts drawn of one phase


def why_it_works(case: Case, result: Result, in_use: Node | None = None) -> Iterator[str]:
    """Sentences and drawings: the worst phase before, the same phase now, and what each part buys.

    Args:
        case: the tile and its accesses.
        result: the answer.
        in_use: the layout before, element offset over x0, x1, ...; row-major where there is none, or where
            that has no conflicts.

    Raises:
        ExpressionError: the formula cannot be evaluated.
    """
    stored = case.problem.tile.storage
    before: Layout | Node = row_major(stored.shape, stored.element_bytes)
    title, subject = "Row-major", "Row-major, with no pad and no swizzle,"
    is_good = (  # the layout in use, so that the row-major one stands before the answer
        in_use is not None
        and _why_unsound(case, in_use) is None
        and not any(access.excess for access in case.measure(in_use))
    )
    if in_use is not None and not is_good:
        before, title = in_use, f"In use, {to_text(in_use)}"
        subject = f"The layout in use, {to_text(in_use)},"
    if (unsound := _why_unsound(case, before)) is not None:
        yield f"{subject} cannot hold this tile: {unsound}."
    worst: Instruction | None = None  # the one of the most excess before
    if unsound is None or before is not in_use:
        reports = case.reports(case.count(case.table(before)))
        access = max(range(len(reports)), key=lambda k: reports[k].excess)
        if reports[access].excess > 0:
            worst = Instruction.worst(case, access, case.table(before))
            yield _phase_text(worst, before, title)
        elif unsound is None:
            yield f"{subject} has no conflicts already."
    yield from _on_solution(case, result, before, worst)
    if case.problem.is_dictated and result.layout is not None and result.reason:
        yield f"Of {result.proof.excess.scope}: {result.reason}."
    if is_good and in_use is not None:
        yield f"The layout in use, {to_text(in_use)}, has no conflicts."


def _on_solution(
    case: Case, result: Result, before: Layout | Node, worst: Instruction | None
) -> Iterator[str]:
    """Sentences on the solved layout: what it does to the instruction that was worst before, the effect of
    each of its parts, and the conflicts that remain.
    """
    if result.layout is None:
        yield f"No layout: {result.reason}."
        return
    layout = case.as_bytes(result.layout)
    name = "a table of offsets" if layout.lookup else result.offset
    if layout != before:
        if worst is not None:
            yield _phase_text(worst, layout, f"With {name}")
        if not case.problem.is_dictated:  # a mode has no parts to leave out
            yield from _part_effects(case, result.layout)
    for access, report in enumerate(result.accesses):
        if report.excess:
            remaining = Instruction.worst(case, access, case.table(layout))
            if remaining != worst:
                yield _phase_text(remaining, layout, f"Left over with {name}")


def _phase_text(instruction: Instruction, layout: Layout | Node, title: str) -> str:
    """The worst phase of an instruction, in a sentence and a drawing; a sentence where lanes choose."""
    case, name, table = instruction.case, instruction.lanes.name, instruction.case.table(layout)
    if isinstance(choice := case.accesses[instruction.access], ChoiceTrace):
        counts = choice.count(table)
        over = "at worst over all values" if choice.any_is == "worst" else "expected over uniform values"
        wavefronts, ideal = counts.wavefronts[instruction.row], counts.ideal[instruction.row]
        return f"{title}: `{name}`: {over}, one takes {wavefronts:g} wavefronts, where {ideal:g} could do."
    phase, (warp, iteration) = instruction.worst_phase(table), instruction.at
    where = "".join(f", {name} = {value}" for name, value in iteration.items())
    text = f"{title}: `{name}` (warp {warp}{where}): {len(phase.lanes)} lanes are served together. "
    words = len({touch.word for touch in phase.touches})
    if words > 1:
        lanes = sorted({touch.lane for touch in phase.touches})
        elements = _coordinates_text([instruction.coordinates(lane) for lane in lanes])
        text += (
            f"Lanes {listed(lanes)} {'read' if instruction.lanes.operation.is_read else 'write'} {elements}: "
            f"{_distance_text(instruction, table, lanes)}bank {phase.bank} holds {words} of their words, so "
            f"they take {phase.wavefronts} wavefronts."
        )
    else:
        text += "No two of their words share a bank, so they take one wavefront."
    return "\n".join([text, *_drawing(instruction, table, phase)])


def _distance_text(instruction: Instruction, table: IntArray, lanes: Sequence[int]) -> str:
    """A clause on lanes whose addresses lie whole rows of banks apart; empty for others."""
    device, address = instruction.case.device, instruction.addresses(table)
    period = device.banks * device.bank_bytes
    distance = math.gcd(*(address[b] - address[a] for a, b in itertools.pairwise(lanes)))
    if not distance or distance % period:
        return ""
    return f"their addresses lie multiples of {distance:,} bytes apart, and banks repeat every {period}; "


def _drawing(instruction: Instruction, table: IntArray, phase: Served) -> Iterator[str]:
    """The lines of a table of one phase: a column for the banks of one access, a row for each wavefront.

    bank   0-3  4-7  ...
    lane     0    1          the first lane of each word; 0+ where several lanes touch it
    """
    operation, address = instruction.lanes.operation, instruction.addresses(table)
    rule = instruction.lanes.rule
    unit = max(operation.width_bytes, rule.bank_bytes)
    columns = max(1, rule.banks * rule.bank_bytes // unit)
    lanes_of_words: list[dict[int, list[int]]] = [{} for _ in range(columns)]
    for lane in phase.lanes:
        word = address[lane] // unit
        lanes_of_words[word % columns].setdefault(word, []).append(lane)
    banks = rule.banks // columns
    names = [f"{k * banks}" + (f"-{k * banks + banks - 1}" if banks > 1 else "") for k in range(columns)]
    cells = [
        [f"{lanes[0]}{'+' * (len(lanes) > 1)}" for lanes in column.values()] for column in lanes_of_words
    ]
    width = max(2, *(len(text) for column in (names, *cells) for text in column))
    rows = list(itertools.zip_longest(*cells, fillvalue="."))
    for title, row in zip(("bank", "lane", *[""] * (_MOST_SHOWN - 1)), (names, *rows), strict=False):
        yield f"    {title:<6}" + " ".join(cell.rjust(width) for cell in row)
    if len(rows) > _MOST_SHOWN:
        yield f"    and {len(rows) - _MOST_SHOWN} more wavefronts"


def _part_effects(case: Case, layout: Layout) -> Iterator[str]:
    """A sentence on each pad, rotation and XOR bit: the wavefronts that the layout has more without it."""
    wavefronts = {a.name: a.wavefronts for a in case.measure(layout)}
    for part, without in without_each_part(layout):
        other = case.as_bytes(without)
        if (unsound := _why_unsound(case, other)) is not None:
            yield f"Without {part} the tile would not fit: {unsound}."
            continue
        changes = {a.name: a.wavefronts - wavefronts[a.name] for a in case.measure(other)}
        effect = ", ".join(f"`{name}` {change:+,}" for name, change in changes.items() if change)
        none = "no change: it keeps the vectors whole or the tile dense"
        yield f"Without {part}: {f'{effect} wavefronts' if effect else none}."


def _why_unsound(case: Case, layout: Layout | Node) -> str | None:
    """Why a layout cannot hold the tile, if it cannot."""
    try:
        case.check(case.table(layout))
    except LayoutError as error:
        return str(error)
    return None


def _coordinates_text(elements: Sequence[tuple[int, ...]]) -> str:
    """`elements 0, 4 and 8`, `rows 0 and 8 of column 3`, or the coordinates of all."""
    distinct = list(dict.fromkeys(elements))
    dimensions = len(distinct[0])
    if dimensions == 1:
        return f"elements {listed([at[0] for at in distinct])}"
    varying = [d for d in range(dimensions) if len({at[d] for at in distinct}) > 1]
    if dimensions == 2 and len(varying) == 1:
        (d,) = varying
        several, one = ("rows", "column") if d == 0 else ("columns", "row")
        return f"{several} {listed([at[d] for at in distinct])} of {one} {distinct[0][1 - d]}"
    return f"{listed(distinct)}"
