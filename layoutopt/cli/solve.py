"""`layoutopt solve`."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from layoutopt.cli.files import FileCommand, OutputPath, write_all
from layoutopt.cli.interrupt import interruptibly
from layoutopt.cli.options import (
    device_file_option,
    opened_store,
    store_option,
    time_limit_option,
)
from layoutopt.cli.output import note, say, say_json
from layoutopt.cli.several import answer_each, problems_argument
from layoutopt.problems.answer import METHODS, Arrangement, Method, Result, Status
from layoutopt.problems.objective import FIRSTS, First
from layoutopt.problems.types import FAMILIES, Block, Problem

if TYPE_CHECKING:
    from layoutopt.files.templates import Value
    from layoutopt.hardware.devices import Device
    from layoutopt.sweeps.store import Store

P = TypeVar("P", bound=Problem | Block)

CODES = {Status.OPTIMAL: 0, Status.FEASIBLE: 0, Status.INFEASIBLE: 1, Status.UNKNOWN: 3}
_HINT_SECONDS = 2.0  # for what would leave fewer conflicts


@click.command("solve", cls=FileCommand)
@problems_argument
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option(
    "--table",
    type=OutputPath(),
    help="Write int64 byte offsets, in the shape of the tile, as .npy.",
)
@click.option("--code", type=OutputPath(), help="Write the CUDA (for AMD: HIP) header to this file.")
@click.option(
    "--certificate",
    type=OutputPath(),
    help="Write what supports the answer to this file, for scripts/checkers/check_certificate.py.",
)
@time_limit_option("Stop after S seconds with the best so far.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Solver threads.")
@click.option(
    "--families", metavar="LIST", help=f"Families to search, comma-separated, out of {','.join(FAMILIES)}."
)
@click.option(
    "--minimise",
    type=click.Choice(FIRSTS),
    help="What comes first; the others follow in this order  [default: as in the file, else excess]",
)
@click.option("--max-bytes", type=click.IntRange(1), metavar="N", help="Shared memory available.")
@click.option(
    "--pitch-multiple", type=click.IntRange(1), metavar="N", help="Every stride but the innermost, in bytes."
)
@click.option(
    "--alignment", type=click.IntRange(1), metavar="N", help="Alignment that the base has, in bytes."
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="auto",
    show_default=True,
    help="model: one CP-SAT model decides pads, order and XOR masks; auto: counting and a tree first.",
)
@click.option("--conflict-free", is_flag=True, help="Make any conflict infeasible.")
@store_option
@device_file_option
def command(
    problems: tuple[Path, ...],
    over: dict[str, tuple[Value, ...]],
    families: str | None,
    minimise: First | None,
    max_bytes: int | None,
    pitch_multiple: int | None,
    alignment: int | None,
    store: Path | None,
    device_file: Path | None,
    **how: Any,
) -> int:
    """Find the layout with the fewest wavefronts, then the fewest bytes, then the cheapest index.

    PROBLEMS are problem files, folders of them, - for standard input (one, or one a line), or names of
    the catalogue; each is answered for itself. Ctrl-C stops the search with the best layout so far, and
    nothing is searched after it. Of a file with several tiles, the table is an .npz archive with one array
    for each, and the code one header for all.

    \b
    Example:
      layoutopt solve problems/basics/transpose_32x32_f32.json --code tile.cuh
    """
    asked = Asked(store=opened_store(store), **how)
    if store is not None and asked.certificate is not None:
        raise click.UsageError("--certificate: an answer out of a store has none")
    allowed = _named_families(families) if families is not None else None

    def answer(problem: Problem | Block, gpu: Device) -> int:
        if allowed is not None:
            problem = _with_families(problem, allowed)
        constrained = _constrained(
            problem,
            minimise=minimise,
            max_bytes=max_bytes,
            pitch_multiple_bytes=pitch_multiple,
            alignment_bytes=alignment,
        )
        return asked.answer(constrained, gpu)

    return answer_each(
        problems,
        over,
        answer,
        as_json=asked.as_json,
        device_file=device_file,
        one_only={"--table": asked.table, "--code": asked.code, "--certificate": asked.certificate},
        stopped=asked.stopped,
    )


@dataclass
class Asked:
    """What is asked of every problem; see the options."""

    as_json: bool
    table: Path | None
    code: Path | None
    certificate: Path | None
    time_limit: float
    workers: int
    conflict_free: bool
    method: Method
    store: Store | None = None
    stopped: threading.Event = field(default_factory=threading.Event)

    def answer(self, problem: Problem | Block, gpu: Device) -> int:
        """Solve, write what is asked for, print the answer; the exit code."""
        from layoutopt.study.hints import with_faster, with_hints

        if self.certificate is not None:
            from layoutopt.search.certify import check_certifiable

            check_certifiable(problem)
        start = time.monotonic()
        found = self._known(problem, gpu) or solve_interruptibly(
            problem, gpu, self.time_limit, self.workers, self.conflict_free, self.method, self.stopped
        )
        seconds = time.monotonic() - start
        if not self.stopped.is_set():
            left = self.time_limit - seconds
            found = with_faster(problem, found, gpu, left)
            left = min(_HINT_SECONDS, left)
            if found.excess and left > 0:
                found = interruptibly(partial(with_hints, problem, found, gpu), left)
        self._write(problem, found, gpu, seconds)
        return 1 if found.excess else CODES[found.status]

    def _known(self, problem: Problem | Block, gpu: Device) -> Result | Arrangement | None:
        """The answer that the store has."""
        if self.store is None:
            return None
        from layoutopt.sweeps.store import known_answer

        return known_answer(
            self.store,
            problem,
            gpu,
            time_limit=self.time_limit,
            conflict_free=self.conflict_free,
            method=self.method,
        )

    def _write(
        self, problem: Problem | Block, found: Result | Arrangement, gpu: Device, seconds: float
    ) -> None:
        """Write the files asked for, and print the answer."""
        text, outputs = None, {}
        if found.has_layout and (self.code is not None or not self.as_json):
            from layoutopt.codegen.block import code_of
            from layoutopt.study.block import placed

            text = code_of(gpu.language, placed(problem, gpu, found))
        if found.has_layout and self.table is not None:
            outputs[self.table] = _offsets(problem, found)
        if text is not None and self.code is not None:
            outputs[self.code] = text.encode()
        if self.certificate is not None:
            from layoutopt.search.certify import certificate

            outputs[self.certificate] = json.dumps(certificate(problem, gpu, found)).encode() + b"\n"
        write_all(outputs)
        if self.as_json:
            say_json(found.to_json())
            return
        from layoutopt.report.text import report

        say(report(problem, found, seconds))
        if text is not None and self.code is None:
            click.echo("\n" + text, nl=False)


def _offsets(problem: Problem | Block, found: Result | Arrangement) -> bytes:
    """The file of the byte offsets: of one tile, or of each by its name."""
    from layoutopt.files.array_file import named_offsets_file, offsets_file
    from layoutopt.study.block import tables_of

    if isinstance(problem, Block):
        assert isinstance(found, Arrangement)
        return named_offsets_file(tables_of(problem, found))
    assert isinstance(found, Result)
    return offsets_file(found.table())


def _named_families(families: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in families.split(","))
    for name in names:
        if name not in FAMILIES:
            raise click.UsageError(f"--families: unknown family {name!r}; known: {', '.join(FAMILIES)}")
    return names


def _with_families(problem: P, names: tuple[str, ...]) -> P:
    allowed = problem.layout.families
    if allowed is not None and (outside := [n for n in names if n not in allowed]):
        raise click.UsageError(
            f"--families: the problem allows only {', '.join(allowed)}, not {', '.join(outside)}"
        )
    if isinstance(problem, Block):
        dictated = [tile.name for tile in problem.tiles if problem.problem(tile).is_dictated]
        if len(dictated) == len(problem.tiles):
            raise click.UsageError("--families: the hardware dictates the layout of every tile")
        if dictated:
            note(f"--families is not for {', '.join(dictated)}, whose layouts the hardware dictates")
    return msgspec.structs.replace(problem, layout=msgspec.structs.replace(problem.layout, families=names))


def _constrained(problem: P, **given: Any) -> P:
    """`problem` under the constraints that are given; a tighter one in the file stays."""
    from layoutopt.files.checks import check

    layout = problem.layout
    if given["max_bytes"] is not None and layout.max_bytes is not None:
        given["max_bytes"] = min(given["max_bytes"], layout.max_bytes)
    if given["pitch_multiple_bytes"] is not None and layout.pitch_multiple_bytes is not None:
        given["pitch_multiple_bytes"] = math.lcm(given["pitch_multiple_bytes"], layout.pitch_multiple_bytes)
    if given["alignment_bytes"] is not None and layout.alignment_bytes is not None:
        given["alignment_bytes"] = min(given["alignment_bytes"], layout.alignment_bytes)
    changed = {name: value for name, value in given.items() if value is not None}
    problem = msgspec.structs.replace(problem, layout=msgspec.structs.replace(layout, **changed))
    check(problem)
    return problem


def solve_interruptibly(
    problem: Problem | Block,
    gpu: Device,
    time_limit: float,
    workers: int,
    conflict_free: bool = False,
    method: Method = "auto",
    stopped: threading.Event | None = None,
) -> Result | Arrangement:
    """Solve, so that Ctrl-C gives the best answer so far and sets `stopped`."""
    from layoutopt.search.block import solve

    work = partial(solve, problem, target=gpu, workers=workers, conflict_free=conflict_free, method=method)
    return interruptibly(work, time_limit, stopped)
