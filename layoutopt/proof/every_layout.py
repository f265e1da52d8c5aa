"""What holds for every layout of any kind, and on what that rests.

Three sources, from the one easiest to check to the hardest: counting, a clique or a parity
(`layoutopt.proof.obstructions`, by hand), and the solver over free assignments (`layoutopt.model.placement`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from layoutopt.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.layout.layout import Digit
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import EFFORT, FreeAssignment, IntArray, free_assignment
from layoutopt.model.swizzle import SwizzleModel, last_block, phases_of, rules, swizzle_field
from layoutopt.problems.trace import Trace
from layoutopt.problems.types import Problem, Tile
from layoutopt.proof.obstructions import (
    MAX_PARITY_PHASES,
    Board,
    Clique,
    Parity,
    board,
    counting_excess,
    find_clique,
    find_parity,
)

COUNTING: Final = "counting: words that share a place in their vectors share too few banks"
CLIQUE: Final = "clique: more words that pairwise meet than banks for them"
PARITY: Final = "parity: no bank can take one word of every phase that fills all banks"
SOLVER: Final = "solver: CP-SAT over every placement of vectors in banks"

# What a question is worth whose answer changes no layout: deterministic time, and phases of a parity.
_BRIEF_EFFORT: Final = 0.5
_BRIEF_PARITY_PHASES: Final = 128


@dataclass(frozen=True, slots=True)
class EveryLayout:
    """Lower bounds of the weighted excess, in units of `Trace.weight_unit`.

    Attributes:
        bound: the best of them.
        evidence: what it rests on, one of this module's texts; empty for a bound of 0.
        counting: the part that counting gives; cliques and parities add to it.
        board: the words and phases that `clique` and `parity` speak of; None where not looked for.
        clique: more words that pairwise meet than banks.
        parity: phases that no perfect spread satisfies.
        free: what the solver found of free assignments; None where it was not needed or not possible.
    """

    bound: int
    evidence: str
    counting: int
    board: Board | None
    clique: Clique | None
    parity: Parity | None
    free: FreeAssignment | None


def every_layout(
    tile: Tile,
    device: Device,
    trace: Trace,
    *,
    enough: int | None,
    budget: Budget,
    workers: int = 1,
    briefly: bool = False,
    max_bytes: int | None = None,
    hint: IntArray | None = None,
) -> EveryLayout:
    """Bound the excess of every layout.

    Args:
        tile: the tile.
        device: whose rules.
        trace: the accesses.
        enough: an excess that some layout has: a bound that reaches it ends the search. None to
            look for the best assignment whatever the bound.
        budget: the time there is.
        workers: solver threads.
        briefly: spend about a second: no layout outside the families may be the answer.
        max_bytes: the assignment is no larger; the bounds hold for every size.
        hint: byte offsets of a layout to start from.
    """
    on = board(trace, tile, device)
    counting = counting_excess(on) if on is not None else 0
    clique = parity = None
    bound, evidence = counting, COUNTING if counting else ""
    if on is not None and (enough is None or bound < enough):
        clique = find_clique(on)
        if clique is not None:
            bound, evidence = counting + clique.excess, CLIQUE
        if not budget.spent and (enough is None or bound < enough):
            parity = find_parity(on, _BRIEF_PARITY_PHASES if briefly else MAX_PARITY_PHASES)
            if parity is not None and counting + parity.excess > bound:
                bound, evidence = counting + parity.excess, PARITY
    free = None
    if enough is None or bound < enough:
        free = free_assignment(
            phase_sets(trace, tile, device),
            trace,
            tile,
            budget=budget,
            workers=workers,
            effort=_BRIEF_EFFORT if briefly else EFFORT,
            max_bytes=max_bytes,
            hint=hint,
        )
        if free is not None and free.bound > bound:
            bound, evidence = free.bound, SOLVER
    return EveryLayout(bound, evidence, counting, on, clique, parity, free)


def row_major_question(problem: Problem, device: Device, trace: Trace) -> str | None:
    """`CpModelProto` text that has a solution if some swizzle of row-major offsets has no conflicts.

    None where no swizzle of that kind exists.
    """
    tile = problem.tile
    sets = phase_sets(trace, tile, device)
    field = swizzle_field(sets, tile, trace) if sets else None
    if field is None:
        return None
    digits, stride = [], 1
    for dim in reversed(range(len(tile.shape))):
        digits.append(Digit(dim, 1, tile.shape[dim], stride))
        stride *= tile.shape[dim]
    row_major = Linearisation(tuple(reversed(digits)), tile.elements, 0, "none", True)
    last = last_block(row_major, field, tile)
    if last is not None:  # a swizzle may move the words of a last block that is not full
        row_major = replace(row_major, span=max(last.reach.values()))
    phases = phases_of(row_major, sets, tile)
    model = SwizzleModel(phases, field, rules(row_major, field, tile))
    return model.targets_text(phases.ideal)
