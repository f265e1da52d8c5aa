"""Sources as the preprocessor leaves them: no macro hides there where an array is reached.

A layout may be written only if the expansion of what was written says the same as the layout written into the
expansion.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tree_sitter import Node

from layoutopt.errors import ProblemFileError
from layoutopt.kernels.read.source import File
from layoutopt.kernels.read.values import Values

_MARKER: Final = re.compile(r'# (\d+) "((?:[^"\\]|\\.)*)"')
_KEYWORDS: Final = re.compile(r"__attribute__\(\((shared|global|device|host|constant|managed)\)\)")
_UNSAID: Final = ("comment", "(", ")", "static_assert_declaration")
_DEFINITIONS: Final = ("declaration", "function_definition")
_MOST_DEPTH: Final = 100  # of sums and products in one another
_NUMBERS: Final = re.compile(r"(?:\d[uUlL]*|[\s()*/%+<>|&^~-])+")


def texts(printed: str, folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What a preprocessor printed of files in a folder, by path: each text in the line where it stood."""
    lines: dict[str, list[str]] = {name: [] for name in files}
    name, at = "", 0
    for line in _KEYWORDS.sub(r"__\1__", printed.replace(folder, "")).split("\n"):
        if (marker := _MARKER.match(line)) is not None:
            name, at = os.path.normpath(marker[2]), int(marker[1])
            continue
        if line and (into := lines.get(name)) is not None:
            into += [""] * (at - len(into))
            into[at - 1] += f" {line}"
        at += 1
    return {name: "\n".join(told).encode() for name, told in lines.items()}


class Written(NamedTuple):
    """A layout written into a source."""

    values: Values  # of the source
    name: str  # of the array
    width: int  # elements of a row, whose number is the function's second argument; 0 where it is the first

    def check(self, path: str, wanted: bytes, got: bytes) -> None:
        """Refuse two texts of a file that say different things.

        Brackets, sums and names of the array's function may be others, and extents larger: whether the array
        is large enough is seen in the machine code.

        Raises:
            ProblemFileError: they differ, with the line of the first difference.
        """
        spare = re.compile(rb"\b(%s_at)_+(?!\w)" % self.name.encode())
        first, second = (File(path, spare.sub(rb"\1", text)) for text in (wanted, got))
        for (node, told), (_, other) in zip(self._shape(first), self._shape(second), strict=False):
            is_larger = isinstance(told, int) and isinstance(other, int) and other > told
            if told != other and not (is_larger and node.parent and node.parent.type == "array_declarator"):
                raise ProblemFileError(first.place(node), f"{self.name}: a macro hides what is written here")

    def _shape(self, file: File, root: Node | None = None) -> Iterator[tuple[Node, str | int]]:
        """A tree as a line: kinds of nodes, what leaves and numbers are, and where the nodes end."""
        own = re.compile(rf"(const auto|__device__\b[^{{}};=]*) {self.name}_at\b")
        todo: list[tuple[Node, str]] = [(root or file.root, "")]
        while todo:
            node, end = todo.pop()
            called, value = node.child_by_field_name("function"), self._number(file, node)
            if end or value is not None or not node.children:
                yield node, end or (value if value is not None else file.text(node))
            elif called is not None and file.text(called) == f"{self.name}_at":
                listed = node.child_by_field_name("arguments")
                given = [self._value(file, one) for one in (listed.named_children if listed else ())]
                is_row = self.width and len(given) == 2
                yield node, f"{given[0] + self.width * given[1] if is_row else given}".strip("[]")
            elif node.type not in _DEFINITIONS or not own.match(file.text(node)):
                if node.type != "parenthesized_expression":
                    yield node, node.type
                    todo.append((node, "end"))
                todo += [(one, "") for one in reversed(node.children) if one.type not in _UNSAID]

    def _number(self, file: File, node: Node) -> int | None:
        is_number = node.type.endswith(("_literal", "_expression")) and _NUMBERS.fullmatch(file.text(node))
        return self.values.integer(file, node) if is_number else None

    def _value(self, file: File, node: Node, depth: int = 0) -> int:
        """A number that equal sums and products have: of all else in them, numbers out of a hash."""
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        symbol, value = file.text(node.children[1]) if left is not None else "", self._number(file, node)
        if value is not None:
            return value
        if node.type == "parenthesized_expression" and len(node.named_children) == 1 and depth < _MOST_DEPTH:
            return self._value(file, node.named_children[0], depth + 1)
        if symbol in ("+", "-", "*") and left is not None and right is not None and depth < _MOST_DEPTH:
            a, b = self._value(file, left, depth + 1), self._value(file, right, depth + 1)
            return a * b if symbol == "*" else a + b if symbol == "+" else a - b
        bits = self._number(file, right) if symbol == "<<" and right is not None else None
        if left is not None and bits is not None and 0 <= bits < 32:
            return self._value(file, left, depth + 1) << bits
        told = " ".join(f"{told}" for _, told in self._shape(file, node))
        return int.from_bytes(hashlib.sha256(told.encode()).digest())
