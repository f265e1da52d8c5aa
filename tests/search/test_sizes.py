"""One formula and one header for many sizes of a tile."""

import json
import shutil
import subprocess

import pytest
from command import layoutopt
from written import access_from, data_of, refused_with, saved

from layoutopt.codegen.sizes import sizes_header
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.grammar import to_text
from layoutopt.files.file import from_data
from layoutopt.files.templates import expand
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import device
from layoutopt.search.sizes import common_formula

GPU = device("sm_90")
SIZES = [{"M": 32, "N": 32}, {"M": 64, "N": 32}, {"M": 64, "N": 64}]


def file(sizes=SIZES, **more):
    text = """MxN f32, 256 threads
        rows: store 4 [(tid + 256*i) // N, (tid + 256*i) % N]; i<M*N // 256
        columns: load 4 [(tid + 256*i) % M, (tid + 256*i) // M]; i<M*N // 256"""
    return {**data_of(text, sizes=sizes), **more}


def found(raw, budget=None):
    problems = [(dict(one.values), from_data(one.data)) for one in expand(raw)]
    return common_formula(raw["tile"]["shape"], problems, GPU, budget)


def ordered(*families):
    columns = access_from("columns: store 4 [i, tid % N]; i<M")
    return file(threads=32, accesses=[columns], layout={"order": [1, 0], "families": [*families]})


def strided():
    """Strides on one dimension: no row to pad."""
    accesses = [access_from("strided: load 4 [tid * (M // 128)]"), access_from("neighbours: store 4 [tid]")]
    tile = {"shape": ["M"], "element": "f32"}
    return file([{"M": 1024}, {"M": 2048}], accesses=accesses, threads=128, tile=tile)


COMMON = {
    "every size": (file(), "x0*N + (x1 ^ x0 % 32)"),
    "constraints hold at every size": (file(layout={"families": ["none", "pad"]}), "x0*(N + 1) + x1"),
    # Columns of any height: only contiguous ones have no conflicts in as few bytes.
    "another order": (file([{"M": 32, "N": 32}, {"M": 33, "N": 32}], accesses=[file()["accesses"][1]]), "x1*M + x0"),
    "a pad after every so many elements": (strided(), "x0 + x0 // 32"),
    "the order of the file": (ordered("none"), "x1*M + x0"),
    "the order of the file, swizzled": (ordered("none", "xor"), "x1*M + (x0 ^ x1 % 32)"),
    "the order of the file, padded": (ordered("none", "pad"), "x1*(M + 1) + x0"),
}  # fmt: skip


@pytest.mark.parametrize("case", COMMON)
def test_one_formula_serves_every_size(case):
    raw, formula = COMMON[case]
    common = found(raw)
    assert to_text(common.offset) == formula
    if "order of" not in case:
        assert {size.excess for size in common.sizes} == {0}
    if case == "every size":
        assert [size.bytes for size in common.sizes] == [4096, 8192, 16384]


def test_a_formula_that_does_not_fit_every_size_is_none():
    with pytest.raises(LayoutError, match="holds every size"):
        found(file(layout={"max_bytes": 8192}))


class Asked(Budget):
    """Time for so many questions."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    @property
    def spent(self):
        self.times -= 1
        if self.times < 0:
            self.cut_short()
        return self.times < 0


def found_in(times):
    try:
        return found(file(), Asked(times))
    except OutOfTime:
        return None


def test_the_search_keeps_to_its_time():
    """It knew no clock, and 64 sizes took minutes."""
    assert to_text(found_in(10**6).offset) == "x0*N + (x1 ^ x0 % 32)"
    assert (
        to_text(next(best for best in map(found_in, range(10_000)) if best is not None).offset) == "x0*N + x1"
    )


def test_sizes_that_are_too_large_together_are_refused():
    with refused_with("sizes[7]: more than 16,777,216 lane accesses of all sizes"):
        found(file(sizes=[{"M": 2048, "N": n} for n in range(512, 532)]))


def types(**more):
    """One kernel for several element types, 16 bytes a thread."""
    sizes = [{"T": "f64", "V": 2}, {"T": "f32", "V": 4}, {"T": "f16", "V": 8}, {"T": "bf16", "V": 8}]
    text = """64x8*V T, 128 threads
        rows: store 16 [tid // 8 + 16*i, tid % 8 * V]; i<4
        columns: load 16 [tid % 64, (tid // 64 + 2*i) * V]; i<4"""
    return {**data_of(text, sizes=sizes), **more}


def test_one_formula_for_several_element_types():
    common = found(types())
    assert to_text(common.offset) == "x0*(V*8) + (x1 ^ x0 % 8 * (16 // element_bytes))"
    assert [size.values["T"] for size in common.sizes] == ["f64", "f32", "f16", "bf16"]
    assert {(size.excess, size.bytes) for size in common.sizes} == {(0, 8192)}
    assert {size.excess for size in found(types(layout={"families": ["pad"]})).sizes} == {0}


def compiled(folder, text, call):
    """What the compiler says of a header in which something is to hold."""
    source = folder / "t.cpp"
    source.write_text(
        f'{text.replace("#pragma once", "")}\nstatic_assert({call}, "");\nint main() {{ return 0; }}\n'
    )
    command = ["g++", "-std=c++14", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", source]
    return subprocess.run(command, capture_output=True, text=True).stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
def test_the_header_compiles_for_its_sizes_and_types_and_no_others(tmp_path):
    raw, none = file(), "a size that was not solved"
    right = "t_columns_bytes<64, 32>(33, 1) == 4 * (33 * 32 + (4 ^ 1)) && t_bytes<64, 64>() == 16384"
    for lang in ("cuda", "hip"):
        text = sizes_header(raw, found(raw), "t", lang)
        assert compiled(tmp_path, text, right) == ""
        assert none in compiled(tmp_path, text, "t_offset_bytes<9, 32>(0, 0) == 0")
    # A type is any of its size and alignment.
    raw = types()
    text = sizes_header(raw, found(raw), "t")
    assert "template <typename T, int V>" in text
    text += "struct two { char bytes[2]; }; struct alignas(16) four { float x; };\n"
    calls = " && ".join(
        f"t_columns_bytes<{t}, {v}>(33, 1) == {16 // v} * (33 * 8 * {v} + (2 * {v} ^ 33 % 8 * {v}))"
        for t, v in (("float", 4), ("double", 2), ("short", 8))
    )
    assert compiled(tmp_path, text, f"{calls} && t_bytes<two, 8>() == 8192") == ""
    for wrong in ("t_bytes<float, 8>()", "t_rows_bytes<four, 4>(0, 0)"):
        assert none in compiled(tmp_path, text, f"{wrong} > 0")
    # The size of an element may be a parameter itself.
    raw = data_of(
        "4x32, 128 threads",
        access_from("one: store [tid // 32, tid % 32]", bytes="4*B"),
        element={"bytes": "4*B"},
    )
    raw["sizes"] = [{"B": 1}, {"B": 2}, {"B": 4}]
    text = sizes_header(raw, found(raw), "t")
    assert compiled(tmp_path, text, "t_one_bytes<2>(33) == 8 * 33 && t_bytes<4>() == 2048") == ""


def test_the_command(tmp_path):
    path = saved(tmp_path, "t.json", file())
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
        ([{"M": 32, "N": "f32"}], r"sizes\[0\].N.*only the tile's element is a word"),
    ],
)
def test_wrong_sizes_are_named(sizes, field):
    with pytest.raises(ProblemFileError, match=field):
        list(expand(file(sizes)))


def test_the_element_is_named_at_every_size():
    raw = types()
    raw["sizes"][1]["T"] = 4
    with pytest.raises(ProblemFileError, match=r"sizes\[1\].T.*name of the element's type"):
        list(expand(raw))


def test_every_pitch_is_the_multiple_that_is_asked_for():
    """Of x1*(M*N) + x0*N + x2, that of x0, too."""
    layers = access_from("layers: load 4 [0, tid % M, 0]")
    raw = file([{"M": 32, "N": 6}, {"M": 64, "N": 6}], threads=32, accesses=[layers])
    raw["tile"]["shape"] = [2, "M", "N"]
    raw["layout"] = {"pitch_multiple_bytes": 16, "families": ["none", "order", "pad"]}
    for size in found(raw).sizes:
        table = size.case.table(size.offset).reshape(size.case.problem.tile.shape)
        pitches = sorted(int(table[at]) for at in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))[1:]
        assert not any(pitch % 16 for pitch in pitches)


@pytest.mark.parametrize("goal", ["bytes", "instructions", "time"])
def test_another_goal_is_refused(goal):
    with pytest.raises(ProblemFileError, match=f"layout.minimise: .* excess first, not {goal}"):
        found(file(layout={"minimise": goal}))
