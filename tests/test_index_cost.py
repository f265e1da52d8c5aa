"""The index cost: operations of the printed offset, called least only where nothing is cheaper."""

import pytest

from layoutopt.engine.case import case_of
from layoutopt.expressions.count import operations
from layoutopt.expressions.grammar import parse
from layoutopt.hardware.devices import device
from layoutopt.problems.file import from_data
from layoutopt.synthesis.solve import solve


def problem(shape, element, *accesses, **layout):
    described = [
        {"name": f"a{k}", "op": "load", "bytes": width, "index": index, "for": {"i": trips}}
        for k, (width, index, trips) in enumerate(accesses)
    ]
    tile = {"shape": shape, "element": element}
    return from_data({"name": "p", "tile": tile, "threads": 32, "accesses": described, "layout": layout})


def cost(text):
    return operations(parse(text, frozenset(("x0", "x1"))))


def test_a_spelling_that_is_cheaper_than_the_printed_one():
    """Flipping inside words, which no swizzle of the model does, needs neither the shift nor the mask."""
    asked = problem(
        [256, 32], "i8", (4, ["32*i", "4*(tid % 8)"], 8), (1, ["tid + 32*(i // 32)", "i % 32"], 256)
    )
    result = solve(asked)
    cheap = "x0*32 + (x1 ^ x0 % 32)"
    case = case_of(asked, device("sm_90"))
    table = case.table(parse(cheap, frozenset(("x0", "x1"))))
    case.check(table)
    assert (
        (case.weighted_excess(case.count(table)), case.size(table))
        == (result.excess, result.bytes)
        == (0, 8192)
    )
    assert (result.proof.index_cost.value, result.proof.index_cost.proved) == (cost(result.offset), False)
    assert cost(cheap) < cost(result.offset)


@pytest.mark.parametrize(
    ("accesses", "layout", "offset", "proved"),
    [
        ([(4, ["i", "tid"], 32)], {}, "x0*32 + x1", True),
        ([(4, ["i", "tid"], 32), (4, ["tid", "i"], 32)], {}, "x0*32 + (x1 ^ x0)", True),
        ([(4, ["i", "tid"], 32), (4, ["tid", "i"], 32)], {"families": ["pad"]}, "x0*33 + x1", True),
        ([(4, ["i", "tid"], 32), (4, ["tid", "i"], 32)], {"families": ["rotate"]}, None, False),
    ],
)
def test_the_cost_is_that_of_the_printed_offset(accesses, layout, offset, proved):
    result = solve(problem([32, 32], "f32", *accesses, **layout))
    assert offset is None or result.offset == offset
    assert (result.proof.index_cost.value, result.proof.index_cost.proved) == (cost(result.offset), proved)
