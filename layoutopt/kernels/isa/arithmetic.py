"""What instructions compute of integers, bits, predicates and floats, and across the lanes of a warp.

Compared with an H200. Sums and products of floats are rounded as numpy does. A multiply-add of 32 bits goes
through 64; one of 64 keeps the error of its product. The approximations that division and roots begin with
are exact results, of 64 bits their high words: what follows in the code repairs the last bits. Other floats,
and matrices, are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import (
    Builder,
    Built,
    Letters,
    UnreadableOperand,
    computed,
    forget,
    is_predicate,
    negates,
    predicate,
    row,
    word,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import TRUE, ZERO, Bits, Bools, Value, constant

Reals = npt.NDArray[Any]

# ---------------------------------------------------------------- integers


def _sum(one: Instruction, *parts: Value) -> Iterator[Value]:
    return _total(*parts, *[TRUE] * sum(map(negates, one.operands)))


def _total(*parts: Value) -> Iterator[Value]:
    """The low word of a sum, and up to two carries."""
    total = values.add(*parts, width=36)
    yield values.low(total)
    upper = values.shift_right(total, constant(32), 36)
    for k in range(2):
        yield values.less(constant(k), upper, 36, is_signed=False)


def _product(one: Instruction, a: Value, b: Value, c: Value, *carry: Value) -> Iterator[Value]:
    """IMAD.WIDE and IMAD.HI: A*B + C, and the carry of unsigned numbers."""
    if not one.has("U32"):
        a, b = values.extend(a, 32), values.extend(b, 32)
    product = values.multiply(a, b, 64)
    total = values.add(product, c, *carry, width=64)
    yield total if one.has("WIDE") else values.high(total)
    # The largest product leaves room for a carry that comes in, so that only adding C can pass 64 bits.
    within = values.add(product, *carry, width=64) if carry else product
    yield values.less(total, within, 64, is_signed=False)


def _shift_add(one: Instruction, a: Value, b: Value, *rest: Value) -> Iterator[Value]:
    """LEA: (A << s) + B, or with HI the high word of {C:A} << s, or of A with its sign, and B."""
    upper, (shift, *carries) = (rest[:1], rest[1:]) if _takes_pair(one) else ((), rest)
    if one.has("HI"):
        pair = values.join(a, *upper) if upper else values.extend(a, 32)
        shifted = values.high(values.shift_left(pair, shift, 64))
    else:
        shifted = values.shift_left(a, shift)
    _, _, b_text, *_ = (text for text in one.operands if not is_predicate(text))
    return _total(shifted, b, *carries, *[TRUE] * negates(b_text))


def _takes_pair(one: Instruction) -> bool:
    return one.has("HI") and not one.has("SX32")


def _lea_letters(one: Instruction) -> str:
    return ("u" if one.has("HI") else "w") + "a" + "w" * _takes_pair(one) + "wc"


def _funnel(one: Instruction, a: Value, amount: Value, c: Value) -> Value:
    """SHF: a shift of {C:A}, of which one word is kept."""
    left, top, is_signed = one.has("L"), one.has("HI"), one.has("S32", "S64")
    limit = 64 if one.has("U64", "S64") else 32
    if one.has("W"):
        amount = values.both(amount, constant(limit - 1))
    else:
        amount = values.least(amount, constant(limit), is_signed=False)
    right = values.shift_right_signed if is_signed else values.shift_right
    if limit == 32 and top != left:
        return values.shift_left(a, amount) if left else right(c, amount)
    moved = (values.shift_left if left else right)(values.join(a, c), amount, 64)
    return values.high(moved) if top else values.low(moved)


def _extreme(one: Instruction, *parts: Value) -> Value:
    """VIMNMX, VIMNMX3, IMNMX and VIADDMNMX: the smallest where the predicate is true, else the largest."""
    *numbers, smaller = parts
    if one.opcode.endswith("ADDMNMX"):
        numbers = [values.add(numbers[0], numbers[1]), numbers[2]]
    is_signed = not one.has("U32")
    least = reduce(lambda a, b: values.least(a, b, 32, is_signed), numbers)
    greatest = reduce(lambda a, b: values.greatest(a, b, 32, is_signed), numbers)
    return values.select(smaller, least, greatest)


def _permute(_: Instruction, a: Value, choice: Value, c: Value) -> Value:
    """PRMT: each result byte is one of the eight of {C:A}, or copies of its sign."""
    double = values.join(a, c)
    result = ZERO
    for k in range(4):
        nibble = values.both(values.shift_right(choice, constant(4 * k)), constant(15))
        at = values.shift_left(values.both(nibble, constant(7)), constant(3))
        byte = values.both(values.shift_right(double, at, 64), constant(0xFF), 64)
        signs = values.shift_right_signed(values.extend(byte, 8), constant(8), 64)
        copies = values.shift_right(nibble, constant(3))
        byte = values.select(copies, values.both(signs, constant(0xFF)), byte)
        result = values.either(result, values.shift_left(byte, constant(8 * k)))
    return result


def _reversed(bits: Bits) -> Bits:
    one = np.uint64(1)
    return sum(((bits >> np.uint64(k) & one) << np.uint64(31 - k) for k in range(32)), np.zeros_like(bits))


def _leading_one(one: Instruction, a: Value) -> Value:
    """FLO: place of the highest bit that is set (of a signed number, that differs from the sign)."""

    def highest(bits: Bits) -> Bits:
        negative = (not one.has("U32")) & (bits >> np.uint64(31) == 1)
        bits = np.where(negative, bits ^ np.uint64(0xFFFFFFFF), bits)
        place = np.floor(np.log2(np.maximum(bits, 1).astype(np.float64))).astype(np.uint64)
        place = np.uint64(31) - place if one.has("SH") else place
        return np.where(bits == 0, np.uint64(0xFFFFFFFF), place)

    return values.mapped(highest, 32, a)


def _bit_mask(one: Instruction, start: Value, count: Value) -> Value:
    """BMSK: B ones from bit A on; with clamped numbers."""
    if one.has("W"):
        start, count = (values.both(v, constant(31)) for v in (start, count))
    ones = values.subtract(values.shift_left(TRUE, count, 64), TRUE, 64)
    return values.low(values.shift_left(ones, start, 64))


def _sign_extend(one: Instruction, a: Value, bits: Value) -> Value:
    """SGXT: the lowest B bits of A, extended."""
    if not bits.sure or bits.bits.size > 1:
        return values.unknown()
    width = int(bits.bits[0, 0]) & 31 or 32
    cut = values.both(a, constant(-1, width))
    return cut if one.has("U32") else values.extend(cut, width, 32)


def _absolute(_: Instruction, a: Value) -> Value:
    return values.select(values.less(a, ZERO), values.negate(a), a)


def _select(_: Instruction, a: Value, b: Value, which: Value) -> Value:
    return values.select(which, a, b)


def _move(one: Instruction) -> Built:
    """MOV R1, R2, 0xf has a mask of bytes that is always whole."""
    if len(one.operands) > 2 and one.operands[2] != "0xf":
        raise UnreadableOperand(one.operands[2])
    return computed(one, [("r", one.operands[0])], [word(one.operands[1])], lambda _, a: a)


# ---------------------------------------------------------------- predicates

_JOINS: Final = {"AND": values.both, "OR": values.either, "XOR": values.differ}
_ORDERS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def _named(one: Instruction, names: Mapping[str, Any] | tuple[str, ...]) -> str:
    """The first modifier that is one of these names."""
    return next((m for m in one.modifiers if m in names), "")


def _told(one: Instruction, holds: Value, other: Value) -> Iterator[Value]:
    """What a comparison gives: its answer, and the opposite, each joined with a predicate."""
    join = _JOINS[_named(one, _JOINS) or "AND"]
    yield join(holds, other, 1)
    yield join(values.invert(holds, 1), other, 1)


_INTEGER_ORDERS: Final = (*_ORDERS, "T", "F")


def _compare(one: Instruction, a: Value, b: Value, other: Value, *lower: Value) -> Iterator[Value]:
    """ISETP; EX compares high words, and the low ones have been."""
    name = _named(one, _INTEGER_ORDERS).lower()
    is_signed, width = not one.has("U32", "U64"), 64 if one.has("U64", "S64", "64") else 32
    if name in "tf":
        holds = constant(int(name == "t"))
    elif not lower:
        holds = values.compare(name, a, b, width, is_signed)
    elif name == "ne":
        holds = values.either(values.compare("ne", a, b), lower[0], 1)
    else:
        holds = values.both(values.equal(a, b), lower[0], 1)
        if name != "eq":
            holds = values.either(values.compare(name[0] + "t", a, b, width, is_signed), holds, 1)
    return _told(one, holds, other)


def _logic(_: Instruction, a: Value, b: Value, c: Value, table: Value) -> Iterator[Value]:
    """LOP3: a table of three bits, and whether the result is not 0."""
    result = values.table3(a, b, c, int(table.bits[0, 0]))
    yield result
    yield values.compare("ne", result, ZERO)


def _predicate_logic(one: Instruction) -> Built:
    """PLOP3: two tables of three predicates."""
    tables = [int(text, 16) for text in one.operands if not is_predicate(text)]
    names = [text for text in one.operands if is_predicate(text)]
    if len(tables) != 2 or len(names) != 5:
        raise UnreadableOperand("PLOP3 of another form")

    def looked_up(_: Instruction, a: Value, b: Value, c: Value) -> list[Value]:
        return [values.table3(a, b, c, table, 1) for table in tables]

    return computed(one, [("p", t) for t in names[:2]], [predicate(t) for t in names[2:]], looked_up)


def _to_predicates(one: Instruction) -> Built:
    """R2P: bits of a register under a mask become predicates P0 to P6."""
    if len(one.operands) != 3 or one.modifiers not in ((), ("B0",)):
        raise UnreadableOperand("R2P of another form")
    chosen = _under(one.operands[2])

    def bits(_: Instruction, a: Value) -> list[Value]:
        return [values.both(values.shift_right(a, constant(k)), TRUE, 1) for k in chosen]

    return computed(one, [("p", f"P{k}") for k in chosen], [word(one.operands[1])], bits)


def _from_predicates(one: Instruction) -> Built:
    """P2R: predicates as bits under a mask, another register's bits elsewhere."""
    dest, bank, other, mask = one.operands
    if bank not in ("PR", "UPR") or one.modifiers:
        raise UnreadableOperand("P2R of another form")
    chosen = _under(mask)

    def merged(_: Instruction, a: Value, *given: Value) -> Value:
        bits = (values.shift_left(value, constant(k)) for k, value in zip(chosen, given, strict=True))
        return reduce(values.either, bits, values.both(a, constant(~int(mask, 16))))

    sources = [word(other), *(predicate(f"{bank.removesuffix('R')}{k}") for k in chosen)]
    return computed(one, [("r", dest)], sources, merged)


def _under(mask: str) -> list[int]:
    """The predicates under a mask."""
    return [k for k in range(7) if int(mask, 16) >> k & 1]


# ---------------------------------------------------------------- floats

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

    def run(one: Instruction, *parts: Value) -> Value:
        flush = _flushed if one.has("FTZ") else lambda numbers: numbers
        with np.errstate(all="ignore"):
            result = function(*(flush(_numbers(part, wide)) for part in parts))
            result = np.asarray(result, np.float64 if wide else np.float32)
            if one.has("SAT"):
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


def _special(one: Instruction, part: Value) -> Value:
    """MUFU; RCP64H and RSQ64H give the high word of the result, out of the high word of the operand."""
    name = next(m for m in one.modifiers if m.removesuffix("64H") in _FUNCTIONS)
    function, upper = _FUNCTIONS[name.removesuffix("64H")], name.endswith("64H")
    with np.errstate(all="ignore"):
        if upper:
            found = function((part.bits << np.uint64(32)).view(np.float64))
            return values.high(_words(found, True, part))
        return _words(function(_numbers(part, False).astype(np.float64)), False, part)


def _sized(one: str, two: str, *wide: str) -> Letters:
    """One letter, or another one with one of these modifiers."""
    return lambda instruction: two if instruction.has(*wide) else one


def _from_integer(one: Instruction, part: Value) -> Value:
    """I2F: to the nearest float, or upwards (RP) as integer division does."""
    whole = values.signed(part.bits, 64 if one.has("S64") else 32)
    exact = (part.bits if one.has("U32", "U64") else whole).astype(np.float64)
    if one.has("F64"):
        return _words(exact, True, part)
    result = exact.astype(np.float32)
    for name, away, toward in (
        ("RP", result < exact, np.inf),
        ("RM", result > exact, -np.inf),
        ("RZ", np.abs(result) > np.abs(exact), 0),
    ):
        if one.has(name):
            result = np.where(away, np.nextafter(result, np.float32(toward)), result)
    return _words(result, False, part)


def _rounded(one: Instruction, numbers: Reals) -> Reals:
    """To an integer, as the instruction says."""
    ways = {"TRUNC": np.trunc, "FLOOR": np.floor, "CEIL": np.ceil}
    return np.asarray(ways.get(_named(one, ways), np.rint)(numbers))


def _to_integer(one: Instruction, part: Value) -> Value:
    """F2I: rounded as it says, clamped to the range."""
    unsigned, width = one.has("U32", "U64"), 64 if one.has("U64", "S64") else 32
    numbers = _numbers(part, one.has("F64")).astype(np.float64)
    rounded = _rounded(one, np.nan_to_num(numbers, nan=0.0))
    low, high = (0, (1 << width) - 1) if unsigned else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    inside = np.where((rounded > float(low)) & (rounded < float(high)), rounded, 0.0)
    bits = inside.astype(np.uint64) if unsigned else inside.astype(np.int64).view(np.uint64)
    bits = np.where(rounded >= float(high), np.uint64(high), bits)
    bits = np.where(rounded <= float(low), np.uint64(low & ((1 << width) - 1)), bits)
    return values.mapped(lambda *_: bits, width, part)


def _convert(one: Instruction) -> Built:
    """F2F between 32 and 64 bits, and FRND."""
    wanted = [m for m in one.modifiers if m in ("F16", "BF16", "F32", "F64")]
    rounds = one.opcode == "FRND"
    to, given = ((wanted * 2 if rounds else wanted) or ["F32", "F32"])[:2]

    def run(_: Instruction, part: Value) -> Value:
        with np.errstate(all="ignore"):
            result = _numbers(part, given == "F64").astype(np.float64)
            return _words(_rounded(one, result) if rounds else result, to == "F64", part)

    letters = ("d" if to == "F64" else "r", "g" if given == "F64" else "f")
    return row(*letters, run, unlike=("F16", "BF16", "SAT", *_INEXACT))(one)


def _check_division(_: Instruction, a: Value, b: Value) -> Value:
    """FCHK: whether a / b needs its slow path; never where both are far from the ends of the range."""
    exponents = [(part.bits >> np.uint64(23)) & np.uint64(0xFF) for part in (a, b)]
    plain = np.logical_and(*((e >= _PLAIN[0]) & (e <= _PLAIN[1]) for e in exponents))
    found = values.mapped(lambda *_: np.zeros(plain.shape, np.uint64), 1, a, b)
    return values.select(values.known(plain), found, values.unknown(1))


_REAL_ORDERS: Final = (*_ORDERS, *(f"{name}U" for name in _ORDERS), "NUM", "NAN")


def _compare_reals(one: Instruction, a: Value, b: Value, other: Value) -> Iterator[Value]:
    """FSETP and DSETP: ordered comparisons are false, those with U true, where a number is none."""
    name = _named(one, _REAL_ORDERS)
    x, y = (_numbers(part, one.opcode == "DSETP") for part in (a, b))
    if one.has("FTZ"):
        x, y = _flushed(x), _flushed(y)
    unordered = np.isnan(x) | np.isnan(y)
    if name in ("NUM", "NAN"):
        holds = ~unordered if name == "NUM" else unordered
    else:
        holds = _ORDERS[name.removesuffix("U")](x, y)
        holds = (holds | unordered) if name.endswith("U") else (holds & ~unordered)
    return _told(one, values.mapped(lambda *_: holds.astype(np.uint64), 1, a, b), other)


def _real_extreme(_: Instruction, *parts: Value) -> Value:
    *given, smaller = parts
    reals = [_numbers(part, False) for part in given]
    least, greatest = (_words(reduce(end, reals), False, *given) for end in (np.fmin, np.fmax))
    return values.select(smaller, least, greatest)


def _halves(one: Instruction) -> Built:
    """HFMA2.MMA d, -RZ, RZ, hi, lo loads a constant of two 16-bit floats; the rest is not evaluated."""
    texts = [text.lower().replace("qnan", "nan") for text in one.operands[3:]]
    try:
        high, low = (int(np.float16(float(text)).view(np.uint16)) for text in texts)
    except ValueError:
        return forget(1)(one)
    if [text.lstrip("-") for text in one.operands[1:3]] != ["RZ", "RZ"]:
        return forget(1)(one)
    return computed(one, [("r", one.operands[0])], [], lambda _: constant(high << 16 | low))


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
        size = _ELEMENT.get(_named(one, _ELEMENT), size)
    group = re.fullmatch(r"64x(\d+)x\d+", shape) if one.opcode.endswith("GMMA") else None
    match = re.fullmatch(r"(16|8)x?8x?\d+", shape)
    if group:
        count = int(group[1]) * size // 8
    else:
        count = _MOST_RESULTS if match is None or shape == "884" else int(match[1]) * size // 16
    return forget(count)(one)


# ---------------------------------------------------------------- lanes: the active ones come first


def _first_lane(one: Instruction) -> Built:
    """R2UR: the value of the first active lane; a predicate says which lanes have another one.

    Code that serves one number at a time goes round until no lane is left; of a number of two words, the
    second (`.OR`) adds to the predicate of the first.
    """
    names = [text for text in one.operands if is_predicate(text)] or ["PT"]
    dest, given, *_ = (text for text in one.operands if not is_predicate(text))
    joins = one.has("OR") and not names[0].endswith("T")

    def first(_: Instruction, active: Bools, value: Value, before: Value = ZERO) -> Iterator[Value]:
        chosen = values.cut(values.of_lane(value, active.argmax(axis=1)[:, None], active.shape), 32)
        yield chosen
        other = values.invert(values.equal(value, chosen), 1)
        yield values.either(before, other, 1) if joins else other

    sources = [word(given), *([predicate(names[0])] if joins else [])]
    return computed(one, [("r", dest), ("p", names[0])], sources, first, across=True)


def _shuffle(one: Instruction, active: Bools, data: Value, lane: Value, clamp: Value) -> tuple[Value, Value]:
    """SHFL: what each lane reads from another one and whether that is in range (PTX ISA, shfl.sync).

    Operand c is the clamp in bits 0 to 4 and the segment mask in bits 8 to 12.
    """
    own = np.arange(32)
    if not (lane.sure and clamp.sure):
        return values.unknown(), values.unknown(1)
    by, limit, segment = (
        np.broadcast_to(bits.astype(np.int64), active.shape) & 31
        for bits in (lane.bits, clamp.bits, clamp.bits >> np.uint64(8))
    )
    most = (own & segment) | (limit & ~segment)
    indexed = (own & segment) | (by & ~segment)
    sources = {"UP": own - by, "DOWN": own + by, "BFLY": own ^ by, "IDX": indexed}
    source = sources[_named(one, sources)]
    within = source >= most if one.has("UP") else source <= most
    chosen = np.where(within, source, own) & 31
    found = values.of_lane(data, chosen, active.shape)
    idle = ~np.take_along_axis(active, chosen, axis=1)
    return values.hidden_where(idle, found, 32), Value(within.astype(np.uint64))


def _mask_of(lanes: Bools) -> Bits:
    weights = np.uint64(1) << np.arange(32, dtype=np.uint64)
    found: Bits = (lanes * weights).sum(axis=-1, keepdims=True, dtype=np.uint64)
    return found


def _vote(one: Instruction) -> Built:
    """VOTE: of which lanes a predicate holds, and whether of ALL, of ANY, or of all alike (EQ)."""
    if not one.has("ALL", "ANY", "EQ"):
        raise UnreadableOperand("a vote of another form")

    def vote(_: Instruction, active: Bools, holds: Value) -> tuple[Value, Value]:
        true = active & (holds.bits != 0)
        unsure = active & (holds.unknown != 0)
        ballot = values.made(_mask_of(true), _mask_of(unsure), 32)
        some = true.any(axis=1, keepdims=True)
        none = (active & ~true & ~unsure).any(axis=1, keepdims=True)
        answer = some if one.has("ANY") else ~none if one.has("ALL") else ~(some & none)
        settled = some if one.has("ANY") else none if one.has("ALL") else some & none
        open_ = unsure.any(axis=1, keepdims=True) & ~settled
        return ballot, values.made(answer.astype(np.uint64), open_.astype(np.uint64), 1)

    return computed(one, _lane_results(one.operands[:-1]), [predicate(one.operands[-1])], vote, across=True)


def _elect(one: Instruction) -> Built:
    """ELECT: true in one active lane, the first."""

    def elect(_: Instruction, active: Bools) -> tuple[Value, Value]:
        first = active.argmax(axis=1)[:, None]
        chosen = (np.arange(32) == first) & active
        return Value(first.astype(np.uint64)), Value(chosen.astype(np.uint64))

    return computed(one, _lane_results(one.operands), [], elect, across=True)


def _lane_results(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    """A register and a predicate, each of which may be left out."""
    register = next((text for text in texts if not is_predicate(text)), "RZ")
    return [("r", register), ("p", next((text for text in texts if is_predicate(text)), "PT"))]


_REDUCTIONS: Final[Mapping[str, np.ufunc]] = {
    "OR": np.bitwise_or,
    "XOR": np.bitwise_xor,
    "SUM": np.add,
    "MAX": np.maximum,
    "MIN": np.minimum,
}


def _reduce(one: Instruction, active: Bools, value: Value) -> Value:
    """REDUX: one number out of all active lanes'."""
    if (active & (value.unknown != 0)).any():
        return values.unknown()
    name = _named(one, _REDUCTIONS)
    numbers = np.broadcast_to(values.signed(value.bits, 32 if one.has("S32") else 64), active.shape)
    idle = np.take_along_axis(numbers, active.argmax(axis=1)[:, None], axis=1) if name[0] == "M" else 0
    found = _REDUCTIONS[name].reduce(np.where(active, numbers, idle), axis=1, keepdims=True)
    return values.known(found)


def _matching(_: Instruction, active: Bools, value: Value) -> Value:
    """MATCH.ANY: which active lanes have the same number as this one."""
    numbers = np.broadcast_to(value.bits, active.shape)
    same = (numbers[:, :, None] == numbers[:, None, :]) & active[:, None, :]
    unsure = ((value.unknown != 0) & active).any(axis=1, keepdims=True)
    return values.hidden_where(unsure, Value(_mask_of(same)[..., 0]), 32)


ARITHMETIC: Final[Mapping[str, Builder]] = {
    "BMSK": row("r", "ww", _bit_mask),
    "BREV": row("r", "w", lambda _, a: values.mapped(_reversed, 32, a)),
    "FLO": row("r", "w", _leading_one),
    "IABS": row("r", "w", _absolute),
    "IADD": row("rpp", "aac", _sum),
    "IADD.64": row("d", "dd", lambda _, *parts: values.add(*parts, width=64)),
    "IADD3": row("rpp", "aaac", _sum),
    "IADD3.64": row("d", "ddd", lambda _, *parts: values.add(*parts, width=64)),
    "IMAD": row("r", "wwwc", lambda _, a, b, *more: values.add(values.multiply(a, b), *more)),
    "IMAD.HI": row(_sized("r", "rp", "U32"), "wwdc", _product),
    "IMAD.WIDE": row(_sized("d", "dp", "U32"), "wwdc", _product),
    "ISETP": row("pp", "wwp", _compare, needs=_INTEGER_ORDERS),
    "LEA": row("rpp", _lea_letters, _shift_add),
    "LOP3": row("rp", "wwww", _logic),
    "MOV": _move,
    "MOV.64": row("d", "d", lambda _, a: a),
    "P2R": _from_predicates,
    "PLOP3": _predicate_logic,
    "POPC": row("r", "w", lambda _, a: values.mapped(np.bitwise_count, 32, a)),
    "PRMT": row("r", "www", _permute, only=()),
    "R2P": _to_predicates,
    "SEL": row("r", "wwp", _select),
    "SEL.64": row("d", "ddp", _select),
    "SGXT": row("r", "ww", _sign_extend),
    "SHF": row("r", "www", _funnel),
    "VIADD": row("rpp", "aac", _sum),
    "VIADDMNMX": row("r", "wwwp", _extreme),
    "VIMNMX3": row("r", "wwwp", _extreme),
    **dict.fromkeys(("IMNMX", "VIMNMX"), row("r", "wwp", _extreme)),
    **dict.fromkeys(
        ("ISETP.64", "ISETP.S64", "ISETP.U64"), row("pp", "ddp", _compare, needs=_INTEGER_ORDERS)
    ),
    "ISETP.EX": row("pp", "wwpp", _compare, needs=_INTEGER_ORDERS),
    "DADD": _arithmetic(lambda a, b: a + b, "gg"),
    "DFMA": _arithmetic(_fused_doubles, "ggg"),
    "DMNMX": forget(2),
    "DMUL": _arithmetic(lambda a, b: a * b, "gg"),
    "DSETP": row("pp", "ggp", _compare_reals, needs=_REAL_ORDERS),
    "F2F": _convert,
    "F2I": row(_sized("r", "d", "U64", "S64"), _sized("f", "g", "F64"), _to_integer, unlike=(*_SMALL, "64")),
    "FADD": _arithmetic(lambda a, b: a + b, "ff"),
    "FCHK": row("p", "ff", _check_division),
    "FFMA": _arithmetic(_fused, "fff"),
    "FMNMX": row("r", "ffp", _real_extreme),
    "FMNMX3": row("r", "fffp", _real_extreme),
    "FMUL": _arithmetic(lambda a, b: a * b, "ff"),
    "FRND": _convert,
    "FSEL": row("r", "ffp", _select),
    "FSETP": row("pp", "ffp", _compare_reals, needs=_REAL_ORDERS),
    "HFMA2": _halves,
    "HSETP2": forget(0),
    "MUFU": forget(1),
    **{f"MUFU.{name}": row("r", "f", _special, unlike=("F16",)) for name in _FUNCTIONS},
    **{f"MUFU.{name}64H": row("r", "h", _special) for name in ("RCP", "RSQ")},
    **dict.fromkeys([f"{name}SETP.{end}" for name in "DF" for end in ("MAX", "MIN")], forget(0)),
    **dict.fromkeys(
        ("I2F", "I2FP"),
        row(_sized("r", "d", "F64"), _sized("w", "d", "U64", "S64"), _from_integer, unlike=_SMALL),
    ),
    **dict.fromkeys(("DMMA", "HGMMA", "HMMA", "IGMMA", "IMMA", "QGMMA"), _matrix_product),
    **dict.fromkeys(("SULD", "TEX", "TLD", "TLD4", "TXD", "TXQ"), forget(4, places=2)),
    **dict.fromkeys(
        (
            *("F2FP", "F2IP", "FSET", "FSWZADD", "HADD2", "HMNMX2", "HMUL2", "HSET2", "I2IP", "IDP"),
            *("MATCH", "MOVM", "REDUX", "VABSDIFF", "VABSDIFF4"),
        ),
        forget(1),
    ),
    "ELECT": _elect,
    "MATCH.ANY": row("r", _sized("w", "d", "U64"), _matching, across=True),
    "R2UR": _first_lane,
    **{f"REDUX.{name}": row("r", "w", _reduce, across=True) for name in _REDUCTIONS},
    "SHFL": row("rp", "www", _shuffle, across=True, needs=("IDX", "UP", "DOWN", "BFLY")),
    **dict.fromkeys(("VOTE", "VOTEU"), _vote),
}
