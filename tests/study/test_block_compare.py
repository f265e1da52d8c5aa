"""Several tiles compared under one budget: rows are what arranging each family gives."""

import copy
import csv
import io
import json

import msgspec
import pytest
from command import layoutopt
from written import access_from, reads, saved

from layoutopt.files.file import from_data
from layoutopt.search.block import solve
from layoutopt.study.compare import compare

ROWS = {"op": "store", "bytes": 4, "index": ["lane // 8 + 4*i", "lane % 8"], "for": {"i": 8}}
COLUMNS = {"op": "load", "bytes": 4, "index": ["lane", "i"], "for": {"i": 8}}
TILE = {"shape": [32, 8], "element": "f32"}
PADDED = {"offset": "x0*9 + x1", "bytes": 1152}
SET = {
    "name": "block", "target": "sm_90", "threads": 32,
    "tiles": [{**TILE, "name": "A", "stages": 2, "published": PADDED}, {**TILE, "name": "B", "published": PADDED}],
    "accesses": [
        {**access, "name": f"{what} {tile}", "tile": tile}
        for tile in "AB" for what, access in (("rows", ROWS), ("columns", COLUMNS))
    ],
}  # fmt: skip


def compared(**changes):
    data = {**copy.deepcopy(SET), **changes}
    tile_set = from_data(data)
    return tile_set, {row.family: row for row in compare(tile_set, time_limit=2).rows}


@pytest.mark.parametrize("name", ["pad", "xor"])
def test_rows_without_a_budget_are_those_of_arranging_each_family(name):
    tile_set, rows = compared()
    layout = msgspec.structs.replace(tile_set.layout, families=("none", name))
    alone = solve(msgspec.structs.replace(tile_set, layout=layout))
    assert (rows[name].excess, rows[name].bytes) == (alone.excess, alone.bytes)
    assert (rows["all"].excess, rows["all"].bytes) == (0, 3 * 1024)
    assert sorted(part.base_bytes for part in rows["all"].tiles) in ([0, 1024], [0, 2 * 1024])
    assert rows["published"].bytes == 3 * 1152
    assert [part.base_bytes for part in rows["published"].tiles] == [0, 2 * 1152]


def test_elements_wider_than_their_accesses_are_aligned_where_the_tile_lies():
    """Structures of 12 bytes end at 108, where no element of 8 bytes begins."""
    tiles = [
        {"name": "A", "shape": [9], "element": {"bytes": 12}},
        {"name": "B", "shape": [5], "element": {"bytes": 8}},
    ]
    reads = {"op": "load", "bytes": 4, "index": ["lane % 5"]}
    _, rows = compared(tiles=tiles, accesses=[{**reads, "name": n, "tile": n} for n in "AB"])
    for row in rows.values():
        assert [tile.base_bytes % 8 for tile in row.tiles if "B" in tile.tiles] == [0] * bool(row.tiles)
        assert row.alignment_bytes in (None, 8)


def test_what_the_hardware_dictates_keeps_to_the_budget():
    """Without a limit the bulk copies have pads between them; the row is what fits, in figures and layout."""
    copied = access_from("fill: cp.async.bulk 32; tile A")
    accesses = [copied, {**COLUMNS, "name": "columns", "tile": "A"}]
    for limit, size in ((None, 32 * 32 + 31 * 16), (1200, 1024)):
        more = {} if limit is None else {"layout": {"max_bytes": limit}}
        tile_set, rows = compared(tiles=[{**TILE, "name": "A"}], accesses=accesses, **more)
        (found,) = solve(tile_set).tiles
        row = rows["all"]
        (part,) = row.tiles
        assert (row.bytes, row.excess) == (size, found.result.excess)
        assert (part.bytes, part.offset) == (size, found.result.offset)


def test_a_row_beyond_the_budget_is_the_best_that_fits():
    """A's stages stay row-major and conflict, B is padded."""
    tile_set, rows = compared(layout={"max_bytes": 3300})
    pad = rows["pad"]
    limited = msgspec.structs.replace(tile_set.layout, families=("none", "pad"))
    alone = solve(msgspec.structs.replace(tile_set, layout=limited))
    assert (pad.excess, pad.bytes) == (alone.excess, alone.bytes) == (64, 3196)
    assert pad.reason.startswith("without the limit 3,444 bytes with 16 excess wavefronts")
    assert pad.pipeline_stages == 2
    assert rows["published"].wavefronts is None
    assert rows["published"].reason.startswith("3,456 bytes with 16 excess wavefronts, and 3,300 are there")
    assert rows["xor"].excess == 0


def test_stages_are_those_that_fit_and_blocks_those_of_all_bytes():
    _, rows = compared(block={"other_shared_bytes": 200_000})
    room = 227 * 1024 - 200_000
    assert rows["all"].pipeline_stages == min(64, (room - 1024) // 1024)
    assert rows["all"].blocks_per_sm == 1  # its limit is the bytes of all


def test_a_tile_that_may_not_be_of_a_family_takes_its_best():
    tiles = copy.deepcopy(SET["tiles"])
    tiles[1]["layout"] = {"families": ["none", "pad"]}
    _, rows = compared(tiles=tiles)
    assert [part.offset for part in rows["xor"].tiles] == [rows["all"].tiles[0].offset, "x0*9 + x1"]
    _, none = compared(layout={"families": ["none", "pad"]})
    assert none["xor"].reason == "not allowed by the problem's layout constraints"


def test_a_tile_that_the_hardware_dictates_is_in_every_row():
    tiles = [
        SET["tiles"][0],
        {
            "name": "B", "shape": [32, 64], "element": "f16", "layout": {"must_be": "tma.128B"},
            "published": {"offset": "x0*64 + x1", "bytes": 4096},
        },
    ]  # fmt: skip
    load = access_from("fragments: ldmatrix.x4 [lane, 8*i]; i<8; tile B")
    _, rows = compared(tiles=tiles, accesses=[*SET["accesses"][:2], load])
    used = {
        row.tiles[1].offset
        for row in rows.values()
        if row.wavefronts is not None and row.family != "published"
    }
    assert used == {"x0*64 + (x1 ^ x0 % 8 * 8)"}
    assert (rows["all"].excess, rows["all"].alignment_bytes) == (0, 1024)
    # The published layout is not what must_be asks for, and no other stands in its place.
    got = str(rows["published"].status), rows["published"].reason
    assert got == ("infeasible", "B: no layout of tma.128B")


def test_layouts_that_are_shared_are_one_column():
    _, rows = compared(
        overlay=[["A"], ["B"]], same_layout=True, tiles=[{**t, "stages": 1} for t in SET["tiles"]]
    )
    assert [part.tiles for part in rows["all"].tiles] == [("A", "B")]
    assert rows["all"].bytes == 1024


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_forms_of_the_answer(form, tmp_path):
    path = saved(tmp_path, "block.json", SET)
    answer = layoutopt("compare", str(path), form)
    assert answer.returncode == 1, answer.stderr  # as it is, with conflicts, it is as fast as the others
    if form == "--json":
        data = json.loads(answer.stdout)
        rows = {row["family"]: row for row in data["rows"]}
        assert rows["published"]["tiles"][1] == {
            "tiles": ["B"], "offset": "x0*9 + x1", "bytes": 1148, "base_bytes": 2304, "stages": 1,
            "stage_bytes": 1152, "wavefronts": 24, "excess": 8,
        }  # fmt: skip
        assert data["recommendation"]["family"] != "none"
    else:
        rows = list(csv.DictReader(io.StringIO(answer.stdout)))
        assert rows[0]["wavefronts: columns B"] == "64"


def test_tiles_lie_as_closely_as_where_they_are_solved():
    """Bytes that begin within a word."""
    accesses = [reads(name, 1, ["tid"], tile=name) for name in ("A", "B")]
    tiles = [{"name": "A", "shape": [6], "element": "u8"}, {"name": "B", "shape": [5], "element": "u8"}]
    tile_set = from_data({"name": "p", "tiles": tiles, "threads": 4, "accesses": accesses})
    rows = {row.family: row for row in compare(tile_set).rows}
    assert (rows["all"].bytes, rows["all"].status) == (solve(tile_set).bytes, "optimal") == (11, "optimal")


def test_a_row_that_loses_bytes_to_alignment_is_not_called_the_best():
    """Two stages of 1,440 bytes; the swizzled one wants a base at a multiple of 128."""
    index = {"rows": ["0", "tid % 40"], "columns": ["tid % 9", "tid // 9"]}
    accesses = [reads(k, 4, index[k], tile="A") for k in index]
    tiles = [{"name": "A", "shape": [9, 40], "element": "f32", "stages": 2}]
    data = {"name": "p", "tiles": tiles, "threads": 32, "accesses": accesses}
    tile_set = from_data(data | {"layout": {"families": ["none", "xor"]}})
    rows = {row.family: row for row in compare(tile_set).rows}
    assert (rows["all"].status, rows["all"].bytes) == ("feasible", 1536 + 1440)
    assert "alignment" in rows["all"].reason
    assert rows["none"].status == "optimal"  # the only one
