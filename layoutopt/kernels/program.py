"""A kernel as steps that do not depend on the instruction set.

A reader of machine code turns every instruction into a `Step`: which cells (registers, predicates) it reads
and writes, and what it does, one of the actions below. Everything else here works on steps alone: what
matters (`relevance`), execution (`machine`), counting.

Cells are names. A name that begins with U is a uniform register, one value a warp, written whatever the
active lanes are. Names that begin with `$` are set before the first step, and but for `$barrier` never
written: `$tid.x`, `$ntid.x`, `$ctaid.x`, `$nctaid.x` (and y, z), `$laneid`, `$lanemask.lt` (and eq, le, gt,
ge), `$warpid`, `$ctarank` (of the block in its cluster), and `$c0.528`, the word at byte 528 of constant bank
0 (64-bit operands are two of them). Names that begin with B hold the lanes that will meet, as a mask: nobody,
before they are written.

Predicates are values of one bit. A step's guard applies to all that it does.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple, Self

from msgspec import Struct

from layoutopt.ground.escape import shown
from layoutopt.hardware.operations import Operation
from layoutopt.kernels.machine.values import Value, invert

Space = Literal["shared", "global", "local", "constant", "generic"]

# The high word of generic addresses of shared memory: one that no pointer to global memory has.
SHARED_WINDOW: Final = 0x7A00
LOCAL_WINDOW: Final = 0x7B00
# An address of shared memory has the rank of its block in the cluster above so many bits; ranks of so many.
CLUSTER_BITS: Final = 24
MOST_CLUSTER: Final = 16
# The most shared memory that a block of any GPU can have, and the part that the system keeps.
MOST_SHARED_BYTES: Final = (227 + 1) << 10
# Where launches put buffers in global memory, one after another.
GLOBAL_BASE: Final = 0x7F0000000000
GLOBAL_STEP: Final = 1 << 36
# Local memory of a thread: the stack pointer begins at its end.
STACK_BYTES: Final = 1 << 14


class Place(Struct, frozen=True):
    """A line of the source."""

    file: str
    line: int


def same(value: Value) -> Value:
    """What a cell has, as it is."""
    return value


def opposite(value: Value) -> Value:
    """What a predicate is not."""
    return invert(value, 1)


class Source(NamedTuple):
    """What an operand says: `value` out of the values of its cells; without cells, a constant."""

    cells: tuple[str, ...]
    value: Callable[..., Value]

    @classmethod
    def cell(cls, name: str) -> Self:
        """What a cell has."""
        return cls((name,), same)

    @property
    def negated(self) -> Self:
        """The predicate that holds where this one does not."""
        return self._replace(value=opposite if self.value is same else same)

    @classmethod
    def always(cls, value: Value) -> Self:
        """A constant."""
        return cls((), lambda: value)


def read_by(sources: Iterable[Source]) -> frozenset[str]:
    """The cells of operands."""
    return frozenset(cell for source in sources for cell in source.cells)


class Compute(Struct, frozen=True):
    """Results out of the sources: `function(*sources)` gives one value a destination."""

    function: Callable[..., tuple[Value, ...]]  # of the same lane's sources
    # Out of those of all active lanes (shuffles, votes, R2UR): `function(active, *sources)`; active is bool,
    # shape (warps, 32), sources broadcast to it
    across: bool = False
    # Of an approximation, the same with other errors: results of which those of the GPU lie between
    near: tuple[Callable[..., tuple[Value, ...]], ...] = ()


class Forget(Struct, frozen=True):
    """Results that are not modelled: the destinations become unknown."""

    why: str = ""  # what the step does, where totals are not certain; else empty
    # It may also touch shared memory or change the way: totals are not certain where it happens
    counts: bool = False
    fills: bool = False  # what shared memory of the block holds becomes unknown, too: a bulk copy
    # Where the values of a block are followed, what stands for the results: others wherever one of the
    # sources is another one. Of active lanes and sources, as `Compute.across`
    stand_in: Callable[..., tuple[Value, ...]] | None = None


class Memory(Struct, frozen=True):
    """An instruction that touches memory.

    The sources are the address (64 bits for global and generic memory, else 32), then what is stored, in
    units of `unit_bytes`; of a copy, the address it reads from, and whether it reads or writes zeros.
    Destinations take what is loaded, likewise.
    """

    # What it does; `copy` is cp.async, whose address is the shared one
    kind: Literal["load", "store", "atomic", "copy", "ldmatrix", "stmatrix"]
    space: Space  # which memory; of a copy, that which is written
    width_bytes: int  # at each lane's address
    signed: bool = False  # loads of less than a unit extend the sign
    # How the hardware serves it, for `layoutopt.engine.conflicts`; None where it is not counted
    operation: Operation | None = None
    # Of an atomic: the new content out of the old and the sources
    combine: Callable[..., Value] | None = None
    commutes: bool = False  # of an atomic: the order of its executions does not change what is left
    counted_times: int = 1  # how often the profiler counts each of its wavefronts; their conflicts once
    # Of a compare-and-swap in a loop of trying again (ATOMS.CAST): conflicts are not known, as lanes of one
    # word may be served together
    retried: bool = False
    # Of a generic atomic: its predicate says whether it was done, which in shared memory it never is
    asks: bool = False
    bank: int = 0  # of constant memory: which bank

    @property
    def unit_bytes(self) -> int:
        """Bytes of each source or destination; narrower values are extended."""
        return self.width_bytes if self.kind == "atomic" else 4

    @property
    def counter(self) -> str | None:
        """`ld`, `st`, `atom`: the profiler's total of wavefronts that it enters; None for none of them."""
        counters = self.operation.does.counters if self.operation is not None else None
        return counters[0].removeprefix("op_") if counters is not None and counters[0] is not None else None

    @property
    def executed(self) -> str | None:
        """Of the profiler's `inst_executed_op_shared_*`, the same; generic ones and matrices enter none."""
        return self.counter if self.space == "shared" and "matrix" not in self.kind else None


class Jump(Struct, frozen=True):
    """A branch: to a step (`target`) where all sources are 1, or to the address in the source."""

    target: int | None  # index of a step; None where the source says
    together: bool = False  # all active lanes jump if the guard and the sources hold in any of them
    # BRA.DIV lets all active lanes jump where those whose guard is true are not those of the mask in the
    # first source, BRA.CONV where they are
    mask: Literal["", "DIV", "CONV"] = ""
    call: bool = False  # what is there comes back to the next step
    # The steps that a jump through a table may go to; None for a return
    places: tuple[int, ...] | None = None

    @property
    def returns(self) -> bool:
        """Whether it goes back behind a call."""
        return self.target is None and self.places is None


class Exit(Struct, frozen=True):
    """The lanes end."""


class Reconverge(Struct, frozen=True):
    """The lanes wait for those of the mask in the source, and go on with them as one group."""

    leaves: bool = False  # instead, those who wait for them by the cell that is the source no longer do
    parts: bool = False  # lanes that have different masks go on apart, though all of them came


class Barrier(Struct, frozen=True):
    """Warps of a block wait for each other.

    The sources are the barrier's number, and perhaps that of threads; else all warps that live are to come.
    With `reduces` a predicate is the last one, and the cell `$barrier` takes what it is in all threads that
    come.
    """

    waits: bool = True  # False for those that only arrive
    # Whether it holds in any or all of them (OR, AND), or in how many (POPC); empty for nothing
    reduces: Literal["", "OR", "AND", "POPC"] = ""


Action = Compute | Forget | Memory | Jump | Exit | Reconverge | Barrier


class Step(Struct, frozen=True):
    """One instruction."""

    address: int  # in the code, as listings print it
    text: str  # as listings print it
    action: Action  # what it does
    sources: tuple[Source, ...] = ()  # what it reads
    dests: tuple[str, ...] = ()  # cells
    guard: Source | None = None  # a predicate that lets it happen; None for always
    place: Place | None = None  # line of the source, where known

    @property
    def cells(self) -> frozenset[str]:
        """The cells that it reads."""
        return read_by((*self.sources, *([self.guard] if self.guard is not None else [])))

    @property
    def named(self) -> str:
        """The step, for people."""
        place = f" ({self.place.file}:{self.place.line})" if self.place is not None else ""
        words = [word for word in self.text.split() if not word.startswith("@")]
        return f"{words[0] if words else '?'} at 0x{self.address:x}{place}"


class Parameter(Struct, frozen=True):
    """One parameter of a kernel."""

    offset: int  # in bytes, from the first one
    size: int  # in bytes
    name: str = ""  # where known, else empty
    pointer: bool = False  # whether somebody says that it is a pointer
    # It is one value; else it is 8 bytes that are read together, and may be two values of 4
    whole: bool = True
    type: str = ""  # as the C++ name or the PTX says it, where known, else empty

    @property
    def of_type(self) -> str:
        """The type, in brackets behind a blank, for messages; empty where it is not known."""
        return f" ({shown(self.type.lstrip('.'))})" if self.type else ""

    @property
    def may_point(self) -> bool:
        """Whether an address fits it."""
        return self.size == 8 and self.type not in ("double", ".f64")


class Array(Struct, frozen=True):
    """A declared array in shared memory: bytes [start, start + size) of the window."""

    name: str  # of the source
    start: int  # first byte, as addresses count
    size: int  # in bytes
    symbol: str = ""  # of the PTX, where known


class Program(Struct, frozen=True, kw_only=True):
    """A kernel that can be launched."""

    name: str  # as the binary has it
    title: str  # demangled
    target: str  # of `hardware.devices`, such as `sm_90`
    steps: tuple[Step, ...]  # in the order of their addresses; jumps go to indices
    parameters: tuple[Parameter, ...] | None = None  # in order; None where the file does not say
    parameter_base: int = 0  # where the first one lies in constant bank 0
    constants: Mapping[int, bytes] = {}  # initial contents of the constant banks, by number
    # First byte and size of what the host fills of them, by number
    unset: Mapping[int, tuple[tuple[int, int], ...]] = {}
    static_bytes: int | None = None  # end of static shared memory, where dynamic begins; None where not known
    arrays: tuple[Array, ...] = ()  # declared in shared memory, where known
    registers: int | None = None  # of a thread, where known
    cluster: tuple[int, int, int] | None = None  # blocks of a cluster along x, y, z, where compiled for it

    @property
    def in_clusters(self) -> bool:
        """Whether its blocks may be those of clusters: it is compiled for them, or waits for their blocks."""
        return self.cluster is not None or any("UCGABAR" in step.text for step in self.steps)

    def shared_end(self, dynamic_bytes: int) -> int:
        """Bytes of the shared window that a block of a launch may use."""
        return MOST_SHARED_BYTES if self.static_bytes is None else self.static_bytes + dynamic_bytes
