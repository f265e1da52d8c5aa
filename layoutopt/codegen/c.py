"""C99: the address functions, and a pointer for each access."""

from __future__ import annotations

from typing import Final

from layoutopt.codegen.c_family import Dialect, arguments, parameters, source
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.problems.types import Structure

_TYPES: Final = {
    "i8": "int8_t", "u8": "uint8_t", "i16": "int16_t", "u16": "uint16_t", "i32": "int32_t",
    "u32": "uint32_t", "i64": "int64_t", "u64": "uint64_t", "f32": "float", "f64": "double",
}  # fmt: skip


def emit(plan: Plan) -> str:
    """A header of C99, which C++ reads too."""
    return source(plan, _DIALECT)


def _pieces(plan: Plan, access: AccessPlan) -> list[str]:
    element = plan.problem.tile.element
    kind = _TYPES.get(element, "void") if isinstance(element, str) else "void"
    if isinstance(element, Structure) and access.lanes.operation.width_bytes == plan.element_bytes:
        kind = element.type if element.type is not None and "::" not in element.type else kind  # no C++
    return [
        f"static inline {kind} *{access.name}(void *smem, {parameters(access)}) {{",
        f"    return ({kind} *)((unsigned char *)smem + {access.name}_bytes({arguments(access)}));",
        "}",
    ]


def _prologue(plan: Plan) -> list[str]:
    guard = f"{plan.name}_H".upper()
    return [f"#ifndef {guard}", f"#define {guard}", "#include <stdint.h>"]


_DIALECT: Final = Dialect(
    function="static inline",
    uint="uint32_t",
    wide="long long",
    constants=False,
    prologue=_prologue,
    example=lambda plan: [f"// _Alignas({plan.name}_alignment) unsigned char smem[{plan.name}_bytes];"],
    table="static const",
    pieces=_pieces,
    closing=lambda _: ["", "#endif"],
)
