"""What commands write, and how they end: no input is eaten, no part of an answer stays, no traceback."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from command import COMMAND, ENVIRONMENT, layoutopt, python, started
from conftest import ROOT

from layoutopt.cli import files
from layoutopt.cli.commands import COMMANDS, main
from layoutopt.errors import ProblemFileError

PROBLEM = ROOT / "problems" / "basics" / "transpose_16x32_f32.json"
RUN = COMMAND[-1]


def call(*arguments):
    return main(list(map(str, arguments)), standalone_mode=False)


def test_every_command_is_listed_once_with_its_module():
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)
    folder = {path.stem for path in (ROOT / "layoutopt" / "cli").glob("*.py")}
    assert {command.module for command in COMMANDS} <= folder
    for name in names:
        found = main.get_command(None, name)
        assert found.name == name
        for one in found.commands.values() if hasattr(found, "commands") else [found]:
            if any(isinstance(param.type, files.OutputPath) for param in one.params):
                assert isinstance(one, files.FileCommand)


@pytest.fixture
def inputs(tmp_path):
    problem, result, devices, table = (tmp_path / n for n in ("p.json", "r.json", "d.json", "t.npy"))
    problem.write_bytes(PROBLEM.read_bytes())
    result.write_text("{}")
    devices.write_bytes((ROOT / "layoutopt" / "hardware" / "devices.json").read_bytes())
    np.save(table, np.zeros((16, 32), np.int64))
    (tmp_path / "hard").hardlink_to(problem)
    (tmp_path / "soft").symlink_to(problem)
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "p.json").write_bytes(PROBLEM.read_bytes())
    (tmp_path / "k.ptx").write_bytes((ROOT / "tests/data/kernels/transpose_plain.ptx").read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        "solve p.json -o p.json",
        "solve p.json --table p.json",
        "solve p.json --table hard",
        "solve p.json --code soft",
        "solve p.json --device-file d.json --table d.json",
        "solve p.json --table o --code ./o",
        "solve p.json --certificate d.json --device-file d.json",
        "solve transpose_16x32_f32 --code CATALOGUE",
        "emit r.json --problem p.json -o p.json",
        "emit r.json --problem p.json -o r.json",
        "show p.json --svg o --html o",
        "show p.json --device-file d.json --html d.json",
        "show p.json --svg soft.svg",
        "import trace r.json --tile 2 --element f32 --threads 32 --table t.npy -o t.npy",
        "import triton @r.json --tile 2x2 --element f32 --into r.json",
        "solve folder --table folder/inner/p.json",
        "sweep folder -o s.sqlite --export folder/inner/p.json",
        "sweep p.json -o s.sqlite --scheduler r.json --export r.json",
        "patch k.ptx --block 32 --data 0=t.npy -o t.npy",
    ],
)
def test_no_output_is_an_input_or_another_output(arguments, inputs, monkeypatch):
    monkeypatch.chdir(inputs)
    (inputs / "soft.svg").symlink_to("p.json")
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    with pytest.raises(ProblemFileError, match="would overwrite"):
        call(*(str(PROBLEM) if word == "CATALOGUE" else word for word in arguments.split()))
    assert {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()} == before


def test_what_standard_input_reads_is_an_input(inputs):
    with open(inputs / "p.json") as stdin:
        done = started("solve", "-", "--code", "hard", cwd=inputs, stdin=stdin)
    assert done.returncode == 2
    assert done.stderr == "error: --code would overwrite the problems, 'hard'\n"
    assert (inputs / "p.json").read_bytes() == PROBLEM.read_bytes()


@pytest.mark.nvcc
def test_a_file_in_a_folder_that_is_written_to_may_be_an_input(inputs, monkeypatch):
    """The kernel's array is called `tile`, so that its problem would take the place of the kernel."""
    monkeypatch.chdir(inputs)
    kernel = (inputs / "k.ptx").rename(inputs / "tile.json")
    before = kernel.read_bytes()
    launch = ["--block", "32,8", "--grid", "2,2", "--arg", "2=64"]
    with pytest.raises(ProblemFileError, match="would overwrite the kernel"):
        call("import", "kernel", "tile.json", *launch, "-o", ".")
    assert kernel.read_bytes() == before


@pytest.mark.parametrize("asked", ["check /dev/stdin --no-fix", "emit /dev/stdin --lang c"])
def test_a_pipe_is_read_once(asked):
    """As the shell hands over what `<(...)` prints."""
    done = started(*asked.split(), input=PROBLEM.read_text())
    assert (done.returncode < 2, done.stderr) == (True, "")


def test_an_export_of_a_sweep_is_written_whole_or_not_at_all(tmp_path):
    store = tmp_path / "s.sqlite"
    call("sweep", PROBLEM, "-o", store, "--workers", 1)
    with pytest.raises(ProblemFileError, match="cannot write"):
        call("sweep", "--report", store, "--export", tmp_path / "no" / "o.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["s.sqlite"]
    with open(tmp_path / "o.csv", "w") as out:  # the report follows what is exported
        exported = ("sweep", "--report", "s.sqlite", "--export", "o.csv")
        started(*exported, capture_output=False, stdout=out, cwd=tmp_path, check=True)
    lines = (tmp_path / "o.csv").read_text().splitlines()
    assert lines[0].startswith("name,target")
    assert lines[2].startswith("1 problems")


def test_the_longest_name_can_be_written(tmp_path):
    path = tmp_path / ("n" * 251 + ".npy")
    for data in (b"1", b"2"):
        files.write_all({path: data, tmp_path / "other": data})
        assert path.read_bytes() == data
    assert len(list(tmp_path.iterdir())) == 2


def of_lines(*body, before=()):
    """A program whose command is these lines."""
    first = ["import os, signal, sys", "from layoutopt.cli import files, process, run", *before]
    main = ["def main(standalone_mode):", *(f"    {line}" for line in body), "process.main = main", "run()"]
    return "\n".join([*first, *main])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_files_are_written_leaves_no_temporary_one(number, tmp_path):
    """It comes when the first file is written and the second is not."""
    before = (
        "from pathlib import Path",
        "write = files._write",
        "def stop(where, content):",
        "    if content == b'2': os.kill(os.getpid(), int(sys.argv[1]))",
        "    write(where, content)",
        "files._write = stop",
    )
    code = of_lines("files.write_all({Path('a'): b'1', Path('b'): b'2'})", before=before)
    done = started(int(number), code=code, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in done.stderr
    assert done.returncode == (130 if number == signal.SIGINT else -number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_library_makes_another_error_of(number):
    """As modules of C++ do while they are imported."""
    code = of_lines(
        "try: os.kill(os.getpid(), int(sys.argv[1]))",
        "except BaseException: raise ImportError('initialization failed')",
    )
    done = started(int(number), code=code)
    ended = (130, "interrupted\n") if number == signal.SIGINT else (-number, "")
    assert (done.returncode, done.stderr) == ended


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_give_no_traceback(streams, tmp_path):
    command = f'{sys.executable} -c "{RUN}" solve {PROBLEM} --json --table t.npy {streams}'
    how = {"capture_output": True, "text": True, "env": ENVIRONMENT, "cwd": tmp_path}
    done = subprocess.run(["sh", "-c", command], check=False, **how)
    assert (done.returncode, done.stderr) == (0, "")
    assert np.load(tmp_path / "t.npy").shape == (16, 32)


def test_a_compiler_leaves_nothing_when_it_is_ended(tmp_path):
    """A signal arrives while it runs, and while what it left is removed."""
    before = (
        "from layoutopt.ground import temporary",
        "from layoutopt.hardware.machine import ended",
        "script = 'sleep 60 & touch $TMPDIR/a; kill -INT $PPID; sleep 60'",
        "remove = temporary.shutil.rmtree",
        "def interrupted(*words, **options):",
        "    os.kill(os.getpid(), signal.SIGINT)",
        "    remove(*words, **options)",
        "temporary.shutil.rmtree = interrupted",
    )
    ending = "with temporary.temporary_folder() as folder: ended(['/bin/sh', '-c', script], folder)"
    code = of_lines(ending, before=before)
    done = started(code=code, env={**ENVIRONMENT, "TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_working_directory_that_was_removed(tmp_path):
    gone = tmp_path / "gone"
    code = f"import os; os.mkdir({str(gone)!r}); os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); {RUN}"
    for arguments in ("solve p.json", f"solve {PROBLEM} --table t.npy", "new blank -o x"):
        done = started(*arguments.split(), code=code)
        assert done.returncode == 2
        assert "the working directory was removed" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_an_interrupt_while_modules_are_imported():
    code = (
        "import sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n" + RUN
    )
    done = started("--help", code=code)
    assert (done.returncode, done.stderr) == (130, "")
    # Before that, nothing that takes time is imported.
    probe = "import sys; before = set(sys.modules); import layoutopt.cli; print(*set(sys.modules) - before)"
    done = python("-S", "-c", probe)
    assert set(done.stdout.split()) <= {"__future__", "layoutopt", "layoutopt.cli"}


def test_errors_are_one_visible_line(tmp_path):
    for name in ("\x1b]0;x\x07", "\u202egnp", "n" * 5000):
        for arguments in ((name,), ("solve", name), ("solve", PROBLEM, "--families", name)):
            done = layoutopt(*arguments, encoding="latin-1")
            assert done.returncode == 2
            assert all(line.isprintable() for line in done.stderr.splitlines())
            assert len(done.stderr) < 2000


def test_names_that_are_no_utf_8(tmp_path):
    """They go into results, stores and problem files as escapes; what a name of a problem cannot be is said."""
    name = os.fsdecode(b"\xff")
    (tmp_path / f"{name}.json").write_bytes(PROBLEM.read_bytes())
    layout = ["((4,8),(2,2)):((32,1),(16,8))", "--tile", "16x8", "--element", "f32"]
    asked = {
        ("import", "cute", *layout, "-o", f"{name}.cute.json"): 0,
        ("sweep", f"{name}.json", "-o", f"{name}.sqlite", "--workers", 1, "--export", f"{name}.csv"): 0,
        ("new", "transpose", "--name", name): 2,
        ("new", "transpose", "--name", name, "-o", "new.json"): 2,
    }
    for arguments, code in asked.items():
        done = layoutopt(*arguments, cwd=tmp_path)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert json.loads((tmp_path / f"{name}.cute.json").read_text())["name"] == "\\udcff.cute"
    assert ",\\udcff.json," in (tmp_path / f"{name}.csv").read_text()


def test_a_terminal_without_unicode(tmp_path):
    path = tmp_path / "p.json"
    data = json.loads(PROBLEM.read_text())
    path.write_text(json.dumps({**data, "name": "a\u202e\u4f60", "notes": "\U0001f600"}))
    for asked in (("solve", path), ("check", path, "--no-fix"), ("show", path), ("emit", path)):
        done = layoutopt(*asked, encoding="latin-1")
        assert "\u202e" not in done.stdout
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 1)
    printed = layoutopt("problems", path, "--expanded", encoding="latin-1")
    assert json.loads(printed.stdout.encode("latin-1"))["name"] == "a\u202e\u4f60"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("solve p.json --device-file bad", "--device-file"),
        ("targets --device-file bad", "--device-file"),
        ("emit r.json --problem bad", "--problem"),
        ("import triton @r.json --tile 16x32 --element f32 --into bad", "--into"),
    ],
)
def test_of_several_files_the_wrong_one_is_named(arguments, option, inputs):
    (inputs / "r.json").write_text(layoutopt("solve", PROBLEM, "--json").stdout)
    (inputs / "bad").write_bytes(b"{}\n[\xff")
    if option == "--into":
        (inputs / "r.json").write_text("#ttg.blocked<{sizePerThread=[1,1],threadsPerWarp=[1,32],"
                                       "warpsPerCTA=[4,1],order=[1,0]}>")  # fmt: skip
    done = layoutopt(*arguments.split(), cwd=inputs)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {option}: not UTF-8 text (byte 4)\n"
