"""Bounds of the integers in a source, whatever arguments and data are, and what changes a variable."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tree_sitter import Node

from layoutopt.errors import ProblemFileError
from layoutopt.kernels.read.source import (
    File,
    Source,
    Variable,
    enclosing,
    every,
    name_of,
    named,
    operands_of,
    sum_of,
)
from layoutopt.kernels.read.values import Values

Range = tuple[int, int]  # the least and the greatest value

_MOST_DEPTH: Final = 60  # of expressions in one another
_MOST: Final = (1 << 31) - 1
CASTS: Final = ("reinterpret_cast", "static_cast", "const_cast")
# Functions without an effect, which may stand twice.
_PURE: Final = re.compile(
    r"int|unsigned|uint|size_t|min|max|abs|__u?mul(24|hi)|__(popc|clz|ffs|brev)(ll)?|__ldg|__shfl\w*"
)
_EFFECTS: Final = (
    *("update_expression", "assignment_expression", "lambda_expression", "gnu_asm_expression"),
    *("new_expression", "delete_expression", "throw_statement", "ERROR"),
)
_MOST_CALLS: Final = 4  # of functions and macros in one another
_WORDS: Final = ("int", "unsigned", "unsigned int", "uint", "uint32_t", "int32_t", "size_t", "long", "auto")
_SIGNED: Final = ("int", "int32_t", "long")
_NARROW: Final = (
    *("char", "unsigned char", "uchar", "int8_t", "uint8_t", "bool"),
    *("short", "unsigned short", "ushort", "int16_t", "uint16_t"),
)
_TRUTHS: Final = ("<", ">", "<=", ">=", "==", "!=", "&&", "||")
_FLIPPED: Final = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
# The part that is reached only where the condition holds.
_REACHED: Final = {
    **dict.fromkeys(("if_statement", "conditional_expression"), "consequence"),
    **dict.fromkeys(("for_statement", "while_statement"), "body"),
    "binary_expression": "right",
}
_GROWING, _SHRINKING = ("+", "*", "<<"), ("-", "/", ">>")


@dataclass
class Bounds:
    """What integers of a source may be in a launch with blocks of one shape."""

    # `source, values`: declarations of names; constants and the shape of blocks
    source: Source
    values: Values
    _known: dict[tuple[str, int, int, str], Range | None] = field(default_factory=dict)
    _open: set[tuple[str, int]] = field(default_factory=set)  # variables that are being looked up

    def of(self, file: File, node: Node | None, depth: int = 0) -> Range | None:
        """The bounds of an expression; None where arguments or data decide it, or where none are found."""
        if node is None or depth > _MOST_DEPTH:
            return None
        key = (file.path, node.start_byte, node.end_byte, node.type)
        if key not in self._known:
            value = self.values.integer(file, node)
            found = (value, value) if value is not None else self._of(file, node, depth + 1)
            is_small = found is not None and -_MOST <= found[0] <= found[1] <= _MOST
            self._known[key] = found if is_small else None
        return self._known[key]

    def _of(self, file: File, node: Node, depth: int) -> Range | None:
        match node.type:
            case "parenthesized_expression" | "type_descriptor":
                return self.of(file, node.named_children[0], depth)
            case "cast_expression":
                is_word = file.text(node.child_by_field_name("type") or node) in _WORDS
                return self.of(file, node.child_by_field_name("value"), depth) if is_word else None
            case "call_expression":
                name = file.text(node.child_by_field_name("function") or node)
                listed = node.child_by_field_name("arguments")
                given = [self.of(file, one, depth) for one in listed.named_children] if listed else []
                known = [one for one in given if one is not None]
                if name in ("min", "max") and len(known) == len(given) == 2:
                    least = min if name == "min" else max
                    return least(a for a, _ in known), least(b for _, b in known)
                is_word = name in _WORDS or name.removeprefix("static_cast<").removesuffix(">") in _WORDS
                return known[0] if is_word and len(known) == len(given) == 1 else None
            case "conditional_expression":
                parts = [node.child_by_field_name(part) for part in ("consequence", "alternative")]
                return _joined(self.of(file, part, depth) for part in parts)
            case "unary_expression" if file.text(node.children[0]) == "-":
                found = self.of(file, node.child_by_field_name("argument"), depth)
                return (-found[1], -found[0]) if found is not None else None
            case "unary_expression" if file.text(node.children[0]) == "!":
                return 0, 1
            case "field_expression":
                name, _, axis = file.text(node).partition(".")
                if axis not in ("x", "y", "z"):
                    return None
                size = self.values.block["xyz".index(axis)]
                told = {"threadIdx": (0, size - 1), "blockDim": (size, size), "blockIdx": (0, _MOST)}
                return self._guarded(file, node, told[name], None, depth) if name in told else None
            case "binary_expression":
                a, b = (self.of(file, node.child_by_field_name(part), depth) for part in ("left", "right"))
                return combined(file.text(node.children[1]), a, b)
            case "identifier" | "type_identifier":
                return (32, 32) if file.text(node) == "warpSize" else self._named(file, node, depth)
        return None

    def _named(self, file: File, name: Node, depth: int) -> Range | None:
        """The bounds of a name: of a parameter of a macro, template or function, or of a variable."""
        arguments = list(self.source.arguments(file, name)) or list(self.source.instantiated(file, name))
        if not all(stands_alone(name, argument) for _, argument in arguments):
            return None
        if arguments:
            return _joined(self.of(where, value, depth) for where, value in arguments)
        variable = self.source.meant(file, name)
        if variable is None or variable.pointer or variable.extents:
            return None
        key = (variable.file.path, variable.identifier.start_byte)
        if key in self._open:
            return None
        self._open.add(key)
        try:
            writes = list(self.writes(variable))
            loop = _loop_around(name, variable) if writes else None
            if loop is not None:
                found = self._in_loop(file, name, variable, loop, writes, depth)
            else:
                found = self._assigned(variable, writes, depth)
            word = variable.type.split("::")[-1]
            if found is not None and found[0] < 0 and word not in _SIGNED:
                found = None  # it may be huge
            if not writes or loop is not None:
                found = self._guarded(file, name, found, loop, depth)
        except ProblemFileError:
            return None  # a macro means it and another variable
        finally:
            self._open.discard(key)
        is_held = word in _NARROW and found is not None and 0 <= found[0] <= found[1] < 128
        return found if is_held or word in _WORDS else None

    def _assigned(self, variable: Variable, writes: list[Node], depth: int) -> Range | None:
        """The bounds of all values that a variable is given; None where one is not known."""
        given = [(variable.file, variable.value)] if variable.value is not None else []
        if variable.is_parameter:
            passed = list(self.source.passed(variable))
            if not passed:
                return None
            given += passed
        for write in writes:
            above = write.parent
            if above is None or above.type != "assignment_expression" or _symbol(above) != "=":
                return None
            right = above.child_by_field_name("right")
            given += [(variable.file, right)] if right is not None else []
        return _joined(self.of(file, value, depth) for file, value in given)

    def _in_loop(
        self, file: File, name: Node, variable: Variable, loop: Node, writes: list[Node], depth: int
    ) -> Range | None:
        """The bounds, in the body of a loop, of a variable that its header changes."""
        body, update = (loop.child_by_field_name(part) for part in ("body", "update"))
        macros = [macro.value for macro in variable.file.macros]
        inside = [w for w in writes if _within(w, loop) or any(a <= w.start_byte < b for a, b in macros)]
        if any(body is None or update is None or w.start_byte >= body.start_byte for w in inside):
            return None
        steps = [w.parent for w in inside if update is not None and _within(w, update)]
        begun = [w.parent for w in inside if update is None or not _within(w, update)]
        value = variable.value if variable.node.parent == loop else None
        if value is None and len(begun) == 1 and begun[0] is not None and _symbol(begun[0]) == "=":
            value = begun[0].child_by_field_name("right")
        elif begun:
            return None
        first, step = self.of(file, value, depth), steps[0] if len(steps) == 1 else None
        symbol, by = _step(file, step, variable.name) if step is not None else ("", None)
        change = (1, 1) if by is None else self.of(file, by, depth)
        if first is None or change is None or change[0] < 1:
            return None
        low, high = self._limits(file, loop.child_by_field_name("condition"), name, depth, counts=True)
        if symbol in _GROWING and high is not None and (symbol == "+" or first[0] >= 0):
            if symbol == "+" and first[0] == first[1] and change[0] == change[1]:
                high = first[0] + (high - first[0]) // change[0] * change[0]
            return first[0], max(first[0], high)
        if symbol in _SHRINKING and (low is not None or (symbol != "-" and first[0] >= 0)):
            return min(first[1], max(low or 0, 0) if symbol != "-" else low or 0), first[1]
        return None

    def _guarded(
        self, file: File, name: Node, found: Range | None, loop: Node | None, depth: int
    ) -> Range | None:
        """Bounds, narrowed by the conditions under which a name is reached; in a loop, by those there."""
        node, low, high = name, -_MOST if found is None else found[0], _MOST if found is None else found[1]
        while node != loop and (above := node.parent) is not None:
            condition, reached = above.child_by_field_name("condition"), _REACHED.get(above.type, "")
            if above.type == "binary_expression" and _symbol(above) == "&&":
                condition = above.child_by_field_name("left")
            if condition is not None and above.child_by_field_name(reached) == node:
                least, most = self._limits(file, condition, name, depth)
                low, high = (
                    max(low, low if least is None else least),
                    min(high, high if most is None else most),
                )
            node = above
        return (low, max(low, high)) if (low > -_MOST and high < _MOST) or found is not None else None

    def _limits(
        self, file: File, condition: Node | None, name: Node, depth: int, *, counts: bool = False
    ) -> tuple[int | None, int | None]:
        """What a condition says that a variable, or the index of a thread, is at least and at most.

        `counts`: it is that of a loop which counts the variable up to what it must not be equal to.
        """
        meant, text = self.source.meant(file, name), file.text(name)
        low: int | None = None
        high: int | None = None
        if condition is not None and condition.type == "condition_clause":
            condition = condition.child_by_field_name("value")
        for _, part in operands_of(condition, file, ("&&",)) if condition is not None else ():
            symbol = _symbol(part)
            left, right = part.child_by_field_name("left"), part.child_by_field_name("right")
            for one, other, relation in ((left, right, symbol), (right, left, _FLIPPED.get(symbol, ""))):
                if one is None or other is None or relation not in _FLIPPED or text not in file.text(one):
                    continue
                limit, own, may_wrap = self.of(file, other, depth), 0, False
                for sign, term in sum_of(one, file):
                    is_own = file.text(term) == text and self.source.meant(file, term) is meant
                    if sign == "+" and is_own:
                        own += 1
                        continue
                    bound = self.of(file, term, depth)
                    may_wrap |= sign == "-"  # what is below 0 is huge where the sum is unsigned
                    limit = combined("-" if sign == "+" else "+", limit, bound)
                if own != 1 or limit is None:
                    continue
                if relation in ("<", "<=", "==") or (counts and relation == "!="):
                    most = limit[1] - (relation in ("<", "!="))
                    high = most if high is None else min(high, most)
                if relation in (">", ">=", "==") and not may_wrap:
                    least = limit[0] + (relation == ">")
                    low = least if low is None else max(low, least)
        return low, high

    # What changes a variable ----------------------------------------------------------------------

    def writes(self, variable: Variable) -> Iterator[Node]:
        """The uses of a variable that change it, or take its address."""
        return (use for file, use in self.source.uses(variable) if self._is_written(file, use, 0))

    def is_pure(self, file: File, node: Node, depth: int = 0) -> bool:
        """Whether nothing in an expression has an effect: it may stand twice, or in another order."""
        if depth > _MOST_CALLS:
            return False
        for one in every(node):
            name = one.child_by_field_name("function") if one.type == "call_expression" else one
            if one.type in _EFFECTS or name is None:
                return False
            if one.type not in ("call_expression", "identifier"):
                continue
            word = name_of(file, name)
            macros = [macro for other in self.source.files for macro in other.macros if macro.name == word]
            parts = [(macro.file, macro.body) for macro in macros]
            if one.type == "identifier":
                parts += self.source.arguments(file, one)
                meant = self.source.meant(file, one)
                if meant is not None and "volatile" in meant.file.text(meant.node).split("=")[0].split():
                    return False
            elif not macros and not _PURE.fullmatch(word) and word not in CASTS:
                found = self.source.function(word)
                body = found[1].child_by_field_name("body") if found is not None else None
                if found is None or body is None:
                    return False
                parts = [(found[0], body)]
            if not all(self.is_pure(where, part, depth + 1) for where, part in parts):
                return False
        return True

    def _is_written(self, file: File, node: Node, depth: int) -> bool:
        above = node.parent
        while above is not None and above.type == "parenthesized_expression":
            node, above = above, above.parent
        if (
            above is None
            or depth > _MOST_DEPTH
            or above.type in ("update_expression", "gnu_asm_output_operand")
        ):
            return True
        if above.type == "assignment_expression" and above.child_by_field_name("left") == node:
            return True
        if above.type == "pointer_expression" and file.text(above.children[0]) == "&":
            return True
        called = above.parent.child_by_field_name("function") if above.parent is not None else None
        if above.type == "argument_list" and called is not None and file.text(called).endswith("swap"):
            return True
        return any(self._is_written(where, use, depth + 1) for where, use in self.aliases(file, node))

    def aliases(self, file: File, node: Node) -> Iterator[tuple[File, Node]]:
        """The uses of references that are bound to what an expression names, and of parameters of macros."""
        above = node.parent
        if above is None:
            return
        if above.type == "init_declarator":
            bound = [
                v for some in file.variables.values() for v in some if v.value == node and v.is_reference
            ]
            yield from (use for one in bound for use in self.source.uses(one))
        call, called = above.parent, None
        if above.type == "argument_list" and call is not None:
            called = call.child_by_field_name("function")
        given = [one for one in above.named_children if one.type != "comment"]
        if called is None or node not in given:
            return
        name, place = name_of(file, called), given.index(node)
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


def stands_alone(name: Node, argument: Node) -> bool:
    """Whether an argument of a macro means the same in its body, where its parameter may have no brackets."""
    above = name.parent
    if above is None or argument.type not in ("binary_expression", "conditional_expression"):
        return True
    if above.type not in ("binary_expression", "unary_expression", "cast_expression"):
        return above.type != "conditional_expression"
    is_right = above.child_by_field_name("right") == name
    symbols = "+" if is_right else "+-"
    return (
        bool(_symbol(above)) and _symbol(above) in symbols and _symbol(argument) in ("+", "-", "*", "/", "%")
    )


def _joined(ranges: Iterator[Range | None]) -> Range | None:
    found = list(ranges)
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def combined(symbol: str, a: Range | None, b: Range | None) -> Range | None:
    """The bounds of what an operator makes of two integers; what is negative may be unsigned, and huge."""
    if symbol in _TRUTHS:
        return 0, 1
    if symbol == "&":
        masks = [one[1] for one in (a, b) if one is not None and one[0] >= 0]
        return (0, min(masks)) if masks else None
    if symbol == "%" and b is not None and b[0] > 0:
        if a is None or a[0] < 0:
            return 1 - b[1], b[1] - 1
        return a if a[1] < b[0] else (0, min(a[1], b[1] - 1))
    if a is None or b is None:
        return None
    if symbol in ("/", ">>", "<<", "|", "^") and (a[0] < 0 or b[0] < (symbol == "/") or b[1] > _MOST):
        return None
    if symbol in ("|", "^"):
        return 0, (1 << max(a[1], b[1]).bit_length()) - 1
    if symbol in (">>", "<<") and b[1] > 31:
        return None
    corners = [(x, y) for x in a for y in b]
    match symbol:
        case "+":
            return a[0] + b[0], a[1] + b[1]
        case "-":
            return a[0] - b[1], a[1] - b[0]
        case "*":
            found = [x * y for x, y in corners]
        case "/":
            found = [x // y for x, y in corners]
        case ">>":
            found = [x >> y for x, y in corners]
        case "<<":
            found = [x << y for x, y in corners]
        case _:
            return None
    return min(found), max(found)


def _symbol(node: Node) -> str:
    """The operator of an expression of two operands, or of an assignment; empty of any other."""
    operator = node.child_by_field_name("operator")
    return operator.type if operator is not None else ""


def _within(node: Node, other: Node) -> bool:
    return other.start_byte <= node.start_byte and node.end_byte <= other.end_byte


def _loop_around(name: Node, variable: Variable) -> Node | None:
    """The loop whose header changes a variable, around a name of it in the loop's body."""
    loop = variable.node.parent
    if loop is not None and loop.type == "for_statement":
        return loop
    loop = enclosing(name, "for_statement")
    while loop is not None:
        body, update = (loop.child_by_field_name(part) for part in ("body", "update"))
        words = (n.text.decode() for n in every(update) if n.text) if update is not None else ()
        if body is not None and _within(name, body) and variable.name in words:
            return loop
        loop = enclosing(loop, "for_statement")
    return None


def _step(file: File, step: Node, name: str) -> tuple[str, Node | None]:
    """The operator with which an update of a loop changes a variable, and by what; None for 1."""
    symbol, right = _symbol(step), step.child_by_field_name("right")
    if step.type == "update_expression":
        return symbol[:1], None
    if symbol != "=" or right is None:
        return symbol.removesuffix("="), right
    left = right.child_by_field_name("left")
    is_own = left is not None and file.text(left) == name
    return (_symbol(right), right.child_by_field_name("right")) if is_own else ("", None)
