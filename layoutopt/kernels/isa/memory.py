"""What instructions of machine code do to memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from layoutopt.hardware.operations import Operation
from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import (
    Builder,
    Built,
    Source,
    UnreadableOperand,
    address,
    constant_place,
    is_predicate,
    joined,
    registers,
    word,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.program import Forget, Memory, Operand, Space

_WIDTHS: Final = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
Kind = Literal["load", "store", "atomic", "copy", "ldmatrix", "stmatrix"]
# The profiler's total of wavefronts, and of instructions, which generic ones do not enter.
_COUNTED: Final[Mapping[str, Mapping[str, dict[str, Any]]]] = {
    space: {
        "load": {"counter": "ld", "executed": "ld" if space == "shared" else None},
        "store": {"counter": "st", "executed": "st" if space == "shared" else None},
    }
    for space in ("shared", "generic")
}


def _width(one: Instruction) -> int:
    return next((_WIDTHS[m] for m in one.modifiers if m in _WIDTHS), 4)


def _is_place(text: str) -> bool:
    return text.startswith(("[", "desc["))


def _data(one: Instruction) -> list[str]:
    """Operands that are neither predicates nor addresses."""
    return [text for text in one.operands if not is_predicate(text) and not _is_place(text)]


def _place(one: Instruction, space: Space) -> Source:
    """The address: the first operand in brackets, of 64 bits outside shared and local memory."""
    text = next((text for text in one.operands if _is_place(text)), None)
    if text is None:
        raise UnreadableOperand("no address")
    return address(text, wide=space in ("global", "generic"))


def _memory(place: Source, kind: Kind, space: Space, width: int, **fields: Any) -> Memory:
    """What an instruction does at an address."""
    return Memory(kind, space, width, places=len(place.operands), place=place.value, **fields)


def _moves(kind: Literal["load", "store"], space: Space) -> Builder:
    """A load, or a store of one operand."""

    def build(one: Instruction) -> Built:
        width, place, data = _width(one), _place(one, space), _data(one)
        counted = _COUNTED.get(space, {}).get(kind, {})
        if counted:
            counted = {**counted, "operation": Operation(kind, width)}
        count = max(1, width // 4)
        signed = kind == "load" and one.has("S8", "S16")
        action = _memory(place, kind, space, width, signed=signed, **counted)
        if kind == "load":
            return Built(action, place.operands, registers(one.operands[0], count))
        if len(data) != 1:
            raise UnreadableOperand("a store of another form")
        cells: tuple[Operand, ...] = registers(data[0], count) or (values.ZERO,) * count
        return Built(action, (*place.operands, *cells))

    return build


def _matrices(kind: Literal["ldmatrix", "stmatrix"], counter: str) -> Builder:
    def build(one: Instruction) -> Built:
        if not one.has("M88", "MT88"):
            raise UnreadableOperand("matrices of another shape")
        count = next((int(m) for m in one.modifiers if m in ("2", "4")), 1)
        place = _place(one, "shared")
        operation = Operation(kind, 16, count, one.has("MT88"))
        action = _memory(place, kind, "shared", 16, operation=operation, counter=counter)
        cells = registers(one.operands[0], count) if kind == "ldmatrix" else ()
        return Built(action, place.operands, cells)

    return build


def _combination(one: Instruction, width: int) -> tuple[Callable[..., Value] | None, bool]:
    """What is left in memory, out of the old content and the sources; whether the order is all one."""
    is_signed = one.has("S32")
    known: dict[str, tuple[Callable[..., Value], bool]] = {
        "POPC": (lambda old: values.add(old, values.TRUE), True),
        "ADD": (lambda old, a: values.add(old, a), True),
        "AND": (values.both, True),
        "OR": (values.either, True),
        "XOR": (values.differ, True),
        "MIN": (lambda old, a: values.least(old, a, 32, is_signed), True),
        "MAX": (lambda old, a: values.greatest(old, a, 32, is_signed), True),
        "EXCH": (lambda old, a: a, False),
        "CAS": (lambda old, a, b: values.select(values.equal(old, a), b, old), False),
    }
    if width != 4 or one.has("F32", "F16x2", "F64"):
        return None, False
    return next((known[m] for m in one.modifiers if m in known), (None, False))


def _atomic(space: Space) -> Builder:
    """Atomics. What those on global memory return is not known; a generic one may reach shared memory.

    ATOMS: additions of 1 without a result serve lanes of one address together, all others one by one.
    """

    def build(one: Instruction) -> Built:
        place = _place(one, space)
        named = [text for text in one.operands if not is_predicate(text)]
        if space == "shared":
            width = 8 if one.has("64") else 4
            combine, commutes = _combination(one, width)
            data = [word(text) for text in _data(one)[not _is_place(named[0]) :]] if combine else []
            operands, read = joined(data)
            counted: dict[str, Any] = {
                "operation": Operation("reduce" if one.has("POPC") else "atomic", width),
                "counter": "atom",
                "executed": "atom",
                "combine": combine and (lambda old, *parts: combine(old, *read(parts))),
                "commutes": commutes,
                "retried": one.has("CAST"),
            }
        else:
            width, operands, counted = _width(one), (), {}
            if space == "generic":
                rule = Operation("atomic", width) if width in (4, 8) else None
                counted = {"counter": "atom", "operation": rule}
        doubled = one.has("CAS", "CAST")
        action = _memory(place, "atomic", space, width, unit_bytes=width, doubled=doubled, **counted)
        cells = registers(named[0], width // 4) if not _is_place(named[0]) else ()
        told = (text for text in one.operands if is_predicate(text) and not text.endswith("T"))
        return Built(action, (*place.operands, *operands), (*cells, *told))

    return build


def _copy(one: Instruction) -> Built:
    """LDGSTS, which is cp.async: the address in shared memory stands first."""
    width, place = _width(one), _place(one, "shared")
    kind = "cp.async.cg" if one.has("BYPASS") else "cp.async.ca"
    return Built(_memory(place, "copy", "shared", width, operation=Operation(kind, width)), place.operands)


def _constant(one: Instruction) -> Built:
    width = _width(one)
    if one.has("IL", "IS", "ISL"):
        raise UnreadableOperand("an indexed bank")
    bank, place = constant_place(one.operands[1])
    action = _memory(place, "load", "constant", width, signed=one.has("S8", "S16"), bank=bank)
    return Built(action, place.operands, registers(one.operands[0], max(1, width // 4)))


def nothing(_: Instruction) -> Built:
    """Neither results nor order matter."""
    return Built(Forget())


def _bulk(_: Instruction) -> Built:
    """Bulk copies fill shared memory from elsewhere: none of the three counters counts them."""
    return Built(Forget(fills=True))


MEMORY: Final[Mapping[str, Builder]] = {
    "ATOM": _atomic("generic"),
    "ATOMG": _atomic("global"),
    "ATOMS": _atomic("shared"),
    "LD": _moves("load", "generic"),
    "LDC": _constant,
    "LDCU": _constant,
    "LDG": _moves("load", "global"),
    "LDGSTS": _copy,
    "LDL": _moves("load", "local"),
    "LDS": _moves("load", "shared"),
    "LDSM": _matrices("ldmatrix", "ld"),
    "RED": _atomic("global"),
    "REDG": _atomic("global"),
    "ST": _moves("store", "generic"),
    "STG": _moves("store", "global"),
    "STL": _moves("store", "local"),
    "STS": _moves("store", "shared"),
    "STSM": _matrices("stmatrix", "st"),
    "ULDC": _constant,
    **dict.fromkeys(("UBLKCP", "UBLKRED", "UTMALDG", "UTMAREDG", "UTMASTG"), _bulk),
    **dict.fromkeys(
        ("CCTL", "CCTLL", "CCTLT", "SUST", "UBLKPF", "UTMACCTL", "UTMACMDFLUSH", "UTMAPF"), nothing
    ),
}
