"""Programs and tables that the tests of emitted code share."""

import functools
import shutil
import subprocess
import sys
import types
from unittest import mock

import numpy as np
from conftest import PROBLEMS, answer_of
from msgspec.structs import replace
from written import problem_of

from layoutopt import load, solve
from layoutopt.accesses.lower import assigned, chosen_widths, with_loops, with_widths
from layoutopt.accesses.trace import trace
from layoutopt.codegen.block import code_of
from layoutopt.codegen.languages import plan
from layoutopt.hardware.devices import device
from layoutopt.study.block import placed

GXX = shutil.which("g++") or shutil.which("c++")
GCC = shutil.which("gcc") or shutil.which("cc")

ANY = "any"
# Without a known optimum a solve ends at its time limit.
SOLVED = [path for path in PROBLEMS if load(path).known_optimum is not None]
# Only C and its kin can write elements that share a byte, and tables.
FORMULAS = [path for path in SOLVED if load(path).tile.packed == 1 and "libceed_interp2d" not in path.stem]


# Loops named as what is called, as macros and types, and as others are renamed; an access named as a constant.
NAMED = (
    problem_of(
        """4x32 f32, 32 threads
    a: load 4 [p_a_base, lane]; p_a_base<4
    size: load 4 [int + 2*int_, lane]; int<2, int_<2
    macros: load 4 [INT_MAX + 2*CHAR_BIT, lane]; INT_MAX<2, CHAR_BIT<2
    types: load 4 [generic + 2*image2d_t, lane + 8*float4]; generic<2, image2d_t<2, float4<4; where lane < 8
    lookup: load 4 [p_lookup, lane]; p_lookup<4""",
        name="p",
    ),
    device("sm_90"),
    "x0*36 + x1 + [0, 2, 1, 3][x0]",
)


@functools.cache
def solved(path):
    """A catalogue problem, its device and an answer; the same for every test of a run."""
    problem = load(path)
    answer = answer_of(path)
    # What code is emitted for: widths and lanes as chosen, and loops over values known only at run time.
    problem = with_loops(with_widths(assigned(problem, answer), chosen_widths(problem, answer)))
    return problem, device(problem.target), answer


@functools.cache
def tabled():
    """A tile that is allowed nothing but row-major and a table, and needs the table."""
    problem = problem_of("""12x24 f32, 64 threads; families none table
        rows: store 4 [i, tid]; i<12; where tid < 24
        columns: load 4 [tid % 12, tid // 12 + 5*i]; i<5; where tid < 60 and tid // 12 + 5*i < 24
        jumps: load 4 [(3*tid + i) % 12, (tid * tid // 3 + 5*i) % 24]; i<3""")
    answer = solve(problem)
    assert (answer.family, answer.excess, answer.bytes) == ("table", 0, 1152)
    assert answer.layout.lookup  # no formula that it follows
    return problem, device(problem.target), answer


PLANS = {}


def planned(problem, gpu, answer):
    """The plan, made once a run: it is by far the longest step of an emission."""
    key = id(problem), id(answer)
    if key not in PLANS:
        PLANS[key] = problem, answer, plan(problem, gpu, answer)  # held, so that the ids stay theirs
    return PLANS[key][-1]


def expected(problem, gpu, answer):
    """Every offset, then every access's address by iteration and thread, in bytes.

    None where the predicate is false; ANY for lanes whose address a matrix instruction does not read.
    """
    table = planned(problem, gpu, answer).table
    values = list(map(int, table.ravel()))
    for lanes in trace(problem, gpu).accesses:
        shape = (-1, -(-problem.threads // gpu.lanes) * gpu.lanes)
        offsets = table.ravel()[lanes.element].reshape(shape)[:, : problem.threads]
        active = lanes.active.reshape(shape)[:, : problem.threads]
        unread = ANY if lanes.operation.matrices else None
        values += [int(v) if a else unread for v, a in zip(offsets.ravel(), active.ravel(), strict=True)]
    return values


def calls(problem, gpu, answer):
    """For each access: its function's name, its predicate's name or None, and its trip counts."""
    return [
        (a.name, f"{a.name}_active" if a.active is not None else None, list(a.access.loops.values()))
        for a in planned(problem, gpu, answer).accesses
    ]


def visits(problem, gpu, answer, put, integer="uint32_t"):
    """C statements that hand every offset and every address to the macro `put`; inactive lanes give ~0."""
    shape = problem.tile.shape
    nest = "".join(f"for ({integer} x{d} = 0; x{d} < {n}; ++x{d}) " for d, n in enumerate(shape))
    coordinates = ", ".join(f"x{d}" for d in range(len(shape)))
    lines = [f"{nest}{put}({planned(problem, gpu, answer).name}_offset_bytes({coordinates}));"]
    for name, active, trips in calls(problem, gpu, answer):
        nest = "".join(f"for (int v{k} = 0; v{k} < {n}; ++v{k}) " for k, n in enumerate(trips))
        values = ", ".join(["t", *(f"v{k}" for k in range(len(trips)))])
        call = f"{name}_bytes({values})"
        if active is not None:
            call = f"({active}({values}) ? {call} : 0xffffffffu)"
        lines.append(f"{nest}for (int t = 0; t < {problem.threads}; ++t) {put}({call});")
    return lines


def same(found, wanted):
    """Compare with `expected`; an inactive lane must be said to be inactive."""
    assert len(found) == len(wanted)
    pairs = [(f, 0xFFFFFFFF if w is None else w) for f, w in zip(found, wanted, strict=True) if w != ANY]
    assert [f for f, _ in pairs] == [w for _, w in pairs]


def emit(language, problem, gpu, answer, name=None):
    """Code in a language."""
    return code_of(language, replace(placed(problem, gpu, answer), name=name or problem.name))


def run(command, language, cases, tmp_path):
    """Compile the code of all `cases` (problem, device, answer) into one program, and compare what it prints."""
    headers, functions = [], []
    for k, case in enumerate(cases):
        headers.append(emit(language, *case).replace("#pragma once", ""))
        functions += [f"static void visit_{k}(void) {{", *visits(*case, "put"), "}"]
    source = tmp_path / (
        "check.c" if language == "c" else "check.cu" if "nvcc" in command[0] else "check.cpp"
    )
    source.write_text(
        "\n".join(["#include <stdio.h>", *headers])
        + "\nstatic void put(uint32_t v) { fwrite(&v, 4, 1, stdout); }\n"
        + "\n".join(functions)
        + f"\nint main(void) {{ {' '.join(f'visit_{k}();' for k in range(len(cases)))} return 0; }}\n"
    )
    subprocess.run([*command, "-o", str(tmp_path / "check"), str(source)], check=True, cwd=tmp_path)
    out = subprocess.run([tmp_path / "check"], check=True, capture_output=True).stdout
    values = np.frombuffer(out, "<u4").tolist()
    for case in cases:
        wanted = expected(*case)
        same(values[: len(wanted)], wanted)
        del values[: len(wanted)]
    assert not values


def built(folder, text, *flags, compiler=None):
    """What the program prints that this text is compiled to, without a warning; nothing with `-fsyntax-only`."""
    source = folder / ("check.c" if compiler == GCC else "check.cpp")
    source.write_text(text.replace("#pragma once", ""))
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler or GXX, *warnings, *flags, source, "-o", "check"], cwd=folder, check=True)
    if "-fsyntax-only" in flags:
        return ""
    return subprocess.run([folder / "check"], check=True, capture_output=True, text=True).stdout


def run_python(problem, gpu, answer, numba=None):
    """Compare what the functions for Numba, or for a module in its place, compute; without one, as plain Python."""
    space, size = {}, problem.tile.element_bytes
    if numba is None:
        numba = types.ModuleType("numba")
        numba.cuda = types.SimpleNamespace(jit=lambda **_: lambda f: f)
    with mock.patch.dict(sys.modules, numba=numba):
        exec(emit("numba", problem, gpu, answer), space)
    name = planned(problem, gpu, answer).name

    def values(function, grids):
        """Of all arguments at once; one by one where the function holds a condition."""
        try:
            found = space[function](*grids)
        except ValueError:
            found = [space[function](*map(int, x)) for x in zip(*(g.ravel() for g in grids), strict=True)]
        return np.broadcast_to(np.reshape(found, -1 if np.size(found) > 1 else 1), grids[0].size)

    found = list(values(f"{name}_offset", np.indices(problem.tile.shape)) * size)
    for function, active, trips in calls(problem, gpu, answer):
        *iterations, tid = np.indices((*trips, problem.threads))
        address = values(function, [tid, *iterations]) * size
        on = values(active, [tid, *iterations]) if active is not None else True
        found += list(np.where(on, address, 0xFFFFFFFF))
    same(list(map(int, found)), expected(problem, gpu, answer))
