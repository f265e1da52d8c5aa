"""One launch of a program, counted: blocks that do the same are evaluated once.

A box of a grid holds blocks whose indices lie between two numbers along each axis. One block of which no more
is known stands for all of them, where its evaluation needs no more.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import OutOfTime
from layoutopt.hardware.devices import Device
from layoutopt.kernels.machine.counts import NOT_GIVEN, Evaluation
from layoutopt.kernels.machine.launch import Arguments, Launch, arguments, checked
from layoutopt.kernels.machine.loops import Loops
from layoutopt.kernels.machine.memory import Bytes
from layoutopt.kernels.machine.registers import Registers, Stopped
from layoutopt.kernels.machine.relevance import Relevance, constant_bytes, relevance
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.machine.warps import Machine, TooManySteps
from layoutopt.kernels.program import STACK_BYTES, Action, Compute, Forget, Program, Step

DEFAULT_MOST_STEPS: Final = 250_000
# Warps that are evaluated at once.
MOST_ROWS: Final = 1536
# What their memories may take; a byte of shared memory takes 6 with who may rely on it, of local memory 2.
MOST_BYTES: Final = 256 << 20
_SHARED_COST: Final = 6
_LOCAL_COST: Final = 2
# Where the first block is not certain, the others may take so many times its steps, or so many steps.
_MOST_TIMES: Final = 32
_FEW_STEPS: Final = 10_000
# So many warps more cost a step as much again; so few blocks are not evaluated as a box.
_ROWS_A_STEP: Final = 128
_FEW_BLOCKS: Final = 4
# Approximations are told apart where there are no more kinds of them.
_MOST_KINDS: Final = 12
_APPROXIMATE: Final = Forget("is an approximation, its last bits decide what is accessed")
_NOT_TRIED: Final = (
    "the time was over before approximations of MUFU were tried with other errors: what they may decide "
    "is not counted"
)
_LIKE_THE_FIRST: Final = (
    "blocks that may differ from the first one count as it does: what each of them does is not counted"
)


def evaluate(
    program: Program,
    launch: Launch,
    gpu: Device,
    *,
    most_steps: int = DEFAULT_MOST_STEPS,
    tells_apart: bool = False,
) -> Evaluation:
    """Execute a launch.

    Args:
        program, launch, gpu: what runs where.
        most_steps: of blocks that are evaluated together.
        tells_apart: `blocks` of the answer are those that differ; none where some were not looked at.

    Raises:
        ProblemFileError: the launch is impossible, an argument names no parameter, or blocks that are
            evaluated together need more steps than `most_steps`.
    """
    given = arguments(program, checked(launch, gpu, program.target))
    spaces = ("shared", "local", *(("global",) if given.buffers else ()))
    slice_ = relevance(program, spaces)

    def evaluated(steps: tuple[Step, ...]) -> Evaluation:
        needed = slice_._replace(steps=steps)
        return _total(_Run(program, needed, launch, given, gpu, most_steps, Loops(needed), tells_apart))

    # By opcode and line of the source, approximations whose results were known.
    kinds: dict[object, dict[int, Compute]] = {}

    def watched(k: int, step: Step) -> Step:
        action = step.action
        if not (slice_.matters[k] and isinstance(action, Compute) and action.near):
            return step

        def noted(*given: Value) -> tuple[Value, ...]:
            results = action.function(*given)
            if not all(value.unknown.all() for value in results):
                kinds.setdefault((step.text.split()[0], step.place), {})[k] = action
            return results

        return replace(step, action=Compute(noted, near=action.near))

    found = evaluated(tuple(watched(k, step) for k, step in enumerate(slice_.steps)))
    try:
        deciding = _deciding(slice_.steps, kinds, found, evaluated)
        unknown = dict.fromkeys(deciding, _APPROXIMATE)
        return evaluated(_replaced(slice_.steps, unknown)) if deciding else found
    except OutOfTime:
        found.doubts[_NOT_TRIED] = -1
        return found


def _total(run: "_Run") -> Evaluation:
    """Evaluate all blocks."""
    program, tells_apart = run.program, run.tells_apart
    total = Evaluation(program, run.launch, run.gpu, evaluated_blocks=run.cover())
    for part, times in run.parts:
        total.add(part, times)
    if total.doubts:
        total.doubts = dict.fromkeys(_not_known(program, run.relevance, run.given), -1) | total.doubts
    first, _ = run.parts[0]
    total.traces, total.barriers = first.traces, sorted(first.barriers)
    if tells_apart and _LIKE_THE_FIRST not in total.doubts:
        done: dict[object, tuple[int, ...]] = {}
        for part, _ in run.parts:
            for what, index in zip(part.done_by_blocks(), part.blocks, strict=True):
                done.setdefault(what, index)
        total.blocks = list(dict.fromkeys(done.values()))
    return total


def _replaced(steps: tuple[Step, ...], actions: Mapping[int, Action]) -> tuple[Step, ...]:
    return tuple(replace(step, action=actions.get(k, step.action)) for k, step in enumerate(steps))


def _deciding(
    steps: tuple[Step, ...],
    kinds: Mapping[object, Mapping[int, Compute]],
    found: Evaluation,
    evaluated: Callable[[tuple[Step, ...]], Evaluation],
) -> frozenset[int]:
    """Approximations that decide counts: these are others where errors are as large as the GPU's may be.

    Args:
        steps: all of them.
        kinds: approximations by index, those that are told apart; where none alone decides, all do.
        found: what the steps do.
        evaluated: what others do.
    """

    def decide(some: Mapping[int, Compute], side: int) -> bool:
        near = {k: Compute(action.near[side]) for k, action in some.items()}
        try:
            other = evaluated(_replaced(steps, near))
        except ProblemFileError:  # it takes more steps
            return True
        moved.append(_places(other) != _places(found))
        return other.counts != found.counts or other.doubts.keys() != found.doubts.keys()

    moved: list[bool] = []  # whether something else was accessed, each time
    every = {k: action for some in kinds.values() for k, action in some.items()}
    sides = range(min((len(action.near) for action in every.values()), default=0))
    # Where nothing moves, one way or the other, no chance is to be ruled out.
    side = next((k for k in sides if moved != [False, False] and decide(every, k)), None)
    if side is None:
        return frozenset()
    told_apart = kinds.values() if 1 < len(kinds) <= _MOST_KINDS else ()
    alone = (frozenset(some) for some in told_apart if decide(some, side))
    return frozenset[int]().union(*alone) or frozenset(every)


def _places(found: Evaluation) -> list[bytes]:
    """What the first block accesses, where that is kept."""
    every = (one for executions in found.traces.values() for one in executions)
    return [np.where(one.lanes, one.address, -1).tobytes() for one in every]


class Followed(Struct, frozen=True):
    """What one block of a launch does, executed step by step, values included."""

    evaluation: Evaluation  # of this block alone
    memory: dict[int, Bytes]  # the buffers of the launch afterwards, by their first addresses
    issued: int  # warp instructions
    changed_bytes: int  # of the buffers, with those that became unknown


def follow(
    program: Program, launch: Launch, gpu: Device, block: tuple[int, ...] = (0, 0, 0), *, most_steps: int
) -> Followed:
    """Execute one block of a launch, with all that it computes and writes to global memory.

    Raises:
        ProblemFileError: as `evaluate`.
    """
    given = arguments(program, checked(launch, gpu, program.target))
    slice_ = relevance(program, ("shared", "local", "global"), ("shared", "global"))
    run = _Run(program, slice_, launch, given, gpu, most_steps, Loops(slice_))
    found = Evaluation(program, launch, gpu, traced=True, evaluated_blocks=1)
    machine = run.machine(found, np.array([block], np.int64), follows_global=True)
    run.execute(machine)
    memory = machine.memory.global_memory()
    changed = (memory[base].differs(Bytes(1, len(data), data))[0] for base, data in given.buffers.items())
    return Followed(found, memory, machine.issued, sum(changed) if memory else 0)


class Box(NamedTuple):
    """Blocks from the first to the last index along each axis."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """How many."""
        return math.prod(b - a + 1 for a, b in zip(self.first, self.last, strict=True))

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Of every block, along x first."""
        axes = (range(a, b + 1) for a, b in zip(self.first, self.last, strict=True))
        return (index[::-1] for index in itertools.product(*list(axes)[::-1]))

    def along(self, axis: int, first: int, last: int) -> "Box":
        """The part between two indices along an axis."""
        begin, end = list(self.first), list(self.last)
        begin[axis], end[axis] = first, last
        return Box(tuple(begin), tuple(end))


@dataclass(slots=True)
class _Run:
    """What is evaluated how.

    Attributes:
        loops: of the program.
        tells_apart: what each block does is kept.
        parts: evaluations with the number of blocks that each stands for.
        probed, executed: steps that were spent on boxes, and on blocks.
        end: steps that may be spent on boxes.
        excused: doubts that there are in the first block anyway.
    """

    program: Program
    relevance: Relevance
    launch: Launch
    given: Arguments
    gpu: Device
    most_steps: int
    loops: Loops
    tells_apart: bool = False
    parts: list[tuple[Evaluation, int]] = field(default_factory=list)
    probed: int = 0
    end: int = 0
    executed: int = 0
    excused: frozenset[str] = frozenset()

    def cover(self) -> int:
        """Evaluate all blocks, the first traced, in the first part; how many were executed.

        A box is evaluated as one block. Where that is not enough, it is cut, as long as it is cheaper than to
        execute every block. What is unknown in the first block may be unknown in all of them, and is no
        reason to cut.
        """
        grid = Box((0, 0, 0), tuple(size - 1 for size in self.launch.grid))
        single = grid.blocks == 1
        if not single and self.box(grid, traced=True):
            return 1
        first = self.counted(np.zeros((1, 3), np.int64), traced=True)
        if single:
            self.parts = [(first, 1)]
            return 1
        self.excused = frozenset(first.doubts)
        batch_blocks = self.most_blocks()
        steps_of_all = self.executed * grid.blocks * self.launch.warps // _ROWS_A_STEP
        # How often the steps of the first block may be spent on all others.
        most_times = max(_MOST_TIMES, _FEW_STEPS // max(self.executed, 1))
        most_steps = min(steps_of_all, most_times * self.executed) if self.excused else steps_of_all
        self.end = self.probed + most_steps
        boxes_left = [] if self.excused and self.box(grid) else self._cut(grid)
        blocks_left, boxes_done = sum(box.blocks for box in boxes_left), len(self.parts)
        if self.excused and blocks_left > most_times * batch_blocks:
            first.uncertain(-1, _LIKE_THE_FIRST)
            self.parts.insert(0, (first, blocks_left))
            return boxes_done + 1
        indices = (index for box in boxes_left for index in box.indices())
        while batch := list(itertools.islice(indices, batch_blocks)):
            self.parts.append((self.counted(np.array(batch, np.int64)), 1))
        self.parts.insert(0, (first, 0))  # for its trace: the block is counted among the others
        return boxes_done + blocks_left

    def _cut(self, whole: Box) -> list[Box]:
        """Cut a box until all parts are done or so many steps are spent; what is left then.

        Along each axis it is cut where blocks in the middle of the others begin to differ.
        """
        todo, rest = [whole], []
        while todo:
            box = todo.pop(0)
            ranges = [list(self._alike(box, axis)) for axis in range(3)]
            if all(len(one) == 1 for one in ranges):
                axis = max(range(3), key=lambda k: box.last[k] - box.first[k])
                middle = (box.first[axis] + box.last[axis]) // 2
                ranges[axis] = [(box.first[axis], middle), (middle + 1, box.last[axis])]
            for x, y, z in itertools.product(*ranges):
                part = box.along(0, *x).along(1, *y).along(2, *z)
                if part.blocks <= _FEW_BLOCKS or self.probed >= self.end:
                    rest.append(part)
                elif not self.box(part):
                    todo.append(part)
        return rest

    def _alike(self, box: Box, axis: int) -> Iterator[tuple[int, int]]:
        """First and last index of blocks that do the same along an axis, in the middle of the others.

        From each first block on the last that does the same is sought: all are tried, then twice as many each
        time, then half of what is between the last that does and the first that does not.
        """
        for other in range(3):
            if other != axis:
                middle = (box.first[other] + box.last[other]) // 2
                box = box.along(other, middle, middle)
        first, end = box.first[axis], box.last[axis]
        while first <= end:
            last, differs, tried = first, end + 1, end
            while differs - last > 1:
                if self.probed >= self.end:
                    last = end
                elif self._as_one_block(box.along(axis, first, tried)) is not None:
                    last, tried = tried, min(2 * tried - first + 1, (tried + differs) // 2)
                else:
                    differs, tried = tried, (first + 1 if tried == end else (last + tried) // 2)
            yield first, last
            first = last + 1

    def most_blocks(self) -> int:
        """Blocks that are evaluated at once."""
        bytes_ = 0
        if "shared" in self.relevance.kept:
            bytes_ += _SHARED_COST * self.program.shared_end(self.launch.shared_bytes)
        if "local" in self.relevance.kept:
            bytes_ += _LOCAL_COST * STACK_BYTES * 32 * self.launch.warps
        return max(1, min(MOST_ROWS // self.launch.warps, MOST_BYTES // max(bytes_, 1)))

    def box(self, box: Box, traced: bool = False) -> bool:
        """Evaluate a box as one block, as part of the answer where that is enough; whether it is."""
        found = self._as_one_block(box, traced)
        if found is not None:
            self.parts.append((found, box.blocks))
        return found is not None

    def _as_one_block(self, box: Box, traced: bool = False) -> Evaluation | None:
        """A box evaluated as one block; None where that meets a doubt that is not excused."""
        found = self.counted(np.array([box.first], np.int64), np.array(box.last), traced)
        return found if found.doubts.keys() <= self.excused else None

    def counted(self, blocks: IntArray, last: IntArray | None = None, traced: bool = False) -> Evaluation:
        """Execute some blocks, or, up to those of the `last` index, a box as one block."""
        boxed = last is not None
        excused = self.excused if boxed else frozenset[str]()
        found = Evaluation(self.program, self.launch, self.gpu, traced or self.tells_apart, boxed, excused)
        found.blocks = [tuple(index) for index in blocks.tolist()]
        machine = self.machine(found, blocks, last)
        machine.back = self.loops.anew()
        steps = self.execute(machine)
        self.probed += steps if boxed else 0
        self.executed += 0 if boxed else steps
        return found

    def machine(
        self,
        told: Evaluation,
        blocks: IntArray,
        last: IntArray | None = None,
        follows_global: bool = False,
    ) -> Machine:
        """A machine about to execute some blocks."""
        cells = Registers(self.program, self.launch, self.given, blocks, last)
        return Machine(cells, self.relevance, self.given, told, self.most_steps, follows_global)

    def execute(self, machine: Machine) -> int:
        """Let it execute, and count; the steps that it takes."""
        told = machine.recorder
        try:
            with np.errstate(all="ignore"):  # of floats
                machine.run()
        except Stopped as stop:
            told.doubts.setdefault(str(stop), machine.at)
            told.ended = True
        except TooManySteps as stop:
            advice = "give a larger limit, or a launch with shorter loops"
            more = f"more steps are needed, {stop} comes next; {advice}"
            raise ProblemFileError("--max-steps", more) from None
        told.finish()
        return machine.used


def _not_known(program: Program, needed: Relevance, given: Arguments) -> Iterator[str]:
    """Instructions that are not known and parameters without a value, if what matters reads them."""
    read: set[int] = set()  # bytes of constant bank 0
    for step, matters in zip(needed.steps, needed.matters, strict=True):
        if not matters:
            continue
        read.update(constant_bytes(step))
        if isinstance(step.action, Forget) and step.action.why and not step.action.counts:
            yield f"{step.named} {step.action.why}, and what follows depends on it"
    if program.cluster is None and program.in_clusters:
        yield "how many blocks a cluster has is not known"
    for k in given.missing:
        one = (program.parameters or ())[k]
        begin = program.parameter_base + one.offset
        if not read.isdisjoint(range(begin, begin + one.size)):
            name = one.name or k
            ways = [f"--arg {name}{'' if one.size in (1, 2, 4, 8) else '+BYTE'}=VALUE"]
            if not one.whole:
                ways = [f"--arg +{one.offset}=VALUE --arg +{one.offset + 4}=VALUE"]
            ways += [f"--arg {name}=pointer"] if one.may_point else []
            yield f"parameter {k}{one.of_type} ({one.size} bytes){NOT_GIVEN}{', or '.join(ways)}"
