"""Pictures as SVG, for papers and slides: no script, no font to load, light or dark as the reader has it."""

import textwrap

from layoutopt.ground.escape import xml as escape
from layoutopt.problems.text import count_text
from layoutopt.report import palette
from layoutopt.report.banks_text import (
    cell_colour,
    coordinates_text,
    cost_text,
    default_colouring,
    headline,
    summary,
)
from layoutopt.study.show import Line, Picture, Views, touched

_CELL_HEIGHT = 18
_CELL_WIDTH = 24  # at least
_LINE_HEIGHT = 13  # of a heading
_LEFT = 58
_TOP = 38
_GAP = 28
_CHARACTER = 5.2  # width of a character of a cell's text, at its size
# More lines than this are windowed to those that the instruction touches.
_MAX_LINES = 40
_STYLE = """
text{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:8.5px;fill:#1b1b1b}
.h{font-size:13px;font-family:system-ui,sans-serif}
.s{font-size:11px;font-family:system-ui,sans-serif;fill:#444}
.b{fill:#666}.u{fill:#999}.f{fill:#fff}.g{stroke:#ccc;fill:none}.p{fill:#f1f1f1}
.w{fill:none;stroke:#111;stroke-width:2}.wt{font-weight:bold}
.bg{fill:#fff}
@media (prefers-color-scheme:dark){.bg{fill:#151719}.h{fill:#eee}.s{fill:#bbb}.b{fill:#aaa}.u{fill:#777}
.g{stroke:#444}.p{fill:#1f2226}.w{stroke:#fff}}
""".strip()


def document(found: Views, colour_by: str | None) -> str:
    """The SVG document.

    Args:
        found: what to draw.
        colour_by: "lane" or "phase"; None for phases where there are several, else lanes.
    """
    shown = found.pictures()
    by = colour_by or default_colouring(shown)
    blocks = [_picture(p, by, found.case.device.lanes) for p in shown]
    top = _TOP + _LINE_HEIGHT * max(len(_heading(p)) for p in shown)
    width = max(_LEFT * 2 + sum(w for _, w, _ in blocks) + _GAP * (len(blocks) - 1), 640)
    notes = [*summary(found, found.chosen.access), _legend(by)]
    height = top + max(h for _, _, h in blocks) + 22 + 16 * len(notes)
    title = headline(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(' '.join(notes))}</desc>",
        f"<style>{_STYLE}</style>",
        f'<rect class="bg" width="{width:g}" height="{height:g}"/>',
        f'<text class="h" x="12" y="22">{escape(title)}</text>',
    ]
    left = float(_LEFT)
    for body, own, _ in blocks:
        parts.append(f'<g transform="translate({left:g} {top})">{body}</g>')
        left += own + _GAP + _LEFT * 0.4
    for k, note in enumerate(notes):
        y = height - 16 * (len(notes) - k) + 4
        parts.append(f'<text class="s" x="12" y="{y:g}">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(by: str) -> str:
    colours = "phases, the lanes served together" if by == "phase" else "lanes, dark to bright"
    return (
        f"Columns are banks, lines one word of each; a cell says its element's coordinates; colours are "
        f"{colours}; a frame and a small n: served by the n-th wavefront of its phase."
    )


def _picture(drawn: Picture, by: str, lanes: int) -> tuple[str, float, float]:
    """The drawing of one picture, its width and its height; `by` says what the colours stand for."""
    lines, hidden = _window(drawn)
    cells = [cell for _, line in lines for cell in line]
    longest = max((len(coordinates_text(cell)) for cell in cells), default=1)
    cell_width = max(_CELL_WIDTH, longest * _CHARACTER + (12 if any(cell.waits for cell in cells) else 6))
    width = cell_width * drawn.banks
    parts = []
    for k, text in enumerate(reversed(_heading(drawn)), 1):
        parts.append(f'<text class="s" x="0" y="{-_LINE_HEIGHT * k}">{escape(text)}</text>')
    for bank in range(drawn.banks):
        x = (bank + 0.5) * cell_width
        parts.append(f'<text class="b" x="{x:g}" y="9" text-anchor="middle">{bank}</text>')
    y, last = 14.0, -1  # the number of the line above
    for number, line in [*lines, (len(drawn.lines), None)]:
        if number > last + 1:
            skipped = f"… {count_text(number - last - 1, 'line')} not shown"
            parts.append(f'<text class="u" x="0" y="{y + 12:g}">{skipped}</text>')
            y += _CELL_HEIGHT
        if line is not None:
            parts += _row(line, y, cell_width, by, lanes)
            y += _CELL_HEIGHT
        last = number
    if hidden is not None:
        y += 12
        rest = f" (and {hidden} more)" if hidden else ""
        parts.append(
            f'<text class="s" x="0" y="{y:g}">window: {len(lines)} of {len(drawn.lines)} lines, '
            f"those that the instruction touches{rest}</text>"
        )
    return "".join(parts), width, y + 8


def _heading(drawn: Picture) -> list[str]:
    """What stands over a picture, in lines that are no wider than the narrowest cells."""
    characters = drawn.banks * _CELL_WIDTH // 6
    return [f"{drawn.layout}: {drawn.offset}", *textwrap.wrap(cost_text(drawn), characters)]


def _window(drawn: Picture) -> tuple[list[tuple[int, Line]], int | None]:
    """The lines to draw with their numbers; of a window, how many touched lines did not fit."""
    every = list(enumerate(drawn.lines))
    if len(every) <= _MAX_LINES:
        return every, None
    met = [(k, line) for k, line in every if touched(line)]
    return met[:_MAX_LINES], max(0, len(met) - _MAX_LINES)


def _row(line: Line, y: float, width: float, by: str, lanes: int) -> list[str]:
    """The SVG elements of one line of banks at `y`, in cells of `width`; frames come last, over the grid."""
    parts = [f'<text class="b" x="-6" y="{y + 12:g}" text-anchor="end">{line[0].byte_offset}</text>']
    grid = "".join(f"M{b * width:g} {y:g}h{width:g}v{_CELL_HEIGHT}h-{width:g}z" for b in range(len(line)))
    frames = []
    for bank, cell in enumerate(line):
        x = bank * width
        box = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{_CELL_HEIGHT}"'
        if cell.coordinates is None:
            parts.append(f'<rect class="p" {box}/>')
            continue
        middle = f'x="{x + width / 2:g}" y="{y + 12:g}" text-anchor="middle"'
        if not cell.lanes:
            parts.append(f'<text class="u" {middle}>{coordinates_text(cell)}</text>')
            continue
        ground = cell_colour(cell, by, lanes)
        ink = "" if palette.ink_on(ground) == "#000000" else " f"
        parts.append(
            f'<rect {box} fill="{ground}"><title>lane {", ".join(map(str, cell.lanes))}; '
            f"phase {cell.phase + 1}; wavefront {cell.wavefront + 1}</title></rect>"
            f'<text class="t{ink}" {middle} fill="#111">{coordinates_text(cell)}</text>'
        )
        if cell.waits:
            frames.append(
                f'<rect class="w" x="{x + 1:g}" y="{y + 1:g}" width="{width - 2:g}" '
                f'height="{_CELL_HEIGHT - 2}"/>'
                f'<text class="wt{ink}" x="{x + width - 2.5:g}" y="{y + 6.5:g}" text-anchor="end" '
                f'style="font-size:5.5px" fill="#111">{cell.wavefront + 1}</text>'
            )
    return [*parts, f'<path class="g" d="{grid}"/>', *frames]
