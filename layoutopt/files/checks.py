"""What the types of a problem cannot say: fields that contradict one another, or name what there is not."""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from layoutopt.accesses.hardware_access import check_cluster, check_target, check_use
from layoutopt.errors import ProblemFileError
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
_RESERVED: Final = frozenset(("tid", "lane", "warp", "min", "max"))
# Constraints that hold for all tiles; the others are of one tile.
_OF_ALL: Final = frozenset(("families", "max_bytes", "alignment_bytes", "pitch_multiple_bytes", "minimise"))


def check(problem: Problem | Block) -> None:
    """Check what types cannot say.

    Raises:
        ProblemFileError: a field contradicts another, or names what there is not.
    """
    if isinstance(problem, Block):
        _check_block(problem)
    else:
        _check_tile(problem)


def _check_tile(problem: Problem) -> None:
    tile, dims = problem.tile, len(problem.tile.shape)
    check_element(tile)
    if tile.elements > MAX_ELEMENTS:
        raise ProblemFileError("tile.shape", f"at most {MAX_ELEMENTS} elements, not {tile.elements}")
    if tile.shape[-1] % tile.packed:
        raise ProblemFileError(
            f"tile.shape[{dims - 1}]",
            f"{tile.packed} {tile.element} elements share a byte, so that the last extent is a multiple "
            f"of {tile.packed}, not {tile.shape[-1]}",
        )
    seen: dict[str, int] = {}
    for i, access in enumerate(problem.accesses):
        if access.name in seen:
            raise ProblemFileError(
                f"accesses[{i}].name", f"{access.name!r} is already the name of accesses[{seen[access.name]}]"
            )
        seen[access.name] = i
        if len(access.index) != dims:
            raise ProblemFileError(
                f"accesses[{i}].index",
                f"expected one expression for each of {dims} dimensions, got {len(access.index)}",
            )
        for place, variables in (("for", access.loops), ("any", access.any)):
            reserved = {v for v in variables if v in _RESERVED or keyword.iskeyword(v)}
            if reserved:
                raise ProblemFileError(
                    f"accesses[{i}].{place}", f"{min(reserved)!r} is reserved; choose another variable"
                )
        if twice := access.loops.keys() & access.any.keys():
            raise ProblemFileError(f"accesses[{i}].any", f"{min(twice)!r} is a variable of `for`, too")
        _check_freedom(access, f"accesses[{i}]")
        check_use(access, f"accesses[{i}]", tile)
    check_target(problem)
    check_cluster(problem)
    check_dictated(problem)
    order = problem.layout.order
    if order is not None and sorted(order) != list(range(dims)):
        raise ProblemFileError("layout.order", f"expected each of 0..{dims - 1} once, got {list(order)}")
    alignment = problem.layout.alignment_bytes
    if alignment is not None and alignment & (alignment - 1):
        raise ProblemFileError("layout.alignment_bytes", f"expected a power of two, got {alignment}")
    pitch = problem.layout.pitch_multiple_bytes
    if pitch is not None and pitch > MAX_PITCH_MULTIPLE_BYTES:
        raise ProblemFileError(
            "layout.pitch_multiple_bytes", f"expected at most {MAX_PITCH_MULTIPLE_BYTES} bytes, got {pitch}"
        )


def _check_freedom(access: Access, field: str) -> None:
    """Check that free lanes leave nothing else open, and that nothing is asked of lanes that are not free.

    Raises:
        ProblemFileError: it does.
    """
    for name, given in (("global", access.global_), ("order", access.order)):
        if given is not None and access.lanes is None:
            raise ProblemFileError(f"{field}.{name}", 'is for accesses with "lanes": "free"')
    if not access.is_free:
        return
    freedom = "lanes" if access.lanes is not None else "values"
    if isinstance(access.bytes, tuple):
        raise ProblemFileError(f"{field}.bytes", f"one width is expected where {freedom} are free")
    if access.any:
        raise ProblemFileError(f"{field}.any", f"no value is left to run time where {freedom} are free")


def check_dictated(problem: Problem) -> None:
    """Check that nothing is left open beside a layout that the hardware dictates.

    Raises:
        ProblemFileError: what the hardware knows and another constraint contradict each other.
    """
    if not problem.is_dictated:
        return
    why = "must_be" if problem.layout.must_be is not None else "an access of the hardware by itself"
    for field in ("families", "pitch_multiple_bytes"):
        if getattr(problem.layout, field) is not None:
            raise ProblemFileError(f"layout.{field}", f"{why} leaves no choice of this; remove one of them")


def check_element(tile: Tile) -> None:
    """Check that a tile's element is one that there is.

    Raises:
        ProblemFileError: it is not, or its alignment does not divide its size.
    """
    named = {*ELEMENT_BYTES, *PACKED_BITS}
    if isinstance(tile.element, str) and tile.element not in named:
        known = ", ".join((*ELEMENT_BYTES, *PACKED_BITS))
        raise ProblemFileError(
            "tile.element", f'unknown type {tile.element!r}; known: {known}, or {{"bytes": n}}'
        )
    size, alignment = tile.storage.element_bytes, tile.element_alignment
    if size % alignment:
        raise ProblemFileError(
            "tile.element.align", f"expected a divisor of the {size} bytes of an element, got {alignment}"
        )


def _check_block(block: Block) -> None:
    names = [tile.name for tile in block.tiles]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ProblemFileError(
                f"tiles[{i}].name", f"{name!r} is already the name of tiles[{names.index(name)}]"
            )
    named = [access.name for access in block.accesses]
    for i, access in enumerate(block.accesses):
        if access.tile not in names:
            raise ProblemFileError(
                f"accesses[{i}].tile", f"no tile is called {access.tile!r}; there are {', '.join(names)}"
            )
        if access.name in named[:i]:
            raise ProblemFileError(
                f"accesses[{i}].name",
                f"{access.name!r} is already the name of accesses[{named.index(access.name)}]",
            )
    for i, tile in enumerate(block.tiles):
        if not tile.layout.objective.excess_first:
            raise ProblemFileError(
                f"tiles[{i}].layout.minimise", "is asked of all tiles together; expected as layout.minimise"
            )
    for field, value in msgspec.structs.asdict(block.layout).items():
        if field not in _OF_ALL and value != getattr(Constraints(), field):
            raise ProblemFileError(
                f"layout.{field}", f"belongs to one tile; expected as tiles[i].layout.{field}"
            )
    for i, tile in enumerate(block.tiles):
        if all(access.tile != tile.name for access in block.accesses):
            raise ProblemFileError(f"tiles[{i}]", f"no access names the tile {tile.name!r}")
        with fields_of(block, tile):
            problem = block.problem(tile)
            if problem.layout.families == ():
                raise ProblemFileError(
                    "layout.families",
                    f"{', '.join(tile.layout.families or ())} are allowed here, of all tiles "
                    f"{', '.join(block.layout.families or ())}: none remains",
                )
            _check_tile(problem)
    _check_overlay(block)


def _check_overlay(block: Block) -> None:
    tiles = {tile.name: tile for tile in block.tiles}
    seen: dict[str, str] = {}
    for t, time in enumerate(block.overlay):
        for k, name in enumerate(time):
            place = f"overlay[{t}][{k}]"
            _check_named_once(name, place, tiles, seen)
    _check_shared(block, tiles)


def _check_named_once(name: str, place: str, tiles: Mapping[str, NamedTile], seen: dict[str, str]) -> None:
    """Check that a name is a tile's and stands nowhere else; `seen` says where each stands."""
    if name not in tiles:
        raise ProblemFileError(place, f"no tile is called {name!r}; there are {', '.join(tiles)}")
    if name in seen:
        raise ProblemFileError(place, f"{name!r} already stands in {seen[name]}")
    seen[name] = place


def _check_shared(block: Block, tiles: Mapping[str, NamedTile]) -> None:
    """Check what tiles that share a layout have in common."""
    shared = block.same_layout
    if not shared:
        return
    if not isinstance(shared, tuple):
        if len(block.overlay) < 2 or any(len(time) > 1 for time in block.overlay):
            raise ProblemFileError("same_layout", "needs an overlay of two or more times, one tile at each")
        _check_alike(block, [tiles[time[0]] for time in block.overlay], ("stages",))
        return
    seen: dict[str, str] = {}
    for g, names in enumerate(shared):
        for k, name in enumerate(names):
            place = f"same_layout[{g}][{k}]"
            _check_named_once(name, place, tiles, seen)
        times = {next((t for t, time in enumerate(block.overlay) if name in time), None) for name in names}
        if len(times) > 1:
            raise ProblemFileError(
                f"same_layout[{g}]", "lists tiles side by side, and the overlay has them at several times"
            )
        _check_alike(block, [tiles[name] for name in names], ())


def _check_alike(block: Block, shared: Sequence[NamedTile], fields: tuple[str, ...]) -> None:
    first, *others = shared
    for tile in others:
        place = f"tiles[{block.tiles.index(tile)}]"

        def asked(what: str, given: object = None, place: str = place) -> ProblemFileError:
            but = "" if given is None else f", not {given}"
            return ProblemFileError(place, f"same_layout asks for {what}, as {first.name!r} has{but}")

        for field in fields:
            if getattr(tile, field) != getattr(first, field):
                raise asked(f"{getattr(first, field)} {field}", getattr(tile, field))
        if tile.layout != first.layout:
            raise asked("the same layout constraints")
        mixed = tile.element_bits != first.element_bits
        for member in (tile, first) if mixed else ():
            bits = member.element_bits
            if bits & (bits - 1) or bits < 8 or member.element_alignment * 8 != bits:
                raise ProblemFileError(
                    f"tiles[{block.tiles.index(member)}].element",
                    "elements of several sizes share a layout where each is a power of two of bytes",
                )
        if mixed or tile.shape != first.shape:
            for i, access in enumerate(block.accesses):
                if access.hardware is not None and access.tile in (tile.name, first.name):
                    raise ProblemFileError(
                        f"accesses[{i}]",
                        f"{access.op} needs tiles of one shape and element for same_layout; "
                        "with several, give such accesses one mode",
                    )
                if access.is_free and access.tile in (tile.name, first.name):
                    freedom = "lanes" if access.lanes is not None else "values"
                    raise ProblemFileError(
                        f"accesses[{i}].{freedom}",
                        "free ones need tiles of one shape and element for same_layout",
                    )


@contextlib.contextmanager
def fields_of(block: Block, tile: NamedTile, *others: NamedTile) -> Iterator[None]:
    """Errors about a problem made of `tile` name the fields of the file that holds all tiles.

    Args:
        block: the file.
        tile: whose tile and constraints the problem has.
        others: whose accesses follow those of `tile`.
    """
    try:
        yield
    except ProblemFileError as error:
        i = block.tiles.index(tile)
        mine = [
            k
            for member in (tile, *others)
            for k, access in enumerate(block.accesses)
            if access.tile == member.name
        ]
        place = error.field
        if place.startswith("accesses["):
            place = re.sub(r"\d+", lambda match: str(mine[int(match[0])]), place, count=1)
        elif place.startswith("tile"):
            place = f"tiles[{i}]{place.removeprefix('tile')}"
        elif place.startswith("layout."):
            own = getattr(tile.layout, place.removeprefix("layout."), None)
            place = f"tiles[{i}].{place}" if own is not None else place
        elif place.startswith("published"):
            place = f"tiles[{i}].{place}"
        elif place in ("", "accesses"):
            place = f"tiles[{i}]"
        error.field = place
        error.args = (f"{place}: {error.reason}",)
        raise
