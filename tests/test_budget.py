import threading

import pytest

from layoutopt.budget import Budget, OutOfTime
from layoutopt.model.cp_sat import Model, Outcome, _response


def test_without_a_limit_there_is_always_time():
    budget = Budget()
    assert budget.seconds is None
    assert budget.share_left == 1.0
    assert budget.affords(1e9)
    assert list(budget.while_left(range(3))) == [0, 1, 2]
    budget.check()


def test_a_part_ends_before_the_whole_and_stops_with_it():
    whole = Budget(1000.0)
    part = whole.part(0.25)
    assert part.seconds < 251
    assert not part.affords(300)
    assert whole.affords(300)
    whole.stop()
    assert part.spent
    assert part.stopped
    with pytest.raises(OutOfTime):
        part.part(0.5).check()


def test_a_part_of_no_limit_has_none():
    assert Budget().part(0.5).seconds is None


def test_items_end_with_the_time():
    budget = Budget(1000.0)
    seen = []
    for item in budget.while_left(range(10)):
        seen.append(item)
        if item == 2:
            budget.stop()
    assert seen == [0, 1, 2]


def test_who_comes_late_is_told_at_once():
    budget = Budget()
    budget.stop()
    told = threading.Event()
    with budget.telling(told.set):
        assert told.is_set()


def test_a_running_solve_is_left_behind_and_never_stopped_from_outside():
    budget, release = Budget(), threading.Event()

    class Wrapper:
        def solve(self, proto):
            budget.stop()
            release.wait()

        def stop_search(self):
            raise AssertionError("races with the solve")

    assert _response(Wrapper(), None, budget) is None
    release.set()


def test_an_error_of_the_solver_reaches_the_caller():
    class Wrapper:
        def solve(self, proto):
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        _response(Wrapper(), None, Budget())


def test_a_stopped_budget_solves_nothing():
    budget = Budget()
    budget.stop()
    model = Model()
    model.clause([model.boolean()])
    assert model.solve(budget).outcome is Outcome.UNKNOWN
    assert model.solve(Budget()).outcome is Outcome.OPTIMAL
