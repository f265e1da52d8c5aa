"""Problems in few lines, and files of them.

The first line of a problem says what is asked of whom, each further one an access, or a tile where there are several:

    32x33 f32, 64 threads; families none pad; max_bytes 4400; target sm_80
    rows: store 4 [i, tid]; i<33; where tid < 32
    columns: load 8|4 [tid % 32, 2*(tid // 32) + j]; j<16, k<2; weight 3
    bins: atomic 4 [b, 0]; any b<32
"""

import json
import re

import pytest
from msgspec.structs import replace

from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data

WORDS = ("target", "name", "notes", "minimise", "offset", "where", "tile", "any_is", "lanes", "values")
LISTS = ("families", "order")
LAYOUT = (*LISTS, "max_bytes", "alignment_bytes", "pitch_multiple_bytes", "minimise", "offset")


def problem_of(text, *accesses, **fields):
    """The problem that `data_of` describes."""
    return from_data(data_of(text, *accesses, **fields))


def data_of(text, *accesses, element=None, **fields):
    """The data of a problem.

    An element of 12 bytes is `12B`, one that is aligned to 4 of them `12B@4`.

    Args:
        text: its lines.
        accesses: further ones, each a line or data.
        element: where the text has none.
        fields: of the file.
    """
    first, *lines = [line.strip() for line in text.strip().splitlines()]
    asked, *clauses = first.split("; ")
    *tile, threads = asked.removesuffix(" threads").rsplit(", ", 1)
    found = {"name": "t", "threads": _number(threads), **_clauses(clauses)}
    tiles = [line.removeprefix("tile ") for line in lines if line.startswith("tile ")]
    if tiles:
        found["tiles"] = list(map(_named_tile, tiles))
    elif tile:
        found["tile"] = _tile(*tile, element)
    lines = [line for line in lines if not line.startswith("tile ")]
    found["accesses"] = [access_from(a) if isinstance(a, str) else a for a in (*lines, *accesses)]
    return {**found, **fields}


def access_from(text, **fields):
    """The data of an access: name, operation, bytes a lane and index; then loops, and fields by their names."""
    head, *clauses = text.split("; ")
    name, op, width, index = re.fullmatch(r"(.+?): (\S+)(?: ([\d|]+))?(?: \[(.*)\])?", head).groups()
    found = {"name": name, "op": op}
    if width is not None:
        widths = list(map(int, width.split("|")))
        found["bytes"] = widths[0] if len(widths) == 1 else widths
    if index is not None:
        found["index"] = _expressions(index)
    return {**found, **_clauses(clauses), **fields}


def _tile(text, element=None):
    shape, _, kind = text.partition(" ")
    size, _, align = kind.partition("@")
    if re.fullmatch(r"\d+B", size):
        kind = {"bytes": int(size[:-1]), **({"align": int(align)} if align else {})}
    return {"shape": [_number(n) for n in shape.split("x")], "element": element or kind}


def _named_tile(text):
    name, rest = text.split(": ", 1)
    tile, *clauses = rest.split("; ")
    return {"name": name, **_tile(tile), **_clauses(clauses)}


def _clauses(clauses):
    """Fields by their names; constraints are those of `layout`, what has no name is loops."""
    found, layout = {}, {}
    for clause in clauses:
        field, _, value = clause.partition(" ")
        if field in LISTS:
            value = [_number(word) for word in value.split()]
        elif field == "published":
            size, _, offset = value.partition(" ")
            value = {"offset": offset, "bytes": int(size)}
        elif "<" in field:
            field, value = "for", _loops(clause)
        elif field == "any":
            value = _loops(value)
        elif field not in WORDS:
            value = _number(value)
        (layout if field in LAYOUT else found)[field] = value
    return {**found, "layout": layout} if layout else found


def _loops(text):
    return {name: _number(trips) for name, trips in (loop.split("<", 1) for loop in text.split(", "))}


def _number(text):
    """A number, or the expression that gives one."""
    return int(text) if text.isdigit() else float(text) if re.fullmatch(r"\d+\.\d+", text) else text


def _expressions(text):
    """Parts between the commas that stand in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def one_tile(name, shape, element, threads, accesses, **more):
    """The data of a problem; `more`: its further fields."""
    tile = {"shape": shape, "element": element}
    return {"name": name, "tile": tile, "threads": threads, "accesses": accesses, **more}


def saved(folder, name, data):
    """The path of a file that holds the data as JSON."""
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def text_file(folder, text, name="k.cu"):
    """The path of a file that holds the text, in a folder that is made where it is not there."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def batched_rows_and_columns(size, count, element, width):
    """Matrices of which each lane has a row, then a column; a warp spans several."""
    row, other = f"tid//{size}", f"tid%{size}"
    return data_of(f"""{count}x{size}x{size} {element}, {count * size} threads; name batched
        rows: store {width} [{row}, j, {other}]; j<{size}
        columns: load {width} [{row}, {other}, j]; j<{size}""")


def planes():
    """Three lines of a plane of four points: every two meet, on two banks."""
    lines = (f"line {d}: load 4 [(tid * {d}) ^ c]; c<4" for d in (1, 2, 3))
    return data_of("4 f32, 2 threads", *lines)


def ring(*weights, more=""):
    """Five words in a ring, each pair met with two more: no five words meet, and four banks are too few."""
    pairs = (by_lane([k, (k + 1) % 5, "tid + 3"]) for k in range(5))
    lines = (f"a{k}: load 4 [{pair}]" for k, pair in enumerate(pairs))
    weighted = (f"{line}; weight {weight}" for line, weight in zip(lines, weights, strict=True))
    return data_of(f"7 f32, 4 threads; target toy_4_4{more}", *(weighted if weights else lines))


def lines_of(n, m=None, lines=("rows", "columns", "diagonals"), **layout):
    """Words in n rows of m, of which m lanes have a row, a column or a wrapped diagonal at a time."""
    m = m or n
    row = "tid" if m <= n else f"min(tid, {n - 1})"
    index = {"rows": f"[i, tid]; i<{n}", "columns": f"[{row}, i]; i<{m}"}
    index["diagonals"] = f"[{row}, (tid + i) % {m}]; i<{m}"
    accesses = [f"{name}: load 4 {index[name]}" for name in lines]
    return data_of(f"{n}x{m} f32, {m} threads", *accesses, layout=layout)


def by_lane(values):
    """An expression that gives lane k the k-th value."""
    *others, text = map(str, values)
    for lane, value in reversed([*enumerate(others)]):
        text = f"({value} if tid == {lane} else {text})"
    return text


def constrained(problem, **layout):
    """The problem with other constraints on its layout."""
    return replace(problem, layout=replace(problem.layout, **layout))


def refused_with(message, error=ProblemFileError):
    """The wrong file or request is refused, in these words."""
    return pytest.raises(error, match=re.escape(message))


def rows_of(comparison):
    """Its rows by their families."""
    return {row.family: row for row in comparison.rows}
