"""What is minimised, in which order: which of two layouts is better is asked here, and nowhere else."""

from typing import Final, Literal, get_args

from msgspec import Struct

First = Literal["excess", "bytes", "instructions", "time"]
FIRSTS: Final[tuple[First, ...]] = get_args(First)


class Objective(Struct, frozen=True):
    """What comes first; excess, bytes and the instructions of the index follow in this order."""

    first: First = "excess"

    def key(
        self, excess: float, size: float, cost: float = 0, time: tuple[float, ...] = ()
    ) -> tuple[float, ...]:
        """A sorting key of a layout: the better of two has the smaller one.

        Args:
            excess: weighted; or wavefronts, between layouts that are read in different widths.
            size: in bytes or elements.
            cost: instructions of the index.
            time: estimated, in the parts that count one after the other; only where time comes first.
        """
        if self.bytes_first:
            return size, excess, cost
        if self.instructions_first:
            return cost, excess, size
        return (*time, excess, size, cost) if self.time_first else (excess, size, cost)

    @property
    def excess_first(self) -> bool:
        """Whether excess comes first, as it does where a file says nothing."""
        return self.first == "excess"

    @property
    def bytes_first(self) -> bool:
        """Whether fewer bytes are worth any excess."""
        return self.first == "bytes"

    @property
    def instructions_first(self) -> bool:
        """Whether a cheaper index is worth any excess and any bytes."""
        return self.first == "instructions"

    @property
    def time_first(self) -> bool:
        """Whether the estimated time comes first."""
        return self.first == "time"

    @property
    def counts_only(self) -> bool:
        """Whether excess and bytes decide before any code or estimate does."""
        return self.excess_first or self.bytes_first


EXCESS_FIRST: Final = Objective()
