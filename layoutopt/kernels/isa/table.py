"""Machine code as steps: one entry an opcode, or an opcode with a modifier that makes it another instruction.

An opcode that no table has becomes a step that forgets what it may write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal

import numpy as np

from layoutopt.ground.budget import Budget
from layoutopt.kernels.isa.floats import FLOATS
from layoutopt.kernels.isa.integers import INTEGERS
from layoutopt.kernels.isa.lanes import LANES
from layoutopt.kernels.isa.listing import Function, Instruction
from layoutopt.kernels.isa.memory import MEMORY, nothing
from layoutopt.kernels.isa.operands import (
    Builder,
    Built,
    Source,
    UnreadableOperand,
    computed,
    forget,
    is_predicate,
    joined,
    predicate,
    register,
    registers,
    word,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value, constant
from layoutopt.kernels.program import (
    SHARED_WINDOW,
    Barrier,
    Exit,
    Forget,
    Guard,
    Jump,
    Operand,
    Reconverge,
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
    **{
        f"SR_{name}MASK": Value(np.array([masks], np.uint64))
        for name, masks in {
            "EQ": [1 << lane for lane in range(32)],
            "LT": [(1 << lane) - 1 for lane in range(32)],
            "LE": [(2 << lane) - 1 for lane in range(32)],
            "GT": [(1 << 32) - (2 << lane) for lane in range(32)],
            "GE": [(1 << 32) - (1 << lane) for lane in range(32)],
        }.items()
    },
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
        jumps: dict[str, Builder] = {
            "BRA": self._branch,
            "JMP": self._branch,
            "CALL": self._call,
            "RET": lambda one: Built(Jump(None), word(one.operands[0].split()[0]).operands),
            "BRX": self._indirect,
            "EXIT": self._exit,
        }
        self._table = {**OPERATIONS, **jumps}
        self._ends = [
            k
            for k, one in enumerate(function.instructions)
            if one.opcode == "EXIT" and one.guard is None and not one.operands
        ]

    def step(self, one: Instruction) -> Step:
        """One instruction as a step."""
        guard = None
        if one.guard is not None:
            name, negated = one.guard
            if not name.endswith("T"):
                guard = Guard(name, negated)
            elif negated:
                guard = Guard("$false")
        opcodes = (one.opcode, one.opcode[1:]) if one.opcode.startswith("U") else (one.opcode,)
        names = [f"{opcode}{m}" for opcode in opcodes for m in (*(f".{m}" for m in one.modifiers), "")]
        builder = next((self._table[name] for name in names if name in self._table), None)
        try:
            action, sources, dests = builder(one) if builder is not None else _unknown(one, "")
        except UnreadableOperand as error:
            action, sources, dests = _unknown(one, f" ({error})" if str(error) else "")
        except (IndexError, ValueError):
            action, sources, dests = _unknown(one, " (its operands have another form)")
        return Step(
            address=one.address,
            text=one.text,
            action=action,
            sources=sources,
            dests=dests,
            guard=guard,
            place=one.place,
        )

    def _target(self, text: str) -> int:
        address: int | None = None
        if re.fullmatch(r"0x[0-9a-f]{1,8}", text):
            address = int(text, 16)
        elif match := re.fullmatch(r"`\((.*)\)", text):
            address = self._labels.get(match[1])
        if address not in self._index:
            raise UnreadableOperand(f"no instruction at {text}")
        return self._index[address]

    def _branch(self, one: Instruction) -> Built:
        target = self._target(one.operands[-1])
        if one.has("DIV", "CONV"):
            mask = word(one.operands[0])
            if not one.operands[0].startswith("UR"):
                raise UnreadableOperand(one.operands[0])
            return Built(Jump(target, mask="DIV" if one.has("DIV") else "CONV"), mask.operands)
        if one.has("ALL"):
            raise UnreadableOperand("ALL")
        return _conditional(target, one.operands[:-1], together=one.has("ANY"))

    def _call(self, one: Instruction) -> Built:
        try:
            target = None if one.has("ABS") else self._target(one.operands[-1])
        except UnreadableOperand:
            target = None
        if target is None:
            why = f"{_where(one)} calls code that is not known"
            return Built(Forget(why, counts=True), (), _LOST_BY_CALLS)
        return Built(Jump(target, call=True))

    def _exit(self, one: Instruction) -> Built:
        """EXIT; one with a condition is a branch to one without."""
        if all(text == "PT" for text in one.operands):
            return Built(Exit())
        if not self._ends:
            raise UnreadableOperand("EXIT with a condition")
        return _conditional(self._ends[-1], one.operands)

    def _indirect(self, one: Instruction) -> Built:
        """BRX: to the sum of a register and a number, counted from the next instruction."""
        match = re.match(r"(R\d+)\s+(-?0x[0-9a-f]+)\s*\(\*\"BRANCH_TARGETS ([^\"]*)\"", one.operands[0])
        if match is None:
            raise UnreadableOperand("a jump through a table that is not told")
        places = tuple(self._target(f"`({label.strip()})") for label in match[3].split(","))
        base = constant(int(match[2], 16) + one.address + INSTRUCTION_BYTES)
        return Built(Jump(None, places=places), (register(match[1]), base))


def _conditional(target: int, texts: tuple[str, ...], together: bool = False) -> Built:
    """A jump where all of these predicates hold."""
    operands, read = joined([predicate(text) for text in texts])
    condition: Callable[..., list[Value]] | None = (lambda *parts: read(parts)) if texts else None
    return Built(Jump(target, together, condition=condition), operands)


# What functions may change (read off compiled code): they keep the stack pointer, R2, R16 to R31 but for the
# return address in R20 and R21, and uniform registers from UR36 on.
_LOST_BY_CALLS: Final = (
    *(f"R{k}" for k in range(255) if k not in (1, 2) and (not 16 <= k <= 31 or k in (20, 21))),
    *(f"UR{k}" for k in range(36)),
    *(f"{name}{k}" for name in ("P", "UP") for k in range(7)),
)


def _where(one: Instruction) -> str:
    line = f" ({one.place.file}:{one.place.line})" if one.place is not None else ""
    return f"{'.'.join((one.opcode, *one.modifiers))} at 0x{one.address:x}{line}"


# Instructions that may change the way or touch shared memory.
_CONTROL: Final = re.compile(r"(B|J|CALL|RET|EXIT|KILL|WARPSYNC|LD|ST|ATOM|RED|SYNC|UBLK|UTMA|TMA|USYNC)")


def _unknown(one: Instruction, why: str) -> Built:
    """An instruction that is not known may write the registers and predicates that it names first."""
    cells: list[str] = []
    for text in one.operands[:3]:
        name = text.split(".")[0].lstrip("-!~|").rstrip("|")
        if is_predicate(name) and not name.endswith("T"):
            cells.append(name)
        elif re.fullmatch(r"U?R\d{1,3}", name):
            cells += [c for c in (register(name, k) for k in range(8)) if isinstance(c, str)]
            break
    counts = _CONTROL.match(one.opcode) is not None
    text = f"{_where(one)} is an instruction that is not known{why}"
    return Built(Forget(text, counts, fills=counts), (), tuple(cells))


def _read_special(one: Instruction) -> Built:
    """S2R, S2UR and CS2R; the latter writes a pair."""
    pairs = one.opcode == "CS2R" and not one.has("32")
    name = one.operands[1]
    if name not in SPECIAL:
        return Built(Forget(), (), registers(one.operands[0], 2 if pairs else 1))
    source = Source((SPECIAL[name],), lambda value: value)
    return computed(one, [("d" if pairs else "r", one.operands[0])], [source], lambda _, value: value)


def _mask_moved(one: Instruction) -> Built:
    """BMOV: the mask of a BSSY to or from a register."""
    first, second = one.operands[:2]
    if re.fullmatch(r"B\d+", second) and first.startswith("R") and one.has("CLEAR"):
        return Built(Reconverge("save", second), (), registers(first))
    if re.fullmatch(r"B\d+", first) and second.startswith("R"):
        return Built(Reconverge("restore", first), word(second).operands)
    raise UnreadableOperand("BMOV of another form")


def _left(one: Instruction) -> Built:
    """BREAK."""
    names = [text for text in one.operands if re.fullmatch(r"B\d+", text)]
    if len(names) != 1 or any(text != "PT" for text in one.operands if is_predicate(text)):
        raise UnreadableOperand("BREAK of another form")
    return Built(Reconverge("leave", names[0]))


def _warp_sync(one: Instruction) -> Built:
    masks = [text for text in one.operands if not text.startswith("`") and not is_predicate(text)]
    mask = word(masks[0]) if masks and not one.has("ALL") else word("0xffffffff")
    return Built(Reconverge("meet"), mask.operands)


def _barrier(one: Instruction) -> Built:
    numbers = [word(text) for text in one.operands if not is_predicate(text)]
    asked = [text for text in one.operands if is_predicate(text)]
    how = [one.has(name) for name in ("OR", "AND", "POPC")]
    if one.has("SYNCALL", "SCAN") or not 1 <= len(numbers) <= 2 or one.has("RED") != any(how):
        raise UnreadableOperand("a barrier of another form")
    operands, _ = joined(numbers)
    if not one.has("RED"):
        return Built(Barrier(not one.has("ARV")), operands)
    holds = predicate(asked[0])
    reduces: Literal["OR", "AND", "POPC"] = "OR" if how[0] else "AND" if how[1] else "POPC"
    action = Barrier(reduces=reduces, condition=holds.value)
    return Built(action, (*operands, *holds.operands), ("$barrier",))


def _barrier_result(one: Instruction) -> Built:
    """B2R.RESULT: what BAR.RED found, as a number and as a predicate."""
    if not one.has("RESULT"):
        return forget(1)(one)
    predicates = [text for text in one.operands if is_predicate(text)] or ["PT"]
    where = [("r", one.operands[0]), ("p", predicates[0])]
    source = Source(("$barrier",), lambda value: value)
    return computed(one, where, [source], lambda _, v: (v, values.invert(values.equal(v, values.ZERO), 1)))


def _mbarrier(one: Instruction) -> Built:
    """SYNCS: waiting for a phase is taken as passed at once; other forms return nothing that is known."""
    if one.has("PHASECHK"):
        told = [text for text in one.operands if is_predicate(text)][:1]
        return computed(one, [("p", text) for text in told], [], lambda _: values.TRUE)
    state = one.operands[0]
    return Built(Forget(), (), () if state.startswith(("[", "desc[")) else registers(state, 2))


OPERATIONS: Final[Mapping[str, Builder]] = {
    **INTEGERS,
    **FLOATS,
    **LANES,
    **MEMORY,
    "B2R": _barrier_result,
    "BAR": _barrier,
    "BMOV": _mask_moved,
    "BREAK": _left,
    "BSSY": lambda one: Built(Reconverge("mark", one.operands[0])),
    "BSYNC": lambda one: Built(Reconverge("meet", one.operands[0])),
    "CS2R": _read_special,
    "LEPC": forget(2),
    "S2R": _read_special,
    "S2UR": _read_special,
    "SYNCS": _mbarrier,
    "UCGABAR_WAIT": lambda _: Built(Barrier(), (constant(CLUSTER_BARRIER),)),
    "WARPSYNC": _warp_sync,
    **dict.fromkeys(
        (
            *("ACQBULK", "ARRIVES", "DEPBAR", "ENDCOLLECTIVE", "ERRBAR", "FENCE", "LDGDEPBAR", "MEMBAR"),
            *("NANOSLEEP", "NOP", "PREEXIT", "SETCTAID", "UCGABAR_ARV", "USETMAXREG", "WARPGROUP"),
            *("WARPGROUPSET", "YIELD"),
        ),
        nothing,
    ),
}
