"""The device that a question is asked for."""

from __future__ import annotations

from typing import Any

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import described
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.types import Block, Problem


def target_of(asked: Problem | Block, given: Device | str | None, kind: type | None = None) -> Device:
    """The device of a problem, or the one given instead of it.

    Raises:
        ProblemFileError: `asked` is something else (Python may pass anything), or not of the `kind` that is
            expected; or there is no such device.
    """
    if not isinstance(asked, kind or (Problem, Block)):
        wanted = "a problem of one tile" if kind is Problem else "a block of several tiles"
        wanted = "a problem" if kind is None else wanted
        raise ProblemFileError("", f"expected {wanted} (load, problem), got {_described(asked)}")
    if isinstance(given, Device):
        return given
    if given is not None and not isinstance(given, str):
        raise ProblemFileError("target", f"expected a device or its name, got {described(given)}")
    return device(asked.target if given is None else given)


def _described(asked: Any) -> str:
    if isinstance(asked, Block):
        return "a block of several tiles"
    return "a problem of one tile" if isinstance(asked, Problem) else described(asked)
