"""Which instructions of PTX reach which arrays of shared memory, and where an address goes elsewhere."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from layoutopt.errors import ProblemFileError
from layoutopt.kernels.ptx.text import TYPE_BYTES, Function, Instruction, Module

_WORD: Final = re.compile(r"[A-Za-z_$%][\w$`]*")
# Instructions on one lane's bytes at an address, whose address can be another.
_LANE_ACCESSES: Final = ("ld", "st", "atom", "red", "ldmatrix", "stmatrix")
_SPACES: Final = ("global", "local", "param", "const", "shared")
# The first operand of these is not a result.
_NO_RESULT: Final = frozenset(
    ("st", "red", "stmatrix", "bar", "barrier", "bra", "ret", "exit", "cp", "prefetch", "call")
)
# What may take an address and does not reach memory by it.
_NO_ACCESS: Final = {
    "mov", "add", "sub", "mul", "mad", "mad24", "mul24", "and", "or", "xor", "not", "shl", "shr", "shf",
    "lop3", "bfe", "bfi", "prmt", "min", "max", "selp", "setp", "cvt", "shfl", "vote", "neg", "abs", "rem",
    "div", "popc", "clz", "brev", "sad", "slct", "set", "fma", "isspacep", "addc", "subc", "madc", "cnot",
    "bfind", "cvta", "bar", "barrier", "match", "redux", "dp4a", "dp2a", "prefetch", "bra", "ret", "exit",
}  # fmt: skip
# Functions of the driver that say something and do not follow an address.
_SAY: Final = ("vprintf", "__assertfail")
# Instructions that may reach shared memory by what they do not call an address.
_DESCRIBED: Final = ("wgmma", "tcgen05", "wmma")
# Where an array's name stands: something out of memory, which may be an address that was stored there.
_LOADED: Final = "?"
# Floats, sums that saturate, and high words: their low bits do not follow from those of the operands.
_UNKNOWN_LOW_BITS: Final = re.compile(r"\.(?:(?:f|bf|tf)\d|sat\b|hi\b)")
_NUMBER: Final = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0|[1-9]\d*)")
# Alignment of 0, in bits.
_ZERO_BITS: Final = 64


class Use(NamedTuple):
    """An instruction that reaches an array by a lane's address, or may."""

    function: Function  # where it stands
    instruction: Instruction  # what it is
    held: "dict[str, Held]"  # what registers of the function hold
    sure: bool  # it reaches no other array
    generic: bool  # its address is one of all memory, not of shared memory


class Held(NamedTuple):
    """What a register may hold."""

    arrays: frozenset[str]  # of shared memory, whose addresses may have gone into it
    zeros: int  # low bits that are surely 0, counted from the start of one array


def uses_of(module: Module, name: str, entry: str) -> list[Use]:
    """Every instruction of a kernel, and of the functions that it may call, that may reach an array.

    Registers keep what they hold, so that only accesses matter: those by an address of the array, and those
    by an address that is not known. Other kernels of the file keep theirs: each launch has shared memory of
    its own.

    Raises:
        ProblemFileError: an instruction takes the address that cannot be given another one; the message names
            it. Or a function that reaches the array serves other kernels, too.
    """
    names = {variable.name: frozenset((variable.name,)) for variable in module.variables}
    names |= dict.fromkeys(same_array(module, name), frozenset((name,)))
    called = _may_call(module, entry)
    functions = [function for function in module.functions.values() if function.name in called]
    reaches = [Reach(function, name, names) for function in functions]
    leaves = any(one.leaves() for one in reaches)
    for one in reaches:
        one.check(module, leaves)
    found = [use for one in reaches for use in one.uses(leaves)]
    helpers = {use.function.name for use in found} - {entry}
    for other in module.functions.values():
        if other.entry and other.name != entry and helpers & _may_call(module, other.name):
            raise ProblemFileError(name, f"cannot be moved: {other.name} calls the same functions as {entry}")
    return found


def _may_call(module: Module, entry: str) -> set[str]:
    """A kernel and the functions that it may call: all, where it calls one by its address, or elsewhere."""
    helpers = {f.name for f in module.functions.values() if f.body is not None and not f.entry}
    found, ahead = {entry}, [entry]
    while ahead:
        function = module.functions[ahead.pop()]
        calls = {item.operands[0] for item in function.body or () if item.opcode.split(".")[0] == "call"}
        named = set(_WORD.findall(module.text[slice(*function.span)]))
        reached = helpers & named if calls <= helpers.union(_SAY) else helpers
        ahead += reached - found
        found |= reached
    return found


def same_array(module: Module, name: str) -> frozenset[str]:
    """The names of an array: all those of dynamic shared memory begin at one place."""
    extern = frozenset(variable.name for variable in module.variables if variable.extern)
    return extern if name in extern else frozenset((name,))


class Reach:
    """What a function does with the address of an array.

    Args:
        function: of the file.
        name: of the array.
        names: the arrays that each name of the file is an address of.
    """

    def __init__(self, function: Function, name: str, names: Mapping[str, frozenset[str]]) -> None:
        self._function, self._name, self._names = function, name, names
        self.held: dict[str, Held] = {}  # what its registers may hold
        self._hold()

    def _hold(self) -> None:
        """Find what registers may hold.

        A register that several instructions write has the arrays of all, and the fewest zeros. Instructions
        are gone through until nothing changes, as loops write what earlier instructions read.
        """
        changed = True
        while changed:
            changed = False
            for item in self._function.body or ():
                word = item.opcode.split(".")[0]
                if len(item.operands) < 2 or word in _NO_RESULT:
                    continue
                operands = item.operands[1:]
                zeros = _result_zeros(item, list(map(self._low_zeros, operands)))
                is_loaded = word in ("ld", "atom", "ldmatrix")
                arrays = frozenset((_LOADED,)) if is_loaded else self._arrays_in(" ".join(operands))
                for register in _WORD.findall(item.operands[0]):
                    if self._function.registers.get(register) == "pred":
                        continue  # one bit is no address
                    before = self.held.get(register, Held(frozenset(), _ZERO_BITS + 1))
                    self.held[register] = Held(before.arrays | arrays, min(before.zeros, zeros))
                    changed |= self.held[register] != before

    def _arrays_in(self, text: str) -> frozenset[str]:
        """The arrays whose addresses an operand may have."""
        held, words = self.held, _WORD.findall(text)
        return frozenset().union(*(held[w].arrays if w in held else self._names.get(w, ()) for w in words))

    def _low_zeros(self, text: str) -> int:
        """Low bits of an operand that are surely 0, counted from the start of the array."""
        symbol, _, offset = text.partition("+")
        if self._name in self._names.get(symbol, ()):
            text = offset or "0"
        if _NUMBER.fullmatch(text):
            number = int(text, 0)
            return (number & -number).bit_length() - 1 if number else _ZERO_BITS
        if text not in self._function.registers:
            return 0
        return self.held[text].zeros if text in self.held else _ZERO_BITS

    def leaves(self) -> bool:
        """Whether an address of the array goes to memory or to a function: any register may have it then."""
        takers = (*_LANE_ACCESSES, "call")
        items = (item for item in self._function.body or () if item.opcode.split(".")[0] in takers)
        return any(self._may_reach(text, leaves=False) for item in items for text in _operands(item)[1])

    def check(self, module: Module, leaves: bool) -> None:
        """Refuse instructions that take the address and cannot be given another one."""
        for item in self._function.body or ():
            word, (place, others) = item.opcode.split(".")[0], _operands(item)
            if word == "call":
                called = module.functions.get(item.operands[0])
                if leaves and called is not None and called.body is None and called.name not in _SAY:
                    raise _refusal(item, self._name, f"{called.name}, whose code is not here, may reach it")
                continue
            if place is not None or word in _NO_ACCESS or word in _LANE_ACCESSES:
                continue
            unknown = leaves and (word in _DESCRIBED or "shared" in item.opcode)
            if any(self._may_reach(text, unknown) for text in others):
                raise _refusal(item, self._name, "it reaches more than one lane's bytes")

    def uses(self, leaves: bool) -> Iterator[Use]:
        """The instructions that reach the array, or may."""
        for item in self._function.body or ():
            place, _ = _operands(item)
            if place is None:
                continue
            spaces = {word.split("::")[0] for word in item.opcode.split(".")}.intersection(_SPACES)
            generic, held = not spaces, self._arrays_in(place)
            arrays = held - {_LOADED}
            # An address of shared memory that is in no array as far as is known may be in this one.
            open_ = not generic and not arrays
            if (generic or "shared" in spaces) and (open_ or self._may_reach(place, leaves)):
                sure = not generic and arrays == {self._name} and (not leaves or _LOADED not in held)
                yield Use(self._function, item, self.held, sure, generic)

    def _may_reach(self, text: str, leaves: bool) -> bool:
        """Whether an operand may be an address of the array."""
        reached = self._arrays_in(text)
        return self._name in reached or (leaves and "%" in text and (not reached or _LOADED in reached))


def _operands(item: Instruction) -> tuple[str | None, list[str]]:
    """The operand that is a lane's address, if there is one; and the other operands but for results."""
    word, operands = item.opcode.split(".")[0], item.operands
    address = None
    if word in _LANE_ACCESSES or item.opcode.startswith(("cp.async.ca", "cp.async.cg")):
        address = next((k for k, text in enumerate(operands) if text.startswith("[")), None)
    has_result = word not in _NO_RESULT and not (operands[:1] and operands[0].startswith("["))
    others = [text for k, text in enumerate(operands) if k != address and k >= has_result]
    return None if address is None else operands[address], others


def _refusal(item: Instruction, name: str, why: str) -> ProblemFileError:
    """The error that array `name` cannot be moved because of an instruction."""
    where = f"{item.place.file}:{item.place.line}, " if item.place else ""
    return ProblemFileError(
        name, f"cannot be moved: {item.opcode} ({where}line {item.line} of the PTX): {why}"
    )


def access_bytes(item: Instruction) -> int:
    """Bytes that an instruction accesses at each lane's address."""
    words = item.opcode.split(".")
    if words[0] in ("ldmatrix", "stmatrix"):
        return 16
    if words[0] == "cp":
        return int(item.operands[2], 0)
    kind = next((TYPE_BYTES[word] for word in reversed(words) if word in TYPE_BYTES), 1)
    return kind * next((int(word[1:]) for word in words if word in ("v2", "v4", "v8")), 1)


def _result_zeros(item: Instruction, zeros: list[int]) -> int:
    """Low bits that are 0 in the result of an instruction, whose operands have these numbers of them."""
    if _UNKNOWN_LOW_BITS.search(item.opcode) or item.operands[0].startswith("{"):
        return 0
    match item.opcode.split(".")[0]:
        case "mov" | "cvt" | "cvta":
            result = zeros[0]
        case "add" | "sub" | "or" | "xor" | "min" | "max" | "selp":
            result = min(zeros[:2])
        case "and":
            result = max(zeros[:2])
        case "mul":
            result = sum(zeros[:2])
        case "mad":
            result = min(sum(zeros[:2]), zeros[2])
        case "shl":
            amount = item.operands[2]
            result = zeros[0] + (int(amount) if amount.isdecimal() else 0)
        case _:
            result = 0
    return min(result, _ZERO_BITS)
