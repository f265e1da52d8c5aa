"""What `compare` answers: a row for each family, and which to take."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from layoutopt.ground.json_data import Versioned
from layoutopt.hardware.occupancy import Occupancy
from layoutopt.problems.objective import EXCESS_FIRST


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
