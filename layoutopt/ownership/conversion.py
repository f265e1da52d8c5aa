"""`layoutopt.convert`: a tile from one register layout to another, with the instructions that do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import ProblemFileError, VerificationError
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device, device
from layoutopt.ownership.instructions import Instruction, instructions
from layoutopt.ownership.linear import Memory, Plan, Side, memory, moves, plans
from layoutopt.ownership.spaces import Span, independent
from layoutopt.problems.types import Tile

Vectors = Sequence[Sequence[int]]
Bases = Mapping[str, Vectors]

_PARTS: Final = ("register", "lane", "warp")
SCHEMA: Final = "layoutopt.conversion/1"


@dataclass(frozen=True)
class Bound:
    """What nothing goes below, and over what that is said."""

    lower_bound: int
    scope: str


@dataclass(frozen=True, eq=False)
class Conversion:
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
        within_warps: no element leaves its warp, so that barriers of the warp do, or shuffles.
        target: the GPU.
        reason: why there is none, where the status says so.
    """

    status: Literal["optimal", "feasible", "infeasible"]
    bytes: int
    wavefronts: int
    rounds: int
    instructions: tuple[Instruction, ...]
    register_copies: tuple[tuple[int, int], ...]
    proof: Bound
    within_warps: bool
    target: str
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The conversion as data, addresses as lists."""
        listed = [
            {
                "kind": i.kind,
                "op": i.op,
                "bytes": i.bytes,
                "round": i.round,
                "registers": list(i.registers),
                "byte_address": i.byte_address.tolist(),
            }
            for i in self.instructions
        ]
        found = {
            "schema": SCHEMA,
            "target": self.target,
            "status": self.status,
            "bytes": self.bytes,
            "wavefronts": self.wavefronts,
            "rounds": self.rounds,
            "instructions": listed,
            "register_copies": [list(pair) for pair in self.register_copies],
            "within_warps": self.within_warps,
            "proof": {
                "wavefronts": {"lower_bound": self.proof.lower_bound, "scope": self.proof.scope},
            },
        }
        return found | ({"reason": self.reason} if self.reason else {})


def convert(
    *,
    shape: Sequence[int],
    element: str | Mapping[str, int],
    source: Bases,
    destination: Bases,
    threads: int,
    target: str | Device = "sm_90",
    max_bytes: int | None = None,
    minimise: Literal["bytes", "instructions"] = "bytes",
) -> Conversion:
    """Find the instructions that move a tile between two linear register layouts with the fewest wavefronts.

    Args:
        shape: extents of the tile, powers of two.
        element: its type, as in a problem file.
        source: who holds which elements: `register`, `lane` and `warp`, each a list of coordinate vectors, one
            for each bit of the number; the coordinates of an element are the XOR of those of its bits.
        destination: who wants which, likewise.
        threads: of the block.
        target: a GPU.
        max_bytes: of scratch.
        minimise: what comes after wavefronts: the scratch (then instructions), or the instructions.

    Raises:
        ProblemFileError: an argument is wrong; its `field` says which.
    """
    gpu = target if isinstance(target, Device) else device(target)
    tile = Tile(tuple(shape), element)
    element_bits = _bits(tile.element_bytes, "element")
    sides = [
        _vectors(bases, tile.shape, threads, gpu.lanes, field)
        for bases, field in ((source, "source"), (destination, "destination"))
    ]
    _check_held(*sides)
    if copies := _copies_within_threads(*sides):
        bound = Bound(0, "nothing moves between threads")
        return Conversion("optimal", 0, 0, 0, (), copies, bound, True, gpu.name)
    shared = memory(gpu)
    wanted = _wanted(sides[1])
    lower = _lower_bound(sides[0], wanted, element_bits, shared)
    bound = Bound(lower, "every layout of scratch and every list of instructions")
    room = (max_bytes >> element_bits).bit_length() - 1 if max_bytes is not None else 64
    best: Plan | None = None
    for plan in plans(_stored(sides[0]), wanted, element_bits, shared, room):
        if best is None or _rank(plan, minimise) < _rank(best, minimise):
            best = plan
    within = _within_warps(*sides)
    if best is None:
        why = f"a round needs the elements of all lanes in more than {max_bytes} bytes"
        return Conversion("infeasible", 0, 0, 0, (), (), bound, within, gpu.name, why)
    listed = tuple(instructions(best, (sides[0]["register"], sides[1]["register"]), element_bits))
    wavefronts = _count(listed, gpu)
    if wavefronts < lower:
        raise VerificationError(f"{wavefronts} wavefronts, fewer than the bound {lower}")
    return Conversion(
        "optimal" if wavefronts == lower else "feasible",
        tile.element_bytes << best.offset_bits,
        wavefronts,
        best.rounds,
        listed,
        _repeats(sides[1]["register"]),
        bound,
        within,
        gpu.name,
    )


def _rank(plan: Plan, minimise: str) -> tuple[int, int, int]:
    """What is compared after the conflict engine's own count: it agrees with `plan.wavefronts`."""
    later = (plan.offset_bits, plan.instructions)
    return (plan.wavefronts, *(later if minimise == "bytes" else later[::-1]))


def _bits(value: int, field: str) -> int:
    if value & (value - 1) or value > 16:
        raise ProblemFileError(field, f"expected 1, 2, 4, 8 or 16 bytes, got {value}")
    return value.bit_length() - 1


def _vectors(
    bases: Bases, shape: tuple[int, ...], threads: int, lanes: int, field: str
) -> dict[str, list[int]]:
    """The basis vectors as integers: the bits of the coordinates, the last dimension's lowest."""
    for d, extent in enumerate(shape):
        if extent & (extent - 1):
            raise ProblemFileError(f"shape[{d}]", f"linear layouts need powers of two, got {extent}")
    unknown = sorted(set(bases) - set(_PARTS))
    if unknown:
        raise ProblemFileError(f"{field}.{unknown[0]}", f"expected {', '.join(_PARTS)}")
    found: dict[str, list[int]] = {}
    for part in _PARTS:
        found[part] = []
        for k, vector in enumerate(bases.get(part, ())):
            if len(vector) != len(shape) or any(
                not 0 <= x < extent for x, extent in zip(vector, shape, strict=False)
            ):
                raise ProblemFileError(
                    f"{field}.{part}[{k}]", f"expected coordinates within {list(shape)}, got {list(vector)}"
                )
            packed = 0
            for x, extent in zip(vector, shape, strict=True):
                packed = packed * extent + int(x)
            found[part].append(packed)
    for part, count in (("lane", lanes), ("warp", threads // lanes)):
        if 1 << len(found[part]) != count:
            raise ProblemFileError(
                f"{field}.{part}",
                f"expected {max(count, 1).bit_length() - 1} vectors for {count} {part}s, got {len(found[part])}",
            )
    return found


def _check_held(source: dict[str, list[int]], destination: dict[str, list[int]]) -> None:
    held = Span(v for part in _PARTS for v in source[part])
    for part in _PARTS:
        for k, vector in enumerate(destination[part]):
            if vector not in held:
                raise ProblemFileError(f"destination.{part}[{k}]", "wants elements that the source does not hold")


def _stored(source: dict[str, list[int]]) -> list[Side]:
    """Each element is stored once: whose registers, lanes or warps repeat others leaves a choice."""
    sides = []
    for first, second in (("register", "lane"), ("lane", "register")):
        span = Span()
        kept = {part: [span.add(v) for v in source[part]] for part in (first, second, "warp")}
        sides.append(
            Side(
                True,
                tuple(v for v, k in zip(source["register"], kept["register"], strict=True) if k),
                *(
                    tuple(v if k else None for v, k in zip(source[part], kept[part], strict=True))
                    for part in ("lane", "warp")
                ),
            )
        )
    return sides if sides[0] != sides[1] else sides[:1]


def _wanted(destination: dict[str, list[int]]) -> Side:
    registers = independent(destination["register"])
    return Side(False, tuple(registers), tuple(destination["lane"]), tuple(destination["warp"]))


def _lower_bound(
    source: dict[str, list[int]], wanted: Side, element_bits: int, shared: Memory
) -> int:
    """Wavefronts that any list of instructions needs, whatever the layout of scratch.

    A wavefront of a store moves at most a word of every bank, and at most a vector for each lane of its
    phase that holds something of its own. A lane that wants 2**r elements needs as many registers filled,
    by vectors whose phases take a wavefront each, shared by two where lanes agree.
    """
    lanes = source["lane"]
    held = len(independent([*source["register"], *lanes, *source["warp"]]))
    most = 0
    for (stores, bits), phase in shared.phases.items():
        if stores and bits >= element_bits:
            distinct = independent(_sum_of(lanes, mask) for mask in phase.lanes)
            most = max(most, min(shared.line_bits, bits + len(distinct)))
    if True in shared.matrices and element_bits <= 2:
        most = max(most, min(shared.line_bits, shared.word_bits + len(independent(lanes))))
    stored = max(1, 1 << max(0, held + element_bits - most))
    return stored + min(move.wavefronts for move in moves(wanted, element_bits, shared))


def _sum_of(vectors: Sequence[int], mask: int) -> int:
    total = 0
    for i, vector in enumerate(vectors):
        total ^= vector if mask >> i & 1 else 0
    return total


def _repeats(registers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(to, from) of each register that holds what one with a lower number does."""
    first: dict[int, int] = {}
    places = [0]
    for vector in registers:
        places += [p ^ vector for p in places]
    return tuple((i, first[p]) for i, p in enumerate(places) if first.setdefault(p, i) != i)


def _copies_within_threads(
    source: dict[str, list[int]], destination: dict[str, list[int]]
) -> tuple[tuple[int, int], ...] | None:
    """(to, from) of every register, where all threads hold what they want in the same ones."""
    if any(source[part] != destination[part] for part in ("lane", "warp")):
        return None
    places = {0: 0}
    for i, vector in enumerate(source["register"]):
        places |= {p ^ vector: n | 1 << i for p, n in reversed(places.items()) if p ^ vector not in places}
    wanted = [0]
    for vector in destination["register"]:
        wanted += [p ^ vector for p in wanted]
    if any(p not in places for p in wanted):
        return None
    return tuple((i, places[p]) for i, p in enumerate(wanted))


def _within_warps(source: dict[str, list[int]], destination: dict[str, list[int]]) -> bool:
    """Whether every warp holds all that it wants."""
    held = Span([*source["register"], *source["lane"]])
    apart = (a ^ b for a, b in zip(source["warp"], destination["warp"], strict=True))
    return all(v in held for v in (*destination["register"], *destination["lane"], *apart))


def _count(listed: Sequence[Instruction], gpu: Device) -> int:
    """Wavefronts by the conflict engine."""
    by_operation: dict[Any, list[IntArray]] = {}
    for instruction in listed:
        by_operation.setdefault(instruction.operation, []).append(instruction.byte_address)
    total = 0
    for operation, addresses in by_operation.items():
        address = np.concatenate(addresses)
        active = address >= 0
        total += int(count_wavefronts(np.maximum(address, 0), active, operation, gpu).wavefronts.sum())
    return total
