"""The command line from the outside: outputs, exit codes, interruption."""

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import COMMAND, ENVIRONMENT, layoutopt, refused
from conftest import ROOT

from layoutopt.cli.output import LatestProgress

TRANSPOSE = ROOT / "problems" / "basics" / "transpose_32x32_f32.json"
DIAGONALS = ROOT / "problems" / "basics" / "diagonals_32x32_f32.json"


def test_human_report_ends_in_code():
    done = layoutopt("solve", TRANSPOSE)
    assert done.returncode == 0
    assert done.stderr == ""
    for part in (
        "offset     x0*32 + (x1 ^ x0)",
        "4,096 used",
        "columns  load           32     32               0",
        "every layout",
        "__host__ __device__ constexpr uint32_t transpose_32x32_f32_offset_bytes(uint32_t x0, uint32_t x1)",
    ):
        assert part in done.stdout
    assert max(map(len, done.stdout.split("\n\n//")[0].splitlines())) <= 100


def test_json_table_and_code(tmp_path):
    done = layoutopt(
        "solve", TRANSPOSE, "--json", "--table", tmp_path / "t.npy", "--code", tmp_path / "t.cuh"
    )
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert next(iter(result)) == "schema"
    assert result["schema"] == "layoutopt.result/1"
    got = result["problem"], result["target"], result["status"]
    assert got == ("transpose_32x32_f32", "sm_90", "optimal")
    assert (result["bytes"], result["declared_bytes"], result["alignment_bytes"]) == (4096, 4096, 128)
    assert result["excess"] == 0
    assert result["accesses"][0] == {
        "name": "rows", "op": "store", "wavefronts": 32, "ideal": 32, "excess": 0, "bank_conflicts": 0,
    }  # fmt: skip
    assert result["proof"]["excess"] == {"lower_bound": 0, "scope": "every layout"}
    assert result["proof"]["bytes"] == {"lower_bound": 4096, "scope": "every layout"}
    table = np.load(tmp_path / "t.npy")
    assert (table.dtype, table.shape) == (np.int64, (32, 32))
    rows, columns = np.indices((32, 32))
    assert (table == 4 * (rows * 32 + (columns ^ rows))).all()
    assert "constexpr uint32_t transpose_32x32_f32_offset_bytes" in (tmp_path / "t.cuh").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.cuh", "t.npy"]


def test_the_result_rebuilds_the_layout(tmp_path):
    import msgspec

    from layoutopt import Layout

    problem = ROOT / "problems" / "ggml" / "flash_attention_tile_k_d112.json"
    done = layoutopt("solve", problem, "--json", "--table", tmp_path / "t.npy")
    layout = msgspec.convert(json.loads(done.stdout)["layout"], Layout)
    assert (layout.table() == np.load(tmp_path / "t.npy")).all()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("solve", TRANSPOSE, "--families", "none"), 1),
        (("solve", TRANSPOSE, "--families", "none", "--conflict-free"), 1),
        (("solve", TRANSPOSE, "--families", "none,pad", "--conflict-free"), 0),
        (("solve", TRANSPOSE, "--families", "xro"), 2),
        (("solve", TRANSPOSE, "--time-limit", "0"), 2),
        (("solve", TRANSPOSE, "--time-limit", "soon"), 2),
        (("solve", TRANSPOSE, "--workers", "0"), 2),
        (("solve",), 2),
        (("sovle", TRANSPOSE), 2),
        (("solve", "nothing.json"), 2),
        (("solve", DIAGONALS, "--conflict-free", "--time-limit", "0.000001"), 3),
        (("--version",), 0),
        (("--help",), 0),
        (("solve", "--help"), 0),
    ],
)
def test_exit_codes(arguments, code):
    done = layoutopt(*arguments)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 2:
        assert done.stdout == ""
        assert done.stderr.strip()


def test_families_only_narrow_what_the_file_allows():
    tile = ROOT / "problems" / "cuda_samples" / "tensorcore_gemm_f16.json"
    refused("allows only none, pad", "solve", tile, "--families", "xor")


def test_infeasible_is_an_answer(problem_file):
    path = problem_file(layout={"max_bytes": 255})
    done = layoutopt("solve", path, "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["status"] == "infeasible"
    assert "the elements alone need 256 bytes" in result["reason"]
    assert result["layout"] is None


def test_outputs_are_all_or_none(tmp_path):
    folder, code = tmp_path / "folder", tmp_path / "tile.cuh"
    folder.mkdir()
    for table in (folder, tmp_path / "no" / "such" / "t.npy"):
        refused("cannot write", "solve", TRANSPOSE, "--code", code, "--table", table)
    assert list(tmp_path.iterdir()) == [folder]


def test_outputs_overwrite_neither_each_other_nor_the_problem(problem_file, tmp_path):
    path, out = problem_file(), tmp_path / "out"
    before = path.read_bytes()
    for arguments in (("--code", path), ("--table", path), ("--code", out, "--table", out)):
        refused("would overwrite", "solve", path, *arguments)
    assert path.read_bytes() == before
    assert not out.exists()


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


def test_a_loop_of_links_is_one_line(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for command in (("solve", TRANSPOSE, "--code", loop), ("new", "blank", "-o", loop)):
        done = layoutopt(*command)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert loop.is_symlink()


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    assert layoutopt("emit", TRANSPOSE, "-o", pipe).returncode == 0
    assert "offset_bytes" in reader.communicate(timeout=30)[0]
    assert pipe.is_fifo()


def test_what_cannot_be_written_to_changes_no_file(tmp_path, monkeypatch):
    code, table = tmp_path / "tile.cuh", tmp_path / "socket"
    code.write_text("old")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
    refused("cannot write", "solve", TRANSPOSE, "--code", code, "--table", table)
    assert code.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["socket", "tile.cuh"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc on this system")
def test_standard_output_keeps_what_it_has(tmp_path):
    log, stream = tmp_path / "log", tmp_path / "stream"
    log.write_text("before\n")
    stream.symlink_to("/proc/self/fd/1")
    for output in ("-", stream):
        with log.open("a") as file:
            subprocess.run(
                [*COMMAND, "new", "blank", "-o", str(output)],
                stdout=file,
                stderr=subprocess.DEVNULL,
                env=ENVIRONMENT,
                cwd=tmp_path,
                check=True,
            )
    text = log.read_text()
    assert text.startswith("before\n")
    assert text.count('"name": "blank"') == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "stream"]


def test_standard_output_is_refused_where_the_answer_goes(tmp_path):
    for arguments in (("solve", TRANSPOSE, "--code"), ("show", TRANSPOSE, "--svg")):
        refused("standard output (-) has the answer", *arguments, "-", cwd=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "solve", str(TRANSPOSE), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
    assert done.returncode == 2
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_a_time_limit_is_what_a_person_waits():
    from layoutopt.cli.commands import COMMANDS, main

    limits = {}
    for known in COMMANDS:
        command = main.get_command(None, known.name)
        for each in getattr(command, "commands", {"": command}).values():
            for option in each.params:
                if "--time-limit" in option.opts:
                    limits[known.name] = option.default
    assert {"solve", "compare", "check", "explain", "show", "emit", "run", "sweep", "patch"} <= set(limits)
    assert set(limits.values()) == {10.0}


def test_what_is_not_proved_says_both_numbers_and_the_time():
    done = layoutopt("solve", DIAGONALS, "--time-limit", "0.5")
    pattern = (
        r"feasible after \d+\.\d s: (\d+) excess wavefronts found, (\d+) proved to be needed; not proved best"
    )
    found, bound = re.search(pattern, done.stdout).groups()
    assert int(found) > int(bound)
    assert "stopped before the proof was complete, by the time limit" in done.stdout


def test_time_limit_gives_the_best_so_far():
    done = layoutopt("solve", DIAGONALS, "--json", "--time-limit", "1")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["status"] == "feasible"
    assert result["reason"]
    assert result["excess"] == sum(a["excess"] for a in result["accesses"]) > 0
    assert result["proof"]["excess"]["lower_bound"] < result["excess"]


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
    assert json.loads(out)["status"] == "feasible"
    assert b"stopping with the best layout so far\r\n" in said
    assert re.search(
        rb"searching: \d+ of 10 s, best so far excess \d+ \(at least \d+\) in [\d,]+ bytes", said
    )


def test_a_terminal_that_takes_no_more_text_holds_no_search_up(monkeypatch):
    """The thread that searches writes nothing; who waits for it does."""
    written = []
    monkeypatch.setattr(
        "layoutopt.cli.output.progress", lambda what: lambda text: written.append((what, text))
    )
    shown = LatestProgress("searching")
    for k in range(1000):
        shown(str(k))
    assert not written
    shown.show()
    shown.show()
    assert written == [("searching", "999")]


@pytest.mark.parametrize(
    ("arguments", "said", "heavy"),
    [
        (["--help"], b"solve", ["numpy", "ortools", "sympy", "msgspec"]),
        (["solve", str(TRANSPOSE), "--json"], b"optimal", ["sympy", "pandas"]),
    ],
)
def test_what_a_command_does_not_need_is_not_loaded(arguments, said, heavy):
    probe = (
        f"import sys; sys.argv = ['layoutopt', *{arguments}]\n"
        "from layoutopt.cli.commands import main\n"
        "main(standalone_mode=False)\n"
        f"assert not set({heavy}) & set(sys.modules), set({heavy}) & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], check=True, env=ENVIRONMENT, capture_output=True)
    assert said in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this system")
def test_bash_completes_names_files_and_targets(tmp_path):
    """By the script that click prints for bash, called as bash calls it at a tab."""
    program = tmp_path / "layoutopt"
    program.write_text(f"#!{sys.executable}\nfrom layoutopt.cli import run\nrun()\n")
    program.chmod(0o755)
    (tmp_path / "transpose_3.json").touch()
    (tmp_path / "transpose_30").mkdir()
    here = {**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def complete(*words):
        script = (
            'source <(_LAYOUTOPT_COMPLETE=bash_source layoutopt); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
            'compopt() { echo "compopt $*"; }; _layoutopt_completion layoutopt; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        command = ["bash", "-c", script, "bash", "layoutopt", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=here, cwd=tmp_path, check=True)
        return done.stdout.split()

    for command in ("solve", "emit", "run", "show", "compare", "explain", "check"):
        found = complete(command, "transpose_3")
        assert found[0] == "transpose_32x32_f32"
        assert found[-2:] == ["transpose_3.json", "transpose_30/"]
    assert "awq/a_128x32_f16" in complete("show", "awq/a_1")
    assert complete("solve", "./tr") == ["compopt", "-o", "default"]
    assert complete("targets", "sm_9") == ["sm_90", "sm_90a"]
    assert complete("new", "gemm", "--target", "gfx94")[0] == "gfx942"
