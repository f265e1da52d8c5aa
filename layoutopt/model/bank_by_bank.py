"""Free assignments found one bank after the other: each bank is an exact cover.

A bank without conflicts takes at most one word of every phase, and exactly one of a phase that has as many
words as there are banks. So the chunks of one bank are a set that meets every such phase once: a question
without symmetry that CP-SAT answers at once, where all banks together are out of its reach. What is left has
one bank less, and one word less in each of these phases:

    phases {a b} {c d} {a c}    banks: 2    first bank {a d}    left {b} {c} {c}: second bank {b c}

The last banks may not come out. Then

    shaken      a few banks give back their chunks, and as many banks are made anew of them and of the rest
    together    some banks and the rest are asked for at once: few enough for that
    dear        what then is left is spread at the least cost, and a few banks at a time are improved

Chunks are of one size here, so that a bank is a position (`layoutopt.model.placement`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from layoutopt.ground.budget import Budget
from layoutopt.model.balance import Row
from layoutopt.model.cp_sat import Answer, Model, Outcome

IntArray = npt.NDArray[np.int64]

_SEED: Final = 20261122
# Deterministic time of a question about one bank, and about some banks together.
_ONE_EFFORT, _SOME_EFFORT = 0.1, 0.4
_SHAKEN: Final = 5  # banks that give back their chunks
_TOGETHER: Final = 6  # banks asked for at once
_IMPROVED: Final = 4  # banks improved at a time
_ROUNDS: Final = 16  # of shaking, and of improving
_MOST_OVER: Final = 7  # wavefronts that a row may cost more


def bank_by_bank(
    rows: Sequence[Row], weights: Sequence[int], chunks: int, banks: int, budget: Budget, effort: float
) -> IntArray:
    """The position of each chunk, int64, shape (chunks,); every row costs little more than its `most`.

    Args:
        rows: units that are in one bank exactly if in one position, each counted once.
        weights: of each row.
        chunks: their number.
        banks: positions of a chunk.
        budget: the time there is.
        effort: deterministic time; the same gives the same answer.
    """
    turns = _Turns(rows, weights, chunks, banks, budget, effort)
    turns.take_turns()
    return turns.position


class _Turns:
    def __init__(
        self,
        rows: Sequence[Row],
        weights: Sequence[int],
        chunks: int,
        banks: int,
        budget: Budget,
        effort: float,
    ) -> None:
        self.rows = [list(row.chunks) for row in rows]
        self.most = [row.most for row in rows]
        self.weights, self.banks, self.budget, self.effort = weights, banks, budget, effort
        self.position = np.full(chunks, -1, np.int64)
        self.chance = np.random.default_rng(_SEED)

    def take_turns(self) -> None:
        """Place every chunk, without a row above its `most` if that comes out."""
        self._fill(range(self.banks), dear=False)
        for _ in range(_ROUNDS):
            if not self._empty() or not self._left:
                break
            if len(self._empty()) < _TOGETHER and self._together():
                return
            self._shake()
        self._fill(self._empty(), dear=True)
        self.position[self.position < 0] = 0
        for _ in range(_ROUNDS):
            if not self._left or not (over := self._over()):
                break
            few = self.chance.permutation(sorted(over))[: _IMPROVED - 1].tolist()
            others = [b for b in self.chance.permutation(self.banks).tolist() if b not in few]
            self._improve([*few, *others][:_IMPROVED])

    @property
    def _left(self) -> bool:
        return self.effort > 0 and not self.budget.spent

    def _empty(self) -> list[int]:
        return sorted(set(range(self.banks)) - set(self.position.tolist()))

    def _rest(self) -> list[list[int]]:
        """Of every row, the chunks that lie nowhere yet, by chance in another order each time."""
        order = self.chance.permutation(len(self.position))
        return [sorted((c for c in row if self.position[c] < 0), key=order.__getitem__) for row in self.rows]

    def _solve(self, model: Model, effort: float) -> Answer:
        answer = model.solve(self.budget, effort=effort)
        self.effort -= answer.effort
        return answer

    # One bank -------------------------------------------------------------------------------------

    def _fill(self, empty: Iterable[int], *, dear: bool) -> None:
        """Fill banks one by one, as far as that goes; with `dear`, at the least cost instead of none."""
        left = list(empty)
        while left and not self.budget.spent:
            model, variables = self._one_bank(len(left), dear)
            if model is None:
                return
            answer = self._solve(model, _ONE_EFFORT)
            if answer.outcome not in (Outcome.OPTIMAL, Outcome.FEASIBLE):
                return
            taken = [c for c, variable in variables.items() if answer.values[variable]]
            if not taken:
                return
            self.position[taken] = left.pop(0)

    def _one_bank(self, left: int, dear: bool) -> tuple[Model | None, dict[int, int]]:
        """Which chunks one of so many banks that are left may take."""
        model, variables, costs = Model(), dict[int, int](), []
        held = self._loads().max(axis=1).tolist()
        for number, (row, most, weight) in enumerate(zip(self._rest(), self.most, self.weights, strict=True)):
            if not row:
                continue
            for c in row:
                if c not in variables:
                    variables[c] = model.boolean()
            terms = [(variables[c], 1) for c in row]
            if dear:
                most = max(most, held[number])
                over = model.integer(0, _MOST_OVER)
                costs.append((over, weight))
                model.linear([*terms, (over, -1)], (-len(row), most))
                model.linear([*terms, (over, left - 1)], (len(row) - (left - 1) * most, 2**40))
            elif len(row) > left * most:
                return None, {}
            elif most == 1 and len(row) == left:
                model.exactly_one([v for v, _ in terms])
            elif len(row) > most or left == 1:  # the last bank takes what is left
                model.linear(terms, (max(0, len(row) - (left - 1) * most), most))
        model.minimise(costs)
        return model, variables

    # Several banks --------------------------------------------------------------------------------

    def _shake(self) -> None:
        """Make a few banks anew, and the empty ones with them, if that fills no fewer."""
        before, empty = self.position.copy(), self._empty()
        full = sorted(set(range(self.banks)) - set(empty))
        few = self.chance.permutation(full)[:_SHAKEN].tolist()
        self.position[np.isin(self.position, few)] = -1
        self._fill([*few, *empty], dear=False)
        if len(self._empty()) > len(empty):
            self.position = before

    def _together(self) -> bool:
        """Ask for the empty banks and some others at once; whether all came out."""
        before, empty = self.position.copy(), self._empty()
        full = sorted(set(range(self.banks)) - set(empty))
        few = self.chance.permutation(full)[: _TOGETHER - len(empty)].tolist()
        self.position[np.isin(self.position, few)] = -1
        if self._ask([*few, *empty], None):
            return True
        self.position = before
        return False

    def _improve(self, few: list[int]) -> None:
        """Spread the chunks of a few banks over them again, at no more cost."""
        before = self.position.copy()
        self.position[np.isin(self.position, few)] = -1
        if not self._ask(few, before):
            self.position = before

    def _ask(self, few: list[int], before: IntArray | None) -> bool:
        """Spread what lies nowhere over a few banks: without cost, or at the least from `before` on."""
        model, rest = Model(), self._rest()
        held = self._loads().max(axis=1).tolist()
        at = {c: [model.boolean() for _ in few] for c in np.flatnonzero(self.position < 0).tolist()}
        for c, literals in at.items():
            model.exactly_one(literals)
            if before is not None:
                model.hint(literals[few.index(int(before[c]))], 1)
        costs = []
        for row, most, weight, already in zip(rest, self.most, self.weights, held, strict=True):
            most = most if before is None else max(most, already)
            if len(row) <= most:
                continue
            over = []
            if before is not None:
                over = [(model.integer(0, _MOST_OVER), -1)]
                costs.append((over[0][0], weight))
            for k in range(len(few)):
                literals = [at[c][k] for c in row]
                if before is None and most == 1 and len(row) == len(few):
                    model.exactly_one(literals)
                else:
                    model.linear([*((literal, 1) for literal in literals), *over], (-_MOST_OVER, most))
        model.minimise(costs)
        answer = self._solve(model, _SOME_EFFORT)
        if answer.outcome not in (Outcome.OPTIMAL, Outcome.FEASIBLE):
            return False
        for c, literals in at.items():
            self.position[c] = few[[answer.values[v] for v in literals].index(1)]
        return True

    # Costs ----------------------------------------------------------------------------------------

    def _loads(self) -> IntArray:
        """Chunks of every row in every bank, shape (rows, banks)."""
        loads = np.zeros((len(self.rows), self.banks + 1), np.int64)
        for number, row in enumerate(self.rows):
            np.add.at(loads[number], self.position[row], 1)
        return loads[:, :-1]

    def _over(self) -> set[int]:
        """Banks that make some row cost more than its `most`."""
        loads = self._loads()
        worst = loads.max(axis=1)
        over = (worst > np.array(self.most))[:, None] & (loads == worst[:, None])
        return set(np.flatnonzero(over.any(axis=0)).tolist())
