"""64-bit floats in machine code: loops and slow paths that depend on them.

Sums and products are rounded as numpy does; the fused multiply-add keeps the error of its product. The two
approximations that division and roots begin with are the high words of the exact results: what follows them
in the code repairs their last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.kernels.isa.integers import Builder, Built, compute, halves, predicate_slots, shape, slots
from layoutopt.kernels.isa.operands import Source, UnreadableOperand, number, pair, word
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.read.listing import Instruction

Doubles = npt.NDArray[np.float64]
_SIGN: Final = values.constant(1 << 63, 64)
_SPLIT: Final = float((1 << 27) + 1)


def double(text: str) -> Source:
    """A 64-bit float; a sign and bars act on its sign bit."""
    sign = text.startswith("-") and not text[1:2].isdigit() and text[1:].upper() not in ("INF", "QNAN")
    inner = text[1:] if sign else text
    bars = inner.startswith("|")
    source = pair(inner.strip("|"))

    def read(*parts: Value) -> Value:
        value = source.value(*parts)
        if bars:
            value = values.both(value, values.invert(_SIGN, 64), 64)
        return values.differ(value, _SIGN, 64) if sign else value

    return Source(source.operands, read)


def as_doubles(value: Value) -> Doubles:
    """The 64 bits read as a float."""
    return np.ascontiguousarray(value.bits).view(np.float64)


def from_doubles(numbers: Doubles, *sources: Value) -> Value:
    """Floats as bits; unknown as a whole where a source has an unknown bit."""
    bits = np.ascontiguousarray(numbers, np.float64).view(np.uint64)
    return values.mapped(lambda *_: bits, 64, *sources)


def arithmetic(function: Callable[..., Any], count: int) -> Builder:
    """A double out of `count` doubles."""

    def build(instruction: Instruction) -> Built:
        form = shape(instruction)
        if len(form.sources) != count or form.carries or any(predicate_slots(form.results, 2)):
            raise UnreadableOperand("doubles of another form")
        if any(instruction.has(mode) for mode in ("RM", "RP", "RZ")):
            raise UnreadableOperand("doubles rounded otherwise")

        def run(*parts: Value) -> tuple[Value, ...]:
            with np.errstate(all="ignore"):
                result = function(*(as_doubles(part) for part in parts))
            return halves(from_doubles(result, *parts))

        return compute(slots(form.dest, 2), [double(text) for text in form.sources], run)

    return build


def _exact_product(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """The rounded product and its error (Dekker)."""
    product = a * b
    parts = []
    for x in (a, b):
        scaled = x * _SPLIT
        upper = scaled - (scaled - x)
        parts += [upper, x - upper]
    error = ((parts[0] * parts[2] - product) + parts[0] * parts[3] + parts[1] * parts[2]) + parts[1] * parts[
        3
    ]
    return product, error


def fused(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    """a * b + c with the product's error kept; where that leaves the range of floats, without."""
    product, error = _exact_product(a, b)
    total = product + c
    part = total - product
    lost = (product - (total - part)) + (c - part)
    found = total + (lost + error)
    return np.where(np.isfinite(found), found, total)


def approximation(instruction: Instruction) -> Built:
    """MUFU.RCP64H and RSQ64H: the high word of the result, out of the high word of the operand."""
    form = shape(instruction)
    root = instruction.has("RSQ64H")
    source = word(form.sources[0])
    if not source.operands or not isinstance(source.operands[0], str):
        source = Source((values.high(number(form.sources[0], 64)),), lambda value: value)

    def run(part: Value) -> tuple[Value, ...]:
        with np.errstate(all="ignore"):
            given = (part.bits << np.uint64(32)).view(np.float64)
            result = 1.0 / (np.sqrt(given) if root else given)
        return (values.high(from_doubles(result, part)),)

    return compute(slots(form.dest), [source], run)


DOUBLES: Final[Mapping[str, Builder]] = {
    "DADD": arithmetic(lambda a, b: a + b, 2),
    "DFMA": arithmetic(fused, 3),
    "DMUL": arithmetic(lambda a, b: a * b, 2),
}
