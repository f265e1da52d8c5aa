"""CUDA C++: the address functions and, for each access, the instruction itself or its descriptor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from layoutopt.codegen import by_hardware
from layoutopt.codegen.c_family import (
    Dialect,
    address_from,
    arguments,
    base_of,
    guarded_loops,
    parameters,
    source,
)
from layoutopt.codegen.c_text import operands
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.codegen.templates import filled
from layoutopt.hardware.operations import Operation
from layoutopt.problems.types import VECTOR_TYPES, Structure

TYPES: Final = {
    "i8": "signed char", "u8": "unsigned char", "i16": "short", "u16": "unsigned short", "i32": "int",
    "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double",
    "f16": "__half", "bf16": "__nv_bfloat16", "f16x2": "__half2", "bf16x2": "__nv_bfloat162",
    "c64": "float2", "c128": "double2",
    **{name: name for name in VECTOR_TYPES},
}  # fmt: skip
_VECTORS: Final = {
    ("f16", 4): "__half2", ("bf16", 4): "__nv_bfloat162", ("f32", 8): "float2", ("f32", 16): "float4",
    ("f64", 16): "double2", ("i32", 8): "int2", ("i32", 16): "int4", ("c64", 16): "float4",
}  # fmt: skip
_RAW: Final = {
    1: "unsigned char",
    2: "unsigned short",
    4: "unsigned int",
    8: "uint2",
    12: "uint3",
    16: "uint4",
}


def emit(plan: Plan) -> str:
    """A header that compiles with nvcc and, but for the device functions, as plain C++14."""
    return source(plan, DIALECT)


def pointer_type(plan: Plan, operation: Operation) -> str:
    """The type that one lane of a load, store or atomic touches."""
    element = plan.problem.tile.element
    width = operation.width_bytes
    if width == plan.element_bytes and (kind := element_type(plan)) is not None:
        return kind
    if isinstance(element, str) and (element, width) in _VECTORS:
        return _VECTORS[element, width]
    if operation.does.adds and width == 8:
        return "unsigned long long"
    return _RAW[width]


def element_type(plan: Plan) -> str | None:
    """What the kernel calls an element; None where the file does not say."""
    element = plan.problem.tile.element
    return TYPES.get(element) if isinstance(element, str) else element.type


def raw_type(width_bytes: int) -> str:
    """An integer type, or a vector of them, of this many bytes; a name for it where there is none."""
    return _RAW.get(width_bytes, f"Bytes{width_bytes}")


def declaration(plan: Plan) -> list[str]:
    """How to declare the tile."""
    name, kind = plan.name, element_type(plan)
    head = f"// __shared__ alignas({name}_alignment)"
    lines = [f"{head} unsigned char smem[{name}_bytes];"]
    # C++ refuses an alignas below the type's own alignment.
    if kind is not None and plan.alignment_bytes >= plan.element_bytes:
        lines.append(f"// or {head[3:]} {kind} smem[{-(-plan.bytes // plan.element_bytes)}];")
    if isinstance(plan.problem.tile.element, Structure) and kind is not None:
        size = f'static_assert(sizeof({kind}) == {plan.element_bytes}, "{kind}");'
        lines += [
            "#ifdef __CUDACC__",
            f"{size}  // the kernel's own type, declared before this header",
            "#endif",
        ]
    return lines


def pointer_pieces(plan: Plan, access: AccessPlan) -> list[str]:
    """A typed pointer for each lane, and all iterations in one call."""
    operation = access.lanes.operation
    constant = "const " if operation.is_read else ""
    kind = f"{constant}{pointer_type(plan, operation)}"
    void, char = f"{constant}void*", f"{constant}unsigned char*"

    def pointer(offset: str) -> str:
        return f"reinterpret_cast<{kind}*>(static_cast<{char}>(smem) + {offset})"

    lines = [
        f"__device__ __forceinline__ {kind}* {access.name}({void} smem, {parameters(access)}) {{",
        f"    return {pointer(f'{access.name}_bytes({arguments(access)})')};",
        "}",
    ]
    if access.form.has_step:
        offset = f"{access.name}_step(base, {arguments(access, access.access.loops)})"
        start = [f"    const uint32_t base = {access.name}_base(tid);"]
        lines += _each(access, f"{void} smem", start, pointer(offset))
    return lines


def prologue(macro: str, includes: list[str]) -> list[str]:
    """Includes for the GPU's compiler, `macro` says which, and what lets a host compiler read the rest."""
    device = [f"#ifdef {macro}", *includes, "#else"] if includes else [f"#ifndef {macro}"]
    device[-1] += "  // plain C++, for tests on the host"
    return ["#pragma once", "#include <cstdint>", *device, "#ifndef __host__", "#define __host__",
            "#define __device__", "#endif", "#endif"]  # fmt: skip


def _each(access: AccessPlan, start_parameter: str, start: list[str], cell: str) -> list[str]:
    loops = list(access.access.loops)
    return [
        f"template <class Body>  // calls body(address, {arguments(access, loops)})",
        f"__device__ __forceinline__ void {access.name}_each({start_parameter}, int tid, Body body) {{",
        *start,
        *guarded_loops(access, f"body({cell}, {arguments(access, loops)});"),
        "}",
    ]


def _pieces(plan: Plan, access: AccessPlan) -> list[str]:
    operation = access.lanes.operation
    if operation.does.by_pointer:
        return ["#ifdef __CUDACC__", *pointer_pieces(plan, access), "#endif"]
    if operation.matrices:
        moved = f"{'' if operation.does.returns else 'const '}uint32_t (&v)[{operation.matrices}]"
        instruction = matrix_instruction(operation, "address", [f"v[{k}]" for k in range(operation.matrices)])
    else:
        moved, instruction = "const void* source", async_instruction(operation, "address", "source")
    body = [
        "// smem: __cvta_generic_to_shared of the tile",
        f"__device__ __forceinline__ void {access.name}(uint32_t smem, {parameters(access)}, {moved}) {{",
        f"    const uint32_t address = {address_from(access, 'smem', base_of(access, 'smem'))};",
        f"    {instruction}",
        "}",
    ]
    if access.form.has_step:
        start = [f"    const uint32_t base = {base_of(access, 'smem')};"]
        body += _each(access, "uint32_t smem", start, address_from(access, "smem", "base"))
    return ["#ifdef __CUDACC__", *body, "#endif"]


def inline(ptx: str, outputs: Sequence[str], *inputs: str) -> str:
    """A statement of inline PTX; `ptx` numbers its operands, outputs first."""
    results = f": {', '.join(outputs)} :" if outputs else "::"
    return f'asm volatile("{ptx}" {results} {", ".join(inputs)} : "memory");'


def matrix_instruction(operation: Operation, address: str, registers: Sequence[str]) -> str:
    """ldmatrix or stmatrix as inline PTX."""
    n, at = operation.matrices, f'"r"({address})'
    form = f"{operation.kind}.sync.aligned.m8n8.x{n}{'.trans' if operation.transposed else ''}.shared.b16"
    if operation.does.returns:
        return inline(f"{form} {{{operands(0, n)}}}, [%{n}];", [f'"=r"({r})' for r in registers], at)
    return inline(f"{form} [%0], {{{operands(1, n)}}};", [], at, *(f'"r"({r})' for r in registers))


def async_instruction(operation: Operation, address: str, source: str) -> str:
    """cp.async as inline PTX."""
    form = f"{operation.kind}.shared.global [%0], [%1], {operation.width_bytes};"
    return inline(form, [], f'"r"({address})', f'"l"(__cvta_generic_to_global({source}))')


def _closing(plan: Plan) -> list[str]:
    copies = any(access.lanes.operation.does.copies for access in plan.accesses)
    groups = filled("by_hardware", "groups", NAME=plan.name).splitlines() if copies else []
    return [*by_hardware.pieces(plan), *groups]


def _prologue(plan: Plan) -> list[str]:
    element = plan.problem.tile.element
    header = {"f16": "cuda_fp16.h", "f16x2": "cuda_fp16.h", "bf16": "cuda_bf16.h", "bf16x2": "cuda_bf16.h"}
    include = [f"#include <{header[element]}>"] if isinstance(element, str) and element in header else []
    return prologue("__CUDACC__", include)


DIALECT: Final = Dialect(
    function="__host__ __device__ constexpr",
    uint="uint32_t",
    wide="long long",
    constants=True,
    prologue=_prologue,
    example=declaration,
    table="#ifdef __CUDA_ARCH__\n__device__\n#endif\nconstexpr",
    pieces=_pieces,
    closing=_closing,
)
