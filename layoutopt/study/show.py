"""What `show` draws: which layouts, and which warp instruction under them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from layoutopt.accesses.lower import assigned, chosen_widths, offset_formula
from layoutopt.engine.case import Case, case_of
from layoutopt.engine.witness import worst_instruction
from layoutopt.errors import ExpressionError, LayoutError, ProblemFileError
from layoutopt.expressions.grammar import to_text
from layoutopt.files import array_file
from layoutopt.files.checks import fields_of
from layoutopt.files.result_file import layout_from_data
from layoutopt.ground import json_data
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import deadline
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import element_expression
from layoutopt.layout.layout import row_major
from layoutopt.problems.answer import Result
from layoutopt.problems.text import lanes_text, widths_text
from layoutopt.problems.types import Block, Problem
from layoutopt.search.block import solve
from layoutopt.study.block import placed
from layoutopt.study.in_use import formula_in_use
from layoutopt.study.instruction import Instruction
from layoutopt.study.known import solved
from layoutopt.study.picture import Cost, Picture, Shown, cost_of, picture

MAX_FILE_BYTES: Final = 1 << 26
SOLVED, NONE, PUBLISHED = "solved", "none", "published"


@dataclass(frozen=True, slots=True)
class Views:
    """The layouts, before and after, and where to look.

    Attributes:
        chosen: the warp instruction, of a case with the lanes and widths of the best layout.
        layouts: one or two; the last is the best known.
        note: what was left out and why, and what was chosen; may be empty.
        widths: where the file leaves widths open, those of the solved layout, in bytes by access name.
        tile: of several tiles, the one that is drawn, by itself, and where it lies; else None.
    """

    chosen: Instruction
    layouts: tuple[Shown, ...]
    note: str
    widths: dict[str, int]
    tile: tuple[str, int] | None = None

    @property
    def case(self) -> Case:
        """The tile and its accesses."""
        return self.chosen.case

    def pictures(self) -> tuple[Picture, ...]:
        """The chosen instruction under every layout."""
        return tuple(picture(self.chosen, shown) for shown in self.layouts)

    def costs(self, access: int) -> list[Cost]:
        """What the whole of an access costs under every layout."""
        return [cost_of(self.case, access, shown) for shown in self.layouts]


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
        before: none (row-major), published, solved (only the best layout), or, of one tile, a file: a table
            of byte offsets (.npy) or the JSON that `solve` prints.
        access: name of the access; None for the one with the worst conflict.
        warp: None for the warp with the worst conflict; of several tiles, where the access is named.
        iteration: values of loop variables; those left out are as in the worst conflict.
        time_limit: seconds to look for the best layout.

    Raises:
        ProblemFileError: there is no such layout, access, warp or iteration, or a file is wrong.
    """
    asked = _Asked(before, access, warp, iteration)
    if isinstance(problem, Block):
        drawn = _of_each_tile(problem, gpu, asked, time_limit)
        return max(drawn, key=lambda views: (first := views.pictures()[0]).wavefronts - first.ideal)
    _check_drawable(problem)
    with deadline(time_limit):
        best = solved(problem, gpu)
    answer = best.result if best.result.has_layout else None
    in_use = msgspec.structs.replace(best.case.problem, layout=best.layout)
    notes = _chosen(best.lanes, best.widths)
    return replace(asked.views(best.case, in_use, answer, best.result.reason, notes), widths=best.widths)


def _of_each_tile(block: Block, gpu: Device, asked: _Asked, time_limit: float | None) -> Iterator[Views]:
    """The views of the tile of the access asked for, else of each that a lane touches.

    All tiles are solved, as they share the memory of a block.
    """
    tile_of = {a.name: a.tile for a in block.accesses}
    if asked.access is not None and asked.access not in tile_of:
        raise ProblemFileError("--access", f"no access {asked.access!r}; there are {', '.join(tile_of)}")
    if asked.access is None and (asked.warp is not None or asked.iteration):
        raise ProblemFileError("--access", "--warp and --iteration need it where there are several tiles")
    if asked.before not in (NONE, PUBLISHED, SOLVED):
        raise ProblemFileError("--layout", "a file holds the layout of one tile, and here are several")
    cases = {}
    for tile in block.tiles:
        if asked.access is None or tile_of[asked.access] == tile.name:
            with fields_of(block, tile):
                problem = block.problem(tile)
                _check_drawable(problem)
                cases[tile] = case_of(problem, gpu)
    found = solve(block, target=gpu, time_limit=time_limit)
    results = {name: part.result for part in found.tiles for name in part.tiles}
    parts = {p.tile: p for p in placed(block, gpu, found).parts} if found.tiles else {}
    # A tile that no lane touches cannot be drawn: it is left out, or raises an error if there is no other.
    touched = [tile for tile, case in cases.items() if case.lanes.taking_part]
    for tile in touched or cases:
        problem, case, part = block.problem(tile), cases[tile], parts.get(tile.name)
        notes, widths = [], {}
        if part is not None:
            chosen, result = assigned(problem, results[tile.name]), results[tile.name]
            widths = chosen_widths(problem, result)
            case = case_of(chosen, gpu, widths)
            place = f"its first stage begins at byte {part.base_bytes:,}"
            notes = [f"tile {tile.name} of {len(block.tiles)}; {place}"]
            notes += _chosen(lanes_text(problem, chosen), widths)
        with fields_of(block, tile):
            in_use = msgspec.structs.replace(case.problem, layout=problem.layout)
            views = asked.views(case, in_use, None if part is None else part.answer, found.reason, notes)
        base = 0 if part is None else part.base_bytes
        yield replace(views, tile=(tile.name, base), widths=widths)


def _check_drawable(problem: Problem) -> None:
    """Refuse lanes that choose at run time: nobody knows which words they touch."""
    for i, access in enumerate(problem.accesses):
        if access.any:
            raise ProblemFileError(
                f"accesses[{i}].any",
                "values known only at run time are not supported here; "
                "solve, check, compare and explain count them",
            )


def _chosen(lanes: str, widths: dict[str, int]) -> list[str]:
    """That lanes and widths are those of the solved layout, where it chose some."""
    texts = [lanes, widths_text(widths) if widths else ""]
    return [f"drawn with {text}, as the solved layout has it" for text in texts if text]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What to draw beside the best layout, and where to look; as for `views`."""

    before: str
    access: str | None
    warp: int | None
    iteration: dict[str, int]

    def views(
        self, case: Case, problem: Problem, answer: Result | str | None, reason: str, notes: list[str]
    ) -> Views:
        """What to draw of a tile, once the best layout is known.

        Args:
            case: with the lanes and widths of the best layout.
            problem: the same with the layout in use.
            answer: the best layout.
            reason: why there is none.
            notes: what to say first.

        Raises:
            ProblemFileError: as for `views`.
        """
        layouts = [_solved(case, answer)] if answer is not None else []
        if self.before != SOLVED:
            first = _before(case, problem, self.before)
            try:
                case.check(first.table)
                layouts.insert(0, first)
            except LayoutError as error:
                notes = [*notes, f"{first.name} cannot serve the accesses ({error}), so it is not drawn"]
        if not layouts:
            raise ProblemFileError("layout", f"no layout to draw: {reason}")
        if answer is None:
            notes = [*notes, f"no layout was found: {reason}"]
        return Views(self._instruction(case, layouts[0].table), tuple(layouts), "; ".join(notes), {})

    def _instruction(self, case: Case, table: IntArray) -> Instruction:
        """The instruction asked for; what is left open is that of the worst conflict under a table."""
        names = [a.name for a in case.problem.accesses]
        if self.access is not None and self.access not in names:
            raise ProblemFileError("--access", f"no access {self.access!r}; there are {', '.join(names)}")
        asked = [k for k, name in enumerate(names) if self.access in (None, name)]
        busy = [k for k in asked if case.lanes.accesses[k].active.any()]
        if not busy:
            field = "--access" if self.access is not None else "accesses"
            reason = "nothing to draw: no lane takes part, the hardware moves it by itself"
            raise ProblemFileError(field, reason)
        worst = [(*worst_instruction(case.accesses[k].count(table)), k) for k in busy]
        _, row, number = max(worst, key=lambda w: (w[0], -w[2]))
        warp, values = Instruction(case, number, row).at
        loops = case.problem.accesses[number].loops
        for name, value in self.iteration.items():
            if name not in loops:
                known = ", ".join(loops) or "none"
                reason = f"{names[number]!r} has no loop {name!r}; its loops: {known}"
                raise ProblemFileError("--iteration", reason)
            if not 0 <= value < loops[name]:
                raise ProblemFileError("--iteration", f"{name} lies in 0..{loops[name] - 1}, not {value}")
            values[name] = value
        warps = -(-case.problem.threads // case.device.lanes)
        warp = warp if self.warp is None else self.warp
        if not 0 <= warp < warps:
            raise ProblemFileError("--warp", f"lies in 0..{warps - 1}, not {warp}")
        step = 0
        for name, trips in loops.items():
            step = step * trips + values[name]
        return Instruction(case, number, step * warps + warp)


def _solved(case: Case, answer: Result | str) -> Shown:
    """The best layout: a result, or a formula."""
    if isinstance(answer, str):
        return Shown("solved", answer, case.table(offset_formula(answer, case.problem.tile)))
    assert answer.layout is not None
    return Shown("solved", answer.offset or "", case.table(answer.layout))


def _before(case: Case, problem: Problem, name: str) -> Shown:
    """What is drawn beside it: row-major, the layout in use or published, or that of a file."""
    if name == NONE:
        plain = case.as_elements(row_major(case.lowered.tile.shape, case.lowered.tile.element_bytes))
        return Shown("row-major", to_text(element_expression(plain)), case.table(plain))
    if name != PUBLISHED:
        return _from_file(case, Path(name))
    found = formula_in_use(problem)
    if found is None:
        raise ProblemFileError("published", "the problem names no published layout")
    field, text = found
    try:
        title = "in use" if field == "layout.offset" else "published"
        return Shown(title, text, case.table(offset_formula(text, problem.tile)))
    except ExpressionError as error:
        raise ExpressionError(error.reason, error.position, field) from None
    except LayoutError as error:
        raise ProblemFileError(field, str(error)) from None


def _from_file(case: Case, path: Path) -> Shown:
    """The layout of a table of byte offsets, or of an answer of `solve`."""
    field, tile = "--layout", case.problem.tile
    if array_file.is_array(path):
        table = array_file.read_offsets(path, tile.shape, field)
        return Shown(path.name, "", table[..., :: tile.packed].ravel())
    with json_data.named_by(field):
        raw = json_data.parse(json_data.read(path, MAX_FILE_BYTES))
    try:
        layout = layout_from_data(raw.get("layout") if isinstance(raw, dict) else None)
        return Shown(path.name, to_text(element_expression(layout)), case.table(layout))
    except (ProblemFileError, LayoutError) as error:
        raise ProblemFileError(field, f"{str(path)!r} holds no layout: {error}") from None
