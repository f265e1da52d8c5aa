"""Triton's GPU IR as problems: buffers, what moves to and from them, and the layouts that Triton chose."""

import json

import pytest
from command import layoutopt

from layoutopt.errors import ProblemFileError
from layoutopt.imports.triton_ir import problems
from layoutopt.problems.file import from_data
from layoutopt.study.check import check

HEAD = """
#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#mma = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [2, 2], instrShape = [16, 8]}>
#shared = #ttg.swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [1, 0]}>
#shared1 = #ttg.swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [0, 1]}>
#plain = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:80", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @kernel(%p: !tt.ptr<f16>) {
"""
A = "!ttg.memdesc<128x32xf16, #shared, #smem, mutable>"
PIPELINE = (
    HEAD
    + f"""
    %a = ttg.local_alloc : () -> !ttg.memdesc<3x128x32xf16, #shared, #smem, mutable> loc(#loc1)
    %a0 = ttg.memdesc_index %a[%c0] : !ttg.memdesc<3x128x32xf16, #shared, #smem, mutable> -> {A}
    %t = ttg.async_copy_global_to_local %p0, %a0 mask %m : tensor<128x32x!tt.ptr<f16>, #blocked> -> <128x32xf16, #shared, #smem, mutable>
    scf.for %i = %c0 to %n step %c1 {{
      %s = ttg.memdesc_subslice %a0[0, 16] : {A} -> !ttg.memdesc<128x16xf16, #shared, #smem, mutable, 128x32>
      %v = ttg.local_load %s token %t : !ttg.memdesc<128x16xf16, #shared, #smem, mutable, 128x32> -> tensor<128x16xf16, #ttg.dot_op<{{opIdx = 0, parent = #mma, kWidth = 2}}>>
    }}
  }}
}}
"""
)


def test_a_pipeline_is_a_tile_with_its_copies_and_matrix_loads():
    (data,) = problems(PIPELINE)
    assert (data["name"], data["target"], data["threads"]) == ("kernel a", "sm_80", 128)
    assert data["tile"] == {"shape": [128, 32], "element": "f16"}
    copy, load = data["accesses"]
    assert (copy["op"], copy["bytes"]) == ("cp.async", 16)
    assert load["op"] == "ldmatrix.x4"
    assert load["index"][1].endswith("+ 16")  # the slice starts there
    audit = check(from_data(data), data["published"]["offset"])
    assert [(a.wavefronts, a.ideal) for a in audit.accesses] == [(64, 64), (64, 64)]


def test_without_a_swizzle_triton_would_have_conflicts():
    (data,) = problems(PIPELINE.replace("#shared,", "#plain,"))
    audit = check(from_data(data), data["published"]["offset"])
    assert data["accesses"][0]["bytes"] == 16
    assert audit.excess > 0


def test_what_registers_and_layout_keep_together_is_moved_at_once():
    text = (
        HEAD
        + """
    %a = ttg.local_alloc %v : (tensor<128x32xf16, #blocked>) -> !ttg.memdesc<128x32xf16, #four, #smem>
    %w = ttg.local_load %a : !ttg.memdesc<128x32xf16, #four, #smem> -> tensor<128x32xf16, #blocked>
    """
    )
    four = "#four = #ttg.swizzled_shared<{vec = 4, perPhase = 2, maxPhase = 8, order = [1, 0]}>\n"
    (data,) = problems(four + text)
    assert [(a["op"], a["bytes"]) for a in data["accesses"]] == [("store", 8), ("load", 8)]


def test_the_contiguous_dimension_comes_last():
    text = (
        HEAD
        + """
    %a = ttg.local_alloc %v : (tensor<128x32xf16, #blocked>) -> !ttg.memdesc<128x32xf16, #shared1, #smem>
    """
    )
    (data,) = problems(text)
    assert data["tile"]["shape"] == [32, 128]
    assert data["accesses"][0]["bytes"] == 2
    assert check(from_data(data), data["published"]["offset"]).bytes == 8192


def test_a_transposed_view_is_the_same_buffer():
    text = (
        HEAD
        + """
    %a = ttg.local_alloc %v : (tensor<128x32xf16, #blocked>) -> !ttg.memdesc<128x32xf16, #shared, #smem>
    %t = ttg.memdesc_trans %a {order = array<i32: 1, 0>} : !ttg.memdesc<128x32xf16, #shared, #smem> -> !ttg.memdesc<32x128xf16, #shared1, #smem>
    %w = ttg.local_load %t : !ttg.memdesc<32x128xf16, #shared1, #smem> -> tensor<32x128xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 2}>>
    """
    )
    (data,) = problems(text)
    assert [a["op"] for a in data["accesses"]] == ["store", "ldmatrix.x4"]
    assert check(from_data(data), data["published"]["offset"]).excess == 0


def test_what_wgmma_reads_must_be_a_layout_of_its():
    text = (
        HEAD
        + """
    %a = ttg.local_alloc %v : (tensor<128x64xf16, #blocked>) -> !ttg.memdesc<128x64xf16, #nv, #smem>
    %d = ttng.warp_group_dot %a, %b, %c : !ttg.memdesc<128x64xf16, #nv, #smem> * !ttg.memdesc<64x128xf16, #nv, #smem> -> tensor<128x128xf32, #mma>
    """
    )
    nv = "#nv = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>\n"
    (data,) = problems(nv + text.replace("cuda:80", "cuda:90"))
    assert data["layout"] == {"must_be": "wgmma"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("module {}", "the module's attributes lack target, warps, lanes"),
        (HEAD.replace("per-warp\" = 32", "per-warp\" = 64"), "warps of 64 threads"),
        (HEAD + "%a = ttg.local_alloc : () -> !ttg.memdesc<8x8xf16, #gone, #smem>\n", "cannot read"),
        (HEAD + "%a = ttg.local_alloc : () -> !ttg.memdesc<8x8xi7, #shared, #smem>\n", "unknown element 'i7'"),
        (HEAD + "%a = ttg.memdesc_subslice %b[%c, 0] : !ttg.memdesc<8x8xf16, #shared>\n", "no constant"),
        (PIPELINE.replace("ptr<f16>, #blocked>", "ptr<f16>>"), "a shape and a layout, got the type '128x32x!tt.ptr"),
    ],
)  # fmt: skip
def test_wrong_ir_names_the_line(text, reason):
    with pytest.raises(ProblemFileError) as caught:
        list(problems(text))
    assert reason in str(caught.value)


def test_import_writes_a_folder_that_check_takes(tmp_path):
    (tmp_path / "kernel.ttgir").write_text(PIPELINE)
    done = layoutopt("import", "ttgir", tmp_path / "kernel.ttgir", "-o", tmp_path / "tiles")
    assert done.returncode == 0, done.stderr
    assert json.loads(layoutopt("check", tmp_path / "tiles", "--json", "--no-fix").stdout)["excess"] == 0
    (tmp_path / "empty.ttgir").write_text(HEAD)
    empty = layoutopt("import", "ttgir", tmp_path / "empty.ttgir", "-o", tmp_path / "none")
    assert (empty.returncode, (tmp_path / "none").exists()) == (2, False)


def test_a_slice_that_leaves_its_buffer_is_an_error():
    with pytest.raises(ProblemFileError, match="leaves its buffer of 128x16 elements"):
        list(problems(PIPELINE.replace("mutable, 128x32>", "mutable, 128x16>")))
