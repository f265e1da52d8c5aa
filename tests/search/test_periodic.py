"""Tables of one period: tiles too large for a table of all offsets."""

import numpy as np
import pytest

import layoutopt
from layoutopt.codegen.languages import emit
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import evaluate, to_text
from layoutopt.hardware.devices import device
from layoutopt.layout.formula import element_expression
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Status


def matrices(count, **more):
    """32x24 words each: rows and columns of one after the other."""
    accesses = [
        {"name": "rows", "index": ["b", "c", "tid"], "for": {"b": count, "c": 32}, "where": "tid < 24"},
        {"name": "columns", "index": ["b", "tid", "c"], "for": {"b": count, "c": 24}},
    ]
    tile = {"shape": [count, 32, 24], "element": "f32"}
    accesses = [{**access, "op": "load", "bytes": 4} for access in accesses]
    return layoutopt.problem(name="matrices", tile=tile, threads=32, accesses=accesses, **more)


def test_a_table_of_one_matrix_serves_all(monkeypatch):
    """Pads leave no conflicts in more bytes; no formula of these families does in the tile's own."""
    for module in ("search.periodic", "search.as_table"):
        monkeypatch.setattr(f"layoutopt.{module}.MAX_LOOKUP", 1000)
    asked = matrices(2, layout={"families": ["none", "pad", "table"]})
    result = layoutopt.solve(asked)
    assert (result.status, result.excess, result.bytes, result.family) == (Status.OPTIMAL, 0, 6144, "table")
    assert result.proof.bytes.everywhere
    assert len(result.layout.lookup) == 768
    assert result.offset.startswith("x0*768 + (x1*25 + x2 - ([")
    offsets = result.layout.byte_offset(*np.indices((2, 32, 24)))
    for lines in (offsets, offsets.transpose(0, 2, 1)):
        banks = np.sort(lines // 4 % 32, axis=-1)
        assert (np.diff(banks, axis=-1) > 0).all()
    assert "matrices_lookup_table[31] = {" in emit("cuda", asked, device("sm_90"), result)
    check = layoutopt.check(asked, result.layout)
    assert check.excess == 0


def test_offsets_of_a_period_come_again():
    layout = Layout((6, 4), 4, (), lookup=(1, 0, 3, 2, 6, 7, 4, 5))
    assert layout.table().ravel().tolist() == [
        4 * (8 * k + place) for k in range(3) for place in layout.lookup
    ]
    assert layout.declared_bytes == 96
    grid = dict(zip(("x0", "x1"), np.indices((6, 4)), strict=True))
    node = element_expression(layout)
    assert (evaluate(node, grid) * 4 == layout.table()).all()
    lines = Layout((6, 4), 4, (), lookup=(1, 2, 3, 0))
    assert to_text(element_expression(lines)) == "x0*4 + (x1 % 3 + 1 - x1 // 3)"


@pytest.mark.parametrize("lookup", [(0, 1, 2, 3, 4), (0, 1, 2, 9)])
def test_a_period_divides_the_tile_and_holds_its_offsets(lookup):
    with pytest.raises(LayoutError, match="period"):
        Layout((6, 4), 4, (), lookup=lookup)
