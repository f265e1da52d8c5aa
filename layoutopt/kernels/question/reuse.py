"""Bytes of dynamic shared memory that are one array first and another one later.

Instructions use one array where one reads what another wrote, or where they stand in one line of the source.
Two arrays may lie in the same bytes only in turn: whoever uses the one is done before a barrier of the whole
block, behind which the other begins. What was executed by the first block says so.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.kernels.machine.counts import MOST_TRACED_ROWS, Execution
from layoutopt.kernels.machine.evaluate import Evaluation
from layoutopt.kernels.program import Memory, Program

# Copies in bulk and TMA, between shared memory and elsewhere.
_MOVERS = re.compile(r"(?:@\S+\s+)?(?:UBLKCP|UBLKRED|UTMALDG|UTMASTG|UTMAREDG)\b")
_READS = ("load", "ldmatrix", "atomic")
_WRITES = ("store", "stmatrix", "copy", "atomic")


def mover_of(program: Program) -> str | None:
    """The text of an instruction that moves bytes of shared memory as a whole; None where there is none."""
    return next((step.text for step in program.steps if _MOVERS.match(step.text)), None)


def in_turn(evaluation: Evaluation, steps: Sequence[int]) -> list[list[int]]:
    """Steps whose bytes overlap, parted into those that use them in turn; together where that is not sure.

    Args:
        evaluation: of a launch.
        steps: by index.
    """
    traces = [evaluation.traces.get(k, []) for k in steps]
    rows = [sum(len(one.warps) for one in trace) for trace in traces]
    known = all(0 < n <= MOST_TRACED_ROWS for n in rows)
    known = known and not any(evaluation.tallies[k].unknown for k in steps)
    if not known or not evaluation.barriers or mover_of(evaluation.program) is not None:
        return [list(steps)]
    parts = _Parts(evaluation, steps)
    events = sorted(((one.order, n, one) for n, trace in enumerate(traces) for one in trace), key=_order)
    parts.follow(events)
    if any(one.times > 1 for _, _, one in events):
        parts.follow(events)  # what the last round of a loop leaves, the next one may read
    return parts.eras()


def _order(event: tuple[int, int, Execution]) -> int:
    return event[0]


class _Parts:
    """Which steps use one array, and between which barriers each is in use.

    Attributes:
        part: of each step, by place: the place of one that uses the same array.
        live: bool, shape (steps, intervals between barriers): the array of a step is in use.
    """

    def __init__(self, evaluation: Evaluation, steps: Sequence[int]) -> None:
        self.evaluation, self.steps = evaluation, steps
        tallies = [evaluation.tallies[k] for k in steps]
        self.low, high = min(t.low for t in tallies), max(t.high for t in tallies)
        self.part = list(range(len(steps)))
        self.live = np.zeros((len(steps), len(evaluation.barriers) + 1), bool)
        self.writer: IntArray = np.full(high - self.low, -1, np.int64)
        self.written: IntArray = np.zeros(high - self.low, np.int64)
        first: dict[object, int] = {}
        for n in range(len(steps)):
            self.join([n, first.setdefault(self._stands(n), n)])

    def join(self, places: Iterable[int]) -> None:
        """These steps use one array."""
        roots = {self._root(n) for n in places}
        for n in roots:
            self.part[n] = min(roots)

    def follow(self, events: Iterable[tuple[int, int, Execution]]) -> None:
        """Who reads what who wrote."""
        for order, n, execution in events:
            action = self.evaluation.program.steps[self.steps[n]].action
            assert isinstance(action, Memory)
            now = bisect_left(self.evaluation.barriers, order)
            self.live[n, now] = True
            touched = self._touched(execution, action)
            if action.kind in _READS:
                writers = self.writer[touched]
                self.join([n, *np.unique(writers[writers >= 0]).tolist()])
                since = self.written[touched][writers >= 0]
                if since.size:
                    # What was written later in a round is read in the next: in use throughout.
                    begin = 0 if since.max() > now else int(since.min())
                    self.live[n, begin : now + 1 if since.max() <= now else None] = True
            if action.kind in _WRITES:
                self.writer[touched], self.written[touched] = n, now

    def eras(self) -> list[list[int]]:
        """The steps of arrays in use at the same time, in their order in time."""
        eras: list[tuple[BoolArray, list[int]]] = []
        for root in sorted({self._root(n) for n in range(len(self.steps))}):
            mine = [n for n in range(len(self.steps)) if self._root(n) == root]
            live: BoolArray = np.any(self.live[mine], axis=0)
            rest = []
            for other, places in eras:
                if (other & live).any():
                    live, mine = np.logical_or(other, live), [*places, *mine]
                else:
                    rest.append((other, places))
            eras = [*rest, (live, mine)]
        eras.sort(key=lambda era: int(era[0].argmax()))
        return [sorted(self.steps[n] for n in places) for _, places in eras]

    def _root(self, n: int) -> int:
        while self.part[n] != n:
            n = self.part[n]
        return n

    def _touched(self, execution: Execution, action: Memory) -> IntArray:
        lanes = execution.lanes
        if action.operation is not None and action.operation.matrices:
            lanes = lanes & (np.arange(lanes.shape[1]) < 8 * action.operation.matrices)
        first = np.unique(np.broadcast_to(execution.address, lanes.shape)[lanes]) - self.low
        return (first[:, None] + np.arange(action.width_bytes)).ravel()

    def _stands(self, n: int) -> object:
        """What copies of one instruction have in common: line and operation; without lines, lanes."""
        step = self.evaluation.program.steps[self.steps[n]]
        assert isinstance(step.action, Memory)
        if step.place is not None:
            return step.place, step.action.operation
        one = self.evaluation.traces[self.steps[n]][0]
        offsets = np.where(one.lanes, one.address - one.address[one.lanes].min(initial=1 << 62), -1)
        return step.action.operation, offsets.tobytes(), one.warps.tobytes()
