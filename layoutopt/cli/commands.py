"""The commands: a new one is a module in this folder and a line here."""

import importlib
import itertools
from typing import Final, NamedTuple

import click

from layoutopt.cli.options import Commands
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.ground.version import __version__


class Command(NamedTuple):
    """A command, known by name before its module is imported, so that `--help` loads nothing else."""

    name: str  # what the user types
    module: str  # in this folder; holds the click command, called `command`
    group: str  # its heading in `--help`
    summary: str  # one line for `--help` and the documentation


_KERNEL: Final = "A kernel that I have"
_TILE: Final = "A tile that I design"
_MANY: Final = "Compilers and many tiles"
_ABOUT: Final = "About layoutopt"
COMMANDS: Final = (
    Command("check", "check", _KERNEL, "Count the bank conflicts of a CUDA kernel, or of a layout in use."),
    Command("fix", "fix", _KERNEL, "Put conflict-free layouts into a CUDA source: a checked diff."),
    Command("patch", "patch", _KERNEL, "Put conflict-free layouts into a compiled kernel, as PTX."),
    Command("capture", "capture", _KERNEL, "Record what a program launches, to be checked."),
    Command("new", "new", _TILE, "Start a problem file for a common kernel."),
    Command("solve", "solve", _TILE, "Find the smallest conflict-free layout of a tile."),
    Command("compare", "compare", _TILE, "Padding or swizzle: the best layout of each family side by side."),
    Command("explain", "explain", _TILE, "Say why a layout works, or why none can."),
    Command("show", "show", _TILE, "Draw the banks under one warp instruction: text, SVG or a page."),
    Command("emit", "emit", _TILE, f"Print a layout as code, in one of {len(LANGUAGES)} languages."),
    Command("run", "run", _TILE, "Run a layout on the GPU: values, profiler counters and cycles."),
    Command("problems", "problems", _TILE, "List the catalogue, or print one of its problems."),
    Command("convert", "convert", _MANY, "Move a tile between register layouts: the instructions."),
    Command("import", "import_", _MANY, "Make problem files of a kernel, CuTe or Triton layout, or a trace."),
    Command("sweep", "sweep", _MANY, "Solve many problems, on all cores or a cluster, into a store."),
    Command("count", "count", _MANY, "Count the wavefronts of addresses in a file or a stream."),
    Command("targets", "targets", _ABOUT, "List the GPUs and how they serve shared memory."),
    Command("schema", "schema", _ABOUT, "Print the JSON Schema of problem files and answers."),
    Command("report", "report", _ABOUT, "Write a wrong answer, and all that made it, into one file."),
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
        for group, commands in itertools.groupby(COMMANDS, key=lambda command: command.group):
            with formatter.section(group):
                formatter.write_dl([(command.name, command.summary) for command in commands])


_COMPLETION: Final = """Completion in bash: eval "$(_LAYOUTOPT_COMPLETE=bash_source layoutopt)" in
~/.bashrc; zsh_source in ~/.zshrc; for fish, _LAYOUTOPT_COMPLETE=fish_source layoutopt | source"""


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_COMPLETION)
@click.version_option(__version__, prog_name="layoutopt")
def main() -> None:
    """Shared-memory layouts without bank conflicts: the smallest, the proof and the index code."""
