"""Problems and results as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutopt.model import Problem, Result


def problem_html(problem: Problem) -> str:
    """The tile in a line, and a table of its accesses."""
    tile = problem.tile
    element = tile.element if isinstance(tile.element, str) else f"{tile.element.bytes}-byte elements"
    shape = " x ".join(map(str, tile.shape))
    rows = [
        (
            access.name,
            access.op,
            ", ".join(map(str, access.index)),
            ", ".join(f"{name} < {trips}" for name, trips in access.loops.items()),
            access.where or "",
        )
        for access in problem.accesses
    ]
    head = f"{shape} {element}, {tile.bytes:,} bytes, {problem.threads} threads, {problem.target}"
    return _titled(problem.name, head) + _table(("access", "op", "index", "for", "where"), rows)


def result_html(result: Result) -> str:
    """The answer in a line, its proof, and what each access costs."""
    if result.layout is None:
        return _titled(result.problem, f"{result.status}: {result.reason}")
    head = f"{result.status}: {result.excess} excess wavefronts, {result.bytes:,} bytes, {result.target}"
    proof = (
        f"excess at least {result.proof.excess.lower_bound} in {result.proof.excess.scope}; "
        f"bytes at least {result.proof.bytes.lower_bound:,} in {result.proof.bytes.scope}"
    )
    rows = [(a.name, a.op, str(a.wavefronts), str(a.ideal), str(a.bank_conflicts)) for a in result.accesses]
    return (
        _titled(result.problem, head)
        + f"<div><code>offset = {escape(result.offset or '')}</code></div><div>{escape(proof)}</div>"
        + _table(("access", "op", "wavefronts", "ideal", "bank conflicts"), rows)
    )


def _titled(name: str, text: str) -> str:
    return f"<div><b>{escape(name)}</b>: {escape(text)}</div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
