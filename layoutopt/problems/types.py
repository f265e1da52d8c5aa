"""What is asked: a tile and its accesses (`Problem`), or a block of several tiles (`Block`).

The problem types are also the problem file: `msgspec` decodes JSON straight into them, and the
published JSON Schema is generated from them.
"""

import math
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.operations import is_direct_load
from layoutopt.layout.families import NAMES
from layoutopt.problems.hardware_use import HardwareUse
from layoutopt.problems.objective import First, Objective

SCHEMA: Final = "layoutopt.problem/1"

VECTOR_TYPES: Final = {  # of CUDA
    "char2": 2, "uchar2": 2, "char4": 4, "uchar4": 4, "short2": 4, "ushort2": 4, "short4": 8, "ushort4": 8,
    "int2": 8, "uint2": 8, "int3": 12, "uint3": 12, "int4": 16, "uint4": 16,
    "float2": 8, "float3": 12, "float4": 16, "double2": 16,
}  # fmt: skip

ELEMENT_BYTES: Final = {
    "i8": 1, "u8": 1, "b8": 1, "f8": 1, "e4m3": 1, "e5m2": 1,
    "i16": 2, "u16": 2, "b16": 2, "f16": 2, "bf16": 2,
    "i32": 4, "u32": 4, "b32": 4, "f32": 4, "tf32": 4, "f16x2": 4, "bf16x2": 4,
    "i64": 8, "u64": 8, "b64": 8, "f64": 8, "c64": 8,
    "b128": 16, "c128": 16,
    **VECTOR_TYPES,
}  # fmt: skip

# Elements of less than a byte, packed along the last dimension, the first in the lowest bits.
PACKED_BITS: Final = {
    "i4": 4, "u4": 4, "s4": 4, "b4": 4, "e2m1": 4,
    "i2": 2, "u2": 2, "s2": 2, "b2": 2,
    "b1": 1, "u1": 1,
}  # fmt: skip

FAMILIES: Final = NAMES

Positive = Annotated[int, Meta(ge=1)]
# The end is written out: `$` alone also stands before a last newline.
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")]
Expression = Annotated[str, Meta(min_length=1)]
Identifier = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?!\n)$")]
TypeName = Annotated[
    str, Meta(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*(?!\n)$")
]
if TYPE_CHECKING:
    Family = str
else:
    Family = Literal[FAMILIES]


class Structure(Struct, frozen=True, forbid_unknown_fields=True):
    """An element that is no named type, such as a structure of three floats."""

    bytes: Annotated[int, Meta(ge=1, le=16, description="Size of the element in bytes")]
    align: Annotated[
        Literal[1, 2, 4, 8, 16] | None,
        Meta(description="Every element starts at a multiple of this, which divides the size"),
    ] = None
    type: Annotated[
        TypeName | None,
        Meta(description="What the kernel calls it, such as my::Particle: the code does, too"),
    ] = None


class Tile(Struct, frozen=True, forbid_unknown_fields=True):
    """What is staged in shared memory."""

    shape: Annotated[
        tuple[Positive, ...],
        Meta(min_length=1, max_length=8, description="Extent of each dimension, in elements"),
    ]
    element: Annotated[
        str | Structure,
        Meta(description='A named type such as f16 or float4, or {"bytes": n, "align": m, "type": "Name"}'),
    ]

    @property
    def element_bits(self) -> int:
        """Size of one element in bits."""
        if isinstance(self.element, str) and self.element in PACKED_BITS:
            return PACKED_BITS[self.element]
        return 8 * self.element_bytes

    @property
    def packed(self) -> int:
        """Elements that share a byte; 1 for elements of whole bytes."""
        return max(1, 8 // self.element_bits)

    @property
    def element_bytes(self) -> int:
        """Size of one element in bytes.

        Raises:
            ProblemFileError: elements of less than a byte have none; `storage` has.
        """
        if isinstance(self.element, Structure):
            return self.element.bytes
        if self.element in PACKED_BITS:
            raise ProblemFileError(
                "tile.element",
                f"{self.element} elements share bytes, which is not supported here",
                of_file=True,
            )
        return ELEMENT_BYTES[self.element]

    @property
    def element_alignment(self) -> int:
        """Every layout starts every element at a multiple of this many bytes; a power of two, at most 16.

        What the file says, else the largest power of two that divides the size (of a named type: its size).
        """
        if isinstance(self.element, Structure) and self.element.align is not None:
            return self.element.align
        size = self.storage.element_bytes
        return size & -size

    @property
    def storage(self) -> "Tile":
        """The tile as memory sees it: where elements share a byte, those bytes are its elements."""
        if self.packed == 1:
            return self
        return Tile((*self.shape[:-1], self.shape[-1] // self.packed), "b8")

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes that the elements themselves need: no layout is smaller."""
        return self.elements * self.element_bits // 8


Order = Literal["row", "column"] | tuple[int, ...]


class GlobalSide(Struct, frozen=True, forbid_unknown_fields=True):
    """What threads that choose their pieces keep to in global memory."""

    contiguous: Annotated[
        Positive | None, Meta(description="Consecutive threads cover whole segments of so many bytes")
    ] = None
    order: Annotated[
        Order | None,
        Meta(description="row: the last dimension is contiguous there; column: the first; or slowest first"),
    ] = None
    bytes: Annotated[
        Literal[1, 2, 4, 8, 16] | None,
        Meta(description="Bytes of one global access; a thread moves them in several accesses to the tile"),
    ] = None


class Access(Struct, frozen=True, forbid_unknown_fields=True, rename={"loops": "for", "global_": "global"}):
    """One instruction in the source, executed by every warp in every iteration of its loops."""

    name: Name
    op: Annotated[str, Meta(description="load, store, ldmatrix.x4, cp.async, ... or a PTX spelling")]
    index: Annotated[
        tuple[Expression | int, ...],
        Meta(
            description="Coordinates of the first element that a lane touches, "
            "over tid, lane, warp and the loop variables"
        ),
    ]
    bytes: Annotated[
        int | Annotated[tuple[int, ...], Meta(min_length=1)] | None,
        Meta(
            description="Bytes at each lane's address; may be left out where the op says it. "
            "A list lets the solver choose: narrower ones are executed more often"
        ),
    ] = None
    loops: Annotated[dict[Identifier, Positive], Meta(description="Loop variables and their trip counts")] = (
        field(default_factory=dict)
    )
    any: Annotated[
        dict[Identifier, Positive],
        Meta(
            description="Variables whose values are known only at run time, one for each lane, and how many"
        ),
    ] = field(default_factory=dict)
    any_is: Annotated[
        Literal["worst", "uniform"],
        Meta(description="Count the worst over all values, or the expectation of uniform, independent ones"),
    ] = "worst"
    where: Annotated[Expression | None, Meta(description="Lanes for which this is 0 do not take part")] = None
    weight: Annotated[
        int | float | Expression,
        Meta(
            description="How often the access runs per tile: a number, "
            "or an expression over the loop variables"
        ),
    ] = 1
    lanes: Annotated[
        Literal["free"] | None,
        Meta(description="free: only what is covered is fixed; which thread handles which piece is chosen"),
    ] = None
    values: Annotated[
        Literal["free"] | None,
        Meta(description="free: in which of its iterations a thread handles which of its pieces is chosen"),
    ] = None
    instructions: Annotated[
        Literal["free"] | tuple[Identifier, ...] | None,
        Meta(
            description="free: only which elements each thread moves over all its iterations is fixed; which "
            "of them go together, in how many bytes and by which instruction is chosen. A list of loops: "
            "those of one iteration of the other loops"
        ),
    ] = None
    vector: Annotated[
        tuple[tuple[int, ...], ...] | None,
        Meta(
            description="Where the elements of one access lie: what each bit of an element's number in it "
            "adds to the coordinates; [[0, 1], [0, 2]] and so on, along the last dimension, if left out"
        ),
    ] = None
    global_: Annotated[GlobalSide | None, Meta(description="What free lanes keep to in global memory")] = None
    order: Annotated[Order | None, Meta(description="The same as order in global")] = None
    notes: str | None = None
    hardware: Annotated[
        HardwareUse | None,
        Meta(description="Written by `tma.load`, `wgmma.A` and the like, which no lane executes"),
    ] = None

    @property
    def is_free(self) -> bool:
        """Whether something about its lanes is chosen."""
        return self.lanes is not None or self.values is not None or self.instructions is not None

    @property
    def single_width(self) -> int | None:
        """The width in bytes, None where the op says it.

        Raises:
            ProblemFileError: the file leaves a choice of widths.
        """
        if isinstance(self.bytes, tuple):
            raise ProblemFileError(f"access {self.name!r}, bytes", "a choice of widths is not supported here")
        return self.bytes


class NamedAccess(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every access has that `layoutopt.accesses.named_accesses` writes out as an `Access`."""

    name: Name
    weight: Annotated[int | float | Expression, Meta(description="As for other accesses")] = 1
    notes: str | None = None

    def ordinary(self, **fields: Any) -> Access:
        """An ordinary access with these fields, and with what else this one says of an access."""
        own = {field: getattr(self, field) for field in Access.__struct_fields__ if hasattr(self, field)}
        return Access(**own | fields)


class Constraints(Struct, frozen=True, forbid_unknown_fields=True):
    """What a layout must obey."""

    families: (
        Annotated[tuple[Family, ...], Meta(min_length=1, description="Families that may be used")] | None
    ) = None
    max_bytes: Annotated[Positive | None, Meta(description="Shared memory available")] = None
    alignment_bytes: Annotated[
        Positive | None, Meta(description="Alignment that the base address has; more may not be needed")
    ] = None
    pitch_multiple_bytes: Annotated[
        Positive | None, Meta(description="Every stride but the innermost is a multiple of this")
    ] = None
    order: Annotated[tuple[int, ...] | None, Meta(description="Dimensions from slowest to fastest")] = None
    minimise: Annotated[
        First, Meta(description="What comes first; the others follow as excess, bytes, instructions")
    ] = "excess"
    offset: Annotated[
        Expression | None,
        Meta(description="A layout already in use, to audit: element offset over x0, x1, ..."),
    ] = None

    @property
    def objective(self) -> Objective:
        """What is minimised, in which order."""
        return Objective(self.minimise)


class Published(Struct, frozen=True, forbid_unknown_fields=True):
    """The layout that a public kernel uses. Data: the solver does not look at it."""

    offset: Annotated[Expression, Meta(description="Element offset over x0, x1, ...")]
    bytes: Annotated[Positive, Meta(description="Bytes as declared in the source")]
    kind: str = ""
    source: str = ""


class KnownOptimum(Struct, frozen=True, forbid_unknown_fields=True):
    """The fewest excess wavefronts, then the fewest bytes, known for the problem."""

    excess: Annotated[int, Meta(ge=0)]
    bytes: Positive


class Resources(Struct, frozen=True, forbid_unknown_fields=True):
    """What else a block of the kernel takes, which decides how many fit on a multiprocessor."""

    other_shared_bytes: Annotated[
        int, Meta(ge=0, le=1 << 20, description="Shared memory of the block beside the tile or tiles")
    ] = 0
    registers: Annotated[
        Positive | None, Meta(description="Registers of a thread, as the compiler reports them")
    ] = None
    cluster: Annotated[
        Positive | None,
        Meta(description="Blocks of a thread block cluster, 1 to 16; more than 8 are not portable"),
    ] = None


class Problem(Struct, frozen=True, forbid_unknown_fields=True, rename={"schema_": "schema"}):
    """A tile and every access to it; `layoutopt.problem` makes one of plain data and checks it.

    Attributes:
        name: what reports and code call it.
        tile: shape and type of element.
        threads: of the block.
        accesses: every instruction that reads or writes the tile.
        target: the GPU, such as sm_90.
        layout: constraints of the layout, and what comes first.
        block: what else a block of the kernel takes.
        notes: where it comes from.
        published: the layout that a public kernel uses.
        known_optimum: the least excess, and the bytes at it.
    """

    name: Name
    tile: Tile
    threads: Annotated[int, Meta(ge=1, le=1024, description="Threads of the block")]
    accesses: Annotated[tuple[Access, ...], Meta(min_length=1, max_length=256)]
    schema_: Literal["layoutopt.problem/1"] = SCHEMA
    target: Annotated[str, Meta(description="The GPU, such as sm_90")] = "sm_90"
    layout: Constraints = Constraints()
    block: Resources = Resources()
    notes: str | None = None
    published: Published | None = None
    known_optimum: KnownOptimum | None = None

    @property
    def each(self) -> tuple["Problem", ...]:
        """The problem of every tile, which is this one; as for a block of several."""
        return (self,)

    @property
    def is_dictated(self) -> bool:
        """Whether the hardware knows only a few layouts of the tile, so that families are not searched."""
        return any(a.hardware is not None or is_direct_load(a.op) for a in self.accesses)

    @property
    def is_free(self) -> bool:
        """Whether some access leaves its lanes, values or instructions open."""
        return any(access.is_free for access in self.accesses)

    @property
    def chooses_instructions(self) -> bool:
        """Whether some access leaves its instructions open."""
        return any(access.instructions is not None for access in self.accesses)

    def _repr_html_(self) -> str:
        """The tile in a line, and a table of its accesses."""
        from layoutopt.ground.escape import table, titled

        tile = self.tile
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
            for access in self.accesses
        ]
        head = f"{shape} {element}, {tile.bytes:,} bytes, {self.threads} threads, {self.target}"
        return titled(self.name, head) + table(("access", "op", "index", "for", "where"), rows)


class NamedTile(Tile, frozen=True, kw_only=True):
    """One of several tiles."""

    name: Identifier
    stages: Annotated[
        int, Meta(ge=1, le=64, description="Copies of the tile, one after the other (pipeline stages)")
    ] = 1
    layout: Annotated[
        Constraints, Meta(description="What this tile's layout must obey; max_bytes is for one stage")
    ] = Constraints()
    published: Published | None = None
    base_bytes: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 30)] | None,
        Meta(description="Where the kernel's first stage begins, for check; data"),
    ] = None
    stage_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 30)] | None,
        Meta(description="From one stage of the kernel to the next, for check; data"),
    ] = None


class TileAccess(Access, frozen=True, kw_only=True):
    """An access to one of several tiles."""

    tile: Annotated[Identifier, Meta(description="Name of the tile")]


class Block(Struct, frozen=True, forbid_unknown_fields=True, rename={"schema_": "schema"}):
    """Several tiles of one block of threads and every access to them; `Problem` is a block of one tile.

    Attributes:
        name: what reports and code call it.
        tiles: name, shape, type of element and stages of each.
        threads: of the block.
        accesses: every instruction, with the name of its tile.
        target: the GPU, such as sm_90.
        layout: constraints of every layout; `max_bytes` is for all tiles together.
        block: what else a block of the kernel takes.
        overlay: tiles that lie in the same bytes at different times, a list for each time.
        same_layout: whether the tiles of the overlay share one layout, or lists of tiles that do.
        notes: where it comes from.
        known_optimum: the least excess, and the bytes at it.
    """

    name: Name
    tiles: Annotated[tuple[NamedTile, ...], Meta(min_length=1, max_length=8)]
    threads: Annotated[int, Meta(ge=1, le=1024, description="Threads of the block")]
    accesses: Annotated[tuple[TileAccess, ...], Meta(min_length=1, max_length=256)]
    schema_: Literal["layoutopt.problem/1"] = SCHEMA
    target: Annotated[str, Meta(description="The GPU, such as sm_90")] = "sm_90"
    layout: Annotated[
        Constraints,
        Meta(description="max_bytes is for all tiles together; the rest holds for each, beside its own"),
    ] = Constraints()
    block: Resources = Resources()
    overlay: Annotated[
        tuple[Annotated[tuple[Identifier, ...], Meta(min_length=1)], ...],
        Meta(
            description="The same bytes at different times: for each time, the tiles that lie in them, "
            "side by side. Tiles that are not named keep their own bytes all the time"
        ),
    ] = ()
    same_layout: Annotated[
        bool | tuple[Annotated[tuple[Identifier, ...], Meta(min_length=2)], ...],
        Meta(
            description="The tiles of the overlay, one at each time, share one layout; or the tiles of each "
            "list, side by side. It is one function of the byte that an element has in row-major order"
        ),
    ] = False
    notes: str | None = None
    known_optimum: KnownOptimum | None = None

    @property
    def each(self) -> tuple[Problem, ...]:
        """The problem of every tile."""
        return tuple(map(self.problem, self.tiles))

    def problem(self, tile: NamedTile) -> Problem:
        """One tile and its accesses as a problem of its own, the common budget left out."""
        own, common = tile.layout, self.layout
        accesses = tuple(access for access in self.accesses if access.tile == tile.name)
        if any(a.hardware is not None or is_direct_load(a.op) for a in accesses):
            common = Constraints(alignment_bytes=common.alignment_bytes)  # the rest is not for such a tile
        families = own.families or common.families
        if own.families and common.families:
            families = tuple(f for f in own.families if f in common.families)
        pitches = _given(own.pitch_multiple_bytes, common.pitch_multiple_bytes)
        layout = replace(
            own,
            families=families,
            minimise=self.layout.minimise,
            alignment_bytes=min(_given(own.alignment_bytes, common.alignment_bytes), default=None),
            pitch_multiple_bytes=math.lcm(*pitches) if pitches else None,
        )
        return Problem(
            name=f"{self.name} {tile.name}",
            tile=Tile(tile.shape, tile.element),
            threads=self.threads,
            accesses=tuple(
                Access(*(getattr(access, field) for field in Access.__struct_fields__)) for access in accesses
            ),
            target=self.target,
            layout=layout,
            block=self.block,
            published=tile.published,
        )


def _given(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]


P = TypeVar("P", bound=Problem | Block)


def constrained(problem: P, **constraints: Any) -> P:
    """The same tiles and accesses under other constraints on the layout, by field of `Constraints`."""
    return replace(problem, layout=replace(problem.layout, **constraints))
