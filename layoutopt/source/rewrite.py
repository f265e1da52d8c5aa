"""A source with an array laid out otherwise: every reference to it, or none.

Declared rows get longer, or change places with columns, in the declaration (`Pitched`, `Transposed`): what is
at column c of row r stays there.

    tile[32][32]              ->   tile[32][33]
    tile[32][8], tile[r][c]   ->   tile[8][32 + 4], tile[c][r]

Everything else changes places where they are reached (`Moved`). Pointers keep the places that they had, and
where one is followed, its offset from the start goes through a function that says where the element lies now:
a lambda behind the declaration, so that an index is computed once, whatever it does, and however large it is.

    s[e]                      ->   s[s_at(e)]
    s[r * 32 + c]             ->   s[s_at(c, r)], where rows are padded
    p[k], p a pointer into s  ->   s[s_at(int(p - s) + k)]
    &s[e], to an instruction  ->   &s[s_at(e)]
    tile[r][c]                ->   tile[r][tile_at(r, c)], or tile[r][tile_at(c)] where columns are padded
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace
from tree_sitter import Node

from layoutopt.kernels.read.source import File, Variable, every, product_of, sum_of
from layoutopt.source.edits import Edit
from layoutopt.source.walk import Pointer, Walk

_CLOSED: Final = (
    *("call_expression", "subscript_expression", "parenthesized_expression", "field_expression"),
    "cast_expression",
)
_OPERATIONS: Final = ("binary_expression", "unary_expression", "conditional_expression", "cast_expression")
_NOWHERE: Final = ("nullptr", "NULL", "0")
_COMMENT: Final = re.compile(rb"[ \t]*(//[^\n]*[^\n\\]|/\*[^\n]*?\*/)[ \t]*(?=\r?\n)")


@dataclass
class Pitched(Walk):
    """Declared rows that lie further apart: their extent is longer wherever it is written."""

    def declare(self) -> None:
        """The last extent."""
        last = self.array.extents[-1]
        assert last is not None
        self.edit(self.array.file, last, plus(self.array.file.text(last), self._extra))

    @property
    def _extra(self) -> int:
        return self.move.extra // self.element

    def subscript(self, file: File, node: Node, pointer: Pointer, index: Node) -> None:
        """No edit."""
        if not pointer.in_row:
            self.refuse(file, node, "the array is used as one line")
        is_start = pointer.is_first and file.text(index) == "0"
        self.element_at(file, node, replace(pointer, in_row=not is_start))

    def element_at(self, file: File, node: Node, pointer: Pointer) -> None:
        """An element needs no edit; its address is a pointer again."""
        if (address := self.is_address(file, node)) is not None:
            self.follow(file, address, pointer)

    def sum(self, file: File, node: Node, pointer: Pointer, sign: str, other: Node) -> None:
        """No edit."""
        if pointer.extents_left == 1 and not pointer.in_row:
            self.refuse(file, node, "the array is used as one line")
        self.follow(file, node, pointer)

    def step(self, file: File, node: Node, pointer: Pointer) -> None:
        """It may go from row to row."""
        self.refuse(file, node, "a pointer is stepped")

    def kept(self, file: File, node: Node, pointer: Pointer, variable: Variable, first: bool) -> None:
        """The variable's uses are followed; where it points to whole rows, its type has their extent."""
        if pointer.extents_left > 1 and (variable.type != "auto" or variable.extents):
            last = variable.extents[-1] if variable.extents else None
            if last is None or len(variable.extents) + variable.pointer != pointer.extents_left:
                self.refuse(file, node, f"{variable.name} has other extents")
            self.edit(variable.file, last, plus(variable.file.text(last), self._extra))
        for where, use in self.uses(variable):
            self.follow(where, use, pointer)

    def passed(self, file: File, node: Node, pointer: Pointer, function: Node, parameter: Variable) -> None:
        """Followed in the function; memory of other extents is no longer what it takes."""
        if self.is_new(parameter, file, node):
            self.kept(file, node, pointer, parameter, first=True)

    def matrix(self, file: File, node: Node, pointer: Pointer, call: Node) -> None:
        """`load_matrix_sync(fragment, pointer, pitch)`: the pitch grows."""
        arguments, last = call.child_by_field_name("arguments"), self.array.extents[-1]
        for pitch in arguments.named_children[2:3] if arguments is not None else ():
            is_extent = last is not None and file.text(pitch) == self.array.file.text(last)
            is_fixed = is_extent or not self.values.varies(file, pitch)
            if is_fixed and self.values.integer(file, pitch) == self.extents[-1]:
                self.edit(file, pitch, plus(file.text(pitch), self._extra))
                return
        self.refuse(file, call, f"the pitch of {self.extents[-1]} elements is no argument")

    def by_hand(self) -> str:
        """How far rows lie apart."""
        return f"take rows as {self.extents[-1] + self._extra} elements apart, not {self.extents[-1]}"


@dataclass
class Transposed(Walk):
    """Declared rows written as columns, and columns as rows: the last two indices change places."""

    def declare(self) -> None:
        """Two extents change places."""
        file, (rows, last) = self.array.file, self.array.extents[-2:]
        assert rows is not None
        assert last is not None
        self.edit(file, rows, file.text(last))
        self.edit(file, last, plus(file.text(rows), self.move.extra // self.element))

    def subscript(self, file: File, node: Node, pointer: Pointer, index: Node) -> None:
        """The last two indices of several change places."""
        row = node.child_by_field_name("argument")
        base = row.child_by_field_name("argument") if row is not None else None
        if base is None or pointer.type or len(pointer.terms) != len(self.extents) - 1:
            self.refuse(file, node, "a pointer into rows is used")
        if not self.bounds.is_plain(file, node):
            self.refuse(file, node, "an index may have an effect, and they change places")
        self.edit(file, node, base, "[", index, "][", pointer.terms[-1][1], "]")
        self.element_at(file, node, replace(pointer, only_index=index))

    def element_at(self, file: File, node: Node, pointer: Pointer) -> None:
        """One element; vectors would not stay whole."""
        self.ratio(file, node, pointer)
        if (address := self.is_address(file, node)) is not None:
            self.follow(file, address, pointer)
        else:
            self.address(file, node, pointer)

    def address(self, file: File, node: Node, pointer: Pointer) -> None:
        """Where the element lies now."""
        if pointer.only_index is None:
            self.refuse(file, node, "a pointer into rows is used")

    def by_hand(self) -> str:
        """The new indices."""
        plane = f"{self.array.name}{'[q]' * (len(self.extents) - 2)}"
        return f"write {plane}[c][r] for {plane}[r][c]"


@dataclass
class Moved(Walk):
    """Elements moved by a function of their places."""

    _is_called: bool = False
    _is_direct: bool = False  # whether its own elements are reached, as no cast has them
    takes_rows: bool = False  # it takes the row, too, of an index that is written as row and column

    @property
    def _function(self) -> str:
        """A name that no file of the source has."""
        return self._unused(f"{self.array.name}_at", rb"\b%s\b")

    def _unused(self, name: str, where: bytes) -> str:
        """The name, or one like it, that is no macro and does not stand anywhere as a pattern says."""
        found = any(re.search(where % name.encode(), file.data) for file in self.source.files)
        return self._unused(f"{name}_", where) if found or name in self.source.macros else name

    def run(self) -> list[Edit]:
        """The edits, and the function if it is called."""
        super().run()
        # An XOR needs whole blocks, whose bytes another instance has otherwise.
        if self._is_open and (self._is_direct or self.move.terms):
            self.refuse(self.array.file, self.array.node, "a template decides where elements are")
        if self._is_called:
            self._check_pointers()
            self._define_function()
        return self.edits

    def _check_pointers(self) -> None:
        """Refuse pointers that may point to other memory, and another meaning of the array's name."""
        array = self.array
        for pointer in self._seen:
            uses = [(file, use.parent) for file, use in self.source.uses(pointer)]
            given = [(file, above.child_by_field_name("right")) for file, above in uses
                     if above is not None and above.type == "assignment_expression"
                     and file.text(above.children[1]) == "="]  # fmt: skip
            for file, value in [(pointer.file, pointer.value), *given]:
                if value is not None and value not in self._taken and file.text(value) not in _NOWHERE:
                    self.refuse(file, value, f"{pointer.name} points to other memory, too")
        for other in array.file.variables[array.name] if self._seen else ():
            if other is not array and array.scope.start_byte <= other.scope.start_byte < array.scope.end_byte:
                self.refuse(array.file, other.node, "its name is that of another variable here")

    def declare(self) -> None:
        """As many elements as the layout takes."""
        last = self.array.extents[-1] if self.array.extents else None
        if last is None:
            return
        file = self.array.file
        if len(self.extents) > 1 and not self.move.inside:
            if self.move.extra:
                self.edit(file, last, plus(file.text(last), self.move.extra // self.element))
            return
        count, text = self.values.integer(file, last), file.text(last)
        size = self.move.size((count or 0) * self.element) // self.element
        if count == size and count:
            return
        if count is not None and not any(one.type == "identifier" for one in every(last)):
            self.edit(file, last, str(size))
        else:
            self.edit(file, last, self.move.count(text, self.element, not last.named_children))

    def _define_function(self) -> None:
        """Define the function behind the declaration, and assert that an XOR there has whole blocks.

        A pad in an extent that is written anew makes that whole already.
        """
        array, file = self.array, self.array.file
        line = file.data.rfind(b"\n", 0, array.node.start_byte) + 1
        indent = re.match(rb"[ \t]*", file.data[line : array.node.start_byte])
        new_line = "\n" + (indent[0].decode() if indent is not None else "")
        parameters, body = self._new_index()
        if array.function is None:
            text = f"\n__device__ __forceinline__ int {self._function}({parameters}) {{ return {body}; }}"
        else:
            text = f"{new_line}const auto {self._function} = []({parameters}) {{ return {body}; }};"
        last = array.extents[-1] if array.extents else None
        pad = self.move.extra // self.element
        is_rounded = pad and (len(self.extents) <= 1 or self.move.inside)
        if last is not None and self.move.terms and last.type != "number_literal" and not is_rounded:
            row = f"{array.name}{'[0]' * (len(self.extents) - 1)}" if self.extents else array.name
            block = self.move.block // self.element
            count = f"sizeof({row}) / sizeof({row}[0])"
            count = f"({count} - {pad})" if pad else count
            text += f'{new_line}static_assert({count} % {block} == 0, "elements move among {block}");'
        end = array.node.end_byte
        if (comment := _COMMENT.match(file.data, end)) is not None:
            end = comment.end()
        self.edits.append(Edit(file, end, end, (text,)))

    def subscript(self, file: File, node: Node, pointer: Pointer, index: Node) -> None:
        """An element, or the vector that it begins."""
        if len(self.extents) <= 1:
            self._element_of_flat(file, node, pointer, index)
            return
        if pointer.only_index is None or file.text(index) != "0":
            if pointer.type or len(pointer.terms) != len(self.extents) - 1 or pointer.only_index is not None:
                self.refuse(file, node, "a pointer into rows is used")
            pointer = replace(pointer, only_index=index)
        self.element_at(file, node, pointer)

    def element_at(self, file: File, node: Node, pointer: Pointer) -> None:
        """`*pointer`, or its address."""
        if (above := self.is_address(file, node)) is not None:
            self.follow(file, above, pointer)
        elif len(self.extents) <= 1:
            self._replace_address(file, node, pointer, follow=True)
        elif pointer.only_index is None:
            self.refuse(file, node, "a pointer into rows is used")
        else:
            self._replace_last_index(file, pointer)

    def _replace_last_index(self, file: File, pointer: Pointer) -> None:
        """Replace the last index by the function's: `tile[r][c]` by `tile[r][tile_at(r, c)]`."""
        assert pointer.only_index is not None
        self._is_called = True
        if self.move.inside:
            self.edit(file, pointer.only_index, f"{self._function}(", pointer.only_index, ")")
            return
        rows = [part for _, part in pointer.terms]
        for row in rows if self.move.terms else ():
            if isinstance(row, Node) and not self.bounds.is_plain(file, row):
                self.refuse(file, row, "it may have an effect, and would stand twice")
            names = {file.text(one) for one in every(row)} if isinstance(row, Node) else ()
            for one in every(pointer.only_index):
                if one.type == "identifier" and file.text(one) in names and self.bounds.is_changed(file, one):
                    self.refuse(
                        file, pointer.only_index, "it may change the row, which would stand beside it"
                    )
        parts: list[str | Node] = [rows[-1]]
        if len(rows) > 1 and self.extents[-2] % self.move.period_rows:
            # The XOR does not begin anew with each plane: it needs the number of the row among all rows.
            parts, stride = ["(", rows[-1], ")"], 1
            for part, size in zip(rows[-2::-1], self.extents[-2:0:-1], strict=True):
                stride *= size
                parts += [f" + {stride} * (", part, ")"]
        self.edit(file, pointer.only_index, f"{self._function}(", *parts, ", ", pointer.only_index, ")")

    def _element_of_flat(self, file: File, node: Node, pointer: Pointer, index: Node) -> None:
        """`pointer[index]` in a flat array: an element, a vector of them, or its address."""
        ratio, self._is_direct = self.ratio(file, node, pointer), self._is_direct or not pointer.type
        terms = (*pointer.terms, ("+" if ratio == 1 else f"+ {ratio} *", index))
        if (above := self.is_address(file, node)) is not None:
            direct = index if not pointer.terms and ratio == 1 else None
            self.follow(file, above, replace(pointer, terms=terms, only_index=direct))
            return
        if file.text(index) == "0" and pointer.terms:  # as `*pointer`
            self._replace_address(file, node, pointer, follow=True)
            return
        self._is_called = True
        divided = f" / {ratio}" if ratio > 1 else ""
        if not pointer.terms:
            inside = self._arguments(file, index) if ratio == 1 else self._sum(terms)
            self.edit(file, index, f"{self._function}(", *inside, f"){divided}")
            return
        self.edit(file, node, f"{self._base(pointer)}[{self._function}(", *self._sum(terms), f"){divided}]")

    def _base(self, pointer: Pointer) -> str:
        """The array as a pointer of this type, as C."""
        own = pointer.type in ("", self.array.type)
        return self.array.name if own else f"reinterpret_cast<{pointer.type}*>({self.array.name})"

    def _sum(self, terms: Sequence[tuple[str, str | Node]]) -> list[str | Node]:
        """Terms with their signs, in text and nodes; 0 without any."""
        parts: list[str | Node] = []
        for sign, part in terms:
            alone = len(terms) == 1 and sign == "+"
            first = sign.removeprefix("+").lstrip()
            lead = f" {sign} " if parts else f"{first} " if first else ""
            parts += [lead, *([part] if alone else self._bracketed(part))]
        return parts or ["0"]

    def _bracketed(self, part: str | Node) -> list[str | Node]:
        """A term or factor, in brackets if it needs them, as a parameter of a macro may."""
        is_bare = isinstance(part, str) or part.type in _CLOSED
        if not isinstance(part, str) and not part.named_children:
            macros = (macro for file in self.source.files for macro in file.macros)
            is_bare = all(part.text is None or part.text.decode() not in macro.parameters for macro in macros)
        return [part] if is_bare else ["(", part, ")"]

    def _arguments(self, file: File, index: Node) -> list[str | Node]:
        """What the function takes: an index, or its column and row where it is written so.

        The column may be any sum, as the function adds the rows that are in it. An XOR takes the whole index:
        its mask is of the row that all terms make. So does an index in a macro with a parameter that has no
        brackets (`is_bare`): its terms may be parts of an argument.
        """
        width = self.move.row // self.element
        inside = [m for m in file.macros if m.value[0] <= index.start_byte < m.value[1]]
        is_bare = any(
            file.text(one) in macro.parameters and one.parent is not None and one.parent.type in _OPERATIONS
            for macro in inside for one in every(index)
        )  # fmt: skip
        if self.move.terms or width & (width - 1) or is_bare:
            return [index]
        rows: list[str | Node] = []
        columns = []
        for sign, term in sum_of(index, file):
            row = self._row_of(file, term, width) if sign == "+" else None
            if row is None:
                columns.append((sign, term))
            else:
                rows += [" + "] if rows else []
                rows += row
        if not rows:
            return [index]
        self.takes_rows = True
        return [*self._sum(columns), ", ", *rows]

    def _row_of(self, file: File, term: Node, width: int) -> list[str | Node] | None:
        """The number of rows that a term is, of so many elements each; None where it is not written so."""
        symbol = file.text(term.children[1]) if term.type == "binary_expression" else ""
        left, right = term.child_by_field_name("left"), term.child_by_field_name("right")
        if symbol == "<<" and left is not None and right is not None and right.type == "number_literal":
            bits = self.values.integer(file, right)
            return self._bracketed(left) if bits is not None and 1 << min(bits, 31) == width else None
        factors = list(product_of(term, file))
        pitches = [one for one in factors if self._is_always(file, one, width)]
        if not pitches:
            return None
        others = [one for one in factors if one != pitches[0]]
        return [part for one in others for part in (" * ", *self._bracketed(one))][1:] or ["1"]

    def _is_always(self, file: File, node: Node, width: int) -> bool:
        """Whether a number, or a macro that is defined once, has this value in every function and build."""
        name, macros = file.text(node), [macro for one in self.source.files for macro in one.macros]
        is_macro = sum(macro.name == name for macro in macros) == 1
        is_known = is_macro and not any(name in macro.parameters for macro in macros)
        is_same = is_known and next(self.source.variables(name), None) is None
        return (node.type == "number_literal" or is_same) and self.values.integer(file, node) == width

    def _replace_address(self, file: File, node: Node, pointer: Pointer, follow: bool = False) -> None:
        """Replace a pointer, `node`, by where its element lies now; with `follow`, `node` is `*pointer`."""
        if not pointer.terms:
            return
        self._is_called = True
        if pointer.only_index is not None:
            inside = self._arguments(file, pointer.only_index)
            self.edit(file, pointer.only_index, f"{self._function}(", *inside, ")")
            return
        inner: list[str | Node] = [f"{self.array.name}[{self._function}(", *self._sum(pointer.terms), ")]"]
        if pointer.type and self._is_open:  # by elements, which are of another size in other instances
            begin = f"{self._base(pointer)}[{self._function}("
            divided = f") / {self.ratio(file, node, pointer)}]"
            inner = ["" if follow else "&", begin, *self._sum(pointer.terms), divided]
        elif pointer.type:
            inner = ["*" if follow else "", f"reinterpret_cast<{pointer.type}*>(&", *inner, ")"]
        elif not follow:
            inner = ["&", *inner]
        self.edit(file, node, *inner)

    def sum(self, file: File, node: Node, pointer: Pointer, sign: str, other: Node) -> None:
        """`pointer + other`: no edit, as the pointer keeps its old place; its offset grows."""
        if len(self.extents) > 1:
            self.refuse(file, node, "a pointer into rows is used")
        ratio = self.ratio(file, node, pointer)
        term = (sign, other) if ratio == 1 else (f"{sign} {ratio} *", other)
        direct = other if not pointer.terms and ratio == 1 and sign == "+" else None
        moved = replace(pointer, terms=(*pointer.terms, term), only_index=direct, extents_left=1)
        self.follow(file, node, moved)

    def address(self, file: File, node: Node, pointer: Pointer) -> None:
        """Where the element lies now."""
        if len(self.extents) <= 1:
            self._replace_address(file, node, pointer)
        elif pointer.only_index is not None:
            self._replace_last_index(file, pointer)
        else:
            self.refuse(file, node, "a pointer into rows is used")

    def kept(self, file: File, node: Node, pointer: Pointer, variable: Variable, first: bool) -> None:
        """The variable keeps the old place; its uses are followed with its distance from the array."""
        if len(self.extents) > 1:
            self.refuse(file, node, "a pointer into rows is used")
        if "volatile" in variable.file.text(variable.node).split("=")[0].split():
            name = (pointer.type or self.array.type).removeprefix("volatile ")
            pointer = replace(pointer, type=f"volatile {name}")
        ratio = self.ratio(file, node, pointer)
        terms: tuple[tuple[str, str | Node], ...] = ()
        if not first or pointer.terms:
            offset = f"int({variable.name} - {self._base(pointer)})"
            terms = (("+", offset if ratio == 1 else f"{ratio} * {offset}"),)
        for where, use in self.uses(variable):
            self.follow(where, use, replace(pointer, terms=terms, only_index=None, extents_left=1))

    def by_hand(self) -> str:
        """The new index, without the function."""
        plane = f"{self.array.name}{'[q]' * (len(self.extents) - 2)}"
        if len(self.extents) <= 1:
            return f"write {plane}[{self.move.new_index('e', self.element)}] for {plane}[e]"
        is_among_all = len(self.extents) > 2 and not self.move.inside
        row, told = ("row", ", row counted in all planes") if is_among_all else ("r", "")
        column = self.move.new_index("c", self.element, "" if self.move.inside else row)
        return f"write {plane}[r][{column}] for {plane}[r][c]{told}"

    def _new_index(self) -> tuple[str, str]:
        """The parameters of the function and what it returns, as C; their names are those of no macros."""
        row, column, element = (self._unused(letter, rb"#\s*define\s+%s\b") for letter in "rce")
        if self.move.inside:
            return f"int {column}", self.move.new_index(column, self.element)
        if len(self.extents) > 1:
            return f"int {row}, int {column}", self.move.new_index(column, self.element, row)
        index, pitch = self.move.new_index(element, self.element), self.move.row + self.move.extra
        if self.takes_rows:
            return f"int {element}, int {row} = 0", f"{row} * {pitch // self.element} + {index}"
        return f"int {element}", index


def plus(text: str, extra: int) -> str:
    """An extent and so much more."""
    if extra == 0:
        return text
    if re.fullmatch(r"\d+", text):
        return str(int(text) + extra)
    if (padded := re.fullmatch(r"([\w ]+) \+ (\d+)", text)) is not None:
        text, extra = padded[1], extra + int(padded[2])
    return f"{text} + {extra}"
