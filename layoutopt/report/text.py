"""Answers of `solve` and audits of `check` as text for people."""

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple

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
    Proof,
    Result,
    Stages,
    Status,
    TensorMap,
)
from layoutopt.problems.same_layout import alike, groups
from layoutopt.problems.text import abridged, count_text, instruction_text, shape_text, tables, tile_text
from layoutopt.problems.types import Access, Block, Problem, Resources
from layoutopt.study.block import own_answer
from layoutopt.study.check import Audit, AuditedAccess, AuditStatus, BlockAudit


class _TileRow(NamedTuple):
    """A tile of several, and its layout: its place, bytes of one stage, and excess wavefronts."""

    tile: str
    offset: str
    stages: Stages
    bytes: int
    excess: float


def report(problem: Problem | Block, found: Result | Arrangement, seconds: float | None = None) -> str:
    """The human report of a solve, which took `seconds`, without the code."""
    lines = _head(problem, found.target)
    if not found.has_layout:
        return "\n".join([*lines, f"{found.status}: {found.reason}", ""])
    if isinstance(problem, Problem):
        assert isinstance(found, Result)
        more = (found.bytes or 0) - problem.tile.bytes
        accesses: Sequence[AccessReport] = found.accesses
        lines += [
            f"  offset     {found.offset}  (elements)",
            f"  family     {found.family}",
            *_lookup_lines(found),
            f"  bytes      {found.bytes:,} used, {found.declared_bytes:,} declared "
            + (f"({more:,} more than the elements)" if more else "(the elements alone)"),
        ]
    else:
        assert isinstance(found, Arrangement)
        accesses = [access for part in found.tiles for access in part.result.accesses]
        lines += [*_placed_lines(problem, _solved_rows(problem, found)), "", _bytes_line(found)]
    lines += [
        f"  alignment  {found.alignment_bytes} bytes",
        *_cluster_lines(problem.block),
        "",
        *access_lines(problem, accesses),
        "",
        f"  {_verdict(found, accesses, seconds)}",
        *_proof_lines(found.weighted_excess, found.proof),
    ]
    if isinstance(found, Result):
        lines += [f"  {_estimate_text(found.estimate)}"] if found.estimate is not None else []
        lines += [f"  {found.faster.text}"] if found.faster is not None else []
        lines += [f"  {hint}" for hint in found.hints]
        if found.model is not None and found.method == "model":
            lines.append(f"  one model: {rounds_text(found.model)}")
    lines += [f"  {found.reason}"] if found.reason else []
    return "\n".join([*lines, ""])


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
    sources = {a.name: a for a in problem.accesses}
    tile_of = {a.name: (a.tile,) for a in problem.accesses} if isinstance(problem, Block) else {}
    texts = ("access", "tile", "op") if tile_of else ("access", "op")
    last = ("profiler",) if profiler is not None else ()
    rows = [(*texts, "wavefronts", "ideal", "bank conflicts", *last)]
    for a in accesses:
        source = sources[a.name]
        open_width = isinstance(source.bytes, tuple) or source.instructions is not None
        width = f", {a.bytes} bytes" if open_width and a.bytes is not None else ""
        op = f"{a.op}{width}" + (f" ({a.any_is})" if a.any_is else "")
        counts = str(a.wavefronts), str(a.ideal), str(a.bank_conflicts)
        counters = (profiler(a),) if profiler is not None else ()
        rows.append((a.name, *tile_of.get(a.name, ()), op, *counts, *counters))
    lines = columns(rows, set(range(len(texts))))
    for word, meaning in (("worst", "worst over all values"), ("uniform", "expected over uniform values")):
        lines += [f"  ({word}): {meaning}"] if any(a.any_is == word for a in accesses) else []
    by_itself = [f"  {a.name}: {_descriptor_text(a)}" for a in accesses if a.descriptor is not None]
    chosen = [line for access in accesses for line in _chosen_lanes(sources[access.name], access)]
    return [*lines, *_after_blank(by_itself), *_after_blank(chosen)]


def _after_blank(lines: list[str]) -> list[str]:
    """Lines after an empty one; nothing where there are none."""
    return ["", *lines] if lines else []


def _proof_lines(weighted_excess: float | None, proof: Proof) -> list[str]:
    """What is proved, line by line."""
    lines, weighted = [], "weighted " * (proof.weighted_excess is not None)
    if proof.weighted_excess is not None:
        bound = proof.weighted_excess
        lines.append(f"  weighted excess {weighted_excess:g} >= {bound.lower_bound:g} in {bound.scope}")
    excess = f"excess >= {proof.excess.lower_bound} in {proof.excess.scope}; " * bool(
        proof.excess.lower_bound
    )
    lines.append(f"  {excess}bytes >= {proof.bytes.lower_bound:,} in {proof.bytes.scope}")
    if proof.every_layout is not None:
        lines.append(
            f"  {weighted}excess >= {proof.every_layout.lower_bound:g} in {proof.every_layout.scope}"
        )
    if proof.wavefronts is not None:
        lines.append(
            f"  {weighted}wavefronts >= {proof.wavefronts.lower_bound:g} in {proof.wavefronts.scope}"
        )
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
        what = count_text(len(problem.tiles), "tile")
    return [f"{problem.name}  {what}  on {target}", ""]


def _solved_rows(block: Block, found: Arrangement) -> Iterator[_TileRow]:
    """The tiles under the layouts found; the offset of one that shares a layout may be `as A`."""
    tile_of, tiles = {a.name: a.tile for a in block.accesses}, {tile.name: tile for tile in block.tiles}
    for (_, shared), layout in zip(groups(block), found.tiles, strict=True):
        result = layout.result
        for k, place in enumerate(layout.places):
            tile = tiles[place.tile]
            offset = f"as {layout.tiles[0]}" if k else str(result.offset)
            if not alike(tile, shared.tile):
                own = own_answer(result, block.problem(tile), shared.tile)
                offset = own if isinstance(own, str) else str(own.offset)
            excess = sum(a.excess for a in result.accesses if tile_of[a.name] == place.tile)
            yield _TileRow(place.tile, offset, place, place.bytes, excess)


def _placed_lines(block: Block, rows: Iterable[_TileRow]) -> list[str]:
    """A table of the tiles: shape, offset, place, bytes and excess."""
    tiles = {tile.name: tile for tile in block.tiles}
    lines = [("tile", "shape", "offset (elements)", "base", "stages", "stage", "used", "excess")]
    for name, offset, place, used, excess in rows:
        stages = f"{place.base_bytes:,}", str(place.stages), f"{place.stage_bytes:,}"
        lines.append((name, shape_text(tiles[name]), offset, *stages, f"{used:,}", str(excess)))
    return columns(lines, {0, 1, 2})


def _bytes_line(found: Arrangement | BlockAudit) -> str:
    """What all tiles take, and the most that they may."""
    limit = f" of {found.max_bytes:,}" if found.max_bytes is not None else ""
    return f"  bytes      {found.bytes:,}{limit}"


def _lookup_lines(result: Result) -> Iterator[str]:
    """What a formula looks up, which takes no shared memory but is not free."""
    layout = result.layout
    for one in lookups(offset_expression(layout)) if layout is not None and layout.lookup else ():
        yield f"  table      {_lookup_text(len(one.values), 2 if max(one.values) < 1 << 16 else 4)}"


def _lookup_text(count: int, each: int) -> str:
    return f"{count:,} entries, {count * each:,} bytes of global memory; a load to look one up"


def _chosen_lanes(source: Access, access: AccessReport) -> Iterator[str]:
    """Which thread handles what and by which instructions, where that was chosen."""
    if access.index is None:
        return
    if source.instructions is not None:
        before, after = math.prod(source.loops.values()), math.prod((access.loops or {}).values())
        width = f" {source.bytes} bytes" if source.bytes is not None else ""
        yield f"  {access.name}: {before} x {source.op}{width} ->{instruction_text(source, access, after)}"
    loops = "".join(f", {name} < {trips}" for name, trips in (access.loops or {}).items())
    where = f"; only where {abridged(access.where)}" if access.where is not None else ""
    yield f"  {access.name}: [{', '.join(map(abridged, access.index))}] for tid{loops}{where}"
    for table in tables((*access.index, access.where or "")):
        yield f"    {_lookup_text(len(table), 2)}"


def _estimate_text(took: Estimate) -> str:
    text = f"estimated {took.cycles:,.0f} cycles a pass of a block, {took.instructions:,} index instructions"
    text += f" (as measured on {took.borrowed})" if took.borrowed else ""
    return text + ("; not even one such block fits on a multiprocessor" if took.blocks_per_sm == 0 else "")


def rounds_text(grown: ModelGrowth) -> str:
    """How large one model became."""
    return (
        f"rounds {grown.rounds}, linearisations written out {grown.written_out}, "
        f"proposals rejected {grown.rejected}, variables {grown.variables}, constraints {grown.constraints}"
    )


def _verdict(found: Result | Arrangement, accesses: Sequence[AccessReport], seconds: float | None) -> str:
    """What was found, and whether it is proved best."""
    what = "no bank conflicts"
    excess = count_text(found.excess or 0, "excess wavefront")
    if found.excess:
        what = f"{excess} remain{'s' if found.excess == 1 else ''} (more than the data needs)"
    elif any(a.any_is for a in accesses):
        what = "no more wavefronts than the values need"
    proof, verified = found.proof, "verified at every lane"
    if isinstance(found, Arrangement):
        verified += " and base"
    if found.status is Status.OPTIMAL:
        return f"optimal: {what}, {best_as(found.excess, proof)}; {verified}"
    after = f" after {seconds:.1f} s" if seconds is not None else ""
    if found.excess:
        what = f"{excess} found, {proof.excess.lower_bound} proved to be needed"
    elif found.bytes != proof.bytes.lower_bound:
        what += f"; {found.bytes:,} bytes found, {proof.bytes.lower_bound:,} proved to be needed"
    return f"{found.status}{after}: {what}; not proved best; {verified}"


def best_as(excess: float | None, proof: Proof) -> str:
    """In which sense an answer with a complete proof is best; `excess` is its own, without weights."""
    as_weighted = proof.weighted_excess is not None and (excess or 0) > proof.excess.lower_bound
    bound = proof.objective
    everywhere = (bound.everywhere or not bound.lower_bound) and proof.bytes.everywhere
    return "proved best" + " as weighted" * as_weighted + " of the layouts searched" * (not everywhere)


# An audit ----------------------------------------------------------------------------------------


def audit_report(problem: Problem | Block, audit: Audit | BlockAudit) -> str:
    """The human report of a check."""
    lines = _head(problem, audit.target)
    findings = [("", finding) for finding in audit.findings]  # behind the tile that they are about
    if isinstance(audit, Audit):
        lines += [
            f"  offset     {audit.offset or 'a table'}  (elements)",
            f"  bytes      {audit.bytes:,} used, {audit.declared_bytes:,} declared",
            f"  alignment  {audit.alignment_bytes} bytes",
            "",
            *access_lines(problem, audit.accesses, _counter_suffix),
            "",
            *_profiler_legend(audit),
            "",
        ]
    else:
        assert isinstance(problem, Block)
        rows = []
        for tile in audit.tiles:
            own = tile.audit
            findings += [(f"{tile.tile}: ", finding) for finding in own.findings]
            rows.append(_TileRow(tile.tile, str(own.offset), tile, own.bytes, own.excess))
        lines += [*_placed_lines(problem, rows), "", _bytes_line(audit), ""]
        lines += [*access_lines(problem, [a for tile in audit.tiles for a in tile.audit.accesses]), ""]
    for prefix, finding in findings:
        first, *rest = f"{prefix}{finding.kind}: {finding.message}".split("\n")
        lines += [*wrapped(first, 120, "  "), *rest]
    if any(finding.kind == "fix" for _, finding in findings):
        lines.append("  layoutopt fix puts a layout into a CUDA source; layoutopt emit writes its code")
    lines += [""] if findings else []
    verdict = count_text(audit.excess, "excess wavefront") if audit.excess else "no bank conflicts"
    if audit.status is AuditStatus.INFEASIBLE:
        alone = isinstance(audit, Audit)
        verdict = "the layout cannot hold the tile" if alone else "the block cannot hold its tiles so"
    return "\n".join([*lines, f"  {verdict}", ""])


def _profiler_legend(audit: Audit) -> list[str]:
    """What the column of the profiler stands for."""
    if any(BANK_CONFLICTS in access.counters for access in audit.accesses) or not any(
        access.counters for access in audit.accesses
    ):
        return [
            f"  profiler: {BANK_CONFLICTS}*.sum and",
            f"            {WAVEFRONTS}*.sum; * is the suffix above, or nothing for the total",
        ]
    return ["  profiler: the counter of cycles lost to conflicts, which bank_conflicts predicts (inferred)"]


def _counter_suffix(access: AuditedAccess) -> str:
    """A cell of the profiler's column: how the name of the access's own counter ends, such as `_op_ld`."""
    if access.counters and WAVEFRONTS not in access.counters:
        return ", ".join(access.counters)
    own = [name for name, count in access.counters.items() if name.startswith(f"{WAVEFRONTS}_") and count]
    if own:
        return own[0].removeprefix(WAVEFRONTS)
    return "total only" if access.counters else "not counted"


# What the hardware does by itself ----------------------------------------------------------------


def _cluster_lines(block: Resources) -> list[str]:
    """A line about the cluster that the block belongs to, where it does."""
    if block.cluster is None:
        return []
    portable = engine("tma").portable_cluster
    beyond = f"; more than {portable} are not portable" if block.cluster > portable else ""
    return [f"  cluster    {block.cluster} blocks, at once on one GPC{beyond}"]


def _descriptor_text(access: AccessReport) -> str:
    """How the hardware reaches the tile by itself; empty where lanes execute the access."""
    match access.descriptor:
        case TensorMap() as used:
            box = "x".join(map(str, used.box))
            dims = ", ".join(map(str, used.box_dim))
            text = f"{count_text(used.boxes, 'box', 'boxes')} of {box}, boxDim {{{dims}}}, {used.swizzle}"
            if used.multicast > 1:
                each = count_text(used.boxes // used.multicast, "box", "boxes")
                text += f", {each} by each of {used.multicast} blocks of the cluster to all of them"
        case MatrixDescriptor() as used:
            rows, depth = used.shape
            side = "n" if access.op.endswith("B") else "m"
            text = (
                f"{used.major}-major, mode {used.mode} (code {used.code}), offsets: leading "
                f"{used.leading_byte_offset:,}, stride {used.stride_byte_offset:,}; "
                f"{count_text(used.instructions, 'instruction')} of {side}{rows} k{depth}"
            )
        case BulkCopy() as used:
            text = f"{count_text(used.copies, 'copy', 'copies')} of {used.bytes:,} bytes"
        case None:
            return ""
    rules = engine(BY_ITSELF[access.op])
    not_run = "" if rules.confidence == "measured" else f"; {rules.name} by {rules.confidence}, not run"
    return f"{text}; base: a multiple of {used.alignment_bytes:,} bytes{not_run}"


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


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """`text` in lines of at most `width` characters, those after the first indented once more."""
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=f"{indent}  ") or [""]
