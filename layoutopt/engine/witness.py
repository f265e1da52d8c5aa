"""One warp instruction in detail: which lanes, banks and words meet.

The conflict engine counts millions of instructions; this module shows one, in plain Python, for
people. Where both are used their counts are compared.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from layoutopt.accesses.lower import with_loops
from layoutopt.accesses.trace import LaneTrace, instruction_at
from layoutopt.engine.case import Case
from layoutopt.engine.conflicts import Counts
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.hardware.operations import Operation


class Touch(Struct, frozen=True):
    """One word that a lane touches. `word` counts bank words from the start of the tile."""

    lane: int
    word: int
    bank: int


class Served(Struct, frozen=True):
    """One phase, or one request of it, wavefront by wavefront."""

    lanes: tuple[int, ...]  # active lanes served together
    # The words that each wavefront serves. Which of a bank's words goes first is not published; here it is
    # the word of the lowest lane
    passes: tuple[tuple[Touch, ...], ...]
    idle_passes: int  # wavefronts that the hardware adds and that serve nothing

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

    def taken(self, rule: PhaseRule, operation: Operation) -> str:
        """`so they take 8 wavefronts`, and how many of them serve nothing, or serve one word of each lane."""
        text = f"so they take {'one wavefront' if self.wavefronts == 1 else f'{self.wavefronts} wavefronts'}"
        text += f", {self.idle_passes} of which serves nothing" if self.idle_passes else ""
        words = operation.width_bytes // rule.bank_bytes if rule.split_words else 1
        return f"{text}, for each of the {words} words of a lane" if words > 1 else text


def worst_instruction(counts: Counts) -> tuple[int, int]:
    """(excess, row) of the first warp instruction that has the most excess; no row without an active lane."""
    excess = np.where(counts.phases > 0, counts.excess, -1)
    row = int(excess.argmax())
    return int(excess[row]), row


def serve(
    address: Sequence[int], active: Sequence[bool], operation: Operation, device: Device
) -> tuple[Served, ...]:
    """The phases of one warp instruction that have an active lane, with every word that they touch.

    Args:
        address: byte address of each lane; of inactive ones, anything.
        active: of each lane, whether it takes part.
        operation: the instruction.
        device: who serves it.
    """
    rule = device.rule(operation)
    served = []
    for lanes, touches in _requests(address, active, operation, rule):
        passes: list[list[Touch]] = []
        # By bank: the pass in which it serves each touch, word, or group of words of one row (Kepler).
        pass_of: dict[int, dict[int, int]] = {}
        for k, touch in enumerate(touches):
            of_bank = pass_of.setdefault(touch.bank, {})
            key = k if rule.serialises_equal else touch.word // rule.row_words
            number = of_bank.setdefault(key, len(of_bank))  # behind all that the bank serves before
            if number == len(passes):
                passes.append([])
            passes[number].append(touch)
        served.append(Served(lanes, tuple(map(tuple, passes)), rule.extra_wavefronts))
    return tuple(served)


def _requests(
    address: Sequence[int], active: Sequence[bool], operation: Operation, rule: PhaseRule
) -> Iterator[tuple[tuple[int, ...], list[Touch]]]:
    """Active lanes, and the words they touch, of each request: a phase, or one word of each of its lanes."""
    if operation.matrices:
        on = {lane for lane in range(8 * operation.matrices) if any(active)}
    else:
        on = {lane for lane, is_active in enumerate(active) if is_active}
    phases = rule.phases
    if rule.merges_pairs and _pairs_agree(address, on):
        phases = tuple(a + b for a, b in zip(phases[::2], phases[1::2], strict=True))
    words = range(max(1, operation.width_bytes // rule.bank_bytes))  # of a lane
    requests = [[k] for k in words] if rule.split_words else [list(words)]
    for phase in phases:
        lanes = tuple(lane for lane in phase if lane in on)
        for request in requests if lanes else ():
            touched = [(lane, address[lane] // rule.bank_bytes + k) for lane in lanes for k in request]
            yield lanes, [Touch(lane, word, word % rule.banks) for lane, word in touched]


def _pairs_agree(address: Sequence[int], on: set[int]) -> bool:
    """Whether all active lanes l and l ^ 1, or all l and l ^ 2, have one address: phases are then merged."""
    return any(
        all(lane ^ bit not in on or address[lane ^ bit] == address[lane] for lane in on) for bit in (1, 2)
    )


class Instruction(Struct, frozen=True):
    """A row of the trace of an access, by their numbers."""

    case: Case
    access: int
    row: int

    @classmethod
    def worst(cls, case: Case, access: int, table: IntArray) -> "Instruction":
        """That of the access with the most excess under byte offsets by row-major index."""
        return cls(case, access, worst_instruction(case.accesses[access].count(table))[1])

    @property
    def lanes(self) -> LaneTrace:
        """What the whole access touches."""
        return self.case.lanes.accesses[self.access]

    @property
    def at(self) -> tuple[int, dict[str, int]]:
        """The warp, and the values of the loops."""
        warps = -(-self.case.problem.threads // self.case.device.lanes)
        return instruction_at(with_loops(self.case.problem).accesses[self.access], self.row, warps)

    @property
    def text(self) -> str:
        """`name, warp w, i = 3`."""
        warp, iteration = self.at
        return ", ".join([self.lanes.name, f"warp {warp}", *(f"{k} = {v}" for k, v in iteration.items())])

    def coordinates(self, lane: int) -> tuple[int, ...]:
        """Of the element that a lane touches first."""
        return self.case.coordinates(int(self.lanes.element[self.row, lane]))

    def addresses(self, table: IntArray) -> list[int]:
        """The byte address of each lane under byte offsets by row-major index."""
        addresses: list[int] = table[self.lanes.element[self.row]].tolist()
        return addresses

    def served(self, table: IntArray) -> tuple[Served, ...]:
        """Each phase, wavefront by wavefront."""
        active = self.lanes.active[self.row].tolist()
        return serve(self.addresses(table), active, self.lanes.operation, self.case.device)

    def worst_phase(self, table: IntArray) -> Served:
        """The phase of the most wavefronts."""
        return max(self.served(table), key=lambda phase: phase.wavefronts)


def place_text(coordinates: tuple[int, ...]) -> str:
    """Coordinates as text."""
    return f"({', '.join(map(str, coordinates))})"
