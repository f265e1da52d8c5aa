"""Long loops: rounds that do the same are executed once.

Where registers that matter go evenly from round to round (`lines`), so many rounds are executed as one of
which the number is unknown: nothing in it may depend on the number, and it must end as the next one begins.
By induction every round then does the same. How registers go is guessed from rounds that were executed one
by one; a wrong guess costs time, nothing else.

Where that fails, the guess says about how long the loop is, so that one that is longer than may be executed
is refused at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.counts import Counter
from layoutopt.kernels.machine.groups import Group
from layoutopt.kernels.machine.lines import Span
from layoutopt.kernels.machine.registers import Stopped
from layoutopt.kernels.machine.values import Value, of_line
from layoutopt.kernels.machine.warps import Machine, TooManySteps

Key = tuple[int, bytes, bytes]

# Rounds or steps of a loop before anything is tried, and how many rounds are looked at then.
FIRST_ROUND: Final = 32
FIRST_STEPS: Final = 1024
_LOOKED_AT: Final = (4, 9, 17, 33)
# Steps that must be left in a loop for it to be worth while.
_WORTH_STEPS: Final = 2048
# Rounds that one evaluation may go through, and how often they must at least repeat.
_LONGEST_PERIOD: Final = 4096
_LEAST_REPEATS: Final = 2
_MOST_ROUNDS: Final = 1 << 32
_ATTEMPTS: Final = 6
_LARGEST: Final = 1 << 60
_MULTIPLES: Final = tuple(sorted(m << k for m in (1, 3, 5, 7) for k in range(13)))


class RoundsDone(Exception):
    """The rounds that were asked for are executed; the machine stands where the next one begins."""


class _Snapshot(NamedTuple):
    """Registers that matter when a round begins, and steps that were left then."""

    cells: dict[str, Value]
    steps_left: int


class _Guess(NamedTuple):
    """Every `period` rounds, of so many steps together, these cells move, and all others stay."""

    period: int
    moves: dict[str, IntArray]
    steps: int

    def times(self, multiple: int) -> _Guess:
        """So many periods as one."""
        moves = {cell: multiple * move for cell, move in self.moves.items()}
        return _Guess(self.period * multiple, moves, self.steps * multiple)


@dataclass(slots=True)
class _Seen:
    """One loop of one group.

    Attributes:
        first: steps that were left at the first round.
        rounds: so far.
        look: the round when to look at registers again.
        history: what was looked at.
        multiple: of the period that was guessed, what held last.
    """

    first: int
    rounds: int = 0
    look: int = FIRST_ROUND
    history: list[_Snapshot] = field(default_factory=list)
    multiple: int | None = None


class Loops:
    """The loops of a machine, which is to call it where a round begins.

    Args:
        live: cells that matter before each step.
        stop: a loop that is left after so many rounds, by `RoundsDone`.
        known: what held for loops elsewhere.
    """

    def __init__(
        self,
        live: tuple[frozenset[str], ...],
        stop: tuple[Key, int] | None = None,
        known: Mapping[Key, int] = MappingProxyType({}),
    ) -> None:
        self.live = live
        self._seen: dict[Key, _Seen] = {}
        self._known = known
        self._stop: Key | None = None if stop is None else stop[0]
        self._left = 0 if stop is None else stop[1]

    def known(self) -> dict[Key, int]:
        """Multiples of periods that held, by loop."""
        own = {key: seen.multiple for key, seen in self._seen.items() if seen.multiple is not None}
        return {**self._known, **own}

    def __call__(self, machine: Machine, group: Group, header: int) -> None:
        """A whole group goes back to where a round begins; afterwards many rounds may have happened.

        Raises:
            TooManySteps: about so many rounds are left that they cannot be executed.
            Stopped: the loop never ends.
            RoundsDone: it was asked for.
        """
        key = (header, group.rows.tobytes(), group.lanes.tobytes())
        if key == self._stop:
            self._left -= 1
            if self._left == 0:
                raise RoundsDone
            return
        seen = self._seen.setdefault(key, _Seen(machine.steps_left, multiple=self._known.get(key)))
        seen.rounds += 1
        costly = seen.multiple is not None or seen.first - machine.steps_left >= FIRST_STEPS
        if seen.rounds < seen.look and (seen.look > FIRST_ROUND or not costly):
            return
        names = machine.mattering(self.live, header)
        seen.history.append(_Snapshot(machine.registers.held(names), machine.steps_left))
        if len(seen.history) in _LOOKED_AT:
            place = _Place(machine, self, Group(header, group.rows, group.lanes), key, seen.history[-1].cells)
            _look(place, seen)


class _Place(NamedTuple):
    """Where a round begins: the machine, its group, and the registers that matter."""

    machine: Machine
    loops: Loops
    group: Group
    key: Key
    now: dict[str, Value]

    def try_period(self, guess: _Guess, cells: Mapping[str, Value], counter: Counter) -> Machine | None:
        """A machine in which these cells have gone through a period; None where it cannot be seen to."""
        loops = Loops(self.loops.live, (self.key, guess.period), self.loops.known())
        trials = self.machine.trials
        fork = self.machine.fork(counter, loops, min(4 * guess.steps + 64, trials[0]))
        for cell, value in cells.items():
            fork.registers.put(cell, value)
        try:
            fork.go_on(Group(self.group.at, self.group.rows, self.group.lanes))
        except RoundsDone:
            return fork
        except (Stopped, TooManySteps, ProblemFileError):
            return None
        finally:
            trials[0] -= fork.used
        return None

    def lines(self, guess: _Guess, span: Span) -> dict[str, Value] | None:
        """The cells that move, in all periods of a span; None where one does not go evenly."""
        found = {}
        for cell, move in guess.moves.items():
            line = of_line(self.now[cell].bits.astype(np.int64), move, span, 64)
            if line is None:
                return None
            found[cell] = line
        return found

    def after(self, guess: _Guess, periods: int) -> dict[str, Value]:
        """The cells that move, so many periods on."""
        return {
            cell: Value((self.now[cell].bits.astype(np.int64) + move * periods).astype(np.uint64))
            for cell, move in guess.moves.items()
        }


def _look(place: _Place, seen: _Seen) -> None:
    guess, rounds = _guess(seen.history), len(seen.history)
    if guess is None:
        if rounds == _LOOKED_AT[-1]:
            seen.history, seen.look = [], 4 * seen.rounds
        return
    multiple, left = _summed(place, guess, seen.multiple)
    if multiple is not None:
        # The loop may be entered again: then it is known what to try.
        seen.multiple, seen.look = multiple, 0
    elif seen.multiple is not None:
        seen.look = seen.rounds + FIRST_ROUND
    elif rounds == _LOOKED_AT[0]:
        return
    else:
        if left * guess.steps > place.machine.steps_left and _goes_on(place, guess, left // 2):
            named = place.machine.registers.named(place.machine.at)
            raise TooManySteps(named, left * guess.steps)
        seen.look = 4 * seen.rounds
    seen.history = []


def _summed(place: _Place, guess: _Guess, known: int | None) -> tuple[int | None, int]:
    """Count as many periods as are seen to do the same.

    Returns:
        Of which multiple of the period (None for none), and about how many periods there were to come; 0
        where that is not known.

    Raises:
        Stopped: nothing ever changes.
    """
    machine = place.machine
    if not guess.moves:
        if _holds(place, guess, Span(0)) is not None:
            raise Stopped(f"the loop at {machine.registers.named(machine.at)} waits for ever")
        return None, 0
    left = most = _first_change(place, guess)
    for multiple in _MULTIPLES if known is None else (known,):
        repeats = most // multiple
        if most * guess.steps < _WORTH_STEPS or multiple * guess.period > _LONGEST_PERIOD:
            break
        if repeats < _LEAST_REPEATS:
            break
        times = guess.times(multiple)
        for _ in range(_ATTEMPTS):
            span = Span(repeats - 1)
            counter = _holds(place, times, span)
            if counter is not None:
                machine.recorder.repeat(counter, repeats)
                for cell, value in place.after(times, repeats).items():
                    machine.registers.put(cell, value)
                return multiple, most
            if span.compared < repeats:
                most = min(most, (span.compared + 1) * multiple)
            end = span.compared if span.compared < repeats else span.wrapped
            if end >= repeats or end < _LEAST_REPEATS:
                break
            repeats = end
    return None, min(most, left) if left <= _MOST_ROUNDS else 0


def _holds(place: _Place, guess: _Guess, span: Span) -> Counter | None:
    """What one of the periods of a span costs, if all of them are seen to do the same."""
    begin = place.lines(guess, span)
    counter = place.machine.recorder.trial()
    fork = None if begin is None else place.try_period(guess, begin, counter)
    if fork is None or begin is None:
        return None
    held = fork.registers.held(frozenset(place.now))
    for cell, value in place.now.items():
        after = held.get(cell)
        if cell not in begin:
            if not _same(value, after):
                return None
            continue
        line, first = after.line if after is not None else None, begin[cell].line
        if line is None or first is None or line.span is not first.span:
            return None
        if (line.slope != first.slope).any() or (line.start != first.start + guess.moves[cell]).any():
            return None
    return counter if place.machine.waits_like(fork) else None


def _first_change(place: _Place, guess: _Guess) -> int:
    """The first period to come in which a comparison comes out otherwise, as far as is seen.

    A loop that ends where numbers are equal ends there, whatever they are later.
    """
    most = _MOST_ROUNDS
    for _ in range(_ATTEMPTS):
        span = Span(most)
        lines = place.lines(guess, span)
        if lines is not None:
            place.try_period(guess, lines, place.machine.recorder.trial(strict=False))
        if span.compared <= most or span.wrapped > most:
            return span.compared
        most = span.wrapped - 1
    return most


def _goes_on(place: _Place, guess: _Guess, periods: int) -> bool:
    """Whether there is a period so many periods on, as far as registers go on as they did."""
    cells = place.after(guess, periods)
    fork = place.try_period(guess, cells, place.machine.recorder.trial(strict=False))
    if fork is None or any((value.bits >> np.uint64(32)).any() for value in cells.values()):
        return False
    # It may have been left and entered again.
    held, then = fork.registers.held(frozenset(cells)), place.after(guess, periods + 1)
    return all(_same(held.get(cell), value) for cell, value in then.items())


def _guess(history: list[_Snapshot]) -> _Guess | None:
    """How registers go: steadily, or as they were some rounds ago; None where neither fits."""
    steady: dict[str, IntArray] = {}
    uneven: list[str] = []
    for cell in history[-1].cells:
        moves = [_moved(a.cells.get(cell), b.cells.get(cell)) for a, b in itertools.pairwise(history)]
        first = moves[-1]
        if first is None or any(move is None or (move != first).any() for move in moves):
            uneven.append(cell)
        elif first.any():
            steady[cell] = first
    for period in range(1, (len(history) + 1) // 2):
        before = history[-1 - period].cells
        if all(_same(before.get(cell), history[-1].cells[cell]) for cell in uneven):
            steps = (history[-1 - period].steps_left - history[-1].steps_left) // period
            return _Guess(1, steady, max(steps, 1)).times(period)
    return None


def _moved(before: Value | None, after: Value | None) -> IntArray | None:
    """By how much numbers rose; None where they are not known."""
    if before is None or after is None:
        return None
    if _same(before, after):
        return np.zeros((1, 1), np.int64)
    for value in (before, after):
        if not value.sure or value.line is not None or int(value.bits.max()) >= _LARGEST:
            return None
    return after.bits.astype(np.int64) - before.bits.astype(np.int64)


def _same(a: Value | None, b: Value | None) -> bool:
    """Whether two values say the same."""
    if a is None or b is None or a is b:
        return a is b
    if not bool((a.bits == b.bits).all()) or not bool((a.unknown == b.unknown).all()):
        return False
    if a.line is None or b.line is None:
        return a.line is b.line
    evenly = zip(a.line[:2], b.line[:2], strict=True)
    return a.line.span is b.line.span and all(bool((x == y).all()) for x, y in evenly)
