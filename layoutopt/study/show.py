"""What `show` draws: which layouts, which warp instruction under them, and what stands in the banks.

A picture is plain data that every format draws. Columns are banks, lines are one word of every bank (128
bytes on most GPUs). A cell holds what stands in that word: the element's coordinates, and, where the
instruction touches it, the lanes, the phase and the wavefront that serves it.
"""

from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.accesses.lower import offset_formula
from layoutopt.engine.case import Case, case_of, case_of_result
from layoutopt.engine.witness import Instruction, Served, worst_instruction
from layoutopt.errors import LayoutError, ProblemFileError, VerificationError
from layoutopt.expressions.grammar import to_text
from layoutopt.files.checks import fields_of
from layoutopt.ground.budget import deadline
from layoutopt.ground.json_data import named_by
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.layout.formula import element_expression
from layoutopt.layout.layout import row_major
from layoutopt.problems.answer import Arrangement, Result
from layoutopt.problems.text import lanes_text, widths_text
from layoutopt.problems.types import Block, NamedTile, Problem
from layoutopt.search.block import solve
from layoutopt.study.block import Part, placed
from layoutopt.study.in_use import InUse, formula_in_use, without_formulas

SOLVED, NONE, PUBLISHED = "solved", "none", "published"
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
    # Of the first element that begins in the word, else of the one that reaches into it; None in a pad
    coordinates: tuple[int, ...] | None
    lanes: tuple[int, ...] = ()  # active lanes that touch the word, ascending
    # Number of the phase (or request) that serves them, of several where it waits longest; -1 if untouched
    phase: int = -1
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
    bytes: int  # to the layout's end
    banks: int
    bank_bytes: int  # of a bank's word
    wavefronts: int  # of this instruction
    ideal: int  # of this instruction
    access_wavefronts: int  # of all instructions of the access
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


class Views(Struct, frozen=True):
    """The layouts, before and after, and where to look."""

    chosen: Instruction  # the warp instruction, of a case with the lanes and widths of the best layout
    layouts: tuple[Shown, ...]  # one or two; the last is the best known
    note: str  # what was left out and why, and what was chosen; may be empty
    # Where the file leaves widths open, those of the solved layout, in bytes by access name
    widths: dict[str, int]
    # Of several tiles, the one that is drawn, by itself, and where it lies; else nothing
    tile: tuple[()] | tuple[str, int]

    @property
    def case(self) -> Case:
        """The tile and its accesses."""
        return self.chosen.case

    def pictures(self) -> tuple[Picture, ...]:
        """The chosen instruction under every layout."""
        return tuple(picture(self.chosen, shown) for shown in self.layouts)


def views(
    problem: Problem | Block,
    gpu: Device,
    *,
    before: str,
    access: str | None,
    warp: int | None,
    iteration: dict[str, int],
    time_limit: float | None,
) -> Views:
    """Gather what to draw: of several tiles, that of the access, else that whose first layout conflicts most.

    Args:
        problem: what to look at.
        gpu: the device.
        before: none (row-major), published, solved (only the best layout), or, of one tile, element offsets
            as an expression over x0, x1, ...
        access: name of the access; None for the one with the worst conflict.
        warp: None for the warp with the worst conflict. Of several tiles, it needs `access`.
        iteration: values of loop variables; those left out are as in the worst conflict.
        time_limit: seconds to look for the best layout; None for no limit.

    Raises:
        ProblemFileError: there is no such layout, access, warp or iteration.
    """
    asked = _Asked(before, access, warp, iteration)
    tiles, cases = asked.tiles(problem), []  # `tile`: of a block, a tuple of the tile alone; else empty
    with deadline(time_limit):
        for tile, tile_problem in tiles:
            with fields_of(problem, *tile):
                for i, one in enumerate(tile_problem.accesses):
                    if one.any:  # which words lanes touch is not known
                        wrong = "values known only at run time are not supported here; "
                        others = "solve, check, compare and explain count them"
                        raise ProblemFileError(f"accesses[{i}].any", wrong + others)
                cases.append(case_of(tile_problem, gpu))
        answer = solve(without_formulas(problem), gpu)
    parts = {part.tile: part for part in placed(problem, gpu, answer).parts} if answer.has_layout else {}
    # A tile that no lane touches cannot be drawn: it is left out, or raises an error if there is no other.
    any_touched = any(case.lanes.taking_part for case in cases)
    drawn = []
    for (tile, tile_problem), case in zip(tiles, cases, strict=True):
        if case.lanes.taking_part or not any_touched:
            name = tile[0].name if tile else ""
            with fields_of(problem, *tile):
                drawn.append(asked.views(tile_problem, case, name, parts.get(name), answer))

    def conflicts(views: Views) -> int:
        first = views.pictures()[0]
        return first.wavefronts - first.ideal

    return drawn[0] if len(drawn) == 1 else max(drawn, key=conflicts)


class _Asked(Struct, frozen=True):
    """The user's choices: the layout to draw before the best one, and the instruction; see `views`."""

    before: str
    access: str | None
    warp: int | None
    iteration: dict[str, int]

    def tiles(self, problem: Problem | Block) -> list[tuple[tuple[NamedTile, ...], Problem]]:
        """The tile of the access asked for, or every tile that is touched, each with its own problem.

        The tile is a tuple of one, which is empty of a problem of one tile by itself.
        """
        names = [access.name for access in problem.accesses]
        if self.access is not None and self.access not in names:
            raise ProblemFileError("--access", f"no access {self.access!r}; there are {', '.join(names)}")
        if isinstance(problem, Problem):
            return [((), problem)]
        if self.access is None and (self.warp is not None or self.iteration):
            raise ProblemFileError("--access", "--warp and --iteration need it where there are several tiles")
        if self.before not in (NONE, PUBLISHED, SOLVED):
            raise ProblemFileError("--layout", "a formula is for one tile, and here are several")
        touched = {a.tile for a in problem.accesses if self.access in (None, a.name)}
        return [((tile,), problem.problem(tile)) for tile in problem.tiles if tile.name in touched]

    def views(
        self, problem: Problem, case: Case, tile: str, part: Part | None, answer: Result | Arrangement
    ) -> Views:
        """The layouts of a tile to draw, the solved one last.

        Args:
            problem, case: the tile and its accesses.
            tile: its name in a block; empty of a tile by itself.
            part: what the tile has of the answer: its layout (`answer`), cut out of the one that its group
                shares (`whole`), and its place; None where no layout was found.
            answer: of the whole problem, which says why none was.
        """
        layouts, notes, widths = [], [], {}
        if part is not None and part.whole is not None:  # what `whole` chose: lanes and widths
            case = case_of_result(problem, case.device, part.whole)
            widths, own = case.widths, part.answer
            if isinstance(own, str):  # part of a shared layout that is a formula alone
                table, offset = case.table(offset_formula(own, problem.tile)), own
            else:
                table, offset = case.table(own.require_layout()), own.offset or ""
            layouts = [Shown(case, node=None, table=table, name="solved", offset=offset)]
            if tile:
                notes = [f"tile {tile}; its first stage begins at byte {part.base_bytes:,}"]
            chosen = lanes_text(problem, case.asked), widths_text(widths) if widths else ""
            notes += [f"drawn with {text}, as the solved layout has it" for text in chosen if text]
        if self.before != SOLVED:
            first = _layout_before(case, problem, self.before)
            try:
                case.check(first.table)
                layouts.insert(0, first)
            except LayoutError as error:
                notes.append(f"{first.name} cannot serve the accesses ({error}), so it is not drawn")
        if not layouts:
            raise ProblemFileError("layout", f"no layout to draw: {answer.reason}")
        if part is None:
            notes.append(f"no layout was found: {answer.reason}")
        instruction, note = self._instruction(layouts[0]), "; ".join(notes)
        place = (tile, 0 if part is None else part.base_bytes) if tile else ()
        return Views(instruction, tuple(layouts), note, widths=widths, tile=place)

    def _instruction(self, shown: Shown) -> Instruction:
        """The instruction asked for; access, warp or iteration left open are those of the worst conflict.

        Rows of a trace are iterations of the loops of an access, the last loop fastest, each of all warps.
        """
        case = shown.case
        names = [access.name for access in case.problem.accesses]
        asked = [k for k, name in enumerate(names) if self.access in (None, name)]
        with_lanes = [k for k in asked if case.lanes.accesses[k].active.any()]
        if not with_lanes:
            field = "--access" if self.access is not None else "accesses"
            reason = "nothing to draw: no lane takes part, the hardware moves it by itself"
            raise ProblemFileError(field, reason)
        worst = {k: worst_instruction(shown.counts[k]) for k in with_lanes}  # excess, row
        access = max(with_lanes, key=lambda k: worst[k][0])
        _, row = worst[access]
        warp, values = Instruction(case, access, row).at
        loops = case.problem.accesses[access].loops
        for name, value in self.iteration.items():
            if name not in loops:
                known = ", ".join(loops) or "none"
                reason = f"{names[access]!r} has no loop {name!r}; its loops: {known}"
                raise ProblemFileError("--iteration", reason)
            if not 0 <= value < loops[name]:
                raise ProblemFileError("--iteration", f"{name} lies in 0..{loops[name] - 1}, not {value}")
            values[name] = value
        warps = -(-case.problem.threads // case.device.lanes)
        warp = warp if self.warp is None else self.warp
        if not 0 <= warp < warps:
            raise ProblemFileError("--warp", f"lies in 0..{warps - 1}, not {warp}")
        iteration = 0
        for name, trips in loops.items():
            iteration = iteration * trips + values[name]
        return Instruction(case, access, iteration * warps + warp)


def _layout_before(case: Case, problem: Problem, name: str) -> Shown:
    """The layout to draw before the solved one: row-major, in use, published, or the formula `name`."""
    if name == NONE:
        plain = case.as_elements(row_major(case.lowered.tile.shape, case.lowered.tile.element_bytes))
        offset = to_text(element_expression(plain))
        return Shown(case, node=None, table=case.table(plain), name="row-major", offset=offset)
    field, text, title = "--layout", name, "given"
    if name == PUBLISHED:
        formula = formula_in_use(problem)
        if formula is None:
            raise ProblemFileError("published", "the problem names no published layout")
        field, text = formula
        title = "in use" if field == "layout.offset" else "published"
    with named_by(field):
        node = offset_formula(text, problem.tile)
    try:
        return Shown(case, node, case.table(node), name=title, offset=text)
    except LayoutError as error:
        raise ProblemFileError(field, str(error)) from None


# Drawing -------------------------------------------------------------------------------------------


def picture(instruction: Instruction, shown: Shown) -> Picture:
    """Draw an instruction under the layout `shown`.

    Raises:
        LayoutError: the layout takes more than MAX_BYTES, or MAX_LINES rows of banks.
        VerificationError: the drawing and the conflict engine count differently.
    """
    access, row, table = instruction.access, instruction.row, shown.table
    rule, size = instruction.lanes.rule, shown.size
    most = min(MAX_BYTES, MAX_LINES * rule.banks * rule.bank_bytes)
    if size > most:
        raise LayoutError(f"the layout takes {size:,} bytes; a picture shows {most:,} at most")
    counts, totals = shown.counts[access], shown.reports[access]  # of every instruction; of the access
    wavefronts, ideal = int(counts.wavefronts[row]), int(counts.ideal[row])
    phases = instruction.served(table)
    drawn = sum(phase.wavefronts for phase in phases)
    if drawn != wavefronts:
        name = instruction.lanes.name
        raise VerificationError(f"{name}: the picture serves {drawn} wavefronts, the engine {wavefronts}")
    meeting = instruction.worst_phase(table) if wavefronts > ideal else None
    lanes = sorted({touch.lane for touch in meeting.touches}) if meeting is not None else []
    coordinates = {lane: instruction.coordinates(lane) for lane in lanes}
    return Picture(
        layout=shown.name,
        offset=shown.offset,
        bytes=size,
        banks=rule.banks,
        bank_bytes=rule.bank_bytes,
        wavefronts=wavefronts,
        ideal=ideal,
        access_wavefronts=int(totals.wavefronts),
        access_ideal=int(totals.ideal),
        phases=phases,
        lines=_lines(shown, phases, rule),
        meeting=meeting,
        coordinates=coordinates,
    )


def _lines(shown: Shown, phases: tuple[Served, ...], rule: PhaseRule) -> tuple[Line, ...]:
    """Every row of banks of a layout: element, lanes, phase and wavefront of each word.

    Of a layout of more than MOST_WHOLE_LINES, rows that no lane touches are empty.
    """
    banks, word_bytes = rule.banks, rule.bank_bytes
    element_bytes = shown.case.lowered.tile.element_bytes
    line_count = -(-shown.size // (word_bytes * banks))
    element_of_word = np.full(line_count * banks, -1, np.int64)  # -1 in a pad
    # Elements by falling offset, and of each first its last word: where several touch a word, the last to be
    # written stays. That is the first of those that begin in it, and else the one that reaches into it.
    order = np.argsort(-shown.table, kind="stable")
    for k in reversed(range(-(-element_bytes // word_bytes) + 1)):  # words that an unaligned one may touch
        byte = shown.table[order] + min(k * word_bytes, element_bytes - 1)
        element_of_word[byte // word_bytes] = order
    lanes: dict[int, set[int]] = {}  # by word
    longest: dict[int, tuple[int, int]] = {}  # by word: the wavefront of its longest wait, and the phase
    for number, phase in enumerate(phases):
        for wavefront, touches in enumerate(phase.passes):
            for touch in touches:
                lanes.setdefault(touch.word, set()).add(touch.lane)
                if touch.word not in longest or wavefront > longest[touch.word][0]:
                    longest[touch.word] = wavefront, number

    def cell(word: int) -> Cell:
        element = int(element_of_word[word])
        coordinates = shown.case.coordinates(element) if element >= 0 else None
        wavefront, phase = longest.get(word, (0, -1))
        touching = tuple(sorted(lanes.get(word, ())))
        return Cell(word * word_bytes, word % banks, coordinates, touching, phase=phase, wavefront=wavefront)

    touched_lines = {word // banks for word in lanes}
    whole = line_count <= MOST_WHOLE_LINES
    return tuple(
        tuple(map(cell, range(line * banks, (line + 1) * banks))) if whole or line in touched_lines else ()
        for line in range(line_count)
    )
