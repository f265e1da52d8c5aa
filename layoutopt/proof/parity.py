"""Phases that fill all banks and cannot all be free of conflicts, by arithmetic.

Each bank takes exactly one word of every phase that fills a view. If integers y_f make every word's sum of
y_f over such phases divisible by m, but not the sum of all y_f, no bank can do that: summing over the bank's
words gives both. (Rows, columns and wrapped diagonals of an even square are the case y = row, -column,
column - row.) This finds what cliques cannot, and is complete for "some phase that fills the view must have a
conflict, by arithmetic modulo powers of two".
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from layoutopt.ground.budget import current
from layoutopt.problems.text import listed
from layoutopt.problems.types import Problem
from layoutopt.proof.board import Board, Subject, View

UIntArray = npt.NDArray[np.uint64]

MAX_PHASES: Final = 512  # of a view: the time grows with their cube


class Parity(Struct, frozen=True):
    """Weights of phases that no perfect spread can satisfy.

    Attributes:
        view: whose words.
        combinations: (modulus, weight of each phase by index); no phase has a weight in all of them
            where there is more than one.
        excess: weighted excess that every layout has because of it.
    """

    view: View
    combinations: tuple[tuple[int, dict[int, int]], ...]
    excess: int


def find_parity(on: Board, most_phases: int = MAX_PHASES) -> Parity | None:
    """The parity of most excess over all views; None if none is found within the time."""
    best: Parity | None = None
    for view in on.views():
        banks = on.banks // view[0]
        held = {i: on.within(phase.words, view) for i, phase in enumerate(on.phases) if phase.firm}
        full = {i: words for i, words in held.items() if len(words) == banks > 1}
        first = combination(full) if 0 < len(full) <= most_phases else None
        if first is not None:
            found = _strengthened(on, view, full, first)
            if best is None or found.excess > best.excess:
                best = found
    return best


def _strengthened(
    on: Board, view: View, full: dict[int, list[int]], first: tuple[int, dict[int, int]]
) -> Parity:
    """More combinations until no phase is in all of them: then two phases must have a conflict."""
    combinations = [first]
    common = set(first[1])
    one = min(on.phases[i].weight for i in common)
    while common:
        left_out = min(common)
        another = combination({i: held for i, held in full.items() if i != left_out})
        if another is None:
            return Parity(view, (first,), one)
        combinations.append(another)
        common &= set(another[1])
    weights = sorted(on.phases[i].weight for i in set().union(*(set(y) for _, y in combinations)))
    return Parity(view, tuple(combinations), weights[0] + weights[1])


def combination(full: dict[int, list[int]]) -> tuple[int, dict[int, int]] | None:
    """A modulus and weights that contradict one word of every phase in each bank; None if none were found.

    Gaussian elimination of `sum over the words of a phase of x_w = 1` over the 2-adic integers, to
    64 bits: the pivot always has the fewest factors of two, so a row whose left side is divisible by
    a power of two that does not divide its right side is a contradiction, and the only kind.
    """
    phases = list(full)
    words = sorted({w for held in full.values() for w in held})
    column = {w: n for n, w in enumerate(words)}
    count = len(phases)
    left = np.zeros((count, len(words)), np.uint64)
    for n, i in enumerate(phases):
        left[n, [column[w] for w in full[i]]] = 1
    # Right side, then how the row is made of the phases.
    right = np.concatenate([np.ones((count, 1), np.uint64), np.eye(count, dtype=np.uint64)], axis=1)
    todo = list(range(count))
    while todo and not current().spent:
        twos = left[todo] & (~left[todo] + np.uint64(1))  # the lowest bit of each
        flat = int(np.where(twos == 0, np.uint64(2**64 - 1), twos).argmin())
        n, c = todo[flat // len(words)], flat % len(words)
        pivot = int(left[n, c])
        power = pivot & -pivot  # 0 where nothing is left
        for m in todo if power == 0 else [n]:
            value = int(right[m, 0])
            if value % (power or 2**64):
                modulus = 2 * (value & -value)
                y = {phases[k]: int(right[m, 1 + k]) % modulus for k in range(count)}
                return modulus, {i: weight for i, weight in y.items() if weight}
        if power == 0:
            return None
        todo.remove(n)
        if todo:
            inverse = pow(pivot // power, -1, 2**64)
            factor = (left[todo, c] // np.uint64(power)) * np.uint64(inverse)
            left[todo] -= factor[:, None] * left[n]
            right[todo] -= factor[:, None] * right[n]
    return None


def parity_holds(subject: Subject, parity: Parity) -> bool:
    """Whether the weights contradict themselves, word by word."""
    on, (k, _) = subject.on, parity.view
    in_all = set(range(len(on.phases)))
    used: set[int] = set()
    for modulus, weight in parity.combinations:
        of_word: dict[int, int] = {}
        for i, y in weight.items():
            held = on.within(on.phases[i].words, parity.view)
            if not on.phases[i].firm or len(held) != on.banks // k:
                return False
            for w in held:
                of_word[w] = of_word.get(w, 0) + y
        if any(total % modulus for total in of_word.values()) or not sum(weight.values()) % modulus:
            return False
        in_all &= set(weight)
        used |= set(weight)
    weights = sorted(on.phases[i].weight for i in used)
    return parity.excess <= (weights[0] if in_all else weights[0] + weights[1])


def parity_data(subject: Subject, problem: Problem, parity: Parity) -> dict[str, Any]:
    """The phases that a parity speaks of, and their weights in each combination."""
    used = sorted(set().union(*(set(y) for _, y in parity.combinations)))
    return {
        **subject.on.view_data(parity.view),
        "excess": parity.excess,
        "phases": [subject.on.phases[i].place.phase_data(problem, subject.device) for i in used],
        "combinations": [
            {"modulus": modulus, "weights": [weight.get(i, 0) for i in used]}
            for modulus, weight in parity.combinations
        ],
    }


def parity_words(subject: Subject, _: Problem, parity: Parity) -> Iterator[str]:
    """The argument of a parity proof in words, from the weights of its first combination."""
    on, (modulus, weight) = subject.on, parity.combinations[0]
    names = listed(subject.named({on.phases[i].place.access for i in weight}))
    banks, total = on.banks // parity.view[0], sum(weight.values()) % modulus
    yield (
        f"Parity: every phase of {names} that counts here fills all {banks} banks, so a bank without "
        f"conflicts takes exactly one word of each. Give each of {len(weight)} phases a weight such that "
        f"the weights of the phases through any one word add up to a multiple of {modulus}. Then so does "
        "the sum over the words of a bank, which is the sum of all weights; but that is "
        f"{total} modulo {modulus}. So every bank misses some phase, in every layout "
        "(solve --certificate writes the weights)."
    )
