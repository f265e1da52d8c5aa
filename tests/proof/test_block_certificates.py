"""Certificates of several tiles, and of tiles that the hardware reads and writes by itself."""

import json

from certificates_checked import certified, holds
from command import layoutopt
from written import access_from, data_of, saved

BLOCK = data_of("""32 threads; name block; target sm_90
    tile A: 32x8 f32; stages 2
    tile B: 32x8 f32; families none pad
    tile C: 8x32 f32
    a: load 4 [lane, i]; i<8; tile A
    b: load 4 [lane, i]; i<8; tile B
    c: store 4 [i, lane]; i<8; tile C""", overlay=[["B"], ["C"]])  # fmt: skip
PAIR = {**BLOCK, "tiles": BLOCK["tiles"][::2], "accesses": BLOCK["accesses"][::2], "overlay": []}


def test_several_tiles_are_checked_where_they_lie(tmp_path):
    out = tmp_path / "out.json"
    done = layoutopt("solve", saved(tmp_path, "block.json", PAIR), "--json", "--certificate", out)
    assert done.returncode == 0
    given = json.loads(out.read_text())
    assert holds(PAIR, given).count(": checked") == 9
    for change, error in (
        (lambda c: c["tiles"][1]["places"][0].update(base_bytes=1024), "A and C share bytes"),
        (lambda c: c["tiles"][1]["places"][0].update(base_bytes=2052), "the tiles end at byte"),
        (lambda c: c["tiles"].pop(), "the tiles are not those of the file"),
        (lambda c: c.update(excess=1), "the excess is 0"),
        (lambda c: c["tiles"][0]["certificate"]["layout"]["wavefronts"].update(a=9), "wavefronts are"),
    ):
        wrong = json.loads(json.dumps(given))
        change(wrong)
        holds(PAIR, wrong, error, 1)


def test_a_base_of_little_alignment_moves_whole_tiles():
    """The base has 4 bytes, what the accesses need: elements of 16 lie as they do from the tile's start."""
    data = data_of("""16 threads; name block; target sm_90; alignment_bytes 4
        tile A: 5x5 f32
        tile B: 16x4 b128
        a: load 4 [0, lane % 5]; tile A
        b: load 2 [lane, 0]; tile B""")
    given = certified(data)
    assert [place["base_bytes"] for part in given["tiles"] for place in part["places"]] == [0, 100]
    holds(data, given)


def test_tiles_of_several_sizes_and_elements_that_share_a_layout_are_checked():
    first, second = PAIR["accesses"]
    tiles = [PAIR["tiles"][0], {"name": "C", "shape": [32, 8], "element": "f16"}]
    accesses = [first, {**second, "bytes": 2, "index": ["lane", "i"]}]
    data = {**PAIR, "tiles": tiles, "accesses": accesses, "same_layout": [["A", "C"]]}
    given = certified(data)
    holds(data, given, "block: 0 weighted excess in 2560 bytes")
    given["tiles"][0]["certificate"]["layout"]["wavefronts"].update(c=9)
    holds(data, given, code=1)


def test_what_the_search_or_the_solver_alone_knows_stays_open():
    data = {**BLOCK, "layout": {"max_bytes": 3072}}
    given = certified(data)
    assert given["bound"]["rests_on"] == "layoutopt's search of the families alone"
    holds(data, given, "NOT CHECKED, it rests on layoutopt's search", 3)
    given["bound"].update(rests_on="arithmetic", scope="every layout")
    holds(data, given, code=1)
    data = data_of("""32 threads; target sm_90
        tile A: 24x64 f64; stages 2
        tile B: 32x16 i8
        one: store 1 [0, 0]; tile A
        rows: store 16 [(lane + 4*k) % 32, 0]; k<2; tile B
        bytes: load 1 [tid, 3*tid % 16]; tile B""")
    given = certified(data)
    assert (given["bound"]["excess"], given["bound"]["scope"]) == (1, "every layout")
    holds(data, given, "excess: of all tiles, in every layout: NOT CHECKED", 3)


def test_what_is_to_be_written_out_leaves_the_other_tiles():
    copied = {"name": "a", "tile": "A", "op": "store", "copy": {"bytes": 4}}
    moved = access_from("ld: tma.load; tile B")
    tiles = [{**tile, "layout": {}} for tile in BLOCK["tiles"]]
    data = {**BLOCK, "tiles": tiles, "accesses": [copied, moved, BLOCK["accesses"][2]]}
    lines = holds(data, certified(data), code=3).splitlines()
    assert lines[0] == "A: NOT CHECKED: accesses without an index: a are not handled here"
    assert {"B:", "C:", "block: NOT CHECKED: its bytes and excess, for want of A"} <= set(lines)
    assert "ld: tma.load, mode none, 1 instructions reach every element: checked" in lines


TMA_ONLY = data_of("128x64 f16, 128 threads", "ld: tma.load", "a: wgmma.A")
# A row a thread: every mode has conflicts, and which has the fewest is a matter of counting them.
OWN_ROW = data_of("64x64 f16, 64 threads", "ld: tma.load", "r: load 2 [tid, i]; i<4")


def test_what_the_hardware_moves_by_itself_is_checked():
    given = certified(TMA_ONLY)
    still = {"index": [0, 0], "where": "0"}
    expanded = [{**a, **still, "hardware": {"engine": a["op"].split(".")[0]}} for a in TMA_ONLY["accesses"]]
    for accesses in (TMA_ONLY["accesses"], expanded):
        text = holds({**TMA_ONLY, "accesses": accesses}, given)
        assert "ld: tma.load, mode 128B, 1 instructions reach every element: checked" in text
        assert "a: wgmma.A, mode 128B, 8 instructions reach every element: checked" in text


def test_what_the_search_found_among_dictated_layouts_stays_open():
    given = certified(OWN_ROW, time_limit=5)
    holds(OWN_ROW, given, "bound: 24 in the layouts of tma.load, boxes side by side: NOT CHECKED", 3)
    holds(OWN_ROW, {**given, "bound": {**given["bound"], "scope": "every layout"}}, code=1)
    given = certified(OWN_ROW, conflict_free=True)
    holds(OWN_ROW, given, "infeasible: a layout without conflicts: NOT CHECKED", 3)


def test_rows_of_a_matrix_may_be_several_dimensions():
    operand = {"name": "b", "op": "wgmma.B", "mn": [0, 1], "k": 2, "rows": 128}
    data = data_of("4x32x64 f16, 128 threads", "ld: tma.load", operand)
    given = certified(data)
    holds(data, given, "b: wgmma.B, mode 128B, 4 instructions reach")
    given["hardware"]["b"]["starts"] = [0, 16, 64, 96]
    holds(data, given, "access 'b'", 1)


def test_blocks_of_a_cluster_share_the_boxes():
    load, operand = TMA_ONLY["accesses"]
    shared = {**TMA_ONLY, "accesses": [{**load, "multicast": 2}, operand], "block": {"cluster": 2}}
    given = certified(shared)
    holds(shared, given, "ld: tma.load, mode 128B, 2 instructions reach")
    given["hardware"]["ld"]["multicast"] = 1
    holds(shared, given, code=1)


def test_direct_loads_write_side_by_side():
    data = data_of("8x64 f32, 64 threads; target gfx942", "d: buffer_load_dword.lds [i, lane]; i<8")
    given = certified(data)
    holds(data, given)
    table = given["layout"]["byte_offsets"]
    table[0], table[1] = table[1], table[0]
    holds(data, given, "lanes of warp 0 do not write side by side", 1)


def test_a_stage_is_whole_accesses():
    """Seven bytes read two by two: the next stage, if there were one, begins after eight."""
    data = data_of("""8 threads; target sm_90
        tile A: 7 i8
        tile B: 7 i8
        a: store 2 [tid % 3 * 2]; tile A
        b: store 2 [tid % 3 * 2]; tile B""")
    given = certified(data)
    holds(data, given, code=3)
    part = given["tiles"][0]
    assert (part["stage_bytes"], part["places"][0]["bytes"]) == (8, 7)
    part["stage_bytes"] = part["places"][0]["stage_bytes"] = 7
    holds(data, given, "has accesses of 2 bytes in each stage", 1)
