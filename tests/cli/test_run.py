"""Programs that run on a GPU: what they print is read right, the H200 agreed with it, and no GPU is one clear line."""

import json
import re
import subprocess

import msgspec
import pytest
from command import COMMAND, layoutopt, refused, started
from conftest import ROOT
from written import data_of, problem_of, saved

from layoutopt import Layout, compare
from layoutopt.accesses.lower import stored, with_widths
from layoutopt.codegen import passes
from layoutopt.codegen.languages import run_plan
from layoutopt.codegen.passes import plans_of, with_measured
from layoutopt.engine.case import case_of
from layoutopt.expressions.grammar import parse
from layoutopt.files.file import load
from layoutopt.hardware import machine
from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS, counters, device
from layoutopt.report.comparison_text import text

RUNS = json.loads((ROOT / "tests/data/h200_runs.json").read_text())
SMALL = ROOT / "problems/basics/transpose_16x32_f32.json"
TRANSPOSE = ROOT / "tests/data/kernels/transpose_plain.cu"


# Replays of a few accesses count one wavefront more now and then: not all in one profiling run, nor the same ones
# from run to run. Those that did were profiled again.
MOST_REPLAYED = 3


def test_the_h200_counted_what_is_predicted():
    """Every access of every layout that was run: values right, counters as the engine predicts today."""
    accesses = replayed = 0
    for entry in RUNS["runs"]:
        assert entry["distinct"]
        problem = stored(with_widths(load(ROOT / "problems" / entry["problem"]), {}))
        reports = predicted_today(problem, entry)
        for access in entry["accesses"]:
            assert access["values"] == "right"
            operation, report = reports[access["name"]]
            predicted = counters(device("sm_90"), operation, report.wavefronts, report.bank_conflicts)
            measured = access["measured"]
            if "measured_again" in access:
                replayed += 1
                for profile in (measured, *access["measured_again"]):
                    assert {profile[k] - predicted[k] for k in profile} <= {0, 1}
            else:
                assert measured == {k: predicted[k] for k in measured}, (entry["problem"], access["name"])
            accesses += bool(measured)
    assert accesses > 700
    assert replayed <= MOST_REPLAYED


def predicted_today(problem, entry):
    case = case_of(problem, device("sm_90"))
    names = frozenset(f"x{d}" for d in range(len(problem.tile.shape)))
    table = "lookup" in entry["offset"]
    layout = msgspec.convert(entry["digits"], Layout) if table else parse(entry["offset"], names)
    reports = zip(case.accesses, case.measure(layout), strict=True)
    return {one.lanes.name: (one.lanes.operation, report) for one, report in reports}


OUTPUT = """t: every element has its own bytes: yes
access\tname\top\tvalues\twavefronts predicted\tbank conflicts predicted\tcycles
0\trows\tstore\tright\t16\t0\t36.4
1\tcolumns\tload\tWRONG\t16\t0\t44.6
"""
PRINTED = "pass\t0\t16\t32\t181.4\t640.0\t150.0\t600.5\npass\t1\t16\t40\t1.0\t2.0\t3.0\t4.0\nother\n"


def test_what_programs_and_the_profiler_print_is_read():
    assert machine.parse_values(OUTPUT) == (True, [(True, 36.4), (False, 44.6)])
    assert machine.parse_values(OUTPUT.replace("yes", "NO"))[0] is False
    first, second = machine.parse_times(PRINTED)
    assert (first.row, first.blocks, first.registers) == (0, 16, 32)
    assert (first.once, first.once_together, first.kept, first.kept_together) == (181.4, 640.0, 150.0, 600.5)
    assert (second.row, second.kept_together) == (1, 4.0)
    names = ",".join(f'"{m}"' for m in machine.METRICS)
    row = ",".join(f'"{k + 1000:,}"' for k in range(len(machine.METRICS)))
    text = f'==PROF== x\n"ID","Kernel Name",{names}\n"","",{names}\n"1","b",{row}\n"0","a",{row}\n'
    first, second = machine.parse_counters(text)
    assert first == second
    assert first[machine.METRICS[0].removesuffix(".sum")] == 1000
    read = dict.fromkeys(first, 0) | {WAVEFRONTS: 20, machine.ELSEWHERE: 4, BANK_CONFLICTS: 3}
    assert machine.compared({WAVEFRONTS: 16, BANK_CONFLICTS: 3}, read) == {WAVEFRONTS: 16, BANK_CONFLICTS: 3}


@pytest.mark.parametrize(
    ("right", "counted", "agrees"),
    [(True, {WAVEFRONTS: 4}, True), (True, {WAVEFRONTS: 5}, False), (False, None, False)],
)
def test_a_difference_is_a_difference(right, counted, agrees):
    assert machine.Run("a", "load", right, 1.0, {WAVEFRONTS: 4}, counted).agrees == agrees


NO_GPU = "no NVIDIA GPU on this machine (nvidia-smi finds none); emit --self-test writes the program"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", SMALL), NO_GPU),
        (("run", "transpose_16x32_f32"), NO_GPU),
        (("compare", SMALL, "--run"), "no NVIDIA GPU"),
        (("fix", TRANSPOSE, "--run"), "no NVIDIA GPU on this machine (none is not found)"),
        (("patch", TRANSPOSE, "--run", "-o", "o.ptx"), "no NVIDIA GPU on this machine (none is not found)"),
        # What is wrong with a problem is told before.
        (("run", "nope"), "no problem of the catalogue is called"),
        (("run", "broken.json"), "not JSON"),
    ],
)
def test_without_a_gpu_it_is_one_line(arguments, said, tmp_path):
    (tmp_path / "broken.json").write_text("{")
    hidden = (
        "import os; os.environ['PATH'] = ''; import layoutopt.hardware.machine as g; g.find_tool = lambda name: None; "
        f"import layoutopt.hardware.driver as d; d.LIBRARY = 'none'; {COMMAND[-1]}"
    )
    done = started(*arguments, code=hidden, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["broken.json"]


def test_tools_are_found_where_pip_puts_them(tmp_path, monkeypatch):
    """The newest CUDA among NVIDIA's packages for Python, behind what PATH has."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert machine.find_tool("layoutopt-tool") is None
    monkeypatch.syspath_prepend(tmp_path / "site")
    for folder in ("site/nvidia/cu13/bin", "site/nvidia/cu12/bin", "path"):
        tool = tmp_path / folder / "layoutopt-tool"
        tool.parent.mkdir(parents=True)
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
    assert machine.find_tool("layoutopt-tool") == str(tmp_path / "site/nvidia/cu13/bin/layoutopt-tool")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert machine.find_tool("layoutopt-tool") == str(tmp_path / "path/layoutopt-tool")


PAIR = data_of(
    """32 threads; name pair
    tile A: 8x32 f32; stages 2
    tile B: 8x8 f32
    tile C: 16x8 f16
    a: load 4 [i, lane]; i<8; tile A
    b: store 8 [lane // 4, 2*(lane % 4)]; tile B
    c: ldmatrix.x2 [lane % 16, 0]; tile C""",
    overlay=[["B"], ["C"]],
)


def test_the_self_test_of_a_block_tests_each_tile_and_where_they_lie(tmp_path):
    text = layoutopt("emit", saved(tmp_path, "pair.json", PAIR), "--self-test").stdout
    assert [f"pair_{tile}_selftest(profile)" in text for tile in "ABC"] == [True] * 3
    times = text.split("is_shared(pair_bytes")[1:]
    times = [set(re.findall(r"test_of_pair_(\w)::owned", time)) for time in times]
    assert times == [{"A", "B"}, {"A", "C"}]
    assert text.count("#include <vector>") == text.count("int main(") == 1
    amd = {**PAIR, "target": "gfx942", "tiles": PAIR["tiles"][:1], "accesses": PAIR["accesses"][:1]}
    path = saved(tmp_path, "amd.json", {**amd, "overlay": []})
    refused("tile 'A': the self-test runs on NVIDIA GPUs", "emit", path, "--self-test")


# The kernels; what runs on the host is the same text for all, and compiled with the block.
@pytest.mark.nvcc
@pytest.mark.parametrize(
    "name", ["pair", "transpose_16x32_f32", "gemm_a_128x64_f16", "gemm4bit_b_128x64_bf16"]
)
def test_self_tests_compile(name, tmp_path):
    problem = saved(tmp_path, "pair.json", PAIR) if name == "pair" else name
    (tmp_path / "t.cu").write_text(layoutopt("emit", problem, "--self-test").stdout)
    flags = ["-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", *["-cubin"] * (name != "pair")]
    subprocess.run(["nvcc", *flags, "-o", "t", "t.cu"], cwd=tmp_path, check=True)


@pytest.mark.gpu
@pytest.mark.nvcc
def test_run_on_this_machines_gpu(tmp_path):
    done = started("run", SMALL, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["agrees"]
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def transpose():
    problem = load(SMALL)
    return problem, compare(problem, time_limit=10)


def test_each_layout_has_its_kernel_with_every_access():
    problem = load(ROOT / "problems/basics/gemm_a_128x64_f16.json")
    named = [msgspec.structs.replace(problem, name=f"row {k}") for k in range(2)]
    offsets = ("x0*72 + x1", "x0*64 + (x1 ^ x0 % 8 * 8)")
    plans = [run_plan(one, device("sm_90"), offset) for one, offset in zip(named, offsets, strict=True)]
    text = passes.program(plans)
    assert text.count("__launch_bounds__(256)") == 2
    assert text.count('asm volatile("cp.async.wait_all') == 2
    assert "time(1, row_1_pass<0>, row_1_pass<1>, 16384);" in text
    assert "@" not in text


def test_rows_of_a_comparison_are_timed_in_one_program(monkeypatch, transpose):
    """Each formula once, and every row of it gets its cycles; there is no GPU here."""
    problem, comparison = transpose
    card = machine.Gpu("H200", "9.0", "1")
    offsets = {row.offset for row in comparison.rows if row.wavefronts is not None}
    plans = plans_of(problem, comparison, card)
    assert set(plans) == {(0, offset) for offset in offsets}
    assert passes.program(list(plans.values())).count("_pass<1>") == len(offsets)
    timed = [machine.Times(k, 4, 32, 100.0 + k, 2.0, 3.0, 4.0) for k in range(len(plans))]
    counted = [dict.fromkeys((*machine.HARDWARE, machine.ELSEWHERE), 0) for _ in plans]
    monkeypatch.setattr(machine, "run_passes", lambda text, rows, gpu: (timed, counted))
    measured = with_measured(problem, comparison, card)
    by_offset = dict(zip(plans, timed, strict=True))
    assert all(row.measured == by_offset[0, row.offset].once for row in measured.rows)
    assert all(row.counted_wavefronts == 0 and row.counted_as_predicted is False for row in measured.rows)
    lines = text(problem, measured, 160).splitlines()
    assert lines[4].split()[-3:] == ["measured", "counted", "offset"]
    assert max(map(len, lines)) <= 160
    fastest = next(row.title for row in measured.rows if (0, row.offset) == next(iter(plans)))
    assert any(line.endswith(f"on H200, without weights; the fastest is {fastest}") for line in lines)
    assert any("! other than predicted" in line for line in lines)


def test_a_row_of_several_tiles_is_the_sum_of_its_tiles(monkeypatch):
    problem = problem_of("""32 threads; name two
        tile A: 32x32 f32
        tile B: 8x32 f32
        columns: load 4 [lane, i]; i<32; tile A
        rows: load 4 [i, lane]; i<8; tile B""")
    comparison = compare(problem, time_limit=5)
    card = machine.Gpu("H200", "9.0", "1")
    plans = plans_of(problem, comparison, card)
    assert {number for number, _ in plans} == {0, 1}
    timed = [machine.Times(k, 4, 32, 100.0 + k, 2.0, 3.0, 4.0) for k in range(len(plans))]
    monkeypatch.setattr(machine, "run_passes", lambda text, rows, gpu: (timed, "no ncu"))
    took = dict(zip(plans, timed, strict=True))
    for row in with_measured(problem, comparison, card).rows:
        each = [took[k, tile.offset].once for k, tile in enumerate(getattr(row, "tiles", ()))]
        assert (row.measured, row.measured_together) == (sum(each) if each else None, None)


def test_counters_as_predicted_and_why_there_are_none(monkeypatch, transpose):
    problem, rows = transpose
    row = next(r for r in rows.rows if r.family == "none")
    comparison = msgspec.structs.replace(rows, rows=(row,))
    loads, stores = (a.wavefronts for a in reversed(row.accesses))
    conflicts = {a.op: a.bank_conflicts for a in row.accesses}
    name, lost = (n.removesuffix(".sum") for n in (machine.HARDWARE[0], machine.HARDWARE[4]))
    read = dict.fromkeys(machine.HARDWARE, 0) | {machine.ELSEWHERE: 1}
    read |= {name: loads + stores + 1, f"{name}_op_ld": loads, f"{name}_op_st": stores}
    read |= {lost: sum(conflicts.values())}
    read |= {f"{lost}_op_ld": conflicts["load"], f"{lost}_op_st": conflicts["store"]}
    took = [machine.Times(0, 4, 32, 100.0, 2.0, 3.0, 4.0)]
    card = machine.Gpu("H200", "9.0", "1")
    monkeypatch.setattr(machine, "run_passes", lambda text, rows, gpu: (took, [read]))
    (seen,) = with_measured(problem, comparison, card).rows
    assert (seen.counted_wavefronts, seen.counted_as_predicted) == (row.wavefronts, True)
    monkeypatch.setattr(machine, "run_passes", lambda text, rows, gpu: (took, "ncu is not on this machine"))
    measured = with_measured(problem, comparison, card)
    assert measured.rows[0].counted_wavefronts is None
    assert "were not counted there: ncu is not on this machine" in text(problem, measured)
