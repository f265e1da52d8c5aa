"""What instructions compute of integers, bits and predicates, and across the lanes of a warp (as an H200)."""

import collections
import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any, Final

import numpy as np

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
    registers,
    row,
    word,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import TRUE, ZERO, Bits, Bools, Value, constant
from layoutopt.kernels.program import Forget, Source

# ---------------------------------------------------------------- integers

_HALVES: Final = ("S16x2", "U16x2")  # two numbers of 16 bits in a word


def _sum(inst: Instruction, *parts: Value) -> Iterator[Value]:
    """IADD3: a source with a sign comes inverted (letter `a`), and the 1 that makes it negative is added."""
    return _total(*parts, *[TRUE] * sum(map(negates, inst.operands)))


def _total(*parts: Value) -> Iterator[Value]:
    """The low word of a sum, and up to two carries."""
    total = values.add(*parts, width=36)
    yield values.cut(total)
    upper = values.shift_right(total, constant(32), 36)
    for k in range(2):
        yield values.less(constant(k), upper, 36, is_signed=False)


def _product(inst: Instruction, a: Value, b: Value, c: Value, *carry: Value) -> Iterator[Value]:
    """IMAD.WIDE and IMAD.HI: A*B + C, and the carry of unsigned numbers."""
    if not inst.has("U32"):
        a, b = values.extend(a, 32), values.extend(b, 32)
    product = values.multiply(a, b, 64)
    total = values.add(product, c, *carry, width=64)
    yield total if inst.has("WIDE") else values.high(total)
    # The largest product leaves room for a carry that comes in, so that only adding C can pass 64 bits.
    within = values.add(product, *carry, width=64) if carry else product
    yield values.less(total, within, 64, is_signed=False)


def _shift_add(inst: Instruction, a: Value, b: Value, *rest: Value) -> Iterator[Value]:
    """LEA: (A << s) + B, or with HI the high word of {C:A} << s, or of A with its sign, and B."""
    shift, *carries = rest[_takes_pair(inst) :]
    if inst.has("HI"):
        pair = values.join(a, rest[0]) if _takes_pair(inst) else values.extend(a, 32)
        shifted = values.high(values.shift_left(pair, shift, 64))
    else:
        shifted = values.shift_left(a, shift)
    _, _, b_text, *_ = (text for text in inst.operands if not is_predicate(text))
    return _total(shifted, b, *carries, *[TRUE] * negates(b_text))


def _takes_pair(inst: Instruction) -> bool:
    return inst.has("HI") and not inst.has("SX32")


def _lea_letters(inst: Instruction) -> str:
    return ("u" if inst.has("HI") else "w") + "a" + "w" * _takes_pair(inst) + "wc"


def _funnel(inst: Instruction, a: Value, amount: Value, c: Value) -> Value:
    """SHF: a shift of {C:A}, of which one word is kept."""
    left, top, is_signed = inst.has("L"), inst.has("HI"), inst.has("S32", "S64")
    limit = 64 if inst.has("U64", "S64") else 32
    if inst.has("W"):
        amount = values.both(amount, constant(limit - 1))
    else:
        amount = values.least(amount, constant(limit), is_signed=False)
    right = values.shift_right_signed if is_signed else values.shift_right
    if limit == 32 and top != left:  # the word that is kept takes no bits of the other one
        return values.shift_left(a, amount) if left else right(c, amount)
    moved = (values.shift_left if left else right)(values.join(a, c), amount, 64)
    return values.high(moved) if top else values.cut(moved)


def _extreme(inst: Instruction, *parts: Value) -> Value:
    """VIMNMX, VIMNMX3, IMNMX and VIADDMNMX: the smallest where the predicate is true, else the largest."""
    *numbers, smaller = parts
    width, is_signed = 16 if inst.has(*_HALVES) else 32, not inst.has("U32", "U16x2")

    def of(*numbers: Value) -> Value:
        if inst.opcode.endswith("ADDMNMX"):
            numbers = values.add(numbers[0], numbers[1], width=width), numbers[2]
        least = reduce(lambda a, b: values.least(a, b, width, is_signed), numbers)
        greatest = reduce(lambda a, b: values.greatest(a, b, width, is_signed), numbers)
        found = values.select(smaller, least, greatest)
        return values.greatest(found, ZERO, width, is_signed=True) if inst.has("RELU") else found

    return of(*numbers) if width == 32 else _by_halves(of, *numbers)


def _by_halves(function: Callable[..., Value], *parts: Value) -> Value:
    """What a function of numbers of 16 bits gives of both halves of words."""
    low, high = (
        function(*(values.cut(values.shift_right(part, constant(by)), 16) for part in parts))
        for by in (0, 16)
    )
    return values.differ(values.cut(low, 16), values.shift_left(high, constant(16)))


def _multiply_add(_: Instruction, a: Value, b: Value, *more: Value) -> Value:
    return values.add(values.multiply(a, b), *more)


def _sum_of_halves(inst: Instruction, a: Value, b: Value) -> Value:
    """VIADD.16x2: a source with a sign comes inverted (letter `a`)."""
    ones = [TRUE] * sum(negates(text) for text in inst.operands[1:])
    return _by_halves(lambda *halves: values.add(*halves, *ones, width=16), a, b)


def _permute(_: Instruction, a: Value, choice: Value, c: Value) -> Value:
    """PRMT: each result byte is one of the eight of {C:A}, or copies of its sign."""
    double, result = values.join(a, c), values.unknown()
    for number in np.unique(choice.bits) if choice.sure else ():
        result = values.chosen(choice.bits == number, _moved_bytes(double, int(number)), result)
    return result


def _moved_bytes(double: Value, choice: int) -> Value:
    """Four of eight bytes, or their signs, the same in all lanes: together those that move as far."""
    # By whether it is a sign, and by how many bytes it moves down: which bytes of the result it gives.
    given = collections.Counter[tuple[int, int]]()
    for k in range(4):
        is_sign, byte = divmod(choice >> 4 * k & 15, 8)
        given[is_sign, byte if is_sign else byte - k] += 0xFF << 8 * k
    parts = []
    for (is_sign, by), mask in given.items():
        move = values.shift_left if by < 0 else values.shift_right
        part = move(double, constant(8 * abs(by)), 64)
        if is_sign:
            part = values.shift_right_signed(values.extend(values.cut(part, 8), 8), constant(8), 64)
        parts.append(values.both(part, constant(mask)))
    return reduce(values.differ, parts)


def _reversed(bits: Bits) -> Bits:
    one = np.uint64(1)
    return sum(((bits >> np.uint64(k) & one) << np.uint64(31 - k) for k in range(32)), np.zeros_like(bits))


def _leading_one(inst: Instruction, a: Value) -> Value:
    """FLO: place of the highest bit that is set (of a signed number, that differs from the sign)."""

    def highest(bits: Bits) -> Bits:
        negative = (not inst.has("U32")) & (bits >> np.uint64(31) == 1)
        bits = np.where(negative, bits ^ np.uint64(0xFFFFFFFF), bits)
        place = np.floor(np.log2(np.maximum(bits, 1).astype(np.float64))).astype(np.uint64)
        place = np.uint64(31) - place if inst.has("SH") else place
        return np.where(bits == 0, np.uint64(0xFFFFFFFF), place)

    return values.mapped(highest, 32, a)


def _bit_mask(inst: Instruction, start: Value, count: Value) -> Value:
    """BMSK: B ones from bit A on; with clamped numbers."""
    if inst.has("W"):
        start, count = (values.both(v, constant(31)) for v in (start, count))
    ones = values.subtract(values.shift_left(TRUE, count, 64), TRUE, 64)
    return values.cut(values.shift_left(ones, start, 64))


def _sign_extend(inst: Instruction, a: Value, bits: Value) -> Value:
    """SGXT: the lowest B bits of A, extended."""
    if not bits.sure or bits.bits.size > 1:
        return values.unknown()
    width = int(bits.bits[0, 0]) & 31 or 32
    cut = values.both(a, constant(-1, width))
    return cut if inst.has("U32") else values.extend(cut, width, 32)


def select(_: Instruction, a: Value, b: Value, which: Value) -> Value:
    """SEL and FSEL."""
    return values.select(which, a, b)


def _move(inst: Instruction) -> Built:
    """MOV R1, R2, 0xf has a mask of bytes that is always whole."""
    if len(inst.operands) > 2 and inst.operands[2] != "0xf":
        raise UnreadableOperand(inst.operands[2])
    if inst.operands[1].startswith("32@"):
        why = "gets an address that only the linker knows"
        return Built(Forget(why), (), registers(inst.operands[0]))
    return computed(inst, [("r", inst.operands[0])], [word(inst.operands[1])], lambda _, a: a)


# ---------------------------------------------------------------- predicates

_JOINS: Final = {"AND": values.both, "OR": values.either, "XOR": values.differ}
ORDERS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def named(inst: Instruction, names: Mapping[str, Any] | tuple[str, ...]) -> str:
    """The first modifier that is one of these names."""
    return next((m for m in inst.modifiers if m in names), "")


def sized(one: str, two: str, *wide: str) -> Letters:
    """One letter, or another one with one of these modifiers."""
    return lambda instruction: two if instruction.has(*wide) else one


def told(inst: Instruction, holds: Value, other: Value) -> Iterator[Value]:
    """What a comparison gives: its answer, and the opposite, each joined with a predicate."""
    join = _JOINS[named(inst, _JOINS) or "AND"]
    yield join(holds, other, 1)
    yield join(values.invert(holds, 1), other, 1)


_INTEGER_ORDERS: Final = (*ORDERS, "T", "F")


def _compare(inst: Instruction, a: Value, b: Value, other: Value, *lower: Value) -> Iterator[Value]:
    """ISETP; EX compares high words, and the low ones have been."""
    name = named(inst, _INTEGER_ORDERS).lower()
    is_signed, width = not inst.has("U32", "U64"), 64 if inst.has("U64", "S64", "64") else 32
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
    return told(inst, holds, other)


def _logic(_: Instruction, a: Value, b: Value, c: Value, table: Value) -> Iterator[Value]:
    """LOP3: a table of three bits, and whether the result is not 0."""
    result = values.table3(a, b, c, int(table.bits[0, 0]))
    yield result
    yield values.compare("ne", result, ZERO)


def _predicate_logic(_: Instruction, a: Value, b: Value, c: Value, *tables: Value) -> list[Value]:
    """PLOP3: two tables of three predicates."""
    return [values.table3(a, b, c, int(table.bits[0, 0]), 1) for table in tables]


def _to_predicates(inst: Instruction) -> Built:
    """R2P: bits of a byte of a register, under a mask, become predicates P0 to P6."""
    if len(inst.operands) != 3:
        raise UnreadableOperand("R2P of another form")
    name, *byte = inst.operands[1].split(".")
    chosen, begin = _under(inst.operands[2]), _first_bit((*byte, *inst.modifiers))

    def bits(_: Instruction, a: Value) -> list[Value]:
        return [values.both(values.shift_right(a, constant(begin + k)), TRUE, 1) for k in chosen]

    return computed(inst, [("p", f"P{k}") for k in chosen], [word(name)], bits)


def _from_predicates(inst: Instruction) -> Built:
    """P2R and UP2UR: predicates as bits of a byte under a mask, another register's bits elsewhere."""
    dest, bank, other, mask = inst.operands
    if bank not in ("PR", "UPR"):
        raise UnreadableOperand("P2R of another form")
    chosen, begin = _under(mask), _first_bit(inst.modifiers)

    def merged(_: Instruction, a: Value, *given: Value) -> Value:
        bits = (values.shift_left(value, constant(begin + k)) for k, value in zip(chosen, given, strict=True))
        return reduce(values.either, bits, values.both(a, constant(~(int(mask, 16) << begin))))

    sources = [word(other), *(predicate(f"{bank.removesuffix('R')}{k}") for k in chosen)]
    return computed(inst, [("r", dest)], sources, merged)


def _first_bit(names: tuple[str, ...]) -> int:
    """The first bit of byte B0 to B3; of B0 where none is named."""
    if names and not (len(names) == 1 and re.fullmatch("B[0-3]", names[0])):
        raise UnreadableOperand(".".join(names))
    return 8 * int(names[0][1]) if names else 0


def _under(mask: str) -> list[int]:
    """The predicates under a mask."""
    return [k for k in range(7) if int(mask, 16) >> k & 1]


# ---------------------------------------------------------------- lanes: the active ones come first


def _first_lane(inst: Instruction) -> Built:
    """R2UR: the value of the first active lane; a predicate says which lanes have another one.

    Code that serves one number at a time goes round until no lane is left; of a number of two words, the
    second (`.OR`) adds to the predicate of the first.
    """
    names = [text for text in inst.operands if is_predicate(text)] or ["PT"]
    dest, given, *_ = (text for text in inst.operands if not is_predicate(text))
    joins = inst.has("OR") and not names[0].endswith("T")

    def first(_: Instruction, active: Bools, value: Value, before: Value = ZERO) -> Iterator[Value]:
        chosen = values.cut(values.of_lane(value, active.argmax(axis=1)[:, None], active.shape), 32)
        yield chosen
        other = values.invert(values.equal(value, chosen), 1)
        yield values.either(before, other, 1) if joins else other

    sources = [word(given), *([predicate(names[0])] if joins else [])]
    return computed(inst, [("r", dest), ("p", names[0])], sources, first, across=True)


def _shuffle(inst: Instruction, active: Bools, data: Value, lane: Value, clamp: Value) -> tuple[Value, Value]:
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
    source = sources[named(inst, sources)]
    within = source >= most if inst.has("UP") else source <= most
    chosen = np.where(within, source, own) & 31
    found = values.of_lane(data, chosen, active.shape)
    idle = ~np.take_along_axis(active, chosen, axis=1)
    return values.hidden_where(idle, found, 32), Value(within.astype(np.uint64))


def _vote(inst: Instruction, active: Bools, holds: Value) -> tuple[Value, Value]:
    """VOTE: of which lanes a predicate holds, and whether of ALL, of ANY, or of all alike (EQ)."""
    true = active & (holds.bits != 0)
    unsure = active & (holds.unknown != 0)
    ballot = values.made(values.mask_of(true), values.mask_of(unsure), 32)
    some = true.any(axis=1, keepdims=True)
    none = (active & ~true & ~unsure).any(axis=1, keepdims=True)
    settled = some if inst.has("ANY") else none if inst.has("ALL") else some & none
    answer = settled if inst.has("ANY") else ~settled
    open_ = unsure.any(axis=1, keepdims=True) & ~settled
    return ballot, values.made(answer.astype(np.uint64), open_.astype(np.uint64), 1)


def _elect(_: Instruction, active: Bools, __: Value) -> tuple[Value, Value]:
    """ELECT: the first active lane, and the predicate that is true in it alone."""
    first = active.argmax(axis=1)[:, None]
    chosen = (np.arange(32) == first) & active
    return Value(first.astype(np.uint64)), Value(chosen.astype(np.uint64))


_REDUCTIONS: Final[Mapping[str, np.ufunc]] = {
    "OR": np.bitwise_or,
    "XOR": np.bitwise_xor,
    "SUM": np.add,
    "MAX": np.maximum,
    "MIN": np.minimum,
}


def _reduce(inst: Instruction, active: Bools, value: Value) -> Value:
    """REDUX: one number out of all active lanes'."""
    if (active & (value.unknown != 0)).any():
        return values.unknown()
    name = named(inst, _REDUCTIONS)
    numbers = np.broadcast_to(values.signed(value.bits, 32 if inst.has("S32") else 64), active.shape)
    idle = np.take_along_axis(numbers, active.argmax(axis=1)[:, None], axis=1) if name[0] == "M" else 0
    found = _REDUCTIONS[name].reduce(np.where(active, numbers, idle), axis=1, keepdims=True)
    return values.known(found)


def _matching(_: Instruction, active: Bools, value: Value) -> Value:
    """MATCH.ANY: which active lanes have the same number as this one."""
    numbers = np.broadcast_to(value.bits, active.shape)
    same = (numbers[:, :, None] == numbers[:, None, :]) & active[:, None, :]
    unsure = ((value.unknown != 0) & active).any(axis=1, keepdims=True)
    return values.hidden_where(unsure, Value(values.mask_of(same)[..., 0]), 32)


def _meeting(inst: Instruction) -> Built:
    """BSSY: the active lanes will meet."""
    into = [("b", inst.operands[0])]
    return computed(inst, into, [], lambda _, active: Value(values.mask_of(active)), across=True)


def _meeting_moved(inst: Instruction) -> Built:
    """BMOV: who will meet, to or from where BSYNC looks; CLEAR takes it away there."""
    first, second = inst.operands
    into, source = ("b" if re.fullmatch(r"B\d+", first) else "r", first), Source.cell(second)
    if not set(inst.modifiers) <= {"32", "CLEAR"}:
        raise UnreadableOperand("BMOV of another form")
    if not re.fullmatch(r"B\d+", second):
        return computed(inst, [into], [word(second)], lambda _, lanes: lanes)
    results = [into, ("b", second)] if inst.has("CLEAR") else [into]
    return computed(inst, results, [source], lambda _, lanes: (lanes, ZERO))


ARITHMETIC: Final[Mapping[str, Builder]] = {
    "BMOV": _meeting_moved,
    "BMSK": row("r", "ww", _bit_mask),
    "BREV": row("r", "w", lambda _, a: values.mapped(_reversed, 32, a)),
    "BSSY": _meeting,
    "FLO": row("r", "w", _leading_one),
    "IABS": row("r", "w", lambda _, a: values.select(values.less(a, ZERO), values.negate(a), a)),
    "IADD": row("rpp", "aac", _sum),
    "IADD.64": row("d", "dd", lambda _, *parts: values.add(*parts, width=64)),
    "IADD3": row("rpp", "aaac", _sum, only=("X",)),
    "IADD3.64": row("d", "ddd", lambda _, *parts: values.add(*parts, width=64)),
    "IMAD": row("r", "wwwc", _multiply_add, only=("MOV", "IADD", "SHL", "U32", "X")),
    "IMAD.HI": row(sized("r", "rp", "U32"), "wwdc", _product),
    "IMAD.WIDE": row(sized("d", "dp", "U32"), "wwdc", _product),
    "ISETP": row("pp", "wwp", _compare, needs=_INTEGER_ORDERS),
    "LEA": row("rpp", _lea_letters, _shift_add),
    "LOP3": row("rp", "wwww", _logic),
    "MOV": _move,
    "MOV.64": row("d", "d", lambda _, a: a),
    **dict.fromkeys(("P2R", "UP2UR"), _from_predicates),
    "PLOP3": row("pp", "pppww", _predicate_logic),
    "POPC": row("r", "w", lambda _, a: values.mapped(np.bitwise_count, 32, a)),
    "PRMT": row("r", "www", _permute, only=()),
    "R2P": _to_predicates,
    "SEL": row("r", "wwp", select),
    "SEL.64": row("d", "ddp", select),
    "SGXT": row("r", "ww", _sign_extend),
    "SHF": row("r", "www", _funnel),
    "VIADD": row("rpp", "aac", _sum, only=("X",)),
    "VIADD.16x2": row("r", "aa", _sum_of_halves),
    **dict.fromkeys(("VIADDMNMX", "VIMNMX3"), row("r", "wwwp", _extreme, only=("U32", "RELU", *_HALVES))),
    **dict.fromkeys(("IMNMX", "VIMNMX"), row("r", "wwp", _extreme, only=("U32", "RELU", *_HALVES))),
    **dict.fromkeys(
        ("ISETP.64", "ISETP.S64", "ISETP.U64"), row("pp", "ddp", _compare, needs=_INTEGER_ORDERS)
    ),
    "ISETP.EX": row("pp", "wwpp", _compare, needs=_INTEGER_ORDERS),
    "ELECT": row("rp", "p", _elect, across=True),
    "MATCH": forget(1),
    "MATCH.ANY": row("r", sized("w", "d", "U64"), _matching, across=True),
    "R2UR": _first_lane,
    "REDUX": forget(1),
    **{f"REDUX.{name}": row("r", "w", _reduce, across=True) for name in _REDUCTIONS},
    "SHFL": row("rp", "www", _shuffle, across=True, needs=("IDX", "UP", "DOWN", "BFLY")),
    **dict.fromkeys(("VOTE", "VOTEU"), row("rp", "p", _vote, across=True, needs=("ALL", "ANY", "EQ"))),
}
