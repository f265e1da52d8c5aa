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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, Self

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.counts import Counter
from layoutopt.kernels.machine.groups import Group
from layoutopt.kernels.machine.lines import Span
from layoutopt.kernels.machine.registers import Registers, Stopped
from layoutopt.kernels.machine.values import Value, of_line

Key = tuple[int, bytes, bytes]

# Rounds or steps of a loop before anything is tried, and how many rounds are looked at then.
FIRST_ROUND: Final = 32
FIRST_STEPS: Final = 1024
_LOOKED_AT: Final = (4, 9, 17, 33)
_COSTLY_STEPS: Final = 128
# Steps that must be left in a loop for it to be worth while.
_WORTH_STEPS: Final = 2048
# Rounds that one evaluation may go through, and how often they must at least repeat.
_LONGEST_PERIOD: Final = 4096
_LEAST_REPEATS: Final = 2
_MOST_ROUNDS: Final = 1 << 32
_ATTEMPTS: Final = 6
_LARGEST: Final = 1 << 60
_MULTIPLES: Final = tuple(sorted(m << k for m in (1, 3, 5, 7) for k in range(13)))


class TooManySteps(Exception):
    """More steps than allowed.

    Args:
        place: the step that was to be executed, for people.
        needed: about how many steps that takes; None where it is not known.
    """

    def __init__(self, place: str, needed: int | None = None) -> None:
        super().__init__(place)
        self.needed = needed


class RoundsDone(Exception):
    """The rounds that were asked for are executed; the machine stands where the next one begins."""


class Machine(Protocol):
    """What a loop needs of the machine that executes it."""

    registers: Registers
    recorder: Counter
    steps_left: int
    trials: list[int]
    at: int

    @property
    def used(self) -> int:
        """Steps that were executed."""

    def mattering(self, live: Sequence[frozenset[str]], at: int) -> frozenset[str]:
        """Cells that matter where a group stands that is at a step, and where the others stand."""

    def fork(self, counter: Counter, loops: Loops | None, most_steps: int) -> Self:
        """A machine that stands where this one does and changes nothing of it."""

    def go_on(self, first: Group) -> None:
        """Execute until every lane has exited, one more group than there are being ready."""

    def waits_like(self, other: Self) -> bool:
        """Whether the same lanes stand and wait at the same steps and memories hold the same."""


class _Snapshot(NamedTuple):
    """Registers that matter when a round begins, and steps that were left then."""

    cells: dict[str, Value]
    steps_left: int


class _Guess(NamedTuple):
    """Every `period` rounds these cells have moved so far, and all others are as they were."""

    period: int
    moves: dict[str, IntArray]
    steps: int


@dataclass(slots=True)
class _Seen:
    """One loop of one group.

    Attributes:
        rounds: so far.
        first: steps that were left at the first one.
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
    """The loops of a machine.

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

    def back(self, machine: Machine, group: Group, header: int) -> None:
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
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen(machine.steps_left, multiple=self._known.get(key))
        seen.rounds += 1
        if seen.multiple is None and seen.rounds < seen.look:
            costly = seen.first - machine.steps_left >= FIRST_STEPS
            if seen.look > FIRST_ROUND or not costly:
                return
        elif seen.rounds < seen.look and seen.look > FIRST_ROUND:
            return
        names = machine.mattering(self.live, header)
        seen.history.append(_Snapshot(machine.registers.held(names), machine.steps_left))
        if len(seen.history) in _LOOKED_AT:
            self._look(machine, Group(header, group.rows, group.lanes), key, seen)

    def _look(self, machine: Machine, group: Group, key: Key, seen: _Seen) -> None:
        guess = _guess(seen.history)
        early = len(seen.history) < _LOOKED_AT[1] and seen.multiple is None
        if guess is None or (early and guess.steps < _COSTLY_STEPS * guess.period):
            if len(seen.history) >= _LOOKED_AT[-1]:
                seen.history, seen.look = [], 4 * seen.rounds
            return
        place = _Place(machine, self, group, key, seen.history[-1].cells)
        multiple, left = _summed(place, guess, seen.multiple)
        if multiple is not None:
            # The loop may be entered again: then it is known what to try.
            seen.multiple, seen.look = multiple, 0
        elif seen.multiple is not None:
            seen.look = seen.rounds + FIRST_ROUND
        elif not early:
            if left * guess.steps > machine.steps_left:
                left = min(left, _first_change(place, guess))
            if left * guess.steps > machine.steps_left:
                raise TooManySteps(machine.registers.named(machine.at), left * guess.steps)
            seen.look = 4 * seen.rounds
        if multiple is not None or not early:
            seen.history = []


class _Place(NamedTuple):
    """Where a round begins: the machine, its group, and the registers that matter."""

    machine: Machine
    loops: Loops
    group: Group
    key: Key
    now: dict[str, Value]

    def fork(self, counter: Counter, guess: _Guess) -> Machine:
        """A machine that goes through the rounds of a period."""
        loops = Loops(self.loops.live, (self.key, guess.period), self.loops.known())
        machine = self.machine
        return machine.fork(counter, loops, min(4 * guess.steps + 64, machine.trials[0]))

    def start(self) -> Group:
        """The group that goes on."""
        return Group(self.group.at, self.group.rows, self.group.lanes)


def _summed(place: _Place, guess: _Guess, known: int | None) -> tuple[int | None, int]:
    """Count as many periods as are seen to do the same.

    Returns:
        Of which multiple of the period (None for none), and about how many periods there were to come; 0
        where that is not known.
    """
    costly = guess.steps >= _COSTLY_STEPS
    left = 0 if costly else _periods_left(place, guess)
    most = left or _MOST_ROUNDS
    for multiple in _MULTIPLES if known is None else (known,):
        if multiple > 1 and costly and not left:
            left = _periods_left(place, guess)
            most = min(most, left or most)
        if left and left * guess.steps < _WORTH_STEPS:
            break
        if multiple * guess.period > _LONGEST_PERIOD or most // multiple < _LEAST_REPEATS:
            break
        trial = _Trial(place, _times(guess, multiple))
        repeats = trial.repeats(most // multiple - 1)
        if repeats:
            trial.apply(repeats)
            return multiple, most
        most = min(most, (trial.ends + 1) * multiple)
    return None, min(most, left)


def _times(guess: _Guess, multiple: int) -> _Guess:
    moves = {cell: multiple * move for cell, move in guess.moves.items()}
    return _Guess(guess.period * multiple, moves, guess.steps * multiple)


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
            moves_ = {cell: move * period for cell, move in steady.items()}
            return _Guess(period, moves_, max(steps, 1) * period)
    return None


def _moved(before: Value | None, after: Value | None) -> IntArray | None:
    """By how much numbers rose; None where they are not known."""
    if before is None or after is None:
        return None
    if before is after or _same(before, after):
        return np.zeros((1, 1), np.int64)
    for value in (before, after):
        if value.unknown is not None or value.line is not None or int(value.bits.max()) >= _LARGEST:
            return None
    return after.bits.astype(np.int64) - before.bits.astype(np.int64)


def _same(a: Value | None, b: Value | None) -> bool:
    """Whether two values say the same."""
    if a is None or b is None or a is b:
        return a is b
    hidden = [np.zeros((1, 1), np.uint64) if v.unknown is None else v.unknown for v in (a, b)]
    if not bool((a.bits == b.bits).all()) or not bool((hidden[0] == hidden[1]).all()):
        return False
    if a.line is None or b.line is None:
        return a.line is b.line
    same_span = a.line.span is b.line.span
    return same_span and bool((a.line.start == b.line.start).all() and (a.line.slope == b.line.slope).all())


class _Trial:
    """Whether a guess holds: one period executed with the number of the period unknown.

    Attributes:
        ends: the period in which a comparison comes out otherwise than in this one, as far as was seen.
    """

    def __init__(self, place: _Place, guess: _Guess) -> None:
        self._place, self._guess = place, guess
        self._counter: Counter | None = None
        self.ends = _MOST_ROUNDS

    def repeats(self, most: int) -> int:
        """How many periods from now on do the same; 0 where it is not seen that some do.

        Raises:
            Stopped: nothing ever changes.
        """
        if not self._guess.moves:
            if self._holds(Span(0)):
                machine = self._place.machine
                raise Stopped(f"the loop at {machine.registers.named(machine.at)} waits for ever")
            return 0
        for _ in range(_ATTEMPTS):
            span = Span(most)
            if self._holds(span):
                return most + 1
            if span.compared <= most:
                self.ends = min(self.ends, span.compared)
            end = span.compared if span.compared <= most else span.wrapped
            if end > most or end < _LEAST_REPEATS:
                return 0
            most = end - 1
        return 0

    def _holds(self, span: Span) -> bool:
        place = self._place
        lines: dict[str, Value] = {}
        for cell, move in self._guess.moves.items():
            line = of_line(place.now[cell].bits.astype(np.int64), move, span, 64)
            if line is None:
                return False
            lines[cell] = line
        counter = place.machine.recorder.trial()
        fork = place.fork(counter, self._guess)
        for cell, line in lines.items():
            fork.registers.put(cell, line)
        try:
            fork.go_on(place.start())
        except RoundsDone:
            self._counter = counter
            return self._ends_as_it_began(fork, lines)
        except (Stopped, TooManySteps, ProblemFileError):
            return False
        finally:
            place.machine.trials[0] -= fork.used
        return False

    def _ends_as_it_began(self, fork: Machine, lines: dict[str, Value]) -> bool:
        held = fork.registers.held(frozenset(self._place.now))
        for cell, value in self._place.now.items():
            after = held.get(cell)
            begin = lines.get(cell)
            if begin is None:
                if not _same(value, after):
                    return False
                continue
            move, line, first = self._guess.moves[cell], after.line if after is not None else None, begin.line
            if line is None or first is None or line.span is not first.span:
                return False
            if (line.slope != move).any() or (line.start != first.start + move).any():
                return False
        return self._place.machine.waits_like(fork)

    def apply(self, repeats: int) -> None:
        """Let so many periods have happened."""
        assert self._counter is not None
        machine = self._place.machine
        machine.recorder.repeat(self._counter, repeats)
        for cell, move in self._guess.moves.items():
            machine.registers.put(cell, _after(self._place.now[cell], move, repeats))


def _after(value: Value, move: IntArray, periods: int) -> Value:
    return Value((value.bits.astype(np.int64) + move * periods).astype(np.uint64))


def _first_change(place: _Place, guess: _Guess) -> int:
    """The first period to come in which a comparison comes out otherwise, as far as is seen.

    A loop that ends where numbers are equal ends there, whatever they are later.
    """
    most = _MOST_ROUNDS
    for _ in range(_ATTEMPTS):
        span = Span(most)
        fork = place.fork(place.machine.recorder.trial(strict=False), guess)
        for cell, move in guess.moves.items():
            line = of_line(place.now[cell].bits.astype(np.int64), move, span, 64)
            if line is not None:
                fork.registers.put(cell, line)
        try:
            fork.go_on(place.start())
        except (RoundsDone, Stopped, TooManySteps, ProblemFileError):
            pass
        finally:
            place.machine.trials[0] -= fork.used
        if span.compared <= most or span.wrapped > most:
            return span.compared
        most = span.wrapped - 1
    return most


def _periods_left(place: _Place, guess: _Guess) -> int:
    """About how many periods there are to come, as far as registers go on as they did; 0 if not known."""
    if not guess.moves:
        return 0

    def goes_on(periods: int) -> bool:
        cells = {cell: _after(place.now[cell], move, periods) for cell, move in guess.moves.items()}
        if any((value.bits >= 1 << 32).any() for value in cells.values()):
            return False
        fork = place.fork(place.machine.recorder.trial(strict=False), guess)
        for cell, value in cells.items():
            fork.registers.put(cell, value)
        try:
            fork.go_on(place.start())
        except RoundsDone:
            # It may have been left and entered again.
            held = fork.registers.held(frozenset(cells))
            return all(_same(held.get(c), _after(v, guess.moves[c], 1)) for c, v in cells.items())
        except TooManySteps:
            return False
        finally:
            place.machine.trials[0] -= fork.used
        return False

    least, most = 0, 1
    try:
        while goes_on(most):
            least, most = most, 2 * most
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if goes_on(middle) else (least, middle)
    except (Stopped, ProblemFileError):
        return 0
    return least
