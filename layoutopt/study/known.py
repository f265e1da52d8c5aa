"""What is known of a problem: its answer, held against it, and the lanes and widths that the answer chose."""

from typing import Any, Final

from layoutopt.accesses.lower import assigned
from layoutopt.engine.case import Case, case_of, case_of_result, check_claims
from layoutopt.errors import ProblemFileError, under
from layoutopt.ground.budget import current, spending, unhurried
from layoutopt.ground.escape import described
from layoutopt.ground.log import LOG, Progress
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, PlacedTile, Result
from layoutopt.problems.same_layout import groups
from layoutopt.problems.types import Block, Problem, constrained
from layoutopt.search.block import solve
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import solve_cases

_SHARE: Final = 0.5


def check_answer(problem: Problem | Block, gpu: Device, answer: Result | Arrangement) -> None:
    """Check what an answer that was read says of a problem: what each access costs, and where tiles lie.

    Raises:
        ProblemFileError: it is no answer to this problem, or says what does not hold.
    """
    if isinstance(problem, Problem):
        if isinstance(answer, Arrangement):
            raise ProblemFileError("schema", "the answer is for several tiles, the problem has one")
        if not isinstance(answer, Result):
            raise ProblemFileError("", f"expected the result of solve, got {described(answer)}")
        check_claims(problem, gpu, answer)
        return
    if not isinstance(answer, Arrangement):
        raise ProblemFileError("schema", "the answer is for one tile, the problem has several")
    if answer.problem != problem.name:
        raise ProblemFileError("problem", f"the result is of {answer.problem!r}, not of {problem.name!r}")
    if not answer.tiles:
        return
    members = groups(problem)
    names = [tuple(tile.name for tile in tiles) for tiles, _ in members]
    if [part.tiles for part in answer.tiles] != names:
        raise ProblemFileError("tiles", f"expected layouts of {names}, in this order")
    for k, ((_, own), part) in enumerate(zip(members, answer.tiles, strict=True)):
        with under(f"tiles[{k}].result"):
            check_claims(own, gpu, part.result)
        with under(f"tiles[{k}]"):
            _check_places(problem, own, part)


def _check_places(block: Block, problem: Problem, part: PlacedTile) -> None:
    """Check that there is room for each tile, in as many stages as the file has."""
    tiles = {tile.name: tile for tile in block.tiles}
    offsets = part.result.table().ravel()
    for k, place in enumerate(part.places):
        tile = tiles[place.tile]
        if place.stages != tile.stages:
            raise ProblemFileError(f"places[{k}].stages", f"expected {tile.stages}, as the file has it")
        count = tile.elements * tile.element_bits // problem.tile.element_bits
        least = int(offsets[:count].max()) + problem.tile.storage.element_bytes
        if place.bytes < least:
            raise ProblemFileError(f"places[{k}].bytes", f"{place.tile} takes {least}, not {place.bytes}")


def solved(
    problem: Problem,
    gpu: Device,
    *,
    progress: Progress = LOG.debug,
    known: Result | None = None,
    **constraints: Any,
) -> tuple[Case, Result]:
    """Solve a problem in half of the time, what follows having the rest; as much before it for free lanes.

    Args:
        problem, gpu, progress: as for `layoutopt.solve`.
        known: the answer, where it is known: nothing is searched.
        constraints: of the layout, in the place of the file's, once the lanes are chosen.

    Returns:
        The problem without the layout in use, with the lanes and widths of the best one; and that one.

    Raises:
        OutOfTime: the time was over before the first layout.
        ProblemFileError: the problem contradicts itself.
    """
    asked = constrained(problem, offset=None)
    if problem.is_free:
        with spending(current().part(_SHARE)):
            asked = assigned(asked, known or solve(asked, target=gpu, time_limit=None))
    asked = constrained(asked, **constraints)
    case = case_of(asked, gpu)
    ask = Ask(progress=progress, every_layout=not current().spent)  # without time a layout, and no more
    with spending(current().part(_SHARE)):
        if known is not None:
            result = known
        elif case.widths:
            result = solve(asked, target=gpu, progress=progress, time_limit=None)
        else:
            result = solve_cases([case], ask)
    if case.widths:
        with unhurried():
            case = case_of_result(asked, gpu, result)
    return case, result
