"""A source with an array transposed: where threads read down a column, compilers then join what they read.

As[128][8], As[m][k]                ->   As[8][128 + 4], As[k][m]
As[BM * BK], As[m * BK + k]         ->   As[BK * (BM + 4)], As[m + k * (BM + 4)]
"""

from dataclasses import dataclass

from msgspec.structs import replace
from tree_sitter import Node

from layoutopt.kernels.read.source import File, Variable, product_of
from layoutopt.source.edits import Edit
from layoutopt.source.rewrite import Pitch, Pitched, bracketed, plus
from layoutopt.source.walk import Pointer, Walk


@dataclass
class Transposed(Pitched):
    """Rows written as columns, and columns as rows: indices change places, or pitches do."""

    _column_pitch: str = ""

    def run(self) -> list[Edit]:
        """The edits."""
        return Walk.run(self)

    def declare(self) -> None:
        """Two extents change places, or the two factors of one."""
        file, extra = self.array.file, self.move.extra // self.element
        last = self.array.extents[-1]
        assert last is not None
        if len(self.extents) > 1:
            rows = self.array.extents[-2]
            assert rows is not None
            self.edit(file, rows, file.text(last))
            self.edit(file, last, plus(file.text(rows), extra))
            return
        width, factors = self.move.row // self.element, list(product_of(last, file))
        worth = [self.values.integer(file, one) for one in factors]
        if worth in ([width, self.move.rows], [self.move.rows, width]):
            columns, rows = factors if worth[0] == width else reversed(factors)
            self._note_pitch(file, columns, True)
            self._column_pitch = plus(file.text(rows), extra, closed=True)
            self.edit(file, last, f"{file.text(columns)} * {self._column_pitch}")
        elif self.values.varies(file, last):
            self.refuse(file, last, "the number of rows has no name")
        else:
            self._column_pitch = str(self.move.column_bytes // self.element)
            self.edit(file, last, f"{width} * {self._column_pitch}")

    def subscript(self, file: File, node: Node, pointer: Pointer, index: Node) -> None:
        """The last two indices of several change places."""
        if len(self.extents) <= 1:
            super().subscript(file, node, pointer, index)
        elif pointer.extents_left > 1:
            terms = (*pointer.terms, ("+", index))
            self.follow(file, node, replace(pointer, extents_left=pointer.extents_left - 1, terms=terms))
        else:
            row = node.child_by_field_name("argument")
            base = row.child_by_field_name("argument") if row is not None else None
            if base is None or pointer.type or len(pointer.terms) != len(self.extents) - 1:
                self.refuse(file, node, "the array is used as one line")
            if not self.bounds.is_pure(file, node):
                self.refuse(file, node, "an index may have an effect, and they change places")
            self.edit(file, node, base, "[", index, "][", pointer.terms[-1][1], "]")
            self.element_at(file, node, pointer)

    def element_at(self, file: File, node: Node, pointer: Pointer) -> None:
        """Vectors would not stay whole."""
        self.ratio(file, node, pointer)
        super().element_at(file, node, pointer)

    def kept(self, file: File, node: Node, pointer: Pointer, variable: Variable, first: bool) -> None:
        """Of several extents, a row is none any more."""
        self._one_line(file, node)
        super().kept(file, node, pointer, variable, first)

    def passed(self, file: File, node: Node, pointer: Pointer, function: Node, parameter: Variable) -> None:
        """Likewise."""
        self._one_line(file, node)
        super().passed(file, node, pointer, function, parameter)

    def matrix(self, file: File, node: Node, pointer: Pointer, call: Node) -> None:
        """As any other array."""
        Walk.matrix(self, file, node, pointer, call)

    def _offset(self, file: File, node: Node, pointer: Pointer, sign: str, other: Node) -> Pointer:
        self._one_line(file, node)
        return super()._offset(file, node, pointer, sign, other)

    def _one_line(self, file: File, node: Node) -> None:
        if len(self.extents) > 1:
            self.refuse(file, node, "a pointer into rows is used")

    def row(self, file: File, term: Node, factor: Node, rows: int, pitch: Pitch) -> None:
        """The row becomes a column: its factor, the pitch, goes."""
        factors: list[str | Node] = [other for other in product_of(term, file) if other != factor]
        if rows > 1 or not factors:
            quotient = f"({file.text(factor)} / {pitch.width})"
            factors.append(str(rows) if factor.type == "number_literal" or rows == 1 else quotient)
        self.edit(file, term, *[part for one in factors for part in (" * ", *bracketed(one))][1:])

    def shifted(self, file: File, term: Node, left: Node, rows: int, pitch: Pitch) -> None:
        """Likewise: the shift goes."""
        self.edit(file, term, *bracketed(left), f" * {rows}" if rows > 1 else "")

    def column(self, file: File, term: Node) -> None:
        """The column becomes a row: it is multiplied by the new pitch."""
        if file.text(term) != "0":
            self.edit(file, term, *bracketed(term), f" * {self._column_pitch}")

    def by_hand(self) -> str:
        """The new index."""
        return f"column c of row r lies at c * {self.move.column_bytes // self.element} + r"
