"""What CUDA C++, HIP, OpenCL C and plain C share: the address functions, the same but for spelling."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.codegen.c_text import helpers, to_c
from layoutopt.codegen.plan import BASE, AccessPlan, Plan, is_called
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, lookups, names, substituted
from layoutopt.ground.escape import comment
from layoutopt.hardware.operations import Operation
from layoutopt.index.cost import UNROLLED
from layoutopt.problems.text import abridged
from layoutopt.problems.types import VECTOR_TYPES, Structure


class Dialect(Struct, frozen=True):
    """How a language spells what all of them say."""

    function: str  # what stands before a function's type
    pieces: "Callable[[Plan, AccessPlan, Dialect], list[str]]"  # what one access offers beside its address
    types: Mapping[str, str]  # of an element, by its name in a problem file
    table: str  # what declares a table of constants that device code reads
    vectors: Mapping[tuple[str, int], str] = {}  # of several elements, by the name of one and the bytes
    # Of so many bytes where an element says nothing; empty where pointers have the element's type, whatever
    # an access touches
    raw: Mapping[int, str] = {}
    atomic: str = ""  # the type that 64-bit atomics take
    uint: str = "uint32_t"  # the unsigned 32-bit type
    wide: str = "long long"  # the signed 64-bit type
    space: str = ""  # what qualifies a pointer into the tile
    byte: str = "unsigned char"  # the type of a byte
    absent: str = ""  # begins the note that the language has no such instruction
    # What the GPU's compiler defines; empty for plain C, whose constants are an `enum`. In C++ they are
    # `constexpr` and checked by `static_assert`
    macro: str = ""
    # Includes for the GPU's compiler, by the names of the elements that need them; "" for all
    headers: Mapping[str, tuple[str, ...]] = {}
    closing: Callable[[Plan], list[str]] = lambda _: []  # lines at the end

    def pointer_type(self, plan: Plan, operation: Operation) -> str:
        """The type that one lane of a load, store or atomic touches."""
        element, width = plan.problem.tile.element, operation.width_bytes
        whole, kind = width == plan.element_bytes, None
        if isinstance(element, Structure):
            if whole and (self.macro or "::" not in (element.type or "")):  # only C++ has namespaces
                kind = element.type
        elif whole or not self.raw:
            kind = self.types.get(element)
        if kind is None and isinstance(element, str):
            kind = self.vectors.get((element, width))
        # C++ has atomics of an element's own type, OpenCL of integers alone.
        if operation.does.adds and width == 8 and (kind is None or not self.macro):
            kind = self.atomic or kind
        return kind or self.raw.get(width, "void")


def emit(plan: Plan) -> str:
    """A header of C99, HIP C++ or OpenCL C, by the language of the plan."""
    return source(plan, DIALECTS[plan.language])


def source(plan: Plan, dialect: Dialect) -> str:
    """The text of a header for `plan`."""
    name, language = plan.name, LANGUAGES[plan.language]
    lines = [
        *(f"// {line}" for line in plan.header),
        *language.start_of(name),
        *_on_the_host(plan, dialect),
        "",
    ]
    sizes = {"bytes": plan.bytes, "alignment": plan.alignment_bytes}
    if plan.problem.block.cluster is not None:
        sizes["cluster"] = plan.problem.block.cluster
    if dialect.macro:
        lines += [f"constexpr {dialect.uint} {name}_{key} = {value};" for key, value in sizes.items()]
    else:
        lines.append(f"enum {{ {', '.join(f'{name}_{key} = {value}' for key, value in sizes.items())} }};")
    lines.append(f"// {language.declared.format(name=name, alignment=plan.alignment_bytes)}")
    if dialect.macro:
        lines += _declared_by_type(plan)
    lines += ["", *_table(plan, dialect)]
    body = [*_offset(plan, dialect), *_bit_shift(plan, dialect)]
    for access in plan.accesses:
        pieces = dialect.pieces(plan, access, dialect)
        if dialect.macro:
            pieces = [f"#ifdef {dialect.macro}", *pieces, "#endif"]
        body += ["", *_headline(access), *_addresses(plan, access, dialect), *pieces]
    called = helpers("\n".join(body), name, dialect.function, dialect.wide)
    lines += [*called, *([""] if called else []), *body]
    if dialect.macro:
        lines += ["", *_assertions(plan)]
    lines += [*dialect.closing(plan), *language.end]
    return "\n".join(lines) + "\n"


def element_type(plan: Plan) -> str | None:
    """What a kernel in C++ calls an element; None where the file does not say."""
    element = plan.problem.tile.element
    return CPP_TYPES.get(element) if isinstance(element, str) else element.type


def _on_the_host(plan: Plan, dialect: Dialect) -> list[str]:
    """Includes for the GPU's compiler, and what lets a host compiler of C++ read the rest."""
    if not dialect.macro:
        return []
    element = plan.problem.tile.element
    needed = ("", element) if isinstance(element, str) else ("",)
    includes = [line for key in needed for line in dialect.headers.get(key, ())]
    device = [f"#ifdef {dialect.macro}", *includes, "#else"] if includes else [f"#ifndef {dialect.macro}"]
    device[-1] += "  // plain C++, for tests on the host"
    return [*device, "#ifndef __host__", "#define __host__", "#define __device__", "#endif", "#endif"]


def _declared_by_type(plan: Plan) -> list[str]:
    """How to declare the tile as elements."""
    name, kind, lines = plan.name, element_type(plan), []
    # C++ refuses an alignas below the type's own alignment.
    if kind is not None and plan.alignment_bytes >= plan.element_bytes:
        elements = -(-plan.bytes // plan.element_bytes)
        lines.append(f"// or __shared__ alignas({name}_alignment) {kind} smem[{elements}];")
    if isinstance(plan.problem.tile.element, Structure) and kind is not None:
        size = f'static_assert(sizeof({kind}) == {plan.element_bytes}, "{kind}");'
        note = "  // the kernel's own type, declared before this header"
        lines += ["#ifdef __CUDACC__", size + note, "#endif"]
    return lines


def _pointer(plan: Plan, access: AccessPlan, dialect: Dialect) -> list[str]:
    """A typed pointer for each lane, in C."""
    space, kind = dialect.space, dialect.pointer_type(plan, access.lanes.operation)
    offset = f"{access.name}_bytes({arguments(access)})"
    return [
        *_absent(access, dialect),
        f"static inline {space}{kind} *{access.name}({space}void *smem, {parameters(access)}) {{",
        f"    return ({space}{kind} *)(({space}{dialect.byte} *)smem + {offset});",
        "}",
    ]


def pointers(plan: Plan, access: AccessPlan, dialect: Dialect) -> list[str]:
    """A typed pointer for each lane, and all iterations in one call, in C++."""
    constant = "const " if access.lanes.operation.is_read else ""
    kind = f"{constant}{dialect.pointer_type(plan, access.lanes.operation)}"
    void, char = f"{constant}void*", f"{constant}unsigned char*"

    def pointer(offset: str) -> str:
        return f"reinterpret_cast<{kind}*>(static_cast<{char}>(smem) + {offset})"

    lines = [
        *_absent(access, dialect),
        f"__device__ __forceinline__ {kind}* {access.name}({void} smem, {parameters(access)}) {{",
        f"    return {pointer(f'{access.name}_bytes({arguments(access)})')};",
        "}",
    ]
    if access.form.has_step:
        offset = f"{access.name}_step(base, {arguments(access, access.access.loops)})"
        lines += each(access, f"{void} smem", f"{access.name}_base(tid)", pointer(offset))
    return lines


def _absent(access: AccessPlan, dialect: Dialect) -> list[str]:
    operation = access.lanes.operation
    if operation.does.by_pointer or not dialect.absent:
        return []
    return [f"// {dialect.absent} no {operation.kind}: a pointer to what the lane's address covers"]


def each(access: AccessPlan, start_parameter: str, base: str, cell: str) -> list[str]:
    """A function in C++ that calls another with the address of every iteration, from the thread's base."""
    loops = arguments(access, access.access.loops)
    return [
        f"template <class Body>  // calls body(address, {loops})",
        f"__device__ __forceinline__ void {access.name}_each({start_parameter}, int tid, Body body) {{",
        f"    const uint32_t base = {base};",
        *guarded_loops(access, f"body({cell}, {loops});"),
        "}",
    ]


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
    flipped = access.form.flips != Const(0) and access.start != "first"
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
    if names(access.active) & set(access.access.loops):
        test = f"if ({access.name}_active({arguments(access)}))"
        return loop_nest(access, [f"{test} {statement}"], "    ", "#pragma unroll")
    first_iteration = ", ".join(["tid", *("0" for _ in access.access.loops)])
    test = f"if ({access.name}_active({first_iteration}))"
    return [f"    {test} {{", *loop_nest(access, [statement], "        ", "#pragma unroll"), "    }"]


def expression(plan: Plan, node: Node, access: AccessPlan, dialect: Dialect) -> str:
    """`node` in C, its variables renamed where C reserves their names."""
    spelled: dict[str, Node] = {BASE: Var("base"), **{v: Var(parameter(v)) for v in access.ranges}}
    renamed = substituted(access.named(node), spelled)
    positive = {substituted(access.named(dividend), spelled) for dividend in access.form.positive}
    # The base of an address is unsigned and small.
    known = {"base": (0, 1 << 24), **{parameter(v): r for v, r in access.ranges.items()}}
    return to_c(renamed, known, dialect.wide, positive, plan.name)


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
    body = to_c(node, ranges, dialect.wide, called=plan.name, unsigned=True)
    declared = ", ".join(f"{dialect.uint} {x}" for x in ranges)
    return [
        "// Byte offset of an element.",
        f"{dialect.function} {dialect.uint} {plan.name}_offset_bytes({declared}) {{",
        *unused(body, ranges),
        f"    return {body};",
        "}",
    ]


def _table(plan: Plan, dialect: Dialect) -> list[str]:
    """The offsets and lanes that no formula gives."""
    lines: list[str] = []
    unit = f"in units of {plan.element_bytes} bytes"
    note = f"// What the offset looks up, {unit}."
    if isinstance(plan.offset, Lookup):
        note = f"// Offset of an element by its row-major index, {unit}."
    offsets = sorted({(table.name, table.values) for table in lookups(plan.offset)})
    lanes = [(name, values) for access in plan.accesses for values, name in access.tables.items()]
    for name, values in [*offsets, *lanes]:
        kind, least, most = "unsigned int", min(values), max(values)
        value = "int" if least > -(2**31) and most < 2**31 else dialect.wide
        if least < 0 or value != "int":
            kind = value
        elif most < 1 << 16:
            kind = "unsigned short"
        rows = [", ".join(map(str, values[at : at + 16])) for at in range(0, len(values), 16)]
        lines += [
            note if (name, values) in offsets else "// Whose piece a thread handles.",
            f"{dialect.table} {kind} {name}_table[{len(values)}] = {{",
            *(f"    {row}," for row in rows),
            "};",
            f"{dialect.function} {value} {name}(int index) {{",
            f"    return {name}_table[index];",
            "}",
            "",
        ]
    return lines


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
    lines, head = [], f"{dialect.function} {dialect.uint} {access.name}"
    for part, variables, node in access.functions:
        kind = ("bool" if dialect.macro else "int") if part == "active" else dialect.uint
        own = [v for v in variables if v != BASE]
        declared = [f"{dialect.uint} base"] * (BASE in variables) + [parameters(access, own)]
        body = expression(plan, node, access, dialect)
        lines += [
            f"{dialect.function} {kind} {access.name}_{part}({', '.join(declared)}) {{",
            *unused(body, map(parameter, own)),
            f"    return {body};" if part == "active" else f"    return ({dialect.uint})({body});",
            "}",
        ]
        if part == "step":
            lines += [
                f"{head}_bytes({parameters(access)}) {{",
                f"    return {access.name}_step({access.name}_base(tid), {arguments(access, own)});",
                "}",
            ]
    return lines


def _assertions(plan: Plan) -> list[str]:
    lines = []
    for point, offset in plan.sample:
        call = f"{plan.name}_offset_bytes({', '.join(map(str, point))})"
        lines.append(f'static_assert({call} == {offset}, "the layout");')
    for access in plan.accesses:
        lines += _access_assertion(plan, access)
    return lines


def _access_assertion(plan: Plan, access: AccessPlan) -> list[str]:
    """The last active thread of the last iteration that has one."""
    threads, trips = plan.problem.threads, tuple(access.access.loops.values())
    shape = (math.prod(trips), -1)
    active = access.lanes.active.reshape(shape)[:, :threads]
    if not active.any():
        return []
    iteration, tid = divmod(int(active.ravel().nonzero()[0][-1]), threads)
    element = int(access.lanes.element.reshape(shape)[iteration, tid])
    values = [int(k) for k in np.unravel_index(iteration, trips)] if trips else []
    call = f"{access.name}_bytes({', '.join(map(str, [tid, *values]))})"
    return [f'static_assert({call} == {int(plan.table.ravel()[element])}, "{access.name}");']


def unused(body: str, known: Iterable[str]) -> list[str]:
    """Name parameters that the body does not need, so that no compiler warns."""
    words = set(re.findall(r"\w+", body))
    return [f"    (void){p};" for p in known if p not in words]


# Keywords of the four languages, macros of their headers, and names that the functions use.
_RESERVED: Final = frozenset(
    re.findall(
        r"\w+",
        """
        alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
        char32_t class co_await co_return co_yield compl concept const consteval constexpr constinit
        const_cast continue decltype default delete do double dynamic_cast else enum explicit export
        extern false float for friend generic goto half if inline int int64_t kernel long mutable namespace
        new noexcept not not_eq nullptr operator or or_eq private protected public read_only read_write
        register reinterpret_cast requires restrict return short signed sizeof static static_assert
        static_cast struct switch template this thread_local throw true try typedef typeid typename typeof
        uint uint32_t uchar ulong union unsigned ushort using virtual void volatile wchar_t while write_only
        xor xor_eq
        NULL EOF NAN INFINITY MAXFLOAT errno stdin stdout stderr linux unix
        base body bytes smem source address v global local constant pipe
        cell cells cycles in out repeat repeats start sum tile visit word
        """,
    )
)
# Macros such as INT_MAX, and types such as float4 and image2d_t.
_RESERVED_FORMS: Final = re.compile(
    r"_.*|[A-Z][A-Z0-9]*_[A-Z0-9_]*|image\w*_t|(u?(char|short|int|long|longlong)|float|double|half)\d+"
)


def parameter(name: str) -> str:
    """`name` as a parameter's name."""
    stem = name.rstrip("_")  # so that no two become one
    return f"{name}_" if stem in _RESERVED or _RESERVED_FORMS.fullmatch(stem) or is_called(stem) else name


_C_TYPES: Final = {
    "i8": "int8_t", "u8": "uint8_t", "i16": "int16_t", "u16": "uint16_t", "i32": "int32_t",
    "u32": "uint32_t", "i64": "int64_t", "u64": "uint64_t", "f32": "float", "f64": "double",
}  # fmt: skip
_OPENCL_TYPES: Final = {
    "i8": "char", "u8": "uchar", "i16": "short", "u16": "ushort", "i32": "int", "u32": "uint",
    "i64": "long", "u64": "ulong", "f32": "float", "f64": "double", "f16": "half", "c64": "float2",
    # Three of OpenCL's components take the place of four.
    **{name: name for name in VECTOR_TYPES if not name.endswith("3")},
}  # fmt: skip
CPP_TYPES: Final = {
    "i8": "signed char", "u8": "unsigned char", "i16": "short", "u16": "unsigned short", "i32": "int",
    "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double",
    "f16": "__half", "bf16": "__nv_bfloat16", "f16x2": "__half2", "bf16x2": "__nv_bfloat162",
    "c64": "float2", "c128": "double2", **{name: name for name in VECTOR_TYPES},
}  # fmt: skip
_OPENCL_VECTORS: Final = {
    ("f32", 8): "float2", ("f32", 16): "float4", ("i32", 8): "int2", ("i32", 16): "int4",
}  # fmt: skip
_CPP_VECTORS: Final = _OPENCL_VECTORS | {
    ("f16", 4): "__half2", ("bf16", 4): "__nv_bfloat162", ("f64", 16): "double2", ("c64", 16): "float4",
}  # fmt: skip
_CPP_RAW: Final = {
    1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "uint2", 12: "uint3", 16: "uint4",
}  # fmt: skip
_HIP: Final = {
    "f16": ("#include <hip/hip_fp16.h>",),
    "bf16": (
        "#include <hip/hip_bf16.h>",
        "typedef __hip_bfloat16 __nv_bfloat16;",
        "typedef __hip_bfloat162 __nv_bfloat162;",
    ),
}

CPP: Final = Dialect(
    function="__host__ __device__ constexpr",
    pieces=pointers,
    types=CPP_TYPES,
    vectors=_CPP_VECTORS,
    raw=_CPP_RAW,
    atomic="unsigned long long",
    table="",
)
DIALECTS: Final = {
    "c": Dialect("static inline", _pointer, _C_TYPES, "static const"),
    "opencl": Dialect(
        function="static inline",
        pieces=_pointer,
        types=_OPENCL_TYPES,
        vectors=_OPENCL_VECTORS,
        raw={1: "uchar", 2: "ushort", 4: "uint", 8: "uint2", 12: "uint", 16: "uint4"},
        atomic="ulong",
        uint="uint",
        wide="long",
        space="__local ",
        byte="uchar",
        absent="OpenCL has",
        table="__constant const",
    ),
    "hip": replace(
        CPP,
        absent="AMD GPUs have",
        macro="__HIPCC__",
        headers={
            "": ("#include <hip/hip_runtime.h>",),
            **{name + two: lines for name, lines in _HIP.items() for two in ("", "x2")},
        },
        table="#ifdef __HIP_DEVICE_COMPILE__\n__device__\n#endif\nconstexpr",
    ),
}
