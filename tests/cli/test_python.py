"""What Python callers get: problems from dicts and arrays, functions with typed results."""

import json
import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from command import answer, python
from conftest import ROOT
from written import access_from, data_of, refused_with

import layoutopt
from layoutopt.errors import LayoutError, MachineError, ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.ground.interrupt import interruptibly

ROWS = access_from("rows: store 4", index=("i", "lane"), **{"for": {"i": np.int64(32)}})
ROW_OF_8 = access_from("row: store 4 [tid // 8, tid % 8]")
PLAIN = data_of("8x8 f32, 64 threads", ROW_OF_8)


def transpose(**more):
    lanes, rows = np.broadcast_arrays(np.arange(32)[None, :], np.arange(32)[:, None])
    columns = access_from("columns: load 4", coordinates=np.stack((lanes, rows), axis=-1), active=rows >= 0)
    tile = {"shape": (np.int32(32), 32), "element": "f32"}
    return layoutopt.problem({"name": "p", "tile": tile, "accesses": (ROWS, columns)}, threads=32, **more)


def test_a_problem_from_dicts_arrays_and_keywords():
    problem = transpose(target="sm_80", name="mine")
    assert isinstance(problem, layoutopt.Problem)
    assert (problem.name, problem.target, problem.tile.shape) == ("mine", "sm_80", (32, 32))
    assert problem.accesses[1].index == ("lane", "i")
    typed = layoutopt.problem(tile=problem.tile, threads=32, accesses=problem.accesses, target="sm_80")
    assert (typed.name, typed.accesses) == ("tile", problem.accesses)


def test_functions_give_typed_results():
    problem = transpose()
    result = layoutopt.solve(problem)
    assert isinstance(result, layoutopt.Result)
    assert (result.table() == result.layout.byte_offset(*np.indices((32, 32)))).all()
    assert isinstance(layoutopt.check(problem, result.layout), layoutopt.Audit)
    assert isinstance(layoutopt.compare(problem), layoutopt.Comparison)
    assert layoutopt.explain(problem, time_limit=10).conflict_free is True
    assert layoutopt.solve(problem, target="sm_70").target == "sm_70"
    assert "p_offset_bytes" in layoutopt.emit(problem, result)
    assert layoutopt.emit(problem, lang="c") == layoutopt.emit(problem, result, lang="c")
    assert "x0 * 33 + x1" in layoutopt.emit(problem, "x0*33 + x1", lang="c")


def test_formulas_for_sympy_are_numbers_where_their_arguments_are(monkeypatch):
    result = layoutopt.solve(transpose())
    formula = result.to_sympy()
    assert {str(symbol) for symbol in formula.free_symbols} == {"x0", "x1"}
    for point in ((0, 0), (3, 5), (31, 30)):
        assert formula.subs({"x0": point[0], "x1": point[1]}) * 4 == result.table()[point]
    infeasible = layoutopt.solve(transpose(layout={"max_bytes": 8}))
    with pytest.raises(LayoutError, match="there is no layout: infeasible"):
        infeasible.table()
    monkeypatch.delitem(sys.modules, "layoutopt.expressions.sympy_form")
    monkeypatch.setitem(sys.modules, "sympy", None)
    with pytest.raises(MachineError, match=r"pip install 'layoutopt\[sympy\]'"):
        result.to_sympy()


def test_load_all_takes_files_dicts_and_templates(tmp_path):
    template = data_of("Nx32 f32, 32 threads; name tile", ROWS | {"for": {"i": "N"}}, params={"N": [8, 16]})
    found = layoutopt.load_all(template, "transpose_16x32_f32", transpose())
    assert [p.tile.shape for p in found] == [(8, 32), (16, 32), (16, 32), (32, 32)]
    assert [p.name for p in found[:2]] == ["tile N=8", "tile N=16"]
    assert len(layoutopt.load_all(template, over={"N": [4]})) == 1


def test_the_first_problems_may_be_loaded_by_several_threads():
    code = """
import sys, threading
from layoutopt.files.inputs import problem
sys.setswitchinterval(1e-6)
start = threading.Barrier(6)
access = {"name": "rows", "op": "store", "bytes": 4, "index": ["i", "tid"], "for": {"i": 8}}
def load():
    start.wait()
    problem({"name": "p", "tile": {"shape": [8, 32], "element": "f32"}, "threads": 32, "accesses": [access]})
threads = [threading.Thread(target=load) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_do_not_disturb_each_other():
    names = ["transpose_16x32_f32", "transpose_32x32_f32", "gemm_a_128x32_f16", "transpose_16x32_f32"]

    def answer(name):
        return layoutopt.solve(layoutopt.load(name)).to_json()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(answer, names)) == list(map(answer, names))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_solve_as_this_one(start):
    """Problems and results travel between processes, forked ones too, where something was solved before."""
    problem = transpose()
    found = layoutopt.solve(problem)
    with ProcessPoolExecutor(2, multiprocessing.get_context(start)) as pool:
        assert list(pool.map(layoutopt.solve, [problem] * 2)) == [found, found]


def test_an_answer_is_that_of_the_command():
    for name in ("transpose_16x32_f32", "rows_32x32_f64"):
        found = layoutopt.solve(layoutopt.load(name))
        assert json.loads(json.dumps(found.to_json())) == answer("solve", name)
    assert (found.estimate is not None, found.require_layout()) == (True, found.layout)


SLOW = """
import layoutopt, os, signal, threading
def told(text):
    if text.startswith("best so far"):
        os.kill(os.getpid(), signal.SIGINT)
        told.__globals__["told"] = print
found = layoutopt.solve(layoutopt.load("diagonals_32x32_f32"), time_limit=600, progress=lambda text: told(text))
print(found.status, found.excess > 0, threading.active_count())
"""


def test_interrupt_gives_the_best_so_far():
    done = python("-c", SLOW)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "feasible True 1"


def test_an_interrupt_for_the_second_time_is_raised():
    """As any error of what works: it is raised where the program waits, and the work is told to stop."""
    budget = Budget()

    def work():
        for _ in range(2):
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
        while not budget.stopped:
            time.sleep(0.01)

    told = []
    with pytest.raises(KeyboardInterrupt):
        interruptibly(work, budget, stopping=lambda: told.append("once"))
    assert (told, budget.stopped) == (["once"], True)


def test_the_page_for_compiler_authors_runs(capsys):
    page = (ROOT / "docs" / "compiler-authors.md").read_text()
    space = {}
    for block in page.split("```python\n")[1:]:
        exec(block.split("```")[0], space)
        assert "result" not in space or space["result"].excess == 0
    assert "result" in space
    printed = capsys.readouterr().out
    assert "optimal" in printed
    assert "smem_a" in printed


def test_several_tiles_are_solved_and_emitted_as_one():
    several = layoutopt.load("hopper_gemm_128x128x64_f16")
    found = layoutopt.solve(several, time_limit=5)
    assert isinstance(found, layoutopt.Arrangement)
    assert f"_{found.tiles[0].tiles[0]}_stage_bytes" in layoutopt.emit(several, found, lang="c")
    for problem, given, said in (
        (several, "x0", "a formula is for one tile"),
        (transpose(), found, "the answer is for several tiles, the problem has one"),
    ):
        with refused_with(said):
            layoutopt.emit(problem, given)


ASKED = transpose()
NO_NAMES = [None, [], {}, np.zeros(2), "x" * 10_000]
# A function, what it is given, and what it says of that.
WRONG = [
    ("load", (None,), {}, "expected the name of a file, got NoneType 'None'"),
    ("load_all", (3,), {}, "expected a file, a folder, a stream of bytes, a dict or a problem"),
    ("load_all", (PLAIN,), {"over": {"M": "64"}}, "--over.M: expected a list of values, got str"),
    ("load_all", (PLAIN,), {"over": {1: [2]}}, "--over.1: expected the name of a parameter"),
    ("load_all", (PLAIN,), {"over": [1]}, "over: expected lists of values by name, got list"),
    ("problem", ([1],), {}, "expected a dict of the fields of a problem, got list"),
    ("problem", (PLAIN,), {"name": b"x"}, "name: expected `str`, got `bytes`"),
    ("problem", (PLAIN,), {"name": "\ud800"}, "half of a surrogate pair is no character"),
    ("solve", (ASKED,), {"target": 3}, "target: expected a device or its name"),
    ("solve", (ASKED,), {"target": "sm_7"}, "unknown target 'sm_7'"),
    ("load_all", ("no such problem",), {}, "no file and no problem"),
    ("problem", (), {"tile": ASKED.tile, "thread": 32, "accesses": []}, "thread"),
    ("solve", (ASKED,), {"time_limit": "5"}, "time_limit: expected seconds, 0 or more, got str '5'"),
    ("check", (ASKED, 3), {}, "expected an expression, a layout or a table, got 3"),
    *((name, ("t.json",), {}, "got str 't.json'") for name in ("solve", "check", "compare", "explain", "emit")),
    *((name, (ASKED,), {"workers": n}, "workers: expected 1 to 1024, got")
      for name in ("solve", "sweep") for n in (0, -1, "2")),
    *((name, (ASKED,), {"method": no}, "method: expected one of auto, model, got ")
      for name in ("solve", "sweep") for no in NO_NAMES),
    *(("emit", (ASKED, "x0*32 + x1"), {"lang": no}, "lang: expected one of cuda,") for no in NO_NAMES),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "named", "message"), WRONG)
def test_what_is_something_else_is_said(name, given, named, message):
    with refused_with(message) as error:
        getattr(layoutopt, name)(*given, **named)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("coordinate", [0.5, "x", None, [0, [1]], 1 << 70])
def test_coordinates_are_integers(coordinate):
    layout = layoutopt.solve(layoutopt.problem(PLAIN), time_limit=1).layout
    with pytest.raises(LayoutError, match="expected integers as coordinates"):
        layout.byte_offset(coordinate, 0)
    for outside in (-1, layout.shape[0]):
        with pytest.raises(LayoutError, match=f"x0: expected 0 to {layout.shape[0] - 1}, got {outside}"):
            layout.byte_offset([0, outside], 0)


def test_a_result_of_another_question_is_refused():
    """Code and comparison would say of one problem what was counted for another."""
    small, large = (layoutopt.load(f"transpose_{n}x32_f32") for n in (16, 32))
    both = transpose()
    one = layoutopt.solve(msgspec.structs.replace(both, accesses=both.accesses[:1]))
    result, other = layoutopt.solve(small), layoutopt.solve(layoutopt.problem(PLAIN))
    with refused_with("made for a tile of shape (8, 8), not (32, 32)"):
        layoutopt.check(both, other)
    for problem, found in ((large, result), (both, one), (both, other), (small, 1), (small, small)):
        for asked in (
            layoutopt.emit,
            lambda *given: layoutopt.compare(*given[:1], known=given[1], time_limit=0),
        ):
            with pytest.raises(ProblemFileError, match=r"the result is of|are not those|expected the result"):
                asked(problem, found)
    assert layoutopt.emit(small, result) == layoutopt.emit(small)
