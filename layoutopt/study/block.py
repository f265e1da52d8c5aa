"""Tiles with a layout each, and where they lie: one, or several, to each of which the same is done."""

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.lower import offset_formula
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.grammar import Const, Op, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import coordinate_ranges, element_expression
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, Proof, Result, Stages, Status
from layoutopt.problems.same_layout import alike, beginning, groups, viewed_index
from layoutopt.problems.types import Block, Problem, Tile
from layoutopt.study.check import check


class Part(Stages, frozen=True):
    """One tile.

    Attributes:
        problem: the tile and its accesses.
        answer: the layout: a result, or element offsets over x0, x1, ...
        whole: the result that it is of: the tile's, or that of all tiles that share its layout; None where
            the layout was not solved for.
    """

    problem: Problem
    answer: Result | str
    whole: Result | None = None


class Placed(Struct, frozen=True):
    """Tiles with a layout each; of one tile by itself, its part alone.

    Attributes:
        name: of the problem.
        device: the target.
        parts: in the order of the file.
        bytes: to the end of the last tile.
        alignment_bytes: of the start of everything.
        summary: what is known of it, in a line.
        times: the tiles that lie in the same bytes at different times, time by time.
    """

    name: str
    device: Device
    parts: tuple[Part, ...]
    bytes: int = 0
    alignment_bytes: int = 1
    summary: str = ""
    times: tuple[tuple[str, ...], ...] = ()

    @property
    def alone(self) -> bool:
        """Whether it is one tile by itself, and no block."""
        return not self.parts[0].tile


def placed(problem: Problem | Block, gpu: Device, answer: Result | Arrangement | str) -> Placed:
    """The tiles of a problem under the layouts of an answer, or the one tile under a formula."""
    if isinstance(problem, Problem):
        assert not isinstance(answer, Arrangement)
        whole = None if isinstance(answer, str) else answer
        return Placed(problem.name, gpu, (Part("", 0, 1, 0, problem, answer, whole),))
    assert isinstance(answer, Arrangement)
    assert answer.bytes is not None
    assert answer.alignment_bytes is not None
    where = {place.tile: (part.result, place) for part in answer.tiles for place in part.places}
    shared = {tile.name: one.tile for tiles, one in groups(problem) for tile in tiles}
    parts = []
    for tile, own in zip(problem.tiles, problem.each, strict=True):
        whole, place = where[tile.name]
        lies = place.base_bytes, place.stages, place.stage_bytes
        parts.append(Part(tile.name, *lies, own, own_answer(whole, own, shared[tile.name]), whole))
    summary = f"{answer.bytes} bytes, {answer.excess} excess wavefronts; {answer.status}"
    size, alignment = answer.bytes, answer.alignment_bytes
    return Placed(problem.name, gpu, tuple(parts), size, alignment, summary, problem.overlay)


def tables_of(asked: Problem | Block, answer: Result | Arrangement) -> IntArray | dict[str, IntArray]:
    """Byte offset of every element; of several tiles, each one's by its name, from the start of all."""
    if isinstance(asked, Problem) or isinstance(answer, Result):
        assert isinstance(answer, Result)
        return answer.table()
    tiles = {tile.name: tile for tile in asked.tiles}
    tables = {}
    for (_, problem), part in zip(groups(asked), answer.tiles, strict=True):
        offsets = part.result.table().ravel()
        for place in part.places:
            tile = tiles[place.tile]
            own = offsets[:: tile.element_bits // problem.tile.element_bits][: tile.elements]
            tables[place.tile] = own.reshape(tile.shape) + place.base_bytes
    return tables


def own_answer(result: Result, problem: Problem, whole: Tile) -> Result | str:
    """A tile's part of a layout of the tile `whole`, which it shares with others."""
    assert result.layout is not None
    own = [access.name for access in problem.accesses]
    accesses = tuple(access for access in result.accesses if access.name in own)
    if accesses == result.accesses and alike(problem.tile, whole):
        return result
    if (layout := beginning(result.layout, problem.tile)) is not None:
        size = int(layout.table().max()) + layout.element_bytes
        excess = sum(access.excess for access in accesses)
        sure = excess == 0 and size == problem.tile.bytes
        return replace(
            result,
            problem=problem.name,
            status=Status.OPTIMAL if sure else Status.FEASIBLE,
            proof=Proof(Bound(0, EVERY_LAYOUT), Bound(problem.tile.bytes, EVERY_LAYOUT)),
            reason="" if sure else "proved with the tiles that share the layout, not alone",
            layout=layout,
            offset=to_text(element_expression(layout)),
            bytes=size,
            declared_bytes=layout.declared_bytes,
            accesses=accesses,
            excess=excess,
            weighted_excess=None,
        )
    coordinates = tuple(f"x{d}" for d in range(len(problem.tile.shape)))
    views = viewed_index(coordinates, problem.tile, whole)
    node = offset_formula(result.offset or "", whole)
    own_node = substituted(
        node, {f"x{d}": offset_formula(text, problem.tile) for d, text in enumerate(views)}
    )
    ratio = problem.tile.element_bits // whole.element_bits
    own_node = own_node if ratio == 1 else Op("//", (own_node, Const(ratio)))
    return to_text(simplify(own_node, coordinate_ranges(problem.tile.shape)))


def placed_in_use(block: Block, gpu: Device) -> Placed:
    """Several tiles as the file says that they ship: each tile's layout, and where it lies.

    Raises:
        ProblemFileError: a tile says no layout, or the tiles cannot lie so.
    """
    audit = check(block, target=gpu)
    for finding in audit.findings:
        raise ProblemFileError("tiles", f"the block cannot hold its tiles so: {finding.message}")
    parts = []
    for own, part in zip(block.each, audit.tiles, strict=True):
        assert part.audit.offset is not None
        lies = part.base_bytes, part.stages, part.stage_bytes
        parts.append(Part(part.tile, *lies, own, part.audit.offset))
    alignment = max(part.audit.alignment_bytes for part in audit.tiles)
    summary = f"{audit.bytes} bytes, {audit.excess} excess wavefronts; as the file has it"
    return Placed(block.name, gpu, tuple(parts), audit.bytes, alignment, summary, block.overlay)
