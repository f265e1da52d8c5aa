"""What every layout keeps of alignment, against every placement of tiny tiles."""

import random

import numpy as np
import pytest
from oracle.answers import question, verify_table
from oracle.placements import enumerate_placements
from oracle.toy import device_file, toy_device
from written import by_lane, data_of, problem_of, refused_with, rows_of, saved

import layoutopt
from layoutopt import check, compare, explain, solve
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.problems.answer import EVERY_LAYOUT, Status

LANES, WIDTHS = 4, (1, 2, 4, 8, 16)


def toy(banks, lanes=LANES):
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

    result = solve(from_data(data), target=toy(banks))
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
