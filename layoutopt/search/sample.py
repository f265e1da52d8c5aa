"""Large problems by a sample of their warp instructions: propose for these, count all, add what was found.

A layout that is best for some instructions, and costs no more when all are counted, is best for all: fewer
instructions leave less excess, so that every bound of the sample holds. Where it costs more, and
more than what counting leaves the others in every layout, the instructions that it serves worst join the
sample. A transpose of two million words is decided by two
thousand of its rows and columns.
"""

from collections.abc import Sequence
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
from layoutopt.search.proposal import Found, Proposal, Proved
from layoutopt.search.search import Search, rank

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


def by_sample(search: Search, best: Proposal | None) -> Proposal | None:
    """The best proposal over all instructions, from searches over ever larger samples of them.

    None where all are searched together: they are few, or a sample already.
    """
    case, ask = search.case, search.ask
    if best is not None or search.counted is not None or not is_large(case):
        return None
    lanes = case.certain
    # Of each access: whether the sample holds each of its warp instructions.
    sampled = [_some(len(a.element), _SAMPLED // len(lanes.accesses)) for a in lanes.accesses]
    for _ in range(_ROUNDS):
        counted_lanes, time = _only(lanes, sampled), search.for_formulas
        of_sample = Search(case, ask, search.proposers, counted=counted_lanes, for_formulas=time)
        proposal = of_sample.proposal()
        if proposal.found is None:  # where it is proved that the sample has none, nothing else has one
            return proposal if best is None or best.found is None else best
        excess = _excess(case, lanes, proposal.found, sampled)
        counted, is_settled = _of_all(case, proposal, proposal.found, excess, sampled)
        best = min(best or counted, counted, key=lambda p: rank(case, p.found))
        if ask.conflict_free and best.found is not None and best.found.weighted_excess:
            best = replace(best, found=None, left_open=True, left=_LEFT)
        joining = [_worst(over, rows) for over, rows in zip(excess, sampled, strict=True)]
        if is_settled or current().spent or not any(rows.any() for rows in joining):
            return best
        sampled = [rows | more for rows, more in zip(sampled, joining, strict=True)]
    return best


def _excess(case: Case, lanes: Trace, found: Found, sampled: list[BoolArray]) -> list[IntArray]:
    """Weighted excess of every warp instruction, an array an access, as the conflict engine counts it.

    Raises:
        VerificationError: that of the sampled ones is not what was promised.
    """
    table = case.table(case.as_elements(found.layout))
    excess = []
    for access in lanes.accesses:
        counts = count_wavefronts(table[access.element], access.active, access.operation, access.rule)
        excess.append(counts.excess * access.weight)
    counted = sum(int(over[rows].sum()) for over, rows in zip(excess, sampled, strict=True))
    if counted != found.weighted_excess:
        raise VerificationError(
            f"the model promised a weighted excess of {found.weighted_excess} for a sample, "
            f"the engine counts {counted}"
        )
    return excess


def _of_all(
    case: Case, proposal: Proposal, found: Found, excess: list[IntArray], sampled: list[BoolArray]
) -> tuple[Proposal, bool]:
    """A sample's proposal for all instructions, and whether its bounds hold for all.

    The bound of the excess is that of the sample plus what counting proves of the rest. Where the layout
    meets it, every layout as good has the sample at its least excess, so that the sample's bound of the bytes
    holds for all, too.

    `excess`: weighted, of every instruction under `found`, an array an access; `sampled`: of the same form.
    """
    total, more, plain = sum(int(over.sum()) for over in excess), 0, 0
    if total != found.weighted_excess:
        more, plain = _counting_excess(case, _only(case.certain, [~rows for rows in sampled]))
    bound, plain_bound = proposal.excess_bound, proposal.plain_bound
    bound = bound._replace(lower_bound=bound.lower_bound + more)
    holds = total == found.weighted_excess or (proposal.complete and total <= bound.lower_bound)
    counted = replace(
        proposal,
        found=replace(found, weighted_excess=total),
        excess_bound=bound,
        plain_bound=plain_bound._replace(lower_bound=plain_bound.lower_bound + plain),
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


def _some(total: int, count: int) -> BoolArray:
    """`count` of `total` rows drawn at random, the same each time."""
    rows = np.zeros(total, bool)
    rows[np.random.default_rng(_SEED).permutation(total)[:count]] = True
    return rows


def _worst(excess: IntArray, sampled: BoolArray) -> BoolArray:
    """Which instructions of an access join the sample: those of most excess that are not in it."""
    outside = np.where(sampled, 0, excess)
    rows = np.zeros(len(excess), bool)
    worst = np.argsort(-outside, kind="stable")[:_JOINING]
    rows[worst] = outside[worst] > 0
    return rows


def _only(lanes: Trace, sampled: Sequence[BoolArray | slice]) -> Trace:
    """The trace of some instructions of each access alone."""
    accesses = tuple(
        replace(a, element=a.element[rows], active=a.active[rows], weight=a.weight[rows])
        for a, rows in zip(lanes.accesses, sampled, strict=True)
    )
    return Trace(accesses, lanes.weight_unit)
