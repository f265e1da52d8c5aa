"""How many integer instructions compilers make of expressions, and of an access's address in all iterations.

Counted as NVIDIA's compiler selects them (sm_70 and later):

    a*33 + b            1    a product is fused with an addition (IMAD, LEA)
    a + b + c           1    an addition takes three operands (IADD3)
    a ^ (b & 7)         1    any function of the bits of three, at most one of them constant (LOP3)
    (a % 8)*16 ^ b      2    a shift, and the mask with the XOR; a sum of disjoint bits is one of bits, too
    a // 8 + b          1    so is a shift to the right (LEA.HI)
    a // 8, a // 3      1, 2 a shift; a high product and a correction, or three where the product is shifted
    a % 3               3    the division, and a product taken away

What several expressions share is computed once; a constant added last goes into the memory instruction.

Compilers unroll loops, which leaves constants where loop variables were, and compute once what iterations
share. Where a predicate depends on loop variables, iterations with short code are executed under their own
condition and add the tile's start by themselves; longer code is branched around.
`scripts/benchmarks/index_machine_code.py` counts what the compiler really makes of them.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from typing import Final, Literal

from msgspec import Struct

from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, names, parts, substituted
from layoutopt.expressions.simplify import Range, bounds
from layoutopt.index.folding import folded, is_power, unrolled

_BITS = frozenset("^&|")
_LEAVES = Const, Var
# Instructions of an address, at most, that are executed under a predicate rather than branched around.
_PREDICATED = 2


def instructions(nodes: Iterable[Node], ranges: Mapping[str, Range], positive: Collection[Node] = ()) -> int:
    """Integer instructions that compute all of `nodes` as addresses: a constant added last is free.

    Args:
        nodes: the expressions.
        ranges: the range of every variable; a dividend that may be negative costs a correction.
        positive: dividends that need none although their ranges say so.
    """
    counter = _Counter(ranges, set(map(folded, positive)))
    return _total(counter, map(folded, nodes), counter.cost, math.inf)


def _total(counter: "_Counter", nodes: Iterable[Node], cost: Callable[[Node], int], limit: float) -> int:
    """The costs of folded addresses without their constants; some number above `limit`, if more."""
    total, first = 0, True
    for node in nodes:
        rest = without_constant(node)
        if first and rest != node:  # with a constant the first is a sum, and compilers then keep it one
            counter.sums(rest)
        first = False
        total += cost(rest)
        if total > limit:
            break
    return total


def _in_branches(counter: "_Counter", before: Sequence[Node], start: Node | None) -> Callable[[Node], int]:
    """The cost of an address that shares nothing with the others but `before`, which the counter has seen.

    The register `start` is added to each whose code is short enough to be executed under a predicate.
    Compilers branch around longer code, where the access adds the register by itself.
    """
    bases = {without_constant(node) for node in before}

    @cache
    def cost(rest: Node) -> int:
        alone = 0 if rest in bases else counter.apart().cost(rest)
        if start is None or alone > _PREDICATED or isinstance(rest, Const):
            return alone
        return counter.apart().cost(Op("+", (rest, start)))

    return cost


@lru_cache(maxsize=1 << 14)
def without_constant(node: Node) -> Node:
    """A folded address without its constant, which fits the instruction's offset: (x + 3) * 4 is x * 4."""
    match node:
        case Op("+", (Const(), rest)) | Op("+" | "-", (rest, Const())):
            return without_constant(rest)
        case Op("-", (Const(), rest)):
            return folded(Op("-", (Const(0), without_constant(rest))))
        case Op("+" | "-" as symbol, (a, b)):
            left, right = without_constant(a), without_constant(b)
            return node if (left, right) == (a, b) else without_constant(Op(symbol, (left, right)))
        case Op("*", (Op("+" | "-") as inner, Const() as factor)):
            rest = without_constant(inner)
            return rest if isinstance(rest, Const) else folded(Op("*", (rest, factor)))
    return node


def _adds_where_computed(node: Node, ranges: Mapping[str, Range]) -> bool:
    """Whether one more summand is added where a folded node is computed, once, and not at each use of it.

    A product is added where it is used, in one instruction with the product. A sum is kept as a sum, and so
    is a value that an instruction of its own has negated.
    """
    match without_constant(node):
        case Op("*", (_, Const(factor))):
            return is_power(-factor)
        case Op("+" | "-") as rest:
            return not _Counter(ranges, ()).on_bits(rest)
    return False


class _Counter:
    """Counts instructions of nodes; those in `seen` are computed already and cost nothing."""

    def __init__(
        self, ranges: Mapping[str, Range], positive: Collection[Node], seen: set[Node] | None = None
    ) -> None:
        self.ranges = ranges
        self.positive = positive
        self.seen = set() if seen is None else seen
        self._of_bits: dict[Op, bool] = {}
        self._bits: dict[Node, int] = {}

    def apart(self) -> "_Counter":
        """A counter that has seen the same nodes, and whose counts this one does not see."""
        other = _Counter(self.ranges, self.positive, set(self.seen))
        other._of_bits, other._bits = self._of_bits, self._bits
        return other

    def cost(self, node: Node) -> int:
        """Instructions of `node` beyond those that were counted before, as NVIDIA's compiler selects them.

        LOP3 joins three values by any AND, OR, XOR, so that n values take n // 2; each holds one constant.
        """
        if isinstance(node, _LEAVES) or node in self.seen:
            return 0
        self.seen.add(node)
        if isinstance(node, Lookup):
            return 2 + self.cost(node.index)  # an address and a load
        if self.on_bits(node):
            leaves = dict.fromkeys(self._leaves(node))
            constants = sum([isinstance(leaf, Const) for leaf in leaves])
            return max(len(leaves) // 2, constants) + sum([self.cost(leaf) for leaf in leaves])
        if node.symbol in ("+", "-"):
            return self._sum(node)
        if node.symbol in ("//", "%"):
            return self._division(node)
        return 1 + sum([self.cost(arg) for arg in node.args])

    def _sum(self, node: Op) -> int:
        """A product adds one other term, in one instruction; an addition has three operands."""
        products, others, of_terms = 0, 0, 0
        for term in self._terms(node):
            if isinstance(term, Op) and term not in self.seen and _fused(term):
                products += 1
                self.seen.add(term)
                of_terms += sum([self.cost(arg) for arg in term.args])
            else:
                others += 1
                of_terms += self.cost(term)
        return of_terms + products + others // 2

    def _terms(self, node: Node) -> list[Node]:
        if isinstance(node, Op) and node.symbol in ("+", "-"):
            return [t for arg in node.args for t in ([arg] if arg in self.seen else self._terms(arg))]
        return [node]

    def _leaves(self, node: Node) -> list[Node]:
        if not isinstance(node, Op) or not self.on_bits(node):
            return [node]
        if node.symbol == "%":
            return [*self._under(node.args[0]), node.args[1]]
        return [leaf for arg in node.args for leaf in self._under(arg)]

    def sums(self, node: Node) -> None:
        """Count a sum as an addition, not as an operation on bits: a constant beside it makes it one."""
        if isinstance(node, Op) and node.symbol == "+":
            self._of_bits[node] = False
            for part in node.args:
                self.sums(part)

    def on_bits(self, node: Op) -> bool:
        """Whether compilers take `node` for an operation on bits, as masks and sums of disjoint bits are."""
        found = self._of_bits.get(node)
        if found is None:
            masks = node.symbol == "%" and isinstance(by := node.args[1], Const) and is_power(by.value)
            found = node.symbol in _BITS or masks or self._disjoint(node)
            self._of_bits[node] = found
        return found

    def _disjoint(self, node: Op) -> bool:
        """Whether a sum's operands have no bits in common, which makes the sum an OR."""
        if node.symbol != "+" or isinstance(node.args[1], Const):
            return False
        a, b = node.args
        masked = any(isinstance(part, Op) and part.symbol in _BITS for part in (a, b))
        return masked and not self._possible(a) & self._possible(b)

    def _possible(self, node: Node) -> int:
        if node not in self._bits:
            self._bits[node] = self._find_possible(node)
        return self._bits[node]

    def _find_possible(self, node: Node) -> int:
        """The bits that may be set in `node`, as a mask: -1, all bits, where it may be negative."""
        match node:
            case Const(value):
                return value
            case Op("&", (a, Const(mask))):
                return self._possible(a) & mask
            case Op("^" | "|", (a, b)):
                return self._possible(a) | self._possible(b)
            case Op("*", (a, Const(k))) if is_power(k):
                return self._possible(a) * k
            case Op("<<", (a, Const(k))):
                return self._possible(a) << k
            case Op("+", (a, b)) if not (left := self._possible(a)) & (right := self._possible(b)):
                return left | right
        low, high = bounds(node, self.ranges)
        return -1 if low < 0 else (1 << high.bit_length()) - 1

    def _under(self, node: Node) -> list[Node]:
        return [node] if node in self.seen else self._leaves(node)

    def _division(self, node: Op) -> int:
        dividend, divisor = node.args
        if not isinstance(divisor, Const) or divisor.value <= 0:
            return 8 + self.cost(dividend) + self.cost(divisor)  # by no constant: about so many
        if node.symbol == "%":
            return 1 + self.cost(Op("//", node.args))
        if is_power(divisor.value):
            return 1 + self.cost(dividend)
        corrected = bounds(dividend, self.ranges)[0] < 0 and dividend not in self.positive
        return (3 if corrected else 0) + (2 if _high_product(divisor.value) else 3) + self.cost(dividend)


def _high_product(divisor: int) -> bool:
    """Whether the high half of one product of 32 bits is the quotient, but for its sign.

    Warren, Hacker's Delight, 10-4: the multiplier for signed division then needs no shift.
    """
    multiplier = (1 << 32) // divisor + 1
    return multiplier * divisor - (1 << 32) <= 2


def _fused(node: Op) -> bool:
    """Whether a node is computed in one instruction with an addition: a product, or a shift either way."""
    match node:
        case Op("*" | "<<"):
            return True
        case Op("//", (_, Const(by))):
            return is_power(by)
    return False


# Of an address --------------------------------------------------------------------------------

UNROLLED: Final = 64  # iterations; more would flood the instruction cache, and compilers unroll no more
UNROLLED_WHOLE: Final = 256  # iterations of a nest whose outer loops compilers unroll, too
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_START: Final = "@start"  # the variable for where the tile starts; no loop variable can be called so
# Ranges, in bytes for the tile's start, that hold however many threads a block has.
_KNOWN_TO_COMPILERS: Final[dict[str, Range]] = {"tid": (0, 1023), _START: (0, 1 << 24)}

# Where the tile's start is added: by the access itself, by one instruction to the base before its bits are
# flipped, or by one at every address.
Start = Literal["free", "first", "last"]


class Form(Struct, frozen=True):
    """One way to compute an address."""

    base: Node  # over `tid` and the variables in `inside`
    inside: tuple[str, ...]  # loop variables that stay in the base
    flips: Node = Const(0)  # XORed into the base, over the loop variables; `Const(0)` for nothing
    steps: Node = Const(0)  # added after that, over the loop variables; `Const(0)` for nothing
    flip_bits: int = 0  # all bits that `flips` may hold
    # Dividends in the base that no active thread makes negative, though their ranges allow it
    positive: frozenset[Node] = frozenset()

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


class Instructions(Struct, frozen=True):
    """Integer instructions of one access's addresses, for one thread and one pass over its loops."""

    once: int  # what no loop of the access changes
    looped: int  # of all iterations together, after that
    iterations: int  # of one pass

    @property
    def total(self) -> int:
        """Of the whole pass."""
        return self.once + self.looped


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
        # Whether no loop runs within what one condition covers.
        self.one_access_a_branch = math.prod(n for v, n in loops.items() if v not in branches_on) == 1
        self.start = start
        self.iterations = math.prod(loops.values())
        self._known: dict[tuple[Form, int], Instructions] = {}  # by form, and how many iterations count

    def of(self, form: Form, limit: float = math.inf, most: int = UNROLLED_WHOLE) -> Instructions:
        """Instructions of one pass.

        Args:
            form: how addresses are computed.
            limit: where there are more, any number above it may be returned.
            most: iterations of unrolled loops to count; where there are more, so many spread among them.
        """
        unrolled_ones, rolled = self._unrolled()
        loops = {v: self.loops[v] for v in unrolled_ones}
        counted = _spread(math.prod(loops.values()), most)
        key = form, len(counted)
        if key not in self._known:
            found = self._counted(form, limit, loops, rolled, counted)
            if found.total > limit:
                return found  # which may be too few, so that it is not kept
            self._known[key] = found
        return self._known[key]

    def _counted(
        self,
        form: Form,
        limit: float,
        loops: Mapping[str, int],
        rolled: Sequence[str],
        counted: Sequence[int],
    ) -> Instructions:
        """`of` a form: every counted iteration's address with its constants folded, what they share once.

        Args:
            form: how addresses are computed.
            limit: where there are more instructions, any number above it may be returned.
            loops: iterations of each variable of the unrolled loops, which lie inside the others.
            rolled: variables of the others.
            counted: numbers of the unrolled iterations that count, the last variable of `loops` fastest.
        """
        start, ranges = self.start(form), {**self.ranges, **_KNOWN_TO_COMPILERS}
        address = _with_start(form, start)
        addresses = unrolled(address, loops, counted)
        positive = {at for node in form.positive for at in unrolled(node, loops, counted)}
        # What no loop changes is computed once; all together is that and what the iterations take.
        fixed = _without(address, set(self.loops))
        once = instructions(fixed, ranges, form.positive)
        before, counter = self._before(form, fixed, once), _Counter(ranges, positive)
        if before is None:  # all iterations share what they have in common
            total = _total(counter, addresses, counter.cost, limit)
        else:  # each iteration lies under a condition of its own, and shares only what is computed before it
            shared = sum(map(counter.cost, before))
            own_start = Var(_START) if start == "free" and self._adds_start(form, ranges) else None
            cost_of = _in_branches(counter, before, own_start)
            total = shared + _total(counter, addresses, cost_of, limit - shared)
        if rolled and total <= limit:
            # The outer loops repeat what depends on their variables; the rest stays in registers.
            kept = min(total, instructions(_kept_outside(address, loops, rolled), ranges, positive))
            total = kept + (total - kept) * math.prod(self.loops[v] for v in rolled)
        # A fixed part may vanish in all iterations, such as that of 0 * part.
        return Instructions(min(once, total), max(total - once, 0), self.iterations)

    def _adds_start(self, form: Form, ranges: Mapping[str, Range]) -> bool:
        """Whether each iteration under a condition of its own adds the tile's start by itself."""
        if self.iterations > UNROLLED or not self.one_access_a_branch:
            return False
        if form.inside or form.flips != Const(0):
            return True
        return not _adds_where_computed(folded(form.base), ranges)

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
        case Op("-", (_, Op("*", (_, Const(k))))):
            return is_power(k)
        case Op("*", (_, Const(k))):
            return is_power(-k)
    return False


def _without(node: Node, variables: Set[str]) -> list[Node]:
    """The largest parts of `node` that mention none of `variables`."""
    if not names(node) & variables:
        return [node]
    return [part for arg in parts(node) for part in _without(arg, variables)]
