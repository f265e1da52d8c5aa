"""Code from Python: `layoutopt.emit`."""

from __future__ import annotations

from layoutopt.codegen.block import code_of
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.ground.escape import described
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, Result
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Block, Problem
from layoutopt.search.block import solve
from layoutopt.study.block import placed
from layoutopt.study.known import check_answer


def emit(
    problem: Problem | Block,
    layout: Result | Arrangement | str | None = None,
    *,
    lang: str = "cuda",
    target: Device | str | None = None,
    time_limit: float | None = None,
) -> str:
    """A layout as code: the offset of an element, and the addresses of each access.

    Args:
        problem: the tile and its accesses, or several.
        layout: an answer of `solve`; or, of one tile, element offsets as an expression over x0, x1, ...; None
            solves.
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
    gpu = target_of(problem, target)
    if layout is not None and not isinstance(layout, str):
        check_answer(problem, gpu, layout)
    if isinstance(layout, str) and isinstance(problem, Block):
        raise ProblemFileError("layout", "a formula is for one tile; of several, the answer of solve")
    answer = layout if layout is not None else solve(problem, target=gpu, time_limit=time_limit)
    if not isinstance(answer, str) and not answer.has_layout:
        raise LayoutError(f"the result has no layout (status {answer.status}), so there is no code")
    return code_of(lang, placed(problem, gpu, answer))
