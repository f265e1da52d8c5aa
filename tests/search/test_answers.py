"""Problems that were answered wrongly once, or that one thing decides; alignment, against every placement of tiny tiles."""

import random
from operator import attrgetter

import numpy as np
import pytest
from oracle import toy
from oracle.answers import question, verify_table
from oracle.placements import enumerate_placements
from oracle.toy import device_file, toy_device
from written import by_lane, constrained, data_of, lines_of, problem_of, refused_with, rows_of, saved

import layoutopt
from layoutopt import check, compare, explain, solve
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.problems.answer import EVERY_LAYOUT, METHODS, Status

FOUR, EIGHT, SIXTEEN = (tuple(range(lanes)) for lanes in (4, 8, 16))
WIDE = (1, 2, 4, 8, 16)


def gpu(lanes, banks, rules):
    return Device("toy", "toy", lanes, banks, 4, rules)


# Words of a group of eight are served by 4 banks; every width by all lanes; stores see half of the banks; bytes in
# groups of 32 words.
GROUPS = gpu(8, 4, {
    ("load", 4): PhaseRule((EIGHT,), 4, 4, row_words=8),
    ("load", 16): PhaseRule(((0, 1), (2, 3), (4, 5), (6, 7)), 4, 4),
})  # fmt: skip
NARROW = gpu(16, 4, {(op, n): PhaseRule((SIXTEEN,), 4, 4) for op in ("load", "store") for n in (1, 4)})
UNEVEN = gpu(4, 4, {("load", 4): PhaseRule((FOUR,), 4, 4), ("store", 4): PhaseRule((FOUR,), 2, 4)})
BYTE_GROUPS = gpu(16, 16, {
    **toy.toy_device(16, 16).rules, ("load", 1): PhaseRule((SIXTEEN,), 16, 4, row_words=32),
})  # fmt: skip

BOUND, SCOPE, WHY = "proof.excess.lower_bound", "proof.excess.scope", "reason"

UNEVEN_ROWS = """
    load: load 4 [[11, 1, 12, 14, 17, 14, 6, 1][tid + 4*i] // 3, [11, 1, 12, 14, 17, 14, 6, 1][tid + 4*i] % 3]; i<2
    store: store 4 [[18, 3, 13, 0, 16, 4, 7, 20][tid + 4*i] // 3, [18, 3, 13, 0, 16, 4, 7, 20][tid + 4*i] % 3]; i<2"""
SQUARES = """
    squares: load 4 [tid % 4, tid // 4 * 4 + i]; i<4
    rows: load 4 [i, tid]; i<4
    pairs: load 4 [tid // 4 * 2, tid % 4 * 2]"""
GROUPED = """8x8 f64, 16 threads; families none xor
    rows: store 8 [lane % 8, 0]
    single: load 1 [0, lane % 8]"""
ROWS_AND_COLUMNS = """
    columns: load 4 [tid % 16, tid // 16 + 2*i]; i<16
    rows: store 4 [i, tid]; i<16"""
DIAGONALS = """
    diagonal: store 4 [(tid + 64*i) % 12, ((tid + 64*i) // 12 % 16 + (tid + 64*i) % 12) % 16]; i<3; where lane % 3 != 0
    columns: load 4 [(tid + 64*i) % 12, (tid + 64*i) // 12 % 16]; i<3; where lane % 2 != 0"""
STORED = """33x16 f64, 128 threads; minimise time; families {}
    row: stmatrix.x2.trans [tid // 8, 2*(tid % 8)]; weight 1000
    column: load 2 [tid % 33, tid // 33]"""
OUTSIDE = "families none, xor, XOR sources outside groups of 32 words"

# A problem; how it is asked; what is said. Of a set or a range, one; of a text that begins with dots, that it is there.
ANSWERS = {
    "the stride of one value binds no vector": (
        "1x32 f32, 8 threads; order 1 0\na: load 8 [0, 2*tid]", {},
        {"status": "optimal", "bytes": 128, "excess": 0},
    ),
    "the stride of one value is no multiple": (
        "1x32 f32, 8 threads; pitch_multiple_bytes 48; families none\na: load 4 [0, tid]", {},
        {"status": "optimal", "bytes": 128, "excess": 0},
    ),
    "an order in its own bytes has pads where strides are multiples: it took 1,004": (
        "3x32 f32, 32 threads; pitch_multiple_bytes 32; max_bytes 400\na: store 4 [tid % 3, 2*j + 1]; j<4", {},
        {"status": "optimal", "bytes": 384, "excess": 0},
    ),
    "what refuters refute is charged as what it takes: a second was not enough for what takes a twentieth": (
        """100 3B, 64 threads
        a0: load 1 [99 - (lane + lane) % 100]; i<8
        a1: store 1 [(tid // 2 + 0) % 100]; i<2, j<5
        a2: load 2 [99 - (lane + 0) % 100]; where tid > 5 and lane < 30""", {"time_limit": 1.2},
        {"status": "optimal", "bytes": 2949, "excess": 0},
    ),
    "column 0 of a page beside 16 bytes, of which an XOR inside a row of two banks would take two words": (
        """4x4x6 f32, 8 threads
        wide: load 16 [0, 0, 0]
        column: store 16|4 [0, tid // 4 % 4, 0]""", {"target": toy.toy_device(8, 2, WIDE)},
        {"status": "optimal"},
    ),
    "eight halves in four words of every other bank: two wavefronts, where eight words would need as many": (
        """6x4x8 f16, 8 threads; families split rotate
        rows: load 8 [0, tid // 2 % 4, 0]
        halves: store 1 [0, lane % 4, lane // 4 % 8]""",
        {"target": toy.toy_device(8, 4, WIDE), "time_limit": 20, "methods": METHODS},
        {"excess": 1, "bytes": 384, BOUND: 1},
    ),
    "80 elements of 11 bytes and one pad of 11: its place keeps every access aligned, no stride does": (
        "16x1x5 11B@1, 1 threads\na: load 4 [15 - tid, 0, 0]", {},
        {"proof.bytes.lower_bound": 891, "proof.bytes.scope": "...matrix, no XOR over elements of 11 bytes"},
    ),
    "matrices are listed with the swizzles that may follow, which this base rules out": (
        f"16x32 f32, 32 threads; families none order matrix; alignment_bytes 4{ROWS_AND_COLUMNS}", {},
        {SCOPE: "families none, order", BOUND: 240},
    ),
    "matrices are listed with the swizzles that may follow, which these elements rule out": (
        f"16x32 12B, 32 threads; families none order matrix{ROWS_AND_COLUMNS}", {},
        {SCOPE: "families none, order, no XOR over elements of 12 bytes", BOUND: 240},
    ),
    "of elements of 12 bytes, CuTe's swizzles are counted": (
        f"12x16 12B, 64 threads; max_bytes 2320; families none order xor{DIAGONALS}", {},
        {"status": "optimal", "excess": 5, "family": "order+xor", BOUND: 5,
         SCOPE: "families none, order, xor, no XOR over elements of 12 bytes but CuTe's over the dense tile within 2320 bytes"},
    ),
    "the cheapest of them is taken": (
        """2x20 12B, 32 threads
        a: load 4 [lane % 2, (tid + 32*i) // 2]; i<2; where tid + 32*i < 40
        b: load 4 [(tid + 32*i) // 20, (tid + 32*i) % 20]; i<2; where tid + 32*i < 40""", {},
        {"offset": "x0*20 + x1 ^ (x0*20 + x1) // 32 * 16", "status": "optimal", "bytes": 672},
    ),
    "what is not listed is not refuted: a base": (
        f"16x32 f32, 32 threads; families none order matrix; alignment_bytes 4{ROWS_AND_COLUMNS}",
        {"conflict_free": True}, {"status": "unknown"},
    ),
    "what is not listed is not refuted: elements": (
        f"16x32 12B, 32 threads; families none order matrix{ROWS_AND_COLUMNS}",
        {"conflict_free": True}, {"status": "unknown"},
    ),
    "a source bit inside the bank field moves no word into another conflict, but the last rows together": (
        """33x16 f16, 32 threads; families none order pad split rotate xor
        diagonals: store 2 [tid, (144 - tid + i) % 16]; i<16
        rows: load 16 [(tid + 32*i) % 66 // 2, 8*((tid + 32*i) % 66 % 2)]; i<3""", {},
        {"status": "optimal", "excess": 0, "bytes": 1120},
    ),
    "dense rows of groups take more passes, all of them needed": (
        """8x8 f32, 16 threads
        rows: load 4 [(tid + i) // 8 % 8, (tid + i) % 8]; i<3
        vectors: load 16 [tid % 8, 4*(tid // 8 % 2)]""", {"target": GROUPS, "methods": METHODS},
        {"status": "optimal", "weighted_excess": 0, "bytes": 256},
    ),
    "an XOR of bits inside the last block serves a pitch of 4 in 108 bytes; 112 were called the fewest": (
        f"7x3 f32, 4 threads; families pad xor{UNEVEN_ROWS}", {"target": UNEVEN},
        {"status": {"feasible"}, "proof.bytes.lower_bound": range(109)},
    ),
    "nor are 108 bytes called too few": (
        f"7x3 f32, 4 threads; families pad xor; max_bytes 108{UNEVEN_ROWS}",
        {"target": UNEVEN, "conflict_free": True}, {"status": {"feasible", "unknown"}},
    ),
    "a fixed order leaves no cuts, though `x0*10 + x1 // 4 * 5 + x1 % 4` keeps it": (
        f"4x8 f32, 8 threads; families none order pad split matrix; order 0 1{SQUARES}",
        {"target": toy.toy_device(8, 8)}, {SCOPE: "families none, pad", BOUND: range(1, 99)},
    ),
    "a pitch leaves no pads within rows": (
        f"4x8 f32, 8 threads; families none order pad split interval matrix; pitch_multiple_bytes 32{SQUARES}",
        {"target": toy.toy_device(8, 8)}, {SCOPE: "families none, order, pad, split", BOUND: range(1, 99)},
    ),
    "every second row of 16 words starts at one bank, unless a swizzle reads a bit inside a group": (
        GROUPED, {"target": BYTE_GROUPS}, {"excess": range(1, 99), SCOPE: OUTSIDE},
    ),
    "such a swizzle is not searched, and not said not to be": (
        GROUPED, {"target": BYTE_GROUPS, "conflict_free": True}, {"status": "unknown", WHY: f"...{OUTSIDE[20:]}"},
    ),
    "sixteen bytes that may share words or not: the bound of every layout was -10, and nothing was optimal": (
        """4x6 i8, 64 threads
        a0: store 4 [tid % 4, 0]
        a1: store 1 [(2*tid + 16*kk) % 4, (tid + 16*kk) // 4 % 6]; kk<4
        a2: load 4 [(lane + i) % 4, 0]; i<4; weight 2.5""", {"target": NARROW, "time_limit": 20},
        {"status": "optimal", "excess": 0, "bytes": 24, "proof.objective.lower_bound": 0},
    ),
    "lines are of the last dimension that has more than one value": (
        "7x3x1 14B@2, 1 threads; families none pad rotate\na: store 8 [i, 0, 0]; i<2", {},
        {"offset": "x0*3 + (x1 + x0) % 3", "family": "rotate", "bytes": 294},
    ),
    "eight dimensions, so 40,320 orders; the first that do come behind more than there is time to look at": (
        """2x3x2x3x2x3x2x5 f32, 32 threads
        fill: store 4 [lane % 2, i, lane // 2 % 2, j, lane // 4 % 2, k, lane // 8 % 2, lane // 16]; i<3, j<3, k<3
        read: load 4 [i, lane % 3, j, lane // 3 % 3, k, lane // 9, l, m]; i<2, j<2, k<2, l<2, m<5; where lane < 27""", {},
        {"status": "optimal", "weighted_excess": 0, "bytes": 8640, "family": "order", "model.rounds": 0},
    ),
    "a large transpose has its short answer": (
        """512x512 f32, 1024 threads
        rows: load 4 [warp + 32*i, lane + 32*j]; i<16, j<16
        columns: load 4 [lane + 32*i, warp + 32*j]; i<16, j<16""", {},
        {"offset": "x0*512 + (x1 ^ x0 % 32)", "status": "optimal", "excess": 0, "bytes": 1 << 20},
    ),
    "packed elements, widths that are chosen and a variable called part": (
        "32x256 s4, 32 threads\nrows: store 16|8 [4*part + tid // 8, 32*(tid % 8)]; part<8", {},
        {"status": "optimal", "excess": 0, "bytes": 4096},
    ),
    "rows stored a thousand times, a column read once: a pad spares 118 wavefronts and costs each store two": (
        STORED.format("split interval"), {}, {"offset": "x0*16 + x1"},
    ),
    "CuTe's swizzle is among what may take the least time": (
        """31x7 f32, 32 threads; minimise time; max_bytes 872
        a: load 4 [(tid + 32*i) % 31, (tid + 32*i) // 31 % 7]; i<6; where tid + 32*i < 217
        b: store 4 [(tid + 32*i) % 31, ((tid + 32*i) // 31 % 7 + (tid + 32*i) % 31) % 7]; i<6; where tid + 32*i < 217 and lane % 4 != 1
        c: store 4 [(tid + 32*i) % 31, (tid + 32*i) // 31 % 7 * 5 % 7]; i<6; where tid + 32*i < 217
        d: load 4 [(tid + 32*i) % 31, (tid + 32*i) // 31 % 7]; i<6; where tid + 32*i < 217""", {},
        {"offset": "x1*31 + x0 ^ (x1*31 + x0) // 128"},
    ),
    "row-major is among what may take the least time": (
        STORED.format("none pad"), {}, {"offset": "x0*16 + x1"},
    ),
    "without a swizzle either rows or columns meet; the swizzle that parts both is no rival": (
        """64x64 f16, 8 threads; minimise instructions
        ld: tma.load
        a: load 16 [lane, 0]
        b: load 16 [0, 8*lane]""", {},
        {"status": "optimal", "excess": 4, "layout.swizzle": (), BOUND: 4,
         SCOPE: "the layouts of tma.load, boxes side by side that flip the fewest bits"},
    ),
    "as Triton 3.9 pads an operand on gfx950: a wave writes every fourth row, and rows are read as they lie": (
        """64x64 e4m3, 256 threads; target gfx950
        fill: buffer_load_dwordx4.lds [lane // 4 * 4 + warp, tid % 4 * 16]
        y: load 16 [lane % 32 + warp % 2 * 32, lane // 32 * 16 + i*32]; i<2""", {},
        {"offset": "x0 % 4 * 1040 + x0 // 4 * 64 + x1", "bytes": 4144, "excess": 0},
    ),
    "a tile of a block may be dictated, and nothing is minimised": (
        """128 threads
        tile t: 64x64 bf16
        ld: tma.load; mode 128B; tile t
        own row: store 16 [tid % 64, 8*i + 32*(tid // 64)]; i<4; tile t""", {},
        {"status": "optimal", "excess": 0, "bytes": 8192, "alignment_bytes": 1024, "proof.index_cost": None},
    ),
    "the bounds of tiles too large for a table are of formulas: a table of one of them might be smaller": (
        """32 threads
        tile A: 576x9 f32
        tile B: 576x9 f32
        A: load 8 [tid + 32*r, 2*i]; i<4, r<18; tile A
        B: load 8 [tid + 32*r, 2*i]; i<4, r<18; tile B""", {},
        {"bytes": range(2 * 576 * 36 + 1, 1 << 17), "proof.bytes.scope": "families none, order, pad, split, interval, rotate, xor, matrix"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_what_is_said_of_a_problem(case):
    text, asked, said = ANSWERS[case]
    options = dict(asked)
    for method in options.pop("methods", ("auto",)):
        found = solve(problem_of(text), method=method, **options)
        told = {name: attrgetter(name)(found) for name in said}
        assert {name: value for name, value in told.items() if not is_as(value, said[name])} == {}, said


def is_as(value, wanted):
    if isinstance(wanted, set | range):
        return value in wanted
    dotted = isinstance(wanted, str) and wanted.startswith("...")
    return wanted[3:] in value if dotted else value == wanted


def test_a_swizzle_that_is_not_searched_would_do():
    assert check(problem_of(GROUPED), "x0*8 + (x1 ^ x0)", target=BYTE_GROUPS).excess == 0


def test_elements_of_odd_sizes_have_no_swizzle_but_those_counted():
    """Bytes of every third element of 10 bytes; what is not searched is not infeasible."""
    target = gpu(8, 4, {**toy.toy_device(8, 4).rules, ("load", 1): PhaseRule((EIGHT,), 4, 4)})
    flat = "(tid + 32*i)"
    problem = problem_of("5x3 10B, 4 threads", f"a: load 1 [({flat}//3 + i) % 5, {flat} % 3]; i<3")
    swizzled = check(problem, "(x0*3 + x1) ^ (x0*3 + x1)//8", target=target)
    found = solve(problem, target=target)
    assert swizzled.excess == found.excess == 0
    assert swizzled.bytes == found.bytes == found.proof.bytes.lower_bound
    scope = ", no XOR over elements of 10 bytes but CuTe's over the dense tile"
    assert found.proof.bytes.scope.endswith(scope)
    for families, status in ((("xor",), "feasible"), (("pad",), "infeasible")):
        limited = constrained(problem, families=families, max_bytes=160)
        assert solve(limited, target=target, conflict_free=True).status == status


def test_rows_columns_and_diagonals_without_a_swizzle():
    """Of 16x16 words on 16 banks; no layout has less than two, and a swizzle eight."""
    for families, least in ((["none", "order", "pad", "split"], 16), (["none", "xor"], 8)):
        found = solve(from_data(lines_of(16, families=families)), target=toy.toy_device(16, 16))
        assert (found.status, found.excess) == ("optimal", least)


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2), (2, 0, 1)])
def test_of_orders_without_conflicts_the_one_that_threads_run_through(order):
    """Each thread stores the element of its own number in that order: its address is one shift."""
    shape, index, divide = (8, 2, 3), [""] * 3, 1
    for d in reversed(order):
        index[d], divide = f"tid//{divide} % {shape[d]}", divide * shape[d]
    found = solve(problem_of("8x2x3 f32, 48 threads", f"a: store 4 [{', '.join(index)}]"))
    assert [digit.dim for digit in found.layout.digits] == list(order)
    assert (found.excess, found.bytes, found.proof.index_cost.value) == (0, 192, 1)
    within = constrained(
        problem_of("8x2x3 f32, 48 threads", f"a: store 4 [{', '.join(index)}]"), families=["none"]
    )
    assert solve(within).proof.index_cost.value > 1


def test_of_many_orders_alike_solve_has_none_dearer_than_the_row_of_orders():
    """The accesses run through six dimensions in orders that conflict; others do not."""
    flat, shape = "(tid + 64*i)", (2, 3, 4, 2, 2, 2)
    divides = (96, 1, 12, 6, 48, 3), (1, 32, 4, 96, 16, 2)
    index = [[f"{flat}//{d} % {n}" for d, n in zip(own, shape, strict=True)] for own in divides]
    lines = (f"a: store 2 [{', '.join(index[0])}]; i<3", f"b: load 2 [{', '.join(index[1])}]; i<3")
    problem = problem_of("2x3x4x2x2x2 f16, 64 threads", *lines)
    row = rows_of(compare(problem))["order/split"]
    found = solve(problem)
    assert (found.excess, found.bytes) == (row.excess, row.bytes) == (0, 384)
    assert found.proof.index_cost.value <= row.instructions


LANES, WIDTHS = 4, (1, 2, 4, 8, 16)


def toy_gpu(banks, lanes=LANES):
    return toy_device(lanes, banks, WIDTHS)


def random_problem(rng, banks):
    """Elements of any size and alignment, read and written by every width that holds some of them whole."""
    size = rng.choice((1, 2, 3, 4, 4, 5, 6, 8, 8, 10, 12, 12, 15, 16, 16))
    alignment, element = size & -size, f"{size}B"
    if rng.random() < 0.6:
        alignment = rng.choice([a for a in (1, 2, 4, 8, 16) if size % a == 0])
        element += f"@{alignment}"
    count = rng.randint(2, 3 if alignment < 4 else 4)
    accesses = []
    for k in range(rng.randint(1, 2)):
        width = rng.choice([w for w in WIDTHS if w <= size or (w % size == 0 and w // size <= count)])
        covered = max(1, width // size)
        lanes = [rng.choice(range(0, count - covered + 1, covered)) for _ in range(LANES)]
        on = [1, *(int(rng.random() < 0.9) for _ in range(LANES - 1))]
        op = rng.choice(("load", "store"))
        accesses.append(f"a{k}: {op} {width} [{by_lane(lanes)}]; where {by_lane(on)}")
    return data_of(f"{count} {element}, {LANES} threads; target toy_{LANES}_{banks}", *accesses)


@pytest.mark.parametrize("seed", range(60))
def test_nothing_said_of_every_layout_is_beaten(seed, tmp_path):
    """Beyond the bytes that are tried only addresses modulo a row of banks would matter."""
    rng = random.Random(seed)
    banks = rng.choice((2, 4))
    data = random_problem(rng, banks)
    asked = question(data, saved(tmp_path, "toy.json", device_file(LANES, banks, WIDTHS)))
    tile, row = asked.tile, 4 * banks

    def nothing_is_below(excess, room=(tile.elements * -(-tile.size // row) + 1) * row):
        assert enumerate_placements(tile, asked.accesses, room, excess, 30_000) is None, data

    result = solve(from_data(data), target=toy_gpu(banks))
    proof = result.proof
    for bound in (proof.every_layout, proof.excess):
        if bound is not None and bound.scope == EVERY_LAYOUT:
            nothing_is_below(bound.lower_bound)
    if result.layout is None:
        assert str(result.status) == "infeasible", data
        return
    verify_table(asked, result.table(), result.to_json())
    if proof.bytes.scope == EVERY_LAYOUT:
        nothing_is_below(result.excess + 1, room=proof.bytes.lower_bound - 1)


# One input each -----------------------------------------------------------------------------------


def loads_of(tile, width, index="tid", threads=32, more="", **fields):
    return problem_of(f"{tile}, {threads} threads{more}", f"a: load {width} [{index}]", **fields)


@pytest.mark.parametrize(("size", "width", "excess"), [(8, 4, 1), (16, 4, 3), (16, 8, 2)])
def test_elements_are_as_aligned_as_the_file_says(size, width, excess):
    """By default to their size, so that narrow loads meet in few banks; otherwise no bound says so."""
    aligned = solve(loads_of(f"32 {size}B", width))
    assert (aligned.proof.excess.lower_bound, aligned.proof.excess.scope) == (excess, EVERY_LAYOUT)
    packed = loads_of(f"32 {size}B@{width}", width, more="; families none pad")
    found = solve(packed)
    assert found.proof.excess.scope != EVERY_LAYOUT
    assert found.proof.every_layout.lower_bound == 0
    # A word more after every row of banks.
    table = np.arange(32) * size + np.arange(32) * size // 128 * width
    assert check(packed, table).excess == 0


@pytest.mark.parametrize("element", ["12B@8", "12B@3", "16B@32", "16B@0"])
def test_an_alignment_is_a_power_of_two_that_divides_the_size(element):
    size, align = element.split("B@")
    with refused_with("tile.element.align"):
        loads_of("8", 4, element={"bytes": int(size), "align": int(align)})


APART = "4 elements do not start at a multiple of 4: (4) starts at byte 18"


@pytest.mark.parametrize(
    ("threads", "table", "said"),
    [
        (8, np.arange(8) * 4 + 2, "warp 0, lane 0, (0) starts at byte 2"),
        # An element keeps its alignment where nobody reads it.
        (
            4,
            np.array([0, 4, 8, 12, 18, 22, 26, 30]),
            APART,
        ),
    ],
)
def test_a_table_is_refused_where_something_is_misaligned(threads, table, said):
    audit = check(loads_of("8 f32", 4, threads=threads), table)
    assert str(audit.status) == "infeasible"
    assert any(said in f.message for f in audit.findings if f.kind == "misaligned")


def test_the_base_keeps_words_whole_and_needs_no_more():
    index = "(tid % 16) * 2 + tid // 16 * 33"
    assert solve(loads_of("66 f16", 2, index)).alignment_bytes == 4
    assert solve(loads_of("8 f64", 4, threads=8, more="; alignment_bytes 4")).alignment_bytes == 4
    with pytest.raises(ProblemFileError, match=r"layout\.alignment_bytes: .* 4, not 2"):
        solve(loads_of("66 f16", 2, index, more="; alignment_bytes 2"))
    audit = check(loads_of("8 f32", 16, "4*tid", threads=2, more="; alignment_bytes 8"), "x0")
    assert ([f.kind for f in audit.findings], str(audit.status)) == (["alignment"], "infeasible")
    two = data_of("""8 threads
        tile s: 8 f64
        tile t: 8 f64
        s: load 4 [tid]; tile s
        t: load 4 [tid]; tile t""")
    for layout, aligned in (({}, 8), ({"alignment_bytes": 4}, 4)):
        assert layoutopt.solve(from_data({**two, "layout": layout})).alignment_bytes == aligned


def test_an_explanation_counts_words_that_alignment_keeps_in_few_banks():
    for tile, threads, target, said in (
        ("4 16B", LANES, toy_gpu(2), "which can lie in 1 of the 2 banks only: 4 wavefronts"),
        ("32 8B", 32, None, "Counting: elements start at multiples of 8 bytes"),
    ):
        found = explain(loads_of(tile, 4, threads=threads), time_limit=5, target=target)
        assert said in " ".join(found.reasons)


def test_values_at_run_time_are_refused_where_an_access_is_wider_than_a_row_of_banks():
    with refused_with("wider than the 8 bytes of a row of banks"):
        solve(problem_of(f"8 f32, {LANES} threads", "a: load 16 [4*v]; any v<2"), target=toy_gpu(2))


def test_compare_shows_no_layout_that_needs_more_alignment_than_there_is():
    found = compare(problem_of("""8x8 f32, 64 threads; alignment_bytes 16; published 256 x0*8 + (x1 ^ x0)
        a: store 4 [tid // 8, tid % 8]
        b: load 4 [tid % 8, tid // 8]"""))  # fmt: skip
    assert rows_of(found)["published"].reason == "needs a base aligned to 128 bytes; alignment_bytes is 16"
    assert all(row.alignment_bytes is None or row.alignment_bytes <= 16 for row in found.rows)


def test_a_table_keeps_the_elements_of_a_byte_together():
    problem = problem_of("4x16 u1, 1 threads", "a: load 1 [0, 0]")
    table = np.arange(8).repeat(8).reshape(4, 16)
    assert check(problem, table).excess == 0
    table[1, 2] = 66
    with refused_with("do not stay together"):
        check(problem, table)


def test_an_access_that_no_lane_makes_binds_nothing():
    """Neither the order, which its vectors would have dictated, nor the base, which they would have aligned."""
    problem = problem_of("""8x4 bf16x2, 1 threads; target sm_80; order 1 0; alignment_bytes 4
        a0: load 2 [0, 0]
        a1: store 8 [0, 0]; where 1 <= tid < 8""")
    result, audited = solve(problem), check(problem, "x0 + x1*8")
    assert (result.status, result.alignment_bytes) == (Status.OPTIMAL, 4)
    assert [a.wavefronts for a in audited.accesses] == [a.wavefronts for a in result.accesses] == [1, 0]
    assert not [f for f in audited.findings if f.kind == "alignment"]


@pytest.mark.parametrize(("shape", "order"), [("64x1", "1 0"), ("1x16x1", "2 1 0"), ("1x64", "0 1")])
def test_a_dimension_of_one_element_lies_anywhere_in_an_order(shape, order):
    """Elements of 13 bytes whose first halves meet: four of them apart they do not, whatever else is ordered."""
    spots = ", ".join("tid" if extent != "1" else "0" for extent in shape.split("x"))
    given = f"{shape} 13B, 8 threads; target sm_90; families none pad order"
    asked = problem_of(f"{given}; order {order}", f"a: store 2 [{spots}]")
    free = problem_of(given, f"a: store 2 [{spots}]")
    assert (solve(asked).excess, solve(asked).bytes) == (solve(free).excess, solve(free).bytes)
