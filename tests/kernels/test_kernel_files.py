"""Kernel files of every kind and length; broken ones are one line and exit code 2; what nvcc made is kept."""

import json
import os
import re
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import layoutopt
from conftest import ROOT
from machine_code import listing, program
from written import text_file

from layoutopt.errors import MachineError, ProblemFileError
from layoutopt.ground import budget
from layoutopt.ground.budget import Budget, OutOfTime, current, spending
from layoutopt.hardware.devices import device
from layoutopt.hardware.machine import ended, find_tool
from layoutopt.kernels.machine import relevance
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.ptx import text as ptx_text
from layoutopt.kernels.ptx.text import read_ptx
from layoutopt.kernels.read import elf, files, sass
from layoutopt.kernels.read.declarations import declared
from layoutopt.kernels.read.files import compile_source
from layoutopt.kernels.read.source import source_parameters

KERNELS = ROOT / "tests/data/kernels"
PLAIN = KERNELS / "transpose_plain.sm_90.sass"


PATHS = """
__device__ float scaled(float v) { return sinf(v); }
extern "C" __global__ void paths(float* o, const float* in, int n) {
    __shared__ float s[1024];
    int t = threadIdx.x;
    s[t] = in[t];
    __syncthreads();
    float v = 0;
    switch (n + t / 64) {
        case 0: v = s[t] * 2; for (int i = 0; i < 3; i++) v += scaled(v); break;
        case 1: v = s[t * 2 % 1024] + cosf(s[t]); break;
        case 2: v = s[t * 3 % 1024]; o[5] = v; break;
        case 3: v = __expf(s[t * 4 % 1024]); break;
        case 4: v = logf(s[t * 5 % 1024]); break;
        case 5: v = s[t * 6 % 1024]; o[t + 9] = 1; break;
        case 6: v = s[t * 8 % 1024]; o[t + 99] = 2; break;
        default: v = 1;
    }
    o[t] = v;
}
"""


def check(*arguments, code=0):
    done = layoutopt("check", *arguments, "--json", "--no-fix")
    assert done.returncode in (code, 1, 3), done.stderr
    return json.loads(done.stdout)


def refused(*arguments):
    done = layoutopt("check", *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    return done.stderr


def test_a_listing_is_checked():
    found = check(PLAIN, "--block", "32,8", "--grid", "2,2", "--arg", "+16=64")
    assert (found["schema"], found["certain"], found["assumed"]) == ("layoutopt.kernel/1", True, {})
    assert found["totals"]["bank_conflicts_ld"] == 31 * found["totals"]["executed_ld"]
    found = check(PLAIN, "--block", "32,8", "--assume", "+16=64", "--assume", "+0=nan")
    assert found["certain"]
    assert found["assumed"] == {"+16": 64, "+0": "nan"}  # JSON has no such number


def test_eight_bytes_of_a_listing_may_be_two_parameters():
    launch = (KERNELS / "transpose_ragged.sm_90.sass", "--block", "32,8", "--grid", "2,2")
    for small in ("2=50", "+16=50", "2=-1", "2=1.5"):
        said = refused(*launch, "--arg", small)
        assert "one value or two of 4 bytes" in said
        assert "--arg +16=VALUE --arg +20=VALUE" in said
    # As parts, as one value, and beside an address, which is one.
    for given in (
        ("+16=50", "+20=45"),
        ("2+0=50", "2+4=45"),
        (f"2={45 << 32 | 50}",),
        ("+16=50", "+20=45", "0=4096"),
    ):
        found = check(*launch, *(word for one in given for word in ("--arg", one)))
        assert found["certain"]
        # The wavefronts of an H200 for 50 columns and 45 rows: counters.json.
        assert (found["totals"]["wavefronts_ld"], found["totals"]["wavefronts_st"]) == (2250, 90)
    (missing,) = check(*launch)["unknown"][:1]
    assert missing.endswith("--arg +16=VALUE --arg +20=VALUE, or --arg 2=pointer")


def test_shared_memory_that_only_hardware_touches_is_said(tmp_path):
    code = "UTMALDG.2D [UR8], [UR4]; HGMMA.64x64x16.F32 R24, gdesc[UR4], R24, gsb0; EXIT"
    kernel = text_file(tmp_path, listing(code), "k.sass")
    told = "  no shared memory is touched by loads, stores and atomics; what HGMMA, UTMALDG move, no counter"
    assert told in layoutopt("check", kernel, "--block", "128").stdout
    assert check(kernel, "--block", "128")["by_hardware"] == ["HGMMA", "UTMALDG"]


def test_what_a_header_of_the_toolkit_does_stands_where_it_is_called():
    header = "/usr/local/cuda-13.0/bin/../targets/x86_64-linux/include/cuda_fp16.hpp"
    told = f"""code for sm_90
        Function : k
        //## File "{header}", line 274 inlined at "/home/me/helper.cuh", line 9
        //## File "/home/me/helper.cuh", line 9 inlined at "/home/me/k.cu", line 30
        //## File "/home/me/k.cu", line 30
        /*0000*/ STS [R2], R3 ;
        //## File "/home/me/helper.cuh", line 11 inlined at "/home/me/k.cu", line 31
        //## File "/home/me/k.cu", line 31
        /*0010*/ EXIT ;"""
    (program,) = sass.from_text(told)
    places = [(step.place.file, step.place.line) for step in program.steps]
    assert places == [("/home/me/helper.cuh", 9), ("/home/me/helper.cuh", 11)]


def test_what_cannot_be_read_behind_a_parameter_is_not_followed(tmp_path):
    kernel = text_file(tmp_path, listing("LDC R2, c[0x0][0x220]; IMAD.WIDE R10, R0"), "k.sass")
    assert not check(kernel, "--block", "32")["certain"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.sass", b""),
        ("prose.sass", b"no machine code here\n"),
        ("bytes.sass", bytes(range(256))),
        ("short.cubin", b"\x7fELF\x02\x01\x01" + bytes(57)),
        ("sections.cubin", b"\x7fELF\x02\x01\x01" + bytes(33) + b"\xff" * 24),
        ("twice.sass", (listing("EXIT") + "/*0000*/ EXIT ;\n").encode()),
        ("old.sass", listing("EXIT").replace("90", "35").encode()),
    ],
)
def test_broken_files_are_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, "--block", "32", "--max-steps", "1000")


def test_shared_memory_of_what_is_not_linked_has_no_bytes_in_the_file():
    head = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + (64).to_bytes(8, "little")
    data = head.ljust(58, b"\0") + struct.pack("<HHH", 64, 2, 0)
    for kind, offset, size in ((3, 0, 0), (0x7000000A, 192, 4096)):
        data += struct.pack("<IIQQQQ", 0, kind, 0, 0, offset, size).ljust(64, b"\0")
    assert [(one.content, one.size) for one in elf.sections(data)] == [(b"", 0), (b"", 4096)]


@pytest.mark.parametrize(
    ("kernel", "launch", "said"),
    [
        (PLAIN, "", "--block 32,8 --grid 32,32 --arg 2=1024 (parameters: 0 8 bytes, 1 8 bytes, 2 4 bytes;"),
        (PLAIN, "--block 1025", "1024"),
        (PLAIN, "--block 32 --arg 77=1", "no parameter"),
        (PLAIN, "--block 32 --entry other", "--entry"),
        (PLAIN, "--block 32 --target gfx942", "expected a GPU of NVIDIA"),
        ("transpose_32x32_f32", "--block 32", "for kernels"),
    ],
)
def test_wrong_launches_are_one_line(kernel, launch, said):
    assert said in refused(kernel, *launch.split())


@pytest.mark.nvcc
def test_sources_cubins_and_executables(tmp_path):
    launch = ("--block", "256", "--arg", "2=0")
    source = check(text_file(tmp_path, PATHS, "paths.cu"), *launch)
    assert source["certain"], source["unknown"]
    assert (source["totals"]["executed_ld"], source["totals"]["wavefronts_ld"]) == (10, 18)
    assert {access["array"] for access in source["accesses"]} == {"s"}
    command = [find_tool("nvcc"), "-arch=sm_90", "-lineinfo", "-fatbin", "paths.cu", "-o", "paths.fatbin"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    if find_tool("cuobjdump"):
        assert check(tmp_path / "paths.fatbin", *launch)["totals"] == source["totals"]


@pytest.mark.nvcc
def test_a_kernel_says_the_cluster_that_it_is_compiled_for(tmp_path):
    """Of 4 blocks, 2 have rank 1 and read a column."""
    kernel = text_file(
        tmp_path,
        "__global__ void __cluster_dims__(2) k(int* o) { __shared__ int s[1024]; unsigned t = threadIdx.x, r; "
        'asm("mov.u32 %0, %cluster_ctarank;" : "=r"(r)); s[t] = t; __syncthreads(); '
        "o[blockIdx.x * 32 + t] = s[r ? t * 32 : t]; }\n",
        "k.cu",
    )
    found = check(kernel, "--block", "32", "--grid", "4")
    assert (found["certain"], found["totals"]["wavefronts_ld"]) == (True, 2 * 1 + 2 * 32)


@pytest.mark.nvcc
def test_functions_that_a_kernel_calls_are_no_kernels(tmp_path):
    """In code for debuggers they have sections of their own."""
    kernel = text_file(
        tmp_path,
        "__global__ void k(int* o) { __shared__ int s[64]; s[threadIdx.x] = __popc(threadIdx.x); __syncthreads(); "
        "o[threadIdx.x] = s[63 - threadIdx.x]; }\n",
        "k.cu",
    )
    found = check(kernel, "--block", "64", "--nvcc=-G")
    assert (found["name"], found["totals"]["wavefronts_st"]) == ("_Z1kPi", 2)


@pytest.mark.nvcc
def test_what_headers_of_the_toolkit_do_stands_where_they_are_called(tmp_path):
    kernel = text_file(
        tmp_path,
        "__global__ void k(int* o) {\n  __shared__ int s[64];\n  s[threadIdx.x] = 0;\n  __syncthreads();\n"
        "  atomicAdd(&s[threadIdx.x / 2], 3);\n  __syncthreads();\n  o[threadIdx.x] = s[threadIdx.x];\n}\n",
        "k.cu",
    )
    places = [(Path(one["file"]).name, one["line"]) for one in check(kernel, "--block", "64")["accesses"]]
    assert places == [("k.cu", 3), ("k.cu", 5), ("k.cu", 7)]


@pytest.mark.nvcc
def test_constant_memory_of_the_file_is_read_where_the_host_does_not_fill_it(tmp_path):
    text = (KERNELS / "constant_table.cu").read_text()
    found = check(text_file(tmp_path, text, "k.cu"), "--block", "64")
    assert found["certain"]
    assert (found["totals"]["wavefronts_ld"], found["totals"]["bank_conflicts_ld"]) == (192, 160)
    filled = re.sub(r"(__constant__ [^=;]*?) *=[^;]*;", r"\1;", text)
    found = check(text_file(tmp_path, filled, "filled.cu"), "--block", "64")
    assert any("the address of LDS" in why for why in found["unknown"])


@pytest.mark.nvcc
def test_a_program_with_headers_macros_and_templates(tmp_path):
    """A main() that launches some instances of a template; what is missing is said with what gives it."""
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "rows.h").write_text("constexpr int ROWS = 8;\n")
    source = tmp_path / "program.cu"
    source.write_text("""#include <cstdio>
#include "rows.h"
template <int N, bool B> __global__ void turn(float* o) {
    __shared__ float t[ROWS * N];
    t[threadIdx.x] = o[threadIdx.x];
    __syncthreads();
    if (B) o[threadIdx.x] = t[threadIdx.x * STEP % (ROWS * N)];
}
int main() { turn<32, true><<<1, 256>>>(nullptr); turn<64, true><<<1, 256>>>(nullptr); puts("x"); }
""")
    assert "rows.h" in (said := refused(source, "--block", "256"))
    assert "-I DIR" in said
    assert "-D NAME=VALUE" in refused(source, "--block", "256", "-I", headers)
    given = ("--block", "256", "-I", headers, "-D", "STEP=2", "--nvcc=-std=c++17", "--arch", "sm_80")
    said = refused(source, *given, "--entry", "turn<16, true>")
    assert "a template is compiled only where" in said
    assert "turn<32, true>" in said
    found = check(source, *given, "--entry", "turn<64, true>")
    assert found["certain"]
    assert (found["target"], found["totals"]["wavefronts_ld"]) == ("sm_80", 16)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("__global__ void k(float* out, const int *__restrict__ a, const int n) {}",
         (("out", "float*"), ("a", "const int *"), ("n", ""))),
        ("template <int N> __global__ __launch_bounds__(256)\nvoid k(T<int, 2> a, /* b */ float c[4], int d = 3) {}",
         (("a", ""), ("c", ""), ("d", ""))),
        ("__global__ void k(double * RESTRICT A, T *B = nullptr) {}", (("A", "double *"), ("B", "T *"))),
        ("__global__ void k(float*, int n) {}", ()),  # one has no name of its own
        ("__global__ void other(int n, int m) {}", ()),
    ],
)  # fmt: skip
def test_parameters_have_the_names_of_the_source(source, expected):
    assert tuple(source_parameters(source, "k")) == expected


PTX = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {{
    .reg .b64 %rd<2>;
    .reg .b32 %r<3>;
    .shared .align 4 .b8 tile[4096];
    {}
    ret;
}}
"""
STORE = "mov.u32 %r1, %tid.x; mul.lo.u32 %r1, %r1, 128; mov.u32 %r2, tile; add.u32 %r2, %r1, %r2; st.shared.u32 [%r2], 1;"


def test_arrays_of_a_kernel_lie_before_those_of_the_file_that_it_or_what_it_calls_names():
    """As ptxas puts them."""
    text = (
        ".version 8.0\n.target sm_90\n.address_size 64\n"
        ".shared .align 4 .b8 unused[64]; .shared .align 4 .b8 called[64]; .shared .align 4 .b8 both[256];\n"
        ".func g() { .reg .b32 %r<2>; mov.u32 %r1, called; call.uni g; ret; }\n"
        ".func f() { .reg .b32 %r<2>; mov.u32 %r1, both; call.uni g; ret; }\n"
        ".visible .entry k() { .reg .b32 %r<2>; .shared .align 4 .b8 own[128]; mov.u32 %r1, own; call.uni f; ret; }\n"
    )
    found = declared(read_ptx(text, "k.ptx"), "k", 0x400 + 448, 0x400)
    assert [(one.name, one.start - 0x400, one.size) for one in found] == [
        ("own", 0, 128), ("called", 128, 64), ("both", 192, 256),
    ]  # fmt: skip


@pytest.mark.nvcc
@pytest.mark.parametrize(
    "line",
    ["bra ;", "ld.param.u64 %rd1;", "call (retval0), twice;", "call f, (a), (b), (c);", "}", "frob %rd1;"],
)
def test_ptx_that_the_assembler_refuses_is_one_line(tmp_path, line):
    said = refused(text_file(tmp_path, PTX.format(line), "k.ptx"), "--block", "32")
    assert said.startswith("error: ptxas fails: ")
    assert "kernel.ptx, line" in said
    old = text_file(tmp_path, PTX.format(STORE).replace("sm_90", "sm_30"), "k.ptx")
    assert "(--target says another GPU)" in refused(old, "--block", "32")


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("own", "asked", "target"), [("sm_90", (), "sm_90"), ("sm_90", ("--target", "sm_100"), "sm_100"),
                                 ("sm_30", ("--target", "sm_90"), "sm_90")],
)  # fmt: skip
def test_ptx_is_assembled_for_its_own_gpu_or_the_one_given(own, asked, target, tmp_path):
    kernel = text_file(tmp_path, PTX.format(STORE).replace("sm_90", own), "k.ptx")
    found = check(kernel, "--block", "32", *asked)
    assert (found["form"], found["target"], found["certain"]) == ("sass", target, True)
    assert (found["totals"]["wavefronts_st"], found["arrays"][0]["name"]) == (32, "tile")


@pytest.mark.nvcc
def test_checked_ptx_ends_with_the_command_that_patches_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.ptx").write_text((KERNELS / "transpose_plain.ptx").read_text())
    done = layoutopt("check", "k.ptx", "--block", "32,8")
    (line,) = [one for one in done.stdout.splitlines() if "next:" in one]
    words = line.split("layoutopt ")[1].split("  (")[0].split()
    assert layoutopt(*words).returncode in (0, 1)
    assert (tmp_path / "k.fixed.ptx").exists()


def test_without_an_assembler_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "find_tool", lambda _: None)
    with pytest.raises(MachineError, match=r"ptxas is not on this machine \(pip install 'layoutopt\[cuda\]'"):
        files.kernels(text_file(tmp_path, PTX.format(STORE), "k.ptx"))


@pytest.mark.nvcc
def test_parameters_have_the_names_of_the_ptx():
    kernel = KERNELS / "transpose_plain.ptx"
    given = ("transpose_param_2=64", "2=64")
    named, numbered = (check(kernel, "--block", "32,8", "--arg", arg) for arg in given)
    assert (named["certain"], named["totals"]) == (True, numbered["totals"])


@pytest.mark.parametrize("code", ["BRA; CALL.REL.NOINC", "RET.REL.NODEC"])
def test_jumps_and_calls_without_their_operands_are_one_line(tmp_path, code):
    done = layoutopt("check", text_file(tmp_path, listing(code), "k.sass"), "--block", "32")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_a_loop_without_an_end_is_named(tmp_path):
    kernel = text_file(tmp_path, listing("BRA 0x0"), "k.sass")
    done = layoutopt("check", kernel, "--block", "32", "--max-steps", "1000")
    assert (done.returncode, done.stderr) == (3, "")
    assert "not certain, and no worst case is known:\n    the loop at BRA" in done.stdout


@pytest.mark.parametrize(("name", "options"), [("$(touch made).cu", ()), ("k.cu", ("-I`touch made`",))])
def test_nvcc_gets_no_name_that_a_shell_would_run(name, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("__global__ void f() {}")
    with pytest.raises(ProblemFileError, match="nvcc takes no name with one of"):
        compile_source(tmp_path / name, "sm_90", options)
    assert not (tmp_path / "made").exists()


HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{ .reg .b32 %r<9>;\n"
BODY = "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; st.shared.b32 [%r2], %r1; ret; }"
STORED = "S2R R1, SR_TID.X; SHF.L.U32 R2, R1, 0x2, RZ; STS [R2], R1"


@pytest.mark.parametrize(
    "work",
    [
        lambda: read_ptx(HEAD + BODY, "k.ptx"),
        lambda: sass.from_text(listing("EXIT"), None),
        lambda: evaluate(program(STORED), Launch(block=(32, 1, 1)), device("sm_90")),
        lambda: relevance.relevance(program(STORED), ()),
    ],
)
def test_without_time_nothing_is_read_or_evaluated(work):
    with pytest.raises(OutOfTime), spending(Budget(0)):
        work()


def test_what_is_too_large_is_said(monkeypatch):
    monkeypatch.setattr(relevance, "MOST_LIVE", 1)
    with pytest.raises(ProblemFileError, match="the kernel is too large: more than 1 live values"):
        relevance.relevance(program(STORED), ())
    monkeypatch.setattr(ptx_text, "MAX_STATEMENTS", 4)
    with pytest.raises(ProblemFileError, match="expected at most 4 statements"):
        read_ptx(HEAD + BODY, "k.ptx")


def test_a_disassembler_that_never_ends_is_out_of_time(tmp_path, monkeypatch):
    with pytest.raises(OutOfTime, match="sleep worked"), spending(Budget(0.1)):
        ended(["sleep", "60"])
    endless, kernel = tmp_path / "nvdisasm", tmp_path / "k.cubin"
    endless.write_text("#!/bin/sh\nsleep 60\n")
    endless.chmod(0o755)
    monkeypatch.setattr(files, "find_tool", lambda _: str(endless))
    monkeypatch.setattr(files.elf, "sections", lambda _: [])
    monkeypatch.setattr(files.elf, "kernels", lambda _: [("k", 1)])
    monkeypatch.setattr(files.elf, "is_cubin", lambda _: True)
    kernel.write_bytes(b"damaged")
    with pytest.raises(OutOfTime, match="nvdisasm worked"), spending(Budget(0.1)):
        files.kernels(kernel)[0].read()


def test_the_time_that_a_compiler_takes_is_not_counted(tmp_path, monkeypatch):
    clock, left = [0.0], []
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(files, "compile_source", lambda *_: clock.insert(0, clock[0] + 1000) or b"cubin")
    monkeypatch.setattr(files, "_from_cubin", lambda _: left.append(current().seconds) or ())
    with spending(Budget(10)):
        files.kernels(text_file(tmp_path, "", "k.cu"))
    assert (clock[0], left) == (1000, [10])


NVCC = """#!/bin/sh
echo run >> {log}
while [ $# -gt 0 ]; do
  case "$1" in -MF) rule=$2 ;; -o) out=$2 ;; *.cu) source=$1 ;; esac
  shift
done
echo "$out : $source \\\\" > "$rule"
echo "    {header}" >> "$rule"
cat "$source" {header} > "$out"
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A compiler that joins a source and a header, and how often it ran."""
    (tmp_path / "k.cu").write_text("source\n")
    (tmp_path / "a header.cuh").write_text("header\n")
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "nvcc"
    tool.write_text(NVCC.format(log=log, header=str(tmp_path / "a header.cuh").replace(" ", "\\ ")))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LAYOUTOPT_CACHE", str(tmp_path / "kept"))
    return lambda: len(log.read_text().splitlines())


def test_a_source_is_compiled_when_something_that_was_read_changes(tmp_path, runs):
    source = tmp_path / "k.cu"
    first = compile_source(source, "sm_90")
    assert first == b"source\nheader\n"
    assert compile_source(source, "sm_90") == first
    assert runs() == 1
    compile_source(source, "sm_80")
    compile_source(source, "sm_90", ["-DN=2"])
    assert runs() == 3
    (tmp_path / "a header.cuh").write_text("changed\n")
    assert compile_source(source, "sm_90") == b"source\nchanged\n"
    source.write_text("another\n")
    assert compile_source(source, "sm_90") == b"another\nchanged\n"
    assert compile_source(source, "sm_90") == b"another\nchanged\n"
    assert runs() == 5
    source = source.rename(tmp_path / os.fsdecode(b"\xe9.cu"))  # a name that is no text is not kept
    assert compile_source(source, "sm_90") == b"another\nchanged\n"


def test_what_is_kept_may_be_broken_or_not_wanted(tmp_path, runs, monkeypatch):
    source = tmp_path / "k.cu"
    first = compile_source(source, "sm_90")
    (entry,) = (tmp_path / "kept").iterdir()
    entry.write_bytes(entry.read_bytes()[:-3])
    assert compile_source(source, "sm_90") == first
    monkeypatch.setenv("LAYOUTOPT_CACHE", "")
    assert compile_source(source, "sm_90") == first
    monkeypatch.setenv("LAYOUTOPT_CACHE", str(source))  # no folder
    assert compile_source(source, "sm_90") == first
    assert runs() == 4
