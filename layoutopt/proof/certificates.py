"""Certificates: a claim about a problem, with all that is needed to check it without the solver.

`scripts/checkers/check_certificate.py` checks them and uses nothing of this package. What one holds:

    layout     byte offsets of every element, wavefronts of every access: count them again
    hardware   how TMA, tensor cores and bulk copies reach the tile: tensor maps, matrix descriptors
    bound      least (weighted) excess, its scope, and what it rests on
    bytes      least bytes, and their scope: those of the elements are arithmetic, more rest on the search
    infeasible     what was refuted, and what that rests on
    clique     words, and for each pair where they meet: access, warp, iteration, lanes
    packing    cliques, where their words meet, and the share of the phases' weights that each takes
    parity     phases that fill all banks, and their weights modulo a power of two
    questions  what only a solver answered, as a CP-SAT model and where possible as DIMACS CNF
    served     which lanes each access serves together: the hardware rule that all of it assumes

It speaks of the problem in plainer words (`layoutopt.accesses.lower`): of bytes where elements share them,
and of the widths chosen where the file leaves the choice. `served` says which those are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec

from layoutopt.accesses.lower import chosen_widths
from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import case_of
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.layout.layout import Digit, Layout
from layoutopt.model.linear_phases import phases_of
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.masks import swizzle_model
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import FreeAssignment
from layoutopt.model.swizzle_rules import last_block, rules, swizzle_field
from layoutopt.problems.answer import EVERY_LAYOUT, Result, Status
from layoutopt.problems.types import FAMILIES, Problem
from layoutopt.proof.board import Subject, subject_of
from layoutopt.proof.reasons import (
    BY_HAND,
    CLIQUE,
    COUNTING,
    PACKING,
    PARITY,
    SOLVER,
    Reason,
    Search,
    question_data,
)

CERTIFICATE_SCHEMA: Final = "layoutopt.certificate/1"
ARITHMETIC: Final = (
    "arithmetic: scripts/checkers/check_certificate.py checks it without layoutopt and without a solver"
)
BY_SOLVER: Final = "the solver alone (CP-SAT); `questions` holds what it answered"
BY_SEARCH: Final = "layoutopt's search of the families alone"
SEARCH: Final = "search: the layouts in scope, by counting, a tree of masks and CP-SAT"


def certificate(problem: Problem, device: Device, result: Result) -> dict[str, Any]:
    """What supports `result`, as JSON-ready data.

    Args:
        problem: what was solved.
        device: for which device.
        result: the answer.

    Raises:
        ProblemFileError: some lanes choose at run time, which certificates do not cover.
    """
    check_certifiable(problem)
    asked = problem
    case = case_of(problem, device, chosen_widths(problem, result))
    problem, lanes = case.lowered, case.lanes
    bound = result.proof.objective
    subject = subject_of(problem.tile, device, lanes)
    unit = lanes.weight_unit
    evidence, findings = _reason(subject, round(bound.lower_bound * unit), bound.scope)
    rests_on = {SOLVER.evidence: BY_SOLVER, SEARCH: BY_SEARCH}.get(evidence, ARITHMETIC)
    questions = _questions(problem, subject, evidence, findings)
    rule = device.rule(lanes.accesses[0].operation)
    data: dict[str, Any] = {
        "schema": CERTIFICATE_SCHEMA,
        "problem": problem.name,
        "target": _target(asked, device),
        "constraints": msgspec.to_builtins(asked.layout),
        "status": str(result.status),
        "bound": {
            "excess": bound.lower_bound,
            "scope": bound.scope,
            "by": evidence,
            "rests_on": rests_on,
        },
        "bytes": {"at_least": result.proof.bytes.lower_bound, "scope": result.proof.bytes.scope},
        "infeasible": _infeasible(problem, result, rests_on),
        "layout": None,
        "hardware": {},
        "clique": None,
        "packing": None,
        "parity": None,
        "questions": questions,
        "weight_unit": unit,
        "lanes": device.lanes,
        "banks": rule.banks,
        "bank_bytes": rule.bank_bytes,
        "served": _served(device, lanes),
    }
    if result.layout is not None:
        layout = msgspec.structs.replace(result.layout, shape=problem.tile.shape, packed=1)
        data |= _found(layout, result)
    for name, reason in (("clique", CLIQUE), ("packing", PACKING), ("parity", PARITY)):
        if reason in findings:
            data[name] = reason.data(subject, problem, findings[reason])
    return data


def _found(layout: Layout, result: Result) -> dict[str, Any]:
    """The layout over whole bytes, what it costs, and how the hardware reaches it by itself."""
    return {
        "layout": {
            "byte_offsets": layout.table().ravel().tolist(),
            "bytes": result.bytes,
            "wavefronts": {a.name: a.wavefronts for a in result.accesses},
            "excess": result.weighted_excess,
        },
        "hardware": {
            a.name: msgspec.to_builtins(a.descriptor) for a in result.accesses if a.descriptor is not None
        },
    }


def _target(problem: Problem, device: Device) -> str:
    """The device as the problem calls it, where it means this one."""
    names = {name.lower() for name in (device.name, *device.aliases)}
    return problem.target if problem.target.lower() in names else device.name


def check_certifiable(problem: Problem) -> None:
    """Check that there are certificates for answers to this problem.

    Raises:
        ProblemFileError: some lanes choose at run time, or are free.
    """
    for i, access in enumerate(problem.accesses):
        if access.is_free:
            raise ProblemFileError(
                f"accesses[{i}].{'lanes' if access.lanes is not None else 'values'}",
                "--certificate: there is none where lanes are chosen; write the index chosen into the file",
            )
        if access.any:
            raise ProblemFileError(
                f"accesses[{i}].any",
                "--certificate: there is none for values known only at run time; "
                "`layoutopt check` counts them",
            )


def _infeasible(problem: Problem, result: Result, rests_on: str) -> dict[str, Any] | None:
    """What was refuted; None where there is a layout, or no answer."""
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


def _reason(subject: Subject, wanted: int, scope: str) -> tuple[str, dict[Reason[Any], Any]]:
    """The easiest evidence for a bound, and all that was found on the way; nothing is needed for 0."""
    if wanted == 0:
        return "no excess is negative", {}
    if scope != EVERY_LAYOUT:
        return SEARCH, {}
    if subject.board is None:
        return COUNTING.evidence, {}
    findings: dict[Reason[Any], Any] = {}
    for reason in BY_HAND:
        found = reason.find(subject, Search(Budget()))
        if found is None:
            continue
        findings[reason] = found
        if reason.bound(subject, found) >= wanted:
            return reason.evidence, findings
    return SOLVER.evidence, {**findings, SOLVER: FreeAssignment(wanted)}


def _questions(
    problem: Problem, subject: Subject, evidence: str, findings: dict[Reason[Any], Any]
) -> list[dict[str, Any]]:
    """What the solver was asked, to be asked of another."""
    if SOLVER in findings:
        return [SOLVER.data(subject, problem, findings[SOLVER])]
    if evidence == SEARCH and _has_swizzles(problem):
        text = row_major_question(problem, subject.device, subject.lanes)
        asks = "is there a swizzle of row-major offsets without conflicts? (one of the layouts in scope)"
        return [question_data(problem, asks, text)] if text is not None else []
    return []


def row_major_question(problem: Problem, device: Device, trace: Trace) -> str | None:
    """`CpModelProto` text that has a solution if some swizzle of row-major offsets has no conflicts.

    None where no swizzle of that kind exists.
    """
    tile = problem.tile
    sets = phase_sets(trace, tile, device)
    field = swizzle_field(sets, tile, trace) if sets else None
    if field is None:
        return None
    digits, stride = [], 1
    for dim in reversed(range(len(tile.shape))):
        digits.append(Digit(dim, 1, tile.shape[dim], stride))
        stride *= tile.shape[dim]
    row_major = Linearisation(tuple(reversed(digits)), tile.elements, 0, "none", True)
    last = last_block(row_major, field, tile)
    if last is not None:  # a swizzle may move the words of a last block that is not full
        row_major = replace(row_major, span=max(last.reach.values()))
    phases = phases_of(row_major, sets, tile)
    return swizzle_model(phases, field, rules(row_major, field, tile), phases.ideal).to_text()


def _has_swizzles(problem: Problem) -> bool:
    """Whether every swizzle of row-major offsets is in scope, whatever it takes."""
    layout = problem.layout
    limits = layout.max_bytes, layout.alignment_bytes, layout.pitch_multiple_bytes, layout.order
    free = not problem.is_dictated and layout.objective.excess_first and not any(limits)
    return free and "xor" in (layout.families or FAMILIES)


def _served(device: Device, trace: Trace) -> dict[str, Any]:
    """The rule of each access by name, with everything that changes a count."""
    served = {}
    for access in trace.accesses:
        rule = device.rule(access.operation)
        served[access.name] = {
            "bytes": access.operation.width_bytes,
            "lanes_used": 8 * access.operation.matrices or device.lanes,
            "phases": rule.phases,
            "merges_pairs": rule.merges_pairs,
            "split_words": rule.split_words,
            "serialises_equal": rule.serialises_equal,
            "row_words": rule.row_words,
            "extra_wavefronts": rule.extra_wavefronts,
            "banks": rule.banks,
            "bank_bytes": rule.bank_bytes,
            "source": rule.source,
        }
    return served
