"""One formula for many sizes of a tile: what a kernel template needs, whose extents are its parameters.

    "tile": {"shape": ["M", "N"], ...}, "sizes": [{"M": 64, "N": 32}, {"M": 128, "N": 64}]

The candidates are row-major formulas over the extents, with a pad (`x0*(N + 4) + x1`) or an XOR of the last
coordinate by bits of the row (`x0*N + (x1 ^ x0 // a % b * c)`). Each is counted by the conflict engine at
every lane of every size; the least weighted excess over all sizes is taken, then the fewest bytes, then the
fewest operations. That no other formula serves the sizes better is not proved.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from layoutopt.engine.case import Case, cases
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.count import operations
from layoutopt.expressions.grammar import Const, Node, Op, Var, parse, substituted
from layoutopt.expressions.simplify import simplify
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import has_xor
from layoutopt.problems.types import Problem

_PADS: Final = 32  # of one vector each
_POWERS: Final = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Size:
    """One size under the common formula.

    Attributes:
        values: of the parameters.
        case: the problem, with the widths that cost least.
        offset: element offset over x0, x1, ...
        excess: excess wavefronts, weights not applied.
        bytes: last offset plus element size.
        alignment_bytes: of the base.
    """

    values: dict[str, int]
    case: Case
    offset: Node
    excess: float
    bytes: int
    alignment_bytes: int


@dataclass(frozen=True, slots=True)
class CommonFormula:
    """A formula that holds every size.

    Attributes:
        offset: element offset over x0, x1, ... and the parameters.
        sizes: what it costs at each size, in the order of the file.
    """

    offset: Node
    sizes: tuple[Size, ...]


def common_formula(
    shape: Sequence[Any], problems: Sequence[tuple[dict[str, int], Problem]], gpu: Device
) -> CommonFormula:
    """The best formula over the extents for all sizes.

    Args:
        shape: the extents as the file has them: integers, or expressions over the parameters.
        problems: the values of the parameters, and the problem, for each size.
        gpu: the target.

    Raises:
        LayoutError: none of the candidates holds every size within the constraints.
        ProblemFileError: the problems fix their layout.
    """
    for _, problem in problems:
        if problem.is_dictated or problem.layout.offset is not None:
            raise ProblemFileError(
                "layout", "one formula is sought for all sizes; offset, must_be and the hardware fix it"
            )
    names = frozenset(problems[0][0])
    extents = [parse(str(extent), names) for extent in shape]
    known = [(values, list(cases(problem, gpu))) for values, problem in problems]
    found = [
        (cost, candidate, sizes)
        for candidate in _candidates(extents, known)
        for cost, sizes in _counted(candidate, known)
    ]
    if not found:
        raise LayoutError("no formula with one pad or XOR holds every size within the constraints")
    _, offset, sizes = min(found, key=lambda entry: entry[0])
    shapes = [problem.tile.shape for _, problem in problems]
    ranges = {f"x{d}": (0, max(shape[d] for shape in shapes) - 1) for d in range(len(shape))}
    for name in names:
        every = [values[name] for values, _ in problems]
        ranges[name] = min(every), max(every)
    return CommonFormula(simplify(offset, ranges), tuple(sizes))


def _candidates(
    extents: Sequence[Node], known: Sequence[tuple[dict[str, int], list[Case]]]
) -> Iterator[Node]:
    """Row-major first, then pads and XORs that the constraints of every size allow."""
    allowed = [case.problem.layout.families for _, every in known for case in every[:1]]
    vector = max(
        lanes.width_elements for _, every in known for case in every for lanes in case.lanes.accesses
    )
    packed = known[0][1][0].problem.tile.packed
    vector *= packed  # lanes cover units, formulas count elements
    yield _row_major(extents, 0)
    if all(families is None or "pad" in families for families in allowed) and len(extents) > 1:
        for pad in range(1, _PADS + 1):
            yield _row_major(extents, pad * vector)
    if all(families is None or "xor" in families for families in allowed) and len(extents) > 1:
        last, row = Var(f"x{len(extents) - 1}"), _rows(extents)
        for apart, many in itertools.product(_POWERS[:4], _POWERS[1:]):
            bits = Op("%", (Op("//", (row, Const(apart))), Const(many)))
            flipped = Op("^", (last, Op("*", (bits, Const(vector)))))
            yield Op("+", (Op("*", (row, extents[-1])), flipped))


def _rows(extents: Sequence[Node]) -> Node:
    """The row-major index of all coordinates but the last."""
    outer = list(zip(extents, (Var(f"x{d}") for d in range(len(extents) - 1)), strict=False))
    first: Node = outer[0][1]
    return reduce(lambda row, part: Op("+", (Op("*", (row, part[0])), part[1])), outer[1:], first)


def _row_major(extents: Sequence[Node], pad: int) -> Node:
    last = Var(f"x{len(extents) - 1}")
    if len(extents) == 1:
        return last
    pitch = extents[-1] if pad == 0 else Op("+", (extents[-1], Const(pad)))
    return Op("+", (Op("*", (_rows(extents), pitch)), last))


def _counted(
    candidate: Node, known: Sequence[tuple[dict[str, int], list[Case]]]
) -> Iterator[tuple[tuple[float, int, int], list[Size]]]:
    """The cost of a candidate and what it is at every size; nothing where one size cannot have it."""
    sizes, weighted = [], 0.0
    for values, every in known:
        node = at_size(candidate, values, every[0].problem)
        served = [found for case in every if (found := _serves(case, node)) is not None]
        if not served:
            return
        _, case, excess = min(served, key=lambda entry: entry[0])
        weighted += excess / case.lanes.weight_unit
        table = case.table(node)
        reports = case.reports(case.count(table))
        size = case.size(table)
        total = sum(report.excess for report in reports)
        sizes.append(Size(values, case, node, total, size, case.alignment(has_xor(node))))
    yield (weighted, sum(size.bytes for size in sizes), operations(candidate)), sizes


def at_size(candidate: Node, values: Mapping[str, int], problem: Problem) -> Node:
    """The formula over x0, x1, ... at one size."""
    ranges = {f"x{d}": (0, extent - 1) for d, extent in enumerate(problem.tile.shape)}
    return simplify(substituted(candidate, {name: Const(value) for name, value in values.items()}), ranges)


def _serves(case: Case, node: Node) -> tuple[float, Case, float] | None:
    """Weighted wavefronts and excess of a formula, where it keeps to everything that is asked."""
    layout, element = case.problem.layout, case.lowered.tile.element_bytes
    try:
        table = case.table(node)
        case.check(table)
    except LayoutError:
        return None
    if layout.max_bytes is not None and case.size(table) > layout.max_bytes:
        return None
    if layout.alignment_bytes is not None and case.alignment(has_xor(node)) > layout.alignment_bytes:
        return None
    shape = case.lowered.tile.shape
    if layout.pitch_multiple_bytes is not None and len(shape) > 1:
        strides = table.reshape(shape)
        pitch = int(strides[(0,) * (len(shape) - 2)][1, 0]) if shape[-2] > 1 else element
        if pitch % layout.pitch_multiple_bytes:
            return None
    counts = case.count(table)
    return case.weighted_wavefronts(counts), case, case.weighted_excess(counts)
