"""CUDA C++ for what the hardware does by itself: tensor maps, matrix descriptors, and the copies.

The constants compile anywhere. The tensor map needs `cuda.h` before this header, and takes the driver's
`cuTensorMapEncodeTiled` as an argument, so that nothing is linked; the copies need nvcc and sm_90.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from layoutopt.codegen.c_text import to_c
from layoutopt.codegen.plan import HardwarePlan, Plan
from layoutopt.expressions.fit import fit
from layoutopt.ground.escape import comment
from layoutopt.problems.answer import BulkCopy, MatrixDescriptor, TensorMap

_CONSTANT: Final = "constexpr uint32_t"
_FUNCTION: Final = "__host__ __device__ constexpr uint32_t"
_DEVICE: Final = "__device__ __forceinline__"


def pieces(plan: Plan) -> list[str]:
    """Lines for all accesses of the hardware by itself."""
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
    return lines


def _offsets(name: str, values: Sequence[int], what: str) -> list[str]:
    """A function of an index with these values: a formula where one is found, else a table."""
    formula = fit(np.array(values, np.int64), {"i": len(values)})
    if formula is not None:
        body = [f"    return {to_c(formula, {'i': (0, len(values) - 1)})};"]
    else:
        body = [f"    const uint32_t at[] = {{{', '.join(map(str, values))}}};", "    return at[i];"]
    unused = ["    (void)i;"] if "i" not in body[-1].split("return", 1)[1] else []
    last = f'static_assert({name}({len(values) - 1}) == {values[-1]}, "{name}");'
    return [f"// {what}", f"{_FUNCTION} {name}(uint32_t i) {{", *unused, *body, "}", last]


# TMA -------------------------------------------------------------------------------------------


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
    return [*lines, *_encode(name, found), *_copies(access, found)]


def _box_starts(plan: Plan, found: TensorMap) -> list[list[int]]:
    """Coordinates of the first element of every box, by dimension of the tensor map, in its elements."""
    shape = [plan.problem.tile.shape[d] for d in found.order]
    box = [found.box[d] for d in found.order]
    grid = [n // b for n, b in zip(shape, box, strict=True)]
    cells = np.indices(grid).reshape(len(grid), -1)
    starts = [(cell * b).tolist() for cell, b in zip(cells, box, strict=True)]
    inner = [n // box[-1] * found.box_dim[0] for n in starts[-1]]  # in elements of the data type
    return [inner, *reversed(starts[:-1])]


def _encode(name: str, found: TensorMap) -> list[str]:
    rank = len(found.box_dim)
    return [
        "#ifdef CUDA_VERSION  // of cuda.h",
        "// The tensor map of a global tensor: `encode` is cuTensorMapEncodeTiled (cuGetProcAddress),",
        f"// extents are innermost first, strides the {rank - 1} others in bytes, multiples of 16.",
        "template <class Encode>",
        f"inline CUresult {name}_encode(Encode encode, CUtensorMap* map, void* global,",
        "                       const cuuint64_t* extents, const cuuint64_t* strides) {",
        f"    const cuuint32_t ones[{rank}] = {{{', '.join('1' * rank)}}};",
        f"    return encode(map, {found.data_type}, {rank}, global, extents, strides, {name}_box_dim, ones,",
        f"                  CU_TENSOR_MAP_INTERLEAVE_NONE, {found.swizzle},",
        "                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);",
        "}",
        "#endif",
    ]


def _copies(access: HardwarePlan, found: TensorMap) -> list[str]:
    """All boxes, or those of one block of the cluster, by one thread."""
    rank = len(found.box_dim)
    if access.access.op != "tma.load":
        return _stored(access.name, rank)
    return _loaded(access.name, rank) if found.multicast == 1 else _shared(access.name, rank)


def _loaded(name: str, rank: int) -> list[str]:
    text = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    return [
        "#ifdef __CUDACC__",
        "// All boxes, by one thread: map is the tensor map's address (a __grid_constant__ parameter),",
        f"// the mbarrier expects {name}_boxes * {name}_box_bytes bytes; c0, ... are the tile's place.",
        f"{_DEVICE} void {name}(uint32_t smem, const void* map, uint32_t mbarrier, {_place(rank)}) {{",
        "#pragma unroll",
        f"    for (uint32_t i = 0; i < {name}_boxes; ++i)",
        f'        asm volatile("{text} [%0], [%1, {{{_held(3, rank)}}}], [%2];"',
        f'            :: "r"(smem + {name}_box_offset(i)), "l"(map), "r"(mbarrier),',
        f'               {_at(name, rank)} : "memory");',
        "}",
        "#endif",
    ]


def _shared(name: str, rank: int) -> list[str]:
    text = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    return [
        "#ifdef __CUDACC__",
        "// The boxes of one block, by one thread, to all blocks of the cluster whose bit is set in mask:",
        f"// block is 0 to {name}_multicast - 1 among those that share the tile. Tile and mbarrier lie at",
        f"// the same place in all; each mbarrier expects {name}_boxes * {name}_box_bytes bytes.",
        f"{_DEVICE} void {name}(uint32_t smem, const void* map, uint32_t mbarrier, uint32_t block,",
        f"    uint16_t mask, {_place(rank)}) {{",
        "#pragma unroll",
        f"    for (uint32_t k = 0; k < {name}_boxes / {name}_multicast; ++k) {{",
        f"        const uint32_t i = block * ({name}_boxes / {name}_multicast) + k;",
        f'        asm volatile("{text}"',
        f'            ".multicast::cluster [%0], [%1, {{{_held(4, rank)}}}], [%2], %3;"',
        f'            :: "r"(smem + {name}_box_offset(i)), "l"(map), "r"(mbarrier), "h"(mask),',
        f'               {_at(name, rank)} : "memory");',
        "    }",
        "}",
        "#endif",
    ]


def _stored(name: str, rank: int) -> list[str]:
    text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
    return [
        "#ifdef __CUDACC__",
        "// All boxes, by one thread: map is the tensor map's address (a __grid_constant__ parameter),",
        "// then commit and wait for the bulk group; c0, ... are the tile's place.",
        f"{_DEVICE} void {name}(uint32_t smem, const void* map, {_place(rank)}) {{",
        "#pragma unroll",
        f"    for (uint32_t i = 0; i < {name}_boxes; ++i)",
        f'        asm volatile("{text} [%0, {{{_held(2, rank)}}}], [%1];"',
        f'            :: "l"(map), "r"(smem + {name}_box_offset(i)), {_at(name, rank)} : "memory");',
        "}",
        "#endif",
    ]


def _place(rank: int) -> str:
    """The tile's place in the global tensor, as parameters."""
    return ", ".join(f"int c{d}" for d in range(rank))


def _held(first: int, rank: int) -> str:
    """The operands that hold the place of a box."""
    return ", ".join(f"%{first + d}" for d in range(rank))


def _at(name: str, rank: int) -> str:
    """The place of box i."""
    return ", ".join(f'"r"(c{d} + (int){name}_start_{d}(i))' for d in range(rank))


# Matrices --------------------------------------------------------------------------------------


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
        "// The matrix descriptor of instruction i; smem: __cvta_generic_to_shared of the tile.",
        f"__host__ __device__ constexpr uint64_t {name}_descriptor(uint32_t smem, uint32_t i) {{",
        f"    return {name}_fields | (((smem + {name}_start(i)) & 0x3FFFF) >> 4);",
        "}",
    ]


# Bulk copies -----------------------------------------------------------------------------------


def _bulk(access: HardwarePlan, found: BulkCopy) -> list[str]:
    name = access.name
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    return [
        f"{_CONSTANT} {name}_copies = {found.copies};",
        f"{_CONSTANT} {name}_copy_bytes = {found.bytes};",
        *_offsets(f"{name}_offset", found.starts, "Byte offset of copy i from the base of the tile."),
        "#ifdef __CUDACC__",
        "// Copy i, by one thread; source is aligned to 16 bytes.",
        f"{_DEVICE} void {name}(uint32_t smem, const void* source, uint32_t mbarrier, uint32_t i) {{",
        f'    asm volatile("{text} [%0], [%1], %2, [%3];"',
        f'        :: "r"(smem + {name}_offset(i)), "l"(__cvta_generic_to_global(source)),',
        f'           "r"({name}_copy_bytes), "r"(mbarrier) : "memory");',
        "}",
        "// The other way; then commit and wait for the bulk group.",
        f"{_DEVICE} void {name}_store(uint32_t smem, void* destination, uint32_t i) {{",
        '    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"',
        f'        :: "l"(__cvta_generic_to_global(destination)), "r"(smem + {name}_offset(i)),',
        f'           "r"({name}_copy_bytes) : "memory");',
        "}",
        "#endif",
    ]
