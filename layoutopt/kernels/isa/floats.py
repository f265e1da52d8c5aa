"""Floating point in machine code: what integer arithmetic, and tests of loaded data, need of it.

32-bit floats are evaluated as numpy does, multiply-add through 64 bits, 64-bit ones in `doubles`; the
rest is unknown. Integer division goes through MUFU.RCP, whose last bit its corrections repair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.kernels.isa.doubles import (
    DOUBLES,
    approximation,
    as_doubles,
    double,
    from_doubles,
)
from layoutopt.kernels.isa.integers import (
    Builder,
    Built,
    compute,
    forget,
    halves,
    predicate_slots,
    shape,
    slots,
)
from layoutopt.kernels.isa.operands import Source, UnreadableOperand, pair, predicate, register, word
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.program import Forget
from layoutopt.kernels.read.listing import Instruction

Floats = npt.NDArray[np.float32]
# Exponents, as stored, between which a quotient and all that leads to it are plain floats.
_PLAIN: Final = (127 - 60, 127 + 60)


def _float(text: str) -> Source:
    """A 32-bit float; a sign and bars act on its sign bit."""
    sign = text.startswith("-") and not text[1:2].isdigit() and text[1:].upper() not in ("INF", "QNAN")
    inner = text[1:] if sign else text
    bars = inner.startswith("|")
    source = word(inner.strip("|"))
    top = values.constant(0x80000000)

    def read(*parts: Value) -> Value:
        value = source.value(*parts)
        if bars:
            value = values.both(value, values.constant(0x7FFFFFFF))
        return values.differ(value, top) if sign else value

    return Source(source.operands, read)


def _arithmetic(function: Callable[..., Any], count: int) -> Builder:
    """A float out of `count` floats."""

    def build(instruction: Instruction) -> Built:
        form = shape(instruction)
        if len(form.sources) != count or form.carries or any(predicate_slots(form.results, 2)):
            raise UnreadableOperand("floats of another form")
        flushes, saturates = instruction.has("FTZ"), instruction.has("SAT")

        def run(*parts: Value) -> tuple[Value, ...]:
            numbers = [values.as_floats(part) for part in parts]
            if flushes:
                numbers = [_flushed(one) for one in numbers]
            with np.errstate(all="ignore"):
                result = np.asarray(function(*numbers), np.float32)
                if saturates:
                    result = np.clip(result, np.float32(0), np.float32(1))
            if flushes:
                result = _flushed(result)
            return (values.from_floats(result, *parts),)

        return compute(slots(form.dest), [_float(text) for text in form.sources], run)

    return build


def _flushed(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.where(np.abs(numbers) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), numbers), numbers)


def _fused(a: Floats, b: Floats, c: Floats) -> npt.NDArray[np.float64]:
    return a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)


def _special(instruction: Instruction) -> Built:
    """MUFU."""
    functions: dict[str, Callable[[Any], Any]] = {
        "RCP": lambda x: 1.0 / x,
        "RSQ": lambda x: 1.0 / np.sqrt(x),
        "SQRT": np.sqrt,
        "EX2": np.exp2,
        "LG2": np.log2,
        "SIN": np.sin,
        "COS": np.cos,
        "TANH": np.tanh,
    }
    form = shape(instruction)
    name = next((m for m in instruction.modifiers if m in functions), "")
    if instruction.has("RCP64H", "RSQ64H"):
        return approximation(instruction)
    if not name or instruction.has("F16"):
        return forget(1)(instruction)

    def run(part: Value) -> tuple[Value, ...]:
        with np.errstate(all="ignore"):
            result = functions[name](values.as_floats(part).astype(np.float64)).astype(np.float32)
        return (values.from_floats(result, part),)

    return compute(slots(form.dest), [_float(form.sources[0])], run)


def _from_integer(instruction: Instruction) -> Built:
    """I2F: to the nearest float, or upwards (RP) as integer division does."""
    form = shape(instruction)
    if instruction.has("F16", "U8", "S8", "U16", "S16"):
        return forget(2 if instruction.has("F64") else 1)(instruction)
    wide, unsigned = instruction.has("U64", "S64"), instruction.has("U32", "U64")

    def run(part: Value) -> tuple[Value, ...]:
        number = part.bits if unsigned else values.signed(part.bits, 64 if wide else 32)
        exact = number.astype(np.float64)
        if instruction.has("F64"):
            return halves(from_doubles(exact, part))
        result = exact.astype(np.float32)
        if instruction.has("RP"):
            result = np.where(result < exact, np.nextafter(result, np.float32(np.inf)), result)
        elif instruction.has("RM", "RZ"):
            away = np.abs(result) > np.abs(exact) if instruction.has("RZ") else result > exact
            toward = np.float32(0) if instruction.has("RZ") else np.float32(-np.inf)
            result = np.where(away, np.nextafter(result, toward), result)
        return (values.from_floats(result, part),)

    source = pair(form.sources[0]) if wide else word(form.sources[0])
    return compute(slots(form.dest, 2 if instruction.has("F64") else 1), [source], run)


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
        given = as_doubles(part) if from_double else values.as_floats(part).astype(np.float64)
        number = rounding(np.nan_to_num(given, nan=0.0))
        low, high = (0, (1 << width) - 1) if unsigned else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
        inside = np.where((number > float(low)) & (number < float(high)), number, 0.0)
        with np.errstate(invalid="ignore"):
            bits = inside.astype(np.uint64) if unsigned else inside.astype(np.int64).view(np.uint64)
        bits = np.where(number >= float(high), values.mask(width) if unsigned else np.uint64(high), bits)
        bits = np.where(number <= float(low), np.uint64(low & ((1 << width) - 1)), bits)
        total = values.mapped(lambda *_: bits, width, part)
        return halves(total) if wide else (total,)

    source = double(form.sources[0]) if from_double else _float(form.sources[0])
    return compute(slots(form.dest, 2 if wide else 1), [source], run)


def _convert(instruction: Instruction) -> Built:
    """F2F between 32 and 64 bits, and FRND."""
    form = shape(instruction)
    wanted = [m for m in instruction.modifiers if m in ("F16", "BF16", "F32", "F64")]
    rounds = instruction.opcode == "FRND"
    to, given = (wanted * 2 if rounds else wanted) or ["F32", "F32"]
    if "F16" in wanted or "BF16" in wanted or instruction.has("RM", "RP", "RZ", "SAT"):
        return forget(2)(instruction)

    def run(part: Value) -> tuple[Value, ...]:
        number = as_doubles(part) if given == "F64" else values.as_floats(part).astype(np.float64)
        if rounds:
            number = _rounding(instruction)(number)
        if to == "F64":
            return halves(from_doubles(number, part))
        with np.errstate(all="ignore"):
            return (values.from_floats(number.astype(np.float32), part),)

    source = double(form.sources[0]) if given == "F64" else _float(form.sources[0])
    return compute(slots(form.dest, 2 if to == "F64" else 1), [source], run)


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

    return compute(predicate_slots(form.results, 1), [_float(text) for text in form.sources], run)


def _compare(instruction: Instruction) -> Built:
    """FSETP and DSETP: ordered comparisons are false, those with U true, where a number is none."""
    form = shape(instruction, has_dest=False)
    known = {
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
        "EQ": np.equal,
        "NE": np.not_equal,
    }
    name = next((m for m in instruction.modifiers if m.removesuffix("U") in known or m in ("NUM", "NAN")), "")
    joint = next((m for m in instruction.modifiers if m in ("AND", "OR", "XOR")), "AND")
    if instruction.has("MAX", "MIN"):
        return forget(0)(instruction)
    if not name or len(form.sources) != 2 or len(form.carries) != 1:
        raise UnreadableOperand("a comparison of another form")
    flushes, wide = instruction.has("FTZ"), instruction.opcode == "DSETP"

    def run(a: Value, b: Value, other: Value) -> tuple[Value, ...]:
        x, y = (as_doubles(part) if wide else values.as_floats(part) for part in (a, b))
        if flushes:
            x, y = _flushed(x), _flushed(y)
        unordered = np.isnan(x) | np.isnan(y)
        if name in ("NUM", "NAN"):
            holds = ~unordered if name == "NUM" else unordered
        else:
            holds = known[name.removesuffix("U")](x, y)
            holds = (holds | unordered) if name.endswith("U") else (holds & ~unordered)
        value = values.mapped(lambda *_: holds.astype(np.uint64), 1, a, b)
        join = {"AND": values.both, "OR": values.either, "XOR": values.differ}[joint]
        return join(value, other, 1), join(values.invert(value, 1), other, 1)

    sources = [(double if wide else _float)(text) for text in form.sources]
    return compute(predicate_slots(form.results, 2), [*sources, predicate(form.carries[0])], run)


def _choose(instruction: Instruction) -> Built:
    """FMNMX and FSEL."""
    form = shape(instruction)
    if (
        len(form.sources) != (3 if instruction.opcode == "FMNMX3" else 2)
        or len(form.carries) != 1
        or any(predicate_slots(form.results, 2))
    ):
        raise UnreadableOperand("a choice of another form")
    extreme = instruction.opcode != "FSEL"

    def run(*parts: Value) -> tuple[Value, ...]:
        *given, first = parts
        if not extreme:
            return (values.select(first, *given),)
        numbers = [values.as_floats(part) for part in given]
        least = values.from_floats(reduce(np.fmin, numbers), *given)
        greatest = values.from_floats(reduce(np.fmax, numbers), *given)
        return (values.select(first, least, greatest),)

    sources = [*(_float(text) for text in form.sources), predicate(form.carries[0])]
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
    **DOUBLES,
    "DSETP": _compare,
    "DMNMX": forget(2),
    "DMMA": _matrix_product,
    "F2F": _convert,
    "F2FP": forget(1),
    "F2I": _to_integer,
    "F2IP": forget(1),
    "FADD": _arithmetic(lambda a, b: a + b, 2),
    "FCHK": _check_division,
    "FFMA": _arithmetic(_fused, 3),
    "FMNMX": _choose,
    "FMNMX3": _choose,
    "FMUL": _arithmetic(lambda a, b: a * b, 2),
    "FRND": _convert,
    "FSEL": _choose,
    "FSET": forget(1),
    "FSETP": _compare,
    "FSWZADD": forget(1),
    "HADD2": forget(1),
    "HFMA2": _halves,
    "HGMMA": _matrix_product,
    "HMMA": _matrix_product,
    "HMNMX2": forget(1),
    "HMUL2": forget(1),
    "HSET2": forget(1),
    "HSETP2": forget(0),
    "I2F": _from_integer,
    "I2FP": _from_integer,
    "I2IP": forget(1),
    "IDP": forget(1),
    "IGMMA": _matrix_product,
    "IMMA": _matrix_product,
    "MOVM": forget(1),
    "MUFU": _special,
    "QGMMA": _matrix_product,
    "SULD": _texture,
    "TEX": _texture,
    "TLD": _texture,
    "TLD4": _texture,
    "TXD": _texture,
    "TXQ": _texture,
    "VABSDIFF": forget(1),
    "VABSDIFF4": forget(1),
}
