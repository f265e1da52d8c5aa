"""Every field of a certificate changed, one at a time: nothing that is false is confirmed."""

import copy
import json
import sys

import pytest
from certificates_checked import SCRIPT, as_forged
from command import python
from conftest import ROOT
from hardware_tiles import FILL, data
from oracle import toy
from test_block_certificates import BLOCK, block_certificate_of
from written import one_tile, reads, writes

from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.problems.types import VECTOR_TYPES
from layoutopt.search.certify import certificate
from layoutopt.search.solve import solve

sys.path.insert(0, str(ROOT / "scripts" / "fuzz"))
sys.path.insert(0, str(ROOT / "scripts" / "checkers"))
import check_certificate
import forge_certificates
from certificate.subject import digest

DIAGONALS = {
    "name": "d", "target": "toy_8_8", "threads": 8, "tile": {"shape": [8, 8], "element": "f32"},
    "accesses": [
        {"name": name, "op": "load", "bytes": 4, "index": index, "for": {"i": 8}}
        for name, index in (("rows", ["i", "tid"]), ("columns", ["tid", "i"]), ("diagonals", ["tid", "(tid + i) % 8"]))
    ],
}  # fmt: skip
SPELT = {
    "name": "s", "target": "H100", "threads": 32, "tile": {"shape": [16, 16], "element": "f32"},
    "accesses": [
        {"name": "l", "op": "ld.shared.v4.b32", "index": ["lane // 4 + 8*i", "lane % 4 * 4"], "for": {"i": 2}},
        {"name": "m", "op": "ldmatrix.x2", "index": ["lane", "0"]},
        {"name": "a", "op": "atomic", "bytes": 4, "index": ["lane % 16", "0"], "weight": 0.5},
    ],
}  # fmt: skip
TWO = {
    **BLOCK,
    "tiles": [{**BLOCK["tiles"][0], "shape": [8, 4]}, {**BLOCK["tiles"][2], "shape": [4, 8]}],
    "accesses": [
        {**BLOCK["accesses"][0], "index": ["lane % 8", "i"], "for": {"i": 4}},
        {**BLOCK["accesses"][2], "index": ["i", "lane % 8"], "for": {"i": 4}},
    ],
    "overlay": [],
}

# What may be any number, or be in any order: nothing is claimed by it. Of a GPU that the script does not know,
# how it serves accesses is the certificate's word.
FREE = {"weight_unit", "questions", "reason", "source", "digest"}


@pytest.fixture
def verdict(tmp_path, monkeypatch, capsys):
    """What the script says: its exit code."""

    def said(problem, given):
        forged_of = as_forged(problem, given)
        paths = tmp_path / "problem.json", tmp_path / "certificate.json", tmp_path / "devices.json"
        for path, content in zip(paths, (problem, forged_of, toy.device_file(8, 8)), strict=True):
            path.write_text(json.dumps(content))
        monkeypatch.setattr(sys, "argv", ["check_certificate.py", *map(str, paths)])
        try:
            code = check_certificate.main()
        except SystemExit as wrong:
            code = 1 if isinstance(wrong.code, str) else wrong.code
        capsys.readouterr()
        return code

    return said


def certified(problem, gpu, **options):
    return json.loads(
        json.dumps(certificate(from_data(problem), gpu, solve(from_data(problem), target=gpu, **options)))
    )


def fields(value, path=()):
    """Paths of all fields; of lists those of the first and the last."""
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        if key not in FREE and (not isinstance(key, int) or key in (0, len(value) - 1)):
            yield from fields(item, (*path, key))


def changes(value):
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value - 1)
    elif isinstance(value, list) and value:
        yield from ([], value[1:] + value[:1] + value[:1])
    elif isinstance(value, str | dict) and value:
        yield type(value)()


def forged(given):
    """The path of a field, and the certificate with another value there."""
    for path, value in fields(given):
        for other in changes(value) if path else ():
            change = copy.deepcopy(given)
            holder = change
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = other
            yield path, other, change


def confirmed(problem, given, verdict):
    """Changes that the script confirms as it confirms the certificate."""
    assert verdict(problem, given) == 0
    return {(path, str(other)) for path, other, change in forged(given) if verdict(problem, change) == 0}


def weaker(given, path, other):
    """Whether what is changed claims less than the certificate does, or the same in other words."""
    *above, last = path
    if "constraints" in path or last in ("clique", "packing", "parity"):
        return True  # left out: as the script assumes them; or not needed for the bound
    if last == "at_least" or (last == "excess" and "layout" not in above):
        value = given
        for key in path:
            value = value[key]
        return float(other) < value
    return False


@pytest.mark.parametrize("element", ["float3", "double2", "ushort4", "short2", "uchar2"])
def test_elements_of_vector_types_are_known(element, verdict):
    problem = {**SPELT, "tile": {"shape": [32, 4], "element": element}, "accesses": [
        {"name": "a", "op": "load", "bytes": min(4, VECTOR_TYPES[element]), "index": ["tid", "1"]}
    ]}  # fmt: skip
    assert verdict(problem, certified(problem, device("H100"))) == 0


@pytest.mark.parametrize("op", ["cp.async", "cp.async.ca", "cp.async.cg", "cp.async.ca.shared.global.16"])
def test_the_two_copies_of_16_bytes_are_told_apart(op, verdict):
    problem = {**SPELT, "tile": {"shape": [32, 4], "element": "f32"}, "accesses": [
        {"name": "a", "op": op, "bytes": 16, "index": ["lane // 2 * 2", "0"]}
    ]}  # fmt: skip
    assert verdict(problem, certified(problem, device("H100"))) == 0


def test_of_a_known_gpu_no_field_can_be_changed(verdict):
    given = certified(SPELT, device("h100"))
    given["target"] = "H100"
    assert {c for c in confirmed(SPELT, given, verdict) if not weaker(given, *c)} == set()


def test_of_what_the_hardware_moves_no_field_can_be_changed(verdict):
    problem = data(FILL, {"name": "a", "op": "wgmma.A"}, shape=(64, 16))
    given = certified(problem, device("sm_90"), time_limit=5)
    assert {c for c in confirmed(problem, given, verdict) if not weaker(given, *c)} == set()


def test_of_several_tiles_no_field_can_be_changed(verdict, tmp_path):
    given = block_certificate_of(TWO, tmp_path)
    assert {c for c in confirmed(TWO, given, verdict) if not weaker(given, *c)} == set()


def test_of_a_parity_no_field_can_be_changed(verdict):
    gpu = toy.toy_device(8, 8)
    given = certified(DIAGONALS, gpu, conflict_free=True, time_limit=20)
    assert given["parity"] is not None
    found = {
        (path, other)
        for path, other in confirmed(DIAGONALS, given, verdict)
        if not weaker(given, path, other)
    }
    assert {path[0] for path, _ in found} <= {"served", "parity"}
    # A lane named twice is one, and a combination left out or put twice may leave as good a reason.
    assert {path[1] for path, _ in found if path[0] == "parity"} <= {"combinations", "phases"}


@pytest.mark.parametrize(
    "combinations",
    [
        [],
        [{"modulus": 8, "weights": []}],
        [{"modulus": 0.5, "weights": [0.25]}],
        [{"modulus": 1, "weights": [1]}],
    ],
)
def test_a_parity_needs_weights_that_contradict(combinations, verdict):
    """One phase that fills all banks, and no reason why it should have a conflict."""
    problem = {**DIAGONALS, "accesses": DIAGONALS["accesses"][:1]}
    gpu = toy.toy_device(8, 8)
    given = certified(problem, gpu)
    phase = {"access": "rows", "warp": 0, "iteration": {"i": 0}, "lanes": [*range(8)]}
    parity = {"vector_bytes": 4, "place": 0, "banks": 8, "excess": 1, "phases": [phase]}
    refuted = {
        "refuted": "a layout without conflicts",
        "max_bytes": None,
        "reason": "",
        "rests_on": "arithmetic",
    }
    bound = {**given["bound"], "excess": 1}
    false = {**given, "status": "infeasible", "layout": None, "infeasible": refuted, "bound": bound}
    false["parity"] = {**parity, "combinations": combinations}
    assert verdict(problem, given) == 0
    assert verdict(problem, false) == 1


def test_tiles_that_share_a_layout_stay_together(verdict, tmp_path):
    given = block_certificate_of(TWO, tmp_path)
    shared = {
        **TWO,
        "tiles": [TWO["tiles"][0], {**TWO["tiles"][1], "shape": [8, 4]}],
        "same_layout": [["A", "C"]],
    }
    assert verdict(shared, given) == 1


PADDED = {
    "name": "p", "target": "sm_90", "threads": 32, "tile": {"shape": [5, 20], "element": "f32"},
    "accesses": [{"name": "rows", "op": "load", "bytes": 4, "index": ["i", "lane % 20"], "for": {"i": 5}}],
    "layout": {"families": ["none", "pad"]},
}  # fmt: skip


@pytest.mark.parametrize("field", [{"lanes": "free"}, {"values": "free"}, {"any": {"b": 2}}])
def test_lanes_that_are_chosen_are_not_those_of_the_certificate(field, verdict, tmp_path):
    given = certified(SPELT, device("H100"))
    accesses = [{**SPELT["accesses"][0], **field}, *SPELT["accesses"][1:]]
    assert verdict({**SPELT, "accesses": accesses}, given) == 3
    several = {**TWO, "accesses": [{**TWO["accesses"][0], **field}, *TWO["accesses"][1:]]}
    assert verdict(several, block_certificate_of(TWO, tmp_path)) == 3


@pytest.mark.parametrize("place", [lambda a, b: 20 * a + 19 - b, lambda a, b: 4 * b + (a if a else 0)])
def test_mirrored_rows_and_interleaved_strides_are_no_pads(place, verdict):
    given = certified(PADDED, device("sm_90"))
    assert verdict(PADDED, given) == 0
    table = [4 * place(a, b) for a in range(5) for b in range(20)]
    layout = {**given["layout"], "byte_offsets": table, "bytes": max(table) + 4}
    assert verdict(PADDED, {**given, "status": "feasible", "layout": layout}) == 1


@pytest.mark.parametrize(
    "layout",
    [{"order": [1, 0]}, {"pitch_multiple_bytes": 48}, {"alignment_bytes": 2}, {"alignment_bytes": 16}],
)
def test_constraints_of_a_dictated_tile_are_checked_or_open(layout, verdict):
    problem = data(FILL, {"name": "a", "op": "wgmma.A"}, shape=(64, 16))
    given = certified(problem, device("sm_90"), time_limit=5)
    given["constraints"] |= layout
    assert verdict({**problem, "layout": layout}, given) in (1, 3)


def test_a_list_of_modes_is_not_every_layout(verdict):
    problem = data(FILL, reads("r", 2, ["tid % 64", "i"], i=4), shape=(64, 64))
    given = certified(problem, device("sm_90"), time_limit=5)
    assert (given["bound"]["excess"] > 0, verdict(problem, given)) == (True, 0)
    given["bound"]["scope"] = "every layout"
    assert verdict(problem, given) == 1


@pytest.mark.parametrize("refuted", ["a layout of any kind, even with conflicts", ""])
def test_what_is_refuted_is_read(refuted, verdict):
    problem = data(FILL, reads("r", 2, ["tid % 64", "i"], i=4), shape=(64, 64))
    given = certified(problem, device("sm_90"), time_limit=5, conflict_free=True)
    assert (given["status"], verdict(problem, given)) == ("infeasible", 0)
    given["infeasible"]["refuted"] = refuted
    assert verdict(problem, given) == 1
    given["infeasible"]["refuted"] = "a layout in scope that keeps to the constraints"
    assert verdict(problem, given) == 1


def test_a_choice_of_widths_is_not_compared_with_the_others(verdict):
    accesses = [
        writes("s", 16, ["tid", "4*i"], i=8),
        reads("l", 4, ["i", "tid"], i=32),
        reads("c", 4, ["tid", "i"], i=32),
    ]
    problem = one_tile("w", [32, 32], "f32", 32, accesses, target="sm_90")
    given = certified(problem, device("sm_90"))
    assert given["bound"]["excess"] > 0
    before = verdict(problem, given)
    either = {**problem, "accesses": [{**problem["accesses"][0], "bytes": [16, 4]}, *problem["accesses"][1:]]}
    assert (before, verdict(either, given)) == (0, 3)


def test_of_a_gpu_that_nobody_knows_phases_are_not_believed(verdict):
    given = certified(SPELT, device("H100"))
    assert verdict({**SPELT, "target": "xpu"}, {**given, "target": "xpu"}) == 3


def test_a_name_twice_and_a_field_that_is_none(verdict, tmp_path, capsys):
    given = certified(SPELT, device("H100"))
    for problem in ({**SPELT, "famlies": 1}, {**SPELT, "tile": {**SPELT["tile"], "pitch": 1}}):
        assert verdict(problem, given) == 2
    assert verdict(SPELT, {**given, "checked": True}) == 1
    text = json.dumps(SPELT)
    (tmp_path / "problem.json").write_text(text[:-1] + ', "threads": 64}')
    assert check_certificate.main() == 2
    assert "a name twice" in capsys.readouterr().err


def test_texts_of_a_certificate_are_printed_without_escapes(tmp_path, monkeypatch, capsys):
    given = certified(PADDED, device("sm_90"))
    given["bound"] |= {"excess": 0, "scope": "x\x1b[31m\nall: checked"}
    given["bytes"] |= {"scope": "y\nbound: checked"}
    paths = tmp_path / "p.json", tmp_path / "c.json"
    for path, content in zip(paths, (PADDED, given), strict=True):
        path.write_text(json.dumps(content))
    monkeypatch.setattr(sys, "argv", ["check_certificate.py", *map(str, paths)])
    with pytest.raises(SystemExit) as wrong:
        check_certificate.main()
    said = capsys.readouterr().out + str(wrong.value)
    assert "\x1b" not in said
    assert not any(line.startswith(("all:", "bound: checked")) for line in said.splitlines())


def test_a_certificate_is_of_the_problem_that_was_solved(tmp_path):
    """By its digest, which does not depend on how the file is written; without one, that is not checked."""
    given = certified(SPELT, device("H100"))
    assert digest(SPELT) == given["digest"]
    longer = {
        **SPELT,
        "notes": "x",
        "layout": {"minimise": "excess"},
        "published": {"offset": "0", "bytes": 1},
    }
    assert digest(longer) == given["digest"]
    changed = {**SPELT, "accesses": [{**SPELT["accesses"][0], "weight": 2}, *SPELT["accesses"][1:]]}
    paths = tmp_path / "p.json", tmp_path / "c.json"
    for problem, certificate_of, code in (
        (SPELT, given, 0),
        (changed, given, 1),
        (SPELT, {**given, "digest": "0" * 64}, 1),
        (SPELT, {key: value for key, value in given.items() if key != "digest"}, 3),
    ):
        for path, content in zip(paths, (problem, certificate_of), strict=True):
            path.write_text(json.dumps(content))
        assert python(SCRIPT, *paths).returncode == code


@pytest.mark.parametrize("layout", [{}, {"families": ["none", "pad"]}, {"must_be": "tma"}])
def test_a_scope_is_that_of_the_layouts_that_the_file_leaves(layout, verdict):
    problem = one_tile("s", [16, 64], "f16", 64, [reads("r", 2, ["tid % 16", "tid // 16"])], target="sm_90")
    problem = {**problem, "layout": layout}
    given = certified(problem, device("sm_90"))
    before = verdict(problem, given)
    assert before in (0, 3)
    for bound in ("bound", "bytes"):
        for covers in ({"layouts": "tiles", "max_bytes": None}, {"layouts": "hardware", "by": ["wgmma"]}, {}):
            assert verdict(problem, {**given, bound: {**given[bound], "covers": covers}}) == 1
        for scope in ("families rotate", "the layouts of wgmma", "every layout of all"):
            assert verdict(problem, {**given, bound: {**given[bound], "scope": scope}}) == 1


def test_no_forgery_is_accepted():
    """The campaign of scripts/fuzz/forge_certificates.py, a short one."""
    campaign = forge_certificates.Campaign()
    campaign.run(240, seed=7)
    assert [rule for rule, *_ in campaign.accepted] == []
    assert (len(campaign.wrong), campaign.true[0] > 5) == (0, True)
    assert len(campaign.made) > 15


def test_the_best_by_instructions_is_not_called_checked():
    """A layout without excess in the tile's bytes need not have the cheapest index, which comes first here."""
    accesses = [reads("a", 4, ["i", "lane"], i=4)]
    limits = {"minimise": "instructions"}
    problem = one_tile("t", [64, 64], "f32", 32, accesses, target="sm_90", layout=limits)
    given = certified(problem, device("sm_90"))
    assert given["bound"]["excess"] == given["layout"]["excess"] == 0
    given["status"] = "optimal"
    assert forge_certificates.verdict(problem, as_forged(problem, given)) == 3
