from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import command
import numpy as np
import pytest
from written import saved

RECORDS = Path(__file__).parents[1] / "data/h200_wavefronts.jsonl.gz"
ADDRESSES = list(range(0, 128, 4))


def layoutopt(*arguments, given=b"", code=0):
    done = command.layoutopt(*arguments, input=given, warn="default")
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def record(**fields):
    data = {"op": "ld.shared.b32", "active": "0xffffffff", "byte_address": ADDRESSES, **fields}
    return json.dumps({k: v for k, v in data.items() if v is not None}).encode() + b"\n"


def test_records_keep_their_order(tmp_path):
    recorded = [json.loads(line) for line in gzip.decompress(RECORDS.read_bytes()).splitlines()]
    out, _ = layoutopt("count", RECORDS, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    for got, true in zip(lines, recorded, strict=True):
        assert (got["op"], got["wavefronts"]) == (true["op"], true["wavefronts"])
        assert got["bank_conflicts"] == true.get("bank_conflicts", got["bank_conflicts"])
        assert got["excess"] == got["wavefronts"] - got["ideal"]
    plain = tmp_path / "records.jsonl"
    plain.write_bytes(gzip.decompress(RECORDS.read_bytes()))
    assert layoutopt("count", plain, "--json")[0] == out
    assert layoutopt("count", "-", "--json", given=plain.read_bytes())[0] == out
    assert layoutopt("count", "-", "--json", given=RECORDS.read_bytes())[0] == out


def test_table_of_records():
    out, _ = layoutopt("count", RECORDS)
    lines = out.splitlines()
    assert lines[0].split() == ["op", "instructions", "wavefronts", "ideal", "excess", "bank", "conflicts"]
    assert lines[-1].split() == ["total", "2,082", "8,541", "4,283", "4,258", "4,258"]


def test_defaults_of_a_record():
    given = (
        record(active=None)
        + b"\n"  # a blank line is no record
        + record(op="load", bytes=4, active=0xFFFF)
        + record(op="ld.shared.u8", active="0x1", byte_address=[1] + [-7] * 31, kernel="gemm").rstrip()
    )
    out, _ = layoutopt("count", "-", "--json", given=given)
    assert [json.loads(line)["wavefronts"] for line in out.splitlines()] == [1, 1, 1]
    assert json.loads(out.splitlines()[1])["op"] == "load"


def test_no_records():
    assert layoutopt("count", "-", "--json")[0] == ""
    assert "total" in layoutopt("count", "-")[0]


def changed(lane, value):
    return [value if i == lane else a for i, a in enumerate(ADDRESSES)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (record(op="ld.shered.b32"), "line 3, op: unknown op 'ld.shered.b32'; did you mean ld.shared.v4.b32? expected load"),
        (record(op="load"), "line 3, op: 'load' needs a width"),
        (record(op="atomic", bytes=8), "line 3, op: no published rule for atomic of 8 bytes on sm_90;"),
        (record(byte_address=ADDRESSES[1:]), "must have 32 entries, one a lane of sm_90, not 31"),
        (record(byte_address=changed(3, -12)), "line 3, byte_address[3]: must be at least 0"),
        (record(byte_address=changed(3, 14)), "line 3, byte_address[3]: must be at least 0, a multiple of 4"),
        (record(byte_address=changed(3, 1.5)), "line 3, byte_address[3]: expected `int`, got `float`"),
        (record(byte_address=changed(3, "a")), "line 3, byte_address[3]: expected `int`, got `str`"),
        (record(byte_address=changed(3, 1 << 64)), "line 3, byte_address[3]: must fit 64 bits"),
        (record(active="0x1ffffffff"), "line 3, active: must be a mask of 32 lanes, such as '0xffffffff'"),
        (record(active="ff"), 'line 3, active: must be a mask of 32 lanes, such as \'0xffffffff\', not "ff"'),
        (record(active=-1), "line 3, active: must be a mask of 32 lanes"),
        (record(active=[1]), "line 3, active: expected `int | str | null`, got `array`"),
        (record(byte_address=None), "line 3: object missing required field `byte_address`"),
        (b"[]\n", "line 3: expected `object`, got `array`"),
        (b"{\n", "line 3: not JSON: "),
        (b"\xff\n", "line 3: not UTF-8 text"),
        (b'{"op": ' + b"1" * (2 << 20), "line 3: a record has at most 1048576 bytes"),
    ],
)  # fmt: skip
def test_errors_name_line_and_field(line, message):
    _, error = layoutopt("count", "-", "--json", given=record() + b"\n" + line + record(), code=2)
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_line_numbers_go_on_after_a_block():
    given = record() * 20_000 + record(op="x")
    _, error = layoutopt("count", "-", given=given, code=2)
    assert "line 20001, op" in error


def test_tables(tmp_path):
    rng = np.random.default_rng(0)
    address = rng.integers(0, 1000, (5000, 32)) * 16
    address[:, 5] = -1
    address[17] = -1
    path = tmp_path / "address.npy"
    np.save(path, address)
    out, _ = layoutopt("count", path, "--op", "ld.shared.v4.b32", "--json")
    totals = json.loads(out)
    lines = [
        record(op="load", bytes=16, active=f"{sum(1 << lane for lane in np.flatnonzero(row >= 0)):#x}",
               byte_address=row.tolist())
        for row in address
    ]  # fmt: skip
    out, _ = layoutopt("count", "-", "--json", given=b"".join(lines))
    singly = [json.loads(line) for line in out.splitlines()]
    assert totals["instructions"] == 5000
    for key in ("wavefronts", "ideal", "excess", "bank_conflicts"):
        assert totals[key] == sum(one[key] for one in singly)
    np.save(path, np.asfortranarray(address))
    again, _ = layoutopt("count", path, "--op", "load", "--bytes", "16", "--json")
    assert {**json.loads(again), "op": "ld.shared.v4.b32"} == totals
    table, _ = layoutopt("count", path, "--op", "load", "--bytes", "16")
    assert f"{totals['wavefronts']:,}" in table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((2, 31), np.int64), "must have shape (instructions, 32), one column a lane of sm_90"),
        (np.zeros(32, np.int64), "must have shape (instructions, 32)"),
        (np.zeros((2, 32), np.float64), "must hold int64 byte addresses, not <f8"),
        (np.zeros((2, 32), np.int32), "must hold int64 byte addresses, not <i4"),
        (np.full((2, 32), -2), "row 0, lane 0: must be at least 0, a multiple of 4"),
        (np.array([ADDRESSES, changed(9, 2)]), "row 1, lane 9: must be at least 0, a multiple of 4"),
        (np.array([[None] * 32]), "is no whole .npy file"),
    ],
)  # fmt: skip
def test_wrong_tables(tmp_path, table, message):
    path = tmp_path / "address.npy"
    np.save(path, table)
    _, error = layoutopt("count", path, "--op", "ld.shared.b32", code=2)
    assert message in error
    assert error.count("\n") == 1


def test_wrong_usage(tmp_path):
    path = tmp_path / "address.npy"
    np.save(path, np.array([ADDRESSES]))
    assert "needs --op" in layoutopt("count", path, code=2)[1]
    assert "--op and --bytes go with a .npy table" in layoutopt("count", RECORDS, "--op", "load", code=2)[1]
    assert "cannot read" in layoutopt("count", tmp_path / "none", code=2)[1]
    assert "unknown target 'sm_1'" in layoutopt("count", RECORDS, "--target", "sm_1", code=2)[1]
    path.write_bytes(path.read_bytes()[:200])
    assert "is no whole .npy file" in layoutopt("count", path, "--op", "ld.shared.b32", code=2)[1]
    half = RECORDS.read_bytes()[:5000]
    assert "not a whole gzip file" in layoutopt("count", "-", given=half, code=2)[1]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's peak of memory")
def test_memory_stays_flat(tmp_path):
    """The peak does not grow with the input: tables of 8 and 64 MiB, lines of 2 and 50 MB."""
    script = (
        "import sys; from layoutopt.cli.commands import main; main(standalone_mode=False); "
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0], file=sys.stderr)"
    )

    def peak_mib(*arguments):
        program = [sys.executable, "-c", script, "count", *map(str, arguments)]
        done = subprocess.run(program, capture_output=True, check=True)
        return int(done.stderr) / 1024

    for name, rows in (("small", 1 << 15), ("large", 1 << 18)):
        np.save(tmp_path / f"{name}.npy", np.zeros((rows, 32), np.int64))
        (tmp_path / f"{name}.jsonl").write_bytes(record() * (rows - (1 << 14)))
    op = ("--op", "ld.shared.b32")
    assert peak_mib(tmp_path / "large.npy", *op) < peak_mib(tmp_path / "small.npy", *op) + 24
    large, small = (peak_mib(tmp_path / f"{name}.jsonl", "--json") for name in ("large", "small"))
    assert large < small + 16


def test_a_device_of_the_users(tmp_path):
    rule = {"ops": ["load"], "bytes": [4], "phase": 8, "confidence": "measured", "source": "a bench"}
    gpu = {"name": "xpu", "title": "X", "lanes": 8, "banks": 4, "bank_bytes": 4, "instructions": [rule]}
    path = saved(tmp_path, "xpu.json", {"devices": [gpu]})
    given = record(op="load", bytes=4, active="0xff", byte_address=ADDRESSES[:8])
    for options in ((), ("--target", "XPU")):
        out, _ = layoutopt("count", "-", "--json", "--device-file", path, *options, given=given)
        assert json.loads(out) == {
            "op": "load", "wavefronts": 2, "ideal": 2, "excess": 0, "bank_conflicts": 1,
        }  # fmt: skip
    assert "xpu " in layoutopt("targets", "--device-file", path)[0]
    assert "load 4 bytes: 1 phase of 8 lanes" in layoutopt("targets", "xpu", "--device-file", path)[0]
    path.write_text(json.dumps({"devices": [{**gpu, "lanes": 9}]}))
    assert (
        "devices[0].lanes: must be a power of two" in layoutopt("targets", "--device-file", path, code=2)[1]
    )


def test_a_disputed_rule_warns_once():
    line = record(op="ds_read_b32", active=None, byte_address=list(range(0, 256, 4)))
    out, error = layoutopt("count", "-", "--json", "--target", "mi355x", given=line * 9000)
    assert out.count("\n") == 9000
    assert error.startswith("warning: the rule for load of 4 bytes on gfx950 is disputed")
    assert error.count("\n") == 1


def test_targets():
    out, _ = layoutopt("targets")
    assert "sm_90           32     32  NVIDIA Hopper" in out
    assert "h100, h200" in out
    listed = json.loads(layoutopt("targets", "--json")[0])["targets"]
    assert {"sm_10", "sm_90", "gfx9", "gfx950", "gfx1201"} <= {t["name"] for t in listed}


def test_one_target_as_pictures():
    out, error = layoutopt("targets", "MI300X")
    assert "0000222244446666222200006666444411113333555577773333111177775555" in out
    assert "measured by others: nod-ai/amd-shark-ai" in out
    assert error == ""
    hopper, _ = layoutopt("targets", "sm_90")
    assert "load 16 bytes: 4 phases of 8 lanes, 32 banks" in hopper
    assert "phase  00000000111111112222222233333333" in hopper
    assert "neighbouring phases merge in pairs" in hopper
    data = json.loads(layoutopt("targets", "h100", "--json")[0])
    wide = next(i for i in data["instructions"] if {"op": "load", "bytes": 16} in i["instructions"])
    assert wide["phases"][1] == list(range(8, 16))
    assert (wide["merge"], wide["count"], wide["confidence"]) == ("pairs", "words", "measured")
    assert "unknown target" in layoutopt("targets", "sm_9", code=2)[1]
