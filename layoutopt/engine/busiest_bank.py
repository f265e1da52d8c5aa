"""The expected load of the busiest bank, where lanes choose words independently of each other.

With word w chosen with probability p_w, P(no bank serves more than m distinct words) is k! times the
coefficient of z^k, for k lanes, in the product over banks of the sum over j <= m of the elementary symmetric
polynomials e_j(exp(p_w z) - 1). Where equal addresses are served one by one, the factor of a bank of
probability P is the sum over j <= m of (P z)^j / j!. (Flajolet and Sedgewick, Analytic Combinatorics, II.3.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def expected_most(
    chance: dict[int, float], absent: float, lanes: int, banks: int, serialises_equal: bool
) -> float:
    """The sum over m of P(the busiest bank serves more than m).

    Args:
        chance: of each word that a lane may choose.
        absent: chance that a lane takes no part.
        lanes: how many choose.
        banks: a word w lies in bank w % banks.
        serialises_equal: whether lanes that choose one word are served one by one.
    """
    by_bank: dict[int, list[float]] = {}
    for unit, p in chance.items():
        by_bank.setdefault(unit % banks, []).append(p)
    alike = Counter(tuple(sorted(ps)) for ps in by_bank.values())
    factors = {ps: _bank_series(ps, lanes, serialises_equal) for ps in alike}
    expected = 0.0
    for m in range(lanes):
        series = _exponential(absent, lanes)
        for ps, count in sorted(alike.items()):
            factor = factors[ps][: m + 1].sum(axis=0)
            for _ in range(count):
                series = np.convolve(series, factor)[: lanes + 1]
        # The series are in z * lanes, so that no coefficient leaves the range of a double.
        within = float(series[lanes]) * math.exp(math.lgamma(lanes + 1) - lanes * math.log(lanes))
        expected += max(0.0, 1 - within)
    return expected


def _exponential(p: float, lanes: int) -> npt.NDArray[Any]:
    """exp(p * lanes * z) up to z^lanes."""
    return np.cumprod([1.0, *(p * lanes / j for j in range(1, lanes + 1))])


def _bank_series(ps: Sequence[float], lanes: int, serialises_equal: bool) -> npt.NDArray[Any]:
    """Row j: the series of one bank serving exactly j; shape (lanes + 1, lanes + 1)."""
    if serialises_equal:
        return np.diag(_exponential(sum(ps), lanes))
    rows = np.zeros((lanes + 1, lanes + 1))
    rows[0, 0] = 1
    for p, times in sorted(Counter(ps).items()):
        hit = _exponential(p, lanes)
        hit[0] = 0
        some, before = rows.copy(), rows
        for j in range(1, min(times, lanes) + 1):  # j of the words of this chance: the binomial series
            before = np.array([np.convolve(row, hit)[: lanes + 1] for row in before]) * ((times - j + 1) / j)
            some[j:] += before[:-j]
        rows = some
    return rows
