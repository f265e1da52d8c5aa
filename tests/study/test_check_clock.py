"""What `check` must count in any case ends with the clock where lanes choose at run time."""

import numpy as np
import pytest
from written import reads

from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.search.solve import solve
from layoutopt.study import nearest_edit
from layoutopt.study.check import check

PROBLEM = {
    "name": "histogram",
    "tile": {"shape": [256], "element": "u32"},
    "threads": 32,
    "accesses": [{"name": "add", "op": "atomic", "index": ["b"], "bytes": 4, "any": {"b": 256}}],
}


@pytest.mark.parametrize("layout", ["x0", 4 * np.arange(256)])
def test_lanes_that_choose_are_counted_by_the_clock(layout):
    problem = from_data(PROBLEM)
    assert check(problem, layout, counting=Budget()).excess == check(problem, layout).excess
    with pytest.raises(OutOfTime):
        check(problem, layout, counting=Budget(0))
    # Lanes that are known are counted without it.
    known = from_data(PROBLEM | {"accesses": [reads("read", 4, ["lane"])]})
    assert check(known, layout, counting=Budget(0)).excess == 0


def test_a_long_formula_of_many_elements_is_estimated_and_edited_by_the_clock(monkeypatch):
    columns = reads("read", 4, ["lane", "0"])
    problem = from_data(PROBLEM | {"tile": {"shape": [32, 32], "element": "u32"}, "accesses": [columns]})
    text = "x0*32 + (x1 ^ x0 // 1024)"
    assert check(problem, text, solver=solve, budget=Budget(0)).edit is not None
    monkeypatch.setattr(nearest_edit, "_QUICK_OPERATIONS", 1024)
    found = check(problem, text, solver=solve, budget=Budget(0))
    assert (found.edit, found.estimate, found.excess) == (None, None, 31)
