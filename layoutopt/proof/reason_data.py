"""Reasons as data of a certificate: in the problem's own coordinates, with all that a check needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from layoutopt.accesses.trace import Trace, instruction_at
from layoutopt.hardware.devices import Device
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import question
from layoutopt.problems.types import Access, Problem
from layoutopt.proof.cnf import dimacs
from layoutopt.proof.obstructions import Board, Clique, Parity, Place, counting_excess
from layoutopt.proof.packing import Packing


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


def packing_data(problem: Problem, device: Device, on: Board, packing: Packing) -> dict[str, Any]:
    """The cliques of a packing: their words, the phases in which these meet, and their shares."""
    return {
        "excess": packing.excess,
        "cliques": [
            {
                "vector_bytes": share.view[0] * on.bank_bytes,
                "place": share.view[1],
                "banks": on.banks // share.view[0],
                "share": share.weight,
                "words": [_word(problem, w) for w in share.words],
                "phases": [_phase(problem, device, on.phases[i].place) for i in share.phases],
            }
            for share in packing.shares
        ],
    }


def parity_data(problem: Problem, device: Device, on: Board, parity: Parity) -> dict[str, Any]:
    """The phases that a parity speaks of, and their weights in each combination."""
    k, p = parity.view
    used = sorted(set().union(*(set(y) for _, y in parity.combinations)))
    return {
        "vector_bytes": k * on.bank_bytes,
        "place": p,
        "banks": on.banks // k,
        "excess": parity.excess,
        "phases": [_phase(problem, device, on.phases[i].place) for i in used],
        "combinations": [
            {"modulus": modulus, "weights": [weight.get(i, 0) for i in used]}
            for modulus, weight in parity.combinations
        ],
    }


def solver_data(
    problem: Problem, device: Device, lanes: Trace, on: Board | None, bound: int
) -> dict[str, Any]:
    """What the solver was asked of every placement, to be asked of another: is there less than `bound`?"""
    most = bound - 1
    allowed = most / lanes.weight_unit
    asks = f"is there a placement of vectors in banks with a weighted excess of {allowed:g} or less?"
    # If some phase must exceed its counting bound, its weight is added: no sums, so CNF can say it.
    step = min((p.weight for p in on.phases), default=0) if on is not None else 0
    clean = on is not None and bound <= counting_excess(on) + step
    sets = phase_sets(lanes, problem.tile, device)
    text = question(sets, lanes, problem.tile, None if clean else most)
    return question_data(problem, asks, text)


def question_data(problem: Problem, asks: str, text: str) -> dict[str, Any]:
    """A question that has the answer no, as a CP-SAT model and where possible as CNF."""
    return {"asks": asks, "answer": "no", "cp_sat": text, "dimacs": dimacs(text, f"{problem.name}: {asks}")}


def _word(problem: Problem, word: int) -> dict[str, Any]:
    """A word by its first element, and the byte of the element where it starts."""
    unit, byte = divmod(word, problem.tile.storage.element_bytes)
    first = unit * problem.tile.packed
    return {"element": [int(c) for c in np.unravel_index(first, problem.tile.shape)], "byte": byte}


def _phase(problem: Problem, device: Device, place: Place) -> dict[str, Any]:
    lanes = sorted({lane for some in place.lanes.values() for lane in some})
    request = {} if place.request is None else {"request": place.request}
    return {**_where(problem, device, place), **request, "lanes": lanes}


def _where(problem: Problem, device: Device, place: Place) -> dict[str, Any]:
    access: Access = problem.accesses[place.access]
    warp, iteration = instruction_at(access, place.instruction, -(-problem.threads // device.lanes))
    return {"access": access.name, "warp": warp, "iteration": iteration}
