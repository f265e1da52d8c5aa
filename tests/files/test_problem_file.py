"""Problem files and templates: what is read, what parameters become, and one clear line for what is wrong."""

import json

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from command import layoutopt
from conftest import PROBLEMS, TILE_SETS
from written import access_from, data_of, saved

from layoutopt.accesses.trace import trace
from layoutopt.cli.commands import main
from layoutopt.errors import LayoutoptError, ProblemFileError
from layoutopt.files.file import from_data, json_schema, load, parsed
from layoutopt.files.templates import expand, single, value_of
from layoutopt.hardware.devices import device

ROWS = access_from("rows: store 4 [tid // 8, tid % 8]")


def with_access(**changes):
    return {"accesses": [{**ROWS, **changes}]}


# What is changed, and what the one line must say: the field, what was required, what was given.
BROKEN = {
    "wrong type of extent": ({"tile": {"shape": ["8", 8], "element": "f32"}}, "tile.shape[0]: expected `int`"),
    "extent of zero": ({"tile": {"shape": [0, 8], "element": "f32"}}, "tile.shape[0]: expected `int` >= 1"),
    "no extents": ({"tile": {"shape": [], "element": "f32"}}, "tile.shape: expected `array` of length >= 1"),
    "unknown element": ({"tile": {"shape": [8, 8], "element": "f33"}}, "tile.element: unknown type 'f33'"),
    "element of 17 bytes": ({"tile": {"shape": [8, 8], "element": {"bytes": 17}}}, "tile.element.bytes: expected"),
    "huge tile": ({"tile": {"shape": [1 << 20, 1 << 20], "element": "f32"}}, "tile.shape: at most"),
    "a billion threads": ({"threads": 10**9}, "threads: expected `int` <= 1024, given 1000000000"),
    "no threads": ({"threads": None}, "missing required field `threads`"),
    "fractional threads": ({"threads": 32.5}, "threads: expected `int`, got `float`"),
    "unknown target": ({"target": "sm_77"}, "target: unknown target 'sm_77'"),
    "unknown field": ({"thread": 64}, "unknown field `thread`; did you mean threads?"),
    "what the hardware dictates, of the layout": (
        {"layout": {"must_be": "tma.128B"}},
        'layout.must_be: there is no such field: an access says it, such as {"name": "out", "op": "tma.store", "mode": "128B"}',
    ),
    "other schema": (
        {"schema": "layoutopt.problem/2"},
        "schema: invalid enum value 'layoutopt.problem/2'; expected 'layoutopt.problem/1', given",
    ),
    "a result": ({"schema": "layoutopt.result/1"}, "schema: expected 'layoutopt.problem/1', a problem; this is a result"),
    "a field of another place": ({"max_bytes": 64}, "unknown field `max_bytes`; did you mean layout.max_bytes?"),
    "no accesses": ({"accesses": []}, "accesses: expected `array` of length >= 1"),
    "unknown field of an access": (with_access(wieght=2), "accesses[0]: object contains unknown field `wieght`; did you mean weight?"),
    "unknown op": (with_access(op="laod"), "accesses[0].op: unknown op 'laod'"),
    "no width": (with_access(bytes=None), "accesses[0].op: 'store' needs a width"),
    "odd width": (with_access(bytes=3), "accesses[0].op: 'store' is 1 or 2 or 4 or 8 or 16 bytes wide, not 3"),
    "width stated twice": (with_access(op="st.shared.v2.b32", bytes=4), "is 8 bytes wide, but bytes is 4"),
    "op that the target lacks": ({"target": "sm_70", **with_access(op="ldmatrix.x4", bytes=None)}, "sm_70 has no ldmatrix; sm_75, "),
    "misaligned width": (with_access(bytes=16), "accesses[0].index[1]: a 16-byte access starts at a multiple of 4"),
    "width of no whole elements": (
        {"tile": {"shape": [8, 8], "element": {"bytes": 12}}, **with_access(bytes=16)},
        "16 bytes are no whole number of 12-byte elements",
    ),
    "too few coordinates": (with_access(index=["tid"]), "accesses[0].index: expected one expression for each of 2"),
    "outside the tile": (
        with_access(index=["tid // 8 + i", "tid % 8"], **{"for": {"i": 2}}),
        "accesses[0].index[0]: x0 must lie in 0..7, not 8 (access 'rows', thread 56, i = 1)",
    ),
    "negative coordinate": (with_access(index=["tid // 8", "tid % 8 - 1"]), "x1 must lie in 0..7, not -1 (access 'rows', thread 0)"),
    "division by zero": (with_access(index=["tid // (tid % 8)", "0"]), "division by zero in 'tid // (tid % 8)' (access 'rows', thread 0)"),
    "syntax error": (with_access(index=["tid //", "0"]), "accesses[0].index[0]: 'tid //' is not an expression"),
    "unknown variable": (with_access(index=["k", "0"]), "accesses[0].index[0]: unknown name 'k'"),
    "deeply nested": (with_access(index=["-" * 300 + "tid", "0"]), "accesses[0].index[0]:"),
    "overflow": (with_access(index=["tid << 62 << 62", "0"]), "value beyond 2**62"),
    "python in an expression": (with_access(index=["__import__('os').getpid()", "0"]), "is not allowed"),
    "duplicate names": ({"accesses": [ROWS, ROWS]}, "accesses[1].name: 'rows' is already the name of accesses[0]"),
    "reserved variable": (with_access(**{"for": {"tid": 2}}), "accesses[0].for: 'tid' is reserved"),
    "bad variable": (with_access(**{"for": {"a b": 2}}), "accesses[0].for"),
    "endless loop": (with_access(**{"for": {"i": 10**6, "j": 10**6}}), "accesses[0].for: 64000000000000 lane accesses in all, of at most"),
    "negative weight": (with_access(weight=-1), "accesses[0].weight: a weight lies in 0..1000000, not at -1"),
    "weight over threads": (with_access(weight="tid"), "accesses[0].weight: unknown name 'tid'"),
    "part of a warp in ldmatrix": (
        {"tile": {"shape": [8, 8], "element": "f16"}, **with_access(op="ldmatrix.x1", bytes=None, index=["tid % 8", "0"], where="tid < 8")},
        "accesses[0].where: ldmatrix.x1 is executed by all lanes of a warp or by none",
    ),
    "nobody home": (with_access(where="tid < 0"), "no access has an active lane"),
    "unknown family": ({"layout": {"families": ["xro"]}}, "layout.families[0]: invalid enum value 'xro'"),
    "wrong order": ({"layout": {"order": [0, 0]}}, "layout.order: expected each of 0..1 once"),
    "pitch multiple beyond any memory": (
        {"layout": {"pitch_multiple_bytes": 10**30}},
        "layout.pitch_multiple_bytes: a number has at most 64 bits; given 1000000000000000000000000000000",
    ),
    "alignment too small": (
        {"layout": {"alignment_bytes": 8}, **with_access(bytes=16, index=["tid // 8", "4*(tid % 2)"])},
        "layout.alignment_bytes: the 16-byte accesses need 16, not 8",
    ),
    "a layout to audit": ({"layout": {"offset": "x0*8 + x1"}}, "layout.offset: fixes the layout"),
}  # fmt: skip

TEXTS = {
    "empty": (b"", "not JSON"),
    "truncated": (b'{"name": "a", "tile": {"shape": [8', "not JSON"),
    "not an object": (b"[1, 2]", "expected `object`"),
    "infinity": (b'{"threads": -Infinity}', "-Infinity is not a JSON number"),
    "key twice": (b'{"name": "a", "name": "b"}', "the key 'name' stands twice"),
    "binary": (b"\xff\xfe\x00", "not UTF-8"),
}


def refuse(path, message, tmp_path):
    out = [tmp_path / "out.npy", tmp_path / "out.cuh"]
    result = CliRunner().invoke(main, ["solve", str(path), "--table", str(out[0]), "--code", str(out[1])])
    error = result.exception
    assert isinstance(error, LayoutoptError), result.output
    assert message.lower() in str(error).lower()
    assert result.stdout == ""
    assert not any(o.exists() for o in out)


@pytest.fixture
def problem_file(tmp_path):
    """Write a problem, changed as asked, and return its path."""

    def write(**changes):
        data = data_of(
            """8x8 f32, 64 threads
            rows: store 4 [tid // 8, tid % 8]
            columns: load 4 [tid % 8, tid // 8]""",
            **{"schema": "layoutopt.problem/1", "name": "tile", **changes},
        )
        return saved(tmp_path, "tile.json", {k: v for k, v in data.items() if v is not None})

    return write


@pytest.mark.parametrize("case", BROKEN)
def test_broken_problems(case, problem_file, tmp_path):
    changes, message = BROKEN[case]
    refuse(problem_file(**changes), message, tmp_path)


@pytest.mark.parametrize("case", TEXTS)
def test_broken_texts(case, tmp_path):
    text, message = TEXTS[case]
    path = tmp_path / "broken.json"
    path.write_bytes(text)
    refuse(path, message, tmp_path)


def test_missing_file(tmp_path):
    refuse(tmp_path / "none.json", "cannot read", tmp_path)


def test_catalogue_files_are_problems_of_the_published_schema():
    validator = jsonschema.Draft202012Validator(json_schema())
    for path in (*PROBLEMS, *TILE_SETS):
        assert load(path).notes, path  # every file says what it is
        validator.validate(json.loads(path.read_text()))


def test_everything_optional_is_read(problem_file):
    problem = load(
        problem_file(
            target="h100",
            notes="what it is",
            known_optimum={"excess": 0, "bytes": 256},
            published={"offset": "x0*9 + x1", "bytes": 288, "kind": "pad", "source": "a book"},
            layout={
                "families": ["none", "pad"],
                "max_bytes": 512,
                "pitch_multiple_bytes": 8,
                "order": [1, 0],
            },
            tile={"shape": [8, 8], "element": {"bytes": 4}},
            accesses=[
                access_from("a: ld.shared.v2.b32 [tid // 8, 2*(tid % 4)]; where tid % 8 < 4"),
                access_from("b: load 4; i<8; weight 8 - i", index=[0, "i"]),
                access_from("c: load 4; weight 0.5", index=[0, "min(tid, 7)"]),
            ],
        )
    )
    lanes = trace(problem, device(problem.target))
    assert lanes.weight_unit == 2
    a, b, c = lanes.accesses
    assert a.active.sum() == 32
    assert b.weight.tolist() == [w for i in range(8) for w in [2 * (8 - i)] * 2]
    assert set(c.weight.tolist()) == {1}
    assert a.element[0, :4].tolist() == [0, 2, 4, 6]


def test_partial_last_warp(problem_file):
    problem = load(problem_file(threads=40, accesses=[{**ROWS, "index": ["tid // 8", "tid % 8"]}]))
    (access,) = trace(problem, device("sm_90")).accesses
    assert access.active.tolist() == [[True] * 32, [True] * 8 + [False] * 24]


def test_errors_carry_their_field(problem_file):
    with pytest.raises(ProblemFileError) as caught:
        load(problem_file(threads=0))
    assert caught.value.field == "threads"
    with pytest.raises(ProblemFileError):
        from_data(parsed(b'{"a": 1}'))


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
