"""Spaces of bit vectors over F2: integers whose sum is their XOR."""

from collections.abc import Iterable, Sequence


class Span:
    """What vectors span, grown one at a time; each keeps what it was made of.

    A vector may carry a tag, an integer that is added with it: `remainder` then returns the tag that
    belongs to what it took away, so that a tag may be a combination of generators, or the values of
    functionals.
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
        """`vector` less what lies in the span, and `tag` less the tags of that."""
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


def total(vectors: Sequence[int | None], mask: int) -> int:
    """The sum of the vectors whose bits the mask has; None counts as 0."""
    found = 0
    for i, vector in enumerate(vectors):
        found ^= (vector or 0) if mask >> i & 1 else 0
    return found


def independent(vectors: Iterable[int], modulo: Iterable[int] = ()) -> list[int]:
    """Those of `vectors` that are independent of the ones before them and of `modulo`."""
    span = Span(modulo)
    return [vector for vector in vectors if span.add(vector)]


def intersection(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """A basis of what both span; vectors of `a` that lie in the span of `b` stand in it as they are."""
    other = Span(b)
    common = independent(v for v in a if v in other)
    if len(common) == min(len(a), len(b)):
        return common
    within = Span(common)
    for vector in a:
        rest, combination = other.remainder(vector, vector)
        if rest:
            other.add(vector, vector)
        elif within.add(combination):
            common.append(combination)
    return common


def kernel(vectors: Iterable[int], functionals: Sequence[int]) -> list[int]:
    """A basis of the vectors of a span on which all functionals vanish."""
    rows = Span()
    found = []
    for vector in vectors:
        image = sum(((f & vector).bit_count() & 1) << i for i, f in enumerate(functionals))
        rest, made = rows.remainder(image, vector)
        if rest:
            rows.add(image, vector)
        elif made:
            found.append(made)
    return found
