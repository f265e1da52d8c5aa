"""Starting problems for common kernels: what `layoutopt new` writes.

Each function returns problem data that solves as it is. The accesses are named ones wherever there is
a name (`layoutopt.accesses.named_accesses`), so that a person changes a warp grid, not a formula.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from layoutopt.accesses.named_accesses import expand
from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.hardware.fragments import Fragment, executes, fragments
from layoutopt.problems.types import ELEMENT_BYTES, PACKED_BITS, SCHEMA, Problem, Tile

_WGMMA_TYPES: Final = ("f16", "bf16", "f32", "e4m3", "e5m2")
_WARPGROUP: Final = 128
_ROWS: Final = 64  # M of wgmma
_SPAN_BYTES: Final = 128  # of a stage along K: whole rows of the widest mode
_MOST_STAGES: Final = 8
_OTHER_BYTES: Final = 1024  # barriers, and what aligns the start of dynamic shared memory


@dataclass(frozen=True, slots=True)
class Options:
    """What the user said; None where a kind has its own default."""

    name: str | None = None
    tile: tuple[int, ...] | None = None
    element: str | None = None
    threads: int | None = None
    mma: str | None = None
    operand: str = "A"
    stages: int | None = None
    target: str = "sm_90"


def starter(kind: str, options: Options) -> dict[str, Any]:
    """The data of a starting problem.

    Raises:
        ProblemFileError: the options fit no such kernel; `field` is the option.
    """
    return KINDS[kind](options)


def _problem(
    kind: str,
    options: Options,
    notes: str,
    tile: tuple[int, ...],
    element: str,
    threads: int,
    accesses: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": options.name or kind,
        "notes": notes,
        "target": options.target,
        "tile": {"shape": list(tile), "element": element},
        "threads": threads,
        "accesses": accesses,
    }


def _tile(options: Options, default: tuple[int, ...]) -> tuple[int, ...]:
    tile = options.tile or default
    if len(tile) != len(default):
        example = "x".join(map(str, default))
        raise ProblemFileError(
            "--tile", f"expected {len(default)} extents, such as {example}, got {len(tile)}"
        )
    return tile


def _element(options: Options, default: str) -> tuple[str, int]:
    """The type of an element and its bits."""
    element = options.element or default
    if element not in ELEMENT_BYTES and element not in PACKED_BITS:
        known = ", ".join((*ELEMENT_BYTES, *PACKED_BITS))
        raise ProblemFileError("--element", f"unknown type {element!r}; known: {known}")
    return element, PACKED_BITS.get(element) or 8 * ELEMENT_BYTES[element]


def _whole_bytes(options: Options, default: str) -> tuple[str, int]:
    """The type of an element and its bytes, where a kind moves elements one by one."""
    element, bits = _element(options, default)
    if bits < 8:
        raise ProblemFileError(
            "--element", f"{element} elements share bytes, but here threads move them one by one"
        )
    return element, bits // 8


def _fill(
    tile: tuple[int, ...], bits: int, options: Options, notes: str, read: dict[str, Any]
) -> dict[str, Any]:
    """The widest copy of global memory's rows that divides a row: asynchronous where there is one.

    A store is no wider than what reads the tile: it binds as many bytes together, which only narrower reads
    would have to pay for, and narrower stores take no more wavefronts.
    """
    known = device(options.target).rules
    width = _widest("store", tile, bits, options)
    if ("cp.async.ca", 4) not in known:
        width = min(width, read.get("bytes", width))
    op = "cp.async" if ("cp.async.cg" if width == 16 else "cp.async.ca", width) in known else "store"
    return {"name": "fill", "op": op, "copy": {"bytes": width}, "notes": notes}


def _widest(kind: str, tile: tuple[int, ...], bits: int, options: Options) -> int:
    """The most bytes that a load or store of the target moves and that divide a row of the tile."""
    known = device(options.target).rules
    fitting = (w for w in (16, 8, 4, 2, 1) if (kind, w) in known and tile[-1] * bits % (8 * w) == 0)
    return next(fitting, max(1, bits // 8))


def transpose(options: Options) -> dict[str, Any]:
    """Rows written, columns read."""
    tile = _tile(options, (32, 32))
    element, width = _whole_bytes(options, "f32")
    accesses = [
        {
            "name": "rows",
            "op": "store",
            "copy": {"bytes": width},
            "notes": "threads follow rows, as in the global memory that is read",
        },
        {
            "name": "columns",
            "op": "load",
            "copy": {"bytes": width, "order": [1, 0]},
            "notes": "threads follow columns, so that the transposed rows are written in one piece",
        },
    ]
    notes = "A transpose through shared memory. Wider copies of rows: raise bytes of rows to 8 or 16."
    return _problem("transpose", options, notes, tile, element, options.threads or 256, accesses)


def stencil(options: Options) -> dict[str, Any]:
    """A tile with a halo of 1, each thread reading its neighbours."""
    tile = _tile(options, (18, 34))
    if min(tile) < 3:
        raise ProblemFileError("--tile", "a tile with a halo of 1 has at least 3 rows and columns")
    element, width = _whole_bytes(options, "f32")
    rows, columns = (extent - 2 for extent in tile)
    threads = options.threads or 256
    inside = rows * columns
    trips = -(-inside // threads)
    point = f"(tid + {threads}*i)" if trips > 1 else "tid"
    taps: dict[str, Any] = {
        "name": "taps",
        "op": "load",
        "bytes": width,
        "index": [f"{point} // {columns} + dy", f"{point} % {columns} + dx"],
        "for": ({"i": trips} if trips > 1 else {}) | {"dy": 3, "dx": 3},
        "notes": "dy and dx run over the taps of the stencil; 3x3 here",
    }
    if trips * threads > inside:
        taps["where"] = f"{point} < {inside}"
    notes = f"A 3x3 stencil on {rows}x{columns} points; the tile has one more on every side."
    fill = {"name": "fill", "op": "store", "copy": {"bytes": width}, "notes": "the halo included"}
    return _problem("stencil", options, notes, tile, element, threads, [fill, taps])


def gemm(options: Options) -> dict[str, Any]:
    """One operand of a matrix product, staged for tensor cores; or its result on the way out."""
    element, bits = _element(options, "f32" if options.operand == "C" else "f16")
    held = _operand(options, options.operand, element)
    tile = _tile(options, (128, 128 if options.operand == "C" else max(1024 // bits, held.extent["k"])))
    threads = options.threads or 256
    warps, repeat = _share(tile, held, threads, options.operand)
    first, second = ("m", "n") if options.operand == "C" else ("m" if options.operand == "A" else "n", "k")
    stages = options.stages or 1
    shape = (stages, *tile) if stages > 1 else tile
    stage: dict[str, Any] = {"for": {"stage": stages}} if stages > 1 else {}
    index = (["stage"] if stages > 1 else []) + [first, second]
    moved: dict[str, Any] = {"fragment": held.name, "warps": list(warps), "repeat": repeat}
    if index != list(held.extent):
        moved["index"] = index
    access = _moved("fragments", moved | stage, Tile(shape, element), threads, options)
    if options.operand == "C":
        access["notes"] = "each warp stores its accumulators"
        width = _widest("load", tile, bits, options)
        out = {
            "name": "rows",
            "op": "load",
            "copy": {"bytes": width},
            "notes": f"rows of {width} bytes a thread, on their way to global memory",
        }
        notes = "The result of a matrix product on its way out through shared memory."
        accesses = [access, out]
    else:
        access["notes"] = f"warps lie {warps[0]} along m and {warps[1]} along n"
        mma = held.name.removeprefix("mma.").partition(f".{options.operand}.")[0]
        notes = f"Operand {options.operand} of a matrix product by {mma}, k along its rows" + (
            f", {stages} stages." if stages > 1 else "."
        )
        accesses = [_fill(shape, bits, options, "global memory is contiguous along k", access), access]
    return _problem(f"gemm_{options.operand.lower()}", options, notes, shape, element, threads, accesses)


def attention(options: Options) -> dict[str, Any]:
    """A tile of keys and values: K is read along its rows, V across them."""
    tile = _tile(options, (64, 64))
    element, bits = _element(options, "f16")
    if bits != 16:
        raise ProblemFileError("--element", f"V is read across its rows by 2-byte elements, not {element}")
    held = _operand(options, "B", element)
    threads = options.threads or 4 * held.lanes
    if threads % held.lanes:
        raise ProblemFileError("--threads", f"{held.name} needs a multiple of {held.lanes}, not {threads}")
    keys, depth = tile
    n, k = held.extent["n"], held.extent["k"]
    whole = max(2 * n if ("ldmatrix", 16) in device(options.target).rules else n, k)
    if keys % whole or depth % whole:
        raise ProblemFileError("--tile", f"expected multiples of {whole}, got {keys}x{depth}")
    shared: dict[str, Any] = {"fragment": held.name, "warps": [threads // held.lanes, 1]}
    whole_tile = Tile(tile, element)
    along = {**shared, "repeat": {"n": keys // n, "k": depth // k}, "index": ["n", "k"]}
    across = {**shared, "repeat": {"n": depth // n, "k": keys // k}, "index": ["k", "n"]}
    read = _moved("K", along, whole_tile, threads, options)
    accesses = [
        _fill(tile, bits, options, "a row is the head dimension of one key", read),
        {**read, "notes": "S = Q K^T: n counts keys, k the head dimension"},
        {
            **_moved("V", across, whole_tile, threads, options),
            "notes": "O = P V: k counts keys, n the head dimension",
        },
    ]
    notes = "Keys and values in one layout; every warp reads all of it. Drop K or V to serve one alone."
    return _problem("attention", options, notes, tile, element, threads, accesses)


def conv(options: Options) -> dict[str, Any]:
    """A 3x3 convolution as an implicit matrix product: pixels are rows of A, channels are k."""
    tile = _tile(options, (6, 18, 32))
    element, bits = _element(options, "f16")
    held = _operand(options, "A", element)
    rows, columns, channels = tile[0] - 2, tile[1] - 2, tile[2]
    if rows < 1 or columns < 1:
        raise ProblemFileError("--tile", "a 3x3 filter needs at least 3 rows and columns of pixels")
    threads = options.threads or 128
    warps, repeat = _share((rows * columns, channels), held, threads, "A")
    moved = {
        "fragment": held.name,
        "warps": list(warps),
        "repeat": repeat,
        "index": [f"m // {columns} + dy", f"m % {columns} + dx", "k"],
        "for": {"dy": 3, "dx": 3},
    }
    access = _moved("pixels", moved, Tile(tile, element), threads, options)
    access["notes"] = f"row m of A is pixel (m // {columns}, m % {columns}), moved by the tap of the filter"
    notes = (
        f"Input of a 3x3 convolution, {channels} channels last: {rows}x{columns} pixels and a halo of one."
    )
    accesses = [_fill(tile, bits, options, "channels of a pixel are contiguous", access), access]
    return _problem("conv", options, notes, tile, element, threads, accesses)


def blank(options: Options) -> dict[str, Any]:
    """The least that is a problem, with the words that one needs next."""
    tile = options.tile or (32, 32)
    element, width = _whole_bytes(options, "f32")
    threads = options.threads or 256
    pieces = math.prod(tile)
    trips = -(-pieces // threads)
    linear = f"(tid + {threads}*i)" if trips > 1 else "tid"
    index, inner = [], pieces
    for d, extent in enumerate(tile):
        inner //= extent
        part = f"{linear} // {inner}" if inner > 1 else linear
        index.append(f"{part} % {extent}" if d else part)
    access: dict[str, Any] = {"name": "my access", "op": "store", "bytes": width, "index": index}
    if trips > 1:
        access["for"] = {"i": trips}
    if trips * threads > pieces:
        access["where"] = f"{linear} < {pieces}"
    access["notes"] = (
        "index: the coordinates that a thread touches, over tid, lane, warp and the variables of for; "
        "where: which threads take part"
    )
    notes = "One entry of accesses for each instruction in the source that touches the tile."
    return _problem("blank", options, notes, tile, element, threads, [access])


def hopper(options: Options) -> dict[str, Any]:
    """A matrix product: TMA in, wgmma of consumers beside a producer, stmatrix and TMA out.

    Args:
        options: `tile` is M and N of the result;
            `stages` are of A and B; None for as many as fit, at most 8.

    Raises:
        ProblemFileError: the options fit no such kernel; `field` is the option.
    """
    gpu, stages = device(options.target), options.stages
    if not gpu.has("wgmma"):
        raise ProblemFileError("--target", f"{options.target} has no wgmma")
    element = options.element or "f16"
    if element not in _WGMMA_TYPES:
        raise ProblemFileError("--element", f"wgmma multiplies {', '.join(_WGMMA_TYPES)}, not {element!r}")
    rows, columns = _hopper_tile(options)
    consumers = 2 if rows % (2 * _ROWS) == 0 else 1
    threads = _WARPGROUP * (1 + consumers)
    if options.threads not in (None, threads):
        raise ProblemFileError(
            "--threads", f"{consumers} warpgroups of consumers and a producer are {threads} threads"
        )
    depth = _SPAN_BYTES // ELEMENT_BYTES[element]
    limits = gpu.limits_of(options.target)
    room = 0 if limits is None else limits.shared_bytes_per_block - _OTHER_BYTES
    fitting = (room - 2 * rows * columns) // ((rows + columns) * _SPAN_BYTES)
    if fitting < (stages or 1):
        raise ProblemFileError(
            "--stages" if stages else "--tile", f"{max(0, fitting)} stages fit beside the result"
        )
    count = stages or min(fitting, _MOST_STAGES)
    result = element if element in ("f16", "bf16") else "bf16"
    return {
        "schema": SCHEMA,
        "name": options.name or "hopper",
        "notes": f"A block of a matrix product on Hopper, {rows}x{columns}x{depth}: a producer warpgroup and "
        f"{consumers} of consumers. Both operands lie along K; B is n by k.",
        "target": options.target,
        "threads": threads,
        "tiles": [
            {"name": "A", "shape": [rows, depth], "element": element, "stages": count},
            {"name": "B", "shape": [columns, depth], "element": element, "stages": count},
            {"name": "D", "shape": [rows, columns], "element": result},
        ],
        "block": {"other_shared_bytes": _OTHER_BYTES},
        "accesses": _hopper_accesses(rows // _ROWS // consumers, columns, consumers),
    }


def _hopper_tile(options: Options) -> tuple[int, int]:
    tile = options.tile or (128, 128)
    if len(tile) != 2 or tile[0] % _ROWS or tile[1] % 16 or tile[1] > 256:
        raise ProblemFileError(
            "--tile", f"M a multiple of {_ROWS} and N a multiple of 16, at most 256, such as 128x128"
        )
    return tile[0], tile[1]


def _hopper_accesses(repeat: int, columns: int, consumers: int) -> list[dict[str, Any]]:
    stores = {
        "tile": "D", "name": "accumulators", "op": "stmatrix.x4", "fragment": "wgmma.m64n8k16.C.f32",
        "warps": [consumers, 1], "first_warp": _WARPGROUP // 32,
        "repeat": {"n": columns // 8, **({"m": repeat} if repeat > 1 else {})},
        "notes": "converted to D's element; the consumers lie one behind the other along m",
    }  # fmt: skip
    return [
        {"tile": "A", "name": "fill A", "op": "tma.load"},
        {"tile": "A", "name": "operand A", "op": "wgmma.A"},
        {"tile": "B", "name": "fill B", "op": "tma.load"},
        {"tile": "B", "name": "operand B", "op": "wgmma.B"},
        stores,
        {"tile": "D", "name": "store D", "op": "tma.store"},
    ]


KINDS: dict[str, Callable[[Options], dict[str, Any]]] = {
    "transpose": transpose,
    "gemm": gemm,
    "attention": attention,
    "conv": conv,
    "stencil": stencil,
    "blank": blank,
    "hopper": hopper,
}

# Names of tile elements under which the instructions know them; the first that an instruction takes.
_SPELLED = {
    "i8": ("s8",),
    "i4": ("s4",),
    "f8": ("e4m3",),
    "i32": ("s32",),
    "u1": ("b1",),
    "f32": ("f32", "tf32"),
}
# What is multiplied where the accumulator has this type.
_MULTIPLIED = {"f16": "f16", "bf16": "bf16", "f32": "f16", "s32": "s8", "f64": "f64"}


def _operand(options: Options, operand: str, element: str) -> Fragment:
    """An operand of the instruction asked for, or of the largest that the target executes."""
    usable = _taking(operand, _SPELLED.get(element, (element,)))
    if not usable:
        raise ProblemFileError("--element", f"no matrix instruction takes {element} as operand {operand}")
    able = {name: held for name, held in usable.items() if executes(held, options.target)}
    if options.mma is None:
        full = _default(able, operand, options.target)
        if full is None:
            same = {n: h for n, h in usable.items() if h.since[:3] == device(options.target).name[:3]}
            known = ", ".join(f"{name} ({held.targets})" for name, held in (same or usable).items())
            raise ProblemFileError(
                "--target",
                f"{options.target} has no matrix instruction with {element} as operand {operand}; "
                f"there are {known}",
            )
    else:
        full = next((name for name in (*able, *usable) if name.endswith(f".{options.mma}")), options.mma)
    if full not in usable:
        raise ProblemFileError(
            "--mma", f"{options.mma!r} does not take {element} as operand {operand}; {', '.join(usable)} do"
        )
    held = usable[full]
    if full not in able:
        raise ProblemFileError(
            "--mma", f"{options.target} does not execute {full} with {element} (it is of {held.targets})"
        )
    if held.matrices > 1:
        raise ProblemFileError(
            "--mma" if options.mma else "--target",
            f"{full} with {element} computes {held.matrices} matrices at once, and where each lies is yours "
            f'to say: write an access with "fragment": "{held.name}" and an index that adds its place',
        )
    return held


def _taking(operand: str, spelled: tuple[str, ...]) -> dict[str, Fragment]:
    """By instruction, the fragment of an operand of such elements, contiguous along k where there are two."""
    found: dict[str, Fragment] = {}
    for one in spelled:
        for form in (operand, f"{operand}.{'row' if operand == 'A' else 'col'}"):
            for name, held in fragments().items():
                if name.endswith(f".{form}.{one}"):
                    found.setdefault(name.removesuffix(f".{form}.{one}"), held)
    return found


def _default(able: dict[str, Fragment], operand: str, target: str) -> str | None:
    """The instruction of one warp with most products, of f64 the one that all targets have.

    An accumulator is that of the usual factors. None where no instruction is left.
    """
    names = [name for name, held in able.items() if held.warps == 1]
    if operand == "C" and names:
        factor = _MULTIPLIED[able[names[0]].name.rpartition(".")[2]]
        multiplied = _taking("A", (factor,))
        names = [name for name in names if name in multiplied and executes(multiplied[name], target)]
    names.sort(key=lambda name: (able[name].matrices > 1, name != "mma.m8n8k4", -_products(name)))
    return names[0] if names else None


def _products(instruction: str) -> int:
    return math.prod(map(int, re.findall(r"\d+", instruction.partition(".")[2])))


def _share(
    tile: tuple[int, int] | tuple[int, ...], held: Fragment, threads: int, operand: str
) -> tuple[tuple[int, int], dict[str, int]]:
    """Warps along m and n, as square as the tile allows, and each warp's repetitions."""
    unit = held.lanes * held.warps
    if threads % unit:
        raise ProblemFileError("--threads", f"{held.name} needs a multiple of {unit} threads, not {threads}")
    groups = threads // unit
    names = tuple(held.extent) if operand != "B" else ("n", "k")
    fit = {c: tile[d] // held.extent[c] for d, c in enumerate(names)}
    for d, c in enumerate(names):
        if tile[d] % held.extent[c] or not tile[d]:
            raise ProblemFileError(
                "--tile", f"expected a multiple of {held.extent[c]} along {c} for {held.name}, got {tile[d]}"
            )
    splits = [(a, groups // a) for a in range(1, groups + 1) if groups % a == 0]
    able = [s for s in splits if fit.get("m", 0) % s[0] == 0 and fit.get("n", 0) % s[1] == 0]
    if not able:
        raise ProblemFileError(
            "--threads", f"{groups} warps do not share {'x'.join(map(str, tile))} in pieces of {held.name}"
        )
    warps = min(able, key=lambda s: (abs(math.log2(s[0] / s[1])), -s[0]))
    along = {"m": warps[0], "n": warps[1], "k": 1}
    return warps, {c: fit[c] // along[c] for c in names}


def _moved(name: str, fragment: dict[str, Any], tile: Tile, threads: int, options: Options) -> dict[str, Any]:
    """The access to a fragment by the widest instruction that can: of the target, from this tile.

    Args:
        name: of the access.
        fragment: its fields but for the instruction.
        tile: where the elements lie.
        threads: of the block.
        options: of the user.

    Raises:
        ProblemFileError: none can.
    """
    matrix, plain = ("stmatrix", "store") if options.operand == "C" else ("ldmatrix", "load")
    known = device(options.target).rules
    forms = [f"{matrix}.x{n}" for n in (4, 2, 1)] if (matrix, 16) in known else []
    forms += [f"{form}.trans" for form in forms]
    forms += ["ds_read_b64_tr_b16"] if plain == "load" and ("load.tr", 8) in known else []
    tries: list[dict[str, Any]] = [{"op": form} for form in forms]
    tries += [{"op": plain, "bytes": width} for width in (16, 8, 4, 2, 1) if (plain, width) in known]
    for instruction in tries:
        access = {"name": name, **instruction, **fragment}
        try:
            expand([access], Problem("any", tile, threads, (), target=options.target))
        except ProblemFileError:
            continue
        return access
    raise ProblemFileError(
        "--mma", f"no load or store of {options.target} moves {fragment['fragment']} to or from such a tile"
    )
