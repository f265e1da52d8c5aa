"""The answer to a problem, checked against it or searched for, and the lanes and widths that it chose."""

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
    problems = groups(problem)
    names = [tuple(tile.name for tile in tiles) for tiles, _ in problems]
    if [layout.tiles for layout in answer.tiles] != names:
        raise ProblemFileError("tiles", f"expected layouts of {names}, in this order")
    for k, ((_, own), layout) in enumerate(zip(problems, answer.tiles, strict=True)):
        with under(f"tiles[{k}].result"):
            check_claims(own, gpu, layout.result)
        with under(f"tiles[{k}]"):
            _check_places(problem, own, layout)


def _check_places(block: Block, shared: Problem, layout: PlacedTile) -> None:
    """Check that every tile with this layout has the file's stages and enough bytes.

    Args:
        block: the file.
        shared: the problem that the layout answers, whose tile is the largest with the smallest elements.
        layout: the layout, and the places of the tiles that have it.
    """
    tiles = {tile.name: tile for tile in block.tiles}
    offsets = layout.result.table().ravel()
    for k, place in enumerate(layout.places):
        tile = tiles[place.tile]
        if place.stages != tile.stages:
            raise ProblemFileError(f"places[{k}].stages", f"expected {tile.stages}, as the file has it")
        count = tile.elements * tile.element_bits // shared.tile.element_bits
        least = int(offsets[:count].max()) + shared.tile.storage.element_bytes
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
    """The best layout, and the problem with the lanes and widths chosen for it; in half of the time in force.

    Free lanes are chosen in half of the time before that.

    Args:
        problem, gpu, progress: as for `layoutopt.solve`.
        known: the answer, if it is known: then nothing is searched.
        constraints: fields of `Constraints` that replace the file's, once the lanes are chosen.

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
    ask = Ask(progress=progress, every_layout=not current().spent)  # without time, no proof is sought
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
