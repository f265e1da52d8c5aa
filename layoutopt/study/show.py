"""What `show` draws: which layouts, and which warp instruction under them."""

from msgspec import Struct

from layoutopt.accesses.lower import offset_formula
from layoutopt.engine.case import Case, case_of, case_of_result
from layoutopt.engine.witness import worst_instruction
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.grammar import to_text
from layoutopt.files.checks import fields_of
from layoutopt.ground.budget import deadline
from layoutopt.ground.json_data import named_by
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import element_expression
from layoutopt.layout.layout import row_major
from layoutopt.problems.answer import Arrangement, Result
from layoutopt.problems.text import lanes_text, widths_text
from layoutopt.problems.types import Block, NamedTile, Problem, constrained
from layoutopt.search.block import solve
from layoutopt.study.block import Part, placed
from layoutopt.study.in_use import formula_in_use
from layoutopt.study.instruction import Instruction
from layoutopt.study.picture import Picture, Shown, picture

SOLVED, NONE, PUBLISHED = "solved", "none", "published"


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
        warp: None for the warp with the worst conflict; of several tiles, where the access is named.
        iteration: values of loop variables; those left out are as in the worst conflict.
        time_limit: seconds to look for the best layout.

    Raises:
        ProblemFileError: there is no such layout, access, warp or iteration.
    """
    asked = _Asked(before, access, warp, iteration)
    tiles, cases = asked.tiles(problem), []
    with deadline(time_limit):
        for named, tile_problem in tiles:
            with fields_of(problem, *named):
                _check_drawable(tile_problem)
                cases.append(case_of(tile_problem, gpu))
        if isinstance(problem, Problem):
            problem = constrained(problem, offset=None)
        answer = solve(problem, target=gpu, time_limit=None)
    parts = {part.tile: part for part in placed(problem, gpu, answer).parts} if answer.has_layout else {}
    # A tile that no lane touches cannot be drawn: it is left out, or raises an error if there is no other.
    any_touched = any(case.lanes.taking_part for case in cases)
    drawn = []
    for (named, tile_problem), case in zip(tiles, cases, strict=True):
        if case.lanes.taking_part or not any_touched:
            name = "".join(tile.name for tile in named)
            with fields_of(problem, *named):
                drawn.append(asked.views(tile_problem, case, name, parts.get(name), answer))
    if len(drawn) == 1:
        return drawn[0]
    return max(drawn, key=lambda views: (first := views.pictures()[0]).wavefronts - first.ideal)


def _check_drawable(problem: Problem) -> None:
    """Refuse lanes that choose at run time: which words they touch is not known."""
    for i, access in enumerate(problem.accesses):
        if access.any:
            others = "solve, check, compare and explain count them"
            wrong = f"values known only at run time are not supported here; {others}"
            raise ProblemFileError(f"accesses[{i}].any", wrong)


class _Asked(Struct, frozen=True):
    """The user's choices: the layout to draw before the best one, and the instruction; see `views`."""

    before: str
    access: str | None
    warp: int | None
    iteration: dict[str, int]

    def tiles(self, problem: Problem | Block) -> list[tuple[tuple[NamedTile, ...], Problem]]:
        """The problem of the tile of the access asked for, or of every tile, behind the tile of the block.

        Of a problem of one tile by itself, it stands behind an empty tuple.
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
        self,
        problem: Problem,
        case: Case,
        tile: str,
        part: Part | None,
        answer: Result | Arrangement,
    ) -> Views:
        """The layouts of a tile to draw, the solved one last.

        Args:
            problem, case: the tile and its accesses.
            tile: its name in a block; empty of a tile by itself.
            part: the tile's layout and place in the answer; None where there is none.
            answer: of the whole problem, which says why there is none.

        Raises:
            ProblemFileError: as for `views`.
        """
        layouts, notes, widths = [], [], {}
        if part is not None and part.whole is not None:
            case = case_of_result(problem, case.device, part.whole)
            widths = case.widths
            layouts = [_solved_layout(case, part.answer)]
            if tile:
                notes = [f"tile {tile}; its first stage begins at byte {part.base_bytes:,}"]
            texts = lanes_text(problem, case.asked), widths_text(widths) if widths else ""
            notes += [f"drawn with {text}, as the solved layout has it" for text in texts if text]
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
        place = (tile, 0 if part is None else part.base_bytes) if tile else ()
        return Views(self._instruction(layouts[0]), tuple(layouts), "; ".join(notes), widths, place)

    def _instruction(self, shown: Shown) -> Instruction:
        """The instruction asked for; access, warp or iteration left open are those of the worst conflict.

        Rows of a trace number the iterations of the access's loops, the last loop fastest, then the warps.
        """
        case = shown.case
        names = [access.name for access in case.problem.accesses]
        asked = [k for k, name in enumerate(names) if self.access in (None, name)]
        with_lanes = [k for k in asked if case.lanes.accesses[k].active.any()]
        if not with_lanes:
            field = "--access" if self.access is not None else "accesses"
            reason = "nothing to draw: no lane takes part, the hardware moves it by itself"
            raise ProblemFileError(field, reason)
        access = max(with_lanes, key=lambda k: worst_instruction(shown.counts[k])[0])
        warp, values = Instruction(case, access, worst_instruction(shown.counts[access])[1]).at
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


def _solved_layout(case: Case, answer: Result | str) -> Shown:
    """The best layout: a result, or a formula."""
    formula = answer if isinstance(answer, str) else answer.offset or ""
    layout = offset_formula(answer, case.problem.tile) if isinstance(answer, str) else answer.require_layout()
    return Shown(case, None, case.table(layout), name="solved", offset=formula)


def _layout_before(case: Case, problem: Problem, name: str) -> Shown:
    """The layout to draw before the solved one: row-major, in use, published, or the formula `name`."""
    if name == NONE:
        plain = case.as_elements(row_major(case.lowered.tile.shape, case.lowered.tile.element_bytes))
        offset = to_text(element_expression(plain))
        return Shown(case, None, case.table(plain), name="row-major", offset=offset)
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
