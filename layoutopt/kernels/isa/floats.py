"""What instructions compute of floats: what integer arithmetic, and tests of loaded data, need of it.

Sums and products are rounded as numpy does. A multiply-add of 32 bits goes through 64; one of 64 keeps the
error of its product. The approximations that division and roots begin with are exact results, of 64 bits
their high words: what follows in the code repairs the last bits. The rest, and matrices, are unknown; where
all values of a block are followed, a hash stands for a product of matrices.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.kernels.isa.arithmetic import ORDERS, named, select, sized, told
from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import Builder, Built, computed, forget, registers, row, words
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Bits, Bools, Value, constant
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


def _flushed(numbers: Reals) -> Reals:
    return np.where(np.abs(numbers) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), numbers), numbers)


def _arithmetic(function: Callable[..., Any], sources: str) -> Builder:
    """A float out of floats."""
    wide = "g" in sources

    def run(inst: Instruction, *parts: Value) -> Value:
        flush = _flushed if inst.has("FTZ") else lambda numbers: numbers
        result = function(*(flush(_numbers(part, wide)) for part in parts))
        result = np.asarray(result, np.float64 if wide else np.float32)
        if inst.has("SAT"):
            result = np.clip(result, np.float32(0), np.float32(1))
        return _words(flush(result), wide, *parts)

    return row("d" if wide else "r", sources, run, unlike=_INEXACT if wide else ())


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


def _split(x: Reals) -> tuple[Reals, Reals]:
    scaled = x * _SPLIT
    upper = scaled - (scaled - x)
    return upper, x - upper


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


def _special(inst: Instruction, part: Value) -> Value:
    """MUFU; RCP64H and RSQ64H give the high word of the result, out of the high word of the operand."""
    name = next(m for m in inst.modifiers if m.removesuffix("64H") in _FUNCTIONS)
    function, upper = _FUNCTIONS[name.removesuffix("64H")], name.endswith("64H")
    if upper:
        found = function((part.bits << np.uint64(32)).view(np.float64))
        return values.high(_words(found, True, part))
    return _words(function(_numbers(part, False).astype(np.float64)), False, part)


def _from_integer(inst: Instruction, part: Value) -> Value:
    """I2F: to the nearest float, or upwards (RP) as integer division does."""
    whole = values.signed(part.bits, 64 if inst.has("S64") else 32)
    exact = (part.bits if inst.has("U32", "U64") else whole).astype(np.float64)
    if inst.has("F64"):
        return _words(exact, True, part)
    result = exact.astype(np.float32)
    if inst.has("RP"):
        result = np.where(result < exact, np.nextafter(result, np.float32(np.inf)), result)
    return _words(result, False, part)


def _rounded(inst: Instruction, numbers: Reals) -> Reals:
    """To an integer, as the instruction says."""
    ways = {"TRUNC": np.trunc, "FLOOR": np.floor, "CEIL": np.ceil}
    return np.asarray(ways.get(named(inst, ways), np.rint)(numbers))


def _to_integer(inst: Instruction, part: Value) -> Value:
    """F2I: rounded as it says, clamped to the range."""
    unsigned, width = inst.has("U32", "U64"), 64 if inst.has("U64", "S64") else 32
    numbers = _numbers(part, inst.has("F64")).astype(np.float64)
    rounded = _rounded(inst, np.nan_to_num(numbers, nan=0.0))
    low, high = (0, (1 << width) - 1) if unsigned else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    inside = np.where((rounded > float(low)) & (rounded < float(high)), rounded, 0.0)
    bits = inside.astype(np.uint64) if unsigned else inside.astype(np.int64).view(np.uint64)
    bits = np.where(rounded >= float(high), np.uint64(high), bits)
    bits = np.where(rounded <= float(low), np.uint64(low & ((1 << width) - 1)), bits)
    return values.mapped(lambda *_: bits, width, part)


def _convert(inst: Instruction) -> Built:
    """F2F between 32 and 64 bits, and FRND."""
    wanted = [m for m in inst.modifiers if m in ("F16", "BF16", "F32", "F64")]
    rounds = inst.opcode == "FRND"
    to, given = ((wanted * 2 if rounds else wanted) or ["F32", "F32"])[:2]

    def run(_: Instruction, part: Value) -> Value:
        result = _numbers(part, given == "F64").astype(np.float64)
        return _words(_rounded(inst, result) if rounds else result, to == "F64", part)

    letters = ("d" if to == "F64" else "r", "g" if given == "F64" else "f")
    return row(*letters, run, unlike=("F16", "BF16", "SAT", *_INEXACT))(inst)


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
    x, y = (_numbers(part, inst.opcode == "DSETP") for part in (a, b))
    if inst.has("FTZ"):
        x, y = _flushed(x), _flushed(y)
    unordered = np.isnan(x) | np.isnan(y)
    if name in ("NUM", "NAN"):
        holds = ~unordered if name == "NUM" else unordered
    else:
        holds = ORDERS[name.removesuffix("U")](x, y)
        holds = (holds | unordered) if name.endswith("U") else (holds & ~unordered)
    return told(inst, values.mapped(lambda *_: holds.astype(np.uint64), 1, a, b), other)


def _real_extreme(_: Instruction, *parts: Value) -> Value:
    *given, smaller = parts
    reals = [_numbers(part, False) for part in given]
    least, greatest = (_words(reduce(end, reals), False, *given) for end in (np.fmin, np.fmax))
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
    "DADD": _arithmetic(lambda a, b: a + b, "gg"),
    "DFMA": _arithmetic(_fused_doubles, "ggg"),
    "DMNMX": forget(2),
    "DMUL": _arithmetic(lambda a, b: a * b, "gg"),
    "DSETP": row("pp", "ggp", _compare_reals, needs=_REAL_ORDERS),
    "F2F": _convert,
    "F2I": row(sized("r", "d", "U64", "S64"), sized("f", "g", "F64"), _to_integer, unlike=(*_SMALL, "64")),
    "FADD": _arithmetic(lambda a, b: a + b, "ff"),
    "FCHK": row("p", "ff", _check_division),
    "FFMA": _arithmetic(_fused, "fff"),
    "FMNMX": row("r", "ffp", _real_extreme),
    "FMNMX3": row("r", "fffp", _real_extreme),
    "FMUL": _arithmetic(lambda a, b: a * b, "ff"),
    "FRND": _convert,
    "FSEL": row("r", "ffp", select),
    "FSETP": row("pp", "ffp", _compare_reals, needs=_REAL_ORDERS),
    "HFMA2": _halves,
    "HSETP2": forget(0),
    "MUFU": forget(1),
    **{f"MUFU.{name}": row("r", "f", _special, unlike=("F16",)) for name in _FUNCTIONS},
    **{f"MUFU.{name}64H": row("r", "h", _special) for name in ("RCP", "RSQ")},
    **dict.fromkeys([f"{name}SETP.{end}" for name in "DF" for end in ("MAX", "MIN")], forget(0)),
    **dict.fromkeys(
        ("I2F", "I2FP"),
        row(
            sized("r", "d", "F64"), sized("w", "d", "U64", "S64"), _from_integer, unlike=(*_SMALL, "RM", "RZ")
        ),
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
