"""Integers and types of a source that no thread decides: macros, constants, parameters of templates."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tree_sitter import Node

from layoutopt.errors import ProblemFileError
from layoutopt.ground.brackets import split
from layoutopt.kernels.read.declarations import base_name, without_types
from layoutopt.kernels.read.source import File, Source, enclosing, every

_MOST_STEPS: Final = 40
_SIZES: Final = {
    "bool": 1, "char": 1, "signed char": 1, "unsigned char": 1, "int8_t": 1, "uint8_t": 1, "uchar": 1,
    "short": 2, "unsigned short": 2, "ushort": 2, "int16_t": 2, "uint16_t": 2, "half": 2, "__half": 2,
    "__nv_bfloat16": 2, "nv_bfloat16": 2, "bfloat16": 2, "half_t": 2, "__half2": 4, "half2": 4,
    "__nv_bfloat162": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "uint": 4, "int32_t": 4, "uint32_t": 4,
    "float": 4, "double": 8, "long long": 8, "unsigned long long": 8, "int64_t": 8, "uint64_t": 8,
    "size_t": 8, "long": 8, "unsigned long": 8, "char4": 4, "uchar4": 4, "short2": 4, "ushort2": 4,
    "float2": 8, "int2": 8, "uint2": 8, "double2": 16, "float4": 16, "int4": 16, "uint4": 16,
    "longlong2": 16, "ulonglong2": 16, "float3": 12, "int3": 12,
}  # fmt: skip
_BINARY: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": int.__add__, "-": int.__sub__, "*": int.__mul__, "<<": lambda a, b: a << min(b, 64),
    ">>": lambda a, b: a >> b, "&": int.__and__, "|": int.__or__, "^": int.__xor__,
    "/": lambda a, b: int(a / b), "%": lambda a, b: a - b * int(a / b),
    "<": int.__lt__, ">": int.__gt__, "<=": int.__le__, ">=": int.__ge__, "==": int.__eq__, "!=": int.__ne__,
}  # fmt: skip
_UNARY: Final[Mapping[str, Callable[[int], int]]] = {
    "-": int.__neg__,
    "+": int.__pos__,
    "~": int.__invert__,
}


class Values:
    """What names are worth in one kernel.

    Args:
        source: the files.
        title: of the kernel as C++ has it, with the arguments of its template.
        block: threads of a block, along x, y and z.
        measured: bytes of a type of which the source's text does not say them, at a node of a file.

    Attributes:
        templates: what the arguments of the template are, by the names of the parameters.
    """

    def __init__(
        self,
        source: Source,
        title: str = "",
        block: tuple[int, int, int] = (1024, 1024, 64),
        measured: Callable[[File, Node], int | None] = lambda *_: None,
    ) -> None:
        self._source, self.block, self._measured = source, block, measured
        self.templates = _template_arguments(source, title)
        self._left = 0

    def integer(self, file: File, node: Node | None) -> int | None:
        """The value of an expression; None where it is not a constant of the program."""
        self._left = _MOST_STEPS * 8
        return self._integer(file, node)

    def varies(self, file: File, node: Node) -> bool:
        """Whether the arguments of a template decide the value."""
        told, self.templates = self.templates, {}
        fixed = self.integer(file, node) is not None
        self.templates = told
        return not fixed

    def size(self, file: File, type_: Node | None) -> int | None:
        """Bytes of a type; None where they are not known."""
        self._left = _MOST_STEPS
        size = self._size(file, file.text(type_)) if type_ is not None else None
        return self._measured(file, type_) if size is None and type_ is not None else size

    def pointee(self, file: File, type_: Node | None) -> tuple[str, int | None]:
        """What a type points to, and its bytes, 0 of void and None if not known; no name of no pointer."""
        text = re.sub(r"\b(const|__restrict__)\b", "", file.text(type_)).strip() if type_ is not None else ""
        name = text.removesuffix("*").strip() if text.endswith("*") else ""
        is_void = name.split()[-1:] in ([], ["void"])
        return name, 0 if is_void else self.size(file, type_ and type_.child_by_field_name("type"))

    def _size(self, file: File, name: str) -> int | None:
        self._left -= 1
        plain = re.sub(r"\b(const|volatile|struct|typename|static|__restrict__)\b", " ", name)
        plain = " ".join(plain.split())
        if plain.endswith("*"):
            return 8
        plain = plain.split("::")[-1]
        if plain in _SIZES or self._left < 0:
            return _SIZES.get(plain)
        if plain in self.templates:
            return self._size(file, self.templates[plain])
        word = re.escape(plain)
        for one in self._source.files:
            text = one.data.decode("utf-8", "replace")
            pattern = (
                rf"\busing\s+{word}\s*=\s*([\w: ]+?)\s*;|\btypedef\s+([\w: ]+?)\s+{word}\s*;"
                rf"|#\s*define\s+{word}\s+([\w ]+?)\s*$"
            )
            if (match := re.search(pattern, text, re.M)) is not None:
                return self._size(file, match[1] or match[2] or match[3])
        return None

    def _integer(self, file: File, node: Node | None) -> int | None:
        self._left -= 1
        if self._left < 0 or node is None:
            return None
        match node.type:
            case "number_literal":
                text = file.text(node).replace("'", "").rstrip("uUlL")
                return (
                    int(text, 0) if re.fullmatch(r"0[xX][0-9a-fA-F]+|0[bB][01]+|[1-9]\d*|0", text) else None
                )
            case "parenthesized_expression":
                return self._integer(file, node.named_children[0])
            case "identifier":
                return self._named(file, node)
            case "sizeof_expression":
                told = node.child_by_field_name("type") or node.child_by_field_name("value")
                return self._size(file, file.text(told).strip("()")) if told is not None else None
            case "binary_expression":
                symbol = file.text(node.children[1])
                function = _BINARY.get(symbol)
                a, b = (self._integer(file, node.child_by_field_name(part)) for part in ("left", "right"))
                if function is None or a is None or b is None or (symbol in "/%" and b == 0):
                    return None
                return int(function(a, b))
            case "conditional_expression":
                chosen = self._integer(file, node.child_by_field_name("condition"))
                if chosen is None:
                    return None
                return self._integer(
                    file, node.child_by_field_name("consequence" if chosen else "alternative")
                )
            case "unary_expression":
                value = self._integer(file, node.child_by_field_name("argument"))
                change = _UNARY.get(file.text(node.children[0]))
                return change(value) if value is not None and change is not None else None
        return None

    def _named(self, file: File, node: Node) -> int | None:
        name = file.text(node)
        if name in self.templates:
            text = re.sub(r"^\([\w ]+\)", "", self.templates[name]).rstrip("uUlL")
            return int(text) if re.fullmatch(r"-?\d+", text) else None
        if name in self._source.macros:
            told = File(name, f"int x = {self._source.macros[name]};".encode())
            (one,) = told.variables.get("x", [None])[:1]
            return self._integer(told, one.value) if one is not None else None
        variable = self._source.meant(file, node)
        if variable is not None:
            fixed = re.search(r"\b(const|constexpr)\b", variable.file.text(variable.node))
            if fixed is None or variable.value is None or variable.extents or variable.pointer:
                return None
            return self._integer(variable.file, variable.value)
        found = [macro for one in self._source.files for macro in one.macros if macro.name == name]
        if len(found) != 1 or found[0].parameters:
            return None
        body = next((n for n in every(found[0].body) if n.type == "expression_statement"), None)
        return self._integer(found[0].file, body.named_children[0]) if body and body.named_children else None


def declared_shape(path: str, name: str, size: int, title: str) -> tuple[int, ...] | None:
    """The extents of a `__shared__` array of so many bytes; None where the source does not say.

    Args:
        path: of the source.
        name: of the array.
        size: its bytes.
        title: of the kernel.
    """
    try:
        source = Source(Path(path))
    except ProblemFileError:
        return None
    values = Values(source, title)
    for one in source.variables(name):
        extents = [values.integer(one.file, extent) or 0 for extent in one.extents]
        whole = math.prod(extents)
        if one.is_shared and extents and min(extents) > 0 and size in (whole << k for k in range(5)):
            return tuple(extents)
    return None


def _template_arguments(source: Source, title: str) -> dict[str, str]:
    """What the arguments of a kernel's template are, by the names that its definition gives them."""
    plain = without_types(title)
    if not plain.endswith(">"):
        return {}
    name = base_name(title)
    told = split(plain[plain.index(name) + len(name) + 1 : -1], "(<>)")
    found = source.function(name)
    head = enclosing(found[1], "template_declaration") if found is not None else None
    listed = head.child_by_field_name("parameters") if head is not None else None
    if found is None or listed is None:
        return {}
    names = []
    for parameter in (one for one in listed.named_children if one.type != "comment"):
        words = [n for n in every(parameter) if n.type in ("identifier", "type_identifier")]
        default = parameter.child_by_field_name("default_value") or parameter.child_by_field_name(
            "default_type"
        )
        own = [n for n in words if default is None or n.end_byte <= default.start_byte]
        names.append(found[0].text(own[-1]) if own else "")
    return dict(zip(names, told, strict=False))
