"""Files of launches: what is read, what is refused, what a program as a whole costs, what CI is told."""

import json
import shutil
import signal
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import record_applications
from command import answer, refused
from command import layoutopt as command
from conftest import ROOT
from machine_code import listing
from msgspec import structs
from written import refused_with, text_file

import layoutopt
from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import xml
from layoutopt.ground.temporary import temporary_folder
from layoutopt.hardware.machine import find_tool, toolkits
from layoutopt.kernels.capture.recorder import new_folder, recorder
from layoutopt.kernels.launches import LaunchOptions, argument, evaluated, read_launches
from layoutopt.report.launches_text import name
from layoutopt.study.launches import CheckedLaunch

KERNELS = ROOT / "tests/data/kernels"
SCAN = KERNELS / "scan_tree.sm_90.sass"
# A program of ours (app.cu beside it) as an H200 ran it, recorded: two streams, a graph launched five times, and a
# kernel whose addresses are data. All counters of the profiler were those that are expected here.
APP = ROOT / "tests/data/launches/app"
DIAGONALS = '[[launch]]\nfile = "k.sass"\nblock = [32]\n'
needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not on this machine")


def checked(*asked, **options):
    return command("check", *asked, "--no-fix", **options)


def diagonals(folder, text=DIAGONALS):
    """The launches of a text, and the kernel that they name, all of whose code is of line 13 of its source."""
    source = text_file(folder, (KERNELS / "align_diagonals.cu").read_text(), "align_diagonals.cu")
    listing = (KERNELS / "align_diagonals.sm_90.sass").read_text()
    mark = f'//## File "{source}", line 13'
    text_file(folder, listing.replace("/*0000*/", f"{mark}\n/*0000*/", 1), "k.sass")
    return text_file(folder, text, "launches.toml")


# What a launch says, and what is said of it.
WRONG = {
    "block = 'x'": ".block: expected `array | null`, got `str`",
    "block = [1, 2, 3, 4]": ".block: expected `array` of length 3, got 4",
    "blok = [32]": ": object contains unknown field `blok`",
    "arg = {0 = 'x'}": ".arg.0: expected a number",
    "arg = {0 = [1]}": ".arg.0: expected a number",
    "arg = {0 = 1}\nparameters = '00'": ".parameters: all are given",
    "launches = -1": ".launches: expected a count, given -1",
    'include = ["\\u0000"]': ": nvcc takes no option with a NUL",
}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[launch", "no TOML: "),
        ("launch = 3", "launch: expected `array`, got `int`, given 3"),
        *((f"[[launch]]\nfile = 'a'\n{said}", f"launch[0]{told}") for said, told in WRONG.items()),
    ],
)
def test_a_wrong_file_is_told_by_its_place(tmp_path, text, told):
    with refused_with(told):
        read_launches(text_file(tmp_path, text, "launches.toml"))


def test_a_kernel_is_named_without_the_tags_that_numba_gives():
    one = CheckedLaunch(LaunchOptions(entry="_ZN8__main__2mmB2v1B6cw51cXE5ArrayIfLi2E1C7mutableE"))
    assert name(one) == "__main__::mm"


def test_equal_launches_are_one_and_names_are_beside_the_file(tmp_path):
    one = '[[launch]]\nfile = "k.cu"\nblock = [32, 8]\ndata = {0 = "zeros", 1 = "x.npy"}\nlaunches = 2\n'
    # A number beyond 64 bits is no error of the reader.
    more = f"not_recorded = 3\n[[launch]]\nfile = 'a'\nshared = {1 << 64}\n"
    found, large = read_launches(text_file(tmp_path, one + one + more, "launches.toml")).launches
    assert (found.launches, found.not_recorded, found.block) == (4, 3, (32, 8, 1))
    assert found.file == str(tmp_path / "k.cu")
    assert found.data == {"0": "zeros", "1": str(tmp_path / "x.npy")}
    assert large.shared == 1 << 64
    none = one.replace("launches = 2", "launches = 0")
    assert read_launches(text_file(tmp_path, none, "launches.toml")).launches == ()


def test_what_is_said_of_a_parameter(tmp_path):
    (tmp_path / "p.bin").write_bytes(b"abc")
    said = [3, 0.5, "0x10", "pointer", "null", "1:i64", "@p.bin"]
    assert [argument(one, tmp_path) for one in said] == [3, 0.5, 16, "pointer", 0, b"\1" + bytes(7), b"abc"]


def test_launches_are_ranked_by_their_conflicts_and_failures_stop_no_other(tmp_path):
    path = diagonals(tmp_path, f'{DIAGONALS}launches = 3\n[[launch]]\nfile = "none.sass"\nblock = [32]\n')
    data = answer("check", path, "--no-fix")
    got = data["schema"], data["launches"], data["bank_conflicts"]
    assert got == ("layoutopt.application/1", 4, 3 * 3844)
    assert [one.get("failure", "")[:11] for one in data["kernels"]] == ["", "cannot read"]
    (align, none), totals = data["kernels"], data["totals"]
    assert [(one["count"], one["certain"]) for one in (align, none)] == [(3, True), (1, False)]
    assert (align["reason"], none["reason"], none["totals"]) == (None, none["failure"], None)
    worst = {name: None for name in totals if name.startswith("wavefronts_worst")}  # of what is not known
    assert totals == {name: 3 * n for name, n in align["totals"].items()} | worst
    done = checked(path)
    assert (done.returncode, "4 launches, 2 distinct: 1 certain, 1 not evaluated" in done.stdout) == (1, True)
    conflicts = "8,649 of 9,216 wavefronts in shared memory are bank conflicts (align, load)"
    assert f"align_diagonals.cu:13: {conflicts}" in done.stdout


def test_fixes_are_ranked_by_what_they_save_over_all_launches(tmp_path):
    path, page = diagonals(tmp_path, f"{DIAGONALS}launches = 3\n"), tmp_path / "page.html"
    data = answer("check", path)
    (fix,) = data["fixes"]
    (one,) = (array["fix"] for array in data["kernels"][0]["arrays"] if array["fix"])
    assert fix["saved_wavefronts"] == 3 * one["saved_wavefronts"] > 0
    assert (fix["offset"], fix["message"]) == (one["offset"], one["message"])
    told = f"{fix['saved_wavefronts']:,} fewer wavefronts over all launches (align"
    assert told in command("check", path, "--html", page).stdout
    assert told in page.read_text()


def test_nothing_evaluated_is_an_error_and_options_of_one_kernel_are_refused(tmp_path):
    path = text_file(tmp_path, '[[launch]]\nfile = "none.sass"\nblock = [32]\n', "launches.toml")
    assert command("check", path).returncode == 2
    refused("--block is for a kernel", "check", path, "--block", "32")
    refused("no launch in", "check", text_file(tmp_path, "", "empty.toml"))


def test_what_continuous_integration_reads(tmp_path):
    path = diagonals(tmp_path)
    github = checked(path, "--format", "github").stdout.splitlines()
    assert len(github) == 2
    told = ("::warning file=", ",line=13,title=bank conflicts::")
    assert all(line.startswith(told[0]) and told[1] in line for line in github)
    sarif = json.loads(checked(path, "--format", "sarif").stdout)
    (run,) = sarif["runs"]
    assert sarif["version"] == "2.1.0"
    assert run["tool"]["driver"]["rules"][0]["id"] == run["results"][0]["ruleId"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 13}
    assert len({one["partialFingerprints"]["kernelLine/v1"] for one in run["results"]}) == 2
    path.write_text(f"{DIAGONALS}{DIAGONALS}shared = 4\n")  # tests of one name are one to some servers
    suite = ET.fromstring(checked(path, "--format", "junit").stdout)
    names = [case.get("name") for case in suite]
    assert names == ["block 32,1,1 grid 1,1,1", "block 32,1,1 grid 1,1,1 (2)"]
    assert suite.get("tests") == suite.get("failures") == "2"
    assert len(suite.findall("testcase/failure")) == 2


def test_no_launch_passes_whose_conflicts_depend_on_a_missing_parameter():
    kernel = ("check", SCAN, "--block", "128", "--no-fix")
    done = command(*kernel)
    assert done.stdout.splitlines()[1] == "  not certain: give --arg 2=VALUE"
    assert ("bank conflicts, at least" in done.stdout, "data-dependent" in done.stdout) == (True, False)
    given = command(*kernel, "--arg", "2=256")
    assert "executed: warp instructions; ideal: the fewest wavefronts" in given.stdout
    assert (done.returncode, given.returncode) == (3, 1)
    for form, told in (
        ("github", "::notice title=not certain::scan: give --arg 2=VALUE"),
        ("sarif", "scan: not certain: give --arg 2=VALUE"),
        ("junit", '<skipped message="not certain: give --arg 2=VALUE"/>'),
    ):
        done = command(*kernel, "--format", form)
        assert (done.returncode, told in done.stdout) == (3, True)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("{kernel} --block 32 32", "unexpected 32; extents are one word, such as --block 32,32"),
        ("{kernel} awq/a_128x32_f16", "is a kernel, and awq/a_128x32_f16 is none"),
        ("{kernel} --block 128 --shared 32K", "expected a plain number of bytes, such as 32768"),
        ("{kernel} --block 128 --shared 250000", "expected 0 to 232448 bytes, got 250000"),
        ("{kernel}", "for example, with your values in the place of these: --block 256"),
        ("{folder}", "is a folder of kernels; give one of them: k.sass"),
        ("{folder}/train.py", "layoutopt capture -o launches -- python"),
        ("{folder}/host.cpp", "host.cpp: expected a kernel (.cu, .ptx, .cubin), launches or a problem"),
    ],
)
def test_what_is_no_launch_is_told_what_to_give(tmp_path, asked, told):
    shutil.copy(SCAN, tmp_path / "k.sass")
    for source in ("train.py", "host.cpp"):
        text_file(tmp_path, "", source)
    refused(told, "check", *asked.format(kernel=SCAN, folder=tmp_path).split())


def test_no_layout_is_advised_for_an_array_of_which_an_access_is_not_counted():
    done = command("check", KERNELS / "gemm_double_buffer.sm_90.sass", "--block", "32,8")
    assert done.returncode == 1
    assert "no fix is sought: an access of it is not counted" in done.stdout
    assert "take " not in done.stdout


def test_the_page_holds_the_table_and_the_source(tmp_path):
    page, told = tmp_path / "page.html", diagonals(tmp_path)
    lines = (KERNELS / "align_diagonals.cu").read_text().split("\n")
    text_file(tmp_path, "\n".join([f"{lines[0]}\f", *lines[1:]]), "align_diagonals.cu")  # no end of a line
    assert checked(told, "--html", page).returncode == 1
    text = page.read_text()
    for told in (f"<mark>   13  {xml(lines[12])}</mark>", 'data-value="3844"', "by lane:", "The worst lines"):
        assert told in text
    assert "The fixes that save most" not in text  # none were sought


def test_a_baseline_fails_on_more_conflicts_only(tmp_path):
    known = tmp_path / "conflicts.json"
    told = (diagonals(tmp_path), "--baseline", known)
    codes = [checked(*told, *more).returncode for more in ((), ("--update-baseline",), ())]
    assert codes == [2, 0, 0]  # first there is none yet
    counts = json.loads(known.read_text())
    (load, store) = counts["bank_conflicts"]
    counts["bank_conflicts"][load] -= 1
    known.write_text(json.dumps(counts))
    done = checked(*told)
    assert (done.returncode, store in done.stdout) == (1, False)
    assert f"{load}: 2,883 bank conflicts, 2,882 in the baseline" in done.stdout
    github = checked(*told, "--format", "github").stdout
    assert (github.count("::warning"), "load)" in github) == (1, True)
    known.write_text(json.dumps(counts | {"bank_conflicts": {load: 10**6, store: 10**6}}))
    assert ET.fromstring(checked(*told, "--format", "junit").stdout).get("failures") == "0"


def test_kernels_of_two_files_that_are_called_the_same_are_told_apart(tmp_path):
    path = diagonals(tmp_path, f"{DIAGONALS}{DIAGONALS.replace('k.sass', 'sub/k.sass')}")
    (tmp_path / "sub").mkdir()
    shutil.copy(tmp_path / "k.sass", tmp_path / "sub")
    known = tmp_path / "conflicts.json"
    assert checked(path, "--baseline", known, "--update-baseline").returncode == 0
    counts = json.loads(known.read_text())
    assert [key.split(": ")[0] for key in counts["bank_conflicts"]] == ["k.sass"] * 2 + ["sub/k.sass"] * 2
    assert checked(path.name, "--baseline", known.name, cwd=tmp_path).returncode == 0
    load = next(key for key in counts["bank_conflicts"] if "sub/" in key)
    counts["bank_conflicts"][load] -= 1
    known.write_text(json.dumps(counts))
    assert f"{load}: 2,883 bank conflicts, 2,882 in" in checked(path, "--baseline", known).stdout
    # One of before names no files; it is read as it was meant.
    old = {key.removeprefix("sub/k.sass: "): n for key, n in counts["bank_conflicts"].items()}
    for fewer, code in ((0, 1), (-1, 0)):
        old[load.removeprefix("sub/k.sass: ")] = 2882 - fewer
        known.write_text(json.dumps({"schema": "layoutopt.baseline/1", "bank_conflicts": old}))
        done = checked(path, "--baseline", known)
        assert (done.returncode, "--update-baseline writes it anew" in done.stderr) == (code, True)


@pytest.mark.nvcc
def test_a_kernel_that_is_edited_to_conflict_fails_on_its_line(tmp_path):
    source = (KERNELS / "transpose_plain.cu").read_text()
    kernel = text_file(tmp_path, source.replace("tile[32][32]", "tile[32][33]"), "k.cu")
    launches = '[[launch]]\nfile = "k.cu"\nblock = [32, 8]\ngrid = [2, 2]\narg = {n = 64}\n'
    told = (text_file(tmp_path, launches, "launches.toml"), "--baseline", tmp_path / "known.json")
    assert checked(*told, "--update-baseline").returncode == 0
    assert checked(*told, "--format", "github").stdout.count("::warning") == 0
    kernel.write_text(source)
    done = checked(*told, "--format", "github")
    line = 1 + next(n for n, text in enumerate(source.splitlines()) if "= tile[threadIdx.x]" in text)
    assert (done.returncode, done.stdout.count("::warning")) == (1, 1)
    assert f"k.cu,line={line}," in done.stdout


def test_a_baseline_is_not_replaced_by_nothing_and_is_read_first(tmp_path):
    path, known = text_file(tmp_path, DIAGONALS, "launches.toml"), tmp_path / "conflicts.json"
    refused("needs the file", "check", path, "--update-baseline")
    assert command("check", path, "--baseline", known, "--update-baseline").returncode == 2
    refused("--baseline: cannot read", "check", path, "--baseline", known)
    assert not known.exists()


def test_no_page_takes_the_place_of_a_kernel_or_of_a_file_of_a_folder(tmp_path):
    path = diagonals(tmp_path)
    for file, what in ((tmp_path / "k.sass", "a launch"), (path, "launches")):
        before = file.read_bytes()
        refused(f"would overwrite {what}", "check", tmp_path, "--no-fix", "--html", file)
        assert file.read_bytes() == before


def test_import_takes_one_launch_of_a_file(tmp_path):
    path = diagonals(tmp_path, f'{DIAGONALS}entry = "align"\n{DIAGONALS}grid = [2]\n')
    asked = ("import", "kernel", path, "-o", tmp_path / "tiles")
    for entry in ("align", "2"):
        assert command(*asked, "--entry", entry).returncode == 0
        assert list((tmp_path / "tiles").glob("*.json"))
    said = "expected one launch, by its kernel or number: 1 align block (32, 1, 1)"
    for more in ((), ("--entry", "none"), ("--entry", "3")):
        refused(said, *asked, *more)
    refused("--grid is for a kernel", *asked, "--grid", "2")


def test_what_is_checked_may_be_configured(tmp_path):
    diagonals(tmp_path)
    refused("nothing to check", "check", cwd=tmp_path)
    text_file(tmp_path, "[tool]\nlayoutopt = 3\n", "pyproject.toml")
    refused("pyproject.toml: tool.layoutopt: expected `object`, got `int`, given 3", "check", cwd=tmp_path)
    text_file(tmp_path, '[tool.layoutopt]\ncheck = ["launches.toml"]\n', "pyproject.toml")
    assert checked(cwd=tmp_path).returncode == 1
    text_file(tmp_path, 'check = ["launches.toml"]\nbaseline = "b.json"\n', "layoutopt.toml")
    assert checked("--update-baseline", cwd=tmp_path).returncode == 0
    assert checked(cwd=tmp_path).returncode == 0
    text_file(tmp_path, "chekc = []\n", "layoutopt.toml")
    refused(
        "layoutopt.toml: object contains unknown field `chekc`; did you mean check?", "check", cwd=tmp_path
    )


@needs_nvdisasm
def test_a_recorded_program(tmp_path):
    data = answer("check", APP, "--no-fix")
    totals = {(one["name"], tuple(one["grid"])): one["totals"] for one in data["kernels"]}
    assert all(one["certain"] for one in data["kernels"])
    assert [one["launches"] for one in data["kernels"]] == [20, 15, 2]
    assert totals["_Z6gatherPfPKi", (1, 1, 1)]["bank_conflicts_ld"] == 32 * 31
    assert totals["_Z9transposePfPKfi", (8, 8, 1)]["bank_conflicts_ld"] == 64 * 32 * 31
    copy = shutil.copytree(APP, tmp_path / "app")
    (copy / "56bbaf95dffec325.bin.gz").unlink()
    assert "cannot read" in checked(copy).stdout


def test_the_page_says_what_was_recorded_and_no_counter_differs():
    programs = json.loads(record_applications.RECORD.read_text())["programs"]
    table = record_applications.PAGE.read_text().split(record_applications.MARK)[1]
    assert table.strip().splitlines() == record_applications.table(programs)
    for one in programs:
        assert one["counted"] in (0, one["launches"], one.get("first")), one["name"]
        assert not one.get("verdicts", {}).keys() & {"differs", "other launches", "not recorded"}, one["name"]


@needs_nvdisasm
def test_kernels_are_checked_from_python():
    cubin = next(APP.glob("*.cubin"))
    index = np.arange(1024, dtype=np.int32) * 32 % 1024
    launch = layoutopt.Launch(block=(1024, 1, 1), shared_bytes=4096, buffers={"1": index})
    done = layoutopt.check_kernel(cubin.read_bytes(), launch, entry="gather", mend=False)
    assert done.report.certain
    assert done.report.totals["bank_conflicts"] == 32 * 31
    launch = layoutopt.Launch(block=(32, 32, 1), arguments={"2": 32})
    (tile,) = layoutopt.import_kernel(cubin, launch, entry="transpose").values()
    assert layoutopt.solve(tile, time_limit=5).excess == 0
    with pytest.raises(ProblemFileError, match="--block: expected extents along x, y, z, got"):
        layoutopt.check_kernel(cubin, layoutopt.Launch(block=(32, 8)), entry="transpose")


def test_a_recording_needs_a_new_folder(tmp_path):
    assert new_folder(tmp_path / "a/b").is_dir()
    text_file(tmp_path, "x")
    with pytest.raises(ProblemFileError, match="is not empty"):
        new_folder(tmp_path)


@pytest.fixture
def cupti():
    pytest.importorskip("nvidia")
    if not any(Path(root, "cu13/include/cupti.h").exists() for root in __import__("nvidia").__path__):
        pytest.skip("CUPTI is not installed")


@pytest.mark.usefixtures("cupti")
def test_a_program_that_is_not_there_cannot_be_recorded(tmp_path):
    assert "cannot run" in command("capture", "-o", tmp_path / "c", "--", "/no/such/program").stderr


@pytest.mark.usefixtures("cupti")
def test_ctrl_c_is_for_the_program_that_is_recorded(tmp_path):
    program = 'trap "sleep 0.5; exit 7" INT; kill -INT $PPID; kill -INT $$; sleep 9'
    done = command("capture", "-o", tmp_path / "c", "--", "sh", "-c", program)
    assert (done.returncode, "nothing was launched" in done.stderr) == (7, True)


@pytest.mark.usefixtures("cupti")
def test_the_recorder_compiles(monkeypatch, tmp_path):
    monkeypatch.setenv("LAYOUTOPT_CACHE", str(tmp_path))
    with temporary_folder() as scratch:
        made = recorder(scratch)
    assert made.parent == tmp_path
    assert made.read_bytes()[:4] == b"\x7fELF"


@pytest.fixture
def played(cupti, tmp_path):
    """Runs the recorder between a driver and a CUPTI that recorder_stub.c plays: what it leaves."""
    record, compiler = ROOT / "layoutopt/kernels/capture/record.c", find_tool("cc") or find_tool("gcc")
    headers = [f"-I{folder}" for root in toolkits() if (folder := root / "include").is_dir()]
    program, folder = tmp_path / "stub", tmp_path / "played"
    told = ["-std=gnu11", f'-DRECORDER="{record}"', *headers, "-o", program, "-lpthread"]
    subprocess.run([compiler, ROOT / "tests/kernels/recorder_stub.c", *told], check=True)

    def run(*mode):
        folder.mkdir()
        code = subprocess.run([program, folder, *mode], check=False).returncode
        return code, read_launches(folder), folder

    return run


def test_what_is_recorded_of_each_call(played):
    code, found, folder = played()
    assert code == -signal.SIGKILL
    launches = {one.block[0]: (one.launches, one.not_recorded) for one in found.launches[:4]}
    assert launches == {32: (3, 0), 64: (1, 0), 96: (1, 0), 128: (1, 0)}  # of which the graph's changes are
    assert sum(one.launches for one in found.launches[4:]) == 16
    assert sum(one.not_recorded for one in found.launches[4:]) == 4
    assert len(list(folder.glob("*.toml"))) == 1  # a child of fork writes nothing
    assert (found.missed.unwritten, found.missed.unfollowed, found.missed.nested) == (0, 4, 0)
    assert found.spent_us > 0
    path = text_file(folder, DIAGONALS.replace("k.sass", "none.sass"), "launches.toml")
    text_file(folder, "[missed]\nunwritten = 1\nnested = 2\n", "launches.2.toml")
    said = checked(folder).stdout
    assert path.exists()
    for told in ("1 launches could not be written", "at least 4 of graphs", "not seen (2 can)"):
        assert told in said.partition("not all launches were recorded: ")[2].partition("\n")[0]


@pytest.mark.parametrize("ended", [(), ("ended",)])
def test_threads_that_launch_at_once(played, ended):
    code, found, _ = played("threads", *ended)
    total = sum(one.launches + one.not_recorded for one in found.launches)
    assert code == found.missed.unwritten == 0
    assert total == 1600 if not ended else 0 < total <= 1600


def test_a_launch_says_its_cluster(tmp_path):
    """Of 4 blocks, those of rank 1 load; of a recorded launch without one, none does."""
    code = "S2R R3, SR_CgaCtaId; UCGABAR_ARV; UCGABAR_WAIT; ISETP.NE.AND P1, PT, R3, RZ, PT; @P1 LDS R7, [RZ]; EXIT"
    one = LaunchOptions(
        file=str(text_file(tmp_path, listing(code), "k.sass")), block=(32, 1, 1), grid=(4, 1, 1)
    )
    for options, wavefronts in (({"cluster": (2, 1, 1)}, 2), ({"parameters": ""}, 0)):
        found = evaluated(structs.replace(one, **options), 10)
        assert found.certain
        assert sum(tally.wavefronts for tally in found.tallies.values()) == wavefronts
    assert not evaluated(one, 10).certain
