"""Certificates: written by the command, checked by a script that knows nothing of the package."""

import dataclasses
import json
import sys

import pytest
from certificates_checked import SCRIPT, certified, checked, plain_transpose
from command import layoutopt, python
from conftest import ROOT
from oracle import toy
from test_cnf import satisfiable
from written import access_from, data_of, planes, reads, writes

from layoutopt import Status, solve
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
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
    given, result = json.loads(out.read_text()), json.loads(done.stdout)
    problem = json.loads(path.read_text())
    assert given["layout"]["bytes"] == result["bytes"]
    code, text = checked(problem, given, tmp_path)
    assert (code, text.count(": checked")) == (0, 3), text
    wrong = json.loads(out.read_text())
    table = wrong["layout"]["byte_offsets"]
    table[0], table[-1] = table[-1], table[0] + 1
    assert checked(problem, wrong, tmp_path)[0] == 1


def test_a_clique_and_every_way_to_forge_it(tmp_path):
    gpu = toy.toy_device(2, 2)
    data = {**planes(), "target": gpu.name}
    problem = from_data(data)
    result = solve(problem, target=gpu, conflict_free=True)
    assert (result.status, result.proof.excess.scope) == (Status.INFEASIBLE, "every layout")
    given = certificate(problem, gpu, result)
    text = json.dumps(given)
    assert len(given["clique"]["words"]) == 3
    assert given["bound"]["rests_on"].startswith("arithmetic")
    code, shown = checked(data, given, tmp_path)
    assert code == 0
    assert shown.splitlines() == [
        "bound: no layout of any kind has a weighted excess below 2: checked",
        "infeasible: no layout of any kind is without conflicts: checked",
    ]

    def forged(change):
        other = json.loads(text)
        change(other)
        return checked(data, other, tmp_path)[0]

    clique = "clique"
    assert forged(lambda g: g["bound"].update(excess=3)) == 1
    assert forged(lambda g: g["bound"].update(excess=3, rests_on="the solver alone")) == 3
    assert forged(lambda g: g[clique]["meetings"].pop()) == 1
    assert forged(lambda g: g[clique]["meetings"][0]["lanes"].reverse()) == 1
    assert forged(lambda g: g[clique]["meetings"][0].update(access="line 2")) == 1
    assert forged(lambda g: g[clique]["words"].pop()) != 0
    assert forged(lambda g: g.update(banks=4)) == 1


def test_a_packing_and_every_way_to_forge_it(tmp_path):
    """Two windows that overlap but for a word each, and a phase that touches both words: three times."""
    accesses = [
        reads(name, 4, [index], c=3, weight=0.5)
        for name, index in (
            ("first", "5*c + tid"),
            ("second", "5*c + tid + 1"),
            ("ends", "5*c + 4*(tid % 2)"),
        )
    ]
    gpu = toy.toy_device(4, 4)
    data = data_of("15 f32, 4 threads", *accesses)
    data["target"] = gpu.name
    problem = from_data(data)
    result = solve(problem, target=gpu)
    assert (result.status, result.excess) == (Status.OPTIMAL, 3)
    assert result.proof.evidence == PACKING.evidence
    given = certificate(problem, gpu, result)
    text = json.dumps(given)
    assert given["bound"]["rests_on"].startswith("arithmetic")
    assert checked(data, given, tmp_path)[0] == 0
    for change in (
        lambda clique: clique.update(share=2),
        lambda clique: clique.update(share=-1),
        lambda clique: clique["words"].pop(),
        lambda clique: clique["phases"].pop(),
        lambda clique: clique["phases"][0].update(iteration={"c": 2}),
        lambda clique: clique.update(vector_bytes=12),
    ):
        other = json.loads(text)
        change(other["packing"]["cliques"][0])
        assert checked(data, other, tmp_path)[0] != 0


def test_a_packing_of_words_that_are_requests_of_their_own(tmp_path):
    gpu = toy.toy_device(8, 8)
    rules = dict(gpu.rules)
    rules["store", 8] = dataclasses.replace(
        rules["store", 8], phases=((0, 1, 2, 3), (4, 5, 6, 7)), split_words=True
    )
    rules["store", 1] = rules["store", 4]
    gpu = dataclasses.replace(gpu, name="made up", rules=rules)
    wide = access_from("wide: store 8; k<4")
    wide["index"] = ["((tid + k) // 3 + 3*k) % 4", "2*((tid + k) % 3)"]
    byte = writes("byte", 1, ["(tid // 6 + tid // 4) % 4", "tid % 6"])
    data = data_of("4x6 f32, 16 threads", wide, byte)
    data["target"] = gpu.name
    problem = from_data(data)
    result = solve(problem, target=gpu)
    assert (result.status, result.excess, result.proof.evidence) == (Status.OPTIMAL, 2, PACKING.evidence)
    given = certificate(problem, gpu, result)
    code, text = checked(data, given, tmp_path)  # of a GPU that nobody knows, phases are not checked
    assert (code, "hardware: NOT CHECKED" in text) == (3, True), text
    split = next(p for c in given["packing"]["cliques"] for p in c["phases"] if "request" in p)
    for other in (1 - split["request"], 2, -1, None):
        split["request"] = other
        assert checked(data, given, tmp_path)[0] == 1


def test_a_parity_and_every_way_to_forge_it(tmp_path):
    n = 8
    accesses = [
        {"name": name, "op": "load", "bytes": 4, "index": index, "for": {"i": n}}
        for name, index in [
            ("rows", ["i", "tid"]), ("columns", ["tid", "i"]), ("diagonals", ["tid", f"(tid + i) % {n}"]),
        ]
    ]  # fmt: skip
    data = data_of(f"{n}x{n} f32, {n} threads", *accesses)
    gpu = toy.toy_device(n, n)
    data["target"] = gpu.name
    problem = from_data(data)
    result = solve(problem, target=gpu, conflict_free=True, time_limit=20)
    assert (result.proof.excess.lower_bound, result.proof.excess.scope) == (2, "every layout")
    given = certificate(problem, gpu, result)
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
        reads(f"a{k}", 4, [f"{a} if tid == 0 else ({b} if tid == 1 else tid + 3)"])
        for k, (a, b, _, _) in enumerate(rows)
    ]
    data = data_of("7 f32, 4 threads", *accesses)
    gpu = toy.toy_device(4, 4)
    data["target"] = gpu.name
    problem = from_data(data)
    result = solve(problem, target=gpu, conflict_free=True)
    assert (result.status, result.proof.excess.scope) == (Status.INFEASIBLE, "every layout")
    assert result.proof.evidence == SOLVER.evidence
    given = certificate(problem, gpu, result)
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


def test_what_rests_on_the_families_searched_is_not_called_checked(tmp_path):
    gpu = toy.toy_device(8, 8)
    code, text, given = certified(plain_transpose(families=["none"]), gpu, tmp_path, conflict_free=True)
    assert (given["status"], given["questions"], code) == ("infeasible", [], 3)
    assert "infeasible: a layout in scope that keeps to the constraints: NOT CHECKED" in text
    code, text, given = certified(plain_transpose(families=["none", "pad"]), gpu, tmp_path)
    assert (given["bytes"]["at_least"], given["bytes"]["scope"]) == (284, "families none, pad")
    assert (code, "bytes: 284 in families none, pad: NOT CHECKED" in text) == (3, True)
    # The swizzle that would serve it is not among these families.
    code, text, given = certified(plain_transpose(families=["none"]), gpu, tmp_path)
    assert (given["bound"]["by"][:6], given["questions"], code) == ("search", [], 3)


def test_too_many_bytes_are_arithmetic(tmp_path):
    code, text, _ = certified(plain_transpose(max_bytes=255), toy.toy_device(8, 8), tmp_path)
    got = code, text.splitlines()[-1]
    assert got == (0, "infeasible: the elements alone take 256 bytes, more than 255: checked")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g["layout"].update(byte_offsets=[b + 2 for b in g["layout"]["byte_offsets"]], bytes=258), "aligned"),
        (lambda g: g["layout"]["byte_offsets"].pop(), "63 offsets for 64 elements"),
        (lambda g: g["layout"]["byte_offsets"].append(256), "65 offsets for 64 elements"),
        (lambda g: g["layout"]["byte_offsets"].__setitem__(0, 0.5), "no whole number"),
        (lambda g: g["bound"].update(excess=1), "less excess than 1"),
        (lambda g: g["bytes"].update(at_least=300), "fewer bytes than 300"),
        (lambda g: g["bytes"].update(at_least=200), "optimal, but the bounds are lower"),
        (lambda g: g["served"]["rows"].update(bytes=8), "phases of access 'rows' is not that of toy_8_8"),
        (lambda g: g.pop("bound"), "malformed"),
        (lambda g: g.update(status={}), "no status"),
        (lambda g: g.update(status="infeasible"), "infeasible, with a layout"),
        (lambda g: g.update(banks=1024), "not those of an access"),
        (lambda g: g["served"]["columns"]["phases"][0].pop(), "served twice, or never"),
        (lambda g: g["served"]["columns"].update(lanes_used=1 << 62), "columns' uses 8 lanes"),
        (lambda g: g["served"]["columns"].update(bytes=1 << 62), "accesses of 4611686018427387904 bytes"),
        (lambda g: g["constraints"].update(max_bytes=256), "layout.max_bytes was 256, the problem has None"),
    ],
)  # fmt: skip
def test_forged_layouts_and_bounds(change, message, tmp_path):
    data = plain_transpose()
    code, _, given = certified(data, toy.toy_device(8, 8), tmp_path)
    assert (code, given["status"]) == (0, "optimal")
    change(given)
    code, text = checked(data, given, tmp_path)
    assert (code, message in text, "Traceback" in text) == (1, True, False), text


def test_an_unreadable_file_is_no_verdict(tmp_path):
    (tmp_path / "p.json").write_text("{")
    done = python("-I", SCRIPT, tmp_path / "p.json", tmp_path / "none.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_elements_that_share_bytes_and_widths_that_were_chosen(tmp_path):
    accesses = [
        writes("rows", 4, ["tid // 8 + 4*i", "8*(tid % 8)"], i=4),
        reads("columns", 4, ["tid % 16", "8*(tid // 16 + 2*i)"], i=4),
    ]
    packed = data_of("16x64 s4, 32 threads", *accesses)
    code, text, given = certified(packed, device("sm_90"), tmp_path)
    assert (code, text.count(": checked"), len(given["layout"]["byte_offsets"])) == (0, 3, 512)
    accesses = [
        writes("rows", [8, 4], ["2*i + tid // 4", "2*(tid % 4)"], i=4),
        reads("columns", 4, ["tid", "i"], i=8),
    ]
    chosen = data_of("8x8 f32, 8 threads", *accesses)
    code, text, given = certified(chosen, toy.toy_device(8, 8), tmp_path)
    assert (code, text.count(": checked")) == (0, 3)  # no choice has less than none in the tile's own bytes
    given["served"]["rows"]["bytes"] = 16
    assert checked(chosen, given, tmp_path)[0] == 1


def test_there_is_none_for_values_known_only_at_run_time(tmp_path):
    data = plain_transpose()
    data["accesses"][1] = access_from("bins: atomic 4 [b, 0]; any b<8")
    (tmp_path / "p.json").write_text(json.dumps(data))
    done = layoutopt("solve", tmp_path / "p.json", "--certificate", tmp_path / "c.json")
    assert (done.returncode, (tmp_path / "c.json").exists()) == (2, False)
    assert done.stderr == (
        "error: accesses[1].any: --certificate: there is none for values known only at run time; "
        "`layoutopt check` counts them\n"
    )


def elements_read_in_part(element, *widths):
    accesses = [reads(f"a{w}", w, ["tid"]) for w in widths]
    return data_of("32, 32 threads", *accesses, element=element)


@pytest.mark.parametrize(
    ("element", "widths", "excess"), [({"bytes": 16}, (4,), 3), ({"bytes": 12}, (4, 8), 1)]
)
def test_a_bound_by_counting_rests_on_the_alignment_of_elements(element, widths, excess, tmp_path):
    data = elements_read_in_part(element, *widths)
    problem = from_data(data)
    given = certificate(problem, device("sm_90"), solve(problem))
    assert (given["bound"]["excess"], given["bound"]["scope"]) == (excess, "every layout")
    code, text = checked(data, given, tmp_path)
    assert (code, "no layout of any kind" in text) == (3 if len(widths) > 1 else 0, True), text
    # Without it the bound is false: for the 12-byte elements, where nothing aligns them to 8 bytes.
    data = elements_read_in_part({"bytes": element["bytes"], "align": 4}, 4)
    given["served"] = {"a4": given["served"]["a4"]}
    given["layout"]["wavefronts"] = {"a4": given["layout"]["wavefronts"]["a4"]}
    code, text = checked(data, given, tmp_path)
    assert code == 1
    assert "arithmetic gives 0" in text


def test_counting_holds_for_each_access_by_its_own_banks(tmp_path):
    """Sixteen words a multiple of 16 bytes apart: a store sees 8 of its 32 banks, a load 16 of its 64."""
    data = data_of("24x16 f32, 16 threads; target gfx950", "a: load 16 [tid, 0]", "b: store 1 [tid, 0]")
    problem = from_data(data)
    given = certificate(problem, device("gfx950"), solve(problem))
    assert given["bound"]["excess"] == 1
    code, text = checked(data, given, tmp_path)
    assert (code, text.count(": checked")) == (0, 3), text


def test_counting_knows_rows_of_two_words(tmp_path):
    """32 words, four apart, in 8 banks of rows of two words: two wavefronts of one tile, never one."""
    data = data_of("32 c128, 32 threads; target sm_30", "heads: load 4 [tid]")
    problem, gpu = from_data(data), device("sm_30")
    given = certificate(problem, gpu, solve(problem, conflict_free=True))
    assert (given["status"], given["bound"]["excess"]) == ("infeasible", 1)
    code, text = checked(data, given, tmp_path)
    assert (code, text.count(": checked")) == (0, 2), text


def test_counting_counts_equal_addresses_where_they_are_served_one_by_one(tmp_path):
    """Two lanes add to each of two words in two banks: two wavefronts where the words alone need one."""
    access = access_from("a: atomic 4 [tid // 2]")
    data = data_of("2 f32, 4 threads; target toy_4_2", access)
    gpu, problem = toy.toy_device(4, 2), from_data(data)
    given = certificate(problem, gpu, solve(problem, target=gpu))
    assert given["bound"]["excess"] == 1
    code, text = checked(data, given, tmp_path)
    assert (code, text.count(": checked")) == (0, 3), text


@pytest.mark.parametrize(
    "change",
    [
        {"name": "another"},
        {"target": "sm_80"},
        {"layout": {"max_bytes": 1024}},
        {"layout": {"alignment_bytes": 4}},
        {"layout": {"families": ["none"]}},
        {"layout": {"minimise": "bytes"}},
        {"layout": {"order": [0, 1]}},
        {"layout": {"pitch_multiple_bytes": 16}},
    ],
)
def test_a_certificate_is_of_one_problem(change, tmp_path):
    data = plain_transpose()
    code, _, given = certified(data, device("sm_90"), tmp_path)
    assert code == 0
    code, text = checked({**data, **change}, given, tmp_path)
    assert (code, text[:5], text.count("\n")) == (1, "WRONG", 1)
    # Where the certificate is changed with it, what can be seen of the layout still binds.
    if "layout" in change and "minimise" not in change["layout"]:
        given["constraints"] = change["layout"]
        forged = checked({**data, **change}, given, tmp_path)[0]
        codes = {"families": 1, "order": 3, "pitch_multiple_bytes": 3}  # the layout has an XOR
        assert forged == codes.get(*change["layout"], 0)


def test_the_hardware_of_known_targets_is_known(tmp_path):
    data = plain_transpose()
    _, _, given = certified(data, device("h100"), tmp_path)
    assert checked({**data, "target": "h100"}, {**given, "target": "h100"}, tmp_path)[0] == 0
    wide = json.loads(json.dumps(given).replace('"banks": 32', '"banks": 1024'))
    code, text = checked({**data, "target": "sm_90"}, wide, tmp_path)
    assert (code, text) == (1, "WRONG: sm_90 has other banks or lanes\n")


@pytest.mark.parametrize(
    "index",
    ["tid +", "bob", "tid\0", "9**9**9", "1 << 10**9", "(" * 5000 + "tid" + ")" * 5000, "tid/2", "'a'", "tid + 99", {}],
)  # fmt: skip
def test_a_broken_problem_is_no_verdict(index, tmp_path):
    data = plain_transpose()
    _, _, given = certified(data, toy.toy_device(8, 8), tmp_path)
    data["accesses"][0]["index"][0] = index
    code, text = checked(data, given, tmp_path)
    assert (code, text.count("\n")) == (2, 1), text


def test_loops_without_end_are_no_verdict(tmp_path):
    data = plain_transpose()
    _, _, given = certified(data, toy.toy_device(8, 8), tmp_path)
    data["accesses"][0]["for"] = {"forever": 1 << 31}
    assert checked(data, given, tmp_path) == (2, "more than 16777216 lane accesses\n")


def test_nested_brackets_are_no_verdict(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps(plain_transpose()))
    (tmp_path / "c.json").write_text("[" * 100_000)
    done = python("-I", SCRIPT, tmp_path / "p.json", tmp_path / "c.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_fragment_with_an_index_is_to_be_written_out(tmp_path):
    data = data_of(
        "8x16 f16, 32 threads",
        {"name": "b", "op": "load", "bytes": 4, "fragment": "mma.m16n8k16.B.f16", "index": ["n", "k"]},
    )
    given = certificate(problem := from_data(data), device("sm_90"), solve(problem, time_limit=5))
    code, text = checked(data, given, tmp_path)
    assert (code, text.count("\n")) == (3, 1), text
    assert "without an index: b are" in text
    assert "`layoutopt problems --expanded`" in text


def test_tables_of_integers_in_an_index(tmp_path):
    data = data_of("4x8 f32, 32 threads", "a: load 4 [[0, 2, 1, 3][tid // 8], tid % 8]")
    gpu = device("sm_90")
    code, said, given = certified(data, gpu, tmp_path)
    assert (code, "optimal" in said or "checked" in said) == (0, True), said
    data["accesses"][0]["index"][0] = "[0, 2, 1][tid // 8]"
    code, said = checked(data, given, tmp_path)
    assert code == 2
    assert "entry 3 of a table of 3" in said
