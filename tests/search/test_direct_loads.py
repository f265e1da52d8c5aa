"""AMD's loads past the registers: lanes write side by side, and only layouts that keep to that serve."""

import numpy as np
import pytest
from emit_programs import emit
from written import access_from, data_of, problem_of, reads

from layoutopt import check
from layoutopt.engine.case import case_of
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import device
from layoutopt.search.block import solve
from layoutopt.search.dictated import propose
from layoutopt.search.direct import pieces
from layoutopt.search.proposal import Ask

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
    assert str(check(from_data(data(ROWS)), "x0*64 + x1").status) == "feasible"


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
