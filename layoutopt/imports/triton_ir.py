"""The shared memory of a kernel in Triton's GPU IR (`.ttgir`), as problems: a tile for each kind of buffer.

Every `local_alloc` is a tile; `local_store`, `local_load`, a `local_alloc` of a value and copies from global
memory are its accesses, each once, whatever loop it stands in, and so are TMA, wgmma and tcgen05, which reach
it by themselves. Buffers of one shape, element and layout are one tile. The layout that Triton chose is the
published one. Which instructions move a tensor: `layoutopt.imports.triton_moves`. Not read: the scratch
memory of `convert_layout` and of reductions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.imports.triton import thread_values
from layoutopt.imports.triton_moves import Launch, Moved, access
from layoutopt.imports.triton_shared import offsets
from layoutopt.imports.triton_text import parse
from layoutopt.problems.types import ELEMENT_BYTES

IntArray = npt.NDArray[np.int64]
Extents = tuple[int, ...]

MAX_ACCESSES: Final = 200
_ELEMENTS: Final = {"f8E4M3FN": "e4m3", "f8E5M2": "e5m2", "f8E4M3FNUZ": "b8", "f8E5M2FNUZ": "b8", "i1": "b8"}
# Copies that TMA makes by itself, and matrix instructions that read shared memory.
_TMA: Final = {
    "async_tma_copy_global_to_local": "tma.load",
    "async_tma_copy_local_to_global": "tma.store",
    "async_tma_reduce": "tma.store",
}
_MATRIX: Final = {"warp_group_dot": "wgmma", "tc_gen5_mma": "tcgen05", "tc_gen5_mma_scaled": "tcgen05"}
_MOVES: Final = {
    "local_store": "store",
    "local_load": "load",
    "async_copy_global_to_local": "cp.async",
    "buffer_load_to_local": "cp.async",
}


@dataclass(frozen=True)
class Buffer:
    """A memory descriptor's type without its stages: extents, element, and the layout as text."""

    shape: Extents
    element: str
    layout: str


@dataclass
class Tile:
    """What happens to buffers of one type.

    Attributes:
        name: of the first of them.
        accesses: by what makes them the same: kind, register layout, place in the tile.
        by_itself: what the hardware does to it: the operation, and of a matrix the dimension that is K.
    """

    name: str
    accesses: dict[tuple[str, str, Extents, Extents], None] = field(default_factory=dict)
    by_itself: dict[tuple[str, int | None], None] = field(default_factory=dict)


@dataclass
class Kernel:
    """A function of a file."""

    name: str
    tiles: dict[Buffer, Tile] = field(default_factory=dict)
    views: dict[Buffer, tuple[Buffer, Extents]] = field(
        default_factory=dict
    )  # a transposed type: of what, how
    places: dict[str, Extents] = field(default_factory=dict)  # where a slice starts


def problems(text: str) -> Iterator[dict[str, Any]]:
    """Data of a problem for each tile, in the order of the file; `name` is the kernel's and the buffer's.

    Raises:
        ProblemFileError: the text is no such file, or holds a layout or an element that is not read here.
    """
    launch = _header(text)
    aliases = "\n".join(line for line in text.splitlines() if re.match(r"#\w+\s*=\s*#ttg\.\w+<", line))
    for kernel in _kernels(text, aliases):
        for buffer, tile in kernel.tiles.items():
            if tile.accesses or tile.by_itself:
                yield _problem(kernel, buffer, tile, launch, aliases)


def _header(text: str) -> Launch:
    found = {
        key: re.search(pattern, text)
        for key, pattern in (
            ("target", r'ttg\.target"?\s*=\s*"(cuda|hip):(\w{1,20})"'),
            ("warps", r'"ttg\.num-warps"\s*=\s*(\d{1,4})'),
            ("lanes", r'"ttg\.threads-per-warp"\s*=\s*(\d{1,4})'),
        )
    }
    missing = [key for key, match in found.items() if match is None]
    if missing:
        raise ProblemFileError("", f"not Triton GPU IR: the module's attributes lack {', '.join(missing)}")
    target, warps, lanes = (found[key] for key in ("target", "warps", "lanes"))
    assert target is not None
    assert warps is not None
    assert lanes is not None
    name = target[2] if target[1] == "hip" else f"sm_{target[2]}"
    if device(name).lanes != int(lanes[1]):
        raise ProblemFileError(
            "", f"warps of {lanes[1]} threads are read for {name} with {device(name).lanes}"
        )
    return Launch(name, int(warps[1]), int(lanes[1]))


def _kernels(text: str, aliases: str) -> list[Kernel]:
    kernels: list[Kernel] = []
    for number, line in enumerate(text.splitlines(), 1):
        if started := re.search(r"\btt\.func\b[^@]*@\"?([\w.$]+)", line):
            kernels.append(Kernel(started[1]))
        statement = re.match(r"\s*(?:(%[\w#]+)(?::\d+)?\s*=\s*)?\"?(ttg|ttng|amdg|amdgpu)\.(\w+)", line)
        if statement is None or not any(word in line for word in ("memdesc", "async", "to_local")):
            continue
        if not kernels:
            raise ProblemFileError(f"line {number}", "a statement outside of a function")
        try:
            _statement(kernels[-1], statement[1] or "", statement[3], line, aliases)
        except ProblemFileError as error:
            raise ProblemFileError(f"line {number}", str(error)) from None
    return kernels


def _statement(kernel: Kernel, result: str, operation: str, line: str, aliases: str) -> None:
    types = list(_types(line))
    memory = [kind for kind in types if kind[0] == "memdesc"]
    values = [kind for kind in types if kind[0] == "tensor"]
    if operation == "local_alloc" and memory:
        buffer = _buffer(memory[-1][1], aliases)
        tile = kernel.tiles.setdefault(buffer, Tile(result.lstrip("%")))
        if values:
            tile.accesses[_key("store", values[0][1], (0,) * len(buffer.shape))] = None
    elif operation in _MOVES and memory and values:
        buffer = _buffer(memory[0 if operation == "local_load" else -1][1], aliases)
        used = re.findall(r"%[\w#]+", line.partition(operation)[2])
        into = re.search(r"\binto (%[\w#]+)", line)
        source = into[1] if into else used[0 if operation == "local_load" else min(1, len(used) - 1)]
        place = kernel.places.get(source, (0,) * len(buffer.shape))
        base, order = kernel.views.get(buffer, (buffer, ()))
        known = kernel.tiles.setdefault(base, Tile(source.lstrip("%")))
        known.accesses[(*_key(_MOVES[operation], values[0][1], place)[:3], order)] = None
        if len(known.accesses) > MAX_ACCESSES:
            raise ProblemFileError("", f"more than {MAX_ACCESSES} accesses of one tile")
    elif operation == "memdesc_subslice":
        start = re.search(r"\[(\d[\d,\s]*)\]", line)
        if start is None:
            raise ProblemFileError("", "a slice that starts at no constant")
        kernel.places[result] = tuple(int(n) for n in start[1].split(","))
    elif operation == "memdesc_trans" and len(memory) == 2:
        turned = re.search(r"order\s*=\s*array<i32:\s*(\d[\d,\s]*)>", line)
        of, view = (_buffer(kind[1], aliases) for kind in memory)
        if turned is not None and of in kernel.tiles:
            kernel.views[view] = (of, tuple(int(n) for n in turned[1].split(",")))
    elif operation in _TMA and memory:
        _reached(kernel, memory[-1][1], aliases, _TMA[operation], None)
    elif operation in _MATRIX:
        both = memory if values[:1] != types[:1] else [("", ""), *memory]  # A may be in registers
        for operand, k, (_, inner) in zip("AB", (-1, -2), both, strict=False):
            if inner and "tensor_memory" not in inner:
                _reached(kernel, inner, aliases, f"{_MATRIX[operation]}.{operand}", k)


def _reached(kernel: Kernel, inner: str, aliases: str, op: str, k: int | None) -> None:
    """Note that the hardware reaches a buffer by itself; of a matrix, dimension `k` of this view is K."""
    buffer = _buffer(inner, aliases)
    base, order = kernel.views.get(buffer, (buffer, ()))
    if base in kernel.tiles:
        dim = None if k is None else k % len(buffer.shape)
        kernel.tiles[base].by_itself[op, order[dim] if order and dim is not None else dim] = None


def _key(kind: str, value: str, place: Extents) -> tuple[str, str, Extents, Extents]:
    return kind, value, place, ()


def _types(line: str) -> Iterator[tuple[str, str]]:
    """Memory descriptors and tensors of a statement: which, and what stands between its brackets."""
    plain = line.replace("->", "  ")
    for start in re.finditer(r"(!ttg\.memdesc|tensor|(?<=[:\s]))<(?=[\dx]*\d)", plain):
        depth, end = 1, start.end()
        while depth and end < len(plain):
            depth += {"<": 1, ">": -1}.get(plain[end], 0)
            end += 1
        inner = plain[start.end() : end - 1]
        yield ("tensor" if start[1] == "tensor" else "memdesc"), inner


def _parts(text: str) -> list[str]:
    """What commas outside of brackets separate."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<{[(") - (letter in ">}])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _laid_out(text: str) -> list[str]:
    """The parts of a tensor's or a buffer's type: its shape, its layout, and what else it says."""
    parts = _parts(text)
    if len(parts) < 2:
        raise ProblemFileError("", f"expected a shape and a layout, got the type {text[:60]!r}")
    return parts


def _shaped(text: str) -> tuple[Extents, str]:
    """`128x32xf16` as extents and element; a pointer's element is what it points to."""
    found = re.fullmatch(r"((?:\d{1,9}x)*)(?:!tt\.ptr<)?(\w+)>?", text)
    if found is None:
        raise ProblemFileError("", f"cannot read the type {text[:60]!r}")
    extents = tuple(int(n) for n in found[1].split("x") if n)
    element = _ELEMENTS.get(found[2], found[2])
    if element not in ELEMENT_BYTES:
        raise ProblemFileError("", f"unknown element {found[2]!r}")
    return extents, element


def _buffer(text: str, aliases: str) -> Buffer:
    first, layout, *rest = _laid_out(text)
    shape, element = _shaped(first)
    whole = next((part for part in rest if re.fullmatch(r"\d+(x\d+)*", part)), None)
    if whole is not None:  # a slice: where it lies, its whole buffer decides
        shape = tuple(int(n) for n in whole.split("x"))
    rank = parse(f"{aliases}\n{layout}").shared_rank()
    return Buffer(shape[len(shape) - rank :] if rank else shape, element, layout)


def _problem(kernel: Kernel, buffer: Buffer, tile: Tile, launch: Launch, aliases: str) -> dict[str, Any]:
    table, formula = offsets(f"{aliases}\n{buffer.layout}", buffer.shape)
    # The dimension whose elements lie together comes last: accesses are wide along it.
    fast = _fast(table)
    dims = [d for d in range(table.ndim) if d != fast] + [fast]
    turned = np.ascontiguousarray(table.transpose(dims))
    size = ELEMENT_BYTES[buffer.element]
    accesses = []
    for number, (kind, value, place, order) in enumerate(tile.accesses):
        coordinates = _coordinates(value, place, order, aliases, launch)[..., dims]
        name = f"{kind} {number}" if len(tile.accesses) > 1 else kind
        if (coordinates < 0).any() or (coordinates >= turned.shape).any():
            lines = "x".join(map(str, buffer.shape))
            raise ProblemFileError("", f"{name} of {tile.name} leaves its buffer of {lines} elements")
        layout = parse(f"{aliases}\n{_laid_out(value)[1]}")
        accesses.append(access(name, kind, Moved(layout, coordinates, turned, size), launch))
    for op, k in tile.by_itself:
        major = {"major": "MN"} if k is not None and k != dims[-1] else {}
        alike = sum(access["op"] == op for access in accesses)  # by its rows, and across them
        accesses.append({"name": f"{op} {alike}" if alike else op, "op": op, **major})
    if formula is not None and dims != list(range(table.ndim)):
        renamed = {f"x{d}": f"x{place}" for place, d in enumerate(dims)}
        formula = re.sub(r"x\d", lambda match: renamed[match[0]], formula)
    chosen = re.search(rf"^{re.escape(buffer.layout)}\s*=\s*(.*)", aliases, re.M)
    published = {
        "offset": formula,
        "bytes": (int(table.max()) + 1) * size,
        "source": f"Triton: {chosen[1] if chosen is not None else buffer.layout}",
    }
    return {
        "schema": "layoutopt.problem/1",
        "name": f"{kernel.name} {tile.name}",
        "notes": f"A {'x'.join(map(str, buffer.shape))} buffer of Triton's GPU IR"
        + ("." if dims == list(range(table.ndim)) else f"; its dimensions in the order {dims}."),
        "target": launch.target,
        "tile": {"shape": list(turned.shape), "element": buffer.element},
        "threads": launch.warps * launch.lanes,
        "accesses": accesses,
        **({"published": published} if formula is not None else {}),
    }


def _fast(table: IntArray) -> int:
    """The dimension along which the second element lies."""
    at = np.argwhere(table == 1)
    return int(np.flatnonzero(at[0])[0]) if len(at) else table.ndim - 1


def _coordinates(value: str, place: Extents, order: Extents, aliases: str, launch: Launch) -> IntArray:
    """The tile's element of each thread and register: int64, shape (threads, registers, dimensions)."""
    first, layout = _laid_out(value)[:2]
    shape, _ = _shaped(first)
    table: IntArray = thread_values(f"{aliases}\n{layout}", shape, launch.lanes)
    if len(table) != launch.warps * launch.lanes:
        raise ProblemFileError(
            "", f"{layout} is one of {len(table)} threads, not {launch.warps * launch.lanes}"
        )
    table = table + np.array(place[-table.shape[-1] :] if place else (0,) * table.shape[-1])
    if not order:
        return table
    whole: IntArray = np.empty_like(table)
    for d, of in enumerate(order):
        whole[..., of] = table[..., d]
    return whole
