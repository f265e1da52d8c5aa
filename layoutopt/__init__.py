"""layoutopt: minimal-memory, conflict-free shared-memory layouts, with the proof and the code."""

from __future__ import annotations

# Not out of `typing`: nothing is imported before the command line can catch an interrupt.
TYPE_CHECKING = False
__version__ = "0.1.0"
__all__ = [
    "Arrangement",
    "Layout",
    "Problem",
    "Result",
    "Status",
    "TileSet",
    "__version__",
    "arrange",
    "check",
    "load",
    "load_any",
    "solve",
]

if TYPE_CHECKING:
    from typing import Any

    from layoutopt.layout.layout import Layout
    from layoutopt.problems.answer import Result, Status
    from layoutopt.problems.file import load
    from layoutopt.problems.tile_set_file import load_any
    from layoutopt.problems.types import Problem, TileSet
    from layoutopt.study.check import check
    from layoutopt.synthesis.arrange import Arrangement, arrange
    from layoutopt.synthesis.solve import solve

_HOMES = {
    "Arrangement": "layoutopt.synthesis.arrange",
    "Layout": "layoutopt.layout.layout",
    "Problem": "layoutopt.problems.types",
    "Result": "layoutopt.problems.answer",
    "Status": "layoutopt.problems.answer",
    "TileSet": "layoutopt.problems.types",
    "arrange": "layoutopt.synthesis.arrange",
    "check": "layoutopt.study.check",
    "load": "layoutopt.problems.file",
    "load_any": "layoutopt.problems.tile_set_file",
    "solve": "layoutopt.synthesis.solve",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use: the command line's `--help` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'layoutopt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
