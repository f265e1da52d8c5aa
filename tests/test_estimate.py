"""The estimate of time: its terms by hand, what the H200 took, and what a device borrows."""

import json
import math

import msgspec
import pytest
from conftest import ROOT

from layoutopt.engine.case import case_of, case_under
from layoutopt.engine.estimate import Terms, estimate, terms, timing_of
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.grammar import parse
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Timing, device
from layoutopt.problems.file import from_data, load
from layoutopt.study.faster import with_faster
from layoutopt.synthesis.solve import solve

RECORD = json.loads((ROOT / "tests/data/h200_times.json").read_text())["problems"]
TIMING = Timing(10, 20, 3, 100, 2, 2, 30, 1.5, 0.25, 5, 0.1, "by hand")


def counted(problem, offset):
    node = parse(offset, frozenset(f"x{d}" for d in range(len(problem.tile.shape))))
    case = case_under(problem, device(problem.target), node)
    counts = case.count(case.table(node))
    return case, node, counts, terms(case, case.table(node), counts, case.index_code(node))


def test_the_formula_by_hand():
    counted = Terms(
        memory=40, accesses=2, loads=1, copies=0, lines=3, waits=2, instructions=8, predicated=4, warps=4
    )
    assert counted.cycles(TIMING) == 10 + 2 * 20 + 3 + 40 + 3 * 2 + 2 * 30 + 4 * 1.5 + 4 * 5
    many = msgspec.structs.replace(counted, warps=32)
    assert many.cycles(TIMING) == 10 + 2 * 20 + 3 + 40 + 3 * 2 + 2 * 30 + 4 * 8 + 4 * 8
    alone = msgspec.structs.replace(counted, warps=1)
    assert alone.cycles(TIMING) == counted.cycles(TIMING) + 40
    assert counted.busy(TIMING) == 40 + 3 * 2 + 0.25 * 4 * 8


def test_memory_takes_its_wavefronts_or_its_return_width():
    """One word read by all lanes in 16 bytes: two wavefronts, four cycles; weights multiply."""
    accesses = [
        {"name": "one", "op": "load", "bytes": 16, "index": ["0", "0"], "weight": 3},
        {"name": "columns", "op": "store", "bytes": 4, "index": ["tid", "0"]},
    ]
    problem = from_data(
        {"name": "p", "tile": {"shape": [32, 32], "element": "f32"}, "threads": 32, "accesses": accesses}
    )
    found = counted(problem, "x0*32 + x1")[3]
    assert (found.memory, found.accesses, found.loads, found.copies) == (3 * 4 + 32, 4, 3, 0)
    assert counted(problem, "x0*36 + x1")[3].memory == 3 * 4 + 4


def test_copies_that_cross_lines_take_longer():
    """Rows of 128 bytes at a pitch of 144: all but every eighth crosses a line; a swizzle crosses none."""
    problem = load(ROOT / "problems/basics/gemm_a_128x64_f16.json")
    pad, swizzle = (counted(problem, offset) for offset in ("x0*72 + x1", "x0*64 + (x1 ^ x0 % 8 * 8)"))
    assert (pad[3].lines, swizzle[3].lines) == (128 * 7 / 8, 0)
    assert pad[3].memory == swizzle[3].memory
    assert estimate(*pad[:3]).cycles > estimate(*swizzle[:3]).cycles


@pytest.mark.parametrize(
    "name", ["transposes/leimao_padded_f64", "sgemm/siboehm_k6_b_8x128_f32", "marlin/c_64x256_f16"]
)
def test_what_the_h200_took(name):
    """Three programs within three times the median error; `scripts/measure/fit_time.py` has all 339."""
    (entry,) = [e for e in RECORD if e["problem"] == f"{name}.json"]
    problem = load(ROOT / "problems" / entry["problem"])
    timing, borrowed = timing_of(device("h200"))
    assert borrowed is None
    for row in entry["rows"]:
        if "none" not in row["layouts"]:
            cycles = counted(problem, row["offset"])[3].cycles(timing)
            assert abs(math.log(cycles / row["once"])) < 3 * timing.error


def test_a_device_without_measurements_borrows():
    problem = load(ROOT / "problems/basics/transpose_32x32_f32.json")
    node = parse("x0*33 + x1", frozenset(("x0", "x1")))
    found = {}
    for name in ("sm_90", "sm_80", "gfx1201"):
        case = case_of(msgspec.structs.replace(problem, target=name), device(name))
        found[name] = estimate(case, node, case.count(case.table(node)))
    assert (found["sm_90"].borrowed, found["sm_80"].borrowed, found["gfx1201"].borrowed) == (
        None,
        "sm_90",
        "sm_90",
    )
    assert found["sm_90"].cycles == found["sm_80"].cycles
    assert found["sm_90"].blocks_per_sm == 2


def test_solve_says_what_is_faster_and_takes_it_where_time_comes_first():
    problem = load(ROOT / "problems/raft/contractions_64x32_f32.json")
    gpu = device("sm_90")
    found = with_faster(problem, solve(problem), gpu, Budget())
    assert found.offset == "x0*32 + (x1 ^ x0 % 8 * 4)"
    assert found.faster.offset == "x0*36 + x1"
    assert found.faster.cycles < found.estimate.cycles
    assert "1,008 bytes more" in found.faster.text
    first = msgspec.structs.replace(problem.layout, minimise="time")
    least = solve(msgspec.structs.replace(problem, layout=first))
    assert (least.offset, least.status, least.excess) == ("x0*36 + x1", "feasible", 0)
    assert least.estimate.cycles == found.faster.cycles
    assert "no proof" in least.reason


def test_where_time_cannot_come_first():
    problem = load(ROOT / "problems/histogram/any_bin_8x256_u32.json")
    first = msgspec.structs.replace(problem.layout, minimise="time")
    with pytest.raises(ProblemFileError, match=r"layout\.minimise"):
        solve(msgspec.structs.replace(problem, layout=first))
    assert with_faster(problem, solve(problem, time_limit=5), device("sm_90"), Budget()).estimate is None


def test_no_time_left_is_no_estimate():
    problem = load(ROOT / "problems/raft/contractions_64x32_f32.json")
    assert with_faster(problem, solve(problem), device("sm_90"), Budget(0)).estimate is None
