import copy
import warnings

import numpy as np
import pytest
from written import refused_with, saved

from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import DisputedRuleWarning, ProblemFileError
from layoutopt.hardware.devices import device, devices, load_devices
from layoutopt.hardware.occupancy import occupancy
from layoutopt.hardware.operations import Operation, parse_operation, spelling

NEW_GPU = {
    "devices": [{
        "name": "xpu_1", "title": "A GPU of tomorrow", "aliases": ["tomorrow"], "lanes": 16, "banks": 8, "bank_bytes": 4,
        "instructions": [
            {"ops": ["load"], "bytes": [4], "phase": [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]],
             "confidence": "measured", "source": "a bench"},
            "stores",
        ],
    }],
    "instruction_sets": {
        "stores": [{"ops": ["store"], "bytes": [4], "phase": 16, "confidence": "inferred", "source": "a guess"}]
    },
}  # fmt: skip


OTHER_LIMITS = {
    "targets": ["other"], "shared_bytes": 1, "shared_bytes_per_block": 1, "allocation_bytes": 1, "threads": 1,
    "blocks": 1, "source": "none",
}  # fmt: skip


def loaded(tmp_path, data):
    return load_devices(saved(tmp_path, "devices.json", data))


def changed(path, value):
    """A new GPU of which a field is other."""
    data = copy.deepcopy(NEW_GPU)
    place = data["devices"][0]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("sm_86", "sm_80"), ("ada", "sm_80"), ("H100", "sm_90"), ("h200", "sm_90"), ("mi300x", "gfx942"),
        ("gfx942", "gfx942"), ("MI355X", "gfx950"), ("kepler", "sm_30"), ("sm_120", "sm_100"),
        ("rdna4", "gfx1201"), ("sm_13", "sm_10"),
    ],
)  # fmt: skip
def test_aliases(alias, name):
    assert device(alias).name == name


@pytest.mark.parametrize("gpu", devices(), ids=lambda gpu: gpu.name)
def test_every_rule_and_every_chip_is_whole(gpu):
    """Rules serve every lane once; of each chip what a multiprocessor holds and what one block may take of it."""
    for (kind, width), rule in gpu.rules.items():
        assert sorted(lane for phase in rule.phases for lane in phase) == list(range(gpu.lanes))
        assert rule.source
        assert rule.confidence
        spelt = spelling(kind, width)
        if spelt:
            assert parse_operation(spelt, width) == Operation(kind, width)
        else:
            assert not kind.startswith(("load.", "store."))
    for name in (gpu.name, *gpu.aliases):
        limits = gpu.limits_of(name)
        assert limits is not None, name
        assert limits.shared_bytes_per_block <= limits.shared_bytes
        assert limits.threads % gpu.lanes == 0
        assert limits.source
        assert limits.registers or gpu.name in ("sm_10", "sm_20"), name
        assert occupancy(limits.shared_bytes_per_block, 16, 256, gpu, name, registers=64).blocks >= 1, name


def test_unknown_target():
    with pytest.raises(ProblemFileError, match=r"target: unknown target 'sm_1000'; known: sm_10, .*gfx1201"):
        device("sm_1000")


def test_a_new_gpu_is_one_entry(tmp_path):
    gpu = device("Tomorrow", loaded(tmp_path, NEW_GPU))
    assert (gpu.name, gpu.lanes, gpu.banks) == ("xpu_1", 16, 8)
    address, active = np.arange(16)[None] * 4, np.ones((1, 16), bool)
    operations = Operation("load", 4), Operation("store", 4)
    loads, stores = (count_wavefronts(address, active, op, gpu.rule(op)) for op in operations)
    assert (loads.wavefronts.tolist(), loads.bank_conflicts.tolist()) == ([4], [2])
    assert (stores.wavefronts.tolist(), stores.ideal.tolist()) == ([2], [2])
    with refused_with("no published rule for load of 8 bytes on xpu_1"):
        gpu.rule(Operation("load", 8))


def test_a_file_may_use_the_package_sets_and_override_one_rule(tmp_path):
    entry = copy.deepcopy(NEW_GPU["devices"][0])
    loads = {**entry["instructions"][0], "phase": 16, "note": "measured again"}
    entry |= {
        "name": "sm_90",
        "aliases": [],
        "lanes": 32,
        "banks": 32,
        "instructions": ["nvidia_sm90", loads],
    }
    gpu = device("sm_90", loaded(tmp_path, {"devices": [entry]}))
    assert gpu.rule(Operation("load", 4)).note == "measured again"
    assert gpu.rule(Operation("load", 16)) == device("sm_90").rule(Operation("load", 16))


LOADS = NEW_GPU["devices"][0]["instructions"][0]
WRONG = [
    (("lanes",), 12, "devices[0].lanes: must be a power of two, given 12"),
    (("banks",), 48, "devices[0].banks: must be a power of two, given 48"),
    (("lanes",), "32", 'devices[0].lanes: expected `int`, got `str`, given "32"'),
    (("bank_byte",), 4, "devices[0]: object contains unknown field `bank_byte`"),
    (("name",), "a b", "devices[0].name: "),
    (("aliases",), ["XPU_1", "y", 3], "devices[0].aliases[2]: expected `str`, got `int`"),
    (("instructions",), [], "devices[0].instructions: expected `array` of length >= 1"),
    (("instructions", 1), "nope", "devices[0].instructions[1]: unknown instruction set 'nope'"),
    (("instructions", 0, "phase"), 5, "instructions[0].phase: must divide the 16 lanes"),
    (("instructions", 0, "phase"), [[0, 1], [2]], "phase: must hold each of the lanes 0..15 once"),
    (("instructions", 0, "phase"), [list(range(4)), list(range(4, 16))], "in phases of one length"),
    (("instructions", 0, "ops"), ["ld"], "instructions[0].ops[0]: expected one of load, store, "),
    (("instructions", 0, "confidence"), "sure", "instructions[0].confidence: invalid enum value"),
    (("instructions", 0, "banks"), 24, "instructions[0].banks: must be a power of two, given 24"),
    (("instructions", 0), {"ops": ["load"]}, "instructions[0]: object missing required field"),
    (
        ("instructions", 0),
        {**LOADS, "phase": 16, "merge": "pairs"},
        "instructions[0].merge: pairs need an even number",
    ),
    (
        ("instructions", 0),
        {**LOADS, "bytes": [4, 8], "row_words": 32},
        "accesses of at most one word, 4 bytes; given with 8 bytes",
    ),
    (("limits",), [OTHER_LIMITS], "'other' is no name of xpu_1"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG)
def test_errors_name_the_field(tmp_path, path, value, message):
    with refused_with(message):
        loaded(tmp_path, changed(path, value))


def test_two_devices_of_one_name_and_files_that_are_none(tmp_path):
    first = NEW_GPU["devices"][0]
    twice = {**NEW_GPU, "devices": [first, {**first, "name": "other", "aliases": ["XPU_1"]}]}
    with refused_with("devices[1]: 'XPU_1' already names devices[0]"):
        loaded(tmp_path, twice)
    with refused_with("cannot read"):
        load_devices(tmp_path / "missing.json")
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(ProblemFileError, match=r"not JSON: .* \(line 1, column 2\)"):
        load_devices(tmp_path / "half.json")


def test_a_disputed_rule_warns_when_used():
    with pytest.warns(DisputedRuleWarning, match="load of 4 bytes on gfx950 is disputed") as seen:
        device("gfx950").rule(Operation("load", 4))
    assert "32 banks, 32 lanes a phase" in str(seen[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device("gfx950").rule(Operation("load", 16))


@pytest.mark.parametrize(
    ("text", "width", "operation"),
    [
        ("load", 16, ("load", 16)),
        ("ld.shared.b32", None, ("load", 4)),
        ("ld.shared.v4.b32", None, ("load", 16)),
        ("ld.shared.v2.f64", None, ("load", 16)),
        ("ld.shared::cta.u8", None, ("load", 1)),
        ("st.shared.v2.b32", 8, ("store", 8)),
        ("ldmatrix.x4.trans", None, ("ldmatrix", 16, 4, True)),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16", None, ("ldmatrix", 16, 2)),
        ("stmatrix.x1", None, ("stmatrix", 16, 1)),
        ("cp.async", 4, ("cp.async.ca", 4)),
        ("cp.async", 8, ("cp.async.ca", 8)),
        ("cp.async", 16, ("cp.async.cg", 16)),
        ("cp.async.ca.16", None, ("cp.async.ca", 16)),
        ("cp.async.cg.shared.global", 16, ("cp.async.cg", 16)),
        # Of reductions only those that count merge equal addresses.
        ("red.shared.add.u32", None, ("reduce", 4)),
        ("red.relaxed.cta.shared::cta.add.u32", None, ("reduce", 4)),
        ("red.shared.add.s32", None, ("atomic", 4)),
        ("red.shared.max.u32", None, ("atomic", 4)),
        ("atom.shared.add.u32", None, ("atomic", 4)),
        ("atom.shared.exch.b32", None, ("atomic", 4)),
        ("atomic", 4, ("atomic", 4)),
        ("ds_read_b128", None, ("load", 16)),
        ("ds_load_b96", None, ("load", 12)),
        ("ds_write_b8", None, ("store", 1)),
        ("ds_read_u16", None, ("load", 2)),
        ("ds_store_b64", None, ("store", 8)),
        ("ds_read_b64_tr_b16", None, ("load.tr", 8)),
        ("ds_read_b64_tr_b8", None, ("load.tr", 8)),
        ("ds_read_b96_tr_b6", None, ("load.tr", 12)),
    ],
)
def test_spellings(text, width, operation):
    assert parse_operation(text, width) == Operation(*operation)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("load.lds", "did you mean buffer_load_dword.lds or buffer_load_dwordx3.lds or buffer_load_dwordx4.lds?"),
        ("load.tr", "did you mean ds_read_b64_tr_b16 or ds_read_b96_tr_b6?"),
        ("ldmatrix", "did you mean ldmatrix.x"),
        ("wgmma.a", "did you mean wgmma."),
        ("zzz", "unknown op 'zzz'; expected load,"),
    ],
)  # fmt: skip
def test_an_unknown_operation_names_what_is_near(text, hint):
    with refused_with(hint):
        parse_operation(text, 4)


@pytest.mark.parametrize(("group", "read"), [(2, 1), (8, 1), (16, 16)])
def test_a_group_of_no_more_words_than_banks_is_no_group(tmp_path, group, read):
    (made,) = loaded(tmp_path, changed(("instructions", 0, "row_words"), group))
    assert made.rules["load", 4].row_words == read
