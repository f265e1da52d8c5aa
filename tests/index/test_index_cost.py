"""The index cost: instructions of the emitted code, called least only where no layout takes fewer."""

import pytest
from written import one_tile, reads, writes

from layoutopt.codegen.languages import run_plan
from layoutopt.engine.case import case_of
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.search.solve import solve
from layoutopt.study.compare import compare


def problem(shape, element, *accesses, **layout):
    described = [reads(f"a{k}", width, index, i=trips) for k, (width, index, trips) in enumerate(accesses)]
    tile = {"shape": shape, "element": element}
    return from_data({"name": "p", "tile": tile, "threads": 32, "accesses": described, "layout": layout})


def instructions(problem, layout):
    return sum(code.instructions.total for code in case_of(problem, device("sm_90")).index_code(layout))


@pytest.mark.parametrize(
    ("accesses", "layout", "offset", "proved"),
    [
        ([(4, ["i", "tid"], 32)], {}, "x0*32 + x1", True),
        ([(4, ["i", "tid"], 32), (4, ["tid", "i"], 32)], {}, "x0*32 + (x1 ^ x0)", False),
        ([(4, ["i", "tid"], 32), (4, ["tid", "i"], 32)], {"families": ["pad"]}, "x0*33 + x1", True),
        ([(4, ["i", "tid"], 32), (4, ["tid", "i"], 32)], {"families": ["rotate"]}, None, False),
        ([(4, ["0", "i"], 32), (4, ["i", "tid"], 32)], {}, "x0*32 + x1", True),
    ],
)
def test_the_cost_is_that_of_the_emitted_code_and_least_where_every_access_takes_what_it_must(
    accesses, layout, offset, proved
):
    asked = problem([32, 32], "f32", *accesses, **layout)
    result = solve(asked)
    cost = result.proof.index_cost
    assert offset is None or result.offset == offset
    assert cost.value == instructions(asked, result.layout)
    assert cost.value == sum(
        a.code.instructions.total for a in run_plan(asked, device("sm_90"), result).accesses
    )
    assert cost.proved is proved


@pytest.mark.parametrize(
    ("threads", "element", "width", "index", "least"),
    [
        (32, "f32", 4, ["i", "tid"], 1),
        (32, "f32", 4, ["tid % 4", "i"], 1),
        (32, "f32", 4, ["i", "3"], 0),  # one address for all
        (32, "u8", 1, ["i", "tid"], 0),  # the number of the thread is its address
        (32, "u8", 4, ["i", "tid // 8 * 4"], 1),
        (1, "f32", 4, ["i", "tid"], 0),
    ],
)
def test_what_no_layout_undercuts(threads, element, width, index, least):
    data = {"name": "p", "tile": {"shape": [32, 32], "element": element}, "threads": threads}
    data["accesses"] = [reads("a", width, index, i=32)]
    assert case_of(from_data(data), device("sm_90")).least_instructions == least


def test_instructions_first_takes_no_more_of_them_than_any_row():
    accesses = [
        writes("fill", 4, ["tid // 32 + 2*i", "tid % 32"], i=8),
        reads("use", 16, ["tid // 4", "4*(tid % 4) + 16*k"], k=2),
    ]
    data = one_tile("tile", [16, 32], "f32", 64, accesses)
    usual = from_data(data)
    first = from_data(data | {"layout": {"minimise": "instructions"}})
    rows = compare(usual).rows
    for conflict_free in (False, True):
        result = solve(first, conflict_free=conflict_free)
        assert result.proof.index_cost.value == instructions(usual, result.layout)
        mine = [row.instructions for row in rows if row.excess == 0 or not conflict_free]
        assert result.proof.index_cost.value <= min(mine)
        assert result.excess == 0 or not conflict_free
        assert result.status == "feasible" or result.proof.index_cost.proved
