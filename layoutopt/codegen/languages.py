"""From a result or a formula to what is printed of it, in any language."""

import msgspec

from layoutopt.accesses.lower import (
    assigned,
    byte_table,
    bytes_formula,
    chosen_widths,
    named_choices,
    offset_formula,
    stored,
    with_loops,
    with_widths,
)
from layoutopt.accesses.view import view_of
from layoutopt.codegen.plan import Plan, make_plan
from layoutopt.engine.case import case_under
from layoutopt.engine.referee import rounded_count
from layoutopt.errors import ExpressionError, LayoutError
from layoutopt.expressions.grammar import Const, Op, to_text
from layoutopt.ground.version import __version__
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import has_xor, offset_expression
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Problem, Structure
from layoutopt.search.choices import settled_under


def plan(problem: Problem, gpu: Device, answer: Result | str, unit_bytes: int = 1) -> Plan:
    """The plan of a result that has a layout, or of element offsets as an expression over x0, x1, ...

    Raises:
        LayoutError: the result has no layout, or the formula does not hold the tile.
        ExpressionError: the formula cannot be read.
        VerificationError: the code would not equal the layout's table. Our bug.
    """
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
    problem = assigned(problem, answer)
    widths = chosen_widths(problem, answer)
    return make_plan(
        with_loops(with_widths(problem, widths)) if problem.accesses else problem,
        gpu,
        offset_expression(layout),
        reports=answer.accesses if problem.accesses else (),
        layout=layout,
        alignment_bytes=answer.alignment_bytes or 1,
        about=about,
        unit_bytes=unit_bytes,
    )


def run_plan(problem: Problem, gpu: Device, answer: Result | str) -> Plan:
    """The plan of a program that runs every access: packed elements as the bytes that they share.

    Raises:
        LayoutError: what an access costs is not decided by the program.
    """
    if any(access.any for access in problem.accesses):
        raise LayoutError(
            "values known only at run time have a worst case or a mean, which no single run shows; "
            "`layoutopt check` counts them"
        )
    element = problem.tile.element
    if isinstance(element, Structure) and element.type is not None:  # the program does not know the type
        tile = msgspec.structs.replace(problem.tile, element=msgspec.structs.replace(element, type=None))
        problem = msgspec.structs.replace(problem, tile=tile)
    given = answer.offset or "" if isinstance(answer, Result) else answer
    if isinstance(answer, Result):
        problem = with_widths(assigned(problem, answer), chosen_widths(problem, answer))
    if (view := view_of(problem)) is not None:  # the program knows vectors along the last dimension
        seen = to_text(view.offset(offset_formula(given, problem.tile)))
        return plan(view.problem(problem), gpu, seen)
    if problem.tile.packed > 1:
        offset = bytes_formula(offset_formula(given, problem.tile), problem.tile)
        return plan(stored(problem), gpu, to_text(offset))
    return plan(problem, gpu, answer)


def _of_formula(problem: Problem, gpu: Device, text: str, unit_bytes: int) -> Plan:
    tile = problem.tile
    try:
        node = offset_formula(text, tile)
        elements = byte_table(node, tile).repeat(tile.packed)
        settled = settled_under(problem, gpu, elements)
        case = case_under(settled, gpu, node)
        units = node if tile.packed == 1 else Op("//", (node, Const(tile.packed)))
    except ExpressionError as error:
        raise ExpressionError(error.reason, error.position, "offset") from None
    except LayoutError as error:
        raise LayoutError(f"{to_text(node)} cannot hold the tile: {error}") from None
    reports = named_choices(case.measure(node), problem, settled)
    by_hardware = (r.descriptor.alignment_bytes for r in reports if r.descriptor is not None)
    alignment = max([case.alignment(has_xor(node)), *by_hardware])
    about = [
        f"{problem.name} on {gpu.name}: a given layout; code by layoutopt {__version__}",
        f"element offset = {to_text(node)}",
        f"{int(elements.max()) + tile.storage.element_bytes} bytes, "
        f"{rounded_count(sum(r.excess for r in reports))} excess wavefronts",
    ]
    return make_plan(
        with_loops(case.problem), gpu, units, reports=reports, layout=None, alignment_bytes=alignment,
        about=about, unit_bytes=unit_bytes,
    )  # fmt: skip
