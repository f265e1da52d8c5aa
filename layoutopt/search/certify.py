"""Certificates of answers: of several tiles, where each lies, and of each what holds of every layout.

`scripts/checkers/check_certificate.py` checks the certificate of each tile, that the tiles keep to their
bytes, and what of the rest is arithmetic. That no other combination is better where the budget, or a family,
leaves conflicts or unused bytes rests on layoutopt's search, and the certificate says so.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from layoutopt.files.checks import fields_of
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, Proof, Result, Status
from layoutopt.problems.types import Block, Problem
from layoutopt.proof import certificates
from layoutopt.proof.certificates import ARITHMETIC, BY_SEARCH
from layoutopt.search.same_layout import groups

BLOCK_CERTIFICATE_SCHEMA: Final = "layoutopt.block_certificate/1"


def check_certifiable(problem: Problem | Block) -> None:
    """Check that there are certificates for answers to this problem.

    Raises:
        ProblemFileError: some lanes choose at run time, or are free.
    """
    if isinstance(problem, Problem):
        certificates.check_certifiable(problem)
        return
    for tiles, shared in groups(problem):
        with fields_of(problem, *tiles):
            certificates.check_certifiable(shared)


def certificate(problem: Problem | Block, gpu: Device, answer: Result | Arrangement) -> dict[str, Any]:
    """What supports an answer, as JSON-ready data.

    Args:
        problem: what was solved.
        gpu: for which device.
        answer: what came out.

    Raises:
        ProblemFileError: as for `check_certifiable`.
    """
    if isinstance(problem, Problem):
        assert isinstance(answer, Result)
        return certificates.certificate(problem, gpu, answer)
    assert isinstance(answer, Arrangement)
    check_certifiable(problem)
    return _of_block(problem, gpu, answer)


def _of_block(block: Block, gpu: Device, arrangement: Arrangement) -> dict[str, Any]:
    """Where each tile lies, and the certificate of each layout."""
    proof = arrangement.proof
    parts: list[dict[str, Any]] = []
    for (tiles, problem), part in zip(groups(block), arrangement.tiles, strict=False):
        own = certificates.certificate(problem, gpu, _everywhere(problem, part.result))
        # As the file has them: what several sizes leave out is no constraint of its.
        own["constraints"]["families"] = msgspec.to_builtins(block.problem(tiles[0]).layout.families)
        parts.append(
            {
                "tiles": part.tiles,
                "base_bytes": part.base_bytes,
                "bases_bytes": part.bases_bytes,
                "stages": part.stages,
                "stage_bytes": part.stage_bytes,
                "places": [msgspec.to_builtins(place) for place in part.places],
                "certificate": own,
            }
        )
    certain = sum(part["certificate"]["bound"]["excess"] for part in parts)
    everywhere = bool(parts) and certain >= proof.objective.lower_bound
    rests_on = {own["bound"]["rests_on"] for part in parts if (own := part["certificate"])["bound"]["excess"]}
    by_hand = everywhere and rests_on <= {ARITHMETIC}
    return {
        "schema": BLOCK_CERTIFICATE_SCHEMA,
        "problem": block.name,
        "target": block.target,
        "status": str(arrangement.status),
        "reason": arrangement.reason,
        "max_bytes": arrangement.max_bytes,
        "bytes": arrangement.bytes,
        "excess": arrangement.weighted_excess,
        "bound": {
            "excess": certain if everywhere else proof.objective.lower_bound,
            "scope": EVERY_LAYOUT if everywhere else proof.objective.scope,
            "rests_on": ARITHMETIC if by_hand else BY_SEARCH,
        },
        "bytes_bound": {"at_least": proof.bytes.lower_bound, "scope": proof.bytes.scope},
        "tiles": parts,
    }


def _everywhere(problem: Problem, result: Result) -> Result:
    """The result with what is known of every layout: it was sought for one point of the tile's front."""
    bound = result.proof.objective
    bound = bound if bound.everywhere else Bound(0, EVERY_LAYOUT)
    size = Bound(problem.tile.bytes, EVERY_LAYOUT)
    best = bound.lower_bound == result.weighted_excess and size.lower_bound == result.bytes
    proof = Proof(bound, size, None, bound, None, result.proof.evidence if bound.lower_bound else "")
    status = Status.OPTIMAL if best else Status.FEASIBLE
    return msgspec.structs.replace(result, status=status, proof=proof)
