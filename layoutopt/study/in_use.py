"""A layout that somebody already uses: where it puts every element, and what to say of places in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from layoutopt.accesses.alignment import base_alignment
from layoutopt.accesses.lower import offset_formula, stored, with_loops
from layoutopt.accesses.trace import LaneTrace, instruction_at, trace
from layoutopt.engine.by_hardware import check_direct_loads, descriptors
from layoutopt.engine.case import Case, able_to_count, case_of
from layoutopt.engine.conflicts import Counts
from layoutopt.errors import ExpressionError, LayoutError, ProblemFileError
from layoutopt.expressions.grammar import Node, evaluate
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Descriptor, Result
from layoutopt.problems.types import Problem
from layoutopt.search.dictated import named_candidate

AnyLayout = str | Layout | Result | npt.NDArray[np.integer[Any]]


class InUse:
    """A layout under a problem with one width for each access, counted over elements, packed ones in bits.

    Attributes:
        problem, tile, gpu: what was asked.
        lanes: the trace, lanes that choose in an iteration for each value.
        accesses: the same, each able to count; where lanes choose, over all their values.
        node: the formula, where the layout is one.
        bits: bit offset of every element, by row-major index, int64.
        table: the same in bytes.
        size: bytes to the end of the last element.
        array: bytes that the source declares, where that is known.
        by_hardware: how the hardware reaches the tile by itself, by access; empty where it does not.
        unreached: why it does not reach it; empty where it does.
        counting: the time there is to count what is known only at run time; None for no limit.

    Raises:
        OutOfTime: that was over before the end.
    """

    def __init__(
        self, problem: Problem, layout: AnyLayout | None, gpu: Device, counting: Budget | None = None
    ) -> None:
        self.problem = problem
        self.tile = problem.tile
        self.gpu = gpu
        self.counting = counting
        traced = trace(with_loops(problem), gpu)
        self.lanes, self.accesses = traced, able_to_count(problem, traced, gpu, counting)
        self.node: Node | None = None
        self.bits = self._read(layout)
        self.table = self.bits // 8
        self.size = self.bytes_to(self.bits)
        self.by_hardware: dict[str, Descriptor] = {}
        self.unreached = ""
        try:
            self.by_hardware = descriptors(stored(problem), self.table[:: self.tile.packed])
            check_direct_loads(self.lanes, self.table[:: self.tile.packed])
        except LayoutError as error:
            self.unreached = str(error)
        # Known only for the published layout.
        audits_published = layout is None and problem.layout.offset is None
        self.array = problem.published.bytes if audits_published and problem.published is not None else None

    @cached_property
    def counts(self) -> tuple[Counts, ...]:
        """What every warp instruction costs, access by access."""
        return tuple(access.count(self.table, self.counting) for access in self.accesses)

    @cached_property
    def case(self) -> Case:
        """The problem as those know it who ask about other layouts; only packed elements are traced again."""
        if self.tile.packed > 1:
            return case_of(self.problem, self.gpu)
        return Case(self.problem, self.problem, self.problem, self.gpu, self.lanes, self.accesses)

    def _read(self, layout: AnyLayout | None) -> IntArray:
        """Bit offset of every element by row-major index."""
        field = "layout"
        if layout is None:
            if self.problem.layout.offset is not None:
                layout, field = self.problem.layout.offset, "layout.offset"
            elif self.problem.published is not None:
                layout, field = self.problem.published.offset, "published.offset"
            else:
                raise ProblemFileError("", "no layout to check: no layout.offset and no published.offset")
        if isinstance(layout, Result):
            if layout.layout is None:
                raise ProblemFileError(field, f"a result without a layout: {layout.status}")
            layout = layout.layout
        if isinstance(layout, Layout):
            made_for = layout.shape, layout.element_bytes, layout.packed
            if made_for != (self.tile.shape, self.tile.storage.element_bytes, self.tile.packed):
                raise ProblemFileError(field, f"made for {layout.shape}, not for {self.tile.shape}")
            return 8 * layout.table().ravel() + self._place_in_byte()
        if isinstance(layout, str):
            try:
                self.node = offset_formula(layout, self.tile)
                return self.offsets_of(self.node) * self.tile.element_bits
            except ExpressionError as error:
                where = "" if error.position is None else f" (at {self.at(error.position)})"
                raise ExpressionError(error.reason + where, error.position, field) from None
        if not isinstance(layout, np.ndarray):
            raise ProblemFileError(field, f"expected an expression, a layout or a table, got {layout!r:.40}")
        if layout.shape != self.tile.shape:
            raise ProblemFileError(field, f"expected a table of shape {self.tile.shape}, got {layout.shape}")
        if not np.issubdtype(layout.dtype, np.integer):
            raise ProblemFileError(field, f"expected a table of integers, got {layout.dtype}")
        offsets = layout.astype(np.int64).ravel()
        packed = self.tile.packed
        if (offsets != offsets[::packed].repeat(packed)).any():
            raise ProblemFileError(field, f"the {packed} elements of a byte do not stay together")
        return 8 * offsets + self._place_in_byte()

    def _place_in_byte(self) -> IntArray:
        """Bit of its byte at which each element starts."""
        return np.arange(self.tile.elements) % self.tile.packed * self.tile.element_bits

    def offsets_of(self, node: Node) -> IntArray:
        """Element offset of every element under an expression, by row-major index."""
        grids = {f"x{d}": g for d, g in enumerate(np.indices(self.tile.shape, dtype=np.int64, sparse=True))}
        return np.broadcast_to(evaluate(node, grids), self.tile.shape).ravel()

    def coordinates(self, element: int) -> tuple[int, ...]:
        """Of an element, by row-major index."""
        return tuple(int(c) for c in np.unravel_index(element, self.tile.shape))

    def at(self, element: int) -> str:
        """Coordinates as text."""
        return f"({', '.join(map(str, self.coordinates(element)))})"

    def same_counts(self, offsets: IntArray, counts: Sequence[Counts]) -> bool:
        """Whether a layout costs the same everywhere, is as small, and is as sound."""
        bits = offsets * self.tile.element_bits
        table = bits // 8
        if (np.diff(np.sort(bits)) == 0).any() or self.bytes_to(bits) > self.size:
            return False
        for access in self.lanes.accesses:
            if (bits[access.element] % (8 * access.operation.width_bytes))[access.active].any():
                return False
            for k in range(1, access.width_elements):
                lanes = access.element[access.active]
                if (bits[lanes + k] != bits[lanes] + k * self.tile.element_bits).any():
                    return False
        return all(
            (access.count(table).wavefronts == old.wavefronts).all()
            for access, old in zip(self.accesses, counts, strict=True)
        )

    @property
    def alignment(self) -> int:
        """Bytes of which the base must be a multiple."""
        own = base_alignment(self.lanes, self.gpu, swizzled=False)
        return max(
            [own, *(found.alignment_bytes for found in self.by_hardware.values()), *self._as_dictated()]
        )

    def _as_dictated(self) -> list[int]:
        """The alignment that `layout.must_be` asks for, where this is one of its layouts."""
        if self.problem.layout.must_be is None:
            return []
        lowered, table = stored(self.problem), self.table[:: self.tile.packed]
        same = named_candidate(lowered, table)
        return [same.alignment_bytes] if same else []

    def bytes_to(self, bits: IntArray) -> int:
        """Bytes to the end of the last element."""
        return -(-(int(bits.max()) + self.tile.element_bits) // 8)

    def place(self, access: LaneTrace, row: int) -> str:
        """`name, warp w, i = 3` for an instruction of the trace."""
        (source,) = [a for a in with_loops(self.problem).accesses if a.name == access.name]
        warp, iteration = instruction_at(source, row, -(-self.problem.threads // self.gpu.lanes))
        return f"{access.name}, warp {warp}" + "".join(f", {k} = {v}" for k, v in iteration.items())
