"""The conflict engine: wavefronts of finished byte addresses, lane by lane.

It knows nothing of layouts, problems or the solver. It is given the byte address of every lane of
every warp instruction, and counts what the hardware rule of `layoutopt.devices` says. It is the
judge of everything the rest of the package proposes, so it shares no code with the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from layoutopt.devices import Device, PhaseRule
from layoutopt.operations import Operation

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Rows handled at a time: 512 instructions x 32 lanes x 4 words x 8 bytes stays inside a 1 MiB cache.
CHUNK_INSTRUCTIONS: Final = 512


@dataclass(frozen=True, slots=True)
class Counts:
    """What each warp instruction costs; three int64 arrays of shape (instructions,).

    Attributes:
        wavefronts: passes over the banks.
        ideal: passes if each phase's words were spread evenly over the banks.
        phases: phases with an active lane; `wavefronts - phases` is what the profiler's counter
            `l1tex__data_bank_conflicts_pipe_lsu_mem_shared` shows.
    """

    wavefronts: IntArray
    ideal: IntArray
    phases: IntArray

    @property
    def bank_conflicts(self) -> IntArray:
        """The profiler's bank-conflict counter, per instruction."""
        return self.wavefronts - self.phases


def count_wavefronts(
    byte_address: IntArray, active: BoolArray, operation: Operation, device: Device
) -> Counts:
    """Count the wavefronts of warp instructions.

    Args:
        byte_address: int64, shape (instructions, lanes): shared-memory address of each lane, a
            multiple of the access width. Ignored where inactive.
        active: bool, same shape.
        operation: the instruction, the same for all rows.
        device: whose rules to apply.

    Raises:
        ProblemFileError: the device has no published rule for the operation.
        ValueError: the arrays do not have one column per lane.
    """
    rule = device.rule(operation)
    if byte_address.ndim != 2 or byte_address.shape[1] != device.lanes or active.shape != byte_address.shape:
        raise ValueError(f"expected shape (instructions, {device.lanes}), got {byte_address.shape}")
    if operation.matrices:
        # Measured: the addresses of all 8 * matrices lanes count, predicated off or not.
        address_lanes = np.arange(device.lanes) < 8 * operation.matrices
        active = active.any(axis=1, keepdims=True) & address_lanes
    instructions = len(byte_address)
    out = Counts(*(np.zeros(instructions, np.int64) for _ in range(3)))
    for start in range(0, instructions, CHUNK_INSTRUCTIONS):
        rows = slice(start, min(start + CHUNK_INSTRUCTIONS, instructions))
        _count_chunk(byte_address[rows], active[rows], operation.width_bytes, rule, out, start)
    return out


def _count_chunk(
    address: IntArray, active: BoolArray, width_bytes: int, rule: PhaseRule, out: Counts, start: int
) -> None:
    groups = [(rule.phases, np.arange(len(address)))]
    if rule.merges_pairs:
        merged = _pairs_hold(address, active)
        paired = tuple(a + b for a, b in zip(rule.phases[::2], rule.phases[1::2], strict=True))
        groups = [(rule.phases, np.flatnonzero(~merged)), (paired, np.flatnonzero(merged))]
    words_per_lane = max(1, width_bytes // rule.bank_bytes)
    first_word = address // rule.bank_bytes
    for phases, rows in groups:
        if not len(rows):
            continue
        for lanes in phases:
            words = np.where(active[rows][:, lanes], first_word[rows][:, lanes], -1)
            if rule.split_words:
                requests = [np.where(words < 0, -1, words + k) for k in range(words_per_lane)]
            else:
                wide = words[:, :, None] + np.where(words < 0, 0, 1)[:, :, None] * np.arange(words_per_lane)
                requests = [wide.reshape(len(rows), -1)]
            for request in requests:
                wavefronts, ideal = _count_phase(request, rule)
                out.wavefronts[start + rows] += wavefronts
                out.ideal[start + rows] += ideal
                out.phases[start + rows] += request.max(axis=1) >= 0


def _pairs_hold(address: IntArray, active: BoolArray) -> BoolArray:
    """Per instruction: does the whole-warp merge rule hold for l^1 or for l^2?"""
    lanes = np.arange(address.shape[1])
    holds = np.zeros(len(address), bool)
    for bit in (1, 2):
        partner = lanes ^ bit
        alike = ~active | ~active[:, partner] | (address == address[:, partner])
        holds |= alike.all(axis=1)
    return holds


def _count_phase(words: IntArray, rule: PhaseRule) -> tuple[IntArray, IntArray]:
    """Wavefronts and ideal of one phase; `words` has shape (rows, words), -1 where inactive."""
    rows, banks = len(words), rule.banks
    # Words of one aligned group of row_words that share a bank count as one (Kepler).
    unit = (
        words
        if rule.row_words == 1
        else np.where(words < 0, -1, words // rule.row_words * banks + words % banks)
    )
    unit = np.sort(unit, axis=1)
    real = unit >= 0
    distinct = real.copy()
    distinct[:, 1:] &= unit[:, 1:] != unit[:, :-1]
    served = real if rule.serialises_equal else distinct
    slot = np.arange(rows)[:, None] * banks + unit % banks
    load = np.bincount(slot.ravel(), weights=served.ravel(), minlength=rows * banks)
    busiest = load.reshape(rows, banks).max(axis=1).astype(np.int64)
    extra = np.where(busiest > 0, rule.extra_wavefronts, 0)
    return busiest + extra, -(-distinct.sum(axis=1) // banks) + extra
