"""`compare` and `explain` where lanes choose at run time: every figure is the count over their values."""

import pytest
from conftest import ROOT
from msgspec.structs import replace

from layoutopt import check, compare, explain, load, solve
from layoutopt.report.comparison_text import text
from layoutopt.report.explanation_text import explanation_report

PROBLEMS = ROOT / "problems"
RADIX = PROBLEMS / "sort/any_digit_radix_rank_128x16_u8.json"
NAMES = ["histogram/any_bin_expected_256_u32", "histogram/any_bin_8x256_u32"]


@pytest.mark.parametrize(
    "path", [RADIX, *(PROBLEMS / f"{name}.json" for name in NAMES)], ids=lambda p: p.stem
)
def test_rows_are_what_check_counts(path):
    problem = load(path)
    found = compare(problem, time_limit=10)
    usable = [row for row in found.rows if row.wavefronts is not None]
    assert {"none", "pad", "cute", "all"} <= {row.family for row in usable}
    for row in usable:
        audit = check(problem, row.offset)
        assert [(a.wavefronts, a.ideal) for a in row.accesses] == [
            (a.wavefronts, a.ideal) for a in audit.accesses
        ]
        assert (row.excess, row.ways, row.time) == (audit.excess, None, None)
    best = solve(problem)
    assert min(row.excess for row in usable) == best.excess
    assert "no time is estimated, as lanes choose at run time" in found.recommendation.text
    assert "cycles: not estimated, as lanes choose at run time" in text(problem, found)


def test_what_a_layout_costs_is_explained_over_the_values():
    problem = load(RADIX)
    found = explain(problem)
    assert (found.conflict_free, found.excess) == (True, 0)
    assert "no more wavefronts than the values need: " in explanation_report(problem, found)


def test_conflicts_that_values_make_are_worded_and_nothing_is_said_of_other_lanes():
    """Row-major alone is allowed: each digit's column is in few banks."""
    problem = load(RADIX)
    problem = replace(problem, published=None, layout=replace(problem.layout, families=("none",)))
    found = explain(problem)
    over = [reason for reason in found.reasons if "at worst over all values, one takes" in reason]
    assert found.excess > 0
    assert over
    assert {r.kind for r in found.relaxations} == {"families"}
