"""Triton's layouts as text: `#ttg.kind<{field = value}>` from the compiler, `KindLayout(...)` from Gluon."""

import ast
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from layoutopt.errors import ProblemFileError

T = TypeVar("T")
Vector = tuple[int, ...]

# Gluon's names, and how the compiler spells them.
_KINDS: Final = {
    "BlockedLayout": "blocked",
    "SliceLayout": "slice",
    "DistributedLinearLayout": "linear",
    "DotOperandLayout": "dot_op",
    "NVMMADistributedLayout": "nvidia_mma",
    "AMDMFMALayout": "amd_mfma",
    "AMDWMMALayout": "amd_wmma",
    "SwizzledSharedLayout": "swizzled_shared",
    "PaddedSharedLayout": "padded_shared",
    "NVMMASharedLayout": "nvmma_shared",
    "SharedLinearLayout": "shared_linear",
}
# Gluon's fields that the compiler does not spell alike but for case: `per_phase` is `perPhase`.
_GLUON: Final = {
    "warps_per_cta": "warpsPerCTA",
    "operand_index": "opIdx",
    "reg_bases": "register",
    "lane_bases": "lane",
    "warp_bases": "warp",
    "block_bases": "block",
    "swizzle_byte_width": "swizzlingByteWidth",
    "element_bitwidth": "elementBitWidth",
    "offset_bases": "offset",
    "interval_padding_pairs": "interval_padding_pairs",
    "cga_layout": "CGALayout",
    "ctas_per_cga": "CTAsPerCGA",
    "cta_split_num": "CTASplitNum",
    "cta_order": "CTAOrder",
}
# What the compiler spells as one kind only does; `ctaLayout` holds registers and warps.
_COMPILER: Final = {
    "versionMajor": "version",
    "isTransposed": "transposed",
    "isTranspose": "transposed",
    "ctaLayout": "warp",
}
# The fields of each kind as the compiler spells them: those that it needs (a|b: either), and others.
_FIELDS: Final = {
    "blocked": ("sizePerThread threadsPerWarp warpsPerCTA order", ""),
    "nvidia_mma": ("versionMajor warpsPerCTA instrShape", "versionMinor"),
    "amd_mfma": ("warpsPerCTA instrShape isTransposed", "version versionMinor tilesPerWarp elementBitWidth"),
    "amd_wmma": ("version isTranspose warpsPerCTA|ctaLayout", "register instrShape rank"),
    "dot_op": ("opIdx parent kWidth", ""),
    "slice": ("dim parent", ""),
    "linear": ("register lane warp", "shape"),
    "swizzled_shared": ("vec perPhase maxPhase order", ""),
    "padded_shared": ("interval_padding_pairs order|offset", "shape"),
    "nvmma_shared": ("swizzlingByteWidth elementBitWidth", "transposed fp4Padded rank"),
    "amd_rotating_shared": ("vec perPhase maxPhase order", ""),
    "shared_linear": ("offset", "alignment"),
}
_OF_BLOCKS: Final = ("CTAsPerCGA", "CTASplitNum", "CTAOrder", "CGALayout", "block")


_Size = Annotated[int, Meta(ge=0, le=1 << 20)]


class PrintedLayout(Struct, frozen=True):
    """A layout as parsed."""

    kind: str  # the compiler's name of it
    fields: dict[str, Any]  # under the compiler's names, `version`, `transposed` and `warp` whatever the kind

    def read(self, name: str, kind: type[T]) -> T:
        """The value of a field, which is of this type."""
        if name not in self.fields:
            raise wrong(f"{self.kind} without {name}")
        try:
            return msgspec.convert(self.fields[name], kind)
        except msgspec.ValidationError as error:
            raise wrong(f"{name} of {self.kind}: {error}") from None

    def layout(self, name: str) -> "PrintedLayout":
        """A layout."""
        value = self.fields.get(name)
        if not isinstance(value, PrintedLayout):
            raise wrong(f"{name} of {self.kind} is no layout")
        return value

    def integer(self, name: str) -> int:
        """An integer; true and false are 1 and 0."""
        return self.read(name, int)

    def integers(self, name: str, count: int | None) -> list[int]:
        """Integers from 0 on, `count` of them."""
        value: list[int] = self.read(name, list[_Size])
        if count is not None and len(value) != count:
            raise wrong(f"{name} has {len(value)} entries for a tile of {count} dimensions")
        return value

    def order(self, rank: int) -> list[int]:
        """All dimensions, the fastest first."""
        order = self.integers("order", rank)
        if sorted(order) != list(range(rank)):
            raise wrong(f"order {order} is no order of {rank} dimensions")
        return order

    def power(self, name: str) -> int:
        """A power of two; 0 is none."""
        return _powers(name, [self.read(name, _Size)])[0]

    def powers(self, name: str, count: int) -> list[int]:
        """Powers of two, `count` of them."""
        return _powers(name, self.integers(name, count))

    def vectors(self, name: str, rank: int) -> list[Vector]:
        """Vectors of `rank` integers from 0 on; none where the field is empty."""
        found: list[Vector] = self.read(name, list[tuple[_Size, ...]])
        if any(len(vector) != rank for vector in found):
            raise wrong(f"{name} of {self.kind} is no list of vectors of {rank} integers")
        return found

    def shared_rank(self) -> int:
        """Dimensions of a shared layout; 0 for another one."""
        if self.kind == "nvmma_shared":
            return self.integer("rank") if "rank" in self.fields else 2
        for name in ("order", "offset"):
            value = self.fields.get(name)
            if isinstance(value, list) and value:
                return len(value[0]) if isinstance(value[0], list) else len(value)
        return 0

    def version(self) -> int:
        """The major version, 0 where there is none."""
        found: int | list[int] = self.read("version", _Version)
        return found if isinstance(found, int) else next(iter(found), 0)


_Version: Any = int | list[_Size]


def _powers(name: str, values: list[int]) -> list[int]:
    if not all(value and value & (value - 1) == 0 for value in values):
        raise wrong(f"{name}: powers of two are expected, not {', '.join(map(str, values))}")
    return values


def parse(text: str) -> PrintedLayout:
    """The layout of the last line that has one; lines `#name = ...` before it are aliases."""
    aliases: dict[str, PrintedLayout] = {}
    layout = None
    for line in re.split(r"\n(?=\s*#\w+\s*(?:=|$))|\n(?=\s*[#\w.]+[<(])", text.strip()):
        if not line.strip():
            continue
        definition = re.match(r"\s*#(\w+)\s*=\s*(?=#)", line)
        source = line[definition.end() :] if definition else line
        layout = _layout(source, aliases)
        if definition:
            aliases[definition[1]] = layout
    if layout is None:
        raise wrong("no text")
    _check_fields(layout)
    return layout


def _check_fields(layout: PrintedLayout) -> None:
    """Each field is known and none is missing: what is left out or not read gives another layout."""
    if layout.kind not in _FIELDS:
        raise wrong(f"{layout.kind!r} is none of {', '.join(_FIELDS)}")
    needed, others = (text.split() for text in _FIELDS[layout.kind])
    parent = layout.fields.get("parent")
    if isinstance(parent, PrintedLayout):
        _check_fields(parent)
        if parent.kind == "blocked" and "kWidth" in needed:
            needed.remove("kWidth")
            others.append("kWidth")
    known = [name for choice in needed for name in choice.split("|")] + others
    missing = [
        choice.replace("|", " or ")
        for choice in needed
        if not any(_canonical(name) in layout.fields for name in choice.split("|"))
    ]
    unknown = layout.fields.keys() - {_canonical(name) for name in known} - set(_OF_BLOCKS)
    faults = [f"without {', '.join(missing)}"] if missing else []
    if unknown:
        faults.append(f"with unknown {', '.join(sorted(unknown))} (known: {', '.join(known)})")
    if faults:
        raise wrong(f"{layout.kind} {' and '.join(faults)}")


# The pads of `#ttg.padded_shared<[32:+4, 64:+8] {...}>` stand before its fields.
_PADS: Final = re.compile(r"(padded_shared\s*<)\s*\[([\d\[\],\s]*)\]\s*\{")


def _layout(source: str, aliases: dict[str, PrintedLayout]) -> PrintedLayout:
    """MLIR's `#ttg.kind<{...}>` becomes a call, as Gluon prints; Python's parser reads both."""
    python = re.sub(r"(\d+)\s*:\s*\+\s*(\d+)", r"[\1, \2]", source.strip())
    python = re.sub(_PADS, r"\1{interval_padding_pairs=[\2], ", python)
    python = re.sub(r"#(?:ttg|triton_gpu|ttng)\.(\w+)\s*<\s*\{", r"\1(", python)
    python = re.sub(r"\}(\s*,\s*alignment\s*=\s*\d+)?\s*>", r"\1)", python).replace("#", "")
    python = re.sub(r"=\s*\{([^{}]*)\}", r"= fields(\1)", python)
    try:
        tree = ast.parse(python, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise wrong(f"cannot read {' '.join(source.split())[:60]!r}") from None

    def read(node: ast.expr, depth: int = 0) -> Any:
        if depth > 8:
            raise wrong("nested too deeply")
        match node:
            case ast.Constant(value=int() as value):
                return int(value)
            case ast.Name(id="true" | "false" as name):
                return int(name == "true")
            case ast.Constant(value=None):
                return None
            case ast.List(elts=items):
                return [read(item, depth + 1) for item in items]
            case ast.Name(id=name) if name in aliases:
                return aliases[name]
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
                fields = {_canonical(k.arg or ""): read(k.value, depth + 1) for k in keywords}
                if len(fields) < len(keywords):
                    raise wrong(f"{name} has a field twice")
                if isinstance(inner := fields.get("warp"), PrintedLayout):
                    fields = {**fields, "warp": [], **inner.fields}
                _check_one_block(fields)
                return PrintedLayout(_KINDS.get(name, name), fields)
        raise wrong(f"cannot read {(ast.get_source_segment(python, node) or '')[:60]!r}")

    layout = read(tree)
    if not isinstance(layout, PrintedLayout):
        raise wrong(f"{' '.join(source.split())[:60]!r} is no layout")
    return layout


def _canonical(name: str) -> str:
    return (_COMPILER | _GLUON).get(name) or re.sub(r"_([a-z])", lambda letter: letter[1].upper(), name)


def _check_one_block(fields: dict[str, Any]) -> None:
    given = fields.get("CTAsPerCGA") or [1]
    blocks = given if isinstance(given, list) and all(isinstance(n, int) for n in given) else [0]
    if fields.get("CGALayout") or fields.get("block") or math.prod(blocks) != 1:
        raise wrong("it spreads a tensor over several blocks; shared memory is one block's")


def of_tile(text: str, tile: Sequence[int], most: int) -> PrintedLayout:
    """The layout of a tensor of these extents, which are powers of two, and of at most so many elements."""
    if any(extent < 1 or extent & (extent - 1) for extent in tile):
        raise ProblemFileError(
            "--tile", f"Triton's tensors are powers of two, not {'x'.join(map(str, tile))}"
        )
    if math.prod(tile) > most:
        raise ProblemFileError("--tile", f"at most {most} elements")
    return parse(text)


def wrong(reason: str) -> ProblemFileError:
    """The error for text that is no layout."""
    return ProblemFileError("", f"not a Triton layout that is read here: {reason}")
