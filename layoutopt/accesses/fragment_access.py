"""Accesses that name a matrix fragment, as ordinary ones.

An instruction delivers bytes of shared memory to fixed lanes and registers, so not every instruction
can load every fragment from every tile. Each expansion is therefore compared, at every lane, warp,
iteration and register, with the table of the fragment.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import numpy as np
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from layoutopt.accesses.ownership import element_destinations
from layoutopt.accesses.trace import expression_ranges
from layoutopt.errors import ProblemFileError, under
from layoutopt.expressions.fit import fit, join
from layoutopt.expressions.grammar import Const, Node, Op, Var, evaluate, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground import json_data
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.fragments import Fragment, fragments
from layoutopt.hardware.operations import Operation, parse_operation
from layoutopt.problems.types import Access, Expression, Identifier, NamedAccess, Positive, Problem, Tile

COORDINATES: Final = ("m", "n", "k")
# Tile elements that may hold several elements of a fragment.
CONTAINERS: Final = ("i8", "u8", "b8", "u16", "b16", "i32", "u32", "b32", "f16x2", "bf16x2", "b64", "b128")
MAX_PLACES: Final = 1 << 22


class FragmentAccess(NamedAccess, frozen=True, kw_only=True, rename={"loops": "for"}):
    """A matrix fragment, moved between shared memory and registers by every warp."""

    op: Annotated[str, Meta(description="ldmatrix.x4, stmatrix.x2.trans, load, store, ...")]
    fragment: Annotated[str, Meta(description="Such as mma.m16n8k16.A.f16")]
    bytes: Annotated[int | None, Meta(description="Width of a load or store")] = None
    warps: (
        Annotated[
            tuple[Positive, ...],
            Meta(
                min_length=2,
                max_length=3,
                description="Warps along m, n and, if given, k; the number of a warp counts along m first",
            ),
        ]
        | None
    ) = None
    first_warp: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="The first warp that takes part, where only those of warps do; they follow it"),
    ] = None
    repeat: Annotated[
        dict[Literal["m", "n", "k"], Positive],
        Meta(description="Instructions of one warp along each coordinate, side by side"),
    ] = field(default_factory=dict)
    index: Annotated[
        tuple[Expression | int, ...] | None,
        Meta(description="Coordinates in the tile, over m, n, k beside tid, lane, warp and loop variables"),
    ] = None
    loops: Annotated[dict[Identifier, Positive], Meta(description="Further loop variables")] = field(
        default_factory=dict
    )
    where: Annotated[Expression | None, Meta(description="Lanes for which this is 0 do not take part")] = None


def _find(name: str) -> Fragment:
    if name in fragments():
        return fragments()[name]
    import difflib

    near = difflib.get_close_matches(name, fragments(), n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; docs/fragments.md lists them"
    raise ProblemFileError("fragment", f"unknown fragment {name!r}{hint}")


def _in_tile_elements(fragment: Fragment, tile: Tile) -> Fragment:
    """The fragment with the tile's elements as values; a wide one packs several values of a lane.

    An accumulator is instead converted in registers, value by value, to a tile element that is no container.
    """
    bits = tile.element_bits
    if bits == fragment.bits:
        return fragment
    count, rest = divmod(bits, fragment.bits)
    if rest or (isinstance(tile.element, str) and tile.element not in CONTAINERS):
        if fragment.is_result:
            return replace(fragment, bits=bits)
        wrong = f"{fragment.name} has elements of {fragment.bits} bits, the tile of {bits}"
        raise ProblemFileError("fragment", wrong)
    along = next((c for c in fragment.at if _is_packed_along(c, fragment, count)), None)
    if along is None:
        what = f"{count} consecutive elements, which one {bits}-bit element of the tile is"
        raise ProblemFileError("fragment", f"{fragment.name}: no lane holds {what}")
    packed = {c: count if c == along else 1 for c in fragment.at}
    at = {c: table[:, :, ::count] // packed[c] for c, table in fragment.at.items()}
    return replace(fragment, bits=bits, at=at, extent={c: e // packed[c] for c, e in fragment.extent.items()})


def _is_packed_along(coordinate: str, fragment: Fragment, count: int) -> bool:
    """Whether every `count` values of a lane are consecutive in a coordinate, aligned to their count."""
    if fragment.values % count:
        return False
    for c, table in fragment.at.items():
        groups = table.reshape(*table.shape[:2], -1, count)
        if (groups - groups[..., :1] != (np.arange(count) if c == coordinate else 0)).any():
            return False
    return not (fragment.at[coordinate][:, :, ::count] % count).any()


class _Move(Struct, frozen=True):
    """One access to a fragment, its fields checked.

    Attributes:
        held: the fragment, in tile elements.
        at: int64, shape (lanes, warps, values), by coordinate: what one or more repetitions hold.
        operation: the instruction.
        moved: values that it moves for a lane.
        pieces: how many of it move all values.
        stride: from one repetition to the next, by coordinate.
        groups: by what the group number is divided, and how many groups lie along the coordinate.
        repeat: repetitions that remain as loops.
        turn: what is added to a warp, modulo all that take part, so that the first of them is 0.
        taking: the warps that take part; None for all.
    """

    held: Fragment
    at: dict[str, IntArray]
    operation: Operation
    moved: int
    pieces: int
    stride: dict[str, int]
    groups: dict[str, tuple[int, int]]
    repeat: dict[str, int]
    turn: int
    taking: range | None

    def where(self, given: str | None, warps: int) -> str | None:
        """The predicate of an access that says `given`, in a block of so many warps."""
        if self.taking is None:
            return given
        above = f"warp >= {self.taking.start}" if self.taking.start else ""
        below = f"warp < {self.taking.stop}" if self.taking.stop < warps else ""
        parts = [part for part in (above, below, given) if part]
        return " & ".join(f"({part})" for part in parts) if len(parts) > 1 else "".join(parts) or None

    def moved_from(self, lane: IntArray, piece: IntArray, element: int = 0) -> tuple[IntArray, IntArray]:
        """The lane that holds the element so many places after a lane's address, and which value it is."""
        holder, value = element_destinations(self.operation, self.held.bits, self.held.lanes)
        return holder[lane, element], self.moved * piece + value[lane, element]

    def steps(self) -> dict[str, str]:
        """The loop variable of every coordinate that has one."""
        return {c: f"{c}_step" for c, count in self.repeat.items() if count > 1}


def from_fragment(data: Mapping[str, Any], head: Problem) -> Access:
    """The data of a `FragmentAccess` as an ordinary access, checked at every register.

    Raises:
        ProblemFileError: a field is wrong, or the instruction cannot move the fragment.
    """
    access, tile, threads = json_data.convert(data, FragmentAccess), head.tile, head.threads
    move = _move(access, tile, threads)
    held = move.held
    new = {name: move.repeat[c] for c, name in move.steps().items()}
    if move.pieces > 1:
        new["piece"] = move.pieces
    for name in access.loops:
        if name in new or name in COORDINATES or name in ("tid", "lane", "warp"):
            raise ProblemFileError("for", f"{name!r} is reserved; choose another variable")
    loops = {**access.loops, **new}

    texts = access.index if access.index is not None else tuple(held.extent)
    if len(texts) != len(tile.shape):
        hint = f' (without "index" it is {", ".join(held.extent)})' if access.index is None else ""
        wanted = f"one expression for each of {len(tile.shape)} dimensions"
        raise ProblemFileError("index", f"expected {wanted}{hint}")
    variables = frozenset({*held.extent, "tid", "lane", "warp", *access.loops})
    index = []
    for d, text in enumerate(texts):
        with under(f"index[{d}]"):
            index.append(parse(str(text), variables))
    _verify(move, index, access, threads)

    coordinates = {c: _coordinate(move, c) for c in held.extent}
    ranges = expression_ranges(threads, held.lanes, loops)
    written = tuple(to_text(simplify(substituted(node, coordinates), ranges)) for node in index)
    where = move.where(access.where, threads // held.lanes)
    return access.ordinary(index=written, loops=loops, where=where)


def _move(access: FragmentAccess, tile: Tile, threads: int) -> _Move:
    """What one instruction of the access moves of the fragment; refused where they do not fit."""
    held = _in_tile_elements(_find(access.fragment), tile)
    operation = parse_operation(access.op, access.bytes)
    repeat: dict[str, int] = {str(coordinate): count for coordinate, count in access.repeat.items()}
    for c in repeat:
        if c not in held.extent:
            known = " and ".join(held.extent)
            raise ProblemFileError("repeat", f"{access.fragment} has {known}, not {c}")
    bits = tile.element_bits
    if operation.kind == "load.tr" and not access.op.endswith(f"b64_tr_b{bits}"):
        other = f"the tile's elements have {bits}, and the op is {access.op}"
        wrong = f"ds_read_b64_tr_b16, b8 and b4 move fragments of as many bits; {other}"
        raise ProblemFileError("op", wrong)
    span_bits = 8 * (4 * operation.matrices or operation.width_bytes)
    if span_bits % bits or (operation.matrices and bits > 32) or (operation.transposed and bits != 16):
        raise ProblemFileError("op", f"{access.op} does not move elements of {bits} bits")
    moved = span_bits // bits
    at, stride = held.at, dict(held.extent)
    if moved > held.values:
        c = next(iter(repeat), "")
        more = moved // held.values
        if not c or moved % held.values or repeat[c] % more:
            given = f"{c} is repeated {repeat[c]} times" if c else "nothing is repeated"
            raise ProblemFileError(
                "repeat",
                f"{access.op} moves {moved} values a lane and {held.name} has {held.values}: the first "
                f"coordinate of repeat must be repeated a multiple of {more} times, but {given}",
            )
        shift = {d: held.extent[c] if d == c else 0 for d in at}
        at = {d: np.concatenate([t + shift[d] * u for u in range(more)], axis=2) for d, t in at.items()}
        stride[c] *= more
        repeat[c] //= more
    values = next(iter(at.values())).shape[2]
    if values % moved:
        raise ProblemFileError("op", f"{access.op} moves {moved} values a lane, but a lane holds {values}")
    groups = _groups(access, held, threads)
    taking: range | None = None
    turn = 0
    if access.first_warp is not None:
        count = held.warps * math.prod(size for _, size in groups.values())
        taking, turn = range(access.first_warp, access.first_warp + count), -access.first_warp % count
    return _Move(held, at, operation, moved, values // moved, stride, groups, repeat, turn, taking)


def _groups(access: FragmentAccess, held: Fragment, threads: int) -> dict[str, tuple[int, int]]:
    """How groups of warps lie along the coordinates: {"m": (divide, size)}, group g at g // divide % size.

    A group is as many warps as hold one fragment. Refused where these are not the warps of the block.
    """
    unit = held.lanes * held.warps
    first = access.first_warp
    if threads % unit and first is None:
        wrong = f"{held.name} needs whole groups of {unit} threads, not {threads}"
        raise ProblemFileError("threads", wrong, of_file=True)
    count = threads // unit
    if access.warps is None and count > 1 and first is None:
        what = "warps" if held.warps == 1 else f"groups of {held.warps} warps"
        advice = f'say how they lie, such as "warps": [{count}, 1]'
        raise ProblemFileError("warps", f"the block has {count} {what}: {advice}")
    along = access.warps or (1, 1)
    said = " x ".join(map(str, along))
    if first is not None:
        last = first + held.warps * math.prod(along)
        if first % held.warps:
            wrong = f"groups of {held.warps} warps begin at a multiple of that, not at {first}"
            raise ProblemFileError("first_warp", wrong)
        if last > threads // held.lanes:
            ends = f"{said} from warp {first} on end at {last}"
            raise ProblemFileError("warps", f"{ends}, and there are {count * held.warps} warps")
    elif math.prod(along) != count:
        hint = "; first_warp says which, where not all take part" if math.prod(along) < count else ""
        raise ProblemFileError("warps", f"{said} is not {count}, which {threads} threads make{hint}")
    groups, divide = {}, 1
    for c, size in zip(COORDINATES, along, strict=False):
        groups[c] = (divide, size)
        divide *= size
    return groups


def _coordinate(move: _Move, c: str) -> Node:
    """Coordinate `c` of the element at a lane's address, over lane, warp and the loops."""
    held = move.held
    lane, piece, in_group = np.indices((held.lanes, move.pieces, held.warps), dtype=np.int64, sparse=True)
    holder, value = move.moved_from(lane, piece)
    table = move.at[c][holder, in_group, value]
    node = fit(table, {"lane": held.lanes, "piece": move.pieces, "warp": held.warps})
    if node is None:
        raise ProblemFileError("fragment", f"no formula gives coordinate {c} of {held.name}")
    warp: Node = Op("+", (Var("warp"), Const(move.turn))) if move.turn else Var("warp")
    if held.warps > 1:  # groups begin at a multiple of their warps
        node = substituted(node, {"warp": Op("%", (Var("warp"), Const(held.warps)))})
    terms = [node]
    divide, count = move.groups.get(c, (1, 1))
    if count > 1:
        group = Op("%", (Op("//", (warp, Const(held.warps * divide))), Const(count)))
        terms.insert(0, Op("*", (Const(move.stride[c] * move.repeat.get(c, 1)), group)))
    if c in move.steps():
        terms.append(Op("*", (Const(move.stride[c]), Var(move.steps()[c]))))
    return join("+", terms)


def _verify(move: _Move, index: list[Node], access: FragmentAccess, threads: int) -> None:
    """Compare where every register's element lies in the tile with where the instruction takes it from."""
    held = move.held
    loops = [*access.loops.items(), *((name, move.repeat[c]) for c, name in move.steps().items())]
    extents = (held.lanes, threads // held.lanes, move.pieces, *(trips for _, trips in loops))
    if math.prod(extents) * move.moved > MAX_PLACES:
        raise ProblemFileError("for", f"more than {MAX_PLACES} elements are moved; shorten the loops")
    lane, warp, piece, *rest = np.indices(extents, dtype=np.int64, sparse=True)
    variables = {"lane": lane, "warp": warp, "tid": warp * held.lanes + lane}
    variables |= dict(zip((name for name, _ in loops), rest, strict=True))

    def place_of(holder: IntArray, value: IntArray) -> list[IntArray]:
        env = dict(variables)
        for c in held.extent:
            divide, count = move.groups.get(c, (1, 1))
            group = (warp + move.turn) // held.warps // divide % count
            step = variables.get(f"{c}_step", np.zeros(1, np.int64))
            env[c] = move.at[c][holder, warp % held.warps, value] + move.stride[c] * (
                move.repeat.get(c, 1) * group + step
            )
        with under("index"):
            return [np.broadcast_to(evaluate(node, env), extents) for node in index]

    base = place_of(*move.moved_from(lane, piece))
    elements = (16 if move.operation.matrices else move.operation.width_bytes) * 8 // held.bits
    for e in range(1, elements):
        _compare(place_of(*move.moved_from(lane, piece, e)), [*base[:-1], base[-1] + e], access)


def _compare(held: list[IntArray], taken: list[IntArray], access: FragmentAccess) -> None:
    """Refuse an instruction that moves other elements than registers hold; each a list of coordinates."""
    wrong = np.any([a != b for a, b in zip(held, taken, strict=True)], axis=0)
    if wrong.any():
        at = int(wrong.ravel().argmax())
        has = ", ".join(str(int(a.ravel()[at])) for a in held)
        gets = ", ".join(str(int(a.ravel()[at])) for a in taken)
        other = access.op.removesuffix(".trans") if access.op.endswith(".trans") else f"{access.op}.trans"
        advice = (
            f"{other}, another index order, or narrower loads" if "matrix" in access.op else "fewer bytes"
        )
        raise ProblemFileError(
            "op",
            f"{access.op} cannot move {access.fragment} with this index: a register holds the element at "
            f"({has}), the instruction moves the one at ({gets}); try {advice}",
        )
