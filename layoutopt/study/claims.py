"""What an answer out of a file says of its problem: counted anew, a layout of `must_be`, and room."""

from __future__ import annotations

from layoutopt.accesses.lower import stored
from layoutopt.engine.claims import check_claims
from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import described
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, PlacedTile, Result
from layoutopt.problems.types import Block, Problem
from layoutopt.search.dictated import named_candidate
from layoutopt.search.tile_groups import groups


def check_answer(problem: Problem | Block, gpu: Device, answer: Result | Arrangement) -> None:
    """Check what an answer that was read says of a problem: what each access costs, and where tiles lie.

    Raises:
        ProblemFileError: it is no answer to this problem, or says what does not hold.
    """
    if isinstance(problem, Problem):
        if isinstance(answer, Arrangement):
            raise ProblemFileError("schema", "the answer is for several tiles, the problem has one")
        check_result(problem, gpu, answer)
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
        try:
            check_result(own, gpu, part.result)
        except ProblemFileError as error:
            raise ProblemFileError(f"tiles[{k}].result.{error.field}", error.reason) from None
        _check_places(problem, own, part, f"tiles[{k}]")


def _check_places(block: Block, problem: Problem, part: PlacedTile, field: str) -> None:
    """Check that there is room for each tile, in as many stages as the file has."""
    tiles = {tile.name: tile for tile in block.tiles}
    offsets = part.result.table().ravel()
    for k, place in enumerate(part.places):
        tile = tiles[place.tile]
        if place.stages != tile.stages:
            raise ProblemFileError(
                f"{field}.places[{k}].stages", f"expected {tile.stages}, as the file has it"
            )
        count = tile.elements * tile.element_bits // problem.tile.element_bits
        least = int(offsets[:count].max()) + problem.tile.storage.element_bytes
        if place.bytes < least:
            raise ProblemFileError(
                f"{field}.places[{k}].bytes", f"{place.tile} takes {least}, not {place.bytes}"
            )


def check_result(problem: Problem, gpu: Device, result: Result) -> None:
    """Check that a result, read from a file or given by a caller, is one of this problem.

    Raises:
        ProblemFileError: it is no result, what `check_claims` names, or its layout or alignment is not what
            `layout.must_be` asks for.
    """
    if not isinstance(result, Result):
        raise ProblemFileError("", f"expected the result of solve, got {described(result)}")
    check_claims(problem, gpu, result)
    if problem.layout.must_be is None or result.layout is None:
        return
    table = result.layout.table().ravel()[:: problem.tile.packed]
    same = named_candidate(stored(problem), table)
    if same is None:
        raise ProblemFileError("layout", "is none of those that layout.must_be names")
    if (result.alignment_bytes or 0) < same.alignment_bytes:
        raise ProblemFileError(
            "alignment_bytes",
            f"{same.name} needs a base aligned to {same.alignment_bytes}, not {result.alignment_bytes}",
        )
