"""What shared-memory accesses depend on: the backward slice of their addresses and of all control.

A cell matters before a step if some path from there reads it, before it is written, in a step that matters.
Steps of control, barriers and shared-memory accesses always matter; a step that computes does if one of its
results does. Stores matter to memory from which something that matters is loaded. What is read under a guard
matters where that holds: compilers write and read registers under one guard that nobody wrote before.

The way of a branch need not be known where what lies between it and the step where its ways meet touches no
shared memory, waits for nobody and does not end: slow paths of divisions, waits, searches. Registers written
between are unknown afterwards. Where nothing that matters reads these, a branch need not be decided at all
(shortcuts): left in, its condition would draw the arithmetic of floats into the slice.
"""

import collections
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import Final, NamedTuple

from msgspec.structs import replace

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import checkpoint
from layoutopt.kernels.program import (
    Compute,
    Exit,
    Forget,
    Jump,
    Memory,
    Program,
    Reconverge,
    Source,
    Step,
    read_by,
)

MOST_LIVE: Final = 1 << 24  # cells that matter before the steps of a program, of all steps together
_NOTHING: Final = Step(address=0, text="", action=Forget())


class Live(NamedTuple):
    """Cells that something that matters may still read."""

    always: frozenset[str] = frozenset()  # whatever happens
    guarded: frozenset[tuple[str, Source]] = frozenset()  # where a predicate holds that nobody writes before

    @property
    def cells(self) -> frozenset[str]:
        """All of them."""
        return self.always | {cell for cell, _ in self.guarded} if self.guarded else self.always

    def union(self, other: "Live") -> "Live":
        """Cells that either has."""
        always = self.always if self.always >= other.always else self.always | other.always
        return Live(always, self.guarded | other.guarded if other.guarded else self.guarded)


class Relevance(NamedTuple):
    """What to execute."""

    flow: "Flow"  # how control goes through the program
    steps: tuple[Step, ...]  # what to execute for each step of the program
    following: list[tuple[int, ...]]  # steps that may follow each
    matters: tuple[bool, ...]  # one a step
    kept: frozenset[str]  # memories whose contents matter: `shared`, `local`, `global`
    live: tuple[Live, ...]  # before each step


def relevance(program: Program, spaces: Iterable[str], results: Iterable[str] = ()) -> Relevance:
    """The steps and registers that addresses and branches depend on; other branches are passed over.

    Args:
        program: the kernel.
        spaces: memories whose contents can be known: `shared`, `local`, `global` where buffers are given.
        results: memories whose contents matter in any case.
    """
    kept, allowed = frozenset(results), frozenset(spaces)
    flow = Flow(program.steps if "global" in kept else tuple(map(_without_value, program.steps)))
    branches = (k for k, step in enumerate(flow.steps) if _decides(step))
    taken = {k: detour for k in branches if (detour := flow.around(k)) is not None}
    while True:
        found = _slice(flow, allowed, {k: detour.meet for k, detour in taken.items()}, kept)
        right = {
            k: detour
            for k, detour in taken.items()
            if found.live[detour.meet].cells.isdisjoint(detour.cells)
            and found.kept.isdisjoint(detour.memories)
        }
        if len(right) == len(taken):
            return found
        taken = right


def _without_value(step: Step) -> Step:
    """A step of which it is not asked what it writes to global memory, only where, or what stands for it."""
    action = step.action
    if isinstance(action, Forget) and action.stand_in is not None:
        return replace(step, action=replace(action, stand_in=None), sources=())
    writes = isinstance(action, Memory) and action.space == "global" and action.kind in ("store", "atomic")
    return replace(step, sources=step.sources[:1]) if writes else step


def _slice(
    flow: "Flow", allowed: frozenset[str], shortcuts: Mapping[int, int], kept: frozenset[str]
) -> Relevance:
    """What matters where some branches are passed over.

    Args:
        flow: of the program.
        allowed: memories whose contents can be known.
        shortcuts: by branches that need not be decided, where their ways meet.
        kept: memories whose contents matter in any case.
    """
    following = flow.following.copy()
    for k, meet in shortcuts.items():
        following[k] = (meet,)
    here = reached([0], following.__getitem__) if following else set()
    # What is never reached does not matter, and branches that are passed over read nothing.
    steps = [step if k in here else _NOTHING for k, step in enumerate(flow.steps)]
    for k, meet in shortcuts.items():
        steps[k] = replace(_NOTHING, action=Jump(meet))
    while True:
        matters, live = marked(steps, following, kept)
        found = _wanted(steps, following, live) & allowed
        if found <= kept:
            break
        kept |= found
    for k, step in enumerate(steps):
        if matters[k] and step.dests:
            # Results that nothing needs behind the step go to no cell ("").
            needed = frozenset[str]().union(
                *(live[after].cells.intersection(step.dests) for after in following[k])
            )
            if len(needed) < len(set(step.dests)):
                steps[k] = replace(step, dests=tuple(c if c in needed else "" for c in step.dests))
    return Relevance(flow, tuple(steps), following, matters, kept, live)


def _wanted(
    steps: Iterable[Step], following: Iterable[tuple[int, ...]], live: Sequence[Live]
) -> frozenset[str]:
    """Memories from which something that matters is loaded."""
    return frozenset(
        space
        for step, after in zip(steps, following, strict=True)
        if isinstance(step.action, Memory) and any(not live[k].cells.isdisjoint(step.dests) for k in after)
        for space in _read_spaces(step.action)
    )


def reached(start: Iterable[int], onward: Callable[[int], Iterable[int]]) -> set[int]:
    """These steps and all that follow them, one after another."""
    found, todo = set(start), list(start)
    while todo:
        new = [k for k in dict.fromkeys(onward(todo.pop())) if k not in found]
        found.update(new)
        todo += new
    return found


def turned(following: Sequence[Iterable[int]]) -> list[list[int]]:
    """For each step those that it may follow, out of those that may follow each."""
    preceding: list[list[int]] = [[] for _ in following]
    for k, targets in enumerate(following):
        for target in targets:
            preceding[target].append(k)
    return preceding


def _read_spaces(action: Memory) -> tuple[str, ...]:
    if action.kind not in ("load", "ldmatrix", "atomic"):
        return ()
    return ("shared", "local", "global") if action.space == "generic" else (action.space,)


def _decides(step: Step) -> bool:
    """Whether a step is a branch with several ways."""
    action = step.action
    if not isinstance(action, Jump) or action.call or (action.target is None and action.places is None):
        return False
    return step.guard is not None or bool(step.sources)


def marked(
    steps: Sequence[Step], following: list[tuple[int, ...]], kept: frozenset[str]
) -> tuple[tuple[bool, ...], tuple[Live, ...]]:
    """Which steps matter, and the cells that matter before each, given the steps that may follow each.

    Args:
        steps: of the kernel.
        following: of each, the steps that may be next.
        kept: memories whose contents matter, so that stores to them do.

    Raises:
        ProblemFileError: more cells matter at once than `MOST_LIVE`.
    """
    count = len(steps)
    before = [Live()] * count
    preceding = turned(following)
    matters = [False] * count
    todo = list(range(count))
    queued = [True] * count
    # Cells in the sets that each step has of its own, and in all: sets shared with the next step count there.
    owned, size = [0] * count, 0
    while todo:
        checkpoint()
        k = todo.pop()
        queued[k] = False
        first, *others = [before[target] for target in following[k]] or [Live()]
        after = reduce(Live.union, others, first)
        matters[k], live = _before(steps[k], after, kept)
        if live != before[k]:
            own = sum(0 if mine is theirs else len(mine) for mine, theirs in zip(live, after, strict=True))
            size, owned[k] = size + own - owned[k], own
            if size > MOST_LIVE:
                raise ProblemFileError("", f"the kernel is too large: more than {MOST_LIVE:,} live values")
            before[k] = live
            for other in preceding[k]:
                if not queued[other]:
                    queued[other] = True
                    todo.append(other)
    return tuple(matters), tuple(before)


def _before(step: Step, after: Live, kept: frozenset[str]) -> tuple[bool, Live]:
    """Whether a step matters, and the cells that matter before it, given those that matter after it.

    Of `@P0 MOV R1, R2`, where R1 matters behind it, P0 matters before it, R2 where P0 holds, and R1 where it
    does not.
    """
    guard, dests, (always, guarded) = step.guard, frozenset(step.dests), after
    # Of cells that matter under a guard: those that the step may write there, and those whose guard it does.
    answered = [one for one in guarded if one[0] in dests and (guard is None or one[1] != guard.negated)]
    guard_written = [one for one in guarded if not dests.isdisjoint(one[1].cells)]
    matters, read = _needed(step, bool(answered) or not always.isdisjoint(dests), kept)
    if not matters:
        return False, after
    if guard_written:  # the step writes the predicate of their guard: before it, they are needed in any case
        always |= {cell for cell, _ in guard_written}
        guarded = guarded.difference(guard_written)
    if guard is None:
        always = always if always.isdisjoint(dests) else always - dests
        guarded = guarded.difference(answered) if answered else guarded
        return True, Live(always if read <= always else always | read, guarded)
    lanewise = isinstance(step.action, Memory) or (
        isinstance(step.action, Compute) and not step.action.across
    )
    read_guarded = {cell for cell in read if lanewise and _follows(cell, guard)}
    replaced = {cell for cell in always & dests if _follows(cell, guard)}
    where_not = {(cell, guard.negated) for cell in replaced}
    guarded = guarded.difference((cell, guard) for cell in dests) | where_not
    guarded |= {(cell, guard) for cell in read_guarded}
    return True, Live(always - replaced | (read - read_guarded) | frozenset(guard.cells), guarded)


def _follows(cell: str, guard: Source) -> bool:
    """Whether a guard says of a cell who has it: of one that a warp has, a guard of the warp."""
    return not cell.startswith("U") or all(predicate.startswith("U") for predicate in guard.cells)


def _needed(step: Step, results: bool, kept: frozenset[str]) -> tuple[bool, frozenset[str]]:
    """Whether a step matters, whose results do or not, and the cells that it then reads, its guard aside."""
    action, none = step.action, frozenset[str]()
    match action:
        case Compute():
            return results, read_by(step.sources) if results else none
        case Forget(_, counts, fills):
            matters = results or counts or (fills and "shared" in kept)
            return matters, read_by(step.sources) if matters else none
        case Memory():
            counted = action.space in ("shared", "generic")
            changes = action.kind in ("store", "atomic", "copy", "stmatrix")
            follows = changes and (action.space in kept or (action.space == "generic" and bool(kept)))
            loads = results and (action.space != "global" or "global" in kept)
            matters = counted or follows or results
            read = step.sources if follows else step.sources[:1] if counted or loads else ()
            return matters, read_by(read) if matters else none
    return True, read_by(step.sources)


def constant_bytes(step: Step) -> Iterator[int]:
    """Bytes of constant bank 0 that a step reads, where its text says which."""
    action = step.action
    if isinstance(action, Memory) and (start := constant_place(step)) is not None:
        yield from range(start, start + action.width_bytes)
    for cell in step.cells:
        if cell.startswith("$c0."):
            yield from range(int(cell[4:]), int(cell[4:]) + 4)


def constant_place(step: Step) -> int | None:
    """Where a step loads from constant bank 0; None for another step, or an address in registers."""
    action = step.action
    if not isinstance(action, Memory) or action.space != "constant" or action.bank or step.sources[0].cells:
        return None
    return int(step.sources[0].value().bits.flat[0])


class Detour(NamedTuple):
    """Where all ways of a branch meet, and the cells and memories that are written between."""

    meet: int
    cells: frozenset[str]
    memories: frozenset[str]


class Flow:
    """What may follow what in a program, where the ways of its branches meet, and the ways around them.

    Attributes:
        steps: the program.
        returns: steps whose address some instruction puts into a register: where returns may go.
        following: steps that may follow each step; a return may go to all of those.
    """

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps
        self.returns = _return_places(steps)
        self.following = [self._after(k) for k in range(len(steps))]
        self._found: dict[int, Detour | None] = {}
        self._followed: dict[tuple[int, frozenset[str]], bool] = {}

    def _after(self, index: int) -> tuple[int, ...]:
        step = self.steps[index]
        action = step.action
        following: tuple[int, ...] = (index + 1,) if index + 1 < len(self.steps) else ()
        if isinstance(action, Jump):
            targets = (action.target,) if action.target is not None else action.places or self.returns
            always = step.guard is None and (not step.sources or action.target is None)
            return targets if always else (*following, *targets)
        return () if isinstance(action, Exit) and step.guard is None else following

    def around(self, index: int, together: bool = False) -> Detour | None:
        """The way around a branch; None where something between matters.

        Lanes that part there must be one group again where its ways meet, as counts need it; `together`:
        they cannot part, because the group is a single lane, or all lanes have the same condition.
        """
        if index not in self._found:
            self._found[index] = self._around(index, self.meet(index))
        found = self._found[index]
        if found is None or together:
            return found
        read, action = self.steps[index].cells, self.steps[found.meet].action
        uniform = bool(read) and all(cell.startswith("U") for cell in read)
        return found if uniform or (isinstance(action, Reconverge) and not action.leaves) else None

    def meet(self, index: int) -> int | None:
        """The first step that all ways from a branch to the end come to; None where there is none.

        All steps between are farther from the end than that one. So the farthest is gone on from, until
        a single one is ahead.
        """
        seen, ahead = {index}, [(-self._to_end.get(index, 0), index)]
        while ahead:
            checkpoint()
            distance, step = heapq.heappop(ahead)
            if distance == 0:
                return None
            for target in self._inside[step]:
                if target in self._to_end and target not in seen:
                    seen.add(target)
                    heapq.heappush(ahead, (-self._to_end[target], target))
            if len(ahead) == 1:
                return ahead[0][1]
        return None

    @cached_property
    def _to_end(self) -> dict[int, int]:
        """How many steps each one is away from the nearest end; without those that lead to none."""
        preceding = turned(self._inside)
        found = dict.fromkeys((k for k, after in enumerate(self._inside) if not after), 0)
        todo = collections.deque(found)
        while todo:
            checkpoint()
            step = todo.popleft()
            for other in preceding[step]:
                if other not in found:
                    found[other] = found[step] + 1
                    todo.append(other)
        return found

    @cached_property
    def _inside(self) -> list[tuple[int, ...]]:
        """Steps that may follow each inside functions: a call is passed over, a return ends it."""
        found = self.following.copy()
        for k, step in enumerate(self.steps):
            if isinstance(step.action, Jump) and step.action.returns:
                found[k] = ()
            elif isinstance(step.action, Jump) and step.action.call and k + 1 < len(self.steps):
                found[k] = (k + 1,)
        return found

    def matters_after(self, index: int, kept: frozenset[str]) -> bool:
        """Whether a step behind this one may touch shared memory, wait, or change a memory of `kept`."""
        if (index, kept) not in self._followed:
            behind = (self.steps[k] for k in reached(self.following[index], self.following.__getitem__))
            self._followed[index, kept] = any(
                not (_passable(step) or isinstance(step.action, Exit))
                or (
                    isinstance(step.action, Memory)
                    and step.action.kind != "load"
                    and step.action.space in kept
                )
                for step in behind
            )
        return self._followed[index, kept]

    def _around(self, index: int, meet: int | None) -> Detour | None:
        """What the ways of a branch write up to where they meet; None where something there matters."""
        if meet is None:
            return None

        def onward(k: int) -> list[int]:
            checkpoint()
            action = self.steps[k].action
            called = self.following[k] if isinstance(action, Jump) and action.call else ()
            return [other for other in (*self._inside[k], *called) if other != meet]

        between = [self.steps[k] for k in reached([index], onward)]
        if not all(_passable(step) for step in between):
            return None
        written = frozenset(cell for step in between for cell in step.dests)
        met = read_by(source for s in between if isinstance(s.action, Reconverge) for source in s.sources)
        masks = frozenset(cell for cell in written | met if cell.startswith("B"))
        # Whoever meets between was told to there (BSSY): nobody else waits for them, or they for anybody.
        begun = {c for step in between if step.dests and not step.sources for c in step.dests}
        if not masks <= begun:
            return None
        stores = (s.action for s in between if isinstance(s.action, Memory) and s.action.kind != "load")
        return Detour(meet, written - masks, frozenset(store.space for store in stores))


def _return_places(steps: tuple[Step, ...]) -> tuple[int, ...]:
    if not any(isinstance(step.action, Jump) and step.action.returns for step in steps):
        return ()
    constants = (source.value() for step in steps for source in step.sources if not source.cells)
    numbers = {int(value.bits.flat[0]) for value in constants}
    return tuple(k for k, step in enumerate(steps) if step.address in numbers)


def _passable(step: Step) -> bool:
    match step.action:
        case Forget(_, counts, fills):
            return not counts and not fills
        case Compute() | Jump():
            return True
        case Reconverge():
            return any(cell.startswith("B") for cell in step.cells)
        case Memory(_, space):
            return space not in ("shared", "generic")
    return False
