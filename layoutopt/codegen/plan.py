"""What every emitter prints: the offset, and for each access how its address is computed."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.trace import LaneTrace, trace
from layoutopt.codegen.c_text import HELPERS
from layoutopt.errors import VerificationError
from layoutopt.expressions.grammar import (
    Const,
    Lookup,
    Node,
    Op,
    Var,
    lookups,
    tabulated,
    to_text,
    with_parts,
)
from layoutopt.expressions.simplify import Range
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.escape import comment, identifier
from layoutopt.hardware.devices import Device, counters
from layoutopt.index.address_forms import over_tid
from layoutopt.index.index_code import IndexCode, index_code
from layoutopt.layout.formula import coordinate_ranges
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import AccessReport, Descriptor, MatrixDescriptor, TensorMap
from layoutopt.problems.text import abridged, tables, vector_text
from layoutopt.problems.types import Access, Problem

# The base as a variable: no loop variable can have this name.
BASE: Final = "@base"


class AccessPlan(IndexCode, frozen=True):
    """One access in code, by its index code, whose addresses are in the plan's unit."""

    name: str  # an identifier, the tile's name in front
    access: Access  # as in the problem
    lanes: LaneTrace  # its trace
    report: AccessReport  # what it costs
    tables: Mapping[tuple[int, ...], str]  # that its lanes were chosen by, and their names

    @property
    def headline(self) -> str:
        """What it is and what it costs, in a line that is safe in a comment."""
        report = self.report
        return (
            f"{comment(self.access.name)}: {comment(self.access.op)}; {report.wavefronts} wavefronts, "
            f"ideal {report.ideal}, bank_conflicts {report.bank_conflicts}"
        )

    def counters(self, gpu: Device) -> dict[str, int]:
        """What the profiler will count of it."""
        counted = int(self.report.wavefronts), int(self.report.bank_conflicts)
        return counters(gpu, self.lanes.operation, *counted)

    def named(self, node: Node) -> Node:
        """`node` with the tables of its lanes by their names."""
        return _named(node, self.tables)

    @property
    def functions(self) -> list[tuple[str, list[str], Node]]:
        """What its code computes: the end of a function's name, its variables and the expression.

        `bytes` is the address, else `base` what a thread computes once and `step` the address from there;
        `x0`, ... what a lane touches first, where lanes were chosen; `active` whether a thread takes part.
        """
        every, warp = list(self.ranges), self.lanes.element.shape[1]
        found = [("bytes", every, self.form.address)]
        if self.form.has_step:
            step = self.form.from_base(Var(BASE))
            found = [("base", ["tid"], self.form.base), ("step", [BASE, *self.access.loops], step)]
        if self.report.index is not None:
            chosen = (over_tid(str(text), self.access, warp) for text in self.access.index)
            found += [(f"x{d}", every, node) for d, node in enumerate(chosen)]
        if self.active is not None:
            found.append(("active", every, Op("!=", (self.active, Const(0)))))
        return found

    @property
    def cost(self) -> str:
        """The index code's instructions, in words."""
        found = self.instructions
        if not self.access.loops:
            return f"index instructions: {found.once}"
        return f"index instructions: {found.once} once, {found.looped} in {found.iterations} iterations"

    @property
    def hoisting(self) -> str:
        """What the iterations cost, in words; empty where there is no loop."""
        if not self.access.loops:
            return ""
        if self.form.inside:
            return f"computed anew for each {', '.join(self.form.inside)}"
        costs = ((self.form.flips, "one XOR"), (self.form.steps, "an immediate"))
        return "an iteration costs " + (" and ".join(t for n, t in costs if n != Const(0)) or "nothing")


class HardwarePlan(Struct, frozen=True):
    """What the hardware does by itself, in code."""

    name: str  # an identifier, the tile's name in front
    access: Access  # as in the problem
    descriptor: Descriptor  # how it reaches the tile


class Plan(Struct, frozen=True):
    """Everything that an emitter prints."""

    name: str  # the problem's name as an identifier
    problem: Problem  # the problem
    device: Device  # the target
    layout: Layout | None  # its structure, where the layout is one that layoutopt builds; None for a formula
    offset: Node  # element offset over x0, x1,
    table: IntArray  # byte offset of every element, in the shape of the tile
    alignment_bytes: int  # of its start, as the answer says
    accesses: tuple[AccessPlan, ...]  # in the order of the problem
    header: tuple[str, ...]  # lines that say what this is and what is proved, safe in comments
    language: str = "cuda"  # in which it is printed, one of `layoutopt.codegen.registry`
    by_hardware: tuple[HardwarePlan, ...] = ()  # what no lane executes, in the order of the problem

    @property
    def dictated(self) -> bool:
        """Whether TMA or a matrix instruction reaches the tile."""
        return any(isinstance(a.descriptor, TensorMap | MatrixDescriptor) for a in self.by_hardware)

    @property
    def element_bytes(self) -> int:
        """Size of one element in bytes."""
        return self.problem.tile.storage.element_bytes

    @property
    def bytes(self) -> int:
        """Of the tile."""
        return int(self.table.max()) + self.element_bytes

    @property
    def headlines(self) -> list[str]:
        """The header, and a line for each access."""
        return [*self.header, *(access.headline for access in self.accesses)]

    @property
    def instructions(self) -> int:
        """Integer instructions of the index code of all accesses, for one pass of a thread."""
        return sum(access.instructions.total for access in self.accesses)

    @property
    def coordinate_ranges(self) -> dict[str, Range]:
        """The range of x0, x1, ... in the tile."""
        return coordinate_ranges(self.problem.tile.shape)

    @property
    def sample(self) -> list[tuple[tuple[int, ...], int]]:
        """A few coordinates and their byte offsets, for assertions in the code: corners and a middle."""
        shape = self.problem.tile.shape
        points = [
            tuple(0 for _ in shape),
            tuple(min(1, n - 1) for n in shape),
            tuple(n // 2 for n in shape),
            tuple(n - 1 for n in shape),
        ]
        return [(p, int(self.table[p])) for p in dict.fromkeys(points)]


def make_plan(
    problem: Problem,
    gpu: Device,
    offset: Node,
    *,
    reports: Sequence[AccessReport],
    layout: Layout | None,
    alignment_bytes: int,
    about: Sequence[str],
    unit_bytes: int = 1,
) -> Plan:
    """Plan the code of a layout.

    Args:
        problem: the tile and its accesses.
        gpu: the target.
        offset: element offset over x0, x1, ...
        reports: what each access costs under it.
        layout: of these offsets, where they are one that layoutopt builds.
        alignment_bytes: of the base, as the layout needs it.
        about: header lines.
        unit_bytes: unit of the accesses' addresses; it divides every one of them.

    Raises:
        VerificationError: an expression would not equal the layout's table. Our bug.
    """
    table = tabulated(offset, problem.tile.shape) * problem.tile.storage.element_bytes
    if layout is not None and (table != layout.table()).any():
        raise VerificationError(f"the offset {to_text(offset)} does not equal the table")
    name = identifier(problem.name)
    offset, used = _with_own_names(offset, name)
    by_hardware = tuple(
        HardwarePlan(_own_name(f"{name}_{identifier(access.name)}", used), access, report.descriptor)
        for access, report in zip(problem.accesses, reports, strict=True)
        if report.descriptor is not None  # no lane executes it
    )
    problem, reports, about = _with_formulas(problem, reports, about)
    lanes = trace(problem, gpu)
    codes = index_code(problem, lanes, offset, table, unit_bytes) if problem.accesses else ()
    accesses = []
    for access, part, report, code in zip(problem.accesses, lanes.accesses, reports, codes, strict=True):
        own_name = _own_name(f"{name}_{identifier(access.name)}", used)
        found = tables(map(str, (*access.index, access.where or 0)))
        named = {values: f"{own_name}_lanes{k or ''}" for k, values in enumerate(found)}
        own = code.form, code.active, code.ranges, code.start, code.instructions
        accesses.append(AccessPlan(*own, own_name, access, part, report, named))
    return Plan(
        name=name,
        problem=problem,
        device=gpu,
        layout=None if layout is None or layout.lookup else layout,
        offset=offset,
        table=table,
        alignment_bytes=alignment_bytes,
        accesses=tuple(accesses),
        header=tuple(map(comment, about)),
        by_hardware=by_hardware,
    )


def _with_own_names(offset: Node, name: str) -> tuple[Node, set[str]]:
    """The formula with its tables by names of the tile's, and all that the emitters name after the tile."""
    looked_up = sorted({lookup.values for lookup in lookups(offset)})
    tables = {values: f"{name}_lookup{k or ''}" for k, values in enumerate(looked_up)}
    used = {f"{name}_{suffix}" for suffix in _OWN_NAMES}
    used |= {f"{table}{end}" for table in tables.values() for end in ("", "_table")}
    return _named(offset, tables), used


def _named(node: Node, tables: Mapping[tuple[int, ...], str]) -> Node:
    """`node` with these tables by their names."""
    plain = with_parts(node, lambda part: _named(part, tables))
    if isinstance(plain, Lookup):
        return Lookup(plain.values, plain.index, tables.get(plain.values, plain.name))
    return plain


def _with_formulas(
    problem: Problem, reports: Sequence[AccessReport], about: Sequence[str]
) -> tuple[Problem, list[AccessReport], list[str]]:
    """The accesses that there is code for, what they cost, and a line about each of the others."""
    chosen = {report.name for report in reports if report.index is not None}
    tabled = [a.name for a in problem.accesses if "[" in "".join(map(str, (*a.index, a.where or "")))]
    without = [name for name in tabled if name not in chosen]
    kept = tuple(a for a in problem.accesses if a.name not in without and a.hardware is None)
    told = [f"no code for addresses of {access}: a table gives its lanes" for access in without]
    told += [
        f"{r.name}: as chosen, [{', '.join(map(abridged, r.index))}]{vector_text(r.vector)}"
        for r in reports
        if r.index is not None
    ]
    return (
        replace(problem, accesses=kept),
        [report for report in reports if report.name in {access.name for access in kept}],
        [*about, *told],
    )


def _own_name(name: str, used: set[str]) -> str:
    """`name`, longer where it or what is named after it is used already; adds both to `used`."""
    while not used.isdisjoint((name, *(f"{name}_{part}" for part in PARTS))):
        name += "_"
    used |= {name, *(f"{name}_{part}" for part in PARTS)}
    return name


def is_called(name: str) -> bool:
    """Whether what the functions of an access call may have this name."""
    return _CALLED.fullmatch(name) is not None


# What the emitters name after the tile.
_OWN_NAMES: Final = (
    "offset", "offset_bytes", "tile", "bytes", "alignment", "layout", "size", "swizzle", "lookup",
    "lookup_table", "bit_shift", "test", "commit", "wait", "cluster", *HELPERS,
)  # fmt: skip

# Functions of one access, as suffixes of its name.
PARTS: Final = (
    "bytes", "base", "step", "active", "each", "boxes", "box_bytes", "box_dim", "swizzle", "box_offset",
    "encode", "start", *(f"start_{d}" for d in range(5)), "instructions", "leading_byte_offset",
    "stride_byte_offset", "fields", "descriptor", "copies", "copy_bytes", "offset", "multicast", "store",
    *(f"x{d}" for d in range(8)), "lanes", "lanes_table",
)  # fmt: skip

# Of an access of a tile, and of a tile.
_CALLED: Final = re.compile(
    rf".+_.+_(?:bytes|base|step|active|lanes\d*)|.+_(?:lookup\d*|{'|'.join(HELPERS)})"
)
