"""Chunks that meet nothing fill what is left, as one after the other in the lowest column would."""

import numpy as np

from layoutopt.model.placement import _lowest


def test_the_lowest_places_come_first():
    generator = np.random.default_rng(0)
    for _ in range(100):
        height = generator.integers(0, generator.integers(1, 9), generator.integers(1, 9))
        filled, wanted = height.copy(), []
        for _ in range(generator.integers(0, 30)):
            column = int(filled.argmin())
            wanted.append((int(filled[column]), column))
            filled[column] += 1
        rows, columns = _lowest(height, len(wanted))
        assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == wanted
