"""Machine code as steps: one entry an opcode, or an opcode with a modifier that makes it another instruction.

An opcode that no table has becomes a step that forgets what it may write.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from layoutopt.ground.budget import current
from layoutopt.kernels.isa.arithmetic import ARITHMETIC
from layoutopt.kernels.isa.floats import FLOATS
from layoutopt.kernels.isa.listing import Function, Instruction
from layoutopt.kernels.isa.memory import MEMORY
from layoutopt.kernels.isa.operands import (
    Builder,
    Built,
    UnreadableOperand,
    address,
    computed,
    forget,
    is_predicate,
    predicate,
    registers,
    word,
    written,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import constant
from layoutopt.kernels.program import (
    SHARED_WINDOW,
    Barrier,
    Compute,
    Exit,
    Forget,
    Jump,
    Reconverge,
    Source,
    Step,
)

INSTRUCTION_BYTES: Final = 16
# Numbers of barriers that no instruction uses.
CLUSTER_BARRIER: Final = 64

# What S2R reads; what is not here is unknown.
SPECIAL: Final[Mapping[str, Source]] = {
    **{
        f"SR_{name}.{axis.upper()}": Source.cell(f"${name.lower()}.{axis}")
        for name in ("TID", "CTAID", "NTID", "NCTAID")
        for axis in "xyz"
    },
    "SR_LANEID": Source.cell("$laneid"),
    "SRZ": Source.always(values.ZERO),
    **dict.fromkeys(("SR_CgaCtaId", "SR_CGACTAID"), Source.cell("$ctarank")),
    "SR_SWINHI": Source.always(constant(SHARED_WINDOW)),
    **{f"SR_{name}MASK": Source.cell(f"$lanemask.{name.lower()}") for name in ("EQ", "LT", "LE", "GT", "GE")},
}
# What functions may change (read off compiled code): they keep the stack pointer, R2, R16 to R31 but for the
# return address in R20 and R21, and uniform registers from UR36 on.
_LOST_BY_CALLS: Final = (
    *(f"R{k}" for k in range(255) if k not in (1, 2) and (not 16 <= k <= 31 or k in (20, 21))),
    *(f"UR{k}" for k in range(36)),
    *(f"{name}{k}" for name in ("P", "UP") for k in range(7)),
)
# Instructions that may change the way or touch shared memory.
_CONTROL: Final = re.compile(r"(B|J|CALL|RET|EXIT|KILL|WARPSYNC|LD|ST|ATOM|RED|SYNC|UBLK|UTMA|TMA|USYNC)")


def steps(function: Function) -> tuple[Step, ...]:
    """The steps of a kernel.

    Kernels for sm_87 begin by clearing what BSYNC looks at, unless a uniform register that nothing has
    written says that this was done. Either way it is clear, so what is read there counts as 0.
    """
    table = {**OPERATIONS, **_Jumps(function).table}
    found = [_step(one, table) for one in current().each(function.instructions)]
    if function.target == "sm_87" and found:
        zero = Source.always(values.ZERO)
        sources = (zero if any("UR" in cell for cell in one.cells) else one for one in found[0].sources)
        found[0] = replace(found[0], sources=tuple(sources))
    return _repaired(function, found)


def _repaired(function: Function, found: list[Step]) -> tuple[Step, ...]:
    """The steps; approximations with which integers are divided, of I2F.RP, are as good as exact.

    What follows there repairs the last bits, so that nothing is to be evaluated with other ones.
    """
    divisors: set[str] = set()
    for k, (inst, step) in enumerate(zip(function.instructions, found, strict=True)):
        if isinstance(step.action, Compute) and step.action.near and step.cells <= divisors:
            found[k] = replace(step, action=Compute(step.action.function))
        if inst.opcode.startswith("I2F") and inst.has("RP"):
            divisors.update(step.dests)
        else:
            divisors.difference_update(step.dests)
    return tuple(found)


def _step(inst: Instruction, table: Mapping[str, Builder]) -> Step:
    """An instruction as a step, by the first entry: of its opcode with a modifier, or alone.

    Uniform instructions without an entry of their own are taken as what they are without the U.
    """
    guard = None if inst.guard in ("", "PT", "UPT") else predicate(inst.guard)
    opcodes = (inst.opcode, inst.opcode[1:]) if inst.opcode.startswith("U") else (inst.opcode,)
    names = (f"{opcode}{m}" for opcode in opcodes for m in (*(f".{m}" for m in inst.modifiers), ""))
    builder = next((table[name] for name in names if name in table), None)
    try:
        built = builder(inst) if builder is not None else _unknown(inst, "")
    except UnreadableOperand as error:
        built = _unknown(inst, f" ({error})" if str(error) else "")
    except (IndexError, ValueError):
        built = _unknown(inst, " (its operands have another form)")
    return Step(inst.address, inst.text, *built, guard, inst.place)


def _unknown(inst: Instruction, why: str) -> Built:
    """An instruction that is not known may write the registers and predicates that it names first."""
    counts = _CONTROL.match(inst.opcode) is not None
    return Built(
        Forget(f"is an instruction that is not known{why}", counts, fills=counts), (), written(inst, 8)
    )


class _Jumps:
    """Instructions that go to other ones of their function."""

    def __init__(self, function: Function) -> None:
        self._index = {one.address: k for k, one in enumerate(function.instructions)}
        self._labels = function.labels
        # Exits of all lanes that come there.
        self._ends = [k for k, one in enumerate(function.instructions) if one.text == "EXIT"]
        self.table: dict[str, Builder] = {
            "BRA": self._branch,
            **dict.fromkeys(("BRX", "BRXU"), self._indirect),
            "CALL": self._call,
            "EXIT": self._exit,
            "JMP": self._branch,
            "RET": lambda inst: Built(Jump(None), (word(inst.operands[0].split()[0]),)),
        }

    def _target(self, text: str) -> int:
        if re.fullmatch(r"0x[0-9a-f]{1,8}", text):
            address: int | None = int(text, 16)
        else:
            address = self._labels.get(text.removeprefix("`(").removesuffix(")"))
        if address not in self._index:
            raise UnreadableOperand(f"no instruction at {text}")
        return self._index[address]

    def _branch(self, inst: Instruction) -> Built:
        target = self._target(inst.operands[-1])
        if inst.has("DIV", "CONV"):
            mask = word(inst.operands[0] if len(inst.operands) > 1 else "0xffffffff")
            return Built(Jump(target, mask="DIV" if inst.has("DIV") else "CONV"), (mask,))
        if inst.has("ALL"):
            raise UnreadableOperand("ALL")
        return _conditional(target, inst.operands[:-1], together=inst.has("ANY"))

    def _call(self, inst: Instruction) -> Built:
        try:
            if not inst.has("ABS"):
                return Built(Jump(self._target(inst.operands[-1]), call=True))
        except UnreadableOperand:
            pass
        return Built(Forget("calls code that is not known", counts=True), (), _LOST_BY_CALLS)

    def _exit(self, inst: Instruction) -> Built:
        """EXIT; one with a condition is a branch to one without."""
        if all(text == "PT" for text in inst.operands):
            return Built(Exit())
        if not self._ends:
            raise UnreadableOperand("EXIT with a condition")
        return _conditional(self._ends[-1], inst.operands)

    def _indirect(self, inst: Instruction) -> Built:
        """BRX and BRXU: to the sum of a register and a number, counted from the next instruction."""
        match = re.match(r"(U?R\d+)\s+(-?0x[0-9a-f]+)\s*\(\*\"BRANCH_TARGETS ([^\"]*)\"", inst.operands[0])
        if match is None:
            raise UnreadableOperand("a jump through a table that is not told")
        places = tuple(self._target(label.strip()) for label in match[3].split(","))
        base = int(match[2], 16) + inst.address + INSTRUCTION_BYTES
        return Built(Jump(None, places=places), (address(f"[{match[1]}+{base:#x}]", wide=False),))


def _conditional(target: int, texts: tuple[str, ...], together: bool = False) -> Built:
    """A jump where all of these predicates hold."""
    return Built(Jump(target, together), tuple(predicate(text) for text in texts))


def _read_special(inst: Instruction) -> Built:
    """S2R, S2UR and CS2R; the latter writes a pair."""
    pairs = inst.opcode == "CS2R" and not inst.has("32")
    dest, name = inst.operands
    if name not in SPECIAL:
        return Built(Forget(), (), registers(dest, 2 if pairs else 1))
    return computed(inst, [("d" if pairs else "r", dest)], [SPECIAL[name]], lambda _, value: value)


def _left(inst: Instruction) -> Built:
    """BREAK."""
    (name,) = (text for text in inst.operands if re.fullmatch(r"B\d+", text))
    if any(text != "PT" for text in inst.operands if is_predicate(text)):
        raise UnreadableOperand("BREAK of another form")
    return Built(Reconverge(leaves=True), (Source.cell(name),), (name,))


def _warp_sync(inst: Instruction) -> Built:
    masks = [text for text in inst.operands if not text.startswith("`") and not is_predicate(text)]
    whole = inst.has("ALL") or not masks
    action = Reconverge(parts=inst.has("EXCLUSIVE", "COLLECTIVE"))
    return Built(action, (word("0xffffffff" if whole else masks[0]),))


def _barrier(inst: Instruction) -> Built:
    sources = [word(text) for text in inst.operands if not is_predicate(text)]
    how: Any = next((m for m in inst.modifiers if m in ("OR", "AND", "POPC")), "")
    if inst.has("SYNCALL", "SCAN") or not 1 <= len(sources) <= 2 or inst.has("RED") != bool(how):
        raise UnreadableOperand("a barrier of another form")
    if not how:
        return Built(Barrier(not inst.has("ARV")), tuple(sources))
    holds = predicate(next(text for text in inst.operands if is_predicate(text)))
    return Built(Barrier(reduces=how), (*sources, holds), ("$barrier",))


def _barrier_result(inst: Instruction) -> Built:
    """B2R.RESULT: what BAR.RED found, as a number and as a predicate."""
    told = next((text for text in inst.operands if is_predicate(text)), "PT")
    where = [("r", inst.operands[0]), ("p", told)]
    found = Source.cell("$barrier")
    return computed(inst, where, [found], lambda _, v: (v, values.compare("ne", v, values.ZERO)))


def _mbarrier(inst: Instruction) -> Built:
    """SYNCS: waiting for a phase is taken as passed at once; other forms return nothing that is known."""
    if inst.has("PHASECHK"):
        told = [("p", text) for text in inst.operands if is_predicate(text)][:1]
        return computed(inst, told, [], lambda _: values.TRUE)
    state = inst.operands[0]
    return Built(Forget(), (), () if state.startswith(("[", "desc[")) else registers(state, 2))


OPERATIONS: Final[Mapping[str, Builder]] = {
    **ARITHMETIC,
    **FLOATS,
    **MEMORY,
    "B2R": forget(1),
    "B2R.RESULT": _barrier_result,
    "BAR": _barrier,
    "BREAK": _left,
    "BSYNC": lambda inst: Built(Reconverge(), (Source.cell(inst.operands[0]),)),
    "LEPC": forget(2),
    "SYNCS": _mbarrier,
    "UCGABAR_WAIT": lambda _: Built(Barrier(), (Source.always(constant(CLUSTER_BARRIER)),)),
    "WARPSYNC": _warp_sync,
    **dict.fromkeys(("CS2R", "S2R", "S2UR"), _read_special),
    # Bulk copies fill shared memory from elsewhere: none of the three counters counts them.
    **dict.fromkeys(
        ("UBLKCP", "UBLKRED", "UTMALDG", "UTMAREDG", "UTMASTG"), lambda _: Built(Forget(fills=True))
    ),
    # Neither results nor order of these matter.
    **dict.fromkeys(
        (
            *("ACQBULK", "ARRIVES", "CCTL", "CCTLL", "CCTLT", "DEPBAR", "ENDCOLLECTIVE", "ERRBAR", "FENCE"),
            *("LDGDEPBAR", "MEMBAR", "NANOSLEEP", "NOP", "PREEXIT", "SETCTAID", "SUST", "UBLKPF"),
            *("UCGABAR_ARV", "USETMAXREG", "UTMACCTL", "UTMACMDFLUSH", "UTMAPF", "WARPGROUP"),
            *("WARPGROUPSET", "YIELD"),
        ),
        lambda _: Built(Forget()),
    ),
}
