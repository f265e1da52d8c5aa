"""Recorded traces: the shared addresses that a running kernel issued, back to coordinates.

`imports/layoutopt_record.cuh`, included in a kernel, writes one JSON line for each warp instruction and site:

    {"access": "columns", "op": "ld.shared.b32", "warp": 0, "sequence": 0,
     "byte_address": [0, 132, ...], "active": "0xffffffff"}

which `layoutopt count` reads as well. With the layout in use each address is an element of the tile. The
`sequence`-th execution of a site by a warp is iteration `i` of its access.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct

from layoutopt.accesses.ownership import index_fields_by_warp
from layoutopt.errors import ProblemFileError
from layoutopt.ground import json_data
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.hardware.operations import parse_operation

LANES: Final = 32
MAX_LINES: Final = 1 << 20
MAX_SITES: Final = 256  # accesses that a problem file may have


_Address = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Record(Struct):
    """One line."""

    access: str
    op: str
    warp: Annotated[int, Meta(ge=0)]
    sequence: Annotated[int, Meta(ge=0)]
    byte_address: Annotated[list[_Address], Meta(min_length=LANES, max_length=LANES)]
    active: Annotated[str, Meta(pattern=r"^(0x)?[0-9a-fA-F]{1,8}$")]
    bytes: int | None = None


Site = list[tuple[int, Record]]
"""The records of one place in the source, with their lines."""


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
            formula and are too many for a table.
    """
    sites: dict[str, Site] = {}
    json_data.prepare(Record)
    decoder = msgspec.json.Decoder(Record)
    warps, trips = -(-threads // LANES), 0
    longest: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if number > MAX_LINES:
            wrong = f"more than {MAX_LINES} records; record one block and fewer iterations"
            raise ProblemFileError("", wrong)
        if not line.strip():
            continue
        record = json_data.line(line, decoder, number)
        site = sites.setdefault(record.access, [])
        if len(sites) > MAX_SITES:
            wrong = f"more than {MAX_SITES} sites; record those of one tile"
            raise ProblemFileError(f"line {number}, access", wrong)
        before = longest.get(record.access, 0)
        longest[record.access] = max(before, record.sequence + 1)
        trips += longest[record.access] - before
        # No block has iterations of so many warps most of which have no record.
        if trips * warps > MAX_LINES:
            raise ProblemFileError(f"line {number}", f"sequence numbers reach {record.sequence}; too many")
        site.append((number, record))
    if not sites:
        raise ProblemFileError("", "no records")
    block = _Block(table, element_bytes, threads)
    return [block.access(name, records) for name, records in sites.items()]


class _Block:
    """The block that was recorded, and the layout in use: byte offsets in rising order, and whose."""

    def __init__(self, table: IntArray, element_bytes: int, threads: int) -> None:
        self.shape, self.element_bytes, self.threads = table.shape, element_bytes, threads
        self.offsets = np.sort(table, axis=None)
        self.elements: IntArray = np.argsort(table, axis=None).astype(np.int64)

    def access(self, name: str, records: Site) -> dict[str, Any]:
        """The access of one site."""
        op, width = records[0][1].op, records[0][1].bytes
        operation = parse_operation(op, width, f"line {records[0][0]}, op")
        addressed = operation.address_lanes(LANES)
        warps, trips = -(-self.threads // LANES), 1 + max(record.sequence for _, record in records)
        starts, active = np.full((trips, warps, LANES), -1), np.zeros((trips, warps, LANES), bool)
        for number, record in records:
            place, at = f"line {number}", (record.sequence, record.warp)
            if (record.op, record.bytes) != (op, width):
                wrong = f"site {name!r} was {op!r} before and is {record.op!r} here"
                raise ProblemFileError(f"{place}, op", wrong)
            if record.warp >= warps:
                wrong = f"warp {record.warp} is not in a block of {self.threads} threads"
                raise ProblemFileError(place, wrong)
            if active[at].any():
                wrong = f"warp {record.warp} has sequence {record.sequence} of {name!r} twice"
                raise ProblemFileError(place, wrong)
            active[at] = int(record.active, 16) >> np.arange(LANES) & 1
            starts[at] = self._at(record, active[at] & (np.arange(LANES) < addressed), place)
        fields = (f"the addresses of {name!r}", f"the lanes of {name!r}")
        index = index_fields_by_warp(starts, active, self.shape, self.threads, addressed, fields)
        return {"name": name, "op": op} | ({} if width is None else {"bytes": width}) | index

    def _at(self, record: Record, used: BoolArray, place: str) -> IntArray:
        """The row-major index of the element at each address that is used; -1 for others."""
        addresses = np.array(record.byte_address, np.int64)
        at = np.minimum(np.searchsorted(self.offsets, addresses), len(self.offsets) - 1)
        wrong = used & (self.offsets[at] != addresses)
        if wrong.any():
            lane, size = int(wrong.argmax()), self.element_bytes
            raise ProblemFileError(
                f"{place}, byte_address[{lane}]",
                f"byte {int(addresses[lane])} is where no {size}-byte element of the layout begins",
            )
        return np.where(used, self.elements[at], -1)
