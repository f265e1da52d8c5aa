"""What the types of a problem cannot say: fields that contradict one another, or name what there is not."""

import contextlib
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from layoutopt.accesses.hardware_access import wrong_cluster, wrong_target, wrong_use
from layoutopt.errors import ProblemFileError, Wrong, raise_first, under
from layoutopt.files.templates import RESERVED
from layoutopt.problems.types import (
    ELEMENT_BYTES,
    PACKED_BITS,
    Access,
    Block,
    Constraints,
    NamedTile,
    Problem,
    Tile,
)

MAX_ELEMENTS: Final = 1 << 21
MAX_PITCH_MULTIPLE_BYTES: Final = 1 << 20  # more than any GPU has shared memory
# Constraints that hold for all tiles; the others are of one tile.
_OF_ALL: Final = frozenset(("families", "max_bytes", "alignment_bytes", "pitch_multiple_bytes", "minimise"))


def check(problem: Problem | Block) -> None:
    """Check what types cannot say.

    Raises:
        ProblemFileError: a field contradicts another, or names what there is not.
    """
    if isinstance(problem, Problem):
        _check_tile(problem)
        return
    raise_first(_wrong_in_block(problem))
    for i, tile in enumerate(problem.tiles):
        if all(access.tile != tile.name for access in problem.accesses):
            raise ProblemFileError(f"tiles[{i}]", f"no access names the tile {tile.name!r}")
        with fields_of(problem, tile):
            own = problem.problem(tile)
            if own.layout.families == ():
                here, there = (", ".join(c.families or ()) for c in (tile.layout, problem.layout))
                wrong = f"{here} are allowed here, of all tiles {there}: none remains"
                raise ProblemFileError("layout.families", wrong)
            _check_tile(own)
    raise_first(_wrong_in_overlay(problem))


def _check_tile(problem: Problem) -> None:
    """`check` of one tile."""
    check_element(problem.tile)
    raise_first(_wrong_in_tile(problem))
    for i, access in enumerate(problem.accesses):
        with under(f"accesses[{i}]"):
            raise_first(wrong_use(access, problem.tile))
    raise_first(wrong_target(problem))
    raise_first(wrong_cluster(problem))
    check_dictated(problem)
    raise_first(_wrong_in_layout(problem.layout, len(problem.tile.shape)))


def _named_twice(place: str, names: Sequence[str]) -> Wrong:
    """Equal names in the list at `place` of the file."""
    for i, name in enumerate(names):
        if (first := names.index(name)) < i:
            yield f"{place}[{i}].name", f"{name!r} is already the name of {place}[{first}]"


def _wrong_in_tile(problem: Problem) -> Wrong:
    """What is wrong with the shape, and with the index and variables of each access."""
    tile, dims = problem.tile, len(problem.tile.shape)
    if tile.elements > MAX_ELEMENTS:
        yield "tile.shape", f"at most {MAX_ELEMENTS} elements, not {tile.elements}"
    if tile.shape[-1] % tile.packed:
        sharing = f"{tile.packed} {tile.element} elements share a byte, so that the last extent is a multiple"
        yield f"tile.shape[{dims - 1}]", f"{sharing} of {tile.packed}, not {tile.shape[-1]}"
    yield from _named_twice("accesses", [access.name for access in problem.accesses])
    for i, access in enumerate(problem.accesses):
        field, count = f"accesses[{i}]", len(access.index)
        if count != dims:
            yield f"{field}.index", f"expected one expression for each of {dims} dimensions, got {count}"
        for place, variables in (("for", access.loops), ("any", access.any)):
            if reserved := {v for v in variables if v in RESERVED or keyword.iskeyword(v)}:
                yield f"{field}.{place}", f"{min(reserved)!r} is reserved; choose another variable"
        if twice := access.loops.keys() & access.any.keys():
            yield f"{field}.any", f"{min(twice)!r} is a variable of `for`, too"
        yield from _wrong_in_freedom(access, field)


def _wrong_in_freedom(access: Access, field: str) -> Wrong:
    """What contradicts that lanes, values or instructions of the access at `field` are free, or are not."""
    for name, value in (("global", access.global_), ("order", access.order)):
        if value is not None and access.lanes is None:
            yield f"{field}.{name}", 'is for accesses with "lanes": "free"'
    kinds = {"lanes": access.lanes, "values": access.values, "instructions": access.instructions}
    free = [kind for kind, value in kinds.items() if value is not None]
    freedom = next(iter(free), "")
    if "instructions" in free and len(free) > 1:
        yield f"{field}.instructions", f"cannot be free where {freedom} are"
    for k, name in enumerate(access.instructions if isinstance(access.instructions, tuple) else ()):
        if name not in access.loops:
            loops = ", ".join(access.loops) or "none"
            yield f"{field}.instructions[{k}]", f"expected a loop of the access ({loops}), got {name!r}"
    if access.is_free and isinstance(access.bytes, tuple):
        yield f"{field}.bytes", f"one width is expected where {freedom} are free"
    if access.is_free and access.any:
        yield f"{field}.any", f"no value is left to run time where {freedom} are free"


def _wrong_in_layout(layout: Constraints, dims: int) -> Wrong:
    order, alignment, pitch = layout.order, layout.alignment_bytes, layout.pitch_multiple_bytes
    if order is not None and sorted(order) != list(range(dims)):
        yield "layout.order", f"expected each of 0..{dims - 1} once, got {list(order)}"
    if alignment is not None and alignment & (alignment - 1):
        yield "layout.alignment_bytes", f"expected a power of two, got {alignment}"
    if pitch is not None and pitch > MAX_PITCH_MULTIPLE_BYTES:
        most = f"expected at most {MAX_PITCH_MULTIPLE_BYTES} bytes"
        yield "layout.pitch_multiple_bytes", f"{most}, got {pitch}"


def check_dictated(problem: Problem) -> None:
    """Check that nothing is left open beside a layout that the hardware dictates.

    Raises:
        ProblemFileError: what the hardware knows and another constraint contradict each other.
    """
    if not problem.is_dictated:
        return
    for field in ("families", "pitch_multiple_bytes"):
        if getattr(problem.layout, field) is not None:
            why = "an access of the hardware by itself leaves no choice of this; remove one of them"
            raise ProblemFileError(f"layout.{field}", why)


def check_element(tile: Tile) -> None:
    """Check that a tile's element is one that there is.

    Raises:
        ProblemFileError: it is not, or its alignment does not divide its size.
    """
    named = {*ELEMENT_BYTES, *PACKED_BITS}
    if isinstance(tile.element, str) and tile.element not in named:
        known = ", ".join((*ELEMENT_BYTES, *PACKED_BITS))
        wrong = f'unknown type {tile.element!r}; known: {known}, or {{"bytes": n}}'
        raise ProblemFileError("tile.element", wrong)
    size, alignment = tile.storage.element_bytes, tile.element_alignment
    if size % alignment:
        wrong = f"expected a divisor of the {size} bytes of an element, got {alignment}"
        raise ProblemFileError("tile.element.align", wrong)


def _wrong_in_block(block: Block) -> Wrong:
    names = [tile.name for tile in block.tiles]
    yield from _named_twice("tiles", names)
    for i, access in enumerate(block.accesses):
        if access.tile not in names:
            there = f"there are {', '.join(names)}"
            yield f"accesses[{i}].tile", f"no tile is called {access.tile!r}; {there}"
    yield from _named_twice("accesses", [access.name for access in block.accesses])
    for i, tile in enumerate(block.tiles):
        if not tile.layout.objective.excess_first:
            expected = "is asked of all tiles together; expected as layout.minimise"
            yield f"tiles[{i}].layout.minimise", expected
    for field, value in msgspec.structs.asdict(block.layout).items():
        if field not in _OF_ALL and value != getattr(Constraints(), field):
            yield f"layout.{field}", f"belongs to one tile; expected as tiles[i].layout.{field}"


def _wrong_in_overlay(block: Block) -> Wrong:
    """What is wrong with tiles that lie in the same bytes, or share a layout."""
    tiles = {tile.name: tile for tile in block.tiles}
    yield from _not_named_once("overlay", block.overlay, tiles)
    shared = block.same_layout
    if isinstance(shared, tuple):
        yield from _not_named_once("same_layout", shared, tiles)
        for g, names in enumerate(shared):
            times = {next((t for t, at in enumerate(block.overlay) if name in at), None) for name in names}
            if len(times) > 1:
                apart = "lists tiles side by side, and the overlay has them at several times"
                yield f"same_layout[{g}]", apart
            yield from _not_alike(block, [tiles[name] for name in names], ())
    elif shared:
        if len(block.overlay) < 2 or any(len(time) > 1 for time in block.overlay):
            yield "same_layout", "needs an overlay of two or more times, one tile at each"
        yield from _not_alike(block, [tiles[time[0]] for time in block.overlay], ("stages",))


def _not_named_once(field: str, lists: Sequence[Sequence[str]], tiles: Mapping[str, NamedTile]) -> Wrong:
    """Names in lists that are no tile's, or stand in another place already."""
    seen: dict[str, str] = {}
    for g, names in enumerate(lists):
        for k, name in enumerate(names):
            place = f"{field}[{g}][{k}]"
            if name not in tiles:
                yield place, f"no tile is called {name!r}; there are {', '.join(tiles)}"
            if name in seen:
                yield place, f"{name!r} already stands in {seen[name]}"
            seen[name] = place


def _not_alike(block: Block, shared: Sequence[NamedTile], fields: tuple[str, ...]) -> Wrong:
    """What keeps tiles from sharing the layout of the first of them.

    Their `fields` and constraints must be equal. Tiles of several shapes or elements need elements of a power
    of two of bytes, and accesses by lanes that are not free.
    """
    first, *others = shared
    for tile in others:
        place = f"tiles[{block.tiles.index(tile)}]"
        asked, has = "same_layout asks for", f"as {first.name!r} has"
        for field in fields:
            required, value = getattr(first, field), getattr(tile, field)
            if value != required:
                yield place, f"{asked} {required} {field}, {has}, not {value}"
        if tile.layout != first.layout:
            yield place, f"{asked} the same layout constraints, {has}"
        mixed = tile.element_bits != first.element_bits
        for member in (tile, first) if mixed else ():
            bits = member.element_bits
            if bits & (bits - 1) or bits < 8 or member.element_alignment * 8 != bits:
                each = "elements of several sizes share a layout where each is a power of two of bytes"
                yield f"tiles[{block.tiles.index(member)}].element", each
        if not mixed and tile.shape == first.shape:
            continue
        for i, access in enumerate(block.accesses):
            if access.tile not in (tile.name, first.name):
                continue
            if access.hardware is not None:
                needs = f"{access.op} needs tiles of one shape and element for same_layout"
                yield f"accesses[{i}]", f"{needs}; with several, give such accesses one mode"
            if access.is_free:
                freedom = "lanes" if access.lanes is not None else "values"
                needs = "free ones need tiles of one shape and element for same_layout"
                yield f"accesses[{i}].{freedom}", needs


@contextlib.contextmanager
def fields_of(block: Problem | Block, *tiles: NamedTile) -> Iterator[None]:
    """Errors about a problem made of tiles name the fields of the file that holds all of them.

    Args:
        block: the file; where it has one tile by itself, the fields are those already.
        tiles: the first is that whose tile and constraints the problem has, and whose accesses come first.
    """
    try:
        yield
    except ProblemFileError as error:
        if isinstance(block, Problem):
            raise
        tile, i = tiles[0], block.tiles.index(tiles[0])
        by_tile = [(k, access.tile) for k, access in enumerate(block.accesses)]
        numbers = [k for member in tiles for k, name in by_tile if name == member.name]  # in the file
        place = error.field
        if place.startswith("accesses["):
            place = re.sub(r"\d+", lambda match: str(numbers[int(match[0])]), place, count=1)
        elif place.startswith("tile"):
            place = f"tiles[{i}]{place.removeprefix('tile')}"
        elif place.startswith("layout."):
            own = getattr(tile.layout, place.removeprefix("layout."), None)
            place = f"tiles[{i}].{place}" if own is not None else place
        elif place.startswith("published"):
            place = f"tiles[{i}].{place}"
        elif place in ("", "accesses"):
            place = f"tiles[{i}]"
        error.move(place)
        raise
