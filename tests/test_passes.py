"""Programs that time whole passes of several layouts, and what they print."""

import msgspec
from conftest import ROOT
from test_cli import layoutopt

from layoutopt.cli.timed_rows import plans_of, with_measured
from layoutopt.codegen.languages import run_plan
from layoutopt.codegen.passes import program
from layoutopt.hardware import machine
from layoutopt.hardware.devices import device
from layoutopt.problems.file import load
from layoutopt.report.comparison_text import text
from layoutopt.study.compare import compare

PRINTED = "pass\t0\t16\t32\t181.4\t640.0\t150.0\t600.5\npass\t1\t16\t40\t1.0\t2.0\t3.0\t4.0\nother\n"


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


def test_rows_of_a_comparison_are_timed_in_one_program(monkeypatch):
    """Each formula once, and every row of it gets its cycles; there is no GPU here."""
    problem = load(ROOT / "problems/basics/transpose_16x32_f32.json")
    comparison = compare(problem, time_limit=10)
    card = machine.Gpu("H200", "9.0", "1")
    offsets = {row.offset for row in comparison.rows if row.wavefronts is not None}
    plans = plans_of(problem, comparison, card)
    assert set(plans) == offsets
    assert program(list(plans.values())).count("_pass<1>") == len(offsets)
    timed = [machine.Times(k, 4, 32, 100.0 + k, 2.0, 3.0, 4.0) for k in range(len(plans))]
    monkeypatch.setattr(machine, "run_times", lambda text, rows, gpu: timed)
    measured = with_measured(problem, comparison, card)
    by_offset = dict(zip(plans, timed, strict=True))
    assert all(row.measured == by_offset[row.offset].once for row in measured.rows)
    assert "measured" in text(problem, measured).splitlines()[4]


def test_without_a_gpu_it_is_one_line():
    if machine.find_tool("nvidia-smi") is None:
        done = layoutopt("compare", ROOT / "problems/basics/transpose_16x32_f32.json", "--run")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "no NVIDIA GPU" in done.stderr
