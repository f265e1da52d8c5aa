"""Types of kernel parameters, and numbers as values of them: converted where that loses nothing."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# By their names in demangled C++ and in declarations of PTX; of other types nothing is known.
_NUMBERS: Final = {
    name: np.dtype(kind)
    for kind, names in {
        "bool": ("bool",),
        "int8": ("char", "signed char", ".s8"),
        "uint8": ("unsigned char", ".u8"),
        "int16": ("short", ".s16"),
        "uint16": ("unsigned short", ".u16"),
        "int32": ("int", ".s32"),
        "uint32": ("unsigned int", ".u32"),
        "int64": ("long", "long long", ".s64"),
        "uint64": ("unsigned long", "unsigned long long", ".u64"),
        "float16": ("__half", ".f16"),
        "float32": ("float", ".f32"),
        "float64": ("double", ".f64"),
    }.items()
    for name in names
}
# No type of numpy: the upper half of a float.
_BFLOAT16: Final = "__nv_bfloat16"
_LARGEST_WHOLE: Final = 2.0**63


def is_pointer(kind: str) -> bool:
    """Whether a type of a demangled name is a pointer."""
    return kind.removesuffix(" __restrict").removesuffix(" const").endswith("*")


def type_size(kind: str) -> int | None:
    """Bytes of a parameter of this type; None where its name does not say."""
    if is_pointer(kind):
        return 8
    number = _NUMBERS.get(kind)
    return 2 if kind == _BFLOAT16 else None if number is None else number.itemsize


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
    if kind == _BFLOAT16:
        wide = packed(value, "float", 4)
        bits = None if wide is None else int.from_bytes(wide, "little")
        if bits is None or (isinstance(value, int) and bits & 0xFFFF):
            return None
        nearest = bits if bits & 0x7F800000 == 0x7F800000 else bits + 0x7FFF + (bits >> 16 & 1)
        return (nearest >> 16).to_bytes(2, "little")
    known = np.dtype(np.uint64) if is_pointer(kind) else _NUMBERS.get(kind)
    if known is None:
        letter = "f" if isinstance(value, float) else "u"
        if size not in ((4, 8) if letter == "f" else (1, 2, 4, 8)):
            return None
        known = np.dtype(f"{letter}{size}")
    if isinstance(value, float) and known.kind == "f":
        with np.errstate(over="ignore", under="ignore"):
            rounded = np.array(value).astype(known)
        lost = np.isfinite(rounded) != np.isfinite(value) or (rounded == 0) != (value == 0)
        return None if lost else rounded.tobytes()
    converted, exact = as_numbers(np.array(value), known)
    return converted.tobytes() if exact.all() else None


def as_numbers(
    values: npt.NDArray[Any], kind: np.dtype[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The values as numbers of a type, and which of them are exactly that.

    Integers keep their bits: -1 may be of an unsigned type, and 0xffffffff of a signed one.
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
        if values.dtype.kind == "f":
            return found, (found == values) | np.isnan(values)
        near = np.abs(found.astype(np.float64)) < _LARGEST_WHOLE
        return found, near & (np.where(near, found, 0).astype(values.dtype) == values)
    bits = 1 if kind.kind == "b" else 8 * kind.itemsize
    lowest, highest = (0 if bits == 1 else -(1 << (bits - 1))), (1 << bits) - 1
    held = np.iinfo(values.dtype)
    exact = (values >= max(lowest, held.min)) & (values <= min(highest, held.max))
    return values.astype(kind), exact
