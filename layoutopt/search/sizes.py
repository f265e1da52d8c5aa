"""One formula for many sizes of a tile: what a kernel template needs, whose extents are its parameters.

    "tile": {"shape": ["M", "N"], ...}, "sizes": [{"M": 64, "N": 32}, {"M": 128, "N": 64}]

A size may name the element, too (`"element": "T"`, `{"T": "f16", "M": 64, ...}`), for which one kernel is
instantiated. The candidates are formulas over the extents and, where it varies, the size of an element: the
dimensions in any order (up to three of them), with a pad (`x0*(N + 4) + x1`), an XOR of the last coordinate
by bits of the row (`x0*N + (x1 ^ x0 // a % b * c)`), or a pad after every so many elements. Each is counted
by the conflict engine at every lane of every size; the least weighted excess over all sizes is taken, then
the fewest bytes, then the fewest operations. That no other formula serves the sizes better is not proved.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from layoutopt.accesses.free_lanes import is_free
from layoutopt.accesses.trace import MAX_LANE_ACCESSES
from layoutopt.engine.case import Case, cases
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.grammar import Const, Node, Op, Var, parse, substituted
from layoutopt.expressions.simplify import Range, operations, simplify
from layoutopt.files.templates import Values
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import has_xor
from layoutopt.problems.types import Problem

ELEMENT: Final = "element_bytes"  # in a formula: the size of an element, where it differs from size to size
_PADS: Final = 32  # of one vector each
_POWERS: Final = (1, 2, 4, 8, 16, 32)
_LINE_BYTES: Final = 128
_MAX_ORDERED: Final = 3  # dimensions whose orders are tried

# Weighted excess, bytes and operations; whether it has a pad.
_Cost = tuple[float, int, int, bool]


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

    values: Values
    case: Case
    offset: Node
    excess: float
    bytes: int
    alignment_bytes: int


@dataclass(frozen=True, slots=True)
class CommonFormula:
    """A formula that holds every size.

    Attributes:
        offset: element offset over x0, x1, ..., the parameters, and `ELEMENT` where that differs.
        sizes: what it costs at each size, in the order of the file.
    """

    offset: Node
    sizes: tuple[Size, ...]


def common_formula(
    shape: Sequence[Any],
    problems: Sequence[tuple[Values, Problem]],
    gpu: Device,
    budget: Budget | None = None,
) -> CommonFormula:
    """The best formula over the extents for all sizes; the best so far where the time is over.

    Args:
        shape: the extents as the file has them: integers, or expressions over the parameters.
        problems: the values of the parameters, and the problem, for each size. A parameter that is a word is
            the element's name.
        gpu: the target.
        budget: the time there is; None for no limit.

    Raises:
        LayoutError: none of the candidates holds every size within the constraints.
        OutOfTime: the time was over before one was found that does.
        ProblemFileError: the problems fix their layout, or have too many accesses together.
    """
    for _, problem in problems:
        if problem.is_dictated or problem.layout.offset is not None:
            raise ProblemFileError(
                "layout", "one formula is sought for all sizes; offset, must_be and the hardware fix it"
            )
        if not problem.layout.objective.excess_first:
            raise ProblemFileError(
                "layout.minimise",
                f"one formula for all sizes is sought for excess first, not {problem.layout.minimise}",
            )
        if is_free(problem):
            raise ProblemFileError("accesses", "one formula for all sizes needs lanes that are fixed")
    names = frozenset(name for name, value in problems[0][0].items() if isinstance(value, int))
    if ELEMENT in names:
        raise ProblemFileError(f"sizes[0].{ELEMENT}", "means the size of an element; choose another name")
    extents = [parse(str(extent), names) for extent in shape]
    budget = budget or Budget()
    known = _known(problems, gpu, budget)
    best: tuple[_Cost, Node, list[Size]] | None = None
    for padded, candidate in budget.while_left(_candidates(extents, known)):
        if best is not None and padded and best[0][0] == 0 and not best[0][3]:
            break  # nothing with a pad has fewer bytes
        found = _counted(candidate, known, padded, best[0] if best is not None else None, budget)
        if found is not None and (best is None or found[0] < best[0]):
            best = found[0], candidate, found[1]
    if best is None:
        if budget.ran_out:
            raise OutOfTime("formulas were counted at every size")
        raise LayoutError("no formula with one pad or XOR holds every size within the constraints")
    _, offset, sizes = best
    return CommonFormula(simplify(offset, formula_ranges(sizes)), tuple(sizes))


def _known(
    problems: Sequence[tuple[Values, Problem]], gpu: Device, budget: Budget
) -> list[tuple[Values, list[Case]]]:
    """The cases of every size, all of which are held at once."""
    known: list[tuple[Values, list[Case]]] = []
    lanes = 0
    for values, problem in problems:
        known.append((values, []))
        for case in cases(problem, gpu, budget):
            known[-1][1].append(case)
            lanes += sum(access.element.size for access in case.lanes.accesses)
            if lanes > MAX_LANE_ACCESSES:
                raise ProblemFileError(
                    f"sizes[{len(known) - 1}]",
                    f"more than {MAX_LANE_ACCESSES:,} lane accesses of all sizes together; take fewer",
                )
    return known


def formula_ranges(sizes: Sequence[Size]) -> dict[str, Range]:
    """Of the parameters, of `ELEMENT` and of the coordinates, over all sizes."""
    known: dict[str, list[int]] = {}
    for size in sizes:
        numbers = {name: value for name, value in size.values.items() if isinstance(value, int)}
        for name, value in {**numbers, ELEMENT: size.case.problem.tile.storage.element_bytes}.items():
            known.setdefault(name, []).append(value)
    shapes = [size.case.problem.tile.shape for size in sizes]
    extents = {f"x{d}": (0, max(shape[d] for shape in shapes) - 1) for d in range(len(shapes[0]))}
    return {**{name: (min(values), max(values)) for name, values in known.items()}, **extents}


def _candidates(
    extents: Sequence[Node], known: Sequence[tuple[Values, list[Case]]]
) -> Iterator[tuple[bool, Node]]:
    """What the constraints of every size allow, those without pads first; whether it has one."""
    every = [case.problem for _, found in known for case in found[:1]]

    def allowed(family: str) -> bool:
        return all(one.layout.families is None or family in one.layout.families for one in every)

    vector, given = _vector(known), every[0].layout.order
    first = given or tuple(range(len(extents)))
    orders = [first]
    if allowed("order") and len(extents) <= _MAX_ORDERED and given is None:
        orders = list(itertools.permutations(first))
    for order in orders:
        yield False, _in_order(extents, order)
    if allowed("xor") and len(extents) > 1:
        last, row, length = Var(f"x{first[-1]}"), _rows(extents, first), extents[first[-1]]
        for apart, many in itertools.product(_POWERS[:4], _POWERS[1:]):
            bits = Op("%", (Op("//", (row, Const(apart))), Const(many)))
            flipped = Op("^", (last, Op("*", (bits, vector))))
            yield False, Op("+", (Op("*", (row, length)), flipped))
    if allowed("pad") and len(extents) > 1:
        for pad, order in itertools.product(range(1, _PADS + 1), orders):
            yield True, _in_order(extents, order, Op("*", (Const(pad), vector)))
    if allowed("interval"):
        whole = _in_order(extents, first)
        for lines, pad in itertools.product(_POWERS[:5], _POWERS[:3]):
            after = Op("//", (Const(lines * _LINE_BYTES), _element_bytes(known)))
            turns = Op("//", (whole, after))
            yield True, Op("+", (whole, Op("*", (turns, Op("*", (Const(pad), vector))))))


def _element_bytes(known: Sequence[tuple[Values, list[Case]]]) -> Node:
    """The size of an element: a number where it is the same at every size."""
    every = {found[0].problem.tile.storage.element_bytes for _, found in known}
    return Const(every.pop()) if len(every) == 1 else Var(ELEMENT)


def _vector(known: Sequence[tuple[Values, list[Case]]]) -> Node:
    """Elements of the widest access: the same at every size, or the same bytes, else the most of any size."""
    widths = [
        # Lanes cover units, formulas count elements.
        max(lanes.width_elements for case in found for lanes in case.lanes.accesses)
        * found[0].problem.tile.packed
        for _, found in known
    ]
    sizes = [found[0].problem.tile.storage.element_bytes for _, found in known]
    whole = {width * size for width, size in zip(widths, sizes, strict=True)}
    if len(set(widths)) > 1 and len(whole) == 1:
        return Op("//", (Const(whole.pop()), Var(ELEMENT)))
    return Const(max(widths))


def _in_order(extents: Sequence[Node], order: tuple[int, ...], pad: Node | None = None) -> Node:
    """The dimensions from the outermost to the contiguous one, whose lines may be padded."""
    last: Node = Var(f"x{order[-1]}")
    if len(order) == 1:
        return last
    pitch = extents[order[-1]] if pad is None else Op("+", (extents[order[-1]], pad))
    return Op("+", (Op("*", (_rows(extents, order), pitch)), last))


def _rows(extents: Sequence[Node], order: tuple[int, ...]) -> Node:
    """The index of a line: of all dimensions but the contiguous one."""
    first: Node = Var(f"x{order[0]}")
    for d in order[1:-1]:
        first = Op("+", (Op("*", (first, extents[d])), Var(f"x{d}")))
    return first


def _counted(
    candidate: Node,
    known: Sequence[tuple[Values, list[Case]]],
    padded: bool,
    limit: _Cost | None,
    budget: Budget,
) -> tuple[_Cost, list[Size]] | None:
    """The cost of a candidate and what it is at every size; None where it does not fit or costs more.

    None, too, where the time is over before it is counted.
    """
    sizes, weighted = [], 0.0
    for values, every in known:
        if budget.spent:
            return None
        node = at_size(candidate, values, every[0].problem)
        served = [found for case in every if (found := _serves(case, node)) is not None]
        if not served:
            return None
        _, case, excess = min(served, key=lambda entry: entry[0])
        weighted += excess / case.lanes.weight_unit
        if limit is not None and weighted > limit[0]:
            return None
        table = case.table(node)
        reports = case.reports(case.count(table))
        size = case.size(table)
        total = sum(report.excess for report in reports)
        sizes.append(Size(values, case, node, total, size, case.alignment(has_xor(node))))
    return (weighted, sum(size.bytes for size in sizes), operations(candidate), padded), sizes


def at_size(candidate: Node, values: Values, problem: Problem) -> Node:
    """The formula over x0, x1, ... at one size."""
    ranges = {f"x{d}": (0, extent - 1) for d, extent in enumerate(problem.tile.shape)}
    numbers = {name: value for name, value in values.items() if isinstance(value, int)}
    numbers[ELEMENT] = problem.tile.storage.element_bytes
    return simplify(substituted(candidate, {name: Const(value) for name, value in numbers.items()}), ranges)


def _serves(case: Case, node: Node) -> tuple[float, Case, float] | None:
    """Weighted wavefronts and excess of a formula, where it keeps to everything that is asked."""
    layout = case.problem.layout
    try:
        table = case.table(node)
        case.check(table)
    except LayoutError:
        return None
    if layout.max_bytes is not None and case.size(table) > layout.max_bytes:
        return None
    if layout.alignment_bytes is not None and case.alignment(has_xor(node)) > layout.alignment_bytes:
        return None
    multiple = layout.pitch_multiple_bytes
    if multiple is not None and any(pitch % multiple for pitch in _pitches(case, table)):
        return None
    counts = case.count(table)
    return case.weighted_wavefronts(counts), case, case.weighted_excess(counts)


def _pitches(case: Case, table: IntArray) -> list[int]:
    """Bytes from one index to the next of every dimension but the contiguous one."""
    places = table.reshape(case.lowered.tile.shape)
    wide = [d for d, extent in enumerate(places.shape) if extent > 1]
    steps = (int(places[tuple(int(k == d) for k in range(places.ndim))]) for d in wide)
    return sorted(abs(step) for step in steps)[1:]
