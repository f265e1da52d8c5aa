"""The most that a column of a source may be, whatever arguments and data are, and what may stand twice.

All that is bounded lies between 0 and 2^31 - 1: there signed and unsigned integers are alike, and none wraps.
"""

from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from layoutopt.kernels.read.source import (
    File,
    Source,
    Variable,
    every,
    name_of,
    operands_of,
    reference_cast,
    role_of,
    variable_of,
)
from layoutopt.kernels.read.values import Values
from layoutopt.source.host_launches import arguments_in

_MOST_DEPTH: Final = 30  # of expressions in one another
_MOST: Final = (1 << 31) - 1
_WORDS: Final = ("int", "unsigned", "unsigned int", "uint", "uint32_t", "int32_t", "size_t", "auto")

# Around a variable, what is that variable again, and what only reads its value.
_SAME: Final = (
    *("parenthesized_expression", "conditional_expression", "comma_expression", "initializer_list"),
    "field_expression",
)
_READS: Final = (
    *("binary_expression", "unary_expression", "cast_expression", "subscript_argument_list"),
    *("assignment_expression", "conditional_expression", "condition_clause", "expression_statement"),
    *("for_statement", "gnu_asm_input_operand"),
)
# What an expression without an effect is made of.
_PLAIN: Final = (
    *("identifier", "number_literal", "field_expression", "field_identifier", "parenthesized_expression"),
    *("binary_expression", "unary_expression", "conditional_expression", "cast_expression"),
    *("subscript_expression", "subscript_argument_list", "type_descriptor", "type_identifier"),
    *("primitive_type", "sized_type_specifier"),
)


@dataclass
class Bounds:
    """The most that integers may be in a launch with blocks of one shape."""

    # `source, values`: declarations of names; constants and the shape of blocks
    source: Source
    values: Values

    def most(self, file: File, node: Node | None, depth: int = 0) -> int | None:
        """The most of an expression that is at least 0; None where arguments or data decide it."""
        if node is None or depth > _MOST_DEPTH:
            return None
        value = self.values.integer(file, node)
        found = value if value is not None else self._most(file, node, depth + 1)
        return found if found is not None and 0 <= found <= _MOST else None

    def _most(self, file: File, node: Node, depth: int) -> int | None:
        match node.type:
            case "parenthesized_expression":
                return self.most(file, node.named_children[0], depth)
            case "field_expression":
                name, _, axis = file.text(node).partition(".")
                size = self.values.block["xyz".index(axis)] if axis in ("x", "y", "z") else 0
                return {"threadIdx": size - 1, "blockDim": size}.get(name) if size else None
            case "binary_expression":
                return self._combined(file, node, depth)
            case "identifier":
                variable = self.source.meant(file, node)
                return self._variable(variable, depth) if variable is not None else None
        return None

    def _combined(self, file: File, node: Node, depth: int) -> int | None:
        """The most of what an operator makes of two integers."""
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        a, b = self.most(file, left, depth), self.most(file, right, depth)
        symbol, exact = file.text(node.children[1]), self.values.integer(file, right)
        if symbol == "&":
            return min((one for one in (a, b) if one is not None), default=None)
        if a is None or b is None:
            return None
        if symbol in ("+", "*"):
            return a + b if symbol == "+" else a * b
        if exact is None or exact <= 0 or (symbol in ("<<", ">>") and exact > 31):
            return None
        found = {"/": a // exact, "%": min(a, exact - 1), "<<": a << exact % 32, ">>": a >> exact % 32}
        return found.get(symbol)

    def _variable(self, variable: Variable, depth: int) -> int | None:
        """The most of a variable: its value's where it keeps that, else that in the body of its `for` loop.

        Such a loop is `for (int i = first; i < end; i += by)`; its condition may have more parts.
        """
        file = variable.file
        if variable.type not in _WORDS or variable.pointer or variable.extents or variable.is_parameter:
            return None
        first = self.most(file, variable.value, depth)
        is_fixed = {"const", "constexpr"} & set(file.text(variable.node).split("=")[0].split())
        uses = () if is_fixed else self.source.uses(variable)
        changes = [use for where, use in uses if self.is_changed(where, use)]
        if first is None or not changes:
            return first
        loop, step = variable.node.parent, changes[0].parent
        if loop is None or step is None or len(changes) > 1 or loop.child_by_field_name("update") != step:
            return None
        right = step.child_by_field_name("right")
        by = self.values.integer(file, right) if right is not None else 1
        condition, operator = loop.child_by_field_name("condition"), step.child_by_field_name("operator")
        if condition is None or operator is None or operator.type not in ("++", "+=") or not by or by < 0:
            return None
        ends = []
        for _, part in operands_of(condition, file, ("&&",)):
            left, end = (part.child_by_field_name(name) for name in ("left", "right"))
            symbol = file.text(part.children[1]) if left is not None else ""
            if left is not None and file.text(left) == variable.name and symbol in ("<", "<="):
                most = self.most(file, end, depth)
                ends += [most - (symbol == "<")] if most is not None else []
        exact = self.values.integer(file, variable.value)
        if not ends or exact is None:
            return max(first, min(ends)) if ends else None
        return exact + max(min(ends) - exact, 0) // by * by

    def parameter(self, file: File, call: Node, argument: Node) -> tuple[Node, Variable] | None:
        """The function of the source that is called, and its parameter that takes the argument."""
        called, listed = (call.child_by_field_name(part) for part in ("function", "arguments"))
        found = self.source.function(name_of(file, called)) if called is not None else None
        if found is None or listed is None:
            return None
        parameters, values = found[0].parameters(found[1]), arguments_in(listed)
        if argument not in values or len(values) > len(parameters):
            return None
        parameter = parameters[values.index(argument)]
        return (found[1], parameter) if parameter is not None else None

    def is_changed(self, file: File, use: Node) -> bool:
        """Whether a use of a variable changes it, or may let others do so."""
        above = use.parent
        while above is not None and above.type in _SAME and role_of(above, use) != "condition":
            use, above = above, above.parent
        if above is None or is_given(use) or reference_cast(above) is not None:
            return True
        if above.type == "init_declarator":
            kept = variable_of(file, use)
            return kept is None or kept.is_reference
        if above.type == "argument_list" and above.parent is not None:
            taken = self.parameter(file, above.parent, use)
            return taken is None or taken[1].is_reference
        return above.type not in _READS

    def is_plain(self, file: File, node: Node) -> bool:
        """Whether an expression may stand twice, or in another order: nothing seen in it has an effect.

        What macros hide is seen where they are expanded.
        """
        for one in every(node):
            meant = self.source.meant(file, one) if one.type == "identifier" else None
            if one.is_named and one.type not in _PLAIN:
                return False
            if meant is not None and "volatile" in meant.file.text(meant.node).split("=")[0].split():
                return False
        return True


def is_given(use: Node) -> bool:
    """Whether a name stands where a value is given to it."""
    above = use.parent
    while above is not None and above.type == "parenthesized_expression":
        use, above = above, above.parent
    is_left = above is not None and above.child_by_field_name("left") == use
    return above is not None and (
        above.type == "update_expression" or (above.type == "assignment_expression" and is_left)
    )
