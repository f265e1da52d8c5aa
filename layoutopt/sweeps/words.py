"""A summary as text and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from layoutopt.ground.escape import xml
from layoutopt.sweeps.summary import Summary

_LISTED: Final = 10
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ccc}"
    "svg{max-width:100%;height:auto}"
)


def text_of(found: Summary) -> str:
    """The summary for a terminal, ending in a newline."""
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(found.by_status.items()))
    lines = [
        f"{found.total:,} problems ({found.different:,} different): {statuses or 'none'}",
        f"{found.conflict_free:,} without conflicts, {found.without_formula_count:,} that no formula serves"
        " without conflicts",
        f"{found.seconds:,.1f} s of solving",
    ]
    if found.slowest:
        lines += ["", "slowest"]
        lines += [f"  {row['seconds']:9.3f} s  {row['status']:10}  {row['name']}" for row in found.slowest]
    if found.worst:
        lines += ["", "worst"]
        lines += [f"  {row['excess']:9g} excess  {row['status']:10}  {row['name']}" for row in found.worst]
    if found.without_formula:
        lines += ["", "without a formula that has no conflicts"]
        lines += [f"  {name}" for name in found.without_formula[:_LISTED]]
        if found.without_formula_count > _LISTED:
            lines.append(f"  and {found.without_formula_count - _LISTED:,} more")
    return "\n".join(lines) + "\n"


def page_of(found: Summary, title: str, heat_map: str = "") -> str:
    """The summary as an HTML page of its own; `heat_map` is SVG."""
    statuses = [(status, f"{count:,}") for status, count in sorted(found.by_status.items())]
    parts = [
        f"<h1>{xml(title)}</h1><p>{found.total:,} problems, {found.different:,} different, "
        f"{found.conflict_free:,} without conflicts, {found.seconds:,.1f} s of solving.</p>",
        _table("Status", ("status", "problems"), statuses),
        heat_map[heat_map.find("<svg") :] if heat_map else "",
        _table(
            "Slowest",
            ("problem", "status", "seconds"),
            [(r["name"], r["status"], f"{r['seconds']:.3f}") for r in found.slowest],
        ),
        _table(
            "Worst",
            ("problem", "status", "excess wavefronts"),
            [(r["name"], r["status"], f"{r['excess']:g}") for r in found.worst],
        ),
        _table(
            f"Without a formula that has no conflicts: {found.without_formula_count:,}",
            ("problem",),
            [(name,) for name in found.without_formula],
        ),
    ]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{xml(title)}</title>'
    head += f"<style>{_STYLE}</style>"
    return head + "\n".join(part for part in parts if part) + "</html>\n"


def _table(title: str, names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{xml(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{xml(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h2>{xml(title)}</h2><table><tr>{head}</tr>{body}</table>"
