"""Floating point in machine code: what integer arithmetic, and tests of loaded data, need of it.

Sums and products are rounded as numpy does. A multiply-add of 32 bits goes through 64; one of 64 keeps the
error of its product. The approximations that division and roots begin with are exact results, of 64 bits
their high words: what follows in the code repairs the last bits. The rest is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.kernels.isa.integers import joined_with
from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import (
    Builder,
    Built,
    UnreadableOperand,
    built,
    computed,
    forget,
    form_of,
    number,
    register,
    row,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.program import Forget

Reals = npt.NDArray[Any]
# Exponents, as stored, between which a quotient and all that leads to it are plain floats.
_PLAIN: Final = (127 - 60, 127 + 60)
# What splits a double in two halves.
_SPLIT: Final = float((1 << 27) + 1)
_SMALL: Final = ("F16", "U8", "S8", "U16", "S16")
_INEXACT: Final = ("RM", "RP", "RZ")


def _numbers(value: Value, wide: bool) -> Reals:
    """The bits read as floats."""
    if wide:
        return np.ascontiguousarray(value.bits).view(np.float64)
    return value.bits.astype(np.uint32).view(np.float32)


def _words(numbers: Reals, wide: bool, *sources: Value) -> Value:
    """Floats as bits; unknown as a whole where a source has an unknown bit."""
    if wide:
        bits = np.ascontiguousarray(numbers, np.float64).view(np.uint64)
    else:
        bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    return values.mapped(lambda *_: bits, 64 if wide else 32, *sources)


def _arithmetic(function: Callable[..., Any], sources: str) -> Builder:
    """A float out of floats."""
    wide = "g" in sources

    def run(one: Instruction, *parts: Value) -> Value:
        given = [_numbers(part, wide) for part in parts]
        if one.has("FTZ"):
            given = [_flushed(x) for x in given]
        with np.errstate(all="ignore"):
            result = np.asarray(function(*given), np.float64 if wide else np.float32)
            if one.has("SAT"):
                result = np.clip(result, np.float32(0), np.float32(1))
        return _words(_flushed(result) if one.has("FTZ") else result, wide, *parts)

    return row("d" if wide else "r", sources, run, unlike=_INEXACT if wide else ())


def _flushed(numbers: Reals) -> Reals:
    return np.where(np.abs(numbers) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), numbers), numbers)


def _fused(a: Reals, b: Reals, c: Reals) -> Reals:
    exact: Reals = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    return exact


def _fused_doubles(a: Reals, b: Reals, c: Reals) -> Reals:
    """a * b + c with the product's error kept (Dekker); where that leaves the range of floats, without."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = (_split(x) for x in (a, b))
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total = product + c
    part = total - product
    lost = (product - (total - part)) + (c - part)
    found = total + (lost + error)
    return np.where(np.isfinite(found), found, total)


def _split(number: Reals) -> tuple[Reals, Reals]:
    scaled = number * _SPLIT
    upper = scaled - (scaled - number)
    return upper, number - upper


_FUNCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "RCP": lambda x: 1.0 / x,
    "RSQ": lambda x: 1.0 / np.sqrt(x),
    "SQRT": np.sqrt,
    "EX2": np.exp2,
    "LG2": np.log2,
    "SIN": np.sin,
    "COS": np.cos,
    "TANH": np.tanh,
}


def _special(one: Instruction) -> Built:
    """MUFU; RCP64H and RSQ64H give the high word of the result, out of the high word of the operand."""
    upper = one.has("RCP64H", "RSQ64H")
    name = next((m.removesuffix("64H") for m in one.modifiers if m.removesuffix("64H") in _FUNCTIONS), "")
    if not name or one.has("F16"):
        return forget(1)(one)

    def run(_: Instruction, part: Value) -> Value:
        with np.errstate(all="ignore"):
            if not upper:
                found = _FUNCTIONS[name](_numbers(part, False).astype(np.float64))
                return _words(found.astype(np.float32), False, part)
            found = _FUNCTIONS[name]((part.bits << np.uint64(32)).view(np.float64))
        return values.high(_words(found, True, part))

    if not upper:
        return built(one, "r", "f", run)
    source = form_of(one).sources[0]
    if not re.match(r"-?(U?R|c\[)", source):  # a number of 64 bits
        high = values.high(number(source, 64))
        return computed(one, [("r", one.operands[0])], [], lambda _: run(one, high))
    return built(one, "r", "w", run)


def _from_integer(one: Instruction) -> Built:
    """I2F: to the nearest float, or upwards (RP) as integer division does."""
    to_double, wide = one.has("F64"), one.has("U64", "S64")

    def run(_: Instruction, part: Value) -> Value:
        plain = part.bits if one.has("U32", "U64") else values.signed(part.bits, 64 if wide else 32)
        exact = plain.astype(np.float64)
        if to_double:
            return _words(exact, True, part)
        result = exact.astype(np.float32)
        if one.has("RP"):
            result = np.where(result < exact, np.nextafter(result, np.float32(np.inf)), result)
        elif one.has("RM", "RZ"):
            away = np.abs(result) > np.abs(exact) if one.has("RZ") else result > exact
            toward = np.float32(0) if one.has("RZ") else np.float32(-np.inf)
            result = np.where(away, np.nextafter(result, toward), result)
        return _words(result, False, part)

    return row("d" if to_double else "r", "d" if wide else "w", run, unlike=_SMALL)(one)


def _rounding(one: Instruction) -> Callable[[Any], Any]:
    """To an integer, as the instruction says."""
    for name, function in (("TRUNC", np.trunc), ("FLOOR", np.floor), ("CEIL", np.ceil)):
        if one.has(name):
            return function
    return np.rint


def _to_integer(one: Instruction) -> Built:
    """F2I: rounded as it says, clamped to the range."""
    if one.has(*_SMALL, "64"):
        return forget(2)(one)
    unsigned, from_double = one.has("U32", "U64"), one.has("F64")
    width = 64 if one.has("U64", "S64") else 32

    def run(_: Instruction, part: Value) -> Value:
        rounded = _rounding(one)(np.nan_to_num(_numbers(part, from_double).astype(np.float64), nan=0.0))
        low, high = (0, (1 << width) - 1) if unsigned else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
        inside = np.where((rounded > float(low)) & (rounded < float(high)), rounded, 0.0)
        with np.errstate(invalid="ignore"):
            bits = inside.astype(np.uint64) if unsigned else inside.astype(np.int64).view(np.uint64)
        bits = np.where(rounded >= float(high), np.uint64(high), bits)
        bits = np.where(rounded <= float(low), np.uint64(low & ((1 << width) - 1)), bits)
        return values.mapped(lambda *_: bits, width, part)

    return built(one, "d" if width == 64 else "r", "g" if from_double else "f", run)


def _convert(one: Instruction) -> Built:
    """F2F between 32 and 64 bits, and FRND."""
    wanted = [m for m in one.modifiers if m in ("F16", "BF16", "F32", "F64")]
    rounds = one.opcode == "FRND"
    to, given = (wanted * 2 if rounds else wanted) or ["F32", "F32"]
    if one.has("F16", "BF16", "SAT", *_INEXACT):
        return forget(2)(one)
    to_double, from_double = to == "F64", given == "F64"

    def run(_: Instruction, part: Value) -> Value:
        result = _numbers(part, from_double).astype(np.float64)
        if rounds:
            result = _rounding(one)(result)
        with np.errstate(all="ignore"):
            return _words(result if to_double else result.astype(np.float32), to_double, part)

    return built(one, "d" if to_double else "r", "g" if from_double else "f", run)


def _check_division(_: Instruction, a: Value, b: Value) -> Value:
    """FCHK: whether a / b needs its slow path; never where both are far from the ends of the range."""
    exponents = [(part.bits >> np.uint64(23)) & np.uint64(0xFF) for part in (a, b)]
    plain = np.logical_and(*((e >= _PLAIN[0]) & (e <= _PLAIN[1]) for e in exponents))
    found = values.mapped(lambda *_: np.zeros(plain.shape, np.uint64), 1, a, b)
    return values.select(values.known(plain), found, values.unknown(1))


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def _compare(one: Instruction) -> Built:
    """FSETP and DSETP: ordered comparisons are false, those with U true, where a number is none."""
    names = (m for m in one.modifiers if m.removesuffix("U") in _COMPARISONS or m in ("NUM", "NAN"))
    name = next(names, "")
    if one.has("MAX", "MIN"):
        return forget(0)(one)
    if not name:
        raise UnreadableOperand("a comparison of another form")
    wide = one.opcode == "DSETP"

    def run(_: Instruction, a: Value, b: Value, other: Value) -> tuple[Value, ...]:
        x, y = (_numbers(part, wide) for part in (a, b))
        if one.has("FTZ"):
            x, y = _flushed(x), _flushed(y)
        unordered = np.isnan(x) | np.isnan(y)
        if name in ("NUM", "NAN"):
            holds = ~unordered if name == "NUM" else unordered
        else:
            holds = _COMPARISONS[name.removesuffix("U")](x, y)
            holds = (holds | unordered) if name.endswith("U") else (holds & ~unordered)
        return joined_with(one, values.mapped(lambda *_: holds.astype(np.uint64), 1, a, b), other)

    return built(one, "pp", "ggp" if wide else "ffp", run)


def _choose(one: Instruction, *parts: Value) -> Value:
    """FMNMX and FSEL."""
    *given, first = parts
    if one.opcode == "FSEL":
        return values.select(first, *given)
    reals = [_numbers(part, False) for part in given]
    least, greatest = (_words(reduce(end, reals), False, *given) for end in (np.fmin, np.fmax))
    return values.select(first, least, greatest)


def _halves(one: Instruction) -> Built:
    """HFMA2.MMA d, -RZ, RZ, hi, lo loads a constant of two 16-bit floats; the rest is not evaluated."""
    if len(one.operands) == 5 and [text.lstrip("-") for text in one.operands[1:3]] == ["RZ", "RZ"]:
        try:
            high, low = (np.float16(float(text.lower().replace("qnan", "nan"))) for text in one.operands[3:])
        except ValueError:
            return forget(1)(one)
        bits = values.constant(int(high.view(np.uint16)) << 16 | int(low.view(np.uint16)))
        return computed(one, [("r", one.operands[0])], [], lambda _: bits)
    return forget(1)(one)


# Bytes of an element of a matrix product, by the first type that its instruction names.
_ELEMENT: Final = {"F16": 2, "F32": 4, "F64": 8}
_MOST_RESULTS: Final = 8


def _matrix_product(one: Instruction) -> Built:
    """Tensor cores, which are not evaluated: the result has as many registers as shape and type say.

    Of `16816` and `8x8x4`, 32 lanes share rows times columns; of `64x128x16`, 128 lanes.
    """
    shape = next((m for m in one.modifiers if re.fullmatch(r"[\dx]{3,}", m)), "")
    size = 8 if one.opcode[0] == "D" else 4
    if one.opcode[0] in "HQ":
        size = next((_ELEMENT[m] for m in one.modifiers if m in _ELEMENT), size)
    group = re.fullmatch(r"64x(\d+)x\d+", shape) if one.opcode.endswith("GMMA") else None
    match = re.fullmatch(r"(16|8)x?8x?\d+", shape)
    if group:
        count = int(group[1]) * size // 8
    else:
        count = _MOST_RESULTS if match is None or shape == "884" else int(match[1]) * size // 16
    return _lost([one.operands[0]], count)


def _lost(texts: list[str], count: int) -> Built:
    """So many registers from each of these on are unknown."""
    cells = (register(text.split(".")[0], k) for text in texts for k in range(count))
    return Built(Forget(), (), tuple(cell for cell in cells if isinstance(cell, str)))


def _texture(one: Instruction) -> Built:
    """Textures and surfaces: what is read, into four registers at most each of two, is not known."""
    return _lost([text for text in one.operands if text.startswith("R")][:2], 4)


FLOATS: Final[Mapping[str, Builder]] = {
    "DADD": _arithmetic(lambda a, b: a + b, "gg"),
    "DFMA": _arithmetic(_fused_doubles, "ggg"),
    "DMMA": _matrix_product,
    "DMNMX": forget(2),
    "DMUL": _arithmetic(lambda a, b: a * b, "gg"),
    "DSETP": _compare,
    "F2F": _convert,
    "F2I": _to_integer,
    "FADD": _arithmetic(lambda a, b: a + b, "ff"),
    "FCHK": row("p", "ff", _check_division),
    "FFMA": _arithmetic(_fused, "fff"),
    "FMNMX": row("r", "ffp", _choose),
    "FMNMX3": row("r", "fffp", _choose),
    "FMUL": _arithmetic(lambda a, b: a * b, "ff"),
    "FRND": _convert,
    "FSEL": row("r", "ffp", _choose),
    "FSETP": _compare,
    "HFMA2": _halves,
    "HSETP2": forget(0),
    "I2F": _from_integer,
    "I2FP": _from_integer,
    "MUFU": _special,
    **dict.fromkeys(("HGMMA", "HMMA", "IGMMA", "IMMA", "QGMMA"), _matrix_product),
    **dict.fromkeys(("SULD", "TEX", "TLD", "TLD4", "TXD", "TXQ"), _texture),
    **dict.fromkeys(
        (
            *("F2FP", "F2IP", "FSET", "FSWZADD", "HADD2", "HMNMX2", "HMUL2", "HSET2", "I2IP", "IDP"),
            *("MOVM", "VABSDIFF", "VABSDIFF4"),
        ),
        forget(1),
    ),
}
