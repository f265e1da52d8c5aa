"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from layoutopt.cli.files import ANSWER_FILE, STANDARD_INPUT, InputPath, OutputPath
from layoutopt.cli.output import FORM
from layoutopt.ground.budget import DEFAULT_SECONDS
from layoutopt.ground.escape import shown

if TYPE_CHECKING:
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.types import Block, Problem
    from layoutopt.sweeps.store import Store

Command = TypeVar("Command", bound=Callable[..., object])

MAX_SECONDS = 10**8  # three years, which every clock of the system can wait for


class ProblemPath(InputPath):
    """A problem file, or the name of a problem in the catalogue."""

    def files(self, value: Path) -> Iterable[Path]:
        """The file, which may be the catalogue's or standard input, or the files of a folder."""
        from layoutopt.files.catalogue import find
        from layoutopt.files.inputs import files

        if str(value) == "-":
            return (STANDARD_INPUT,)
        if os.path.isdir(value):
            return files(value)
        return (value if os.path.exists(value) else find(str(value)) or value,)


class Extents(click.types.StringParamType):
    """Extents of a tile, such as 128x64; or of blocks and grids, which have three.

    Args:
        most: of one extent.
        three: those that are left out are 1.
    """

    name = "extents"

    def __init__(self, most: int = 1 << 21, three: bool = False) -> None:
        self._most, self._three = most, three

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The extents as a tuple."""
        parts = [part.strip() for part in value.lower().replace(",", "x").split("x")]
        if (self._three and len(parts) > 3) or not all(
            part.isdecimal() and len(part) < 12 and 0 < int(part) <= self._most for part in parts
        ):
            wanted = "X, X,Y or X,Y,Z" if self._three else "extents such as 128x64"
            self.fail(f"expected {wanted}, got {shown(value)!r}", param, ctx)
        return (*map(int, parts), *(1,) * (3 - len(parts) if self._three else 0))


def pairs(
    ctx: click.Context, param: click.Parameter, given: Sequence[str], form: str = "NAME=V1,V2,..."
) -> dict[str, str]:
    """Names and values of an option that is given once for each."""
    found: dict[str, str] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition("="))
        if not name or not value:
            raise click.BadParameter(f"expected {form}, got {shown(text)!r}", ctx, param)
        if name in found:
            raise click.BadParameter(f"{shown(name)} is given twice", ctx, param)
        found[name] = value
    return found


def _seconds(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 0 < value <= MAX_SECONDS:
        above = f" and at most {MAX_SECONDS:,}" if value > MAX_SECONDS else ""
        raise click.BadParameter(f"expected seconds above 0{above}, got {value}", ctx, param)
    return value


def added(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """What adds options, in their order, to a command."""
    return lambda command: reduce(lambda found, option: option(found), reversed(options), command)


def time_limit_option(text: str, default: float = DEFAULT_SECONDS) -> Callable[[Command], Command]:
    """Add `--time-limit`: seconds, finite and above zero; by default as many as a person waits."""
    return click.option(
        "--time-limit", type=float, callback=_seconds, default=default, show_default=True,
        metavar="S", help=text,
    )  # fmt: skip


def minimise_option(
    choices: Sequence[str], text: str, default: str | None = None
) -> Callable[[Command], Command]:
    """Add `--minimise`, in either spelling."""
    return click.option(
        "--minimise", "--minimize", "minimise", type=click.Choice(choices), default=default,
        show_default=default is not None, help=text,
    )  # fmt: skip


class StorePath(InputPath):
    """A store of `layoutopt sweep`, opened to be read."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The store."""
        from layoutopt.sweeps.store import Store

        return Store(super().convert(value, param, ctx), write=False)

    def files(self, value: Store) -> Iterable[Path]:
        """Its file."""
        return () if value.path is None else (value.path,)


store_option = click.option(
    "--store",
    type=StorePath(),
    metavar="FILE",
    help="A store of `layoutopt sweep`: problems that it holds are not solved again.",
)
device_file_option = click.option(
    "--device-file",
    type=InputPath(),
    metavar="FILE",
    help="More GPUs, as JSON in the form of hardware/devices.json.",
)
workers_option = click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Solver threads."
)


output_option = click.option(
    "-o", "--output", ANSWER_FILE, type=OutputPath(or_print=True), metavar="FILE",
    help="Write the output to this file.",
)  # fmt: skip
_FLAGS: Final = {"csv": "Print comma-separated values.", "markdown": "Print a Markdown table."}


def form_options(
    text: str = "Print one JSON object.", *more: str, output: bool = True
) -> Callable[[Command], Command]:
    """Add what every answer has: `-o`, `--format`, and flags such as `--json`. `tell` prints in that form.

    Args:
        text: the help of `--json`.
        more: forms beside text and JSON; those of `_FLAGS` have a flag, too.
        output: whether to add `-o`, which some commands have by themselves.
    """
    flags = {"json": text, **{form: help for form, help in _FLAGS.items() if form in more}}
    format_option = click.option(
        "--format", type=click.Choice(["text", "json", *more]), callback=_form, expose_value=False,
        help="What to print  [default: text]",
    )  # fmt: skip
    return added(
        *([output_option] if output else []),
        format_option,
        *(
            click.option(f"--{form}", is_flag=True, callback=_form, expose_value=False, help=said)
            for form, said in flags.items()
        ),
    )


def _form(ctx: click.Context, param: click.Parameter, given: str | bool | None) -> None:
    """Keep the form that an option asks for, which another one must not ask otherwise."""
    if given:
        form, option = (given, f"--format {given}") if isinstance(given, str) else (param.name, param.opts[0])
        asked, before = ctx.meta.setdefault(FORM, (form, option))
        if asked != form:
            raise click.UsageError(f"{before} and {option} are forms of one answer; use one of them")


class Commands(click.Group):
    """Commands by name; for one that there is not, the nearest is named."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that the arguments begin with."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx), 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(error.message + hint, ctx) from None


def more_devices(device_file: Path | None) -> tuple[Device, ...]:
    """The devices that `--device-file` names.

    Raises:
        ProblemFileError: the file is wrong.
    """
    if device_file is None:
        return ()
    from layoutopt.ground.json_data import named_by
    from layoutopt.hardware.devices import load_devices

    with named_by("--device-file"):
        return load_devices(device_file)


def problem_device(problem: Problem | Block, device_file: Path | None) -> Device:
    """The device that the problem names, out of the package or the file.

    Raises:
        ProblemFileError: there is no such device, or the file is wrong.
    """
    from layoutopt.hardware.devices import device

    return device(problem.target, more_devices(device_file))
