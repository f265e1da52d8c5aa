"""Families side by side: the seeds' figures, every family against a plain search, the forms of output."""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from command import layoutopt, refused
from conftest import PROBLEMS, ROOT, problem_id
from oracle.banks import weighted_excess
from written import data_of, reads, writes

from layoutopt import Status, compare, load, solve
from layoutopt.accesses.trace import trace
from layoutopt.engine.case import case_of
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.grammar import evaluate, parse
from layoutopt.expressions.simplify import operations
from layoutopt.files.python import problem as from_fields
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import device
from layoutopt.hardware.occupancy import occupancy
from layoutopt.layout.layout import row_major
from layoutopt.report.comparison_text import text
from layoutopt.report.plot import _titles
from layoutopt.study.advice import recommend
from layoutopt.study.comparison import Row
from layoutopt.study.counted import best

BASICS = ROOT / "problems" / "basics"
HANDFUL = (
    "basics/gemm_a_128x32_f16", "basics/scan_512_f32", "basics/transpose_16x16_f32_sm_10",
    "awq/a_128x32_f16", "flash_attention/forward_q_d64_128x64", "ggml/flash_attention_tile_k_d40",
    "n_body/rodinia_lavamd_positions_f64", "spectral_elements/specfem3d_gll5_f32",
)  # fmt: skip


def rows_of(comparison):
    return {row.family: row for row in comparison.rows}


def named(name):
    (path,) = [p for p in PROBLEMS if problem_id(p) == name]
    return load(path)


def excess_of(problem, table):
    gpu = device(problem.target)
    return weighted_excess(table, trace(problem, gpu), gpu)


def test_the_question_that_started_it():
    """32x32 floats, transposed: pad 1 or XOR."""
    comparison = compare(load(BASICS / "transpose_32x32_f32.json"))
    rows = rows_of(comparison)
    pad, xor = rows["pad"], rows["xor"]
    assert (pad.offset, pad.excess, pad.bytes, pad.declared_bytes) == ("x0*33 + x1", 0, 4220, 4224)
    assert (xor.offset, xor.excess, xor.bytes, xor.declared_bytes) == ("x0*32 + (x1 ^ x0)", 0, 4096, 4096)
    assert (pad.index_ops, xor.index_ops) == (pad.instructions, xor.instructions) == (6, 7)
    assert sum(access.index_ops for access in xor.accesses) == 7
    assert (pad.blocks_per_sm, xor.blocks_per_sm, xor.limited_by) == (2, 2, "threads")
    assert (pad.blocks_by_shared_memory, xor.blocks_by_shared_memory) == (44, 45)
    assert rows["guess_pad"].bytes == pad.bytes
    assert rows["none"].ways == 32
    # The published pad takes as long as any: it stays.
    taken = comparison.recommendation
    assert (taken.family, taken.offset, taken.keep) == ("published", "x0*33 + x1", True)
    assert taken.text.startswith("leave it as it is: x0*33 + x1")
    assert pad.instructions <= xor.instructions
    assert pad.cycles <= xor.cycles < rows["none"].cycles / 3


def test_without_a_layout_in_use_equal_time_is_decided_by_bytes():
    problem = msgspec.structs.replace(load(BASICS / "transpose_16x16_f32_sm_10.json"), published=None)
    taken = compare(problem).recommendation
    assert (taken.family in ("guess_xor", "xor", "cute"), taken.keep) == (True, False)
    assert "60 fewer bytes" in taken.text


def test_what_cannot_hold_the_tile_is_replaced(problem_file):
    comparison = compare(load(problem_file(layout={"offset": "x0*4 + x1"})))
    assert not comparison.recommendation.keep
    assert "in use is no layout of this tile: elements overlap" in comparison.recommendation.text


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
    ],
)
def test_the_order_of_reasons(rows, family):
    """Time first; in equal time what is in use, then its edit, then the fewest bytes."""
    assert recommend(tuple(rows)).family == family


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


def test_a_table_of_offsets_is_a_row():
    """No formula serves this tile in its own bytes."""
    problem = load(ROOT / "problems/spectral_elements/libceed_interp2d_p5q6_f64.json")
    rows = {row.family: row for row in compare(problem, time_limit=3).rows}
    assert rows["all"].offset == "lookup[(x0*6 + x1)*6 + x2]"
    assert (rows["all"].excess, rows["all"].bytes) == (0, 2304)


def test_one_word_of_pad_is_not_always_enough():
    rows = rows_of(compare(load(BASICS / "transpose_16x32_f32.json")))
    assert (rows["guess_pad"].ways, rows["guess_pad"].excess) == (2, 16)
    assert (rows["guess_xor"].ways, rows["guess_xor"].excess) == (2, 16)
    assert (rows["pad"].offset, rows["pad"].excess) == ("x0*34 + x1", 0)
    assert (rows["all"].excess, rows["all"].bytes) == (0, 2048)


@pytest.mark.parametrize("name", HANDFUL)
def test_rows_are_verified_and_marked(name):
    problem = named(name)
    comparison = compare(problem, time_limit=20)
    rows = rows_of(comparison)
    grids = {f"x{d}": g for d, g in enumerate(np.indices(problem.tile.shape))}
    usable = [row for row in comparison.rows if row.wavefronts is not None]
    for row in usable:
        table = evaluate(parse(row.offset, frozenset(grids)), grids) * problem.tile.element_bytes
        table = np.broadcast_to(table, problem.tile.shape)
        assert len(np.unique(table)) == problem.tile.elements, row.family
        assert table.max() + problem.tile.element_bytes == row.bytes <= row.declared_bytes, row.family
        assert row.excess == sum(a.excess for a in row.accesses) == row.wavefronts - row.ideal
        assert row.weighted_wavefronts >= 0
        beaten = any(
            o.weighted_wavefronts <= row.weighted_wavefronts
            and o.bytes <= row.bytes
            and (o.weighted_wavefronts, o.bytes) != (row.weighted_wavefronts, row.bytes)
            for o in usable
        )
        assert row.pareto == (not beaten), row.family
        assert (row.weighted_wavefronts, row.bytes) >= (
            rows["all"].weighted_wavefronts,
            rows["all"].bytes if row.excess == rows["all"].excess else 0,
        )
    if rows["cute"].wavefronts is not None:
        xor, cute = rows["xor"], rows["cute"]
        assert (xor.weighted_wavefronts, xor.bytes) <= (cute.weighted_wavefronts, cute.bytes)
    assert all(row.cycles > 0 and row.instructions >= 0 and row.time > 0 for row in usable)
    taken = rows[comparison.recommendation.family]
    assert taken.weighted_wavefronts <= rows.get("published", taken).weighted_wavefronts


@pytest.mark.parametrize("name", HANDFUL)
def test_counted_families_agree_with_the_solver(name):
    problem = named(name)
    rows = rows_of(compare(problem, time_limit=20))
    for family, families in (
        ("none", ("none",)),
        ("pad", ("none", "pad")),
        ("order/split", ("none", "order", "split")),
    ):
        layout = msgspec.structs.replace(problem.layout, families=families)
        result = solve(msgspec.structs.replace(problem, layout=layout), time_limit=20)
        if result.layout is None:
            assert rows[family].wavefronts is None
        elif result.status is Status.OPTIMAL:
            assert (rows[family].excess, rows[family].bytes) == (result.excess, result.bytes), family


@pytest.mark.parametrize("name", ["basics/transpose_16x32_f32", "basics/scan_512_f32", "awq/a_128x32_f16"])
def test_cute_swizzles_by_brute_force(name):
    """CuTe's own definition, bit for bit, over the row-major index."""
    problem = named(name)
    size, shape = problem.tile.element_bytes, problem.tile.shape
    vector = max(a.width_elements for a in trace(problem, device("sm_90")).accesses)
    index = np.arange(problem.tile.elements).reshape(shape)
    found = excess_of(problem, index * size)
    for m in range((vector - 1).bit_length(), 7):
        for b in range(1, 6):
            for s in range(b, 12):
                swizzled = index ^ ((index & (((1 << b) - 1) << (m + s))) >> s)
                found = min(found, excess_of(problem, swizzled * size))
    assert rows_of(compare(problem))["cute"].excess == found


def test_interval_pads_by_brute_force():
    problem = load(BASICS / "scan_512_f32.json")
    index = np.arange(512)
    costs = {
        (n, p): (excess_of(problem, (index + p * (index // n)) * 4), 512 + p * (511 // n))
        for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        for p in range(32)
    }
    row = rows_of(compare(problem))["interval"]
    assert (row.excess, row.bytes // 4) == min(costs.values())
    assert (row.offset, row.label) == ("x0 + x0 // 32", "1 after every 32")


def test_rows_that_a_problem_does_not_allow(problem_file):
    problem = load(problem_file(layout={"families": ["none", "pad"], "max_bytes": 400}))
    comparison = compare(problem)
    rows = rows_of(comparison)
    for family in ("xor", "cute", "interval", "order/split"):
        assert rows[family].status == Status.INFEASIBLE
        assert "not allowed" in rows[family].reason
        assert not rows[family].pareto
    assert "guess_xor" not in rows
    assert rows["all"].bytes <= 400
    assert comparison.recommendation.family in rows


@pytest.mark.parametrize(
    ("layout", "shape", "allowed"),
    [
        ({}, [32, 32], {"guess_pad", "guess_xor"}),
        ({"order": [0, 1]}, [32, 32], {"guess_pad", "guess_xor"}),
        ({"order": [1, 0]}, [32, 32], set()),
        ({"pitch_multiple_bytes": 16}, [32, 32], {"guess_xor"}),
        ({"pitch_multiple_bytes": 12}, [32, 32], {"guess_pad"}),
        ({"pitch_multiple_bytes": 16}, [1024], {"guess_xor"}),
        ({}, [1024], {"guess_pad", "guess_xor"}),
    ],
)
def test_guesses_keep_to_order_and_pitch(problem_file, layout, shape, allowed):
    index = ["tid", "0"][: len(shape)]
    access = reads("a", 4, index)
    tile = {"shape": shape, "element": "f32"}
    problem = load(problem_file(tile=tile, threads=32, accesses=[access], layout=layout))
    rows = [row for row in compare(problem).rows if row.family.startswith("guess")]
    assert {row.family for row in rows if row.wavefronts is not None} == allowed


def test_the_layout_in_use_is_a_row_and_can_be_kept(problem_file):
    problem = load(problem_file(layout={"offset": "x0*8 + (x1 ^ x0)"}, threads=64))
    comparison = compare(problem)
    assert rows_of(comparison)["in_use"].offset == "x0*8 + (x1 ^ x0)"
    bad = load(problem_file(layout={"offset": "x0*4 + x1"}))
    row = rows_of(compare(bad))["in_use"]
    assert (row.status, row.reason, row.wavefronts) == (Status.INFEASIBLE, "elements overlap", None)
    with pytest.raises(ProblemFileError, match=r"layout\.offset"):
        compare(load(problem_file(layout={"offset": "x0*8 + y"})))


def test_weights_decide(problem_file):
    accesses = [
        writes("rows", 4, ["tid // 8", "tid % 8"], weight=0),
        reads("columns", 4, ["tid % 8", "tid // 8"], weight=3),
    ]
    comparison = compare(load(problem_file(accesses=accesses)))
    for row in comparison.rows:
        if row.accesses:
            assert row.weighted_wavefronts == 3 * row.accesses[1].wavefronts


def test_occupancy_by_the_documented_arithmetic():
    h100, mi250 = device("h100"), device("mi250")
    # (48 KiB + 1 KiB reserved) four times in 228 KiB; 227 KiB is the most one block can have.
    assert occupancy(48 << 10, 128, 128, h100, "h100").blocks == 4
    most = occupancy(227 << 10, 128, 128, h100, "sm_90")
    assert (most.blocks, most.limited_by, most.stages) == (1, "shared memory", 1)
    assert occupancy((227 << 10) + 1, 128, 128, h100, "sm_90").blocks == 0
    assert occupancy(1024, 128, 32, h100, "sm_90").limited_by == "block slots"
    # 2048 threads of 33 registers: a warp takes 1280 of 16384 in a quarter, 12 warps there, 48 in all.
    assert occupancy(1024, 16, 256, h100, "sm_90", registers=32).blocks == 8
    held = occupancy(1024, 16, 256, h100, "sm_90", registers=33)
    assert (held.blocks, held.limited_by) == (6, "registers")
    assert occupancy(1024, 16, 256, h100, "sm_90", registers=255).blocks == 1
    assert occupancy(1024, 128, 128, h100, "h100", other_bytes=47 << 10).blocks == 4
    # Chips that share the rules but not the size.
    assert occupancy(20_000, 16, 32, device("a100"), "A100").blocks == 7
    assert occupancy(20_000, 16, 32, device("rtx40"), "rtx40").blocks == 4
    assert occupancy(64, 16, 64, mi250, "mi250").blocks == 32
    assert occupancy(64, 16, 128, mi250, "mi250").blocks == 16
    # 168 of 512 vector registers of a lane: three waves on each of four SIMDs (LLVM, getNumWavesPerEUWithNumVGPRs).
    mi300 = device("mi300x")
    assert occupancy(1024, 16, 64, mi300, "mi300x", registers=168).blocks == 12
    assert occupancy(1024, 16, 256, mi300, "mi300x", registers=129).limited_by == "registers"
    assert occupancy(64_000, 16, 256, device("gfx950"), "mi355x").blocks == 2
    assert occupancy(1024, 16, 256, device("rdna3"), "gfx1100", registers=96).blocks == 8
    assert occupancy(1024, 16, 256, device("rdna3"), "gfx1100", registers=97).blocks == 6
    assert occupancy(64, 16, 128, device("sm_80"), "sm_8x") is None


def test_what_else_a_block_takes_is_in_the_file(problem_file):
    """Two blocks of 100 KiB fit beside tiles of 4 KiB; by registers, one of 512 threads."""
    tile, threads = {"shape": [32, 32], "element": "f32"}, 512
    accesses = [reads("a", 4, ["tid // 32", "lane"])]
    memory = {"other_shared_bytes": 100 << 10}
    row = compare(load(problem_file(tile=tile, threads=threads, accesses=accesses, block=memory))).rows[0]
    assert (row.blocks_per_sm, row.limited_by, row.pipeline_stages) == (2, "shared memory", 31)
    registers = {"registers": 72}
    row = compare(load(problem_file(tile=tile, threads=threads, accesses=accesses, block=registers))).rows[0]
    assert (row.blocks_per_sm, row.limited_by) == (1, "registers")


@pytest.mark.parametrize(
    ("text", "count"), [("x0*32 + x1", 2), ("x0*32 + (x1 ^ x0*32)", 3), ("x0 // 3 + x0 % 4", 5), ("x0", 0)]
)
def test_operations(text, count):
    assert operations(parse(text, frozenset(("x0", "x1")))) == count


def test_forms_of_output(tmp_path):
    path = str(BASICS / "transpose_16x32_f32.json")
    shown = layoutopt("compare", path)
    assert shown.returncode == 0
    assert "best CuTe swizzle is Swizzle<4,1,4>" in shown.stdout
    assert shown.stdout.splitlines()[2].startswith("  leave it as it is: x0*34 + x1")
    assert shown.stdout.splitlines()[2].endswith("no row is estimated faster")  # of others nobody asked
    assert max(map(len, shown.stdout.splitlines())) <= 160
    data = json.loads(layoutopt("compare", path, "--json").stdout)
    needed = {
        "family", "offset", "bytes", "declared_bytes", "wavefronts", "excess", "blocks_per_sm", "index_ops",
        "pareto",
    }  # fmt: skip
    assert data["schema"] == "layoutopt.comparison/1"
    assert all(needed <= set(row) for row in data["rows"])
    table = list(csv.DictReader(io.StringIO(layoutopt("compare", path, "--csv").stdout)))
    assert [row["family"] for row in table] == [row["family"] for row in data["rows"]]
    assert [row["offset"] for row in table] == [row["offset"] for row in data["rows"]]
    assert {row["wavefronts: rows"] for row in table} == {"16", "64"}
    lines = layoutopt("compare", path, "--markdown").stdout.splitlines()
    bars = {line.count("|") for line in lines if line.startswith("|")}
    assert len(bars) == 1
    again = json.loads(layoutopt("compare", path, "--json").stdout)
    for row in (*data["rows"], *again["rows"]):
        del row["seconds"]
    assert data == again


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_lines_are_as_long_as_the_terminal_is_wide(width):
    problem = named("scan/pyopencl_scan_9x128_f32")
    comparison = compare(problem)
    lines = text(problem, comparison, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "change 129 to 132" in " ".join(lines[2:4])
    whole = " ".join(" ".join(lines).split())
    assert all(row.title in whole for row in comparison.rows)


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_plot(tmp_path, kind):
    pytest.importorskip("matplotlib", reason="matplotlib, the optional extra plot, is not installed")
    file = tmp_path / f"front.{kind}"
    done = layoutopt("compare", str(BASICS / "transpose_16x32_f32.json"), "--plot", str(file))
    assert done.returncode == 0, done.stderr
    if kind == "svg":
        text = "".join(ElementTree.fromstring(file.read_text()).itertext())
        assert "best CuTe swizzle, best XOR, pad and XOR together" in " ".join(text.split())
        assert "wavefronts" in text
    else:
        assert file.read_bytes().startswith(b"\x89PNG")


def test_labels_break_between_titles():
    titles = ["column ^ row", "best CuTe swizzle", "best XOR", "everything", "published"]
    lines = _titles([Row(str(k), title, "given") for k, title in enumerate(titles)])
    assert len(lines) == 2
    assert ", ".join(titles) == " ".join(lines)
    assert all(title in "\n".join(lines) for title in titles)


def test_wrong_use(tmp_path):
    path = str(BASICS / "transpose_16x32_f32.json")
    for arguments in (("--plot", "x.pdf"), ("--time-limit", "0"), ("--plot", str(tmp_path / "no" / "x.svg"))):
        done = layoutopt("compare", path, *arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert layoutopt("compare", str(tmp_path / "none.json")).returncode == 2


def test_conflicts_that_no_layout_avoids_are_exit_code_1(problem_file):
    store = writes("s", 16, ["tid // 4 + 8*i", "tid % 4 * 4"], i=4)
    load_column = reads("l", 4, ["tid", "0"])
    path = problem_file(tile={"shape": [32, 16], "element": "f32"}, threads=32, accesses=[store, load_column])
    done = layoutopt("compare", str(path), "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 1
    assert data["rows"][0]["excess"] > 0
    assert case_of(load(path), device("sm_90")).measure(solve(load(path)).layout)[1].excess > 0


def test_an_answer_has_one_form():
    refused("use one of them", "compare", "transpose_32x32_f32", "--csv", "--json")


def test_what_is_known_is_not_searched_again(monkeypatch):
    """Everything is searched once, and not at all where its answer is given."""
    from layoutopt.study import rows as module

    problem = load(ROOT / "problems/basics/transpose_16x32_f32.json")
    asked: list[int] = []
    solve_cases = module.solve_cases

    def counted(cases, ask):
        asked.append(len(cases[0].asked.layout.families))
        return solve_cases(cases, ask)

    monkeypatch.setattr(module, "solve_cases", counted)
    answer = solve(problem)
    first = compare(problem)
    assert asked.count(max(asked)) == 1
    searched = len(asked)
    asked.clear()
    again = compare(problem, known=answer)
    assert len(asked) == searched - 1
    assert again.recommendation == first.recommendation


def test_a_pad_of_one_dimension_is_an_interval_pad():
    data = data_of("256 f32, 32 threads", "a: load 4 [tid*8]")
    rows = {row.family: row for row in compare(from_fields(data)).rows}
    assert rows["guess_pad"].offset == "x0 // 32 * 33 + x0 % 32"
    assert rows["interval"].excess <= rows["guess_pad"].excess
    data["layout"] = {"families": ["none", "pad", "split"]}
    assert "guess_pad" not in {row.family for row in compare(from_fields(data)).rows}


def test_a_row_under_max_bytes_shows_what_fits():
    """An interval pad without conflicts takes 192 bytes, of which 184 are there; row-major takes 180."""
    plain = row_major((3, 5), 12)
    padded = msgspec.structs.replace(plain, interval=(12, 1))

    def batches(laid, _):
        yield [(int(layout == plain), table.max(), layout) for layout, table in laid]

    counter = SimpleNamespace(batches=batches)
    for most, expected in ((184, plain), (191, plain), (192, padded), (None, padded)):
        assert best([plain, padded], counter, 0, most, Budget()) == expected
    assert best([padded], counter, 0, 191, Budget()) is None


def test_what_an_alignment_leaves_of_a_row_is_its_best():
    """Without a swizzle, which needs a base at a row of banks, row-major is of the family all the same."""
    data = data_of("""8x32 f32, 32 threads; alignment_bytes 16; families none xor
        a: load 4 [tid % 8, tid // 8]""")
    (row,) = (row for row in compare(from_fields(data)).rows if row.family == "cute")
    assert (row.status, row.offset, row.label) == ("optimal", "x0*32 + x1", "no swizzle, row-major")
