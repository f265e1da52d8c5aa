"""`layoutopt.solve`: the search, and what is said beside its answer, in one time limit.

Beside an answer stand its estimate, what is faster, and what would leave fewer conflicts.

An XOR in no more bytes costs instructions that a pad does not. Where bytes buy nothing, blocks on a
multiprocessor the same, the answer of the search is not what a kernel wants, and it says so.

A file fixes more than a kernel needs: the width of an access, its instruction, which thread moves what. Where
conflicts remain, each is asked about in turn, until one leaves fewer wavefronts; the line says what to write
into the file.
"""

import bisect
import itertools
from collections.abc import Iterator
from typing import Final, Unpack, overload

import numpy as np
from msgspec.structs import replace

from layoutopt.engine.case import Case, case_of, case_of_result
from layoutopt.engine.estimate import block_occupancy, why_no_estimate
from layoutopt.ground.budget import DEFAULT_SECONDS, Budget, OutOfTime, deadline, spending, unhurried
from layoutopt.ground.interrupt import interruptibly
from layoutopt.ground.log import LOG, Progress, told
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.answer import Arrangement, FasterLayout, Method, Result
from layoutopt.problems.same_layout import room_bytes
from layoutopt.problems.target import Question, target_of
from layoutopt.problems.types import FAMILIES, Block, Problem
from layoutopt.search import block
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import estimated, solve_cases
from layoutopt.search.verify import Answer
from layoutopt.study.comparison import difference
from layoutopt.study.relaxations import Relaxations

# For what is faster: the share of the time left after the search, and seconds of a quiet machine at most.
_SHARE, _MOST_EFFORT = 0.2, 0.06
_WIDEST: Final = 16  # bytes of an access
_NO_BLOCK_BYTES: Final = 1 << 30  # of shared memory: more than a block of any GPU has
_PADS: Final = ("none", "order", "pad")  # families without an XOR, whose index is a sum of products
# Estimates of equal wavefronts differ by their instructions alone, so that less tells them apart.
_FASTER: Final = 1.005
# What to type to be rid of a constraint.
_HOW_TO_GIVE_UP: Final = {
    "minimise": "leave out --minimise or layout.minimise; ",
    "families": "leave out --families or layout.families; ",
    "max_bytes": "raise --max-bytes or layout.max_bytes; ",
}


class Options(Question, total=False):
    """How to solve; see `solve`."""

    workers: int
    conflict_free: bool
    method: Method
    known: Result | Arrangement | None


@overload
def solve(problem: Problem, **how: Unpack[Options]) -> Result: ...
@overload
def solve(problem: Block, **how: Unpack[Options]) -> Arrangement: ...
def solve(
    problem: Problem | Block,
    *,
    time_limit: float | None = DEFAULT_SECONDS,
    workers: int = 1,
    conflict_free: bool = False,
    target: Device | str | None = None,
    progress: Progress | None = None,
    method: Method = "auto",
    known: Result | Arrangement | None = None,
) -> Result | Arrangement:
    """The layout with the fewest wavefronts, then the fewest bytes, then the cheapest index, verified.

    Of several tiles, it is a layout of each, and where each lies. Beside the layout of one tile stand its
    estimated time, and a padded layout where that is faster.

    Ctrl-C ends the search with the best layout so far; for the second time it raises KeyboardInterrupt.

    Args:
        problem: what to solve: one tile, or several of one block. Several take no more bytes than
            `layout.max_bytes`, or where the file has none than a block of the GPU has.
        time_limit: seconds; None for no limit. The best answer so far is the answer when it ends.
        workers: solver threads. The answer does not depend on it unless the time runs out.
        conflict_free: make any excess infeasible.
        target: the device or its name, where it is not the one the problem names.
        progress: called with a line of text from time to time, from another thread.
        method: "model": one CP-SAT model decides pads, order and XOR masks, and refutes what is smaller;
            "auto": the same answer, by counting and a tree of masks as far as they go.
        known: the answer to the problem, where there is one: only what stands beside it is looked for.

    Raises:
        ProblemFileError: the problem contradicts itself, or an argument is none.
        VerificationError: the conflict engine does not confirm the model; nothing is returned.
    """
    gpu = target_of(problem, target)
    ask = Ask(conflict_free, workers, told(progress), method)

    def work() -> Result | Arrangement:
        found = known or block.solve(problem, gpu, ask)  # takes of the budget, whose `seconds` are those left
        return found if budget.stopped else with_faster(problem, found, gpu, left=budget.seconds)

    with deadline(time_limit) as budget:
        return interruptibly(work, budget)


# What is estimated, and faster ----------------------------------------------------------------------


def with_faster(
    problem: Problem | Block, answer: Result | Arrangement, gpu: Device, left: float | None
) -> Result | Arrangement:
    """The answer with its estimate, hints, and a padded layout if one is estimated faster.

    An answer of several tiles or with an estimate stays as it is, as does any where no time is left. Of the
    seconds that the search `left` (None for no limit), a share is used.
    """
    if isinstance(problem, Block) or isinstance(answer, Arrangement):
        return answer
    # Work ends it long before the time where there is much, so that the answer is the same on any machine.
    budget = Budget(_SHARE * (DEFAULT_SECONDS if left is None else left)).portion(1, most=_MOST_EFFORT)
    if answer.layout is None or answer.estimate is not None or budget.spent:
        return answer
    with unhurried():
        case = case_of_result(problem, gpu, answer)
    hints = [*answer.hints, *_beyond_room(problem, gpu, answer), *_unwritten_reads(case)]
    why = why_no_estimate(case)
    if why is not None and not case.chooses:
        hints.append(f"no time is estimated, as {why}")
    answer = replace(answer, hints=tuple(hints))
    if why is not None or problem.layout.objective.time_first:
        return answer
    answer = estimated(Answer(case, answer)).result
    return replace(answer, faster=_faster_pad(case, answer, budget))


def _faster_pad(case: Case, answer: Result, budget: Budget) -> FasterLayout | None:
    """The best layout with pads and no XOR in bytes of which as many blocks fit, if estimated faster."""
    limits = case.asked.layout
    allowed = tuple(f for f in _PADS if f in (limits.families or FAMILIES))
    # Of a layout with pads, the search among pads would find the same again.
    if case.asked.is_dictated or "pad" not in allowed or answer.family in _PADS or budget.spent:
        return None
    limits = replace(limits, families=allowed, minimise="excess", max_bytes=_most_bytes(case, answer))
    try:
        with spending(budget):
            padded = solve_cases([case.constrained(limits)], Ask(every_layout=False))
    except OutOfTime:
        return None
    if padded.result.layout is None or padded.result.offset == answer.offset:
        return None
    return _faster_hint(answer, estimated(padded).result)


def _most_bytes(case: Case, answer: Result) -> int | None:
    """The largest layout with which as many blocks fit a multiprocessor as with the answer, in bytes.

    The file's limit, or None for none, where the number of blocks is not known.
    """
    limit, blocks = case.asked.layout.max_bytes, answer.estimate and answer.estimate.blocks_per_sm
    if not blocks:
        return limit

    def fewer_fit(size: int) -> bool:
        fits = block_occupancy(case, size, 1)
        return fits is None or fits.blocks < blocks

    most = bisect.bisect_left(range(_NO_BLOCK_BYTES), True, key=fewer_fit) - 1
    return most if limit is None else min(limit, most)


def _beyond_room(problem: Problem, gpu: Device, answer: Result) -> Iterator[str]:
    """A hint where no block of the GPU can have the layout, or any."""
    room, size, least = room_bytes(problem, gpu), answer.bytes or 0, problem.tile.bytes
    if room is not None and size > room:
        fits = (
            f"--max-bytes {room} asks for one that fits" if least <= room else "the elements alone need more"
        )
        yield f"{size:,} bytes are more than the {room:,} that a block of {problem.target} has: {fits}"


def _unwritten_reads(case: Case) -> Iterator[str]:
    """A hint for each access that reads elements which none writes, where some write: a loop may be short."""
    accesses, shape = case.lanes.accesses, case.lowered.tile.shape
    if case.chooses or any(access.operation.does.by_itself for access in accesses):
        return
    written = np.zeros(shape, bool).ravel()
    for access in accesses:
        if not access.operation.is_read:
            written[access.vectors] = True
    for access in accesses if written.any() else ():
        elements = access.vectors.ravel()
        unwritten = elements[~written[elements]]
        if access.operation.is_read and unwritten.size:
            coordinates = [int(x) for x in np.unravel_index(unwritten[0], shape)]
            are_the_files = case.view is None and shape == case.problem.tile.shape
            example = f", such as {coordinates}" if are_the_files else ""
            yield f"`{access.name}` reads elements that no access writes{example}: is a loop too short?"


def _faster_hint(result: Result, other: Result) -> FasterLayout | None:
    """The other layout as a hint; None unless it is clearly faster and as many blocks fit."""
    old, new = result.estimate, other.estimate
    if old is None or new is None or (new.blocks_per_sm or 0) < (old.blocks_per_sm or 0):
        return None
    if new.cycles * _FASTER > old.cycles or new.time * _FASTER > old.time:
        return None
    differences = (
        f"{1 - new.cycles / old.cycles:.1%} faster",
        difference((other.bytes or 0) - (result.bytes or 0), "byte"),
        difference(new.instructions - old.instructions, "index instruction"),
        difference((other.excess or 0) - (result.excess or 0), "wavefront"),
    )
    text = f"{other.offset}: {', '.join(filter(None, differences))}; --minimise time is as fast"
    return FasterLayout(other.offset or "", other.bytes or 0, new.cycles, text)


# What would leave fewer conflicts --------------------------------------------------------------


def with_hints(
    problem: Problem | Block, answer: Result | Arrangement, gpu: Device, *, progress: Progress = LOG.debug
) -> Result | Arrangement:
    """The answer; where its layout has conflicts, with hints on what to change in the file to have fewer.

    They name the constraints in the way, and the first thing that the file fixes and that helps if left to
    the solver. There are none where the solver chose widths or lanes already, values are known only at run
    time, or the hardware dictates the layout, and none for several tiles. `progress` hears of the search.
    """
    if isinstance(problem, Block) or isinstance(answer, Arrangement):
        return answer
    is_open = problem.is_free or any(a.any or isinstance(a.bytes, tuple) for a in problem.accesses)
    if answer.layout is None or not answer.excess or problem.is_dictated or is_open:
        return answer
    progress("conflicts remain; what would leave fewer")
    try:
        relaxations = Relaxations(case_of(problem, gpu))
        first_choice = itertools.islice(relaxations.choices(answer), 1)  # each is a search
        helpful = [*relaxations.looser_constraints(), *first_choice]
    except OutOfTime:
        return answer
    hints = (f"{_HOW_TO_GIVE_UP.get(relaxation.kind, '')}{relaxation.message}" for relaxation in helpful)
    return replace(answer, hints=(*answer.hints, *hints))


def other_instructions(problem: Problem) -> str | None:
    """A hint to move the elements of a loop of narrow accesses by other instructions; None where none helps.

    It gives wavefronts and a thread's instructions before and after, each under its own best layout.
    """
    narrow = [a for a in problem.accesses if a.loops and isinstance(a.bytes, int) and a.bytes < _WIDEST]
    if not narrow:
        return None
    try:
        gpu = device(problem.target)
        best = block.solve(problem, gpu)
        if best.layout is None:
            return None
        found = Relaxations(case_of(problem, gpu)).instructions(best.layout)
        return next((relaxation.message for relaxation in found), None)
    except OutOfTime:
        return None
