"""Several tiles as code in every language, and read back from what `solve` printed."""

import copy
import json

import numpy as np
import pytest
from command import answer, refused
from emit_programs import GCC, built
from written import data_of, problem_of, refused_with, saved

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


GPU = device("sm_90")


@pytest.fixture(scope="module")
def solved():
    tile_set = from_data(SET)
    arrangement = solve(tile_set)
    return tile_set, arrangement, placed(tile_set, GPU, arrangement)


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
    tile_set, arrangement, block = solved
    printed = "".join(
        f"for (unsigned i = 0; i < {t.shape[0]}; ++i) for (unsigned j = 0; j < {t.shape[1]}; ++j)"
        f' printf("%u ", set_{t.name}_base + set_{t.name}_offset_bytes(i, j));\nputs("");\n'
        for t in tile_set.tiles
    )
    (tmp_path / "set.h").write_text(code_of("c", block))
    includes = '#include <stdio.h>\n#include "set.h"\n#include "set.h"\n'
    text = f"{includes}int main(void) {{\n{printed}return 0; }}\n"
    lines = built(tmp_path, text, "-std=c99", compiler=GCC).splitlines()
    expected = tables(tile_set, arrangement)
    for tile, line in zip(tile_set.tiles, lines, strict=True):
        assert (np.array(line.split(), int).reshape(tile.shape) == expected[tile.name]).all()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_every_tile_and_its_place(solved, language):
    tile_set, arrangement, block = solved
    text = code_of(language, block)
    parts = {name: part for part in arrangement.tiles for name in part.tiles}
    for name, part in parts.items():
        for constant, value in (("base", part.base_bytes), ("stage_bytes", part.stage_bytes)):
            assert LANGUAGES[language].constant.format(f"set_{name}_{constant}", value) in text
        assert f"set_{name}_{'layout' if language in ('cute', 'gluon', 'tilelang') else 'offset'}" in text
    if LANGUAGES[language].comment == "#":
        compile(text, "set.py", "exec")
    if language == "tilelang":
        exec(text, space := {})
        for name, table in tables(tile_set, arrangement).items():
            offsets = space[f"set_{name}_offset"](*np.indices(table.shape))
            assert (4 * offsets + space[f"set_{name}_base"] == table).all()


def test_a_block_in_use_is_emitted_as_the_file_has_it():
    block = placed_in_use(from_data({**SET, "same_layout": False}), GPU)
    assert [(part.tile, part.base_bytes, part.answer) for part in block.parts] == [
        ("A", 0, "x0*9 + x1"), ("B", 2304, "x0*9 + x1"), ("C", 2304, "x0*32 + x1"),
    ]  # fmt: skip
    assert "set_B_base = 2304" in code_of("cuda", block)
    wrong = copy.deepcopy(SET)
    wrong["tiles"][1]["base_bytes"] = 4
    with refused_with("tiles: the block cannot hold its tiles so: tiles A and B share"):
        placed_in_use(from_data(wrong), GPU)


def test_an_answer_is_read_back_with_its_problem(solved):
    tile_set, arrangement, _ = solved
    assert answer_from_data(json.loads(json.dumps(arrangement.to_json()))) == arrangement
    check_answer(tile_set, GPU, arrangement)


# What of an answer is changed, to what, and what is said of it.
FORGED = [
    ("tiles.0.base_bytes", 1 << 20, "tiles[0].base_bytes: expected 0, as `places`"),
    ("bytes", 7, "bytes: the tiles end at byte"),
    ("tiles.0.stage_bytes", 4, "tiles[0].stage_bytes: expected 1024, as `places`"),
    ("tiles.0.places.0.stage_bytes", 4, "tiles[0].places[0].stage_bytes: expected 1024 to "),
    ("tiles.0.places.0.stages", 0, "tiles[0].places[0].stages: expected 1 to"),
    ("tiles.0.places.0.stages", 1, "tiles[0].places[0].stages: expected 2, as the file"),
    ("tiles.0.places.0.bytes", 1, "tiles[0].places[0].bytes: A takes 1024, not 1"),
    ("tiles.0.result.excess", 7, "tiles[0].result.excess: the layout gives 0, not 7"),
    ("tiles.1.result.accesses.0.op", "store", "tiles[1].result.accesses[0]: the layout gives"),
    ("alignment_bytes", 3, "alignment_bytes: expected a multiple"),
    ("problem", "other", "problem: the result is of 'other'"),
    ("tiles.0.tiles", ["B"], "tiles[0].places: expected one of each of B"),
    ("tiles.1.bases_bytes", [9], "tiles[1].bases_bytes: expected (2048, 2048)"),
    ("tiles.0.bases_bytes", [4], "tiles[0].bases_bytes: expected (0,)"),
]


@pytest.mark.parametrize(("path", "value", "error"), FORGED)
def test_an_answer_that_does_not_hold_is_refused(solved, path, value, error):
    tile_set, arrangement, _ = solved
    inside = raw = json.loads(json.dumps(arrangement.to_json()))
    *outer, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in outer:
        inside = inside[key]
    inside[last] = value
    with pytest.raises(ProblemFileError) as caught:
        check_answer(tile_set, GPU, answer_from_data(raw))
    assert str(caught.value).startswith(error)


def test_emit_of_several_tiles_on_the_command_line(tmp_path):
    path = saved(tmp_path, "set.json", SET)
    given = saved(tmp_path, "answer.json", answer("solve", path))
    data = answer("emit", given, "--problem", path, "--lang", "c", "--name", "blk")
    assert [tile["tile"] for tile in data["tiles"]] == ["A", "B", "C"]
    assert "blk_A_base" in data["code"]
    refused("--offset published takes those", "emit", path, "--offset", "x0")


def test_a_language_that_cannot_express_a_tile_names_it():
    tile_set = problem_of("""32 threads; name odd; target sm_90
        tile odd: 24x9 f32
        tile A: 32x8 f32
        r: load 4 [lane % 24, i]; i<9; tile odd
        a: load 4 [lane, i]; i<8; tile A""")
    with pytest.raises(LayoutError, match="tile 'odd': Gluon's shared layouts need extents"):
        code_of("gluon", placed(tile_set, GPU, solve(tile_set)))
