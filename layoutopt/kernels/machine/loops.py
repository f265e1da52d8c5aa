"""Loops: many rounds executed at once, as if they were warps of so many blocks more.

How registers go from round to round (evenly, or back to what they were some rounds ago) is guessed from
rounds that were executed one by one. The guess says with what each of the rounds to come begins. They are
executed together; by induction those are right up to the first that ends otherwise than the next one begins,
or does not come back. Nothing that they may read is written in them but registers. A wrong guess costs time,
nothing else.
"""

import copy
import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.groups import Group
from layoutopt.kernels.machine.registers import Registers, Stopped, in_rows, repeated
from layoutopt.kernels.machine.relevance import Relevance, marked, reached, turned
from layoutopt.kernels.machine.values import Bools, Value, add, known, unknown
from layoutopt.kernels.machine.warps import Machine, Part
from layoutopt.kernels.program import (
    Barrier,
    Exit,
    Forget,
    Jump,
    Memory,
    Source,
    Step,
)

# Rounds that have been looked at when something is tried.
_LOOKED_AT: Final = (4, 9, 17, 33)
# Periods that are tried first at once, and the warps that are executed at once.
_FEW: Final = 4
_MOST_ROWS: Final = 2048
# Periods whose control is executed first at once, and the warps of all of them.
_FIRST_ROUNDS: Final = 64
_MOST_CONTROLLED: Final = 1 << 15
# Steps that a loop must have taken for it to be worth while.
WORTH_STEPS: Final = 128
_LEFT: Final = Step(address=0, text="", action=Exit())


class _Guess(NamedTuple):
    """How registers go on: some move in each period, the others are as they were."""

    period: int  # rounds
    # By how much cells move in a period, shape (rows, lanes) or broadcastable to it
    moves: dict[str, IntArray]
    steps: int  # of a period


@dataclass(slots=True)
class _History:
    """What was seen of one loop."""

    left_at_start: int  # steps that were left at the first round, or when the last guess was wrong
    # Steps to take before registers are looked at; four times as many after each wrong guess
    worth_steps: int
    rows: IntArray | None = None  # the warps that go through it; what follows is of these
    # Of each round the registers that matter where it begins, and the steps that were left then
    rounds: list[tuple[dict[str, Value], int]] = field(default_factory=list)
    guess: _Guess | None = None  # what held when the loop was last gone through
    count: int = _FEW  # how many periods are executed side by side
    one_stands_for_all: bool = True  # whether one round may do what every round does, whatever moves

    def only(self, rows: IntArray) -> None:
        """Go on with these rows: what was seen of others is forgotten, or all of it where these are new."""
        if self.rows is None or not np.isin(rows, self.rows).all():
            self.rows, self.rounds = rows, []
            if self.guess is not None and any(len(move) > 1 for move in self.guess.moves.values()):
                self.guess = None
        elif len(rows) < len(self.rows):
            here = np.isin(self.rows, rows)
            self.rows = rows
            self.rounds = [({c: in_rows(v, here) for c, v in now.items()}, left) for now, left in self.rounds]
            if self.guess is not None:
                moves = {c: m if len(m) == 1 else m[here] for c, m in self.guess.moves.items()}
                self.guess = self.guess._replace(moves=moves)


class _Loop(NamedTuple):
    """The steps of a loop."""

    round: Part  # all that matters in a round
    control: Part  # the steps from which it follows who comes back, and with what in the cells asked for
    read: frozenset[str]  # cells that those read when a round begins
    written: frozenset[str]  # cells that a round may write


class _Turn(NamedTuple):
    """Whole blocks that are about to go round a loop again, and what is guessed of their rounds."""

    machine: Machine
    group: Group  # the lanes of these blocks
    header: int  # where a round begins
    now: dict[str, Value]  # what they have in the registers that matter there
    guess: _Guess

    @property
    def rows(self) -> int:
        """Warps that go round."""
        return len(self.group.rows)

    @property
    def most_steps(self) -> int:
        """Steps that a period may take that is executed for others, too."""
        return min(4 * self.guess.steps + 64, self.machine.trials)

    def begin(self, cells: Iterable[str], count: int, first: int = 0) -> dict[str, Value]:
        """What cells have as so many periods begin, from the `first` on: copies of the rows in turn."""
        moves = self.guess.moves
        return {c: repeated(self.now[c], self.rows, count, moves.get(c), first) for c in cells}


class Loops:
    """The loops of a machine, which is to call it where a round begins."""

    def __init__(self, relevance: Relevance) -> None:
        self._relevance = relevance
        self._seen: dict[int, _History] = {}
        self._found: dict[tuple[int, frozenset[str]], _Loop] = {}

    def anew(self) -> "Loops":
        """The same for another machine."""
        other = copy.copy(self)
        other._seen = {}
        return other

    def __call__(self, machine: Machine, group: Group, header: int) -> None:
        """Called where whole blocks begin a round at `header`: executes many at once if a guess fits."""
        if header not in self._seen:
            self._seen[header] = _History(machine.left, WORTH_STEPS)
        seen = self._seen[header]
        waits = seen.left_at_start - machine.left < seen.worth_steps
        if waits or not machine.stands_whole(group) or (machine.memory.holds and not group.full):
            return
        now = machine.registers.held(self._relevance.live[header].cells, group)
        seen.only(group.rows)
        if seen.guess is not None and any(c not in now or not now[c].sure for c in seen.guess.moves):
            seen.guess = None
        if seen.guess is None:
            seen.rounds.append((now, machine.left))
            if len(seen.rounds) not in _LOOKED_AT:
                return
            seen.guess = _guess(seen.rounds)
            if seen.guess is None and len(seen.rounds) < _LOOKED_AT[-1]:
                return
            seen.rounds = []
        if seen.guess is None or not self._leap(_Turn(machine, group, header, now, seen.guess), seen):
            seen.guess, seen.left_at_start, seen.worth_steps = None, machine.left, 4 * seen.worth_steps

    def _leap(self, turn: _Turn, seen: _History) -> bool:
        """Execute the rounds to come together; whether any of them was as guessed."""
        if seen.one_stands_for_all and turn.guess.moves:
            found = self._one_for_all(turn)
            seen.one_stands_for_all = found is not None
            if found:
                return True
        return self._side_by_side(turn, seen)

    def _side_by_side(self, turn: _Turn, seen: _History) -> bool:
        """Execute periods as copies of the rows, each of which begins with what the guess says it does.

        Twice as many each time, up to the first that ends otherwise than the next one begins. True where any
        was right.
        """
        machine, group, header, now, guess = turn
        right, grows, most_at_once = 0, True, max(_MOST_ROWS // turn.rows, 1)
        count = min(seen.count, most_at_once) if guess.moves else 1
        part = self._loop(header, frozenset()).round._replace(stays={})
        while count and machine.trials > 0:
            counter = machine.recorder.trial(count * turn.rows // machine.registers.warps)
            copies = machine.registers.rounds(group, turn.begin(now, count), count)
            back = machine.rounds(header, guess.period, copies, counter, turn.most_steps, part, self.anew())
            right = _leading(_as_guessed(copies, back, turn.begin(now, count, 1)), count)
            if right < count:
                # Those behind the last right one do not happen: the others are counted without them.
                count, grows = right or count // 2, False
                continue
            if not guess.moves:
                raise Stopped(f"the loop at {machine.registers.named(machine.at)} waits for ever")
            machine.recorder.take(counter, group.rows)
            now = turn.begin(now, 1, count)
            turn = turn._replace(now=now)
            for cell in guess.moves.keys() & now.keys():
                machine.registers.write(group, cell, now[cell], group.lanes)
            seen.count = count
            if not grows:
                break
            count = min(2 * count, most_at_once)
        return right > 0

    def _one_for_all(self, turn: _Turn) -> bool | None:
        """Execute one period for all, in which nothing is known of what moves or differs between blocks.

        How often each block comes back follows from the steps of control alone, executed side by side.

        Returns:
            Whether it went as guessed; None where what all periods and blocks have alike is not enough.
        """
        machine, group, header, now, guess = turn
        registers = machine.registers
        blocks = turn.rows // registers.warps
        # Blocks that know what memory holds may know different contents: one does not stand for the others.
        as_one_block = not machine.memory.holds
        live = registers.live[group.rows].reshape(blocks, -1)
        if machine.trials <= 0 or (as_one_block and (live != live[0]).any()):
            return None
        # Cells whose values the one period does not follow: control is to say what they are.
        asked = set(guess.moves)
        if as_one_block:
            begin = registers.rounds(group, now, 1, as_one_block).held(frozenset(now))
            for cell in self._loop(header, frozenset()).written & begin.keys():
                if (begin[cell].unknown != now[cell].unknown[: registers.warps]).any():
                    asked.add(cell)  # blocks know other bits of it
        if any(now[cell].alike is not None and not now[cell].sure for cell in asked):
            return None
        loop = self._loop(header, frozenset(asked))
        times, leaves = _periods(turn, loop, asked)
        if not as_one_block:
            times[:] = times.min()
        if not times.any():
            return leaves
        counter = machine.recorder.trial(1 if as_one_block else blocks, certain=True)
        moving = dict.fromkeys(guess.moves, unknown(32))
        one = registers.rounds(group, now | moving, 1, as_one_block)
        same = one.held(frozenset(now) - asked)
        back = machine.rounds(header, guess.period, one, counter, turn.most_steps, loop.round, self.anew())
        if counter.doubts or not _as_guessed(one, back, same).all():
            return None
        machine.recorder.take(counter, group.rows, times if as_one_block else times[:1])
        periods = np.repeat(times, registers.warps)[:, None]
        for cell, move in guess.moves.items():
            registers.write(group, cell, add(now[cell], known(periods * move)), group.lanes)
        return True

    def _loop(self, header: int, asked: frozenset[str]) -> _Loop:
        """The steps from which control goes back to a header, with those that say what is asked for then."""
        if (header, asked) in self._found:
            return self._found[header, asked]
        steps = self._relevance.steps
        body = self._body(header)
        matters = [k not in body or k == header or needed for k, needed in enumerate(self._relevance.matters)]
        stays = {}
        for k in body:
            action = steps[k].action
            if isinstance(action, Jump) and action.target is not None and not action.call:
                jumps, goes_on = action.target in body, k + 1 in body
                if jumps != goes_on:
                    stays[k] = jumps
        round_ = Part([s if k in body else _LEFT for k, s in enumerate(steps)], matters, stays)
        written = frozenset(cell for k in body for cell in steps[k].dests)
        loop = _Loop(round_, *self._control(header, body, asked), written)
        return self._found.setdefault((header, asked), loop)

    def _control(self, header: int, body: set[int], asked: frozenset[str]) -> tuple[Part, frozenset[str]]:
        """The steps of a loop that say who comes back and with what in the cells asked for; what those read.

        Behind the last step of the program one stands for who comes back: it reads the cells asked for.
        """
        relevance = self._relevance
        back = len(relevance.steps)
        ask = replace(_LEFT, sources=tuple(Source.cell(cell) for cell in asked))
        steps = [_without_memory(s) if k in body else _LEFT for k, s in enumerate(relevance.steps)]
        following = [
            tuple(dict.fromkeys(back if after == header else after for after in relevance.following[k]))
            if k in body
            else ()
            for k in range(back)
        ]
        matters, live = marked((*steps, ask), [*following, ()], frozenset())
        needed = [k == header or matters[k] for k in range(back)]
        return Part(steps, needed, {}), live[header].cells

    def _body(self, header: int) -> set[int]:
        """A header and the steps from which control goes back to it."""
        following = self._relevance.following
        inside = reached([header], following.__getitem__)
        preceding = turned([after if k in inside else () for k, after in enumerate(following)])
        back = [k for k in preceding[header] if k >= header]
        return reached([header, *back], lambda k: preceding[k] if k != header else ())


def _periods(turn: _Turn, loop: _Loop, asked: Collection[str]) -> tuple[IntArray, bool]:
    """How many periods each block comes back as guessed, shape (blocks,), and whether all leave behind them.

    The steps of control are executed for many periods side by side, up to one that is not as guessed.

    Args:
        asked: cells that are to be as guessed, too.
    """
    machine, group, header, now, guess = turn
    blocks = turn.rows // machine.registers.warps
    read = loop.read.union(asked) & now.keys()
    most = max(_MOST_CONTROLLED // turn.rows, 1)
    times, count = np.zeros(blocks, np.int64), min(_FIRST_ROUNDS, most)
    while machine.trials > 0:
        done = int(times[0])
        counter = machine.recorder.trial()
        copies = machine.registers.rounds(group, turn.begin(read, count, done), count)
        back = machine.rounds(header, guess.period, copies, counter, machine.trials, loop.control)
        if counter.doubts and count > 1:
            # Who comes back from later ones is not known.
            count = most = count // 2
            continue
        every = _as_guessed(copies, back, turn.begin(asked, count, done + 1)).reshape(count, blocks, -1)
        more = np.array([_leading(every[:, k], count) for k in range(blocks)])
        times += more
        if (more < count).any():
            break
        count = min(8 * count, most)
    return times, not (back.any() or counter.doubts)


def _without_memory(step: Step) -> Step:
    """A step of control, to be executed many times: nobody is told, nobody waits, contents are not known."""
    match step.action:
        case Memory(space=space) if space != "constant":
            return replace(step, action=Forget(), sources=())
        case Forget():
            return replace(step, action=Forget())
        case Barrier(reduces=""):
            return replace(step, action=Forget(), sources=(), guard=None)
    return step


def _leading(right: Bools, count: int) -> int:
    """How many of so many copies of rows are right before the first that is not."""
    whole = right.reshape(count, -1).sum(axis=1) == right.size // count
    return count if whole.sum() == count else int(whole.argmin())


def _as_guessed(registers: Registers, back: Bools, ends: dict[str, Value]) -> Bools:
    """Rows that came back with these values in their cells."""
    held = registers.held(frozenset(ends))
    if held.keys() != ends.keys():
        return np.zeros_like(back)
    for cell, value in ends.items():
        for mine, theirs in zip(held[cell].parts, value.parts, strict=True):
            back = back & (mine == theirs).all(axis=1)
    return back


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
            steady[cell] = first[:1] if (first == first[:1]).all() else first
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
    return all(bool((x == y).all()) for x, y in zip(a.parts, b.parts, strict=True))
