"""One warp instruction of a problem: which it is, and what its lanes meet under a layout."""

from msgspec import Struct

from layoutopt.accesses.lower import with_loops
from layoutopt.accesses.trace import LaneTrace, instruction_at
from layoutopt.engine.case import Case
from layoutopt.engine.witness import Served, serve, worst_instruction
from layoutopt.ground.arrays import IntArray


class Instruction(Struct, frozen=True):
    """A row of the trace of an access, by their numbers."""

    case: Case
    access: int
    row: int

    @classmethod
    def worst(cls, case: Case, access: int, table: IntArray) -> "Instruction":
        """That of the access with the most excess under byte offsets by row-major index."""
        return cls(case, access, worst_instruction(case.accesses[access].count(table))[1])

    @property
    def lanes(self) -> LaneTrace:
        """What the whole access touches."""
        return self.case.lanes.accesses[self.access]

    @property
    def at(self) -> tuple[int, dict[str, int]]:
        """The warp, and the values of the loops."""
        warps = -(-self.case.problem.threads // self.case.device.lanes)
        return instruction_at(with_loops(self.case.problem).accesses[self.access], self.row, warps)

    @property
    def text(self) -> str:
        """`name, warp w, i = 3`."""
        warp, iteration = self.at
        return ", ".join([self.lanes.name, f"warp {warp}", *(f"{k} = {v}" for k, v in iteration.items())])

    def coordinates(self, lane: int) -> tuple[int, ...]:
        """Of the element that a lane touches first."""
        return self.case.coordinates(int(self.lanes.element[self.row, lane]))

    def addresses(self, table: IntArray) -> list[int]:
        """The byte address of each lane under byte offsets by row-major index."""
        addresses: list[int] = table[self.lanes.element[self.row]].tolist()
        return addresses

    def served(self, table: IntArray) -> tuple[Served, ...]:
        """Each phase, wavefront by wavefront."""
        active = self.lanes.active[self.row].tolist()
        return serve(self.addresses(table), active, self.lanes.operation, self.case.device)

    def worst_phase(self, table: IntArray) -> Served:
        """The phase of the most wavefronts."""
        return max(self.served(table), key=lambda phase: phase.wavefronts)


def place_text(coordinates: tuple[int, ...]) -> str:
    """Coordinates as text."""
    return f"({', '.join(map(str, coordinates))})"
