"""Tiles of TMA and matrix instructions in the languages that have types for them: Gluon and CuTe.

Triton says where its `NVMMASharedLayout` puts every element; CuTe's headers say it of their atoms.
"""

import json
import subprocess

import numpy as np
import pytest
from command import layoutopt, refused
from emit_programs import GXX, emit
from test_emit_languages import cute_headers
from written import access_from, data_of, one_tile, problem_of, reads, writes

from layoutopt.codegen.cute import tiling
from layoutopt.codegen.languages import plan
from layoutopt.errors import LayoutError
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.search.solve import solve

FILL = access_from("fill: tma.load")
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
    return problem, device("sm_90"), GROUPS if name == "groups of rows" else solve(problem)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[3]])
def test_gluon_takes_the_layout_of_matrices(name):
    problem, gpu, answer = answered(name)
    text = emit("gluon", problem, gpu, answer)
    assert f"gl.NVMMASharedLayout{CASES[name][3]}" in text
    assert "NVMMASharedLayout" in emit("gluon", problem, gpu, answer, only="offset")


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


@pytest.mark.parametrize("name", ["groups of rows", "core matrices"])
def test_gluon_has_none_without_pages(name):
    with pytest.raises(LayoutError, match="take NVMMASharedLayout"):
        emit("gluon", *answered(name))


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
    problem = problem_of("64x64 f16, 128 threads; target sm_90a", {**FILL, "mode": "none"})
    text = emit("cute", problem, device("sm_90"), "x0*64 + x1")
    assert "and none does" in text
    assert "GMMA" not in emit("cute", problem_without(problem), device("sm_90"), "x0*64 + x1")


def problem_without(problem):
    """The same tile with nothing that the hardware does by itself."""
    plain = writes("rows", 2, ["tid % 64", "0"])
    return from_data(one_tile("t", list(problem.tile.shape), "f16", 128, [plain], target="sm_90a"))


@pytest.mark.tools
@pytest.mark.skipif(GXX is None, reason="no C++ compiler on this machine")
def test_cute_puts_every_element_there(tmp_path):
    """Cases in one program: CuTe's headers take seconds to read."""
    include = [f"-I{path}" for path in cute_headers()]
    text, calls, wanted = ["#include <cstdio>"], [], []
    for number, name in enumerate(("pages", "MN major", "turned", "matrices", "groups of rows")):
        problem, gpu, answer = answered(name)
        text.append(emit("cute", problem, gpu, answer, name=f"t{number}").replace("#pragma once", ""))
        shape = problem.tile.shape
        nest = "".join(f"for (int x{d} = 0; x{d} < {n}; ++x{d}) " for d, n in enumerate(shape))
        calls.append(f"{nest}put(t{number}_smem_offset{{}}({CASES[name][-1]}));")
        wanted.append((plan(problem, gpu, answer).table // problem.tile.element_bytes).ravel())
    body = "\n".join(calls)
    text.append(f"static void put(int v) {{ fwrite(&v, 4, 1, stdout); }}\nint main() {{\n{body}\n}}\n")
    (tmp_path / "check.cpp").write_text("\n".join(text))
    command = [GXX, "-std=c++17", "-w", *include, "-o", tmp_path / "check", tmp_path / "check.cpp"]
    subprocess.run(command, check=True)
    out = subprocess.run([tmp_path / "check"], check=True, capture_output=True).stdout
    assert (np.frombuffer(out, "<i4") == np.concatenate(wanted)).all()


def test_a_layout_in_use_of_a_mode_is_aligned_as_the_mode_needs_it(tmp_path):
    """Rows of 128 bytes, of which the TMA swizzles eight: given as a formula, or as a result out of a file."""
    load = reads("r", 16, ["tid", "8*i"], i=8)
    data = data_of("64x64 f16, 64 threads; name m; must_be tma.128B", load)
    path, result = tmp_path / "p.json", tmp_path / "r.json"
    path.write_text(json.dumps(data))
    formula = layoutopt("emit", str(path), "--lang", "c", "--offset", "x0*64 + (x1 ^ x0 % 8 * 8)")
    assert "m_alignment = 1024" in formula.stdout
    plain = layoutopt("emit", str(path), "--lang", "c", "--offset", "x0*72 + x1")
    assert "m_alignment = 16 " in plain.stdout
    found = json.loads(layoutopt("solve", str(path), "--json").stdout)
    for change, message in (
        (
            {"alignment_bytes": 128},
            "alignment_bytes: tma.128B, x1 contiguous needs a base aligned to 1024, not 128",
        ),
        ({"layout": {**found["layout"], "swizzle": []}, "offset": "x0*64 + x1"}, "the layout gives 448"),
    ):
        result.write_text(json.dumps({**found, **change}))
        refused(message, "emit", str(result), "--problem", str(path))
