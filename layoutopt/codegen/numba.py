"""Numba CUDA: device functions that index a shared array of elements."""

import keyword
from typing import Final

from layoutopt.codegen.plan import BASE, AccessPlan, Plan
from layoutopt.expressions.grammar import Var, substituted, to_text

_TYPES: Final = {
    "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32",
    "i64": "int64", "u64": "uint64", "f16": "float16", "f32": "float32", "f64": "float64",
    "c64": "complex64", "c128": "complex128",
}  # fmt: skip


def emit(plan: Plan) -> str:
    """A Python module; offsets and addresses count elements, as Numba's arrays do."""
    element = plan.problem.tile.element
    kind = f"numba.{_TYPES[element]}" if isinstance(element, str) and element in _TYPES else "dtype"
    size = plan.bytes // plan.element_bytes
    coordinates = list(plan.coordinate_ranges)
    lines = [
        *(f"# {line}" for line in plan.header),
        *(["import numpy as np"] if any(access.tables for access in plan.accesses) else []),
        "from numba import cuda",
        "",
        f"{plan.name}_size = {size}",
        f"# smem = cuda.shared.array({plan.name}_size, {kind}), then smem[{plan.name}_offset(...)]",
    ]
    about = "Element offset of an element."
    lines += _function(f"{plan.name}_offset", coordinates, to_text(plan.offset), about)
    for access in plan.accesses:
        lines += _access(access)
    return "\n".join(lines) + "\n"


def _access(access: AccessPlan) -> list[str]:
    loops = list(access.access.loops)
    every = ["tid", *loops]
    wide = access.lanes.width_elements
    note = [access.headline + ("" if wide == 1 else f"; the first of {wide} elements")]
    if access.access.where is not None:
        note.append(f"Only where {access.name}_active({', '.join(map(parameter, every))}).")
    note.append(f"{access.cost[0].upper()}{access.cost[1:]}.")
    if access.hoisting:
        note.append(f"{access.hoisting[0].upper()}{access.hoisting[1:]}.")
    about = "\n    ".join(note)
    lines: list[str] = []
    for values, name in access.tables.items():
        lines += ["", f"{name} = np.array({list(values)}, np.int32)  # whose piece a thread handles"]

    notes = {"base": "Once for each thread.", "step": "From the base.", "bytes": about}
    notes["active"] = "Whether the thread takes part."
    for part, variables, node in access.functions:
        if part in notes:
            body = to_text(substituted(access.named(node), {v: Var(parameter(v)) for v in variables}))
            name = access.name if part == "bytes" else f"{access.name}_{part}"
            lines += _function(name, list(map(parameter, variables)), body, notes[part])
        if part == "step":
            names = list(map(parameter, loops))
            call = f"{access.name}_step({access.name}_base(tid), {', '.join(names)})"
            lines += _function(access.name, ["tid", *names], call, about)
    return lines


def _function(name: str, parameters: list[str], body: str, about: str) -> list[str]:
    quoted = about.replace('"', "'")
    return [
        "",
        "",
        "@cuda.jit(device=True)",
        f"def {name}({', '.join(parameters)}):",
        f'    """{quoted}"""',
        f"    return {body}",
    ]


def parameter(name: str) -> str:
    """`name` as a parameter's name, where Python does not reserve it."""
    if name == BASE:
        return "base"
    return f"{name}_" if keyword.iskeyword(name) or name == "base" else name
