"""Audits of layouts in use: counts, findings, counters, exit codes; the nearest edit."""

import json

import msgspec
import numpy as np
import pytest
from command import answer, layoutopt, refused
from conftest import ROOT
from written import constrained, data_of, lines_of, problem_of, refused_with

from layoutopt import check, compare, load, solve
from layoutopt.engine.case import case_of
from layoutopt.expressions.grammar import evaluate, parse, to_text
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget, OutOfTime, spending
from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS, device
from layoutopt.layout.layout import Digit, Layout
from layoutopt.report.text import audit_report
from layoutopt.study import edits as edits_module
from layoutopt.study.check import Audit, AuditStatus, estimate_of
from layoutopt.study.edits import edits, nearest_edit

BASICS = ROOT / "problems" / "basics"
TRANSPOSE = BASICS / "transpose_32x32_f32.json"


def checked(problem, layout, seconds):
    with spending(Budget(seconds)):
        return check(problem, layout, mend=True)


def audit(name, offset=None, mend=False):
    with spending(Budget(10)):
        return check(load(BASICS / f"{name}.json"), offset, mend=mend)


def findings(result, kind):
    return [f for f in result.findings if f.kind == kind]


@pytest.mark.parametrize(
    ("name", "offset", "access", "wavefronts", "conflicts"),
    [
        ("transpose_32x32_f32", "x0*32 + x1", "columns", 32 * 32, 32 * 31),
        ("transpose_32x32_f32", "x0*33 + x1", "columns", 32, 0),
        ("transpose_32x32_f32", "x0*32 + (x1 ^ x0)", "columns", 32, 0),
        ("transpose_32x32_f32", "x0*32 + (x1 // 4 ^ x0 % 8)*4 + x1 % 4", "columns", 128, 96),
        ("transpose_16x16_f32_sm_10", "x0*16 + x1", "columns", 256, 240),
        ("transpose_16x16_f32_sm_10", "x0*17 + x1", "columns", 16, 0),
        ("transpose_16x32_f32", "x0*32 + x1", "columns", 256, 240),
        ("transpose_16x32_f32", "x0*33 + x1", "columns", 32, 16),
        ("transpose_16x32_f32", "x0*34 + x1", "columns", 16, 0),
        ("transpose_16x32_f32", "x0*32 + (x1 ^ 2*x0)", "columns", 16, 0),
        ("transpose_16x32_f32", "x0*32 + (x1 ^ x0)", "columns", 32, 16),
        ("rows_32x32_f64", "x0*32 + x1", "rows", 64, 0),
        ("scan_512_f32", "x0 + x0 // 32", "strides", 5, 0),
        ("scan_512_f32", "x0", "strides", 31, 26),
        ("gemm_a_128x64_f16", "x0*64 + (x1 ^ x0 % 8 * 8)", "fragments", 256, 0),
        ("gemm_a_128x64_f16", "x0*64 + x1", "fragments", 2048, 1792),
    ],
)
def test_published_cases(name, offset, access, wavefronts, conflicts):
    result = audit(name, offset)
    (found,) = [a for a in result.accesses if a.name == access]
    assert (found.wavefronts, found.bank_conflicts) == (wavefronts, conflicts)
    assert result.status == ("conflicts" if result.excess else "conflict_free")


def test_the_worst_phase_lane_by_lane():
    (conflict,) = findings(audit("transpose_32x32_f32", "x0*32 + x1"), "conflict")
    assert (conflict.access, conflict.details["wavefronts"]) == ("columns", 32)
    fourth = {"lane": 3, "coordinates": (3, 0), "byte_offset": 384, "word": 96}
    assert conflict.details["meeting"][3] == fourth
    assert "32 words meet in bank 0" in conflict.message


@pytest.mark.parametrize(
    ("offset", "kinds", "said"),
    [
        ("x0*4 + x1", {"overlap"}, "byte 16"),
        ("x0*9 + x1", {"misaligned", "out_of_bounds", "unused_bytes"}, ""),
        ("x0*8 + (x1 ^ 1)", {"torn"}, ""),
        ("x0*8 + x1 - 4", {"out_of_bounds"}, "byte -16"),
    ],
)
def test_unsound_layouts(offset, kinds, said):
    wide = problem_of("8x8 f32, 32 threads; max_bytes 256", "vectors: load 16 [tid // 2 % 8, 4*(tid % 2)]")
    unsound = check(wide, offset)
    assert unsound.status is AuditStatus.INFEASIBLE
    assert {f.kind for f in unsound.findings} >= kinds
    assert said in " ".join(f.message for f in unsound.findings)
    assert check(wide, "x0*8 + x1").status is AuditStatus.CONFLICT_FREE


def test_the_alignment_that_addresses_need():
    problem = load(ROOT / "problems" / "marlin" / "a_64x64_f16.json")
    (alignment,) = findings(check(problem), "alignment")
    assert alignment.details == {"offset_form": 16, "address_form": 1024}
    odd = problem_of(
        "8x8 6B, 32 threads", "a: load 2 [tid // 4, tid % 4]"
    )  # bits of a number are none of bytes
    assert not findings(check(odd, "x0*8 + (x1 ^ x0 % 4)"), "alignment")


@pytest.mark.parametrize("pad", [0, 1, 5])
def test_bytes_are_declared_as_those_of_the_answer_are(pad):
    asked = problem_of("4x8 f32, 32 threads; families none pad", "a: load 4 [tid // 8, tid % 8]")
    layout = Layout((4, 8), 4, (Digit(0, 1, 4, 8 + pad), Digit(1, 1, 8, 1)))
    audits = [check(asked, form) for form in (f"x0*{8 + pad} + x1", layout)]
    assert {audit.declared_bytes for audit in audits} == {layout.declared_bytes} == {4 * 4 * (8 + pad)}


def test_a_swizzle_may_reach_past_the_pitches_of_an_answer():
    asked = problem_of("17 16B@4, 32 threads; families xor", "a: load 8 [-2*tid % 17]")
    answer = solve(asked)
    assert answer.bytes == 304
    for layout in (answer, answer.layout, answer.offset):
        assert (audit := check(asked, layout)).status == "conflicts"
        assert (audit.bytes, audit.declared_bytes, audit.excess) == (304, 304, 3)


@pytest.mark.parametrize(
    "choice", [{"instructions": ["i"]}, {"op": "load", "bytes": 16, "vector": [[1, 0], [2, 0]]}]
)
def test_a_layout_is_held_against_vectors_across_rows(choice):
    """Vectors given in the file, or chosen under the layout: the answer's own counts, whatever its form."""
    read = {
        "name": "read",
        "op": "load",
        "bytes": 4,
        "index": ["tid // 16 * 8 + i", "k"],
        "for": {"k": 8, "i": 8},
    }
    if "vector" in choice:
        read |= {"index": ["tid // 16 * 8 + 4*i", "k"], "for": {"k": 8, "i": 2}}
    fill = {
        "name": "fill",
        "op": "store",
        "bytes": 4,
        "index": ["tid // 8 + 32*i", "tid % 8"],
        "for": {"i": 4},
    }
    data = {"name": "a", "tile": {"shape": [128, 8], "element": "f32"}, "threads": 256}
    asked = from_data(data | {"accesses": [fill, read | choice]})
    answer = solve(asked)
    assert (answer.excess, [a.wavefronts for a in answer.accesses]) == (0, [32, 256])
    for layout in (answer, answer.layout, answer.offset, answer.table()):
        audit = check(asked, layout)
        assert audit.status == "conflict_free"
        assert [(a.wavefronts, a.ideal) for a in audit.accesses] == [(32, 32), (256, 256)]
    rows = check(asked, "x0*8 + x1")
    assert (rows.status, rows.accesses[1].bytes) == (
        ("conflicts", 4) if "instructions" in choice else ("infeasible", None)
    )


def test_where_time_is_over_large_layouts_in_use_are_counted_and_no_more(monkeypatch):
    """The address form of each XOR takes as long as the count."""
    monkeypatch.setattr("layoutopt.study.in_use._QUICK", 0)
    problem, layout = load("gemm_a_128x64_f16"), "x0*64 + (x1 ^ x0 % 16 * 8)"
    whole, cut = (checked(problem, layout, seconds) for seconds in (10, 0))
    assert cut.accesses == whole.accesses
    assert findings(whole, "alignment")
    assert not findings(cut, "alignment")


@pytest.mark.parametrize(
    ("offset", "message", "saved"),
    [
        ("x0*32 + x1", "90% less estimated time, 992 fewer wavefronts a block, 124 more bytes", (992, -124)),
        ("x0*34 + x1", "14% less estimated time, 32 fewer wavefronts a block, 124 fewer bytes", (32, 124)),
    ],
)
def test_a_fix_is_what_compare_recommends(offset, message, saved):
    (fix,) = findings(audit("transpose_32x32_f32", offset, mend=True), "fix")
    assert message in fix.message
    assert fix.details["offset"] == "x0*33 + x1"  # as `layoutopt fix` writes it: a pad changes a declaration
    assert (fix.details["saved_wavefronts"], fix.details["saved_bytes"]) == saved


def test_a_fix_never_costs_wavefronts(monkeypatch):
    """Fewer bytes are no gain where the solver's time ended at a layout of more wavefronts."""

    def stopped(problem, gpu):
        return solve(constrained(problem, families=("none",)), target=gpu)

    monkeypatch.setattr("layoutopt.study.check.solve", stopped)
    assert not findings(audit("transpose_32x32_f32", "x0*34 + (x1 + x0) % 32", mend=True), "fix")


def test_bytes_alone_are_no_reason():
    """124 bytes fewer change no blocks on a multiprocessor: no fix, and the audit says so."""
    result = audit("transpose_32x32_f32", "x0*33 + x1", mend=True)
    (keep,) = findings(result, "keep")
    assert findings(result, "fix") == []
    assert keep.message.startswith("leave it as it is: x0*33 + x1 has no bank conflicts")
    assert (result.estimate.blocks_per_sm, result.estimate.instructions > 0) == (2, True)
    mended = audit("transpose_32x32_f32", "x0*32 + (x1 ^ x0)", mend=True)
    assert [f.kind for f in mended.findings] == ["alignment"]


def test_a_layout_without_an_estimate_is_not_the_fastest(monkeypatch):
    """Time ends the estimate of the swizzle, which takes the fewest bytes."""

    def of_sums_alone(used, layout):
        return None if isinstance(layout, Layout) and layout.swizzle else estimate_of(used, layout)

    monkeypatch.setattr("layoutopt.study.check.estimate_of", of_sums_alone)
    (keep,) = findings(audit("transpose_32x32_f32", "x0*33 + x1", mend=True), "keep")
    assert keep.details["fastest"] == "x0*33 + x1"


def test_a_fix_saves_time_and_not_wavefronts_alone():
    """An XOR without conflicts takes instructions in every iteration, where a pad takes none."""
    problem = problem_of("""40x36 f32, 64 threads
        rows: store 4 [tid // 32 + 2*i, tid % 32]; i<20
        columns: load 4 [tid % 40, j]; j<36; where tid < 40""")
    (fix,) = findings(checked(problem, "x0*36 + x1", 20), "fix")
    assert fix.details["offset"] == "x0*37 + x1"


def test_amd_counters_have_amds_names():
    problem = problem_of("64x32 f32, 64 threads; target gfx942", "read: load 4 [tid, 0]")
    audit = check(problem, "x0*32 + x1")
    (read,) = audit.accesses
    assert read.counters == {"SQ_LDS_BANK_CONFLICT": read.bank_conflicts}
    text = audit_report(problem, audit)
    assert (read.bank_conflicts > 0, "SQ_LDS_BANK_CONFLICT" in text, "l1tex" in text) == (True, True, False)


def test_counters_of_each_operation():
    problem = problem_of("""32x8 f32, 32 threads
        fill: cp.async 16 [tid, 0]
        one word: load 16 [0, 0]
        write: st.shared.v4.b32 [tid, 4]""")
    fill, one, write = check(problem, "x0*8 + x1").accesses
    assert fill.counters == {}
    assert one.wavefronts == 2
    assert one.counters[f"{WAVEFRONTS}_op_ld"] == one.counters[WAVEFRONTS] == 2
    assert one.counters[f"{WAVEFRONTS}_op_st"] == 0
    assert write.counters[f"{BANK_CONFLICTS}_op_st"] == write.counters[BANK_CONFLICTS] == write.bank_conflicts


def test_layouts_as_tables_and_as_objects():
    problem = load(TRANSPOSE)
    result = solve(problem)
    by_text, by_table = check(problem, result.offset), check(problem, result.layout.table())
    assert check(problem, result.layout).accesses == by_table.accesses == by_text.accesses
    assert by_table.offset is None
    for wrong, message in (
        (np.zeros((3, 3), int), "shape"),
        (np.zeros((32, 32)), "integers"),
        ("x0 // (x1 - 3)", "division by zero"),
    ):
        with refused_with(message):
            check(problem, wrong)
    with refused_with("no layout to check"):
        audit("rows_32x32_f64")


def test_a_layout_that_the_hardware_dictates_is_the_only_fix():
    problem = problem_of("""64x64 bf16, 128 threads
        ld: tma.load
        a: load 16 [tid % 64, 8*(tid // 64 + 2*i)]; i<4""")
    result = checked(problem, "x0*64 + x1", 10)
    (fix,) = findings(result, "fix")
    assert fix.details["family"].startswith("tma")
    served = [row.excess for row in compare(problem).rows if row.status == "optimal"]
    assert (len(served) > 1, min(served)) == (True, 0)
    assert result.excess > 0


def test_command_line(tmp_path):
    clean = layoutopt("check", TRANSPOSE, "--no-fix")
    assert (clean.returncode, clean.stderr, "no bank conflicts" in clean.stdout) == (0, "", True)
    row_major = ("check", TRANSPOSE, "--offset", "x0*32 + x1")
    done = layoutopt(*row_major)
    assert (done.returncode, "layoutopt fix" in done.stdout) == (1, True)
    data = answer(*row_major)
    got = [data[field] for field in ("schema", "status", "excess", "offset", "bytes")]
    assert got == ["layoutopt.audit/1", "conflicts", 992, "x0*32 + x1", 4096]
    assert json.loads(json.dumps(msgspec.convert(data, Audit).to_json())) == data
    assert [f["kind"] for f in data["findings"]] == ["conflict", "fix"]
    table = tmp_path / "t.npy"
    np.save(table, 4 * (np.arange(32)[:, None] * 33 + np.arange(32)))
    assert answer("check", TRANSPOSE, "--table", table, "--no-fix")["status"] == "conflict_free"
    for asked in (("--offset", "x0 +"), ("--offset", "y"), ("--table", "missing.npy"), ("--table", TRANSPOSE),
                  ("--offset", "x0", "--table", table)):  # fmt: skip
        refused("", "check", TRANSPOSE, *asked)


@pytest.mark.parametrize(
    ("offset", "others", "said"),
    [
        ("x0*68 + x1", 0, ["69,616 bytes; a block of sm_75 has 65,536 for it"]),
        ("x0*64 + x1", 0, []),
        ("x0*64 + x1", 16, ["65,536 bytes; a block of sm_75 has 65,520 for it"]),
    ],
)
def test_more_than_a_block_of_the_gpu_has_is_said(offset, others, said):
    rows = "rows: store 16 [tid, 4*i]; i<16"
    asked = problem_of("256x64 f32, 256 threads; target sm_75", rows, block={"other_shared_bytes": others})
    assert [f.message for f in findings(check(asked, offset), "too_large")] == said


@pytest.mark.parametrize("layout", ["x0", 4 * np.arange(256)])
def test_lanes_that_choose_are_counted_by_the_clock(layout, monkeypatch):
    monkeypatch.setattr("layoutopt.study.check._COUNTING_S", 0.0)
    problem = problem_of("256 u32, 32 threads", "add: atomic 4 [b]; any b<256")
    with spending(Budget(0)), pytest.raises(OutOfTime):
        check(problem, layout)
    # Lanes that are known are counted without it.
    known = problem_of("256 u32, 32 threads", "read: load 4 [lane]")
    with spending(Budget(0)):
        assert check(known, layout).excess == 0


def test_a_long_formula_of_many_elements_is_estimated_by_the_clock(monkeypatch):
    problem, text = problem_of("32x32 u32, 32 threads", "read: load 4 [lane, 0]"), "x0*32 + (x1 ^ x0 // 1024)"
    assert checked(problem, text, 20).estimate is not None
    monkeypatch.setattr(edits_module, "_QUICK_OPERATIONS", 1024)
    found = checked(problem, text, 0)
    assert (found.estimate, found.excess) == (None, 31)


# A scan's exchange in PyOpenCL: written to rows of a thread's items, read by items.
SCAN = data_of("""9x129 f32, 128 threads; published 4644 x0*129 + x1
    write: store 4 [(k*128 + tid) % 8, (k*128 + tid) // 8]; k<8
    read: load 4 [k, tid]; k<8""")


def nearest(problem, offset):
    case = case_of(problem, device(problem.target))
    names = frozenset(f"x{d}" for d in range(len(problem.tile.shape)))
    return nearest_edit(parse(offset, names), case)


def test_it_is_a_row_of_compare():
    problem, change, offset = from_data(SCAN), "change 129 to 132", "x0*132 + x1"
    comparison = compare(problem)
    (row,) = [row for row in comparison.rows if row.edit is not None]
    assert comparison.recommendation.text.startswith(f"{change}: {offset} has no bank conflicts")
    assert (row.family, row.edit, row.offset, row.excess) == ("edit", change, offset, 0)
    assert (row.bytes, row.declared_bytes) == (4 * (8 * 132 + 129), 4 * 9 * 132)


@pytest.mark.parametrize(
    ("name", "offset", "text"),
    [
        ("basics/transpose_32x32_f32", "x0*32 + x1", "change 32 to 33"),
        ("basics/gemm_a_128x64_f16", "x0*64 + x1", "change 64 to 72"),
        ("basics/gemm_a_128x64_f16", "x0*64 + (x1 ^ x0 % 4 * 8)", "change % 4 to % 8"),
        ("wavelets/haar_1d_512_f32", "x0 + x0 // 16", "change // 16 to // 32"),
        ("stencils/arrayfire_convolve_3d_f32", "x0*144 + x1*12 + x2", "change 12 to 24 and 144 to 288"),
        # What is no layout is mended: rows of 65 halves are misaligned for 16 bytes; rows of 31 overlap.
        ("basics/gemm_a_128x64_f16", "x0*65 + x1", "change 65 to 72"),
        ("basics/transpose_32x32_f32", "x0*31 + x1", "change 31 to 33"),
        # A layout without conflicts needs none.
        ("basics/transpose_32x32_f32", "x0*33 + x1", None),
        ("basics/transpose_32x32_f32", "x0*32 + (x1 ^ x0)", None),
    ],
)
def test_edits_as_authors_make_them(name, offset, text):
    found = nearest(load(name), offset)
    assert (found and found.text) == text


@pytest.mark.parametrize(
    "layout", [{"families": ["none", "xor"]}, {"max_bytes": 4096}, {"pitch_multiple_bytes": 16}]
)
def test_constraints_are_kept(layout):
    """Rows may have no pad, no room for one, or none that leaves no conflict."""
    found = nearest(from_data(lines_of(32, lines=("rows", "columns"), **layout)), "x0*32 + x1")
    assert found is None or to_text(found.node) == "x0*36 + x1"


def test_every_edit_says_what_it_does():
    """The text of a changed constant leads from the formula before to the one after."""
    before = parse("x0*66 + x1*33 + x2", frozenset(("x0", "x1", "x2")))
    tried = list(edits(before, 32))
    assert len({to_text(e.node) for e in tried}) > 60
    for edit in tried:
        if edit.text.startswith("change "):
            text = to_text(before)
            for change in edit.text.removeprefix("change ").split(" and "):
                old, new = change.split(" to ")
                text = text.replace(f"*{old}", f"*<{new}>")
            assert text.replace("<", "").replace(">", "") == to_text(edit.node)
        grids = {f"x{d}": g for d, g in enumerate(np.indices((2, 2, 33)))}
        assert evaluate(edit.node, grids).size


def test_divisors_change_by_powers_of_two():
    """An eighth of 20 is no whole number: 2, a tenth, is no edit of it."""
    before = parse("x0 + x0 // 20", frozenset(("x0",)))
    assert {to_text(e.node)[5:] for e in edits(before, 4)} == {f"x0 // {n}" for n in (5, 10, 40, 80, 160)}


def test_an_edit_keeps_the_order_of_dimensions_that_the_file_asks_for():
    """A stride below that of the next dimension saves bytes, in another order."""
    problem = problem_of("2x2x3 f32, 1 threads; order 0 2 1", "a: load 4 [0, 0, 0]")
    assert nearest(problem, "x0*8 + x1*3 + x2") is None
    assert to_text(nearest(problem, "x0*8 + x2*2 + x1").node) == "x0*6 + x2*2 + x1"
