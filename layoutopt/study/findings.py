"""Errors of a layout in use, and remarks on it: a function for each kind of finding."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
from msgspec import Struct

from layoutopt.engine.witness import Instruction, place_text, worst_instruction
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Const
from layoutopt.ground.budget import current
from layoutopt.study.edits import changed_at, operands
from layoutopt.study.in_use import InUse

_QUICK: Final = 1 << 17  # elements whose offsets are computed at once
_MOST_SHOWN: Final = 8  # lanes of a conflict


class Finding(Struct, frozen=True):
    """Something worth knowing about the layout."""

    # Conflict, overlap, misaligned, torn, out_of_bounds, unreached, unused_bytes, too_large, alignment, fix
    # or keep
    kind: str
    message: str  # one or more lines for people
    access: str | None = None  # the access concerned, if one is
    details: dict[str, Any] = {}  # the same for programs


def errors(used: InUse) -> Iterator[Finding]:
    """Why the layout cannot hold the tile: shared bytes, torn vectors, alignment, offsets out of bounds."""
    yield from _element_errors(used)
    for access in range(len(used.case.accesses)):
        yield from _vector_errors(used, access)
    allowed, needed = used.case.problem.layout.alignment_bytes, used.alignment
    if allowed is not None and allowed < needed:
        text = f"the base needs {needed} bytes of alignment, layout.alignment_bytes is {allowed}"
        yield Finding("alignment", text, None, {"needed": needed, "given": allowed})
    yield from _bound_errors(used)
    if used.refused:
        yield Finding("unreached", used.refused)


def _element_errors(used: InUse) -> Iterator[Finding]:
    """Elements that overlap, are not aligned as their type is, or tear the byte that they share."""
    tile, case = used.case.lowered.tile, used.case
    by_offset = np.argsort(used.table, kind="stable")
    overlapping = np.flatnonzero(np.diff(used.table[by_offset]) < tile.element_bytes)
    if len(overlapping):
        a, b = (int(by_offset[k]) for k in (overlapping[0], overlapping[0] + 1))
        byte, both = int(used.table[b]), [case.coordinates(a), case.coordinates(b)]
        count = len(overlapping) * case.problem.tile.packed
        text = f"{count} elements overlap: {used.at(a)} and {used.at(b)} both cover byte {byte}"
        yield Finding("overlap", text, None, {"elements": count, "first": both, "byte_offset": byte})
    alignment = case.problem.tile.element_alignment
    misaligned = np.flatnonzero(used.table % alignment)
    if len(misaligned):
        first = int(misaligned[0])
        where = f"{used.at(first)} starts at byte {int(used.table[first])}"
        text = f"{len(misaligned)} elements do not start at a multiple of {alignment}: {where}"
        details = {"elements": len(misaligned), "first": case.coordinates(first), "alignment": alignment}
        yield Finding("misaligned", text, None, details)
    if used.node is not None:
        try:
            case.table(used.node)
        except LayoutError as error:
            yield Finding("torn", str(error))


def _vector_errors(used: InUse, number: int) -> Iterator[Finding]:
    """Vectors of an access that are misaligned, or torn (their elements do not follow one another)."""
    access, element_bytes = used.case.lanes.accesses[number], used.case.lowered.tile.element_bytes
    width, offsets = access.operation.width_bytes, used.table[access.starts]
    torn = (np.diff(used.table[access.vectors]) != element_bytes).any(axis=1)
    for kind, bad in (("misaligned", offsets % width != 0), ("torn", torn)):
        if not bad.any():
            continue
        bad_lanes = access.active & np.isin(access.element, access.starts[bad])
        count, (row, lane) = int(bad_lanes.sum()), (int(v) for v in np.argwhere(bad_lanes)[0])
        element = int(access.element[row, lane])
        byte = int(used.table[element])
        what = f"starts at byte {byte}" if kind == "misaligned" else "is not contiguous"
        noun = "vectors" if access.width_elements > 1 else "accesses"
        where = f"{Instruction(used.case, number, row).text}, lane {lane}, {used.at(element)}"
        details = {"vectors": count, "instruction": row, "lane": lane, "byte_offset": byte}
        text = f"{count} {noun} of {width} bytes are {kind}: {where} {what}"
        yield Finding(kind, text, access.name, details)


def _bound_errors(used: InUse) -> Iterator[Finding]:
    """Elements before the base, past the limit or past the declared array."""
    low, high = int(used.table.argmin()), int(used.table.argmax())
    if used.table[low] < 0:
        yield Finding("out_of_bounds", f"{used.at(low)} lies at byte {int(used.table[low])}")
    limits = ("max_bytes", used.case.problem.layout.max_bytes), ("the declared array", used.array)
    for what, limit in limits:
        if limit is not None and used.size > limit:
            text = f"{used.at(high)} ends at byte {used.size}; {what} holds {limit}"
            yield Finding("out_of_bounds", text, None, {"bytes": used.size, "limit": limit})


# What is worth knowing ---------------------------------------------------------------------------


def remarks(used: InUse) -> Iterator[Finding]:
    """Conflicts, waste, and what may be done otherwise, as far as the time goes."""
    for k, access in enumerate(used.case.accesses):
        if access.any_is is None:
            yield from _worst_conflict(used, k)
    yield from _space(used)
    yield from _address_form(used)


def _worst_conflict(used: InUse, access: int) -> Iterator[Finding]:
    """The instruction with the most excess, and in it the worst phase, lane by lane."""
    excess, row = worst_instruction(used.counts[access])
    if excess <= 0:
        return
    instruction = Instruction(used.case, access, row)
    address, phase = instruction.addresses(used.table), instruction.worst_phase(used.table)
    meeting, lines = [], []
    for touch in phase.touches:
        lane, byte, at = touch.lane, address[touch.lane], instruction.coordinates(touch.lane)
        meeting.append({"lane": lane, "coordinates": at, "byte_offset": byte, "word": touch.word})
        lines.append(f"    lane {lane:>2}  {place_text(at):<12} byte {byte:>6}  word {touch.word:>5}")
    if len(lines) > _MOST_SHOWN:
        lines = [*lines[: _MOST_SHOWN - 1], f"    and {len(lines) - _MOST_SHOWN + 1} more lanes"]
    words = len({touch.word for touch in phase.touches})
    text = (
        f"{instruction.text}: {len(phase.lanes)} lanes are served together; {words} words "
        f"meet in bank {phase.bank}, so they take {phase.wavefronts} wavefronts"
    )
    figures = {"lanes": phase.lanes, "wavefronts": phase.wavefronts, "bank": phase.bank}
    details = {"instruction": row, **figures, "meeting": meeting}
    yield Finding("conflict", "\n".join([text, *lines]), instruction.lanes.name, details)


def _space(used: InUse) -> Iterator[Finding]:
    """Bytes that hold no element; and more bytes than a block of this GPU has."""
    problem, size = used.case.problem, used.size
    unused = size - problem.tile.bytes
    if unused > 0:
        text = f"{unused:,} of {size:,} bytes ({100 * unused / size:.0f} %) hold no element"
        yield Finding("unused_bytes", text, None, {"bytes": unused})
    limits = used.case.device.limits_of(problem.target)
    room = None if limits is None else limits.shared_bytes_per_block - problem.block.other_shared_bytes
    if room is not None and size > room:
        text = f"{size:,} bytes; a block of {problem.target} has {max(0, room):,} for it"
        yield Finding("too_large", text, None, {"bytes": size, "limit": room})


def _address_form(used: InUse) -> Iterator[Finding]:
    """The larger alignment of the base where a kernel XORs addresses (base + offset), not offsets.

    It is a multiple of every bit of the offset that any XOR of the formula changes.
    """
    if used.node is None or used.refused:
        return
    flipped_bits = 0
    # Without the second operand of an XOR, the bits that it changes are as they were.
    for path in (path for path, symbol, _ in operands(used.node) if symbol == "^" and path[-1] == 1):
        if used.case.problem.tile.elements > _QUICK and current().spent:
            return
        with suppress(LayoutError):
            without = used.case.table(changed_at(used.node, path, Const(0)))
            flipped_bits |= int(np.bitwise_or.reduce(without ^ used.table))
    of_addresses, of_offsets = 1 << max(flipped_bits, 0).bit_length(), used.alignment
    if of_addresses > of_offsets:
        needs = f"the base needs {of_offsets} bytes of alignment"
        text = f"{needs}; {of_addresses} if the XOR is applied to addresses"
        yield Finding("alignment", text, details={"offset_form": of_offsets, "address_form": of_addresses})
