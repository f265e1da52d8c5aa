"""Where pointers into an array go in a source: every use of the array, or a refusal that names the line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn

from msgspec import Struct
from msgspec.structs import replace
from tree_sitter import Node

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import checkpoint
from layoutopt.kernels.read.source import File, Source, Variable, enclosing, every, named
from layoutopt.kernels.read.values import Values
from layoutopt.source.moves import Move

# Functions that reach as many bytes as their pointer's element has, at its address.
AT_ONCE: Final = re.compile(
    r"atomic\w+|__cvta_generic_to_shared|__ld\w+|__st\w+|__pipeline_memcpy_async|__builtin_assume_aligned"
)
CASTS: Final = ("reinterpret_cast", "static_cast", "const_cast")
_MATRICES: Final = ("load_matrix_sync", "store_matrix_sync")
_STATEMENTS: Final = ("expression_statement", "comma_expression", "for_statement")
_WHOLE: Final = (*_STATEMENTS, "declaration", "condition_clause", "return_statement", "function_definition")
_COMPARISONS: Final = ("<", ">", "<=", ">=", "==", "!=")
_MOST_POINTERS: Final = 64


class Edit(NamedTuple):
    """Text of a file between two bytes, replaced by words and by nodes with their own edits."""

    file: File
    start: int
    end: int
    parts: tuple[str | Node, ...]


class Pointer(Struct, frozen=True):
    """A pointer into the array, or the array.

    Attributes:
        element: bytes of what it points to.
        type: of that, as a cast writes it; empty for the array's own.
        rest: extents below it that are left to index; 1 for a pointer to elements.
        terms: its offset in elements of the array, as a sum: signs with nodes or words.
        at: the index that alone makes up the offset, which may be replaced where it stands.
        in_row: it came out of a subscript of an array of several extents: it stays within a row.
    """

    element: int
    type: str = ""
    rest: int = 1
    terms: tuple[tuple[str, str | Node], ...] = ()
    at: Node | None = None
    in_row: bool = False


@dataclass
class Walk:
    """One array under one layout.

    Attributes:
        source, values: where names have meanings.
        array: the array.
        element: bytes of one.
        extents: of an array of several; else empty.
        move: the layout.
        edits: what has been found so far.
        remark: what is left to do by hand.
    """

    source: Source
    values: Values
    array: Variable
    element: int
    extents: tuple[int, ...]
    move: Move
    edits: list[Edit] = field(default_factory=list)
    remark: str = ""
    _seen: set[tuple[str, int]] = field(default_factory=set)

    def run(self) -> list[Edit]:
        """The edits.

        Raises:
            ProblemFileError: a use of the array is not understood.
        """
        self.declare()
        if not self.array.is_shared or (self.array.extents and self.array.extents[0] is None):
            self._ask_for()
        start = Pointer(self.element, rest=max(len(self.array.extents), 1))
        for file, node in self.source.uses(self.array):
            broken = enclosing(node, "ERROR", *_WHOLE)
            if broken is not None and (broken.type == "ERROR" or broken.has_error):
                self.refuse(file, broken, "the parser does not understand the statement")
            self.follow(file, node, start)
        return self.edits

    def _ask_for(self) -> None:
        """More bytes of dynamic memory, in the launches of the source, else in a comment."""
        users = {enclosing(node, "function_definition") for _, node in self.source.uses(self.array)}
        names = {
            self.array.file.function_name(one) for one in (*users, self.array.function) if one is not None
        }
        launched = False
        for file in self.source.files:
            for node in every(file.root):
                given = self._asked_bytes(file, node, names)
                if given is None:
                    continue
                launched |= node.type == "kernel_call_syntax"
                count = self.values.integer(file, given)
                if count is None or self.move.extra or count % self.move.block:
                    self.edit(file, given, self.move.count(file.text(given), 1, not given.named_children))
        if not launched:
            end = self.array.node.end_byte
            asked = self.move.count("B", 1, True)
            text = f"  /* launch with {asked} bytes, where it was B bytes */"
            self.edits.append(Edit(self.array.file, end, end, (text,)))
            self.remark = f"the launch must ask for {asked} bytes where it asked for B bytes"

    def _asked_bytes(self, file: File, node: Node, names: set[str]) -> Node | None:
        """The bytes that a launch of these kernels asks for, or that an attribute lets it ask for."""
        call = node.parent
        called = call.child_by_field_name("function") if call is not None else None
        if called is None or node.type not in ("kernel_call_syntax", "argument_list"):
            return None
        name, given = _name_of(file, called), [one for one in node.named_children if one.type != "comment"]
        if len(given) < 3:
            return None
        if node.type == "kernel_call_syntax":
            return given[2] if name in names else None
        if name != "cudaFuncSetAttribute" or not file.text(given[1]).endswith("MaxDynamicSharedMemorySize"):
            return None
        meant = set(re.findall(r"\w+", file.text(given[0])))
        if not meant.intersection(names.union(*(one.functions for one in self.source.files))):
            self.refuse(file, node, "these bytes may be the kernel's")
        return given[2] if meant & names else None

    # What a rewriting does ------------------------------------------------------------------------

    def declare(self) -> None:
        """Change the declaration."""
        raise NotImplementedError

    def subscript(self, file: File, node: Node, pointer: Pointer, index: Node) -> None:
        """`node` is `pointer[index]`."""
        raise NotImplementedError

    def element_at(self, file: File, node: Node, pointer: Pointer) -> None:
        """`node` is `*pointer`."""
        raise NotImplementedError

    def sum(self, file: File, node: Node, pointer: Pointer, sign: str, other: Node) -> None:
        """`node` is `pointer + other`, or minus."""
        raise NotImplementedError

    def address(self, file: File, node: Node, pointer: Pointer) -> None:
        """An instruction takes the pointer at `node`, and reaches an element there."""
        raise NotImplementedError

    def kept(self, file: File, node: Node, pointer: Pointer, variable: Variable, first: bool) -> None:
        """A variable takes the pointer, perhaps as its first value."""
        raise NotImplementedError

    def passed(self, file: File, node: Node, pointer: Pointer, function: Node, parameter: Variable) -> None:
        """A function of the source takes the pointer, and does more than to reach one element there."""
        self.refuse(file, node, f"it is passed to {parameter.file.function_name(function)}")

    def matrix(self, file: File, node: Node, pointer: Pointer, call: Node) -> None:
        """`wmma` loads or stores a matrix there."""
        self.refuse(file, call, "wmma moves a matrix as rows of one pitch")

    # What the text says ---------------------------------------------------------------------------

    def follow(self, file: File, node: Node, pointer: Pointer) -> None:
        """What becomes of a pointer that stands somewhere."""
        checkpoint()
        parent = node.parent
        assert parent is not None
        kind, role = parent.type, _role(parent, node)
        if kind == "parenthesized_expression":
            self.follow(file, parent, pointer)
        elif kind == "subscript_expression" and role == "argument":
            indices = parent.child_by_field_name("indices")
            told = indices.named_children if indices is not None else []
            if len(told) != 1:
                self.refuse(file, parent, "an index of several parts")
            self.subscript(file, parent, pointer, told[0])
        elif kind == "pointer_expression" and file.text(parent.children[0]) == "*":
            self.element_at(file, parent, pointer)
        elif kind == "cast_expression" and role == "value":
            self._cast(file, parent, parent.child_by_field_name("type"), pointer)
        elif kind == "binary_expression":
            self._binary(file, parent, node, pointer)
        elif kind == "argument_list":
            self._argument(file, parent, node, pointer)
        elif kind == "gnu_asm_input_operand":
            self.address(file, node, pointer)
        elif (kind == "init_declarator" and role == "value") or (
            kind == "assignment_expression" and role == "right"
        ):
            self._kept(file, parent, node, pointer)
        elif kind == "assignment_expression" and file.text(parent.children[1]) in ("+=", "-="):
            self.step(file, parent, pointer)
        elif kind == "assignment_expression":
            pass  # the variable takes another value, which is followed where it comes from
        elif kind == "update_expression" and parent.parent is not None and parent.parent.type in _STATEMENTS:
            self.step(file, parent, pointer)
        elif kind == "sizeof_expression" and self.move.size(1 << 12) == 1 << 12:
            pass
        else:
            self.refuse(file, parent, f"it is used in a {kind.replace('_', ' ')}")

    def step(self, file: File, node: Node, pointer: Pointer) -> None:
        """`node` is `pointer += k`, or `++pointer`, as a statement."""

    def is_address(self, file: File, node: Node) -> Node | None:
        """The `&` before an element; None where there is none."""
        above = node.parent
        while above is not None and above.type == "parenthesized_expression":
            above = above.parent
        taken = above is not None and above.type == "pointer_expression"
        return above if taken and above is not None and file.text(above.children[0]) == "&" else None

    def ratio(self, file: File, node: Node, pointer: Pointer) -> int:
        """Elements of the array in what the pointer points to."""
        if pointer.element == 0 or pointer.element % self.element:
            self.refuse(file, node, "a pointer to parts of its elements is followed")
        if self.move.unit % pointer.element:
            self.refuse(file, node, f"vectors of {pointer.element} bytes would not stay whole")
        return pointer.element // self.element

    def _cast(self, file: File, node: Node, told: Node | None, pointer: Pointer) -> None:
        text = file.text(told).strip() if told is not None else ""
        name = re.sub(r"\b(const|volatile|__restrict__)\b", "", text).strip()
        if not name.endswith("*") or name.endswith("**"):
            self.refuse(file, node, f"it is cast to {text or 'another type'}")
        name = name.removesuffix("*").strip()
        size = 0 if name == "void" else self.values.size(file, name)
        if size is None:
            self.refuse(file, node, f"the size of {name} is not known")
        self.follow(file, node, replace(pointer, element=size, type=name, rest=1))

    def _binary(self, file: File, parent: Node, node: Node, pointer: Pointer) -> None:
        symbol = file.text(parent.children[1])
        first = parent.child_by_field_name("left") == node
        other = parent.child_by_field_name("right" if first else "left")
        if symbol in _COMPARISONS:
            return
        if other is None or symbol not in ("+", "-") or (symbol == "-" and not first):
            self.refuse(file, parent, "arithmetic with a pointer into the array")
        meant = self.source.meant(file, other) if other.type == "identifier" else None
        if meant is not None and (meant.pointer or meant.extents):
            self.refuse(file, parent, "the distance of two pointers")
        self.sum(file, parent, pointer, symbol, other)

    def _argument(self, file: File, parent: Node, node: Node, pointer: Pointer) -> None:
        call = parent.parent
        called = call.child_by_field_name("function") if call is not None else None
        if call is None or called is None:
            self.refuse(file, parent, "it is passed on")
        base = _name_of(file, called)
        if base in CASTS:
            told = next((n for n in every(called) if n.type == "type_descriptor"), None)
            self._cast(file, call, told, pointer)
        elif base in _MATRICES:
            self.matrix(file, node, pointer, call)
        elif AT_ONCE.fullmatch(base):
            self.address(file, node, pointer)
        else:
            found = self._parameter(base, parent, node)
            if found is None and self._is_reached_by_macro(base, parent, node):
                self.address(file, node, pointer)
                return
            if found is None:
                self.refuse(file, parent, f"it is passed to {base}, which is not defined here once")
            if pointer.rest == 1 and self._only_reached(found[1], 0):
                self.address(file, node, pointer)
            else:
                self.passed(file, node, pointer, *found)

    def _is_reached_by_macro(self, name: str, arguments: Node, node: Node) -> bool:
        """Whether one macro has the name, and reaches one element at what it is given there."""
        macros = [one for file in self.source.files for one in file.macros if one.name == name]
        place = arguments.named_children.index(node)
        if len(macros) != 1 or place >= len(macros[0].parameters):
            return False
        file, body = macros[0].file, macros[0].body
        return all(self._reached_once(file, one, 0) for one in named(file, body, macros[0].parameters[place]))

    def _parameter(self, name: str, arguments: Node, node: Node) -> tuple[Node, Variable] | None:
        """The function of the source that is called, and the parameter that takes an argument."""
        found = self.source.function(name)
        if found is None:
            return None
        told = found[0].parameters(found[1])
        given = [one for one in arguments.named_children if one.type != "comment"]
        parameter = told[given.index(node)] if node in given and len(given) <= len(told) else None
        return (found[1], parameter) if parameter is not None else None

    def _only_reached(self, variable: Variable, depth: int) -> bool:
        """Whether a function reaches one element at a pointer, itself or by an instruction."""
        if depth > 4:
            return False
        return all(self._reached_once(file, use, depth) for file, use in self.source.uses(variable))

    def _reached_once(self, file: File, node: Node, depth: int) -> bool:
        above = node.parent
        if above is None:
            return False
        if above.type in ("parenthesized_expression", "cast_expression"):
            return self._reached_once(file, above, depth)
        if above.type == "argument_list" and above.parent is not None:
            called = above.parent.child_by_field_name("function")
            name = _name_of(file, called) if called is not None else ""
            if name in CASTS or name == "__cvta_generic_to_shared":
                return self._reached_once(file, above.parent, depth)
            found = self._parameter(name, above, node)
            return bool(AT_ONCE.fullmatch(name)) or (
                found is not None and self._only_reached(found[1], depth + 1)
            )
        if above.type == "subscript_expression" and _role(above, node) == "argument":
            indices = above.child_by_field_name("indices")
            return indices is not None and file.text(indices) == "[0]"
        if above.type == "return_statement":  # an address for an instruction of the caller
            return "__cvta_generic_to_shared" in file.text(node)
        if above.type == "init_declarator":
            kept = variable_of(file, node)
            return kept is not None and self._only_reached(kept, depth + 1)
        reached = above.type == "pointer_expression" and file.text(above.children[0]) == "*"
        return reached or above.type == "gnu_asm_input_operand"

    def _kept(self, file: File, parent: Node, node: Node, pointer: Pointer) -> None:
        first = parent.type == "init_declarator"
        left = parent.child_by_field_name("left")
        variable = variable_of(file, node) if first else None
        if left is not None and left.type == "identifier":
            variable = self.source.meant(file, left)
        if variable is None:
            self.refuse(file, parent, "it is kept where it cannot be followed")
        if not variable.pointer and variable.type != "auto":
            self.refuse(file, parent, f"it is kept in {variable.name}, which is no pointer")
        if self.is_new(variable, file, parent):
            self.kept(file, parent, pointer, variable, first and not self.changes(variable))

    def is_new(self, variable: Variable, file: File, node: Node) -> bool:
        """Whether a pointer is met for the first time."""
        key = (variable.file.path, variable.identifier.start_byte)
        if len(self._seen) >= _MOST_POINTERS:
            self.refuse(file, node, "too many pointers into it")
        new = key not in self._seen
        self._seen.add(key)
        return new

    def changes(self, variable: Variable) -> bool:
        """Whether a variable takes other values than its first."""
        return any(True for _ in self.writes(variable))

    def writes(self, variable: Variable) -> Iterator[Node]:
        """Where it does, or may by its address."""
        for file, use in self.source.uses(variable):
            parent = use.parent
            if (
                parent is None
                or parent.type == "update_expression"
                or (parent.type == "assignment_expression" and _role(parent, use) == "left")
                or (parent.type == "pointer_expression" and file.text(parent.children[0]) == "&")
            ):
                yield use

    def edit(self, file: File, node: Node, *parts: str | Node) -> None:
        """Replace a node."""
        new = Edit(file, node.start_byte, node.end_byte, parts)
        if new not in self.edits:
            self.edits.append(new)

    def by_hand(self) -> str:
        """What to write where this cannot."""
        raise NotImplementedError

    def refuse(self, file: File, node: Node, why: str) -> NoReturn:
        """A use is not understood.

        Raises:
            ProblemFileError: always, with the line.
        """
        text = " ".join(file.text(node).split())
        text = text if len(text) <= 60 else f"{text[:57]}..."
        raise ProblemFileError(
            file.place(node), f"{self.array.name}: {why}: {text}; by hand: {self.by_hand()}"
        )


def variable_of(file: File, value: Node) -> Variable | None:
    """The variable that begins with a value."""
    return next((v for some in file.variables.values() for v in some if v.value == value), None)


def rendered(file: File, edits: list[Edit]) -> bytes:
    """The file with its edits done, inner ones within outer ones."""
    mine = sorted((e for e in edits if e.file is file), key=lambda e: (e.start, -e.end))
    return _render(file.data, 0, len(file.data), mine)


def _render(data: bytes, start: int, end: int, edits: list[Edit]) -> bytes:
    found, at = b"", start
    inside = [e for e in edits if start <= e.start and e.end <= end]
    for k, edit in enumerate(inside):
        if edit.start < at:
            continue
        found += data[at : edit.start]
        for part in edit.parts:
            if isinstance(part, str):
                found += part.encode()
            else:
                found += _render(data, part.start_byte, part.end_byte, inside[k + 1 :])
        at = edit.end
    return found + data[at:end]


def sum_of(node: Node, file: File, sign: str = "+") -> Iterator[tuple[str, Node]]:
    """The terms of a sum, with their signs."""
    if node.type == "parenthesized_expression" and len(node.named_children) == 1:
        yield from sum_of(node.named_children[0], file, sign)
    elif node.type == "binary_expression" and file.text(node.children[1]) in ("+", "-"):
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        symbol = file.text(node.children[1])
        if left is not None and right is not None:
            yield from sum_of(left, file, sign)
            yield from sum_of(right, file, sign if symbol == "+" else "-" if sign == "+" else "+")
    else:
        yield sign, node


def product_of(node: Node, file: File) -> Iterator[Node]:
    """The factors of a product."""
    if node.type == "parenthesized_expression" and len(node.named_children) == 1:
        yield from product_of(node.named_children[0], file)
    elif node.type == "binary_expression" and file.text(node.children[1]) == "*":
        for part in (node.child_by_field_name("left"), node.child_by_field_name("right")):
            if part is not None:
                yield from product_of(part, file)
    else:
        yield node


def _role(parent: Node, node: Node) -> str | None:
    """The field of a node that another one is."""
    for k, child in enumerate(parent.children):
        if child == node:
            return parent.field_name_for_child(k)
    return None


def _name_of(file: File, called: Node) -> str:
    return file.text(called).split("<")[0].split("::")[-1].strip()
