"""Kernels on the command line: the options of a launch, and `check` of one."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from layoutopt.cli.files import TextOrFile
from layoutopt.cli.options import Extents, added, pairs
from layoutopt.cli.output import say, say_json
from layoutopt.errors import LayoutoptError, ProblemFileError
from layoutopt.ground.escape import shown

if TYPE_CHECKING:
    from layoutopt.ground.budget import Budget
    from layoutopt.hardware.devices import Device
    from layoutopt.kernels.machine.counts import Evaluation
    from layoutopt.kernels.machine.launch import Launch
    from layoutopt.kernels.program import Program
    from layoutopt.kernels.question.arrays import UsedArray
    from layoutopt.problems.types import Problem
    from layoutopt.study.check import Audit

SUFFIXES = (".cubin", ".sass", ".cu", ".ptx", ".fatbin", ".exe", ".so", ".o")
DEFAULT_MOST_STEPS = 250_000
READING_S = 1.0  # beyond the time limit: what any kernel may take to be read and evaluated


def is_kernel(path: Path) -> bool:
    """Whether a file is a kernel, not a problem: by its suffix, or because it is an executable.

    A pipe gives its bytes once, to who reads all of it.
    """
    if path.suffix.lower() in SUFFIXES:
        return True
    try:
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class LaunchOptions:
    """What the command line says of a launch; the options of `launch_options` by name."""

    entry: str | None
    block: tuple[int, int, int] | None
    grid: tuple[int, int, int]
    arg: dict[str, int | float | str | bytes]
    shared: int
    data: dict[str, str]
    assume: dict[str, int | float | str | bytes]
    max_steps: int
    target: str | None
    include: tuple[str, ...] = ()
    define: tuple[str, ...] = ()
    nvcc: tuple[str, ...] = ()

    @property
    def compiler(self) -> tuple[str, ...]:
        """What nvcc is told."""
        found = [f"-I{os.path.realpath(folder)}" for folder in self.include]
        return (*found, *(f"-D{name}" for name in self.define), *self.nvcc)


def given_option() -> str | None:
    """An option of a launch that was given to the command that runs, if one was."""
    running = click.get_current_context()
    for param in running.command.params:
        default = running.get_parameter_source(param.name or "") is ParameterSource.DEFAULT
        if param.name in LaunchOptions.__dataclass_fields__ and not default:
            return param.opts[0]
    return None


def _pairs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    return pairs(ctx, param, given, "NAME_OR_POSITION=VALUE")


def _numbers(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    return {name: _number(text, ctx, param) for name, text in _pairs(ctx, param, given).items()}


def _kept_where(_: click.Context, __: click.Parameter, folder: str | None) -> None:
    from layoutopt.kernels.read.compiled import VARIABLE

    if folder is not None:
        os.environ[VARIABLE] = os.path.realpath(folder) if folder else ""


def _number(text: str, ctx: click.Context, param: click.Parameter) -> int | float | str | bytes:
    words: dict[str, int | str] = {"pointer": "pointer", "null": 0, "true": 1, "false": 0}
    if text in words:
        return words[text]
    for read in (lambda: int(text, 0) if len(text) < 25 else int(""), lambda: float(text)):
        with contextlib.suppress(ValueError):
            return read()
    with contextlib.suppress(ValueError):
        if text.startswith("@"):
            return _bytes(text[1:], ctx, param)
        from layoutopt.kernels.machine.launch import packed

        number, colon, kind = text.rpartition(":")
        if data := packed(float(number) if kind.startswith("f") else int(number, 0), colon + kind, 0):
            return data
    raise click.BadParameter(
        f"expected a number, with :i64 or another type, pointer, null or @FILE, got {shown(text)!r}",
        ctx,
        param,
    )


_MOST_BYTES = 1 << 15  # of all parameters of a kernel


def _bytes(name: str, ctx: click.Context, param: click.Parameter) -> bytes:
    """The contents of a file: a parameter as it lies in memory."""
    from layoutopt.ground import json_data

    try:
        return json_data.read(Path(name), _MOST_BYTES)
    except LayoutoptError as error:
        raise click.BadParameter(str(error), ctx, param) from None


_BLOCKS = Extents(10**10 - 1, three=True)  # what a launch may have is checked with it
launch_options = added(
    click.option("--entry", metavar="NAME", help="The kernel, where the file has several."),
    click.option("--block", type=_BLOCKS, metavar="X,Y,Z", help="Threads of a block."),
    click.option("--grid", type=_BLOCKS, default="1", metavar="X,Y,Z",
                 help="Blocks  [default: 1]"),
    click.option("--arg", multiple=True, callback=_numbers, metavar="P=VALUE",
                 help="A parameter of the kernel, by position from 0 or by name: a number, pointer, null or "
                      "@FILE with its bytes; P+BYTE is a member of a structure, VALUE:i64 one of that type."),
    click.option("--shared", type=click.IntRange(0, 1 << 18), default=0, metavar="BYTES",
                 help="Dynamic shared memory."),
    click.option("--data", type=TextOrFile(), multiple=True, callback=_pairs, metavar="P=FILE.npy",
                 help="What a pointer points to: an array of a file, or zeros, iota or random:SEED."),
    click.option("--assume", multiple=True, callback=_numbers, metavar="P=VALUE",
                 help="As --arg, for a value that is only assumed; the verdict names it."),
    click.option("--max-steps", type=click.IntRange(1, 10**9), default=DEFAULT_MOST_STEPS, show_default=True,
                 metavar="N", help="Steps that blocks evaluated together may need."),
    click.option("--target", "--arch", metavar="T",
                 help="The GPU to compile or assemble for  [default: that of the PTX, or sm_90]"),
    click.option("-I", "--include", multiple=True, metavar="DIR", help="A folder of headers of a source."),
    click.option("-D", "--define", multiple=True, metavar="NAME[=VALUE]", help="A macro of a source."),
    click.option("--nvcc", multiple=True, metavar="OPTION",
                 help="Another option of nvcc for a source, such as --nvcc=-std=c++20."),
    click.option("--cache", metavar="DIR", expose_value=False, callback=_kept_where, is_eager=True,
                 help="Where compiled sources are kept; '' keeps none  [default: the user's cache]"),
)  # fmt: skip
"""Adds the options of a launch; `LaunchOptions(**...)` takes their values."""


def launch_of(program: Program, options: LaunchOptions) -> tuple[Launch, Device]:
    """The launch that the options say, and the GPU.

    Raises:
        LayoutoptError: there can be no such launch.
    """
    from layoutopt.hardware.devices import device
    from layoutopt.kernels.machine.launch import Launch, buffer

    if options.block is None:
        raise ProblemFileError("--block", "a kernel needs its block: --block X,Y,Z")
    launch = Launch(
        block=options.block,
        grid=options.grid,
        arguments={**options.assume, **options.arg},
        shared_bytes=options.shared,
        buffers={name: buffer(program, name, text) for name, text in options.data.items()},
    )
    return launch, device(program.target.rstrip("af"))


def evaluated(path: Path, options: LaunchOptions, seconds: float) -> Evaluation:
    """The launch that the options say of the kernel that they choose.

    Raises:
        LayoutoptError: the file cannot be read, or there can be no such launch.
        OutOfTime: it takes `READING_S` longer than so many seconds; --max-steps bounds it in any case.
    """
    from layoutopt.ground.budget import deadline
    from layoutopt.kernels.machine.evaluate import evaluate
    from layoutopt.kernels.read.files import chosen, kernels

    with deadline(seconds + READING_S):
        program = chosen(kernels(path, options.target, options.compiler), options.entry).read()
        launch, gpu = launch_of(program, options)
        return evaluate(program, launch, gpu, most_steps=options.max_steps)


def _told(value: int | float | str | bytes) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def check_kernels(
    paths: Sequence[Path], options: LaunchOptions, *, as_json: bool, no_fix: bool, time_limit: float
) -> int:
    """Print what a launch of each kernel does to shared memory; 1 where there are conflicts."""
    from layoutopt.ground.budget import Budget
    from layoutopt.kernels.question.summary import summary

    code = 0
    for number, path in enumerate(paths):
        evaluation = evaluated(path, options, time_limit)
        report = summary(evaluation, options.entry)
        budget = Budget(time_limit)
        fixes = {} if no_fix else _fixes(evaluation, budget)
        wider = {} if no_fix else _wider(evaluation, budget)
        if as_json:
            # JSON knows neither infinity nor what is no number.
            given = options.assume.items()
            assumed = {
                n: v if isinstance(v, int) or (isinstance(v, float) and math.isfinite(v)) else _told(v)
                for n, v in given
            }
            data = report.to_json() | {"assumed": assumed}
            for array in data["arrays"]:
                array["fix"] = fixes.get(array["name"])
                array["instructions"] = wider.get(array["name"])
            say_json(data)
        else:
            from layoutopt.report.kernel_text import kernel_report

            lines = [
                f"  assumed: parameter {name} is {_told(value)}" for name, value in options.assume.items()
            ]
            lines += [f"  {name}: {fix['message']}" for name, fix in fixes.items()]
            lines += [f"  {name}: {text}" for name, text in wider.items()]
            say(("\n" if number else "") + kernel_report(report, lines))
        code = max(code, int(report.totals["bank_conflicts"] > 0))
    return code


def _problem_of(evaluation: Evaluation, used: UsedArray) -> Problem:
    """The accesses of an array as a problem.

    Raises:
        ProblemFileError: the array cannot be moved, or nothing is known of it.
    """
    from layoutopt.files.file import tile_from_data
    from layoutopt.kernels.question.arrays import moved_by_itself
    from layoutopt.kernels.question.problem_data import array_problem

    if (why := moved_by_itself(evaluation, used)) is not None:
        raise ProblemFileError("", why)
    return tile_from_data(array_problem(evaluation, used))


def _wider(evaluation: Evaluation, budget: Budget) -> dict[str, str]:
    """What each array takes less where the scalar accesses of a loop become vectors or matrices; by name."""
    from layoutopt.ground.budget import spending
    from layoutopt.kernels.question.arrays import used_arrays
    from layoutopt.study.hints import other_instructions

    found = {}
    for used in budget.while_left(used_arrays(evaluation)):
        with contextlib.suppress(ProblemFileError), spending(budget):
            if (text := other_instructions(_problem_of(evaluation, used))) is not None:
                found[used.array.name] = text
    return found


def _fixes(evaluation: Evaluation, budget: Budget) -> dict[str, dict[str, Any]]:
    """What to change of each array that has conflicts, found over all of its accesses; by name."""
    from layoutopt.ground.budget import spending
    from layoutopt.kernels.question.arrays import used_arrays
    from layoutopt.study.check import check

    tallies = evaluation.tallies
    wanted = [
        used
        for used in used_arrays(evaluation)
        if any(tallies[k].wavefronts > tallies[k].ideal for k in used.steps)
    ]
    found: dict[str, dict[str, Any]] = {}
    for number, used in enumerate(wanted):
        part = budget.part(1 / (len(wanted) - number))
        try:
            problem = _problem_of(evaluation, used)
            with spending(part):
                found[used.array.name] = _advice(check(problem, mend=True))
        except ProblemFileError as error:
            found[used.array.name] = {"message": f"no fix is sought: {error}"}
    return found


def _advice(audit: Audit) -> dict[str, Any]:
    """The fix of an array, or why there is none."""
    said = {finding.kind: finding for finding in audit.findings}
    if (fix := said.get("fix")) is not None:
        return {"message": fix.message, **fix.details}
    if (keep := said.get("keep")) is not None:
        return {"message": f"{keep.message}; layoutopt patch tries what has the fewest conflicts"}
    if not audit.excess:
        return {"message": "no fix is sought: its first block has no conflicts"}
    return {"message": "no layout with fewer conflicts was found"}
