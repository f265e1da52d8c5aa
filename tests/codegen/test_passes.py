"""Programs that time whole passes of several layouts, and what they print."""

import msgspec
import pytest
from command import layoutopt
from conftest import ROOT
from written import access_from

from layoutopt.cli.timed_rows import plans_of, with_measured
from layoutopt.codegen.languages import run_plan
from layoutopt.codegen.passes import program
from layoutopt.files.file import from_data, load
from layoutopt.hardware import machine
from layoutopt.hardware.devices import device
from layoutopt.report.comparison_text import text
from layoutopt.study.compare import compare
from layoutopt.study.comparison import Comparison, Row

PRINTED = "pass\t0\t16\t32\t181.4\t640.0\t150.0\t600.5\npass\t1\t16\t40\t1.0\t2.0\t3.0\t4.0\nother\n"


TWO_TILES = {
    "name": "two", "threads": 32,
    "tiles": [
        {"name": "A", "shape": [32, 32], "element": "f32"},
        {"name": "B", "shape": [8, 32], "element": "f32"},
    ],
    "accesses": [
        access_from("columns: load 4 [lane, i]; i<32; tile A"),
        access_from("rows: load 4 [i, lane]; i<8; tile B"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def transpose():
    problem = load(ROOT / "problems/basics/transpose_16x32_f32.json")
    return problem, compare(problem, time_limit=10)


def test_what_is_printed_is_read():
    first, second = machine.parse_times(PRINTED)
    assert (first.row, first.blocks, first.registers) == (0, 16, 32)
    assert (first.once, first.once_together, first.kept, first.kept_together) == (181.4, 640.0, 150.0, 600.5)
    assert (second.row, second.kept_together) == (1, 4.0)


def test_each_layout_has_its_kernel_with_every_access():
    problem = load(ROOT / "problems/basics/gemm_a_128x64_f16.json")
    named = [msgspec.structs.replace(problem, name=f"row {k}") for k in range(2)]
    offsets = ("x0*72 + x1", "x0*64 + (x1 ^ x0 % 8 * 8)")
    plans = [run_plan(one, device("sm_90"), offset) for one, offset in zip(named, offsets, strict=True)]
    text = program(plans)
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
    assert program(list(plans.values())).count("_pass<1>") == len(offsets)
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
    problem = from_data(TWO_TILES)
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
    read |= {
        lost: sum(conflicts.values()),
        f"{lost}_op_ld": conflicts["load"],
        f"{lost}_op_st": conflicts["store"],
    }
    took = [machine.Times(0, 4, 32, 100.0, 2.0, 3.0, 4.0)]
    card = machine.Gpu("H200", "9.0", "1")
    monkeypatch.setattr(machine, "run_passes", lambda text, rows, gpu: (took, [read]))
    (seen,) = with_measured(problem, comparison, card).rows
    assert (seen.counted_wavefronts, seen.counted_as_predicted) == (row.wavefronts, True)
    monkeypatch.setattr(machine, "run_passes", lambda text, rows, gpu: (took, "ncu is not on this machine"))
    measured = with_measured(problem, comparison, card)
    assert measured.rows[0].counted_wavefronts is None
    assert "were not counted there: ncu is not on this machine" in text(problem, measured)


def test_what_was_run_is_drawn_as_cycles():
    pytest.importorskip("matplotlib")
    from layoutopt.report.plot import chart

    layout = {"offset": "x0", "bytes": 4, "wavefronts": 1, "weighted_wavefronts": 1.0}
    rows = (
        Row("none", "row-major", "given", **layout, cycles=90.0, measured=100.0),
        Row("pad", "best pad", "given", **{**layout, "offset": "x0*2"}, cycles=80.0, measured=70.0),
    )
    drawn = chart(Comparison("p", "sm_90", 32, rows, None, {}, measured_on="H200"), "svg").decode()
    assert "cycles of one pass of a block" in drawn
    assert "p on H200" in drawn


def test_without_a_gpu_it_is_one_line():
    if machine.find_tool("nvidia-smi") is None:
        done = layoutopt("compare", ROOT / "problems/basics/transpose_16x32_f32.json", "--run")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "no NVIDIA GPU" in done.stderr
