"""A CUDA program that tests its own layout: values, cycles and, under a profiler, counters.

Every access has two kernels. `NAME_values_K` moves known data through the tile by the emitted address,
on one side, and by the offset of each element, on the other; the host, which knows the access's index
as the problem states it, says what must come out. `NAME_access_K` does nothing but the access, once
for every warp and iteration, as the one instruction that it is, so that a profiler's counters are those
of the access.
"""

import math
from collections.abc import Sequence
from typing import Final

from layoutopt.codegen import cuda
from layoutopt.codegen.c_family import arguments, loop_nest, parameter, parameters
from layoutopt.codegen.c_text import helpers, operands, to_c
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.codegen.templates import filled, lines
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Const, Node, Op, Var, substituted
from layoutopt.ground.escape import identifier
from layoutopt.index.address_forms import over_tid
from layoutopt.study.block import Placed

REPEATS: Final = 64
MAX_SHARED_BYTES: Final = 227 << 10  # of one block on compute capability 9.0, CUDA programming guide

WAIT: Final = 'asm volatile("cp.async.wait_all;" ::: "memory");'
_REGISTERS: Final = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}


def program(plan: Plan) -> str:
    """The text of the program; `nvcc -arch=native` compiles it.

    Raises:
        LayoutError: no NVIDIA GPU has the tile's size or an access's instruction.
    """
    return _program(cuda.emit(plan), tile_test(plan), [_run_of(plan)])


def block_program(tiles: Placed, header: str, plans: Sequence[Plan], tests: Sequence[str]) -> str:
    """The program of several tiles: tests each by itself, and that none lies on another while both live.

    Args:
        tiles: where they lie.
        header: the code of all of them.
        plans: of each.
        tests: what `tile_test` gives for each.
    """
    block, overlaid = identifier(tiles.name), {tile for time in tiles.times for tile in time}
    checks = []
    for time in tiles.times or ((),):
        size, owned = 0, ""
        for plan, part in zip(plans, tiles.parts, strict=True):
            if part.tile in time or part.tile not in overlaid:
                size += part.stages * plan.problem.tile.elements * plan.element_bytes
                place = f"{block}_bytes, {block}_{part.tile}_base, {block}_{part.tile}_stage_bytes"
                kernel = f"test_of_{plan.name}::owned<<<1, {plan.problem.threads}>>>"
                owned += f"\n        {kernel}(owners, {place}, {part.stages});"
        checks.append(f"is_shared({block}_bytes, {size}, [](unsigned* owners) {{{owned}\n    }})")
    apart = filled("selftest", "apart", TIMES=" + ".join(checks), BLOCK=block)
    return _program(header, "".join(tests) + apart, ["(profile ? 0 : apart())", *map(_run_of, plans)])


def _program(header: str, tests: str, calls: Sequence[str]) -> str:
    start = filled("selftest", "start", HEADER=header.replace("#pragma once\n", ""))
    return start + tests + filled("selftest", "end", TESTS=" + ".join(calls))


def _run_of(plan: Plan) -> str:
    return f"test_of_{plan.name}::{plan.name}_selftest(profile)"


def tile_test(plan: Plan) -> str:
    """What tests one tile, in a namespace of its own; as for `program`."""
    if plan.bytes > MAX_SHARED_BYTES:
        raise LayoutError(f"a block has at most {MAX_SHARED_BYTES} bytes of shared memory, not {plan.bytes}")
    for access in plan.accesses:
        if access.lanes.operation.width_bytes not in _REGISTERS or plan.device.lanes != 32:
            raise LayoutError(f"the self-test runs on NVIDIA GPUs; {plan.device.name} is none")
    kernels = [_kernels(plan, k, access) for k, access in enumerate(plan.accesses)]
    called = helpers("\n".join(kernels), f"{plan.name}_test", "static", "long long")
    return filled(
        "selftest",
        "tile",
        KERNELS="\n".join([*called, *kernels]),
        RUNS="\n".join(_run(plan, k, access) for k, access in enumerate(plan.accesses)),
        COORDINATES=_coordinates(plan),
        THREADS=plan.problem.threads,
        ELEMENTS=plan.problem.tile.elements,
        SIZE=plan.element_bytes,
        REPEATS=REPEATS,
        NAME=plan.name,
    )


def _coordinates(plan: Plan) -> str:
    """Arguments of the offset function for element `e` in row-major order."""
    shape = plan.problem.tile.shape
    return ", ".join(f"e / {math.prod(shape[d + 1 :])} % {extent}" for d, extent in enumerate(shape))


def row_major_element(plan: Plan, access: AccessPlan) -> str:
    """The first element that a lane touches, row-major, from the problem's own expressions."""
    node: Node = Const(0)
    for text, extent in zip(access.access.index, plan.problem.tile.shape, strict=True):
        index = access.named(over_tid(str(text), access.access, plan.device.lanes))
        node = Op("+", (Op("*", (node, Const(extent))), index))
    renamed = substituted(node, {v: Var(parameter(v)) for v in access.ranges})
    ranges = {parameter(v): r for v, r in access.ranges.items()}
    return to_c(renamed, ranges, called=f"{plan.name}_test")


def _position(access: AccessPlan) -> str:
    """The number of the iteration, the last loop variable fastest."""
    text = "0"
    for v, trips in access.access.loops.items():
        text = f"({text} * {trips} + {parameter(v)})"
    return text


def condition(access: AccessPlan) -> str:
    """Whether a thread takes part, in C++."""
    return f"{access.name}_active({arguments(access)})" if access.active is not None else "true"


def stepped(access: AccessPlan) -> tuple[str, list[str]]:
    """The address in an iteration, and what a thread computes before its loops."""
    if not access.form.has_step:
        return f"smem + {access.name}_bytes({arguments(access)})", []
    base = f"const uint32_t base = {access.name}_base(tid); (void)base;"
    return f"smem + {access.name}_step(base, {arguments(access, access.access.loops)})", [base]


def access_instruction(access: AccessPlan, address: str) -> str:
    """The access as one PTX instruction on registers v[0..3]; `cell` is its source in global memory."""
    operation = access.lanes.operation
    does, width, at = operation.does, operation.width_bytes, f'"r"({address})'
    count = operation.matrices or max(1, width // 4)
    words = [f"v[{k}]" for k in range(count)]
    results, values = [f'"=r"({word})' for word in words], [f'"r"({word})' for word in words]
    if operation.matrices:
        return cuda.matrix_instruction(operation, address, words)
    if does.copies:
        return cuda.async_instruction(operation, address, "cell")
    if does.adds and not does.returns:
        return cuda.inline(f"red.shared.add.u{8 * width} [%0], 1;", [], at)
    if does.adds and width == 8:
        wide = f'"l"((unsigned long long){words[0]})'
        added = cuda.inline("atom.shared.add.u64 %0, [%1], %2;", ['"=l"(old)'], at, wide)
        return f"{{ unsigned long long old; {added} v[0] = (uint32_t)old; }}"
    if does.adds:
        return cuda.inline("atom.shared.add.u32 %0, [%1], %2;", results, at, *values)
    first = 0 if does.returns else 1
    held = operands(first, count)
    held = held if count == 1 else f"{{{held}}}"
    if does.returns:
        loaded = f"ld.volatile.shared.{_REGISTERS[width]} {held}, [%{count}];"
        if width == 2:
            loaded = "{ .reg .u16 h; ld.volatile.shared.u16 h, [%1]; cvt.u32.u16 %0, h; }"
        return cuda.inline(loaded, results, at)
    stored = f"st.volatile.shared.{_REGISTERS[width]} [%0], {held};"
    if width == 2:
        stored = "{ .reg .u16 h; cvt.u16.u32 h, %1; st.volatile.shared.u16 [%0], h; }"
    return cuda.inline(stored, [], at, *values)


def _kernels(plan: Plan, index: int, access: AccessPlan) -> str:
    operation = access.lanes.operation
    words = operation.matrices or max(1, operation.width_bytes // 4)
    address, base = stepped(access)
    instruction, guard = access_instruction(access, address), condition(access)
    # Matrix instructions are executed by whole warps; each lane's registers come from its cell.
    load_cell = f"for (int word = 0; word < {words}; ++word) v[word] = cell[word];"
    store_cell = f"for (int word = 0; word < {words}; ++word) cell[word] = v[word];"
    values = [
        f"uint32_t* cell = cells + 4 * ({plan.problem.threads} * (size_t){_position(access)} + tid);",
        f"if ({guard}) {{ {load_cell} {instruction} {store_cell} }}",
    ]
    # What is loaded must be used, or the assembler leaves the load out.
    use = " sum ^= v[0] ^ v[1] ^ v[2] ^ v[3];" if operation.does.returns else ""
    alone = [f"if ({guard}) {{ {instruction}{use} }}"]
    copies = operation.does.copies
    # Neighbours copy from neighbouring places: scattered sources arrive in more passes.
    cell = [f"const uint32_t* cell = cells + {operation.width_bytes // 4} * tid;"] if copies else []
    return filled(
        "selftest",
        "access",
        NAME=plan.name,
        INDEX=index,
        PARAMETERS=parameters(access),
        ELEMENT=row_major_element(plan, access),
        BASE=lines(base, 4),
        VALUES=lines(loop_nest(access, values, "    ", "#pragma unroll 1")),
        ALONE=lines(loop_nest(access, alone, "        ", "#pragma unroll")),
        CELL=lines(cell, 4),
        WAIT=lines([WAIT] if copies else [], 4),
        WAIT_INSIDE=lines([WAIT] if copies else [], 8),
    ).removesuffix("\n")


def _run(plan: Plan, index: int, access: AccessPlan) -> str:
    """Host code: what goes in, and what must come out."""
    operation = access.lanes.operation
    name, report, iterations = plan.name, access.report, math.prod(access.access.loops.values())
    element = f"{name}_element_{index}({arguments(access)})"
    visit = [f"if ({condition(access)}) visit({_position(access)}, tid, {element});"]
    loops = loop_nest(
        access,
        ["for (int tid = 0; tid < @THREADS@; ++tid) {", *(f"    {v}" for v in visit), "}"],
        "        ",
        "",
    )
    loops = [line for line in loops if line.strip()]
    does = operation.does
    mode = "ADD" if does.adds else "LOAD" if does.returns else "STORE"
    if operation.matrices:
        mode = "LDMATRIX" if does.returns else "STMATRIX"
    shown = "".join(c if c.isalnum() or c in " _-.+/" else "_" for c in access.access.name)
    return "\n".join(
        [
            f'    wrong += {name}_test(Access{{"{shown}", "{access.access.op}", {mode}, '
            f"{operation.width_bytes}, {operation.matrices}, {int(operation.transposed)}, "
            f"{int(does.adds and not does.returns)}, {iterations}, {report.wavefronts}, "
            f"{report.bank_conflicts}}}, {index},",
            f"        {name}_values_{index}, {name}_access_{index}, profile, [](auto visit) {{",
            *loops,
            "    });",
        ]
    )
