"""Which instructions of PTX use which arrays of shared memory, and where an address goes elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

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
    "bfind", "cvta",
}  # fmt: skip


class Use(NamedTuple):
    """An instruction that reaches an array by a lane's address.

    Attributes:
        function: where it stands.
        instruction: what it is.
        held: what registers of the function hold.
    """

    function: Function
    instruction: Instruction
    held: dict[str, Held]


class Held(NamedTuple):
    """What a register may hold.

    Attributes:
        arrays: of shared memory, whose addresses may have gone into it.
        zeros: low bits that are surely 0, counted from the start of one array.
    """

    arrays: frozenset[str]
    zeros: int


def uses_of(module: Module, name: str, entry: str) -> list[Use]:
    """Every instruction of a kernel, and of the functions beside it, that reaches an array of shared memory.

    Other kernels of the file keep theirs: each launch has shared memory of its own.

    Raises:
        ProblemFileError: an address of the array goes where it cannot be followed; the message names the
            instruction. Or a function that reaches it serves other kernels, too.
    """
    names = {variable.name: frozenset((variable.name,)) for variable in module.variables}
    same = same_array(module, name)
    names |= dict.fromkeys(same, frozenset((name,)))
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


def same_array(module: Module, name: str) -> frozenset[str]:
    """The names of an array: all those of dynamic shared memory begin at one place."""
    extern = frozenset(variable.name for variable in module.variables if variable.extern)
    return extern if name in extern else frozenset((name,))


def _uses(function: Function, name: str, names: Mapping[str, frozenset[str]]) -> Iterator[Use]:
    held = held_in(function, name, names)

    def arrays(text: str) -> frozenset[str]:
        return _reached(text, names, held)

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
            yield Use(function, item, held)


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
    if words[0] in _PLAIN:
        return
    why = {
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


def held_in(function: Function, name: str, names: Mapping[str, frozenset[str]]) -> dict[str, Held]:
    """For each register, the arrays it may point into and its low zero bits, from the start of array `name`.

    A register that several instructions write has the arrays of all, and the fewest zeros.
    """
    found: dict[str, Held] = {}
    changed = True
    while changed:
        changed = False
        for item in function.body or ():
            word = item.opcode.split(".")[0]
            if len(item.operands) < 2 or word in _NO_RESULT:
                continue
            zeros = _aligned(
                item,
                [_bits(text, name in names.get(text, ()), function, found) for text in item.operands[1:]],
            )
            loads = word in ("ld", "atom", "ldmatrix")
            arrays = frozenset() if loads else _reached(" ".join(item.operands[1:]), names, found)
            for cell in _WORD.findall(item.operands[0]):
                before = found.get(cell, Held(frozenset(), _ZERO_BITS + 1))
                found[cell] = Held(before.arrays | arrays, min(before.zeros, zeros))
                changed |= found[cell] != before
    return found


def _reached(text: str, names: Mapping[str, frozenset[str]], held: dict[str, Held]) -> frozenset[str]:
    """The arrays whose addresses an operand may have."""
    words = _WORD.findall(text)
    return frozenset().union(*(held[w].arrays if w in held else names.get(w, ()) for w in words))


def _bits(text: str, begins: bool, function: Function, held: dict[str, Held]) -> int:
    if begins:
        return _ZERO_BITS
    if _NUMBER.fullmatch(text):
        number = int(text, 0)
        return (number & -number).bit_length() - 1 if number else _ZERO_BITS
    if text not in function.registers:
        return 0
    return held[text].zeros if text in held else _ZERO_BITS


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
