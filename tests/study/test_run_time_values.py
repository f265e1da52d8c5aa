"""`compare` and `explain` where lanes choose at run time: every figure is the count over their values."""

import pytest
from msgspec.structs import replace
from written import constrained

from layoutopt import check, compare, explain, load, solve
from layoutopt.report.comparison_text import text
from layoutopt.report.explanation_text import explanation_report

RADIX = "any_digit_radix_rank_128x16_u8"


@pytest.mark.parametrize("name", [RADIX, "any_bin_expected_256_u32", "any_bin_8x256_u32"])
def test_rows_are_what_check_counts(name):
    problem = load(name)
    found = compare(problem, time_limit=10)
    usable = [row for row in found.rows if row.wavefronts is not None]
    assert {"none", "pad", "cute", "all"} <= {row.family for row in usable}
    for row in usable:
        audit = check(problem, row.offset)
        rows, audited = ([(a.wavefronts, a.ideal) for a in one.accesses] for one in (row, audit))
        assert rows == audited
        assert (row.excess, row.ways, row.time) == (audit.excess, None, None)
    assert min(row.excess for row in usable) == solve(problem).excess
    assert "no time is estimated, as lanes choose at run time" in found.recommendation.text
    assert "cycles: not estimated, as lanes choose at run time" in text(problem, found)


def test_what_a_layout_costs_is_explained_over_the_values():
    """Where row-major alone is allowed, each digit's column is in few banks; nothing is said of other lanes."""
    problem = load(RADIX)
    found = explain(problem)
    assert (found.conflict_free, found.excess) == (True, 0)
    assert "no more wavefronts than the values need: " in explanation_report(problem, found)
    found = explain(constrained(replace(problem, published=None), families=("none",)))
    assert found.excess > 0
    assert any("at worst over all values, one takes" in reason for reason in found.reasons)
    assert {r.kind for r in found.relaxations} == {"families"}
