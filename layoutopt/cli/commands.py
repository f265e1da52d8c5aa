"""The commands: a new one is a module in this folder and a line here."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

import click

from layoutopt.cli.options import Commands
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.ground.version import __version__


class Command(NamedTuple):
    """A command, known by name before its module is imported, so that `--help` loads nothing else.

    Attributes:
        name: what the user types.
        module: in this folder; holds the click command, called `command`.
        summary: one line for `--help` and the documentation.
    """

    name: str
    module: str
    summary: str


COMMANDS: Final = (
    Command("solve", "solve", "Find the smallest conflict-free layout of a tile."),
    Command("compare", "compare", "Padding or swizzle: the best layout of each family side by side."),
    Command("convert", "convert", "Move a tile from one register layout to another: the instructions."),
    Command("show", "show", "Draw the banks under one warp instruction: text, SVG or a page."),
    Command("check", "check", "Count the bank conflicts of a CUDA kernel, or of a layout in use."),
    Command("capture", "capture", "Record what a program launches, to be checked."),
    Command("emit", "emit", f"Print a layout as code, in one of {len(LANGUAGES)} languages."),
    Command("patch", "patch", "Put conflict-free layouts into a compiled kernel, as PTX."),
    Command("fix", "fix", "Put conflict-free layouts into a CUDA source: a checked diff."),
    Command("run", "run", "Run a layout on the GPU: values, profiler counters and cycles."),
    Command("explain", "explain", "Say why a layout works, or why none can."),
    Command("count", "count", "Count the wavefronts of addresses in a file or a stream."),
    Command("targets", "targets", "List the GPUs and how they serve shared memory."),
    Command("new", "new", "Start a problem file for a common kernel."),
    Command("import", "import_", "Turn a kernel, CuTe or Triton layout, or a trace, into problem files."),
    Command("sweep", "sweep", "Solve many problems, on all cores or a cluster, into a store."),
    Command("schema", "schema", "Print the JSON Schema of problem files and answers."),
    Command("report", "report", "Write a wrong answer, and all that made it, into one file."),
    Command("problems", "problems", "List the catalogue, or print one of its problems."),
)


class _Group(Commands):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [command.name for command in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for known in COMMANDS:
            if known.name == cmd_name:
                module = importlib.import_module(f"layoutopt.cli.{known.module}")
                command: click.Command = module.command
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(command.name, command.summary) for command in COMMANDS])


_COMPLETION: Final = """Completion in bash: eval "$(_LAYOUTOPT_COMPLETE=bash_source layoutopt)" in
~/.bashrc; zsh_source in ~/.zshrc; for fish, _LAYOUTOPT_COMPLETE=fish_source layoutopt | source"""


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_COMPLETION)
@click.version_option(__version__, prog_name="layoutopt")
def main() -> None:
    """Shared-memory layouts without bank conflicts: the smallest, the proof and the index code."""
