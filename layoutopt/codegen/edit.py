"""A change of layout as the edit of a kernel: the declaration and every index, before and after.

An offset whose outer coordinates stand alone is an array of several dimensions, so that a pad changes the
declaration only, and an XOR the last index only:

    x0*33 + x1             float tile[32][33];    tile[warp][lane]
    x0*32 + (x1 ^ x0)      float tile[32][32];    tile[warp][lane ^ warp]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from msgspec import Struct

from layoutopt.accesses.trace import environment, expression_ranges
from layoutopt.codegen.c_family import element_type, raw_type
from layoutopt.codegen.c_text import to_c
from layoutopt.codegen.languages import plan
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import (
    Const,
    Lookup,
    Node,
    Op,
    Var,
    evaluate,
    parse,
    parts,
    substituted,
    tabulated,
    to_text,
    with_parts,
)
from layoutopt.expressions.simplify import Range, bounds, gathered, simplify, weighted_sum
from layoutopt.ground.escape import comment
from layoutopt.hardware.devices import Device
from layoutopt.index.address_forms import over_tid
from layoutopt.layout.formula import coordinate_ranges, row_major_index
from layoutopt.problems.answer import Result
from layoutopt.problems.types import KernelNames, Problem
from layoutopt.study.in_use import formula_in_use

_PLAIN = frozenset(("+", "-", "*", "//", "%", "^", "&", "|", "<<", ">>"))


class Line(Struct, frozen=True):
    """One line of the kernel under both layouts.

    Attributes:
        name: the access; empty for the declaration.
        op: its operation.
        before: as the layout in use has it.
        after: as the new one has it.
    """

    name: str
    op: str
    before: str
    after: str


class Edit(Struct, frozen=True):
    """What to change in a kernel.

    Attributes:
        problem: its name.
        before: element offset of the layout in use, over x0, x1, ...
        after: of the new one.
        declaration: of the array.
        accesses: index expressions, in the order of the problem.
    """

    problem: str
    before: str
    after: str
    declaration: Line
    accesses: tuple[Line, ...]


def edit(problem: Problem, gpu: Device, answer: Result | str) -> Edit:
    """The change from the layout in use (the file's, the published one, else row-major) to `answer`.

    Raises:
        LayoutError: the problem names no accesses, or the layout in use does not hold the tile.
    """
    if not problem.accesses:
        raise LayoutError("an edit needs the accesses: name the result's problem with --problem")
    names = problem.kernel or KernelNames()
    before, after = plan(problem, gpu, _in_use(problem)), plan(problem, gpu, answer)
    lines = [
        Line(a.access.name, a.access.op, _index(before, a, names), _index(after, b, names))
        for a, b in zip(before.accesses, after.accesses, strict=True)
    ]
    declared = Line("", "", _declaration(before, names), _declaration(after, names))
    return Edit(problem.name, to_text(before.offset), to_text(after.offset), declared, tuple(lines))


def edit_text(found: Edit) -> str:
    """The edit as people read changes: lines that go, with a minus, and lines that come, with a plus."""
    lines = [f"// {comment(found.problem)}: {found.before} -> {found.after}"]
    for line in (found.declaration, *found.accesses):
        lines += ["", f"// {comment(line.name)}: {comment(line.op)}"] if line.name else []
        same = line.before == line.after
        lines += [f"  {line.before}"] if same else [f"- {line.before}", f"+ {line.after}"]
    return "\n".join(lines) + "\n"


def _in_use(problem: Problem) -> str:
    if (found := formula_in_use(problem)) is not None:
        return found[1]
    shape = problem.tile.shape
    return to_text(simplify(row_major_index(range(len(shape)), shape), coordinate_ranges(shape)))


def _declaration(planned: Plan, names: KernelNames) -> str:
    kind = element_type(planned) or raw_type(planned.element_bytes)
    natural = planned.element_bytes & -planned.element_bytes
    alignas = f"alignas({planned.alignment_bytes}) " if planned.alignment_bytes > natural else ""
    extents, _ = _subscripts(planned)
    return f"__shared__ {alignas}{kind} {names.array}{''.join(f'[{n}]' for n in extents)};"


def _subscripts(planned: Plan) -> tuple[list[int], list[Node]]:
    """Extents of an array of elements, or of bytes where elements share them, and an index for each."""
    shape, size = planned.problem.tile.shape, -(-planned.bytes // planned.element_bytes)
    terms = gathered(planned.offset)
    strides = [next((f for f, part in terms if part == Var(f"x{d}")), 0) for d in range(len(shape) - 1)]
    nested = all(a % b == 0 for a, b in pairwise(strides) if b)
    if len(shape) > 1 and min(strides) > 0 and nested:
        outer = [Var(f"x{d}") for d in range(len(shape) - 1)]
        inner = weighted_sum(term for term in terms if term[1] not in outer)
        values = tabulated(inner, shape)
        pitches = [a // b for a, b in pairwise(strides)]
        whole = all(n <= pitch for n, pitch in zip(shape[1:], pitches, strict=False))
        if whole and values.min() >= 0 and values.max() < strides[-1]:
            return [shape[0], *pitches, strides[-1]], [*outer, inner]
    return [size], [planned.offset]


def _index(planned: Plan, access: AccessPlan, names: KernelNames) -> str:
    """The element, or the address of the first of several, that a lane touches."""
    warp = planned.device.lanes
    ranges = expression_ranges(planned.problem.threads, warp, access.access.loops)
    defined = {name: _normal(text, access, warp) for name, text in names.variables.items()}
    env = environment(access.access, planned.problem.threads, warp)
    for name, text in names.variables.items():
        values = evaluate(parse(text, frozenset(("tid", "lane", "warp"))), env)
        ranges[name] = int(values.min()), int(values.max())
    index = {
        f"x{d}": _named(parse(str(text), frozenset(ranges)), defined, access, warp)
        for d, text in enumerate(access.access.index)
    }
    _, subscripts = _subscripts(planned)
    texts = [_c(simplify(substituted(node, index), ranges), ranges) for node in subscripts]
    covers_more = access.lanes.operation.width_bytes != planned.element_bytes
    return f"{'&' if covers_more else ''}{names.array}{''.join(f'[{text}]' for text in texts)}"


def _normal(text: str, access: AccessPlan, lanes: int) -> Node:
    return simplify(over_tid(text, access.access, lanes), access.ranges)


def _named(node: Node, defined: Mapping[str, Node], access: AccessPlan, lanes: int) -> Node:
    """`node` with the kernel's variables in the place of what they are defined as."""
    if isinstance(node, Op | Var):
        normal = _normal(to_text(node), access, lanes)
        name = next((name for name, definition in defined.items() if definition == normal), None)
        if name is not None:
            return Var(name)
    return with_parts(node, lambda part: _named(part, defined, access, lanes))


def _c(node: Node, ranges: Mapping[str, Range]) -> str:
    """C as people write it: quotients and remainders stay what they are where nothing is negative."""
    if all(_plain(part, ranges) for part in _every(node)):
        return to_text(node).replace("//", "/")
    return to_c(node, ranges)


def _plain(node: Node, ranges: Mapping[str, Range]) -> bool:
    if isinstance(node, Op) and node.symbol in ("//", "%"):
        return bounds(node.args[0], ranges)[0] >= 0 and isinstance(node.args[1], Const)
    return not isinstance(node, Lookup) and (not isinstance(node, Op) or node.symbol in _PLAIN)


def _every(node: Node) -> Iterator[Node]:
    yield node
    for part in parts(node):
        yield from _every(part)
