"""What instructions of machine code do across the lanes of a warp: each takes the active lanes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import (
    Builder,
    Built,
    UnreadableOperand,
    computed,
    forget,
    is_predicate,
    predicate,
    row,
    word,
)
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Bits, Bools, Value


def _parted(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Operands as predicates and others."""
    return [t for t in texts if is_predicate(t)], [t for t in texts if not is_predicate(t)]


def _first_lane(one: Instruction) -> Built:
    """R2UR: the value of the first active lane; a predicate says which lanes have another one.

    Code that serves one number at a time goes round until no lane is left; of a number of two words, the
    second (`.OR`) adds to the predicate of the first.
    """
    predicates, (dest, given, *_) = _parted(one.operands)
    told = predicates[0] if predicates else "PT"
    joins = one.has("OR") and not told.endswith("T")

    def first(_: Instruction, active: Bools, value: Value, before: Value = values.ZERO) -> tuple[Value, ...]:
        chosen = values.cut(values.of_lane(value, active.argmax(axis=1)[:, None], active.shape), 32)
        other = values.invert(values.equal(value, chosen), 1)
        return chosen, values.either(before, other, 1) if joins else other

    sources = [word(given), *([predicate(told)] if joins else [])]
    return computed(one, [("r", dest), ("p", told)], sources, first, across=True)


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
    if one.has("UP"):
        source = own - by
        within = source >= most
    else:
        indexed = (own & segment) | (by & ~segment)
        source = own + by if one.has("DOWN") else own ^ by if one.has("BFLY") else indexed
        within = source <= most
    chosen = np.where(within, source, own) & 31
    found = values.of_lane(data._replace(line=None), chosen, active.shape)
    idle = ~np.take_along_axis(active, chosen, axis=1)
    return values.hidden_where(idle, found, 32), Value(within.astype(np.uint64))


def _mask_of(lanes: Bools) -> Bits:
    weights = np.uint64(1) << np.arange(32, dtype=np.uint64)
    found: Bits = (lanes * weights).sum(axis=-1, keepdims=True, dtype=np.uint64)
    return found


def _vote(one: Instruction) -> Built:
    """VOTE: of which lanes a predicate holds, and whether of ALL, of ANY, or of all alike (EQ)."""
    predicates, registers = _parted(one.operands[:-1])

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

    where = [("r", registers[0] if registers else "RZ"), ("p", predicates[0] if predicates else "PT")]
    return computed(one, where, [predicate(one.operands[-1])], vote, across=True)


def _elect(one: Instruction) -> Built:
    """ELECT: true in one active lane, the first."""
    predicates, registers = _parted(one.operands)

    def elect(_: Instruction, active: Bools) -> tuple[Value, Value]:
        first = active.argmax(axis=1)[:, None]
        chosen = (np.arange(32) == first) & active
        return Value(first.astype(np.uint64)), Value(chosen.astype(np.uint64))

    where = [("r", registers[0] if registers else "RZ"), ("p", predicates[0] if predicates else "PT")]
    return computed(one, where, [], elect, across=True)


_REDUCTIONS: Final[Mapping[str, tuple[np.ufunc, int]]] = {
    "OR": (np.bitwise_or, 0),
    "XOR": (np.bitwise_xor, 0),
    "SUM": (np.add, 0),
    "MAX": (np.maximum, 0),
    "MIN": (np.minimum, 0xFFFFFFFF),
}


def _reduce(one: Instruction) -> Built:
    """REDUX: one number out of all active lanes'."""
    name = next((m for m in one.modifiers if m in _REDUCTIONS), "")
    if not name or (one.has("S32") and name in ("MIN", "MAX")):
        return forget(1)(one)
    combine, neutral = _REDUCTIONS[name]

    def reduced(_: Instruction, active: Bools, value: Value) -> Value:
        if (active & (value.unknown != 0)).any():
            return values.unknown()
        numbers = np.where(active, np.broadcast_to(value.bits, active.shape), np.uint64(neutral))
        return Value(combine.reduce(numbers, axis=1, keepdims=True) & values.mask(32))

    return row("r", "w", reduced, across=True)(one)


def _match(one: Instruction) -> Built:
    """MATCH.ANY: which active lanes have the same number as this one."""
    if not one.has("ANY"):
        return forget(1)(one)

    def matching(_: Instruction, active: Bools, value: Value) -> Value:
        numbers = np.broadcast_to(value.bits, active.shape)
        same = (numbers[:, :, None] == numbers[:, None, :]) & active[:, None, :]
        unsure = ((value.unknown != 0) & active).any(axis=1, keepdims=True)
        return values.hidden_where(unsure, Value(_mask_of(same)[..., 0]), 32)

    source = word(one.operands[-1], 2 if one.has("U64") else 1)
    return computed(one, [("r", one.operands[0])], [source], matching, across=True)


def _with(builder: Builder, *modes: str) -> Builder:
    """The builder of an instruction that must have one of these modifiers."""

    def build(one: Instruction) -> Built:
        if not one.has(*modes):
            raise UnreadableOperand(f"{one.opcode} of another form")
        return builder(one)

    return build


LANES: Final[Mapping[str, Builder]] = {
    "ELECT": _elect,
    "MATCH": _match,
    "R2UR": _first_lane,
    "REDUX": _reduce,
    "SHFL": _with(row("rp", "www", _shuffle, across=True), "IDX", "UP", "DOWN", "BFLY"),
    "VOTE": _with(_vote, "ALL", "ANY", "EQ"),
    "VOTEU": _with(_vote, "ALL", "ANY", "EQ"),
}
