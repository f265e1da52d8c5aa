"""layoutopt: minimal-memory, conflict-free shared-memory layouts, with the proof and the code."""

from __future__ import annotations

# Not out of `typing`: nothing is imported before the command line can catch an interrupt.
TYPE_CHECKING = False
__version__ = "0.1.0"
__all__ = [
    "Access",
    "Arrangement",
    "Audit",
    "Comparison",
    "Explanation",
    "Layout",
    "Problem",
    "Result",
    "Status",
    "Sweep",
    "Tile",
    "TileSet",
    "__version__",
    "arrange",
    "check",
    "compare",
    "emit",
    "explain",
    "load",
    "load_all",
    "load_any",
    "problem",
    "solve",
    "sweep",
]

if TYPE_CHECKING:
    from typing import Any

    from layoutopt.codegen.python import emit
    from layoutopt.files.file import load
    from layoutopt.files.python import load_all, problem
    from layoutopt.files.tile_set_file import load_any
    from layoutopt.layout.layout import Layout
    from layoutopt.problems.answer import Result, Status
    from layoutopt.problems.types import Access, Problem, Tile, TileSet
    from layoutopt.search.arrange import Arrangement, arrange
    from layoutopt.search.solve import solve
    from layoutopt.study.check import Audit, check
    from layoutopt.study.compare import compare
    from layoutopt.study.comparison import Comparison
    from layoutopt.study.explain import explain
    from layoutopt.study.explanation import Explanation
    from layoutopt.sweeps.sweep import Sweep, sweep

_HOMES = {
    "Access": "layoutopt.problems.types",
    "Arrangement": "layoutopt.search.arrange",
    "Audit": "layoutopt.study.check",
    "Comparison": "layoutopt.study.comparison",
    "Explanation": "layoutopt.study.explanation",
    "Layout": "layoutopt.layout.layout",
    "Problem": "layoutopt.files.python",
    "Result": "layoutopt.problems.answer",
    "Status": "layoutopt.problems.answer",
    "Sweep": "layoutopt.sweeps.sweep",
    "Tile": "layoutopt.problems.types",
    "TileSet": "layoutopt.problems.types",
    "arrange": "layoutopt.search.arrange",
    "check": "layoutopt.study.check",
    "compare": "layoutopt.study.compare",
    "emit": "layoutopt.codegen.python",
    "explain": "layoutopt.study.explain",
    "load": "layoutopt.files.file",
    "load_all": "layoutopt.files.python",
    "load_any": "layoutopt.files.tile_set_file",
    "problem": "layoutopt.files.python",
    "solve": "layoutopt.search.solve",
    "sweep": "layoutopt.sweeps.sweep",
}


# What took several tiles takes one as well; the old names stay for one release.
_RENAMED = {"check_tiles": "check", "compare_tiles": "compare", "explain_tiles": "explain"}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use: the command line's `--help` needs none of them."""
    if name in _RENAMED:
        import warnings

        now = _RENAMED[name]
        warnings.warn(f"layoutopt.{name} is now layoutopt.{now}", DeprecationWarning, stacklevel=2)
        name = now
    if name not in _HOMES:
        raise AttributeError(f"module 'layoutopt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
