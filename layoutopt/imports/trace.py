"""Recorded traces: the shared addresses that a running kernel issued, back to coordinates.

`imports/layoutopt_record.cuh`, included in a kernel, writes one JSON line for each warp instruction and site:

    {"access": "columns", "op": "ld.shared.b32", "warp": 0, "sequence": 0,
     "byte_address": [0, 132, ...], "active": "0xffffffff"}

which `layoutopt count` reads as well. With the layout in use each address is an element of the tile. The
`sequence`-th execution of a site by a warp is iteration `i` of its access.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct

from layoutopt.errors import ProblemFileError
from layoutopt.expressions.fit import fit_threads, guard
from layoutopt.expressions.grammar import to_text
from layoutopt.ground import json_data
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.hardware.operations import Operation, parse_operation

LANES: Final = 32
MAX_LINES: Final = 1 << 20
MAX_SITES: Final = 256  # accesses that a problem file may have


class Record(Struct):
    """One line."""

    access: str
    op: str
    warp: int
    sequence: Annotated[int, Meta(ge=0)]
    byte_address: list[Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]]
    active: str
    bytes: int | None = None


def accesses(
    lines: Iterable[bytes], table: IntArray, element_bytes: int, threads: int
) -> list[dict[str, Any]]:
    """The accesses of a problem, in the order in which they were first executed.

    Args:
        lines: the recorded JSON lines.
        table: int64, in the shape of the tile: byte offset of each element in the layout in use.
        element_bytes: of an element.
        threads: of the block.

    Raises:
        ProblemFileError: a line is no record, an address is no element, or the addresses of a site follow no
            formula.
    """
    sites: dict[str, list[tuple[int, Record]]] = {}
    json_data.prepare(Record)
    decoder = msgspec.json.Decoder(Record)
    for number, line in enumerate(lines, 1):
        if number > MAX_LINES:
            raise ProblemFileError(
                "", f"more than {MAX_LINES} records; record one block and fewer iterations"
            )
        if not line.strip():
            continue
        record = json_data.line(line, decoder, number)
        if len(record.byte_address) != LANES:
            raise ProblemFileError(
                f"line {number}", f"byte_address must have {LANES} entries, not {len(record.byte_address)}"
            )
        sites.setdefault(record.access, []).append((number, record))
        if len(sites) > MAX_SITES:
            raise ProblemFileError(
                f"line {number}, access", f"more than {MAX_SITES} sites; record those of one tile"
            )
    if not sites:
        raise ProblemFileError("", "no records")
    _check_trips(sites.values(), -(-threads // LANES))
    block = _Block(table, element_bytes, threads)
    return [block.access(name, records) for name, records in sites.items()]


def _check_trips(sites: Iterable[list[tuple[int, Record]]], warps: int) -> None:
    """Refuse iterations of so many warps that no recorded block has, most of them without a record."""
    total = 0
    for records in sites:
        number, last = max(records, key=lambda r: r[1].sequence)
        total += (last.sequence + 1) * warps
        if total > MAX_LINES:
            raise ProblemFileError(f"line {number}", f"sequence numbers reach {last.sequence}; too many")


def _mask(text: str, place: str) -> BoolArray:
    try:
        mask = int(text, 16)
    except ValueError:
        mask = -1
    if not 0 <= mask < 1 << LANES:
        raise ProblemFileError(f"{place}, active", f"expected a mask such as '0xffffffff', got {text[:40]!r}")
    return np.array([mask >> lane & 1 for lane in range(LANES)], bool)


class _Block:
    """The block that was recorded, and the layout in use: byte offsets in rising order, and whose."""

    def __init__(self, table: IntArray, element_bytes: int, threads: int) -> None:
        self.shape, self.element_bytes, self.threads = table.shape, element_bytes, threads
        self.offsets = np.sort(table, axis=None)
        self.elements: IntArray = np.argsort(table, axis=None).astype(np.int64)

    def access(self, name: str, records: list[tuple[int, Record]]) -> dict[str, Any]:
        """The access of one site."""
        op, width = records[0][1].op, records[0][1].bytes
        operation = parse_operation(op, width, f"line {records[0][0]}, op")
        warps, trips = -(-self.threads // LANES), max(record.sequence for _, record in records) + 1
        flat, active = np.zeros((trips, warps, LANES), np.int64), np.zeros((trips, warps, LANES), bool)
        for number, record in records:
            place = f"line {number}"
            if (record.op, record.bytes) != (op, width):
                raise ProblemFileError(
                    f"{place}, op", f"site {name!r} was {op!r} before and is {record.op!r} here"
                )
            if not 0 <= record.warp < warps:
                reason = f"warp {record.warp} is not in a block of {self.threads} threads"
                raise ProblemFileError(place, reason)
            mask, at = _mask(record.active, place), (record.sequence, record.warp)
            elements = self._at(np.array(record.byte_address, np.int64), mask, operation, place)
            if active[at].any():
                raise ProblemFileError(
                    place, f"warp {record.warp} has sequence {record.sequence} of {name!r} twice"
                )
            flat[at], active[at] = elements, mask
        by_thread = np.moveaxis(flat, 0, -1).reshape(-1, trips)[: self.threads]
        taking = np.moveaxis(active, 0, -1).reshape(-1, trips)[: self.threads]
        index, where = self._formulas(name, by_thread, taking, 8 * operation.matrices or LANES)
        return {
            "name": name,
            "op": op,
            **({"bytes": width} if width is not None else {}),
            "index": index,
            **({"for": {"i": trips}} if trips > 1 else {}),
            **({"where": where} if where is not None else {}),
        }

    def _at(self, addresses: IntArray, mask: BoolArray, operation: Operation, place: str) -> IntArray:
        """The row-major index of the element at each active address."""
        at = np.minimum(np.searchsorted(self.offsets, addresses), len(self.offsets) - 1)
        used = mask & (np.arange(LANES) < 8 * operation.matrices) if operation.matrices else mask
        wrong = used & (self.offsets[at] != addresses)
        if wrong.any():
            lane, size = int(wrong.argmax()), self.element_bytes
            raise ProblemFileError(
                f"{place}, byte_address[{lane}]",
                f"byte {int(addresses[lane])} is where no {size}-byte element of the layout begins",
            )
        return np.where(used, self.elements[at], 0)

    def _formulas(
        self, name: str, elements: IntArray, taking: BoolArray, addressed: int
    ) -> tuple[list[str], str | None]:
        """Coordinates of what threads touch, and which take part; arrays of shape (threads, iterations)."""
        known = taking & (np.arange(len(taking)) % LANES < addressed)[:, None]
        if not known.any():
            raise ProblemFileError("", f"no lane with an address takes part in {name!r}")
        where = None if taking.all() else guard(taking, LANES)
        if where is None and not taking.all():
            raise ProblemFileError("", f"no formula says which threads take part in {name!r}")
        index = []
        for coordinate in np.unravel_index(elements, self.shape):
            node = fit_threads(np.asarray(coordinate, np.int64), LANES, known, addressed)
            if node is None:
                raise ProblemFileError(
                    "",
                    f"the addresses of {name!r} are none of the formulas that are tried: sums and XORs of "
                    "digits of tid, lane, warp, i and tid + T*i, and remainders of sums; `layoutopt count` "
                    "counts them as they are",
                )
            index.append(to_text(node))
        return index, None if where is None else to_text(where)
