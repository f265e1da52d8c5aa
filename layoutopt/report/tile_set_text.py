"""Several tiles as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from layoutopt.problems.answer import Arrangement, Status
from layoutopt.problems.types import Block
from layoutopt.problems.words import shape_text, tile_text
from layoutopt.report.descriptor_text import cluster_lines, descriptor_lines
from layoutopt.report.text import best_as, columns, explanation_report
from layoutopt.search.tile_groups import alike, groups
from layoutopt.study.block import own_answer
from layoutopt.study.check import BlockAudit
from layoutopt.study.explanation import BlockExplanation


def arrangement_report(tile_set: Block, arrangement: Arrangement) -> str:
    """The human report of a solve of several tiles, without the code."""
    count = len(tile_set.tiles)
    lines = [f"{tile_set.name}  {count} tile{'s' * (count > 1)}  on {arrangement.target}", ""]
    if not arrangement.tiles:
        return "\n".join([*lines, f"{arrangement.status}: {arrangement.reason}"]) + "\n"
    owner = {access.name: access.tile for access in tile_set.accesses}
    accesses = [("access", "tile", "op", "wavefronts", "ideal", "bank_conflicts")]
    accesses += [
        (a.name, owner[a.name], a.op, str(a.wavefronts), str(a.ideal), str(a.bank_conflicts))
        for part in arrangement.tiles
        for a in part.result.accesses
    ]
    limit = f" of {arrangement.max_bytes:,}" if arrangement.max_bytes is not None else ""
    lines += [
        *columns(_tile_rows(tile_set, arrangement, owner), {0, 1, 2}),
        "",
        f"  bytes      {arrangement.bytes:,}{limit}",
        f"  alignment  {arrangement.alignment_bytes} bytes",
        *cluster_lines(tile_set.block),
        "",
        *columns(accesses, {0, 1, 2}),
        *descriptor_lines([a for part in arrangement.tiles for a in part.result.accesses]),
        "",
        *_verdict(arrangement),
    ]
    return "\n".join(lines) + "\n"


def tile_set_audit_report(tile_set: Block, audit: BlockAudit) -> str:
    """The human report of a check of several tiles."""
    tiles = {tile.name: tile for tile in tile_set.tiles}
    placed = [("tile", "shape", "offset (elements)", "base", "stages", "stage", "used", "excess")]
    placed += [
        (
            part.tile,
            shape_text(tiles[part.tile]),
            str(part.audit.offset),
            f"{part.base_bytes:,}",
            str(part.stages),
            f"{part.stage_bytes:,}",
            f"{part.audit.bytes:,}",
            str(part.audit.excess),
        )
        for part in audit.tiles
    ]
    accesses = [("access", "tile", "op", "wavefronts", "ideal", "bank_conflicts")]
    accesses += [
        (a.name, part.tile, a.op, str(a.wavefronts), str(a.ideal), str(a.bank_conflicts))
        for part in audit.tiles
        for a in part.audit.accesses
    ]
    limit = f" of {audit.max_bytes:,}" if audit.max_bytes is not None else ""
    lines = [f"{tile_set.name}  {len(tiles)} tile{'s' * (len(tiles) > 1)}  on {audit.target}", ""]
    lines += [*columns(placed, {0, 1, 2}), "", f"  bytes      {audit.bytes:,}{limit}", ""]
    lines += columns(accesses, {0, 1, 2})
    lines += [*descriptor_lines([a for part in audit.tiles for a in part.audit.accesses]), ""]
    lines += [f"  {finding.kind}: {finding.message}" for finding in audit.findings]
    lines += [f"  {part.tile}: {f.kind}: {f.message}" for part in audit.tiles for f in part.audit.findings]
    verdict = f"{audit.excess:,} excess wavefronts" if audit.excess else "no bank conflicts"
    if audit.status is Status.INFEASIBLE:
        verdict = "the block cannot hold its tiles so"
    return "\n".join([*lines, "", f"  {verdict}"]) + "\n"


def tile_set_explanation_report(tile_set: Block, explanation: BlockExplanation) -> str:
    """The human report of an explanation of several tiles: all of them together, then each."""
    lines = [f"{tile_set.name}  {tile_text(tile_set)}  on {explanation.target}", ""]
    for reason in explanation.reasons:
        lines += [*textwrap.wrap(reason, 100), ""]
    if explanation.relaxations:
        lines += ["What would help:", *(f"  {r.kind}: {r.message}" for r in explanation.relaxations), ""]
    parts = zip(groups(tile_set), explanation.tiles, strict=True)
    return (
        "\n".join(lines)
        + "\n"
        + "\n".join(explanation_report(problem, part.explanation) for (_, problem), part in parts)
    )


def _tile_rows(tile_set: Block, arrangement: Arrangement, owner: Mapping[str, str]) -> list[tuple[str, ...]]:
    tiles = {tile.name: tile for tile in tile_set.tiles}
    rows: list[tuple[str, ...]] = [
        ("tile", "shape", "offset (elements)", "base", "stages", "stage", "used", "excess")
    ]
    for (_, problem), part in zip(groups(tile_set), arrangement.tiles, strict=True):
        result = part.result
        for k, place in enumerate(part.places):
            tile = tiles[place.tile]
            offset = f"as {part.tiles[0]}" if k else str(result.offset)
            if not alike(tile, problem.tile):
                own = own_answer(result, tile_set.problem(tile), problem.tile)
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


def _verdict(arrangement: Arrangement) -> Iterator[str]:
    """What was found, and what is proved of it."""
    proof = arrangement.proof
    what = f"{arrangement.excess} excess wavefronts remain" if arrangement.excess else "no bank conflicts"
    optimal = arrangement.status is Status.OPTIMAL
    proved = best_as(arrangement.excess, proof) if optimal else "not proved best"
    yield f"  {arrangement.status}: {what}, {proved}; verified at every lane and base"
    if proof.weighted_excess is not None:
        bound = proof.weighted_excess
        yield f"  weighted excess {arrangement.weighted_excess:g} >= {bound.lower_bound:g} in {bound.scope}"
    yield (
        f"  excess >= {proof.excess.lower_bound} in {proof.excess.scope}; "
        f"bytes >= {proof.bytes.lower_bound:,} in {proof.bytes.scope}"
    )
    if proof.index_cost is not None:
        least = "proved least" if proof.index_cost.proved else "not proved least"
        yield f"  index cost {proof.index_cost.value} instructions, {least} at this excess and size"
    if arrangement.reason:
        yield f"  {arrangement.reason}"
