"""Several tiles explained and drawn."""

import json

import pytest
from command import layoutopt, refused
from written import access_from, reads, saved, writes

from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.search.block import solve
from layoutopt.study.check import check
from layoutopt.study.compare import compare
from layoutopt.study.explain import explain
from layoutopt.study.show import views

TILE = {"shape": [32, 8], "element": "f32"}
PADDED = {"offset": "x0*9 + x1", "bytes": 1152}
SET = {
    "name": "block", "target": "sm_90", "threads": 32,
    "tiles": [{**TILE, "name": "A", "stages": 2, "published": PADDED}, {**TILE, "name": "B"}],
    "accesses": [
        access_from("a: load 4 [lane, i]; i<8; tile A"),
        access_from("rows: store 4 [i + lane // 8, lane % 8]; i<2; tile B"),
        access_from("b: load 4 [lane, i]; i<8; tile B"),
    ],
}  # fmt: skip


FILL = access_from("fill: tma.load; tile A")


def block(**changes):
    return from_data({**SET, **changes})


def test_the_budget_is_what_costs():
    """A pad for every row of all stages takes 3,452 bytes; in one stage, it fits."""
    columns = [a for a in SET["accesses"] if a["name"] != "rows"]
    found = explain(block(accesses=columns, layout={"families": ["none", "pad"], "max_bytes": 3300}))
    assert (found.conflict_free, found.excess > 0, found.bytes <= 3300) == (False, True, True)
    assert [r.kind for r in found.relaxations] == ["families", "max_bytes", "stages"]
    assert found.relaxations[2].message == "with 1 in place of 2 stages there are no conflicts"
    assert any("the budget costs" in reason for reason in found.reasons)
    assert [(part.tiles, part.explanation.conflict_free) for part in found.tiles] == [
        (("A",), True),
        (("B",), True),
    ]


def test_more_than_the_gpu_has_is_no_advice():
    found = explain(block(target="sm_75", tiles=[{**tile, "stages": 40} for tile in SET["tiles"]]))
    assert (found.conflict_free, found.bytes) == (False, None)
    assert "a block of sm_75 has 65,536" in found.reasons[-1]
    assert [r.kind for r in found.relaxations] == ["stages"]


def test_fewer_stages_help_where_they_fit_as_aligned_as_they_are():
    """Two stages of A fill what the swizzled B leaves of a row of banks: without one of them C begins there still."""
    wide, rows = {"shape": [5, 16], "element": "f32"}, "2*i + lane // 16"
    accesses = [reads("a", 4, ["lane % 8"], tile="A")]
    for name in ("B", "C"):
        use = {"tile": name, "bytes": 4}
        accesses += [
            {**use, "name": f"{name} rows", "op": "store", "index": [rows, "lane % 16"], "for": {"i": 2}},
            {**use, "name": name, "op": "load", "index": ["lane % 5", "lane // 5 % 2"], "where": "lane < 10"},
        ]
    tiles = [
        {"name": "A", "shape": [8], "element": "f32", "stages": 2},
        {**wide, "name": "B"},
        {**wide, "name": "C"},
    ]
    layout = {"families": ["none", "xor"], "max_bytes": 680}
    assert [r.kind for r in explain(block(tiles=tiles, accesses=accesses, layout=layout)).relaxations] == [
        "max_bytes"
    ]
    tiles[0]["stages"], layout["max_bytes"] = 4, 710
    found = explain(block(tiles=tiles, accesses=accesses, layout=layout))
    assert found.relaxations[-1].message == "with 2 in place of 4 stages there are no conflicts"


def test_a_tile_that_always_conflicts_is_named():
    """A store of 16 bytes a lane and a load of 4 down the columns: 4-way at best."""
    vectors = writes("rows", 16, ["lane", "4*i"], i=2, tile="B")
    columns = reads("b", 4, ["lane", "i"], i=8, tile="B")
    found = explain(block(accesses=[SET["accesses"][0], vectors, columns]))
    assert found.conflict_free is False
    assert found.scope == "every layout"
    assert 0 < found.lower_bound <= found.excess
    assert "tile B has conflicts in every layout, whatever the others take" in found.reasons
    assert found.clashing_accesses == ("rows", "b")


def test_what_fits_is_free():
    found = explain(block(layout={"max_bytes": 3072}))
    assert (found.conflict_free, found.lower_bound, found.relaxations) == (True, 0, ())
    assert found.reasons == ("all tiles together: no bank conflicts in 3,072 bytes of 3,072",)


def drawn(access=None, before="none", **where):
    given = {"warp": None, "iteration": {}, **where}
    return views(block(), device("sm_90"), before=before, access=access, time_limit=None, **given)


def test_the_worst_conflict_of_all_tiles_is_drawn():
    views = drawn()
    assert views.tile[0] == "A"
    first, solved = views.pictures()
    assert (first.wavefronts, solved.wavefronts) == (8, 1)


def test_an_access_draws_its_tile_under_the_layout_that_it_gets():
    views = drawn("b", iteration={"i": 3})
    assert views.tile == ("B", 2048)
    assert views.chosen.iteration == {"i": 3}
    assert views.note.startswith("tile B of 2; its first stage begins at byte 2,048")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"access": "c"}, "--access: no access 'c'; there are a, rows, b"),
        ({"warp": 0}, "--access: --warp and --iteration need it"),
        ({"access": "b", "warp": 1}, "--warp: lies in 0..0, not 1"),
        ({"access": "b", "before": "published"}, "tiles[1].published: the problem names no published layout"),
        ({"before": "layout.npy"}, "--layout: a file holds the layout of one tile"),
    ],
)
def test_what_is_not_there_is_not_drawn(given, error):
    with pytest.raises(ProblemFileError) as caught:
        drawn(**given)
    assert str(caught.value).startswith(error)


def test_families_are_not_for_what_the_hardware_dictates(tmp_path):
    (tmp_path / "all.json").write_text(json.dumps({**SET, "tiles": SET["tiles"][:1], "accesses": [FILL]}))
    none_left = layoutopt("solve", str(tmp_path / "all.json"), "--families", "pad")
    assert "the hardware dictates the layout of every tile" in none_left.stderr
    (tmp_path / "one.json").write_text(json.dumps({**SET, "accesses": [FILL, *SET["accesses"][1:]]}))
    done = layoutopt("solve", str(tmp_path / "one.json"), "--families", "none", "--json")
    assert "--families is not for A, whose layouts the hardware dictates" in done.stderr
    assert json.loads(done.stdout)["tiles"][1]["result"]["family"] == "none"


def test_accesses_of_several_tiles_are_written_out(tmp_path):
    text = layoutopt("problems", "hopper_gemm_128x128x64_f16", "--expanded").stdout
    (tmp_path / "expanded.json").write_text(text)
    assert "wgmma.m64n8k16" not in text
    answers = [
        layoutopt("solve", file, "--json").stdout
        for file in ("hopper_gemm_128x128x64_f16", str(tmp_path / "expanded.json"))
    ]
    assert answers[0] == answers[1]


def test_what_is_for_one_tile_says_so():
    refused("the file says each", "compare", "hopper_gemm_128x128x64_f16", "--offset=published")


def test_on_the_command_line(tmp_path):
    path = saved(tmp_path, "block.json", SET)
    told = layoutopt("explain", str(path))
    assert told.returncode == 0
    assert "all tiles together: no bank conflicts in 3,072 bytes" in told.stdout
    shown = json.loads(layoutopt("show", str(path), "--access", "b", "--json").stdout)
    assert (shown["tile"], shown["base_bytes"], len(shown["pictures"])) == ("B", 2048, 2)


TMA = {"name": "A", "shape": [64, 64], "element": "bf16", "stages": 2}
FILL = access_from("fill: tma.load; tile A")


def test_what_only_the_hardware_touches_is_explained_and_not_drawn():
    alone = block(tiles=[TMA], accesses=[FILL, access_from("mma: wgmma.A; tile A")])
    found = explain(alone)
    assert found.conflict_free
    assert (
        "Row-major, with no pad and no swizzle, cannot hold this tile"
        in found.tiles[0].explanation.reasons[0]
    )
    where = {"access": None, "warp": None, "iteration": {}, "time_limit": None}
    with pytest.raises(ProblemFileError, match="nothing to draw: no lane takes part"):
        views(alone, device("sm_90"), before="none", **where)
    both = block(tiles=[TMA, SET["tiles"][1]], accesses=[FILL, *SET["accesses"][1:]])
    assert views(both, device("sm_90"), before="none", **where).tile[0] == "B"


def test_a_tile_that_the_constraints_rule_out_has_no_conflicts_to_speak_of():
    load = {"op": "load", "bytes": 4, "index": ["tid"]}
    data = {
        "name": "torn", "target": "sm_90", "threads": 4, "layout": {"families": ["none", "order"]},
        "tiles": [{"name": "A", "shape": [4], "element": {"bytes": 6}}, {"name": "B", "shape": [4], "element": "f32"}],
        "accesses": [{"name": "a", "tile": "A", **load}, {"name": "b", "tile": "B", **load}],
    }  # fmt: skip
    explanation = explain(from_data(data))
    assert (explanation.conflict_free, explanation.scope) == (False, "the layouts that the constraints allow")
    assert not any("has conflicts" in reason for reason in explanation.reasons)


OPEN = {
    "name": "open", "target": "sm_90", "threads": 32,
    "tiles": [{**TILE, "name": "A", "published": {"offset": "x0*8 + x1", "bytes": 1024}},
              {"name": "B", "shape": [32, 16], "element": "f16", "published": {"offset": "x0*16 + x1", "bytes": 1024}}],
    "accesses": [
        access_from("fill: store 4 [lane // 8 + 4*i, lane % 8]; i<8; tile A; lanes free"),
        access_from("read: load 4 [lane, i]; i<8; tile A"),
        access_from("rows: store 4|8 [lane // 4 + 8*i, 4*(lane % 4)]; i<4; tile B"),
        access_from("down: load 2 [lane, i]; i<16; tile B"),
    ],
}  # fmt: skip


def test_lanes_and_widths_that_the_file_leaves_open_are_those_of_each_tile():
    tiles = from_data(OPEN)
    best = solve(tiles)
    wide = {access.name: access.bytes for part in best.tiles for access in part.result.accesses}["rows"]
    audits = {part.tile: part.audit for part in check(tiles).tiles}
    assert [a.index is not None for a in audits["A"].accesses] == [True, False]
    assert [a.bytes in (4, 8) for a in audits["B"].accesses] == [True, False]
    compared = compare(tiles)
    rows = {row.family: row for row in compared.rows}
    assert compared.widths.keys() == {"rows"}
    assert (rows["all"].excess, rows["all"].bytes) == (best.excess, best.bytes)
    assert rows["edit"].excess <= rows["published"].excess
    told = explain(tiles)
    assert told.excess == best.excess
    assert told.tiles[0].explanation.reasons[0].startswith("The lanes are chosen: `fill` at [")
    assert told.tiles[1].explanation.widths.keys() == {"rows"}
    where = {"before": "none", "warp": None, "iteration": {}, "time_limit": None}
    assert views(tiles, device("sm_90"), access="rows", **where).widths == {"rows": wide}
    assert "drawn with `fill` at [" in views(tiles, device("sm_90"), access="read", **where).note


def test_a_row_within_the_budget_has_the_lanes_and_widths_of_the_others():
    rows = {row.family: row for row in compare(from_data({**OPEN, "layout": {"max_bytes": 2100}})).rows}
    assert rows["pad"].reason.startswith("without the limit")
    assert (rows["pad"].bytes <= 2100, rows["pad"].status) == (True, "optimal")
    assert rows["pad"].excess > rows["all"].excess
