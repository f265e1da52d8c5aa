"""What sources, PTX and names say of kernels: arrays and their shapes, parameters and their types.

Extents are numbers, or names that a `#define` or an integer constant of the file gives one. What is not
understood is not told: a shape counts only where the array's bytes agree with it, names only where there are
as many as parameters.
"""

import ctypes
import ctypes.util
import math
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.expressions.grammar import evaluate, names, parse
from layoutopt.ground import json_data
from layoutopt.ground.brackets import split
from layoutopt.kernels.program import Array
from layoutopt.kernels.ptx.text import Module

MAX_BYTES: Final = 4 << 20
_CONSTANT: Final = re.compile(
    r"#\s*define\s+(\w+)\s+\(?(\d+)\)?\s*$|\b(?:const|constexpr)\b[\w\s]*\b(\w+)\s*=\s*(\d+)\s*;", re.M
)


def declared_shape(file: str | None, name: str, size: int) -> tuple[int, ...] | None:
    """The extents of a `__shared__` array of so many bytes; None where the file does not say.

    Args:
        file: path of the source.
        name: of the array.
        size: its bytes.
    """
    if file is None or not re.fullmatch(r"\w+", name):
        return None
    try:
        text = json_data.read(Path(file), MAX_BYTES).decode("utf-8", "replace")
    except ProblemFileError:
        return None
    constants = {m[1] or m[3]: int(m[2] or m[4]) for m in _CONSTANT.finditer(text)}
    for statement in re.findall(r"__shared__[^;{}]*", text):
        match = re.search(rf"\b{name}\s*((?:\[[^\]]*\]\s*)+)", statement)
        if match is None:
            continue
        extents = [_extent(part, constants) for part in re.findall(r"\[([^\]]*)\]", match[1])]
        if all(extents):
            shape = tuple(extent for extent in extents if extent)
            element, rest = divmod(size, math.prod(shape))
            if rest == 0 and element in (1, 2, 4, 8, 16):
                return shape
    return None


def source_parameters(source: str, kernel: str) -> list[tuple[str, str]]:
    """The names of a kernel's parameters as a CUDA source declares them, with the types of pointers.

    Empty where it is not found, or one has no name.
    """
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.S)
    head = re.search(rf"__global__[^;{{}}]*?\b{re.escape(kernel)}\s*\(([^;{{}}]*)\)\s*\{{", plain)
    found: list[tuple[str, str]] = []
    for one in [] if head is None else split(head[1], "<([)]>"):
        name = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", one.split("=")[0].strip())
        if name is None:
            return []
        pointer = re.search(r"\*[\s\w]*?\w+\s*$", one)
        found.append((name[1], "" if pointer is None else " ".join(one[: pointer.start() + 1].split())))
    return found


def declared(ptx: Module, name: str, static_bytes: int, start: int) -> tuple[Array, ...]:
    """The static arrays of a kernel as its PTX declares them, where the compiler puts them.

    They follow each other in the order of their declarations, each at its alignment (read off compiled code);
    where their end is not that of the kernel's static memory, none is told.

    Args:
        ptx: the module.
        name: of the kernel.
        static_bytes: end of static shared memory.
        start: where it begins.
    """
    if name not in ptx.functions:
        return ()
    used = set(re.findall(r"[\w$]+", ptx.body(name)))
    own = [(ptx.inside(one), one) for one in ptx.variables if not one.extern and one.name in used]
    found: list[Array] = []
    at = start
    for one in [*(v for where, v in own if where is None), *(v for where, v in own if where == name)]:
        at = -(-at // max(one.align, 1)) * max(one.align, 1)
        found.append(Array(demangled(one.name).split("::")[-1], at, one.size, one.name))
        at += one.size
    largest = 16
    return tuple(found) if at <= static_bytes < at + largest else ()


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


def _extent(text: str, constants: dict[str, int]) -> int | None:
    try:
        node = parse(text.strip(), frozenset(constants))
        known = {name: np.array(constants[name], np.int64) for name in names(node)}
        value = int(evaluate(node, known))
    except (ProblemFileError, TypeError, ValueError):
        return None
    return value if 0 < value < 1 << 24 else None


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
