"""layoutopt: minimal-memory, conflict-free shared-memory layouts, with the proof and the code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from layoutopt.address import Layout
    from layoutopt.arrange import Arrangement, arrange
    from layoutopt.audit import check
    from layoutopt.model import Problem, Result, Status, TileSet
    from layoutopt.problem_file import load
    from layoutopt.synthesize import solve
    from layoutopt.tile_sets import load_any

_HOMES = {
    "Arrangement": "layoutopt.arrange",
    "Layout": "layoutopt.address",
    "Problem": "layoutopt.model",
    "Result": "layoutopt.model",
    "Status": "layoutopt.model",
    "TileSet": "layoutopt.model",
    "arrange": "layoutopt.arrange",
    "check": "layoutopt.audit",
    "load": "layoutopt.problem_file",
    "load_any": "layoutopt.tile_sets",
    "solve": "layoutopt.synthesize",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use: the command line's `--help` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'layoutopt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
