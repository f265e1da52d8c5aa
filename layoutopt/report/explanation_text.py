"""Explanations as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from layoutopt.problems.text import tile_text, widths_text
from layoutopt.problems.types import Block, Problem
from layoutopt.report.text import rounds_text
from layoutopt.search.same_layout import groups
from layoutopt.study.explanation import BlockExplanation, Explanation

_NAMED: Final = 8  # linearisations that are told by name


def explanation_report(problem: Problem | Block, explanation: Explanation | BlockExplanation) -> str:
    """The human report of an explanation."""
    if isinstance(problem, Problem):
        assert isinstance(explanation, Explanation)
        return _tile_report(problem, explanation)
    assert isinstance(explanation, BlockExplanation)
    return _block_report(problem, explanation)


def _tile_report(problem: Problem, explanation: Explanation) -> str:
    if explanation.conflict_free:
        chosen = any(access.any for access in problem.accesses)
        free = "no more wavefronts than the values need" if chosen else "free of conflicts"
        verdict = f"{free}: {explanation.offset}"
    elif explanation.conflict_free is False and not explanation.lower_bound:
        verdict = "no layout keeps to the constraints"
    elif explanation.conflict_free is False:
        found = explanation.weighted_excess
        best = f"; the best found has {found:g}" if found is not None else ""
        if explanation.weighted and explanation.excess is not None:
            best += f", {explanation.excess} without weights"
        what = "weighted excess wavefronts" if explanation.weighted else "excess wavefronts"
        verdict = f"at least {explanation.lower_bound:g} {what} in {explanation.scope}{best}"
    elif explanation.excess is None:
        verdict = "open: no layout found in the time there was"
    else:
        verdict = f"open: {explanation.excess} excess wavefronts found, none proved"
    lines = [f"{problem.name}  {tile_text(problem)}  on {explanation.target}", "", verdict]
    if explanation.widths:
        lines.append(f"with {widths_text(explanation.widths)}, the solver's choice; what follows is about it")
    if explanation.evidence:
        lines.append(f"the bound rests on {explanation.evidence}")
    for reason in explanation.reasons:
        first, *rest = reason.split("\n")
        lines += ["", *textwrap.wrap(first, 100), *rest]
    if explanation.clashing_accesses:
        lines += ["", *textwrap.wrap(_clash(explanation), 100)]
    if explanation.relaxations:
        lines += ["", "What would help:"]
        for relaxation in explanation.relaxations:
            text = f"{relaxation.kind}: {relaxation.message}"
            lines += textwrap.wrap(text, 120, initial_indent="  ", subsequent_indent="    ")
    if explanation.model is not None:
        lines += ["", *_model(explanation)]
    return "\n".join(lines) + "\n"


def _block_report(block: Block, explanation: BlockExplanation) -> str:
    """The same of several tiles: all of them together, then each."""
    lines = [f"{block.name}  {tile_text(block)}  on {explanation.target}", ""]
    for reason in explanation.reasons:
        lines += [*textwrap.wrap(reason, 100), ""]
    if explanation.relaxations:
        lines += ["What would help:", *(f"  {r.kind}: {r.message}" for r in explanation.relaxations), ""]
    parts = zip(groups(block), explanation.tiles, strict=True)
    return (
        "\n".join(lines)
        + "\n"
        + "\n".join(_tile_report(problem, part.explanation) for (_, problem), part in parts)
    )


def _model(explanation: Explanation) -> Iterator[str]:
    """How the model came to the layout."""
    grown = explanation.model
    if grown is None:
        return
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
    text = f"Clash: {_listed(names)} cannot {together}be free of conflicts"
    text += (fewer if explanation.clash_is_minimal else "") + "."
    if explanation.other_clashes:
        others = "; ".join(_listed(clash) for clash in explanation.other_clashes)
        text += f" That is not all: without one of them, there still clash {others}."
    return text


def _listed(names: Sequence[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}" if first else last
