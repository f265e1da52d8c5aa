"""Templates: parameters in a problem file, and what they become."""

import json

import numpy as np
import pytest
from command import layoutopt
from written import data_of, saved

from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.files.templates import expand, single, value_of

TEMPLATE = data_of(
    """32 threads
    rows: op 4 [i // (K // 32), tid + 32*(i % (K // 32))]; i<M * K // 32
    columns: load 4 [tid % M, i]; i<K; where tid < M""",
    name="tile {M}x{K}",
    tile={"shape": ["M", "K + 0"], "element": "f32"},
    params={"M": [16, 32], "K": [32, 64], "op": ["load", "store"]},
    where="M * K <= 1024 and not (op == 'store' and M == 32)",
)


def test_combinations_in_order():
    found = list(expand(TEMPLATE))
    assert [i.label for i in found] == [
        "M=16, K=32, op=load", "M=16, K=32, op=store", "M=16, K=64, op=load", "M=16, K=64, op=store",
        "M=32, K=32, op=load",
    ]  # fmt: skip
    problems = [from_data(i.data) for i in found]
    assert problems[2].name == "tile 16x64 op=load"
    assert problems[2].tile.shape == (16, 64)
    assert problems[3].accesses[0].op == "store"
    assert problems[2].accesses[0].index == ("i // (64 // 32)", "tid + 32*(i % (64 // 32))")
    assert problems[2].accesses[0].loops == {"i": 32}
    assert problems[0].accesses[1].where == "tid < 16"


def test_without_parameters_it_is_the_data_itself():
    data = {"name": "p"}
    (only,) = expand(data)
    assert only.data is data
    assert only.label == ""


def test_over_takes_the_place_of_the_file():
    found = expand(TEMPLATE, {"M": [8], "op": ["load"], "K": [32]})
    assert [from_data(i.data).tile.shape for i in found] == [(8, 32)]


def test_a_name_gets_the_values_that_vary_and_are_not_in_it():
    data = TEMPLATE | {"name": "tile"}
    assert next(i.data["name"] for i in expand(data, {"K": [32]})) == "tile M=16 op=load"


def test_negative_values_and_names_inside_names():
    data = {"params": {"i": [-3], "M": [2]}, "index": ["tid - i", "Mi + iM + M"], "notes": "{i} {j} {"}
    assert single(data) == {"index": ["tid - (-3)", "Mi + iM + 2"], "notes": "-3 {j} {"}


def test_words_may_be_put_into_words():
    data = {
        "params": {"n": [4], "e": ["f16"]},
        "tile": {"element": "e"},
        "accesses": [{"op": "ldmatrix.x{n}"}],
    }
    assert single(data) == {"tile": {"element": "f16"}, "accesses": [{"op": "ldmatrix.x4"}]}


def test_conditions_over_words():
    data = {"params": {"M": [1, 2], "op": ["a", "b b"]}, "where": 'M == 1 or op != "a"', "shape": ["M"], "op": "op"}  # fmt: skip
    assert [tuple(i.values.values()) for i in expand(data)] == [(1, "a"), (1, "b b"), (2, "b b")]
    assert [i.values["M"] for i in expand(data | {"where": "op == 'c' or M == 'a' or M == 2"})] == [2, 2]
    with pytest.raises(ProblemFileError, match="where: unknown name 'op'"):
        list(expand(data | {"where": "op < 3"}))


def test_conditions_are_evaluated_for_many_combinations_at_once():
    data = {
        "params": {"M": [*range(100)], "N": [*range(100)], "op": ["a", "b"]},
        "shape": ["M", "N"],
        "op": "op",
    }
    where = "(N == 1 or N == 99) * (op == 'b') and M * N % 7 == 3"
    wanted = [(m, n, "b") for m in range(100) for n in (1, 99) if m * n % 7 == 3]
    assert [tuple(i.values.values()) for i in expand(data | {"where": where})] == wanted
    with pytest.raises(ProblemFileError, match="where: division by zero"):
        list(expand(data | {"where": "op == 'a' and N == 1 and 100 // (50 - M) > 3"}))


def test_combinations_are_bounded():
    with pytest.raises(
        ProblemFileError, match="params: expected at most 1,048,576 combinations, got 1,050,625"
    ):
        expand({"params": {"M": [*range(1025)], "N": [*range(1025)]}, "shape": ["M", "N"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": {"M": []}}, "params.M: expected `array` of length >= 1"),
        ({"params": {"M": [1.5]}}, "params.M[0]: expected `int | str`, got `float`, given 1.5"),
        ({"params": {"M": [True]}}, "params.M[0]: expected `int | str`, got `bool`, given true"),
        ({"params": {"M": [1 << 63]}}, "params.M[0]: expected `int` <= 9223372036854775807"),
        ({"params": [1]}, "params: expected `object`, got `array`, given [1]"),
        ({"params": {"tid": [1]}}, "params.tid: 'tid' means something else in expressions"),
        ({"params": {"x0": [1]}}, "params.x0: 'x0' means something else in expressions"),
        ({"params": {"a b": [1]}}, "params.a b: expected the name of a parameter"),
        ({"params": {"N": [1]}}, "params.N: no field of the problem uses it"),
        ({"params": {"N": [1]}, "accesses": [{"for": -1}]}, "params.N: no field of the problem uses it"),
        ({"params": {"M": [16], "K": [32], "op": ["load"], "i": [1]}}, "params.i: 'i' is a variable of accesses[0].for"),
        ({"where": "M +"}, "where: 'M +' is not an expression"),
        ({"where": 1}, "where: expected `str`, got `int`, given 1"),
        ({"tile": {"shape": ["M", "K // 0"], "element": "f32"}}, "tile.shape[1]: division by zero"),
        ({"tile": {"shape": ["M", "K * L"], "element": "f32"}}, "tile.shape[1]: unknown name 'L'"),
        ({"tile": {"shape": ["M", "op"], "element": "f32"}}, "tile.shape[1]: expected `int`, got `str`"),
    ],
)  # fmt: skip
def test_errors_name_the_field(change, message):
    with pytest.raises(ProblemFileError) as error:
        [from_data(instance.data) for instance in expand(TEMPLATE | change)]
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("values", [(), (10**20,), range(20_000), (True,), (1.5,)])
def test_values_given_beside_the_file_are_checked_as_its_own(values):
    with pytest.raises(ProblemFileError, match=r"^--over.M(\[0\])?: expected"):
        expand(TEMPLATE, {"M": values})


def test_numpy_integers_are_integers():
    assert [i.values["M"] for i in expand(TEMPLATE, {"M": np.arange(8, 10), "K": [8], "op": ["load"]})] == [
        8,
        9,
    ]


def test_one_problem_where_one_is_expected():
    with pytest.raises(ProblemFileError, match="combine to several"):
        from_data(TEMPLATE)
    with pytest.raises(ProblemFileError, match="where: leaves none of the combinations"):
        from_data(TEMPLATE | {"where": "0"})
    assert (
        from_data(TEMPLATE | {"where": "M == 16 and K == 32 and op == 'load'"}).name == "tile 16x32 op=load"
    )


def test_sizes_are_a_sweep():
    with pytest.raises(ProblemFileError, match=r"sizes: there is no such field: .* `layoutopt sweep"):
        from_data({**data_of("32 f32, 32 threads", "a: load 4 [tid]"), "sizes": [{"M": 8}]})


def test_values_of_the_command_line():
    assert [value_of(text) for text in ("64", "-1", "ldmatrix.x4", "1.5")] == [64, -1, "ldmatrix.x4", "1.5"]


def test_a_template_of_one_problem_is_written_out(tmp_path):
    copied = {"name": "c", "op": "store", "copy": {"bytes": 4}}
    data = data_of("8x8 f32, N threads", copied, params={"N": [32]})
    path = saved(tmp_path, "p.json", data)
    done = layoutopt("problems", str(path), "--expanded")
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    assert (written["threads"], "index" in written["accesses"][0], "params" in written) == (32, True, False)
