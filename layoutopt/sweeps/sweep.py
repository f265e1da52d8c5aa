"""A sweep: read what is asked, solve what is not answered, keep each answer as it comes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from layoutopt.errors import LayoutoptError
from layoutopt.files.inputs import Input
from layoutopt.files.python import Source, checked, items
from layoutopt.files.templates import Value
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.answer import Arrangement, Method, Result
from layoutopt.problems.types import Problem
from layoutopt.search.proposal import check_method, check_workers
from layoutopt.sweeps.store import Answered, Store, Tile, typed
from layoutopt.sweeps.task import LOST, Outcome, Task, device_digest, digest
from layoutopt.sweeps.workers import outcomes

_PIECE: Final = 500
_READ_FIRST: Final = 20  # pieces, so that the time that is left is known


@dataclass
class Sweep:
    """What a sweep did, and its answers; it holds the store open until `close`, or the end of `with`.

    Attributes:
        problems: problems asked, wrong ones included.
        questions: different ones.
        wrong: problems that contradict themselves.
        answered_before: questions whose answers were in the store.
        outcomes: questions by status, and whether conflicts remain.
        solved: by status, of those solved now; `lost` where processes died of a problem.
        seconds: that it took, so far.
        all_read: whether all problems are read, so that no more questions come.
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
    all_read: bool = False

    @property
    def rate(self) -> float:
        """Questions solved in a second."""
        return self.solved.total() / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """At this rate; None while not all problems are read."""
        left = self.questions - self.answered_before - self.solved.total()
        return left / self.rate if self.all_read and self.rate else None

    def answered(self) -> Iterator[Answered]:
        """Every problem in the store with its answer, in the order in which they came."""
        return self.store.answered()

    def results(self) -> Iterator[Result | Arrangement | None]:
        """The answers as typed results, in the same order; None where there is none."""
        for found in self.answered():
            yield None if found.answer is None else typed(found.answer)

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __enter__(self) -> Sweep:
        return self

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
    progress: Callable[[Sweep], None] = lambda _: None,
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
    Budget.of_limit(time_limit)  # refuses what is no time before anything is stored
    check_workers(1 if workers is None else workers)
    check_method(method)
    done = Sweep(Store(Path(store) if store is not None else None, write=True))
    try:
        read = itertools.chain.from_iterable(_items(one, k, over) for k, one in enumerate(sources, 1))
        questions = _Questions(done, read, devices, Task("", b"", time_limit, conflict_free, method))
        for found in outcomes(questions.tasks(), devices, workers=workers, scheduler=scheduler):
            questions.keep(found)
            done.seconds = time.monotonic() - begun
            progress(done)
    except BaseException:
        done.close()
        raise
    done.seconds = time.monotonic() - begun
    return done


class _Questions:
    """What is asked, each question once: read piece by piece while it is solved, the first pieces before.

    Attributes:
        seen: questions so far, by hash and device.
        device: digests of the devices of what is under way, by hash.
    """

    def __init__(self, done: Sweep, read: Iterator[Input], devices: Sequence[Device], how: Task) -> None:
        self.done, self.read, self.devices, self.how = done, read, devices, how
        self.seen: set[tuple[str, str]] = set()
        self.device: dict[str, str] = {}
        self.digests: dict[str, tuple[Device, str]] = {}

    def tasks(self) -> Iterator[Task]:
        """Each that is not answered as a task."""
        waiting: list[Task] = []
        pieces = 0
        while not self.done.all_read:
            piece = list(itertools.islice(self.read, _PIECE))
            self.done.all_read = len(piece) < _PIECE
            waiting += self._left(piece)
            pieces += 1
            if pieces >= _READ_FIRST or self.done.all_read:
                yield from waiting
                waiting = []

    def _left(self, piece: list[Input]) -> list[Task]:
        """Put some problems into the store; of new questions, those that it does not answer."""
        done, left = self.done, []
        tiles = [self._tile(item) for item in piece]
        done.store.add_tiles(tile for tile, _ in tiles)
        done.problems += len(tiles)
        for item, (tile, data) in zip(piece, tiles, strict=True):
            if tile.hash is None or tile.device is None:
                done.wrong.append(f"{item.label}: {tile.error}")
                continue
            if (tile.hash, tile.device) in self.seen:
                continue
            self.seen.add((tile.hash, tile.device))
            kept = done.store.standing(tile.hash, tile.device, self.how.time_limit)
            if kept is None:
                self.device[tile.hash] = tile.device
                left.append(replace(self.how, hash=tile.hash, data=data))
            else:
                done.answered_before += 1
                done.outcomes[kept.status, bool(kept.excess)] += 1
        done.questions = len(self.seen)
        return left

    def _tile(self, item: Input) -> tuple[Tile, bytes]:
        """A problem of the sweep, and its JSON."""
        name = item.data.get("name", "") if isinstance(item.data, dict) else ""
        try:
            problem = checked(item)
            if problem.target not in self.digests:
                gpu = device(problem.target, self.devices)
                self.digests[problem.target] = gpu, device_digest(gpu)
        except LayoutoptError as error:
            return Tile(item.source or item.label, item.values, str(name), error=str(error)), b""
        gpu, data = self.digests[problem.target]
        shape = problem.tile.shape if isinstance(problem, Problem) else ()
        hash_ = digest(problem, conflict_free=self.how.conflict_free, method=self.how.method)
        names = tuple(access.name for access in problem.accesses)
        tile = Tile(item.source, item.values, problem.name, gpu.name, shape, names, hash_, data)
        return tile, msgspec.json.encode(problem)

    def keep(self, found: list[Outcome]) -> None:
        """Keep outcomes. Those that were lost are not kept: another run tries them again."""
        done = self.done
        limit = self.how.time_limit
        done.store.add((o, self.device[o.hash], limit) for o in found if o.status != LOST)
        done.lost += (outcome for outcome in found if outcome.status == LOST)
        for outcome in found:
            del self.device[outcome.hash]
            done.solved[outcome.status] += 1
            status = "missing" if outcome.status == LOST else outcome.status
            done.outcomes[status, bool(outcome.excess)] += 1


def _items(source: Source, number: int, over: Mapping[str, Sequence[Value]] | None) -> Iterator[Input]:
    """The problems of a source; those that come from no file are called by their number, too."""
    for item in items(source, over):
        named = isinstance(source, str | Path)
        yield item if named else replace(item, source=f"{number}: {item.source or item.label}")
