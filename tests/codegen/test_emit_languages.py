"""Each target's own tools read what is emitted for it, and find the table at every coordinate.

The tools are optional (`pip install -e '.[languages]'`): a test says what it misses when it is skipped.
Gluon's and CuTe's layouts are evaluated by Triton's and CUTLASS's Python packages, OpenCL C runs on
whatever platform there is (PoCL on a CPU), Numba's functions run in its CUDA simulator.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import ENVIRONMENT, python
from conftest import ROOT, problem_id
from emit_programs import (
    FORMULAS,
    GXX,
    NAMED,
    SOLVED,
    emit,
    expected,
    run_python,
    same,
    solved,
    tabled,
    visits,
)
from written import one_tile, problem_of

from layoutopt import solve
from layoutopt.codegen.languages import plan
from layoutopt.errors import LayoutError
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device

pytestmark = pytest.mark.tools
every_problem = pytest.mark.parametrize("path", FORMULAS, ids=problem_id)


def offsets(problem, gpu, answer):
    """Element offsets in the shape of the tile."""
    return plan(problem, gpu, answer).table // problem.tile.element_bytes


@every_problem
def test_cute_in_its_python(path):
    pycute = pytest.importorskip(
        "pycute", reason="CUTLASS's Python package (nvidia-cutlass) is not installed"
    )
    problem, gpu, result = solved(path)
    text = emit("cute", problem, gpu, result)
    shape, stride = layout_type(text)
    linear = pycute.Layout(shape, stride)
    places = np.array([linear(*x) if len(x) > 1 else linear(x[0]) for x in np.ndindex(problem.tile.shape)])
    if match := re.search(r"Swizzle<(\d+), (\d+), (\d+)>, cute::Int<0>", text):
        swizzle = pycute.Swizzle(*map(int, match.groups()))
        places = np.array([swizzle(int(p)) for p in places])
    elif "struct" in text:
        assert result.layout.swizzle_triple() is None
        pytest.skip("a functor: compiled by test_cute_compiled")
    assert (places.reshape(problem.tile.shape) == offsets(problem, gpu, result)).all()


def layout_type(text):
    """`cute::Layout<Shape, Stride>` in `text` as two nested tuples."""
    start = text.index("cute::Layout<")
    depth, end = 1, start + len("cute::Layout<")
    while depth:
        depth += (text[end] == "<") - (text[end] == ">")
        end += 1
    inner = re.sub(r"cute::Int<(\d+)>", r"\1", text[start:end])
    inner = re.sub(r"cute::\w+<", "(", inner).replace(">", ",)")
    return eval(inner)


def cute_headers():
    """CUTLASS's and CUDA's headers, from packages or the toolkit."""
    library = pytest.importorskip(
        "cutlass_library", reason="CUTLASS's headers (nvidia-cutlass) are not installed"
    )
    found = [Path(library.__file__).parent / "source" / "include"]
    nvcc = shutil.which("nvcc")
    roots = [Path(p) / "nvidia" / "cu13" / "include" for p in sys.path]
    roots += sorted(Path("/usr/local").glob("cuda*/include")) if nvcc else []
    parts = ("cuda_runtime_api.h", "crt", "cccl")
    root = next((r for r in roots if all((r / part).exists() for part in parts)), None)
    if root is None:
        pytest.skip(
            "CUDA's headers (nvidia-cuda-runtime, nvidia-cuda-crt, nvidia-cuda-cccl) are not installed"
        )
    return [*found, root, root / "cccl"]


def is_where_cute_puts_it(cases, folder):
    """Of each code, what it calls a layout, coordinates and table: in one program, as the headers take seconds."""
    include = [f"-I{path}" for path in cute_headers()]
    lines, calls = ["#include <cstdio>", "static void put(int v) { fwrite(&v, 4, 1, stdout); }"], []
    for text, layout, coordinates, table in cases:
        lines.append(text.replace("#pragma once", ""))
        nest = "".join(f"for (int x{d} = 0; x{d} < {n}; ++x{d}) " for d, n in enumerate(table.shape))
        calls.append(f"{nest}put({layout}{{}}({coordinates}));")
    (folder / "check.cpp").write_text("\n".join([*lines, "int main() {", *calls, "}\n"]))
    command = [GXX, "-std=c++17", "-w", *include, "-o", folder / "check", folder / "check.cpp"]
    subprocess.run(command, check=True)
    out = subprocess.run([folder / "check"], check=True, capture_output=True).stdout
    assert (np.frombuffer(out, "<i4") == np.concatenate([table.ravel() for *_, table in cases])).all()


@pytest.mark.skipif(GXX is None, reason="no C++ compiler on this machine")
def test_cute_compiled(tmp_path):
    cases = []
    for case in map(solved, FORMULAS):
        coordinates = ", ".join(f"x{d}" for d in range(len(case[0].tile.shape)))
        cases.append((emit("cute", *case), f"{plan(*case).name}_layout", coordinates, offsets(*case)))
    is_where_cute_puts_it(cases, tmp_path)


@every_problem
def test_gluon_in_triton(path):
    pytest.importorskip("triton", reason="Triton is not installed")
    from triton._C.libtriton.linear_layout import LinearLayout
    from triton.experimental.gluon import language as gl

    problem, gpu, result = solved(path)
    try:
        text = emit("gluon", problem, gpu, result)
    except LayoutError:
        odd = any(n & (n - 1) for n in problem.tile.shape)
        assert odd or result.layout.turn or not result.layout.swizzle
        return
    space = {}
    exec(text, space)
    (made,) = [value for name, value in space.items() if name.endswith("_layout")]
    want, shape = offsets(problem, gpu, result), problem.tile.shape
    if isinstance(made, gl.SwizzledSharedLayout):
        # Triton's definition: include/triton/Dialect/TritonGPU/IR/TritonGPUAttrDefs.td, swizzled_shared
        fast, slow = made.order[0], made.order[1] if len(shape) > 1 else None
        x = np.indices(shape)
        phase = x[slow] // made.per_phase % made.max_phase
        x[fast] = (x[fast] // made.vec ^ phase) * made.vec + x[fast] % made.vec
        place, stride = np.zeros(shape, int), 1
        for d in made.order:
            place, stride = place + x[d] * stride, stride * shape[d]
        assert (place == want).all()
        return
    dims = [f"dim{d}" for d in range(len(shape))]
    linear = LinearLayout.from_bases([("offset", made.offset_bases)], dims, list(shape), True)
    for rank in range(want.size):
        at = linear.apply({"offset": rank})
        place = rank
        if isinstance(made, gl.PaddedSharedLayout):
            place += sum(rank // interval * pad for interval, pad in made.interval_padding_pairs)
        assert want[tuple(at[d] for d in dims)] == place


def test_gluon_says_what_it_cannot_express():
    problem, gpu, _ = solved(next(p for p in SOLVED if p.stem == "transpose_32x32_f32"))
    with pytest.raises(LayoutError, match="neither; --lang cuda"):
        emit("gluon", problem, gpu, "x0*32 + (x1 + 3*x0) % 32")
    with pytest.raises(LayoutError, match="each offset basis of a padded layout moves by a power of two"):
        emit("gluon", problem, gpu, "x0*36 + (x1 ^ x0 % 8 * 4)")


@pytest.mark.parametrize("language", ["cute", "gluon", "tilelang", "numba"])
def test_tables_and_packed_elements_are_refused(language):
    packed = solved(next(p for p in SOLVED if p.stem == "s4_a_128x128_s4"))
    for case in (packed, tabled()):
        with pytest.raises(LayoutError, match="cuda, hip, opencl, c can"):
            emit(language, *case)


@every_problem
def test_tilelang(path):
    """The offset as integers, and through TileLang's own layout where that is installed."""
    problem, gpu, result = solved(path)
    exec(emit("tilelang", problem, gpu, result), space := {})
    want, name = offsets(problem, gpu, result), plan(problem, gpu, result).name
    grids = np.indices(problem.tile.shape)
    assert (np.broadcast_to(space[f"{name}_offset"](*grids), want.shape) == want).all()
    pytest.importorskip("tilelang", reason="TileLang is not installed")
    layout = space[f"{name}_layout"]()
    some = np.random.default_rng(1).integers(0, want.shape, (60, want.ndim)).tolist()
    for at in {*map(tuple, some), tuple(n - 1 for n in want.shape)}:
        assert int(layout.map_forward_index(list(at))[0]) == want[at]


OWN = [
    ((16, 64), "f16", "128B", "make_full_bank_swizzled_layout"),
    ((24, 128), "f16", "128B", "make_full_bank_swizzled_layout"),
    ((16, 64), "f16", "64B", "make_half_bank_swizzled_layout"),
    ((8, 32), "f32", "32B", "make_quarter_bank_swizzled_layout"),
    ((16, 64), "e4m3", "64B", "make_half_bank_swizzled_layout"),
    ((2, 8, 64), "f16", "128B", "make_full_bank_swizzled_layout"),
    ((16, 64), "f16", "none", "make_linear_layout"),
]


def filled_by_tma(shape, element, mode):
    """A tile that TMA fills in a mode, its code and its offsets."""
    fill = {"name": "fill", "op": "tma.load", "mode": mode}
    data = one_tile("t", list(shape), element, 32, [fill])
    problem = from_data(data)
    result = solve(problem, time_limit=None)
    return emit("tilelang", problem, device("sm_90"), result), offsets(problem, device("sm_90"), result)


@pytest.mark.parametrize(("shape", "element", "mode", "made"), OWN)
def test_tilelang_names_its_own_layouts_where_tma_fills_the_tile(shape, element, mode, made):
    text, want = filled_by_tma(shape, element, mode)
    assert f"return {made}(tile)" in text
    tilelang = pytest.importorskip("tilelang", reason="TileLang is not installed")
    space = {}
    exec(text, space)
    types = {"f16": "float16", "f32": "float32", "e4m3": "float8_e4m3"}
    layout = space["t_layout"](tilelang.tvm.tirx.decl_buffer(shape, types[element]))
    extents = [int(n) for n in layout.get_output_shape()]
    for at in np.ndindex(*shape):
        place = [int(x) for x in layout.map_forward_index(list(at))]
        assert np.ravel_multi_index(place, extents) == want[at]


def test_tilelang_says_where_none_of_its_layouts_is_the_one():
    text, _ = filled_by_tma((2, 8, 128), "f16", "128B")  # pages of both matrices, one after another
    assert "None of TileLang's own layouts" in text
    assert "return Layout([2, 8, 128], t_offset)" in text


def test_tilelang_refuses_what_its_index_expressions_lack():
    problem = problem_of("4 f32, 4 threads", "a: load 4 [tid]")
    with pytest.raises(LayoutError, match="have no max, min"):
        emit("tilelang", problem, device("sm_90"), "max(min(x0, 5), 0)")


NUMBA = """
import sys
import numba.cuda
from conftest import Path
from emit_programs import run_python, solved

@numba.cuda.jit
def kernel():
    for path in sys.argv[1:]:
        run_python(*solved(Path(path)), numba)

kernel[1, 1]()
"""


def test_numba_in_its_simulator():
    pytest.importorskip("numba", reason="Numba is not installed")
    env = {**ENVIRONMENT, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    done = python("-W", "ignore", "-c", NUMBA, *FORMULAS[::6], env=env)
    assert done.returncode == 0, done.stderr


@every_problem
def test_numba_functions_as_plain_python(path):
    """Without Numba: the same functions, undecorated."""
    run_python(*solved(path))


TRUTHS = problem_of(
    """4x32 f32, 32 threads
    and: load 4 [lane and 3, ~(lane < 3) + 2 + (~(lane and 5) & 3)]
    or: load 4 [(lane or 2) + (0 or not lane), i or (lane - i) and 7]; i<4; where lane or i
    only: load 4 [0, 5 > lane]""",
    name="truths",
)


def test_numba_functions_have_numbers_for_truths_and_tables():
    """Python's `and` and `or` give an operand, and a truth is no index of an array."""
    gpu = device("sm_90")
    run_python(TRUTHS, gpu, "x0*40 + x1 + [0, 4, 1, 7][x0] + [0, 1][x1 and 5]*160")
    assert "return (5 > tid) + 0" in emit("numba", TRUTHS, gpu, "x0*33 + x1")


def test_numba_has_a_name_for_each_thing():
    """An access called size, as the constant; loops called as functions that are called."""
    run_python(*NAMED)


@pytest.mark.skipif(shutil.which("clang") is None, reason="no clang on this machine")
def test_opencl_has_a_name_for_each_thing(tmp_path):
    (tmp_path / "p.cl").write_text(emit("opencl", *NAMED))
    command = ["clang", "-x", "cl", "-cl-std=CL2.0", "-Xclang", "-finclude-default-header", "-fsyntax-only"]
    subprocess.run([*command, tmp_path / "p.cl"], check=True)


def test_cute_refuses_tables():
    with pytest.raises(LayoutError, match="no functor that looks up a table; --lang cuda, c or numba"):
        emit("cute", TRUTHS, device("sm_90"), "x0*40 + x1 + [0, 4, 1, 7][x0]")


@pytest.fixture(scope="module")
def opencl():
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    try:
        context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
    except (cl.LogicError, IndexError):
        pytest.skip("no OpenCL platform on this machine (Debian's pocl-opencl-icd is one)")
    try:
        cl.Program(context, "__kernel void nothing(__global uint *out) { out[0] = 1; }").build()
    except cl.RuntimeError as error:
        pytest.skip(f"this machine's OpenCL platform compiles nothing: {str(error).splitlines()[-1]}")
    return cl, context


@pytest.mark.parametrize("some", range(6))
@pytest.mark.filterwarnings("ignore")
def test_opencl_runs(some, opencl):
    """Many problems in one program: to start the compiler takes most of the time."""
    cl, context = opencl
    cases = list(map(solved, FORMULAS[some::6]))
    if "cl_khr_fp64" not in context.devices[0].extensions:
        cases = [case for case in cases if case[0].tile.element != "f64"]
    # Only the lane's own pointer functions use types; the addresses are what is compared.
    text = "#define PUT(v) out[at++] = (v)\n"
    for k, case in enumerate(cases):
        body = "\n".join(visits(*case, "PUT", "uint"))
        text += f"{emit('opencl', *case)}\n__kernel void check_{k}(__global uint *out) {{ uint at = 0;\n{body}\n}}\n"
    program = cl.Program(context, text).build()
    queue = cl.CommandQueue(context)
    for k, case in enumerate(cases):
        wanted = expected(*case)
        out = np.zeros(len(wanted), np.uint32)
        buffer = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, out.nbytes)
        getattr(program, f"check_{k}")(queue, (1,), (1,), buffer)
        cl.enqueue_copy(queue, out, buffer)
        same(out.tolist(), wanted)


def test_hip_is_read_by_a_compiler_for_amd(tmp_path):
    clang = shutil.which("hipcc") or shutil.which("clang++")
    if clang is None:
        pytest.skip("neither hipcc nor clang++ is on this machine: HIP is compiled for the host only")
    # Stand-ins for HIP's headers, which a bare clang has not: only what the emitted text uses.
    (tmp_path / "hip").mkdir()
    (tmp_path / "hip/hip_runtime.h").write_text(
        "#define __device__ __attribute__((device))\n#define __host__ __attribute__((host))\n"
        "#define __forceinline__ inline __attribute__((always_inline))\n"
        "struct alignas(16) uint4 { unsigned x, y, z, w; };\n"
    )
    (tmp_path / "hip/hip_fp16.h").write_text("typedef _Float16 __half;\n")
    text = emit("hip", *solved(ROOT / "problems/basics/gemm_a_128x64_f16.json"))
    (tmp_path / "tile.hip").write_text(text)
    # What clang 14 knows, too: what is emitted depends on no processor.
    flags = [
        "-x",
        "hip",
        "--cuda-device-only",
        "--offload-arch=gfx90a",
        "-nogpuinc",
        "-nogpulib",
        "-D__HIPCC__",
    ]
    command = [clang, *flags, f"-I{tmp_path}", "-std=c++17", "-fsyntax-only", tmp_path / "tile.hip"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
