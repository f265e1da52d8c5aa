"""PTX with the bytes of one shared array at other places: every access of it, or none.

Before each access its address is computed anew: the offset from the start of the array, moved as the layout
says. Nothing else changes, so that registers, predicates and lines of the source stay what they were.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final, NamedTuple

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.kernels.ptx.flow import Use, access_bytes, same_array, uses_of
from layoutopt.kernels.ptx.text import Module, Variable
from layoutopt.layout.remap import Remap

# Bytes of the widest access.
WIDEST: Final = 16
_PLACE: Final = re.compile(r"\[\s*([^\]+]*?)\s*(?:\+\s*(-?\s*\w+)\s*)?\]")


def patched(module: Module, name: str, remap: Remap, entry: str) -> str:
    """The text with the array's accesses moved and its size changed.

    Args:
        module: the file.
        name: of the array, as the file writes it.
        remap: what the layout does to offsets.
        entry: the kernel whose accesses move.

    Raises:
        ProblemFileError: an address of the array goes where it cannot be followed.
    """
    variable = _declaration(module, name)
    uses = uses_of(module, name, entry)
    if not uses:
        raise ProblemFileError(name, "expected an array that instructions reach, got none that does")
    unit = remap.unit(max(variable.size, remap.size))
    for use in uses:
        width = access_bytes(use.instruction)
        if unit % width:
            why = f"{use.instruction.opcode} needs {width} bytes together at every place"
            raise ProblemFileError(name, why)
    prefix = _unused(module.text)
    places = [_place(use, unit) for use in uses]
    shared = {place for place, count in Counter(place[:2] for place in places).items() if count > 1}
    edits = [
        (use.instruction.span, _moved(module, use, name, remap, prefix, place, place[:2] in shared))
        for use, place in zip(uses, places, strict=True)
    ]
    declared = module.text[slice(*variable.span)]
    if not variable.extern and remap.size > variable.size:
        # What follows stays at multiples of 16 bytes, as wide accesses of it need.
        declared = _resized(declared, name, -(-remap.size // WIDEST) * WIDEST)
    if shared and variable.align < WIDEST:
        declared = re.sub(r"\.align\s+\d+", f".align {WIDEST}", declared)
    edits.append((variable.span, declared))
    text = module.text
    for (start, end), new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def widest(module: Module, name: str, entry: str) -> int:
    """Bytes of an array's widest access in the PTX: what is wider in machine code, the assembler joined."""
    return max((access_bytes(use.instruction) for use in uses_of(module, name, entry)), default=WIDEST)


def _declaration(module: Module, name: str) -> Variable:
    found = [variable for variable in module.variables if variable.name == name]
    if len(found) != 1:
        raise ProblemFileError(name, f"expected an array of shared memory declared once, got {len(found)}")
    return found[0]


def _resized(text: str, name: str, size: int) -> str:
    new, count = re.subn(rf"({re.escape(name)}\s*)\[[^;]*", rf"\g<1>[{size}]", text)
    if count != 1 or "{" in text or ".b8" not in text:
        raise ProblemFileError(name, f"expected a declaration such as .b8 {name}[4096], got {text.strip()!r}")
    return new


def _unused(text: str) -> str:
    """A beginning of register names that the file does not use."""
    prefix = "%moved"
    while prefix in text:
        prefix += "_"
    return prefix


class _Place(NamedTuple):
    """An address: a register, an offset that is a multiple of the unit, and what lies behind in the unit."""

    base: str
    offset: int
    inside: int
    unit: int


def _place(use: Use, unit: int) -> _Place:
    """The address of an access, where the unit is as long as the alignment of its register allows."""
    resolved = next(o for o in use.instruction.operands if o.startswith("["))
    match = _PLACE.fullmatch(resolved)
    assert match is not None
    offset = int((match[2] or "0").replace(" ", ""), 0)
    unit = min(
        unit, 1 << min(use.held[match[1]].zeros if match[1] in use.held else 0, WIDEST.bit_length() - 1)
    )
    return _Place(f"{use.function.name} {match[1]}", offset // unit * unit, offset % unit, unit)


def _moved(
    module: Module, use: Use, name: str, remap: Remap, prefix: str, place: _Place, shared: bool
) -> str:
    """An access with its address computed anew, in a block of its own.

    Where several accesses share a unit of bytes that stay together, each computes where the unit begins: the
    assembler then makes one wide access of them, as it did before.
    """
    text = module.text[slice(*use.instruction.span)]
    match = _PLACE.search(text)
    assert match is not None
    base = match[1]
    if base in same_array(module, name):
        new = int(remap.apply(np.array([place.offset + place.inside], np.int64))[0])
        return text[: match.start()] + f"[{name}+{new}]" + text[match.end() :]
    register = place.base.split(" ")[1]
    wide = use.function.registers.get(register, "").endswith("64")
    offset, inside = (place.offset, place.inside) if shared else (place.offset + place.inside, 0)
    lines = _code(base, offset, name, remap, prefix, wide, place.unit if shared else 1)
    behind = f"+{inside}" if inside else ""
    access = text[: match.start()] + f"[{prefix}0{behind}]" + text[match.end() :]
    body = "\n".join(f"\t{line};" for line in lines)
    return f"{{\n\t.reg .b32 {prefix}<4>;\n{body}\n\t{access}\n\t}}"


def _code(base: str, offset: int, name: str, remap: Remap, prefix: str, wide: bool, unit: int) -> list[str]:
    """Instructions that leave the new address, a multiple of the unit, in the first register."""
    v, start, t, w = (f"{prefix}{k}" for k in range(4))
    lines = [f"cvt.u32.u64 {v}, {base}" if wide else f"mov.b32 {v}, {base}"]
    if offset:
        lines.append(f"add.s32 {v}, {v}, {offset}")
    lines += [f"mov.u32 {start}, {name}", f"sub.s32 {v}, {v}, {start}"]
    for flips, terms in remap.moves:
        source = w if len(terms) > 1 else v
        lines += [f"mov.b32 {w}, {v}"] if len(terms) > 1 else []
        for a, b in terms:
            if flips:
                lines += [f"shr.u32 {t}, {source}, {a}", f"and.b32 {t}, {t}, {b}", f"xor.b32 {v}, {v}, {t}"]
            else:
                lines += [_quotient(t, source, a), f"mad.lo.s32 {v}, {t}, {b}, {v}"]
    if unit > 1:
        # These bits are 0 already; the assembler does not see it.
        lines.append(f"and.b32 {v}, {v}, {-unit}")
    return [*lines, f"add.s32 {v}, {v}, {start}"]


def _quotient(to: str, of: str, by: int) -> str:
    if by & (by - 1):
        return f"div.u32 {to}, {of}, {by}"
    return f"shr.u32 {to}, {of}, {by.bit_length() - 1}"
