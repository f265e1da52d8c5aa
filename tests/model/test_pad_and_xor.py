"""Tiles that a pad and an XOR serve together, and neither serves alone: rows are padded to a power of two."""

import json

import pytest
from command import layoutopt
from conftest import ROOT
from written import one_tile, saved

from layoutopt.files.file import from_data
from layoutopt.problems.answer import Status
from layoutopt.search.solve import solve


def rows_of_lanes(rows, columns, element, vector):
    """A cooperative 16-byte fill, then a row a lane, then every second row a lane."""
    chunks = columns // vector
    fill = "tid + 128*i"
    every = {"op": "load", "bytes": 16, "for": {"j": chunks}}
    accesses = [
        {
            "name": "fill", "op": "store", "bytes": 16, "for": {"i": -(-rows * chunks // 128)},
            "index": [f"({fill}) // {chunks}", f"{vector}*(({fill}) % {chunks})"],
            "where": f"{fill} < {rows * chunks}",
        },
        {"name": "rows", "index": ["lane", f"{vector}*j"], **every},
        {"name": "even", "index": [f"2*lane % {rows}", f"{vector}*j"], **every},
    ]  # fmt: skip
    return of(f"rows {rows}x{columns}", (rows, columns), element, 128, accesses)


def blocks(rows, columns):
    """A warp reads blocks of 16x2, and blocks of 4x8."""
    load = {"op": "load", "bytes": 4}
    tall = {"name": "16x2", "index": ["lane // 2", "lane % 2 + 2*j"], "for": {"j": columns // 2}}
    wide = {"name": "4x8", "index": ["lane // 8 + 4*k", "lane % 8 + 8*j"]}
    wide["for"] = {"k": rows // 4, "j": columns // 8}
    return of(f"blocks {rows}x{columns}", (rows, columns), "f32", 32, [{**tall, **load}, {**wide, **load}])


def of(name, shape, element, threads, accesses):
    return one_tile(name, list(shape), element, threads, accesses, target="sm_90")


def shipped(name):
    return json.loads((ROOT / "problems" / "ggml" / f"{name}.json").read_text())


# Least excess and bytes with pads alone, with an XOR alone, and with both; any order of dimensions.
TILES = [
    (shipped("flash_attention_tile_k_d40"), (32, 5120), (32, 5120), (0, 8144)),
    (shipped("flash_attention_tile_k_d96"), (48, 7152), (32, 6144), (0, 8160)),
    (shipped("flash_attention_tile_k_d112"), (48, 7168), (48, 7168), (0, 8176)),
    (rows_of_lanes(48, 48, "f32", 4), (216, 9968), (128, 9216), (0, 12224)),
    (rows_of_lanes(64, 96, "f16", 8), (224, 13296), (128, 12288), (0, 16320)),
    (blocks(24, 20), (10, 2224), (5, 1920), (0, 2288)),
]
FAMILIES = ["none", "order", "pad"], ["none", "order", "xor"], ["none", "order", "pad", "xor"]


@pytest.mark.parametrize(("data", "pad", "xor", "both"), TILES, ids=[data["name"] for data, *_ in TILES])
def test_neither_alone_but_both_together(data, pad, xor, both):
    for families, (excess, size) in zip(FAMILIES, (pad, xor, both), strict=True):
        result = solve(from_data({**data, "layout": {"families": families}}))
        assert (result.weighted_excess, result.bytes) == (excess, size)
        assert result.status is Status.OPTIMAL


def test_both_are_a_row_of_compare(tmp_path):
    file = saved(tmp_path, "tile.json", blocks(24, 20))
    rows = {
        row["family"]: row for row in json.loads(layoutopt("compare", str(file), "--json").stdout)["rows"]
    }
    assert (rows["pad+xor"]["excess"], rows["pad+xor"]["bytes"]) == (0, 2288)
    assert (rows["xor"]["excess"], rows["xor"]["bytes"]) == (5, 1920)
    assert rows["pad"]["excess"] >= 10


def test_both_need_both_to_be_allowed(tmp_path):
    file = saved(tmp_path, "tile.json", {**blocks(24, 20), "layout": {"families": ["none", "order", "xor"]}})
    rows = {
        row["family"]: row for row in json.loads(layoutopt("compare", str(file), "--json").stdout)["rows"]
    }
    assert rows["pad+xor"]["status"] == "infeasible"
    assert rows["pad+xor"]["reason"] == "not allowed by the problem's layout constraints"
