"""Problems in a few words."""

from __future__ import annotations

from collections.abc import Mapping

from layoutopt.problems.types import Problem


def tile_text(problem: Problem) -> str:
    """Shape and element of the tile."""
    element = problem.tile.element
    name = element if isinstance(element, str) else f"{element.bytes}-byte elements"
    return f"{'x'.join(map(str, problem.tile.shape))} {name}"


def widths_text(widths: Mapping[str, int]) -> str:
    """Widths chosen by access name, in bytes."""
    return ", ".join(f"`{name}` of {width} bytes" for name, width in widths.items())
