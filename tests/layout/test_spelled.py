"""Tables that have a formula: found, printed, emitted."""

import subprocess

import numpy as np
import pytest
from emit_programs import emit
from written import batched_rows_and_columns

from layoutopt.expressions.grammar import evaluate, lookups, to_text
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Layout
from layoutopt.layout.spelled import spelled


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
