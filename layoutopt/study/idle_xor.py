"""The XORs of a formula in use: bits of them that change no count, and the alignment that they ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from layoutopt.engine.conflicts import Counts
from layoutopt.expressions.grammar import Const, Node, Op, to_text
from layoutopt.expressions.simplify import Range, bounds, simplify
from layoutopt.ground.budget import Budget
from layoutopt.layout.formula import coordinate_ranges
from layoutopt.study.edits import changed_at
from layoutopt.study.findings import Finding
from layoutopt.study.in_use import InUse

_QUICK: Final = 1 << 17  # elements whose offsets are computed at once


def idle_xor(used: InUse, counts: Sequence[Counts], budget: Budget) -> Iterator[Finding]:
    """Bits of XOR operands that can go without changing any count, as many as there is time to try."""
    if used.node is None or used.by_hardware or used.unreached:  # a mode has every bit
        return
    node, dropped = used.node, 0
    for path, operand in budget.while_left(_xor_operands(node)):
        reach = int(np.bitwise_or.reduce(used.offsets_of(operand)))
        for bit in budget.while_left(range(max(reach, 0).bit_length())):
            tried = changed_at(node, path, partial(_without_bit, bit))
            if reach >> bit & 1 and used.same_counts(used.offsets_of(tried), counts):
                node, dropped = tried, dropped + 1
    if dropped:
        shorter = to_text(_shortened(node, coordinate_ranges(used.tile.shape)))
        bits, they = ("bits change", "them") if dropped > 1 else ("bit changes", "it")
        yield Finding(
            "idle_xor",
            f"{dropped} XOR {bits} nothing: every count stays without {they}: {shorter}",
            details={"bits": dropped, "offset": shorter},
        )


def alignment_note(used: InUse, budget: Budget) -> Iterator[Finding]:
    """What the base needs if the kernel XORs addresses, not offsets; of large tiles, where there is time."""
    if used.node is None or used.unreached:
        return
    flipped = 0
    for path, _ in _xor_operands(used.node):
        if used.tile.elements > _QUICK and budget.spent:
            return
        without = used.offsets_of(changed_at(used.node, path, lambda _: Const(0)))
        flipped |= int(np.bitwise_or.reduce(without * used.tile.element_bits // 8 ^ used.table))
    needed = 1 << max(flipped, 0).bit_length()
    own = used.alignment
    if needed > own:
        yield Finding(
            "alignment",
            f"the base needs {own} bytes of alignment; {needed} if the XOR is applied to addresses",
            details={"offset_form": own, "address_form": needed},
        )


def _xor_operands(node: Node, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Node]]:
    """The right operand of every `^`, with its path of child numbers."""
    if isinstance(node, Op):
        if node.symbol == "^":
            yield (*path, 1), node.args[1]
        for k, arg in enumerate(node.args):
            yield from _xor_operands(arg, (*path, k))


def _without_bit(bit: int, node: Node) -> Node:
    return Op("&", (node, Op("~", (Const(1 << bit),))))


def _shortened(node: Node, ranges: Mapping[str, Range]) -> Node:
    """Write what `_without_bit` left as one remainder or mask, and drop what is then redundant."""
    gone, inner = 0, node
    while True:
        match inner:
            case Op("&", (rest, Op("~", (Const(value),)))):
                gone |= value
                inner = rest
            case _:
                break
    if not gone:
        if not isinstance(node, Op):
            return node
        return simplify(Op(node.symbol, tuple(_shortened(a, ranges) for a in node.args)), ranges)
    kept = ((1 << max(bounds(inner, ranges)[1], 0).bit_length()) - 1) & ~gone
    if kept & (kept + 1) == 0:
        return Op("%", (inner, Const(kept + 1)))
    return Op("&", (inner, Const(kept)))
