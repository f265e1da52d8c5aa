"""How a question is asked, and the device that it is asked for."""

from typing import TypedDict

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import described
from layoutopt.ground.log import Progress
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.types import Block, Problem


class Question(TypedDict, total=False):
    """What every question takes beside the problem; see `layoutopt.solve`."""

    time_limit: float | None
    target: Device | str | None
    progress: Progress | None


def target_of(asked: Problem | Block, given: Device | str | None) -> Device:
    """The device of a problem, or the one given instead of it.

    Raises:
        ProblemFileError: `asked` is something else (Python may pass anything), or there is no such device.
    """
    if not isinstance(asked, Problem | Block):
        raise ProblemFileError("", f"expected a problem (load, problem), got {described(asked)}")
    if isinstance(given, Device):
        return given
    if given is not None and not isinstance(given, str):
        raise ProblemFileError("target", f"expected a device or its name, got {described(given)}")
    return device(asked.target if given is None else given)
