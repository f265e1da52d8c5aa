"""A comparison as a table: text for people, Markdown, CSV."""

import csv
import io
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from layoutopt.ground import escape
from layoutopt.layout.families import FAMILIES
from layoutopt.problems.answer import Status
from layoutopt.problems.text import tile_text, widths_text
from layoutopt.problems.types import Block, Problem
from layoutopt.report.text import columns, wrapped
from layoutopt.study.comparison import Comparison, Row

MAX_WIDTH: Final = 160  # of a line, on terminals that are wider, too
# More columns than this are left to --json and --csv.
_MAX_ACCESS_COLUMNS: Final = 4
# What goes first where lines are too long, before the columns of single accesses, and what goes after them.
_LEFT_OUT_FIRST: Final = ("declared", "by memory", "align")
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
    for note in _notes(problem, comparison):
        lines += wrapped(note, width, "  ")
    return "\n".join(lines) + "\n"


def _table(comparison: Comparison, width: int) -> list[str]:
    """The rows; columns that leave no place for the formulas are left out, and formulas wrapped."""
    head, rows = _cells(comparison)
    table = [("", *head), *(("*" if row.pareto else "", *cells) for row, cells in rows)]
    shown = list(range(len(table[0]) - 1))  # all but the formula
    accesses = [name for name in head if name.startswith("(")]
    for name in (*_LEFT_OUT_FIRST, *accesses, *_LEFT_OUT_LAST):
        if width - _width(table, shown) >= _LEAST_FORMULA:
            break
        shown = [k for k in shown if table[0][k] != name]
    figures = columns([[cells[k] for k in shown] for cells in table], {0, 1})
    left = _width(table, shown)
    lines = []
    for text, cells in zip(figures, table, strict=True):
        formula = textwrap.wrap(cells[-1], max(_LEAST_FORMULA // 2, width - left)) or [""]
        lines.append(text.ljust(left) + formula[0])
        lines += [" " * left + more for more in formula[1:]]
    return [line.rstrip() for line in lines]


def _width(lines: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    """Characters of the columns `shown`, and of the space between them and the formula."""
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
    lines += ["", *(f"- {escape.markdown(note)}" for note in _notes(problem, comparison))]
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
    short = [name if len(name) <= 14 else f"{name[:13]}…" for name in names]
    ran = ["measured"] if any(row.measured is not None for row in rows) else []
    ran += ["counted"] if any(row.counted_wavefronts is not None for row in rows) else []
    costs = ("excess", "worst", "wavefronts", *(f"({name})" for name in short), *_FIGURES, "cycles", *ran)

    def cells(row: Row) -> tuple[str, ...]:
        title = row.title + (" ?" if row.status == Status.FEASIBLE else "")
        if row.wavefronts is None:
            return title, *["-"] * len(costs), row.reason
        ways = "-" if row.ways is None else f"{row.ways}-way"
        figures = [
            *(a.wavefronts for a in row.accesses if names),
            *(getattr(row, f) for f in _FIGURES.values()),
        ]
        run = {"measured": _cycles_text(row.measured), "counted": _counted_text(row)}
        first = title, _number_text(row.excess), ways, _number_text(row.wavefronts)
        return (
            *first,
            *map(_number_text, figures),
            _cycles_text(row.cycles),
            *(run[n] for n in ran),
            row.offset or "",
        )

    return ("layout", *costs, "offset"), [(row, cells(row)) for row in rows]


def _notes(problem: Problem | Block, comparison: Comparison) -> Iterator[str]:
    """What the columns and the marks mean, what was run, and what is to be said of single rows."""
    rows = comparison.rows
    several = any(row.tiles for row in rows)
    yield "* no other row has fewer wavefronts or bytes without having more of the other"
    yield (
        "wavefronts: passes over the banks in one pass of a block; excess: those above the least that the "
        "data needs; worst: of one phase, the lanes served together"
    )
    limits = sorted({row.limited_by for row in rows if row.limited_by is not None})
    if limits:
        stages = "those that fit in one block, of the tiles that have several"
        yield (
            f"blocks/SM: at most, limited here by {', '.join(limits)}; by memory: by shared memory alone; "
            f"stages: {stages if several else 'copies of the tile in one block'}"
        )
        if problem.block.cluster is not None:
            yield f"blocks come in clusters of {problem.block.cluster}, at once on one GPC: fewer may fit"
    elif any(row.wavefronts is not None for row in rows):
        yield f"blocks/SM and stages: the limits of {comparison.target} are not in the device data"
    if any(row.cycles is not None for row in rows):
        lent = f", with what was measured on {comparison.borrowed}" if comparison.borrowed else ""
        yield (
            "instr: integer instructions of a thread's index code; "
            f"cycles: estimated, of one pass of a block alone{lent}"
        )
    if comparison.no_estimate is not None:
        yield f"cycles: not estimated, as {comparison.no_estimate}"
    yield from _run_notes(comparison)
    if any(row.status == Status.FEASIBLE for row in rows):
        yield "? found within the time limit, not proved best of its family"
    labelled = {"all", *(family.row for family in FAMILIES if family.shows_label)}
    shown = [row for row in rows if row.family in labelled and row.label and row.wavefronts is not None]
    if shown:
        yield "; ".join(f"{row.title} is {row.label}" for row in shown)
    yield from (f"{row.title}: {row.edit}" for row in rows if row.edit is not None)
    yield from (f"{row.title}: {row.reason}" for row in rows if row.tiles and row.reason)
    if comparison.widths:
        yield f"every row with {widths_text(comparison.widths)}, as the best layout of all has it"


def _run_notes(comparison: Comparison) -> Iterator[str]:
    """What was run on a GPU: the fastest row, how it was counted, and whether that is as predicted."""
    timed = [(row.measured, row.title) for row in comparison.rows if row.measured is not None]
    if not timed:
        return
    on, fastest = comparison.measured_on, min(timed)[1]
    yield f"measured: cycles of one pass of a block on {on}, without weights; the fastest is {fastest}"
    counted = [row for row in comparison.rows if row.counted_as_predicted is not None]
    other = ", ".join(row.title for row in counted if not row.counted_as_predicted)
    if comparison.not_counted is not None:
        yield f"wavefronts were not counted there: {comparison.not_counted}"
    elif counted:
        verdict = f"! other than predicted: {other}" if other else "all as predicted"
        yield (
            "counted: wavefronts (bank conflicts) of such a pass by the profiler, which leaves "
            f"copies past the registers out; {verdict}"
        )


def _cycles_text(value: float | None) -> str:
    return _number_text(None if value is None else round(value))


def _counted_text(row: Row) -> str:
    if row.counted_wavefronts is None:
        return "-"
    mark = "" if row.counted_as_predicted else "!"
    return f"{row.counted_wavefronts:,} ({row.counted_bank_conflicts:,}){mark}"


def _number_text(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"
