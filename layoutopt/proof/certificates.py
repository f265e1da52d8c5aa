"""Certificates: a claim about a problem, with all that is needed to check it without the solver.

`scripts/checkers/check_certificate.py` checks them and uses nothing of this package. What one holds:

    layout     byte offsets of every element, wavefronts of every access: count them again
    bound      least (weighted) excess, its scope, and what it rests on
    bytes      least bytes, and their scope: those of the elements are arithmetic, more rest on the search
    infeasible     what was refuted, and what that rests on
    clique     words, and for each pair where they meet: access, warp, iteration, lanes
    parity     phases that fill all banks, and their weights modulo a power of two
    questions  what only a solver answered, as a CP-SAT model and where possible as DIMACS CNF
    served     which lanes each access serves together: the hardware rule that all of it assumes

It speaks of the problem in plainer words (`layoutopt.problems.lower`): of bytes where elements share them,
and of the widths chosen where the file leaves the choice. `served` says which those are.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import Device
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import question
from layoutopt.problems.answer import EVERY_LAYOUT, Result, Status
from layoutopt.problems.lower import stored, with_widths
from layoutopt.problems.trace import Trace, trace
from layoutopt.problems.types import FAMILIES, Access, Problem
from layoutopt.proof.cnf import dimacs
from layoutopt.proof.every_layout import CLIQUE, COUNTING, PARITY, SOLVER, row_major_question
from layoutopt.proof.obstructions import (
    Board,
    Clique,
    Parity,
    Place,
    board,
    counting_excess,
    find_clique,
    find_parity,
)

CERTIFICATE_SCHEMA: Final = "layoutopt.certificate/1"
ARITHMETIC: Final = (
    "arithmetic: scripts/checkers/check_certificate.py checks it without layoutopt and without a solver"
)
BY_SOLVER: Final = "the solver alone (CP-SAT); `questions` holds what it answered"
BY_SEARCH: Final = "layoutopt's search of the families alone"
SEARCH: Final = "search: the layouts in scope, by counting, Walsh spectra and CP-SAT"


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
    widths = [a.bytes for a in result.accesses] or [None] * len(problem.accesses)
    problem = stored(with_widths(problem, widths))
    lanes = trace(problem, device)
    bound = result.proof.objective
    on = board(lanes, problem.tile, device)
    unit = lanes.weight_unit
    wanted = round(bound.lower_bound * unit)
    evidence, clique, parity = _reason(on, wanted, bound.scope)
    rests_on = {SOLVER: BY_SOLVER, SEARCH: BY_SEARCH}.get(evidence, ARITHMETIC)
    questions = _questions(problem, device, lanes, on, wanted, evidence)
    rule = device.rule(lanes.accesses[0].operation)
    data: dict[str, Any] = {
        "schema": CERTIFICATE_SCHEMA,
        "problem": problem.name,
        "target": device.name,
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
        "clique": None,
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
        data["layout"] = {
            "byte_offsets": layout.table().ravel().tolist(),
            "bytes": result.bytes,
            "wavefronts": {a.name: a.wavefronts for a in result.accesses},
            "excess": result.weighted_excess,
        }
    if on is not None and clique is not None:
        data["clique"] = clique_data(problem, device, on, clique)
    if on is not None and parity is not None:
        data["parity"] = _parity_data(problem, device, on, parity)
    return data


def check_certifiable(problem: Problem) -> None:
    """Check that there are certificates for answers to this problem.

    Raises:
        ProblemFileError: some lanes choose at run time.
    """
    for i, access in enumerate(problem.accesses):
        if access.any:
            raise ProblemFileError(
                f"accesses[{i}].any", "--certificate: there is none for values known only at run time"
            )


def _infeasible(problem: Problem, result: Result, rests_on: str) -> dict[str, Any] | None:
    """What was refuted; None where there is a layout, or no answer."""
    if result.status is not Status.INFEASIBLE:
        return None
    most, bound = problem.layout.max_bytes, result.proof.objective
    if most is not None and most < problem.tile.bytes:
        claim, rests_on = f"a layout of {most} bytes", ARITHMETIC
    elif bound.lower_bound and bound.everywhere:
        claim = "a layout without conflicts"
    else:
        claim, rests_on = "a layout in scope that keeps to the constraints", BY_SEARCH
    return {"refuted": claim, "max_bytes": most, "reason": result.reason, "rests_on": rests_on}


def _reason(on: Board | None, wanted: int, scope: str) -> tuple[str, Clique | None, Parity | None]:
    """The easiest evidence for a bound; nothing is needed for a bound of 0."""
    if wanted == 0:
        return "no excess is negative", None, None
    if scope != EVERY_LAYOUT:
        return SEARCH, None, None
    if on is None:
        return COUNTING, None, None
    counting = counting_excess(on)
    if counting >= wanted:
        return COUNTING, None, None
    clique = find_clique(on)
    if clique is not None and counting + clique.excess >= wanted:
        return CLIQUE, clique, None
    parity = find_parity(on)
    if parity is not None and counting + parity.excess >= wanted:
        return PARITY, clique, parity
    return SOLVER, clique, parity


def _questions(
    problem: Problem,
    device: Device,
    trace: Trace,
    on: Board | None,
    wanted: int,
    evidence: str,
) -> list[dict[str, Any]]:
    """What the solver was asked, to be asked of another."""
    if evidence == SOLVER:
        sets = phase_sets(trace, problem.tile, device)
        most = wanted - 1
        allowed = most / trace.weight_unit
        asks = f"is there a placement of vectors in banks with a weighted excess of {allowed:g} or less?"
        # If some phase must exceed its counting bound, its weight is added: no sums, so CNF can say it.
        step = min((p.weight for p in on.phases), default=0) if on is not None else 0
        clean = on is not None and wanted <= counting_excess(on) + step
        texts = [(asks, question(sets, trace, problem.tile, None if clean else most))]
    elif evidence == SEARCH and _has_swizzles(problem):
        text = row_major_question(problem, device, trace)
        asks = "is there a swizzle of row-major offsets without conflicts? (one of the layouts in scope)"
        texts = [(asks, text)] if text is not None else []
    else:
        texts = []
    return [
        {"asks": asks, "answer": "no", "cp_sat": text, "dimacs": dimacs(text, f"{problem.name}: {asks}")}
        for asks, text in texts
    ]


def _has_swizzles(problem: Problem) -> bool:
    """Whether every swizzle of row-major offsets is in scope, whatever it takes."""
    layout = problem.layout
    limits = layout.max_bytes, layout.alignment_bytes, layout.pitch_multiple_bytes, layout.order
    free = layout.must_be is None and layout.minimise == "excess" and not any(limits)
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


def clique_data(problem: Problem, device: Device, on: Board, clique: Clique) -> dict[str, Any]:
    """A clique as coordinates, with the meeting of every pair."""
    number = {w: n for n, w in enumerate(clique.words)}
    k, p = clique.view
    return {
        "vector_bytes": k * on.bank_bytes,
        "place": p,
        "banks": on.banks // k,
        "excess": clique.excess,
        "words": [_word(problem, w) for w in clique.words],
        "meetings": [
            {
                "words": [number[u], number[v]],
                **_where(problem, device, on.phases[i].place),
                "lanes": [on.phases[i].place.lanes[u][0], on.phases[i].place.lanes[v][0]],
            }
            for (u, v), i in clique.meetings.items()
        ],
    }


def _parity_data(problem: Problem, device: Device, on: Board, parity: Parity) -> dict[str, Any]:
    k, p = parity.view
    used = sorted(set().union(*(set(y) for _, y in parity.combinations)))
    return {
        "vector_bytes": k * on.bank_bytes,
        "place": p,
        "banks": on.banks // k,
        "excess": parity.excess,
        "phases": [
            {
                **_where(problem, device, on.phases[i].place),
                "lanes": sorted({lane for some in on.phases[i].place.lanes.values() for lane in some}),
            }
            for i in used
        ],
        "combinations": [
            {"modulus": modulus, "weights": [weight.get(i, 0) for i in used]}
            for modulus, weight in parity.combinations
        ],
    }


def _word(problem: Problem, word: int) -> dict[str, Any]:
    """A word by its first element, and the byte of the element where it starts."""
    unit, byte = divmod(word, problem.tile.storage.element_bytes)
    first = unit * problem.tile.packed
    return {"element": [int(c) for c in np.unravel_index(first, problem.tile.shape)], "byte": byte}


def _where(problem: Problem, device: Device, place: Place) -> dict[str, Any]:
    access: Access = problem.accesses[place.access]
    warp, iteration = instruction_at(access, place.instruction, -(-problem.threads // device.lanes))
    return {"access": access.name, "warp": warp, "iteration": iteration}


def instruction_at(access: Access, row: int, warps: int) -> tuple[int, dict[str, int]]:
    """Warp and loop variables of a row of an access's trace."""
    rest, warp = divmod(row, warps)
    values = {}
    for name, trips in reversed(access.loops.items()):
        rest, values[name] = divmod(rest, trips)
    return warp, dict(reversed(values.items()))
