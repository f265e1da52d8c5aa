"""One launch of a kernel: its block, grid, arguments and buffers, as the kernel finds them."""

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.errors import ProblemFileError
from layoutopt.files.array_file import opened
from layoutopt.ground.escape import shown
from layoutopt.hardware.devices import Device
from layoutopt.kernels.machine.memory import Bytes
from layoutopt.kernels.program import (
    GLOBAL_BASE,
    GLOBAL_STEP,
    LOCAL_WINDOW,
    SHARED_WINDOW,
    STACK_BYTES,
    Parameter,
    Program,
)

MAX_THREADS: Final = 1024
MAX_SHARED_BYTES: Final = 1 << 18
MAX_BUFFER_BYTES: Final = 1 << 28
# A fill has as many: what lies behind is unknown.
FILL_BYTES: Final = 1 << 24
# By their names in demangled C++, in declarations of PTX and behind a value; of others nothing is known.
_NUMBERS: Final = {
    name: np.dtype(kind)
    for kind, names in {
        "bool": ("bool",),
        "int8": ("char", "signed char", ".s8", ":i8"),
        "uint8": ("unsigned char", ".u8", ":u8"),
        "int16": ("short", ".s16", ":i16"),
        "uint16": ("unsigned short", ".u16", ":u16"),
        "int32": ("int", ".s32", ":i32"),
        "uint32": ("unsigned int", ".u32", ":u32"),
        "int64": ("long", "long long", ".s64", ":i64"),
        "uint64": ("unsigned long", "unsigned long long", ".u64", ":u64"),
        "float16": ("__half", ".f16", ":f16"),
        "float32": ("float", ".f32", ":f32"),
        "float64": ("double", ".f64", ":f64"),
    }.items()
    for name in names
}
_LARGEST_WHOLE: Final = 2.0**63


class Typed(bytes):
    """The bytes of a number whose type was said with it, and what was said."""

    def __new__(cls, data: bytes, said: str) -> "Typed":
        """These bytes, of what was said."""
        found = super().__new__(cls, data)
        found.said = said
        return found

    said: str


class Launch(Struct, frozen=True, kw_only=True):
    """What the host says when it launches.

    Attributes:
        block: threads along x, y, z.
        grid: blocks along x, y, z.
        arguments: numbers of parameters, by position or name; each is converted to the parameter's type, but
            bytes, which are put there as they are.
        shared_bytes: dynamic shared memory.
        buffers: contents of what pointer parameters point to, by position or name.
        parameters: all of them as bytes, as a program that ran gave them, instead of `arguments`.
        memory: what the pointers in them point to, by address.
    """

    block: tuple[int, int, int]
    grid: tuple[int, int, int] = (1, 1, 1)
    arguments: Mapping[str, int | float | str | bytes] = {}
    shared_bytes: int = 0
    buffers: Mapping[str, npt.NDArray[np.generic]] = {}
    parameters: bytes | None = None
    memory: Mapping[int, bytes] = {}

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // 32)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def checked(launch: Launch, gpu: Device, target: str) -> Launch:
    """The launch, if there can be such a one on the chip that `target`, a name of the GPU, stands for.

    Raises:
        ProblemFileError: a size is out of range.
    """
    for option, extents in (("--block", launch.block), ("--grid", launch.grid)):
        if len(extents) != 3:
            raise ProblemFileError(option, f"expected extents along x, y, z, got {extents}")
    if not 0 < launch.threads <= MAX_THREADS or min(launch.block) < 1:
        raise ProblemFileError("--block", f"expected 1 to {MAX_THREADS} threads, got {launch.threads}")
    if min(launch.grid) < 1 or launch.grid[0] >= 1 << 31 or max(launch.grid[1:]) > 65535:
        raise ProblemFileError("--grid", f"expected up to 2147483647,65535,65535 blocks, got {launch.grid}")
    limits = gpu.limits_of(target.rstrip("af"))
    most = MAX_SHARED_BYTES if limits is None else limits.shared_bytes_per_block
    if not 0 <= launch.shared_bytes <= most:
        given = f"got {launch.shared_bytes}: a block has no more on {target}"
        raise ProblemFileError("--shared", f"expected 0 to {most} bytes, {given}")
    return launch


def bank_layout(target: str) -> dict[str, int]:
    """Where the driver of an `sm_NN` puts what kernels read from constant bank 0 (read off compiled code)."""
    number = int("".join(c for c in target if c.isdigit()) or 90)
    if number >= 100:
        return {"block": 0x360, "grid": 0x370, "stack": 0x37C, "parameters": 0x380}
    found = {"block": 0x0, "grid": 0xC, "local window": 0x20, "stack": 0x28, "parameters": 0x210}
    return found if number >= 90 else {**found, "shared window": 0x18, "parameters": 0x160}


class Arguments(Struct, frozen=True):
    """The parameters as bytes."""

    content: bytes  # bytes from the first parameter on
    given: npt.NDArray[np.bool_]  # which of them are known
    buffers: Mapping[int, bytes]  # contents of global memory by address
    missing: tuple[int, ...]  # positions of the parameters that are not known


def arguments(program: Program, launch: Launch) -> Arguments:
    """Put the launch's arguments where the kernel's parameters lie.

    A key is a parameter's position or name, or the byte of a member of a structure (`params+8`), or of
    parameters of which nothing is said (`+16`). A pointer whose value is not given points to memory of its
    own, aligned to 256 bytes, as cudaMalloc gives it.

    Raises:
        ProblemFileError: an argument names no parameter, or does not fit it.
    """
    if launch.parameters is not None:
        known = np.ones(len(launch.parameters), bool)
        return Arguments(launch.parameters, known, launch.memory, ())
    parameters = list(program.parameters or ())
    told: list[tuple[str, str, Any]] = [
        *(("--arg", *item) for item in launch.arguments.items()),
        *(("--data", *item) for item in launch.buffers.items()),
    ]
    places = [_place(parameters, key, option) for option, key, _ in told]
    named_bytes = {at for _, at in places}
    values: dict[int, dict[str, Any]] = {}  # by position, what each option says
    for (option, _, value), (position, at) in zip(told, places, strict=True):
        k = next((k for k, p in enumerate(parameters) if p.offset == at and p.size <= 8), position)
        if k is None:  # a member of a structure, or a byte: as a parameter of its own
            k = len(parameters)
            parameters.append(Parameter(at, 8 if option == "--data" else _size(value)))
        elif not parameters[k].whole and at + 4 in named_bytes:  # two values, each given by itself
            parameters[k] = replace(parameters[k], size=4, whole=True, type="")
        values.setdefault(k, {})[option] = value
    size = max((p.offset + p.size for p in parameters), default=0)
    content, given = bytearray(size), np.zeros(size, bool)
    buffers: dict[int, bytes] = {}
    missing = []
    for k, parameter in enumerate(parameters):
        value, array = (values.get(k, {}).get(option) for option in ("--arg", "--data"))
        if array is not None or value == "pointer" or (value is None and parameter.pointer):
            if not parameter.may_point:
                said = f"parameter {k}{parameter.of_type} has {parameter.size} bytes: no pointer"
                raise ProblemFileError("--arg" if array is None else "--data", said)
            base = GLOBAL_BASE + k * GLOBAL_STEP
            data = struct.pack("<Q", base)
            if array is not None:
                buffers[base] = _elements(array, parameter, k).tobytes()
        elif value is None:
            missing.append(k)
            continue
        else:
            data = _packed(value, parameter, k)
        content[parameter.offset : parameter.offset + len(data)] = data
        given[parameter.offset : parameter.offset + len(data)] = True
    return Arguments(bytes(content), given, buffers, tuple(missing))


def _place(parameters: Sequence[Parameter], key: str, option: str) -> tuple[int | None, int]:
    """The position of the parameter that a key names, None of a byte alone, and its first byte."""
    name, plus, offset = key.partition("+")
    if not name and offset.isdecimal() and len(offset) < 6:
        return None, int(offset)
    names = [p.name for p in parameters]
    position = int(name) if name.isdecimal() and len(name) < 6 else names.index(name) if name in names else -1
    if not name or not 0 <= position < len(parameters):
        known = f"parameters 0 to {len(parameters) - 1}" if parameters else "no parameters"
        named = ", ".join(name for name in names if name)
        told = f"{shown(name or key)!r} is no parameter; there are {known}" + (f" ({named})" if named else "")
        raise ProblemFileError(option, told)
    parameter = parameters[position]
    if not plus:
        return position, parameter.offset
    if not offset.isdecimal() or len(offset) > 5 or int(offset) >= parameter.size:
        expected = f"expected the byte of a member, 0 to {parameter.size - 1}"
        raise ProblemFileError(option, f"parameter {shown(name)}: {expected}, got {shown(offset)!r}")
    return None, parameter.offset + int(offset)


def _size(value: int | float | str | bytes) -> int:
    """Bytes that a value takes: 8 for a pointer and for what 4 do not hold."""
    if isinstance(value, bytes):
        return len(value)
    is_long = isinstance(value, int) and not -(1 << 31) <= value < 1 << 32
    return 8 if isinstance(value, str) or is_long else 4


def _packed(value: int | float | str | bytes, parameter: Parameter, position: int) -> bytes:
    """The bytes of an argument, converted to the parameter's type."""
    told, size, at = f"parameter {position}{parameter.of_type}", parameter.size, parameter.offset
    if isinstance(value, bytes):
        if len(value) != size:
            raise ProblemFileError("--arg", f"{told} has {size} bytes, got {len(value)}")
        own = _NUMBERS.get(parameter.type)
        if isinstance(value, Typed) and own is not None and (own.kind == "f") != (":f" in value.said):
            raise ProblemFileError("--arg", f"{told}: expected a number of that type, got {value.said}")
        return value
    if isinstance(value, str):
        raise ProblemFileError("--arg", f"{told}: expected a number or pointer, got {value!r}")
    if not parameter.whole and _size(value) < 8:
        raise ProblemFileError(
            "--arg",
            f"{told} is 8 bytes that are read together, one value or two of 4 bytes: give both "
            f"halves, --arg +{at}=VALUE --arg +{at + 4}=VALUE (0 for the upper half of one value)"
            + ("" if parameter.type else ", or check the cubin, which says"),
        )
    data = packed(value, parameter.type, size)
    if data is not None:
        return data
    if size not in (1, 2, 4, 8):
        said = (
            f" has {size} bytes: expected its members, --arg {position}+BYTE=VALUE, or --arg {position}=@FILE"
        )
    elif type_size(parameter.type) is not None:
        said = f": expected a number that {parameter.type} holds"
    else:
        said = f" has {size} bytes: expected a number of that size"
    raise ProblemFileError("--arg", f"{told}{said}, got {value}")


def _elements(
    values: npt.NDArray[np.generic], parameter: Parameter, position: int
) -> npt.NDArray[np.generic]:
    """Data of a pointer parameter as elements of its type; raw bytes (numpy's V) stay as they are."""
    kind = element_type(parameter.type)
    values = np.ascontiguousarray(values)
    if kind is None or values.dtype == kind or values.dtype.kind == "V":
        return values
    found, exact = as_numbers(values, kind)
    if exact.all():
        return found
    raise ProblemFileError(
        "--data",
        f"parameter {position}{parameter.of_type}: expected {kind}, or what it holds exactly, "
        f"got {values.dtype} with {shown(str(values[~exact][0]))}",
    )


def constant_banks(program: Program, launch: Launch, given: Arguments) -> dict[int, Bytes]:
    """Constant memory of the launch, by bank."""
    base = program.parameter_base
    size = max(base + len(given.content), 0x400)
    content, known = bytearray(size), np.zeros(size, bool)

    layout = bank_layout(program.target)
    for name, data in {
        "block": struct.pack("<3I", *launch.block),
        "grid": struct.pack("<3I", *launch.grid),
        "stack": struct.pack("<I", STACK_BYTES),
        "shared window": struct.pack("<Q", SHARED_WINDOW << 32),
        "local window": struct.pack("<Q", LOCAL_WINDOW << 32),
    }.items():
        if name in layout:
            content[layout[name] : layout[name] + len(data)] = data
            known[layout[name] : layout[name] + len(data)] = True
    content[base : base + len(given.content)] = given.content
    known[base : base + len(given.content)] |= given.given
    banks = {n: Bytes(1, len(c), c) for n, c in program.constants.items()}
    for bank, places in program.unset.items():
        for start, count in places if bank in banks else ():
            banks[bank].hide(0, slice(start, start + count))
    return {**banks, 0: Bytes(1, size, bytes(content), known)}


def is_pointer(kind: str) -> bool:
    """Whether a type of a demangled name is a pointer."""
    return kind.removesuffix(" __restrict").removesuffix(" const").endswith("*")


def type_size(kind: str) -> int | None:
    """Bytes of a parameter of this type; None where its name does not say."""
    if is_pointer(kind):
        return 8
    number = _NUMBERS.get(kind)
    return None if number is None else number.itemsize


def element_type(kind: str) -> np.dtype[Any] | None:
    """The numbers that a pointer of this type points to; None where its name does not say."""
    if not is_pointer(kind):
        return None
    pointed = re.sub(r"\b(const|volatile|__restrict)\b", "", kind).replace("*", "", 1)
    return _NUMBERS.get(" ".join(pointed.split()))


def packed(value: int | float, kind: str, size: int) -> bytes | None:
    """The bytes of a number as a value of a type, little end first; None where it is none.

    A fraction is rounded to the nearest float of the type, as a compiler does.

    Args:
        value: the number.
        kind: the type; where it is not known, floats are floats of so many bytes, and integers integers.
        size: of the type, in bytes.
    """
    known = np.dtype(np.uint64) if is_pointer(kind) else _NUMBERS.get(kind)
    if known is None:
        letter = "f" if isinstance(value, float) else "u"
        if size not in ((4, 8) if letter == "f" else (1, 2, 4, 8)):
            return None
        known = np.dtype(f"{letter}{size}")
    converted, exact = as_numbers(np.array(value), known, rounds=True)
    return converted.tobytes() if exact.all() else None


def as_numbers(
    values: npt.NDArray[Any], kind: np.dtype[Any], rounds: bool = False
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The values as numbers of a type, and which of them are exactly that.

    Integers keep their bits: -1 may be of an unsigned type, and 0xffffffff of a signed one. With `rounds`, a
    fraction is also a float near it, unless that is 0 or infinite.
    """
    if values.dtype.kind not in "biuf":
        return values, np.zeros(values.shape, bool)
    if values.dtype.kind == "f" and kind.kind != "f":
        small = np.abs(values.astype(np.float64)) < _LARGEST_WHOLE
        numbers = np.where(small, values, 0)
        found, exact = as_numbers(numbers.astype(np.int64), kind)
        return found, exact & small & (np.trunc(numbers) == numbers)
    if values.dtype.kind == "b":
        values = values.astype(np.uint8)
    if kind.kind == "f":
        with np.errstate(over="ignore", under="ignore"):
            found = values.astype(kind)
        if values.dtype.kind == "f" and rounds:
            return found, (np.isfinite(found) == np.isfinite(values)) & ((found == 0) == (values == 0))
        if values.dtype.kind == "f":
            return found, (found == values) | np.isnan(values)
        near = np.abs(found.astype(np.float64)) < _LARGEST_WHOLE
        return found, near & (np.where(near, found, 0).astype(values.dtype) == values)
    bits = 1 if kind.kind == "b" else 8 * kind.itemsize
    lowest, highest = (0 if bits == 1 else -(1 << (bits - 1))), (1 << bits) - 1
    held = np.iinfo(values.dtype)
    exact = (values >= max(lowest, held.min)) & (values <= min(highest, held.max))
    return values.astype(kind), exact


_FILL: Final = re.compile(r"zeros|iota|random(?::(\d{1,9}))?")


def is_fill(text: str) -> bool:
    """Whether a text says what a buffer is filled with, and names no file."""
    return _FILL.fullmatch(text) is not None


def buffer(program: Program, name: str, text: str) -> npt.NDArray[Any]:
    """The contents of a buffer that a pointer parameter points to.

    Args:
        program: the kernel; the elements of a fill are of the parameter's type where that is known, else
            integers of 32 bits.
        name: the parameter, as a key of `arguments`.
        text: a file, or `zeros`, `iota` (0, 1, 2, ...) or `random:SEED` (integers of all sizes, floats from
            0 to 1).

    Raises:
        ProblemFileError: the file cannot be read or is too large, or there is no such parameter.
    """
    match = _FILL.fullmatch(text)
    if match is None:
        return _file(Path(text))
    parameters = program.parameters or ()
    _, at = _place(parameters, name, "--data")
    of_type = next((element_type(parameter.type) for parameter in parameters if parameter.offset == at), None)
    kind = of_type or np.dtype(np.int32)
    count = FILL_BYTES // kind.itemsize
    if text == "zeros":
        return np.zeros(count, kind)
    if text == "iota":
        with np.errstate(over="ignore"):  # as a program that converts them
            return np.arange(count).astype(kind)
    random = np.random.default_rng(int(match[1] or 0))
    if kind.kind == "f":
        return random.random(count).astype(kind)
    if kind.kind == "b":
        return random.integers(0, 2, count).astype(kind)
    return random.integers(0, 256, FILL_BYTES, np.uint8).view(kind)


def _file(path: Path) -> npt.NDArray[Any]:
    found = opened(path, "--data")
    if found.nbytes > MAX_BUFFER_BYTES:
        raise ProblemFileError("--data", f"{shown(str(path))} has more than {MAX_BUFFER_BYTES:,} bytes")
    return np.array(found)
