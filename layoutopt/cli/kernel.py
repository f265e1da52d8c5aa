"""Kernels on the command line: the options of a launch, and `check` of one."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from msgspec import structs, to_builtins

from layoutopt.cli.files import TextOrFile, reads, typed_arguments, write_all
from layoutopt.cli.options import Extents, added, pairs
from layoutopt.cli.output import UNDECIDED, USAGE_ERROR, end_progress, form, note, progress, say, say_json
from layoutopt.errors import ProblemFileError
from layoutopt.ground import json_data
from layoutopt.ground.escape import shown
from layoutopt.ground.temporary import CACHE_VARIABLE

if TYPE_CHECKING:
    from layoutopt.kernels.launches import LaunchOptions
    from layoutopt.study.launches import Application, Baseline, CheckedLaunch

SUFFIXES = (".cubin", ".sass", ".cu", ".ptx", ".fatbin", ".exe", ".so", ".o")
DEFAULT_MOST_STEPS = 250_000


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


def is_launches(path: Path) -> bool:
    """Whether a path is a file of launches, or a folder with such."""
    return path.suffix == ".toml" or (path.is_dir() and any(path.glob("launches*.toml")))


def given_option(*but: str) -> str | None:
    """An option of a launch that was given to the command that runs, if one was, but for those."""
    running = click.get_current_context()
    for param in running.command.params:
        default = running.get_parameter_source(param.name or "") is ParameterSource.DEFAULT
        if param.name in LAUNCH.difference(but) and not default:
            return param.opts[0]
    return None


def asked(path: Path, options: dict[str, Any], source: Path | None = None) -> LaunchOptions:
    """The launch of a kernel that the options say, or that of a file of launches that --entry chooses.

    With a source, options say how it is compiled, and the launch is of its code, not of what was recorded.
    """
    from layoutopt.kernels.launches import LaunchOptions, one_launch

    if not is_launches(path):
        if source is not None:
            raise ProblemFileError("", f"expected launches, got {shown(str(path))}")
        return LaunchOptions(file=str(path), **options)
    of_source = ("target", "include", "define", "nvcc") if source is not None else ()
    if (needless := given_option("entry", *of_source)) is not None:
        raise click.UsageError(f"{needless} is for a kernel; {path} says what is launched")
    found = one_launch(path, options["entry"], source)
    reads("a launch", [Path(found.file), *(Path(one.file) for one in found.memory)])
    return structs.replace(found, **{name: options[name] for name in of_source})


_pairs = partial(pairs, form="NAME_OR_POSITION=VALUE")


def _numbers(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    from layoutopt.kernels.launches import argument

    try:
        return {name: argument(text) for name, text in _pairs(ctx, param, given).items()}
    except ProblemFileError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _kept_where(_: click.Context, __: click.Parameter, folder: str | None) -> None:
    if folder is not None:
        os.environ[CACHE_VARIABLE] = os.path.realpath(folder) if folder else ""


LAUNCH = frozenset(
    ("entry", "block", "grid", "arg", "shared", "data", "assume", "max_steps", "target", "include", "define",
     "nvcc")
)  # fmt: skip


class _Bytes(click.IntRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        if not str(value).strip().lstrip("+-").isdecimal():
            wanted = "a plain number of bytes, such as 32768"
            self.fail(f"expected {wanted}, got {shown(str(value))!r}", param, ctx)
        return super().convert(value, param, ctx)


_BLOCKS = Extents(10**10 - 1, three=True)  # what a launch may have is checked with it
launch_options = added(
    click.option("--entry", metavar="NAME", help="The kernel, if there are several: name, number, pattern."),
    click.option("--block", type=_BLOCKS, metavar="X,Y,Z", help="Threads of a block."),
    click.option("--grid", type=_BLOCKS, default="1", metavar="X,Y,Z",
                 help="Blocks  [default: 1]"),
    click.option("--arg", multiple=True, callback=_numbers, metavar="P=VALUE",
                 help="A parameter of the kernel, by position from 0 or by name: a number, pointer, null or "
                      "@FILE with its bytes; P+BYTE is a member of a structure, VALUE:i64 one of that type."),
    click.option("--shared", type=_Bytes(0, 1 << 18), default=0, metavar="BYTES",
                 help="Dynamic shared memory."),
    click.option("--data", type=TextOrFile(), multiple=True, callback=_pairs, metavar="P=FILE.npy",
                 help="What a pointer points to: an array of a file, or zeros, iota or random:SEED."),
    click.option("--assume", multiple=True, callback=_numbers, metavar="P=VALUE",
                 help="As --arg, for a value that is only assumed; the report says so."),
    click.option("--max-steps", type=click.IntRange(1, 10**9), default=DEFAULT_MOST_STEPS, show_default=True,
                 metavar="N", help="Give up after so many steps of blocks that are evaluated together."),
    click.option("--target", "--arch", metavar="T",
                 help="The GPU to compile or assemble for  [default: that of the PTX, or sm_90]"),
    click.option("-I", "--include", multiple=True, metavar="DIR", help="A folder of headers, for a source."),
    click.option("-D", "--define", multiple=True, metavar="NAME[=VALUE]", help="A macro, for a source."),
    click.option("--nvcc", multiple=True, metavar="OPTION",
                 help="Another option for nvcc, such as --nvcc=-std=c++20."),
    click.option("--cache", metavar="DIR", expose_value=False, callback=_kept_where, is_eager=True,
                 help="Folder for compiled sources; '' keeps none  [default: the user's cache]"),
)  # fmt: skip
"""Adds the options of a launch; `LaunchOptions` takes their values by name."""


def _told(value: int | float | str | bytes) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def check_kernels(
    paths: Sequence[Path],
    options: dict[str, Any],
    *,
    html: Path | None,
    baseline: Path | None,
    update_baseline: bool,
    no_fix: bool,
    time_limit: float,
) -> int:
    """Print what launches of kernels do to shared memory; the exit code, as `_code`.

    With a baseline: 1 where there are more conflicts than it has.
    """
    from layoutopt.kernels.launches import NOTHING_MISSED, LaunchOptions, files_of, read_launches
    from layoutopt.study.launches import MAX_BYTES, check_launch, check_launches, read_baseline

    if update_baseline and baseline is None:
        raise click.UsageError("--update-baseline needs the file: --baseline FILE")
    together = [path for path in paths if is_launches(path)]
    if together and (needless := given_option()) is not None:
        raise click.UsageError(f"{needless} is for a kernel; {together[0]} says what is launched")
    if together or form() not in ("text", "json") or html is not None or baseline is not None:
        launches = [LaunchOptions(file=str(path), **options) for path in paths if path not in together]
        recorded = [read_launches(path) for path in together]
        launches += [one for file in recorded for one in file.launches]
        if not launches:
            raise ProblemFileError("", f"no launch in {shown(str(paths[0]))}")
        reads("launches", (file for path in together for file in files_of(path)))
        reads("a launch", (Path(file) for one in launches for file in (one.file, *one.data.values()) if file))
        known = None
        if baseline is not None and not update_baseline:
            with json_data.named_by("--baseline"):
                known = read_baseline(json_data.read(baseline, MAX_BYTES))
            if known.beside(baseline) is None:
                of_old = "--baseline names no files: kernels that are called the same share an entry"
                note(f"{of_old}; --update-baseline writes it anew")
        missed = sum((file.missed for file in recorded), NOTHING_MISSED)
        found = check_launches(launches, time_limit, not no_fix, progress("check"), missed)
        end_progress()
        return _told_together(found, html, baseline, known)
    codes = []
    for number, path in enumerate(paths):
        done = check_launch(LaunchOptions(file=str(path), **options), time_limit, not no_fix)
        assert done.report is not None
        if form() == "json":
            say_json(launch_data(done))
        else:
            say(("\n" if number else "") + _launch_text(done, len(paths) == 1))
        codes.append(_code([done]))
    return 1 if 1 in codes else max(codes)


def _launch_text(done: CheckedLaunch, alone: bool) -> str:
    from layoutopt.report.kernel_text import kernel_report

    assert done.report is not None
    lines = [f"assumed: parameter {name} is {_told(value)}" for name, value in done.launch.assume.items()]
    for name, fix in done.fixes.items():
        saved = fix.get("saved_wavefronts", 0) * math.prod(done.report.grid)
        total = f"; {saved:,} fewer wavefronts per launch if all blocks are as the first" if saved > 0 else ""
        lines.append(f"{name}: {fix['message']}{total}")
    lines += [f"{name}: {text}" for name, text in done.instructions.items()]
    text = kernel_report(done.report, lines)
    path = Path(done.launch.file)
    if path.suffix in (".cu", ".ptx") and any("offset" in fix for fix in done.fixes.values()):
        typed = typed_arguments() if alone else [done.launch.file, "..."]
        if path.suffix == ".cu":
            text += f"\n  next: layoutopt fix {shlex.join(typed)}  (a checked diff of the source)\n"
        else:
            typed += ["-o", f"{path.stem}.fixed.ptx"]
            text += f"\n  next: layoutopt patch {shlex.join(typed)}  (checked PTX)\n"
    return text


def launch_data(done: CheckedLaunch) -> dict[str, Any]:
    """One launch as JSON-ready data."""
    if done.report is None:
        told = {"entry": done.launch.entry, "file": done.launch.file, "failure": done.failure}
        return told | {"totals": None, "certain": False}
    # JSON knows neither infinity nor what is no number.
    assumed = {
        name: value if isinstance(value, (int, float)) and math.isfinite(value) else _told(value)
        for name, value in done.launch.assume.items()
    }
    data = done.report.to_json() | {"assumed": assumed}
    for array in data["arrays"]:
        array["fix"] = done.fixes.get(array["name"])
        array["instructions"] = done.instructions.get(array["name"])
    return data


def _told_together(
    found: Application, html: Path | None, baseline: Path | None, known: Baseline | None
) -> int:
    """Print an application, write its files; the exit code."""
    from layoutopt.report.annotations import FORMATS
    from layoutopt.report.launches_page import launches_page
    from layoutopt.report.launches_text import application_report
    from layoutopt.study.launches import baseline_of, only, worse

    outputs: dict[Path, bytes] = {}
    failed = len(found.failed) == len(found.kernels)
    more: dict[str, tuple[int, int]] | None = None
    folder = baseline.parent if baseline is not None else None
    if known is not None and baseline is not None:
        folder = known.beside(baseline)
        more = worse(found, known, folder)
    elif baseline is not None:
        more = {}
        if not failed:
            outputs[baseline] = (json.dumps(baseline_of(found, folder).to_json(), indent=1) + "\n").encode()
    if html is not None:
        outputs[html] = launches_page(found).encode()
    write_all(outputs)
    if form() == "json":
        kernels = [
            launch_data(one) | {"launches": (n := one.launch.launches), "count": n, "reason": one.reason}
            for one in found.kernels
        ]
        data = found.to_json() | {"totals": found.totals, "kernels": kernels}
        data["fixes"] = to_builtins(found.fixes)
        say_json(data if more is None else data | {"worse_than_baseline": more})
    elif form() == "text":
        said = [
            f"  {key}: {now:,} bank conflicts, {before:,} in the baseline"
            for key, (before, now) in (more or {}).items()
        ]
        say(application_report(found) + "".join(f"{line}\n" for line in ["", *said] if said))
    else:
        say(FORMATS[form()](found if more is None else only(found, more, folder)))
    if failed:
        return USAGE_ERROR
    return _code(found.kernels) if more is None else int(bool(more))


def _code(checked: Sequence[CheckedLaunch]) -> int:
    """1 where there are conflicts; 3 where none is known, and it is not certain that there is none."""
    if any(one.conflicts for one in checked):
        return 1
    return 0 if all(one.report is not None and one.report.certain for one in checked) else UNDECIDED
