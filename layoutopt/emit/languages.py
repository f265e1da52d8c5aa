"""The languages, and from a result or a formula to code in one of them."""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np

from layoutopt import __version__
from layoutopt.accesses import trace
from layoutopt.conflicts import count_wavefronts
from layoutopt.devices import Device
from layoutopt.emit.plan import Plan, make_plan
from layoutopt.errors import ExpressionError, LayoutError
from layoutopt.expressions import evaluate, parse, to_text
from layoutopt.formula import offset_expression
from layoutopt.model import AccessReport, Problem, Result

# One module each, with `emit(plan)`, `SUFFIX` and, where addresses count elements, `UNIT = "element"`.
LANGUAGES: Final = {
    name: f"layoutopt.emit.{name}"
    for name in ("cuda", "hip", "opencl", "c", "cute", "gluon", "tilelang", "numba")
}


def emit(language: str, problem: Problem, gpu: Device, answer: Result | str) -> str:
    """Code in `language`, one of `LANGUAGES`.

    Args:
        language: which.
        problem: the tile and its accesses.
        gpu: the target.
        answer: a result with a layout, or element offsets as an expression over x0, x1, ...

    Raises:
        LayoutError: the language cannot express the layout, or the formula does not hold the tile.
        ExpressionError: the formula cannot be read.
        VerificationError: the code would not equal the layout's table. Our bug.
    """
    module: Any = importlib.import_module(LANGUAGES[language])
    unit = problem.tile.element_bytes if getattr(module, "UNIT", "byte") == "element" else 1
    text: str = module.emit(plan(problem, gpu, answer, unit))
    return text


def plan(problem: Problem, gpu: Device, answer: Result | str, unit_bytes: int = 1) -> Plan:
    """The plan of a result that has a layout, or of a formula; see `emit`."""
    if isinstance(answer, str):
        return _of_formula(problem, gpu, answer, unit_bytes)
    layout, proof = answer.layout, answer.proof
    if layout is None:
        raise LayoutError(f"the result has no layout (status {answer.status}), so there is no code")
    about = [
        f"{problem.name} on {answer.target}: layout by layoutopt {__version__}",
        f"element offset = {answer.offset}",
        f"{answer.bytes} bytes, {answer.excess} excess wavefronts; {answer.status}: "
        f"excess >= {proof.excess.lower_bound} ({proof.excess.scope}), "
        f"bytes >= {proof.bytes.lower_bound} ({proof.bytes.scope})",
    ]
    return make_plan(
        problem,
        gpu,
        offset_expression(layout),
        layout.table(),
        reports=answer.accesses if problem.accesses else (),
        layout=layout,
        alignment_bytes=answer.alignment_bytes or 1,
        about=about,
        unit_bytes=unit_bytes,
    )


def _of_formula(problem: Problem, gpu: Device, text: str, unit_bytes: int) -> Plan:
    shape, size = problem.tile.shape, problem.tile.element_bytes
    grids = {f"x{d}": g for d, g in enumerate(np.indices(shape, dtype=np.int64, sparse=True))}
    try:
        node = parse(text, frozenset(grids))
        table = np.broadcast_to(evaluate(node, grids), shape) * size
    except ExpressionError as error:
        raise ExpressionError(error.reason, error.position, "offset") from None
    if table.min() < 0 or len(np.unique(table)) != table.size:
        raise LayoutError(f"{to_text(node)} does not hold the tile: elements overlap or lie before its start")
    reports = []
    lanes = trace(problem, gpu).accesses
    for access in lanes:
        counts = count_wavefronts(table.ravel()[access.element], access.active, access.operation, gpu)
        waves, ideal = int(counts.wavefronts.sum()), int(counts.ideal.sum())
        conflicts = int(counts.bank_conflicts.sum())
        reports.append(AccessReport(access.name, access.op, waves, ideal, waves - ideal, conflicts))
    row = max((gpu.rule(a.operation).banks for a in lanes), default=1) * gpu.bank_bytes
    about = [
        f"{problem.name} on {gpu.name}: a given layout; code by layoutopt {__version__}",
        f"element offset = {to_text(node)}",
        f"{int(table.max()) + size} bytes, {sum(r.excess for r in reports)} excess wavefronts",
    ]
    return make_plan(
        problem, gpu, node, table, reports=reports, layout=None, alignment_bytes=row,
        about=about, unit_bytes=unit_bytes,
    )  # fmt: skip
