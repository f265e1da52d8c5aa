"""One problem lowered once: what a case says is what its parts say, whatever the problem leaves open."""

import numpy as np
import pytest
from written import one_tile, reads, writes

from layoutopt.engine.case import case_of, cases
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import parse
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.layout.layout import Digit, Layout
from layoutopt.problems.types import Constraints

ROWS = writes("rows", 4, ["i", "tid"], i=32)
COLUMNS = reads("columns", 4, ["tid", "i"], i=32)
ANY = reads("columns", 4, ["tid", "v"], any={"v": 32})
NAMES = frozenset(("x0", "x1"))


def problem(*accesses, element="f32", shape=(32, 32)):
    return from_data(one_tile("case", list(shape), element, 32, list(accesses)))


def test_a_formula_and_a_layout_are_one_table():
    case = case_of(problem(ROWS, COLUMNS), device("sm_90"))
    layout = Layout((32, 32), 4, (Digit(0, 1, 32, 33), Digit(1, 1, 32, 1)))
    table = case.table(layout)
    assert (table == case.table(parse("x0*33 + x1", NAMES))).all()
    case.check(table)
    assert case.size(table) == 4 * (31 * 33 + 32)
    assert [r.excess for r in case.measure(layout)] == [0, 0]
    assert [r.excess for r in case.measure(parse("x0*32 + x1", NAMES))] == [0, 32 * 31]


def test_lanes_that_choose_are_counted_like_lanes_that_do_not():
    case = case_of(problem(ROWS, ANY), device("sm_90"))
    plain, padded = (case.table(parse(f"x0*{pitch} + x1", NAMES)) for pitch in (32, 33))
    known, choosing = case.count(padded)
    assert known.wavefronts.sum() == 32
    assert choosing.wavefronts.tolist() == [32]  # some choice puts all lanes into one bank
    assert case.chooses
    assert [a.weight.any() for a in case.certain.accesses] == [True, False]
    assert case.weighted_excess(case.count(plain)) == sum(r.excess for r in case.measure(_plain()))


def _plain():
    return Layout((32, 32), 4, (Digit(0, 1, 32, 32), Digit(1, 1, 32, 1)))


def test_one_case_for_each_choice_of_widths():
    rows = writes("rows", [8, 16], ["4*i + tid//8", "4*(tid % 8)"], i=8)
    asked = problem(rows, COLUMNS)
    found = list(cases(asked, device("sm_90")))
    assert [case.widths for case in found] == [{"rows": 16}, {"rows": 8}]
    again = case_of(asked, device("sm_90"), {"rows": 8})
    assert again.problem == found[1].problem
    assert [(r.name, r.bytes) for r in again.measure(_plain())] == [("rows", 8), ("columns", None)]
    assert again.place(0, 5) == (0, {"i": 2, "part": 1})


def test_packed_elements_are_counted_as_bytes():
    rows = reads("rows", 4, ["tid", "8*i"], i=4)
    case = case_of(problem(rows, element="i4"), device("sm_90"))
    assert case.lowered.tile.shape == (32, 16)
    padded = Layout((32, 16), 1, (Digit(0, 1, 32, 20), Digit(1, 1, 16, 1)))
    shown = case.as_elements(padded)
    assert shown.shape == (32, 32)
    assert case.as_bytes(shown) == padded
    tables = case.table(padded), case.table(shown), case.table(parse("x0*40 + x1", NAMES))
    assert all((table == tables[0]).all() for table in tables)
    assert [r.excess for r in case.measure(shown)] == [0]


def test_what_does_not_serve_is_refused():
    case = case_of(problem(ROWS, COLUMNS), device("sm_90"))
    with pytest.raises(LayoutError, match="overlap"):
        case.check(np.zeros(1024, np.int64))
    with pytest.raises(LayoutError, match="made for a tile of shape"):
        case.table(Layout((16, 32), 4, (Digit(0, 1, 16, 32), Digit(1, 1, 32, 1))))


def test_constraints_are_put_in_place_of_the_file_s():
    case = case_of(problem(ROWS, COLUMNS), device("sm_90"))
    other = case.constrained(Constraints(max_bytes=4096))
    assert other.lowered.layout.max_bytes == other.asked.layout.max_bytes == 4096
    assert other.lanes is case.lanes
