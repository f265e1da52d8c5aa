"""Operands of machine code as sources of steps, and instructions that compute as rows of letters.

A row names what an instruction gives and takes, one letter each:

    results   r  a register             d  two registers       p  a predicate (PT, or none, takes it nowhere)
    sources   w  a word                 d  two words           p  a predicate, behind all others
              a  a word without its minus sign                 b  two words without it
              f  a float of 32 bits     g  one of 64 bits: a sign and bars act on its sign bit

The function of a row takes the instruction and a value a source, and returns a value a result.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value, constant
from layoutopt.kernels.program import Action, Compute, Forget, Operand

_REGISTER: Final = re.compile(r"(-|~|!)?(\|)?(U?R(?:\d{1,3}|Z))((?:\.[A-Z0-9_]+)*)(\|)?$")
_PREDICATE: Final = re.compile(r"(!)?(U?P(?:\d|T))$")
_INTEGER: Final = re.compile(r"-?0x[0-9a-f]{1,16}$")
_FLOAT: Final = re.compile(r"[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|INF|QNAN|NAN)$", re.I)
_CONSTANT: Final = re.compile(r"(-|~)?(\|)?c\[(0x[0-9a-f]{1,2})\]\s?\[([^\]]*)\](?:\.[A-Z0-9_]+)*(\|)?$")
_PART: Final = re.compile(
    r"(?P<register>U?R(?:\d{1,3}|Z))(?:\.(?P<scale>X4|X8|X16|U32|64))?|(?P<number>-?0x[0-9a-f]{1,16})"
)


class UnreadableOperand(Exception):
    """The operand has a form that is not known."""


@dataclass(frozen=True, slots=True)
class Source:
    """What an operand says: cells or constants, and how the operand's value comes out of them."""

    operands: tuple[Operand, ...]
    value: Callable[..., Value]


def _same(value: Value) -> Value:
    return value


def is_predicate(text: str) -> bool:
    """Whether the operand is a predicate."""
    return _PREDICATE.match(text) is not None


def predicate(text: str) -> Source:
    """A predicate as a value of one bit."""
    match = _PREDICATE.match(text)
    if match is None:
        raise UnreadableOperand(text)
    negated, name = match.groups()
    if name.endswith("T"):
        return Source((constant(0 if negated else 1),), _same)
    return Source((name,), (lambda v: values.invert(v, 1)) if negated else _same)


def register(name: str, step: int = 0) -> Operand:
    """The cell of a register, or of one that many behind it; RZ is 0."""
    if name.endswith("Z"):
        return values.ZERO
    prefix = name.rstrip("0123456789")
    return f"{prefix}{int(name[len(prefix) :]) + step}"


def registers(text: str, count: int = 1) -> tuple[str, ...]:
    """The cells that a result of so many registers goes to; none for RZ."""
    match = _REGISTER.match(text)
    if match is None or match[1]:
        raise UnreadableOperand(text)
    cells = [register(match[3], k) for k in range(count)]
    return tuple(cell for cell in cells if isinstance(cell, str))


def number(text: str, width: int = 32) -> Value:
    """An immediate: an integer in hexadecimal, else a float."""
    if _INTEGER.match(text):
        return constant(int(text, 16), width)
    if not _FLOAT.match(text):
        raise UnreadableOperand(text)
    form, bits = ("<d", "<Q") if width == 64 else ("<f", "<I")
    try:
        packed = struct.pack(form, float(text.lower().replace("qnan", "nan")))
    except OverflowError:
        raise UnreadableOperand(text) from None
    return constant(struct.unpack(bits, packed)[0], width)


def negates(text: str) -> bool:
    """Whether a sign stands before the operand."""
    return text.startswith("-") and not _INTEGER.match(text) and not _FLOAT.match(text)


def word(text: str, count: int = 1) -> Source:
    """A source of 32 bits, or of 64 with a count of 2: registers, words of constant memory, or a number."""
    if match := _REGISTER.match(text):
        sign, bar, name, _, _ = match.groups()
        cells = tuple(register(name, k) for k in range(count))
    elif match := _CONSTANT.match(text):
        sign, bar, bank, offset, _ = match.groups()
        if not _INTEGER.match(offset):
            raise UnreadableOperand(text)
        cells = tuple(f"$c{int(bank, 16)}.{int(offset, 16) + 4 * k}" for k in range(count))
    else:
        return Source((number(text, 32 * count),), _same)
    if bar or sign not in (None, "-", "~") or (sign == "~" and count == 2):
        raise UnreadableOperand(text)
    joined_ = values.join if count == 2 else _same
    change = {"-": values.negate, "~": values.invert}.get(sign or "")
    return Source(cells, joined_ if change is None else lambda *parts: change(joined_(*parts), 32 * count))


def _real(text: str, count: int) -> Source:
    sign = text.startswith("-") and not text[1:2].isdigit() and text[1:].upper() not in ("INF", "QNAN")
    inner = text[1:] if sign else text
    source = word(inner.strip("|"), count)
    width = 32 * count
    top = constant(1 << (width - 1), width)

    def read(*parts: Value) -> Value:
        value = source.value(*parts)
        if inner.startswith("|"):
            value = values.both(value, values.invert(top, width), width)
        return values.differ(value, top, width) if sign else value

    return Source(source.operands, read)


_SOURCES: Final[dict[str, Callable[[str], Source]]] = {
    "w": word,
    "d": lambda text: word(text, 2),
    "a": lambda text: word(text[negates(text) :]),
    "b": lambda text: word(text[negates(text) :], 2),
    "f": lambda text: _real(text, 1),
    "g": lambda text: _real(text, 2),
    "p": predicate,
}


def address(text: str, wide: bool) -> Source:
    """An address in brackets, `[R5+UR4+0x10]` or `desc[UR4][R2.64+0x10]`; `wide` ones have 64 bits."""
    inner = text[text.index("]") + 1 :] if text.startswith("desc[") else text
    if not (inner.startswith("[") and inner.endswith("]")):
        raise UnreadableOperand(text)
    return place(inner[1:-1], wide)


def place(inner: str, wide: bool) -> Source:
    """A sum of registers and numbers."""
    parts: list[Source] = []
    offset = 0
    for text in inner.replace("+-", "+ -").split("+"):
        match = _PART.fullmatch(text.strip())
        if match is None:
            raise UnreadableOperand(f"[{inner}]")
        if match["number"]:
            offset += int(match["number"], 16)
        elif wide and match["scale"] != "U32":
            parts.append(word(match["register"], 2))
        else:
            parts.append(_scaled(match["register"], {"X4": 2, "X8": 3, "X16": 4}.get(match["scale"], 0)))
    operands, read = joined(parts)
    width = 64 if wide else 32
    end = constant(offset, width)
    return Source((*operands, end), lambda *given: values.add(given[-1], *read(given[:-1]), width=width))


def _scaled(name: str, shift: int) -> Source:
    return Source((register(name),), lambda v: values.shift_left(v, constant(shift)) if shift else v)


def constant_place(text: str) -> tuple[int, Source]:
    """`c[0x3][R5+0x10]`: the bank, and the address in it."""
    match = _CONSTANT.match(text)
    if match is None or match[1]:
        raise UnreadableOperand(text)
    return int(match[3], 16), place(match[4], wide=False)


def joined(
    sources: Sequence[Source],
) -> tuple[tuple[Operand, ...], Callable[[Sequence[Value]], list[Value]]]:
    """The operands of several sources in a row, and what gives each source's value out of theirs."""

    ends = list(itertools.accumulate(len(source.operands) for source in sources))
    places = [
        (source.value, end - len(source.operands), end) for source, end in zip(sources, ends, strict=True)
    ]

    def read(parts: Sequence[Value]) -> list[Value]:
        return [parts[a] if value is _same else value(*parts[a:b]) for value, a, b in places]

    return tuple(operand for source in sources for operand in source.operands), read


class Built(NamedTuple):
    """What becomes of an instruction."""

    action: Action
    sources: tuple[Operand, ...] = ()
    dests: tuple[str, ...] = ()


Builder = Callable[[Instruction], Built]
# Of the instruction and the values of its sources.
Function = Callable[..., Value | tuple[Value, ...]]


class Form(NamedTuple):
    """Operands by their roles: predicates before and behind the destination, sources, predicates behind."""

    dest: str | None
    results: list[str]
    sources: list[str]
    carries: list[str]


def form_of(instruction: Instruction, has_dest: bool = True) -> Form:
    """Sort the operands of an instruction that computes."""
    left = list(instruction.operands)
    results = _leading(left)
    dest = left.pop(0) if has_dest and left else None
    results += _leading(left) if not results else []
    carries: list[str] = []
    while left and is_predicate(left[-1]):
        carries.insert(0, left.pop())
    return Form(dest, results, left, carries)


def _leading(operands: list[str]) -> list[str]:
    found: list[str] = []
    while operands and is_predicate(operands[0]):
        found.append(operands.pop(0))
    return found


def built(
    instruction: Instruction, results: str, sources: str, function: Function, across: bool = False
) -> Built:
    """The step of an instruction that computes, by the letters of a row."""
    form = form_of(instruction, results[:1] in ("r", "d"))
    plain, count = sources.replace("p", ""), sources.count("p")
    if len(form.sources) != len(plain):
        raise UnreadableOperand(f"{len(form.sources)} sources instead of {len(plain)}")
    if form.carries[count:] not in ([], ["!PT"], ["!UPT"]) or len(form.carries) < count:
        raise UnreadableOperand(f"{len(form.carries)} predicates instead of {count}")
    texts = [form.dest] if form.dest is not None else []
    texts += [*form.results, *["PT"] * 2][: results.count("p")]
    if any(not name.endswith("T") for name in form.results[results.count("p") :]):
        raise UnreadableOperand(f"{len(form.results)} predicates for results")
    read = [
        _SOURCES[letter](text) for letter, text in zip(sources, [*form.sources, *form.carries], strict=False)
    ]
    return computed(instruction, list(zip(results, texts, strict=True)), read, function, across)


def computed(
    instruction: Instruction,
    results: Sequence[tuple[str, str]],
    sources: Sequence[Source],
    function: Function,
    across: bool = False,
) -> Built:
    """The same by the letter and operand of each result, and the sources."""
    operands, read = joined(sources)
    slots = [slot for letter, text in results for slot in _slots(letter, text)]
    kept = [k for k, slot in enumerate(slots) if slot is not None]
    cells = tuple(slot for slot in slots if slot is not None)
    wide = bool(results) and results[0][0] == "d"

    def run(*given: Any) -> tuple[Value, ...]:
        active, parts = given[:across], given[across:]
        found = function(instruction, *active, *read(parts))
        single = (found,) if isinstance(found, Value) else found
        if wide:
            single = (values.low(single[0]), values.high(single[0]), *single[1:])
        return tuple(single[k] for k in kept)

    action = Compute(run, across) if kept or not across else Forget()
    return Built(action, operands, cells)


def _slots(letter: str, text: str) -> Sequence[str | None]:
    """Where the words of a result go; None for nowhere (RZ, PT)."""
    if letter == "p":
        return (None,) if text.endswith("T") else (text,)
    count = 2 if letter == "d" else 1
    return registers(text, count) or (None,) * count


def row(
    results: str,
    sources: str,
    function: Function,
    *,
    only: tuple[str, ...] | None = None,
    unlike: tuple[str, ...] = (),
    across: bool = False,
) -> Builder:
    """An instruction by its letters.

    Args:
        results, sources: see the module.
        function: what it computes.
        only: the modifiers that it may have; None for any.
        unlike: modifiers with which its results are not modelled.
        across: the function takes the active lanes, bool of shape (warps, 32), before the values.
    """

    def build(instruction: Instruction) -> Built:
        if only is not None and not set(instruction.modifiers) <= set(only):
            raise UnreadableOperand("another mode")
        if instruction.has(*unlike):
            return forget(2 if "d" in results else 1)(instruction)
        return built(instruction, results, sources, function, across)

    return build


def forget(count: int) -> Builder:
    """Results, of so many registers, that are not modelled."""

    def build(instruction: Instruction) -> Built:
        form = form_of(instruction)
        cells = [text for text in form.results[:2] if not text.endswith("T")]
        if form.dest is not None and not form.dest.startswith(("[", "desc[", "0x", "SB", "gdesc")):
            found = (register(form.dest.split(".")[0], k) for k in range(count))
            cells += [cell for cell in found if isinstance(cell, str)]
        return Built(Forget(), (), tuple(cells))

    return build
