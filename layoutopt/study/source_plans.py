"""Changes of a source that are worth compiling: layouts ranked at the addresses of the old machine code."""

import contextlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.engine.conflicts import addressing_lanes, count_wavefronts
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.files.file import tile_from_data
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import checkpoint, current
from layoutopt.ground.temporary import temporary_folder
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.program import Array, Program
from layoutopt.kernels.question.arrays import UsedArray, used_arrays
from layoutopt.kernels.question.problem_data import array_problem, lane_steps
from layoutopt.kernels.read.declarations import base_name, demangled
from layoutopt.kernels.read.files import DEFAULT_TARGET, Listed, kernels, macros
from layoutopt.kernels.read.source import Source, Variable
from layoutopt.kernels.read.values import Values
from layoutopt.problems.types import constrained
from layoutopt.search.block import solve
from layoutopt.source.moves import Move, flips, move_of, pads, transpositions
from layoutopt.source.ptx_edit import WIDEST, Region
from layoutopt.source.rewrite import Moved, Pitched
from layoutopt.source.transposed import Transposed
from layoutopt.source.walk import Walk, rendered
from layoutopt.study.moved import touching

# The symbol of dynamic memory, which is one array.
DYNAMIC: Final = "dynamic"
_FORMS: Final = (Pitched, Moved, Transposed)
# Changes of one array that are compiled: longer pitches, pads by a function, XORs by one, transpositions.
_MOST_TRIED: Final = (2, 1, 2, 1)
# Columns of a flat array that threads may go down.
_MOST_COLUMNS: Final = 2
# Warp instructions that are looked at to rank them.
_MOST_ROWS: Final = 1 << 13
_MOST_SHARED: Final = 227 << 10
_BANKS: Final = 128
# A pointer to it, where templates cannot declare it: the structure that CUDA's samples have for that.
_POINTS: Final = re.compile(r"SharedMemory<[^()]*>\(\)")
_SECONDS: Final = 2.0  # of a search
# Warp instructions: what they do, offsets and lanes, shape (rows, 32).
Site = tuple[Operation, IntArray, BoolArray]


def arrays_of(evaluation: Evaluation) -> dict[str, Array]:
    """The arrays in shared memory, and dynamic memory as one, by name; of one name by number, too.

    Their symbols may change: the compiler writes them in full where a kernel has a lambda.
    """
    program, names = evaluation.program, Counter[str]()
    found: dict[str, Array] = {}
    for array in program.arrays:
        names[array.name] += 1
        found[f"{array.name} ({names[array.name]})" if names[array.name] > 1 else array.name] = array
    if evaluation.launch.shared_bytes and program.static_bytes is not None:
        used = [u.array for u in used_arrays(evaluation) if u.array.name.startswith(DYNAMIC)]
        start = -(-program.static_bytes // WIDEST) * WIDEST
        start = min((a.start for a in used if a.name in (DYNAMIC, f"{DYNAMIC}+0")), default=start)
        found[DYNAMIC] = Array(DYNAMIC, start, evaluation.launch.shared_bytes, DYNAMIC)
    return found


def carved(evaluation: Evaluation, whole: Array) -> list[Array]:
    """The arrays beside each other in dynamic memory, each up to the next; none where there is one."""
    used = [one.array for one in used_arrays(evaluation) if one.array.name.startswith(DYNAMIC)]
    ends = [one.start + one.size for one in used]
    if len(used) < 2 or any(b.start < end for b, end in zip(used[1:], ends, strict=False)):
        return []
    free = [whole.start, *ends]
    starts = [max(one.start // WIDEST * WIDEST, end) for one, end in zip(used, free, strict=False)]
    sizes = np.diff([*starts, max(ends[-1], whole.start + whole.size)]).tolist()
    return [Array(a.name, at, n, DYNAMIC) for a, at, n in zip(used, starts, sizes, strict=True)]


def declaration(source: Source, array: Array, program: Program) -> Variable:
    """The declaration of an array.

    Raises:
        ProblemFileError: there is none, or several may be meant.
    """
    kernel = base_name(program.title)
    if array.symbol == DYNAMIC:
        found = _dynamic(source)
    else:
        found = [v for v in _variables(source) if v.is_shared and v.name == array.name]
        owners = demangled(array.symbol)
        inside = [v for v in found if v.function is not None and _owns(v, owners)]
        found = inside or found
    own = [v for v in found if v.function is not None and v.file.function_name(v.function) == kernel]
    found = own or found
    if len(found) != 1:
        lines = ", ".join(v.file.place(v.node) for v in found) or "none"
        what = "extern __shared__ declaration" if array.symbol == DYNAMIC else f"declaration of {array.name}"
        raise ProblemFileError(array.name, f"expected one {what} in the source, got {lines}")
    return found[0]


def _variables(source: Source) -> list[Variable]:
    return [v for file in source.files for some in file.variables.values() for v in some]


def _dynamic(source: Source) -> list[Variable]:
    """Those that are dynamic memory, or point to it."""
    every = _variables(source)
    shared = [v for v in every if v.is_shared]
    found = [v for v in shared if "extern" in v.file.text(v.node).split("__shared__")[0].split()]
    return found + [v for v in every if v.value is not None and _POINTS.fullmatch(v.file.text(v.value))]


def _owns(variable: Variable, owners: str) -> bool:
    name = variable.file.function_name(variable.function) if variable.function is not None else ""
    return re.search(rf"\b{re.escape(name)}\b", owners) is not None


def _shape(source: Source, variable: Variable, array: Array, program: Program) -> tuple[int, tuple[int, ...]]:
    """Bytes of an element, and the extents of an array that has several."""
    values = _values(source, variable, program)
    extents = [values.integer(variable.file, one) for one in variable.extents]
    element = values.size(variable.file, variable.type)
    if extents and all(extents):
        element = array.size // math.prod(e for e in extents if e)
    place, inner = variable.file.place(variable.node), [e for e in extents[1:] if e]
    if element is None:
        raise ProblemFileError(place, f"the size of {variable.type} is not known")
    if len(inner) != len(extents[1:]):
        raise ProblemFileError(place, f"the extents of {array.name} are not known")
    if not inner:
        return element, ()
    rows, rest = divmod(array.size, element * math.prod(inner))
    if rest:
        raise ProblemFileError(place, f"{array.name} has another size")
    return element, (rows, *inner)


def _values(source: Source, variable: Variable, program: Program) -> Values:
    owner = variable.function
    own = owner is not None and variable.file.function_name(owner) == base_name(program.title)
    return Values(source, program.title if own else "")


class Plan(NamedTuple):
    """Changed code: the wavefronts expected of the first block, and how far the code changes."""

    wavefronts: int
    rank: int
    move: Move | Region
    files: dict[str, bytes]
    remark: str = ""
    pitched: bool = False


class SourceCode(Struct, frozen=True):
    """A CUDA source with its headers.

    Attributes:
        path: of the source.
        target, options, include: for nvcc; include are the folders of headers of the options.
        apart: dynamic memory moves as a whole.
    """

    apart: ClassVar[bool] = False
    path: Path
    target: str | None = None
    options: tuple[str, ...] = ()
    include: tuple[str, ...] = ()

    def files(self) -> dict[str, bytes]:
        """The source and its headers, by path."""
        return {file.path: file.data for file in Source(self.path, self.include).files}

    def dynamic_names(self) -> set[str]:
        """Of the arrays that are declared without a size."""
        return {variable.name for variable in _dynamic(Source(self.path, self.include))}

    def compiled(self, files: dict[str, bytes] | None) -> tuple[Listed, ...]:
        """The kernels of the source, or of changed files in the place of its own.

        Raises:
            ProblemFileError: nvcc refuses it.
        """
        if files is None:
            return kernels(self.path, self.target, self.options)
        with temporary_folder() as folder:
            for name, data in files.items():
                place = folder / name.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            own = [f"-I{folder}{os.path.realpath(one)}" for one in self.include]
            with current().standing_still():
                try:
                    path = folder / os.path.realpath(self.path).lstrip("/")
                    found = kernels(path, self.target, (*own, *self.options))
                    return tuple(one._replace(read=partial(_read, one, f"{folder}")) for one in found)
                except ProblemFileError as error:
                    raise ProblemFileError("", str(error).replace(f"{folder}", "")) from None

    def plans(
        self, files: dict[str, bytes], evaluation: Evaluation, array: Array, gpu: Device
    ) -> tuple[str, list[Plan], list[str]]:
        """The array's name, changes that are worth compiling, and why others cannot be.

        Raises:
            ProblemFileError: its declaration is not clear.
        """
        known = macros(self.path, self.target or DEFAULT_TARGET, self.options)
        source = Source(self.path, self.include, known)
        for k, file in enumerate(source.files):
            if files[file.path] != file.data:
                source.files[k] = type(file)(file.path, files[file.path])
        program = evaluation.program
        variable = declaration(source, array, program)
        element, extents = _shape(source, variable, array, program)
        values = _values(source, variable, program)

        def written(move: Move) -> Iterator[Plan | ProblemFileError]:
            for rank, form in enumerate(_FORMS):
                if not _goes(form, move, extents):
                    continue
                try:
                    change = form(source, values, variable, element, extents, move)
                    edits = change.run()
                except ProblemFileError as error:
                    yield error
                    continue
                if form is Pitched and not extents and len(edits) < 2:
                    continue  # no index has rows of this length
                changed = {file.path: rendered(file, edits) for file in source.files}
                pitched = form is not Moved and not extents
                place = 2 if move.terms else 3 if move.rows else rank
                yield Plan(0, place, move, changed, change.remark, pitched)

        columns = bool(variable.extents) and variable.extents[0] is not None
        return variable.name, *plans(evaluation, array, gpu, element, extents, written, columns)


def _read(kernel: Listed, folder: str) -> Program:
    """A kernel compiled from a copy of its files in a folder: steps say the lines of the files."""
    program = kernel.read()
    places = {
        one.place: replace(one.place, file=one.place.file.removeprefix(folder))
        for one in program.steps
        if one.place
    }
    return replace(
        program, steps=tuple(replace(one, place=one.place and places[one.place]) for one in program.steps)
    )


def plans(
    evaluation: Evaluation,
    array: Array,
    gpu: Device,
    element: int,
    extents: tuple[int, ...],
    written: Callable[[Move], Iterable[Plan | ProblemFileError]],
    columns: bool = False,
) -> tuple[list[Plan], list[str]]:
    """Changes with fewer wavefronts at the addresses of the old machine code, and why others cannot be.

    Args:
        evaluation: of the launch.
        array: the array.
        gpu: whose banks count.
        element: bytes of one.
        extents: of the array, where it has several.
        written: the ways to write a layout, or why there is none.
        columns: rows may become columns.
    """
    sites = list(_sites(evaluation, array))
    merged = list(_merged(sites))
    plain = _wavefronts(merged, None, array.size, gpu)
    widest = max((action.width_bytes for action in touching(evaluation, array).values()), default=element)
    found: list[tuple[tuple[int, ...], Plan]] = []
    refused: dict[str, None] = {}
    units = [*dict.fromkeys((max(widest, element), element))]
    for unit, both in (*((unit, both) for both in (False, True) for unit in units), (0, False)):
        if unit and any(plan.wavefronts <= _ideal(merged, gpu) for _, plan in found):
            continue
        turned = _transpositions(sites, element, extents, array) if columns else ()
        alone = unit and not both and not extents
        solved = [[m] for m in _solved(evaluation, array, unit, gpu)] if alone else []
        rows = _families(unit, both, sites, element, extents, array) if unit else turned
        reached = merged if unit else sites
        for family in (*solved, *rows):
            ranked = (
                (_wavefronts(reached, m, array.size, gpu), m.size(array.size), m.extra, m.terms, m)
                for m in family
                if _fits(m, element, array)
            )
            first = min(ranked, default=None)
            if first is None or first[0] >= plain:
                continue
            wavefronts, size, *_, move = first
            for plan in written(move):
                if isinstance(plan, ProblemFileError):
                    refused[str(plan)] = None
                    continue
                order = wavefronts, plan.rank, int(move.row & (move.row - 1) > 0), size
                found.append((order, plan._replace(wavefronts=wavefronts)))
    best = [plan for _, plan in sorted(found, key=lambda one: one[0])]
    chosen = [p for rank, most in enumerate(_MOST_TRIED) for p in [p for p in best if p.rank == rank][:most]]
    return sorted(chosen, key=lambda p: p.wavefronts), list(refused) if not found else []


def _families(
    unit: int, both: bool, sites: Sequence[Site], element: int, extents: tuple[int, ...], array: Array
) -> Iterator[Iterable[Move]]:
    """Layouts of one kind each: pads, XORs or both of rows, and of lines of banks within longer rows."""
    for kind in (partial(flips, padded=True),) if both else (pads, flips) if extents else (pads,):
        for row in _rows(sites, element, extents, array):
            yield kind(row, unit, array.size)
        line = extents[-1] * element if extents else 0
        if line > _BANKS and line % _BANKS == 0:
            found = (m for m in kind(_BANKS, unit, line) if line // _BANKS % m.told_apart == 0)
            yield [replace(m, inside=True) for m in found]


def _solved(evaluation: Evaluation, array: Array, unit: int, gpu: Device) -> Iterator[Move]:
    """The pad and the XOR that are the solver's answers for the array as one line of elements.

    Accesses of more bytes than stay together are as many as that takes.
    """
    steps = touching(evaluation, array)
    element = min((unit, *(action.width_bytes for action in steps.values())))
    try:
        data = array_problem(evaluation, UsedArray(array, tuple(steps)), (array.size // element,))
        data["accesses"] = [part for access in data["accesses"] for part in _pieces(access, unit, element)]
        problem = tile_from_data(data)
    except ProblemFileError:
        return  # not all that is done to it is known, or too much
    for kind in ("interval", "xor"):
        asked = constrained(problem, families=("none", kind), max_bytes=_most_bytes(array))
        with contextlib.suppress(LayoutError):
            layout = solve(asked, target=gpu, time_limit=_SECONDS).layout
            if layout is not None:
                yield move_of(layout)


def _pieces(access: dict[str, Any], unit: int, element: int) -> Iterator[dict[str, Any]]:
    """An access as those of so many bytes each."""
    width = access["bytes"] if access["op"] in ("load", "store") else unit
    for first in range(0, max(width, unit), unit):
        index = [f"{access['index'][0]} + {first // element}"] if first else access["index"]
        name = f"{access['name']} +{first}" if first else access["name"]
        yield access | ({"name": name, "index": index, "bytes": unit} if width > unit else {})


def _transpositions(
    sites: Sequence[Site], element: int, extents: tuple[int, ...], array: Array
) -> Iterator[Iterable[Move]]:
    """Those under which threads reach consecutive elements where they go down a column."""
    steps: Counter[int] = Counter()
    sites = [part for site in sites for part in _elements(site, element)]
    for group in _together(sites, element):
        steps.update(np.diff(sorted(offsets[lanes][0] for _, offsets, lanes in group)).tolist())
    rows = [extents[-1] * element] if extents else [row for row, _ in steps.most_common(_MOST_COLUMNS)]
    for row in rows:
        if steps[row]:
            yield transpositions(row, element, math.prod(extents[-2:]) * element if extents else array.size)


def _elements(site: Site, element: int) -> Iterator[Site]:
    """An access of a vector as those of its elements: where the source has these, compilers joined them."""
    operation, offsets, lanes = site
    whole = operation.kind not in ("load", "store") or operation.width_bytes % element
    whole = whole or operation.width_bytes <= element
    for first in range(0, 1 if whole else operation.width_bytes, element):
        yield operation if whole else replace(operation, width_bytes=element), offsets + first, lanes


def _together(sites: Iterable[Site], element: int) -> list[list[Site]]:
    """Accesses of single elements that the same lanes execute as often; any other alone."""
    found: dict[tuple[object, ...], list[Site]] = {}
    for k, (operation, offsets, lanes) in enumerate(sites):
        narrow = operation.kind in ("load", "store") and operation.width_bytes == element and lanes.any()
        key = (operation.kind, lanes.tobytes()) if narrow else (k,)
        found.setdefault(key, []).append((operation, offsets, lanes))
    return list(found.values())


def _joined(sites: Sequence[Site], element: int) -> Iterator[Site]:
    """The same, in vectors where compilers may join what is consecutive and aligned."""
    for group in _together(sites, element):
        rest = sorted(group, key=lambda site: int(site[1][site[2]][0])) if len(group) > 1 else group
        while rest:
            operation, first, lanes = rest[0]
            counts = [n for n in (16 // element, 8 // element, 4 // element) if 1 < n <= len(rest)]
            count = next((n for n in counts if _is_vector(rest[:n], element)), 1)
            if count > 1:
                operation = replace(operation, width_bytes=count * element)
            yield operation, first, lanes
            rest = rest[count:]


def _is_vector(parts: Sequence[Site], element: int) -> bool:
    _, first, lanes = parts[0]
    aligned = not (first[lanes] % (len(parts) * element)).any()
    return aligned and all(
        np.array_equal(part[lanes], first[lanes] + k * element) for k, (_, part, _) in enumerate(parts)
    )


def _goes(form: type[Walk], move: Move, extents: tuple[int, ...]) -> bool:
    """Whether a change can be written in a form."""
    if move.rows or form is Transposed:
        return bool(move.rows) and form is Transposed
    if form is Pitched:
        return bool(move.extra) and not move.inside and not move.terms
    return not extents or move.inside or bool(move.terms)


def _fits(move: Move, element: int, array: Array) -> bool:
    """Whether it moves whole elements, and takes little more memory."""
    whole = move.unit % element == 0 and move.extra % element == 0 and move.row % element == 0
    return whole and move.size(array.size) <= _most_bytes(array)


def _most_bytes(array: Array) -> int:
    """A quarter more memory, or a row of banks."""
    return min(array.size * 5 // 4 + _BANKS, _MOST_SHARED)


def _rows(sites: Sequence[Site], element: int, extents: tuple[int, ...], array: Array) -> list[int]:
    """Bytes of the rows to try: those declared, else whole rows of banks and steps between lanes."""
    if extents:
        return [extents[-1] * element]
    steps = lane_steps((address, lanes) for _, address, lanes in sites)
    likely = [s for s, _ in steps.most_common() if 64 <= s < array.size and s % element == 0]
    return list(dict.fromkeys([128, 256, 512, 1024, *likely[:4]]))


def _sites(evaluation: Evaluation, array: Array) -> Iterator[Site]:
    """Warp instructions of the first block that touch an array: offsets and lanes, shape (rows, 32)."""
    for k, action in touching(evaluation, array).items():
        traces = evaluation.traces.get(k, [])
        if not traces or action.operation is None:
            continue
        address = np.concatenate([np.broadcast_to(t.address, t.lanes.shape) for t in traces])[:_MOST_ROWS]
        lanes = np.concatenate([t.lanes for t in traces])[:_MOST_ROWS]
        yield action.operation, np.where(lanes, address - array.start, 0), lanes


def _merged(sites: Sequence[Site]) -> Iterator[Site]:
    """The instructions of one operation as one."""
    for operation in dict.fromkeys(operation for operation, _, _ in sites):
        alike = [(offsets, lanes) for of, offsets, lanes in sites if of == operation]
        offsets, lanes = (np.concatenate(parts) for parts in zip(*alike, strict=True))
        yield operation, offsets, lanes


def _ideal(sites: Sequence[Site], gpu: Device) -> int:
    return sum(int(count_wavefronts(o, lanes, op, gpu.rule(op)).ideal.sum()) for op, o, lanes in sites)


def _wavefronts(sites: Sequence[Site], move: Move | None, size: int, gpu: Device) -> int:
    """Of a layout of so many bytes; lanes that reach other arrays stay where they are."""
    checkpoint()
    if move is not None:
        parts = [one for site in sites for one in _elements(site, move.unit)]
        sites = [
            (operation, np.where((at >= 0) & (at < size), move.apply(at), at), lanes)
            for operation, at, lanes in parts
        ]
        sites = list(_joined(sites, move.unit)) if move.rows else sites
    total = 0
    for operation, offsets, lanes in sites:
        moved = np.where(addressing_lanes(lanes, operation), offsets, 0)
        moved -= moved.min(initial=0) // _BANKS * _BANKS
        total += int(count_wavefronts(moved, lanes, operation, gpu.rule(operation)).wavefronts.sum())
    return total
