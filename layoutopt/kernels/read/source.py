"""CUDA sources as trees: their variables, macros and functions, and which variable a name means.

tree-sitter parses a shadow of the text, of the same length, so that places in the tree are those of the file.
Bodies of macros are parsed where they stand.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from msgspec import Struct
from tree_sitter import Language, Node, Parser, Point, Range
from tree_sitter_cuda import language

from layoutopt.errors import ProblemFileError
from layoutopt.ground import json_data
from layoutopt.ground.escape import shown

MAX_BYTES: Final = 4 << 20
_SCOPES: Final = (
    *("compound_statement", "for_statement", "for_range_loop", "if_statement", "while_statement"),
    *("function_definition", "lambda_expression", "translation_unit"),
)
_NAMES: Final = ("identifier", "type_identifier")
STATEMENT_LIKE: Final = (
    *("expression_statement", "comma_expression", "for_statement", "declaration", "condition_clause"),
    *("return_statement", "function_definition"),
)
_LANGUAGE: Final = Language(language())
# What a body of a macro stands in.
_OPENING: Final = b"void f(){"
_INCLUDE: Final = re.compile(rb'^(?:\xef\xbb\xbf)?[ \t]*#[ \t]*include[ \t]*[<"]([^">\n]+)[">]', re.M)
# What the grammar does not know, and what it does in as many letters or fewer.
_SHADOWS: Final = (
    (re.compile(rb"__align__(?=\s*\()"), b"alignas"),
    (re.compile(rb"__forceinline__"), b"inline"),
    (re.compile(rb"\*[ \t]*\w*RESTRICT\w*(?=\s+\w)"), b"*"),
)


class Variable(Struct, frozen=True, eq=False):
    """A variable or parameter."""

    name: str  # of it
    file: "File"  # where it is declared
    node: Node  # the declaration
    identifier: Node  # the name
    extents: tuple[Node | None, ...]  # of an array, the outermost first; None for `[]`
    pointer: bool  # whether it is a pointer
    value: Node | None  # what it begins with
    scope: Node  # where its name means it

    @property
    def is_shared(self) -> bool:
        """Whether it lies in shared memory."""
        return any(self.file.text(child) == "__shared__" for child in self.node.children)

    @property
    def is_parameter(self) -> bool:
        """Whether it is one of a function."""
        return "parameter" in self.node.type

    def is_deduced(self, part: str = "") -> bool:
        """Whether a template decides its type, or its extents; of a `part` of the declaration alone."""
        node = self.node.child_by_field_name(part) if part else self.node
        return is_of_template(self.file, node, but=self.identifier)

    @property
    def is_reference(self) -> bool:
        """Whether it is another name of what it begins with."""
        above = enclosing(self.identifier, "reference_declarator", self.node.type)
        return above is not None and above.type == "reference_declarator"

    @property
    def function(self) -> Node | None:
        """The function that it belongs to."""
        return enclosing(self.identifier, "function_definition")

    @property
    def type(self) -> str:
        """The name of its type, without qualifiers, stars and extents."""
        node = self.node.child_by_field_name("type")
        return self.file.text(node) if node is not None else ""


class Macro(Struct, frozen=True, eq=False):
    """A macro with a body that is an expression or a statement; `value` says where in the file that is."""

    name: str
    file: "File"
    parameters: tuple[str, ...]
    node: Node
    body: Node
    value: tuple[int, int]


class File:
    """One file of a source."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.data = path, data
        self._shadow = data
        for known, other in _SHADOWS:
            self._shadow = known.sub(partial(_as_long, other), self._shadow)
        self.root = _parsed(self._shadow)

    def text(self, node: Node) -> str:
        """What stands there."""
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def place(self, node: Node) -> str:
        """The line, for people."""
        return f"{shown(os.path.basename(self.path))}:{node.start_point[0] + 1}"

    @cached_property
    def variables(self) -> dict[str, list[Variable]]:
        """All of them by name, in the order of their declarations."""
        found: dict[str, list[Variable]] = {}
        for node in every(self.root):
            for one in self._declared(node):
                found.setdefault(one.name, []).append(one)
        return found

    @cached_property
    def macros(self) -> list[Macro]:
        """Macros, bodies parsed."""
        found = []
        for node in every(self.root):
            value = node.child_by_field_name("value") if node.type.startswith("preproc_") else None
            name = node.child_by_field_name("name")
            if node.type not in ("preproc_def", "preproc_function_def") or value is None or name is None:
                continue
            told = node.child_by_field_name("parameters")
            names = tuple(self.text(one) for one in told.named_children) if told is not None else ()
            start, end = value.start_byte, value.end_byte
            body = re.sub(rb"\\\r?\n", lambda m: b" " * len(m[0]), self._shadow[start:end])
            parsed = _parsed_at(node, value, body + b";}")
            found.append(Macro(self.text(name), self, names, node, parsed, (start, end)))
        return found

    @cached_property
    def loose(self) -> list[Node]:
        """Names in statements that stand in no function, which the parser may take to end too early."""
        around = ("function_definition", "function_declarator")
        names = (one for one in every(self.root) if one.type in _NAMES)
        return [one for one in names if enclosing(one, *around) is None and enclosing(one, *STATEMENT_LIKE)]

    @cached_property
    def functions(self) -> dict[str, list[Node]]:
        """Definitions of functions by name."""
        found: dict[str, list[Node]] = {}
        for node in every(self.root):
            if node.type == "function_definition" and (name := self.function_name(node)):
                found.setdefault(name, []).append(node)
        return found

    def function_name(self, node: Node) -> str:
        """The name of a definition, without scopes."""
        inner = (n.child_by_field_name("declarator") for n in _below(node) if n.type == "function_declarator")
        name = next(inner, None)
        return self.text(name).split("::")[-1] if name is not None else ""

    def parameters(self, function: Node) -> list[Variable | None]:
        """The parameters of a definition, in order; None for one without a name."""
        listed = next((n for n in every(function) if n.type == "parameter_list"), None)
        if listed is None:
            return []
        told = [n for n in listed.named_children if n.type.endswith("parameter_declaration")]
        known = {one.node: one for some in self.variables.values() for one in some}
        return [known.get(node) for node in told]

    def is_kernel(self, function: Node) -> bool:
        """Whether a definition is one that the host launches."""
        return "__global__" in self.text(function).partition(f"{self.function_name(function)}(")[0]

    def _declared(self, node: Node) -> Iterator[Variable]:
        if node.type not in ("declaration", "parameter_declaration", "optional_parameter_declaration"):
            return
        if "parameter" in node.type:
            owner = enclosing(node, "function_definition", "lambda_expression", "template_declaration")
            if owner is None or owner.type == "template_declaration":
                return
            body = owner.child_by_field_name("body")
            if body is not None and node.start_byte >= body.start_byte:
                return
            scope: Node | None = owner
        else:
            scope = enclosing(node, *_SCOPES)
        if scope is None:
            return
        default = node.child_by_field_name("default_value")
        for declarator in node.children_by_field_name("declarator"):
            inner, value = declarator, default
            if declarator.type == "init_declarator":
                value = declarator.child_by_field_name("value")
                inner = declarator.child_by_field_name("declarator") or declarator
            parts = [inner, *_below(inner)]
            name, kinds = parts[-1], {one.type for one in parts}
            if name.type == "identifier" and "function_declarator" not in kinds:
                sizes = [n.child_by_field_name("size") for n in parts if n.type == "array_declarator"]
                pointer = "pointer_declarator" in kinds
                yield Variable(self.text(name), self, node, name, tuple(sizes[::-1]), pointer, value, scope)


class Source:
    """The files of a program: the one that is compiled, and headers of its author that it includes.

    Args:
        path: of the file that is compiled.
        include: folders of headers.
        macros: those that the preprocessor knows; where not given, those of the text that it has once.
    """

    def __init__(
        self, path: Path, include: Iterable[str] = (), macros: Mapping[str, str] | None = None
    ) -> None:
        self.macros = dict(macros or {})
        self.files: list[File] = []
        folders, todo, seen = [os.path.realpath(one) for one in include], [os.path.realpath(path)], set[str]()
        while todo:
            name = todo.pop(0)
            if name in seen or not os.path.isfile(name) or os.path.getsize(name) > MAX_BYTES:
                continue
            seen.add(name)
            self.files.append(File(name, json_data.read(Path(name), MAX_BYTES)))
            for found in _INCLUDE.findall(self.files[-1].data):
                included = found.decode("utf-8", "replace")
                todo += [
                    os.path.realpath(os.path.join(folder, included))
                    for folder in (os.path.dirname(name), *folders)
                ]
        if not self.files:
            raise ProblemFileError(
                "", f"expected a CUDA source of at most {MAX_BYTES:,} bytes: {shown(str(path))}"
            )

    def variables(self, name: str) -> Iterator[Variable]:
        """All variables of a name."""
        return (one for file in self.files for one in file.variables.get(name, ()))

    def meant(self, file: File, identifier: Node) -> Variable | None:
        """The variable that a name means there; None where it is none of this source."""
        return self._named_at(file, file.text(identifier), identifier.start_byte)

    def _named_at(self, file: File, name: str, place: int) -> Variable | None:
        """The variable that a name means at byte `place`."""
        within = [
            one
            for one in file.variables.get(name, ())
            if one.scope.start_byte <= place < one.scope.end_byte and one.identifier.start_byte <= place
        ]
        if within:
            return min(
                within, key=lambda v: (v.scope.end_byte - v.scope.start_byte, -v.identifier.start_byte)
            )
        return next((one for one in self.variables(name) if one.scope.type == "translation_unit"), None)

    def uses(self, variable: Variable) -> Iterator[tuple[File, Node]]:
        """Every place where a variable is named, but for its declaration; in bodies of macros, too.

        Raises:
            ProblemFileError: a macro that names it is also used where another variable has the name.
        """
        everywhere = variable.scope.type == "translation_unit"
        for file in self.files if everywhere else [variable.file]:
            for node in named(file, file.root if everywhere else variable.scope, variable.name):
                own = file is variable.file and node.start_byte == variable.identifier.start_byte
                if not own and not self._is_macro(node, variable.name) and self.meant(file, node) is variable:
                    yield file, node
        for file in self.files:
            for macro in file.macros:
                places = list(named(file, macro.body, variable.name))
                if places and variable.name not in macro.parameters and self._expands(macro, variable):
                    yield from ((file, node) for node in places)

    def _is_macro(self, node: Node, name: str) -> bool:
        """Whether a macro with parameters has the name, and is used there."""
        called = node.parent is not None and node.parent.child_by_field_name("function") == node
        return called and any(m.name == name and m.parameters for file in self.files for m in file.macros)

    def _expands(self, macro: Macro, variable: Variable) -> bool:
        inside, outside = False, None
        for file in self.files:
            for node in named(file, file.root, macro.name):
                here = self._named_at(file, variable.name, node.start_byte) is variable
                inside |= here
                if not here and enclosing(node, "preproc_function_def", "preproc_def") is None:
                    outside = node
        if inside and outside is not None:
            why = f"the macro {macro.name} ({macro.file.place(macro.node)}) is used for other arrays, too"
            raise ProblemFileError(variable.name, why)
        return inside

    def function(self, name: str) -> tuple[File, Node] | None:
        """The definition of a function, where there is exactly one."""
        found = [(file, node) for file in self.files for node in file.functions.get(name, ())]
        return found[0] if len(found) == 1 else None


def source_parameters(text: str, kernel: str) -> list[tuple[str, str]]:
    """The names of a kernel's parameters as a CUDA source declares them, with the types of pointers.

    Empty where it is not found, one has no name, or the source is too long.
    """
    file = File("", text.encode() if kernel in text and len(text) <= MAX_BYTES else b"")
    defined = next((one for one in file.functions.get(kernel, ()) if file.is_kernel(one)), None)
    found = []
    for one in file.parameters(defined) if defined is not None else ():
        if one is None:
            return []
        kind = file.data[one.node.start_byte : one.identifier.start_byte].decode("utf-8", "replace")
        found.append((one.name, " ".join(kind[: kind.rindex("*") + 1].split()) if one.pointer else ""))
    return found


def every(node: Node) -> Iterator[Node]:
    """A node and all below it, in the order of the text."""
    todo = [node]
    while todo:
        one = todo.pop()
        yield one
        todo.extend(reversed(one.children))


def is_of_template(file: File, node: Node | None, but: Node | None = None) -> bool:
    """Whether a parameter of a template around it is named in a node; the name `but` is none."""
    head = enclosing(node, "template_declaration") if node is not None else None
    listed = head.child_by_field_name("parameters") if head is not None else None
    return any(
        file.text(one) == file.text(other) and one != but
        for one in (every(node) if node is not None else ())
        for other in (every(listed) if listed is not None else ())
        if one.type == other.type and one.type in ("identifier", "type_identifier")
    )


def _below(node: Node) -> Iterator[Node]:
    """What is declared in a declarator, or a definition: the declarators in it, down to the name."""
    at: Node | None = node
    while at is not None:
        inside = (n for n in at.named_children if "declarator" in n.type or n.type == "identifier")
        at = at.child_by_field_name("declarator") or next(inside, None)
        if at is not None:
            yield at


def named(file: File, node: Node, name: str) -> Iterator[Node]:
    """The places below a node where a name stands, which the parser may take for that of a type."""
    return (one for one in every(node) if one.type in _NAMES and file.text(one) == name)


def name_of(file: File, called: Node) -> str:
    """The name of a function that is called, without scopes and arguments of a template."""
    return file.text(called).split("<")[0].split("::")[-1].strip()


def operands_of(
    node: Node, file: File, symbols: tuple[str, ...], sign: str = "+"
) -> Iterator[tuple[str, Node]]:
    """What such operators join, each with its sign (`-` behind a minus); of any other expression, itself."""
    while node.type == "parenthesized_expression" and len(node.named_children) == 1:
        node = node.named_children[0]
    symbol = file.text(node.children[1]) if node.type == "binary_expression" else ""
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if symbol not in symbols or left is None or right is None:
        yield sign, node
        return
    yield from operands_of(left, file, symbols, sign)
    yield from operands_of(right, file, symbols, sign if symbol != "-" else "-" if sign == "+" else "+")


def sum_of(node: Node, file: File) -> Iterator[tuple[str, Node]]:
    """The terms of a sum, with their signs; of any other expression, itself."""
    return operands_of(node, file, ("+", "-"))


def product_of(node: Node, file: File) -> Iterator[Node]:
    """The factors of a product; of any other expression, itself."""
    return (factor for _, factor in operands_of(node, file, ("*",)))


def enclosing(node: Node, *types: str) -> Node | None:
    """The nearest node of such a type around another one."""
    above = node.parent
    while above is not None and above.type not in types:
        above = above.parent
    return above


def reference_cast(node: Node) -> Node | None:
    """The type of a cast to a reference; `node` is the cast, or the arguments of one."""
    within = node.parent if node.type == "argument_list" else node
    if within is None or within.type not in ("cast_expression", "call_expression"):
        return None
    part = within.child_by_field_name("function" if within.type == "call_expression" else "type")
    types = (n for n in every(part) if n.type == "type_descriptor") if part is not None else iter(())
    found = next(types, None)
    return found if found is not None and found.text is not None and found.text.endswith(b"&") else None


def variable_of(file: File, value: Node) -> Variable | None:
    """The variable that begins with a value."""
    return next((v for some in file.variables.values() for v in some if v.value == value), None)


def is_statement(node: Node) -> bool:
    """Whether nothing takes the value of an expression."""
    above = node.parent
    while above is not None and above.type == "comma_expression":
        above = above.parent
    return above is not None and above.type in ("expression_statement", "for_statement")


def role_of(parent: Node, node: Node) -> str | None:
    """The field of `parent` that holds `node`, such as `left`."""
    for k, child in enumerate(parent.children):
        if child == node:
            return parent.field_name_for_child(k)
    return None


def _as_long(other: bytes, match: re.Match[bytes]) -> bytes:
    return other.ljust(len(match[0]))


def _parsed(data: bytes) -> Node:
    return Parser(_LANGUAGE).parse(data).root_node


def _parsed_at(define: Node, value: Node, body: bytes) -> Node:
    """A function whose head stands at `#define X`, and whose body at the macro's value; no more is read."""
    point, first, start = define.start_point, define.start_byte, value.start_byte
    end = first + len(_OPENING)
    opening = Range(point, Point(point.row, point.column + len(_OPENING)), first, end)
    after = Point(value.start_point.row + 1, 0)
    ranges = [opening, Range(value.start_point, after, start, start + len(body))]

    def read(at: int, _: Point) -> bytes:
        return _OPENING[max(at - first, 0) :] if at < end else body[max(at - start, 0) :]

    return Parser(_LANGUAGE, included_ranges=ranges).parse(read).root_node
