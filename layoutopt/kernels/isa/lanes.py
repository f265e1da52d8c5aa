"""What instructions of machine code do across the lanes of a warp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from layoutopt.kernels.isa.integers import (
    Builder,
    Built,
    across,
    forget,
    predicate_slots,
    shape,
    slots,
    words,
)
from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import UnreadableOperand, is_predicate, pair, predicate, word
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Bools, Value


def _parted(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Operands as predicates and others."""
    return [t for t in texts if is_predicate(t)], [t for t in texts if not is_predicate(t)]


def _first_lane(instruction: Instruction) -> Built:
    """R2UR: the value of the first active lane; a predicate says which lanes have another one.

    Code that serves one number at a time goes round until no lane is left; of a number of two words, the
    second (`.OR`) adds to the predicate of the first.
    """
    predicates, (dest, given, *_) = _parted(instruction.operands)
    told = predicate_slots(predicates, 1)[0]
    source = word(given)
    if source.value(values.TRUE) is not values.TRUE:
        raise UnreadableOperand(given)
    joins = instruction.has("OR") and told is not None

    def function(active: Bools, value: Value, before: Value = values.ZERO) -> tuple[Value, ...]:
        first = values.cut(values.of_lane(value, active.argmax(axis=1)[:, None], active.shape), 32)
        other = values.invert(values.equal(value, first), 1)
        return first, values.either(before, other, 1) if joins else other

    return across([slots(dest)[0], told], [source, *([predicate(told)] if joins and told else [])], function)


def _shuffle(instruction: Instruction) -> Built:
    """SHFL: another lane's value, as PTX defines it."""
    form = shape(instruction)
    mode = next((m for m in instruction.modifiers if m in ("IDX", "UP", "DOWN", "BFLY")), "")
    if not mode:
        raise UnreadableOperand("SHFL of another form")
    where = [*slots(form.dest), *predicate_slots(form.results, 1)]
    return across(where, words(form.sources, 3), lambda active, *parts: shuffle(active, mode, *parts))


def _vote(instruction: Instruction) -> Built:
    """VOTE: whether all or any lane's predicate holds, and of which lanes."""
    mode = next((m for m in instruction.modifiers if m in ("ALL", "ANY", "EQ")), "")
    if not mode:
        raise UnreadableOperand("VOTE of another form")
    predicates, registers = _parted(instruction.operands[:-1])
    where = [*slots(registers[0] if registers else None), *predicate_slots(predicates, 1)]
    asked = predicate(instruction.operands[-1])
    return across(where, [asked], lambda active, holds: vote(active, mode, holds))


def _elect(instruction: Instruction) -> Built:
    """ELECT: true in one active lane, the first."""
    predicates, registers = _parted(instruction.operands)
    where = [*predicate_slots(predicates[:1], 1), *slots(registers[0] if registers else None)]

    def function(active: Bools) -> tuple[Value, ...]:
        first = active.argmax(axis=1)[:, None]
        chosen = (np.arange(32) == first) & active
        return Value(chosen.astype(np.uint64)), Value(first.astype(np.uint64))

    return across(where, [], function)


_REDUCTIONS: Final[Mapping[str, tuple[np.ufunc, int]]] = {
    "OR": (np.bitwise_or, 0),
    "XOR": (np.bitwise_xor, 0),
    "SUM": (np.add, 0),
    "MAX": (np.maximum, 0),
    "MIN": (np.minimum, 0xFFFFFFFF),
}


def _reduce(instruction: Instruction) -> Built:
    """REDUX: one number out of all active lanes'."""
    name = next((m for m in instruction.modifiers if m in _REDUCTIONS), "")
    if not name or (instruction.has("S32") and name in ("MIN", "MAX")):
        return forget(1)(instruction)
    combine, neutral = _REDUCTIONS[name]

    def function(active: Bools, value: Value) -> tuple[Value, ...]:
        if value.unknown is not None and (active & (value.unknown != 0)).any():
            return (values.unknown(),)
        numbers = np.where(active, np.broadcast_to(value.bits, active.shape), np.uint64(neutral))
        return (Value(combine.reduce(numbers, axis=1, keepdims=True) & values.mask(32)),)

    return across(slots(instruction.operands[0]), [word(instruction.operands[1])], function)


def _match(instruction: Instruction) -> Built:
    """MATCH.ANY: which active lanes have the same number as this one."""
    if not instruction.has("ANY"):
        return forget(1)(instruction)

    def function(active: Bools, value: Value) -> tuple[Value, ...]:
        numbers = np.broadcast_to(value.bits, active.shape)
        same = (numbers[:, :, None] == numbers[:, None, :]) & active[:, None, :]
        masks = (same.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=2, dtype=np.uint64)
        lost = values.whole(value)
        hidden = None
        if lost is not None:
            unsure = np.logical_and(lost, active).any(axis=1, keepdims=True)
            hidden = np.where(unsure, values.mask(32), np.uint64(0))
        return (values.made(masks, hidden, 32),)

    source = (pair if instruction.has("U64") else word)(instruction.operands[-1])
    return across(slots(instruction.operands[0]), [source], function)


def shuffle(active: Bools, mode: str, data: Value, lane: Value, clamp: Value) -> tuple[Value, Value]:
    """What each lane reads from another one and whether that is in range (PTX ISA, shfl.sync).

    Args:
        active: shape (warps, 32).
        mode: IDX, UP, DOWN or BFLY.
        data, lane: of the instruction's operands a and b.
        clamp: operand c: the clamp in bits 0 to 4, the segment mask in bits 8 to 12.
    """
    own = np.arange(32)
    if lane.unknown is not None or clamp.unknown is not None:
        return values.unknown(), values.unknown(1)
    by = np.broadcast_to(lane.bits, active.shape).astype(np.int64) & 31
    limit = np.broadcast_to(clamp.bits, active.shape).astype(np.int64) & 31
    segment = np.broadcast_to(clamp.bits, active.shape).astype(np.int64) >> 8 & 31
    most = (own & segment) | (limit & ~segment)
    least = own & segment
    match mode:
        case "UP":
            source = own - by
            within = source >= most
        case "DOWN":
            source = own + by
            within = source <= most
        case "BFLY":
            source = own ^ by
            within = source <= most
        case _:
            source = least | (by & ~segment)
            within = source <= most
    chosen = np.where(within, source, own) & 31
    bits = np.take_along_axis(np.broadcast_to(data.bits, active.shape), chosen, axis=1)
    hidden = np.zeros(active.shape, np.uint64)
    if data.unknown is not None:
        hidden = np.take_along_axis(np.broadcast_to(data.unknown, active.shape), chosen, axis=1)
    reads_idle = ~np.take_along_axis(active, chosen, axis=1)
    hidden = np.where(reads_idle, values.mask(32), hidden)
    return values.made(bits, hidden, 32), Value(within.astype(np.uint64))


def vote(active: Bools, mode: str, holds: Value) -> tuple[Value, Value]:
    """The lanes of which a predicate holds, as a mask, and whether they are ALL, ANY or equal (EQ)."""
    true = active & (holds.bits != 0)
    weights = np.uint64(1) << np.arange(32, dtype=np.uint64)
    ballot = (true * weights).sum(axis=1, keepdims=True, dtype=np.uint64)
    unsure = np.zeros(active.shape, bool) if holds.unknown is None else active & (holds.unknown != 0)
    hidden = (unsure * weights).sum(axis=1, keepdims=True, dtype=np.uint64)
    false = active & ~true & ~unsure
    some, none = true.any(axis=1, keepdims=True), false.any(axis=1, keepdims=True)
    maybe = unsure.any(axis=1, keepdims=True)
    answer, open_ = {
        "ALL": (~none, maybe & ~none),
        "ANY": (some, maybe & ~some),
        "EQ": (~(some & none), maybe & ~(some & none)),
    }[mode]
    return values.made(ballot, hidden, 32), values.made(answer.astype(np.uint64), open_.astype(np.uint64), 1)


LANES: Final[Mapping[str, Builder]] = {
    "ELECT": _elect,
    "MATCH": _match,
    "R2UR": _first_lane,
    "REDUX": _reduce,
    "SHFL": _shuffle,
    "VOTE": _vote,
    "VOTEU": _vote,
}
