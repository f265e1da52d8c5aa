"""The index code of accesses: how each address is computed, and what that costs. The one definition.

An address is a base, computed once for a thread, and what the access's loops change of it; see
`layoutopt.index.address_forms`. Its cost is counted in integer instructions as NVIDIA's compiler selects
them (`layoutopt.index.cost`), for one thread and one pass over the access's loops:

    base = tid*132, address = base + 4*i          one instruction: the addend goes into the instruction
    base = tid*128, address = base ^ 4*i          one, and one for each i but 0

The cost depends on the table of offsets and its formula alone, so that it is the same wherever a layout
comes from. `scripts/benchmarks/index_machine_code.py` compares it with machine code.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from layoutopt.accesses.alignment import base_alignment
from layoutopt.accesses.trace import LaneTrace, Trace, environment, expression_ranges
from layoutopt.errors import VerificationError
from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, evaluate, parts, substituted
from layoutopt.expressions.simplify import Range, simplify
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.hardware.operations import Operation
from layoutopt.index.address_forms import COMPARED, FormSearch, over_tid
from layoutopt.index.cost import UNROLLED_WHOLE, Form, Instructions, Start
from layoutopt.layout.formula import flipped_spelling, has_xor
from layoutopt.problems.types import Access, Problem

MEASURE: Final = (
    "integer instructions of the addresses of all accesses, for one thread and one pass over their loops, "
    "as NVIDIA's compiler selects them"
)
_MOST_CODES: Final = 256  # of the accesses asked for last, since the same are asked for more than once
_MANY: Final = 1 << 18  # lane accesses, of which forms are sought for some threads, and checked for all
_MOST: Final = 1 << 22  # lane accesses, beyond which the address as it is is checked at some iterations
# Operators of all accesses in every iteration that is looked at, of which forms are sought: each takes 15 us.
# Where there are more, addresses that are longer than their share are taken as they are.
_MOST_OPERATORS: Final = 1 << 16
_DIFFERS: Final = "the address of access {!r} does not equal the table"
_codes: "dict[tuple[object, ...], IndexCode]" = {}


class IndexCode(Struct, frozen=True):
    """How one access computes its addresses, relative to the start of the tile."""

    form: Form  # base, flips and steps
    active: Node | None  # the predicate over `tid` and loop variables, or None
    ranges: dict[str, Range]  # of `tid` and the loop variables
    start: Start  # what adds the tile's start to the address
    instructions: Instructions  # what the form costs; the predicate is not counted


def index_code(
    problem: Problem, lanes: Trace, offset: Node, table: IntArray, unit_bytes: int = 1
) -> tuple[IndexCode, ...]:
    """The cheapest index code found for every access of a layout.

    Args:
        problem: of whole bytes, one width for each access, no values known only at run time.
        lanes: what its accesses touch.
        offset: element offset over x0, x1, ...
        table: the layout: byte offsets, int64, in the shape of the tile or by row-major index.
        unit_bytes: unit of the addresses; it divides every one of them.

    Raises:
        VerificationError: an address would not equal the table. Our bug.
    """
    scale = problem.tile.storage.element_bytes // unit_bytes
    spellings: list[Node] = [Op("*", (offset, Const(scale)))]
    flipped = flipped_spelling(offset, problem.tile.shape, scale)
    if flipped is not None:
        spellings.append(flipped)
    alignment = base_alignment(lanes, swizzled=has_xor(offset)) // unit_bytes
    most_operators = _MOST_OPERATORS // max(1, len(problem.accesses))  # of each access
    asked = _Asked(tuple(spellings), table.ravel(), unit_bytes, alignment, most_operators)
    checked = hash(table.tobytes())  # what is known of another table says nothing of this one
    found = []
    for access, part in zip(problem.accesses, lanes.accesses, strict=True):
        loops, warp_lanes = tuple(access.loops.items()), part.element.shape[1]
        touched = access.index, access.where, loops, problem.threads, warp_lanes
        key = *touched, part.operation, asked.spellings, checked, unit_bytes, alignment, most_operators
        if key not in _codes:
            if len(_codes) >= _MOST_CODES:  # the oldest makes room
                del _codes[next(iter(_codes))]
            _codes[key] = _of_access(access, part, problem, asked)
        found.append(_codes[key])
    return tuple(found)


def least_instructions(problem: Problem, lanes: Trace) -> int:
    """A bound on the instructions of all accesses that no layout undercuts.

    Threads that meet different elements in one iteration need different addresses, and what is no constant
    takes an instruction; all but `tid` itself, where the access's alignment leaves it that.

    Args:
        problem: as for `index_code`.
        lanes: what its accesses touch.
    """
    alignment = problem.tile.element_alignment
    pairs = zip(problem.accesses, lanes.accesses, strict=True)
    return sum(_varies(part, math.prod(access.loops.values()), alignment) for access, part in pairs)


def _varies(lanes: LaneTrace, iterations: int, alignment: int) -> bool:
    """Whether threads need addresses that are neither a constant nor their number and a constant."""
    active, element = lanes.active.reshape(iterations, -1), lanes.element.reshape(iterations, -1)
    beyond = np.iinfo(np.int64).max
    lowest = np.where(active, element, beyond).min(axis=1)
    differ = np.where(active, element, -1).max(axis=1) > lowest
    # Whether the numbers of a row's threads are apart by multiples of the alignment.
    unit = max(alignment, lanes.operation.width_bytes)
    place = np.arange(active.shape[1]) % unit
    apart = np.where(active, place, -1).max(axis=1) > np.where(active, place, unit).min(axis=1)
    return bool((differ & apart).any())


def _some_threads(threads: int) -> IntArray:
    """Threads of every bit of their number, and others here and there."""
    bits = 1 << np.arange(max(1, threads.bit_length()))
    found = np.concatenate([[0], bits, threads - 1 - bits, np.arange(0, threads, max(1, threads // 13))])
    return np.unique(found[(found >= 0) & (found < threads)])


def _start(form: Form, operation: Operation, alignment: int) -> Start:
    """Where the tile's start, a multiple of `alignment` bytes, is added to the address.

    Loads, stores and matrix instructions add a uniform register by themselves, but matrix instructions are
    given bases that hold the start, for GPUs whose do not; flips may be applied to such a base where they lie
    below the alignment.
    """
    if operation.does.by_pointer:
        return "free"
    to_base = form.has_step and form.flip_bits < alignment  # one addition then serves all iterations
    if operation.matrices:
        return "first" if to_base and form.flips != Const(0) else "free"
    return "first" if to_base else "last"


def _operators(node: Node, inside: Mapping[str, int] = MappingProxyType({})) -> int:
    """Operators of `node`, where a variable has as many as `inside` says, else none."""
    own = inside.get(node.name, 0) if isinstance(node, Var) else isinstance(node, Op | Lookup)
    return own + sum(_operators(part, inside) for part in parts(node))


_known_operators = lru_cache(maxsize=1 << 11)(_operators)  # of indices, which are the same under every layout


class _Asked(NamedTuple):
    """What is asked of every access."""

    spellings: tuple[Node, ...]  # addresses over x0, x1, ...; all are the same
    table: IntArray  # byte offsets by row-major index
    unit: int  # bytes of a unit of the addresses
    alignment: int  # of the tile's start, in units
    most_operators: int  # that all iterations of an access may have together for forms to be sought


def _of_access(access: Access, lanes: LaneTrace, problem: Problem, asked: _Asked) -> IndexCode:
    """The cheapest index code found for one access; its address as it is where a search takes too long."""
    warp_lanes, iterations = lanes.element.shape[1], math.prod(access.loops.values())
    index = {f"x{d}": over_tid(str(text), access, warp_lanes) for d, text in enumerate(access.index)}
    predicate = None if access.where is None else over_tid(access.where, access, warp_lanes)
    ranges = expression_ranges(problem.threads, warp_lanes, access.loops)
    ranges = {name: ranges[name] for name in ("tid", *access.loops)}
    # By form, where the base of the tile is added to it.
    start = partial(_start, operation=lanes.operation, alignment=asked.alignment)
    addresses = [substituted(spelling, index) for spelling in asked.spellings]
    # Operators of one iteration, those of the coordinates wherever a spelling has them.
    of_index = {name: _known_operators(node) for name, node in index.items()}
    operators = sum(_operators(node, of_index) for node in (*asked.spellings, predicate) if node is not None)
    too_long = operators * (min(iterations, UNROLLED_WHOLE) + COMPARED) > asked.most_operators
    some = too_long or iterations * problem.threads > _MOST  # whether only some iterations are looked at
    # Then as many as make `_MANY` lane accesses, evenly spread from the first to the last.
    spread = np.linspace(0, iterations - 1, max(2, _MANY // problem.threads)).astype(np.int64)
    rows = np.unique(spread) if some else np.arange(iterations)
    env, active, wanted = _wanted(access, lanes, problem.threads, asked, rows)
    if too_long:  # not even simplified; its operators stand for its instructions
        at = {name: evaluate(node, env, active) for name, node in index.items()}
        if ((evaluate(asked.spellings[0], at, active) != wanted) & active).any():
            raise VerificationError(_DIFFERS.format(access.name))
        form = Form(addresses[0], inside=tuple(access.loops))
        looped = _operators(asked.spellings[0], of_index) * iterations
        instructions = Instructions(once=0, looped=looped, iterations=iterations)
        return IndexCode(form, predicate, ranges, start(form), instructions)
    if predicate is not None:
        predicate = simplify(predicate, ranges)
    search = FormSearch(access, env, active, wanted, ranges, predicate, start)
    if some:  # what these show of dividends and constants need not hold in the others: nothing is sought
        found: Form | None = search.as_it_is(simplify(addresses[0], ranges))
    else:
        found = _cheapest(search, addresses, problem.threads)
    if found is None or not search.right(found.address):
        raise VerificationError(_DIFFERS.format(access.name))
    return IndexCode(found, predicate, ranges, start(found), search.cost.of(found))


def _cheapest(search: FormSearch, addresses: Sequence[Node], threads: int) -> Form | None:
    """The cheapest form of these spellings of an address; None if no spelling is right.

    Where there are many lane accesses, it is sought for some threads, and for all only if it does not hold.
    """
    if search.active.size > _MANY:
        form = search.of_threads(_some_threads(threads)).cheapest(addresses)
        if form is not None and search.never_negative(form.positive) and search.right(form.address):
            return form
    return search.cheapest(addresses)


def _wanted(
    access: Access, lanes: LaneTrace, threads: int, asked: _Asked, rows: IntArray
) -> tuple[dict[str, IntArray], BoolArray, IntArray]:
    """Inputs and expected addresses of the index code in the iterations `rows`.

    Returns:
        The values of `tid`, `lane`, `warp` and the loop variables, which broadcast to (rows, threads); which
        threads take part; and their addresses, 0 where they do not.
    """
    env = environment(access, threads, lanes.element.shape[1], rows)
    iterations = math.prod(access.loops.values())
    # The trace pads the last warp; beyond the last thread nothing is active.
    active = lanes.active.reshape(iterations, -1)[rows, :threads]
    element = lanes.element.reshape(iterations, -1)[rows, :threads]
    return env, active, np.where(active, asked.table[element] // asked.unit, 0)
