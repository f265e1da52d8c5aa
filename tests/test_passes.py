"""Programs that time whole passes of several layouts, and what they print."""

import msgspec
from conftest import ROOT

from layoutopt.codegen.languages import run_plan
from layoutopt.codegen.passes import program
from layoutopt.hardware import machine
from layoutopt.hardware.devices import device
from layoutopt.problems.file import load

PRINTED = "pass\t0\t16\t32\t181.4\t640.0\t150.0\t600.5\t90.1,91.3\npass\t1\t16\t40\t1.0\t2.0\t3.0\t4.0\t5.0\nother\n"


def test_what_is_printed_is_read():
    first, second = machine.parse_times(PRINTED)
    assert (first.row, first.blocks, first.registers) == (0, 16, 32)
    assert (first.once, first.once_together, first.kept, first.kept_together) == (181.4, 640.0, 150.0, 600.5)
    assert (first.accesses, second.accesses) == ((90.1, 91.3), (5.0,))


def test_each_layout_has_its_kernel_with_every_access():
    problem = load(ROOT / "problems/basics/gemm_a_128x64_f16.json")
    named = [msgspec.structs.replace(problem, name=f"row {k}") for k in range(2)]
    offsets = ("x0*72 + x1", "x0*64 + (x1 ^ x0 % 8 * 8)")
    plans = [run_plan(one, device("sm_90"), offset) for one, offset in zip(named, offsets, strict=True)]
    text = program(plans)
    assert text.count("__launch_bounds__(256)") == 2
    assert text.count('asm volatile("cp.async.wait_all') == 2
    assert "time(1, row_1_pass<0>, row_1_pass<1>, 16384, 2);" in text
    assert "@" not in text
