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
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from layoutopt.accesses.free_lanes import is_free
from layoutopt.accesses.trace import MAX_LANE_ACCESSES
from layoutopt.engine.case import Case, cases
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.grammar import Const, Node, parse, substituted
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


@dataclass(frozen=True, slots=True)
class Size:
    """One size under the common formula.

    Attributes:
        values: of the parameters.
        case: the problem, with the widths that cost least.
        offset: element offset over x0, x1, ...
        weighted: excess wavefronts, with weights.
        excess: excess wavefronts, weights not applied.
        bytes: last offset plus element size.
        alignment_bytes: of the base.
    """

    values: Values
    case: Case
    offset: Node
    weighted: float
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

    @property
    def cost(self) -> tuple[float, int, int]:
        """Weighted excess, then bytes, of all sizes, then operations of the formula."""
        excess, size = sum(one.weighted for one in self.sizes), sum(one.bytes for one in self.sizes)
        return excess, size, operations(self.offset)


# The values of the parameters, and the problem's cases, one for each choice of widths.
Asked = Sequence[tuple[Values, list[Case]]]


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

    Raises:
        LayoutError: none of the candidates holds every size within the constraints.
        OutOfTime: the time was over before one was found that does.
        ProblemFileError: the problems fix their layout, or have too many accesses together.
    """
    budget = budget or Budget()
    asked = _asked(problems, gpu, budget)
    names = frozenset(name for name, value in problems[0][0].items() if isinstance(value, int))
    if ELEMENT in names:
        raise ProblemFileError(f"sizes[0].{ELEMENT}", "means the size of an element; choose another name")
    known = names | {ELEMENT} | {f"x{d}" for d in range(len(shape))}
    best: CommonFormula | None = None
    unpadded = False
    for padded, text in budget.while_left(_candidates([f"({extent})" for extent in shape], asked)):
        if best is not None and padded and best.cost[0] == 0 and unpadded:
            break  # nothing with a pad has fewer bytes
        most = best.cost[0] if best is not None else math.inf
        found = _counted(parse(text, known), asked, most, budget)
        if found is not None and (best is None or found.cost < best.cost):
            best, unpadded = found, not padded
    if best is None:
        if budget.ran_out:
            raise OutOfTime("formulas were counted at every size")
        raise LayoutError("no formula with one pad or XOR holds every size within the constraints")
    return replace(best, offset=simplify(best.offset, formula_ranges(best.sizes)))


def _asked(problems: Sequence[tuple[Values, Problem]], gpu: Device, budget: Budget) -> Asked:
    known: list[tuple[Values, list[Case]]] = []
    lanes = 0
    for number, (values, problem) in enumerate(problems):
        if problem.is_dictated or problem.layout.offset is not None:
            raise ProblemFileError(
                "layout", "one formula is sought for all sizes; offset, must_be and the hardware fix it"
            )
        if not problem.layout.objective.excess_first:
            first = problem.layout.minimise
            raise ProblemFileError(
                "layout.minimise", f"one formula for all sizes is sought for excess first, not {first}"
            )
        if is_free(problem):
            raise ProblemFileError("accesses", "one formula for all sizes needs lanes that are fixed")
        known.append((values, []))
        for case in cases(problem, gpu, budget):
            known[-1][1].append(case)
            lanes += sum(access.element.size for access in case.lanes.accesses)
            if lanes > MAX_LANE_ACCESSES:
                most = f"more than {MAX_LANE_ACCESSES:,} lane accesses of all sizes together; take fewer"
                raise ProblemFileError(f"sizes[{number}]", most)
    return known


def _counted(candidate: Node, asked: Asked, most: float, budget: Budget) -> CommonFormula | None:
    """What a candidate is at every size.

    None where it does not fit, has more weighted excess than `most`, or the time is over before that.
    """
    sizes: list[Size] = []
    for values, found in asked:
        offset = at_size(candidate, values, found[0].problem)
        each = [] if budget.spent else [_served(values, case, offset) for case in found]
        served = [one for one in each if one is not None]
        if not served:
            return None
        sizes.append(min(served, key=lambda one: one[0])[1])
        if sum(size.weighted for size in sizes) > most:
            return None
    return CommonFormula(candidate, tuple(sizes))


def at_size(candidate: Node, values: Values, problem: Problem) -> Node:
    """The formula over x0, x1, ... at one size."""
    ranges = {f"x{d}": (0, extent - 1) for d, extent in enumerate(problem.tile.shape)}
    numbers = {name: Const(value) for name, value in values.items() if isinstance(value, int)}
    numbers[ELEMENT] = Const(problem.tile.storage.element_bytes)
    return simplify(substituted(candidate, numbers), ranges)


def _served(values: Values, case: Case, offset: Node) -> tuple[float, Size] | None:
    """Weighted wavefronts of a formula, and the size, where it keeps to everything that is asked."""
    asked = case.problem.layout
    try:
        table = case.table(offset)
        case.check(table)
    except LayoutError:
        return None
    size, alignment = case.size(table), case.alignment(has_xor(offset))
    if size > (asked.max_bytes or math.inf) or alignment > (asked.alignment_bytes or math.inf):
        return None
    if any(pitch % (asked.pitch_multiple_bytes or 1) for pitch in _pitches(case, table)):
        return None
    counts = case.count(table)
    weighted = case.weighted_excess(counts) / case.lanes.weight_unit
    plain = sum(report.excess for report in case.reports(counts))
    return case.weighted_wavefronts(counts), Size(values, case, offset, weighted, plain, size, alignment)


def _pitches(case: Case, table: IntArray) -> list[int]:
    """Bytes from one index to the next of every dimension but the contiguous one."""
    places = table.reshape(case.lowered.tile.shape)
    wide = [d for d, extent in enumerate(places.shape) if extent > 1]
    steps = (int(places[tuple(int(k == d) for k in range(places.ndim))]) for d in wide)
    return sorted(abs(step) for step in steps)[1:]


def formula_ranges(sizes: Sequence[Size]) -> dict[str, Range]:
    """Of the parameters, of `ELEMENT` and of the coordinates, over all sizes."""
    known: dict[str, list[int]] = {}
    for size in sizes:
        tile = size.case.problem.tile
        numbers = {name: value for name, value in size.values.items() if isinstance(value, int)}
        for name, value in {**numbers, ELEMENT: tile.storage.element_bytes}.items():
            known.setdefault(name, []).append(value)
        for d, extent in enumerate(tile.shape):
            known.setdefault(f"x{d}", [0]).append(extent - 1)
    return {name: (min(values), max(values)) for name, values in known.items()}


def _candidates(extents: Sequence[str], every: Asked) -> Iterator[tuple[bool, str]]:
    """Formulas that the constraints of every size allow, those without pads first; whether one has a pad."""
    layouts = [found[0].problem.layout for _, found in every]

    def allowed(family: str) -> bool:
        return all(one.families is None or family in one.families for one in layouts)

    sizes = {found[0].problem.tile.storage.element_bytes for _, found in every}
    element, vector = str(sizes.pop()) if len(sizes) == 1 else ELEMENT, _vector(every)
    given = layouts[0].order
    first = given or tuple(range(len(extents)))
    row, last = _row(extents, first), first[-1]
    orders = [first]
    if allowed("order") and len(first) <= _MAX_ORDERED and given is None:
        orders = list(itertools.permutations(first))
    for order in orders:
        yield False, _in_order(extents, order)
    if allowed("xor") and len(first) > 1:
        for apart, many in itertools.product(_POWERS[:4], _POWERS[1:]):
            yield False, f"{row}*{extents[last]} + (x{last} ^ {row} // {apart} % {many} * ({vector}))"
    if allowed("pad") and len(first) > 1:
        for pad, order in itertools.product(range(1, _PADS + 1), orders):
            yield True, _in_order(extents, order, f"{pad}*({vector})")
    if allowed("interval"):
        whole = _in_order(extents, first)
        for lines, pad in itertools.product(_POWERS[:5], _POWERS[:3]):
            every_so_many = f"({lines * _LINE_BYTES} // {element})"
            yield True, f"{whole} + ({whole}) // {every_so_many} * ({pad}*({vector}))"


def _vector(every: Asked) -> str:
    """Elements of the widest access: the same at every size, or the same bytes, else the most of any size."""
    widths, whole = set(), set()
    for _, found in every:
        tile = found[0].problem.tile
        # Lanes cover units, formulas count elements.
        width = max(lanes.width_elements for case in found for lanes in case.lanes.accesses) * tile.packed
        widths.add(width)
        whole.add(width * tile.storage.element_bytes)
    if len(widths) > 1 and len(whole) == 1:
        return f"{whole.pop()} // {ELEMENT}"
    return str(max(widths))


def _in_order(extents: Sequence[str], order: tuple[int, ...], pad: str = "") -> str:
    """The dimensions from the outermost to the contiguous one, whose lines may be padded."""
    last = order[-1]
    if len(order) == 1:
        return f"x{last}"
    pitch = f"({extents[last]} + {pad})" if pad else extents[last]
    return f"{_row(extents, order)}*{pitch} + x{last}"


def _row(extents: Sequence[str], order: tuple[int, ...]) -> str:
    row = f"x{order[0]}"
    for d in order[1:-1]:
        row = f"({row}*{extents[d]} + x{d})"
    return row
