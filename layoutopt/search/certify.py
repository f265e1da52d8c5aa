"""Certificates: a claim about a problem, with all that is needed to check it without the solver.

`scripts/checkers/check_certificate.py` checks them and uses nothing of this package. What one holds:

    layout     byte offsets of every element, wavefronts of every access: count them again
    hardware   how TMA, tensor cores and bulk copies reach the tile: tensor maps, matrix descriptors
    digest     of the problem that it is about (`digest`)
    bound      least (weighted) excess, its scope in words and as data (`_covers`), and what it rests on
    bytes      least bytes, and their scope: those of the elements are arithmetic, more rest on the search
    infeasible     what was refuted, and what that rests on
    clique     words, and for each pair where they meet: access, warp, iteration, lanes
    packing    cliques, where their words meet, and the share of the phases' weights that each takes
    parity     phases that fill all banks, and their weights modulo a power of two
    questions  what only a solver answered, as a CP-SAT model and where possible as DIMACS CNF
    served     which lanes each access serves together: the hardware rule that all of it assumes

Of several tiles, where each lies, and the certificate of each layout. That no other combination is better
where the budget, or a family, leaves conflicts or unused bytes rests on the search, and it says so.

It speaks of the problem in plainer words (`layoutopt.accesses.lower`): of bytes where elements share them,
and of the widths chosen where the file leaves the choice. `served` says which those are.
"""

import hashlib
import json
from fractions import Fraction
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from layoutopt.accesses.lower import stored
from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import case_of_result
from layoutopt.errors import ProblemFileError
from layoutopt.files.checks import fields_of
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import is_direct_load
from layoutopt.model.placement import FreeAssignment
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, Proof, Result, Status
from layoutopt.problems.same_layout import groups
from layoutopt.problems.types import Block, Problem
from layoutopt.proof.board import NO_BOARD, Subject, subject_of
from layoutopt.proof.reasons import (
    BY_HAND,
    CLIQUE,
    COUNTING,
    PACKING,
    PARITY,
    SOLVER,
    Reason,
    SearchLimits,
)
from layoutopt.search.scene import searched_families

CERTIFICATE_SCHEMA: Final = "layoutopt.certificate/1"
ARITHMETIC: Final = (
    "arithmetic: scripts/checkers/check_certificate.py checks it without layoutopt and without a solver"
)
BY_SOLVER: Final = "the solver alone (CP-SAT); `questions` holds what it answered"
BY_SEARCH: Final = "layoutopt's search of the families alone"
SEARCH: Final = "search: the layouts in scope, by counting, a tree of masks and CP-SAT"

BLOCK_CERTIFICATE_SCHEMA: Final = "layoutopt.block_certificate/1"
# Fields of a problem that a digest is of; those left out in its parts; and defaults, left out as well.
_DIGESTED: Final = frozenset(
    ("name", "target", "threads", "tile", "tiles", "accesses", "layout", "block", "overlay", "same_layout")
)
_RULE_FIELDS: Final = (
    *("phases", "merges_pairs", "split_words", "serialises_equal", "row_words", "extra_wavefronts"),
    *("banks", "bank_bytes", "source"),
)
_NOT_DIGESTED: Final = ("notes", "published", "base_bytes", "stage_bytes", "engine")
_DEFAULTS: Final = {
    "weight": "1",
    "minimise": "excess",
    "any_is": "worst",
    "stages": "1",
    "other_shared_bytes": "0",
}


def check_certifiable(problem: Problem | Block) -> None:
    """Check that there are certificates for answers to this problem.

    Raises:
        ProblemFileError: some lanes choose at run time, or are free.
    """
    for tiles, shared in groups(problem):
        for i, access in enumerate(shared.accesses):
            if not access.is_free and not access.any:
                continue
            if access.is_free:
                name = "lanes" if access.lanes is not None else "values"
                why = "where lanes are chosen; write the index chosen into the file"
            else:
                name, why = "any", "for values known only at run time; `layoutopt check` counts them"
            with fields_of(problem, *tiles):
                raise ProblemFileError(f"accesses[{i}].{name}", f"--certificate: there is none {why}")


def certificate(problem: Problem | Block, gpu: Device, answer: Result | Arrangement) -> dict[str, Any]:
    """The certificate of an answer, as JSON-ready data.

    Raises:
        ProblemFileError: as for `check_certifiable`.
    """
    check_certifiable(problem)
    if isinstance(problem, Problem):
        assert isinstance(answer, Result)
        return _of_tile(problem, gpu, answer)
    assert isinstance(answer, Arrangement)
    return _of_block(problem, gpu, answer)


def digest(problem: Problem | Block) -> str:
    """SHA-256 of what a problem asks, in a form that does not depend on how its file is written.

    That is the JSON of the tiles, the threads, the target, the constraints and the accesses: names sorted,
    no blanks, numbers as text, and nothing that says no more than leaving it out does. What a kernel calls
    things, notes and data about other layouts are no part of it.
    """
    fields = msgspec.to_builtins(problem)
    digested = _normalised({field: value for field, value in fields.items() if field in _DIGESTED})
    text = json.dumps(digested, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _normalised(value: Any) -> Any:
    """A part of a problem as JSON data: fields that repeat a default left out, numbers as text.

    `{"weight": 1, "op": "load", "bytes": 4.0}` becomes `{"op": "load", "bytes": "4"}`.
    """
    if isinstance(value, list | tuple):
        return [_normalised(item) for item in value]
    if isinstance(value, dict):
        if use := value.get("hardware"):  # no lane executes it: index, predicate and weight say nothing
            value = {"name": value["name"], "op": value["op"], "tile": value.get("tile"), **use}
        parts = {field: _normalised(part) for field, part in value.items() if field not in _NOT_DIGESTED}
        empty: tuple[Any, ...] = (None, False, {}, [])
        return {field: part for field, part in parts.items() if part not in (*empty, _DEFAULTS.get(field))}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(Fraction(str(value))) if number else value


def _covers(problem: Problem, bound: Bound) -> dict[str, Any]:
    """The layouts that a bound holds for, as data: every one, of families, or as hardware dictates."""
    if bound.everywhere:
        return {"layouts": "every"}
    if problem.is_dictated:
        ops = [a.op for a in problem.accesses if a.hardware is not None or is_direct_load(a.op)]
        return {"layouts": "hardware", "by": list(dict.fromkeys(ops))}
    families, most = searched_families(stored(problem)), problem.layout.max_bytes
    return {"layouts": "families", "families": families, "max_bytes": most}


def _of_tile(asked: Problem, device: Device, result: Result) -> dict[str, Any]:
    """The certificate of one tile; docs/proofs.md has its fields."""
    case = case_of_result(asked, device, result)
    problem, lanes = case.lowered, case.lanes  # over whole bytes, widths chosen
    unit = lanes.weight_unit  # what a weight of 1 is among the whole numbers of the trace
    bound, size = result.proof.objective, result.proof.bytes
    subject = subject_of(problem.tile, device, lanes)
    evidence, findings = _evidence(subject, round(bound.lower_bound * unit), bound.scope)
    rests_on = {SOLVER.evidence: BY_SOLVER, SEARCH: BY_SEARCH}.get(evidence, ARITHMETIC)
    rule = lanes.accesses[0].rule  # for its banks: where accesses see different ones, no reason speaks of any
    data: dict[str, Any] = {
        "schema": CERTIFICATE_SCHEMA,
        "problem": problem.name,
        "target": _target(asked, device),
        "digest": digest(replace(asked, target=_target(asked, device))),
        "constraints": msgspec.to_builtins(asked.layout),
        "status": str(result.status),
        "bound": {
            "excess": bound.lower_bound,
            "scope": bound.scope,
            "covers": _covers(asked, bound),
            "by": evidence,
            "rests_on": rests_on,
        },
        "bytes": {"at_least": size.lower_bound, "scope": size.scope, "covers": _covers(asked, size)},
        "infeasible": _infeasible(problem, result, rests_on),
        "layout": None,
        "hardware": {},
        **{
            name: reason.data(subject, problem, findings[reason]) if reason in findings else None
            for name, reason in (("clique", CLIQUE), ("packing", PACKING), ("parity", PARITY))
        },
        "questions": [SOLVER.data(subject, problem, findings[SOLVER])] if SOLVER in findings else [],
        "weight_unit": unit,
        "lanes": device.lanes,
        "banks": rule.banks,
        "bank_bytes": rule.bank_bytes,
        "served": _served(device, lanes),
    }
    if result.layout is not None:
        layout = replace(result.layout, shape=problem.tile.shape, packed=1)  # over whole bytes, as `problem`
        data["layout"] = {
            "byte_offsets": layout.table().ravel().tolist(),
            "bytes": result.bytes,
            "wavefronts": {a.name: a.wavefronts for a in result.accesses},
            "excess": result.weighted_excess,
        }
        hardware = {a.name: a.descriptor for a in result.accesses if a.descriptor is not None}
        data["hardware"] = msgspec.to_builtins(hardware)
    return data


def _target(problem: Problem, device: Device) -> str:
    """The device as the problem calls it, where it means this one."""
    names = set(device.names)
    return problem.target if problem.target.lower() in names else device.name


def _infeasible(problem: Problem, result: Result, rests_on: str) -> dict[str, Any] | None:
    """What an infeasible result refutes, and what that rests on, where conflicts are (`rests_on`) or not."""
    if result.status is not Status.INFEASIBLE:
        return None
    most, bound = problem.layout.max_bytes, result.proof.objective
    if most is not None and most < problem.tile.bytes:
        claim, rests_on = f"a layout of {most} bytes", ARITHMETIC
    elif bound.lower_bound:
        claim, rests_on = "a layout without conflicts", rests_on if bound.everywhere else BY_SEARCH
    else:
        claim, rests_on = "a layout in scope that keeps to the constraints", BY_SEARCH
    return {"refuted": claim, "max_bytes": most, "reason": result.reason, "rests_on": rests_on}


class _Evidence(NamedTuple):
    """The name of what a bound rests on, and what each reason found for it."""

    name: str
    findings: dict[Reason, Any]


def _evidence(subject: Subject, bound: int, scope: str) -> _Evidence:
    """The easiest evidence for a bound of the weighted excess, and what all reasons asked before it found."""
    if bound == 0:
        return _Evidence("no excess is negative", {})
    if scope != EVERY_LAYOUT:
        return _Evidence(SEARCH, {})
    if subject.board is NO_BOARD:
        return _Evidence(COUNTING.evidence, {})
    findings: dict[Reason, Any] = {}
    for reason in BY_HAND:
        found = reason.find(subject, SearchLimits())
        if found is None:
            continue
        findings[reason] = found
        if reason.bound(subject, found) >= bound:
            return _Evidence(reason.evidence, findings)
    return _Evidence(SOLVER.evidence, {**findings, SOLVER: FreeAssignment(bound)})


def _served(device: Device, trace: Trace) -> dict[str, Any]:
    """The rule by which the hardware serves each access, for checkers that know no device."""
    served = {}
    for access in trace.accesses:
        rule, operation = access.rule, access.operation
        lanes_used = 8 * operation.matrices or device.lanes
        served[access.name] = {"bytes": operation.width_bytes, "lanes_used": lanes_used}
        served[access.name] |= {name: getattr(rule, name) for name in _RULE_FIELDS}
    return served


# Several tiles ---------------------------------------------------------------------------------


def _of_block(block: Block, gpu: Device, arrangement: Arrangement) -> dict[str, Any]:
    """The certificate of several tiles: one for each group that shares a layout, and what follows for all.

    The problem of a group has the accesses of all its tiles.
    """
    proof, block_digest, limit = arrangement.proof, digest(block), arrangement.max_bytes
    parts: list[dict[str, Any]] = []
    # Not strict: an arrangement without layouts has no tiles.
    for (tiles, problem), part in zip(groups(block), arrangement.tiles, strict=False):
        of_tile = _of_tile(problem, gpu, _of_every_layout(problem, part.result))
        of_tile["digest"] = block_digest
        # The file's families: `groups` drops some where tiles of several sizes share a layout.
        of_tile["constraints"]["families"] = msgspec.to_builtins(block.problem(tiles[0]).layout.families)
        parts.append(
            {
                "tiles": part.tiles,
                "base_bytes": part.base_bytes,
                "bases_bytes": part.bases_bytes,
                "stages": part.stages,
                "stage_bytes": part.stage_bytes,
                "places": [msgspec.to_builtins(place) for place in part.places],
                "certificate": of_tile,
            }
        )
    # What holds of every layout of each group holds of all together; the search may say more.
    bounds = [part["certificate"]["bound"] for part in parts]
    certain = sum(bound["excess"] for bound in bounds)
    everywhere = bool(bounds) and certain >= proof.objective.lower_bound
    by_arithmetic = everywhere and all(b["rests_on"] == ARITHMETIC for b in bounds if b["excess"])
    return {
        "schema": BLOCK_CERTIFICATE_SCHEMA,
        "problem": block.name,
        "target": block.target,
        "digest": block_digest,
        "status": str(arrangement.status),
        "reason": arrangement.reason,
        "max_bytes": limit,
        "bytes": arrangement.bytes,
        "excess": arrangement.weighted_excess,
        "bound": {
            "excess": certain if everywhere else proof.objective.lower_bound,
            "scope": EVERY_LAYOUT if everywhere else proof.objective.scope,
            "covers": {"layouts": "every"} if everywhere else _covers_together(proof.objective, limit),
            "rests_on": ARITHMETIC if by_arithmetic else BY_SEARCH,
        },
        "bytes_bound": {
            "at_least": proof.bytes.lower_bound,
            "scope": proof.bytes.scope,
            "covers": _covers_together(proof.bytes, limit),
        },
        "tiles": parts,
    }


def _covers_together(bound: Bound, limit: int | None) -> dict[str, Any]:
    """The layouts that a bound of several tiles holds for, as `_covers` of one."""
    return {"layouts": "every"} if bound.everywhere else {"layouts": "tiles", "max_bytes": limit}


def _of_every_layout(problem: Problem, result: Result) -> Result:
    """The result with bounds of every layout alone: its own hold within the bytes of a point of a front."""
    bound = result.proof.objective
    bound = bound if bound.everywhere else Bound(0, EVERY_LAYOUT)
    size = Bound(problem.tile.bytes, EVERY_LAYOUT)
    best = bound.lower_bound == result.weighted_excess and size.lower_bound == result.bytes
    evidence = result.proof.evidence if bound.lower_bound else ""
    proof = Proof(excess=bound, bytes=size, weighted_excess=bound, evidence=evidence)
    status = Status.OPTIMAL if best else Status.FEASIBLE
    return replace(result, status=status, proof=proof)
