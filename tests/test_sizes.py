"""One formula and one header for many sizes of a tile."""

import json
import shutil
import subprocess

import pytest
from command import layoutopt

from layoutopt.codegen.sizes import sizes_header
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.grammar import to_text
from layoutopt.hardware.devices import device
from layoutopt.problems.file import from_data
from layoutopt.problems.templates import expand
from layoutopt.synthesis.sizes import common_formula

GPU = device("sm_90")
SIZES = [{"M": 32, "N": 32}, {"M": 64, "N": 32}, {"M": 64, "N": 64}]


def file(sizes=SIZES, **more):
    loops = {"i": "M*N // 256"}
    rows = {
        "name": "rows",
        "op": "store",
        "bytes": 4,
        "index": ["(tid + 256*i) // N", "(tid + 256*i) % N"],
        "for": loops,
    }
    columns = {
        "name": "columns",
        "op": "load",
        "bytes": 4,
        "index": ["(tid + 256*i) % M", "(tid + 256*i) // M"],
        "for": loops,
    }
    tile = {"shape": ["M", "N"], "element": "f32"}
    return {"name": "t", "tile": tile, "threads": 256, "sizes": sizes, "accesses": [rows, columns], **more}  # fmt: skip


def found(raw):
    problems = [(dict(one.values), from_data(one.data)) for one in expand(raw)]
    return common_formula(raw["tile"]["shape"], problems, GPU)


def test_one_formula_serves_every_size():
    common = found(file())
    assert to_text(common.offset) == "x0*N + (x1 ^ x0 % 32)"
    assert [(size.excess, size.bytes) for size in common.sizes] == [(0, 4096), (0, 8192), (0, 16384)]


def test_constraints_hold_at_every_size():
    common = found(file(layout={"families": ["none", "pad"]}))
    assert to_text(common.offset) == "x0*(N + 1) + x1"
    assert [size.excess for size in common.sizes] == [0, 0, 0]
    with pytest.raises(LayoutError, match="holds every size"):
        found(file(layout={"max_bytes": 8192}))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
def test_the_header_compiles_for_its_sizes_and_no_others(tmp_path):
    raw = file()
    text = sizes_header(raw, found(raw), "t").replace("#pragma once\n", "")

    def compiled(call):
        source = tmp_path / "t.cpp"
        source.write_text(f'{text}static_assert({call}, "");\nint main() {{ return 0; }}\n')
        command = ["g++", "-std=c++14", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", source]
        return subprocess.run(command, capture_output=True, text=True)

    good = compiled("t_columns_bytes<64, 32>(33, 1) == 4 * (33 * 32 + (4 ^ 1)) && t_bytes<64, 64>() == 16384")
    assert good.stderr == ""
    assert "a size that was not solved" in compiled("t_offset_bytes<128, 32>(0, 0) == 0").stderr


def test_the_command(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(file()))
    data = json.loads(layoutopt("emit", path, "--json", "--name", "stage").stdout)
    assert data["offset"] == "x0*N + (x1 ^ x0 % 32)"
    assert data["sizes"][2] == {"values": {"M": 64, "N": 64}, "bytes": 16384, "excess": 0}
    assert "template <int M, int N>" in data["code"]
    assert "stage_rows_bytes(int tid, int i)" in data["code"]
    assert layoutopt("emit", path, "--lang", "cute").returncode == 2


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        ([], "sizes"),
        ([{"M": 32}, {"N": 32}], r"sizes\[1\]"),
        ([{"M": 32, "N": 0}], r"sizes\[0\].N"),
        ([{"M": 32, "N": 32, "K": 1}], "K"),
    ],
)
def test_wrong_sizes_are_named(sizes, field):
    with pytest.raises(ProblemFileError, match=field):
        list(expand(file(sizes)))
