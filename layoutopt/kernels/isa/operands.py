"""Operands of machine code as sources of steps."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value, constant
from layoutopt.kernels.program import Operand

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
        fixed = constant(0 if negated else 1)
        return Source((fixed,), _same)
    return Source((name,), (lambda v: values.invert(v, 1)) if negated else _same)


def _same(value: Value) -> Value:
    return value


def register(name: str, step: int = 0) -> Operand:
    """The cell of a register, or of one that many behind it; RZ is 0."""
    if name.endswith("Z"):
        return values.ZERO
    prefix = name.rstrip("0123456789")
    return f"{prefix}{int(name[len(prefix) :]) + step}"


def destination(text: str, count: int = 1) -> tuple[str, ...]:
    """The cells that a result of so many registers goes to; none for RZ."""
    match = _REGISTER.match(text)
    if match is None or match[1]:
        raise UnreadableOperand(text)
    cells = [register(match[3], k) for k in range(count)]
    return tuple(cell for cell in cells if isinstance(cell, str))


def word(text: str) -> Source:
    """A 32-bit source."""
    if match := _REGISTER.match(text):
        sign, bar, name, _, _ = match.groups()
        return _signed((register(name),), sign, bar)
    if match := _CONSTANT.match(text):
        sign, bar, bank, offset, _ = match.groups()
        return _signed((_constant_cell(bank, offset, 0),), sign, bar)
    return Source((number(text),), _same)


def _signed(operands: tuple[Operand, ...], sign: str | None, bar: str | None) -> Source:
    if bar:
        raise UnreadableOperand("|x|")
    change = {None: _same, "-": values.negate, "~": values.invert}.get(sign)
    if change is None:
        raise UnreadableOperand(f"{sign}x")
    return Source(operands, change)


def number(text: str, width: int = 32) -> Value:
    """An immediate: an integer in hexadecimal, else a float."""
    if _INTEGER.match(text):
        return constant(int(text, 16), width)
    if _FLOAT.match(text):
        value = float(text.lower().replace("qnan", "nan"))
        if width == 64:
            return constant(struct.unpack("<Q", struct.pack("<d", value))[0], 64)
        try:
            return constant(struct.unpack("<I", struct.pack("<f", value))[0])
        except OverflowError:
            raise UnreadableOperand(text) from None
    raise UnreadableOperand(text)


def negates(text: str) -> bool:
    """Whether a sign stands before the operand."""
    return text.startswith("-") and not _INTEGER.match(text) and not _FLOAT.match(text)


def _constant_cell(bank: str, offset: str, step: int) -> Operand:
    if not _INTEGER.match(offset):
        raise UnreadableOperand(f"c[{bank}][{offset}]")
    return f"$c{int(bank, 16)}.{int(offset, 16) + 4 * step}"


def pair(text: str) -> Source:
    """A 64-bit source: two registers, two words of constant memory, or a number."""
    if match := _REGISTER.match(text):
        sign, bar, name, _, _ = match.groups()
        if bar:
            raise UnreadableOperand(text)
        cells: tuple[Operand, ...] = (register(name), register(name, 1))
    elif match := _CONSTANT.match(text):
        sign, bar, bank, offset, _ = match.groups()
        cells = (_constant_cell(bank, offset, 0), _constant_cell(bank, offset, 1))
    else:
        return Source((number(text, 64),), _same)
    if sign == "-":
        return Source(cells, lambda low, high: values.negate(values.join(low, high), 64))
    if sign is not None:
        raise UnreadableOperand(text)
    return Source(cells, values.join)


def address(text: str, wide: bool) -> Source:
    """An address in brackets, `[R5+UR4+0x10]` or `desc[UR4][R2.64+0x10]`; `wide` ones have 64 bits."""
    inner = text
    if text.startswith("desc["):
        inner = text[text.index("]") + 1 :]
    if not (inner.startswith("[") and inner.endswith("]")):
        raise UnreadableOperand(text)
    return place(inner[1:-1], wide)


def place(inner: str, wide: bool) -> Source:
    """A sum of registers and numbers."""
    operands: list[Operand] = []
    readers: list[Callable[..., Value]] = []
    width = 64 if wide else 32
    offset = 0
    for part in inner.replace("+-", "+ -").split("+"):
        match = _PART.match(part.strip())
        if match is None or match.end() != len(part.strip()):
            raise UnreadableOperand(f"[{inner}]")
        if match["number"]:
            offset += int(match["number"], 16)
            continue
        name, scale = match["register"], match["scale"]
        if wide and scale != "U32":
            operands += [register(name), register(name, 1)]
            readers.append(values.join)
        else:
            operands.append(register(name))
            shift = {"X4": 2, "X8": 3, "X16": 4}.get(scale or "", 0)
            readers.append(_scaled(shift))
    operands.append(constant(offset, width))

    def total(*parts: Value) -> Value:
        sums, k = [parts[-1]], 0
        for reader in readers:
            taken = 2 if reader is values.join else 1
            sums.append(reader(*parts[k : k + taken]))
            k += taken
        return values.add(*sums, width=width)

    return Source(tuple(operands), total)


def _scaled(shift: int) -> Callable[[Value], Value]:
    return (lambda v: values.shift_left(v, constant(shift))) if shift else _same


def constant_place(text: str) -> tuple[int, Source]:
    """`c[0x3][R5+0x10]`: the bank, and the address in it."""
    match = _CONSTANT.match(text)
    if match is None or match[1]:
        raise UnreadableOperand(text)
    return int(match[3], 16), place(match[4], wide=False)


def joined(
    sources: Sequence[Source],
) -> tuple[tuple[Operand, ...], Callable[[tuple[Value, ...]], list[Value]]]:
    """The operands of several sources in a row, and what gives each source's value out of theirs."""
    operands = tuple(operand for source in sources for operand in source.operands)
    ends = np.cumsum([len(source.operands) for source in sources]).tolist()

    def read(parts: tuple[Value, ...]) -> list[Value]:
        return [s.value(*parts[end - len(s.operands) : end]) for s, end in zip(sources, ends, strict=True)]

    return operands, read
