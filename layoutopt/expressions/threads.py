"""Tables over the threads of a block and the iterations of a loop, as formulas.

`layoutopt.expressions.fit` finds formulas over independent variables for tables that are known whole.
Kernels count pieces across threads and iterations, `(tid + 128*i) // 40`, and guard what is left over, so a
table is looked at in several views, each with variables of its own in which such an access is whole:

    tid, i          or    lane, warp, i
    tid + T*(i // d), i % d,    or    tid + T*(i % d), i // d       T threads take part
    tid % p, tid // p, i                                            every p threads take part alike
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from layoutopt.expressions.fit import MAX_CASES, fit, join
from layoutopt.expressions.grammar import MAX_CHARACTERS, Const, Node, Op, Var, evaluate, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import BoolArray, IntArray

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
            return simplify(_joined("and", limits), _ranges(env))
    edges = np.flatnonzero(np.diff(taking[:, 0], prepend=False, append=False)).reshape(-1, 2).tolist()
    if (taking == taking[:, :1]).all() and len(edges) <= MAX_CASES:
        return _joined("or", [_within(Var("tid"), (a, b), (0, len(taking))) for a, b in edges])
    return fit_threads(taking.astype(np.int64), lanes, np.ones_like(taking))


def _views(known: BoolArray, lanes: int, addressed: int) -> Iterator[list[View]]:
    """Views, the plain ones together, then one by one; in each every cell that matters has its own place."""
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
    box = _box(view, env, known)
    if box is None:
        return None
    at = tuple(_values(node, env, table.shape)[known] - box[name][0] for name, node in view.items())
    whole: IntArray = np.zeros([high - low for low, high in box.values()], np.int64)
    whole[at] = table[known]
    node = fit(whole, {name: high - low for name, (low, high) in box.items()})
    if node is None:
        return None
    begun: dict[str, Node] = {name: Op("-", (view[name], Const(low))) for name, (low, _) in box.items()}
    node = join("+", [simplify(substituted(node, begun), _ranges(env))])
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
    return _joined("and", [above if low > every[0] else None, below if high < every[1] else None])


def _joined(symbol: str, tests: Sequence[Node | None]) -> Node:
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
