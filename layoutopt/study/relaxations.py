"""What to give up where no layout is free of conflicts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from layoutopt.accesses.trace import LaneTrace, Trace
from layoutopt.engine.case import Case, case_of
from layoutopt.errors import ProblemFileError
from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.layout import Layout
from layoutopt.model.phases import phase_sets
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Access, GlobalSide
from layoutopt.search.deal import lane_order
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import solve, solve_cases
from layoutopt.study.clash import QUESTION_SHARE, Clashes, names
from layoutopt.study.explanation import Relaxation

# Accesses of a clash beyond which no pairs are tried: each pair is a question or more to the solver.
_MAX_PAIRED: Final = 4
# What global memory moves at least.
_SECTOR_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Relaxations:
    """Each is confirmed by a proof or by a layout before it is told.

    Attributes:
        not_allowed: sentences about what would help, were it not for the constraints.
    """

    case: Case
    clashes: Clashes
    not_allowed: list[str] = field(default_factory=list)

    def of_accesses(
        self, clash: Sequence[Access], others: Sequence[tuple[str, ...]] = ()
    ) -> Iterator[Relaxation]:
        """Accesses to leave out, or to make narrower; two of them where one alone does not help.

        What helps only if constraints are given up with it is told by `not_allowed`.

        Args:
            clash: accesses that cannot all be served.
            others: names of more such accesses.
        """
        helped = False
        for access in clash:
            if (without := self._served((access, None))) is not None:
                yield without
            each = (self._served((access, narrow)) for narrow in self._narrower(access))
            if (narrower := next(filter(None, each), None)) is not None:
                helped = True
                yield narrower
        if not helped:
            involved = {*names(clash), *itertools.chain.from_iterable(others)}
            yield from self._two_narrower([a for a in self.case.lowered.accesses if a.name in involved])

    def _two_narrower(self, involved: Sequence[Access]) -> Iterator[Relaxation]:
        """Two accesses to make narrower together, for each pair the widest that do."""
        for one, other in itertools.combinations(involved[:_MAX_PAIRED], 2):
            for first, second in itertools.product(self._narrower(one), self._narrower(other)):
                if self.clashes.budget.spent:
                    return
                if (found := self._served((one, first), (other, second))) is not None:
                    yield found
                    break

    def _served(self, *changes: tuple[Access, Access | None]) -> Relaxation | None:
        """What to make narrower, or to leave out, if a layout then serves them all without conflicts."""
        changed = {old.name: new for old, new in changes}
        left = [changed.get(access.name, access) for access in self.case.lowered.accesses]
        accesses = [access for access in left if access is not None]
        if not self.clashes.possible(accesses):
            return None
        access = changes[0][0].name
        narrower = [f"`{old.name}` {_in_words(old, new)}" for old, new in changes if new is not None]
        if not self.clashes.allowed(accesses):
            what = f"With {' and '.join(narrower)}" if narrower else f"Without `{access}`"
            self.not_allowed.append(
                f"{what} there is a layout free of conflicts, but none is known that the "
                "constraints of `layout` allow."
            )
            return None
        if not narrower:
            return Relaxation("drop_access", f"without `{access}` a layout free of conflicts exists", access)
        what = f"{' and '.join(narrower)}: a layout free of conflicts exists"
        return Relaxation("narrower", what, access, with_access=next((o.name for o, _ in changes[1:]), None))

    def narrower_with_order(self, clash: Sequence[Access]) -> Iterator[Relaxation]:
        """One access to make narrower, and another order of the lanes of one: where neither helps alone."""
        for access in clash[:_MAX_PAIRED]:
            for narrow in self._narrower(access):
                if self.clashes.budget.spent:
                    return
                accesses = tuple(narrow if a is access else a for a in self.case.lowered.accesses)
                problem = msgspec.structs.replace(self.case.lowered, accesses=accesses)
                case = case_of(problem, self.case.device)
                part = self.clashes.budget.part(QUESTION_SHARE)
                result = solve_cases([case], Ask(part))
                if result.layout is None:
                    continue
                others = Relaxations(case, Clashes(case, self.clashes.budget))
                order = next(others.lane_orders(case.as_bytes(result.layout), clash), None)
                if order is not None:
                    yield msgspec.structs.replace(
                        order,
                        message=f"`{access.name}` {_in_words(access, narrow)} and {order.message}",
                        with_access=access.name,
                    )
                    return

    def _narrower(self, access: Access) -> Iterator[Access]:
        """The access as several narrower ones, the widest first."""
        operation = parse_operation(access.op, access.single_width)
        size = self.case.lowered.tile.element_bytes
        width = operation.width_bytes // 2
        if not operation.does.narrows:
            return
        while width >= max(size, self.case.device.bank_bytes):
            kind = operation.does.short
            *outer, last = access.index
            name = _half(access)
            yield msgspec.structs.replace(
                access,
                op=kind,
                bytes=width,
                index=(*outer, f"({last}) + {name}*{width // size}"),
                loops={**access.loops, name: operation.width_bytes // width},
            )
            width //= 2

    def free_lanes(self, clash: Sequence[Access]) -> Iterator[Relaxation]:
        """Accesses whose threads may handle other pieces, or the same in another order.

        Other pieces are those of whole sectors of global memory, along the dimension along which neighbouring
        lanes lie now.
        """
        problem = self.case.problem
        for access in clash[:_MAX_PAIRED]:
            (number,) = (k for k, a in enumerate(problem.accesses) if a.name == access.name)
            source = problem.accesses[number]
            for what, freed in _freed(source, self._along(number)):
                if self.clashes.budget.spent:
                    return
                accesses = tuple(freed if a is source else a for a in problem.accesses)
                asked = msgspec.structs.replace(problem, accesses=accesses)
                part = self.clashes.budget.part(QUESTION_SHARE)
                try:
                    result = solve(asked, target=self.case.device, budget=part, conflict_free=True)
                except ProblemFileError:
                    continue  # what it covers is no box, or is covered twice
                if result.layout is None:
                    continue
                (index,) = (a.index for a in result.accesses if a.name == access.name)
                yield Relaxation(
                    "free_lanes",
                    f"`{access.name}` {what}: {result.offset} and "
                    f"[{', '.join(index or ())}] have no conflicts",
                    access.name,
                )
                break

    def _along(self, number: int) -> int:
        """The dimension along which the first two lanes of an access lie; else the last."""
        shape = self.case.lowered.tile.shape
        first = self.case.lanes.accesses[number].element[0, :2]
        apart = [d for d, place in enumerate(np.unravel_index(first, shape)) if place[0] != place[-1]]
        return apart[-1] if apart else len(shape) - 1

    def lane_orders(self, layout: Layout, clash: Sequence[Access]) -> Iterator[Relaxation]:
        """Accesses whose lanes, dealt to the phases in another order, leave no conflict at all.

        Orders are sought for the layout found, then for any; the solver says whether one holds. Of
        accesses that clash it must be one.
        """
        tile = self.case.lowered.tile
        for access in self.clashes.budget.while_left(self.case.lanes.accesses):
            rule = self.case.device.rule(access.operation)
            one_order = len(rule.phases) < 2 or access.operation.matrices or rule.serialises_equal
            if one_order or (clash and access.name not in names(clash)):
                continue
            others = Trace(
                tuple(a for a in self.case.lanes.accesses if a is not access), self.case.lanes.weight_unit
            )
            sets = phase_sets(others, tile, self.case.device) if others.accesses else ()
            for table in (layout.table(), None):
                part = self.clashes.budget.part(QUESTION_SHARE)
                order = lane_order(sets, self.case.lanes, tile, access, rule, budget=part, table=table)
                found = self._reordered(access, order) if order is not None else None
                if order is not None and found is not None:
                    lanes = ", ".join(map(str, order))
                    yield Relaxation(
                        "lane_order",
                        f"`{access.name}` with its lanes in another order: {found.offset} has no conflicts "
                        f"if lane k does what lane n does now, for k = 0, 1, ... and n = {lanes}",
                        access.name,
                        order,
                    )
                    break

    def _reordered(self, access: LaneTrace, order: Sequence[int]) -> Result | None:
        """The result with the lanes of `access` in another order; None unless it is free of conflicts."""
        lanes = list(order)
        moved = replace(access, element=access.element[:, lanes], active=access.active[:, lanes])
        changed = Trace(
            tuple(moved if a is access else a for a in self.case.lanes.accesses), self.case.lanes.weight_unit
        )
        part = self.clashes.budget.part(QUESTION_SHARE)
        # Instructions are those of the expressions, which say the lanes' old order.
        layout = msgspec.structs.replace(self.case.asked.layout, minimise="excess")
        case = self.case.constrained(layout).with_lanes(changed)
        result = solve_cases([case], Ask(part, conflict_free=True))
        if result.layout is None or result.excess:
            return None
        return result

    def of_constraints(self) -> Iterator[Relaxation]:
        """Constraints of the file that are in the way."""
        for name, what in (("families", "with every family of layouts"), ("max_bytes", "with more memory")):
            if getattr(self.case.lowered.layout, name) is None:
                continue
            freed = msgspec.structs.replace(self.case.problem.layout, **{name: None})
            problem = msgspec.structs.replace(self.case.problem, layout=freed)
            result = solve(problem, target=self.case.device, budget=self.clashes.budget.part(QUESTION_SHARE))
            if result.layout is not None and result.excess == 0:
                yield Relaxation(name, f"{what}: {result.offset}, {result.bytes:,} bytes, no conflicts")


def _freed(access: Access, along: int) -> Iterator[tuple[str, Access]]:
    """The access with its values free, then its lanes, in words and as it is."""
    operation = parse_operation(access.op, access.single_width)
    if operation.matrices or operation.does.adds or isinstance(access.weight, str):
        return
    if access.loops:
        yield 'with `"values": "free"`', msgspec.structs.replace(access, values="free")
    order = (*(d for d in range(len(access.index)) if d != along), along)
    side = GlobalSide(contiguous=_SECTOR_BYTES, order=order)
    what = f'with `"lanes": "free"`, {_SECTOR_BYTES} bytes along x{along} together'
    yield what, msgspec.structs.replace(access, lanes="free", global_=side)


def _in_words(access: Access, narrow: Access) -> str:
    """`as 2 accesses of 8 bytes each`."""
    width = parse_operation(narrow.op, narrow.single_width).width_bytes
    return f"as {narrow.loops[_half(access)]} accesses of {width} bytes each"


def _half(access: Access) -> str:
    """A loop variable that the access does not use yet."""
    name = "part"
    while name in access.loops:
        name += "_"
    return name
