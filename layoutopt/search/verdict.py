"""What may be known of a linearisation before the model is asked about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from layoutopt.model.layout_model import Choice
from layoutopt.model.linearisations import Linearisation


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a linearisation.

    Attributes:
        refuted: no layout over it is of use.
        known: one that is, where one is known.
    """

    refuted: bool = False
    known: Choice | None = None


# Of a linearisation whose layouts are of use if they take at most so many elements: as it is, swizzled.
Judge = Callable[[Linearisation, int, int], Verdict]
