"""Sweeps: every question once, answers as `solve` gives them; a store that goes on; processes that call functions."""

import csv
import json
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from types import SimpleNamespace

import check_sweep
import msgspec
import pytest
from command import layoutopt
from conftest import ROOT
from emit_programs import GXX, built
from written import data_of, saved

import layoutopt as package
from layoutopt.errors import MachineError, ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.files.result_file import answer_from_data
from layoutopt.ground.processes import KilledWorker, Process, Processes
from layoutopt.hardware.devices import device
from layoutopt.hardware.machine import ended
from layoutopt.study.solve import with_faster
from layoutopt.sweeps import workers
from layoutopt.sweeps.store import Store
from layoutopt.sweeps.task import Task, digest

TEMPLATE = data_of(
    """MxN f32, 32 threads
    rows: kind 4 [(tid + 32*i) // N, (tid + 32*i) % N]; i<M * N // 32
    columns: load 4 [(tid + 32*i) % M, (tid + 32*i) // M]; i<M * N // 32""",
    name="tile {M}x{N}",
    params={"M": [8, 16], "N": [16, 32], "kind": ["load", "store"]},
)


@pytest.fixture
def template(tmp_path):
    return saved(tmp_path, "t.json", TEMPLATE)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The template and the store of its sweep, which tests copy."""
    path = saved(tmp_path_factory.mktemp("swept"), "t.json", TEMPLATE)
    package.sweep(str(path), store=path.with_suffix(".sqlite"), workers=2).close()
    return path


@pytest.fixture
def store(answers, tmp_path):
    return shutil.copy(answers.with_suffix(".sqlite"), tmp_path / "s.sqlite")


def solved(problem):
    """As the command answers."""
    return with_faster(problem, package.solve(problem), device(problem.target), 60)


def swept(path, *more):
    return layoutopt("sweep", path, "-o", path.with_suffix(".sqlite"), "--workers", "2", *more)


def test_answers_are_those_of_solve_to_the_byte(template, tmp_path):
    done = swept(template, "--export", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 problems (8 different): 8 optimal\n")
    solved = layoutopt("solve", template, "--json")
    answers = [json.dumps(row["result"]) for row in json.loads((tmp_path / "out.json").read_text())]
    assert answers == solved.stdout.splitlines()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "t.json", "t.sqlite"]


def test_standard_input_is_a_source_like_any_other(template, tmp_path):
    each = (TEMPLATE | {"params": TEMPLATE["params"] | {"M": [m]}} for m in (8, 16))
    lines = "".join(f"{json.dumps(one)}\n" for one in each)
    store = tmp_path / "s.sqlite"
    done = layoutopt("sweep", "-", "-o", store, "--workers", "1", input=f"{lines}no\n")
    got = done.returncode, done.stdout.splitlines()[0]
    assert got == (2, "9 problems (9 different): 1 error, 8 optimal")
    assert done.stderr.startswith("error: -, line 3: ")
    again = layoutopt("sweep", template, "-o", store, "--workers", "1", "--json")
    assert json.loads(again.stdout)["solved"] == 0


def test_what_is_answered_is_not_solved_again(answers, store):
    again = json.loads(layoutopt("sweep", answers, "-o", store, "--json").stdout)
    assert (again["solved"], again["answered_before"]) == (0, 8)
    over = ("--over", "M=8,24", "--over", "N=16")
    more = json.loads(layoutopt("sweep", answers, "-o", store, "--json", "--workers", "2", *over).stdout)
    assert (more["solved"], more["answered_before"], more["total"]) == (2, 2, 10)
    report = layoutopt("sweep", "--report", store, "--json")
    assert json.loads(report.stdout)["by_status"] == {"optimal": 10}


def test_names_and_notes_do_not_matter():
    problem = package.load_all(TEMPLATE)[0]
    data = data_of("""8x16 f32, 32 threads; name other; notes n
        a: load 4 [(tid + 32*i) // 16, (tid + 32*i) % 16]; i<4; notes x
        b: load 4 [(tid + 32*i) % 8, (tid + 32*i) // 8]; i<4""")
    same = from_data(data)

    def key(problem, conflict_free=False):
        return digest(problem, device(problem.target), conflict_free=conflict_free, method="auto")

    assert key(same) == key(problem)
    assert key(from_data(data | {"threads": 31})) != key(problem)
    assert key(from_data(data | {"target": "sm_80"})) != key(problem)
    assert key(problem, conflict_free=True) != key(problem)
    with package.sweep(problem, same, data | {"threads": 16}, workers=1) as done:
        assert (done.problems, done.questions, done.solved.total()) == (3, 2, 2)
        found = list(done.results())
        assert [r.problem for r in found] == ["tile 8x16 kind=load", "other", "other"]
        assert found[:2] == [solved(problem), solved(same)]


def test_wrong_problems_stop_nothing(template, tmp_path):
    data = json.loads(template.read_text())
    data["accesses"][0]["index"][1] = "(tid + 32*i) % (N + M - 8)"  # leaves the tile where M is 16
    template.write_text(json.dumps(data))
    (tmp_path / "wrong.json").write_text("{")
    done = layoutopt("sweep", template, tmp_path / "wrong.json", "-o", tmp_path / "s.sqlite", "--json")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert report["by_status"]["error"] == 5
    assert report["total"] == 9
    assert "wrong.json: not JSON" in done.stderr
    why = {row["error"]: (row["count"], row["name"]) for row in report["errors"]}
    assert sorted(count for count, _ in why.values()) == [1, 2, 2]
    text = layoutopt("sweep", "--report", tmp_path / "s.sqlite").stdout
    assert all(f"{count:9,}  {error} ({name})" in text for error, (count, name) in why.items())
    with Store(tmp_path / "s.sqlite", write=False) as store:
        errors = [one.error for one in store.answered() if one.status == "error"]
    assert any("x1 must lie in 0..15" in error for error in errors)


def test_undecided_answers_hold_for_limits_up_to_their_own(tmp_path):
    problem = package.load("basics/diagonals_32x32_f32")
    path = tmp_path / "s.sqlite"
    for limit, solved in ((0.05, 1), (0.05, 0), (0.02, 0), (0.1, 1)):
        with package.sweep(problem, store=path, time_limit=limit, workers=1) as done:
            assert done.solved.total() == solved


def test_conflicts_and_infeasible_are_the_exit_code(template):
    one = ("-o", template.with_suffix(".sqlite"), "--workers", "1", "--over", "M=8", "--over", "N=32")
    data = json.loads(template.read_text()) | {"layout": {"families": ["none"]}}
    template.write_text(json.dumps(data))
    assert layoutopt("sweep", template, *one).returncode == 1
    assert layoutopt("sweep", template, *one, "--conflict-free").returncode == 1


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables(store, tmp_path, suffix):
    out = tmp_path / f"out.{suffix}"
    assert layoutopt("sweep", "--report", store, "--export", out).returncode == 0
    if suffix == "csv":
        rows = list(csv.DictReader(out.read_text().splitlines()))
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    assert [(int(row["M"]), int(row["N"]), row["kind"]) for row in rows][:3] == [
        (8, 16, "load"), (8, 16, "store"), (8, 32, "load"),
    ]  # fmt: skip
    assert {row["status"] for row in rows} == {"optimal"}
    assert {int(row["bytes"]) for row in rows} == {512, 1024, 2048}


def test_header_gives_the_offsets(template, tmp_path):
    out = tmp_path / "tiles.h"
    data = json.loads(template.read_text()) | {"layout": {"families": ["pad", "xor", "rotate", "interval"]}}
    packed = data_of(
        """16x64 s4, 32 threads
        a: load 4 [tid % 16, 8*(tid // 16) + 16*i]; i<4""",
        name='packed \\ "é??/',
    )
    (tmp_path / "p.json").write_text(json.dumps(packed))
    template.write_text(json.dumps(data))
    done = swept(template, tmp_path / "p.json", "--export", out)
    assert done.returncode in (0, 1), done.stderr
    checks = []
    with Store(template.with_suffix(".sqlite"), write=False) as store:
        for number, one in enumerate(store.answered()):
            table = answer_from_data(one.answer).table()
            for x0 in range(table.shape[0]):
                for x1 in (0, 1, 5, table.shape[1] - 1):
                    place = f"offset_bytes(tiles[{number}], {x0}, {x1})"
                    checks.append(f'static_assert({place} == {table[x0, x1]}, "");')
    program = f"""#include "tiles.h"
using namespace layoutopt_tiles;
{chr(10).join(checks)}
static_assert(tiles[find(16, 32, "store")].bytes == 2048, "");
static_assert(find(17, 32, "store") == -1, "");
static_assert(find_name("tile 16x16 kind=load") >= 0, "");
int main() {{ constexpr auto tile = tiles[find(8, 16, "load")]; return tile.bytes == 512 ? 0 : 1; }}
"""
    if GXX is None:
        pytest.skip("needs g++")
    built(tmp_path, program, "-std=c++17")


def test_report(store):
    done = layoutopt("sweep", "--report", store)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "8 problems (8 different): 8 optimal"
    assert "slowest" in lines


DAMAGES = {
    "no JSON": "UPDATE answers SET answer = '{'",
    "a number that JSON does not know": "UPDATE answers SET answer = replace(answer, '\"excess\": 0', '\"excess\": NaN')",
    "no result": "UPDATE answers SET answer = '{}'",
    "a layout without its bytes": "UPDATE answers SET answer = replace(answer, '\"bytes\": ', '\"bites\": ')",
    "reports of no access": "UPDATE answers SET answer = replace(answer, '\"accesses\": [', '\"accesses\": [7, ')",
    "bytes": "UPDATE answers SET answer = x'ff00'",
    "status": "UPDATE answers SET status = 'fine'",
    "text for a number": "UPDATE answers SET seconds = 'long'",
    "infinity": "UPDATE answers SET excess = 9e999",
    "parameters": "UPDATE tiles SET tile = replace(tile, '\"M\":8', '7') WHERE id = 1",
    "shape": "UPDATE tiles SET tile = replace(tile, '[8,16]', '7')",
    "names of other accesses": 'UPDATE tiles SET tile = replace(tile, \'["rows"\', \'["c","rows"\')',
    "name of a parameter": "UPDATE tiles SET tile = replace(tile, '\"M\":', '\"=1\":') WHERE id = 1",
    "a table less": "DROP TABLE tiles",
    "another column": "ALTER TABLE answers RENAME COLUMN excess TO access",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_store_that_something_else_has_written_to_is_refused(store, tmp_path, damage):
    database = sqlite3.connect(store)
    database.executescript(DAMAGES[damage])
    database.commit()
    database.close()
    before = store.read_bytes()
    with pytest.raises(ProblemFileError), Store(store, write=False) as opened:
        list(opened.answered())
    done = layoutopt("sweep", "--report", store, "--export", tmp_path / "o.json")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert store.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("t.json",), ("--report", "none.sqlite"), ("t.json", "--report", "t.json"), ("-o", "none.sqlite"),
        ("--report", "t.json"), ("t.json", "-o", "t.json"), ("t.json", "-o", "s.sqlite", "--export", "x.txt"),
        ("t.json", "-o", "s.sqlite", "--workers", "1", "--scheduler", "tcp://localhost:1"), ("t.json", "-o", "no/s.sqlite"),
        ("t.json", "-o", "s.sqlite", "--over", "M"),
        ("t.json", "-o", "s.sqlite", "--export", "t.json"), ("t.json", "-o", "s.json", "--export", "s.json"),
    ],
)  # fmt: skip
def test_wrong_usage_is_a_line(template, arguments):
    done = layoutopt("sweep", *arguments, cwd=template.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert template.read_text() == json.dumps(TEMPLATE)


def test_one_writer(template):
    path = template.with_suffix(".sqlite")
    with Store(path, write=True), pytest.raises(ProblemFileError, match="another sweep writes"):
        Store(path, write=True)
    Store(path, write=True).close()


def test_a_full_disk_keeps_what_was_there(template, monkeypatch):
    path = template.with_suffix(".sqlite")
    package.sweep(str(template), store=path, workers=1, over={"M": [8]}).close()
    before = sqlite3.connect(path).execute("SELECT hash, answer FROM answers ORDER BY hash").fetchall()
    opened = sqlite3.connect

    def full(*arguments, **options):
        database = opened(*arguments, **options)
        database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0] + 1}")
        return database

    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(ProblemFileError, match="full"):
        package.sweep(str(template), store=path, workers=1)
    monkeypatch.undo()
    rows = sqlite3.connect(path).execute("SELECT hash, answer FROM answers ORDER BY hash").fetchall()
    assert set(before) <= set(rows)
    with package.sweep(str(template), store=path, workers=1) as done:
        assert [one.status for one in done.answered()] == ["optimal"] * 8


def test_solve_and_compare_read_a_store_first(answers, store, tmp_path):
    some = (answers, "--over", "N=16")
    solved = layoutopt("solve", *some, "--json")
    database = sqlite3.connect(store)
    assert layoutopt("solve", *some, "--json", "--store", store).stdout == solved.stdout
    # Its own reason shows where an answer comes from.
    database.execute('UPDATE answers SET answer = replace(answer, \'"reason": ""\', \'"reason": "kept"\')')
    database.commit()
    kept = layoutopt("solve", *some, "--json", "--store", store)
    assert {json.loads(line)["reason"] for line in kept.stdout.splitlines()} == {"kept"}
    one = [*some, "--over", "M=8", "--over", "kind=load", "--store", store]
    for more in ((), ("--offset", "x0*17 + x1")):  # the layout in use is no part of the question
        found = json.loads(layoutopt("compare", *one, *more, "--json").stdout)
        assert {row["family"]: row["reason"] for row in found["rows"]}["all"] == "kept"
    fresh = layoutopt("solve", *some, "--over", "M=24", "--json", "--store", store)
    assert {json.loads(line)["reason"] for line in fresh.stdout.splitlines()} == {""}
    database.execute("UPDATE answers SET answer = (SELECT max(answer) FROM answers)")  # that of 8x32
    database.commit()
    database.close()
    for command in ("solve", "compare"):
        wrong = layoutopt(command, *one)
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert "the store holds a wrong answer to 'tile 8x16': " in wrong.stderr
    assert layoutopt("solve", answers, "--store", tmp_path / "none").returncode == 2
    both = layoutopt("solve", *one, "--certificate", tmp_path / "c.json")
    assert "--certificate: an answer out of a store has none" in both.stderr


def test_a_store_answers_several_tiles_of_another_name(tmp_path):
    several = data_of("""32 threads; name pair; families none pad; max_bytes 2200
        tile A: 8x32 f32
        tile B: 8x32 f32
        A store: store 4 [i, tid]; i<8; tile A
        A load: load 4 [tid % 8, tid // 8 + 4*i]; i<8; tile A
        B store: store 4 [i, tid]; i<8; tile B
        B load: load 4 [tid % 8, tid // 8 + 4*i]; i<8; tile B""")
    path, store = saved(tmp_path, "pair.json", several), tmp_path / "s.sqlite"
    package.sweep(several, store=store, workers=1).close()
    saved(tmp_path, "pair.json", several | {"name": "other"})
    alone = json.loads(layoutopt("solve", path, "--json").stdout)
    assert json.loads(layoutopt("solve", path, "--json", "--store", store).stdout) == alone
    rows, kept = (
        json.loads(layoutopt("compare", path, "--json", "--time-limit", "60", *more).stdout)["rows"]
        for more in ((), ("--store", store))
    )
    for row in (*rows, *kept):
        del row["seconds"]
    assert kept == rows


def test_a_driver_that_is_killed_loses_nothing(template):
    """One moment of what scripts/checkers/check_sweep.py does at many."""
    store = template.with_suffix(".sqlite")
    run = check_sweep.started(template, store, "--workers", "2")
    while not (before := check_sweep.answers(store)) and run.poll() is None:
        pass
    run.kill()
    run.communicate()
    before = check_sweep.answers(store)
    assert before
    assert swept(template).returncode == 0
    after = check_sweep.answers(store)
    assert before.items() <= after.items()
    assert len(after) == 8


def children():
    return set(check_sweep.children(SimpleNamespace(pid=os.getpid())))


def test_a_worker_whose_driver_is_gone_leaves():
    mine, theirs = socket.socketpair()
    code = f"from layoutopt.ground.processes import serve; serve({theirs.fileno()})"
    worker = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], cwd=ROOT)
    theirs.close()
    mine.close()
    assert worker.wait(timeout=60) == 0


def test_a_worker_that_dies_is_replaced_and_its_problem_tried_again():
    tasks = iter([task_of(problem) for problem in package.load_all(TEMPLATE)])
    found, others = [], children()
    for number, outcomes in enumerate(workers.outcomes(tasks, workers=1)):
        found += outcomes
        if number == 1:
            (worker,) = children() - others
            os.kill(worker, signal.SIGKILL)
    assert [outcome.status for outcome in found] == ["optimal"] * 8


def test_a_problem_that_processes_die_of_is_named_and_the_others_are_solved(monkeypatch):
    tasks = [task_of(problem) for problem in package.load_all(TEMPLATE)[:4]]
    answer = Process.answer

    def dying(process, call, seconds):
        if call[1][0][0] is tasks[1]:
            process.program.kill()
        return answer(process, call, seconds)

    monkeypatch.setattr(Process, "answer", dying)
    found = [outcome for outcomes in workers.outcomes(iter(tasks), workers=1) for outcome in outcomes]
    by_hash = {outcome.hash: outcome for outcome in found}
    assert len(found) == len(by_hash) == 4
    assert [by_hash[task.hash].status for task in tasks] == ["optimal", "lost", "optimal", "optimal"]
    assert "ended 3 times" in by_hash[tasks[1].hash].error


def task_of(problem):
    key = digest(problem, device(problem.target), conflict_free=False, method="auto")
    return Task(key, msgspec.json.encode(problem), 10.0, False, "auto")


def test_a_cluster_gives_the_same_answers(template, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        package.sweep(str(template), scheduler=cluster.scheduler_address, over={"M": [8]}) as done,
    ):
        assert done.solved == {"optimal": 4}
        found = list(done.results())
    assert found == [solved(problem) for problem in package.load_all(TEMPLATE, over={"M": [8]})]


def test_no_scheduler_is_an_error(template, monkeypatch):
    monkeypatch.setattr(workers, "_CONNECT_SECONDS", 0.2)
    with pytest.raises(MachineError, match="cannot reach a scheduler at tcp://localhost:1"):
        package.sweep(str(template), scheduler="tcp://localhost:1")
    with pytest.raises(MachineError, match="there is no scheduler file"):
        package.sweep(str(template), scheduler="none.json")


@pytest.fixture
def processes():
    one = Processes(1)
    yield one
    one.close()


def test_a_result_an_error_and_a_death(processes):
    asked = [processes.submit(math.sqrt, number) for number in (4.0, -1.0)]
    assert asked[0].result() == 2.0
    with pytest.raises(ValueError, match="math domain"):
        asked[1].result()
    with pytest.raises(KilledWorker):
        processes.submit(signal.raise_signal, signal.SIGKILL).result()
    assert processes.submit(abs, -1).result() == 1


def test_what_takes_too_long_is_ended(processes):
    with pytest.raises(KilledWorker):
        processes.submit(time.sleep, 60, seconds=0.05).result()


def test_closing_ends_what_a_call_began(processes, tmp_path):
    mark = tmp_path / "pid"
    processes.submit(ended, ["sh", "-c", f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60"])
    while not mark.exists():
        time.sleep(0.01)
    began = time.monotonic()
    processes.close()
    assert time.monotonic() - began < 5
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
