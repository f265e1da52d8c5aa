"""A title and a table in HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from layoutopt.ground.escape import xml as escape

__all__ = ["escape", "table", "titled"]


def titled(name: str, text: str) -> str:
    """A line that starts with a name."""
    return f"<div><b>{escape(name)}</b>: {escape(text)}</div>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under a head."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
