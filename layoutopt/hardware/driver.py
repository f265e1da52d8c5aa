"""Launches on this machine's GPU through its driver, libcuda: what they write, and how long they take."""

import ctypes
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from layoutopt.errors import MachineError
from layoutopt.ground.budget import OutOfTime, current
from layoutopt.hardware.machine import Gpu

Bytes = npt.NDArray[np.uint8]

LIBRARY: Final = "libcuda.so.1"
# Seconds after which a launch is given up, and that all launches of one that is timed may take.
_LONGEST: Final = 60.0
_TIMED: Final = 1.0
# Times are the least of so many rounds, each of launches that take so many seconds together.
_ROUNDS: Final = 5, 40
_ROUND: Final = 1e-3
_MOST_LAUNCHES: Final = 64
# Launches to find all bytes that change from launch to launch, where some do.
_MOST_COMPARED: Final = 10
_NOT_READY: Final = 600
_CAPABILITY: Final = 75, 76
_DYNAMIC_SHARED_BYTES: Final = 8
# What follows among the extras of a launch: all parameters as bytes, and how many; then the end.
_PARAMETERS, _SIZE, _END = map(ctypes.c_void_p, (1, 2, 0))


class Kernel(Struct, frozen=True):
    """A kernel of a cubin, launched."""

    image: bytes  # the cubin
    symbol: str  # the kernel's name there
    grid: tuple[int, int, int]  # blocks along x, y, z
    block: tuple[int, int, int]  # threads along x, y, z
    shared_bytes: int  # dynamic shared memory
    parameters: bytes  # all of them, as bytes
    memory: Mapping[int, bytes]  # what pointers among them point to, by address; the GPU has it elsewhere


class Race(Struct, frozen=True):
    """Two versions of a kernel, launched in turns on the same memory."""

    seconds: tuple[float, ...]  # of a launch of each
    differing: int  # bytes that the second leaves other than the first
    changing: int  # bytes that the first leaves other each time, which cannot be compared

    @property
    def ratio(self) -> float:
        """The time of the second, of that of the first."""
        return self.seconds[1] / self.seconds[0]


class Driver:
    """The first GPU.

    Raises:
        MachineError: there is none; or, from every method, the driver refuses, or a launch fails.
    """

    def __init__(self) -> None:
        try:
            self.cuda: Any = ctypes.CDLL(LIBRARY)
        except OSError:
            raise MachineError(f"no NVIDIA GPU on this machine ({LIBRARY} is not found)") from None
        device, context, name = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(100)
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDeviceGetName", name, len(name), device)
        numbers = [ctypes.c_int() for _ in range(3)]
        for number, attribute in zip(numbers, _CAPABILITY, strict=False):
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        self.call("cuDriverGetVersion", ctypes.byref(numbers[2]))
        major, minor, driver = (number.value for number in numbers)
        self.gpu = Gpu(
            name.value.decode(), f"{major}.{minor}", f"CUDA {driver // 1000}.{driver % 1000 // 10}"
        )
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the driver."""
        if status := getattr(self.cuda, name)(*arguments):
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(status, ctypes.byref(text))
            raise MachineError(f"the launch fails on this GPU: {name}: {(text.value or b'?').decode()}")

    def race(self, first: Kernel, second: Kernel) -> Race:
        """Both versions on the memory of the first: outputs, bit for bit, and times."""
        with _Launched(self, first) as one, _Launched(self, second, one.places) as other:
            written = one.left()
            same = [np.ones(place.size, bool) for place in written]
            for _ in range(_MOST_COMPARED):
                for place, again, stays in zip(written, one.left(), same, strict=True):
                    stays &= place == again
                if all(map(np.all, same)):
                    break
            changing = sum(int(stays.size - stays.sum()) for stays in same)
            every = zip(written, other.left(), same, strict=True)
            differing = sum(int(((a != b) & stays).sum()) for a, b, stays in every)
            return Race(_times(one, other), differing, changing)

    def left(self, kernel: Kernel, repeat: int = 1) -> list[Bytes]:
        """The kernel's memory, range by range, after so many launches, each on memory as given."""
        with _Launched(self, kernel) as launched:
            return [launched.left() for _ in range(repeat)][-1]


class _Place(NamedTuple):
    """Memory of a kernel on the GPU: as it was given, and as the kernel leaves it."""

    address: int
    size: int
    kept: ctypes.c_uint64
    live: ctypes.c_uint64


class _Launched:
    """A kernel that is ready to be launched on memory of its own, or on that of another."""

    def __init__(self, driver: Driver, kernel: Kernel, places: Sequence[_Place] | None = None) -> None:
        self.driver, self.kernel = driver, kernel
        self.places = list(places or ())
        self._owns = places is None
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._stream, self._many = ctypes.c_void_p(), ctypes.c_void_p()
        self._events = ctypes.c_void_p(), ctypes.c_void_p()

    def __enter__(self) -> Self:
        call, kernel = self.driver.call, self.kernel
        call("cuModuleLoadData", ctypes.byref(self._module), kernel.image)
        call("cuModuleGetFunction", ctypes.byref(self._function), self._module, kernel.symbol.encode())
        if kernel.shared_bytes:
            call("cuFuncSetAttribute", self._function, _DYNAMIC_SHARED_BYTES, kernel.shared_bytes)
        call("cuStreamCreate", ctypes.byref(self._stream), 0)
        for event in self._events:
            call("cuEventCreate", ctypes.byref(event), 0)
        for address, data in sorted(kernel.memory.items()) if self._owns else ():
            place = _Place(address, len(data), ctypes.c_uint64(), ctypes.c_uint64())
            self.places.append(place)
            for pointer in (place.kept, place.live):
                call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(len(data), 4)))
            call("cuMemcpyHtoD_v2", place.kept, data, ctypes.c_size_t(len(data)))
        return self

    def __exit__(self, *_: object) -> None:
        cuda = self.driver.cuda
        for place in self.places if self._owns else ():
            cuda.cuMemFree_v2(place.kept), cuda.cuMemFree_v2(place.live)
        if self._many:
            cuda.cuGraphExecDestroy(self._many)
        for event in self._events:
            cuda.cuEventDestroy_v2(event)
        cuda.cuStreamDestroy_v2(self._stream)
        cuda.cuModuleUnload(self._module)

    def left(self) -> list[Bytes]:
        """What one launch leaves."""
        self.took(1)
        found = []
        for place in self.places:
            found.append(np.empty(place.size, np.uint8))
            pointer = found[-1].ctypes.data_as(ctypes.c_void_p)
            self.driver.call("cuMemcpyDtoH_v2", pointer, place.live, ctypes.c_size_t(place.size))
        return found

    def took(self, count: int) -> float:
        """Seconds of so many launches, one after the other, the first on memory as it was given."""
        call, begin, end = self.driver.call, *self._events
        for place in self.places:
            call("cuMemcpyDtoD_v2", place.live, place.kept, ctypes.c_size_t(place.size))
        if count > 1 and not self._many:
            self._many = self._graph(count)
        call("cuEventRecord", begin, self._stream)
        if count > 1:
            call("cuGraphLaunch", self._many, self._stream)
        else:
            self._launch()
        call("cuEventRecord", end, self._stream)
        started = time.monotonic()
        while (status := self.driver.cuda.cuEventQuery(end)) == _NOT_READY:
            if current().spent:
                raise OutOfTime("the kernel ran on the GPU")
            if time.monotonic() > started + _LONGEST:
                raise MachineError(f"the launch takes longer than {_LONGEST:.0f} seconds on this GPU")
        if status:
            call("cuCtxSynchronize")
        milliseconds = ctypes.c_float()
        call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value / 1000

    def _graph(self, count: int) -> ctypes.c_void_p:
        """So many launches that the GPU starts by itself: Python takes longer than a short kernel."""
        call, graph, found = self.driver.call, ctypes.c_void_p(), ctypes.c_void_p()
        call("cuStreamBeginCapture_v2", self._stream, 0)
        for _ in range(count):
            self._launch()
        call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(found), graph, ctypes.c_ulonglong(0))
        call("cuGraphDestroy", graph)
        return found

    def _launch(self) -> None:
        content = self._parameters()
        data, size = ctypes.create_string_buffer(content, len(content)), ctypes.c_size_t(len(content))
        words = (_PARAMETERS, _address(data), _SIZE, _address(size), _END)
        extra = (ctypes.c_void_p * len(words))(*(word.value for word in words))
        shape = (*self.kernel.grid, *self.kernel.block, self.kernel.shared_bytes)
        self.driver.call("cuLaunchKernel", self._function, *shape, self._stream, None, extra)

    def _parameters(self) -> bytes:
        """The parameters, pointing to where the memory lies on the GPU."""
        content = bytearray(self.kernel.parameters)
        for at in range(0, len(content) - 7, 8):
            word = int.from_bytes(content[at : at + 8], "little")
            for place in self.places:
                if place.address <= word < place.address + place.size:
                    moved = place.live.value + word - place.address
                    content[at : at + 8] = moved.to_bytes(8, "little")
        return bytes(content)


def _address(data: Any) -> ctypes.c_void_p:
    return ctypes.cast(ctypes.byref(data), ctypes.c_void_p)


def _times(*both: _Launched) -> tuple[float, ...]:
    """Seconds of a launch of each, in turns: the least of all rounds."""
    once = max(one.took(1) for one in both)
    count = min(max(math.ceil(_ROUND / once), 1), _MOST_LAUNCHES)
    fewest, most = _ROUNDS
    rounds = min(max(int(_TIMED / (once * count * len(both))), fewest), most)
    taken = [[one.took(count) / count for one in both] for _ in range(rounds)]
    return tuple(map(min, zip(*taken, strict=True)))
