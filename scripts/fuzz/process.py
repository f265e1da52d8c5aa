"""Commands of layoutopt in processes of their own, forked from one that has imported everything.

A fork costs milliseconds where a start of Python costs most of a second, and it still has what a process
has: its exit code, its stderr, its processor time, its memory, its death.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the package beside this script, wherever another one is installed
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a fork of a process with threads is a risk

import layoutopt  # noqa: E402
from layoutopt.cli import run  # noqa: E402
from layoutopt.cli.commands import main  # noqa: E402

WARM_UP = {
    "tile": {"shape": [8, 8], "element": "f32"},
    "threads": 8,
    "accesses": [{"name": "a", "op": "load", "index": ["tid", "0"], "bytes": 4}],
}
OFFSET = ([], ["--offset", "x0*8 + x1"])
MEMORY_BYTES = 5 << 29
FILE_BYTES = 1 << 31  # of any file that a command writes, temporary ones included
WALL_S = 600


@dataclass(frozen=True)
class Done:
    """How a command ended; a negative `code` is the signal that ended it, -999 that it did not end."""

    command: list[str]
    code: int
    out: str
    err: str
    cpu_s: float
    wall_s: float
    memory_bytes: int


def import_everything() -> None:
    """Import every module of the package and read its data, so that a forked command loads nothing.

    A child that collects garbage would copy every page that it inherits.
    """
    for module in pkgutil.walk_packages(layoutopt.__path__, "layoutopt."):
        importlib.import_module(module.name)
    for name in ("ortools.sat.python.cp_model_helper", "encodings.ascii", "encodings.unicode_escape"):
        importlib.import_module(name)  # only when there is something to solve, or to escape
    layoutopt.solve(layoutopt.problem(WARM_UP), workers=1)
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        path = Path(folder) / "p.json"
        path.write_text(json.dumps({"name": "warm_up", **WARM_UP}))
        for verb in ("solve", "check", "compare", "explain"):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                main([verb, str(path), "--json", *OFFSET[verb == "check"]], standalone_mode=False)
    gc.collect()
    gc.freeze()


def call(
    *arguments: object, folder: Path, stdin: bytes = b"", cpu_s: float = 30, script: Path | None = None
) -> Done:
    """Run `layoutopt ARGUMENTS`, or a Python script, in `folder`, within the memory promised.

    What takes more processor time than `cpu_s` is ended by SIGXCPU.
    """
    command = [str(a) for a in arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as inp:
        inp.write(stdin)
        inp.seek(0)
        sys.stdout.flush()
        sys.stderr.flush()
        began, pid = time.monotonic(), os.fork()
        if pid == 0:
            _become(command, folder, (inp.fileno(), out.fileno(), err.fileno()), int(cpu_s) + 1, script)
        code, usage = _wait(pid)
        out.seek(0)
        err.seek(0)
        return Done(
            command,
            code,
            out.read().decode("utf-8", "replace"),
            err.read().decode("utf-8", "replace"),
            usage.ru_utime + usage.ru_stime,
            time.monotonic() - began,
            usage.ru_maxrss * 1024,
        )


def _become(
    command: list[str], folder: Path, files: tuple[int, ...], cpu_s: int, script: Path | None
) -> None:
    code = 1
    try:
        os.setsid()
        for target, source in enumerate(files):
            os.dup2(source, target)
        os.chdir(folder)
        address_space = MEMORY_BYTES + _address_space()
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        sys.argv = [str(script or "layoutopt"), *command]
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        if script:
            runpy.run_path(str(script), run_name="__main__")
        else:
            run()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code & 0xFF)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _wait(pid: int) -> tuple[int, resource.struct_rusage]:
    with os.fdopen(os.pidfd_open(pid)) as handle:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        late = not poll.poll(WALL_S * 1000)
        if late:
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    return -999 if late else os.waitstatus_to_exitcode(status), usage
