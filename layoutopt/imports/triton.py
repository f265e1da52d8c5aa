"""Triton's distributed layouts, as the compiler or Gluon prints them.

    #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
    BlockedLayout(size_per_thread=[1, 8], threads_per_warp=[4, 8], warps_per_cta=[4, 1], order=[1, 0])

also `nvidia_mma`, `dot_op`, `slice` and `linear`, with aliases (`#mma = ...` lines before). All are linear
over F2: a power-of-two place of a register, lane or warp has a basis vector in the tile, and what a thread
holds is the XOR of the bases of its bits (Triton, include/triton/Tools/LinearLayout.h). A layout smaller
than the tile is repeated in more registers; of one that is larger, the bases beyond the
tile are zero (and left out of a blocked layout's registers).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.errors import ProblemFileError

IntArray = npt.NDArray[np.int64]
Vector = tuple[int, ...]

PARTS: Final = ("register", "lane", "warp")
LANES: Final = 32
MAX_VALUES: Final = 1 << 22
MAX_BASES: Final = 22


@dataclass
class _Bases:
    """A linear layout under construction.

    Attributes:
        dims: dimensions in the order in which registers are added to cover the tile.
        size: how far the layout reaches along each dimension.
        bases: vectors of each part.
    """

    dims: list[int]
    size: dict[int, int] = field(default_factory=dict)
    bases: dict[str, list[Vector]] = field(default_factory=lambda: {part: [] for part in PARTS})

    def grow(self, part: str, dim: int, count: int) -> None:
        """`count` consecutive values of `part` step along `dim` in units of what is there."""
        for _ in range(count.bit_length() - 1):
            self.bases[part].append(self._unit(dim, self.size.get(dim, 1)))
            self.size[dim] = self.size.get(dim, 1) * 2

    def repeat(self, part: str, count: int) -> None:
        """`count` consecutive values of `part` hold the same."""
        self.bases[part] += [self._unit(0, 0)] * (count.bit_length() - 1)

    def _unit(self, dim: int, step: int) -> Vector:
        return tuple(step if d == dim else 0 for d in sorted(self.dims))


def thread_values(text: str, tile: Sequence[int]) -> IntArray:
    """The element of each thread and register.

    Args:
        text: the layout, and the aliases that it uses.
        tile: extents of the tensor, powers of two.

    Returns:
        int64, shape (threads, registers, dimensions).

    Raises:
        ProblemFileError: the text is no layout that is read here, or does not go with the tile.
    """
    if any(extent & (extent - 1) for extent in tile):
        raise ProblemFileError(
            "--tile", f"Triton's tensors are powers of two, not {'x'.join(map(str, tile))}"
        )
    layout = _parse(text)
    if math.prod(tile) > MAX_VALUES:
        raise ProblemFileError("--tile", f"at most {MAX_VALUES} elements")
    bases = _bases(layout, tuple(tile))
    if 1 << len(bases["lane"]) != LANES:
        raise _wrong(f"a warp has {LANES} threads, not {1 << len(bases['lane'])}")
    if sum(map(len, bases.values())) > MAX_BASES:
        raise _wrong(f"it has more than 2**{MAX_BASES} values")
    registers, lanes, warps = (_combinations(bases[part], len(tile)) for part in PARTS)
    threads = (warps[:, None] ^ lanes[None, :]).reshape(-1, len(tile))
    return threads[:, None] ^ registers[None, :]


def _combinations(vectors: list[Vector], rank: int) -> IntArray:
    total = np.zeros((1, rank), np.int64)
    for vector in vectors:
        total = np.concatenate([total, total ^ np.array(vector, np.int64)])
    return total


def _bases(layout: _Layout, tile: Vector) -> dict[str, list[Vector]]:
    """The bases of each part, for a tensor of extents `tile`."""
    match layout.kind:
        case "slice":
            dim = layout.integer("dim")
            parent = layout.layout("parent")
            if not 0 <= dim <= len(tile):
                raise _wrong(f"slice of dimension {dim} does not go with {len(tile)} dimensions")
            whole = (*tile[:dim], 1, *tile[dim:])
            found = _bases(parent, whole)
            cut = {part: [(*v[:dim], *v[dim + 1 :]) for v in vectors] for part, vectors in found.items()}
            # A register that differs only in what is sliced away holds the same element again.
            return {**cut, "register": [v for v in cut["register"] if any(v)]}
        case "linear":
            found = {part: layout.vectors(part, len(tile)) for part in PARTS}
            return _fitted(found, tile, list(range(len(tile)))[::-1])
        case "blocked":
            order = layout.integers("order", len(tile))
            if sorted(order) != list(range(len(tile))):
                raise _wrong(f"order {order} is no order of {len(tile)} dimensions")
            built = _Bases(order)
            for part, name in zip(PARTS, ("sizePerThread", "threadsPerWarp", "warpsPerCTA"), strict=True):
                counts = layout.powers(name, len(tile))
                for dim in order:
                    built.grow(part, dim, counts[dim])
            fitted = _fitted(built.bases, tile, order)
            return {**fitted, "register": [v for v in fitted["register"] if any(v)]}
        case "nvidia_mma":
            return _mma(layout, tile, None, 2)
        case "dot_op":
            parent, operand = layout.layout("parent"), layout.integer("opIdx")
            if parent.kind != "nvidia_mma" or operand not in (0, 1):
                raise _wrong("dot_op is read for nvidia_mma parents and operands 0 and 1")
            return _mma(parent, tile, operand, layout.integer("kWidth"))
    raise _wrong(f"{layout.kind!r} is none of blocked, nvidia_mma, dot_op, slice, linear")


def _mma(layout: _Layout, tile: Vector, operand: int | None, k_width: int) -> dict[str, list[Vector]]:
    """Accumulator (`operand` None) or operand of mma.sync and wgmma, by Triton's rules for them."""
    if len(tile) != 2:
        raise _wrong("nvidia_mma is read for two dimensions")
    version = layout.version()
    if version not in (2, 3) or k_width < 1 or k_width & (k_width - 1):
        raise _wrong("nvidia_mma is read for versions 2 and 3 and a kWidth that is a power of two")
    warps = layout.powers("warpsPerCTA", 2)
    instruction = layout.integers("instrShape", None)
    inner = 1 if operand in (None, 0) else 0
    outer = 1 - inner
    if operand is None:
        columns = instruction[1] if len(instruction) > 1 else 8
        extent = {0: 16, 1: columns}
    else:
        extent = {inner: 8 * k_width, outer: 16 if operand == 0 else 8}
    if extent[inner] & (extent[inner] - 1) or extent[inner] < 4 * k_width:
        raise _wrong(f"instrShape {instruction} is not read: {extent[inner]} columns")
    built = _Bases([inner, outer])
    built.grow("register", inner, k_width)
    built.grow("lane", inner, 4)
    built.grow("lane", outer, 8)
    built.grow("register", outer, extent[outer] // 8)
    built.grow("register", inner, extent[inner] // (4 * k_width))
    # Warps follow rows first on Ampere, columns first on Hopper; along k they hold the same.
    for dim in (1, 0) if version == 2 else (0, 1):
        if operand is not None and dim == inner:
            built.repeat("warp", warps[dim])
        else:
            built.grow("warp", dim, warps[dim])
    return _fitted(built.bases, tile, [inner, outer])


def _fitted(bases: dict[str, list[Vector]], tile: Vector, dims: list[int]) -> dict[str, list[Vector]]:
    """Bases within the tile: those beyond it zero, and registers for what they do not reach."""
    cut = {
        part: [v if all(x < e for x, e in zip(v, tile, strict=True)) else (0,) * len(tile) for v in vectors]
        for part, vectors in bases.items()
    }
    registers = list(cut["register"])
    every = [v for vectors in bases.values() for v in vectors]
    for dim in dims:
        reach = 1 << max((v[dim].bit_length() for v in every), default=0)
        while reach < tile[dim]:
            registers.append(tuple(reach if d == dim else 0 for d in range(len(tile))))
            reach *= 2
    return {**cut, "register": registers}


# Gluon's names, and how the compiler spells them.
_KINDS: Final = {
    "BlockedLayout": "blocked",
    "SliceLayout": "slice",
    "DistributedLinearLayout": "linear",
    "DotOperandLayout": "dot_op",
    "NVMMADistributedLayout": "nvidia_mma",
}
_FIELDS: Final = {
    "size_per_thread": "sizePerThread",
    "threads_per_warp": "threadsPerWarp",
    "warps_per_cta": "warpsPerCTA",
    "instr_shape": "instrShape",
    "operand_index": "opIdx",
    "k_width": "kWidth",
    "reg_bases": "register",
    "lane_bases": "lane",
    "warp_bases": "warp",
    "block_bases": "block",
}


@dataclass(frozen=True)
class _Layout:
    """A layout as parsed: its kind and fields, under the compiler's names."""

    kind: str
    fields: dict[str, Any]

    def _get(self, name: str) -> Any:
        if name not in self.fields:
            raise _wrong(f"{self.kind} without {name}")
        return self.fields[name]

    def layout(self, name: str) -> _Layout:
        value = self._get(name)
        if not isinstance(value, _Layout):
            raise _wrong(f"{name} of {self.kind} is no layout")
        return value

    def integer(self, name: str) -> int:
        value = self._get(name)
        if not isinstance(value, int):
            raise _wrong(f"{name} of {self.kind} is no integer")
        return value

    def integers(self, name: str, count: int | None) -> list[int]:
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(v, int) and 0 <= v < 1 << 20 for v in value):
            raise _wrong(f"{name} of {self.kind} is no list of integers")
        if count is not None and len(value) != count:
            raise _wrong(f"{name} has {len(value)} entries for a tile of {count} dimensions")
        return value

    def powers(self, name: str, count: int) -> list[int]:
        values = self.integers(name, count)
        if not all(v and v & (v - 1) == 0 for v in values):
            raise _wrong(f"{name} are powers of two, not {values}")
        return values

    def vectors(self, name: str, rank: int) -> list[Vector]:
        value = self._get(name)
        if not isinstance(value, list) or not all(
            isinstance(v, list) and len(v) == rank and all(isinstance(x, int) and x >= 0 for x in v)
            for v in value
        ):
            raise _wrong(f"{name} of linear is no list of vectors of {rank} integers")
        return [tuple(v) for v in value]

    def version(self) -> int:
        return (
            self.integer("versionMajor")
            if "versionMajor" in self.fields
            else next(iter(self.integers("version", None)), 0)
        )


def _parse(text: str) -> _Layout:
    """The layout of the last line that has one; lines `#name = ...` before it are aliases."""
    aliases: dict[str, _Layout] = {}
    layout = None
    for line in re.split(r"\n(?=\s*#\w+\s*=)|\n(?=\s*[#\w.]+[<(])", text.strip()):
        if not line.strip():
            continue
        definition = re.match(r"\s*#(\w+)\s*=\s*(?=#)", line)
        source = line[definition.end() :] if definition else line
        layout = _layout(source, aliases)
        if definition:
            aliases[definition[1]] = layout
    if layout is None:
        raise _wrong("no text")
    return layout


def _layout(source: str, aliases: dict[str, _Layout]) -> _Layout:
    """MLIR's `#ttg.kind<{...}>` becomes a call, as Gluon prints; Python's parser reads both."""
    python = re.sub(r"#(?:ttg|triton_gpu|ttng)\.(\w+)\s*<\s*\{", r"\1(", source.strip())
    python = re.sub(r"\}\s*>", ")", python).replace("#", "")
    try:
        tree = ast.parse(python, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _wrong(f"cannot read {' '.join(source.split())[:60]!r}") from None

    def read(node: ast.expr, depth: int = 0) -> Any:
        if depth > 8:
            raise _wrong("nested too deeply")
        match node:
            case ast.Constant(value=int() as value):
                return int(value)
            case ast.List(elts=items):
                return [read(item, depth + 1) for item in items]
            case ast.Name(id=name) if name in aliases:
                return aliases[name]
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
                fields = {_FIELDS.get(k.arg or "", k.arg or ""): read(k.value, depth + 1) for k in keywords}
                _check_one_block(fields)
                return _Layout(_KINDS.get(name, name), fields)
        raise _wrong(f"cannot read {(ast.get_source_segment(python, node) or '')[:60]!r}")

    layout = read(tree)
    if not isinstance(layout, _Layout):
        raise _wrong(f"{' '.join(source.split())[:60]!r} is no layout")
    return layout


def _check_one_block(fields: dict[str, Any]) -> None:
    given = fields.get("CTAsPerCGA", [1])
    blocks = given if isinstance(given, list) and all(isinstance(n, int) for n in given) else [0]
    if fields.get("cga_layout") or fields.get("CGALayout") or fields.get("block") or math.prod(blocks) != 1:
        raise _wrong("it spreads a tensor over several blocks; shared memory is one block's")


def _wrong(reason: str) -> ProblemFileError:
    return ProblemFileError("", f"not a Triton layout that is read here: {reason}")
