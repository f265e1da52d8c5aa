"""One warp instruction in detail: which lanes, banks and words meet.

The conflict engine counts millions of instructions; this module shows one, in plain Python, for
people. Where both are used their counts are compared.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from layoutopt.engine.conflicts import Counts
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.hardware.operations import Operation


class Touch(Struct, frozen=True):
    """One word that a lane touches. `word` counts bank words from the start of the tile."""

    lane: int
    word: int
    bank: int


class Served(Struct, frozen=True):
    """One phase, or one request of it, wavefront by wavefront.

    Attributes:
        lanes: active lanes served together.
        passes: what each wavefront serves. Which of a bank's words goes first is not published; here
            it is the word of the lowest lane.
        idle_passes: wavefronts that the hardware adds and that serve nothing.
    """

    lanes: tuple[int, ...]
    passes: tuple[tuple[Touch, ...], ...]
    idle_passes: int

    @property
    def wavefronts(self) -> int:
        """Passes that the lanes take."""
        return len(self.passes) + self.idle_passes

    @property
    def bank(self) -> int:
        """The busiest bank: only such banks serve in the last pass."""
        return min(touch.bank for touch in self.passes[-1])

    @property
    def touches(self) -> list[Touch]:
        """What is touched in the busiest bank, by lane."""
        busiest = self.bank
        there = [touch for served in self.passes for touch in served if touch.bank == busiest]
        return sorted(there, key=lambda touch: (self.lanes.index(touch.lane), touch.word))


def worst_instruction(counts: Counts) -> tuple[int, int]:
    """The most excess of one warp instruction, and the first row that has it; idle rows count as none."""
    over = np.where(counts.phases > 0, counts.wavefronts - counts.ideal, -1)
    row = int(over.argmax())
    return int(over[row]), row


def serve(
    address: Sequence[int], active: Sequence[bool], operation: Operation, device: Device
) -> tuple[Served, ...]:
    """The phases of one warp instruction that have an active lane, with every word that they touch.

    Args:
        address: byte address of each lane.
    """
    rule = device.rule(operation)
    found = []
    for lanes, touches in _requests(address, active, operation, rule):
        passes: list[list[Touch]] = []
        place: dict[tuple[int, ...], int] = {}
        load: dict[int, int] = {}
        for k, t in enumerate(touches):
            row = t.word // rule.row_words
            key = (t.bank, k) if rule.serialises_equal else (t.bank, row)
            if key not in place:
                place[key] = load.get(t.bank, 0)
                load[t.bank] = place[key] + 1
            if place[key] == len(passes):
                passes.append([])
            passes[place[key]].append(t)
        found.append(Served(lanes, tuple(map(tuple, passes)), rule.extra_wavefronts))
    return tuple(found)


def _requests(
    address: Sequence[int], active: Sequence[bool], operation: Operation, rule: PhaseRule
) -> Iterator[tuple[tuple[int, ...], list[Touch]]]:
    """Lanes and touched words of each request that is served on its own."""
    if operation.matrices:
        on = {lane for lane in range(8 * operation.matrices) if any(active)}
    else:
        on = {lane for lane, a in enumerate(active) if a}
    phases = rule.phases
    if rule.merges_pairs and _merges(address, on):
        phases = tuple(a + b for a, b in zip(phases[::2], phases[1::2], strict=True))
    count = max(1, operation.width_bytes // rule.bank_bytes)
    for phase in phases:
        lanes = tuple(lane for lane in phase if lane in on)
        if not lanes:
            continue
        for request in [[k] for k in range(count)] if rule.split_words else [list(range(count))]:
            touches = [
                Touch(lane, word, word % rule.banks)
                for lane in lanes
                for word in (address[lane] // rule.bank_bytes + k for k in request)
            ]
            yield lanes, touches


def _merges(address: Sequence[int], on: set[int]) -> bool:
    return any(
        all(lane ^ bit not in on or address[lane ^ bit] == address[lane] for lane in on) for bit in (1, 2)
    )
