"""One warp instruction in detail: which lanes, banks and words meet.

The conflict engine counts millions of instructions; this module shows one, in plain Python, for
people. Where both are used their counts are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from layoutopt.devices import Device, PhaseRule
from layoutopt.operations import Operation


class Touch(Struct, frozen=True):
    """One word that a lane touches. `word` counts bank words from the start of the tile."""

    lane: int
    word: int
    bank: int


class PhaseWitness(Struct, frozen=True):
    """One phase.

    Attributes:
        lanes: active lanes served together.
        wavefronts: passes that they take.
        bank: the busiest bank.
        touches: what is touched in the busiest bank, by lane.
    """

    lanes: tuple[int, ...]
    wavefronts: int
    bank: int
    touches: tuple[Touch, ...]


def witness(
    address: Sequence[int], active: Sequence[bool], operation: Operation, device: Device
) -> tuple[PhaseWitness, ...]:
    """The phases of one warp instruction that have an active lane.

    Args:
        address: byte address of each lane.
        active: whether the lane takes part.
        operation: the instruction.
        device: whose rules to apply.
    """
    rule = device.rule(operation)
    if operation.matrices:
        on = {lane for lane in range(8 * operation.matrices) if any(active)}
    else:
        on = {lane for lane, a in enumerate(active) if a}
    phases = rule.phases
    if rule.merges_pairs and _merges(address, on):
        phases = tuple(a + b for a, b in zip(phases[::2], phases[1::2], strict=True))
    count = max(1, operation.width_bytes // rule.bank_bytes)
    found = []
    for phase in phases:
        lanes = tuple(lane for lane in phase if lane in on)
        if not lanes:
            continue
        requests = [[k] for k in range(count)] if rule.split_words else [list(range(count))]
        for request in requests:
            touches = [
                Touch(lane, word, word % rule.banks)
                for lane in lanes
                for word in (address[lane] // rule.bank_bytes + k for k in request)
            ]
            found.append(_busiest(lanes, touches, rule))
    return tuple(found)


def _merges(address: Sequence[int], on: set[int]) -> bool:
    return any(
        all(lane ^ bit not in on or address[lane ^ bit] == address[lane] for lane in on) for bit in (1, 2)
    )


def _busiest(lanes: tuple[int, ...], touches: list[Touch], rule: PhaseRule) -> PhaseWitness:
    load: dict[int, list[int]] = {}
    for t in touches:
        load.setdefault(t.bank, []).append(t.word // rule.row_words)
    served = {bank: len(w if rule.serialises_equal else set(w)) for bank, w in load.items()}
    bank = min(served, key=lambda b: (-served[b], b))
    there = tuple(t for t in touches if t.bank == bank)
    return PhaseWitness(lanes, served[bank] + rule.extra_wavefronts, bank, there)
