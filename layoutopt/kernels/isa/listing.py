"""Machine code as text: what `cuobjdump -sass` and `nvdisasm -c` print, instruction by instruction."""

import itertools
import re
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from layoutopt.errors import ProblemFileError
from layoutopt.ground.brackets import split
from layoutopt.ground.budget import current
from layoutopt.ground.escape import shown
from layoutopt.kernels.program import Place

MAX_INSTRUCTIONS: Final = 1 << 20

_INSTRUCTION: Final = re.compile(r"\s*/\*([0-9a-f]{4,8})\*/\s+([^;]*?)\s*;")
_FUNCTION: Final = re.compile(r"\s*Function : (\S+)\s*$|\.text\.(\S+):\s*$")
_LABEL: Final = re.compile(r"(\.L_[\w$]+|\$[\w$.]+|[A-Za-z_][\w$.]*):\s*$")
_TARGET: Final = re.compile(r"sm_(\d{2,3}[af]?)\b|\bEF_CUDA_SM(\d{2,3})")
_LINE: Final = re.compile(r'\s*//## File "([^"]*)", line (\d{1,8})( inlined at)?')
_OF_TOOLKIT: Final = re.compile(r"/(targets/[^/]+|nvidia/[^/]+|cuda[^/]*)/include/|^/usr/include/")
# What nvdisasm says behind an instruction, except where a jump through a table may go.
_REMARK: Final = re.compile(r'\s*\(\*"(?!BRANCH_TARGETS)[^"]*"\*\)')
_TEXT: Final = re.compile(
    r"(?:@(!?U?P(?:\d|T))\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)(?:\s+(.*))?$", re.S
)


class Instruction(Struct, frozen=True):
    """One line."""

    address: int  # in the function
    text: str  # without the address
    opcode: str  # such as `IMAD`
    modifiers: tuple[str, ...]  # such as `("WIDE", "U32")`
    operands: tuple[str, ...]  # as printed, `.reuse` left out
    guard: str = ""  # its predicate, such as `!P0`; empty without
    place: Place | None = None  # line of the source

    def has(self, *names: str) -> bool:
        """Whether one of the modifiers is there."""
        return any(name in self.modifiers for name in names)


@dataclass(slots=True)
class Function:
    """The code of one kernel, or of a function that is called."""

    name: str  # as the binary has it
    target: str  # such as `sm_90`
    instructions: list[Instruction] = field(default_factory=list)  # in order
    labels: dict[str, int] = field(default_factory=dict)  # addresses


def functions(text: str) -> list[Function]:
    """The functions of a listing.

    Raises:
        ProblemFileError: it holds none, or a line of code cannot be read.
    """
    found: list[Function] = []
    target = ""
    place: Place | None = None
    inlined = False
    pending: list[str] = []
    count = 0
    for number, line in current().each(enumerate(text.splitlines(), 1)):
        if match := _INSTRUCTION.match(line):
            if not found:
                found.append(Function("kernel", target))
            count += 1
            if count > MAX_INSTRUCTIONS:
                raise ProblemFileError("", f"more than {MAX_INSTRUCTIONS:,} instructions")
            address = int(match[1], 16)
            for label in pending:
                found[-1].labels[label] = address
            pending = []
            found[-1].instructions.append(_instruction(address, match[2], place, number))
        elif match := _FUNCTION.match(line):
            name = match[1] or match[2]
            found.append(Function(name, target))
            place, pending = None, []
        elif match := _LINE.match(line):
            # Inlined code: the first line is its own, those that follow say where it was called. What the
            # toolkit's headers define stands where somebody else calls it.
            if not inlined or (place is not None and _OF_TOOLKIT.search(place.file)):
                place = Place(match[1], int(match[2]))
            inlined = match[3] is not None
        elif match := _LABEL.match(line):
            pending.append(match[1])
        elif (match := _TARGET.search(line)) and (
            "target" in line or "code for" in line or "EF_CUDA" in line
        ):
            target = f"sm_{match[1] or match[2]}"
            if found and not found[-1].instructions:
                found[-1].target = target
    kernels = [function for function in found if function.instructions]
    if not kernels:
        raise ProblemFileError("", "no machine code: expected what cuobjdump -sass or nvdisasm -c prints")
    for function in kernels:
        if any(b.address <= a.address for a, b in itertools.pairwise(function.instructions)):
            raise ProblemFileError(shown(function.name), "the addresses of its instructions do not rise")
    return kernels


def _instruction(address: int, text: str, place: Place | None, number: int) -> Instruction:
    text = _REMARK.sub("", text)
    match = _TEXT.match(text.strip())
    if match is None:
        raise ProblemFileError(f"line {number}", f"no instruction: {shown(text)!r}")
    guard, opcode, modifiers, rest = match.groups()
    operands = tuple(part.replace(".reuse", "") for part in split(rest or ""))
    told = tuple(modifiers.split(".")[1:])
    return Instruction(address, " ".join(text.split()), opcode, told, operands, guard or "", place)
