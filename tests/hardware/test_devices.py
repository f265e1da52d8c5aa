from __future__ import annotations

import copy
import json
import warnings

import numpy as np
import pytest

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


def write(tmp_path, data):
    path = tmp_path / "devices.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


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


def test_names_are_unambiguous():
    names = [name.lower() for d in devices() for name in (d.name, *d.aliases)]
    assert len(names) == len(set(names))


def test_every_rule_serves_every_lane_once_and_names_its_source():
    for gpu in devices():
        for rule in gpu.rules.values():
            assert sorted(lane for phase in rule.phases for lane in phase) == list(range(gpu.lanes))
            assert rule.source
            assert rule.confidence


def test_unknown_target():
    with pytest.raises(ProblemFileError, match=r"target: unknown target 'sm_1000'; known: sm_10, .*gfx1201"):
        device("sm_1000")


def test_a_new_gpu_is_one_entry(tmp_path):
    more = load_devices(write(tmp_path, NEW_GPU))
    gpu = device("Tomorrow", more)
    assert (gpu.name, gpu.lanes, gpu.banks) == ("xpu_1", 16, 8)
    address = np.arange(16)[None] * 4
    active = np.ones((1, 16), bool)
    loads = count_wavefronts(address, active, Operation("load", 4), gpu)
    assert (loads.wavefronts.tolist(), loads.bank_conflicts.tolist()) == ([4], [2])
    stores = count_wavefronts(address, active, Operation("store", 4), gpu)
    assert (stores.wavefronts.tolist(), stores.ideal.tolist()) == ([2], [2])
    with pytest.raises(ProblemFileError, match="no published rule for load of 8 bytes on xpu_1"):
        gpu.rule(Operation("load", 8))


def test_a_file_may_use_the_package_sets_and_override_one_rule(tmp_path):
    entry = copy.deepcopy(NEW_GPU["devices"][0])
    loads = {**entry["instructions"][0], "phase": 16, "note": "measured again"}
    entry |= {"name": "sm_90", "aliases": [], "lanes": 32, "banks": 32}
    entry["instructions"] = ["nvidia_sm90", loads]
    gpu = device("sm_90", load_devices(write(tmp_path, {"devices": [entry]})))
    assert gpu.rule(Operation("load", 4)).note == "measured again"
    assert gpu.rule(Operation("load", 16)) == device("sm_90").rule(Operation("load", 16))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("lanes",), 12, r"devices\[0\]\.lanes: must be a power of two, given 12"),
        (("banks",), 48, r"devices\[0\]\.banks: must be a power of two, given 48"),
        (("lanes",), "32", r"devices\[0\]\.lanes: expected `int`, got `str`, given \"32\""),
        (("bank_byte",), 4, r"devices\[0\]: object contains unknown field `bank_byte`"),
        (("name",), "a b", r"devices\[0\]\.name: "),
        (("aliases",), ["XPU_1", "y", 3], r"devices\[0\]\.aliases\[2\]: expected `str`, got `int`"),
        (("instructions",), [], r"devices\[0\]\.instructions: expected `array` of length >= 1"),
        (("instructions", 1), "nope", r"devices\[0\]\.instructions\[1\]: unknown instruction set 'nope'"),
        (("instructions", 0, "phase"), 5, r"instructions\[0\]\.phase: must divide the 16 lanes .* given 5"),
        (("instructions", 0, "phase"), [[0, 1], [2]], r"phase: must hold each of the lanes 0\.\.15 once"),
        (("instructions", 0, "phase"), [list(range(4)), list(range(4, 16))], r"in phases of one length"),
        (
            ("instructions", 0, "ops"),
            ["ld"],
            r"instructions\[0\]\.ops\[0\]: expected one of load, store, .* given 'ld'",
        ),
        (("instructions", 0, "confidence"), "sure", r"instructions\[0\]\.confidence: invalid enum value"),
        (("instructions", 0, "banks"), 24, r"instructions\[0\]\.banks: must be a power of two, given 24"),
        (("instructions", 0), {"ops": ["load"]}, r"instructions\[0\]: object missing required field"),
        (("limits",), [OTHER_LIMITS], r"limits\[0\]\.targets.*'other' is no name of xpu_1"),
    ],
)
def test_errors_name_the_field(tmp_path, path, value, message):
    data = copy.deepcopy(NEW_GPU)
    place = data["devices"][0]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ProblemFileError, match=message):
        load_devices(write(tmp_path, data))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phase": 16, "merge": "pairs"}, r"instructions\[0\]\.merge: pairs need an even number"),
        ({"bytes": [4, 8], "row_words": 32}, "accesses of at most one word, 4 bytes; given with 8 bytes"),
    ],
)
def test_fields_that_do_not_go_together(tmp_path, changes, message):
    data = copy.deepcopy(NEW_GPU)
    data["devices"][0]["instructions"][0] |= changes
    with pytest.raises(ProblemFileError, match=message):
        load_devices(write(tmp_path, data))


def test_two_devices_of_one_name(tmp_path):
    data = copy.deepcopy(NEW_GPU)
    data["devices"].append({**data["devices"][0], "name": "other", "aliases": ["XPU_1"]})
    with pytest.raises(ProblemFileError, match=r"devices\[1\]: 'XPU_1' already names devices\[0\]"):
        load_devices(write(tmp_path, data))


def test_files_that_are_none(tmp_path):
    with pytest.raises(ProblemFileError, match="cannot read"):
        load_devices(tmp_path / "missing.json")
    with pytest.raises(ProblemFileError, match=r"not JSON: .* \(line 1, column 2\)"):
        load_devices(write(tmp_path, "{"))


def test_a_disputed_rule_warns_when_used():
    with pytest.warns(DisputedRuleWarning, match="load of 4 bytes on gfx950 is disputed") as seen:
        device("gfx950").rule(Operation("load", 4))
    assert "32 banks, 32 lanes a phase" in str(seen[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device("gfx950").rule(Operation("load", 16))


@pytest.mark.parametrize(
    ("text", "kind", "width"),
    [
        ("ds_read_b128", "load", 16), ("ds_load_b96", "load", 12), ("ds_write_b8", "store", 1),
        ("ds_read_u16", "load", 2), ("ds_store_b64", "store", 8),
        ("ds_read_b64_tr_b16", "load.tr", 8), ("ds_read_b64_tr_b8", "load.tr", 8),
        ("ds_read_b96_tr_b6", "load.tr", 12),
    ],
)  # fmt: skip
def test_amd_spellings(text, kind, width):
    assert parse_operation(text, None) == Operation(kind, width)


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
    with pytest.raises(ProblemFileError, match="unknown op") as caught:
        parse_operation(text, 4)
    assert hint in str(caught.value)


def test_what_a_file_says_of_each_kind_is_that_operation():
    for gpu in devices():
        for kind, width in gpu.rules:
            if spelt := spelling(kind, width):
                assert parse_operation(spelt, width) == Operation(kind, width)
            else:
                assert not kind.startswith(("load.", "store."))


def test_every_chip_has_its_limits():
    """Each name of each GPU: what one multiprocessor holds, and what one block may take of it."""
    for gpu in devices():
        for name in (gpu.name, *gpu.aliases):
            limits = gpu.limits_of(name)
            assert limits is not None, name
            assert limits.shared_bytes_per_block <= limits.shared_bytes
            assert limits.threads % gpu.lanes == 0
            assert limits.source
            assert limits.registers or gpu.name in ("sm_10", "sm_20"), name
            fitted = occupancy(limits.shared_bytes_per_block, 16, 256, gpu, name, registers=64)
            assert fitted is not None
            assert fitted.blocks >= 1, name


@pytest.mark.parametrize(("group", "read"), [(2, 1), (8, 1), (16, 16)])
def test_a_group_of_no_more_words_than_banks_is_no_group(tmp_path, group, read):
    data = copy.deepcopy(NEW_GPU)
    data["devices"][0]["instructions"][0]["row_words"] = group
    (made,) = load_devices(write(tmp_path, data))
    assert made.rules["load", 4].row_words == read
