"""Blocks of bytes in a row: where each begins, so that all together end soonest.

Some blocks live all the time; others share one region, one set of them at a time. With alignments
16 and 128, blocks of 100 and 128 bytes take 256 bytes in this order and 228 in the other.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct

_SHARED: Final = -1  # stands for the shared region in a row of blocks


class Plan(Struct, frozen=True):
    """Which blocks live when; blocks are numbered."""

    always: tuple[int, ...]  # blocks that live all the time
    # For each time at which the shared region is used, the blocks in it
    times: tuple[tuple[int, ...], ...] = ()


def least_bytes(plan: Plan, sizes: Sequence[int]) -> int:
    """Bytes that blocks of these sizes take if no alignment costs any: no packing takes fewer."""
    return sum(sizes[i] for i in plan.always) + max(
        (sum(sizes[i] for i in time) for time in plan.times), default=0
    )


class Packing(NamedTuple):
    """The byte behind the last block, and the base of each block by its number."""

    end: int
    bases: dict[int, int]


def pack(plan: Plan, sizes: Sequence[int], alignments: Sequence[int]) -> Packing:
    """The packing that ends soonest over every order of the blocks; the shared region is in one piece.

    Args:
        sizes: bytes of each block.
        alignments: what the base of each block must be a multiple of.
    """

    def row(blocks: tuple[int, ...], start: int) -> Packing:
        """The packing of these blocks from byte `start` that ends soonest.

        A block that begins sooner ends no later. So the best packing of a set of blocks has one of them last,
        behind the best packing of the others: `best[set]`, sets as bits of a number.
        """
        best = [Packing(start, {})]
        for chosen in range(1, 1 << len(blocks)):
            packings = []
            for k in reversed(range(len(blocks))):
                if chosen >> k & 1:
                    others = best[chosen ^ 1 << k]
                    last = placed(blocks[k], others.end)
                    packings.append(Packing(last.end, {**others.bases, **last.bases}))
            best.append(min(packings, key=lambda packing: packing.end))
        return best[-1]

    def placed(block: int, start: int) -> Packing:
        """One block, or the shared region, which ends where the longest of its rows does."""
        if block == _SHARED:
            rows = [row(time, start) for time in plan.times]
            return Packing(max(r.end for r in rows), {i: base for r in rows for i, base in r.bases.items()})
        base = rounded_up(start, alignments[block])
        return Packing(base + sizes[block], {block: base})

    return row(plan.always + ((_SHARED,) if plan.times else ()), 0)


def rounded_up(value: int, multiple: int) -> int:
    """The least multiple that is not below `value`."""
    return -(-value // multiple) * multiple
