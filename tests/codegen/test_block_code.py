"""Several tiles as code in every language, and read back from what `solve` printed."""

import copy
import json

import numpy as np
import pytest
from command import layoutopt, refused
from emit_programs import GCC, built
from written import access_from, data_of, saved

from layoutopt.codegen.block import code_of
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.files.result_file import answer_from_data
from layoutopt.hardware.devices import device
from layoutopt.search.block import solve
from layoutopt.study.block import placed, placed_in_use
from layoutopt.study.known import check_answer

# B and C, of other shapes, share a layout; A is staged and lives beside them.
SET = data_of(
    """32 threads; name set; target sm_90
    tile A: 32x8 f32; stages 2; published 1152 x0*9 + x1
    tile B: 32x8 f32; published 1152 x0*9 + x1
    tile C: 8x32 f32; published 1024 x0*32 + x1
    a: load 4 [lane, i]; i<8; tile A
    b: load 4 [lane, i]; i<8; tile B
    c: store 4 [i, lane]; i<8; tile C""",
    overlay=[["B"], ["C"]],
    same_layout=True,
)


@pytest.fixture(scope="module")
def solved():
    tile_set = from_data(SET)
    return tile_set, solve(tile_set)


def tables(tile_set, arrangement):
    """Byte offsets of every element from the start of everything, by tile."""
    shapes = {tile.name: tile.shape for tile in tile_set.tiles}
    return {
        name: part.result.table().ravel().reshape(shapes[name]) + part.base_bytes
        for part in arrangement.tiles
        for name in part.tiles
    }


@pytest.mark.skipif(GCC is None, reason="no C compiler")
def test_c_has_every_tile_where_it_lies_in_its_own_coordinates(solved, tmp_path):
    tile_set, arrangement = solved
    printed = "".join(
        f"for (unsigned i = 0; i < {t.shape[0]}; ++i) for (unsigned j = 0; j < {t.shape[1]}; ++j)"
        f' printf("%u ", set_{t.name}_base + set_{t.name}_offset_bytes(i, j));\nputs("");\n'
        for t in tile_set.tiles
    )
    (tmp_path / "set.h").write_text(code_of("c", placed(tile_set, device("sm_90"), arrangement)))
    includes = '#include <stdio.h>\n#include "set.h"\n#include "set.h"\n'
    text = f"{includes}int main(void) {{\n{printed}return 0; }}\n"
    lines = built(tmp_path, text, "-std=c99", compiler=GCC).splitlines()
    expected = tables(tile_set, arrangement)
    for tile, line in zip(tile_set.tiles, lines, strict=True):
        assert (np.array(line.split(), int).reshape(tile.shape) == expected[tile.name]).all()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_every_tile_and_its_place(solved, language):
    tile_set, arrangement = solved
    text = code_of(language, placed(tile_set, device("sm_90"), arrangement))
    parts = {name: part for part in arrangement.tiles for name in part.tiles}
    for name, part in parts.items():
        for constant, value in (("base", part.base_bytes), ("stage_bytes", part.stage_bytes)):
            assert LANGUAGES[language].constant.format(f"set_{name}_{constant}", value) in text
        assert f"set_{name}_{'layout' if language in ('cute', 'gluon', 'tilelang') else 'offset'}" in text
    if LANGUAGES[language].comment == "#":
        compile(text, "set.py", "exec")


def test_python_offsets_of_tilelang(solved):
    tile_set, arrangement = solved
    space = {}
    exec(code_of("tilelang", placed(tile_set, device("sm_90"), arrangement)), space)
    for name, table in tables(tile_set, arrangement).items():
        offsets = space[f"set_{name}_offset"](*np.indices(table.shape))
        assert (4 * offsets + space[f"set_{name}_base"] == table).all()


def test_a_block_in_use_is_emitted_as_the_file_has_it():
    block = placed_in_use(from_data({**SET, "same_layout": False}), device("sm_90"))
    assert [(part.tile, part.base_bytes, part.answer) for part in block.parts] == [
        ("A", 0, "x0*9 + x1"),
        ("B", 2304, "x0*9 + x1"),
        ("C", 2304, "x0*32 + x1"),
    ]
    assert "set_B_base = 2304" in code_of("cuda", block)
    wrong = copy.deepcopy(SET)
    wrong["tiles"][1]["base_bytes"] = 4
    with pytest.raises(
        ProblemFileError, match="tiles: the block cannot hold its tiles so: tiles A and B share"
    ):
        placed_in_use(from_data(wrong), device("sm_90"))


def test_an_answer_is_read_back_with_its_problem(solved):
    tile_set, arrangement = solved
    raw = json.loads(json.dumps(arrangement.to_json()))
    assert answer_from_data(raw) == arrangement
    check_answer(tile_set, device("sm_90"), arrangement)


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (("tiles", 0, "base_bytes"), 1 << 20, "tiles[0].base_bytes: expected 0, as `places`"),
        (("bytes",), 7, "bytes: the tiles end at byte"),
        (("tiles", 0, "stage_bytes"), 4, "tiles[0].stage_bytes: expected 1024, as `places`"),
        (("tiles", 0, "places", 0, "stage_bytes"), 4, "tiles[0].places[0].stage_bytes: expected 1024 to "),
        (("tiles", 0, "places", 0, "stages"), 0, "tiles[0].places[0].stages: expected 1 to"),
        (("tiles", 0, "places", 0, "stages"), 1, "tiles[0].places[0].stages: expected 2, as the file"),
        (("tiles", 0, "places", 0, "bytes"), 1, "tiles[0].places[0].bytes: A takes 1024, not 1"),
        (("tiles", 0, "result", "excess"), 7, "tiles[0].result.excess: the layout gives 0, not 7"),
        (
            ("tiles", 1, "result", "accesses", 0, "op"),
            "store",
            "tiles[1].result.accesses[0]: the layout gives",
        ),
        (("alignment_bytes",), 3, "alignment_bytes: expected a multiple"),
        (("problem",), "other", "problem: the result is of 'other'"),
        (("tiles", 0, "tiles"), ["B"], "tiles[0].places: expected one of each of B"),
        (("tiles", 1, "bases_bytes"), [9], "tiles[1].bases_bytes: expected (2048, 2048)"),
        (("tiles", 0, "bases_bytes"), [4], "tiles[0].bases_bytes: expected (0,)"),
    ],
)
def test_an_answer_that_does_not_hold_is_refused(solved, path, value, error):
    tile_set, arrangement = solved
    raw = json.loads(json.dumps(arrangement.to_json()))
    inside = raw
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    with pytest.raises(ProblemFileError) as caught:
        check_answer(tile_set, device("sm_90"), answer_from_data(raw))
    assert str(caught.value).startswith(error)


def test_emit_of_several_tiles_on_the_command_line(tmp_path):
    path = saved(tmp_path, "set.json", SET)
    answer = tmp_path / "answer.json"
    answer.write_text(layoutopt("solve", str(path), "--json").stdout)
    given = layoutopt("emit", str(answer), "--problem", str(path), "--lang", "c", "--name", "blk", "--json")
    data = json.loads(given.stdout)
    assert [tile["tile"] for tile in data["tiles"]] == ["A", "B", "C"]
    assert "blk_A_base" in data["code"]
    refused("--offset published takes those", "emit", str(path), "--offset", "x0")


def test_a_language_that_cannot_express_a_tile_names_it():
    odd = {"name": "odd", "shape": [24, 9], "element": "f32"}
    rows = access_from("r: load 4 [lane % 24, i]; i<9; tile odd")
    data = {**SET, "tiles": [SET["tiles"][0], odd], "accesses": [SET["accesses"][0], rows]}
    tile_set = from_data({**data, "overlay": [], "same_layout": False})
    block = placed(tile_set, device("sm_90"), solve(tile_set))
    with pytest.raises(LayoutError, match="tile 'odd': Gluon's shared layouts need extents"):
        code_of("gluon", block)
