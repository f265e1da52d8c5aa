"""Machine code as steps: one entry an opcode.

An opcode that no table has becomes a step that must not matter: the evaluation names it and ends if it does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from layoutopt.ground.budget import Budget
from layoutopt.kernels.isa.floats import FLOATS
from layoutopt.kernels.isa.integers import (
    INTEGERS,
    Builder,
    Built,
    compute,
    forget,
    predicate_slots,
    slots,
)
from layoutopt.kernels.isa.lanes import LANES
from layoutopt.kernels.isa.listing import Function, Instruction
from layoutopt.kernels.isa.memory import MEMORY
from layoutopt.kernels.isa.operands import (
    UnreadableOperand,
    destination,
    is_predicate,
    joined,
    predicate,
    register,
    word,
)
from layoutopt.kernels.isa.predicates import PREDICATES
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value, constant
from layoutopt.kernels.program import (
    SHARED_WINDOW,
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

INSTRUCTION_BYTES: Final = 16
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


def steps(function: Function, budget: Budget | None = None) -> tuple[Step, ...]:
    """The steps of a kernel.

    Raises:
        OutOfTime: the budget is spent.
    """
    reader = _Reader(function)
    return tuple(reader.step(instruction) for instruction in (budget or Budget()).each(function.instructions))


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
            "EXIT": self._exit,
        }
        self._ends = [
            k
            for k, one in enumerate(function.instructions)
            if one.opcode == "EXIT" and one.guard is None and not one.operands
        ]

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
        builder = self._special.get(opcode) or OPERATIONS.get(opcode)
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
            source = word(instruction.operands[0])
            mask = source.value(*source.operands) if source.operands == (values.ZERO,) else None
            if mask is None and not instruction.operands[0].startswith("UR"):
                raise UnreadableOperand(instruction.operands[0])
            action = Jump(target, none_left=instruction.has("DIV"), all_there=instruction.has("CONV"))
            return Built(action, source.operands if mask is None else (mask,))
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
        try:
            target = None if instruction.has("ABS") else self._target(instruction.operands[-1])
        except UnreadableOperand:
            target = None
        if target is None:
            return Built(
                Forget(f"{_where(instruction)} calls code that is not known", True), (), _LOST_BY_CALLS
            )
        return Built(Jump(target, call=True))

    def _return(self, instruction: Instruction) -> Built:
        return Built(Jump(None), word(instruction.operands[0].split()[0]).operands)

    def _exit(self, instruction: Instruction) -> Built:
        """EXIT; one with a condition is a branch to one without."""
        if all(text == "PT" for text in instruction.operands):
            return Built(Exit())
        if not self._ends:
            raise UnreadableOperand("EXIT with a condition")
        conditions = [predicate(text) for text in instruction.operands]
        operands, read = joined(conditions)
        return Built(Jump(self._ends[-1], condition=lambda *parts: tuple(read(parts))), operands)

    def _indirect(self, instruction: Instruction) -> Built:
        """BRX: to the sum of a register and a number, counted from the next instruction."""
        match = re.match(
            r"(R\d+)\s+(-?0x[0-9a-f]+)\s*\(\*\"BRANCH_TARGETS ([^\"]*)\"", instruction.operands[0]
        )
        if match is None:
            raise UnreadableOperand("a jump through a table that is not told")
        places = tuple(self._target(f"`({label.strip()})") for label in match[3].split(","))
        base = constant(int(match[2], 16) + instruction.address + INSTRUCTION_BYTES)
        return Built(Jump(None, places=places), (register(match[1]), base))


# What functions may change (read off compiled code): they keep the stack pointer, R2, R16 to R31 but for the
# return address in R20 and R21, and uniform registers from UR36 on.
_LOST_BY_CALLS: Final = (
    *(f"R{k}" for k in range(255) if k not in (1, 2) and (not 16 <= k <= 31 or k in (20, 21))),
    *(f"UR{k}" for k in range(36)),
    *(f"{name}{k}" for name in ("P", "UP") for k in range(7)),
)


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
    **LANES,
    **MEMORY,
    **PREDICATES,
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
    "ENDCOLLECTIVE": _nothing,
    "ERRBAR": _nothing,
    "FENCE": _nothing,
    "LDGDEPBAR": _nothing,
    "LEPC": forget(2),
    "MEMBAR": _nothing,
    "NANOSLEEP": _nothing,
    "NOP": _nothing,
    "PREEXIT": _nothing,
    "S2R": _read_special,
    "S2UR": _read_special,
    "SETCTAID": _nothing,
    "SYNCS": _mbarrier,
    "UCGABAR_ARV": _cluster_barrier(waits=False),
    "UCGABAR_WAIT": _cluster_barrier(waits=True),
    "USETMAXREG": _nothing,
    "WARPGROUP": _nothing,
    "WARPGROUPSET": _nothing,
    "WARPSYNC": _warp_sync,
    "YIELD": _nothing,
}
