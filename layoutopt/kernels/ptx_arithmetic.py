"""What PTX instructions compute within a lane: a table, an entry an opcode.

Each entry is a builder: it makes of a `Reading` a `Built`, which says what the step does and which cells it
reads and writes. Arithmetic is that of the PTX ISA; integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from layoutopt.kernels import values
from layoutopt.kernels.program import SHARED_WINDOW, Compute
from layoutopt.kernels.ptx_floats import float_operation, hidden
from layoutopt.kernels.ptx_reading import Builder, Built, Reading, fit, forget
from layoutopt.kernels.values import Value, constant


def _pure(function: Callable[..., Value], inputs: int) -> Builder:
    """An integer operation of operands and result of one type; `function(*values, width, signed)`."""

    def build(reading: Reading) -> Built:
        width, signed = reading.width, reading.signed
        if reading.kind in ("f16", "f32", "f64", "bf16", "f16x2", "bf16x2", "s16x2", "u16x2"):
            return float_operation(reading, inputs)
        sources = reading.sources(*[width] * inputs)

        def compute(*given: Value) -> tuple[Value, ...]:
            return (function(*(fit(v, width) for v in given), width, signed),)

        return Built(Compute(compute), sources, reading.dests)

    return build


def _divided(a: Value, b: Value, width: int, signed: bool, remainder: bool = False) -> Value:
    def numbers(x: values.Bits, y: values.Bits) -> values.Bits:
        safe = np.where(y == 0, np.uint64(1), y)
        if not signed:
            return x % safe if remainder else x // safe
        p, q = values.signed(x, width), values.signed(safe, width)
        top, bottom = np.abs(p).view(np.uint64), np.abs(q).view(np.uint64)
        found = top % bottom if remainder else top // bottom
        negative = (p < 0) if remainder else (p < 0) != (q < 0)
        return np.where(negative, ~found + np.uint64(1), found)

    even = values.quotient(a, b, width - signed)
    if even is not None:
        return values.subtract(a, values.multiply(even, b, width), width) if remainder else even
    result = values.mapped(numbers, width, a, b)
    zero = b.bits == 0
    return hidden(result, zero, width) if zero.any() else result


def _remainder(a: Value, b: Value, width: int, signed: bool) -> Value:
    return _divided(a, b, width, signed, remainder=True)


def _product_high(a: Value, b: Value, width: int, signed: bool) -> Value:
    """The upper half of the product."""
    if width < 64:
        left, right = (values.extend(v, width) if signed else v for v in (a, b))
        return fit(values.shift_right(values.multiply(left, right, 64), constant(width), 64), width)

    def numbers(x: values.Bits, y: values.Bits) -> values.Bits:
        low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        xl, xh, yl, yh = x & low, x >> shift, y & low, y >> shift
        middle: values.Bits = xh * yl + ((xl * yl) >> shift)
        other = xl * yh + (middle & low)
        high: values.Bits = xh * yh + (middle >> shift) + (other >> shift)
        if signed:
            high = high - np.where(values.signed(x, 64) < 0, y, np.uint64(0))
            high = high - np.where(values.signed(y, 64) < 0, x, np.uint64(0))
        return high

    return values.mapped(numbers, 64, a, b)


def _wide(a: Value, width: int, signed: bool) -> Value:
    return values.extend(a, width, 2 * width) if signed else a


def _multiply(reading: Reading, addend: bool) -> Built:
    """mul and mad, .lo, .hi and .wide; mul24 and mad24 keep 24 bits of the factors."""
    width, signed = reading.width, reading.signed
    if reading.kind.startswith(("f", "bf")):
        return float_operation(reading, 2 + addend)
    part = next((w for w in reading.words if w in ("lo", "hi", "wide")), "lo")
    if reading.words[0].endswith("24") and part != "lo":
        return forget(reading)
    cut = 24 if reading.words[0].endswith("24") else width
    out = 2 * width if part == "wide" else width

    def compute(*given: Value) -> tuple[Value, ...]:
        a, b = (fit(v, cut) for v in given[:2])
        if cut == 24 and signed:
            a, b = values.extend(a, 24, width), values.extend(b, 24, width)
        if part == "hi":
            product = _product_high(a, b, width, signed)
        elif part == "wide":
            product = values.multiply(_wide(a, width, signed), _wide(b, width, signed), out)
        else:
            product = values.multiply(a, b, width)
        return (values.add(product, fit(given[2], out), width=out) if addend else product,)

    return Built(Compute(compute), reading.sources(width, width, *[out] * addend), reading.dests)


def _carried(name: str) -> Builder:
    """add.cc, addc, sub.cc, subc, mad.cc and madc: the carry is a register of its own."""

    def build(reading: Reading) -> Built:
        width = reading.width
        takes, gives = reading.words[0].endswith("c"), "cc" in reading.words
        multiplies, subtracts = name == "mad", name == "sub"
        high = "hi" in reading.words
        if width > 32:
            return forget(Reading(reading.words, (f"{{{reading.operands[0]}, $carry}}",), reading.names))

        def compute(*given: Value) -> tuple[Value, ...]:
            parts = [fit(v, width) for v in given[: len(given) - takes]]
            if multiplies:
                product = (
                    _product_high(parts[0], parts[1], width, reading.signed)
                    if high
                    else values.multiply(parts[0], parts[1], width)
                )
                parts = [product, parts[2]]
            carry = fit(given[-1], 1) if takes else constant(0)
            if subtracts:
                parts[1] = values.invert(parts[1], width)
                carry = values.invert(carry, 1) if takes else constant(1)
            total = values.add(*parts, carry, width=width + 1)
            out = fit(values.shift_right(total, constant(width), 64), 1)
            results = (fit(total, width), values.invert(out, 1) if subtracts else out)
            return results if gives else results[:1]

        sources = reading.sources(*[width] * (3 if multiplies else 2))
        dests = (*reading.dests, "carry") if gives else reading.dests
        return Built(Compute(compute), (*sources, *(["carry"] if takes else [])), dests)

    return build


def _plus(name: str, plain: Builder) -> Builder:
    """add, sub and mad: with `.cc` the carry is kept."""
    carried = _carried(name)
    return lambda reading: carried(reading) if "cc" in reading.words else plain(reading)


def _shift(function: Callable[[Value, Value, int], Value]) -> Builder:
    def build(reading: Reading) -> Built:
        width = reading.width
        move = values.shift_right_signed if function is values.shift_right and reading.signed else function

        def compute(a: Value, by: Value) -> tuple[Value, ...]:
            return (move(fit(a, width), fit(by, 32), width),)

        return Built(Compute(compute), reading.sources(width, 32), reading.dests)

    return build


def _funnel(left: bool) -> Builder:
    """shf: the pair {b:a} shifted, its upper word (left) or its lower word (right)."""

    def build(reading: Reading) -> Built:
        wrap = "wrap" in reading.words

        def compute(a: Value, b: Value, by: Value) -> tuple[Value, ...]:
            pair = values.join(fit(a, 32), fit(b, 32))
            amount = (
                values.both(by, constant(31)) if wrap else values.least(fit(by, 32), constant(32), 32, False)
            )
            if left:
                return (values.high(values.shift_left(pair, amount, 64)),)
            return (values.low(values.shift_right(pair, amount, 64)),)

        return Built(Compute(compute), reading.sources(32, 32, 32), reading.dests)

    return build


def _field(reading: Reading) -> Built:
    """bfe: a field of bits, its sign copied upwards if signed."""
    width, signed = reading.width, reading.signed

    def compute(a: Value, start: Value, length: Value) -> tuple[Value, ...]:
        a, start, length = fit(a, width), fit(start, 8), fit(length, 8)
        found = values.both(values.shift_right(a, start, width), _ones(length, width), width)
        if not signed:
            return (found,)

        def filled(x: values.Bits, first: values.Bits, count: values.Bits, low: values.Bits) -> values.Bits:
            last = np.minimum(first + count - np.uint64(1), np.uint64(width - 1))
            negative = (x >> last & np.uint64(1)) != 0
            full = np.uint64((1 << width) - 1)
            room = np.uint64(width) - np.minimum(first, np.uint64(width))
            mask = _ones(Value(np.minimum(count, room)), width).bits
            return np.where(
                (count != 0) & negative, low | (full & ~mask), np.where(count == 0, np.uint64(0), low)
            )

        return (values.mapped(filled, width, a, start, length, found),)

    return Built(Compute(compute), reading.sources(width, 32, 32), reading.dests)


def _ones(length: Value, width: int) -> Value:
    """As many ones as `length` says, at most `width`."""
    full = np.uint64((1 << width) - 1)

    def numbers(count: values.Bits) -> values.Bits:
        room = np.uint64(width) - np.minimum(count, np.uint64(width))
        return np.where(count == 0, np.uint64(0), full >> np.minimum(room, np.uint64(63)))

    return values.mapped(numbers, width, length)


def _insert(reading: Reading) -> Built:
    """bfi: the low bits of the first source put into the second."""
    width = reading.width

    def compute(a: Value, b: Value, start: Value, length: Value) -> tuple[Value, ...]:
        start, length = fit(start, 8), fit(length, 8)
        mask = values.shift_left(_ones(length, width), start, width)
        moved = values.shift_left(fit(a, width), start, width)
        kept = values.both(fit(b, width), values.invert(mask, width), width)
        return (values.either(values.both(moved, mask, width), kept, width),)

    return Built(Compute(compute), reading.sources(width, width, 32, 32), reading.dests)


def _permute(reading: Reading) -> Built:
    """prmt: each byte of the result is one of eight, or its sign."""
    if set(reading.words) & {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}:
        return forget(reading)

    def compute(a: Value, b: Value, selector: Value) -> tuple[Value, ...]:
        pair = values.join(fit(a, 32), fit(b, 32))
        result = constant(0)
        for k in range(4):
            place = values.both(values.shift_right(selector, constant(4 * k)), constant(15))
            shift = values.multiply(values.both(place, constant(7)), constant(8))
            byte = values.both(values.shift_right(pair, shift, 64), constant(255), 64)
            sign = values.multiply(values.shift_right(byte, constant(7)), constant(255))
            byte = values.select(values.shift_right(place, constant(3)), sign, byte)
            result = values.either(result, values.shift_left(fit(byte, 8), constant(8 * k)))
        return (result,)

    return Built(Compute(compute), reading.sources(32, 32, 32), reading.dests)


def _bits(function: Callable[[values.Bits, int], values.Bits]) -> Builder:
    """popc, clz, brev: of known numbers."""

    def build(reading: Reading) -> Built:
        width = reading.width

        def compute(a: Value) -> tuple[Value, ...]:
            return (values.mapped(lambda x: function(x, width), width, fit(a, width)),)

        return Built(Compute(compute), reading.sources(width), reading.dests)

    return build


def _population(bits: values.Bits, _: int) -> values.Bits:
    return np.bitwise_count(bits).astype(np.uint64)


def _reversed(bits: values.Bits, width: int) -> values.Bits:
    found = np.zeros_like(bits)
    for k in range(width):
        found |= (bits >> np.uint64(k) & np.uint64(1)) << np.uint64(width - 1 - k)
    return found


def _leading_zeros(bits: values.Bits, width: int) -> values.Bits:
    found = np.full_like(bits, width)
    for k in range(width):
        found = np.where(bits >> np.uint64(k) != 0, np.uint64(width - 1 - k), found)
    return found


def _highest(reading: Reading) -> Built:
    """bfind: place of the highest one (of the highest bit unlike the sign), or all ones."""
    width, signed, shift = reading.width, reading.signed, "shiftamt" in reading.words

    def compute(a: Value) -> tuple[Value, ...]:
        def numbers(x: values.Bits) -> values.Bits:
            if signed:
                x = np.where(values.signed(x, width) < 0, ~x & values.mask(width), x)
            place = np.uint64(width - 1) - _leading_zeros(x, width)
            if shift:
                place = np.uint64(width - 1) - place
            return np.where(x == 0, np.uint64(0xFFFFFFFF), place)

        return (values.mapped(numbers, 32, fit(a, width)),)

    return Built(Compute(compute), reading.sources(width), reading.dests)


def _logic3(reading: Reading) -> Built:
    """lop3: any function of three bits."""
    try:
        table = int(reading.operands[4], 0)
    except ValueError:
        return forget(reading)
    if len(reading.operands) > 5 or not 0 <= table < 256:
        return forget(reading)

    def compute(a: Value, b: Value, c: Value) -> tuple[Value, ...]:
        return (values.table3(fit(a, 32), fit(b, 32), fit(c, 32), table),)

    return Built(Compute(compute), reading.sources(32, 32, 32), reading.dests)


def _absolute(a: Value, width: int, signed: bool) -> Value:
    negative = values.shift_right(a, constant(width - 1), 64)
    return values.select(negative, values.negate(a, width), a)


ARITHMETIC: Final[dict[str, Builder]] = {
    "add": _plus("add", _pure(lambda a, b, w, s: values.add(a, b, width=w), 2)),
    "sub": _plus("sub", _pure(lambda a, b, w, s: values.subtract(a, b, w), 2)),
    "addc": _carried("add"),
    "subc": _carried("sub"),
    "mul": lambda reading: _multiply(reading, addend=False),
    "mul24": lambda reading: _multiply(reading, addend=False),
    "mad": _plus("mad", lambda reading: _multiply(reading, addend=True)),
    "mad24": lambda reading: _multiply(reading, addend=True),
    "madc": _carried("mad"),
    "fma": lambda reading: float_operation(reading, 3),
    "div": _pure(_divided, 2),
    "rem": _pure(_remainder, 2),
    "neg": _pure(lambda a, w, s: values.negate(a, w), 1),
    "abs": _pure(_absolute, 1),
    "min": _pure(lambda a, b, w, s: values.least(a, b, w, s), 2),
    "max": _pure(lambda a, b, w, s: values.greatest(a, b, w, s), 2),
    "sqrt": lambda reading: float_operation(reading, 1),
    "and": _pure(lambda a, b, w, s: values.both(a, b, w), 2),
    "or": _pure(lambda a, b, w, s: values.either(a, b, w), 2),
    "xor": _pure(lambda a, b, w, s: values.differ(a, b, w), 2),
    "not": _pure(lambda a, w, s: values.invert(a, w), 1),
    "cnot": _pure(lambda a, w, s: values.equal(a, constant(0)), 1),
    "lop3": _logic3,
    "shl": _shift(values.shift_left),
    "shr": _shift(values.shift_right),
    "shf.l": _funnel(left=True),
    "shf.r": _funnel(left=False),
    "bfe": _field,
    "bfi": _insert,
    "bfind": _highest,
    "prmt": _permute,
    "popc": _bits(_population),
    "clz": _bits(_leading_zeros),
    "brev": _bits(_reversed),
    "isspacep.shared": lambda reading: Built(
        Compute(lambda a: (values.equal(values.shift_right(a, constant(32), 64), constant(SHARED_WINDOW)),)),
        reading.sources(64),
        reading.dests,
    ),
}
