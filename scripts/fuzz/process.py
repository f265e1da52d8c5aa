"""Commands of layoutopt in processes of their own, forked from this one, which has imported everything.

Each has what a process has: its exit code, its stderr, its processor time, its memory, its death.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # the package beside this script, wherever another one is
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a fork of a process with threads is a risk

from command import become, import_package  # noqa: E402
from written import data_of  # noqa: E402

import layoutopt  # noqa: E402
from layoutopt.cli import run  # noqa: E402
from layoutopt.cli.commands import main  # noqa: E402

WARM_UP = data_of("8x8 f32, 8 threads\na: load 4 [tid, 0]")
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
    import_package()
    for name in ("ortools.sat.python.cp_model_helper", "encodings.ascii", "encodings.unicode_escape"):
        importlib.import_module(name)  # only when there is something to solve, or to escape
    layoutopt.solve(layoutopt.problem(WARM_UP), workers=1)
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        path = Path(folder) / "p.json"
        path.write_text(json.dumps(WARM_UP))
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
    with tempfile.TemporaryDirectory(prefix="fuzz") as own:
        streams = [Path(own) / name for name in ("in", "out", "err")]
        streams[0].write_bytes(stdin)
        sys.stdout.flush()
        sys.stderr.flush()
        began, pid = time.monotonic(), os.fork()
        if pid == 0:
            _limit(int(cpu_s) + 1)
            become(run, [str(script or "layoutopt"), *command], script is not None, folder, streams)
        code, usage = _wait(pid)
        wall_s = time.monotonic() - began
        told = (path.read_bytes() if path.exists() else b"" for path in streams[1:])
        out, err = (text.decode("utf-8", "replace") for text in told)
        return Done(command, code, out, err, usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss * 1024)


def _limit(cpu_s: int) -> None:
    """Bound what this process may take; it gets a group of its own, and signals as a shell's child."""
    os.setsid()
    have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, soft, hard in (
        (resource.RLIMIT_AS, MEMORY_BYTES + have, MEMORY_BYTES + have),
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, FILE_BYTES, FILE_BYTES),
    ):
        resource.setrlimit(kind, (soft, hard))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def _wait(pid: int) -> tuple[int, resource.struct_rusage]:
    with os.fdopen(os.pidfd_open(pid)) as handle:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        late = not poll.poll(WALL_S * 1000)
        if late:
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    return -999 if late else os.waitstatus_to_exitcode(status), usage
