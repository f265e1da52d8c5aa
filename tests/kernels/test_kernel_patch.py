"""Layouts put into PTX: every access of an array or none, for the machine code that the assembler makes."""

import json
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from conftest import ROOT

from layoutopt.errors import LayoutError, ProblemFileError, VerificationError
from layoutopt.hardware.devices import device
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.ptx.edit import patched
from layoutopt.kernels.ptx.flow import held_in, uses_of
from layoutopt.kernels.ptx.text import read_ptx
from layoutopt.kernels.read.files import from_ptx
from layoutopt.layout.layout import Digit, Layout, Target, row_major
from layoutopt.layout.remap import Moves, Remap, remap_of
from layoutopt.report.patch_text import patch_report
from layoutopt.study.patch import Request, patch

sys.path.insert(0, str(ROOT / "scripts" / "measure"))
import kernel_launches

LAUNCHES = {kernel.name: kernel for kernel in kernel_launches.launches()}
GPU = device("sm_90")


def text_of(name):
    return (kernel_launches.KERNELS / f"{name}.ptx").read_text()


def request(name, **more):
    kernel = LAUNCHES[name]
    launch = {"block": kernel.block, "grid": kernel.grid, "shared_bytes": kernel.shared}
    return Request(Launch(arguments=kernel_launches.scalars(kernel), **launch), GPU, **more)


@cache
def patched_kernel(name):
    return patch_of(text_of(name), LAUNCHES[name].symbol, request(name))


def patch_of(text, symbol, asked):
    (program,) = [one.read() for one in from_ptx(text) if one.name == symbol]
    return patch(text, symbol, program, asked)


def conflicts(evaluation):
    return sum(tally.wavefronts - tally.phases for tally in evaluation.tallies.values())


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("transpose_plain", 3968),
        ("transpose_half", 3968),
        ("transpose_f64", 1440),
        ("transpose_bytes", 3840),
        ("transpose_vectors", 448),
        ("transpose_ragged", 2150),
        ("gemm_ldmatrix", 2240),
        ("stmatrix_epilogue", 448),
        ("block_3d", 320),
        ("reduce_columns", 930),
        ("not_inlined", 3968),
        ("dynamic_arrays", 480),
    ],
)
def test_conflicts_go(name, before):
    found = patched_kernel(name)
    assert (conflicts(found.before), conflicts(found.after)) == (before, 0)
    assert found.after.certain


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
    done = run(tmp_path / "gemm.cu", "--block", "32,32", "--arg", "n=32", "-o", tmp_path / "o.ptx", "--json")
    data = json.loads(done.output)
    # 8 loads of 16 bytes and 32 of 4 by each of 32 warps; an H200 counts as many of the former.
    assert (data["before"]["wavefronts_ld"], data["after"]["wavefronts_ld"]) == (9216, 2048)
    assert data["before"]["executed_ld"] == data["after"]["executed_ld"] == 32 * (8 + 32)


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["gemm_tiled", "conv_5x5", "stencil_3d", "transpose_xor"])
def test_no_kernel_gets_more_wavefronts(name):
    found = patched_kernel(name)
    assert found.after is found.before
    assert found.text == text_of(name)


@pytest.mark.nvcc
def test_a_layout_given_that_costs_more_is_not_put_in():
    worse = Layout((32, 32), 4, (Digit(0, 1, 32, 32), Digit(1, 1, 32, 1)), (Target(0, 0x20),))
    asked = request("transpose_xor", layout=worse, array="tile")
    found = patch_of(text_of("transpose_xor"), LAUNCHES["transpose_xor"].symbol, asked)
    assert found.after is found.before
    assert "wavefronts where" in found.arrays[0].reason


@pytest.mark.nvcc
def test_bytes_that_another_thread_reaches_are_found(monkeypatch):
    other = Remap((Moves(False, ((128, 4),)),), 4224)
    monkeypatch.setattr(
        "layoutopt.study.patch.patched", lambda module, name, _, entry: patched(module, name, other, entry)
    )
    with pytest.raises(VerificationError, match="reaches other bytes"):
        patch_of(text_of("transpose_plain"), "transpose", request("transpose_plain"))


@pytest.mark.nvcc
def test_a_pad_given_makes_the_array_larger():
    layout = Layout((32, 32), 4, (Digit(0, 1, 32, 33), Digit(1, 1, 32, 1)))
    found = patch_of(text_of("transpose_plain"), "transpose", request("transpose_plain", layout=layout))
    assert ".b8 _ZZ9transposeE4tile[4224]" in found.text
    assert conflicts(found.after) == 0


@pytest.mark.nvcc
def test_one_array_of_two():
    name = "gemm_ldmatrix"
    found = patch_of(text_of(name), "gemm", request(name, array="Bs"))
    assert [moved.name for moved in found.arrays] == ["Bs"]
    assert 0 < conflicts(found.after) < conflicts(found.before)


HEAD = (
    ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{ .reg .b32 %r<9>; "
    ".reg .b64 %rd<9>; .shared .align 16 .b8 tile[4096]; .shared .align 16 .b8 other[4096];\n"
    "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 7; mov.u32 %r3, tile; add.s32 %r4, %r3, %r2;\n"
)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("st.shared.b32 [%r4], %r1; ld.param.u64 %rd1, [p]; st.global.b32 [%rd1], %r4;", "st.global.b32"),
        ("cvt.u64.u32 %rd2, %r4; cvta.shared.u64 %rd3, %rd2; st.u32 [%rd3], %r1;", "st.u32"),
        ("{ .param .b32 a; st.param.b32 [a], %r4; call.uni f, (a); }", "st.param.b32"),
        ("selp.b32 %r5, %r4, other, 1; st.shared.b32 [%r5], %r1;", "st.shared.b32"),
        ("mbarrier.init.shared.b64 [%r4], 1; st.shared.b32 [%r4], %r1;", "mbarrier.init.shared.b64"),
        ("st.shared.b32 [%r4], %r1; st.shared.b32 [%r1], %r1;", "names no array"),
    ],
)
def test_an_address_that_goes_elsewhere_is_refused(body, named):
    module = read_ptx(HEAD + body + " ret; }", "k.ptx")
    with pytest.raises(ProblemFileError, match=named.replace(".", r"\.")):
        uses_of(module, "tile", "k")


def test_constant_and_wide_addresses():
    body = "cvt.u64.u32 %rd1, %r4; st.shared.b32 [%rd1+4], %r1; ld.shared.b32 %r5, [tile+132]; ret; }"
    module = read_ptx(HEAD + body, "k.ptx")
    text = patched(module, "tile", Remap((Moves(True, ((5, 0x7C),)),), 4096), "k")
    assert "[tile+128]" in text  # 132 ^ (132 >> 5 & 0x7c)
    assert "cvt.u32.u64" in text
    read_ptx(text, "k.ptx")


def test_an_address_made_generic_and_shared_again_is_followed():
    body = (
        "cvt.u64.u32 %rd1, %r4; cvta.shared.u64 %rd2, %rd1; cvta.to.shared.u64 %rd3, %rd2; "
        "cvt.u32.u64 %r5, %rd3; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r5]; ret; }"
    )
    module = read_ptx(HEAD + body, "k.ptx")
    (use,) = uses_of(module, "tile", "k")
    assert use.instruction.opcode.startswith("ldmatrix")
    assert patched(module, "tile", Remap((Moves(True, ((5, 0x70),)),), 4096), "k").count("xor.b32") == 1


def test_low_bits_of_registers_that_are_surely_0():
    """The row of a thread, 128 bytes; what is added, or loaded, or of floats, says nothing."""
    body = (
        "add.s32 %r5, %r4, 12; shl.b32 %r6, %r1, 1; mad.lo.s32 %r7, %r6, 4, %r4; ld.shared.b32 %r8, [%r4];"
        "LOOP: add.s32 %r3, %r3, 16; bra LOOP; }"
    )
    module = read_ptx(HEAD + body, "k.ptx")
    found = held_in(module.functions["k"], "tile", {"tile": frozenset({"tile"})})
    bits = {name: found[f"%r{name}"].zeros for name in (1, 2, 3, 4, 5, 6, 7, 8)}
    assert bits == {1: 0, 2: 7, 3: 4, 4: 4, 5: 2, 6: 1, 7: 3, 8: 0}


@pytest.mark.parametrize(
    "line",
    [
        "mov.b64 {%r6, %r5}, %rd2;",
        "add.sat.s32 %r5, %r4, 128;",
        "mul.hi.u32 %r5, %r4, %r4;",
        "cvt.rn.f32.u32 %r5, %r4;",
        "shr.u32 %r5, %r4, 1;",
        "ld.shared.b32 %r5, [%r4];",
        "mov.u32 %r5, %tid.x;",
        "mov.u32 %r5, other;",
        "mul.lo.s32 %r5, %r1, 010;",
    ],
)
def test_low_bits_that_may_be_anything(line):
    module = read_ptx(HEAD + f"shl.b64 %rd2, %rd1, 4; {line} ret; }}", "k.ptx")
    assert held_in(module.functions["k"], "tile", {"tile": frozenset({"tile"})})["%r5"].zeros == 0


def test_a_file_patched_twice_keeps_its_names_apart():
    module = read_ptx(text_of("gemm_ldmatrix"), "k.ptx")
    remap = Remap((Moves(True, ((3, 0x70),)),), 8192)
    once = read_ptx(patched(module, "_ZZ4gemmE2As", remap, "gemm"), "k.ptx")
    twice = patched(once, "_ZZ4gemmE2Bs", remap, "gemm")
    assert "%moved_0" in twice


@pytest.mark.parametrize(
    "layout",
    [
        Layout((8, 16), 4, (Digit(0, 1, 8, 17), Digit(1, 1, 16, 1))),
        Layout((4, 6, 10), 2, (Digit(0, 1, 4, 70), Digit(1, 1, 6, 11), Digit(2, 1, 10, 1))),
        Layout((256,), 4, (Digit(0, 1, 256, 1),), interval=(24, 3)),
        Layout((16, 32), 8, (Digit(0, 1, 16, 32), Digit(1, 1, 32, 1)), (Target(0, 0x60), Target(2, 0x180))),
        Layout((8, 16), 4, (Digit(0, 1, 8, 20), Digit(1, 1, 16, 1)), (Target(1, 0x30),)),
    ],
)
def test_pads_and_flips_are_the_layout(layout):
    offsets = np.arange(int(np.prod(layout.shape))) * layout.element_bytes
    assert np.array_equal(remap_of(layout).apply(offsets), layout.table().ravel())


@pytest.mark.parametrize(
    "layout",
    [
        Layout((4, 4), 4, (Digit(1, 1, 4, 4), Digit(0, 1, 4, 1))),
        Layout((2, 2), 4, (), lookup=(0, 2, 1, 3)),
        Layout((4, 4), 12, row_major((4, 4), 12).digits, (Target(0, 4),)),
    ],
)
def test_other_layouts_are_refused(layout):
    with pytest.raises(LayoutError):
        remap_of(layout)


# Addresses that depend on data, and counters that hold some wavefronts of other traffic.
NOT_AS_PREDICTED = {"histogram_private", "sort_exchange", "fft_radix2", "gemm_double_buffer", "gemm_ldmatrix"}
# Additions and maxima of several warps on one word, in whatever order the warps come.
RACES = {"atomics_known"}
PATCHED = json.loads((kernel_launches.KERNELS / "patched.json").read_text())["kernels"]


def test_a_gpu_computes_the_same_with_the_conflicts_that_were_predicted():
    assert len(PATCHED) >= 15
    assert all(row["outputs_equal"] is True or row["name"] in RACES for row in PATCHED)
    for row in PATCHED:
        for kind in ("plain", "patched"):
            counted = {launch["conflicts"] for launch in row["counted"][kind]}
            assert row["name"] in NOT_AS_PREDICTED or counted == {row["predicted"][kind]["conflicts"]}


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["fft_radix4", "gemm_registers", "transpose_bytes"])
def test_the_predictions_are_those_of_today(name):
    row = next(row for row in PATCHED if row["name"] == name)
    found = patched_kernel(name)
    for kind, evaluation in (("plain", found.before), ("patched", found.after)):
        assert {launch["conflicts"] for launch in row["counted"][kind]} == {conflicts(evaluation)}


def run(*arguments):
    from click.testing import CliRunner

    from layoutopt.cli.patch import command

    return CliRunner().invoke(command, [str(a) for a in arguments], standalone_mode=False)


@pytest.mark.nvcc
def test_the_command_writes_the_file(tmp_path):
    source = kernel_launches.KERNELS / "transpose_plain.ptx"
    out = tmp_path / "out.ptx"
    done = run(source, "--block", "32,8", "--grid", "2,2", "--arg", "2=64", "-o", out, "--json")
    data = json.loads(done.output)
    assert done.return_value == 0
    assert (data["before"]["bank_conflicts"], data["after"]["bank_conflicts"]) == (3968, 0)
    assert data["arrays"][0]["name"] == "tile"
    assert data["arrays"][0]["moved"]
    assert "%moved" in out.read_text()


@pytest.mark.nvcc
def test_a_layout_from_a_result(tmp_path):
    import layoutopt

    problem = layoutopt.load("transpose_32x32_f32")
    result = tmp_path / "r.json"
    result.write_text(json.dumps(layoutopt.solve(problem).to_json()))
    out = tmp_path / "out.ptx"
    source = kernel_launches.KERNELS / "transpose_plain.ptx"
    launch = ("--block", "32,8", "--arg", "2=64", "-o", out)
    done = run(source, *launch, "--array", "tile", "--result", result)
    assert done.return_value == 0
    assert "bank conflicts" in done.output


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["bulk_copy", "pointer_chosen"])
def test_what_cannot_be_moved_leaves_no_file(name, tmp_path):
    kernel = LAUNCHES[name]
    block = ",".join(map(str, kernel.block))
    arguments = [f"--arg={k}={v}" for k, v in kernel_launches.scalars(kernel).items()]
    out = tmp_path / "out.ptx"
    done = run(kernel_launches.KERNELS / f"{name}.ptx", "--block", block, *arguments, "-o", out)
    assert isinstance(done.exception, ProblemFileError)
    assert not out.exists()


@pytest.mark.nvcc
def test_a_source_has_the_names_of_its_parameters(tmp_path):
    source = kernel_launches.KERNELS / "transpose_plain.cu"
    done = run(source, "--block", "32,8", "--arg", "n=64", "-o", tmp_path / "out.ptx")
    assert "+ tile[lane][warp + i*8 ^ lane]" in done.output


@pytest.mark.nvcc
def test_an_edit_has_the_variables_of_the_source_where_widths_differ(tmp_path):
    source = tmp_path / "mixed.cu"
    source.write_text(
        "__global__ void k(const float2* in, float* o) {\n"
        "  __shared__ float2 q[16][8];\n  int t = threadIdx.x;\n  q[t / 8][t % 8] = in[t];\n"
        "  __syncthreads();\n  o[t] = q[t % 16][t / 16].x;\n}\n"
    )
    done = run(source, "--block", "128", "-o", tmp_path / "o.ptx")
    edits = [line for line in done.output.splitlines() if line.startswith(("- ", "+ "))]
    assert "- tile[tid / 8][tid % 8]" in edits
    assert not any("i*" in line for line in edits)


@pytest.mark.nvcc
def test_no_edit_where_the_source_has_no_such_variable():
    found = patched_kernel("transpose_plain")
    arrays = tuple(replace(one, in_source=False) for one in found.arrays)
    report = patch_report(replace(found, arrays=arrays), edits=True)
    assert "no edit is shown" in report
    assert "\n+ " not in report


KERNEL = (
    ".visible .entry {0}() {{ .reg .b32 %r<5>; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, all; "
    "add.s32 %r4, %r3, %r2; {1} ret; }}\n"
)
TWO = ".version 9.0\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 all[];\n"


def test_other_kernels_of_the_file_keep_their_layout():
    store = "st.shared.b32 [%r4], %r1;"
    text = TWO + KERNEL.format("one", store) + KERNEL.format("two", store)
    new = patched(read_ptx(text, "k.ptx"), "all", Remap((Moves(True, ((5, 0x7C),)),), 4096), "two")
    assert new.count("%moved0]") == 1
    assert new.index("%moved") > new.index(".entry two")


def test_names_of_dynamic_shared_memory_are_one_array():
    """All of them begin at one place, so that what moves in one moves in all."""
    text = TWO + TWO.splitlines()[-1].replace("all[]", "words[]") + "\n"
    body = "st.shared.b32 [%r4], %r1; mov.u32 %r0, words; ld.shared.b32 %r1, [%r0]; ld.shared.b32 %r2, [words+132];"
    new = patched(
        read_ptx(text + KERNEL.format("k", body), "k.ptx"),
        "all",
        Remap((Moves(True, ((5, 0x7C),)),), 4096),
        "k",
    )
    assert new.count("%moved0]") == 2
    assert "[all+128]" in new


def test_a_function_of_two_kernels_is_not_changed_for_one():
    inner = ".func f() { .reg .b32 %r<3>; mov.u32 %r1, all; st.shared.b32 [%r1], 1; ret; }\n"
    text = TWO + inner + KERNEL.format("one", "call.uni f;") + KERNEL.format("two", "call.uni f;")
    with pytest.raises(ProblemFileError, match="one calls the same functions"):
        uses_of(read_ptx(text, "k.ptx"), "all", "two")
