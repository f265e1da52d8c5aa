"""`layoutopt count`."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import click
from msgspec import to_builtins

from layoutopt.cli.files import FileCommand, InputPath
from layoutopt.cli.options import device_file_option, form_options, more_devices
from layoutopt.cli.output import form, say, tell
from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import DEFAULT_TARGET, Device, device

if TYPE_CHECKING:
    from layoutopt.engine.conflicts import Counts
    from layoutopt.engine.records import Totals

COLUMNS = ("instructions", "wavefronts", "ideal", "excess", "bank_conflicts")


@click.command("count", cls=FileCommand)
@click.argument("records", type=InputPath())
@click.option(
    "--target",
    metavar="T",
    help="The GPU  [default: the first of --device-file, else sm_90]",
)
@device_file_option
@click.option("--op", help="The instruction of a .npy table, such as ld.shared.v4.b32 or load.")
@click.option(
    "--bytes", "width_bytes", type=int, metavar="N", help="Its width, where the op does not say it."
)
@form_options("Print one JSON line a record; one object for .npy.")
def command(
    records: Path,
    target: str | None,
    device_file: Path | None,
    op: str | None,
    width_bytes: int | None,
) -> int:
    """Count the wavefronts of warp instructions whose addresses are known.

    RECORDS holds JSON lines (gzipped or not; - for standard input), each with op, byte_address (one
    entry a lane) and active (a mask; all lanes if left out); or it is a .npy table of int64 byte
    addresses, shape (instructions, lanes), -1 for an inactive lane, all of one --op.

    \b
    Examples:
      layoutopt count tests/data/h200_wavefronts.jsonl.gz
      layoutopt count addresses.npy --op load --bytes 16 --target a100 --json
    """
    more = more_devices(device_file)
    gpu = more[0] if more and target is None else device(target or DEFAULT_TARGET, more)
    with ExitStack() as stack:
        file = cast("io.BufferedReader", sys.stdin.buffer)
        try:
            if str(records) != "-":
                file = stack.enter_context(open(records, "rb"))
            head = file.peek(6)
        except OSError as error:
            raise ProblemFileError("", f"cannot read {str(records)!r}: {error.strerror}") from None
        if head.startswith(b"\x93NUMPY"):
            _count_npy(records, op, width_bytes, gpu)
        elif op is not None or width_bytes is not None:
            raise click.UsageError("--op and --bytes go with a .npy table; JSON lines name their own op")
        else:
            read, held = _unpacked(file) if head.startswith(b"\x1f\x8b") else file.read1, str(records) != "-"
            out = stack.enter_context(tempfile.TemporaryFile("w+", encoding="ascii")) if held else sys.stdout
            _count_lines(read, gpu, out if form() == "json" else None)
            if held:
                out.seek(0)
                shutil.copyfileobj(out, sys.stdout)
    return 0


def _count_npy(path: Path, op: str | None, width_bytes: int | None, device: Device) -> None:
    from layoutopt.engine.records import count_table

    if op is None:
        raise click.UsageError("a .npy table needs --op, such as --op ld.shared.v4.b32")
    if str(path) == "-":
        raise click.UsageError("a .npy table is read from a file, not from standard input")
    totals = count_table(path, op, width_bytes, device)
    tell(lambda: to_builtins(totals), text=lambda: _table([totals]))


def _count_lines(read: Callable[[int], bytes], device: Device, out: TextIO | None) -> None:
    """Count records as they come: a pipe is answered as it is written, a file when all of it is right."""
    from layoutopt.engine.records import Totals, count_lines

    totals: dict[str, Totals] = {}
    for ops, counts in count_lines(read, device):
        if out is not None:
            out.write("".join(_json_lines(ops, counts)))
            continue
        for op in dict.fromkeys(ops):
            rows = [i for i, other in enumerate(ops) if other == op]
            totals.setdefault(op, Totals("layoutopt.count/1", device.name, op)).add(counts, rows)
    if out is None:
        say(_table(list(totals.values())))


def _json_lines(ops: list[str], counts: Counts) -> Iterator[str]:
    quoted = {op: json.dumps(op) for op in set(ops)}
    columns = (counts.wavefronts.tolist(), counts.ideal.tolist(), counts.bank_conflicts.tolist())
    for op, wavefronts, ideal, conflicts in zip(ops, *columns, strict=True):
        yield (
            f'{{"op": {quoted[op]}, "wavefronts": {wavefronts}, "ideal": {ideal}, '
            f'"excess": {wavefronts - ideal}, "bank_conflicts": {conflicts}}}\n'
        )


def _table(totals: list[Totals]) -> str:
    from layoutopt.report.text import columns

    rows = [["op", *(column.replace("_", " ") for column in COLUMNS)]]
    rows += [[t.op, *(f"{getattr(t, column):,}" for column in COLUMNS)] for t in totals]
    if len(totals) != 1:
        rows.append(["total", *(f"{sum(getattr(t, column) for t in totals):,}" for column in COLUMNS)])
    return "\n".join(columns(rows, {0})) + "\n"


def _unpacked(file: io.BufferedReader) -> Callable[[int], bytes]:
    """Reads what is in a gzip file."""
    unpacked = gzip.GzipFile(fileobj=file)

    def read(size: int) -> bytes:
        try:
            return unpacked.read(size)
        except (EOFError, OSError, zlib.error) as error:
            raise ProblemFileError("", f"not a whole gzip file: {error}") from None

    return read
