"""Bits of numbers: a basis under XOR, and values of a variable as what its bits contribute."""

from collections.abc import Mapping, Sequence

import numpy as np

from layoutopt.expressions.grammar import Const, Node, Op, joined
from layoutopt.expressions.simplify import weighted_sum
from layoutopt.ground.arrays import IntArray


def xor_basis(numbers: Sequence[int]) -> list[int]:
    """Numbers whose XORs are all XORs of `numbers`: as few as can be, their highest bits distinct."""
    basis: list[int] = []
    bits = max(numbers, default=0).bit_length()
    for number in numbers:
        for known in basis:
            number = min(number, number ^ known)
        if number:
            basis.append(number)
            if len(basis) == bits:
                break
    return basis


def combinations(vectors: Sequence[int] | Sequence[Sequence[int]], *rank: int) -> IntArray:
    """The XOR of the vectors of each number's bits: int64, shape (2**len(vectors), *rank)."""
    total = np.zeros((1, *rank), np.int64)
    for vector in vectors:
        total = np.concatenate([total, total ^ np.array(vector, np.int64)])
    return total


def held_coordinates(bases: Mapping[str, Sequence[Sequence[int]]], rank: int) -> IntArray:
    """Coordinates by the bases of register, lane and warp: int64, shape (threads, registers, rank)."""
    register, lane, warp = (combinations(bases[part], rank) for part in ("register", "lane", "warp"))
    return (warp[:, None] ^ lane).reshape(-1, 1, rank) ^ register


def moved_bits(variable: Node, values: IntArray) -> Node | None:
    """`values[variable]`, where it is linear over F2, as a XOR of masked and shifted copies.

    Bits that move the same distance share one shift and one mask; a mask that covers every bit is
    left out. The value at 0 must be 0.
    """
    count = len(values)
    bits = max(count - 1, 0).bit_length()
    columns = [int(values[1 << b]) for b in range(bits)]
    if count == 0 or values[0] != 0 or (combinations(columns)[:count] != values).any():
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
    nodes = [node for _, node in sorted(terms, key=lambda term: -term[0])]
    for distance, mask in sorted(distances.items(), reverse=True):
        if distance < 0:
            field = Op("//", (variable, Const(1 << -distance)))
            whole = mask >> -distance == everything >> -distance
            nodes.append(field if whole else Op("&", (field, Const(mask >> -distance))))
    return joined("^", nodes)


def bit_sums(variable: Node, values: IntArray) -> list[Node]:
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
