"""Starting problems for common kernels: what `layoutopt new` writes.

Each function returns problem data that solves as it is. The accesses are named ones wherever there is
a name (`layoutopt.accesses.named_accesses`), so that a person changes a warp grid, not a formula.
"""

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.named_accesses import expanded
from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import Device, device
from layoutopt.hardware.fragments import Fragment, executes, fragments
from layoutopt.problems.types import ELEMENT_BYTES, PACKED_BITS, SCHEMA, Problem, Tile

_WGMMA_TYPES: Final = ("f16", "bf16", "f32", "e4m3", "e5m2")
_WARPGROUP: Final = 128
_ROWS: Final = 64  # M of wgmma
_SPAN_BYTES: Final = 128  # of a stage along K: whole rows of the widest mode
_MOST_STAGES: Final = 8
_OTHER_BYTES: Final = 1024  # barriers, and what aligns the start of dynamic shared memory


class Kind(NamedTuple):
    """What a kind of kernel is where the user says nothing."""

    # The problem's data but for what all have: tile or tiles, accesses, notes
    make: "Callable[[Start], dict[str, Any]]"
    tile: tuple[int, ...]  # extents
    element: str  # their type
    threads: int | None = 256  # of the block; None where the kind decides
    takes: tuple[str, ...] = ()  # options that are not for every kind
    one_by_one: bool = False  # whether threads move single elements, which need bytes of their own


class Start(Struct, frozen=True):
    """What a kind starts from: the options, and its defaults in the place of those that are left out."""

    target: str
    gpu: Device
    tile: tuple[int, ...]
    element: str
    threads: int
    given: dict[str, Any]

    @property
    def bits(self) -> int:
        """Of an element."""
        return PACKED_BITS.get(self.element) or 8 * ELEMENT_BYTES[self.element]

    def fill(self, shape: tuple[int, ...], notes: str, read: dict[str, Any]) -> dict[str, Any]:
        """The widest copy of global memory's rows that divides a row: asynchronous where there is one.

        A store is no wider than what reads the tile: it binds as many bytes together, which only narrower
        reads would have to pay for, and narrower stores take no more wavefronts.
        """
        known = self.gpu.rules
        width = self.widest("store", shape)
        if ("cp.async.ca", 4) not in known:
            width = min(width, read.get("bytes", width))
        op = "cp.async" if ("cp.async.cg" if width == 16 else "cp.async.ca", width) in known else "store"
        return {"name": "fill", "op": op, "copy": {"bytes": width}, "notes": notes}

    def widest(self, kind: str, shape: tuple[int, ...]) -> int:
        """The most bytes that a load or store of the target moves and that divide a row."""
        row = shape[-1] * self.bits
        fitting = (w for w in (16, 8, 4, 2, 1) if (kind, w) in self.gpu.rules and row % (8 * w) == 0)
        return next(fitting, max(1, self.bits // 8))


def starter(kind: str, target: str = "sm_90", **options: Any) -> dict[str, Any]:
    """The data of a starting problem.

    Args:
        kind: one of `KINDS`.
        target: the GPU.
        options: what the user says, by the options of `layoutopt new`; None where a kind has its own default.

    Raises:
        ProblemFileError: the options fit no such kernel; `field` is the option.
    """
    known = KINDS[kind]
    given = {option: value for option, value in options.items() if value is not None}
    for option in ("mma", "operand", "stages", "free"):
        if option in given and option not in known.takes:
            able = [name for name, other in KINDS.items() if option in other.takes]
            raise ProblemFileError(f"--{option}", f"goes with {', '.join(able)}, not with {kind}")
    usual = "f32" if given.get("operand") == "C" else known.element  # accumulators
    element, tile = given.get("element", usual), given.get("tile", known.tile)
    if element not in ELEMENT_BYTES and element not in PACKED_BITS:
        types = ", ".join((*ELEMENT_BYTES, *PACKED_BITS))
        raise ProblemFileError("--element", f"unknown type {element!r}; known: {types}")
    if known.one_by_one and element in PACKED_BITS:
        wrong = f"{element} elements share bytes, but here threads move them one by one"
        raise ProblemFileError("--element", wrong)
    if len(tile) != len(known.tile) and kind != "blank":
        example = "x".join(map(str, known.tile))
        wrong = f"expected {len(known.tile)} extents, such as {example}, got {len(tile)}"
        raise ProblemFileError("--tile", wrong)
    threads = given.get("threads", known.threads or 0)
    start = Start(target, device(target), tile, element, threads, given)
    own = {"name": kind, "threads": threads, "shape": tile, "target": target, **known.make(start)}
    own["tile"] = {"shape": list(own["shape"]), "element": element}
    own["name"] = given.get("name", own["name"])
    what = ("threads", "tiles", "block") if "tiles" in own else ("tile", "threads")
    fields = ("name", "notes", "target", *what, "accesses", "convert")
    return {"schema": SCHEMA, **{field: own[field] for field in fields if field in own}}


def transpose(start: Start) -> dict[str, Any]:
    """Rows written, columns read."""
    width = start.bits // 8
    rows = {"name": "rows", "op": "store", "copy": {"bytes": width}}
    rows["notes"] = "threads follow rows, as in the global memory that is read"
    columns = {"name": "columns", "op": "load", "copy": {"bytes": width, "order": [1, 0]}}
    columns["notes"] = "threads follow columns, so that the transposed rows are written in one piece"
    notes = "A transpose through shared memory. Wider copies of rows: raise bytes of rows to 8 or 16."
    return {"notes": notes, "accesses": [rows, columns]}


def stencil(start: Start) -> dict[str, Any]:
    """A tile with a halo of 1, each thread reading its neighbours."""
    if min(start.tile) < 3:
        raise ProblemFileError("--tile", "a tile with a halo of 1 has at least 3 rows and columns")
    rows, columns = (extent - 2 for extent in start.tile)
    point, run = _piece_of_thread(rows * columns, start.threads)
    taps = {
        "name": "taps",
        "op": "load",
        "bytes": start.bits // 8,
        "index": [f"{point} // {columns} + dy", f"{point} % {columns} + dx"],
        **run,
        "for": run.get("for", {}) | {"dy": 3, "dx": 3},
        "notes": "dy and dx run over the taps of the stencil; 3x3 here",
    }
    notes = f"A 3x3 stencil on {rows}x{columns} points; the tile has one more on every side."
    copy = {"bytes": start.bits // 8}
    fill = {"name": "fill", "op": "store", "copy": copy, "notes": "the halo included"}
    return {"notes": notes, "accesses": [fill, taps]}


def _piece_of_thread(count: int, threads: int) -> tuple[str, dict[str, Any]]:
    """Of `count` pieces, a thread's own as an expression, and the fields `for` and `where` of an access.

    With 64 threads, 100 pieces are `(tid + 64*i)` for i below 2, where that is less than 100.
    """
    trips = -(-count // threads)
    piece = f"(tid + {threads}*i)" if trips > 1 else "tid"
    run: dict[str, Any] = {"for": {"i": trips}} if trips > 1 else {}
    return piece, run | ({"where": f"{piece} < {count}"} if trips * threads > count else {})


def gemm(start: Start) -> dict[str, Any]:
    """One operand of a matrix product, staged for tensor cores; or its result on the way out."""
    operand, stages = start.given.get("operand", "A"), start.given.get("stages", 1)
    if operand == "C" and stages > 1:
        raise ProblemFileError("--stages", "goes with operands A and B")
    fragment = _operand(start, operand)
    depth = 128 if operand == "C" else max(1024 // start.bits, fragment.extent["k"])
    tile = start.given.get("tile", (128, depth))
    warps, repeat = _warp_grid(tile, fragment, start.threads, operand)
    index = ["m" if operand in "AC" else "n", "n" if operand == "C" else "k"]
    moved: dict[str, Any] = {"fragment": fragment.name, "warps": list(warps), "repeat": repeat}
    if stages > 1:
        tile, index = (stages, *tile), ["stage", *index]
    if index != list(fragment.extent):
        moved["index"] = index
    if stages > 1:
        moved["for"] = {"stage": stages}
    access = _fragment_access("fragments", moved, Tile(tile, start.element), start)
    if operand == "C":
        access["notes"] = "each warp stores its accumulators"
        width = start.widest("load", tile)
        rows = f"rows of {width} bytes a thread, on their way to global memory"
        out = {"name": "rows", "op": "load", "copy": {"bytes": width}, "notes": rows}
        notes = "The result of a matrix product on its way out through shared memory."
        accesses = [access, out]
    else:
        access["notes"] = f"warps lie {warps[0]} along m and {warps[1]} along n"
        mma = fragment.name.removeprefix("mma.").partition(f".{operand}.")[0]
        staged = f", {stages} stages." if stages > 1 else "."
        notes = f"Operand {operand} of a matrix product by {mma}, k along its rows{staged}"
        accesses = [start.fill(tile, "global memory is contiguous along k", access), access]
    return {"name": f"gemm_{operand.lower()}", "notes": notes, "shape": tile, "accesses": accesses}


def attention(start: Start) -> dict[str, Any]:
    """A tile of keys and values: K is read along its rows, V across them."""
    if start.bits != 16:
        wrong = f"V is read across its rows by 2-byte elements, not {start.element}"
        raise ProblemFileError("--element", wrong)
    fragment = _operand(start, "B")
    threads = start.threads or 4 * fragment.lanes
    if threads % fragment.lanes:
        raise ProblemFileError(
            "--threads", f"{fragment.name} needs a multiple of {fragment.lanes}, not {threads}"
        )
    start = replace(start, threads=threads)
    keys, depth = start.tile
    n, k = fragment.extent["n"], fragment.extent["k"]
    whole = max(2 * n if ("ldmatrix", 16) in start.gpu.rules else n, k)
    if keys % whole or depth % whole:
        raise ProblemFileError("--tile", f"expected multiples of {whole}, got {keys}x{depth}")
    shared: dict[str, Any] = {"fragment": fragment.name, "warps": [threads // fragment.lanes, 1]}
    along = {**shared, "repeat": {"n": keys // n, "k": depth // k}, "index": ["n", "k"]}
    across = {**shared, "repeat": {"n": depth // n, "k": keys // k}, "index": ["k", "n"]}
    tile = Tile(start.tile, start.element)
    read, value = _fragment_access("K", along, tile, start), _fragment_access("V", across, tile, start)
    accesses = [
        start.fill(start.tile, "a row is the head dimension of one key", read),
        {**read, "notes": "S = Q K^T: n counts keys, k the head dimension"},
        {**value, "notes": "O = P V: k counts keys, n the head dimension"},
    ]
    notes = "Keys and values in one layout; every warp reads all of it. Drop K or V to serve one alone."
    return {"notes": notes, "threads": threads, "accesses": accesses}


def conv(start: Start) -> dict[str, Any]:
    """A 3x3 convolution as an implicit matrix product: pixels are rows of A, channels are k."""
    fragment = _operand(start, "A")
    rows, columns, channels = start.tile[0] - 2, start.tile[1] - 2, start.tile[2]
    if rows < 1 or columns < 1:
        raise ProblemFileError("--tile", "a 3x3 filter needs at least 3 rows and columns of pixels")
    warps, repeat = _warp_grid((rows * columns, channels), fragment, start.threads, "A")
    moved = {
        "fragment": fragment.name,
        "warps": list(warps),
        "repeat": repeat,
        "index": [f"m // {columns} + dy", f"m % {columns} + dx", "k"],
        "for": {"dy": 3, "dx": 3},
    }
    access = _fragment_access("pixels", moved, Tile(start.tile, start.element), start)
    access["notes"] = f"row m of A is pixel (m // {columns}, m % {columns}), moved by the tap of the filter"
    notes = (
        f"Input of a 3x3 convolution, {channels} channels last: {rows}x{columns} pixels and a halo of one."
    )
    fill = start.fill(start.tile, "channels of a pixel are contiguous", access)
    return {"notes": notes, "accesses": [fill, access]}


def convert(start: Start) -> dict[str, Any]:
    """From who holds what to who wants it, as Triton prints layouts: accumulators to rows."""
    (rows, columns), vector = start.tile, max(1, 128 // start.bits)
    warps, across = start.threads // 32, min(32, columns // vector)
    if start.threads % 32 or rows % 16 or columns % max(8, vector):
        wrong = f"whole warps on a tile of 16 rows and {max(8, vector)} columns, or multiples of these"
        raise ProblemFileError(
            "--tile", f"expected {wrong}, got {rows}x{columns} and {start.threads} threads"
        )
    mma = f"versionMajor = 2, versionMinor = 0, warpsPerCTA = [{warps}, 1], instrShape = [16, 8]"
    lanes = f"threadsPerWarp = [{32 // across}, {across}], warpsPerCTA = [{warps}, 1], order = [1, 0]"
    sides = {
        "from": f"#ttg.nvidia_mma<{{{mma}}}>",
        "to": f"#ttg.blocked<{{sizePerThread = [1, {vector}], {lanes}}}>",
    }
    notes = (
        "Accumulators of a matrix product to rows. Layouts as Triton, Gluon or CuTe prints them, or bases."
    )
    return {"notes": notes, "convert": sides}


def blank(start: Start) -> dict[str, Any]:
    """The least that is a problem, with the words that one needs next."""
    pieces = inner = math.prod(start.tile)
    linear, run = _piece_of_thread(pieces, start.threads)
    index = []
    for d, extent in enumerate(start.tile):
        inner //= extent
        part = f"{linear} // {inner}" if inner > 1 else linear
        index.append(f"{part} % {extent}" if d else part)
    access = {"name": "my access", "op": "store", "bytes": start.bits // 8, "index": index, **run}
    access["notes"] = (
        "index: the coordinates that a thread touches, over tid, lane, warp and the variables of for; "
        "where: which threads take part"
    )
    notes = "One entry of accesses for each instruction in the source that touches the tile."
    return {"notes": notes, "accesses": [access]}


def hopper(start: Start) -> dict[str, Any]:
    """A matrix product: TMA in, wgmma of consumers beside a producer, stmatrix and TMA out.

    The tile is M and N of the result; stages are of A and B, by default as many as fit, at most 8.
    """
    element, stages = start.element, start.given.get("stages")
    if not start.gpu.has("wgmma"):
        raise ProblemFileError("--target", f"{start.target} has no wgmma")
    if element not in _WGMMA_TYPES:
        raise ProblemFileError("--element", f"wgmma multiplies {', '.join(_WGMMA_TYPES)}, not {element!r}")
    rows, columns = start.tile
    if rows % _ROWS or columns % 16 or columns > 256:
        wrong = f"M a multiple of {_ROWS} and N a multiple of 16, at most 256, such as 128x128"
        raise ProblemFileError("--tile", wrong)
    consumers = 2 if rows % (2 * _ROWS) == 0 else 1
    threads = _WARPGROUP * (1 + consumers)
    if start.threads not in (0, threads):
        wrong = f"{consumers} warpgroups of consumers and a producer are {threads} threads"
        raise ProblemFileError("--threads", wrong)
    limits = start.gpu.limits_of(start.target)
    room = 0 if limits is None else limits.shared_bytes_per_block - _OTHER_BYTES
    fitting = (room - 2 * rows * columns) // ((rows + columns) * _SPAN_BYTES)
    if fitting < (stages or 1):
        field = "--stages" if stages else "--tile"
        raise ProblemFileError(field, f"{max(0, fitting)} stages fit beside the result")
    depth = _SPAN_BYTES // ELEMENT_BYTES[element]
    staged = {"element": element, "stages": stages or min(fitting, _MOST_STAGES)}
    result = element if element in ("f16", "bf16") else "bf16"
    repeat = rows // _ROWS // consumers
    accumulators = {
        "tile": "D", "name": "accumulators", "op": "stmatrix.x4", "fragment": "wgmma.m64n8k16.C.f32",
        "warps": [consumers, 1], "first_warp": _WARPGROUP // 32,
        "repeat": {"n": columns // 8, **({"m": repeat} if repeat > 1 else {})},
        "notes": "converted to D's element; the consumers lie one behind the other along m",
    }  # fmt: skip
    return {
        "notes": f"A block of a matrix product on Hopper, {rows}x{columns}x{depth}: a producer warpgroup and "
        f"{consumers} of consumers. Both operands lie along K; B is n by k.",
        "threads": threads,
        "tiles": [
            {"name": "A", "shape": [rows, depth], **staged},
            {"name": "B", "shape": [columns, depth], **staged},
            {"name": "D", "shape": [rows, columns], "element": result},
        ],
        "block": {"other_shared_bytes": _OTHER_BYTES},
        "accesses": [
            {"tile": "A", "name": "fill A", "op": "tma.load"},
            {"tile": "A", "name": "operand A", "op": "wgmma.A"},
            {"tile": "B", "name": "fill B", "op": "tma.load"},
            {"tile": "B", "name": "operand B", "op": "wgmma.B"},
            accumulators,
            {"tile": "D", "name": "store D", "op": "tma.store"},
        ],
    }


KINDS: Final = {
    "transpose": Kind(transpose, (32, 32), "f32", one_by_one=True),
    "gemm": Kind(gemm, (128, 64), "f16", takes=("mma", "operand", "stages", "free")),
    "attention": Kind(attention, (64, 64), "f16", threads=None, takes=("mma", "free")),
    "conv": Kind(conv, (6, 18, 32), "f16", threads=128, takes=("mma", "free")),
    "stencil": Kind(stencil, (18, 34), "f32", one_by_one=True),
    "convert": Kind(convert, (64, 64), "f16", threads=128),
    "blank": Kind(blank, (32, 32), "f32", one_by_one=True),
    "hopper": Kind(hopper, (128, 128), "f16", threads=None, takes=("stages",)),
}

# Names of tile elements under which the instructions know them; the first that an instruction takes.
_INSTRUCTION_TYPES = {
    "i8": ("s8",),
    "i4": ("s4",),
    "f8": ("e4m3",),
    "i32": ("s32",),
    "u1": ("b1",),
    "f32": ("f32", "tf32"),
}
# What is multiplied where the accumulator has this type.
_MULTIPLIED = {"f16": "f16", "bf16": "bf16", "f32": "f16", "s32": "s8", "f64": "f64"}


def _operand(start: Start, operand: str) -> Fragment:
    """An operand of the instruction asked for, or of the largest that the target executes."""
    target, element, mma = start.target, start.element, start.given.get("mma")
    of_type = _fragments_of(operand, _INSTRUCTION_TYPES.get(element, (element,)))
    if not of_type:
        raise ProblemFileError("--element", f"no matrix instruction takes {element} as operand {operand}")
    executed = {name: fragment for name, fragment in of_type.items() if executes(fragment, target)}
    field, name = "--mma", _default_instruction(executed, operand, target)
    if mma is not None:
        name = next((name for name in (*executed, *of_type) if f".{name}".endswith(f".{mma}")), None)
    if mma is None and name is None:
        vendor = {n: fragment for n, fragment in of_type.items() if fragment.since[:3] == start.gpu.name[:3]}
        known = ", ".join(f"{name} ({fragment.targets})" for name, fragment in (vendor or of_type).items())
        wrong = f"{target} has no matrix instruction with {element} as operand {operand}; there are {known}"
        field = "--target"
    elif name is None:
        wrong = f"{mma!r} does not take {element} as operand {operand}; {', '.join(of_type)} do"
    elif name not in executed:
        wrong = f"{target} does not execute {name} with {element} (it is of {of_type[name].targets})"
    elif (fragment := of_type[name]).matrices > 1:
        field = "--mma" if mma else "--target"
        wrong = (
            f"{name} with {element} computes {fragment.matrices} matrices at once, and where each lies is "
            f'yours to say: write an access with "fragment": "{fragment.name}" '
            "and an index that adds its place"
        )
    else:
        return fragment
    raise ProblemFileError(field, wrong)


def _fragments_of(operand: str, types: tuple[str, ...]) -> dict[str, Fragment]:
    """By instruction, the fragment of an operand of the first of these types that it takes.

    Where an instruction has two forms of A or B, it is the one that is contiguous along k.
    """
    found: dict[str, Fragment] = {}
    for element in types:
        for form in (operand, f"{operand}.{'row' if operand == 'A' else 'col'}"):
            suffix = f".{form}.{element}"
            for name, fragment in fragments().items():
                if name.endswith(suffix):
                    found.setdefault(name.removesuffix(suffix), fragment)
    return found


def _default_instruction(executed: dict[str, Fragment], operand: str, target: str) -> str | None:
    """The instruction of one warp with most products, of f64 the one that all targets have.

    An accumulator is that of the usual factors. None where no instruction is left.

    `executed` has the fragment of the operand by the name of each instruction that the target executes.
    """
    names = [name for name, fragment in executed.items() if fragment.warps == 1]
    if operand == "C" and names:
        factor = _MULTIPLIED[executed[names[0]].name.rpartition(".")[2]]
        factors = _fragments_of("A", (factor,))
        names = [name for name in names if name in factors and executes(factors[name], target)]
    names.sort(key=lambda name: (executed[name].matrices > 1, name != "mma.m8n8k4", -_products_of(name)))
    return names[0] if names else None


def _products_of(instruction: str) -> int:
    return math.prod(map(int, re.findall(r"\d+", instruction.partition(".")[2])))


def _warp_grid(
    tile: tuple[int, int] | tuple[int, ...], fragment: Fragment, threads: int, operand: str
) -> tuple[tuple[int, int], dict[str, int]]:
    """Warps along m and n, as square as the tile allows; and each warp's fragments along m, n and k.

    Raises:
        ProblemFileError: the threads are no whole warps, or the tile is not made of fragments for each.
    """
    unit = fragment.lanes * fragment.warps
    if threads % unit:
        wrong = f"{fragment.name} needs a multiple of {unit} threads, not {threads}"
        raise ProblemFileError("--threads", wrong)
    warps = threads // unit
    names = tuple(fragment.extent) if operand != "B" else ("n", "k")
    pieces = {}
    for name, extent in zip(names, tile, strict=False):
        pieces[name], rest = divmod(extent, fragment.extent[name])
        if rest or not extent:
            wrong = f"expected a multiple of {fragment.extent[name]} along {name} for {fragment.name}"
            raise ProblemFileError("--tile", f"{wrong}, got {extent}")
    grids = [(m, warps // m) for m in range(1, warps + 1) if warps % m == 0]
    fitting = [(m, n) for m, n in grids if pieces.get("m", 0) % m == 0 and pieces.get("n", 0) % n == 0]
    if not fitting:
        shape = "x".join(map(str, tile))
        raise ProblemFileError(
            "--threads", f"{warps} warps do not share {shape} in pieces of {fragment.name}"
        )
    grid = min(fitting, key=lambda mn: (abs(math.log2(mn[0] / mn[1])), -mn[0]))
    along = {"m": grid[0], "n": grid[1], "k": 1}
    return grid, {name: pieces[name] // along[name] for name in names}


def _fragment_access(name: str, fragment: dict[str, Any], tile: Tile, start: Start) -> dict[str, Any]:
    """The access to a fragment by the widest instruction that can, or by any: of the target, from this tile.

    Args:
        name: of the access.
        fragment: its fields but for the instruction.
        tile: where the elements lie.
        start: the threads, the target, and whether the fragment is the result, which is stored.

    Raises:
        ProblemFileError: none can.
    """
    matrix, plain = ("stmatrix", "store") if start.given.get("operand") == "C" else ("ldmatrix", "load")
    known, target = start.gpu.rules, start.target
    ops = [f"{matrix}.x{n}" for n in (4, 2, 1)] if (matrix, 16) in known else []
    ops += [f"{op}.trans" for op in ops]
    ops += ["ds_read_b64_tr_b16"] if plain == "load" and ("load.tr", 8) in known else []
    by_width: list[dict[str, Any]] = [
        {"op": plain, "bytes": width} for width in (16, 8, 4, 2, 1) if (plain, width) in known
    ]
    instructions: list[dict[str, Any]] = [*({"op": op} for op in ops), *by_width]
    if start.given.get("free"):  # who holds what: the narrowest say it of any tile
        instructions = [{**one, "instructions": "free"} for one in reversed(by_width)]
    problem = Problem("any", tile, start.threads, (), target=target)
    for instruction in instructions:
        access = {"name": name, **instruction, **fragment}
        with contextlib.suppress(ProblemFileError):
            expanded(access, "", problem)
            return access
    wrong = f"no load or store of {target} moves {fragment['fragment']} to or from such a tile"
    raise ProblemFileError("--mma", wrong)
