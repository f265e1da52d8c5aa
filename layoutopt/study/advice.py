"""Which row of a comparison to take, and why.

Least estimated time comes first. What takes as long, within what the estimate can tell apart, is ranked by
what it costs to adopt: the layout in use, then its nearest edit, then the fewest bytes. Bytes count by
themselves where they change the blocks on a multiprocessor, which is part of the time, or where a limit rules
a row out. Where nothing is estimated, wavefronts stand in the place of time.
"""

from collections.abc import Sequence
from typing import Final

from layoutopt.problems.answer import Status
from layoutopt.problems.text import count_text
from layoutopt.study.comparison import Recommendation, Row

# Estimates that differ by less do not tell which layout is faster: three times their median error. A layout
# in use is replaced only by one that is estimated faster by more, for one block alone and for as many as fit:
# of the catalogue's 26 such replacements that an H200 timed (tests/data/h200_times.json), none took 2 % more
# time either way.
SAME_TIME: Final = 1.08
# Pipelines are not deeper than this, so one more stage is then worth no word.
_STAGES_THAT_MATTER: Final = 8
# Of estimates of a full multiprocessor and of a block alone, as parts of the time: what tells them apart.
_WORTH_A_WORD: Final = 0.1
# The layout in use, what the author sees first; and what the reader would otherwise take.
_IN_USE: Final = ("in_use", "published")
_RIVALS: Final = ("pad", "interval", "xor", "none")
_LATE: Final = "the time limit left no estimate of time"


def recommend(
    rows: Sequence[Row], *, dictated: bool = False, no_estimate: str | None = None
) -> Recommendation | None:
    """The row to take, of layouts that the hardware dictates by the order of `solve`; None without any."""
    usable = [row for row in rows if row.wavefronts is not None]
    used = next((row for family in _IN_USE for row in rows if row.family == family), None)
    if not usable:
        return None
    if dictated:  # no estimate knows what the hardware does by itself
        taken = min(usable, key=lambda r: (*r.rank, r is not used))
        reason = "; no layout that the hardware knows has fewer wavefronts, bytes, or boxes and instructions "
        text = _kept(taken, reason + "of the hardware") if taken is used else _replaced(taken, used, rows)
        return Recommendation(taken.family, taken.offset or "", text, taken is used)
    sound = used if used is not None and used.wavefronts is not None else None
    timed = [r for r in usable if r.time is not None]
    doubt = ""
    if no_estimate is not None:
        doubt = f"; no time is estimated, as {no_estimate}, so wavefronts decide"
    elif not timed or (sound is not None and sound.time is None):
        doubt = f"; {_LATE}, so wavefronts decide"
    elif len(timed) < len(usable):
        doubt, usable = f"; for {count_text(len(usable) - len(timed), 'other row')}, {_LATE}", timed
    better = [r for r in usable if sound is not None and _clearly_faster(r, sound)]
    if sound is not None and not better:
        text = _kept(sound, _no_faster(sound, min(usable, key=_time)))
        return Recommendation(sound.family, sound.offset or "", text + doubt, True)
    pool = better or usable
    least = min(map(_time, pool))
    taken = min((r for r in pool if _time(r) <= SAME_TIME * least), key=lambda r: _adoption(r, used))
    return Recommendation(taken.family, taken.offset or "", _replaced(taken, used, usable) + doubt, False)


def _clearly_faster(row: Row, used: Row) -> bool:
    """Whether a row takes less time than the layout in use beyond doubt; fewer wavefronts without estimates.

    Conflicts are counted exactly, and instructions are not: what has more wavefronts is never beyond doubt.
    """
    saved = (used.weighted_wavefronts or 0.0) - (row.weighted_wavefronts or 0.0)
    if row.time is None or used.time is None:
        return saved > 0
    # For one block alone and for as many as fit.
    pairs = (row.time, used.time), (row.cycles, used.cycles)
    return saved >= 0 and all(a is not None and b is not None and a * SAME_TIME < b for a, b in pairs)


def _time(row: Row) -> float:
    """Estimated cycles; the weighted wavefronts where there is no estimate."""
    return row.time if row.time is not None else row.weighted_wavefronts or 0.0


def _adoption(row: Row, used: Row | None) -> tuple[float, ...]:
    """What it takes to adopt a row, of rows that take as long: an edit first, then what has no conflicts.

    A pad in the place of the layout in use changes a declaration alone; `layoutopt fix` prefers it, too.
    """
    wavefronts, by_hardware = row.weighted_wavefronts or 0.0, row.by_hardware or 0
    costs = row.bytes or 0, wavefronts, by_hardware, row.instructions or 0
    is_pad = row.family == "pad" and used is not None and not row.excess
    return (row.family != "edit", not is_pad, bool(row.excess), *costs)


# Words -------------------------------------------------------------------------------------------


def _kept(row: Row, reason: str) -> str:
    return f"leave it as it is: {_figures(row)}{reason}"


def _no_faster(row: Row, fastest: Row) -> str:
    if row.cycles is None:
        return ", and no row has fewer wavefronts"
    text = f", an estimated {row.cycles:,.0f} cycles a pass"
    if fastest.offset == row.offset or fastest.cycles is None:
        return f"{text}, and no row is estimated faster"
    return f"{text}; {fastest.title} ({fastest.cycles:,.0f} cycles) is not clearly faster"


def _replaced(row: Row, used: Row | None, rows: Sequence[Row]) -> str:
    """What to take instead of the layout in use, else of what the reader would otherwise take."""
    others = {r.family: r for r in rows if r.wavefronts is not None and r.offset != row.offset}
    rival = used or next((others[family] for family in (*_RIVALS, *others) if family in others), None)
    title = f"the {row.title}" if row.title.startswith("best ") else row.title
    text = f"{row.edit or f'take {title}'}: {_figures(row)}"
    if rival is not None and rival.wavefronts is None:
        text += f"; {rival.title} is no layout of this tile: {rival.reason}"
    elif rival is not None:
        text += f"; against {rival.title}: {', '.join(_against(row, rival))}"
    return text + (" (found, not proved best)" if row.status == Status.FEASIBLE else "")


def _figures(row: Row) -> str:
    conflicts = "no bank conflicts" if not row.excess else count_text(row.excess, "excess wavefront")
    return f"{row.offset} has {conflicts} in {row.bytes:,} bytes"


def _against(mine: Row, other: Row) -> list[str]:
    """The differences in what is paid and what is got, most important first."""
    parts = []
    if mine.time is not None and other.time:
        change = mine.time / other.time - 1
        much = f"{abs(change):.0%} {'more' if change > 0 else 'less'} estimated time"
        if mine.blocks_per_sm is not None and mine.cycles is not None and other.cycles:
            alone = 1 - mine.cycles / other.cycles
            if abs(alone + change) > _WORTH_A_WORD:
                much += f" with {count_text(mine.blocks_per_sm, 'block')} per SM ({alone:.0%} for one alone)"
        parts.append("about the same estimated time" if abs(change) < SAME_TIME - 1 else much)
    wavefronts = difference((mine.wavefronts or 0) - (other.wavefronts or 0), "wavefront")
    parts.append(f"{wavefronts} a block" if wavefronts else "same wavefronts")
    parts.append(difference((mine.bytes or 0) - (other.bytes or 0), "byte") or "same bytes")
    if mine.blocks_per_sm is not None and other.blocks_per_sm is not None:
        fewer = difference(mine.blocks_per_sm - other.blocks_per_sm, "block")
        both = f" per SM ({mine.blocks_per_sm}, not {other.blocks_per_sm})"
        same = f"same {count_text(mine.blocks_per_sm, 'block')} per SM (limited by {mine.limited_by})"
        parts.append(fewer + both if fewer else same)
    if (mine.pipeline_stages or 0) <= _STAGES_THAT_MATTER:
        stages = (mine.pipeline_stages or 0) - (other.pipeline_stages or 0)
        parts.append(difference(stages, "pipeline stage"))
    if moved := difference((mine.by_hardware or 0) - (other.by_hardware or 0), "instruction"):
        parts.append(f"{moved} of the hardware")
    if mine.instructions is not None and other.instructions is not None:
        parts.append(difference(mine.instructions - other.instructions, "index instruction"))
    return [part for part in parts if part]


def difference(value: float, noun: str) -> str:
    """`12 more bytes`, `1 fewer byte`; empty for no difference."""
    return count_text(abs(value), f"{'more' if value > 0 else 'fewer'} {noun}") if value else ""
