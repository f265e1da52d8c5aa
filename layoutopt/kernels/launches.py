"""What is launched: as the options of the command line say it, or a file of launches, `launches.toml`.

A file of launches is written by hand, or by `layoutopt capture` as a program runs:

    schema = "layoutopt.launches/1"

    [[launch]]
    file = "transpose.cu"        # beside the file of launches
    block = [32, 8]
    grid = [32, 32]
    arg = {2 = 1024}
    launches = 100               # how often it happens
"""

import contextlib
import gzip
import io
import os
import re
import tomllib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from layoutopt.errors import ProblemFileError
from layoutopt.ground import json_data
from layoutopt.ground.budget import deadline
from layoutopt.ground.escape import shown
from layoutopt.hardware.devices import Device, device
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.evaluate import DEFAULT_MOST_STEPS, evaluate
from layoutopt.kernels.machine.launch import (
    MAX_BUFFER_BYTES,
    Launch,
    Typed,
    buffer,
    is_fill,
    is_pointer,
    packed,
    type_size,
)
from layoutopt.kernels.program import Program
from layoutopt.kernels.read.declarations import base_name, demangled, without_types
from layoutopt.kernels.read.files import chosen, kernels

SCHEMA: Final = "layoutopt.launches/1"
READING_S: Final = 1.0  # beyond the time limit: what any kernel may take to be read and evaluated
_MAX_FILE_BYTES: Final = 256 << 20
_MOST_PARAMETER_BYTES: Final = 1 << 15  # of all parameters of a kernel
_SHAPE: Final = (1, 1, 1)


class Memory(Struct, frozen=True, forbid_unknown_fields=True):
    """An allocation of the GPU: where it begins, and the file with its bytes, also with .gz, compressed."""

    address: int
    file: str


class LaunchOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One launch: the options of the command line by name, an entry of a file of launches."""

    file: str = ""  # the kernel's
    entry: str | None = None
    # `block, grid, cluster`: extents along x, y, z; what a kernel is compiled for needs no `cluster`
    block: tuple[int, int, int] | None = None
    grid: tuple[int, int, int] = _SHAPE
    cluster: tuple[int, int, int] = _SHAPE
    shared: int = 0
    # `arg, assume, data`: by position or name; values as on the command line where they are text
    arg: dict[str, Any] = {}
    assume: dict[str, Any] = {}
    data: dict[str, str] = {}
    parameters: str | None = None  # all of them instead, as bytes in hexadecimal
    memory: tuple[Memory, ...] = ()  # what their pointers point to
    target: str | None = None
    include: tuple[str, ...] = ()
    define: tuple[str, ...] = ()
    nvcc: tuple[str, ...] = ()
    max_steps: int = DEFAULT_MOST_STEPS
    launches: int = 1  # how often it happens
    not_recorded: int = 0  # launches of the same kernel and shape, whose parameters nobody wrote down

    @property
    def compiler(self) -> tuple[str, ...]:
        """What nvcc is told."""
        found = [f"-I{os.path.realpath(folder)}" for folder in self.include]
        return (*found, *(f"-D{name}" for name in self.define), *self.nvcc)


class Missed(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known to have been launched beyond what a file of launches holds; 0 where nothing is."""

    unwritten: int = 0  # launches that could not be written: no memory, a full disk
    unfollowed: int = 0  # at least so many of graphs: of conditional bodies, of children that were exchanged
    nested: int = 0  # distinct launches of modules whose kernels can launch others

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(int.__add__, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def __str__(self) -> str:
        """In words; empty where nothing was missed."""
        said = {
            f"{self.unwritten:,} launches could not be written": self.unwritten,
            f"at least {self.unfollowed:,} of graphs are not followed": self.unfollowed,
            f"what kernels launch themselves is not seen ({self.nested:,} can)": self.nested,
        }
        return "; ".join(text for text, count in said.items() if count)


NOTHING_MISSED: Final = Missed()


class Recorded(Struct, frozen=True):
    """What files of launches hold: those, how long recording them took, and what was missed."""

    launches: tuple[LaunchOptions, ...] = ()
    spent_us: int = 0
    missed: Missed = NOTHING_MISSED


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    schema_: str = field(name="schema", default=SCHEMA)
    launch: tuple[LaunchOptions, ...] = ()
    spent_us: int = 0
    missed: Missed = NOTHING_MISSED


def files_of(path: Path) -> list[Path]:
    """The files of launches that a path is, or that a folder holds."""
    return sorted(path.glob("launches*.toml")) if path.is_dir() else [path]  # one for each process


def read_launches(path: Path) -> Recorded:
    """The launches of a file, or of all files of a folder; equal ones once.

    Raises:
        ProblemFileError: it is no such file; a place such as `launch[3].block` is named.
    """
    found: dict[str, LaunchOptions] = {}
    spent_us, missed = 0, NOTHING_MISSED
    for name in files_of(path):
        with json_data.named_by(shown(str(name))):
            told = _read(name)
            spent_us, missed = spent_us + told.spent_us, missed + told.missed
            for one in _beside(told.launch, name):
                if not one.launches + one.not_recorded:
                    continue  # the driver refused it, or nobody launched the graph
                key = repr(msgspec.structs.replace(one, launches=1, not_recorded=0))
                if (seen := found.get(key)) is not None:
                    counts = seen.launches + one.launches, seen.not_recorded + one.not_recorded
                    one = msgspec.structs.replace(seen, launches=counts[0], not_recorded=counts[1])
                found[key] = one
    return Recorded(tuple(found.values()), spent_us, missed)


def one_launch(path: Path, entry: str | None, source: Path | None = None) -> LaunchOptions:
    """The launch of such a file that an entry names: by its kernel, in C++ or as in the binary, or by number.

    With a source, it is launched instead of the file that the launch names.

    Raises:
        ProblemFileError: it is no such file; none or several are meant, or its code is not there.
    """
    found = read_launches(path).launches
    names = [demangled(one.entry) if one.entry else Path(one.file).name for one in found]
    matching = [
        k
        for k, (one, name) in enumerate(zip(found, names, strict=True))
        if entry in (None, str(k + 1), one.entry, without_types(name), base_name(name))
    ]
    if len(matching) != 1:
        told = (f"{k + 1} {without_types(names[k])} block {found[k].block} grid {found[k].grid}" for k in
                (matching or range(len(found))))  # fmt: skip
        several = f"expected one launch, by its kernel or number: {'; '.join(told) or 'there is none'}"
        raise ProblemFileError("--entry", shown(several, 400))
    one = found[matching[0]]
    if source is not None:
        return msgspec.structs.replace(one, file=str(source))
    if not one.file:
        raise ProblemFileError("file", _NO_FILE)
    return one


def _read(path: Path) -> _File:
    try:
        raw = tomllib.loads(json_data.read(path, _MAX_FILE_BYTES).decode())
    except (ValueError, RecursionError) as error:
        raise ProblemFileError("", f"no TOML: {shown(str(error), 200)}") from None
    for one in raw["launch"] if isinstance(raw.get("launch"), list) else ():
        for extents in ("block", "grid", "cluster"):
            if isinstance(one, dict) and isinstance(sizes := one.get(extents), list) and len(sizes) < 3:
                one[extents] = sizes + [1] * (3 - len(sizes))
    return json_data.convert(raw, _File)


def _beside(launches: Iterable[LaunchOptions], path: Path) -> Iterator[LaunchOptions]:
    """The launches of a file, the names in them as seen from here."""
    for k, one in enumerate(launches):
        place = f"launch[{k}]"
        if one.parameters is not None and (one.arg or one.assume or one.data):
            raise ProblemFileError(f"{place}.parameters", "all are given: expected no arg, assume or data")
        if min(one.launches, one.not_recorded) < 0:
            raise ProblemFileError(f"{place}.launches", f"expected a count, given {one.launches}")
        if any("\0" in word for word in (*one.include, *one.define, *one.nvcc)):
            raise ProblemFileError(place, "nvcc takes no option with a NUL character")
        yield msgspec.structs.replace(
            one,
            file=str(path.parent / one.file) if one.file else "",
            include=tuple(str(path.parent / folder) for folder in one.include),
            arg=_arguments(one.arg, path.parent, f"{place}.arg"),
            assume=_arguments(one.assume, path.parent, f"{place}.assume"),
            data={n: text if is_fill(text) else str(path.parent / text) for n, text in one.data.items()},
            memory=tuple(Memory(m.address, str(path.parent / m.file)) for m in one.memory),
        )


_NO_FILE: Final = "expected the kernel's file (of a recorded launch: its code was loaded before that began)"


def _arguments(given: dict[str, object], folder: Path, place: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        with json_data.named_by(f"{place}.{shown(name)}"):
            found[name] = argument(value, folder)
    return found


_WORDS: Final[dict[str, int | str]] = {"pointer": "pointer", "null": 0, "true": 1, "false": 0}


def argument(said: object, folder: Path = Path()) -> int | float | str | bytes:
    """What is said of a parameter: a number, with :i64 or another type, pointer, null, or @FILE's bytes.

    Raises:
        ProblemFileError: it is nothing of these, or the file cannot be read.
    """
    if isinstance(said, (int, float)):
        return said
    text = said if isinstance(said, str) else repr(said)
    if text in _WORDS:
        return _WORDS[text]
    for read in (lambda: int(text, 0) if len(text) < 25 else int(""), lambda: float(text)):
        with contextlib.suppress(ValueError):
            return read()
    if text.startswith("@"):
        return json_data.read(folder / text[1:], _MOST_PARAMETER_BYTES)
    with contextlib.suppress(ValueError):
        number, colon, kind = text.rpartition(":")
        if data := packed(float(number) if kind.startswith("f") else int(number, 0), colon + kind, 0):
            return Typed(data, text)
    expected = "expected a number, with :i64 or another type, pointer, null or @FILE"
    raise ProblemFileError("", f"{expected}, got {shown(text)!r}")


def launch_of(program: Program, options: LaunchOptions) -> tuple[Launch, Device]:
    """The launch that the options say, without what its recorded pointers point to, and the GPU.

    Raises:
        LayoutoptError: there can be no such launch.
    """
    if options.block is None:
        raise ProblemFileError(
            "--block", f"not given; add what the kernel is launched with{_example(program)}"
        )
    launch = Launch(
        block=options.block,
        grid=options.grid,
        arguments={**options.assume, **options.arg},
        shared_bytes=options.shared,
        buffers={name: buffer(program, name, text) for name, text in options.data.items()},
        parameters=_hexadecimal(options.parameters) if options.parameters is not None else None,
    )
    return launch, device(program.target.rstrip("af"))


def _example(program: Program) -> str:
    """Options of a launch to type, with likely values, and the kernel's parameters."""
    cells = frozenset[str]().union(*(step.cells for step in program.steps))
    shared = any(getattr(step.action, "space", None) == "shared" for step in program.steps)
    options = ["--block 32,8 --grid 32,32" if "$tid.y" in cells else "--block 256 --grid 1024"]
    options += ["--shared 4096"] if shared and program.static_bytes is not None and not program.arrays else []
    told = []
    for k, one in enumerate(program.parameters or ()):
        # PTX does not say whether a whole number has a sign.
        kind = re.sub(r"^\.[bsu](\d+)$", r"\1-bit", one.type).lstrip(".") or f"{one.size} bytes"
        told.append(" ".join(filter(None, (str(k), kind, one.name))))
        if one.size not in (1, 2, 4, 8):
            told[-1] += f" (a number in it: --arg {one.name or k}+BYTE=VALUE)"
        elif one.size < 8 or (
            type_size(one.type) is not None and not one.pointer and not is_pointer(one.type)
        ):
            fraction = one.type in ("float", "double", ".f32", ".f64")
            options.append(f"--arg {one.name or k}={'1.0' if fraction else '1024'}")
    numbered = f" (parameters: {', '.join(told)}; pointers need no value)" if told else ""
    return f", for example, with your values in the place of these: {' '.join(options)}{numbered}"


def _hexadecimal(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ProblemFileError("parameters", f"expected bytes in hexadecimal, got {shown(text)!r}") from None


def _contents(path: Path) -> bytes:
    path = path if path.exists() else path.with_name(f"{path.name}.gz")
    data = json_data.read(path, MAX_BUFFER_BYTES)
    if path.suffix != ".gz":
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            data = file.read(MAX_BUFFER_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ProblemFileError("memory", f"{shown(str(path))} is no .gz file: {error}") from None
    if len(data) > MAX_BUFFER_BYTES:
        raise ProblemFileError("memory", f"{shown(str(path))} has more than {MAX_BUFFER_BYTES:,} bytes")
    return data


def evaluated(options: LaunchOptions, seconds: float, launch: Launch | None = None) -> Evaluation:
    """A launch of the kernel that the options choose, executed: theirs, or a given one.

    Raises:
        LayoutoptError: the file cannot be read, or there can be no such launch.
        OutOfTime: it takes `READING_S` longer than so many seconds; `max_steps` bounds it in any case.
    """
    if not options.file:
        raise ProblemFileError("file", _NO_FILE)
    with deadline(seconds + READING_S):
        path = Path(options.file)
        program = chosen(kernels(path, options.target, options.compiler), options.entry).read()
        if launch is not None:
            return evaluate(program, launch, device(program.target.rstrip("af")))
        # A recorded launch says its cluster, if any.
        if program.cluster is None and (options.cluster != _SHAPE or options.parameters is not None):
            program = replace(program, cluster=options.cluster)
        launch, gpu = launch_of(program, options)
        found = evaluate(program, launch, gpu, most_steps=options.max_steps)
        if found.certain or not options.memory:
            return found
        launch = with_memory(launch, options)  # few kernels need it
        return evaluate(program, launch, gpu, most_steps=options.max_steps)


def with_memory(launch: Launch, options: LaunchOptions) -> Launch:
    """The launch with what its recorded pointers point to.

    Raises:
        ProblemFileError: a file of it cannot be read.
    """
    return replace(launch, memory={one.address: _contents(Path(one.file)) for one in options.memory})
