"""A source with an array laid out otherwise: every reference to it, or none.

Pads of rows change places where they are computed (`Pitched`). The declaration gets longer rows, and where an
index is written as rows of W elements and columns, so does it; pointers point to where elements lie now.

    tile[32][32]              ->   tile[32][33]
    s[r * W + c]              ->   s[r * (W + 4) + c]

Everything else changes places where they are reached (`Moved`). Pointers keep the places that they had, and
where one is followed, its offset from the start goes through a function that says where the element lies now:
a lambda behind the declaration, so that an index is computed once, whatever it does.

    s[e]                      ->   s[s_at(e)]
    p[k], p a pointer into s  ->   s[s_at(int(p - s) + k)]
    &s[e], to an instruction  ->   &s[s_at(e)]
    tile[r][c]                ->   tile[r][tile_at(r, c)], or tile[r][tile_at(c)] where columns are padded
"""

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace
from tree_sitter import Node

from layoutopt.kernels.read.source import File, Variable, enclosing, every, product_of, sum_of
from layoutopt.source.bounds import Range, combined, stands_alone
from layoutopt.source.edits import Edit
from layoutopt.source.walk import Pointer, Walk

_CLOSED: Final = (
    *("call_expression", "subscript_expression", "parenthesized_expression", "field_expression"),
    "cast_expression",
)
_MOST_DEPTH: Final = 12  # of values that are looked up in one another
_COMMENT: Final = re.compile(rb"[ \t]*(//[^\n]*[^\n\\]|/\*[^\n]*?\*/)[ \t]*(?=\r?\n)")


class Pitch(NamedTuple):
    """Elements of a row, and those of the pad that it gets."""

    width: int
    extra: int


@dataclass
class Pitched(Walk):
    """Rows that lie further apart, by longer extents and pitches."""

    _pitches: set[str] = field(default_factory=set)  # texts of factors that are pitches
    _varies: bool = False  # the arguments of a template decide the pitch

    def run(self) -> list[Edit]:
        """The edits; the declaration comes last, as the uses say what the pitch is called."""
        found = super().run()
        if len(self.extents) <= 1:
            self._declare_flat()
        return found

    def declare(self) -> None:
        """Longer rows: one extent of several, or as many more elements as there are rows."""
        if len(self.extents) > 1 and (last := self.array.extents[-1]) is not None:
            text = self.array.file.text(last)
            self.edit(self.array.file, last, plus(text, self.move.extra // self.element))

    def _declare_flat(self) -> None:
        """Lengthen the extent of a flat array: its factor that is the pitch, else the number of elements."""
        last = self.array.extents[-1] if self.array.extents else None
        if last is None:
            return
        file, width, extra = self.array.file, self.move.row // self.element, self.move.extra // self.element
        count = self.values.integer(file, last)
        factors = [factor for factor in product_of(last, file) if factor != last]
        pitches = [factor for factor in factors if file.text(factor) in self._pitches]
        if not pitches and not self._varies:
            equal = [factor for factor in factors if self.values.integer(file, factor) == width]
            pitches = equal if len(equal) == 1 else []
        if pitches:
            self.edit(file, pitches[0], plus(file.text(pitches[0]), extra, closed=True))
        elif last.type == "number_literal" and count is not None:
            rows = -(-count // width)
            self.edit(file, last, f"{rows} * {width + extra}")
        else:
            text = self.move.count(file.text(last), self.element, not last.named_children)
            self.edit(file, last, text)

    def subscript(self, file: File, node: Node, pointer: Pointer, index: Node) -> None:
        """`pointer[index]`: rows of a flat array are in the index; declared rows are longer already."""
        if pointer.extents_left == 1 and len(self.extents) <= 1:
            pointer = self._lengthened(file, index, pointer, "+")
        elif pointer.extents_left == 1 and not pointer.in_row:
            self.refuse(file, node, "the array is used as one line")
        if pointer.extents_left > 1:
            zero = file.text(index) == "0" and (pointer.in_row or not pointer.terms)
            terms = () if zero else (("+", index),)
            self.follow(
                file, node, replace(pointer, extents_left=pointer.extents_left - 1, in_row=True, terms=terms)
            )
            return
        self.element_at(file, node, replace(pointer, terms=(*pointer.terms, ("+", index))))

    def element_at(self, file: File, node: Node, pointer: Pointer) -> None:
        """An element needs no edit; its address is a pointer again."""
        if (address := self.is_address(file, node)) is not None:
            zero = all(isinstance(part, Node) and file.text(part) == "0" for _, part in pointer.terms)
            self.follow(file, address, replace(pointer, in_row=pointer.in_row and not zero))

    def sum(self, file: File, node: Node, pointer: Pointer, sign: str, other: Node) -> None:
        """`pointer + other`: rows are in the offset."""
        self.follow(file, node, self._offset(file, node, pointer, sign, other))

    def step(self, file: File, node: Node, pointer: Pointer) -> None:
        """`pointer += k`: rows are in k."""
        right = node.child_by_field_name("right")
        if right is None:
            self.refuse(file, node, "a pointer goes from element to element")
        moved = self._offset(file, node, replace(pointer, columns=(0, 0)), "+", right)
        if len(self.extents) > 1:  # by less than a row
            self._along_row(file, replace(pointer, columns=(0, 0), is_first=False), "+", right)
            self.open_column = self.open_column or file.place(node)
        elif moved.columns != (0, 0):
            self.refuse(file, node, "a pointer goes along a row")

    def _offset(self, file: File, node: Node, pointer: Pointer, sign: str, other: Node) -> Pointer:
        """Lengthen the rows in `other`, which `node` adds to a pointer, or takes from it; the new pointer."""
        if pointer.extents_left > 1:
            return pointer
        if len(self.extents) > 1 and not pointer.in_row:
            self.refuse(file, node, "the array is used as one line")
        return self._lengthened(file, other, pointer, sign) if len(self.extents) <= 1 else pointer

    def address(self, file: File, node: Node, pointer: Pointer) -> None:
        """Pointers point to where elements lie now: no edit."""

    def kept(self, file: File, node: Node, pointer: Pointer, variable: Variable, first: bool) -> None:
        """The variable's uses are followed."""
        self._rows_of(file, node, pointer, variable)
        for where, use in self.source.uses(variable):
            self.follow(where, use, pointer)

    def _rows_of(self, file: File, node: Node, pointer: Pointer, variable: Variable) -> None:
        """Lengthen the rows in the type of a variable that points to whole rows."""
        if pointer.extents_left == 1 or (variable.type == "auto" and not variable.extents):
            return
        last = variable.extents[-1] if variable.extents else None
        if last is None or len(variable.extents) + variable.pointer != pointer.extents_left:
            self.refuse(file, node, f"{variable.name} has other extents")
        text, extra = variable.file.text(last), self.move.extra // self.element
        self.edit(variable.file, last, plus(text, extra))

    def passed(self, file: File, node: Node, pointer: Pointer, function: Node, parameter: Variable) -> None:
        """Followed in the function; where that changes, all that calls it must pass this array there."""
        edits = len(self.edits)
        if self.is_new(parameter, file, node, pointer):
            self.kept(file, node, replace(pointer, terms=()), parameter, first=True)
        for other, argument in self.source.passed(parameter) if len(self.edits) > edits else ():
            names = [self.source.meant(other, n) for n in every(argument) if n.type == "identifier"]
            if self.array not in names and not any(v is not None and self._is_followed(v) for v in names):
                name = parameter.file.function_name(function)
                self.refuse(file, node, f"{name} is called for other memory, too ({other.place(argument)})")

    def _is_followed(self, variable: Variable) -> bool:
        """Whether a variable is one of the pointers into the array that were seen."""
        return (variable.file.path, variable.identifier.start_byte) in self._seen

    def matrix(self, file: File, node: Node, pointer: Pointer, call: Node) -> None:
        """`load_matrix_sync(fragment, pointer, pitch)`: the pitch grows."""
        arguments = call.child_by_field_name("arguments")
        width, extra = self.move.row // self.element, self.move.extra // self.element
        for pitch in arguments.named_children[2:3] if arguments is not None else ():
            if self.values.integer(file, pitch) == width:
                self.edit(file, pitch, plus(file.text(pitch), extra))
                return
        self.refuse(file, call, f"the pitch of {width} elements is no argument")

    def by_hand(self) -> str:
        """What a refusal advises: longer rows."""
        width, extra = self.move.row // self.element, self.move.extra // self.element
        return f"rows lie {width + extra} elements apart, not {width}"

    # Indices --------------------------------------------------------------------------------------

    def _lengthened(self, file: File, index: Node, pointer: Pointer, sign: str) -> Pointer:
        """The pointer moved by an index, whose rows become longer; it stays within its row."""
        _, columns = self._lengthen_rows(file, index, pointer)
        moved = self._moved_by(pointer, sign, columns)
        self._check_column(file, index, moved, self.move.row)
        return moved

    def _lengthen_rows(
        self, file: File, index: Node, pointer: Pointer, depth: int = 0
    ) -> tuple[bool, Range | None]:
        """Make the rows of an index longer: whether it has any, and the bounds of the rest.

        The rest must stay below one row whatever the arguments of the kernel and data are, so that what is
        seen in one launch holds in all with such blocks.
        """
        ratio = self.ratio(file, index, pointer)
        width, extra = self.move.row // self.element // ratio, self.move.extra // self.element // ratio
        if width * ratio * self.element != self.move.row or extra * ratio * self.element != self.move.extra:
            self.refuse(file, index, "a row is no multiple of what is accessed")
        has_rows = False
        whole: Range | None = (0, 0)
        for sign, term in sum_of(index, file):
            rows, columns = self._lengthen_term(file, term, pointer, Pitch(width, extra), depth)
            has_rows, whole = has_rows | rows, combined(sign, whole, columns)
        return has_rows, whole

    def _lengthen_term(
        self, file: File, term: Node, pointer: Pointer, pitch: "Pitch", depth: int
    ) -> tuple[bool, Range | None]:
        """Make the rows of one term of an index longer; as `_lengthen_rows`.

        A term has rows where a factor is a multiple of the pitch, or where it is a macro's parameter or a
        variable whose value has rows: `r * W`, `r << 5`, `row` with `int row = r * W`.
        """
        width = pitch.width
        factors = list(product_of(term, file))
        for factor in sorted(factors, key=lambda f: self.values.integer(file, f) != width):
            value = self.values.integer(file, factor)
            if value is None or value == 0 or value % width:
                continue
            for other in factors:
                given = self.source.arguments(file, other)
                if other != factor and not all(stands_alone(other, argument) for _, argument in given):
                    self.refuse(file, term, "the macro has no brackets around a parameter")
            self._note_pitch(file, factor, value == width)
            self.row(file, term, factor, value // width, pitch)
            return True, (0, 0)
        if term.type == "binary_expression" and file.text(term.children[1]) == "<<":
            left, right = term.child_by_field_name("left"), term.child_by_field_name("right")
            bits = self.values.integer(file, right)
            if left is not None and bits is not None and (1 << bits) % width == 0:
                self.shifted(file, term, left, (1 << bits) // width, pitch)
                return True, (0, 0)
        edits = len(self.edits)  # those of a value without rows are taken back
        for where, argument in self.source.arguments(file, term):
            if depth >= _MOST_DEPTH or self._lengthen_rows(where, argument, pointer, depth + 1)[0]:
                self.refuse(where, argument, "rows are in the argument of a macro")
            del self.edits[edits:]
        variable = self.source.meant(file, term) if term.type == "identifier" else None
        if (
            variable is not None and variable.value is not None
            and not variable.is_parameter and not self.changes(variable) and depth < _MOST_DEPTH
        ):  # fmt: skip
            has_rows, columns = self._lengthen_rows(variable.file, variable.value, pointer, depth + 1)
            if has_rows:
                if not self._only_indexes(variable):
                    self.refuse(file, term, f"{variable.name} holds rows, and is used elsewhere")
                return True, columns
            del self.edits[edits:]
        self.column(file, term)
        return False, self.bounds.of(file, term)

    def row(self, file: File, term: Node, factor: Node, rows: int, pitch: "Pitch") -> None:
        """Write a term of an index, of which a factor is that many rows."""
        width, extra = pitch
        if rows == 1:
            self.edit(file, factor, plus(file.text(factor), extra, closed=True))
        elif factor.type == "number_literal":
            self.edit(file, factor, str(rows * (width + extra)))
        else:
            self.edit(file, factor, f"({file.text(factor)} / {width} * {width + extra})")

    def shifted(self, file: File, term: Node, left: Node, rows: int, pitch: "Pitch") -> None:
        """Write a term of an index that is `left` times that many rows, as a shift."""
        self.edit(file, term, *bracketed(left), f" * {rows * sum(pitch)}")

    def column(self, file: File, term: Node) -> None:
        """Write a term of an index that has no rows: as it is."""

    def _note_pitch(self, file: File, factor: Node, is_pitch: bool) -> None:
        """Remember the text of a factor that is the pitch, or a multiple of it.

        Where the arguments of a template decide its value, it must be the pitch, by one name everywhere.
        """
        self._pitches.add(file.text(factor))
        self._varies |= self.values.varies(file, factor)
        if self._varies and (len(self._pitches) > 1 or not is_pitch):
            self.refuse(file, factor, "it may be another number in another instance of the template")

    def _only_indexes(self, variable: Variable) -> bool:
        """Whether a variable is used in indices of the array alone."""
        for file, use in self.source.uses(variable):
            subscript = enclosing(use, "subscript_expression")
            base = subscript.child_by_field_name("argument") if subscript is not None else None
            meant = self.source.meant(file, base) if base is not None and base.type == "identifier" else None
            if meant is None or (meant is not self.array and not self._is_followed(meant)):
                return False
        return True


@dataclass
class Moved(Walk):
    """Elements moved by a function of their places."""

    _is_called: bool = False

    @property
    def _function(self) -> str:
        """A name that no file of the source has."""
        name = f"{self.array.name}_at"
        while any(re.search(rb"\b%s\b" % name.encode(), file.data) for file in self.source.files):
            name += "_"
        return name

    def run(self) -> list[Edit]:
        """The edits, and the function if it is called."""
        super().run()
        if self._is_called:
            self._define_function()
        return self.edits

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
        if last.type == "number_literal" and count is not None:
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
        names, body = self._new_index()
        parameters = ", ".join(f"int {name}" for name in names)
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
        """An extent of several, or an element."""
        if pointer.extents_left > 1:
            terms = (*pointer.terms, ("+", index))
            self.follow(
                file, node, replace(pointer, terms=terms, extents_left=pointer.extents_left - 1, in_row=True)
            )
        elif len(self.extents) > 1:
            self._element_of_rows(file, node, pointer, index)
        else:
            self._element_of_flat(file, node, pointer, index)

    def element_at(self, file: File, node: Node, pointer: Pointer) -> None:
        """`*pointer`, or its address."""
        if len(self.extents) > 1:
            if pointer.only_index is None:
                self.refuse(file, node, "the array is used as one line")
            self._replace_last_index(file, pointer)
        elif (above := self.is_address(file, node)) is not None:
            self.follow(file, above, pointer)
        else:
            self._replace_address(file, node, pointer, follow=True)

    def _element_of_rows(self, file: File, node: Node, pointer: Pointer, index: Node) -> None:
        """`pointer[index]` in an array of several extents: an element, or the vector that it begins."""
        if pointer.only_index is not None and file.text(index) == "0":
            self._replace_last_index(file, pointer)
            return
        if pointer.type or len(pointer.terms) != len(self.extents) - 1 or pointer.only_index is not None:
            self.refuse(file, node, "the array is used as one line")
        found = replace(pointer, only_index=index)
        if (above := self.is_address(file, node)) is not None:
            self.follow(file, above, found)
        else:
            self._replace_last_index(file, found)

    def _replace_last_index(self, file: File, pointer: Pointer) -> None:
        """Replace the last index by the function's: `tile[r][c]` by `tile[r][tile_at(r, c)]`."""
        assert pointer.only_index is not None
        self._is_called = True
        if self.move.inside:
            self.edit(file, pointer.only_index, f"{self._function}(", pointer.only_index, ")")
            return
        rows = [part for _, part in pointer.terms]
        for row in rows if self.move.terms else ():
            if isinstance(row, Node) and not self.bounds.is_pure(file, row):
                self.refuse(file, row, "it may have an effect, and would stand twice")
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
        ratio = self.ratio(file, node, pointer)
        scaled = ("+", index) if ratio == 1 else (f"+ {ratio} *", index)
        if (above := self.is_address(file, node)) is not None:
            direct = index if not pointer.terms and ratio == 1 else None
            self.follow(file, above, replace(pointer, terms=(*pointer.terms, scaled), only_index=direct))
            return
        if file.text(index) == "0" and pointer.terms:
            self._replace_address(file, node, pointer, follow=True)
            return
        self._is_called = True
        whole = replace(pointer, terms=(*pointer.terms, scaled))
        divided = f" / {ratio}" if ratio > 1 else ""
        if not pointer.terms:
            self.edit(file, index, f"{self._function}(", *self._offset(whole), f"){divided}")
            return
        self.edit(
            file, node, f"{self._base(pointer)}[{self._function}(", *self._offset(whole), f"){divided}]"
        )

    def _base(self, pointer: Pointer) -> str:
        """The array as a pointer of this type, as C."""
        own = pointer.type in ("", self.array.type)
        return self.array.name if own else f"reinterpret_cast<{pointer.type}*>({self.array.name})"

    def _offset(self, pointer: Pointer) -> list[str | Node]:
        """The offset of a pointer as C, in text and nodes: its terms with their signs; 0 without any."""
        parts: list[str | Node] = []
        for sign, part in pointer.terms:
            alone = len(pointer.terms) == 1 and sign == "+"
            first = sign.removeprefix("+").lstrip()
            lead = f" {sign} " if parts else f"{first} " if first else ""
            parts += [lead, *([part] if alone else bracketed(part))]
        return parts or ["0"]

    def _replace_address(self, file: File, node: Node, pointer: Pointer, follow: bool = False) -> None:
        """Replace a pointer that is used by the element's address; with `follow`, `node` is `*pointer`."""
        if not pointer.terms:
            return
        self._is_called = True
        if pointer.only_index is not None:
            self.edit(file, pointer.only_index, f"{self._function}(", pointer.only_index, ")")
            return
        inner: list[str | Node] = [f"{self.array.name}[{self._function}(", *self._offset(pointer), ")]"]
        if pointer.type:
            inner = ["*" if follow else "", f"reinterpret_cast<{pointer.type}*>(&", *inner, ")"]
        elif not follow:
            inner = ["&", *inner]
        self.edit(file, node, *inner)

    def sum(self, file: File, node: Node, pointer: Pointer, sign: str, other: Node) -> None:
        """`pointer + other`: no edit, as the pointer keeps its old place; its offset grows."""
        if len(self.extents) > 1:
            self.refuse(file, node, "the array is used as one line")
        ratio = self.ratio(file, node, pointer)
        term = (sign, other) if ratio == 1 else (f"{sign} {ratio} *", other)
        direct = other if not pointer.terms and ratio == 1 and sign == "+" else None
        self.follow(
            file, node, replace(pointer, terms=(*pointer.terms, term), only_index=direct, extents_left=1)
        )

    def address(self, file: File, node: Node, pointer: Pointer) -> None:
        """Where the element lies now."""
        if len(self.extents) <= 1:
            self._replace_address(file, node, pointer)
        elif pointer.only_index is not None:
            self._replace_last_index(file, pointer)
        else:
            self.refuse(file, node, "the array is used as one line")

    def kept(self, file: File, node: Node, pointer: Pointer, variable: Variable, first: bool) -> None:
        """The variable keeps the old place; its uses are followed with its distance from the array."""
        if len(self.extents) > 1:
            self.refuse(file, node, "a pointer into the array is kept")
        if "volatile" in variable.file.text(variable.node).split("=")[0].split():
            name = (pointer.type or self.array.type).removeprefix("volatile ")
            pointer = replace(pointer, type=f"volatile {name}")
        ratio = self.ratio(file, node, pointer)
        terms: tuple[tuple[str, str | Node], ...] = ()
        if not first or pointer.terms:
            offset = f"int({variable.name} - {self._base(pointer)})"
            terms = (("+", offset if ratio == 1 else f"{ratio} * {offset}"),)
        for where, use in self.source.uses(variable):
            self.follow(where, use, replace(pointer, terms=terms, only_index=None, extents_left=1))

    def by_hand(self) -> str:
        """What a refusal advises: the function."""
        names, body = self._new_index()
        what = {"e": "element e", "c": "column c", "rc": "column c of row r"}[names]
        return f"{what} lies at {body}"

    def _new_index(self) -> tuple[str, str]:
        """The one-letter parameters of the function, and what it returns as C."""
        names = "c" if self.move.inside else "rc" if len(self.extents) > 1 else "e"
        return names, self.move.new_index(names[-1], self.element, "r" if names == "rc" else "")


def bracketed(part: str | Node) -> list[str | Node]:
    """A term or factor, in brackets if it needs them."""
    bare = isinstance(part, str) or not part.named_children or part.type in _CLOSED
    return [part] if bare else ["(", part, ")"]


def plus(text: str, extra: int, closed: bool = False) -> str:
    """An extent and so much more."""
    if extra == 0:
        return text
    if re.fullmatch(r"\d+", text):
        return str(int(text) + extra)
    if (padded := re.fullmatch(r"([\w ]+) \+ (\d+)", text)) is not None:
        text, extra = padded[1], extra + int(padded[2])
    return f"({text} + {extra})" if closed else f"{text} + {extra}"
