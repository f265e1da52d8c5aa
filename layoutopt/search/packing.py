"""Blocks of bytes in a row: where each begins, so that all together end soonest.

Some blocks live all the time; others share one region, one set of them at a time. With alignments
16 and 128, blocks of 100 and 128 bytes take 256 bytes in this order and 228 in the other.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

_OVERLAY: Final = -1


class Plan(Struct, frozen=True):
    """Which blocks live when; blocks are numbered.

    Attributes:
        always: blocks that live all the time.
        times: for each time at which the shared region is used, the blocks in it.
    """

    always: tuple[int, ...]
    times: tuple[tuple[int, ...], ...] = ()


def least(plan: Plan, sizes: Sequence[int]) -> int:
    """Bytes that blocks of these sizes take if no alignment costs any: no packing takes fewer."""
    return sum(sizes[i] for i in plan.always) + max(
        (sum(sizes[i] for i in time) for time in plan.times), default=0
    )


def pack(plan: Plan, sizes: Sequence[int], alignments: Sequence[int]) -> tuple[int, dict[int, int]]:
    """The least end over every order of the blocks (the shared region is in one piece), and their bases.

    Args:
        alignments: what the base of each block must be a multiple of.
    """
    items = plan.always + ((_OVERLAY,) if plan.times else ())
    return _row(items, 0, plan, sizes, alignments)


def _row(
    items: tuple[int, ...], start: int, plan: Plan, sizes: Sequence[int], alignments: Sequence[int]
) -> tuple[int, dict[int, int]]:
    """Subsets by rising number: the soonest end of each, over which item is last.

    An item that begins sooner ends no later, so the soonest end of the others is all that matters.
    """

    def place(item: int, at: int) -> tuple[int, dict[int, int]]:
        if item == _OVERLAY:
            rows = [_row(time, at, plan, sizes, alignments) for time in plan.times]
            return max(end for end, _ in rows), {i: base for _, bases in rows for i, base in bases.items()}
        base = rounded_up(at, alignments[item])
        return base + sizes[item], {item: base}

    best: list[tuple[int, dict[int, int]]] = [(start, {})]
    for chosen in range(1, 1 << len(items)):
        found: tuple[int, dict[int, int]] | None = None
        for k in reversed(range(len(items))):
            if chosen >> k & 1:
                before, bases = best[chosen ^ 1 << k]
                end, mine = place(items[k], before)
                if found is None or end < found[0]:
                    found = end, {**bases, **mine}
        assert found is not None
        best.append(found)
    return best[-1]


def rounded_up(value: int, multiple: int) -> int:
    """The least multiple that is not below `value`."""
    return -(-value // multiple) * multiple
