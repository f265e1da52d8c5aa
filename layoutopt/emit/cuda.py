"""CUDA C++: offset function, declaration, and one address function per access."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from layoutopt import __version__
from layoutopt.accesses import LaneTrace, expression_ranges, trace
from layoutopt.address import Layout
from layoutopt.devices import Device
from layoutopt.emit.c_text import to_c
from layoutopt.emit.strength import access_address, substituted
from layoutopt.expressions import Const, Node, Op, Var
from layoutopt.formula import coordinate_ranges, offset_expression
from layoutopt.model import Access, Problem, Result

_TYPES: Final = {
    "i8": "signed char", "u8": "unsigned char", "i16": "short", "u16": "unsigned short", "i32": "int",
    "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double",
    "f16": "__half", "bf16": "__nv_bfloat16", "f16x2": "__half2", "bf16x2": "__nv_bfloat162",
    "c64": "float2", "c128": "double2",
}  # fmt: skip


def identifier(name: str) -> str:
    """`name` as a C identifier."""
    text = re.sub(r"[^A-Za-z0-9]+", "_", name.encode("ascii", "replace").decode()).strip("_") or "tile"
    return f"t{text}" if text[0].isdigit() else text


def cuda(problem: Problem, result: Result, gpu: Device) -> str:
    """A header for `result`, which must hold a layout.

    Args:
        problem: what was solved.
        result: its answer.
        gpu: the target.

    Returns:
        C++ that compiles with nvcc, and without CUDA as plain C++14.

    Raises:
        VerificationError: an address function would not equal the layout's table. Our bug.
    """
    layout = result.layout
    assert layout is not None
    name = identifier(problem.name)
    lines = [
        *_header(problem, result),
        "#pragma once",
        "#include <cstdint>",
        "#ifndef __CUDACC__  // plain C++, for tests on the host",
        "#ifndef __host__",
        "#define __host__",
        "#define __device__",
        "#endif",
        "#endif",
        "",
        f"constexpr uint32_t {name}_bytes = {result.bytes};",
        f"constexpr uint32_t {name}_alignment = {result.alignment_bytes};",
        f"// __shared__ alignas({name}_alignment) unsigned char smem[{name}_bytes];",
        *_element_comment(problem, result),
        "",
        *_offset_function(name, layout),
    ]
    used = {f"{name}_offset_bytes"}
    traced = trace(problem, gpu).accesses
    for access, lanes, report in zip(problem.accesses, traced, result.accesses, strict=True):
        function = f"{name}_{identifier(access.name)}_bytes"
        while function in used or function == f"{name}_bytes":
            function += "_"
        used.add(function)
        lines += [
            "",
            f"// {_comment(access.name)}: {_comment(access.op)}; {report.wavefronts} wavefronts, "
            f"ideal {report.ideal}, bank_conflicts {report.bank_conflicts}",
            *_access_function(function, access, lanes, problem, layout),
        ]
    return "\n".join(lines) + "\n"


def _header(problem: Problem, result: Result) -> list[str]:
    proof = result.proof
    return [
        f"// {_comment(problem.name)} on {result.target}: layout by layoutopt {__version__}",
        f"// element offset = {result.offset}",
        f"// {result.bytes} bytes, {result.excess} excess wavefronts; {result.status}: "
        f"excess >= {proof.excess.lower_bound} ({proof.excess.scope}), "
        f"bytes >= {proof.bytes.lower_bound} ({proof.bytes.scope})",
    ]


def _element_comment(problem: Problem, result: Result) -> list[str]:
    element = problem.tile.element
    kind = _TYPES.get(element) if isinstance(element, str) else None
    if kind is None or result.layout is None:
        return []
    count = (result.bytes or 0) // result.layout.element_bytes
    return [f"// or __shared__ alignas({identifier(problem.name)}_alignment) {kind} smem[{count}];"]


def _offset_function(name: str, layout: Layout) -> list[str]:
    ranges = coordinate_ranges(layout)
    body = to_c(_times(offset_expression(layout), layout.element_bytes), ranges)
    parameters = ", ".join(f"uint32_t x{d}" for d in range(len(layout.shape)))
    unused = _unused(body, (f"x{d}" for d in range(len(layout.shape))))
    return [
        "// Byte offset of an element.",
        f"__host__ __device__ constexpr uint32_t {name}_offset_bytes({parameters}) {{",
        f"    return {unused}{body};",
        "}",
    ]


def _access_function(
    function: str, access: Access, lanes: LaneTrace, problem: Problem, layout: Layout
) -> list[str]:
    ranges = expression_ranges(access, problem, lanes.element.shape[1])
    address = access_address(access, lanes, problem, layout)
    variables = ["tid", *access.loops]
    c_names = {v: _parameter(v) for v in variables}
    renamed = substituted(address, {v: Var(c) for v, c in c_names.items()})
    body = to_c(renamed, {c_names.get(v, v): r for v, r in ranges.items()})
    parameters = ", ".join(f"int {c_names[v]}" for v in variables)
    lines = []
    if access.where is not None:
        lines.append(f"// only where {_comment(access.where)}")
    trips = ", ".join(f"{c_names[v]} < {n}" for v, n in access.loops.items())
    if trips:
        lines.append(f"// {trips}")
    unused = _unused(body, c_names.values())
    return [
        *lines,
        f"__host__ __device__ constexpr uint32_t {function}({parameters}) {{",
        f"    return {unused}static_cast<uint32_t>({body});",
        "}",
    ]


# Keywords, and the type that the functions return.
_RESERVED: Final = frozenset(
    re.findall(
        r"\w+",
        """
        alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
        char32_t class co_await co_return co_yield compl concept const consteval constexpr constinit
        const_cast continue decltype default delete do double dynamic_cast else enum explicit export
        extern false float for friend goto if inline int long mutable namespace new noexcept not
        not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires
        return short signed sizeof static static_assert static_cast struct switch template this
        thread_local throw true try typedef typeid typename uint32_t union unsigned using virtual
        void volatile wchar_t while xor xor_eq
        """,
    )
)


def _parameter(name: str) -> str:
    return f"{name}_" if name in _RESERVED or name.startswith("_") else name


def _times(node: Node, factor: int) -> Node:
    return node if factor == 1 else Op("*", (node, Const(factor)))


def _unused(body: str, parameters: Iterable[str]) -> str:
    """Name parameters that the body does not need, so that no compiler warns."""
    words = set(re.findall(r"\w+", body))
    return "".join(f"static_cast<void>({p}), " for p in parameters if p not in words)


def _comment(text: str) -> str:
    """`text` on one comment line, which no backslash or trigraph joins to the next; nothing invisible."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split()).replace("\\", "/").replace("??/", "?")
