"""layoutopt: minimal-memory, conflict-free shared-memory layouts, with the proof and the code."""

from __future__ import annotations

# Not out of `typing`: nothing is imported before the command line can catch an interrupt.
TYPE_CHECKING = False
__all__ = [
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
    from layoutopt import errors as errors
    from layoutopt.codegen.block import emit
    from layoutopt.files.file import load
    from layoutopt.files.inputs import load_all, problem
    from layoutopt.ground.version import __version__ as __version__
    from layoutopt.kernels.capture.recorder import capture
    from layoutopt.kernels.machine.launch import Launch
    from layoutopt.layout.layout import Layout
    from layoutopt.ownership.conversion import Conversion, convert
    from layoutopt.problems.answer import Arrangement, Result, Status
    from layoutopt.problems.types import Block, Problem
    from layoutopt.study.check import Audit, check
    from layoutopt.study.compare import compare
    from layoutopt.study.comparison import Comparison
    from layoutopt.study.explain import Explanation, explain
    from layoutopt.study.launches import check_kernel, import_kernel
    from layoutopt.study.solve import solve
    from layoutopt.sweeps.sweep import sweep

_HOMES = {
    "__version__": "layoutopt.ground.version",
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
    "solve": "layoutopt.study.solve",
    "sweep": "layoutopt.sweeps.sweep",
}
_RENAMED = {
    "Access": "layoutopt.problems.types.Access",
    "Sweep": "layoutopt.sweeps.sweep.Sweep",
    "Tile": "layoutopt.problems.types.Tile",
    "TileSet": "layoutopt.Block",
    "arrange": "layoutopt.solve",
    "check_tiles": "layoutopt.check",
    "compare_tiles": "layoutopt.compare",
    "explain_tiles": "layoutopt.explain",
    "load_any": "layoutopt.load",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # where types are checked, a name that is misspelt must be an error

    def __getattr__(name: str) -> object:
        """Public names are imported on first use: the command line's `--help` needs none of them.

        Names of the last release that others replace work, with a warning.
        """
        from importlib import import_module

        if name == "errors":
            return import_module("layoutopt.errors")
        if name in _RENAMED:
            from warnings import warn

            new = _RENAMED[name]
            warn(f"layoutopt.{name} is now {new}", DeprecationWarning, stacklevel=2)
            home, _, name = new.rpartition(".")
            return getattr(import_module(home), name)
        if name not in _HOMES:
            raise AttributeError(f"module 'layoutopt' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
