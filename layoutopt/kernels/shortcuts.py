"""Branches that need not be decided: what lies between them and where their ways meet changes nothing that
matters.

Slow paths of divisions, roots and trigonometric functions are such branches in most kernels. Left in, their
conditions would draw all of the arithmetic of floats into the slice.
"""

from __future__ import annotations

from collections.abc import Iterable

from layoutopt.ground.budget import Budget
from layoutopt.kernels.detours import Detour, Detours
from layoutopt.kernels.program import Jump, Program, Step
from layoutopt.kernels.relevance import Relevance, relevance


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
