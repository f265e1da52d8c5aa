"""Layouts put into PTX: every access of an array or none, for the machine code that the assembler makes."""

import json
import re
from functools import cache

import kernel_launches
import numpy as np
import pytest
from command import answer, layoutopt, refused
from written import saved

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.hardware.driver import Race
from layoutopt.kernels.ptx.text import read_ptx
from layoutopt.kernels.read.files import from_ptx
from layoutopt.source.moves import Move
from layoutopt.source.ptx_edit import Region, patched
from layoutopt.source.ptx_flow import Reach, uses_of
from layoutopt.study.patch import PtxCode
from layoutopt.study.source_fix import Request, fix

LAUNCHES = {kernel.name: kernel for kernel in kernel_launches.launches()}
GPU = device("sm_90")
EXCESS = ("--minimise", "excess")
PLAIN = kernel_launches.KERNELS / "transpose_plain.ptx"
FLIPS = Move(128, 0, ((0, 31),), 4)


def text_of(name):
    return (kernel_launches.KERNELS / f"{name}.ptx").read_text()


def found(name, minimise="excess", text=None, **more):
    kernel = LAUNCHES[name]
    asked = Request(kernel_launches.called(kernel), GPU, minimise=minimise, **more)
    text = text or text_of(name)
    (program,) = [one.read() for one in from_ptx(text) if one.name == kernel.symbol]
    return fix(PtxCode(text, "k.ptx", kernel.symbol), program, asked)


@cache
def patched_kernel(name):
    return found(name)


def conflicts(version):
    return sum(tally.wavefronts - tally.phases for tally in version.evaluation.tallies.values())


def moved(module, name, move, entry, size=4096):
    return patched(module, name, Region(move, 0, size, size), uses_of(module, name, entry))


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("transpose_plain", 3968),
        ("transpose_f64", 1440),
        ("transpose_bytes", 3840),
        ("transpose_vectors", 448),
        ("gemm_ldmatrix", 2240),
        ("stmatrix_epilogue", 448),
        ("reduce_columns", 930),
        ("not_inlined", 3968),
        ("dynamic_arrays", 480),
        ("generic_pointer", 120),
        ("fft_radix2", 736),  # by an XOR of several terms, as the next two
        ("sort_bitonic", 832),
        ("sort_exchange", 256),  # of words that the assembler had joined
    ],
)
def test_conflicts_go(name, before):
    found = patched_kernel(name)
    assert (conflicts(found.before), conflicts(found.after)) == (before, 0)
    assert found.after.evaluation.certain == found.before.evaluation.certain


@pytest.mark.nvcc
def test_of_the_names_of_dynamic_memory_that_of_the_kernel_is_meant():
    before, other = ".extern .shared .align 16 .b8 memory[];\n", ".extern .shared .align 16 .b8 buf[];\n"
    text = text_of("dynamic_arrays").replace(before, other + before).replace("memory", "sbuf")
    alone = patched_kernel("dynamic_arrays").after.files["k.ptx"].decode()
    changed = found("dynamic_arrays", text=text).after.files["k.ptx"].decode()
    assert changed == alone.replace(before, other + before).replace("memory", "sbuf")


PRODUCT = """
__global__ void gemm(const float* A, const float* B, float* C, int n) {
  __shared__ float As[32][32], Bs[32][32];
  int tx = threadIdx.x, ty = threadIdx.y;
  float sum = 0;
  for (int k0 = 0; k0 < n; k0 += 32) {
    As[ty][tx] = A[ty * n + k0 + tx];
    Bs[ty][tx] = B[(k0 + ty) * n + tx];
    __syncthreads();
    for (int k = 0; k < 32; k++) sum += As[tx][k] * Bs[k][ty];
    __syncthreads();
  }
  C[tx * n + ty] = sum;
}
"""


@pytest.mark.nvcc
def test_what_the_assembler_joins_stays_joined(tmp_path):
    """Four loads of 4 bytes that are one of 16: counted as such before, and still one afterwards."""
    (tmp_path / "gemm.cu").write_text(PRODUCT)
    asked = ("patch", "gemm.cu", "--block", "32,32", "--arg", "n=32", "-o", "o.ptx")
    data = answer(*asked, *EXCESS, cwd=tmp_path)
    # 8 loads of 16 bytes and 32 of 4 by each of 32 warps; an H200 counts as many of the former.
    assert (data["before"]["wavefronts_ld"], data["after"]["wavefronts_ld"]) == (9216, 2048)
    assert data["before"]["executed_ld"] == data["after"]["executed_ld"] == 32 * (8 + 32)


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["gemm_tiled", "conv_5x5", "stencil_3d", "transpose_xor"])
def test_no_kernel_gets_more_wavefronts(name):
    found = patched_kernel(name)
    assert found.after is found.before
    assert found.after.files["k.ptx"].decode() == text_of(name)


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("xor.b32 %movedv, %movedv, %movedt", "mov.b32 %movedt, 0"),
        ("and.b32 %movedt, %movedt, 124", "and.b32 %movedt, %movedt, 120"),
        ("add.s32 %movedv, %movedv, %moveds", "mov.b32 %movedv, %moveds"),
    ],
)
@pytest.mark.parametrize("times", [1, -1])
def test_bytes_that_another_thread_reaches_are_found(right, wrong, times, monkeypatch):
    plans = PtxCode.plans

    def broken(*given):
        name, found, why = plans(*given)
        texts = [one.files["k.ptx"].replace(right.encode(), wrong.encode(), times) for one in found]
        changed = [(p, t) for p, t in zip(found, texts, strict=True) if t != p.files["k.ptx"]]
        assert changed
        return name, [p._replace(files={"k.ptx": t}) for p, t in changed], why

    monkeypatch.setattr(PtxCode, "plans", broken)
    done = found("transpose_plain")
    assert not done.files
    assert re.search("reach other bytes|wavefronts where", done.arrays[0].reason)


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("name", "minimise", "why"),
    [("early_exit", "time", "not expected to take less time"), ("bulk_copy", "excess", "UBLKCP")],
)
def test_an_array_that_stays_says_why(name, minimise, why):
    done = found(name, minimise)
    assert not done.files
    assert why in done.arrays[0].reason


@pytest.mark.nvcc
@pytest.mark.parametrize(("ratios", "told"), [((0.9, 0.8), "padded"), ((0.8, 0.9), "XOR")])
def test_a_gpu_decides(ratios, told):
    given = iter((*ratios, 1.0))

    class Gpu:
        def race(self, *both):
            assert both[0].image != both[1].image
            return Race((1.0, next(given)), 0, 0)

    assert told in found("transpose_plain", "time", driver=Gpu()).arrays[0].offset


CARVED = """
__global__ void turn(const float* in, float* out) {
  extern __shared__ float memory[];
  float *row = memory, *tile = memory + 256, *last = memory + 256 + 32 * 32;
  int x = threadIdx.x, y = threadIdx.y;
  tile[y * 32 + x] = in[y * 32 + x];
  row[(y * 32 + x) % 256] = in[x];
  last[y * 32 + x] = in[1024 + y * 32 + x];
  __syncthreads();
  float sum = tile[x * 32 + y];
  sum += last[x * 32 + y];
  out[y * 32 + x] = sum + row[x + 32 * (y % 8)] + __syncthreads_or(sum > 1);
}
"""


@pytest.mark.nvcc
def test_arrays_carved_out_of_dynamic_memory_move_alone(tmp_path):
    """Others stay where they are, or make room; a barrier that joins predicates of addresses is no obstacle."""
    (tmp_path / "k.cu").write_text(CARVED)

    def after(*array):
        launch = ("--block", "32,32", "--shared", 4 * (256 + 2048), "-o", "o.ptx")
        data = answer("patch", "k.cu", *launch, *EXCESS, *array, cwd=tmp_path)
        names = {one["name"] for one in data["arrays"] if one["offset"]}
        return names, data["before"]["bank_conflicts"], data["after"]["bank_conflicts"]

    one, conflicts, left = after("--array", "dynamic+1024")
    assert (one, left) == ({"dynamic+1024"}, conflicts // 2)
    assert after() == ({"dynamic+1024", "dynamic+5120"}, conflicts, 0)
    assert after("--array", "memory")[1:] == (conflicts, 0)


@pytest.mark.parametrize(
    "region",
    [
        Region(Move(128, 4), 0, 1024, 1024),
        Region(Move(100, 12), 64, 500, 1024),
        Region(Move(128, 0, ((0, 31),), 4), 256, 512, 1024),
        Region(Move(96, 0, ((1, 3),), 8), 16, 400, 1024),
        Region(Move(128, 16, ((0, 7),), 16), 16, 496, 1024),
    ],
)
def test_a_part_moves_and_nothing_meets(region):
    """No two bytes go to one place, bytes before it stay, bytes behind it stay together."""
    offsets = np.arange(region.end)
    went = region.apply(offsets)
    assert len(np.unique(went)) == len(offsets)
    assert (went[: region.start] == offsets[: region.start]).all()
    behind = region.start + region.length
    assert (went[behind:] == offsets[behind:] + region.growth).all()
    assert went.max(initial=0) < region.size(region.end)
    unit = region.together()
    whole = went[: len(went) // unit * unit].reshape(-1, unit)
    assert (whole == whole[:, :1] + np.arange(unit)).all()


HEAD = (
    ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{ .reg .b32 %r<9>; "
    ".reg .b64 %rd<9>; .shared .align 16 .b8 tile[4096]; .shared .align 16 .b8 other[4096];\n"
    "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 7; mov.u32 %r3, tile; add.s32 %r4, %r3, %r2;\n"
)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("{ .param .b32 a; st.param.b32 [a], %r4; call.uni f, (a); }", "f, whose code is not here, may reach it"),
        ("mbarrier.init.shared.b64 [%r4], 1; st.shared.b32 [%r4], %r1;", "mbarrier.init.shared.b64"),
        ("ld.param.u64 %rd1, [p]; st.global.b32 [%rd1], %r4; ld.global.b32 %r5, [%rd1]; "
         "mbarrier.init.shared.b64 [%r5], 1;", "mbarrier.init.shared.b64"),
    ],
)  # fmt: skip
def test_an_address_that_goes_elsewhere_is_refused(body, named):
    head = HEAD.replace(".visible", ".extern .func f(.param .b32 a);\n.visible")
    module = read_ptx(head + body + " ret; }", "k.ptx")
    with pytest.raises(ProblemFileError, match=named.replace(".", r"\.")):
        uses_of(module, "tile", "k")


@pytest.mark.parametrize(
    ("body", "uses"),
    [
        # Stored, and loaded again: every access by an address that is not known may reach it, by any address.
        ("ld.param.u64 %rd1, [p]; st.global.b32 [%rd1], %r4; ld.global.b32 %r5, [%rd1]; st.shared.b32 [%r5], %r1; "
         "st.u32 [%rd1], %r1;", [("st.shared.b32", False, False), ("st.u32", False, True)]),
        ("ld.param.u64 %rd1, [p]; st.u32 [%rd1], %r1; st.shared.b32 [%r4], %r1;", [("st.shared.b32", True, False)]),
        ("cvt.u64.u32 %rd2, %r4; cvta.shared.u64 %rd3, %rd2; st.u32 [%rd3], %r1;", [("st.u32", False, True)]),
        ("selp.b32 %r5, %r4, other, 1; st.shared.b32 [%r5], %r1;", [("st.shared.b32", False, False)]),
        ("st.shared.b32 [%r4], %r1; st.shared.b32 [%r1], %r1;",
         [("st.shared.b32", True, False), ("st.shared.b32", False, False)]),
        # A comparison of addresses is one bit, and no address.
        ("setp.lt.u32 %p1, %r4, %r2; bar.red.popc.u32 %r5, 0, %p1; add.s32 %r5, %r5, other; st.shared.b32 [%r5], 0;",
         []),
        ("sub.s32 %r5, %r4, %r3; mov.u32 %r6, other; st.shared.b32 [%r6], %r1;", []),
    ],
)  # fmt: skip
def test_addresses_are_followed_and_else_told_apart_as_the_kernel_runs(body, uses):
    module = read_ptx(HEAD.replace(".reg .b64", ".reg .pred %p<3>; .reg .b64") + body + " ret; }", "k.ptx")
    reached = uses_of(module, "tile", "k")
    assert [(use.instruction.opcode, use.sure, use.generic) for use in reached] == uses
    text = patched(module, "tile", Region(Move(128, 4), 0, 4096, 4096), reached) if uses else ""
    new = text.count("setp.lt.u") - body.count("setp.lt.u") * bool(uses)
    assert new == sum(not sure for _, sure, _ in uses)
    assert text.count("cvta.shared.u64 %moveds") == sum(generic for *_, generic in uses)


KERNEL = (
    ".visible .entry {0}() {{ .reg .b32 %r<5>; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, all; "
    "add.s32 %r4, %r3, %r2; {1} ret; }}\n"
)
DYNAMIC = ".version 9.0\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 all[];\n"
STORED = "st.shared.b32 [%r4], %r1;"
# A file, the array that is moved, how, and how often the new text says what; each kernel is called `k`.
MOVED = {
    "constant and wide addresses": (
        HEAD + "cvt.u64.u32 %rd1, %r4; st.shared.b32 [%rd1+4], %r1; ld.shared.b32 %r5, [tile+132]; ret; }",
        "tile", FLIPS, {"[tile+128]": 1, "cvt.u32.u64": 1},  # 132 ^ (132 >> 5 & 0x7c)
    ),
    "an address made generic and shared again is followed": (
        HEAD + "cvt.u64.u32 %rd1, %r4; cvta.shared.u64 %rd2, %rd1; cvta.to.shared.u64 %rd3, %rd2; "
        "cvt.u32.u64 %r5, %rd3; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r5]; ret; }",
        "tile", Move(128, 0, ((0, 7),), 16), {"xor.b32": 1},
    ),
    "other kernels of the file keep their layout": (
        DYNAMIC + KERNEL.format("one", STORED) + KERNEL.format("k", STORED), "all", FLIPS, {"%movedv]": 1},
    ),
    # All of them begin at one place, so that what moves in one moves in all.
    "names of dynamic shared memory are one array": (
        f"{DYNAMIC}.extern .shared .align 16 .b8 words[];\n" + KERNEL.format("k", STORED + " mov.u32 %r0, words; "
        "ld.shared.b32 %r1, [%r0]; ld.shared.b32 %r2, [words+132];"),
        "all", FLIPS, {"%movedv]": 2, "[all+128]": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_addresses_that_are_moved(name):
    text, array, move, said = MOVED[name]
    new = moved(read_ptx(text, "k.ptx"), array, move, "k")
    assert {part: new.count(part) for part in said} == said
    assert new.index("%moved") > new.index(".entry k")
    read_ptx(new, "k.ptx")


# What is added, or loaded, or of floats, says nothing; %r4 is the row of a thread, 128 bytes, in an array.
@pytest.mark.parametrize(
    ("line", "zeros"),
    [
        ("mov.u32 %r5, %r2;", 7),
        ("add.s32 %r5, %r4, 12;", 2),
        ("shl.b32 %r5, %r1, 1;", 1),
        ("shl.b32 %r6, %r1, 1; mad.lo.s32 %r5, %r6, 4, %r4;", 3),
        ("mov.u32 %r5, %r3; LOOP: add.s32 %r5, %r5, 16; bra LOOP;", 4),
        ("mov.b64 {%r6, %r5}, %rd2;", 0),
        ("add.sat.s32 %r5, %r4, 128;", 0),
        ("mul.hi.u32 %r5, %r4, %r4;", 0),
        ("cvt.rn.f32.u32 %r5, %r4;", 0),
        ("shr.u32 %r5, %r4, 1;", 0),
        ("ld.shared.b32 %r5, [%r4];", 0),
        ("mov.u32 %r5, %tid.x;", 0),
        ("mov.u32 %r5, other;", 0),
        ("mul.lo.s32 %r5, %r1, 010;", 0),
    ],
)
def test_low_bits_that_are_surely_0(line, zeros):
    module = read_ptx(HEAD + f"shl.b64 %rd2, %rd1, 4; {line} ret; }}", "k.ptx")
    assert Reach(module.functions["k"], "tile", {"tile": frozenset({"tile"})}).held["%r5"].zeros == zeros


def test_a_file_patched_twice_keeps_its_names_apart():
    module = read_ptx(text_of("gemm_ldmatrix"), "k.ptx")
    flips = Move(128, 0, ((0, 7),), 16)
    once = read_ptx(moved(module, "_ZZ4gemmE2As", flips, "gemm", 8192), "k.ptx")
    twice = moved(once, "_ZZ4gemmE2Bs", flips, "gemm", 8192)
    assert "%moved_v" in twice


# Addresses that depend on data, and counters that hold some wavefronts of other traffic.
NOT_AS_PREDICTED = {"histogram_private", "sort_exchange", "fft_radix2", "gemm_double_buffer", "gemm_ldmatrix"}
PATCHED = json.loads((kernel_launches.KERNELS / "patched.json").read_text())["kernels"]


def test_a_gpu_computes_the_same_with_the_conflicts_that_were_predicted():
    assert len(PATCHED) >= 15
    for row in PATCHED:
        assert row["race"]["differing"] == 0
        if row["name"] not in NOT_AS_PREDICTED:
            counted = [row["counted"][kind]["conflicts"] for kind in row["predicted"]]
            assert counted == [told["conflicts"] for told in row["predicted"].values()]
            assert not row["varies"]


@pytest.mark.nvcc
def test_the_command_writes_the_file(tmp_path):
    launch = ("--block", "32,8", "--grid", "2,2", "--arg", "2=64")
    data = answer("patch", PLAIN, *launch, "-o", "out.ptx", cwd=tmp_path)
    assert (data["before"]["bank_conflicts"], data["after"]["bank_conflicts"]) == (3968, 0)
    assert (data["schema"], data["arrays"][0]["name"]) == ("layoutopt.patch/1", "tile")
    assert data["arrays"][0]["offset"]
    assert "%moved" in (tmp_path / "out.ptx").read_text()


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("families", "said"),
    [
        ("pad", "rows of 128 bytes padded by 4"),
        ("xor", "vectors of 4 bytes moved by XOR within rows of 128"),
        ("rotate", "expected a layout that pads rows, or moves elements by XOR"),
    ],
)
def test_the_layout_of_a_result_is_put_in(families, said, tmp_path):
    result = saved(tmp_path, "r.json", answer("solve", "transpose_32x32_f32", "--families", families))
    launch = ("--block", "32,8", "--arg", "2=32")
    options = ("patch", PLAIN, *launch, "-o", tmp_path / "o.ptx", "--result", result)
    done = layoutopt(*options, "--array", "tile")
    assert said in done.stdout + done.stderr
    refused("name it with --array", *options)


def test_a_function_of_two_kernels_is_not_changed_for_one():
    inner = ".func f() { .reg .b32 %r<3>; mov.u32 %r1, all; st.shared.b32 [%r1], 1; ret; }\n"
    outer = ".func g() { call.uni f; ret; }\n"
    bodies = {"one": "call.uni g;", "two": "call.uni f;", "none": "ret;"}
    text = DYNAMIC + inner + outer + "".join(KERNEL.format(*kernel) for kernel in bodies.items())
    with pytest.raises(ProblemFileError, match="one calls the same functions"):
        uses_of(read_ptx(text, "k.ptx"), "all", "two")
    assert not uses_of(read_ptx(text, "k.ptx"), "all", "none")  # which calls none
    text = text.replace("ret;", "{ .reg .b64 %f; mov.u64 %f, f; call.uni %f, (), kind; } ret;")
    with pytest.raises(ProblemFileError, match="calls the same functions"):
        uses_of(read_ptx(text, "k.ptx"), "all", "none")


@pytest.mark.parametrize("name", ["k.cubin", "k.CU", "k.o"])
def test_ptx_is_not_written_under_the_name_of_something_else(tmp_path, name):
    refused("must end in .ptx", "patch", PLAIN, "--block", "32", "-o", tmp_path / name)
    assert not list(tmp_path.iterdir())
