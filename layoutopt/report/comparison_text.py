"""A comparison as a table: text for people, Markdown, CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Sequence
from typing import Final

from layoutopt.ground import escape
from layoutopt.layout.families import FAMILIES
from layoutopt.problems.answer import Status
from layoutopt.problems.text import tile_text, widths_text
from layoutopt.problems.types import Block, Problem
from layoutopt.report.text import columns
from layoutopt.study.comparison import BlockRow, Comparison, Row

MAX_WIDTH: Final = 160  # of a line, on terminals that are wider, too
# More columns than this are left to --json and --csv.
_MAX_ACCESS_COLUMNS: Final = 4
# What goes first where lines are too long, before the columns of single accesses, and what goes after them.
_LEFT_OUT: Final = ("declared", "by memory", "align")
_LEFT_OUT_LAST: Final = ("worst", "stages", "excess", "blocks/SM", "instr", "wavefronts")
_LEAST_FORMULA: Final = 24
_FIGURES: Final = {
    "bytes": "bytes", "declared": "declared_bytes", "align": "alignment_bytes", "blocks/SM": "blocks_per_sm",
    "by memory": "blocks_by_shared_memory", "stages": "pipeline_stages", "instr": "instructions",
}  # fmt: skip
_CSV_FIELDS = (
    "family", "title", "status", "label", "offset", "excess", "ways", "wavefronts", "ideal",
    "weighted_wavefronts", "bytes", "declared_bytes", "alignment_bytes", "blocks_per_sm",
    "blocks_by_shared_memory", "limited_by", "pipeline_stages", "by_hardware", "index_ops",
    "instructions", "cycles", "measured", "measured_together", "counted_wavefronts",
    "counted_bank_conflicts", "counted_as_predicted", "edit", "pareto", "seconds",
    "reason",
)  # fmt: skip


def text(problem: Problem | Block, comparison: Comparison, width: int = MAX_WIDTH) -> str:
    """What to do, the table, its legend: lines of at most `width` characters, as far as words allow."""
    lines = wrapped(
        f"{problem.name}  {tile_text(problem)}  on {comparison.target}, "
        f"{comparison.threads:,} threads a block",
        width,
    )
    if comparison.recommendation is not None:
        lines += ["", *wrapped(comparison.recommendation.text, width, "  ")]
    lines += ["", *_table(comparison, width), ""]
    for note in (*_legend(problem, comparison), *_notes(comparison)):
        lines += wrapped(note.strip(), width, "  ")
    return "\n".join(lines) + "\n"


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """`text` in lines of at most `width` characters, those after the first indented once more."""
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=f"{indent}  ") or [""]


def _table(comparison: Comparison, width: int) -> list[str]:
    """The rows; columns that leave no place for the formulas are left out, and formulas wrapped."""
    head, rows = _cells(comparison)
    lines = [("", *head), *(("*" if row.pareto else "", *cells) for row, cells in rows)]
    shown = list(range(len(lines[0]) - 1))
    accesses = [name for name in head if name.startswith("(")]
    for name in (*_LEFT_OUT, *accesses, *_LEFT_OUT_LAST):
        if width - _width(lines, shown) >= _LEAST_FORMULA:
            break
        shown = [k for k in shown if lines[0][k] != name]
    table = columns([[line[k] for k in shown] for line in lines], {0, 1})
    reach = _width(lines, shown)
    text = []
    for start, line in zip(table, lines, strict=True):
        formula = textwrap.wrap(line[-1], max(_LEAST_FORMULA // 2, width - reach)) or [""]
        text.append(start.ljust(reach) + formula[0])
        text += [" " * reach + more for more in formula[1:]]
    return [line.rstrip() for line in text]


def _width(lines: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    """Characters of these columns, with what parts them from the formula."""
    return 2 + sum(max(len(line[k]) for line in lines) + 2 for k in shown)


def markdown(problem: Problem | Block, comparison: Comparison) -> str:
    """The same as Markdown, for a review or an issue."""
    head, rows = _cells(comparison)
    taken = comparison.recommendation
    advice = [] if taken is None else [f"{escape.markdown(taken.text[0].upper() + taken.text[1:])}.", ""]
    lines = [
        f"**{escape.markdown(problem.name)}**, {escape.markdown(tile_text(problem))} on {comparison.target}, "
        f"{comparison.threads:,} threads a block",
        "",
        *advice,
        "| " + " | ".join(map(escape.markdown, head)) + " |",
        "|---|" + "--:|" * (len(head) - 2) + "---|",
    ]
    for row, cells in rows:
        title = escape.markdown(cells[0])
        name = f"**{title}** (Pareto)" if row.pareto else title
        last = cells[-1]
        formula = escape.markdown_code(last) if row.wavefronts is not None else escape.markdown(last)
        lines.append("| " + " | ".join((name, *cells[1:-1], formula)) + " |")
    notes = [*_legend(problem, comparison), *_notes(comparison)]
    lines += ["", *(f"- {escape.markdown(note.strip())}" for note in notes)]
    return "\n".join(lines) + "\n"


def csv_text(comparison: Comparison) -> str:
    """One line a row, with the wavefronts of each access in columns of their own."""
    out = io.StringIO()
    names = [a.name for a in next((r.accesses for r in comparison.rows if r.accesses), ())]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_CSV_FIELDS, *(f"wavefronts: {name}" for name in names)])
    for row in comparison.rows:
        own = [escape.csv_cell(getattr(row, name)) for name in _CSV_FIELDS]
        writer.writerow([*own, *(a.wavefronts for a in row.accesses)])
    return out.getvalue()


def _cells(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[Row, tuple[str, ...]]]]:
    """The names of the columns, and each row with its cells."""
    rows = comparison.rows
    names = [a.name for a in next((r.accesses for r in rows if r.accesses), ())]
    names = names if 1 < len(names) <= _MAX_ACCESS_COLUMNS else []
    cells: dict[str, Callable[[Row], str]] = {
        "layout": lambda row: row.title + (" ?" if row.status == Status.FEASIBLE else ""),
        "excess": lambda row: _number(row.excess),
        "worst": lambda row: "-" if row.ways is None else f"{row.ways}-way",
        "wavefronts": lambda row: _number(row.wavefronts),
    }
    for k, name in enumerate(names):
        short = name if len(name) <= 14 else name[:13] + "…"
        cells[f"({short}){' ' * k}"] = lambda row, k=k: _number(row.accesses[k].wavefronts)  # type: ignore[misc]
    for name, field in _FIGURES.items():
        cells[name] = lambda row, field=field: _number(getattr(row, field))  # type: ignore[misc]
    cells["cycles"] = lambda row: _cycles(row.cycles)
    if any(row.measured is not None for row in rows):
        cells["measured"] = lambda row: _cycles(row.measured)
    if any(row.counted_wavefronts is not None for row in rows):
        cells["counted"] = _counted
    cells["offset"] = lambda row: row.offset or ""
    empty = ["-"] * (len(cells) - 2)
    return tuple(name.strip() for name in cells), [
        (row, tuple(cell(row) for cell in cells.values()))
        if row.wavefronts is not None
        else (row, (cells["layout"](row), *empty, row.reason))
        for row in rows
    ]


def _legend(problem: Problem | Block, comparison: Comparison) -> list[str]:
    lines = [
        "  * no other row has fewer wavefronts or bytes without having more of the other",
    ]
    limits = sorted({row.limited_by for row in comparison.rows if row.limited_by is not None})
    if limits:
        lines.append(
            f"  blocks/SM: at most, limited here by {', '.join(limits)}; by memory: by shared memory alone; "
            f"stages: {_stages(comparison)}"
        )
        if problem.block.cluster is not None:
            lines.append(
                f"  blocks come in clusters of {problem.block.cluster}, at once on one GPC: fewer may fit"
            )
    elif any(row.wavefronts is not None for row in comparison.rows):
        lines.append(f"  blocks/SM and stages: the limits of {comparison.target} are not in the device data")
    if any(row.cycles is not None for row in comparison.rows):
        lent = f", with what was measured on {comparison.borrowed}" if comparison.borrowed else ""
        lines.append(
            "  instr: integer instructions of a thread's index code; "
            f"cycles: estimated, of one pass of a block{lent}"
        )
    if comparison.no_estimate is not None:
        lines.append(f"  cycles: not estimated, as {comparison.no_estimate}")
    return [*lines, *_run(comparison)]


def _run(comparison: Comparison) -> list[str]:
    """What was run on a GPU: the fastest row, how it was counted, and whether that is as predicted."""
    timed = [(row.measured, row.title) for row in comparison.rows if row.measured is not None]
    if not timed:
        return []
    lines = [
        f"  measured: cycles of one pass of a block on {comparison.measured_on}, without weights; "
        f"the fastest is {min(timed)[1]}"
    ]
    if comparison.not_counted is not None:
        return [*lines, f"  wavefronts were not counted there: {comparison.not_counted}"]
    counted = [row for row in comparison.rows if row.counted_as_predicted is not None]
    other = [row.title for row in counted if not row.counted_as_predicted]
    verdict = f"! other than predicted: {', '.join(other)}" if other else "all as predicted"
    if counted:
        lines.append(
            f"  counted: wavefronts (bank conflicts) of such a pass by the profiler, which leaves "
            f"copies past the registers out; {verdict}"
        )
    return lines


def _stages(comparison: Comparison) -> str:
    if any(isinstance(row, BlockRow) for row in comparison.rows):
        return "those that fit in one block, of the tiles that have several"
    return "copies of the tile in one block"


def _notes(comparison: Comparison) -> list[str]:
    lines = []
    if any(row.status == Status.FEASIBLE for row in comparison.rows):
        lines.append("  ? found within the time limit, not proved best of its family")
    shown = {"all", *(family.row for family in FAMILIES if family.shows_label)}
    labels = [
        f"{row.title} is {row.label}"
        for row in comparison.rows
        if row.family in shown and row.label and row.wavefronts is not None
    ]
    if labels:
        lines.append(f"  {'; '.join(labels)}")
    lines += [f"  {row.title}: {row.edit}" for row in comparison.rows if row.edit is not None]
    lines += [
        f"  {row.title}: {row.reason}" for row in comparison.rows if isinstance(row, BlockRow) and row.reason
    ]
    if comparison.widths:
        lines.append(f"  every row with {widths_text(comparison.widths)}, as the best layout of all has it")
    return lines


def _cycles(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _counted(row: Row) -> str:
    if row.counted_wavefronts is None:
        return "-"
    mark = "" if row.counted_as_predicted else "!"
    return f"{row.counted_wavefronts:,} ({row.counted_bank_conflicts:,}){mark}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"
