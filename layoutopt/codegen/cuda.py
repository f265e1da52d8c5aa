"""CUDA C++: the address functions, each access's instruction, and what the hardware does by itself.

That is tensor maps, matrix descriptors, and the copies. Their constants compile anywhere. The tensor map
needs `cuda.h` before this header, and takes the driver's `cuTensorMapEncodeTiled` as an argument, so that
nothing is linked; the copies need nvcc and sm_90.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from layoutopt.codegen.c_family import CPP, Dialect, address_from, base_of, each, parameters, pointers, source
from layoutopt.codegen.c_text import operands, to_c
from layoutopt.codegen.plan import AccessPlan, HardwarePlan, Plan
from layoutopt.codegen.templates import filled
from layoutopt.expressions.fit import fit
from layoutopt.ground.escape import comment
from layoutopt.hardware.operations import Operation
from layoutopt.problems.answer import BulkCopy, MatrixDescriptor, TensorMap

_CONSTANT: Final = "constexpr uint32_t"
_FUNCTION: Final = "__host__ __device__ constexpr uint32_t"


def emit(plan: Plan) -> str:
    """A header that compiles with nvcc and, but for the device functions, as plain C++14."""
    return source(plan, _DIALECT)


def _pieces(plan: Plan, access: AccessPlan, dialect: Dialect) -> list[str]:
    operation = access.lanes.operation
    if operation.does.by_pointer:
        return pointers(plan, access, dialect)
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
        cell = address_from(access, "smem", "base")
        body += each(access, "uint32_t smem", base_of(access, "smem"), cell)
    return body


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


# What the hardware does by itself --------------------------------------------------------------


def _closing(plan: Plan) -> list[str]:
    """All accesses of the hardware by itself, and how copies past the registers are waited for."""
    lines = []
    for access in plan.by_hardware:
        lines += ["", f"// {comment(access.access.name)}: {comment(access.access.op)}"]
        match access.descriptor:
            case TensorMap() as found:
                lines += _tensor_map(plan, access, found)
            case MatrixDescriptor() as found:
                lines += _matrix(access, found)
            case BulkCopy() as found:
                lines += _bulk(access, found)
    copies = any(access.lanes.operation.does.copies for access in plan.accesses)
    return lines + (filled("by_hardware", "groups", NAME=plan.name).splitlines() if copies else [])


def _offsets(name: str, values: Sequence[int], what: str) -> list[str]:
    """A function of an index with these values: a formula where one is found, else a table."""
    formula = fit(np.array(values, np.int64), {"i": len(values)})
    if formula is not None:
        body = [f"    return {to_c(formula, {'i': (0, len(values) - 1)}, unsigned=True)};"]
    else:
        body = [f"    const uint32_t at[] = {{{', '.join(map(str, values))}}};", "    return at[i];"]
    unused = ["    (void)i;"] if "i" not in body[-1].split("return", 1)[1] else []
    last = f'static_assert({name}({len(values) - 1}) == {values[-1]}, "{name}");'
    return [f"// {what}", f"{_FUNCTION} {name}(uint32_t i) {{", *unused, *body, "}", last]


def _tensor_map(plan: Plan, access: HardwarePlan, found: TensorMap) -> list[str]:
    name, rank = access.name, len(found.box_dim)
    box_bytes = int(np.prod(found.box)) * plan.problem.tile.element_bits // 8
    lines = [
        f"{_CONSTANT} {name}_boxes = {found.boxes};",
        f"{_CONSTANT} {name}_box_bytes = {box_bytes};",
        f"{_CONSTANT} {name}_box_dim[{rank}] = {{{', '.join(map(str, found.box_dim))}}};  // innermost first",
        f"{_CONSTANT} {name}_swizzle = {found.code};  // {found.swizzle}",
        *_offsets(f"{name}_box_offset", found.box_offsets, "Byte offset of box i from the base of the tile."),
    ]
    starts = _box_starts(plan, found)
    for d in range(rank):
        what = f"First element of box i along dimension {d} of the tensor map, in the tile."
        lines += _offsets(f"{name}_start_{d}", starts[d], what)
    if found.multicast > 1:
        lines.append(f"{_CONSTANT} {name}_multicast = {found.multicast};  // blocks that share the tile")
    return [*lines, *_copies(access, found)]


def _box_starts(plan: Plan, found: TensorMap) -> list[list[int]]:
    """Coordinates of the first element of every box, by dimension of the tensor map, in its elements."""
    shape = [plan.problem.tile.shape[d] for d in found.order]
    box = [found.box[d] for d in found.order]
    grid = [n // b for n, b in zip(shape, box, strict=True)]
    cells = np.indices(grid).reshape(len(grid), -1)
    starts = [(cell * b).tolist() for cell, b in zip(cells, box, strict=True)]
    inner = [n // box[-1] * found.box_dim[0] for n in starts[-1]]  # in elements of the data type
    return [inner, *reversed(starts[:-1])]


def _copies(access: HardwarePlan, found: TensorMap) -> list[str]:
    """The tensor map; and all boxes, or those of one block of the cluster, copied by one thread."""
    name, rank = access.name, len(found.box_dim)
    kind = "store" if access.access.op != "tma.load" else "load" if found.multicast == 1 else "multicast"
    first = {"store": 2, "load": 3, "multicast": 4}[kind]  # operands before the place of a box
    encode = filled(
        "by_hardware", "encode", NAME=name, RANK=rank, OTHERS=rank - 1, ONES=", ".join("1" * rank),
        TYPE=found.data_type, SWIZZLE=found.swizzle,
    )  # fmt: skip
    copies = filled(
        "by_hardware",
        kind,
        NAME=name,
        RANK=rank,
        PLACE=", ".join(f"int c{d}" for d in range(rank)),
        HELD=operands(first, rank),
        AT=", ".join(f'"r"(c{d} + (int){name}_start_{d}(i))' for d in range(rank)),
    )
    return [*encode.splitlines(), *copies.splitlines()]


def _matrix(access: HardwarePlan, found: MatrixDescriptor) -> list[str]:
    name, (rows, depth) = access.name, found.shape
    side = "N" if access.access.op.endswith("B") else "M"
    return [
        f"// {found.major}-major, mode {found.mode}; one instruction reads {side} = {rows}, K = {depth}",
        f"{_CONSTANT} {name}_instructions = {found.instructions};",
        f"{_CONSTANT} {name}_leading_byte_offset = {found.leading_byte_offset};",
        f"{_CONSTANT} {name}_stride_byte_offset = {found.stride_byte_offset};",
        f"{_CONSTANT} {name}_swizzle = {found.code};",
        f"constexpr uint64_t {name}_fields = {found.descriptor}ull;  // start address 0",
        *_offsets(
            f"{name}_start",
            found.starts,
            "Byte offset of what instruction i reads: K is the fastest, then rows.",
        ),
        *filled("by_hardware", "descriptor", NAME=name).splitlines(),
    ]


def _bulk(access: HardwarePlan, found: BulkCopy) -> list[str]:
    name = access.name
    return [
        f"{_CONSTANT} {name}_copies = {found.copies};",
        f"{_CONSTANT} {name}_copy_bytes = {found.bytes};",
        *_offsets(f"{name}_offset", found.starts, "Byte offset of copy i from the base of the tile."),
        *filled("by_hardware", "bulk", NAME=name).splitlines(),
    ]


_DIALECT: Final = replace(
    CPP,
    macro="__CUDACC__",
    headers={
        name + two: (f"#include <cuda_{header}.h>",)
        for name, header in (("f16", "fp16"), ("bf16", "bf16"))
        for two in ("", "x2")
    },
    pieces=_pieces,
    table="#ifdef __CUDA_ARCH__\n__device__\n#endif\nconstexpr",
    closing=_closing,
)
