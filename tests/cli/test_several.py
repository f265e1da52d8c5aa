"""Several inputs of one command: files, folders, lines, templates."""

import errno
import io
import json
import os

import pytest
from command import layoutopt, refused
from test_cli import DIAGONALS, ROOT, TRANSPOSE
from written import data_of

from layoutopt.files import inputs

SMALL = ROOT / "problems" / "basics" / "transpose_16x32_f32.json"
TEMPLATE = data_of(
    """Nx32 f32, 32 threads; published 4224 x0*33 + x1
    columns: load 4 [tid % N, i]; i<32""",
    name="columns {N}",
    params={"N": [16, 32]},
)


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_answer_each_in_order_and_a_wrong_one_stops_nothing(tmp_path):
    (tmp_path / "wrong.json").write_text('{"name": 1}')
    done = layoutopt("solve", SMALL, tmp_path / "wrong.json", TRANSPOSE, "transpose_16x32_f32", "--json")
    assert done.returncode == 2
    assert [r["problem"] for r in lines(done)] == [
        "transpose_16x32_f32", "transpose_32x32_f32", "transpose_16x32_f32",
    ]  # fmt: skip
    assert done.stdout.splitlines()[0] == layoutopt("solve", SMALL, "--json").stdout.strip()
    wrong, summary = done.stderr.splitlines()
    assert wrong.startswith(f"error: {tmp_path / 'wrong.json'}: ")
    assert summary == "4 problems: 3 without conflicts, 1 wrong"


def test_folders_lines_and_standard_input(tmp_path):
    text = SMALL.read_text()
    one_line = json.dumps(json.loads(text))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.json").write_text(text)
    (tmp_path / "in" / "a.jsonl").write_text(f"{one_line}\n\n{{\n{one_line}\n")
    done = layoutopt("solve", tmp_path / "in", "-", "--json", input=text)
    assert done.returncode == 2
    assert len({r["offset"] for r in lines(done)}) == 1
    assert len(lines(done)) == 4
    assert "a.jsonl, line 3: not JSON" in done.stderr
    done = layoutopt("check", "-", "--json", "--no-fix", input=f"{one_line}\nno\n{one_line}\n")
    assert (done.returncode, len(lines(done))) == (2, 2)
    done = layoutopt("check", "-", "--json", "--no-fix", input=f"no\n{one_line}\n{one_line}\n")
    assert (done.returncode, len(lines(done))) == (2, 2)
    assert "-, line 1" in done.stderr
    assert layoutopt("solve", "-", input=text).stdout == layoutopt("solve", SMALL).stdout
    (tmp_path / "empty").mkdir()
    assert "no problem file" in layoutopt("solve", tmp_path / "empty").stderr


def test_a_folder_inside_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.json").write_bytes(SMALL.read_bytes())
    scandir = os.scandir

    def refusing(path):
        if str(path).endswith("locked"):  # by hand: to root, every folder is open
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    good, locked = inputs.inputs([tmp_path])
    assert good.error is None
    assert str(tmp_path / "locked") in str(locked.error)


@pytest.mark.parametrize("path", ["loop", "loop/inside", "x" * 5000])
def test_what_cannot_be_reached_is_not_called_missing(tmp_path, path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for arguments in (["solve", path], ["problems", path], ["new", "transpose", "-o", path]):
        done = layoutopt(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(
            f"error: cannot {'write' if '-o' in arguments else 'read'} '{path[:99]}"
        )
    (found,) = inputs.inputs([path if path[0] == "x" else tmp_path / path])
    assert "cannot read" in str(found.error)


def test_templates_and_over(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(TEMPLATE))
    done = layoutopt("solve", tmp_path / "t.json", "--json")
    assert [r["problem"] for r in lines(done)] == ["columns 16", "columns 32"]
    done = layoutopt("check", tmp_path / "t.json", "--over", "N=8,16,64", "--json")
    assert [r["problem"] for r in lines(done)] == ["columns 8", "columns 16", "columns 64"]
    done = layoutopt("compare", tmp_path / "t.json", "--over", "N=8", "--json")
    assert lines(done)[0]["problem"] == "columns 8"
    assert done.stderr == ""
    refused("params.M: no field", "solve", SMALL, "--over", "M=1")
    refused("N=a", "solve", tmp_path / "t.json", "--over", "N=a", "--json")
    for text in ("N", "N=", "=1"):
        assert layoutopt("solve", tmp_path / "t.json", "--over", text).returncode == 2


def test_reports_and_summary_for_people():
    done = layoutopt("solve", SMALL, DIAGONALS, "--conflict-free", "--time-limit", "60")
    assert done.returncode == 1
    assert done.stdout.endswith("\n\n2 problems: 1 without conflicts, 1 with conflicts or infeasible\n")
    assert done.stderr == ""


@pytest.mark.parametrize(
    "option", [("solve", "--table"), ("solve", "--code"), ("solve", "--certificate"), ("compare", "--plot")]
)
def test_a_file_holds_the_answer_to_one_problem(tmp_path, option):
    refused(
        "one problem is expected, and there are several",
        option[0],
        SMALL,
        SMALL,
        option[1],
        tmp_path / "out.svg",
    )
    assert not list(tmp_path.iterdir())


class Endless:
    """A stream of one line without end."""

    def readline(self, size):
        return b"\0" * size

    read = readline


@pytest.mark.parametrize("lines", [False, True])
def test_a_line_without_end_is_an_error(lines):
    (found,) = inputs._of_stream(Endless(), "-", None, lines=lines)
    assert "a problem file has at most" in found.error.reason


def test_lines_behind_a_wrong_one_are_whole_however_many():
    row = json.dumps({**TEMPLATE, "params": {"N": [16]}, "notes": "n" * (1 << 20)}).encode() + b"\n"
    found = list(inputs.inputs(["-"], None, io.BytesIO(b"no\n" + 10 * row)))
    assert [item.error is None for item in found] == [False, *[True] * 10]
    assert found[-1].source == "-, line 11"


def test_a_problem_on_several_lines_is_one_error():
    """Lines of it that are JSON by themselves are no problems."""
    text = json.dumps(TEMPLATE, indent=1).replace('"tile"', '"tile" wrong', 1)
    (found,) = inputs.inputs(["-"], None, io.BytesIO(text.encode()))
    assert "not JSON" in found.error.reason
