"""Several tiles in `compare`, `check`, `explain` and `show`."""

import csv
import io
import json

import pytest
from command import answer, layoutopt, refused
from msgspec.structs import replace
from written import access_from, constrained, data_of, problem_of, refused_with, rows_of, saved

from layoutopt import check, compare, explain, solve
from layoutopt.files.catalogue import find
from layoutopt.files.file import from_data, load
from layoutopt.files.result_file import MAX_BYTES
from layoutopt.hardware.devices import device
from layoutopt.study.check import AuditStatus
from layoutopt.study.show import views

SET = data_of("""32 threads; name block; target sm_90
    tile A: 32x8 f32; stages 2; published 1152 x0*9 + x1
    tile B: 32x8 f32; published 1152 x0*9 + x1
    rows A: store 4 [lane // 8 + 4*i, lane % 8]; i<8; tile A
    columns A: load 4 [lane, i]; i<8; tile A
    rows B: store 4 [lane // 8 + 4*i, lane % 8]; i<8; tile B
    columns B: load 4 [lane, i]; i<8; tile B""")


def compared(**changes):
    tile_set = from_data({**SET, **changes})
    return tile_set, rows_of(compare(tile_set, time_limit=10))


def test_rows_without_a_budget_are_those_of_arranging_each_family():
    tile_set, rows = compared()
    for name in ("pad", "xor"):
        alone = solve(constrained(tile_set, families=("none", name)))
        assert (rows[name].excess, rows[name].bytes) == (alone.excess, alone.bytes)
    assert (rows["all"].excess, rows["all"].bytes) == (0, 3 * 1024)
    assert sorted(part.base_bytes for part in rows["all"].tiles) in ([0, 1024], [0, 2 * 1024])
    assert rows["published"].bytes == 3 * 1152
    assert [part.base_bytes for part in rows["published"].tiles] == [0, 2 * 1152]


def test_layouts_in_use_are_no_layouts_that_a_search_must_keep():
    """As of one tile: what is compared with them, explained beside them, and drawn behind them is solved."""
    tiles = [{**tile, "layout": {"offset": "x0*8 + x1"}, "published": None} for tile in SET["tiles"]]
    in_use, rows = compared(tiles=tiles, layout={"max_bytes": 3 * 1024})
    assert (rows["in_use"].excess, rows["pad"].excess, rows["all"].excess) == (112, 112, 0)
    assert rows["pad"].reason.startswith("without the limit 3,444 bytes")
    explained = explain(in_use, time_limit=10)
    assert explained.conflict_free
    assert all("In use, x0*8 + x1:" in str(tile.explanation.reasons) for tile in explained.tiles)
    drawn = views(
        in_use, device("sm_90"), before="published", access="columns A", warp=0, iteration={}, time_limit=10
    )
    conflicts = {shown.name: shown.excess for shown in drawn.layouts}
    assert (conflicts["in use"], conflicts["solved"]) == (56, 0)


def test_elements_wider_than_their_accesses_are_aligned_where_the_tile_lies():
    """Structures of 12 bytes end at 108, where no element of 8 bytes begins."""
    tiles = problem_of("""32 threads
        tile A: 9 12B
        tile B: 5 8B
        A: load 4 [lane % 5]; tile A
        B: load 4 [lane % 5]; tile B""")
    for row in compare(tiles, time_limit=2).rows:
        assert [tile.base_bytes % 8 for tile in row.tiles if "B" in tile.tiles] == [0] * bool(row.tiles)
        assert row.alignment_bytes in (None, 8)


def test_what_the_hardware_dictates_keeps_to_the_budget():
    """Without a limit the bulk copies have pads between them; the row is what fits, in figures and layout."""
    accesses = [access_from("fill: cp.async.bulk 32; tile A"), SET["accesses"][1]]
    tile = {"name": "A", "shape": [32, 8], "element": "f32"}
    for layout, size in (({}, 32 * 32 + 31 * 16), ({"max_bytes": 1200}, 1024)):
        tile_set, rows = compared(tiles=[tile], accesses=accesses, layout=layout)
        (found,), row = solve(tile_set).tiles, rows["all"]
        (part,) = row.tiles
        assert (row.bytes, row.excess) == (size, found.result.excess)
        assert (part.bytes, part.offset) == (size, found.result.offset)


def test_a_row_beyond_the_budget_is_the_best_that_fits():
    """A's stages stay row-major and conflict, B is padded."""
    tile_set, rows = compared(layout={"max_bytes": 3300})
    pad, published = rows["pad"], rows["published"]
    alone = solve(constrained(tile_set, families=("none", "pad")))
    assert (pad.excess, pad.bytes) == (alone.excess, alone.bytes) == (64, 3196)
    assert pad.reason.startswith("without the limit 3,444 bytes with 16 excess wavefronts")
    assert (pad.pipeline_stages, published.wavefronts, rows["xor"].excess) == (2, None, 0)
    assert published.reason.startswith("3,456 bytes with 16 excess wavefronts, and 3,300 are there")


def test_stages_are_those_that_fit_and_blocks_those_of_all_bytes():
    _, rows = compared(block={"other_shared_bytes": 200_000})
    room = 227 * 1024 - 200_000
    assert rows["all"].pipeline_stages == (room - 1024) // 1024
    assert rows["all"].blocks_per_sm == 1  # its limit is the bytes of all


def test_a_tile_that_may_not_be_of_a_family_takes_its_best():
    first, second = SET["tiles"]
    _, rows = compared(tiles=[first, {**second, "layout": {"families": ["none", "pad"]}}])
    assert [part.offset for part in rows["xor"].tiles] == [rows["all"].tiles[0].offset, "x0*9 + x1"]
    _, none = compared(layout={"families": ["none", "pad"]})
    assert none["xor"].reason == "not allowed by the problem's layout constraints"


def test_a_tile_that_the_hardware_dictates_is_in_every_row():
    other = data_of(
        """32 threads
        tile B: 32x64 f16; published 4096 x0*64 + x1
        fragments: ldmatrix.x4 [lane, 8*i]; i<8; tile B""",
        {"name": "ld", "op": "tma.load", "mode": "128B", "tile": "B"},
    )
    tiles, accesses = SET["tiles"][:1], SET["accesses"][:2]
    _, rows = compared(tiles=tiles + other["tiles"], accesses=accesses + other["accesses"])
    # The published layout is not what TMA writes, and no other stands in its place.
    published = rows.pop("published")
    why = "B: access 'ld': no tensor map of mode 128B fills boxes in this layout"
    assert (str(published.status), published.reason) == ("infeasible", why)
    used = {row.tiles[1].offset for row in rows.values() if row.wavefronts is not None}
    assert used == {"x0*64 + (x1 ^ x0 % 8 * 8)"}
    assert (rows["all"].excess, rows["all"].alignment_bytes) == (0, 1024)


def test_a_block_of_one_tile_is_told_as_the_tile_by_itself():
    name, data = "gemm_a_128x64_f16", json.loads(find("gemm_a_128x64_f16").read_text())
    tile = {"name": "A", **data.pop("tile"), "published": data.pop("published")}
    accesses = [{**access, "tile": "A"} for access in data.pop("accesses")]
    alone, tiles = load(name), from_data({**data, "tiles": [tile], "accesses": accesses})
    own, rows = (rows_of(compare(asked, time_limit=20)) for asked in (alone, tiles))
    figures = (
        "status", "excess", "bytes", "wavefronts", "cycles", "time", "instructions", "limited_by", "pareto",
        "pipeline_stages", "declared_bytes",
    )  # fmt: skip
    for family, row in rows.items():
        assert [getattr(row, f) for f in figures] == [getattr(own[family], f) for f in figures]
    assert [*rows] == [*own]
    (audited,), (explained,) = check(tiles).tiles, explain(tiles).tiles
    assert (audited.audit.accesses, audited.audit.findings) == (check(alone).accesses, check(alone).findings)
    assert explained.explanation.reasons == explain(alone).reasons


def test_layouts_that_are_shared_are_one_column():
    tiles = [{**tile, "stages": 1} for tile in SET["tiles"]]
    _, rows = compared(overlay=[["A"], ["B"]], same_layout=True, tiles=tiles)
    assert ([part.tiles for part in rows["all"].tiles], rows["all"].bytes) == ([("A", "B")], 1024)


def test_forms_of_the_answer(tmp_path):
    path = saved(tmp_path, "block.json", SET)
    told, table = (layoutopt("compare", path, form) for form in ("--json", "--csv"))
    assert told.returncode == table.returncode == 1  # as it is, with conflicts, it is as fast as the others
    data = json.loads(told.stdout)
    (published,) = (row for row in data["rows"] if row["family"] == "published")
    assert published["tiles"][1] == {
        "tiles": ["B"], "offset": "x0*9 + x1", "bytes": 1148, "base_bytes": 2304, "stages": 1,
        "stage_bytes": 1152, "wavefronts": 24, "excess": 8,
    }  # fmt: skip
    assert data["recommendation"]["family"] != "none"
    assert next(csv.DictReader(io.StringIO(table.stdout)))["wavefronts: columns B"] == "64"


def test_tiles_lie_as_closely_as_where_they_are_solved():
    """Bytes that begin within a word."""
    tile_set = problem_of("""4 threads
        tile A: 6 u8
        tile B: 5 u8
        A: load 1 [tid]; tile A
        B: load 1 [tid]; tile B""")
    best = rows_of(compare(tile_set))["all"]
    assert (best.bytes, best.status) == (solve(tile_set).bytes, "optimal") == (11, "optimal")


def test_a_row_that_loses_bytes_to_alignment_is_not_called_the_best():
    """Two stages of 1,440 bytes; the swizzled one wants a base at a multiple of 128."""
    rows = rows_of(compare(problem_of("""32 threads; families none xor
        tile A: 9x40 f32; stages 2
        rows: load 4 [0, tid % 40]; tile A
        columns: load 4 [tid % 9, tid // 9]; tile A""")))  # fmt: skip
    assert (rows["all"].status, rows["all"].bytes) == ("feasible", 1536 + 1440)
    assert "alignment" in rows["all"].reason
    assert rows["none"].status == "optimal"  # the only one


BLOCK = data_of("""32 threads; name block; target sm_90
    tile A: 32x32 f32; stages 2; published 4224 x0*33 + x1
    tile B: 32x32 f32; published 4096 x0*32 + x1
    a: load 4 [tid, i]; i<32; tile A
    b: load 4 [tid, i]; i<32; tile B""")


def audited(A=(), B=(), **changes):
    tiles = [{**tile, **dict(more)} for tile, more in zip(BLOCK["tiles"], (A, B), strict=True)]
    return check(from_data({**BLOCK, "tiles": tiles, **changes}))


def kinds(audit):
    return [finding.kind for finding in audit.findings]


def test_each_tile_is_counted_and_they_lie_one_behind_the_other():
    audit = audited()
    assert [(part.base_bytes, part.stage_bytes) for part in audit.tiles] == [(0, 4224), (8448, 4096)]
    assert (audit.bytes, audit.excess, kinds(audit)) == (8448 + 4096, 31 * 32, [])
    assert [part.audit.excess for part in audit.tiles] == [0, 31 * 32]
    with refused_with("tiles[1]: no layout to check"):
        audited(B={"published": None})


def test_tiles_that_share_bytes_while_both_live():
    audit = audited(B={"base_bytes": 4224})
    assert (kinds(audit), audit.status) == (["overlap"], AuditStatus.INFEASIBLE)
    assert audit.findings[0].details == {"tiles": ["A", "B"], "bytes": [4224, 8320]}
    apart = audited(B={"base_bytes": 0}, overlay=[["A"], ["B"]])
    assert (kinds(apart), apart.bytes) == ([], 2 * 4224)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"A": {"stage_bytes": 4096}}, ["overlap"]),
        ({"A": {"base_bytes": 2}}, ["misplaced"]),
        ({"B": {"base_bytes": 0}, "overlay": [["A"]]}, ["overlap"]),  # B lives at all times
        ({"layout": {"max_bytes": 12544}}, []),
        ({"layout": {"max_bytes": 12543}}, ["budget"]),
        ({"A": {"stages": 60}}, ["budget"]),  # what a block of this GPU may take
    ],
)
def test_stages_and_the_budget(changes, found):
    audit = audited(**changes)
    assert kinds(audit) == found
    assert "misplaced" not in found or "a stage begins at byte 2" in audit.findings[0].message


def test_where_the_file_does_not_say_a_tile_begins_where_its_elements_may():
    """The elements of 12 bytes end at 108; accesses of 4 bytes would let those of 8 begin there."""
    data = data_of("""32 threads
        tile A: 9 12B; published 108 x0
        tile B: 9 8B; published 72 x0
        A: load 4 [lane % 5]; tile A
        B: load 4 [lane % 5]; tile B""")
    bases = [part.base_bytes for part in check(from_data(data)).tiles]
    assert bases == [0, 112]
    given = check(from_data({**data, "layout": {"alignment_bytes": 4}}))
    assert [part.base_bytes for part in given.tiles] == [0, 108]


def test_the_command_prints_the_block(tmp_path):
    path = saved(tmp_path, "block.json", BLOCK)
    done = layoutopt("check", path)
    assert all(said in done.stdout for said in ("992 excess wavefronts", "B: fix:"))
    data = answer("check", path, "--no-fix")
    assert (done.returncode, data["schema"], data["excess"]) == (1, "layoutopt.block_audit/1", 992)
    assert [tile["tile"] for tile in data["tiles"]] == ["A", "B"]
    refused("tiles[i].published.offset", "check", path, "--offset", "x0*32 + x1")


# Blocks of public kernels: bytes to the end of the last tile, and conflicts, as their authors have them.
PUBLIC = {
    "flash_attention_3_forward_hdim128_bf16": (212_992, 0),
    "deep_gemm_fp8_1d2d_128x128": (199_168, 0),
    "thunderkittens_matmul_128x256_bf16": (196_608, 0),
    "flash_mla_decode_bf16": (229_376, 0),
    "composable_kernel_gemm_xdl_256x128_f16": (24_704, 64),
    "composable_kernel_gemm_xor_128x128_f16": (32_768, 0),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_blocks_of_public_kernels(name):
    tile_set = load(name)
    audit = check(tile_set)
    assert (audit.bytes, audit.excess, kinds(audit)) == (*PUBLIC[name], [])
    if PUBLIC[name][1]:
        return
    solved = {part.tiles[0]: part.result for part in solve(tile_set).tiles}
    for tile in tile_set.tiles:  # the modes, boxes and pages of the authors are those of the answer
        assert solved[tile.name].offset == tile.published.offset


EXPLAINED = data_of("""32 threads; name block; target sm_90
    tile A: 32x8 f32; stages 2; published 1152 x0*9 + x1
    tile B: 32x8 f32
    a: load 4 [lane, i]; i<8; tile A
    rows: store 4 [i + lane // 8, lane % 8]; i<2; tile B
    b: load 4 [lane, i]; i<8; tile B""")
FILL = access_from("fill: tma.load; tile A")


def test_the_budget_is_what_costs():
    """A pad for every row of all stages takes 3,452 bytes; in one stage, it fits."""
    columns = [a for a in EXPLAINED["accesses"] if a["name"] != "rows"]
    found = explain(block(accesses=columns, layout={"families": ["none", "pad"], "max_bytes": 3300}))
    assert (found.conflict_free, found.excess > 0, found.bytes <= 3300) == (False, True, True)
    assert [r.kind for r in found.relaxations] == ["families", "max_bytes", "stages"]
    assert found.relaxations[2].message == "with 1 in place of 2 stages there are no conflicts"
    assert any("the budget costs" in reason for reason in found.reasons)
    parts = [(part.tiles, part.explanation.conflict_free) for part in found.tiles]
    assert parts == [(("A",), True), (("B",), True)]


def test_fewer_stages_are_told_with_their_own_excess(monkeypatch):
    """Time ends the search without the budget at a conflict; with fewer stages there is none."""

    def out_of_time_without_budget(asked, gpu, ask):
        found = solve(asked, target=gpu)
        return replace(found, excess=2, weighted_excess=2.0) if asked.layout.max_bytes == MAX_BYTES else found

    monkeypatch.setattr("layoutopt.study.explain.solve", out_of_time_without_budget)
    columns = [a for a in EXPLAINED["accesses"] if a["name"] != "rows"]
    found = explain(block(accesses=columns, layout={"families": ["none", "pad"], "max_bytes": 3300}))
    budget, stages = found.relaxations[1:]
    assert budget.message.endswith("there are 2 excess wavefronts")
    assert stages.message == "with 1 in place of 2 stages there are no conflicts"


def block(**changes):
    return from_data({**EXPLAINED, **changes})


def test_more_than_the_gpu_has_is_no_advice():
    found = explain(block(target="sm_75", tiles=[{**tile, "stages": 40} for tile in EXPLAINED["tiles"]]))
    assert (found.conflict_free, found.bytes) == (False, None)
    assert "a block of sm_75 has 65,536" in found.reasons[-1]
    assert [r.kind for r in found.relaxations] == ["stages"]


@pytest.mark.parametrize(
    ("stages", "most", "last"),
    [(2, 680, "max_bytes"), (4, 710, "with 2 in place of 4 stages there are no conflicts")],
)
def test_fewer_stages_help_where_they_fit_as_aligned_as_they_are(stages, most, last):
    """Two stages of A fill what the swizzled B leaves of a row of banks: without one of them C begins there still."""
    problem = problem_of(f"""32 threads; families none xor; max_bytes {most}
        tile A: 8 f32; stages {stages}
        tile B: 5x16 f32
        tile C: 5x16 f32
        a: load 4 [lane % 8]; tile A
        B rows: store 4 [2*i + lane // 16, lane % 16]; i<2; tile B
        B: load 4 [lane % 5, lane // 5 % 2]; where lane < 10; tile B
        C rows: store 4 [2*i + lane // 16, lane % 16]; i<2; tile C
        C: load 4 [lane % 5, lane // 5 % 2]; where lane < 10; tile C""")
    relaxation = explain(problem).relaxations[-1]
    assert last in (relaxation.kind, relaxation.message)


def test_a_tile_that_always_conflicts_is_named():
    """A store of 16 bytes a lane and a load of 4 down the columns: 4-way at best."""
    vectors = access_from("rows: store 16 [lane, 4*i]; i<2; tile B")
    first, _, columns = EXPLAINED["accesses"]
    found = explain(block(accesses=[first, vectors, columns]), time_limit=20)
    assert (found.conflict_free, found.scope) == (False, "every layout")
    assert 0 < found.lower_bound <= found.excess
    assert "tile B has conflicts in every layout, whatever the others take" in found.reasons
    assert found.clashing_accesses == ("rows", "b")


def test_what_fits_is_free():
    found = explain(block(layout={"max_bytes": 3072}))
    assert (found.conflict_free, found.lower_bound, found.relaxations) == (True, 0, ())
    assert found.reasons == ("all tiles together: no bank conflicts in 3,072 bytes of 3,072",)


def drawn(asked=None, **chosen):
    given = {"before": "none", "access": None, "warp": None, "iteration": {}, "time_limit": None, **chosen}
    return views(asked or block(), device("sm_90"), **given)


def test_what_is_drawn_is_the_worst_conflict_or_an_access_under_the_layout_that_its_tile_gets():
    worst, asked = drawn(), drawn(access="b", iteration={"i": 3})
    assert worst.tile[0] == "A"
    assert [shown.wavefronts for shown in worst.pictures()] == [8, 1]
    assert (asked.tile, asked.chosen.at[1]) == (("B", 2048), {"i": 3})
    assert asked.note.startswith("tile B; its first stage begins at byte 2,048")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"access": "c"}, "--access: no access 'c'; there are a, rows, b"),
        ({"warp": 0}, "--access: --warp and --iteration need it"),
        ({"access": "b", "warp": 1}, "--warp: lies in 0..0, not 1"),
        ({"access": "b", "before": "published"}, "tiles[1].published: the problem names no published layout"),
        ({"before": "x0*8 + x1"}, "--layout: a formula is for one tile"),
    ],
)
def test_what_is_not_there_is_not_drawn(given, error):
    with refused_with(error):
        drawn(**given)


def test_families_are_not_for_what_the_hardware_dictates(tmp_path):
    alone = saved(tmp_path, "all.json", {**EXPLAINED, "tiles": EXPLAINED["tiles"][:1], "accesses": [FILL]})
    refused("the hardware dictates the layout of every tile", "solve", alone, "--families", "pad")
    one = saved(tmp_path, "one.json", {**EXPLAINED, "accesses": [FILL, *EXPLAINED["accesses"][1:]]})
    done = layoutopt("solve", one, "--families", "none", "--json")
    assert "--families is not for A, whose layouts the hardware dictates" in done.stderr
    assert json.loads(done.stdout)["tiles"][1]["result"]["family"] == "none"


def test_on_the_command_line(tmp_path):
    path = saved(tmp_path, "block.json", EXPLAINED)
    told = layoutopt("explain", path)
    assert told.returncode == 0
    assert "all tiles together: no bank conflicts in 3,072 bytes" in told.stdout
    shown = answer("show", path, "--access", "b")
    assert (shown["tile"], shown["base_bytes"], len(shown["pictures"])) == ("B", 2048, 2)
    name = "hopper_gemm_128x128x64_f16"
    refused("the file says each", "compare", name, "--offset=published")
    text = layoutopt("problems", name, "--expanded").stdout
    assert "wgmma.m64n8k16" not in text
    assert answer("solve", name) == answer("solve", saved(tmp_path, "expanded.json", json.loads(text)))


TMA = {"name": "A", "shape": [64, 64], "element": "bf16", "stages": 2}


def test_what_only_the_hardware_touches_is_explained_and_not_drawn():
    alone = block(tiles=[TMA], accesses=[FILL, access_from("mma: wgmma.A; tile A")])
    found = explain(alone)
    assert found.conflict_free
    said = "Row-major, with no pad and no swizzle, cannot hold this tile"
    assert said in found.tiles[0].explanation.reasons[0]
    with refused_with("nothing to draw: no lane takes part"):
        drawn(alone)
    both = block(tiles=[TMA, EXPLAINED["tiles"][1]], accesses=[FILL, *EXPLAINED["accesses"][1:]])
    assert drawn(both).tile[0] == "B"


OPEN = data_of("""32 threads; name open; target sm_90
    tile A: 32x8 f32; published 1024 x0*8 + x1
    tile B: 32x16 f16; published 1024 x0*16 + x1
    fill: store 4 [lane // 8 + 4*i, lane % 8]; i<8; tile A; lanes free
    read: load 4 [lane, i]; i<8; tile A
    rows: store 4|8 [lane // 4 + 8*i, 4*(lane % 4)]; i<4; tile B
    down: load 2 [lane, i]; i<16; tile B""")


def test_lanes_and_widths_that_the_file_leaves_open_are_those_of_each_tile():
    tiles = from_data(OPEN)
    best = solve(tiles)
    wide = {access.name: access.bytes for part in best.tiles for access in part.result.accesses}["rows"]
    audits = {part.tile: part.audit for part in check(tiles).tiles}
    assert [a.index is not None for a in audits["A"].accesses] == [True, False]
    assert [a.bytes in (4, 8) for a in audits["B"].accesses] == [True, False]
    compared = compare(tiles)
    rows = rows_of(compared)
    assert compared.widths.keys() == {"rows"}
    assert (rows["all"].excess, rows["all"].bytes) == (best.excess, best.bytes)
    assert rows["edit"].excess <= rows["published"].excess
    told = explain(tiles)
    assert told.excess == best.excess
    assert told.tiles[0].explanation.reasons[0].startswith("The lanes are chosen: `fill` at [")
    assert told.tiles[1].explanation.widths.keys() == {"rows"}
    assert drawn(tiles, access="rows").widths == {"rows": wide}
    assert "drawn with `fill` at [" in drawn(tiles, access="read").note


def test_a_row_within_the_budget_has_the_lanes_and_widths_of_the_others():
    rows = rows_of(compare(from_data({**OPEN, "layout": {"max_bytes": 2100}})))
    assert rows["pad"].reason.startswith("without the limit")
    assert (rows["pad"].bytes <= 2100, rows["pad"].status) == (True, "optimal")
    assert rows["pad"].excess > rows["all"].excess


def test_of_several_tiles_the_others_keep_their_best_beside_the_instructions_of_the_file():
    tiles = data_of("""256 threads; name block; target sm_90
        tile A: 128x8 f32
        tile B: 32x32 f32
        fill: store 4 [tid // 8 + 32*i, tid % 8]; i<4; tile A
        read: load 4 [tid // 16 * 8 + i, k]; k<8, i<8; tile A
        rows: store 4 [tid // 32 + 8*i, tid % 32]; i<4; tile B
        columns: load 4 [tid % 32, tid // 32 + 8*i]; i<4; tile B""")
    tiles["accesses"][1]["instructions"] = ["i"]
    rows = {row.family: row for row in compare(from_data(tiles)).rows}
    own = [[tile.wavefronts for tile in rows[name].tiles] for name in ("all", "given")]
    assert own == [[288, 64], [544, 64]]
