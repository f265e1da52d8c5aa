"""One CUDA header for many sizes: the common formula as a template over the tile's extents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from layoutopt import __version__
from layoutopt.codegen.c_family import parameter
from layoutopt.codegen.c_text import to_c
from layoutopt.errors import LayoutError, VerificationError
from layoutopt.expressions.grammar import Const, Node, Op, Var, evaluate, parse, substituted, to_text
from layoutopt.expressions.simplify import Range, simplify
from layoutopt.ground.escape import comment, identifier
from layoutopt.problems.trace import environment
from layoutopt.problems.types import Access
from layoutopt.synthesis.sizes import CommonFormula, Size

_FUNCTION: Final = "__host__ __device__ constexpr uint32_t"


def sizes_header(raw: Mapping[str, Any], found: CommonFormula, name: str) -> str:
    """A header whose functions are templates over the parameters; other sizes do not compile.

    Args:
        raw: the file's data, whose index expressions are over the parameters.
        found: the formula and the sizes.
        name: what every name starts with.

    Raises:
        LayoutError: elements share bytes, which a template does not express.
        VerificationError: an address would not equal the layout. Our bug.
    """
    first = found.sizes[0]
    if first.case.problem.tile.packed > 1:
        raise LayoutError("a template over sizes cannot express elements of less than a byte")
    name, params = identifier(name), list(first.values)
    head = f"template <{', '.join(f'int {p}' for p in params)}>"
    every = ", ".join(params)
    fits = " || ".join(f"({_is(size)})" for size in found.sizes)
    lines = [
        f"// {comment(name)} on {first.case.device.name}: one formula for {len(found.sizes)} sizes, "
        f"by layoutopt {__version__}",
        f"// element offset = {to_text(found.offset)}",
        *(
            f"// {', '.join(f'{p}={v}' for p, v in size.values.items())}: {size.bytes} bytes, "
            f"{size.excess:g} excess wavefronts"
            for size in found.sizes
        ),
        "#pragma once",
        "#include <cstdint>",
        "#ifndef __CUDACC__  // plain C++, for tests on the host",
        "#ifndef __host__",
        "#define __host__",
        "#define __device__",
        "#endif",
        "#endif",
        "",
        head,
        f"{_FUNCTION} {name}_bytes() {{",
        f'    static_assert({fits}, "a size that was not solved");',
        f"    return {_chosen(found.sizes)};",
        "}",
        f"constexpr uint32_t {name}_alignment = {max(size.alignment_bytes for size in found.sizes)};",
        f"// __shared__ alignas({name}_alignment) unsigned char smem[{name}_bytes<{every}>()];",
        "",
        "// Byte offset of an element.",
        *_offset(found, name, head, every),
    ]
    for k, access in enumerate(raw["accesses"]):
        lines += ["", *_access(found, access, k, name, head, every)]
    return "\n".join([*lines, "", *_assertions(found, name)]) + "\n"


def _is(size: Size) -> str:
    return " && ".join(f"{p} == {v}" for p, v in size.values.items())


def _chosen(sizes: tuple[Size, ...]) -> str:
    """The bytes of each size; the last needs no test."""
    tests = [f"{_is(size)} ? {size.bytes} : " for size in sizes[:-1]]
    return "".join(tests) + str(sizes[-1].bytes)


def _ranges(found: CommonFormula) -> dict[str, Range]:
    values = {p: [size.values[p] for size in found.sizes] for p in found.sizes[0].values}
    return {p: (min(mine), max(mine)) for p, mine in values.items()}


def _bytes_of(found: CommonFormula, node: Node) -> Node:
    return Op("*", (node, Const(found.sizes[0].case.problem.tile.element_bytes)))


def _offset(found: CommonFormula, name: str, head: str, every: str) -> list[str]:
    shapes = [size.case.problem.tile.shape for size in found.sizes]
    extents = {f"x{d}": (0, max(shape[d] for shape in shapes) - 1) for d in range(len(shapes[0]))}
    ranges = {**_ranges(found), **extents}
    body = to_c(simplify(_bytes_of(found, found.offset), ranges), ranges)
    return [
        head,
        f"{_FUNCTION} {name}_offset_bytes({', '.join(f'uint32_t {x}' for x in extents)}) {{",
        f'    static_assert({name}_bytes<{every}>() > 0, "a size that was solved");',
        f"    return static_cast<uint32_t>({body});",
        "}",
    ]


def _access(
    found: CommonFormula, raw: Mapping[str, Any], k: int, name: str, head: str, every: str
) -> list[str]:
    """The address of one access, as the formula at its index expressions."""
    accesses = [size.case.problem.accesses[k] for size in found.sizes]
    if "index" not in raw or len(raw["index"]) != len(accesses[0].index):
        return [f"// {comment(accesses[0].name)}: no index expressions over the parameters"]
    loops = {v: max(access.loops[v] for access in accesses) for v in accesses[0].loops}
    threads = max(size.case.problem.threads for size in found.sizes)
    ranges = {**_ranges(found), "tid": (0, threads - 1), **{v: (0, n - 1) for v, n in loops.items()}}
    lanes = found.sizes[0].case.device.lanes
    warps: dict[str, Node] = {
        "lane": Op("%", (Var("tid"), Const(lanes))),
        "warp": Op("//", (Var("tid"), Const(lanes))),
    }
    free = frozenset((*ranges, "lane", "warp"))
    index = {f"x{d}": substituted(parse(str(t), free), warps) for d, t in enumerate(raw["index"])}
    node = simplify(_bytes_of(found, substituted(found.offset, index)), ranges)
    for size in found.sizes:
        _verify(size, k, size.case.problem.accesses[k], node)
    renamed = {v: Var(parameter(v)) for v in ranges}
    body = to_c(substituted(node, renamed), {parameter(v): r for v, r in ranges.items()})
    declared = ", ".join(f"int {parameter(v)}" for v in ("tid", *loops))
    return [
        f"// {comment(accesses[0].name)}: {comment(accesses[0].op)}",
        head,
        f"{_FUNCTION} {name}_{identifier(accesses[0].name)}_bytes({declared}) {{",
        f'    static_assert({name}_bytes<{every}>() > 0, "a size that was solved");',
        *(f"    (void){parameter(v)};" for v in ("tid", *loops) if parameter(v) not in body),
        f"    return static_cast<uint32_t>({body});",
        "}",
    ]


def _verify(size: Size, k: int, access: Access, node: Node) -> None:
    """Compare an address with the layout at every lane of one size."""
    lanes = size.case.lanes.accesses[k]
    env = environment(access, size.case.problem.threads, size.case.device.lanes)
    shape = np.broadcast_shapes(*(values.shape for values in env.values()))
    active = lanes.active.reshape(shape[0], -1)[:, : size.case.problem.threads]
    element = lanes.element.reshape(shape[0], -1)[:, : size.case.problem.threads]
    values = evaluate(node, {**env, **{p: np.array(v) for p, v in size.values.items()}}, active)
    if (np.broadcast_to(values, shape) != size.case.table(size.offset)[element])[active].any():
        raise VerificationError(f"the template's address of access {access.name!r} does not equal the layout")


def _assertions(found: CommonFormula, name: str) -> list[str]:
    lines = []
    for size in found.sizes:
        corner = tuple(extent - 1 for extent in size.case.problem.tile.shape)
        table = size.case.table(size.offset).reshape(size.case.problem.tile.shape)
        call = f"{name}_offset_bytes<{', '.join(map(str, size.values.values()))}>"
        lines.append(
            f'static_assert({call}({", ".join(map(str, corner))}) == {table[corner]}, "the layout");'
        )
    return lines
