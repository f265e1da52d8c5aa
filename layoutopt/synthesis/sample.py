"""Large problems by a sample of their warp instructions: propose for these, count all, add what was found.

A layout that is best for some instructions, and costs no more when all are counted, is best for all: fewer
instructions leave less excess, so that every bound of the sample holds. Where it costs more, the
instructions that it serves worst join the sample. A transpose of two million words is decided by two
thousand of its rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from layoutopt.engine.case import Case
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import VerificationError
from layoutopt.problems.answer import EVERY_LAYOUT, Bound
from layoutopt.problems.trace import Trace
from layoutopt.search.proposal import Ask, Proposal

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

# Warp instructions beyond which a sample is searched; how many it has, and how many join it in a round.
MOST_TOGETHER: Final = 1 << 14
_SAMPLED: Final = 2048
_JOINING: Final = 256
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
    lanes = case.certain
    taken = [_some(len(a.element), _SAMPLED // len(lanes.accesses)) for a in lanes.accesses]
    best: Proposal | None = None
    for _ in range(_ROUNDS):
        proposal = search(_only(lanes, taken))
        if proposal.layout is None:
            return best or proposal
        counted = _counted(case, lanes, proposal, taken)
        best = (
            counted.proposal
            if best is None or best.layout is None
            else min(best, counted.proposal, key=_rank(case))
        )
        joined = [_worst(over, mine) for over, mine in zip(counted.excess, taken, strict=True)]
        if ask.conflict_free and best.weighted_excess:
            best = replace(best, layout=None, complete=False, reason=_LEFT)
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
            operations_proved=False,
            bytes_bound=least,
            complete=False,
            reason=_LEFT,
        ),
        excess,
        False,
    )


def _rank(case: Case) -> Callable[[Proposal], tuple[float, ...]]:
    def rank(p: Proposal) -> tuple[float, ...]:
        cost = p.operations or 0
        if case.lowered.layout.minimise == "excess":
            return p.weighted_excess, p.bytes, cost
        if case.lowered.layout.minimise == "bytes":
            return p.bytes, p.weighted_excess, cost
        return cost, p.weighted_excess, p.bytes

    return rank


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
