"""What instructions of machine code do to memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from layoutopt.hardware.operations import Operation
from layoutopt.kernels.isa.integers import Builder, Built
from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import (
    Source,
    UnreadableOperand,
    address,
    constant_place,
    destination,
    is_predicate,
    joined,
    word,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.program import Lose, Memory, Nothing, Operand, Space

_WIDTHS: Final = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def _width(instruction: Instruction) -> int:
    return next((_WIDTHS[m] for m in instruction.modifiers if m in _WIDTHS), 4)


def _is_place(text: str) -> bool:
    return text.startswith(("[", "desc["))


def _place(instruction: Instruction, space: Space) -> Source:
    """The address: the first operand in brackets, of 64 bits outside shared and local memory."""
    text = next((text for text in instruction.operands if _is_place(text)), None)
    if text is None:
        raise UnreadableOperand("no address")
    return address(text, wide=space in ("global", "generic"))


def _cells(text: str, width: int) -> tuple[str, ...]:
    return destination(text, max(1, width // 4))


Stands = Literal["ld", "st", "atom"]
Kind = Literal["load", "store", "atomic", "copy", "ldmatrix", "stmatrix"]


def _memory(place: Source, kind: Kind, space: Space, width: int, **fields: Any) -> Memory:
    """What an instruction does at an address."""
    return Memory(kind, space, width, places=len(place.operands), place=place.value, **fields)


def _load(space: Space, counter: Stands | None = None, executed: Stands | None = None) -> Builder:
    def build(instruction: Instruction) -> Built:
        width, place = _width(instruction), _place(instruction, space)
        operands = [text for text in instruction.operands if not is_predicate(text)]
        operation = Operation("load", width) if counter else None
        told = {"operation": operation, "counter": counter, "executed": executed}
        action = _memory(place, "load", space, width, signed=instruction.has("S8", "S16"), **told)
        return Built(action, place.operands, _cells(operands[0], width))

    return build


def _store(space: Space, counter: Stands | None = None, executed: Stands | None = None) -> Builder:
    def build(instruction: Instruction) -> Built:
        width, place = _width(instruction), _place(instruction, space)
        data = [text for text in instruction.operands if not _is_place(text) and not is_predicate(text)]
        if len(data) != 1:
            raise UnreadableOperand("a store of another form")
        cells: tuple[Operand, ...] = _cells(data[0], width) or (values.ZERO,) * (width // 4 or 1)
        operation = Operation("store", width) if counter else None
        action = _memory(
            place, "store", space, width, operation=operation, counter=counter, executed=executed
        )
        return Built(action, (*place.operands, *cells))

    return build


def _matrices(kind: Literal["ldmatrix", "stmatrix"], counter: Stands) -> Builder:
    def build(instruction: Instruction) -> Built:
        if not instruction.has("M88", "MT88"):
            raise UnreadableOperand("matrices of another shape")
        count = next((int(m) for m in instruction.modifiers if m in ("2", "4")), 1)
        place = _place(instruction, "shared")
        operation = Operation(kind, 16, count, instruction.has("MT88"))
        action = _memory(place, kind, "shared", 16, operation=operation, counter=counter)
        cells = destination(instruction.operands[0], count) if kind == "ldmatrix" else ()
        return Built(action, place.operands, cells)

    return build


def _atomic_results(instruction: Instruction, width: int) -> tuple[str, ...]:
    """The registers that take what was there, and predicates."""
    named = [text for text in instruction.operands if not is_predicate(text)]
    cells = destination(named[0], width // 4) if not _is_place(named[0]) else ()
    return (*cells, *(t for t in instruction.operands if is_predicate(t) and not t.endswith("T")))


def _atomic_shared(instruction: Instruction) -> Built:
    """ATOMS: additions of 1 without a result serve lanes of one address together, all others one by one."""
    width = 8 if instruction.has("64") else 4
    place = _place(instruction, "shared")
    named = [text for text in instruction.operands if not is_predicate(text)]
    combine, commutes = _combination(instruction, width)
    data = [text for text in named[1:] if not _is_place(text)] if combine is not None else []
    operands, read = joined([word(text) for text in data])
    action = _memory(
        place,
        "atomic",
        "shared",
        width,
        unit_bytes=width,
        operation=Operation("reduce" if instruction.has("POPC") else "atomic", width),
        counter="atom",
        executed="atom",
        combine=None if combine is None else (lambda old, *parts: combine(old, *read(parts))),
        commutes=commutes,
        doubled=instruction.has("CAS", "CAST"),
        retried=instruction.has("CAST"),
    )
    return Built(action, (*place.operands, *operands), _atomic_results(instruction, width))


def _combination(instruction: Instruction, width: int) -> tuple[Callable[..., Value] | None, bool]:
    """What is left in memory, out of the old content and the sources; whether the order is all one."""
    if width != 4:
        return None, False
    is_signed = instruction.has("S32")
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
    if instruction.has("F32", "F16x2", "F64"):
        return None, False
    return next((known[m] for m in instruction.modifiers if m in known), (None, False))


def _copy(instruction: Instruction) -> Built:
    """LDGSTS, which is cp.async: the address in shared memory stands first."""
    width, place = _width(instruction), _place(instruction, "shared")
    kind = "cp.async.cg" if instruction.has("BYPASS") else "cp.async.ca"
    return Built(_memory(place, "copy", "shared", width, operation=Operation(kind, width)), place.operands)


def _constant(instruction: Instruction) -> Built:
    width = _width(instruction)
    if instruction.has("IL", "IS", "ISL"):
        raise UnreadableOperand("an indexed bank")
    bank, place = constant_place(instruction.operands[1])
    action = _memory(place, "load", "constant", width, signed=instruction.has("S8", "S16"), bank=bank)
    return Built(action, place.operands, _cells(instruction.operands[0], width))


def _atomic_global(instruction: Instruction) -> Built:
    """Atomics on global memory: what they return is not known; a generic one may reach shared memory."""
    generic = instruction.opcode == "ATOM"
    space: Space = "generic" if generic else "global"
    width, place = _width(instruction), _place(instruction, space)
    action = _memory(
        place,
        "atomic",
        space,
        width,
        unit_bytes=width,
        operation=Operation("atomic", width) if generic and width in (4, 8) else None,
        counter="atom" if generic else None,
        doubled=instruction.has("CAS"),
    )
    return Built(action, place.operands, _atomic_results(instruction, width))


def _nothing(instruction: Instruction) -> Built:
    return Built(Nothing())


def _forget_bulk(instruction: Instruction) -> Built:
    """Bulk copies fill shared memory from elsewhere: none of the three counters counts them."""
    return Built(Lose())


MEMORY: Final[Mapping[str, Builder]] = {
    "ATOM": _atomic_global,
    "ATOMG": _atomic_global,
    "ATOMS": _atomic_shared,
    "CCTL": _nothing,
    "CCTLL": _nothing,
    "CCTLT": _nothing,
    "LD": _load("generic", "ld"),
    "LDC": _constant,
    "LDCU": _constant,
    "LDG": _load("global"),
    "LDGSTS": _copy,
    "LDL": _load("local"),
    "LDS": _load("shared", "ld", "ld"),
    "LDSM": _matrices("ldmatrix", "ld"),
    "RED": _atomic_global,
    "REDG": _atomic_global,
    "ST": _store("generic", "st"),
    "STG": _store("global"),
    "STL": _store("local"),
    "STS": _store("shared", "st", "st"),
    "STSM": _matrices("stmatrix", "st"),
    "SUST": _nothing,
    "UBLKCP": _forget_bulk,
    "UBLKPF": _nothing,
    "UBLKRED": _forget_bulk,
    "ULDC": _constant,
    "UTMACCTL": _nothing,
    "UTMACMDFLUSH": _nothing,
    "UTMALDG": _forget_bulk,
    "UTMAPF": _nothing,
    "UTMAREDG": _forget_bulk,
    "UTMASTG": _forget_bulk,
}
