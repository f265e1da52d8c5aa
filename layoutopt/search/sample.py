"""Large problems by a sample of their warp instructions: propose for these, count all, add what was found.

A layout that is best for some instructions, and costs no more when all are counted, is best for all: fewer
instructions leave less excess, so that every bound of the sample holds. Where it costs more, and
more than what counting leaves the others in every layout, the instructions that it serves worst join the
sample. A transpose of two million words is decided by two
thousand of its rows and columns.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import VerificationError
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import current
from layoutopt.model.phases import counting_excess, phase_sets
from layoutopt.search.proposal import Proposal, Proved
from layoutopt.search.search import Search

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


def by_sample(search: Search, so_far: Proposal | None) -> Proposal:
    """The best proposal over all instructions, each time for a larger sample of them."""
    case, ask = search.case, search.ask
    lanes = case.certain
    taken = [_some(len(a.element), _SAMPLED // len(lanes.accesses)) for a in lanes.accesses]
    best = so_far
    for _ in range(_ROUNDS):
        proposal = search.of(_only(lanes, taken)).proposal()
        if proposal.layout is None:
            return best or proposal
        excess = _excess(case, lanes, proposal, taken)
        counted, holds = _of_all(case, proposal, excess, taken)
        best = counted if best is None or best.layout is None else min(best, counted, key=_rank(case))
        if ask.conflict_free and best.weighted_excess:
            best = replace(best, layout=None, left=_LEFT)
        joined = [_worst(over, mine) for over, mine in zip(excess, taken, strict=True)]
        if holds or current().spent or not any(rows.any() for rows in joined):
            return best
        taken = [mine | rows for mine, rows in zip(taken, joined, strict=True)]
    assert best is not None
    return best


def _excess(case: Case, lanes: Trace, proposal: Proposal, taken: list[BoolArray]) -> list[IntArray]:
    """Weighted excess of every warp instruction, by access, as the conflict engine counts it."""
    assert proposal.layout is not None
    table = case.table(case.as_elements(proposal.layout))
    excess = []
    for access in lanes.accesses:
        counts = count_wavefronts(table[access.element], access.active, access.operation, access.rule)
        excess.append((counts.wavefronts - counts.ideal) * access.weight)
    counted = sum(int(over[mine].sum()) for over, mine in zip(excess, taken, strict=True))
    if counted != proposal.weighted_excess:
        raise VerificationError(
            f"the model promised a weighted excess of {proposal.weighted_excess} for a sample, "
            f"the engine counts {counted}"
        )
    return excess


def _of_all(
    case: Case, proposal: Proposal, excess: list[IntArray], taken: list[BoolArray]
) -> tuple[Proposal, bool]:
    """A sample's proposal for all instructions, and whether its bounds hold for all.

    The bound is that of the sample and what counting leaves the rest. Where that is met, every layout as good
    leaves the sample at its least excess, so that the sample's bound of the bytes is theirs, too.
    """
    total, more, plain = sum(int(over.sum()) for over in excess), 0, 0
    if total != proposal.weighted_excess:
        more, plain = _counting_excess(case, _only(case.certain, [~rows for rows in taken]))
    bound = proposal.excess_bound.lower_bound + more
    holds = total == proposal.weighted_excess or (proposal.complete and total <= bound)
    counted = replace(
        proposal,
        weighted_excess=total,
        excess_bound=proposal.excess_bound._replace(lower_bound=bound),
        plain_floor=proposal.plain_floor + plain,
    )
    if not holds:
        least = Proved(case.lowered.tile.bytes)
        counted = replace(counted, bytes_bound=least, left_open=True, left=_LEFT)
    return counted, holds


def _counting_excess(case: Case, lanes: Trace) -> tuple[int, int]:
    """Excess that counting leaves in every layout, weighted and not, as far as there is time to count it."""
    whole, found = case.certain, [(0, 0)]
    for access in lanes.accesses:
        for first in current().while_left(range(0, len(access.element), _PIECE)):
            piece = _only(Trace((access,), lanes.weight_unit), [slice(first, first + _PIECE)])
            found.append(counting_excess(phase_sets(piece, case.lowered.tile, whole)))
    return sum(weighted for weighted, _ in found), sum(plain for _, plain in found)


def _rank(case: Case) -> Callable[[Proposal], tuple[float, ...]]:
    objective = case.lowered.layout.objective

    def rank(p: Proposal) -> tuple[float, ...]:
        layout = p.layout if objective.instructions_first else None
        cost = 0 if layout is None else case.index_cost(case.as_elements(layout))
        return objective.key(p.weighted_excess, p.bytes, cost)

    return rank


def _some(total: int, count: int) -> BoolArray:
    """So many of a number of rows, the same each time."""
    rows = np.zeros(total, bool)
    rows[np.random.default_rng(_SEED).permutation(total)[:count]] = True
    return rows


def _worst(excess: IntArray, taken: BoolArray) -> BoolArray:
    open_to = np.where(taken, 0, excess)
    rows = np.zeros(len(excess), bool)
    worst = np.argsort(-open_to, kind="stable")[:_JOINING]
    rows[worst] = open_to[worst] > 0
    return rows


def _only(lanes: Trace, taken: Sequence[BoolArray | slice]) -> Trace:
    accesses = tuple(
        replace(a, element=a.element[rows], active=a.active[rows], weight=a.weight[rows])
        for a, rows in zip(lanes.accesses, taken, strict=True)
    )
    return Trace(accesses, lanes.weight_unit)
