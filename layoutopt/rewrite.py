"""Problems in plainer words: what the file may say, as what the search and the emitters know.

Elements of less than a byte move together with those that share their byte: an access starts at a
whole byte and covers whole bytes, so that a tile of them is a tile of bytes.

    128x64 of 4 bits, index [row, 32*k]   ->   128x32 bytes, index [row, (32*k) // 2]

Values known only at run time become loops where all that matters is which elements an access touches:

    "any": {"bin": 256}   ->   "for": {"bin": 256}
"""

from __future__ import annotations

import msgspec

from layoutopt.address import Layout
from layoutopt.model import Problem

replace = msgspec.structs.replace


def stored(problem: Problem) -> Problem:
    """The problem over the bytes that packed elements share; itself where elements are whole bytes.

    The accesses must start at whole bytes, which `layoutopt.accesses.trace` checks.
    """
    packed = problem.tile.packed
    if packed == 1:
        return problem
    accesses = tuple(
        replace(a, index=(*a.index[:-1], f"({a.index[-1]}) // {packed}")) for a in problem.accesses
    )
    return replace(problem, tile=problem.tile.storage, accesses=accesses)


def with_loops(problem: Problem) -> Problem:
    """The problem with loops over all values where lanes choose; only which elements it touches is right."""
    if not any(a.any for a in problem.accesses):
        return problem
    accesses = tuple(replace(a, loops={**a.loops, **a.any}, any={}) for a in problem.accesses)
    return replace(problem, accesses=accesses)


def unstored(layout: Layout, problem: Problem) -> Layout:
    """A layout of `stored(problem)` as a layout of the problem's own elements."""
    return replace(layout, shape=problem.tile.shape, packed=problem.tile.packed)
