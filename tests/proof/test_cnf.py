"""CNF of the parity form and of free assignments, given to a SAT solver that knows nothing of CP-SAT."""

import itertools
import random

import numpy as np
import pytest
from oracle import toy
from oracle.toy import every_placement
from pysat.solvers import Solver
from written import by_lane, problem_of

from layoutopt.accesses.trace import trace
from layoutopt.model.cp_sat import Model, Outcome
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import question
from layoutopt.proof.cnf import dimacs
from layoutopt.proof.reasons import SearchLimits, every_layout


def satisfiable(cnf):
    """The verdict of CaDiCaL, and its model as a dictionary."""
    lines = [line for line in cnf.splitlines() if line[0] != "c"]
    variables, clauses = map(int, lines[0].split()[2:])
    assert clauses == len(lines) - 1
    given = [list(map(int, line.split()[:-1])) for line in lines[1:]]
    assert all(1 <= abs(literal) <= variables for clause in given for literal in clause)
    with Solver("cadical153", bootstrap_with=given) as solver:
        return solver.solve()


def placeable(rows):
    """Exhaustive search over four banks for each of six words, left at the first conflict."""
    meet = {frozenset(pair) for row in rows for pair in itertools.combinations(row, 2)}

    def extend(bank):
        free = (b for b in range(4) if all(bank[m] != b for m in range(len(bank)) if {m, len(bank)} in meet))
        return len(bank) == 6 or any(extend([*bank, b]) for b in free)

    return extend([])


def test_free_assignments_agree_with_enumeration_and_a_sat_solver():
    """Phases of two to four of six words, on four banks."""
    verdicts, gpu = [], toy.toy_device(4, 4)
    for seed in range(200):
        rng = random.Random(seed)
        rows = [rng.sample(range(6), rng.randint(2, 4)) for _ in range(rng.randint(3, 9))]
        lines = (f"a{k}: load 4 [{by_lane(row)}]; where tid < {len(row)}" for k, row in enumerate(rows))
        problem = problem_of("6 f32, 4 threads", *lines)
        lanes = trace(problem, gpu)
        verdicts.append(placeable(rows))
        conflict_free = every_layout(problem.tile, gpu, lanes, SearchLimits(), enough=1)
        assert (conflict_free.bound == 0) == verdicts[-1], seed
        if seed < 60:
            general = every_layout(problem.tile, gpu, lanes, SearchLimits(), enough=None)
            cnf = question(phase_sets(lanes, problem.tile), lanes, problem.tile, None)
            assert general.free.excess == general.bound, seed
            assert satisfiable(dimacs(cnf)) == (general.bound == 0) == verdicts[-1], seed
        if seed < 20:
            plain = [(("load", 4, [[*row, *[None] * (4 - len(row))]]), 1) for row in rows]
            assert every_placement(6, plain, 4, 4)[0] == general.bound, seed
    assert 40 < sum(verdicts) < 160


@pytest.mark.parametrize("count", range(1, 12))
def test_at_most_one_of_any_size(count):
    for forced in range(min(3, count + 1)):
        model = Model()
        literals = [model.boolean() for _ in range(count)]
        model.at_most_one(literals)
        for k in np.random.default_rng(count).permutation(count)[:forced]:
            model.clause([literals[k]])
        assert satisfiable(dimacs(model.to_text())) == (forced < 2)
        assert (model.solve().outcome is not Outcome.INFEASIBLE) == (forced < 2)


def test_sums_are_refused():
    model = Model()
    literals = [model.boolean() for _ in range(4)]
    model.at_most([(literal, 1) for literal in literals], 2)
    assert dimacs(model.to_text()) is None
    wide = Model()
    wide.integer(0, 5)
    assert dimacs(wide.to_text()) is None
