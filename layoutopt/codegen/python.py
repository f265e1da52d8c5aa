"""Code from Python: `layoutopt.emit`."""

from __future__ import annotations

from layoutopt.codegen import languages
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import described
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Result
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Problem
from layoutopt.search.solve import solve
from layoutopt.study.known import check_result


def emit(
    problem: Problem,
    layout: Result | str | None = None,
    *,
    lang: str = "cuda",
    target: Device | str | None = None,
    time_limit: float | None = None,
) -> str:
    """A layout as code: the offset of an element, and the addresses of each access.

    Args:
        problem: the tile and its accesses.
        layout: a result of `solve`; or element offsets as an expression over x0, x1, ...; None solves.
        lang: cuda, hip, opencl, c, cute, gluon, tilelang or numba.
        target: the device or its name, where it is not the one the problem names.
        time_limit: seconds to solve; None for no limit.

    Raises:
        LayoutError: there is no layout, or the language cannot express it.
        ProblemFileError: there is no such language, the result is not one of this problem and device, or the
            problem contradicts itself.
    """
    if not isinstance(lang, str) or lang not in LANGUAGES:
        raise ProblemFileError("lang", f"expected one of {', '.join(LANGUAGES)}, got {described(lang)}")
    gpu = target_of(problem, target, Problem)
    if layout is not None and not isinstance(layout, str):
        check_result(problem, gpu, layout)
    answer = layout if layout is not None else solve(problem, target=gpu, time_limit=time_limit)
    return languages.emit(lang, problem, gpu, answer)
