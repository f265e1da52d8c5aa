"""`layoutopt count`."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from layoutopt.cli.files import InputPath
from layoutopt.cli.options import TargetName, device_file_option, more_devices
from layoutopt.cli.output import say, say_json
from layoutopt.errors import ProblemFileError

if TYPE_CHECKING:
    from layoutopt.engine.conflicts import Counts
    from layoutopt.engine.records import Totals
    from layoutopt.hardware.devices import Device

COLUMNS = ("instructions", "wavefronts", "ideal", "excess", "bank_conflicts")


@click.command("count")
@click.argument("records", type=InputPath(allow_dash=True))
@click.option(
    "--target",
    type=TargetName(),
    metavar="T",
    help="The GPU  [default: the first of --device-file, else sm_90]",
)
@device_file_option
@click.option("--op", help="The instruction of a .npy table, such as ld.shared.v4.b32 or load.")
@click.option(
    "--bytes", "width_bytes", type=int, metavar="N", help="Its width, where the op does not say it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line a record; one object for .npy.")
def command(
    records: Path,
    target: str | None,
    device_file: Path | None,
    op: str | None,
    width_bytes: int | None,
    as_json: bool,
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
    from layoutopt.hardware.devices import DEFAULT_TARGET, device

    more = more_devices(device_file)
    gpu = more[0] if more and target is None else device(target or DEFAULT_TARGET, more)
    with _opened(records) as file:
        if file.peek(6).startswith(b"\x93NUMPY"):
            _count_npy(records, op, width_bytes, gpu, as_json)
        elif op is not None or width_bytes is not None:
            raise click.UsageError("--op and --bytes go with a .npy table; JSON lines name their own op")
        else:
            _count_lines(file, gpu, as_json)
    return 0


def _count_npy(path: Path, op: str | None, width_bytes: int | None, device: Device, as_json: bool) -> None:
    from layoutopt.engine.records import count_table

    if op is None:
        raise click.UsageError("a .npy table needs --op, such as --op ld.shared.v4.b32")
    if str(path) == "-":
        raise click.UsageError("a .npy table is read from a file, not from standard input")
    totals = count_table(path, op, width_bytes, device)
    if as_json:
        from msgspec import to_builtins

        say_json(to_builtins(totals))
    else:
        say(_table([totals]))


def _count_lines(file: io.BufferedReader, device: Device, as_json: bool) -> None:
    from layoutopt.engine.records import Totals, count_lines

    totals: dict[str, Totals] = {}
    with _decompressed(file) as read, _printed(file) as out:
        for ops, counts in count_lines(read, device):
            if as_json:
                out("".join(_json_lines(ops, counts)))
                continue
            for op in dict.fromkeys(ops):
                rows = [i for i, other in enumerate(ops) if other == op]
                totals.setdefault(op, Totals("layoutopt.count/1", device.name, op)).add(counts, rows)
    if not as_json:
        say(_table(list(totals.values())))


@contextmanager
def _printed(file: io.BufferedReader) -> Iterator[Callable[[str], object]]:
    """Prints what follows from a file when all of it is known to be right, from a pipe as it comes."""
    try:
        whole = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except OSError:
        whole = False  # standard input that is no file of the system
    if not whole:
        yield partial(click.echo, nl=False)
        return
    with tempfile.TemporaryFile("w+", encoding="ascii") as kept:
        yield kept.write
        kept.seek(0)
        shutil.copyfileobj(kept, sys.stdout)


def _json_lines(ops: list[str], counts: Counts) -> Iterator[str]:
    quoted = {op: json.dumps(op) for op in set(ops)}
    columns = (counts.wavefronts.tolist(), counts.ideal.tolist(), counts.bank_conflicts.tolist())
    for op, wavefronts, ideal, conflicts in zip(ops, *columns, strict=True):
        yield (
            f'{{"op": {quoted[op]}, "wavefronts": {wavefronts}, "ideal": {ideal}, '
            f'"excess": {wavefronts - ideal}, "bank_conflicts": {conflicts}}}\n'
        )


def _table(totals: list[Totals]) -> str:
    rows = [[t.op, *(getattr(t, column) for column in COLUMNS)] for t in totals]
    if len(rows) != 1:
        rows.append(["total", *(sum(getattr(t, column) for t in totals) for column in COLUMNS)])
    name = max(len("op"), *(len(str(row[0])) for row in rows))
    lines = [f"{'op':<{name}}  " + "  ".join(f"{c.replace('_', ' '):>14}" for c in COLUMNS)]
    lines += [f"{row[0]:<{name}}  " + "  ".join(f"{value:>14,}" for value in row[1:]) for row in rows]
    return "\n".join(line.rstrip() for line in lines) + "\n"


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """The file, whose first byte can be read."""
    if str(path) == "-":
        yield cast("io.BufferedReader", sys.stdin.buffer)
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
            file.peek(1)
        except OSError as error:
            raise ProblemFileError("", f"cannot read {str(path)!r}: {error.strerror}") from None
        yield file


@contextmanager
def _decompressed(file: io.BufferedReader) -> Iterator[Callable[[int], bytes]]:
    if not file.peek(2).startswith(b"\x1f\x8b"):
        yield file.read1  # what has arrived: a pipe is answered as it is written
        return
    with gzip.GzipFile(fileobj=file) as unpacked:

        def read(size: int) -> bytes:
            try:
                return unpacked.read(size)
            except (EOFError, OSError, zlib.error) as error:
                raise ProblemFileError("", f"not a whole gzip file: {error}") from None

        yield read
