"""The launches of tests/data/kernels, and a driver for them: libcuda through ctypes, no package but numpy.

A kernel's file holds one line `// launch: {...}`: `entry` (demangled), `block`, `grid`, `args`, perhaps
`shared` (dynamic bytes), `symbol` (where mangled), `data_dependent` (addresses or branches come from input
data) and `bench` (a grid and arguments at which its time means something). Arguments are `[type, value]`,
buffers `[type*, elements, fill]` with fill zeros, iota, random or `below N`, and structures by value
`["struct", [fields]]`.
"""

from __future__ import annotations

import ctypes
import json
import re
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

KERNELS = Path(__file__).parents[2] / "tests/data/kernels"
TYPES = {
    name: np.dtype(code)
    for name, code in {
        "u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8", "i16": "i2", "i32": "i4", "i64": "i8",
        "f32": "f4", "f64": "f8",
    }.items()
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel of the collection."""

    name: str
    source: Path
    entry: str
    symbol: str
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    shared: int
    args: list[Any]
    data_dependent: bool
    bench: dict[str, Any] = field(default_factory=dict)


@dataclass
class Packed:
    """The bytes of the parameters, and the buffers with their places among them."""

    data: bytearray = field(default_factory=bytearray)
    buffers: list[tuple[int, np.ndarray[Any, Any]]] = field(default_factory=list)


def launches(folder: Path = KERNELS) -> list[Launch]:
    """All launches, by name."""
    return [launch(path) for path in sorted(folder.glob("*.cu"))]


def launch(path: Path) -> Launch:
    found = re.search(r"^// launch: (\{.*\})$", path.read_text(), re.M)
    if found is None:
        raise SystemExit(f"{path}: a line '// launch: {{...}}' is missing")
    d = json.loads(found[1])
    block, grid = (tuple(d[key]) for key in ("block", "grid"))
    return Launch(
        path.stem, path, d["entry"], d.get("symbol", d["entry"]), block, grid, d.get("shared", 0), d["args"],
        d.get("data_dependent", False), d.get("bench", {}),
    )  # fmt: skip


def scalars(kernel: Launch) -> dict[str, Any]:
    """The arguments that are numbers, by position."""
    return {str(k): a[1] for k, a in enumerate(kernel.args) if a[0] != "struct" and not a[0].endswith("*")}


def options(kernel: Launch) -> dict[str, list[str]]:
    """What `layoutopt check` takes for a launch, by option."""
    return {
        "--block": [",".join(map(str, kernel.block))],
        "--grid": [",".join(map(str, kernel.grid))],
        "--arg": [f"{position}={value}" for position, value in scalars(kernel).items()],
        "--shared": [str(kernel.shared)] if kernel.shared else [],
    }


def benches(kernel: Launch) -> list[Launch]:
    """The kernel at a size at which its time means something, if it has one."""
    if not kernel.bench:
        return []
    grid = tuple(kernel.bench.get("grid", kernel.grid))
    return [replace(kernel, grid=grid, args=kernel.bench.get("args", kernel.args), bench={})]


def contents(argument: list[Any]) -> np.ndarray[Any, Any]:
    """What a buffer holds at the start: zeros, its own indices, or numbers that its length decides.

    Random numbers are below 1, or of integers below 2**30; `below N` says another bound.
    """
    kind, elements, fill = argument[0].rstrip("*"), argument[1], [*argument, "zeros"][2]
    dtype = TYPES[kind]
    if fill == "zeros":
        return np.zeros(elements, dtype)
    if fill == "iota":
        return np.arange(elements).astype(dtype)
    rng = np.random.default_rng(zlib.crc32(f"{kind} {elements}".encode()))
    if fill.startswith("below "):
        return (rng.random(elements) * float(fill.removeprefix("below "))).astype(dtype)
    if dtype.kind == "f":
        return rng.random(elements).astype(dtype)
    return rng.integers(0, min(int(np.iinfo(dtype).max), 2**30) + 1, elements).astype(dtype)


def pack(args: list[Any]) -> list[Packed]:
    """Each argument's bytes; pointers are zero until a buffer is given."""
    return [_pack_one(argument) for argument in args]


def _pack_one(argument: list[Any]) -> Packed:
    packed = Packed()
    _append(packed, argument)
    return packed


def _append(packed: Packed, argument: list[Any]) -> int:
    """Append an argument at its natural alignment; returns that alignment."""
    kind, value = argument[0], argument[1]
    if kind == "struct":
        start = len(packed.data)
        alignment = max(_append(packed, part) for part in value)
        packed.data += bytes(-(len(packed.data) - start) % alignment)
        return alignment
    size = 8 if kind.endswith("*") else TYPES[kind].itemsize
    packed.data += bytes(-len(packed.data) % size)
    if kind.endswith("*"):
        packed.buffers.append((len(packed.data), contents(argument)))
        packed.data += bytes(8)
    else:
        packed.data += np.array([value], TYPES[kind]).tobytes()
    return size


class Device:
    """The first GPU, through the driver."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the driver; raises RuntimeError with its error's name."""
        status = getattr(self.cuda, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    def function(self, image: Path, symbol: str) -> ctypes.c_void_p:
        """An entry of a cubin or of PTX."""
        module, found = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image.read_bytes() + b"\0")
        self.call("cuModuleGetFunction", ctypes.byref(found), module, symbol.encode())
        return found

    def run(
        self, function: ctypes.c_void_p, kernel: Launch, repeat: int = 1
    ) -> tuple[list[np.ndarray[Any, Any]], list[float]]:
        """Launch `repeat` times on fresh buffers; the buffers afterwards, and each launch's microseconds."""
        packed = pack(kernel.args)
        pointers: list[tuple[ctypes.c_uint64, np.ndarray[Any, Any]]] = []
        for argument in packed:
            for at, data in argument.buffers:
                pointer = ctypes.c_uint64()
                self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(data.nbytes, 4)))
                argument.data[at : at + 8] = pointer.value.to_bytes(8, "little")
                pointers.append((pointer, data))
        raw = [ctypes.create_string_buffer(bytes(argument.data), len(argument.data)) for argument in packed]
        parameters = (ctypes.c_void_p * len(raw))(*(ctypes.addressof(r) for r in raw))
        if kernel.shared > 48 * 1024:
            self.call("cuFuncSetAttribute", function, 8, kernel.shared)
        events = [ctypes.c_void_p() for _ in range(2)]
        for event in events:
            self.call("cuEventCreate", ctypes.byref(event), 0)
        times = []
        for _ in range(repeat):
            for pointer, data in pointers:
                self.call(
                    "cuMemcpyHtoD_v2",
                    pointer,
                    data.ctypes.data_as(ctypes.c_void_p),
                    ctypes.c_size_t(data.nbytes),
                )
            self.call("cuCtxSynchronize")
            self.call("cuEventRecord", events[0], None)
            self.call(
                "cuLaunchKernel", function, *kernel.grid, *kernel.block, kernel.shared, None, parameters, None
            )
            self.call("cuEventRecord", events[1], None)
            self.call("cuCtxSynchronize")
            elapsed = ctypes.c_float()
            self.call("cuEventElapsedTime", ctypes.byref(elapsed), *events)
            times.append(elapsed.value * 1000)
        results = []
        for pointer, data in pointers:
            result = np.empty_like(data)
            self.call(
                "cuMemcpyDtoH_v2",
                result.ctypes.data_as(ctypes.c_void_p),
                pointer,
                ctypes.c_size_t(data.nbytes),
            )
            results.append(result)
            self.call("cuMemFree_v2", pointer)
        return results, times
