"""What is wrong with a layout in use, and what is worth knowing of it: one function for each kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec import Struct

from layoutopt.accesses.trace import LaneTrace
from layoutopt.engine.conflicts import Counts, count_wavefronts
from layoutopt.engine.witness import witness, worst_instruction
from layoutopt.expressions.grammar import Const, Node, Op, to_text
from layoutopt.expressions.simplify import Range, bounds, simplify
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.operations import Operation
from layoutopt.layout.formula import coordinate_ranges
from layoutopt.problems.types import Access
from layoutopt.study.edits import changed_at
from layoutopt.study.in_use import InUse

_FUSED_WIDTHS: Final = (16, 8)
_QUICK: Final = 1 << 17  # elements whose offsets are computed at once


class Finding(Struct, frozen=True):
    """Something worth knowing about the layout.

    Attributes:
        kind: conflict, overlap, misaligned, torn, out_of_bounds, unreached, unused_bytes, too_large,
            idle_xor, alignment, fusion, edit, fix or keep.
        message: one or more lines for people.
        access: the access concerned, if one is.
        details: the same for programs.
    """

    kind: str
    message: str
    access: str | None = None
    details: dict[str, Any] = {}


def overlaps(used: InUse) -> Iterator[Finding]:
    """Elements that share bits."""
    order = np.argsort(used.bits, kind="stable")
    close = np.flatnonzero(np.diff(used.bits[order]) < used.tile.element_bits)
    if len(close):
        a, b = (int(order[k]) for k in (close[0], close[0] + 1))
        at, first = int(used.table[b]), [used.coordinates(a), used.coordinates(b)]
        text = f"{len(close)} elements overlap: {used.at(a)} and {used.at(b)} both cover byte {at}"
        yield Finding("overlap", text, None, {"elements": len(close), "first": first, "byte_offset": at})


def unaligned(used: InUse) -> Iterator[Finding]:
    """Elements that are not aligned as their type is."""
    alignment = used.tile.element_alignment
    wrong = np.flatnonzero(used.table % alignment)
    if len(wrong):
        first = int(wrong[0])
        where = f"{used.at(first)} starts at byte {int(used.table[first])}"
        text = f"{len(wrong)} elements do not start at a multiple of {alignment}: {where}"
        details = {"elements": len(wrong), "first": used.coordinates(first), "alignment": alignment}
        yield Finding("misaligned", text, None, details)


def vectors(used: InUse) -> Iterator[Finding]:
    """Vectors that are misaligned or torn."""
    for access in used.lanes.accesses:
        width = access.operation.width_bytes
        if _is_whole(used, access):
            continue
        start = used.bits[access.element]
        torn = np.zeros(start.shape, bool)
        for k in range(1, access.width_elements):
            next_one = used.bits[access.element + k * access.active]
            torn |= access.active & (next_one != start + k * used.tile.element_bits)
        for kind, bad in (("misaligned", access.active & (start % (8 * width) != 0)), ("torn", torn)):
            if not bad.any():
                continue
            count, (row, lane) = int(bad.sum()), (int(v) for v in np.argwhere(bad)[0])
            byte, element = int(start[row, lane]) // 8, int(access.element[row, lane])
            what = f"starts at byte {byte}" if kind == "misaligned" else "is not contiguous"
            noun = "vectors" if access.width_elements > 1 else "accesses"
            text = f"{count} {noun} of {width} bytes are {kind}: {used.place(access, row)}, lane {lane}"
            details = {"vectors": count, "instruction": row, "lane": lane, "byte_offset": byte}
            yield Finding(kind, f"{text}, {used.at(element)} {what}", access.name, details)


def _is_whole(used: InUse, access: LaneTrace) -> bool:
    """Whether every vector is aligned and in one piece; each is looked at once."""
    first = access.starts
    start = used.bits[first]
    if (start % (8 * access.operation.width_bytes)).any():
        return False
    rest = range(1, access.width_elements)
    return not any((used.bits[first + k] != start + k * used.tile.element_bits).any() for k in rest)


def base(used: InUse) -> Iterator[Finding]:
    """A base that is not aligned as the accesses need it."""
    given, needed = used.problem.layout.alignment_bytes, used.alignment
    if given is not None and given < needed:
        text = f"the base needs {needed} bytes of alignment, layout.alignment_bytes is {given}"
        yield Finding("alignment", text, None, {"needed": needed, "given": given})


def outside(used: InUse) -> Iterator[Finding]:
    """Elements before the base, past the limit or past the declared array."""
    low, high = int(used.table.argmin()), int(used.table.argmax())
    if used.table[low] < 0:
        yield Finding("out_of_bounds", f"{used.at(low)} lies at byte {int(used.table[low])}")
    for what, limit in (("max_bytes", used.problem.layout.max_bytes), ("the declared array", used.array)):
        if limit is not None and used.size > limit:
            text = f"{used.at(high)} ends at byte {used.size}; {what} holds {limit}"
            yield Finding("out_of_bounds", text, None, {"bytes": used.size, "limit": limit})


def unreached(used: InUse) -> Iterator[Finding]:
    """What the hardware by itself cannot reach in this layout."""
    if used.unreached:
        yield Finding("unreached", used.unreached)


# What is worth knowing ---------------------------------------------------------------------------


def worst(used: InUse, access: LaneTrace, counts: Counts) -> Iterator[Finding]:
    """The instruction with the most excess, and in it the worst phase, lane by lane."""
    over, row = worst_instruction(counts)
    if over <= 0:
        return
    address, element = used.table[access.element[row]], access.element[row]
    phases = witness(address.tolist(), access.active[row].tolist(), access.operation, used.gpu)
    worst = max(phases, key=lambda p: p.wavefronts)
    meeting, shown = [], []
    for touch in worst.touches:
        lane, byte = touch.lane, int(address[touch.lane])
        at = {"lane": lane, "coordinates": used.coordinates(int(element[lane]))}
        meeting.append({**at, "byte_offset": byte, "word": touch.word})
        where = used.at(int(element[lane]))
        shown.append(f"    lane {lane:>2}  {where:<12} byte {byte:>6}  word {touch.word:>5}")
    if len(shown) > 8:
        shown = [*shown[:7], f"    and {len(shown) - 7} more lanes"]
    words = len({touch.word for touch in worst.touches})
    text = (
        f"{used.place(access, row)}: {len(worst.lanes)} lanes are served together; {words} words "
        f"meet in bank {worst.bank}, so they take {worst.wavefronts} wavefronts"
    )
    figures = {"lanes": worst.lanes, "wavefronts": worst.wavefronts, "bank": worst.bank}
    details = {"instruction": row, **figures, "meeting": meeting}
    yield Finding("conflict", "\n".join([text, *shown]), access.name, details)


def unused(used: InUse) -> Iterator[Finding]:
    """Bytes that hold nothing."""
    unused = used.size - used.tile.bytes
    if unused > 0:
        share = f"{unused:,} of {used.size:,} bytes ({100 * unused / used.size:.0f} %)"
        yield Finding("unused_bytes", f"{share} hold no element", None, {"bytes": unused})


def too_large(used: InUse) -> Iterator[Finding]:
    """More bytes than a block of the GPU has; the same layout may serve another, so it is not refused."""
    limits = used.gpu.limits_of(used.problem.target)
    room = None if limits is None else limits.shared_bytes_per_block - used.problem.block.other_shared_bytes
    if room is not None and used.size > room:
        text = f"{used.size:,} bytes; a block of {used.problem.target} has {max(0, room):,} for it"
        yield Finding("too_large", text, None, {"bytes": used.size, "limit": room})


def fusion(used: InUse, access: LaneTrace, source: Access, counts: Counts) -> Iterator[Finding]:
    """What the counts become if the compiler fuses neighbouring iterations into a wider access."""
    operation = access.operation
    if not (operation.does.narrows and operation.does.by_pointer and access.active.any()):
        return
    shape = (*source.loops.values(), -1, used.gpu.lanes)
    address, active = used.table[access.element].reshape(shape), access.active.reshape(shape)
    for (axis, name), width in itertools.product(enumerate(source.loops), _FUSED_WIDTHS):
        together, wide = width // operation.width_bytes, Operation(operation.kind, width)
        known = (wide.kind, wide.width_bytes) in used.gpu.rules
        if together < 2 or source.loops[name] % together or not known:
            continue
        rows = _fusible(np.moveaxis(address, axis, 0), np.moveaxis(active, axis, 0), together, width)
        if rows is None:
            continue
        new = count_wavefronts(*rows, wide, used.gpu)
        wavefronts = int(counts.wavefronts.sum()), int(new.wavefronts.sum())
        conflicts = int(counts.bank_conflicts.sum()), int(new.bank_conflicts.sum())
        text = (
            f"{access.name}: if the compiler fuses {together} iterations of {name} into one "
            f"{width}-byte {operation.kind}: {wavefronts[1]} wavefronts and {conflicts[1]} "
            f"bank_conflicts, not {wavefronts[0]} and {conflicts[0]}"
        )
        details = {"loop": name, "bytes": width, "wavefronts": wavefronts, "bank_conflicts": conflicts}
        yield Finding("fusion", text, access.name, details)
        return


def _fusible(
    address: IntArray, active: BoolArray, together: int, width: int
) -> tuple[IntArray, BoolArray] | None:
    """Addresses and activity of the fused access; None if neighbours along axis 0 cannot be fused."""
    groups = address.reshape(-1, together, *address.shape[1:])
    on = active.reshape(groups.shape)
    first, alike = groups[:, :1], on[:, :1]
    steps = width // together * np.arange(together).reshape(1, -1, *[1] * (address.ndim - 1))
    whole = ((groups == first + steps) | ~on).all() and (on == alike).all()
    if not whole or (first % width != 0)[alike].any():
        return None
    rows = (-1, address.shape[-1])
    return first.reshape(rows), alike.reshape(rows)


# The XORs of a formula ---------------------------------------------------------------------------


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
