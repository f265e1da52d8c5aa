"""What instructions of machine code do to memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from layoutopt.hardware.operations import Operation
from layoutopt.kernels.isa.integers import Builder, Built
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
from layoutopt.kernels.read.listing import Instruction

_WIDTHS: Final = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def _width(instruction: Instruction) -> int:
    return next((_WIDTHS[m] for m in instruction.modifiers if m in _WIDTHS), 4)


def _is_place(text: str) -> bool:
    return text.startswith(("[", "desc["))


def _place(instruction: Instruction, wide: bool) -> Source:
    """The address: the first operand in brackets."""
    text = next((text for text in instruction.operands if _is_place(text)), None)
    if text is None:
        raise UnreadableOperand("no address")
    return address(text, wide)


def _cells(text: str, width: int) -> tuple[str, ...]:
    return destination(text, max(1, width // 4))


Stands = Literal["ld", "st", "atom"]


def _load(space: Space, counter: Stands | None = None, executed: Stands | None = None) -> Builder:
    def build(instruction: Instruction) -> Built:
        width = _width(instruction)
        place = _place(instruction, space in ("global", "generic"))
        operands = [text for text in instruction.operands if not is_predicate(text)]
        cells = _cells(operands[0], width)
        action = Memory(
            "load",
            space,
            width,
            signed=instruction.has("S8", "S16"),
            operation=Operation("load", width) if counter else None,
            counter=counter,
            executed=executed,
            read_only=instruction.has("CONSTANT"),
            places=len(place.operands),
            place=place.value,
        )
        return Built(action, place.operands, cells)

    return build


def _store(space: Space, counter: Stands | None = None, executed: Stands | None = None) -> Builder:
    def build(instruction: Instruction) -> Built:
        width = _width(instruction)
        place = _place(instruction, space in ("global", "generic"))
        data = [text for text in instruction.operands if not _is_place(text) and not is_predicate(text)]
        if len(data) != 1:
            raise UnreadableOperand("a store of another form")
        cells: tuple[Operand, ...] = destination(data[0], max(1, width // 4)) or (values.ZERO,) * (
            width // 4 or 1
        )
        action = Memory(
            "store",
            space,
            width,
            operation=Operation("store", width) if counter else None,
            counter=counter,
            executed=executed,
            places=len(place.operands),
            place=place.value,
        )
        return Built(action, (*place.operands, *cells))

    return build


def _matrices(kind: Literal["ldmatrix", "stmatrix"], counter: Stands) -> Builder:
    def build(instruction: Instruction) -> Built:
        if not instruction.has("M88", "MT88"):
            raise UnreadableOperand("matrices of another shape")
        count = next((int(m) for m in instruction.modifiers if m in ("2", "4")), 1)
        place = _place(instruction, wide=False)
        operation = Operation(kind, 16, count, instruction.has("MT88"))
        action = Memory(
            kind,
            "shared",
            16,
            operation=operation,
            counter=counter,
            places=len(place.operands),
            place=place.value,
        )
        cells = destination(instruction.operands[0], count) if kind == "ldmatrix" else ()
        return Built(action, place.operands, cells)

    return build


def _atomic_shared(instruction: Instruction) -> Built:
    """ATOMS: additions of 1 without a result serve lanes of one address together, all others one by one."""
    width = 8 if instruction.has("64") else 4
    place = _place(instruction, wide=False)
    named = [text for text in instruction.operands if not is_predicate(text)]
    cells = destination(named[0], width // 4) if not _is_place(named[0]) else ()
    results = tuple(t for t in instruction.operands if is_predicate(t) and not t.endswith("T"))
    data = [text for text in named[1:] if not _is_place(text)]
    swaps = instruction.has("CAS", "CAST")
    counts = instruction.has("POPC")
    operation = Operation("reduce" if counts else "atomic", width)
    combine, commutes = _combination(instruction, width)
    sources = [word(text) for text in data] if combine is not None else []
    operands, read = joined(sources)
    action = Memory(
        "atomic",
        "shared",
        width,
        unit_bytes=width,
        operation=operation,
        counter="atom",
        executed="atom",
        combine=None if combine is None else (lambda old, *parts: combine(old, *read(parts))),
        commutes=commutes,
        doubled=swaps,
        retried=instruction.has("CAST"),
        places=len(place.operands),
        place=place.value,
    )
    return Built(action, (*place.operands, *operands), (*cells, *results))


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
    width = _width(instruction)
    place = _place(instruction, wide=False)
    kind = "cp.async.cg" if instruction.has("BYPASS") else "cp.async.ca"
    action = Memory(
        "copy",
        "shared",
        width,
        operation=Operation(kind, width),
        places=len(place.operands),
        place=place.value,
    )
    return Built(action, place.operands)


def _constant(instruction: Instruction) -> Built:
    width = _width(instruction)
    if instruction.has("IL", "IS", "ISL"):
        raise UnreadableOperand("an indexed bank")
    bank, place = constant_place(instruction.operands[1])
    action = Memory(
        "load",
        "constant",
        width,
        signed=instruction.has("S8", "S16"),
        bank=bank,
        places=len(place.operands),
        place=place.value,
    )
    return Built(action, place.operands, _cells(instruction.operands[0], width))


def _atomic_global(instruction: Instruction) -> Built:
    """Atomics on global memory: what they return is not known; a generic one may reach shared memory."""
    space: Space = "generic" if instruction.opcode == "ATOM" else "global"
    width = _width(instruction)
    place = _place(instruction, wide=True)
    named = [text for text in instruction.operands if not is_predicate(text)]
    cells = destination(named[0], width // 4) if not _is_place(named[0]) else ()
    results = tuple(t for t in instruction.operands if is_predicate(t) and not t.endswith("T"))
    action = Memory(
        "atomic",
        space,
        width,
        unit_bytes=width,
        operation=Operation("atomic", width) if space == "generic" and width in (4, 8) else None,
        counter="atom" if space == "generic" else None,
        doubled=instruction.has("CAS"),
        places=len(place.operands),
        place=place.value,
    )
    return Built(action, place.operands, (*cells, *results))


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
