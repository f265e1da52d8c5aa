"""The store: answers in one SQLite file, durable as soon as they are there.

    answers   hash of a question        ->  what came of it, and the limit that it had
    tiles     source, parameters, name  ->  the hash of what they ask, and their names for it

Write-ahead logging: other processes read while one writes, and a process that is killed leaves what it
committed. An answer that is not decided (`feasible`, `unknown`) holds for limits up to its own. Rows are
checked as they are read, as files of answers are: those of another program are refused, not believed.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct

from layoutopt.errors import ProblemFileError
from layoutopt.files.result_file import answer_from_data
from layoutopt.files.templates import Value
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, Method, Result
from layoutopt.problems.types import Block, Problem, constrained
from layoutopt.study.block import check_answer
from layoutopt.sweeps.task import DECIDED, ERROR, Outcome, digest, named

_APPLICATION: Final = 0x4C594F50
_FORMAT: Final = 3
# What data of another form makes of code that reads it.
_OF_DATA: Final = (TypeError, ValueError, LookupError, AttributeError, RecursionError)
_OUTCOME: Final = ", ".join(Outcome.__struct_fields__)
_TABLES: Final = f"""
BEGIN; PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_FORMAT};
CREATE TABLE answers ({_OUTCOME}, time_limit, PRIMARY KEY (hash));
CREATE TABLE tiles (id INTEGER PRIMARY KEY, name UNIQUE, hash, tile);
COMMIT;
"""

_Parameter = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]


class Tile(msgspec.Struct, frozen=True):
    """One problem of a sweep."""

    source: str  # file and line
    params: dict[_Parameter, Value]  # values of the parameters
    name: str  # of the problem
    target: str = ""  # the device's name
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()  # extents; empty for several tiles
    accesses: tuple[str, ...] = ()  # their names
    hash: str | None = None  # of what it asks; None where it is wrong
    error: str = ""  # what is wrong with it


class Answered(Struct, frozen=True):
    """A problem of a sweep and the answer that the store has for it."""

    tile: Tile  # the problem
    status: str  # of the answer; `error` where the problem is wrong, `missing` where nothing is known yet
    # `excess, seconds`: of the answer
    excess: float | None = None
    seconds: float | None = None
    answer: dict[str, Any] | None = None  # as `solve --json` prints it; None where there is none
    result: Result | Arrangement | None = None  # the same, typed
    error: str = ""  # why there is none


class Store(contextlib.ExitStack):
    """An open store; one process writes, any number read. When it is closed, what was committed stays.

    Args:
        path: the file; None for one in memory.
        write: make it where there is none, and keep other writers out.

    Raises:
        ProblemFileError: the file is no store, is written by another process, or cannot be opened.
    """

    def __init__(self, path: Path | None, *, write: bool) -> None:
        super().__init__()
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
            self.push(opened.pop_all())

    def _pragma(self, text: str) -> Any:
        row = self._db.execute(f"PRAGMA {text}").fetchone()
        return row and row[0]

    def _into_one_file(self) -> None:
        """Leave one file, where nobody reads it."""
        with contextlib.suppress(sqlite3.Error):
            self._pragma("busy_timeout = 0")  # who reads may take his time
            self._pragma("journal_mode = DELETE")

    def add_tiles(self, tiles: Iterable[Tile]) -> None:
        """Add problems; what was there under the same source, parameters and name is replaced."""
        rows = [
            (msgspec.json.encode((t.source, t.params, t.name)), t.hash, msgspec.json.encode(t)) for t in tiles
        ]
        with self._failures(), self._db:
            self._db.executemany(
                "INSERT INTO tiles (name, hash, tile) VALUES (?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, tile = excluded.tile",
                rows,
            )

    def add(self, outcomes: Iterable[Outcome], time_limit: float) -> None:
        """Keep outcomes that had so many seconds; durable on return."""
        rows = [(*msgspec.structs.astuple(outcome), time_limit) for outcome in outcomes]
        with self._failures(), self._db:
            self._db.executemany(f"INSERT OR REPLACE INTO answers VALUES (?{', ?' * 6})", rows)

    def standing(self, hash_: str, time_limit: float) -> Outcome | None:
        """What is kept for a question, if it holds for the limit."""
        with self._failures():
            query = f"SELECT time_limit, {_OUTCOME} FROM answers WHERE hash = ?"
            limit, *row = self._db.execute(query, (hash_,)).fetchone() or (0.0,)
            kept = msgspec.convert(row, Outcome) if row else None
        return kept if kept is not None and (kept.status in DECIDED or limit >= time_limit) else None

    def answer(
        self,
        problem: Problem | Block,
        gpu: Device,
        *,
        time_limit: float,
        conflict_free: bool = False,
        method: Method = "auto",
    ) -> Result | Arrangement | None:
        """What is kept for a problem, if anything is; its counts are confirmed by the conflict engine.

        Args:
            problem: the question; the layout in use is no part of it.
            gpu: its device.
            time_limit: seconds; what was not decided in as many is no answer.
            conflict_free: as for `solve`.
            method: as for `solve`.

        Raises:
            ProblemFileError: the store cannot be read, or what it holds is not true.
        """
        hash_ = digest(constrained(problem, offset=None), gpu, conflict_free=conflict_free, method=method)
        kept = self.standing(hash_, time_limit)
        if kept is None or not kept.answer:
            return None
        with self._failures():
            _, found = _read(kept, problem.name, [access.name for access in problem.accesses])
        try:
            check_answer(problem, gpu, found)
        except ProblemFileError as error:
            raise ProblemFileError("", _wrong(problem.name, error)) from None
        return found

    def answered(self) -> Iterator[Answered]:
        """Every problem in the order in which they came, with its answer."""
        own = ", ".join(f"answers.{column}" for column in Outcome.__struct_fields__)
        query = f"SELECT tile, {own} FROM tiles LEFT JOIN answers ON answers.hash = tiles.hash ORDER BY id"
        with self._failures():
            for text, *row in self._db.execute(query):
                yield _answered(text, row)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Errors of SQLite, and of rows that another program wrote, as ours."""
        try:
            yield
        except (sqlite3.Error, msgspec.MsgspecError, *_OF_DATA) as error:
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


def _answered(text: str | bytes, row: list[Any]) -> Answered:
    """A problem and what is kept for it, out of their rows."""
    tile = msgspec.json.decode(text, type=Tile)
    if tile.error or row[0] is None:
        return Answered(tile, ERROR if tile.error else "missing", error=tile.error)
    kept = msgspec.convert(row, Outcome)
    answer, result = _read(kept, tile.name, tile.accesses) if kept.answer else (None, None)
    return Answered(tile, kept.status, kept.excess, kept.seconds, answer, result, kept.error)


def _read(kept: Outcome, name: str, accesses: Sequence[str]) -> tuple[dict[str, Any], Result | Arrangement]:
    """The answer that is kept, as JSON data and typed, with the names of the problem that asks for it."""
    answer = named(msgspec.json.decode(kept.answer, type=dict[str, Any]), name, accesses)
    try:
        return answer, answer_from_data(answer)
    except ProblemFileError as error:
        raise ProblemFileError("", _wrong(name, error)) from None


def _wrong(name: str, error: ProblemFileError) -> str:
    return f"the store holds a wrong answer to {name!r}: {error}"
