"""Accesses as arrays and as bases: what they become, and that the lanes are those given."""

import itertools

import numpy as np
import pytest
from emit_programs import emit
from written import reads

from layoutopt.accesses.trace import trace
from layoutopt.errors import ExpressionError, ProblemFileError
from layoutopt.expressions.grammar import Lookup, evaluate, parse, to_text
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.study.check import check

GPU = device("sm_90")


def problem(*accesses, shape=(32, 32), threads=32, **more):
    data = {"name": "p", "tile": {"shape": list(shape), "element": "f32"}, "threads": threads}
    return from_data(data | {"accesses": list(accesses)} | more)


def access(coordinates, **more):
    return {"name": "a", "op": "load", "bytes": 4, "coordinates": coordinates} | more


def touched(found):
    """Coordinates and activity of the first access, by warp instruction and lane."""
    (lanes,) = trace(found, GPU).accesses
    return np.stack(np.unravel_index(lanes.element, found.tile.shape), axis=-1), lanes.active


def columns():
    lane, i = np.arange(32)[None, :], np.arange(32)[:, None]
    return np.stack(np.broadcast_arrays(lane, i), axis=-1)


def test_a_formula_where_there_is_one():
    found = problem(access(columns()))
    assert found.accesses[0].index == ("lane", "i")
    assert found.accesses[0].loops == {"i": 32}
    assert found.accesses[0].where is None
    assert problem(access(columns().tolist())) == found
    rows = problem(reads("a", 4, ["lane", "i"], i=32))
    assert rows == found


def test_a_table_where_there_is_none():
    random = np.random.default_rng(3)
    coordinates = random.integers(0, 32, (7, 32, 2))
    active = random.random((7, 32)) < 0.7
    found = problem(access(coordinates, active=active), threads=96)
    assert found.accesses[0].index[0].startswith("[")
    assert found.accesses[0].index[0].endswith("][tid + 96*i]")
    given, taking = touched(found)
    assert (taking[:7] == active).all()
    assert not taking[7:].any()
    assert (given[:7][active] == coordinates[active]).all()
    flat = coordinates @ [32, 1]
    banks = [
        np.unique(np.unique(row[on]) % 32, return_counts=True)[1]
        for row, on in zip(flat, active, strict=True)
    ]
    assert check(found, "x0*32 + x1").accesses[0].wavefronts == sum(counts.max() for counts in banks)
    code = emit("cuda", found, GPU, "x0*33 + x1")
    assert "no code for addresses of a: a table gives its lanes" in code
    assert "p_offset_bytes" in code


def test_instructions_are_those_of_the_first_warps():
    found = problem(access(columns()[:1]), threads=128)
    _, taking = touched(found)
    assert taking.tolist() == [[True] * 32] + [[False] * 32] * 3
    found = problem(access(columns()[:2]), threads=40)
    _, taking = touched(found)
    assert taking[1].tolist() == [True] * 8 + [False] * 24


def test_lanes_of_matrix_instructions_beyond_the_addresses_do_not_matter():
    rows = np.zeros((2, 32, 2), np.int64)
    rows[:, :, 0] = np.arange(32) % 16
    rows[1, :, 1] = 8
    rows[:, 16:] = -1
    found = problem({"name": "a", "op": "ldmatrix.x2", "coordinates": rows}, shape=(16, 32))
    given, taking = touched(found)
    assert taking.sum() == 32
    assert (given[taking] == rows[:, :16].reshape(-1, 2)).all()


def test_inactive_lanes_may_hold_anything():
    coordinates = columns()[:1].copy()
    coordinates[0, 5:] = -7
    found = problem(access(coordinates, active=[[lane < 5 for lane in range(32)]]))
    assert found.accesses[0].where == "lane < 5"


def test_bases_are_xored():
    bases = {
        "register": [[0, 1], [0, 2], [8, 0]],
        "lane": [[0, 4], [0, 8], [0, 16], [1, 0], [2, 4]],
        "warp": [[4, 0]],
    }
    data = {"name": "a", "op": "load", "bases": bases}
    found = problem(data, threads=64, shape=(16, 32))
    assert found.accesses[0].bytes == 16
    given, _ = touched(found)
    expected = set()
    for register, lane, warp in itertools.product(range(8), range(32), range(2)):
        bits = [(register, bases["register"]), (lane, bases["lane"]), (warp, bases["warp"])]
        point = [0, 0]
        for value, vectors in bits:
            for k, vector in enumerate(vectors):
                if value >> k & 1:
                    point = [a ^ b for a, b in zip(point, vector, strict=True)]
        if register % 4 == 0:
            expected.add((warp, lane, *point))
    rows = given.reshape(-1, 2, 32, 2)
    assert expected == {
        (w, k, *map(int, rows[i, w, k])) for i in range(2) for w in range(2) for k in range(32)
    }
    assert problem(data | {"bytes": 4}, threads=64, shape=(16, 32)).accesses[0].loops == {"i": 8}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coordinates": [[1, 2]]}, "accesses[0].coordinates: expected integers of shape (instructions, lanes, dimensions), got int64 of shape (1, 2)"),
        ({"coordinates": [[[1], [1, 2]]]}, "accesses[0].coordinates: expected integers"),
        ({"coordinates": [[[0.5, 1]] * 32]}, "accesses[0].coordinates: expected integers"),
        ({"coordinates": [[[0, 1]] * 31]}, "accesses[0].coordinates: expected 32 lanes on sm_90, got 31"),
        ({"coordinates": [[[0, 1, 2]] * 32]}, "accesses[0].coordinates: expected 2 coordinates for each lane, got 3"),
        ({"coordinates": [[[0, 1]] * 31 + [[0, 32]]]}, "accesses[0].coordinates[0][31][1]: x1 must lie in 0..31, not 32"),
        ({"active": [[0] * 32]}, "accesses[0].active: no lane with an address takes part"),
        ({"active": [[1] * 31]}, "accesses[0].active: expected shape (1, 32), as of coordinates, got (1, 31)"),
        ({"where": "tid < 5"}, "accesses[0]: object contains unknown field `where`"),
        ({"op": "laod"}, "accesses[0].op: unknown op 'laod'"),
        ({"coordinates": "x"}, "accesses[0].coordinates: expected integers"),
        ({"coordinates": None}, "accesses[0].coordinates: expected integers"),
    ],
)  # fmt: skip
def test_errors_name_the_place(change, message):
    with pytest.raises(ProblemFileError) as error:
        problem(access([[[0, 1]] * 32]) | change)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("bases", "message"),
    [
        ({"lane": [[0, 1]] * 4}, "accesses[0].bases.lane: expected 32 lanes on sm_90, got 16"),
        ({"lane": [[0, 1]] * 5, "warp": [[0, 1]]}, "accesses[0].bases.warp: the block has 32 threads, not 32 x 2"),
        ({"lane": [[0, 1]] * 4 + [[0]]}, "accesses[0].bases.lane[4]: expected 2 numbers of at least 0, got [0]"),
        ({"lane": [[0, 1]] * 4 + [[64, 0]]}, "accesses[0].bases: the layout leaves the tile [32, 32]"),
        ({"lanes": []}, "accesses[0].bases: object contains unknown field `lanes`"),
        ({"register": [[0, 1]] * 40}, "accesses[0].bases: at most 22 vectors"),
    ],
)  # fmt: skip
def test_errors_of_bases(bases, message):
    with pytest.raises(ProblemFileError) as error:
        problem({"name": "a", "op": "load", "bases": bases})
    assert str(error.value).startswith(message)


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
