"""The hardware that a certificate assumes, and how a known GPU serves an operation.

The rules of the GPUs are data: `layoutopt/hardware/devices.json` beside these scripts, or the device file
that is given. Of a target that neither names, which lanes are served together is the certificate's word.
"""

import json
from pathlib import Path

from certificate.operations import operation
from certificate.problem import require, require_form

DEVICES = Path(__file__).resolve().parents[3] / "layoutopt" / "hardware" / "devices.json"


def read_devices(path=None):
    """The devices of a device file, and after them those of the package, by their names in lower case.

    Nothing of the package where its file is not beside these scripts.
    """
    paths = ([path] if path else []) + ([DEVICES] if DEVICES.exists() else [])
    found, sets = {}, {}
    for data in [json.loads(Path(path).read_text(encoding="utf-8")) for path in reversed(paths)]:
        require_form(isinstance(data, dict) and isinstance(data.get("devices"), list), "no device file")
        sets = sets | data.get("instruction_sets", {})
        for device in data["devices"]:
            names = [device["name"], *device.get("aliases", ())]
            found |= {name.lower(): {**device, "sets": sets} for name in names}
    return found


def rule_of(device, kind, wide):
    """How the device serves an operation, in the words of a certificate; nothing where it does not."""
    found = None
    for entry in device["instructions"]:
        for row in device["sets"][entry] if isinstance(entry, str) else [entry]:
            if kind in row["ops"] and wide in row["bytes"]:
                found = row
    if found is None:
        return None
    phase, lanes = found["phase"], range(device["lanes"])
    if isinstance(phase, int):
        phase = [[*lanes[k : k + phase]] for k in range(0, len(lanes), phase)]
    banks, group = found.get("banks") or device["banks"], found.get("row_words", 1)
    return {
        "phases": phase,
        "merges_pairs": found.get("merge") == "pairs",
        "split_words": found.get("split_words", False),
        "serialises_equal": found.get("count") == "lanes",
        "row_words": group if group > banks else 1,
        "extra_wavefronts": found.get("extra_wavefronts", 0),
        "banks": banks,
        "bank_bytes": device["bank_bytes"],
    }


def check_served(problem, given, devices):
    """Lanes and widths as the operations have them, banks and phases as a known GPU has them."""
    target, device = given["target"], devices.get(given["target"].lower())
    if device is not None:
        require(given["lanes"] == device["lanes"], f"a warp of {target} has {device['lanes']} lanes")
    for access in problem["accesses"]:
        name, rule = access["name"], given["served"][access["name"]]
        check_rule(name, rule, given["lanes"])
        kind, wide, matrices = operation(access.get("by_itself", access))
        used = 8 * matrices or given["lanes"]
        require(wide in (None, rule["bytes"]), f"access {name!r} has {wide} bytes, not {rule['bytes']}")
        require(rule["lanes_used"] == used, f"access {name!r} uses {used} lanes, not {rule['lanes_used']}")
        if device is None:
            continue
        if kind == "cp.async":
            kind = "cp.async.cg" if rule["bytes"] == 16 else "cp.async.ca"
        known = rule_of(device, kind, rule["bytes"])
        require(known is not None, f"{target} has no {kind} of {rule['bytes']} bytes")
        for field, value in known.items():
            require(rule[field] == value, f"{field} of access {name!r} is not that of {target}, {value}")


def room(block, device):
    """Bytes that a block of the GPU has for the tiles; nothing where it is not known."""
    target = block.get("target", "sm_90").lower()
    for limits in device.get("limits", ()) if device is not None else ():
        if target in map(str.lower, limits["targets"]):
            other = block.get("block", {}).get("other_shared_bytes") or 0
            return max(1, limits["shared_bytes_per_block"] - other)
    return None


def check_rule(name, rule, lanes):
    """Whether a rule is one: every lane is served once, in phases of one length."""
    served, sizes = sorted(lane for phase in rule["phases"] for lane in phase), set(map(len, rule["phases"]))
    once = len(served) == lanes and served == [*range(len(served))] and len(sizes) == 1
    require(once, f"access {name!r}: some lane is served twice, or never")
    even = not rule["merges_pairs"] or len(rule["phases"]) % 2 == 0
    require(even, f"access {name!r}: an odd number of phases that merge in pairs")
