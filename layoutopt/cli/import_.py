"""`layoutopt import`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from layoutopt.cli.files import (
    FileCommand,
    InputPath,
    OutputPath,
    check_new,
    updating,
    write_all,
    write_folder,
)
from layoutopt.cli.import_kernel import command as kernel
from layoutopt.cli.new import extents
from layoutopt.cli.output import note, say_file
from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import shown, writable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from layoutopt.problems.types import Problem

Command = TypeVar("Command", bound=Callable[..., object])

MAX_TEXT_BYTES = 64 << 20


@click.group("import")
def command() -> None:
    """Turn what another tool prints, or what a kernel did, into a problem file."""


command.add_command(kernel)


class LayoutText(InputPath):
    """A layout as text, or @FILE."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        return str(value)

    def files(self, value: str) -> Iterable[Path]:
        """The file after the @."""
        return (Path(value[1:]),) if value.startswith("@") else ()


def _layout_options(function: Command) -> Command:
    """What a thread-value layout does not say of the access that uses it."""
    for option in (
        click.argument("layout", type=LayoutText()),
        click.option("--tile", required=True, metavar="MxN", help="Extents of the layout's tile."),
        click.option("--element", required=True, metavar="T", help="Type of an element, such as f16."),
        click.option("--op", default="store", show_default=True, help="store, load or cp.async."),
        click.option("--bytes", "width_bytes", type=int, metavar="N", help="Bytes a thread moves at once  "
                     "[default: the most that the layout allows]"),
        click.option("--order", metavar="D,D", help="The layout's dimensions as the shared tile has them, "
                     "slowest first."),
        click.option("--target", default="sm_90", show_default=True, metavar="T", help="The GPU."),
        click.option("--name", default="access", show_default=True, help="Name of the access."),
        click.option("--shared", is_flag=True, help="The layout says where the elements lie, not who handles "
                     "them (what it says of itself where it is swizzled or Triton's)."),
        click.option("--into", type=OutputPath(), metavar="FILE",
                     help="Add the access to this problem file; a shared layout as its published one."),
        click.option("-o", "--output", type=OutputPath(or_print=True), metavar="FILE",
                     help="Write a new file; of a shared layout its byte offsets as .npy."),
    )[::-1]:  # fmt: skip
        function = option(function)
    return function


@command.command("cute", cls=FileCommand)
@_layout_options
@click.option(
    "--operand", type=click.Choice(["A", "B", "C"]), help="Of a TiledMMA: A (MxK), B (NxK) or C (MxN)."
)
def cute(operand: str | None, **options: Any) -> int:
    """A CuTe layout, as CuTe prints it: thread-value, a TiledCopy, a TiledMMA, or of shared memory.

    LAYOUT is the text, or @FILE to read it from a file. Without --into and -o, the offset of a layout of
    shared memory is printed.

    \b
    Examples:
      layoutopt import cute "((4,8),(2,2)):((32,1),(16,8))" --tile 16x8 --element f32 -o tile.json
      layoutopt import cute "Sw<3,3,3> o _0 o (_8,_64):(_64,_1)" --tile 8x64 --element f16
    """
    from layoutopt.imports import cute, cute_shared, cute_tiled

    text = _text(options.pop("layout"))
    _check_op(options["op"])
    if cute_tiled.is_mma(text) != (operand is not None):
        given = "is one: say" if operand is None else "is none: leave out"
        raise click.UsageError(f"--operand is for a TiledMMA, and the layout {given} --operand")
    if operand is not None:
        options.pop("shared")
        return _thread_values(lambda shape, _: cute_tiled.multiplied(text, shape, operand), **options)
    if cute_tiled.is_copy(text):
        options.pop("shared")
        shape = _tile(options["tile"], options["element"])[0]
        table, op = cute_tiled.copied(text, shape, options["op"])
        return _thread_values(lambda *_: table, **{**options, "op": op})
    if options.pop("shared") or cute_shared.is_swizzled(text):
        return _shared(cute_shared.offsets, text, **options)
    return _thread_values(lambda shape, _: cute.thread_values(text, shape), **options)


@command.command("triton", cls=FileCommand)
@_layout_options
def triton(**options: Any) -> int:
    """A Triton or Gluon layout: blocked, mma, dot operand, slice, linear, or of shared memory.

    LAYOUT is the text, as the compiler or Gluon prints it, or @FILE to read it from a file. Without --into
    and -o, the offset of a layout of shared memory is printed.

    \b
    Examples:
      layoutopt import triton "#ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], \\
        warpsPerCTA = [4, 1], order = [1, 0]}>" --tile 128x64 --element f16 -o tile.json
      layoutopt import triton "#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>" \\
        --tile 128x64 --element f16 --into tile.json
    """
    from layoutopt.imports import triton, triton_shared

    text = _text(options.pop("layout"))
    _check_op(options["op"])
    if options.pop("shared") or triton_shared.is_shared(text):
        return _shared(lambda text, shape, _: triton_shared.offsets(text, shape), text, **options)
    return _thread_values(lambda shape, lanes: triton.thread_values(text, shape, lanes), **options)


@command.command("ttgir", cls=FileCommand)
@click.argument("source", type=InputPath())
@click.option("-o", "--output", "folder", required=True, type=OutputPath(folder=True),
              metavar="FOLDER", help="Write one problem file a tile there.")  # fmt: skip
def ttgir(source: Path, folder: Path) -> int:
    """A kernel in Triton's GPU IR: every shared buffer becomes a tile with its accesses.

    The layout that Triton chose is the published one, so that check counts it and compare weighs it. The IR
    is what TRITON_KERNEL_DUMP=1 and Triton's cache hold as NAME.ttgir.

    \b
    Example:
      layoutopt import ttgir matmul.ttgir -o tiles
      layoutopt check tiles
    """
    from layoutopt.ground.json_data import read
    from layoutopt.imports.triton_ir import problems

    files: dict[Path, bytes] = {}
    left_out: list[str] = []
    for data in problems(read(source, MAX_TEXT_BYTES).decode("utf-8", "replace"), left_out.append):
        name = re.sub(r"[^\w.-]+", "_", data["name"])
        path = folder / f"{name}.json"
        number = 1
        while path in files:
            number += 1
            path = folder / f"{name}_{number}.json"
        check_new(path)
        files[path] = _checked(data).encode()
    if not files:
        why = f"that is read: {left_out[0]}" if left_out else "that is stored or loaded"
        raise ProblemFileError("", f"{source.name} has no shared buffer {why}")
    write_folder(folder, files)
    for reason in left_out:
        note(f"left out: {reason}")
    return 0


def _text(given: str) -> str:
    """The text itself, or that of the file after an @."""
    if not given.startswith("@"):
        return given
    from layoutopt.ground.json_data import read

    return read(given[1:], MAX_TEXT_BYTES).decode("utf-8", "replace")


def _shared(
    offsets: Callable[[str, tuple[int, ...], int], tuple[npt.NDArray[np.int64], str | None]],
    text: str,
    tile: str,
    element: str,
    into: Path | None,
    output: Path | None,
    order: str | None,
    **_: Any,
) -> int:
    """A layout of shared memory: its offset printed, its table written, or into a problem as published."""
    from layoutopt.files.array_file import offsets_file

    if into is not None and output is not None:
        raise click.UsageError("--into adds to a file and -o writes a new one; use one of them")
    shape, element_bytes = _tile(tile, element)
    table, formula = offsets(text, shape, element_bytes)
    dims = _order(order, len(shape))
    if dims != list(range(len(shape))):
        raise click.UsageError("--order is for accesses: a layout of shared memory says its own")
    if output is not None:
        check_new(output)
        write_all({output: offsets_file(table * element_bytes)})
        note(f"wrote {output}")
        return 0
    if formula is None:
        raise ProblemFileError("", "no formula over x0, x1, ... gives this layout; -o writes it as a table")
    if into is None:
        click.echo(formula)
        return 0
    with updating(into):
        _publish(into, (shape, element), formula, (int(table.max()) + 1) * element_bytes)
    return 0


def _publish(into: Path, tile: tuple[tuple[int, ...], str], formula: str, size_bytes: int) -> None:
    """Give a problem file that has this tile its published layout."""
    old = _same_tile(into, tile)[0]
    if "published" in old:
        raise ProblemFileError("--into", f"{str(into)!r} has a published layout already")
    _save(into, {**old, "published": {"offset": formula, "bytes": size_bytes, "source": "imported"}})


def _thread_values(
    evaluate: Callable[[tuple[int, ...], int], npt.NDArray[np.int64]],
    tile: str,
    element: str,
    op: str,
    width_bytes: int | None,
    order: str | None,
    target: str,
    name: str,
    into: Path | None,
    output: Path | None,
) -> int:
    from layoutopt.accesses.thread_values import access_of
    from layoutopt.hardware.devices import device

    if into is not None and output is not None:
        raise click.UsageError("--into adds to a file and -o writes a new one; use one of them")
    shape, element_bytes = _tile(tile, element)
    lanes = device(target).lanes
    table = evaluate(shape, lanes)
    dims = _order(order, len(shape))
    shape = tuple(shape[d] for d in dims)
    access = access_of(table[..., dims], shape, element_bytes, name, op, width_bytes, lanes=lanes)
    problem = {
        "target": target,
        "tile": {"shape": list(shape), "element": element},
        "threads": len(table),
        "accesses": [access],
    }
    if into is None:
        _finish(output, problem, "From a thread-value layout.")
        return 0
    with updating(into):
        _add(into, access, (shape, element), len(table))
    return 0


def _check_op(op: str) -> None:
    """That it is one that a thread-value layout may have."""
    if op not in ("store", "load", "cp.async"):
        raise click.BadParameter(f"expected store, load or cp.async, got {op!r}", param_hint="--op")


def _tile(tile: str, element: str) -> tuple[tuple[int, ...], int]:
    """The extents, and the bytes of an element, of a tile that a problem file may have."""
    from layoutopt.files.checks import MAX_ELEMENTS
    from layoutopt.problems.types import ELEMENT_BYTES

    shape = extents(tile)
    assert shape is not None
    if math.prod(shape) > MAX_ELEMENTS:
        raise ProblemFileError("--tile", f"at most {MAX_ELEMENTS} elements")
    if element not in ELEMENT_BYTES:
        raise ProblemFileError("--element", f"unknown type {element!r}; known: {', '.join(ELEMENT_BYTES)}")
    return shape, ELEMENT_BYTES[element]


def _same_tile(into: Path, tile: tuple[tuple[int, ...], str]) -> tuple[dict[str, Any], Problem]:
    """A problem file that has this tile, as data and as a problem."""
    from layoutopt.files.file import MAX_FILE_BYTES, parsed, tile_from_data
    from layoutopt.ground.json_data import named_by, read

    shape, element = tile
    with named_by("--into"):
        old = parsed(read(into, MAX_FILE_BYTES))
        known = tile_from_data(old)
    if (list(known.tile.shape), known.tile.element) != (list(shape), element):
        raise ProblemFileError(
            "--into", f"{str(into)!r} has another tile than {'x'.join(map(str, shape))} {element}"
        )
    return old, known


def _add(into: Path, access: dict[str, Any], tile: tuple[tuple[int, ...], str], threads: int) -> None:
    """Add an access of so many threads to a problem file that has this tile."""
    old, known = _same_tile(into, tile)
    if known.threads < threads:
        raise ProblemFileError("--into", f"{str(into)!r} has {known.threads} threads, the layout {threads}")
    if known.threads > threads:
        access["where"] = f"tid < {threads}"
    _save(into, {**old, "accesses": [*old["accesses"], access]})


@command.command("trace", cls=FileCommand)
@click.argument("records", required=False, type=InputPath())
@click.option("--header", is_flag=True, help="Print the CUDA header that records, and nothing else.")
@click.option("--tile", metavar="RxC", help="Extents of the tile.")
@click.option("--element", metavar="T", help="Type of an element, such as f32.")
@click.option("--threads", type=click.IntRange(1, 1024), metavar="N", help="Threads of the block.")
@click.option("--offset", metavar="EXPR", help="The layout in use: element offset over x0, x1, ...")
@click.option("--table", type=InputPath(), metavar="FILE",
              help="The layout in use: byte offsets as .npy, in the tile's shape.")  # fmt: skip
@click.option("-o", "--output", type=OutputPath(or_print=True), metavar="FILE", help="Write a new file.")
def trace(
    records: Path | None,
    header: bool,
    tile: str | None,
    element: str | None,
    threads: int | None,
    offset: str | None,
    table: Path | None,
    output: Path | None,
) -> int:
    """Shared addresses that a running kernel issued, recorded with the header that --header prints.

    \b
    Example:
      layoutopt import trace --header > layoutopt_record.cuh
      layoutopt import trace trace.jsonl --tile 32x32 --element f32 --threads 256 \\
        --offset "x0*33 + x1" -o tile.json
    """
    if header:
        from importlib.resources import files

        click.echo(files("layoutopt.imports").joinpath("layoutopt_record.cuh").read_text("utf-8"), nl=False)
        return 0
    missing = [n for n, v in (("--tile", tile), ("--element", element), ("--threads", threads)) if v is None]
    if records is None or missing:
        raise click.UsageError("a trace needs " + ("RECORDS" if records is None else missing[0]))
    if offset is not None and table is not None:
        raise click.UsageError("--offset and --table both give the layout in use; use one")
    if offset is None and table is None:
        raise click.UsageError("the layout in use is needed: give --offset or --table")
    assert element is not None
    assert threads is not None
    from layoutopt.ground.json_data import read
    from layoutopt.imports.trace import accesses

    assert tile is not None
    shape, element_bytes = _tile(tile, element)
    lines = read(records, MAX_TEXT_BYTES).splitlines()
    used = _layout_in_use(shape, element_bytes, offset, table)
    found = accesses(lines, used, element_bytes, threads)
    problem: dict[str, Any] = {
        "tile": {"shape": list(shape), "element": element},
        "threads": threads,
        "accesses": found,
    }
    if offset is not None:
        size = int(used.max()) + element_bytes
        problem["published"] = {
            "offset": offset,
            "bytes": size,
            "source": "in use when the trace was recorded",
        }
    _finish(output, problem, f"From the addresses recorded in {writable(records.name)}.")
    return 0


def _layout_in_use(
    shape: tuple[int, ...], element_bytes: int, offset: str | None, table: Path | None
) -> npt.NDArray[np.int64]:
    import numpy as np

    from layoutopt.expressions.grammar import evaluate, parse

    if table is not None:
        from layoutopt.files.array_file import read_offsets

        used = read_offsets(table, shape, "--table")
    else:
        assert offset is not None
        grids = np.indices(shape, dtype=np.int64, sparse=True)
        env = {f"x{d}": grid for d, grid in enumerate(grids)}
        used = np.broadcast_to(evaluate(parse(offset, frozenset(env)), env), shape) * element_bytes
    if used.min() < 0 or len(np.unique(used)) != used.size:
        raise ProblemFileError(
            "--offset" if table is None else "--table", "the layout puts two elements in one place"
        )
    return used


def _order(text: str | None, rank: int) -> list[int]:
    if text is None:
        return list(range(rank))
    parts = text.split(",")
    dims = [int(part) for part in parts if part.strip().isdecimal() and len(part) < 9]
    if sorted(dims) != list(range(rank)) or len(parts) != rank:
        raise click.BadParameter(
            f"expected each of 0..{rank - 1} once, got {shown(text)!r}", param_hint="--order"
        )
    return dims


def _finish(output: Path | None, problem: dict[str, Any], notes: str) -> None:
    name = writable(output.stem) if output is not None else "imported"
    data = {"schema": "layoutopt.problem/1", "name": name, "notes": notes, "target": "sm_90", **problem}
    if output is not None:
        check_new(output)
    _save(output, data)


def _save(path: Path | None, data: dict[str, Any]) -> None:
    text = _checked(data)
    if path is None:
        say_file(text)
    else:
        write_all({path: text.encode()})
        note(f"wrote {path}")


def _checked(data: dict[str, Any]) -> str:
    """The text of a problem file, once its accesses can be evaluated."""
    from layoutopt.accesses.trace import trace as lanes_of
    from layoutopt.files.file import tile_from_data
    from layoutopt.hardware.devices import device
    from layoutopt.problems.text import problem_text

    problem = tile_from_data(data)
    lanes_of(problem, device(problem.target))
    return problem_text(data)
