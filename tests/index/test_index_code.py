"""Index code: what an access's address costs, wherever the layout comes from."""

import numpy as np
import pytest
from written import problem_of

from layoutopt import solve
from layoutopt.codegen.languages import run_plan
from layoutopt.engine.case import case_of
from layoutopt.errors import VerificationError
from layoutopt.expressions.grammar import Const, evaluate, parse, substituted, to_text
from layoutopt.expressions.simplify import expanded, simplify
from layoutopt.hardware.devices import device
from layoutopt.index import index_code
from layoutopt.index.address_forms import FormSearch
from layoutopt.index.folding import folded, unrolled
from layoutopt.layout.formula import flipped_spelling

SM_90, NAMES = device("sm_90"), frozenset(("x0", "x1"))


def transpose(element="f32"):
    return problem_of(f"""32x32 {element}, 256 threads
        rows: store 4 [tid // 32 + 8*i, tid % 32]; i<4
        columns: load 4 [tid % 32, tid // 32 + 8*i]; i<4""")


def of(text, names=NAMES):
    return parse(text, names)


def test_an_addend_is_free_and_a_flip_is_not():
    case = case_of(transpose(), SM_90)
    for text, looped in (("x0*33 + x1", 0), ("x0*32 + (x1 ^ x0)", 3)):
        found = [code.instructions for code in case.index_code(of(text))]
        assert [(one.looped, one.iterations) for one in found] == [(looped, 4)] * 2


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


def is_seen_to_be_wrong(case, node):
    with pytest.raises(VerificationError, match="does not equal the table"):
        index_code.index_code(case.problem, case.lanes, node, np.arange(1024) * 4 ^ 4)


def test_what_is_known_of_a_formula_is_checked_against_another_table():
    """A formula whose code is kept from one table does not pass for the code of another."""
    case = case_of(transpose("i32"), SM_90)
    node = of("x0*32 + x1")
    index_code.index_code(case.problem, case.lanes, node, np.arange(1024) * 4)
    is_seen_to_be_wrong(case, node)


def test_beyond_millions_of_lanes_the_address_is_taken_as_it_is(monkeypatch):
    case = case_of(transpose("i32"), SM_90)
    for name, value in {"_codes": {}, "_MANY": 512, "_MOST": 512}.items():
        monkeypatch.setattr(index_code, name, value)
    forms = [code.form for code in case.index_code(of("x0*32 + (x1 ^ x0)"))]
    assert [(form.inside, bool(form.positive)) for form in forms] == [(("i",), False)] * 2
    is_seen_to_be_wrong(case, of("x0*32 + x1"))


def test_addresses_that_are_longer_than_their_share_are_taken_as_they_are(monkeypatch):
    """Of hundreds of accesses with expressions of hundreds of operators, the search would take minutes."""
    long = " + ".join(f"(tid*{k} ^ i*{k + 7}) // {k + 2}" for k in range(1, 50))
    lines = (f"a{k}: load 4 [({long} + {k}) % 1024]; i<8; where ({long}) % 3" for k in range(8))
    case = case_of(problem_of("1024 f32, 256 threads", *lines, "short: load 4 [tid]"), SM_90)
    sought = []

    class Search(FormSearch):
        def cheapest(self, addresses):
            sought.append(addresses)
            return super().cheapest(addresses)

    monkeypatch.setattr(index_code, "_codes", {})
    monkeypatch.setattr(index_code, "FormSearch", Search)
    *long_ones, short = case.index_code(of("x0"))
    assert (len(sought), short.instructions.total <= 1) == (1, True)
    env = {"tid": np.arange(256), "i": np.arange(8)[:, None]}
    for code, lanes in zip(long_ones, case.lanes.accesses, strict=False):
        assert code.instructions.total > 8 * 49
        right = evaluate(code.form.address, env) == lanes.element.reshape(8, 256) * 4
        assert (right | ~lanes.active.reshape(8, 256)).all()
    is_seen_to_be_wrong(case, of("x0*1"))


@pytest.mark.parametrize(
    ("access", "cost"),
    [
        ("[(tid*3 ^ i) % 4096]; i<4", 1 + 3),
        # Every iteration under a predicate of its own adds the tile's start, after what it flips ...
        ("[(tid*3 ^ i) % 4096]; i<4; where tid < 200 - i", 1 + 3 + 4),
        # ... which a product takes up in its own instruction, again in each iteration, and a sum before.
        ("[tid*3 + i*8]; i<4; where tid < 200 - i", 4),
        ("[tid*5 + tid // 16 + i*8]; i<4; where tid < 200 - i", 3),
    ],
)
def test_behind_predicates_the_start_is_added(access, cost):
    assert instructions(problem_of("4096 4B@4, 256 threads", f"a: load 4 {access}"), of("x0")) == cost


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("(tid << 5) // 16", "(tid << 5) // 16"),
        ("tid*32 // 16", "tid*2"),
        ("((tid << 5) + 16) // 16 & 28", "tid*2 & 28"),
        ("(tid*32 + 16) // 16 & 28", "tid*2 & 28"),
    ],
)
def test_a_shift_to_the_left_may_lose_bits_that_a_product_may_not(text, short):
    """(tid << 5) >> 4 stays two shifts; tid*32 / 16 is one; under a mask both are."""
    assert to_text(folded(of(text, frozenset(("tid",))))) == short


@pytest.mark.parametrize(
    ("offset", "shape"),
    [
        ("x0*64 + (x1 ^ x0 % 8 * 8)", (128, 64)),
        ("x0*36 + x1 ^ (x0*36 + x1) // 32 % 4", (30, 33)),
        ("(x0 % 4 * 2 ^ x1) + x0*32", (32, 32)),
        ("x0*32 + x1", None),  # no flips of higher bits
        ("x0 ^ x1", None),
        ("x0*32 + (x1 ^ x0*x0 % 32)", None),
    ],
)
def test_flips_are_found_as_bits_of_the_linear_offset(offset, shape):
    node, found = of(offset), flipped_spelling(of(offset), shape or (32, 32), 4)
    if shape is None:
        assert found is None
        return
    env = {f"x{d}": g for d, g in enumerate(np.indices(shape, sparse=True))}
    assert (evaluate(found, env) == 4 * evaluate(node, env)).all()
    assert "&" in to_text(found)


RANGES = {"x0": (0, 31), "x1": (0, 63), "tid": (0, 127), "m": (0, 15)}


@pytest.mark.parametrize(
    ("change", "text", "short"),
    [
        (simplify, "x0*64 + x1 + (x1 // 32 + x0*2)", "x0*66 + x1 + x1 // 32"),
        (simplify, "x0*32 + (x1 ^ x0)", "x0*32 + (x1 ^ x0)"),
        (expanded, "((0 - tid)*17 + (tid + (0 - tid)) % 17)*4 + m*72", "m*72 - tid*68"),
        (expanded, "((m - tid + 1)*17 + tid % 4*2)*4 // 8", None),
        (expanded, "(x0*4 ^ x1 % 8*2)*4 + (x0*4 + 8) % 16", None),
        (expanded, "(x0*36 + x1) % 32 * 3 - -x1 * 2", None),
    ],
)
def test_sums_expand_and_like_terms_meet(change, text, short):
    node = of(text, frozenset(RANGES))
    found = change(node, RANGES)
    env = dict(zip(RANGES, np.ogrid[tuple(slice(high + 1) for _, high in RANGES.values())], strict=True))
    assert (evaluate(found, env) == evaluate(node, env)).all()
    assert short in (None, to_text(found))


def instructions(problem, layout):
    return sum(code.instructions.total for code in case_of(problem, SM_90).index_code(layout))


ROWS, COLUMNS = "rows: load 4 [i, tid]; i<32", "columns: load 4 [tid, i]; i<32"


@pytest.mark.parametrize(
    ("accesses", "layout", "offset", "proved"),
    [
        ([ROWS], "", "x0*32 + x1", True),
        ([ROWS, COLUMNS], "", "x0*32 + (x1 ^ x0)", False),
        ([ROWS, COLUMNS], "; families pad", "x0*33 + x1", True),
        ([ROWS, COLUMNS], "; families rotate", None, False),
        (["first: load 4 [0, i]; i<32", ROWS], "", "x0*32 + x1", True),
    ],
)
def test_the_cost_is_that_of_the_emitted_code_and_least_where_every_access_takes_what_it_must(
    accesses, layout, offset, proved
):
    asked = problem_of(f"32x32 f32, 32 threads{layout}", *accesses)
    result = solve(asked)
    cost = result.proof.index_cost
    assert (offset or result.offset, cost.proved) == (result.offset, proved)
    emitted = sum(a.instructions.total for a in run_plan(asked, SM_90, result).accesses)
    by_text = instructions(asked, of(result.offset))
    assert cost.value == instructions(asked, result.layout) == by_text == emitted


@pytest.mark.parametrize(
    ("threads", "element", "access", "least"),
    [
        (32, "f32", "4 [i, tid]", 1),
        (32, "f32", "4 [tid % 4, i]", 1),
        (32, "f32", "4 [i, 3]", 0),  # one address for all
        (32, "u8", "1 [i, tid]", 0),  # the number of the thread is its address
        (32, "u8", "4 [i, tid // 8 * 4]", 1),
        (1, "f32", "4 [i, tid]", 0),
    ],
)
def test_what_no_layout_undercuts(threads, element, access, least):
    asked = problem_of(f"32x32 {element}, {threads} threads", f"a: load {access}; i<32")
    assert case_of(asked, SM_90).least_instructions == least
