"""A store as a file that a build reads: rows and columns, whole answers, or a C++ header."""

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

from layoutopt.codegen.c_text import helpers, to_c
from layoutopt.codegen.templates import filled, lines
from layoutopt.errors import MachineError, ProblemFileError
from layoutopt.expressions.grammar import Const, Op, Var, substituted
from layoutopt.ground.escape import comment, csv_cell, identifier
from layoutopt.ground.version import __version__
from layoutopt.layout.formula import coordinate_ranges, offset_expression
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Result
from layoutopt.sweeps.store import Answered, Store

# Columns after those of the parameters, and the types of their values.
_FIXED: Final[dict[str, type]] = {
    "name": str, "target": str, "shape": str, "status": str, "excess": float, "bytes": int,
    "declared_bytes": int, "alignment_bytes": int, "family": str, "offset": str, "wavefronts": float,
    "ideal": float, "seconds": float, "error": str, "source": str, "hash": str,
}  # fmt: skip
_PIECE: Final = 10_000


def parameters(store: Store) -> dict[str, type]:
    """The parameters of all problems in a store: integers, where all values are, else text."""
    found: dict[str, type] = {}
    for one in store.answered():
        for name, value in one.tile.params.items():
            found[name] = found.get(name, int) if isinstance(value, int) else str
    return found


def _column(parameter: str) -> str:
    """The column of a parameter, which may be called like one of the others."""
    return f"param_{parameter}" if parameter in _FIXED else parameter


def _rows(store: Store) -> tuple[dict[str, type], Iterator[dict[str, Any]]]:
    """A table: its columns, those of the parameters first, and the values of each problem by column."""
    columns = {_column(name): kind for name, kind in parameters(store).items()} | _FIXED
    return columns, (_row(one, columns) for one in store.answered())


def _row(one: Answered, columns: dict[str, type]) -> dict[str, Any]:
    tile, answer = one.tile, one.answer or {}
    reports = answer.get("accesses") or ()
    totals = {total: sum(report[total] for report in reports) for total in ("wavefronts", "ideal") if reports}
    own: dict[str, Any] = {"name": tile.name, "target": tile.target, "shape": "x".join(map(str, tile.shape))}
    own |= {"status": one.status, "seconds": one.seconds, "error": one.error}
    own |= {"source": tile.source, "hash": tile.hash}
    given = {_column(name): value for name, value in tile.params.items()}
    values = given | {name: answer.get(name) for name in _FIXED} | totals | own
    texts = (name for name, kind in columns.items() if kind is str and values.get(name) is not None)
    return values | {name: str(values[name]) for name in texts}


def write_csv(store: Store, _: str, file: BinaryIO) -> None:
    """Comma-separated values with a line of names."""
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    columns, rows = _rows(store)
    out = csv.DictWriter(text, columns)
    out.writeheader()
    for row in rows:
        out.writerow({name: csv_cell(value) for name, value in row.items()})
    text.detach()


def write_json(store: Store, _: str, file: BinaryIO) -> None:
    """A list of objects: parameters, status, and the answer as `solve --json` prints it."""
    for number, one in enumerate(store.answered()):
        tile = one.tile
        data: dict[str, Any] = {"source": tile.source, "params": tile.params, "name": tile.name}
        data |= {"status": one.status, "seconds": one.seconds, "error": one.error, "result": one.answer}
        file.write((",\n" if number else "[\n").encode() + json.dumps(data).encode())
    file.write(b"\n]\n" if file.tell() else b"[]\n")


def write_parquet(store: Store, _: str, file: BinaryIO) -> None:
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
    columns, rows = _rows(store)
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    schema = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    with parquet.ParquetWriter(file, schema) as out:
        while piece := list(itertools.islice(rows, _PIECE)):
            try:
                out.write_table(arrow.Table.from_pylist(piece, schema=schema))
            except (arrow.ArrowException, OverflowError) as error:
                raise ProblemFileError("", f"a number that Parquet has no room for: {error}") from None


def write_header(store: Store, name: str, file: BinaryIO) -> None:
    """A C++ header, in the namespace layoutopt_NAME: a constexpr table of layouts, looked up by parameters.

        constexpr auto tile = layoutopt_gemm::tiles[layoutopt_gemm::find(64, 128)];
        __shared__ alignas(tile.alignment_bytes) unsigned char smem[tile.bytes];
        smem[layoutopt_gemm::offset_bytes(tile, row, column)]   // folded, since `tile` is constexpr

    Tiles with the same formula share it. Layouts that are tables are left out.
    """
    params = parameters(store)
    entries, left_out, rank = [], [], 1
    formulas: dict[str, int] = {}
    for one in store.answered():
        found = one.result
        layout = found.layout if isinstance(found, Result) else None
        if not isinstance(found, Result) or layout is None or layout.lookup:
            why = "its layout is a table" if layout is not None else f"it has no layout ({one.status})"
            left_out.append(f"// {comment(one.tile.name)} is not here: {why}")
            continue
        rank = max(rank, len(layout.shape))
        formula = formulas.setdefault(_formula(layout), len(formulas))
        values = [_in_c(one.tile.name)]
        values += [_in_c(kind(one.tile.params.get(p, kind()))) for p, kind in params.items()]
        values += map(str, (found.bytes, found.declared_bytes, found.alignment_bytes, found.excess))
        values += [str(len(layout.shape)), f"{{{', '.join(map(str, layout.shape))}}}", str(formula)]
        entries.append(f"{{{', '.join(values)}}},")
    space = f"layoutopt_{identifier(name)}"
    about = [
        f"// {len(entries)} tiles by layoutopt {__version__}",
        f"// constexpr auto tile = {space}::tiles[{space}::find(...)];",
        *left_out,
    ]
    declared = {f"param_{p}": "const char*" if kind is str else "long long" for p, kind in params.items()}
    fields = lines((f"{kind} {p};" for p, kind in declared.items()), 4)
    count = len(entries)
    head = {"NAMESPACE": space, "PARAMETERS": fields, "COUNT": count, "AT_LEAST_ONE": max(1, count)}
    cases = lines((f"case {number}: return {text};" for text, number in formulas.items()), 4)
    called = lines(helpers(cases, "of", "LAYOUTOPT_FUNCTION", "long long"))
    text = lines(about) + filled("sweep", "head", RANK=rank, **head) + lines(entries, 4)
    text += filled("sweep", "functions", CALLED=called, RANK=rank, FORMULAS=cases)
    text += _find("find_name", {"name": "const char*"}) + (_find("find", declared) if declared else "")
    file.write(f"{text}}}  // namespace {space}\n".encode())


def _formula(layout: Layout) -> str:
    """The byte offset in C, over x[0], x[1], ..."""
    named = {f"x{d}": Var(f"x[{d}]") for d in range(len(layout.shape))}
    offset = Op("*", (substituted(offset_expression(layout), named), Const(layout.element_bytes)))
    ranges = {f"x[{x[1:]}]": r for x, r in coordinate_ranges(layout.shape).items()}
    return to_c(offset, ranges, called="of", unsigned=True)


def _in_c(value: int | str) -> str:
    """A value as an integer or a string literal of C++."""
    if isinstance(value, int):
        return str(value)
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in value.encode("utf-8", "replace")
    )
    return f'"{plain}"'


def _find(name: str, declared: dict[str, str]) -> str:
    """A function that gives the number of the tile whose fields have these values."""
    tests = " && ".join(
        f"tiles[k].{field} == {field}" if kind == "long long" else f"same(tiles[k].{field}, {field})"
        for field, kind in declared.items()
    )
    listed = ", ".join(f"{kind} {field}" for field, kind in declared.items())
    return filled("sweep", "find", NAME=name, DECLARED=listed, TESTS=tests)


# By the end of the file's name; each writes a store, under some name, to a file.
EXPORTS: Final[dict[str, Callable[[Store, str, BinaryIO], None]]] = {
    ".parquet": write_parquet,
    ".csv": write_csv,
    ".json": write_json,
    ".cuh": write_header,
    ".h": write_header,
}
