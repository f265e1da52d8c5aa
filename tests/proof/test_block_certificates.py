"""Certificates of several tiles: each where it lies, and all together."""

import json

from certificates_checked import checked
from command import layoutopt

BLOCK = {
    "name": "block", "target": "sm_90", "threads": 32,
    "tiles": [
        {"name": "A", "shape": [32, 8], "element": "f32", "stages": 2},
        {"name": "B", "shape": [32, 8], "element": "f32", "layout": {"families": ["none", "pad"]}},
        {"name": "C", "shape": [8, 32], "element": "f32"},
    ],
    "accesses": [
        {"name": "a", "tile": "A", "op": "load", "bytes": 4, "index": ["lane", "i"], "for": {"i": 8}},
        {"name": "b", "tile": "B", "op": "load", "bytes": 4, "index": ["lane", "i"], "for": {"i": 8}},
        {"name": "c", "tile": "C", "op": "store", "bytes": 4, "index": ["i", "lane"], "for": {"i": 8}},
    ],
    "overlay": [["B"], ["C"]],
}  # fmt: skip


def block_certificate_of(data, tmp_path):
    path, out = tmp_path / "block.json", tmp_path / "out.json"
    path.write_text(json.dumps(data))
    assert layoutopt("solve", str(path), "--json", "--certificate", str(out)).returncode in (0, 1)
    return json.loads(out.read_text())


def test_several_tiles_are_checked_where_they_lie(tmp_path):
    given = block_certificate_of({**BLOCK, "tiles": [BLOCK["tiles"][0], BLOCK["tiles"][2]], "accesses":
                                  [BLOCK["accesses"][0], BLOCK["accesses"][2]], "overlay": []}, tmp_path)  # fmt: skip
    problem = json.loads((tmp_path / "block.json").read_text())
    code, text = checked(problem, given, tmp_path)
    assert (code, text.count(": checked")) == (0, 9), text
    for change, error in (
        (lambda c: c["tiles"][1]["places"][0].update(base_bytes=1024), "A and C share bytes"),
        (lambda c: c["tiles"][1]["places"][0].update(base_bytes=2052), "the tiles end at byte"),
        (lambda c: c["tiles"].pop(), "the tiles are not those of the file"),
        (lambda c: c.update(excess=1), "the excess is 0"),
        (lambda c: c["tiles"][0]["certificate"]["layout"]["wavefronts"].update(a=9), "wavefronts are"),
    ):
        wrong = json.loads(json.dumps(given))
        change(wrong)
        code, text = checked(problem, wrong, tmp_path)
        assert (code, error in text) == (1, True), text


def test_tiles_of_several_sizes_and_elements_that_share_a_layout_are_checked(tmp_path):
    tiles = [BLOCK["tiles"][0], {"name": "C", "shape": [32, 8], "element": "f16"}]
    accesses = [BLOCK["accesses"][0], {**BLOCK["accesses"][2], "bytes": 2, "index": ["lane", "i"]}]
    data = {**BLOCK, "tiles": tiles, "accesses": accesses, "overlay": [], "same_layout": [["A", "C"]]}
    given = block_certificate_of(data, tmp_path)
    code, text = checked(data, given, tmp_path)
    assert (code, "block: 0 weighted excess in 2560 bytes" in text) == (0, True), text
    given["tiles"][0]["certificate"]["layout"]["wavefronts"].update(c=9)
    assert checked(data, given, tmp_path)[0] == 1


def test_what_the_search_alone_knows_of_several_tiles_stays_open(tmp_path):
    given = block_certificate_of({**BLOCK, "layout": {"max_bytes": 3072}}, tmp_path)
    assert given["bound"]["rests_on"] == "layoutopt's search of the families alone"
    problem = json.loads((tmp_path / "block.json").read_text())
    code, text = checked(problem, given, tmp_path)
    assert (code, "NOT CHECKED, it rests on layoutopt's search" in text) == (3, True), text
    claimed = json.loads(json.dumps(given))
    claimed["bound"].update(rests_on="arithmetic", scope="every layout")
    assert checked(problem, claimed, tmp_path)[0] == 1


def test_what_the_solver_alone_knows_of_a_tile_is_open_of_all(tmp_path):
    data = {
        "name": "solver", "target": "sm_90", "threads": 32,
        "tiles": [
            {"name": "A", "shape": [24, 64], "element": "f64", "stages": 2},
            {"name": "B", "shape": [32, 16], "element": "i8"},
        ],
        "accesses": [
            {"name": "one", "tile": "A", "op": "store", "bytes": 1, "index": ["0", "0"]},
            {"name": "rows", "tile": "B", "op": "store", "bytes": 16, "index": ["(lane + 4*k) % 32", "0"],
             "for": {"k": 2}},
            {"name": "bytes", "tile": "B", "op": "load", "bytes": 1, "index": ["tid", "3*tid % 16"]},
        ],
    }  # fmt: skip
    given = block_certificate_of(data, tmp_path)
    assert (given["bound"]["excess"], given["bound"]["scope"]) == (1, "every layout")
    code, text = checked(data, given, tmp_path)
    assert (code, "excess: of all tiles, in every layout: NOT CHECKED" in text) == (3, True), text


def test_what_is_to_be_written_out_leaves_the_other_tiles(tmp_path):
    copied = {"name": "a", "tile": "A", "op": "store", "copy": {"bytes": 4}}
    moved = {"name": "ld", "tile": "B", "op": "tma.load"}
    tiles = [{**tile, "layout": {}} for tile in BLOCK["tiles"]]
    data = {**BLOCK, "tiles": tiles, "accesses": [copied, moved, BLOCK["accesses"][2]]}
    code, text = checked(data, block_certificate_of(data, tmp_path), tmp_path)
    lines = text.splitlines()
    assert (code, lines[0]) == (3, "A: NOT CHECKED: accesses without an index: a are not handled here")
    assert {"B:", "C:", "block: NOT CHECKED: its bytes and excess, for want of A"} <= set(lines)
    assert "ld: tma.load, mode none, 1 instructions reach every element: checked" in lines
