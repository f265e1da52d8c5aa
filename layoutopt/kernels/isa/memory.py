"""What instructions of machine code do to memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from layoutopt.hardware.operations import Operation
from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import (
    Builder,
    Built,
    UnreadableOperand,
    address,
    constant_place,
    is_predicate,
    registers,
    word,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.program import Memory, Source, Space

_WIDTHS: Final = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def _width(one: Instruction) -> int:
    return next((_WIDTHS[m] for m in one.modifiers if m in _WIDTHS), 4)


def _is_place(text: str) -> bool:
    return text.startswith(("[", "desc["))


def _place(one: Instruction, space: Space) -> Source:
    """The address: the first operand in brackets, of 64 bits outside shared and local memory."""
    text = next((text for text in one.operands if _is_place(text)), None)
    if text is None:
        raise UnreadableOperand("no address")
    return address(text, wide=space in ("global", "generic"))


def _operation(kind: str, space: Space, width: int) -> Operation | None:
    """How it is served, where it may be shared memory."""
    return Operation(kind, width) if space in ("shared", "generic") else None


def _load(one: Instruction, place: Source, space: Space, bank: int = 0) -> Built:
    width, signed = _width(one), one.has("S8", "S16")
    action = Memory("load", space, width, signed, _operation("load", space, width), bank=bank)
    return Built(action, (place,), registers(one.operands[0], max(1, width // 4)))


def _loads(space: Space) -> Builder:
    return lambda one: _load(one, _place(one, space), space)


def _constant(one: Instruction) -> Built:
    if one.has("IL", "IS", "ISL"):
        raise UnreadableOperand("an indexed bank")
    bank, place = constant_place(one.operands[1])
    return _load(one, place, "constant", bank)


def _stores(space: Space) -> Builder:
    """A store of one operand."""

    def build(one: Instruction) -> Built:
        width = _width(one)
        (data,) = (text for text in one.operands if not is_predicate(text) and not _is_place(text))
        count = max(1, width // 4)
        stored = [Source.cell(cell) for cell in registers(data, count)] or [word("RZ")] * count
        action = Memory("store", space, width, operation=_operation("store", space, width))
        return Built(action, (_place(one, space), *stored))

    return build


def _matrices(kind: Any) -> Builder:
    def build(one: Instruction) -> Built:
        if not one.has("M88", "MT88"):
            raise UnreadableOperand("matrices of another shape")
        count = next((int(m) for m in one.modifiers if m in ("2", "4")), 1)
        operation = Operation(kind, 16, count, one.has("MT88"))
        dests = registers(one.operands[0], count) if kind == "ldmatrix" else ()
        return Built(Memory(kind, "shared", 16, operation=operation), (_place(one, "shared"),), dests)

    return build


# What is left in memory, out of the old content and the sources, and whether the order is all one.
_COMBINATIONS: Final[Mapping[str, tuple[Callable[..., Value], bool]]] = {
    "POPC": (lambda old: values.add(old, values.TRUE), True),
    "ADD": (values.add, True),
    "AND": (values.both, True),
    "OR": (values.either, True),
    "XOR": (values.differ, True),
    "MIN": (lambda old, a: values.least(old, a, 32, False), True),
    "MAX": (lambda old, a: values.greatest(old, a, 32, False), True),
    "MIN.S32": (values.least, True),
    "MAX.S32": (values.greatest, True),
    "EXCH": (lambda old, a: a, False),
    "CAS": (lambda old, a, b: values.select(values.equal(old, a), b, old), False),
}


def _shared_atomic(one: Instruction) -> Built:
    """ATOMS: additions of 1 without a result serve lanes of one address together, others one by one."""
    width = 8 if one.has("64") else 4
    data = [text for text in one.operands if not is_predicate(text)][1:]
    combine, commutes = None, False
    if width == 4 and not one.has("F32", "F16x2", "F64"):
        names = [f"{m}.S32" for m in one.modifiers if one.has("S32")] + list(one.modifiers)
        combine, commutes = next((_COMBINATIONS[m] for m in names if m in _COMBINATIONS), (None, False))
    sources = [word(text) for text in data if not _is_place(text)] if combine is not None else []
    action = Memory(
        "atomic",
        "shared",
        width,
        operation=Operation("reduce" if one.has("POPC") else "atomic", width),
        combine=combine,
        commutes=commutes,
        doubled=one.has("CAS", "CAST"),
        retried=one.has("CAST"),
    )
    return Built(action, (_place(one, "shared"), *sources), _returned(one, width))


def _atomic(space: Space) -> Builder:
    """Atomics of which it is not known what they return; a generic one may reach shared memory."""

    def build(one: Instruction) -> Built:
        width = _width(one)
        operation = _operation("atomic", space, width) if width in (4, 8) else None
        action = Memory("atomic", space, width, operation=operation, doubled=one.has("CAS", "CAST"))
        return Built(action, (_place(one, space),), _returned(one, width))

    return build


def _returned(one: Instruction, width: int) -> tuple[str, ...]:
    """Where the old content goes, and predicates."""
    dest = next(text for text in one.operands if not is_predicate(text))
    told = (text for text in one.operands if is_predicate(text) and not text.endswith("T"))
    return (*(registers(dest, width // 4) if not _is_place(dest) else ()), *told)


def _copy(one: Instruction) -> Built:
    """LDGSTS, which is cp.async: the address in shared memory stands first."""
    operation = Operation("cp.async.cg" if one.has("BYPASS") else "cp.async.ca", _width(one))
    return Built(Memory("copy", "shared", _width(one), operation=operation), (_place(one, "shared"),))


MEMORY: Final[Mapping[str, Builder]] = {
    "ATOM": _atomic("generic"),
    "ATOMG": _atomic("global"),
    "ATOMS": _shared_atomic,
    "LD": _loads("generic"),
    "LDC": _constant,
    "LDCU": _constant,
    "LDG": _loads("global"),
    "LDGSTS": _copy,
    "LDL": _loads("local"),
    "LDS": _loads("shared"),
    "LDSM": _matrices("ldmatrix"),
    "RED": _atomic("global"),
    "REDG": _atomic("global"),
    "ST": _stores("generic"),
    "STG": _stores("global"),
    "STL": _stores("local"),
    "STS": _stores("shared"),
    "STSM": _matrices("stmatrix"),
}
