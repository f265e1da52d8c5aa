"""Certificates: written by the command, checked by a script that knows nothing of the package."""

import json
import sys

import msgspec
import pytest
from certificates_checked import (
    SCRIPT,
    certified,
    checked,
    holds,
    plain_transpose,
)
from command import layoutopt, python
from conftest import ROOT
from oracle import toy
from test_cnf import satisfiable
from written import access_from, by_lane, data_of, planes, saved

from layoutopt import Status, solve
from layoutopt.files.file import from_data
from layoutopt.proof.reasons import PACKING, SOLVER
from layoutopt.search.certify import certificate

# Cliques, parities, counting, nothing to prove; merged pairs of phases; weights; atomics.
SOLVED = [
    "basics/diagonals_32x32_f32",
    "basics/transpose_16x16_f32_sm_10",
    "basics/scan_512_f32",
    "transposes/leimao_vectorised_swizzled_f32",
    "bitsandbytes/gemm4bit_b_128x64_bf16",
    "spectral_elements/specfem3d_gll5_f32",
    "sort/cuda_samples_bitonic_1024_u32",
]


def test_the_scripts_use_the_standard_library_only():
    scripts = SCRIPT, *SCRIPT.with_name("certificate").glob("*.py")
    lines = [line for script in scripts for line in script.read_text().splitlines()]
    names = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert names <= sys.stdlib_module_names | {"certificate"}


@pytest.mark.parametrize("name", SOLVED)
def test_written_by_solve_and_checked(name, tmp_path):
    path, out = ROOT / "problems" / f"{name}.json", tmp_path / "out.json"
    done = layoutopt("solve", str(path), "--json", "--time-limit", "3", "--certificate", str(out))
    assert done.returncode in (0, 1)
    given, problem = json.loads(out.read_text()), json.loads(path.read_text())
    assert given["layout"]["bytes"] == json.loads(done.stdout)["bytes"]
    assert holds(problem, given).count(": checked") == 3
    table = given["layout"]["byte_offsets"]
    table[0], table[-1] = table[-1], table[0] + 1
    holds(problem, given, code=1)


def test_by_itself_and_without_a_verdict(tmp_path):
    """The script runs without the package; files that cannot be read are no verdict."""
    problem = saved(tmp_path, "p.json", plain_transpose("sm_90"))
    right = saved(tmp_path, "c.json", certified(plain_transpose("sm_90")))
    nested, half = tmp_path / "nested.json", tmp_path / "half.json"
    nested.write_text("[" * 100_000)
    half.write_text("{")
    assert python("-I", SCRIPT, problem, right).returncode == 0
    for wrong in ((problem, nested), (half, right), (problem, tmp_path / "none.json")):
        done = python("-I", SCRIPT, *wrong)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_clique_is_all_that_a_refutation_needs():
    data = {**planes(), "target": "toy_2_2"}
    given = certified(data, conflict_free=True)
    assert (given["status"], given["bound"]["scope"]) == ("infeasible", "every layout")
    assert len(given["clique"]["words"]) == 3
    assert given["bound"]["rests_on"].startswith("arithmetic")
    assert holds(data, given).splitlines() == [
        "bound: no layout of any kind has a weighted excess below 2: checked",
        "infeasible: no layout of any kind is without conflicts: checked",
    ]
    given["bound"].update(excess=3, rests_on="the solver alone")
    holds(data, given, code=3)


def test_a_packing_of_words_that_are_requests_of_their_own():
    gpu = toy.toy_device(8, 8)
    split = msgspec.structs.replace(
        gpu.rules["store", 8], phases=((0, 1, 2, 3), (4, 5, 6, 7)), split_words=True
    )
    rules = {**gpu.rules, ("store", 8): split, ("store", 1): gpu.rules["store", 4]}
    gpu = msgspec.structs.replace(gpu, name="made up", rules=rules)
    data = data_of("""4x6 f32, 16 threads; target made up
        wide: store 8 [((tid + k) // 3 + 3*k) % 4, 2*((tid + k) % 3)]; k<4
        byte: store 1 [(tid // 6 + tid // 4) % 4, tid % 6]""")
    problem = from_data(data)
    result = solve(problem, target=gpu)
    assert (result.status, result.excess, result.proof.evidence) == (Status.OPTIMAL, 2, PACKING.evidence)
    given = certificate(problem, gpu, result)
    holds(data, given, "hardware: NOT CHECKED", 3)  # of a GPU that nobody knows, phases are not checked
    part = next(p for c in given["packing"]["cliques"] for p in c["phases"] if "request" in p)
    for other in (1 - part["request"], 2, -1, None):
        part["request"] = other
        holds(data, given, code=1)


def test_what_rests_on_the_solver_says_so_and_can_be_asked_again():
    """A ring of five words, each pair met with two more: five banks are needed, but no five words meet."""
    accesses = [access_from(f"a{k}: load 4 [{by_lane([k, (k + 1) % 5, 'tid + 3'])}]") for k in range(5)]
    data, gpu = data_of("7 f32, 4 threads; target toy_4_4", *accesses), toy.toy_device(4, 4)
    problem = from_data(data)
    result = solve(problem, target=gpu, conflict_free=True)
    assert (result.status, result.proof.excess.scope) == (Status.INFEASIBLE, "every layout")
    assert result.proof.evidence == SOLVER.evidence
    given = certificate(problem, gpu, result)
    assert given["bound"]["rests_on"].startswith("the solver alone")
    (question,) = given["questions"]
    assert not satisfiable(question["dimacs"])
    holds(data, given, "NOT CHECKED", 3)
    best = solve(problem, target=gpu)
    assert best.proof.excess.scope.startswith("families") or best.excess == 1
    every = best.proof.every_layout or best.proof.excess
    assert (every.lower_bound, every.scope) == (1, "every layout")
    plain = solve(from_data({**data, "layout": {"families": ["none"]}}), target=gpu)
    assert (plain.excess, plain.proof.excess.scope) == (4, "families none")
    assert plain.reason == "a table of offsets would have 1 excess in 36 bytes"


def test_what_rests_on_the_families_searched_is_not_called_checked():
    data = plain_transpose(families=["none"])
    given = certified(data, conflict_free=True)
    assert (given["status"], given["questions"]) == ("infeasible", [])
    holds(data, given, "infeasible: a layout in scope that keeps to the constraints: NOT CHECKED", 3)
    padded = plain_transpose(families=["none", "pad"])
    given = certified(padded)
    assert (given["bytes"]["at_least"], given["bytes"]["scope"]) == (284, "families none, pad")
    holds(padded, given, "bytes: 284 in families none, pad: NOT CHECKED", 3)
    given = certified(data)  # the swizzle that would serve it is not among these families
    assert (given["bound"]["by"][:6], given["questions"]) == ("search", [])
    holds(data, given, code=3)


def test_too_many_bytes_are_arithmetic():
    data = plain_transpose(max_bytes=255)
    said = "infeasible: the elements alone take 256 bytes, more than 255: checked"
    assert holds(data, certified(data)).splitlines()[-1] == said


# Problems, and how often the script says that something was checked.
CHECKED = {
    "elements that share bytes": ("""16x64 s4, 32 threads; target sm_90
        rows: store 4 [tid // 8 + 4*i, 8*(tid % 8)]; i<4
        columns: load 4 [tid % 16, 8*(tid // 16 + 2*i)]; i<4""", {}, 3),
    "widths that were chosen, of which none has less than none in the tile's own bytes": (
        """8x8 f32, 8 threads; target toy_8_8
        rows: store 8|4 [2*i + tid // 4, 2*(tid % 4)]; i<4
        columns: load 4 [tid, i]; i<8""", {}, 3),
    "16 words 16 bytes apart: a store sees 8 of its 32 banks, a load 16 of its 64": (
        """24x16 f32, 16 threads; target gfx950
        a: load 16 [tid, 0]
        b: store 1 [tid, 0]""", {"excess": 1}, 3),
    "two lanes add to each of two words: two wavefronts where the words alone need one": (
        "2 f32, 4 threads; target toy_4_2\na: atomic 4 [tid // 2]", {"excess": 1}, 3),
    "tables of integers in an index": (
        "4x8 f32, 32 threads\na: load 4 [[0, 2, 1, 3][tid // 8], tid % 8]", {}, 3),
}  # fmt: skip


@pytest.mark.parametrize("case", CHECKED)
def test_every_claim_is_checked(case):
    text, bound, claims = CHECKED[case]
    data = data_of(text)
    given = certified(data)
    assert given["bound"].items() >= bound.items()
    assert holds(data, given).count(": checked") == claims


def test_counting_knows_rows_of_two_words():
    """32 words, four apart, in 8 banks of rows of two words: two wavefronts of one tile, never one."""
    data = data_of("32 c128, 32 threads; target sm_30", "heads: load 4 [tid]")
    given = certified(data, conflict_free=True)
    assert (given["status"], given["bound"]["excess"]) == ("infeasible", 1)
    assert holds(data, given).count(": checked") == 2


def test_there_is_none_for_values_known_only_at_run_time(tmp_path):
    data = plain_transpose("sm_90")
    data["accesses"][1] = access_from("bins: atomic 4 [b, 0]; any b<8")
    done = layoutopt("solve", saved(tmp_path, "p.json", data), "--certificate", tmp_path / "c.json")
    assert (done.returncode, (tmp_path / "c.json").exists()) == (2, False)
    assert done.stderr == (
        "error: accesses[1].any: --certificate: there is none for values known only at run time; "
        "`layoutopt check` counts them\n"
    )


@pytest.mark.parametrize(("size", "widths", "excess"), [(16, (4,), 3), (12, (4, 8), 1)])
def test_a_bound_by_counting_rests_on_the_alignment_of_elements(size, widths, excess):
    data = data_of(f"32 {size}B, 32 threads", *(f"a{w}: load {w} [tid]" for w in widths))
    given = certified(data)
    assert (given["bound"]["excess"], given["bound"]["scope"]) == (excess, "every layout")
    holds(data, given, "no layout of any kind", 3 if len(widths) > 1 else 0)
    # Without it the bound is false: for the 12-byte elements, where nothing aligns them to 8 bytes.
    given["served"] = {"a4": given["served"]["a4"]}
    given["layout"]["wavefronts"] = {"a4": given["layout"]["wavefronts"]["a4"]}
    holds(data_of(f"32 {size}B@4, 32 threads", "a4: load 4 [tid]"), given, "arithmetic gives 0", 1)


@pytest.mark.parametrize(
    ("change", "followed"),
    [
        ({"name": "another"}, None),
        ({"target": "sm_80"}, None),
        ({"layout": {"minimise": "bytes"}}, None),
        ({"layout": {"max_bytes": 1024}}, 0),
        ({"layout": {"alignment_bytes": 4}}, 0),
        ({"layout": {"families": ["none"]}}, 1),  # the layout has an XOR
        ({"layout": {"order": [0, 1]}}, 3),
        ({"layout": {"pitch_multiple_bytes": 16}}, 3),
    ],
)
def test_a_certificate_is_of_one_problem(change, followed):
    """Where the certificate is changed with it, what can be seen of the layout still binds."""
    data = plain_transpose("sm_90")
    given = certified(data)
    text = holds({**data, **change}, given, code=1)
    assert (text[:5], text.count("\n")) == ("WRONG", 1)
    if followed is not None:
        holds({**data, **change}, {**given, "constraints": change["layout"]}, code=followed)


def test_the_hardware_of_known_targets_is_known():
    data = plain_transpose("sm_90")
    given = certified(data)
    holds({**data, "target": "h100"}, {**given, "target": "h100"})
    wide = json.loads(json.dumps(given).replace('"banks": 32', '"banks": 1024'))
    holds(data, wide, "banks of access 'rows' is not that of sm_90, 32", 1)


@pytest.mark.parametrize(
    "index",
    ["tid +", "bob", "tid\0", "9**9**9", "1 << 10**9", "(" * 5000 + "tid" + ")" * 5000, "tid/2", "'a'", "tid + 99",
     {}, "[0, 2, 1][tid // 2]"],
)  # fmt: skip
def test_a_broken_problem_is_no_verdict(index):
    data = plain_transpose()
    given = certified(data)
    data["accesses"][0]["index"][0] = index
    assert holds(data, given, code=2).count("\n") == 1


def test_loops_without_end_are_no_verdict():
    data = plain_transpose()
    given = certified(data)
    data["accesses"][0]["for"] = {"forever": 1 << 31}
    assert checked(data, given) == (2, "more than 16777216 lane accesses\n")


def test_a_fragment_with_an_index_is_to_be_written_out():
    fragment = {"name": "b", "op": "load", "bytes": 4, "fragment": "mma.m16n8k16.B.f16", "index": ["n", "k"]}
    data = data_of("8x16 f16, 32 threads", fragment)
    text = holds(data, certified(data, time_limit=5), "without an index: b are", 3)
    assert (text.count("\n"), "`layoutopt problems --expanded`" in text) == (1, True)


def test_packed_elements_in_a_padded_tile():
    """The families of a certificate are those of the bytes that elements share."""
    data = data_of("16x6 i4, 8 threads; target sm_30", "a: load 2 [(lane + 32*warp + 8*k) % 16, 0]; k<2")
    holds(data, certified(data), code=3)
