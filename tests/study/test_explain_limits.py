"""What `explain` asks beside the search ends with its time."""

from layoutopt.engine.case import case_of
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import device
from layoutopt.layout.layout import Digit, Layout
from layoutopt.search.deal import lane_order
from layoutopt.study.clash import Clashes
from layoutopt.study.relaxations import Relaxations

COLUMNS = {"name": "columns", "op": "load", "bytes": 8, "index": ["tid", "0"]}


def columns():
    tile = {"shape": [64, 32], "element": "f64"}
    return from_data({"name": "c", "tile": tile, "threads": 64, "accesses": [COLUMNS]})


def test_questions_stay_open_once_the_time_is_over():
    case = case_of(columns(), device("sm_90"))
    assert Clashes(case, Budget()).possible(case.lowered.accesses) is True
    late = Clashes(case, Budget(0))
    assert late.possible(case.lowered.accesses) is None
    assert late.smallest(case.lowered.accesses) == (list(case.lowered.accesses), False)


def test_no_order_of_lanes_is_sought_once_the_time_is_over(monkeypatch):
    case = case_of(columns(), device("sm_90"))
    access = case.lanes.accesses[0]
    monkeypatch.setattr("layoutopt.search.deal.free_assignment", None)
    rule = case.device.rule(access.operation)
    assert lane_order((), case.lanes, case.lowered.tile, access, rule, budget=Budget(0)) is None


def test_phases_of_hundreds_of_accesses_are_not_gathered_once_the_time_is_over(monkeypatch):
    case = case_of(columns(), device("sm_90"))
    layout = Layout((64, 32), 8, (Digit(0, 1, 64, 32), Digit(1, 1, 32, 1)))
    monkeypatch.setattr("layoutopt.study.relaxations.phase_sets", None)
    monkeypatch.setattr("layoutopt.study.relaxations.lane_order", None)
    late = Relaxations(case, Clashes(case, Budget(0)))
    assert not list(late.lane_orders(layout, ()))
