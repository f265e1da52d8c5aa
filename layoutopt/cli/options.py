"""Options that several commands share."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from layoutopt.cli.files import STANDARD_INPUT, InputPath
from layoutopt.ground.budget import DEFAULT_SECONDS
from layoutopt.ground.escape import shown

if TYPE_CHECKING:
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.types import Block, Problem

Command = TypeVar("Command", bound=Callable[..., object])

MAX_SECONDS = 10**8  # three years, which every clock of the system can wait for


class ProblemPath(InputPath):
    """A problem file, or the name of a problem in the catalogue; the shell completes both."""

    def files(self, value: Path) -> Iterable[Path]:
        """The file, which may be the catalogue's or standard input, or the files of a folder."""
        from layoutopt.files.catalogue import find
        from layoutopt.files.inputs import files

        if str(value) == "-":
            return (STANDARD_INPUT,)
        if os.path.isdir(value):
            return files(value)
        return (value if os.path.exists(value) else find(str(value)) or value,)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names of the catalogue and of files; where no name fits, what the shell completes itself.

        Both as plain items: at the request to complete a file, bash drops the items beside it.
        """
        from layoutopt.files.catalogue import problems, short_names

        names = [*short_names(), *(problems() if "/" in incomplete else ())]
        found = [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
        if not found:
            return super().shell_complete(ctx, param, incomplete)
        files = [f"{p}/" if os.path.isdir(p) else p for p in glob.glob(glob.escape(incomplete) + "*")]
        return [CompletionItem(name) for name in (*found, *sorted(files))]


class TargetName(click.types.StringParamType):
    """The name of a GPU, which the shell completes."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names and aliases of the package's devices."""
        from layoutopt.hardware.devices import devices

        names = [name for d in devices() for name in (d.name, *d.aliases)]
        return [CompletionItem(name) for name in names if name.startswith(incomplete.lower())]


class Extents(click.types.StringParamType):
    """Extents of a tile, such as 128x64."""

    name = "extents"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The extents as a tuple."""
        parts = value.lower().replace(",", "x").split("x")
        if not all(part.isdecimal() and len(part) <= 7 and 0 < int(part) <= 1 << 21 for part in parts):
            self.fail(f"expected extents such as 128x64, got {shown(value)!r}", param, ctx)
        return tuple(map(int, parts))


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


def time_limit_option(text: str) -> Callable[[Command], Command]:
    """Add `--time-limit`: seconds, finite and above zero; by default as many as a person waits."""
    return click.option(
        "--time-limit", type=float, callback=_seconds, default=DEFAULT_SECONDS, show_default=True,
        metavar="S", help=text,
    )  # fmt: skip


def device_file_option(command: Command) -> Command:
    """Add `--device-file`."""
    return click.option(
        "--device-file",
        type=InputPath(),
        metavar="FILE",
        help="Devices to know beside the package's, as JSON in the form of its hardware/devices.json.",
    )(command)


def json_option(text: str = "Print one JSON object.") -> Callable[[Command], Command]:
    """Add `--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


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
