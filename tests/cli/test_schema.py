"""The JSON Schema of what each command prints."""

import json

import pytest
from command import layoutopt
from conftest import ROOT

from layoutopt.cli.schema import ANSWERS, PROBLEM, json_schema

TILE, BLOCK = "transpose_16x32_f32", "hopper_gemm_128x128x64_f16"
COMMANDS = (
    ("solve", TILE), ("solve", BLOCK), ("compare", TILE), ("compare", BLOCK), ("show", TILE), ("show", BLOCK),
    ("check", TILE, "--no-fix"), ("check", "composable_kernel_gemm_xor_128x128_f16", "--no-fix"), ("emit", TILE), ("emit", BLOCK),
    ("emit", TILE, "--offset", "x0*33 + x1"), ("explain", TILE), ("explain", BLOCK), ("targets",),
    ("targets", "sm_90"), ("problems",), ("sweep", TILE, "-o", "s.sqlite"),
)  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_what_a_command_prints_is_of_its_schema(arguments, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    done = layoutopt(*arguments, "--json", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    schema = json_schema(arguments[0])
    assert any(answer["schema"] in str(kind) for kind in schema["$defs"].values())
    jsonschema.Draft202012Validator(schema).validate(answer)


def test_totals_of_a_table_are_of_their_schema(tmp_path):
    jsonschema, numpy = pytest.importorskip("jsonschema"), pytest.importorskip("numpy")
    numpy.save(tmp_path / "a.npy", 4 * numpy.arange(64).reshape(2, 32))
    done = layoutopt("count", "a.npy", "--op", "load", "--bytes", "4", "--json", cwd=tmp_path)
    jsonschema.Draft202012Validator(json_schema("count")).validate(json.loads(done.stdout))


def test_every_schema_can_be_printed():
    for name in (PROBLEM, *ANSWERS):
        assert json.loads(layoutopt("schema", name).stdout) == json.loads(json.dumps(json_schema(name)))
    shipped = json.loads((ROOT / "problems/problem.schema.json").read_text())
    assert json_schema(PROBLEM) == shipped


def test_a_report_makes_the_answer_again_or_says_how_it_failed(tmp_path):
    for name in (TILE, BLOCK):
        report = json.loads(layoutopt("report", name).stdout)
        (tmp_path / "p.json").write_text(json.dumps(report["problem"]))
        answer = json.loads(layoutopt("solve", tmp_path / "p.json", "--json").stdout)
        for field in ("status", "excess", "bytes", "proof"):
            assert answer[field] == report["answer"][field]
        assert sum(counts["excess"] for counts in report["counts"].values()) == answer["excess"]
    (tmp_path / "p.json").write_text('{"tile": 3}')
    assert "ProblemFileError: tile:" in json.loads(layoutopt("report", tmp_path / "p.json").stdout)["failure"]
    assert layoutopt("report", tmp_path / "no.json").returncode == 2
