"""The device that a question is asked for."""

from __future__ import annotations

from types import UnionType
from typing import Any, Final

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import described
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.types import Problem, TileSet


def target_of(
    asked: Problem | TileSet, given: Device | str | None, kind: type | UnionType = Problem
) -> Device:
    """The device of a problem or a tile set, or the one given instead of it.

    Raises:
        ProblemFileError: `asked` is something else (Python may pass anything), or there is no such device.
    """
    if not isinstance(asked, kind):
        wanted = _WANTED[kind]
        raise ProblemFileError("", f"expected {wanted}, got {_described(asked)}")
    if isinstance(given, Device):
        return given
    if given is not None and not isinstance(given, str):
        raise ProblemFileError("target", f"expected a device or its name, got {described(given)}")
    return device(asked.target if given is None else given)


_WANTED: Final[dict[Any, str]] = {
    Problem: "a problem of one tile (load, problem)",
    TileSet: "a tile set (load_any)",
    Problem | TileSet: "a problem (load, load_any, problem)",
}


def _described(asked: Any) -> str:
    if isinstance(asked, TileSet):
        return "a tile set, which arrange, check, compare and explain take"
    if isinstance(asked, Problem):
        return "a problem of one tile, which solve, check, compare and explain take"
    return described(asked)
