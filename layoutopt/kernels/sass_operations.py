"""Machine code as steps: one entry an opcode.

An opcode that no table has becomes a step that must not matter: the evaluation names it and ends if it does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from layoutopt.kernels import values
from layoutopt.kernels.program import (
    SHARED_WINDOW,
    Across,
    Barrier,
    Compute,
    Exit,
    Forget,
    Guard,
    Jump,
    Leave,
    Mark,
    Meet,
    Nothing,
    Operand,
    Refused,
    Restore,
    Save,
    Step,
)
from layoutopt.kernels.sass_floats import FLOATS
from layoutopt.kernels.sass_integers import (
    INTEGERS,
    Builder,
    Built,
    compute,
    forget,
    predicate_slots,
    shape,
    slots,
)
from layoutopt.kernels.sass_memory import MEMORY
from layoutopt.kernels.sass_operands import (
    UnreadableOperand,
    destination,
    is_predicate,
    joined,
    predicate,
    register,
    word,
)
from layoutopt.kernels.sass_text import Function, Instruction
from layoutopt.kernels.values import Bools, Value, constant

# Numbers of barriers that no instruction uses.
CLUSTER_BARRIER: Final = 64

# What S2R reads; what is not here is unknown.
SPECIAL: Final[Mapping[str, Operand]] = {
    **{
        f"SR_{name}.{axis.upper()}": f"${name.lower()}.{axis}"
        for name in ("TID", "CTAID", "NTID", "NCTAID")
        for axis in "xyz"
    },
    "SR_LANEID": "$laneid",
    "SRZ": values.ZERO,
    "SR_CgaCtaId": values.ZERO,
    "SR_CGACTAID": values.ZERO,
    "SR_SWINHI": constant(SHARED_WINDOW),
}
_MASKS: Final[Mapping[str, Callable[[int], int]]] = {
    "EQMASK": lambda lane: 1 << lane,
    "LTMASK": lambda lane: (1 << lane) - 1,
    "LEMASK": lambda lane: (2 << lane) - 1,
    "GTMASK": lambda lane: (1 << 32) - (2 << lane),
    "GEMASK": lambda lane: (1 << 32) - (1 << lane),
}


def steps(function: Function) -> tuple[Step, ...]:
    """The steps of a kernel."""
    reader = _Reader(function)
    return tuple(reader.step(instruction) for instruction in function.instructions)


class _Reader:
    """Reads instructions of one function, whose targets it knows."""

    def __init__(self, function: Function) -> None:
        self._index = {one.address: k for k, one in enumerate(function.instructions)}
        self._labels = function.labels
        self._special: dict[str, Builder] = {
            "BRA": self._branch,
            "JMP": self._branch,
            "CALL": self._call,
            "RET": self._return,
            "BRX": self._indirect,
        }

    def step(self, instruction: Instruction) -> Step:
        """One instruction as a step."""
        guard = None
        if instruction.guard is not None:
            name, negated = instruction.guard
            if not name.endswith("T"):
                guard = Guard(name, negated)
            elif negated:
                guard = Guard("$false")
        try:
            built = self._built(instruction)
        except UnreadableOperand as error:
            built = _refused(instruction, f" ({error})" if str(error) else "")
        return Step(
            address=instruction.address,
            text=instruction.text,
            action=built.action,
            sources=built.sources,
            dests=built.dests,
            guard=guard,
            place=instruction.place,
        )

    def _built(self, instruction: Instruction) -> Built:
        opcode = instruction.opcode
        if opcode in self._special:
            return self._special[opcode](instruction)
        builder = OPERATIONS.get(opcode)
        if builder is None and opcode.startswith("U"):
            builder = OPERATIONS.get(opcode[1:])
        if builder is None:
            return _refused(instruction, "")
        try:
            return builder(instruction)
        except (IndexError, ValueError):
            raise UnreadableOperand("its operands have another form") from None

    def _target(self, text: str) -> int:
        address: int | None = None
        if re.fullmatch(r"0x[0-9a-f]{1,8}", text):
            address = int(text, 16)
        elif match := re.fullmatch(r"`\((.*)\)", text):
            address = self._labels.get(match[1])
        if address not in self._index:
            raise UnreadableOperand(f"no instruction at {text}")
        return self._index[address]

    def _branch(self, instruction: Instruction) -> Built:
        target = self._target(instruction.operands[-1])
        if instruction.has("DIV", "CONV"):
            if instruction.has("CONV"):
                raise UnreadableOperand("CONV")
            return Built(Jump(target, none_left=True), word(instruction.operands[0]).operands)
        if instruction.has("ALL"):
            raise UnreadableOperand("ALL")
        conditions = [predicate(text) for text in instruction.operands[:-1]]
        operands, read = joined(conditions)
        if any(text.startswith("!") for text in instruction.operands[:-1]):
            action = Jump(target, instruction.has("ANY"), condition=lambda *parts: tuple(read(parts)))
        else:
            action = Jump(target, instruction.has("ANY"))
        return Built(action, operands)

    def _call(self, instruction: Instruction) -> Built:
        if instruction.has("ABS"):
            return Built(Refused(f"{_where(instruction)} calls code that is not in the kernel", always=True))
        return Built(Jump(self._target(instruction.operands[-1])))

    def _return(self, instruction: Instruction) -> Built:
        return Built(Jump(None), word(instruction.operands[0]).operands)

    def _indirect(self, instruction: Instruction) -> Built:
        """BRX: to the sum of a register and a number, counted from the next instruction."""
        raise UnreadableOperand("a jump through a table")


def _where(instruction: Instruction) -> str:
    place = instruction.place
    line = f" ({place.file}:{place.line})" if place is not None else ""
    return f"{'.'.join((instruction.opcode, *instruction.modifiers))} at 0x{instruction.address:x}{line}"


_CONTROL: Final = re.compile(r"(B|J|CALL|RET|EXIT|KILL|WARPSYNC|LD|ST|ATOM|RED|SYNC|UBLK|UTMA|TMA|USYNC)")


def _refused(instruction: Instruction, why: str) -> Built:
    """An instruction that is not known may write the registers and predicates that it names first."""
    cells: list[str] = []
    for text in instruction.operands[:3]:
        name = text.split(".")[0].lstrip("-!~|").rstrip("|")
        if is_predicate(name) and not name.endswith("T"):
            cells.append(name)
        elif re.fullmatch(r"U?R\d{1,3}", name):
            cells += [c for c in (register(name, k) for k in range(8)) if isinstance(c, str)]
            break
    always = _CONTROL.match(instruction.opcode) is not None
    text = f"{_where(instruction)} is an instruction that is not known{why}, and what follows depends on it"
    return Built(Refused(text, always), (), tuple(cells))


def _nothing(instruction: Instruction) -> Built:
    return Built(Nothing())


def _read_special(instruction: Instruction) -> Built:
    """S2R, S2UR and CS2R; the latter writes a pair."""
    pairs = instruction.opcode == "CS2R" and not instruction.has("32")
    where = slots(instruction.operands[0], 2 if pairs else 1)
    name = instruction.operands[1]
    mask = next((make for key, make in _MASKS.items() if name == f"SR_{key}"), None)
    cells = tuple(cell for cell in where if cell is not None)
    if mask is not None:
        table = Value(np.array([[mask(lane) for lane in range(32)]], np.uint64))
        return Built(Compute(lambda: (table,) * len(cells)), (), cells)
    if name not in SPECIAL:
        return Built(Forget(f"{name} is not known"), (), cells)
    return Built(Compute(lambda v: (v, values.ZERO)[: len(cells)]), (SPECIAL[name],), cells)


def _mark(instruction: Instruction) -> Built:
    return Built(Mark(instruction.operands[0]))


def _meet(instruction: Instruction) -> Built:
    return Built(Meet(instruction.operands[0]))


def _leave(instruction: Instruction) -> Built:
    names = [text for text in instruction.operands if re.fullmatch(r"B\d+", text)]
    conditions = [text for text in instruction.operands if is_predicate(text)]
    if len(names) != 1 or any(text != "PT" for text in conditions):
        raise UnreadableOperand("BREAK of another form")
    return Built(Leave(names[0]))


def _move_mask(instruction: Instruction) -> Built:
    """BMOV: the mask of a BSSY to or from a register."""
    first, second = instruction.operands[:2]
    if re.fullmatch(r"B\d+", second) and first.startswith("R"):
        if not instruction.has("CLEAR"):
            raise UnreadableOperand("BMOV without CLEAR")
        return Built(Save(second), (), destination(first))
    if re.fullmatch(r"B\d+", first) and second.startswith("R"):
        return Built(Restore(first), word(second).operands)
    raise UnreadableOperand("BMOV of another form")


def _warp_sync(instruction: Instruction) -> Built:
    masks = [text for text in instruction.operands if not text.startswith("`") and not is_predicate(text)]
    mask = word(masks[0]) if masks and not instruction.has("ALL") else word("0xffffffff")
    return Built(Meet(None), mask.operands)


def _barrier(instruction: Instruction) -> Built:
    numbers = [word(text) for text in instruction.operands if not is_predicate(text)]
    if instruction.has("SYNCALL") or not 1 <= len(numbers) <= 2:
        raise UnreadableOperand("a barrier of another form")
    operands, _ = joined(numbers)
    return Built(Barrier(not instruction.has("ARV"), len(numbers) == 2), operands)


def _cluster_barrier(waits: bool) -> Builder:
    return lambda _: Built(Barrier(waits), (constant(CLUSTER_BARRIER),)) if waits else Built(Nothing())


def _exit(instruction: Instruction) -> Built:
    conditions = [text for text in instruction.operands if is_predicate(text) and text != "PT"]
    if conditions:
        raise UnreadableOperand("EXIT with a condition")
    return Built(Exit())


def _shuffle(instruction: Instruction) -> Built:
    """SHFL: another lane's value, as PTX defines it."""
    form = shape(instruction)
    mode = next((m for m in instruction.modifiers if m in ("IDX", "UP", "DOWN", "BFLY")), "")
    if len(form.sources) != 3 or not mode:
        raise UnreadableOperand("SHFL of another form")
    where = [*slots(form.dest), *predicate_slots(form.results, 1)]
    inner = compute(where, [word(text) for text in form.sources], lambda a, b, c: (a, b))
    sources, read = joined([word(text) for text in form.sources])
    kept = [k for k, slot in enumerate(where) if slot is not None]

    def function(active: Bools, *parts: Value) -> tuple[Value, ...]:
        results = shuffle(active, mode, *read(parts))
        return tuple(results[k] for k in kept)

    return Built(Across(function), sources, inner.dests)


def shuffle(active: Bools, mode: str, data: Value, lane: Value, clamp: Value) -> tuple[Value, Value]:
    """What each lane reads from another one and whether that is in range (PTX ISA, shfl.sync).

    Args:
        active: shape (warps, 32).
        mode: IDX, UP, DOWN or BFLY.
        data, lane: of the instruction's operands a and b.
        clamp: operand c: the clamp in bits 0 to 4, the segment mask in bits 8 to 12.
    """
    own = np.arange(32)
    if lane.unknown is not None or clamp.unknown is not None:
        return values.unknown(), values.unknown(1)
    by = np.broadcast_to(lane.bits, active.shape).astype(np.int64) & 31
    limit = np.broadcast_to(clamp.bits, active.shape).astype(np.int64) & 31
    segment = np.broadcast_to(clamp.bits, active.shape).astype(np.int64) >> 8 & 31
    most = (own & segment) | (limit & ~segment)
    least = own & segment
    match mode:
        case "UP":
            source = own - by
            within = source >= most
        case "DOWN":
            source = own + by
            within = source <= most
        case "BFLY":
            source = own ^ by
            within = source <= most
        case _:
            source = least | (by & ~segment)
            within = source <= most
    chosen = np.where(within, source, own) & 31
    bits = np.take_along_axis(np.broadcast_to(data.bits, active.shape), chosen, axis=1)
    hidden = np.zeros(active.shape, np.uint64)
    if data.unknown is not None:
        hidden = np.take_along_axis(np.broadcast_to(data.unknown, active.shape), chosen, axis=1)
    reads_idle = ~np.take_along_axis(active, chosen, axis=1)
    hidden = np.where(reads_idle, values.mask(32), hidden)
    return values.made(bits, hidden, 32), Value(within.astype(np.uint64))


def _vote(instruction: Instruction) -> Built:
    """VOTE: whether all or any lane's predicate holds, and of which lanes."""
    mode = next((m for m in instruction.modifiers if m in ("ALL", "ANY", "EQ")), "")
    if not mode:
        raise UnreadableOperand("VOTE of another form")
    operands = list(instruction.operands)
    asked = operands.pop()
    registers = [text for text in operands if not is_predicate(text)]
    where = [
        *(slots(registers[0]) if registers else [None]),
        *predicate_slots([text for text in operands if is_predicate(text)], 1),
    ]
    source = predicate(asked)
    kept = [k for k, slot in enumerate(where) if slot is not None]

    def function(active: Bools, *parts: Value) -> tuple[Value, ...]:
        results = vote(active, mode, source.value(*parts))
        return tuple(results[k] for k in kept)

    return Built(Across(function), source.operands, tuple(slot for slot in where if slot is not None))


def vote(active: Bools, mode: str, holds: Value) -> tuple[Value, Value]:
    """The lanes of which a predicate holds, as a mask, and whether they are ALL, ANY or equal (EQ)."""
    true = active & (holds.bits != 0)
    weights = np.uint64(1) << np.arange(32, dtype=np.uint64)
    ballot = (true * weights).sum(axis=1, keepdims=True, dtype=np.uint64)
    unsure = np.zeros(active.shape, bool) if holds.unknown is None else active & (holds.unknown != 0)
    hidden = (unsure * weights).sum(axis=1, keepdims=True, dtype=np.uint64)
    false = active & ~true & ~unsure
    some, none = true.any(axis=1, keepdims=True), false.any(axis=1, keepdims=True)
    maybe = unsure.any(axis=1, keepdims=True)
    answer, open_ = {
        "ALL": (~none, maybe & ~none),
        "ANY": (some, maybe & ~some),
        "EQ": (~(some & none), maybe & ~(some & none)),
    }[mode]
    return values.made(ballot, hidden, 32), values.made(answer.astype(np.uint64), open_.astype(np.uint64), 1)


def _elect(instruction: Instruction) -> Built:
    """ELECT: true in one active lane, the first."""
    texts = [text for text in instruction.operands if is_predicate(text)]
    registers = [text for text in instruction.operands if not is_predicate(text)]
    where = [*predicate_slots(texts[:1], 1), *(slots(registers[0]) if registers else [None])]
    kept = [k for k, slot in enumerate(where) if slot is not None]

    def function(active: Bools) -> tuple[Value, ...]:
        first = active.argmax(axis=1)[:, None]
        chosen = (np.arange(32) == first) & active
        results = (Value(chosen.astype(np.uint64)), Value(first.astype(np.uint64)))
        return tuple(results[k] for k in kept)

    return Built(Across(function), (), tuple(slot for slot in where if slot is not None))


def _reduce(instruction: Instruction) -> Built:
    """REDUX: one number out of all active lanes'."""
    operators: dict[str, tuple[np.ufunc, int]] = {
        "OR": (np.bitwise_or, 0),
        "XOR": (np.bitwise_xor, 0),
        "SUM": (np.add, 0),
        "MAX": (np.maximum, 0),
        "MIN": (np.minimum, 0xFFFFFFFF),
    }
    name = next((m for m in instruction.modifiers if m in operators), "")
    if not name or (instruction.has("S32") and name in ("MIN", "MAX")):
        return forget(1)(instruction)
    source = word(instruction.operands[1])
    combine, neutral = operators[name]

    def function(active: Bools, *parts: Value) -> tuple[Value, ...]:
        value = source.value(*parts)
        if value.unknown is not None and (active & (value.unknown != 0)).any():
            return (values.unknown(),)
        numbers = np.where(active, np.broadcast_to(value.bits, active.shape), np.uint64(neutral))
        return (Value(combine.reduce(numbers, axis=1, keepdims=True) & values.mask(32)),)

    where = slots(instruction.operands[0])
    if where[0] is None:
        return Built(Nothing())
    return Built(Across(function), source.operands, (where[0],))


def _mbarrier(instruction: Instruction) -> Built:
    """SYNCS: waiting for a phase is taken as passed at once; other forms return nothing that is known."""
    if instruction.has("PHASECHK"):
        texts = [text for text in instruction.operands if is_predicate(text)]
        where = predicate_slots(texts[:1], 1)
        return compute(where, [], lambda: (values.TRUE,))
    texts = [text for text in instruction.operands[:1] if not text.startswith(("[", "desc["))]
    cells = tuple(cell for text in texts for cell in destination(text, 2)) if texts else ()
    return Built(Forget("the state of a barrier in memory is not followed"), (), cells)


OPERATIONS: Final[Mapping[str, Builder]] = {
    **INTEGERS,
    **FLOATS,
    **MEMORY,
    "ACQBULK": _nothing,
    "ARRIVES": _nothing,
    "B2R": forget(1),
    "BAR": _barrier,
    "BMOV": _move_mask,
    "BREAK": _leave,
    "BSSY": _mark,
    "BSYNC": _meet,
    "CS2R": _read_special,
    "DEPBAR": _nothing,
    "ELECT": _elect,
    "ENDCOLLECTIVE": _nothing,
    "ERRBAR": _nothing,
    "EXIT": _exit,
    "FENCE": _nothing,
    "LDGDEPBAR": _nothing,
    "LEPC": forget(2),
    "MATCH": forget(1),
    "MEMBAR": _nothing,
    "NANOSLEEP": _nothing,
    "NOP": _nothing,
    "PREEXIT": _nothing,
    "REDUX": _reduce,
    "S2R": _read_special,
    "S2UR": _read_special,
    "SETCTAID": _nothing,
    "SHFL": _shuffle,
    "SYNCS": _mbarrier,
    "UCGABAR_ARV": _cluster_barrier(waits=False),
    "UCGABAR_WAIT": _cluster_barrier(waits=True),
    "USETMAXREG": _nothing,
    "VOTE": _vote,
    "VOTEU": _vote,
    "WARPGROUP": _nothing,
    "WARPGROUPSET": _nothing,
    "WARPSYNC": _warp_sync,
    "YIELD": _nothing,
}
