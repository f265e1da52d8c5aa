"""Tables that have a formula: found, printed, emitted."""

import subprocess

import numpy as np
import pytest
from test_balance import batched_rows_and_columns
from test_free import free, weighted_excess

from layoutopt.codegen.languages import emit
from layoutopt.expressions.grammar import evaluate, lookups, to_text
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Layout
from layoutopt.layout.spelled import spelled

ROWS_COLUMNS_DIAGONALS = {
    "schema": "layoutopt.problem/1",
    "name": "diagonals",
    "target": "sm_90",
    "tile": {"shape": [31, 32], "element": "f32"},
    "threads": 32,
    "accesses": [
        {"name": "rows", "op": "load", "bytes": 4, "index": ["i", "tid"], "for": {"i": 31}},
        {
            "name": "columns",
            "op": "load",
            "bytes": 4,
            "index": ["tid", "j"],
            "for": {"j": 32},
            "where": "tid < 31",
        },
        {
            "name": "diagonals",
            "op": "load",
            "bytes": 4,
            "index": ["tid", "(tid + j) % 32"],
            "for": {"j": 32},
            "where": "tid < 31",
        },
    ],
}


def layout(table, element_bytes=4):
    return Layout(table.shape, element_bytes, (), lookup=tuple(table.ravel().tolist()))


@pytest.mark.parametrize(
    ("shape", "offset"),
    [
        ((31, 32), lambda x, y: x * 32 + (y + x + x // 16) % 32),
        ((31, 32), lambda x, y: y * 31 + (x + 3 * y) % 31),
        ((5, 4, 6), lambda x, y, z: y * 30 + (x * 6 + z + 7 * y) % 30),
        ((5, 4, 6), lambda x, y, z: x * 24 + (z * 4 + y + (5 * x - x // 2)) % 24),
        ((6, 10), lambda x, y: x * 10 + (y + np.array([3, 1, 4, 1, 5, 9])[x]) % 10),
        ((4, 8), lambda x, y: x * 8 + (y ^ x)),
    ],
)
def test_a_table_with_a_formula_is_spelled(shape, offset):
    table = offset(*np.indices(shape))
    node = offset_expression(layout(table))
    assert all(len(found.values) <= 6 for found in lookups(node)), to_text(node)
    values = evaluate(node, {f"x{d}": g for d, g in enumerate(np.indices(shape))})
    assert (values == table).all()


def test_a_table_without_a_formula_stays_a_table():
    table = np.random.default_rng(3).permutation(24).reshape(4, 6)
    assert spelled(tuple(table.ravel().tolist()), (4, 6)) is None
    assert to_text(offset_expression(layout(table))) == "lookup[x0*6 + x1]"


def test_turned_lines_serve_rows_columns_and_wrapped_diagonals():
    problem = from_data(ROWS_COLUMNS_DIAGONALS)
    gpu = device("sm_90")
    lanes, found = free(problem, gpu)
    assert (found.excess, found.bytes, found.complete) == (0, 31 * 32 * 4, True)
    assert weighted_excess(found.table, lanes, gpu) == 0
    assert not lookups(offset_expression(layout(found.table // 4)))


def test_the_end_of_a_pad_goes_into_its_holes_by_a_small_table():
    problem = from_data(batched_rows_and_columns(10, 12, "f64", 8))
    gpu = device("sm_90")
    x, y, z = np.indices(problem.tile.shape)
    lanes, found = free(problem, gpu, hint=(10 * x + 121 * y + z) * 8)
    assert (found.excess, found.bytes, found.complete) == (0, problem.tile.bytes, True)
    assert weighted_excess(found.table, lanes, gpu) == 0
    (small,) = lookups(offset_expression(layout(found.table // 8, 8)))
    assert len(small.values) == 9


def test_code_of_a_formula_with_a_small_table(tmp_path):
    v = "x0*11 + x1*3 + x2"
    offset = f"{v} - ([8, 10][{v} - 18] if {v} >= 18 else 0)"
    problem, gpu = from_data(batched_rows_and_columns(3, 2, "f32", 4)), device("sm_90")
    (tmp_path / "tile.h").write_text(emit("c", problem, gpu, offset))
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "tile.h"\n'
        'int main(void) { printf("%u %u\\n", batched_offset_bytes(1, 2, 2), batched_offset_bytes(1, 2, 0)); }\n'
    )
    flags = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    subprocess.run(["cc", *flags, "main.c"], cwd=tmp_path, check=True)
    out = subprocess.run([tmp_path / "a.out"], capture_output=True, text=True, check=True).stdout
    assert out == f"{4 * 9} {4 * 17}\n"
