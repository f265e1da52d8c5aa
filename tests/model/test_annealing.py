"""Local search for tables: never worse than its start, the same every time, and good where formulas are not."""

import errno
import sys
import types

import numpy as np
import pytest
from oracle.banks import weighted_excess
from written import problem_of

from layoutopt.accesses.trace import trace
from layoutopt.ground.budget import Budget, spending
from layoutopt.hardware.devices import device
from layoutopt.model import placement
from layoutopt.model.annealing import Board, annealed, whole
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import free_assignment


def board(phases, banks, chunks=None, *, times=None, weight=None):
    """Phases over chunks of one size, each a unit of its own."""
    chunks = chunks or 1 + max(map(max, phases))
    at = sorted((c, p, (times or {}).get((p, c), 1)) for p, phase in enumerate(phases) for c in phase)
    at = np.array(at).reshape(-1, 3)
    counted = [sum((times or {}).get((p, c), 1) for c in phase) for p, phase in enumerate(phases)]
    arrays = {
        "first": np.searchsorted(at[:, 0], np.arange(chunks + 1)),
        "phase": at[:, 1],
        "times": at[:, 2],
        "kind": np.zeros(len(at)),
        "bank": np.arange(banks)[None],
        "positions": np.full(chunks, banks),
        "wide": np.ones(chunks),
        "weight": weight or [1] * len(phases),
        "least": [-(-n // banks) for n in counted],
    }
    narrow = {name: np.ascontiguousarray(values, np.int32) for name, values in arrays.items()}
    return Board(**narrow, room=chunks // banks, more=chunks % banks, chains=True)


def excess(given, position):
    """By plain loops."""
    total = 0
    for p, least in enumerate(given.least):
        load = {}
        for c in range(len(given.positions)):
            for j in range(given.first[c], given.first[c + 1]):
                if given.phase[j] == p:
                    bank = given.bank[given.kind[j], position[c]]
                    load[bank] = load.get(bank, 0) + given.times[j]
        total += given.weight[p] * max(0, max(load.values()) - least)
    return total


def lines(n, *steps):
    """Rows of an n x n square, and lines that go so many columns to the right from row to row."""
    square = np.arange(n * n).reshape(n, n)
    turned = [square[np.arange(n), (np.arange(n) * step + start) % n] for step in steps for start in range(n)]
    return [line.tolist() for line in [*square, *turned]]


@pytest.mark.parametrize("seed", range(6))
def test_never_worse_and_always_the_same(seed):
    rng = np.random.default_rng(seed)
    phases = [rng.choice(40, rng.integers(2, 9), replace=False).tolist() for _ in range(12)]
    times = {(p, c): int(rng.integers(1, 3)) for p, phase in enumerate(phases) for c in phase if seed % 2}
    given = board(phases, 8, 40, times=times, weight=rng.integers(1, 5, 12).tolist())
    start = rng.integers(8, size=40)
    found = annealed(given, start, 0, 2)
    assert (found == annealed(given, start, 0, 2)).all()
    assert excess(given, found) <= excess(given, start)
    assert (annealed(given, start, 0, 0) == start).all()


@pytest.mark.parametrize(
    ("lines", "banks", "start", "height"),
    [
        (lines(8, 0), 8, np.zeros(64, np.int64), 8),
        # Rows without conflicts, in as many columns as there are: all but one column is too high.
        (lines(8), 16, np.tile(np.arange(8), 8), 4),
    ],
    ids=["rows and columns", "rows"],
)
def test_conflicts_go_and_columns_are_evened_out(lines, banks, start, height):
    given = board(lines, banks)
    found = annealed(given, start, 0, 6)
    assert excess(given, found) == 0
    assert (np.bincount(found, minlength=banks) == height).all()


def test_without_time_the_start_is_the_answer():
    with spending(Budget(0)):
        assert (annealed(board(lines(4, 0), 4), np.zeros(16, np.int64), 0, 6) == 0).all()


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_nothing_is_compiled_that_the_time_does_not_last_for(monkeypatch, seconds):
    asked = []
    monkeypatch.setattr("layoutopt.model.placement._seconds_to_compile", lambda: seconds)
    monkeypatch.setattr(
        "layoutopt.model.annealing.annealed", lambda _, start, *rest: asked.append(1) or start
    )
    with spending(Budget(30)):
        seven()
    assert bool(asked) == (not seconds)


@pytest.mark.parametrize(("signatures", "ready"), [([], False), (["known"], True)])
def test_what_is_imported_alone_is_still_to_be_compiled(monkeypatch, signatures, ready):
    module = types.SimpleNamespace(cooled=types.SimpleNamespace(signatures=signatures))
    monkeypatch.setitem(sys.modules, "layoutopt.model.annealing", module)
    assert (placement._seconds_to_compile() == 0) == ready


def test_without_a_compiler_nothing_is_annealed(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert not Budget(1e6).affords(placement._seconds_to_compile())


def seven():
    """A stencil of seven points in a block of 8x4x8 with a halo of one, filled cyclically: a warp is a plane."""
    at = "(tid + 256*c)"
    problem, gpu = problem_of(f"""10x6x10 f32, 256 threads
        fill: store 4 [{at}//60, {at}//10%6, {at}%10]; c<3; where {at} < 600
        z: load 4 [tid//32 + 2*h, tid//8%4 + 1, tid%8 + 1]; h<2
        y: load 4 [tid//32 + 1, tid//8%4 + 2*h, tid%8 + 1]; h<2
        x: load 4 [tid//32 + 1, tid//8%4 + 1, tid%8 + c]; c<3"""), device("sm_90")  # fmt: skip
    lanes = trace(problem, gpu)
    sets = phase_sets(lanes, problem.tile, gpu)
    return lanes, free_assignment(sets, lanes, problem.tile, effort=0.1)


def test_a_stencil_of_seven_points_has_few_conflicts():
    """From row-major, in which 58 wavefronts are too many."""
    lanes, found = seven()
    assert found.excess <= 17
    assert weighted_excess(found.table, lanes, device("sm_90")) == found.excess


def doubled(numbers):
    return numbers + numbers


def test_a_cache_that_is_damaged_or_full_costs_no_answer(tmp_path, monkeypatch):
    from numba.core import caching, config

    def called():
        function = whole(doubled)
        assert function(np.ones(3, np.int32)).tolist() == [2, 2, 2]
        return function.stats

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    called()
    kept = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [path.suffix for path in kept] == [".nbc", ".nbi"]
    for damaged in kept:
        for data in (b"", damaged.read_bytes()[:30], b"no pickle"):
            damaged.write_bytes(data)
            assert called().cache_misses
            assert called().cache_hits  # what was damaged is there anew

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    kept[1].unlink()
    monkeypatch.setattr(caching.IndexDataCacheFile, "_save_index", full)
    called()
