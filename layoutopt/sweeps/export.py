"""A store as a file that a build reads: one row a problem, streamed: a million need little memory."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final

from layoutopt.errors import MachineError, ProblemFileError
from layoutopt.ground.escape import csv_cell
from layoutopt.sweeps.header import write_header
from layoutopt.sweeps.store import Store

_FIXED: Final = (
    "name", "target", "shape", "status", "excess", "bytes", "declared_bytes", "alignment_bytes", "family",
    "offset", "wavefronts", "ideal", "seconds", "error", "source", "hash",
)  # fmt: skip
_INTEGERS: Final = ("bytes", "declared_bytes", "alignment_bytes")
_NUMBERS: Final = ("excess", "wavefronts", "ideal", "seconds")
_PIECE: Final = 10_000


def rows(store: Store, params: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Each problem as one level of names and values: the columns of parameters, then what came of it."""
    for one in store.answered():
        tile, answer = one.tile, one.answer or {}
        row = dict.fromkeys(params) | {_column(name): value for name, value in tile.params.items()}
        row |= {name: answer.get(name) for name in _FIXED}
        for total in ("wavefronts", "ideal"):
            reports = answer.get("accesses")
            row[total] = sum(report[total] for report in reports) if reports else None
        row |= {"name": tile.name, "target": tile.target, "shape": "x".join(map(str, tile.shape))}
        row |= {"status": one.status, "seconds": one.seconds, "error": one.error}
        yield row | {"source": tile.source, "hash": tile.hash}


def parameters(store: Store) -> dict[str, type]:
    """The columns of the parameters of all problems in a store: whether they hold integers, else text."""
    found: dict[str, type] = {}
    for one in store.answered():
        for name, value in one.tile.params.items():
            found[_column(name)] = str if not isinstance(value, int) else found.get(_column(name), int)
    return found


def _column(parameter: str) -> str:
    """The column of a parameter, which may be called like one of the others."""
    return f"param_{parameter}" if parameter in _FIXED else parameter


def write_csv(store: Store, file: BinaryIO, _: str) -> None:
    """Comma-separated values with a line of names."""
    params = parameters(store)
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    out = csv.DictWriter(text, [*params, *_FIXED])
    out.writeheader()
    for row in rows(store, params):
        out.writerow({name: csv_cell(value) for name, value in row.items()})
    text.detach()


def write_json(store: Store, file: BinaryIO, _: str) -> None:
    """A list of objects: parameters, status, and the answer as `solve --json` prints it."""
    for number, one in enumerate(store.answered()):
        data = {
            "source": one.tile.source,
            "params": one.tile.params,
            "name": one.tile.name,
            "status": one.status,
            "seconds": one.seconds,
            "error": one.error,
            "result": one.answer,
        }
        file.write((",\n" if number else "[\n").encode() + json.dumps(data).encode())
    file.write(b"\n]\n" if file.tell() else b"[]\n")


def write_parquet(store: Store, file: BinaryIO, _: str) -> None:
    """Parquet; parameters are columns of integers or text.

    Raises:
        MachineError: pyarrow is not installed.
        ProblemFileError: a number does not fit the 64 bits of an integer there.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MachineError(f".parquet needs pyarrow ({error}): pip install 'layoutopt[parquet]'") from None
    params = parameters(store)
    kinds = {name: arrow.int64() if kind is int else arrow.string() for name, kind in params.items()}
    kinds |= dict.fromkeys(_FIXED, arrow.string()) | dict.fromkeys(_NUMBERS, arrow.float64())
    kinds |= dict.fromkeys(_INTEGERS, arrow.int64())
    schema = arrow.schema(list(kinds.items()))
    with parquet.ParquetWriter(file, schema) as out:
        found = rows(store, params)
        while piece := list(itertools.islice(found, _PIECE)):
            texts = [name for name, kind in params.items() if kind is str]
            for row in piece:
                for name, value in row.items():
                    if kinds[name] == arrow.int64() and isinstance(value, int) and value.bit_length() > 63:
                        raise ProblemFileError(name, f"integers of Parquet have 64 bits; given {value}")
                row.update({name: str(row[name]) for name in texts if row[name] is not None})
            out.write_table(arrow.Table.from_pylist(piece, schema=schema))


# By the end of the file's name; each writes a store to a file of some name.
EXPORTS: Final[dict[str, Callable[[Store, BinaryIO, str], None]]] = {
    ".parquet": write_parquet,
    ".csv": write_csv,
    ".json": write_json,
    ".cuh": write_header,
    ".h": write_header,
}
