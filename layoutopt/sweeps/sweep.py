"""A sweep: read what is asked, solve what is not answered, keep each answer as it comes."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from layoutopt.errors import LayoutoptError
from layoutopt.files.inputs import Input, Source, checked, inputs
from layoutopt.files.templates import Value
from layoutopt.ground.budget import deadline
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.answer import Arrangement, Method, Result
from layoutopt.problems.types import Problem
from layoutopt.search.proposal import check_method, check_workers
from layoutopt.sweeps.store import Answered, Store, Tile
from layoutopt.sweeps.task import LOST, Outcome, Task, digest
from layoutopt.sweeps.workers import outcomes

_PIECE: Final = 500
_READ_FIRST: Final = 20  # pieces


@dataclass
class Sweep(AbstractContextManager["Sweep"]):
    """What a sweep did, and its answers; it holds the store open until `close`, or the end of `with`.

    Attributes:
        problems: problems asked, wrong ones included.
        questions: different ones.
        wrong: problems that contradict themselves.
        answered_before: questions whose answers were in the store.
        outcomes: questions by status, and whether conflicts remain.
        solved: by status, of those solved now; `lost` where processes died of a problem.
        seconds: that it took, so far.
    """

    store: Store
    problems: int = 0
    questions: int = 0
    answered_before: int = 0
    wrong: list[str] = field(default_factory=list)
    outcomes: Counter[tuple[str, bool]] = field(default_factory=Counter)
    solved: Counter[str] = field(default_factory=Counter)
    lost: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Questions solved in a second."""
        return self.solved.total() / max(self.seconds, 1e-9)

    def answered(self) -> Iterator[Answered]:
        """Every problem in the store with its answer, in the order in which they came."""
        return self.store.answered()

    def results(self) -> Iterator[Result | Arrangement | None]:
        """The answers as typed results, in the same order; None where there is none."""
        return (found.result for found in self.answered())

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def sweep(
    *sources: Source,
    store: str | Path | None = None,
    over: Mapping[str, Sequence[Value]] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    time_limit: float = 10.0,
    conflict_free: bool = False,
    method: Method = "auto",
    devices: Sequence[Device] = (),
    progress: Callable[[Sweep], None] | None = None,
) -> Sweep:
    """Solve many problems: each question once, on all cores or a cluster, every answer kept as it comes.

    Args:
        sources: as for `load_all`: files, folders, names of the catalogue, streams, dicts, problems.
        store: a file that keeps the answers; what it has already is not solved again. None: memory.
        over: values of parameters, in the place of those of the templates.
        workers: processes on this machine; None for one a core.
        scheduler: address of a Dask scheduler, or its file; replaces `workers`.
        time_limit: seconds for each problem.
        conflict_free: make any excess infeasible.
        method: as for `solve`.
        devices: those beside the package's.
        progress: called after each answer with what is done.

    Raises:
        MachineError: the cluster is gone, or has another version of layoutopt.
        ProblemFileError: the store cannot be written, or the time limit, `workers` or `method` is none. A
            problem that is wrong is an answer.
    """
    begun = time.monotonic()
    deadline(time_limit)  # refuses what is no time before anything is stored
    check_workers(1 if workers is None else workers)
    check_method(method)
    done = Sweep(Store(Path(store) if store is not None else None, write=True))
    try:
        read = itertools.chain.from_iterable(_items(one, k, over) for k, one in enumerate(sources, 1))
        tasks = _tasks(done, read, devices, Task("", b"", time_limit, conflict_free, method))
        for found in outcomes(tasks, devices, workers=workers, scheduler=scheduler):
            _keep(done, found, time_limit)
            done.seconds = time.monotonic() - begun
            if progress is not None:
                progress(done)
    except BaseException:
        done.close()
        raise
    done.seconds = time.monotonic() - begun
    return done


def _items(source: Source, number: int, over: Mapping[str, Sequence[Value]] | None) -> Iterator[Input]:
    """The problems of a source; those that come from no file are called by their number, too."""
    for item in inputs([source], over):
        named = isinstance(source, str | Path)
        yield item if named else replace(item, source=f"{number}: {item.source or item.label}")


def _tasks(done: Sweep, read: Iterator[Input], devices: Sequence[Device], how: Task) -> Iterator[Task]:
    """Each question that the store does not answer: read piece by piece while it is solved.

    The first pieces are read before, so that progress says how many there are.
    """
    seen: set[str] = set()
    waiting: list[Task] = []
    for number in itertools.count(1):
        piece = list(itertools.islice(read, _PIECE))
        asked = [_asked(item, devices, how) for item in piece]
        done.store.add_tiles(tile for tile, _ in asked)
        done.problems += len(piece)
        for item, (tile, data) in zip(piece, asked, strict=True):
            if tile.hash is None:
                done.wrong.append(f"{item.label}: {tile.error}")
            elif tile.hash not in seen:
                seen.add(tile.hash)
                kept = done.store.standing(tile.hash, how.time_limit)
                if kept is None:
                    waiting.append(replace(how, hash=tile.hash, data=data))
                else:
                    done.answered_before += 1
                    done.outcomes[kept.status, bool(kept.excess)] += 1
        done.questions = len(seen)
        all_read = len(piece) < _PIECE
        if number >= _READ_FIRST or all_read:
            yield from waiting
            waiting = []
        if all_read:
            return


def _asked(item: Input, devices: Sequence[Device], how: Task) -> tuple[Tile, bytes]:
    """A problem of the sweep, and its JSON."""
    try:
        problem = checked(item)
        gpu = device(problem.target, devices)
    except LayoutoptError as error:
        name = item.data.get("name", "") if isinstance(item.data, dict) else ""
        return Tile(item.source or item.label, item.values, str(name), error=str(error)), b""
    shape = problem.tile.shape if isinstance(problem, Problem) else ()
    names = tuple(access.name for access in problem.accesses)
    hash_ = digest(problem, gpu, conflict_free=how.conflict_free, method=how.method)
    tile = Tile(item.source, item.values, problem.name, gpu.name, shape, names, hash_)
    return tile, msgspec.json.encode(problem)


def _keep(done: Sweep, found: list[Outcome], time_limit: float) -> None:
    """Keep outcomes. Those that were lost are not kept: another run tries them again."""
    lost = [outcome for outcome in found if outcome.status == LOST]
    done.store.add((outcome for outcome in found if outcome.status != LOST), time_limit)
    done.lost += lost
    for outcome in found:
        done.solved[outcome.status] += 1
        done.outcomes["missing" if outcome in lost else outcome.status, bool(outcome.excess)] += 1
