"""The shared memory of a kernel in Triton's GPU IR (`.ttgir`), as problems: a tile for each buffer.

Every `local_alloc` is a tile, with all its stages, and so is a buffer that a function is given;
`local_store`, `local_load`, a `local_alloc` of a value and copies from global memory are its
accesses, each once, whatever loop it stands in, and so are TMA, wgmma and tcgen05, which reach it by
themselves. Which buffer a value is: `layoutopt.imports.triton_views`. The layout that Triton chose is the
published one. Which instructions move a tensor: `layoutopt.imports.triton_moves`. A buffer that an operation
of another kind reaches, such as `local_gather`, is left out by name. Every `convert_layout` is a conversion.
Not read: the scratch memory of reductions.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.ownership import distinct_in_order, index_fields
from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.brackets import split
from layoutopt.hardware.devices import device
from layoutopt.imports.triton import linear_bases, thread_values
from layoutopt.imports.triton_moves import Launch, Moved, access
from layoutopt.imports.triton_shared import offsets
from layoutopt.imports.triton_stages import Stage, of_reduction, of_scan
from layoutopt.imports.triton_text import parse
from layoutopt.imports.triton_views import Values, View, along, part, reshaped, transposed, whole
from layoutopt.problems.types import ELEMENT_BYTES

Extents = tuple[int, ...]

MAX_ACCESSES: Final = 200
MAX_LAYOUTS: Final = 256  # with a name; each is read again with every type
MAX_BUFFERS: Final = 256
MAX_PASSES: Final = 16  # over a function whose loops give other buffers to the next iteration
_SHARED: Final = re.compile(r"\s*(?:(%[\w.$#-]+)(?::\d+)?\s*=\s*)?\"?(?:ttg|ttng|amdg|amdgpu)\.(\w+)")
_ELEMENTS: Final = {"f8E4M3FN": "e4m3", "f8E5M2": "e5m2", "f8E4M3FNUZ": "b8", "f8E5M2FNUZ": "b8", "i1": "b8"}
# Copies that TMA makes by itself, and matrix instructions that read shared memory.
_TMA: Final = {
    "async_tma_copy_global_to_local": ("tma.load", ""),
    "async_tma_copy_local_to_global": ("tma.store", ""),
    "async_tma_reduce": ("tma.store", ""),
    "async_tma_gather": ("tma.load", "gather4: rows by their indices, which lie as those of a box."),
    "async_tma_scatter": ("tma.store", "scatter4: rows by their indices, which lie as those of a box."),
}
_GATHERS: Final = {"local_gather": "load", "local_scatter": "store"}
_MATRIX: Final = {"warp_group_dot": "wgmma", "tc_gen5_mma": "tcgen05", "tc_gen5_mma_scaled": "tcgen05"}
_MOVES: Final = {
    "local_store": "store",
    "local_load": "load",
    "async_copy_global_to_local": "cp.async",
    "buffer_load_to_local": "cp.async",
}
_HEADER: Final = {
    "target": r'ttg\.target"?\s*=\s*"(cuda|hip):(\w{1,20})"',
    "warps": r'"ttg\.num-warps"\s*=\s*(\d{1,4})',
    "lanes": r'"ttg\.threads-per-warp"\s*=\s*(\d{1,4})',
}
# Operations on barriers, and those that move nothing.
_IDLE: Final = re.compile(
    r"\w*barrier\w*|local_dealloc|clc_\w+|fence_\w+|tc_gen5_commit|warp_\w+|async_tma_store_wait"
)
_LOCATION: Final = re.compile(r"\bloc\((?:[^()\"]|\"[^\"]*\"|\((?:[^()\"]|\"[^\"]*\")*\))*\)")


class Buffer(Struct, frozen=True):
    """A memory descriptor's type without its stages: extents, element, and the layout as text."""

    shape: Extents
    element: str
    layout: str


@dataclass
class Tile:
    """A buffer and what happens to it."""

    name: str  # the value that it is allocated as
    buffer: Buffer  # its type
    # Kind, type of the registers, part of the buffer, and the dimension of that part along which lanes choose
    # at run time, by what makes them the same
    accesses: dict[tuple[Any, ...], tuple[str, str, View, int | None]] = field(default_factory=dict)
    # Notes on what the hardware does to it, by the operation and, of a matrix, the dimension that is K
    by_itself: dict[tuple[str, int | None], str] = field(default_factory=dict)
    unread: str = ""  # what reaches it and is not read


@dataclass
class Kernel:
    """A function of a file: its lines by their number, and its buffers, at most so many."""

    name: str
    lines: list[tuple[int, str]] = field(default_factory=list)
    tiles: list[Tile] = field(default_factory=list)
    values: Values = field(default_factory=Values)
    most: int = MAX_BUFFERS

    def allocate(self, name: str, buffer: Buffer) -> View:
        """All of a new buffer.

        Raises:
            ProblemFileError: there are too many.
        """
        if len(self.tiles) >= self.most:
            raise ProblemFileError("", f"more than {MAX_BUFFERS} buffers")
        self.tiles.append(Tile(name.lstrip("%"), buffer))
        view = whole(len(self.tiles) - 1, buffer.shape)
        self.values.define(name, [view])
        return view

    def views(self, name: str) -> list[View]:
        """The buffers that a value may be.

        Raises:
            ProblemFileError: it is not known.
        """
        found = self.values.views(name)
        if not found:
            raise ProblemFileError("", f"cannot tell which buffer {name} is")
        return found

    def moves(self, kind: str, value: str, views: list[View], chosen: int | None = None) -> None:
        """Note that registers of this type are moved to or from each."""
        for view in views:
            accesses = self.tiles[view.buffer].accesses
            accesses[kind, value, view.key, chosen] = (kind, value, view, chosen)
            if len(accesses) > MAX_ACCESSES:
                raise ProblemFileError("", f"more than {MAX_ACCESSES} accesses of one tile")


def problems(text: str, leave_out: Callable[[str], None] | None = None) -> Iterator[dict[str, Any]]:
    """Data of a problem for each tile, in the order of the file; `name` is the kernel's and the buffer's.

    Args:
        text: of the file.
        leave_out: called with the buffer and the reason where one is not read; an error otherwise.

    Raises:
        ProblemFileError: the text is no such file, or holds a layout or an element that is not read here.
    """
    launch = _header(text)
    aliases = _aliases(text)
    for kernel in _kernels(text, aliases):
        for tile in kernel.tiles:
            try:
                if tile.accesses or tile.by_itself or tile.unread:
                    yield _problem(kernel, tile, launch, aliases)
            except ProblemFileError as error:
                if leave_out is None:
                    raise
                leave_out(f"{kernel.name} {tile.name}: {error}")


def conversions(text: str) -> Iterator[dict[str, Any]]:
    """Data of each conversion, of `convert_layout`, reductions and scans, in order; `name` has its line.

    Args:
        text: of the file.

    Raises:
        ProblemFileError: the text is no such file, or holds a layout or an element that is not read here.
    """
    launch = _header(text)
    aliases = _aliases(text)
    opened: list[tuple[int, str]] = []  # operations with regions, whose types stand behind them
    for number, line in enumerate(text.splitlines(), 1):
        start, operation = number, line
        if re.search(r"\(\{\s*$", line):
            opened.append((number, line))
            continue
        if opened and re.match(r"\s*\}\)", line):
            start, operation = opened.pop()
        named = re.search(r"\b(ttg\.convert_layout|tt\.reduce|tt\.scan)\b(?!\.)", operation)
        if named is None:
            continue
        try:
            stages = list(_stages(named[1].partition(".")[2], operation, line, aliases, launch))
        except ProblemFileError as error:
            raise ProblemFileError(f"line {start}", str(error)) from None
        for k, (element, shape, source, destination) in enumerate(stages, 1):
            yield {
                "name": f"line {start}" + (f", {named[1]} {k}" if named[1] != "ttg.convert_layout" else ""),
                "target": launch.target,
                "tile": {"shape": list(shape), "element": element},
                "threads": launch.warps * launch.lanes,
                "convert": {"from": source, "to": destination},
            }


def _stages(
    operation: str, line: str, typed: str, aliases: str, launch: Launch
) -> Iterator[tuple[str, *Stage]]:
    """What an operation exchanges through scratch, by the element: in order, of each of its tensors."""
    laid_out = [_laid_out(inner) for kind, inner in _types(typed) if kind == "tensor"]
    shaped = [_shaped(parts[0]) for parts in laid_out]
    bases = [
        linear_bases(f"{aliases}\n{parts[1]}", shape, launch.lanes)
        for parts, (shape, _) in zip(laid_out, shaped, strict=True)
    ]
    if not bases or (operation == "convert_layout" and len(bases) != 2):
        raise ProblemFileError("", "a statement without the types of its tensors")
    if operation == "convert_layout":
        (shape, element), (source, destination) = shaped[0], bases
        yield element, shape, source, destination
        return
    axis, inputs = _axis(line, laid_out[0][0]), len(re.findall(r"tensor<", typed.partition("->")[0]))
    for k in range(inputs):
        shape, element = shaped[k]
        result = bases[inputs + k] if len(bases) > inputs + k else None
        stages = of_scan if operation == "scan" else partial(of_reduction, result=result)
        for stage in stages(bases[k], shape, axis):
            yield element, *stage


def _axis(line: str, tensor: str) -> int:
    """The axis that a statement names of a tensor of this type."""
    found = re.search(r"\baxis\s*=\s*(\d{1,2})\b", line)
    if found is None or int(found[1]) >= tensor.partition(",")[0].count("x"):
        raise ProblemFileError("", "a statement without the axis of its tensors")
    return int(found[1])


def _aliases(text: str) -> str:
    """The lines that give layouts names."""
    named = [line for line in text.splitlines() if re.match(r"#\w+\s*=\s*#ttg\.\w+<", line)]
    if len(named) > MAX_LAYOUTS:
        raise ProblemFileError("", f"at most {MAX_LAYOUTS} layouts with a name, given {len(named)}")
    return "\n".join(named)


def _header(text: str) -> Launch:
    found = {key: match for key, pattern in _HEADER.items() if (match := re.search(pattern, text))}
    if missing := [key for key in _HEADER if key not in found]:
        raise ProblemFileError("", f"not Triton GPU IR: the module's attributes lack {', '.join(missing)}")
    vendor, name = found["target"].groups()
    name = name if vendor == "hip" else f"sm_{name}"
    warps, lanes = int(found["warps"][1]), int(found["lanes"][1])
    if device(name).lanes != lanes:
        raise ProblemFileError("", f"warps of {lanes} threads are read for {name} with {device(name).lanes}")
    return Launch(name, warps, lanes)


def _kernels(text: str, aliases: str) -> list[Kernel]:
    kernels: list[Kernel] = []
    for number, located in enumerate(text.splitlines(), 1):
        line = _LOCATION.sub("", located)
        if started := re.search(r"\btt\.func\b[^@]*@\"?([\w.$]+)", line):
            kernels.append(Kernel(started[1]))
        if kernels:
            kernels[-1].lines.append((number, line))
        elif _SHARED.match(line) and _concerns(line):
            raise ProblemFileError(f"line {number}", "a statement outside of a function")
    left = MAX_BUFFERS
    for kernel in kernels:
        kernel.most = left
        for _ in range(MAX_PASSES):
            kernel.tiles = []
            kernel.values.again()
            for number, line in kernel.lines:
                try:
                    _line(kernel, number, line, aliases)
                except ProblemFileError as error:
                    raise ProblemFileError(f"line {number}", str(error)) from None
            if not kernel.values.grown:
                break
        else:
            raise ProblemFileError(f"line {kernel.lines[0][0]}", "its loops exchange too many buffers")
        left -= len(kernel.tiles)
    return kernels


def _concerns(line: str) -> bool:
    return any(word in line for word in ("memdesc", "async", "to_local"))


def _line(kernel: Kernel, number: int, line: str, aliases: str) -> None:
    kernel.values.line(number, line)
    if not _concerns(line):
        return
    if re.search(r"\btt\.func\b", line):
        names = re.findall(r"(%[\w.$-]+):\s*!ttg\.memdesc<", line)
        memory = [inner for kind, inner in _types(line) if kind == "memdesc"]
        for name, inner in zip(names, memory, strict=False):
            if "tensor_memory" not in inner:
                kernel.allocate(name, _buffer(inner, aliases))
    elif statement := _SHARED.match(line):
        result, operation = statement[1] or "", statement[2]
        if not _statement(kernel, result, operation, line, aliases) and not _IDLE.fullmatch(operation):
            for name in re.findall(r"%[\w.$#-]+", line.partition(operation)[2]):
                for view in kernel.values.views(name):
                    kernel.tiles[view.buffer].unread = f"line {number}: {operation} is not read"


def _statement(kernel: Kernel, result: str, operation: str, line: str, aliases: str) -> bool:
    """Note what a statement does; whether that is known here."""
    types = list(_types(line))
    memory = [inner for kind, inner in types if kind == "memdesc"]
    values = [inner for kind, inner in types if kind == "tensor"]
    used = re.findall(r"%[\w.$#-]+", line.partition(operation)[2])
    if operation in ("local_alloc", "memdesc_reinterpret") and memory:
        view = kernel.allocate(result, _buffer(memory[-1], aliases))
        if values and operation == "local_alloc":
            kernel.moves("store", values[0], [view])
    elif operation in _MOVES and memory and values and used:
        into = re.search(r"\binto (%[\w.$#-]+)", line)
        source = into[1] if into else used[0 if "local_load" in operation else min(1, len(used) - 1)]
        kernel.moves(_MOVES[operation], values[0], kernel.views(source))
    elif operation in _GATHERS and memory and values and used:
        kernel.moves(_GATHERS[operation], values[0], kernel.views(used[0]), _axis(line, values[0]))
    elif operation.startswith(("memdesc_", "warp_group_dot_wait")):
        _derived(kernel, result, operation, line, (used, memory))
    elif operation in _TMA and memory:
        op, notes = _TMA[operation]
        reached = re.search(r"\]\s*(?:\w+\s*=\s*\[[^\]]*\]\s*)?(%[\w.$#-]+)", line)
        for view in kernel.views(reached[1] if reached else "?"):
            kernel.tiles[view.buffer].by_itself.setdefault((op, None), notes)
    elif operation in _MATRIX:
        for operand, k, name, (kind, inner) in zip("AB", (-1, -2), used, types, strict=False):
            if kind == "tensor" or "tensor_memory" in inner:  # A may be in registers
                continue
            for view in kernel.views(name):
                tile = kernel.tiles[view.buffer]
                dim = along(view, k % view.elements.ndim, tile.buffer.shape)
                tile.by_itself[f"{_MATRIX[operation]}.{operand}", dim] = ""
    else:
        return False
    return True


def _derived(kernel: Kernel, result: str, operation: str, line: str, of: tuple[list[str], list[str]]) -> None:
    """Values that are buffers or parts of them; those that are not followed are not known."""
    used, memory = of
    if operation == "warp_group_dot_wait":
        for k, name in enumerate(used):
            kernel.values.define(f"{result}#{k}", kernel.values.views(name))
        return
    views = kernel.values.views(used[0]) if used else []
    sliced = operation in ("memdesc_subslice", "memdesc_subview")
    start = _start(kernel, line, views[0].elements.ndim if views else 0) if sliced else None
    if not memory or not views:
        return
    extents = _shaped(_laid_out(memory[-1])[0])[0]
    if operation == "memdesc_trans":
        turned = re.search(r"order\s*=\s*array<i32:\s*(\d{1,4}(?:\s*,\s*\d{1,4})*)>", line)
        order = tuple(int(n) for n in turned[1].split(",")) if turned is not None else ()
        views = [new for view in views for new in transposed(view, order)]
    elif operation == "memdesc_reshape":
        views = [new for view in views for new in reshaped(view, extents)]
    elif start is not None:
        views = [part(view, start, extents) for view in views]
    elif operation != "memdesc_index":
        views = []
    kernel.values.define(result, views)


def _start(kernel: Kernel, line: str, rank: int) -> Extents:
    """Where a slice of a buffer of `rank` dimensions (0: of all) starts; stages come before these."""
    listed = re.search(r"\[([^\]]*)\]", line)
    words = [word.strip() for word in listed[1].split(",")][-rank:] if listed is not None else []
    constants = kernel.values.constants
    found = [int(word) if re.fullmatch(r"\d{1,9}", word) else constants.get(word, -1) for word in words]
    if not found or min(found) < 0:
        raise ProblemFileError("", "a slice that starts at no constant")
    return tuple(found)


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


def _laid_out(text: str) -> list[str]:
    """The parts of a tensor's or a buffer's type: its shape, its layout, and what else it says."""
    parts = split(text, "<{[()]}>")
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


def _problem(kernel: Kernel, tile: Tile, launch: Launch, aliases: str) -> dict[str, Any]:
    if tile.unread:
        raise ProblemFileError("", tile.unread)
    buffer = tile.buffer
    table, formula = offsets(f"{aliases}\n{buffer.layout}", buffer.shape)
    # The dimension along which the second element lies comes last: accesses are wide along it.
    second = np.argwhere(table == 1)
    fast = int(np.flatnonzero(second[0])[0]) if len(second) else table.ndim - 1
    dims = [d for d in range(table.ndim) if d != fast] + [fast]
    turned = np.ascontiguousarray(table.transpose(dims))
    size = ELEMENT_BYTES[buffer.element]
    accesses = [_access(tile, number, turned, dims, launch, aliases) for number in range(len(tile.accesses))]
    threads = max([launch.warps * launch.lanes, *(n for n, _ in accesses)])
    listed = [one | ({"where": f"tid < {n}"} if n < threads else {}) for n, one in accesses]
    for (op, k), notes in tile.by_itself.items():
        major = {"major": "MN"} if k is not None and k != dims[-1] else {}
        alike = sum(one["op"] == op for one in listed)  # by its rows, and across them
        said = {"notes": notes} if notes else {}
        listed.append({"name": f"{op} {alike}" if alike else op, "op": op, **major, **said})
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
        "threads": threads,
        "accesses": listed,
        **({"published": published} if formula is not None else {}),
    }


def _access(
    tile: Tile, number: int, turned: IntArray, dims: list[int], launch: Launch, aliases: str
) -> tuple[int, dict[str, Any]]:
    """An access of a tile whose dimensions stand in another order, and the threads that it is of.

    Raises:
        ProblemFileError: a layout is not read, or leaves the buffer.
    """
    kind, value, view, chosen = list(tile.accesses.values())[number]
    shape, name = tile.buffer.shape, f"{kind} {number}" if len(tile.accesses) > 1 else kind
    extents, text = _laid_out(value)[:2]
    within = thread_values(f"{aliases}\n{text}", _shaped(extents)[0], launch.lanes)
    # The warps of a partition of a specialised kernel are not those of the module.
    own = replace(launch, warps=len(within) // launch.lanes)
    if chosen is not None:
        within[..., chosen] = 0
    if within.shape[-1] != view.elements.ndim or (within >= view.elements.shape).any():
        lines = "x".join(map(str, shape))
        raise ProblemFileError("", f"{name} of {tile.name} leaves its buffer of {lines} elements")
    elements = np.unravel_index(view.elements[tuple(np.moveaxis(within, -1, 0))], shape)
    place = np.ravel_multi_index([elements[d] for d in dims], turned.shape)
    size = ELEMENT_BYTES[tile.buffer.element]
    if chosen is None:
        moved = Moved(turned.shape, distinct_in_order(place), parse(f"{aliases}\n{text}"), turned, size)
        return len(within), access(name, kind, moved, own)
    found = {"name": name, "op": kind, "bytes": size, **index_fields(place, turned.shape, own.lanes)}
    d = dims.index(along(view, chosen, shape))
    first = found["index"][d]
    found["index"][d] = "at" if first == "0" else f"{first} + at"
    return len(within), found | {"any": {"at": view.elements.shape[chosen]}}
