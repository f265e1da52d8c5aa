"""The store: answers in one SQLite file, durable as soon as they are there.

    answers   hash, version of layoutopt, device  ->  status, excess, bytes, seconds, the answer
    tiles     source, parameters                  ->  the hash of what they ask, and their names for it
    problems  hash                                ->  a problem that asks it

Write-ahead logging: other processes read while one writes, and a process that is killed leaves what it
committed. An answer that is not decided (`feasible`, `unknown`) holds for limits up to its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from layoutopt import __version__
from layoutopt.errors import ProblemFileError
from layoutopt.sweeps.rows import Answered, Tile, answered, parsed
from layoutopt.sweeps.task import DECIDED, Outcome

_APPLICATION: Final = 0x4C594F50
_FORMAT: Final = 1
_PIECE: Final = 500
# An answer to `asked` that holds: of this version, decided or as long sought.
_HOLDS: Final = (
    "EXISTS (SELECT 1 FROM answers WHERE answers.hash = asked.hash AND answers.device = asked.device"
    f" AND version = ? AND (status IN ({', '.join(repr(str(s)) for s in DECIDED)}) OR time_limit >= ?))"
)
_TABLES: Final = """
CREATE TABLE answers (hash TEXT, version TEXT, device TEXT, status TEXT NOT NULL, excess REAL, bytes INTEGER,
    seconds REAL NOT NULL, time_limit REAL NOT NULL, answer TEXT NOT NULL, error TEXT NOT NULL,
    PRIMARY KEY (hash, version, device)) WITHOUT ROWID;
CREATE TABLE problems (hash TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE tiles (id INTEGER PRIMARY KEY, source TEXT NOT NULL, params TEXT NOT NULL, name TEXT NOT NULL,
    target TEXT NOT NULL, shape TEXT NOT NULL, hash TEXT, device TEXT, spelling TEXT NOT NULL,
    error TEXT NOT NULL, UNIQUE (source, params, name));
"""


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
            db.executescript(
                f"BEGIN; PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_FORMAT};"
                f"{_TABLES} COMMIT;"
            )

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

    # Writing -----------------------------------------------------------------------------------

    def add_tiles(self, tiles: Iterable[tuple[Tile, bytes]]) -> None:
        """Add problems with their JSON; what was there under the same source and parameters is replaced."""
        with self._failures(), self._db:
            for tile, data in tiles:
                self._db.execute(
                    "INSERT INTO tiles (source, params, name, target, shape, hash, device, spelling, error)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (source, params, name) DO UPDATE SET"
                    " target = excluded.target, shape = excluded.shape, hash = excluded.hash,"
                    " device = excluded.device, spelling = excluded.spelling, error = excluded.error",
                    (
                        tile.source,
                        json.dumps(tile.params),
                        tile.name,
                        tile.target,
                        json.dumps(tile.shape),
                        tile.hash,
                        tile.device,
                        json.dumps(tile.spelling and [tile.spelling.names, tile.spelling.order]),
                        tile.error,
                    ),
                )
                if tile.hash is not None:
                    self._db.execute("INSERT OR REPLACE INTO problems VALUES (?, ?)", (tile.hash, data))

    def add(self, outcomes: Iterable[tuple[Outcome, str, float]]) -> None:
        """Keep outcomes, each with the device's digest and the limit in seconds; durable on return."""
        with self._failures(), self._db:
            self._db.executemany(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        o.hash,
                        __version__,
                        gpu,
                        o.status,
                        o.excess,
                        o.bytes,
                        o.seconds,
                        limit,
                        o.answer,
                        o.error,
                    )
                    for o, gpu, limit in outcomes
                ],
            )

    # Reading -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def asked(self) -> Iterator[Asked]:
        """A temporary list of what a sweep asks, each question once, in the order in which they came."""
        with self._failures():
            self._db.execute(
                "CREATE TEMP TABLE asked"
                " (place INTEGER PRIMARY KEY, hash TEXT, device TEXT, UNIQUE (hash, device))"
            )
        try:
            yield Asked(self._db)
        except sqlite3.Error as error:
            raise self._failure(error) from None
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("DROP TABLE asked")

    def answer(self, hash_: str, gpu: str, time_limit: float) -> dict[str, Any] | None:
        """What is kept as the answer to a question, if it holds for the limit."""
        with self._failures():
            row = self._db.execute(
                "SELECT status, time_limit, answer FROM answers"
                " WHERE hash = ? AND version = ? AND device = ?",
                (hash_, __version__, gpu),
            ).fetchone()
        if row is None or not row[2] or (row[0] not in DECIDED and row[1] < time_limit):
            return None
        return parsed(row[2])

    def answered(self) -> Iterator[Answered]:
        """Every problem in the order in which they came, with its answer."""
        with self._failures():
            cursor = self._db.execute(
                "SELECT source, params, name, target, shape, tiles.hash, tiles.device, spelling, tiles.error,"
                " status, excess, bytes, seconds, answer, answers.error"
                " FROM tiles LEFT JOIN answers ON answers.hash = tiles.hash AND answers.device = tiles.device"
                " AND version = ? ORDER BY id",
                (__version__,),
            )
            for row in cursor:
                yield answered(row)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # texts of the file that are none
            raise self._failure(error) from None
        except OSError as error:
            raise ProblemFileError("", f"cannot open {str(self.path)!r}: {error.strerror}") from None

    def _failure(self, error: Exception) -> ProblemFileError:
        return ProblemFileError("", f"the store {str(self.path)!r}: {error}")


class Asked:
    """What a sweep asks; see `Store.asked`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, questions: Iterable[tuple[str, str]]) -> None:
        """Add questions, as hash and device."""
        self._db.executemany("INSERT OR IGNORE INTO asked (hash, device) VALUES (?, ?)", questions)
        self._db.commit()

    def total(self) -> int:
        """How many different ones there are."""
        return int(self._db.execute("SELECT coalesce(max(place), 0) FROM asked").fetchone()[0])

    def outcomes(self) -> Counter[tuple[str, bool]]:
        """How many questions have each status, with conflicts or without; `missing` is no answer."""
        rows = self._db.execute(
            "SELECT coalesce(status, 'missing'), coalesce(excess, 0) > 0, count(*) FROM asked"
            " LEFT JOIN answers ON answers.hash = asked.hash AND answers.device = asked.device"
            " AND version = ? GROUP BY 1, 2",
            (__version__,),
        )
        return Counter({(status, bool(conflicts)): count for status, conflicts, count in rows})

    def left(self, time_limit: float, after: int = 0) -> Iterator[tuple[int, str, str, bytes]]:
        """Those after a place without an answer that holds for the limit: place, hash, device and problem."""
        while True:  # piece by piece: a statement that stays open keeps the log of writes from being cut
            rows = self._db.execute(
                "SELECT place, asked.hash, asked.device, problems.data FROM asked JOIN problems USING (hash)"
                f" WHERE place > ? AND NOT {_HOLDS} ORDER BY place LIMIT {_PIECE}",
                (after, __version__, time_limit),
            ).fetchall()
            yield from rows
            if len(rows) < _PIECE:
                return
            after = rows[-1][0]


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
