"""The cheapest way to compute an access's address: a base for the thread, and what its loops change.

An expert computes an access's address once for each thread and lets the iterations change it by
constants: an added constant is free (it goes into the instruction), an XOR costs one operation. For
an access with loops v1, v2, ... this module finds

    address(tid, v1, v2, ...) = (base(tid) ^ flips(v1, v2, ...)) + steps(v1, v2, ...)

A loop variable with a power of two of iterations is taken apart into bits, since a swizzle may flip
some and leave the others to addition. Each bit adds a constant, or else XORs one, or else the variable
stays inside the base. That is decided on the numbers, for every thread and iteration, so it holds for
pads, rotations and any formula. Several spellings of the address and of the base are tried, and ranked by
the instructions that a compiler makes of them; each must equal the layout's table to count.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from layoutopt.errors import ExpressionError
from layoutopt.expressions.bits import bit_sums, moved_bits
from layoutopt.expressions.grammar import (
    Const,
    Node,
    Op,
    Var,
    evaluate,
    joined,
    names,
    operators,
    parse,
    parts,
    substituted,
    to_text,
)
from layoutopt.expressions.simplify import Range, bounds, expanded, operations, simplify
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.index.cost import AddressCost, Form, Start, instructions
from layoutopt.index.folding import is_power
from layoutopt.problems.types import Access

_ADDRESS_BITS: Final = (1 << 32) - 1
_MAX_CHAIN: Final = 64  # values of a loop variable, at most, for which a chain of comparisons is written
_CHEAP: Final = 4  # instructions of a pass that are few enough to look no further
COMPARED: Final = 16  # iterations by which forms are compared


def over_tid(text: str, access: Access, lanes: int) -> Node:
    """An expression of an access, with `lane` and `warp` in terms of `tid`; a warp has `lanes` lanes."""
    return _over_tid(text, frozenset(("tid", "lane", "warp", *access.loops)), lanes)


@lru_cache(maxsize=1 << 11)  # the same ones under every layout
def _over_tid(text: str, free: frozenset[str], lanes: int) -> Node:
    tid, size = Var("tid"), Const(lanes)
    return substituted(parse(text, free), {"lane": Op("%", (tid, size)), "warp": Op("//", (tid, size))})


class FormSearch:
    """The forms of one access.

    Args:
        env: `tid`, `lane`, `warp` and the loop variables, int64, that broadcast to (iterations, threads).
        active: which threads take part, bool, shape (iterations, threads).
        wanted: the address, int64, shape (iterations, threads); anything where a thread is not active.
        ranges: of `tid` and the loop variables.
        predicate: what `active` was computed from; None where all threads take part.
        start: how a form's addresses come by the tile's start.
    """

    def __init__(
        self,
        access: Access,
        env: Mapping[str, IntArray],
        active: BoolArray,
        wanted: IntArray,
        ranges: Mapping[str, Range],
        predicate: Node | None,
        start: Callable[[Form], Start],
    ) -> None:
        self.access, self.predicate, self.start = access, predicate, start
        self.loops, self.env, self.ranges = access.loops, env, ranges
        self.active, self.wanted = active, wanted
        self.all_active = bool(active.all())
        apart = set() if predicate is None else names(predicate) & set(access.loops)
        self.cost = AddressCost(access.loops, ranges, apart, start)
        # What was found of addresses, most of which share their parts, their values and what loops change.
        self._known: dict[tuple[Node, bool], IntArray] = {}
        self._simpler: dict[Node, Node] = {}
        self._bounds: dict[Node, Range] = {}
        self._changed: tuple[IntArray, Form | None] | None = None
        self._in_bits: dict[bytes, Node | None] = {}  # the cheapest of `_of_bits`, by values

    def of_threads(self, threads: IntArray) -> "FormSearch":
        """The same search for some threads alone."""
        env = {name: at if at.shape[1] == 1 else at[:, threads] for name, at in self.env.items()}
        active, wanted = self.active[:, threads], self.wanted[:, threads]
        return FormSearch(self.access, env, active, wanted, self.ranges, self.predicate, self.start)

    def cheapest(self, addresses: Sequence[Node]) -> Form | None:
        """The cheapest form of any of these spellings of the address; None if none is right."""
        simpler = dict.fromkeys(self._simplified(address) for address in addresses)
        right = [address for address in simpler if self.right(address)]
        best = self._best(form for address in right for form in self._forms(address, expand=False))
        if best is not None and best[0] > _CHEAP:
            best = self._best((form for a in right for form in self._forms(a, expand=True)), best)
        return None if best is None else best[1]

    def _simplified(self, node: Node) -> Node:
        return simplify(node, self.ranges, self._simpler)

    def right(self, address: Node) -> bool:
        """Whether an expression points where the access must, at every active thread and iteration."""
        values = self._values(address)
        return values is not None and bool(((values == self.wanted) | ~self.active).all())

    def _best(self, forms: Iterable[Form], best: tuple[int, Form] | None = None) -> tuple[int, Form] | None:
        """Cost and form of the cheapest among `best` and these forms; the first of equals.

        Forms compare by instructions of a pass, by loop variables in the base (a base without them is
        computed once even where a compiler does not unroll), then by `_length`.
        """
        for form in forms:
            if best is None:
                best = self.cost.of(form, math.inf, COMPARED).total, form
                continue
            more_inside = len(form.inside) - len(best[1].inside)
            limit = best[0] - (more_inside > 0)  # with more variables inside, it must cost less
            cost = self.cost.of(form, limit, COMPARED).total
            if cost > limit:
                continue
            if cost < best[0] or more_inside < 0 or self._length(form) < self._length(best[1]):
                best = cost, form
        return best

    def _length(self, form: Form) -> tuple[int, int]:
        """Instructions of the address with its loop variables unhoisted, and characters of its text."""
        return instructions([form.address], self.ranges, form.positive), len(to_text(form.address))

    def _values(self, node: Node, everywhere: bool = False) -> IntArray | None:
        """Values, shape (iterations, threads), arbitrary where inactive; None if one is undefined."""
        everywhere = everywhere or self.all_active
        if (key := (node, everywhere)) not in self._known:
            try:
                values = evaluate(node, self.env, None if everywhere else self.active)
            except ExpressionError:
                return None
            self._known[key] = np.broadcast_to(values, self.active.shape)
        return self._known[key]

    def _forms(self, address: Node, *, expand: bool) -> Iterator[Form]:
        """Forms of a simplified address: as few loop variables as possible in the base, and all of them.

        With `expand`, the base is spelled out once more, and all variables are in it only where they must be.
        """
        # Inactive threads compute the base too, so it must have a value for all of them.
        everywhere = self._values(address, everywhere=True)
        found = None if everywhere is None else self._hoisted(address, everywhere, expand)
        if found is not None:
            yield found
            if expand:
                return
        whole = expanded(address, self.ranges, self._simpler) if expand else address
        for node in dict.fromkeys((self._cheapest(whole), whole) if everywhere is not None else (whole,)):
            yield self.as_it_is(node, self._positive(node))

    def as_it_is(self, node: Node, positive: frozenset[Node] = frozenset()) -> Form:
        """The form with every loop variable in its base; of its dividends, `positive` are not negative."""
        return Form(node, tuple(self.loops), positive=positive)

    def _hoisted(self, address: Node, everywhere: IntArray, expand: bool) -> Form | None:
        """The form with as few loop variables in the base as possible; None where all would stay in it.

        `everywhere`: the address of every thread and iteration.
        """
        if self._changed is None or not np.array_equal(self._changed[0], everywhere):
            self._changed = everywhere, self._without_base(address, everywhere)
        changed = self._changed[1]
        if changed is None:
            return None
        zero: dict[str, Node] = {v: Const(0) for v in self.loops if v not in changed.inside}
        at_zero, spell = substituted(address, zero), expanded if expand else simplify
        base = self._cheapest(spell(at_zero, self.ranges, self._simpler))
        found = replace(changed, base=base, positive=self._positive(base))
        if not self.all_active:  # else it is right by construction
            values = self._values(found.address, everywhere=True)
            if values is None or (values & _ADDRESS_BITS != self.wanted & _ADDRESS_BITS)[self.active].any():
                return None
        return found

    def _without_base(self, address: Node, everywhere: IntArray) -> Form | None:
        """What the loops change of an address, as a form with base 0; None where all loops stay in the base.

        `everywhere`: the address of every thread and iteration, shape (iterations, threads).
        """
        loops = [v for v, trips in self.loops.items() if trips > 1]
        if not loops or not self.active.any():
            return None
        # Each loop is one axis, or one for each bit of its variable.
        axes = [(v, size) for v in loops for size in _digits(self.loops[v])]
        grid = (*(size for _, size in axes), self.active.shape[1])
        added, flipped = _changes(everywhere.reshape(grid), self.active.reshape(grid), len(axes))
        kept = {v for k, (v, _) in enumerate(axes) if k not in added and k not in flipped}
        inside = tuple(v for v in loops if v in kept)
        if len(inside) == len(self.loops):
            return None
        steps, flips, bits = [], [], 0
        for v in loops:
            if v in kept:
                continue
            digits = [(k, size) for k, (variable, size) in enumerate(axes) if variable == v]
            step = _table([(added.get(k), size) for k, size in digits], np.add)
            flip = _table([(flipped.get(k), size) for k, size in digits], np.bitwise_xor)
            steps.append(_formula(v, step, address))
            flips.append(_formula(v, flip, address))
            bits |= int(np.bitwise_or.reduce(flip))
        if any(node is None for node in (*steps, *flips)):
            return None
        return Form(Const(0), inside, flips=_joined("^", flips), steps=_joined("+", steps), flip_bits=bits)

    def _cheapest(self, node: Node) -> Node:
        """The cheapest form of a base: as given, or bits of `tid` moved or added up."""
        if names(node) != {"tid"}:
            return node  # what depends on loops has no other form
        env = {"tid": np.arange(self.ranges["tid"][1] + 1, dtype=np.int64)}
        values = evaluate(node, env)
        key = values.tobytes()
        if key not in self._in_bits:
            right = [form for form in _of_bits(values) if _same(form, env, values)]
            self._in_bits[key] = min(right, key=self._base_cost, default=None)
        in_bits = self._in_bits[key]
        if in_bits is None:
            return node
        # Of equal ones the node as given, unless it takes bits apart itself.
        both = (in_bits, node) if operators(node) & {"&", "%"} else (node, in_bits)
        return min(both, key=self._base_cost)

    def _base_cost(self, node: Node) -> tuple[int, int]:
        return instructions([node], self.ranges), operations(node)

    def _positive(self, node: Node) -> frozenset[Node]:
        """The dividends in `node` whose ranges allow negative values that no active thread computes."""
        negative = (d for d in _dividends(node) if bounds(d, self.ranges, self._bounds)[0] < 0)
        return frozenset(d for d in negative if self.active.any() and self.never_negative((d,)))

    def never_negative(self, nodes: Iterable[Node]) -> bool:
        """Whether no active thread computes a negative value for one of them."""
        values = [self._values(node) for node in nodes]
        return all(v is not None and v[self.active].min(initial=0) >= 0 for v in values)


@lru_cache(maxsize=1 << 12)
def _dividends(node: Node) -> frozenset[Node]:
    """What `node` divides, or takes a remainder of."""
    inner = frozenset[Node]().union(*map(_dividends, parts(node)))
    return inner | {node.args[0]} if isinstance(node, Op) and node.symbol in ("//", "%") else inner


class _Changes(NamedTuple):
    """What axes change of an address, by axis: a number for each position on it."""

    added: dict[int, IntArray]
    flipped: dict[int, IntArray]


def _changes(addresses: IntArray, active: BoolArray, axes: int) -> _Changes:
    """What each axis adds to the addresses and which bits it flips, where no other axis changes that.

    So an address is the one at position 0 of these axes, XOR what they flip, plus what they add; a guess
    where a thread is inactive there. An axis whose effect depends on another one, or on the thread, is in
    neither dictionary; one of which some bits are added and the others flipped is in both.

    Args:
        addresses: by position on each of the first `axes` axes, then by thread.
        active: same shape; other addresses may be anything.
        axes: how many there are.
    """
    added: dict[int, IntArray] = {}
    flipped: dict[int, IntArray] = {}
    base = addresses
    for axis in range(axes):
        change = _constant(base - np.take(base, [0], axis), active, axis)
        if change is not None:
            added[axis] = change
            base = base - _along(change, axis, base.ndim)
    for axis in range(axes):
        if axis not in added:
            change = _constant(base ^ np.take(base, [0], axis), active, axis)
            if change is not None:
                flipped[axis] = change & _ADDRESS_BITS
                base = base ^ _along(change, axis, base.ndim)
    # A bit that no base sets and no other axis flips can be added as well, and an addend costs nothing.
    base_bits = int(np.bitwise_or.reduce(base[active] & _ADDRESS_BITS))
    for axis, change in flipped.items():
        other_bits = [int(np.bitwise_or.reduce(c)) for k, c in flipped.items() if k != axis]
        must_flip = reduce(operator.or_, other_bits, base_bits)
        if (addable := change & ~must_flip).any():
            added[axis] = addable
            flipped[axis] = change & must_flip
    return _Changes(added, flipped)


def _digits(trips: int) -> list[int]:
    """The sizes of the axes that a loop of `trips` becomes, most significant first."""
    return [2] * (trips.bit_length() - 1) if is_power(trips) else [trips]


def _along(values: IntArray, axis: int, dims: int) -> IntArray:
    return values.reshape([-1 if d == axis else 1 for d in range(dims)])


def _constant(change: IntArray, mask: BoolArray, axis: int) -> IntArray | None:
    """`change` for each position on `axis` where, over active positions, it depends on nothing else."""
    rows = np.moveaxis(change, axis, 0).reshape(change.shape[axis], -1)
    live = np.moveaxis(mask, axis, 0).reshape(rows.shape)
    at = live.argmax(axis=1) if rows.size else np.zeros(len(rows), np.int64)
    found: IntArray = rows[np.arange(len(rows)), at]
    return None if ((rows != found[:, None]) & live).any() else found


def _table(digits: Sequence[tuple[IntArray | None, int]], join: np.ufunc) -> IntArray:
    """What a loop variable contributes at each of its values, from what its digits, of a size each, do."""
    values = np.zeros(1, np.int64)
    for part, size in digits:
        values = join(values[:, None], np.zeros(size, np.int64) if part is None else part).ravel()
    return values


def _joined(symbol: str, nodes: Sequence[Node | None]) -> Node:
    return joined(symbol, (node for node in nodes if node is not None and node != Const(0)))


def _formula(variable: str, values: IntArray, address: Node) -> Node | None:
    """What a loop variable adds to an address, or flips of it, as an expression over the variable.

    A product; else the cheapest of moved bits and sums of bits; else what `address` itself does with the
    variable; else a chain of comparisons with each value but the last. None where that is too long.

    Args:
        variable: of the loop.
        values: what is added or flipped, for each value of the variable; 0 for 0.
        address: the whole address, over `tid` and the loop variables.
    """
    v, trips = Var(variable), len(values)
    env, own_range = {variable: np.arange(trips, dtype=np.int64)}, {variable: (0, trips - 1)}
    step = int(values[-1]) // max(trips - 1, 1)
    if (values == step * env[variable]).all():
        return simplify(Op("*", (v, Const(step))), own_range)
    moved = moved_bits(v, values)
    forms = [*bit_sums(v, values), *([] if moved is None else [moved])]
    forms = [form for form in forms if _same(form, env, values)]  # sums of bits are guesses
    if forms:  # never dearer than the address's own form, on any tile of the catalogue
        return min(forms, key=lambda form: instructions([form], own_range))
    # The address where all else is 0, less what it is where the variable is 0, too.
    others: dict[str, Node] = {w: Const(0) for w in names(address) if w != variable}
    own = simplify(substituted(address, others), own_range)
    at_zero = int(evaluate(own, {variable: np.zeros(1, np.int64)}).ravel()[0])
    own = simplify(Op("-", (own, Const(at_zero))), own_range)
    # A chain takes more instructions than the loop has iterations.
    if instructions([own], own_range) <= trips and _same(own, env, values):
        return own
    if trips > _MAX_CHAIN:
        return None
    chain: Node = Const(int(values[-1]))
    for k in range(trips - 2, -1, -1):
        chain = Op("if", (Const(int(values[k])), Op("==", (v, Const(k))), chain))  # values[k] if v == k else
    return chain


def _of_bits(values: IntArray) -> Iterator[Node]:
    """What may compute these values of `tid`: bits of it moved, or added up."""
    if values.min() < 0:
        return
    # First, since compilers keep constants that are added to bits apart, but not those in a sum of bits.
    moved = moved_bits(Var("tid"), values ^ values[0])
    if moved is not None:
        start = int(values[0])
        yield moved if start == 0 else Op("^", (moved, Const(start)))
    yield from bit_sums(Var("tid"), values)


def _same(node: Node, env: Mapping[str, IntArray], values: IntArray) -> bool:
    try:
        return bool((np.broadcast_to(evaluate(node, env), values.shape) == values).all())
    except ExpressionError:
        return False
