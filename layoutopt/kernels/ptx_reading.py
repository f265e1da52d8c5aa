"""An instruction of PTX about to become a step: its words, its operands, and what their names mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from layoutopt.kernels.program import Action, Forget, Operand
from layoutopt.kernels.ptx_text import TYPE_BYTES
from layoutopt.kernels.values import Value, cut


class Names(Protocol):
    """What operands are called in the steps."""

    def operand(self, text: str, width: int) -> Operand:
        """A register, number or address."""

    def cells(self, text: str) -> tuple[str, ...]:
        """The cells that a destination stands for: one, `p|q`, or `{a, b}`."""

    def address(self, text: str) -> tuple[Operand, int]:
        """`[base+offset]`."""

    def read_later(self, cell: str) -> bool:
        """Whether any instruction reads the register."""


class Reading(NamedTuple):
    """An instruction to build: its opcode in words, its operands, and what names mean."""

    words: tuple[str, ...]
    operands: tuple[str, ...]
    names: Names

    @property
    def kind(self) -> str:
        """The last type that the opcode names.

        Raises:
            ValueError: it names none that is known.
        """
        found = next((w for w in reversed(self.words) if w in TYPE_BYTES), None)
        if found is None:
            raise ValueError("a type")
        return found

    @property
    def width(self) -> int:
        """Bits of that type."""
        return 1 if self.kind == "pred" else 8 * TYPE_BYTES[self.kind]

    @property
    def signed(self) -> bool:
        """Whether that type is signed."""
        return self.kind.startswith("s")

    def sources(self, *widths: int, start: int = 1) -> tuple[Operand, ...]:
        """Operands from `start` on, each of a width in bits."""
        if len(self.operands) < start + len(widths):
            raise ValueError(f"{start + len(widths)} operands")
        return tuple(self.names.operand(self.operands[start + k], w) for k, w in enumerate(widths))

    @property
    def dests(self) -> tuple[str, ...]:
        """Cells of the first operand."""
        return self.names.cells(self.operands[0]) if self.operands else ()


class Built(NamedTuple):
    """What a step does, and with what."""

    action: Action
    sources: tuple[Operand, ...] = ()
    dests: tuple[str, ...] = ()


Builder = Callable[[Reading], Built]


def forget(reading: Reading) -> Built:
    """Results that are not modelled."""
    return Built(Forget(reading.words[0]), (), reading.dests)


def fit(value: Value, width: int) -> Value:
    """A register read at a width."""
    return cut(value, width)
