"""Which row of a comparison to take, and why."""

from __future__ import annotations

from typing import Final

import msgspec

from layoutopt.problems.answer import Status
from layoutopt.study.comparison import Recommendation, Row

# Pipelines are not deeper than this, so one more stage is then worth no word.
_STAGES_THAT_MATTER: Final = 8


def mark_pareto(rows: list[Row]) -> tuple[Row, ...]:
    """Mark the rows that no other beats in weighted wavefronts or bytes while matching the other."""
    points = [(r.weighted_wavefronts, r.bytes) if r.wavefronts is not None else None for r in rows]
    marked = []
    for row, mine in zip(rows, points, strict=True):
        best_there_is = mine is not None and not any(
            other is not None and other != mine and all(a <= b for a, b in zip(other, mine, strict=True))  # type: ignore[operator]
            for other in points
        )
        marked.append(msgspec.structs.replace(row, pareto=best_there_is))
    return tuple(marked)


def recommend(rows: tuple[Row, ...]) -> Recommendation | None:
    """Fewest wavefronts, then bytes, then index operations; of equals the one in use, then the plainest."""
    usable = [r for r in rows if r.wavefronts is not None]
    if not usable:
        return None
    kept = ("published", "in_use")
    best_row = min(
        usable,
        key=lambda r: (r.weighted_wavefronts, r.bytes, r.index_ops, r.family not in kept),
    )
    conflicts = "no bank conflicts" if not best_row.excess else _count(best_row.excess, "excess wavefront")
    name = f"keep the layout {best_row.title}" if best_row.title == "in use" else best_row.title
    text = f"{name}: {best_row.offset} has {conflicts} in {best_row.bytes:,} bytes"
    rival = _rival(best_row, usable)
    if rival is not None:
        text += f"; against {rival.title}: {_against(best_row, rival)}"
    if best_row.status == Status.FEASIBLE:
        text += " (found, not proved best)"
    return Recommendation(best_row.family, text)


def _rival(chosen: Row, usable: list[Row]) -> Row | None:
    """What the reader would otherwise take: the layout in use, else the best pad, else row-major."""
    by_family = {r.family: r for r in usable if r.offset != chosen.offset}
    for family in ("in_use", "published", "pad", "interval", "xor", "none"):
        if family in by_family:
            return by_family[family]
    return None


def _against(mine: Row, other: Row) -> str:
    """The differences in what is paid and what is got, most important first."""
    parts = []
    saved = (other.wavefronts or 0) - (mine.wavefronts or 0)
    parts.append("same wavefronts" if not saved else _difference(-saved, "wavefront"))
    size = (mine.bytes or 0) - (other.bytes or 0)
    parts.append("same bytes" if not size else _difference(size, "byte"))
    if mine.blocks_per_sm is not None and other.blocks_per_sm is not None:
        blocks = mine.blocks_per_sm - other.blocks_per_sm
        memory = (mine.blocks_by_shared_memory, other.blocks_by_shared_memory)
        if blocks:
            parts.append(
                f"{_difference(blocks, 'block')} per SM ({mine.blocks_per_sm}, not {other.blocks_per_sm})"
            )
        else:
            alone = f", by shared memory alone {memory[0]}, not {memory[1]}" if memory[0] != memory[1] else ""
            parts.append(
                f"same {_count(mine.blocks_per_sm, 'block')} per SM (limited by {mine.limited_by}{alone})"
            )
    stages = (mine.pipeline_stages or 0) - (other.pipeline_stages or 0)
    if stages and (mine.pipeline_stages or 0) <= _STAGES_THAT_MATTER:
        parts.append(_difference(stages, "pipeline stage"))
    operations_more = (mine.index_ops or 0) - (other.index_ops or 0)
    if operations_more:
        parts.append(f"{_difference(operations_more, 'index operation')}")
    return ", ".join(parts)


def _difference(value: int, noun: str) -> str:
    word = "more" if value > 0 else "fewer"
    return f"{abs(value):,} {word} {noun}{'s' if abs(value) != 1 else ''}"


def _count(value: int, noun: str) -> str:
    return f"{value:,} {noun}{'s' if value != 1 else ''}"
