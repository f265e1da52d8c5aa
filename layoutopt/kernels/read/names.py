"""Names of kernels as people write them, and what they say of parameters."""

from __future__ import annotations

import ctypes
import ctypes.util
from functools import cache
from typing import Any

from layoutopt.kernels.isa.listing import split


@cache
def _demangler() -> Any:
    """The C++ runtime's own function; None where there is no such library."""
    for name in ("libstdc++.so.6", "libc++abi.so.1", "libc++abi.dylib"):
        try:
            function = ctypes.CDLL(name).__cxa_demangle
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_void_p
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        return function
    return None


@cache
def demangled(name: str) -> str:
    """The name in C++; as it is where it is none of C++ or nothing here can read it."""
    function = _demangler()
    if function is None or not name.startswith("_Z") or len(name) > 1 << 14 or "\0" in name:
        return name
    status = ctypes.c_int()
    found = function(name.encode("utf-8", "replace"), None, None, ctypes.byref(status))
    if status.value or not found:
        return name
    text = ctypes.string_at(found).decode("utf-8", "replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text


def base_name(title: str) -> str:
    """`kernel` out of `void space::kernel<float, 3>(float*, int)`."""
    head = _before(title, "(")
    head = _before(head, "<")
    return head.split(" ")[-1].split("::")[-1]


def without_types(title: str) -> str:
    """`space::kernel<float, 3>` out of `void space::kernel<float, 3>(float*, int)`."""
    return _before(title, "(").removeprefix("void ")


def _before(text: str, opening: str) -> str:
    """The text up to an opening bracket that stands in no other bracket."""
    depth = 0
    for k, character in enumerate(text):
        if character == opening and depth == 0 and k:
            return text[:k]
        depth += (character in "<(") - (character in ">)")
    return text


def parameter_types(title: str) -> list[str] | None:
    """The types of the parameters in a demangled name; None where it has none."""
    if not title.endswith(")"):
        return None
    depth = 0
    for k in range(len(title) - 1, -1, -1):
        depth += (title[k] in ")>") - (title[k] in "(<")
        if depth == 0:
            types = split(title[k + 1 : -1], "(<>)")
            return [] if types == ["void"] else types
    return None
