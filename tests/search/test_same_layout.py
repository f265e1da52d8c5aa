"""Tiles that share one layout, side by side or in the same bytes; and one tile as a block of one."""

import itertools
import json

import numpy as np
import pytest
from written import access_from, data_of, refused_with, rows_of

from layoutopt import Status, check, compare, solve
from layoutopt.codegen.block import code_of
from layoutopt.engine.case import case_of
from layoutopt.expressions.grammar import evaluate, parse
from layoutopt.files.file import from_data
from layoutopt.files.result_file import answer_from_data
from layoutopt.hardware.devices import device
from layoutopt.search.certify import certificate
from layoutopt.study.block import check_answer, placed

GPU = device("sm_90")
# Sums in f32 leave down the columns; halves arrive along the rows.
MIXED = data_of(
    """32 threads; name mixed; target sm_90
    tile acc: 32x8 f32
    tile out: 32x16 f16
    columns: load 4 [lane, i]; i<8; tile acc
    rows: store 2 [2*i + lane // 16, lane % 16]; i<16; tile out""",
    overlay=[["acc"], ["out"]],
    same_layout=True,
)
# A and B, loaded alike, by one formula.
TWINS = data_of("""32 threads; name mixed; target sm_90
    tile A: 32x8 f32; stages 2
    tile B: 32x8 f32; stages 3
    tile C: 8 f32
    a: load 4 [lane, i]; i<8; tile A
    b: store 4 [lane // 8, lane % 8]; tile B
    c: load 4 [lane % 8]; tile C""", same_layout=[["A", "B"]])  # fmt: skip


def offsets(answer, problem):
    """Byte offsets of a part of a block, a result or a formula in its own elements."""
    if not isinstance(answer, str):
        return answer.table()
    grids = {f"x{d}": grid for d, grid in enumerate(np.indices(problem.tile.shape))}
    return evaluate(parse(answer, frozenset(grids)), grids) * problem.tile.element_bytes


def parts_of(tile_set, found):
    return {part.tile: part for part in placed(tile_set, GPU, found).parts}


def tables(tile_set, found, *names):
    parts = parts_of(tile_set, found)
    return [offsets(parts[name].answer, parts[name].problem).ravel() for name in names]


def is_confirmed(tile_set, found):
    check_answer(tile_set, GPU, answer_from_data(json.loads(json.dumps(found.to_json()))))


def test_elements_of_two_sizes_share_their_bytes():
    tile_set = from_data(MIXED)
    found = solve(tile_set)
    assert (found.excess, found.bytes, str(found.status)) == (0, 1024, "optimal")
    halves, words = tables(tile_set, found, "out", "acc")
    assert (words == halves[::2]).all()
    assert (words + 2 == halves[1::2]).all()
    for part in parts_of(tile_set, found).values():
        case = case_of(part.problem, GPU)
        table = offsets(part.answer, part.problem).ravel()
        case.check(table)
        assert all((count.wavefronts == count.ideal).all() for count in case.count(table))
    assert "mixed_acc_offset_bytes" in code_of("c", placed(tile_set, GPU, found))
    is_confirmed(tile_set, found)


def test_tiles_side_by_side_have_one_formula_and_their_own_bytes():
    tile_set = from_data(TWINS)
    found = solve(tile_set)
    twins, single = found.tiles
    assert (twins.tiles, single.tiles) == (("A", "B"), ("C",))
    assert twins.bases_bytes == (twins.base_bytes, twins.base_bytes + 2 * twins.stage_bytes)
    assert (found.excess, found.bytes) == (0, 5 * 1024 + 32)
    parts = parts_of(tile_set, found)
    assert parts["A"].answer.offset == parts["B"].answer.offset
    assert (parts["A"].stages, parts["B"].stages) == (2, 3)
    sizes = ((p.base_bytes, (p.stages - 1) * p.stage_bytes + p.answer.bytes) for p in parts.values())
    spans = sorted((base, base + size) for base, size in sizes)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert (parts["B"].table - parts["A"].table == 2 * twins.stage_bytes).all()
    assert rows_of(compare(tile_set, time_limit=10))["all"].bytes == found.bytes


# Operands of a GEMM: as many columns, more rows of B than of A.
OPERANDS = data_of(
    """32 threads; name operands; target sm_90
    tile A: 16x64 f16; stages 2
    tile B: 48x64 f16; stages 3
    store A: store 16 [4*i + lane // 8, 8*(lane % 8)]; i<4; tile A
    load A: load 16 [lane % 16 + 16*(i // 4), 8*(lane // 16) + 16*(i % 4)]; i<4; tile A
    store B: store 16 [4*i + lane // 8, 8*(lane % 8)]; i<12; tile B
    load B: load 16 [lane % 16 + 16*(i // 4), 8*(lane // 16) + 16*(i % 4)]; i<12; tile B""",
    same_layout=[["A", "B"]],
)


def test_tiles_of_several_sizes_have_one_formula_and_bytes_of_their_own():
    tile_set = from_data(OPERANDS)
    found = solve(tile_set)
    assert (found.excess, found.bytes, str(found.status)) == (0, 2 * 2048 + 3 * 6144, "optimal")
    a, b = parts_of(tile_set, found).values()
    assert a.answer.offset == b.answer.offset
    assert [(p.stages, p.stage_bytes, p.answer.bytes) for p in (a, b)] == [(2, 2048, 2048), (3, 6144, 6144)]
    assert (b.answer.table()[:16] == a.answer.table()).all()
    assert json.dumps(found.to_json()["tiles"][0]["places"]).count("stage_bytes") == 2
    is_confirmed(tile_set, found)


def test_pads_of_the_largest_tile_are_those_of_the_others():
    """With pads alone the bytes of every tile rise with the pitch, so that they are proved together."""
    tile_set = from_data({**OPERANDS, "layout": {"families": ["none", "pad"]}})
    found = solve(tile_set)
    stage = {place.tile: (place.stage_bytes, place.bytes) for place in found.tiles[0].places}
    assert stage == {"A": (15 * 144 + 128, 15 * 144 + 128), "B": (47 * 144 + 128, 47 * 144 + 128)}
    assert (found.excess, str(found.status)) == (0, "optimal")
    best = rows_of(compare(tile_set, time_limit=10))["all"]
    assert best.bytes == found.bytes == 2 * stage["A"][0] + 3 * stage["B"][0]


@pytest.mark.parametrize(
    ("change", "size"), [({}, 2048), ({"overlay": [], "same_layout": [["acc", "out"]]}, 3072)]
)
def test_a_function_of_the_bytes_serves_elements_of_two_sizes_and_as_many_rows(change, size):
    tiles = [{"name": "acc", "shape": [32, 16], "element": "f32"}, MIXED["tiles"][1]]
    columns = {**MIXED["accesses"][0], "for": {"i": 16}}
    tile_set = from_data({**MIXED, "tiles": tiles, "accesses": [columns, MIXED["accesses"][1]], **change})
    found = solve(tile_set)
    assert (found.excess, found.bytes) == (0, size)
    halves, words = tables(tile_set, found, "out", "acc")
    assert (words[:256] == halves[::2]).all()


def test_a_shipped_block_is_asked_for_one_layout():
    published = [{"offset": "x0*64 + (x1 ^ x0 % 8 * 8)", "bytes": n} for n in (2048, 6144)]
    tiles = [{**tile, "published": mine} for tile, mine in zip(OPERANDS["tiles"], published, strict=True)]
    assert not check(from_data({**OPERANDS, "tiles": tiles}), target=GPU).findings
    tiles[1]["published"] = {"offset": "x0*64 + (x1 ^ x0 % 4 * 16)", "bytes": 6144}
    (finding,) = check(from_data({**OPERANDS, "tiles": tiles}), target=GPU).findings
    assert (finding.kind, finding.details["byte"]) == ("layouts_differ", 128)


def test_what_several_sizes_leave_out_is_in_no_scope():
    """Columns of both want another order of dimensions, in which the smaller tile would have holes."""
    tile_set = from_data(data_of("""32 threads; families none order; target sm_90
        tile A: 32x8 f32
        tile B: 64x8 f32
        A: load 4 [lane, i]; i<8; tile A
        B: load 4 [lane, i]; i<8; tile B""", same_layout=[["A", "B"]]))  # fmt: skip
    found = solve(tile_set)
    assert (found.excess, found.proof.excess.scope) == (112, "families none")
    refused = solve(tile_set, conflict_free=True)
    assert (str(refused.status), "(families none)" in refused.reason) == ("infeasible", True)


STORED, COLUMNS = "rows: store 4 [i, lane]; i<32", "columns: load 4 [lane, i]; i<32"
FREE = "rows: store 8 [i*2 + lane // 16, lane % 16 * 2]; i<16; lanes free"
WIDE, SHORT = "rows: store 4|8|16 [lane, 0]", "columns: load 4 [lane, lane % 8]"


def alone_and_as_block(layout, first, second):
    """A tile, and the block of it alone."""
    columns = 8 if first is WIDE else 32
    alone = data_of(f"32x{columns} f32, 32 threads; name p{layout}", first, second)
    limits = {name: value for name, value in alone.get("layout", {}).items() if name == "max_bytes"}
    tiles = [{**alone["tile"], "name": "A", "layout": limits}]
    accesses = [{**access, "tile": "A"} for access in alone["accesses"]]
    block = {**{key: value for key, value in alone.items() if key != "tile"}, "tiles": tiles}
    return from_data(alone), from_data({**block, "accesses": accesses})


@pytest.mark.parametrize(
    ("layout", "first", "second"),
    [
        ("", STORED, COLUMNS),
        ("", FREE, COLUMNS),
        ("", WIDE, SHORT),
        ("; minimise bytes", STORED, COLUMNS),
        ("; minimise bytes; families none pad", STORED, COLUMNS),
        ("; minimise instructions; families none pad xor", STORED, COLUMNS),
        ("; minimise time", STORED, COLUMNS),
        ("; minimise time; max_bytes 4200", STORED, COLUMNS),
        ("; families none pad; max_bytes 4100", STORED, COLUMNS),
        ("; minimise bytes", FREE, f"{COLUMNS}; weight 3"),
    ],
)
def test_one_tile_is_a_block_of_one(layout, first, second):
    alone, block = alone_and_as_block(layout, first, second)
    expected, found = solve(alone, time_limit=20), solve(block, time_limit=20)
    (part,) = found.tiles
    got = found.excess, found.bytes, found.weighted_excess
    assert got == (expected.excess, expected.bytes, expected.weighted_excess)
    assert part.result.proof.index_cost.value == expected.proof.index_cost.value
    assert found.status is Status.OPTIMAL or expected.status is not Status.OPTIMAL
    assert found.proof.objective.lower_bound <= found.weighted_excess
    check_answer(block, GPU, found)
    assert "p_A_base" in code_of("cuda", placed(block, GPU, found))
    if first is WIDE:  # widths chosen for a tile are certified
        assert part.result.accesses == expected.accesses
        assert certificate(block, GPU, found)["bytes"] == found.bytes


def test_one_model_decides_several_tiles_too():
    _, block = alone_and_as_block("; families none pad xor", STORED, COLUMNS)
    found = solve(block, method="model", time_limit=20)
    assert (found.excess, found.bytes, found.tiles[0].result.method) == (0, 4096, "model")


TILE = "32 threads; name p\ntile A: 32x32 f32"
REFUSED = [
    ({**TWINS, "same_layout": [["A", "D"]]}, "same_layout[0][1]: no tile is called 'D'"),
    ({**TWINS, "same_layout": [["A", "B"], ["B", "C"]]}, "same_layout[1][0]: 'B' already stands in same_layout[0][1]"),
    ({**TWINS, "overlay": [["A"], ["B"]]}, "same_layout[0]: lists tiles side by side, and the overlay has them at several times"),
    ({**TWINS, "same_layout": [["A"]]}, "same_layout[0]: expected"),
    # Elements that nothing touches could be torn.
    ({**MIXED, "accesses": [{**MIXED["accesses"][0], "for": {"i": 7}}, MIXED["accesses"][1]]}, "tiles[0]: none touches element (0, 7)"),
    ({**MIXED, "tiles": [{"name": "acc", "shape": [32, 8], "element": {"bytes": 4, "align": 2}}, MIXED["tiles"][1]]}, "tiles[0].element: elements of several sizes"),
    ({**OPERANDS, "accesses": [*OPERANDS["accesses"], access_from("fill: tma.load; tile A")]}, "accesses[4]: tma.load needs tiles of one shape and element"),
    (data_of(f"{TILE}; minimise bytes\n{STORED}; tile A"), "tiles[0].layout.minimise: is asked of all tiles together"),
    (
        data_of(f"{TILE}\ntile B: 16x32 f16\n{FREE}; tile A\nb: store 2 [i, lane]; i<16; tile B", same_layout=[["A", "B"]]),
        "accesses[0].lanes: free ones need tiles of one shape",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("data", "error"), REFUSED)
def test_what_cannot_share_is_refused(data, error):
    with refused_with(error):
        solve(from_data(data))


def test_a_width_chosen_in_a_shared_layout_is_one_in_the_tile_that_has_it():
    """Halves and words share a layout in a budget that the pads of a row go beyond: it is solved again."""
    asked = from_data(data_of(
        """128 threads; name two
        tile A: 8x16 f16
        tile B: 8x16 f32; stages 2
        a: load 16 [tid // 2 % 8, tid % 2 * 8]; tile A
        b: load 16|8 [tid // 4 % 8, tid % 4 * 4]; tile B
        c: load 16 [tid % 8, tid // 8 % 4 * 4]; tile B""",
        same_layout=[["A", "B"]], layout={"max_bytes": 1536},
    ))  # fmt: skip
    rows = rows_of(compare(asked, time_limit=5))
    assert (rows["all"].bytes, rows["all"].excess) == (solve(asked).bytes, 0)
