"""Audit a layout that somebody already uses: what it costs, what is wrong with it, what would mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from layoutopt.engine.conflicts import Counts, count_wavefronts
from layoutopt.engine.run_time_values import choices, count_choices, report_choices, tidy
from layoutopt.engine.witness import witness
from layoutopt.errors import ExpressionError, ProblemFileError
from layoutopt.expressions.grammar import Const, Node, Op, evaluate, parse, to_text
from layoutopt.expressions.simplify import Range, bounds, simplify
from layoutopt.hardware.counters import counters
from layoutopt.hardware.devices import Device, device
from layoutopt.hardware.operations import Operation
from layoutopt.layout.layout import Layout
from layoutopt.problems.alignment import base_alignment
from layoutopt.problems.answer import RESULT_SCHEMA, AccessReport, Result, Status
from layoutopt.problems.lower import named_widths, width_choices, with_loops
from layoutopt.problems.trace import LaneTrace, Trace, trace
from layoutopt.problems.types import Access, Constraints, Problem

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_FUSED_WIDTHS = (16, 8)


class Finding(Struct, frozen=True):
    """Something worth knowing about the layout.

    Attributes:
        kind: conflict, overlap, misaligned, torn, out_of_bounds, unused_bytes, idle_xor, alignment,
            fusion or fix.
        message: one or more lines for people.
        access: the access concerned, if one is.
        details: the same for programs.
    """

    kind: str
    message: str
    access: str | None = None
    details: dict[str, Any] = {}


class AuditedAccess(Struct, frozen=True, omit_defaults=True):
    """What one access costs, and what the profiler will print for it."""

    name: str
    op: str
    wavefronts: int | float
    ideal: int | float
    excess: int | float
    bank_conflicts: int | float
    least_cycles: int
    counters: dict[str, int]
    any_is: str | None = None
    bytes: int | None = None


class Audit(Struct, frozen=True, rename={"schema_": "schema"}):
    """The outcome. `status` is infeasible where the layout cannot hold the tile at all."""

    problem: str
    target: str
    status: Status
    offset: str | None
    bytes: int
    declared_bytes: int
    alignment_bytes: int
    excess: int | float
    weighted_excess: float
    accesses: tuple[AuditedAccess, ...]
    findings: tuple[Finding, ...]
    schema_: str = RESULT_SCHEMA

    def to_json(self) -> dict[str, Any]:
        """The audit as JSON-ready data, the schema first."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": data.pop("schema"), **data}


def check(
    problem: Problem,
    layout: str | Layout | npt.NDArray[np.integer[Any]] | None = None,
    *,
    target: Device | None = None,
    solver: Callable[[Problem], Result] | None = None,
) -> Audit:
    """Audit `layout` under the accesses of `problem`.

    Args:
        problem: the tile and its accesses.
        layout: element offsets as an expression over x0, x1, ...; a `Layout`; or an integer array of
            byte offsets in the shape of the tile. None takes the file's `layout.offset`, else its
            `published.offset`.
        target: the device, where it is not the one the problem names.
        solver: finds the cheapest fix; None leaves that finding out.

    Raises:
        ProblemFileError: there is no layout to check, or it cannot be read.
    """
    gpu = target or device(problem.target)
    options = width_choices(problem)
    if len(options) > 1:
        # The layout is given, so that every access takes the width that costs it least.
        audits = [_Audit(option, layout, gpu, None).run() for option in options]
        totals = [
            (a.status is Status.INFEASIBLE, sum(access.wavefronts for access in a.accesses)) for a in audits
        ]
        chosen = options[totals.index(min(totals))]
        audit = _Audit(chosen, layout, gpu, solver).run()
        return msgspec.structs.replace(audit, accesses=named_widths(audit.accesses, problem, chosen))
    return _Audit(options[0], layout, gpu, solver).run()


class _Audit:
    def __init__(
        self,
        problem: Problem,
        layout: str | Layout | npt.NDArray[np.integer[Any]] | None,
        gpu: Device,
        solver: Callable[[Problem], Result] | None,
    ) -> None:
        self.problem = problem
        self.tile = problem.tile
        self.gpu = gpu
        self.looped = with_loops(problem)
        self.lanes: Trace = trace(self.looped, self.gpu)
        self.chosen = choices(problem, self.lanes, self.gpu)
        self.solver = solver
        self.node: Node | None = None
        self.bits = self._read(layout)
        self.table = self.bits // 8
        self.size = self._size(self.bits)
        # The array that the source declares, known only for the published layout.
        audits_published = layout is None and problem.layout.offset is None
        self.array = problem.published.bytes if audits_published and problem.published is not None else None

    def run(self) -> Audit:
        counts = [self._count(self.table, a) for a in self.lanes.accesses]
        reports = tuple(self._report(a, c) for a, c in zip(self.lanes.accesses, counts, strict=True))
        wrong = [*self._overlaps(), *self._unaligned(), *self._vectors(), *self._base(), *self._outside()]
        weighted = tidy(
            sum(
                float(((c.wavefronts - c.ideal) * self.chosen.get(a.name, a).weight).sum())
                for a, c in zip(self.lanes.accesses, counts, strict=True)
            )
        )
        findings = [
            *wrong,
            *(f for a, c in zip(self.lanes.accesses, counts, strict=True) for f in self._worst(a, c)),
            *self._unused(),
            *self._idle_xor(counts),
            *self._alignment_note(),
            *(
                f
                for a, source, c in zip(self.lanes.accesses, self.problem.accesses, counts, strict=True)
                for f in self._fusion(a, source, c)
            ),
        ]
        excess = tidy(sum(r.excess for r in reports))
        findings += self._fix(excess, weighted / self.lanes.weight_unit, bool(wrong))
        return Audit(
            self.problem.name,
            self.gpu.name,
            Status.INFEASIBLE if wrong else Status.FEASIBLE,
            to_text(self.node) if self.node is not None else None,
            self.size,
            max(self.array or 0, self.size),
            self._alignment(),
            excess,
            weighted / self.lanes.weight_unit,
            reports,
            tuple(findings),
        )

    # Reading -----------------------------------------------------------------------------------

    def _read(self, layout: str | Layout | npt.NDArray[np.integer[Any]] | None) -> IntArray:
        """Bit offset of every element by row-major index."""
        field = "layout"
        if layout is None:
            if self.problem.layout.offset is not None:
                layout, field = self.problem.layout.offset, "layout.offset"
            elif self.problem.published is not None:
                layout, field = self.problem.published.offset, "published.offset"
            else:
                raise ProblemFileError("", "no layout to check: no layout.offset and no published.offset")
        if isinstance(layout, Layout):
            made_for = layout.shape, layout.element_bytes, layout.packed
            if made_for != (self.tile.shape, self.tile.storage.element_bytes, self.tile.packed):
                raise ProblemFileError(field, f"made for {layout.shape}, not for {self.tile.shape}")
            return 8 * layout.table().ravel() + self._place_in_byte()
        if isinstance(layout, str):
            try:
                self.node = parse(layout, frozenset(f"x{d}" for d in range(len(self.tile.shape))))
                return self._offsets(self.node) * self.tile.element_bits
            except ExpressionError as error:
                where = "" if error.position is None else f" (at {self._at(error.position)})"
                raise ExpressionError(error.reason + where, error.position, field) from None
        if layout.shape != self.tile.shape:
            raise ProblemFileError(field, f"expected a table of shape {self.tile.shape}, got {layout.shape}")
        if not np.issubdtype(layout.dtype, np.integer):
            raise ProblemFileError(field, f"expected a table of integers, got {layout.dtype}")
        return 8 * layout.astype(np.int64).ravel() + self._place_in_byte()

    def _place_in_byte(self) -> IntArray:
        """Bit of its byte at which each element starts."""
        return np.arange(self.tile.elements) % self.tile.packed * self.tile.element_bits

    def _size(self, bits: IntArray) -> int:
        """Bytes to the end of the last element."""
        return -(-(int(bits.max()) + self.tile.element_bits) // 8)

    def _offsets(self, node: Node) -> IntArray:
        """Element offset of every element under an expression, by row-major index."""
        grids = {f"x{d}": g for d, g in enumerate(np.indices(self.tile.shape, dtype=np.int64))}
        return np.broadcast_to(evaluate(node, grids), self.tile.shape).ravel()

    def _coordinates(self, element: int) -> tuple[int, ...]:
        return tuple(int(c) for c in np.unravel_index(element, self.tile.shape))

    def _at(self, element: int) -> str:
        """Coordinates as text."""
        return f"({', '.join(map(str, self._coordinates(element)))})"

    def _report(self, access: LaneTrace, counts: Counts) -> AuditedAccess:
        choice = self.chosen.get(access.name)
        if choice is None:
            return _report(access, counts, self.gpu)
        base = report_choices(counts, choice)
        # No counter shows a worst case or an expectation.
        return AuditedAccess(**msgspec.structs.asdict(base), least_cycles=0, counters={})

    def _count(self, table: IntArray, access: LaneTrace) -> Counts:
        if access.name in self.chosen:
            return count_choices(table, self.chosen[access.name])
        return count_wavefronts(table[access.element], access.active, access.operation, self.gpu)

    # Findings ----------------------------------------------------------------------------------

    def _overlaps(self) -> Iterator[Finding]:
        order = np.argsort(self.bits, kind="stable")
        close = np.flatnonzero(np.diff(self.bits[order]) < self.tile.element_bits)
        if len(close):
            a, b = (int(order[k]) for k in (close[0], close[0] + 1))
            at = int(self.table[b])
            yield Finding(
                "overlap",
                f"{len(close)} elements overlap: {self._at(a)} and {self._at(b)} both cover byte {at}",
                details={
                    "elements": len(close),
                    "first": [self._coordinates(a), self._coordinates(b)],
                    "byte_offset": at,
                },
            )

    def _unaligned(self) -> Iterator[Finding]:
        alignment = self.tile.element_alignment
        wrong = np.flatnonzero(self.table % alignment)
        if len(wrong):
            first = int(wrong[0])
            yield Finding(
                "misaligned",
                f"{len(wrong)} elements do not start at a multiple of {alignment}: "
                f"{self._at(first)} starts at byte {int(self.table[first])}",
                details={"elements": len(wrong), "first": self._coordinates(first), "alignment": alignment},
            )

    def _vectors(self) -> Iterator[Finding]:
        for access in self.lanes.accesses:
            width = access.operation.width_bytes
            start = self.bits[access.element]
            torn = np.zeros(start.shape, bool)
            for k in range(1, access.width_elements):
                next_one = self.bits[access.element + k * access.active]
                torn |= access.active & (next_one != start + k * self.tile.element_bits)
            for kind, bad in (("misaligned", access.active & (start % (8 * width) != 0)), ("torn", torn)):
                if not bad.any():
                    continue
                row, lane = (int(v) for v in np.argwhere(bad)[0])
                byte = int(start[row, lane]) // 8
                what = f"starts at byte {byte}" if kind == "misaligned" else "is not contiguous"
                element = int(access.element[row, lane])
                vectors = "vectors" if access.width_elements > 1 else "accesses"
                yield Finding(
                    kind,
                    f"{int(bad.sum())} {vectors} of {width} bytes are {kind}: "
                    f"{self._place(access, row)}, lane {lane}, {self._at(element)} {what}",
                    access.name,
                    {"vectors": int(bad.sum()), "instruction": row, "lane": lane, "byte_offset": byte},
                )

    def _base(self) -> Iterator[Finding]:
        given, needed = self.problem.layout.alignment_bytes, self._alignment()
        if given is not None and given < needed:
            yield Finding(
                "alignment",
                f"the base needs {needed} bytes of alignment, layout.alignment_bytes is {given}",
                details={"needed": needed, "given": given},
            )

    def _outside(self) -> Iterator[Finding]:
        low, high = int(self.table.argmin()), int(self.table.argmax())
        if self.table[low] < 0:
            yield Finding("out_of_bounds", f"{self._at(low)} lies at byte {int(self.table[low])}")
        for what, limit in (("max_bytes", self.problem.layout.max_bytes), ("the declared array", self.array)):
            if limit is not None and self.size > limit:
                yield Finding(
                    "out_of_bounds",
                    f"{self._at(high)} ends at byte {self.size}; {what} holds {limit}",
                    details={"bytes": self.size, "limit": limit},
                )

    def _worst(self, access: LaneTrace, counts: Counts) -> Iterator[Finding]:
        """The instruction with the most excess, and in it the worst phase, lane by lane."""
        over = counts.wavefronts - counts.ideal
        row = int(over.argmax())
        if access.name in self.chosen or over[row] <= 0:
            return
        address = self.table[access.element[row]]
        phases = witness(address.tolist(), access.active[row].tolist(), access.operation, self.gpu)
        worst = max(phases, key=lambda p: p.wavefronts)
        words = sorted({t.word for t in worst.touches})
        meeting = [
            {
                "lane": t.lane,
                "coordinates": self._coordinates(int(access.element[row, t.lane])),
                "byte_offset": int(address[t.lane]),
                "word": t.word,
            }
            for t in worst.touches
        ]
        shown = []
        for t in worst.touches:
            where = self._at(int(access.element[row, t.lane]))
            shown.append(f"    lane {t.lane:>2}  {where:<12} byte {address[t.lane]:>6}  word {t.word:>5}")
        if len(shown) > 8:
            shown = [*shown[:7], f"    and {len(shown) - 7} more lanes"]
        yield Finding(
            "conflict",
            f"{self._place(access, row)}: {len(worst.lanes)} lanes are served together; {len(words)} words "
            f"meet in bank {worst.bank}, so they take {worst.wavefronts} wavefronts\n" + "\n".join(shown),
            access.name,
            {
                "instruction": row,
                "lanes": worst.lanes,
                "wavefronts": worst.wavefronts,
                "bank": worst.bank,
                "meeting": meeting,
            },
        )

    def _unused(self) -> Iterator[Finding]:
        unused = self.size - self.tile.bytes
        if unused > 0:
            yield Finding(
                "unused_bytes",
                f"{unused:,} of {self.size:,} bytes ({100 * unused / self.size:.0f} %) hold no element",
                details={"bytes": unused},
            )

    def _idle_xor(self, counts: list[Counts]) -> Iterator[Finding]:
        """Bits of XOR operands that can go without changing any count."""
        if self.node is None:
            return
        node, dropped = self.node, 0
        for path, operand in _xor_operands(node):
            reach = int(np.bitwise_or.reduce(self._offsets(operand)))
            for bit in range(max(reach, 0).bit_length()):
                tried = _replaced(node, path, partial(_without_bit, bit))
                if reach >> bit & 1 and self._same_counts(self._offsets(tried), counts):
                    node, dropped = tried, dropped + 1
        if dropped:
            tidy = to_text(_tidied(node, {f"x{d}": (0, n - 1) for d, n in enumerate(self.tile.shape)}))
            bits, they = ("bits change", "them") if dropped > 1 else ("bit changes", "it")
            yield Finding(
                "idle_xor",
                f"{dropped} XOR {bits} nothing: every count stays without {they}: {tidy}",
                details={"bits": dropped, "offset": tidy},
            )

    def _same_counts(self, offsets: IntArray, counts: list[Counts]) -> bool:
        """Whether a layout costs the same everywhere, is as small, and is as sound."""
        bits = offsets * self.tile.element_bits
        table = bits // 8
        if len(np.unique(bits)) != len(bits) or self._size(bits) > self.size:
            return False
        for access, old in zip(self.lanes.accesses, counts, strict=True):
            if (bits[access.element] % (8 * access.operation.width_bytes))[access.active].any():
                return False
            for k in range(1, access.width_elements):
                lanes = access.element[access.active]
                if (bits[lanes + k] != bits[lanes] + k * self.tile.element_bits).any():
                    return False
            if (self._count(table, access).wavefronts != old.wavefronts).any():
                return False
        return True

    def _alignment(self) -> int:
        return base_alignment(self.lanes, self.gpu, swizzled=False)

    def _alignment_note(self) -> Iterator[Finding]:
        """What the base needs if the kernel XORs addresses and not offsets."""
        if self.node is None:
            return
        flipped = 0
        for path, _ in _xor_operands(self.node):
            without = self._offsets(_replaced(self.node, path, lambda _: Const(0)))
            flipped |= int(np.bitwise_or.reduce(without * self.tile.element_bits // 8 ^ self.table))
        needed = 1 << max(flipped, 0).bit_length()
        own = self._alignment()
        if needed > own:
            yield Finding(
                "alignment",
                f"the base needs {own} bytes of alignment; {needed} if the XOR is applied to addresses",
                details={"offset_form": own, "address_form": needed},
            )

    def _fusion(self, access: LaneTrace, source: Access, counts: Counts) -> Iterator[Finding]:
        """What the counts become if the compiler fuses neighbouring iterations into a wider access."""
        operation = access.operation
        if (
            not (operation.does.narrows and operation.does.by_pointer)
            or not access.active.any()
            or access.name in self.chosen
        ):
            return
        shape = (*source.loops.values(), -1, self.gpu.lanes)
        address = self.table[access.element].reshape(shape)
        active = access.active.reshape(address.shape)
        for axis, name in enumerate(source.loops):
            for width in _FUSED_WIDTHS:
                together = width // operation.width_bytes
                wide = Operation(operation.kind, width)
                known = (wide.kind, wide.width_bytes) in self.gpu.rules
                if together < 2 or source.loops[name] % together or not known:
                    continue
                rows = _fusible(np.moveaxis(address, axis, 0), np.moveaxis(active, axis, 0), together, width)
                if rows is None:
                    continue
                new = count_wavefronts(*rows, wide, self.gpu)
                wavefronts = int(counts.wavefronts.sum()), int(new.wavefronts.sum())
                conflicts = int(counts.bank_conflicts.sum()), int(new.bank_conflicts.sum())
                yield Finding(
                    "fusion",
                    f"{access.name}: if the compiler fuses {together} iterations of {name} into one "
                    f"{width}-byte {operation.kind}: {wavefronts[1]} wavefronts and {conflicts[1]} "
                    f"bank_conflicts, not {wavefronts[0]} and {conflicts[0]}",
                    access.name,
                    {"loop": name, "bytes": width, "wavefronts": wavefronts, "bank_conflicts": conflicts},
                )
                return

    def _fix(self, excess: int | float, weighted: float, broken: bool) -> Iterator[Finding]:
        """The cheapest layout with the least excess, if it is better than this one."""
        if self.solver is None:
            return
        best = self._solved(None)
        if best is None or best.weighted_excess is None or best.bytes is None:
            return
        if not broken and (best.weighted_excess, best.bytes) >= (weighted, self.size):
            return
        options = [best]
        dictated = self.problem.layout.must_be is not None  # which leaves no choice of families
        for families in (("none", "pad"), ("none", "xor")) if not dictated else ():
            allowed = self.problem.layout.families
            if allowed is None or set(families) <= set(allowed):
                option = self._solved(families)
                if option is not None:
                    options.append(option)
        reach = [o for o in options if o.weighted_excess == best.weighted_excess]
        # Cheapest to adopt: no more memory than now if that can be had, then the simplest formula.
        chosen = min(reach, key=lambda o: ((o.bytes or 0) > self.size, _cost(o), o.bytes))
        if best.weighted_excess >= weighted:
            chosen = best  # only bytes are to be won
        saved = tidy(excess - (chosen.excess or 0))
        size = self.size - (chosen.bytes or 0)
        won, unit = saved, "wavefronts"
        if (weighted, chosen.weighted_excess) != (excess, chosen.excess):
            won, unit = tidy(weighted - (chosen.weighted_excess or 0)), "weighted wavefronts"
        gain = [f"{won:,} {unit}"] if won > 0 else []
        gain += [f"{size:,} bytes"] if size > 0 else []
        cost = f", costs {-size:,} bytes" if size < 0 else ""
        yield Finding(
            "fix",
            f"{self._describe(chosen)}: {chosen.offset}"
            + (f"; saves {' and '.join(gain)}" if gain else "")
            + cost,
            details={
                "offset": chosen.offset,
                "family": chosen.family,
                "excess": chosen.excess,
                "bytes": chosen.bytes,
                "saved_wavefronts": saved,
                "saved_bytes": size,
            },
        )

    def _solved(self, families: tuple[str, ...] | None) -> Result | None:
        old: Constraints = self.problem.layout
        changed = msgspec.structs.replace(old, offset=None, families=families or old.families)
        assert self.solver is not None
        result = self.solver(msgspec.structs.replace(self.problem, layout=changed))
        return result if result.layout is not None else None

    def _describe(self, result: Result) -> str:
        """What to change, in the words of kernel authors."""
        layout = result.layout
        assert layout is not None
        if layout.swizzle:
            bits = len(layout.swizzle)
            unit = layout.element_bytes << layout.swizzle[0].bit
            over = "" if result.family == "xor" else f" ({result.family})"
            return f"XOR {bits} bit{'s' if bits > 1 else ''} at {unit} bytes{over}"
        if result.family == "pad" and len(layout.shape) == 2:
            pad = layout.digits[0].stride * layout.packed - layout.shape[1]
            now = self._row_pad()
            return f"pad {pad}" + (f" instead of {now}" if now is not None else "")
        plain = {"none": "no pad and no swizzle", "order": "another dimension order"}
        return plain.get(result.family or "", f"{result.family}")

    def _row_pad(self) -> int | None:
        """The pad of the audited layout, if it is rows at a pitch."""
        rows, columns = self.tile.shape
        offsets = self.bits.reshape(rows, columns) // self.tile.element_bits
        pitch = int(offsets[1, 0] - offsets[0, 0]) if rows > 1 else columns
        plain = np.arange(rows)[:, None] * pitch + np.arange(columns)
        return pitch - columns if (offsets == plain).all() else None

    def _place(self, access: LaneTrace, row: int) -> str:
        """`name, warp w, i = 3` for an instruction of the trace."""
        (source,) = [a for a in self.looped.accesses if a.name == access.name]
        warps = -(-self.problem.threads // self.gpu.lanes)
        iteration, warp = divmod(row, warps)
        values = []
        for name, trips in reversed(source.loops.items()):
            iteration, value = divmod(iteration, trips)
            values.append(f", {name} = {value}")
        return f"{access.name}, warp {warp}{''.join(reversed(values))}"


def _report(access: LaneTrace, counts: Counts, gpu: Device) -> AuditedAccess:
    wavefronts, ideal = int(counts.wavefronts.sum()), int(counts.ideal.sum())
    conflicts = int(counts.bank_conflicts.sum())
    base = AccessReport(access.name, access.op, wavefronts, ideal, wavefronts - ideal, conflicts)
    least = gpu.rule(access.operation).least_cycles
    cycles = np.where(counts.phases > 0, np.maximum(counts.wavefronts, least), 0)
    return AuditedAccess(
        **msgspec.structs.asdict(base),
        least_cycles=int(cycles.sum()),
        counters=counters(access.operation, wavefronts, conflicts),
    )


def _cost(result: Result) -> int:
    return result.proof.index_cost.value if result.proof.index_cost is not None else 0


def _fusible(
    address: IntArray, active: BoolArray, together: int, width: int
) -> tuple[IntArray, BoolArray] | None:
    """Addresses and activity of the fused access; None if neighbours along axis 0 cannot be fused."""
    step = width // together
    groups = address.reshape(-1, together, *address.shape[1:])
    on = active.reshape(groups.shape)
    first, alike = groups[:, :1], on[:, :1]
    expected = first + step * np.arange(together).reshape(1, -1, *[1] * (address.ndim - 1))
    whole = ((groups == expected) | ~on).all() and (on == alike).all()
    if not whole or (first % width != 0)[alike].any():
        return None
    rows = (-1, address.shape[-1])
    return first.reshape(rows), alike.reshape(rows)


def _xor_operands(node: Node, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Node]]:
    """The right operand of every `^`, with its path of child numbers."""
    if isinstance(node, Op):
        if node.symbol == "^":
            yield (*path, 1), node.args[1]
        for k, arg in enumerate(node.args):
            yield from _xor_operands(arg, (*path, k))


def _replaced(node: Node, path: tuple[int, ...], change: Callable[[Node], Node]) -> Node:
    if not path:
        return change(node)
    assert isinstance(node, Op)
    args = list(node.args)
    args[path[0]] = _replaced(args[path[0]], path[1:], change)
    return Op(node.symbol, tuple(args))


def _without_bit(bit: int, node: Node) -> Node:
    return Op("&", (node, Op("~", (Const(1 << bit),))))


def _tidied(node: Node, ranges: Mapping[str, Range]) -> Node:
    """Write what `_without_bit` left as one remainder or mask, and drop what is then redundant."""
    gone, inner = 0, node
    while True:
        match inner:
            case Op("&", (rest, Op("~", (Const(value),)))):
                gone |= value
                inner = rest
            case _:
                break
    if not gone:
        if not isinstance(node, Op):
            return node
        return simplify(Op(node.symbol, tuple(_tidied(a, ranges) for a in node.args)), ranges)
    kept = ((1 << max(bounds(inner, ranges)[1], 0).bit_length()) - 1) & ~gone
    if kept & (kept + 1) == 0:
        return Op("%", (inner, Const(kept + 1)))
    return Op("&", (inner, Const(kept)))
