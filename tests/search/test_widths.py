"""Widths that the solver chooses, against solving every choice on its own."""

import itertools
import json

import numpy as np
import pytest
from emit_programs import GXX, built, emit
from written import access_from, problem_of, rows_of

from layoutopt import Status, check, compare, explain, solve
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import OutOfTime, current
from layoutopt.hardware.devices import device
from layoutopt.report import comparison_text
from layoutopt.report.explanation_text import explanation_report
from layoutopt.search.solve import cases
from layoutopt.search.verify import verified
from layoutopt.study.check import AuditStatus
from layoutopt.study.show import views

ROWS = access_from("rows: store [4*i + tid // 8, 4*(tid % 8)]; i<8")
NARROW = {**ROWS, "bytes": 8, "index": ["4*i + tid // 8", "4*(tid % 8) + 2*p"], "for": {"i": 8, "p": 2}}
NARROWEST = {**ROWS, "bytes": 4, "index": ["4*i + tid // 8", "4*(tid % 8) + p"], "for": {"i": 8, "p": 4}}
COLUMNS = access_from("columns: load 4 [tid, i]; i<32")


def problem(*accesses, layout="none pad", tile="32x32 f32"):
    return problem_of(f"{tile}, 32 threads; name widths; families {layout}", *accesses)


def total(result, rows_weight=1):
    rows, columns = result.accesses
    return rows_weight * rows.wavefronts + columns.wavefronts


@pytest.mark.parametrize(
    ("layout", "weight"), [*itertools.product(("none pad", "none xor"), (1, 0.25, 40)), ("none", 40)]
)
def test_the_choice_is_the_best_of_all(weight, layout):
    every = {
        width: solve(problem({**rows, "bytes": width, "weight": weight}, COLUMNS, layout=layout))
        for width, rows in ((16, ROWS), (8, NARROW), (4, NARROWEST))
    }
    costs = {
        w: (total(found, weight), found.bytes, found.proof.index_cost.value) for w, found in every.items()
    }
    wanted = min(costs, key=costs.get)
    result = solve(problem({**ROWS, "bytes": [16, 8, 4], "weight": weight}, COLUMNS, layout=layout))
    assert (result.status, result.accesses[0].bytes) == (Status.OPTIMAL, wanted)
    assert (total(result, weight), result.bytes) == costs[wanted][:2]


def test_two_narrow_stores_may_beat_a_wide_one():
    result = solve(problem({**ROWS, "bytes": [16, 8]}, COLUMNS))
    got = [(a.name, a.bytes, a.wavefronts) for a in result.accesses]
    assert got == [("rows", 8, 32), ("columns", None, 64)]
    assert total(solve(problem({**ROWS, "bytes": 16}, COLUMNS))) == 160
    # A given layout is checked at the width that costs least: at pitch 33 only single words are aligned.
    for offset, width in {"x0*36 + x1": 16, "x0*34 + x1": 8, "x0*33 + x1": 4}.items():
        audit = check(problem({**ROWS, "bytes": [4, 16, 8]}, COLUMNS), offset)
        assert (audit.status is AuditStatus.CONFLICTS) == bool(audit.excess)
        assert (audit.accesses[0].bytes, audit.accesses[0].wavefronts) == (width, 32), offset


@pytest.mark.skipif(GXX is None, reason="no C++ compiler on this machine")
def test_emitted_code_has_a_parameter_for_the_parts(tmp_path):
    tile = problem({**ROWS, "bytes": [16, 8]}, COLUMNS)
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
        solve(problem(*({**ROWS, **access} for access in accesses)))


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
    result = solve(problem("rows: store 8|4 [tid, 0]", tile="32x33 f32"))
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
