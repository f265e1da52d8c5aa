"""Families side by side: the seeds' figures, every family against a plain search, the forms of output."""

import csv
import io
import itertools
import json
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from command import answer, layoutopt, refused
from conftest import ROOT
from oracle.banks import weighted_excess
from written import access_from, constrained, data_of, lines_of, problem_of, refused_with, rows_of, saved

from layoutopt import Status, check, compare, load, solve
from layoutopt.accesses.trace import trace
from layoutopt.expressions.grammar import evaluate, parse
from layoutopt.expressions.simplify import operations
from layoutopt.files.inputs import problem as from_fields
from layoutopt.hardware.devices import device
from layoutopt.hardware.occupancy import occupancy
from layoutopt.layout.layout import row_major
from layoutopt.report.comparison_text import text
from layoutopt.search.counted import best
from layoutopt.study import rows as study_rows
from layoutopt.study.comparison import Row, recommend

BASICS = ROOT / "problems" / "basics"
HANDFUL = (
    "basics/gemm_a_128x32_f16", "basics/scan_512_f32", "basics/transpose_16x16_f32_sm_10",
    "awq/a_128x32_f16", "flash_attention/forward_q_d64_128x64", "ggml/flash_attention_tile_k_d40",
    "n_body/rodinia_lavamd_positions_f64", "sgemm/siboehm_k7_b_8x128_f32",
    "spectral_elements/specfem3d_gll5_f32",
)  # fmt: skip


def excess_of(problem, table):
    gpu = device(problem.target)
    return weighted_excess(table, trace(problem, gpu), gpu)


def test_the_question_that_started_it():
    """32x32 floats, transposed: pad 1 or XOR."""
    comparison = compare(load(BASICS / "transpose_32x32_f32.json"))
    rows = rows_of(comparison)
    pad, xor = rows["pad"], rows["xor"]
    # Formula, excess, bytes, declared bytes, operations, instructions, blocks, and those that shared memory allows.
    figures = [
        (row.offset, row.excess, row.bytes, row.declared_bytes, row.index_ops, row.instructions, row.blocks_per_sm,
         row.blocks_by_shared_memory) for row in (pad, xor)
    ]  # fmt: skip
    assert figures == [
        ("x0*33 + x1", 0, 4220, 4224, 6, 6, 2, 44),
        ("x0*32 + (x1 ^ x0)", 0, 4096, 4096, 7, 7, 2, 45),
    ]
    assert sum(access.index_ops for access in xor.accesses) == 7
    assert (xor.limited_by, rows["none"].ways) == ("threads", 32)
    # The published pad takes as long as any: it stays.
    taken = comparison.recommendation
    assert (taken.family, taken.offset, taken.keep) == ("published", "x0*33 + x1", True)
    assert taken.text.startswith("leave it as it is: x0*33 + x1")
    assert pad.cycles <= xor.cycles < rows["none"].cycles / 3


def test_rows_of_packed_elements_spell_a_layout_alike():
    """Four elements of 2 bits fill a line: searched and counted rows have the same formula."""
    comparison = compare(problem_of("8x4 i2, 8 threads\n lines: load 1 [tid, 0]"))
    assert {row.offset for row in comparison.rows} == {"x0*4 + x1"}


def test_without_a_layout_in_use_equal_time_is_decided_by_bytes():
    problem = msgspec.structs.replace(load(BASICS / "transpose_16x16_f32_sm_10.json"), published=None)
    taken = compare(problem).recommendation
    assert (taken.family in ("xor", "cute"), taken.keep) == (True, False)
    assert "60 fewer bytes" in taken.text


def square(**layout):
    return from_fields(lines_of(8, lines=("rows", "columns"), **layout))


def test_the_layout_in_use_is_a_row_and_what_cannot_hold_the_tile_is_replaced():
    kept, bad = (compare(square(offset=text)) for text in ("x0*8 + (x1 ^ x0)", "x0*4 + x1"))
    assert rows_of(kept)["in_use"].offset == "x0*8 + (x1 ^ x0)"
    row = rows_of(bad)["in_use"]
    assert (row.status, row.reason, row.wavefronts) == (Status.INFEASIBLE, "elements overlap", None)
    assert not bad.recommendation.keep
    assert "in use is no layout of this tile: elements overlap" in bad.recommendation.text
    with refused_with("layout.offset"):
        compare(square(offset="x0*8 + y"))


def test_rows_that_a_problem_does_not_allow():
    comparison = compare(square(families=["none", "pad"], max_bytes=400))
    rows = rows_of(comparison)
    for family in ("xor", "cute", "interval", "order/split"):
        assert (rows[family].status, rows[family].pareto) == (Status.INFEASIBLE, False)
        assert "not allowed" in rows[family].reason
    assert rows["all"].bytes <= 400
    assert comparison.recommendation.family in rows


def test_weights_decide():
    asked = problem_of("""8x8 f32, 64 threads
        rows: store 4 [tid // 8, tid % 8]; weight 0
        columns: load 4 [tid % 8, tid // 8]; weight 3""")
    usable = [row for row in compare(asked).rows if row.accesses]
    assert all(row.weighted_wavefronts == 3 * row.accesses[1].wavefronts for row in usable)


def _row(family, time, wavefronts=10.0, size=100, **more):
    figures = {"bytes": size, "wavefronts": 10, "weighted_wavefronts": wavefronts, "excess": 0}
    return Row(family, family, "given", offset=family, time=time, cycles=time, **figures, **more)


@pytest.mark.parametrize(
    ("rows", "family"),
    [
        ([_row("published", 104.0), _row("xor", 100.0)], "published"),
        ([_row("published", 120.0), _row("xor", 100.0)], "xor"),
        ([_row("published", 120.0), _row("xor", 100.0), _row("edit", 103.0, size=200)], "edit"),
        ([_row("published", 120.0), _row("xor", 100.0), _row("edit", 112.0)], "xor"),
        ([_row("published", 120.0), _row("xor", 100.0, wavefronts=11.0)], "published"),
        ([_row("published", 90.0), _row("in_use", 120.0), _row("xor", 91.0, size=90)], "xor"),
        ([_row("published", 107.0), _row("xor", 100.0)], "published"),
        ([_row("pad", 100.0), _row("xor", 103.0, size=90)], "xor"),
        ([_row("pad", 100.0), _row("xor", 110.0, size=90)], "pad"),
        ([_row("published", None, wavefronts=9.0), _row("xor", None)], "published"),
        ([_row("published", None, wavefronts=11.0), _row("xor", None)], "xor"),
        ([_row("published", None, 50.0), _row("pad", 500.0, 32.0), _row("xor", None, 48.0)], "pad"),
    ],
)
def test_the_order_of_reasons(rows, family):
    """Time first; in equal time what is in use, then its edit, then the fewest bytes."""
    assert recommend(tuple(rows)).family == family


@pytest.mark.parametrize("in_use", [False, True])
def test_a_layout_that_no_multiprocessor_holds_is_taken_only_where_none_fits(in_use):
    """A pad by which the tile is larger than what a block may have."""
    accesses = "r: store 4 [i, tid % 256]; i<227", "c: load 4 [tid % 227, i]; i<256"
    asked = problem_of("227x256 f32, 1024 threads; families none pad", *accesses)
    if in_use:
        asked = constrained(asked, offset="x0*257 + x1")
    found = compare(asked)
    pad = rows_of(found)["pad"]
    assert (pad.blocks_per_sm, pad.bytes > 232448, pad.excess < rows_of(found)["none"].excess) == (
        0,
        True,
        True,
    )
    assert found.recommendation.family == "none"
    if not in_use:
        assert any("--max-bytes 232448 asks for one that fits" in hint for hint in solve(asked).hints)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((100.0, 100.0, 100.0), ""),
        ((None, None, None), "; the time limit left no estimate of time, so wavefronts decide"),
        ((None, 90.0, 100.0), "; the time limit left no estimate of time, so wavefronts decide"),
        ((100.0, 100.0, None), "; for 1 other row, the time limit left no estimate of time"),
    ],
)
def test_a_recommendation_says_where_the_estimate_is_missing(times, said):
    text = recommend(tuple(map(_row, ("published", "pad", "xor"), times))).text
    assert text.endswith(said)
    assert bool(said) == ("no estimate" in text)


@pytest.mark.parametrize(
    ("time", "cycles", "said"),
    [
        (80.0, 60.0, "20% less estimated time with 2 blocks per SM (40% for one alone)"),
        (80.0, 105.0, "20% less estimated time with 2 blocks per SM (5% more for one alone)"),
        (140.0, 120.0, "40% more estimated time with 2 blocks per SM (20% for one alone)"),
    ],
)
def test_a_time_for_one_block_alone_says_in_which_direction(time, cycles, said):
    """The layout in use is one that no multiprocessor holds: whatever the times, the other is taken."""
    used, other = _row("in_use", 100.0, blocks_per_sm=0), _row("xor", time, blocks_per_sm=2)
    assert said in recommend([used, msgspec.structs.replace(other, cycles=cycles)]).text


def test_a_table_of_offsets_is_a_row():
    """No formula serves this tile in its own bytes."""
    best = rows_of(compare(load("spectral_elements/libceed_interp2d_p5q6_f64"), time_limit=3))["all"]
    assert (best.offset, best.excess, best.bytes) == ("lookup[(x0*6 + x1)*6 + x2]", 0, 2304)


def four_bytes(name, op, index, loops=None, where=None):
    more = {"for": {"i": loops}} if loops else {}
    return {"name": name, "op": op, "bytes": 4, "index": index, **more, **({"where": where} if where else {})}


# Row-major under a swizzle takes 147 and 60 instructions, another order or one shift 56 and 42.
SWIZZLES = [
    (32, [32, 24], [four_bytes("r", "store", ["i", "lane"], 32, "lane < 24"), four_bytes("c", "load", ["lane", "i"], 24)]),
    (64, [7, 24], [
        four_bytes("w", "store", ["(tid + 64*i) * 2 % 7", "(tid + 64*i) // 7 % 24"], 3, "tid + 64*i < 168"),
        four_bytes("r", "load", ["(tid + 64*i) // 24 % 7 * 8 % 7", "(tid + 64*i) % 24"], 3, "tid + 64*i < 168"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("threads", "shape", "accesses"), SWIZZLES)
def test_no_swizzle_of_another_order_has_a_cheaper_index(threads, shape, accesses):
    fields = {"tile": {"shape": shape, "element": "f32"}, "threads": threads, "accesses": accesses}
    problem = from_fields(**fields, layout={"families": ["none", "order", "xor"]})
    rows = rows_of(compare(problem))
    cost = solve(problem).proof.index_cost.value
    assert (rows["all"].excess, rows["all"].bytes) == (rows["cute"].excess, rows["cute"].bytes)
    assert cost == rows["all"].index_ops <= rows["cute"].index_ops


@pytest.mark.parametrize("name", HANDFUL)
def test_rows_are_verified_marked_and_agree_with_the_solver(name):
    problem = load(name)
    comparison = compare(problem, time_limit=20)
    rows = rows_of(comparison)
    grids = {f"x{d}": g for d, g in enumerate(np.indices(problem.tile.shape))}
    usable = [row for row in comparison.rows if row.wavefronts is not None]
    costs = {row.family: (row.weighted_wavefronts, row.bytes) for row in usable}
    for row in usable:
        table = evaluate(parse(row.offset, frozenset(grids)), grids) * problem.tile.element_bytes
        table = np.broadcast_to(table, problem.tile.shape)
        assert len(np.unique(table)) == problem.tile.elements, row.family
        assert table.max() + problem.tile.element_bytes == row.bytes <= row.declared_bytes, row.family
        assert row.excess == sum(a.excess for a in row.accesses) == row.wavefronts - row.ideal
        weight, size = costs[row.family]
        beaten = any(w <= weight and b <= size and (w, b) != (weight, size) for w, b in costs.values())
        assert row.pareto == (not beaten), row.family
        assert (weight, size) >= (costs["all"][0], costs["all"][1] * (row.excess == rows["all"].excess))
        assert min(row.cycles, row.time) > 0 <= row.instructions
    assert "cute" not in costs or costs["xor"] <= costs["cute"]
    alike = [row for row in usable if (row.excess, row.bytes) == (rows["all"].excess, rows["all"].bytes)]
    least = min(row.index_ops for row in alike if row.family not in ("published", "edit"))
    assert rows["all"].index_ops == solve(problem, time_limit=20).proof.index_cost.value == least
    taken = costs[comparison.recommendation.family]
    assert taken[0] <= costs.get("published", taken)[0]
    for family, families in (("none", ()), ("pad", ("pad",)), ("order/split", ("order", "split"))):
        result = solve(constrained(problem, families=("none", *families)), time_limit=20)
        if result.layout is None:
            assert rows[family].wavefronts is None
        elif result.status is Status.OPTIMAL:
            assert (rows[family].excess, rows[family].bytes) == (result.excess, result.bytes), family


@pytest.mark.parametrize("name", ["basics/transpose_16x32_f32", "basics/scan_512_f32", "awq/a_128x32_f16"])
def test_cute_swizzles_by_brute_force(name):
    """CuTe's own definition, bit for bit, over the row-major index."""
    problem = load(name)
    vector = max(a.width_elements for a in trace(problem, device("sm_90")).accesses)
    index = np.arange(problem.tile.elements).reshape(problem.tile.shape)
    tables = [index]
    for m, b in itertools.product(range((vector - 1).bit_length(), 7), range(1, 6)):
        tables += [index ^ ((index & (((1 << b) - 1) << (m + s))) >> s) for s in range(b, 12)]
    least = min(excess_of(problem, table * problem.tile.element_bytes) for table in tables)
    assert rows_of(compare(problem))["cute"].excess == least


def test_interval_pads_by_brute_force():
    problem = load(BASICS / "scan_512_f32.json")
    index = np.arange(512)
    costs = [
        (excess_of(problem, (index + p * (index // n)) * 4), 512 + p * (511 // n))
        for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        for p in range(32)
    ]
    row = rows_of(compare(problem))["interval"]
    assert (row.excess, row.bytes // 4) == min(costs)
    assert (row.offset, row.label) == ("x0 + x0 // 32", "1 after every 32")


# Bytes and threads of a block, its GPU and registers; blocks of it on a multiprocessor, and what limits them.
OCCUPANCY = [
    # (48 KiB + 1 KiB reserved) four times in 228 KiB; 227 KiB is the most one block can have.
    (48 << 10, 128, "h100", {}, 4, "shared memory"),
    (227 << 10, 128, "sm_90", {}, 1, "shared memory"),
    ((227 << 10) + 1, 128, "sm_90", {}, 0, "shared memory"),
    (1024, 32, "sm_90", {}, 32, "block slots"),
    (1024, 128, "h100", {"other_bytes": 47 << 10}, 4, "shared memory"),
    # 2048 threads of 33 registers: a warp takes 1280 of 16384 in a quarter, 12 warps there, 48 in all.
    (1024, 256, "sm_90", {"registers": 32}, 8, "threads"),
    (1024, 256, "sm_90", {"registers": 33}, 6, "registers"),
    (1024, 256, "sm_90", {"registers": 255}, 1, "registers"),
    # Chips that share the rules but not the size.
    (20_000, 32, "A100", {}, 7, "shared memory"),
    (20_000, 32, "rtx40", {}, 4, "shared memory"),
    (64, 64, "mi250", {}, 32, "threads"),
    (64, 128, "mi250", {}, 16, "threads"),
    # 168 of 512 vector registers of a lane: three waves on each of four SIMDs (LLVM, getNumWavesPerEUWithNumVGPRs).
    (1024, 64, "mi300x", {"registers": 168}, 12, "registers"),
    (1024, 256, "mi300x", {"registers": 129}, 3, "registers"),
    (64_000, 256, "mi355x", {}, 2, "shared memory"),
    (1024, 256, "gfx1100", {"registers": 96}, 8, "threads"),
    (1024, 256, "gfx1100", {"registers": 97}, 6, "registers"),
]


@pytest.mark.parametrize(("size", "threads", "target", "more", "blocks", "limit"), OCCUPANCY)
def test_occupancy_by_the_documented_arithmetic(size, threads, target, more, blocks, limit):
    found = occupancy(size, 128 if threads == 128 else 16, threads, device(target), target, **more)
    assert (found.blocks, found.limited_by) == (blocks, limit)
    assert found.stages == 1 or size != 227 << 10
    assert occupancy(64, 16, 128, device("sm_80"), "sm_8x") is None  # a chip of no known size


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"other_shared_bytes": 100 << 10}, (2, "shared memory", 31)),
        ({"registers": 72}, (1, "registers", 56)),
    ],
)
def test_what_else_a_block_takes_is_in_the_file(block, expected):
    """Two blocks of 100 KiB fit beside tiles of 4 KiB; by registers, one of 512 threads."""
    asked = problem_of("32x32 f32, 512 threads", "a: load 4 [tid // 32, lane]", block=block)
    row = compare(asked).rows[0]
    assert (row.blocks_per_sm, row.limited_by, row.pipeline_stages) == expected


@pytest.mark.parametrize(
    ("text", "count"), [("x0*32 + x1", 2), ("x0*32 + (x1 ^ x0*32)", 3), ("x0 // 3 + x0 % 4", 5), ("x0", 0)]
)
def test_operations(text, count):
    assert operations(parse(text, frozenset(("x0", "x1")))) == count


def test_forms_of_output():
    path = BASICS / "transpose_16x32_f32.json"
    shown = layoutopt("compare", path)
    lines = shown.stdout.splitlines()
    assert (shown.returncode, "best CuTe swizzle is Swizzle<4,1,4>" in shown.stdout) == (0, True)
    assert lines[2].startswith("  leave it as it is: x0*34 + x1")
    assert lines[2].endswith("no row is estimated faster")  # of others nobody asked
    assert max(map(len, lines)) <= 160
    data, again = (answer("compare", path) for _ in range(2))
    needed = "family offset bytes declared_bytes wavefronts excess blocks_per_sm index_ops pareto"
    assert data["schema"] == "layoutopt.comparison/1"
    assert all({*needed.split()} <= set(row) for row in data["rows"])
    table = list(csv.DictReader(io.StringIO(layoutopt("compare", path, "--csv").stdout)))
    for field in ("family", "offset"):
        assert [row[field] for row in table] == [row[field] for row in data["rows"]]
    assert {row["wavefronts: rows"] for row in table} == {"16", "64"}
    lines = layoutopt("compare", path, "--markdown").stdout.splitlines()
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    for row in (*data["rows"], *again["rows"]):
        del row["seconds"]
    assert data == again
    for asked, said in (
        ((path, "--plot", "x.svg"), "--plot"),
        ((path, "--time-limit", "0"), "above 0"),
        (("none.json",), "none.json"),
        ((path, "--csv", "--json"), "use one of them"),
    ):
        refused(said, "compare", *asked)


def test_lines_are_as_long_as_the_terminal_is_wide():
    problem = load("scan/pyopencl_scan_9x128_f32")
    comparison = compare(problem)
    for width in (60, 80, 120, 160):
        lines = text(problem, comparison, width).splitlines()
        assert max(map(len, lines)) <= width
        assert "change 129 to 132" in " ".join(lines[2:4])
        whole = " ".join(" ".join(lines).split())
        assert all(row.title in whole for row in comparison.rows)


def test_conflicts_that_no_layout_avoids_are_exit_code_1(tmp_path):
    data = data_of("""32x16 f32, 32 threads
        s: store 16 [tid // 4 + 8*i, tid % 4 * 4]; i<4
        l: load 4 [tid, 0]""")
    done = layoutopt("compare", saved(tmp_path, "p.json", data), "--json")
    assert (done.returncode, json.loads(done.stdout)["rows"][0]["excess"] > 0) == (1, True)
    assert solve(from_fields(data)).accesses[1].excess > 0


def test_everything_is_searched_once(monkeypatch):
    asked, solve_cases = [], study_rows.solve_cases

    def counted(cases, ask):
        asked.append(len(cases[0].asked.layout.families))
        return solve_cases(cases, ask)

    monkeypatch.setattr(study_rows, "solve_cases", counted)
    compare(load("basics/transpose_16x32_f32"))
    assert asked.count(max(asked)) == 1


def test_a_row_under_max_bytes_shows_what_fits():
    """An interval pad without conflicts takes 192 bytes, of which 184 are there; row-major takes 180."""
    plain = row_major((3, 5), 12)
    padded = msgspec.structs.replace(plain, interval=(12, 1))

    def batches(laid):
        yield [(int(layout == plain), table.max(), layout) for layout, table in laid]

    counter = SimpleNamespace(batches=batches, index_cost=lambda layout: 0)
    for most, expected in ((184, plain), (191, plain), (192, padded), (None, padded)):
        assert best([plain, padded], counter, 0, most) == expected
    assert best([padded], counter, 0, 191) is None


def test_what_an_alignment_leaves_of_a_row_is_its_best():
    """Without a swizzle, which needs a base at a row of banks, row-major is of the family all the same."""
    row = rows_of(compare(problem_of("""8x32 f32, 32 threads; alignment_bytes 16; families none xor
        a: load 4 [tid % 8, tid // 8]""")))["cute"]  # fmt: skip
    assert (row.status, row.offset, row.label) == ("optimal", "x0*32 + x1", "no swizzle, row-major")


@pytest.mark.parametrize(
    "name", ["any_digit_radix_rank_128x16_u8", "any_bin_expected_256_u32", "any_bin_8x256_u32"]
)
def test_rows_of_lanes_that_choose_at_run_time_are_what_check_counts(name):
    problem = load(name)
    found = compare(problem, time_limit=10)
    usable = [row for row in found.rows if row.wavefronts is not None]
    assert {"none", "pad", "cute", "all"} <= {row.family for row in usable}
    for row in usable:
        audit = check(problem, row.offset)
        rows, audited = ([(a.wavefronts, a.ideal) for a in one.accesses] for one in (row, audit))
        assert rows == audited
        assert (row.excess, row.ways, row.time) == (audit.excess, None, None)
    assert min(row.excess for row in usable) == solve(problem).excess
    assert "no time is estimated, as lanes choose at run time" in found.recommendation.text
    assert "cycles: not estimated, as lanes choose at run time" in text(problem, found)


def test_instructions_that_are_free_stand_beside_those_of_the_file():
    fill = "fill: store 4 [tid // 8 + 32*i, tid % 8]; i<4"
    read = access_from("read: load 4 [tid // 16 * 8 + i, k]; k<8, i<8", instructions=["i"])
    asked = problem_of("128x8 f32, 256 threads", fill, read)
    rows = rows_of(compare(asked))
    assert (rows["all"].wavefronts, rows["given"].wavefronts) == (288, 544)
    assert [access.op for access in rows["given"].accesses] == ["store", "load"]
    assert "given" not in rows_of(compare(problem_of("128x8 f32, 256 threads", fill)))
