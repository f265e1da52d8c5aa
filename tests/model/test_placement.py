"""Tables of offsets: folded pads, what they are asked for, and the local search for them."""

import errno
import random
import sys
import types

import numpy as np
import pytest
from msgspec.structs import replace
from oracle import toy
from oracle.banks import weighted_excess
from written import batched_rows_and_columns, constrained, lines_of, problem_of, ring

from layoutopt import solve
from layoutopt.accesses.trace import trace
from layoutopt.engine.case import case_of
from layoutopt.expressions.grammar import lookups
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget, spending
from layoutopt.hardware.devices import device
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Digit, Layout
from layoutopt.model import placement
from layoutopt.model.annealing import whole
from layoutopt.model.colouring import coloured
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import EFFORT, free_assignment
from layoutopt.problems.answer import Status
from layoutopt.proof import reasons
from layoutopt.report.text import report
from layoutopt.search.beyond import with_tables
from layoutopt.search.proposal import Ask, Found, Proposal, Proved
from layoutopt.search.search import Search
from layoutopt.search.solve import PROPOSERS
from layoutopt.search.verify import verified

SM_90 = device("sm_90")


def free(problem, gpu=SM_90, seconds=None, **options):
    lanes = trace(problem, gpu)
    sets = phase_sets(lanes, problem.tile)
    with spending(Budget(seconds)):
        return lanes, free_assignment(sets, lanes, problem.tile, **options)


def test_narrow_elements_share_words():
    """Bytes with no wide access may share words in any way: the bound leaves them out."""
    problem = problem_of("""64x64 i8, 32 threads
        rows: store 1 [i, tid]; i<64
        columns: load 1 [tid, i]; i<64""")
    lanes, found = free(problem)
    assert found.bound == found.excess == weighted_excess(found.table, lanes, SM_90) == 0
    assert found.bytes >= found.bytes_bound == 4096
    assert len(np.unique(found.table)) == 4096
    # A phase whose floor exceeds the units left: two firm words and six loose halves, on two banks.
    problem = problem_of("""10 2B, 8 threads
        halves: load 2 [(tid + i) % 10]; i<2
        words: atomic 4 [2*tid]; where tid < 2""")
    narrow = toy.toy_device(8, 2)
    gpu = replace(narrow, rules={**narrow.rules, ("load", 2): narrow.rules["load", 4]})
    lanes, found = free(problem, gpu)
    assert found.bound <= found.excess == weighted_excess(found.table, lanes, gpu)


def test_not_for_elements_of_odd_sizes_and_not_without_time():
    assert free(problem_of("8 12B, 8 threads", "a: load 4 [tid]"))[1] is None
    # An access of weight 0 binds what stays whole, and costs nothing wherever it lies.
    idle = problem_of("16x31 i8, 32 threads", "a: cp.async 4 [tid // 4 % 16, 4*(tid % 7)]; weight 0")
    found = free(idle, seconds=0.0)[1]
    assert found is None or found.excess in (0, None)


def rows_columns_diagonals(n, m, **layout):
    return from_data(lines_of(n, m, **layout))


@pytest.mark.parametrize("families", [["none", "pad", "table"], ["table"]])
def test_a_table_that_is_asked_for_holds_what_formulas_of_any_family_give(families):
    """Rotated lines have no excess; a table holds what they give."""
    asked = rows_columns_diagonals(15, 16, families=families)
    result = solve(asked, target=toy.toy_device(16, 16), time_limit=None)
    assert (result.family, result.excess, result.bytes) == ("table", 0, 15 * 16 * 4)
    assert (result.proof.excess.scope, result.proof.bytes.scope) == ("every layout", "every layout")
    assert result.status is Status.OPTIMAL


def test_a_table_that_was_not_searched_is_named_and_not_proved_away():
    families = ["none", "pad", "table"]
    result = solve(rows_columns_diagonals(31, 32, families=families), time_limit=1e-3)
    # On a busy machine not even the accesses are evaluated in a millisecond.
    assert result.status in (Status.FEASIBLE, Status.UNKNOWN)
    left = ("tables of offsets were not searched to the end", "stopped before the proof", "out of time")
    assert any(words in result.reason for words in left)
    assert result.decided_by is None
    large = solve(rows_columns_diagonals(256, 32, families=families), time_limit=5)
    assert large.proof.bytes.scope in ("families none, pad", "every layout")
    said = "no table was searched: a table has at most 4,096 elements, the tile has 8,192"
    assert large.reason.endswith(said)


def test_a_table_without_conflicts_is_found_where_any_conflict_is_infeasible():
    given = {"target": toy.toy_device(8, 8), "conflict_free": True}
    result = solve(rows_columns_diagonals(7, 8, families=["none", "table"]), **given)
    assert (result.family, result.excess, result.status) == ("table", 0, Status.OPTIMAL)
    assert solve(rows_columns_diagonals(7, 8), **given).excess == 0


# A problem, lanes and banks of its GPU; for each of its constraints the status, bytes and excess.
TABLES = {
    "three words that never meet share the bank that three others leave them: 36 bytes": (
        "6 f32, 4 threads\na: load 4 [i if tid == 0 else tid + 2]; i<3", (4, 4),
        [({}, None, 36, 0), ({"max_bytes": 24}, None, 24, 1),
         ({"max_bytes": 24, "families": ["none", "table"]}, None, 24, 1)],
    ),
    "nine f32 a row, read in pairs: every formula needs a pad; a table keeps the pairs together": (
        """4x9 f32, 32 threads
        pairs: load 8 [tid // 4 % 4, 2*(tid % 4)]
        words: load 4 [tid % 4, tid // 4 % 9]""", None,
        [({"max_bytes": 144}, None, 144, None), ({"max_bytes": 143}, "infeasible", None, None),
         ({"max_bytes": 144, "families": ["none", "order", "pad"]}, "infeasible", None, None)],
    ),
    "bytes in rows of seven, of which a store takes four: nine words, one of them of three, lies last": (
        """5x7 u8, 8 threads
        rows: store 4 [i, 0]; i<5; where tid < 1
        pairs: load 2 [2 + tid, 4]; where tid < 3""", None,
        [({"max_bytes": 35}, "optimal", 35, 0), ({"max_bytes": 34}, "infeasible", None, None)],
    ),
    "pairs begin rows of three: a table without conflicts takes 40 bytes, the smallest table 36": (
        """3x3 f32, 8 threads
        pairs: load 8 [tid % 3, 0]; where tid < 3
        words: load 4 [[3, 0, 8, 0, 2, 3, 0, 0][tid] // 3, [3, 0, 8, 0, 2, 3, 0, 0][tid] % 3]""", (8, 4),
        [({"minimise": "bytes"}, None, 36, 1), ({"minimise": "bytes", "families": ["none", "pad", "table"]}, None, 36, 1),
         ({"minimise": "bytes", "free": True}, None, 40, 0)],
    ),
    "elements of a low alignment: whether 28 bytes are the fewest is not known; no formula takes so few": (
        """2x3 4B@1, 8 threads
        words: load 4 [i, tid % 3]; i<2; where tid < 3
        pairs: store 8 [tid % 2, 0]; where tid < 2""", (8, 4), [({}, "feasible", 28, 0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_bytes_that_a_table_takes(case):
    text, gpu, asked = TABLES[case]
    for constraints, *expected in asked:
        layout = dict(constraints)
        options = {"conflict_free": layout.pop("free", False), "target": gpu and toy.toy_device(*gpu)}
        result = solve(problem_of(text, layout=layout), **options)
        found = result.status, result.bytes, result.excess
        assert [want for want in zip(expected, found, strict=True) if want[0] not in (None, want[1])] == []
        assert result.layout is None or result.family == "table"


def test_no_table_evades_a_pitch_or_an_order():
    """Rows of 128 bytes that a pitch multiple of 256 bytes spreads."""
    problem = problem_of("8x32 f32, 32 threads; pitch_multiple_bytes 256", "a: load 4 [i, tid]; i<8")
    result = solve(problem, time_limit=None)
    assert (result.family, result.bytes, result.layout.digits[0].stride) == ("pad", 1920, 64)
    assert (result.proof.bytes.lower_bound, result.proof.bytes.scope[:8]) == (1920, "families")
    named = solve(constrained(problem, families=("none", "pad", "table")), time_limit=None)
    assert "no table was searched: a table has no pitch" in named.reason
    for families in (("interval",), ("rotate",), ("matrix",), ("table",), ("none", "split")):
        assert solve(constrained(problem, families=families), time_limit=None).status is Status.INFEASIBLE
    given = "8x32 f32, 32 threads; families none table; order 0 1"
    ordered = problem_of(given, "a: load 4 [tid % 8, i]; i<8")
    assert solve(ordered, time_limit=None).layout.lookup == ()


@pytest.mark.parametrize(("families", "briefly"), [(None, False), (["none", "pad"], True)])
def test_what_cannot_change_the_answer_is_asked_briefly(families, briefly, monkeypatch):
    """Without tables among the families, what a table would give is worth a second at most."""
    efforts = []

    def free_assignment(*arguments, effort, **options):
        efforts.append(effort)

    monkeypatch.setattr(reasons, "free_assignment", free_assignment)
    layout = {"families": families} if families else {}
    result = solve(rows_columns_diagonals(10, 8, **layout), target=toy.toy_device(8, 8))
    assert result.excess
    (effort,) = efforts
    assert effort == (0.5 if briefly else EFFORT)


def test_a_better_table_is_named_in_the_unit_of_what_was_found():
    """One pair must share a bank, a light one."""
    light = from_data(ring(3, 2, 2, 2, 2, more="; families none"))
    result = solve(light, target=toy.toy_device(4, 4), time_limit=None)
    assert (result.excess, result.weighted_excess) == (4, 9)
    assert result.reason == "a table of offsets would have 2 weighted excess in 36 bytes"


def test_infeasible_means_that_tables_were_refuted_too():
    """A tile too large for tables: formulas give nothing, but that is not said of every layout."""
    problem = problem_of(f"""576x9 f32, 32 threads; max_bytes {576 * 36}
        pairs: load 8 [tid + 32*r, 2*i]; i<4, r<18""")
    result = solve(problem, time_limit=None)
    assert result.status is Status.UNKNOWN
    assert "a table has at most 4,096 elements, the tile has 5,184" in result.reason
    ordered = constrained(problem, order=(0, 1))  # tables have none
    assert solve(ordered, time_limit=None).status is Status.INFEASIBLE


@pytest.mark.parametrize(
    ("size", "count", "element", "width", "strides", "look_ups"),
    [
        (10, 12, "f32", 4, (10, 129, 1), None),
        (10, 12, "f64", 8, (10, 121, 1), 9),  # the end of a pad goes into its holes by a small table
        (11, 11, "f32", 4, (11, 129, 1), None),
        (11, 16, "f64", 8, (11, 177, 1), None),
        (6, 5, "f32", 4, (43, 7, 1), None),
    ],
)
def test_a_pad_is_folded_into_the_bytes_of_the_tile(size, count, element, width, strides, look_ups):
    problem = from_data(batched_rows_and_columns(size, count, element, width))
    padded = sum(s * x for s, x in zip(strides, np.indices(problem.tile.shape), strict=True)) * width
    lanes, found = free(problem, hint=padded)
    assert padded.max() + width > problem.tile.bytes
    assert found.bytes == problem.tile.bytes
    assert weighted_excess(found.table, lanes, SM_90) == found.excess <= weighted_excess(padded, lanes, SM_90)
    if size > 6:
        assert (found.complete, found.excess) == (True, 0)
        assert sorted(found.table.ravel()) == list(range(0, problem.tile.bytes, width))
    if look_ups:
        entries = tuple((found.table.ravel() // width).tolist())
        (small,) = lookups(offset_expression(Layout(found.table.shape, width, (), lookup=entries)))
        assert len(small.values) == look_ups


def test_what_weighs_nothing_has_no_conflicts_either():
    data = batched_rows_and_columns(7, 7, "f32", 4)
    for access in data["accesses"]:
        access["weight"] = "j"
    problem = from_data(data)
    result = solve(problem, time_limit=20)
    assert (result.excess, result.bytes) == (0, 1372)
    assert ("table      343 entries, 686 bytes" in report(problem, result)) == ("lookup" in result.offset)


def test_a_table_is_found_where_the_search_ended_before_it_asked_for_one():
    problem = from_data(batched_rows_and_columns(10, 12, "f32", 4))
    digits = (Digit(1, 1, 10, 129), Digit(0, 1, 12, 10), Digit(2, 1, 10, 1))
    padded = Layout(problem.tile.shape, 4, digits)
    found = Found(padded, "pad", weighted_excess=0, bytes=int(padded.table().max()) + 4)
    open_bytes = Proposal(found, Proved(0), Proved(problem.tile.bytes), Proved(0), left="out of time")
    case = case_of(problem, SM_90)
    result = verified(case, with_tables(Search(case, Ask(), PROPOSERS), open_bytes)).result
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, 0, 4800)


# Local search for tables -------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_nothing_is_compiled_that_the_time_does_not_last_for(monkeypatch, seconds):
    asked = []
    monkeypatch.setattr("layoutopt.model.placement._seconds_to_compile", lambda: seconds)
    annealed = "layoutopt.model.annealing.annealed"
    monkeypatch.setattr(annealed, lambda _, start, *rest: asked.append(1) or start)
    with spending(Budget(30)):
        seven()
    assert bool(asked) == (not seconds)


@pytest.mark.parametrize(("signatures", "ready"), [([], False), (["known"], True)])
def test_what_is_imported_alone_is_still_to_be_compiled(monkeypatch, signatures, ready):
    module = types.SimpleNamespace(cooled=types.SimpleNamespace(signatures=signatures))
    monkeypatch.setitem(sys.modules, "layoutopt.model.annealing", module)
    assert (placement._seconds_to_compile() == 0) == ready


def test_without_a_compiler_nothing_is_annealed(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert not Budget(1e6).affords(placement._seconds_to_compile())


def seven():
    """A stencil of seven points in a block of 8x4x8 with a halo of one, filled cyclically: a warp is a plane."""
    at = "(tid + 256*c)"
    problem, gpu = problem_of(f"""10x6x10 f32, 256 threads
        fill: store 4 [{at}//60, {at}//10%6, {at}%10]; c<3; where {at} < 600
        z: load 4 [tid//32 + 2*h, tid//8%4 + 1, tid%8 + 1]; h<2
        y: load 4 [tid//32 + 1, tid//8%4 + 2*h, tid%8 + 1]; h<2
        x: load 4 [tid//32 + 1, tid//8%4 + 1, tid%8 + c]; c<3"""), device("sm_90")  # fmt: skip
    lanes = trace(problem, gpu)
    sets = phase_sets(lanes, problem.tile)
    return lanes, free_assignment(sets, lanes, problem.tile, effort=0.1)


def test_a_stencil_of_seven_points_has_few_conflicts():
    """From row-major, in which 58 wavefronts are too many."""
    lanes, found = seven()
    assert found.excess <= 17
    assert weighted_excess(found.table, lanes, device("sm_90")) == found.excess


@pytest.mark.parametrize("seed", range(12))
def test_chunks_of_two_phases_each_always_find_banks(seed):
    """Koenig: rows and columns of any sparse matrix, in as many banks as the longest has entries."""
    rng = random.Random(seed)
    cells = [(row, column) for row in range(14) for column in range(14) if rng.random() < 0.6]
    phases = [[k for k, cell in enumerate(cells) if cell[dim] == n] for dim in (0, 1) for n in range(14)]
    banks = max(map(len, phases))
    start = [rng.randrange(banks) for _ in cells]
    found = coloured(phases, start, [len(cells)] * banks, 10_000)
    assert found is not None
    assert all(len({found[k] for k in phase}) == len(phase) for phase in phases)
    even = [len(cells) // banks + (bank < len(cells) % banks) for bank in range(banks)]
    found = coloured(phases, start, even, 50_000)
    assert found is None or all(found.count(bank) <= room for bank, room in enumerate(even))
    assert coloured([*phases, [*phases[0], *phases[1]]], start, [len(cells)] * banks, 1000) is None
    assert coloured([[0, 1]], [0, 0], [3], 10_000) is None, "one bank cannot hold two without a conflict"


def doubled(numbers):
    return numbers + numbers


def test_a_cache_that_is_damaged_or_full_costs_no_answer(tmp_path, monkeypatch):
    from numba.core import caching, config

    def called():
        function = whole(doubled)
        assert function(np.ones(3, np.int32)).tolist() == [2, 2, 2]
        return function.stats

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    called()
    kept = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [path.suffix for path in kept] == [".nbc", ".nbi"]
    for damaged in kept:
        for data in (b"", damaged.read_bytes()[:30], b"no pickle"):
            damaged.write_bytes(data)
            assert called().cache_misses
            assert called().cache_hits  # what was damaged is there anew

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    kept[1].unlink()
    monkeypatch.setattr(caching.IndexDataCacheFile, "_save_index", full)
    called()
