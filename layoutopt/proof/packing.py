"""Several cliques at once: what they force adds up, as far as they do not count a phase twice.

**Theorem.** Let every pair of some words of one view meet in one of the phases F, and let there be more
words than the view has banks. In every layout two of the words share a bank, so some phase of F has an
excess wavefront. Let K_1, K_2, ... be such cliques with phases F_1, F_2, ..., and let y_i >= 0 be shares
such that the y_i of the cliques whose F_i hold a phase add up to no more than its weight. Then the
weighted excess of every layout is at least y_1 + y_2 + ...

*Proof.* With e_f the excess of phase f and w_f its weight: sum of w_f e_f >= sum over f, and i with f in
F_i, of y_i e_f = sum over i of y_i (sum of e_f, f in F_i) >= sum of y_i.

The cliques looked for have three phases. What V and W have in common needs banks that the rest of V and
the rest of W do not touch; a phase that touches more of the two rests than there are banks left clashes
with them:

    V    a b c d          banks: 4.  b c d take three, so a and e share the fourth.
    W      b c d e        f touches both: V, W and f cannot all be free of conflicts.
    f    a       e

Windows that move over a tile (stencils, convolutions) force the same again wherever they stand, and the
shares add that up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from layoutopt.ground.budget import Budget
from layoutopt.model.cp_sat import Model
from layoutopt.proof.obstructions import Board

# Phases of a view beyond which none is looked for (the time grows with their cube), and cliques kept.
MAX_PACKED_PHASES: Final = 320
_MOST_CLIQUES: Final = 2000
# Deterministic time to share the phases out.
_EFFORT: Final = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """A clique of three phases, and what it takes of their weights.

    Attributes:
        view: words of the aligned vectors, and the place in them.
        words: sorted.
        phases: indices into the board's phases; each pair of the words meets in one of them.
        weight: in units of `Trace.weight_unit`.
    """

    view: tuple[int, int]
    words: tuple[int, ...]
    phases: tuple[int, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class Packing:
    """Cliques whose shares of every phase are no more than its weight; the excess is their sum."""

    shares: tuple[Share, ...]
    excess: int


def find_packing(on: Board, budget: Budget) -> Packing | None:
    """Cliques of three phases, shared out so that they force the most excess; None where there are none."""
    cliques: list[Share] = []
    for view in on.views():
        cliques += itertools.islice(_cliques(on, view, budget), _MOST_CLIQUES)
    if not cliques:
        return None
    weights = _shared_out([c.phases for c in cliques], [p.weight for p in on.phases], budget)
    shares = [Share(c.view, c.words, c.phases, w) for c, w in zip(cliques, weights, strict=True) if w]
    return Packing(tuple(shares), sum(weights)) if shares else None


def _cliques(on: Board, view: tuple[int, int], budget: Budget) -> Iterator[Share]:
    """Three phases at a time that cannot all be free of conflicts, each three once."""
    banks = on.banks // view[0]
    held = {i: set(on.within(p.words, view)) for i, p in enumerate(on.phases) if p.firm}
    held = {i: words for i, words in held.items() if len(words) > 1}
    if not 3 <= len(held) <= MAX_PACKED_PHASES or banks < 2:
        return
    numbers, touched = list(held), _touched(list(held.values()))
    common = touched @ touched.T
    seen: set[tuple[int, ...]] = set()
    for a in range(len(numbers)):
        if budget.spent:
            return
        # What a third phase has of V and of W may make up for the banks that V and W leave.
        others = common + common[a]
        np.fill_diagonal(others, 0)
        others[:, a] = 0
        likely = (common[a] > 0) & (common[a] + others.max(axis=1) > banks)
        for b in (np.flatnonzero(likely[a + 1 :]) + a + 1).tolist():
            # Of every phase, words that V or W touches, but not both.
            apart = common[:, a] + common[:, b] - 2 * (touched @ (touched[a] * touched[b]))
            for c in np.flatnonzero(common[a, b] + apart > banks).tolist():
                three = tuple(sorted(numbers[n] for n in {a, b, c}))
                if len(three) == 3 and three not in seen:
                    seen.add(three)
                    v, w, f = (held[numbers[n]] for n in (a, b, c))
                    yield Share(view, tuple(sorted(v & w | f & (v ^ w))), three, 0)


def _touched(held: Sequence[set[int]]) -> npt.NDArray[np.float32]:
    """Phases by words: 1 where a phase touches a word."""
    column = {w: n for n, w in enumerate(sorted(set().union(*held)))}
    touched = np.zeros((len(held), len(column)), np.float32)
    for row, words in zip(touched, held, strict=True):
        row[[column[w] for w in words]] = 1
    return touched


def _shared_out(cliques: Sequence[tuple[int, ...]], weights: Sequence[int], budget: Budget) -> list[int]:
    """A share for each clique, the sum as large as possible."""
    left, shares = list(weights), []
    for phases in cliques:  # greedily, to start from
        shares.append(min(left[i] for i in phases))
        for i in phases:
            left[i] -= shares[-1]
    model = Model()
    share = [model.integer(0, min(weights[i] for i in phases)) for phases in cliques]
    takers: dict[int, list[tuple[int, int]]] = {}
    for variable, phases, start in zip(share, cliques, shares, strict=True):
        model.hint(variable, start)
        for i in phases:
            takers.setdefault(i, []).append((variable, 1))
    for i, terms in takers.items():
        model.at_most(terms, weights[i])
    model.minimise([(variable, -1) for variable in share])
    found = model.solve(budget, effort=_EFFORT)
    return list(found.values) if found.values and sum(found.values) > sum(shares) else shares


def every_share_holds(on: Board, packing: Packing) -> bool:
    """Whether the theorem applies, by plain loops."""
    spent = [0] * len(on.phases)
    for share in packing.shares:
        k, p = share.view
        words = set(share.words)
        if len(words) <= on.banks // k or not words <= on.place.keys():
            return False
        if any(on.vector_words[w] < k or on.place[w] % k != p for w in words) or share.weight < 0:
            return False
        phases = [on.phases[i] for i in share.phases]
        if len(set(share.phases)) < len(phases) or not all(phase.firm for phase in phases):
            return False
        meet = [set(phase.words) for phase in phases]
        if any(not any({u, v} <= held for held in meet) for u, v in itertools.combinations(words, 2)):
            return False
        for i in share.phases:
            spent[i] += share.weight
    within = all(took <= phase.weight for took, phase in zip(spent, on.phases, strict=True))
    return within and packing.excess <= sum(share.weight for share in packing.shares)
