"""The conflict engine: wavefronts of finished byte addresses, lane by lane.

It knows nothing of layouts, problems or the solver. It is given the byte address of every lane of
every warp instruction, and counts what the hardware rule of `layoutopt.hardware.devices` says. It is the
judge of everything the rest of the package proposes, so it shares no code with the model.

How it counts. Each word that a lane touches becomes one integer, its **key**, whose fields are,
from the top:

    phase | idle | bank | the word's row in that bank

Sorting the keys of a warp instruction gathers each phase, in it each bank, in it each word; lanes
that do not take part (idle) end up last in their phase. The XOR of neighbouring keys then says
which fields differ: less than one row of banks means the same bank, zero means the same word. The
longest run of one bank, counting distinct words, is what the phase costs.

Eight lanes on four banks, lanes 0-3 and 4-7 a phase each, words 0 4 1 0 | 2 3 6 7:

    bank.row sorted    0.0 0.0 0.1 1.0 | 2.0 2.1 3.0 3.1
    same bank            1   1   0     |   1   0   1
    another word         0   1   1     |   1   1   1
    longest run              2         |       2          two wavefronts each

Rows all have one length, so whole batches are worked on as one flat array: every step but the sort
is a handful of vectorised passes over contiguous memory, whatever the number of lanes in a phase.
"""

from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.hardware.devices import PhaseRule
from layoutopt.hardware.operations import Operation

UIntArray = npt.NDArray[Any]

# Rows handled at a time: 4,096 instructions x 32 lanes x 4-byte keys take half of a 1 MiB cache, and
# the fixed cost of the vectorised passes is small beside their work.
CHUNK_INSTRUCTIONS: Final = 4096


class Counts(Struct, frozen=True):
    """What each warp instruction costs; three int64 arrays of shape (instructions,)."""

    wavefronts: IntArray  # passes over the banks
    ideal: IntArray  # passes if each phase's words were spread evenly over the banks
    # Phases with an active lane; `wavefronts - phases` is what the profiler's counter
    # `l1tex__data_bank_conflicts_pipe_lsu_mem_shared` shows
    phases: IntArray

    @property
    def excess(self) -> IntArray:
        """Wavefronts beyond the ideal."""
        return self.wavefronts - self.ideal

    @property
    def bank_conflicts(self) -> IntArray:
        """The profiler's bank-conflict counter, per instruction."""
        return self.wavefronts - self.phases


def count_wavefronts(
    byte_address: IntArray, active: BoolArray, operation: Operation, rule: PhaseRule
) -> Counts:
    """Wavefronts, ideal and occupied phases of warp instructions.

    Args:
        byte_address: int64, shape (instructions, lanes): shared-memory address of each lane, not
            negative, a multiple of the access width. Ignored where inactive.
        active: bool, same shape.
        operation: the instruction, the same for all rows.
        rule: how the device serves it.

    Raises:
        ValueError: the arrays do not have one column per lane.
    """
    lanes = sum(map(len, rule.phases))
    if byte_address.ndim != 2 or byte_address.shape[1] != lanes or active.shape != byte_address.shape:
        raise ValueError(f"expected shape (instructions, {lanes}), got {byte_address.shape}")
    instructions = len(byte_address)
    if instructions >= CHUNK_INSTRUCTIONS:
        _keep_freed_memory()
    out = Counts(*(np.zeros(instructions, np.int64) for _ in range(3)))
    for start in range(0, instructions, CHUNK_INSTRUCTIONS):
        rows = slice(start, start + CHUNK_INSTRUCTIONS)
        taking_part = addressing_lanes(active[rows], operation)
        address = np.ascontiguousarray(byte_address[rows])
        counts = _count_chunk(address, taking_part, operation.width_bytes, rule)
        out.wavefronts[rows], out.ideal[rows], out.phases[rows] = counts
    return out


@cache
def _keep_freed_memory() -> None:
    """Free one large block, untouched, before the first long count.

    The arrays of a chunk are of a size that glibc hands back to the system at every free, until it
    has seen a larger block freed; faulting their pages in again costs twice what counting does.
    """
    np.empty(1 << 24, np.uint8)


def addressing_lanes(active: BoolArray, operation: Operation) -> BoolArray:
    """Which lanes' addresses the instruction uses; shapes (instructions, lanes).

    A matrix instruction uses the addresses of its first 8 * matrices lanes, predicated off or not
    (measured), unless the whole warp is.
    """
    if not operation.matrices:
        return active
    matrix_rows = np.arange(active.shape[1]) < 8 * operation.matrices
    return active.any(axis=1, keepdims=True) & matrix_rows


def _count_chunk(
    address: IntArray, active: BoolArray, width_bytes: int, rule: PhaseRule
) -> tuple[IntArray, IntArray, IntArray]:
    """Wavefronts, ideal and occupied phases of each instruction, three arrays of shape (instructions,).

    Words, or aligned vectors of words, are counted by `_count_units`; accesses whose words are requests of
    their own, request by request. `address` and `active` have shape (instructions, lanes).
    """
    idle = None if active.all() else ~active
    words_per_lane = max(1, width_bytes // rule.bank_bytes)
    merged = _pairs_agree(address, idle) if rule.merges_pairs else None  # instructions whose phases merge
    if merged is not None and not merged.any():
        merged = None
    if rule.split_words or words_per_lane == 1:
        words = _units(address, rule.bank_bytes)
        if rule.row_words > 1:
            # Words of one aligned group of row_words that share a bank count as one (Kepler): the number that
            # stands for them all has the group as its row, and keeps the bank.
            group_bits = rule.row_words.bit_length() - 1
            words = (words >> group_bits) * rule.banks + (words & (rule.banks - 1))
        requests = [_count_units(words + k, idle, merged, rule.banks, rule) for k in range(words_per_lane)]
        wavefronts, ideal, phases = (sum(counts) for counts in zip(*requests, strict=True))
        return wavefronts, ideal, phases
    if rule.banks % words_per_lane == 0 and _all_aligned(address, idle, words_per_lane * rule.bank_bytes):
        # Aligned vectors of w words meet in all of their banks or in none, so that they behave like
        # single words on banks / w banks.
        vectors = _units(address, words_per_lane * rule.bank_bytes)
        return _count_units(vectors, idle, merged, rule.banks // words_per_lane, rule)
    # Vectors that are not aligned: each word of a lane takes a slot of its own, in one request.
    words = _units(address, rule.bank_bytes)
    words = (words[:, :, None] + np.arange(words_per_lane, dtype=words.dtype)).reshape(len(words), -1)
    idle = None if idle is None else idle.repeat(words_per_lane, axis=1)
    return _count_units(words, idle, merged, rule.banks, rule)


def _units(address: IntArray, unit_bytes: int) -> UIntArray:
    """Address divided by a power of two, as uint32 where that holds them all, else uint64."""
    shift = unit_bytes.bit_length() - 1
    if address.size and address.max() >= 1 << 32:
        return (address >> shift).astype(np.uint64)
    return address.astype(np.uint32) >> np.uint32(shift)


def _all_aligned(address: IntArray, idle: BoolArray | None, width_bytes: int) -> bool:
    """Whether every address in use is a multiple of `width_bytes`, and that is a power of two."""
    if width_bytes & (width_bytes - 1):
        return False
    used = address if idle is None else np.where(idle, 0, address)
    return not int(np.bitwise_or.reduce(used, axis=None)) & (width_bytes - 1)


def _pairs_agree(address: IntArray, idle: BoolArray | None) -> BoolArray:
    """Whether all active lanes l and l^1 of a row, or all l and l^2, have one address; shape (rows,)."""
    rows, lanes = address.shape
    flat = address.ravel()
    agree = np.zeros(rows, bool)
    for bit in (1, 2):
        differ = np.zeros(flat.size, bool)  # by flat lane l: whether l and l + bit are active and differ
        np.not_equal(flat[:-bit], flat[bit:], out=differ[:-bit])
        if idle is not None:
            differ &= ~idle.ravel()
            differ[:-bit] &= ~idle.ravel()[bit:]
        # Each pair once, from its lower lane; eight lanes, of a byte each, at a time: so many divide a warp.
        lower_lanes = np.tile(np.arange(2 * bit) < bit, 4 // bit).view(np.uint64)
        eights = differ.view(np.uint64) & lower_lanes
        agree |= _over_groups(np.bitwise_or, eights, lanes // 8) == 0
    return agree


def _count_units(
    unit: UIntArray, idle: BoolArray | None, merged: BoolArray | None, banks: int, rule: PhaseRule
) -> tuple[IntArray, IntArray, IntArray]:
    """Wavefronts, ideal and occupied phases of each instruction, from sorted keys.

    Args:
        unit: uint32 or uint64, shape (instructions, slots): number of the word, or vector, in memory. Slots
            are the lanes, or the words of each lane in turn.
        idle: bool, same shape; None where every slot is in use.
        merged: bool, shape (instructions,): those whose phases are served in pairs; None for none.
        banks: banks of such units, a power of two; unit u lies in bank u % banks.
        rule: the phases, and how to count.
    """
    instructions, slots = unit.shape
    slots_per_phase = slots // len(rule.phases)
    keys = _sorted_keys(unit, idle, merged, banks, rule)
    flat = keys.sorted.ravel()
    differ = np.empty_like(flat)  # each key ^ the one before it: the fields in which they differ
    np.bitwise_xor(flat[1:], flat[:-1], out=differ[1:])
    differ[::slots] = ~differ.dtype.type(0)  # an instruction's first key has nothing before it
    another_unit = differ != 0
    same_bank = differ < differ.dtype.type(1 << keys.row_bits)  # the fields above the row are equal

    def in_use(where: BoolArray) -> BoolArray:
        return where if idle is None else where & ((flat & keys.idle_bit) == 0)

    # Beyond the first of its bank, what takes a pass of its own. The idle slots of a phase have one key.
    takes_pass = in_use(same_bank) if rule.serialises_equal else same_bank & another_unit
    so_far = _runs(same_bank, takes_pass)  # by slot: passes of its bank up to there, but the first
    more_passes = _over_groups(np.maximum, so_far, slots_per_phase).reshape(instructions, -1)  # by phase
    occupied = (keys.sorted[:, ::slots_per_phase] & keys.idle_bit) == 0  # idle slots come last

    distinct = None  # units of a phase, needed only where they may be more than banks
    if slots_per_phase * (1 if merged is None else 2) > banks:
        firsts = in_use(another_unit).astype(np.uint16)
        distinct = _over_groups(np.add, firsts, slots_per_phase).reshape(instructions, -1)
    # The keys of a pair of phases are sorted together, and take up the places of both: what either half
    # holds is counted in the first.
    if merged is not None:
        in_pairs = merged[:, None]
        second = np.where(in_pairs, more_passes[:, 1::2], 0)
        more_passes[:, ::2] = np.maximum(more_passes[:, ::2], second)
        if distinct is not None:
            distinct[:, ::2] += np.where(in_pairs, distinct[:, 1::2], 0)
        occupied[:, 1::2] &= ~in_pairs
    phases = _sum_phases(occupied.astype(np.uint16))
    wavefronts = _sum_phases((more_passes + np.uint16(1 + rule.extra_wavefronts)) * occupied)
    if distinct is None:
        return wavefronts, phases * (1 + rule.extra_wavefronts), phases
    even = (distinct + np.uint16(banks - 1)) // banks + np.uint16(rule.extra_wavefronts)
    return wavefronts, _sum_phases(even * occupied), phases


class _Keys(NamedTuple):
    """An integer for each slot, of the fields phase, idle, bank and row in the bank, from the top."""

    sorted: UIntArray  # shape (instructions, slots), rising in each instruction
    row_bits: int  # of the lowest field, all that the others leave
    idle_bit: np.unsignedinteger[Any]  # the field `idle`, as a mask; bank and row are then 0


def _sorted_keys(
    unit: UIntArray, idle: BoolArray | None, merged: BoolArray | None, banks: int, rule: PhaseRule
) -> _Keys:
    """The keys of units, in each instruction by phase, then bank, then row; what is idle last in its phase.

    Arguments as for `_count_units`; keys are uint32 where all fields fit, else uint64.
    """
    phases, bank_bits = len(rule.phases), banks.bit_length() - 1
    upper_bits = bank_bits + 1 + (phases - 1).bit_length()  # of bank, idle and phase
    used = unit if idle is None else np.where(idle, 0, unit)
    if unit.itemsize == 4 and unit.size and int(used.max()) >> bank_bits >> (32 - upper_bits):
        unit = unit.astype(np.uint64)
    number = unit.dtype.type
    row_bits = 8 * unit.itemsize - upper_bits
    keys = unit & number(banks - 1)
    keys <<= number(row_bits)
    keys |= unit >> number(bank_bits)
    idle_bit = number(1 << (row_bits + bank_bits))
    if idle is not None:
        np.copyto(keys, idle_bit, where=idle)
    if phases > 1:
        phase_of = np.empty(sum(map(len, rule.phases)), unit.dtype)  # by lane, then by slot
        for p, lanes in enumerate(rule.phases):
            phase_of[list(lanes)] = p
        phase_of = phase_of.repeat(unit.shape[1] // len(phase_of))
        if merged is not None:  # phases 0 and 1 become 0, 2 and 3 become 1
            phase_of = np.where(merged[:, None], phase_of >> number(1), phase_of)
        keys |= phase_of << number(row_bits + bank_bits + 1)
    keys.sort(axis=1)
    return _Keys(keys, row_bits, idle_bit)


def _runs(same: BoolArray, costs: BoolArray) -> npt.NDArray[np.uint8]:
    """Per position: how many `costs` the unbroken stretch of `same` that ends there has; flat arrays."""
    total = costs.astype(np.uint8)  # at most 255: 64 lanes of 4 words, of which the first costs nothing
    linked = -same.view(np.uint8)  # 0xff or 0
    reach = 1
    while reach < len(total) and linked.any():
        # total covers the last `reach` positions; linked says that none of them breaks the stretch.
        total[reach:] += linked[reach:] & total[:-reach]
        linked[reach:] &= linked[:-reach]
        reach *= 2
    return total


def _sum_phases(per_phase: npt.NDArray[np.uint16]) -> IntArray:
    return _over_groups(np.add, per_phase.ravel(), per_phase.shape[1]).astype(np.int64)


def _over_groups(combine: np.ufunc, flat: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Combine each `size` consecutive entries of a flat array into one.

    For powers of two by sliding windows over everything: several times as fast as `reduce`, whose
    inner loop is only `size` long.
    """
    if size & (size - 1):
        reduced: npt.NDArray[Any] = combine.reduce(flat.reshape(-1, size), axis=1)
        return reduced
    reach = 1
    while reach < size:
        flat = combine(flat[:-reach], flat[reach:])
        reach *= 2
    return flat[::size]
