"""The banks under one warp instruction, as plain data that every format draws.

Columns are banks, lines are one word of every bank (128 bytes on most GPUs). A cell holds what stands
in that word: the element's coordinates, and, where the instruction touches it, the lanes, the phase and
the wavefront that serves it.
"""

from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.engine.witness import Served
from layoutopt.errors import LayoutError, VerificationError
from layoutopt.hardware.devices import PhaseRule
from layoutopt.study.in_use import InUse
from layoutopt.study.instruction import Instruction

MAX_BYTES = 1 << 24
"""A picture has a line for every row of banks in the layout; nobody reads more."""
MAX_LINES = 1 << 18
MOST_WHOLE_LINES = 1 << 10
"""Of a picture; beyond, only lines that are touched say what stands in them."""


class Shown(InUse, frozen=True):
    """A layout to draw, with its name and its formula in elements, which may be empty."""

    name: str = ""
    offset: str = ""


class Cell(Struct, frozen=True):
    """One word."""

    # `byte_offset, bank`: where it lies
    byte_offset: int
    bank: int
    coordinates: tuple[int, ...] | None  # of the first element in the word; None in a pad
    lanes: tuple[int, ...] = ()  # active lanes that touch the word, ascending
    phase: int = -1  # number of the phase (or request) that serves them; -1 where untouched
    wavefront: int = 0  # which of the phase's wavefronts serves it, from 0

    @property
    def waits(self) -> bool:
        """Whether an earlier wavefront of the same phase served another word of the bank."""
        return self.wavefront > 0


# One word of every bank; empty where there are more than MOST_WHOLE_LINES of them and this is not touched.
Line = tuple[Cell, ...]


def touched(line: Line) -> bool:
    """Whether any lane touches a word of it."""
    return any(cell.lanes for cell in line)


class Picture(Struct, frozen=True):
    """One warp instruction under one layout."""

    # `layout, offset`: its name and its formula
    layout: str
    offset: str
    bytes: int  # to its end
    # `banks, bank_bytes`: how many there are, and of a word
    banks: int
    bank_bytes: int
    # `wavefronts, ideal`: of this instruction
    wavefronts: int
    ideal: int
    # `access_wavefronts, access_ideal`: of the whole access
    access_wavefronts: int
    access_ideal: int
    phases: tuple[Served, ...]  # what serves what
    lines: tuple[Line, ...]  # every line of the tile
    meeting: Served | None  # the phase of the worst conflict; None without conflicts
    coordinates: dict[int, tuple[int, ...]]  # of the elements whose lanes meet there, by lane

    def to_json(self) -> dict[str, Any]:
        """The cost as JSON-ready data, the phases, and the cells that are touched."""
        fields = self.__struct_fields__
        data = {field: getattr(self, field) for field in fields[: fields.index("phases")]}
        data["phases"] = [{"lanes": p.lanes, "wavefronts": p.wavefronts} for p in self.phases]
        touched = [cell for line in self.lines for cell in line if cell.lanes]
        return data | {"touched": msgspec.to_builtins(touched)}


def picture(instruction: Instruction, shown: Shown) -> Picture:
    """Draw an instruction under a layout.

    Raises:
        LayoutError: the layout takes more than MAX_BYTES, or MAX_LINES rows of banks.
        VerificationError: the drawing and the conflict engine count differently.
    """
    access, row, table = instruction.access, instruction.row, shown.table
    rule, size = instruction.lanes.rule, shown.size
    most = min(MAX_BYTES, MAX_LINES * rule.banks * rule.bank_bytes)
    if size > most:
        raise LayoutError(f"the layout takes {size:,} bytes; a picture shows {most:,} at most")
    phases, counts, whole = instruction.served(table), shown.counts[access], shown.reports[access]
    wavefronts, ideal = int(counts.wavefronts[row]), int(counts.ideal[row])
    served = sum(phase.wavefronts for phase in phases)
    if served != wavefronts:
        name = instruction.lanes.name
        raise VerificationError(f"{name}: the picture serves {served} wavefronts, the engine {wavefronts}")
    worst = instruction.worst_phase(table) if served > ideal else None
    lanes = sorted({touch.lane for touch in worst.touches}) if worst is not None else []
    coordinates = {lane: instruction.coordinates(lane) for lane in lanes}
    return Picture(
        shown.name,
        shown.offset,
        size,
        rule.banks,
        rule.bank_bytes,
        served,
        ideal,
        int(whole.wavefronts),
        int(whole.ideal),
        phases,
        _lines(shown, phases, rule),
        worst,
        coordinates,
    )


def _lines(shown: Shown, phases: tuple[Served, ...], rule: PhaseRule) -> tuple[Line, ...]:
    """Every row of banks of a layout: element, lanes, phase and wavefront of each word."""
    table, element_bytes = shown.table, shown.case.lowered.tile.element_bytes
    banks, width = rule.banks, rule.bank_bytes
    count = -(-shown.size // (width * banks))
    owner = np.full(count * banks, -1, np.int64)  # the first element of each word; -1 in a pad
    # From the last byte down, so that the first element of a word is the one that stays.
    order = np.argsort(-table, kind="stable")
    for k in reversed(range(-(-element_bytes // width) + 1)):
        owner[(table[order] + min(k * width, element_bytes - 1)) // width] = order
    lanes: dict[int, set[int]] = {}  # by word
    latest: dict[int, tuple[int, int]] = {}  # by word, the phase of its latest wavefront, and that wavefront
    for p, phase in enumerate(phases):
        for wavefront, touches in enumerate(phase.passes):
            for touch in touches:
                lanes.setdefault(touch.word, set()).add(touch.lane)
                if touch.word not in latest or wavefront > latest[touch.word][1]:
                    latest[touch.word] = p, wavefront

    def cell(word: int) -> Cell:
        element = shown.case.coordinates(int(owner[word])) if owner[word] >= 0 else None
        place = word * width, word % banks, element
        return Cell(*place, tuple(sorted(lanes[word])), *latest[word]) if word in lanes else Cell(*place)

    touched_lines = {word // banks for word in lanes}
    whole = count <= MOST_WHOLE_LINES
    return tuple(
        tuple(map(cell, range(line * banks, (line + 1) * banks))) if whole or line in touched_lines else ()
        for line in range(count)
    )
