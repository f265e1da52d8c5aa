"""One formula and one header for many sizes of a tile."""

import json
import shutil
import subprocess

import pytest
from command import layoutopt
from written import data_of, reads, saved, writes

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


def test_one_formula_serves_every_size():
    common = found(file())
    assert to_text(common.offset) == "x0*N + (x1 ^ x0 % 32)"
    assert [(size.excess, size.bytes) for size in common.sizes] == [(0, 4096), (0, 8192), (0, 16384)]


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


def test_the_search_keeps_to_its_time():
    """It knew no clock, and 64 sizes took minutes."""
    assert to_text(found(file(), Asked(10**6)).offset) == "x0*N + (x1 ^ x0 % 32)"
    least = next(n for n in range(10_000) if (best := found_in(n)) is not None)
    assert to_text(best.offset) == "x0*N + x1"
    assert found_in(least - 1) is None


def found_in(times):
    try:
        return found(file(), Asked(times))
    except OutOfTime:
        return None


def test_sizes_that_are_too_large_together_are_refused():
    large = file(sizes=[{"M": 2048, "N": n} for n in range(512, 532)])
    with pytest.raises(
        ProblemFileError, match=r"sizes\[7\]: more than 16,777,216 lane accesses of all sizes"
    ):
        found(large)


def test_constraints_hold_at_every_size():
    common = found(file(layout={"families": ["none", "pad"]}))
    assert to_text(common.offset) == "x0*(N + 1) + x1"
    assert [size.excess for size in common.sizes] == [0, 0, 0]
    with pytest.raises(LayoutError, match="holds every size"):
        found(file(layout={"max_bytes": 8192}))


def test_dimensions_in_another_order():
    """Columns of any height: only contiguous ones have no conflicts in as few bytes."""
    common = found(file([{"M": 32, "N": 32}, {"M": 33, "N": 32}], accesses=[file()["accesses"][1]]))
    assert to_text(common.offset) == "x1*M + x0"
    assert [size.excess for size in common.sizes] == [0, 0]


def test_a_pad_after_every_so_many_elements():
    """Strides on one dimension: no row to pad."""
    accesses = [reads("strided", 4, ["tid * (M // 128)"]), writes("neighbours", 4, ["tid"])]
    raw = file([{"M": 1024}, {"M": 2048}], accesses=accesses, threads=128)
    raw["tile"] = {"shape": ["M"], "element": "f32"}
    common = found(raw)
    assert [size.excess for size in common.sizes] == [0, 0]
    assert to_text(common.offset) == "x0 + x0 // 32"


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
    assert [(size.values["T"], size.excess, size.bytes) for size in common.sizes] == [
        (name, 0, 8192) for name in ("f64", "f32", "f16", "bf16")
    ]
    padded = found(types(layout={"families": ["pad"]}))
    assert [size.excess for size in padded.sizes] == [0, 0, 0, 0]


def compiled(folder, text, call):
    source = folder / "t.cpp"
    source.write_text(
        text.replace("#pragma once\n", "") + f'static_assert({call}, "");\nint main() {{ return 0; }}\n'
    )
    command = ["g++", "-std=c++14", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", source]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("lang", ["cuda", "hip"])
def test_the_header_compiles_for_its_sizes_and_no_others(tmp_path, lang):
    raw = file()
    text = sizes_header(raw, found(raw), "t", lang)
    right = "t_columns_bytes<64, 32>(33, 1) == 4 * (33 * 32 + (4 ^ 1)) && t_bytes<64, 64>() == 16384"
    assert compiled(tmp_path, text, right).stderr == ""
    assert "a size that was not solved" in compiled(tmp_path, text, "t_offset_bytes<9, 32>(0, 0) == 0").stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
def test_a_type_is_any_of_its_size_and_alignment(tmp_path):
    raw = types()
    text = sizes_header(raw, found(raw), "t")
    assert "template <typename T, int V>" in text
    right = "t_columns_bytes<{}, {}>(33, 1) == {} * (33 * 8 * {} + (2 * {} ^ 33 % 8 * {}))"
    known = (("float", 4), ("double", 2), ("short", 8))
    calls = " && ".join(right.format(t, v, 16 // v, v, v, v) for t, v in known)
    other = "struct two { char bytes[2]; }; struct alignas(16) four { float x; };\n"
    assert compiled(tmp_path, text + other, f"{calls} && t_bytes<two, 8>() == 8192").stderr == ""
    for wrong in ("t_bytes<float, 8>()", "t_rows_bytes<four, 4>(0, 0)"):
        assert "a size that was not solved" in compiled(tmp_path, text + other, f"{wrong} > 0").stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
def test_structures_of_several_sizes(tmp_path):
    """The size of an element may be a parameter itself."""
    raw = data_of(
        "4x32, 128 threads", writes("one", "4*B", ["tid // 32", "tid % 32"]), element={"bytes": "4*B"}
    )
    raw["sizes"] = [{"B": 1}, {"B": 2}, {"B": 4}]
    text = sizes_header(raw, found(raw), "t")
    assert compiled(tmp_path, text, "t_one_bytes<2>(33) == 8 * 33 && t_bytes<4>() == 2048").stderr == ""


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


def test_the_order_of_the_file_is_that_of_the_formula():
    columns = writes("columns", 4, ["i", "tid % N"], i="M")
    for families, formula in (
        (["none"], "x1*M + x0"),
        (["none", "xor"], "x1*M + (x0 ^ x1 % 32)"),
        (["none", "pad"], "x1*(M + 1) + x0"),
    ):
        layout = {"order": [1, 0], "families": families}
        assert to_text(found(file(threads=32, accesses=[columns], layout=layout)).offset) == formula


def test_every_pitch_is_the_multiple_that_is_asked_for():
    """Of x1*(M*N) + x0*N + x2, that of x0, too."""
    layers = reads("layers", 4, ["0", "tid % M", "0"])
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
