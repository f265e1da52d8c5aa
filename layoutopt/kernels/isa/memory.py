"""What instructions of machine code do to memory."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from layoutopt.hardware.operations import Operation
from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import (
    Builder,
    Built,
    UnreadableOperand,
    address,
    computed,
    constant_place,
    is_predicate,
    predicate,
    registers,
    word,
    words,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.program import LOCAL_WINDOW, SHARED_WINDOW, Memory, Source, Space

_WIDTHS: Final = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def _width(inst: Instruction) -> int:
    return next((_WIDTHS[m] for m in inst.modifiers if m in _WIDTHS), 4)


def _is_place(text: str) -> bool:
    return text.startswith(("[", "desc["))


def _place(inst: Instruction, space: Space) -> Source:
    """The address: the first operand in brackets, of 64 bits outside shared and local memory."""
    text = next((text for text in inst.operands if _is_place(text)), None)
    if text is None:
        raise UnreadableOperand("no address")
    return address(text, wide=space in ("global", "generic"))


def _load(space: Space, inst: Instruction) -> Built:
    """A load, of constant memory by its bank."""
    width, bank = _width(inst), 0
    if space == "constant":
        if inst.has("IL", "IS", "ISL"):
            raise UnreadableOperand("an indexed bank")
        bank, place = constant_place(inst.operands[1])
    else:
        place = _place(inst, space)
    action = Memory("load", space, width, inst.has("S8", "S16"), _served("load", space, width), bank=bank)
    return Built(action, (place,), registers(inst.operands[0], max(1, width // 4)))


def _served(kind: str, space: Space, width: int) -> Operation | None:
    """How it is served, where it may be shared memory."""
    return Operation(kind, width) if space in ("shared", "generic") else None


def _store(space: Space, inst: Instruction) -> Built:
    """A store of one operand."""
    width = _width(inst)
    (data,) = (text for text in inst.operands if not is_predicate(text) and not _is_place(text))
    action = Memory("store", space, width, operation=_served("store", space, width))
    return Built(action, (_place(inst, space), *words(data, max(1, width // 4))))


def _matrices(kind: Any, inst: Instruction) -> Built:
    if not inst.has("M88", "MT88"):
        raise UnreadableOperand("matrices of another shape")
    count = next((int(m) for m in inst.modifiers if m in ("2", "4")), 1)
    operation = Operation(kind, 16, count, inst.has("MT88"))
    action, place = Memory(kind, "shared", 16, operation=operation), _place(inst, "shared")
    if kind == "ldmatrix":
        return Built(action, (place,), registers(inst.operands[0], count))
    return Built(action, (place, *words(inst.operands[1], count)))


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
    **dict.fromkeys(("CAS", "CAST"), (lambda old, a, b: values.select(values.equal(old, a), b, old), False)),
}


def _atomic(space: Space, inst: Instruction) -> Built:
    """Atomics; what is left and returned is known of those of shared memory on words.

    Additions of 1 without a result (POPC) serve lanes of one address together, others one by one.
    """
    width = _width(inst)
    combine, commutes = None, False
    if space == "shared" and width == 4 and not inst.has("F32", "F16x2", "F64"):
        names = [f"{m}.S32" for m in inst.modifiers if inst.has("S32")] + list(inst.modifiers)
        combine, commutes = next((_COMBINATIONS[m] for m in names if m in _COMBINATIONS), (None, False))
    data = [text for text in inst.operands if not is_predicate(text)][1:]
    sources = [word(text) for text in data if not _is_place(text)] if combine is not None else []
    dests = _returned(inst, width)
    kind = "reduce" if space == "shared" and inst.has("POPC") else "atomic"
    action = Memory(
        "atomic",
        space,
        width,
        operation=_served(kind, space, width),
        combine=combine,
        commutes=commutes,
        counted_times=2 if inst.has("CAS", "CAST") else 1,
        retried=space == "shared" and inst.has("CAST"),
        asks=space == "generic" and any(map(is_predicate, dests)),
    )
    return Built(action, (_place(inst, space), *sources), dests)


def _returned(inst: Instruction, width: int) -> tuple[str, ...]:
    """Where the old content goes, and predicates."""
    dest = next(text for text in inst.operands if not is_predicate(text))
    told = (text for text in inst.operands if is_predicate(text) and not text.endswith("T"))
    return (*(registers(dest, width // 4) if not _is_place(dest) else ()), *told)


def _copy(inst: Instruction) -> Built:
    """LDGSTS, which is cp.async: the address in shared memory stands first.

    What one with ZFILL, which fills a part with zeros, reads is not followed.
    """
    operation = Operation("cp.async.cg" if inst.has("BYPASS") else "cp.async.ca", _width(inst))
    _, given, *reads = inst.operands
    sources = () if inst.has("ZFILL") else (address(given, wide=True), *map(predicate, reads))
    action = Memory("copy", "shared", _width(inst), operation=operation)
    return Built(action, (_place(inst, "shared"), *sources))


def _asked_for_space(inst: Instruction) -> Built:
    """QSPC: whether a generic address is one of shared, or local, memory."""
    window = values.constant(SHARED_WINDOW if inst.has("S") else LOCAL_WINDOW)
    told, number, _ = inst.operands
    if number != "RZ" or not inst.has("S", "L"):
        raise UnreadableOperand("QSPC of another form")
    place = _place(inst, "generic")
    return computed(inst, [("p", told)], [place], lambda _, at: values.equal(values.high(at), window))


MEMORY: Final[Mapping[str, Builder]] = {
    "ATOM": partial(_atomic, "generic"),
    "ATOMG": partial(_atomic, "global"),
    "ATOMS": partial(_atomic, "shared"),
    "LD": partial(_load, "generic"),
    "LDC": partial(_load, "constant"),
    "LDCU": partial(_load, "constant"),
    "LDG": partial(_load, "global"),
    "LDGSTS": _copy,
    "LDL": partial(_load, "local"),
    "LDS": partial(_load, "shared"),
    "LDSM": partial(_matrices, "ldmatrix"),
    "QSPC": _asked_for_space,
    "RED": partial(_atomic, "global"),
    "REDG": partial(_atomic, "global"),
    "ST": partial(_store, "generic"),
    "STG": partial(_store, "global"),
    "STL": partial(_store, "local"),
    "STS": partial(_store, "shared"),
    "STSM": partial(_matrices, "stmatrix"),
}
