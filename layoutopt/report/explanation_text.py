"""Explanations as text for people."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from layoutopt.problems.answer import ModelGrowth
from layoutopt.problems.same_layout import groups
from layoutopt.problems.text import count_text, listed, tile_text, widths_text
from layoutopt.problems.types import Block, Problem
from layoutopt.report.text import rounds_text, wrapped
from layoutopt.study.explain import BlockExplanation, Explanation

_NAMED: Final = 8  # linearisations that are told by name


def explanation_report(problem: Problem | Block, explanation: Explanation | BlockExplanation) -> str:
    """The human report of an explanation: of several tiles, all of them together, then each."""
    lines = [f"{problem.name}  {tile_text(problem)}  on {explanation.target}", ""]
    if isinstance(explanation, Explanation):
        return "\n".join([*lines, *_tile_lines(problem, explanation), ""])
    assert isinstance(problem, Block)
    for reason in explanation.reasons:
        lines += [*textwrap.wrap(reason, 100), ""]
    if explanation.relaxations:
        lines += ["What would help:", *(f"  {r.kind}: {r.message}" for r in explanation.relaxations), ""]
    parts = zip(groups(problem), explanation.tiles, strict=True)
    return "\n".join([*lines, *(explanation_report(own, part.explanation) for (_, own), part in parts)])


def _tile_lines(problem: Problem | Block, explanation: Explanation) -> Iterator[str]:
    """What is known, why, what clashes, what would help, and how the model came to it."""
    yield _verdict(problem, explanation)
    if explanation.widths:
        yield f"with {widths_text(explanation.widths)}, the solver's choice; what follows is about it"
    if explanation.evidence:
        yield f"the bound rests on {explanation.evidence}"
    for reason in explanation.reasons:
        first, *rest = reason.split("\n")
        yield from ("", *textwrap.wrap(first, 100), *rest)
    if explanation.clashing_accesses:
        yield from ("", *textwrap.wrap(_clash(explanation), 100))
    if explanation.relaxations:
        yield from ("", "What would help:")
    for relaxation in explanation.relaxations:
        yield from wrapped(f"{relaxation.kind}: {relaxation.message}", 120, "  ")
    if explanation.model is not None:
        yield from ("", *_model(explanation, explanation.model))


def _verdict(problem: Problem | Block, explanation: Explanation) -> str:
    """Whether a layout without conflicts exists, or what is known instead."""
    if explanation.conflict_free and explanation.excess:
        left = count_text(explanation.excess, "excess wavefront")
        return f"{left} for what layout.minimise puts first; a layout free of conflicts exists"
    if explanation.conflict_free:
        chosen = any(access.any for access in problem.accesses)
        free = "no more wavefronts than the values need" if chosen else "free of conflicts"
        return f"{free}: {explanation.offset}"
    if explanation.conflict_free is False and not explanation.lower_bound:
        return "no layout keeps to the constraints"
    if explanation.conflict_free is False:
        found = explanation.weighted_excess
        best = f"; the best found has {found:g}" if found is not None else ""
        if explanation.weighted and explanation.excess is not None:
            best += f", {explanation.excess} without weights"
        what = "weighted excess wavefronts" if explanation.weighted else "excess wavefronts"
        return f"at least {explanation.lower_bound:g} {what} in {explanation.scope}{best}"
    if explanation.excess is None:
        return "open: no layout found in the time there was"
    return f"open: {count_text(explanation.excess, 'excess wavefront')} found, none proved"


def _model(explanation: Explanation, grown: ModelGrowth) -> Iterator[str]:
    """How the model came to the layout."""
    yield f"The model: {rounds_text(grown)}." if grown.rounds else "The model was not asked: rules decided."
    for what, named, count in (
        ("proposed and rejected", grown.proposed, grown.rejected),
        ("written out", grown.written, grown.written_out),
    ):
        if count:
            more = f"; and {count - _NAMED} more" if count > _NAMED else ""
            yield f"  {what}: {'; '.join(named[:_NAMED])}{more}"
    if grown.trees or grown.batches:
        yield f"  least excess: linearisations searched by a tree {grown.trees}, models asked {grown.batches}"
    if grown.rounds or grown.batches:
        yield (
            f"  CP-SAT: branches {grown.branches}, conflicts {grown.conflicts}, "
            f"deterministic time {grown.effort:g}"
        )
    if explanation.decided_by is not None:
        yield f"  decided by: {explanation.decided_by}"


def _clash(explanation: Explanation) -> str:
    """What cannot be served together, and that there is more of it."""
    names = explanation.clashing_accesses
    together = {1: "", 2: "both "}.get(len(names), "all ")
    fewer = {1: "", 2: "; each can without the other"}.get(len(names), f"; any {len(names) - 1} of them can")
    minimal = fewer if explanation.clash_is_minimal else ""
    text = f"Clash: {_quoted(names)} cannot {together}be free of conflicts{minimal}."
    if explanation.other_clashes:
        others = "; ".join(map(_quoted, explanation.other_clashes))
        text += f" That is not all: without one of them, there still clash {others}."
    return text


def _quoted(names: Sequence[str]) -> str:
    return listed([f"`{name}`" for name in names], len(names))
