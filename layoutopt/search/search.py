"""The search over linearisations and swizzles, by rising bytes.

Stage 1 (`layoutopt.search.reach_floor`) looks for the smallest layout under which every phase costs no more
than its counting bound. Where no candidate reaches the bounds, stage 2 (`layoutopt.search.least_excess`)
minimises the weighted excess over all of them. Where instructions come first, and excess may be left, the
plainest formulas do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from layoutopt.accesses.lower import with_loops
from layoutopt.accesses.trace import Trace
from layoutopt.ground.budget import OutOfTime
from layoutopt.hardware.devices import Device
from layoutopt.index.index_code import least_instructions
from layoutopt.layout.layout import Layout
from layoutopt.model.linearisations import least_operations, rotated, unpadded
from layoutopt.model.pads import padded
from layoutopt.model.swizzle_rules import rules, textbook
from layoutopt.problems.answer import EVERY_LAYOUT
from layoutopt.problems.types import Problem
from layoutopt.search.fall_back import fall_back
from layoutopt.search.least_excess import ALL_HAVE_CONFLICTS, NONE_KEEPS_TO_THEM, LeastExcess
from layoutopt.search.proposal import Ask, Proposal
from layoutopt.search.reach_floor import ReachFloor
from layoutopt.search.scene import Found, Instead, Scene

_COST_OPEN: Final = "that no index of these families is cheaper is not proved"


def search(
    problem: Problem,
    device: Device,
    trace: Trace,
    ask: Ask,
    counted: Trace | None = None,
    instead: Instead = lambda _: None,
) -> Proposal:
    """The layout with the least weighted excess, then bytes, then index cost; and who decided it.

    Args:
        problem: what is asked.
        device: whose rules.
        trace: the accesses.
        ask: how.
        counted: the instructions of `trace` whose excess counts, where not all of them: the others bind
            vectors only.
        instead: asked for another answer before a long search for the least excess.

    Raises:
        ProblemFileError: no access has an active lane, or the constraints contradict the accesses.
    """
    scene = Scene(problem, device, trace, ask, counted, instead)
    proposal = _answer(scene)
    everywhere = proposal.excess_bound.everywhere and proposal.bytes_bound.everywhere
    decided_by = proposal.decided_by or "counting"
    if not proposal.decided_by and scene.tally.deciders and not (everywhere and proposal.layout is not None):
        decided_by = next(name for name in ("cp-sat", "tree") if name in scene.tally.deciders)
    return replace(proposal, decided_by=decided_by, model=scene.tally.growth)


def plain_layouts(problem: Problem, device: Device, trace: Trace, ask: Ask) -> Iterator[tuple[Layout, str]]:
    """Layouts of the families with a swizzle of one shift or none, with their families.

    First those without cuts and pads, as they are and swizzled, then pads of whole dimensions by rising
    bytes, then cuts.
    """
    scene = Scene(problem, device, trace, replace(ask, conflict_free=False))
    space = scene.space
    cut = (candidate for cuts in (1, 2) for candidate in unpadded(space, cuts))
    plain = itertools.chain(padded(space, cuts=False), rotated(space), cut)
    found = (Found(candidate, {}, 0) for candidate in plain)
    for one in ask.budget.while_left(itertools.chain(_swizzled_plainly(scene), found)):
        if scene.fits(one.candidate.span):
            yield scene.layout(one), one.family


def _swizzled_plainly(scene: Scene) -> Iterator[Found]:
    """Layouts of the tile's own bytes, and each `Swizzle<B, M, S>` over them."""
    for candidate in unpadded(scene.space, 0):
        yield Found(candidate, {}, 0)
        if scene.field is not None and candidate.may_swizzle:
            highest = (candidate.span * scene.tile.element_bytes - 1) // scene.field.word_bytes
            given = rules(candidate, scene.field, scene.tile)
            yield from (Found(candidate, masks, 0) for masks in textbook(scene.field, given, highest))


def _answer(scene: Scene) -> Proposal:
    if scene.limit is not None and scene.tile.bytes > scene.limit:
        reason = f"the elements alone need {scene.tile.bytes} bytes; max_bytes is {scene.limit}"
        return scene.none(reason, EVERY_LAYOUT, True)
    if scene.conflict_free and scene.floor:
        return scene.none("the counting bound: every layout has conflicts", EVERY_LAYOUT, True)
    if not scene.objective.instructions_first:
        return _least_excess(scene)
    cheapest = None if scene.conflict_free else _plainest_formula(scene)
    proposal = cheapest or _least_excess(scene)
    if proposal.layout is None or (cheapest is not None and not cheapest.left_open):
        return proposal
    return replace(proposal, left_open=True, reason=_COST_OPEN)


def _plainest_formula(scene: Scene) -> Proposal | None:
    """Of the formulas of fewest operations, that of the fewest instructions, then least excess, then bytes.

    None where no layout was found that needs no swizzle. Proved only where no layout of any kind can be
    better in anything.
    """
    instructions: dict[str, int] = {}

    def rank(found: Found) -> tuple[int, int, int]:
        """Instructions, those of the first found that is like it but for its strides; excess and elements."""
        candidate = found.candidate
        strides = [d.stride & (d.stride - 1) == 0 for d in candidate.digits]
        places = [(d.dim, d.divide, d.size) for d in candidate.digits]
        kind = str((places, strides, candidate.turn > 0, candidate.interval[0]))
        if kind not in instructions:
            instructions[kind] = scene.instructions(found)
        return instructions[kind], found.excess, candidate.span

    best: Found | None = None
    try:
        for candidate in scene.candidates():
            if best is not None and scene.budget.spent:
                break
            most = least_operations(scene.space) if best is None else best.operations
            worse = best is not None and rank(Found(candidate, {}, scene.floor)) >= rank(best)
            if candidate.operations <= most and not worse and scene.fits(candidate.span):
                found = scene.plain(candidate)
                best = found if best is None else min(best, found, key=rank)
    except OutOfTime:
        scene.tally.exhausted = False
    if best is None:
        return None
    size = int(scene.layout(best).table().max()) + scene.tile.element_bytes
    least = least_instructions(with_loops(scene.problem), scene.trace)
    proved = (scene.instructions(best), best.excess, size) <= (least, scene.floor, scene.tile.bytes)
    scene.tally.undecided_span = scene.tile.elements
    return replace(scene.proposal(best, scene.floor), left_open=not proved)


def _least_excess(scene: Scene) -> Proposal:
    """Least excess, then bytes, then index cost."""
    tally = scene.tally
    try:
        reach = ReachFloor(scene, presolved=scene.ask.method == "auto")
    except OutOfTime:
        return _plainest(scene)
    stage1 = reach.run()
    if not tally.unswizzled:
        over = scene.budget.spent or not tally.exhausted
        return scene.none("out of time" if over else NONE_KEEPS_TO_THEM, scene.scope, not over)
    if stage1 is not None and stage1.excess == scene.floor:
        if not tally.exhausted:
            tally.undecided_span = scene.tile.elements
        return scene.proposal(stage1, scene.floor)
    if scene.conflict_free and tally.undecided_span is None and tally.exhausted:
        return scene.none(ALL_HAVE_CONFLICTS, scene.scope, True)
    return LeastExcess(scene, reach).run()


def _plainest(scene: Scene) -> Proposal:
    """Where the time was over before the smallest candidate was known: the best of a few plain ones."""
    fall_back(scene)
    scene.tally.undecided_span = scene.tile.elements
    enough = scene.floor if scene.conflict_free else math.inf
    found = [f for f in scene.tally.unswizzled if f.excess <= enough]
    if not found:
        return scene.none("out of time", scene.scope, False)
    return scene.proposal(min(found, key=lambda f: f.rank), scene.floor)
