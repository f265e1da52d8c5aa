"""Spaces of bit vectors over F2: integers whose sum is their XOR."""

from collections.abc import Iterable, Sequence


class Span:
    """The space that vectors span, grown one at a time, and a linear map from it: the *tag* of each vector.

    A vector is added with the integer that the map takes it to; sums of vectors have the sums (XORs) of their
    tags. So a tag may say of which vectors a sum is made (tags 1, 2, 4, ...), or the values of functionals.
    """

    __slots__ = ("_rows",)

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        self._rows: list[tuple[int, int]] = []
        for vector in vectors:
            self.add(vector)

    def __len__(self) -> int:
        """The dimension."""
        return len(self._rows)

    def remainder(self, vector: int, tag: int = 0) -> tuple[int, int]:
        """`vector` minus a vector of the span, 0 if it lies there; and `tag` minus the tag of that vector."""
        for row, row_tag in self._rows:
            if vector ^ row < vector:
                vector ^= row
                tag ^= row_tag
        return vector, tag

    def add(self, vector: int, tag: int = 0) -> bool:
        """Add a vector; False where it was in the span."""
        vector, tag = self.remainder(vector, tag)
        if vector:
            self._rows.append((vector, tag))
        return vector != 0

    def __contains__(self, vector: int) -> bool:
        return self.remainder(vector)[0] == 0

    def copy(self) -> "Span":
        """Another span of the same vectors."""
        other = Span()
        other._rows = self._rows.copy()
        return other

    def vectors(self) -> list[int]:
        """A basis."""
        return [vector for vector, _ in self._rows]

    def functional(self, bit: int) -> int:
        """The mask m such that parity(m & v) is bit `bit` of the tag of v, for every vector v added."""
        mask = 0
        # A row has no bit above its highest, so that a higher row's bit disturbs no lower one.
        for vector, tag in sorted(self._rows):
            if ((mask & vector).bit_count() ^ tag >> bit) & 1:
                mask |= 1 << (vector.bit_length() - 1)
        return mask


def sum_of_bits(vectors: Sequence[int | None], mask: int) -> int:
    """The sum of the vectors number i for which bit i of the mask is set; None counts as 0."""
    total = 0
    for i, vector in enumerate(vectors):
        total ^= (vector or 0) if mask >> i & 1 else 0
    return total


def independent(vectors: Iterable[int], modulo: Iterable[int] = ()) -> list[int]:
    """Those of `vectors` that are independent of the ones before them and of `modulo`."""
    span = Span(modulo)
    return [vector for vector in vectors if span.add(vector)]


def intersection(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """A basis of what both span; vectors of `a` that lie in the span of `b` stand in it as they are.

    A vector of `a` in the span of `b` and of the vectors of `a` before it gives one: the sum of the vectors
    of `a` that it and they make up.
    """
    both = Span(b)  # tag: the part of a vector that is made of `a`
    common = independent(v for v in a if v in both)
    if len(common) == min(len(a), len(b)):
        return common
    found = Span(common)
    for vector in a:
        rest, part_of_a = both.remainder(vector, vector)
        if rest:
            both.add(vector, vector)
        elif found.add(part_of_a):
            common.append(part_of_a)
    return common


def kernel(vectors: Iterable[int], functionals: Sequence[int]) -> list[int]:
    """A basis of the vectors of a span on which all functionals vanish.

    A functional is a mask: its value at v is the parity of `mask & v`.
    """
    images = Span()  # of the vectors, bit i the value of functional i; tag: the vector itself
    basis = []
    for vector in vectors:
        image = sum(((f & vector).bit_count() & 1) << i for i, f in enumerate(functionals))
        rest, in_kernel = images.remainder(image, vector)
        if rest:
            images.add(image, vector)
        elif in_kernel:
            basis.append(in_kernel)
    return basis
