"""A sweep: read what is asked, solve what is not answered, keep each answer as it comes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
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
from layoutopt.sweeps import cluster, local
from layoutopt.sweeps.canonical import device_digest, digest, spelling_of
from layoutopt.sweeps.rows import Answered, Tile, typed
from layoutopt.sweeps.store import Asked, Store
from layoutopt.sweeps.task import LOST, Outcome, Task

_PIECE: Final = 500
_READ_FIRST: Final = 40  # pieces


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is.

    Attributes:
        total: different questions, as far as they are read.
        before: of them, answered before the sweep began.
        done: answered now.
        rate: answers a second.
        seconds_left: at this rate; None while not all of them are read.
    """

    total: int
    before: int
    done: int
    rate: float
    seconds_left: float | None


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
        seconds: that it took.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    progress: Callable[[Progress], None] = lambda _: None,
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
        progress: called after each answer.

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
        with done.store.asked() as asked:
            read = itertools.chain.from_iterable(
                _items(source, number, over) for number, source in enumerate(sources, 1)
            )
            how = _How(time_limit, conflict_free, method, tuple(devices))
            questions = _Questions(read, done, asked, how)
            found = (
                cluster.outcomes(questions.tasks(), scheduler, devices)
                if scheduler is not None
                else local.outcomes(questions.tasks(), workers, devices)
            )
            _keep(found, done, questions, progress)
            done.questions = asked.total()
            done.answered_before = done.questions - done.solved.total()
            done.outcomes = asked.outcomes()
    except BaseException:
        done.close()
        raise
    done.seconds = time.monotonic() - begun
    return done


@dataclass(frozen=True, slots=True)
class _How:
    """What is asked of every problem."""

    time_limit: float
    conflict_free: bool
    method: Method
    devices: tuple[Device, ...]


class _Questions:
    """What is asked, read while it is solved, but for the first, whose number is then known.

    Attributes:
        device: digests of the devices of what is under way, by hash.
        given: tasks so far.
        place: of the last one among the questions.
        all_read: whether nothing is left to read.
    """

    def __init__(self, read: Iterable[Input], done: Sweep, asked: Asked, how: _How) -> None:
        self.read, self.done, self.asked, self.how = iter(read), done, asked, how
        self.digests = _Digests(how.devices)
        self.device: dict[str, str] = {}
        self.given = self.place = 0
        self.all_read = False

    def tasks(self) -> Iterator[Task]:
        """Each that is not answered as a task."""
        how = self.how
        for _ in range(_READ_FIRST):
            if not self.all_read:
                self._read_more()
        while True:
            for place, hash_, gpu, data in self.asked.left(how.time_limit, self.place):
                self.place = place
                self.given += 1
                self.device[hash_] = gpu
                yield Task(hash_, data, how.time_limit, how.conflict_free, how.method)
            if self.all_read:
                return
            self._read_more()

    def _read_more(self) -> None:
        """Put some more into the store."""
        piece = list(itertools.islice(self.read, _PIECE))
        self.all_read = self.all_read or len(piece) < _PIECE
        tiles = [_tile(item, self.how, self.digests) for item in piece]
        self.done.store.add_tiles(tiles)
        self.done.wrong += [
            f"{item.label}: {tile.error}" for item, (tile, _) in zip(piece, tiles, strict=True) if tile.error
        ]
        self.asked.add((tile.hash, tile.device) for tile, _ in tiles if tile.hash and tile.device)
        self.done.problems += len(tiles)


def _keep(
    found: Iterable[list[Outcome]], done: Sweep, questions: _Questions, progress: Callable[[Progress], None]
) -> None:
    """Keep outcomes as they come. Those that were lost are not kept: another run tries them again."""
    begun = time.monotonic()
    for outcomes in found:
        done.store.add(
            (outcome, questions.device.pop(outcome.hash), questions.how.time_limit)
            for outcome in outcomes
            if outcome.status != LOST
        )
        done.lost += [outcome for outcome in outcomes if outcome.status == LOST]
        done.solved.update(str(outcome.status) for outcome in outcomes)
        count, seconds = done.solved.total(), max(time.monotonic() - begun, 1e-9)
        total, before = questions.asked.total(), questions.place - questions.given
        left = (total - before - count) * seconds / count if questions.all_read else None
        progress(Progress(total, before, count, count / seconds, left))


def _items(source: Source, number: int, over: Mapping[str, Sequence[Value]] | None) -> Iterator[Input]:
    """The problems of a source; those that come from no file are called by their number, too."""
    for item in items(source, over):
        named = isinstance(source, str | Path)
        yield item if named else replace(item, source=f"{number}: {item.source or item.label}")


class _Digests:
    """Devices by name, with the digests of their data."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = devices
        self.known: dict[str, tuple[Device, str]] = {}

    def of(self, target: str) -> tuple[Device, str]:
        """The device of that name."""
        if target not in self.known:
            gpu = device(target, self.devices)
            self.known[target] = gpu, device_digest(gpu)
        return self.known[target]


def _tile(item: Input, how: _How, digests: _Digests) -> tuple[Tile, bytes]:
    """A problem of the sweep, and its JSON."""
    name = item.data.get("name", "") if isinstance(item.data, dict) else ""
    try:
        problem = checked(item)
        gpu, data = digests.of(problem.target)
    except LayoutoptError as error:
        return Tile(item.source or item.label, item.values, str(name), error=str(error)), b""
    tile = Tile(
        item.source,
        item.values,
        problem.name,
        gpu.name,
        problem.tile.shape if isinstance(problem, Problem) else (),
        digest(problem, conflict_free=how.conflict_free, method=how.method),
        data,
        spelling_of(problem),
    )
    return tile, msgspec.json.encode(problem)
