"""Problems as text: in a few words, and as a file that people read."""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import shown, writable
from layoutopt.problems.answer import AccessReport
from layoutopt.problems.types import Access, Block, Problem, Tile

_SHOWN: Final = 8  # entries of a table
_FIRST: Final = ("name", "op", "bytes", "index", "for")  # fields of an access in a file
_TABLE: Final = re.compile(r"\[([-\d\s,]+)\]")


def tile_text(problem: Problem | Block) -> str:
    """Shape and element of the tile; of several, the name and the stages of each, too."""
    if isinstance(problem, Problem):
        return shape_text(problem.tile)
    return ", ".join(
        f"{tile.name} {shape_text(tile)}" + (f" in {tile.stages} stages" if tile.stages > 1 else "")
        for tile in problem.tiles
    )


def shape_text(tile: Tile) -> str:
    """Shape and element."""
    element = tile.element if isinstance(tile.element, str) else f"{tile.element.bytes}-byte elements"
    return f"{'x'.join(map(str, tile.shape))} {element}"


def widths_text(widths: Mapping[str, int]) -> str:
    """Widths chosen by access name, in bytes."""
    return ", ".join(f"`{name}` of {width} bytes" for name, width in widths.items())


def lanes_text(asked: Problem, chosen: Problem) -> str:
    """The lanes chosen, by access name, where `asked` leaves them free."""
    return " and ".join(
        f"`{access.name}`{instruction_text(source, access)} at [{', '.join(map(str, access.index))}]"
        for source, access in zip(asked.accesses, chosen.accesses, strict=True)
        if source.is_free
    )


def count_text(count: float, one: str, more: str = "") -> str:
    """`1 byte`, `12 bytes`."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def instruction_text(source: Access, chosen: Access | AccessReport, times: int | None = None) -> str:
    """The instruction chosen and which elements it moves together, where `source` leaves them free."""
    if source.instructions is None:
        return ""
    size = f" {chosen.bytes} bytes" if chosen.bytes is not None else ""
    return f" {f'{times} x ' if times else 'by '}{chosen.op}{size}{vector_text(chosen.vector)}"


def vector_text(vector: Sequence[Sequence[int]] | None) -> str:
    """Where the elements of a vector lie, unless along the last dimension."""
    if not vector:
        return ""
    along = {d for steps in vector for d, far in enumerate(steps) if far}
    if len(along) == 1 and [sum(steps) for steps in vector] == [1 << k for k in range(len(vector))]:
        return f" along x{min(along)}"
    return f" of elements {listed([list(steps) for steps in vector])} apart"


def listed(items: Sequence[object], shown: int = 8) -> str:
    """Items as "a, b and c", all but the first few as a number; whole numbers in equal steps as a range."""
    texts = [str(item) for item in items]
    if len(texts) > shown + 1:
        if all(isinstance(item, int) for item in items):
            steps = {b - a for a, b in itertools.pairwise(items)}  # type: ignore[operator]
            if len(steps) == 1:
                return f"{texts[0]}, {texts[1]}, ... {texts[-1]}"
        texts = [*texts[:shown], f"{len(texts) - shown} more"]
    return ", ".join(texts[:-1]) + (" and " if len(texts) > 1 else "") + texts[-1]


def problem_text(data: Mapping[str, Any]) -> str:
    """JSON text of problem data, ending in a newline; accesses start with name and op.

    Raises:
        ProblemFileError: it holds what is no text, such as bytes of the command line that are no UTF-8.
    """
    lines = []
    for key, value in data.items():
        if key == "accesses":
            ordered = ({k: access[k] for k in _FIRST if k in access} | access for access in value)
            accesses = ",\n".join(f"  {json.dumps(access, ensure_ascii=False)}" for access in ordered)
            lines.append(f' "accesses": [\n{accesses}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if writable(text) != text:
        wrong = next(c for c in text if writable(c) != c)
        raise ProblemFileError("", f"half of a surrogate pair is no character; given {shown(wrong)}")
    return text


def abridged(expression: str) -> str:
    """An expression with the tables in it cut short, for people."""

    def cut(match: re.Match[str]) -> str:
        entries = match[1].split(",")
        short = f"[{','.join(entries[:_SHOWN])}, ... {len(entries)} entries]"
        return match[0] if len(entries) <= _SHOWN else short

    return _TABLE.sub(cut, expression)


def tables(expressions: Iterable[str]) -> list[tuple[int, ...]]:
    """The tables in some expressions, each once."""
    texts = [match for expression in expressions for match in _TABLE.findall(expression)]
    return [tuple(map(int, text.split(","))) for text in dict.fromkeys(texts)]
