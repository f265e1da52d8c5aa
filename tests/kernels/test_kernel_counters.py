"""Kernels against the counters that an H200 gave, and their arrays as problems that cost what is counted."""

import dataclasses
import json
from functools import cache
from types import SimpleNamespace

import kernel_launches
import msgspec
import pytest
import record_public
from command import layoutopt, refused
from conftest import ROOT
from machine_code import program
from written import refused_with

from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.program import Array, Parameter, Place
from layoutopt.kernels.question.arrays import used_arrays
from layoutopt.kernels.question.problem_data import array_problem
from layoutopt.kernels.question.summary import summary
from layoutopt.kernels.read import sass
from layoutopt.study.check import check
from layoutopt.study.in_use import Finding
from layoutopt.study.launches import _fix_fields

KERNELS = ROOT / "tests/data/kernels"
LAUNCHES = {launch.name: launch for launch in kernel_launches.launches(KERNELS)}
RECORDS = {
    record["name"]: record["launches"]
    for record in json.loads((KERNELS / "counters.json").read_text())["kernels"]
    if "launches" in record
}
# Known only from what the text does not hold (constant tables), or from contents of buffers.
NOT_CERTAIN = {"constant_table", *(name for name, launch in LAUNCHES.items() if launch.data_dependent)}
COUNTERS = {ours: theirs.removesuffix(".sum") for ours, theirs in record_public.COUNTERS.items()}
PARTS = record_public.on_gpu.PARTS
COUNTERS |= {f"executed_{part}": f"smsp__inst_executed_op_shared_{part}" for part in PARTS}


def parameters(launch):
    """Offsets and values of the arguments, laid out as C does."""
    found, end = [], 0
    for kind, value, *_ in launch.args:
        fields = value if kind == "struct" else [(kind, "pointer" if kind.endswith("*") else value)]
        for one, number, *_ in fields:
            size = 8 if one.endswith("*") else kernel_launches.TYPES[one].itemsize
            end = -(-end // size) * size
            found.append((Parameter(end, size), "pointer" if one.endswith("*") else number))
            end += size
    return found


def report(name, target="sm_90"):
    return summary(evaluation(name, target))


@cache
def evaluation(name, target="sm_90"):
    launch = LAUNCHES[name]
    programs = sass.from_text((KERNELS / f"{name}.{target}.sass").read_text())
    (program,) = [one for one in programs if one.name == launch.symbol]
    given = parameters(launch)
    program = msgspec.structs.replace(program, parameters=tuple(parameter for parameter, _ in given))
    arguments = {str(k): value for k, (_, value) in enumerate(given)}
    return evaluate(program, kernel_launches.called(launch, arguments=arguments), device(target))


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_totals_are_the_profilers(name):
    found = report(name)
    assert found.certain or name in NOT_CERTAIN, found.unknown
    if found.certain:
        for ours, theirs in COUNTERS.items():
            seen = {launch[theirs] for launch in RECORDS[name]}
            if len(seen) == 1:  # what differs between the profiler's own repetitions cannot be demanded
                assert {found.totals[ours]} == seen, ours


def test_most_kernels_are_certain():
    assert len(set(RECORDS) - NOT_CERTAIN) >= 40


# Code for sm_100 and later loads less often in this one.
FEWER_LOADS = {("scan_tree", "sm_100"), ("scan_tree", "sm_120")}
LISTED = {tuple(path.name.split(".")[:2]) for path in KERNELS.glob("*.sass")}
OTHERS = LISTED - {(name, "sm_90") for name in LAUNCHES}


@pytest.mark.parametrize(("name", "target"), sorted(OTHERS))
def test_other_architectures_cost_the_same(name, target):
    """The code differs, the addresses do not."""
    found, expected = report(name, target), report(name)
    assert found.certain
    for part in ("st",) if (name, target) in FEWER_LOADS else ("ld", "st"):
        assert found.totals[f"wavefronts_{part}"] == expected.totals[f"wavefronts_{part}"]


def test_counters_are_of_the_texts_kept():
    for row in json.loads((KERNELS / "counters.json").read_text())["kernels"]:
        assert row["code"] == (KERNELS / f"{row['name']}.sm_90.sass").read_text()[8:24], row["name"]


ROWS = json.loads(record_public.RECORD.read_text())["kernels"]
MEASURED = [row for row in ROWS if "counters" in row and "predicted" in row]


def test_what_is_certain_is_exact():
    for row in MEASURED:
        for found in (row["predicted"], row["with_data"]):
            if found.get("certain"):
                assert record_public.exact(row, found), row["name"]


def test_enough_was_tried():
    assert len(MEASURED) >= 340
    certain = [row for row in MEASURED if row["predicted"].get("certain")]
    conflicts = [r for r in certain if any(r["counters"][f"bank_conflicts_{part}"] for part in PARTS)]
    assert len(certain) >= 310
    assert len(conflicts) >= 100


def test_what_depends_on_no_data_is_certain():
    """The record says which addresses, lanes or branches come from data."""
    for row in MEASURED:
        if not row.get("data_dependent"):
            assert row["predicted"].get("certain"), row["name"]


def test_the_page_shows_the_record():
    text = record_public.DOCS.read_text().split(record_public.MARK)[1]
    assert text.strip().splitlines() == record_public.summary_lines(ROWS)
    assert record_public.PAGE.read_text() == record_public.page(ROWS)


# One block, or blocks that are all the same; the long loop has more executions than are kept.
ALONE = {name for name, launch in LAUNCHES.items() if launch.grid == (1, 1, 1)} - {"long_loop"}
WHOLE = sorted(ALONE & set(RECORDS))


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
    array = msgspec.structs.replace(used.array, name="a<\x07>" + "b" * 300)
    used = msgspec.structs.replace(used, array=array)
    problem = from_data(array_problem(found, used, (32, 32)))
    names = [problem.name, *(access.name for access in problem.accesses)]
    assert all(name.isprintable() and len(name) <= 200 for name in names)


ROWS_OF = (
    "S2R R1, SR_TID.X; SHF.L.U32 R2, R1, 0x2, RZ; IMAD R3, R1, 0x80, RZ; IADD3 R3, R3, 0x400, RZ; MOV R5, RZ"
)
PUT = (
    "L:; STS [R3], R1; ISETP.EQ.AND P1, PT, R5, RZ, PT; MOV R5, 0x1; {}; @P1 BRA `(.L_L); LDS R6, [R2+0x400]"
)
OF_BOTH = (Array("s", 0x400, 0x1000), Array("r", 0x1400, 0x80))


def test_an_instruction_that_touches_several_arrays_is_in_the_problem_of_each():
    """As that of a function which is not inlined, where the second call gets a pointer into another array."""
    code = program(ROWS_OF, PUT.format("IADD3 R3, R2, 0x1400, RZ"), arrays=OF_BOTH, static_bytes=0x1480)
    found = evaluate(code, Launch(block=(32, 1, 1)), device("sm_90"))
    costs = {}
    for used in used_arrays(found):
        audit = check(from_data(array_problem(found, used, (used.array.size // 128, 32))), mend=False)
        costs[used.array.name] = [access.wavefronts for access in audit.accesses]
    assert costs == {"s": [32, 1], "r": [1]}
    told = summary(found)
    assert [access.array for access in told.accesses] == ["s, r", "s"]
    assert {array.name: array.wavefronts for array in told.arrays} == {"s": 32 + 1 + 1, "r": 32 + 1}


def test_an_array_that_lanes_reach_together_with_another_one_has_no_problem():
    both = "LOP3.LUT P2, RZ, R1, 0x10, RZ, 0xc0, !PT; @P2 IADD3 R3, R2, 0x1400, RZ"
    code = program(ROWS_OF, both, PUT.format("NOP"), arrays=OF_BOTH, static_bytes=0x1480)
    found = evaluate(code, Launch(block=(32, 1, 1)), device("sm_90"))
    for used in used_arrays(found):
        with pytest.raises(ProblemFileError, match="lanes of a warp reach it and other memory"):
            array_problem(found, used)


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
