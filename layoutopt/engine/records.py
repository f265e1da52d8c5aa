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

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.engine.conflicts import CHUNK_INSTRUCTIONS, Counts, addressing_lanes, count_wavefronts
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

    def add(self, counts: Counts, rows: slice | list[int] = slice(None)) -> None:
        """Add instructions, all that were counted or some of them."""
        self.instructions += len(counts.wavefronts[rows])
        self.wavefronts += int(counts.wavefronts[rows].sum())
        self.ideal += int(counts.ideal[rows].sum())
        self.excess = self.wavefronts - self.ideal
        self.bank_conflicts += int(counts.bank_conflicts[rows].sum())


def count_lines(read: Callable[[int], bytes], device: Device) -> Iterator[tuple[list[str], Counts]]:
    """Count JSON lines, a block at a time: what they call their ops, and what each costs.

    Args:
        read: returns at most so many bytes, none at the end, as a binary file's `read`.

    Raises:
        ProblemFileError: a record is wrong; `field` is its line and field, such as
            `line 7, byte_address[3]`.
    """
    json_data.prepare(Record)
    decoder = msgspec.json.Decoder(Record)
    for first_line, block in _blocks(read):
        try:
            records = decoder.decode_lines(block)
            counts = _counted(records, device)
        except (msgspec.MsgspecError, ValueError, RecursionError, ProblemFileError):
            _raise_first_fault(block, first_line, decoder, device)
        yield [record.op for record in records], counts


def count_table(path: Path, op: str, width_bytes: int | None, device: Device) -> Totals:
    """Count a .npy table of byte addresses.

    Args:
        path: the file; int64, shape (instructions, lanes), -1 for an inactive lane.
        op: the instruction, the same for all.
        width_bytes: bytes at each lane's address, where `op` does not say it.

    Raises:
        ProblemFileError: the op, the array's type or shape, or an address is wrong.
    """
    operation = _operation(op, width_bytes, device)
    totals = Totals(schema_="layoutopt.count/1", target=device.name, op=op)
    instructions = len(_mapped(path, device))
    for start in range(0, instructions, WINDOW_INSTRUCTIONS):
        # Mapped anew for each window, so that the pages already counted do not stay in memory.
        window = _mapped(path, device)[start : start + WINDOW_INSTRUCTIONS]
        for step in range(0, len(window), CHUNK_INSTRUCTIONS):
            # Checked, then counted, while still in cache.
            address = np.ascontiguousarray(window[step : step + CHUNK_INSTRUCTIONS])
            active = address != -1
            if (fault := _first_fault(address, active, operation)) is not None:
                row, lane, reason = fault
                hint = "; -1 marks an inactive lane" if address[row, lane] < 0 else ""
                raise ProblemFileError(f"row {start + step + row}, lane {lane}", reason + hint)
            totals.add(count_wavefronts(address, active, operation, device.rule(operation)))
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


def _counted(records: list[Record], device: Device) -> Counts:
    """Wavefronts, ideal and phases of each record; an error does not name the record's line."""
    by_op: dict[tuple[str, int | None], list[int]] = {}
    for i, record in enumerate(records):
        by_op.setdefault((record.op, record.bytes), []).append(i)
    out = Counts(*(np.zeros(len(records), np.int64) for _ in range(3)))
    for (op, width_bytes), rows in by_op.items():
        operation = _operation(op, width_bytes, device)
        address, active = _arrays([records[i] for i in rows], device)
        if (fault := _first_fault(address, active, operation)) is not None:
            _, lane, reason = fault
            raise ProblemFileError(f"byte_address[{lane}]", reason)
        counts = count_wavefronts(address, active, operation, device.rule(operation))
        out.wavefronts[rows], out.ideal[rows] = counts.wavefronts, counts.ideal
        out.phases[rows] = counts.phases
    return out


def _arrays(records: list[Record], device: Device) -> tuple[IntArray, BoolArray]:
    """Addresses and active lanes, shape (records, lanes)."""
    lanes = device.lanes
    for record in records:
        if (given := len(record.byte_address)) != lanes:
            required = f"must have {lanes} entries, one a lane of {device.name}"
            raise ProblemFileError("byte_address", f"{required}, not {given}")
    mask_of = {active: _mask(active, lanes) for active in {r.active for r in records}}
    bits = np.array([mask_of[r.active] for r in records], "<u8").view(np.uint8).reshape(-1, 8)
    flat = [address for record in records for address in record.byte_address]
    try:
        address = np.array(flat, np.int64).reshape(-1, lanes)
    except OverflowError:
        at = next(k for k, address in enumerate(flat) if not -1 << 63 <= address < 1 << 63)
        raise ProblemFileError(
            f"byte_address[{at % lanes}]", f"must fit 64 bits, also where inactive; given {flat[at]}"
        ) from None
    return address, np.unpackbits(bits, axis=1, bitorder="little")[:, :lanes].astype(bool)


def _mask(active: str | int | None, lanes: int) -> int:
    """The mask of a record's active lanes as a number, bit l for lane l; all where it is left out."""
    if active is None:
        return (1 << lanes) - 1
    mask = -1  # is none
    with contextlib.suppress(ValueError):
        mask = int(active, 0) if isinstance(active, str) else active
    if not 0 <= mask < 1 << lanes:
        raise ProblemFileError(
            "active",
            f"must be a mask of {lanes} lanes, such as {'0x' + 'f' * (lanes // 4)!r}, "
            f"not {shown(json.dumps(active))}",
        )
    return mask


def _operation(op: str, width_bytes: int | None, device: Device) -> Operation:
    operation = parse_operation(op, width_bytes)
    device.rule(operation, "op")
    return operation


def _raise_first_fault(
    block: bytes, first_line: int, decoder: msgspec.json.Decoder[Record], device: Device
) -> NoReturn:
    """Go through a block that holds a wrong record, line by line, and say what is wrong."""
    for number, line in enumerate(block.split(b"\n"), first_line):
        if line.strip():
            record = json_data.line(line, decoder, number)
            try:
                _counted([record], device)
            except ProblemFileError as error:
                raise ProblemFileError(f"line {number}, {error.field}", error.reason) from None
    raise VerificationError(f"lines {first_line} and on were refused, but each of them is accepted")


def _first_fault(address: IntArray, active: BoolArray, operation: Operation) -> tuple[int, int, str] | None:
    """Row and lane of the first address that the operation cannot take, and why not; None for none.

    Arrays are as for `count_wavefronts`. The lanes that a matrix instruction takes addresses from need one,
    predicated off or not.
    """
    # The width, or the power of two that divides it.
    multiple = operation.width_bytes & -operation.width_bytes
    used = np.where(addressing_lanes(active, operation), address, 0)
    any_bits = np.bitwise_or.reduce(used, axis=None)  # of one that is negative, the sign, too
    if any_bits >= 0 and not any_bits & (multiple - 1):
        return None
    row, lane = np.argwhere((used < 0) | (used % multiple != 0))[0].tolist()
    of = f", a multiple of {multiple}" if multiple > 1 else ""
    kind, width = operation.kind, operation.width_bytes
    given = address[row, lane]
    return row, lane, f"must be at least 0{of}, for {kind} of {width} bytes, given {given}"


def _mapped(path: Path, device: Device) -> IntArray:
    """A .npy table of addresses, mapped into memory; its type and shape (instructions, lanes) are checked."""
    table = array_file.opened(path)
    if table.dtype != np.int64:
        raise ProblemFileError("", f"{str(path)!r} must hold int64 byte addresses, not {table.dtype.str}")
    if table.ndim != 2 or table.shape[1] != device.lanes:
        raise ProblemFileError(
            "",
            f"{str(path)!r} must have shape (instructions, {device.lanes}), one column a lane of "
            f"{device.name}, not {array_file.shape_text(table.shape)}",
        )
    return table
