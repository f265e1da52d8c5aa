"""Accesses of the hardware by itself, as ordinary ones without a lane.

    {"name": "fill A", "op": "tma.load", "box": [128, 64]}
    {"name": "A", "op": "wgmma.A", "major": "K"}
    {"name": "row", "op": "cp.async.bulk", "bytes": 256}

They cost no wavefront that this tool counts; what they ask of the layout is `Access.hardware`.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from layoutopt.errors import ProblemFileError, Wrong, raise_first
from layoutopt.ground import json_data
from layoutopt.hardware.devices import devices
from layoutopt.hardware.dictated import Engine, engine, modes, why_undeclared
from layoutopt.hardware.operations import BY_ITSELF
from layoutopt.problems.hardware_use import HardwareChoices, HardwareUse
from layoutopt.problems.types import ELEMENT_BYTES, VECTOR_TYPES, Access, Name, Problem, Tile

Op = Literal["tma.load", "tma.store", "wgmma.A", "wgmma.B", "tcgen05.A", "tcgen05.B", "cp.async.bulk"]
# What each engine's accesses may say beside name, op, weight and notes.
_FIELDS: Final = {
    "tma": ("box", "element", "mode", "order", "multicast"),
    "wgmma": ("major", "mode", "k", "mn", "rows"),
    "tcgen05": ("major", "mode", "k", "mn", "rows"),
    "cp.async.bulk": ("bytes",),
}
# Types that a tensor map has: cuTensorMapEncodeTiled, tensorDataType.
DATA_TYPES: Final = {
    "u8": "UINT8", "i8": "UINT8", "b8": "UINT8", "f8": "UINT8", "e4m3": "UINT8", "e5m2": "UINT8",
    "u16": "UINT16", "i16": "UINT16", "b16": "UINT16", "f16": "FLOAT16", "bf16": "BFLOAT16",
    "u32": "UINT32", "b32": "UINT32", "i32": "INT32", "f32": "FLOAT32", "tf32": "TFLOAT32",
    "f16x2": "UINT32", "bf16x2": "UINT32",
    "u64": "UINT64", "b64": "UINT64", "i64": "INT64", "f64": "FLOAT64",
}  # fmt: skip
_INTEGERS: Final = ("i8", "u8")  # of 8 bits
_BY_SIZE: Final = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


class HardwareAccess(HardwareChoices, frozen=True, kw_only=True):
    """What TMA, the tensor cores or a bulk copy do to the tile by themselves; none of it costs banks here."""

    name: Name
    op: Op
    weight: Annotated[int | float, Meta(description="As for other accesses; it counts for nothing")] = 1
    notes: str | None = None


def is_hardware(access: Mapping[str, Any]) -> bool:
    """Whether decoded data is meant as an access of the hardware by itself, not yet written out."""
    op = access.get("op")
    if not isinstance(op, str) or "hardware" in access:
        return False
    is_like_one = op.lower().startswith(("tma", "wgmma", "tcgen05", "cp.async.bulk"))
    return op in BY_ITSELF or is_like_one or why_undeclared(op) is not None


def from_hardware(data: Mapping[str, Any], head: Problem) -> Access:
    """The data of a `HardwareAccess` as an ordinary access that no lane executes.

    Raises:
        ProblemFileError: there is no such op, or a field is not of it or cannot be; the text says why.
    """
    op, tile = str(data.get("op")), head.tile
    if op not in BY_ITSELF:
        known = f"it is none of {', '.join(BY_ITSELF)}"
        raise ProblemFileError("op", f"{op!r} is not declared: {why_undeclared(op) or known}")
    access = json_data.convert(data, HardwareAccess)
    name = BY_ITSELF[access.op]
    for field in HardwareChoices.__struct_fields__:
        if getattr(access, field) is not None and field not in _FIELDS[name]:
            allowed = ", ".join(_FIELDS[name])
            raise ProblemFileError(field, f"{access.op} has no such field; it has {allowed}")
    use = HardwareUse(engine=name, **{field: getattr(access, field) for field in _FIELDS[name]})
    plain = Access(
        name=access.name,
        op=access.op,
        index=(0,) * len(tile.shape),
        where="0",  # for no lane
        weight=access.weight,
        notes=access.notes,
        hardware=use,
    )
    raise_first(wrong_use(plain, tile))
    return plain


def wrong_use(access: Access, tile: Tile) -> Wrong:
    """Errors in the fields of a hardware access: what its engine's rules or the tile exclude."""
    use, dims = access.hardware, len(tile.shape)
    if use is None:
        return
    if BY_ITSELF.get(access.op) != use.engine:
        yield "op", f"{access.op!r} is not done by {use.engine}"
    rules, named = engine(use.engine), [mode.short for mode in modes(use.engine)]
    if use.mode is not None and use.mode not in named:
        why = f": {known}" if (known := why_undeclared(use.mode)) else ""
        yield "mode", f"{use.engine} has the modes {', '.join(named)}, not {use.mode!r}{why}"
    if use.order is not None and sorted(use.order) != list(range(dims)):
        yield "order", f"expected each of 0..{dims - 1} once, got {list(use.order)}"
    if use.engine == "tma":
        if use.multicast is not None and access.op != "tma.load":
            yield "multicast", f"{access.op} has no such field; tma.load has"
        yield from _wrong_map(use, tile, rules)
    elif use.engine == "cp.async.bulk":
        yield from _wrong_copy(use, tile, rules)
    else:
        yield from _wrong_matrix(access, use, tile, rules)


def _wrong_map(use: HardwareUse, tile: Tile, rules: Engine) -> Wrong:
    """Errors of a copy by a tensor map of the tile in boxes; each check relies on the ones before it."""
    dims, bits, blocks = len(tile.shape), tile.element_bits, use.multicast or 1
    if dims > rules.max_dims:
        yield "op", f"a tensor map has at most {rules.max_dims} dimensions, not {dims}"
    inner = use.order[-1] if use.order is not None else dims - 1  # the dimension contiguous in global memory
    if tile.packed > 1 and inner != dims - 1:
        yield "order", "elements that share a byte lie along the last dimension"
    if use.element is not None:
        if use.element not in DATA_TYPES:
            known = ", ".join(DATA_TYPES)
            yield "element", f"a tensor map has no {use.element!r}; it has {known}"
        size = ELEMENT_BYTES[use.element]
        # The map's elements are parts of the tile's, or several of its neighbours along the last dimension.
        if bits % (8 * size) and not (8 * size % bits == 0 and inner == dims - 1):
            yield "element", f"{size} bytes are no whole part of the {bits}-bit elements"
    if use.box is None:
        chunks = tile.elements * bits // (8 * rules.chunk_bytes)
        if chunks % blocks:
            shape = "x".join(map(str, tile.shape))
            yield "multicast", f"{blocks} blocks cannot share {shape} elements evenly"
        return
    if len(use.box) != dims:
        yield "box", f"expected one extent for each of {dims} dimensions, got {len(use.box)}"
    for d, (extent, whole) in enumerate(zip(use.box, tile.shape, strict=True)):
        if whole % extent:
            yield f"box[{d}]", f"{extent} does not divide the tile's {whole}"
        if d == inner:  # counted in the map's elements
            extent = extent * bits // (8 * ELEMENT_BYTES[map_element(use, tile)])
        if extent > rules.max_box:
            yield f"box[{d}]", f"a box has at most {rules.max_box} elements a dimension, not {extent}"
    row_bits, field = use.box[inner] * bits, f"box[{inner}]"  # of a box
    if row_bits % (8 * rules.chunk_bytes):
        yield field, f"a row of a box is a multiple of {rules.chunk_bytes} bytes, not {row_bits / 8:g}"
    span = {mode.short: mode.span_bytes for mode in modes("tma")}.get(use.mode or "")
    if span is not None and row_bits > 8 * span:
        yield field, f"a row of a box has at most the {span} bytes of mode {use.mode}, not {row_bits // 8}"
    boxes = tile.elements // math.prod(use.box)
    if boxes % blocks:
        yield "multicast", f"{blocks} blocks cannot share {boxes} boxes evenly; take smaller boxes"


def map_element(use: HardwareUse, tile: Tile) -> str:
    """The type that the tensor map names: what the file says, the tile's, or one of the same size.

    Elements that no type holds are taken in the largest parts that divide them.
    """
    if use.element is not None:
        return use.element
    if isinstance(tile.element, str) and tile.element in DATA_TYPES:
        return tile.element
    size = tile.storage.element_bytes
    return _BY_SIZE[min(8, size & -size)]


def _wrong_copy(use: HardwareUse, tile: Tile, rules: Engine) -> Wrong:
    size = use.bytes
    if size is None:
        yield "bytes", "cp.async.bulk needs the bytes of one copy"
    elif size % rules.chunk_bytes:
        yield "bytes", f"a bulk copy is a multiple of {rules.chunk_bytes} bytes, not {size}"
    elif bulk_elements(size, tile) is None:
        uneven = f"copies of {size} bytes do not cover rows of {tile.shape[-1]} elements evenly"
        whole = "a part of a row that divides it, or whole rows that divide the tile"
        yield "bytes", f"{uneven}; a copy is {whole}"


def bulk_elements(size: int, tile: Tile) -> int | None:
    """Elements of one bulk copy, row-major; None where copies do not cover the tile evenly."""
    if 8 * size % tile.element_bits:
        return None
    count = 8 * size // tile.element_bits
    rows = count  # of the dimensions that whole rows fill
    for extent in reversed(tile.shape):
        if rows % extent:
            return count if extent % rows == 0 else None
        rows //= extent
        if rows == 1:
            return count
    return None


def _wrong_matrix(access: Access, use: HardwareUse, tile: Tile, rules: Engine) -> Wrong:
    """Errors of a tile that a matrix instruction reads; each check relies on the ones before it.

    K is one dimension of the tile, M or N (`mn`) the `rows` of an instruction along one or several others.
    """
    size, dims = tile.element_bits // 8, len(tile.shape)
    if dims < 2:
        yield "op", f"{access.op} reads a matrix; the tile has one dimension"
    if (isinstance(tile.element, str) and tile.element in VECTOR_TYPES) or size not in rules.element_bytes:
        yield "op", f"{access.op} reads elements of {', '.join(map(str, rules.element_bytes))} bytes"
    if use.k is not None and use.k >= dims:
        yield "k", f"expected one of the dimensions 0..{dims - 1}, got {use.k}"
    if use.major == "MN" and size not in rules.mn_major_bytes:
        allowed = " or ".join(map(str, rules.mn_major_bytes))
        yield "major", f"{use.engine} reads elements of {size} bytes K-major; MN-major needs {allowed}"
    k, mn = matrix_dims(use, dims)
    if not mn or len({k, *mn}) != 1 + len(mn) or max(mn) >= dims:
        others = f"some of the dimensions 0..{dims - 1} but {k}, which is K"
        yield "mn", f"expected {others}, got {list(mn)}"
    depth = rules.k_bytes // size  # elements of K in one instruction
    if tile.shape[k] % depth:
        yield "k", f"K is a multiple of {depth} elements; x{k} has {tile.shape[k]}"
    allowed = _listed(_allowed_rows(access, tile))
    if use.rows is not None and use.rows not in _allowed_rows(access, tile):
        yield "rows", f"an instruction has {allowed}, not {use.rows}"
    if instruction_rows(access, tile) is None:
        extent, have = math.prod(tile.shape[d] for d in mn), "have" if len(mn) > 1 else "has"
        has = f"{' and '.join(f'x{d}' for d in mn)} {have} {extent} rows"
        more = "" if use.mn or dims < 3 else " (mn names more dimensions)"
        takes = f"an instruction takes {allowed if use.rows is None else use.rows}"
        yield "op" if use.rows is None else "rows", f"{has}{more}; {takes}"


def _listed(values: tuple[int, ...]) -> str:
    """Numbers in even steps: "64 or 128", "8, 16, ... 256"."""
    if len(values) < 3:
        return " or ".join(map(str, values))
    return f"{values[0]}, {values[1]}, ... {values[-1]}"


def matrix_dims(use: HardwareUse, dims: int) -> tuple[int, tuple[int, ...]]:
    """The dimensions that are K, and M or N, of a matrix operand; any others number matrices."""
    last_two = (dims - 1, dims - 2)
    k = use.k if use.k is not None else last_two[use.major == "MN"]
    return k, use.mn if use.mn is not None else (last_two[0] if k != last_two[0] else last_two[1],)


def _allowed_rows(access: Access, tile: Tile) -> tuple[int, ...]:
    """M or N of the instructions that there are for an operand."""
    assert access.hardware is not None
    rules, operand = engine(access.hardware.engine), access.op[-1]
    integers = rules.integer_rows if tile.element in _INTEGERS else {}
    return integers.get(operand, rules.rows[operand])


def instruction_rows(access: Access, tile: Tile) -> int | None:
    """M or N of one instruction: what the file says, else the most that divide the matrix."""
    assert access.hardware is not None
    extent = math.prod(tile.shape[d] for d in matrix_dims(access.hardware, len(tile.shape))[1])
    allowed = _allowed_rows(access, tile)
    wanted = (access.hardware.rows,) if access.hardware.rows is not None else allowed
    return max((rows for rows in wanted if rows in allowed and extent % rows == 0), default=None)


def wrong_cluster(problem: Problem) -> Wrong:
    """Errors of `block.cluster`: its size, a target without clusters, multicasts that do not divide it."""
    cluster, rules, target = problem.block.cluster, engine("tma"), problem.target
    if cluster is not None:
        if cluster > rules.max_cluster:
            most = f"1 to {rules.max_cluster} blocks ({rules.portable_cluster} are portable)"
            yield "block.cluster", f"expected {most}, got {cluster}"
        able = [known for known in devices() if known.has("tma")]  # what has TMA has clusters
        if any(target.lower() in known.names for known in devices() if known not in able):
            have = f"{', '.join(known.name for known in able)} have"
            yield "block.cluster", f"{target} has no thread block clusters; {have}"
    for i, access in enumerate(problem.accesses):
        multicast = None if access.hardware is None else access.hardware.multicast
        if multicast is not None and (cluster or 1) % multicast:
            expected = f"expected what divides block.cluster ({cluster or 'not given'})"
            yield f"accesses[{i}].multicast", f"{expected}, got {multicast}"


def wrong_target(problem: Problem) -> Wrong:
    """Accesses that need an engine which a GPU lacks that shares the rules of others."""
    for i, access in enumerate(problem.accesses):
        use = access.hardware
        if use is not None and problem.target.lower() in engine(use.engine).without:
            yield f"accesses[{i}].op", f"{problem.target} has no {use.engine}"
