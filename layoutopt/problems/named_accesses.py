"""Named accesses: matrix fragments and block copies, written out as ordinary accesses.

    {"name": "A", "op": "ldmatrix.x4", "fragment": "mma.m16n8k16.A.f16",
     "warps": [4, 2], "repeat": {"m": 2, "k": 4}}
    {"name": "fill", "op": "cp.async", "copy": {"bytes": 16, "threads": 256}}

They exist in problem files only: `expand` replaces each by an `Access` with index expressions before
anything else reads the problem. What lane holds what is data (`hardware/fragments.json`, from the PTX ISA
and from AMD's tables). A fragment's `index` is over its coordinates m, n, k beside the usual
variables, so `["n", "k"]` is a B tile stored by columns of B, `["s", "m", "k"]` one stage of several,
and `["m // 8", "m % 8 + r", "k"]` an implicit GEMM.

An instruction delivers bytes of shared memory to fixed lanes and registers, so not every instruction
can load every fragment from every tile. Each expansion is therefore compared, at every lane, warp,
iteration and register, with the table of the fragment.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct, field

from layoutopt import json_data
from layoutopt.errors import ExpressionError, ProblemFileError
from layoutopt.expressions.fit import fit, join
from layoutopt.expressions.grammar import Const, Node, Op, Var, evaluate, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.hardware.devices import device
from layoutopt.hardware.operations import Operation, parse_operation
from layoutopt.problems.types import Access, Expression, Identifier, Name, Positive, Tile

IntArray = npt.NDArray[np.int64]

BITS: Final = {
    "b1": 1, "s4": 4, "u4": 4, "e2m1": 4, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8,
    "f16": 16, "bf16": 16, "f32": 32, "tf32": 32, "s32": 32, "f64": 64,
}  # fmt: skip
COORDINATES: Final = ("m", "n", "k")
_ARCHITECTURE: Final = re.compile(r"sm_(\d+)|gfx([0-9a-f]+)")
TargetName = Annotated[str, Meta(pattern=r"^(sm_[0-9]+|gfx[0-9a-f]+)(?!\n)$")]
# Tile elements that may hold several elements of a fragment.
CONTAINERS: Final = ("i8", "u8", "b8", "u16", "b16", "i32", "u32", "b32", "f16x2", "bf16x2", "b64", "b128")
MAX_PLACES: Final = 1 << 22


class Operand(Struct, frozen=True, forbid_unknown_fields=True):
    """One operand of an instruction, as in `hardware/fragments.json`, which explains the fields."""

    operand: str
    elements: tuple[str, ...]
    values: Positive
    at: dict[Literal["m", "n", "k"], Expression]


class Instruction(Struct, frozen=True, forbid_unknown_fields=True):
    """A matrix instruction and where its operands live."""

    name: str
    shape: dict[Literal["m", "n", "k"], Positive]
    lanes: Literal[32, 64]
    since: dict[str, TargetName]
    source: str
    operands: tuple[Operand, ...]
    until: TargetName | None = None
    warps: Literal[1, 4] = 1
    note: str = ""


class FragmentFile(Struct, frozen=True, forbid_unknown_fields=True, rename={"schema_": "schema"}):
    """The data file."""

    schema_: Literal["layoutopt.fragments/1"]
    about: str
    targets: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """What each lane of an instruction holds of one operand.

    Attributes:
        name: such as `mma.m16n8k16.A.f16`.
        bits: of one value.
        extent: of the operand, by coordinate, in the order of the operand's matrix.
        at: int64, shape (lanes, warps, values), by coordinate.
        lanes: lanes of a warp.
        warps: warps that execute the instruction together.
        since: the first target that executes the instruction with this element.
        until: the last one of the same vendor; None for all later ones.
        source: the document.
        note: what else there is to know.
    """

    name: str
    bits: int
    extent: dict[str, int]
    at: dict[str, IntArray]
    lanes: int
    warps: int
    since: str
    until: str | None
    source: str
    note: str

    @property
    def targets(self) -> str:
        """The targets that execute the instruction, in words."""
        if self.until == self.since:
            return self.since
        return f"{self.since} to {self.until}" if self.until else f"{self.since} and later"

    @property
    def matrices(self) -> int:
        """Matrices that the lanes hold between them; the coordinates are those of a lane's own."""
        return self.lanes * self.warps * self.values // math.prod(self.extent.values())

    @property
    def values(self) -> int:
        """Values that each lane holds."""
        return int(next(iter(self.at.values())).shape[2])


class FragmentAccess(Struct, frozen=True, forbid_unknown_fields=True, rename={"loops": "for"}):
    """A matrix fragment, moved between shared memory and registers by every warp."""

    name: Name
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
    weight: Annotated[int | float | Expression, Meta(description="As for other accesses")] = 1
    notes: str | None = None


class Copy(Struct, frozen=True, forbid_unknown_fields=True):
    """How a block copies a whole tile."""

    bytes: Annotated[Literal[1, 2, 4, 8, 16], Meta(description="Bytes that one thread copies at once")]
    threads: Annotated[Positive | None, Meta(description="Threads that copy; all, if left out")] = None
    order: Annotated[
        tuple[int, ...] | None,
        Meta(description="Dimensions from slowest to fastest, in the order that threads follow; row-major"),
    ] = None


class CopyAccess(Struct, frozen=True, forbid_unknown_fields=True):
    """A copy of the whole tile, consecutive threads at consecutive pieces."""

    name: Name
    op: Annotated[str, Meta(description="cp.async, store or load")]
    copy: Copy
    weight: Annotated[int | float | Expression, Meta(description="As for other accesses")] = 1
    notes: str | None = None


def expand(accesses: list[Any], tile: Tile, threads: int) -> list[Any]:
    """Decoded accesses, every named one written out as the data of an ordinary one.

    Raises:
        ProblemFileError: a named access is wrong, or cannot do what it says.
    """
    return [
        _expanded(access, f"accesses[{i}]", tile, threads) if is_named(access) else access
        for i, access in enumerate(accesses)
    ]


def is_named(access: Any) -> bool:
    """Whether decoded data is meant as a fragment or a copy."""
    return isinstance(access, dict) and ("fragment" in access or "copy" in access)


def _expanded(access: dict[str, Any], place: str, tile: Tile, threads: int) -> dict[str, Any]:
    if "fragment" in access:
        plain = _fragment(json_data.convert(access, FragmentAccess, place), place, tile, threads)
    else:
        plain = _copy(json_data.convert(access, CopyAccess, place), place, tile, threads)
    left_out = {f.encode_name: f.default for f in msgspec.structs.fields(Access)} | {"for": {}, "any": {}}
    data = msgspec.to_builtins(plain)
    return {key: value for key, value in data.items() if key not in left_out or value != left_out[key]}


def executes(held: Fragment, target: str) -> bool:
    """Whether a target, by its name or an alias, executes the instruction that a fragment is of.

    Raises:
        ProblemFileError: no such target.
    """
    family, number = _generation(held.since)
    of, given = _generation(_architecture(target))
    return of == family and number <= given and (held.until is None or given <= _generation(held.until)[1])


def _architecture(target: str) -> str:
    """The name by architecture, such as sm_89 for ada, which one device of several generations has."""
    known = device(target)
    group = next((g.targets for g in known.limits if target.lower() in g.targets), ())
    return next((name for name in (target.lower(), *group) if _ARCHITECTURE.match(name)), known.name)


def _generation(architecture: str) -> tuple[str, int]:
    """A family and a number that grows within it: sm_90a is sm 90, gfx90a gfx 0x90a."""
    match = _ARCHITECTURE.match(architecture)
    assert match is not None
    return ("sm", int(match[1])) if match[1] else ("gfx", int(match[2], 16))


def fragment(name: str) -> Fragment:
    """The fragment called `name`.

    Raises:
        KeyError: there is none.
    """
    return fragments()[name]


@cache
def fragments() -> dict[str, Fragment]:
    """Every fragment, by name, in the order of the data."""
    data = resources.files("layoutopt.hardware").joinpath("fragments.json").read_bytes()
    file = msgspec.json.decode(data, type=FragmentFile)
    found = {}
    for instruction in file.instructions:
        for operand in instruction.operands:
            env = {
                "lane": np.arange(instruction.lanes)[:, None, None],
                "warp": np.arange(instruction.warps)[None, :, None],
                "i": np.arange(operand.values)[None, None, :],
            }
            shape = (instruction.lanes, instruction.warps, operand.values)
            at: dict[str, IntArray] = {
                c: np.broadcast_to(evaluate(parse(text, frozenset(env)), env), shape)
                for c, text in operand.at.items()
            }
            for element in operand.elements:
                name = f"{instruction.name}.{operand.operand}.{element}"
                found[name] = Fragment(
                    name=name,
                    bits=BITS[element],
                    extent={c: instruction.shape[c] for c in operand.at},
                    at=at,
                    lanes=instruction.lanes,
                    warps=instruction.warps,
                    since=instruction.since[element],
                    until=instruction.until,
                    source=instruction.source,
                    note=instruction.note,
                )
    return found


def _find(name: str, place: str) -> Fragment:
    try:
        return fragment(name)
    except KeyError:
        pass
    import difflib

    near = difflib.get_close_matches(name, fragments(), n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `layoutopt problems --fragments` lists them"
    raise ProblemFileError(f"{place}.fragment", f"unknown fragment {name!r}{hint}")


def _packed(whole: Fragment, tile: Tile, place: str) -> Fragment:
    """The fragment in tile elements, where one of them holds several of its own."""
    bits = tile.element_bits
    if bits == whole.bits:
        return whole
    p = bits // whole.bits
    named = tile.element if isinstance(tile.element, str) else None
    if bits % whole.bits or (named is not None and named not in CONTAINERS):
        raise ProblemFileError(
            f"{place}.fragment", f"{whole.name} has elements of {whole.bits} bits, the tile of {bits}"
        )
    for c, table in whole.at.items():
        first = table[:, :, ::p]
        steps = np.arange(p)
        grouped = table.reshape(*table.shape[:2], -1, p) if whole.values % p == 0 else None
        others = [
            t.reshape(*t.shape[:2], -1, p) for d, t in whole.at.items() if d != c and grouped is not None
        ]
        if (
            grouped is not None
            and (grouped == first[..., None] + steps).all()
            and not (first % p).any()
            and all((t == t[..., :1]).all() for t in others)
        ):
            at = {d: t[:, :, ::p] // (p if d == c else 1) for d, t in whole.at.items()}
            extent = {d: e // (p if d == c else 1) for d, e in whole.extent.items()}
            return replace(whole, bits=bits, extent=extent, at=at)
    raise ProblemFileError(
        f"{place}.fragment",
        f"{whole.name}: no lane holds {p} consecutive elements, which one {bits}-bit element of the tile is",
    )


@dataclass(frozen=True, slots=True)
class _Move:
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
    """

    held: Fragment
    at: dict[str, IntArray]
    operation: Operation
    moved: int
    pieces: int
    stride: dict[str, int]
    groups: dict[str, tuple[int, int]]
    repeat: dict[str, int]

    def addressed(self) -> tuple[IntArray, IntArray]:
        """The lane that holds the first element at each lane's address, and which value it is.

        A row of an 8x8 matrix is 16 bytes; lane 8 * j + r gives the address of row r of matrix j.
        Lane l receives bytes 4 * (l % 4) .. of row l // 4, or with .trans elements l // 4 of rows
        2 * (l % 4) and the next (PTX ISA, ldmatrix and stmatrix).

        Returns:
            int64 arrays of shape (lanes, pieces).
        """
        lane = np.arange(self.held.lanes)[:, None]
        piece = np.arange(self.pieces)[None, :]
        if not self.operation.matrices:
            return lane + 0 * piece, self.moved * piece + 0 * lane
        first, row = self._matrix(lane, piece)
        if self.operation.transposed:
            return row // 2 + 0 * piece, first + row % 2
        return 4 * row + 0 * piece, first

    def covered(self, lane: IntArray, piece: IntArray, element: int) -> tuple[IntArray, IntArray]:
        """As `addressed`, for the element `element` places after the one at the address."""
        if not self.operation.matrices:
            return lane, self.moved * piece + element
        first, row = self._matrix(lane, piece)
        if self.operation.transposed:
            return 4 * element + row // 2, first + row % 2
        register = self.moved // self.operation.matrices
        return 4 * row + element // register, first + element % register

    def _matrix(self, lane: IntArray, piece: IntArray) -> tuple[IntArray, IntArray]:
        matrices = self.operation.matrices
        register = self.moved // matrices
        return piece * self.moved + lane // 8 % matrices * register, lane % 8

    def steps(self) -> dict[str, str]:
        """The loop variable of every coordinate that has one."""
        return {c: f"{c}_step" for c, count in self.repeat.items() if count > 1}


def _fragment(access: FragmentAccess, place: str, tile: Tile, threads: int) -> Access:
    """The fragment as an ordinary access, checked at every register."""
    move = _move(access, place, tile, threads)
    held = move.held
    new = {name: move.repeat[c] for c, name in move.steps().items()}
    if move.pieces > 1:
        new["piece"] = move.pieces
    for name in access.loops:
        if name in new or name in COORDINATES or name in ("tid", "lane", "warp"):
            raise ProblemFileError(f"{place}.for", f"{name!r} is reserved; choose another variable")
    loops = {**access.loops, **new}

    texts = access.index if access.index is not None else tuple(held.extent)
    if len(texts) != len(tile.shape):
        hint = f' (without "index" it is {", ".join(held.extent)})' if access.index is None else ""
        raise ProblemFileError(
            f"{place}.index", f"expected one expression for each of {len(tile.shape)} dimensions{hint}"
        )
    variables = frozenset({*held.extent, "tid", "lane", "warp", *access.loops})
    index = []
    for d, text in enumerate(texts):
        try:
            index.append(parse(str(text), variables))
        except ExpressionError as error:
            raise ExpressionError(error.reason, error.position, f"{place}.index[{d}]") from None
    _verify(move, index, access, place, threads)

    coordinates = {c: _coordinate(move, c, place) for c in held.extent}
    ranges = {
        "tid": (0, threads - 1),
        "lane": (0, held.lanes - 1),
        "warp": (0, threads // held.lanes - 1),
        **{name: (0, trips - 1) for name, trips in loops.items()},
    }
    written = tuple(to_text(simplify(substituted(node, coordinates), ranges)) for node in index)
    return Access(
        name=access.name,
        op=access.op,
        index=written,
        bytes=access.bytes,
        loops=loops,
        where=access.where,
        weight=access.weight,
        notes=access.notes,
    )


def _move(access: FragmentAccess, place: str, tile: Tile, threads: int) -> _Move:
    held = _packed(_find(access.fragment, place), tile, place)
    try:
        operation = parse_operation(access.op, access.bytes)
    except ValueError as error:
        raise ProblemFileError(f"{place}.op", str(error)) from None
    repeat: dict[str, int] = {str(coordinate): count for coordinate, count in access.repeat.items()}
    for c in repeat:
        if c not in held.extent:
            known = " and ".join(held.extent)
            raise ProblemFileError(f"{place}.repeat", f"{access.fragment} has {known}, not {c}")
    bits = tile.element_bits
    span_bits = 8 * (4 * operation.matrices or operation.width_bytes)
    if span_bits % bits or (operation.matrices and bits > 32) or (operation.transposed and bits != 16):
        raise ProblemFileError(f"{place}.op", f"{access.op} does not move elements of {bits} bits")
    moved = span_bits // bits
    at, stride = held.at, dict(held.extent)
    if moved > held.values:
        c = next(iter(repeat), "")
        more = moved // held.values
        if not c or moved % held.values or repeat[c] % more:
            given = f"{c} is repeated {repeat[c]} times" if c else "nothing is repeated"
            raise ProblemFileError(
                f"{place}.repeat",
                f"{access.op} moves {moved} values a lane and {held.name} has {held.values}: the first "
                f"coordinate of repeat must be repeated a multiple of {more} times, but {given}",
            )
        shift = {d: held.extent[c] if d == c else 0 for d in at}
        at = {d: np.concatenate([t + shift[d] * u for u in range(more)], axis=2) for d, t in at.items()}
        stride[c] *= more
        repeat[c] //= more
    values = next(iter(at.values())).shape[2]
    if values % moved:
        raise ProblemFileError(
            f"{place}.op", f"{access.op} moves {moved} values a lane, but a lane holds {values}"
        )
    groups = _groups(access, place, held, threads)
    return _Move(held, at, operation, moved, values // moved, stride, groups, repeat)


def _groups(access: FragmentAccess, place: str, held: Fragment, threads: int) -> dict[str, tuple[int, int]]:
    unit = held.lanes * held.warps
    if threads % unit:
        raise ProblemFileError("threads", f"{held.name} needs whole groups of {unit} threads, not {threads}")
    count = threads // unit
    if access.warps is None and count > 1:
        what = "warps" if held.warps == 1 else f"groups of {held.warps} warps"
        raise ProblemFileError(
            f"{place}.warps", f'the block has {count} {what}: say how they lie, such as "warps": [{count}, 1]'
        )
    along = access.warps or (1, 1)
    if math.prod(along) != count:
        raise ProblemFileError(
            f"{place}.warps", f"{' x '.join(map(str, along))} is not {count}, which {threads} threads make"
        )
    groups, divide = {}, 1
    for c, size in zip(COORDINATES, along, strict=False):
        groups[c] = (divide, size)
        divide *= size
    return groups


def _coordinate(move: _Move, c: str, place: str) -> Node:
    """Coordinate `c` of the element at a lane's address, over lane, warp and the loops."""
    held = move.held
    holder, value = move.addressed()
    table = move.at[c][holder[:, :, None], np.arange(held.warps)[None, None, :], value[:, :, None]]
    node = fit(table, {"lane": held.lanes, "piece": move.pieces, "warp": held.warps})
    if node is None:
        raise ProblemFileError(f"{place}.fragment", f"no formula gives coordinate {c} of {held.name}")
    if held.warps > 1:
        node = substituted(node, {"warp": Op("%", (Var("warp"), Const(held.warps)))})
    terms = [node]
    divide, count = move.groups.get(c, (1, 1))
    if count > 1:
        group = Op("%", (Op("//", (Var("warp"), Const(held.warps * divide))), Const(count)))
        terms.insert(0, Op("*", (Const(move.stride[c] * move.repeat.get(c, 1)), group)))
    if c in move.steps():
        terms.append(Op("*", (Const(move.stride[c]), Var(move.steps()[c]))))
    return join("+", terms)


def _verify(move: _Move, index: list[Node], access: FragmentAccess, place: str, threads: int) -> None:
    """Compare where every register's element lies in the tile with where the instruction takes it from."""
    held = move.held
    loops = [*access.loops.items(), *((name, move.repeat[c]) for c, name in move.steps().items())]
    extents = (held.lanes, threads // held.lanes, move.pieces, *(trips for _, trips in loops))
    if math.prod(extents) * move.moved > MAX_PLACES:
        raise ProblemFileError(
            f"{place}.for", f"more than {MAX_PLACES} elements are moved; shorten the loops"
        )
    lane, warp, piece, *rest = np.indices(extents, dtype=np.int64, sparse=True)
    variables = {"lane": lane, "warp": warp, "tid": warp * held.lanes + lane}
    variables |= dict(zip((name for name, _ in loops), rest, strict=True))

    def place_of(holder: IntArray, value: IntArray) -> list[IntArray]:
        env = dict(variables)
        for c in held.extent:
            divide, count = move.groups.get(c, (1, 1))
            group = warp // held.warps // divide % count
            step = variables.get(f"{c}_step", np.zeros(1, np.int64))
            env[c] = move.at[c][holder, warp % held.warps, value] + move.stride[c] * (
                move.repeat.get(c, 1) * group + step
            )
        try:
            return [np.broadcast_to(evaluate(node, env), extents) for node in index]
        except ExpressionError as error:
            raise ExpressionError(error.reason, None, f"{place}.index") from None

    holder, value = move.addressed()
    base = place_of(holder[lane, piece], value[lane, piece])
    elements = (16 if move.operation.matrices else move.operation.width_bytes) * 8 // held.bits
    for e in range(1, elements):
        _compare(place_of(*move.covered(lane, piece, e)), [*base[:-1], base[-1] + e], access, place)


def _compare(held: list[IntArray], taken: list[IntArray], access: FragmentAccess, place: str) -> None:
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
            f"{place}.op",
            f"{access.op} cannot move {access.fragment} with this index: a register holds the element at "
            f"({has}), the instruction moves the one at ({gets}); try {advice}",
        )


def _digit(inner: int, extent: int, workers: int, slowest: bool) -> Node:
    """`(tid + workers * i) // inner % extent`, where possible without adding tid and i first."""
    tid, i = Op("//", (Var("tid"), Const(inner))), Var("i")
    step = workers // inner
    if workers % inner == 0 and (slowest or extent % step == 0 or step % extent == 0):
        turn: Node = i if slowest else Op("%", (i, Const(max(1, extent // step))))
        own: Node = tid if slowest else Op("%", (tid, Const(extent)))
        return Op("+", (own, Op("*", (Const(step), turn))))
    if inner % workers == 0:
        whole: Node = Op("//", (i, Const(inner // workers)))
    else:
        whole = Op("//", (Op("+", (Var("tid"), Op("*", (Const(workers), i)))), Const(inner)))
    return whole if slowest else Op("%", (whole, Const(extent)))


def _copy(access: CopyAccess, place: str, tile: Tile, threads: int) -> Access:
    """The copy as an ordinary access: piece `tid + threads * i` of the tile, in the order given."""
    dims = len(tile.shape)
    order = access.copy.order if access.copy.order is not None else tuple(range(dims))
    if sorted(order) != list(range(dims)):
        raise ProblemFileError(
            f"{place}.copy.order", f"expected each of 0..{dims - 1} once, got {list(order)}"
        )
    workers = access.copy.threads or threads
    if workers > threads:
        raise ProblemFileError(f"{place}.copy.threads", f"the block has {threads} threads, not {workers}")
    vector = max(1, 8 * access.copy.bytes // tile.element_bits)
    if 8 * access.copy.bytes % tile.element_bits:
        raise ProblemFileError(
            f"{place}.copy.bytes",
            f"{access.copy.bytes} bytes are no whole number of {tile.element_bits}-bit elements",
        )
    if vector > 1 and (order[-1] != dims - 1 or tile.shape[-1] % vector):
        raise ProblemFileError(
            f"{place}.copy.bytes",
            f"{access.copy.bytes} bytes are {vector} elements, which must lie along the last dimension "
            f"and divide its extent, {tile.shape[-1]}",
        )
    extents = [tile.shape[d] // (vector if d == order[-1] else 1) for d in order]
    pieces = math.prod(extents)
    trips = -(-pieces // workers)
    ranges = {"tid": (0, workers - 1), "i": (0, trips - 1)}
    once = {} if trips > 1 else {"i": Const(0)}
    index: dict[int, Node] = {}
    inner = pieces
    for d, extent in zip(order, extents, strict=True):
        inner //= extent
        node = _digit(inner, extent, workers, slowest=d == order[0])
        if d == order[-1] and vector > 1:
            node = Op("*", (Const(vector), node))
        index[d] = simplify(substituted(node, once), ranges)
    limits = [f"tid < {workers}"] * (workers < threads)
    if trips * workers > pieces:
        limits.append(f"tid + {workers}*i < {pieces}" if trips > 1 else f"tid < {pieces}")
    return Access(
        name=access.name,
        op=access.op,
        index=tuple(to_text(index[d]) for d in range(dims)),
        bytes=access.copy.bytes,
        loops={"i": trips} if trips > 1 else {},
        where=" and ".join(limits) or None,
        weight=access.weight,
        notes=access.notes,
    )
