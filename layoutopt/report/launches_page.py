"""All launches of a program as one self-contained page: a table that sorts, the worst lines, their banks."""

from importlib import resources
from string import Template
from typing import Final

from layoutopt.errors import LayoutoptError
from layoutopt.ground import json_data
from layoutopt.ground.escape import xml
from layoutopt.kernels.question.summary import KernelReport
from layoutopt.report.kernel_text import worst_lines
from layoutopt.report.launches_text import (
    MOST_LINES,
    ConflictLine,
    conflict_lines,
    fix_text,
    head,
    name,
    share,
    verdict,
)
from layoutopt.study.launches import Application, CheckedLaunch

_COLUMNS: Final = ("kernel", "block", "grid", "launches", "wavefronts", "bank conflicts", "of all", "verdict")
_AROUND: Final = 3  # lines of source before and after
_MAX_SOURCE_BYTES: Final = 8 << 20


def launches_page(found: Application) -> str:
    """The page as HTML, complete in itself: no network, no font, no library."""
    room = resources.files("layoutopt.report")
    return Template(room.joinpath("launches.html").read_text("utf-8")).substitute(
        style=room.joinpath("page.css").read_text("utf-8"),
        head="; ".join(map(xml, head(found))),
        columns="".join(f"<th scope=col><button>{column}</button></th>" for column in _COLUMNS),
        kernels="\n".join(_row(one, found.bank_conflicts) for one in found.kernels if one.report is not None),
        fixes=_part(
            "The fixes that save most", [xml(fix_text(fix)) for fix in found.fixes[:MOST_LINES]], "li"
        ),
        lines=_part("The worst lines", [_line(line) for line in conflict_lines(found.kernels)[:MOST_LINES]])
        + "".join(_worst(one, one.report) for one in found.kernels[:1] if one.report is not None),
        failed=_part("Not evaluated", [
            f"{xml(name(one))} ({one.launch.launches:,} launches): {xml(one.failure or '')}"
            for one in found.failed
        ], "li"),
    )  # fmt: skip


def _part(title: str, parts: list[str], tag: str = "div") -> str:
    """A part of the page with a heading; nothing where it would be empty."""
    text = "\n".join(f"<{tag}>{part}</{tag}>" for part in parts)
    return f"<h2>{title}</h2>" + (f"<ol>{text}</ol>" if tag == "li" else text) if parts else ""


def _row(one: CheckedLaunch, all_conflicts: int) -> str:
    assert one.report is not None
    shapes = (" x ".join(map(str, sizes)) for sizes in (one.report.block, one.report.grid))
    counts = (one.launch.launches, one.wavefronts, one.conflicts)
    cells = [f"<td>{xml(name(one))}</td>", *(f"<td>{shape}</td>" for shape in shapes)]
    cells += [f'<td data-value="{count}">{count:,}</td>' for count in counts]
    cells += [f'<td data-value="{one.conflicts}">{share(one.conflicts, all_conflicts)}</td>']
    return f"<tr>{''.join(cells)}<td>{verdict(one)}</td></tr>"


def _line(line: ConflictLine) -> str:
    """The line with those around it, where its file is here."""
    text = f"<h3>{xml(line.place)}</h3><p>{xml(line.cost)}</p>"
    try:
        source = json_data.read(line.file, _MAX_SOURCE_BYTES).decode("utf-8", "replace").split("\n")
    except LayoutoptError:
        return text
    if not 0 < line.line <= len(source):
        return text
    shown = range(max(1, line.line - _AROUND), min(len(source), line.line + _AROUND) + 1)
    rows = [f"{n:5}  {xml(source[n - 1])}" for n in shown]
    rows[line.line - shown.start] = f"<mark>{rows[line.line - shown.start]}</mark>"
    return text + "<pre>" + "\n".join(rows) + "</pre>"


def _worst(one: CheckedLaunch, report: KernelReport) -> str:
    """Where the lanes of the worst instruction of a kernel lie."""
    lines = worst_lines(report)
    if not lines:
        return ""
    return f"<h3>The worst instruction of {xml(name(one))}</h3><pre>{xml(chr(10).join(lines))}</pre>"
