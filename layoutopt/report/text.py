"""Answers of `solve` and audits of `check` as text for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from layoutopt.expressions.grammar import lookups
from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS
from layoutopt.hardware.dictated import engine
from layoutopt.hardware.operations import BY_ITSELF
from layoutopt.layout.formula import offset_expression
from layoutopt.problems.answer import (
    AccessReport,
    Arrangement,
    BulkCopy,
    Estimate,
    MatrixDescriptor,
    ModelGrowth,
    Place,
    Proof,
    Result,
    Status,
    TensorMap,
)
from layoutopt.problems.text import abridged, shape_text, tables, tile_text
from layoutopt.problems.types import Block, Problem, Resources
from layoutopt.search.same_layout import alike, groups
from layoutopt.study.block import own_answer
from layoutopt.study.check import Audit, AuditedAccess, AuditStatus, BlockAudit, PlacedAudit

# A tile, its offset, where it lies, the bytes that it uses and its excess.
_Row = tuple[str, str, Place | PlacedAudit, int, float]


def report(problem: Problem | Block, found: Result | Arrangement, seconds: float | None = None) -> str:
    """The human report of a solve, which took so many seconds, without the code."""
    if isinstance(problem, Problem):
        assert isinstance(found, Result)
        return _tile_report(problem, found, seconds)
    assert isinstance(found, Arrangement)
    return _block_report(problem, found)


def _tile_report(problem: Problem, result: Result, seconds: float | None) -> str:
    lines = _head(problem, result.target)
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
        *_cluster_lines(problem.block),
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
    lines = _head(block, found.target)
    if not found.tiles:
        return "\n".join([*lines, f"{found.status}: {found.reason}"]) + "\n"
    limit = f" of {found.max_bytes:,}" if found.max_bytes is not None else ""
    lines += [
        *_placed_lines(block, _solved_rows(block, found)),
        "",
        f"  bytes      {found.bytes:,}{limit}",
        f"  alignment  {found.alignment_bytes} bytes",
        *_cluster_lines(block.block),
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
    return [*table, *_over_values(accesses), *_descriptor_lines(accesses), *_chosen_lanes(accesses)]


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


def _head(problem: Problem | Block, target: str) -> list[str]:
    """What was asked, and an empty line."""
    what = tile_text(problem)
    if isinstance(problem, Block):
        what = f"{len(problem.tiles)} tile{'s' * (len(problem.tiles) > 1)}"
    return [f"{problem.name}  {what}  on {target}", ""]


def _solved_rows(block: Block, found: Arrangement) -> Iterator[_Row]:
    owner, tiles = {a.name: a.tile for a in block.accesses}, {tile.name: tile for tile in block.tiles}
    for (_, problem), part in zip(groups(block), found.tiles, strict=True):
        result = part.result
        for k, place in enumerate(part.places):
            tile = tiles[place.tile]
            offset = f"as {part.tiles[0]}" if k else str(result.offset)
            if not alike(tile, problem.tile):
                own = own_answer(result, block.problem(tile), problem.tile)
                offset = own if isinstance(own, str) else str(own.offset)
            excess = sum(a.excess for a in result.accesses if owner[a.name] == place.tile)
            yield place.tile, offset, place, place.bytes, excess


def _placed_lines(block: Block, rows: Iterable[_Row]) -> list[str]:
    """Where each tile lies: its name and offset, its place, the bytes it uses and its excess."""
    tiles = {tile.name: tile for tile in block.tiles}
    lines = [("tile", "shape", "offset (elements)", "base", "stages", "stage", "used", "excess")]
    for name, offset, place, used, excess in rows:
        where = f"{place.base_bytes:,}", str(place.stages), f"{place.stage_bytes:,}"
        lines.append((name, shape_text(tiles[name]), offset, *where, f"{used:,}", str(excess)))
    return columns(lines, {0, 1, 2})


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


# An audit ----------------------------------------------------------------------------------------


def audit_report(problem: Problem | Block, audit: Audit | BlockAudit) -> str:
    """The human report of a check."""
    if isinstance(problem, Problem):
        assert isinstance(audit, Audit)
        return _audited_tile(problem, audit)
    assert isinstance(audit, BlockAudit)
    return _audited_block(problem, audit)


def _audited_tile(problem: Problem, audit: Audit) -> str:
    lines = [
        *_head(problem, audit.target),
        f"  offset     {audit.offset or 'a table'}  (elements)",
        f"  bytes      {audit.bytes:,} used, {audit.declared_bytes:,} declared",
        f"  alignment  {audit.alignment_bytes} bytes",
        "",
    ]
    lines += [*access_lines(problem, audit.accesses, _counted), "", *_profiler(audit), ""]
    lines += [f"  {finding.kind}: {finding.message}" for finding in audit.findings]
    verdict = (
        "the layout cannot hold the tile" if audit.status is AuditStatus.INFEASIBLE else "no bank conflicts"
    )
    if audit.status is not AuditStatus.INFEASIBLE and audit.excess:
        verdict = f"{audit.excess:,} excess wavefronts"
    lines += ["", f"  {verdict}"] if audit.findings else [f"  {verdict}"]
    return "\n".join(lines) + "\n"


def _audited_block(block: Block, audit: BlockAudit) -> str:
    """The same of several tiles."""
    rows = [(p.tile, str(p.audit.offset), p, p.audit.bytes, p.audit.excess) for p in audit.tiles]
    limit = f" of {audit.max_bytes:,}" if audit.max_bytes is not None else ""
    lines = [*_head(block, audit.target), *_placed_lines(block, rows), ""]
    lines += [f"  bytes      {audit.bytes:,}{limit}", ""]
    lines += [*access_lines(block, [a for part in audit.tiles for a in part.audit.accesses]), ""]
    lines += [f"  {finding.kind}: {finding.message}" for finding in audit.findings]
    lines += [f"  {part.tile}: {f.kind}: {f.message}" for part in audit.tiles for f in part.audit.findings]
    verdict = f"{audit.excess:,} excess wavefronts" if audit.excess else "no bank conflicts"
    if audit.status is AuditStatus.INFEASIBLE:
        verdict = "the block cannot hold its tiles so"
    return "\n".join([*lines, "", f"  {verdict}"]) + "\n"


def _profiler(audit: Audit) -> list[str]:
    """What the column of the profiler stands for."""
    if any(BANK_CONFLICTS in access.counters for access in audit.accesses) or not any(
        access.counters for access in audit.accesses
    ):
        return [
            f"  profiler: {BANK_CONFLICTS}*.sum and",
            f"            {WAVEFRONTS}*.sum; * is the suffix above, or nothing for the total",
        ]
    return ["  profiler: the counter of cycles lost to conflicts, which bank_conflicts predicts (inferred)"]


def _counted(access: AuditedAccess) -> str:
    if access.counters and WAVEFRONTS not in access.counters:
        return ", ".join(access.counters)
    moved = [name for name in access.counters if name.startswith(WAVEFRONTS + "_") and access.counters[name]]
    if moved:
        return moved[0].removeprefix(WAVEFRONTS)
    return "total only" if access.counters else "not counted"


# What the hardware does by itself ----------------------------------------------------------------


def _descriptor_lines(accesses: Sequence[AccessReport]) -> list[str]:
    """A line for each access that no lane executes, an empty one first; nothing where there is none."""
    lines = [
        f"  {access.name}: {_descriptor_text(access)}" for access in accesses if access.descriptor is not None
    ]
    return ["", *lines] if lines else []


def _cluster_lines(block: Resources) -> list[str]:
    """A line about the cluster that the block belongs to, where it does."""
    if block.cluster is None:
        return []
    portable = engine("tma").portable_cluster
    beyond = f"; more than {portable} are not portable" if block.cluster > portable else ""
    return [f"  cluster    {block.cluster} blocks, at once on one GPC{beyond}"]


def _descriptor_text(access: AccessReport) -> str:
    match access.descriptor:
        case TensorMap() as found:
            box = "x".join(map(str, found.box))
            dims = ", ".join(map(str, found.box_dim))
            said = f"{_number_of(found.boxes, 'box', 'boxes')} of {box}, boxDim {{{dims}}}, {found.swizzle}"
            if found.multicast > 1:
                each = _number_of(found.boxes // found.multicast, "box", "boxes")
                said += f", {each} by each of {found.multicast} blocks of the cluster to all of them"
        case MatrixDescriptor() as found:
            rows, depth = found.shape
            side = "n" if access.op.endswith("B") else "m"
            said = (
                f"{found.major}-major, mode {found.mode} (code {found.code}), offsets: leading "
                f"{found.leading_byte_offset:,}, stride {found.stride_byte_offset:,}; "
                f"{_number_of(found.instructions, 'instruction', 'instructions')} of {side}{rows} k{depth}"
            )
        case BulkCopy() as found:
            said = f"{_number_of(found.copies, 'copy', 'copies')} of {found.bytes:,} bytes"
        case None:
            return ""
    rules = engine(BY_ITSELF[access.op])
    unproven = "" if rules.confidence == "measured" else f"; {rules.name} by {rules.confidence}, not run"
    return f"{said}; base: a multiple of {found.alignment_bytes:,} bytes{unproven}"


def _number_of(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


# Tables ------------------------------------------------------------------------------------------


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
