"""One command, several problems: an answer each in the order given, the exit code the worst.

A problem that is wrong gives its line on stderr and stops no other. One file that holds one problem is
answered as if there were no others: nothing is added to what it prints.
"""

from __future__ import annotations

import functools
import itertools
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from layoutopt.cli.files import FileCommand
from layoutopt.cli.options import ProblemPath, device_file_option, pairs, problem_device
from layoutopt.cli.output import FAILURES, failure, fault, form, note, one_line, say, stopped
from layoutopt.ground.escape import writable

if TYPE_CHECKING:
    from layoutopt.files.inputs import Input
    from layoutopt.files.templates import Value
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.types import Block, Problem

    Answer = Callable[[Problem | Block, Device], int]

_TYPED: Final = f"{__name__}.typed"


def problems_command(
    name: str,
    *,
    one_only: tuple[str, ...] = (),
    before: Callable[[tuple[Path, ...], dict[str, Any]], tuple[Path, ...] | int] | None = None,
    sections: Mapping[str, Collection[str]] | None = None,
) -> Callable[[Callable[..., int]], click.Command]:
    """A command of a function that answers one problem for its device: `answer(problem, gpu, **options)`.

    It prints the answer, and gives its exit code.

    Args:
        name: of the command, which has `form_options`.
        one_only: options and forms that make no sense for several problems.
        before: called with the paths, of which there may be none, and all options, which it may change; gives
            the problems to answer, or the exit code where it has answered.
        sections: as for `FileCommand`.
    """

    def decorate(answer: Callable[..., int]) -> click.Command:
        @functools.wraps(answer)
        def command(problems: tuple[Path, ...], **options: Any) -> int:
            paths = problems if before is None else before(problems, options)
            if isinstance(paths, int):
                return paths
            from layoutopt.files.inputs import inputs

            over, device_file = options.pop("over"), options.pop("device_file")
            found = inputs(sources(paths), over)
            for option in one_only:
                if options.get(option) or form() == option:
                    begun = list(itertools.islice(found, 2))
                    if len(begun) > 1:
                        wrong = "one problem is expected, and there are several"
                        raise click.UsageError(f"--{option}: {wrong}")
                    found = iter(begun)
            return _answer_each(found, paths, functools.partial(answer, **options), device_file)

        arguments = click.argument("problems", type=ProblemPath(), nargs=-1, required=before is None)
        return click.command(name, cls=FileCommand, sections=sections)(
            arguments(over_option(device_file_option(command)))
        )

    return decorate


def _parameters(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> dict[str, tuple[Value, ...]]:
    from layoutopt.files.templates import value_of

    named = pairs(ctx, param, given).items()
    return {name: tuple(value_of(value.strip()) for value in values.split(",")) for name, values in named}


over_option = click.option(
    "--over",
    metavar="NAME=V1,V2,...",
    multiple=True,
    callback=_parameters,
    help="Values of a template's parameter, instead of the file's; repeatable.",
)


def sources(paths: Iterable[Path]) -> Iterator[Path | BinaryIO]:
    """What `layoutopt.files.inputs` takes: standard input where a path is -."""
    return (sys.stdin.buffer if str(path) == "-" else path for path in paths)


def _answer_each(
    found: Iterable[Input], paths: Sequence[Path], answer: Answer, device_file: Path | None
) -> int:
    """Answer every problem of these paths; the worst exit code. With JSON, the summary goes to stderr."""
    codes: Counter[int] = Counter()
    for item in found:
        if codes and form() != "json":
            say("\n")
        alone = [item.label] == [writable(str(path)) for path in paths]
        if alone:
            click.get_current_context().meta[_TYPED] = shlex.quote(item.label)
        codes[_code(item, answer, device_file, alone)] += 1
        if stopped():
            break
    if codes.total() > 1:
        counts = ", ".join(f"{codes[code]:,} {text}" for code, text in _MEANINGS.items() if codes[code])
        line = f"{codes.total():,} problems: {counts}"
        if form() == "json":
            note(line)
        else:
            say(f"\n{line}\n")
    return max(codes, default=0)


def typed() -> str | None:
    """What the user typed for the problem that is answered, where it is the only one."""
    found: str | None = click.get_current_context().meta.get(_TYPED)
    return None if found == "-" else found


_MEANINGS = {0: "without conflicts", 1: "with conflicts or infeasible", 2: "wrong", 3: "out of time"}


def _code(item: Input, answer: Answer, device_file: Path | None, alone: bool) -> int:
    """The exit code of one problem, whose failure ends the command only where it is alone."""
    from layoutopt.files.inputs import checked

    try:
        problem = checked(item)
        return answer(problem, problem_device(problem, device_file))
    except FAILURES as error:
        if alone:
            raise
        message, code = failure(error)
        fault(one_line(f"{item.label}: {message}"))
        return code
