"""The JSON Schema of what each command prints."""

import json

import numpy as np
import pytest
from command import answer, layoutopt
from written import access_from, one_tile, saved

from layoutopt.cli.schema import ANSWERS, PROBLEM, json_schema

TILE, BLOCK = "transpose_16x32_f32", "hopper_gemm_128x128x64_f16"
COUNT = "count", "a.npy", "--op", "load", "--bytes", "4"
COMMANDS = (
    ("solve", TILE), ("solve", BLOCK), ("compare", TILE), ("compare", BLOCK), ("show", TILE), ("show", BLOCK),
    ("check", TILE, "--no-fix"), ("check", "composable_kernel_gemm_xor_128x128_f16", "--no-fix"), ("emit", TILE), ("emit", BLOCK),
    ("emit", TILE, "--offset", "x0*33 + x1"), ("explain", TILE), ("explain", BLOCK), ("targets",),
    ("targets", "sm_90"), ("problems",), ("problems", TILE), ("problems", BLOCK, "--expanded"), ("problems", "own.json"), ("convert", "c.json"), ("convert", "none.json"), ("sweep", TILE, "-o", "s.sqlite"), COUNT,
)  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_what_a_command_prints_is_of_its_schema(arguments, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    np.save(tmp_path / "a.npy", 4 * np.arange(64).reshape(2, 32))
    rows = {"register": [[1]], "lane": [[2], [4], [8], [16], [32]], "warp": []}
    columns = {"register": [[32]], "lane": [[1], [2], [4], [8], [16]], "warp": []}
    moved = {"name": "c", "tile": {"shape": [64], "element": "f32"}, "threads": 32}
    for name, more in (("c.json", {}), ("none.json", {"max_bytes": 4})):
        saved(tmp_path, name, {**moved, "convert": {"from": rows, "to": columns, **more}})
    saved(tmp_path, "own.json", one_tile("own", [32, 32], "f32", 32, [access_from("a: load 4 [0, tid]")]))
    found, schema = answer(*arguments, cwd=tmp_path), json_schema(arguments[0])
    assert arguments == COUNT or found["schema"] in str(schema)
    jsonschema.Draft202012Validator(schema).validate(found)


def test_every_schema_can_be_printed():
    for name in (PROBLEM, *ANSWERS):
        assert json.loads(layoutopt("schema", name).stdout) == json.loads(json.dumps(json_schema(name)))


def test_a_report_makes_the_answer_again_or_says_how_it_failed(tmp_path):
    for name in (TILE, BLOCK):
        report = json.loads(layoutopt("report", name).stdout)
        again = answer("solve", saved(tmp_path, "p.json", report["problem"]))
        for field in ("status", "excess", "bytes", "proof"):
            assert again[field] == report["answer"][field]
        assert sum(counts["excess"] for counts in report["counts"].values()) == again["excess"]
    wrong = saved(tmp_path, "p.json", {"tile": 3})
    assert "ProblemFileError: tile:" in json.loads(layoutopt("report", wrong).stdout)["failure"]
    assert layoutopt("report", tmp_path / "no.json").returncode == 2
