"""Phases that fill all banks and cannot all be free of conflicts, by arithmetic.

Each bank takes exactly one word of every phase that fills a view. If integers y_f make every word's sum of
y_f over such phases divisible by m, but not the sum of all y_f, no bank can do that: summing over the bank's
words gives both. (Rows, columns and wrapped diagonals of an even square are the case y = row, -column,
column - row.) This finds what cliques cannot, and is complete for "some phase that fills the view must have a
conflict, by arithmetic modulo powers of two".
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from layoutopt.ground.budget import current
from layoutopt.problems.text import listed
from layoutopt.problems.types import Problem
from layoutopt.proof.board import Board, Subject, View

UIntArray = npt.NDArray[np.uint64]

MAX_PHASES: Final = 512  # of a view: the time grows with their cube


class Combination(NamedTuple):
    """Factors y_f of phases, by index, that contradict one word of each in every bank: see the module."""

    modulus: int
    factors: dict[int, int]


class Parity(Struct, frozen=True):
    """Phases that fill all banks of a view and cannot all be free of conflicts."""

    view: View  # whose words
    combinations: tuple[Combination, ...]  # why not; where there is more than one, no phase is in all of them
    excess: int  # weighted excess that every layout has because of it

    def holds(self, subject: Subject) -> bool:
        """Whether each combination contradicts itself, word by word, and the excess follows."""
        board = subject.board
        for modulus, factors in self.combinations:
            sums: dict[int, int] = {}  # by word
            for i, y in factors.items():
                words = board.within(board.phases[i].words, self.view)
                if not board.phases[i].any_pair_costs or len(words) != board.view_banks(self.view):
                    return False
                for w in words:
                    sums[w] = sums.get(w, 0) + y
            if any(total % modulus for total in sums.values()) or not sum(factors.values()) % modulus:
                return False
        phases = [set(factors) for _, factors in self.combinations]
        weights = sorted(board.phases[i].weight for i in set().union(*phases))
        return self.excess <= (weights[0] if set.intersection(*phases) else weights[0] + weights[1])

    def data(self, subject: Subject, problem: Problem) -> dict[str, Any]:
        """The phases that it speaks of, and their factors, called weights, in each combination."""
        used = sorted(set().union(*(factors for _, factors in self.combinations)))
        return {
            **subject.board.view_data(self.view),
            "excess": self.excess,
            "phases": [subject.board.phases[i].first.phase_data(problem, subject.device) for i in used],
            "combinations": [
                {"modulus": modulus, "weights": [factors.get(i, 0) for i in used]}
                for modulus, factors in self.combinations
            ],
        }

    def sentences(self, subject: Subject, _: Problem) -> Iterator[str]:
        """The argument in words, from the weights of its first combination."""
        board, (modulus, factors) = subject.board, self.combinations[0]
        names = listed(subject.named({board.phases[i].first.access for i in factors}))
        banks, total = board.view_banks(self.view), sum(factors.values()) % modulus
        yield (
            f"Parity: every phase of {names} that counts here fills all {banks} banks, so a bank without "
            f"conflicts takes exactly one word of each. Give each of {len(factors)} phases a weight such "
            f"that the weights of the phases through any one word add up to a multiple of {modulus}. Then so "
            "does the sum over the words of a bank, which is the sum of all weights; but that is "
            f"{total} modulo {modulus}. So every bank misses some phase, in every layout "
            "(solve --certificate writes the weights)."
        )


def find_parity(board: Board, most_phases: int = MAX_PHASES) -> Parity | None:
    """The parity of most excess over all views; None if none is found within the time."""
    best: Parity | None = None
    for view, of_view in board.sharp_phases.items():
        banks = board.view_banks(view)
        full = {i: words for i, words in of_view.items() if len(words) == banks > 1}
        first = combination(full) if 0 < len(full) <= most_phases else None
        if first is not None:
            found = _strengthened(board, view, full, first)
            if best is None or found.excess > best.excess:
                best = found
    return best


def _strengthened(board: Board, view: View, full: dict[int, list[int]], first: Combination) -> Parity:
    """More combinations until no phase is in all of them: then two phases must have a conflict.

    `full`: the words, by phase, of those that fill the view. With `first` alone, one phase has a conflict.
    """
    combinations = [first]
    in_all = set(first.factors)
    while in_all:
        left_out = min(in_all)
        another = combination({i: words for i, words in full.items() if i != left_out})
        if another is None:
            return Parity(view, (first,), min(board.phases[i].weight for i in first.factors))
        combinations.append(another)
        in_all &= set(another.factors)
    weights = sorted(board.phases[i].weight for i in set().union(*(c.factors for c in combinations)))
    return Parity(view, tuple(combinations), weights[0] + weights[1])


def combination(full: dict[int, list[int]]) -> Combination | None:
    """Factors that contradict one word of every phase in each bank; None where none were found in the time.

    Gaussian elimination of `sum over the words of a phase of x_w = 1` over the 2-adic integers, to
    64 bits: the pivot always has the fewest factors of two, so a row whose left side is divisible by
    a power of two that does not divide its right side is a contradiction, and the only kind.

    Args:
        full: the words of each phase, by its index.
    """
    phases = list(full)
    words = sorted(set().union(*full.values()))
    column = {w: n for n, w in enumerate(words)}
    count = len(phases)
    left = np.zeros((count, len(words)), np.uint64)
    for row, of_phase in zip(left, full.values(), strict=True):
        row[[column[w] for w in of_phase]] = 1
    # The right side; then how the row is made of the phases.
    right = np.concatenate([np.ones((count, 1), np.uint64), np.eye(count, dtype=np.uint64)], axis=1)
    todo = list(range(count))
    while todo and not current().spent:
        # The pivot is the entry with the fewest factors of two, of which 0 has the most.
        lowest_bits = left[todo] & (~left[todo] + np.uint64(1))
        flat = int(np.where(lowest_bits == 0, np.uint64(2**64 - 1), lowest_bits).argmin())
        r, c = todo[flat // len(words)], flat % len(words)
        pivot = int(left[r, c])
        power = pivot & -pivot or 2**64  # of two, which divides row r; where that is 0, so are all others
        all_zero = pivot == 0
        for k in todo if all_zero else [r]:
            value = int(right[k, 0])
            if value % power:  # the power divides the left side, and not the right side
                modulus = 2 * (value & -value)  # divides the left side, too
                factors = {i: int(y) % modulus for i, y in zip(phases, right[k, 1:], strict=True)}
                return Combination(modulus, {i: y for i, y in factors.items() if y})
        if all_zero:
            return None
        todo.remove(r)
        if todo:  # column c of the other rows becomes 0
            inverse = pow(pivot // power, -1, 2**64)
            multiple = (left[todo, c] // np.uint64(power)) * np.uint64(inverse)
            left[todo] -= multiple[:, None] * left[r]
            right[todo] -= multiple[:, None] * right[r]
    return None
