"""`layoutopt.solve`: the search, and what is said beside its answer, in one time limit."""

from typing import Unpack, overload

from layoutopt.ground.budget import DEFAULT_SECONDS, deadline
from layoutopt.ground.interrupt import interruptibly
from layoutopt.ground.log import Progress
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, Method, Result
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Block, Problem
from layoutopt.search import block
from layoutopt.study.hints import with_faster


class Options(block.Options, total=False):
    """How to solve; see `solve`."""

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
        problem: what to solve: one tile, or several of one block, without `layout.max_bytes` within what a
            block of the GPU has.
        time_limit: seconds; None for no limit. The best answer so far is the answer when it ends.
        workers: solver threads. The answer does not depend on it unless the time runs out.
        conflict_free: make any excess infeasible.
        target: the device or its name, where it is not the one the problem names.
        progress: called with a line of text from time to time, from another thread.
        method: "model": one CP-SAT model decides pads, order and XOR masks, and refutes what is smaller;
            "auto": the same answer, by counting and a tree of masks as far as they go.
        known: the answer, where a store has it: only what stands beside it is looked for.

    Raises:
        ProblemFileError: the problem contradicts itself, or an argument is none.
        VerificationError: the conflict engine does not confirm the model; nothing is returned.
    """
    gpu = target_of(problem, target)

    def work() -> Result | Arrangement:
        found = known or block.solve(
            problem, workers=workers, conflict_free=conflict_free, target=gpu, progress=progress,
            method=method, time_limit=None,
        )  # fmt: skip
        return found if budget.stopped else with_faster(problem, found, gpu, budget.seconds)

    with deadline(time_limit) as budget:
        return interruptibly(work, budget)
