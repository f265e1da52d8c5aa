"""The counting bound holds for every layout, on every device."""

import random

import numpy as np
import pytest
from conftest import ROOT
from written import one_tile, reads

from layoutopt.accesses.trace import trace
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data, load
from layoutopt.hardware.devices import device, devices
from layoutopt.model.phases import phase_sets
from layoutopt.proof.reasons import COUNTING
from layoutopt.search.solve import solve


def random_problem(rng, target):
    shape = rng.choice([[16, 16], [13, 8], [8, 32], [5, 24]])
    element = rng.choice(["i8", "f16", "f32", "f64", "c128", {"bytes": 12}])
    size = {"i8": 1, "f16": 2, "f32": 4, "f64": 8, "c128": 16}.get(str(element), 12)
    accesses = []
    for k in range(3):
        wide = rng.choice([1, 1, 2, 4])
        if shape[1] % wide or size * wide > 16 or size == 12:
            wide = 1
        width = 4 if size == 12 else size * wide
        inner = shape[1] // wide
        flat = f"({rng.randint(1, 40)}*tid + {rng.randint(0, 9)})"
        index = [f"{flat} // {inner} % {shape[0]}", f"{flat} % {inner} * {wide}"]
        op = rng.choice(["load", "store"])
        accesses.append({"name": f"a{k}", "op": op, "bytes": width, "index": index})
    return from_data(one_tile("random", shape, element, 64, accesses, target=target))


def random_tables(rng, shape, size):
    """Whole rows at aligned places, in any order and with any gaps; sometimes turned by XORs."""
    rows, columns = shape
    for _ in range(6):
        pitch = columns + rng.choice([0, 0, 1, 2, 4, 8]) * max(1, 16 // size)
        start = np.array(rng.sample(range(rows), rows)) * pitch
        yield (start[:, None] + np.arange(columns)) * size
        if not columns & (columns - 1) and size & (size - 1) == 0:
            step = max(1, 16 // size)
            turn = rng.choice([1, 2, 3, 5]) * np.arange(rows) * step % columns
            yield (np.arange(rows)[:, None] * columns + (np.arange(columns) ^ turn[:, None])) * size


@pytest.mark.filterwarnings("ignore::layoutopt.errors.DisputedRuleWarning")
@pytest.mark.parametrize("target", [d.name for d in devices()])
def test_no_layout_goes_below(target):
    rng = random.Random(target)
    gpu, tried = device(target), 0
    while tried < 12:
        problem = random_problem(rng, target)
        try:
            lanes = trace(problem, gpu)
        except ProblemFileError:  # a width that the device does not have
            continue
        tried += 1
        bound = sum(int((s.weight * s.floor).sum()) for s in phase_sets(lanes, problem.tile, gpu))
        for table in random_tables(rng, problem.tile.shape, problem.tile.element_bytes):
            if any(
                (table.ravel()[a.element[a.active]] % a.operation.width_bytes).any()
                for a in lanes.accesses
                if a.width_elements > 1
            ):
                continue
            counts = [
                count_wavefronts(table.ravel()[a.element], a.active, a.operation, gpu) for a in lanes.accesses
            ]
            assert sum(int(c.wavefronts.sum()) for c in counts) >= bound, (problem, table)


def test_two_words_of_one_kepler_row():
    """32 words at the start of consecutive 16-byte elements: pairs 32 words apart go in one wavefront."""
    problem = from_data(one_tile("heads", [32], "c128", 32, [reads("heads", 4, ["tid"])], target="sm_30"))
    gpu = device("sm_30")
    lanes = trace(problem, gpu)
    (heads,) = phase_sets(lanes, problem.tile, gpu)
    (access,) = lanes.accesses
    counts = count_wavefronts(16 * access.element, access.active, access.operation, gpu)
    assert heads.floor.tolist() == counts.wavefronts.tolist() == [2]


def test_the_result_says_that_counting_is_the_reason():
    result = solve(load(ROOT / "problems/transposes/leimao_vectorised_swizzled_f32.json"))
    assert (result.proof.excess.lower_bound, result.proof.excess.scope) == (384, "every layout")
    assert result.proof.evidence == COUNTING.evidence
