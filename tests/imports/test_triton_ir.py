"""Triton's GPU IR as problems: buffers, what moves to and from them, and the layouts that Triton chose."""

import json
import math
import random
import re

import pytest
from command import layoutopt
from oracle.conversions import element
from written import access_from, refused_with

from layoutopt import check
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.imports.triton import linear_bases
from layoutopt.imports.triton_ir import conversions, problems
from layoutopt.imports.triton_stages import of_reduction, of_scan

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


def memory(shape, layout="#shared"):
    return f"!ttg.memdesc<{shape}, {layout}, #smem, mutable>"


def stored(shape, layout, tensor="#blocked"):
    return f"    %a = ttg.local_alloc %v : (tensor<{shape}, {tensor}>) -> {memory(shape, layout)}\n"


def loaded(shape, layout, tensor="#blocked", name="%a"):
    return f"    %w = ttg.local_load {name} : {memory(shape, layout)} -> tensor<{shape}, {tensor}>\n"


def blocks(threads, warps, vector=1, name="#b"):
    """A layout of registers whose lanes have vectors along the last dimension."""
    sizes = [*[1] * (len(threads) - 1), vector]
    counts = f"sizePerThread = {sizes}, threadsPerWarp = {threads}, warpsPerCTA = {warps}"
    return f"{name} = #ttg.blocked<{{{counts}, order = {list(range(len(threads)))[::-1]}}}>\n"


A = memory("128x32xf16")
PIPELINE = f"""{HEAD}
    %a = ttg.local_alloc : () -> {memory("3x128x32xf16")} loc(#loc1)
    %a0 = ttg.memdesc_index %a[%c0] : {memory("3x128x32xf16")} -> {A}
    %t = ttg.async_copy_global_to_local %p0, %a0 mask %m : tensor<128x32x!tt.ptr<f16>, #blocked> -> <128x32xf16, #shared, #smem, mutable>
    scf.for %i = %c0 to %n step %c1 {{
      %s = ttg.memdesc_subslice %a0[0, 16] : {A} -> !ttg.memdesc<128x16xf16, #shared, #smem, mutable, 128x32>
      %v = ttg.local_load %s token %t : !ttg.memdesc<128x16xf16, #shared, #smem, mutable, 128x32> -> tensor<128x16xf16, #ttg.dot_op<{{opIdx = 0, parent = #mma, kWidth = 2}}>>
    }}
  }}
}}
"""


def ops(*found):
    """What happens to each buffer."""
    return [[access["op"] for access in data["accesses"]] for data in found]


def audited(data):
    return check(from_data(data), data["published"]["offset"])


def test_a_pipeline_is_a_tile_with_its_copies_and_matrix_loads():
    (data,) = problems(PIPELINE)
    assert (data["name"], data["target"], data["threads"]) == ("kernel a", "sm_80", 128)
    assert data["tile"] == {"shape": [128, 32], "element": "f16"}
    copy, load = data["accesses"]
    assert (copy["op"], copy["bytes"], load["op"]) == ("cp.async", 16, "ldmatrix.x4")
    assert load["index"][1].endswith("+ 16")  # the slice starts there
    assert [(a.wavefronts, a.ideal) for a in audited(data).accesses] == [(64, 64), (64, 64)]


# What an mma.m16n8k16 holds of the second operand of Q K^T, transposed; and with lanes in another order.
HELD = "#linear = #ttg.linear<{register = [[0, 1], [0, 8], [0, 16], [8, 0], [16, 0]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[0, 0], [0, 0]], block = []}>\n"
OTHER_ORDER = HELD.replace(
    "[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]", "[0, 1], [0, 2], [0, 4], [2, 0], [4, 0]"
).replace("[[0, 1], [0, 8]", "[[1, 0], [0, 8]")
FOUR = "#four = #ttg.swizzled_shared<{vec = 4, perPhase = 2, maxPhase = 8, order = [1, 0]}>\n"
TURNED = f"    %t = ttg.memdesc_trans %a {{order = array<i32: 1, 0>}} : {A} -> {memory('32x128xf16', '#shared1')}\n"
HOPPER_HEAD = HEAD.replace("cuda:80", "cuda:90")
# A product of 4 pairs of matrices, with the layouts that Triton 3.9 gives it for sm_80, and for sm_75.
BATCH = (
    blocks([1, 8, 4], [1, 4, 1], 8)
    + "#batch = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [4, 1, 1], instrShape = [1, 16, 8]}>\n"
    + "#third = #ttg.swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [2, 0, 1]}>\n"
)
DOT = "#ttg.dot_op<{{opIdx = {}, parent = #batch, kWidth = 2}}>"
FMA = "#fma = #ttg.blocked<{sizePerThread = [1, 4, 4], threadsPerWarp = [1, 4, 8], warpsPerCTA = [2, 2, 1], order = [2, 1, 0]}>\n"
# A kernel; the extents of its buffer, its operations and the bytes of a lane in each, and the excess of Triton's layout.
MOVED = {
    "without a swizzle there are conflicts": (
        PIPELINE.replace("#shared,", "#plain,"), [128, 32], [("cp.async", 16), ("ldmatrix.x4", 4)], 192,
    ),
    "what registers and layout keep together is moved at once": (
        FOUR + HEAD + stored("128x32xf16", "#four") + loaded("128x32xf16", "#four"),
        [128, 32], [("store", 8), ("load", 8)], 0,
    ),
    "the contiguous dimension comes last": (HEAD + stored("128x32xf16", "#shared1"), [32, 128], [("store", 2)], 384),
    "a transposed view is the same buffer": (
        HEAD + stored("128x32xf16", "#shared") + TURNED
        + loaded("32x128xf16", "#shared1", "#ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 2}>", "%t"),
        [128, 32], [("store", 16), ("ldmatrix.x4", 8)], 0,
    ),
    "any registers that hold matrices are loaded as such": (
        HELD + HEAD + stored("32x32xf16", "#shared") + loaded("32x32xf16", "#shared", "#linear"),
        [32, 32], [("store", 16), ("ldmatrix.x4", 4)], 0,
    ),
    "lanes in another order hold none": (
        OTHER_ORDER + HEAD + stored("32x32xf16", "#shared") + loaded("32x32xf16", "#shared", "#linear"),
        [32, 32], [("store", 16), ("load", 2)], 0,
    ),
    # Triton 3.9 compiles so many stmatrix.x4 and ldmatrix.x4 of these for sm_90.
    "rows of bytes": (
        blocks([8, 4], [4, 1], 4) + HOPPER_HEAD + stored("64x64xi8", "#plain", "#b") + loaded("64x64xi8", "#plain", "#b"),
        [64, 64], [("stmatrix.x4", 2), ("ldmatrix.x4", 2)], 192,
    ),
    "rows of words": (
        blocks([8, 4], [4, 1]) + HOPPER_HEAD + stored("64x64xf32", "#plain", "#b") + loaded("64x64xf32", "#plain", "#b"),
        [64, 64], [("stmatrix.x4", 8), ("ldmatrix.x4", 8)], 1792,
    ),
    "matrices of a batch, one operand across its rows": (
        BATCH + HEAD + stored("4x32x32xf16", "#third", "#b") + loaded("4x32x32xf16", "#third", DOT.format(0))
        + loaded("4x32x32xf16", "#third", DOT.format(1)),
        [4, 32, 32], [("store", 16), ("ldmatrix.x4", 4), ("ldmatrix.x4.trans", 4)], 960,
    ),
    "the same without matrix instructions": (
        BATCH + FMA + HEAD + stored("4x32x32xf32", "#third", "#b")
        + loaded("4x32x32xf32", "#third", "#ttg.dot_op<{opIdx = 1, parent = #fma}>"),
        [4, 32, 32], [("store", 16), ("load", 16)], 128,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_what_moves_to_and_from_a_buffer(name):
    """Of matrix instructions, how many; of others, the bytes of a lane."""
    text, shape, moves, excess = MOVED[name]
    (data,) = problems(text)
    assert data["tile"]["shape"] == shape
    found = [(a["op"], a.get("bytes", a.get("for", {}).get("i"))) for a in data["accesses"]]
    assert (found, audited(data).excess) == (moves, excess)


HOPPER = (
    """
#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#mma = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>
#nv = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#turned = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = true, elementBitWidth = 16}>
#bars = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @kernel(%p: !tt.ptr<f16>) {
    %a = ttg.local_alloc : () -> !ttg.memdesc<2x128x64xf16, #nv, #smem, mutable>
    %b = ttg.local_alloc : () -> !ttg.memdesc<2x64x64xf16, #nv, #smem, mutable>
    %a0 = ttg.memdesc_index %a[%c0] : !ttg.memdesc<2x128x64xf16, #nv, #smem, mutable> -> !ttg.memdesc<128x64xf16, #nv, #smem, mutable>
    ttng.async_tma_copy_global_to_local %d[%x, %k] %a0, %bar, %true : !tt.tensordesc<128x64xf16, #nv>, !ttg.memdesc<1xi64, #bars, #smem, mutable> -> !ttg.memdesc<128x64xf16, #nv, #smem, mutable>
    %b0 = ttg.memdesc_index %b[%c0] : !ttg.memdesc<2x64x64xf16, #nv, #smem, mutable> -> !ttg.memdesc<64x64xf16, #nv, #smem, mutable>
    ttng.async_tma_copy_global_to_local %e[%y, %k] %b0, %bar, %true : !tt.tensordesc<64x64xf16, #nv>, !ttg.memdesc<1xi64, #bars, #smem, mutable> -> !ttg.memdesc<64x64xf16, #nv, #smem, mutable>
    %t = ttg.memdesc_trans %b0 {order = array<i32: 1, 0>} : !ttg.memdesc<64x64xf16, #nv, #smem, mutable> -> !ttg.memdesc<64x64xf16, #turned, #smem, mutable>
    %acc = ttng.warp_group_dot %a0, %t, %acc0 {isAsync = true} : !ttg.memdesc<128x64xf16, #nv, #smem, mutable> * !ttg.memdesc<64x64xf16, #turned, #smem, mutable> -> tensor<128x64xf32, #mma>
    %w:3 = ttng.warp_group_dot_wait %acc, %a0, %t {pendings = 0 : i32} : tensor<128x64xf32, #mma>, !ttg.memdesc<128x64xf16, #nv, #smem, mutable>, !ttg.memdesc<64x64xf16, #turned, #smem, mutable>
    %o = ttg.local_alloc %r : (tensor<128x64xf16, #mma>) -> !ttg.memdesc<128x64xf16, #nv, #smem>
    ttng.async_tma_copy_local_to_global %f[%x, %y] %o : !tt.tensordesc<128x64xf16, #nv>, !ttg.memdesc<128x64xf16, #nv, #smem>
"""
)  # fmt: skip


def test_what_the_hardware_does_by_itself_is_an_access():
    found = list(problems(HOPPER))
    # The result leaves through a buffer of its own, though it has A's type; the second operand is read through its
    # transpose: K is the contiguous dimension there, too.
    assert ops(*found) == [["tma.load", "wgmma.A"], ["tma.load", "wgmma.B"], ["stmatrix.x4", "tma.store"]]
    assert found[1]["accesses"] == [{"name": op, "op": op} for op in ("tma.load", "wgmma.B")]
    for data in found:
        audit = audited(data)
        modes = {x.descriptor.mode for x in audit.accesses if x.descriptor is not None}
        assert (modes, audit.excess, "layout" in data) == ({"128B"}, 0, False)


def test_an_operand_across_its_rows_is_mn_major():
    direct = HOPPER.replace("* !ttg.memdesc<64x64xf16, #turned", "* !ttg.memdesc<64x64xf16, #nv")
    direct = direct.replace("%a0, %t, %acc0", "%a0, %b0, %acc0")
    _, b, _ = problems(direct)
    assert b["accesses"][1] == {"name": "wgmma.B", "op": "wgmma.B", "major": "MN"}
    registers = HOPPER.replace("%a0, %t, %acc0", "%ra, %t, %acc0").replace(
        ": !ttg.memdesc<128x64xf16, #nv, #smem, mutable> * ",
        ": tensor<128x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>> * ",
    )
    assert ops(*problems(registers))[:2] == [["tma.load"], ["tma.load", "wgmma.B"]]


def test_blackwell_reads_both_operands_from_shared_memory():
    text = HOPPER.replace("cuda:90", "cuda:100").replace("ttng.warp_group_dot ", "ttng.tc_gen5_mma ")
    a, b, _ = problems(text.replace("mutable> * !ttg", "mutable>, !ttg"))
    assert ops(a, b) == [["tma.load", "tcgen05.A"], ["tma.load", "tcgen05.B"]]


def test_a_buffer_may_be_read_by_its_rows_and_across_them():
    second = "    %o2 = ttng.warp_group_dot %a0, %b0, %acc0 : !ttg.memdesc<128x64xf16, #nv, #smem, mutable> * !ttg.memdesc<64x64xf16, #nv, #smem, mutable> -> tensor<128x64xf32, #mma>\n"
    _, b, _ = problems(HOPPER + second)
    across = {"name": "wgmma.B 1", "op": "wgmma.B", "major": "MN"}
    assert b["accesses"][1:] == [access_from("wgmma.B: wgmma.B"), across]
    assert audited(b).excess == 0


def test_an_operand_without_matrix_instructions():
    operand = "#ttg.dot_op<{opIdx = 1, parent = #b}>"
    moved = stored("8x32xf32", "#plain") + loaded("8x32xf32", "#plain", operand)
    (data,) = problems(blocks([2, 16], [4, 1], 2) + HEAD + moved)
    _, access = data["accesses"]
    # Every row of the column pairs that a lane multiplies; half of the lanes hold the same.
    assert (access["bytes"], access["index"], access["for"]) == (8, ["i", "tid % 16 * 2"], {"i": 8})


CDNA4 = """
#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#mma = #ttg.amd_mfma<{version = 4, warpsPerCTA = [2, 2], instrShape = [32, 32, 16], isTransposed = true}>
#flip = #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {
  tt.func public @kernel(%p: !tt.ptr<f16>) {
    %b = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #flip, #smem, mutable>
    %t = OPERATION -> <64x64xf16, #flip, #smem, mutable>
    %v = ttg.local_load %b token %t : !ttg.memdesc<64x64xf16, #flip, #smem, mutable> -> tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>
"""


@pytest.mark.filterwarnings("ignore::layoutopt.errors.DisputedRuleWarning")
@pytest.mark.parametrize(
    "operation",
    [
        "ttg.async_copy_global_to_local %p0, %b {contiguity = 8 : i32} : tensor<64x64x!tt.ptr<f16>, #blocked>",
        "amdg.buffer_load_to_local %p0[%off] into %b : <f16>[tensor<64x64xi32, #blocked>] ",
    ],
)
def test_copies_past_the_registers_and_transposing_loads_of_cdna4(operation):
    (data,) = problems(CDNA4.replace("OPERATION", operation))
    copy, load = data["accesses"]
    # Side by side in shared memory, so that each lane fetches what the swizzle puts at its place.
    assert (copy["op"], load["op"]) == ("buffer_load_dwordx4.lds", "ds_read_b64_tr_b16")
    assert [(x.wavefronts, x.ideal) for x in audited(data).accesses] == [(64, 64), (128, 64)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("module {}", "the module's attributes lack target, warps, lanes"),
        (HEAD.replace("per-warp\" = 32", "per-warp\" = 64"), "warps of 64 threads"),
        (HEAD + "%a = ttg.local_alloc : () -> !ttg.memdesc<8x8xf16, #gone, #smem>\n", "cannot read"),
        (HEAD + "%a = ttg.local_alloc : () -> !ttg.memdesc<8x8xi7, #shared, #smem>\n", "unknown element 'i7'"),
        (HEAD + "%a = ttg.memdesc_subslice %b[%c, 0] : !ttg.memdesc<8x8xf16, #shared>\n", "no constant"),
        (PIPELINE.replace("ptr<f16>, #blocked>", "ptr<f16>>"), "a shape and a layout, got the type '128x32x!tt.ptr"),
        (PIPELINE.replace("%a0[0, 16]", "%a0[0, 24]"), "leaves its buffer of 128x32 elements"),
    ],
)  # fmt: skip
def test_wrong_ir_names_the_line(text, reason):
    with refused_with(reason):
        list(problems(text))


def test_import_writes_a_folder_that_check_takes(tmp_path):
    (tmp_path / "kernel.ttgir").write_text(PIPELINE)
    done = layoutopt("import", "ttgir", tmp_path / "kernel.ttgir", "-o", tmp_path / "tiles")
    assert done.returncode == 0, done.stderr
    assert json.loads(layoutopt("check", tmp_path / "tiles", "--json", "--no-fix").stdout)["excess"] == 0
    (tmp_path / "empty.ttgir").write_text(HEAD)
    empty = layoutopt("import", "ttgir", tmp_path / "empty.ttgir", "-o", tmp_path / "none")
    assert (empty.returncode, (tmp_path / "none").exists()) == (2, False)


DOWN = "#down = #ttg.blocked<{sizePerThread = [8, 1], threadsPerWarp = [8, 4], warpsPerCTA = [1, 4], order = [0, 1]}>\n"
BUFFER = memory("64x32xf16")
ROWS_AND_COLUMNS = f"""{DOWN}{HEAD}
    %0 = ttg.local_alloc : () -> {memory("3x64x32xf16")}
    %1 = ttg.local_alloc : () -> {BUFFER}
    %c2_i32 = arith.constant 2 : i32
    %2 = ttg.memdesc_index %0[%c2_i32] : {memory("3x64x32xf16")} -> {BUFFER}
"""
STORE = f"ttg.local_store %v, %1 : tensor<64x32xf16, #blocked> -> {BUFFER}\n"


def load(name):
    return loaded("64x32xf16", "#shared", "#down", name)


def reached(text):
    """What happens to each buffer of a kernel that has two of one type."""
    return {
        data["name"].split()[1]: [x["name"].split()[0] for x in data["accesses"]]
        for data in problems(ROWS_AND_COLUMNS + text)
    }


def test_buffers_of_one_type_are_two():
    assert reached(STORE + load("%2")) == {"0": ["load"], "1": ["store"]}
    assert reached(STORE + load("%1")) == {"1": ["store", "load"]}
    with refused_with("line 16: cannot tell which buffer %b is"):  # though there is one of its type
        reached(load("%b"))


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("%f = scf.for %i = %x to %y step %z iter_args(%b = %2) -> (T)  : i32 {\nLOAD\nscf.yield %b : T\n}", {"0": ["load"]}),
        ("%f:2 = scf.for %i = %x to %y step %z iter_args(%a = %2, %b = %1) -> (T, T)  : i32 {\nLOAD\nscf.yield %b, %a : T, T\n}", {"0": ["load"], "1": ["load"]}),
        ("%f:2 = scf.for %i = %x to %y step %z iter_args(%n = %k, %a = %1) -> (i32, T)  : i32 {\nscf.yield %n, %a : i32, T\n}\nLOAD(%f#1)", {"1": ["load"]}),
        ("%b = scf.if %c -> (T) {\nscf.yield %1 : T\n} else {\nscf.yield %2 : T\n}\nLOAD", {"0": ["load"], "1": ["load"]}),
        ("scf.if %c {\n%b = ttg.local_alloc : () -> T\nLOAD\n} else {\n%b = ttg.memdesc_trans %1 {order = array<i32: 0, 1>} : T -> T\nLOAD\n}", {"b": ["load"], "1": ["load"]}),
        ("%f = scf.while (%a = %1) : (T) -> (T) {\nscf.condition(%c) %a : T\n} do {\n^bb0(%b: T):\nLOAD\nscf.yield %b : T\n}\nLOAD(%f)", {"1": ["load"]}),
        ("ttg.warp_specialize(%x, %2)\ndefault {\n}\npartition0(%a: i32, %b: T) num_warps(4) {\nLOAD\n}", {"0": ["load"]}),
        ("%b = arith.select %c, %1, %2 : T\nLOAD", {"0": ["load"], "1": ["load"]}),
        ("%r = ttg.memdesc_reshape %1 : T -> !ttg.memdesc<2048xf16, #shared, #smem, mutable>\n%b = ttg.memdesc_reshape %r : !ttg.memdesc<2048xf16, #shared, #smem, mutable> -> T\nLOAD", {"1": ["load"]}),
        ("%b = ttg.memdesc_subview %0[%c2_i32, %c2_i32, %c2_i32] : !ttg.memdesc<3x64x32xf16, #shared, #smem, mutable> -> T\nLOAD", None),
        ("%z = arith.constant 0 : i32\n%b = ttg.memdesc_subview %0[%any, %z, %z] : !ttg.memdesc<3x64x32xf16, #shared, #smem, mutable> -> T\nLOAD", {"0": ["load"]}),
        ("}\ntt.func @callee(%b: T, %p: !tt.ptr<f16>) {\nLOAD\n}", {"b": ["load"]}),
    ],
)  # fmt: skip
def test_buffers_are_followed_through_loops_branches_and_views(body, want):
    text = re.sub(r"LOAD(?:\((\S+)\))?", lambda found: load(found[1] or "%b"), body)
    text = re.sub(r"(?<=[ (])T\b", BUFFER, text) + "\n"
    if want is None:
        with refused_with("leaves its buffer"):
            reached(text)
    else:
        assert reached(text) == want


SPECIALISED = (
    HOPPER[: HOPPER.index("    %a0 =")]
    + """
    ttg.warp_specialize(%a, %b) attributes {requestedRegisters = array<i32: 24>}
    default {
      ttg.local_use %a : !ttg.memdesc<2x128x64xf16, #nv, #smem, mutable>
      ttg.warp_yield loc(#loc27)
    }
    partition0(%c: !ttg.memdesc<2x128x64xf16, #nv, #smem, mutable> loc("c"(#loc8)), %d: !ttg.memdesc<2x64x64xf16, #nv, #smem, mutable> loc(callsite("d"(#loc9) at "(f)"(#loc1)))) num_warps(1) {
      %s = ttg.memdesc_index %d[%i] : !ttg.memdesc<2x64x64xf16, #nv, #smem, mutable> -> !ttg.memdesc<64x64xf16, #nv, #smem, mutable>
      ttng.async_tma_gather %e[%rows, %k] %s, %bar, %true : !tt.tensordesc<1x64xf16, #nv>, tensor<64xi32, #ttg.slice<{dim = 0, parent = #blocked}>>, i32, !ttg.memdesc<1xi64, #bars, #smem, mutable>, !ttg.memdesc<64x64xf16, #nv, #smem, mutable>, i1
      %v = ttg.local_load %s : !ttg.memdesc<64x64xf16, #nv, #smem, mutable> -> tensor<64x64xf16, #one>
      ttg.warp_return loc(#loc27)
    }
"""
)  # fmt: skip
SPECIALISED = SPECIALISED.replace("#smem =", f"{blocks([4, 8], [1, 1], 8, '#one')}#smem =", 1)


def test_partitions_have_warps_of_their_own_and_rows_are_gathered_by_tma():
    left_out = []
    (data,) = problems(SPECIALISED, left_out.append)
    load, gather = data["accesses"]
    assert (data["name"], data["threads"], load["where"]) == ("kernel b", 128, "tid < 32")
    assert gather["op"] == "tma.load"
    assert "gather4" in gather["notes"]
    assert [x.wavefronts for x in audited(data).accesses] == [64, 0]
    # What is not read is left out by name; without anybody to tell, it is an error.
    assert left_out == ["kernel a: line 16: local_use is not read"]
    with pytest.raises(ProblemFileError, match="line 16: local_use is not read"):
        list(problems(SPECIALISED))


@pytest.mark.filterwarnings("ignore::layoutopt.errors.DisputedRuleWarning")
def test_operands_of_8_bits_are_read_across_their_rows():
    text = CDNA4.replace("f16", "f8E4M3FN").replace("16]", "64]").replace("kWidth = 8", "kWidth = 16")
    text = text.replace("vec = 8", "vec = 16")
    copy = "ttg.async_copy_global_to_local %p0, %b : tensor<64x64x!tt.ptr<f8E4M3FN>, #blocked>"
    (data,) = problems(text.replace("OPERATION", copy))
    load = data["accesses"][1]
    # Lane l of 16 addresses 8 columns of row l // 2.
    assert load["op"] == "ds_read_b64_tr_b8"
    assert load["index"][0].startswith("lane // 32 * 16 + lane // 2 % 8")


def test_a_file_has_so_many_layouts_and_buffers():
    alias = next(line for line in SPECIALISED.splitlines() if line.startswith("#"))
    names = "".join(f"{alias.replace('#', f'#n{k}_', 1)}\n" for k in range(257))
    with pytest.raises(ProblemFileError, match="at most 256 layouts with a name, given"):
        list(problems(names + SPECIALISED))
    (line,) = [line for line in CDNA4.splitlines() if "local_alloc" in line]
    buffers = "\n".join(line.replace("=", f"_{k} =", 1).replace(f" _{k}", f"_{k}", 1) for k in range(257))
    with pytest.raises(ProblemFileError, match="more than 256 buffers"):
        list(problems(CDNA4.replace(line, buffers)))


def test_lanes_that_choose_a_row_or_a_column_at_run_time():
    place, tensor = memory("32x64xf32", "#plain"), "tensor<32x64xf32, #blocked>"
    text = f"""{HEAD}{stored("32x64xf32", "#plain")}
    %y = ttg.local_gather %a[%i] {{axis = 1 : i32}} : {place}, tensor<32x64xi32, #blocked> -> {tensor}
    ttg.local_scatter %a[%i], %y {{axis = 0 : i32}} : {place}, tensor<32x64xi32, #blocked>, {tensor}
"""
    (data,) = problems(text)
    _, gather, scatter = data["accesses"]
    assert (gather["op"], gather["index"][1], gather["any"]) == ("load", "at", {"at": 64})
    assert (scatter["op"], scatter["index"][0], scatter["any"]) == ("store", "at", {"at": 32})
    assert gather["for"] == scatter["for"] == {"i": 16}  # a scalar access for each register
    # 8 lanes a column, which all choose other rows, and 4 columns, 8 and 16 words apart.
    assert audited(data).accesses[2].wavefronts == 8 * 16 * 4
    with refused_with("without the axis"):
        list(problems(text.replace("axis = 1", "ax = 1")))


def blocked(threads, warps):
    return blocks(threads, warps).split(" = ", 1)[1].strip()


# What Triton 3.9 compiles for sm_90 takes so much scratch.
@pytest.mark.parametrize(
    ("kind", "axis", "layout", "shape", "elements", "scratch"),
    [
        ("reduce", 0, blocked([1, 32], [2, 2]), [128, 64], ["f32"], 512),
        ("reduce", 0, blocked([2, 16], [4, 1]), [256, 16], ["f32", "i32"], 512),
        ("reduce", 0, blocked([32], [8]), [4096], ["f32"], 32),
        ("scan", 1, blocked([1, 32], [1, 4]), [4, 1024], ["f32"], 512),
        ("scan", 0, blocked([1, 32], [2, 2]), [128, 64], ["f32"], 32768),
        ("scan", 1, blocked([1, 32], [1, 4]), [16, 256], ["f16"], 256),
        ("scan", 1, blocked([1, 32], [4, 1]), [16, 256], ["f16"], 0),
    ],
)
def test_scratch_of_reductions_and_scans(kind, axis, layout, shape, elements, scratch):
    extents = "x".join(map(str, shape))
    tensors = ", ".join(f"tensor<{extents}x{e}, #b>" for e in elements)
    numbers = ", ".join(elements)
    lines = (
        f"#b = {layout}",
        f'module attributes {{"ttg.num-warps" = {8 if len(shape) < 2 else 4} : i32, '
        'ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {',
        f'    %s:2 = "tt.{kind}"(%x, %i) <{{axis = {axis} : i32}}> ({{',
        "    ^bb0(%a: f32, %b: f32):",
        f"      tt.{kind}.return %a : f32",
        f"    }}) : ({tensors}) -> {tensors if kind == 'scan' else f'({numbers})'}",
    )
    found = list(conversions("\n".join(lines)))
    size = {"f16": 2, "f32": 4, "i32": 4}
    taken = dict.fromkeys(elements, 0)
    for one in found:
        element = one["tile"]["element"]
        taken[element] = max(taken[element], math.prod(one["tile"]["shape"]) * size[element])
    assert sum(taken.values()) == scratch
    assert [one["name"] for one in found] == [f"line 3, tt.{kind} {k + 1}" for k in range(len(found))]
    with refused_with("line 3: a statement without the types of its tensors"):
        list(conversions("\n".join((*lines[:-1], "    })"))))


def held(bases):
    """The coordinates of each warp, lane and register."""
    warps, lanes, registers = (range(1 << len(bases[part])) for part in ("warp", "lane", "register"))
    return {(w, n): [element(bases, r, n, w) for r in registers] for w in warps for n in lanes}


@pytest.mark.parametrize("seed", range(20))
def test_after_the_stages_of_a_reduction_every_thread_has_whole_results(seed):
    """Partial results as sets of the elements that went into them, by where they are."""
    rng = random.Random(seed)
    shape, axis = [rng.choice([8, 32, 128]), rng.choice([16, 64])], rng.randrange(2)
    lanes, warps = 1 << rng.randrange(6), 1 << rng.randrange(4)
    text = blocked([lanes, 32 // lanes], [warps, 8 // warps])
    result = f"#ttg.slice<{{dim = {axis}, parent = {text}}}>"
    bases, left = linear_bases(text, shape), shape[1 - axis]
    parts = {}  # by warp and place beside the axis, as the first stage begins
    for (w, _), coordinates in held(bases).items():
        for c in coordinates:
            parts.setdefault((w, c[1 - axis]), set()).add(c)
    sets = None
    for extents, source, wanted in of_reduction(bases, shape, axis, linear_bases(result, [left])):
        if len(extents) == 1:
            assert wanted == linear_bases(result, [left])
            break
        if sets is None:
            sets = {}
            for (w, _), coordinates in held(source).items():
                for c in coordinates:
                    assert sets.setdefault(c, parts[w, c[1 - axis]]) == parts[w, c[1 - axis]]
        parts = {}
        for (w, _), coordinates in held(wanted).items():
            for c in coordinates:
                parts.setdefault((w, c[1 - axis]), set()).update(sets[c])
        sets = None
    assert all(len(found) == shape[axis] for found in parts.values())


def test_every_thread_of_a_scan_reads_the_totals_of_all_of_it():
    bases = linear_bases(blocked([2, 16], [2, 2]), [16, 128])
    ((shape, source, wanted),) = of_scan(bases, [16, 128], 1)
    assert shape == (16, 8)  # 16 lanes side by side have a chunk
    for thread, coordinates in held(wanted).items():
        rows = {c[0] for c in held(source)[thread]}
        assert sorted(coordinates) == sorted((row, chunk) for row in rows for chunk in range(8))
