"""OpenCL C 1.2: the address functions, and a typed pointer into local memory for each access."""

from __future__ import annotations

from typing import Final

from layoutopt.codegen.c_family import Dialect, arguments, parameters, source
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.problems.types import VECTOR_TYPES

_TYPES: Final = {
    "i8": "char", "u8": "uchar", "i16": "short", "u16": "ushort", "i32": "int", "u32": "uint",
    "i64": "long", "u64": "ulong", "f32": "float", "f64": "double", "f16": "half", "c64": "float2",
}  # fmt: skip
_VECTORS: Final = {("f32", 8): "float2", ("f32", 16): "float4", ("i32", 8): "int2", ("i32", 16): "int4"}
_RAW: Final = {1: "uchar", 2: "ushort", 4: "uint", 8: "uint2", 12: "uint", 16: "uint4"}


def emit(plan: Plan) -> str:
    """Text to put before a kernel."""
    return source(plan, _DIALECT)


def _pieces(plan: Plan, access: AccessPlan) -> list[str]:
    operation, element = access.lanes.operation, plan.problem.tile.element
    kind = _RAW[operation.width_bytes]
    if isinstance(element, str):
        if operation.width_bytes == plan.element_bytes:
            # Three of OpenCL's components take the place of four.
            named = element if element in VECTOR_TYPES and not element.endswith("3") else kind
            kind = _TYPES.get(element, named)
        kind = _VECTORS.get((element, operation.width_bytes), kind)
    elif (
        element.type is not None and "::" not in element.type and operation.width_bytes == plan.element_bytes
    ):
        kind = element.type
    if operation.does.adds and operation.width_bytes == 8:
        kind = "ulong"
    note = []
    if not operation.does.by_pointer:
        note = [f"// OpenCL has no {operation.kind}: a pointer to what the lane's address covers"]
    return [
        *note,
        f"static inline __local {kind} *{access.name}(__local void *smem, {parameters(access)}) {{",
        f"    return (__local {kind} *)((__local uchar *)smem + {access.name}_bytes({arguments(access)}));",
        "}",
    ]


_DIALECT: Final = Dialect(
    function="static inline",
    uint="uint",
    wide="long",
    constants=False,
    prologue=lambda _: [],
    example=lambda plan: [
        f"// __local uchar smem[{plan.name}_bytes] __attribute__((aligned({plan.alignment_bytes})));"
    ],
    table="__constant const",
    pieces=_pieces,
)
