"""Audits as text for people."""

from __future__ import annotations

from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS
from layoutopt.problems.answer import Status
from layoutopt.problems.text import shape_text, tile_text
from layoutopt.problems.types import Block, Problem
from layoutopt.report.text import access_lines, columns
from layoutopt.study.check import Audit, AuditedAccess, BlockAudit


def audit_report(problem: Problem | Block, audit: Audit | BlockAudit) -> str:
    """The human report of a check."""
    if isinstance(problem, Problem):
        assert isinstance(audit, Audit)
        return _tile_report(problem, audit)
    assert isinstance(audit, BlockAudit)
    return _block_report(problem, audit)


def _tile_report(problem: Problem, audit: Audit) -> str:
    lines = [
        f"{problem.name}  {tile_text(problem)}  on {audit.target}",
        "",
        f"  offset     {audit.offset or 'a table'}  (elements)",
        f"  bytes      {audit.bytes:,} used, {audit.declared_bytes:,} declared",
        f"  alignment  {audit.alignment_bytes} bytes",
        "",
    ]
    lines += [*access_lines(problem, audit.accesses, _counted), "", *_profiler(audit), ""]
    lines += [f"  {finding.kind}: {finding.message}" for finding in audit.findings]
    verdict = "the layout cannot hold the tile" if audit.status is Status.INFEASIBLE else "no bank conflicts"
    if audit.status is not Status.INFEASIBLE and audit.excess:
        verdict = f"{audit.excess:,} excess wavefronts"
    lines += ["", f"  {verdict}"] if audit.findings else [f"  {verdict}"]
    return "\n".join(lines) + "\n"


def _block_report(block: Block, audit: BlockAudit) -> str:
    """The same of several tiles."""
    tiles = {tile.name: tile for tile in block.tiles}
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
    limit = f" of {audit.max_bytes:,}" if audit.max_bytes is not None else ""
    lines = [f"{block.name}  {len(tiles)} tile{'s' * (len(tiles) > 1)}  on {audit.target}", ""]
    lines += [*columns(placed, {0, 1, 2}), "", f"  bytes      {audit.bytes:,}{limit}", ""]
    lines += [*access_lines(block, [a for part in audit.tiles for a in part.audit.accesses]), ""]
    lines += [f"  {finding.kind}: {finding.message}" for finding in audit.findings]
    lines += [f"  {part.tile}: {f.kind}: {f.message}" for part in audit.tiles for f in part.audit.findings]
    verdict = f"{audit.excess:,} excess wavefronts" if audit.excess else "no bank conflicts"
    if audit.status is Status.INFEASIBLE:
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
