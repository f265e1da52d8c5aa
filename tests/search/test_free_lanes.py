"""Lanes as a decision: what falls to nothing, what cannot, and that what is chosen does what was asked."""

import importlib.util
import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from written import access_from, data_of, reads, writes

import layoutopt
import layoutopt.search.free_lanes as free_module
import layoutopt.search.solve as solve_module
from layoutopt.cli.commands import main
from layoutopt.engine.case import case_of
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import OutOfTime
from layoutopt.hardware.devices import device
from layoutopt.problems.answer import Bound, Status
from layoutopt.search.proposal import Ask

SPEC = importlib.util.spec_from_file_location(
    "fuzz_free_lanes", Path(__file__).parents[2] / "scripts/fuzz/free_lanes.py"
)
fuzz = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fuzz)


def problem(accesses, shape=(32, 128), element="f32", threads=256, **more):
    tile = {"shape": list(shape), "element": element}
    return layoutopt.problem(name="free", tile=tile, threads=threads, accesses=accesses, **more)


ROWS = writes("rows", 16, ["tid//32 + 8*i", "4*(tid%32)"], i=4)


def drain(contiguous=32, **more):
    side = {"contiguous": contiguous, "order": "column"}
    return {"name": "columns", "op": "load", "bytes": 4, "lanes": "free", "global": side, **more}


@pytest.mark.parametrize(("contiguous", "excess"), [(32, 0), (64, 128), (128, 384)])
def test_columns_under_16_byte_rows(contiguous, excess):
    """With fixed lanes 384 in every layout; 8 lanes a column leave none, 16 and 32 cannot."""
    result = layoutopt.solve(problem([ROWS, drain(contiguous)]))
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, excess, 16384)
    assert result.proof.excess.lower_bound == excess
    assert result.proof.excess.everywhere


def test_values_in_an_order_of_their_own():
    """16 words of a thread, 4 lanes of a warp in each bank: free of conflicts when lanes take turns."""
    store = writes("store", 4, ["tid//2", "32*(tid%2) + 2*i"], i=16)
    rows = ["64*(warp%2) + 8*(i%8) + tid%8", "16*(i//8) + 8*((tid%16)//8)"]
    read = {"name": "read", "op": "ldmatrix.x2", "index": rows, "for": {"i": 32}}
    fixed = layoutopt.solve(problem([store, read], (128, 64), "f16"))
    assert (fixed.excess, fixed.bytes) == (384, 16384)
    result = layoutopt.solve(problem([{**store, "values": "free"}, read], (128, 64), "f16"))
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, 0, 16384)
    pieces = evaluated(result.accesses[0], 256)
    for tid in range(256):
        row, column = tid // 2, 32 * (tid % 2)
        assert sorted(map(tuple, pieces[:, tid])) == [(row, column + 2 * i) for i in range(16)]


def evaluated(report, threads):
    """Coordinates of every iteration and thread, by plain evaluation of the index."""
    names, trips = list(report.loops), list(report.loops.values())
    cells = []
    for at in np.ndindex(*trips):
        known = dict(zip(names, map(int, at), strict=True))
        cells.append([[eval(text, {}, {"tid": t, **known}) for text in report.index] for t in range(threads)])
    return np.array(cells)


@pytest.mark.parametrize(
    ("element", "bytes_", "size"), [("u8", 4, 64), ("f16", 4, 64), ("f32", 4, 32), ("f64", 8, 32), ("b128", 16, 32)]
)  # fmt: skip
def test_transposes_with_16_byte_global_accesses_on_both_sides(element, bytes_, size):
    result = layoutopt.solve(
        problem(
            [
                {"name": "in", "op": "store", "bytes": 16, "lanes": "free", "global": {"contiguous": 64}},
                {"name": "out", "op": "load", "bytes": bytes_, "lanes": "free",
                 "global": {"contiguous": 64, "order": "column", "bytes": 16}},
            ],
            (size, size), element, 64,
        )
    )  # fmt: skip
    assert (result.status, result.excess) == (Status.OPTIMAL, 0)
    elements = 16 * size * size // result.bytes  # of 16 bytes
    out = result.accesses[1]
    pieces = evaluated(out, 64)
    # What one thread moves in its steps is one run of 16 bytes down a column, or several side by side.
    steps = out.loops.get("j", 1)
    assert steps == elements
    for iteration in pieces.reshape(-1, steps, 64, 2).transpose(0, 2, 1, 3):
        for thread in iteration:
            assert (thread[:, 1] == thread[0, 1]).all()
            assert (thread[:, 0] == thread[0, 0] + np.arange(steps)).all()
            assert thread[0, 0] % steps == 0


@pytest.mark.parametrize("seed", [7, 50, 69, 78, 90, 140])
def test_random_fills_against_every_permutation_of_bits(seed):
    data = fuzz.random_problem(seed)
    asked = layoutopt.problem(data)
    result = layoutopt.solve(asked)
    assert fuzz.uncovered(data, asked, result) is None
    if result.excess:
        assert fuzz.best_permutation(data, 60) >= result.excess


@pytest.mark.parametrize(("seed", "cost"), [(410_000, 7), (410_008, 10), (410_015, 7), (410_023, 9)])
def test_of_lanes_without_conflicts_those_of_the_cheapest_index(seed, cost):
    """Consecutive threads at consecutive pieces, with a layout of their own."""
    result = layoutopt.solve(layoutopt.problem(fuzz.random_problem(seed)))
    assert (result.status, result.excess) == (Status.OPTIMAL, 0)
    assert result.proof.index_cost.value <= cost


def test_a_part_of_the_tile_by_a_part_of_the_block():
    access = drain(16, covers=[[8, 24], [32, 64]], threads=96, **{"for": {"k": 6}})
    result = layoutopt.solve(problem([ROWS, access]))
    pieces = evaluated(result.accesses[1], 256)
    where = result.accesses[1].where
    taking = [[bool(eval(where, {}, {"tid": t, "k": k})) for t in range(256)] for k in range(6)]
    covered = pieces[np.array(taking)]
    want = sorted((a, b) for a in range(8, 24) for b in range(32, 64))
    assert sorted(map(tuple, covered.tolist())) == want
    assert result.accesses[1].loops == {"k": 6}


def test_sizes_that_are_no_powers_of_two():
    access = {"name": "fill", "op": "store", "bytes": 16, "lanes": "free", "global": {"contiguous": 64}}
    read = reads("read", 4, ["tid", "4*i"], i=12, where="tid < 24")
    read["bytes"] = 16
    result = layoutopt.solve(problem([access, read], (24, 48), threads=96))
    assert (result.status, result.excess) == (Status.OPTIMAL, 0)
    pieces = evaluated(result.accesses[0], 96).reshape(-1, 2)
    assert len(np.unique(pieces, axis=0)) == 24 * 12


def transposed(contiguous):
    """A tile of doubles, filled by rows 16 bytes at a time, and left by columns."""
    fill = {**ROWS, "index": ["tid//32 + 8*i", "2*(tid%32)"], "for": {"i": 8}}
    return problem([fill, drain(contiguous, bytes=8)], (64, 64), "f64")


@pytest.mark.parametrize(("contiguous", "excess"), [(128, 0), (256, 256)])
def test_lanes_of_a_warp_change_places(contiguous, excess):
    """16 doubles of a column lie in 8 of 16 pairs of banks; those of two columns do not, 32 of one do."""
    result = layoutopt.solve(transposed(contiguous))
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, excess, 32768)
    assert result.proof.excess.everywhere
    assert result.proof.excess.lower_bound == excess
    warps = evaluated(result.accesses[1], 256).reshape(-1, 32, 2)
    for warp in warps:  # whole segments, whichever lane handles what
        for column in set(warp[:, 1].tolist()):
            rows = np.sort(warp[warp[:, 1] == column, 0])
            assert (rows.reshape(-1, contiguous // 8) % (contiguous // 8) == np.arange(contiguous // 8)).all()
    assert len(np.unique(warps.reshape(-1, 2), axis=0)) == 64 * 64


def test_lines_of_six_by_eight_threads():
    """A column of 96 bytes is six pieces of 16: 64 excess wavefronts where threads cover them one after the other."""
    fill = {"name": "in", "op": "store", "bytes": 16, "lanes": "free", "global": {"contiguous": 64}}
    out = {"name": "out", "op": "load", "bytes": 4, "lanes": "free",
           "global": {"contiguous": 64, "order": "column", "bytes": 16}}  # fmt: skip
    result = layoutopt.solve(problem([fill, out], (96, 96), "u8", 128))
    assert (result.excess, result.bytes) == (0, 9216)
    where = result.accesses[1].where
    assert "tid % 8 < 6" in where
    pieces = evaluated(result.accesses[1], 128)
    loops = result.accesses[1].loops
    taking = [
        [eval(where, {}, {"tid": t, **dict(zip(loops, map(int, at), strict=True))}) for t in range(128)]
        for at in np.ndindex(*loops.values())
    ]
    covered = pieces[np.array(taking, bool)]
    assert sorted(map(tuple, covered.tolist())) == [(a, b) for a in range(96) for b in range(0, 96, 4)]


def test_segments_in_two_warps_stay_with_consecutive_threads():
    """Five pieces a line: lanes of a warp cannot change places, for a line goes on in the next warp."""
    fill = {
        "name": "fill",
        "op": "store",
        "bytes": 16,
        "lanes": "free",
        "global": {"contiguous": 80},
        "for": {"k": 2},
    }
    asked = problem([fill], (48, 20), threads=160)
    assert layoutopt.check(asked, "x0*28 + x1").accesses[0].index == ("tid // 5 + k*32", "tid % 5 * 4")


# 18 pieces of 16 bytes in rows of 6.
ODD_FILL = data_of(
    "3x24 f32, 32 threads; name odd",
    {"name": "fill", "op": "store", "bytes": 16, "lanes": "free", "global": {"contiguous": 96}},
)
PITCH = "x0*52 + x1"


def test_lanes_by_a_table(tmp_path, monkeypatch):
    """Where no expression fits: 5 wavefronts with lanes in order, 3 with lanes looked up."""
    file, code = tmp_path / "p.json", tmp_path / "p.py"
    file.write_text(json.dumps(ODD_FILL))
    report = json.loads(run("check", file, "--offset", PITCH, "--json")[1])["accesses"][0]
    assert (report["wavefronts"], report["ideal"]) == (3, 3)
    out = run("check", file, "--offset", PITCH)[1]
    assert "18 entries, 36 bytes of global memory; a load to look one up" in out
    assert max(map(len, out.splitlines())) < 200
    jit = types.SimpleNamespace(jit=lambda device: lambda function: function)
    monkeypatch.setitem(sys.modules, "numba", types.SimpleNamespace(cuda=jit))
    assert run("emit", file, "--offset", PITCH, "--lang", "numba", "-o", code)[0] == 0
    module = {}
    exec(code.read_text(), module)
    met = set()
    for tid in range(32):
        place = [eval(text, {}, {"tid": tid}) for text in report["index"]]
        assert module["odd_fill_active"](tid) == eval(report["where"], {}, {"tid": tid})
        if module["odd_fill_active"](tid):
            met.add(tuple(place))
            assert module["odd_fill"](tid) == 52 * place[0] + place[1]
    assert met == {(row, 4 * piece) for row in range(3) for piece in range(6)}
    text = run("emit", file, "--offset", PITCH)[1]
    assert "constexpr unsigned short odd_fill_lanes_table[18] = {" in text


@pytest.mark.parametrize(("first", "wavefronts"), [("excess", 3), ("instructions", 5)])
def test_nothing_is_looked_up_where_instructions_come_first(first, wavefronts):
    asked = layoutopt.problem({**ODD_FILL, "layout": {"minimise": first}})
    assert layoutopt.check(asked, PITCH).accesses[0].wavefronts == wavefronts


ERRORS = [
    ({"op": "ldmatrix.x4", "bytes": 16}, "lanes: free lanes are for loads, stores and copies"),
    ({"global": {"contiguous": 48, "order": "column", "bytes": 16}, "bytes": 4}, None),
    ({"global": {"contiguous": 24, "order": "row"}, "bytes": 16}, "global.contiguous: segments of 24 bytes"),
    ({"global": {"order": "row"}, "order": "column"}, "order: is another"),
    ({"order": [0, 0]}, "order: expected row, column, or each of 0..1 once"),
    ({"covers": [[0, 33], [0, 4]]}, r"covers\[0\]: expected 0 <= first < end <= 32"),
    ({"covers": [[0, 32], [0, 6]], "bytes": 16}, "bytes: a thread moves 4 elements along dimension 1"),
    ({"threads": 512}, "threads: the block has 256 threads, not 512"),
    ({"for": {"i": 3}}, "for: 256 threads cover this in 16 iterations, not 3"),
    ({"index": ["tid % 32", "0"]}, "index: free lanes cover every element once"),
    ({"index": ["tid % 8 * 2", "tid // 8"]}, "index: free lanes cover a box"),
    ({"index": ["tid % 32", "tid // 32"], "bytes": [4, 8]}, "bytes: one width is expected"),
    ({"index": ["tid % 32", "v"], "any": {"v": 8}}, "any: no value is left to run time"),
    ({"index": ["tid % 32", "tid // 32 + 8*i"], "for": {"i": 2}, "weight": "i + 1"}, "weight: of an access"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "message"), ERRORS)
def test_what_cannot_be_free_is_refused(changed, message):
    access = {**drain(), **changed}
    if "order" in changed and "global" not in changed:
        access.pop("global")
    if message is None:
        assert layoutopt.solve(problem([ROWS, access])).layout is not None
        return
    with pytest.raises(ProblemFileError, match=message) as caught:
        layoutopt.solve(problem([ROWS, access]))
    assert str(caught.value).startswith("accesses[1].")


def test_global_side_without_free_lanes_is_refused():
    with pytest.raises(ProblemFileError, match=r"accesses\[0\].global: is for accesses with"):
        problem([{**ROWS, "global": {"contiguous": 128}}])


def test_orders_in_words_stand_in_templates():
    access = drain("C", covers=[[0, "M"], [0, "M"]])
    data = data_of("Mx128 f32, 256 threads", ROWS, access, name="t {M}")
    small, large = layoutopt.load_all({**data, "params": {"M": [32, 64], "C": [32]}})
    assert [p.accesses[1].loops for p in (small, large)] == [{"i": 4}, {"i": 16}]
    assert large.accesses[1].global_.contiguous == 32


def run(*arguments):
    outcome = CliRunner().invoke(main, list(map(str, arguments)))
    return outcome.exit_code, outcome.stdout + outcome.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A problem and its result."""
    folder = tmp_path_factory.mktemp("free")
    data = data_of("32x128 f32, 256 threads; name free", ROWS, drain())
    (folder / "p.json").write_text(json.dumps(data))
    code, out = run("solve", folder / "p.json", "--json")
    assert code == 0, out
    (folder / "r.json").write_text(out)
    return folder


def test_code_has_the_coordinates_that_threads_handle(files):
    code, out = run("emit", files / "r.json", "--problem", files / "p.json")
    assert code == 0
    assert re.search(r"free_columns_x0\(int tid, int i\)", out)
    report = json.loads((files / "r.json").read_text())["accesses"][1]
    assert f"// columns: lanes as chosen, [{', '.join(report['index'])}]" in out


def test_a_layout_that_is_given_gets_the_best_lanes(files):
    code, out = run("check", files / "p.json", "--offset", "x0*132 + x1", "--json")
    audit = json.loads(out)
    assert (code, audit["excess"]) == (0, 0)
    assert audit["accesses"][1]["index"]
    code, out = run("emit", files / "p.json", "--offset", "x0*132 + x1")
    assert code == 0
    assert "0 excess wavefronts" in out


def test_what_is_explained_and_drawn_names_the_lanes_chosen(files):
    index = ", ".join(json.loads((files / "r.json").read_text())["accesses"][1]["index"])
    for command in ("explain", "show", "compare"):
        code, out = run(command, files / "p.json")
        assert code == 0
        assert command == "compare" or f"`columns` at [{index}]" in " ".join(out.split())


def test_a_result_whose_lanes_do_something_else_is_refused(files):
    result = json.loads((files / "r.json").read_text())
    result["accesses"][1]["index"][0] = "tid % 8"
    (files / "wrong.json").write_text(json.dumps(result))
    outcome = CliRunner().invoke(
        main, ["emit", str(files / "wrong.json"), "--problem", str(files / "p.json")]
    )
    assert str(outcome.exception) == "index: of access 'columns' does not cover what the file's does"


def test_what_an_h200_counted():
    """Lanes that were chosen, run: values, wavefronts and conflicts; and what is chosen costs the same today."""
    record = json.loads((Path(__file__).parents[1] / "data/h200_free_lanes.json").read_text())
    assert len(record["accesses"]) >= 20
    for access in record["accesses"]:
        assert (access["values"], access["counted"]) == ("right", access["predicted"])
        assert access["counted"][1] == 0
    assert {t["bytes"] for t in record["transposes"]} == {1, 2, 4, 8, 16}
    assert not any(t["wrong"] or t["bank_conflicts"] for t in record["transposes"])
    columns = [a["predicted"] for a in record["accesses"] if a["problem"] == "drain_of_columns"]
    today = layoutopt.solve(problem([ROWS, drain()]))
    assert [[a.wavefronts, a.bank_conflicts] for a in today.accesses] == columns


@pytest.mark.parametrize("first", ["time", "instructions"])
def test_what_is_estimated_is_not_called_optimal(first):
    rows = {"name": "rows", "op": "store", "bytes": 8, "lanes": "free", "global": {"contiguous": 16}}
    read = reads("read", 4, ["tid % 8", "tid // 8 + 4*i"], i=2)
    result = layoutopt.solve(problem([rows, read], (8, 8), threads=32, layout={"minimise": first}))
    assert result.status is Status.FEASIBLE


def test_no_conflicts_wanted_where_none_can_be_avoided():
    result = layoutopt.solve(problem([ROWS, drain(128)]), conflict_free=True)
    assert (result.status, result.layout) == (Status.INFEASIBLE, None)


@pytest.mark.parametrize("over", [2, 3])
def test_what_is_found_stays_when_the_time_is_over(over, monkeypatch):
    """The call number `over` of the solver with fixed lanes begins too late."""
    calls, inner = [], solve_module.solve_cases

    def late(*given):
        calls.append(1)
        if len(calls) == over:
            raise OutOfTime
        return inner(*given)

    monkeypatch.setattr(solve_module, "solve_cases", late)
    rows = {**ROWS, "index": ["tid//3 % 6", "4*(tid % 3)"], "for": {}}
    first = reads("first", 4, ["lane % 6", "lane % 12"])
    few = problem([rows, first, drain(8)], (6, 12), threads=32, layout={"families": ["none", "pad"]})
    assert layoutopt.solve(few).layout is not None
    assert len(calls) >= 2


def test_lanes_are_free_under_a_layout_that_the_hardware_dictates():
    copy, columns = access_from("fill: tma.load"), {**drain(16), "bytes": 2}
    given = problem(
        [copy, columns], (16, 64), "f16", 128, target="sm_90a", layout={"minimise": "instructions"}
    )
    assert layoutopt.solve(given).layout is not None


def test_half_a_wavefront_proves_no_bytes():
    """Half a wavefront of the segments is one of any assignment; smaller layouts may have one, too."""
    asked = problem([drain(64)])
    result = layoutopt.solve(asked)
    joint = free_module._Joint(asked, device("sm_90"), Ask(), solve_module._fixed)
    assert joint.scale == 2
    proof = replace(result.proof, excess=Bound(1, "families none"), bytes=Bound(10**6, "families none"))
    case = case_of(joint.natural, device("sm_90"))
    found = joint._proposal(case, result.layout, 1, result, replace(result, proof=proof))
    assert (found.excess_bound.lower_bound, found.bytes_bound.lower_bound) == (1, 16384)


@pytest.mark.parametrize(
    ("layout", "fill"), [({}, [access_from("ld: tma.load")]), ({"must_be": "tma.64B"}, [])]
)
def test_the_base_is_aligned_as_the_hardware_needs_it_where_lanes_are_free(layout, fill):
    """Eight rows of a swizzle of 64 bytes, whoever executes the other accesses."""
    rows = access_from("rows: store 16 [tid // 4, 8*(tid % 4)]; lanes free")
    read = reads("r", 2, ["tid % 16", "i"], i=2)
    data = data_of("16x32 f16, 64 threads", rows, read, *fill, layout=layout)
    result = layoutopt.solve(layoutopt.problem(data), time_limit=5)
    assert (result.family.partition(",")[0], result.alignment_bytes) == ("tma.64B", 512)
