"""One header for many sizes: the common formula as a template over the tile's extents and its element's type.

A type is known by its size and alignment, which are all that a layout knows of it: `T` may be any that has
those of an element in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from layoutopt import __version__
from layoutopt.codegen.c_family import on_the_host, parameter, unused
from layoutopt.codegen.c_text import to_c
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Const, Node, Op, Var, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.escape import comment, identifier
from layoutopt.search.sizes import ELEMENT, CommonFormula, Size, formula_ranges

# What the GPU's compiler defines and includes, by language.
MACROS: Final = {"cuda": ("__CUDACC__", ()), "hip": ("__HIPCC__", ("#include <hip/hip_runtime.h>",))}
_FUNCTION: Final = "__host__ __device__ constexpr uint32_t"


def sizes_header(raw: Mapping[str, Any], found: CommonFormula, name: str, lang: str = "cuda") -> str:
    """A header whose functions are templates over the parameters; other sizes do not compile.

    Args:
        raw: the file's data, whose index expressions are over the parameters.
        found: the formula and the sizes.
        name: what every name starts with.
        lang: a key of `MACROS`.

    Raises:
        LayoutError: elements share bytes, which a template does not express.
    """
    if any(size.case.problem.tile.packed > 1 for size in found.sizes):
        raise LayoutError("a template over sizes cannot express elements of less than a byte")
    template = _Template(raw, found, identifier(name))
    about = [
        f"{name} on {found.sizes[0].case.device.name}: one formula for {len(found.sizes)} sizes, "
        f"by layoutopt {__version__}",
        f"element offset = {to_text(found.offset)}",
        *(
            f"{', '.join(f'{p}={v}' for p, v in size.values.items())}: {size.bytes} bytes, "
            f"{size.excess:g} excess wavefronts"
            for size in found.sizes
        ),
    ]
    lines = [
        *(f"// {comment(line)}" for line in about),
        *LANGUAGES[lang].start,
        *on_the_host(*MACROS[lang]),
        *template.declarations(),
        *template.offset(),
    ]
    for k, access in enumerate(raw["accesses"]):
        lines += template.access(access, k)
    return "\n".join([*lines, "", *template.assertions()]) + "\n"


class _Template:
    """What every function of a header shares."""

    def __init__(self, raw: Mapping[str, Any], found: CommonFormula, name: str) -> None:
        self.found, self.sizes, self.name = found, found.sizes, name
        params = self.sizes[0].values
        self.tile = self.sizes[0].case.problem.tile
        # The parameter that is the element's type, and the size of an element where a formula needs it.
        self.kind = next((p for p, value in params.items() if isinstance(value, str)), None)
        self.ranges = formula_ranges(self.sizes)
        self.element = None
        if len({size.case.problem.tile.element_bytes for size in self.sizes}) > 1:
            self.element = f"sizeof({self.kind})"
            if self.kind is None:  # a structure, whose size the parameters say
                stated = parse(str(raw["tile"]["element"]["bytes"]), frozenset(params))
                self.element = to_c(stated, self.ranges)
        typed = ", ".join(f"typename {p}" if p == self.kind else f"int {p}" for p in params)
        self.head, self.every = f"template <{typed}>", ", ".join(params)

    def declarations(self) -> list[str]:
        """Bytes and alignment; a size that is not in the file stops the compiler."""
        fits = " || ".join(f"({self._is(size)})" for size in self.sizes)
        tests = [f"{self._is(size)} ? {size.bytes} : " for size in self.sizes[:-1]]
        name = self.name
        return [
            "",
            self.head,
            f"{_FUNCTION} {name}_bytes() {{",
            f'    static_assert({fits}, "a size that was not solved");',
            f"    return {''.join(tests)}{self.sizes[-1].bytes};",
            "}",
            f"constexpr uint32_t {name}_alignment = {max(size.alignment_bytes for size in self.sizes)};",
            f"// __shared__ alignas({name}_alignment) unsigned char smem[{name}_bytes<{self.every}>()];",
        ]

    def _is(self, size: Size) -> str:
        """Whether the parameters are those of a size."""
        tile, kind = size.case.problem.tile, self.kind
        tests = [f"{p} == {v}" for p, v in size.values.items() if p != kind]
        if kind is not None:
            tests.append(f"sizeof({kind}) == {tile.element_bytes}")
            tests.append(f"alignof({kind}) <= {tile.element_alignment}")
        return " && ".join(tests)

    def offset(self) -> list[str]:
        """The byte offset of an element."""
        coordinates = ", ".join(f"uint32_t x{d}" for d in range(len(self.tile.shape)))
        size: Node = Const(self.tile.element_bytes) if self.element is None else Var(ELEMENT)
        body = to_c(simplify(Op("*", (self.found.offset, size)), self.ranges), self.ranges)
        return [
            "",
            "// Byte offset of an element.",
            self.head,
            f"{_FUNCTION} {self.name}_offset_bytes({coordinates}) {{",
            f'    static_assert({self.name}_bytes<{self.every}>() > 0, "a size that was solved");',
            *([f"    constexpr int {ELEMENT} = {self.element};"] if ELEMENT in body else []),
            f"    return static_cast<uint32_t>({body});",
            "}",
        ]

    def access(self, raw: Mapping[str, Any], k: int) -> list[str]:
        """The address of one access: the offset at its index expressions."""
        sizes, name = self.sizes, self.name
        accesses = [size.case.problem.accesses[k] for size in sizes]
        if "index" not in raw or len(raw["index"]) != len(accesses[0].index):
            return ["", f"// {comment(accesses[0].name)}: no index expressions over the parameters"]
        threads = max(size.case.problem.threads for size in sizes)
        known = {p: r for p, r in self.ranges.items() if p in sizes[0].values}
        loops = {v: (0, max(access.loops[v] for access in accesses) - 1) for v in accesses[0].loops}
        ranges = {**known, "tid": (0, threads - 1), **loops}
        spelled = {parameter(v): r for v, r in ranges.items()}
        lanes = Const(sizes[0].case.device.lanes)
        warps: dict[str, Node] = {
            "lane": Op("%", (Var("tid"), lanes)),
            "warp": Op("//", (Var("tid"), lanes)),
        }
        index = []
        for text in raw["index"]:
            node = simplify(substituted(parse(str(text), frozenset((*ranges, *warps))), warps), ranges)
            index.append(to_c(substituted(node, {v: Var(parameter(v)) for v in ranges}), spelled))
        own = [parameter(v) for v in ("tid", *loops)]
        called = f"{name}_{identifier(accesses[0].name)}_bytes"
        return [
            "",
            f"// {comment(accesses[0].name)}: {comment(accesses[0].op)}",
            self.head,
            f"{_FUNCTION} {called}({', '.join(f'int {v}' for v in own)}) {{",
            *unused(" ".join(index), own),
            f"    return {name}_offset_bytes<{self.every}>({', '.join(index)});",
            "}",
        ]

    def assertions(self) -> list[str]:
        """The last element of every size."""
        lines, stand_in = [], f"{self.name}_element"
        if self.kind is not None:
            lines.append(
                f"template <int BYTES, int ALIGNMENT> struct {stand_in} "
                "{ alignas(ALIGNMENT) unsigned char bytes[BYTES]; };"
            )
        for size in self.sizes:
            tile = size.case.problem.tile
            corner = tuple(extent - 1 for extent in tile.shape)
            offset = size.case.table(size.offset).reshape(tile.shape)[corner]
            typed = f"{stand_in}<{tile.element_bytes}, {tile.element_alignment}>"
            values = ", ".join(typed if p == self.kind else str(v) for p, v in size.values.items())
            call = f"{self.name}_offset_bytes<{values}>({', '.join(map(str, corner))})"
            lines.append(f'static_assert({call} == {offset}, "the layout");')
        return lines
