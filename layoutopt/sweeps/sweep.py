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

from layoutopt.errors import LayoutoptError, ProblemFileError
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.answer import Method, Result
from layoutopt.problems.inputs import Input
from layoutopt.problems.python import Source, checked, items
from layoutopt.problems.templates import Value
from layoutopt.problems.types import Problem
from layoutopt.sweeps import cluster, local
from layoutopt.sweeps.canonical import device_digest, digest, spelling_of
from layoutopt.sweeps.store import Answered, Asked, Store, Tile
from layoutopt.sweeps.task import LOST, Outcome, Task
from layoutopt.synthesis.arrange import Arrangement

_PIECE: Final = 500


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is.

    Attributes:
        total: different questions.
        before: of them, answered before the sweep began.
        done: answered now.
        rate: answers a second.
        seconds_left: at this rate; None before the first.
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
            if found.answer is None:
                yield None
            elif "tiles" in found.answer:
                yield msgspec.convert(found.answer, Arrangement)
            else:
                yield msgspec.convert(found.answer, Result)

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
    time_limit: float = 60.0,
    conflict_free: bool = False,
    method: Method = "auto",
    devices: Sequence[Device] = (),
    progress: Callable[[Progress], None] = lambda _: None,
) -> Sweep:
    """Solve many problems: each question once, on all cores or a cluster, every answer kept as it comes.

    Args:
        sources: as for `load_all`: files, folders, names of the catalogue, dicts, templates, problems.
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
        ProblemFileError: the store cannot be written. A problem that is wrong is an answer.
    """
    begun = time.monotonic()
    done = Sweep(Store(Path(store) if store is not None else None, write=True))
    try:
        with done.store.asked() as asked:
            read = itertools.chain.from_iterable(
                _items(source, number, over) for number, source in enumerate(sources, 1)
            )
            done.problems = _asked(read, done, asked, conflict_free, method, devices)
            done.questions = asked.total()
            limits = _Limits(time_limit, conflict_free, method)
            questions = _Questions(asked, limits)
            done.answered_before = done.questions - questions.total()
            found = (
                cluster.outcomes(questions.tasks(), scheduler, devices)
                if scheduler is not None
                else local.outcomes(questions.tasks(), workers, devices)
            )
            _keep(found, done, questions, progress)
            done.outcomes = asked.outcomes()
    except BaseException:
        done.close()
        raise
    done.seconds = time.monotonic() - begun
    return done


@dataclass(frozen=True, slots=True)
class _Limits:
    time_limit: float
    conflict_free: bool
    method: Method


class _Questions:
    """What is to be solved; remembers the device of what is under way."""

    def __init__(self, asked: Asked, limits: _Limits) -> None:
        self.asked, self.limits = asked, limits
        self.device: dict[str, str] = {}

    def total(self) -> int:
        """How many there are."""
        return self.asked.open(self.limits.time_limit)

    def tasks(self) -> Iterator[Task]:
        """Each as a task."""
        limits = self.limits
        for hash_, gpu, data in self.asked.left(limits.time_limit):
            self.device[hash_] = gpu
            yield Task(hash_, data, limits.time_limit, limits.conflict_free, limits.method)


def _keep(
    found: Iterable[list[Outcome]], done: Sweep, questions: _Questions, progress: Callable[[Progress], None]
) -> None:
    """Keep outcomes as they come. Those that were lost are not kept: another run tries them again."""
    begun = time.monotonic()
    for outcomes in found:
        done.store.add(
            (outcome, questions.device.pop(outcome.hash), questions.limits.time_limit)
            for outcome in outcomes
            if outcome.status != LOST
        )
        done.lost += [outcome for outcome in outcomes if outcome.status == LOST]
        done.solved.update(str(outcome.status) for outcome in outcomes)
        count, seconds = done.solved.total(), max(time.monotonic() - begun, 1e-9)
        left = done.questions - done.answered_before - count
        progress(
            Progress(done.questions, done.answered_before, count, count / seconds, left * seconds / count)
        )


def _asked(
    read: Iterable[Input],
    done: Sweep,
    asked: Asked,
    conflict_free: bool,
    method: Method,
    devices: Sequence[Device],
) -> int:
    """Put what is asked into the store; how many problems."""
    count, digests = 0, _Digests(devices)
    rest = iter(read)
    while piece := list(itertools.islice(rest, _PIECE)):
        tiles = [_tile(item, conflict_free, method, digests) for item in piece]
        done.store.add_tiles(tiles)
        done.wrong += [
            f"{item.label}: {tile.error}" for item, (tile, _) in zip(piece, tiles, strict=True) if tile.error
        ]
        asked.add((tile.hash, tile.device) for tile, _ in tiles if tile.hash and tile.device)
        count += len(tiles)
    return count


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


def _tile(item: Input, conflict_free: bool, method: Method, digests: _Digests) -> tuple[Tile, bytes]:
    """A problem of the sweep, and its JSON."""
    name = item.data.get("name", "") if isinstance(item.data, dict) else ""
    try:
        problem = checked(item)
        gpu, data = digests.of(problem.target)
        if method != "auto" and not isinstance(problem, Problem):
            raise ProblemFileError("", "--method: of several tiles, each is solved by auto")
    except LayoutoptError as error:
        return Tile(item.source or item.label, item.values, str(name), error=str(error)), b""
    tile = Tile(
        item.source,
        item.values,
        problem.name,
        gpu.name,
        problem.tile.shape if isinstance(problem, Problem) else (),
        digest(problem, conflict_free=conflict_free, method=method),
        data,
        spelling_of(problem),
    )
    return tile, msgspec.json.encode(problem)
