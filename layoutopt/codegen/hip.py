"""HIP C++ for AMD GPUs: the address functions and typed pointers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from layoutopt.codegen import cuda
from layoutopt.codegen.c_family import source
from layoutopt.codegen.cuda import pointer_pieces, prologue
from layoutopt.codegen.plan import AccessPlan, Plan


def emit(plan: Plan) -> str:
    """A header that compiles with hipcc and, but for the device functions, as plain C++14."""
    return source(plan, _DIALECT)


def _pieces(plan: Plan, access: AccessPlan) -> list[str]:
    note = []
    operation = access.lanes.operation
    if not operation.does.by_pointer:
        note = [f"// AMD GPUs have no {operation.kind}: a pointer to what the lane's address covers"]
    return ["#ifdef __HIPCC__", *note, *pointer_pieces(plan, access), "#endif"]


def _start(plan: Plan) -> list[str]:
    element = plan.problem.tile.element
    header = {"f16": "fp16", "f16x2": "fp16", "bf16": "bf16", "bf16x2": "bf16"}
    more = (
        [f"#include <hip/hip_{header[element]}.h>"] if isinstance(element, str) and element in header else []
    )
    if more and "bf16" in more[0]:
        more.append("typedef __hip_bfloat16 __nv_bfloat16;")
        more.append("typedef __hip_bfloat162 __nv_bfloat162;")
    return prologue("__HIPCC__", ["#include <hip/hip_runtime.h>", *more])


_DIALECT: Final = replace(
    cuda.DIALECT,
    prologue=_start,
    table="#ifdef __HIP_DEVICE_COMPILE__\n__device__\n#endif\nconstexpr",
    pieces=_pieces,
    closing=lambda _: [],
)
