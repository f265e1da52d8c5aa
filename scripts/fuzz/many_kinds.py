"""Kinds of cases of many problems: templates, several inputs, accesses as numbers, sweeps and stores."""

from __future__ import annotations

import copy
import json
import random
import sqlite3
from functools import cache
from typing import Any

from campaign import scratch
from command_lines import LIMIT, command_of
from mutate import jsonable, mutate_bytes, mutate_data, mutated
from originals import COORDINATES, HOSTILE, PROBLEMS, SIZES, TEMPLATE
from process import call

OF_A_TEMPLATE = """
solve p.json --json LIMIT
solve p.json LIMIT
solve p.json --over OVER LIMIT
solve p.json --over OVER --json LIMIT
check p.json --no-fix --offset EXPRESSION
check p.json --over OVER --json LIMIT
compare p.json --over OVER LIMIT
explain p.json LIMIT
show p.json --over OVER LIMIT
emit p.json --lang LANGUAGE LIMIT
emit p.json --lang LANGUAGE -o o.txt LIMIT
problems p.json
problems p.json --expanded
sweep p.json -o o.sqlite --workers 1 --json LIMIT
sweep p.json --over OVER -o o.sqlite --workers 1 LIMIT
"""
OF_SEVERAL = """
solve p.json q.json --json LIMIT
solve q.json p.json LIMIT
solve p.json - --json LIMIT
solve - --json LIMIT
solve f --json LIMIT
solve l.jsonl --json LIMIT
check p.json q.json --no-fix --offset EXPRESSION
compare q.json p.json --json LIMIT
explain l.jsonl LIMIT
show p.json l.jsonl LIMIT
emit p.json q.json --lang c LIMIT
sweep p.json q.json l.jsonl -o o.sqlite --workers 1 LIMIT
sweep f -o o.sqlite --workers 1 --export o.csv LIMIT
sweep - -o o.sqlite --workers 1 --json LIMIT
solve f --table f/a.json LIMIT
sweep f -o o.sqlite --workers 1 --export f/a.json LIMIT
"""
OF_NUMBERS = """
solve p.json --json LIMIT
check p.json --no-fix --offset EXPRESSION
problems p.json --expanded
show p.json LIMIT
compare p.json LIMIT
"""
OF_A_STORE = """
sweep --report s.sqlite
sweep --report s.sqlite --json
sweep --report s.sqlite --export o.csv
sweep --report s.sqlite --export o.json
sweep --report s.sqlite --export o.parquet
sweep --report s.sqlite --export o.cuh
sweep --report s.sqlite --export VALUE
sweep p.json -o s.sqlite --workers 1 LIMIT
solve p.json --store s.sqlite LIMIT
solve p.json --store s.sqlite --json LIMIT
compare p.json --store s.sqlite LIMIT
sweep p.json -o s.sqlite --workers 1 --export o.csv --json LIMIT
"""


def template_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    whole = rng.choice([TEMPLATE, TEMPLATE, SIZES])
    return {"p.json": mutated(whole, rng) if rng.random() < 0.8 else jsonable(whole)}, command_of(
        OF_A_TEMPLATE, rng
    )


def several_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    """Problems of which some are wrong, as files, lines and standard input."""
    small = [*PROBLEMS[:3], TEMPLATE, COORDINATES]
    rows = [
        jsonable(rng.choice(small)) if rng.random() < 0.5 else mutated(rng.choice(small), rng)
        for _ in range(3)
    ]
    many = b"\n".join(row.replace(b"\n", b" ") for row in rows) + b"\n"
    files = {
        "p.json": jsonable(rng.choice(small)),
        "q.json": rows[0],
        "l.jsonl": many,
        "stdin": rng.choice([many, rows[1]]),
    }
    if rng.random() < 0.3:
        files["l.jsonl"] = mutate_bytes(many, rng)
    command = command_of(OF_SEVERAL, rng)
    if "f" in command:
        files |= {"f/a.json": rows[1], "f/b.jsonl": many, "f/g/c.json": rows[2]}
    return files, command


def numbers_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    """Accesses as arrays of coordinates."""
    return {"p.json": mutated(COORDINATES, rng)}, command_of(OF_NUMBERS, rng)


@cache
def store() -> bytes:
    """The store of a small sweep."""
    with scratch() as folder:
        (folder / "p.json").write_text(json.dumps(TEMPLATE))
        call("sweep", "p.json", "-o", "s.sqlite", "--workers", "1", *LIMIT, folder=folder, cpu_s=60)
        return (folder / "s.sqlite").read_bytes()


def store_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    data = mutate_bytes(store(), rng) if rng.random() < 0.25 else with_changed_cells(store(), rng)
    if rng.random() < 0.1:
        changed = bytearray(store())
        for _ in range(20):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        data = bytes(changed)
    return {"s.sqlite": data, "p.json": jsonable(TEMPLATE)}, command_of(OF_A_STORE, rng)


def with_changed_cells(data: bytes, rng: random.Random) -> bytes:
    """A store that SQLite reads and in which a cell, a row, a column or a table is not as it was."""
    with scratch() as folder:
        path = folder / "s.sqlite"
        path.write_bytes(data)
        db = sqlite3.connect(path)
        for _ in range(rng.choice([1, 1, 2])):
            table = rng.choice(["answers", "problems", "tiles"])
            kind = rng.random()
            if kind < 0.85:
                change_cell(db, table, rng)
            elif kind < 0.9:
                db.execute(
                    f"DELETE FROM {table} WHERE rowid % 2" if table == "tiles" else f"DELETE FROM {table}"
                )
            elif kind < 0.95:
                db.execute(
                    rng.choice(
                        ["PRAGMA user_version = 2", "PRAGMA application_id = 7", f"DROP TABLE {table}"]
                    )
                )
                break
            else:
                db.execute(f"ALTER TABLE {table} RENAME COLUMN hash TO hush")
                break
        db.commit()
        db.close()
        return path.read_bytes()


def change_cell(db: sqlite3.Connection, table: str, rng: random.Random) -> None:
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    column = rng.choice(columns)
    rows = db.execute(f"SELECT hash, {column} FROM {table} WHERE hash IS NOT NULL").fetchall()
    if not rows:
        return
    hash_, value = rng.choice(rows)
    changed = new_value(value, rng)
    try:
        db.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE hash = ?", (changed, hash_))
    except (sqlite3.IntegrityError, OverflowError, UnicodeEncodeError):
        return


def new_value(value: Any, rng: random.Random) -> Any:
    """JSON with a field changed, or something hostile."""
    try:
        decoded = json.loads(value)
    except (ValueError, TypeError):
        decoded = None
    if isinstance(decoded, dict | list) and rng.random() < 0.8:
        text = json.dumps(mutate_data(copy.deepcopy(decoded), rng))
        return text.encode() if isinstance(value, bytes) else text
    hostile = rng.choice(HOSTILE)
    return json.dumps(hostile) if isinstance(hostile, list | dict) else hostile


KINDS = [template_case, template_case, several_case, several_case, numbers_case, store_case, store_case]
