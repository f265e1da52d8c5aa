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
    """By number, the XOR of the vectors of its set bits: int64, shape (2**len(vectors), *rank).

    Vectors 3 and 8 give 0, 3, 8, 11. `rank` is the length of vectors that are sequences.
    """
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
    distances: dict[int, int] = {}  # distance to the left -> mask of source bits
    for b, column in enumerate(columns):
        for target in range(column.bit_length()):
            if column >> target & 1:
                distances[target - b] = distances.get(target - b, 0) | 1 << b
    # One product moves the same bits several distances, where the copies do not overlap.
    factors: dict[int, list[int]] = {}  # mask of source bits -> factors
    for distance, mask in sorted(distances.items()):
        if distance >= 0:
            of_mask = factors.setdefault(mask, [0])
            if mask * of_mask[-1] & mask << distance:
                of_mask.append(0)
            of_mask[-1] += 1 << distance
    everything = (1 << bits) - 1
    terms = []
    for mask, of_mask in factors.items():
        field = variable if mask == everything else Op("&", (variable, Const(mask)))
        terms += [(f, field if f == 1 else Op("*", (field, Const(f)))) for f in of_mask]
    nodes = [node for _, node in sorted(terms, key=lambda term: -term[0])]
    for distance, mask in sorted(distances.items(), reverse=True):
        if distance < 0:
            field = Op("//", (variable, Const(1 << -distance)))
            whole = mask >> -distance == everything >> -distance
            nodes.append(field if whole else Op("&", (field, Const(mask >> -distance))))
    return joined("^", nodes)


def bit_sums(variable: Node, values: IntArray) -> list[Node]:
    """Candidates for `values[variable]` as a sum over the variable's bits; right if it is one, so check.

    Bits that count the same multiple of their own weight share a mask. Where every bit counts, one of
    the multiples needs no mask if the others make up for it; shifts make up for it too:
    `a*(v % 4) + b*(v // 4)` is `a*v + (b - 4*a)*(v // 4)`.
    """
    start, bits = int(values[0]), (len(values) - 1).bit_length()
    columns = [int(values[1 << b]) - start for b in range(bits)]
    constant: list[tuple[int, Node]] = [(1, Const(start))] if start else []
    masks: dict[int, int] = {}  # multiple -> mask of the bits that count so many times their weight
    for b, column in enumerate(columns):
        masks[column >> b] = masks.get(column >> b, 0) | 1 << b
    whole = (1 << bits) - 1
    masked = [
        (k, variable if mask == whole else Op("&", (variable, Const(mask)))) for k, mask in masks.items()
    ]
    sums = [[(unmasked, variable), *((k - unmasked, node) for k, node in masked)] for unmasked in (0, *masks)]
    factors = [column - 2 * before for before, column in zip((0, *columns), columns, strict=False)]
    sums.append([(f, Op("//", (variable, Const(1 << b))) if b else variable) for b, f in enumerate(factors)])
    return [weighted_sum((*terms, *constant)) for terms in sums]
