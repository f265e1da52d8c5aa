"""Answers out of a store, for those who would otherwise solve."""

from __future__ import annotations

from layoutopt.files.result_file import answer_from_data
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, Method, Result
from layoutopt.problems.types import Block, Problem
from layoutopt.study.known import check_answer
from layoutopt.sweeps.canonical import device_digest, digest, spelling_of
from layoutopt.sweeps.rows import spelled
from layoutopt.sweeps.store import Store


def known_answer(
    store: Store,
    problem: Problem | Block,
    gpu: Device,
    *,
    time_limit: float,
    conflict_free: bool = False,
    method: Method = "auto",
) -> Result | Arrangement | None:
    """The answer to a problem that a store holds, its counts confirmed by the conflict engine.

    Args:
        store: where to look.
        problem: the question.
        gpu: its device.
        time_limit: seconds; an answer that was not decided in so many is none.
        conflict_free: as for `solve`.
        method: as for `solve`.

    Raises:
        ProblemFileError: the store cannot be read, or what it holds is not true.
    """
    asked = digest(problem, conflict_free=conflict_free, method=method)
    data = store.answer(asked, device_digest(gpu), time_limit)
    if data is None:
        return None
    found = answer_from_data(spelled(data, problem.name, spelling_of(problem)))
    check_answer(problem, gpu, found)
    return found
