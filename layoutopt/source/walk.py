"""Where pointers into an array go in a source: every use of the array, or a refusal that names the line."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace
from tree_sitter import Node

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import checkpoint
from layoutopt.kernels.read.source import (
    STATEMENT_LIKE,
    File,
    Source,
    Variable,
    enclosing,
    every,
    is_of_template,
    is_statement,
    name_of,
    named,
    reference_cast,
    role_of,
    variable_of,
)
from layoutopt.kernels.read.values import Values
from layoutopt.source.bounds import Bounds, is_given
from layoutopt.source.edits import Edit
from layoutopt.source.host_launches import arguments_in, functions_that_reach, launched_bytes, other_uses
from layoutopt.source.moves import Move

# Functions that reach as many bytes as their pointer's element has, at its address.
SINGLE_ACCESS: Final = re.compile(
    r"atomic\w+|__cvta_generic_to_shared|__ld\w+|__st\w+|__pipeline_memcpy_async"
)
CASTS: Final = ("reinterpret_cast", "static_cast", "const_cast")
_MATRICES: Final = ("load_matrix_sync", "store_matrix_sync")
_OPERANDS: Final = ("gnu_asm_output_operand", "gnu_asm_input_operand")
_COMPARISONS: Final = ("<", ">", "<=", ">=", "==", "!=")
# In PTX, how many values of how many bits an instruction reaches.
_ACCESSED: Final = re.compile(r"(?:\.v([248]))?\.[bfsu](8|16|32|64|128)\b")
_WIDEST: Final = 16  # bytes of a vector
_MOST_POINTERS: Final = 64
_MOST_DEPTH: Final = 4  # of functions and references that a pointer goes through


class Pointer(Struct, frozen=True):
    """A pointer into the array, as an expression of the source has it; or the array."""

    element: int  # bytes of what it points to
    type: str = ""  # of that, as a cast writes it; empty for the array's own
    extents_left: int = 1  # subscripts from the pointer to an element; 1 for a pointer to elements
    # Its offset in elements of the array, as a sum: each a sign with a node or text
    terms: tuple[tuple[str, str | Node], ...] = ()
    # The node that is all of the offset, if one is: it may be replaced where it stands
    only_index: Node | None = None
    is_first: bool = True  # no row but the first was chosen: the array may be meant as one line
    in_row: bool = False  # it came out of a subscript of an array of several extents: it stays within a row
    columns: int | None = 0  # the most bytes from the start of a declared row; None where that is not known


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
    _seen: list[Variable] = field(default_factory=list)  # variables that point into it
    _taken: list[Node] = field(default_factory=list)  # what they were given
    _casts: set[str] = field(default_factory=set)  # types that pointers into it are cast to
    _is_open: bool = False  # whether a template decides one of them

    def __post_init__(self) -> None:
        self.bounds = Bounds(self.source, self.values)

    def run(self) -> list[Edit]:
        """The edits.

        Raises:
            ProblemFileError: a use of the array is not understood.
        """
        self.declare()
        if not self.array.is_shared or (self.array.extents and self.array.extents[0] is None):
            self._ask_for()
        start = Pointer(self.element, extents_left=max(len(self.array.extents), 1))
        for file, node in self.uses(self.array):
            if self.array.pointer and is_given(node):
                self.refuse(file, node.parent or node, "the pointer to it takes another value")
            broken = enclosing(node, "ERROR", *STATEMENT_LIKE)
            if broken is not None and (broken.type == "ERROR" or broken.has_error):
                self.refuse(file, broken, "the parser does not understand the statement")
            self.follow(file, node, start)
        return self.edits

    def uses(self, variable: Variable) -> Iterator[tuple[File, Node]]:
        """Every place where a variable is named.

        Raises:
            ProblemFileError: it is named behind a brace that a macro opens.
        """
        file = variable.file
        for node in file.loose if variable.function is not None else ():
            if file.text(node) == variable.name and self.source.meant(file, node) is None:
                self.refuse(file, node.parent or node, "to the parser, the function ends before it")
        return self.source.uses(variable)

    def _ask_for(self) -> None:
        """Ask for more bytes of dynamic memory, in the launches of the source, else in a comment."""
        names, launched = functions_that_reach(self.source, self.array), False
        for file, argument in launched_bytes(self.source, names):
            count, launched = self.values.integer(file, argument), True
            if count is None or self.move.extra or count % self.move.block:
                text = self.move.bytes_of(file.text(argument), not argument.named_children)
                self.edit(file, argument, text)
        count_text, end = self.move.bytes_of("B", True), self.array.node.end_byte
        others = ", ".join(dict.fromkeys(other_uses(self.source, names)))
        if not launched:
            text = f"  /* launch with {count_text} bytes, where it was B bytes */"
            self.edits.append(Edit(self.array.file, end, end, (text,)))
        if not launched or others:
            who = "the launch" if not others else f"what launches it, or asks for its bytes, at {others}"
            self.remark = f"{who} must ask for {count_text} bytes where it asked for B bytes"

    # What a subclass does with each use -----------------------------------------------------------

    def declare(self) -> None:
        """Change the declaration."""
        raise NotImplementedError

    def subscript(self, file: File, node: Node, pointer: Pointer, index: Node) -> None:
        """`node` is `pointer[index]`, an element."""
        raise NotImplementedError

    def element_at(self, file: File, node: Node, pointer: Pointer) -> None:
        """`node` is `*pointer`."""
        raise NotImplementedError

    def sum(self, file: File, node: Node, pointer: Pointer, sign: str, other: Node) -> None:
        """`node` is `pointer + other`, or minus."""
        self.refuse(file, node, "a pointer into rows is used")

    def address(self, file: File, node: Node, pointer: Pointer) -> None:
        """An instruction takes the pointer at `node`, and reaches the element that lies there now."""

    def kept(self, file: File, node: Node, pointer: Pointer, variable: Variable, first: bool) -> None:
        """A variable takes the pointer, perhaps as its first value."""
        self.refuse(file, node, "a pointer into rows is used")

    def passed(self, file: File, node: Node, pointer: Pointer, function: Node, parameter: Variable) -> None:
        """A function of the source takes the pointer, and does more than to reach one element there."""
        name = parameter.file.function_name(function)
        self.refuse(file, node, f"it is passed to {name}, which does more than reach one element at it")

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
        kind, role = parent.type, role_of(parent, node)
        if kind == "parenthesized_expression":
            self.follow(file, parent, pointer)
        elif kind == "subscript_expression" and role == "argument":
            brackets = parent.child_by_field_name("indices")
            indices = brackets.named_children if brackets is not None else []
            if len(indices) != 1:
                self.refuse(file, parent, "an index of several parts")
            if pointer.extents_left > 1:
                self._row(file, parent, pointer, indices[0])
            else:
                self.subscript(file, parent, self._along_row(file, pointer, "+", indices[0]), indices[0])
        elif kind == "pointer_expression" and file.text(parent.children[0]) == "*":
            if pointer.extents_left > 1:
                self._row(file, parent, pointer, "0")
            else:
                self.element_at(file, parent, pointer)
        elif kind == "cast_expression" and role == "value":
            self._cast(file, parent, parent.child_by_field_name("type"), pointer)
        elif kind == "binary_expression":
            self._binary(file, parent, node, pointer)
        elif kind == "argument_list":
            self._argument(file, parent, node, pointer)
        elif kind == "gnu_asm_input_operand" and self._reached_once(file, node, 0):
            self.address(file, node, pointer)
        elif kind == "init_declarator" and role == "value":
            self._kept(file, parent, node, pointer)
        elif kind in ("assignment_expression", "update_expression") and not is_statement(parent):
            self.refuse(file, parent, "the value of an assignment is used")
        elif kind == "assignment_expression" and role == "right":
            self._kept(file, parent, node, pointer)
        elif kind == "assignment_expression" and file.text(parent.children[1]) in ("+=", "-="):
            self.step(file, parent, pointer)
        elif kind == "assignment_expression":
            pass  # the variable takes another value, which is followed where it comes from
        elif kind == "update_expression":
            self.step(file, parent, pointer)
        elif kind == "sizeof_expression":
            if not self._keeps_size():
                self.refuse(file, parent, "its size, or that of a row, is used")
        else:
            if node.type == "type_identifier":  # to the parser, in a declaration such as `View v(s);`
                parent = enclosing(node, "declaration", "expression_statement") or parent
            self.refuse(file, parent, "what is done with it is not followed")

    def _row(self, file: File, node: Node, pointer: Pointer, index: str | Node) -> None:
        """`node` is `pointer[index]`, which is no element but a row, or a plane."""
        terms = (*pointer.terms, ("+", index))
        is_first = pointer.is_first and (index if isinstance(index, str) else file.text(index)) == "0"
        row = replace(pointer, terms=terms, is_first=is_first, in_row=True)
        self.follow(file, node, replace(row, extents_left=pointer.extents_left - 1))

    def _keeps_size(self) -> bool:
        """Whether the array, and its rows, take as many bytes as before; a pointer to it has none."""
        last = self.array.extents[-1] if self.array.extents else None
        if len(self.array.extents) > 1:
            return not self.move.rows and not self.move.extra
        size = (self.values.integer(self.array.file, last) or 0) * self.element
        return size > 0 and not self.move.rows and self.move.size(size) == size

    def step(self, file: File, node: Node, pointer: Pointer) -> None:
        """`node` is `pointer += k`, or `++pointer`, as a statement."""

    def _along_row(self, file: File, pointer: Pointer, sign: str, column: Node) -> Pointer:
        """A pointer in declared rows, moved by a column; any other pointer as it is.

        Columns lie within their row, as C++ leaves others undefined. The first place is remembered where one
        may lie beyond it; in the first row, from which rows may be used as one line, that is refused.
        """
        if len(self.extents) <= 1 or pointer.extents_left > 1:
            return pointer
        most, width = self.bounds.most(file, column) if sign == "+" else None, self.extents[-1] * self.element
        is_known = most is not None and pointer.columns is not None
        columns = (pointer.columns or 0) + (most or 0) * pointer.element if is_known else None
        if columns is None or columns >= width:
            is_far = (self.values.integer(file, column) or 0) * pointer.element >= width
            # What macros make of an unknown one is seen where they are expanded.
            is_seen = columns is not None or not any(one.macros for one in self.source.files)
            if is_far or (pointer.is_first and is_seen):
                self.refuse(file, column, "it may lie beyond its row")
            self.open_column = self.open_column or file.place(column)
        return replace(pointer, columns=columns)

    def check_whole(self, file: File, node: Node, size: int) -> None:
        """Refuse vectors of so many bytes that the layout would tear or misalign."""
        move = self.move
        unit = move.unit if move.terms or move.rows else math.gcd(move.row, move.extra)
        if size > self.element and self.array.is_deduced("type"):
            self.refuse(file, node, f"vectors of {size} bytes may have other elements in another instance")
        if size > self.element and (unit % size or size & (size - 1)):  # others may begin anywhere
            self.refuse(
                file, node, f"vectors of {size} bytes would not stay whole", "reach its elements one by one"
            )

    def is_address(self, file: File, node: Node, depth: int = 0) -> Node | None:
        """The `&` before an element; None where there is none.

        Raises:
            ProblemFileError: a reference to it may be taken for a pointer to more than the element.
        """
        above = node.parent
        while above is not None and above.type == "parenthesized_expression":
            above = above.parent
        if above is not None and above.type == "pointer_expression" and file.text(above.children[0]) == "&":
            return above
        self._check_reference(file, node, depth)
        return None

    def _check_reference(self, file: File, node: Node, depth: int) -> None:
        """Refuse an element of which the address is taken by another name, for more than that element."""
        above = node.parent
        assert above is not None
        kind, role = above.type, role_of(above, node)
        function = enclosing(node, "function_definition", "lambda_expression")
        # The value of the expression around it is that element again.
        is_element = kind in ("parenthesized_expression", "comma_expression", "field_expression")
        is_element |= kind == "update_expression" or (kind == "assignment_expression" and role == "left")
        is_element |= kind == "conditional_expression" and role != "condition"
        if above.type == "pointer_expression" and file.text(above.children[0]) == "&":
            if not self._reached_once(file, above, depth):
                self.refuse(file, above, "the address of an element is taken by another name")
        elif above.type == "return_statement" and function is not None:
            declared = function.child_by_field_name("declarator")
            said = [n for n in every(declared) if n.type == "trailing_return_type"] if declared else []
            is_reference = declared is not None and declared.type == "reference_declarator"
            if is_reference or any("&" in file.text(n) for n in said):
                self.refuse(file, above, "a reference to an element is returned")
        elif (type_ := reference_cast(above)) is not None:
            size = self.values.size(file, type_.child_by_field_name("type"))
            if size is None:
                self.refuse(file, above, "the size of what it is cast to is not known")
            self.check_whole(file, above, size)
            cast = above if kind == "cast_expression" else above.parent or above
            self._check_reference(file, cast, depth)
        elif is_element:
            self._check_reference(file, above, depth)
        for where, use in self._aliases(file, node) if depth <= _MOST_DEPTH else ():
            self._check_reference(where, use, depth + 1)

    def _aliases(self, file: File, node: Node) -> Iterator[tuple[File, Node]]:
        """The uses of references that are bound to what an expression names, and of parameters of macros."""
        above = node.parent
        assert above is not None
        kept = variable_of(file, node) if above.type == "init_declarator" else None
        if kept is not None and kept.is_reference:
            yield from self.source.uses(kept)
        called = above.parent.child_by_field_name("function") if above.parent is not None else None
        if above.type != "argument_list" or called is None or node not in arguments_in(above):
            return
        name, place = name_of(file, called), arguments_in(above).index(node)
        for other in self.source.files:
            for macro in other.macros:
                if macro.name == name and place < len(macro.parameters):
                    yield from ((other, use) for use in named(other, macro.body, macro.parameters[place]))
            values = [v.value for v in other.variables.get(name, ()) if v.value is not None]
            lambdas = [value for value in values if value.type == "lambda_expression"]
            for function in (*other.functions.get(name, ()), *lambdas):
                parameters = other.parameters(function)
                one = parameters[place] if place < len(parameters) else None
                if one is not None and one.is_reference:
                    yield from self.source.uses(one)

    def ratio(self, file: File, node: Node, pointer: Pointer) -> int:
        """Elements of the array in what the pointer points to."""
        if pointer.element == 0 or pointer.element % self.element:
            self.refuse(file, node, "a pointer to parts of its elements is followed")
        self.check_whole(file, node, pointer.element)
        return pointer.element // self.element

    def _cast(self, file: File, node: Node, type_: Node | None, pointer: Pointer) -> None:
        """`node` is the pointer cast to `type_`."""
        name, size = self.values.pointee(file, type_)
        if type_ is None or not name or name.endswith("*"):
            self.refuse(file, node, f"it is cast to {file.text(type_) if type_ else 'another type'}")
        if size is None:
            self.refuse(file, node, f"the size of {name} is not known")
        self.check_whole(file, node, size)
        if name not in ("void", self.array.type):
            self._casts.add(name)
            self._is_open = self._is_open or is_of_template(file, type_)
            if self.array.is_deduced("type") or (self._is_open and len(self._casts) > 1):
                self.refuse(file, node, f"it is cast to {name}: a template decides where elements are")
        self.follow(file, node, replace(pointer, element=size, type=name, extents_left=1))

    def _binary(self, file: File, parent: Node, node: Node, pointer: Pointer) -> None:
        """`parent` is an operation of two operands, of which `node` is the pointer."""
        symbol = file.text(parent.children[1])
        first = parent.child_by_field_name("left") == node
        other = parent.child_by_field_name("right" if first else "left")
        if symbol in _COMPARISONS and not (self.move.rows and symbol in _COMPARISONS[:4]):
            return
        if other is None or symbol not in ("+", "-") or (symbol == "-" and not first):
            self.refuse(file, parent, "arithmetic with a pointer into the array")
        meant = self.source.meant(file, other) if other.type == "identifier" else None
        if meant is not None and (meant.pointer or meant.extents):
            self.refuse(file, parent, "the distance of two pointers")
        if pointer.extents_left > 1:
            pointer = replace(pointer, is_first=False)
        self.sum(file, parent, self._along_row(file, pointer, symbol, other), symbol, other)

    def _argument(self, file: File, arguments: Node, node: Node, pointer: Pointer) -> None:
        """`node`, the pointer, is one of the arguments of a call or cast."""
        call = arguments.parent
        called = call.child_by_field_name("function") if call is not None else None
        if call is None or called is None:
            self.refuse(file, arguments, "it is passed on")
        name = name_of(file, called)
        if name in CASTS:
            type_ = next((n for n in every(called) if n.type == "type_descriptor"), None)
            self._cast(file, call, type_, pointer)
        elif name in _MATRICES:
            self.matrix(file, node, pointer, call)
        elif name == "__builtin_assume_aligned":
            self.follow(file, call, pointer)
        elif SINGLE_ACCESS.fullmatch(name):
            if not self._reached_once(file, node, 0):
                self.refuse(file, call.parent or call, "what is reached from its address is not known")
            self.address(file, node, pointer)
        else:
            taken = self.bounds.parameter(file, call, node)
            if taken is None and self._is_reached_by_macro(name, arguments, node):
                self.address(file, node, pointer)
                return
            if taken is None:
                self.refuse(file, call, f"it is passed to {name}, {self._why_not_into(file, called)}")
            if taken[1].is_reference and (pointer.extents_left == 1 or taken[1].is_deduced()):
                self.refuse(file, arguments, f"{name} takes it by reference")
            if pointer.extents_left == 1 and self._only_reached(taken[1], 0):
                if not self._reached_once(file, node, 0):
                    self.refuse(file, call.parent or call, "what is reached from its address is not known")
                self.address(file, node, pointer)
            else:
                self.passed(file, node, pointer, *taken)

    def _why_not_into(self, file: File, called: Node) -> str:
        """Why a pointer is not followed into what is called."""
        name = name_of(file, called)
        macros = sum(macro.name == name for one in self.source.files for macro in one.macros)
        count = macros + sum(len(one.functions.get(name, ())) for one in self.source.files)
        if count == 0 and self.source.meant(file, called) is None:
            return "which is not defined here"
        return f"which is defined {count} times here" if count > 1 else "which is not followed"

    def _is_reached_by_macro(self, name: str, arguments: Node, node: Node) -> bool:
        """Whether one macro has the name, and reaches one element at the argument `node`."""
        macros = [macro for file in self.source.files for macro in file.macros if macro.name == name]
        number = arguments.named_children.index(node)
        if len(macros) != 1 or number >= len(macros[0].parameters):
            return False
        file, body = macros[0].file, macros[0].body
        uses = named(file, body, macros[0].parameters[number])
        return all(self._reached_once(file, use, 0) for use in uses)

    def _only_reached(self, variable: Variable, depth: int) -> bool:
        """Whether a function reaches one element at a pointer, itself or by an instruction."""
        if depth > _MOST_DEPTH:
            return False
        return all(self._reached_once(file, use, depth) for file, use in self.source.uses(variable))

    def _reached_once(self, file: File, node: Node, depth: int) -> bool:
        """Whether the expression around a pointer reaches one element at it, and nothing else.

        `depth` counts the functions and variables that the pointer has gone through.

        Raises:
            ProblemFileError: it reaches a vector that would not stay whole.
        """
        above = node.parent
        if above is None:
            return False
        if above.type == "parenthesized_expression":
            return self._reached_once(file, above, depth)
        if above.type == "cast_expression":
            return self._is_whole_cast(file, above) and self._reached_once(file, above, depth)
        if above.type == "argument_list" and above.parent is not None:
            call = above.parent
            called = call.child_by_field_name("function")
            name = name_of(file, called) if called is not None else ""
            if name in CASTS or name == "__cvta_generic_to_shared":
                return self._is_whole_cast(file, call) and self._reached_once(file, call, depth)
            if name == "__pipeline_memcpy_async":
                size = self.values.integer(file, next(iter(arguments_in(above)[2:]), None))
                self.check_whole(file, call, size or _WIDEST)
            if SINGLE_ACCESS.fullmatch(name):
                return True
            taken = self.bounds.parameter(file, call, node)
            if taken is None or not self._only_reached(taken[1], depth + 1):
                return False
            returns = [taken[1].file.text(n) for n in every(taken[0]) if n.type == "return_statement"]
            gives_address = any("__cvta_generic_to_shared" in text for text in returns)
            return not gives_address or self._reached_once(file, call, depth)
        if above.type == "subscript_expression" and role_of(above, node) == "argument":
            indices = above.child_by_field_name("indices")
            is_first = indices is not None and file.text(indices) == "[0]"
            return is_first and self._only_element(file, above, depth)
        if above.type == "return_statement":  # an address for an instruction of the caller
            return "__cvta_generic_to_shared" in file.text(node)
        if above.type == "init_declarator":
            kept = variable_of(file, node)
            return kept is not None and self._only_reached(kept, depth + 1)
        if above.type == "assignment_expression" and role_of(above, node) == "right":
            left = above.child_by_field_name("left")
            variable = self.source.meant(file, left) if left is not None else None
            return variable is not None and self._only_reached(variable, depth + 1)
        if above.type == "assignment_expression":
            return file.text(above.children[1]) == "="  # the variable gets another value
        if above.type == "gnu_asm_input_operand":
            return self._is_whole_instruction(file, above)
        reached = above.type == "pointer_expression" and file.text(above.children[0]) == "*"
        return reached and self._only_element(file, above, depth)

    def _only_element(self, file: File, node: Node, depth: int) -> bool:
        """Whether no more than an element is reached, also where its address is taken (`&p[0]`)."""
        address = self.is_address(file, node, depth)
        return address is None or self._reached_once(file, address, depth)

    def _is_whole_cast(self, file: File, cast: Node) -> bool:
        """Whether what a cast points to is known, and stays whole; casts to integers say nothing of that."""
        type_ = next((n for n in every(cast) if n.type == "type_descriptor"), None)
        name, size = self.values.pointee(file, type_)
        self.check_whole(file, cast, size or 0)
        is_own = name == self.array.type or not is_of_template(file, type_)
        return not name or (size is not None and is_own)

    def _is_whole_instruction(self, file: File, operand: Node) -> bool:
        """Whether an instruction in PTX reaches no further than it says, and that stays whole."""
        instruction = enclosing(operand, "gnu_asm_expression")
        text = file.text(instruction) if instruction is not None else ""
        sizes = [int(count or 1) * int(bits) // 8 for count, bits in _ACCESSED.findall(text)]
        copied = re.search(r"cp\.async\S*\s*\[[^]]*\]\s*,\s*\[[^]]*\]\s*,\s*(\d+)", text)
        if re.search(r"ldmatrix|stmatrix|cp\.async", text):
            sizes = [int(copied[1]) if copied is not None else _WIDEST]
        self.check_whole(file, operand, max(sizes, default=self.element))
        # The operand is an address, and nothing is worked out of it.
        operands = [n for n in every(instruction or operand) if n.type in _OPERANDS]
        name = re.match(r"\s*\[(\w+)\]", file.text(operand))
        spelt = rf"%[a-z]?(?:{operands.index(operand)}\b" + (rf"|\[{name[1]}\])" if name is not None else ")")
        return len(re.findall(spelt, text)) == len(re.findall(rf"\[\s*{spelt}\s*\]", text))

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
        self._taken.append(node)
        alike = variable.file.variables[variable.name]
        if any(one is not variable and one.scope == variable.scope for one in alike):
            why = f"{variable.name} is declared twice: branches of #if are not told apart"
            self.refuse(file, parent, why)
        if variable.is_reference:
            self.refuse(file, parent, f"{variable.name} is another name of a pointer")
        if self.is_new(variable, file, parent):
            changes = any(is_given(use) for _, use in self.source.uses(variable))
            self.kept(file, parent, pointer, variable, first and not changes)

    def is_new(self, variable: Variable, file: File, node: Node) -> bool:
        """Whether a pointer is met for the first time."""
        if len(self._seen) >= _MOST_POINTERS:
            self.refuse(file, node, "too many pointers into it")
        is_new = variable not in self._seen
        self._seen += [variable] if is_new else []
        return is_new

    def edit(self, file: File, node: Node, *parts: str | Node) -> None:
        """Replace a node."""
        new = Edit(file, node.start_byte, node.end_byte, parts)
        if new not in self.edits:
            self.edits.append(new)

    def by_hand(self) -> str:
        """What to write by hand where this cannot, behind the declaration."""
        raise NotImplementedError

    def _declared_by_hand(self) -> Iterator[str]:
        """What to declare and to ask for there, where either changes."""
        file, extents = self.array.file, self.array.extents
        new = {edit.start: str(edit.parts[0]) for edit in self.edits if edit.file is file}
        if any(one is not None and one.start_byte in new for one in extents):
            sizes = ("" if one is None else new.get(one.start_byte, file.text(one)) for one in extents)
            yield f"declare {self.array.name}{''.join(f'[{size}]' for size in sizes)}"
        if not self.array.is_shared or (extents and extents[0] is None):
            yield f"ask for {self.move.bytes_of('B', True)} bytes where it was B"

    def refuse(self, file: File, node: Node, why: str, *first_by_hand: str) -> NoReturn:
        """A use is not understood; `first_by_hand` is what to do there before the layout is right.

        Raises:
            ProblemFileError: always, with the line.
        """
        text = " ".join(file.text(node).split())
        text = text if len(text) <= 60 else f"{text[:57]}..."
        by_hand = ", ".join((*first_by_hand, *self._declared_by_hand(), self.by_hand()))
        raise ProblemFileError(file.place(node), f"{self.array.name}: {why}: {text}; by hand: {by_hand}")
