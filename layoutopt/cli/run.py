"""`layoutopt run`."""

from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from layoutopt.cli.answer import answer_of, answer_options
from layoutopt.cli.files import FileCommand
from layoutopt.cli.options import ProblemPath, form_options
from layoutopt.cli.output import form, note, say, say_json
from layoutopt.ground.json_data import Versioned
from layoutopt.hardware import machine
from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS, Device, device
from layoutopt.hardware.machine import Gpu, Run
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Problem


class Ran(Versioned, frozen=True):
    """What --json prints: the GPU and what each access did (`layoutopt.hardware.machine`)."""

    problem: str
    gpu: dict[str, str]
    distinct: bool
    accesses: list[dict[str, Any]]
    agrees: bool
    schema_: Literal["layoutopt.run/1"] = "layoutopt.run/1"


class RanBlock(Versioned, frozen=True):
    """The same of several tiles, each with its name as `tile`."""

    problem: str
    tiles: list[dict[str, Any]]
    agrees: bool
    schema_: Literal["layoutopt.block_run/1"] = "layoutopt.block_run/1"


@click.command("run", cls=FileCommand)
@click.argument("file", type=ProblemPath())
@answer_options
@form_options()
def command(file: Path, **how: Any) -> int:
    """Run a layout's code on the GPU: values, profiler counters and cycles, beside what was predicted.

    It checks one layout, access by access; `compare --run` times whole passes of the layouts to choose from.

    FILE is a problem, which is solved first: a file, or a name in the catalogue; or it is a result with
    its --problem. Each of several tiles is run by itself. Needs nvcc and an NVIDIA GPU; counters need ncu.
    Exit code 1 where anything differs from its prediction.

    \b
    Example:
      layoutopt run problems/basics/gemm_a_128x64_f16.json --offset published
    """
    tiles = answer_of(file, **how, before_search=machine.gpu_present)
    card = machine.gpu_present()
    found = [_run(part.problem, tiles.device, part.answer, card) for part in tiles.parts]
    agrees = all(one.agrees for one in found)
    if form() == "json" and tiles.alone:
        say_json(found[0].to_json())
    elif form() == "json":
        each = [{"tile": part.tile, **one.to_json()} for part, one in zip(tiles.parts, found, strict=True)]
        say_json(RanBlock(tiles.name, each, agrees).to_json())
    return 0 if agrees else 1


def _run(problem: Problem, target: Device, answer: Result | str, card: Gpu) -> Ran:
    """Run the layout of one tile and print the table unless JSON is wanted."""
    from layoutopt.codegen.languages import run_plan
    from layoutopt.codegen.selftest import program

    here = device(card.target)
    if target.name != here.name:
        note(f"the problem is for {target.name}; predictions are for this machine's {here.name}")
        target = here
        answer = answer if isinstance(answer, str) else str(answer.offset)
    planned = run_plan(problem, target, answer)
    expected = [(a.access.name, a.access.op, a.counters(target)) for a in planned.accesses]
    distinct, runs = machine.run(program(planned), expected, card)
    good = distinct and all(r.agrees for r in runs)
    name = planned.problem.name
    if form() == "text":
        say(_table(name, card, distinct, runs, good))
    return Ran(name, msgspec.to_builtins(card), distinct, msgspec.to_builtins(runs), good)


def _table(name: str, card: Gpu, distinct: bool, runs: list[Run], good: bool) -> str:
    from layoutopt.report.text import columns

    def pair(run: Run, name: str) -> str:
        if name not in run.predicted:
            return "not counted"
        seen = "not read" if run.measured is None else str(run.measured[name])
        return f"{run.predicted[name]} / {seen}"

    lines = [f"{name} on {card.name}, compute capability {card.compute_capability}", ""]
    if not distinct:
        lines += ["  elements overlap", ""]
    rows = [["access", "op", "values", "wavefronts", "bank conflicts", "cycles", ""]]
    for r in runs:
        values = "right" if r.values_right else "WRONG"
        cost = pair(r, WAVEFRONTS), pair(r, BANK_CONFLICTS), f"{r.cycles:.1f}"
        rows.append([r.name, r.op, values, *cost, "" if r.agrees else "<- differs"])
    lines += columns(rows, {*range(len(rows[0]))})
    counted = all(r.measured is not None for r in runs)
    verdict = "as predicted" if good else "NOT as predicted"
    lines += ["", f"  predicted / measured{'' if counted else ' (no profiler on this machine)'}: {verdict}"]
    return "\n".join(lines) + "\n"
