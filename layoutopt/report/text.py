"""Answers as text for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from layoutopt.expressions.grammar import lookups
from layoutopt.layout.formula import offset_expression
from layoutopt.problems.answer import AccessReport, Arrangement, Estimate, ModelGrowth, Proof, Result, Status
from layoutopt.problems.text import abridged, shape_text, tables, tile_text
from layoutopt.problems.types import Block, Problem
from layoutopt.report.descriptor_text import cluster_lines, descriptor_lines
from layoutopt.search.same_layout import alike, groups
from layoutopt.study.block import own_answer


def report(problem: Problem | Block, found: Result | Arrangement, seconds: float | None = None) -> str:
    """The human report of a solve, which took so many seconds, without the code."""
    if isinstance(problem, Problem):
        assert isinstance(found, Result)
        return _tile_report(problem, found, seconds)
    assert isinstance(found, Arrangement)
    return _block_report(problem, found)


def _tile_report(problem: Problem, result: Result, seconds: float | None) -> str:
    lines = [f"{problem.name}  {tile_text(problem)}  on {result.target}", ""]
    if result.layout is None:
        lines += [f"{result.status}: {result.reason}"]
        return "\n".join(lines) + "\n"
    overhead = (result.bytes or 0) - problem.tile.bytes
    lines += [
        f"  offset     {result.offset}  (elements)",
        f"  family     {result.family}",
        *_table(result),
        f"  bytes      {result.bytes:,} used, {result.declared_bytes:,} declared"
        + (f" ({overhead:,} more than the elements)" if overhead else " (the elements alone)"),
        f"  alignment  {result.alignment_bytes} bytes",
        *cluster_lines(problem.block),
        "",
    ]
    lines += access_lines(problem, result.accesses)
    lines += ["", f"  {_verdict(result, seconds)}", *_proved(result.weighted_excess, result.proof)]
    if result.estimate is not None:
        lines += [f"  {_estimated(result.estimate)}"]
    if result.faster is not None:
        lines += [f"  {result.faster.text}"]
    lines += [f"  {hint}" for hint in result.hints]
    if result.model is not None and result.method == "model":
        lines += [f"  one model: {rounds_text(result.model)}"]
    if result.reason:
        lines += [f"  {result.reason}"]
    return "\n".join(lines) + "\n"


def _block_report(block: Block, found: Arrangement) -> str:
    """The same of several tiles."""
    count = len(block.tiles)
    lines = [f"{block.name}  {count} tile{'s' * (count > 1)}  on {found.target}", ""]
    if not found.tiles:
        return "\n".join([*lines, f"{found.status}: {found.reason}"]) + "\n"
    owner = {access.name: access.tile for access in block.accesses}
    limit = f" of {found.max_bytes:,}" if found.max_bytes is not None else ""
    lines += [
        *columns(_tile_rows(block, found, owner), {0, 1, 2}),
        "",
        f"  bytes      {found.bytes:,}{limit}",
        f"  alignment  {found.alignment_bytes} bytes",
        *cluster_lines(block.block),
        "",
        *access_lines(block, [a for part in found.tiles for a in part.result.accesses]),
        "",
        f"  {_block_verdict(found)}",
        *_proved(found.weighted_excess, found.proof),
        *([f"  {found.reason}"] if found.reason else []),
    ]
    return "\n".join(lines) + "\n"


def access_lines(
    problem: Problem | Block,
    accesses: Sequence[AccessReport],
    profiler: Callable[[Any], str] | None = None,
) -> list[str]:
    """What each access costs: its tile where there are several, its op, the counts; what was chosen, below.

    Args:
        problem: whose accesses they are.
        accesses: the totals of each.
        profiler: what stands in a last column of that name, access by access.
    """
    owner = {a.name: (a.tile,) for a in problem.accesses} if isinstance(problem, Block) else {}
    named = ("access", *["tile"][: len(owner)], "op")
    more = ("profiler",) if profiler is not None else ()
    rows = [(*named, "wavefronts", "ideal", "bank_conflicts", *more)]
    for a in accesses:
        counts = str(a.wavefronts), str(a.ideal), str(a.bank_conflicts)
        own = (profiler(a),) if profiler is not None else ()
        rows.append((a.name, *owner.get(a.name, ()), operation_text(a, problem), *counts, *own))
    table = columns(rows, set(range(len(named))))
    return [*table, *_over_values(accesses), *descriptor_lines(accesses), *_chosen_lanes(accesses)]


def _proved(weighted_excess: float | None, proof: Proof) -> list[str]:
    """What is proved, line by line."""
    lines = []
    if proof.weighted_excess is not None:
        bound = proof.weighted_excess
        lines.append(f"  weighted excess {weighted_excess:g} >= {bound.lower_bound:g} in {bound.scope}")
    lines.append(
        f"  excess >= {proof.excess.lower_bound} in {proof.excess.scope}; "
        f"bytes >= {proof.bytes.lower_bound:,} in {proof.bytes.scope}"
    )
    if proof.every_layout is not None:
        lines.append(f"  excess >= {proof.every_layout.lower_bound:g} in {proof.every_layout.scope}")
    if proof.evidence:
        lines.append(f"  the bound on every layout rests on {proof.evidence}")
    if proof.index_cost is not None:
        proved = "proved least" if proof.index_cost.proved else "not proved least"
        lines.append(f"  index cost {proof.index_cost.value} instructions, {proved} at this excess and size")
    return lines


def _tile_rows(block: Block, arrangement: Arrangement, owner: Mapping[str, str]) -> list[tuple[str, ...]]:
    tiles = {tile.name: tile for tile in block.tiles}
    rows: list[tuple[str, ...]] = [
        ("tile", "shape", "offset (elements)", "base", "stages", "stage", "used", "excess")
    ]
    for (_, problem), part in zip(groups(block), arrangement.tiles, strict=True):
        result = part.result
        for k, place in enumerate(part.places):
            tile = tiles[place.tile]
            offset = f"as {part.tiles[0]}" if k else str(result.offset)
            if not alike(tile, problem.tile):
                own = own_answer(result, block.problem(tile), problem.tile)
                offset = own if isinstance(own, str) else str(own.offset)
            rows.append(
                (
                    place.tile,
                    shape_text(tile),
                    offset,
                    f"{place.base_bytes:,}",
                    str(place.stages),
                    f"{place.stage_bytes:,}",
                    f"{place.bytes:,}",
                    str(sum(a.excess for a in result.accesses if owner[a.name] == place.tile)),
                )
            )
    return rows


def _table(result: Result) -> list[str]:
    """What a formula looks up, which takes no shared memory but is not free."""
    layout = result.layout
    found = lookups(offset_expression(layout)) if layout is not None and layout.lookup else ()
    lines = []
    for one in found:
        count = len(one.values)
        size = count * (2 if max(one.values) < 1 << 16 else 4)
        lines.append(
            f"  table      {count:,} entries, {size:,} bytes of global memory; a load to look one up"
        )
    return lines


def _chosen_lanes(accesses: Sequence[AccessReport]) -> list[str]:
    """Which thread handles what, where that was chosen."""
    lines = []
    for access in accesses:
        if access.index is not None:
            loops = "".join(f", {name} < {trips}" for name, trips in (access.loops or {}).items())
            where = f"; only where {abridged(access.where)}" if access.where is not None else ""
            lines.append(f"  {access.name}: [{', '.join(map(abridged, access.index))}] for tid{loops}{where}")
            for table in tables((*access.index, access.where or "")):
                size = 2 * len(table)
                lines.append(
                    f"    {len(table):,} entries, {size:,} bytes of global memory; a load to look one up"
                )
    return ["", *lines] if lines else []


def _estimated(took: Estimate) -> str:
    text = f"estimated {took.cycles:,.0f} cycles a pass of a block, {took.instructions:,} index instructions"
    text += f" (as measured on {took.borrowed})" if took.borrowed else ""
    return text + ("; not even one such block fits on a multiprocessor" if took.blocks_per_sm == 0 else "")


def rounds_text(grown: ModelGrowth) -> str:
    """How large one model became."""
    return (
        f"rounds {grown.rounds}, linearisations written out {grown.written_out}, "
        f"proposals rejected {grown.rejected}, variables {grown.variables}, constraints {grown.constraints}"
    )


def operation_text(access: AccessReport, problem: Problem | Block) -> str:
    """The op, with what was chosen and what the counts stand for."""
    source = next(a for a in problem.accesses if a.name == access.name)
    chosen = f", {access.bytes} bytes" if isinstance(source.bytes, tuple) else ""
    return f"{access.op}{chosen}" + (f" ({access.any_is})" if access.any_is else "")


def _over_values(accesses: Sequence[AccessReport]) -> list[str]:
    """What the counts of accesses stand for whose lanes choose at run time."""
    meaning = {"worst": "worst over all values", "uniform": "expected over uniform values"}
    return [
        f"  ({word}): {text}" for word, text in meaning.items() if any(a.any_is == word for a in accesses)
    ]


def _verdict(result: Result, seconds: float | None) -> str:
    what = "no bank conflicts" if not result.excess else f"{result.excess} excess wavefronts remain"
    if not result.excess and any(a.any_is for a in result.accesses):
        what = "no more wavefronts than the values need"
    proof = result.proof
    if result.status is Status.OPTIMAL:
        return f"optimal: {what}, {best_as(result.excess, proof)}; verified at every lane"
    after = f" after {seconds:.1f} s" if seconds is not None else ""
    if result.excess:
        what = f"{result.excess} excess wavefronts found, {proof.excess.lower_bound} proved to be needed"
    elif result.bytes != proof.bytes.lower_bound:
        what += f"; {result.bytes:,} bytes found, {proof.bytes.lower_bound:,} proved to be needed"
    return f"{result.status}{after}: {what}; not proved best; verified at every lane"


def _block_verdict(found: Arrangement) -> str:
    """What was found of several tiles, and whether it is proved best."""
    what = f"{found.excess} excess wavefronts remain" if found.excess else "no bank conflicts"
    optimal = found.status is Status.OPTIMAL
    proved = best_as(found.excess, found.proof) if optimal else "not proved best"
    return f"{found.status}: {what}, {proved}; verified at every lane and base"


def best_as(excess: float | None, proof: Proof) -> str:
    """What is best of an answer of so much excess, weights not applied, where the proof is complete."""
    weighs = proof.weighted_excess is not None and (excess or 0) > proof.excess.lower_bound
    least = proof.objective
    everywhere = (least.everywhere or not least.lower_bound) and proof.bytes.everywhere
    return "proved best" + " as weighted" * weighs + " of the layouts searched" * (not everywhere)


def columns(rows: Sequence[Sequence[str]], left: Set[int]) -> list[str]:
    """Rows as aligned text: the columns in `left` to the left, the others, numbers, to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            c.ljust(w) if k in left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
