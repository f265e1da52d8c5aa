"""The instructions that touch shared memory, under the names users write.

Short names (`load`, `ldmatrix.x4.trans`, `cp.async`), PTX spellings (`ld.shared.v4.b32`) and AMD's
(`ds_read_b128`) all become one `Operation`. A further instruction is a row of `SPELLINGS`, and one of
`KINDS` where it is served unlike all others; how a GPU serves it is a rule in `devices.json`.
"""

import difflib
import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from layoutopt.errors import ProblemFileError


class Kind(Struct, frozen=True):
    """What the instructions of one kind do, whichever GPU serves them."""

    short: str  # what a problem file calls it, where the width decides the rest
    returns: bool  # registers receive what shared memory held
    changes: bool  # shared memory receives something
    by_pointer: bool  # reached through a pointer in C; others take a 32-bit shared address
    copies: bool = False  # moves bytes from global memory past the registers, and is waited for
    adds: bool = False  # an atomic addition
    narrows: bool = False  # a wide access can be written as several narrow ones
    # The parts of the profiler's totals of wavefronts and of conflicts that it moves (measured on an H200,
    # tests/data/h200_counter_split.json): None for a part moves the total alone; None for both, it is not
    # counted
    counters: tuple[str | None, str] | None = None
    by_itself: bool = False  # no lane executes it: the hardware reads or writes in layouts of its own


# What the hardware serves by rules of its own.
KINDS: Final = {
    "load": Kind("load", True, False, True, narrows=True, counters=("op_ld", "op_ld")),
    "store": Kind("store", False, True, True, narrows=True, counters=("op_st", "op_st")),
    "ldmatrix": Kind("ldmatrix", True, False, False, counters=("op_ld", "op_ld")),
    "stmatrix": Kind("stmatrix", False, True, False, counters=("op_st", "op_st")),
    "atomic": Kind("atomic", True, True, True, adds=True, counters=("op_atom", "op_atom")),
    "reduce": Kind("reduce", False, True, True, adds=True, counters=("op_atom", "op_atom")),
    "load.lds": Kind("load.lds", False, True, True, copies=True),
    "load.tr": Kind("load.tr", True, False, True, counters=("op_ld", "op_ld")),
    "cp.async.ca": Kind("cp.async", False, True, False, True, narrows=True, counters=(None, "op_ldgsts")),
    "cp.async.cg": Kind("cp.async", False, True, False, True, narrows=True),
    # Without lanes: see layoutopt/hardware/dictated.py.
    "tma": Kind("tma.load", False, True, False, by_itself=True),
    "wgmma": Kind("wgmma.A", False, False, False, by_itself=True),
    "tcgen05": Kind("tcgen05.A", False, False, False, by_itself=True),
    "cp.async.bulk": Kind("cp.async.bulk", False, True, False, by_itself=True),
}

# What a problem file calls the operations without lanes, and who does them.
BY_ITSELF: Final[dict[str, Literal["tma", "wgmma", "tcgen05", "cp.async.bulk"]]] = {
    "tma.load": "tma", "tma.store": "tma", "wgmma.A": "wgmma", "wgmma.B": "wgmma",
    "tcgen05.A": "tcgen05", "tcgen05.B": "tcgen05", "cp.async.bulk": "cp.async.bulk",
}  # fmt: skip

STORE_WIDTHS: Final = (1, 2, 4, 8, 16)
# AMD's 96-bit loads; how stores of that width are served is not published.
LOAD_WIDTHS: Final = (1, 2, 4, 8, 12, 16)


class Operation(Struct, frozen=True):
    """One kind of instruction."""

    # One of `KINDS`, whose entry is `does`. On NVIDIA, reduce is the addition of the constant 1 without a
    # result (ATOMS.POPC.INC), the one atomic that serves lanes of one address together; any other is atomic,
    # result or not
    kind: str
    width_bytes: int  # bytes at each lane's address (16 for a matrix row)
    # 8x8 matrices moved by ldmatrix and stmatrix, which use the addresses of the first 8 * matrices lanes; 0
    # for other kinds
    matrices: int = 0
    transposed: bool = False  # the `.trans` form; it moves registers, not banks

    @property
    def does(self) -> Kind:
        """What all instructions of this kind do."""
        return KINDS[self.kind]

    @property
    def lane_bytes(self) -> int:
        """Bytes that each lane gives or receives: 4 of each matrix, else those at its address."""
        return 4 * self.matrices or self.width_bytes

    def address_lanes(self, lanes: int) -> int:
        """How many of a warp's `lanes`, from the first on, give an address: 8 a matrix, else all."""
        return 8 * self.matrices or lanes

    @property
    def text(self) -> str:
        """What problem files call it, where its bytes are said beside it."""
        if self.matrices:
            return f"{self.kind}.x{self.matrices}{'.trans' if self.transposed else ''}"
        return self.does.short

    @property
    def is_read(self) -> bool:
        """Whether the instruction only reads shared memory."""
        return not self.does.changes


class Written(NamedTuple):
    """What the spelling of an instruction says."""

    kind: str  # of the operation; `cp.async` for either of its two, which the width decides
    width_bytes: int | None  # None where the spelling leaves it to `bytes`
    widths: tuple[int, ...]  # those that there are
    matrices: int = 0  # of ldmatrix and stmatrix
    transposed: bool = False  # likewise: the `.trans` form


def _ptx(match: re.Match[str]) -> Written:
    width = int(match[3]) // 8 * int(match[2] or 1)
    return Written("load" if match[1] == "ld" else "store", width, STORE_WIDTHS)


def _ds(match: re.Match[str]) -> Written:
    reads = match[1] in ("read", "load")
    return Written("load" if reads else "store", int(match[2]) // 8, LOAD_WIDTHS if reads else STORE_WIDTHS)


def _direct(match: re.Match[str]) -> Written:
    """AMD's loads from global memory past the registers."""
    width = 4 * int(match[1] or match[2] or 1)
    return Written("load.lds", width, (width,))


def _transposing(match: re.Match[str]) -> Written:
    """AMD's transposing loads: b96 of 6-bit elements, b64 of 16, 8 and 4 bits."""
    width = int(match[1] or 64) // 8
    return Written("load.tr", width, (width,))


def _async(match: re.Match[str]) -> Written:
    kind = f"cp.async.{match[1]}" if match[1] else "cp.async"
    return Written(kind, int(match[2]) if match[2] else None, (16,) if match[1] == "cg" else (4, 8, 16))


def _atom(match: re.Match[str]) -> Written:
    text = match[0]
    if ".cas." in text:
        raise ValueError(
            f"no published rule for {text!r}: a compare-and-swap takes twice the wavefronts of other "
            "atomics (measured on sm_90)"
        )
    kind = "reduce" if match[1] == "red" and text.endswith(".add.u32") else "atomic"
    return Written(kind, int(match[2]) // 8, (4, 8))


# AMD's direct loads: `buffer_load_dwordx4.lds`, `global_load_lds_dword`. The wave gives one base in shared
# memory, and lane l writes at base + l times the width (LLVM, AMDGPU DMA operations).
DIRECT_LOAD: Final = r"(?:buffer|global)_load_dword(?:x([34]))?[. ]lds|global_load_lds_dword(?:x([34]))?"

# Pattern of the whole text, and what it says.
SPELLINGS: tuple[tuple[str, Callable[[re.Match[str]], Written]], ...] = (
    (r"load", lambda _: Written("load", None, LOAD_WIDTHS)),
    (r"store", lambda _: Written("store", None, STORE_WIDTHS)),
    (r"atomic|reduce", lambda match: Written(match[0], None, (4, 8))),
    (
        r"(ldmatrix|stmatrix)(?:\.sync)?(?:\.aligned)?(?:\.m8n8)?\.x([124])(\.trans)?"
        r"(?:\.shared(?:::cta)?)?(?:\.b16)?",
        lambda match: Written(match[1], 16, (16,), int(match[2]), bool(match[3])),
    ),
    (r"(ld|st)(?:\.volatile|\.relaxed\.cta)?\.shared(?:::cta)?(?:\.v([24]))?\.[busf](8|16|32|64|128)", _ptx),
    (r"ds_(read|load|write|store)_[bui](8|16|32|64|96|128)", _ds),
    (DIRECT_LOAD, _direct),
    (r"ds_read_b(96)_tr_b6|ds_read_b64_tr_b(?:16|8|4)", _transposing),
    (
        r"cp\.async(?:\.(ca|cg))?(?:\.shared(?:::cta)?)?(?:\.global)?(?:\.L2::\w+)?(?:\.(4|8|16))?",
        _async,
    ),
    (r"(atom|red)(?:\.\w+)*?\.shared(?:::cta)?(?:\.\w+)*?\.[busf](32|64)", _atom),
)

EXPECTED: Final = (
    "load, store, atomic, reduce (with bytes), ldmatrix.x1|x2|x4[.trans], stmatrix.x1|x2|x4[.trans], "
    "cp.async[.ca|.cg] (with bytes 4, 8 or 16), tma.load|store, wgmma.A|B, tcgen05.A|B, cp.async.bulk, "
    "or a spelling such as ld.shared.v4.b32, ds_read_b128, ds_read_b64_tr_b16 or "
    "buffer_load_dword.lds"
)


# How a file writes operations whose kind is no name of one.
_SPELT: Final = {
    ("load.lds", 4): "buffer_load_dword.lds",
    ("load.lds", 12): "buffer_load_dwordx3.lds",
    ("load.lds", 16): "buffer_load_dwordx4.lds",
    ("load.tr", 8): "ds_read_b64_tr_b16",
    ("load.tr", 12): "ds_read_b96_tr_b6",
}
_EXAMPLES: Final = (
    "load", "store", "atomic", "reduce", "cp.async", "cp.async.ca", "cp.async.cg", *BY_ITSELF,
    *(f"{op}.x{n}{trans}" for op in ("ldmatrix", "stmatrix") for n in (4, 2, 1) for trans in ("", ".trans")),
    "ld.shared.v4.b32", "st.shared.v4.b32", "ds_read_b128", "ds_write_b128", *_SPELT.values(),
)  # fmt: skip


def spelling(kind: str, width_bytes: int) -> str | None:
    """How a file writes an operation that is not `kind` with its bytes; None where it is."""
    return _SPELT.get((kind, width_bytes))


def is_direct_load(text: str) -> bool:
    """Whether `text` is one of AMD's loads past the registers, whose lanes write side by side."""
    return re.fullmatch(DIRECT_LOAD, text) is not None


def parse_operation(text: str, width_bytes: int | None, field: str = "op") -> Operation:
    """The operation that `text` names, its width taken from `width_bytes` or the spelling.

    Raises:
        ProblemFileError: an unknown spelling, a width missing, impossible, or stated twice and differently;
            the error is about `field`.
    """
    try:
        return _checked(text, width_bytes)
    except ValueError as error:
        raise ProblemFileError(field, str(error)) from None


def _checked(text: str, width_bytes: int | None) -> Operation:
    kind, implied, allowed, matrices, transposed = _written(text)
    width = implied if implied is not None else width_bytes
    if width is None:
        raise ValueError(f'{text!r} needs a width: add "bytes", one of {_list(allowed)}')
    if width_bytes is not None and width != width_bytes:
        raise ValueError(f"{text!r} is {width} bytes wide, but bytes is {width_bytes}")
    if width not in allowed:
        raise ValueError(f"{text!r} is {_list(allowed)} bytes wide, not {width}")
    if kind == "cp.async":
        kind = "cp.async.cg" if width == 16 else "cp.async.ca"
    return Operation(kind, width, matrices, transposed)


def _written(text: str) -> Written:
    for pattern, read in SPELLINGS:
        if match := re.fullmatch(pattern, text):
            return read(match)
    if text in BY_ITSELF:
        raise ValueError(f"no lane executes {text!r}, so that it has no wavefronts to count")
    near = [spelt for (kind, _), spelt in _SPELT.items() if kind == text]
    near = near or difflib.get_close_matches(text[:40], _EXAMPLES, n=3, cutoff=0.7)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"unknown op {text!r}; {hint}expected {EXPECTED}")


def _list(values: tuple[int, ...]) -> str:
    return " or ".join(map(str, values))
