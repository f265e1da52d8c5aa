"""Code for what the hardware does by itself, and of several tiles in every language, read back from what `solve` printed."""

import copy
import json
import subprocess
import sys

import numpy as np
import pytest
from command import answer, layoutopt, refused
from conftest import ROOT
from emit_programs import GCC, GXX, built, emit
from hardware_tiles import FILL, MEASURED, solved
from test_emit_languages import is_where_cute_puts_it
from written import access_from, data_of, one_tile, problem_of, refused_with, saved

from layoutopt import solve
from layoutopt.codegen.block import code_of
from layoutopt.codegen.cute import tiling
from layoutopt.codegen.languages import plan, run_plan
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.codegen.selftest import program
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.files.result_file import answer_from_data
from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS, device
from layoutopt.study.block import check_answer, placed, placed_in_use


def test_code_has_constants_and_copies():
    problem, result = solved(FILL, access_from("A: wgmma.A"), shape=(128, 128))
    text = emit("cuda", problem, device("sm_90"), result)
    for line in (
        "constexpr uint32_t block_fill_boxes = 2;",
        "constexpr uint32_t block_fill_box_dim[2] = {64, 128};  // innermost first",
        "constexpr uint64_t block_A_fields = 0x4000004000010000ull;  // start address 0",
        "return encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, global, extents, strides, block_fill_box_dim, ones,",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes",
    ):
        assert line in text
    assert "block_alignment = 1024" in text
    assert "cp.async.bulk" not in emit("c", problem, device("sm_90"), result)


USES = """
#include <cuda.h>
#include "code.cuh"
using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
CUresult maps(Encode encode, CUtensorMap* map, void* global, const cuuint64_t* extents, const cuuint64_t* strides) {
    const CUresult first = block_fill_encode(encode, map, global, extents, strides);
    return first == CUDA_SUCCESS ? block_back_encode(encode, map + 1, global, extents, strides) : first;
}
__global__ void kernel(const __grid_constant__ CUtensorMap map, const void* row, uint64_t* out) {
    extern __shared__ unsigned char smem[];
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(smem), barrier = base + block_bytes;
    block_fill(base, &map, barrier, 64, 128, 3);
    block_row(base, row, barrier, 1);
    block_row_store(base, out, 2);
    block_shared(base, &map, barrier, out == row, 3, 0, 0, 0);
    block_back(base, &map, 0, 0, 0);
    for (uint32_t i = 0; i < block_A_instructions; ++i) out[i] = block_A_descriptor(base, i);
}
"""


@pytest.fixture(scope="module")
def header():
    """All that may be emitted: three dimensions, two boxes, matrices, bulk copies of 16 bytes."""
    problem, result = solved(
        {**FILL, "box": [1, 128, 64], "mode": "128B"},
        {"name": "back", "op": "tma.store", "box": [1, 64, 64]},
        access_from("A: wgmma.A"),
        access_from("row: cp.async.bulk 16"),
        {"name": "shared", "op": "tma.load", "multicast": 2},
        shape=(2, 128, 64),
        block={"cluster": 2},
    )
    assert result.layout is not None, result.reason
    return emit("cuda", problem, device("sm_90"), result)


@pytest.mark.skipif(GXX is None, reason="no C++ compiler on this machine")
def test_constants_compile_as_plain_cpp(header, tmp_path):
    built(tmp_path, header, "-std=c++14", "-fsyntax-only")


@pytest.mark.nvcc
def test_nvcc_assembles_the_copies_and_the_encode_calls(header, tmp_path):
    (tmp_path / "code.cuh").write_text(header)
    (tmp_path / "code.cu").write_text(USES)
    flags = ["-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Werror", "all-warnings"]
    subprocess.run(["nvcc", *flags, "-c", "code.cu"], cwd=tmp_path, check=True)


def test_an_h200_did_what_was_emitted():
    """Copies and products in every mode, bulk copies and clusters, and the fragments of products."""
    files = (ROOT / f"tests/data/h200_{name}.json" for name in ("copies", "fragments"))
    copies, fragments = (json.loads(file.read_text()) for file in files)
    ran = [*MEASURED["copies"], *MEASURED["products"], *copies["cases"]]
    assert not [case for case in ran if case["wrong"] or case.get("error")]
    assert [row["error"] for row in copies["swizzles"][1:]] == 3 * ["encode: CUresult 1"]  # INVALID_VALUE
    assert all(all(fragments[kind].values()) for kind in ("products", "matrices"))


@pytest.mark.parametrize("case", [c for c in MEASURED["products"] if "counted" in c], ids=lambda c: c["name"])
def test_the_epilogue_takes_the_wavefronts_that_are_predicted(case):
    stores = {
        "stmatrix.x4": {"op": "stmatrix.x4", "fragment": "wgmma.m64n8k16.C.f16", "warps": [2, 1], "repeat": {"n": 16}},
        "st.shared.v4": {"op": "store", "bytes": 16, "for": {"h": 2, "n": 4},
                         "index": ["16*warp + lane // 4 + 8*h", "8*(lane % 4) + 32*n"]},
    }[case["by"]]  # fmt: skip
    _, result = solved(
        {"name": "accumulators", **stores}, {"name": "out", "op": "tma.store", **case["d"]},
        shape=(128, 128), threads=256,
    )  # fmt: skip
    predicted = result.accesses[0]
    counted = case["counted"]
    assert predicted.wavefronts == counted[f"{WAVEFRONTS}_op_st.sum"]
    assert predicted.bank_conflicts == counted[f"{BANK_CONFLICTS}_op_st.sum"]


@pytest.mark.gpu
@pytest.mark.nvcc
def test_a_hopper_gpu_does_what_is_emitted(tmp_path):
    """Every mode of TMA and wgmma, on a GPU of compute capability 9.0: scripts/measure/validate_hopper.py."""
    script = ROOT / "scripts/measure/validate_hopper.py"
    subprocess.run([sys.executable, script, "--write", tmp_path], check=True)
    measure = [sys.executable, script, "--measure", tmp_path]
    done = subprocess.run(measure, check=True, capture_output=True, text=True)
    assert done.stdout.count("wrong: none") == 2


@pytest.mark.parametrize(
    ("shape", "fill", "said"),
    [
        ((16, 64), {}, ("_fill_box_bytes = 512;", "_fill_box_dim[2] = {32, 16};")),
        ((16, 128), {"box": [16, 64]}, ("_fill_boxes = 2;", "static_assert(block_fill_start_0(1) == 32")),
    ],
)
def test_boxes_of_elements_that_share_bytes_are_tested_as_those_bytes(shape, fill, said):
    problem, result = solved({**FILL, **fill, "mode": "32B"}, shape=shape, element="i4")
    text = program(run_plan(problem, device("sm_90"), result))
    assert ([one in text for one in said], "@" in text) == ([True, True], False)


A = access_from("A: wgmma.A")
B = {"name": "B", "op": "wgmma.B", "major": "MN"}

# Accesses, shape, element, what Gluon prints, and the atom, how it is repeated, and CuTe's coordinates.
CASES = {
    "K major": ([FILL, A], (128, 64), "f16", "(128, 16, 2)", "K_SW128", "1, 2", "x0, x1"),
    "pages": ([FILL, A], (128, 128), "bf16", "(128, 16, 2)", "K_SW128", "1, 2", "x0, x1"),
    "64 bytes": ([{**FILL, "mode": "64B"}, A], (64, 64), "f16", "(64, 16, 2)", "K_SW64", "1, 2", "x0, x1"),
    "MN major": ([FILL, B], (64, 128), "bf16", "(128, 16, 2)", "MN_SW128", "2, 1", "x1, x0"),
    "bytes": ([FILL, {**A, "mode": "32B"}], (64, 32), "e4m3", "(32, 8, 2)", "K_SW32", "1, 2", "x0, x1"),
    "turned": ([{**FILL, "order": [1, 0], "mode": "128B"}], (64, 32), "f32", "(128, 32, 2, transposed=True)",
               "MN_SW128", "2, 1", "x0, x1"),
    "matrices": ([FILL, A], (2, 64, 64), "f16", "(128, 16, 3)", "K_SW128", "1, 2, 3", "x1, x2, x0"),
    "groups of rows": ([A], (64, 64), "f16", None, "K_INTER", "2, 1", "x0, x1"),
    "core matrices": ([{**FILL, "mode": "none"}, A], (64, 64), "f16", None, "K_INTER", "1, 2", "x0, x1"),
}  # fmt: skip


def dictated(name):
    accesses, shape, element = CASES[name][:3]
    more = {"published": {"offset": GROUPS, "bytes": 8192}} if name == "groups of rows" else {}
    return from_data(one_tile("t", list(shape), element, 128, accesses, target="sm_90a", **more))


GROUPS = "x0 // 8 * 512 + x1 // 8 * 64 + x0 % 8 * 8 + x1 % 8"


def answered(name):
    problem = dictated(name)
    return problem, device("sm_90"), GROUPS if name == "groups of rows" else solve(problem, time_limit=None)


@pytest.mark.parametrize("name", CASES)
def test_gluon_takes_the_layout_of_matrices(name):
    printed = CASES[name][3]
    if printed is None:
        with refused_with("take NVMMASharedLayout", LayoutError):
            emit("gluon", *answered(name))
    else:
        assert f"gl.NVMMASharedLayout{printed}" in emit("gluon", *answered(name))


@pytest.mark.tools
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[3]])
def test_triton_puts_every_element_there(name):
    pytest.importorskip("triton", reason="Triton is not installed")
    from triton._C.libtriton import gluon_ir, ir

    context = ir.context()
    ir.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    problem, gpu, answer = answered(name)
    space = {}
    exec(emit("gluon", problem, gpu, answer), space)
    shape = list(problem.tile.shape)
    bases = builder.to_linear_layout(space["t_layout"]._to_ir(builder), shape).offset_bases
    want = plan(problem, gpu, answer).table // problem.tile.element_bytes
    for place in range(want.size):
        at = np.zeros(len(shape), int)
        for bit, basis in enumerate(bases):
            at ^= np.array(basis) * (place >> bit & 1)
        assert want[tuple(at)] == place


@pytest.mark.parametrize("name", CASES)
def test_an_atom_tiles_the_layout(name):
    problem, gpu, answer = answered(name)
    found = tiling(plan(problem, gpu, answer))
    *_, atom, step, coordinates = CASES[name]
    assert found.atom == f"Layout_{atom}_Atom"
    assert found.step == ", ".join(f"cute::_{n}" for n in step.split(", "))
    assert ", ".join(f"x{d}" for d in found.dims) == coordinates
    assert f"cute::GMMA::Layout_{atom}_Atom<" in emit("cute", problem, gpu, answer)


def test_a_tile_that_no_atom_tiles_says_so():
    """And where the hardware does nothing by itself, there is nothing to say."""
    for access, said in (({**FILL, "mode": "none"}, True), ("rows: store 2 [tid % 64, 0]", False)):
        problem = problem_of("64x64 f16, 128 threads; target sm_90a", access)
        text = emit("cute", problem, device("sm_90"), "x0*64 + x1")
        assert ("and none does" in text, "GMMA" in text) == (said, said)


@pytest.mark.tools
@pytest.mark.skipif(GXX is None, reason="no C++ compiler on this machine")
def test_cute_puts_every_element_there(tmp_path):
    cases = []
    for number, name in enumerate(("pages", "MN major", "turned", "matrices", "groups of rows")):
        problem, gpu, answer = answered(name)
        text, table = emit("cute", problem, gpu, answer, name=f"t{number}"), plan(problem, gpu, answer).table
        layout = f"t{number}_smem_offset", CASES[name][-1]
        cases.append((text, *layout, table // problem.tile.element_bytes))
    is_where_cute_puts_it(cases, tmp_path)


def test_a_layout_in_use_of_a_mode_is_aligned_as_the_mode_needs_it(tmp_path):
    """Rows of 128 bytes, of which the TMA swizzles eight: given as a formula, or as a result out of a file."""
    load = access_from("r: load 16 [tid, 8*i]; i<8")
    data = data_of("64x64 f16, 64 threads; name m", {"name": "ld", "op": "tma.load", "mode": "128B"}, load)
    path = saved(tmp_path, "p.json", data)
    formula = layoutopt("emit", path, "--lang", "c", "--offset", "x0*64 + (x1 ^ x0 % 8 * 8)")
    assert "m_alignment = 1024" in formula.stdout
    torn = "access 'ld': no tensor map of mode 128B fills boxes in this layout"
    refused(torn, "emit", path, "--lang", "c", "--offset", "x0*72 + x1")
    found = answer("solve", path)
    for change, message in (
        ({"alignment_bytes": 128}, "alignment_bytes: the counts need a base aligned to 1024, not 128"),
        ({"layout": {**found["layout"], "swizzle": []}, "offset": "x0*64 + x1"}, torn),
    ):
        refused(message, "emit", saved(tmp_path, "r.json", {**found, **change}), "--problem", path)


# B and C, of other shapes, share a layout; A is staged and lives beside them.
SET = data_of(
    """32 threads; name set; target sm_90
    tile A: 32x8 f32; stages 2; published 1152 x0*9 + x1
    tile B: 32x8 f32; published 1152 x0*9 + x1
    tile C: 8x32 f32; published 1024 x0*32 + x1
    a: load 4 [lane, i]; i<8; tile A
    b: load 4 [lane, i]; i<8; tile B
    c: store 4 [i, lane]; i<8; tile C""",
    overlay=[["B"], ["C"]],
    same_layout=True,
)


GPU = device("sm_90")


@pytest.fixture(scope="module")
def block_solved():
    tile_set = from_data(SET)
    arrangement = solve(tile_set)
    return tile_set, arrangement, placed(tile_set, GPU, arrangement)


def tables(tile_set, arrangement):
    """Byte offsets of every element from the start of everything, by tile."""
    shapes = {tile.name: tile.shape for tile in tile_set.tiles}
    return {
        name: part.result.table().ravel().reshape(shapes[name]) + part.base_bytes
        for part in arrangement.tiles
        for name in part.tiles
    }


@pytest.mark.skipif(GCC is None, reason="no C compiler")
def test_c_has_every_tile_where_it_lies_in_its_own_coordinates(block_solved, tmp_path):
    tile_set, arrangement, block = block_solved
    printed = "".join(
        f"for (unsigned i = 0; i < {t.shape[0]}; ++i) for (unsigned j = 0; j < {t.shape[1]}; ++j)"
        f' printf("%u ", set_{t.name}_base + set_{t.name}_offset_bytes(i, j));\nputs("");\n'
        for t in tile_set.tiles
    )
    (tmp_path / "set.h").write_text(code_of("c", block))
    includes = '#include <stdio.h>\n#include "set.h"\n#include "set.h"\n'
    text = f"{includes}int main(void) {{\n{printed}return 0; }}\n"
    lines = built(tmp_path, text, "-std=c99", compiler=GCC).splitlines()
    expected = tables(tile_set, arrangement)
    for tile, line in zip(tile_set.tiles, lines, strict=True):
        assert (np.array(line.split(), int).reshape(tile.shape) == expected[tile.name]).all()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_every_tile_and_its_place(block_solved, language):
    tile_set, arrangement, block = block_solved
    text = code_of(language, block)
    parts = {name: part for part in arrangement.tiles for name in part.tiles}
    for name, part in parts.items():
        for constant, value in (("base", part.base_bytes), ("stage_bytes", part.stage_bytes)):
            assert LANGUAGES[language].constant.format(f"set_{name}_{constant}", value) in text
        assert f"set_{name}_{'layout' if language in ('cute', 'gluon', 'tilelang') else 'offset'}" in text
    if LANGUAGES[language].comment == "#":
        compile(text, "set.py", "exec")
    if language == "tilelang":
        exec(text, space := {})
        for name, table in tables(tile_set, arrangement).items():
            offsets = space[f"set_{name}_offset"](*np.indices(table.shape))
            assert (4 * offsets + space[f"set_{name}_base"] == table).all()


def test_a_block_in_use_is_emitted_as_the_file_has_it():
    block = placed_in_use(from_data({**SET, "same_layout": False}), GPU)
    assert [(part.tile, part.base_bytes, part.answer) for part in block.parts] == [
        ("A", 0, "x0*9 + x1"), ("B", 2304, "x0*9 + x1"), ("C", 2304, "x0*32 + x1"),
    ]  # fmt: skip
    assert "set_B_base = 2304" in code_of("cuda", block)
    wrong = copy.deepcopy(SET)
    wrong["tiles"][1]["base_bytes"] = 4
    with refused_with("tiles: the block cannot hold its tiles so: tiles A and B share"):
        placed_in_use(from_data(wrong), GPU)


def test_an_answer_is_read_back_with_its_problem(block_solved):
    tile_set, arrangement, _ = block_solved
    assert answer_from_data(json.loads(json.dumps(arrangement.to_json()))) == arrangement
    check_answer(tile_set, GPU, arrangement)


# What of an answer is changed, to what, and what is said of it.
FORGED = [
    ("tiles.0.base_bytes", 1 << 20, "tiles[0].base_bytes: expected 0, as `places`"),
    ("bytes", 7, "bytes: the tiles end at byte"),
    ("tiles.0.stage_bytes", 4, "tiles[0].stage_bytes: expected 1024, as `places`"),
    ("tiles.0.places.0.stage_bytes", 4, "tiles[0].places[0].stage_bytes: expected 1024 to "),
    ("tiles.0.places.0.stages", 0, "tiles[0].places[0].stages: expected 1 to"),
    ("tiles.0.places.0.stages", 1, "tiles[0].places[0].stages: expected 2, as the file"),
    ("tiles.0.places.0.bytes", 1, "tiles[0].places[0].bytes: A takes 1024, not 1"),
    ("tiles.0.result.excess", 7, "tiles[0].result.excess: the layout gives 0, not 7"),
    ("tiles.1.result.accesses.0.op", "store", "tiles[1].result.accesses[0]: the layout gives"),
    ("alignment_bytes", 3, "alignment_bytes: expected a multiple"),
    ("problem", "other", "problem: the result is of 'other'"),
    ("tiles.0.tiles", ["B"], "tiles[0].places: expected one of each of B"),
    ("tiles.1.bases_bytes", [9], "tiles[1].bases_bytes: expected (2048, 2048)"),
    ("tiles.0.bases_bytes", [4], "tiles[0].bases_bytes: expected (0,)"),
]


@pytest.mark.parametrize(("path", "value", "error"), FORGED)
def test_an_answer_that_does_not_hold_is_refused(block_solved, path, value, error):
    tile_set, arrangement, _ = block_solved
    inside = raw = json.loads(json.dumps(arrangement.to_json()))
    *outer, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in outer:
        inside = inside[key]
    inside[last] = value
    with pytest.raises(ProblemFileError) as caught:
        check_answer(tile_set, GPU, answer_from_data(raw))
    assert str(caught.value).startswith(error)


def test_emit_of_several_tiles_on_the_command_line(tmp_path):
    path = saved(tmp_path, "set.json", SET)
    given = saved(tmp_path, "answer.json", answer("solve", path))
    data = answer("emit", given, "--problem", path, "--lang", "c", "--name", "blk")
    assert [tile["tile"] for tile in data["tiles"]] == ["A", "B", "C"]
    assert "blk_A_base" in data["code"]
    refused("--offset published takes those", "emit", path, "--offset", "x0")


def test_a_language_that_cannot_express_a_tile_names_it():
    tile_set = problem_of("""32 threads; name odd; target sm_90
        tile odd: 24x9 f32
        tile A: 32x8 f32
        r: load 4 [lane % 24, i]; i<9; tile odd
        a: load 4 [lane, i]; i<8; tile A""")
    with pytest.raises(LayoutError, match="tile 'odd': Gluon's shared layouts need extents"):
        code_of("gluon", placed(tile_set, GPU, solve(tile_set)))
