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
SINGLE_ACCESS: Final = re.compile(
    r"atomic\w+|__cvta_generic_to_shared|__ld\w+|__st\w+|__pipeline_memcpy_async|__builtin_assume_aligned"
)
CASTS: Final = ("reinterpret_cast", "static_cast", "const_cast")
# Host functions that take a kernel and its bytes of dynamic memory, as these arguments.
_TAKES_BYTES: Final = {
    "cudaFuncSetAttribute": (0, 2),
    "cudaLaunchKernel": (0, 4),
    "cudaLaunchCooperativeKernel": (0, 4),
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": (1, 3),
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": (1, 3),
}
_MATRICES: Final = ("load_matrix_sync", "store_matrix_sync")
_STATEMENTS: Final = ("expression_statement", "comma_expression", "for_statement")
_STATEMENT_LIKE: Final = (
    *_STATEMENTS,
    "declaration",
    "condition_clause",
    "return_statement",
    "function_definition",
)
_COMPARISONS: Final = ("<", ">", "<=", ">=", "==", "!=")
_BUILT_IN: Final = ("threadIdx", "blockDim", "warpSize")
_MOST_POINTERS: Final = 64
MOST_DEPTH: Final = 12  # of values that are looked up in one another


class Edit(NamedTuple):
    """Bytes `start` to `end` of a file, replaced by text and by nodes of it, with the edits in these."""

    file: File
    start: int
    end: int
    parts: tuple[str | Node, ...]


class Pointer(Struct, frozen=True):
    """A pointer into the array, as an expression of the source has it; or the array."""

    element: int  # bytes of what it points to
    type: str = ""  # of that, as a cast writes it; empty for the array's own
    extents_left: int = 1  # subscripts from the pointer to an element; 1 for a pointer to elements
    # Its offset in elements of the array, as a sum: each a sign with a node or text
    terms: tuple[tuple[str, str | Node], ...] = ()
    # The node that is all of the offset, if one is: it may be replaced where it stands
    only_index: Node | None = None
    in_row: bool = False  # it came out of a subscript of an array of several extents: it stays within a row


@dataclass
class Walk:
    """The uses of one array in a source, and the edits that write another layout of it.

    A subclass says what becomes of each kind of use.
    """

    # `source, values`: declarations of names, and constants
    source: Source
    values: Values
    array: Variable  # its declaration
    element: int  # bytes of an element
    extents: tuple[int, ...]  # of an array of several dimensions; empty of a flat one
    move: Move  # the layout
    edits: list[Edit] = field(default_factory=list)  # of the uses seen so far
    remark: str = ""  # what is left to do by hand
    # The first place where arguments or data may decide a column of declared rows
    open_column: str | None = None
    _seen: set[tuple[str, int]] = field(default_factory=set)
    _fixed: dict[tuple[str, int], bool] = field(default_factory=dict)  # of variables, by declaration

    def run(self) -> list[Edit]:
        """The edits.

        Raises:
            ProblemFileError: a use of the array is not understood.
        """
        self.declare()
        if not self.array.is_shared or (self.array.extents and self.array.extents[0] is None):
            self._ask_for()
        start = Pointer(self.element, extents_left=max(len(self.array.extents), 1))
        for file, node in self.source.uses(self.array):
            broken = enclosing(node, "ERROR", *_STATEMENT_LIKE)
            if broken is not None and (broken.type == "ERROR" or broken.has_error):
                self.refuse(file, broken, "the parser does not understand the statement")
            self.follow(file, node, start)
        return self.edits

    def _ask_for(self) -> None:
        """Ask for more bytes of dynamic memory, in the launches of the source, else in a comment."""
        users = {enclosing(node, "function_definition") for _, node in self.source.uses(self.array)}
        functions = (function for function in (*users, self.array.function) if function is not None)
        names = self._with_callers({self.array.file.function_name(function) for function in functions})
        launched = False
        for file in self.source.files:
            for node in every(file.root):
                argument = self._asked_bytes(file, node, names)
                if argument is None:
                    continue
                launched |= node.type == "kernel_call_syntax"
                count = self.values.integer(file, argument)
                if count is None or self.move.extra or count % self.move.block:
                    bare = not argument.named_children
                    self.edit(file, argument, self.move.count(file.text(argument), 1, bare))
        count_text, end = self.move.count("B", 1, True), self.array.node.end_byte
        others = ", ".join(dict.fromkeys(self._other_uses(names)))
        if not launched:
            text = f"  /* launch with {count_text} bytes, where it was B bytes */"
            self.edits.append(Edit(self.array.file, end, end, (text,)))
        if not launched or others:
            who = "the launch" if not others else f"what launches it at {others}"
            self.remark = f"{who} must ask for {count_text} bytes where it asked for B bytes"

    def _with_callers(self, names: set[str]) -> set[str]:
        """Functions, and all that call one of them other than by a launch."""
        calls = [
            (_name_of(file, called), file.function_name(caller))
            for file in self.source.files
            for node in every(file.root)
            if node.type == "call_expression" and not _is_launch(node)
            if (called := node.child_by_field_name("function")) is not None
            if (caller := enclosing(node, "function_definition")) is not None
        ]
        while more := {caller for called, caller in calls if called in names} - names:
            names = names | more
        return names

    def _other_uses(self, names: set[str]) -> Iterator[str]:
        """Places where a kernel among these functions is used, but not in a launch that can be written."""
        kernels = {
            name
            for file in self.source.files
            for name in names
            if any(file.is_kernel(function) for function in file.functions.get(name, ()))
        }
        for file in self.source.files:
            for root in (file.root, *(macro.body for macro in file.macros)):
                for node in every(root):
                    if node.type != "identifier" or file.text(node) not in kernels:
                        continue
                    around = enclosing(node, "call_expression", "function_declarator")
                    called = around.child_by_field_name("function") if around is not None else None
                    name = _name_of(file, called) if called is not None else ""
                    written = name in _TAKES_BYTES or name.startswith("cudaFunc")
                    written |= around is not None and (called is None or called.end_byte >= node.end_byte)
                    if (root is not file.root or not written) and self.source.meant(file, node) is None:
                        yield file.place(node)

    def _asked_bytes(self, file: File, node: Node, names: set[str]) -> Node | None:
        """The argument that says how many bytes of dynamic memory a launch has, or may have.

        It is the third of `kernel<<<grid, block, bytes>>>` of a kernel in `names`, or one of a call in
        `_TAKES_BYTES`, such as `cudaFuncSetAttribute(kernel, ...MaxDynamicSharedMemorySize, bytes)`; None of
        any other node.
        """
        call = node.parent
        called = call.child_by_field_name("function") if call is not None else None
        if called is None or node.type not in ("kernel_call_syntax", "argument_list"):
            return None
        name, arguments = _name_of(file, called), _without_comments(node)
        if node.type == "kernel_call_syntax":
            return arguments[2] if len(arguments) > 2 and name in names else None
        kernel, size = _TAKES_BYTES.get(name, (0, len(arguments)))
        if size >= len(arguments):
            return None
        if kernel == 0 and size == 2 and not file.text(arguments[1]).endswith("MaxDynamicSharedMemorySize"):
            return None
        words = set(re.findall(r"\w+", file.text(arguments[kernel])))
        if not words.intersection(names.union(*(other.functions for other in self.source.files))):
            self.refuse(file, node, "these bytes may be the kernel's")
        return arguments[size] if words & names else None

    # What a subclass does with each use -----------------------------------------------------------

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

    # The uses -------------------------------------------------------------------------------------

    def follow(self, file: File, node: Node, pointer: Pointer) -> None:
        """Do what the expression around `node`, whose value is the pointer, asks for.

        Raises:
            ProblemFileError: the expression is not understood.
        """
        checkpoint()
        parent = node.parent
        assert parent is not None
        kind, role = parent.type, _role(parent, node)
        if kind == "parenthesized_expression":
            self.follow(file, parent, pointer)
        elif kind == "subscript_expression" and role == "argument":
            brackets = parent.child_by_field_name("indices")
            indices = brackets.named_children if brackets is not None else []
            if len(indices) != 1:
                self.refuse(file, parent, "an index of several parts")
            self._note_column(file, pointer, indices[0])
            self.subscript(file, parent, pointer, indices[0])
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

    def _note_column(self, file: File, pointer: Pointer, column: Node) -> None:
        """Remember the place of a column that may lie beyond its row in other launches, undefined in C++."""
        in_rows = len(self.extents) > 1 and pointer.extents_left == 1 and self.open_column is None
        if in_rows and not self.is_fixed(file, column):
            self.open_column = file.place(column)

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

    def _cast(self, file: File, node: Node, type_: Node | None, pointer: Pointer) -> None:
        """`node` is the pointer cast to `type_`."""
        text = file.text(type_).strip() if type_ is not None else ""
        name = re.sub(r"\b(const|volatile|__restrict__)\b", "", text).strip()
        if not name.endswith("*") or name.endswith("**"):
            self.refuse(file, node, f"it is cast to {text or 'another type'}")
        name = name.removesuffix("*").strip()
        size = 0 if name == "void" else self.values.size(file, name)
        if size is None:
            self.refuse(file, node, f"the size of {name} is not known")
        self.follow(file, node, replace(pointer, element=size, type=name, extents_left=1))

    def _binary(self, file: File, parent: Node, node: Node, pointer: Pointer) -> None:
        """`parent` is an operation of two operands, of which `node` is the pointer."""
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
        self._note_column(file, pointer, other)
        self.sum(file, parent, pointer, symbol, other)

    def _argument(self, file: File, arguments: Node, node: Node, pointer: Pointer) -> None:
        """`node`, the pointer, is one of the arguments of a call or cast."""
        call = arguments.parent
        called = call.child_by_field_name("function") if call is not None else None
        if call is None or called is None:
            self.refuse(file, arguments, "it is passed on")
        name = _name_of(file, called)
        if name in CASTS:
            type_ = next((n for n in every(called) if n.type == "type_descriptor"), None)
            self._cast(file, call, type_, pointer)
        elif name in _MATRICES:
            self.matrix(file, node, pointer, call)
        elif SINGLE_ACCESS.fullmatch(name):
            self.address(file, node, pointer)
        else:
            taken = self._parameter(name, arguments, node)
            if taken is None and self._is_reached_by_macro(name, arguments, node):
                self.address(file, node, pointer)
                return
            if taken is None:
                self.refuse(file, arguments, f"it is passed to {name}, which is not defined here once")
            if pointer.extents_left == 1 and self._only_reached(taken[1], 0):
                self.address(file, node, pointer)
            else:
                self.passed(file, node, pointer, *taken)

    def _is_reached_by_macro(self, name: str, arguments: Node, node: Node) -> bool:
        """Whether one macro has the name, and reaches one element at the argument `node`."""
        macros = [macro for file in self.source.files for macro in file.macros if macro.name == name]
        number = arguments.named_children.index(node)
        if len(macros) != 1 or number >= len(macros[0].parameters):
            return False
        file, body = macros[0].file, macros[0].body
        uses = named(file, body, macros[0].parameters[number])
        return all(self._reached_once(file, use, 0) for use in uses)

    def _parameter(self, name: str, arguments: Node, node: Node) -> tuple[Node, Variable] | None:
        """The function of the source that is called, and its parameter that takes the argument `node`."""
        found = self.source.function(name)
        if found is None:
            return None
        file, function = found
        parameters, values = file.parameters(function), _without_comments(arguments)
        if node not in values or len(values) > len(parameters):
            return None
        parameter = parameters[values.index(node)]
        return (function, parameter) if parameter is not None else None

    def _only_reached(self, variable: Variable, depth: int) -> bool:
        """Whether a function reaches one element at a pointer, itself or by an instruction."""
        if depth > 4:
            return False
        return all(self._reached_once(file, use, depth) for file, use in self.source.uses(variable))

    def _reached_once(self, file: File, node: Node, depth: int) -> bool:
        """Whether the expression around a pointer reaches one element at it, and nothing else.

        `depth` counts the functions and variables that the pointer has gone through.
        """
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
            taken = self._parameter(name, above, node)
            in_function = taken is not None and self._only_reached(taken[1], depth + 1)
            return bool(SINGLE_ACCESS.fullmatch(name)) or in_function
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
        """`parent` gives `node`, the pointer, to a variable: as its first value, or by an assignment."""
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
        """The uses of a variable that change it, or take its address."""
        for file, use in self.source.uses(variable):
            parent = use.parent
            if (
                parent is None
                or parent.type == "update_expression"
                or (parent.type == "assignment_expression" and _role(parent, use) == "left")
                or (parent.type == "pointer_expression" and file.text(parent.children[0]) == "&")
            ):
                yield use

    def is_fixed(self, file: File, node: Node, depth: int = 0) -> bool:
        """Whether an expression depends on nothing but the thread, the block's size and constants."""
        if depth > MOST_DEPTH:
            return False
        if self.values.integer(file, node) is not None:
            return True
        for one in every(node):
            if one.type in ("call_expression", "subscript_expression", "update_expression"):
                return False
            if one.type == "identifier" and not self._is_fixed_name(file, one, depth):
                return False
        return True

    def _is_fixed_name(self, file: File, name: Node, depth: int) -> bool:
        """Whether a name in an expression does: of a variable, if its value and all its changes do."""
        if file.text(name) in _BUILT_IN or self.values.integer(file, name) is not None:
            return True
        arguments = list(self.source.arguments(file, name))  # of the macro whose parameter it is
        variable = self.source.meant(file, name)
        if not arguments and variable is None:
            return self.source.is_of_template(file, name)
        if not arguments and variable is not None and variable.is_parameter:
            arguments = list(self.source.passed(variable))
            if not arguments or variable.pointer or self.changes(variable):
                return False
        if arguments:
            return all(self.is_fixed(where, value, depth + 1) for where, value in arguments)
        if variable is None or variable.pointer or variable.value is None:
            return False
        key = (variable.file.path, variable.identifier.start_byte)
        if key not in self._fixed:
            self._fixed[key] = True  # a loop's variable may depend on itself
            found = self.is_fixed(variable.file, variable.value, depth + 1)
            self._fixed[key] = found and self._is_changed_by_fixed_loop(variable, depth)
        return self._fixed[key]

    def _is_changed_by_fixed_loop(self, variable: Variable, depth: int) -> bool:
        """Whether a variable is never changed, or only by the loop that it belongs to, which is fixed."""
        loop = variable.node.parent
        if loop is None or loop.type != "for_statement":
            return not self.changes(variable)
        body = loop.child_by_field_name("body")
        if body is not None and any(use.start_byte >= body.start_byte for use in self.writes(variable)):
            return False
        parts = [loop.child_by_field_name(part) for part in ("condition", "update")]
        names = [n for part in parts if part is not None for n in every(part) if n.type == "identifier"]
        return all(self._is_fixed_name(variable.file, one, depth + 1) for one in names)

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
    own = sorted((edit for edit in edits if edit.file is file), key=lambda edit: (edit.start, -edit.end))
    return _render(file.data, 0, len(file.data), own)


def _render(data: bytes, start: int, end: int, edits: list[Edit]) -> bytes:
    """Bytes `start` to `end` with the edits within them done; edits are sorted, outer ones first."""
    text, done = b"", start
    inside = [edit for edit in edits if start <= edit.start and edit.end <= end]
    for k, edit in enumerate(inside):
        if edit.start < done:
            continue  # an inner one, done with the outer one
        text += data[done : edit.start]
        for part in edit.parts:
            if isinstance(part, str):
                text += part.encode()
            else:
                text += _render(data, part.start_byte, part.end_byte, inside[k + 1 :])
        done = edit.end
    return text + data[done:end]


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


def _without_comments(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


def _role(parent: Node, node: Node) -> str | None:
    """The field of `parent` that holds `node`, such as `left`."""
    for k, child in enumerate(parent.children):
        if child == node:
            return parent.field_name_for_child(k)
    return None


def _is_launch(call: Node) -> bool:
    return any(child.type == "kernel_call_syntax" for child in call.children)


def _name_of(file: File, called: Node) -> str:
    return file.text(called).split("<")[0].split("::")[-1].strip()
