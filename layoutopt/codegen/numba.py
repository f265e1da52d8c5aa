"""Numba CUDA: device functions that index a shared array of elements."""

import keyword
from collections.abc import Callable, Iterable
from typing import Final

from layoutopt.codegen.plan import BASE, AccessPlan, Plan, is_called
from layoutopt.expressions.grammar import (
    PRECEDENCE,
    Const,
    Lookup,
    Node,
    Op,
    Var,
    lookups,
    substituted,
    to_text,
    with_parts,
)

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
    looked_up = dict(sorted((table.name, list(table.values)) for table in lookups(plan.offset)))
    lines = [
        *(f"# {line}" for line in plan.header),
        *(["import numpy as np"] if looked_up or any(access.tables for access in plan.accesses) else []),
        "from numba import cuda",
        "",
        f"{plan.name}_size = {size}",
        f"# smem = cuda.shared.array({plan.name}_size, {kind}), then smem[{plan.name}_offset(...)]",
    ]
    for name, values in looked_up.items():
        lines.append(f"{name} = np.array({values}, np.int64)  # what the offset looks up")
    about = "Element offset of an element."
    lines += _function(f"{plan.name}_offset", coordinates, _text(plan.offset), about)
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
            spelled = substituted(access.named(node), {v: Var(parameter(v)) for v in variables})
            body = _text(spelled, is_test=part == "active")
            name = access.name if part == "bytes" else f"{access.name}_{part}"
            lines += _function(name, list(map(parameter, variables)), body, notes[part])
        if part == "step":
            names = list(map(parameter, loops))
            call = f"{access.name}_step({access.name}_base(tid), {', '.join(names)})"
            lines += _function(access.name, ["tid", *names], call, about)
    return lines


def _text(node: Node, is_test: bool = False) -> str:
    """`node` in Python's operators, a number unless it is a test."""
    made = _in_python(node)
    return to_text(made if is_test else _number(made))


def _in_python(node: Node) -> Node:
    """`node` with numbers for truths where Python and Numba tell them apart."""
    node = with_parts(node, _in_python)
    match node:
        case Op("and" | "or" as symbol, args):  # they give an operand
            return Op(symbol, tuple(a if _is_truth(a) else Op("!=", (a, Const(0))) for a in args))
        case Op("~", (arg,)):  # of Numba's truths it is another truth
            return Op("-", (Const(-1), arg))
        case Lookup(values, index, name):
            return Lookup(values, _number(index), name)
    return node


def _number(node: Node) -> Node:
    return Op("+", (node, Const(0))) if _is_truth(node, any) else node


def _is_truth(node: Node, of: Callable[[Iterable[bool]], bool] = all) -> bool:
    """Whether a value is a truth; where it is one of several, whether `of` them are: all, or any."""
    match node:
        case Op("&" | "|" | "^" | "min" | "max", args):
            return of(_is_truth(arg, of) for arg in args)
        case Op("if", (yes, _, no)):
            return of(_is_truth(arg, of) for arg in (yes, no))
        case Op(symbol):
            return PRECEDENCE["or"] <= PRECEDENCE[symbol] <= PRECEDENCE["<"]
    return False


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
    stem = name.rstrip("_")  # so that no two become one
    return f"{name}_" if stem == "base" or keyword.iskeyword(stem) or is_called(stem) else name
