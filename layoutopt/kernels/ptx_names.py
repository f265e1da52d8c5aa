"""What the operands of PTX mean in a program: registers are cells, variables addresses."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from layoutopt.kernels import values
from layoutopt.kernels.program import Action, Compute, Memory, Operand, Step
from layoutopt.kernels.ptx_memory import ADDRESS_BITS
from layoutopt.kernels.ptx_reading import Built, Reading, fit
from layoutopt.kernels.ptx_text import Function, Instruction
from layoutopt.kernels.values import Value, constant

_NUMBER: Final = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?")
_BITS: Final = re.compile(r"0([fFdD])([0-9a-fA-F]{8}|[0-9a-fA-F]{16})")
ADDRESS: Final = re.compile(r"\[\s*([^\]+]*?)\s*(?:\+\s*(-?\s*\w+)\s*)?\]")
_AXIS: Final = re.compile(r"%(tid|ntid|ctaid|nctaid)\.([xyz])")
# Special registers that are the same for a launch without clusters.
_FIXED: Final = {"%cluster_ctarank": 0, "%cluster_nctarank": 1, "WARP_SZ": 32, "%warpsize": 32}
_MASKS: Final = {
    "%lanemask_eq": lambda lane: 1 << lane,
    "%lanemask_lt": lambda lane: (1 << lane) - 1,
    "%lanemask_le": lambda lane: (2 << lane) - 1,
    "%lanemask_gt": lambda lane: 0xFFFFFFFF & ~((2 << lane) - 1),
    "%lanemask_ge": lambda lane: 0xFFFFFFFF & ~((1 << lane) - 1),
}


class Places(NamedTuple):
    """Where things are.

    Attributes:
        parameters: offsets of the entry's parameters.
        addresses: of variables, each in its own space.
        functions: names of all.
    """

    parameters: Mapping[str, int]
    addresses: Mapping[str, int]
    functions: Collection[str]


@dataclass(slots=True)
class Instance:
    """A function in place of a call: what its names are called there.

    Attributes:
        function: what is called.
        prefix: of its registers and labels.
        formals: the caller's names of its parameters and results.
    """

    function: Function
    prefix: str
    formals: dict[str, str] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for item in self.function.body or ():
            if isinstance(item, Instruction):
                for operand in item.operands:
                    self.uses.update(re.findall(r"[\w$%`]+", operand))


def key_of(instance: Instance, name: str) -> str:
    """A variable of a call: its name in the whole program."""
    return instance.formals.get(name, f"{instance.prefix}{name}")


class NamesOf:
    """What the operands of an instance of a function mean."""

    def __init__(self, places: Places, instance: Instance) -> None:
        self._places, self._instance = places, instance

    def cell(self, name: str) -> str:
        """The cell of a register."""
        return f"{self._instance.prefix}{'' if name.startswith('%') else '%'}{name}"

    def cells(self, text: str) -> tuple[str, ...]:
        """The cells that a destination stands for."""
        text = text.strip()
        parts = text.strip("{}").split(",") if text.startswith("{") else text.split("|")
        return tuple(self.cell(part.strip()) if part.strip() != "_" else "%_" for part in parts)

    def read_later(self, cell: str) -> bool:
        """Whether anything but one instruction names the register."""
        return self._instance.uses[cell.removeprefix(self._instance.prefix)] > 1

    def operand(self, text: str, width: int) -> Operand:
        """A register, number or address."""
        text = text.strip()
        if _NUMBER.fullmatch(text):
            return constant(_integer(text), max(width, 1))
        if match := _BITS.fullmatch(text):
            return constant(int(match[2], 16), 4 * len(match[2]))
        if text in self._instance.function.registers:
            return self.cell(text)
        if text in _FIXED:
            return constant(_FIXED[text])
        if match := _AXIS.fullmatch(text):
            return f"${match[1]}.{match[2]}"
        if text in ("%laneid", "%warpid"):
            return f"${text[1:]}"
        if text in _MASKS:
            return _lane_table(text)
        name, _, offset = text.partition("+")
        address = self._address_of(name.strip())
        if address is not None and (not offset or _NUMBER.fullmatch(offset.strip())):
            return constant(address + (_integer(offset.strip()) if offset else 0), 64)
        if re.fullmatch(r"[+-]?\d+\.\d*(?:[eE][+-]?\d+)?", text):
            packed = struct.pack("<d" if width == 64 else "<f", float(text))
            return constant(int.from_bytes(packed, "little"), 64)
        if text.startswith("%") or text in self._places.functions or text == "_":
            return values.unknown(64)  # %clock, %smid; the address of a function
        raise ValueError(f"a name that is declared, got {text!r}")

    def _address_of(self, name: str) -> int | None:
        if self._instance.prefix == "" and name in self._places.parameters:
            return self._places.parameters[name]
        return self._places.addresses.get(name)

    def address(self, text: str) -> tuple[Operand, int]:
        """`[base+offset]`."""
        match = ADDRESS.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"an address, got {text!r}")
        return self.operand(match[1], 64), _integer((match[2] or "0").replace(" ", ""))

    def with_address(self, built: Built, base: Step) -> Iterator[Step]:
        """A step of memory, and before it one that adds the offset of its address."""
        action = built.action
        assert isinstance(action, Memory)
        width = ADDRESS_BITS[action.space]
        text = built.sources[0]
        assert isinstance(text, str)
        place, offset = self.address(text)
        if not isinstance(place, str):
            place = values.add(place, constant(offset, width), width=width)
        elif offset or (width == 32 and self._is_wide(text)):
            step, place = _added(base, place, offset, width)
            yield step
        yield replace(base, action=action, sources=(place, *built.sources[1:]), dests=built.dests)

    def _is_wide(self, text: str) -> bool:
        match = ADDRESS.fullmatch(text.strip())
        kind = self._instance.function.registers.get(match[1] if match else "", "")
        return kind.endswith("64")

    def parameter_move(self, reading: Reading) -> Built | None:
        """ld.param and st.param of what calls pass: cells, not memory."""
        words = reading.words
        if words[0] not in ("ld", "st") or not ({"param", "param::func"} & set(words)):
            return None
        place = reading.operands[1 if words[0] == "ld" else 0]
        match = ADDRESS.fullmatch(place.strip())
        if match is None or (self._instance.prefix == "" and match[1] in self._places.parameters):
            return None
        unit, start = reading.width // 8, _integer((match[2] or "0").replace(" ", ""))
        width, signed = reading.width, reading.signed
        key = key_of(self._instance, match[1])

        def moved(*given: Value) -> tuple[Value, ...]:
            return tuple(values.extend(v, width) if signed and width < 32 else fit(v, width) for v in given)

        if words[0] == "ld":
            dests = reading.dests
            return Built(
                Compute(moved), tuple(f"%{key}+{start + k * unit}" for k in range(len(dests))), dests
            )
        text = reading.operands[1]
        parts = text.strip("{} ").split(",") if text.startswith("{") else [text]
        sources = tuple(self.operand(part, width) for part in parts)
        return Built(Compute(moved), sources, tuple(f"%{key}+{start + k * unit}" for k in range(len(parts))))


def _added(base: Step, place: str, offset: int, width: int) -> tuple[Step, str]:
    number = constant(offset, width)

    def add(value: Value) -> tuple[Value, ...]:
        return (values.add(fit(value, width), number, width=width),)

    cell = f"%{place}+{offset}"
    action: Action = Compute(add)
    return replace(base, action=action, sources=(place,), dests=(cell,), guard=None), cell


def _lane_table(name: str) -> Value:
    return values.known(np.array([[_MASKS[name](lane) for lane in range(32)]], np.int64))


def _integer(text: str) -> int:
    text = text.rstrip("U")
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.lstrip("+"))
    if re.fullmatch(r"0[0-7]+", digits):
        return sign * int(digits, 8)
    return sign * int(digits, 0)
