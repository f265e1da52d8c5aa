"""Floats of PTX: operations that IEEE 754 rounds correctly; approximations of the hardware are unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.kernels import values
from layoutopt.kernels.program import Compute
from layoutopt.kernels.ptx_reading import Built, Reading, forget
from layoutopt.kernels.values import Value, made

Floats = npt.NDArray[Any]


def float_operation(reading: Reading, inputs: int) -> Built:
    """The same of floats, correctly rounded; everything else is unknown."""
    function = FLOATS.get(reading.words[0])
    exact = {"approx", "full", "sat", "rz", "rm", "rp", "abs", "NaN", "xorsign"}.isdisjoint(reading.words)
    if function is None or reading.kind not in ("f32", "f64") or not exact:
        return forget(reading)
    if reading.kind == "f64" and reading.words[0] in ("fma", "mad"):
        return forget(reading)
    sources = reading.sources(*[reading.width] * inputs)
    flush = "ftz" in reading.words
    dtype = np.dtype(np.float32 if reading.kind == "f32" else np.float64)

    def compute(*given: Value) -> tuple[Value, ...]:
        with np.errstate(all="ignore"):
            result = np.asarray(function(*(as_float(v, dtype, flush) for v in given)), dtype)
        return (from_float(result, flush, *given),)

    return Built(Compute(compute), sources, reading.dests)


def as_float(value: Value, dtype: np.dtype[Any], flush: bool = False) -> Floats:
    """Bits read as floats, denormals as 0 where they are flushed."""
    bits = np.ascontiguousarray(value.bits)
    found = bits.view(np.float64) if dtype.itemsize == 8 else bits.astype(np.uint32).view(np.float32)
    return np.where(np.abs(found) < np.finfo(dtype).tiny, found * 0, found) if flush else found


def from_float(numbers: Floats, flush: bool, *given: Value) -> Value:
    """Floats as bits; unknown where a source is, and where they are no numbers (their bits differ)."""
    if flush:
        numbers = np.where(np.abs(numbers) < np.finfo(numbers.dtype).tiny, numbers * 0, numbers)
    numbers = np.ascontiguousarray(numbers)
    width = 8 * numbers.dtype.itemsize
    bits = numbers.view(np.uint64) if width == 64 else numbers.view(np.uint32).astype(np.uint64)
    result = values.mapped(lambda *_: bits, width, *given)
    lost = np.isnan(numbers)
    return hidden(result, lost, width) if lost.any() else result


def hidden(value: Value, where: values.Bools, width: int) -> Value:
    """The value, unknown as a whole where `where`."""
    before = np.uint64(0) if value.unknown is None else value.unknown
    return made(value.bits, np.where(where, values.mask(width), before), width)


def _fma32(a: Floats, b: Floats, c: Floats) -> Floats:
    return (a.astype(np.float64) * b + c).astype(np.float32)


FLOATS: Final[dict[str, Callable[..., Floats]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": _fma32,
    "mad": _fma32,
    "div": np.divide,
    "sqrt": np.sqrt,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.fmin,
    "max": np.fmax,
}
