"""PTX instructions that move, convert and compare, and those that lanes do together: a table, an entry an
opcode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from layoutopt.kernels import values
from layoutopt.kernels.program import LOCAL_WINDOW, SHARED_WINDOW, Across, Compute, Operand
from layoutopt.kernels.ptx_floats import as_float, from_float
from layoutopt.kernels.ptx_reading import Builder, Built, Reading, fit, forget
from layoutopt.kernels.ptx_text import TYPE_BYTES
from layoutopt.kernels.values import Bools, Value, constant, made, whole


def _move(reading: Reading) -> Built:
    """mov: a register, a number, an address; or parts put together and taken apart."""
    width, dests = reading.width, reading.dests
    text = reading.operands[1]
    if text.startswith("{"):
        parts = reading.names.cells(text)
        each = width // len(parts)

        def together(*given: Value) -> tuple[Value, ...]:
            result = fit(given[0], each)
            for k, part in enumerate(given[1:], 1):
                moved = values.shift_left(fit(part, each), constant(k * each), width)
                result = values.either(result, moved, width)
            return (result,)

        sources = tuple(reading.names.operand(part, each) for part in text.strip("{} ").split(","))
        return Built(Compute(together), sources, dests)
    source = reading.sources(width)
    if len(dests) > 1:
        each = width // len(dests)

        def apart(whole_value: Value) -> tuple[Value, ...]:
            return tuple(
                fit(values.shift_right(whole_value, constant(k * each), 64), each) for k in range(len(dests))
            )

        return Built(Compute(apart), source, dests)
    return Built(Compute(lambda value: (fit(value, width),)), source, dests)


def _convert(reading: Reading) -> Built:
    """cvt: the destination's type, then the source's."""
    kinds = [w for w in reading.words if w in TYPE_BYTES]
    if len(kinds) != 2:
        return forget(reading)
    to, of = kinds
    wide, narrow = 8 * TYPE_BYTES[to], 8 * TYPE_BYTES[of]
    source = reading.sources(narrow)
    if to[0] in "bsu" and of[0] in "bsu" and "x2" not in to + of:
        if "sat" in reading.words or to.startswith("bf") or of.startswith("bf"):
            return forget(reading)

        def integer(value: Value) -> tuple[Value, ...]:
            value = fit(value, narrow)
            return (fit(values.extend(value, narrow), wide) if of[0] == "s" else fit(value, wide),)

        return Built(Compute(integer), source, reading.dests)
    if of in ("f32", "f64") and to[0] in "su":
        return _to_integer(reading, source, to, of)
    if to in ("f32", "f64") and of[0] in "su" and not {"rz", "rm", "rp", "sat"} & set(reading.words):
        return _to_float(reading, source, to, of)
    if (
        to in ("f32", "f64")
        and of in ("f32", "f64")
        and not {"rz", "rm", "rp", "sat", "rni", "rzi", "rmi", "rpi"} & set(reading.words)
    ):
        return _between_floats(reading, source, to, of)
    return forget(reading)


_DTYPES: Final[dict[str, np.dtype[Any]]] = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
_ROUNDED: Final = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _to_integer(reading: Reading, source: tuple[Operand, ...], to: str, of: str) -> Built:
    """Rounded as the opcode says, and clamped to the range."""
    width = 8 * TYPE_BYTES[to]
    rounded = next((_ROUNDED[w] for w in reading.words if w in _ROUNDED), None)
    if rounded is None or width > 32:
        return forget(reading)
    least, most = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if to[0] == "s" else (0, (1 << width) - 1)

    def convert(value: Value) -> tuple[Value, ...]:
        number = rounded(as_float(value, _DTYPES[of], "ftz" in reading.words).astype(np.float64))
        clamped = np.clip(np.where(np.isnan(number), 0, number), least, most).astype(np.int64)
        bits = clamped.view(np.uint64) & values.mask(width)
        return (values.mapped(lambda _: bits, width, value),)

    return Built(Compute(convert), source, reading.dests)


def _to_float(reading: Reading, source: tuple[Operand, ...], to: str, of: str) -> Built:
    width = 8 * TYPE_BYTES[of]

    def convert(value: Value) -> tuple[Value, ...]:
        value = fit(value, width)
        number = values.signed(value.bits, width) if of[0] == "s" else value.bits
        return (from_float(number.astype(_DTYPES[to]), False, value),)

    return Built(Compute(convert), source, reading.dests)


def _between_floats(reading: Reading, source: tuple[Operand, ...], to: str, of: str) -> Built:
    flush = "ftz" in reading.words

    def convert(value: Value) -> tuple[Value, ...]:
        with np.errstate(all="ignore"):
            return (from_float(as_float(value, _DTYPES[of], flush).astype(_DTYPES[to]), flush, value),)

    return Built(Compute(convert), source, reading.dests)


def _window(high: int) -> Builder:
    """cvta: an address of a window becomes generic."""

    def build(reading: Reading) -> Built:
        def generic(address: Value) -> tuple[Value, ...]:
            return (values.join(fit(address, 32), constant(high)),)

        return Built(Compute(generic), reading.sources(64), reading.dests)

    return build


def _same(reading: Reading) -> Built:
    """An address that means the same in both spaces."""
    return Built(Compute(lambda address: (address,)), reading.sources(64), reading.dests)


def _narrowed(reading: Reading) -> Built:
    """cvta.to: a generic address becomes one of its window."""
    return Built(Compute(lambda address: (fit(address, 32),)), reading.sources(64), reading.dests)


# Comparisons.

_UNSIGNED: Final = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs")
_FLOAT_COMPARISONS: Final[dict[str, Callable[..., Bools]]] = {
    "eq": np.equal,
    "ne": lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "equ": lambda a, b: (a == b) | np.isnan(a) | np.isnan(b),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_JOINED: Final = {"and": values.both, "or": values.either, "xor": values.differ}


def _comparison(reading: Reading) -> Callable[[Value, Value], Value] | None:
    """The comparison that setp or set names, of one bit; None where it is not modelled."""
    width, kind = reading.width, reading.kind
    name = next((w for w in reading.words[1:] if w in _COMPARISONS or w in _FLOAT_COMPARISONS), None)
    if name is None or kind in ("f16", "bf16", "f16x2", "bf16x2"):
        return None
    if kind in _DTYPES:
        flush = "ftz" in reading.words

        def floats(a: Value, b: Value) -> Value:
            numbers = (as_float(v, _DTYPES[kind], flush) for v in (a, b))
            bits = _FLOAT_COMPARISONS[name](*numbers).astype(np.uint64)
            return values.mapped(lambda *_: bits, 1, a, b)

        return floats
    if name not in _COMPARISONS:
        return None
    signed = kind[0] == "s"

    def integers(a: Value, b: Value) -> Value:
        return values.compare(_UNSIGNED.get(name, name), fit(a, width), fit(b, width), width, signed)

    return integers


def _set_predicate(reading: Reading) -> Built:
    """setp: one or two predicates, perhaps joined with a third."""
    compare = _comparison(reading)
    dests = reading.dests
    if compare is None:
        return forget(reading)
    joined = next((_JOINED[w] for w in reading.words[2:3] if w in _JOINED), None)
    sources = reading.sources(reading.width, reading.width)
    negated = False
    if joined is not None:
        third = reading.operands[3]
        negated = third.startswith("!")
        sources = (*sources, reading.names.operand(third.lstrip("! "), 1))

    def compute(a: Value, b: Value, *others: Value) -> tuple[Value, ...]:
        results = [compare(a, b)]
        if len(dests) > 1:
            results.append(values.invert(results[0], 1))
        if joined is not None:
            other = values.invert(fit(others[0], 1), 1) if negated else fit(others[0], 1)
            results = [joined(one, other, 1) for one in results]
        return tuple(results)

    return Built(Compute(compute), sources, dests)


def _set(reading: Reading) -> Built:
    """set: all ones, or 1.0, where the comparison holds."""
    compare = _comparison(reading)
    kinds = [w for w in reading.words if w in TYPE_BYTES]
    if compare is None or len(kinds) != 2 or set(reading.words) & {"and", "or", "xor"}:
        return forget(reading)
    yes = constant(0x3F800000 if kinds[0] == "f32" else 0xFFFFFFFF)

    def compute(a: Value, b: Value) -> tuple[Value, ...]:
        return (values.select(compare(a, b), yes, constant(0)),)

    return Built(Compute(compute), reading.sources(reading.width, reading.width), reading.dests)


def _select(reading: Reading) -> Built:
    """selp: the first where the predicate is true, else the second."""
    width = reading.width

    def compute(a: Value, b: Value, condition: Value) -> tuple[Value, ...]:
        return (values.select(fit(condition, 1), fit(a, width), fit(b, width)),)

    return Built(Compute(compute), reading.sources(width, width, 1), reading.dests)


# What lanes do together.


def _shuffle(reading: Reading) -> Built:
    """shfl.sync: the value of another lane; what an inactive lane has is unknown."""
    mode = next(w for w in reading.words if w in ("up", "down", "bfly", "idx"))
    dests = reading.dests

    def exchange(active: Bools, a: Value, b: Value, c: Value) -> tuple[Value, ...]:
        lane = np.arange(32, dtype=np.int64)[None, :]
        shape = active.shape
        step, clamp = (np.broadcast_to(v.bits, shape).astype(np.int64) for v in (b, c))
        segment = clamp >> 8 & 31
        low, high = lane & segment, (lane & segment) | (clamp & 31 & ~segment)
        step = step & 31
        match mode:
            case "up":
                source, inside = lane - step, lane - step >= high
            case "down":
                source, inside = lane + step, lane + step <= high
            case "bfly":
                source, inside = lane ^ step, (lane ^ step) <= high
            case _:
                source = low | (step & ~segment)
                inside = source <= high
        source = np.where(inside, source, lane)
        rows = np.arange(shape[0])[:, None]
        bits = np.broadcast_to(a.bits, shape)[rows, source & 31]
        lost = ~active[rows, source & 31]
        for value in (b, c):
            hidden = whole(value)
            lost = lost if hidden is None else lost | hidden
        before = np.zeros((1, 1), np.uint64) if a.unknown is None else a.unknown
        hidden_bits = np.broadcast_to(before, shape)[rows, source & 31]
        result = made(bits, np.where(lost, values.mask(32), hidden_bits), 32)
        return (result, Value(inside.astype(np.uint64)))[: len(dests)]

    return Built(Across(exchange), reading.sources(32, 32, 32), dests)


def _vote(reading: Reading) -> Built:
    """vote.sync: all, any, uni, ballot over the active lanes."""
    mode = next(w for w in reading.words if w in ("all", "any", "uni", "ballot"))
    text = reading.operands[1]
    negated = text.startswith("!")
    source = reading.names.operand(text.lstrip("! "), 1)

    def count(active: Bools, predicate: Value) -> tuple[Value, ...]:
        true = np.broadcast_to(predicate.bits != 0, active.shape)
        hidden = whole(predicate)
        doubt = (
            np.zeros(active.shape, bool) if hidden is None else np.broadcast_to(hidden, active.shape) & active
        )
        true = (true != negated) & active & ~doubt
        false = active & ~true & ~doubt
        if mode == "ballot":
            weights = np.uint64(1) << np.arange(32, dtype=np.uint64)
            bits = (true * weights).sum(axis=1, keepdims=True, dtype=np.uint64)
            return (made(bits, (doubt * weights).sum(axis=1, keepdims=True, dtype=np.uint64), 32),)
        some, none = true.any(axis=1, keepdims=True), ~false.any(axis=1, keepdims=True)
        unsure = doubt.any(axis=1, keepdims=True)
        if mode == "any":
            return (made(some.astype(np.uint64), (unsure & ~some).astype(np.uint64), 1),)
        if mode == "all":
            return (made((none & ~unsure).astype(np.uint64), (unsure & none).astype(np.uint64), 1),)
        mixed = some & ~none
        return (made((~mixed & ~unsure).astype(np.uint64), (unsure & ~mixed).astype(np.uint64), 1),)

    return Built(Across(count), (source,), reading.dests)


def _active(reading: Reading) -> Built:
    def masks(active: Bools) -> tuple[Value, ...]:
        weights = np.uint64(1) << np.arange(32, dtype=np.uint64)
        return (Value((active * weights).sum(axis=1, keepdims=True, dtype=np.uint64)),)

    return Built(Across(masks), (), reading.dests)


def _elect(reading: Reading) -> Built:
    """elect.sync: one lane of the mask; the hardware takes the lowest."""
    dests = reading.dests

    def first(active: Bools) -> tuple[Value, ...]:
        lowest = active.argmax(axis=1)[:, None]
        elected = (np.arange(32)[None, :] == lowest).astype(np.uint64)
        return (Value(lowest.astype(np.uint64)), Value(elected))[-len(dests) :]

    return Built(Across(first), (), dests)


MOVES: Final[dict[str, Builder]] = {
    "mov": _move,
    "cvt": _convert,
    "cvta.to.shared": _narrowed,
    "cvta.to.shared::cta": _narrowed,
    "cvta.to.local": _narrowed,
    "cvta.to.global": _same,
    "cvta.to.const": _same,
    "cvta.to.param": _same,
    "cvta.shared": _window(SHARED_WINDOW),
    "cvta.shared::cta": _window(SHARED_WINDOW),
    "cvta.local": _window(LOCAL_WINDOW),
    "cvta.global": _same,
    "cvta.const": _same,
    "cvta.param": forget,
    "setp": _set_predicate,
    "set": _set,
    "selp": _select,
    "shfl.sync": _shuffle,
    "vote.sync": _vote,
    "activemask": _active,
    "elect.sync": _elect,
}
