"""One command, several problems: an answer each in the order given, the exit code the worst.

A problem that is wrong gives its line on stderr and stops no other. One file that holds one problem is
answered as if there were no others: nothing is added to what it prints.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from layoutopt.cli.options import ProblemPath, problem_device
from layoutopt.cli.output import FAILURES, USAGE_ERROR, failure, note, one_line, say
from layoutopt.ground.escape import writable

if TYPE_CHECKING:
    from layoutopt.files.inputs import Input
    from layoutopt.files.templates import Value
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.types import Block, Problem

Command = TypeVar("Command", bound=Callable[..., object])


def problems_argument(command: Command) -> Command:
    """Add the problems, as `problems`, and `--over`."""
    return click.argument("problems", type=ProblemPath(allow_dash=True), nargs=-1, required=True)(
        over_option(command)
    )


def over_option(command: Command) -> Command:
    """Add `--over`."""
    return click.option(
        "--over",
        metavar="NAME=V1,V2,...",
        multiple=True,
        callback=_parameters,
        help="Values of a parameter of the problems, instead of those in the file; once for each.",
    )(command)


def _parameters(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> dict[str, tuple[Value, ...]]:
    from layoutopt.files.templates import value_of

    found: dict[str, tuple[Value, ...]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise click.BadParameter(f"expected NAME=V1,V2,..., got {text!r}", ctx, param)
        if name in found:
            raise click.BadParameter(f"{name} is given twice", ctx, param)
        found[name] = tuple(value_of(value.strip()) for value in values.split(","))
    return found


def answer_each(
    paths: Sequence[Path],
    over: Mapping[str, Sequence[Value]],
    answer: Callable[[Problem | Block, Device], int],
    *,
    as_json: bool,
    device_file: Path | None = None,
    one_only: Mapping[str, object] | None = None,
    stopped: threading.Event | None = None,
) -> int:
    """Answer every problem; the exit code.

    Args:
        paths: what `layoutopt.files.inputs.inputs` takes.
        over: values of parameters.
        answer: prints the answer to a problem for its device; its exit code.
        as_json: answers are JSON lines, so that the summary goes to stderr.
        device_file: devices beside the package's.
        one_only: options whose values make no sense for several problems, by name.
        stopped: set when the user asked for an end while an answer was sought; no other is sought then.

    Raises:
        click.UsageError: one of `one_only` has a value, and there are several problems.
        LayoutoptError: there is one problem, and it is wrong.
    """
    from layoutopt.files.inputs import inputs

    found = inputs(paths, over, sys.stdin.buffer)
    needless = [option for option, value in (one_only or {}).items() if value]
    if needless:
        begun = list(itertools.islice(found, 2))
        if len(begun) > 1:
            raise click.UsageError(f"{needless[0]}: one problem is expected, and there are several")
        found = iter(begun)
    codes: Counter[int] = Counter()
    for item in found:
        if codes and not as_json:
            say("\n")
        alone = [item.label] == [writable(str(path)) for path in paths]
        codes[_code(item, answer, device_file, alone)] += 1
        if stopped is not None and stopped.is_set():
            break
    if codes.total() > 1:
        line = _summary(codes)
        if as_json:
            note(line)
        else:
            say(f"\n{line}\n")
    return max(codes, default=0)


def _code(
    item: Input,
    answer: Callable[[Problem | Block, Device], int],
    device_file: Path | None,
    alone: bool,
) -> int:
    """The exit code of one problem, whose failure ends the command only where it is alone."""
    from layoutopt.files.file import from_data

    try:
        if item.error is not None:
            raise item.error
        problem = from_data(item.data)
        return answer(problem, problem_device(problem, device_file))
    except (*FAILURES, click.UsageError) as error:
        if alone:
            raise
        if isinstance(error, click.UsageError):
            message, code = error.format_message(), USAGE_ERROR
        else:
            message, code = failure(error)
        note(f"error: {one_line(f'{item.label}: {message}')}")
        return code


_MEANINGS = {0: "without conflicts", 1: "with conflicts or infeasible", 2: "wrong", 3: "out of time"}


def _summary(codes: Counter[int]) -> str:
    parts = [f"{codes[code]:,} {meaning}" for code, meaning in _MEANINGS.items() if codes[code]]
    return f"{codes.total():,} problems: {', '.join(parts)}"
