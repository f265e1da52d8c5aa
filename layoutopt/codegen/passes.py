"""A CUDA program that times whole passes: the rows of a comparison, one layout after the other.

One pass of a block executes all accesses in the order of the problem, each by its emitted address and in all
of its iterations, with a barrier after each. A layout has one kernel, in two modes:

    once    every address is computed in every pass, as a block does that comes once
    kept    what does not change from pass to pass may be kept, as in a main loop

each by one block, and by as many blocks as fit on every multiprocessor, together: then a multiprocessor's
cycles for one of the passes that its blocks make. A copy fills the tile from its place in a row-major matrix
of tiles, another one in every pass, which a few blocks share, as those of a product do: a copy from one place
that stays in the cache shows what an access takes, and many times what it takes of a fill. Called with
`profile`, the program runs one pass of one block of each layout, for a profiler to count.

`run_passes` of `layoutopt.hardware.machine` reads what it prints: a line for each layout.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from layoutopt.accesses.lower import with_widths
from layoutopt.codegen import cuda
from layoutopt.codegen.c_family import guarded_loops
from layoutopt.codegen.languages import run_plan
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.codegen.selftest import WAIT, access_instruction, row_major_element, stepped
from layoutopt.codegen.templates import filled, lines
from layoutopt.errors import LayoutoptError
from layoutopt.ground.log import LOG, Progress
from layoutopt.hardware import machine
from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS, device
from layoutopt.hardware.machine import Gpu, Times
from layoutopt.problems.same_layout import groups
from layoutopt.problems.types import Block, Problem
from layoutopt.study.comparison import Comparison, Row

REPEATS: Final = 64
LAUNCHES: Final = 5
# The matrix that copies read, and at what each of its tiles begins.
TILES_BYTES: Final = 64 << 20
ALIGNMENT: Final = 128


def program(plans: Sequence[Plan]) -> str:
    """The text of the program; `nvcc -arch=native` compiles it.

    Args:
        plans: the layouts, all of one tile with the same threads; their names differ.
    """
    headers = [cuda.emit(plan).replace("#pragma once\n", "") for plan in plans]
    kernels = [_kernel(plan) for plan in plans]
    profiled = [f"        profile({plan.name}_pass<0>, {plan.bytes});" for plan in plans]
    runs = [
        f"        time({k}, {plan.name}_pass<0>, {plan.name}_pass<1>, {plan.bytes});"
        for k, plan in enumerate(plans)
    ]
    return filled(
        "passes",
        "program",
        HEADERS="\n".join(headers),
        KERNELS="\n".join(kernels),
        RUNS="\n".join(runs),
        PROFILED="\n".join(profiled),
        THREADS=plans[0].problem.threads,
        REPEATS=REPEATS,
        LAUNCHES=LAUNCHES,
        TILES_BYTES=TILES_BYTES,
    )


def _kernel(plan: Plan) -> str:
    """Both modes.

    In the first the thread and the tile's start pass through an XOR with a zero that the compiler does not
    know, so that no address outlives a pass: it takes an empty `asm` for nothing, and hoists or computes anew
    as it likes, layout by layout.
    """
    tile_bytes = -(-plan.problem.tile.bytes // ALIGNMENT) * ALIGNMENT
    return filled(
        "passes",
        "kernel",
        NAME=plan.name,
        THREADS=plan.problem.threads,
        ACCESSES="".join(_access(plan, access) for access in plan.accesses),
        TILES=TILES_BYTES // tile_bytes,
        TILE_BYTES=tile_bytes,
    ).removesuffix("\n")


def _access(plan: Plan, access: AccessPlan) -> str:
    """All iterations of one access, then the barrier."""
    operation = access.lanes.operation
    address, base = stepped(access)
    does = operation.does
    # What is loaded must be used, or the assembler leaves the load out; into registers of its own, or a load
    # under a predicate waits for the one before.
    words = operation.matrices or max(1, operation.width_bytes // 4)
    own = "uint32_t v[4]; " if does.returns and not does.adds else ""
    use = f" sum ^= {' ^ '.join(f'v[{k}]' for k in range(words))};" if does.returns else ""
    place = f"({row_major_element(plan, access)}) * {plan.element_bytes} & -{operation.width_bytes}"
    cell = f"const void* cell = source + ({place}); " if does.copies else ""
    statement = f"{{ {own}{cell}{access_instruction(access, address)}{use} }}"
    return lines(
        [
            "{",
            *(f"    {line}" for line in base),
            *guarded_loops(access, statement),
            *([f"    {WAIT}"] if does.copies else []),
            "    __syncthreads();",
            "}",
        ],
        8,
    )


# Rows of a comparison -----------------------------------------------------------------------------

# What gets one layout, by its number, and the formula.
Layout = tuple[int, str]
# Its code, its times, and the profiler's counters, where there are any.
Ran = tuple[Plan, Times, dict[str, int] | None]


def with_measured(
    problem: Problem | Block, comparison: Comparison, gpu: Gpu, told: Progress = LOG.warning
) -> Comparison:
    """The comparison with what was measured; rows that a program cannot run keep nothing.

    Of several tiles, each is run by itself, and a row has the sum of its tiles.

    Args:
        problem: what was compared.
        comparison: its rows.
        gpu: of this machine.
        told: called with a line for each row that is not run.

    Raises:
        MachineError: a tool is missing or fails.
    """
    plans = plans_of(problem, comparison, gpu, told)
    if not plans:
        return comparison
    times, counted = machine.run_passes(program(list(plans.values())), len(plans), gpu)
    missing = counted if isinstance(counted, str) else None
    read = [None] * len(plans) if isinstance(counted, str) else counted
    ran = dict(zip(plans, zip(plans.values(), times, read, strict=True), strict=True))
    rows = tuple(_measured(row, ran) for row in comparison.rows)
    return msgspec.structs.replace(comparison, rows=rows, measured_on=gpu.name, not_counted=missing)


def plans_of(
    problem: Problem | Block, comparison: Comparison, gpu: Gpu, told: Progress = LOG.warning
) -> dict[Layout, Plan]:
    """The code of every row that can be used, each layout once; as for `with_measured`."""
    here = device(gpu.target)
    asked = (with_widths(one, comparison.widths) for _, one in groups(problem))
    own = [msgspec.structs.replace(one, target=here.name) for one in asked]
    plans: dict[Layout, Plan] = {}
    for row in comparison.rows:
        for number, offset in _layouts(row):
            if (number, offset) not in plans:
                named = msgspec.structs.replace(own[number], name=f"row {len(plans)}")
                try:
                    plans[number, offset] = run_plan(named, here, offset)
                except LayoutoptError as error:
                    told(f"{row.title} is not run: {error}")
    return plans


def _layouts(row: Row) -> list[Layout]:
    """The layouts of a row that can be used: one for each tile, or for tiles that share it."""
    if row.wavefronts is None:
        return []
    if row.tiles:
        return [(k, tile.offset) for k, tile in enumerate(row.tiles)]
    return [] if row.offset is None else [(0, row.offset)]


def _measured(row: Row, ran: dict[Layout, Ran]) -> Row:
    """The row with the cycles of its layouts, and the profiler's counters beside what is predicted."""
    each = [ran[layout] for layout in _layouts(row) if layout in ran]
    if not each or len(each) < len(_layouts(row)):
        return row
    found: dict[str, Any] = {"measured": sum(took.once for _, took, _ in each)}
    if len(each) == 1:
        found["measured_together"] = each[0][1].once_together
    total, as_predicted = Counter[str](), True
    for plan, _, read in each:
        own = Counter[str]()
        for access in plan.accesses:
            own.update(access.counters(plan.device))
        if not own or read is None:
            break
        seen = machine.compared(own, read)
        total.update(seen)
        as_predicted &= seen == own
    else:
        found |= {"counted_wavefronts": total[WAVEFRONTS], "counted_bank_conflicts": total[BANK_CONFLICTS]}
        found["counted_as_predicted"] = as_predicted
    return msgspec.structs.replace(row, **found)
