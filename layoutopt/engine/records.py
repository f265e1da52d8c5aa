"""Raw address records, counted as they stream by: JSON lines and .npy tables.

A JSON line is one warp instruction:

    {"op": "ld.shared.v4.b32", "active": "0xffffffff", "byte_address": [0, 16, 32, ...]}

`byte_address` has one entry a lane; `active` is the mask of lanes that take part (all, if left
out), bit l for lane l; `bytes` is needed where the op does not say its width. Other fields are the
caller's own. A .npy table holds int64 byte addresses, shape (instructions, lanes), -1 where a lane
does not take part.

Memory stays flat whatever the length: lines are read a block at a time and counted grouped by op,
tables through a window on the file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.engine.conflicts import CHUNK_INSTRUCTIONS, addressing_lanes, count_wavefronts
from layoutopt.errors import ProblemFileError, VerificationError
from layoutopt.files import array_file
from layoutopt.ground import json_data
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.escape import shown
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation, parse_operation

BLOCK_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 1 << 20
WINDOW_INSTRUCTIONS: Final = 1 << 16


class Record(Struct, gc=False):
    """One line; the text of the module says what the fields mean."""

    op: str
    byte_address: list[int]
    active: str | int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """What consecutive records cost; arrays are int64, one entry a record, in the records' order.

    Attributes:
        ops: as spelled in the records.
        wavefronts: passes over the banks.
        ideal: passes if the words were spread evenly.
        bank_conflicts: the profiler's counter.
    """

    ops: list[str]
    wavefronts: IntArray
    ideal: IntArray
    bank_conflicts: IntArray


class Totals(Struct, rename={"schema_": "schema"}):
    """Sums over the warp instructions of one op."""

    schema_: str
    target: str
    op: str
    instructions: int = 0
    wavefronts: int = 0
    ideal: int = 0
    excess: int = 0
    bank_conflicts: int = 0

    def add(self, wavefronts: IntArray, ideal: IntArray, bank_conflicts: IntArray) -> None:
        """Add instructions, one entry of each int64 array for each."""
        self.instructions += len(wavefronts)
        self.wavefronts += int(wavefronts.sum())
        self.ideal += int(ideal.sum())
        self.excess = self.wavefronts - self.ideal
        self.bank_conflicts += int(bank_conflicts.sum())


def count_lines(read: Callable[[int], bytes], device: Device) -> Iterator[RecordCounts]:
    """Count JSON lines, a block at a time.

    Args:
        read: returns at most so many bytes, none at the end, as a binary file's `read`.
        device: whose rules to apply.

    Raises:
        ProblemFileError: a record is wrong; `field` is its line and field, such as
            `line 7, byte_address[3]`.
    """
    json_data.prepare(Record)
    decoder = msgspec.json.Decoder(Record)
    for first_line, block in _blocks(read):
        try:
            records = decoder.decode_lines(block)
            counts = _count_records(records, device)
        except (msgspec.MsgspecError, ValueError, RecursionError, _FaultyError):
            _raise_first_fault(block, first_line, decoder, device)
        yield counts


def count_table(path: Path, op: str, width_bytes: int | None, device: Device) -> Totals:
    """Count a .npy table of byte addresses.

    Args:
        path: the file; int64, shape (instructions, lanes), -1 for an inactive lane.
        op: the instruction, the same for all.
        width_bytes: bytes at each lane's address, where `op` does not say it.
        device: whose rules to apply.

    Raises:
        ProblemFileError: the op, the array's type or shape, or an address is wrong.
    """
    operation = _operation(op, width_bytes, device, "op")
    totals = Totals("layoutopt.count/1", device.name, op)
    instructions = len(_mapped(path, device))
    for start in range(0, instructions, WINDOW_INSTRUCTIONS):
        # Mapped anew for each window, so that the pages already counted do not stay in memory.
        window = _mapped(path, device)[start : start + WINDOW_INSTRUCTIONS]
        for step in range(0, len(window), CHUNK_INSTRUCTIONS):
            # Checked, then counted, while still in cache.
            address = np.ascontiguousarray(window[step : step + CHUNK_INSTRUCTIONS])
            active = address >= 0
            _check_table(address, active, operation, start + step)
            counts = count_wavefronts(address, active, operation, device)
            totals.add(counts.wavefronts, counts.ideal, counts.bank_conflicts)
    return totals


def _blocks(read: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Whole lines, about BLOCK_BYTES of them at a time, each with the number of its first line."""
    line, rest = 1, b""
    while data := read(BLOCK_BYTES):
        whole, newline, rest = (rest + data).rpartition(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            line += whole.count(b"\n") + len(newline)
            raise ProblemFileError(f"line {line}", f"a record has at most {MAX_LINE_BYTES} bytes")
        if newline:
            yield line, whole
            line += whole.count(b"\n") + 1
    if rest:
        yield line, rest


class _FaultyError(Exception):
    """Some record of a block is wrong."""


def _count_records(records: list[Record], device: Device) -> RecordCounts:
    groups: dict[tuple[str, int | None], list[int]] = {}
    for i, record in enumerate(records):
        groups.setdefault((record.op, record.bytes), []).append(i)
    out = RecordCounts([r.op for r in records], *(np.zeros(len(records), np.int64) for _ in range(3)))
    for (op, width_bytes), members in groups.items():
        try:
            operation = _operation(op, width_bytes, device, "op")
        except ProblemFileError:
            raise _FaultyError from None
        address, active = _arrays([records[i] for i in members], device.lanes)
        used = addressing_lanes(active, operation)
        low_bits = np.bitwise_or.reduce(np.where(used, address, 0), axis=None)
        if low_bits < 0 or low_bits & (alignment_bytes(operation) - 1):
            raise _FaultyError
        counts = count_wavefronts(address, active, operation, device)
        out.wavefronts[members] = counts.wavefronts
        out.ideal[members] = counts.ideal
        out.bank_conflicts[members] = counts.bank_conflicts
    return out


def alignment_bytes(operation: Operation) -> int:
    """What every address must be a multiple of: the width, or the power of two that divides it."""
    return operation.width_bytes & -operation.width_bytes


def _arrays(records: list[Record], lanes: int) -> tuple[IntArray, BoolArray]:
    if any(len(r.byte_address) != lanes for r in records):
        raise _FaultyError
    flat = itertools.chain.from_iterable(r.byte_address for r in records)
    try:
        address = np.fromiter(flat, np.int64, len(records) * lanes).reshape(-1, lanes)
        mask_of = {active: _mask(active, lanes) for active in {r.active for r in records}}
    except (OverflowError, ValueError):
        raise _FaultyError from None
    bits = np.array([mask_of[r.active] for r in records], "<u8").view(np.uint8).reshape(-1, 8)
    return address, np.unpackbits(bits, axis=1, bitorder="little")[:, :lanes].astype(bool)


def _mask(active: str | int | None, lanes: int) -> int:
    """The mask as a number.

    Raises:
        ValueError: it is none, or names lanes that the warp does not have.
    """
    if active is None:
        return (1 << lanes) - 1
    mask = int(active, 0) if isinstance(active, str) else active
    if not 0 <= mask < 1 << lanes:
        raise ValueError("more bits than lanes")
    return mask


def _operation(op: str, width_bytes: int | None, device: Device, field: str) -> Operation:
    try:
        operation = parse_operation(op, width_bytes)
    except ValueError as error:
        raise ProblemFileError(field, str(error)) from None
    try:
        device.rule(operation)
    except ProblemFileError as error:
        raise ProblemFileError(field, error.reason) from None
    return operation


def _raise_first_fault(
    block: bytes, first_line: int, decoder: msgspec.json.Decoder[Record], device: Device
) -> None:
    """Go through a block that holds a wrong record, line by line, and say what is wrong."""
    for number, line in enumerate(block.split(b"\n"), first_line):
        if not line.strip():
            continue
        place = f"line {number}"
        _check_record(json_data.line(line, decoder, number), place, device)
    raise VerificationError(f"lines {first_line} and on were refused, but each of them is accepted")


def _check_record(record: Record, place: str, device: Device) -> None:
    operation = _operation(record.op, record.bytes, device, f"{place}, op")
    lanes, given = device.lanes, len(record.byte_address)
    if given != lanes:
        raise ProblemFileError(
            f"{place}, byte_address", f"must have {lanes} entries, one a lane of {device.name}, not {given}"
        )
    try:
        mask = _mask(record.active, lanes)
    except ValueError:
        raise ProblemFileError(
            f"{place}, active",
            f"must be a mask of {lanes} lanes, such as {'0x' + 'f' * (lanes // 4)!r}, "
            f"not {shown(json.dumps(record.active))}",
        ) from None
    for lane, address in enumerate(record.byte_address):
        if not -1 << 63 <= address < 1 << 63:
            raise ProblemFileError(
                f"{place}, byte_address[{lane}]", f"must fit 64 bits, also where inactive; given {address}"
            )
    active = np.array([[mask >> lane & 1 for lane in range(lanes)]], bool)
    multiple = alignment_bytes(operation)
    for lane in np.flatnonzero(addressing_lanes(active, operation)[0]).tolist():
        address = record.byte_address[lane]
        if address < 0 or address % multiple:
            raise ProblemFileError(f"{place}, byte_address[{lane}]", _requirement(operation, address))


def _requirement(operation: Operation, address: int) -> str:
    multiple = alignment_bytes(operation)
    of = f", a multiple of {multiple}" if multiple > 1 else ""
    return f"must be at least 0{of}, for {operation.kind} of {operation.width_bytes} bytes, given {address}"


def _mapped(path: Path, device: Device) -> IntArray:
    shape, dtype = array_file.header(path)
    if dtype != np.int64:
        raise ProblemFileError("", f"{str(path)!r} must hold int64 byte addresses, not {dtype.str}")
    if len(shape) != 2 or shape[1] != device.lanes:
        raise ProblemFileError(
            "",
            f"{str(path)!r} must have shape (instructions, {device.lanes}), one column a lane of "
            f"{device.name}, not {array_file.shape_text(shape)}",
        )
    if not shape[0]:
        return np.zeros(shape, np.int64)
    table: IntArray = np.load(path, mmap_mode="r", allow_pickle=False)
    return table


def _check_table(address: IntArray, active: BoolArray, operation: Operation, first_row: int) -> None:
    multiple = alignment_bytes(operation)
    if address.min() >= 0 and not np.bitwise_or.reduce(address, axis=None) & (multiple - 1):
        return
    # The lanes that a matrix instruction takes addresses from need one, predicated off or not.
    used = addressing_lanes(active, operation)
    wrong = np.where(used, (address < 0) | (address % multiple != 0), address < -1)
    if wrong.any():
        row, lane = map(int, np.unravel_index(int(wrong.argmax()), wrong.shape))
        given = int(address[row, lane])
        hint = "; -1 marks an inactive lane" if given < 0 else ""
        raise ProblemFileError(f"row {first_row + row}, lane {lane}", _requirement(operation, given) + hint)
