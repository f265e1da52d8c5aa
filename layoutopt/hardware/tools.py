"""Programs of others, which end with this process or before, and leave nothing behind.

A compiler starts programs of its own and writes files of its own. Each runs in a session of its own, so that
all of them can be ended together, with a folder that whoever asks removes afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from layoutopt.errors import MachineError
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.ground.escape import shown

TIMEOUT_S: Final = 600


def ended(
    command: Sequence[str | Path],
    folder: Path | None = None,
    *,
    here: bool = False,
    budget: Budget | None = None,
) -> subprocess.CompletedProcess[str]:
    """A program that has run to its end: its exit code and what it printed.

    Args:
        command: the program and its arguments.
        folder: where it works, and for its temporary files; None where it writes none.
        here: work where this process does.
        budget: the time there is; None for `TIMEOUT_S` seconds.

    Raises:
        MachineError: it cannot be started, or takes longer than `TIMEOUT_S` seconds.
        OutOfTime: the budget is spent before it ends.
    """
    try:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=None if here else folder,
            env=os.environ if folder is None else {**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
    except OSError as error:
        raise MachineError(f"{shown(str(command[0]))} cannot be started: {error.strerror}") from None
    timeout_s = TIMEOUT_S if budget is None or budget.seconds is None else budget.seconds
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                name = Path(command[0]).name
                if budget is not None:
                    raise OutOfTime(f"{name} worked") from None
                raise MachineError(f"{name} takes longer than {TIMEOUT_S} seconds") from None
            raise
    texts = (data.decode("utf-8", "replace") for data in (out, err))
    return subprocess.CompletedProcess(process.args, process.returncode, *texts)
