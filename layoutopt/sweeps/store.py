"""The store: answers in one SQLite file, durable as soon as they are there.

    answers   hash, device, version of layoutopt  ->  what came of a task, and the limit that it had
    tiles     source, parameters, name            ->  the hash of what they ask, and their names for it

Write-ahead logging: other processes read while one writes, and a process that is killed leaves what it
committed. An answer that is not decided (`feasible`, `unknown`) holds for limits up to its own. Rows are
checked as they are read: those of another program are refused, not believed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from layoutopt import __version__
from layoutopt.errors import ProblemFileError
from layoutopt.files.result_file import answer_from_data
from layoutopt.files.templates import Value
from layoutopt.ground import json_data
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, Method, Result
from layoutopt.problems.types import Block, Problem
from layoutopt.study.known import check_answer
from layoutopt.sweeps.task import DECIDED, ERROR, Outcome, device_digest, digest, named

Row = TypeVar("Row")

_APPLICATION: Final = 0x4C594F50
_FORMAT: Final = 2
_OUTCOME: Final = ", ".join(Outcome.__struct_fields__)
_TABLES: Final = f"""
BEGIN; PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_FORMAT};
CREATE TABLE answers ({_OUTCOME}, device, version, time_limit, PRIMARY KEY (hash, device, version));
CREATE TABLE tiles (id INTEGER PRIMARY KEY, name UNIQUE, hash, device, tile);
COMMIT;
"""

_Parameter = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]


class Tile(msgspec.Struct, frozen=True):
    """One problem of a sweep.

    Attributes:
        source: file and line.
        params: values of the parameters.
        name: of the problem.
        target: the device's name.
        shape: extents; empty for several tiles.
        accesses: their names.
        hash: of what it asks; None where it is wrong.
        device: digest of the device's data.
        error: what is wrong with it.
    """

    source: str
    params: dict[_Parameter, Value]
    name: str
    target: str = ""
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()
    accesses: tuple[str, ...] = ()
    hash: str | None = None
    device: str | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """A problem of a sweep and the answer that the store has for it.

    Attributes:
        tile: the problem.
        status: of the answer; `error` where the problem is wrong, `missing` where nothing is known yet.
        excess, seconds: of the answer.
        answer: as `solve --json` prints it; None where there is none.
        error: why there is none.
    """

    tile: Tile
    status: str
    excess: float | None
    seconds: float | None
    answer: dict[str, Any] | None
    error: str


class Store:
    """An open store; one process writes, any number read.

    Args:
        path: the file; None for one in memory.
        write: make it where there is none, and keep other writers out.

    Raises:
        ProblemFileError: the file is no store, is written by another process, or cannot be opened.
    """

    def __init__(self, path: Path | None, *, write: bool) -> None:
        self.path = path
        if path is not None and not write and not os.path.isfile(path):
            raise ProblemFileError("", f"there is no store {str(path)!r}")
        with self._failures(), contextlib.ExitStack() as opened:
            if path is not None and write:
                opened.callback(os.close, _locked(path))
            self._db = sqlite3.connect(":memory:" if path is None else path, timeout=30.0)
            opened.callback(self._db.close)
            ours = self._pragma("application_id"), self._pragma("user_version")
            if ours != (_APPLICATION, _FORMAT):
                if not write or ours != (0, 0) or self._pragma("schema_version"):
                    raise ProblemFileError("", f"{str(path)!r} is no store of this version of layoutopt")
                self._db.executescript(_TABLES)
            if write:
                self._pragma("journal_mode = WAL")
                self._pragma("synchronous = FULL")
                opened.callback(self._into_one_file)
            self._opened = opened.pop_all()

    def _pragma(self, text: str) -> Any:
        row = self._db.execute(f"PRAGMA {text}").fetchone()
        return row and row[0]

    def _into_one_file(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._pragma("busy_timeout = 0")  # who reads may take his time
            self._pragma("journal_mode = DELETE")

    def close(self) -> None:
        """Close it; what was committed stays, in one file where nobody reads it."""
        self._opened.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_tiles(self, tiles: Iterable[Tile]) -> None:
        """Add problems; what was there under the same source, parameters and name is replaced."""
        rows = [
            (msgspec.json.encode((t.source, t.params, t.name)), t.hash, t.device, msgspec.json.encode(t))
            for t in tiles
        ]
        with self._failures(), self._db:
            self._db.executemany(
                "INSERT INTO tiles (name, hash, device, tile) VALUES (?, ?, ?, ?) ON CONFLICT (name)"
                " DO UPDATE SET hash = excluded.hash, device = excluded.device, tile = excluded.tile",
                rows,
            )

    def add(self, outcomes: Iterable[tuple[Outcome, str, float]]) -> None:
        """Keep outcomes, each with the device's digest and the limit in seconds; durable on return."""
        rows = [(*msgspec.structs.astuple(o), gpu, __version__, limit) for o, gpu, limit in outcomes]
        with self._failures(), self._db:
            self._db.executemany(f"INSERT OR REPLACE INTO answers VALUES (?{', ?' * 8})", rows)

    def standing(self, hash_: str, gpu: str, time_limit: float) -> Outcome | None:
        """What is kept for a question, if it holds for the limit."""
        asked = (hash_, gpu, __version__)
        query = f"SELECT time_limit, {_OUTCOME} FROM answers WHERE (hash, device, version) = (?, ?, ?)"
        with self._failures():
            row = self._db.execute(query, asked).fetchone()
        if row is None:
            return None
        kept = _checked(row[1:], Outcome)
        return kept if kept.status in DECIDED or row[0] >= time_limit else None

    def answered(self) -> Iterator[Answered]:
        """Every problem in the order in which they came, with its answer."""
        own = ", ".join(f"answers.{column}" for column in Outcome.__struct_fields__)
        with self._failures():
            cursor = self._db.execute(
                f"SELECT tile, {own} FROM tiles LEFT JOIN answers ON answers.hash = tiles.hash"
                " AND answers.device = tiles.device AND version = ? ORDER BY id",
                (__version__,),
            )
            for text, *row in cursor:
                yield _answered(_decoded(text, Tile), None if row[0] is None else _checked(row, Outcome))

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # texts of the file that are none
            raise ProblemFileError("", f"the store {str(self.path)!r}: {error}") from None
        except OSError as error:
            raise ProblemFileError("", f"cannot open {str(self.path)!r}: {error.strerror}") from None


def _locked(path: Path) -> int:
    """A lock on the file, made where there is none, that ends with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ProblemFileError("", f"another sweep writes to {str(path)!r}") from None
    return descriptor


def _checked(raw: Any, kind: type[Row]) -> Row:
    """A row, or data of it, as what it shall be."""
    try:
        return json_data.convert(raw, kind)
    except ProblemFileError as error:
        raise ProblemFileError("", f"the store holds a {kind.__name__} that is none: {error}") from None


def _decoded(text: str | bytes, kind: type[Row]) -> Row:
    try:
        return _checked(msgspec.json.decode(text), kind)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ProblemFileError("", f"the store holds a {kind.__name__} that is none: {error}") from None


def _answered(tile: Tile, kept: Outcome | None) -> Answered:
    """A problem and what is kept for it."""
    if tile.error or kept is None:
        return Answered(tile, ERROR if tile.error else "missing", None, None, None, tile.error)
    answer = _answer(kept, tile.name, tile.accesses) if kept.answer else None
    if answer is not None:
        typed(answer)
    return Answered(tile, kept.status, kept.excess, kept.seconds, answer, kept.error)


def _answer(kept: Outcome, name: str, accesses: tuple[str, ...]) -> dict[str, Any]:
    """The answer that is kept, for the problem of these names.

    Raises:
        ProblemFileError: it is no answer, or does not fit the problem.
    """
    answer = _decoded(kept.answer, dict[str, Any])
    try:
        return named(answer, name, accesses)
    except (TypeError, ValueError):
        raise ProblemFileError("", f"the store holds an answer that does not fit {name!r}") from None


def typed(answer: dict[str, Any]) -> Result | Arrangement:
    """An answer as the typed result that it is.

    Raises:
        ProblemFileError: it is none.
    """
    if "tiles" in answer:
        return _checked(answer, Arrangement)
    found = _checked(answer, Result)
    for field in ("bytes", "declared_bytes", "alignment_bytes", "excess"):
        if found.layout is not None and getattr(found, field) is None:
            raise ProblemFileError("", f"the store holds a layout without its {field}")
    return found


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
    kept = store.standing(asked, device_digest(gpu), time_limit)
    if kept is None or not kept.answer:
        return None
    found = answer_from_data(_answer(kept, problem.name, tuple(a.name for a in problem.accesses)))
    check_answer(problem, gpu, found)
    return found
