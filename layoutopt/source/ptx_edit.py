"""PTX with the bytes of one array of shared memory at other places: every access of it, or none.

Before each access its address is computed anew: the offset from where the array begins, moved as the layout
says; of an access that may reach other memory, where it lies in the array. Nothing else changes, so that
registers, predicates and lines of the source stay what they were.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.ptx.text import Module, Variable
from layoutopt.source.moves import Move
from layoutopt.source.ptx_flow import Use, access_bytes, same_array

# Bytes of the widest access.
WIDEST: Final = 16
_PLACE: Final = re.compile(r"\[\s*([^\]+]*?)\s*(?:\+\s*(-?\s*\w+)\s*)?\]")

_HEAD: Final = re.compile(r"^\s*\.address_size\s+\d+", re.M)


class Region(Struct, frozen=True):
    """Where bytes of a symbol's memory go, of which an array is a part; what lies behind it makes room.

    Attributes:
        move: the layout of the array.
        start, length: of the array, in bytes from the start of the symbol's memory.
        end: of that memory.
    """

    move: Move
    start: int
    length: int
    end: int

    @property
    def text(self) -> str:
        """For people."""
        return self.move.text

    @property
    def growth(self) -> int:
        """Bytes by which what lies behind the array moves: those of the widest access, or several of them."""
        return -(-(self.move.size(self.length) - self.length) // WIDEST) * WIDEST

    @property
    def is_part(self) -> bool:
        """Whether there is other memory of the symbol."""
        return bool(self.start) or self.start + self.length < self.end

    def together(self) -> int:
        """Most bytes, up to a widest access, that stay together at every multiple of themselves."""
        vectors = self.move.unit if self.move.terms else 0
        bits = self.start | self.move.row | self.move.extra | vectors | WIDEST
        return bits & -bits

    def apply(self, offsets: IntArray) -> IntArray:
        """Where bytes at these offsets from the start of the memory go."""
        within = offsets - self.start
        behind = within >= self.length
        moved = self.start + self.move.apply(np.where(behind, 0, np.maximum(within, 0)))
        return np.where(behind, offsets + self.growth, np.where(within < 0, offsets, moved))

    def size(self, before: int) -> int:
        """Bytes of the memory then, of so many."""
        if self.start + self.length < self.end:
            return before + self.growth
        return max(before, self.start + self.move.size(self.length))


def patched(module: Module, name: str, region: Region, uses: Sequence[Use]) -> str:
    """The text with the array's accesses moved and its size changed.

    Args:
        module: the file.
        name: of the array, or of the dynamic memory that it is in, as the file writes it.
        region: where its bytes go.
        uses: the instructions that reach it (`ptx_flow.uses_of`).

    Raises:
        ProblemFileError: an access needs bytes together that do not stay so, or there is none.
    """
    variable = _declaration(module, name)
    if not uses:
        raise ProblemFileError(name, "expected an array that instructions reach, got none that does")
    unit = region.together()
    for use in uses:
        width = access_bytes(use.instruction)
        if unit % width and use.sure:
            why = f"{use.instruction.opcode} needs {width} bytes together at every place"
            raise ProblemFileError(name, why)
    prefix = _unused(module.text)
    places = [_place(use, unit) for use in uses]
    shared = {place for place, count in Counter(place[:2] for place in places).items() if count > 1}
    edits = [
        (use.instruction.span, _moved(module, use, name, region, prefix, place, place[:2] in shared))
        for use, place in zip(uses, places, strict=True)
    ]
    declared = module.text[slice(*variable.span)]
    size = region.size(variable.size)
    if not variable.extern and size > variable.size:
        # What follows stays at multiples of 16 bytes, as wide accesses of it need.
        declared = _resized(declared, name, -(-size // WIDEST) * WIDEST)
    if shared and variable.align < WIDEST:
        declared = re.sub(r"\.align\s+\d+", f".align {WIDEST}", declared)
    edits.append((variable.span, declared))
    inside = module.inside(variable)
    if inside is not None and {use.function.name for use in uses} != {inside}:
        # Where another function reaches it, too, it is declared for all of them.
        head = _HEAD.search(module.text)
        if head is None:
            raise ProblemFileError(name, "expected a line .address_size in the file")
        edits[-1] = variable.span, ""
        edits.append(((head.end(), head.end()), f"\n{declared}\n"))
    text = module.text
    for (start, end), new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


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
    zeros = use.held[match[1]].zeros if match[1] in use.held and use.sure else 0
    unit = min(unit, 1 << min(zeros, WIDEST.bit_length() - 1))
    return _Place(f"{use.function.name} {match[1]}", offset // unit * unit, offset % unit, unit)


def _moved(
    module: Module, use: Use, name: str, region: Region, prefix: str, place: _Place, shared: bool
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
        new = int(region.apply(np.array([place.offset + place.inside], np.int64))[0])
        return text[: match.start()] + f"[{name}+{new}]" + text[match.end() :]
    register = place.base.split(" ")[1]
    wide = use.function.registers.get(register, "").endswith("64")
    offset, inside = (place.offset, place.inside) if shared else (place.offset + place.inside, 0)
    code = _Code(prefix, use.generic)
    code.address(base, wide, offset, f"{name}+{region.start}" if region.start else name)
    code.layout(region, guarded=region.is_part or not use.sure)
    if shared and place.unit > 1:
        # These bits are 0 already; the assembler does not see it.
        code.add("and.b", "v", "v", -place.unit)
    code.add("add.s", "v", "v", "s")
    behind = f"+{inside}" if inside else ""
    access = text[: match.start()] + f"[{prefix}v{behind}]" + text[match.end() :]
    declared = f"\t.reg .b{code.bits} {', '.join(prefix + r for r in 'vstw')};\n\t.reg .pred {prefix}p;\n"
    return "{\n" + declared + "".join(f"\t{line};\n" for line in code.lines) + f"\t{access}\n\t}}"


class _Code:
    """Instructions that leave a new address in the register v; s is where the array begins."""

    def __init__(self, prefix: str, generic: bool) -> None:
        self.prefix, self.generic, self.bits = prefix, generic, 64 if generic else 32
        self.lines: list[str] = []

    def add(self, opcode: str, *operands: str | int, only: bool = False) -> None:
        """An instruction of so many bits; registers by their letter; `only` where the predicate holds."""
        named = ", ".join(f"{self.prefix}{o}" if o in [*"vstwp"] else str(o) for o in operands)
        self.lines.append(f"{f'@{self.prefix}p ' if only else ''}{opcode}{self.bits} {named}")

    def address(self, base: str, wide: bool, offset: int, start: str) -> None:
        """The offset of an address from the start of the array."""
        taken = "cvt.u32.u64" if wide and not self.generic else f"mov.b{self.bits}"
        self.lines.append(f"{taken} {self.prefix}v, {base}")
        if offset:
            self.add("add.s", "v", "v", offset)
        self.lines.append(f"mov.u{self.bits} {self.prefix}s, {start}")
        if self.generic:
            self.add("cvta.shared.u", "s", "s")
        self.add("sub.s", "v", "v", "s")

    def layout(self, region: Region, guarded: bool) -> None:
        """The offset moved; guarded where it lies in the array, and by its growth where it lies behind."""
        move, rest = region.move, region.end - region.start - region.length
        if rest and region.growth:
            self.add("sub.s", "t", "v", region.length)
            self.add("setp.lt.u", "p", "t", rest)
            self.add("add.s", "v", "v", region.growth, only=True)
        if guarded:
            self.add("setp.lt.u", "p", "v", region.length)
        whole, several = move.row & (move.row - 1) == 0, len(move.terms) > 1
        if several:  # each of the bits that they were
            self.add("mov.b", "w", "v")
        for shift, mask in move.terms:
            if whole:
                by = (move.row // move.unit).bit_length() - 1 + shift
                self.add("shr.u", "t", "w" if several else "v", by)
            else:
                self._quotient(move.row << shift)
                self.add("mul.lo.s", "t", "t", move.unit)
            self.add("and.b", "t", "t", mask * move.unit)
            self.add("xor.b", "v", "v", "t", only=guarded)
        if move.extra:  # an XOR leaves the row what it was
            self._quotient(move.row)
            self.add("mad.lo.s", "v", "t", move.extra, "v", only=guarded)

    def _quotient(self, by: int) -> None:
        if by & (by - 1):
            self.add("div.u", "t", "v", by)
        else:
            self.add("shr.u", "t", "v", by.bit_length() - 1)
