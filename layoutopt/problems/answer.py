"""What is answered: a status, a layout, what each access costs and what is proved."""

import enum
from typing import Annotated, Any, Final, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct
from msgspec.structs import replace

from layoutopt.errors import LayoutError, MachineError
from layoutopt.ground.json_data import Versioned
from layoutopt.layout.layout import Layout
from layoutopt.problems.types import Name

Method = Literal["auto", "model"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)

RESULT_SCHEMA: Final = "layoutopt.result/1"
ARRANGEMENT_SCHEMA: Final = "layoutopt.arrangement/1"
# The scope of what holds for every placement of the elements that keeps their alignment and every access
# whole and aligned.
EVERY_LAYOUT: Final = "every layout"


class Status(enum.StrEnum):
    """How much a result claims.

    optimal: excess and bytes are proved, in the scope that the proof names.
    feasible: found and verified, not proved.
    infeasible: proved that the constraints cannot be met.
    unknown: the limit came before an answer.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class TensorMap(Struct, frozen=True, omit_defaults=True, tag="tensor map", tag_field="kind"):
    """How TMA reaches a tile: the arguments of cuTensorMapEncodeTiled that the layout decides.

    Attributes:
        mode: `none`, `32B`, `64B` or `128B`.
        swizzle, code: CUtensorMapSwizzle, as a name and as a number.
        data_type: CUtensorMapDataType.
        boxes: copies that move the tile.
        box: extents of one, in elements of the tile, in its order of dimensions.
        box_dim: the same as boxDim, innermost first, in elements of the data type.
        order: dimensions from slowest to fastest.
        box_offsets: byte offset of every box, row-major over the dimensions in `order`.
        alignment_bytes: of the tile's base.
        multicast: blocks of the cluster that copy as many of the boxes each, to all of them.
    """

    mode: str
    swizzle: str
    code: int
    data_type: str
    boxes: int
    box: tuple[int, ...]
    box_dim: tuple[int, ...]
    order: tuple[int, ...]
    box_offsets: tuple[int, ...]
    alignment_bytes: int
    multicast: int = 1

    @property
    def instructions(self) -> int:
        """Instructions that move the tile."""
        return self.boxes


class MatrixDescriptor(Struct, frozen=True, tag="matrix descriptor", tag_field="kind"):
    """How wgmma or tcgen05 reads a tile: its matrix descriptor but for the start address.

    Attributes:
        mode: `none`, `32B`, `64B` or `128B`.
        code: the field of the swizzle.
        major: `K` or `MN`, whichever is contiguous.
        k_dim: the tile's dimension that is K.
        instructions: that read the tile once; of tcgen05, of one CTA.
        shape: of what one reads: rows (M or N), then elements of K.
        leading_byte_offset, stride_byte_offset: the fields, before they are divided by 16.
        base_offset: the field; 0, as every pattern begins at its alignment.
        descriptor: the 64 bits in hexadecimal, start address 0.
        starts: byte offset of what each instruction reads: row-major over matrices, rows and K.
        alignment_bytes: of the tile's base.
    """

    mode: str
    code: int
    major: str
    k_dim: int
    instructions: int
    shape: tuple[int, int]
    leading_byte_offset: int
    stride_byte_offset: int
    base_offset: int
    descriptor: str
    starts: tuple[int, ...]
    alignment_bytes: int


class BulkCopy(Struct, frozen=True, tag="bulk copy", tag_field="kind"):
    """How cp.async.bulk reaches a tile.

    Attributes:
        bytes: of one copy.
        copies: that move the tile.
        starts: byte offset of each, row-major.
        alignment_bytes: of the tile's base.
    """

    bytes: int
    copies: int
    starts: tuple[int, ...]
    alignment_bytes: int

    @property
    def instructions(self) -> int:
        """Instructions that move the tile."""
        return self.copies


Descriptor = TensorMap | MatrixDescriptor | BulkCopy


class AccessReport(Struct, frozen=True, omit_defaults=True, rename={"loops": "for"}):
    """What one access costs, summed over its warp instructions (weights not applied).

    Attributes:
        any_is: "worst" or "uniform" where lanes choose at run time: the counts are then the worst
            over all values, or expectations.
        bytes: the width chosen, where the file leaves the choice.
        descriptor: how the hardware does it by itself, where no lane executes it.
        index: coordinates over tid and the loop variables, chosen where the file leaves lanes or values free.
        loops: the loop variables of `index` and their trip counts.
        where: which lanes take part in `index`; None for all.
        vector: where the elements of one access lie, where the file leaves the instructions free and that is
            not along the last dimension.
    """

    name: Name
    op: Name
    wavefronts: int | float
    ideal: int | float
    excess: int | float
    bank_conflicts: int | float
    any_is: str | None = None
    bytes: int | None = None
    descriptor: Descriptor | None = None
    index: tuple[str, ...] | None = None
    loops: dict[str, int] | None = None
    where: str | None = None
    vector: tuple[tuple[int, ...], ...] | None = None


class Bound(Struct, frozen=True):
    """A proved lower bound and the set of layouts it holds for."""

    lower_bound: int | float
    scope: Annotated[str, Meta(max_length=1000)]

    @property
    def everywhere(self) -> bool:
        """Whether it holds for every layout, and not for some families only."""
        return self.scope == EVERY_LAYOUT


class IndexCost(Struct, frozen=True):
    """The third objective: `value` in the unit `measure`, least possible where `proved`."""

    value: int
    proved: bool
    measure: str


class Proof(Struct, frozen=True):
    """What is proved.

    Attributes:
        excess: of all accesses, weights not applied: a bound on the result's `excess`.
        bytes: of every layout with this (weighted) excess.
        index_cost: the third objective.
        weighted_excess: the first objective, where accesses have weights; else it is `excess`.
        every_layout: what holds of the (weighted) excess of every layout, where `excess` says more
            but of some families only.
        evidence: what a bound on every layout's excess rests on; empty for a bound of 0 and for bounds on
            some families only.
        wavefronts: of all accesses, weights applied, whatever the layout and the instructions are, where the
            file leaves instructions free; the other bounds are of those that were chosen.
    """

    excess: Bound
    bytes: Bound
    index_cost: IndexCost | None = None
    weighted_excess: Bound | None = None
    every_layout: Bound | None = None
    evidence: str = ""
    wavefronts: Bound | None = None

    @property
    def objective(self) -> Bound:
        """What is proved of the first objective: the weighted excess, which is the excess without weights."""
        return self.weighted_excess or self.excess


class Estimate(Struct, frozen=True):
    """What a layout takes.

    Attributes:
        cycles: of one pass of a block through all accesses, weights applied.
        instructions: integer instructions of the index code, all accesses, one pass of a thread.
        blocks_per_sm: blocks that fit on a multiprocessor; None where the chip's limits are not known.
        time: cycles of a multiprocessor for one pass of one block, where as many run as fit.
        borrowed: the device whose measurements were used, where the problem's has none; else None.
    """

    cycles: float
    instructions: int
    blocks_per_sm: int | None
    time: float
    borrowed: str | None = None


class FasterLayout(Struct, frozen=True):
    """A layout that is estimated faster than the answer, which costs more wavefronts or bytes.

    Attributes:
        offset: element offset over x0, x1, ...
        bytes: to the end of the last element.
        cycles: estimated, of one pass of a block.
        text: what it costs and saves, in one sentence.
    """

    offset: str
    bytes: int
    cycles: float
    text: str


class ModelGrowth(Struct, frozen=True):
    """What it took one model to decide pads, order and XOR masks.

    Attributes:
        rounds: how often it was solved.
        written_out: linearisations whose constraints it had in the end; all others it knew by their bytes.
        rejected: proposals that the conflict engine did not confirm, or that needed writing out first.
        variables: of the last round.
        constraints: of the last round.
        batches: models asked for the least excess over some linearisations, where none reaches the floor.
        trees: linearisations of which a search tree was asked that.
        branches: of the solver, over all models.
        conflicts: of the solver.
        effort: of the solver, in its deterministic time.
        written: element offsets before the swizzle, of the first that were written out.
        proposed: the same, of the first proposals that were rejected.
    """

    rounds: int
    written_out: int
    rejected: int
    variables: int
    constraints: int
    batches: int = 0
    trees: int = 0
    branches: int = 0
    conflicts: int = 0
    effort: float = 0.0
    written: tuple[str, ...] = ()
    proposed: tuple[str, ...] = ()


class Result(Versioned, frozen=True):
    """The answer to a problem. Without a layout (infeasible, unknown) the layout's fields are None.

    Attributes:
        problem: its name.
        target: the GPU, such as sm_90.
        status: how much is claimed; "optimal" and "feasible" have a layout.
        proof: lower bounds, and for which layouts they hold.
        reason: why there is no layout, or what is left unproved; may be empty.
        layout: coordinates to byte offset, as a function and as data.
        family: the families that the layout uses, such as "pad" or "order+xor".
        offset: the layout as an element offset over x0, x1, ...
        bytes: to the end of the last element.
        declared_bytes: of an array declared with every pitch in full.
        alignment_bytes: that the base of the tile must have.
        excess: wavefronts above the ideal, over all warp instructions of all accesses.
        weighted_excess: the same, the accesses weighted as in the file.
        accesses: what each access costs.
        method: how layouts were sought, "auto" or "model".
        decided_by: what decided that nothing is better: "counting" (bounds, or every layout was counted),
            "tree" (branch and bound over masks refuted at least one), "cp-sat" (it did), "placement" (CP-SAT
            over all placements), "clique", "packing", "parity", or "hardware" (it dictates the layout); null
            where nothing did.
        estimate: of the time that the layout takes, where that was asked for.
        faster: a layout that is estimated faster on as many blocks, where one was found.
        model: what `method` "model" took, where that was asked.
        hints: what is read and never written, what is not estimated, and, from the command alone, what to
            write into the file for fewer wavefronts, in sentences.
    """

    problem: Name
    target: Name
    status: Status
    proof: Proof
    reason: str
    layout: Layout | None = None
    family: str | None = None
    offset: str | None = None
    bytes: int | None = None
    declared_bytes: int | None = None
    alignment_bytes: int | None = None
    excess: int | float | None = None
    weighted_excess: float | None = None
    accesses: tuple[AccessReport, ...] = ()
    method: Method = "auto"
    decided_by: str | None = None
    model: ModelGrowth | None = None
    estimate: Estimate | None = None
    faster: FasterLayout | None = None
    hints: tuple[str, ...] = ()
    schema_: Literal["layoutopt.result/1"] = RESULT_SCHEMA

    @property
    def has_layout(self) -> bool:
        """Whether there is one."""
        return self.layout is not None

    def unproved(self, reason: str) -> Self:
        """The same as an answer to a wider question, in which something better is not refuted."""
        status = Status.UNKNOWN if self.layout is None else Status.FEASIBLE
        return replace(self, status=status, reason=reason, decided_by=None)

    def table(self) -> npt.NDArray[np.int64]:
        """Byte offset of every element, int64, in the shape of the tile.

        Raises:
            LayoutError: there is no layout.
        """
        return self.require_layout().table()

    def to_sympy(self) -> Any:
        """The element offset as a sympy expression over the integers x0, x1, ...

        Bit operations are functions that come out as numbers once their arguments are numbers.

        Raises:
            LayoutError: there is no layout.
            MachineError: sympy, which the extra `sympy` brings, is not installed.
        """
        try:
            from layoutopt.expressions.sympy_form import as_sympy
        except ImportError as error:
            raise MachineError(f"to_sympy needs sympy ({error}): pip install 'layoutopt[sympy]'") from None
        from layoutopt.layout.formula import element_expression

        return as_sympy(element_expression(self.require_layout()))

    def require_layout(self) -> Layout:
        """The layout, which is there where the status is "optimal" or "feasible".

        Raises:
            LayoutError: there is none; it says why.
        """
        if self.layout is None:
            raise LayoutError(f"there is no layout: {self.status}, {self.reason}")
        return self.layout

    def _repr_html_(self) -> str:
        """The answer in a line, its proof, and what each access costs."""
        from layoutopt.ground.escape import table, titled, xml

        if self.layout is None:
            return titled(self.problem, f"{self.status}: {self.reason}")
        head = f"{self.status}: {self.excess} excess wavefronts, {self.bytes:,} bytes, {self.target}"
        proof = (
            f"excess at least {self.proof.excess.lower_bound} in {self.proof.excess.scope}; "
            f"bytes at least {self.proof.bytes.lower_bound:,} in {self.proof.bytes.scope}"
        )
        rows = [(a.name, a.op, str(a.wavefronts), str(a.ideal), str(a.bank_conflicts)) for a in self.accesses]
        return (
            titled(self.problem, head)
            + f"<div><code>offset = {xml(self.offset or '')}</code></div><div>{xml(proof)}</div>"
            + table(("access", "op", "wavefronts", "ideal", "bank conflicts"), rows)
        )


class Stages(Struct, frozen=True):
    """Where the copies of a tile lie.

    Attributes:
        tile: its name; empty of one by itself.
        base_bytes: where the first stage begins.
        stages: how many there are.
        stage_bytes: from one to the next.
    """

    tile: str
    base_bytes: int
    stages: int
    stage_bytes: int

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each stage begins."""
        return tuple(self.base_bytes + k * self.stage_bytes for k in range(self.stages))


class Place(Stages, frozen=True):
    """The same with the bytes of one stage."""

    bytes: int

    @property
    def end(self) -> int:
        """Where the last stage ends."""
        return self.starts[-1] + self.bytes


class PlacedTile(Struct, frozen=True):
    """A layout and where it lies.

    Attributes:
        tiles: names of the tiles that it serves: one, or all that share it. The layout is in the
            coordinates of the largest, in the smallest elements.
        base_bytes: where its first stage begins.
        stages: how many copies there are, of all tiles that lie side by side.
        stage_bytes: from one copy to the next, of the largest tile.
        result: the layout of one copy, with what is proved of it alone.
        bases_bytes: where the first stage of each of `tiles` begins.
        places: the same with the stages and bytes of each.
    """

    tiles: tuple[str, ...]
    base_bytes: int
    stages: int
    stage_bytes: int
    result: Result
    bases_bytes: tuple[int, ...]
    places: tuple[Place, ...]


class Arrangement(Versioned, frozen=True):
    """The answer to a problem of several tiles. Without layouts, `bytes` and what follows from them are None.

    Attributes:
        problem: its name.
        target: the GPU, such as sm_90.
        status: how much is claimed, as of a `Result`.
        reason: why there are no layouts, or what is left unproved; may be empty.
        weighted_excess: the excess, the accesses weighted as in the file.
        tiles: in the order of the file.
        bytes: of all tiles and stages, alignment included.
        max_bytes: the budget: the file's, else what a block of the GPU has; None where that is not known.
        alignment_bytes: of the base of the whole.
        excess: one pass over every access, one stage.
        proof: of all tiles together.
    """

    problem: str
    target: str
    status: Status
    proof: Proof
    reason: str
    tiles: tuple[PlacedTile, ...] = ()
    bytes: int | None = None
    max_bytes: int | None = None
    alignment_bytes: int | None = None
    excess: int | float | None = None
    weighted_excess: float | None = None
    schema_: Literal["layoutopt.arrangement/1"] = ARRANGEMENT_SCHEMA

    @property
    def has_layout(self) -> bool:
        """Whether every tile has one."""
        return bool(self.tiles)
