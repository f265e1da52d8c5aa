"""Large problems by a sample of their warp instructions: propose for these, count all, add what was found.

A layout that is best for some instructions, and costs no more when all are counted, is best for all: fewer
instructions leave less excess, so that every bound of the sample holds. Where it costs more, and
more than what counting leaves the others in every layout, the instructions that it serves worst join the
sample. A transpose of two million words is decided by two
thousand of its rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from layoutopt.accesses.alignment import Blocks, blocks
from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import VerificationError
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.phases import counting_excess, phase_sets
from layoutopt.problems.answer import EVERY_LAYOUT, Bound
from layoutopt.search.proposal import Ask, Proposal

# Warp instructions beyond which a sample is searched; how many it has, and how many join it in a round.
MOST_TOGETHER: Final = 1 << 14
_SAMPLED: Final = 2048
_JOINING: Final = 256
_PIECE: Final = 1 << 13  # instructions counted at once
_ROUNDS: Final = 8
_SEED: Final = 1
_LEFT: Final = "the best for a sample of the instructions has more excess when all are counted"


def is_large(case: Case) -> bool:
    """Whether the case has more instructions than are searched together."""
    return sum(len(access.element) for access in case.lanes.accesses) > MOST_TOGETHER


def by_sample(case: Case, ask: Ask, search: Callable[[Trace], Proposal]) -> Proposal:
    """The best proposal over all instructions, each time for a larger sample of them.

    Args:
        case: what is asked about.
        ask: the time there is.
        search: what proposes for some of the instructions of `case.certain`.
    """
    lanes, held_by = case.certain, blocks(case.certain, case.lowered.tile)
    taken = [_some(len(a.element), _SAMPLED // len(lanes.accesses)) for a in lanes.accesses]
    best: Proposal | None = None
    for _ in range(_ROUNDS):
        proposal = search(_only(lanes, taken))
        if proposal.layout is None:
            return best or proposal
        counted = _counted(case, lanes, proposal, taken)
        if not counted.holds:
            rest = _only(lanes, [~rows for rows in taken])
            counted = _with_rest(counted, proposal, _counting_excess(case, rest, held_by, ask.budget))
        best = (
            counted.proposal
            if best is None or best.layout is None
            else min(best, counted.proposal, key=_rank(case))
        )
        joined = [_worst(over, mine) for over, mine in zip(counted.excess, taken, strict=True)]
        if ask.conflict_free and best.weighted_excess:
            best = replace(best, layout=None, reason=_LEFT)
        if counted.holds or ask.budget.spent or not any(rows.any() for rows in joined):
            return best
        taken = [mine | rows for mine, rows in zip(taken, joined, strict=True)]
    assert best is not None
    return best


@dataclass(frozen=True, slots=True)
class _Counted:
    """A proposal for all instructions, their weighted excess by access, and whether its bounds hold."""

    proposal: Proposal
    excess: list[IntArray]
    holds: bool


def _counted(case: Case, lanes: Trace, proposal: Proposal, taken: list[BoolArray]) -> _Counted:
    """What the conflict engine makes of a proposal for the instructions in `taken`."""
    assert proposal.layout is not None
    table = case.table(proposal.layout)
    excess = []
    for access in lanes.accesses:
        counts = count_wavefronts(table[access.element], access.active, access.operation, case.device)
        excess.append((counts.wavefronts - counts.ideal) * access.weight)
    promised = sum(int(over[mine].sum()) for over, mine in zip(excess, taken, strict=True))
    if promised != proposal.weighted_excess:
        raise VerificationError(
            f"the model promised a weighted excess of {proposal.weighted_excess} for a sample, "
            f"the engine counts {promised}"
        )
    total = sum(int(over.sum()) for over in excess)
    if total == promised:
        return _Counted(proposal, excess, True)
    least = Bound(case.lowered.tile.bytes, EVERY_LAYOUT)
    return _Counted(
        replace(
            proposal,
            weighted_excess=total,
            bytes_bound=least,
            left_open=True,
            reason=_LEFT,
        ),
        excess,
        False,
    )


def _with_rest(counted: _Counted, sampled: Proposal, rest: tuple[int, int]) -> _Counted:
    """What is counted for all, under the bound of the sample and what counting leaves the `rest`.

    Where the two are met, every layout as good leaves the sample at its least excess, so that the sample's
    bound of the bytes is theirs, too.
    """
    bound = sampled.excess_bound.lower_bound + rest[0]
    total, plain = counted.proposal.weighted_excess, sampled.plain_floor + rest[1]
    holds = sampled.complete and total <= bound
    proposal = replace(
        replace(sampled, weighted_excess=total) if holds else counted.proposal,
        excess_bound=Bound(bound, sampled.excess_bound.scope),
        plain_floor=plain,
    )
    return _Counted(proposal, counted.excess, holds)


def _counting_excess(case: Case, lanes: Trace, held_by: Blocks, budget: Budget) -> tuple[int, int]:
    """Excess that counting leaves in every layout, weighted and not, as far as there is time to count it."""
    weighted = plain = 0
    for access in lanes.accesses:
        for first in budget.while_left(range(0, len(access.element), _PIECE)):
            rows = slice(first, first + _PIECE)
            piece = replace(
                access, element=access.element[rows], active=access.active[rows], weight=access.weight[rows]
            )
            found = phase_sets(Trace((piece,), lanes.weight_unit), case.lowered.tile, case.device, held_by)
            more = counting_excess(found)
            weighted, plain = weighted + more[0], plain + more[1]
    return weighted, plain


def _rank(case: Case) -> Callable[[Proposal], tuple[float, ...]]:
    objective = case.lowered.layout.objective
    return lambda p: objective.key(
        p.weighted_excess,
        p.bytes,
        case.index_cost(p.layout) if p.layout is not None and objective.instructions_first else 0,
    )


def _some(total: int, count: int) -> BoolArray:
    """So many of a number of rows, the same each time."""
    rows = np.zeros(total, bool)
    rows[np.random.default_rng(_SEED).permutation(total)[:count]] = True
    return rows


def _worst(excess: IntArray, taken: BoolArray) -> BoolArray:
    """The rows that have most excess, of those not taken."""
    open_to = np.where(taken, 0, excess)
    rows = np.zeros(len(excess), bool)
    worst = np.argsort(-open_to, kind="stable")[:_JOINING]
    rows[worst] = open_to[worst] > 0
    return rows


def _only(lanes: Trace, taken: list[BoolArray]) -> Trace:
    """The trace with the rows that are taken."""
    accesses = tuple(
        replace(a, element=a.element[rows], active=a.active[rows], weight=a.weight[rows])
        for a, rows in zip(lanes.accesses, taken, strict=True)
    )
    return Trace(accesses, lanes.weight_unit)
