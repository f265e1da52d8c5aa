"""What hardware reads and writes in shared memory by itself: the rules, as data with sources.

TMA, the tensor cores and bulk copies cost no banks here, but know only a few layouts. `dictated.json` says
which. For rows of 64 bf16 and the mode `128B`, eight rows of eight 16-byte chunks:

    row 0   0 1 2 3 4 5 6 7
    row 1   1 0 3 2 5 4 7 6
    row 2   2 3 0 1 6 7 4 5      chunk c of row r lies at place c ^ (r % 8)
    ...
"""

from functools import cache
from typing import Final, Literal, TypeVar

from msgspec import Struct

from layoutopt.ground import json_data
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Confidence

Bytes = TypeVar("Bytes", int, IntArray)
ATOM_ROWS: Final = 8  # rows of a core matrix, and of the pattern of every swizzle


@cache
def _targets(xor: tuple[tuple[int, int], ...]) -> dict[int, int]:
    """Masks of the bits that are flipped, by the distance to their sources; `xor` pairs target and source."""
    masks: dict[int, int] = {}
    for target, source in xor:
        masks[source - target] = masks.get(source - target, 0) | 1 << target
    return masks


class Mode(Struct, frozen=True, forbid_unknown_fields=True):
    """One layout of one engine; the data file explains the fields."""

    name: str
    span_bytes: int | None  # of each row of a page, into which a tile is cut along rows; None for whole rows
    alignment_bytes: int  # of a pattern
    xor: tuple[tuple[int, int], ...]  # (target bit, source bit) of the byte address
    code: int  # in a tensor map or a matrix descriptor
    spelling: str
    source: str

    @property
    def engine(self) -> str:
        """Who reads it."""
        return self.name.partition(".")[0]

    @property
    def short(self) -> str:
        """The mode without its engine: `none`, `32B`, `64B` or `128B`."""
        return self.name.partition(".")[2]

    def flipped(self, address: Bytes) -> Bytes:
        """Byte addresses as the hardware moves them; twice is not at all, as no source bit is a target."""
        moved = address
        for distance, mask in _targets(self.xor).items():
            moved = moved ^ (address >> distance & mask)
        return moved


class Engine(Struct, frozen=True, forbid_unknown_fields=True):
    """What reads or writes by itself; the data file explains the fields."""

    name: str
    rule: str
    source: str
    confidence: Confidence
    chunk_bytes: int  # what swizzles move; rows are multiples of it
    base_bytes: int  # alignment of every box, matrix or row
    max_dims: int = 8
    max_box: int = 0  # elements of the map along each dimension of a box
    max_cluster: int = 1  # blocks that one copy can reach
    portable_cluster: int = 1
    k_bytes: int = 0  # what one matrix instruction reads along K
    rows: dict[str, tuple[int, ...]] = {}  # its M (operand A) or N (operand B)
    integer_rows: dict[str, tuple[int, ...]] = {}  # those of integers of 8 bits, where they are others
    mn_major_bytes: tuple[int, ...] = ()  # sizes of elements that may be contiguous along M or N
    element_bytes: tuple[int, ...] = ()  # sizes that there are
    fixed_bits: int = 0  # of the matrix descriptor
    without: tuple[str, ...] = ()


class Undeclared(Struct, frozen=True, forbid_unknown_fields=True):
    """What is not declared here, by a part of its name."""

    part: str
    why: str


class DictatedFile(Struct, frozen=True, forbid_unknown_fields=True, rename={"schema_": "schema"}):
    """The data file."""

    schema_: Literal["layoutopt.dictated/2"]
    about: str
    engines: tuple[Engine, ...]
    modes: tuple[Mode, ...]
    undeclared: tuple[Undeclared, ...] = ()


@cache
def _file() -> DictatedFile:
    return json_data.packaged("hardware", "dictated.json", DictatedFile)


def modes(engine: str | None = None) -> tuple[Mode, ...]:
    """Every mode, or those of one engine, in the order of the data."""
    return tuple(mode for mode in _file().modes if engine in (None, mode.engine))


def engines() -> tuple[Engine, ...]:
    """Whatever reads or writes by itself."""
    return _file().engines


def why_undeclared(op: str) -> str | None:
    """Why there is no such access by itself; None where nothing is known of the name."""
    return next((known.why for known in _file().undeclared if known.part in op.lower()), None)


def engine(name: str) -> Engine:
    """The rules of one engine: `tma`, `wgmma`, `tcgen05` or `cp.async.bulk`."""
    return next(known for known in engines() if known.name == name)
