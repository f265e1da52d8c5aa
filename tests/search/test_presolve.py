"""What is known before the model is asked."""

import pytest
from written import one_tile, reads, writes

from layoutopt import load, solve
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.search.presolve import Presolve, Verdict
from layoutopt.search.reach_floor import ReachFloor


def answer(result):
    return result.status, result.weighted_excess, result.bytes


def test_dense_layouts_that_do_need_no_model():
    grown = solve(load("stencils/cuda_samples_optical_flow_8x34_f32")).model
    assert (grown.rounds, grown.written_out) == (0, 0)


def test_what_spectra_refute_is_never_written_out(monkeypatch):
    problem = load("ggml/flash_attention_tile_k_d40")
    few = solve(problem).model.written_out
    monkeypatch.setattr(Presolve, "_by_spectra", lambda self, *_: Verdict())
    assert few < solve(problem).model.written_out


@pytest.mark.parametrize("method", ["auto", "model"])
def test_words_that_merge_cost_no_bytes_to_keep_apart(method):
    """Where 8 words of a group are served by 4 banks, dense rows take more passes, all of them needed."""
    rules = {
        ("load", 4): PhaseRule((tuple(range(8)),), 4, 4, row_words=8),
        ("load", 16): PhaseRule(((0, 1), (2, 3), (4, 5), (6, 7)), 4, 4),
    }
    rows = {"op": "load", "bytes": 4, "index": ["(tid + i) // 8 % 8", "(tid + i) % 8"], "for": {"i": 3}}
    vectors = {"op": "load", "bytes": 16, "index": ["tid % 8", "4*(tid // 8 % 2)"]}
    accesses = [{"name": "rows", **rows}, {"name": "vectors", **vectors}]
    problem = from_data(one_tile("p", [8, 8], "f32", 16, accesses))
    result = solve(problem, target=Device("toy", "toy", 8, 4, 4, rules), method=method)
    assert answer(result) == ("optimal", 0, 256)


def test_out_of_time_lines_that_start_at_the_first_bank_are_looked_at(monkeypatch):
    """Both diagonals of 48 lines: hundreds of pitches by rising span come before the one that serves them."""
    monkeypatch.setattr(ReachFloor, "_solved", lambda self: False)
    diagonals = {"down": "(tid + i) % 48", "up": "(432 - tid + i) % 48"}
    data = {
        "name": "t",
        "tile": {"shape": [48, 48], "element": "f32"},
        "threads": 64,
        "layout": {"families": ["order", "pad", "xor"]},
        "accesses": [reads(name, 4, ["tid % 48", column], i=48) for name, column in diagonals.items()],
    }
    found = solve(from_data(data))
    assert (found.status, found.excess, found.bytes) == ("feasible", 0, 12288)
    assert found.proof.bytes.lower_bound == 9216


def test_out_of_time_nothing_is_infeasible_that_was_not_looked_at(monkeypatch):
    """Nothing that was looked at fits into the fewest bytes; what does was not."""
    monkeypatch.setattr(ReachFloor, "_solved", lambda self: False)
    accesses = [writes("a", 4, ["tid // 16", "2*(tid % 16)"])]
    data = one_tile(
        "t", [32, 32], "f16", 32, accesses, layout={"pitch_multiple_bytes": 6, "minimise": "bytes"}
    )
    assert solve(from_data(data)).status != "infeasible"


def test_lines_that_start_at_the_first_bank_keep_the_pitch_asked_for(monkeypatch):
    monkeypatch.setattr(ReachFloor, "_solved", lambda self: False)
    rows = reads("rows", 8, ["tid % 32", "i"], i=4)
    data = one_tile("t", [32, 4], "f64", 32, [rows], layout={"pitch_multiple_bytes": 24})
    found = solve(from_data(data))
    assert [d.stride * 8 % 24 for d in found.layout.digits if d.dim == 0 and d.size > 1] == [0]


def test_the_one_order_of_thousands_that_does_is_found():
    """Eight dimensions, so 40,320 orders; the first that do come behind more than there is time to look at."""
    fill = {
        "name": "fill", "op": "store", "bytes": 4, "for": {"i": 3, "j": 3, "k": 3},
        "index": ["lane % 2", "i", "lane // 2 % 2", "j", "lane // 4 % 2", "k", "lane // 8 % 2", "lane // 16"],
    }  # fmt: skip
    read = {
        "name": "read", "op": "load", "bytes": 4, "for": {"i": 2, "j": 2, "k": 2, "l": 2, "m": 5}, "where": "lane < 27",
        "index": ["i", "lane % 3", "j", "lane // 3 % 3", "k", "lane // 9", "l", "m"],
    }  # fmt: skip
    data = {"name": "many", "tile": {"shape": [2, 3, 2, 3, 2, 3, 2, 5], "element": "f32"}, "threads": 32}
    found = solve(from_data(data | {"accesses": [fill, read]}))
    assert (found.status, found.family, found.excess, found.bytes) == ("optimal", "order", 0, 8640)
    assert found.model.rounds == 0
