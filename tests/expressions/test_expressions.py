"""The expression grammar: values, text and refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.codegen.c_text import to_c
from layoutopt.errors import ExpressionError
from layoutopt.expressions.grammar import MAX_VALUE, Const, Op, Var, evaluate, names, parse, to_text
from layoutopt.expressions.simplify import bounds, simplify

NAMES = frozenset(("a", "b", "c"))
RANGES = {"a": (-9, 30), "b": (0, 12), "c": (1, 5)}


def grid():
    axes = [np.arange(low, high + 1) for low, high in RANGES.values()]
    return dict(zip(RANGES, (g.astype(np.int64) for g in np.meshgrid(*axes, indexing="ij")), strict=True))


BINARY = ["+", "-", "*", "&", "|", "^", "<", "<=", ">", ">=", "==", "!=", "and", "or", "min", "max"]


def nodes():
    leaves = st.one_of(st.builds(Const, st.integers(0, 40)), st.sampled_from([Var(n) for n in sorted(NAMES)]))

    def of(symbols, *parts):
        return st.builds(lambda symbol, *args: Op(symbol, args), st.sampled_from(symbols), *parts)

    def extend(inner):
        divisor, shift = (st.builds(Const, st.integers(*ends)) for ends in ((1, 17), (0, 3)))
        return st.one_of(
            of(BINARY, inner, inner),
            of(["//", "%"], inner, divisor),
            of(["<<", ">>"], inner, shift),
            of(["neg", "~", "not"], inner),
            of(["if"], inner, inner, inner),
        )

    return st.recursive(leaves, extend, max_leaves=8)


def python_value(node, env):
    """The same expression, evaluated one number at a time by Python itself."""
    return int(eval(to_text(node), {"min": min, "max": max}, env))


def truth(node):
    """Python's and/or return operands; ours return 0 or 1. Compare where the two agree."""
    if isinstance(node, Op):
        if node.symbol in ("and", "or") and not all(boolean(a) for a in node.args):
            return False
        return all(truth(a) for a in node.args)
    return True


def boolean(node):
    return isinstance(node, Op) and node.symbol in ("<", "<=", ">", ">=", "==", "!=", "not", "and", "or")


@given(nodes().filter(truth), st.data())
def test_evaluates_as_python_does(node, data):
    env = {name: data.draw(st.integers(*RANGES[name])) for name in RANGES}
    arrays = {name: np.array([value]) for name, value in env.items()}
    try:
        ours = int(np.broadcast_to(evaluate(node, arrays), 1)[0])
    except ExpressionError:
        return  # beyond 2**62
    assert ours == python_value(node, env)


@given(nodes())
def test_text_reads_back_as_the_same_expression(node):
    assert to_text(parse(to_text(node), NAMES)) == to_text(node)


@given(nodes())
def test_bounds_hold_and_simplifying_changes_no_value(node):
    env = grid()
    try:
        values = np.broadcast_to(evaluate(node, env), env["a"].shape)
        simple = np.broadcast_to(evaluate(simplify(node, RANGES), env), env["a"].shape)
    except ExpressionError:
        return
    low, high = bounds(node, RANGES)
    assert low <= values.min()
    assert values.max() <= high
    assert (values == simple).all()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 // 2", 3), ("-7 // 2", -4), ("-7 % 3", 2), ("1 << 4 | 1", 17), ("5 ^ 1 & 3", 4),
        ("2 if 1 > 2 else 3", 3), ("min(3, 1, 2)", 1), ("max(1, 2)", 2), ("not 0", 1), ("~5", -6),
        ("1 < 2 < 3", 1), ("3 > 2 > 2", 0), ("0x1f", 31), ("True + 1", 2), ("5 and 0 or 3", 1),
    ],
)  # fmt: skip
def test_values(text, value):
    assert int(evaluate(parse(text, NAMES), {})) == value


def test_untaken_branches_do_not_fail():
    x = np.arange(4)
    node = parse("12 // a if a > 0 else 0", NAMES)
    assert evaluate(node, {"a": x}).tolist() == [0, 12, 6, 4]
    assert evaluate(parse("a != 0 and 12 % a == 0", NAMES), {"a": x}).tolist() == [0, 1, 1, 1]
    assert evaluate(parse("6 // a", NAMES), {"a": x}, x > 0)[1:].tolist() == [6, 3, 2]


def test_faults_name_the_first_position():
    with pytest.raises(ExpressionError, match="division by zero") as fault:
        evaluate(parse("5 // (a - 2)", NAMES), {"a": np.arange(4)})
    assert fault.value.position == 2
    for text, value, said in (
        ("1 << a", 63, r"shift outside 0\.\.62"),
        ("a * a", 1 << 40, r"beyond 2\*\*62"),
    ):
        with pytest.raises(ExpressionError, match=said):
            evaluate(parse(text, NAMES), {"a": np.array([value])})
    assert int(evaluate(parse("a + 0", NAMES), {"a": np.array([MAX_VALUE])})[0]) == MAX_VALUE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"), ("a +", "not an expression"), ("a / 2", "write '//'"), ("a ** 2", "not allowed"),
        ("d + 1", "unknown name 'd'"), ("__import__('os')", "not allowed"), ("a.real", "not allowed"),
        ("a[0]", "not allowed"), ("lambda: 1", "not allowed"), ("1.5", "not allowed"), ("'x'", "not allowed"),
        ("min(a)", "not allowed"), ("max(*a)", "not allowed"), ("[a for a in b]", "not allowed"),
        ("a := 3", "not an expression"), ("1" * 30, "beyond"),
        ("-" * 200 + "a", "nested"), ("a+" * 2500 + "a", "characters"), ("+".join("a" * 1500), "nested"),
        ("a" + ".a" * 1900, "."), ("a ** 0x" + "f" * 3900, "."), ("-" * 3000 + "a", "."), ("f(" * 1000, "."),
        ("a\x00", "not an expression|invalid"), ("a in b", "not allowed"), ("a if b", "not an expression"),
    ],
)  # fmt: skip
def test_refusals(text, message):
    with pytest.raises(ExpressionError, match=message):
        parse(text, NAMES)


def test_names_and_redundant_parentheses():
    assert parse("(" * 70 + "a" + ")" * 70, NAMES) == Var("a")
    assert names(parse("a + min(b, 3)", NAMES)) == {"a", "b"}


def test_c_keeps_floor_semantics():
    assert to_c(parse("a // 8", NAMES), RANGES) == "a >> 3"
    assert to_c(parse("b % 3", NAMES), RANGES) == "b % 3"
    assert "!=" in to_c(parse("a % 3", NAMES), RANGES)
