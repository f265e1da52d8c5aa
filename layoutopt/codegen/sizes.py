"""One header for many sizes: the common formula as a template over the tile's extents and its element's type.

A type is known by its size and alignment, which are all that a layout knows of it: `T` may be any that has
those of an element in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from layoutopt import __version__
from layoutopt.codegen.c_family import on_the_host, parameter
from layoutopt.codegen.c_text import to_c
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Const, Node, Op, Var, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.escape import comment, identifier
from layoutopt.search.sizes import ELEMENT, CommonFormula, Size, formula_ranges

# What the GPU's compiler defines, by language.
MACROS: Final = {"cuda": "__CUDACC__", "hip": "__HIPCC__"}
_INCLUDES: Final = {"cuda": (), "hip": ("#include <hip/hip_runtime.h>",)}
_FUNCTION: Final = "__host__ __device__ constexpr uint32_t"


class _Template(NamedTuple):
    """What every function of a header shares.

    Attributes:
        found: the formula and the sizes.
        name: what every name starts with.
        head: `template <...>`.
        every: its parameters, as arguments.
        type: the parameter that is the element's type, or None.
        element: the size of an element in C++, or None where no formula needs it.
    """

    found: CommonFormula
    name: str
    head: str
    every: str
    type: str | None
    element: str | None


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
    first = found.sizes[0]
    if any(size.case.problem.tile.packed > 1 for size in found.sizes):
        raise LayoutError("a template over sizes cannot express elements of less than a byte")
    template = _template(raw, found, identifier(name))
    about = [
        f"{name} on {first.case.device.name}: one formula for {len(found.sizes)} sizes, "
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
        *on_the_host(MACROS[lang], list(_INCLUDES[lang])),
        "",
        *_sizes(template),
        "",
        *_offset(template),
    ]
    for k, access in enumerate(raw["accesses"]):
        lines += ["", *_access(template, access, k)]
    return "\n".join([*lines, "", *_assertions(template)]) + "\n"


def _template(raw: Mapping[str, Any], found: CommonFormula, name: str) -> _Template:
    params = found.sizes[0].values
    kind = next((p for p, value in params.items() if isinstance(value, str)), None)
    head = f"template <{', '.join(f'typename {p}' if p == kind else f'int {p}' for p in params)}>"
    element = None
    if len({size.case.problem.tile.element_bytes for size in found.sizes}) > 1:
        stated = raw["tile"]["element"]
        # Else a structure, whose size the parameters say.
        element = (
            f"sizeof({kind})"
            if kind is not None
            else to_c(parse(str(stated["bytes"]), frozenset(params)), formula_ranges(found.sizes))
        )
    return _Template(found, name, head, ", ".join(params), kind, element)


def _sizes(template: _Template) -> list[str]:
    """Bytes and alignment; a size that is not in the file stops the compiler."""
    found, name = template.found, template.name
    fits = " || ".join(f"({_is(template, size)})" for size in found.sizes)
    alignment = max(size.alignment_bytes for size in found.sizes)
    tests = [f"{_is(template, size)} ? {size.bytes} : " for size in found.sizes[:-1]]
    return [
        template.head,
        f"{_FUNCTION} {name}_bytes() {{",
        f'    static_assert({fits}, "a size that was not solved");',
        f"    return {''.join(tests)}{found.sizes[-1].bytes};",
        "}",
        f"constexpr uint32_t {name}_alignment = {alignment};",
        f"// __shared__ alignas({name}_alignment) unsigned char smem[{name}_bytes<{template.every}>()];",
    ]


def _is(template: _Template, size: Size) -> str:
    """Whether the parameters are those of a size."""
    tile = size.case.problem.tile
    tests = [f"{p} == {v}" for p, v in size.values.items() if p != template.type]
    if template.type is not None:
        kind = template.type
        tests += [f"sizeof({kind}) == {tile.element_bytes}", f"alignof({kind}) <= {tile.element_alignment}"]
    return " && ".join(tests)


def _offset(template: _Template) -> list[str]:
    found, tile = template.found, template.found.sizes[0].case.problem.tile
    coordinates = ", ".join(f"uint32_t x{d}" for d in range(len(tile.shape)))
    ranges = formula_ranges(found.sizes)
    size: Node = Const(tile.element_bytes) if template.element is None else Var(ELEMENT)
    body = to_c(simplify(Op("*", (found.offset, size)), ranges), ranges)
    lines = [
        "// Byte offset of an element.",
        template.head,
        f"{_FUNCTION} {template.name}_offset_bytes({coordinates}) {{",
        f'    static_assert({template.name}_bytes<{template.every}>() > 0, "a size that was solved");',
    ]
    if ELEMENT in body:
        lines.append(f"    constexpr int {ELEMENT} = {template.element};")
    return [*lines, f"    return static_cast<uint32_t>({body});", "}"]


def _access(template: _Template, raw: Mapping[str, Any], k: int) -> list[str]:
    """The address of one access: the offset at its index expressions."""
    sizes, name = template.found.sizes, template.name
    accesses = [size.case.problem.accesses[k] for size in sizes]
    if "index" not in raw or len(raw["index"]) != len(accesses[0].index):
        return [f"// {comment(accesses[0].name)}: no index expressions over the parameters"]
    threads = max(size.case.problem.threads for size in sizes)
    known = {p: r for p, r in formula_ranges(sizes).items() if p in sizes[0].values}
    loops = {v: (0, max(access.loops[v] for access in accesses) - 1) for v in accesses[0].loops}
    ranges = {**known, "tid": (0, threads - 1), **loops}
    lanes = Const(sizes[0].case.device.lanes)
    warps: dict[str, Node] = {"lane": Op("%", (Var("tid"), lanes)), "warp": Op("//", (Var("tid"), lanes))}
    spelled = {parameter(v): r for v, r in ranges.items()}
    index = []
    for text in raw["index"]:
        node = simplify(substituted(parse(str(text), frozenset((*ranges, *warps))), warps), ranges)
        index.append(to_c(substituted(node, {v: Var(parameter(v)) for v in ranges}), spelled))
    own = [parameter(v) for v in ("tid", *loops)]
    words = set(re.findall(r"\w+", " ".join(index)))
    return [
        f"// {comment(accesses[0].name)}: {comment(accesses[0].op)}",
        template.head,
        f"{_FUNCTION} {name}_{identifier(accesses[0].name)}_bytes({', '.join(f'int {v}' for v in own)}) {{",
        *(f"    (void){v};" for v in own if v not in words),
        f"    return {name}_offset_bytes<{template.every}>({', '.join(index)});",
        "}",
    ]


def _assertions(template: _Template) -> list[str]:
    lines, stand_in = [], f"{template.name}_element"
    if template.type is not None:
        lines.append(
            f"template <int BYTES, int ALIGNMENT> struct {stand_in} "
            "{ alignas(ALIGNMENT) unsigned char bytes[BYTES]; };"
        )
    for size in template.found.sizes:
        tile = size.case.problem.tile
        corner = tuple(extent - 1 for extent in tile.shape)
        table = size.case.table(size.offset).reshape(tile.shape)
        values = [
            f"{stand_in}<{tile.element_bytes}, {tile.element_alignment}>" if p == template.type else str(v)
            for p, v in size.values.items()
        ]
        call = f"{template.name}_offset_bytes<{', '.join(values)}>"
        lines.append(
            f'static_assert({call}({", ".join(map(str, corner))}) == {table[corner]}, "the layout");'
        )
    return lines
