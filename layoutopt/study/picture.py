"""The banks under one warp instruction, as plain data that every format draws.

Columns are banks, lines are one word of every bank (128 bytes on most GPUs). A cell holds what stands
in that word: the element's coordinates, and, where the instruction touches it, the lanes, the phase and
the wavefront that serves it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct

from layoutopt.accesses.trace import LaneTrace, instruction_at
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.engine.witness import Served, serve
from layoutopt.errors import LayoutError, VerificationError
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device
from layoutopt.problems.types import Problem

MAX_BYTES = 1 << 24
"""A picture has a line for every row of banks in the layout; nobody reads more."""
MAX_LINES = 1 << 18
MOST_WHOLE_LINES = 1 << 10
"""Of a picture; beyond, only lines that are touched say what stands in them."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A layout to draw: its name, its formula in elements (may be empty), and byte offsets.

    The offsets are those of elements by row-major index, of packed elements those of their bytes.
    """

    name: str
    offset: str
    table: IntArray

    def cost(self, problem: Problem, gpu: Device, access: LaneTrace) -> Cost:
        """What a whole access costs under it."""
        counts = count_wavefronts(self.table[access.element], access.active, access.operation, gpu)
        size = int(self.table.max()) + problem.tile.storage.element_bytes
        return Cost(self.name, self.offset, size, int(counts.wavefronts.sum()), int(counts.ideal.sum()))


class Cost(Struct, frozen=True):
    """What a whole access costs under a layout, and the bytes of the layout."""

    name: str
    offset: str
    bytes: int
    wavefronts: int
    ideal: int


class Instruction(Struct, frozen=True):
    """One warp instruction of a trace.

    Attributes:
        access: number of the access.
        row: number of the instruction in the access's trace.
        warp: the warp.
        iteration: loop variables and their values.
    """

    access: int
    row: int
    warp: int
    iteration: dict[str, int]


class Cell(Struct, frozen=True):
    """One word.

    Attributes:
        coordinates: of the first element in the word; None in a pad.
        lanes: active lanes that touch the word, ascending.
        phase: number of the phase (or request) that serves them; -1 where untouched.
        wavefront: which of the phase's wavefronts serves it, from 0.
        waits: served by another wavefront than the phase's first.
    """

    coordinates: tuple[int, ...] | None
    lanes: tuple[int, ...] = ()
    phase: int = -1
    wavefront: int = 0

    @property
    def waits(self) -> bool:
        """Whether an earlier wavefront of the same phase served another word of the bank."""
        return self.wavefront > 0


class Line(Struct, frozen=True):
    """One word of every bank, from `byte_offset` on.

    Where there are more than MOST_WHOLE_LINES of them, the cells of those that are not touched are empty.
    """

    byte_offset: int
    cells: tuple[Cell, ...]
    touched: bool


class Meeting(Struct, frozen=True):
    """The busiest bank of the worst phase: which lanes meet there, at which coordinates, in which words."""

    phase: int
    lanes_served: int
    bank: int
    wavefronts: int
    lanes: tuple[int, ...]
    coordinates: tuple[tuple[int, ...], ...]
    words: tuple[int, ...]


class Picture(Struct, frozen=True):
    """One warp instruction under one layout.

    Attributes:
        layout: what the layout is called.
        offset: its formula; may be empty.
        bytes: what it takes.
        lines: every line of the tile.
        phases: what serves what.
        wavefronts, ideal: of this instruction.
        bank_bytes: of a word.
        meeting: the worst conflict; None without conflicts.
    """

    layout: str
    offset: str
    bytes: int
    lines: tuple[Line, ...]
    phases: tuple[Served, ...]
    wavefronts: int
    ideal: int
    bank_bytes: int
    meeting: Meeting | None

    @property
    def excess(self) -> int:
        """Wavefronts that an even spread over the banks would save."""
        return self.wavefronts - self.ideal

    @property
    def banks(self) -> int:
        """Number of banks."""
        return len(self.lines[0].cells)


def instruction(problem: Problem, access: int, row: int, lanes: int) -> Instruction:
    """Warp and loop variables of instruction `row` of an access."""
    warp, iteration = instruction_at(problem.accesses[access], row, -(-problem.threads // lanes))
    return Instruction(access, row, warp, iteration)


def instruction_text(problem: Problem, chosen: Instruction) -> str:
    """`name, warp w, i = 3`."""
    loops = "".join(f", {name} = {value}" for name, value in chosen.iteration.items())
    return f"{problem.accesses[chosen.access].name}, warp {chosen.warp}{loops}"


def picture(problem: Problem, gpu: Device, access: LaneTrace, row: int, shown: Shown) -> Picture:
    """Draw instruction `row` of `access` under a layout.

    Raises:
        LayoutError: the layout takes more than MAX_BYTES, or MAX_LINES rows of banks.
        VerificationError: this module and the conflict engine count differently.
    """
    table = shown.table
    size = int(table.max()) + problem.tile.storage.element_bytes
    if size > MAX_BYTES:
        raise LayoutError(f"the layout takes {size:,} bytes; a picture shows {MAX_BYTES:,} at most")
    rule = gpu.rule(access.operation)
    if size > MAX_LINES * rule.banks * rule.bank_bytes:
        raise LayoutError(
            f"the layout takes more than {MAX_LINES:,} rows of banks, the most that a picture shows"
        )
    address, active = table[access.element[row : row + 1]], access.active[row : row + 1]
    phases = serve(address[0].tolist(), active[0].tolist(), access.operation, gpu)
    counts = count_wavefronts(address, active, access.operation, gpu)
    wavefronts, ideal = int(counts.wavefronts[0]), int(counts.ideal[0])
    mine = sum(len(p.passes) + p.idle_passes for p in phases)
    if mine != wavefronts:
        raise VerificationError(
            f"{access.name}: the picture serves {mine} wavefronts, the engine counts {wavefronts}"
        )
    lines = _lines(problem, table, size, phases, rule.banks, rule.bank_bytes)
    meeting = _meeting(problem, access.element[row], phases) if mine > ideal else None
    return Picture(shown.name, shown.offset, size, lines, phases, mine, ideal, rule.bank_bytes, meeting)


def _lines(
    problem: Problem, table: IntArray, size: int, phases: tuple[Served, ...], banks: int, bank_bytes: int
) -> tuple[Line, ...]:
    words = -(-size // bank_bytes)
    count = -(-words // banks)
    owner = np.full(count * banks, -1, np.int64)
    # From the last byte down, so that the first element of a word is the one that stays.
    order = np.argsort(-table, kind="stable")
    element_bytes = problem.tile.storage.element_bytes
    for k in reversed(range(-(-element_bytes // bank_bytes) + 1)):
        owner[(table[order] + min(k * bank_bytes, element_bytes - 1)) // bank_bytes] = order
    lanes: dict[int, set[int]] = {}
    served: dict[int, tuple[int, int]] = {}  # of the phases that touch a word, the latest wavefront
    passes = [(p, w, found) for p, phase in enumerate(phases) for w, found in enumerate(phase.passes)]
    for p, w, t in ((p, w, touch) for p, w, found in passes for touch in found):
        lanes.setdefault(t.word, set()).add(t.lane)
        served[t.word] = max(served.get(t.word, (p, w)), (p, w), key=lambda pw: (pw[1], -pw[0]))
    untouched, touched = (Cell(None),) * banks, {word // banks for word in lanes}

    def cells(line: int) -> tuple[Cell, ...]:
        if line not in touched and count > MOST_WHOLE_LINES:
            return untouched
        words = range(line * banks, (line + 1) * banks)
        held = zip(words, _held(problem, owner[words.start : words.stop]), strict=True)
        return tuple(Cell(c, tuple(sorted(lanes[w])), *served[w]) if w in lanes else Cell(c) for w, c in held)

    return tuple(Line(k * banks * bank_bytes, cells(k), k in touched) for k in range(count))


def _held(problem: Problem, owner: IntArray) -> list[tuple[int, ...] | None]:
    """Coordinates of the first elements of words; None where there is none."""
    first = np.maximum(owner, 0) * problem.tile.packed
    coordinates = np.array(np.unravel_index(first, problem.tile.shape)).T.tolist()
    return [tuple(c) if o >= 0 else None for c, o in zip(coordinates, owner.tolist(), strict=True)]


def _meeting(problem: Problem, element: IntArray, phases: tuple[Served, ...]) -> Meeting:
    number, worst = max(enumerate(phases), key=lambda item: (len(item[1].passes), -item[0]))
    last = worst.passes[-1][0]
    shape, packed = problem.tile.shape, problem.tile.packed
    there = [t for t in itertools.chain(*worst.passes) if t.bank == last.bank]
    lanes = tuple(sorted({t.lane for t in there}))
    return Meeting(
        number,
        len(worst.lanes),
        last.bank,
        len(worst.passes) + worst.idle_passes,
        lanes,
        tuple(tuple(int(c) for c in np.unravel_index(element[lane] * packed, shape)) for lane in lanes),
        tuple(sorted({t.word for t in there})),
    )


def to_json(drawn: Picture, cost: Cost) -> dict[str, Any]:
    """A picture as JSON-ready data: the phases, and the cells that are touched; the cost of the access."""
    touched = [
        {
            "byte_offset": line.byte_offset + bank * drawn.bank_bytes,
            "bank": bank,
            "coordinates": cell.coordinates,
            "lanes": cell.lanes,
            "phase": cell.phase,
            "wavefront": cell.wavefront,
        }
        for line in drawn.lines
        for bank, cell in enumerate(line.cells)
        if cell.lanes
    ]
    return {
        "layout": drawn.layout,
        "offset": drawn.offset,
        "bytes": drawn.bytes,
        "banks": drawn.banks,
        "bank_bytes": drawn.bank_bytes,
        "wavefronts": drawn.wavefronts,
        "ideal": drawn.ideal,
        "access_wavefronts": cost.wavefronts,
        "access_ideal": cost.ideal,
        "phases": [{"lanes": p.lanes, "wavefronts": len(p.passes) + p.idle_passes} for p in drawn.phases],
        "touched": touched,
    }
