"""What instructions compute of integers, bits and predicates (compared with an H200's counters)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Final

import numpy as np

from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import (
    Builder,
    Built,
    UnreadableOperand,
    built,
    computed,
    form_of,
    is_predicate,
    negates,
    number,
    predicate,
    row,
    word,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Bits, Value, constant

JOINS: Final = {"AND": values.both, "OR": values.either, "XOR": values.differ}


def joined_with(one: Instruction, holds: Value, other: Value) -> tuple[Value, Value]:
    """What a comparison gives: its answer, and the opposite, each joined with a predicate."""
    join = next((JOINS[m] for m in one.modifiers if m in JOINS), values.both)
    return join(holds, other, 1), join(values.invert(holds, 1), other, 1)


def _carries(total: Value, count: int) -> tuple[Value, ...]:
    """The low word of a sum, and as many carries."""
    if not count:
        return (values.low(total),)
    upper = values.shift_right(total, constant(32), 36)
    above = (values.less(constant(k), upper, 36, is_signed=False) for k in range(count))
    return values.low(total), *above


def _add(one: Instruction) -> Built:
    """IADD3: the sum and up to two carries; a negated source enters as its inverse and 1."""
    form, wide = form_of(one), one.has("64", "U64", "S64")
    negated = [negates(text) for text in form.sources]
    if not negated or (wide and any(not name.endswith("T") for name in form.results)):
        raise UnreadableOperand("a sum of another form")

    def total(_: Instruction, *parts: Value) -> Value | tuple[Value, ...]:
        terms = [*parts, *(values.TRUE for flag in negated if flag)]
        for k, flag in enumerate(negated):
            if flag:
                terms[k] = values.invert(parts[k], 64 if wide else 32)
        if wide:
            return values.add(*terms, width=64)
        return _carries(values.add(*terms, width=36), len(form.results))

    carried = "p" * len(form.carries) if one.has("X") else ""
    letters = ("b" if wide else "a") * len(negated) + carried
    return built(one, "d" if wide else "r" + "p" * len(form.results), letters, total)


def _multiply_add(one: Instruction) -> Built:
    """IMAD: low word, high word or all of A*B + C."""
    form, unsigned = form_of(one), one.has("U32")
    wide, top = one.has("WIDE"), one.has("HI")
    carried = "p" * len(form.carries) if one.has("X") else ""

    def total(_: Instruction, a: Value, b: Value, c: Value, *more: Value) -> Value | tuple[Value, ...]:
        if not wide and not top:
            return values.add(values.multiply(a, b), c, *more)
        if not unsigned:
            a, b = values.extend(a, 32), values.extend(b, 32)
        product = values.multiply(a, b, 64)
        found = values.add(product, c, *more, width=64)
        # The largest product leaves room for a carry that comes in, so that only adding C can pass 64 bits.
        within = values.add(product, *more, width=64) if more else product
        return found if wide else values.high(found), values.less(found, within, 64, is_signed=False)

    results = "d" if wide else "r"
    if not wide and not top:
        return built(one, results, "www" + carried, total)
    return built(one, results + "p" * unsigned, "wwd" + carried, total)


def _shift_add(one: Instruction) -> Built:
    """LEA: (A << s) + B, or the high word of ({C:A} << s) with B added."""
    form, top = form_of(one), one.has("HI")
    three = top and not one.has("SX32")
    if len(form.sources) < 2:
        raise UnreadableOperand("LEA of another form")
    negated, minus_b = negates(form.sources[0]), negates(form.sources[1]) and not top

    def total(_: Instruction, a: Value, b: Value, *rest: Value) -> tuple[Value, ...]:
        shift, carries = rest[three], rest[three + 1 :]
        if top:
            double = values.join(a, rest[0] if three else values.shift_right_signed(a, constant(31)))
            double = values.negate(double, 64) if negated else double
            shifted = values.high(values.shift_left(double, shift, 64))
        else:
            shifted = values.shift_left(values.negate(a) if negated else a, shift)
        found = values.add(shifted, b, *carries, width=36)
        if minus_b:  # a negated 0 carries
            carry = values.shift_left(values.equal(b, values.ZERO), constant(32), 36)
            found = values.add(found, carry, width=36)
        return _carries(found, len(form.results))

    carried = "p" * len(form.carries) if one.has("X") else ""
    return built(one, "r" + "p" * len(form.results), "aw" + "w" * three + "w" + carried, total)


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
    result = values.ZERO
    for k in range(4):
        nibble = values.both(values.shift_right(choice, constant(4 * k)), constant(15))
        at = values.shift_left(values.both(nibble, constant(7)), constant(3))
        byte = values.both(values.shift_right(double, at, 64), constant(0xFF), 64)
        signs = values.shift_right_signed(values.extend(byte, 8), constant(8), 64)
        copies = values.shift_right(nibble, constant(3))
        byte = values.select(copies, values.both(signs, constant(0xFF)), byte)
        result = values.either(result, values.shift_left(byte, constant(8 * k)))
    return result


def _bits(function: Callable[[Bits], Bits]) -> Builder:
    return row("r", "w", lambda _, a: values.mapped(function, 32, a))


def _reversed(bits: Bits) -> Bits:
    one = np.uint64(1)
    return sum(((bits >> np.uint64(k) & one) << np.uint64(31 - k) for k in range(32)), np.zeros_like(bits))


def _leading_one(one: Instruction, a: Value) -> Value:
    """FLO: place of the highest bit that is set (of a signed number, that differs from the sign)."""

    def highest(bits: Bits) -> Bits:
        negative = (not one.has("U32")) & (bits >> np.uint64(31) == 1)
        number = np.where(negative, bits ^ np.uint64(0xFFFFFFFF), bits)
        place = np.floor(np.log2(np.maximum(number, 1).astype(np.float64))).astype(np.uint64)
        place = np.uint64(31) - place if one.has("SH") else place
        return np.where(number == 0, np.uint64(0xFFFFFFFF), place)

    return values.mapped(highest, 32, a)


def _move(one: Instruction) -> Built:
    """MOV R1, R2, 0xf has a mask of bytes that is always whole."""
    if len(one.operands) > 2 and one.operands[2] != "0xf":
        raise UnreadableOperand(one.operands[2])
    return computed(one, [("r", one.operands[0])], [word(one.operands[1])], lambda _, a: a)


def _bit_mask(one: Instruction, start: Value, count: Value) -> Value:
    """BMSK: B ones from bit A on; with clamped numbers."""
    if one.has("W"):
        start, count = (values.both(v, constant(31)) for v in (start, count))
    ones = values.subtract(values.shift_left(values.TRUE, count, 64), values.TRUE, 64)
    return values.low(values.shift_left(ones, start, 64))


def _sign_extend(one: Instruction) -> Built:
    """SGXT: the lowest B bits of A, extended."""
    text = one.operands[-1]
    if not text.startswith("0x"):
        raise UnreadableOperand("SGXT of another form")
    width = int(text, 16) & 31 or 32

    def extended(_: Instruction, a: Value, __: Value) -> Value:
        cut = values.both(a, constant(-1, width))
        return cut if one.has("U32") else values.extend(cut, width, 32)

    return built(one, "r", "ww", extended)


def _logic(one: Instruction) -> Built:
    """LOP3: a table of three bits, and whether the result is not 0."""
    told = form_of(one).results

    def looked_up(_: Instruction, a: Value, b: Value, c: Value, table: Value) -> tuple[Value, ...]:
        result = values.table3(a, b, c, int(table.bits[0, 0]))
        return result, *(values.invert(values.equal(result, values.ZERO), 1) for _ in told)

    return built(one, "r" + "p" * len(told), "wwww", looked_up)


def _predicate_logic(one: Instruction) -> Built:
    """PLOP3: two tables of three predicates."""
    tables = [int(number(text).bits[0, 0]) for text in one.operands if not is_predicate(text)]
    names = [text for text in one.operands if is_predicate(text)]
    if len(tables) != 2 or len(names) != 5:
        raise UnreadableOperand("PLOP3 of another form")

    def looked_up(_: Instruction, a: Value, b: Value, c: Value) -> tuple[Value, ...]:
        return tuple(values.table3(a, b, c, lut, 1) for lut in tables)

    return computed(one, [("p", text) for text in names[:2]], [predicate(t) for t in names[2:]], looked_up)


_COMPARISONS: Final = ("LT", "LE", "GT", "GE", "EQ", "NE")


def _compare(one: Instruction) -> Built:
    """ISETP: a comparison joined with a predicate, and its opposite joined likewise; EX: of high words."""
    name = next((m.lower() for m in one.modifiers if m in (*_COMPARISONS, "T", "F")), "")
    if not name:
        raise UnreadableOperand("a comparison of another form")
    is_signed, wide = not one.has("U32", "U64"), one.has("U64", "S64", "64")
    width = 64 if wide else 32

    def compared(_: Instruction, a: Value, b: Value, other: Value, *lower: Value) -> tuple[Value, ...]:
        if name in "tf":
            holds = constant(int(name == "t"))
        elif not lower:
            holds = values.compare(name, a, b, width, is_signed)
        elif name == "ne":
            holds = values.either(values.compare("ne", a, b), lower[0], 1)
        else:
            holds = values.both(values.equal(a, b), lower[0], 1)
            if name != "eq":
                strict = values.compare(name[0] + "t", a, b, width, is_signed)
                holds = values.either(strict, holds, 1)
        return joined_with(one, holds, other)

    return built(one, "pp", ("dd" if wide else "ww") + ("pp" if one.has("EX") else "p"), compared)


def _masked(one: Instruction) -> tuple[int, list[int]]:
    """The mask that stands last, and the predicates under it."""
    mask = int(number(one.operands[-1]).bits[0, 0])
    return mask, [k for k in range(7) if mask >> k & 1]


def _to_predicates(one: Instruction) -> Built:
    """R2P: bits of a register under a mask become predicates P0 to P6."""
    if len(one.operands) != 3 or one.modifiers not in ((), ("B0",)):
        raise UnreadableOperand("R2P of another form")
    _, chosen = _masked(one)

    def bits(_: Instruction, a: Value) -> tuple[Value, ...]:
        return tuple(values.both(values.shift_right(a, constant(k)), values.TRUE, 1) for k in chosen)

    return computed(one, [("p", f"P{k}") for k in chosen], [word(one.operands[1])], bits)


def _from_predicates(one: Instruction) -> Built:
    """P2R: predicates as bits under a mask, another register's bits elsewhere."""
    if len(one.operands) != 4 or one.operands[1] not in ("PR", "UPR") or one.modifiers:
        raise UnreadableOperand("P2R of another form")
    mask, chosen = _masked(one)
    prefix = one.operands[1].removesuffix("R")

    def merged(_: Instruction, a: Value, *given: Value) -> Value:
        bits = (values.shift_left(value, constant(k)) for k, value in zip(chosen, given, strict=True))
        return reduce(values.either, bits, values.both(a, constant(~mask)))

    sources = [word(one.operands[2]), *(predicate(f"{prefix}{k}") for k in chosen)]
    return computed(one, [("r", one.operands[0])], sources, merged)


def _absolute(_: Instruction, a: Value) -> Value:
    return values.select(values.less(a, values.ZERO), values.negate(a), a)


def _select(_: Instruction, a: Value, b: Value, which: Value) -> Value:
    return values.select(which, a, b)


INTEGERS: Final[Mapping[str, Builder]] = {
    "BMSK": row("r", "ww", _bit_mask),
    "BREV": _bits(_reversed),
    "FLO": row("r", "w", _leading_one),
    "IABS": row("r", "w", _absolute),
    "IADD": _add,
    "IADD3": _add,
    "IMAD": _multiply_add,
    "IMNMX": row("r", "wwp", _extreme),
    "ISETP": _compare,
    "LEA": _shift_add,
    "LOP3": _logic,
    "MOV": _move,
    "MOV.64": row("d", "d", lambda _, a: a),
    "P2R": _from_predicates,
    "PLOP3": _predicate_logic,
    "POPC": _bits(np.bitwise_count),
    "PRMT": row("r", "www", _permute, only=()),
    "R2P": _to_predicates,
    "SEL": row("r", "wwp", _select),
    "SEL.64": row("d", "ddp", _select),
    "SGXT": _sign_extend,
    "SHF": row("r", "www", _funnel),
    "VIADD": _add,
    "VIADDMNMX": row("r", "wwwp", _extreme),
    "VIMNMX": row("r", "wwp", _extreme),
    "VIMNMX3": row("r", "wwwp", _extreme),
}
