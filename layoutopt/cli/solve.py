"""`layoutopt solve`."""

from __future__ import annotations

import json
import math
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from layoutopt.cli.files import OutputPath, write_all
from layoutopt.cli.options import (
    form_options,
    minimise_option,
    store_option,
    time_limit_option,
    workers_option,
)
from layoutopt.cli.output import note, searching, stopped, tell
from layoutopt.cli.several import problems_command, typed
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import METHODS, Arrangement, Method, Result, Status
from layoutopt.problems.objective import FIRSTS
from layoutopt.problems.types import FAMILIES, Block, Problem, constrained

if TYPE_CHECKING:
    from layoutopt.sweeps.store import Store

P = TypeVar("P", bound=Problem | Block)

CODES = {Status.OPTIMAL: 0, Status.FEASIBLE: 0, Status.INFEASIBLE: 1, Status.UNKNOWN: 3}
_HINT_SECONDS = 2.0  # for what would leave fewer conflicts
# Options that are constraints of the layout, and which of two is the tighter one.
_TIGHTER: dict[str, Any] = {
    "minimise": lambda _, given: given,
    "max_bytes": min,
    "alignment_bytes": min,
    "pitch_multiple_bytes": math.lcm,
}


@problems_command("solve", one_only=("table", "code", "certificate"))
@form_options("Print the result as one JSON object.")
@click.option(
    "--table", type=OutputPath(), help="Write int64 byte offsets, in the shape of the tile, as .npy."
)
@click.option(
    "--code",
    type=OutputPath(),
    help="Write the code of this answer, too: a CUDA (for AMD: HIP) header. `layoutopt emit` prints any "
    "language, also of a result or a formula.",
)
@click.option(
    "--certificate",
    type=OutputPath(),
    help="Write what supports the answer to this file, for scripts/checkers/check_certificate.py.",
)
@time_limit_option("Stop after S seconds with the best so far.")
@workers_option
@click.option(
    "--families", metavar="LIST", help=f"Families to search, comma-separated, out of {','.join(FAMILIES)}."
)
@minimise_option(
    FIRSTS, "What comes first; the others follow in this order  [default: as in the file, else excess]"
)
@click.option("--max-bytes", type=click.IntRange(1), metavar="N", help="Shared memory available.")
@click.option(
    "--pitch-multiple", "pitch_multiple_bytes", type=click.IntRange(1), metavar="N",
    help="Make all strides but the innermost multiples of N bytes.",
)  # fmt: skip
@click.option(
    "--alignment", "alignment_bytes", type=click.IntRange(1), metavar="N",
    help="Alignment of the base, in bytes.",
)  # fmt: skip
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="auto",
    show_default=True,
    help="model: one CP-SAT model decides pads, order and XOR masks; auto: counting and a tree first.",
)
@click.option("--conflict-free", is_flag=True, help="Accept only layouts without conflicts.")
@store_option
def command(
    problem: Problem | Block,
    gpu: Device,
    *,
    families: str | None,
    time_limit: float,
    workers: int,
    conflict_free: bool,
    method: Method,
    store: Store | None,
    certificate: Path | None,
    **asked: Any,
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
    from layoutopt.study.solve import solve, with_hints

    if store is not None and certificate is not None:
        raise click.UsageError("--certificate: an answer out of a store has none")
    tighter = {field: asked.pop(field) for field in _TIGHTER}
    problem = _constrained(problem if families is None else _with_families(problem, families), **tighter)
    if certificate is not None:
        from layoutopt.search.certify import check_certifiable

        check_certifiable(problem)
    start = time.monotonic()
    how: dict[str, Any] = {"time_limit": time_limit, "conflict_free": conflict_free, "method": method}
    known = None if store is None else store.answer(problem, gpu, **how)
    how |= {"target": gpu, "workers": workers, "known": known, "time_limit": None}
    found: Result | Arrangement = searching(partial(solve, problem, **how), time_limit)
    seconds = time.monotonic() - start
    left = min(_HINT_SECONDS, time_limit - seconds)
    if found.excess and left > 0 and not stopped():
        found = searching(partial(with_hints, problem, found, gpu), left)
    elif found.excess and not stopped():
        note("the search took all of --time-limit; layoutopt explain says what would leave fewer conflicts")
    _write(problem, found, gpu, seconds, certificate=certificate, **asked)
    return 1 if found.excess else CODES[found.status]


def _write(
    problem: Problem | Block,
    found: Result | Arrangement,
    gpu: Device,
    seconds: float,
    *,
    table: Path | None,
    code: Path | None,
    certificate: Path | None,
) -> None:
    """Write the files asked for, and print the answer."""
    outputs = {}
    if found.has_layout and (table is not None or code is not None):
        from layoutopt.codegen.block import code_of
        from layoutopt.files.array_file import offsets_file
        from layoutopt.study.block import placed

        tiles = placed(problem, gpu, found)
        if table is not None:
            tables = {part.tile: part.table for part in tiles.parts}
            outputs[table] = offsets_file(tables[""] if tiles.alone else tables)
        if code is not None:
            outputs[code] = code_of(gpu.language, tiles).encode()
    if certificate is not None:
        from layoutopt.search.certify import certificate as supports

        outputs[certificate] = json.dumps(supports(problem, gpu, found)).encode() + b"\n"
    write_all(outputs)
    from layoutopt.report.text import report

    tell(found.to_json, text=lambda: report(problem, found, seconds) + _next(found, gpu, code))


def _next(found: Result | Arrangement, gpu: Device, code: Path | None) -> str:
    """What to type next, about a problem that is answered by itself."""
    asked, lines = typed(), list[str]()
    if asked is None:
        return ""
    if found.excess or not found.has_layout:
        lines.append(f"layoutopt explain {asked}  (which accesses clash, and what would help)")
    if found.has_layout and code is None:
        suffix = LANGUAGES[gpu.language].suffix
        lines.append(f"--code tile{suffix} writes the code; layoutopt emit has {len(LANGUAGES)} languages")
    if found.has_layout:
        lines.append(f"layoutopt compare {asked}  (the best pad and the best swizzle beside it)")
    return "\n  next: " + "\n        ".join(lines) + "\n"


def _with_families(problem: P, families: str) -> P:
    names = tuple(name.strip() for name in families.split(","))
    for name in names:
        if name not in FAMILIES:
            raise click.UsageError(f"--families: unknown family {name!r}; known: {', '.join(FAMILIES)}")
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
    return constrained(problem, families=names)


def _constrained(problem: P, **given: Any) -> P:
    """`problem` under the constraints that are given; a tighter one in the file stays."""
    from layoutopt.files.checks import check

    changed = {field: value for field, value in given.items() if value is not None}
    for field, value in changed.items():
        own = getattr(problem.layout, field)
        if own is not None:
            changed[field] = _TIGHTER[field](own, value)
    problem = constrained(problem, **changed)
    check(problem)
    return problem
