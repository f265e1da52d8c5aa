"""What integer and predicate instructions of machine code compute (compared with an H200's counters)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple

import numpy as np

from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import (
    Source,
    UnreadableOperand,
    destination,
    is_predicate,
    joined,
    negates,
    number,
    pair,
    predicate,
    register,
    word,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Bits, Bools, Value, constant
from layoutopt.kernels.program import Across, Action, Compute, Forget, Nothing, Operand


class Built(NamedTuple):
    """What becomes of an instruction."""

    action: Action
    sources: tuple[Operand, ...] = ()
    dests: tuple[str, ...] = ()


Builder = Callable[[Instruction], Built]
# Where a result goes: a cell, or nowhere (RZ, PT).
Slot = str | None


class Shape(NamedTuple):
    """Operands by their roles: predicates before and after the destination, sources, predicates behind."""

    dest: str | None
    results: list[str]
    sources: list[str]
    carries: list[str]


def shape(instruction: Instruction, has_dest: bool = True) -> Shape:
    """Sort the operands of an instruction that computes."""
    left = list(instruction.operands)
    results = _leading(left)
    dest = left.pop(0) if has_dest and left else None
    results += _leading(left) if not results else []
    carries: list[str] = []
    while left and is_predicate(left[-1]):
        carries.insert(0, left.pop())
    return Shape(dest, results, left, carries)


def _leading(operands: list[str]) -> list[str]:
    found: list[str] = []
    while operands and is_predicate(operands[0]):
        found.append(operands.pop(0))
    return found


def slots(text: str | None, count: int = 1) -> list[Slot]:
    """Where the words of a register result go."""
    if text is None:
        return [None] * count
    cells = destination(text, count)
    return list(cells) if cells else [None] * count


def predicate_slots(texts: Sequence[str], count: int) -> list[Slot]:
    """Where predicate results go; PT swallows them, and so does one that is not there."""
    found: list[Slot] = [None if text.endswith("T") else text for text in texts]
    return [*found, *([None] * count)][:count]


def compute(
    where: Sequence[Slot], sources: Sequence[Source], function: Callable[..., tuple[Value, ...]]
) -> Built:
    """A step that computes `function` of the sources' values, one result a slot."""
    operands, read = joined(sources)
    kept = [k for k, slot in enumerate(where) if slot is not None]

    def run(*parts: Value) -> tuple[Value, ...]:
        results = function(*read(parts))
        return tuple(results[k] for k in kept)

    return Built(Compute(run), operands, tuple(slot for slot in where if slot is not None))


def across(
    where: Sequence[Slot], sources: Sequence[Source], function: Callable[..., tuple[Value, ...]]
) -> Built:
    """A step that computes `function(active lanes, *sources' values)`, one result a slot."""
    inner = compute(where, sources, lambda *parts: parts)
    _, read = joined(sources)
    kept = [k for k, slot in enumerate(where) if slot is not None]

    def run(active: Bools, *parts: Value) -> tuple[Value, ...]:
        results = function(active, *read(parts))
        return tuple(results[k] for k in kept)

    return inner._replace(action=Across(run) if kept else Nothing())


def joined_with(name: str, a: Value, b: Value) -> Value:
    """Two predicates joined by AND, OR or XOR."""
    return {"AND": values.both, "OR": values.either, "XOR": values.differ}[name](a, b, 1)


def words(texts: Sequence[str], count: int) -> list[Source]:
    """So many 32-bit sources."""
    if len(texts) != count:
        raise UnreadableOperand(f"{len(texts)} sources instead of {count}")
    return [word(text) for text in texts]


def halves(value: Value) -> tuple[Value, Value]:
    """A 64-bit result as two registers."""
    return values.low(value), values.high(value)


def _add(instruction: Instruction) -> Built:
    """IADD3: the sum and up to two carries; a negated source enters as its inverse and 1."""
    form = shape(instruction)
    wide = instruction.has("64", "U64", "S64")
    extended = instruction.has("X")
    if not form.sources:
        raise UnreadableOperand("nothing to add")
    negated = [negates(text) for text in form.sources]
    plain = [
        text.removeprefix("-") if flag else text for text, flag in zip(form.sources, negated, strict=True)
    ]
    sources = [pair(text) if wide else word(text) for text in plain]
    carries = [predicate(text) for text in form.carries] if extended else []
    width = 64 if wide else 32
    if wide and form.results and any(slot for slot in predicate_slots(form.results, 2)):
        raise UnreadableOperand("a carry of 64 bits")

    def function(*parts: Value) -> tuple[Value, ...]:
        room = 64 if wide else 36
        terms = []
        for value, flag in zip(parts, [*negated, *(False for _ in carries)], strict=True):
            terms.append(value if not flag else values.invert(value, width))
            if flag:
                terms.append(values.TRUE)
        total = values.add(*terms, width=room)
        if wide:
            return (*halves(total), values.ZERO, values.ZERO)
        carry = values.shift_right(total, constant(32), 36)
        first = values.less(values.ZERO, carry, 36, is_signed=False)
        second = values.less(values.TRUE, carry, 36, is_signed=False)
        return values.low(total), first, second

    where = [*slots(form.dest, 2 if wide else 1), *predicate_slots(form.results, 2)]
    return compute(where, [*sources, *carries], function)


def _multiply_add(instruction: Instruction) -> Built:
    """IMAD: low word, high word or all of A*B + C."""
    form = shape(instruction)
    if len(form.sources) != 3:
        raise UnreadableOperand("IMAD of other than three sources")
    unsigned = instruction.has("U32")
    wide, top, extended = instruction.has("WIDE"), instruction.has("HI"), instruction.has("X")
    carried = predicate_slots(form.results, 1)
    if carried[0] is not None and not ((wide or top) and unsigned):
        raise UnreadableOperand("a carry of a signed or narrow IMAD")
    last = pair(form.sources[2]) if wide or top else word(form.sources[2])
    sources = [word(form.sources[0]), word(form.sources[1]), last]
    carries = [predicate(text) for text in form.carries] if extended else []

    def function(a: Value, b: Value, c: Value, *more: Value) -> tuple[Value, ...]:
        if not wide and not top:
            return (values.add(values.multiply(a, b), c, *more),)
        if not unsigned:
            a, b = values.extend(a, 32), values.extend(b, 32)
        product = values.multiply(a, b, 64)
        total = values.add(product, c, *more, width=64)
        # The largest product leaves room for a carry that comes in, so that only adding C can pass 64 bits.
        within = values.add(product, *more, width=64) if more else product
        carry = values.less(total, within, 64, is_signed=False)
        return (*halves(total), carry) if wide else (values.high(total), carry)

    where = slots(form.dest, 2 if wide else 1)
    return compute([*where, *carried] if wide or top else where, [*sources, *carries], function)


def _shift_add(instruction: Instruction) -> Built:
    """LEA: (A << s) + B, or the high word of ({C:A} << s) with B added."""
    form = shape(instruction)
    top, sign_extended, extended = (instruction.has(name) for name in ("HI", "SX32", "X"))
    texts = list(form.sources)
    shift = int(number(texts.pop()).bits[0, 0])
    expected = 3 if top and not sign_extended else 2
    if len(texts) != expected:
        raise UnreadableOperand("LEA of another form")
    negated = negates(texts[0])
    flipped = texts[0].startswith("~")
    sources = [word(text.lstrip("-~") if k == 0 else text) for k, text in enumerate(texts)]
    carries = [predicate(text) for text in form.carries] if extended else []
    minus_b = negates(texts[1]) and not top

    def function(a: Value, b: Value, *rest: Value) -> tuple[Value, ...]:
        more = list(rest)
        if flipped:
            a = values.invert(a)
        if not top:
            a = values.negate(a) if negated else a
            shifted = values.shift_left(a, constant(shift))
            total = values.add(shifted, b, *more, width=36)
            if minus_b:  # a negated 0 carries
                carry_of_zero = values.equal(b, values.ZERO)
                total = values.add(total, values.shift_left(carry_of_zero, constant(32), 36), width=36)
            carry = values.less(values.ZERO, values.shift_right(total, constant(32), 36), 36, is_signed=False)
            return values.low(total), carry
        c = values.shift_right_signed(a, constant(31)) if sign_extended else more.pop(0)
        double = values.join(a, c)
        if negated:
            double = values.negate(double, 64)
        upper = values.high(values.shift_left(double, constant(shift), 64))
        total = values.add(upper, b, *more, width=36)
        carry = values.less(values.ZERO, values.shift_right(total, constant(32), 36), 36, is_signed=False)
        return values.low(total), carry

    return compute([*slots(form.dest), *predicate_slots(form.results, 1)], [*sources, *carries], function)


def _funnel(instruction: Instruction) -> Built:
    """SHF: a shift of {C:A}, of which one word is kept."""
    form = shape(instruction)
    left, top, wraps = instruction.has("L"), instruction.has("HI"), instruction.has("W")
    is_signed = instruction.has("S32", "S64")
    limit = 64 if instruction.has("U64", "S64") else 32

    def function(a: Value, amount: Value, c: Value) -> tuple[Value, ...]:
        if wraps:
            amount = values.both(amount, constant(limit - 1))
        else:
            amount = values.least(amount, constant(limit), is_signed=False)
        if limit == 32 and not top and left:
            return (values.shift_left(a, amount),)
        if limit == 32 and top and not left:
            move = values.shift_right_signed if is_signed else values.shift_right
            return (move(c, amount),)
        double = values.join(a, c)
        if left:
            moved = values.shift_left(double, amount, 64)
        else:
            moved = (values.shift_right_signed if is_signed else values.shift_right)(double, amount, 64)
        return (values.high(moved) if top else values.low(moved),)

    return compute(slots(form.dest), words(form.sources, 3), function)


def _extreme(instruction: Instruction) -> Built:
    """VIMNMX, VIMNMX3, IMNMX and VIADDMNMX: the smallest where the predicate is true, else the largest."""
    form = shape(instruction)
    is_signed = not instruction.has("U32")
    carries = form.carries[:1]
    sums = instruction.opcode.endswith("ADDMNMX")
    sources = words(form.sources, 3 if sums or instruction.opcode.endswith("3") else 2)
    if len(form.carries) != 1 or any(predicate_slots(form.results, 2)):
        raise UnreadableOperand("a minimum of another form")

    def function(*parts: Value) -> tuple[Value, ...]:
        *numbers, smaller = parts
        if sums:
            numbers = [values.add(numbers[0], numbers[1]), numbers[2]]
        least = reduce(lambda a, b: values.least(a, b, 32, is_signed), numbers)
        greatest = reduce(lambda a, b: values.greatest(a, b, 32, is_signed), numbers)
        return (values.select(smaller, least, greatest),)

    return compute(slots(form.dest), [*sources, predicate(carries[0])], function)


def _permute(instruction: Instruction) -> Built:
    """PRMT: each result byte is one of the eight of {C:A}, or copies of its sign."""
    form = shape(instruction)
    if instruction.modifiers:
        raise UnreadableOperand("PRMT with a mode")

    def function(a: Value, choice: Value, c: Value) -> tuple[Value, ...]:
        double = values.join(a, c)
        result = values.ZERO
        for k in range(4):
            nibble = values.both(values.shift_right(choice, constant(4 * k)), constant(15))
            at = values.shift_left(values.both(nibble, constant(7)), constant(3))
            byte = values.both(values.shift_right(double, at, 64), constant(0xFF), 64)
            signs = values.both(
                values.shift_right_signed(values.extend(byte, 8), constant(8), 64), constant(0xFF)
            )
            replicated = values.shift_right(nibble, constant(3))
            byte = values.select(replicated, signs, byte)
            result = values.either(result, values.shift_left(byte, constant(8 * k)))
        return (result,)

    return compute(slots(form.dest), words(form.sources, 3), function)


def _select(instruction: Instruction) -> Built:
    form = shape(instruction)
    if len(form.carries) != 1:
        raise UnreadableOperand("SEL of another form")
    wide = instruction.has("64")
    sources = [pair(t) if wide else word(t) for t in form.sources]

    def function(a: Value, b: Value, which: Value) -> tuple[Value, ...]:
        chosen = values.select(which, a, b)
        return halves(chosen) if wide else (chosen,)

    return compute(slots(form.dest, 2 if wide else 1), [*sources, predicate(form.carries[0])], function)


def _unary(function: Callable[[Value], Value]) -> Builder:
    def build(instruction: Instruction) -> Built:
        form = shape(instruction)
        return compute(slots(form.dest), words(form.sources, 1), lambda a: (function(a),))

    return build


def _bits_map(function: Callable[[Bits], Bits]) -> Callable[[Value], Value]:
    return lambda value: values.mapped(function, 32, value)


def _reversed(bits: Bits) -> Bits:
    result = np.zeros_like(bits)
    for k in range(32):
        result |= ((bits >> np.uint64(k)) & np.uint64(1)) << np.uint64(31 - k)
    return result


def _absolute(value: Value) -> Value:
    return values.select(values.less(value, values.ZERO), values.negate(value), value)


def _move(instruction: Instruction) -> Built:
    if instruction.has("64"):
        form = shape(instruction)
        return compute(slots(form.dest, 2), [pair(form.sources[0])], halves)
    operands = instruction.operands[:2]  # MOV R1, R2, 0xf has a mask of bytes that is always whole
    if len(instruction.operands) > 2 and instruction.operands[2] != "0xf":
        raise UnreadableOperand(instruction.operands[2])
    return compute(slots(operands[0]), [word(operands[1])], lambda a: (a,))


def _leading_one(instruction: Instruction) -> Built:
    """FLO: place of the highest bit that is set (of a signed number, that differs from the sign)."""
    form = shape(instruction)
    is_signed, distance = not instruction.has("U32"), instruction.has("SH")

    def highest(bits: Bits) -> Bits:
        number = np.where(is_signed & (bits >> np.uint64(31) == 1), bits ^ np.uint64(0xFFFFFFFF), bits)
        place = np.floor(np.log2(np.maximum(number, 1).astype(np.float64))).astype(np.uint64)
        place = np.uint64(31) - place if distance else place
        return np.where(number == 0, np.uint64(0xFFFFFFFF), place)

    return compute(slots(form.dest), words(form.sources, 1), lambda a: (values.mapped(highest, 32, a),))


def _bit_mask(instruction: Instruction) -> Built:
    """BMSK: B ones from bit A on; with clamped numbers."""
    form = shape(instruction)

    def function(start: Value, count: Value) -> tuple[Value, ...]:
        if instruction.has("W"):
            start, count = (values.both(v, constant(31)) for v in (start, count))
        ones = values.subtract(values.shift_left(values.TRUE, count, 64), values.TRUE, 64)
        return (values.low(values.shift_left(ones, start, 64)),)

    return compute(slots(form.dest), words(form.sources, 2), function)


def _sign_extend(instruction: Instruction) -> Built:
    """SGXT: the lowest B bits of A, extended."""
    form = shape(instruction)
    if len(form.sources) != 2 or not form.sources[1].startswith("0x"):
        raise UnreadableOperand("SGXT of another form")
    width = int(form.sources[1], 16) & 31 or 32

    def function(a: Value) -> tuple[Value, ...]:
        cut = values.both(a, Value(np.array([[values.mask(width)]], np.uint64)))
        return (cut if instruction.has("U32") else values.extend(cut, width, 32),)

    return compute(slots(form.dest), [word(form.sources[0])], function)


def forget(count: int, why: str = "") -> Builder:
    """Results, of so many registers, that are not modelled."""

    def build(instruction: Instruction) -> Built:
        form = shape(instruction)
        cells = [slot for slot in predicate_slots(form.results, 2) if slot is not None]
        if form.dest is not None and not form.dest.startswith(("[", "desc[", "0x", "SB", "gdesc")):
            name = form.dest.split(".")[0]
            cells += [c for c in (register(name, k) for k in range(count)) if isinstance(c, str)]
        return Built(Forget(why or f"{instruction.opcode} is not evaluated"), (), tuple(cells))

    return build


INTEGERS: Final[Mapping[str, Builder]] = {
    "BMSK": _bit_mask,
    "BREV": _unary(_bits_map(_reversed)),
    "FLO": _leading_one,
    "IABS": _unary(_absolute),
    "IADD": _add,
    "IADD3": _add,
    "IMAD": _multiply_add,
    "IMNMX": _extreme,
    "LEA": _shift_add,
    "MOV": _move,
    "POPC": _unary(_bits_map(np.bitwise_count)),
    "PRMT": _permute,
    "SEL": _select,
    "SGXT": _sign_extend,
    "SHF": _funnel,
    "VIADD": _add,
    "VIADDMNMX": _extreme,
    "VIMNMX": _extreme,
    "VIMNMX3": _extreme,
}
