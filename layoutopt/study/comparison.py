"""What `compare` answers: a row for each family, and which to take."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from layoutopt.ground.json_data import Versioned
from layoutopt.hardware.occupancy import Occupancy
from layoutopt.problems.objective import EXCESS_FIRST


class RowAccess(Struct, frozen=True):
    """One access under one layout.

    Attributes:
        wavefronts, ideal, excess, bank_conflicts: over all its warp instructions; where lanes choose, the
            worst or the expectation over their values.
        ways: wavefronts of the worst phase of its worst instruction (2: a 2-way conflict); None where lanes
            choose at run time.
        index_ops: integer instructions of its index code, one pass of a thread.
    """

    name: str
    op: str
    wavefronts: int | float
    ideal: int | float
    excess: int | float
    bank_conflicts: int | float
    ways: int | None
    index_ops: int | None = None


class TileOfRow(Struct, frozen=True):
    """One tile, or tiles that share a layout, in a row about several.

    Attributes:
        tiles: their names.
        offset: element offset over x0, x1, ... in the coordinates of the largest, in the smallest elements.
        bytes: of one stage.
        base_bytes: where its first stage begins.
        stages: how many copies there are.
        stage_bytes: from one copy to the next, of the largest.
        wavefronts, excess: of its accesses.
    """

    tiles: tuple[str, ...]
    offset: str
    bytes: int
    base_bytes: int
    stages: int
    stage_bytes: int
    wavefronts: int | float
    excess: int | float


class Row(Struct, frozen=True):
    """One family's best layout. Without one (`status`, `reason`) the figures are null.

    Attributes:
        family: short name, stable.
        title: the same for people.
        status: optimal (proved best in its family), feasible (found, not proved), infeasible, unknown
            (out of time) or given (a layout that was not searched for).
        reason: why there is no layout, or what is left unproved.
        offset: element offset over x0, x1, ...
        label: what the layout is called, such as Swizzle<3,3,3>; may be empty.
        bytes: last offset plus element size.
        declared_bytes: of an array declared with every pitch in full.
        alignment_bytes: of the base.
        wavefronts, ideal, excess: summed over all warp instructions, weights not applied.
        ways: of the worst conflict.
        weighted_wavefronts: with the weights.
        index_ops: `instructions` under its older name.
        blocks_per_sm: resident blocks of the multiprocessor, by shared memory, threads and block slots.
        blocks_by_shared_memory: by shared memory alone.
        limited_by: what decides blocks_per_sm.
        pipeline_stages: copies of the tile that fit in one block.
        instructions: integer instructions of the index code of all accesses, one pass of a thread.
        by_hardware: boxes, matrix instructions and bulk copies that reach the tile once, where the hardware
            dictates its layout.
        cycles: estimated, of one pass of a block through all accesses, weights applied.
        time: estimated cycles of a multiprocessor for one such pass, as many blocks running as fit.
        measured: cycles of one pass of a block on the GPU of this machine, where it was run.
        measured_together: of a multiprocessor there for one such pass, as many blocks running as fit.
        counted_wavefronts, counted_bank_conflicts: what the profiler counted there of such a pass, in its
            own unit: copies past the registers are left out.
        counted_as_predicted: whether all its counters are what the conflict engine predicts.
        edit: what to change in the layout in use, such as "change 129 to 132", where the row is that edit.
        seconds: time that the row took.
        pareto: no other row is better in wavefronts or bytes and as good in the other.
        accesses: one by one.
        tiles: of a row about several tiles, one by one: figures are then of all of them, `offset` says each
            tile's, and `pipeline_stages` are of all that have more than one stage, else of all.
    """

    family: str
    title: str
    status: str
    reason: str = ""
    offset: str | None = None
    label: str = ""
    bytes: int | None = None
    declared_bytes: int | None = None
    alignment_bytes: int | None = None
    wavefronts: int | float | None = None
    ideal: int | float | None = None
    excess: int | float | None = None
    ways: int | None = None
    weighted_wavefronts: float | None = None
    index_ops: int | None = None
    blocks_per_sm: int | None = None
    blocks_by_shared_memory: int | None = None
    limited_by: str | None = None
    pipeline_stages: int | None = None
    by_hardware: int | None = None
    instructions: int | None = None
    cycles: float | None = None
    time: float | None = None
    measured: float | None = None
    measured_together: float | None = None
    counted_wavefronts: int | None = None
    counted_bank_conflicts: int | None = None
    counted_as_predicted: bool | None = None
    edit: str | None = None
    seconds: float = 0.0
    pareto: bool = False
    accesses: tuple[RowAccess, ...] = ()
    tiles: tuple[TileOfRow, ...] | UnsetType = UNSET

    @property
    def rank(self) -> tuple[float, ...]:
        """Sorting key of rows with a layout: wavefronts, bytes, then what the hardware does by itself."""
        return EXCESS_FIRST.key(self.weighted_wavefronts or 0.0, self.bytes or 0, self.by_hardware or 0)


def room(fits: Occupancy | None) -> dict[str, Any]:
    """The fields of a row about what fits on a multiprocessor; none where its limits are unknown."""
    if fits is None:
        return {}
    blocks = {"blocks_per_sm": fits.blocks, "blocks_by_shared_memory": fits.by_shared_memory}
    return {**blocks, "limited_by": fits.limited_by, "pipeline_stages": fits.stages}


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
