"""Certificates: written by the command, checked by a script that knows nothing of the package."""

import json
import sys

import msgspec
import pytest
from certificates_checked import CASES, SCRIPT, at, certified, checked, holds, plain_transpose, true_one
from command import layoutopt, python
from conftest import ROOT
from oracle import toy
from test_reasons import satisfiable
from written import access_from, data_of, ring, saved

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


@pytest.mark.parametrize("case", CASES)
def test_every_claim_is_checked_or_said_to_rest_on_the_search(case):
    _, _, code, said, facts = CASES[case]
    data, given = true_one(case)
    paths = {path: [int(key) if key.isdigit() else key for key in path.split(".")] for path in facts}
    assert {path: at(given, keys) for path, keys in paths.items()} == facts
    text = holds(data, given, code=code)
    assert text.count(": checked") == said if isinstance(said, int) else said in text, text


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
    """The script runs without the package, of one tile and of several; unreadable files are no verdict."""
    scripts = SCRIPT, *SCRIPT.with_name("certificate").glob("*.py")
    lines = [line for script in scripts for line in script.read_text().splitlines()]
    names = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert names <= sys.stdlib_module_names | {"certificate"}
    for case in ("plain, of a GPU", "tiles"):
        problem, right = saved(tmp_path, "p.json", true_one(case)[0]), tmp_path / "c.json"
        assert layoutopt("solve", problem, "--certificate", right).returncode == 0
        assert python("-I", SCRIPT, problem, right).returncode == 0
    nested, half = tmp_path / "nested.json", tmp_path / "half.json"
    nested.write_text("[" * 100_000)
    half.write_text("{")
    for wrong in ((problem, nested), (half, right), (problem, tmp_path / "none.json")):
        done = python("-I", SCRIPT, *wrong)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_packing_of_words_that_are_requests_of_their_own():
    gpu = toy.toy_device(8, 8)
    halves = ((0, 1, 2, 3), (4, 5, 6, 7))
    split = msgspec.structs.replace(gpu.rules["store", 8], phases=halves, split_words=True)
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
    data, gpu = ring(), toy.toy_device(4, 4)
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


def test_what_the_hardware_moves_may_be_written_out():
    data, given = true_one("hardware")
    for access in data["accesses"]:
        access |= {"index": [0, 0], "where": "0", "hardware": {"engine": access["op"].split(".")[0]}}
    holds(data, given, CASES["hardware"][3])


def test_what_is_left_open_of_one_tile_is_open_of_all():
    lines = holds(*true_one("what is to be written out leaves the other tiles"), code=3).splitlines()
    assert {"B:", "C:", "block: NOT CHECKED: its bytes and excess, for want of A"} <= set(lines)


def test_there_is_none_for_values_known_only_at_run_time(tmp_path):
    data = plain_transpose("sm_90")
    data["accesses"][1] = access_from("bins: atomic 4 [b, 0]; any b<8")
    done = layoutopt("solve", saved(tmp_path, "p.json", data), "--certificate", tmp_path / "c.json")
    assert (done.returncode, (tmp_path / "c.json").exists()) == (2, False)
    assert done.stderr == (
        "error: accesses[1].any: --certificate: there is none for values known only at run time; "
        "`layoutopt check` counts them\n"
    )


@pytest.mark.parametrize(
    "index",
    ["tid +", "bob", "tid\0", "9**9**9", "1 << 10**9", "(" * 5000 + "tid" + ")" * 5000, "tid/2", "'a'", "tid + 99",
     {}, "[0, 2, 1][tid // 2]"],
)  # fmt: skip
def test_a_broken_problem_is_no_verdict(index):
    data, given = true_one("plain")
    data["accesses"][0]["index"][0] = index
    assert holds(data, given, code=2).count("\n") == 1


def test_loops_without_end_are_no_verdict():
    data, given = true_one("plain")
    data["accesses"][0]["for"] = {"forever": 1 << 31}
    assert checked(data, given) == (2, "more than 16777216 lane accesses\n")


# What is called by another name, or has another field, of the machine that a certificate knows.
KNOWN = [
    *((element, f"a: load {width} [tid, 1]") for element, width in
      {"float3": 4, "double2": 4, "ushort4": 4, "short2": 4, "uchar2": 2}.items()),
    *(("f32", f"a: {op} 16 [lane // 2 * 2, 0]") for op in ("cp.async", "cp.async.ca", "cp.async.cg", "cp.async.ca.shared.global.16")),
]  # fmt: skip


@pytest.mark.parametrize(("element", "access"), KNOWN)
def test_vector_types_and_the_two_copies_of_16_bytes_are_known(element, access):
    data = data_of(f"32x4 {element}, 32 threads; target H100", access)
    holds(data, certified(data))


@pytest.mark.parametrize(("first", "code"), [("bytes", 0), ("instructions", 3), ("time", 3)])
def test_a_certificate_of_a_block_has_the_objective_of_its_tiles(first, code):
    data = data_of(
        """32 threads; name two; target sm_90
        tile A: 32x32 f32
        tile B: 32x32 f32
        rows: load 4 [i, lane]; i<32; tile A
        columns: load 4 [lane, i]; i<32; tile B""",
        layout={"minimise": first},
    )
    holds(data, certified(data), code=code)


def test_a_certificate_has_the_bytes_of_a_smaller_tile_in_the_same_bytes():
    data = data_of(
        """32 threads; name two; target sm_90
        tile A: 8x16 f16
        tile B: 8x16 f32
        a: store 4 [tid // 8 + 4*i, tid % 8 * 2]; i<2; tile A
        b: store 8 [tid // 8 + 4*i, tid % 8 * 2]; i<2; tile B""",
        overlay=[["A"], ["B"]],
        same_layout=True,
    )
    given = certified(data)
    assert [(place["tile"], place["bytes"]) for place in given["tiles"][0]["places"]] == [
        ("A", 256),
        ("B", 512),
    ]
    holds(data, given)
