"""The store: answers in one SQLite file, durable as soon as they are there.

    answers   hash, version of layoutopt, device  ->  status, excess, bytes, seconds, the answer
    tiles     source, parameters                  ->  the hash of what they ask, and their names for it
    problems  hash                                ->  a problem that asks it

Write-ahead logging: other processes read while one writes, and a process that is killed leaves what it
committed. An answer that is not decided (`feasible`, `unknown`) holds for limits up to its own. A file that
something else has written to is refused, not believed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from layoutopt import __version__
from layoutopt.errors import ProblemFileError
from layoutopt.files.result_file import answer_from_data, arrangement_from_data
from layoutopt.files.templates import Value
from layoutopt.ground import json_data
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, Method, Result, Status
from layoutopt.problems.types import Block, Problem
from layoutopt.study.known import check_answer
from layoutopt.sweeps.task import DECIDED, ERROR, LOST, Outcome, Spelling, device_digest, digest, spelling_of

_APPLICATION: Final = 0x4C594F50
_FORMAT: Final = 1
_TABLES: Final = """
CREATE TABLE answers (hash TEXT, version TEXT, device TEXT, status TEXT NOT NULL, excess REAL, bytes INTEGER,
    seconds REAL NOT NULL, time_limit REAL NOT NULL, answer TEXT NOT NULL, error TEXT NOT NULL,
    PRIMARY KEY (hash, version, device)) WITHOUT ROWID;
CREATE TABLE problems (hash TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE tiles (id INTEGER PRIMARY KEY, source TEXT NOT NULL, params TEXT NOT NULL, name TEXT NOT NULL,
    target TEXT NOT NULL, shape TEXT NOT NULL, hash TEXT, device TEXT, spelling TEXT NOT NULL,
    error TEXT NOT NULL, UNIQUE (source, params, name));
"""
# What every answer with a layout has, besides.
_OF_A_LAYOUT: Final = ("bytes", "declared_bytes", "alignment_bytes", "excess")

_Number = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Parameter = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]
_Status = Annotated[str, msgspec.Meta(pattern=rf"\A({'|'.join((*Status, ERROR, LOST))})\Z")]


class Tile(msgspec.Struct, frozen=True, array_like=True):
    """One problem of a sweep: a row of `tiles`.

    Attributes:
        source: file and line.
        params: values of the parameters.
        name: of the problem.
        target: the device's name.
        shape: extents; empty for several tiles.
        hash: of what it asks; None where it is wrong.
        device: digest of the device's data.
        spelling: names of its accesses.
        error: what is wrong with it.
    """

    source: str
    params: dict[_Parameter, Value]
    name: str
    target: str = ""
    shape: tuple[_Count, ...] = ()
    hash: str | None = None
    device: str | None = None
    spelling: Spelling | None = None
    error: str = ""


# Columns of a tile that are kept as JSON.
_JSON: Final = ("params", "shape", "spelling")
_COLUMNS: Final = Tile.__struct_fields__


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """A row of `answers`, as far as `Store.answered` reads it; all None where nothing is known yet."""

    status: _Status | None
    excess: _Number | None
    bytes: _Count | None
    seconds: _Number | None
    answer: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Answered:
    """A problem of a sweep and the answer that the store has for it.

    Attributes:
        tile: the problem.
        status: of the answer; `error` where the problem is wrong, `missing` where nothing is known yet.
        excess, bytes, seconds: of the answer.
        answer: as `solve --json` prints it; None where there is none.
        error: why there is none.
    """

    tile: Tile
    status: str
    excess: float | None
    bytes: int | None
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
        self._lock: int | None = None
        if path is not None and not write and not os.path.isfile(path):
            raise ProblemFileError("", f"there is no store {str(path)!r}")
        with self._failures():
            if path is not None and write:
                self._lock = _locked(path)
            self._db = sqlite3.connect(":memory:" if path is None else path, timeout=30.0)
            try:
                self._open(write)
            except BaseException:
                self._db.close()
                raise

    def _open(self, write: bool) -> None:
        db = self._db
        made_by = tuple(
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        schema = _schema(db)
        ours = made_by == (_APPLICATION, _FORMAT) and schema == _own_schema()
        if not ours and (schema or not write):
            raise ProblemFileError("", f"{str(self.path)!r} is no store of this version of layoutopt")
        if write:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
        if not schema:
            made = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_FORMAT}"
            db.executescript(f"BEGIN; {made}; {_TABLES} COMMIT;")

    def close(self) -> None:
        """Close it; what was committed stays, in one file where nobody reads it."""
        if self._lock is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("PRAGMA busy_timeout = 0")  # who reads may take his time
                self._db.execute("PRAGMA journal_mode = DELETE")
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_tiles(self, tiles: Iterable[tuple[Tile, bytes]]) -> None:
        """Add problems with their JSON; what was there under the same source and parameters is replaced."""
        replaced = ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS[3:])
        with self._failures(), self._db:
            for tile, data in tiles:
                row = msgspec.structs.asdict(tile)
                row |= {column: json.dumps(msgspec.to_builtins(row[column])) for column in _JSON}
                self._db.execute(
                    f"INSERT INTO tiles ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
                    f" ON CONFLICT (source, params, name) DO UPDATE SET {replaced}",
                    tuple(row.values()),
                )
                if tile.hash is not None:
                    self._db.execute("INSERT OR REPLACE INTO problems VALUES (?, ?)", (tile.hash, data))

    def add(self, outcomes: Iterable[tuple[Outcome, str, float]]) -> None:
        """Keep outcomes, each with the device's digest and the limit in seconds; durable on return."""
        rows = [
            (o.hash, __version__, gpu, o.status, o.excess, o.bytes, o.seconds, limit, o.answer, o.error)
            for o, gpu, limit in outcomes
        ]
        with self._failures(), self._db:
            self._db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def problem(self, hash_: str) -> bytes:
        """A problem, as JSON, that asks what is hashed; it was added."""
        with self._failures():
            found: tuple[bytes] = self._db.execute(
                "SELECT data FROM problems WHERE hash = ?", (hash_,)
            ).fetchone()
        return found[0]

    def standing(self, hash_: str, gpu: str, time_limit: float) -> tuple[str, float | None, str] | None:
        """Status, excess and answer that are kept for a question, if they hold for the limit."""
        with self._failures():
            row = self._db.execute(
                "SELECT status, excess, answer, time_limit FROM answers"
                " WHERE hash = ? AND version = ? AND device = ?",
                (hash_, __version__, gpu),
            ).fetchone()
        return row[:3] if row is not None and (row[0] in DECIDED or row[3] >= time_limit) else None

    def answered(self) -> Iterator[Answered]:
        """Every problem in the order in which they came, with its answer."""
        own = ", ".join(f"tiles.{column}" for column in _COLUMNS)
        with self._failures():
            cursor = self._db.execute(
                f"SELECT {own}, status, excess, bytes, seconds, answer, answers.error"
                " FROM tiles LEFT JOIN answers ON answers.hash = tiles.hash AND answers.device = tiles.device"
                " AND version = ? ORDER BY id",
                (__version__,),
            )
            for row in cursor:
                yield _answered(row)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # texts of the file that are none
            raise ProblemFileError("", f"the store {str(self.path)!r}: {error}") from None
        except OSError as error:
            raise ProblemFileError("", f"cannot open {str(self.path)!r}: {error.strerror}") from None


def _schema(db: sqlite3.Connection) -> list[tuple[str, ...]]:
    """What a database is made of; a view or a trigger of somebody else may never end."""
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    return sorted(rows)


@cache
def _own_schema() -> list[tuple[str, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_TABLES)
        return _schema(db)


def _locked(path: Path) -> int:
    """A lock on the file, made where there is none, that ends with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ProblemFileError("", f"another sweep writes to {str(path)!r}") from None
    return descriptor


def _answered(row: tuple[Any, ...]) -> Answered:
    """A problem and its answer out of what `Store.answered` selects.

    Raises:
        ProblemFileError: no store of this version holds such a row.
    """
    own = dict(zip(_COLUMNS, row, strict=False))
    json_data.prepare(Tile)
    json_data.prepare(_Kept)
    try:
        own |= {column: msgspec.json.decode(own[column]) for column in _JSON}
        tile = msgspec.convert(list(own.values()), Tile)
        kept = msgspec.convert(row[len(own) :], _Kept)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ProblemFileError("", f"the store holds a row that is none: {error}") from None
    found = None
    if kept.answer and tile.spelling is not None:
        found = _spelled(kept.answer, tile.name, tile.spelling)
        typed(found)
    status = ERROR if tile.error else kept.status or "missing"
    error_text = tile.error or kept.error or ""
    return Answered(tile, status, kept.excess, kept.bytes, kept.seconds, found, error_text)


def _spelled(text: str, name: str, spelling: Spelling) -> dict[str, Any]:
    """What was kept, as the answer to the problem called `name`.

    Raises:
        ProblemFileError: it is no answer, or does not fit the problem.
    """
    try:
        answer = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ProblemFileError("", f"the store holds an answer that is none: {error}") from None
    try:
        return spelling.restored(answer, name)
    except (LookupError, TypeError, ValueError):
        raise ProblemFileError("", f"the store holds an answer that does not fit {name!r}") from None


def typed(answer: dict[str, Any]) -> Result | Arrangement:
    """An answer as the typed result that it is.

    Raises:
        ProblemFileError: it is none.
    """
    if answer.get("tiles"):
        return arrangement_from_data(answer)
    kind: type[Result | Arrangement] = Arrangement if "tiles" in answer else Result
    json_data.prepare(kind)
    try:
        found = msgspec.convert(answer, kind)
    except msgspec.MsgspecError as error:
        raise ProblemFileError("", f"the store holds an answer that is none: {error}") from None
    if isinstance(found, Result) and found.layout is not None:
        missing = [field for field in _OF_A_LAYOUT if getattr(found, field) is None]
        if missing:
            raise ProblemFileError("", f"the store holds a layout without its {', '.join(missing)}")
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
    if kept is None or not kept[2]:
        return None
    found = answer_from_data(_spelled(kept[2], problem.name, spelling_of(problem)))
    check_answer(problem, gpu, found)
    return found
