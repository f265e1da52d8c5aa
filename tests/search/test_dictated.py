"""Layouts that the hardware dictates: what an H200 did with them, and what direct loads of AMD write."""

import json

import msgspec
import numpy as np
import pytest
from conftest import ROOT
from emit_programs import emit
from written import access_from, data_of, problem_of, reads

from layoutopt import check, compare, solve
from layoutopt.engine.case import case_of
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import device
from layoutopt.search.dictated import candidates, modes, propose
from layoutopt.search.direct import pieces
from layoutopt.search.proposal import Ask

MEASURED = json.loads((ROOT / "tests/data/h200_fragments.json").read_text())
STORES = {
    "stmatrix": {"op": "stmatrix.x4", "fragment": "wgmma.m64n8k16.C.f16", "repeat": {"n": 8}},
    "rows": {"op": "store", "copy": {"bytes": 16}},
    "own row": {"op": "store", "bytes": 16, "index": ["tid % 64", "8*i + 32*(tid // 64)"], "for": {"i": 4}},
}


def epilogue(*names, must_be="tma", shape=(64, 64), element="bf16", **layout):
    return from_data(
        {
            "name": "epilogue",
            "tile": {"shape": list(shape), "element": element},
            "threads": 128,
            "layout": {"must_be": must_be, **layout},
            "accesses": [{"name": name, **STORES[name]} for name in names],
        }
    )


@pytest.mark.parametrize("mode", [m.name for m in modes() if m.name.startswith("tma")])
def test_counts_are_the_profilers(mode):
    problem = epilogue(*STORES, must_be=mode)
    whole = next(iter(candidates(problem)))
    for access in check(problem, whole.layout).accesses:
        measured = MEASURED["epilogue"][f"{mode} {access.name}"]
        got = access.wavefronts, access.bank_conflicts
        assert got == (measured["wavefronts"], measured["bank_conflicts"])
    assert solve(problem).excess <= check(problem, whole.layout).excess, "boxes may have shorter rows"
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
    data = msgspec.to_builtins(epilogue("stmatrix", "rows", must_be=["tma.none", "tma.32B"]))
    data["accesses"][1]["weight"] = 100
    result = solve(from_data(data))
    assert result.family == "tma.none, x1 contiguous"
    assert (result.excess, result.weighted_excess) == (448, 448)
    assert result.proof.weighted_excess.lower_bound == 448
    assert result.proof.excess.lower_bound == 192, "tma.32B has fewer, weights aside"


def test_hardware_products_and_matrices_were_right():
    """What scripts/measure/validate_h200.py found for the fragments, on the machine."""
    assert len(MEASURED["products"]) >= 25
    assert all(MEASURED["products"].values())
    assert len(MEASURED["matrices"]) >= 20
    assert all(MEASURED["matrices"].values())


@pytest.mark.parametrize("element", ["i8", "bf16", "f32", "f64"])
@pytest.mark.parametrize("mode", [m.name for m in modes()])
def test_every_candidate_is_the_modes_address_pattern(mode, element):
    """Chunk bits 4.. of the byte address are flipped by bits 7.., inside pages of the span."""
    (rule,) = [m for m in modes() if m.name == mode]
    problem = epilogue("rows", must_be=mode, element=element)
    found = list(candidates(problem))
    width = problem.tile.element_bytes
    assert bool(found) == (mode.startswith("tma") or 64 * width % (rule.span_bytes or 16) == 0)
    for candidate in found[:1]:  # others have shorter rows
        table = candidate.layout.table()
        pitch = rule.span_bytes or 64 * width
        span = min(pitch // width, 64)
        for row, column in np.ndindex(64, 64):
            plain = (column // span * 64 + row) * pitch + column % span * width
            bits = {"32B": 1, "64B": 2, "128B": 3}.get(mode.partition(".")[2], 0)
            assert table[row, column] == plain ^ (plain >> 3 & ((1 << bits) - 1) << 4)


def test_what_must_be_and_a_load_of_tma_have_one_list():
    """Boxes of 16-byte rows have the fewest conflicts: whole rows have 16, whatever the swizzle."""
    columns = ["0", "4*(lane%8)", "4*(lane//2%4)", "4*(lane//4%2)"]
    rows = [reads(f"r{i}", 4, ["lane", c]) for i, c in enumerate(columns)]
    tile = {"name": "t", "tile": {"shape": [32, 32], "element": "f32"}, "threads": 32}
    named = from_data({**tile, "accesses": rows, "layout": {"must_be": "tma"}})
    moved = from_data({**tile, "accesses": [access_from("ld: tma.load"), *rows]})
    result = solve(named)
    assert (str(result.status), result.excess, result.proof.excess.lower_bound) == ("optimal", 12, 12)
    assert (solve(moved).excess, solve(moved).offset) == (12, result.offset)
    tables = {c.layout.table().tobytes() for c in candidates(named)}
    assert tables == {c.layout.table().tobytes() for c in candidates(moved)}
    assert {row.family: row.excess for row in compare(named).rows}["tma.none"] == 12
    in_use = msgspec.structs.replace(named.layout, offset="x1//4*128 + x0*4 + x1%4")
    used = {row.family: row for row in compare(msgspec.structs.replace(named, layout=in_use)).rows}["in_use"]
    assert (str(used.status), used.excess, used.alignment_bytes) == ("given", 12, 128)
    assert check(named, in_use.offset).alignment_bytes == 128


def test_boxes_of_what_must_be_begin_where_tma_writes():
    """Two rows of 32 bytes are no box: the next would begin at byte 64."""
    result = solve(epilogue("rows", must_be="tma.32B", shape=(2, 64)))
    assert str(result.status) == "infeasible"
    assert "no tensor map of mode 32B fills boxes" in result.reason
    # 256 bytes lie in mode 64B as in 128B, and boxes of 64 bytes would begin at byte 64.
    line = reads("a", 4, ["lane"])
    given = data_of("64 f32, 32 threads", line)
    found = candidates(from_data({**given, "layout": {"must_be": "tma"}}))
    assert "tma.128B, x0 contiguous, 2 boxes" in [c.title for c in found]


def test_what_cannot_be():
    with pytest.raises(ProblemFileError, match=r"layout\.must_be: unknown layout 'tma\.256B'"):
        solve(epilogue("rows", must_be="tma.256B"))
    with pytest.raises(ProblemFileError, match=r"layout\.must_be"):
        from_data(msgspec.to_builtins(epilogue("rows")) | {"layout": {"must_be": []}})
    with pytest.raises(ProblemFileError, match=r"layout\.families: must_be leaves no choice"):
        solve(epilogue("rows", families=["pad"]))
    torn = solve(epilogue("rows", must_be="wgmma.128B", shape=(24, 24)))
    assert torn.status == "infeasible"
    assert "no layout of wgmma.128B holds this tile" in torn.reason
    assert solve(epilogue("rows", "stmatrix", must_be="tma.none"), conflict_free=True).status == "infeasible"
    large = solve(epilogue("rows", must_be="tma.128B", max_bytes=4096))
    assert (large.status, large.reason) == (
        "infeasible",
        "tma.128B, x1 contiguous: takes 8,192 bytes, max_bytes is 4,096 "
        "(the layouts of tma.128B, boxes side by side)",
    )
    assert "max_bytes is 4,096" in solve(epilogue("rows", max_bytes=4096)).reason


def test_run_time_values_are_counted_at_their_worst():
    """Eight rows that choose one of eight columns each: pages of 16 bytes alone keep every choice apart."""
    data = msgspec.to_builtins(epilogue("rows", element="f16", must_be=["wgmma.32B", "wgmma.128B"]))
    data["accesses"] = [reads("a", 16, ["tid % 8", "8*b"], any={"b": 8})]
    data["threads"] = 32
    result = solve(from_data(data))
    audit = check(from_data(data), result.layout)
    assert result.excess == audit.excess == result.proof.excess.lower_bound == 4
    data["layout"] = {"must_be": "tma"}
    assert solve(from_data(data)).excess == 0


def test_tiles_may_be_dictated():
    tile = {"name": "t", "shape": [64, 64], "element": "bf16", "layout": {"must_be": "tma.128B"}}
    access = {"name": "a", "tile": "t", **STORES["own row"]}
    found = solve(from_data({"name": "ts", "threads": 128, "tiles": [tile], "accesses": [access]}))
    assert (found.status, found.excess, found.bytes, found.alignment_bytes) == ("optimal", 0, 8192, 1024)
    assert found.proof.index_cost is None, "nothing was minimised"


def test_modes_keep_to_the_alignment_of_the_base():
    result = solve(epilogue("own row", must_be="tma", alignment_bytes=256))
    assert result.alignment_bytes <= 256
    assert "tma.128B, x1 contiguous: needs a base at a multiple of 1024 bytes" in result.reason
    assert solve(epilogue("rows", must_be="tma.128B", alignment_bytes=256)).status == "infeasible"


def test_an_audit_is_not_bound_by_what_the_hardware_dictates():
    audit = check(epilogue("own row"), "x0*64 + x1", solver=solve)
    (fix,) = [finding for finding in audit.findings if finding.kind == "fix"]
    assert fix.details["family"] == "tma.128B, x1 contiguous"


def test_where_instructions_come_first_the_bound_is_of_the_cheapest():
    """Without a swizzle either rows or columns meet; the swizzle that parts both is no rival."""
    problem = problem_of("""64x64 f16, 8 threads; must_be wgmma.128B tma; minimise instructions
        a: load 16 [lane, 0]
        b: load 16 [0, 8*lane]""")
    found = solve(problem)
    assert (str(found.status), found.excess, found.layout.swizzle) == ("optimal", 4, ())
    assert found.proof.excess.lower_bound == 4
    assert (
        found.proof.excess.scope
        == "the layouts of wgmma.128B or tma, boxes and pages side by side that flip the fewest bits"
    )


def test_boxes_with_short_rows_are_counted_while_there_is_time():
    """Nothing is proved of what was not counted."""
    rows = [
        reads(f"r{k}", 4, ["lane", column])
        for k, column in enumerate(["0", "4*(lane % 8)", "4*(lane // 2 % 4)", "4*(lane // 4 % 2)"])
    ]
    case = case_of(problem_of("32x32 f32, 32 threads", "fill: tma.load", *rows), device("sm_90"))
    whole, cut = (propose(case, Ask(budget)) for budget in (Budget(), Budget(0)))
    assert whole.complete
    assert not cut.complete
    assert cut.layout is not None
    assert cut.weighted_excess >= whole.weighted_excess == whole.excess_bound.lower_bound > 0
    assert cut.excess_bound.lower_bound == 0


@pytest.mark.parametrize(("alignment", "status"), [(16, "infeasible"), (256, "optimal")])
def test_a_base_is_aligned_to_what_counts_need_too(alignment, status):
    """Kepler serves 4-byte words by aligned groups of 256 bytes, whatever wgmma without a swizzle needs."""
    problem = problem_of(f"""24x32 f32, 1 threads; target sm_30; must_be wgmma; alignment_bytes {alignment}
        a: store 2 [0, 0]""")
    result = solve(problem)
    assert result.status == status
    assert result.alignment_bytes in (None, 256)


ROWS_OF_16_BYTES = reads("rows", 16, ["tid", "4*i"], i=8)


def rows_under(fill, minimise):
    return problem_of(
        f"32x32 f32, 32 threads; name rows; minimise {minimise}", {"name": "fill", **fill}, ROWS_OF_16_BYTES
    )


def test_without_conflicts_more_flips_may_be_the_fewest():
    """Row-major flips no bit and has conflicts; of those without any, the 128-byte mode flips the fewest."""
    problem = rows_under({"op": "tma.load", "box": [32, 32]}, "instructions")
    assert (solve(problem).family, solve(problem).excess) == ("tma.none, x1 contiguous", 224)
    result = solve(problem, conflict_free=True)
    assert (str(result.status), result.family, result.excess) == ("optimal", "tma.128B, x1 contiguous", 0)


def test_fewest_bytes_first_means_no_pads_between_copies():
    problem = rows_under({"op": "cp.async.bulk", "bytes": 128}, "bytes")
    result = solve(problem)
    assert (str(result.status), result.bytes, result.excess) == ("optimal", 4096, 224)
    assert result.proof.excess.scope.endswith(" within 4096 bytes")
    result = solve(problem, conflict_free=True)
    assert (str(result.status), result.bytes, result.excess) == ("optimal", 4592, 0)


READ = access_from("A: ds_read_b128 [lane % 16 + 16*m, 8*(lane // 16) + 32*k]; m<4, k<2")


def data(index, op="buffer_load_dwordx4.lds", loops=2, target="gfx950", **more):
    return {
        **data_of(
            f"64x64 f16, 256 threads; name direct; target {target}",
            {"name": "fill", "op": op, "index": index, "for": {"i": loops}},
            READ,
        ),
        **more,
    }


ROWS = ["tid // 8 + 32*i", "8*(tid % 8)"]
TURNED = ["tid // 8 + 32*i", "8*(tid % 8 ^ tid // 8 % 8)"]


def side_by_side(table, index):
    """Every wave's 64 lanes write 1,024 bytes in a row, by plain loops."""
    for i in range(2):
        for wave in range(4):
            places = []
            for lane in range(64):
                env = {"tid": 64 * wave + lane, "i": i}
                row, column = (eval(text, {}, env) for text in index)
                places.append(int(table[row, column]))
            assert (np.diff(places) == 16).all()


@pytest.mark.parametrize(("index", "excess"), [(ROWS, 128), (TURNED, 0)])
def test_runs_of_a_wave_stay_whole(index, excess):
    """In row-major order only a pad between runs helps; where the load flips, the XOR serves the reads."""
    result = solve(from_data(data(index)))
    side_by_side(result.layout.table(), index)
    got = result.excess, result.proof.excess.scope.startswith("the layouts of direct loads")
    assert got == (excess, True)
    padded = "x0 // 8 % 2 * 2064 + x0 // 16 * 512 + x0 % 8 * 64 + x1"
    assert result.offset == ("x0*64 + (x1 ^ x0 % 8 * 8)" if excess == 0 else padded)
    assert "direct_fill" in emit("hip", from_data(data(index)), device("gfx950"), result)


def test_a_pad_inside_a_run_is_found():
    audit = check(from_data(data(ROWS)), "x0*72 + x1")
    (finding,) = [f for f in audit.findings if f.kind == "unreached"]
    assert finding.message == (
        "access 'fill': lane 8 writes 128 bytes behind lane 0, and its element lies 144 behind"
    )
    assert str(audit.status) == "infeasible"
    assert str(check(from_data(data(ROWS)), "x0*64 + x1").status) == "conflicts"


def test_widths_are_those_of_the_chip():
    words = ["tid // 32 + 8*i", "2*(tid % 32)"]
    result = solve(from_data(data(words, "global_load_lds_dword", 8, "gfx942")))
    assert (str(result.status), result.accesses[0].excess) == ("optimal", 0)
    with pytest.raises(
        ProblemFileError, match=r"accesses\[0\].op: no published rule for load.lds of 16 bytes on gfx942"
    ):
        solve(from_data(data(ROWS, target="gfx942")))
    with pytest.raises(
        ProblemFileError, match=r"layout\.families: an access of the hardware by itself leaves no choice"
    ):
        solve(from_data(data(ROWS, layout={"families": ["pad"]})))


TURNED_AROUND = ["tid // 8 + 32*i", "8*(7 - tid % 8)"]


def test_what_waves_write_is_a_layout_where_no_other_serves():
    result = solve(from_data(data(TURNED_AROUND)))
    side_by_side(result.layout.table(), TURNED_AROUND)
    assert str(result.status) == "optimal"


def test_rows_that_waves_write_apart_from_each_other():
    """As Triton 3.9 pads an operand on gfx950: a wave writes every fourth row, and rows are read as they lie."""
    asked = problem_of("""64x64 e4m3, 256 threads; target gfx950
        fill: buffer_load_dwordx4.lds [lane // 4 * 4 + warp, tid % 4 * 16]
        y: load 16 [lane % 32 + warp % 2 * 32, lane // 32 * 16 + i*32]; i<2""")
    result = solve(asked)
    assert (result.offset, result.bytes, result.excess) == ("x0 % 4 * 1040 + x0 // 4 * 64 + x1", 4144, 0)


def test_runs_in_turn_take_pads_of_several():
    fill = access_from("fill: buffer_load_dword.lds [tid // 32 + 8*i, 4*(tid % 32)]")
    read = reads("A", 8, ["lane % 16 + 16*m", "8*(lane // 16) + 32*k"])
    problem = data_of(
        "128x128 e4m3, 256 threads; target gfx942",
        {**fill, "for": {"i": 16}},
        {**read, "for": {"m": 8, "k": 4}},
    )
    result = solve(from_data(problem))
    known = check(from_data(problem), "x0//2%8*2056 + x0//16*256 + x0%2*128 + x1")
    assert (result.excess, result.bytes) <= (known.excess, known.bytes)


def test_lanes_that_no_layout_brings_together():
    both = data(ROWS)
    both["accesses"].append({**both["accesses"][0], "name": "other", "index": TURNED_AROUND})
    result = solve(from_data(both))
    assert (str(result.status), result.layout) == ("infeasible", None)
    assert "lane 1 writes 16 bytes behind lane 0" in result.reason


def test_layouts_that_are_not_listed_are_not_refuted():
    """A table of 8,192 elements would serve; nobody would want one."""
    tall = data(TURNED_AROUND, loops=4)
    tall["tile"]["shape"] = [128, 64]
    result = solve(from_data(tall))
    assert (str(result.status), result.layout) == ("unknown", None)
    assert result.reason.startswith(
        "none of the layouts that are listed for direct loads; there may be others"
    )


def test_one_of_several_tiles():
    tile = {"name": "A", "shape": [64, 64], "element": "f16", "stages": 2}
    block = data(TURNED, tiles=[tile])
    del block["tile"]
    block["accesses"] = [{**access, "tile": "A"} for access in block["accesses"]]
    found = solve(from_data(block))
    assert (found.excess, found.bytes) == (0, 16384)


FREE = access_from("fill: buffer_load_dwordx4.lds 16; lanes free")


def test_free_lanes_of_a_direct_load_turn_their_pieces_as_the_xor_does():
    """As index TURNED above: each wave still writes a run, and the XOR serves the reads."""
    result = solve(from_data({**data(ROWS), "accesses": [FREE, READ]}), time_limit=5)
    assert (str(result.status), result.excess, result.bytes, result.family) == ("optimal", 0, 8192, "xor")
    (fill, _) = result.accesses
    assert fill.loops == {"i": 2}
    side_by_side(result.table(), fill.index)
    envs = [{"tid": tid, "i": i} for tid in range(256) for i in range(2)]
    taken = {tuple(eval(text, {}, env) for text in fill.index) for env in envs}
    assert taken == {(row, column) for row in range(64) for column in range(0, 64, 8)}
    fixed = {**data(list(fill.index)), "published": {"offset": result.offset, "bytes": 8192}}
    assert check(from_data(fixed)).excess == 0


def test_free_lanes_of_a_direct_load_claim_no_bound_of_lanes_as_they_stand():
    tall = {**data(ROWS), "tile": {"shape": [96, 64], "element": "f16"}, "threads": 64}
    read = {**READ, "for": {"m": 6, "k": 2}}
    result = solve(from_data({**tall, "accesses": [FREE, read]}), time_limit=2)
    assert result.layout is not None
    assert result.excess == 0 or (str(result.status), result.proof.excess.lower_bound) == ("feasible", 0)


def test_free_lanes_of_a_direct_load_keep_segments():
    """Segments of 32 bytes; by columns, where nothing that was found serves, nothing is refuted."""
    segments = {**FREE, "global": {"contiguous": 32}}
    result = solve(from_data({**data(ROWS), "accesses": [segments, READ]}), time_limit=2)
    assert (result.excess, result.bytes) == (0, 8192)
    columns = {**segments, "global": {"contiguous": 32, "order": "column"}}
    result = solve(from_data({**data(ROWS), "accesses": [columns, READ]}), time_limit=2)
    assert result.layout is not None or str(result.status) == "unknown"


def test_the_scope_of_several_tiles_says_what_was_listed():
    problem = data(ROWS)
    tiles = [{"name": "A", **problem.pop("tile")}]
    accesses = [{**access, "tile": "A"} for access in problem.pop("accesses")]
    found = solve(from_data({**problem, "tiles": tiles, "accesses": accesses}))
    assert found.proof.excess.scope == "the layouts that each tile may have, as listed for direct loads"


def test_layouts_of_direct_loads_are_listed_while_there_is_time():
    case = case_of(from_data(data(ROWS)), device("gfx950"))
    cut = propose(case, Ask(Budget(0)))
    assert (cut.complete, cut.layout) == (False, None)
    with pytest.raises(OutOfTime):
        pieces(case.lowered.tile, case.lanes, Budget(0))
