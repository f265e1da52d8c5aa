"""Which accesses cannot all be served without conflicts, and what to change in the file to have fewer.

Each is a question about the problem as it would be, asked of proofs and of the solver in a share of the time,
and told only with a proof or a layout.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

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
from layoutopt.proof.reasons import BY_HAND, SearchLimits, every_layout
from layoutopt.search.block import solve
from layoutopt.search.proposal import Ask

# Accesses beyond which no smallest clash is looked for: each is one question to the solver.
_MAX_CLASH: Final = 16
# Accesses whose lanes are left free, one after the other: each is one search, or two.
_MAX_FREED: Final = 4
# Share of the time left that each question may use, and that those about widths and instructions may.
_QUESTION_SHARE: Final = 0.25
_CHOICE_SHARE: Final = 0.5
_SECTOR_BYTES: Final = 32  # that global memory moves at least


class Relaxation(Struct, frozen=True):
    """Something to change or to give up, with fewer conflicts after it."""

    kind: str  # drop_access, narrower, instructions, free_lanes, minimise, families, max_bytes or stages
    message: str  # for people
    access: str | None = None  # what it concerns, if an access
    with_access: str | None = None  # the access to make narrower with it


class Relaxations(Struct, frozen=True):
    """Questions about a case, and about subsets of its accesses, each of these asked once."""

    case: Case  # the problem, whose lanes choose nothing at run time, but for `looser_constraints`
    # Accesses of which the file leaves lanes, values, instructions or the width to the solver: it may leave
    # nothing else of them.
    left_open: frozenset[str] = frozenset()
    _answers: dict[tuple[str, ...], bool | None] = {}

    @property
    def accesses(self) -> tuple[Access, ...]:
        """All accesses, over bytes."""
        return self.case.lowered.accesses

    # What clashes ------------------------------------------------------------------------------

    def smallest_clash(self, accesses: Sequence[Access]) -> tuple[list[Access], bool]:
        """Of accesses that no layout serves together, a subset of that kind, and whether it is minimal.

        Accesses are left out one by one while the others still clash. One for which the solver could not
        decide that in time is tried again once others are gone.
        """
        clash = list(accesses)
        if len(clash) > _MAX_CLASH:
            return clash, False
        for access in clash:
            if self.can_be_free([access]) is False:
                return [access], True
        undecided, before = list(clash), len(clash) + 1
        while undecided and len(clash) < before:
            before, tried, undecided = len(clash), undecided, []
            for access in tried:
                rest = [a for a in clash if a is not access]
                verdict = self.can_be_free(rest)
                if verdict is False:
                    clash = rest
                elif verdict is None:
                    undecided.append(access)
        return clash, not undecided

    def other_clashes(self, clash: Sequence[Access]) -> list[tuple[str, ...]]:
        """Names of the accesses that still clash with one access of `clash` left out, a set for each."""
        rests = map(self._without, clash)
        found = [names(self.smallest_clash(rest)[0]) for rest in rests if self.can_be_free(rest) is False]
        return list(dict.fromkeys(found))

    def _without(self, access: Access) -> list[Access]:
        return [a for a in self.accesses if a is not access]

    def can_be_free(self, accesses: Sequence[Access]) -> bool | None:
        """Whether any layout is free of conflicts for these accesses alone; None where that is open."""
        key = names(accesses)
        if key not in self._answers:
            try:
                checkpoint()
                self._answers[key] = self._serves_all(accesses)
            except OutOfTime:
                return None
        return self._answers[key]

    def _serves_all(self, accesses: Sequence[Access]) -> bool | None:
        """Whether some layout at all serves these accesses without conflicts; None where that stays open."""
        asked = self._problem_of(accesses, families=None, max_bytes=None)
        lanes = trace(asked, self.case.device) if accesses else None
        if lanes is None or not lanes.taking_part:
            return True
        subject = subject_of(asked.tile, self.case.device, lanes)
        for reason in BY_HAND:
            if reason.find(subject, SearchLimits()) is not None:
                return False
            checkpoint()
        with spending(current().part(_QUESTION_SHARE)):
            result = solve(asked, self.case.device, Ask(conflict_free=True))
            if result.has_layout or result.proof.excess.lower_bound:
                return result.has_layout
            # The families that were searched have none: a bound of every layout, or a free table, decides.
            general = every_layout(asked.tile, self.case.device, lanes, SearchLimits(), enough=1)
        if general.bound:
            return False
        return True if general.free is not None and general.free.excess == 0 else None

    def _problem_of(self, accesses: Sequence[Access], **constraints: Any) -> Problem:
        """The problem of these accesses alone, unweighted, under other constraints."""
        unweighted = tuple(replace(access, weight=1) for access in accesses)
        return constrained(replace(self.case.lowered, accesses=unweighted), **constraints)

    # What to give up ---------------------------------------------------------------------------

    def looser_constraints(self) -> Iterator[Relaxation]:
        """Constraints of the file that are in the way: the objective alone, else families or bytes."""
        layout = self.case.problem.layout
        if not layout.objective.excess_first:
            objective = self._with("minimise", "excess", "with the least excess first")
            if objective is not None:
                yield objective
                return
        for name, what in (("families", "with every family of layouts"), ("max_bytes", "with more memory")):
            looser = self._with(name, None, what) if getattr(layout, name) is not None else None
            if looser is not None:
                yield looser

    def _with(self, constraint: str, value: str | None, what: str) -> Relaxation | None:
        """Another value of a constraint, `what` in words; None where nothing free of conflicts is found."""
        found = self._free_of_conflicts(constrained(self.case.problem, **{constraint: value}))
        if found is None:
            return None
        return Relaxation(constraint, f"{what}: {found.offset}, {found.bytes:,} bytes, no conflicts")

    def left_out(self, clash: Sequence[Access]) -> Iterator[Relaxation]:
        """Accesses of a clash to leave out, where a layout that the constraints allow serves the others."""
        for access in clash:
            rest = self._without(access)
            if not self.can_be_free(rest):
                continue
            asked = self._problem_of(rest, minimise="excess")
            free = not rest or asked.layout == Constraints(minimise="excess")
            if free or self._free_of_conflicts(asked) is not None:
                text = f"without `{access.name}` a layout free of conflicts exists"
                yield Relaxation("drop_access", text, access=access.name)

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

    @property
    def _wavefronts(self) -> str:
        """What `_Better` counts, in words."""
        return "weighted wavefronts" if self.case.has_weights else "wavefronts"

    def narrower(self, layout: Layout) -> Iterator[Relaxation]:
        """Narrower accesses with fewer wavefronts in all."""
        asked = self.case.asked
        given = (a for a in asked.accesses if a.name not in self.left_open)
        widths = {a.name: choices for a in given if len(choices := self._widths(a)) > 1}
        while math.prod(map(len, widths.values())) > MAX_WIDTH_CHOICES:  # that a problem may leave open
            widths.popitem()
        if not widths:
            return
        accesses = (replace(a, bytes=widths.get(a.name, a.bytes)) for a in asked.accesses)
        better = self._better_choice(replace(asked, accesses=tuple(accesses)), layout)
        if better is None:
            return
        chosen = better.case.widths
        narrowed = [name for name, choices in widths.items() if chosen[name] != choices[0]]
        if narrowed:
            fields = (f'"bytes": [{widths[name][0]}, {chosen[name]}] for `{name}`' for name in narrowed)
            saved = f"{better.before - better.after:,g} fewer {self._wavefronts}, {better.offset}"
            text = f"{' and '.join(fields)}: {saved}"
            yield Relaxation("narrower", text, narrowed[0], narrowed[1] if len(narrowed) > 1 else None)

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
        case, asked = self.case, with_free_instructions(self.case.problem, self.left_open)
        if asked is None or case.chooses or (better := self._better_choice(asked, layout)) is None:
            return
        changes = []
        accesses = zip(case.problem.accesses, asked.accesses, better.case.asked.accesses, strict=True)
        for old, free, new in accesses:
            if (old.op, old.bytes) != (new.op, new.bytes):
                width = f" {old.bytes} bytes" if old.bytes else ""
                after = instruction_text(free, new, math.prod(new.loops.values()))
                changes.append(f"`{new.name}` {math.prod(old.loops.values())} x {old.op}{width} ->{after}")
        if changes:
            counts = f"{better.after:,g} {self._wavefronts} instead of {better.before:,g}"
            text = f'with `"instructions": "free"` {counts}: {", ".join(changes)}'
            yield Relaxation("instructions", text)

    def free_lanes(self, accesses: Sequence[str]) -> Iterator[Relaxation]:
        """Accesses whose threads may handle other pieces, or the same in another order, without conflicts.

        Other pieces are those of whole sectors of global memory, along the dimension along which neighbouring
        lanes lie now.
        """
        problem = self.case.problem
        named = [(k, a) for k, a in enumerate(problem.accesses) if a.name in {*accesses} - self.left_open]
        for number, source in named[:_MAX_FREED]:
            for words, freed in current().while_left(_freed_versions(source, self._lane_dimension(number))):
                changed = tuple(freed if a is source else a for a in problem.accesses)
                result = self._free_of_conflicts(replace(problem, accesses=changed))
                if result is not None:
                    (index,) = (a.index for a in result.accesses if a.name == source.name)
                    chosen = f"{result.offset} and [{', '.join(index or ())}] have no conflicts"
                    yield Relaxation("free_lanes", f"`{source.name}` {words}: {chosen}", access=source.name)
                    break

    def _lane_dimension(self, number: int) -> int:
        """The dimension along which the first two lanes of an access lie apart; else the last."""
        shape = self.case.lowered.tile.shape
        elements = self.case.lanes.accesses[number].element[0, :2]
        apart = [d for d, at in enumerate(np.unravel_index(elements, shape)) if at[0] != at[-1]]
        return apart[-1] if apart else len(shape) - 1

    # Answers -----------------------------------------------------------------------------------

    def _better_choice(self, asked: Problem, layout: Layout) -> "_Better | None":
        """The best layout of `asked`, a problem with more choices; None unless it beats `layout`."""
        result = self._best_of(asked, _CHOICE_SHARE)
        if result is None or result.layout is None:
            return None
        with unhurried():
            case = case_of_result(asked, self.case.device, result)
            before, after = _wavefronts(self.case, layout), _wavefronts(case, result.layout)
        return _Better(case, result.offset, before, after) if after < before else None

    def _free_of_conflicts(self, problem: Problem) -> Result | None:
        """A layout without conflicts, if one is found in a share of the time."""
        return self._best_of(problem, _QUESTION_SHARE, conflict_free=True)

    def _best_of(self, problem: Problem, share: float, *, conflict_free: bool = False) -> Result | None:
        """The best layout that is found in a share of the time.

        None where there is none, or where a constraint contradicts what an access becomes.
        """
        try:
            with spending(current().part(share)):
                result = solve(problem, self.case.device, Ask(conflict_free))
        except ProblemFileError:
            return None
        return result if result.has_layout else None


class _Better(NamedTuple):
    """A layout found with other widths or instructions, and the weighted wavefronts before and with it."""

    case: Case
    offset: str | None
    before: float
    after: float


def names(accesses: Sequence[Access]) -> tuple[str, ...]:
    """The names of accesses."""
    return tuple(a.name for a in accesses)


def _freed_versions(access: Access, along: int) -> Iterator[tuple[str, Access]]:
    """The access with its values free, then with its lanes free, each behind what the file would say.

    Free lanes keep whole sectors of global memory together, which is contiguous along dimension `along`.
    """
    operation = parse_operation(access.op, access.single_width)
    if operation.matrices or operation.does.adds or isinstance(access.weight, str):
        return
    if access.loops:
        yield 'with `"values": "free"`', replace(access, values="free")
    order = (*(d for d in range(len(access.index)) if d != along), along)
    side = GlobalSide(contiguous=_SECTOR_BYTES, order=order)
    words = f'with `"lanes": "free"`, {_SECTOR_BYTES} bytes along x{along} together'
    yield words, replace(access, lanes="free", global_=side)


def _wavefronts(case: Case, layout: Layout) -> float:
    """Of all accesses, weights applied."""
    return case.weighted_wavefronts(case.count(case.table(layout))) / case.lanes.weight_unit
