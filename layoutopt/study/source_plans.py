"""Changes of a source that are worth compiling: layouts ranked at the addresses of the old machine code."""

import contextlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from tree_sitter import Node

from layoutopt.engine.conflicts import Counts, addressing_lanes, count_wavefronts
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.files.file import tile_from_data
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import checkpoint, current, deadline
from layoutopt.ground.temporary import temporary_folder
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.program import Array, Program
from layoutopt.kernels.question.arrays import UsedArray, used_arrays
from layoutopt.kernels.question.problem_data import array_problem, lane_steps
from layoutopt.kernels.read.declarations import base_name, demangled
from layoutopt.kernels.read.files import DEFAULT_TARGET, Listed, kernels, macros, preprocessed
from layoutopt.kernels.read.source import File, Source, Variable, enclosing
from layoutopt.kernels.read.values import Values
from layoutopt.problems.types import constrained
from layoutopt.search.block import solve
from layoutopt.source import expanded
from layoutopt.source.edits import rendered
from layoutopt.source.host_launches import functions_that_reach
from layoutopt.source.moves import Move, flips, move_of, pads, transpositions
from layoutopt.source.ptx_edit import WIDEST, Region
from layoutopt.source.rewrite import Moved, Pitched, Transposed
from layoutopt.source.walk import Walk
from layoutopt.study.moved import touching

# The symbol of dynamic memory, which is one array.
DYNAMIC: Final = "dynamic"
# Kinds of changes (`Plan.rank`), the plainest first: longer rows, which a declaration alone may say; pads and
# XORs by a function; transpositions. And how many of each are compiled for an array.
PITCH, _PAD, _XOR, _TRANSPOSITION = range(4)
_MOST_TRIED: Final = (2, 1, 2, 1)
# Warp instructions that are looked at to rank them.
_MOST_ROWS: Final = 1 << 13
_MOST_SHARED: Final = 227 << 10
_BANKS_BYTES: Final = 128
# A pointer to it, where templates cannot declare it: the structure that CUDA's samples have for that.
_POINTS: Final = re.compile(r"SharedMemory<[^()]*>\(\)")
_SEARCH_SECONDS: Final = 2.0
_BRANCHES: Final = ("function_definition", "preproc_if", "preproc_ifdef", "preproc_elif", "preproc_else")


class Site(NamedTuple):
    """Warp instructions of one operation: each lane's byte offset in the array and whether it takes part.

    Both arrays have the shape (instructions, 32).
    """

    operation: Operation
    offsets: IntArray
    lanes: BoolArray


def arrays_of(evaluation: Evaluation) -> dict[str, Array]:
    """The arrays in shared memory, and dynamic memory as one, by name; of one name by number, too.

    Their symbols may change: the compiler writes them in full where a kernel has a lambda.
    """
    program, names = evaluation.program, Counter[str]()
    arrays: dict[str, Array] = {}
    for array in program.arrays:
        names[array.name] += 1
        arrays[f"{array.name} ({names[array.name]})" if names[array.name] > 1 else array.name] = array
    if evaluation.launch.shared_bytes and program.static_bytes is not None:
        first = (a.start for a in _used_dynamic(evaluation) if a.name in (DYNAMIC, f"{DYNAMIC}+0"))
        start = min(first, default=-(-program.static_bytes // WIDEST) * WIDEST)
        arrays[DYNAMIC] = Array(DYNAMIC, start, evaluation.launch.shared_bytes, DYNAMIC)
    return arrays


def _used_dynamic(evaluation: Evaluation) -> list[Array]:
    """The arrays in dynamic memory, as far as instructions reach them."""
    return [used.array for used in used_arrays(evaluation) if used.array.name.startswith(DYNAMIC)]


def carved(evaluation: Evaluation, whole: Array) -> list[Array]:
    """The arrays that a kernel carves out of dynamic memory (`whole`), each up to the next.

    Empty where there is one, or where some overlap.
    """
    used = _used_dynamic(evaluation)
    ends = [array.start + array.size for array in used]
    if len(used) < 2 or any(array.start < end for array, end in zip(used[1:], ends, strict=False)):
        return []
    least = [whole.start, *ends]
    starts = [max(array.start // WIDEST * WIDEST, at) for array, at in zip(used, least, strict=False)]
    sizes = np.diff([*starts, max(ends[-1], whole.start + whole.size)]).tolist()
    parts = zip(used, starts, sizes, strict=True)
    return [Array(array.name, start, size, DYNAMIC) for array, start, size in parts]


def declaration(source: Source, array: Array, program: Program) -> Variable:
    """The declaration of an array.

    Raises:
        ProblemFileError: there is none, or several may be meant.
    """
    kernel, is_dynamic = base_name(program.title), array.symbol == DYNAMIC
    if is_dynamic:
        variables = _dynamic_declarations(source)
        variables = [v for v in variables if kernel in functions_that_reach(source, v)] or variables
    else:
        variables = [v for v in _variables(source) if v.is_shared and v.name == array.name]
        owners = demangled(array.symbol)
        variables = [v for v in variables if v.function is not None and _owns(v, owners)] or variables
    in_kernel = [v for v in variables if v.function and v.file.function_name(v.function) == kernel]
    macros = [
        f"{macro.name} ({file.place(macro.node)})"
        for file in source.files
        for macro in file.macros
        if b"__shared__" in file.data[slice(*macro.value)]
    ]
    if macros and not in_kernel:  # a macro may declare it here, so that those of other kernels are not meant
        variables = [v for v in variables if v.function is None or not v.file.is_kernel(v.function)]
    variables = in_kernel if in_kernel and not is_dynamic else variables
    if len(variables) != 1:
        got = ", ".join(v.file.place(v.node) for v in variables) or "none"
        if macros and not variables:
            got += f"; what macros declare is not changed: {', '.join(macros)}"
        if any((above := enclosing(v.node, *_BRANCHES)) and above.type in _BRANCHES[1:] for v in variables):
            got += ": branches of #if are not told apart"
        what = "extern __shared__ declaration" if is_dynamic else f"declaration of {array.name}"
        raise ProblemFileError(array.name, f"expected one {what} in the source, got {got}")
    return variables[0]


def _variables(source: Source) -> list[Variable]:
    return [v for file in source.files for some in file.variables.values() for v in some]


def _dynamic_declarations(source: Source) -> list[Variable]:
    """Variables that are dynamic shared memory (`extern __shared__`), or point to it."""
    variables = _variables(source)
    shared = [v for v in variables if v.is_shared]
    extern = [v for v in shared if "extern" in v.file.text(v.node).split("__shared__")[0].split()]
    return extern + [v for v in variables if v.value is not None and _POINTS.fullmatch(v.file.text(v.value))]


def _owns(variable: Variable, owners: str) -> bool:
    """Whether a demangled symbol names the function that a variable is declared in."""
    name = variable.file.function_name(variable.function) if variable.function is not None else ""
    return re.search(rf"\b{re.escape(name)}\b", owners) is not None


def _element_and_extents(values: Values, variable: Variable, array: Array) -> tuple[int, tuple[int, ...]]:
    """Bytes of an element, and the extents of an array of several dimensions; no extents of a flat one.

    Raises:
        ProblemFileError: the source does not say one of them.
    """
    extents = [values.integer(variable.file, extent) for extent in variable.extents]
    if variable.is_shared and all(
        extents
    ):  # the program's bytes are certain, the type may be a template's parameter
        element: int | None = array.size // math.prod(e for e in extents if e)
    else:
        element = values.size(variable.file, variable.node.child_by_field_name("type"))
    place, inner = variable.file.place(variable.node), [e for e in extents[1:] if e]
    if element is None:
        raise ProblemFileError(place, f"the size of {variable.type} is not known")
    if len(inner) != len(extents[1:]):
        raise ProblemFileError(place, f"the extents of {array.name} are not known")
    if not inner:
        return element, ()
    rows, rest = divmod(array.size, element * math.prod(inner)) if element else (0, array.size)
    if rest:
        raise ProblemFileError(place, f"{array.name} has another size")
    return element, (rows, *inner)


class Plan(NamedTuple):
    """Changed code, to be compiled and compared."""

    rank: int  # the kind of change, such as `PITCH`
    move: Move | Region  # where bytes of the array go
    files: dict[str, bytes]  # the changed files, by path
    remark: str = ""  # what is left to do by hand
    open_column: str | None = None  # as of a `Walk`
    wavefronts: int = 0  # expected of the first block, where `Ranking` chose the layout


class Plans(NamedTuple):
    """Changes of an array that are worth compiling, those expected to take the fewest wavefronts first."""

    name: str  # of the array in the source
    plans: list[Plan]
    refusals: list[str]  # why a layout cannot be written, where none can


class SourceCode(Struct, frozen=True):
    """A CUDA source with its headers."""

    path: Path  # of the source
    # `target, options, include`: for nvcc; include are the folders of headers of the options
    target: str | None = None
    options: tuple[str, ...] = ()
    include: tuple[str, ...] = ()

    def files(self) -> dict[str, bytes]:
        """The source and its headers, by path."""
        return {file.path: file.data for file in Source(self.path, self.include).files}

    def dynamic_names(self) -> set[str]:
        """Of the arrays that are declared without a size."""
        return {variable.name for variable in _dynamic_declarations(Source(self.path, self.include))}

    def compiled(self, files: dict[str, bytes] | None) -> tuple[Listed, ...]:
        """The kernels of the source, or of changed files in the place of its own.

        Raises:
            ProblemFileError: nvcc refuses it.
        """
        if files is None:
            return kernels(self.path, self.target, self.options)
        with self._copied(files) as (folder, path, options):
            found = kernels(path, self.target, options)
            return tuple(one._replace(read=partial(_read, one, f"{folder}")) for one in found)

    @contextlib.contextmanager
    def _copied(self, files: dict[str, bytes]) -> Iterator[tuple[Path, Path, tuple[str, ...]]]:
        """A folder with changed files in the place of its own, the source there, and options; for compilers.

        Raises:
            ProblemFileError: a compiler refuses it.
        """
        with temporary_folder() as folder:
            for name, data in files.items():
                place = folder / name.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            own = (f"-I{folder}{os.path.realpath(one)}" for one in self.include)
            with current().standing_still():
                try:
                    yield folder, folder / os.path.realpath(self.path).lstrip("/"), (*own, *self.options)
                except ProblemFileError as error:
                    raise ProblemFileError("", str(error).replace(f"{folder}", "")) from None

    def _expanded(self, files: dict[str, bytes]) -> dict[str, bytes]:
        """Changed files as the preprocessor leaves them."""
        with self._copied(files) as (folder, path, options):
            printed = preprocessed(path, self.target or DEFAULT_TARGET, (*options, "-w", "-D__LINE__=0"))
            return expanded.texts(printed, f"{folder}", files)

    def _size(self, source: Source, known: dict[object, int | None], file: File, type_: Node) -> int | None:
        """Bytes of a type where it stands: nvcc refuses another one in its place, whose name has them."""
        function, text = enclosing(type_, "function_definition"), file.text(type_)
        key = text, file.path, function.start_point[0] if function is not None else None
        if key in known:
            return known[key]
        files = {one.path: one.data for one in source.files}
        asked = f"typename layoutopt_bytes<sizeof({text})>::type".encode()
        files[file.path] = file.data[: type_.start_byte] + asked + file.data[type_.end_byte :]
        path, known[key] = source.files[0].path, None
        files[path] = b"template <unsigned long> struct layoutopt_bytes;" + files[path]
        try:
            self.compiled(files)
        except ProblemFileError as error:
            sizes = set(re.findall(r"layoutopt_bytes<\D*(\d+)", str(error)))
            known[key] = int(sizes.pop()) if len(sizes) == 1 else None
        return known[key]

    def plans(self, files: dict[str, bytes], evaluation: Evaluation, array: Array, gpu: Device) -> Plans:
        """Changes of an array that are worth compiling.

        Raises:
            ProblemFileError: its declaration is not clear.
        """
        sizes: dict[object, int | None] = {}

        def read(texts: dict[str, bytes], known: dict[str, str]) -> Walk:
            """The array in these texts of the files, not moved yet."""
            source, program = Source(self.path, self.include, known), evaluation.program
            for k, file in enumerate(source.files):  # as the changes of other arrays left them
                if texts[file.path] != file.data:
                    source.files[k] = type(file)(file.path, texts[file.path])
            variable = declaration(source, array, program)
            owner = variable.function
            own = owner is not None and variable.file.function_name(owner) == base_name(program.title)
            title, measured = program.title if own else "", partial(self._size, source, sizes)
            values = Values(source, title, evaluation.launch.block, measured)
            element, extents = _element_and_extents(values, variable, array)
            return Walk(source, values, variable, element, extents, Move(0))

        def moved(walk: Walk, move: Move, line_end: str = "\n") -> tuple[Walk, dict[str, bytes]]:
            """The array of a text moved, and the files with that written in."""
            form = _form(move, walk.extents)
            change = form(walk.source, walk.values, walk.array, walk.element, walk.extents, move)
            edits = change.run()
            return change, {file.path: rendered(file, edits, line_end) for file in walk.source.files}

        walk = read(files, macros(self.path, self.target or DEFAULT_TARGET, self.options))
        seen = read(self._expanded(files), {})
        variable, element, extents = walk.array, walk.element, walk.extents

        def written(move: Move) -> Plan:
            change, changed = moved(walk, move)
            width = 0 if len(extents) > 1 else move.row // element
            told, got = expanded.Written(walk.values, variable.name, width), self._expanded(changed)
            known, wanted = moved(seen, move, " ")  # in the lines of the source
            for name, text in wanted.items():
                told.check(name, text, got[name])
            is_pitch = isinstance(change, Pitched) or (isinstance(change, Moved) and change.takes_rows)
            pad = PITCH if is_pitch else _PAD
            rank = _XOR if move.terms else _TRANSPOSITION if move.rows else pad
            return Plan(rank, move, changed, change.remark, known.open_column)

        ranking = Ranking(evaluation, array, gpu, element, extents)
        return ranking.plans(variable.name, written)


def _read(kernel: Listed, folder: str) -> Program:
    """A kernel compiled from a copy of its files in `folder`, whose steps name the lines of the files."""
    program, steps = kernel.read(), []
    for step in program.steps:
        place = step.place and replace(step.place, file=step.place.file.removeprefix(folder))
        steps.append(replace(step, place=place))
    return replace(program, steps=tuple(steps))


class Ranking(Struct, frozen=True, dict=True):
    """Layouts of an array, ranked by their wavefronts at the addresses of the old machine code."""

    evaluation: Evaluation  # of the launch
    array: Array  # the array
    gpu: Device  # whose banks count
    element: int  # bytes of an element
    extents: tuple[int, ...] = ()  # of an array of several dimensions; empty of a flat one

    @cached_property
    def sites(self) -> list[Site]:
        """Warp instructions of the first block that touch the array."""
        sites = []
        for k, action in touching(self.evaluation, self.array).items():
            traces = self.evaluation.traces.get(k, [])
            if not traces or action.operation is None:
                continue
            addresses = [np.broadcast_to(trace.address, trace.lanes.shape) for trace in traces]
            address = np.concatenate(addresses)[:_MOST_ROWS]
            lanes = np.concatenate([trace.lanes for trace in traces])[:_MOST_ROWS]
            offset = address - self.array.start
            lanes = lanes & (offset >= 0) & (offset < self.array.size)  # others are of another array
            some = lanes.any(axis=1)
            sites.append(Site(action.operation, np.where(lanes, offset, 0)[some], lanes[some]))
        return sites

    def plans(self, name: str, written: Callable[[Move], Plan]) -> Plans:
        """Changes with fewer wavefronts than now.

        Args:
            name: of the array in the source.
            written: writes a layout into the code; raises a `ProblemFileError` where it cannot.
        """
        size, merged = self.array.size, list(_by_operation(self.sites))
        now, ideal = self._wavefronts(merged), sum(int(self._counts(site).ideal.sum()) for site in merged)
        widths = (action.width_bytes for action in touching(self.evaluation, self.array).values())
        units = dict.fromkeys((max((self.element, *widths)), self.element))  # bytes that stay together
        found: list[tuple[tuple[int, ...], Plan]] = []
        refusals: dict[str, None] = {}
        rounds = [(self._families(unit, padded), merged) for padded in (False, True) for unit in units]
        # Transpositions are tried behind a layout without conflicts, too: they let compilers join loads, so
        # that `sites` has each instruction by itself.
        transpositions = self._transpositions()
        for families, sites in (*rounds, (transpositions, self.sites)):
            if families is not transpositions and any(plan.wavefronts <= ideal for _, plan in found):
                continue
            for family in families:
                counted = ((self._wavefronts(sites, move), move) for move in family if self._fits(move))
                best_of_family = min(
                    counted,
                    key=lambda pair: (pair[0], pair[1].size(size), pair[1].extra, pair[1].terms),
                    default=None,
                )
                if best_of_family is None or best_of_family[0] >= now:
                    continue
                wavefronts, move = best_of_family
                try:
                    plan = written(move)._replace(wavefronts=wavefronts)
                except ProblemFileError as error:
                    refusals[str(error)] = None
                    continue
                odd_rows = int(move.row & (move.row - 1) > 0)  # whose number takes a division
                found.append(((wavefronts, plan.rank, odd_rows, move.size(size)), plan))
        best = [plan for _, plan in sorted(found, key=lambda pair: pair[0])]
        of_ranks = ([p for p in best if p.rank == rank][:most] for rank, most in enumerate(_MOST_TRIED))
        chosen = sorted(itertools.chain.from_iterable(of_ranks), key=lambda plan: plan.wavefronts)
        if not found and not refusals:
            kinds = f"pads and XORs of whole elements ({self.element} bytes) within a quarter more bytes"
            other_kinds = "other kinds, as check gives, are not written"
            refusals[f"none of the {kinds} takes fewer wavefronts; {other_kinds}"] = None
        return Plans(name, chosen, list(refusals) if not found else [])

    def _families(self, unit: int, padded: bool) -> Iterator[Iterable[Move]]:
        """Layouts of one kind and row each, that keep `unit` bytes together; `padded` ones are pads and XORs.

        Of a flat array, these are the solver's answers and pads; of rows, pads and XORs, in rows and in
        lines of banks within longer rows.
        """
        kinds: list[Callable[[int, int, int], Iterator[Move]]] = [pads, flips] if self.extents else [pads]
        if padded:
            kinds = [partial(flips, padded=True)]
        elif not self.extents:
            yield from ([move] for move in self._solver_moves(unit))
        for kind in kinds:
            for row in self._row_lengths():
                yield kind(row, unit, self.array.size)
            row = self.extents[-1] * self.element if self.extents else 0
            if row > _BANKS_BYTES and row % _BANKS_BYTES == 0:
                lines = row // _BANKS_BYTES
                moves = (move for move in kind(_BANKS_BYTES, unit, row) if lines % move.period_rows == 0)
                yield [replace(move, inside=True) for move in moves]

    def _row_lengths(self) -> list[int]:
        """Bytes of the rows to try: those declared, else whole rows of banks and steps between lanes."""
        if self.extents:
            return [self.extents[-1] * self.element]
        steps = lane_steps((site.offsets, site.lanes) for site in self.sites).most_common()
        likely = [step for step, _ in steps if 64 <= step < self.array.size and step % self.element == 0]
        return list(dict.fromkeys([128, 256, 512, 1024, *likely[:4]]))

    def _solver_moves(self, unit: int) -> Iterator[Move]:
        """The pad and the XOR that the solver finds for the array as one line of elements.

        Accesses of more than `unit` bytes, which stay together, become several.
        """
        steps = touching(self.evaluation, self.array)
        element = min((unit, *(action.width_bytes for action in steps.values())))
        used, count = UsedArray(self.array, tuple(steps)), self.array.size // element
        try:
            data = array_problem(self.evaluation, used, (count,))
            pieces = (_pieces_of_access(access, unit, element) for access in data["accesses"])
            problem = tile_from_data(data | {"accesses": list(itertools.chain.from_iterable(pieces))})
        except ProblemFileError:
            return  # not all that is done to it is known, or too much
        for kind in ("interval", "xor"):
            asked = constrained(problem, families=("none", kind), max_bytes=self._most_bytes)
            with contextlib.suppress(LayoutError):
                with deadline(_SEARCH_SECONDS):
                    layout = solve(asked, self.gpu).layout
                if layout is not None:
                    yield move_of(layout)

    def _transpositions(self) -> Iterator[Iterable[Move]]:
        """Those with which threads that go down a column reach consecutive elements.

        A thread goes down a column where its accesses, one after the other, lie a row apart.
        """
        if not self.extents:
            return
        steps: Counter[int] = Counter()  # bytes from one access to the next of the same lanes
        sites = [part for site in self.sites for part in _by_element(site, self.element)]
        for group in _same_lanes(sites, self.element):
            steps.update(np.diff(sorted(site.offsets[site.lanes][0] for site in group)).tolist())
        row = self.extents[-1] * self.element
        if steps[row]:
            yield transpositions(row, self.element, self.extents[-2] * row)

    def _fits(self, move: Move) -> bool:
        """Whether a layout moves whole elements, and takes little more memory."""
        whole = all(size % self.element == 0 for size in (move.unit, move.extra, move.row))
        return whole and move.size(self.array.size) <= self._most_bytes

    @property
    def _most_bytes(self) -> int:
        """Bytes of a layout at most: a quarter more than the array has, and a row of banks."""
        return min(self.array.size * 5 // 4 + _BANKS_BYTES, _MOST_SHARED)

    def _wavefronts(self, sites: Sequence[Site], move: Move | None = None) -> int:
        """Wavefronts of accesses under a layout, else as they are; lanes in other arrays stay there."""
        checkpoint()
        if move is not None:
            size, moved = self.array.size, []
            for operation, at, lanes in (part for site in sites for part in _by_element(site, move.unit)):
                offsets = np.where((at >= 0) & (at < size), move.apply(at), at)
                moved.append(Site(operation, offsets, lanes))
            sites = list(_vectorised(moved, move.unit)) if move.rows else moved
        return sum(int(self._counts(site).wavefronts.sum()) for site in sites)

    def _counts(self, site: Site) -> Counts:
        """Wavefronts of each instruction, and the least possible; offsets count from a row of banks."""
        operation, offsets, lanes = site
        addresses = np.where(addressing_lanes(lanes, operation), offsets, 0)
        addresses -= addresses.min(initial=0) // _BANKS_BYTES * _BANKS_BYTES
        return count_wavefronts(addresses, lanes, operation, self.gpu.rule(operation))


def _pieces_of_access(access: dict[str, Any], unit: int, element: int) -> Iterator[dict[str, Any]]:
    """An access of a flat array of elements, as data, as accesses of `unit` bytes each."""
    width = access["bytes"] if access["op"] in ("load", "store") else unit
    for first in range(0, max(width, unit), unit):
        index = [f"{access['index'][0]} + {first // element}"] if first else access["index"]
        name = f"{access['name']} +{first}" if first else access["name"]
        yield access | ({"name": name, "index": index, "bytes": unit} if width > unit else {})


def _by_element(site: Site, element: int) -> Iterator[Site]:
    """An access to vectors as accesses to their elements: the source may have these, joined by the compiler.

    Any other access stays as it is.
    """
    operation, offsets, lanes = site
    width = operation.width_bytes
    if operation.kind not in ("load", "store") or width % element or width <= element:
        yield site
        return
    for first in range(0, width, element):
        yield Site(replace(operation, width_bytes=element), offsets + first, lanes)


def _same_lanes(sites: Iterable[Site], element: int) -> list[list[Site]]:
    """Groups of loads, or of stores, of single elements by the same lanes; any other access alone."""
    groups: dict[tuple[object, ...], list[Site]] = {}
    for k, site in enumerate(sites):
        operation, lanes = site.operation, site.lanes
        narrow = operation.kind in ("load", "store") and operation.width_bytes == element and lanes.any()
        key = (operation.kind, lanes.tobytes()) if narrow else (k,)
        groups.setdefault(key, []).append(site)
    return list(groups.values())


def _vectorised(sites: Sequence[Site], element: int) -> Iterator[Site]:
    """The accesses, as vectors where consecutive, aligned elements let compilers join some of a group."""
    for group in _same_lanes(sites, element):
        rest = sorted(group, key=lambda s: int(s.offsets[s.lanes][0])) if len(group) > 1 else group
        while rest:
            counts = [n for n in (16 // element, 8 // element, 4 // element) if 1 < n <= len(rest)]
            count = next((n for n in counts if _is_vector(rest[:n], element)), 1)
            first, rest = rest[0], rest[count:]
            if count > 1:
                first = first._replace(operation=replace(first.operation, width_bytes=count * element))
            yield first


def _is_vector(sites: Sequence[Site], element: int) -> bool:
    """Whether every lane accesses consecutive elements, aligned as a vector of them."""
    _, offsets, lanes = sites[0]
    aligned = not (offsets[lanes] % (len(sites) * element)).any()
    return aligned and all(
        np.array_equal(site.offsets[lanes], offsets[lanes] + k * element) for k, site in enumerate(sites)
    )


def _by_operation(sites: Sequence[Site]) -> Iterator[Site]:
    """The instructions of each operation as one site."""
    for operation in dict.fromkeys(site.operation for site in sites):
        alike = [(site.offsets, site.lanes) for site in sites if site.operation == operation]
        offsets, lanes = (np.concatenate(arrays) for arrays in zip(*alike, strict=True))
        yield Site(operation, offsets, lanes)


def _form(move: Move, extents: tuple[int, ...]) -> type[Walk]:
    """What writes a layout into a source."""
    if move.rows:
        return Transposed
    return Pitched if extents and not move.inside and not move.terms else Moved
