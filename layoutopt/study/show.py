"""What `show` draws: which layouts, and which warp instruction under them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from layoutopt.accesses.lower import assigned, byte_table, chosen_widths, offset_formula
from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case, case_of
from layoutopt.engine.witness import worst_instruction
from layoutopt.errors import ExpressionError, LayoutError, ProblemFileError
from layoutopt.expressions.grammar import to_text
from layoutopt.files import array_file
from layoutopt.files.checks import fields_of
from layoutopt.files.result_file import layout_from_data
from layoutopt.ground import json_data
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import element_expression, offset_expression
from layoutopt.layout.layout import row_major
from layoutopt.problems.answer import Result
from layoutopt.problems.text import lanes_text, widths_text
from layoutopt.problems.types import Block, Constraints, Problem
from layoutopt.search.block import solve
from layoutopt.study.block import Part, placed
from layoutopt.study.known import solved
from layoutopt.study.picture import Cost, Instruction, Picture, Shown, instruction, picture

MAX_FILE_BYTES = 1 << 26
SOLVED = "solved"
NONE, PUBLISHED = "none", "published"


@dataclass(frozen=True, slots=True)
class Views:
    """The layouts, before and after, and where to look.

    Attributes:
        problem: the tile and its accesses, with one width for each.
        gpu: the device.
        lanes: the trace, over the bytes of packed elements.
        layouts: one or two; the last is the best known.
        chosen: the warp instruction.
        note: what was left out and why, and what was chosen; may be empty.
        widths: where the file leaves widths open, those of the solved layout, in bytes by access name.
        tile: of several tiles, the one that is drawn, by itself; else None.
    """

    problem: Problem
    gpu: Device
    lanes: Trace
    layouts: tuple[Shown, ...]
    chosen: Instruction
    note: str
    widths: dict[str, int]
    tile: tuple[str, int] | None = None

    def pictures(self) -> tuple[Picture, ...]:
        """The chosen instruction under every layout."""
        access, row = self.lanes.accesses[self.chosen.access], self.chosen.row
        return tuple(picture(self.problem, self.gpu, access, row, shown) for shown in self.layouts)

    def costs(self, access: int) -> list[Cost]:
        """What the whole of an access costs under every layout."""
        lanes = self.lanes.accesses[access]
        return [shown.cost(self.problem, self.gpu, lanes) for shown in self.layouts]


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
    budget, asked = Budget.of_limit(time_limit), _Asked(before, access, warp, iteration)
    if isinstance(problem, Block):
        return _of_block(problem, gpu, asked, budget)
    _check_drawable(problem)
    best = solved(problem, gpu, budget)
    shown = _as_solved(best.case, best.result) if best.result.layout is not None else None
    notes = _chosen(best.lanes, best.widths)
    found = asked.views(best.case, best.layout, shown, best.result.reason, notes)
    return replace(found, widths=best.widths)


def _of_block(block: Block, gpu: Device, asked: _Asked, budget: Budget) -> Views:
    """The views of one tile: that of the access asked for, else the one whose first layout conflicts most.

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
    found = solve(block, target=gpu, budget=budget)
    results = {name: part.result for part in found.tiles for name in part.tiles}
    parts = {p.tile: p for p in placed(block, gpu, found).parts} if found.tiles else {}
    drawn = []
    # A tile that no lane touches cannot be drawn: it is left out, or raises an error if there is no other.
    touched = [tile for tile, case in cases.items() if case.lanes.taking_part]
    for tile in touched or cases:
        with fields_of(block, tile):
            if tile.name in parts:
                views = _of_part(parts[tile.name], results[tile.name], gpu, asked, len(block.tiles))
            else:
                views = asked.views(cases[tile], block.problem(tile).layout, None, found.reason, [])
                views = replace(views, tile=(tile.name, 0))
        drawn.append(views)
    return max(drawn, key=lambda views: views.pictures()[0].excess)


def _of_part(part: Part, result: Result, gpu: Device, asked: _Asked, count: int) -> Views:
    """The views of one tile of so many, with the lanes and widths of its layout beside the others."""
    chosen, widths = assigned(part.problem, result), chosen_widths(part.problem, result)
    case = case_of(chosen, gpu, widths)
    place = f"tile {part.tile} of {count}; its first stage begins at byte {part.base_bytes:,}"
    notes = [place, *_chosen(lanes_text(part.problem, chosen), widths)]
    drawn = asked.views(case, part.problem.layout, _as_solved(case, part.answer), "", notes)
    return replace(drawn, tile=(part.tile, part.base_bytes), widths=widths)


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


def _as_solved(case: Case, answer: Result | str) -> Shown:
    if isinstance(answer, Result):
        assert answer.layout is not None
        return Shown("solved", answer.offset or "", case.table(answer.layout))
    return Shown("solved", answer, case.table(offset_formula(answer, case.problem.tile)))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What to draw beside the best layout, and where to look; as for `views`."""

    before: str
    access: str | None
    warp: int | None
    iteration: dict[str, int]

    def views(
        self, case: Case, layout: Constraints, solved: Shown | None, reason: str, notes: list[str]
    ) -> Views:
        """What to draw of a tile, once the best layout is known.

        Args:
            case: with the lanes and widths of the best layout.
            layout: constraints, with the layout in use.
            solved: the best layout.
            reason: why there is none.
            notes: what to say first.

        Raises:
            ProblemFileError: as for `views`.
        """
        problem = msgspec.structs.replace(case.problem, layout=layout)
        layouts = [solved] if solved is not None else []
        if self.before != SOLVED:
            first = _before(problem, self.before)
            try:
                case.check(first.table)
                layouts.insert(0, first)
            except LayoutError as error:
                notes = [*notes, f"{first.name} cannot serve the accesses ({error}), so it is not drawn"]
        if not layouts:
            raise ProblemFileError("layout", f"no layout to draw: {reason}")
        if solved is None:
            notes = [*notes, f"no layout was found: {reason}"]
        chosen = self._instruction(case, problem, layouts[0].table)
        return Views(problem, case.device, case.lanes, tuple(layouts), chosen, "; ".join(notes), {})

    def _instruction(self, case: Case, problem: Problem, table: IntArray) -> Instruction:
        """The instruction asked for; what is left open is that of the worst conflict under a table."""
        names = [a.name for a in problem.accesses]
        if self.access is not None and self.access not in names:
            raise ProblemFileError("--access", f"no access {self.access!r}; there are {', '.join(names)}")
        asked = [k for k, name in enumerate(names) if self.access in (None, name)]
        busy = [k for k in asked if case.lanes.accesses[k].active.any()]
        if not busy:
            field = "--access" if self.access is not None else "accesses"
            raise ProblemFileError(
                field, "nothing to draw: no lane takes part, the hardware moves it by itself"
            )
        worst = [(*worst_instruction(case.accesses[k].count(table)), k) for k in busy]
        _, row, number = max(worst, key=lambda w: (w[0], -w[2]))
        start = instruction(problem, number, row, case.device.lanes)
        loops, values = problem.accesses[number].loops, dict(start.iteration)
        for name, value in self.iteration.items():
            if name not in loops:
                known = ", ".join(loops) or "none"
                reason = f"{names[number]!r} has no loop {name!r}; its loops: {known}"
                raise ProblemFileError("--iteration", reason)
            if not 0 <= value < loops[name]:
                raise ProblemFileError("--iteration", f"{name} lies in 0..{loops[name] - 1}, not {value}")
            values[name] = value
        warps = -(-problem.threads // case.device.lanes)
        warp = start.warp if self.warp is None else self.warp
        if not 0 <= warp < warps:
            raise ProblemFileError("--warp", f"lies in 0..{warps - 1}, not {warp}")
        step = 0
        for name, trips in loops.items():
            step = step * trips + values[name]
        return Instruction(number, step * warps + warp, warp, values)


def _before(problem: Problem, name: str) -> Shown:
    if name == NONE:
        storage = problem.tile.storage
        plain = offset_expression(row_major(problem.tile.shape, storage.element_bytes))
        return Shown("row-major", to_text(plain), np.arange(storage.elements) * storage.element_bytes)
    if name != PUBLISHED:
        return _from_file(problem, Path(name))
    title, field, text = "in use", "layout.offset", problem.layout.offset
    if text is None:
        if problem.published is None:
            raise ProblemFileError("published", "the problem names no published layout")
        title, field, text = "published", "published.offset", problem.published.offset
    try:
        return Shown(title, text, byte_table(offset_formula(text, problem.tile), problem.tile))
    except ExpressionError as error:
        raise ExpressionError(error.reason, error.position, field) from None
    except LayoutError as error:
        raise ProblemFileError(field, str(error)) from None


def _from_file(problem: Problem, path: Path) -> Shown:
    field = "--layout"
    if array_file.is_array(path):
        table = array_file.read_offsets(path, problem.tile.shape, field)
        return Shown(path.name, "", table[..., :: problem.tile.packed].ravel())
    with json_data.named_by(field):
        raw = json_data.parse(json_data.read(path, MAX_FILE_BYTES))
    try:
        layout = layout_from_data(raw.get("layout") if isinstance(raw, dict) else None)
    except ProblemFileError as error:
        raise ProblemFileError(field, f"{str(path)!r} holds no layout: {error}") from None
    made_for = layout.shape, layout.element_bytes, layout.packed
    if made_for != (problem.tile.shape, problem.tile.storage.element_bytes, problem.tile.packed):
        reason = f"{str(path)!r} is made for shape {layout.shape}, not {problem.tile.shape}"
        raise ProblemFileError(field, reason)
    table = layout.table()[..., :: layout.packed].ravel()
    return Shown(path.name, to_text(element_expression(layout)), table)
