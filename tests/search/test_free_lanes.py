"""Lanes as a decision: what falls to nothing, what cannot, and that what is chosen does what was asked."""

import json
import re
import sys
import types

import free_lanes as fuzz
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT
from msgspec.structs import replace
from written import access_from, constrained, data_of, problem_of, refused_with, saved

import layoutopt
import layoutopt.search.choices as free_module
import layoutopt.search.solve as solve_module
from layoutopt.accesses.assignments import work_of
from layoutopt.cli.commands import main
from layoutopt.engine.case import case_of, check_claims
from layoutopt.errors import ProblemFileError
from layoutopt.files.result_file import answer_from_data
from layoutopt.ground.budget import OutOfTime
from layoutopt.hardware.devices import device
from layoutopt.problems.answer import Bound, Status
from layoutopt.search.proposal import Ask, Found


def problem(accesses, shape=(32, 128), element="f32", threads=256, **more):
    tile = {"shape": list(shape), "element": element}
    return layoutopt.problem(name="free", tile=tile, threads=threads, accesses=accesses, **more)


ROWS = access_from("rows: store 16 [tid//32 + 8*i, 4*(tid%32)]; i<4")
FREE_FILL = {"name": "fill", "op": "store", "bytes": 16, "lanes": "free"}


def fill(contiguous=64, **more):
    return {**FREE_FILL, "global": {"contiguous": contiguous}, **more}


def drain(contiguous=32, bytes=4, global_bytes=None, **more):
    side = {"contiguous": contiguous, "order": "column"} | ({"bytes": global_bytes} if global_bytes else {})
    return {"name": "columns", "op": "load", "bytes": bytes, "lanes": "free", "global": side, **more}


# 8 lanes a column leave no conflicts, 16 and 32 cannot; with fixed lanes 384 in every layout. 16 doubles of a column
# lie in 8 of 16 pairs of banks; those of two columns do not, 32 of one do.
@pytest.mark.parametrize(
    ("size", "contiguous", "excess"), [(4, 32, 0), (4, 64, 128), (4, 128, 384), (8, 128, 0), (8, 256, 256)]
)
def test_columns_under_16_byte_rows(size, contiguous, excess):
    rows = {**ROWS, "index": ["tid//32 + 8*i", f"{16 // size}*(tid%32)"], "for": {"i": size}}
    shape, element = ((32, 128), "f32") if size == 4 else ((64, 64), "f64")
    result = layoutopt.solve(problem([rows, drain(contiguous, size)], shape, element))
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, excess, 4096 * size)
    assert (result.proof.excess.lower_bound, result.proof.excess.everywhere) == (excess, True)
    run = contiguous // size
    warps = evaluated(result.accesses[1], 256).reshape(-1, 32, 2)
    for warp in warps:  # whole segments, whichever lane handles what
        for column in set(warp[:, 1].tolist()):
            at = np.sort(warp[warp[:, 1] == column, 0])
            assert (at.reshape(-1, run) % run == np.arange(run)).all()
    assert len(np.unique(warps.reshape(-1, 2), axis=0)) == 4096


def test_values_in_an_order_of_their_own():
    """16 words of a thread, 4 lanes of a warp in each bank: free of conflicts when lanes take turns."""
    store = access_from("store: store 4 [tid//2, 32*(tid%2) + 2*i]; i<16")
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
    rows = envs(report, threads)
    return np.array([[[eval(text, {}, env) for text in report.index] for env in row] for row in rows])


def envs(report, threads):
    for at in np.ndindex(*report.loops.values()):
        known = dict(zip(report.loops, map(int, at), strict=True))
        yield [{"tid": tid, **known} for tid in range(threads)]


def covered(report, threads):
    """What its threads handle where they take part."""
    taking = [[bool(eval(report.where, {}, env)) for env in row] for row in envs(report, threads)]
    return sorted(map(tuple, evaluated(report, threads)[np.array(taking)].tolist()))


@pytest.mark.parametrize(
    ("element", "width", "size"), [("u8", 4, 64), ("f16", 4, 64), ("f32", 4, 32), ("f64", 8, 32), ("b128", 16, 32)]
)  # fmt: skip
def test_transposes_with_16_byte_global_accesses_on_both_sides(element, width, size):
    result = layoutopt.solve(problem([fill(), drain(64, width, 16)], (size, size), element, 64))
    assert (result.status, result.excess) == (Status.OPTIMAL, 0)
    out = result.accesses[1]
    # What one thread moves in its steps is one run of 16 bytes down a column, or several side by side.
    steps = out.loops.get("j", 1)
    assert steps == 16 * size * size // result.bytes
    pieces = evaluated(out, 64).reshape(-1, steps, 64, 2)
    assert (pieces[..., 1] == pieces[:, :1, :, 1]).all()
    assert (pieces[..., 0] == pieces[:, :1, :, 0] + np.arange(steps)[:, None]).all()
    assert (pieces[:, 0, :, 0] % steps == 0).all()


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
    report = layoutopt.solve(problem([ROWS, access])).accesses[1]
    assert covered(report, 256) == sorted((a, b) for a in range(8, 24) for b in range(32, 64))
    assert report.loops == {"k": 6}


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("freedom", ["lanes", "values"])
def test_beside_vectors_along_another_dimension(given, freedom):
    """The layout lies over the tile's coordinates where threads are chosen, and over the search's where it is costed."""
    store = {**access_from("store: store 4 [i, tid]; i<32"), "instructions": "free"}
    if given:
        store = {**access_from("store: store 16 [4*i, tid]; i<8"), "vector": [[1, 0], [2, 0]]}
    load = {**access_from("load: load 4 [i, tid]; i<32"), freedom: "free"}
    asked = problem([store, load], (32, 32), threads=32)
    result = layoutopt.solve(asked)
    assert (result.excess, result.bytes) == (0, 4096)
    assert sum(access.wavefronts for access in result.accesses) == 64
    check_claims(asked, device("sm_90"), answer_from_data(result.to_json()))


def test_sizes_that_are_no_powers_of_two():
    read = access_from("read: load 16 [tid, 4*i]; i<12; where tid < 24")
    result = layoutopt.solve(problem([fill(), read], (24, 48), threads=96))
    assert (result.status, result.excess) == (Status.OPTIMAL, 0)
    assert len(np.unique(evaluated(result.accesses[0], 96).reshape(-1, 2), axis=0)) == 24 * 12


def test_lines_of_six_by_eight_threads():
    """A column of 96 bytes is six pieces of 16: 64 excess wavefronts where threads cover them one after the other."""
    result = layoutopt.solve(problem([fill(), drain(64, 4, 16)], (96, 96), "u8", 128))
    assert (result.excess, result.bytes) == (0, 9216)
    assert "tid % 8 < 6" in result.accesses[1].where
    assert covered(result.accesses[1], 128) == [(a, b) for a in range(96) for b in range(0, 96, 4)]


def test_segments_in_two_warps_stay_with_consecutive_threads():
    """Five pieces a line: lanes of a warp cannot change places, for a line goes on in the next warp."""
    asked = problem([fill(80, **{"for": {"k": 2}})], (48, 20), threads=160)
    assert layoutopt.check(asked, "x0*28 + x1").accesses[0].index == ("tid // 5 + k*32", "tid % 5 * 4")


@pytest.mark.parametrize("global_bytes", [4, 8, 16])
def test_segments_are_counted_in_what_a_thread_moves(global_bytes):
    """32 bytes that lie together are two pieces of 16 bytes, however narrow the accesses that read them."""
    side = {"bytes": global_bytes, "contiguous": 32, "order": "row"}
    asked = problem([FREE_FILL | {"global": side}], (32, 32), threads=64)
    assert work_of(asked, 0, device("sm_90"))[0].segment == 2


ODD_FILL = data_of("3x24 f32, 32 threads; name odd", fill(96))
PITCH = "x0*52 + x1"


def test_lanes_by_a_table(tmp_path, monkeypatch):
    """Where no expression fits: 5 wavefronts with lanes in order, 3 with lanes looked up."""
    file, code = saved(tmp_path, "p.json", ODD_FILL), tmp_path / "p.py"
    report = json.loads(run("check", file, "--offset", PITCH, "--json"))["accesses"][0]
    assert (report["wavefronts"], report["ideal"]) == (3, 3)
    out = run("check", file, "--offset", PITCH)
    assert "18 entries, 36 bytes of global memory; a load to look one up" in out
    assert max(map(len, out.splitlines())) < 200
    assert "constexpr unsigned short odd_fill_lanes_table[18] = {" in run("emit", file, "--offset", PITCH)
    run("emit", file, "--offset", PITCH, "--lang", "numba", "-o", code)
    jit = types.SimpleNamespace(jit=lambda device: lambda function: function)
    monkeypatch.setitem(sys.modules, "numba", types.SimpleNamespace(cuda=jit))
    module, met = {}, set()
    exec(code.read_text(), module)
    for tid in range(32):
        row, column = (eval(text, {}, {"tid": tid}) for text in report["index"])
        assert module["odd_fill_active"](tid) == eval(report["where"], {}, {"tid": tid})
        if module["odd_fill_active"](tid):
            met.add((row, column))
            assert module["odd_fill"](tid) == 52 * row + column
    assert met == {(row, 4 * piece) for row in range(3) for piece in range(6)}


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
    (
        {"index": ["4*(tid%8)", "tid//8"], "bytes": 16, "vector": [[1, 0], [2, 0]], "global": {"order": "row"}},
        "vector: runs along the last dimension where lanes are free",
    ),
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
    with refused_with("accesses[0].global: is for accesses with"):
        problem([{**ROWS, "global": {"contiguous": 128}}])


def run(*arguments):
    outcome = CliRunner().invoke(main, list(map(str, arguments)))
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout + outcome.stderr


def test_every_command_has_the_lanes_chosen(tmp_path):
    path = saved(tmp_path, "p.json", data_of("32x128 f32, 256 threads; name free", ROWS, drain()))
    solved = run("solve", path, "--json")
    (tmp_path / "r.json").write_text(solved)
    index = ", ".join(json.loads(solved)["accesses"][1]["index"])
    code = run("emit", tmp_path / "r.json", "--problem", path)
    assert re.search(r"free_columns_x0\(int tid, int i\)", code)
    assert f"// columns: as chosen, [{index}]" in code
    run("compare", path)
    for command in ("explain", "show"):
        assert f"`columns` at [{index}]" in " ".join(run(command, path).split())
    # A layout that is given gets the best lanes, and a result whose lanes do something else is refused.
    audit = json.loads(run("check", path, "--offset", "x0*132 + x1", "--json"))
    assert (audit["excess"], bool(audit["accesses"][1]["index"])) == (0, True)
    assert "0 excess wavefronts" in run("emit", path, "--offset", "x0*132 + x1")
    other = json.loads(solved)
    other["accesses"][1]["index"][0] = "tid % 8"
    wrong = saved(tmp_path, "wrong.json", other)
    error = CliRunner().invoke(main, ["emit", str(wrong), "--problem", str(path)]).exception
    assert str(error) == "index: of access 'columns' does not cover what the file's does"


def test_orders_in_words_stand_in_templates():
    access = drain("C", covers=[[0, "M"], [0, "M"]])
    data = data_of("Mx128 f32, 256 threads", ROWS, access, name="t {M}")
    small, large = layoutopt.load_all({**data, "params": {"M": [32, 64], "C": [32]}})
    assert [p.accesses[1].loops for p in (small, large)] == [{"i": 4}, {"i": 16}]
    assert large.accesses[1].global_.contiguous == 32


def test_what_an_h200_counted():
    """Lanes that were chosen, run: values, wavefronts and conflicts; and what is chosen costs the same today."""
    record = json.loads((ROOT / "tests/data/h200_free_lanes.json").read_text())
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
    rows = fill(16, bytes=8)
    read = access_from("read: load 4 [tid % 8, tid // 8 + 4*i]; i<2")
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
    first = access_from("first: load 4 [lane % 6, lane % 12]")
    few = problem([rows, first, drain(8)], (6, 12), threads=32, layout={"families": ["none", "pad"]})
    assert layoutopt.solve(few).layout is not None
    assert len(calls) >= 2


def test_lanes_are_free_under_a_layout_that_the_hardware_dictates():
    """Eight rows of a swizzle of 64 bytes, whoever executes the other accesses; so is the base aligned."""
    asked = problem_of("""16x32 f16, 64 threads; target sm_90a
        rows: store 16 [tid // 4, 8*(tid % 4)]; lanes free
        r: load 2 [tid % 16, i]; i<2
        ld: tma.load""")
    result = layoutopt.solve(asked, time_limit=5)
    assert (result.family.partition(",")[0], result.alignment_bytes) == ("tma.64B", 512)
    first = constrained(asked, minimise="instructions")
    assert layoutopt.solve(first, time_limit=5).layout is not None


def test_half_a_wavefront_proves_no_bytes():
    """Half a wavefront of the segments is one of any assignment; smaller layouts may have one, too."""
    asked = problem([drain(64)])
    result = layoutopt.solve(asked)
    joint = free_module._Lanes(asked, device("sm_90"), Ask())
    assert joint.lanes.scale == 2
    proof = replace(result.proof, excess=Bound(1, "families none"), bytes=Bound(10**6, "families none"))
    case = case_of(joint.natural, device("sm_90"))
    layout = Found(result.layout, "none", weighted_excess=1, bytes=result.bytes)
    found = joint._proposal(case, layout, result, replace(result, proof=proof))
    assert (found.excess_bound.lower_bound, found.bytes_bound.lower_bound) == (1, 16384)


def test_lanes_are_free_beside_an_access_whose_width_is_open():
    found = layoutopt.solve(problem_of(
        "48x8 f16, 96 threads", "a: load 16|8 [tid % 48, 0]; where tid < 48",
        {"name": "b", "op": "load", "bytes": 16, "lanes": "free", "global": {"contiguous": 32, "order": "column"}},
    ))  # fmt: skip
    assert (found.status, found.excess, found.accesses[0].bytes) == (Status.OPTIMAL, 0, 16)
