"""Which instructions of PTX use which arrays of shared memory, and where an address goes elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from layoutopt.errors import ProblemFileError
from layoutopt.kernels.ptx.text import TYPE_BYTES, Function, Instruction, Module

_WORD: Final = re.compile(r"[A-Za-z_$%][\w$`]*")
# Instructions on one lane's bytes at an address, whose address can be another.
_LANES: Final = ("ld", "st", "atom", "red", "ldmatrix", "stmatrix")
# The first operand of these is not a result.
_NO_RESULT: Final = frozenset(
    ("st", "red", "stmatrix", "bar", "barrier", "bra", "ret", "exit", "cp", "prefetch", "call")
)
# What may take an address and does not reach memory by it.
_PLAIN: Final = {
    "mov", "add", "sub", "mul", "mad", "mad24", "mul24", "and", "or", "xor", "not", "shl", "shr", "shf",
    "lop3", "bfe", "bfi", "prmt", "min", "max", "selp", "setp", "cvt", "shfl", "vote", "neg", "abs", "rem",
    "div", "popc", "clz", "brev", "sad", "slct", "set", "fma", "isspacep", "addc", "subc", "madc", "cnot",
    "bfind",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Use:
    """An instruction that reaches an array by a lane's address.

    Attributes:
        function: where it stands.
        instruction: what it is.
        aligned: low bits that are surely 0 in registers of the function, counted from the start of the array.
    """

    function: Function
    instruction: Instruction
    aligned: Mapping[str, int]


def shared_names(module: Module) -> set[str]:
    """All arrays of shared memory that the file declares."""
    variables = [*module.variables, *(v for f in module.functions.values() for v in f.variables)]
    return {v.name for v in variables if v.space == "shared"}


def uses_of(module: Module, name: str, entry: str) -> list[Use]:
    """Every instruction of a kernel, and of the functions beside it, that reaches an array of shared memory.

    Other kernels of the file keep theirs: each launch has shared memory of its own.

    Raises:
        ProblemFileError: an address of the array goes where it cannot be followed; the message names the
            instruction. Or a function that reaches it serves other kernels, too.
    """
    names = shared_names(module)
    extern = {v.name for v in module.variables if v.space == "shared" and v.extern}
    if name in extern and len(extern) > 1:
        others = ", ".join(sorted(extern - {name}))
        raise ProblemFileError(name, f"expected one name for dynamic shared memory, got {others} beside it")
    found = []
    for function in module.functions.values():
        if function.body is not None and (function.name == entry or not function.entry):
            found += list(_uses(function, name, names))
    helpers = {use.function.name for use in found} - {entry}
    for other in module.functions.values():
        words = set(_WORD.findall(module.text[slice(*other.span)])) if other.entry else set()
        if other.name != entry and helpers & words:
            raise ProblemFileError(name, f"cannot be moved: {other.name} calls the same functions as {entry}")
    return found


def _uses(function: Function, name: str, names: set[str]) -> Iterator[Use]:
    reaches, aligned = _reaches(function, names), alignments(function, name)

    def arrays(text: str) -> set[str]:
        return set().union(*(({w} & names) | reaches.get(w, set()) for w in _WORD.findall(text)), set())

    for item in function.body or ():
        words = item.opcode.split(".")
        place, others = _operands(item, words)
        by_lane = place is not None and any(word.split("::")[0] == "shared" for word in words)
        if any(name in arrays(text) for text in others):
            _refuse_escape(item, words, name)
        if place is None:
            continue
        reached = arrays(place)
        if by_lane and not reached:
            raise _refusal(item, name, "its address names no array")
        if name in reached and not by_lane:
            raise _refusal(item, name, "it reaches more than one lane's bytes, or by a generic address")
        if name in reached and len(reached) > 1:
            raise _refusal(item, name, f"it may reach {' or '.join(sorted(reached))}")
        if name in reached:
            yield Use(function, item, aligned)


def _operands(item: Instruction, words: list[str]) -> tuple[str | None, list[str]]:
    """The operand that is a lane's address, and those that are neither that nor results."""
    if words[0] in _LANES or item.opcode.startswith(("cp.async.ca", "cp.async.cg")):
        place = next((k for k, text in enumerate(item.operands) if text.startswith("[")), None)
        if place is None:
            return None, list(item.operands[1:])
        first = 0 if words[0] in _NO_RESULT or place == 0 else 1
        return item.operands[place], [t for k, t in enumerate(item.operands) if k >= first and k != place]
    all_read = words[0] in _NO_RESULT or (item.operands[:1] and item.operands[0].startswith("["))
    return None, list(item.operands if all_read else item.operands[1:])


def _refuse_escape(item: Instruction, words: list[str], name: str) -> None:
    if words[0] in _PLAIN or item.opcode.startswith("cvta.to"):
        return
    why = {
        "cvta": "it makes the address generic",
        "call": "it passes the address to a function",
        "st": "it stores the address",
    }.get(words[0], "it takes the address")
    if words[0] == "st" and "param" in words:
        why = "it passes the address to a function"
    raise _refusal(item, name, why)


def _refusal(item: Instruction, name: str, why: str) -> ProblemFileError:
    where = f"{item.place.file}:{item.place.line}, " if item.place else ""
    return ProblemFileError(
        name, f"cannot be moved: {item.opcode} ({where}line {item.line} of the PTX): {why}"
    )


def _reaches(function: Function, names: set[str]) -> dict[str, set[str]]:
    """For each register, the arrays whose addresses may have gone into it."""
    found: dict[str, set[str]] = {}
    changed = True
    while changed:
        changed = False
        for item in function.body or ():
            word = item.opcode.split(".")[0]
            if word in _NO_RESULT or word in ("ld", "atom", "ldmatrix") or len(item.operands) < 2:
                continue
            sources = [w for text in item.operands[1:] for w in _WORD.findall(text)]
            arrays = set().union(*(({w} & names) | found.get(w, set()) for w in sources), set())
            if not arrays:
                continue
            for cell in _WORD.findall(item.operands[0]):
                if not arrays <= found.get(cell, set()):
                    found[cell] = found.get(cell, set()) | arrays
                    changed = True
    return found


def access_bytes(item: Instruction) -> int:
    """Bytes that an instruction accesses at each lane's address."""
    words = item.opcode.split(".")
    if words[0] in ("ldmatrix", "stmatrix"):
        return 16
    if words[0] == "cp":
        return int(item.operands[2], 0)
    kind = next((TYPE_BYTES[word] for word in reversed(words) if word in TYPE_BYTES), 1)
    return kind * next((int(word[1:]) for word in words if word in ("v2", "v4", "v8")), 1)


# Floats, sums that saturate, and high words: their low bits are not those of what goes in.
_OTHERWISE: Final = re.compile(r"\.(?:(?:f|bf|tf)\d|sat\b|hi\b)")
_NUMBER: Final = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0|[1-9]\d*)")
# Alignment of 0, in bits.
_ZERO_BITS: Final = 64


def alignments(function: Function, name: str) -> dict[str, int]:
    """Low bits that are surely 0 in each register, counted from the start of an array.

    Whatever way the kernel takes: the least over all instructions that write the register.
    """
    found: dict[str, int] = {}
    changed = True
    while changed:
        changed = False
        for item in function.body or ():
            if len(item.operands) < 2 or item.opcode.split(".")[0] in _NO_RESULT:
                continue
            bits = _aligned(item, [_bits(text, name, function, found) for text in item.operands[1:]])
            for cell in _WORD.findall(item.operands[0]):
                if bits < found.get(cell, _ZERO_BITS + 1):
                    found[cell] = bits
                    changed = True
    return found


def _bits(text: str, name: str, function: Function, found: dict[str, int]) -> int:
    if text == name:
        return _ZERO_BITS
    if _NUMBER.fullmatch(text):
        number = int(text, 0)
        return (number & -number).bit_length() - 1 if number else _ZERO_BITS
    return found.get(text, _ZERO_BITS) if text in function.registers else 0


def _aligned(item: Instruction, given: list[int]) -> int:
    """Low bits that are 0 in what an instruction computes of integers with so many."""
    if _OTHERWISE.search(item.opcode) or item.operands[0].startswith("{"):
        return 0
    match item.opcode.split(".")[0]:
        case "mov" | "cvt" | "cvta":
            found = given[0]
        case "add" | "sub" | "or" | "xor" | "min" | "max" | "selp":
            found = min(given[:2])
        case "and":
            found = max(given[:2])
        case "mul":
            found = sum(given[:2])
        case "mad":
            found = min(sum(given[:2]), given[2])
        case "shl":
            amount = item.operands[2]
            found = given[0] + (int(amount) if amount.isdecimal() else 0)
        case _:
            found = 0
    return min(found, _ZERO_BITS)
