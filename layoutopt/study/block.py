"""Answers to a problem: checked against it, and taken apart into tiles with a layout and a place each.

A problem is one tile, or several; the same is done to each of them.
"""

from contextlib import nullcontext

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.lower import byte_table, offset_formula
from layoutopt.engine.case import check_claims
from layoutopt.errors import ProblemFileError, under
from layoutopt.expressions.grammar import Const, Op, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.escape import described
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import coordinate_ranges, element_expression
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, Proof, Result, Stages, Status
from layoutopt.problems.same_layout import Groups, alike, beginning, beginning_bytes, groups, viewed_index
from layoutopt.problems.types import Block, Problem, Tile
from layoutopt.study.check import check


class Part(Stages, frozen=True):
    """One tile."""

    problem: Problem  # the tile and its accesses
    answer: Result | str  # the layout: a result, or element offsets over x0, x1,
    # The result whose layout `answer` is, or is a part of: that of all tiles that share it; None where the
    # layout was not solved for
    whole: Result | None = None

    @property
    def table(self) -> IntArray:
        """Byte offset of every element in the first stage, in the tile's shape, from the block's start."""
        tile = self.problem.tile
        if isinstance(self.answer, Result):
            return self.answer.table() + self.base_bytes
        offsets = byte_table(offset_formula(self.answer, tile), tile)
        return offsets.repeat(tile.packed).reshape(tile.shape) + self.base_bytes


class Placed(Struct, frozen=True):
    """Tiles with a layout each; of one tile by itself, its part alone."""

    name: str  # of the problem
    device: Device  # the target
    parts: tuple[Part, ...]  # in the order of the file
    bytes: int = 0  # to the end of the last tile
    alignment_bytes: int = 1  # of the start of everything
    summary: str = ""  # what is known of it, in a line
    # The tiles that lie in the same bytes at different times, time by time
    times: tuple[tuple[str, ...], ...] = ()

    @property
    def alone(self) -> bool:
        """Whether it is one tile by itself, and no block."""
        return not self.parts[0].tile


def check_answer(problem: Problem | Block, gpu: Device, answer: Result | Arrangement) -> None:
    """Check what an answer that was read says of a problem: what each access costs, and where tiles lie.

    Raises:
        ProblemFileError: it is no answer to this problem, or says what does not hold.
    """
    tiles = groups(problem)
    if isinstance(problem, Problem):
        if isinstance(answer, Arrangement):
            raise ProblemFileError("schema", "the answer is for several tiles, the problem has one")
        if not isinstance(answer, Result):
            raise ProblemFileError("", f"expected the result of solve, got {described(answer)}")
        results = [answer]
    elif not isinstance(answer, Arrangement):
        raise ProblemFileError("schema", "the answer is for one tile, the problem has several")
    else:
        results = _results_of(problem, tiles, answer)
    for k, ((_, shared), result) in enumerate(zip(tiles, results, strict=bool(results))):
        with under(f"tiles[{k}].result") if isinstance(problem, Block) else nullcontext():
            check_claims(shared, gpu, result)
    if isinstance(problem, Block) and isinstance(answer, Arrangement) and results:
        _check_places(problem, tiles, answer)


def _results_of(block: Block, tiles: Groups, answer: Arrangement) -> list[Result]:
    """The results of an answer, one for each group of tiles that share a layout: ProblemFileError if not."""
    if answer.problem != block.name:
        raise ProblemFileError("problem", f"the result is of {answer.problem!r}, not of {block.name!r}")
    if answer.tiles and (most := block.layout.max_bytes) is not None and (answer.bytes or 0) > most:
        raise ProblemFileError("bytes", f"layout.max_bytes of the problem is {most}, not {answer.bytes}")
    names = [tuple(tile.name for tile in group) for group, _ in tiles]
    if answer.tiles and [layout.tiles for layout in answer.tiles] != names:
        raise ProblemFileError("tiles", f"expected layouts of {names}, in this order")
    return [layout.result for layout in answer.tiles]


def _check_places(block: Block, tiles: Groups, answer: Arrangement) -> None:
    """Check that every tile has its stages, each of the bytes that its layout takes: ProblemFileError."""
    by_name = {tile.name: tile for tile in block.tiles}
    for k, ((_, shared), layout) in enumerate(zip(tiles, answer.tiles, strict=True)):
        offsets = layout.result.table().ravel()
        for j, place in enumerate(layout.places):
            tile, at = by_name[place.tile], f"tiles[{k}].places[{j}]"
            if place.stages != tile.stages:
                raise ProblemFileError(f"{at}.stages", f"expected {tile.stages}, as the file has it")
            least = beginning_bytes(offsets, tile, shared.tile)
            if place.bytes < least:
                raise ProblemFileError(f"{at}.bytes", f"{place.tile} takes {least}, not {place.bytes}")


def placed(problem: Problem | Block, gpu: Device, answer: Result | Arrangement | str) -> Placed:
    """The tiles of a problem under the layouts of an answer, or the one tile under a formula."""
    if isinstance(problem, Problem):
        assert not isinstance(answer, Arrangement)
        whole = None if isinstance(answer, str) else answer
        part = Part("", base_bytes=0, stages=1, stage_bytes=0, problem=problem, answer=answer, whole=whole)
        return Placed(problem.name, gpu, (part,))
    assert isinstance(answer, Arrangement)
    assert answer.bytes is not None
    assert answer.alignment_bytes is not None
    results = {place.tile: (layout.result, place) for layout in answer.tiles for place in layout.places}
    shared = {tile.name: group.tile for tiles, group in groups(problem) for tile in tiles}
    parts = []
    for tile, tile_problem in zip(problem.tiles, problem.each, strict=True):
        whole, place = results[tile.name]
        where = place.base_bytes, place.stages, place.stage_bytes
        own = own_answer(whole, tile_problem, shared[tile.name])
        parts.append(Part(tile.name, *where, tile_problem, answer=own, whole=whole))
    summary = f"{answer.bytes} bytes, {answer.excess} excess wavefronts; {answer.status}"
    size, alignment = answer.bytes, answer.alignment_bytes
    return Placed(problem.name, gpu, tuple(parts), size, alignment, summary, times=problem.overlay)


def own_answer(result: Result, problem: Problem, whole: Tile) -> Result | str:
    """The part of a shared layout that one tile takes.

    A result, or, where that part is no `Layout` by itself, its element offset over x0, x1, ... as text.

    Args:
        result: the layout of `whole`, and what all accesses of the tiles that share it cost.
        problem: the tile and its accesses.
        whole: the largest tile that shares the layout, with the smallest elements.
    """
    assert result.layout is not None
    own_names = [access.name for access in problem.accesses]
    accesses = tuple(access for access in result.accesses if access.name in own_names)
    if accesses == result.accesses and alike(problem.tile, whole):
        return result
    if (layout := beginning(result.layout, problem.tile)) is not None:  # over the tile's own coordinates
        size = int(layout.table().max()) + layout.element_bytes
        excess = sum(access.excess for access in accesses)
        is_least = excess == 0 and size == problem.tile.bytes
        return replace(
            result,
            problem=problem.name,
            status=Status.OPTIMAL if is_least else Status.FEASIBLE,
            # What holds of any tile: what was proved of the group says nothing of this one.
            proof=Proof(Bound(0, EVERY_LAYOUT), Bound(problem.tile.bytes, EVERY_LAYOUT)),
            reason="" if is_least else "proved with the tiles that share the layout, not alone",
            layout=layout,
            offset=to_text(element_expression(layout)),
            bytes=size,
            declared_bytes=max(layout.declared_bytes, size),
            accesses=accesses,
            excess=excess,
            weighted_excess=None,  # weights may differ by iteration: no report of an access says its own
        )
    # The formula of `whole` at the coordinates that the tile's elements have there.
    coordinates = tuple(f"x{d}" for d in range(len(problem.tile.shape)))
    in_whole = viewed_index(coordinates, problem.tile, whole)
    values = {f"x{d}": offset_formula(text, problem.tile) for d, text in enumerate(in_whole)}
    node = substituted(offset_formula(result.offset or "", whole), values)
    ratio = problem.tile.element_bits // whole.element_bits
    if ratio != 1:  # the formula counts elements of `whole`, which are smaller
        node = Op("//", (node, Const(ratio)))
    return to_text(simplify(node, coordinate_ranges(problem.tile.shape)))


def placed_in_use(block: Block, gpu: Device) -> Placed:
    """The tiles of a block under their layouts in use, at the places that the file says.

    Raises:
        ProblemFileError: a tile says no layout, or the tiles cannot lie so.
    """
    audit = check(block, target=gpu)
    for finding in audit.findings:
        raise ProblemFileError("tiles", f"the block cannot hold its tiles so: {finding.message}")
    parts = []
    for problem, tile in zip(block.each, audit.tiles, strict=True):
        assert tile.audit.offset is not None
        where = tile.base_bytes, tile.stages, tile.stage_bytes
        parts.append(Part(tile.tile, *where, problem, answer=tile.audit.offset))
    alignment = max(tile.audit.alignment_bytes for tile in audit.tiles)
    summary = f"{audit.bytes} bytes, {audit.excess} excess wavefronts; as the file has it"
    return Placed(block.name, gpu, tuple(parts), audit.bytes, alignment, summary, times=block.overlay)
