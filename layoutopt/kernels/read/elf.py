"""What a cubin says of its kernels beside their code: parameters, shared memory, constants.

A cubin is a 64-bit little-endian ELF file. Every number in it is checked before it is used as a place or a
size.
"""

import re
import struct
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import shown
from layoutopt.kernels.program import Parameter

MAX_BYTES: Final = 256 << 20
MAX_SECTIONS: Final = 1 << 16
MAX_CONSTANT_BYTES: Final = 1 << 16
MAX_PARAMETER_BYTES: Final = 1 << 15

# Sections without bytes in the file: SHT_NOBITS, and shared memory of what is not linked (nvcc -dc).
_NO_BITS: Final = (8, 0x7000000A)
_GLOBAL_POINTER: Final = 5
# Attributes of .nv.info (NVIDIA does not document them; cuobjdump -elf prints them by name).
_PARAMETER: Final = 0x17
_REGISTERS: Final = 0x2F
_PARAMETER_BANK: Final = 0x0A
_CLUSTER: Final = 0x3D
_SIZED: Final = 4
# Where variables declared __constant__ lie, and what a symbol of one is.
_USER_BANK: Final = 3
_USER_CONSTANTS: Final = f".nv.constant{_USER_BANK}"
_OBJECT: Final = 1
_FUNCTION: Final = 2
# Of a symbol's third field: what a launch may begin with.
_ENTRY: Final = 0x10
CODE: Final = ".text."


class Section(Struct, frozen=True):
    """A section: its name, contents (empty where it has none in the file) and size."""

    name: str
    content: bytes
    size: int


def is_elf(data: bytes) -> bool:
    """Whether the file is an ELF file."""
    return data[:4] == b"\x7fELF"


def is_cubin(data: bytes) -> bool:
    """Whether it holds code of NVIDIA GPUs only (machine 190)."""
    return is_elf(data) and len(data) >= 64 and struct.unpack_from("<H", data, 18)[0] == 190


def sections(data: bytes) -> list[Section]:
    """The sections of a file.

    Raises:
        ProblemFileError: it is broken.
    """
    if not is_elf(data) or len(data) < 64 or data[4] != 2 or data[5] != 1:
        raise ProblemFileError("", "no 64-bit ELF file")
    start = struct.unpack_from("<Q", data, 40)[0]
    size, count, names = struct.unpack_from("<HHH", data, 58)
    if size < 64 or count > MAX_SECTIONS or start > len(data) or start + size * count > len(data):
        raise ProblemFileError("", "broken ELF file: its table of sections lies outside")
    heads = [struct.unpack_from("<IIQQQQ", data, start + k * size) for k in range(count)]
    if names >= count:
        raise ProblemFileError("", "broken ELF file: it has no names of sections")
    texts = _content(data, heads[names])
    return [
        Section(_text(texts, head[0]), _content(data, head), head[5] if head[5] < 1 << 40 else 0)
        for head in heads
    ]


def _content(data: bytes, head: tuple[int, ...]) -> bytes:
    kind, offset, size = head[1], head[4], head[5]
    if kind in _NO_BITS or size == 0:
        return b""
    if offset > len(data) or size > len(data) - offset:
        raise ProblemFileError("", "broken ELF file: a section lies outside")
    return data[offset : offset + size]


def _text(texts: bytes, at: int) -> str:
    end = texts.find(b"\0", at)
    return texts[at:end].decode("utf-8", "replace") if at < len(texts) and end >= 0 else ""


def kernels(sections: list[Section]) -> list[tuple[str, int]]:
    """Names of the kernels of a cubin, and the numbers of their symbols, in the order of their code.

    Functions that kernels call have code of their own, too, and are none.

    Raises:
        ProblemFileError: code has no symbol.
    """
    by_name = {section.name: section.content for section in sections}
    texts = by_name.get(".strtab", b"")
    symbols: dict[str, tuple[int, int]] = {}
    for k, (name, info, other, *_) in enumerate(_symbols(sections)):
        if info & 15 == _FUNCTION:
            symbols.setdefault(_text(texts, name), (k, other))
    names = [one.name.removeprefix(CODE) for one in sections if one.name.startswith(CODE)]
    described = [name for name in names if f".nv.info.{name}" in by_name]
    if missing := [name for name in described if name not in symbols]:
        raise ProblemFileError("", f"broken cubin: no symbol of {shown(missing[0])}")
    return [(name, symbols[name][0]) for name in described if symbols[name][1] & _ENTRY]


def _symbols(sections: list[Section]) -> Iterator[tuple[int, ...]]:
    """Name, type, -, section, value and size of each."""
    table = next((section.content for section in sections if section.name == ".symtab"), b"")
    return struct.iter_unpack("<IBBHQQ", table[: len(table) // 24 * 24])


def kernel_info(sections: list[Section], name: str) -> dict[str, Any]:
    """What the sections of a cubin say of a kernel, by fields of its `Program`; others are left out.

    Raises:
        ProblemFileError: the parameters are not as a compiler writes them.
    """
    by_name = {section.name: section for section in sections}
    parameters: dict[int, Parameter] = {}
    base, said = None, dict[str, Any]()
    info = by_name.get(f".nv.info.{name}")
    for attribute, payload in _attributes(info.content if info is not None else b""):
        if attribute == _PARAMETER and len(payload) >= 12:
            # Its number, its offset, and bits: from 8 on the space it points to, from 18 on its size.
            _, ordinal, offset, bits = struct.unpack_from("<IHHI", payload)
            size, space = bits >> 18, bits >> 8 & 15
            if offset + size > MAX_PARAMETER_BYTES:
                raise ProblemFileError("", f"broken cubin: parameter {ordinal} of {size} bytes at {offset}")
            parameters[ordinal] = Parameter(offset, size, pointer=space == _GLOBAL_POINTER and size == 8)
        elif attribute == _PARAMETER_BANK and len(payload) >= 8:
            base = struct.unpack_from("<H", payload, 4)[0]
        elif attribute == _CLUSTER and len(payload) >= 12 and all(struct.unpack_from("<3I", payload)):
            said["cluster"] = struct.unpack_from("<3I", payload)
    if sorted(parameters) != list(range(len(parameters))):
        raise ProblemFileError("", "broken cubin: the parameters are not numbered from 0")
    constants: dict[int, bytes] = {}
    for section in sections:
        match = re.fullmatch(r"\.nv\.constant(\d{1,2})(?:\.(.*))?", section.name)
        if match and int(match[1]) and match[2] in (None, name):  # bank 0 is what a launch gives
            constants[int(match[1])] = section.content[:MAX_CONSTANT_BYTES]
    user = next((k for k, section in enumerate(sections) if section.name == _USER_CONSTANTS), None)
    unset = {} if user is None else {_USER_BANK: tuple(_zeros(sections, user))}
    shared = by_name.get(f".nv.shared.{name}")
    said |= {"constants": constants, "unset": unset}
    said["parameters"] = tuple(parameters[k] for k in range(len(parameters)))
    said |= {"static_bytes": shared.size} if shared is not None else {}
    # Of registers: the number of the kernel's symbol, how many.
    common, number = by_name.get(".nv.info"), dict(kernels(sections)).get(name)
    for attribute, payload in _attributes(common.content if common is not None else b""):
        if attribute == _REGISTERS and len(payload) >= 8 and struct.unpack_from("<I", payload)[0] == number:
            said["registers"] = struct.unpack_from("<I", payload, 4)[0]
    return said | ({"parameter_base": base} if base is not None else {})


def _zeros(sections: list[Section], place: int) -> Iterator[tuple[int, int]]:
    """First byte and size of a section's variables that hold nothing but zeros: nobody gave them a value."""
    content = sections[place].content[:MAX_CONSTANT_BYTES]
    for _, info, _, section, start, size in _symbols(sections):
        if section == place and info & 15 == _OBJECT and size and not any(content[start : start + size]):
            yield start, min(size, MAX_CONSTANT_BYTES)


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes with their payloads."""
    at = 0
    while at + 4 <= len(content):
        form, attribute, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == _SIZED:
            yield attribute, content[at : at + value]
            at += value
