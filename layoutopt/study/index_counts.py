"""Operations of the address of every access under a layout, from tid, lane, warp and loop variables."""

from __future__ import annotations

from typing import Final

from layoutopt.accesses.trace import expression_ranges
from layoutopt.expressions.count import operations
from layoutopt.expressions.grammar import Node, parse, substituted
from layoutopt.expressions.simplify import simplify
from layoutopt.hardware.devices import Device
from layoutopt.problems.types import Access, Problem

_MOST_SIMPLIFIED: Final = 1 << 12  # operations of all accesses; where there are more, long addresses stay


class Indices:
    """What each access computes, to count the operations of its address."""

    def __init__(self, problem: Problem, gpu: Device) -> None:
        self._accesses = []
        for access in problem.accesses:
            ranges = expression_ranges(access, problem, gpu.lanes)
            index = _index(access, frozenset(ranges))
            self._accesses.append((index, ranges, sum(map(operations, index.values()))))

    def operations(self, k: int, formula: Node) -> int:
        """Operations from tid, lane, warp and loop variables to the element offset of access `k`."""
        index, ranges, inside = self._accesses[k]
        plain = operations(formula) + inside
        if plain * len(self._accesses) > _MOST_SIMPLIFIED:
            return plain
        return operations(simplify(substituted(formula, index), ranges))


def _index(access: Access, names: frozenset[str]) -> dict[str, Node]:
    return {f"x{d}": parse(str(text), names) for d, text in enumerate(access.index)}
