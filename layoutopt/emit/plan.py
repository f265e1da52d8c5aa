"""What every emitter prints: the offset, and for each access a base and what the iterations change.

An expert computes an access's address once for each thread and lets the iterations change it by
constants: an added constant is free (it goes into the instruction), an XOR costs one operation. For
an access with loops v1, v2, ... this module finds

    address(tid, v1, v2, ...) = (base(tid) ^ flips(v1, v2, ...)) + steps(v1, v2, ...)

A loop variable with a power of two of iterations is taken apart into bits, since a swizzle may flip
some and leave the others to addition. Each bit adds a constant, or else XORs one, or else the variable
stays inside the base. That is decided on the numbers, for every thread and iteration, so it holds for
pads, rotations and any formula; whatever is found is compared with the layout's table before it is used.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from layoutopt.accesses import LaneTrace, environment, expression_ranges, trace
from layoutopt.address import Layout
from layoutopt.algebra import Range, bounds, simplify, weighted_sum
from layoutopt.devices import Device
from layoutopt.emit.cost import instructions
from layoutopt.errors import ExpressionError, VerificationError
from layoutopt.expressions import (
    Const,
    Node,
    Op,
    Var,
    evaluate,
    names,
    parse,
    parts,
    substituted,
    to_text,
    with_parts,
)
from layoutopt.formula import swizzled_offset
from layoutopt.model import Access, AccessReport, Problem

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MASK: Final = (1 << 32) - 1
_POINTERS: Final = ("load", "store", "atomic", "reduce")
_MAX_CHAIN: Final = 64  # constants that no formula gives, as a chain of comparisons
_CHEAP: Final = 4  # instructions of a pass that are few enough to look no further
_UNROLLED: Final = 64  # iterations; compilers unroll no more
_MAX_PERIOD_BYTES: Final = 1024  # shared memory starts at a multiple of this; more would waste bytes


# The base as a variable: no loop variable can have this name.
BASE: Final = "@base"


@dataclass(frozen=True, slots=True)
class AccessPlan:
    """One access in code. Addresses are in the plan's unit, relative to the start of the tile.

    Attributes:
        name: an identifier, the tile's name in front.
        access: as in the problem.
        lanes: its trace.
        report: what it costs.
        base: over `tid` and the variables in `inside`.
        flips: XORed into the base, over the loop variables; `Const(0)` for nothing.
        steps: added after that, over the loop variables; `Const(0)` for nothing.
        inside: loop variables that neither XOR nor addition takes out of the base.
        flip_bits: all bits that `flips` may hold.
        positive: dividends in it that no active thread makes negative, though their ranges allow it.
        active: the predicate over `tid` and loop variables, or None.
        ranges: of `tid` and the loop variables.
    """

    name: str
    access: Access
    lanes: LaneTrace
    report: AccessReport
    base: Node
    flips: Node
    steps: Node
    inside: tuple[str, ...]
    flip_bits: int
    positive: frozenset[Node]
    active: Node | None
    ranges: dict[str, Range]

    @property
    def address(self) -> Node:
        """The whole address over `tid` and the loop variables."""
        return self.from_base(self.base)

    def from_base(self, base: Node) -> Node:
        """The address where `base` stands for the thread's base."""
        node = base if self.flips == Const(0) else Op("^", (base, self.flips))
        return node if self.steps == Const(0) else Op("+", (node, self.steps))

    @property
    def has_step(self) -> bool:
        """Whether iterations change a base of the thread by constants."""
        return not self.inside and (self.flips != Const(0) or self.steps != Const(0))

    @property
    def hoisting(self) -> str:
        """What the iterations cost, in words; empty where there is no loop."""
        if not self.access.loops:
            return ""
        if self.inside:
            kept = ", ".join(self.inside)
            return f"computed anew for each {kept}"
        parts = [
            "one XOR" if self.flips != Const(0) else "",
            "an immediate" if self.steps != Const(0) else "",
        ]
        return "an iteration costs " + (" and ".join(p for p in parts if p) or "nothing")


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that an emitter prints.

    Attributes:
        name: the problem's name as an identifier.
        problem: the problem.
        device: the target.
        layout: its structure, where the layout is one that layoutopt builds; None for a formula.
        offset: element offset over x0, x1, ...
        table: byte offset of every element, in the shape of the tile.
        unit_bytes: what the accesses count in: 1 for languages with pointers, the element elsewhere.
        bytes: of the tile.
        alignment_bytes: of its start; everything that is XORed lies below it.
        accesses: in the order of the problem.
        about: lines that say what this is and what is proved.
    """

    name: str
    problem: Problem
    device: Device
    layout: Layout | None
    offset: Node
    table: IntArray
    unit_bytes: int
    bytes: int
    alignment_bytes: int
    accesses: tuple[AccessPlan, ...]
    about: tuple[str, ...]

    @property
    def element_bytes(self) -> int:
        """Size of one element in bytes."""
        return self.problem.tile.storage.element_bytes

    @property
    def coordinate_ranges(self) -> dict[str, Range]:
        """The range of x0, x1, ... in the tile."""
        return {f"x{d}": (0, extent - 1) for d, extent in enumerate(self.problem.tile.shape)}

    @property
    def sample(self) -> list[tuple[tuple[int, ...], int]]:
        """A few coordinates and their byte offsets, for assertions in the code: corners and a middle."""
        shape = self.problem.tile.shape
        points = [
            tuple(0 for _ in shape),
            tuple(min(1, n - 1) for n in shape),
            tuple(n // 2 for n in shape),
            tuple(n - 1 for n in shape),
        ]
        return [(p, int(self.table[p])) for p in dict.fromkeys(points)]


def identifier(name: str) -> str:
    """`name` as an identifier of C and Python."""
    text = re.sub(r"[^A-Za-z0-9]+", "_", name.encode("ascii", "replace").decode()).strip("_") or "tile"
    return f"t{text}" if text[0].isdigit() else text


def comment(text: str) -> str:
    """`text` on one comment line: nothing joins it to the next line, nothing invisible hides in it."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split()).replace("\\", "/").replace("??/", "?").replace("*/", "* /")


def make_plan(
    problem: Problem,
    gpu: Device,
    offset: Node,
    table: IntArray,
    *,
    reports: Sequence[AccessReport],
    layout: Layout | None,
    alignment_bytes: int,
    about: Sequence[str],
    unit_bytes: int = 1,
) -> Plan:
    """Plan the code of a layout.

    Args:
        problem: the tile and its accesses.
        gpu: the target.
        offset: element offset over x0, x1, ...
        table: the layout: byte offsets, int64, in the shape of the tile.
        reports: what each access costs under it.
        layout: its structure, if known.
        alignment_bytes: of the base, as the layout needs it.
        about: header lines.
        unit_bytes: unit of the accesses' addresses; it divides every one of them.

    Raises:
        VerificationError: an expression would not equal the table. Our bug.
    """
    shape = problem.tile.shape
    grids = {f"x{d}": g for d, g in enumerate(np.indices(shape, dtype=np.int64, sparse=True))}
    values = np.broadcast_to(evaluate(offset, grids), shape)
    if (values * problem.tile.storage.element_bytes != table).any():
        raise VerificationError(f"the offset {to_text(offset)} does not equal the table")
    name = identifier(problem.name)
    lanes = trace(problem, gpu).accesses
    used = {f"{name}_{suffix}" for suffix in _OWN_NAMES}
    scale = problem.tile.storage.element_bytes // unit_bytes
    swizzled = swizzled_offset(layout, scale) if layout is not None else None
    spellings = [Op("*", (offset, Const(scale))), *([] if swizzled is None else [swizzled])]
    accesses = []
    for access, part, report in zip(problem.accesses, lanes, reports, strict=True):
        own = f"{name}_{identifier(access.name)}"
        while not used.isdisjoint((own, *(f"{own}_{part_name}" for part_name in PARTS))):
            own += "_"
        used |= {own, *(f"{own}_{part_name}" for part_name in PARTS)}
        accesses.append(_plan_access(own, access, part, report, problem, spellings, table, unit_bytes))
    # Only the instructions that take a 32-bit address have XOR applied to one that holds the tile's start.
    absolute = [a for a in accesses if a.lanes.operation.kind not in _POINTERS]
    flips = reduce(lambda a, b: a | b, (a.flip_bits * unit_bytes for a in absolute), 0)
    return Plan(
        name=name,
        problem=problem,
        device=gpu,
        layout=layout,
        offset=offset,
        table=table,
        unit_bytes=unit_bytes,
        bytes=int(table.max()) + problem.tile.storage.element_bytes,
        alignment_bytes=_alignment(alignment_bytes, layout, flips),
        accesses=tuple(accesses),
        about=tuple(about),
    )


# What the emitters name after the tile.
_OWN_NAMES: Final = (
    "offset", "offset_bytes", "tile", "bytes", "alignment", "layout", "swizzle", "lookup", "lookup_table",
    "bit_shift", "test", "commit", "wait",
)  # fmt: skip

# Functions of one access, as suffixes of its name.
PARTS: Final = ("bytes", "base", "step", "active", "each")


def _alignment(least: int, layout: Layout | None, flips: int) -> int:
    """The least alignment that the code needs, or the whole period of the swizzle where that is small."""
    least = max(least, 1 << flips.bit_length())
    if layout is None or not layout.swizzle:
        return least
    period = (1 << max(t.mask.bit_length() for t in layout.swizzle)) * layout.element_bytes
    return max(least, period) if period <= _MAX_PERIOD_BYTES else least


def _plan_access(
    name: str,
    access: Access,
    lanes: LaneTrace,
    report: AccessReport,
    problem: Problem,
    spellings: Sequence[Node],
    table: IntArray,
    unit: int,
) -> AccessPlan:
    warp = lanes.element.shape[1]
    env = environment(access, problem.threads, warp)
    shape = np.broadcast_shapes(*(values.shape for values in env.values()))
    # The trace pads the last warp; beyond the last thread nothing is active.
    active = lanes.active.reshape(shape[0], -1)[:, : problem.threads]
    element = lanes.element.reshape(shape[0], -1)[:, : problem.threads]
    wanted = np.where(active, table.ravel()[element] // unit, 0)
    ranges = expression_ranges(access, problem, warp)
    ranges = {"tid": ranges["tid"], **{v: ranges[v] for v in access.loops}}

    def right(node: Node) -> bool:
        values = _values(node, env, shape, active)
        return values is not None and bool((values == wanted)[active].all())

    free = frozenset(("tid", "lane", "warp", *access.loops))
    tid = Var("tid")
    lane = {"lane": Op("%", (tid, Const(warp))), "warp": Op("//", (tid, Const(warp)))}
    index = {f"x{d}": substituted(parse(str(text), free), lane) for d, text in enumerate(access.index)}
    predicate = None
    if access.where is not None:
        predicate = simplify(substituted(parse(access.where, free), lane), ranges)
    # Behind one predicate, nothing is known to have been computed behind another.
    apart = predicate is not None and bool(names(predicate) & set(access.loops))
    ranked: list[tuple[tuple[int, int, int], _Form, frozenset[Node]]] = []

    def try_out(address: Node) -> None:
        if right(address):
            for form in _forms(address, access, env, shape, active, wanted, ranges):
                positive = _positive(form.base, env, shape, active, ranges)
                ranked.append((_unrolled_cost(form, positive, access, ranges, apart), form, positive))

    for spelling in spellings:
        try_out(simplify(substituted(spelling, index), ranges))
    if not ranked or min(ranked, key=_cost)[0][0] > _CHEAP:
        from layoutopt.emit.expand import expanded  # only where it may help: sympy is slow to load

        for address in [expanded(spelling, index, ranges) for spelling in spellings]:
            try_out(address)
    if not ranked:
        raise VerificationError(f"the address of access {access.name!r} does not equal the table")
    _, form, positive = min(ranked, key=_cost)
    plan = AccessPlan(name, access, lanes, report, *form, positive, predicate, ranges)
    if not right(plan.address):
        raise VerificationError(f"the address of access {access.name!r} does not equal the table")
    return plan


def _values(
    node: Node, env: Mapping[str, IntArray], shape: tuple[int, ...], where: BoolArray | None
) -> IntArray | None:
    try:
        return np.broadcast_to(evaluate(node, env, where), shape)
    except ExpressionError:
        return None


def _cost(ranked: tuple[tuple[int, int, int], _Form, frozenset[Node]]) -> tuple[int, int, int]:
    return ranked[0]


class _Form(NamedTuple):
    """A way to compute an access's address; see `AccessPlan`."""

    base: Node
    flips: Node
    steps: Node
    inside: tuple[str, ...]
    flip_bits: int


def _forms(
    address: Node,
    access: Access,
    env: Mapping[str, IntArray],
    shape: tuple[int, ...],
    active: BoolArray,
    wanted: IntArray,
    ranges: Mapping[str, Range],
) -> list[_Form]:
    """The loop variables taken out of `address` as far as XOR and addition allow, and left in it."""
    threads = shape[1]
    # Inactive threads compute the base too, so it must have a value for all of them.
    everywhere = _values(address, env, shape, None)
    if everywhere is None:
        return [_Form(address, Const(0), Const(0), tuple(access.loops), 0)]
    whole: list[_Form] = [
        _Form(node, Const(0), Const(0), tuple(access.loops), 0)
        for node in dict.fromkeys((_cheapest(address, ranges, threads), address))
    ]
    loops = [v for v, trips in access.loops.items() if trips > 1]
    if not loops or not active.any():
        return whole
    axes = [(v, size) for v in loops for size in _digits(access.loops[v])]
    grid = (*(size for _, size in axes), threads)
    residue, mask = everywhere.reshape(grid), active.reshape(grid)
    added: dict[int, IntArray] = {}
    for axis in range(len(axes)):
        change = _constant(residue - _first(residue, axis), mask, axis)
        if change is not None:
            added[axis] = change
            residue = residue - _along(change, axis, residue.ndim)
    flipped: dict[int, IntArray] = {}
    for axis in range(len(axes)):
        if axis not in added:
            change = _constant(residue ^ _first(residue, axis), mask, axis)
            if change is not None:
                flipped[axis] = change & _MASK
                residue = residue ^ _along(change, axis, residue.ndim)
    _free_bits(added, flipped, residue, mask)
    inside = tuple(
        v
        for v in loops
        if any(w == v and k not in added and k not in flipped for k, (w, _) in enumerate(axes))
    )
    steps, flips, bits = [], [], 0
    for v in loops:
        if v in inside:
            continue
        mine = [k for k, (w, _) in enumerate(axes) if w == v]
        step = _table([added.get(k) for k in mine], [axes[k][1] for k in mine], np.add)
        flip = _table([flipped.get(k) for k in mine], [axes[k][1] for k in mine], np.bitwise_xor)
        steps.append(_formula(v, step, address, ranges))
        flips.append(_formula(v, flip, address, ranges))
        bits |= int(np.bitwise_or.reduce(flip))
    if any(node is None for node in (*steps, *flips)):
        return whole
    zero: dict[str, Node] = {v: Const(0) for v in access.loops if v not in inside}
    free = {v: r for v, r in ranges.items() if v not in zero}
    base = _cheapest(simplify(substituted(address, zero), ranges), free, threads)
    found = _Form(base, _joined("^", flips), _joined("+", steps), inside, bits)
    node = Op("+", (Op("^", (base, found.flips)), found.steps))
    values = _values(node, env, shape, None)
    if values is None or (values & _MASK != wanted & _MASK)[active].any():
        return whole
    return [found, *whole]


def _positive(
    node: Node,
    env: Mapping[str, IntArray],
    shape: tuple[int, ...],
    active: BoolArray,
    ranges: Mapping[str, Range],
) -> frozenset[Node]:
    """The dividends in `node` whose ranges allow negative values that no active thread computes."""
    found: set[Node] = set()

    def visit(part: Node) -> Node:
        if isinstance(part, Op) and part.symbol in ("//", "%") and bounds(part.args[0], ranges)[0] < 0:
            values = _values(part.args[0], env, shape, active)
            if values is not None and active.any() and values[active].min() >= 0:
                found.add(part.args[0])
        return with_parts(part, visit)

    visit(node)
    return frozenset(found)


def _unrolled_cost(
    form: _Form, positive: frozenset[Node], access: Access, ranges: Mapping[str, Range], apart: bool
) -> tuple[int, int, int]:
    """What ranks forms: the instructions of a pass, all iterations unrolled unless there are many; then of
    one iteration; then how long the text is. `apart`: iterations share nothing but what no loop changes."""
    address = Op("+", (Op("^", (form.base, form.flips)), form.steps))
    unrolled = math.prod(access.loops.values()) <= _UNROLLED
    loops = list(access.loops) if unrolled else []
    nodes, known = [], set()
    for at in itertools.product(*(range(access.loops[v]) for v in loops)):
        values: dict[str, Node] = {v: Const(k) for v, k in zip(loops, at, strict=True)}
        nodes.append(simplify(substituted(address, values), ranges))
        known |= {simplify(substituted(node, values), ranges) for node in positive}
    before = _without(address, set(access.loops)) if apart and form.inside else None
    whole = instructions([address], ranges, positive)
    return instructions(nodes, ranges, known, before), whole, len(to_text(address))


def _without(node: Node, variables: Set[str]) -> list[Node]:
    """The largest parts of `node` that mention none of `variables`."""
    if not names(node) & variables:
        return [node]
    return [part for arg in parts(node) for part in _without(arg, variables)]


def _free_bits(
    added: dict[int, IntArray], flipped: dict[int, IntArray], base: IntArray, mask: BoolArray
) -> None:
    """Let bits that one axis alone flips, and that no base holds, be added: that costs nothing."""
    held = int(np.bitwise_or.reduce(base[mask] & _MASK))
    for axis, change in flipped.items():
        others = [int(np.bitwise_or.reduce(c)) for k, c in flipped.items() if k != axis]
        kept = reduce(lambda a, b: a | b, others, held)
        free = change & ~kept
        if free.any():
            added[axis] = added.get(axis, 0) + free
            flipped[axis] = change & kept


def _digits(trips: int) -> list[int]:
    """The sizes of the axes that a loop of `trips` becomes, most significant first."""
    return [2] * (trips.bit_length() - 1) if trips & (trips - 1) == 0 else [trips]


def _first(values: IntArray, axis: int) -> IntArray:
    return np.take(values, [0], axis)


def _along(values: IntArray, axis: int, dims: int) -> IntArray:
    return values.reshape([-1 if d == axis else 1 for d in range(dims)])


def _constant(change: IntArray, mask: BoolArray, axis: int) -> IntArray | None:
    """`change` for each position on `axis` where, over active positions, it depends on nothing else."""
    rows = np.moveaxis(change, axis, 0).reshape(change.shape[axis], -1)
    live = np.moveaxis(mask, axis, 0).reshape(rows.shape)
    found = np.zeros(len(rows), np.int64)
    for k, (row, on) in enumerate(zip(rows, live, strict=True)):
        seen = row[on]
        found[k] = seen[0] if len(seen) else row[0]
        if (seen != found[k]).any():
            return None
    return found


def _table(parts: Sequence[IntArray | None], sizes: Sequence[int], join: np.ufunc) -> IntArray:
    """What a variable contributes at each of its values, from what its digits do."""
    values = np.zeros(1, np.int64)
    for part, size in zip(parts, sizes, strict=True):
        mine = np.zeros(size, np.int64) if part is None else part
        values = join(values[:, None], mine[None, :]).ravel()
    return values


def _joined(symbol: str, nodes: Sequence[Node | None]) -> Node:
    parts = [node for node in nodes if node is not None and node != Const(0)]
    return reduce(lambda a, b: Op(symbol, (a, b)), parts) if parts else Const(0)


def _formula(variable: str, values: IntArray, address: Node, ranges: Mapping[str, Range]) -> Node | None:
    """`values[variable]` as an expression: a product, moved bits, the address's own form, or a chain."""
    v, n = Var(variable), len(values)
    every = {variable: np.arange(n, dtype=np.int64)}
    if (values == values[-1] // max(n - 1, 1) * every[variable]).all():
        step = int(values[-1]) // max(n - 1, 1)
        return simplify(Op("*", (v, Const(step))), {variable: (0, n - 1)})
    forms = [*_bit_sums(v, values), *(f for f in (moved_bits(v, values),) if f is not None)]
    forms = [f for f in forms if (np.broadcast_to(evaluate(f, every), n) == values).all()]
    if forms:
        return min(forms, key=lambda form: instructions([form], {variable: (0, n - 1)}))
    others: dict[str, Node] = {w: Const(0) for w in names(address) if w != variable}
    own = simplify(substituted(address, others), {variable: (0, n - 1)})
    own = simplify(
        Op("-", (own, Const(int(evaluate(own, {variable: np.zeros(1, np.int64)}).ravel()[0])))), ranges
    )
    if instructions([own], ranges) <= n and (np.broadcast_to(evaluate(own, every), n) == values).all():
        return own
    if n > _MAX_CHAIN:
        return None
    chain: Node = Const(int(values[-1]))
    for k in range(n - 2, -1, -1):
        chain = Op("if", (Const(int(values[k])), Op("==", (v, Const(k))), chain))
    return chain


def moved_bits(variable: Node, values: IntArray) -> Node | None:
    """`values[variable]`, where it is linear over F2, as a XOR of masked and shifted copies.

    Bits that move the same distance share one shift and one mask; a mask that covers every bit is
    left out. The value at 0 must be 0.
    """
    count = len(values)
    bits = max(count - 1, 0).bit_length()
    columns = [int(values[1 << b]) for b in range(bits)]
    index = np.arange(count)
    linear = np.zeros(count, np.int64)
    for b, column in enumerate(columns):
        linear ^= np.where(index >> b & 1, column, 0)
    if count == 0 or values[0] != 0 or (linear != values).any():
        return None
    distances: dict[int, int] = {}  # distance -> source bits
    for b, column in enumerate(columns):
        for target in range(column.bit_length()):
            if column >> target & 1:
                distances[target - b] = distances.get(target - b, 0) | 1 << b
    # One product moves the same bits several distances, where the copies do not overlap.
    factors: dict[int, list[int]] = {}  # source bits -> factors
    for distance, mask in sorted(distances.items()):
        if distance >= 0:
            mine = factors.setdefault(mask, [0])
            reach = mask * mine[-1]
            if reach & mask << distance or (reach + (mask << distance)) != reach ^ mask << distance:
                mine.append(0)
            mine[-1] += 1 << distance
    everything = (1 << bits) - 1
    terms = []
    for mask, products in factors.items():
        field = variable if mask == everything else Op("&", (variable, Const(mask)))
        terms += [(f, field if f == 1 else Op("*", (field, Const(f)))) for f in products]
    terms.sort(key=lambda term: -term[0])
    nodes = [node for _, node in terms]
    for distance, mask in sorted(distances.items(), reverse=True):
        if distance < 0:
            field = Op("//", (variable, Const(1 << -distance)))
            whole = mask >> -distance == everything >> -distance
            nodes.append(field if whole else Op("&", (field, Const(mask >> -distance))))
    return reduce(lambda a, b: Op("^", (a, b)), nodes) if nodes else Const(0)


def _cheapest(node: Node, ranges: Mapping[str, Range], threads: int) -> Node:
    """The cheapest form of a base: as given, or bits of `tid` moved or added up."""
    free = {v: r for v, r in ranges.items() if v in names(node)}
    env = {
        v: np.arange(r[1] + 1, dtype=np.int64).reshape([-1 if k == j else 1 for j in range(len(free))])
        for k, (v, r) in enumerate(free.items())
    }
    if not env or math.prod(len(a.ravel()) for a in env.values()) > 1 << 22:
        return node
    values = evaluate(node, env)
    candidates = [node]
    if set(free) == {"tid"} and len(values.ravel()) == threads and values.min() >= 0:
        flat = np.broadcast_to(values, (threads,))
        moved = moved_bits(Var("tid"), flat ^ flat[0])
        if moved is not None:
            start = int(flat[0])
            candidates.append(moved if start == 0 else Op("^", (moved, Const(start))))
        candidates += _bit_sums(Var("tid"), flat)
    right = [c for c in candidates if _same(c, env, values)]
    return min(right, key=lambda form: instructions([form], ranges))


def _bit_sums(variable: Node, values: IntArray) -> list[Node]:
    """`values[variable]` as sums over its bits, if it is one; so check.

    Bits that count the same multiple of their own weight share a mask. Where every bit counts, one of
    the multiples needs no mask if the others make up for it; shifts make up for it too:
    `a*(v % 4) + b*(v // 4)` is `a*v + (b - 4*a)*(v // 4)`.
    """
    start, bits = int(values[0]), (len(values) - 1).bit_length()
    columns = [int(values[1 << b]) - start for b in range(bits)]
    last: list[tuple[int, Node]] = [(1, Const(start))] if start else []
    groups: dict[int, int] = {}
    for b, column in enumerate(columns):
        groups[column >> b] = groups.get(column >> b, 0) | 1 << b
    whole = (1 << bits) - 1
    masked = [(r, variable if m == whole else Op("&", (variable, Const(m)))) for r, m in groups.items()]
    sums = [[(free, variable), *((r - free, node) for r, node in masked)] for free in (0, *groups)]
    factors = [column - 2 * before for before, column in zip((0, *columns), columns, strict=False)]
    sums.append([(f, Op("//", (variable, Const(1 << b))) if b else variable) for b, f in enumerate(factors)])
    return [weighted_sum((*terms, *last)) for terms in sums]


def _same(node: Node, env: Mapping[str, IntArray], values: IntArray) -> bool:
    try:
        return bool((np.broadcast_to(evaluate(node, env), values.shape) == values).all())
    except ExpressionError:
        return False
