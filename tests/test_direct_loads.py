"""AMD's loads past the registers: lanes write side by side, and only layouts that keep to that serve."""

import numpy as np
import pytest

from layoutopt import check
from layoutopt.codegen.languages import emit
from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.problems.file import from_data
from layoutopt.problems.tile_set_file import tiles_from_data
from layoutopt.synthesis.arrange import arrange
from layoutopt.synthesis.solve import solve

READ = {
    "name": "A",
    "op": "ds_read_b128",
    "index": ["lane % 16 + 16*m", "8*(lane // 16) + 32*k"],
    "for": {"m": 4, "k": 2},
}


def data(index, op="buffer_load_dwordx4.lds", loops=2, target="gfx950", **more):
    return {
        "name": "direct", "target": target, "tile": {"shape": [64, 64], "element": "f16"}, "threads": 256,
        "accesses": [{"name": "fill", "op": op, "index": index, "for": {"i": loops}}, READ], **more,
    }  # fmt: skip


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
    assert (result.excess, result.proof.excess.scope.startswith("the layouts of direct loads")) == (
        excess,
        True,
    )
    assert result.offset == ("x0*64 + (x1 ^ x0 % 8 * 8)" if excess == 0 else "x0*64 + x0 // 8 * 16 + x1")
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


def test_lanes_that_no_layout_brings_together():
    result = solve(from_data(data(["tid // 8 + 32*i", "8*(7 - tid % 8)"])))
    assert (str(result.status), result.layout) == ("infeasible", None)
    assert "lane 1 writes 16 bytes behind lane 0" in result.reason


def test_one_of_several_tiles():
    tile = {"name": "A", "shape": [64, 64], "element": "f16", "stages": 2}
    block = data(TURNED, tiles=[tile])
    del block["tile"]
    block["accesses"] = [{**access, "tile": "A"} for access in block["accesses"]]
    found = arrange(tiles_from_data(block))
    assert (found.excess, found.bytes) == (0, 16384)
