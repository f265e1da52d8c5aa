"""layoutopt: minimal-memory, conflict-free shared-memory layouts, with the proof and the code."""

from __future__ import annotations

# Not out of `typing`: nothing is imported before the command line can catch an interrupt.
TYPE_CHECKING = False
__all__ = [
    "Access",
    "Arrangement",
    "Audit",
    "Block",
    "Comparison",
    "Conversion",
    "Explanation",
    "Launch",
    "Layout",
    "Problem",
    "Result",
    "Status",
    "Sweep",
    "Tile",
    "__version__",
    "capture",
    "check",
    "check_kernel",
    "compare",
    "convert",
    "emit",
    "explain",
    "import_kernel",
    "load",
    "load_all",
    "problem",
    "solve",
    "sweep",
]

if TYPE_CHECKING:
    from typing import Any

    from layoutopt.codegen.block import emit
    from layoutopt.files.file import load
    from layoutopt.files.inputs import load_all, problem
    from layoutopt.ground.version import __version__
    from layoutopt.kernels.capture.recorder import capture
    from layoutopt.kernels.machine.launch import Launch
    from layoutopt.layout.layout import Layout
    from layoutopt.ownership.conversion import Conversion, convert
    from layoutopt.problems.answer import Arrangement, Result, Status
    from layoutopt.problems.types import Access, Block, Problem, Tile
    from layoutopt.search.block import solve
    from layoutopt.study.check import Audit, check
    from layoutopt.study.compare import compare
    from layoutopt.study.comparison import Comparison
    from layoutopt.study.explain import Explanation, explain
    from layoutopt.study.launches import check_kernel, import_kernel
    from layoutopt.sweeps.sweep import Sweep, sweep

_HOMES = {
    "__version__": "layoutopt.ground.version",
    "Access": "layoutopt.problems.types",
    "Arrangement": "layoutopt.problems.answer",
    "Audit": "layoutopt.study.check",
    "Block": "layoutopt.problems.types",
    "Comparison": "layoutopt.study.comparison",
    "Conversion": "layoutopt.ownership.conversion",
    "Explanation": "layoutopt.study.explain",
    "Layout": "layoutopt.layout.layout",
    "Problem": "layoutopt.problems.types",
    "Result": "layoutopt.problems.answer",
    "Status": "layoutopt.problems.answer",
    "Sweep": "layoutopt.sweeps.sweep",
    "Tile": "layoutopt.problems.types",
    "capture": "layoutopt.kernels.capture.recorder",
    "check": "layoutopt.study.check",
    "check_kernel": "layoutopt.study.launches",
    "import_kernel": "layoutopt.study.launches",
    "Launch": "layoutopt.kernels.machine.launch",
    "compare": "layoutopt.study.compare",
    "convert": "layoutopt.ownership.conversion",
    "emit": "layoutopt.codegen.block",
    "explain": "layoutopt.study.explain",
    "load": "layoutopt.files.file",
    "load_all": "layoutopt.files.inputs",
    "problem": "layoutopt.files.inputs",
    "solve": "layoutopt.search.block",
    "sweep": "layoutopt.sweeps.sweep",
}
_RENAMED = {
    "TileSet": "Block",
    "arrange": "solve",
    "check_tiles": "check",
    "compare_tiles": "compare",
    "explain_tiles": "explain",
    "load_any": "load",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use: the command line's `--help` needs none of them.

    Names of the last release that others replace work, with a warning.
    """
    if name in _RENAMED:
        from warnings import warn

        new = _RENAMED[name]
        warn(f"layoutopt.{name} is now layoutopt.{new}", DeprecationWarning, stacklevel=2)
        name = new
    if name not in _HOMES:
        raise AttributeError(f"module 'layoutopt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
