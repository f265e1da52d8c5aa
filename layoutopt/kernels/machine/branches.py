"""Branches whose way need not be known: what lies between them and where their ways meet is passed over.

Slow paths of divisions, waits and searches are such branches: nothing between them and the meeting point
touches shared memory, waits for others or ends. Registers written between are unknown afterwards. Where
nothing that matters reads these, a branch need not be decided at all (`sliced`): left in, its condition would
draw the arithmetic of floats into the slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from layoutopt.ground.budget import Budget
from layoutopt.kernels.machine.relevance import Relevance, relevance, successors
from layoutopt.kernels.program import (
    Across,
    Compute,
    Forget,
    Jump,
    Mark,
    Meet,
    Memory,
    Nothing,
    Program,
    Refused,
    Step,
    cells,
)


class Detour(NamedTuple):
    """Where all ways of a branch meet, and the cells and memories that are written between."""

    meet: int
    cells: tuple[str, ...]
    memories: frozenset[str]


class Detours:
    """Detours around branches of a program, found when they are asked for.

    Args:
        steps: the program.
        kept: memories whose contents may be known.
        budget: the time there is, for all of them.
    """

    def __init__(self, steps: tuple[Step, ...], kept: frozenset[str], budget: Budget) -> None:
        self._steps, self._kept, self._budget = steps, kept, budget
        self._following: list[tuple[int, ...]] = []
        self._meets: list[int | None] = []
        self._found: dict[int, Detour | None] = {}

    def around(self, index: int, together: bool = False) -> Detour | None:
        """The way around a branch; None where something between matters.

        Lanes that part there must be one group again where its ways meet, as counts need it; `together`:
        they cannot part, because the group is a single lane.
        """
        self.meet(index)
        if index not in self._found:
            self._found[index] = self._around(index)
        found = self._found[index]
        return found if found is not None and (together or self._joins(index, found.meet)) else None

    def meet(self, index: int) -> int | None:
        """The step where all ways of a branch meet; None where there is none."""
        if not self._meets:
            self._following = [self._after(k, found) for k, found in enumerate(successors(self._steps))]
            self._meets = post_dominators(self._following, self._budget)
        return self._meets[index]

    def _after(self, index: int, following: tuple[int, ...]) -> tuple[int, ...]:
        """The steps that follow one in its own function: a call is passed over, a return ends it."""
        action = self._steps[index].action
        if isinstance(action, Jump) and action.call and index + 1 < len(self._steps):
            return (index + 1,)
        returns = isinstance(action, Jump) and action.target is None and action.places is None
        return () if returns else following

    def _called(self, index: int) -> tuple[int, ...]:
        action = self._steps[index].action
        return (action.target,) if isinstance(action, Jump) and action.call and action.target else ()

    def _around(self, index: int) -> Detour | None:
        meet = self._meets[index]
        if meet is None:
            return None
        seen, todo = {index}, [k for k in self._following[index] if k != meet]
        while todo:
            self._budget.check()
            k = todo.pop()
            if k not in seen:
                seen.add(k)
                todo += [other for other in (*self._following[k], *self._called(k)) if other != meet]
        between = [self._steps[k] for k in sorted(seen)]
        if not all(self._passable(step) for step in between):
            return None
        marked = {step.action.name for step in between if isinstance(step.action, Mark)}
        met = {step.action.name for step in between if isinstance(step.action, Meet)}
        if not met <= marked:
            return None
        cells = {cell: None for step in between for cell in step.dests}
        memories = (
            step.action.space
            for step in between
            if isinstance(step.action, Memory) and step.action.kind != "load"
        )
        return Detour(meet, tuple(cells), frozenset(memories) & self._kept)

    def _joins(self, index: int, meet: int) -> bool:
        """Whether lanes that part at the branch go on as one group where its ways meet."""
        step = self._steps[index]
        read = cells(step)
        uniform = bool(read) and all(cell.startswith("U") for cell in read)
        return uniform or isinstance(self._steps[meet].action, Meet)

    def _passable(self, step: Step) -> bool:
        action = step.action
        match action:
            case Forget(_, counts):
                return not counts
            case Compute() | Across() | Nothing() | Mark() | Meet():
                return True
            case Jump():
                return True
            case Refused(_, always):
                return not always
            case Memory():
                return action.space not in ("shared", "generic")
        return False


def sliced(program: Program, spaces: Iterable[str], budget: Budget) -> Relevance:
    """What matters of a program where branches that need not be decided are passed over.

    Args:
        program: the kernel.
        spaces: memories whose contents can be known.
        budget: the time there is.

    Raises:
        OutOfTime: it is spent.
    """
    allowed = frozenset(spaces)
    detours = Detours(program.steps, allowed, budget)
    taken: dict[int, Detour] = {}
    for k, step in enumerate(program.steps):
        if _decides(step) and (detour := detours.around(k)) is not None:
            taken[k] = detour
    while True:
        found = relevance(program, allowed, {k: detour.meet for k, detour in taken.items()}, budget)
        wrong = [k for k, detour in taken.items() if _changes(detour, found)]
        if not wrong:
            return found
        for k in wrong:
            del taken[k]


def _decides(step: Step) -> bool:
    """Whether a step is a branch with two ways."""
    action = step.action
    if not isinstance(action, Jump) or action.call or action.target is None:
        return False
    return step.guard is not None or bool(step.sources) or action.none_left


def _changes(detour: Detour, found: Relevance) -> bool:
    """Whether something between a branch and its meeting point changes what matters from there on."""
    return not (found.live[detour.meet].isdisjoint(detour.cells) and found.kept.isdisjoint(detour.memories))


def post_dominators(following: Sequence[tuple[int, ...]], budget: Budget | None = None) -> list[int | None]:
    """For each step, the first one that every way from it to the end must pass; None where there is none.

    The iterative algorithm of K. Cooper, T. Harvey and K. Kennedy (A simple, fast dominance algorithm,
    2001), on the reversed graph.

    Args:
        following: the steps that may come after each step; none for those that end.
        budget: the time there is; None for no limit.

    Raises:
        OutOfTime: the budget is spent.
    """
    count = len(following)
    end = count
    before: list[list[int]] = [[] for _ in range(count + 1)]
    for k, targets in enumerate(following):
        for target in targets or (end,):
            before[target].append(k)
    order = _post_order(before, end)
    rank = {step: k for k, step in enumerate(order)}
    found: list[int | None] = [None] * (count + 1)
    found[end] = end
    changed, clock = True, budget or Budget()
    while changed:
        changed = False
        for step in clock.each(reversed(order[:-1])):
            meet: int | None = None
            for target in following[step] or (end,):
                if found[target] is not None:
                    meet = target if meet is None else _common(meet, target, found, rank)
            if meet != found[step]:
                found[step] = meet
                changed = True
    return [None if step == end else step for step in found[:count]]


def _post_order(before: Sequence[Sequence[int]], end: int) -> list[int]:
    """Steps from which the end can be reached, the end last."""
    seen, order = {end}, []
    stack = [(end, iter(before[end]))]
    while stack:
        step, others = stack[-1]
        for other in others:
            if other not in seen:
                seen.add(other)
                stack.append((other, iter(before[other])))
                break
        else:
            order.append(step)
            stack.pop()
    return order


def _common(a: int, b: int, found: Sequence[int | None], rank: dict[int, int]) -> int:
    """The nearest step that both must pass."""
    while a != b:
        while rank[a] < rank[b]:
            a = found[a]  # type: ignore[assignment]
        while rank[b] < rank[a]:
            b = found[b]  # type: ignore[assignment]
    return a
