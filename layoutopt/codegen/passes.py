"""A CUDA program that times whole passes: several layouts of one tile, one after the other.

One pass of a block executes all accesses in the order of the problem, each by its emitted address and in all
of its iterations, with a barrier after each. A layout has one kernel, in two modes:

    once    every address is computed in every pass, as a block does that comes once
    kept    what does not change from pass to pass may be kept, as in a main loop

each by one block, and by as many blocks as fit on every multiprocessor, together: then a multiprocessor's
cycles for one of the passes that its blocks make. Called with `profile`, the
program runs one pass of one block of each layout, for a profiler to count.

`run_passes` of `layoutopt.hardware.machine` reads what it prints: a line for each layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from layoutopt.codegen import cuda
from layoutopt.codegen.c_family import guarded_loops
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.codegen.selftest import WAIT, access_instruction, stepped
from layoutopt.codegen.templates import filled, lines

REPEATS: Final = 64
LAUNCHES: Final = 5


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
    )


def _kernel(plan: Plan) -> str:
    """Both modes.

    In the first the thread and the tile's start pass through an XOR with a zero that the compiler does not
    know, so that no address outlives a pass: it takes an empty `asm` for nothing, and hoists or computes anew
    as it likes, layout by layout.
    """
    accesses = "".join(map(_access, plan.accesses))
    threads = plan.problem.threads
    return filled("passes", "kernel", NAME=plan.name, THREADS=threads, ACCESSES=accesses).removesuffix("\n")


def _access(access: AccessPlan) -> str:
    """All iterations of one access, then the barrier."""
    operation = access.lanes.operation
    address, base = stepped(access)
    does = operation.does
    # What is loaded must be used, or the assembler leaves the load out; into registers of its own, or a load
    # under a predicate waits for the one before.
    words = operation.matrices or max(1, operation.width_bytes // 4)
    own = "uint32_t v[4]; " if does.returns and not does.adds else ""
    use = f" sum ^= {' ^ '.join(f'v[{k}]' for k in range(words))};" if does.returns else ""
    statement = f"{{ {own}{access_instruction(access, address)}{use} }}"
    cell = f"const uint32_t* cell = cells + {operation.width_bytes // 4} * tid;"
    return lines(
        [
            "{",
            *(f"    {line}" for line in (*base, *([cell] if does.copies else []))),
            *guarded_loops(access, statement),
            *([f"    {WAIT}"] if does.copies else []),
            "    __syncthreads();",
            "}",
        ],
        8,
    )
