"""Layout and instructions together, where accesses leave open how the elements of a thread are moved.

    order       which elements a layout makes consecutive, so that they may go in one access
    written     each free access by the instructions of fewest wavefronts in that order, then the fewest
    solved      the problem with these as any other, the order first whose instructions alone take least
    verified    each thread moves what the file asks for, counted in the file's own coordinates

The orders of fewest wavefronts come first, and one ends the search that takes as few as nothing undercuts:
of a warp, in a wavefront, no more than a word of every bank, and to a lane no more than its widest access.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import starmap
from typing import Final, NamedTuple

import msgspec
import numpy as np

from layoutopt.accesses.instructions import (
    Owned,
    accesses_of,
    as_given,
    check_instructions,
    orders,
    owned,
    why_not_free,
)
from layoutopt.accesses.lower import assigned, named_lanes
from layoutopt.accesses.trace import trace
from layoutopt.accesses.view import steps_of, view_of
from layoutopt.engine.case import Case, case_of
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import ProblemFileError, VerificationError
from layoutopt.ground.budget import OutOfTime, current, spending, unhurried
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import parse_operation
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, Result, Status
from layoutopt.problems.types import Access, Constraints, Problem
from layoutopt.search.proposal import Ask

Solver = Callable[[Problem, Ask, Device], Result]

_MOST_SOLVED: Final = 8  # orders that a layout is sought for
_SHARE: Final = 0.5  # of the time left, for each
_EVERYTHING: Final = f"{EVERY_LAYOUT} and every choice of instructions"
_LEFT: Final = "other instructions are not refuted"


class _Choice(NamedTuple):
    """The problem with instructions for every access: `rank` is what they take alone, and what they are."""

    rank: tuple[Fraction, int, int]
    problem: Problem


class _Found(NamedTuple):
    """An answer under one choice."""

    rank: tuple[float, int, int]
    result: Result
    chosen: Problem
    case: Case


def chooses_instructions(problem: Problem) -> bool:
    """Whether the file leaves the instructions of an access open."""
    return any(access.instructions is not None for access in problem.accesses)


def with_free_instructions(problem: Problem) -> Problem | None:
    """The problem with the instructions of all loads and stores free that may be; None where none may."""

    def freed(number: int, access: Access) -> Access:
        if access.any or access.is_free or why_not_free(problem, number) is not None:
            return access
        return msgspec.structs.replace(access, instructions="free")

    accesses = tuple(starmap(freed, enumerate(problem.accesses)))
    return None if accesses == problem.accesses else msgspec.structs.replace(problem, accesses=accesses)


def solve_instructions(problem: Problem, gpu: Device, ask: Ask, solver: Solver) -> Result:
    """The best layout and instructions, verified: fewest wavefronts, then bytes, then instructions.

    Args:
        problem: some of whose accesses leave their instructions open.
        gpu: its device.
        ask: as for every search.
        solver: answers problems whose instructions are given.

    Raises:
        OutOfTime: the time was over before there was a layout.
        ProblemFileError: an access's instructions cannot be free.
    """
    free = owned(problem, gpu)
    bound = _lower_bound(problem, free, gpu)
    best: _Found | None = None
    given: _Found | None = None
    refused: Result | None = None
    solved = 0
    plain = [access if access.instructions is None else as_given(access) for access in problem.accesses]
    first = _choice(problem, plain, -1, gpu)
    others = [c for c in _choices(first, problem, free, gpu) if _differs(c, first)]
    share = _SHARE if others else 1
    for choice in [first, *others]:
        least, instructions, _ = choice.rank
        if best is not None and (float(least), problem.tile.bytes, instructions) >= best.rank:
            continue
        if solved > _MOST_SOLVED or (best is not None and current().spent):
            break
        solved += 1
        try:
            with spending(current().part(share)):
                result = solver(choice.problem, ask, gpu)
        except OutOfTime:
            continue
        except ProblemFileError:  # a constraint contradicts what an access becomes
            if solved == 1:
                raise
            continue
        if result.layout is None:
            refused = refused or result
            continue
        with unhurried():
            found = _found(choice, result, gpu)
        given = found if solved == 1 else given
        best = found if best is None or found.rank < best.rank else best
    if best is not None:
        with unhurried():
            return _answer(problem, gpu, best, bound, given)
    if refused is None:
        raise OutOfTime
    return _nothing(problem, refused)


def _found(choice: _Choice, result: Result, gpu: Device) -> _Found:
    """A result that has a layout, counted in the file's own coordinates."""
    assert result.layout is not None
    chosen = assigned(choice.problem, result)
    case = case_of(chosen, gpu)
    taken = case.weighted_wavefronts(case.count(case.table(result.layout))) / case.lanes.weight_unit
    return _Found((taken, result.bytes or 0, choice.rank[1]), result, chosen, case)


def _differs(choice: _Choice, given: _Choice) -> bool:
    """Whether it has other instructions, or fewer, and not the same in another order."""
    pairs = zip(choice.problem.accesses, given.problem.accesses, strict=True)
    same = (
        a.vector == b.vector
        and parse_operation(a.op, a.single_width) == parse_operation(b.op, b.single_width)
        for a, b in pairs
    )
    return choice.rank[1] != given.rank[1] or not all(same)


def _choice(problem: Problem, accesses: Sequence[Access], number: int, gpu: Device) -> _Choice:
    """The problem with these accesses, some of which have instructions where it leaves them open."""
    alone = [_alone(problem, access, gpu) for access in accesses]
    total = sum((wavefronts for wavefronts, _ in alone), Fraction(0))
    freed = (n for (_, n), a in zip(alone, problem.accesses, strict=True) if a.instructions is not None)
    chosen = msgspec.structs.replace(problem, accesses=tuple(accesses))
    return _Choice((total, sum(freed), number), chosen)


def _nothing(problem: Problem, refused: Result) -> Result:
    most = problem.layout.max_bytes
    if refused.status is not Status.INFEASIBLE or (most is not None and most < problem.tile.bytes):
        return refused
    return msgspec.structs.replace(refused, status=Status.UNKNOWN, reason=f"{_LEFT}; {refused.reason}")


def _choices(first: _Choice, problem: Problem, free: Sequence[Owned], gpu: Device) -> list[_Choice]:
    """The problem with instructions of one order after another, those of fewest wavefronts first.

    Args:
        first: with the instructions of the file.
        problem: whose instructions are open.
        free: which of them.
        gpu: its device.
    """
    known = [steps_of(a, problem.tile) for a in problem.accesses if not a.is_free]
    fixed = max(known, key=len, default=[])
    found: list[_Choice] = []
    for number, steps in enumerate(orders(free, fixed) if free else ()):
        try:
            ways = {one.number: list(accesses_of(one, steps, problem, gpu)) for one in free}
            if not all(ways.values()):
                continue  # the GPU has no access as narrow as some would be
            best = {k: min(each, key=lambda way: _alone(problem, way, gpu)) for k, each in ways.items()}
        except ProblemFileError:
            continue  # too many pieces of the coordinates
        accesses = tuple(best.get(k, access) for k, access in enumerate(first.problem.accesses))
        if all(choice.problem.accesses != accesses for choice in found):
            found.append(_choice(problem, accesses, number, gpu))
    return sorted(found, key=lambda choice: choice.rank)


def _alone(problem: Problem, access: Access, gpu: Device, *, shared: bool = False) -> tuple[Fraction, int]:
    """The fewest wavefronts that an access takes, weighted, and its instructions.

    Where words are `shared`, of any layout; else of those in which elements share words as row by row.
    """
    if access.is_free or access.any:
        return Fraction(0), 0
    part = msgspec.structs.replace(problem, accesses=(access,), layout=Constraints())
    if (view := view_of(part)) is not None:
        part = view.problem(part)
    traced = trace(part, gpu)
    (lanes,) = traced.accesses
    counts = count_wavefronts(lanes.element * problem.tile.element_bytes, lanes.active, lanes.operation, gpu)
    least = counts.phases if shared else counts.ideal
    weighted = int((least * lanes.weight).sum())
    return Fraction(weighted, traced.weight_unit), int(lanes.active.any(axis=1).sum())


def _lower_bound(problem: Problem, free: Sequence[Owned], gpu: Device) -> Fraction:
    """Wavefronts that no layout and no instructions undercut, of all accesses, weights applied.

    A wavefront of a warp moves no more distinct bytes than the banks have words, and to or from its lanes
    together no more than those of a phase have in their widest access, of two phases where these are merged.
    """
    size = problem.tile.element_bytes
    # Elements narrower than a word share as many as a layout likes: each phase takes one wavefront then.
    given = (a for a in problem.accesses if a.instructions is None)
    total = sum((_alone(problem, a, gpu, shared=size < gpu.bank_bytes)[0] for a in given), Fraction(0))
    for one in free:
        kinds = one.kind, "ldmatrix" if one.kind == "load" else "stmatrix"
        rules = [(rule, width) for (name, width), rule in gpu.rules.items() if name in kinds]
        banks = max(max(rule.banks, rule.row_words) * rule.bank_bytes for rule, _ in rules)
        lanes = max(
            len(rule.phases[0]) * (min(width, rule.bank_bytes) if rule.split_words else width)
            << rule.merges_pairs
            for rule, width in rules
        )
        total += Fraction(str(one.access.weight)) * sum(
            max(math.ceil(held * size / lanes), math.ceil(distinct * size / banks))
            for held, distinct in _by_warp(one, gpu.lanes)
        )
    return total


def _by_warp(one: Owned, lanes: int) -> Iterator[tuple[int, int]]:
    """Elements of all lanes of each warp, and different ones of these."""
    for start in range(0, len(one.element), lanes):
        element = one.element[start : start + lanes]
        held = element[element >= 0]
        yield len(held), len(np.unique(held))


def _answer(problem: Problem, gpu: Device, found: _Found, bound: Fraction, given: _Found | None) -> Result:
    """The best result as one of the problem: optimal where nothing takes fewer wavefronts or bytes."""
    check_instructions(problem, found.chosen, gpu)
    result, layout, case = found.result, found.result.layout, found.case
    assert layout is not None
    table = case.table(layout)
    case.check(table)
    if [r.wavefronts for r in case.measure(layout)] != [r.wavefronts for r in result.accesses]:
        raise VerificationError("the accesses cost another number of wavefronts in their own coordinates")
    least = Bound(float(bound) if bound.denominator > 1 else int(bound), _EVERYTHING)
    wavefronts, size, _ = found.rank
    status, reason = result.status, result.reason
    if status is Status.OPTIMAL and not (wavefronts == bound and size == problem.tile.bytes):
        status = Status.FEASIBLE
        reason = f"{_LEFT}: {wavefronts:g} wavefronts, at least {bound} in {_EVERYTHING}"
    return msgspec.structs.replace(
        result,
        status=status,
        reason=reason,
        decided_by=result.decided_by if status is Status.OPTIMAL else None,
        proof=msgspec.structs.replace(result.proof, wavefronts=least),
        hints=(*result.hints, *_before(given, found)),
        accesses=named_lanes(result.accesses, problem, found.chosen),
    )


def _before(given: _Found | None, found: _Found) -> Iterator[str]:
    """What the file's own instructions cost at best, where others were chosen."""
    if given is not None and given is not found:
        (before, size, _), (after, *_) = given.rank, found.rank
        yield (
            f"with the instructions as the file has them, the best layout found takes {before:,g} wavefronts "
            f"in {size:,} bytes; these take {after:,g}"
        )
