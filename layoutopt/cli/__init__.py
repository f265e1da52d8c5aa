"""The command line: parse, call, print, exit.

Exit codes: 0 found and verified, 1 conflicts remain or infeasible, 2 bad usage or file, 3 the time
limit came without an answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from typing import ClassVar, NoReturn

import click

from layoutopt import __version__

USAGE_ERROR = 2


class _Commands(click.Group):
    """Commands are imported when called, so that `--help` loads nothing else."""

    _modules: ClassVar = {
        "solve": "layoutopt.cli.solve",
        "compare": "layoutopt.cli.compare",
        "show": "layoutopt.cli.show",
        "check": "layoutopt.cli.check",
        "emit": "layoutopt.cli.emit",
        "run": "layoutopt.cli.run",
        "explain": "layoutopt.cli.explain",
        "count": "layoutopt.cli.count",
        "targets": "layoutopt.cli.targets",
        "new": "layoutopt.cli.new",
        "import": "layoutopt.cli.import_",
        "problems": "layoutopt.cli.problems",
    }
    _summaries: ClassVar = {
        "solve": "Find the smallest conflict-free layout of a tile.",
        "compare": "Padding or swizzle: the best layout of each family side by side.",
        "show": "Draw the banks under one warp instruction: text, SVG or a page.",
        "check": "Audit a layout that is in use.",
        "emit": "Print a layout as code, in eight languages.",
        "run": "Run a layout on the GPU: values, profiler counters and cycles.",
        "explain": "Say why a layout works, or why none can.",
        "count": "Count the wavefronts of recorded addresses.",
        "targets": "List the GPUs and how they serve shared memory.",
        "new": "Start a problem file for a common kernel.",
        "import": "Turn a CuTe or Triton layout, or a recorded trace, into a problem file.",
        "problems": "List the catalogue, or print one of its problems.",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        import importlib

        command: click.Command = importlib.import_module(self._modules[cmd_name]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summaries[name]) for name in self.list_commands(ctx)])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="layoutopt")
def main() -> None:
    """Shared-memory layouts without bank conflicts: the smallest, the proof and the index code."""


def run() -> None:
    """Entry point of the console script: errors become one line on stderr and exit code 2."""
    # Warnings, of disputed hardware rules, are one line without the place in our source.
    warnings.showwarning = lambda message, *_: click.echo(f"warning: {message}", err=True)
    try:
        code = main(standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo(f"error: cannot write the output: {error.strerror}", err=True)
        code = USAGE_ERROR
    except Exception as error:
        from layoutopt.errors import LayoutoptError

        if not isinstance(error, LayoutoptError):
            raise
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        code = USAGE_ERROR
    _leave(int(code or 0))


def _leave(code: int) -> NoReturn:
    """Exit, at once where a search still runs: no thread may outlive the interpreter that it calls."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what there was to interrupt is over
    if threading.active_count() == 1:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
