"""Problems in plainer words: what the file may say, as what the search and the emitters know.

Elements of less than a byte move together with those that share their byte: an access starts at a
whole byte and covers whole bytes, so that a tile of them is a tile of bytes.

    128x64 of 4 bits, index [row, 32*k]   ->   128x32 bytes, index [row, (32*k) // 2]

Values known only at run time become loops where all that matters is which elements an access touches:

    "any": {"bin": 256}   ->   "for": {"bin": 256}

A width that may change becomes one problem for each choice, where a narrower access is executed more often:

    "bytes": [16, 8], index [row, 4*k] of f32   ->   "bytes": 8, index [row, 4*k + 2*part], "for": {"part": 2}
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.view import View, vector_steps, view_of
from layoutopt.errors import LayoutError, ProblemFileError, under
from layoutopt.expressions.grammar import Const, Node, Op, Var, parse, substituted, tabulated
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import IntArray
from layoutopt.layout.formula import coordinate_ranges
from layoutopt.problems.answer import AccessReport, Result
from layoutopt.problems.types import Access, Problem, Tile

Report = TypeVar("Report", bound=Struct)  # of one access, with a field `bytes`

MAX_WIDTH_CHOICES: Final = 16


class Lowered(NamedTuple):
    """A problem with one width for each access, and what layouts are sought and counted for in its place."""

    problem: Problem  # its elements may share bytes
    lowered: Problem  # over whole bytes, vectors along the last dimension
    view: View | None  # how `lowered` has the coordinates, where that is another order; else None


def lowered(problem: Problem) -> Lowered:
    """The problem, with one width for each access, over whole bytes, vectors along the last dimension.

    Raises:
        ProblemFileError: as `layoutopt.accesses.view.View.problem`.
    """
    in_bytes = stored(problem)
    view = view_of(in_bytes)
    return Lowered(problem, in_bytes if view is None else view.problem(in_bytes), view)


def stored(problem: Problem) -> Problem:
    """The problem over the bytes that packed elements share: a 128x64 tile of 4 bits as 128x32 bytes.

    Dimensions of one element come last in a prescribed order. The layouts that the file names, in use and
    published, are left out where elements are packed: their formulas are over elements. That accesses start
    at whole bytes is checked by `layoutopt.accesses.trace.trace`.
    """
    packed, order, shape = problem.tile.packed, problem.layout.order, problem.tile.shape  # elements of a byte
    if order is not None:
        # A dimension of one element lies anywhere in an order; innermost it leaves room for a pad.
        order = tuple(sorted(order, key=lambda d: shape[d] == 1))
        problem = replace(problem, layout=replace(problem.layout, order=order))
    if packed == 1:
        return problem
    accesses = []
    for access in problem.accesses:
        use = access.hardware
        if use is not None and use.box is not None:
            use = replace(use, box=(*use.box[:-1], use.box[-1] // packed))
        index = (*access.index[:-1], f"({access.index[-1]}) // {packed}")
        accesses.append(replace(access, index=index, hardware=use))
    in_bytes = replace(problem, tile=problem.tile.storage, accesses=tuple(accesses))
    return replace(in_bytes, layout=replace(problem.layout, offset=None), published=None)


def offset_formula(text: str, tile: Tile) -> Node:
    """Element offsets over x0, x1, ... of a tile.

    Raises:
        ExpressionError: the text is no formula of these.
    """
    return parse(text, frozenset(coordinate_ranges(tile.shape)))


def bytes_formula(offset: Node, tile: Tile) -> Node:
    """An offset of packed elements as that of the bytes that hold them; itself where they are whole bytes."""
    if tile.packed == 1:
        return offset
    last, packed = f"x{len(tile.shape) - 1}", Const(tile.packed)
    return Op("//", (substituted(offset, {last: Op("*", (Var(last), packed))}), packed))


def byte_table(offset: Node, tile: Tile) -> IntArray:
    """Byte offset of each element, or of each byte of packed ones, by row-major index.

    Args:
        offset: of an element, in elements, over x0, x1, ...
        tile: what is laid out.

    Raises:
        ExpressionError: the formula cannot be evaluated.
        LayoutError: elements that share a byte do not stay together.
    """
    offsets = tabulated(offset, tile.shape).reshape(-1, tile.packed)
    units = offsets[:, 0] // tile.packed
    if (offsets != units[:, None] * tile.packed + np.arange(tile.packed)).any():
        raise LayoutError(f"the {tile.packed} elements of a byte do not stay together")
    table: IntArray = units * tile.storage.element_bytes
    return table


def over_elements(offset: Node, tile: Tile) -> Node:
    """The offset of packed elements, from that of the bytes that hold them (over the bytes' coordinates).

    It is `packed` times that of the byte, plus `x % packed` where x is the element's last coordinate, and
    x // packed the byte's. Where that one stands alone, x itself is both:

        x0*64 + (x1 ^ x0 % 4 * 16)   ->   x0*128 + (x1 ^ x0 % 4 * 32)
    """
    if tile.packed == 1:
        return offset
    last, packed = Var(f"x{len(tile.shape) - 1}"), Const(tile.packed)

    def times_packed(node: Node) -> Node:
        in_elements = substituted(node, {last.name: Op("//", (last, packed))})
        return Op("*", (in_elements, packed))

    def scaled(node: Node) -> tuple[Node, bool]:
        """`node` times `packed`, and whether the element's place in its byte is added to it already."""
        match node:
            case Var() if node == last:
                return last, True
            case Op("%", (Var() as inner, Const(size))) if inner == last:
                return Op("%", (last, Const(size * tile.packed))), True
            case Op("+" | "^" as symbol, (a, b)):
                left, left_has_place = scaled(a)  # the place is added once
                right, right_has_place = (times_packed(b), False) if left_has_place else scaled(b)
                return Op(symbol, (left, right)), left_has_place or right_has_place
        return times_packed(node), False

    whole, has_place = scaled(offset)
    whole = whole if has_place else Op("+", (whole, Op("%", (last, packed))))
    return simplify(whole, coordinate_ranges(tile.shape))


def width_choices(problem: Problem) -> list[Problem]:
    """The problem under every choice of its widths, the widest first.

    Raises:
        ProblemFileError: a list of widths makes no sense, or there are too many choices.
    """
    open_widths = {
        a.name: sorted(set(a.bytes), reverse=True) for a in problem.accesses if isinstance(a.bytes, tuple)
    }
    total = math.prod(map(len, open_widths.values()))
    if total > MAX_WIDTH_CHOICES:
        raise ProblemFileError(
            "accesses", f"{total} choices of widths are too many; at most {MAX_WIDTH_CHOICES} are compared"
        )
    choices = itertools.product(*open_widths.values())
    return [with_widths(problem, dict(zip(open_widths, widths, strict=True))) for widths in choices]


def with_widths(problem: Problem, widths: Mapping[str, int]) -> Problem:
    """The problem with widths by access name where the file gives a list, the widest where left out.

    Raises:
        ProblemFileError: a width is not in the list, does not divide the widest, or tears elements.
    """
    accesses = []
    for i, access in enumerate(problem.accesses):
        with under(f"accesses[{i}]"):
            accesses.append(_with_width(access, widths.get(access.name), problem.tile))
    return replace(problem, accesses=tuple(accesses))


def chosen_widths(problem: Problem, result: Result) -> dict[str, int]:
    """Bytes of every access whose width the file leaves open: as `result` has it, else the widest."""
    by_name = {report.name: report.bytes for report in result.accesses}
    return {
        a.name: by_name.get(a.name) or max(a.bytes) for a in problem.accesses if isinstance(a.bytes, tuple)
    }


def _with_width(access: Access, width: int | None, tile: Tile) -> Access:
    """The access at that width, None for the widest; a narrower one loops over the parts of the widest."""
    if not isinstance(access.bytes, tuple):
        return access
    widest = max(access.bytes)
    width = widest if width is None else width
    if width not in access.bytes:
        raise ProblemFileError("bytes", f"expected a choice out of {list(access.bytes)}, got {width}")
    if width == widest:
        return replace(access, bytes=width)
    if width < 1 or widest % width or 8 * width % tile.element_bits:
        must = f"must divide {widest} and hold whole elements of {tile.element_bits} bits"
        raise ProblemFileError("bytes", f"{width} bytes {must}")
    variable = "part"
    while variable in access.loops or variable in access.any:
        variable += "_"
    elements = 8 * width // tile.element_bits
    index = list(access.index)
    if access.vector is None:
        index[-1] = f"({index[-1]}) + {elements}*{variable}"
    else:  # a part takes the first steps of the vector, and bit k of its number is the k-th step behind them
        steps = vector_steps(replace(access, bytes=widest), tile)[elements.bit_length() - 1 :]
        for k, (dim, distance) in enumerate(steps):
            index[dim] = f"({index[dim]}) + {distance}*({variable} // {1 << k} % 2)"
    loops = {**access.loops, variable: widest // width}
    return replace(access, bytes=width, index=tuple(index), loops=loops)


def assigned(problem: Problem, result: Result) -> Problem:
    """The problem with the lanes that a result has chosen; itself where it leaves none free."""
    if not problem.is_free:
        return problem
    reports = {report.name: report for report in result.accesses}
    return replace(problem, accesses=tuple(_with_lanes(a, reports.get(a.name)) for a in problem.accesses))


def with_fixed_lanes(access: Access) -> Access:
    """The access with the lanes that its index gives, none of them free."""
    return replace(access, lanes=None, values=None, global_=None, order=None, instructions=None)


def _with_lanes(access: Access, report: AccessReport | None) -> Access:
    """A free access with the lanes, and perhaps the instructions, that its report names."""
    if not access.is_free:
        return access
    fixed = with_fixed_lanes(access)
    if report is None or report.index is None:
        return fixed
    fixed = replace(fixed, index=report.index, loops=report.loops or {}, where=report.where)
    if access.instructions is None:
        return fixed
    return replace(fixed, op=report.op, bytes=report.bytes, vector=report.vector)


def named_choices(reports: Iterable[Report], problem: Problem, chosen: Problem) -> tuple[Report, ...]:
    """The reports with the widths and lanes of `chosen` where `problem` leaves the choice."""
    return tuple(
        replace(report, **_as_chosen(source, access))
        for report, source, access in zip(reports, problem.accesses, chosen.accesses, strict=True)
    )


def _as_chosen(source: Access, access: Access) -> dict[str, Any]:
    """What a report says of an access that was chosen."""
    if not source.is_free:
        width = access.bytes if isinstance(source.bytes, tuple) else None
        return {} if width is None or isinstance(width, tuple) else {"bytes": width}
    lanes = {"index": tuple(map(str, access.index)), "loops": access.loops, "where": access.where}
    if source.instructions is None:
        return lanes
    return lanes | {"op": access.op, "bytes": access.bytes, "vector": access.vector}


def with_loops(problem: Problem) -> Problem:
    """The problem with loops over all values where lanes choose; only which elements it touches is right."""
    if not any(a.any for a in problem.accesses):
        return problem
    accesses = tuple(replace(a, loops={**a.loops, **a.any}, any={}) for a in problem.accesses)
    return replace(problem, accesses=accesses)
