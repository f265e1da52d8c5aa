"""What `compare` answers: a row for each family, and which of them to take.

Least estimated time comes first. What takes as long, within what the estimate can tell apart, is ranked by
what it costs to adopt: the layout in use, then its nearest edit, then the fewest bytes. Bytes count by
themselves where they change the blocks on a multiprocessor, which is part of the time, or where a limit rules
a row out. Where nothing is estimated, wavefronts stand in the place of time.
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from layoutopt.ground.json_data import Versioned
from layoutopt.hardware.occupancy import Occupancy
from layoutopt.problems.answer import Estimate, Status
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.problems.text import count_text

# Estimates that differ by less do not tell which layout is faster: three times their median error. A layout
# in use is replaced only by one that is estimated faster by more, for one block alone and for as many as fit:
# of the catalogue's 26 such replacements that an H200 timed (tests/data/h200_times.json), none took 2 % more
# time either way.
SAME_TIME: Final = 1.08
# Pipelines are not deeper than this, so one more stage is then worth no word.
_DEEPEST_PIPELINE: Final = 8
# Part of the time by which savings with as many blocks as fit, and by one alone, differ where both are told.
_WORTH_A_WORD: Final = 0.1
# The layout in use, what the author sees first; and what the reader would otherwise take.
_IN_USE: Final = ("in_use", "published")
_RIVALS: Final = ("pad", "interval", "xor", "none")
_NO_TIME_LEFT: Final = "the time limit left no estimate of time"


class RowAccess(Struct, frozen=True):
    """One access under one layout."""

    name: str
    op: str
    # These four over all its warp instructions; where lanes choose, the worst or the expectation
    wavefronts: int | float
    ideal: int | float
    excess: int | float
    bank_conflicts: int | float
    # Wavefronts of the worst phase of its worst instruction (2: a 2-way conflict); None where lanes choose at
    # run time
    ways: int | None
    index_ops: int | None = None  # integer instructions of its index code, one pass of a thread


class TileOfRow(Struct, frozen=True):
    """One tile, or tiles that share a layout, in a row about several."""

    tiles: tuple[str, ...]  # their names
    offset: str  # element offset over x0, x1, ... in the coordinates of the largest, in the smallest elements
    bytes: int  # of one stage
    base_bytes: int  # where its first stage begins
    stages: int  # how many copies there are
    stage_bytes: int  # from one copy to the next, of the largest
    # `wavefronts, excess`: of its accesses
    wavefronts: int | float
    excess: int | float


class Row(Struct, frozen=True):
    """One family's best layout. Without one (`status`, `reason`) the figures are null."""

    family: str  # short name, stable
    title: str  # the same for people
    # Optimal (proved best in its family), feasible (found, not proved), infeasible, unknown (out of time) or
    # given (a layout that was not searched for)
    status: str
    reason: str = ""  # why there is no layout, or what is left unproved
    offset: str | None = None  # element offset over x0, x1,
    label: str = ""  # what the layout is called, such as Swizzle<3,3,3>; may be empty
    bytes: int | None = None  # last offset plus element size
    declared_bytes: int | None = None  # of an array declared with every pitch in full
    alignment_bytes: int | None = None  # of the base
    # `wavefronts, ideal, excess`: summed over all warp instructions, weights not applied
    wavefronts: int | float | None = None
    ideal: int | float | None = None
    excess: int | float | None = None
    ways: int | None = None  # of the worst conflict
    weighted_wavefronts: float | None = None  # with the weights
    index_ops: int | None = None  # `instructions` under its older name
    # Resident blocks of the multiprocessor, by shared memory, threads and block slots
    blocks_per_sm: int | None = None
    blocks_by_shared_memory: int | None = None  # by shared memory alone
    limited_by: str | None = None  # what decides blocks_per_sm
    pipeline_stages: int | None = None  # copies of the tile that fit in one block
    # Boxes, matrix instructions and bulk copies that reach the tile once, where the hardware dictates its
    # layout
    by_hardware: int | None = None
    # Integer instructions of the index code of all accesses, one pass of a thread
    instructions: int | None = None
    cycles: float | None = None  # estimated, of one pass of a block through all accesses, weights applied
    # Estimated cycles of a multiprocessor for one such pass, as many blocks running as fit
    time: float | None = None
    # Cycles of one pass of a block on the GPU of this machine, where it was run
    measured: float | None = None
    # Of a multiprocessor there for one such pass, as many blocks running as fit
    measured_together: float | None = None
    # `counted_wavefronts, counted_bank_conflicts`: what the profiler counted there of such a pass, in its own
    # unit: copies past the registers are left out
    counted_wavefronts: int | None = None
    counted_bank_conflicts: int | None = None
    counted_as_predicted: bool | None = None  # whether all its counters are what the conflict engine predicts
    # What to change in the layout in use, such as "change 129 to 132", where the row is that edit
    edit: str | None = None
    seconds: float = 0.0  # time that the row took
    pareto: bool = False  # no other row is better in wavefronts or bytes and as good in the other
    accesses: tuple[RowAccess, ...] = ()  # one by one
    # Of a row about several tiles, one by one: figures are then of all of them, `offset` says each tile's,
    # and `pipeline_stages` are of all that have more than one stage, else of all
    tiles: tuple[TileOfRow, ...] | UnsetType = UNSET

    @property
    def rank(self) -> tuple[float, ...]:
        """Sorting key of rows with a layout: wavefronts, bytes, then what the hardware does by itself."""
        return EXCESS_FIRST.key(self.weighted_wavefronts or 0.0, self.bytes or 0, self.by_hardware or 0)

    def timed(self, estimated: Estimate | None) -> "Row":
        """The row with an estimate of its time, if there is one."""
        if estimated is None:
            return self
        count = estimated.instructions
        times = {"cycles": estimated.cycles, "time": estimated.time}
        return replace(self, instructions=count, index_ops=count, **times)

    def resident(self, fits: Occupancy | None) -> "Row":
        """The row with what fits on a multiprocessor, if its limits are known."""
        if fits is None:
            return self
        return replace(
            self,
            blocks_per_sm=fits.blocks,
            blocks_by_shared_memory=fits.by_shared_memory,
            limited_by=fits.limited_by,
            pipeline_stages=fits.stages,
        )


class Recommendation(Struct, frozen=True):
    """What to do."""

    family: str  # of the row to take
    offset: str  # its layout, element offset over x0, x1,
    text: str  # what to do and why, in one sentence
    keep: bool  # the row is the layout in use (else the published one): leave it as it is


class Comparison(Versioned, frozen=True):
    """All rows, from the plainest to the most general.

    Attributes:
        problem: its name.
        target: the GPU, such as sm_90.
        threads: of the block.
        rows: the best layout of each family, and the layout in use.
        recommendation: which row to take, and why; None where no row has a layout.
        widths: where the file leaves widths open, those of the best layout of all, in bytes by access
            name; every row is counted with them.
        no_estimate: why no time is estimated, where it is not.
        measured_on: the GPU that the rows were run on, where they were.
        not_counted: why the profiler counted nothing there, where it did not.
        borrowed: the device whose measured coefficients the estimates borrow; None where they are its own.
    """

    problem: str
    target: str
    threads: int
    rows: tuple[Row, ...]
    recommendation: Recommendation | None
    widths: dict[str, int]
    borrowed: str | None = None
    no_estimate: str | None = None
    measured_on: str | None = None
    not_counted: str | None = None
    schema_: Literal["layoutopt.comparison/1"] = "layoutopt.comparison/1"


# Which row to take ------------------------------------------------------------------------------


def recommend(
    rows: Sequence[Row], *, dictated: bool = False, no_estimate: str | None = None
) -> Recommendation | None:
    """The row to take, and why; None where no row has a layout.

    Args:
        rows: the best of each family; the layout in use or the published one, if there is one, among them.
        dictated: the hardware dictates the layout: its wavefronts, bytes and instructions decide.
        no_estimate: why no time is estimated, where none is.
    """
    usable = [row for row in rows if row.wavefronts is not None]
    if not usable:
        return None
    # A block that no multiprocessor holds is taken only where nothing else is there.
    usable = [row for row in usable if row.blocks_per_sm != 0] or usable
    used = next((row for family in _IN_USE for row in rows if row.family == family), None)  # usable or not

    def advice(row: Row, text: str) -> Recommendation:
        return Recommendation(row.family, row.offset or "", text, keep=row is used)

    if dictated:  # no estimate knows what the hardware does by itself
        taken = min(usable, key=lambda row: (*row.rank, row is not used))  # by the three; of equals, `used`
        if taken is not used:
            return advice(taken, _text_to_replace(taken, used, rows))
        why = "no layout that the hardware knows has fewer wavefronts, bytes, or boxes and instructions "
        return advice(taken, f"leave it as it is: {_figures(taken)}; {why}of the hardware")
    usable_used = used if used in usable else None
    timed = [row for row in usable if row.time is not None]
    # Cycles and wavefronts do not compare: without an estimate of the layout in use, none counts.
    by_wavefronts = not timed or (usable_used is not None and usable_used.time is None)
    doubt = ""
    if by_wavefronts:
        why = f"no time is estimated, as {no_estimate}" if no_estimate is not None else _NO_TIME_LEFT
        doubt = f"; {why}, so wavefronts decide"
    elif len(timed) < len(usable):
        doubt, usable = f"; for {count_text(len(usable) - len(timed), 'other row')}, {_NO_TIME_LEFT}", timed

    def time(row: Row) -> float:  # or what stands in its place
        return (row.weighted_wavefronts if by_wavefronts else row.time) or 0.0

    candidates = usable
    if usable_used is not None:
        # By time; where `by_wavefronts` holds, one of the two has none, so that wavefronts decide there, too.
        candidates = [row for row in usable if _clearly_faster(row, usable_used)]
        if not candidates:
            why = _why_keep(usable_used, min(usable, key=time))
            return advice(usable_used, f"leave it as it is: {_figures(usable_used)}{why}{doubt}")
    least = min(map(time, candidates))
    as_fast = (row for row in candidates if time(row) <= SAME_TIME * least)
    taken = min(as_fast, key=lambda row: _adoption_cost(row, used))
    return advice(taken, _text_to_replace(taken, used, usable) + doubt)


def _clearly_faster(row: Row, used: Row) -> bool:
    """Whether a row is estimated faster than the layout in use by more than the estimate's error.

    A row with more wavefronts never is: they are counted exactly, the time of instructions is not. Without
    estimates, fewer wavefronts are faster.
    """
    saved = (used.weighted_wavefronts or 0.0) - (row.weighted_wavefronts or 0.0)
    if row.time is None or used.time is None:
        return saved > 0
    # For as many blocks as fit, and for one block alone.
    pairs = (row.time, used.time), (row.cycles, used.cycles)
    return saved >= 0 and all(a is not None and b is not None and a * SAME_TIME < b for a, b in pairs)


def _adoption_cost(row: Row, used: Row | None) -> tuple[float, ...]:
    """Sorting key of rows that take as long: the nearest edit first, then what has no conflicts.

    A pad in the place of the layout in use changes a declaration alone; `layoutopt fix` prefers it, too.
    """
    wavefronts, by_hardware = row.weighted_wavefronts or 0.0, row.by_hardware or 0
    costs = row.bytes or 0, wavefronts, by_hardware, row.instructions or 0
    changes_declaration = row.family == "pad" and used is not None and not row.excess
    return (row.family != "edit", not changes_declaration, bool(row.excess), *costs)


# Words -------------------------------------------------------------------------------------------


def _why_keep(row: Row, fastest: Row) -> str:
    if row.cycles is None:
        return ", and no row has fewer wavefronts"
    text = f", an estimated {row.cycles:,.0f} cycles a pass"
    if fastest.offset == row.offset or fastest.cycles is None:
        return f"{text}, and no row is estimated faster"
    return f"{text}; {fastest.title} ({fastest.cycles:,.0f} cycles) is not clearly faster"


def _text_to_replace(row: Row, used: Row | None, rows: Sequence[Row]) -> str:
    """The row to take, and how it differs from the layout in use, else from the usual choice (`_RIVALS`)."""
    others = {r.family: r for r in rows if r.wavefronts is not None and r.offset != row.offset}
    rival = used or next((others[family] for family in (*_RIVALS, *others) if family in others), None)
    title = f"the {row.title}" if row.title.startswith("best ") else row.title
    text = f"{row.edit or f'take {title}'}: {_figures(row)}"
    if rival is not None and rival.wavefronts is None:
        text += f"; {rival.title} is no layout of this tile: {rival.reason}"
    elif rival is not None:
        text += f"; against {rival.title}: {', '.join(_differences(row, rival))}"
    return text + (" (found, not proved best)" if row.status == Status.FEASIBLE else "")


def _figures(row: Row) -> str:
    conflicts = "no bank conflicts" if not row.excess else count_text(row.excess, "excess wavefront")
    return f"{row.offset} has {conflicts} in {row.bytes:,} bytes"


def _differences(row: Row, other: Row) -> list[str]:
    """What a row costs more and less than another one, most important first, such as `12 more bytes`."""
    texts = []
    if row.time is not None and other.time:
        added = row.time / other.time - 1  # with as many blocks as fit
        directions = "less", "more"
        text = f"{abs(added):.0%} {directions[added > 0]} estimated time"
        if row.blocks_per_sm is not None and row.cycles is not None and other.cycles:
            added_alone = row.cycles / other.cycles - 1  # by one block
            if abs(added_alone - added) > _WORTH_A_WORD:
                other_way = f" {directions[added_alone > 0]}" if added_alone * added < 0 else ""
                blocks = count_text(row.blocks_per_sm, "block")
                text += f" with {blocks} per SM ({abs(added_alone):.0%}{other_way} for one alone)"
        texts.append("about the same estimated time" if abs(added) < SAME_TIME - 1 else text)
    wavefronts = difference((row.wavefronts or 0) - (other.wavefronts or 0), "wavefront")
    texts.append(f"{wavefronts} a block" if wavefronts else "same wavefronts")
    texts.append(difference((row.bytes or 0) - (other.bytes or 0), "byte") or "same bytes")
    if row.blocks_per_sm is not None and other.blocks_per_sm is not None:
        blocks = difference(row.blocks_per_sm - other.blocks_per_sm, "block")
        both = f" per SM ({row.blocks_per_sm}, not {other.blocks_per_sm})"
        same = f"same {count_text(row.blocks_per_sm, 'block')} per SM (limited by {row.limited_by})"
        texts.append(blocks + both if blocks else same)
    if (row.pipeline_stages or 0) <= _DEEPEST_PIPELINE:  # no pipeline uses more
        stages = (row.pipeline_stages or 0) - (other.pipeline_stages or 0)
        texts.append(difference(stages, "pipeline stage"))
    if by_hardware := difference((row.by_hardware or 0) - (other.by_hardware or 0), "instruction"):
        texts.append(f"{by_hardware} of the hardware")
    if row.instructions is not None and other.instructions is not None:
        texts.append(difference(row.instructions - other.instructions, "index instruction"))
    return [text for text in texts if text]


def difference(value: float, noun: str) -> str:
    """`12 more bytes`, `1 fewer byte`; empty for no difference."""
    return count_text(abs(value), f"{'more' if value > 0 else 'fewer'} {noun}") if value else ""
