"""Problems in a few words."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from layoutopt.problems.types import Block, Problem, Tile


def tile_text(problem: Problem | Block) -> str:
    """Shape and element of the tile; of several, the name and the stages of each, too."""
    if isinstance(problem, Problem):
        return shape_text(problem.tile)
    return ", ".join(
        f"{tile.name} {shape_text(tile)}" + (f" in {tile.stages} stages" if tile.stages > 1 else "")
        for tile in problem.tiles
    )


def shape_text(tile: Tile) -> str:
    """Shape and element."""
    element = tile.element if isinstance(tile.element, str) else f"{tile.element.bytes}-byte elements"
    return f"{'x'.join(map(str, tile.shape))} {element}"


def widths_text(widths: Mapping[str, int]) -> str:
    """Widths chosen by access name, in bytes."""
    return ", ".join(f"`{name}` of {width} bytes" for name, width in widths.items())


def lanes_text(asked: Problem, chosen: Problem) -> str:
    """The lanes chosen, by access name, where `asked` leaves them free."""
    return " and ".join(
        f"`{access.name}` at [{', '.join(map(str, access.index))}]"
        for source, access in zip(asked.accesses, chosen.accesses, strict=True)
        if source.is_free
    )


def listed(items: Sequence[object], shown: int = 8) -> str:
    """Items as "a, b and c", all but the first few as a number; whole numbers in equal steps as a range."""
    texts = [str(item) for item in items]
    if len(texts) > shown + 1:
        if all(isinstance(item, int) for item in items):
            steps = {b - a for a, b in itertools.pairwise(items)}  # type: ignore[operator]
            if len(steps) == 1:
                return f"{texts[0]}, {texts[1]}, ... {texts[-1]}"
        texts = [*texts[:shown], f"{len(texts) - shown} more"]
    return ", ".join(texts[:-1]) + (" and " if len(texts) > 1 else "") + texts[-1]
