"""What `solve` prints beside its answer: its estimate, what is faster, and what would leave fewer conflicts.

An XOR in no more bytes costs instructions that a pad does not. Where bytes buy nothing, blocks on a
multiprocessor the same, the answer of `solve` is not what a kernel wants, and it says so.

A file fixes more than a kernel needs: the width of an access, its instruction, which thread moves what. Where
conflicts remain, each is asked about in turn, until one leaves fewer wavefronts; the line says what to write
into the file.
"""

import bisect
import itertools
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from layoutopt.accesses.trace import LaneTrace
from layoutopt.engine.case import Case, case_of, case_of_result
from layoutopt.engine.estimate import block_occupancy, why_no_estimate
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget, OutOfTime, spending, unhurried
from layoutopt.ground.log import LOG, Progress
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.answer import Arrangement, FasterLayout, Result
from layoutopt.problems.types import FAMILIES, Block, Problem
from layoutopt.search.block import solve
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import estimated, solve_cases
from layoutopt.search.verify import Answer
from layoutopt.study.advice import difference
from layoutopt.study.relaxations import Relaxations

_SHARE: Final = 0.2  # of the time left after the search, for estimates and what is faster
_WIDEST: Final = 16  # bytes of an access
_NO_BLOCK_BYTES: Final = 1 << 30  # of shared memory has no block
_PADS: Final = ("none", "order", "pad")
# Estimates of equal wavefronts differ by their instructions alone, so that less tells them apart.
_FASTER: Final = 1.005
# What to type to be rid of a constraint.
_CONSTRAINTS: Final = {
    "families": "leave out --families or layout.families; ",
    "max_bytes": "raise --max-bytes or layout.max_bytes; ",
}


def with_faster(
    problem: Problem | Block, answer: Result | Arrangement, gpu: Device, left: float | None
) -> Result | Arrangement:
    """The answer with its estimate, and with a padded layout where that is estimated faster.

    Of several tiles, or with an estimate, the answer stays as it is, as it does where no time is left; where
    nothing is estimated, it says so.

    Args:
        problem: what was solved.
        found: its answer.
        gpu: the device.
        left: seconds that the search left, of which a share is used; None for no limit.
    """
    budget = Budget(None if left is None else _SHARE * left)
    if isinstance(problem, Block) or isinstance(answer, Arrangement) or answer.estimate is not None:
        return answer
    if answer.layout is None or budget.spent:
        return answer
    with unhurried():
        case = case_of_result(problem, gpu, answer)
    answer = msgspec.structs.replace(answer, hints=(*answer.hints, *_unwritten(case)))
    if (why := why_no_estimate(case)) is not None:
        said = () if case.chooses else (f"no time is estimated, as {why}",)
        return msgspec.structs.replace(answer, hints=(*answer.hints, *said))
    if problem.layout.objective.time_first:
        return answer
    answer = estimated(Answer(case, answer)).result
    allowed = tuple(f for f in _PADS if f in (problem.layout.families or FAMILIES))
    # Of a layout with pads, the search among pads would find the same again.
    if problem.is_dictated or "pad" not in allowed or answer.family in _PADS or budget.spent:
        return answer
    try:
        with spending(budget):
            constraints = msgspec.structs.replace(
                problem.layout, families=allowed, minimise="excess", max_bytes=_most_bytes(case, answer)
            )
            padded = solve_cases([case.constrained(constraints)], Ask(every_layout=False))
    except OutOfTime:
        return answer
    if padded.layout is None or padded.offset == answer.offset or budget.spent:
        return answer
    return msgspec.structs.replace(answer, faster=_faster(answer, estimated(Answer(case, padded)).result))


def _most_bytes(case: Case, answer: Result) -> int | None:
    """The most bytes of which as many blocks fit a multiprocessor: in more, no layout counts as faster."""
    limit, blocks = case.asked.layout.max_bytes, answer.estimate and answer.estimate.blocks_per_sm
    if not blocks:
        return limit

    def fewer(size: int) -> bool:
        fits = block_occupancy(case, size, 1)
        return fits is None or fits.blocks < blocks

    most = bisect.bisect_left(range(_NO_BLOCK_BYTES), True, key=fewer) - 1
    return most if limit is None else min(limit, most)


def _unwritten(case: Case) -> Iterator[str]:
    """Which accesses read what none writes, where some write: a loop or a thread may be missing."""
    accesses, shape = case.lanes.accesses, case.lowered.tile.shape
    if case.chooses or any(access.operation.does.by_itself for access in accesses):
        return
    reads, written = (
        [access for access in accesses if access.operation.is_read],
        np.zeros(shape, bool).ravel(),
    )
    for access in accesses:
        if not access.operation.is_read:
            written[_covered(access)] = True
    for access in reads if written.any() else ():
        covered = _covered(access)
        left = covered[~written[covered]]
        if left.size:
            place = [int(x) for x in np.unravel_index(left[0], shape)]
            plain = case.view is None and shape == case.problem.tile.shape
            such = f", such as {place}" if plain else ""
            yield f"`{access.name}` reads elements that no access writes{such}: is a loop too short?"


def _covered(access: LaneTrace) -> IntArray:
    return (access.starts[:, None] + np.arange(access.width_elements)).ravel()


def _faster(result: Result, other: Result) -> FasterLayout | None:
    """The other layout as a hint, where it is clearly faster and as many blocks fit."""
    now, then = result.estimate, other.estimate
    if now is None or then is None or (then.blocks_per_sm or 0) < (now.blocks_per_sm or 0):
        return None
    if then.cycles * _FASTER > now.cycles or then.time * _FASTER > now.time:
        return None
    differences = (
        f"{1 - then.cycles / now.cycles:.1%} faster",
        difference((other.bytes or 0) - (result.bytes or 0), "byte"),
        difference(then.instructions - now.instructions, "index instruction"),
        difference((other.excess or 0) - (result.excess or 0), "wavefront"),
    )
    text = f"{other.offset}: {', '.join(filter(None, differences))}; --minimise time is as fast"
    return FasterLayout(other.offset or "", other.bytes or 0, then.cycles, text)


# What would leave fewer conflicts --------------------------------------------------------------


def with_hints(
    problem: Problem | Block,
    answer: Result | Arrangement,
    gpu: Device,
    *,
    progress: Progress = LOG.debug,
) -> Result | Arrangement:
    """The answer; where its layout has conflicts, with lines on what to change in the file to have fewer.

    That are the constraints in the way, and what the file may leave to the solver, the first that helps.
    Unchanged where the solver has chosen widths or lanes already, where values are known only at run time,
    where the hardware dictates the layout, and for several tiles.

    Args:
        problem: what was solved.
        found: its answer.
        gpu: the device.
        progress: called with a line of text before that starts.
    """
    if isinstance(problem, Block) or isinstance(answer, Arrangement):
        return answer
    chosen = problem.is_free or any(a.any or isinstance(a.bytes, tuple) for a in problem.accesses)
    if answer.layout is None or not answer.excess or problem.is_dictated or chosen:
        return answer
    progress("conflicts remain; what would leave fewer")
    try:
        ask = Relaxations(case_of(problem, gpu))
        found = [*ask.of_constraints(), *itertools.islice(ask.choices(answer), 1)]
    except OutOfTime:
        return answer
    lines = (f"{_CONSTRAINTS.get(one.kind, '')}{one.message}" for one in found)
    return msgspec.structs.replace(answer, hints=(*answer.hints, *lines))


def other_instructions(problem: Problem) -> str | None:
    """A hint to move the elements of a loop of narrow accesses by other instructions; None where none helps.

    It gives wavefronts and a thread's instructions before and after, each under its own best layout.
    """
    narrow = [a for a in problem.accesses if a.loops and isinstance(a.bytes, int) and a.bytes < _WIDEST]
    if not narrow:
        return None
    try:
        gpu = device(problem.target)
        best = solve(problem, target=gpu, time_limit=None)
        found = () if best.layout is None else Relaxations(case_of(problem, gpu)).instructions(best.layout)
        return next((one.message for one in found), None)
    except OutOfTime:
        return None
