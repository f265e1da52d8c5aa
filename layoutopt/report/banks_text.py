"""Pictures for the terminal."""

import itertools
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from layoutopt.ground.escape import terminal
from layoutopt.problems.text import count_text, tile_text
from layoutopt.report import palette
from layoutopt.report.text import wrapped
from layoutopt.study.show import Cell, Picture, Views, touched

MIN_WIDTH = 80
_MARGIN = 8  # the byte offset of a line, and a space
_SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_GAP = 3  # between two pictures
_SHOWN_LANES = 4

Paint = Callable[[Cell], str]


def report(found: Views, width: int, colour_by: str | None, colour: bool) -> str:
    """The whole answer: what is shown, the pictures, what they cost and what to do.

    Args:
        found: what to draw.
        width: columns, at least `MIN_WIDTH`; no line is longer.
        colour_by: "lane" or "phase"; None for phases where there are several, else lanes.
        colour: whether to write escape sequences.
    """
    pictures = found.pictures()
    lanes = found.case.device.lanes
    by = colour_by or default_colouring(pictures)
    own_width = (width - _GAP * (len(pictures) - 1)) // len(pictures)
    side_by_side = len(pictures) > 1 and own_width >= MIN_WIDTH
    own_width = own_width if side_by_side else width
    paint = partial(cell_colour, colour_by=by, lanes=lanes) if colour else None
    blocks = [_picture(picture, own_width, paint) for picture in pictures]
    lines = [*_wrapped(headline(found), width), ""]
    if side_by_side:
        for row in itertools.zip_longest(*blocks, fillvalue=""):
            lines.append((" " * _GAP).join(_filled(line, own_width) for line in row).rstrip())
    else:
        lines += [line for block in blocks for line in (*block, "")][:-1]
    kinds = {_style(picture, own_width).kind for picture in pictures}
    lines += ["", *_wrapped(f"  {_legend(kinds, lanes)}", width)]
    if colour and by == "phase":
        lines += _wrapped("  colours: phases, the lanes that are served together", width)
    notes = summary(found, found.chosen.access)
    return "\n".join([*lines, "", *(piece for text in notes for piece in _wrapped("  " + text, width))])


def headline(found: Views) -> str:
    """The problem, and the instruction that is drawn."""
    problem, chosen = found.case.problem, found.chosen
    head = f"{problem.name}  {tile_text(problem)}  on {found.case.device.name}"
    return f"{head}: {chosen.lanes.op} {chosen.text}"


def default_colouring(shown: Sequence[Picture]) -> str:
    """By phase where there are several, else by lane."""
    return "phase" if any(len(p.phases) > 1 for p in shown) else "lane"


def summary(found: Views, access: int) -> list[str]:
    """What an access, by number, costs in all under each layout (the last is the best), and what to do."""
    name, lines, wavefronts = found.case.lanes.accesses[access].name, [], []
    for shown in found.layouts:
        report = shown.reports[access]
        wavefronts.append(report.wavefronts)
        lines.append(
            f"{shown.name}: all of {name!r} takes {count_text(report.wavefronts, 'wavefront')}, "
            f"{report.excess:,} more than ideal; {shown.size:,} bytes"
        )
    if len(wavefronts) > 1:
        first, last = found.layouts
        saved, added = wavefronts[0] - wavefronts[1], last.size - first.size
        if not saved and added >= 0:
            lines.append("to do: nothing; the two cost the same here")
        else:
            fewer = f"{saved:,} of {wavefronts[0]:,} wavefronts less, " if saved > 0 else ""
            more = f"{-saved:,} wavefronts more here, " if saved < 0 else ""
            size = "same bytes" if not added else f"{abs(added):,} bytes {'more' if added > 0 else 'less'}"
            place = f"offset {last.offset}, in elements"
            lines.append(f"to do: put each element at {place}: {fewer}{more}{size}")
    return [*lines, f"note: {found.note}"] if found.note else lines


def _legend(kinds: set[str], lanes: int) -> str:
    """What the cells say."""
    more = f" (a = 10, b = 11, ...{' A = 36, ...' if lanes > 36 else ''})"
    said = {
        "coordinates": "a cell is an element's coordinates",
        "lane": "a number is the lane",
        "symbol": f"a sign is the lane{more}",
    }
    parts = [text for kind, text in said.items() if kind in kinds]
    return "; ".join([*parts, "! it waits for an earlier wavefront", "· element not touched, blank: none"])


def cost_text(drawn: Picture) -> str:
    """The bytes of a layout, which lanes meet, and what it costs, in one line."""
    size = f"{drawn.bytes:,} bytes"
    if drawn.meeting is None:
        return f"{size}; no conflict: {count_text(drawn.wavefronts, 'wavefront')}, as few as can be"
    met = [f"{lane} ({','.join(map(str, at))})" for lane, at in drawn.coordinates.items()]
    more = f" and {len(met) - _SHOWN_LANES} more" if len(met) > _SHOWN_LANES else ""
    words = len({touch.word for touch in drawn.meeting.touches})
    return (
        f"{size}; conflict: lanes {', '.join(met[:_SHOWN_LANES])}{more} meet in bank {drawn.meeting.bank} "
        f"with {words} different words: {drawn.wavefronts} wavefronts instead of {drawn.ideal}"
    )


def _picture(drawn: Picture, width: int, paint: Paint | None) -> list[str]:
    """The lines of a picture; `paint` gives the colour of a cell, where there are colours."""
    cell_width, kind, strips = _style(drawn, width)
    title = ": ".join(filter(None, (drawn.layout, drawn.offset)))
    lines = [*_wrapped(title, width), *_wrapped(cost_text(drawn), width)]
    per_strip = drawn.banks // strips
    for strip in range(strips):
        banks = range(strip * per_strip, (strip + 1) * per_strip)
        lines += ["", _bank_numbers(banks, cell_width)]
        for is_touched, group in itertools.groupby(drawn.lines, key=touched):
            of_banks = list(group)
            if not is_touched:
                lines.append(f"{'':>{_MARGIN}}... {count_text(len(of_banks), 'line')} not touched")
            for line in of_banks if is_touched else ():
                cells = "".join(_cell(line[b], cell_width, kind, paint) for b in banks)
                lines.append(f"{line[0].byte_offset:>{_MARGIN - 1}} {cells}".rstrip())
    return lines


class _Style(NamedTuple):
    """How a picture is drawn: columns of a cell, what it says (a kind), and strips the banks are cut into."""

    cell_width: int
    kind: str
    strips: int


def _style(drawn: Picture, width: int) -> _Style:
    """The style that says most in `width` columns: coordinates, numbers of lanes, or a symbol for each."""
    lines = filter(touched, drawn.lines)
    longest = max((len(coordinates_text(cell)) for line in lines for cell in line), default=1)
    strips = 1
    while (width - _MARGIN) // (drawn.banks // strips) < 2:
        strips *= 2
    room = (width - _MARGIN) // (drawn.banks // strips)
    if room >= longest + 2:
        return _Style(longest + 2, "coordinates", strips)
    return _Style(4, "lane", strips) if room >= 4 else _Style(2, "symbol", strips)


def _bank_numbers(banks: range, cell_width: int) -> str:
    step = 1 if cell_width > 3 else 4
    marks = [str(b).ljust(cell_width * step)[: cell_width * step] for b in banks if b % step == 0]
    return f"{'bank':<{_MARGIN - 1}} {''.join(marks)}".rstrip()


def coordinates_text(cell: Cell) -> str:
    """Coordinates of the element in a cell."""
    return ",".join(map(str, cell.coordinates or ()))


def cell_colour(cell: Cell, colour_by: str, lanes: int) -> str:
    """`#rrggbb` of a cell that some of so many lanes touch."""
    if colour_by == "phase":
        return palette.PHASES[cell.phase % len(palette.PHASES)]
    return palette.lane_colour(cell.lanes[0], lanes)


def _cell(cell: Cell, width: int, kind: str, paint: Paint | None) -> str:
    """One cell in `width` columns, with `!` where it waits, in colours where `paint` gives them."""
    if not cell.lanes:
        return ("" if cell.coordinates is None else "·").ljust(width)
    body = _SYMBOLS[cell.lanes[0]] if kind == "symbol" else str(cell.lanes[0])
    body = coordinates_text(cell) if kind == "coordinates" else body
    said = (body + ("!" if cell.waits else "")).ljust(width - (kind != "symbol"))
    gap = " " if kind != "symbol" else ""
    if paint is None:
        return said + gap
    ground = paint(cell)
    ink = 16 if palette.ink_on(ground) == "#000000" else 231
    bold = "1;" if cell.waits else ""
    return f"\x1b[{bold}48;5;{palette.ansi(ground)};38;5;{ink}m{said}\x1b[0m{gap}"


def _filled(text: str, width: int) -> str:
    return text + " " * (width - len(_ESCAPES.sub("", text)))


def _wrapped(text: str, width: int) -> list[str]:
    text = terminal(text)
    return wrapped(text.strip(), width, " " * (len(text) - len(text.lstrip())))
