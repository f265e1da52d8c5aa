"""PTX as what `source_fix` changes: layouts and checks are those of sources."""

import re

from msgspec import Struct

from layoutopt.hardware.devices import Device
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.program import Array
from layoutopt.kernels.ptx.text import read_ptx
from layoutopt.kernels.read.files import Listed, from_ptx
from layoutopt.source.moves import Move
from layoutopt.source.ptx_edit import WIDEST, Region, patched
from layoutopt.source.ptx_flow import access_bytes, uses_of
from layoutopt.study.source_plans import DYNAMIC, Plan, Plans, Ranking, arrays_of

# Ranks of plans (`Plan.rank`), the lower first: those of which one plan each is tried.
_XOR, _PAD = 1, 3


class PtxCode(Struct, frozen=True):
    """A kernel in PTX."""

    text: str  # of the file
    origin: str  # its name, for messages
    entry: str  # the kernel
    target: str | None = None  # what it is assembled for; None for the GPU that it names
    move: Move | None = None  # the only layout to put in; None for those found

    def files(self) -> dict[str, bytes]:
        """The file."""
        return {self.origin: self.text.encode()}

    def dynamic_names(self) -> set[str]:
        """Of the arrays that are declared without a size."""
        return {variable.name for variable in read_ptx(self.text, self.origin).variables if variable.extern}

    def compiled(self, files: dict[str, bytes] | None) -> tuple[Listed, ...]:
        """The kernel as ptxas assembles it; others of the file are not changed."""
        kernels = from_ptx(self.text if files is None else files[self.origin].decode(), self.target)
        return tuple(kernel for kernel in kernels if kernel.name == self.entry)

    def plans(self, files: dict[str, bytes], evaluation: Evaluation, array: Array, gpu: Device) -> Plans:
        """Changes of an array that are worth assembling.

        Raises:
            ProblemFileError: an address goes where it cannot be followed, or `move` cannot be put in.
        """
        module = read_ptx(files[self.origin].decode(), self.origin)
        symbol, whole = array.symbol, array  # whole: all memory of the symbol
        if symbol == DYNAMIC:
            whole = arrays_of(evaluation)[DYNAMIC]
            # All its names are of one place; messages say the one that the kernel uses.
            words = set(re.findall(r"[\w$%]+", module.body(self.entry)))
            symbol = next((v.name for v in module.variables if v.extern and v.name in words), "")
        uses = uses_of(module, symbol, self.entry)
        # Bytes that stay together: what is wider in machine code, the assembler joined.
        element = max((access_bytes(use.instruction) for use in uses), default=WIDEST)

        def written(move: Move) -> Plan:
            region = Region(move, start=array.start - whole.start, length=array.size, end=whole.size)
            text = patched(module, symbol, region, uses)
            return Plan(_XOR if move.terms else _PAD, region, {self.origin: text.encode()})

        if self.move is not None:
            return Plans(array.name, [written(self.move)], [])
        return Ranking(evaluation, array, gpu, element).plans(array.name, written)
