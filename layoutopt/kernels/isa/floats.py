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

from layoutopt.kernels.isa.integers import (
    Builder,
    Built,
    compute,
    forget,
    halves,
    joined_with,
    predicate_slots,
    shape,
    slots,
)
from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import (
    Source,
    UnreadableOperand,
    number,
    pair,
    predicate,
    register,
    word,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.program import Forget

Reals = npt.NDArray[Any]
# Exponents, as stored, between which a quotient and all that leads to it are plain floats.
_PLAIN: Final = (127 - 60, 127 + 60)
# What splits a double in two halves.
_SPLIT: Final = float((1 << 27) + 1)


def _real(text: str, wide: bool = False) -> Source:
    """A float of 32 bits, or of 64; a sign and bars act on its sign bit."""
    sign = text.startswith("-") and not text[1:2].isdigit() and text[1:].upper() not in ("INF", "QNAN")
    inner = text[1:] if sign else text
    bars = inner.startswith("|")
    source = (pair if wide else word)(inner.strip("|"))
    width = 64 if wide else 32
    top = values.constant(1 << (width - 1), width)

    def read(*parts: Value) -> Value:
        value = source.value(*parts)
        if bars:
            value = values.both(value, values.invert(top, width), width)
        return values.differ(value, top, width) if sign else value

    return Source(source.operands, read)


def _numbers(value: Value, wide: bool) -> Reals:
    """The bits read as floats."""
    if wide:
        return np.ascontiguousarray(value.bits).view(np.float64)
    return value.bits.astype(np.uint32).view(np.float32)


def _words(numbers: Reals, wide: bool, *sources: Value) -> tuple[Value, ...]:
    """Floats as registers; unknown as a whole where a source has an unknown bit."""
    if wide:
        bits = np.ascontiguousarray(numbers, np.float64).view(np.uint64)
        return halves(values.mapped(lambda *_: bits, 64, *sources))
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    return (values.mapped(lambda *_: bits, 32, *sources),)


def _arithmetic(function: Callable[..., Any], count: int, wide: bool = False) -> Builder:
    """A float out of `count` floats."""

    def build(instruction: Instruction) -> Built:
        form = shape(instruction)
        if len(form.sources) != count or form.carries or any(predicate_slots(form.results, 2)):
            raise UnreadableOperand("floats of another form")
        if wide and instruction.has("RM", "RP", "RZ"):
            raise UnreadableOperand("doubles rounded otherwise")
        flushes, saturates = instruction.has("FTZ"), instruction.has("SAT")

        def run(*parts: Value) -> tuple[Value, ...]:
            given = [_numbers(part, wide) for part in parts]
            if flushes:
                given = [_flushed(one) for one in given]
            with np.errstate(all="ignore"):
                result = np.asarray(function(*given), np.float64 if wide else np.float32)
                if saturates:
                    result = np.clip(result, np.float32(0), np.float32(1))
            return _words(_flushed(result) if flushes else result, wide, *parts)

        sources = [_real(text, wide) for text in form.sources]
        return compute(slots(form.dest, 2 if wide else 1), sources, run)

    return build


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


def _special(instruction: Instruction) -> Built:
    """MUFU."""
    form = shape(instruction)
    name = next((m for m in instruction.modifiers if m in _FUNCTIONS), "")
    if instruction.has("RCP64H", "RSQ64H"):
        return _high_word(instruction)
    if not name or instruction.has("F16"):
        return forget(1)(instruction)

    def run(part: Value) -> tuple[Value, ...]:
        with np.errstate(all="ignore"):
            result = _FUNCTIONS[name](_numbers(part, False).astype(np.float64)).astype(np.float32)
        return _words(result, False, part)

    return compute(slots(form.dest), [_real(form.sources[0])], run)


def _high_word(instruction: Instruction) -> Built:
    """MUFU.RCP64H and RSQ64H: the high word of the result, out of the high word of the operand."""
    form = shape(instruction)
    function = _FUNCTIONS["RSQ" if instruction.has("RSQ64H") else "RCP"]
    source = word(form.sources[0])
    if not source.operands or not isinstance(source.operands[0], str):
        source = Source((values.high(number(form.sources[0], 64)),), lambda value: value)

    def run(part: Value) -> tuple[Value, ...]:
        with np.errstate(all="ignore"):
            result = function((part.bits << np.uint64(32)).view(np.float64))
        return _words(result, True, part)[1:]

    return compute(slots(form.dest), [source], run)


def _from_integer(instruction: Instruction) -> Built:
    """I2F: to the nearest float, or upwards (RP) as integer division does."""
    form = shape(instruction)
    to_double = instruction.has("F64")
    if instruction.has("F16", "U8", "S8", "U16", "S16"):
        return forget(2 if to_double else 1)(instruction)
    wide, unsigned = instruction.has("U64", "S64"), instruction.has("U32", "U64")

    def run(part: Value) -> tuple[Value, ...]:
        exact = (part.bits if unsigned else values.signed(part.bits, 64 if wide else 32)).astype(np.float64)
        if to_double:
            return _words(exact, True, part)
        result = exact.astype(np.float32)
        if instruction.has("RP"):
            result = np.where(result < exact, np.nextafter(result, np.float32(np.inf)), result)
        elif instruction.has("RM", "RZ"):
            away = np.abs(result) > np.abs(exact) if instruction.has("RZ") else result > exact
            toward = np.float32(0) if instruction.has("RZ") else np.float32(-np.inf)
            result = np.where(away, np.nextafter(result, toward), result)
        return _words(result, False, part)

    source = pair(form.sources[0]) if wide else word(form.sources[0])
    return compute(slots(form.dest, 2 if to_double else 1), [source], run)


def _rounding(instruction: Instruction) -> Callable[[Any], Any]:
    """To an integer, as the instruction says."""
    for name, function in (("TRUNC", np.trunc), ("FLOOR", np.floor), ("CEIL", np.ceil)):
        if instruction.has(name):
            return function
    return np.rint


def _to_integer(instruction: Instruction) -> Built:
    """F2I: rounded as it says, clamped to the range."""
    form = shape(instruction)
    if instruction.has("F16", "U8", "S8", "U16", "S16", "64"):
        return forget(2)(instruction)
    wide, unsigned = instruction.has("U64", "S64"), instruction.has("U32", "U64")
    rounding, from_double = _rounding(instruction), instruction.has("F64")
    width = 64 if wide else 32

    def run(part: Value) -> tuple[Value, ...]:
        rounded = rounding(np.nan_to_num(_numbers(part, from_double).astype(np.float64), nan=0.0))
        low, high = (0, (1 << width) - 1) if unsigned else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
        inside = np.where((rounded > float(low)) & (rounded < float(high)), rounded, 0.0)
        with np.errstate(invalid="ignore"):
            bits = inside.astype(np.uint64) if unsigned else inside.astype(np.int64).view(np.uint64)
        bits = np.where(rounded >= float(high), values.mask(width) if unsigned else np.uint64(high), bits)
        bits = np.where(rounded <= float(low), np.uint64(low & ((1 << width) - 1)), bits)
        total = values.mapped(lambda *_: bits, width, part)
        return halves(total) if wide else (total,)

    return compute(slots(form.dest, 2 if wide else 1), [_real(form.sources[0], from_double)], run)


def _convert(instruction: Instruction) -> Built:
    """F2F between 32 and 64 bits, and FRND."""
    form = shape(instruction)
    wanted = [m for m in instruction.modifiers if m in ("F16", "BF16", "F32", "F64")]
    rounds = instruction.opcode == "FRND"
    to, given = (wanted * 2 if rounds else wanted) or ["F32", "F32"]
    if "F16" in wanted or "BF16" in wanted or instruction.has("RM", "RP", "RZ", "SAT"):
        return forget(2)(instruction)
    to_double, from_double = to == "F64", given == "F64"

    def run(part: Value) -> tuple[Value, ...]:
        result = _numbers(part, from_double).astype(np.float64)
        if rounds:
            result = _rounding(instruction)(result)
        with np.errstate(all="ignore"):
            return _words(result if to_double else result.astype(np.float32), to_double, part)

    return compute(slots(form.dest, 2 if to_double else 1), [_real(form.sources[0], from_double)], run)


def _check_division(instruction: Instruction) -> Built:
    """FCHK: whether a / b needs its slow path; never where both are far from the ends of the range."""
    form = shape(instruction, has_dest=False)

    def run(a: Value, b: Value) -> tuple[Value, ...]:
        exponents = [(part.bits >> np.uint64(23)) & np.uint64(0xFF) for part in (a, b)]
        plain = np.logical_and(*((e >= _PLAIN[0]) & (e <= _PLAIN[1]) for e in exponents))
        hidden = np.where(plain, np.uint64(0), np.uint64(1))
        found = values.mapped(lambda *_: np.zeros_like(hidden), 1, a, b)
        either = hidden if found.unknown is None else hidden | found.unknown
        return (values.made(found.bits, either, 1),)

    return compute(predicate_slots(form.results, 1), [_real(text) for text in form.sources], run)


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def _compare(instruction: Instruction) -> Built:
    """FSETP and DSETP: ordered comparisons are false, those with U true, where a number is none."""
    form = shape(instruction, has_dest=False)
    names = (m for m in instruction.modifiers if m.removesuffix("U") in _COMPARISONS or m in ("NUM", "NAN"))
    name = next(names, "")
    joint = next((m for m in instruction.modifiers if m in ("AND", "OR", "XOR")), "AND")
    if instruction.has("MAX", "MIN"):
        return forget(0)(instruction)
    if not name or len(form.sources) != 2 or len(form.carries) != 1:
        raise UnreadableOperand("a comparison of another form")
    flushes, wide = instruction.has("FTZ"), instruction.opcode == "DSETP"

    def run(a: Value, b: Value, other: Value) -> tuple[Value, ...]:
        x, y = (_numbers(part, wide) for part in (a, b))
        if flushes:
            x, y = _flushed(x), _flushed(y)
        unordered = np.isnan(x) | np.isnan(y)
        if name in ("NUM", "NAN"):
            holds = ~unordered if name == "NUM" else unordered
        else:
            holds = _COMPARISONS[name.removesuffix("U")](x, y)
            holds = (holds | unordered) if name.endswith("U") else (holds & ~unordered)
        value = values.mapped(lambda *_: holds.astype(np.uint64), 1, a, b)
        return joined_with(joint, value, other), joined_with(joint, values.invert(value, 1), other)

    sources = [_real(text, wide) for text in form.sources]
    return compute(predicate_slots(form.results, 2), [*sources, predicate(form.carries[0])], run)


def _choose(instruction: Instruction) -> Built:
    """FMNMX and FSEL."""
    form = shape(instruction)
    count = 3 if instruction.opcode == "FMNMX3" else 2
    if len(form.sources) != count or len(form.carries) != 1 or any(predicate_slots(form.results, 2)):
        raise UnreadableOperand("a choice of another form")

    def run(*parts: Value) -> tuple[Value, ...]:
        *given, first = parts
        if instruction.opcode == "FSEL":
            return (values.select(first, *given),)
        reals = [_numbers(part, False) for part in given]
        (least,), (greatest,) = (_words(reduce(end, reals), False, *given) for end in (np.fmin, np.fmax))
        return (values.select(first, least, greatest),)

    sources = [*(_real(text) for text in form.sources), predicate(form.carries[0])]
    return compute(slots(form.dest), sources, run)


def _halves(instruction: Instruction) -> Built:
    """HFMA2.MMA d, -RZ, RZ, hi, lo loads a constant of two 16-bit floats; the rest is not evaluated."""
    operands = instruction.operands
    if len(operands) == 5 and operands[1].lstrip("-") == "RZ" and operands[2].lstrip("-") == "RZ":
        try:
            high, low = (np.float16(float(text.lower().replace("qnan", "nan"))) for text in operands[3:])
        except ValueError:
            return forget(1)(instruction)
        bits = int(high.view(np.uint16)) << 16 | int(low.view(np.uint16))
        return compute(slots(operands[0]), [], lambda: (values.constant(bits),))
    return forget(1)(instruction)


# Bytes of an element of a matrix product, by the first type that its instruction names.
_ELEMENT: Final = {"F16": 2, "F32": 4, "F64": 8}
_MOST_RESULTS: Final = 8


def _matrix_product(instruction: Instruction) -> Built:
    """Tensor cores: the result has as many registers as the shape and its type say."""
    name = instruction.operands[0].split(".")[0]
    cells = tuple(
        c for c in (register(name, k) for k in range(_result_registers(instruction))) if isinstance(c, str)
    )
    return Built(Forget("tensor cores are not evaluated"), (), cells)


def _result_registers(instruction: Instruction) -> int:
    """Registers a lane: of `16816` and `8x8x4`, 32 lanes share rows times columns; `64x128x16` 128 lanes."""
    shape_text = next((m for m in instruction.modifiers if re.fullmatch(r"[\dx]{3,}", m)), "")
    size = 8 if instruction.opcode[0] == "D" else 4
    if instruction.opcode[0] in "HQ":
        size = next((_ELEMENT[m] for m in instruction.modifiers if m in _ELEMENT), size)
    wide = re.fullmatch(r"64x(\d+)x\d+", shape_text)
    if instruction.opcode.endswith("GMMA") and wide:
        return int(wide[1]) * size // 8
    match = re.fullmatch(r"(16|8)x?8x?\d+", shape_text)
    if match is None or shape_text == "884":
        return _MOST_RESULTS
    return int(match[1]) * 8 // 32 * size // 4


def _texture(instruction: Instruction) -> Built:
    """Textures and surfaces: what is read, into four registers at most each of two, is not known."""
    names = [text.split(".")[0] for text in instruction.operands if text.startswith("R")][:2]
    cells = [register(name, k) for name in names for k in range(4)]
    return Built(Forget("textures are not read"), (), tuple(c for c in cells if isinstance(c, str)))


FLOATS: Final[Mapping[str, Builder]] = {
    "DADD": _arithmetic(lambda a, b: a + b, 2, wide=True),
    "DFMA": _arithmetic(_fused_doubles, 3, wide=True),
    "DMMA": _matrix_product,
    "DMNMX": forget(2),
    "DMUL": _arithmetic(lambda a, b: a * b, 2, wide=True),
    "DSETP": _compare,
    "F2F": _convert,
    "F2I": _to_integer,
    "FADD": _arithmetic(lambda a, b: a + b, 2),
    "FCHK": _check_division,
    "FFMA": _arithmetic(_fused, 3),
    "FMNMX": _choose,
    "FMNMX3": _choose,
    "FMUL": _arithmetic(lambda a, b: a * b, 2),
    "FRND": _convert,
    "FSEL": _choose,
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
