"""Which accesses cannot all be served without conflicts, and what to change or to give up so that they can.

Each is asked of proofs and of the solver, and confirmed by a proof or by a layout before it is told.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.accesses.lower import with_widths
from layoutopt.accesses.trace import LaneTrace, Trace, trace
from layoutopt.engine.case import Case
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.layout import Layout
from layoutopt.model.phases import phase_sets
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Access, Constraints, GlobalSide, Problem
from layoutopt.proof.board import subject_of
from layoutopt.proof.reasons import BY_HAND, Search, every_layout
from layoutopt.search.deal import lane_order
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import solve, solve_cases

# Accesses beyond which no smallest clash is looked for: each is one question to the solver.
_MAX_CLASH: Final = 16
# Accesses of a clash beyond which no pairs are tried: each pair is a question or more to the solver.
_MAX_PAIRED: Final = 4
# Share of the time left that each question may use.
QUESTION_SHARE: Final = 0.25
# What global memory moves at least.
_SECTOR_BYTES: Final = 32


class Relaxation(Struct, frozen=True):
    """Something to change or to give up, after which a layout without conflicts exists.

    Attributes:
        kind: edit, drop_access, narrower, lane_order, free_lanes, families or max_bytes.
        access: what it concerns, if an access.
        with_access: the access to make narrower with it, where one change alone does not help.
        message: for people.
        order: of a lane_order: lane k is to do what lane order[k] does now, in every warp.
    """

    kind: str
    message: str
    access: str | None = None
    order: tuple[int, ...] = ()
    with_access: str | None = None


@dataclass(frozen=True, slots=True)
class Relaxations:
    """Questions about a case and about subsets of its accesses, each asked once.

    Attributes:
        case: lanes of which none choose at run time.
        budget: the time there is for all questions.
        not_allowed: sentences about what would help, were it not for the constraints.
    """

    case: Case
    budget: Budget
    not_allowed: list[str] = field(default_factory=list)
    _answers: dict[bytes, bool | None] = field(default_factory=dict)

    @property
    def accesses(self) -> tuple[Access, ...]:
        """All accesses, over bytes."""
        return self.case.lowered.accesses

    # What clashes ------------------------------------------------------------------------------

    def smallest(self, accesses: Sequence[Access]) -> tuple[list[Access], bool]:
        """Of accesses that cannot all be served, some that cannot; and whether each is needed for that.

        What stays open while other accesses are still there may be decided once they are gone.
        """
        kept = list(accesses)
        if len(kept) > _MAX_CLASH:
            return kept, False
        for access in kept:
            if self.possible([access]) is False:
                return [access], True
        open_, before = list(kept), len(kept) + 1
        while open_ and len(kept) < before:
            before, asked, open_ = len(kept), open_, []
            for access in asked:
                rest = [a for a in kept if a is not access]
                verdict = self.possible(rest)
                if verdict is False:
                    kept = rest
                elif verdict is None:
                    open_.append(access)
        return kept, not open_

    def others(self, clash: Sequence[Access]) -> list[tuple[str, ...]]:
        """What still clashes with one access of `clash` left out."""
        rests = ([a for a in self.accesses if a is not access] for access in clash)
        found = [names(self.smallest(rest)[0]) for rest in rests if self.possible(rest) is False]
        return list(dict.fromkeys(found))

    def possible(self, accesses: Sequence[Access]) -> bool | None:
        """Whether a layout without conflicts exists for these accesses alone; None where that is open."""
        key = msgspec.json.encode(accesses)
        if key not in self._answers:
            try:
                self.budget.check()
                self._answers[key] = self._asked(accesses)
            except OutOfTime:
                return None
        return self._answers[key]

    def _asked(self, accesses: Sequence[Access]) -> bool | None:
        smaller, lanes = self._alone(accesses, families=None, max_bytes=None)
        if lanes is None:
            return True
        subject = subject_of(smaller.tile, self.case.device, lanes)
        for reason in BY_HAND:
            if reason.find(subject, Search(self.budget)) is not None:
                return False
            self.budget.check()
        part = self.budget.part(QUESTION_SHARE)
        result = solve(smaller, target=self.case.device, budget=part, conflict_free=True)
        if result.has_layout or result.proof.excess.lower_bound:
            return result.has_layout
        general = every_layout(smaller.tile, self.case.device, lanes, Search(part), enough=1)
        if general.bound:
            return False
        return True if general.free is not None and general.free.excess == 0 else None

    def _allowed(self, accesses: Sequence[Access]) -> bool:
        """Whether such a layout, which may exist, is known among those that the constraints allow."""
        layout = self.case.lowered.layout
        if layout == Constraints(minimise=layout.minimise):
            return True
        try:
            smaller, lanes = self._alone(accesses, minimise="excess")
        except (OutOfTime, ProblemFileError):
            return False
        return lanes is None or self._solved(smaller) is not None

    def _alone(self, accesses: Sequence[Access], **constraints: Any) -> tuple[Problem, Trace | None]:
        """The problem of these accesses under other constraints, and their lanes, if any takes part.

        What an access weighs does not change whether it can be served.
        """
        equal = tuple(msgspec.structs.replace(access, weight=1) for access in accesses)
        layout = msgspec.structs.replace(self.case.lowered.layout, **constraints)
        problem = msgspec.structs.replace(self.case.lowered, accesses=equal, layout=layout)
        lanes = trace(problem, self.case.device, self.budget) if accesses else None
        return problem, lanes if lanes is not None and lanes.taking_part else None

    def _solved(self, problem: Problem) -> Result | None:
        """A layout without conflicts, if one is found in a share of the time."""
        part = self.budget.part(QUESTION_SHARE)
        try:
            result = solve(problem, target=self.case.device, budget=part, conflict_free=True)
        except ProblemFileError:
            return None  # a constraint contradicts what an access becomes, or free lanes cover no box
        return result if result.has_layout else None

    def of_constraints(self) -> Iterator[Relaxation]:
        """Constraints of the file that are in the way."""
        problem = self.case.problem
        for name, what in (("families", "with every family of layouts"), ("max_bytes", "with more memory")):
            if getattr(problem.layout, name) is not None:
                freed = msgspec.structs.replace(problem.layout, **{name: None})
                result = self._solved(msgspec.structs.replace(problem, layout=freed))
                if result is not None:
                    found = f"{result.offset}, {result.bytes:,} bytes, no conflicts"
                    yield Relaxation(name, f"{what}: {found}")

    # Accesses left out, or narrower ------------------------------------------------------------

    def of_accesses(
        self, clash: Sequence[Access], others: Sequence[tuple[str, ...]] = ()
    ) -> Iterator[Relaxation]:
        """Accesses to leave out, or to make narrower; two of them where one alone does not help.

        What helps only if constraints are given up with it is told by `not_allowed`.

        Args:
            clash: accesses that cannot all be served.
            others: names of more such accesses.
        """
        helped: list[Relaxation] = []
        for access in clash:
            yield from self._first([[(access, None)]])
            narrower = list(self._first([(access, narrow)] for narrow in self._narrower(access)))
            helped += narrower
            yield from narrower
        if helped:
            return
        names_of = {*names(clash), *itertools.chain.from_iterable(others)}
        involved = [access for access in self.accesses if access.name in names_of][:_MAX_PAIRED]
        for one, other in itertools.combinations(involved, 2):  # the widest two that do
            pairs = itertools.product(self._narrower(one), self._narrower(other))
            yield from self._first([(one, a), (other, b)] for a, b in self.budget.while_left(pairs))

    def _first(self, changes: Iterable[Sequence[tuple[Access, Access | None]]]) -> Iterator[Relaxation]:
        """The first of some changes, each of accesses to replace or to leave out, that helps."""
        yield from itertools.islice(filter(None, map(self._served, changes)), 1)

    def _served(self, changes: Sequence[tuple[Access, Access | None]]) -> Relaxation | None:
        """What to make narrower, or to leave out, if a layout then serves them all without conflicts."""
        changed = {old.name: new for old, new in changes}
        left = [changed.get(access.name, access) for access in self.accesses]
        accesses = [access for access in left if access is not None]
        if not self.possible(accesses):
            return None
        access, *others = (old.name for old, _ in changes)
        narrower = " and ".join(_in_words(old, new) for old, new in changes if new is not None)
        if not self._allowed(accesses):
            what = f"With {narrower}" if narrower else f"Without `{access}`"
            self.not_allowed.append(
                f"{what} there is a layout free of conflicts, but none is known that the "
                "constraints of `layout` allow."
            )
            return None
        if not narrower:
            return Relaxation("drop_access", f"without `{access}` a layout free of conflicts exists", access)
        text = f"{narrower}: a layout free of conflicts exists"
        return Relaxation("narrower", text, access, with_access=others[0] if others else None)

    def _narrower(self, access: Access) -> Iterator[Access]:
        """The access as several narrower ones, the widest first."""
        operation = parse_operation(access.op, access.single_width)
        for width in narrower_widths(access, self.case):
            widths = (operation.width_bytes, width)
            source = msgspec.structs.replace(access, op=operation.does.short, bytes=widths)
            alone = msgspec.structs.replace(self.case.lowered, accesses=(source,))
            yield from with_widths(alone, {access.name: width}).accesses

    # Other lanes -------------------------------------------------------------------------------

    def free_lanes(self, clash: Sequence[Access]) -> Iterator[Relaxation]:
        """Accesses whose threads may handle other pieces, or the same in another order.

        Other pieces are those of whole sectors of global memory, along the dimension along which neighbouring
        lanes lie now.
        """
        problem = self.case.problem
        for access in clash[:_MAX_PAIRED]:
            (number,) = (k for k, a in enumerate(problem.accesses) if a.name == access.name)
            source = problem.accesses[number]
            for what, freed in self.budget.while_left(_freed(source, self._along(number))):
                accesses = tuple(freed if a is source else a for a in problem.accesses)
                asked = msgspec.structs.replace(problem, accesses=accesses)
                result = self._solved(asked)
                if result is not None:
                    (index,) = (a.index for a in result.accesses if a.name == access.name)
                    chosen = f"{result.offset} and [{', '.join(index or ())}] have no conflicts"
                    yield Relaxation("free_lanes", f"`{access.name}` {what}: {chosen}", access.name)
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
        tile, lanes = self.case.lowered.tile, self.case.lanes
        for access in self.budget.while_left(lanes.accesses):
            rule = self.case.device.rule(access.operation)
            one_order = len(rule.phases) < 2 or access.operation.matrices or rule.serialises_equal
            if one_order or (clash and access.name not in names(clash)):
                continue
            others = Trace(tuple(a for a in lanes.accesses if a is not access), lanes.weight_unit)
            sets = phase_sets(others, tile, self.case.device) if others.accesses else ()
            for table in (layout.table(), None):
                part = self.budget.part(QUESTION_SHARE)
                order = lane_order(sets, lanes, tile, access, rule, budget=part, table=table)
                found = self._reordered(access, order) if order is not None else None
                if order is not None and found is not None:
                    message = (
                        f"`{access.name}` with its lanes in another order: {found.offset} has no conflicts "
                        "if lane k does what lane n does now, for k = 0, 1, ... and "
                        f"n = {', '.join(map(str, order))}"
                    )
                    yield Relaxation("lane_order", message, access.name, order)
                    break

    def _reordered(self, access: LaneTrace, order: Sequence[int]) -> Result | None:
        """The result with the lanes of `access` in another order; None unless it is free of conflicts."""
        lanes, whole = list(order), self.case.lanes
        moved = replace(access, element=access.element[:, lanes], active=access.active[:, lanes])
        changed = Trace(tuple(moved if a is access else a for a in whole.accesses), whole.weight_unit)
        # Instructions are those of the expressions, which say the lanes' old order.
        layout = msgspec.structs.replace(self.case.asked.layout, minimise="excess")
        case = self.case.constrained(layout).with_lanes(changed)
        result = solve_cases([case], Ask(self.budget.part(QUESTION_SHARE), conflict_free=True))
        return None if result.layout is None or result.excess else result


def names(accesses: Sequence[Access]) -> tuple[str, ...]:
    """The names of accesses."""
    return tuple(a.name for a in accesses)


def narrower_widths(access: Access, case: Case) -> list[int]:
    """Half the width of an access, and so on, in bytes: no less than an element or what a bank has."""
    operation = parse_operation(access.op, access.single_width)
    least = max(case.lowered.tile.element_bytes, case.device.bank_bytes)
    halves = (operation.width_bytes >> k for k in range(1, operation.width_bytes.bit_length()))
    return [width for width in halves if width >= least and operation.does.narrows]


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
    """`name` as 2 accesses of 8 bytes each."""
    before, width = parse_operation(access.op, access.single_width).width_bytes, narrow.single_width or 1
    return f"`{access.name}` as {before // width} accesses of {width} bytes each"
