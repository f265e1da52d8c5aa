"""Certificates: written by the command, checked by a script that knows nothing of the package."""

import json
import subprocess
import sys

import pytest
import toy
from conftest import ROOT
from test_cli import layoutopt
from test_cnf import satisfiable

from layoutopt.accesses import trace
from layoutopt.certificates import certificate
from layoutopt.model import Status
from layoutopt.problem_file import from_data
from layoutopt.proofs import SOLVER
from layoutopt.synthesize import solve

SCRIPT = ROOT / "scripts" / "check_certificate.py"
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


def checked(problem, given, tmp_path):
    """Exit code and output of the script."""
    paths = tmp_path / "p.json", tmp_path / "c.json"
    for path, data in zip(paths, (problem, given), strict=True):
        path.write_text(json.dumps(data))
    done = subprocess.run([sys.executable, "-I", SCRIPT, *paths], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_script_uses_the_standard_library_only():
    names = {
        line.split()[1] for line in SCRIPT.read_text().splitlines() if line.startswith(("import ", "from "))
    }
    assert names <= sys.stdlib_module_names


@pytest.mark.parametrize("name", SOLVED)
def test_written_by_solve_and_checked(name, tmp_path):
    path, out = ROOT / "problems" / f"{name}.json", tmp_path / "out.json"
    done = layoutopt("solve", str(path), "--json", "--time-limit", "3", "--certificate", str(out))
    assert done.returncode in (0, 1)
    given, result = json.loads(out.read_text()), json.loads(done.stdout)
    problem = json.loads(path.read_text())
    assert given["layout"]["bytes"] == result["bytes"]
    code, text = checked(problem, given, tmp_path)
    assert (code, text.count("checked")) == (0, 2), text
    wrong = json.loads(out.read_text())
    table = wrong["layout"]["byte_offsets"]
    table[0], table[-1] = table[-1], table[0] + 1
    assert checked(problem, wrong, tmp_path)[0] == 1


def planes():
    accesses = [
        {"name": f"line {d}", "op": "load", "bytes": 4, "index": [f"(tid * {d}) ^ c"], "for": {"c": 4}}
        for d in (1, 2, 3)
    ]
    return {"name": "plane", "tile": {"shape": [4], "element": "f32"}, "threads": 2, "accesses": accesses}


def test_a_clique_and_every_way_to_forge_it(tmp_path):
    data, gpu = planes(), toy.toy_device(2, 2)
    problem = from_data(data)
    result = solve(problem, target=gpu, conflict_free=True)
    assert (result.status, result.proof.excess.scope) == (Status.INFEASIBLE, "every layout")
    given = certificate(problem, gpu, trace(problem, gpu), result)
    text = json.dumps(given)
    assert len(given["clique"]["words"]) == 3
    assert given["bound"]["rests_on"].startswith("arithmetic")
    code, shown = checked(data, given, tmp_path)
    assert (code, shown) == (0, "bound: no layout of any kind has a weighted excess below 2: checked\n")

    def by_hand(given):
        (tmp_path / "p.json").write_text(json.dumps(data))
        (tmp_path / "c.json").write_text(json.dumps(given))
        script = [
            sys.executable,
            ROOT / "scripts" / "check_clique.py",
            tmp_path / "p.json",
            tmp_path / "c.json",
        ]
        return subprocess.run(script, capture_output=True, text=True, check=False)

    assert by_hand(given).stdout == "3 words meet in pairs; there are 2 banks for them\n"

    def forged(change):
        other = json.loads(text)
        change(other)
        return checked(data, other, tmp_path)[0]

    clique = "clique"
    lost = json.loads(text)
    lost[clique]["meetings"].pop()
    assert by_hand(lost).returncode == 1
    assert by_hand(lost).stderr.endswith("some pair never meets\n")
    assert forged(lambda g: g["bound"].update(excess=3)) == 3
    assert forged(lambda g: g[clique]["meetings"].pop()) == 1
    assert forged(lambda g: g[clique]["meetings"][0]["lanes"].reverse()) == 1
    assert forged(lambda g: g[clique]["meetings"][0].update(access="line 2")) == 1
    assert forged(lambda g: g[clique]["words"].pop()) != 0
    assert forged(lambda g: g.update(banks=4)) == 1


def test_a_parity_and_every_way_to_forge_it(tmp_path):
    n = 8
    accesses = [
        {"name": name, "op": "load", "bytes": 4, "index": index, "for": {"i": n}}
        for name, index in [
            ("rows", ["i", "tid"]), ("columns", ["tid", "i"]), ("diagonals", ["tid", f"(tid + i) % {n}"]),
        ]
    ]  # fmt: skip
    data = {"name": "d", "tile": {"shape": [n, n], "element": "f32"}, "threads": n, "accesses": accesses}
    problem, gpu = from_data(data), toy.toy_device(n, n)
    result = solve(problem, target=gpu, conflict_free=True, time_limit=20)
    assert (result.proof.excess.lower_bound, result.proof.excess.scope) == (2, "every layout")
    given = certificate(problem, gpu, trace(problem, gpu), result)
    text = json.dumps(given)
    assert checked(data, given, tmp_path)[0] == 0
    for change in (
        lambda g: g["parity"]["combinations"][0]["weights"].__setitem__(0, 1),
        lambda g: g["parity"]["combinations"][0].update(modulus=3),
        lambda g: g["parity"]["phases"][0].update(lanes=[0, 1]),
    ):
        other = json.loads(text)
        change(other)
        assert checked(data, other, tmp_path)[0] == 1


def test_what_rests_on_the_solver_says_so_and_can_be_asked_again(tmp_path):
    """A ring of five words, each pair met with two more: five banks are needed, but no five words meet."""
    rows = [[k, (k + 1) % 5, 5, 6] for k in range(5)]
    accesses = [
        {
            "name": f"a{k}",
            "op": "load",
            "bytes": 4,
            "index": [f"{a} if tid == 0 else ({b} if tid == 1 else tid + 3)"],
        }
        for k, (a, b, _, _) in enumerate(rows)
    ]
    data = {"name": "ring", "tile": {"shape": [7], "element": "f32"}, "threads": 4, "accesses": accesses}
    problem, gpu = from_data(data), toy.toy_device(4, 4)
    result = solve(problem, target=gpu, conflict_free=True)
    assert (result.status, result.proof.excess.scope) == (Status.INFEASIBLE, "every layout")
    assert result.proof.evidence == SOLVER
    given = certificate(problem, gpu, trace(problem, gpu), result)
    assert given["bound"]["rests_on"].startswith("the solver alone")
    (question,) = given["questions"]
    assert not satisfiable(question["dimacs"])
    code, text = checked(data, given, tmp_path)
    assert (code, "NOT CHECKED" in text) == (3, True)
    best = solve(problem, target=gpu)
    assert best.proof.excess.scope.startswith("families") or best.excess == 1
    every = best.proof.every_layout or best.proof.excess
    assert (every.lower_bound, every.scope) == (1, "every layout")
    data["layout"] = {"families": ["none"]}
    plain = solve(from_data(data), target=gpu)
    assert (plain.excess, plain.proof.excess.scope) == (4, "families none")
    assert plain.reason == "a table of offsets would have 1 excess in 36 bytes"
