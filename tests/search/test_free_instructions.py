"""Instructions and widths that are left to the solver: against an exhaustive search, and on tiles that people have."""

import functools
import itertools
import json
import random

import numpy as np
import pytest
from conftest import ROOT
from emit_programs import GXX, built, emit
from hypothesis import given
from hypothesis import strategies as st
from oracle import toy
from oracle.banks import busiest
from written import access_from, data_of, problem_of, refused_with, rows_of

import layoutopt
from layoutopt import Status, check, compare, explain, problem, solve
from layoutopt.accesses.instructions import check_instructions
from layoutopt.accesses.lower import assigned
from layoutopt.accesses.view import Step, view_along
from layoutopt.engine.case import case_of, check_claims
from layoutopt.errors import ProblemFileError
from layoutopt.files.result_file import answer_from_data
from layoutopt.ground.budget import OutOfTime, current
from layoutopt.hardware.devices import WAVEFRONTS, device
from layoutopt.layout.layout import row_major
from layoutopt.report import comparison_text
from layoutopt.report.explanation_text import explanation_report
from layoutopt.search.solve import cases
from layoutopt.search.verify import verified
from layoutopt.study.check import AuditStatus
from layoutopt.study.show import views

# name -> tile and accesses; what becomes of the free ones (op, bytes, steps of a vector), and all wavefronts
KNOWN = {
    # Eight values of a column in eight loads: the tile is transposed, and two loads of 16 bytes do.
    "sgemm": (
        "128x8 f32, 256 threads", ["fill: store 4 [tid // 8 + 32*i, tid % 8]; i<4"],
        ["read: load 4 [tid // 16 * 8 + i, k]; k<8, i<8"], ["i"],
        [("load", 16, ((1, 0), (2, 0)))], 288,
    ),
    "mma A": (
        "64x64 f16, 128 threads", ["fill: store 16 [tid // 8 + 16*i, tid % 8 * 8]; i<4"],
        ["a: load 4 [warp*16 + lane // 4 + 8*i, 16*k + lane % 4 * 2 + 8*j]; k<4, j<2, i<2"], "free",
        [("ldmatrix.x4", None, None)], 128,
    ),
    "mma B": (
        "64x64 f16, 128 threads", ["fill: store 16 [tid // 8 + 16*i, tid % 8 * 8]; i<4"],
        ["b: load 2 [16*k + lane % 4 * 2 + h + 8*j, 8*n + lane // 4]; k<4, n<8, j<2, h<2"], "free",
        [("ldmatrix.x4.trans", None, None)], 320,
    ),
    "transpose": (
        "32x32 f32, 256 threads", [],
        ["w: store 4 [tid // 32 + 8*i, tid % 32]; i<4", "r: load 4 [tid % 32, tid // 32 + 8*i]; i<4"], "free",
        [("store", 4, None), ("load", 16, ((0, 8), (0, 16)))], 64,
    ),
    "transpose of vectors": (
        "64x64 f16, 256 threads", [],
        ["w: store 2 [tid // 8 + 32*i, tid % 8 * 8 + j]; i<2, j<8",
         "r: load 2 [tid % 8 * 8 + j, tid // 8 + 32*i]; i<2, j<8"], "free",
        [("stmatrix.x4.trans", None, ((0, 32), (1, 0), (2, 0))), ("load", 16, ((0, 32), (1, 0), (2, 0)))], 128,
    ),
}  # fmt: skip


def freed(text, fixed, free, loops="free", **fields):
    data = data_of(text, *fixed, *free, **fields)
    for access in data["accesses"][len(fixed) :]:
        access["instructions"] = loops
    return data


@pytest.mark.parametrize("name", KNOWN)
def test_what_people_have(name):
    text, fixed, free, loops, expected, wavefronts = KNOWN[name]
    asked = problem(freed(text + "; target sm_90", fixed, free, loops))
    found = solve(asked)
    chosen = [(a.op, a.bytes, a.vector) for a in found.accesses if a.index is not None]
    assert (chosen, sum(a.wavefronts for a in found.accesses)) == (expected, wavefronts)
    assert (found.status, found.bytes, found.excess) == ("optimal", asked.tile.bytes, 0)
    assert found.proof.wavefronts.lower_bound == wavefronts
    # Read again, the claims hold, and every command takes the answer.
    check_claims(asked, device("sm_90"), answer_from_data(found.to_json()))
    assert sum(a.wavefronts for a in check(assigned(asked, found), found).accesses) == wavefronts
    assert "reinterpret_cast" in layoutopt.emit(asked, found)
    rows = [row.wavefronts for row in compare(asked, time_limit=9).rows]
    assert min(row for row in rows if row is not None) >= wavefronts
    assert explain(asked, time_limit=2).offset == found.offset


# Against all there is ------------------------------------------------------------------------------


def fewest(held, place, lanes, banks):
    """Fewest wavefronts of any list of instructions of one warp that move what its lanes hold, by lane.

    An instruction moves one element of each lane that takes part, or two that lie in 8 aligned bytes.
    """
    rules = toy.rules(lanes, banks)

    def pieces(left, count):
        if count == 1:
            return [(e,) for e in left]
        pairs = itertools.permutations(left, 2)
        return [(a, b) for a, b in pairs if place[a] % 2 == 0 and place[b] == place[a] + 1]

    @functools.cache
    def least(left):
        if not any(left):
            return 0
        found = []
        for width in (4, 8):
            rule = rules["load", width]
            options = [[None, *pieces(own, width // 4)] for own in left]
            for taken in itertools.product(*options):
                if not any(taken):
                    continue
                cost = 0
                for phase in rule.phases:
                    words = [place[e] for n in phase if taken[n] for e in taken[n]]
                    cost += busiest(words, rule)[0] if words else 0
                rest = tuple(own - frozenset(piece or ()) for own, piece in zip(left, taken, strict=True))
                found.append(cost + least(rest))
        return min(found)

    return least(tuple(map(frozenset, held)))


@pytest.mark.parametrize("seed", range(10))
def test_no_layout_and_no_instructions_are_better(seed):
    """On tiles of at most eight words, every placement with its best instructions."""
    rng = random.Random(seed)
    lanes = 2
    banks, shape = rng.choice([(2, (2, 2)), (4, (2, 3)), (2, (1, 4)), (2, (4, 2)), (4, (2, 4))])
    count = shape[0] * shape[1]
    elements = list(range(count))
    accesses = []
    for op in ("store", "load"):
        rng.shuffle(elements)
        each = count // lanes
        held = [sorted(elements[k * each : (k + 1) * each]) for k in range(lanes)]
        accesses.append((op, held))
    gpu = toy.toy_device(lanes, banks)
    data = {"name": "t", "target": gpu.name, "threads": lanes, "tile": {"shape": list(shape), "element": "f32"},
            "accesses": [
        {"name": op, "op": op, "bytes": 4, "instructions": "free",
         "index": [f"{[e // shape[1] for own in held for e in own]}[{len(held[0])}*tid + i]",
                   f"{[e % shape[1] for own in held for e in own]}[{len(held[0])}*tid + i]"],
         "for": {"i": len(held[0])}} for op, held in accesses]}  # fmt: skip
    found = solve(problem(data), target=gpu)
    taken = sum(a.wavefronts for a in found.accesses)
    assert found.proof.wavefronts.lower_bound <= taken
    placements = itertools.permutations(range(count))
    if count > 6:
        placements = (tuple(rng.sample(range(count), count)) for _ in range(60))
    best = min(sum(fewest(held, p, lanes, banks) for _, held in accesses) for p in placements)
    assert found.proof.wavefronts.lower_bound <= best
    if found.status == "optimal":
        assert taken <= best


@given(shape=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]), min_size=1, max_size=3), data=st.data())
def test_a_layout_seen_and_turned_back(shape, data):
    """What a view shows of a layout that was turned back is the layout that it saw."""
    steps = [Step(d, 1 << k) for d, extent in enumerate(shape) for k in range(4) if extent % (2 << k) == 0]
    taken = data.draw(st.lists(st.sampled_from(steps), unique=True, max_size=4)) if steps else []
    view = view_along(tuple(shape), taken)
    if view is None:
        return
    seen = row_major(view.seen_shape, 4)
    own = view.tile_layout(seen).table().ravel()
    assert (own[view.tile_index] == seen.table().ravel()).all()
    far = 1
    for d, step in taken:  # the steps come first
        inner = 1
        for extent in shape[d + 1 :]:
            inner *= extent
        assert own[step * inner] == 4 * far
        far *= 2


# What fuzzing found ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "access", "loops"),
    [
        # The loops that stay apart are not the outermost ones.
        ("64x32 f32, 64 threads; target sm_30", "a: load 4 [(tid + 32*k + 64*i) % 64, tid // 64 % 32]; k<3, i<4", ["k"]),
        ("2x7 f64, 32 threads; target sm_90", "a: load 8 [(tid + 8*i + 32*j) // 3 % 2, (tid + i) % 7]; i<3, j<2", ["i"]),
        # A GPU without accesses of a byte; no lane that takes part; thread 0 has nothing.
        ("16x32 i8, 64 threads; target sm_10", "a: store 4 [tid % 16, tid // 16 % 8 * 4]", "free"),
        ("64 f32, 1 threads; target sm_90", "a: load 4 [4*((lane + k) % 16)]; k<2; where tid > 3", "free"),
        ("64 f32, 32 threads; target sm_90", "a: load 4 [4*((lane + k) % 16)]; k<2; where tid > 3", "free"),
        # An order of dimensions that no other direction of vectors keeps to.
        ("8x24 f32, 128 threads; target a100; order 1 0", "a: load 4 [(lane + 2*i) % 8, (lane + i) % 24]; i<4", "free"),
    ],
)  # fmt: skip
def test_odd_problems(text, access, loops):
    data = data_of(text, "b: store 4 [0, 0]" if "x" in text.split(",")[0] else "b: store 4 [0]", access)
    data["accesses"][1]["instructions"] = loops
    asked = problem(data)
    found = solve(asked, time_limit=9)
    assert found.status in ("optimal", "feasible")
    check_claims(asked, device(found.target), answer_from_data(found.to_json()))
    assert found.proof.wavefronts.lower_bound <= sum(a.wavefronts for a in found.accesses)


def test_what_an_h200_counted():
    """Ten tiles, as their files have them and with their instructions free."""
    runs = json.loads((ROOT / "tests/data/h200_instructions.json").read_text())["runs"]
    assert len(runs) == 20
    for run in runs:
        for access in run["accesses"]:
            assert (access["values"], access["measured"]) == ("right", access["predicted"]), run["problem"]
    counted = [sum(a["measured"][WAVEFRONTS] for a in run["accesses"]) for run in runs]
    assert all(free <= given for given, free in zip(counted[::2], counted[1::2], strict=True))
    # What was predicted then is what is predicted now.
    for name, known in (("sgemm", 1), ("mma A", 7), ("mma B", 9), ("transpose of vectors", 15)):
        assert KNOWN[name][-1] == counted[known]


# Refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"instructions": ["j"]}, "accesses[0].instructions[0]"),
        ({"instructions": "open"}, "accesses[0].instructions"),
        ({"instructions": "free", "lanes": "free"}, "accesses[0].instructions"),
        ({"instructions": "free", "op": "atomic"}, "accesses[0].op"),
        ({"instructions": "free", "weight": "i + 1"}, "accesses[0].weight"),
        ({"instructions": "free", "bytes": [8, 4]}, "accesses[0].bytes"),
        ({"vector": [[0, 1], [0, 1]], "bytes": 16}, "accesses[0].vector[1]"),
        ({"vector": [[0, 3], [0, 1]], "bytes": 16}, "accesses[0].vector[0]"),
        ({"vector": [[0, 1]], "bytes": 16}, "accesses[0].vector"),
        ({"vector": [[1, 0], [2, 0]], "bytes": 16}, "accesses[0].index[0]"),
    ],
)
def test_wrong_problems(change, field):
    data = data_of("32x32 f32, 32 threads; target sm_90", "a: load 4 [tid, 4*i]; i<8")
    data["accesses"][0].update(change)
    with pytest.raises(ProblemFileError) as error:
        solve(problem(data))
    assert error.value.field == field


def test_a_vector_that_is_given():
    """The same problem with its instructions written down has the same answer; another has not."""
    text, fixed, free, loops, *_ = KNOWN["sgemm"]
    asked, gpu = problem(freed(text + "; target sm_90", fixed, free, loops)), device("sm_90")
    found = solve(asked)
    written = assigned(asked, found)
    given_ones = solve(written)
    assert (given_ones.offset, given_ones.bytes, given_ones.excess) == (found.offset, found.bytes, 0)
    counts = case_of(written, gpu).measure(found.layout)
    assert [a.wavefronts for a in counts] == [a.wavefronts for a in found.accesses]
    check_instructions(asked, written, gpu)
    other = problem(freed(text + "; target sm_90", fixed, [free[0].replace("16 * 8", "32 * 16")], loops))
    with refused_with("gives threads other elements"):
        check_instructions(other, assigned(other, found), gpu)


def test_the_elements_of_a_vector_that_is_given_are_those_that_threads_move():
    """Four rows of a column in a load: whatever moves them, each thread has the elements that the file says."""
    read = {**access_from("r: load 16 [4*(tid % 16), tid // 16 + 4*k]; k<8"), "vector": [[1, 0], [2, 0]]}
    write = "w: store 4 [i, tid]; i<64; where tid < 32"
    asked = problem_of("64x32 f32, 64 threads", write, {**read, "instructions": "free"})
    chosen = assigned(asked, solve(asked))
    assert (chosen.accesses[1].bytes, chosen.accesses[1].vector) == (4, None)
    element = (
        case_of(chosen, device("sm_90")).lanes.accesses[1].element.reshape(-1, 64)
    )  # by iteration, thread
    held = [{divmod(e, 32) for e in of_thread} for of_thread in element.T.tolist()]
    assert held == [
        {(4 * (tid % 16) + row, tid // 16 + 4 * k) for row in range(4) for k in range(8)} for tid in range(64)
    ]


ROWS = access_from("rows: store [4*i + tid // 8, 4*(tid % 8)]; i<8")
NARROW = {**ROWS, "bytes": 8, "index": ["4*i + tid // 8", "4*(tid % 8) + 2*p"], "for": {"i": 8, "p": 2}}
NARROWEST = {**ROWS, "bytes": 4, "index": ["4*i + tid // 8", "4*(tid % 8) + p"], "for": {"i": 8, "p": 4}}
COLUMNS = access_from("columns: load 4 [tid, i]; i<32")


def of_widths(*accesses, layout="none pad", tile="32x32 f32"):
    return problem_of(f"{tile}, 32 threads; name widths; families {layout}", *accesses)


def total(result, rows_weight=1):
    rows, columns = result.accesses
    return rows_weight * rows.wavefronts + columns.wavefronts


@pytest.mark.parametrize(
    ("layout", "weight"), [*itertools.product(("none pad", "none xor"), (1, 0.25, 40)), ("none", 40)]
)
def test_the_choice_is_the_best_of_all(weight, layout):
    every = {
        width: solve(of_widths({**rows, "bytes": width, "weight": weight}, COLUMNS, layout=layout))
        for width, rows in ((16, ROWS), (8, NARROW), (4, NARROWEST))
    }
    costs = {
        w: (total(found, weight), found.bytes, found.proof.index_cost.value) for w, found in every.items()
    }
    wanted = min(costs, key=costs.get)
    result = solve(of_widths({**ROWS, "bytes": [16, 8, 4], "weight": weight}, COLUMNS, layout=layout))
    assert (result.status, result.accesses[0].bytes) == (Status.OPTIMAL, wanted)
    assert (total(result, weight), result.bytes) == costs[wanted][:2]


def test_two_narrow_stores_may_beat_a_wide_one():
    result = solve(of_widths({**ROWS, "bytes": [16, 8]}, COLUMNS))
    got = [(a.name, a.bytes, a.wavefronts) for a in result.accesses]
    assert got == [("rows", 8, 32), ("columns", None, 64)]
    assert total(solve(of_widths({**ROWS, "bytes": 16}, COLUMNS))) == 160
    # A given layout is checked at the width that costs least: at pitch 33 only single words are aligned.
    for offset, width in {"x0*36 + x1": 16, "x0*34 + x1": 8, "x0*33 + x1": 4}.items():
        audit = check(of_widths({**ROWS, "bytes": [4, 16, 8]}, COLUMNS), offset)
        assert (audit.status is AuditStatus.CONFLICTS) == bool(audit.excess)
        assert (audit.accesses[0].bytes, audit.accesses[0].wavefronts) == (width, 32), offset


@pytest.mark.skipif(GXX is None, reason="no C++ compiler on this machine")
def test_emitted_code_has_a_parameter_for_the_parts(tmp_path):
    tile = of_widths({**ROWS, "bytes": [16, 8]}, COLUMNS)
    result = solve(tile)
    header = emit("cuda", tile, device(tile.target), result)
    assert "widths_rows_bytes(int tid, int i, int part)" in header
    nest = "for (int i = 0; i < 8; ++i) for (int p = 0; p < 2; ++p) for (int t = 0; t < 32; ++t)"
    call = 'std::printf("%u,", widths_rows_bytes(t, i, p));'
    output = built(tmp_path, f"#include <cstdio>\n{header}\nint main() {{ {nest} {call} }}\n", "-std=c++14")
    i, p, t = np.indices((8, 2, 32)).reshape(3, -1)
    expected = result.layout.byte_offset(4 * i + t // 8, 4 * (t % 8) + 2 * p).tolist()
    assert json.loads(f"[{output.rstrip(',')}]") == expected


@pytest.mark.parametrize(
    ("accesses", "message"),
    [
        ([{"bytes": [16, 12]}], r"accesses\[0\].bytes: 12 bytes must divide 16"),
        ([{"bytes": [16, 2]}], r"accesses\[0\].bytes: 2 bytes must divide 16 and hold whole elements"),
        ([{"bytes": [16, 0]}], r"accesses\[0\].bytes: 0 bytes must divide 16"),
        ([{"bytes": []}], r"accesses\[0\].bytes: "),
        ([{"name": f"r{k}", "bytes": [16, 8]} for k in range(5)], r"accesses: 32 choices of widths"),
        ([{"op": "ldmatrix.x4", "bytes": [16, 8]}], r"accesses\[0\].op: .* 16 bytes wide"),
    ],
)
def test_wrong_lists_are_refused(accesses, message):
    with pytest.raises(ProblemFileError, match=message):
        solve(of_widths(*({**ROWS, **access} for access in accesses)))


def test_compare_show_and_explain_take_the_solvers_choice():
    tile = problem_of("""64x16 f64, 256 threads
        rows: store 16|8 [tid//8+32*i, 2*(tid % 8)]; i<2
        a: load 8 [tid % 64, tid // 64 + 4*(i ^ 1)]; i<4
        b: load 8 [(tid % 64 * 2 + s) % 64, (tid // 64 + 4*s + tid % 64 // 32) % 16]; s<3""")
    result = solve(tile)
    assert (result.excess, result.accesses[0].bytes) == (0, 8)
    compared = compare(tile, time_limit=10)
    everything = rows_of(compared)["all"]
    assert (everything.excess, everything.offset, compared.widths) == (0, result.offset, {"rows": 8})
    assert "every row with `rows` of 8 bytes" in comparison_text.text(tile, compared)
    explained = explain(tile, time_limit=20)
    got = explained.conflict_free, explained.offset, explained.widths
    assert got == (True, result.offset, {"rows": 8})
    assert "with `rows` of 8 bytes" in explanation_report(tile, explained)
    chosen = {"access": "rows", "warp": None, "iteration": {"part": 1}, "time_limit": 10}
    seen = views(tile, device("sm_90"), before="none", **chosen)
    assert (seen.layouts[-1].offset, seen.chosen.at[1]["part"]) == (result.offset, 1)
    assert "drawn with `rows` of 8 bytes" in seen.note


@pytest.fixture
def only_one_choice(monkeypatch):
    """There is no time for widths but the first."""

    def one_case(*asked):
        yield next(iter(cases(*asked)))
        raise OutOfTime

    return lambda: monkeypatch.setattr("layoutopt.search.solve.cases", one_case)


@pytest.mark.parametrize("conflict_free", [False, True])
def test_what_one_choice_needs_is_not_said_of_all(only_one_choice, conflict_free):
    """Rows of 8 bytes under columns of 1 byte: conflicts at 8 bytes a lane, none at 4, which there was no time for."""
    asked = problem_of("""32x128 u8, 32 threads
        rows: store 16|4 [tid, 0]
        columns: load 1 [tid, i]; i<16""")
    whole = solve(asked, conflict_free=conflict_free)
    only_one_choice()
    cut = solve(asked, conflict_free=conflict_free)
    assert cut.status in (Status.FEASIBLE, Status.UNKNOWN)
    assert cut.proof.excess.lower_bound == 0 <= (whole.excess or 0)
    assert (cut.proof.excess.everywhere, cut.proof.evidence) == (True, "")


def test_bytes_that_one_choice_needs_are_not_said_of_all(only_one_choice):
    """Pairs in rows of 33 words need a pad, single words none, which there was no time for."""
    only_one_choice()
    result = solve(of_widths("rows: store 8|4 [tid, 0]", tile="32x33 f32"))
    assert (result.status, result.bytes) == (Status.FEASIBLE, 4 * (31 * 34 + 33))
    assert (result.proof.bytes.lower_bound, result.proof.bytes.scope) == (4 * 32 * 33, "every layout")


def test_no_choice_has_all_of_the_work_but_the_last(monkeypatch):
    given = []
    monkeypatch.setattr(
        "layoutopt.search.solve.verified",
        lambda case, proposal, **how: given.append(current().effort) or verified(case, proposal, **how),
    )
    solve(problem_of("32x32 f32, 32 threads", "rows: store 16|8|4 [tid, 0]"), time_limit=1000)
    assert given == [pytest.approx(500, abs=60), pytest.approx(500, abs=60), None]


def test_a_tile_of_a_block_takes_the_instructions_that_it_takes_alone():
    """Rows that loads of 16 bytes read in 32 wavefronts, beside another tile."""
    rows = {"name": "r", "op": "load", "bytes": 4, "index": ["i", "lane"], "for": {"i": 32}}
    rows["instructions"] = "free"
    tile = {"shape": [32, 32], "element": "f32"}
    tiles = [{**tile, "name": name} for name in "AB"]
    column = {"tile": "B", "name": "c", "op": "load", "bytes": 4, "index": ["tid", 0]}
    block = problem({"threads": 32, "tiles": tiles, "accesses": [{**rows, "tile": "A"}, column]})
    found = solve(block)
    alone = solve(problem({"threads": 32, "tile": tile, "accesses": [rows]}))
    (of_tile,) = (part.result.accesses[0] for part in found.tiles if part.tiles == ("A",))
    assert (of_tile.op, of_tile.bytes, of_tile.wavefronts) == ("load", 16, alone.accesses[0].wavefronts)
    assert "alignas" in layoutopt.emit(block, found)


@pytest.mark.parametrize("width", [16, 8, 4])
def test_a_narrower_access_covers_the_vector_of_the_widest(width):
    """Four elements down a column in one store, in two pairs or one by one: the same elements in each."""
    store = access_from("store: store 16|8|4 [tid % 8 * 4, tid // 8]")
    asked = problem_of("32x8 f32, 64 threads", {**store, "vector": [[1, 0], [2, 0]]})
    (lanes,) = case_of(asked, device("sm_90"), {"store": width}).lanes.accesses
    assert sorted(lanes.vectors.ravel().tolist()) == list(range(256))
