"""The smallest change of a layout in use that mends it."""

import json

import numpy as np
import pytest
from command import layoutopt
from conftest import ROOT
from written import data_of, problem_of, reads, writes

from layoutopt import check, load, solve
from layoutopt.engine.case import case_of
from layoutopt.expressions.grammar import evaluate, parse, to_text
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import device
from layoutopt.problems.types import Tile
from layoutopt.study.compare import compare
from layoutopt.study.edits import edits, nearest_edit

# A scan's exchange in PyOpenCL: written to rows of a thread's items, read by items.
SCAN = data_of("""9x129 f32, 128 threads; published 4644 x0*129 + x1
    write: store 4 [(k*128 + tid) % 8, (k*128 + tid) // 8]; k<8
    read: load 4 [k, tid]; k<8""")
TRANSPOSE = ROOT / "problems/basics/transpose_32x32_f32.json"


def nearest(problem, offset):
    case = case_of(problem, device(problem.target))
    names = frozenset(f"x{d}" for d in range(len(problem.tile.shape)))
    return nearest_edit(parse(offset, names), case, Budget())


def test_a_pitch_of_132_instead_of_129():
    found = nearest(from_data(SCAN), "x0*129 + x1")
    assert (found.edit.text, to_text(found.edit.node)) == ("change 129 to 132", "x0*132 + x1")
    assert found.excess == 0


def test_edits_are_not_estimated_once_the_time_is_over(monkeypatch):
    monkeypatch.setattr("layoutopt.study.edits.estimate", lambda *_: 1 / 0)
    case = case_of(from_data(SCAN), device("sm_90"))
    node = parse("x0*129 + x1", frozenset(("x0", "x1")))
    assert nearest_edit(node, case, Budget(0), by_time=True) == nearest_edit(node, case, Budget(0))


def test_it_is_a_row_of_compare_and_the_first_fix_of_check():
    problem = from_data(SCAN)
    (row,) = [row for row in compare(problem).rows if row.edit is not None]
    assert (row.family, row.edit, row.offset, row.excess) == ("edit", "change 129 to 132", "x0*132 + x1", 0)
    assert (row.bytes, row.declared_bytes) == (4 * (8 * 132 + 129), 4 * 9 * 132)
    audit = check(problem, solver=solve)
    assert (audit.edit.text, audit.edit.offset, audit.edit.excess) == (row.edit, row.offset, 0)
    assert audit.edit.saved_wavefronts == audit.excess
    assert [f.kind for f in audit.findings if f.kind in ("edit", "fix")] == ["edit", "fix"]


@pytest.mark.parametrize(
    ("name", "offset", "text"),
    [
        ("basics/transpose_32x32_f32", "x0*32 + x1", "change 32 to 33"),
        ("basics/gemm_a_128x64_f16", "x0*64 + x1", "change 64 to 72"),
        ("basics/gemm_a_128x64_f16", "x0*64 + (x1 ^ x0 % 4 * 8)", "change % 4 to % 8"),
        ("reduction/cuda_samples_reduce1_256_f32", "x0", "add x0 // 32"),
        ("wavelets/haar_1d_512_f32", "x0 + x0 // 16", "change // 16 to // 32"),
        ("scan/cub_block_exchange_128x12_f32", "x0", "XOR x0 // 32 % 4 into the offset"),
        ("stencils/arrayfire_convolve_3d_f32", "x0*144 + x1*12 + x2", "change 12 to 24 and 144 to 288"),
        ("stencils/unified_cache_7_point_f64", "x0*60 + x1*10 + x2", "order the dimensions x0, x2, x1"),
    ],
)
def test_edits_as_authors_make_them(name, offset, text):
    problem = load(ROOT / "problems" / f"{name}.json")
    assert nearest(problem, offset).edit.text == text


def test_a_layout_without_conflicts_needs_none():
    assert nearest(load(TRANSPOSE), "x0*33 + x1") is None
    assert nearest(load(TRANSPOSE), "x0*32 + (x1 ^ x0)") is None


def test_what_is_no_layout_is_mended():
    """Rows of 65 halves are misaligned for 16 bytes; rows of 31 overlap."""
    assert nearest(load(ROOT / "problems/basics/gemm_a_128x64_f16.json"), "x0*65 + x1").edit.text == (
        "change 65 to 72"
    )
    assert nearest(load(TRANSPOSE), "x0*31 + x1").edit.text == "change 31 to 33"


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        ({"families": ["none", "pad"]}, "constant"),
        ({"families": ["none", "xor"]}, "mask"),
        ({"max_bytes": 4096}, "mask"),
        ({"pitch_multiple_bytes": 16}, "mask"),
    ],
)
def test_constraints_are_kept(problem_file, layout, kind):
    tile = {"shape": [32, 32], "element": "f32"}
    accesses = [
        writes("rows", 4, ["i", "tid"], i=32),
        reads("columns", 4, ["tid", "i"], i=32),
    ]
    problem = load(problem_file(tile=tile, threads=32, accesses=accesses, layout=layout))
    found = nearest(problem, "x0*32 + x1")
    assert (found.edit.kind, found.excess) == (kind, 0)


def test_every_edit_says_what_it_does():
    """The text of a changed constant leads from the formula before to the one after."""
    before = parse("x0*66 + x1*33 + x2", frozenset(("x0", "x1", "x2")))
    tried = list(edits(before, Tile((2, 2, 33), "f32"), 1, 32))
    assert len({to_text(e.node) for e in tried if e.kind == "constant"}) > 60
    for edit in tried:
        if edit.text.startswith("change ") and edit.kind == "constant":
            text = to_text(before)
            for change in edit.text.removeprefix("change ").split(" and "):
                old, new = change.split(" to ")
                text = text.replace(f"*{old}", f"*<{new}>")
            assert text.replace("<", "").replace(">", "") == to_text(edit.node)
        grids = {f"x{d}": g for d, g in enumerate(np.indices((2, 2, 33)))}
        assert evaluate(edit.node, grids).size


def test_no_fix_seeks_no_edit():
    data = json.loads(layoutopt("check", TRANSPOSE, "--offset", "x0*32 + x1", "--no-fix", "--json").stdout)
    assert data["edit"] is None


def test_an_edit_keeps_the_order_of_dimensions_that_the_file_asks_for():
    """A stride below that of the next dimension saves bytes, in another order."""
    problem = problem_of("2x2x3 f32, 1 threads; order 0 2 1", "a: load 4 [0, 0, 0]")
    assert nearest(problem, "x0*8 + x1*3 + x2") is None
    assert to_text(nearest(problem, "x0*8 + x2*2 + x1").edit.node) == "x0*6 + x2*2 + x1"
