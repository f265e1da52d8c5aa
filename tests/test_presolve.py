"""The rules before the model: none of them changes an answer, alone or together."""

import itertools

import pytest
from test_method_model import asked

from layoutopt import load, solve
from layoutopt.problems.file import from_data
from layoutopt.search import presolve

EVERY = (*presolve.FIRST, *presolve.RULES)
SUBSETS = [names for count in range(len(EVERY) + 1) for names in itertools.combinations(EVERY, count)]


@pytest.fixture
def only(monkeypatch):
    """Keep the rules of these names."""

    def keep(names):
        for rules in (presolve.FIRST, presolve.RULES):
            for name in [name for name in rules if name not in names]:
                monkeypatch.delitem(rules, name)

    return keep


def answer(result):
    return result.status, result.weighted_excess, result.bytes


@pytest.mark.parametrize("names", SUBSETS, ids="+".join)
def test_no_rule_changes_an_answer(names, only):
    problems = []
    for seed in range(6100, 6112):
        data, _, device, _ = asked(seed)
        problems.append((from_data(data), device))
    wanted = [answer(solve(p, target=device, method="model")) for p, device in problems]
    only(names)
    assert [answer(solve(p, target=device)) for p, device in problems] == wanted


def test_without_rules_the_method_is_the_model(only):
    only(())
    for name in ("awq/b_64x32_f16", "sparse/tc_gnn_sddmm_x_16x8_tf32"):
        usual, found = solve(load(name)), solve(load(name), method="model")
        assert (usual.offset, usual.model) == (found.offset, found.model)


def test_dense_layouts_that_do_need_no_model():
    grown = solve(load("stencils/arrayfire_median_15x15_f32")).model
    assert (grown.rounds, grown.written_out) == (0, 0)


def test_what_spectra_refute_is_never_written_out(only):
    name = "ggml/flash_attention_tile_k_d40"
    few = solve(load(name)).model.written_out
    only(("dense", "counted"))
    assert few < solve(load(name)).model.written_out
