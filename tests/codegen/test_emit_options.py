"""What `emit` prints of a layout: names, types, parts; and what it refuses."""

import json
import shlex

import pytest
from command import answer, layoutopt, refused
from conftest import ROOT
from emit_programs import emit
from written import access_from, data_of, one_tile, saved

from layoutopt.codegen.languages import run_plan
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device

GPU = device("sm_90")


def problem(element="f32", width=4, **more):
    rows = f"rows: store {width} [warp + 8*i, lane]; i<4"
    return from_data(data_of("32x32, 256 threads; name a tile", rows, element=element) | more)


@pytest.mark.parametrize("language", ["cuda", "hip", "opencl", "c", "numba"])
def test_a_name(language):
    code = emit(language, problem(), GPU, "x0*33 + x1", name="stage")
    assert ("a_tile_" in code, "stage_offset" in code, "stage_rows_base" in code) == (False, True, True)


@pytest.mark.parametrize(
    ("element", "kind"),
    [("float4", "float4"), ("uint4", "uint4"), ({"bytes": 16}, "uint4"),
     ({"bytes": 16, "type": "my::Particle"}, "my::Particle")],
)  # fmt: skip
def test_structures_keep_their_type(element, kind):
    asked = problem(element, 16)
    code = emit("cuda", asked, GPU, "x0*33 + x1")
    assert f"__forceinline__ {kind}* a_tile_rows(" in code
    assert ('static_assert(sizeof(my::Particle) == 16, "my::Particle");' in code) == ("my::" in kind)
    # A program of its own cannot know the kernel's types.
    assert "my::" not in emit("cuda", run_plan(asked, GPU, "x0*33 + x1").problem, GPU, "x0*33 + x1")


def test_a_predicate_that_no_loop_changes_stands_around_the_loops():
    accesses = [
        access_from("a: load 4 [warp + 8*i, lane]; i<4; where tid < 128"),
        access_from("b: load 4 [warp + 8*i, lane]; i<4; where tid > i"),
    ]
    code = emit("cuda", problem(accesses=accesses), GPU, "x0*33 + x1")
    assert "    if (a_tile_a_active(tid, 0)) {\n        #pragma unroll" in code
    assert "        if (a_tile_b_active(tid, i)) body(" in code


def test_the_code_says_what_its_index_code_costs():
    code = emit("cuda", problem(), GPU, "x0*33 + x1")
    assert "// index instructions: 3 once, 0 in 4 iterations" in code
    data = answer("emit", "transpose_32x32_f32", "--offset", "published")
    assert data["instructions"] == sum(access["once"] + access["looped"] for access in data["accesses"])
    assert [access["name"] for access in data["accesses"]] == ["rows", "columns"]


SMALL = str(ROOT / "problems/basics/transpose_16x32_f32.json")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *((f"--lang {name}", "transpose_16x32_f32") for name in LANGUAGES),
        ("--lang c --offset published", "x0 * 34 + x1"),
        ("--lang c --offset x0*33+x1", "x0 * 33 + x1"),
        ("--offset published --name stage", "stage_offset_bytes"),
        ("--self-test", "int main("),
        ("--self-test", "__global__ void transpose_16x32_f32_access_1("),
    ],
)
def test_what_is_printed(asked, said):
    done = layoutopt("emit", SMALL, *asked.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout


PACKED = str(ROOT / "problems/cutlass/s4_a_128x128_s4.json")


def result_of(problem, folder, **changes):
    """The file of a result, changed."""
    return saved(folder, "r.json", answer("solve", problem) | changes)


@pytest.mark.parametrize(("path", "own"), [(SMALL, "_offset_bytes("), (PACKED, "_bit_shift(uint32_t x1)")])
def test_a_result_with_and_without_its_problem(path, own, tmp_path):
    result = result_of(path, tmp_path)
    alone = layoutopt("emit", result, "--lang", "c").stdout
    assert (own in alone, "_rows" in alone) == (True, False)
    whole = layoutopt("emit", result, "--lang", "c", "--problem", path)
    assert (whole.returncode, whole.stdout) == (0, layoutopt("emit", path, "--lang", "c").stdout)


@pytest.mark.parametrize(
    ("problem", "changes", "message"),
    [
        (SMALL, {"alignment_bytes": 1024}, "alignment_bytes: the counts need a base aligned to 128, not 1024"),
        (SMALL, {"status": "feasible", "weighted_excess": 3},
         "weighted_excess: the layout gives 0, the result says 3"),
        ("transpose_32x32_f32", {}, "the result is of 'transpose_16x32_f32', not of"),
    ],
)  # fmt: skip
def test_a_result_that_is_not_of_its_problem(problem, changes, message, tmp_path):
    refused(message, "emit", result_of(SMALL, tmp_path, **changes), "--lang", "c", "--problem", problem)


def test_a_result_of_what_the_hardware_does_by_itself(tmp_path):
    load = {"name": "fill", "op": "tma.load", "mode": "128B"}
    problem = saved(tmp_path, "p.json", data_of("128x64 f16, 128 threads", load))
    result = result_of(problem, tmp_path)
    whole = layoutopt("emit", result, "--problem", problem)
    assert (whole.returncode, whole.stdout) == (0, layoutopt("emit", problem).stdout), whole.stderr
    data = json.loads(result.read_text())
    data["accesses"][0]["descriptor"]["box_offsets"] = [16]
    said = "accesses[0].descriptor: is not how the hardware reaches the layout"
    refused(said, "emit", saved(tmp_path, "r.json", data), "--problem", problem)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("TILE --lang c --self-test", "--lang c has none"),
        ("TILE --lang cobol", "cobol"),
        ("TILE --name 'a b'", "a letter, then letters, digits and single underscores"),
        ("TILE --offset 'x0*16 + x1'", "elements overlap"),
        ("TILE --offset 'x0 +'", "is not an expression"),
        ("TILE --problem TILE", "belongs to a result file"),
        ("TILE --offset 'x0*32 + (x1 + x0) % 32' --lang gluon", "this layout is neither"),
        ("gemm_a_128x64_f16 --offset 'x0*65 + x1'",
         "x0*65 + x1 cannot hold the tile: access 'fill' is misaligned: lane"),
    ],
)  # fmt: skip
def test_refused(asked, message):
    refused(message, "emit", *shlex.split(asked.replace("TILE", SMALL)))


def test_gluon_looks_at_a_few_orders_of_eight_dimensions_only(tmp_path):
    """Trying every swizzle in all 40,320 orders would take hours."""
    rows = access_from("rows: store 4 [0, 0, 0, 0, 0, 0, tid//4, tid%4]")
    path = saved(tmp_path, "p.json", one_tile("p", [4] * 8, "f32", 16, [rows], target="sm_90"))
    plain = "+".join(f"x{d}*{4 ** (7 - d)}" for d in range(7))
    for last, made in (
        ("(x7 ^ x6)", "SwizzledSharedLayout(1, 1, 4, [7, 6, 5, 4, 3, 2, 1, 0])"),
        ("(x7 ^ x2)", "SharedLinearLayout("),
    ):
        done = layoutopt("emit", path, "--offset", f"{plain} + {last}", "--lang", "gluon")
        assert made in done.stdout
