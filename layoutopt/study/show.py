"""What `show` draws: which layouts, and which warp instruction under them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from layoutopt.accesses.lower import assigned, byte_table, chosen_widths, offset_formula
from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case
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
from layoutopt.study.known import known_case, solved
from layoutopt.study.picture import Instruction, Picture, instruction, picture

MAX_FILE_BYTES = 1 << 26
SOLVED = "solved"
NONE, PUBLISHED = "none", "published"


@dataclass(frozen=True, slots=True)
class Shown:
    """A layout to draw: its name, its formula in elements (may be empty), and byte offsets.

    The offsets are those of elements by row-major index, of packed elements those of their bytes.
    """

    name: str
    offset: str
    table: IntArray


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
        access = self.lanes.accesses[self.chosen.access]
        return tuple(
            picture(self.problem, self.gpu, access, self.chosen.row, s.table, layout=s.name, offset=s.offset)
            for s in self.layouts
        )


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
        return _block_views(problem, gpu, asked, budget)
    best = solved(problem, gpu, budget)
    notes = _chosen(best.lanes, best.widths)
    shown = _as_solved(best.case, best.result) if best.result.layout is not None else None
    found = asked.views(best.case, best.layout, shown, best.result.reason, notes)
    return replace(found, widths=best.widths)


def _block_views(tile_set: Block, gpu: Device, asked: _Asked, budget: Budget) -> Views:
    """The views of one tile of several, under the layout that it gets beside the others."""
    owners = {a.name: a.tile for a in tile_set.accesses}
    if asked.access is not None and asked.access not in owners:
        raise ProblemFileError("--access", f"no access {asked.access!r}; there are {', '.join(owners)}")
    if asked.access is None and (asked.warp is not None or asked.iteration):
        raise ProblemFileError("--access", "--warp and --iteration need it where there are several tiles")
    if asked.before not in (NONE, PUBLISHED, SOLVED):
        raise ProblemFileError("--layout", "a file holds the layout of one tile, and here are several")
    tiles = {t.name: t for t in tile_set.tiles if asked.access is None or owners[asked.access] == t.name}
    cases = {}
    for name, tile in tiles.items():
        with fields_of(tile_set, tile):
            cases[name] = known_case(tile_set.problem(tile), gpu)
    found = solve(tile_set, target=gpu, budget=budget)
    # A tile that only the hardware touches has nothing to draw, and says so where it is asked for or alone.
    busy = [name for name, case in cases.items() if any(a.active.any() for a in case.lanes.accesses)]
    results = {name: part.result for part in found.tiles for name in part.tiles}
    parts = {p.tile: p for p in placed(tile_set, gpu, found).parts} if found.tiles else {}
    drawn = []
    for name in busy or cases:
        with fields_of(tile_set, tiles[name]):
            if name in parts:
                drawn.append(_part_views(parts[name], results[name], gpu, asked, len(tile_set.tiles)))
            else:
                first = asked.views(cases[name], tile_set.problem(tiles[name]).layout, None, found.reason, [])
                drawn.append(replace(first, tile=(name, 0)))
    return max(drawn, key=_worst)


def _part_views(part: Part, result: Result, gpu: Device, asked: _Asked, count: int) -> Views:
    """The views of one tile of so many, with the lanes and widths of its layout beside the others."""
    chosen, widths = assigned(part.problem, result), chosen_widths(part.problem, result)
    case = known_case(chosen, gpu, widths)
    place = f"tile {part.tile} of {count}; its first stage begins at byte {part.base_bytes:,}"
    notes = [place, *_chosen(lanes_text(part.problem, chosen), widths)]
    drawn = asked.views(case, part.problem.layout, _as_solved(case, part.answer), "", notes)
    return replace(drawn, tile=(part.tile, part.base_bytes), widths=widths)


def _chosen(lanes: str, widths: dict[str, int]) -> list[str]:
    """That lanes and widths are those of the solved layout, where it chose some."""
    texts = [lanes, widths_text(widths) if widths else ""]
    return [f"drawn with {text}, as the solved layout has it" for text in texts if text]


def _as_solved(case: Case, answer: Result | str) -> Shown:
    if isinstance(answer, Result):
        assert answer.layout is not None
        return Shown("solved", answer.offset or "", case.table(answer.layout))
    return Shown("solved", answer, case.table(offset_formula(answer, case.problem.tile)))


def _worst(views: Views) -> int:
    first = views.pictures()[0]
    return first.wavefronts - first.ideal


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
            case: the accesses.
            layout: the constraints of the file, with the layout in use.
            solved: the best layout; None where there is none, for `reason`.
            reason: see there.
            notes: what to say first.

        Raises:
            ProblemFileError: as for `views`.
        """
        problem = msgspec.structs.replace(case.problem, layout=layout)
        layouts: list[Shown] = []
        if self.before != SOLVED:
            first = _before(problem, self.before)
            try:
                case.check(first.table)
            except LayoutError as error:
                notes = [*notes, f"{first.name} cannot serve the accesses ({error}), so it is not drawn"]
            else:
                layouts.append(first)
        if solved is not None:
            layouts.append(solved)
        elif not layouts:
            raise ProblemFileError("layout", f"no layout to draw: {reason}")
        else:
            notes = [*notes, f"no layout was found: {reason}"]
        chosen = self._instruction(case, problem, layouts[0].table)
        return Views(problem, case.device, case.lanes, tuple(layouts), chosen, "; ".join(notes), {})

    def _instruction(self, case: Case, problem: Problem, table: IntArray) -> Instruction:
        """The instruction asked for; what is left open is that of the worst conflict under a table."""
        gpu = case.device
        names = [a.name for a in problem.accesses]
        if self.access is not None and self.access not in names:
            raise ProblemFileError("--access", f"no access {self.access!r}; there are {', '.join(names)}")
        busy = [k for k, a in enumerate(case.lanes.accesses) if a.active.any()]
        candidates = [names.index(self.access)] if self.access is not None else busy
        if not {*candidates} & {*busy}:
            field = "--access" if self.access is not None else "accesses"
            raise ProblemFileError(
                field, "nothing to draw: no lane takes part, the hardware moves it by itself"
            )
        worst = [(*worst_instruction(case.accesses[k].count(table)), k) for k in candidates]
        _, row, number = max(worst, key=lambda w: (w[0], -w[2]))
        start = instruction(problem, number, row, gpu.lanes)
        loops = problem.accesses[number].loops
        values = dict(start.iteration)
        for name, value in self.iteration.items():
            if name not in loops:
                known = ", ".join(loops) or "none"
                raise ProblemFileError(
                    "--iteration", f"{names[number]!r} has no loop {name!r}; its loops: {known}"
                )
            if not 0 <= value < loops[name]:
                raise ProblemFileError("--iteration", f"{name} lies in 0..{loops[name] - 1}, not {value}")
            values[name] = value
        warps = -(-problem.threads // gpu.lanes)
        own_warp = start.warp if self.warp is None else self.warp
        if not 0 <= own_warp < warps:
            raise ProblemFileError("--warp", f"lies in 0..{warps - 1}, not {own_warp}")
        step = 0
        for name, trips in loops.items():
            step = step * trips + values[name]
        return Instruction(number, step * warps + own_warp, own_warp, values)


def _before(problem: Problem, name: str) -> Shown:
    if name == NONE:
        storage = problem.tile.storage
        table = np.arange(storage.elements) * storage.element_bytes
        return Shown(
            "row-major",
            to_text(offset_expression(row_major(problem.tile.shape, storage.element_bytes))),
            table,
        )
    if name == PUBLISHED:
        if problem.layout.offset is not None:
            return _formula(problem, "in use", "layout.offset", problem.layout.offset)
        if problem.published is None:
            raise ProblemFileError("published", "the problem names no published layout")
        return _formula(problem, "published", "published.offset", problem.published.offset)
    return _from_file(problem, Path(name))


def _formula(problem: Problem, name: str, field: str, text: str) -> Shown:
    try:
        return Shown(name, text, byte_table(offset_formula(text, problem.tile), problem.tile))
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
        raise ProblemFileError(
            field, f"{str(path)!r} is made for shape {layout.shape}, not {problem.tile.shape}"
        )
    table = layout.table()[..., :: layout.packed].ravel()
    return Shown(path.name, to_text(element_expression(layout)), table)
