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
    done = command.layoutopt("count", *arguments, input=given, warn="default")
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def counted(*arguments, **given):
    """The records that it prints as JSON."""
    return [json.loads(line) for line in layoutopt(*arguments, "--json", **given)[0].splitlines()]


def said(*arguments, given=b""):
    """The one line of an error."""
    out, error = layoutopt(*arguments, given=given, code=2)
    assert (out, error[:7], error.count("\n")) == ("", "error: ", 1)
    return error


def record(**fields):
    data = {"op": "ld.shared.b32", "active": "0xffffffff", "byte_address": ADDRESSES, **fields}
    return json.dumps({k: v for k, v in data.items() if v is not None}).encode() + b"\n"


def test_records_keep_their_order(tmp_path):
    raw = gzip.decompress(RECORDS.read_bytes())
    lines = counted(RECORDS)
    for got, true in zip(lines, map(json.loads, raw.splitlines()), strict=True):
        assert (got["op"], got["wavefronts"]) == (true["op"], true["wavefronts"])
        assert got["bank_conflicts"] == true.get("bank_conflicts", got["bank_conflicts"])
        assert got["excess"] == got["wavefronts"] - got["ideal"]
    plain = tmp_path / "records.jsonl"
    plain.write_bytes(raw)
    assert lines == counted(plain) == counted("-", given=raw) == counted("-", given=RECORDS.read_bytes())
    table = [line.split() for line in layoutopt(RECORDS)[0].splitlines()]
    assert table[0] == ["op", "instructions", "wavefronts", "ideal", "excess", "bank", "conflicts"]
    assert table[-1] == ["total", "2,082", "8,541", "4,283", "4,258", "4,258"]


def test_defaults_of_a_record():
    given = (
        record(active=None)
        + b"\n"  # a blank line is no record
        + record(op="load", bytes=4, active=0xFFFF)
        + record(op="ld.shared.u8", active="0x1", byte_address=[1] + [-7] * 31, kernel="gemm").rstrip()
    )
    lines = counted("-", given=given)
    assert ([line["wavefronts"] for line in lines], lines[1]["op"]) == ([1, 1, 1], "load")
    assert counted("-") == []
    assert "total" in layoutopt("-")[0]


def changed(lane, value):
    return [value if i == lane else a for i, a in enumerate(ADDRESSES)]


WRONG_LINES = [
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
    (b"[" * 100_000 + b"\n", "line 3: not JSON that layoutopt reads: nested too deeply"),
    (b'{"op": "load", "x": %s}\n' % (b"7" * 5000), "line 3, x: a number has at most 64 bits"),
    (b'{"op": "load", "bytes": 1e400}\n', "line 3, bytes: a number has at most 64 bits"),
    (b'"\\ud800"\n', "line 3: "),
    (b"\xff\n", "line 3: not UTF-8 text"),
    (b'{"op": ' + b"1" * (2 << 20), "line 3: a record has at most 1048576 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), WRONG_LINES)
def test_errors_name_line_and_field(line, message):
    _, error = layoutopt("-", "--json", given=record() + b"\n" + line + record(), code=2)
    assert (error[:7], message in error, error.count("\n")) == ("error: ", True, 1), error


def test_line_numbers_go_on_after_a_block():
    assert "line 20001, op" in said("-", given=record() * 20_000 + record(op="x"))


def test_tables(tmp_path):
    rng = np.random.default_rng(0)
    address = rng.integers(0, 1000, (5000, 32)) * 16
    address[:, 5] = -1
    address[17] = -1
    path = tmp_path / "address.npy"
    np.save(path, address)
    (totals,) = counted(path, "--op", "ld.shared.v4.b32")
    lines = []
    for row in address:
        active = sum(1 << int(lane) for lane in np.flatnonzero(row >= 0))
        lines.append(record(op="load", bytes=16, active=f"{active:#x}", byte_address=row.tolist()))
    singly = counted("-", given=b"".join(lines))
    for key in ("wavefronts", "ideal", "excess", "bank_conflicts"):
        assert totals[key] == sum(one[key] for one in singly)
    np.save(path, np.asfortranarray(address))
    asked = (path, "--op", "load", "--bytes", "16")
    assert {**counted(*asked)[0], "op": "ld.shared.v4.b32"} == totals == {**totals, "instructions": 5000}
    assert f"{totals['wavefronts']:,}" in layoutopt(*asked)[0]


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
    np.save(tmp_path / "address.npy", table)
    assert message in said(tmp_path / "address.npy", "--op", "ld.shared.b32")


def test_wrong_usage(tmp_path):
    path, half = tmp_path / "address.npy", tmp_path / "half.npy"
    np.save(path, np.array([ADDRESSES]))
    half.write_bytes(path.read_bytes()[:200])
    for arguments, message in (
        ((path,), "needs --op"),
        ((RECORDS, "--op", "load"), "--op and --bytes go with a .npy table"),
        ((tmp_path / "none",), "cannot read"),
        ((RECORDS, "--target", "sm_1"), "unknown target 'sm_1'"),
        ((half, "--op", "ld.shared.b32"), "is no whole .npy file"),
    ):
        assert message in layoutopt(*arguments, code=2)[1]
    assert "not a whole gzip file" in layoutopt("-", given=RECORDS.read_bytes()[:5000], code=2)[1]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's peak of memory")
def test_memory_stays_flat(tmp_path):
    """The peak does not grow with the input: tables of 8 and 64 MiB, lines of 3 and 26 MB."""
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
        (tmp_path / f"{name}.jsonl").write_bytes(record() * (rows // 2))
    op = ("--op", "ld.shared.b32")
    assert peak_mib(tmp_path / "large.npy", *op) < peak_mib(tmp_path / "small.npy", *op) + 24
    large, small = (peak_mib(tmp_path / f"{name}.jsonl", "--json") for name in ("large", "small"))
    assert large < small + 16


def targets(*arguments, code=0):
    done = command.layoutopt("targets", *arguments, warn="default")
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_a_device_of_the_users(tmp_path):
    rule = {"ops": ["load"], "bytes": [4], "phase": 8, "confidence": "measured", "source": "a bench"}
    gpu = {"name": "xpu", "title": "X", "lanes": 8, "banks": 4, "bank_bytes": 4, "instructions": [rule]}
    path = saved(tmp_path, "xpu.json", {"devices": [gpu]})
    given = record(op="load", bytes=4, active="0xff", byte_address=ADDRESSES[:8])
    expected = {"op": "load", "wavefronts": 2, "ideal": 2, "excess": 0, "bank_conflicts": 1}
    for options in ((), ("--target", "XPU")):
        assert counted("-", "--device-file", path, *options, given=given) == [expected]
    assert "xpu " in targets("--device-file", path)
    assert "load 4 bytes: 1 phase of 8 lanes" in targets("xpu", "--device-file", path)
    wrong = saved(tmp_path, "wrong.json", {"devices": [{**gpu, "lanes": 9}]})
    assert "devices[0].lanes: must be a power of two" in targets("--device-file", wrong, code=2)


def test_a_disputed_rule_warns_once():
    line = record(op="ds_read_b32", active=None, byte_address=list(range(0, 256, 4)))
    out, error = layoutopt("-", "--json", "--target", "mi355x", given=line * 9000)
    assert (out.count("\n"), error.count("\n")) == (9000, 1)
    assert error.startswith("warning: the rule for load of 4 bytes on gfx950 is disputed")


def test_targets_as_data_and_as_pictures():
    """The list, and the picture of sm_90, are in docs/commands/targets.md."""
    names = {t["name"] for t in json.loads(targets("--json"))["targets"]}
    assert {"sm_10", "sm_90", "gfx9", "gfx950", "gfx1201"} <= names
    shown = targets("MI300X")
    assert "0000222244446666222200006666444411113333555577773333111177775555" in shown
    assert "measured by others: nod-ai/amd-shark-ai" in shown
    data = json.loads(targets("h100", "--json"))
    wide = next(i for i in data["instructions"] if {"op": "load", "bytes": 16} in i["instructions"])
    assert wide["phases"][1] == list(range(8, 16))
    assert (wide["merge"], wide["count"], wide["confidence"]) == ("pairs", "words", "measured")
    assert "unknown target" in targets("sm_9", code=2)
