"""Layouts that the hardware dictates: what an H200 did with them, and what direct loads of AMD write."""

import json

import msgspec
import numpy as np
import pytest
from conftest import ROOT
from emit_programs import emit
from written import access_from, constrained, data_of, problem_of, refused_with, rows_of

from layoutopt import check, compare, solve
from layoutopt.engine.case import case_of
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget, OutOfTime, spending
from layoutopt.hardware.devices import device
from layoutopt.hardware.dictated import modes
from layoutopt.search.dictated import propose, ranked
from layoutopt.search.direct import pieces
from layoutopt.search.proposal import Ask
from layoutopt.search.search import Search

MEASURED = json.loads((ROOT / "tests/data/h200_fragments.json").read_text())
STORES = {
    "stmatrix": {"op": "stmatrix.x4", "fragment": "wgmma.m64n8k16.C.f16", "repeat": {"n": 8}},
    "rows": {"op": "store", "copy": {"bytes": 16}},
    "own row": access_from("own row: store 16 [tid % 64, 8*i + 32*(tid // 64)]; i<4"),
}


def epilogue(*names, by="tma.store", tile="64x64 bf16", **layout):
    """Stores under a layout `by` an access of the hardware, which may have a mode: `tma.store 128B`."""
    op, _, mode = by.partition(" ")
    out = {"name": "out", "op": op} | ({"mode": mode} if mode else {})
    accesses = ({**STORES[name], "name": name} for name in names)
    return problem_of(f"{tile}, 128 threads", *accesses, out, layout=layout)


def served(problem):
    """What `ranked` finds, the best first."""
    return ranked(case_of(problem, device(problem.target))).served


def proposed(case, budget):
    with spending(budget):
        return propose(Search(case, Ask(), ()), None)


@pytest.mark.parametrize("mode", [m.name for m in modes() if m.name.startswith("tma")])
def test_counts_are_the_profilers(mode):
    problem = epilogue(*STORES, by=f"tma.store {mode.partition('.')[2]}")
    whole = min(served(problem), key=lambda found: found.box_rows)
    audit = check(problem, whole.layout)
    for access in audit.accesses[:-1]:
        measured = MEASURED["epilogue"][f"{mode} {access.name}"]
        got = access.wavefronts, access.bank_conflicts
        assert got == (measured["wavefronts"], measured["bank_conflicts"])
    assert solve(problem).excess <= audit.excess, "boxes may have shorter rows"
    assert MEASURED["tma"][whole.name], "the copy engine read the tile in this layout"


def test_modes_are_ranked_and_the_best_is_taken():
    result = solve(epilogue(*STORES))
    assert (result.status, result.excess, result.family) == ("optimal", 0, "tma.128B, x1 contiguous")
    costs = [float(part.split()[-2]) for part in result.reason.split("; ") if part.endswith("excess")]
    assert costs == sorted(costs)
    assert len(costs) == 4
    # Rows alone need no swizzle, and without one the index is the cheapest.
    assert solve(epilogue("rows")).family == "tma.none, x1 contiguous"


def test_weights_decide_between_modes():
    """Many runs of the rows outweigh the conflicts of one run of stmatrix."""
    data = msgspec.to_builtins(epilogue("stmatrix", "rows", alignment_bytes=256))
    data["accesses"][1]["weight"] = 100
    result = solve(from_data(data))
    assert result.weighted_excess == result.proof.weighted_excess.lower_bound
    light = solve(epilogue("stmatrix", "rows", alignment_bytes=256))
    assert result.proof.excess.lower_bound == light.excess < result.excess, "weights aside"


# Rows by columns that tile 16-byte rows in every way.
QUARTERS = ["r0: load 4 [lane, 0]", "r1: load 4 [lane, 4*(lane%8)]"]
QUARTERS += ["r2: load 4 [lane, 4*(lane//2%4)]", "r3: load 4 [lane, 4*(lane//4%2)]"]


def test_short_boxes_are_counted_where_whole_rows_conflict():
    """Boxes of 16-byte rows have the fewest conflicts: whole rows have 16, whatever the swizzle."""
    moved = problem_of("32x32 f32, 32 threads", "ld: tma.load", *QUARTERS)
    result = solve(moved)
    assert (str(result.status), result.excess, result.proof.excess.lower_bound) == ("optimal", 12, 12)
    assert rows_of(compare(moved))["tma.none"].excess == 12
    in_use = "x1//4*128 + x0*4 + x1%4"
    used = rows_of(compare(constrained(moved, offset=in_use)))["in_use"]
    assert (str(used.status), used.excess, used.alignment_bytes) == ("given", 12, 128)
    assert check(moved, in_use).alignment_bytes == 128
    # They are counted while there is time, and nothing is proved of what was not counted.
    case = case_of(moved, device("sm_90"))
    whole, cut = (proposed(case, budget) for budget in (Budget(), Budget(0)))
    assert (whole.complete, cut.complete, cut.found is not None) == (True, False, True)
    assert cut.found.weighted_excess >= whole.found.weighted_excess == whole.excess_bound.lower_bound > 0
    assert cut.excess_bound.lower_bound == 0


def test_boxes_begin_where_tma_writes():
    """Two rows of 32 bytes are no box: the next would begin at byte 64."""
    result = solve(epilogue("rows", by="tma.store 32B", tile="2x64 bf16"))
    assert str(result.status) == "infeasible"
    assert "no tensor map of mode 32B fills boxes" in result.reason
    # 256 bytes lie in mode 64B as in 128B, and boxes of 64 bytes would begin at byte 64.
    load = {"name": "ld", "op": "tma.load", "mode": "128B"}
    found = served(problem_of("64 f32, 32 threads", load, "a: load 4 [lane]"))
    assert "tma.128B, x0 contiguous, 2 boxes" in [c.title for c in found]


def test_what_cannot_be():
    for said, wrong in (
        ("accesses[1].mode: ", {"by": "tma.store 256B"}),
        ("layout.families: an access of the hardware by itself leaves no choice", {"families": ["pad"]}),
    ):
        with refused_with(said):
            solve(epilogue("rows", **wrong))
    torn = solve(epilogue("rows", by="wgmma.B 128B", tile="24x48 bf16"))
    assert torn.status == "infeasible"
    assert "no layout of wgmma.B holds this tile" in torn.reason
    assert solve(epilogue("rows", "stmatrix", by="tma.store none"), conflict_free=True).status == "infeasible"
    large = solve(epilogue("rows", by="tma.store 128B", max_bytes=4096))
    why = "tma.128B, x1 contiguous: takes 8,192 bytes, max_bytes is 4,096"
    why += " (the layouts of tma.store, boxes side by side)"
    assert (large.status, large.reason) == ("infeasible", why)
    assert "max_bytes is 4,096" in solve(epilogue("rows", max_bytes=4096)).reason


def test_run_time_values_are_counted_at_their_worst():
    """Eight rows that choose one of eight columns each: pages of 16 bytes alone keep every choice apart."""
    read = "a: load 16 [tid % 8, 8*b]; any b<8"
    pages = problem_of("64x64 f16, 32 threads", {"name": "A", "op": "wgmma.A", "mode": "32B"}, read)
    result = solve(pages)
    assert result.excess == check(pages, result.layout).excess == result.proof.excess.lower_bound == 4
    assert solve(problem_of("64x64 f16, 32 threads", "ld: tma.load", read)).excess == 0


def test_modes_keep_to_the_alignment_of_the_base():
    result = solve(epilogue("own row", alignment_bytes=256))
    assert result.alignment_bytes <= 256
    assert "tma.128B, x1 contiguous: needs a base at a multiple of 1024 bytes" in result.reason
    assert solve(epilogue("rows", by="tma.store 128B", alignment_bytes=256)).status == "infeasible"


# Row-major flips no bit and has conflicts; of those without any, the 128-byte mode flips the fewest. Fewest bytes
# first means no pads between copies.
FIRST = [
    ({"op": "tma.load", "box": [32, 32]}, "instructions", ("tma.none, x1 contiguous", 4096), ("tma.128B, x1 contiguous", 4096)),
    ({"op": "cp.async.bulk", "bytes": 128}, "bytes", ("rows of 128 bytes", 4096), ("rows of 128 bytes, pads of 16 bytes", 4592)),
]  # fmt: skip


@pytest.mark.parametrize(("fill", "minimise", "first", "free"), FIRST)
def test_what_comes_first_with_conflicts_and_without(fill, minimise, first, free):
    rows = "rows: load 16 [tid, 4*i]; i<8"
    problem = problem_of(f"32x32 f32, 32 threads; minimise {minimise}", {"name": "fill", **fill}, rows)
    result, clean = solve(problem), solve(problem, conflict_free=True)
    assert (result.family, result.bytes, result.excess) == (*first, 224)
    assert (str(clean.status), clean.family, clean.bytes, clean.excess) == ("optimal", *free, 0)
    assert minimise != "bytes" or result.proof.excess.scope.endswith(" within 4096 bytes")


READ = access_from("A: ds_read_b128 [lane % 16 + 16*m, 8*(lane // 16) + 32*k]; m<4, k<2")


ROWS = ["tid // 8 + 32*i", "8*(tid % 8)"]
TURNED_AROUND = ["tid // 8 + 32*i", "8*(7 - tid % 8)"]
FREE = access_from("fill: buffer_load_dwordx4.lds 16; lanes free")
TURNED = ["tid // 8 + 32*i", "8*(tid % 8 ^ tid // 8 % 8)"]


def data(index=ROWS, op="buffer_load_dwordx4.lds", loops=2, target="gfx950", **more):
    fill = {"name": "fill", "op": op, "index": index, "for": {"i": loops}}
    return {**data_of(f"64x64 f16, 256 threads; target {target}", fill, READ), **more}


def as_tile(problem, **fields):
    """The same as a block of one tile."""
    tiles = [{"name": "A", **problem.pop("tile"), **fields}]
    accesses = [{**access, "tile": "A"} for access in problem.pop("accesses")]
    return from_data({**problem, "tiles": tiles, "accesses": accesses})


def side_by_side(table, index):
    """Every wave's 64 lanes write 1,024 bytes in a row, by plain loops."""
    for i, wave in np.ndindex(2, 4):
        places = []
        for tid in range(64 * wave, 64 * wave + 64):
            row, column = (eval(text, {}, {"tid": tid, "i": i}) for text in index)
            places.append(int(table[row, column]))
        assert (np.diff(places) == 16).all()


@pytest.mark.parametrize(
    ("index", "excess", "offset"),
    [
        (ROWS, 128, "x0 // 8 % 2 * 2064 + x0 // 16 * 512 + x0 % 8 * 64 + x1"),
        (TURNED, 0, "x0*64 + (x1 ^ x0 % 8 * 8)"),
        (TURNED_AROUND, None, None),  # what waves write is a layout where no other serves
    ],
)
def test_runs_of_a_wave_stay_whole(index, excess, offset):
    """In row-major order only a pad between runs helps; where the load flips, the XOR serves the reads."""
    problem = from_data(data(index))
    result = solve(problem)
    side_by_side(result.layout.table(), index)
    assert (str(result.status), offset or result.offset) == ("optimal", result.offset)
    assert result.proof.excess.scope.startswith("the layouts of direct loads")
    assert excess in (None, result.excess)
    assert "t_fill_bytes" in emit("hip", problem, device("gfx950"), result)


def test_a_pad_inside_a_run_is_found():
    problem = from_data(data())
    audit = check(problem, "x0*72 + x1")
    (finding,) = [f for f in audit.findings if f.kind == "unreached"]
    said = "access 'fill': lane 8 writes 128 bytes behind lane 0, and its element lies 144 behind"
    assert (str(audit.status), finding.message) == ("infeasible", said)
    assert str(check(problem, "x0*64 + x1").status) == "conflicts"


def test_widths_are_those_of_the_chip():
    words = ["tid // 32 + 8*i", "2*(tid % 32)"]
    result = solve(from_data(data(words, "global_load_lds_dword", 8, "gfx942")))
    assert (str(result.status), result.accesses[0].excess) == ("optimal", 0)
    with refused_with("accesses[0].op: no published rule for load.lds of 16 bytes on gfx942"):
        solve(from_data(data(target="gfx942")))
    with refused_with("layout.families: an access of the hardware by itself leaves no choice"):
        solve(from_data(data(layout={"families": ["pad"]})))


def test_runs_in_turn_take_pads_of_several():
    problem = problem_of("""128x128 e4m3, 256 threads; target gfx942
        fill: buffer_load_dword.lds [tid // 32 + 8*i, 4*(tid % 32)]; i<16
        A: load 8 [lane % 16 + 16*m, 8*(lane // 16) + 32*k]; m<8, k<4""")
    result, known = solve(problem), check(problem, "x0//2%8*2056 + x0//16*256 + x0%2*128 + x1")
    assert (result.excess, result.bytes) <= (known.excess, known.bytes)


def test_lanes_that_no_layout_brings_together():
    both = data()
    both["accesses"].append({**both["accesses"][0], "name": "other", "index": TURNED_AROUND})
    result = solve(from_data(both))
    assert (str(result.status), result.layout) == ("infeasible", None)
    assert "lane 1 writes 16 bytes behind lane 0" in result.reason
    # A table of 8,192 elements would serve; nobody would want one, and what is not listed is not refuted.
    tall = data(TURNED_AROUND, loops=4, tile={"shape": [128, 64], "element": "f16"})
    result = solve(from_data(tall))
    assert (str(result.status), result.layout) == ("unknown", None)
    said = "none of the layouts that are listed for direct loads; there may be others"
    assert result.reason.startswith(said)


def test_one_of_several_tiles():
    found = solve(as_tile(data(TURNED), stages=2))
    assert (found.excess, found.bytes) == (0, 16384)
    scope = "the layouts that each tile may have, as listed for direct loads"
    assert solve(as_tile(data())).proof.excess.scope == scope


def test_free_lanes_of_a_direct_load_turn_their_pieces_as_the_xor_does():
    """As index TURNED above: each wave still writes a run, and the XOR serves the reads."""
    result = solve(from_data({**data(), "accesses": [FREE, READ]}), time_limit=5)
    assert (str(result.status), result.excess, result.bytes, result.family) == ("optimal", 0, 8192, "xor")
    (fill, _) = result.accesses
    assert fill.loops == {"i": 2}
    side_by_side(result.table(), fill.index)
    taken = {tuple(eval(text, {}, {"tid": t, "i": i}) for text in fill.index) for t, i in np.ndindex(256, 2)}
    assert taken == {(row, column) for row in range(64) for column in range(0, 64, 8)}
    fixed = {**data(list(fill.index)), "published": {"offset": result.offset, "bytes": 8192}}
    assert check(from_data(fixed)).excess == 0


def test_free_lanes_of_a_direct_load_claim_no_bound_of_lanes_as_they_stand():
    read = {**READ, "for": {"m": 6, "k": 2}}
    result = solve(problem_of("96x64 f16, 64 threads; target gfx950", FREE, read), time_limit=2)
    assert result.layout is not None
    assert result.excess == 0 or (str(result.status), result.proof.excess.lower_bound) == ("feasible", 0)


def test_free_lanes_of_a_direct_load_keep_segments():
    """Segments of 32 bytes; by columns, where nothing that was found serves, nothing is refuted."""
    rows, columns = (
        solve(from_data({**data(), "accesses": [{**FREE, "global": side}, READ]}), time_limit=2)
        for side in ({"contiguous": 32}, {"contiguous": 32, "order": "column"})
    )
    assert (rows.excess, rows.bytes) == (0, 8192)
    assert columns.layout is not None or str(columns.status) == "unknown"


def test_layouts_of_direct_loads_are_listed_while_there_is_time():
    case = case_of(from_data(data()), device("gfx950"))
    cut = proposed(case, Budget(0))
    assert (cut.complete, cut.found) == (False, None)
    with pytest.raises(OutOfTime), spending(Budget(0)):
        pieces(case.lowered.tile, case.lanes)
