"""Matrix fragments: what each lane of a matrix instruction holds of its operands.

Data (`hardware/fragments.json`), from the PTX ISA and from AMD's tables.
"""

import math
import re
from functools import cache
from typing import Annotated, Final, Literal

import numpy as np
from msgspec import Meta, Struct

from layoutopt.expressions.grammar import evaluate, parse
from layoutopt.ground import json_data
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import device

Count = Annotated[int, Meta(ge=1)]

BITS: Final = {
    "b1": 1, "s4": 4, "u4": 4, "e2m1": 4, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8,
    "f16": 16, "bf16": 16, "f32": 32, "tf32": 32, "xf32": 32, "s32": 32, "f64": 64,
}  # fmt: skip
_ARCHITECTURE: Final = re.compile(r"sm_(\d+)|gfx([0-9a-f]+)")
TargetName = Annotated[str, Meta(pattern=r"^(sm_[0-9]+|gfx[0-9a-f]+)(?!\n)$")]


class Operand(Struct, frozen=True, forbid_unknown_fields=True):
    """One operand of an instruction, as in `hardware/fragments.json`, which explains the fields."""

    operand: str
    elements: tuple[str, ...]
    values: Count
    at: dict[Literal["m", "n", "k"], Annotated[str, Meta(min_length=1)]]
    copies: Count = 1


class Instruction(Struct, frozen=True, forbid_unknown_fields=True):
    """A matrix instruction and where its operands live."""

    name: str
    shape: dict[Literal["m", "n", "k"], Count]
    lanes: Literal[32, 64]
    since: dict[str, TargetName]
    source: str
    operands: tuple[Operand, ...]
    until: TargetName | None = None
    warps: Literal[1, 4] = 1
    note: str = ""


class FragmentFile(Struct, frozen=True, forbid_unknown_fields=True, rename={"schema_": "schema"}):
    """The data file."""

    schema_: Literal["layoutopt.fragments/1"]
    about: str
    targets: str
    instructions: tuple[Instruction, ...]


class Fragment(Struct, frozen=True):
    """What each lane of an instruction holds of one operand."""

    name: str  # such as `mma.m16n8k16.A.f16`
    bits: int  # of one value
    extent: dict[str, int]  # of the operand, by coordinate, in the order of the operand's matrix
    at: dict[str, IntArray]  # int64, shape (lanes, warps, values), by coordinate
    lanes: int  # lanes of a warp
    warps: int  # warps that execute the instruction together
    since: str  # the first target that executes the instruction with this element
    until: str | None  # the last one of the same vendor; None for all later ones
    source: str  # the document
    note: str  # what else there is to know
    copies: int = 1  # lanes that hold the same element

    @property
    def is_result(self) -> bool:
        """Whether it is what the instruction computes, which a kernel may convert before it stores it."""
        return ".C." in self.name

    @property
    def targets(self) -> str:
        """The targets that execute the instruction, in words."""
        if self.until == self.since:
            return self.since
        return f"{self.since} to {self.until}" if self.until else f"{self.since} and later"

    @property
    def matrices(self) -> int:
        """Matrices that the lanes hold between them; the coordinates are those of a lane's own."""
        return self.lanes * self.warps * self.values // self.copies // math.prod(self.extent.values())

    @property
    def values(self) -> int:
        """Values that each lane holds."""
        return int(next(iter(self.at.values())).shape[2])


def executes(held: Fragment, target: str) -> bool:
    """Whether a target, by its name or an alias, executes the instruction that a fragment is of.

    Raises:
        ProblemFileError: no such target.
    """
    known = device(target)
    # One device may have several generations: the name by architecture, such as sm_89 for ada, says which.
    group = next((g.targets for g in known.limits if target.lower() in g.targets), ())
    architecture = next((name for name in (target.lower(), *group) if _ARCHITECTURE.match(name)), known.name)
    family, number = _generation(held.since)
    of, given = _generation(architecture)
    return of == family and number <= given and (held.until is None or given <= _generation(held.until)[1])


def _generation(architecture: str) -> tuple[str, int]:
    """A family and a number that grows within it: sm_90a is sm 90, gfx90a gfx 0x90a."""
    match = _ARCHITECTURE.match(architecture)
    assert match is not None
    return ("sm", int(match[1])) if match[1] else ("gfx", int(match[2], 16))


@cache
def fragments() -> dict[str, Fragment]:
    """Every fragment, by name, in the order of the data."""
    found = {}
    for instruction in json_data.packaged("hardware", "fragments.json", FragmentFile).instructions:
        for operand in instruction.operands:
            env = {
                "lane": np.arange(instruction.lanes)[:, None, None],
                "warp": np.arange(instruction.warps)[None, :, None],
                "i": np.arange(operand.values)[None, None, :],
            }
            shape = (instruction.lanes, instruction.warps, operand.values)
            at: dict[str, IntArray] = {
                c: np.broadcast_to(evaluate(parse(text, frozenset(env)), env), shape)
                for c, text in operand.at.items()
            }
            for element in operand.elements:
                name = f"{instruction.name}.{operand.operand}.{element}"
                found[name] = Fragment(
                    name=name,
                    bits=BITS[element],
                    extent={c: instruction.shape[c] for c in operand.at},
                    at=at,
                    lanes=instruction.lanes,
                    warps=instruction.warps,
                    since=instruction.since[element],
                    until=instruction.until,
                    source=instruction.source,
                    note=instruction.note,
                    copies=operand.copies,
                )
    return found
