"""A store as a C++ header: a constexpr table of layouts, looked up by the parameters of the sweep.

    constexpr auto tile = layoutopt_gemm::tiles[layoutopt_gemm::find(64, 128)];
    __shared__ alignas(tile.alignment_bytes) unsigned char smem[tile.bytes];
    smem[layoutopt_gemm::offset_bytes(tile, row, column)]   // folded, since `tile` is constexpr

Tiles with the same formula share it. Layouts that are tables are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from layoutopt import __version__
from layoutopt.codegen.c_text import helpers, to_c
from layoutopt.codegen.templates import filled, lines
from layoutopt.expressions.grammar import Const, Op, Var, substituted
from layoutopt.ground.escape import comment, identifier
from layoutopt.layout.formula import coordinate_ranges, offset_expression
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Result
from layoutopt.sweeps.rows import Answered, typed
from layoutopt.sweeps.store import Store


def write_header(store: Store, file: BinaryIO, name: str) -> None:
    """The header, in the namespace layoutopt_NAME."""
    params: dict[str, bool] = {}  # whether all values are integers
    rank, count, left_out = 1, 0, []
    for one, result in _results(store):
        layout = result.layout if result is not None else None
        if layout is None or layout.lookup:
            why = "its layout is a table" if layout is not None else f"it has no layout ({one.status})"
            left_out.append(f"// {comment(one.tile.name)} is not here: {why}")
            continue
        count, rank = count + 1, max(rank, len(layout.shape))
        for param, value in one.tile.params.items():
            params[param] = isinstance(value, int) and params.get(param, True)
    name = f"layoutopt_{identifier(name)}"
    head = filled(
        "sweep",
        "head",
        NAMESPACE=name,
        PARAMETERS=lines((f"{_type(number)} param_{p};" for p, number in params.items()), 4),
        RANK=rank,
        COUNT=count,
        AT_LEAST_ONE=max(1, count),
    )
    about = [
        f"// {count} tiles by layoutopt {__version__}",
        f"// constexpr auto tile = {name}::tiles[{name}::find(...)];",
        *left_out,
    ]
    file.write((lines(about) + head).encode())
    formulas: dict[str, int] = {}
    for one, result in _results(store):
        if result is not None and result.layout is not None and not result.layout.lookup:
            formula = formulas.setdefault(_formula(result.layout), len(formulas))
            file.write(f"    {_entry(one, result, result.layout, params, formula)},\n".encode())
    cases = lines((f"case {number}: return {text};" for text, number in formulas.items()), 4)
    called = lines(helpers(cases, "of", "LAYOUTOPT_FUNCTION", "long long"))
    text = filled("sweep", "functions", CALLED=called, RANK=rank, FORMULAS=cases) + _find(params)
    file.write(f"{text}}}  // namespace {name}\n".encode())


def _results(store: Store) -> Iterator[tuple[Answered, Result | None]]:
    """The problems, with the answers to those of one tile."""
    for one in store.answered():
        found = typed(one.answer) if one.answer is not None else None
        yield one, found if isinstance(found, Result) else None


def _formula(layout: Layout) -> str:
    """The byte offset in C, over x[0], x[1], ..."""
    named = {f"x{d}": Var(f"x[{d}]") for d in range(len(layout.shape))}
    offset = Op("*", (substituted(offset_expression(layout), named), Const(layout.element_bytes)))
    return to_c(offset, {f"x[{x[1:]}]": r for x, r in coordinate_ranges(layout.shape).items()}, called="of")


def _entry(one: Answered, result: Result, layout: Layout, params: dict[str, bool], formula: int) -> str:
    values = [_text(one.tile.name)]
    for name, number in params.items():
        value = one.tile.params.get(name, 0 if number else "")
        values.append(f"{value}" if number else _text(str(value)))
    values += map(str, (result.bytes, result.declared_bytes, result.alignment_bytes, result.excess))
    shape = ", ".join(map(str, layout.shape))
    return f"{{{', '.join(values)}, {len(layout.shape)}, {{{shape}}}, {formula}}}"


def _text(text: str) -> str:
    """A string literal of C++."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{plain}"'


def _find(params: dict[str, bool]) -> str:
    """Functions that give the number of a tile, by its name and, where there are any, its parameters."""
    same = "same(tiles[k].name, name)"
    text = filled("sweep", "find", NAME="find_name", DECLARED="const char* name", TESTS=same)
    if not params:
        return text
    declared = ", ".join(f"{_type(number)} param_{p}" for p, number in params.items())
    tests = " && ".join(
        f"tiles[k].param_{p} == param_{p}" if number else f"same(tiles[k].param_{p}, param_{p})"
        for p, number in params.items()
    )
    return text + filled("sweep", "find", NAME="find", DECLARED=declared, TESTS=tests)


def _type(number: bool) -> str:
    """The type of a parameter in C++."""
    return "long long" if number else "const char*"
