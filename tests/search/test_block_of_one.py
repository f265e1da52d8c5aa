"""One tile is a block of one: as the only tile of a block it gets the answer that it gets by itself."""

import json

import pytest
from written import access_from

from layoutopt.codegen.block import code_of
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.problems.answer import Status
from layoutopt.search.block import solve
from layoutopt.search.certify import certificate
from layoutopt.study.block import placed
from layoutopt.study.known import check_answer

TILE = {"shape": [32, 32], "element": "f32"}
ROWS = access_from("rows: store 4 [i, lane]; i<32")
COLUMNS = access_from("columns: load 4 [lane, i]; i<32")
FREE = access_from("rows: store 8 [i*2 + lane // 16, lane % 16 * 2]; i<16; lanes free")
WIDE = access_from("rows: store 4|8|16 [lane, 0]")
SHORT = access_from("columns: load 4 [lane, lane % 8]")
ONE = {"name": "p", "threads": 32, "tile": TILE, "accesses": [ROWS, COLUMNS]}


def as_block(data):
    tile = {**data["tile"], "name": "A", "layout": {}}
    layout = data.get("layout", {})
    if "max_bytes" in layout:
        tile["layout"]["max_bytes"] = layout["max_bytes"]
    accesses = [{**access, "tile": "A"} for access in data["accesses"]]
    rest = {key: value for key, value in data.items() if key != "tile"}
    return from_data({**rest, "tiles": [tile], "accesses": accesses})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accesses": [FREE, COLUMNS]},
        {"accesses": [WIDE, SHORT], "tile": {"shape": [32, 8], "element": "f32"}},
        {"layout": {"minimise": "bytes"}},
        {"layout": {"minimise": "bytes", "families": ["none", "pad"]}},
        {"layout": {"minimise": "instructions"}},
        {"layout": {"minimise": "time"}},
        {"layout": {"minimise": "time", "max_bytes": 4200}},
        {"layout": {"families": ["none", "pad"], "max_bytes": 4100}},
        {"accesses": [FREE, {**COLUMNS, "weight": 3}], "layout": {"minimise": "bytes"}},
    ],
    ids=json.dumps,
)
def test_one_tile_is_a_block_of_one(changes):
    data = {**ONE, **changes}
    alone, block, gpu = from_data(data), as_block(data), device("sm_90")
    expected, found = solve(alone, time_limit=20), solve(block, time_limit=20)
    (part,) = found.tiles
    got = found.excess, found.bytes, found.weighted_excess
    assert got == (expected.excess, expected.bytes, expected.weighted_excess)
    assert part.result.proof.index_cost.value == expected.proof.index_cost.value
    assert found.status is Status.OPTIMAL or expected.status is not Status.OPTIMAL
    assert found.proof.objective.lower_bound <= found.weighted_excess
    check_answer(block, gpu, found)
    assert "p_A_base" in code_of("cuda", placed(block, gpu, found))


def test_one_model_decides_several_tiles_too():
    data = {**ONE, "layout": {"families": ["none", "pad", "xor"]}}
    found = solve(as_block(data), method="model", time_limit=20)
    assert (found.excess, found.bytes, found.tiles[0].result.method) == (0, 4096, "model")


def test_widths_chosen_for_a_tile_are_certified():
    data = {**ONE, "accesses": [WIDE, SHORT], "tile": {"shape": [32, 8], "element": "f32"}}
    block, gpu = as_block(data), device("sm_90")
    found = solve(block, time_limit=20)
    assert found.tiles[0].result.accesses == solve(from_data(data), time_limit=20).accesses
    assert certificate(block, gpu, found)["bytes"] == found.bytes


def test_what_is_of_all_tiles_is_not_asked_of_one():
    data = {**ONE, "tiles": [{**TILE, "name": "A", "layout": {"minimise": "bytes"}}]}
    data["accesses"] = [{**ROWS, "tile": "A"}]
    del data["tile"]
    with pytest.raises(ProblemFileError, match=r"tiles\[0\].layout.minimise: is asked of all tiles together"):
        from_data(data)
    other = {"name": "B", "shape": [16, 32], "element": "f16"}
    data["tiles"] = [{**TILE, "name": "A"}, other]
    data["accesses"] = [
        {**FREE, "tile": "A"},
        {**ROWS, "name": "b", "bytes": 2, "for": {"i": 16}, "tile": "B"},
    ]
    with pytest.raises(ProblemFileError, match=r"accesses\[0\].lanes: free ones need tiles of one shape"):
        from_data({**data, "same_layout": [["A", "B"]]})
