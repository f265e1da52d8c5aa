"""Accesses that name a matrix fragment, as ordinary ones.

An instruction delivers bytes of shared memory to fixed lanes and registers, so not every instruction
can load every fragment from every tile. Each expansion is therefore compared, at every lane, warp,
iteration and register, with the table of the fragment.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

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
    """The fragment of this name, such as mma.m16n8k16.A.f16."""
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
    packed, rest = divmod(bits, fragment.bits)
    if rest or (isinstance(tile.element, str) and tile.element not in CONTAINERS):
        if fragment.is_result:
            return replace(fragment, bits=bits)
        wrong = f"{fragment.name} has elements of {fragment.bits} bits, the tile of {bits}"
        raise ProblemFileError("fragment", wrong)
    along = next((c for c in fragment.at if _is_packed_along(c, fragment, packed)), None)
    if along is None:
        what = f"{packed} consecutive elements, which one {bits}-bit element of the tile is"
        raise ProblemFileError("fragment", f"{fragment.name}: no lane holds {what}")
    divide = {c: packed if c == along else 1 for c in fragment.at}
    at = {c: table[:, :, ::packed] // divide[c] for c, table in fragment.at.items()}
    return replace(fragment, bits=bits, at=at, extent={c: e // divide[c] for c, e in fragment.extent.items()})


def _is_packed_along(coordinate: str, fragment: Fragment, count: int) -> bool:
    """Whether every `count` values of a lane are consecutive in a coordinate, aligned to their count."""
    if fragment.values % count:
        return False
    for c, table in fragment.at.items():
        groups = table.reshape(*table.shape[:2], -1, count)
        if (groups - groups[..., :1] != (np.arange(count) if c == coordinate else 0)).any():
            return False
    return not (fragment.at[coordinate][:, :, ::count] % count).any()


class _Along(NamedTuple):
    """Where values lie along one coordinate: `at + stride * (repeat * (group // divide % groups) + step)`.

    `group` is the number of a group of warps, and `step` counts the repetitions of a warp, from 0.
    """

    at: IntArray  # int64, shape (lanes, warps, values), as in `Fragment`
    stride: int  # from one repetition to the next
    repeat: int  # instructions of a warp along the coordinate
    divide: int  # groups along the coordinates before this one
    groups: int  # groups along this one


class _Move(Struct, frozen=True):
    """One access to a fragment, its fields checked. A group is as many warps as hold one fragment."""

    fragment: Fragment  # in tile elements
    # By coordinate, "m", "n" or "k": the values that whole instructions move, of one or more fragments
    along: dict[str, _Along]
    operation: Operation  # the instruction
    values: int  # that one instruction moves for a lane
    pieces: int  # instructions that move all values
    loops: dict[str, int]  # over repetitions, where there are several: `m_step` counts those along m
    active_warps: range | None  # the warps that take part; None for all

    @property
    def warp_shift(self) -> int:
        """What is added to a warp's number so that, modulo the warps that take part, the first is 0."""
        return -self.active_warps.start % len(self.active_warps) if self.active_warps is not None else 0

    def where(self, given: str | None, warps: int) -> str | None:
        """The predicate of an access whose own one is `given`, in a block of `warps` warps."""
        if self.active_warps is None:
            return given
        above = f"warp >= {self.active_warps.start}" if self.active_warps.start else ""
        below = f"warp < {self.active_warps.stop}" if self.active_warps.stop < warps else ""
        tests = [test for test in (above, below, given) if test]
        return " & ".join(f"({test})" for test in tests) if len(tests) > 1 else "".join(tests) or None

    def holder(self, lane: IntArray, piece: IntArray, position: int = 0) -> tuple[IntArray, IntArray]:
        """Who gets the element `position` after the address that `lane` gives: a lane, as its value number n.

        `piece` counts the instructions that move one fragment.
        """
        to_lane, to_value = element_destinations(self.operation, self.fragment.bits, self.fragment.lanes)
        return to_lane[lane, position], self.values * piece + to_value[lane, position]


def from_fragment(data: Mapping[str, Any], head: Problem) -> Access:
    """The data of a `FragmentAccess` as an access with index expressions, checked at every register.

    Raises:
        ProblemFileError: a field is wrong, or the instruction cannot move the fragment.
    """
    access, tile, threads = json_data.convert(data, FragmentAccess), head.tile, head.threads
    move = _move(access, tile, threads)
    fragment = move.fragment
    added_loops = move.loops | ({"piece": move.pieces} if move.pieces > 1 else {})
    for name in access.loops:
        if name in added_loops or name in COORDINATES or name in ("tid", "lane", "warp"):
            raise ProblemFileError("for", f"{name!r} is reserved; choose another variable")
    loops = {**access.loops, **added_loops}

    # The tile's coordinates over those of the fragment; the fragment's own where the file gives none.
    texts = access.index if access.index is not None else tuple(fragment.extent)
    if len(texts) != len(tile.shape):
        hint = f' (without "index" it is {", ".join(fragment.extent)})' if access.index is None else ""
        wanted = f"one expression for each of {len(tile.shape)} dimensions"
        raise ProblemFileError("index", f"expected {wanted}{hint}")
    variables = frozenset({*fragment.extent, "tid", "lane", "warp", *access.loops})
    index = []
    for d, text in enumerate(texts):
        with under(f"index[{d}]"):
            index.append(parse(str(text), variables))
    _verify(move, index, access, threads)

    coordinates = {c: _coordinate(move, c) for c in fragment.extent}  # m, n or k over lane, warp and loops
    ranges = expression_ranges(threads, fragment.lanes, loops)
    formulas = tuple(to_text(simplify(substituted(node, coordinates), ranges)) for node in index)
    where = move.where(access.where, threads // fragment.lanes)
    return access.ordinary(index=formulas, loops=loops, where=where)


def _move(access: FragmentAccess, tile: Tile, threads: int) -> _Move:
    """What one instruction of the access moves of the fragment; refused where they do not fit.

    An instruction that moves more values than a fragment has takes repetitions of it along the first
    coordinate of `repeat` together: ldmatrix.x4 takes two fragments of two matrices.
    """
    fragment = _in_tile_elements(_find(access.fragment), tile)
    operation, values = _operation_and_values(access, tile.element_bits)
    repeat: dict[str, int] = {str(coordinate): count for coordinate, count in access.repeat.items()}
    for c in repeat:
        if c not in fragment.extent:
            known = " and ".join(fragment.extent)
            raise ProblemFileError("repeat", f"{access.fragment} has {known}, not {c}")
    # By coordinate: where values lie, shape (lanes, warps, values); and from one repetition to the next.
    at, stride = fragment.at, dict(fragment.extent)
    if values > fragment.values:
        c = next(iter(repeat), "")
        together = values // fragment.values  # fragments that one instruction moves
        if not c or values % fragment.values or repeat[c] % together:
            given = f"{c} is repeated {repeat[c]} times" if c else "nothing is repeated"
            raise ProblemFileError(
                "repeat",
                f"{access.op} moves {values} values a lane and {fragment.name} has {fragment.values}: the "
                f"first coordinate of repeat must be repeated a multiple of {together} times, but {given}",
            )
        # The values of a lane in the first of these fragments, then in the next one along c, and so on.
        shifts = range(0, together * stride[c], stride[c])
        at = {
            d: np.concatenate([table + (shift if d == c else 0) for shift in shifts], axis=2)
            for d, table in at.items()
        }
        stride[c] *= together
        repeat[c] //= together
    held_values = max(fragment.values, values)  # of a lane, in the fragments that instructions move together
    if held_values % values:
        wrong = f"{access.op} moves {values} values a lane, but a lane holds {held_values}"
        raise ProblemFileError("op", wrong)
    groups = _groups(access, fragment, threads)
    active_warps = None
    if (first := access.first_warp) is not None:
        active_warps = range(first, first + fragment.warps * math.prod(groups.values()))
    # A group's number counts along m first, then along n: groups along the coordinates before each.
    divide = {"m": 1, "n": groups["m"], "k": groups["m"] * groups["n"]}
    along = {c: _Along(table, stride[c], repeat.get(c, 1), divide[c], groups[c]) for c, table in at.items()}
    loops = {f"{c}_step": count for c, count in repeat.items() if count > 1}
    pieces = held_values // values
    return _Move(fragment, along, operation, values, pieces, loops, active_warps)


def _operation_and_values(access: FragmentAccess, bits: int) -> tuple[Operation, int]:
    """The instruction, and how many values of so many bits it moves for a lane; ProblemFileError if none."""
    operation = parse_operation(access.op, access.bytes)
    if operation.kind == "load.tr" and not access.op.endswith(f"b64_tr_b{bits}"):
        other = f"the tile's elements have {bits}, and the op is {access.op}"
        wrong = f"ds_read_b64_tr_b16, b8 and b4 move fragments of as many bits; {other}"
        raise ProblemFileError("op", wrong)
    moved_bits = 8 * operation.lane_bytes
    if moved_bits % bits or (operation.matrices and bits > 32) or (operation.transposed and bits != 16):
        raise ProblemFileError("op", f"{access.op} does not move elements of {bits} bits")
    return operation, moved_bits // bits


def _groups(access: FragmentAccess, fragment: Fragment, threads: int) -> dict[str, int]:
    """How many groups of warps lie along m, n and k; one each where the file says nothing.

    A group is as many warps as hold one fragment. All of the block take part, unless `first_warp` is given.

    Raises:
        ProblemFileError: `warps` and `first_warp` do not name the warps of the block.
    """
    group_threads = fragment.lanes * fragment.warps
    first = access.first_warp
    if threads % group_threads and first is None:
        wrong = f"{fragment.name} needs whole groups of {group_threads} threads, not {threads}"
        raise ProblemFileError("threads", wrong, of_file=True)
    block_groups = threads // group_threads
    if access.warps is None and block_groups > 1 and first is None:
        what = "warps" if fragment.warps == 1 else f"groups of {fragment.warps} warps"
        advice = f'say how they lie, such as "warps": [{block_groups}, 1]'
        raise ProblemFileError("warps", f"the block has {block_groups} {what}: {advice}")
    counts = access.warps or (1, 1)  # along m, n and perhaps k
    total, text = math.prod(counts), " x ".join(map(str, counts))
    if first is not None:
        end = first + fragment.warps * total
        if first % fragment.warps:
            wrong = f"groups of {fragment.warps} warps begin at a multiple of that, not at {first}"
            raise ProblemFileError("first_warp", wrong)
        if end > (warps := threads // fragment.lanes):
            wrong = f"{text} from warp {first} on end at {end}, and there are {warps} warps"
            raise ProblemFileError("warps", wrong)
    elif total != block_groups:
        hint = "; first_warp says which, where not all take part" if total < block_groups else ""
        raise ProblemFileError("warps", f"{text} is not {block_groups}, which {threads} threads make{hint}")
    return {"k": 1, **dict(zip(COORDINATES, counts, strict=False))}


def _coordinate(move: _Move, c: str) -> Node:
    """Coordinate `c` of the element at a lane's address, over lane, warp and the loops."""
    held, along = move.fragment, move.along[c]
    lane, piece, in_group = np.indices((held.lanes, move.pieces, held.warps), dtype=np.int64, sparse=True)
    holder, value = move.holder(lane, piece)
    places = along.at[holder, in_group, value]
    node = fit(places, {"lane": held.lanes, "piece": move.pieces, "warp": held.warps})
    if node is None:
        raise ProblemFileError("fragment", f"no formula gives coordinate {c} of {held.name}")
    warp: Node = Op("+", (Var("warp"), Const(move.warp_shift))) if move.warp_shift else Var("warp")
    if held.warps > 1:  # groups begin at a multiple of their warps
        node = substituted(node, {"warp": Op("%", (Var("warp"), Const(held.warps)))})
    terms = [node]
    if along.groups > 1:
        group = Op("%", (Op("//", (warp, Const(held.warps * along.divide))), Const(along.groups)))
        terms.insert(0, Op("*", (Const(along.stride * along.repeat), group)))
    if along.repeat > 1:
        terms.append(Op("*", (Const(along.stride), Var(f"{c}_step"))))
    return join("+", terms)


def _verify(move: _Move, index: list[Node], access: FragmentAccess, threads: int) -> None:
    """Compare where every register's element lies in the tile with where the instruction takes it from.

    An instruction takes what follows a lane's address along the last dimension. `index` holds the tile's
    coordinates over m, n, k, tid, lane, warp and loops.
    """
    held, loops = move.fragment, access.loops | move.loops
    # All arrays below have these axes, or one value along some of them.
    extents = (held.lanes, threads // held.lanes, move.pieces, *loops.values())
    if math.prod(extents) * move.values > MAX_PLACES:
        raise ProblemFileError("for", f"more than {MAX_PLACES} elements are moved; shorten the loops")
    lane, warp, piece, *iterations = np.indices(extents, dtype=np.int64, sparse=True)
    variables = {"lane": lane, "warp": warp, "tid": warp * held.lanes + lane}
    variables |= dict(zip(loops, iterations, strict=True))

    def tile_coordinates(holder: IntArray, value: IntArray) -> list[IntArray]:
        """By dimension, of the elements that lanes `holder` of this warp hold as their values number `value`.

        m, n and k are of the element; lane and tid in an index are those that give the address.
        """
        env = dict(variables)
        for c, along in move.along.items():
            group = (warp + move.warp_shift) // held.warps  # from 0 for the first that takes part
            step = variables[f"{c}_step"] if f"{c}_step" in move.loops else 0  # not a loop of the file's
            # Along c, each group of warps has `repeat` fragments in a row, one a step.
            number = along.repeat * (group // along.divide % along.groups) + step
            env[c] = along.at[holder, warp % held.warps, value] + along.stride * number
        with under("index"):
            return [np.broadcast_to(evaluate(node, env), extents) for node in index]

    # A lane gets the element at an address that a lane gives, and one each element `e` places behind it.
    *outer, last = tile_coordinates(*move.holder(lane, piece))
    for e in range(1, 8 * move.operation.width_bytes // held.bits):
        _check_equal(tile_coordinates(*move.holder(lane, piece, e)), [*outer, last + e], access)


def _check_equal(held: list[IntArray], taken: list[IntArray], access: FragmentAccess) -> None:
    """Refuse an instruction that takes other elements than registers hold; both as tile coordinates."""
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
