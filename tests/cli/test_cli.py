"""The command line from the outside: outputs, exit codes, interruption, several inputs."""

import errno
import io
import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command import COMMAND, ENVIRONMENT, answer, layoutopt, python, refused, started
from conftest import ROOT
from written import data_of, lines_of, saved

from layoutopt.cli.commands import COMMANDS, main
from layoutopt.files import inputs

TRANSPOSE = ROOT / "problems" / "basics" / "transpose_32x32_f32.json"
DIAGONALS = ROOT / "problems" / "basics" / "diagonals_32x32_f32.json"


def test_json_table_and_code(tmp_path):
    result = answer("solve", TRANSPOSE, "--table", tmp_path / "t.npy", "--code", tmp_path / "t.cuh")
    assert next(iter(result)) == "schema"
    proved = {"lower_bound": 0, "scope": "every layout"}
    expected = {
        "schema": "layoutopt.result/1", "problem": "transpose_32x32_f32", "target": "sm_90", "status": "optimal",
        "bytes": 4096, "declared_bytes": 4096, "alignment_bytes": 128, "excess": 0,
    }  # fmt: skip
    assert result | expected == result
    assert (result["proof"]["excess"], result["proof"]["bytes"]) == (proved, proved | {"lower_bound": 4096})
    assert result["accesses"][0] == {
        "name": "rows", "op": "store", "wavefronts": 32, "ideal": 32, "excess": 0, "bank_conflicts": 0,
    }  # fmt: skip
    table = np.load(tmp_path / "t.npy")
    assert (table.dtype, table.shape) == (np.int64, (32, 32))
    rows, columns = np.indices((32, 32))
    assert (table == 4 * (rows * 32 + (columns ^ rows))).all()
    assert "constexpr uint32_t transpose_32x32_f32_offset_bytes" in (tmp_path / "t.cuh").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.cuh", "t.npy"]


SEVERAL = "one problem is expected, and there are several"
NO_TIME = "expected seconds above 0"
NO_FOLDER = "expected the name of a file, got the folder 'new/'"
NO_NAME = "expected the name of a file or folder, got ''"
# What is asked, and what is said of it.
REFUSED = {
    "solve TILE --families xro": "unknown family",
    "solve TILE --families xro -o answer": "unknown family",
    "solve tensorcore_gemm_f16 --families xor": "allows only none, pad",
    **{f"solve TILE --time-limit {limit}": NO_TIME for limit in ("1e300", "inf", "nan", "-0.0", "0", "-1")},
    f"solve TILE --time-limit {10**20 - 1}": NO_TIME,
    "solve TILE --workers 0": "workers",
    "solve": "Missing argument 'PROBLEMS...'",
    "solve TILE --time-limit soon": "'soon' is not a valid float",
    "sovle TILE": "No such command 'sovle'. Did you mean 'solve'? (try",
    "import cuet": "No such command 'cuet'. Did you mean 'cute'? (try",
    "solve nothing.json": "nothing.json",
    "solve no/such -q": "no file and no problem",
    "solve TILE --code -": "standard output (-) has the answer",
    "show TILE --svg -": "standard output (-) has the answer",
    **{f"solve TILE TILE --{option} out.svg": SEVERAL for option in ("table", "code", "certificate")},
    "compare TILE --json --format csv": "--json and --format csv are forms of one answer",
    "solve TILE --over M=1": "params.M: no field",
    **dict.fromkeys(
        ("solve ''", "solve TILE --code ''", "new blank -o ''", "import ttgir p.json -o ''"), NO_NAME
    ),
    **dict.fromkeys(("solve TILE --code new/", "new blank -o new/", "sweep TILE -o new/"), NO_FOLDER),
}


@pytest.mark.parametrize("asked", REFUSED)
def test_wrong_use_is_said_and_leaves_nothing(asked, tmp_path):
    refused(REFUSED[asked], *shlex.split(asked.replace("TILE", str(TRANSPOSE))), cwd=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ("solve transpose_32x32_f32 --families none", 1),
        ("solve transpose_32x32_f32 --families none --conflict-free", 1),
        ("solve transpose_32x32_f32 --families none,pad --conflict-free", 0),
        ("solve diagonals_32x32_f32 --conflict-free --time-limit 0.000001", 3),
        ("--version", 0),
        ("--help", 0),
        ("solve --help", 0),
    ],
)
def test_exit_codes(asked, code):
    done = layoutopt(*asked.split())
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


def test_infeasible_is_an_answer(tmp_path):
    result = answer("solve", saved(tmp_path, "tile.json", lines_of(8, max_bytes=255)))
    assert (result["status"], result["layout"]) == ("infeasible", None)
    assert "the elements alone need 256 bytes" in result["reason"]


def test_outputs_are_all_or_none(tmp_path, monkeypatch):
    code = tmp_path / "tile.cuh"
    code.write_text("old")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
    for table in ("folder", "no/such/t.npy", "socket"):
        refused("cannot write", "solve", TRANSPOSE, "--code", code, "--table", tmp_path / table)
    assert code.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "socket", "tile.cuh"]


def test_outputs_follow_links_and_keep_the_mode(tmp_path):
    target, link = tmp_path / "there" / "t.cuh", tmp_path / "link.cuh"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(Path("there", "t.cuh"))
    assert layoutopt("emit", TRANSPOSE, "-o", link).returncode == 0
    assert link.is_symlink()
    assert "offset_bytes" in target.read_text()
    assert target.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in target.parent.iterdir()] == ["t.cuh"]
    new = tmp_path / "dangling"
    new.symlink_to("new.json")
    assert layoutopt("new", "blank", "-o", new).returncode == 0
    assert json.loads((tmp_path / "new.json").read_text())["name"] == "blank"
    refused("exists already", "new", "blank", "-o", new)


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    assert layoutopt("emit", TRANSPOSE, "-o", pipe).returncode == 0
    assert "offset_bytes" in reader.communicate(timeout=30)[0]
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc on this system")
def test_standard_output_keeps_what_it_has(tmp_path):
    log, stream = tmp_path / "log", tmp_path / "stream"
    log.write_text("before\n")
    stream.symlink_to("/proc/self/fd/1")
    for output in ("-", stream):
        with log.open("a") as file:
            to = {"capture_output": False, "stdout": file, "stderr": subprocess.DEVNULL}
            done = started("new", "blank", "-o", output, **to)
        assert done.returncode == 0
    text = log.read_text()
    assert text.startswith("before\n")
    assert text.count('"name": "blank"') == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "stream"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    ("stream", "arguments", "code", "said"),
    [
        (
            "stdout",
            ("solve", TRANSPOSE, "--json"),
            2,
            "error: cannot write the output: No space left on device\n",
        ),
        ("stderr", ("solve", "no/such"), 2, None),
        ("stderr", ("new", "blank", "-o", "o"), 0, None),
    ],
)
def test_a_full_disk_is_one_line_and_changes_no_exit_code(stream, arguments, code, said, tmp_path):
    with open("/dev/full", "w") as full:
        streams = {"stderr": subprocess.PIPE, stream: full}
        done = started(*arguments, capture_output=False, cwd=tmp_path, **streams)
    assert (done.returncode, done.stderr) == (code, said)


def test_a_time_limit_is_what_a_person_waits():
    limits = {}
    for known in COMMANDS:
        command = main.get_command(None, known.name)
        for each in getattr(command, "commands", {"": command}).values():
            for option in each.params:
                if "--time-limit" in option.opts:
                    limits[known.name] = option.default
    assert {"solve", "compare", "check", "explain", "show", "emit", "run", "sweep", "patch"} <= set(limits)
    assert [limits.pop(name) for name in ("fix", "patch")] == [60.0, 60.0]  # they compile what they try
    assert set(limits.values()) == {10.0}


def test_what_is_not_proved_says_both_numbers_and_the_time():
    done = layoutopt("solve", DIAGONALS, "--time-limit", "0.5")
    assert done.returncode == 1
    pattern = r"feasible after \d+\.\d s: (\d+) excess wavefronts found, (\d+) proved to be needed; "
    found, bound = re.search(pattern, done.stdout).groups()
    assert int(found) > int(bound)
    assert "stopped before the proof was complete, by the time limit" in done.stdout


@pytest.mark.parametrize(
    "name", ["flash_attention_tile_k_d112", "tc_gnn_sddmm_x_16x8_tf32", "halo_34x34_f32"]
)
def test_workers_and_repetition_change_no_byte(name, tmp_path):
    (path,) = [p for p in (ROOT / "problems").rglob("*.json") if p.stem == name]
    seen = set()
    for k, workers in enumerate(("1", "1", "2")):
        table, code = tmp_path / f"{k}.npy", tmp_path / f"{k}.cuh"
        done = layoutopt(
            *("solve", path, "--json", "--time-limit", "120"),
            *("--workers", workers, "--table", table, "--code", code),
        )
        seen.add((done.stdout, table.read_bytes(), code.read_bytes()))
    assert len(seen) == 1


def test_interrupt_gives_the_best_so_far():
    """Interrupted as soon as it says on a terminal that it searches; alone it would search for a minute."""
    terminal, stderr = pty.openpty()
    running = subprocess.Popen(
        [*COMMAND, "solve", str(DIAGONALS), "--json"], stdout=subprocess.PIPE, stderr=stderr, env=ENVIRONMENT
    )
    os.close(stderr)
    said = b""
    while b"searching: " not in said:
        said += os.read(terminal, 1024)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate()
    said += os.read(terminal, 1 << 16)
    os.close(terminal)
    assert running.returncode == 1
    result = json.loads(out)
    assert (result["status"], result["reason"] != "") == ("feasible", True)
    assert result["excess"] == sum(a["excess"] for a in result["accesses"]) > 0
    assert b"stopping with the best layout so far\r\n" in said
    assert re.search(rb"searching: \d+ of 10 s, best so far excess \d+ \(at least \d+\) in [\d,]+ b", said)


@pytest.mark.parametrize(
    ("arguments", "said", "heavy"),
    [
        (["--help"], "solve", ["numpy", "ortools", "sympy", "msgspec"]),
        (["solve", str(TRANSPOSE), "--json"], "optimal", ["sympy", "pandas"]),
    ],
)
def test_what_a_command_does_not_need_is_not_loaded(arguments, said, heavy):
    probe = (
        "import sys; from layoutopt.cli.commands import main\nmain(standalone_mode=False)\n"
        f"assert not set({heavy}) & set(sys.modules), set({heavy}) & set(sys.modules)"
    )
    done = started(*arguments, code=probe)
    assert (done.returncode, said in done.stdout) == (0, True), done.stderr


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
    piped, named = layoutopt("solve", "-", input=text).stdout, layoutopt("solve", SMALL).stdout
    assert named.startswith(piped)
    assert "next: --code tile.cuh" in named.removeprefix(piped)
    assert f"layoutopt compare {SMALL}" in named
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
        what = "write" if "-o" in arguments else "read"
        assert done.stderr.startswith(f"error: cannot {what} '{path[:99]}")
    (found,) = inputs.inputs([path if path[0] == "x" else tmp_path / path])
    assert "cannot read" in str(found.error)


def test_templates_and_over(tmp_path):
    path = saved(tmp_path, "t.json", TEMPLATE)
    for asked, sizes in ((("solve",), (16, 32)), (("check", "--over", "N=8,16,64"), (8, 16, 64))):
        done = layoutopt(*asked, path, "--json")
        assert [r["problem"] for r in lines(done)] == [f"columns {size}" for size in sizes]
    done = layoutopt("compare", path, "--over", "N=8", "--json")
    assert (lines(done)[0]["problem"], done.stderr) == ("columns 8", "")
    for text in ("N", "N=", "=1", "N=a"):
        refused(text, "solve", path, "--over", text)


def test_reports_and_summary_for_people():
    done = layoutopt("solve", SMALL, "tc_gnn_sddmm_x_16x8_tf32", "--conflict-free")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith("\n\n2 problems: 1 without conflicts, 1 with conflicts or infeasible\n")


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
    found = list(inputs.inputs([io.BytesIO(b"no\n" + 10 * row)]))
    assert [item.error is None for item in found] == [False, *[True] * 10]
    assert found[-1].source == "-, line 11"


def test_a_problem_on_several_lines_is_one_error():
    """Lines of it that are JSON by themselves are no problems."""
    text = json.dumps(TEMPLATE, indent=1).replace('"tile"', '"tile" wrong', 1)
    (found,) = inputs.inputs([io.BytesIO(text.encode())])
    assert "not JSON" in found.error.reason


@pytest.mark.parametrize("name", [command.name for command in COMMANDS if command.name != "import"])
def test_every_command_has_its_options(name):
    said = layoutopt(name, "--help").stdout
    assert all(option in said for option in ("-q, --quiet", "-v, --verbose"))
    assert ("\n  --json " in said) == ("--format [text|json" in said)
    assert "-o, --" in said
    assert "[PROBLEM" not in said.partition("Options")[2]


ANSWERS = [
    ("solve", SMALL), ("solve", SMALL, "--json"), ("compare", SMALL), ("check", SMALL, "--no-fix"),
    ("show", SMALL), ("targets", "sm_90"), ("problems", SMALL), ("schema", "solve"),
    ("count", ROOT / "tests/data/h200_wavefronts.jsonl.gz"),
]  # fmt: skip


@pytest.mark.parametrize("asked", ANSWERS, ids=lambda asked: " ".join(map(str, asked[::2])))
def test_what_is_printed_goes_into_a_file(asked, tmp_path):
    file = tmp_path / "answer"
    printed, written = layoutopt(*asked), layoutopt(*asked, "-o", file)
    assert (written.returncode, written.stdout, written.stderr) == (printed.returncode, "", "")
    assert file.read_text() == printed.stdout != ""
    assert layoutopt(*asked, "-o", "-").stdout == printed.stdout


def test_forms_of_an_answer():
    for form, same in (("solve", "json"), ("compare", "markdown")):
        said = layoutopt(form, SMALL, "--format", same).stdout
        assert said == layoutopt(form, SMALL, f"--{same}").stdout != ""
    for spelling in ("--minimise", "--minimize"):
        assert answer("solve", SMALL, spelling, "time")["family"] == "pad"


def test_the_log_is_on_stderr(tmp_path):
    made = [layoutopt("new", "blank", "-o", tmp_path / f"{len(k)}", *k).stderr for k in ((), ("-q",))]
    assert (made[0].startswith("wrote"), made[1]) == (True, "")
    searched = layoutopt("solve", DIAGONALS, "-v", "--time-limit", "1", "--json")
    assert json.loads(searched.stdout)["excess"] > 0
    assert re.search(r"^searching: best so far excess \d+ ", searched.stderr, re.MULTILINE)


def test_help_of_check_tells_kernels_and_tiles_apart():
    _, tiles, kernels, both = re.split(r"\nOptions[a-z ]*:\n", layoutopt("check", "--help").stdout)
    sections = {"--offset": tiles, "--block": kernels, "--baseline": kernels, "--json": both}
    for option, section in sections.items():
        assert re.search(rf"^  .*{option}", section, re.MULTILINE)


def test_python_runs_the_package_as_a_module():
    assert python("-m", "layoutopt", "targets").stdout == layoutopt("targets").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete(shell):
    """What the documented line gives the shell, and what the shell then asks."""

    def asked(how, word):
        words = {"COMP_WORDS": f"layoutopt {word}", "COMP_CWORD": word if shell == "fish" else "1"}
        env = {**ENVIRONMENT, "_LAYOUTOPT_COMPLETE": f"{shell}_{how}", **words}
        return started(code=f"import sys; sys.argv[0] = 'layoutopt'; {COMMAND[-1]}", env=env).stdout

    assert "_layoutopt_completion" in asked("source", "")
    assert "solve" in asked("complete", "so")
    assert "check" not in asked("complete", "so")
