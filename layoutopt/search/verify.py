"""From what was promised to a result: the conflict engine confirms it, or nothing is returned."""

from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.engine.case import Case
from layoutopt.engine.conflicts import Counts
from layoutopt.engine.referee import rounded_count
from layoutopt.errors import LayoutError, VerificationError
from layoutopt.expressions.grammar import to_text
from layoutopt.ground.budget import unhurried
from layoutopt.index.index_code import MEASURE
from layoutopt.layout.formula import element_expression
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, IndexCost, Proof, Result, Status
from layoutopt.proof.reasons import COUNTING
from layoutopt.search.proposal import Found, Proposal, Proved

_WEIGHTLESS: Final = "conflicts remain in accesses of weight 0, which are not part of what is searched"


class Answer(Struct, frozen=True):
    """A result of a case that the conflict engine confirms."""

    case: Case
    result: Result
    wavefronts: float = 0  # of its layout, weights applied; 0 without one

    @property
    def rank(self) -> tuple[float, ...]:
        """Sorting key of answers to one problem, which may have other lanes or widths.

        Of estimates, what fits on the device comes first.
        """
        cost, took = self.result.proof.index_cost, self.result.estimate
        return self.case.asked.layout.objective.key(
            self.wavefronts,
            self.result.bytes or 0,
            cost.value if cost is not None else 0,
            (took.blocks_per_sm == 0, took.time, took.cycles) if took is not None else (),
        )

    def saying(self, **fields: Any) -> Self:
        """The same, with other fields of the result."""
        return replace(self, result=replace(self.result, **fields))

    def unproved(self, reason: str) -> Self:
        """See `Result.unproved`."""
        return replace(self, result=self.result.unproved(reason))


def verified(case: Case, proposal: Proposal, *, conflict_free: bool = False) -> Answer:
    """The proposal as a result, with what the conflict engine counts at every lane. The only way to one.

    With `conflict_free`, a layout with conflicts is none: those of accesses of weight 0, at which the search
    does not look, leave the question open.

    Raises:
        VerificationError: the layout does not hold the tile, or costs other than was promised.
    """
    with unhurried():
        found, complete = proposal.found, proposal.complete
        proved, unproved = (Status.OPTIMAL, Status.FEASIBLE) if found else (Status.INFEASIBLE, Status.UNKNOWN)
        result = Result(
            problem=case.asked.name,
            target=case.device.name,
            status=proved if complete else unproved,
            proof=_proof(case, proposal),
            reason=proposal.reason,
            decided_by=proposal.decided_by if complete else None,
            model=proposal.model,
        )
        if found is None:
            return Answer(case, result)
        layout = case.as_elements(found.layout)
        counts = _counts(case, layout, found)
        reports = case.described(case.reports(counts), case.table(layout))
        if conflict_free and any(report.excess for report in reports):
            status, proof = Status.UNKNOWN, result.proof
            return Answer(case, Result(result.problem, result.target, status, proof, reason=_WEIGHTLESS))
        result = replace(
            result,
            layout=layout,
            family=found.family,
            offset=to_text(element_expression(layout)),
            bytes=found.bytes,
            declared_bytes=max(found.layout.declared_bytes, found.bytes),
            alignment_bytes=max(found.alignment_bytes or 1, case.needed_alignment(found.layout, reports)),
            excess=rounded_count(sum(r.excess for r in reports)),
            weighted_excess=found.weighted_excess / case.lanes.weight_unit,
            accesses=reports,
        )
        wavefronts = case.weighted_wavefronts(counts) / case.lanes.weight_unit
        return Answer(case, result, round(wavefronts, 6))


def _counts(case: Case, layout: Layout, found: Found) -> Sequence[Counts]:
    """What the engine counts of every access; VerificationError where something else was promised."""
    table = case.table(layout)
    try:
        case.check(table)
    except LayoutError as error:
        raise VerificationError(f"the model proposed a layout that does not hold the tile: {error}") from None
    if (size := case.size(table)) != found.bytes:
        raise VerificationError(f"the model promised {found.bytes} bytes, the layout takes {size}")
    if (most := case.lowered.layout.max_bytes) is not None and size > most:
        raise VerificationError(f"the model proposed {size} bytes, of which max_bytes allows {most}")
    counts = case.count(table)
    if (weighted := case.weighted_excess(counts)) != found.weighted_excess:
        raise VerificationError(
            f"the model promised a weighted excess of {found.weighted_excess}, the engine counts {weighted}"
        )
    return counts


def _proof(case: Case, proposal: Proposal) -> Proof:
    """The bounds of a proposal in whole wavefronts and in weights, and the index cost of its layout."""
    bound, scope, _ = proposal.excess_bound
    plain = proposal.plain_bound  # of the excess without weights
    if bound == round(bound):  # so many weights are at least `bound / heaviest` wavefronts
        heaviest = int(np.concatenate([a.weight for a in case.lanes.accesses]).max(initial=1))
        plain = max(plain, Proved(-(-bound // heaviest), scope), key=lambda proved: proved.lower_bound)
    weighted_excess = Bound(case.in_weights(bound), scope) if case.has_weights else None
    index_cost = None
    if proposal.found is not None and not case.lowered.is_dictated:
        value = case.index_cost(case.as_elements(proposal.found.layout))
        index_cost = IndexCost(value, proved=value <= case.least_instructions, measure=MEASURE)
    # A bound of the search that holds for every layout is that of counting.
    every_layout, evidence = None, COUNTING.evidence if bound and scope == EVERY_LAYOUT else ""
    if proposal.every_layout is not None:
        known, rests_on = proposal.every_layout
        if scope != EVERY_LAYOUT or known >= bound:
            evidence = rests_on
        if scope != EVERY_LAYOUT:
            every_layout = Bound(case.in_weights(known), EVERY_LAYOUT)
    return Proof(plain.bound, proposal.bytes_bound.bound, index_cost, weighted_excess, every_layout, evidence)
