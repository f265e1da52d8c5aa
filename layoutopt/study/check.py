"""Audit layouts that somebody already uses: what they cost, what is wrong with them, what would mend them.

Of several tiles, each layout is audited by itself; where they lie and what all of it takes is the block's.
"""

import enum
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypedDict, Unpack, overload

import numpy as np
from msgspec.structs import asdict, replace

from layoutopt.accesses.free_lanes import free_accesses, naturally
from layoutopt.accesses.lower import named_choices
from layoutopt.engine.case import case_of, cases
from layoutopt.engine.estimate import estimate, why_no_estimate
from layoutopt.engine.referee import CountedAccess, rounded_count
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.files.checks import fields_of
from layoutopt.ground.budget import Budget, current, spending, unhurried
from layoutopt.ground.json_data import Versioned
from layoutopt.hardware.devices import Device, counters
from layoutopt.layout.families import FAMILIES
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import AccessReport, Estimate, Result, Stages, Status
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.problems.same_layout import groups, within_room
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Block, Problem, constrained
from layoutopt.search.block import solve
from layoutopt.search.choices import settled_under
from layoutopt.search.packing import rounded_up
from layoutopt.study.comparison import Row, recommend
from layoutopt.study.edits import is_large
from layoutopt.study.in_use import AnyLayout, Finding, InUse, errors_of, in_use, remarks_on
from layoutopt.study.rows import costed

# Share of the time in force for findings beyond errors, and for the estimate.
_FINDINGS_SHARE: Final = 0.2
_COUNTING_S: Final = 1.0  # seconds beside twice the time in force, to count what is known only at run time
# Families of which the best is compared, too, when a layout in use is to be replaced.
_SIMPLE_FAMILIES: Final = (("none", "pad"), ("none", "order", "split"), ("none", "xor"))


class AuditStatus(enum.StrEnum):
    """What an audit finds.

    conflict_free: no access takes more wavefronts than its words need.
    conflicts: some do.
    infeasible: the layout cannot hold the tile, or the block its tiles.
    """

    CONFLICT_FREE = "conflict_free"
    CONFLICTS = "conflicts"
    INFEASIBLE = "infeasible"


def _status(sound: bool, excess: float) -> AuditStatus:
    if not sound:
        return AuditStatus.INFEASIBLE
    return AuditStatus.CONFLICTS if excess else AuditStatus.CONFLICT_FREE


class AuditedAccess(AccessReport, frozen=True, kw_only=True):
    """What one access costs, and what the profiler will print for it."""

    counters: dict[str, int]


class Audit(Versioned, frozen=True):
    """What a layout in use costs, and what is wrong with it.

    Attributes:
        problem: its name.
        target: the GPU, such as sm_90.
        status: whether there are conflicts, or the layout cannot hold the tile.
        offset: the layout, an element offset over x0, x1, ...; None for a table.
        bytes: to the end of the last element.
        declared_bytes: of an array declared with every pitch in full.
        alignment_bytes: that the base of the tile must have.
        excess: wavefronts above the ideal, over all warp instructions of all accesses.
        weighted_excess: the same, the accesses weighted as in the file.
        accesses: what each access costs, and its profiler counters.
        findings: what is wrong or could be better, in sentences, each with its kind.
        estimate: of the time it takes; None where it is no formula or no layout, where lanes choose at run
            time, or where no time was left.
    """

    problem: str
    target: str
    status: AuditStatus
    offset: str | None
    bytes: int
    declared_bytes: int
    alignment_bytes: int
    excess: int | float
    weighted_excess: float
    accesses: tuple[AuditedAccess, ...]
    findings: tuple[Finding, ...]
    estimate: Estimate | None
    schema_: Literal["layoutopt.audit/1"] = "layoutopt.audit/1"


class PlacedAudit(Stages, frozen=True):
    """One tile of a block: where it lies, as the file says, else behind those before it; and one stage."""

    audit: Audit


class BlockAudit(Versioned, frozen=True):
    """The outcome for several tiles."""

    problem: str
    target: str
    # Infeasible where a layout cannot hold its tile, or where tiles do not lie as they must
    status: AuditStatus
    bytes: int  # to the end of the last tile as declared, all stages
    max_bytes: int | None  # what the file allows, else what a block of the GPU may take; None where not known
    excess: int | float
    tiles: tuple[PlacedAudit, ...]
    findings: tuple[Finding, ...]  # about the block; those about one layout stand with its tile
    schema_: Literal["layoutopt.block_audit/1"] = "layoutopt.block_audit/1"


class _How(TypedDict, total=False):
    target: Device | str | None
    mend: bool


@overload
def check(problem: Problem, layout: AnyLayout | None = None, **how: Unpack[_How]) -> Audit: ...
@overload
def check(problem: Block, layout: None = None, **how: Unpack[_How]) -> BlockAudit: ...
def check(
    problem: Problem | Block,
    layout: AnyLayout | None = None,
    *,
    target: Device | str | None = None,
    mend: bool = False,
) -> Audit | BlockAudit:
    """Audit `layout` under the accesses of `problem`.

    The caller may put a budget in force (`layoutopt.ground.budget`). Counting accesses with values known only
    at run time takes at most twice its time and a second, counting others what it takes. Findings, which
    follow, have a share of the budget, and the search for a better layout what is left of it.

    Args:
        problem: a tile and its accesses, or several, each with a layout in the file.
        layout: element offsets as an expression over x0, x1, ...; a `Layout` or a result of `solve`; or an
            integer array of byte offsets in the shape of the tile. None takes the `layout.offset` of the
            file, else its `published.offset`.
        target: the device or its name, where it is not the one the problem names.
        mend: search for a layout to take in the place of this one.

    Raises:
        OutOfTime: the time to count was over before the end.
        ProblemFileError: there is no layout to check, or it cannot be read.
    """
    gpu = target_of(problem, target)
    if not isinstance(problem, Block):
        _, audit = _tile_audit(problem, layout, gpu, mend)
        return audit
    if layout is not None:
        raise ProblemFileError("layout", "is one tile's; of several, the file says each tile's layout")
    return _block_audit(problem, gpu, mend)


def _tile_audit(problem: Problem, layout: AnyLayout | None, gpu: Device, mend: bool) -> tuple[InUse, Audit]:
    """A layout (None for the file's) under the lanes and widths that cost least, and its audit."""
    chosen, left = problem, current().seconds
    if problem.is_free:  # lanes and instructions are chosen for the layout, whose table no lane changes
        with unhurried():
            free = free_accesses(problem, gpu)
            natural = case_of(naturally(problem, free), gpu)
        table = in_use(natural, layout).tile_table.repeat(problem.tile.packed)
        with spending(current().part(_FINDINGS_SHARE)):
            chosen = settled_under(problem, gpu, table, free)
    at_run_time = any(access.any for access in problem.accesses)
    with spending(Budget(2 * left + _COUNTING_S if left is not None and at_run_time else None)):
        options = [in_use(case, layout) for case in cases(chosen, gpu)]
        used = options[0]
        if len(options) > 1:  # the widths of fewest wavefronts, of those with which the layout holds the tile
            used = min(options, key=lambda one: (any(errors_of(one)), sum(r.wavefronts for r in one.reports)))
        _ = used.counts  # counted here, within the time for that; kept for what follows
    audit = _audit(used, mend)
    return used, replace(audit, accesses=named_choices(audit.accesses, problem, chosen))


def _audit(used: InUse, mend: bool) -> Audit:
    """The audit of a layout with one width for each access; with `mend`, and what to take in its place."""
    problem, errors = used.case.problem, list(errors_of(used))
    with spending(current().part(_FINDINGS_SHARE)):
        found = [*errors, *remarks_on(used)]
        estimate = estimate_of(used, used.node) if used.node is not None and not errors else None
    if mend and (mended := fix(used, bool(errors), estimate)) is not None:
        found.append(mended)
    counted = zip(used.case.accesses, used.reports, strict=True)
    return Audit(
        problem=problem.name,
        target=used.case.device.name,
        status=_status(not errors, used.excess),
        offset=to_text(used.node) if used.node is not None else None,
        bytes=used.size,
        declared_bytes=used.declared,
        alignment_bytes=used.alignment,
        excess=used.excess,
        weighted_excess=used.weighted_excess,
        accesses=tuple(_with_counters(used, access, report) for access, report in counted),
        findings=tuple(found),
        estimate=estimate,
    )


def _with_counters(used: InUse, access: CountedAccess, report: AccessReport) -> AuditedAccess:
    """The report with the profiler's counters; none shows a worst case or an expectation."""
    shown: dict[str, int] = {}
    if access.any_is is None:
        wavefronts, conflicts = int(report.wavefronts), int(report.bank_conflicts)
        shown = counters(used.case.device, access.lanes.operation, wavefronts, conflicts)
    return AuditedAccess(**asdict(report), counters=shown)


# What would mend it ----------------------------------------------------------------------------


def estimate_of(used: InUse, layout: Layout | Node) -> Estimate | None:
    """The estimate of a layout of the tile; None where there is none, or no time is left."""
    case = used.case
    if why_no_estimate(case) is not None or (current().spent and is_large(case, used.node)):
        return None
    return estimate(case, layout)


def fix(used: InUse, cannot_hold: bool, estimate_in_use: Estimate | None) -> Finding | None:
    """Advice to replace the layout in use, or to keep it; None where no layout has less excess or bytes.

    Args:
        used: the layout in use, which is compared with the best layout and the best of simple families.
        cannot_hold: whether it cannot hold the tile at all.
        estimate_in_use: its estimated time, if known.
    """
    problem, key = used.case.problem, EXCESS_FIRST.key
    allowed = problem.layout.families

    def best_of(families: tuple[str, ...] | None) -> Result:
        asked = constrained(problem, offset=None, families=families)
        return solve(asked, used.case.device)

    best = best_of(allowed)
    if best.layout is None:
        return None
    is_better = key(best.weighted_excess or 0, best.bytes or 0) < key(used.weighted_excess, used.size)
    if not cannot_hold and not is_better:
        return None
    simple = [f for f in _SIMPLE_FAMILIES if allowed is None or {*f} <= {*allowed}]
    found = (best, *map(best_of, () if problem.is_dictated else simple))
    results = {result.offset or "": result for result in found if result.layout is not None}
    offset = to_text(used.node) if used.node is not None else "the table"
    own_row = Row("in_use", "the layout in use", status="given", offset=offset)
    if cannot_hold:
        own_row = replace(own_row, status=Status.INFEASIBLE, reason="it cannot hold the tile")
    else:
        own_row = costed(own_row, used.case, used.counts, used.size, used.alignment).timed(estimate_in_use)
    others = [_result_row(used, result) for result in results.values()]
    no_estimate = why_no_estimate(used.case)
    advice = recommend([own_row, *others], dictated=problem.is_dictated, no_estimate=no_estimate)
    if advice is None:
        return None
    if advice.keep:
        fastest = min(others, key=lambda row: math.inf if row.time is None else row.time)
        return Finding("keep", advice.text, details={"cycles": own_row.cycles, "fastest": fastest.offset})
    chosen = results[advice.offset]
    details: dict[str, Any] = {
        name: getattr(chosen, name) for name in ("offset", "family", "excess", "bytes")
    }
    details["saved_bytes"] = used.size - (chosen.bytes or 0)
    details["saved_wavefronts"] = rounded_count(used.excess - (chosen.excess or 0))
    return Finding("fix", advice.text, details=details)


def _result_row(used: InUse, result: Result) -> Row:
    """A layout that `solve` found, as a row of a comparison with the layout in use."""
    assert result.layout is not None
    case, family = used.case, result.family or ""
    title = next((f.title for f in FAMILIES if f.title and f.name == family), family)
    row = Row(family, title, result.status, offset=result.offset)
    estimated = estimate_of(used, result.layout)
    with unhurried():
        counts = case.count(case.table(result.layout))
    return costed(row, case, counts, result.bytes or 0, result.alignment_bytes or 1).timed(estimated)


# A block ----------------------------------------------------------------------------------------


def _block_audit(block: Block, gpu: Device, mend: bool) -> BlockAudit:
    """The audit of every tile's layout in the file, and of where the tiles lie."""
    audits: dict[str, tuple[InUse, Audit]] = {}
    for tile in block.tiles:
        with fields_of(block, tile):
            audits[tile.name] = _tile_audit(block.problem(tile), None, gpu, mend)
    tiles = tuple(_placed_audits(block, audits))
    size = max(tile.starts[-1] + tile.audit.declared_bytes for tile in tiles)
    limit = within_room(block, gpu).layout.max_bytes
    errors = [*_misplaced(tiles), *_overlaps(block, tiles)]
    if limit is not None and size > limit:
        text = f"the block takes {size:,} bytes of shared memory; {limit:,} are allowed"
        errors.append(Finding("budget", text, details={"bytes": size, "max_bytes": limit}))
    sound = {tile.tile for tile in tiles if tile.audit.status is not AuditStatus.INFEASIBLE}
    errors += _differing_layouts(block, {name: used for name, (used, _) in audits.items() if name in sound})
    excess = sum(tile.audit.excess for tile in tiles)
    status = _status(not errors and len(sound) == len(tiles), excess)
    return BlockAudit(block.name, gpu.name, status, size, limit, excess, tiles, tuple(errors))


def _placed_audits(block: Block, audits: Mapping[str, tuple[InUse, Audit]]) -> Iterator[PlacedAudit]:
    """The audits with the tiles' places: as the file says, else behind all earlier tiles that live then."""
    ends: dict[str, int] = {}
    for tile in block.tiles:
        (used, audit), of_element = audits[tile.name], tile.element_alignment
        most = used.case.asked.layout.alignment_bytes or of_element  # that the file's bases have
        alignment = max(audit.alignment_bytes, min(of_element, most))
        stage_bytes = tile.stage_bytes or rounded_up(audit.declared_bytes, alignment)
        base = tile.base_bytes
        if base is None:
            before = (end for name, end in ends.items() if _live_together(block, name, tile.name))
            base = rounded_up(max(before, default=0), alignment)
        placed = PlacedAudit(tile.name, base, tile.stages, stage_bytes, audit)
        ends[tile.name] = placed.starts[-1] + audit.declared_bytes
        yield placed


def _live_together(block: Block, one: str, other: str) -> bool:
    """Whether two tiles live at the same time: at one time of the overlay, or one of them all the time."""
    times = [next((t for t, time in enumerate(block.overlay) if n in time), None) for n in (one, other)]
    return None in times or times[0] == times[1]


def _misplaced(tiles: tuple[PlacedAudit, ...]) -> Iterator[Finding]:
    """Tiles with a stage that does not begin at a multiple of the layout's alignment."""
    for tile in tiles:
        alignment = tile.audit.alignment_bytes
        start = next((start for start in tile.starts if start % alignment), None)
        if start is not None:
            holds = f"counts hold at multiples of {alignment}"
            text = f"tile {tile.tile}: a stage begins at byte {start:,}; {holds}"
            details = {"tile": tile.tile, "byte_offset": start, "alignment_bytes": alignment}
            yield Finding("misplaced", text, details=details)


def _overlaps(block: Block, tiles: tuple[PlacedAudit, ...]) -> Iterator[Finding]:
    """Stages of one or two tiles that share bytes while both live."""
    stages = {tile.tile: [range(start, start + tile.audit.bytes) for start in tile.starts] for tile in tiles}
    for one, other in itertools.combinations_with_replacement(stages, 2):
        if one == other:
            whose, pairs = f"two stages of tile {one}", [*itertools.combinations(stages[one], 2)]
        else:
            whose, pairs = f"tiles {one} and {other}", [*itertools.product(stages[one], stages[other])]
        shared = (range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in pairs)
        first = next(filter(None, shared), None)  # a range without bytes is false
        if first is not None and _live_together(block, one, other):
            details = {"tiles": [one, other], "bytes": [first.start, first.stop]}
            text = f"{whose} share bytes {first.start:,} to {first[-1]:,}"
            yield Finding("overlap", text, details=details)


def _differing_layouts(block: Block, layouts: Mapping[str, InUse]) -> Iterator[Finding]:
    """Tiles that are to share a layout and do not: where a byte of their elements, row-major, lies apart."""
    for (first, *others), _ in groups(block):
        if any(tile.name not in layouts for tile in (first, *others)):
            continue
        at, *at_others = (  # the offset of each byte
            (layouts[tile.name].tile_table[:, None] + np.arange(tile.storage.element_bytes)).ravel()
            for tile in (first, *others)
        )
        for tile, other_at in zip(others, at_others, strict=True):
            count = min(len(at), len(other_at))  # a smaller tile is the beginning of a larger one
            differing = np.flatnonzero(at[:count] != other_at[:count])
            if len(differing):
                byte, names = int(differing[0]), [first.name, tile.name]
                text = (
                    f"tiles {names[0]} and {names[1]} are to share a layout (same_layout): byte {byte:,} "
                    f"of their elements lies at {at[byte]:,} in one and at {other_at[byte]:,} in the other"
                )
                yield Finding("layouts_differ", text, details={"tiles": names, "byte": byte})
