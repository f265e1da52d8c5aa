"""PTX with the bytes of one array of shared memory at other places: every access of it, or none.

Before each access its address is computed anew: the offset from where the array begins, moved as the layout
says; of an access that may reach other memory, where it lies in the array. Nothing else changes, so that
registers, predicates and lines of the source stay what they were.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
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
_ADDRESS: Final = re.compile(r"\[\s*([^\]+]*?)\s*(?:\+\s*(-?\s*\w+)\s*)?\]")

_HEAD: Final = re.compile(r"^\s*\.address_size\s+\d+", re.M)


class Region(Struct, frozen=True):
    """The memory of a symbol of which one array is moved; what lies behind the array makes room."""

    move: Move  # the layout of the array
    # `start, length`: of the array, in bytes from the start of the symbol's memory
    start: int
    length: int
    end: int  # of that memory

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
    prefix = "%moved"  # a beginning of register names that the file does not use
    while prefix in module.text:
        prefix += "_"
    addresses = [_address_of(use, unit) for use in uses]
    accesses = Counter((one.base, one.offset) for one in addresses)  # how many each unit has
    edits = [
        (
            use.instruction.span,
            _rewritten(module, use, name, region, prefix, one, accesses[one.base, one.offset] > 1),
        )
        for use, one in zip(uses, addresses, strict=True)
    ]
    declared = module.text[slice(*variable.span)]
    size = region.size(variable.size)
    if not variable.extern and size > variable.size:
        # What follows stays at multiples of 16 bytes, as wide accesses of it need.
        declared = _resized(declared, name, -(-size // WIDEST) * WIDEST)
    if max(accesses.values()) > 1 and variable.align < WIDEST:
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


class _Address(NamedTuple):
    """The address of an access: `base + offset + inside`, in units of bytes that stay together."""

    base: str  # the function and the register
    offset: int  # bytes to the unit, a multiple of it
    inside: int  # bytes from there, less than the unit
    unit: int  # its bytes


def _address_of(use: Use, unit: int) -> _Address:
    """The address of an access; `unit` bytes stay together, or as many as its register is aligned to."""
    operand = next(o for o in use.instruction.operands if o.startswith("["))
    match = _ADDRESS.fullmatch(operand)
    assert match is not None
    offset = int((match[2] or "0").replace(" ", ""), 0)
    zeros = use.held[match[1]].zeros if match[1] in use.held and use.sure else 0
    unit = min(unit, 1 << min(zeros, WIDEST.bit_length() - 1))
    return _Address(f"{use.function.name} {match[1]}", offset // unit * unit, offset % unit, unit)


def _rewritten(
    module: Module, use: Use, name: str, region: Region, prefix: str, address: _Address, shared: bool
) -> str:
    """An access with its address computed anew, in a block of its own.

    In its lines, ~ stands for `prefix` and # for the bits of an address. Where several accesses have a unit
    of bytes that stay together (`shared`), each computes where the unit begins: the assembler then makes one
    wide access of them, as it did before.
    """
    text = module.text[slice(*use.instruction.span)]
    match = _ADDRESS.search(text)
    assert match is not None
    base = match[1]
    if base in same_array(module, name):
        new = int(region.apply(np.array([address.offset + address.inside], np.int64))[0])
        return text[: match.start()] + f"[{name}+{new}]" + text[match.end() :]
    register = address.base.split(" ")[1]
    wide, bits = use.function.registers.get(register, "").endswith("64"), 64 if use.generic else 32
    offset, inside = (address.offset, address.inside) if shared else (address.offset + address.inside, 0)
    lines = [
        f"{'cvt.u32.u64' if wide and not use.generic else f'mov.b{bits}'} ~v, {base}",
        f"add.s# ~v, ~v, {offset}" if offset else "",
        f"mov.u# ~s, {name}+{region.start}" if region.start else f"mov.u# ~s, {name}",
        "cvta.shared.u# ~s, ~s" if use.generic else "",
        "sub.s# ~v, ~v, ~s",
        *_move_instructions(region, guarded=region.is_part or not use.sure),
        # These bits are 0 already; the assembler does not see it.
        f"and.b# ~v, ~v, {-address.unit}" if shared and address.unit > 1 else "",
        "add.s# ~v, ~v, ~s",
    ]
    code = "".join(f"\t{line};\n" for line in lines if line).replace("~", prefix).replace("#", f"{bits}")
    behind = f"+{inside}" if inside else ""
    access = text[: match.start()] + f"[{prefix}v{behind}]" + text[match.end() :]
    declared = f"\t.reg .b{bits} {', '.join(prefix + r for r in 'vstw')};\n\t.reg .pred {prefix}p;\n"
    return "{\n" + declared + code + f"\t{access}\n\t}}"


def _move_instructions(region: Region, guarded: bool) -> Iterator[str]:
    """PTX that moves ~v, an offset in bytes from the array, as the layout says (`Move.apply`).

    Bytes behind the array move by its growth. `guarded`, other bytes that are not the array's stay. ~ stands
    for a prefix of registers, # for their bits; ~t and ~w are for values on the way, ~p for a predicate.
    """
    move, behind = region.move, region.end - region.start - region.length
    if behind and region.growth:
        yield from (f"sub.s# ~t, ~v, {region.length}", f"setp.lt.u# ~p, ~t, {behind}")
        yield f"@~p add.s# ~v, ~v, {region.growth}"
    if guarded:
        yield f"setp.lt.u# ~p, ~v, {region.length}"
    guard, several = "@~p " if guarded else "", len(move.terms) > 1
    power_of_two = move.row & (move.row - 1) == 0
    if several:  # each XOR takes the bits that were there before all
        yield "mov.b# ~w, ~v"
    for shift, mask in move.terms:
        if power_of_two:
            by = (move.row // move.unit).bit_length() - 1 + shift
            yield f"shr.u# ~t, {'~w' if several else '~v'}, {by}"
        else:
            yield from (_quotient(move.row << shift), f"mul.lo.s# ~t, ~t, {move.unit}")
        yield from (f"and.b# ~t, ~t, {mask * move.unit}", f"{guard}xor.b# ~v, ~v, ~t")
    if move.extra:  # an XOR does not change the row
        yield from (_quotient(move.row), f"{guard}mad.lo.s# ~v, ~t, {move.extra}, ~v")


def _quotient(by: int) -> str:
    return f"div.u# ~t, ~v, {by}" if by & (by - 1) else f"shr.u# ~t, ~v, {by.bit_length() - 1}"
