"""Loops: many rounds executed at once, as if they were warps of so many blocks more.

How registers go from round to round (evenly, or back to what they were some rounds ago) is guessed from
rounds that were executed one by one. The guess says with what each of the rounds to come begins. They are
executed together; by induction those are right up to the first that ends otherwise than the next one begins,
or does not come back. Nothing that they may read is written in them but registers. A wrong guess costs time,
nothing else.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.groups import Group
from layoutopt.kernels.machine.registers import Stopped, repeated
from layoutopt.kernels.machine.relevance import Live
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.machine.warps import Machine

# Rounds that have been looked at when something is tried.
_LOOKED_AT: Final = (4, 9, 17, 33)
# Periods that are tried first at once, and the warps that are executed at once.
_FEW: Final = 4
_MOST_ROWS: Final = 2048
# Steps that a loop must have taken for it to be worth while.
WORTH_STEPS: Final = 128


class _Guess(NamedTuple):
    """Some cells move by as much in so many rounds and steps, and the others stay."""

    period: int
    moves: dict[str, IntArray]
    steps: int


@dataclass(slots=True)
class _Seen:
    """The history of one loop.

    Attributes:
        first: steps that were left at the first round, or when the last guess was wrong.
        worth: steps to take before registers are looked at; four times as many after each wrong guess.
        history: registers that matter when a round begins, and steps that were left then.
        guess: what held when the loop was last gone through.
        count: how many periods at once.
    """

    first: int
    worth: int
    history: list[tuple[dict[str, Value], int]] = field(default_factory=list)
    guess: _Guess | None = None
    count: int = _FEW


class Loops:
    """The loops of a machine, which is to call it where a round begins.

    Args:
        live: cells that matter before each step.
    """

    def __init__(self, live: tuple[Live, ...]) -> None:
        self._live = live
        self._seen: dict[int, _Seen] = {}

    def __call__(self, machine: Machine, group: Group, header: int) -> None:
        """Called where all lanes begin a round at `header`: executes many rounds at once if a guess fits."""
        seen = self._seen.setdefault(header, _Seen(machine.steps_left, WORTH_STEPS))
        waits = seen.first - machine.steps_left < seen.worth
        if waits or not group.full or not machine.stands_alone:
            return
        live = self._live[header].cells
        now = machine.registers.held(live)
        if seen.guess is None:
            seen.history.append((now, machine.steps_left))
            if len(seen.history) not in _LOOKED_AT:
                return
            seen.guess = _guess(seen.history)
            if seen.guess is None and len(seen.history) < _LOOKED_AT[-1]:
                return
            seen.history = []
        if seen.guess is None or not _leap(machine, header, now, seen, seen.guess, live):
            seen.guess, seen.first, seen.worth = None, machine.steps_left, 4 * seen.worth


def _leap(
    machine: Machine, header: int, now: dict[str, Value], seen: _Seen, guess: _Guess, live: frozenset[str]
) -> bool:
    """Execute periods, ever more at once, until one differs from the guess; whether any was executed."""
    count, right, grows = seen.count if guess.moves else 1, 0, True
    rows = machine.registers.rows
    while count and machine.trials > 0:
        counter = machine.recorder.trial(count)
        right = _confirmed(machine, header, now, guess, counter, live)
        if right < count:
            # Those behind the last one are none: the others are counted without them.
            count, grows = right or count // 2, False
            continue
        if not guess.moves:
            raise Stopped(f"the loop at {machine.registers.named(machine.at)} waits for ever")
        machine.recorder.take(counter)
        now = {c: repeated(value, rows, 1, guess.moves.get(c), count) for c, value in now.items()}
        for cell in guess.moves.keys() & now.keys():
            machine.registers.put(cell, now[cell])
        seen.count = count
        if not grows:
            break
        count = max(min(2 * count, _MOST_ROWS // rows), 1)
    return right > 0


def _confirmed(
    machine: Machine,
    header: int,
    now: dict[str, Value],
    guess: _Guess,
    counter: Evaluation,
    live: frozenset[str],
) -> int:
    """How many of `counter.rounds` guessed periods, executed side by side, end as the next one begins.

    Args:
        header: step at which a round begins.
        now: registers at the first period's begin, shape (warps, 1 or 32) each.
        guess: how they change from period to period.
        counter: counts what the periods do.
        live: registers that matter at `header`.
    """
    count, most = counter.rounds, min(4 * guess.steps + 64, machine.trials)
    rows = machine.registers.rows
    begin, end = (
        {c: repeated(value, rows, count, guess.moves.get(c), k) for c, value in now.items()} for k in (0, 1)
    )
    after, right = machine.rounds(header, guess.period, begin, counter, most)
    held = after.held(live)
    if held.keys() != now.keys():
        return 0
    for cell, value in end.items():
        same = (held[cell].bits == value.bits) & (held[cell].unknown == value.unknown)
        right = right & same.all(axis=1)
    wrong = ~right.reshape(count, -1).all(axis=1)
    return int(wrong.argmax()) if wrong.any() else count


def _guess(history: list[tuple[dict[str, Value], int]]) -> _Guess | None:
    """A period after which registers repeat or grew by a constant; None where none fits the history."""
    steady: dict[str, IntArray] = {}
    uneven: list[str] = []
    now, left = history[-1]
    for cell in now:
        moves = [_moved(a.get(cell), b.get(cell)) for (a, _), (b, _) in itertools.pairwise(history)]
        first = moves[-1]
        if first is None or any(move is None or (move != first).any() for move in moves):
            uneven.append(cell)
        elif first.any():
            steady[cell] = first
    for period in range(1, (len(history) + 1) // 2):
        before, earlier = history[-1 - period]
        if all(_same(before.get(cell), now[cell]) for cell in uneven):
            return _Guess(
                period, {cell: period * move for cell, move in steady.items()}, max(earlier - left, 1)
            )
    return None


def _moved(before: Value | None, after: Value | None) -> IntArray | None:
    """By how much numbers rose; None where they are not known."""
    if before is None or after is None:
        return None
    if _same(before, after):
        return np.zeros((1, 1), np.int64)
    if not before.sure or not after.sure:
        return None
    return after.bits.astype(np.int64) - before.bits.astype(np.int64)


def _same(a: Value | None, b: Value | None) -> bool:
    """Whether two values say the same."""
    if a is None or b is None or a is b:
        return a is b
    return all(bool((x == y).all()) for x, y in zip(a, b, strict=True))
