"""A CUDA program that times whole passes: several layouts of one tile, one after the other.

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

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from layoutopt.codegen import cuda
from layoutopt.codegen.c_family import guarded_loops
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.codegen.selftest import WAIT, access_instruction, row_major_element, stepped
from layoutopt.codegen.templates import filled, lines

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
