"""What instructions compute of floats: what integer arithmetic, and tests of loaded data, need of it.

Sums, products and multiply-adds of 32 bits, and conversions, are exact in every rounding mode. Those of 64
bits are rounded to nearest; a multiply-add keeps the error of its product. Results of MUFU are the true
ones, rounded; what the GPU gives is near them (`ERRORS`). The rest, and matrices, are unknown; where all
values of a block are followed, a hash stands for a product of matrices.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from layoutopt.kernels.isa.arithmetic import ORDERS, named, select, sized, told
from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import Builder, Built, computed, forget, registers, row, words
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Bits, Bools, Value, constant
from layoutopt.kernels.program import Compute, Forget

Reals = npt.NDArray[Any]
# Exponents, as stored, between which a quotient and all that leads to it are plain floats.
_PLAIN: Final = (127 - 60, 127 + 60)
# What splits a double in two halves.
_SPLIT: Final = float((1 << 27) + 1)
_SMALL: Final = ("F16", "BF16", "U8", "S8", "U16", "S16")
_DIRECTED: Final = ("RM", "RP", "RZ")
# Every result of 32 bits that is no number.
_NAN: Final = np.uint64(0x7FFFFFFF)


def _numbers(value: Value, wide: bool) -> Reals:
    """The bits read as floats."""
    if wide:
        return np.ascontiguousarray(value.bits).view(np.float64)
    return value.bits.astype(np.uint32).view(np.float32)


def _words(numbers: Reals, wide: bool, *sources: Value) -> Value:
    """Floats as bits, `_NAN` for no number; unknown as a whole where a source has an unknown bit."""
    bits = np.where(np.isnan(numbers) & (not wide), _NAN, _bits(numbers, wide))
    return values.mapped(lambda *_: bits, 64 if wide else 32, *sources)


def _bits(numbers: Reals, wide: bool) -> Bits:
    if wide:
        return np.ascontiguousarray(numbers, np.float64).view(np.uint64)
    return np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.uint64)


def _flushed(numbers: Reals) -> Reals:
    """Zeros for denormals, of their sign."""
    zeros = np.copysign(numbers.dtype.type(0), numbers)
    return np.where(np.abs(numbers) < np.finfo(numbers.dtype).tiny, zeros, numbers)


def _read(inst: Instruction, value: Value, wide: bool = False) -> Reals:
    """A float as 64 bits, flushed where the instruction says so."""
    numbers = _numbers(value, wide)
    return (_flushed(numbers) if inst.has("FTZ") and not wide else numbers).astype(np.float64)


def _single(inst: Instruction, exact: Reals) -> Reals:
    """A float of 32 bits out of one of 64, as the instruction rounds."""
    result = exact.astype(np.float32)
    for way, wrong, end in (
        ("RM", result > exact, -np.inf),
        ("RP", result < exact, np.inf),
        ("RZ", np.abs(result) > np.abs(exact), 0),
    ):
        if inst.has(way):
            result = np.where(wrong, np.nextafter(result, np.float32(end)), result)
    if inst.has("SAT"):
        result = np.fmin(np.fmax(result, np.float32(0)), np.float32(1)) + np.float32(0)
    return _flushed(result) if inst.has("FTZ") else result


def _sum(a: Reals, b: Reals) -> tuple[Reals, Reals]:
    """The sum rounded to nearest, and what is lost (Knuth's TwoSum)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _odd_sum(inst: Instruction, a: Reals, b: Reals) -> Reals:
    """A sum of doubles rounded to odd: rounded again to 32 bits it is as the exact one, in every mode.

    Where it is not exact, and its last bit is 0, it is one step off towards the exact sum (S. Boldo and
    G. Melquiond, 2008). A sum of 0 is -0 where the instruction rounds down.
    """
    sign = -1.0 if inst.has("RM") else 1.0
    total, lost = (sign * part for part in _sum(sign * a, sign * b))
    bits = total.view(np.int64)
    step = np.where((lost > 0) == (total > 0), 1, -1) * ((lost != 0) & np.isfinite(total) & (bits & 1 == 0))
    found: Reals = (bits + step).view(np.float64)
    return found


# Factors that FMUL takes beside its operands.
_SCALES: Final = {f"{way}{n}": float(n) ** sign for n in (2, 4, 8) for way, sign in (("M", 1), ("D", -1))}


def _add(inst: Instruction, *parts: Value) -> Value:
    """FADD."""
    a, b = (_read(inst, part) for part in parts)
    return _words(_single(inst, _odd_sum(inst, a, b)), False, *parts)


def _multiply(inst: Instruction, *parts: Value) -> Value:
    """FMUL: the product of floats of 32 bits is one of 64."""
    a, b = (_read(inst, part) for part in parts)
    scale = _SCALES.get(named(inst, _SCALES), 1.0)
    return _words(_single(inst, a * b * scale), False, *parts)


def _multiply_add(inst: Instruction, *parts: Value) -> Value:
    """FFMA."""
    a, b, c = (_read(inst, part) for part in parts)
    return _words(_single(inst, _odd_sum(inst, a * b, c)), False, *parts)


def _doubles(function: Callable[..., Reals], sources: str) -> Builder:
    def run(_: Instruction, *parts: Value) -> Value:
        return _words(function(*(_numbers(part, True) for part in parts)), True, *parts)

    return row("d", sources, run, unlike=_DIRECTED)


def _fused_doubles(a: Reals, b: Reals, c: Reals) -> Reals:
    """a * b + c with the product's error kept (Dekker); where that leaves the range of floats, without."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = (_split(x) for x in (a, b))
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total, lost = _sum(product, c)
    found = total + (lost + error)
    return np.where(np.isfinite(found), found, total)


def _split(x: Reals) -> tuple[Reals, Reals]:
    scaled = x * _SPLIT
    upper = scaled - (scaled - x)
    return upper, x - upper


class Special(NamedTuple):
    """What an operation of MUFU approximates, and how far its results may be off the true ones, rounded.

    Those of an H200 never are (`scripts/measure/record_floats.py`, tests/data/h200_floats.json).
    """

    function: Callable[[Reals], Reals]
    # The larger one of so many units in the last place and so much; exact results are never off
    units: float
    least: float = 0.0

    def error(self, result: Reals) -> Reals:
        """How far results may be off."""
        found: Reals = np.maximum(self.units * np.spacing(np.abs(result)), self.least)
        return found


def _turned(function: Callable[[Reals], Reals]) -> Callable[[Reals], Reals]:
    """A function of an angle in revolutions, of which the GPU takes 25 bits behind the point."""

    def of_revolutions(x: Reals) -> Reals:
        return function(2 * np.pi * np.fmod(np.trunc(x * 2**25), 2**25) / 2**25)

    return of_revolutions


def _log2(x: Reals) -> Reals:
    """Logarithms; of 1/2, 1/4 and so on they are one step nearer to 0, at least 2**-23, always."""
    found: Reals = np.log2(x)
    nearer = np.maximum(np.nextafter(found.astype(np.float32), np.float32(0)), found + 2.0**-23)
    return np.where((found < 0) & (found == np.rint(found)) & np.isfinite(found), nearer, found)


SPECIAL: Final[Mapping[str, Special]] = {
    "RCP": Special(lambda x: 1.0 / x, 1),
    "RSQ": Special(lambda x: 1.0 / np.sqrt(x), 1),
    "SQRT": Special(np.sqrt, 1),
    "EX2": Special(np.exp2, 2),
    "LG2": Special(_log2, 3, 2.0**-22),
    "SIN": Special(_turned(np.sin), 0, 3.6e-7),
    "COS": Special(_turned(np.cos), 0, 3.6e-7),
    "TANH": Special(np.tanh, 130),
}


def _approximate(inst: Instruction, part: Value, side: int = 0) -> Value:
    """MUFU: the true result, rounded; with a side one that is off by as much as the GPU's may be."""
    found = SPECIAL[named(inst, SPECIAL)]
    given = _numbers(part, False)
    true = found.function((given if inst.has("TANH") else _flushed(given)).astype(np.float64))
    result = true.astype(np.float32)
    if side:
        near = result + _sides(part, side) * found.error(result)
        near = np.clip(near, -1, 1) if inst.has("SIN", "COS", "TANH") else near
        result = np.where(np.isfinite(true) & (result != true), near, result).astype(np.float32)
    return _words(result if inst.has("TANH") else _flushed(result), False, part)


def _approximate_high(inst: Instruction, part: Value, side: int = 0) -> Value:
    """RCP64H and RSQ64H: the high word of the result, at most 1 off, out of the high word of the operand."""
    function = SPECIAL[inst.modifiers[0].removesuffix("64H")].function
    true = _flushed(function(_flushed((part.bits << np.uint64(32)).view(np.float64))))
    result = true.view(np.uint64) >> np.uint64(32)
    moved = result + _sides(part, side).view(np.uint64)
    bits = np.where(np.isnan(true), _NAN, np.where(np.isfinite(true) & (true != 0), moved, result))
    return values.mapped(lambda *_: bits, 32, part)


def _sides(part: Value, side: int) -> Reals:
    """Which results are more (1) and which less (-1): a bit of a hash of the operand, so that they part.

    With -1 they are less where they are more with 1; 2 is another bit.
    """
    more = _mixed(part.bits) >> np.uint64(abs(side)) & np.uint64(1) == 0
    found: Reals = np.where(more, np.sign(side), -np.sign(side))
    return found


# What decides counts differs with one of these, but for rare chances.
_SIDES: Final = (1, -1, 2, -2)


def _approximation(letter: str, function: Callable[..., Value]) -> Builder:
    """A row whose results are near those of the function, and the function with each side."""

    def build(inst: Instruction) -> Built:
        rows = (row("r", letter, partial(function, side=k), unlike=("F16",))(inst) for k in (0, *_SIDES))
        found, *sides = rows
        near = tuple(one.action.function for one in sides if isinstance(one.action, Compute))
        if isinstance(found.action, Compute):
            found = found._replace(action=Compute(found.action.function, near=near))
        return found

    return build


def _from_integer(inst: Instruction, part: Value) -> Value:
    """I2F."""
    if inst.has("F64") and inst.has(*_DIRECTED):
        return values.unknown(64)
    unsigned = inst.has("U32", "U64")
    whole = part.bits if unsigned else values.signed(part.bits, 64 if inst.has("S64") else 32)
    high = (whole >> whole.dtype.type(32)).astype(np.float64) * 2.0**32
    low = (whole & whole.dtype.type(0xFFFFFFFF)).astype(np.float64)
    if inst.has("F64"):
        return _words(high + low, True, part)
    return _words(_single(inst, _odd_sum(inst, high, low)), False, part)


def _rounded(inst: Instruction, numbers: Reals) -> Reals:
    """To an integer, as the instruction says."""
    ways = {"TRUNC": np.trunc, "FLOOR": np.floor, "CEIL": np.ceil}
    return np.asarray(ways.get(named(inst, ways), np.rint)(numbers))


def _to_integer(inst: Instruction, part: Value) -> Value:
    """F2I: rounded as it says, clamped to the range; 0 with NTZ where it is no number, else the first bit."""
    unsigned, width = inst.has("U32", "U64"), 64 if inst.has("U64", "S64") else 32
    numbers = _read(inst, part, inst.has("F64"))
    rounded = _rounded(inst, np.nan_to_num(numbers, nan=0.0))
    low, high = (0, (1 << width) - 1) if unsigned else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    inside = np.where((rounded > float(low)) & (rounded < float(high)), rounded, 0.0)
    bits = inside.astype(np.uint64) if unsigned else inside.astype(np.int64).view(np.uint64)
    bits = np.where(rounded >= float(high), np.uint64(high), bits)
    bits = np.where(rounded <= float(low), np.uint64(low & ((1 << width) - 1)), bits)
    if not inst.has("NTZ"):
        bits = np.where(np.isnan(numbers), np.uint64(1 << (width - 1)), bits)
    return values.mapped(lambda *_: bits, width, part)


def _convert(inst: Instruction) -> Built:
    """F2F between 32 and 64 bits, and FRND."""
    wanted = [m for m in inst.modifiers if m in ("F16", "BF16", "F32", "F64")]
    rounds = inst.opcode == "FRND"
    to, given = ((wanted * 2 if rounds else wanted) or ["F32", "F32"])[:2]

    def run(_: Instruction, part: Value) -> Value:
        result = _read(inst, part, given == "F64")
        if rounds:
            return _words(_rounded(inst, result), to == "F64", part)
        bits = _bits(result if to == "F64" else _single(inst, result), to == "F64")
        return values.mapped(lambda *_: bits, 64 if to == "F64" else 32, part)

    letters = ("d" if to == "F64" else "r", "g" if given == "F64" else "f")
    return row(*letters, run, unlike=("F16", "BF16"))(inst)


def _check_division(_: Instruction, a: Value, b: Value) -> Value:
    """FCHK: whether a / b needs its slow path; never where both are far from the ends of the range.

    Of zero by such a number both paths give the same.
    """
    exponents = ((part.bits >> np.uint64(23)) & np.uint64(0xFF) for part in (a, b))
    a_plain, b_plain = ((e >= _PLAIN[0]) & (e <= _PLAIN[1]) for e in exponents)
    fast = b_plain & (a_plain | (a.bits & np.uint64(0x7FFFFFFF) == 0))
    found = values.mapped(lambda *_: np.zeros(fast.shape, np.uint64), 1, a, b)
    return values.select(values.known(fast), found, values.unknown(1))


_REAL_ORDERS: Final = (*ORDERS, *(f"{name}U" for name in ORDERS), "NUM", "NAN")


def _compare_reals(inst: Instruction, a: Value, b: Value, other: Value) -> Iterator[Value]:
    """FSETP and DSETP: ordered comparisons are false, those with U true, where a number is none."""
    name = named(inst, _REAL_ORDERS)
    x, y = (_read(inst, part, inst.opcode == "DSETP") for part in (a, b))
    unordered = np.isnan(x) | np.isnan(y)
    if name in ("NUM", "NAN"):
        holds = ~unordered if name == "NUM" else unordered
    else:
        holds = ORDERS[name.removesuffix("U")](x, y)
        holds = (holds | unordered) if name.endswith("U") else (holds & ~unordered)
    return told(inst, values.mapped(lambda *_: holds.astype(np.uint64), 1, a, b), other)


def _real_extreme(inst: Instruction, *parts: Value) -> Value:
    """FMNMX: -0 is less than 0; what is no number does not count, with NAN alone does."""
    *given, smaller = parts
    reals = [_read(inst, part) for part in given]
    end = np.minimum if inst.has("NAN") else np.fmin

    def lesser(x: Reals, y: Reals) -> Reals:
        return np.where(x == y, np.where(np.signbit(x), x, y), end(x, y))

    least, greatest = (
        _words(sign * reduce(lesser, [sign * x for x in reals]), False, *given) for sign in (1.0, -1.0)
    )
    return values.select(smaller, least, greatest)


def _halves(inst: Instruction) -> Built:
    """HFMA2.MMA d, -RZ, RZ, hi, lo loads a constant of two 16-bit floats; the rest is not evaluated."""
    texts = [text.lower().replace("qnan", "nan") for text in inst.operands[3:]]
    try:
        high, low = (int(np.float16(float(text)).view(np.uint16)) for text in texts)
    except ValueError:
        return forget(1)(inst)
    if [text.lstrip("-") for text in inst.operands[1:3]] != ["RZ", "RZ"]:
        return forget(1)(inst)
    return computed(inst, [("r", inst.operands[0])], [], lambda _: constant(high << 16 | low))


# Bits of an element of a matrix product, by the first type that its instruction names.
_ELEMENT: Final = {"TF32": 32, "S8": 8, "U8": 8, "S4": 4, "U4": 4, "E4M3": 8, "E5M2": 8}
_RESULT: Final = {"F16": 16, "F32": 32, "F64": 64}
_MOST_RESULTS: Final = 8


def _texels(inst: Instruction) -> Built:
    """Components of a texture: those of the mask at the end (all without), two at each of two places."""
    mask = int(inst.operands[-1], 16) if re.fullmatch(r"0x[0-9a-f]", inst.operands[-1]) else 0xF
    return forget(1 if mask.bit_count() == 1 else 2, places=2)(inst)


def _matrix_product(inst: Instruction) -> Built:
    """Tensor cores, which are not evaluated: registers are as many as shape and types say.

    Of `16816` and `8x8x4` (rows, 8 columns, depth) 32 lanes share the elements of each matrix, in words of 32
    bits; what is computed of all operands stands for the product. Of `64x128x16`, 128 lanes share the result,
    and operands are read from shared memory. The registers of others may be as many as any has.
    """
    shape = next((m for m in inst.modifiers if re.fullmatch(r"[\dx]{3,}", m)), "")
    double = inst.opcode[0] == "D"
    bits = 64 if double else _RESULT.get(named(inst, _RESULT), 32) if inst.opcode[0] in "HQ" else 32
    if inst.opcode.endswith("GMMA"):
        group = re.fullmatch(r"64x(\d+)x\d+", shape)
        return forget(int(group[1]) * bits // 64 if group else _MOST_RESULTS)(inst)
    match = re.fullmatch(r"(16|8)x?8x?(\d+)", shape)
    if match is None or (shape == "884" and not double):
        return forget(_MOST_RESULTS)(inst)
    rows, depth = map(int, match.groups())
    results = rows * 8 * bits // (32 * 32)
    if inst.has("SP") or len(inst.operands) != 4:
        return forget(results)(inst)
    element = 64 if double else _ELEMENT.get(named(inst, _ELEMENT), 16)
    counts = rows * depth * element // (32 * 32), depth * 8 * element // (32 * 32), results
    given = [one for text, count in zip(inst.operands[1:], counts, strict=True) for one in words(text, count)]
    stand_in = _stand_in(inst, results, 0 if inst.opcode[0] == "I" else bits)
    return Built(Forget(stand_in=stand_in), tuple(given), registers(inst.operands[0], results))


# Of words that look like sums of products, by the bits of a float, 0 for integers: what stands in them
# anyway, and bits that may be others; a register after another.
_FORMS: Final = {
    0: ((0, 0x3FFFF),),
    16: ((0x3C003C00, 0x3FF03FF),),
    32: ((0x3F800000, 0x7FFFFF),),
    64: ((0, 0xFFFFFFFF), (0x3FF00000, 0xFFFFF)),
}


def _stand_in(inst: Instruction, count: int, bits: int) -> Callable[..., tuple[Value, ...]]:
    """So many words a lane: a hash of the instruction and of what all active lanes of the warp have.

    Unknown as a whole where one of these lanes has an unknown bit.
    """
    seed = np.uint64(zlib.crc32(" ".join((inst.opcode, *inst.modifiers)).encode()))

    def run(active: Bools, *given: Value) -> tuple[Value, ...]:
        lanes = np.arange(32, dtype=np.uint64)
        own = np.broadcast_to(
            reduce(lambda told, one: _mixed(told ^ one.bits), given, seed + lanes), active.shape
        )
        whole = _mixed(own).sum(axis=1, keepdims=True, where=active)
        hidden = np.any([(active & (one.unknown != 0)).any(axis=1, keepdims=True) for one in given], axis=0)
        found = []
        for k in range(count):
            form, free = map(np.uint64, _FORMS[bits][k % len(_FORMS[bits])])
            told = Value(_mixed(whole + np.uint64(k << 5) + lanes) & free | form)
            found.append(values.hidden_where(hidden, told, 32))
        return tuple(found)

    return run


def _mixed(bits: Bits) -> Bits:
    """Each number as another one that looks random (G. Steele and others, SplittableRandom, 2014: mix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


FLOATS: Final[Mapping[str, Builder]] = {
    "DADD": _doubles(lambda a, b: a + b, "gg"),
    "DFMA": _doubles(_fused_doubles, "ggg"),
    "DMNMX": forget(2),
    "DMUL": _doubles(lambda a, b: a * b, "gg"),
    "DSETP": row("pp", "ggp", _compare_reals, needs=_REAL_ORDERS),
    "F2F": _convert,
    "F2I": row(sized("r", "d", "U64", "S64"), sized("f", "g", "F64"), _to_integer, unlike=(*_SMALL, "64")),
    "FADD": row("r", "ff", _add),
    "FCHK": row("p", "ff", _check_division),
    "FFMA": row("r", "fff", _multiply_add),
    "FMNMX": row("r", "ffp", _real_extreme, unlike=("XORSIGN",)),
    "FMNMX3": row("r", "fffp", _real_extreme),
    "FMUL": row("r", "ff", _multiply),
    "FRND": _convert,
    "FSEL": row("r", "ffp", select, unlike=("FTZ",)),
    "FSETP": row("pp", "ffp", _compare_reals, needs=_REAL_ORDERS),
    "HFMA2": _halves,
    "HSETP2": forget(0),
    "MUFU": forget(1),
    **{f"MUFU.{name}": _approximation("f", _approximate) for name in SPECIAL},
    **{f"MUFU.{name}64H": _approximation("h", _approximate_high) for name in ("RCP", "RSQ")},
    **dict.fromkeys([f"{name}SETP.{end}" for name in "DF" for end in ("MAX", "MIN")], forget(0)),
    **dict.fromkeys(
        ("I2F", "I2FP"),
        row(sized("r", "d", "F64"), sized("w", "d", "U64", "S64"), _from_integer, unlike=_SMALL),
    ),
    **dict.fromkeys(("DMMA", "HGMMA", "HMMA", "IGMMA", "IMMA", "QGMMA"), _matrix_product),
    **dict.fromkeys(("SULD", "TXQ"), forget(4, places=2)),
    **dict.fromkeys(("TEX", "TLD", "TLD4", "TXD"), _texels),
    **dict.fromkeys(
        (
            *("F2FP", "F2IP", "FSET", "FSWZADD", "HADD2", "HMNMX2", "HMUL2", "HSET2", "I2IP", "IDP"),
            *("MOVM", "VABSDIFF", "VABSDIFF4"),
        ),
        forget(1),
    ),
}
