"""What holds for every layout of any kind, and on what that rests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from layoutopt.accesses.trace import Trace
from layoutopt.errors import VerificationError
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.model.placement import FreeAssignment
from layoutopt.problems.types import Tile
from layoutopt.proof.reasons import REASONS, Search, subject_of

_QUICK: Final = 1 << 13  # lane accesses of which everything is asked in no time


@dataclass(frozen=True, slots=True)
class EveryLayout:
    """Lower bounds of the weighted excess, in units of `Trace.weight_unit`.

    Attributes:
        bound: the best of them.
        evidence: what it rests on, the text of a reason (`layoutopt.proof.reasons`); empty for a bound of 0.
        free: what the solver found of free assignments; None where it was not needed or not possible.
    """

    bound: int
    evidence: str
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
    progress: Callable[[int, str], None] = lambda bound, doing: None,
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
        progress: told the bound so far and what is asked next.

    Raises:
        VerificationError: a reason was found that does not hold; nothing is returned.
    """
    large = sum(access.element.size for access in trace.accesses) > _QUICK
    if large and budget.spent:
        return EveryLayout(0, "", None)
    subject = subject_of(tile, device, trace)
    search = Search(budget, workers, briefly, max_bytes, hint)
    bound, evidence, free = 0, "", None
    for reason in budget.while_left(REASONS) if large else REASONS:
        if enough is not None and bound >= enough:
            break
        progress(bound, f"what every layout has: {reason.evidence.partition(':')[0]}")
        found = reason.find(subject, replace(search, bound=bound))
        if found is None:
            continue
        if reason.check is not None and not reason.check(subject, found):
            raise VerificationError(f"this reason does not hold: {reason.evidence}")
        if isinstance(found, FreeAssignment):
            free = found
        if reason.bound(subject, found) > bound:
            bound, evidence = reason.bound(subject, found), reason.evidence
    return EveryLayout(bound, evidence, free)
