"""PTX with the bytes of one shared array at other places: every access of it, or none.

Before each access its address is computed anew: the offset from the start of the array, moved as the layout
says. Nothing else changes, so that registers, predicates and lines of the source stay what they were.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.kernels.ptx_flow import Use, uses_of
from layoutopt.kernels.ptx_text import Module, Variable
from layoutopt.kernels.remap import Remap

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
    prefix = _unused(module.text)
    edits = [(use.instruction.span, _moved(module, use, name, remap, prefix)) for use in uses]
    if not variable.extern and remap.size > variable.size:
        edits.append((variable.span, _resized(module.text[slice(*variable.span)], name, remap.size)))
    text = module.text
    for (start, end), new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _declaration(module: Module, name: str) -> Variable:
    variables = [*module.variables, *(v for f in module.functions.values() for v in f.variables)]
    found = [v for v in variables if v.space == "shared" and v.name == name]
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


def _moved(module: Module, use: Use, name: str, remap: Remap, prefix: str) -> str:
    """An access with its address computed anew, in a block of its own."""
    text = module.text[slice(*use.instruction.span)]
    place = _PLACE.search(text)
    assert place is not None
    base, offset = place[1], int((place[2] or "0").replace(" ", ""), 0)
    if base == name:
        new = int(remap.apply(np.array([offset], np.int64))[0])
        return text[: place.start()] + f"[{name}+{new}]" + text[place.end() :]
    operand = next(o for o in use.instruction.operands if o.startswith("["))
    resolved = _PLACE.fullmatch(operand)
    wide = resolved is not None and use.function.registers.get(resolved[1], "").endswith("64")
    lines = _code(base, offset, name, remap, prefix, wide)
    access = text[: place.start()] + f"[{prefix}0]" + text[place.end() :]
    body = "\n".join(f"\t{line};" for line in lines)
    return f"{{\n\t.reg .b32 {prefix}<4>;\n{body}\n\t{access}\n\t}}"


def _code(base: str, offset: int, name: str, remap: Remap, prefix: str, wide: bool) -> list[str]:
    """Instructions that leave the new address in the first register."""
    v, start, t, w = (f"{prefix}{k}" for k in range(4))
    lines = [f"cvt.u32.u64 {v}, {base}" if wide else f"mov.b32 {v}, {base}"]
    if offset:
        lines.append(f"add.s32 {v}, {v}, {offset}")
    lines += [f"mov.u32 {start}, {name}", f"sub.s32 {v}, {v}, {start}"]
    if remap.pads:
        lines.append(f"mov.b32 {w}, {v}")
        for every, extra in remap.pads:
            lines += [_quotient(t, w, every), f"mad.lo.s32 {v}, {t}, {extra}, {v}"]
    if remap.interval is not None:
        every, extra = remap.interval
        lines += [_quotient(t, v, every), f"mad.lo.s32 {v}, {t}, {extra}, {v}"]
    if remap.flips:
        if len(remap.flips) > 1:
            lines.append(f"mov.b32 {w}, {v}")
        source = w if len(remap.flips) > 1 else v
        for shift, mask in remap.flips:
            lines += [
                f"shr.u32 {t}, {source}, {shift}",
                f"and.b32 {t}, {t}, {mask}",
                f"xor.b32 {v}, {v}, {t}",
            ]
    return [*lines, f"add.s32 {v}, {v}, {start}"]


def _quotient(to: str, of: str, by: int) -> str:
    if by & (by - 1):
        return f"div.u32 {to}, {of}, {by}"
    return f"shr.u32 {to}, {of}, {by.bit_length() - 1}"
