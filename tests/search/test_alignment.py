"""What every layout keeps of alignment, against plain loops over every placement of tiny tiles."""

import itertools
import math
import random

import numpy as np
import pytest
from oracle.banks import serve
from oracle.toy import rules, toy_device
from written import by_lane, data_of, problem_of, refused_with, rows_of

import layoutopt
from layoutopt import check, compare, explain, solve
from layoutopt.accesses.trace import trace
from layoutopt.engine.case import case_of
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.problems.answer import EVERY_LAYOUT, Status
from layoutopt.proof.reasons import Search, every_layout

LANES, WIDTHS = 4, (1, 2, 4, 8, 16)


def toy(banks, lanes=LANES):
    return toy_device(lanes, banks, WIDTHS)


def random_problem(rng):
    """A problem as its file has it, and its accesses as (width, element of each lane, None for none)."""
    size = rng.choice((1, 2, 3, 4, 4, 5, 6, 8, 8, 10, 12, 12, 15, 16, 16))
    alignment, element = size & -size, f"{size}B"
    if rng.random() < 0.6:
        alignment = rng.choice([a for a in (1, 2, 4, 8, 16) if size % a == 0])
        element += f"@{alignment}"
    count = rng.randint(2, 3 if alignment < 4 else 4)
    accesses, plain = [], []
    for k in range(rng.randint(1, 2)):
        width = rng.choice([w for w in WIDTHS if w <= size or (w % size == 0 and w // size <= count)])
        covered = max(1, width // size)
        lanes = [rng.choice(range(0, count - covered + 1, covered)) for _ in range(LANES)]
        on = [True, *(rng.random() < 0.9 for _ in range(LANES - 1))]
        op = rng.choice(("load", "store"))
        accesses.append(f"a{k}: {op} {width} [{by_lane(lanes)}]; where {by_lane(map(int, on))}")
        plain.append((width, [e if o else None for e, o in zip(lanes, on, strict=True)]))
    return data_of(f"{count} {element}, {LANES} threads", *accesses), (size, alignment, count, plain)


def excess(table, accesses, banks, base=0):
    total = 0
    for width, lanes in accesses:
        at = {lane: base + table[e] for lane, e in enumerate(lanes) if e is not None}
        assert not any(address % width for address in at.values()), "misaligned"
        cost, ideal, _ = serve(at, rules(LANES, banks, WIDTHS)["load", width], width, LANES)
        total += cost - ideal
    return total


def placements(size, alignment, count, accesses, banks):
    """Every placement that matters: beyond that many bytes only addresses modulo a row of banks do."""
    row = 4 * banks
    reach = count * -(-size // row) * row + row
    step = [alignment] * count
    head = {}  # element -> the element whose place fixes its own
    for width, lanes in accesses:
        for e in lanes:
            covered = max(1, width // size)
            for k in range(covered if e is not None else 0):
                if covered > head.get(e + k, (1, 0))[0]:
                    head[e + k] = covered, e
            if e is not None:
                step[e] = math.lcm(step[e], width)
    free = [e for e in range(count) if head.get(e, (1, e))[1] == e]
    if math.prod(len(range(0, reach, step[e])) for e in free) > 30_000:
        return
    for chosen in itertools.product(*(range(0, reach, step[e]) for e in free)):
        base = dict(zip(free, chosen, strict=True))
        table = [base[e] if e in base else base[head[e][1]] + (e - head[e][1]) * size for e in range(count)]
        order = sorted(table)
        if all(b - a >= size for a, b in itertools.pairwise(order)):
            yield table


def agrees(seed):
    """Everything said of one random problem, against every placement; the kind of case, for statistics."""
    rng = random.Random(seed)
    banks = rng.choice((2, 4))
    data, plain = random_problem(rng)
    size, alignment, count, accesses = plain
    every = [(excess(t, accesses, banks), max(t) + size) for t in placements(*plain, banks)]
    gpu, problem = toy(banks), from_data(data)
    least = min((e for e, _ in every), default=None)
    general = every_layout(problem.tile, gpu, trace(problem, gpu), Search(), enough=None)
    assert least is None or general.bound <= least, data
    if general.free is not None and general.free.table is not None:
        assert excess(general.free.table.ravel().tolist(), accesses, banks) == general.free.excess
    result = solve(problem, target=gpu)
    smallest = min((b for e, b in every if e <= (result.excess or 0)), default=None)
    if result.proof.bytes.scope == EVERY_LAYOUT and smallest is not None and result.layout is not None:
        assert result.proof.bytes.lower_bound <= smallest, data
    if result.proof.excess.scope == EVERY_LAYOUT and least is not None:
        assert result.proof.excess.lower_bound <= least, data
    if result.layout is None:
        assert str(result.status) == "infeasible", data
        return "infeasible"
    table = result.layout.byte_offset(np.arange(count)).tolist()
    assert all(offset % alignment == 0 for offset in table)
    assert all(b - a >= size for a, b in itertools.pairwise(sorted(table)))
    for width, lanes in accesses:
        for e in lanes:
            for k in range(1, width // size if e is not None else 0):
                assert table[e + k] == table[e] + k * size
    for base in range(0, 8 * banks, result.alignment_bytes):
        assert excess(table, accesses, banks, base) == result.excess, (data, base)
    return "bounded" if result.excess else "free"


@pytest.mark.parametrize("seed", range(60))
def test_nothing_said_of_every_layout_is_beaten(seed):
    agrees(seed)


# One input each -----------------------------------------------------------------------------------


def loads_of(tile, width, index="tid", threads=32, more="", **fields):
    return problem_of(f"{tile}, {threads} threads{more}", f"a: load {width} [{index}]", **fields)


@pytest.mark.parametrize(("size", "width", "excess"), [(8, 4, 1), (16, 4, 3), (16, 8, 2)])
def test_elements_are_as_aligned_as_the_file_says(size, width, excess):
    """By default to their size, so that narrow loads meet in few banks; otherwise no bound says so."""
    aligned = solve(loads_of(f"32 {size}B", width))
    assert (aligned.proof.excess.lower_bound, aligned.proof.excess.scope) == (excess, EVERY_LAYOUT)
    packed = loads_of(f"32 {size}B@{width}", width)
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


@pytest.mark.parametrize(
    ("threads", "table", "said"),
    [
        (8, np.arange(8) * 4 + 2, "warp 0, lane 0, (0) starts at byte 2"),
        (
            4,  # an element keeps its alignment where nobody reads it
            np.array([0, 4, 8, 12, 18, 22, 26, 30]),
            "4 elements do not start at a multiple of 4: (4) starts at byte 18",
        ),
    ],
)
def test_a_table_is_refused_where_something_is_misaligned(threads, table, said):
    audit = check(loads_of("8 f32", 4, threads=threads), table)
    assert str(audit.status) == "infeasible"
    assert any(said in f.message for f in audit.findings if f.kind == "misaligned")


def test_an_error_names_access_lane_and_address():
    case = case_of(loads_of("8 f32", 4, threads=8), device("sm_90"))
    said = (
        "access 'a' is misaligned: lane 3 of warp instruction 0 starts at byte 14, which is no multiple of 4"
    )
    with pytest.raises(LayoutError, match=said):
        case.check(np.array([0, 4, 8, 14, 18, 22, 26, 30]))


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


@pytest.mark.parametrize(
    ("width", "index", "layout"),
    [(8, "0, 2*tid", "; order 1 0"), (4, "0, tid", "; pitch_multiple_bytes 48; families none")],
)
def test_the_stride_of_one_value_binds_nothing(width, index, layout):
    result = solve(loads_of("1x32 f32", width, index, threads=8, more=layout))
    assert (str(result.status), result.bytes, result.excess) == ("optimal", 128, 0)


def test_no_swizzle_tears_what_is_wider_than_a_row_of_banks():
    """Column 0 of a page beside 16 bytes, of which an XOR inside a row of two banks would take two words."""
    problem = problem_of("""4x4x6 f32, 8 threads
        wide: load 16 [0, 0, 0]
        column: store 16|4 [0, tid // 4 % 4, 0]""")
    assert solve(problem, target=toy(2, 8)).status is Status.OPTIMAL


@pytest.mark.parametrize("method", ["auto", "model"])
def test_words_that_are_shared_leave_an_ideal_of_fewer_wavefronts(method):
    """Eight halves in four words of every other bank: two wavefronts, where eight words would need as many."""
    problem = problem_of("""6x4x8 f16, 8 threads; families split rotate
        rows: load 8 [0, tid // 2 % 4, 0]
        halves: store 1 [0, lane % 4, lane // 4 % 8]""")
    result = solve(problem, target=toy(4, 8), method=method, time_limit=20)
    assert (result.excess, result.bytes) == (1, 384)
    assert result.proof.excess.lower_bound == 1


def test_an_explanation_counts_words_that_alignment_keeps_in_few_banks():
    for tile, threads, target, said in (
        ("4 16B", LANES, toy(2), "which can lie in 1 of the 2 banks only: 4 wavefronts"),
        ("32 8B", 32, None, "Counting: elements start at multiples of 8 bytes"),
    ):
        found = explain(loads_of(tile, 4, threads=threads), time_limit=5, target=target)
        assert said in " ".join(found.reasons)


def test_values_at_run_time_are_refused_where_an_access_is_wider_than_a_row_of_banks():
    with refused_with("wider than the 8 bytes of a row of banks"):
        solve(problem_of(f"8 f32, {LANES} threads", "a: load 16 [4*v]; any v<2"), target=toy(2))


def test_compare_shows_no_layout_that_needs_more_alignment_than_there_is():
    found = compare(
        problem_of(
            """8x8 f32, 64 threads; alignment_bytes 16
        a: store 4 [tid // 8, tid % 8]
        b: load 4 [tid % 8, tid // 8]""",
            published={"offset": "x0*8 + (x1 ^ x0)", "bytes": 256},
        )
    )
    assert rows_of(found)["published"].reason == "needs a base aligned to 128 bytes; alignment_bytes is 16"
    assert all(row.alignment_bytes is None or row.alignment_bytes <= 16 for row in found.rows)


def test_the_fewest_bytes_may_be_aligned_in_sum_only():
    """80 elements of 11 bytes and one pad of 11: its place keeps every access aligned, no stride does."""
    proof = solve(problem_of("16x1x5 11B@1, 1 threads", "a: load 4 [15 - tid, 0, 0]")).proof
    assert proof.bytes.lower_bound == 891
    assert proof.bytes.scope.endswith("matrix, no XOR over elements of 11 bytes")


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


@pytest.mark.parametrize(
    ("element", "layout", "scope"),
    [
        ("f32", "; alignment_bytes 4", "families none, order"),
        ("12B", "", "families none, order, no XOR over elements of 12 bytes"),
    ],
)
def test_matrices_that_are_not_listed_are_in_no_scope(element, layout, scope):
    """They are listed with the swizzles that may follow, which such a base and such elements rule out."""
    problem = problem_of(f"""16x32 {element}, 32 threads; families none order matrix{layout}
        columns: load 4 [tid % 16, tid // 16 + 2*i]; i<16
        rows: store 4 [i, tid]; i<16""")
    result = solve(problem)
    assert (result.proof.excess.scope, result.proof.excess.lower_bound > 0) == (scope, True)
    assert solve(problem, conflict_free=True).status is Status.UNKNOWN


@pytest.mark.parametrize(("shape", "order"), [("64x1", "1 0"), ("1x16x1", "2 1 0"), ("1x64", "0 1")])
def test_a_dimension_of_one_element_lies_anywhere_in_an_order(shape, order):
    """Elements of 13 bytes whose first halves meet: four of them apart they do not, whatever else is ordered."""
    spots = ", ".join("tid" if extent != "1" else "0" for extent in shape.split("x"))
    given = f"{shape} 13B, 8 threads; target sm_90; families none pad order"
    asked = problem_of(f"{given}; order {order}", f"a: store 2 [{spots}]")
    free = problem_of(given, f"a: store 2 [{spots}]")
    assert (solve(asked).excess, solve(asked).bytes) == (solve(free).excess, solve(free).bytes)
