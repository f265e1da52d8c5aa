"""Padded layouts folded into the tile's own bytes, with the wavefronts that they have."""

import numpy as np
import pytest
from oracle.banks import weighted_excess
from test_free import free, rows_columns_diagonals
from written import batched_rows_and_columns

from layoutopt.accesses.trace import trace
from layoutopt.engine.case import cases
from layoutopt.expressions.grammar import lookups
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import device
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Digit, Layout
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import free_assignment
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, Status
from layoutopt.report.text import report
from layoutopt.search.proposal import Ask, Proposal
from layoutopt.search.solve import solve
from layoutopt.search.tables import of_every_layout
from layoutopt.search.verify import verified


@pytest.mark.parametrize(
    ("size", "count", "element", "width", "strides"),
    [
        (10, 12, "f32", 4, (10, 129, 1)),
        (10, 12, "f64", 8, (10, 121, 1)),
        (11, 11, "f32", 4, (11, 129, 1)),
        (11, 16, "f64", 8, (11, 177, 1)),
    ],
)
def test_a_pad_is_folded_into_the_bytes_of_the_tile(size, count, element, width, strides):
    problem = from_data(batched_rows_and_columns(size, count, element, width))
    gpu = device("sm_90")
    padded = sum(s * x for s, x in zip(strides, np.indices(problem.tile.shape), strict=True)) * width
    lanes, found = free(problem, gpu, hint=padded)
    assert padded.max() + width > problem.tile.bytes
    assert found.complete
    assert (found.excess, found.bytes) == (0, problem.tile.bytes)
    assert sorted(found.table.ravel()) == list(range(0, problem.tile.bytes, width))
    assert weighted_excess(found.table, lanes, gpu) == 0


def test_what_weighs_nothing_has_no_conflicts_either():
    data = batched_rows_and_columns(7, 7, "f32", 4)
    for access in data["accesses"]:
        access["weight"] = "j"
    problem = from_data(data)
    result = solve(problem, time_limit=20)
    assert (result.excess, result.bytes) == (0, 1372)
    assert ("table      343 entries, 686 bytes" in report(problem, result)) == ("lookup" in result.offset)


def test_excess_stays_what_it_is_where_bytes_are_saved():
    problem = from_data(batched_rows_and_columns(6, 5, "f32", 4))
    gpu = device("sm_90")
    lanes = trace(problem, gpu)
    padded = sum(s * x for s, x in zip((43, 7, 1), np.indices(problem.tile.shape), strict=True)) * 4
    sets = phase_sets(lanes, problem.tile, gpu)
    found = free_assignment(sets, lanes, problem.tile, budget=Budget(), hint=padded)
    assert found.excess <= weighted_excess(padded, lanes, gpu)
    assert found.bytes == problem.tile.bytes


def test_a_table_is_found_where_the_search_ended_before_it_asked_for_one():
    problem, gpu = from_data(batched_rows_and_columns(10, 12, "f32", 4)), device("sm_90")
    case = next(iter(cases(problem, gpu, Budget())))
    digits = (Digit(1, 1, 10, 129), Digit(0, 1, 12, 10), Digit(2, 1, 10, 1))
    padded = Layout(problem.tile.shape, 4, digits)
    open_bytes = Proposal(
        layout=padded,
        family="pad",
        weighted_excess=0,
        bytes=int(padded.table().max()) + 4,
        excess_bound=Bound(0, EVERY_LAYOUT),
        bytes_bound=Bound(problem.tile.bytes, EVERY_LAYOUT),
        plain_floor=0,
        reason="out of time",
    )
    better = of_every_layout(case, open_bytes, Ask())
    result = verified(case, better).result
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, 0, 4800)


def spelling(table, element_bytes):
    layout = Layout(table.shape, element_bytes, (), lookup=tuple((table.ravel() // element_bytes).tolist()))
    return offset_expression(layout)


def test_turned_lines_serve_rows_columns_and_wrapped_diagonals():
    problem, gpu = rows_columns_diagonals(31, 32), device("sm_90")
    lanes, found = free(problem, gpu)
    assert (found.excess, found.bytes, found.complete) == (0, 31 * 32 * 4, True)
    assert weighted_excess(found.table, lanes, gpu) == 0
    assert not lookups(spelling(found.table, 4))


def test_the_end_of_a_pad_goes_into_its_holes_by_a_small_table():
    problem, gpu = from_data(batched_rows_and_columns(10, 12, "f64", 8)), device("sm_90")
    x, y, z = np.indices(problem.tile.shape)
    lanes, found = free(problem, gpu, hint=(10 * x + 121 * y + z) * 8)
    assert (found.excess, found.bytes, found.complete) == (0, problem.tile.bytes, True)
    assert weighted_excess(found.table, lanes, gpu) == 0
    (small,) = lookups(spelling(found.table, 8))
    assert len(small.values) == 9
