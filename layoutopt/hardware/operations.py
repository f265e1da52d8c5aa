"""The instructions that touch shared memory, under the names users write.

Short names (`load`, `ldmatrix.x4.trans`, `cp.async`), PTX spellings (`ld.shared.v4.b32`) and AMD's
(`ds_read_b128`) all become one `Operation`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

STORE_WIDTHS: Final = (1, 2, 4, 8, 16)
# AMD's 96-bit loads; how stores of that width are served is not published.
LOAD_WIDTHS: Final = (1, 2, 4, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of instruction.

    Attributes:
        kind: load, store, ldmatrix, stmatrix, atomic, reduce, cp.async.ca or cp.async.cg. On NVIDIA,
            reduce is the addition of the constant 1 without a result (ATOMS.POPC.INC), the one
            atomic that serves lanes of one address together; any other is atomic, result or not.
        width_bytes: bytes at each lane's address (16 for a matrix row).
        matrices: 8x8 matrices moved by ldmatrix and stmatrix, which use the addresses of the
            first 8 * matrices lanes; 0 for other kinds.
        transposed: the `.trans` form; it moves registers, not banks.
    """

    kind: str
    width_bytes: int
    matrices: int = 0
    transposed: bool = False

    @property
    def is_read(self) -> bool:
        """Whether the instruction only reads shared memory."""
        return self.kind in ("load", "ldmatrix")


_MATRIX: Final = re.compile(
    r"(ldmatrix|stmatrix)(?:\.sync)?(?:\.aligned)?(?:\.m8n8)?\.x([124])(\.trans)?"
    r"(?:\.shared(?:::cta)?)?(?:\.b16)?"
)
_PLAIN: Final = re.compile(
    r"(ld|st)(?:\.volatile|\.relaxed\.cta)?\.shared(?:::cta)?(?:\.v([24]))?\.[busf](8|16|32|64|128)"
)
_DS: Final = re.compile(r"ds_(read|load|write|store)_[bui](8|16|32|64|96|128)")
_ASYNC: Final = re.compile(
    r"cp\.async(?:\.(ca|cg))?(?:\.shared(?:::cta)?)?(?:\.global)?(?:\.L2::\w+)?(?:\.(4|8|16))?"
)
_ATOM: Final = re.compile(r"(atom|red)(?:\.\w+)*?\.shared(?:::cta)?(?:\.\w+)*?\.[busf](32|64)")

EXPECTED: Final = (
    "load, store, atomic, reduce (with bytes), ldmatrix.x1|x2|x4[.trans], stmatrix.x1|x2|x4[.trans], "
    "cp.async[.ca|.cg] (with bytes 4, 8 or 16), or a spelling such as ld.shared.v4.b32 or ds_read_b128"
)


def parse_operation(text: str, width_bytes: int | None) -> Operation:
    """The operation that `text` names, its width taken from `width_bytes` or the spelling.

    Raises:
        ValueError: an unknown spelling, a width missing, impossible, or stated twice and differently.
    """
    kind, implied, matrices, transposed, allowed = _recognise(text)
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


def _recognise(text: str) -> tuple[str, int | None, int, bool, tuple[int, ...]]:
    if text in ("load", "store"):
        return text, None, 0, False, LOAD_WIDTHS if text == "load" else STORE_WIDTHS
    if text in ("atomic", "reduce"):
        return text, None, 0, False, (4, 8)
    if match := _MATRIX.fullmatch(text):
        return match[1], 16, int(match[2]), bool(match[3]), (16,)
    if match := _PLAIN.fullmatch(text):
        width = int(match[3]) // 8 * int(match[2] or 1)
        return "load" if match[1] == "ld" else "store", width, 0, False, STORE_WIDTHS
    if match := _DS.fullmatch(text):
        kind, widths = ("load", LOAD_WIDTHS) if match[1] in ("read", "load") else ("store", STORE_WIDTHS)
        return kind, int(match[2]) // 8, 0, False, widths
    if match := _ASYNC.fullmatch(text):
        kind = f"cp.async.{match[1]}" if match[1] else "cp.async"
        return kind, int(match[2]) if match[2] else None, 0, False, (16,) if match[1] == "cg" else (4, 8, 16)
    if match := _ATOM.fullmatch(text):
        if ".cas." in text:
            raise ValueError(
                f"no published rule for {text!r}: a compare-and-swap takes twice the wavefronts of other "
                "atomics (measured on sm_90)"
            )
        kind = "reduce" if match[1] == "red" and text.endswith(".add.u32") else "atomic"
        return kind, int(match[2]) // 8, 0, False, (4, 8)
    raise ValueError(f"unknown op {text!r}; expected {EXPECTED}")


def _list(values: tuple[int, ...]) -> str:
    return " or ".join(map(str, values))
