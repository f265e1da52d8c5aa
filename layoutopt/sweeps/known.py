"""Answers out of a store, for those who would otherwise solve."""

from __future__ import annotations

from layoutopt.files.result_file import result_from_data
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, Method, Result
from layoutopt.problems.types import Block, Problem
from layoutopt.study.known import check_result
from layoutopt.sweeps.canonical import device_digest, digest, spelling_of
from layoutopt.sweeps.rows import spelled, typed
from layoutopt.sweeps.store import Store


def known_result(
    store: Store,
    problem: Problem,
    gpu: Device,
    *,
    time_limit: float,
    conflict_free: bool = False,
    method: Method = "auto",
) -> Result | None:
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
    result = result_from_data(spelled(data, problem.name, spelling_of(problem)))
    check_result(problem, gpu, result)
    return result


def known_arrangement(
    store: Store, tiles: Block, gpu: Device, *, time_limit: float, conflict_free: bool = False
) -> Arrangement | None:
    """The same for several tiles, whose counts are not confirmed anew."""
    asked = digest(tiles, conflict_free=conflict_free, method="auto")
    data = store.answer(asked, device_digest(gpu), time_limit)
    if data is None:
        return None
    found = typed(spelled(data, tiles.name, spelling_of(tiles)))
    return found if isinstance(found, Arrangement) else None
