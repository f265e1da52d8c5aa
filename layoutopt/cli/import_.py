"""`layoutopt import`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.cli.files import (
    FileCommand,
    InputPath,
    OutputPath,
    TextOrFile,
    write_all,
    write_folder,
    write_new,
)
from layoutopt.cli.kernel import asked, launch_options
from layoutopt.cli.options import Commands, Extents, added, time_limit_option
from layoutopt.cli.output import note
from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import identifier, shown, writable
from layoutopt.ground.json_data import named_by, read
from layoutopt.hardware.devices import device

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Table = npt.NDArray[np.int64]

MAX_TEXT_BYTES = 64 << 20

_TILE = (
    click.option("--tile", type=Extents(), required=True, metavar="MxN", help="Extents of the tile."),
    click.option("--element", required=True, metavar="T", help="Type of an element, such as f16."),
)
layout_options = added(
    click.argument("layout", type=TextOrFile("@")),
    *_TILE,
    click.option("--op", type=click.Choice(["store", "load", "cp.async"]), default="store",
                 show_default=True, help="What moves the elements."),
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
)  # fmt: skip


@click.group("import", cls=Commands)
def command() -> None:
    """Turn what another tool prints, or what a kernel did, into a problem file."""


class Imported(Struct, frozen=True):
    """A layout of another tool and what is made of it; the values of `layout_options`."""

    layout: str
    tile: tuple[int, ...]
    element: str
    op: str
    width_bytes: int | None
    order: str | None
    target: str
    name: str
    shared: bool
    into: Path | None
    output: Path | None

    def __post_init__(self) -> None:
        if self.into is not None and self.output is not None:
            raise click.UsageError("--into adds to a file and -o writes a new one; use one of them")
        _element_bytes(self.tile, self.element)

    @property
    def text(self) -> str:
        """The layout's text: what was given, or what is in the file after an @."""
        given = self.layout
        return read(given[1:], MAX_TEXT_BYTES).decode("utf-8", "replace") if given.startswith("@") else given

    @property
    def element_bytes(self) -> int:
        """Size of an element."""
        return _element_bytes(self.tile, self.element)

    @property
    def lanes(self) -> int:
        """Lanes of a warp of the target."""
        return device(self.target).lanes

    def used_by(self, table: Table) -> int:
        """Make it the access of threads that hold these elements: printed, written, or into a problem.

        Args:
            table: coordinates of each thread's elements, of shape (threads, values, dimensions).
        """
        from layoutopt.accesses.ownership import widest_access

        dims = self._order()
        shape = [self.tile[d] for d in dims]
        how: Any = (self.name, self.op, self.width_bytes)
        access = widest_access(table[..., dims], shape, self.element_bytes, *how, lanes=self.lanes)
        if self.into is None:
            tile = {"shape": shape, "element": self.element}
            problem = {"target": self.target, "tile": tile, "threads": len(table), "accesses": [access]}
            return _write(self.output, problem, "From a thread-value layout.")
        old = self._problem(self.into, shape)
        threads = old["threads"]
        if threads < len(table):
            wrong = f"{str(self.into)!r} has {threads} threads, the layout {len(table)}"
            raise ProblemFileError("--into", wrong)
        if threads > len(table):
            access["where"] = f"tid < {len(table)}"
        return self._add({**old, "accesses": [*old["accesses"], access]})

    def lies_at(self, table: Table, formula: str | None) -> int:
        """Say where its elements lie: the offset printed, its table written, or into a problem as published.

        Args:
            table: element offsets, of the tile's shape.
            formula: the same over x0, x1, ...; None where there is none.
        """
        from layoutopt.files.array_file import offsets_file

        if self._order() != list(range(len(self.tile))):
            raise click.UsageError("--order is for accesses: a layout of shared memory says its own")
        if self.output is not None:
            write_all({self.output: offsets_file(table * self.element_bytes)}, new=True)
            note(f"wrote {self.output}")
            return 0
        if formula is None:
            wrong = "no formula over x0, x1, ... gives this layout; -o writes it as a table"
            raise ProblemFileError("", wrong)
        if self.into is None:
            click.echo(formula)
            return 0
        old = self._problem(self.into, list(self.tile))
        if "published" in old:
            raise ProblemFileError("--into", f"{str(self.into)!r} has a published layout already")
        size = (int(table.max()) + 1) * self.element_bytes
        return self._add({**old, "published": {"offset": formula, "bytes": size, "source": "imported"}})

    def _order(self) -> list[int]:
        """The layout's dimensions as the tile has them."""
        dims = [str(d) for d in range(len(self.tile))]
        given = dims if self.order is None else [part.strip() for part in self.order.split(",")]
        if sorted(given) != sorted(dims):
            wrong = f"expected each of 0..{len(dims) - 1} once, got {shown(str(self.order))!r}"
            raise click.BadParameter(wrong, param_hint="--order")
        return list(map(int, given))

    def _problem(self, into: Path, shape: list[int]) -> dict[str, Any]:
        """The data of the problem file to add to, which has the same tile."""
        from layoutopt.files.file import MAX_FILE_BYTES, parsed, tile_from_data

        with named_by("--into"):
            old: dict[str, Any] = parsed(read(into, MAX_FILE_BYTES))
            known = tile_from_data(old).tile
        if ([*known.shape], known.element) != (shape, self.element):
            own = f"{'x'.join(map(str, shape))} {self.element}"
            raise ProblemFileError("--into", f"{str(into)!r} has another tile than {own}")
        return old

    def _add(self, problem: dict[str, Any]) -> int:
        assert self.into is not None
        write_all({self.into: _checked(problem).encode()})
        note(f"wrote {self.into}")
        return 0


@command.command("cute", cls=FileCommand)
@layout_options
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
    from layoutopt.imports import cute, cute_tiled

    asked = Imported(**options)
    text, shape = asked.text, asked.tile
    if cute_tiled.is_mma(text) != (operand is not None):
        given = "is one: say" if operand is None else "is none: leave out"
        raise click.UsageError(f"--operand is for a TiledMMA, and the layout {given} --operand")
    if operand is not None:
        return asked.used_by(cute_tiled.multiplied(text, shape, operand))
    if cute_tiled.is_copy(text):
        table, op = cute_tiled.copied(text, shape, asked.op)
        return replace(asked, op=op).used_by(table)
    if asked.shared or cute.is_swizzled(text):
        return asked.lies_at(*cute.offsets(text, shape, asked.element_bytes))
    return asked.used_by(cute.thread_values(text, shape))


@command.command("triton", cls=FileCommand)
@layout_options
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

    asked = Imported(**options)
    text = asked.text
    if asked.shared or triton_shared.is_shared(text):
        return asked.lies_at(*triton_shared.offsets(text, asked.tile))
    return asked.used_by(triton.thread_values(text, asked.tile, asked.lanes))


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
    from layoutopt.imports.triton_ir import problems

    left_out: list[str] = []
    text = read(source, MAX_TEXT_BYTES).decode("utf-8", "replace")
    files = _files((data["name"], data) for data in problems(text, left_out.append))
    if not files:
        why = f"that is read: {left_out[0]}" if left_out else "that is stored or loaded"
        raise ProblemFileError("", f"{source.name} has no shared buffer {why}")
    write_folder(folder, files, new=True)
    for reason in left_out:
        note(f"left out: {reason}")
    return 0


def _files(problems: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, bytes]:
    """Problem files by their names, made of those of what they are about."""
    files: dict[str, bytes] = {}
    for name, data in problems:
        stem = re.sub(r"[^\w.-]+", "_", name)
        paths = (f"{stem}{k}.json" for k in ("", *(f"_{n}" for n in range(2, len(files) + 3))))
        files[next(path for path in paths if path not in files)] = _checked(data).encode()
    return files


@command.command("kernel", cls=FileCommand)
@click.argument("kernel", type=InputPath())
@launch_options
@click.option("--array", metavar="NAME", help="Only this array, as `check` names it.")
@click.option(
    "--shape", type=Extents(), metavar="MxN", help="Extents of the array, where the source does not say them."
)
@click.option("-o", "--output", type=OutputPath(folder=True), required=True, metavar="FOLDER",
              help="Write one file an array.")  # fmt: skip
@time_limit_option("Seconds to evaluate the kernel.")
def kernel(
    kernel: Path,
    array: str | None,
    shape: tuple[int, ...] | None,
    output: Path,
    time_limit: float,
    **launch: Any,
) -> int:
    """The arrays in shared memory of a compiled kernel, a problem file each.

    One launch is evaluated on the CPU; accesses are those of its first block. Of a file of launches, --entry
    chooses one, by its kernel or number.

    \b
    Example:
      layoutopt import kernel transpose.cu --block 32,8 --arg 2=1024 -o tiles
    """
    from layoutopt.kernels.launches import evaluated
    from layoutopt.kernels.question.arrays import used_arrays
    from layoutopt.kernels.question.problem_data import array_problem

    if shape is not None and array is None:
        raise ProblemFileError("--shape", "it is the shape of one array: name it with --array")
    evaluation = evaluated(asked(kernel, launch), time_limit)
    every = used_arrays(evaluation)
    found = [used for used in every if array in (None, used.array.name)]
    if not found:
        names = ", ".join(used.array.name for used in every) or "none"
        raise ProblemFileError("--array", f"the kernel touches no such array; there are: {names}")
    problems: list[tuple[str, dict[str, Any]]] = []
    left_out: dict[str, str] = {}
    for used in found:
        try:
            problems.append((identifier(used.array.name), array_problem(evaluation, used, shape)))
        except ProblemFileError as error:
            if len(found) == 1:
                raise
            left_out[used.array.name] = str(error)
    if not problems:
        raise ProblemFileError("", f"nothing is known of any array: {'; '.join(left_out.values())}")
    write_folder(output, _files(problems))
    for name, why in left_out.items():
        note(f"{name} is left out: {why}")
    for why in evaluation.doubts:
        note(f"not certain: {why}")
    return 0


def _print_header(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.resources import files

        click.echo(files("layoutopt.imports").joinpath("layoutopt_record.cuh").read_text("utf-8"), nl=False)
        ctx.exit()


@command.command("trace", cls=FileCommand)
@click.argument("records", type=InputPath())
@click.option("--header", is_flag=True, is_eager=True, expose_value=False, callback=_print_header,
              help="Print the CUDA header that records, and nothing else.")  # fmt: skip
@added(*_TILE)
@click.option(
    "--threads", required=True, type=click.IntRange(1, 1024), metavar="N", help="Threads of the block."
)
@click.option("--offset", metavar="EXPR", help="The layout in use: element offset over x0, x1, ...")
@click.option("--table", type=InputPath(), metavar="FILE",
              help="The layout in use: byte offsets as .npy, in the tile's shape.")  # fmt: skip
@click.option("-o", "--output", type=OutputPath(or_print=True), metavar="FILE", help="Write a new file.")
def trace(
    records: Path,
    tile: tuple[int, ...],
    element: str,
    threads: int,
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
    if offset is not None and table is not None:
        raise click.UsageError("--offset and --table both give the layout in use; use one")
    import numpy as np

    from layoutopt.expressions.grammar import coordinates, parse, tabulated
    from layoutopt.files.array_file import read_offsets
    from layoutopt.imports.trace import accesses

    element_bytes = _element_bytes(tile, element)
    if table is not None:
        used = read_offsets(table, tile, "--table")
    elif offset is not None:
        used = tabulated(parse(offset, frozenset(coordinates(tile))), tile) * element_bytes
    else:
        raise click.UsageError("the layout in use is needed: give --offset or --table")
    if used.min() < 0 or len(np.unique(used)) != used.size:
        given = "--offset" if table is None else "--table"
        raise ProblemFileError(given, "the layout puts two elements in one place")
    found = accesses(read(records, MAX_TEXT_BYTES).splitlines(), used, element_bytes, threads)
    problem: dict[str, Any] = {"tile": {"shape": list(tile), "element": element}, "threads": threads}
    problem["accesses"] = found
    if offset is not None:
        size = int(used.max()) + element_bytes
        source = "in use when the trace was recorded"
        problem["published"] = {"offset": offset, "bytes": size, "source": source}
    return _write(output, problem, f"From the addresses recorded in {writable(records.name)}.")


def _element_bytes(tile: tuple[int, ...], element: str) -> int:
    """Size of an element of a tile that a problem file may have."""
    from layoutopt.files.checks import MAX_ELEMENTS
    from layoutopt.problems.types import ELEMENT_BYTES

    if math.prod(tile) > MAX_ELEMENTS:
        raise ProblemFileError("--tile", f"at most {MAX_ELEMENTS} elements")
    if element not in ELEMENT_BYTES:
        raise ProblemFileError("--element", f"unknown type {element!r}; known: {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[element]


def _write(output: Path | None, problem: dict[str, Any], notes: str) -> int:
    """Print or write a new problem."""
    name = writable(output.stem) if output is not None else "imported"
    head = {"schema": "layoutopt.problem/1", "name": name, "notes": notes, "target": "sm_90"}
    write_new(output, _checked({**head, **problem}))
    return 0


def _checked(data: dict[str, Any]) -> str:
    """The text of a problem file, once its accesses can be evaluated."""
    from layoutopt.accesses.lower import with_loops
    from layoutopt.accesses.trace import trace as lanes_of
    from layoutopt.files.file import tile_from_data
    from layoutopt.problems.text import problem_text

    problem = tile_from_data(data)
    lanes_of(with_loops(problem), device(problem.target))
    return problem_text(data)
