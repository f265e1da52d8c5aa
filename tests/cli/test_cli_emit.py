"""`layoutopt emit`: files, results, formulas and what it refuses."""

import json

import pytest
from command import layoutopt, refused
from conftest import ROOT
from written import data_of, one_tile, saved, writes

SMALL = str(ROOT / "problems/basics/transpose_16x32_f32.json")


@pytest.mark.parametrize("lang", ["cuda", "hip", "opencl", "c", "cute", "gluon", "tilelang", "numba"])
def test_every_language_prints_its_code(lang):
    done = layoutopt("emit", SMALL, "--lang", lang)
    assert done.returncode == 0, done.stderr
    assert "transpose_16x32_f32" in done.stdout
    assert not done.stderr


def test_output_goes_to_the_file(tmp_path):
    done = layoutopt("emit", SMALL, "--lang", "c", "-o", str(tmp_path / "t.h"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "static inline uint32_t transpose_16x32_f32_offset_bytes(" in (tmp_path / "t.h").read_text()


def test_json_holds_the_code():
    data = json.loads(layoutopt("emit", SMALL, "--lang", "c", "--json").stdout)
    assert (data["schema"], data["lang"]) == ("layoutopt.code/1", "c")
    assert "_offset_bytes(" in data["code"]


def test_a_result_with_and_without_its_problem(tmp_path):
    result = tmp_path / "r.json"
    result.write_text(layoutopt("solve", SMALL, "--json").stdout)
    alone = layoutopt("emit", str(result), "--lang", "c")
    assert alone.returncode == 0
    assert "_offset_bytes(" in alone.stdout
    assert "_rows" not in alone.stdout
    whole = layoutopt("emit", str(result), "--lang", "c", "--problem", SMALL)
    assert whole.stdout == layoutopt("emit", SMALL, "--lang", "c").stdout
    for change, message in (
        ({"alignment_bytes": 1024}, "alignment_bytes: the counts need a base aligned to 128, not 1024"),
        (
            {"status": "feasible", "weighted_excess": 3},
            "weighted_excess: the layout gives 0, the result says 3",
        ),
    ):
        forged = saved(tmp_path, "forged.json", {**json.loads(result.read_text()), **change})
        refused(message, "emit", str(forged), "--lang", "c", "--problem", SMALL)
    other = str(ROOT / "problems/basics/transpose_32x32_f32.json")
    refused("the result is of 'transpose_16x32_f32', not of", "emit", str(result), "--problem", other)


def test_a_result_of_what_the_hardware_does_by_itself(tmp_path):
    problem, result = tmp_path / "p.json", tmp_path / "r.json"
    load = {"name": "fill", "op": "tma.load", "mode": "128B"}
    problem.write_text(json.dumps(data_of("128x64 f16, 128 threads", load)))
    result.write_text(layoutopt("solve", str(problem), "--json").stdout)
    whole = layoutopt("emit", str(result), "--problem", str(problem))
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout == layoutopt("emit", str(problem)).stdout
    data = json.loads(result.read_text())
    data["accesses"][0]["descriptor"]["box_offsets"] = [16]
    result.write_text(json.dumps(data))
    refused(
        "accesses[0].descriptor: is not how the hardware reaches the layout",
        "emit",
        str(result),
        "--problem",
        str(problem),
    )


def test_a_result_of_tiles_with_its_problem(tmp_path):
    problem, result = str(ROOT / "problems/tile_sets/hopper_gemm_128x128x64_f16.json"), tmp_path / "r.json"
    result.write_text(layoutopt("solve", problem, "--json").stdout)
    whole = layoutopt("emit", str(result), "--lang", "c", "--problem", problem)
    assert whole.returncode == 0, whole.stderr
    assert "static inline" in whole.stdout


def test_results_that_are_wrong_are_refused(tmp_path):
    data = json.loads(layoutopt("solve", SMALL, "--json").stdout)
    for change, message in [
        ({"layout": 5}, "layout"),
        ({"layout": {**data["layout"], "digits": [{"dim": 0, "divide": 1, "size": 16, "stride": 32}]}}, "x1"),
        ({"status": "good"}, "status"),
        ({"layout": None, "status": "infeasible"}, "no layout"),
    ]:
        (tmp_path / "r.json").write_text(json.dumps({**data, **change}))
        done = layoutopt("emit", str(tmp_path / "r.json"))
        assert done.returncode in (1, 2)
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_the_published_layout_and_formulas():
    done = layoutopt("emit", SMALL, "--lang", "c", "--offset", "published")
    assert "x0 * 34 + x1" in done.stdout
    done = layoutopt("emit", SMALL, "--lang", "c", "--offset", "x0*33 + x1")
    assert "x0 * 33 + x1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lang", "c", "--self-test"], "--lang c has none"),
        (["--lang", "cobol"], "cobol"),
        (["--offset", "x0*16 + x1"], "elements overlap"),
        (["--offset", "x0 +"], "is not an expression"),
        (["--problem", SMALL], "belongs to a result file"),
        (["--offset", "x0*32 + (x1 + x0) % 32", "--lang", "gluon"], "this layout is neither"),
    ],
)
def test_refused(arguments, message):
    refused(message, "emit", SMALL, *arguments)


def test_gluon_looks_at_a_few_orders_of_eight_dimensions_only(tmp_path):
    """Trying every swizzle in all 40,320 orders would take hours."""
    rows = writes("rows", 4, [*("0" * 6), "tid//4", "tid%4"])
    path = saved(tmp_path, "p.json", one_tile("p", [4] * 8, "f32", 16, [rows], target="sm_90"))
    plain = "+".join(f"x{d}*{4 ** (7 - d)}" for d in range(7))
    for last, made in (
        ("(x7 ^ x6)", "SwizzledSharedLayout(1, 1, 4, [7, 6, 5, 4, 3, 2, 1, 0])"),
        ("(x7 ^ x2)", "SharedLinearLayout("),
    ):
        done = layoutopt("emit", path, "--offset", f"{plain} + {last}", "--lang", "gluon")
        assert made in done.stdout


def test_a_formula_that_tears_vectors_is_refused():
    refused(
        "x0*65 + x1 cannot hold the tile: access 'fill' is misaligned: lane",
        "emit",
        ROOT / "problems/basics/gemm_a_128x64_f16.json",
        "--offset",
        "x0*65 + x1",
    )


def test_self_test_is_a_whole_program():
    text = layoutopt("emit", SMALL, "--self-test").stdout
    assert "int main(" in text
    assert "__global__ void transpose_16x32_f32_access_1(" in text


def test_a_name_of_the_catalogue_is_a_problem():
    named = layoutopt("emit", "basics/transpose_16x32_f32", "--lang", "c")
    assert named.returncode == 0, named.stderr
    assert named.stdout == layoutopt("emit", SMALL, "--lang", "c").stdout
    refused("did you mean transpose_16x32_f32", "emit", "transpose_16x33_f32")


def test_a_result_of_packed_elements(tmp_path):
    (path,) = (str(p) for p in (ROOT / "problems").rglob("s4_*128x128*.json"))
    result = tmp_path / "r.json"
    result.write_text(layoutopt("solve", path, "--json").stdout)
    whole = layoutopt("emit", str(result), "--lang", "c", "--problem", path)
    assert (whole.returncode, whole.stdout) == (0, layoutopt("emit", path, "--lang", "c").stdout)
    alone = layoutopt("emit", str(result), "--lang", "c")
    assert "_bit_shift(uint32_t x1)" in alone.stdout
