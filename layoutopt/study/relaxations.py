"""Which accesses cannot all be served without conflicts, and what to change in the file to have fewer.

Each is a question about the problem as it would be, asked of proofs and of the solver in a share of the time,
and told only with a proof or a layout.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.instructions import with_free_instructions
from layoutopt.accesses.lower import MAX_WIDTH_CHOICES
from layoutopt.accesses.trace import trace
from layoutopt.engine.case import Case, case_of_result
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import OutOfTime, checkpoint, current, spending, unhurried
from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Result
from layoutopt.problems.text import instruction_text
from layoutopt.problems.types import Access, Constraints, GlobalSide, Problem, constrained
from layoutopt.proof.board import subject_of
from layoutopt.proof.reasons import BY_HAND, Extent, every_layout
from layoutopt.search.block import solve

# Accesses beyond which no smallest clash is looked for: each is one question to the solver.
_MAX_CLASH: Final = 16
# Accesses whose lanes are left free, one after the other: each is a question or two.
_MAX_FREED: Final = 4
# Share of the time left that each question may use, and that those about widths and instructions may.
_QUESTION_SHARE: Final = 0.25
_CHOICE_SHARE: Final = 0.5
# What global memory moves at least.
_SECTOR_BYTES: Final = 32


class Relaxation(Struct, frozen=True):
    """Something to change or to give up, with fewer conflicts after it.

    Attributes:
        kind: drop_access, narrower, instructions, free_lanes, families, max_bytes or stages.
        access: what it concerns, if an access.
        with_access: the access to make narrower with it.
        message: for people.
    """

    kind: str
    message: str
    access: str | None = None
    with_access: str | None = None


class Relaxations(Struct, frozen=True):
    """Questions about a case, and about subsets of its accesses, each of these asked once.

    Attributes:
        case: lanes of which none choose at run time, but for `of_constraints`.
    """

    case: Case
    _answers: dict[tuple[str, ...], bool | None] = {}

    @property
    def accesses(self) -> tuple[Access, ...]:
        """All accesses, over bytes."""
        return self.case.lowered.accesses

    # What clashes ------------------------------------------------------------------------------

    def smallest(self, accesses: Sequence[Access]) -> tuple[list[Access], bool]:
        """A clash: accesses that no layout serves together, and whether it is minimal.

        An access whose need the solver could not decide in time is tried again once others are gone.
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
        rests = map(self._without, clash)
        found = [names(self.smallest(rest)[0]) for rest in rests if self.possible(rest) is False]
        return list(dict.fromkeys(found))

    def _without(self, access: Access) -> list[Access]:
        return [a for a in self.accesses if a is not access]

    def possible(self, accesses: Sequence[Access]) -> bool | None:
        """Whether any layout is free of conflicts for these accesses alone; None where that is open."""
        key = names(accesses)
        if key not in self._answers:
            try:
                checkpoint()
                self._answers[key] = self._asked(accesses)
            except OutOfTime:
                return None
        return self._answers[key]

    def _asked(self, accesses: Sequence[Access]) -> bool | None:
        """Whether some layout at all serves these accesses without conflicts; None where that stays open."""
        smaller = self._alone(accesses, families=None, max_bytes=None)
        lanes = trace(smaller, self.case.device) if accesses else None
        if lanes is None or not lanes.taking_part:
            return True
        subject = subject_of(smaller.tile, self.case.device, lanes)
        for reason in BY_HAND:
            if reason.find(subject, Extent()) is not None:
                return False
            checkpoint()
        with spending(current().part(_QUESTION_SHARE)):
            result = solve(smaller, target=self.case.device, conflict_free=True, time_limit=None)
            if result.has_layout or result.proof.excess.lower_bound:
                return result.has_layout
            general = every_layout(smaller.tile, self.case.device, lanes, Extent(), enough=1)
        if general.bound:
            return False
        return True if general.free is not None and general.free.excess == 0 else None

    def _alone(self, accesses: Sequence[Access], **constraints: Any) -> Problem:
        """The problem of these accesses; what one weighs does not change whether it can be served."""
        equal = tuple(replace(access, weight=1) for access in accesses)
        return constrained(replace(self.case.lowered, accesses=equal), **constraints)

    # What to give up ---------------------------------------------------------------------------

    def of_constraints(self) -> Iterator[Relaxation]:
        """Constraints of the file that are in the way."""
        problem = self.case.problem
        for name, what in (("families", "with every family of layouts"), ("max_bytes", "with more memory")):
            if getattr(problem.layout, name) is not None:
                result = self._free_of_conflicts(constrained(problem, **{name: None}))
                if result is not None:
                    found = f"{result.offset}, {result.bytes:,} bytes, no conflicts"
                    yield Relaxation(name, f"{what}: {found}")

    def left_out(self, clash: Sequence[Access]) -> Iterator[Relaxation]:
        """Accesses of a clash to leave out, where a layout that the constraints allow serves the others."""
        for access in clash:
            rest = self._without(access)
            if not self.possible(rest):
                continue
            asked = self._alone(rest, minimise="excess")
            free = not rest or asked.layout == Constraints(minimise="excess")
            if free or self._free_of_conflicts(asked) is not None:
                text = f"without `{access.name}` a layout free of conflicts exists"
                yield Relaxation("drop_access", text, access.name)

    # What to write into the file ---------------------------------------------------------------

    def choices(self, result: Result, clash: Sequence[str] = ()) -> Iterator[Relaxation]:
        """What a file may leave to the solver and this one does not, where that has fewer wavefronts.

        Where there are no conflicts, other instructions may still save.

        Args:
            result: the best that is known, of `case.problem`.
            clash: names of the accesses whose lanes may be free; none for those with conflicts.
        """
        if result.layout is None or self.case.chooses:
            return
        if result.excess:
            yield from self.narrower(result.layout)
        yield from self.instructions(result.layout)
        if result.excess:
            yield from self.free_lanes(clash or [access.name for access in result.accesses if access.excess])

    def narrower(self, layout: Layout) -> Iterator[Relaxation]:
        """Narrower accesses with fewer wavefronts in all."""
        asked = self.case.asked
        widths = {a.name: some for a in asked.accesses if len(some := self._widths(a)) > 1}
        while math.prod(map(len, widths.values())) > MAX_WIDTH_CHOICES:
            widths.popitem()
        if not widths:
            return
        accesses = (replace(a, bytes=widths.get(a.name, a.bytes)) for a in asked.accesses)
        open_ = replace(asked, accesses=tuple(accesses))
        if (better := self._fewer(open_, layout)) is None:
            return
        chosen, offset, before, after = better
        less = [name for name, some in widths.items() if chosen.widths[name] != some[0]]
        if less:
            typed = " and ".join(f'"bytes": [{widths[n][0]}, {chosen.widths[n]}] for `{n}`' for n in less)
            text = f"{typed}: {before - after:,g} fewer wavefronts, {offset}"
            yield Relaxation("narrower", text, less[0], less[1] if len(less) > 1 else None)

    def _widths(self, access: Access) -> tuple[int, ...]:
        """The width of an access and those below it that serve it as well, in bytes.

        That is half the width, and so on: no less than an element or what a bank has.
        """
        if not isinstance(access.bytes, int):
            return ()
        operation = parse_operation(access.op, access.bytes)
        if not (operation.does.by_pointer and operation.does.narrows):
            return ()
        least = max(self.case.lowered.tile.element_bytes, self.case.device.bank_bytes)
        halves = (access.bytes >> k for k in range(1, access.bytes.bit_length()))
        return (access.bytes, *(width for width in halves if width >= least))

    def instructions(self, layout: Layout) -> Iterator[Relaxation]:
        """Instructions with fewer wavefronts in all, of accesses whose own are given."""
        case, asked = self.case, with_free_instructions(self.case.problem)
        if asked is None or case.chooses or (better := self._fewer(asked, layout)) is None:
            return
        chosen, _, before, after = better
        accesses = zip(case.problem.accesses, asked.accesses, chosen.asked.accesses, strict=True)
        told = [
            f"`{new.name}` {math.prod(own.loops.values())} x {own.op}"
            + (f" {own.bytes} bytes" if own.bytes else "")
            + f" ->{instruction_text(free, new, math.prod(new.loops.values()))}"
            for own, free, new in accesses
            if (own.op, own.bytes) != (new.op, new.bytes)
        ]
        if told:
            text = f'with `"instructions": "free"` {after:,g} wavefronts instead of {before:,g}'
            yield Relaxation("instructions", f"{text}: {', '.join(told)}")

    def free_lanes(self, accesses: Sequence[str]) -> Iterator[Relaxation]:
        """Accesses whose threads may handle other pieces, or the same in another order, without conflicts.

        Other pieces are those of whole sectors of global memory, along the dimension along which neighbouring
        lanes lie now.
        """
        problem = self.case.problem
        freed = [(k, a) for k, a in enumerate(problem.accesses) if a.name in accesses]
        for number, source in freed[:_MAX_FREED]:
            for what, free in current().while_left(_freed(source, self._along(number))):
                changed = tuple(free if a is source else a for a in problem.accesses)
                result = self._free_of_conflicts(replace(problem, accesses=changed))
                if result is not None:
                    (index,) = (a.index for a in result.accesses if a.name == source.name)
                    chosen = f"{result.offset} and [{', '.join(index or ())}] have no conflicts"
                    yield Relaxation("free_lanes", f"`{source.name}` {what}: {chosen}", source.name)
                    break

    def _along(self, number: int) -> int:
        """The dimension along which the first two lanes of an access lie; else the last."""
        shape = self.case.lowered.tile.shape
        first = self.case.lanes.accesses[number].element[0, :2]
        apart = [d for d, place in enumerate(np.unravel_index(first, shape)) if place[0] != place[-1]]
        return apart[-1] if apart else len(shape) - 1

    # Answers -----------------------------------------------------------------------------------

    def _fewer(self, asked: Problem, layout: Layout) -> tuple[Case, str | None, float, float] | None:
        """The best layout of `asked` as a case and its offset, with the wavefronts of `layout` and of it.

        None where they are not fewer than those of `layout`.
        """
        other = self._solved(asked, _CHOICE_SHARE)
        if other is None or other.layout is None:
            return None
        with unhurried():
            chosen = case_of_result(asked, self.case.device, other)
            before, after = _wavefronts(self.case, layout), _wavefronts(chosen, other.layout)
        return (chosen, other.offset, before, after) if after < before else None

    def _free_of_conflicts(self, problem: Problem) -> Result | None:
        """A layout without conflicts, if one is found in a share of the time."""
        return self._solved(problem, _QUESTION_SHARE, conflict_free=True)

    def _solved(self, problem: Problem, share: float, *, conflict_free: bool = False) -> Result | None:
        """The best layout that is found in a share of the time.

        None where there is none, or where a constraint contradicts what an access becomes.
        """
        try:
            with spending(current().part(share)):
                result = solve(problem, target=self.case.device, conflict_free=conflict_free, time_limit=None)
        except ProblemFileError:
            return None
        return result if result.has_layout else None


def names(accesses: Sequence[Access]) -> tuple[str, ...]:
    """The names of accesses."""
    return tuple(a.name for a in accesses)


def _freed(access: Access, along: int) -> Iterator[tuple[str, Access]]:
    """The access with its values free, then its lanes, in words and as it is."""
    operation = parse_operation(access.op, access.single_width)
    if operation.matrices or operation.does.adds or isinstance(access.weight, str):
        return
    if access.loops:
        yield 'with `"values": "free"`', replace(access, values="free")
    order = (*(d for d in range(len(access.index)) if d != along), along)
    side = GlobalSide(contiguous=_SECTOR_BYTES, order=order)
    what = f'with `"lanes": "free"`, {_SECTOR_BYTES} bytes along x{along} together'
    yield what, replace(access, lanes="free", global_=side)


def _wavefronts(case: Case, layout: Layout) -> float:
    """Of all accesses, weights applied."""
    return case.weighted_wavefronts(case.count(case.table(layout))) / case.lanes.weight_unit
