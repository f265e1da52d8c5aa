"""What PTX and names say of kernels: arrays, parameters and their types."""

import ctypes
import ctypes.util
import re
from functools import cache
from typing import Any, Final

from layoutopt.ground.brackets import split
from layoutopt.kernels.program import Array
from layoutopt.kernels.ptx.text import Module


def declared(ptx: Module, name: str, static_bytes: int, start: int) -> tuple[Array, ...]:
    """The static arrays of a kernel as its PTX declares them, where the compiler puts them.

    Those that are declared in the kernel come first, then those of the whole file that it or a function that
    it calls names, each in the order of their declarations and at its alignment (read off compiled code).
    Where their end is not that of the kernel's static memory, none is told.

    Args:
        ptx: the module.
        name: of the kernel.
        static_bytes: end of static shared memory.
        start: where it begins.
    """
    if name not in ptx.functions:
        return ()
    used = _mentioned(ptx, name)
    own = [(ptx.inside(one), one) for one in ptx.variables if not one.extern and one.name in used]
    found: list[Array] = []
    at = start
    for one in [*(v for where, v in own if where == name), *(v for where, v in own if where is None)]:
        at = -(-at // max(one.align, 1)) * max(one.align, 1)
        found.append(Array(demangled(one.name).split("::")[-1], at, one.size, one.name))
        at += one.size
    largest = 16
    return tuple(found) if at <= static_bytes < at + largest else ()


def _mentioned(ptx: Module, name: str) -> set[str]:
    """The words in the texts of a function and of all that it may call."""
    found, todo = set[str](), [name]
    while todo:
        new = set(re.findall(r"[\w$]+", ptx.body(todo.pop()))) - found
        found |= new
        todo += new & ptx.functions.keys()
    return found


def ptx_parameters(ptx: Module, kernel: str) -> list[tuple[str, str]]:
    """Names and types of a kernel's parameters as its PTX declares them; none where it does not.

    Those that it makes addresses of global memory are `void*`.
    """
    function = ptx.functions.get(kernel)
    body = (function.body if function is not None else None) or ()
    loaded = {
        o.operands[0]: o.operands[1].strip("[] ")
        for o in body
        if o.opcode in ("ld.param.u64", "ld.param.b64")
    }
    pointers = {loaded.get(one.operands[1]) for one in body if one.opcode == "cvta.to.global.u64"}
    found = []
    for one in function.parameters if function is not None else ():
        name = re.search(r"([\w$%]+)\s*(?:\[\d*\]\s*)?$", one)
        kind = re.search(r"\.[a-z]\d+\b(?![^\[]*\[)", one)
        told = "" if name is None else name[1]
        found.append((told, "void*" if told in pointers else "" if kind is None else kind[0]))
    return found


UNNAMED: Final = "(anonymous namespace)::"


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
    """The name in C++, without namespaces that have no name; as it is where nothing here can read it."""
    function = _demangler()
    if function is None or not name.startswith("_Z") or len(name) > 1 << 14 or "\0" in name:
        return name
    status = ctypes.c_int()
    found = function(name.encode("utf-8", "replace"), None, None, ctypes.byref(status))
    if status.value or not found:
        return name
    text = ctypes.string_at(found).decode("utf-8", "replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text.replace(UNNAMED, "")


def base_name(title: str) -> str:
    """`kernel` out of `void space::kernel<float, 3>(float*, int)`."""
    return _before(_before(title, "("), "<").split(" ")[-1].split("::")[-1]


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
