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
from layoutopt.kernels.machine.lines import Line, Span
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


@dataclass(slots=True)
class _Seen:
    """One loop of one group.

    Attributes:
        first: steps that were left at the first round.
        rounds: so far.
        look: the round when to look at registers again.
        history: registers that matter when a round begins, and steps that were left then.
        multiple: of the period that was guessed, what held last.
    """

    first: int
    rounds: int = 0
    look: int = FIRST_ROUND
    history: list[tuple[dict[str, Value], int]] = field(default_factory=list)
    multiple: int | None = None


class Loops:
    """The loops of a machine, which is to call it where a round begins.

    Args:
        live: cells that matter before each step.
        stop: a loop that is left after so many rounds, by `RoundsDone`.
        known: multiples of periods that held for loops elsewhere.
    """

    def __init__(
        self,
        live: tuple[frozenset[str], ...],
        stop: tuple[Key | None, int] = (None, 0),
        known: Mapping[Key, int] = MappingProxyType({}),
    ) -> None:
        self.live = live
        self._seen: dict[Key, _Seen] = {}
        self._known = known
        self._stop, self._left = stop

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
        now = machine.registers.held(machine.mattering(self.live, header))
        seen.history.append((now, machine.steps_left))
        if len(seen.history) in _LOOKED_AT:
            guess = _guess(seen.history)
            if guess is not None:
                _Trial(machine, self, Group(header, group.rows, group.lanes), key, now, *guess).look(seen)
            elif len(seen.history) == _LOOKED_AT[-1]:
                seen.history, seen.look = [], 4 * seen.rounds


class _Trial(NamedTuple):
    """A guess: every `period` rounds, of so many steps together, some cells move, and all others stay.

    Attributes:
        machine, loops, group, key: where a round begins.
        now: the registers that matter there.
    """

    machine: Machine
    loops: Loops
    group: Group
    key: Key
    now: dict[str, Value]
    period: int
    moves: dict[str, IntArray]
    steps: int

    def look(self, seen: _Seen) -> None:
        """Count as many rounds as are seen to do the same.

        Raises:
            TooManySteps: as many follow as cannot be executed.
        """
        rounds = len(seen.history)
        multiple, left = self._summed(seen.multiple)
        if multiple is not None:
            # The loop may be entered again: then it is known what to try.
            seen.multiple, seen.look = multiple, 0
        elif seen.multiple is not None:
            seen.look = seen.rounds + FIRST_ROUND
        elif rounds == _LOOKED_AT[0]:
            return
        else:
            if left * self.steps > self.machine.steps_left and self._goes_on(left // 2):
                raise TooManySteps(self.machine.registers.named(self.machine.at), left * self.steps)
            seen.look = 4 * seen.rounds
        seen.history = []

    def _summed(self, known: int | None) -> tuple[int | None, int]:
        """Of which multiple of the period (None for none) rounds did the same, and about how many were left.

        Raises:
            Stopped: nothing ever changes.
        """
        machine = self.machine
        if not self.moves:
            if self._holds(Span(0)) is not None:
                raise Stopped(f"the loop at {machine.registers.named(machine.at)} waits for ever")
            return None, 0
        left = most = self._first_change()
        for multiple in _MULTIPLES if known is None else (known,):
            repeats = most // multiple
            if most * self.steps < _WORTH_STEPS or multiple * self.period > _LONGEST_PERIOD:
                break
            if repeats < _LEAST_REPEATS:
                break
            trial = self._replace(
                period=self.period * multiple,
                moves={cell: multiple * move for cell, move in self.moves.items()},
                steps=self.steps * multiple,
            )
            for _ in range(_ATTEMPTS):
                span = Span(repeats - 1)
                counter = trial._holds(span)
                if counter is not None:
                    machine.recorder.repeat(counter, repeats)
                    for cell, value in trial._after(repeats).items():
                        machine.registers.put(cell, value)
                    return multiple, most
                if span.compared < repeats:
                    most = min(most, (span.compared + 1) * multiple)
                end = span.compared if span.compared < repeats else span.wrapped
                if end >= repeats or end < _LEAST_REPEATS:
                    break
                repeats = end
        return None, min(most, left) if left <= _MOST_ROUNDS else 0

    def _run(self, cells: Mapping[str, Value], counter: Counter) -> Machine | None:
        """A machine in which these cells have gone through a period; None where it cannot be seen to."""
        loops = Loops(self.loops.live, (self.key, self.period), self.loops.known())
        trials = self.machine.trials
        fork = self.machine.fork(counter, loops, min(4 * self.steps + 64, trials[0]))
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

    def _lines(self, span: Span) -> dict[str, Value] | None:
        """The cells that move, in all periods of a span; None where one does not go evenly."""
        found = {}
        for cell, move in self.moves.items():
            terms = np.stack(np.broadcast_arrays(self.now[cell].bits.astype(np.int64), move))
            value = of_line(Line(terms, span), 64)
            if value is None:
                return None
            found[cell] = value
        return found

    def _after(self, periods: int) -> dict[str, Value]:
        """The cells that move, so many periods on."""
        return {
            cell: Value((self.now[cell].bits.astype(np.int64) + move * periods).astype(np.uint64))
            for cell, move in self.moves.items()
        }

    def _holds(self, span: Span) -> Counter | None:
        """What one of the periods of a span costs, if all of them are seen to do the same."""
        begin = self._lines(span)
        counter = self.machine.recorder.trial()
        fork = None if begin is None else self._run(begin, counter)
        if fork is None or begin is None:
            return None
        held = fork.registers.held(frozenset(self.now))
        for cell, value in self.now.items():
            after = held.get(cell)
            if cell not in begin:
                if not _same(value, after):
                    return None
                continue
            line, first = after.line if after is not None else None, begin[cell].line
            if line is None or first is None or line.span is not first.span:
                return None
            if (line.terms - first.terms != np.stack([self.moves[cell], 0 * self.moves[cell]])).any():
                return None
        return counter if self.machine.waits_like(fork) else None

    def _first_change(self) -> int:
        """The first period to come in which a comparison comes out otherwise, as far as is seen.

        A loop that ends where numbers are equal ends there, whatever they are later.
        """
        most = _MOST_ROUNDS
        for _ in range(_ATTEMPTS):
            span = Span(most)
            if (cells := self._lines(span)) is not None:
                self._run(cells, self.machine.recorder.trial(strict=False))
            if span.compared <= most or span.wrapped > most:
                return span.compared
            most = span.wrapped - 1
        return most

    def _goes_on(self, periods: int) -> bool:
        """Whether there is a period so many periods on, as far as registers go on as they did."""
        cells = self._after(periods)
        fork = self._run(cells, self.machine.recorder.trial(strict=False))
        if fork is None or any((value.bits >> np.uint64(32)).any() for value in cells.values()):
            return False
        # It may have been left and entered again.
        held = fork.registers.held(frozenset(cells))
        return all(_same(held.get(cell), value) for cell, value in self._after(periods + 1).items())


def _guess(
    history: list[tuple[dict[str, Value], int]],
) -> tuple[int, dict[str, IntArray], int] | None:
    """How registers go: steadily, or as they were some rounds ago; None where neither fits.

    Returns:
        The period, the cells that move in it, and its steps.
    """
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
            steps = max((earlier - left) // period, 1) * period
            return period, {cell: period * move for cell, move in steady.items()}, steps
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
    return a.line.span is b.line.span and bool((a.line.terms == b.line.terms).all())
