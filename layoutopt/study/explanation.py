"""What `explain` answers, of one tile and of several."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

from layoutopt.ground.json_data import Versioned
from layoutopt.problems.answer import ModelGrowth

EXPLANATION_SCHEMA: Final = "layoutopt.explanation/1"
BLOCK_SCHEMA: Final = "layoutopt.tile_set_explanation/1"
# The scope of "no layout": other constraints might have one.
ALLOWED: Final = "the layouts that the constraints allow"


class Relaxation(Struct, frozen=True):
    """Something to change or to give up, after which a layout without conflicts exists.

    Attributes:
        kind: edit, drop_access, narrower, lane_order, free_lanes, families or max_bytes.
        access: what it concerns, if an access.
        with_access: the access to make narrower with it, where one change alone does not help.
        message: for people.
        order: of a lane_order: lane k is to do what lane order[k] does now, in every warp.
    """

    kind: str
    message: str
    access: str | None = None
    order: tuple[int, ...] = ()
    with_access: str | None = None


class Explanation(Versioned, frozen=True):
    """Why.

    Attributes:
        conflict_free: whether a layout without conflicts exists; None where that is open.
        scope: the layouts for which `conflict_free` holds when it is false, and `lower_bound`.
        lower_bound: of the excess, where `weighted` of the weighted excess.
        evidence: what the bound rests on.
        excess, weighted_excess: of the best layout found; None without one.
        offset: that layout.
        clique: words that pairwise meet, more than banks, as in a certificate.
        clashing_accesses: accesses that cannot all be served without conflicts; without any one of
            them the others of these can, where `clash_is_minimal`.
        other_clashes: more sets of that kind, each found with one of `clashing_accesses` left out.
        relaxations: what to give up.
        reasons: sentences and drawings for people.
        widths: where the file leaves widths open, those that the solver chose, in bytes by access name;
            all else is about them.
        decided_by: what decided that nothing is better, as in a result.
        model: what the model took to find the layout, as in a result.
        weighted: whether accesses weigh other than 1.
    """

    problem: str
    target: str
    conflict_free: bool | None
    scope: str
    lower_bound: int | float
    evidence: str
    excess: int | float | None
    weighted_excess: int | float | None
    offset: str | None
    clique: dict[str, Any] | None
    clashing_accesses: tuple[str, ...]
    clash_is_minimal: bool
    other_clashes: tuple[tuple[str, ...], ...]
    relaxations: tuple[Relaxation, ...]
    reasons: tuple[str, ...]
    widths: dict[str, int]
    decided_by: str | None = None
    model: ModelGrowth | None = None
    weighted: bool = False
    schema_: Literal["layoutopt.explanation/1"] = EXPLANATION_SCHEMA


class ExplainedTile(Struct, frozen=True):
    """A tile, or tiles that share a layout, as if there were no others."""

    tiles: tuple[str, ...]
    explanation: Explanation


class BlockExplanation(Versioned, frozen=True):
    """Why several tiles come out as they do.

    Attributes:
        conflict_free: whether all tiles without conflicts fit; None where that is open.
        scope: the layouts for which that holds when it is false, and `lower_bound`.
        lower_bound: of the weighted excess of all tiles together.
        excess, weighted_excess, bytes: of the best layouts found; None without one.
        max_bytes: the budget.
        clashing_accesses: of single tiles, accesses that cannot all be served without conflicts.
        relaxations: what to give up of what all tiles share.
        reasons: sentences about all tiles together.
        tiles: one by one, without the budget.
    """

    problem: str
    target: str
    conflict_free: bool | None
    scope: str
    lower_bound: int | float
    excess: int | float | None
    weighted_excess: float | None
    bytes: int | None
    max_bytes: int | None
    clashing_accesses: tuple[str, ...]
    relaxations: tuple[Relaxation, ...]
    reasons: tuple[str, ...]
    tiles: tuple[ExplainedTile, ...]
    schema_: Literal["layoutopt.tile_set_explanation/1"] = BLOCK_SCHEMA
