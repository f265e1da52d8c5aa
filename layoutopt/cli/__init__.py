"""The command line: parse, call, print, exit.

Exit codes: 0 found and verified, 1 conflicts remain or infeasible, 2 bad usage or file, 3 the time
limit came without an answer, 130 interrupted.

This module imports nothing that takes time: Ctrl-C before the commands are there ends as it does later.
"""


def run() -> None:
    """Entry point of the console script: errors become one line on stderr and exit code 2."""
    from os import _exit

    try:
        from layoutopt.cli.process import call, leave

        leave(call())
    except KeyboardInterrupt:  # while modules are imported, or for the second time
        from signal import SIG_IGN, SIGINT, signal

        signal(SIGINT, SIG_IGN)
        from layoutopt.ground.temporary import remove_left

        remove_left()
        _exit(130)
