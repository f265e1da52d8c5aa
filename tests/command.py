"""`layoutopt ARGUMENTS` as a process of its own, forked from one that has imported everything.

Starting Python and importing the libraries costs most of a second, a fork a hundredth of that; it has what a
process has: its exit code, its streams, its working directory. Tests of start-up and signals start Python.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
COMMAND = [sys.executable, "-c", "from layoutopt.cli import run; run()"]


def layoutopt(*arguments, script=None, cwd=None, input=b"", warn="error", encoding="utf-8", columns=None):
    """What a command prints, and its exit code.

    Args:
        arguments: of `layoutopt`, or of the script.
        script: a Python file to run instead.
        cwd: the working directory.
        input: what it reads.
        warn: what warnings are.
        encoding: of its output.
        columns: of the terminal, 80 where nothing says.
    """
    command = list(map(str, arguments))
    with tempfile.TemporaryDirectory(prefix="layoutopt-test-") as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        streams[0].write_bytes(input.encode() if isinstance(input, str) else input)
        server = _server()
        request = {
            "command": [str(script or "layoutopt"), *command],
            "script": script is not None,
            "cwd": str(cwd or os.getcwd()),
            "streams": list(map(str, streams)),
            "warn": warn,
            "encoding": encoding,
            "columns": columns,
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        printed = [path.read_text(encoding) for path in streams[1:]]
        return subprocess.CompletedProcess(command, code, *printed)


def python(*arguments, env=ENVIRONMENT, **options):
    """What a process of Python prints, and its exit code."""
    words = [sys.executable, *map(str, arguments)]
    return subprocess.run(words, env=env, **{"capture_output": True, "text": True, "check": False, **options})


def started(*arguments, code=COMMAND[-1], **options):
    """`layoutopt ARGUMENTS`, or what this code makes of them, by a Python that starts for it."""
    return python("-c", code, *arguments, **options)


def answer(*arguments, **options):
    """What the command answers as JSON."""
    done = layoutopt(*arguments, "--json", **options)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def refused(message, *arguments, **options):
    """The command ends with 2, says so in a line of stderr, and prints nothing."""
    done = layoutopt(*arguments, **options)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@cache
def _server():
    """The process that forks the commands, one for all tests of this process."""
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    atexit.register(server.wait)
    atexit.register(server.kill)
    return server


def import_package():
    """Import every module of the package; what runs a command."""
    cli = importlib.import_module("layoutopt.cli")
    run = cli.run
    package = importlib.import_module("layoutopt")
    for module in pkgutil.walk_packages(package.__path__, "layoutopt."):
        importlib.import_module(module.name)
    cli.run = run  # its module of that name has taken its place
    return run


def _serve():
    """Fork a command for each line that comes, and say how it ended.

    A command that collects garbage would copy every page that it inherits.
    """
    sys.path[0] = ""
    run = import_package()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            become(run, **json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def become(run, command, script, cwd, streams, warn="default", encoding="utf-8", columns=None):
    """Be the command, with these files as its streams: never returns."""
    code = 1
    try:
        for number, path in enumerate(streams):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY), number)
        os.chdir(cwd)
        if columns is not None:
            os.environ["COLUMNS"] = str(columns)
        warnings.simplefilter(warn)
        sys.argv = command
        # A command may be forked from such a one, whose own streams close no file of it.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout, sys.stderr = (open(k, "w", encoding=encoding, closefd=False) for k in (1, 2))  # noqa: SIM115
        if script:
            sys.path[0] = str(Path(command[0]).parent)
            runpy.run_path(command[0], run_name="__main__")
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


if __name__ == "__main__":
    _serve()
