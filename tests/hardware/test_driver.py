"""Races on a GPU, with a driver that is none: pointers, fresh memory, outputs, what waits and what fails."""

import ctypes
import struct

import pytest

from layoutopt.errors import MachineError
from layoutopt.ground.budget import OutOfTime, deadline
from layoutopt.hardware import driver
from layoutopt.hardware.driver import Kernel

A, B = 0x7F0000000000, 0x7F1000000000


class Fake:
    """Memory of the host; a kernel is a Python function of its image, called with its parameters."""

    def __init__(self, kernels, seconds=lambda image: 1e-3):
        self.kernels, self.seconds = kernels, seconds
        self.kept, self.clock, self.recording, self.runs = [], 0.0, None, 0
        self.marks, self.waiting, self.events = {}, 0, 0

    def __getattr__(self, name):
        return lambda *_: 0

    def cuMemAlloc_v2(self, pointer, size):
        self.kept.append(ctypes.create_string_buffer(b"\xee" * size.value, size.value))
        pointer._obj.value = ctypes.addressof(self.kept[-1])
        return 0

    def cuMemcpyHtoD_v2(self, to, data, size):
        ctypes.memmove(to.value, getattr(data, "value", data), size.value)
        return 0

    cuMemcpyDtoD_v2 = cuMemcpyHtoD_v2

    def cuMemcpyDtoH_v2(self, to, data, size):
        ctypes.memmove(to, data.value, size.value)
        return 0

    def cuModuleLoadData(self, module, image):
        module._obj.value = 1 + sorted(self.kernels).index(image)
        return 0

    def cuModuleGetFunction(self, function, module, symbol):
        function._obj.value = module.value
        return 0

    def cuLaunchKernel(self, function, *words):
        image = sorted(self.kernels)[function.value - 1]
        size = ctypes.c_size_t.from_address(words[-1][3]).value
        told = image, ctypes.string_at(words[-1][1], size)
        if self.recording is None:
            return self.ran(*told)
        self.recording.append(told)
        return 0

    def ran(self, image, parameters):
        self.runs += 1
        self.clock += self.seconds(image)
        return self.kernels[image](self, parameters) or 0

    def cuStreamBeginCapture_v2(self, *_):
        self.recording = []
        return 0

    def cuStreamEndCapture(self, stream, graph):
        graph._obj.value, self.graph, self.recording = 1, self.recording, None
        return 0

    def cuGraphInstantiateWithFlags(self, found, *_):
        found._obj.value = len(self.marks) + 1
        self.marks[found._obj.value] = self.graph
        return 0

    def cuGraphLaunch(self, graph, _):
        return max(self.ran(*told) for told in self.marks[graph.value])

    def cuEventCreate(self, event, _):
        self.events += 1
        event._obj.value = self.events
        return 0

    def cuEventRecord(self, event, _):
        self.marks["event", event.value] = self.clock
        return 0

    def cuEventQuery(self, _):
        return 600 if self.waiting else 0

    def cuEventElapsedTime(self, found, begin, end):
        found._obj.value = 1e3 * (self.marks["event", end.value] - self.marks["event", begin.value])
        return 0

    def cuGetErrorName(self, status, text):
        text._obj.value = b"CUDA_ERROR_ILLEGAL_ADDRESS"
        return 0


def add(more):
    """A kernel of one pointer into the middle of memory, a number and a pointer: b[0] += a[0] + ..."""

    def kernel(fake, parameters):
        a, n, b = struct.unpack("<QqQ", parameters)
        value = ctypes.c_int.from_address(b)
        value.value += ctypes.c_int.from_address(a).value + n + more(fake)

    return kernel


def race(kernels, seconds=lambda image: 1e-3, monkeypatch=None, **more):
    fake = Fake(kernels, seconds)
    for name, value in more.items():
        setattr(fake, name, value)
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: fake)
    memory = {A: struct.pack("<2i", 1, 20), B: struct.pack("<2i", 300, 7)}
    parameters = struct.pack("<QqQ", A + 4, 4000, B)
    both = [Kernel(image, "k", (1, 1, 1), (1, 1, 1), 0, parameters, memory) for image in sorted(kernels)]
    return driver.Driver().race(*both), fake


def test_both_start_from_the_same_memory(monkeypatch):
    same = {b"a": add(lambda fake: 0), b"b": add(lambda fake: 0)}
    found, fake = race(same, lambda image: 2e-5 if image == b"a" else 1e-5, monkeypatch)
    assert found.seconds == pytest.approx((2e-5, 1e-5))
    assert (found.differing, found.changing) == (0, 0)
    assert found.ratio == pytest.approx(0.5)
    assert fake.runs > 1000  # short ones, many times
    slow, fake = race(same, lambda image: 3.0, monkeypatch)
    assert (slow.ratio, fake.runs) == (1, 5 + 2 * 5)


def test_bytes_that_differ_are_counted_but_for_those_that_always_do(monkeypatch):
    other = {b"a": add(lambda fake: 0), b"b": add(lambda fake: 1 << 8 | 1)}
    assert race(other, monkeypatch=monkeypatch)[0].differing == 2
    changing = {b"a": add(lambda fake: fake.runs), b"b": add(lambda fake: 0)}
    found, _ = race(changing, monkeypatch=monkeypatch)
    assert (found.differing, found.changing) == (0, 1)


def test_what_fails_or_never_ends_is_said(monkeypatch):
    same = {b"a": add(lambda fake: 0), b"b": lambda *_: 700}
    with pytest.raises(MachineError, match="cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS"):
        race(same, monkeypatch=monkeypatch)
    monkeypatch.setattr(driver, "_LONGEST", 0.01)
    with pytest.raises(MachineError, match="takes longer than 0 seconds"):
        race(same, monkeypatch=monkeypatch, waiting=1)
    with deadline(0.001), pytest.raises(OutOfTime, match="ran on the GPU"):
        race(same, monkeypatch=monkeypatch, waiting=1)
