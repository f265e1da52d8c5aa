"""Index code: what an access's address costs, wherever the layout comes from."""

import numpy as np
import pytest
from written import data_of, one_tile, problem_of, reads

from layoutopt import compare, solve
from layoutopt.codegen.languages import run_plan
from layoutopt.engine.case import case_of
from layoutopt.errors import VerificationError
from layoutopt.expressions.grammar import Const, evaluate, parse, substituted, to_text
from layoutopt.expressions.simplify import expanded, simplify
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.index import index_code
from layoutopt.index.address_forms import FormSearch
from layoutopt.index.folding import folded, unrolled
from layoutopt.layout.formula import flipped_spelling


def transpose(element="f32"):
    return problem_of(f"""32x32 {element}, 256 threads
        rows: store 4 [tid // 32 + 8*i, tid % 32]; i<4
        columns: load 4 [tid % 32, tid // 32 + 8*i]; i<4""")


def test_an_addend_is_free_and_a_flip_is_not():
    case = case_of(transpose(), device("sm_90"))
    pad, flip = (parse(text, frozenset(("x0", "x1"))) for text in ("x0*33 + x1", "x0*32 + (x1 ^ x0)"))
    assert [code.instructions.looped for code in case.index_code(pad)] == [0, 0]
    assert [code.instructions.looped for code in case.index_code(flip)] == [3, 3]
    assert [code.instructions.iterations for code in case.index_code(flip)] == [4, 4]


def test_the_same_number_for_a_result_its_formula_and_the_code():
    problem, gpu = transpose(), device("sm_90")
    result = solve(problem)
    case = case_of(problem, gpu)
    numbers = [
        [code.instructions for code in case.index_code(result.layout)],
        [code.instructions for code in case.index_code(parse(result.offset, frozenset(("x0", "x1"))))],
        [access.instructions for access in run_plan(problem, gpu, result).accesses],
        [access.instructions for access in run_plan(problem, gpu, result.offset).accesses],
    ]
    assert all(mine == numbers[0] for mine in numbers)


@pytest.mark.parametrize(
    "text",
    [
        "(tid*58 + i)*4 ^ (tid*58 + i)*4 // 32 & 4 + k % 2",
        "tid // (i + 1) + (tid if k == i else 7 // (k - i)) + [3, 1, 2, 5][i] + [4, 4][tid % 2]",
        "min(tid, i*4, k) - (k*3 << i) + ~tid",
        "((tid << i + 1) + (1 << i)) // 16*4 + ((tid << i) + k) // 8 % 4 + ((tid << 2) + i) // 4",
        "((1 << i)*(tid*2 + k) + 7) // 8 + 31 & 28 ^ ((tid*8 + i) & 6) ^ (tid*12 + 5 + k) // 4 & 3 ^ (tid << 3 & 7)",
        "((tid*16 + i*5) ^ k*3) - 4 + ((tid ^ i) * 4 + 9 - i & 60)",
    ],
)
def test_each_iteration_is_what_constants_in_place_of_the_variables_fold_to(text):
    node = parse(text, frozenset(("tid", "i", "k")))
    wanted = [folded(substituted(node, {"i": Const(i), "k": Const(k)})) for i in range(4) for k in range(3)]
    env = {"tid": np.arange(32)}
    found = list(unrolled(node, {"i": 4, "k": 3}, range(12)))
    assert list(unrolled(node, {"i": 4, "k": 3}, [7, 2])) == [found[7], found[2]]
    for mine, one in zip(found, wanted, strict=True):
        assert (evaluate(mine, env) == evaluate(one, env)).all()


def test_beyond_millions_of_lanes_the_address_is_taken_as_it_is(monkeypatch):
    case = case_of(transpose("i32"), device("sm_90"))
    monkeypatch.setattr(index_code, "_codes", {})
    for limit in ("_MANY", "_MOST"):
        monkeypatch.setattr(index_code, limit, 512)
    for code in case.index_code(parse("x0*32 + (x1 ^ x0)", frozenset(("x0", "x1")))):
        assert code.form.inside == ("i",)
        assert not code.form.positive
    # That it equals the table is still seen.
    with pytest.raises(VerificationError, match="does not equal the table"):
        index_code.index_code(
            case.problem,
            case.device,
            case.lanes,
            parse("x0*32 + x1", frozenset(("x0", "x1"))),
            np.arange(1024) * 4 ^ 4,
        )


def test_addresses_that_are_longer_than_their_share_are_taken_as_they_are(monkeypatch):
    """Of hundreds of accesses with expressions of hundreds of operators, the search would take minutes."""
    long = " + ".join(f"(tid*{k} ^ i*{k + 7}) // {k + 2}" for k in range(1, 50))
    accesses = [reads(f"a{k}", 4, [f"({long} + {k}) % 1024"], i=8, where=f"({long}) % 3") for k in range(8)]
    accesses.append(reads("short", 4, ["tid"]))
    problem = problem_of("1024 f32, 256 threads", *accesses)
    case = case_of(problem, device("sm_90"))
    monkeypatch.setattr(index_code, "_codes", {})
    sought = []

    class Search(FormSearch):
        def cheapest(self, addresses):
            sought.append(addresses)
            return super().cheapest(addresses)

    monkeypatch.setattr(index_code, "FormSearch", Search)
    *long_ones, short = case.index_code(parse("x0", frozenset(("x0",))))
    assert len(sought) == 1
    assert short.instructions.total <= 1
    for code, lanes in zip(long_ones, case.lanes.accesses, strict=False):
        assert code.instructions.total > 8 * 49
        env = {"tid": np.arange(256), "i": np.arange(8)[:, None]}
        wanted = lanes.element.reshape(8, 256)
        right = (evaluate(code.form.address, env) == wanted * 4) | ~lanes.active.reshape(8, 256)
        assert right.all()
    with pytest.raises(VerificationError, match="does not equal the table"):
        index_code.index_code(
            case.problem, case.device, case.lanes, parse("x0*1", frozenset(("x0",))), np.arange(1024) * 4 ^ 4
        )


def _cost(index, where=None, loops=None):
    access = {"name": "a", "op": "load", "bytes": 4, "index": [index], "for": loops or {"i": 4}}
    access |= {} if where is None else {"where": where}
    case = case_of(problem_of("4096 f32, 256 threads", access), device("sm_90"))
    (code,) = case.index_code(parse("x0", frozenset(("x0",))))
    return code.instructions.total


@pytest.mark.parametrize(
    ("index", "where", "cost"),
    [
        ("(tid*3 ^ i) % 4096", None, 1 + 3),
        # Every iteration under a predicate of its own adds the tile's start, after what it flips ...
        ("(tid*3 ^ i) % 4096", "tid < 200 - i", 1 + 3 + 4),
        # ... which a product takes up in its own instruction, again in each iteration, and a sum before.
        ("tid*3 + i*8", "tid < 200 - i", 4),
        ("tid*5 + tid // 16 + i*8", "tid < 200 - i", 3),
    ],
)
def test_behind_predicates_the_start_is_added(index, where, cost):
    access = reads("a", 4, [index], i=4)
    access |= {} if where is None else {"where": where}
    case = case_of(problem_of("4096 4B@4, 256 threads", access), device("sm_90"))
    (code,) = case.index_code(parse("x0", frozenset(("x0",))))
    assert code.instructions.total == cost


def test_a_shift_to_the_left_may_lose_bits_that_a_product_may_not():
    """(tid << 5) >> 4 stays two shifts; tid*32 / 16 is one; under a mask both are."""
    texts = "(tid << 5) // 16", "tid*32 // 16", "((tid << 5) + 16) // 16 & 28", "(tid*32 + 16) // 16 & 28"
    found = [to_text(folded(parse(text, frozenset(("tid",))))) for text in texts]
    assert found == ["(tid << 5) // 16", "tid*2", "tid*2 & 28", "tid*2 & 28"]


@pytest.mark.parametrize(
    ("offset", "shape"),
    [
        ("x0*64 + (x1 ^ x0 % 8 * 8)", (128, 64)),
        ("x0*36 + x1 ^ (x0*36 + x1) // 32 % 4", (30, 33)),
        ("(x0 % 4 * 2 ^ x1) + x0*32", (32, 32)),
    ],
)
def test_flips_are_found_as_bits_of_the_linear_offset(offset, shape):
    node = parse(offset, frozenset(("x0", "x1")))
    env = {f"x{d}": g for d, g in enumerate(np.indices(shape, sparse=True))}
    found = flipped_spelling(node, shape, 4)
    assert (evaluate(found, env) == 4 * evaluate(node, env)).all()
    assert "&" in to_text(found)


@pytest.mark.parametrize("offset", ["x0*32 + x1", "x0 ^ x1", "x0*32 + (x1 ^ x0*x0 % 32)"])
def test_no_flips_of_higher_bits(offset):
    assert flipped_spelling(parse(offset, frozenset(("x0", "x1"))), (32, 32), 4) is None


def test_sums_expand_and_like_terms_meet():
    ranges = {"x0": (0, 31), "x1": (0, 63), "tid": (0, 127), "m": (0, 15)}
    names = frozenset(ranges)
    for text, short in (
        ("x0*64 + x1 + (x1 // 32 + x0*2)", "x0*66 + x1 + x1 // 32"),
        ("x0*32 + (x1 ^ x0)", "x0*32 + (x1 ^ x0)"),
    ):
        assert to_text(simplify(parse(text, names), ranges)) == short
    for text in (
        "((0 - tid)*17 + (tid + (0 - tid)) % 17)*4 + m*72",
        "((m - tid + 1)*17 + tid % 4*2)*4 // 8",
        "(x0*4 ^ x1 % 8*2)*4 + (x0*4 + 8) % 16",
        "(x0*36 + x1) % 32 * 3 - -x1 * 2",
    ):
        node = parse(text, names)
        env = {
            v: np.arange(r[1] + 1).reshape([-1 if k == j else 1 for j in range(4)])
            for k, (v, r) in enumerate(ranges.items())
        }
        assert (evaluate(expanded(node, ranges), env) == evaluate(node, env)).all(), text
    assert (
        to_text(expanded(parse("((0 - tid)*17 + (tid + (0 - tid)) % 17)*4 + m*72", names), ranges))
        == "m*72 - tid*68"
    )


def problem(shape, element, *accesses, **layout):
    described = [reads(f"a{k}", width, index, i=trips) for k, (width, index, trips) in enumerate(accesses)]
    return from_data(one_tile("p", shape, element, 32, described, layout=layout))


def instructions(problem, layout):
    return sum(code.instructions.total for code in case_of(problem, device("sm_90")).index_code(layout))


@pytest.mark.parametrize(
    ("accesses", "layout", "offset", "proved"),
    [
        ([(4, ["i", "tid"], 32)], {}, "x0*32 + x1", True),
        ([(4, ["i", "tid"], 32), (4, ["tid", "i"], 32)], {}, "x0*32 + (x1 ^ x0)", False),
        ([(4, ["i", "tid"], 32), (4, ["tid", "i"], 32)], {"families": ["pad"]}, "x0*33 + x1", True),
        ([(4, ["i", "tid"], 32), (4, ["tid", "i"], 32)], {"families": ["rotate"]}, None, False),
        ([(4, ["0", "i"], 32), (4, ["i", "tid"], 32)], {}, "x0*32 + x1", True),
    ],
)
def test_the_cost_is_that_of_the_emitted_code_and_least_where_every_access_takes_what_it_must(
    accesses, layout, offset, proved
):
    asked = problem([32, 32], "f32", *accesses, **layout)
    result = solve(asked)
    cost = result.proof.index_cost
    assert offset is None or result.offset == offset
    assert cost.value == instructions(asked, result.layout)
    assert cost.value == sum(a.instructions.total for a in run_plan(asked, device("sm_90"), result).accesses)
    assert cost.proved is proved


@pytest.mark.parametrize(
    ("threads", "element", "width", "index", "least"),
    [
        (32, "f32", 4, ["i", "tid"], 1),
        (32, "f32", 4, ["tid % 4", "i"], 1),
        (32, "f32", 4, ["i", "3"], 0),  # one address for all
        (32, "u8", 1, ["i", "tid"], 0),  # the number of the thread is its address
        (32, "u8", 4, ["i", "tid // 8 * 4"], 1),
        (1, "f32", 4, ["i", "tid"], 0),
    ],
)
def test_what_no_layout_undercuts(threads, element, width, index, least):
    data = {"name": "p", "tile": {"shape": [32, 32], "element": element}, "threads": threads}
    data["accesses"] = [reads("a", width, index, i=32)]
    assert case_of(from_data(data), device("sm_90")).least_instructions == least


def test_instructions_first_takes_no_more_of_them_than_any_row():
    data = data_of("""16x32 f32, 64 threads
        fill: store 4 [tid // 32 + 2*i, tid % 32]; i<8
        use: load 16 [tid // 4, 4*(tid % 4) + 16*k]; k<2""")
    usual = from_data(data)
    first = from_data(data | {"layout": {"minimise": "instructions"}})
    rows = compare(usual).rows
    for conflict_free in (False, True):
        result = solve(first, conflict_free=conflict_free)
        assert result.proof.index_cost.value == instructions(usual, result.layout)
        mine = [row.instructions for row in rows if row.excess == 0 or not conflict_free]
        assert result.proof.index_cost.value <= min(mine)
        assert result.excess == 0 or not conflict_free
        assert result.status == "feasible" or result.proof.index_cost.proved
