"""What instructions of machine code do to memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

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
from layoutopt.kernels.program import Memory, Operand, Space

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


def _memory(place: Source, kind: Any, space: Space, width: int, **fields: Any) -> Memory:
    """What an instruction does at an address."""
    return Memory(kind, space, width, places=len(place.operands), place=place.value, **fields)


def _load(one: Instruction, place: Source, space: Space, **fields: Any) -> Built:
    width = _width(one)
    action = _memory(place, "load", space, width, signed=one.has("S8", "S16"), **fields)
    return Built(action, place.operands, registers(one.operands[0], max(1, width // 4)))


def _counted(kind: str, counter: str, space: Space, width: int) -> dict[str, Any]:
    """The profiler's total of wavefronts, and of instructions, which generic ones do not enter."""
    if space not in ("shared", "generic"):
        return {}
    executed = counter if space == "shared" else None
    return {"operation": Operation(kind, width), "counter": counter, "executed": executed}


def _loads(space: Space) -> Builder:
    return lambda one: _load(one, _place(one, space), space, **_counted("load", "ld", space, _width(one)))


def _constant(one: Instruction) -> Built:
    if one.has("IL", "IS", "ISL"):
        raise UnreadableOperand("an indexed bank")
    bank, place = constant_place(one.operands[1])
    return _load(one, place, "constant", bank=bank)


def _stores(space: Space) -> Builder:
    """A store of one operand."""

    def build(one: Instruction) -> Built:
        width, place = _width(one), _place(one, space)
        (data,) = (text for text in one.operands if not is_predicate(text) and not _is_place(text))
        count = max(1, width // 4)
        cells: tuple[Operand, ...] = registers(data, count) or (values.ZERO,) * count
        action = _memory(place, "store", space, width, **_counted("store", "st", space, width))
        return Built(action, (*place.operands, *cells))

    return build


def _matrices(kind: str, counter: str) -> Builder:
    def build(one: Instruction) -> Built:
        if not one.has("M88", "MT88"):
            raise UnreadableOperand("matrices of another shape")
        count = next((int(m) for m in one.modifiers if m in ("2", "4")), 1)
        place = _place(one, "shared")
        operation = Operation(kind, 16, count, one.has("MT88"))
        action = _memory(place, kind, "shared", 16, operation=operation, counter=counter)
        return Built(action, place.operands, registers(one.operands[0], count) if counter == "ld" else ())

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
    place, width = _place(one, "shared"), 8 if one.has("64") else 4
    data = [text for text in one.operands if not is_predicate(text)][1:]
    combine, commutes = None, False
    if width == 4 and not one.has("F32", "F16x2", "F64"):
        names = [f"{m}.S32" for m in one.modifiers if one.has("S32")] + list(one.modifiers)
        combine, commutes = next((_COMBINATIONS[m] for m in names if m in _COMBINATIONS), (None, False))
    sources = [word(text) for text in data if not _is_place(text)] if combine is not None else []
    operands, read = joined(sources)
    action = _memory(
        place,
        "atomic",
        "shared",
        width,
        unit_bytes=width,
        operation=Operation("reduce" if one.has("POPC") else "atomic", width),
        counter="atom",
        executed="atom",
        combine=combine and (lambda old, *parts: combine(old, *read(parts))),
        commutes=commutes,
        doubled=one.has("CAS", "CAST"),
        retried=one.has("CAST"),
    )
    return Built(action, (*place.operands, *operands), _returned(one, width))


def _atomic(space: Space) -> Builder:
    """Atomics of which it is not known what they return; a generic one may reach shared memory."""

    def build(one: Instruction) -> Built:
        place, width = _place(one, space), _width(one)
        counted: dict[str, Any] = {}
        if space == "generic":
            counted = {
                "counter": "atom",
                "operation": Operation("atomic", width) if width in (4, 8) else None,
            }
        doubled = one.has("CAS", "CAST")
        action = _memory(place, "atomic", space, width, unit_bytes=width, doubled=doubled, **counted)
        return Built(action, place.operands, _returned(one, width))

    return build


def _returned(one: Instruction, width: int) -> tuple[str, ...]:
    """Where the old content goes, and predicates."""
    dest = next(text for text in one.operands if not is_predicate(text))
    told = (text for text in one.operands if is_predicate(text) and not text.endswith("T"))
    return (*(registers(dest, width // 4) if not _is_place(dest) else ()), *told)


def _copy(one: Instruction) -> Built:
    """LDGSTS, which is cp.async: the address in shared memory stands first."""
    width, place = _width(one), _place(one, "shared")
    kind = "cp.async.cg" if one.has("BYPASS") else "cp.async.ca"
    return Built(_memory(place, "copy", "shared", width, operation=Operation(kind, width)), place.operands)


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
    "LDSM": _matrices("ldmatrix", "ld"),
    "RED": _atomic("global"),
    "REDG": _atomic("global"),
    "ST": _stores("generic"),
    "STG": _stores("global"),
    "STL": _stores("local"),
    "STS": _stores("shared"),
    "STSM": _matrices("stmatrix", "st"),
}
