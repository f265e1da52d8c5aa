"""Accesses as arrays and as bases: what they become, and that the lanes are those given."""

import numpy as np
import pytest
from emit_programs import emit
from oracle.conversions import element
from written import one_tile, problem_of, refused_with

import layoutopt
from layoutopt.accesses.trace import trace
from layoutopt.errors import ExpressionError
from layoutopt.expressions.grammar import Lookup, evaluate, parse, to_text
from layoutopt.hardware.devices import device
from layoutopt.study.check import check

GPU = device("sm_90")


def problem(*accesses, tile="32x32 f32", threads=32):
    return problem_of(f"{tile}, {threads} threads; name p", *accesses)


def access(coordinates, **more):
    return {"name": "a", "op": "load", "bytes": 4, "coordinates": coordinates, **more}


def touched(found):
    """Coordinates and activity of the first access, by warp instruction and lane."""
    (lanes,) = trace(found, GPU).accesses
    return np.stack(np.unravel_index(lanes.element, found.tile.shape), axis=-1), lanes.active


def columns():
    return np.stack(np.indices((32, 32))[::-1], axis=-1)


def test_a_formula_where_there_is_one():
    found = problem(access(columns()))
    (asked,) = found.accesses
    assert (asked.index, asked.loops, asked.where) == (("lane", "i"), {"i": 32}, None)
    assert found == problem(access(columns().tolist())) == problem("a: load 4 [lane, i]; i<32")


def test_a_table_where_there_is_none():
    random = np.random.default_rng(3)
    coordinates = random.integers(0, 32, (7, 32, 2))
    active = random.random((7, 32)) < 0.7
    found = problem(access(coordinates, active=active), threads=96)
    text = found.accesses[0].index[0]
    assert (text[0], text[-13:]) == ("[", "][tid + 96*i]")
    given, taking = touched(found)
    assert (taking[:7] == active).all()
    assert not taking[7:].any()
    assert (given[:7][active] == coordinates[active]).all()
    rows = zip(coordinates @ [32, 1], active, strict=True)
    banks = [np.unique(np.unique(row[on]) % 32, return_counts=True)[1].max() for row, on in rows]
    assert check(found, "x0*32 + x1").accesses[0].wavefronts == sum(banks)
    code = emit("cuda", found, GPU, "x0*33 + x1")
    assert "no code for addresses of a: a table gives its lanes" in code
    assert "p_offset_bytes" in code


def test_instructions_are_those_of_the_first_warps():
    _, taking = touched(problem(access(columns()[:1]), threads=128))
    assert taking.tolist() == [[True] * 32] + [[False] * 32] * 3
    _, taking = touched(problem(access(columns()[:2]), threads=40))
    assert taking[1].tolist() == [True] * 8 + [False] * 24


def test_lanes_of_matrix_instructions_beyond_the_addresses_do_not_matter():
    rows = np.zeros((2, 32, 2), np.int64)
    rows[:, :, 0] = np.arange(32) % 16
    rows[1, :, 1] = 8
    rows[:, 16:] = -1
    access = {"name": "a", "op": "ldmatrix.x2", "coordinates": rows}
    given, taking = touched(problem(access, tile="16x32 f32"))
    assert taking.sum() == 32
    assert (given[taking] == rows[:, :16].reshape(-1, 2)).all()


@pytest.mark.parametrize("name", ["coordinates", "active", "accesses"])
def test_loops_may_be_called_as_what_is_read_as_arrays(name):
    loop = {"name": "a", "op": "load", "bytes": 4, "index": [name, "tid"], "for": {name: 4}}
    assert layoutopt.problem(one_tile("p", [4, 32], "f32", 32, [loop])).accesses[0].loops == {name: 4}


def test_inactive_lanes_may_hold_anything():
    coordinates = columns()[:1].copy()
    coordinates[0, 5:] = -7
    found = problem(access(coordinates, active=[[lane < 5 for lane in range(32)]]))
    assert found.accesses[0].where == "lane < 5"


def test_bases_are_xored():
    bases = {"register": [[0, 1], [0, 2], [8, 0]], "warp": [[4, 0]]}
    bases["lane"] = [[0, 4], [0, 8], [0, 16], [1, 0], [2, 4]]
    data = {"name": "a", "op": "load", "bases": bases}
    found = problem(data, threads=64, tile="16x32 f32")
    assert found.accesses[0].bytes == 16
    rows = touched(found)[0].reshape(-1, 2, 32, 2)
    got = {(w, k, *map(int, rows[i, w, k])) for i, w, k in np.ndindex(2, 2, 32)}
    assert got == {(w, k, *element(bases, r, k, w)) for r, k, w in np.ndindex(8, 32, 2) if r % 4 == 0}
    single = problem({**data, "bytes": 4}, threads=64, tile="16x32 f32")
    assert single.accesses[0].loops == {"i": 8}


def test_elements_that_no_access_moves_whole_need_a_width():
    data = {"name": "a", "op": "load", "bases": {"lane": [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0]]}}
    with refused_with("accesses[0].bytes: no access moves whole elements of 12 bytes"):
        problem(data, tile="2x16 float3")
    assert problem({**data, "bytes": 4}, tile="2x16 float3").accesses[0].bytes == 4


GIVEN = access([[[0, 1]] * 32])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**GIVEN, "coordinates": [[1, 2]]}, ".coordinates: expected integers of shape (instructions, lanes, dimensions), got int64 of shape (1, 2)"),
        ({**GIVEN, "coordinates": [[[1], [1, 2]]]}, ".coordinates: expected integers"),
        ({**GIVEN, "coordinates": [[[0.5, 1]] * 32]}, ".coordinates: expected integers"),
        ({**GIVEN, "coordinates": [[[0, 1]] * 31]}, ".coordinates: expected 32 lanes on sm_90, got 31"),
        ({**GIVEN, "coordinates": [[[0, 1, 2]] * 32]},
         ".coordinates: expected 2 coordinates for each lane, got 3"),
        ({**GIVEN, "coordinates": [[[0, 1]] * 31 + [[0, 32]]]},
         ".coordinates[0][31][1]: x1 must lie in 0..31, not 32"),
        ({**GIVEN, "active": [[0] * 32]}, ".active: no lane with an address takes part"),
        ({**GIVEN, "active": [[1] * 31]}, ".active: expected shape (1, 32), as of coordinates, got (1, 31)"),
        ({**GIVEN, "op": "laod"}, ".op: unknown op 'laod'"),
        ({**GIVEN, "coordinates": "x"}, ".coordinates: expected integers"),
        ({**GIVEN, "coordinates": None}, ".coordinates: expected integers"),
        ({**GIVEN, "where": "tid < 5"}, ": object contains unknown field `where`"),
        ({"bases": {"lane": [[0, 1]] * 4}}, ".bases.lane: 32 threads are 1 warps of 32 lanes, not 1 of 16"),
        ({"bases": {"lane": [[0, 1]] * 5, "warp": [[0, 1]]}},
         ".bases.warp: 32 threads are 1 warps of 32 lanes, not 2 of 32"),
        ({"bases": {"lane": [[0, 1]] * 4 + [[0]]}},
         ".bases.lane[4]: expected coordinates in [32, 32], got [0]"),
        ({"bases": {"lane": [[0, 1]] * 4 + [[64, 0]]}}, ".bases.lane[4]: expected coordinates in [32, 32], got [64, 0]"),
        ({"bases": {"lanes": []}}, ".bases: object contains unknown field `lanes`"),
        ({"bases": {"register": [[0, 1]] * 40}}, ".bases: at most 22 vectors"),
    ],
)  # fmt: skip
def test_errors_name_the_place(fields, message):
    with refused_with(f"accesses[0]{message}"):
        problem({"name": "a", "op": "load", **fields})


def test_tables_in_expressions():
    node = parse("[3, -1, 0x10][tid % 3] + [7][0]", frozenset(("tid",)))
    assert isinstance(node.args[0], Lookup)
    assert to_text(node) == "[3, -1, 16][tid % 3] + [7][0]"
    assert evaluate(node, {"tid": np.arange(4)}).tolist() == [10, 6, 23, 10]
    long = f"[{', '.join(map(str, range(60_000)))}][tid]"
    assert parse(long, frozenset(("tid",))).values[-1] == 59_999
    for text, message in (
        ("[1, x][0]", "something else than integers"),
        ("[1, True][0]", "something else than integers"),
        ("[][0]", "is not allowed"),
        ("x[0]", "is not allowed"),
        ("[1, 2]", "is not allowed"),
        (f"[{'1,' * 70_000}][0]", "have more than 65,536 entries"),
        (f"[{'1, ' * 500_000}][0]", "has at most 4000 characters"),
    ):
        with pytest.raises(ExpressionError, match=message):
            parse(text, frozenset(("tid",)))
    with pytest.raises(ExpressionError, match=r"an entry outside 0\.\.1"):
        evaluate(parse("[1, 2][tid]", frozenset(("tid",))), {"tid": np.arange(3)})
