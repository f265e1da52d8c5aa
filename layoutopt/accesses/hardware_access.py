"""Accesses of the hardware by itself, as ordinary ones without a lane.

    {"name": "fill A", "op": "tma.load", "box": [128, 64]}
    {"name": "A", "op": "wgmma.A", "major": "K"}
    {"name": "row", "op": "cp.async.bulk", "bytes": 256}

They cost no wavefront that this tool counts; what they ask of the layout is `Access.hardware`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from layoutopt.errors import ProblemFileError
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
    return isinstance(op, str) and "hardware" not in access and (op in BY_ITSELF or _is_like_one(op))


def _is_like_one(op: str) -> bool:
    """Whether the name is meant as one of them."""
    family = op.lower().startswith(("tma", "wgmma", "tcgen05", "cp.async.bulk"))
    return op not in BY_ITSELF and (family or why_undeclared(op) is not None)


def from_hardware(data: Mapping[str, Any], place: str, head: Problem) -> Access:
    """The data of a `HardwareAccess` as an ordinary access that no lane executes.

    Raises:
        ProblemFileError: there is no such op, or a field is not of it or cannot be; the text says why.
    """
    op, tile = str(data.get("op")), head.tile
    if op not in BY_ITSELF:
        known = f"it is none of {', '.join(BY_ITSELF)}"
        raise ProblemFileError(f"{place}.op", f"{op!r} is not declared: {why_undeclared(op) or known}")
    access = json_data.convert(data, HardwareAccess, place)
    name = BY_ITSELF[access.op]
    for field in HardwareChoices.__struct_fields__:
        if getattr(access, field) is not None and field not in _FIELDS[name]:
            allowed = ", ".join(_FIELDS[name])
            raise ProblemFileError(f"{place}.{field}", f"{access.op} has no such field; it has {allowed}")
    use = HardwareUse(engine=name, **{field: getattr(access, field) for field in _FIELDS[name]})
    plain = Access(
        name=access.name,
        op=access.op,
        index=(0,) * len(tile.shape),
        where="0",
        weight=access.weight,
        notes=access.notes,
        hardware=use,
    )
    check_use(plain, place, tile)
    return plain


def check_use(access: Access, place: str, tile: Tile) -> None:
    """Check what one access asks of the layout against the rules and its tile.

    Raises:
        ProblemFileError: it asks what no layout can give; `field` says where.
    """
    use = access.hardware
    if use is None:
        return
    if BY_ITSELF.get(access.op) != use.engine:
        raise ProblemFileError(f"{place}.op", f"{access.op!r} is not done by {use.engine}")
    rules, dims = engine(use.engine), len(tile.shape)
    named = [mode.short for mode in modes(use.engine)]
    if use.mode is not None and use.mode not in named:
        why = why_undeclared(use.mode)
        raise ProblemFileError(
            f"{place}.mode",
            f"{use.engine} has the modes {', '.join(named)}, not {use.mode!r}{f': {why}' if why else ''}",
        )
    if use.order is not None and sorted(use.order) != list(range(dims)):
        raise ProblemFileError(
            f"{place}.order", f"expected each of 0..{dims - 1} once, got {list(use.order)}"
        )
    if use.engine == "tma":
        if use.multicast is not None and access.op != "tma.load":
            raise ProblemFileError(f"{place}.multicast", f"{access.op} has no such field; tma.load has")
        _check_tma(use, place, tile, rules)
    elif use.engine == "cp.async.bulk":
        _check_bulk(use, place, tile, rules)
    else:
        _check_matrix(access, use, place, tile, rules)


def _check_tma(use: HardwareUse, place: str, tile: Tile, rules: Engine) -> None:
    dims = len(tile.shape)
    if dims > rules.max_dims:
        raise ProblemFileError(
            f"{place}.op", f"a tensor map has at most {rules.max_dims} dimensions, not {dims}"
        )
    inner = use.order[-1] if use.order is not None else dims - 1
    if tile.packed > 1 and inner != dims - 1:
        raise ProblemFileError(f"{place}.order", "elements that share a byte lie along the last dimension")
    _check_map_element(use, place, tile)
    if use.box is None:
        smallest = tile.elements * tile.element_bits // (8 * rules.chunk_bytes)  # boxes of one chunk
        if smallest % (use.multicast or 1):
            shape = "x".join(map(str, tile.shape))
            raise ProblemFileError(
                f"{place}.multicast", f"{use.multicast} blocks cannot share {shape} elements evenly"
            )
        return
    if len(use.box) != dims:
        raise ProblemFileError(
            f"{place}.box", f"expected one extent for each of {dims} dimensions, got {len(use.box)}"
        )
    for d, (extent, whole) in enumerate(zip(use.box, tile.shape, strict=True)):
        if whole % extent:
            raise ProblemFileError(f"{place}.box[{d}]", f"{extent} does not divide the tile's {whole}")
        counted = extent
        if d == inner:
            counted = extent * tile.element_bits // (8 * ELEMENT_BYTES[map_element(use, tile)])
        if counted > rules.max_box:
            raise ProblemFileError(
                f"{place}.box[{d}]", f"a box has at most {rules.max_box} elements a dimension, not {counted}"
            )
    row = use.box[inner] * tile.element_bits
    if row % (8 * rules.chunk_bytes):
        raise ProblemFileError(
            f"{place}.box[{inner}]",
            f"a row of a box is a multiple of {rules.chunk_bytes} bytes, not {row / 8:g}",
        )
    spans = {mode.short: mode.span_bytes for mode in modes("tma") if mode.span_bytes is not None}
    if use.mode in spans and row > 8 * spans[use.mode]:
        raise ProblemFileError(
            f"{place}.box[{inner}]",
            f"a row of a box has at most the {spans[use.mode]} bytes of mode {use.mode}, not {row // 8}",
        )
    boxes = tile.elements // math.prod(use.box)
    if boxes % (use.multicast or 1):
        raise ProblemFileError(
            f"{place}.multicast",
            f"{use.multicast} blocks cannot share {boxes} boxes evenly; take smaller boxes",
        )


def _check_map_element(use: HardwareUse, place: str, tile: Tile) -> None:
    if use.element is None:
        return
    if use.element not in DATA_TYPES:
        known = ", ".join(DATA_TYPES)
        raise ProblemFileError(f"{place}.element", f"a tensor map has no {use.element!r}; it has {known}")
    size = ELEMENT_BYTES[use.element]
    inner = use.order[-1] if use.order is not None else len(tile.shape) - 1
    along = size * 8 % tile.element_bits == 0 and inner == len(tile.shape) - 1
    if tile.element_bits % (8 * size) and not along:
        raise ProblemFileError(
            f"{place}.element", f"{size} bytes are no whole part of the {tile.element_bits}-bit elements"
        )


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


def _check_bulk(use: HardwareUse, place: str, tile: Tile, rules: Engine) -> None:
    if use.bytes is None:
        raise ProblemFileError(f"{place}.bytes", "cp.async.bulk needs the bytes of one copy")
    if use.bytes % rules.chunk_bytes:
        raise ProblemFileError(
            f"{place}.bytes", f"a bulk copy is a multiple of {rules.chunk_bytes} bytes, not {use.bytes}"
        )
    if bulk_elements(use.bytes, tile) is None:
        raise ProblemFileError(
            f"{place}.bytes",
            f"copies of {use.bytes} bytes do not cover rows of {tile.shape[-1]} elements evenly; a copy is a "
            "part of a row that divides it, or whole rows that divide the tile",
        )


def bulk_elements(size: int, tile: Tile) -> int | None:
    """Elements of one bulk copy, row-major; None where copies do not cover the tile evenly."""
    if 8 * size % tile.element_bits:
        return None
    count, rest = 8 * size // tile.element_bits, 8 * size // tile.element_bits
    for extent in reversed(tile.shape):
        if rest % extent:
            return count if extent % rest == 0 else None
        rest //= extent
        if rest == 1:
            return count
    return None


def _check_matrix(access: Access, use: HardwareUse, place: str, tile: Tile, rules: Engine) -> None:
    size, dims = tile.element_bits // 8, len(tile.shape)
    if dims < 2:
        raise ProblemFileError(f"{place}.op", f"{access.op} reads a matrix; the tile has one dimension")
    if (isinstance(tile.element, str) and tile.element in VECTOR_TYPES) or size not in rules.element_bytes:
        allowed = ", ".join(map(str, rules.element_bytes))
        raise ProblemFileError(f"{place}.op", f"{access.op} reads elements of {allowed} bytes")
    if use.k is not None and use.k >= dims:
        raise ProblemFileError(f"{place}.k", f"expected one of the dimensions 0..{dims - 1}, got {use.k}")
    if use.major == "MN" and size not in rules.mn_major_bytes:
        allowed = " or ".join(map(str, rules.mn_major_bytes))
        raise ProblemFileError(
            f"{place}.major", f"{use.engine} reads elements of {size} bytes K-major; MN-major needs {allowed}"
        )
    k, mn = matrix_dims(use, dims)
    if not mn or len({k, *mn}) != 1 + len(mn) or max(mn) >= dims:
        raise ProblemFileError(
            f"{place}.mn",
            f"expected some of the dimensions 0..{dims - 1} but {k}, which is K, got {list(mn)}",
        )
    extent = math.prod(tile.shape[d] for d in mn)
    depth = rules.k_bytes // size
    if tile.shape[k] % depth:
        raise ProblemFileError(f"{place}.k", f"K is a multiple of {depth} elements; x{k} has {tile.shape[k]}")
    allowed_rows = _rows(access, tile)
    if use.rows is not None and use.rows not in allowed_rows:
        raise ProblemFileError(f"{place}.rows", f"an instruction has {_range(allowed_rows)}, not {use.rows}")
    if instruction_rows(access, tile) is None:
        raise ProblemFileError(
            f"{place}.rows" if use.rows is not None else f"{place}.op",
            f"{' and '.join(f'x{d}' for d in mn)} {'have' if len(mn) > 1 else 'has'} {extent} rows"
            f"{'' if use.mn or dims < 3 else ' (mn names more dimensions)'}; an instruction takes "
            + (str(use.rows) if use.rows is not None else _range(allowed_rows)),
        )


def _range(values: tuple[int, ...]) -> str:
    if len(values) < 3:
        return " or ".join(map(str, values))
    return f"{values[0]}, {values[1]}, ... {values[-1]}"


def matrix_dims(use: HardwareUse, dims: int) -> tuple[int, tuple[int, ...]]:
    """The dimensions that are K, and M or N, of a matrix operand; any others number matrices."""
    last_two = (dims - 1, dims - 2)
    k = use.k if use.k is not None else last_two[use.major == "MN"]
    return k, use.mn if use.mn is not None else (last_two[0] if k != last_two[0] else last_two[1],)


def _rows(access: Access, tile: Tile) -> tuple[int, ...]:
    """M or N of the instructions that there are."""
    assert access.hardware is not None
    rules, operand = engine(access.hardware.engine), access.op[-1]
    integers = rules.integer_rows if tile.element in _INTEGERS else {}
    return integers.get(operand, rules.rows[operand])


def instruction_rows(access: Access, tile: Tile) -> int | None:
    """M or N of one instruction: what the file says, else the most that divide the matrix."""
    assert access.hardware is not None
    extent = math.prod(tile.shape[d] for d in matrix_dims(access.hardware, len(tile.shape))[1])
    allowed = _rows(access, tile)
    wanted = (access.hardware.rows,) if access.hardware.rows is not None else allowed
    return max((rows for rows in wanted if rows in allowed and extent % rows == 0), default=None)


def check_cluster(problem: Problem) -> None:
    """Check the blocks of a cluster, and that they are as many as copies to several of them need.

    Raises:
        ProblemFileError: there is no such cluster, or it is too small.
    """
    cluster, rules = problem.block.cluster, engine("tma")
    if cluster is not None:
        if cluster > rules.max_cluster:
            raise ProblemFileError(
                "block.cluster",
                f"expected 1 to {rules.max_cluster} blocks ({rules.portable_cluster} are portable), "
                f"got {cluster}",
            )
        _check_has_clusters(problem.target)
    for i, access in enumerate(problem.accesses):
        shared = None if access.hardware is None else access.hardware.multicast
        if shared is not None and (cluster or 1) % shared:
            raise ProblemFileError(
                f"accesses[{i}].multicast",
                f"expected what divides block.cluster ({cluster or 'not given'}), got {shared}",
            )


def _check_has_clusters(target: str) -> None:
    """Check that a GPU of the package has clusters: what has TMA has them."""
    wanted = target.lower()
    known = next((d for d in devices() if wanted in (d.name, *(a.lower() for a in d.aliases))), None)
    if known is not None and not known.has("tma"):
        able = ", ".join(d.name for d in devices() if d.has("tma"))
        raise ProblemFileError("block.cluster", f"{target} has no thread block clusters; {able} have")


def check_target(problem: Problem) -> None:
    """Check that a GPU which shares the rules of others has the engines that the accesses need.

    Raises:
        ProblemFileError: it has not.
    """
    for i, access in enumerate(problem.accesses):
        if access.hardware is not None:
            without = engine(access.hardware.engine).without
            if problem.target.lower() in without:
                raise ProblemFileError(
                    f"accesses[{i}].op", f"{problem.target} has no {access.hardware.engine}"
                )
