"""Free assignments found bank by bank: exact covers, and what is left spread at little cost."""

import numpy as np

from layoutopt.ground.budget import Budget
from layoutopt.model.balance import Row
from layoutopt.model.bank_by_bank import bank_by_bank


def found(phases, banks, effort=5.0):
    """The excess of each phase under what comes out bank by bank, twice the same."""
    count = 1 + max(map(max, phases))
    rows = [Row(phase, [1] * len(phase), -(-len(phase) // banks)) for phase in phases]
    first, again = (bank_by_bank(rows, [1] * len(rows), count, banks, Budget(), effort) for _ in range(2))
    assert (first == again).all()
    assert first.min() >= 0
    assert first.max() < banks
    return [int(np.bincount(first[row.chunks]).max()) - row.most for row in rows]


def lines(n, *steps):
    """Rows of an n x n square, and lines that go so many columns to the right from row to row."""
    square = np.arange(n * n).reshape(n, n)
    turned = [square[np.arange(n), (np.arange(n) * step + start) % n] for step in steps for start in range(n)]
    return [line.tolist() for line in [*square, *turned]]


def test_rows_columns_and_diagonals_of_an_odd_square():
    assert not any(found(lines(7, 0, 1), 7))


def test_more_chunks_than_banks():
    """Phases of five chunks on two banks cost three each; the columns nothing."""
    phases = [line for line in lines(5, 0) if line[1] == line[0] + 1] + [[0, 5], [1, 6], [2, 7]]
    assert not any(found(phases, 2))


def test_what_no_bank_can_take_costs_little():
    """Rows, columns and diagonals of an even square leave two wavefronts at least."""
    assert sum(found(lines(2, 0, 1), 2)) == 2


def test_the_last_bank_takes_what_is_left():
    assert not any(found([[0, 1, 2], [2, 3, 4], [4, 5], [6, 0]], 4))


def test_without_time_every_chunk_lies_somewhere():
    budget = Budget()
    budget.stop()
    rows = [Row([0, 1, 2], [1, 1, 1], 1)]
    assert (bank_by_bank(rows, [1], 3, 4, budget, 1.0) >= 0).all()
