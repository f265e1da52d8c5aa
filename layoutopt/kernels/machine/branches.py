"""Branches whose way need not be known: what lies between them and where their ways meet is passed over.

Slow paths of divisions, waits and searches are such branches: nothing between them and the meeting point
touches shared memory, waits for others or ends. Registers written between are unknown afterwards. Where
nothing that matters reads these, a branch need not be decided at all (`sliced`): left in, its condition would
draw the arithmetic of floats into the slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

from layoutopt.ground.budget import Budget
from layoutopt.kernels.machine.relevance import Relevance, reached, relevance, successors
from layoutopt.kernels.program import Compute, Forget, Jump, Memory, Program, Reconverge, Step, cells


class Detour(NamedTuple):
    """Where all ways of a branch meet, and the cells and memories that are written between."""

    meet: int
    cells: frozenset[str]
    memories: frozenset[str]


class Detours:
    """Detours around branches of a program, found when they are asked for.

    Args:
        steps: the program.
        kept: memories whose contents may be known.
    """

    def __init__(self, steps: tuple[Step, ...], kept: frozenset[str], budget: Budget) -> None:
        self._steps, self._kept, self._budget = steps, kept, budget
        self._following: list[tuple[int, ...]] = []
        self._meets: list[int | None] = []
        self._found: dict[int, Detour | None] = {}

    def around(self, index: int, together: bool = False) -> Detour | None:
        """The way around a branch; None where something between matters.

        Lanes that part there must be one group again where its ways meet, as counts need it; `together`:
        they cannot part, because the group is a single lane, or all lanes have the same condition.
        """
        if index not in self._found:
            self._found[index] = self._around(index, self.meet(index))
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
        return () if isinstance(action, Jump) and action.returns else following

    def _around(self, index: int, meet: int | None) -> Detour | None:
        if meet is None:
            return None

        def onward(k: int) -> list[int]:
            self._budget.check()
            action = self._steps[k].action
            called = (action.target,) if isinstance(action, Jump) and action.call and action.target else ()
            return [other for other in (*self._following[k], *called) if other != meet]

        between = [self._steps[k] for k in reached([index], onward)]
        if not all(_passable(step) for step in between):
            return None
        names: dict[str, set[str | None]] = {"mark": set(), "meet": set(), "leave": set()}
        for step in between:
            if isinstance(step.action, Reconverge):
                names[step.action.how].add(step.action.name)
        if not names["meet"] | names["leave"] <= names["mark"]:
            return None
        changed = {
            step.action.space
            for step in between
            if isinstance(step.action, Memory) and step.action.kind != "load"
        }
        written = frozenset(cell for step in between for cell in step.dests)
        return Detour(meet, written, self._kept & changed)

    def _joins(self, index: int, meet: int) -> bool:
        """Whether lanes that part at the branch go on as one group where its ways meet."""
        read, action = cells(self._steps[index]), self._steps[meet].action
        uniform = bool(read) and all(cell.startswith("U") for cell in read)
        return uniform or (isinstance(action, Reconverge) and action.how == "meet")


def _passable(step: Step) -> bool:
    match step.action:
        case Forget(_, counts, fills):
            return not counts and not fills
        case Compute() | Jump():
            return True
        case Reconverge(how):
            return how in ("mark", "meet", "leave")
        case Memory(_, space):
            return space not in ("shared", "generic")
    return False


def sliced(program: Program, spaces: Iterable[str], budget: Budget) -> Relevance:
    """What matters of a program where branches that need not be decided are passed over.

    Contents of the memories in these spaces can be known.
    """
    allowed = frozenset(spaces)
    detours = Detours(program.steps, allowed, budget)
    taken = {
        k: detour
        for k, step in enumerate(program.steps)
        if _decides(step) and (detour := detours.around(k)) is not None
    }
    while True:
        found = relevance(program, allowed, {k: detour.meet for k, detour in taken.items()}, budget)
        right = {
            k: detour
            for k, detour in taken.items()
            if found.live[detour.meet].isdisjoint(detour.cells) and found.kept.isdisjoint(detour.memories)
        }
        if len(right) == len(taken):
            return found
        taken = right


def _decides(step: Step) -> bool:
    """Whether a step is a branch with two ways."""
    action = step.action
    if not isinstance(action, Jump) or action.call or action.target is None:
        return False
    return step.guard is not None or bool(step.sources)


def post_dominators(following: Sequence[tuple[int, ...]], budget: Budget | None = None) -> list[int | None]:
    """For each step, the first one that every way from it to the end must pass; None where there is none.

    The iterative algorithm of K. Cooper, T. Harvey and K. Kennedy (A simple, fast dominance algorithm,
    2001), on the reversed graph.

    Args:
        following: the steps that may come after each step; none for those that end.
    """
    end = len(following)
    before: list[list[int]] = [[] for _ in range(end + 1)]
    for k, targets in enumerate(following):
        for target in targets or (end,):
            before[target].append(k)
    order = _post_order(before, end)
    rank = {step: k for k, step in enumerate(order)}
    found = [-1] * end + [end]

    def common(a: int, b: int) -> int:
        """The nearest step that both must pass."""
        while a != b:
            a, b = (found[a], b) if rank[a] < rank[b] else (a, found[b])
        return a

    changed, clock = True, budget or Budget()
    while changed:
        changed = False
        for step in clock.each(reversed(order[:-1])):
            meet = reduce(common, (target for target in following[step] or (end,) if found[target] >= 0))
            changed |= meet != found[step]
            found[step] = meet
    return [None if step in (-1, end) else step for step in found[:end]]


def _post_order(before: Sequence[Sequence[int]], end: int) -> list[int]:
    """Steps from which the end can be reached, the end last."""
    seen, order = {end}, []
    stack = [(end, iter(before[end]))]
    while stack:
        step, others = stack[-1]
        other = next((other for other in others if other not in seen), None)
        if other is None:
            order.append(step)
            stack.pop()
        else:
            seen.add(other)
            stack.append((other, iter(before[other])))
    return order
