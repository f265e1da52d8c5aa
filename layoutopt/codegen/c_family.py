"""What CUDA C++, HIP, OpenCL C and plain C share: the address functions, the same but for spelling."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from layoutopt.codegen.c_text import helpers, to_c
from layoutopt.codegen.plan import BASE, AccessPlan, Plan
from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, lookups, names, substituted
from layoutopt.ground.escape import comment
from layoutopt.index.address_cost import UNROLLED
from layoutopt.problems.text import abridged


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a language spells what all of them say.

    Attributes:
        function: what stands before a function's type.
        uint: the unsigned 32-bit type.
        wide: the signed 64-bit type.
        constants: whether constants are `constexpr` (else an `enum`), checked by `static_assert`.
        prologue: lines before the constants.
        example: a declaration of the tile, as a comment.
        table: what declares a table of constants that device code reads.
        pieces: what one access offers beside its address.
        closing: lines at the end.
    """

    function: str
    uint: str
    wide: str
    constants: bool
    prologue: Callable[[Plan], list[str]]
    example: Callable[[Plan], list[str]]
    table: str
    pieces: Callable[[Plan, AccessPlan], list[str]]
    closing: Callable[[Plan], list[str]] = lambda _: []


def source(plan: Plan, dialect: Dialect) -> str:
    """The text of a header for `plan`."""
    name = plan.name
    lines = [*(f"// {line}" for line in plan.header), *dialect.prologue(plan), ""]
    sizes = {"bytes": plan.bytes, "alignment": plan.alignment_bytes}
    if plan.problem.block.cluster is not None:
        sizes["cluster"] = plan.problem.block.cluster
    if dialect.constants:
        lines += [f"constexpr {dialect.uint} {name}_{key} = {value};" for key, value in sizes.items()]
    else:
        lines.append(f"enum {{ {', '.join(f'{name}_{key} = {value}' for key, value in sizes.items())} }};")
    lines += [*dialect.example(plan), "", *_table(plan, dialect)]
    body: list[str] = []
    if plan.only != "access":
        body += [*_offset(plan, dialect), *_bit_shift(plan, dialect)]
    for access in plan.accesses:
        body += ["", *_headline(access), *_addresses(plan, access, dialect), *dialect.pieces(plan, access)]
    called = helpers("\n".join(body), name, dialect.function, dialect.wide)
    lines += [*called, *([""] if called else []), *body]
    if dialect.constants:
        lines += ["", *_assertions(plan)]
    lines += dialect.closing(plan)
    return "\n".join(lines) + "\n"


def arguments(access: AccessPlan, variables: Iterable[str] | None = None) -> str:
    """`tid` and the loop variables, as they are passed on."""
    return ", ".join(parameter(v) for v in (access.ranges if variables is None else variables))


def parameters(access: AccessPlan, variables: Iterable[str] | None = None) -> str:
    """`tid` and the loop variables, as they are declared."""
    return ", ".join(f"int {parameter(v)}" for v in (access.ranges if variables is None else variables))


def base_of(access: AccessPlan, smem: str) -> str:
    """What a thread computes once, for `address_from`; empty where every iteration starts anew.

    XOR is applied to what holds the tile's start where its alignment covers every flipped bit.
    """
    if not access.form.has_step:
        return ""
    base = f"{access.name}_base(tid)"
    return base if _start_last(access) else f"{smem} + {base}"


def address_from(access: AccessPlan, smem: str, base: str) -> str:
    """The absolute 32-bit address in an iteration."""
    if not access.form.has_step:
        return f"{smem} + {access.name}_bytes({arguments(access)})"
    stepped = f"{access.name}_step({base}, {arguments(access, access.access.loops)})"
    return f"{smem} + {stepped}" if _start_last(access) else stepped


def _start_last(access: AccessPlan) -> bool:
    flipped = access.form.flips != Const(0) and access.code.start != "first"
    return flipped or access.lanes.operation.does.by_pointer


def loop_nest(access: AccessPlan, body: list[str], indent: str, unroll: str) -> list[str]:
    """`body` inside the loops of an access, with `unroll` before those that are worth it."""
    inner = 1
    lines = [f"{indent}{'    ' * len(access.access.loops)}{line}" for line in body]
    for depth, (v, trips) in reversed(list(enumerate(access.access.loops.items()))):
        inner *= trips
        pad, c = indent + "    " * depth, parameter(v)
        head = [f"{pad}{unroll}"] if inner <= UNROLLED else []
        lines = [*head, f"{pad}for (int {c} = 0; {c} < {trips}; ++{c}) {{", *lines, f"{pad}}}"]
    return lines


def guarded_loops(access: AccessPlan, statement: str) -> list[str]:
    """`statement` in every iteration in which the thread takes part, indented by four.

    A predicate that no loop changes is asked once, around the loops: what compilers compute behind one branch
    is not known behind the next.
    """
    if access.active is None:
        return loop_nest(access, [statement], "    ", "#pragma unroll")
    test = f"if ({access.name}_active({', '.join(_first_iteration(access))}))"
    if names(access.active) & set(access.access.loops):
        test = f"if ({access.name}_active({arguments(access)}))"
        return loop_nest(access, [f"{test} {statement}"], "    ", "#pragma unroll")
    return [f"    {test} {{", *loop_nest(access, [statement], "        ", "#pragma unroll"), "    }"]


def _first_iteration(access: AccessPlan) -> list[str]:
    return ["tid", *("0" for _ in access.access.loops)]


def expression(plan: Plan, node: Node, access: AccessPlan, dialect: Dialect) -> str:
    """`node` in C, its variables renamed where C reserves their names."""
    spelled: dict[str, Node] = {BASE: Var("base"), **{v: Var(parameter(v)) for v in access.ranges}}
    renamed = substituted(access.named(node), spelled)
    positive = {substituted(access.named(dividend), spelled) for dividend in access.form.positive}
    # The base of an address is unsigned and small.
    known = {"base": (0, 1 << 24), **{parameter(v): r for v, r in access.ranges.items()}}
    text = to_c(renamed, known, dialect.wide, positive, plan.name)
    return text if dialect.wide != "long" else text.replace("LL", "L")


def _headline(access: AccessPlan) -> list[str]:
    lines = [f"// {access.headline}"]
    if access.access.where is not None:
        lines.append(f"// only where {comment(abridged(access.access.where))}")
    lines.append(f"// {access.cost}")
    trips = ", ".join(f"{parameter(v)} < {n}" for v, n in access.access.loops.items())
    return [*lines, f"// {trips}; {access.hoisting}"] if trips else lines


def _offset(plan: Plan, dialect: Dialect) -> list[str]:
    ranges = plan.coordinate_ranges
    node = plan.offset if plan.element_bytes == 1 else Op("*", (plan.offset, Const(plan.element_bytes)))
    body = to_c(node, ranges, dialect.wide, called=plan.name)
    declared = ", ".join(f"{dialect.uint} {x}" for x in ranges)
    return [
        "// Byte offset of an element.",
        f"{dialect.function} {dialect.uint} {plan.name}_offset_bytes({declared}) {{",
        *_unused(body, ranges),
        f"    return {body};",
        "}",
    ]


def _table(plan: Plan, dialect: Dialect) -> list[str]:
    """The offsets and lanes that no formula gives."""
    lines: list[str] = []
    offsets = sorted({(table.name, table.values) for table in lookups(plan.offset)})
    lanes = [(name, values) for access in plan.accesses for values, name in access.tables.items()]
    for name, values in [*offsets, *lanes]:
        kind = "unsigned short" if max(values) < 1 << 16 else "unsigned int"
        rows = [", ".join(map(str, values[at : at + 16])) for at in range(0, len(values), 16)]
        lines += [
            _table_note(plan) if (name, values) in offsets else "// Whose piece a thread handles.",
            f"{dialect.table} {kind} {name}_table[{len(values)}] = {{",
            *(f"    {row}," for row in rows),
            "};",
            f"{dialect.function} int {name}(int index) {{",
            f"    return {name}_table[index];",
            "}",
            "",
        ]
    return lines


def _table_note(plan: Plan) -> str:
    """What the numbers of the table are."""
    if isinstance(plan.offset, Lookup):
        return f"// Offset of an element by its row-major index, in units of {plan.element_bytes} bytes."
    return f"// What the offset looks up, in units of {plan.element_bytes} bytes."


def _bit_shift(plan: Plan, dialect: Dialect) -> list[str]:
    """Where in its byte a packed element lies."""
    tile = plan.problem.tile
    if tile.packed == 1:
        return []
    last = f"x{len(tile.shape) - 1}"
    return [
        "",
        f"// Shift of an element in its byte: (byte >> shift) & {(1 << tile.element_bits) - 1:#x}.",
        f"{dialect.function} {dialect.uint} {plan.name}_bit_shift({dialect.uint} {last}) {{",
        f"    return ({last} & {tile.packed - 1}) * {tile.element_bits};",
        "}",
    ]


def _addresses(plan: Plan, access: AccessPlan, dialect: Dialect) -> list[str]:
    lines = []
    head, uint = f"{dialect.function} {dialect.uint}", dialect.uint

    def function(suffix: str, kind: str, node: Node, declared: str, known: Iterable[str]) -> list[str]:
        body = expression(plan, node, access, dialect)
        value = f"({uint})({body})" if kind == uint else body
        return [
            f"{dialect.function} {kind} {access.name}_{suffix}({declared}) {{",
            *_unused(body, map(parameter, known)),
            f"    return {value};",
            "}",
        ]

    loops = list(access.access.loops)
    if not access.form.has_step:
        lines += function("bytes", uint, access.form.address, parameters(access), access.ranges)
    else:
        node = access.form.from_base(Var(BASE))
        lines += function("base", uint, access.form.base, "int tid", ["tid"])
        declared = ", ".join([f"{uint} base", parameters(access, loops)])
        lines += function("step", uint, node, declared, loops)
        lines += [
            f"{head} {access.name}_bytes({parameters(access)}) {{",
            f"    return {access.name}_step({access.name}_base(tid), {arguments(access, loops)});",
            "}",
        ]
    for d, node in enumerate(access.coordinates):
        lines += function(f"x{d}", uint, node, parameters(access), access.ranges)
    if access.active is not None:
        kind = "bool" if dialect.constants else "int"
        lines += function(
            "active", kind, Op("!=", (access.active, Const(0))), parameters(access), access.ranges
        )
    return lines


def _assertions(plan: Plan) -> list[str]:
    lines = []
    for point, offset in plan.sample if plan.only != "access" else ():
        call = f"{plan.name}_offset_bytes({', '.join(map(str, point))})"
        lines.append(f'static_assert({call} == {offset}, "the layout");')
    for access in plan.accesses:
        lines += _access_assertion(plan, access)
    return lines


def _access_assertion(plan: Plan, access: AccessPlan) -> list[str]:
    """The last active thread of the last iteration that has one."""
    threads, trips = plan.problem.threads, list(access.access.loops.values())
    iterations = 1
    for n in trips:
        iterations *= n
    active = access.lanes.active.reshape(iterations, -1)[:, :threads]
    if not active.any():
        return []
    at = int(active.ravel().nonzero()[0][-1])
    iteration, tid = divmod(at, threads)
    element = int(access.lanes.element.reshape(iterations, -1)[iteration, tid])
    values: list[int] = []
    for n in reversed(trips):
        iteration, value = divmod(iteration, n)
        values.insert(0, value)
    call = f"{access.name}_bytes({', '.join(map(str, [tid, *values]))})"
    return [f'static_assert({call} == {int(plan.table.ravel()[element])}, "{access.name}");']


def _unused(body: str, known: Iterable[str]) -> list[str]:
    """Name parameters that the body does not need, so that no compiler warns."""
    words = set(re.findall(r"\w+", body))
    return [f"    (void){p};" for p in known if p not in words]


# Keywords of the four languages, and names that the functions use.
_RESERVED: Final = frozenset(
    re.findall(
        r"\w+",
        """
        alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
        char32_t class co_await co_return co_yield compl concept const consteval constexpr constinit
        const_cast continue decltype default delete do double dynamic_cast else enum explicit export
        extern false float for friend goto half if inline int int64_t kernel long mutable namespace new
        noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
        requires restrict return short signed sizeof static static_assert static_cast struct switch
        template this thread_local throw true try typedef typeid typename uint uint32_t uchar ulong
        ushort union unsigned using virtual void volatile wchar_t while xor xor_eq
        base body bytes smem source address v global local constant pipe
        cell cells cycles in out repeat repeats start sum tile visit word
        """,
    )
)


def parameter(name: str) -> str:
    """`name` as a parameter's name."""
    return f"{name}_" if name in _RESERVED or name.startswith("_") else name
