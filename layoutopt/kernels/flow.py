"""Where the ways of a program part and meet."""

from __future__ import annotations

from collections.abc import Sequence

from layoutopt.ground.budget import Budget


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
