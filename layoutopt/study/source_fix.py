"""A kernel with better layouts written in: found from its machine code, written, compiled and compared.

What is changed is a CUDA source, or PTX. A change stays only where the new machine code takes fewer
wavefronts than the old one, each thread reaches the same bytes between the same barriers, moved, and every
block writes the same bytes to global memory. Blocks that do the same with shared memory are compared once.
Where there is a GPU, the launch must write the same bytes there, and not take longer.
"""

import difflib
import io
import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget, OutOfTime, spending
from layoutopt.hardware.devices import Device
from layoutopt.hardware.driver import Driver, Race
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.program import Array, Program
from layoutopt.kernels.question.arrays import moved_by_itself, used_arrays
from layoutopt.kernels.question.summary import summary
from layoutopt.kernels.read.declarations import base_name
from layoutopt.kernels.read.files import Listed
from layoutopt.source.moves import Move
from layoutopt.study.moved import MovedArray, costs, first_astray, touching, why_not_better
from layoutopt.study.patch import PtxCode
from layoutopt.study.source_plans import DYNAMIC, PITCH, Plan, SourceCode, arrays_of, carved
from layoutopt.study.version import (
    FIRST,
    Block,
    Version,
    blocks_of,
    not_known,
    output_difference,
    race_on_gpu,
)

# What is changed.
Code = SourceCode | PtxCode
Minimise = Literal["time", "excess", "bytes"]
# Dynamic memory that a launch may ask for as it is.
_FREELY_ASKED: Final = 48 << 10
# The most time on a GPU that a change may take, in parts of the time before.
_MOST_TIME: Final = 1.02
_MOST_REASONS: Final = 2
_MOST_INSTANCES: Final = 4
# To follow the values of a block takes more steps than to count its addresses, at most so many times.
_FOLLOWED_TIMES: Final = 4
_SEARCH_ENDED: Final = "the time limit ended the search for a layout of it"


class Request(Struct, frozen=True):
    """What to fix, and how it is launched."""

    # `launch, gpu`: the launch, and whose banks count
    launch: Launch
    gpu: Device
    array: str | None = None  # the one to change; None for all that have conflicts
    minimise: Minimise = "time"  # of the changes that are right, which is taken
    most_steps: int = 1_000_000  # of an evaluation
    driver: Driver | None = None  # of the GPU that times what is changed; None to estimate

    def evaluated(self, program: Program, launch: Launch) -> Evaluation:
        """What a launch of a program does."""
        return evaluate(program, launch, self.gpu, most_steps=self.most_steps, tells_apart=True)


class FixedArray(Struct, frozen=True):
    """One array: its layout in words where it was changed, and the reason why not, or what to know.

    Where its rows lie otherwise, `open_column` is the first where arguments or data may decide a column:
    beyond its row, which C++ leaves undefined, another element is reached than before.
    """

    name: str
    offset: str | None
    reason: str
    bytes_before: int
    bytes_after: int
    open_column: str | None = None


class SourceFix(Struct, frozen=True):
    """What came of it."""

    files: dict[str, bytes]  # the changed ones, by path
    arrays: tuple[FixedArray, ...]  # those that have conflicts, were changed, or were asked for
    # `before, after`: the source as it is and as it would be
    before: Version
    after: Version
    unknown_bytes: int  # of global memory that could not be compared
    blocks: tuple[Block, ...]  # those that were compared
    race: Race | None = None  # of both, on a GPU
    out_of_time: bool = False  # the limit ended the search; what is offered is the best until then

    @property
    def compared_bytes(self) -> int:
        """Of those that the blocks change, each alone."""
        return self.changed_bytes - self.unknown_bytes

    @property
    def changed_bytes(self) -> int:
        """By the blocks that were compared, each alone."""
        return sum(self.before.block(block).changed_bytes for block in self.blocks)

    @property
    def chosen_for(self) -> dict[str, int]:
        """Whole numbers that the launch gives the kernel, by parameter: of others nothing was compared."""
        launch, parameters = self.before.evaluation.launch, self.before.program.parameters or ()
        names = {str(k): parameter.name or str(k) for k, parameter in enumerate(parameters)}
        given = {names.get(key, key): value for key, value in launch.arguments.items()}
        return {name: value for name, value in given.items() if type(value) is int} if self.files else {}

    @property
    def totals(self) -> tuple[dict[str, int], dict[str, int]]:
        """What the profiler prints of the launch before and after."""
        before, after = (summary(one.evaluation).totals for one in (self.before, self.after))
        return before, after

    @property
    def diff(self) -> str:
        """Of the files, unified; empty where nothing changes. Bytes that are no UTF-8 are lone surrogates."""
        parts = ((os.path.relpath(name, self.root), name, data) for name, data in self.files.items())
        return "".join(_diff(shown, self.before.files[name], data) for shown, name, data in parts)

    @property
    def root(self) -> str:
        """The folder from which the diff names files: this one, or / where one lies elsewhere."""
        return os.sep if any(os.path.relpath(name).startswith("..") for name in self.files) else os.curdir


class _Candidate(NamedTuple):
    """An array to change."""

    key: str  # its name in `arrays_of`
    part: Array | None  # the array, where it is carved out of dynamic memory
    conflicts: int  # `_conflicts`; where there are some, it is in the report also if it stays as it is

    @property
    def name(self) -> str:
        """As users name it."""
        return self.part.name if self.part is not None else self.key


def fix(code: Code, program: Program, request: Request, search: Budget | None = None) -> SourceFix:
    """Change the layouts of a kernel's arrays in its source, or its PTX.

    Args:
        code: what is changed.
        program: the kernel, compiled from it.
        request: how it is launched, and what is wanted.
        search: what is not compared by its end is not offered.

    Raises:
        ProblemFileError: the launch cannot be evaluated, or there is no such array.
        OutOfTime: the budget in force ends before the code as it is has been evaluated.
    """
    evaluation = request.evaluated(program, request.launch)
    most_steps = _FOLLOWED_TIMES * request.most_steps
    first = now = Version(code.files(), evaluation, code.compiled(None), most_steps)
    arrays = []
    search = search or Budget()
    for chosen in _arrays_to_change(code, first, request):
        # Earlier changes may have moved a whole array; before a part, they only moved what lies behind it.
        array = chosen.part or arrays_of(now.evaluation)[chosen.key]
        fixed, now = _ArrayFix(code, now, chosen.key, array, request).best(search)
        if fixed.offset is not None or chosen.conflicts > 0 or request.array is not None:
            arrays.append(fixed)
    tallies = first.evaluation.tallies
    worst = max(tallies, key=lambda k: tallies[k].wavefronts - tallies[k].ideal, default=None)
    if not arrays and worst is not None and tallies[worst].wavefronts > tallies[worst].ideal:
        place = first.program.steps[worst].named
        why = f"{place} has conflicts in shared memory that no declaration names"
        arrays.append(FixedArray("shared memory", None, why, 0, 0))
    changed = {name: data for name, data in now.files.items() if data != first.files[name]}
    race = race_on_gpu(first, now, request.driver) if changed and request.driver is not None else None
    blocks = blocks_of(first, now) if changed else (FIRST,)
    unknown_bytes = sum(output_difference(first, now, block)[1] for block in blocks)
    return SourceFix(changed, tuple(arrays), first, now, unknown_bytes, blocks, race, search.stopped)


# Arrays ---------------------------------------------------------------------------------------------


def _conflicts(evaluation: Evaluation, array: Array) -> int:
    """Wavefronts above ideal of the instructions that touch an array."""
    tallies = (evaluation.tallies[k] for k in touching(evaluation, array))
    return sum(tally.wavefronts - tally.ideal for tally in tallies)


def _arrays_to_change(code: Code, version: Version, request: Request) -> list[_Candidate]:
    """The array asked for; else those with conflicts, most first, and in a CUDA source those without, too.

    There, a transposition of an array without conflicts may join its loads. In PTX, accesses are told apart
    where they run, so that arrays carved out of dynamic memory move one by one: the last first, as those
    behind one that grows are pushed on, and before static arrays, whose growth pushes on all of that memory.

    Raises:
        ProblemFileError: there is no array of the name asked for.
    """
    arrays, is_ptx = arrays_of(version.evaluation), isinstance(code, PtxCode)
    carved_out = carved(version.evaluation, arrays[DYNAMIC]) if is_ptx and DYNAMIC in arrays else []
    parts = [_Candidate(DYNAMIC, part, _conflicts(version.evaluation, part)) for part in reversed(carved_out)]
    keys = [key for key in arrays if key != DYNAMIC or not parts]
    wholes = [_Candidate(key, None, _conflicts(version.evaluation, arrays[key])) for key in keys]
    if request.array is None:
        ranked = [*parts, *sorted(wholes, key=lambda c: -c.conflicts)]
        return [c for c in ranked if c.conflicts > 0 or not is_ptx]
    names = [candidate.name for candidate in (*parts, *wholes)]
    # Declared names of dynamic memory mean all of it.
    key = DYNAMIC if request.array not in names and request.array in code.dynamic_names() else None
    asked = [c for c in (*parts, *wholes) if c.name == request.array or c.key == key]
    if not asked:
        known = ", ".join(names) or "none"
        raise ProblemFileError("--array", f"expected one of the arrays ({known}), got {request.array!r}")
    return asked


# Layouts --------------------------------------------------------------------------------------------


class _ArrayFix(NamedTuple):
    """One array of a kernel, for which a better layout is sought."""

    code: Code  # what is changed
    now: Version  # its version so far, with which every change is compared
    key: str  # the array's name in `arrays_of`
    array: Array  # the array, or the part of it that is moved
    request: Request  # how the kernel is launched, and what is wanted

    def best(self, search: Budget) -> tuple[FixedArray, Version]:
        """What became of the array, and the version with its best change that is right, else `now`."""
        now, array = self.now, self.array
        stays = FixedArray(array.name, None, "", array.size, array.size)
        used = next((u for u in used_arrays(now.evaluation) if u.array.start == array.start), None)
        reason = moved_by_itself(now.evaluation, used) if used is not None else None
        if (reason := reason or not_known(now, array)) is not None:
            return replace(stays, reason=reason), now
        best: tuple[Plan, Version] | None = None
        reasons: list[str] = []
        try:
            # A part of its own, as for each plan: compilers stop its clock, and that of the search goes on.
            with spending(search.at_most(None)):
                name, plans, reasons = self.code.plans(now.files, now.evaluation, array, self.request.gpu)
            stays = replace(stays, name=name)
            for improvement in self._improvements(plans, search, reasons):
                best = improvement
        except ProblemFileError as error:
            reasons.append(str(error))
        except OutOfTime:
            search.stop()
        if best is None:
            reasons = [_SEARCH_ENDED] if search.stopped and not reasons else reasons
            first_reasons = "; ".join(list(dict.fromkeys(reasons))[:_MOST_REASONS])
            return replace(stays, reason=first_reasons), now
        plan, version = best
        before, after = (arrays_of(one.evaluation)[self.key].size for one in (now, version))
        moved = replace(stays, offset=plan.move.text, reason=plan.remark, open_column=plan.open_column)
        return replace(moved, bytes_after=array.size + after - before), version

    def _improvements(
        self, plans: Iterable[Plan], search: Budget, reasons: list[str]
    ) -> Iterator[tuple[Plan, Version]]:
        """The changes that are right, each better than the one before; `reasons` gets why others are not.

        They are compiled in the order of the wavefronts expected of them, until time ends the search. Where
        the kernel's time counts first, a longer pitch ends it, too, as that adds the fewest instructions:
        behind one that is right only another is tried, and nothing behind one without conflicts.
        """

        def saves_nothing(plan: Plan, best: Plan) -> bool:
            size = self.array.size
            return plan.wavefronts >= best.wavefronts and plan.move.size(size) >= best.move.size(size)

        best: tuple[Plan, Version] | None = None
        longest, time_first = 0.0, self.request.minimise == "time"  # longest: seconds that a plan took
        for plan in plans:
            if best is not None and time_first and best[0].rank == PITCH != plan.rank:
                return
            if best is not None and not time_first and saves_nothing(plan, best[0]):
                continue
            if search.spent or not search.affords(longest):
                search.stop()
                return
            began = search.elapsed
            try:
                with spending(search.at_most(None)):
                    version = self._checked(plan, best[1] if best is not None else None)
            except ProblemFileError as error:
                reasons.append(str(error))
                continue
            finally:
                longest = max(longest, search.elapsed - began)
            if best is None or _better(version, best[1], self.request):
                best = plan, version
                yield best
            moved = arrays_of(version.evaluation)[self.key]
            if plan.rank == PITCH and time_first and not _conflicts(version.evaluation, moved):
                return

    # Checks -----------------------------------------------------------------------------------------

    def _checked(self, plan: Plan, best: Version | None) -> Version:
        """The code with the array moved, compiled and compared.

        Raises:
            ProblemFileError: it is not right, or not better than the code, or than the best change so far.
        """
        now, request, launch = self.now, self.request, self.now.evaluation.launch
        array = arrays_of(now.evaluation)[self.key]
        if self.key == DYNAMIC:
            launch = replace(launch, shared_bytes=max(launch.shared_bytes, plan.move.size(array.size)))
            is_allowed = any(b"MaxDynamicSharedMemorySize" in data for data in plan.files.values())
            before = now.evaluation.launch.shared_bytes
            if before <= _FREELY_ASKED < launch.shared_bytes and not is_allowed:
                why = "more than 48 KB must be allowed by cudaFuncSetAttribute"
                raise ProblemFileError(array.name, f"{plan.move.text}: {why}")
        try:
            listed = self.code.compiled(plan.files)
        except ProblemFileError as error:
            first = re.split(r" \| | \(-", str(error).removeprefix("nvcc fails: "))[0]
            why = f"{plan.move.text}: the source changed so does not compile: {first}"
            raise ProblemFileError(array.name, why) from None
        program = replace(_same_kernel(now.program, listed).read(), parameters=now.program.parameters)
        evaluation = request.evaluated(program, launch)
        version = Version(plan.files, evaluation, listed, now.most_steps)
        for why in self._objections(plan, version, best):
            raise ProblemFileError(array.name, f"{plan.move.text}: {why}")
        return version

    def _objections(self, plan: Plan, version: Version, best: Version | None) -> Iterator[str]:
        """Why a changed version is not right, or not better; what is seen at once comes first."""
        now, request = self.now, self.request
        if (why := why_not_better(now.evaluation, version.evaluation)) is not None:
            yield why
        if not now.evaluation.doubts:
            # A vector that a macro takes the address of may be misaligned now.
            yield from version.evaluation.doubts
        if best is not None and request.driver is None and not _better(version, best, request):
            yield "another layout is better"
        estimated = request.driver is None and request.minimise == "time"
        if estimated and version.cycles >= now.cycles:
            slower = "it takes fewer wavefronts, and is not expected to take less time"
            yield f"{slower} (--minimise excess offers it)"
        yield from self._differences(now, version, plan)
        yield from self._objections_of_others(plan, version)
        if request.driver is not None:
            version.race = race = race_on_gpu(now, version, request.driver)
            if race.differing:
                yield f"on the GPU, {race.differing:,} bytes are others"
            if race.ratio > _MOST_TIME:
                yield f"on the GPU, it takes {race.ratio:.2f} of the time"

    def _differences(self, now: Version, version: Version, plan: Plan) -> Iterator[str]:
        """What blocks of a version do otherwise than those of the version before."""
        before, after = arrays_of(now.evaluation), arrays_of(version.evaluation)
        if before.keys() != after.keys():
            yield "the arrays of the machine code are others"
            return
        if (why := version.too_many_blocks) is not None:
            yield why
        moves = {self.key: plan.move.apply}
        arrays = [MovedArray(array, after[key], moves.get(key)) for key, array in before.items()]
        for block in blocks_of(now, version):
            which = "" if block == FIRST else f" in block {','.join(map(str, block))}"
            reached = partial(now.footprint, block), partial(version.footprint, block)
            if (name := first_astray(*reached, arrays)) is not None:
                yield f"threads reach other bytes of {name}{which}"
            different_bytes, _ = output_difference(now, version, block)
            if different_bytes:
                yield f"the block writes other bytes to global memory{which}"

    def _objections_of_others(self, plan: Plan, version: Version) -> Iterator[str]:
        """Why other kernels of the file forbid a change, at the same launch.

        Of those whose machine code is another one now, none may take more wavefronts, and their threads must
        reach the same elements and write the same bytes. Other instances of the kernel's template have the
        same edits, and mostly other launches: a few count their wavefronts, if they can be launched so. Of
        dynamic memory that moves by an XOR, all must have elements of one type: how many bytes to ask for
        depends on it.
        """
        now, program = self.now, self.now.program
        changed = {kernel.name: _same_kernel(kernel, version.listed) for kernel in now.listed}
        name = base_name(program.title)
        others = [k for k in now.listed if k.name != program.name and changed[k.name].code != k.code]
        instances = [k for k in others if base_name(k.title) == name]
        unlike = [other for other in instances if _template_types(other) != _template_types(program)]
        is_pad = isinstance(plan.move, Move) and not plan.move.terms
        if self.key == DYNAMIC and unlike and not is_pad:
            why = "has elements of another type: how many bytes a launch must ask for differs between them"
            yield f"{unlike[0].title} {why}"
        compared = [k for k in others if k not in instances]
        if len(compared) > _MOST_INSTANCES:
            yield f"{len(compared)} other kernels that the change reaches would have to be compared"
        for other in (*compared, *instances[:_MOST_INSTANCES]):
            try:
                old = self._at_launch(now, other)
            except ProblemFileError as error:
                if other in compared:
                    yield f"{other.title} cannot be checked with this launch: {error}"
                continue
            new = self._at_launch(version, changed[other.name], old.program)
            if any(b > a for a, b in zip(costs(old.evaluation), costs(new.evaluation), strict=True)):
                yield f"{other.title} would take more wavefronts"
            if other not in compared:
                continue
            unknown = not_known(old, arrays_of(old.evaluation).get(self.key))
            if (reason := unknown or next(self._differences(old, new, plan), None)) is not None:
                yield f"{other.title}, launched likewise: {reason}"

    def _at_launch(self, version: Version, kernel: Listed, before: Program | None = None) -> Version:
        """Another kernel of a version at its launch, with the parameters that it had `before`.

        Raises:
            ProblemFileError: it cannot be launched so.
        """
        program = kernel.read()
        program = replace(program, parameters=before.parameters) if before is not None else program
        evaluation = self.request.evaluated(program, version.evaluation.launch)
        return Version(version.files, evaluation, version.listed, version.most_steps)


def _same_kernel(kernel: Listed | Program, listed: tuple[Listed, ...]) -> Listed:
    """A kernel where other code is compiled; in a namespace without a name, the folder decides its symbol.

    Raises:
        ProblemFileError: it has another symbol there, and its name in C++ is that of none or several.
    """
    found = [k for k in listed if k.name == kernel.name] or [k for k in listed if k.title == kernel.title]
    if len(found) != 1:
        raise ProblemFileError(kernel.title, "the changed source has no such kernel")
    return found[0]


def _better(version: Version, best: Version, request: Request) -> bool:
    """Whether a version is better by `request.minimise`; figures are asked for only until one decides."""
    pairs = ((getattr(version, name), getattr(best, name)) for name in _ORDERS[request.minimise])
    return next((bool(new < old) for new, old in pairs if new != old), False)


_ORDERS: Final[dict[Minimise, tuple[str, ...]]] = {
    "time": ("time", "wavefronts"),
    "excess": ("wavefronts", "shared_bytes", "time"),
    "bytes": ("shared_bytes", "wavefronts", "time"),
}


def _template_types(kernel: Listed | Program) -> str:
    """The kernel's name and template arguments without the numbers among them."""
    return re.sub(r"(\(\w+\))?\b\d+\b", "", kernel.title).partition("(")[0]


def _diff(name: str, before: bytes, after: bytes) -> str:
    """A unified diff that patch(1) and git apply read: lines end at \\n alone, names with spaces at a tab."""
    texts = (data.decode("utf-8", "surrogateescape") for data in (before, after))
    old, new = (io.StringIO(text, newline="\n").readlines() for text in texts)
    end = "\t\n" if " " in name else "\n"
    lines = [f"--- a/{name}{end}", f"+++ b/{name}{end}"]
    for hunk in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(3):
        # Lines old[i:k] become new[j:m]; a hunk without lines names the line before it.
        (_, i, _, j, _), (_, _, k, _, m) = hunk[0], hunk[-1]
        lines.append(f"@@ -{i + (k > i)},{k - i} +{j + (m > j)},{m - j} @@\n")
        for tag, a, b, c, d in hunk:
            lines += [f"{' ' if tag == 'equal' else '-'}{line}" for line in old[a:b]]
            lines += [f"+{line}" for line in new[c:d] if tag != "equal"]
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(ended)
