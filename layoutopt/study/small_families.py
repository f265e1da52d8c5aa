"""Families small enough to look at every member: orders and splits, pads, and CuTe's swizzles.

Every member is counted by the conflict engine, so the best of them is the best, without a model. The
members' instructions are counted together, and equal instructions once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import numpy.typing as npt

from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, parts
from layoutopt.expressions.simplify import simplify
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.problems.trace import Trace
from layoutopt.problems.types import Problem

IntArray = npt.NDArray[np.int64]

# Lane accesses counted in one go: the arrays of a batch stay in the cache.
_BATCH_LANES = 1 << 18
# As far as the solver cuts coordinates, too.
MAX_CUTS = 2
MAX_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Member:
    """One layout of a family.

    Attributes:
        formula: gives the element offset over x0, x1, ...; most members never need it.
        table: byte offsets by row-major index, int64.
        declared_bytes: of an array declared with every pitch in full.
        swizzled: whether it XORs.
        label: its name for people.
    """

    formula: Callable[[], Node]
    table: IntArray
    declared_bytes: int
    swizzled: bool
    label: str


class Counter:
    """The weighted excess of many layouts under one trace."""

    def __init__(self, lanes: Trace, gpu: Device) -> None:
        self._gpu = gpu
        self._accesses = []
        for access in lanes.accesses:
            key = np.where(access.active, access.element, -1)
            unique, inverse = np.unique(key, axis=0, return_inverse=True)
            weight = np.bincount(inverse.reshape(-1), access.weight, len(unique)).astype(np.int64)
            self._accesses.append((unique, unique >= 0, weight, access.operation))
        self.lanes = sum(unique.size for unique, *_ in self._accesses)

    def excess(self, tables: IntArray) -> IntArray:
        """Weighted excess, in the trace's unit, of tables of shape (layouts, elements)."""
        total = np.zeros(len(tables), np.int64)
        for element, active, weight, operation in self._accesses:
            address = tables[:, np.where(active, element, 0)].reshape(-1, element.shape[1])
            mask = np.broadcast_to(active, (len(tables), *active.shape)).reshape(address.shape)
            counts = count_wavefronts(address, mask, operation, self._gpu)
            over = (counts.wavefronts - counts.ideal).reshape(len(tables), -1)
            total += over @ weight
        return total


def best(members: Iterable[Member], counter: Counter, floor: int, max_bytes: int | None) -> Member | None:
    """The member of least weighted excess, then bytes, then index operations; the first of equals.

    Args:
        members: the cheapest to compute first; where they differ in bytes, by rising bytes.
        counter: counts them.
        floor: weighted excess that no layout undercuts. Where it is reached, larger members are not
            looked at, nor are costlier formulas beyond the batch at hand.
        max_bytes: larger members are left out.
    """
    found: tuple[tuple[int, int], Member] | None = None
    cost = 0
    size = max(1, _BATCH_LANES // max(1, counter.lanes))
    stream = iter(members)
    while batch := list(itertools.islice(stream, size)):
        tables = np.stack([m.table for m in batch])
        ends = tables.max(axis=1)
        if found is not None and found[0][0] <= floor and int(ends.min()) >= found[0][1]:
            break
        for member, excess, end in zip(batch, counter.excess(tables).tolist(), ends.tolist(), strict=True):
            rank = (excess, end)
            if (max_bytes is not None and end >= max_bytes) or (found is not None and rank > found[0]):
                continue
            own = operations(member.formula())
            if found is None or rank < found[0] or own < cost:
                found, cost = (rank, member), own
    return found[1] if found is not None else None


def operations(node: Node) -> int:
    """Integer operations of an expression, a repeated subexpression once; a look-up counts one.

    A division or remainder by a constant that is no power of two counts as three (a multiplication,
    a shift, a correction), as the solver counts it.
    """
    seen: set[Node] = set()

    def visit(part: Node) -> int:
        if not isinstance(part, Op | Lookup) or part in seen:
            return 0
        seen.add(part)
        costly = isinstance(part, Op) and part.symbol in ("//", "%") and not _is_power_of_two(part.args[1])
        return (3 if costly else 1) + sum(map(visit, parts(part)))

    return visit(node)


def _is_power_of_two(node: Node) -> bool:
    return isinstance(node, Const) and node.value > 0 and not node.value & (node.value - 1)


def linear(terms: Iterable[tuple[Node, int]]) -> Node:
    """The sum of `node * factor`."""
    parts = [node if factor == 1 else Op("*", (node, Const(factor))) for node, factor in terms if factor]
    return reduce(lambda a, b: Op("+", (a, b)), parts) if parts else Const(0)


def _ranges(problem: Problem) -> dict[str, tuple[int, int]]:
    return {f"x{d}": (0, extent - 1) for d, extent in enumerate(problem.tile.shape)}


def _strides(problem: Problem, order: tuple[int, ...]) -> list[int]:
    """Stride of each dimension of the dense tile, dimensions in `order` from slowest to fastest."""
    shape = problem.tile.shape
    strides = [0] * len(shape)
    step = 1
    for d in reversed(order):
        strides[d] = step
        step *= shape[d]
    return strides


def widest_vector(lanes: Trace) -> int:
    """Elements of the widest access."""
    return max(a.width_elements for a in lanes.accesses)


def bank_period(problem: Problem, lanes: Trace, gpu: Device) -> int:
    """Elements after which the banks repeat."""
    rules = [gpu.rule(a.operation) for a in lanes.accesses]
    row_bytes = max(rule.banks * rule.bank_bytes for rule in rules)
    return row_bytes // math.gcd(row_bytes, problem.tile.element_bytes)


def plain(problem: Problem, lanes: Trace, gpu: Device) -> Iterator[Member]:
    """Row-major (or the fixed order), dense, and nothing else."""
    yield from _strided(problem, lanes, ((),))


def dimension_pads(problem: Problem, lanes: Trace, gpu: Device) -> Iterator[Member]:
    """Row-major (or the fixed order) with up to two padded strides, by rising bytes; no pad first.

    A pad is less than a bank period; it is a multiple of what keeps the vectors aligned.
    """
    order, units = _order(problem), _units(problem, lanes)
    outer = order[:-1]
    period = bank_period(problem, lanes, gpu)
    pads: list[tuple[tuple[int, int], ...]] = [()]
    for count in (1, 2):
        for dims in itertools.combinations(outer, count):
            ranges = [range(units[d], max(period, units[d] + 1), units[d]) for d in dims]
            pads += [tuple(zip(dims, amounts, strict=True)) for amounts in itertools.product(*ranges)]
    yield from _strided(problem, lanes, pads)


def _strided(problem: Problem, lanes: Trace, pads: Iterable[tuple[tuple[int, int], ...]]) -> Iterator[Member]:
    """One member for each choice of pads, `(dimension, elements)`, by rising bytes."""
    shape, size = problem.tile.shape, problem.tile.element_bytes
    order, units = _order(problem), _units(problem, lanes)
    vector = widest_vector(lanes)
    if vector > 1 and order[-1] != len(shape) - 1:
        return
    choices = []
    for choice in pads:
        amounts = dict(choice)
        strides = [1] * len(shape)
        needed = 1
        for d in reversed(order):
            if d != order[-1]:
                strides[d] = -(-needed // units[d]) * units[d] + amounts.get(d, 0)
            needed = strides[d] * shape[d]
        span = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
        if choice or needed == problem.tile.elements or "pad" in (problem.layout.families or ("pad",)):
            choices.append((span, len(choice), strides, needed))
    grids = np.indices(shape, dtype=np.int64, sparse=True)
    for _, count, strides, declared in sorted(choices):
        table = np.asarray(sum(grid * stride for grid, stride in zip(grids, strides, strict=True)))
        terms: list[tuple[Node, int]] = [(Var(f"x{d}"), strides[d]) for d in order if shape[d] > 1]
        label = "no pad" if not count else f"strides {', '.join(str(strides[d]) for d in order)}"
        yield Member(partial(linear, terms), table.ravel() * size, declared * size, False, label)


def orders_and_splits(problem: Problem, lanes: Trace, gpu: Device) -> Iterator[Member]:
    """Dense tiles: any order of the dimensions, and up to two cuts `x // d`, `x % d` of the coordinates.

    The pieces stand in any order; at most six of them, as the solver has it.
    """
    shape, size = problem.tile.shape, problem.tile.element_bytes
    families = problem.layout.families or ("order", "split")
    natural = tuple(range(len(shape)))
    wide, pitch = _wide(problem, lanes), _pitch_unit(problem)
    cuts = [(d, c) for d, n in enumerate(shape) for c in range(2, n) if n % c == 0]
    for count in range(MAX_CUTS + 1):
        if count and ("split" not in families or len(shape) + count > MAX_DIGITS):
            return
        for chosen in itertools.combinations(cuts, count):
            pieces = _pieces(shape, chosen)
            if pieces is None:
                continue
            movable = "order" in families or count
            for arranged in itertools.permutations(pieces) if movable else [tuple(pieces)]:
                digits = _dense_digits(arranged)
                if any(
                    a.dim == b.dim and a.divide == b.divide * b.size for a, b in itertools.pairwise(digits)
                ):
                    continue  # as if never cut there
                layout = Layout(shape, size, digits)
                if not _holds_vectors(layout, wide, pitch):
                    continue
                plain_order = not count and tuple(d.dim for d in digits) == natural
                label = "row-major" if plain_order else "split" if count else "order"
                table = layout.table().ravel()
                yield Member(partial(offset_expression, layout), table, problem.tile.bytes, False, label)


def _pieces(shape: tuple[int, ...], cuts: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int]] | None:
    """`(dimension, divide, size)` of each piece; None where two cuts of a dimension do not nest."""
    pieces = []
    for d, extent in enumerate(shape):
        at = sorted({1, extent, *(c for dim, c in cuts if dim == d)})
        if any(high % low for low, high in itertools.pairwise(at)):
            return None
        pieces += [(d, low, high // low) for low, high in itertools.pairwise(at)][::-1] or [(d, 1, 1)]
    return pieces


def _dense_digits(pieces: tuple[tuple[int, int, int], ...]) -> tuple[Digit, ...]:
    digits = []
    stride = 1
    for dim, divide, length in reversed(pieces):
        digits.append(Digit(dim, divide, length, stride))
        stride *= length
    return tuple(reversed(digits))


def _holds_vectors(layout: Layout, wide: list[tuple[int, IntArray]], pitch: int) -> bool:
    """Whether every vector is whole and aligned, and the pitch rule kept, digit by digit."""
    vector, shape = max((width for width, _ in wide), default=1), layout.shape
    inner = layout.digits[-1]
    if vector > 1:
        whole = inner.dim == len(shape) - 1 and inner.divide == 1
        if not whole or (inner.size % vector and inner.size != shape[-1]):
            return False
    for digit in layout.digits[:-1]:
        if digit.size == 1:
            continue
        unit = pitch
        for width, coordinates in wide:
            common = int(np.gcd.reduce(coordinates[digit.dim] // digit.divide % digit.size))
            unit = math.lcm(unit, width // math.gcd(width, common))
        if digit.stride % unit:
            return False
    return True


def _wide(problem: Problem, lanes: Trace) -> list[tuple[int, IntArray]]:
    """Width in elements and coordinates, shape (dimensions, starts), of each access wider than one."""
    return [
        (a.width_elements, np.array(np.unravel_index(a.starts, problem.tile.shape)))
        for a in lanes.accesses
        if a.width_elements > 1 and a.active.any()
    ]


def _units(problem: Problem, lanes: Trace) -> list[int]:
    """Per dimension, what its stride must be a multiple of."""
    units = [_pitch_unit(problem)] * len(problem.tile.shape)
    for width, coordinates in _wide(problem, lanes):
        for d in range(len(units)):
            common = int(np.gcd.reduce(coordinates[d]))
            units[d] = math.lcm(units[d], width // math.gcd(width, common))
    return units


def _pitch_unit(problem: Problem) -> int:
    pitch = problem.layout.pitch_multiple_bytes or 1
    return pitch // math.gcd(pitch, problem.tile.element_bytes)


def _order(problem: Problem) -> tuple[int, ...]:
    return problem.layout.order or tuple(range(len(problem.tile.shape)))


def interval_pads(problem: Problem, lanes: Trace, gpu: Device) -> Iterator[Member]:
    """`i + P * (i // N)` over the dense index i, by rising bytes; the dense tile (P = 0) first.

    N is a power of two, or cuts one dimension evenly; P is less than a bank period. Both are multiples
    of the widest vector.
    """
    order = _order(problem)
    vector = widest_vector(lanes)
    if vector > 1 and (order[-1] != len(order) - 1 or problem.tile.shape[-1] % vector):
        return
    if not _keeps_pitch(problem, order):
        return
    size, elements = problem.tile.element_bytes, problem.tile.elements
    strides = _strides(problem, order)
    variables = [(Var(f"x{d}"), strides[d]) for d in order if problem.tile.shape[d] > 1]
    grids = np.indices(problem.tile.shape, dtype=np.int64, sparse=True)
    dense = np.asarray(sum(grid * stride for grid, stride in zip(grids, strides, strict=True))).ravel()
    yield Member(partial(linear, variables), dense * size, elements * size, False, "no pad")
    unit = math.lcm(vector, _pitch_unit(problem))
    period = bank_period(problem, lanes, gpu)
    choices = [
        (elements + pad * ((elements - 1) // n), n, pad)
        for n in _intervals(problem, order, unit)
        for pad in range(unit, max(period, unit + 1), unit)
    ]
    for _, n, pad in sorted(choices):
        declared = -(-elements // n) * (n + pad)
        formula = partial(_padded, problem, order, strides, n, pad)
        yield Member(
            formula, (dense + dense // n * pad) * size, declared * size, False, f"{pad} after every {n}"
        )


def _keeps_pitch(problem: Problem, order: tuple[int, ...]) -> bool:
    """Whether the dense strides but the innermost are multiples of `pitch_multiple_bytes`."""
    strides, unit = _strides(problem, order), _pitch_unit(problem)
    return all(strides[d] % unit == 0 for d in order[:-1])


def _intervals(problem: Problem, order: tuple[int, ...], unit: int) -> list[int]:
    elements = problem.tile.elements
    found = {1 << b for b in range(elements.bit_length()) if 1 << b < elements}
    strides = _strides(problem, order)
    for d in order:
        extent = problem.tile.shape[d]
        found.update(strides[d] * c for c in range(1, extent + 1) if extent % c == 0)
    return sorted(n for n in found if n < elements and n % unit == 0)


def _padded(problem: Problem, order: tuple[int, ...], strides: list[int], n: int, pad: int) -> Node:
    """`i + pad * (i // n)`, written over the coordinates where n cuts one of them."""
    shape = problem.tile.shape
    variables = [(Var(f"x{d}"), strides[d]) for d in order]
    for place, d in enumerate(order):
        cut, rest = divmod(n, strides[d])
        if rest or cut > shape[d] or shape[d] % cut:
            continue
        # i // n = sum of the slower coordinates, times shape[d] // cut, plus x_d // cut.
        terms: list[tuple[Node, int]] = []
        for k, (var, stride) in enumerate(variables):
            extra = stride // n * pad if k < place else 0
            if k == place and cut == 1:
                extra = pad
            terms.append((var, stride + extra))
            if k == place and 1 < cut < shape[d]:
                terms.append((Op("//", (var, Const(cut))), pad))
        return simplify(linear(terms), _ranges(problem))
    dense = linear(variables)
    padded = Op("+", (dense, Op("*", (Op("//", (dense, Const(n))), Const(pad)))))
    return simplify(padded, _ranges(problem))


def cute_swizzles(problem: Problem, lanes: Trace, gpu: Device) -> Iterator[Member]:
    """CuTe's `Swizzle<B, M, S>` over the dense tile, S positive, in row-major and every allowed order.

    B bits from bit M + S are XORed into the B bits from M, counted in elements; vectors stay whole
    (2**M is at least the widest), targets stay inside a bank period, and S >= B as CuTe requires.
    """
    shape, size = problem.tile.shape, problem.tile.element_bytes
    natural = tuple(range(len(shape)))
    families = problem.layout.families
    vector = widest_vector(lanes)
    if problem.layout.order is not None:
        orders: Iterable[tuple[int, ...]] = [problem.layout.order]
    else:
        orders = itertools.permutations(natural) if families is None or "order" in families else [natural]
    low, high = (vector - 1).bit_length(), (bank_period(problem, lanes, gpu) - 1).bit_length()
    top = (problem.tile.elements - 1).bit_length()
    for order in orders:
        strides = _strides(problem, order)
        whole = order[-1] == natural[-1] and shape[-1] % vector == 0
        if (vector > 1 and not whole) or not _keeps_pitch(problem, order):
            continue
        digits = tuple(Digit(d, 1, shape[d], strides[d]) for d in order)
        base = "row-major" if order == natural else f"order {', '.join(f'x{d}' for d in order)}"
        dense = Layout(shape, size, digits)
        yield Member(
            partial(offset_expression, dense),
            dense.table().ravel(),
            problem.tile.bytes,
            False,
            f"no swizzle, {base}",
        )
        for m, b in itertools.product(range(low, high), range(1, high + 1)):
            for s in range(b, top - m) if m + b <= high else ():
                swizzle = tuple(Target(m + k, 1 << (m + k + s)) for k in range(b))
                layout = Layout(shape, size, digits, swizzle)
                table = layout.table().ravel()
                declared = max(layout.declared_bytes, int(table.max()) + size)
                yield Member(
                    partial(offset_expression, layout),
                    table,
                    declared,
                    True,
                    f"Swizzle<{b},{m},{s}> over {base}",
                )
