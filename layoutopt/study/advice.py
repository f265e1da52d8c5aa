"""Which row of a comparison to take, and why.

Least estimated time comes first. What takes as long, within what the estimate can tell apart, is ranked by
what it costs to adopt: the layout in use, then its nearest edit, then the fewest bytes. Bytes count by
themselves where they change the blocks on a multiprocessor, which is part of the time, or where a limit rules
a row out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from layoutopt.engine.estimate import timing_of
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Estimate, Status
from layoutopt.problems.types import Block, Problem
from layoutopt.study.comparison import Comparison, Recommendation, Row

# Estimates that differ by less do not tell which layout is faster: three times their median error. A layout
# in use is replaced only by one that is estimated faster by more, for one block alone and for as many as fit:
# of the catalogue's 26 such replacements that an H200 timed (tests/data/h200_times.json), none took 2 % more
# time either way.
SAME_TIME: Final = 1.08
# Pipelines are not deeper than this, so one more stage is then worth no word.
_STAGES_THAT_MATTER: Final = 8
# The layout in use, what the author sees first.
_IN_USE: Final = ("in_use", "published")
_NO_ESTIMATE: Final = "the time limit left no estimate of time"
_OF_HARDWARE: Final = "wavefronts, bytes, or boxes and instructions of the hardware"


def advised(
    problem: Problem | Block, gpu: Device, rows: Sequence[Row], widths: dict[str, int], *, dictated: bool
) -> Comparison:
    """The comparison of these rows, and which to take."""
    marked = tuple(msgspec.structs.replace(row, pareto=_is_pareto(row, rows)) for row in rows)
    advice, borrowed = recommend(marked, dictated=dictated), timing_of(gpu)[1]
    return Comparison(problem.name, gpu.name, problem.threads, marked, advice, widths, borrowed)


def recommend(rows: Sequence[Row], *, dictated: bool = False) -> Recommendation | None:
    """The row to take, of layouts that the hardware dictates by the order of `solve`; None without any."""
    usable = [row for row in rows if row.wavefronts is not None]
    used = next((row for family in _IN_USE for row in rows if row.family == family), None)
    if not usable:
        return None
    return _of_dictated(usable, used) if dictated else _by_time(usable, used)


def _is_pareto(row: Row, rows: Sequence[Row]) -> bool:
    """Whether no other row has less of weighted wavefronts or bytes and no more of the other."""
    if row.wavefronts is None:
        return False
    mine, others = row.rank[:2], {other.rank[:2] for other in rows if other.wavefronts is not None}
    return not any(all(a <= b for a, b in zip(other, mine, strict=True)) for other in others - {mine})


def _by_time(usable: list[Row], used: Row | None) -> Recommendation:
    """The row of least time, of equals the cheapest to adopt, unless what is in use is about as fast."""
    sound = used if used is not None and used.wavefronts is not None else None
    timed = [r for r in usable if r.time is not None]
    unknown = len(usable) - len(timed)
    if timed and (sound is None or sound.time is not None):
        usable, doubt = timed, _left_out(unknown)
    else:
        doubt = "" if not unknown else f"; {_NO_ESTIMATE}, so wavefronts decide"
    better = [r for r in usable if sound is not None and clearly_faster(r, sound)]
    if sound is not None and not better:
        text = _kept(sound, min(usable, key=_time)) + doubt
        return Recommendation(sound.family, sound.offset or "", text, True)
    pool = better or usable
    least = min(map(_time, pool))
    taken = min((r for r in pool if _time(r) <= SAME_TIME * least), key=_adoption)
    text = _replaced(taken, used if used is not None else _rival(taken, usable)) + doubt
    return Recommendation(taken.family, taken.offset or "", text, False)


def _of_dictated(usable: list[Row], used: Row | None) -> Recommendation:
    """The row of the best rank, then what is in use: no estimate knows what the hardware does by itself."""
    taken = min(usable, key=lambda r: (*r.rank, r is not used))
    if taken is used:
        text = f"leave it as it is: {taken.offset} has {_conflicts(taken)} in {taken.bytes:,} bytes"
        text += f"; no layout that the hardware knows has fewer {_OF_HARDWARE}"
        return Recommendation(taken.family, taken.offset or "", text, True)
    rival = used or next((r for r in usable if r.offset != taken.offset), None)
    return Recommendation(taken.family, taken.offset or "", _replaced(taken, rival), False)


def clearly_faster(row: Row, used: Row) -> bool:
    """Whether a row takes less time than the layout in use beyond doubt; fewer wavefronts without estimates.

    Conflicts are counted exactly, and instructions are not: what has more wavefronts is never beyond doubt.
    """
    saved = (used.weighted_wavefronts or 0.0) - (row.weighted_wavefronts or 0.0)
    if row.time is None or used.time is None or row.cycles is None or used.cycles is None:
        return saved > 0
    return saved >= 0 and surely_faster(row, used)


def surely_faster(found: Row | Estimate, used: Row | Estimate) -> bool:
    """Whether estimates tell that one is faster, for one block alone and for as many as fit."""
    pairs = (found.time, used.time), (found.cycles, used.cycles)
    return all(a is not None and b is not None and a * SAME_TIME < b for a, b in pairs)


def _left_out(rows: int) -> str:
    """What is said of rows that are not weighed, as the others have estimates."""
    return "" if not rows else f"; for {_count(rows, 'other row')}, {_NO_ESTIMATE}"


def _time(row: Row) -> float:
    """Estimated cycles; the weighted wavefronts where the time limit left no estimate."""
    return row.time if row.time is not None else row.weighted_wavefronts or 0.0


def _adoption(row: Row) -> tuple[bool, bool, int, float, int, int]:
    """What it takes to adopt a row, of rows that take as long: an edit first, then what has no conflicts."""
    bytes_, wavefronts = row.bytes or 0, row.weighted_wavefronts or 0.0
    return (
        row.family != "edit",
        bool(row.excess),
        bytes_,
        wavefronts,
        row.by_hardware or 0,
        row.instructions or 0,
    )


def _kept(row: Row, fastest: Row) -> str:
    text = f"leave it as it is: {row.offset} has {_conflicts(row)} in {row.bytes:,} bytes"
    if row.cycles is None:
        return f"{text}, and no row has fewer wavefronts"
    text += f", an estimated {row.cycles:,.0f} cycles a pass"
    if fastest.offset == row.offset or fastest.cycles is None:
        return f"{text}, and no row is estimated faster"
    return f"{text}; {fastest.title} ({fastest.cycles:,.0f} cycles) is not clearly faster"


def _replaced(row: Row, rival: Row | None) -> str:
    what = row.edit if row.edit is not None else f"take {row.title}"
    text = f"{what}: {row.offset} has {_conflicts(row)} in {row.bytes:,} bytes"
    if rival is not None and rival.wavefronts is None:
        text += f"; {rival.title} is no layout of this tile: {rival.reason}"
    elif rival is not None:
        text += f"; against {rival.title}: {_against(row, rival)}"
    if row.status == Status.FEASIBLE:
        text += " (found, not proved best)"
    return text


def _conflicts(row: Row) -> str:
    return "no bank conflicts" if not row.excess else _count(row.excess, "excess wavefront")


def _rival(chosen: Row, usable: list[Row]) -> Row | None:
    """What the reader would otherwise take, where nothing is in use: the best pad, else row-major."""
    by_family = {r.family: r for r in usable if r.offset != chosen.offset}
    return next((by_family[f] for f in ("pad", "interval", "xor", "none") if f in by_family), None)


def _against(mine: Row, other: Row) -> str:
    """The differences in what is paid and what is got, most important first."""
    parts = []
    if mine.time is not None and other.time is not None and other.time:
        change = mine.time / other.time - 1
        if abs(change) < SAME_TIME - 1:
            parts.append("about the same estimated time")
        else:
            parts.append(f"{abs(change):.0%} {'more' if change > 0 else 'less'} estimated time")
    saved = (other.wavefronts or 0) - (mine.wavefronts or 0)
    parts.append("same wavefronts" if not saved else _difference(-saved, "wavefront"))
    size = (mine.bytes or 0) - (other.bytes or 0)
    parts.append("same bytes" if not size else _difference(size, "byte"))
    if mine.blocks_per_sm is not None and other.blocks_per_sm is not None:
        blocks = mine.blocks_per_sm - other.blocks_per_sm
        if blocks:
            parts.append(
                f"{_difference(blocks, 'block')} per SM ({mine.blocks_per_sm}, not {other.blocks_per_sm})"
            )
        else:
            parts.append(f"same {_count(mine.blocks_per_sm, 'block')} per SM (limited by {mine.limited_by})")
    stages = (mine.pipeline_stages or 0) - (other.pipeline_stages or 0)
    if stages and (mine.pipeline_stages or 0) <= _STAGES_THAT_MATTER:
        parts.append(_difference(stages, "pipeline stage"))
    by_hardware = (mine.by_hardware or 0) - (other.by_hardware or 0)
    if by_hardware:
        parts.append(f"{_difference(by_hardware, 'instruction')} of the hardware")
    if mine.instructions is not None and other.instructions is not None:
        more = mine.instructions - other.instructions
        if more:
            parts.append(_difference(more, "index instruction"))
    return ", ".join(parts)


def _difference(value: int, noun: str) -> str:
    word = "more" if value > 0 else "fewer"
    return f"{abs(value):,} {word} {noun}{'s' if abs(value) != 1 else ''}"


def _count(value: int, noun: str) -> str:
    return f"{value:,} {noun}{'s' if value != 1 else ''}"
