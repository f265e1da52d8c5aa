"""`layoutopt.convert`: a tile from one register layout to another, with the instructions that do it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec
import numpy as np
from msgspec import Meta, Struct

from layoutopt.accesses.array_access import Bases
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import ProblemFileError, VerificationError, under
from layoutopt.expressions.bits import combinations
from layoutopt.expressions.spaces import Span, independent, intersection, sum_of_bits
from layoutopt.files import templates
from layoutopt.files.checks import MAX_ELEMENTS, check_element
from layoutopt.ground import json_data
from layoutopt.ground.budget import current, deadline
from layoutopt.ground.escape import described
from layoutopt.hardware.devices import Device, device
from layoutopt.imports.triton import PARTS
from layoutopt.ownership.instructions import Instruction, instructions
from layoutopt.ownership.linear import Memory, Plan, Room, Side, memory, moves, plans
from layoutopt.ownership.registers import bases_of
from layoutopt.problems.answer import Bound
from layoutopt.problems.types import SCHEMA as PROBLEM_SCHEMA
from layoutopt.problems.types import Name, Tile

Minimise = Literal["bytes", "instructions"]

SCHEMA: Final = "layoutopt.conversion/1"
MAX_REGISTER_BITS: Final = 10
_TOLD: Final = (  # in this order
    "target", "status", "bytes", "wavefronts", "rounds", "layout", "instructions",
    "register_copies", "shuffles",
)  # fmt: skip
_EVERY: Final = "every layout of scratch and every list of instructions"
_NO_LIMIT: Final = 64  # bits of an offset

# The basis vectors of "register", "lane" and "warp", as integers over F2 (see `_vectors`).
Vectors = dict[str, list[int]]


class Conversion(Struct, frozen=True, eq=False):
    """How a tile gets from one register layout to another through shared memory.

    Attributes:
        status: "optimal" (no list of instructions has fewer wavefronts), "feasible", or "infeasible" (not
            within `max_bytes`).
        bytes: of scratch, from an address that is a multiple of 16.
        wavefronts: of all warps, counted at every lane by the conflict engine.
        rounds: times that scratch is filled and read; each has two barriers, the last one.
        instructions: in order.
        register_copies: (to, from): registers of the destination that hold what another one does; where
            there are no instructions, `from` is the source's.
        proof: of the wavefronts.
        shuffles: where no element leaves its warp: how many of all warps, at least, would move them without
            scratch or barriers, each as long as a wavefront; else None.
        target: the GPU.
        layout: coordinate vectors, one for each bit of an element's offset in scratch, the lowest first, then
            one for each bit of the number of its round; coordinates are the XOR of those of the bits set.
            In one round it is Triton's `shared_linear`.
        registers: elements that a thread of the source holds, and of the destination.
        element_bytes: of an element.
        reason: why there is none, where the status says so.
    """

    status: Literal["optimal", "feasible", "infeasible"]
    proof: Bound
    target: str
    registers: tuple[int, int]
    element_bytes: int
    bytes: int = 0
    wavefronts: int = 0
    rounds: int = 0
    instructions: tuple[Instruction, ...] = ()
    register_copies: tuple[tuple[int, int], ...] = ()
    layout: tuple[tuple[int, ...], ...] = ()
    shuffles: int | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The conversion as data, addresses as lists."""
        data = msgspec.to_builtins(self, enc_hook=lambda array: array.tolist())
        for instruction in data["instructions"]:
            del instruction["operation"]
        proof, reason = {"wavefronts": data["proof"]}, {"reason": self.reason} if self.reason else {}
        return {"schema": SCHEMA} | {field: data[field] for field in _TOLD} | {"proof": proof} | reason


class Layouts(Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Who holds which elements, and who wants them."""

    from_: Bases | str
    to: Bases | str
    max_bytes: Annotated[int, Meta(ge=1, description="Of scratch")] | None = None


class ConversionProblem(Struct, frozen=True, forbid_unknown_fields=True, rename={"schema_": "schema"}):
    """A tile to be moved from one register layout to another: the form of a file."""

    name: Name
    tile: Tile
    threads: Annotated[int, Meta(ge=1, le=1024, description="Threads of the block")]
    convert: Layouts
    schema_: Literal["layoutopt.problem/1"] = PROBLEM_SCHEMA
    target: Annotated[str, Meta(description="The GPU, such as sm_90")] = "sm_90"
    notes: str | None = None


def convert(
    *,
    shape: Sequence[int],
    element: str | Mapping[str, Any],
    source: Any,
    destination: Any,
    threads: int,
    target: str | Device = "sm_90",
    max_bytes: int | None = None,
    minimise: Minimise = "bytes",
    time_limit: float | None = None,
) -> Conversion:
    """The instructions that move a tile between two linear register layouts with the fewest wavefronts.

    Args:
        shape: extents of the tile, powers of two.
        element: its type, as in a problem file.
        source: who holds which elements: `register`, `lane` and `warp`, each a list of coordinate vectors,
            one for each bit of the number; coordinates are the XOR of those of the bits that are set. Or a
            layout as Triton, Gluon or CuTe has or prints it (`layoutopt.ownership.registers`).
        destination: who wants which, likewise.
        threads: of the block.
        target: a GPU.
        max_bytes: of scratch.
        minimise: what comes after wavefronts: scratch, then instructions; or instructions, then rounds.
        time_limit: seconds, after which the best so far is the answer; it takes milliseconds.

    Raises:
        ProblemFileError: an argument is wrong; `field` says which.
    """
    gpu = target if isinstance(target, Device) else device(target)
    tile = json_data.convert({"shape": shape, "element": element}, Tile)
    if minimise not in get_args(Minimise):
        expected = " or ".join(get_args(Minimise))
        raise ProblemFileError("minimise", f"expected {expected}, got {described(minimise)}")
    if max_bytes is not None and (not isinstance(max_bytes, int) or max_bytes < 1):
        raise ProblemFileError("max_bytes", f"expected a number of bytes, got {described(max_bytes)}")
    layouts = {"source": source, "destination": destination}
    with deadline(time_limit):
        return _convert(tile, layouts, threads, gpu, max_bytes, minimise)


def convert_data(
    data: Any, more: Sequence[Device] = (), minimise: Minimise = "bytes"
) -> tuple[ConversionProblem, Conversion]:
    """The problem in the data of a file, and its conversion.

    Args:
        data: of a `ConversionProblem`.
        more: devices beside the package's.
        minimise: as for `convert`.

    Raises:
        ProblemFileError: a field is wrong.
    """
    asked = json_data.convert(templates.single(data), ConversionProblem)
    layouts = {"convert.from": asked.convert.from_, "convert.to": asked.convert.to}
    gpu, max_bytes = device(asked.target, more), asked.convert.max_bytes
    return asked, _convert(asked.tile, layouts, asked.threads, gpu, max_bytes, minimise)


def _convert(
    tile: Tile,
    layouts: Mapping[str, Any],
    threads: int,
    gpu: Device,
    max_bytes: int | None,
    minimise: Minimise,
) -> Conversion:
    """Register copies where these do; else the cheapest plan through scratch, its wavefronts counted.

    `layouts`: the source's and the destination's, by the field that gives them.
    """
    by_field = {field: bases_of(given, tile.shape, gpu.lanes, field) for field, given in layouts.items()}
    _check_tile(tile)
    vectors = []
    for field, bases in by_field.items():
        with under(field):
            vectors.append(_vectors(bases, tile.shape, threads, gpu.lanes))
            _check_held(vectors[0], vectors[-1])  # the source holds its own
    source, destination = vectors
    registers = 1 << len(source["register"]), 1 << len(destination["register"])
    made = partial(Conversion, target=gpu.name, registers=registers, element_bytes=tile.element_bytes)
    if copies := _copies_within_threads(source, destination):
        nothing = Bound(0, "nothing moves between threads")
        return made("optimal", nothing, register_copies=copies, shuffles=0)
    return _through_scratch(source, destination, tile, gpu, max_bytes, minimise, made)


def _through_scratch(
    source: Vectors,
    destination: Vectors,
    tile: Tile,
    gpu: Device,
    max_bytes: int | None,
    minimise: Minimise,
    made: Callable[..., Conversion],
) -> Conversion:
    """The cheapest plan through scratch; `made` makes a conversion of what is found."""
    shared, element_bits = memory(gpu), tile.element_bytes.bit_length() - 1
    stored = _stored(source)  # several, by who stores what more than one thread holds
    loaded = Side(
        stores=False,
        registers=tuple(independent(destination["register"])),  # those that repeat others are copied
        lanes=tuple(destination["lane"]),
        warps=tuple(destination["warp"]),
    )
    for side in (*stored, loaded):
        if not any(moves(side, element_bits, shared)):
            no = f"no {'store' if side.stores else 'load'} of {gpu.name}"
            raise ProblemFileError("tile.element", f"{no} that a rule is published for moves such elements")
    lower = _lower_bound(source, loaded, element_bits, shared)
    shuffles = _shuffles(source, destination, tile.element_bytes)
    made = partial(made, proof=Bound(lower, _EVERY), shuffles=shuffles)
    max_bits = (max_bytes >> element_bits).bit_length() - 1 if max_bytes is not None else _NO_LIMIT

    def by_rank() -> Iterator[Plan]:
        """For few instructions, plans that fill `max_bytes` first; else those of little scratch first."""
        for fills in (minimise == "instructions", minimise != "instructions"):
            found = plans(stored, loaded, element_bits, shared, Room(max_bits, fills))
            yield from sorted(found, key=lambda plan: _rank(plan, minimise))

    best = _best(by_rank(), (source["register"], destination["register"]), element_bits, gpu, lower, minimise)
    if best is None:
        why = f"where all lanes of a warp store together, their elements need more than {max_bytes} bytes"
        return made("infeasible", reason=why)
    return made(
        "optimal" if best.wavefronts == lower else "feasible",
        bytes=tile.element_bytes << best.plan.offset_bits,
        wavefronts=best.wavefronts,
        rounds=best.plan.rounds,
        instructions=best.instructions,
        register_copies=_repeated_registers(destination["register"]),
        layout=tuple(tuple(map(int, np.unravel_index(v, tile.shape))) for v in best.plan.offset),
    )


def _rank(plan: Plan, minimise: Minimise) -> tuple[int, ...]:
    """What plans are compared by, the least first; wavefronts are those of the closed form, at least."""
    if minimise == "bytes":
        return plan.wavefronts, plan.offset_bits, plan.instructions
    return plan.wavefronts, plan.instructions, plan.rounds, plan.offset_bits


def _check_tile(tile: Tile) -> None:
    check_element(tile)
    for d, extent in enumerate(tile.shape):
        if extent & (extent - 1):
            raise ProblemFileError(f"tile.shape[{d}]", f"linear layouts have powers of two, not {extent}")
    if tile.elements > MAX_ELEMENTS:
        raise ProblemFileError("tile.shape", f"at most {MAX_ELEMENTS} elements, not {tile.elements}")
    size = tile.element_bytes
    if size & (size - 1) or tile.element_alignment != size:
        expected = "expected aligned elements of 1, 2, 4, 8 or 16 bytes"
        raise ProblemFileError("tile.element", f"{expected}, got {size} bytes")


def _vectors(bases: Bases, shape: tuple[int, ...], threads: int, lanes: int) -> Vectors:
    """The basis vectors as integers: row-major indices, whose bits are those of the coordinates."""
    if len(bases.register) > MAX_REGISTER_BITS:
        raise ProblemFileError("register", f"at most {MAX_REGISTER_BITS} vectors")
    parts = bases.of_block(shape, threads, lanes)
    return {part: [int(np.ravel_multi_index(v, shape)) for v in vectors] for part, vectors in parts.items()}


def _check_held(source: Vectors, destination: Vectors) -> None:
    held = Span(v for part in PARTS for v in source[part])
    for part in PARTS:
        for k, vector in enumerate(destination[part]):
            if vector not in held:
                raise ProblemFileError(f"{part}[{k}]", "wants elements that the source does not hold")


def _stored(source: Vectors) -> list[Side]:
    """The sides that store each element once: where several threads hold it, by registers or lanes first.

    The vectors that repeat what others hold are left out of registers, and None in lanes and warps.
    """
    sides = []
    for first, second in (("register", "lane"), ("lane", "register")):
        span = Span()
        kept = {part: [v if span.add(v) else None for v in source[part]] for part in (first, second, "warp")}
        registers = tuple(v for v in kept["register"] if v is not None)
        lanes, warps = tuple(kept["lane"]), tuple(kept["warp"])
        sides.append(Side(stores=True, registers=registers, lanes=lanes, warps=warps))
    return sides if sides[0] != sides[1] else sides[:1]


def _lower_bound(source: Vectors, loaded: Side, element_bits: int, shared: Memory) -> int:
    """Wavefronts that any list of instructions needs, whatever the layout of scratch.

    A wavefront of a store moves at most a word of every bank, and at most a vector for each lane of its
    phase that holds something of its own. A lane needs all registers filled that it wants
    (`move.wavefronts`), by vectors whose phases take a wavefront each, shared by two where lanes agree.
    Sizes are log2 of bytes.
    """
    lanes = source["lane"]
    element_vectors = independent([*source["register"], *lanes, *source["warp"]])
    stored_bits = len(element_vectors) + element_bits
    moved_bits = [0]  # the most that a wavefront of each kind of store moves
    for (stores, bits), phase in shared.phases.items():
        if stores and bits >= element_bits:
            distinct = independent(sum_of_bits(lanes, mask) for mask in phase.lanes)
            moved_bits.append(bits + len(distinct))
    if True in shared.matrices and element_bits <= 2:  # stmatrix: of each lane, a word
        moved_bits.append(shared.word_bits + len(independent(lanes)))
    store_wavefronts = 1 << max(0, stored_bits - min(shared.wavefront_bits, max(moved_bits)))
    return store_wavefronts + min(move.wavefronts for move in moves(loaded, element_bits, shared))


def _repeated_registers(registers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(to, from) of each register that holds the element of one with a lower number."""
    first: dict[int, int] = {}
    elements = enumerate(combinations(registers).tolist())
    return tuple((i, first[e]) for i, e in elements if first.setdefault(e, i) != i)


def _copies_within_threads(source: Vectors, destination: Vectors) -> tuple[tuple[int, int], ...] | None:
    """(to, from) of every register, if each thread holds all that it wants in the same registers."""
    if any(source[part] != destination[part] for part in ("lane", "warp")):
        return None
    elements = combinations(source["register"]).tolist()
    register_of = {element: i for i, element in reversed([*enumerate(elements)])}  # the lowest one
    wanted = combinations(destination["register"]).tolist()
    if any(element not in register_of for element in wanted):
        return None
    return tuple((i, register_of[element]) for i, element in enumerate(wanted))


def _shuffles(source: Vectors, destination: Vectors, element_bytes: int) -> int | None:
    """Shuffles of 32 bits that at least move what is wanted; None where a warp wants what others hold.

    Registers that every lane holds itself need none, and a shuffle fills one register of all lanes.
    """

    def differences(part: str) -> list[int]:
        return [a ^ b for a, b in zip(source[part], destination[part], strict=True)]

    of_thread = Span(source["register"])
    of_warp = Span([*source["register"], *source["lane"]])
    if any(v not in of_warp for v in (*destination["register"], *destination["lane"], *differences("warp"))):
        return None
    registers = independent(destination["register"])
    moved = 1 << len(registers)
    if all(v in of_thread for v in (*differences("lane"), *differences("warp"))):
        moved -= 1 << len(intersection(registers, independent(source["register"])))
    return -(-moved * element_bytes // 4) << len(destination["warp"])


class _Counted(NamedTuple):
    """A plan as instructions, and the wavefronts of all of them in all warps."""

    plan: Plan
    instructions: tuple[Instruction, ...]
    wavefronts: int


def _best(
    by_rank: Iterator[Plan],
    registers: tuple[Sequence[int], Sequence[int]],
    element_bits: int,
    gpu: Device,
    lower: int,
    minimise: Minimise,
) -> _Counted | None:
    """The plan of fewest wavefronts as counted, the first that meets the bound `lower` at once.

    `registers`: basis vectors of the source's and of the destination's.
    """
    best: _Counted | None = None
    for plan in by_rank:
        counted = _counted(plan, tuple(instructions(plan, registers, element_bits)), gpu)
        if counted.wavefronts < lower:
            raise VerificationError(f"{counted.wavefronts} wavefronts, fewer than the bound {lower}")
        best = min(best or counted, counted, key=lambda one: (one.wavefronts, *_rank(one.plan, minimise)))
        if best.wavefronts == lower or current().spent:
            break
    return best


def _counted(plan: Plan, listed: tuple[Instruction, ...], gpu: Device) -> _Counted:
    """The plan's instructions as the conflict engine counts them; addresses must be aligned."""
    total = 0
    for instruction in listed:
        address, operation = instruction.byte_address, instruction.operation
        if (address[address >= 0] % operation.width_bytes).any():
            raise VerificationError(f"{instruction.op} at an address that is no multiple of its bytes")
        counts = count_wavefronts(np.maximum(address, 0), address >= 0, operation, gpu.rule(operation))
        total += int(counts.wavefronts.sum())
    return _Counted(plan, listed, total)
