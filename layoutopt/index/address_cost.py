"""The instructions of an access's address, computed in one way, in a pass over its loops.

Compilers unroll loops, which leaves constants where loop variables were, and compute once what iterations
share. Where a predicate depends on loop variables, iterations with short code are executed under their own
condition and add the tile's start by themselves; longer code is branched around. See
`layoutopt.index.instructions` for the cost of one expression, and `scripts/benchmarks/index_machine_code.py`
for how near this comes to machine code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, Literal

from layoutopt.expressions.grammar import Const, Node, Op, Var, names, parts, substituted
from layoutopt.expressions.simplify import Range
from layoutopt.index.folding import folded, unrolled
from layoutopt.index.instructions import instructions, of_folded, takes_up

UNROLLED: Final = 64  # iterations; more would flood the instruction cache, and compilers unroll no more
UNROLLED_WHOLE: Final = 256  # iterations of a nest whose outer loops compilers unroll, too
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_START: Final = "@start"
# However many threads a block has; and where the tile starts, which no loop variable can be called.
_KNOWN_TO_COMPILERS: Final[dict[str, Range]] = {"tid": (0, 1023), _START: (0, 1 << 24)}

# Where the tile's start is added: by the access itself, by one instruction to the base before its bits are
# flipped, or by one at every address.
Start = Literal["free", "first", "last"]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to compute an address.

    Attributes:
        base: over `tid` and the variables in `inside`.
        flips: XORed into the base, over the loop variables; `Const(0)` for nothing.
        steps: added after that, over the loop variables; `Const(0)` for nothing.
        inside: loop variables that stay in the base.
        flip_bits: all bits that `flips` may hold.
        positive: dividends in the base that no active thread makes negative, though their ranges allow it.
    """

    base: Node
    flips: Node
    steps: Node
    inside: tuple[str, ...]
    flip_bits: int
    positive: frozenset[Node]

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


class AddressCost:
    """Counts the instructions of an access's address.

    Args:
        loops: iterations of each loop variable of the access.
        ranges: of `tid` and the loop variables.
        branches_on: loop variables in the access's predicate. Where there are any, each iteration is executed
            under a condition of its own, and compilers keep nothing that was computed under another.
        start: what adds the tile's start to a form's addresses.
    """

    def __init__(
        self,
        loops: Mapping[str, int],
        ranges: Mapping[str, Range],
        branches_on: Set[str],
        start: Callable[[Form], Start],
    ) -> None:
        self.loops = loops
        self.ranges = ranges
        self.branches = bool(branches_on)
        self.one_access_a_branch = math.prod(n for v, n in loops.items() if v not in branches_on) == 1
        self.start = start
        self.iterations = math.prod(loops.values())
        self._known: dict[tuple[Form, int], tuple[int, int]] = {}  # by the iterations that were counted

    def of(self, form: Form, limit: float = math.inf, most: int = UNROLLED_WHOLE) -> tuple[int, int]:
        """Instructions of one pass: those before the loops, and those of all iterations.

        Args:
            form: how addresses are computed.
            limit: where there are more, any number above it may be returned.
            most: iterations of unrolled loops to count; where there are more, so many spread among them.
        """
        unrolled_ones, rolled = self._unrolled()
        loops = {v: self.loops[v] for v in unrolled_ones}
        every = _spread(math.prod(loops.values()), most)
        key = form, len(every)
        if key not in self._known:
            found = self._counted(form, limit, loops, rolled, every)
            if sum(found) > limit:
                return found
            self._known[key] = found
        return self._known[key]

    def _counted(
        self, form: Form, limit: float, loops: Mapping[str, int], rolled: Sequence[str], every: Sequence[int]
    ) -> tuple[int, int]:
        """The same of iterations `every` of the unrolled `loops`, inside the loops `rolled`."""
        start, ranges = self.start(form), {**self.ranges, **_KNOWN_TO_COMPILERS}
        address = _with_start(form, start)
        positive = {at for node in form.positive for at in unrolled(node, loops, every)}
        fixed = _without(address, set(self.loops))
        once = instructions(fixed, ranges, form.positive)
        before = self._before(form, fixed, once)
        added = Var(_START) if self._adds_start(form, ranges) else None
        cost = of_folded(unrolled(address, loops, every), ranges, positive, before, limit, added)
        if rolled and cost <= limit:
            # The outer loops repeat what depends on their variables; the rest stays in registers.
            kept = min(cost, instructions(_kept_outside(address, loops, rolled), ranges, positive))
            cost = kept + (cost - kept) * math.prod(self.loops[v] for v in rolled)
        return min(once, cost), max(cost - once, 0)

    def _adds_start(self, form: Form, ranges: Mapping[str, Range]) -> bool:
        """Whether each iteration under a condition of its own adds the tile's start by itself."""
        if self.iterations > UNROLLED or not self.one_access_a_branch or self.start(form) != "free":
            return False
        return bool(form.inside) or form.flips != Const(0) or not takes_up(folded(form.base), ranges)

    def _before(self, form: Form, fixed: Sequence[Node], once: int) -> list[Node] | None:
        """What is computed before the branches of the iterations and kept; None where nothing branches."""
        if not self.branches:
            return None
        few = self.iterations <= UNROLLED
        if few and once <= 1 and (form.inside or _adds(form.address)):
            return []  # one instruction, which adds the tile's start too, is computed anew, not kept
        if form.inside or (few and self.one_access_a_branch):
            return [folded(node) for node in fixed]
        return None

    def _unrolled(self) -> tuple[list[str], list[str]]:
        """The loops that compilers unroll, and those that they keep."""
        loops = list(self.loops)
        if self.iterations <= UNROLLED_WHOLE:
            return loops, []
        inner = len(loops)
        while inner and math.prod(self.loops[v] for v in loops[inner - 1 :]) <= UNROLLED:
            inner -= 1
        return loops[inner:], loops[:inner]


def _kept_outside(address: Node, loops: Mapping[str, int], rolled: Sequence[str]) -> Iterator[Node]:
    """The parts of an address, at every iteration of the unrolled `loops`, that no rolled loop changes."""
    for at in itertools.product(*map(range, loops.values())):
        values: dict[str, Node] = {v: Const(k) for v, k in zip(loops, at, strict=True)}
        yield from _without(substituted(address, values), set(rolled))


def _with_start(form: Form, start: Start) -> Node:
    """The address, where an instruction of its own adds the tile's start: that sum."""
    if start == "first":
        return form.from_base(Op("+", (form.base, Var(_START))))
    return form.address if start == "free" else Op("+", (form.address, Var(_START)))


def _spread(count: int, most: int) -> Sequence[int]:
    """At most so many of the numbers below `count`, rising, whose differences follow no loop's stride."""
    if count <= most:
        return range(count)
    return sorted({int(count * (k * _GOLDEN % 1)) for k in range(most)})


def _adds(node: Node) -> bool:
    """Whether a node holds sums and products alone, so that one more summand takes no further instruction."""
    if not isinstance(node, Op) or "tid" not in names(node):
        return True
    return (
        not _subtracts_shifted(node) and node.symbol in ("+", "-", "*", "<<") and all(map(_adds, parts(node)))
    )


def _subtracts_shifted(node: Node) -> bool:
    """Whether a node subtracts a shifted value, which no instruction combines with an addition."""
    match folded(node):
        case Op("-", (_, Op("*", (_, Const(k))))) if k > 0:
            return not k & (k - 1)
        case Op("*", (_, Const(k))) if k < 0:
            return not -k & (-k - 1)
    return False


def _without(node: Node, variables: Set[str]) -> list[Node]:
    """The largest parts of `node` that mention none of `variables`."""
    if not names(node) & variables:
        return [node]
    return [part for arg in parts(node) for part in _without(arg, variables)]
