"""Emitted code equals the table at every coordinate, and every access at every thread and iteration."""

import itertools
import re
import shutil
import subprocess

import pytest
from conftest import PROBLEMS, problem_id

from layoutopt.accesses import trace
from layoutopt.address import Digit, Layout, Target
from layoutopt.devices import device
from layoutopt.emit.cuda import _comment, cuda, identifier
from layoutopt.expressions import evaluate, parse, to_text
from layoutopt.formula import offset_expression
from layoutopt.model import Bound, Problem, Proof, Result, Status
from layoutopt.problem_file import from_data, load
from layoutopt.synthesize import measure, solve

# Without a known optimum a solve ends at its time limit.
SOLVED = [path for path in PROBLEMS if load(path).known_optimum is not None]
GXX = shutil.which("g++") or shutil.which("c++")


def checker(problem, result, header):
    """A program that prints every offset, then every access's address for every thread and iteration."""
    name = identifier(problem.name)
    functions = re.findall(rf"constexpr uint32_t ({name}_\w+?_bytes_*)\(int", header)
    assert len(functions) == len(problem.accesses)
    loops = "".join(
        f"for (uint32_t x{d} = 0; x{d} < {n}; ++x{d}) " for d, n in enumerate(result.layout.shape)
    )
    coordinates = ", ".join(f"x{d}" for d in range(len(result.layout.shape)))
    lines = [f'static_assert({name}_bytes == {result.bytes}, "size");', "int main() {"]
    lines.append(f'  {loops}std::printf("%u\\n", {name}_offset_bytes({coordinates}));')
    for access, function in zip(problem.accesses, functions, strict=True):
        names = [f"v{k}" for k in range(len(access.loops))]
        nest = "".join(
            f"for (int {v} = 0; {v} < {n}; ++{v}) " for v, n in zip(names, access.loops.values(), strict=True)
        )
        nest += f"for (int tid = 0; tid < {problem.threads}; ++tid) "
        lines.append(f'  {nest}std::printf("%u\\n", {function}({", ".join(["tid", *names])}));')
    lines.append("  return 0;\n}")
    return '#include <cstdio>\n#include "tile.cuh"\n' + "\n".join(lines) + "\n"


def expected(problem, result, gpu):
    table = result.layout.table()
    values = list(table.ravel())
    for lanes in trace(problem, gpu).accesses:
        warps = -(-problem.threads // gpu.lanes)
        shape = (-1, warps * gpu.lanes)
        offsets = table.ravel()[lanes.element].reshape(shape)[:, : problem.threads]
        active = lanes.active.reshape(shape)[:, : problem.threads]
        values += [int(v) if a else None for v, a in zip(offsets.ravel(), active.ravel(), strict=True)]
    return values


def run(command, problem, result, tmp_path):
    gpu = device(problem.target)
    header = cuda(problem, result, gpu)
    (tmp_path / "tile.cuh").write_text(header)
    source = tmp_path / ("check.cu" if "nvcc" in command[0] else "check.cpp")
    source.write_text(checker(problem, result, header))
    subprocess.run([*command, "-o", str(tmp_path / "check"), str(source)], check=True, cwd=tmp_path)
    out = subprocess.run([tmp_path / "check"], check=True, capture_output=True, text=True).stdout.split()
    wanted = expected(problem, result, gpu)
    assert len(out) == len(wanted)
    # Inactive lanes (None) may compute anything: nobody uses it.
    assert [int(o) for o, w in zip(out, wanted, strict=True) if w is not None] == [
        w for w in wanted if w is not None
    ]


@pytest.mark.skipif(GXX is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("path", SOLVED, ids=problem_id)
def test_host_compiled_code_equals_the_table(path, tmp_path):
    problem = load(path)
    result = solve(problem, time_limit=1)
    run([GXX, "-std=c++14", "-Wall", "-Wextra", "-Werror", "-O1"], problem, result, tmp_path)


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["transpose_32x32_f32", "flash_attention_tile_k_d112", "gemm_a_128x64_f16"])
def test_nvcc_compiles_the_code_for_host_and_device(name, tmp_path):
    (path,) = [p for p in PROBLEMS if p.stem == name]
    problem = load(path)
    result = solve(problem)
    run(["nvcc", "-std=c++17", "-arch=sm_90", "-Werror", "all-warnings"], problem, result, tmp_path)


AWKWARD = {
    "name": "3-D tile/with an awkward \\ name\\",
    "tile": {"shape": [3, 10, 7], "element": {"bytes": 12}},
    "threads": 70,
    "accesses": [
        {"name": "int", "op": "load", "bytes": 4, "index": ["for_", "tid // 7", "6 - tid % 7"], "for": {"for_": 3}},
        {"name": "bytes", "op": "load", "bytes": 4, "index": ["abs // 2 - 1 if abs > 1 else 0", "max(tid % 5 - 1, 0)", "min(tid, 6)"], "for": {"abs": 5}},
        {"name": "bytes ", "op": "store", "bytes": 4, "index": ["(tid - 9) // 3 % 3", "(tid - 40) % 10", "(~tid & 3) ^ 1"], "where": "not (tid < 3 or tid == 5)"},
        {"name": "offset", "op": "load", "bytes": 4, "index": ["tid // 40", "-tid // 8 + 9", "(tid * tid - 7) % 7"]},
        {"name": "late", "op": "load", "bytes": 4, "index": ["m - tid", "tid", "0"], "for": {"m": 3}, "where": "0 <= tid <= m"},
    ],
}  # fmt: skip


@pytest.mark.skipif(GXX is None, reason="no C++ compiler on this machine")
def test_awkward_expressions_and_names(tmp_path):
    problem = from_data(AWKWARD)
    run([GXX, "-std=c++14", "-Wall", "-Wextra", "-Werror"], problem, solve(problem, time_limit=20), tmp_path)


REMAINDERS = {
    "name": "remainders, precedence and size",
    "tile": {"shape": [8, 64], "element": "f32"},
    "threads": 64,
    "accesses": [
        {"name": "three", "op": "load", "bytes": 4, "index": ["(3*lane) % 4", "tid"]},
        {"name": "modulus", "op": "load", "bytes": 4, "index": ["tid % 2", "(2*tid) % 64"]},
        {"name": "square", "op": "load", "bytes": 4, "index": ["tid*(3*tid % 8) % 8", "(tid*2654435761) % 64"]},
        {"name": "compare", "op": "load", "bytes": 4, "index": ["((tid & 3) < 2) + (tid ^ 1 if (lane ^ 3) < 16 else 7) % 4", "(tid | 1) if tid % 4 == 3 else tid"]},
        {"name": "wide", "op": "load", "bytes": 4, "index": ["(tid << 33) // 4294967296 % 8", "(tid*tid*1000003 - 5) % 64"]},
        {"name": "loop", "op": "load", "bytes": 4, "index": ["(5*i + 3*tid) % 8", "(7*(i ^ tid % 3) + 6*tid) % 64"], "for": {"i": 6}},
    ],
}  # fmt: skip


@pytest.mark.skipif(GXX is None, reason="no C++ compiler on this machine")
def test_remainders_precedence_and_wide_steps(tmp_path):
    problem = from_data(REMAINDERS)
    run([GXX, "-std=c++14", "-Wall", "-Wextra", "-Werror"], problem, solve(problem, time_limit=5), tmp_path)


def test_a_comment_holds_nothing_that_a_compiler_or_reader_could_miss():
    text = _comment("a\\\n??/ \u202eb\u200b c\\")
    assert text == "a/ ? b c/"


def layouts():
    """Layouts of every shape of formula: owned digits, carries, gaps, scattered masks, split targets."""
    yield Layout((8, 8), 4, (Digit(0, 1, 8, 8), Digit(1, 1, 8, 1)), (Target(0, 8), Target(1, 16 | 32)))
    yield Layout((8, 8), 4, (Digit(0, 1, 8, 9), Digit(1, 1, 8, 1)), (Target(0, 8), Target(2, 16 | 64)))
    yield Layout((7, 6), 2, (Digit(1, 1, 6, 16), Digit(0, 1, 7, 2)), (Target(1, 32), Target(2, 64)))
    yield Layout(
        (4, 12), 4, (Digit(1, 4, 3, 16), Digit(0, 1, 4, 4), Digit(1, 1, 4, 1)), (Target(2, 16), Target(3, 32))
    )
    yield Layout((33,), 4, (Digit(0, 1, 33, 1),), (Target(0, 32),))
    yield Layout((3, 4, 5), 8, (Digit(2, 1, 5, 12), Digit(0, 1, 3, 4), Digit(1, 1, 4, 1)))
    yield Layout(
        (16, 16),
        4,
        (Digit(0, 1, 16, 16), Digit(1, 1, 16, 1)),
        (Target(0, 0b10100000), Target(1, 0b01000000), Target(3, 0b10010000)),
    )
    yield Layout((5, 7), 4, (Digit(0, 1, 5, 7), Digit(1, 1, 7, 1)), (), 3)
    yield Layout(
        (2, 5, 4), 4, (Digit(0, 1, 2, 20), Digit(1, 1, 5, 4), Digit(2, 1, 4, 1)), (Target(0, 8 | 16),), 1
    )
    yield Layout((6, 8), 2, (Digit(1, 1, 8, 6), Digit(0, 1, 6, 1)), (Target(1, 4),), 5)
    yield Layout((1, 1), 4, (Digit(0, 1, 1, 1), Digit(1, 1, 1, 1)))
    yield Layout((6, 64), 4, (Digit(0, 1, 6, 96), Digit(1, 1, 64, 1)), (Target(0, 96), Target(4, 128)))


@pytest.mark.parametrize("layout", list(layouts()))
def test_formula_equals_the_layout(layout):
    import numpy as np

    text = to_text(offset_expression(layout))
    grids = {f"x{d}": g for d, g in enumerate(np.indices(layout.shape))}
    values = evaluate(parse(text, frozenset(grids)), grids)
    assert (np.broadcast_to(values, layout.shape) * layout.element_bytes == layout.table()).all(), text


def test_golden_code(request):
    """From a literal layout, never from the solver, whose ties may move between versions."""
    problem: Problem = from_data(
        {
            "name": "golden", "tile": {"shape": [32, 64], "element": "f16"}, "threads": 128,
            "accesses": [
                {"name": "fill", "op": "cp.async", "bytes": 16, "index": ["tid // 8 + 16*i", "8*(tid % 8)"], "for": {"i": 2}},
                {"name": "read", "op": "ldmatrix.x4", "index": ["16*(warp % 2) + lane % 16", "8*(lane // 16) + 16*k"], "for": {"k": 4}},
            ],
        }
    )  # fmt: skip
    layout = Layout(
        (32, 64), 2, (Digit(0, 1, 32, 64), Digit(1, 1, 64, 1)), tuple(Target(b, 8 << b) for b in (3, 4, 5))
    )
    gpu = device("sm_90")
    scope = "every layout"
    result = Result(
        "golden", "sm_90", Status.OPTIMAL, Proof(Bound(0, scope), Bound(4096, scope)), "", layout, "xor",
        to_text(offset_expression(layout)), 4096, 4096, 128, 0, 0.0, measure(layout, trace(problem, gpu), gpu),
    )  # fmt: skip
    code = re.sub(r"layoutopt \d\S+", "layoutopt VERSION", cuda(problem, result, gpu))
    path = request.path.parent / "golden" / "gemm.cuh"
    assert code == path.read_text(), (
        "to refresh: write the new text to the golden file and read the difference"
    )


def test_identifiers():
    assert identifier("transpose 32x32") == "transpose_32x32"
    assert identifier("3-D") == "t3_D"
    assert identifier("Ω") == "tile"
    assert all(identifier(a + b).isidentifier() for a, b in itertools.product("a1-é ", "_ /.z"))
