"""Tables to formulas: the expression over lanes, warps and loop variables that takes given values.

A coordinate that a lane touches is nearly always a sum of digits, `stride * (v // divide % size)`,
one set of digits a variable (what CuTe writes `(size, ...):(stride, ...)`), or an XOR of bits (what
Triton writes as bases), or a sum that goes round (`(lane + i) % 32`, a rotation). `fit` looks for them in
this order, and returns a formula only after evaluating it at every place of the table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from layoutopt.expressions.grammar import (
    MAX_CHARACTERS,
    Const,
    Node,
    Op,
    Var,
    evaluate,
    joined,
    substituted,
    to_text,
)
from layoutopt.expressions.simplify import simplify, sum_terms, weighted_sum
from layoutopt.ground.arrays import BoolArray, IntArray

MAX_CASES = 64


def fit(table: IntArray, axes: Mapping[str, int]) -> Node | None:
    """An expression over the names of `axes` with the values of `table`; None where none is found.

    Args:
        table: int64, one dimension for each axis, values at least 0.
        axes: extent of each variable, in the order of the table's dimensions.
    """
    ranges = {name: (0, extent - 1) for name, extent in axes.items()}
    values = np.indices(tuple(axes.values()), dtype=np.int64, sparse=True)
    env = dict(zip(axes, values, strict=True))
    for symbol, modulus in (("+", 0), ("^", 0), ("+", _modulus(table))):
        parts = _separate(table, symbol, modulus)
        if parts is None:
            continue
        constant, curves = parts
        terms: list[Node] = []
        for name, curve in zip(axes, curves, strict=True):
            if (term := _term(curve, name)) is None:
                break
            terms.append(term)
        else:
            whole = join(symbol, [*terms, Const(constant)])
            if modulus:
                whole = join("+", [*(_around(simplify(t, ranges), modulus) for t in terms), Const(constant)])
                least = int(table.min()) if table.max() >= modulus else 0
                remainder = Op("%", (Op("-", (whole, Const(least))), Const(modulus)))
                whole = Op("+", (remainder, Const(least)))
            node = simplify(whole, ranges)
            if len(to_text(node)) <= MAX_CHARACTERS and (evaluate(node, env) == table).all():
                return node
    return None


def _term(curve: IntArray, name: str) -> Node | None:
    """An expression over one variable with the values of `curve` at 0, 1, ...; None where none is found."""
    nodes = (form(curve, name) for form in (_digits, _bits, _multiple, _begun, _cases))
    at = {name: np.arange(len(curve))}
    return next((node for node in nodes if node is not None and (evaluate(node, at) == curve).all()), None)


def join(symbol: str, nodes: Sequence[Node]) -> Node:
    """The nodes joined by `+` or `^`, inner joins opened up, zeros left out and what is subtracted last."""
    if symbol == "+":
        terms = [term for node in nodes for term in sum_terms(node, 1)]
        constant = sum(factor * node.value for factor, node in terms if isinstance(node, Const))
        others = [term for term in terms if not isinstance(term[1], Const)]
        return weighted_sum([*others, ((constant > 0) - (constant < 0), Const(abs(constant)))])
    flat: list[Node] = []
    for node in nodes:
        todo = [node]
        while todo:
            one = todo.pop()
            if isinstance(one, Op) and one.symbol == symbol:
                todo += reversed(one.args)
            elif one != Const(0):
                flat.append(one)
    return joined(symbol, flat)


def _around(node: Node, modulus: int) -> Node:
    """A term without a remainder that the same remainder of the whole makes needless."""
    match node:
        case Op("%", (part, Const(size))) if size % modulus == 0:
            return part
    return node


def _separate(table: IntArray, symbol: str, modulus: int) -> tuple[int, list[IntArray]] | None:
    """(constant, curves): `table` as a constant joined by `symbol` with one curve an axis, 0 at the origin.

    Where there is a modulus, the curves lie below it and the sum is the table but for multiples of it. None
    where the table is not of this form. `x + 10*y` from 5 on is 5, with the curves 0 1 2 ... and 0 10 20 ...
    """
    join: Callable[..., IntArray] = np.add if symbol == "+" else np.bitwise_xor
    without: Callable[..., IntArray] = np.subtract if symbol == "+" else np.bitwise_xor
    constant = int(table[(0,) * table.ndim])
    curves = []
    total: IntArray = np.full((1,) * table.ndim, constant, np.int64)
    for axis in range(table.ndim):
        along = table[tuple(slice(None) if a == axis else 0 for a in range(table.ndim))]
        curve = without(along, constant)
        if modulus:
            curve %= modulus
        curves.append(curve)
        shape = [1] * table.ndim
        shape[axis] = -1
        total = join(total, curve.reshape(shape))
    wrong = (total - table) % modulus if modulus else total - table
    return None if wrong.any() else (constant, curves)


def _modulus(table: IntArray) -> int:
    """The largest modulus with which the table is a sum of its first lines; 0 where it is one without."""
    origin = table[(0,) * table.ndim]
    rest = origin - table
    for axis in range(table.ndim):
        rest = rest + table[tuple(slice(None) if a == axis else slice(1) for a in range(table.ndim))] - origin
    return int(np.gcd.reduce(rest, axis=None))


def _digits(curve: IntArray, name: str) -> Node | None:
    """Sum of `stride * (v // divide % size)`: each digit is the longest run of equal steps.

    0 1 10 11 20 21 is `v % 2 + 10*(v // 2)`. None where it is no such sum.
    """
    terms: list[Node] = []
    divide = 1
    while curve.any():
        v, steps = np.arange(len(curve)), np.diff(curve)
        changes = np.flatnonzero(steps != steps[0])
        size = int(changes[0]) + 1 if len(changes) else len(curve)
        stride = int(steps[0])
        higher = curve[::size]
        if size < 2 or (stride * (v % size) + higher[v // size] != curve).any():
            return None
        if stride:
            value = Op("%", (Op("//", (Var(name), Const(divide))), Const(size)))
            terms.append(Op("*", (value, Const(stride))))
        divide *= size
        curve = higher
    return join("+", terms[::-1])


def _bits(curve: IntArray, name: str) -> Node | None:
    """XOR of what each bit of v contributes; neighbouring bits whose values double are one digit."""
    if (curve < 0).any():
        return None
    bases = [int(curve[1 << b]) for b in range((len(curve) - 1).bit_length())]
    terms: list[Node] = []
    first = 0  # bit of a digit
    while first < len(bases):
        bits, base = 1, bases[first]
        while base.bit_count() < 2 and first + bits < len(bases) and bases[first + bits] == base << bits:
            bits += 1
        if base:
            value = Op("%", (Op("//", (Var(name), Const(1 << first))), Const(1 << bits)))
            terms.append(Op("*", (value, Const(base))))
        first += bits
    return join("^", terms)


def _multiple(curve: IntArray, name: str) -> Node | None:
    """`(factor * v + begin) % modulus - begin`, the begin such that the least of it is 0."""
    if len(curve) < 2:
        return None
    factor, begin = int(curve[1]), -int(curve.min())
    modulus = int(np.gcd.reduce(factor * np.arange(len(curve)) - curve))
    if modulus < 2:
        return None
    inner = Op("+", (Op("*", (Var(name), Const(factor % modulus))), Const(begin)))
    return Op("-", (Op("%", (inner, Const(modulus))), Const(begin)))


def _begun(curve: IntArray, name: str) -> Node | None:
    """Digits of `v + begin`, as of `(v + 5) // 34`: runs of one length but for a shorter first one."""
    ends = np.flatnonzero(np.diff(curve)) + 1
    begin = int(ends[1] - 2 * ends[0]) if len(ends) > 1 else 0
    if begin <= 0:
        return None
    node = _digits(np.concatenate([np.zeros(begin, np.int64), curve]), name)
    return None if node is None else substituted(node, {name: Op("+", (Var(name), Const(begin)))})


def _cases(curve: IntArray, name: str) -> Node | None:
    """`a if v < n else b if ...`: for the few irregular lanes of a recorded trace."""
    edges = [0, *(np.flatnonzero(np.diff(curve, n=1) != 0) + 1).tolist()]
    if len(edges) > MAX_CASES:
        return None

    def choose(low: int, high: int) -> Node:
        if high - low == 1:
            return Const(int(curve[edges[low]]))
        middle = (low + high) // 2
        test = Op("<", (Var(name), Const(edges[middle])))
        return Op("if", (choose(low, middle), test, choose(middle, high)))

    return choose(0, len(edges))


# Over threads and iterations ----------------------------------------------------------------------
#
# Kernels count pieces across threads and iterations, `(tid + 128*i) // 40`, and guard what is left over, so a
# table is looked at in several views, each with variables of its own in which such an access is whole:
#
#     tid, i          or    lane, warp, i
#     tid + T*(i // d), i % d,    or    tid + T*(i % d), i // d       T threads take part
#     tid % p, tid // p, i                                            every p threads take part alike

View = dict[str, Node]


def fit_threads(table: IntArray, lanes: int, known: BoolArray, addressed: int | None = None) -> Node | None:
    """An expression over tid, lane, warp and i with the values of a table; None where none is found.

    Args:
        table: int64, shape (threads, iterations), values at least 0.
        lanes: lanes of a warp.
        known: shape of the table, somewhere true: which values matter.
        addressed: so many lanes of a warp, the first, have values that matter; the others repeat theirs.
    """
    env = _environment(table.shape, lanes)
    for views in _views(known, lanes, addressed or lanes):
        found = [node for view in views if (node := _fit_view(table, known, view, env)) is not None]
        if found:
            return min(found, key=lambda node: len(to_text(node)))
    part = known & _longest_run(known.min(axis=1))[:, None]
    if part.any() and not (part == known).all():
        node = fit_threads(table, lanes, part)
        if node is not None and (_values(node, env, table.shape)[known] == table[known]).all():
            return node
    return None


def guard(taking: BoolArray, lanes: int) -> Node | None:
    """The condition over tid, lane, warp and i under which threads take part; None where none is found.

    Args:
        taking: shape (threads, iterations), somewhere true.
        lanes: lanes of a warp.
    """
    env = _environment(taking.shape, lanes)
    for views in _views(taking, lanes, lanes):
        for view in views:
            box = _box(view, env, taking)
            if box is None:
                continue
            every = {name: _values(node, env, taking.shape) for name, node in view.items()}
            limits = [
                _within(view[name], box[name], (int(values.min()), int(values.max()) + 1))
                for name, values in every.items()
            ]
            workers = _workers(taking)
            if "index" in view and workers < len(taking):
                limits.insert(0, _within(Var("tid"), (0, workers), (0, len(taking))))
            return simplify(_all_of("and", limits), _ranges(env))
    edges = np.flatnonzero(np.diff(taking[:, 0], prepend=False, append=False)).reshape(-1, 2).tolist()
    if (taking == taking[:, :1]).all() and len(edges) <= MAX_CASES:
        return _all_of("or", [_within(Var("tid"), (a, b), (0, len(taking))) for a, b in edges])
    return fit_threads(taking.astype(np.int64), lanes, np.ones_like(taking))


def _views(known: BoolArray, lanes: int, addressed: int) -> Iterator[list[View]]:
    """Views of a table of threads and iterations, to be tried in this order; those of one list together.

    Args:
        known: shape (threads, iterations): which values matter.
        lanes: of a warp.
        addressed: of these the first, whose values matter; the others repeat theirs.
    """
    threads, trips = known.shape
    loop: View = {"i": Var("i")} if trips > 1 else {}
    tid = Var("tid")
    lane: Node = Var("lane") if addressed == lanes else Op("%", (Var("lane"), Const(addressed)))
    if threads <= lanes:
        yield [{"lane": lane, **loop}]
    else:
        yield [{"tid": tid, **loop}, {"lane": lane, "warp": Var("warp"), **loop}]
    workers = _workers(known)
    for d in range(1, trips):
        if trips % d == 0:
            slow, fast = (Op(symbol, (Var("i"), Const(d))) for symbol in ("//", "%"))
            for turn, rest in ((slow, fast), (fast, slow))[: 2 if d > 1 else 1]:
                yield [{"index": Op("+", (tid, Op("*", (turn, Const(workers))))), "rest": rest}]
    alike = known.max(axis=1)[:workers]
    period = next((p for p in range(2, workers // 2 + 1) if (alike[p:] == alike[:-p]).all()), None)
    if period is not None and not alike.all():
        yield [{"in": Op("%", (tid, Const(period))), "of": Op("//", (tid, Const(period))), **loop}]


def _workers(known: BoolArray) -> int:
    """Threads up to the last that takes part at all."""
    return int(np.flatnonzero(known.any(axis=1))[-1]) + 1


def _fit_view(table: IntArray, known: BoolArray, view: View, env: Mapping[str, IntArray]) -> Node | None:
    """`fit_threads` in one view: the values that matter, put into a table over the view's variables."""
    box = _box(view, env, known)
    if box is None:
        return None
    at = tuple(_values(node, env, table.shape)[known] - box[name][0] for name, node in view.items())
    seen: IntArray = np.zeros([high - low for low, high in box.values()], np.int64)
    seen[at] = table[known]
    node = fit(seen, {name: high - low for name, (low, high) in box.items()})
    if node is None:
        return None
    from_low: dict[str, Node] = {name: Op("-", (view[name], Const(low))) for name, (low, _) in box.items()}
    node = join("+", [simplify(substituted(node, from_low), _ranges(env))])
    return node if len(to_text(node)) <= MAX_CHARACTERS else None


def _box(view: View, env: Mapping[str, IntArray], known: BoolArray) -> dict[str, tuple[int, int]] | None:
    """The interval of each axis, upper end not included, where the cells that matter fill a box."""
    box, cells = {}, 1
    for name, node in view.items():
        values = _values(node, env, known.shape)[known]
        low, high = int(values.min()), int(values.max()) + 1
        box[name] = (low, high)
        cells *= high - low
    return box if cells == known.sum() else None


def _environment(shape: tuple[int, ...], lanes: int) -> dict[str, IntArray]:
    tid = np.arange(shape[0], dtype=np.int64)[:, None]
    return {
        "tid": tid,
        "lane": tid % lanes,
        "warp": tid // lanes,
        "i": np.arange(shape[1], dtype=np.int64)[None, :],
    }


def _ranges(env: Mapping[str, IntArray]) -> dict[str, tuple[int, int]]:
    return {name: (int(values.min()), int(values.max())) for name, values in env.items()}


def _values(node: Node, env: Mapping[str, IntArray], shape: tuple[int, ...]) -> IntArray:
    return np.broadcast_to(evaluate(node, env), shape)


def _within(node: Node, interval: tuple[int, int], every: tuple[int, int]) -> Node | None:
    """The test for an interval, upper end not included, out of the values that there are; None: no need."""
    low, high = interval
    if interval == every:
        return None
    if high == low + 1:
        return Op("==", (node, Const(low)))
    above, below = Op(">=", (node, Const(low))), Op("<", (node, Const(high)))
    return _all_of("and", [above if low > every[0] else None, below if high < every[1] else None])


def _all_of(symbol: str, tests: Sequence[Node | None]) -> Node:
    needed = tuple(test for test in tests if test is not None)
    return needed[0] if len(needed) == 1 else Op(symbol, needed)


def _longest_run(some: BoolArray) -> BoolArray:
    """Only the first of the longest runs of true."""
    edges = np.flatnonzero(np.diff(some, prepend=False, append=False)).reshape(-1, 2)
    run = np.zeros_like(some)
    if len(edges):
        low, high = edges[(edges[:, 1] - edges[:, 0]).argmax()]
        run[low:high] = True
    return run
