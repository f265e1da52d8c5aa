"""Emitted code equals the table at every coordinate, and every access at every thread; names, types, parts, refusals."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from command import answer, layoutopt, refused
from conftest import PROBLEMS, ROOT
from emit_programs import GCC, GXX, NAMED, SOLVED, emit, run, solved, tabled
from msgspec.structs import replace
from written import access_from, data_of, one_tile, problem_of, refused_with, saved

from layoutopt import emit as layoutopt_emit
from layoutopt import solve
from layoutopt.codegen.c_text import to_c
from layoutopt.codegen.languages import plan, run_plan
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.codegen.selftest import program
from layoutopt.engine.case import case_of
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.bits import moved_bits
from layoutopt.expressions.grammar import Const, Op, Var, evaluate, parse, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.files.file import from_data, load
from layoutopt.hardware.devices import device
from layoutopt.index.cost import instructions
from layoutopt.layout.families import families_of
from layoutopt.layout.formula import flipped_spelling, offset_expression
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.problems.answer import Bound, Proof, Result, Status
from layoutopt.problems.types import Problem

CPP = [GXX, "-std=c++14", "-Wall", "-Wextra", "-Werror"]
C = [GCC, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]


@pytest.mark.nvcc
def test_nvcc_compiles_the_code_for_host_and_device(tmp_path):
    names = "transpose_32x32_f32", "flash_attention_tile_k_d112", "gemm_a_128x64_f16"
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", "-diag-suppress", "177"]
    run(command, "cuda", [*(solved(path) for path in PROBLEMS if path.stem in names), tabled()], tmp_path)


AWKWARD = problem_of(
    """3x10x7 12B, 70 threads
    int: load 4 [for_, tid // 7, 6 - tid % 7]; for_<3
    bytes: load 4 [abs // 2 - 1 if abs > 1 else 0, max(tid % 5 - 1, 0), min(tid, 6)]; abs<5
    bytes : store 4 [(tid - 9) // 3 % 3, (tid - 40) % 10, (~tid & 3) ^ 1]; where not (tid < 3 or tid == 5)
    offset: load 4 [tid // 40, -tid // 8 + 9, (tid * tid - 7) % 7]
    offset_bytes: load 4 [tid % 3, 0, 0]
    late: load 4 [m - tid, tid, 0]; m<3; where 0 <= tid <= m""",
    name="3-D tile/with an awkward \\ name\\",
)


REMAINDERS = problem_of(
    """8x64 f32, 64 threads
    three: load 4 [(3*lane) % 4, tid]
    modulus: load 4 [tid % 2, (2*tid) % 64]
    square: load 4 [tid*(3*tid % 8) % 8, (tid*2654435761) % 64]
    compare: load 4 [((tid & 3) < 2) + (tid ^ 1 if (lane ^ 3) < 16 else 7) % 4, (tid | 1) if tid % 4 == 3 else tid]
    wide: load 4 [(tid << 33) // 4294967296 % 8, (tid*tid*1000003 - 5) % 64]
    loop: load 4 [(5*i + 3*tid) % 8, (7*(i ^ tid % 3) + 6*tid) % 64]; i<6""",
    name="remainders, precedence and size",
)


def nested(symbol, depth=24):
    """Operands that stand inside one another, each of which C names more than once."""
    text = "tid - 40"
    for k in range(depth // 2 if symbol in "//%" else depth):
        inner = f"({text}) ^ {k}"
        if symbol in ("min", "max"):
            text = f"{symbol}({inner}, (i - tid*{k + 3}) % {997 + k})"
        else:
            text = f"(({inner})*3 - {k + 300}) {symbol} {3 if symbol == '//' else 997 + k}"
    return f"({text} + i) % 1024"


def nested_problem(*symbols):
    accesses = [access_from(f"a{k}: load 4 [{nested(symbol)}]; i<3") for k, symbol in enumerate(symbols)]
    flat = ", ".join(f"(tid*{2 * k + 3} + i) % {1000 + k}" for k in range(60))
    accesses.append({**accesses[0], "name": "lesser", "index": [f"min({flat})"]})
    return problem_of("1024 f32, 64 threads; name nested", *accesses)


GPU = device("sm_90")
NESTED = nested_problem("min", "max", "//", "%"), GPU, "x0"
# Values below 0, that of coordinates without a sign; numbers beyond int; several tables, some of them negative.
SIGNED = [
    "x0*31 + (x1 - x0) % 31",
    "(x0*31 + x1 - 5000) % 961",
    "x0*31 + x1 + ((x0*31 + x1 - 512) >> 31)*-4096",
    "x0*31 + x1 + min(x0, -3) + 3",
    "x0*31 + x1 + (-5 < x0 - 9)*3",
    "x0*31 + x1 + [-1, 0, 2][x0 % 3] - [-1, 0, 2, 3][x0 % 3]",
    "x0*31 + x1 + [-3000000000, 0][x0 > 3] + 3000000000*(x0 <= 3)",
]
ODD = [
    (AWKWARD, GPU, "x2*73 + x0*23 + x1"),
    (REMAINDERS, GPU, "x0*64 + (x1 ^ x0*4)"),
    NESTED,
    NAMED,
    *((problem_of(f"31x31 f32, 31 threads; name signed {k}", "a: load 4 [LL, tid]; LL<31"), GPU, formula)
      for k, formula in enumerate(SIGNED)),
]  # fmt: skip


def cases(every):
    """Solved problems, every so many, published layouts between them, and what is odd."""
    found = [solved(path) for path in SOLVED]
    used = ((p, gpu) for p, gpu, _ in found if p.published is not None)
    published = [(replace(p, name=f"{p.name} in use"), gpu, p.published.offset) for p, gpu in used]
    return [*found[::every], *published[:: 2 * every], tabled(), *ODD]


# On the host the texts of HIP and C are CUDA's but for guards, and types.
@pytest.mark.skipif(GXX is None or GCC is None, reason="no C or C++ compiler on this machine")
@pytest.mark.parametrize(
    ("language", "command", "every"),
    [("cuda", CPP, 1), ("hip", CPP, 8), ("c", C, 3)],
    ids=["cuda", "hip", "c"],
)
def test_host_compiled_code_equals_the_table(language, command, every, tmp_path):
    run([*command, "-Wno-unused-function"], language, cases(every), tmp_path)


def test_long_operands_that_c_would_repeat_are_a_functions():
    """Written out, each inside the other two or four times, they would be gigabytes."""
    assert len(emit("cuda", *NESTED)) < 1 << 16
    assert len(program(plan(nested_problem("min"), GPU, "x0"))) < 1 << 17
    with refused_with("'min' are too long for C in one expression", LayoutError):
        to_c(parse(nested("min"), frozenset(("tid", "i"))), {"tid": (0, 63), "i": (0, 2)})


def test_opencl_has_other_literals_and_the_same_names():
    node = parse("LL*4294967296 + L - LL", frozenset(("L", "LL")))
    text = to_c(node, {"L": (0, 3), "LL": (0, 7)}, "long")
    assert text == "(long)LL * 4294967296L + (long)L - (long)LL"


def of_digits(shape, size, digits, targets=(), *more, **fields):
    digits, targets = tuple(Digit(*d) for d in digits), tuple(Target(*t) for t in targets)
    return Layout(shape, size, digits, targets, *more, **fields)


def rows_of(shape, pitch=None):
    """The digits of a matrix by rows."""
    return (0, 1, shape[0], pitch or shape[1]), (1, 1, shape[1], 1)


# Every shape of formula: owned digits, carries, gaps, scattered masks, split targets.
LAYOUTS = [
    of_digits((8, 8), 4, rows_of((8, 8)), [(0, 8), (1, 16 | 32)]),
    of_digits((8, 8), 4, rows_of((8, 8), 9), [(0, 8), (2, 16 | 64)]),
    of_digits((7, 6), 2, [(1, 1, 6, 16), (0, 1, 7, 2)], [(1, 32), (2, 64)]),
    of_digits((4, 12), 4, [(1, 4, 3, 16), (0, 1, 4, 4), (1, 1, 4, 1)], [(2, 16), (3, 32)]),
    of_digits((33,), 4, [(0, 1, 33, 1)], [(0, 32)]),
    of_digits((3, 4, 5), 8, [(2, 1, 5, 12), (0, 1, 3, 4), (1, 1, 4, 1)]),
    of_digits((16, 16), 4, rows_of((16, 16)), [(0, 0b10100000), (1, 0b01000000), (3, 0b10010000)]),
    of_digits((5, 7), 4, rows_of((5, 7)), [], 3),
    of_digits((2, 5, 4), 4, [(0, 1, 2, 20), (1, 1, 5, 4), (2, 1, 4, 1)], [(0, 8 | 16)], 1),
    of_digits((6, 8), 2, [(1, 1, 8, 6), (0, 1, 6, 1)], [(1, 4)], 5),
    of_digits((5, 12), 4, rows_of((5, 12)), interval=(8, 1)),
    of_digits((4, 6, 5), 8, [(1, 1, 6, 20), (0, 1, 4, 5), (2, 1, 5, 1)], interval=(16, 3)),
    of_digits((1, 1), 4, rows_of((1, 1))),
    of_digits((6, 64), 4, rows_of((6, 64), 96), [(0, 96), (4, 128)]),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_formula_equals_the_layout(layout):
    text = to_text(offset_expression(layout))
    grids = {f"x{d}": g for d, g in enumerate(np.indices(layout.shape))}
    values = evaluate(parse(text, frozenset(grids)), grids)
    assert (np.broadcast_to(values, layout.shape) * layout.element_bytes == layout.table()).all(), text


def test_golden_code(request):
    """From a literal layout, never from the solver, whose ties may move between versions."""
    problem: Problem = problem_of("""32x64 f16, 128 threads; name golden
        fill: cp.async 16 [tid // 8 + 16*i, 8*(tid % 8)]; i<2
        read: ldmatrix.x4 [16*(warp % 2) + lane % 16, 8*(lane // 16) + 16*k]; k<4""")
    layout = of_digits((32, 64), 2, rows_of((32, 64)), [(b, 8 << b) for b in (3, 4, 5)])
    gpu, scope = device("sm_90"), "every layout"
    result = Result(
        "golden", "sm_90", Status.OPTIMAL, Proof(Bound(0, scope), Bound(4096, scope)), "", layout, "xor",
        to_text(offset_expression(layout)), 4096, 4096, 128, 0, 0.0, case_of(problem, gpu).measure(layout),
    )  # fmt: skip
    code = re.sub(r"layoutopt \d\S+", "layoutopt VERSION", emit("cuda", problem, gpu, result))
    path = request.path.parent / "golden" / "gemm.cuh"
    assert code == path.read_text(), "to refresh: write the new text to the golden file"


def test_the_expert_form_of_a_gemm_tile():
    """A base for each thread; rows of fragments are immediates, steps along k are one XOR."""
    (path,) = [p for p in PROBLEMS if p.stem == "gemm_a_128x64_f16"]
    problem, gpu, result = solved(path)
    planned = plan(problem, gpu, result)
    fill, fragments = planned.accesses
    assert (to_text(fill.form.flips), to_text(fill.form.steps)) == ("0", "i*4096")
    assert (to_text(fragments.form.flips), to_text(fragments.form.steps)) == ("k*32", "m*2048")
    assert fragments.hoisting == "an iteration costs one XOR and an immediate"
    # One alignment in the answer and in the code.
    assert planned.alignment_bytes == result.alignment_bytes == 128
    assert [plan(problem, gpu, o).alignment_bytes for o in (result.offset, "x0*72 + x1")] == [128, 16]


def accesses_of(index, trips, offset="x0*64 + (x1 ^ x0 % 8 * 8)"):
    access = {"name": "a", "op": "load", "bytes": 4, "index": index, "for": trips}
    return plan(problem_of("64x64 f32, 32 threads", access), device("sm_90"), offset).accesses[0]


SWIZZLE = "x0*64 + (x1 ^ x0 % 8 * 8)"


@pytest.mark.parametrize(
    ("index", "offset", "flips", "steps"),
    [
        (["tid", "i"], "x0*65 + x1", "0", "i*4"),  # a pad adds
        (["tid", "i"], SWIZZLE, "(i & 56)*4", "(i & 7)*4"),  # the swizzled bits XOR
        (["i", "tid"], SWIZZLE, "i % 4 * 32", "i*256 + i % 8 // 4 * 128"),  # a flipped bit no base holds adds
        (["tid", "63 - i"], "x0*65 + x1", "0", "i*-4"),  # downwards
    ],
)
def test_what_iterations_cost(index, offset, flips, steps):
    access = accesses_of(index, {"i": 64}, offset=offset)
    found = to_text(access.form.flips), to_text(access.form.steps)
    values = {"i": np.arange(64)}
    for text, want in zip(found, (flips, steps), strict=True):
        one, other = (evaluate(parse(t, frozenset(values)), values) for t in (text, want))
        assert (one == other).all(), found
    assert not access.form.inside


def test_instructions_that_a_compiler_makes():
    ranges = {"t": (0, 255), "s": (-9, 9)}
    for text, count in [
        ("t*4 + 60", 1),
        ("t*36 + t // 8*4", 3),  # a product each, added for nothing, and a shift
        ("(t*16) ^ (t*2 & 112)", 3),  # LOP3 masks and flips at once
        ("t // 3", 2),
        ("s // 3", 5),
        ("t + (t + 0)*0", 0),
    ]:
        node = simplify(parse(text, frozenset(ranges)), ranges)
        assert instructions([node], ranges) == count, text
    shared = [parse(f"t*36 + {k}", frozenset(ranges)) for k in range(9)]
    assert instructions(shared, ranges) == 1
    dividend = parse("s + 1", frozenset(ranges))
    assert instructions([Op("//", (dividend, Const(3)))], ranges, [dividend]) == 3


def test_the_cheapest_form_is_taken():
    """A pad without masks, a swizzle of the whole offset, quotient and remainder put together again."""
    padded = accesses_of(["tid // 4", "tid % 4 * 8"], {}, offset="x0*72 + x1")
    assert to_text(padded.form.address) == "tid*32 + (tid & 28)*40"
    row = accesses_of(["(9*tid + 1) // 64", "(9*tid + 1) % 64"], {}, offset="x0*64 + x1")
    assert to_text(row.form.address) == "tid*36 + 4"
    swizzle = of_digits((64, 64), 4, rows_of((64, 64), 68), [(b, 32 << b) for b in range(3)])
    flipped = flipped_spelling(offset_expression(swizzle), (64, 64), 4)
    assert to_text(flipped) == "(x0*68 + x1)*4 ^ (x0*68 + x1)*4 // 32 & 28"
    assert flipped_spelling(offset_expression(swizzle), (64, 64), 3) is None


def test_a_dividend_that_no_active_thread_makes_negative_is_not_corrected():
    """Diagonals: the predicate keeps m - tid from falling below 0, its range alone does not."""
    problem = load(ROOT / "problems/dynamic_programming/rodinia_needleman_wunsch_32_i32.json")
    code = emit("cuda", problem, device("sm_90"), "x0 % 3*363 + x0 // 3*33 + x1")
    assert "(m - tid) / 3" in code
    assert "% 3 < 0" not in code


def test_what_cannot_be_hoisted_says_so():
    access = accesses_of(["tid", "(tid*i) % 64"], {"i": 4})
    assert access.form.inside == ("i",)
    assert access.hoisting == "computed anew for each i"


def test_moved_bits_share_shifts_and_masks():
    tid = Var("tid")
    values = np.arange(32)
    assert to_text(moved_bits(tid, values * 128 ^ values * 4)) == "tid*132"
    assert to_text(moved_bits(tid, (values & 7) * 16 ^ values * 128)) == "tid*128 ^ (tid & 7)*16"
    assert moved_bits(tid, values * 3) is None
    assert moved_bits(tid, values * 0) == Const(0)


def test_a_formula_that_does_not_hold_the_tile_is_refused():
    with pytest.raises(LayoutError, match="elements overlap"):
        accesses_of(["tid", "tid"], {}, offset="x0*32 + x1")
    with pytest.raises(ProblemFileError, match="offset: unknown name"):
        accesses_of(["tid", "tid"], {}, offset="y")


def test_random_problems(tmp_path):
    """A few; `scripts/fuzz/fuzz_emit.py` does 2,000."""
    if GXX is None or GCC is None:
        pytest.skip("no C or C++ compiler on this machine")
    asked = "--count", 1, "--seed", 7, "--save", tmp_path
    done = layoutopt(*asked, script=ROOT / "scripts/fuzz/fuzz_emit.py", warn="default")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "1 cases, 0 findings" in done.stdout


@pytest.mark.parametrize(
    ("side", "targets", "triple"),
    [
        (32, [(b, 32 << b) for b in range(5)], (5, 0, 5)),
        (32, [(0, 32), (2, 256)], None),
        (32, [(0, 32 | 64)], None),
        # More than a thousand swizzles were compared with the whole table.
        (1024, [(2, 1024), (5, 1 << 19)], None),
        (1024, [(2, 1 << 18), (3, 1 << 19)], (2, 2, 16)),
    ],
)
def test_a_swizzle_is_claimed_only_where_it_is_one(side, targets, triple):
    assert of_digits((side, side), 1, rows_of((side, side)), targets).swizzle_triple() == triple


def problem(element="f32", width=4, **more):
    rows = f"rows: store {width} [warp + 8*i, lane]; i<4"
    return from_data(data_of("32x32, 256 threads; name a tile", rows, element=element) | more)


@pytest.mark.parametrize("language", ["cuda", "hip", "opencl", "c", "numba"])
def test_a_name(language):
    code = emit(language, problem(), GPU, "x0*33 + x1", name="stage")
    assert ("a_tile_" in code, "stage_offset" in code, "stage_rows_base" in code) == (False, True, True)


@pytest.mark.parametrize(
    ("element", "kind"),
    [("float4", "float4"), ("uint4", "uint4"), ({"bytes": 16}, "uint4"),
     ({"bytes": 16, "type": "my::Particle"}, "my::Particle")],
)  # fmt: skip
def test_structures_keep_their_type(element, kind):
    asked = problem(element, 16)
    code = emit("cuda", asked, GPU, "x0*33 + x1")
    assert f"__forceinline__ {kind}* a_tile_rows(" in code
    assert ('static_assert(sizeof(my::Particle) == 16, "my::Particle");' in code) == ("my::" in kind)
    # A program of its own cannot know the kernel's types.
    assert "my::" not in emit("cuda", run_plan(asked, GPU, "x0*33 + x1").problem, GPU, "x0*33 + x1")


def test_a_predicate_that_no_loop_changes_stands_around_the_loops():
    accesses = [
        access_from("a: load 4 [warp + 8*i, lane]; i<4; where tid < 128"),
        access_from("b: load 4 [warp + 8*i, lane]; i<4; where tid > i"),
    ]
    code = emit("cuda", problem(accesses=accesses), GPU, "x0*33 + x1")
    assert "    if (a_tile_a_active(tid, 0)) {\n        #pragma unroll" in code
    assert "        if (a_tile_b_active(tid, i)) body(" in code


def test_the_code_says_what_its_index_code_costs():
    code = emit("cuda", problem(), GPU, "x0*33 + x1")
    assert "// index instructions: 3 once, 0 in 4 iterations" in code
    data = answer("emit", "transpose_32x32_f32", "--offset", "published")
    assert data["instructions"] == sum(access["once"] + access["looped"] for access in data["accesses"])
    assert [access["name"] for access in data["accesses"]] == ["rows", "columns"]


SMALL = str(ROOT / "problems/basics/transpose_16x32_f32.json")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *((f"--lang {name}", "transpose_16x32_f32") for name in LANGUAGES),
        ("--lang c --offset published", "x0 * 34 + x1"),
        ("--lang c --offset x0*33+x1", "x0 * 33 + x1"),
        ("--offset published --name stage", "stage_offset_bytes"),
        ("--self-test", "int main("),
        ("--self-test", "__global__ void transpose_16x32_f32_access_1("),
    ],
)
def test_what_is_printed(asked, said):
    done = layoutopt("emit", SMALL, *asked.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout


PACKED = str(ROOT / "problems/cutlass/s4_a_128x128_s4.json")


def result_of(problem, folder, **changes):
    """The file of a result, changed."""
    return saved(folder, "r.json", answer("solve", problem) | changes)


@pytest.mark.parametrize(("path", "own"), [(SMALL, "_offset_bytes("), (PACKED, "_bit_shift(uint32_t x1)")])
def test_a_result_with_and_without_its_problem(path, own, tmp_path):
    result = result_of(path, tmp_path)
    alone = layoutopt("emit", result, "--lang", "c").stdout
    assert (own in alone, "_rows" in alone) == (True, False)
    whole = layoutopt("emit", result, "--lang", "c", "--problem", path)
    assert (whole.returncode, whole.stdout) == (0, layoutopt("emit", path, "--lang", "c").stdout)


@pytest.mark.parametrize(
    ("problem", "changes", "message"),
    [
        (SMALL, {"alignment_bytes": 1024}, "alignment_bytes: the counts need a base aligned to 128, not 1024"),
        (SMALL, {"status": "feasible", "weighted_excess": 3},
         "weighted_excess: the layout gives 0, the result says 3"),
        ("transpose_32x32_f32", {}, "the result is of 'transpose_16x32_f32', not of"),
    ],
)  # fmt: skip
def test_a_result_that_is_not_of_its_problem(problem, changes, message, tmp_path):
    refused(message, "emit", result_of(SMALL, tmp_path, **changes), "--lang", "c", "--problem", problem)


@pytest.mark.parametrize(
    ("solved", "limits", "message"),
    [
        ({}, {"max_bytes": 2000}, "bytes: layout.max_bytes of the problem is 2000, the result has 2048"),
        ({}, {"alignment_bytes": 64}, "alignment_bytes: layout.alignment_bytes of the problem is 64, "),
        ({}, {"families": ["pad", "order"]}, "layout.families of the problem allows pad, order; the result has xor"),
        ({"families": ["pad"]}, {"families": ["none"]}, "layout.families of the problem allows none; the result has pad"),
        ({}, {"order": [1, 0]}, "layout: layout.order of the problem is [1, 0]"),
        ({"families": ["pad"]}, {"pitch_multiple_bytes": 16}, "layout: layout.pitch_multiple_bytes of the problem is 16"),
    ],
)  # fmt: skip
def test_a_result_that_its_problem_does_not_allow(solved, limits, message, tmp_path):
    data = json.loads(Path(SMALL).read_text())
    result = result_of(saved(tmp_path, "p.json", {**data, "layout": solved}), tmp_path)
    problem = saved(tmp_path, "p.json", {**data, "layout": limits})
    refused(message, "emit", result, "--problem", problem)
    allowed = {"max_bytes": 4096, "alignment_bytes": 128, "order": [0, 1], "pitch_multiple_bytes": 4}
    problem = saved(tmp_path, "p.json", {**data, "layout": {**allowed, "families": ["xor", "pad"]}})
    assert layoutopt("emit", result, "--problem", problem).returncode == 0


@pytest.mark.parametrize("tile", ["32x1 16B, 32 threads", "32x8 b1, 32 threads"])
def test_a_dimension_of_one_element_has_no_pad(tile):
    width = 16 if "16B" in tile else 1
    problem = problem_of(f"{tile}; families none", f"a: load {width} [lane, 0]")
    assert families_of(solve(problem).require_layout()) == []
    assert "_offset_bytes(" in layoutopt_emit(problem, solve(problem), lang="c")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_offsets_beyond_32_bits_are_refused(lang):
    for step in (100_000_000, (1 << 31) // 60):
        refused("code has offsets of 32 bits", "emit", SMALL, "--offset", f"x0*{step} + x1", "--lang", lang)


def test_a_result_of_tiles_that_together_take_more_than_is_allowed(tmp_path):
    data = json.loads((ROOT / "problems/tile_sets/hopper_gemm_128x128x64_f16.json").read_text())
    result = result_of(saved(tmp_path, "p.json", data), tmp_path)
    size = json.loads(result.read_text())["bytes"]
    problem = saved(tmp_path, "p.json", {**data, "layout": {**data.get("layout", {}), "max_bytes": size - 1}})
    refused(f"bytes: layout.max_bytes of the problem is {size - 1}", "emit", result, "--problem", problem)


def test_a_result_of_what_the_hardware_does_by_itself(tmp_path):
    load = {"name": "fill", "op": "tma.load", "mode": "128B"}
    problem = saved(tmp_path, "p.json", data_of("128x64 f16, 128 threads", load))
    result = result_of(problem, tmp_path)
    whole = layoutopt("emit", result, "--problem", problem)
    assert (whole.returncode, whole.stdout) == (0, layoutopt("emit", problem).stdout), whole.stderr
    data = json.loads(result.read_text())
    data["accesses"][0]["descriptor"]["box_offsets"] = [16]
    said = "accesses[0].descriptor: is not how the hardware reaches the layout"
    refused(said, "emit", saved(tmp_path, "r.json", data), "--problem", problem)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("TILE --lang c --self-test", "--lang c has none"),
        ("TILE --lang cobol", "cobol"),
        ("TILE --name 'a b'", "a letter, then letters, digits and single underscores"),
        ("TILE --offset 'x0*16 + x1'", "elements overlap"),
        ("TILE --offset 'x0 +'", "is not an expression"),
        ("TILE --problem TILE", "belongs to a result file"),
        ("TILE --offset 'x0*32 + (x1 + x0) % 32' --lang gluon", "this layout is neither"),
        ("gemm_a_128x64_f16 --offset 'x0*65 + x1'",
         "x0*65 + x1 cannot hold the tile: access 'fill' is misaligned: lane"),
    ],
)  # fmt: skip
def test_refused(asked, message):
    refused(message, "emit", *shlex.split(asked.replace("TILE", SMALL)))


def test_gluon_looks_at_a_few_orders_of_eight_dimensions_only(tmp_path):
    """Trying every swizzle in all 40,320 orders would take hours."""
    rows = access_from("rows: store 4 [0, 0, 0, 0, 0, 0, tid//4, tid%4]")
    path = saved(tmp_path, "p.json", one_tile("p", [4] * 8, "f32", 16, [rows], target="sm_90"))
    plain = "+".join(f"x{d}*{4 ** (7 - d)}" for d in range(7))
    for last, made in (
        ("(x7 ^ x6)", "SwizzledSharedLayout(1, 1, 4, [7, 6, 5, 4, 3, 2, 1, 0])"),
        ("(x7 ^ x2)", "SharedLinearLayout("),
    ):
        done = layoutopt("emit", path, "--offset", f"{plain} + {last}", "--lang", "gluon")
        assert made in done.stdout
