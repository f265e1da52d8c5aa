"""Linearisations of tiles whose extents are powers of two: any choice of the bits that select the bank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from layoutopt.layout.layout import Digit
from layoutopt.model.linearisations import MAX_CUTS, Linearisation, offset_operations
from layoutopt.model.space import Space


def matrices(space: Space, inside: int, bank_bits: int) -> Iterator[Linearisation]:
    """Candidates that put any coordinate bits where the bank is selected, the others above in order.

    Args:
        space: what bounds them; every extent is a power of two.
        inside: bits of the element offset below those that select the bank.
        bank_bits: bits that do.
    """
    low = max(inside, space.vector.bit_length() - 1)
    bits = [(d, b) for d in reversed(range(len(space.shape))) for b in range(space.shape[d].bit_length() - 1)]
    fixed, loose = bits[:low], bits[low:]
    count = max(0, min(inside + bank_bits - low, len(loose)))
    if any(d != len(space.shape) - 1 for d, _ in bits[: space.vector.bit_length() - 1]):
        return  # a vector lies along the last dimension
    for chosen in itertools.combinations(loose, count):
        ordered = [*fixed, *chosen, *(bit for bit in loose if bit not in chosen)]
        digits: list[Digit] = []
        for place, (d, b) in enumerate(ordered):
            if digits and digits[-1].dim == d and digits[-1].divide * digits[-1].size == 1 << b:
                digits[-1] = Digit(d, digits[-1].divide, digits[-1].size * 2, digits[-1].stride)
            else:
                digits.append(Digit(d, 1 << b, 2, 1 << place))
        digits += [Digit(d, 1, 1, 1 << len(bits)) for d, extent in enumerate(space.shape) if extent == 1]
        digits.reverse()
        span = 1 << len(bits)
        yield Linearisation(tuple(digits), span, offset_operations(digits, space.shape), "matrix", True)


def least_matrix_operations(space: Space) -> int:
    """No candidate of `matrices` that three or more cuts make costs fewer operations."""
    pieces = sum(1 for extent in space.shape if extent > 1) + MAX_CUTS + 1
    # An addition and a stride between pieces; a division and a remainder where one is cut.
    return 2 * (pieces - 1) + 2 * (MAX_CUTS + 1)
