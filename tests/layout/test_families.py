"""The list of families: one meaning each, and one place to add one; layouts as formulas and as data of other tools."""

import itertools
import re

import numpy as np
import pytest
from command import python
from conftest import ROOT
from emit_programs import GCC, built, emit
from written import batched_rows_and_columns, lines_of, problem_of, rows_of, saved

from layoutopt import Layout, compare, solve
from layoutopt.accesses.trace import trace
from layoutopt.expressions.grammar import evaluate, lookups, parse, to_text
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.layout.families import FAMILIES, NAMES, comparison_rows
from layoutopt.layout.formula import offset_expression, spelled
from layoutopt.layout.layout import Digit, Target, row_major
from layoutopt.model.linearisations import unpadded
from layoutopt.model.pads import PADDED, padded
from layoutopt.model.space import space_of

# A new family needs its record, and a stream of its candidates: an odd pitch, of the kind (pitch | 1).
TOY = """
from msgspec.structs import replace
from layoutopt.layout import families

toy = families.Family("odd", row="odd", title="odd pitch", label=lambda layout: f"pitch {layout.pitch}")
families.FAMILIES = (*families.FAMILIES, toy)
families.NAMES = (*families.NAMES, "odd")

from layoutopt.model import linearisations, pads

def odd_pitches(space, cuts):
    if space.vector > 1:
        return
    for plain in linearisations.unpadded(replace(space, families=frozenset(("none",))), 0):
        outer, inner = plain.digits
        outer = type(outer)(outer.dim, outer.divide, outer.size, outer.stride | 1)
        span = (outer.size - 1) * outer.stride + inner.size
        candidate = replace(plain, digits=(outer, inner), span=span, family="odd", may_swizzle=False)
        yield pads.Stream((span, plain.operations), lambda: iter([candidate]))

pads.PADDED["odd"] = odd_pitches

# Nothing else is told of it.
import json, sys
import layoutopt
from click.testing import CliRunner
from layoutopt.cli.commands import main

path = sys.argv[1]
problem = layoutopt.load(path)
assert problem.layout.families == ("none", "odd")
result = layoutopt.solve(problem)
assert (result.family, result.offset, result.excess) == ("odd", "x0*9 + x1", 0)
rows = json.loads(CliRunner().invoke(main, ["compare", path, "--json"]).output)["rows"]
assert [(r["title"], r["label"], r["offset"], r["excess"]) for r in rows if r["family"] == "odd"] == [
    ("odd pitch", "pitch 9", "x0*9 + x1", 0)
]
explained = CliRunner().invoke(main, ["explain", path]).output
assert "Without the pad" in explained, explained
emitted = CliRunner().invoke(main, ["emit", path, "--lang", "cute"]).output
assert "cute::Stride<cute::Int<9>, cute::Int<1>>" in emitted, emitted
helped = CliRunner().invoke(main, ["solve", "--help"]).output
assert "odd" in helped
"""


def test_a_new_family_is_a_record_and_its_candidates(tmp_path):
    data = lines_of(8, lines=("rows", "columns"), families=["none", "odd"])
    done = python("-c", TOY, saved(tmp_path, "p.json", data), timeout=100)
    assert done.returncode == 0, done.stderr


def test_every_family_with_pads_is_in_the_list():
    assert set(PADDED) < {family.name for family in FAMILIES}
    for name, families in comparison_rows().items():
        assert len({family.title for family in families}) == 1, name


def test_interval_pads_are_a_row_of_their_own():
    """Whatever other families the problem allows."""
    rows = rows_of(compare(from_data(lines_of(32, lines=("rows", "columns"), families=["none", "interval"]))))
    row = rows["interval"]
    got = row.excess, row.bytes, row.label, row.offset
    assert got == (0, 4220, "1 after every 32", "x0*33 + x1")
    assert rows["pad"].wavefronts is None


@pytest.mark.parametrize(
    ("shape", "index", "stride"),
    [
        ("6x20", "tid // 20, tid % 20", "tid % 6, tid % 20"),
        ("48", "tid", "tid % 48"),
        ("5x4x6", "tid % 5, 0, i", "tid % 5, tid % 4, tid % 6"),
    ],
)
def test_an_interval_is_the_same_to_solve_and_to_compare(shape, index, stride):
    """Lengths that are no power of two: both look at the same pads."""
    problem = problem_of(f"""{shape} f32, 32 threads; families none interval
        r: load 4 [{index}]; i<6
        s: load 4 [{stride}]""")
    result, row = solve(problem), rows_of(compare(problem))["interval"]
    assert (row.excess, row.bytes) == (result.excess, result.bytes)


@pytest.mark.parametrize(
    ("families", "lengths"),
    [
        (("interval",), {2, 4, 5, 8, 10, 16, 20, 32, 40, 60, 64}),
        # Pads of whole rows are searched as such, and pads beside a cut.
        (("interval", "pad"), {2, 4, 5, 8, 10, 16, 32, 40, 60, 64}),
        (("interval", "pad", "split"), {2, 4, 8, 16, 32, 64}),
    ],
)
def test_the_lengths_of_interval_pads(families, lengths):
    problem = problem_of("6x20 f32, 16 threads", "rows: store 4 [i, tid]; i<6")
    space = space_of(problem, trace(problem, device("sm_90")), 128, families)
    assert {c.interval[0] for c in padded(space)} - {0} == lengths


@pytest.mark.parametrize("name", NAMES)
def test_row_major_belongs_to_every_family(name):
    found = solve(problem_of(f"4x32 f32, 32 threads; families {name}", "a: load 4 [i, tid]; i<4"))
    assert (found.family, found.excess, found.offset) == ("none", 0, "x0*32 + x1")


PAGE = (ROOT / "docs" / "families.md").read_text()
PICTURES = re.findall(r"```layout\n(.*?)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("formula", "drawn"), PICTURES)
def test_picture(formula, drawn):
    grids = {f"x{d}": g for d, g in enumerate(np.indices((4, 4)))}
    offsets = np.broadcast_to(evaluate(parse(formula, frozenset(grids)), grids), (4, 4))
    assert len(np.unique(offsets)) == 16
    numbers = [[int(n) for n in line.split()] for line in drawn.splitlines()]
    assert numbers == np.hstack((offsets, offsets % 4)).tolist()


def test_every_family_has_its_row_and_its_section():
    assert re.findall(r"^## (\w+): ", PAGE, re.MULTILINE) == list(NAMES)
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(NAMES)
    assert all("```layout" in section for section in re.split(r"^## ", PAGE, flags=re.M)[1 : len(NAMES) + 1])


def layout(table, element_bytes=4):
    return Layout(table.shape, element_bytes, (), lookup=tuple(table.ravel().tolist()))


@pytest.mark.parametrize(
    ("shape", "offset"),
    [
        ((31, 32), lambda x, y: x * 32 + (y + x + x // 16) % 32),
        ((31, 32), lambda x, y: y * 31 + (x + 3 * y) % 31),
        ((5, 4, 6), lambda x, y, z: y * 30 + (x * 6 + z + 7 * y) % 30),
        ((5, 4, 6), lambda x, y, z: x * 24 + (z * 4 + y + (5 * x - x // 2)) % 24),
        ((6, 10), lambda x, y: x * 10 + (y + np.array([3, 1, 4, 1, 5, 9])[x]) % 10),
        ((4, 8), lambda x, y: x * 8 + (y ^ x)),
    ],
)
def test_a_table_with_a_formula_is_spelled(shape, offset):
    table = offset(*np.indices(shape))
    node = offset_expression(layout(table))
    assert all(len(found.values) <= 6 for found in lookups(node)), to_text(node)
    values = evaluate(node, {f"x{d}": g for d, g in enumerate(np.indices(shape))})
    assert (values == table).all()


def test_a_table_without_a_formula_stays_a_table():
    table = np.random.default_rng(3).permutation(24).reshape(4, 6)
    assert spelled(tuple(table.ravel().tolist()), (4, 6)) is None
    assert to_text(offset_expression(layout(table))) == "lookup[x0*6 + x1]"


def test_code_of_a_formula_with_a_small_table(tmp_path):
    v = "x0*11 + x1*3 + x2"
    offset = f"{v} - ([8, 10][{v} - 18] if {v} >= 18 else 0)"
    problem, gpu = from_data(batched_rows_and_columns(3, 2, "f32", 4)), device("sm_90")
    call = 'printf("%u %u", batched_offset_bytes(1, 2, 2), batched_offset_bytes(1, 2, 0));'
    text = f"#include <stdio.h>\n{emit('c', problem, gpu, offset)}\nint main(void) {{ {call} }}\n"
    assert built(tmp_path, text, "-Wno-unused-function", compiler=GCC) == f"{4 * 9} {4 * 17}"


def test_orders_that_keep_the_pieces_of_a_cut_together_are_as_if_not_cut():
    """What `split` leaves out of "any order" is what an order without the cut has already."""
    assert "but those that keep the pieces of a cut together, which are as if not cut" in PAGE
    tile = problem_of("4x6 f32, 24 threads", "a: load 4 [tid // 6, tid % 6]")
    space = space_of(tile, trace(tile, device("sm_90")), 128, ("none", "order", "split"))

    def dense(pieces):
        """Offsets of every element, the last piece fastest; a piece is a dimension, a divisor and a size."""
        x, stride, offset = np.indices((4, 6)), 1, 0
        for dim, divide, size in reversed(pieces):
            offset = offset + x[dim] // divide % size * stride
            stride *= size
        return offset.tobytes()

    searched = {cut: {c.table((4, 6)).tobytes() for c in unpadded(space, cut)} for cut in (0, 1)}
    rows, columns = (0, 1, 4), (1, 1, 6)
    cuts = [((0, 2, 2), (0, 1, 2), columns), *((rows, (1, c, 6 // c), (1, 1, c)) for c in (2, 3))]
    every = {dense(order) for cut in cuts for order in itertools.permutations(cut)}
    assert searched[0] == {dense(order) for order in itertools.permutations((rows, columns))}
    assert not searched[1] & searched[0]
    assert searched[1] | searched[0] == every


ROWS = (Digit(0, 1, 32, 32), Digit(1, 1, 32, 1))
SWIZZLED = Layout((32, 32), 4, ROWS, tuple(Target(b, 32 << b) for b in range(3)))
WITH_PADS = Layout((32, 32), 4, (Digit(0, 1, 32, 33), Digit(1, 1, 32, 1)))
SPREAD = Layout((32, 32), 4, ROWS, interval=(64, 4))
TURNED = Layout((32, 32), 4, ROWS, turn=1)
PAGES = Layout((12, 16), 2, (Digit(1, 4, 4, 48), Digit(0, 1, 12, 4), Digit(1, 1, 4, 1)))
TABLE = Layout((2, 2), 4, (), lookup=(3, 1, 0, 2))


def every(layout):
    return itertools.product(*map(range, layout.shape))


def bits(number):
    return (k for k in range(number.bit_length()) if number >> k & 1)


@pytest.mark.parametrize("layout", [SWIZZLED, row_major((8, 16), 2)])
def test_linear_bases(layout):
    columns, reason = layout.linear_bases()
    assert reason is None
    for x in every(layout):
        parts = [columns[d][k] for d, number in enumerate(x) for k in bits(number)]
        assert np.bitwise_xor.reduce([0, *parts]) == layout.element_offset(*x)


@pytest.mark.parametrize("layout", [WITH_PADS, TURNED, SPREAD])
def test_not_linear(layout):
    assert layout.linear_bases() == (None, "the offset is not linear over F2")


def mode(shape, stride, number):
    """CuTe: a coordinate of a nested mode counts its first part fastest."""
    if isinstance(shape, int):
        return number * stride
    total = 0
    for extent, step in zip(shape, stride, strict=True):
        total, number = total + number % extent * step, number // extent
    return total


@pytest.mark.parametrize("layout", [SWIZZLED, WITH_PADS, PAGES, row_major((3, 5, 7), 4)])
def test_cute(layout):
    data, _ = layout.cute()
    for x in every(layout):
        offset = sum(map(mode, data["shape"], data["stride"], x))
        if data["swizzle"]:
            count, base, shift = data["swizzle"]
            offset ^= (offset & ((1 << count) - 1) << (base + shift)) >> shift
        assert offset == layout.element_offset(*x)


def test_cute_has_no_such_form():
    for layout in (TURNED, SPREAD, TABLE):
        assert layout.cute() == (None, "tables, turned lines and interval pads are no shape and stride")
    twice = Layout((32, 32), 4, ROWS, (Target(0, 32 | 64),))
    assert twice.cute() == (None, "no Swizzle<B, M, S> flips these bits")


@pytest.mark.parametrize("layout", [SPREAD, Layout((32, 32), 4, WITH_PADS.digits)])
def test_padded(layout):
    data, _ = layout.padded()
    for place in range(32 * 32):
        x = np.bitwise_xor.reduce([[0, 0], *(data["offset_bases"][k] for k in bits(place))])
        pads = sum(place // every * pad for every, pad in data["interval_padding_pairs"])
        assert place + pads == layout.element_offset(*x)


def test_no_padded_form():
    assert PAGES.padded().reason == "padded layouts have extents that are powers of two"
    assert TURNED.padded().reason == "the order of the elements is not linear over F2"
    wide = Layout((32, 32), 4, (Digit(0, 1, 32, 35), Digit(1, 1, 32, 1)))
    reason = "each offset basis of a padded layout moves by a power of two in one dimension"
    assert SWIZZLED.padded() == (None, reason)  # as Triton's compiler says
    assert row_major((8, 16), 2).padded() == (None, "padded layouts have at least one pad")
    assert wide.padded().reason == "the pads are no powers of two after intervals that are"
