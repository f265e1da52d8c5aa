"""Shared-memory hardware as data: banks, and which lanes an instruction serves together.

Every rule is a row of `hardware/devices.json`, with its source and how sure it is. Adding a GPU is
adding an entry there, or in a file of the user's in the same form (`load_devices`); nothing in the
code names one.

How a row is read. An instruction's lanes are cut into **phases**. A phase costs as many
wavefronts as the busiest bank has distinct words (`count: words`) or lane-word pairs
(`count: lanes`, for instructions that serialise equal addresses).

`merge: pairs` (8- and 16-byte loads): when over the whole warp every active lane l has lane l^1
inactive or at the same address, or every active lane has so lane l^2, neighbouring phases are
served in pairs.
"""

import itertools
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from layoutopt.errors import DisputedRuleWarning, ProblemFileError, under
from layoutopt.ground import json_data
from layoutopt.hardware.operations import KINDS, Operation

DEFAULT_TARGET: Final = "sm_90"
MAX_FILE_BYTES: Final = 1 << 20

# Counters of Nsight Compute, without `.sum`.
BANK_CONFLICTS: Final = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
WAVEFRONTS: Final = "l1tex__data_pipe_lsu_wavefronts_mem_shared"

Width = Literal[1, 2, 4, 8, 12, 16]
Lane = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Banks = Annotated[int, Meta(ge=1, le=1024)]
Cycles = Annotated[float, Meta(ge=0, le=1e6)]
DeviceName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*(?!\n)$")]
# From sure to doubtful; only the last one warns.
Confidence = Literal[
    "measured",
    "raw data re-derived",
    "measured by others",
    "vendor document",
    "vendor document, ambiguous",
    "vendor pull request",
    "vendor forum",
    "source code",
    "inferred",
    "disputed",
]


class PhaseRule(Struct, frozen=True):
    """How one instruction is served."""

    # Lanes served together, one tuple a phase, all of one length, every lane in exactly one
    phases: tuple[tuple[int, ...], ...]
    banks: int  # number of banks this instruction sees, a power of two
    bank_bytes: int  # bytes of one bank word
    serialises_equal: bool = False  # equal addresses do not merge (`count: lanes`)
    merges_pairs: bool = False  # the whole-warp merge rule of the module's text
    split_words: bool = False  # each bank word of a wide access is a request of its own
    # Words of one aligned group of this many, more than the banks, never conflict (1: every word for itself);
    # for accesses of at most one word
    row_words: int = 1
    extra_wavefronts: int = 0  # passes that every phase takes beyond its busiest bank
    confidence: str = ""  # how sure the rule is, one of `Confidence`
    source: str = ""  # where it comes from
    alternative: str = ""  # what other sources say, where they disagree; else empty
    note: str = ""  # what the rule leaves out; empty if nothing known


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """What one multiprocessor (NVIDIA: SM; AMD: compute unit) holds at once."""

    # Names of the device that these limits are for; several chips can share its rules
    targets: Annotated[tuple[DeviceName, ...], Meta(min_length=1)]
    shared_bytes: Positive  # shared memory of the multiprocessor, at its largest setting
    shared_bytes_per_block: Positive  # the most that one block can ask for
    allocation_bytes: Positive  # a block gets a multiple of this
    threads: Positive  # resident threads
    blocks: Positive  # resident blocks
    source: Annotated[str, Meta(min_length=1)]  # where the numbers come from
    reserved_bytes_per_block: Annotated[int, Meta(ge=0)] = 0  # what every block takes beyond what it asks for
    # Resident blocks of one warp each, where that is another number
    single_warp_blocks: Positive | None = None
    registers: Positive | None = None  # of 32 bits, for all resident threads; None where not known
    # A warp gets a multiple of this, out of the registers of one of four partitions
    register_unit: Positive = 256


class Timing(Struct, frozen=True, forbid_unknown_fields=True):
    """What one pass of a block through its accesses takes, in cycles: see `layoutopt.engine.estimate`."""

    block: Cycles  # of every pass
    access: Cycles  # of every access, with the barrier after it
    copy: Cycles  # of an access that copies from global memory, beyond that
    # Of each aligned run of 128 bytes, beyond the first, that one phase of a 16-byte copy past the registers
    # touches
    line: Cycles
    line_together: Cycles  # the same, of a multiprocessor whose blocks all copy
    line_wavefronts: Cycles  # the same, of the memory alone, where other blocks work meanwhile
    access_together: Cycles  # of every access, where other blocks work meanwhile
    # Bytes that a multiprocessor takes from global memory in a cycle, at most
    copied_bytes: Annotated[float, Meta(gt=0)]
    wait: Cycles  # of each iteration of a load whose predicate changes from iteration to iteration
    branch: Cycles  # of each iteration under such a predicate whose index code is long
    warp_wavefront: Cycles  # from one wavefront of a warp to its next
    warp_instruction: Cycles  # from one instruction of a warp to its next
    instruction: Cycles  # of each instruction of the index code that a warp issues
    error: Cycles  # the median relative error over the programs that were measured
    source: Annotated[str, Meta(min_length=1)]  # where the numbers come from


class Device(Struct, frozen=True):
    """A GPU as shared memory sees it."""

    name: str  # the target's name
    title: str  # what people call it
    lanes: int  # lanes of a warp (AMD: wave), a power of two
    banks: int  # number of banks (an instruction may see another number: see its rule)
    bank_bytes: int  # bytes of one bank word
    rules: dict[tuple[str, int], PhaseRule]  # `(operation kind, width in bytes)` to rule
    aliases: tuple[str, ...] = ()  # other names
    notes: tuple[str, ...] = ()  # what is worth knowing and no rule says
    limits: tuple[Limits, ...] = ()  # what its multiprocessors hold, chip by chip; empty where not known
    # The profiler's counter of cycles lost to conflicts; None where Nsight Compute's counters, as `counters`
    # predicts them, hold
    conflict_counter: str | None = None
    timing: Timing | None = None  # cycles of a pass; None where nothing was measured
    language: str = "cuda"  # that of its kernels, one of `layoutopt.codegen.registry`

    @property
    def names(self) -> list[str]:
        """What it may be called, in lower case."""
        return [name.lower() for name in (self.name, *self.aliases)]

    def limits_of(self, target: str) -> Limits | None:
        """The limits of the chip that `target`, a name of this device, stands for; None if unknown."""
        wanted = target.lower()
        return next((m for m in self.limits if wanted in map(str.lower, m.targets)), None)

    def has(self, kind: str) -> bool:
        """Whether a rule is published for accesses of this kind, of any width."""
        return any(known == kind for known, _ in self.rules)

    def rule(self, operation: Operation, field: str = "") -> PhaseRule:
        """The rule for `operation`, which `field` of a file names.

        Warns:
            DisputedRuleWarning: public sources contradict each other about it.

        Raises:
            ProblemFileError: no rule is published for it on this device.
        """
        rule = self.rules.get((operation.kind, operation.width_bytes))
        if rule is None and not self.has(operation.kind):
            able = [known.name for known in devices() if known.has(operation.kind)]
            if able:
                verb = "has" if len(able) == 1 else "have"
                raise ProblemFileError(
                    field, f"{self.name} has no {operation.kind}; {', '.join(able)} {verb}"
                )
        if rule is None:
            known = ", ".join(f"{kind} {width}" for kind, width in sorted(self.rules))
            raise ProblemFileError(
                field,
                f"no published rule for {operation.kind} of {operation.width_bytes} bytes on {self.name}; "
                f"known: {known}",
            )
        if rule.confidence == "disputed":
            warnings.warn(
                f"the rule for {operation.kind} of {operation.width_bytes} bytes on {self.name} is disputed "
                f"({rule.source}); other sources: {rule.alternative or 'not given'}",
                DisputedRuleWarning,
                stacklevel=1,  # one place for all callers, so that Python shows each text once
            )
        return rule


def counters(gpu: Device, operation: Operation, wavefronts: int, bank_conflicts: int) -> dict[str, int]:
    """Predicted profiler counters; empty where the profiler does not count the operation.

    Those of Nsight Compute (their `.sum`), or the one that the GPU's data names.

    A launch adds a few wavefronts of its own to the total, which `..._op_misc` holds; they are not
    in the prediction.
    """
    if operation.does.counters is None:
        return {}
    if gpu.conflict_counter is not None:
        return {gpu.conflict_counter: bank_conflicts}
    found = {BANK_CONFLICTS: bank_conflicts, WAVEFRONTS: wavefronts}
    wavefront_part, conflict_part = operation.does.counters
    for part in ("op_ld", "op_st", "op_atom"):
        found[f"{WAVEFRONTS}_{part}"] = wavefronts if part == wavefront_part else 0
    for part in ("op_ld", "op_st", "op_atom", "op_ldgsts"):
        found[f"{BANK_CONFLICTS}_{part}"] = bank_conflicts if part == conflict_part else 0
    return found


class InstructionEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """How a file describes the instructions that are served alike."""

    ops: Annotated[tuple[str, ...], Meta(min_length=1)]
    bytes: Annotated[tuple[Width, ...], Meta(min_length=1)]
    phase: (
        Positive | Annotated[tuple[Annotated[tuple[Lane, ...], Meta(min_length=1)], ...], Meta(min_length=1)]
    )
    confidence: Confidence
    source: Annotated[str, Meta(min_length=1)]
    banks: Banks | None = None
    count: Literal["words", "lanes"] = "words"
    merge: Literal["none", "pairs"] = "none"
    split_words: bool = False
    row_words: Annotated[int, Meta(ge=1, le=1 << 16)] = 1
    extra_wavefronts: Annotated[int, Meta(ge=0, le=64)] = 0
    alternative: str = ""
    note: str = ""


class ConflictCounter(Struct, frozen=True, forbid_unknown_fields=True):
    """A profiler's counter of the cycles that conflicts cost."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    confidence: Confidence
    source: Annotated[str, Meta(min_length=1)]


class DeviceEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """How a file describes one GPU."""

    name: DeviceName
    title: str
    lanes: Annotated[int, Meta(ge=8, le=64)]
    banks: Banks
    bank_bytes: Annotated[int, Meta(ge=4, le=16)]
    instructions: Annotated[tuple[str | InstructionEntry, ...], Meta(min_length=1)]
    aliases: tuple[DeviceName, ...] = ()
    notes: tuple[str, ...] = ()
    conflict_counter: ConflictCounter | None = None
    limits: tuple[Limits, ...] = ()
    timing: Timing | None = None
    language: Literal["cuda", "hip"] = "cuda"


class DeviceFile(Struct, frozen=True, forbid_unknown_fields=True, rename={"schema_": "schema"}):
    """A device file: `instructions` of a device name its own sets, or the package's."""

    devices: Annotated[tuple[DeviceEntry, ...], Meta(min_length=1)]
    instruction_sets: dict[str, tuple[InstructionEntry, ...]] = {}
    schema_: Literal["layoutopt.devices/1"] = "layoutopt.devices/1"
    about: str = ""


def device(name: str, more: Sequence[Device] = ()) -> Device:
    """The device called `name` (or one of its aliases), upper or lower case.

    Args:
        name: what to look for.
        more: devices beside the package's; they come first where names are equal.

    Raises:
        ProblemFileError: no such device.
    """
    wanted = name.lower()
    for known in (*more, *devices()):
        if wanted in known.names:
            return known
    names = ", ".join(d.name for d in (*more, *devices()))
    raise ProblemFileError("target", f"unknown target {name!r}; known: {names} (and their aliases)")


@cache
def devices() -> tuple[Device, ...]:
    """Every device in the package, oldest first within each vendor."""
    package = _package_file()
    return _build(package, package.instruction_sets)


def load_devices(path: str | Path) -> tuple[Device, ...]:
    """The devices of a file in the form of the package's `hardware/devices.json`.

    Raises:
        ProblemFileError: the file cannot be read or is wrong; `field` says where.
    """
    file = json_data.convert(json_data.parse(json_data.read(path, MAX_FILE_BYTES)), DeviceFile)
    return _build(file, {**_package_file().instruction_sets, **file.instruction_sets})


@cache
def _package_file() -> DeviceFile:
    return json_data.packaged("hardware", "devices.json", DeviceFile)


def _build(file: DeviceFile, sets: dict[str, tuple[InstructionEntry, ...]]) -> tuple[Device, ...]:
    seen: dict[str, int] = {}
    built = []
    for i, entry in enumerate(file.devices):
        for name in (entry.name, *entry.aliases):
            if seen.setdefault(name.lower(), i) != i:
                raise ProblemFileError(
                    f"devices[{i}]", f"{name!r} already names devices[{seen[name.lower()]}] of this file"
                )
        with under(f"devices[{i}]"):
            built.append(_device(entry, sets))
    return tuple(built)


def _device(entry: DeviceEntry, sets: dict[str, tuple[InstructionEntry, ...]]) -> Device:
    for what in ("lanes", "banks", "bank_bytes"):
        _check_power_of_two(getattr(entry, what), what)
    for i, limits in enumerate(entry.limits):
        for name in limits.targets:
            if name not in (entry.name, *entry.aliases):
                raise ProblemFileError(f"limits[{i}].targets", f"{name!r} is no name of {entry.name}")
    rules: dict[tuple[str, int], PhaseRule] = {}
    for i, item in enumerate(entry.instructions):
        place = f"instructions[{i}]"
        instructions: tuple[tuple[str, InstructionEntry], ...]
        if isinstance(item, InstructionEntry):
            instructions = ((place, item),)
        elif item in sets:
            instructions = tuple((f"{place}, {item}[{j}]", listed) for j, listed in enumerate(sets[item]))
        else:
            raise ProblemFileError(place, f"unknown instruction set {item!r}; known: {', '.join(sets)}")
        for where, instruction in instructions:
            with under(where):
                rule = _rule(instruction, entry)
            rules.update(dict.fromkeys(itertools.product(instruction.ops, instruction.bytes), rule))
    counter = entry.conflict_counter.name if entry.conflict_counter is not None else None
    return Device(**_common(entry, Device), rules=rules, conflict_counter=counter)


def _rule(instruction: InstructionEntry, entry: DeviceEntry) -> PhaseRule:
    for k, kind in enumerate(instruction.ops):
        if kind not in KINDS:
            raise ProblemFileError(f"ops[{k}]", f"expected one of {', '.join(KINDS)}, given {kind!r}")
    phase, lanes, widest = instruction.phase, entry.lanes, max(instruction.bytes)
    if isinstance(phase, int):
        if lanes % phase:
            raise ProblemFileError("phase", f"must divide the {lanes} lanes of a warp, given {phase}")
        phases = tuple(tuple(range(start, start + phase)) for start in range(0, lanes, phase))
    else:
        phases = phase
        if sorted(itertools.chain(*phases)) != list(range(lanes)) or len(set(map(len, phases))) > 1:
            wrong = f"must hold each of the lanes 0..{lanes - 1} once, in phases of one length"
            raise ProblemFileError("phase", wrong)
    if instruction.merge == "pairs" and len(phases) % 2:
        raise ProblemFileError("merge", f"pairs need an even number of phases, not {len(phases)}")
    banks = instruction.banks or entry.banks
    _check_power_of_two(banks, "banks")
    _check_power_of_two(instruction.row_words, "row_words")
    if instruction.row_words > 1 and widest > entry.bank_bytes:
        groups = f"groups the words of accesses of at most one word, {entry.bank_bytes} bytes"
        raise ProblemFileError("row_words", f"{groups}; given with {widest} bytes")
    return PhaseRule(
        **_common(instruction, PhaseRule)
        | {
            "phases": phases,
            "banks": banks,
            "bank_bytes": entry.bank_bytes,
            "serialises_equal": instruction.count == "lanes",
            "merges_pairs": instruction.merge == "pairs",
            # The words of a group of no more than the banks lie in different banks anyway.
            "row_words": instruction.row_words if instruction.row_words > banks else 1,
        }
    )


def _common(entry: Struct, kind: type[Struct]) -> dict[str, Any]:
    """What a file's entry says in the fields of a kind."""
    own = set(kind.__struct_fields__) - {"conflict_counter"}
    return {name: getattr(entry, name) for name in entry.__struct_fields__ if name in own}


def _check_power_of_two(value: int, field: str) -> None:
    if value & (value - 1):
        raise ProblemFileError(field, f"must be a power of two, given {value}")
