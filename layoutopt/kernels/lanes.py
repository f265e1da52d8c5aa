"""What lanes of a warp learn from each other: shuffles and votes."""

from __future__ import annotations

import numpy as np

from layoutopt.kernels import values
from layoutopt.kernels.values import Bools, Value


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
