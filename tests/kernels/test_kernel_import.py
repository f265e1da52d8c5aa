"""Arrays of kernels as problems: their accesses cost what the evaluation of the kernel counted."""

import dataclasses
import json
from types import SimpleNamespace

import msgspec
import pytest
from command import layoutopt, refused
from conftest import ROOT
from machine_code import program
from test_kernel_counters import LAUNCHES, RECORDS, evaluation
from written import refused_with

from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.program import Place
from layoutopt.kernels.question.arrays import used_arrays
from layoutopt.kernels.question.problem_data import array_problem
from layoutopt.study.check import check
from layoutopt.study.findings import Finding
from layoutopt.study.launches import _fix_fields

# One block, or blocks that are all the same; the long loop has more executions than are kept.
WHOLE = sorted(
    name
    for name, launch in LAUNCHES.items()
    if name in RECORDS and launch.grid == (1, 1, 1) and name != "long_loop"
)


@pytest.mark.parametrize("name", WHOLE)
def test_problems_cost_what_the_kernel_does(name):
    found = evaluation(name)
    for used in used_arrays(found):
        tallies = [found.tallies[k] for k in used.steps]
        if any(tally.unknown for tally in tallies):
            continue
        problem = from_data(array_problem(found, used))
        audit = check(problem)
        weighted = zip(audit.accesses, problem.accesses, strict=True)
        assert sum(a.wavefronts * asked.weight for a, asked in weighted) == sum(t.wavefronts for t in tallies)
        assert audit.bytes <= used.array.size


def array_of(name, *shape):
    """The problem of the only array of a kernel of the collection."""
    found = evaluation(name)
    (used,) = used_arrays(found)
    return array_problem(found, used, *shape)


def test_accesses_become_formulas():
    data = array_of("transpose_plain")
    assert data["tile"] == {"shape": [32, 32], "element": "f32"}
    assert data["published"]["offset"] == "x0*32 + x1"
    rows = ["warp", "warp + i*8", *(f"warp + {8 * k}" for k in (1, 2, 3))]
    expected = {index for row in rows for index in ((row, "lane"), ("lane", row))}
    assert {tuple(access["index"]) for access in data["accesses"]} <= expected


def test_unrolled_accesses_are_one_loop_whatever_order_they_got():
    lines = (f"LDS R4, [R2+{0x100 * k:#x}]" for k in (5, 0, 3, 1, 7, 2, 6, 4))
    kernel = program("S2R R1, SR_TID.X; SHF.L.U32 R2, R1, 0x2, RZ", *lines)
    steps = tuple(msgspec.structs.replace(step, place=Place("k.cu", 7)) for step in kernel.steps)
    launch = Launch(block=(64, 1, 1), shared_bytes=2048)
    found = evaluate(msgspec.structs.replace(kernel, steps=steps), launch, device("sm_90"))
    (used,) = used_arrays(found)
    (access,) = array_problem(found, used, (8, 64))["accesses"]
    assert (access["index"], access["for"]) == (["i", "tid"], {"i": 8})


def test_a_pad_is_not_part_of_the_tile():
    data = array_of("transpose_padded")
    assert (data["tile"]["shape"], data["published"]["offset"]) == ([32, 32], "x0*33 + x1")


def test_a_shape_that_the_bytes_contradict_is_refused():
    with refused_with("--shape"):
        array_of("transpose_plain", (31, 7))


@pytest.mark.parametrize(
    ("kinds", "excess", "said"),
    [
        (("conflict", "fix"), 8, "the fix"),
        (("conflict", "keep"), 8, "the keep; layoutopt patch tries"),
        (("conflict",), 8, "no layout with fewer conflicts was found"),
        ((), 0, "its first block has no conflicts"),
    ],
)
def test_what_is_said_of_a_fix(kinds, excess, said):
    findings = [Finding(kind, f"the {kind}") for kind in kinds]
    assert said in _fix_fields(SimpleNamespace(findings=findings, excess=excess))["message"]


@pytest.mark.parametrize("form", [pytest.param("ptx", marks=pytest.mark.nvcc), "sm_90.sass"])
def test_no_fix_of_an_array_that_a_bulk_copy_fills(form, tmp_path):
    kernel = ROOT / "tests/data/kernels" / f"bulk_copy.{form}"
    checked = layoutopt("check", kernel, "--block", "64")
    assert "no fix is sought" in checked.stdout
    layoutopt("import", "kernel", kernel, "--block", "64", "-o", tmp_path)
    (path,) = tmp_path.glob("*.json")
    assert "fills it as it lies" in json.loads(path.read_text())["notes"]


def test_names_of_files_and_arrays_become_names_of_problems():
    """However long, and whatever is in them."""
    found = evaluation("transpose_plain")
    (used,) = used_arrays(found)
    place = Place("/src/\x1b[31m\u202e" + "n" * 240 + ".cu", 7)
    steps = [msgspec.structs.replace(step, place=place) for step in found.program.steps]
    found = dataclasses.replace(found, program=msgspec.structs.replace(found.program, steps=steps))
    used = msgspec.structs.replace(
        used, array=msgspec.structs.replace(used.array, name="a<\x07>" + "b" * 300)
    )
    problem = from_data(array_problem(found, used, (32, 32)))
    names = [problem.name, *(access.name for access in problem.accesses)]
    assert all(name.isprintable() and len(name) <= 200 for name in names)


@pytest.mark.nvcc
def test_arrays_that_nothing_is_known_of_are_one_error(tmp_path):
    kernel = tmp_path / "k.ptx"
    stores = "".join(f"mov.u32 %r1, {array}; @%p1 st.shared.u32 [%r1], %r2;\n" for array in "ab")
    kernel.write_text(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n"
        ".reg .b32 %r<3>; .reg .pred %p<2>; .shared .align 4 .b8 a[128]; .shared .align 4 .b8 b[128];\n"
        f"mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 1;\n{stores}ret;\n}}\n"
    )
    none = "the first block accesses none of it"
    said = f"error: nothing is known of any array: a: {none}; b: {none}\n"
    refused(said, "import", "kernel", kernel, "--block", "32", "--grid", "2", "-o", tmp_path / "o")
    assert not (tmp_path / "o").exists()
