"""A kernel compiled and launched: what its blocks do, and how that differs from another version of it."""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec.structs import replace

from layoutopt.engine.estimate import Memory, Terms, timing_of
from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.driver import Driver, Kernel, Race
from layoutopt.hardware.occupancy import occupancy
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.evaluate import Followed, follow
from layoutopt.kernels.machine.launch import Launch, arguments, element_type
from layoutopt.kernels.program import Array, Program
from layoutopt.kernels.read.files import Listed
from layoutopt.study.moved import costs, footprint

# The index of a block.
Block = tuple[int, ...]
FIRST: Final = (0, 0, 0)
# So many blocks that differ are compared.
_MOST_BLOCKS: Final = 16
# Bytes of a buffer that is made up so that outputs can be compared: evaluated here, and run on a GPU.
_BUFFER_BYTES: Final = 1 << 21
_GPU_BUFFER_BYTES: Final = 1 << 26
_MADE_UP_FLOAT: Final = 0.71875


@dataclass
class Version:
    """A source compiled, and its launch evaluated."""

    files: dict[str, bytes]  # those of the author, by path
    evaluation: Evaluation  # of the launch
    listed: tuple[Listed, ...]  # all kernels of the source
    most_steps: int  # to follow a block
    race: Race | None = None  # against the version before, on a GPU
    _followed: dict[Block, Followed] = field(default_factory=dict)
    _reached: dict[tuple[Block, Array], dict[bool, IntArray] | None] = field(default_factory=dict)

    @property
    def followed(self) -> Followed:
        """Its first block."""
        return self.block(FIRST)

    def block(self, index: Block) -> Followed:
        """One of its blocks, with buffers made up where none are given.

        Where nothing in shared memory depends on them, floats that the launch does not give and constant
        memory that the host fills are made up, too.
        """
        if index not in self._followed:
            self._followed[index] = self._block(index)
        return self._followed[index]

    def _block(self, index: Block) -> Followed:
        full = _with_buffers(self.program, self.evaluation.launch, _BUFFER_BYTES)
        gpu, most = self.evaluation.gpu, self.most_steps
        if not self.evaluation.doubts:
            try:
                return follow(*_with_numbers(self.program, full), gpu, index, most_steps=most)
            except ProblemFileError:
                pass  # numbers of iterations may have been among them
        return follow(self.program, full, gpu, index, most_steps=most)

    @property
    def program(self) -> Program:
        """The kernel."""
        return self.evaluation.program

    @property
    def wavefronts(self) -> int:
        """Of the launch."""
        return costs(self.evaluation).most

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return (self.program.static_bytes or 0) + self.evaluation.launch.shared_bytes

    def footprint(self, block: Block, array: Array) -> dict[bool, IntArray] | None:
        """What threads of a block do to an array."""
        if (block, array) not in self._reached:
            self._reached[block, array] = footprint(self.block(block).evaluation, array)
        return self._reached[block, array]

    @property
    def too_many_blocks(self) -> str | None:
        """Why blocks that differ cannot all be compared; None where they can."""
        count = len(self.evaluation.blocks)
        if 0 < count <= _MOST_BLOCKS:
            return None
        which = f"{count:,} blocks that differ" if count else "blocks that may differ"
        return f"the launch has {which}, too many to compare (a smaller --grid may have fewer)"

    @property
    def blocks_per_sm(self) -> int | None:
        """Resident blocks; None where the chip's limits are not known."""
        program, launch = self.program, self.evaluation.launch
        fits = occupancy(
            self.shared_bytes, 16, launch.threads, self.evaluation.gpu, program.target.rstrip("af"),
            registers=program.registers,
        )  # fmt: skip
        return fits.blocks if fits is not None else None

    @property
    def time(self) -> float:
        """Of the time before, on a GPU; else `cycles`."""
        return self.race.ratio if self.race is not None else self.cycles

    @property
    def cycles(self) -> float:
        """A multiprocessor's, estimated, for a block among those that fit."""
        blocks = self.blocks_per_sm
        memory = Memory(self.wavefronts / self.evaluation.launch.blocks, 0, 0)
        terms = Terms((memory,), instructions=self.followed.issued)
        return math.inf if blocks == 0 else terms.time(timing_of(self.evaluation.gpu)[0], blocks)


def blocks_of(before: Version, after: Version) -> tuple[Block, ...]:
    """The blocks that differ in either version."""
    return tuple(dict.fromkeys((*before.evaluation.blocks, *after.evaluation.blocks)))


def not_known(version: Version, array: Array | None) -> str | None:
    """Why it is not known what the threads of blocks that differ do to an array; None where it is.

    Raises:
        ProblemFileError: the first block cannot be followed.
    """
    if array is None or version.too_many_blocks is not None:
        return version.too_many_blocks
    for block in version.evaluation.blocks:
        try:
            evaluation = version.block(block).evaluation
        except ProblemFileError as error:
            if block == FIRST:
                raise
            return f"not all that block {','.join(map(str, block))} does is known: {error}"
        if version.footprint(block, array) is None or evaluation.ended:
            why = "; ".join(evaluation.doubts) or "too much is executed to be compared"
            return f"not all that threads do to it is known: {why}"
    return None


def output_difference(before: Version, after: Version, block: Block) -> tuple[int, int]:
    """Bytes of global memory that a block leaves otherwise, and those of which that is not known."""
    later = after.block(block).memory
    counts = [memory.differs(later[base]) for base, memory in before.block(block).memory.items()]
    return sum(different for different, _ in counts), sum(unknown for _, unknown in counts)


def _with_buffers(program: Program, launch: Launch, size: int) -> Launch:
    """The launch with made-up data of `size` bytes behind each pointer of which it says nothing.

    Floats are random, whole numbers count up; where a launch has its parameters as bytes, the data lies at
    the address that they hold.
    """
    buffers, memory = dict(launch.buffers), dict(launch.memory)
    known = {*buffers, *launch.arguments}
    for k, parameter in enumerate(program.parameters or ()):
        is_pointer = parameter.may_point and (parameter.pointer or parameter.type.endswith("*"))
        if not is_pointer or str(k) in known or parameter.name in known:
            continue
        kind = element_type(parameter.type) or np.dtype(np.float32)
        count = size // kind.itemsize
        if kind.kind == "f":
            values = np.random.default_rng(k).random(count).astype(kind)
        else:
            with np.errstate(over="ignore"):
                values = np.arange(count).astype(kind)
        buffers[str(k)] = values
        if launch.parameters is not None:
            pointer = launch.parameters[parameter.offset : parameter.offset + parameter.size]
            address = int.from_bytes(pointer, "little")
            if address and not any(start <= address < start + len(data) for start, data in memory.items()):
                memory[address] = values.tobytes()
    by_bytes = launch.parameters is not None
    return replace(launch, memory=memory) if by_bytes else replace(launch, buffers=buffers)


def _with_numbers(program: Program, launch: Launch) -> tuple[Program, Launch]:
    """The program with random constant memory where the host fills it, the launch with made-up floats."""
    values = dict(launch.arguments)
    for k, parameter in enumerate(program.parameters or () if launch.parameters is None else ()):
        if parameter.type in ("float", "double") and not {str(k), parameter.name} & values.keys():
            values[str(k)] = _MADE_UP_FLOAT
    constants = {bank: bytearray(data) for bank, data in program.constants.items()}
    for bank, unset in program.unset.items():
        for start, count in unset if bank in constants else ():
            floats = np.random.default_rng(start).random(-(-count // 4), np.float32)
            constants[bank][start : start + count] = floats.tobytes()[:count]
    filled = {bank: bytes(data) for bank, data in constants.items()}
    return replace(program, constants=filled, unset={}), replace(launch, arguments=values)


def race_on_gpu(before: Version, after: Version, driver: Driver) -> Race:
    """Times and outputs of both versions on the GPU, each at its launch, with the arguments of the first.

    Raises:
        ProblemFileError: an argument is not known.
        MachineError: a launch fails.
    """
    program = before.program
    given = arguments(program, _with_buffers(program, before.evaluation.launch, _GPU_BUFFER_BYTES))
    if given.missing:
        raise ProblemFileError("--arg", f"a launch on a GPU needs parameter {given.missing[0]}")
    kernels = []
    for version in (before, after):
        launch, name = version.evaluation.launch, version.program.name
        (image,) = [listed.image for listed in version.listed if listed.name == name]
        shape = launch.grid, launch.block, launch.shared_bytes
        kernels.append(Kernel(image, name, *shape, given.content, given.buffers))
    return driver.race(*kernels)
