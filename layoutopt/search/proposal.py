"""What is asked of those who propose layouts, and what they answer."""

from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import described
from layoutopt.ground.log import LOG, Progress
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import EVERY_LAYOUT, METHODS, Bound, Method, ModelGrowth

MAX_WORKERS: Final = 1024
COUNTED: Final = "counting"
BY_PLACEMENT: Final = "placement"  # CP-SAT over all placements
STOPPED: Final = "stopped before the proof was complete"


def standing(excess: float, size: int, bound: float, doing: str) -> str:
    """What is known so far, in a line for whoever watches: the best layout, the proved bound, and what comes.

    Args:
        excess: weighted, as the file's weights give it, of the best layout so far.
        bound: proved lower bound of the excess.
    """
    known = f"excess {excess:g}" + (f" (at least {bound:g})" if excess > bound else " (none has less)")
    return f"best so far {known} in {size:,} bytes; {doing}"


def check_workers(workers: int) -> None:
    """Refuse what is no number of threads or processes.

    Raises:
        ProblemFileError: it is below 1 or above `MAX_WORKERS`, or no integer.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= MAX_WORKERS:
        raise ProblemFileError("workers", f"expected 1 to {MAX_WORKERS}, got {described(workers)}")


def check_method(method: Method) -> None:
    """Refuse what is no method.

    Raises:
        ProblemFileError: there is none of that name.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise ProblemFileError("method", f"expected one of {', '.join(METHODS)}, got {described(method)}")


def of_tile(name: str, progress: Progress) -> Progress:
    """Progress of one of several tiles, which each line names."""
    return lambda text: progress(f"{name}: {text}")


class Ask(Struct, frozen=True):
    """What is asked beside the problem."""

    conflict_free: bool = False  # any excess is infeasible
    workers: int = 1
    progress: Progress = LOG.debug  # called with a line of text from time to time
    # "model" where one CP-SAT model decides pads, order and XOR masks; "auto" for what is fastest.
    method: Method = "auto"
    # Bounds of every layout are wanted where the families leave excess, not the layout alone.
    every_layout: bool = True
    lanes_open: bool = False  # lanes are assigned once the layout is known, and their index code with them

    def __post_init__(self) -> None:
        check_workers(self.workers)
        check_method(self.method)


class Proved(NamedTuple):
    """A proved lower bound, the layouts that it holds for, and who gave it, as in `Result.decided_by`."""

    lower_bound: float
    scope: str = EVERY_LAYOUT
    by: str = COUNTED

    @property
    def everywhere(self) -> bool:
        """Whether it holds for every layout."""
        return self.scope == EVERY_LAYOUT

    @property
    def bound(self) -> Bound:
        """What a result says of it."""
        return Bound(self.lower_bound, self.scope)


class Found(Struct, frozen=True):
    """A layout, and what whoever found it promises; the conflict engine decides whether that holds."""

    layout: Layout
    family: str  # the families it uses, such as "order+xor"
    weighted_excess: float  # in units of `Trace.weight_unit`
    bytes: int  # last offset plus element size
    alignment_bytes: int | None = None  # that the base must have, where not the layout's own needs decide


class Proposal(Struct, frozen=True):
    """The best layout found so far, if any, and what is proved of every other."""

    found: Found | None
    excess_bound: Proved  # of the weighted excess
    bytes_bound: Proved  # of the bytes, where the weighted excess is its bound
    plain_bound: Proved  # of the excess, weights not applied
    # Whether something may be better of which the bounds say nothing: where no layout was found, any layout;
    # else such as one with a cheaper index, where instructions come first.
    left_open: bool = False
    left: str = STOPPED  # why no layout was found, or what is not proved of one that is not `complete`
    notes: tuple[str, ...] = ()  # what else is to be said
    # Proved lower bound of the weighted excess of every layout, and what it rests on, where that was asked.
    every_layout: tuple[int, str] | None = None
    model: ModelGrowth | None = None  # what one model of everything took, where it was asked

    @property
    def complete(self) -> bool:
        """Whether nothing is better: the bounds are met, or there is no layout."""
        if self.found is None or self.left_open:
            return not self.left_open
        least = self.excess_bound.lower_bound, self.bytes_bound.lower_bound
        return self.found.weighted_excess <= least[0] and self.found.bytes <= least[1]

    @property
    def floor(self) -> int:
        """What is proved of the weighted excess of every layout."""
        counted = self.excess_bound.lower_bound if self.excess_bound.everywhere else 0
        return max(int(counted), self.every_layout[0] if self.every_layout is not None else 0)

    def noted(self, note: str) -> "Proposal":
        """The same, with one more thing to be said."""
        return replace(self, notes=(*self.notes, note))

    @property
    def decided_by(self) -> str:
        """What decided that nothing is better, where it is `complete`: who gave bounds, beside counting."""
        return self.excess_bound.by if self.bytes_bound.by == COUNTED else self.bytes_bound.by

    @property
    def reason(self) -> str:
        """Why there is no layout, what is left unproved, and what else is to be said; may be empty."""
        left = self.left if self.found is None or not self.complete else ""
        return "; ".join(filter(None, (left, *self.notes)))
