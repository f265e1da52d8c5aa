"""Files that are cut, too large, or say of themselves what does not hold: one line, and nothing is loaded."""

import json

import msgspec
import numpy as np
import pytest
from written import access_from, data_of, problem_of, refused_with

from layoutopt import solve
from layoutopt.accesses.trace import trace
from layoutopt.errors import ProblemFileError
from layoutopt.files.array_file import opened, read_offsets
from layoutopt.files.file import from_data
from layoutopt.files.result_file import answer_from_data
from layoutopt.ground import json_data
from layoutopt.hardware.devices import device
from layoutopt.kernels.read.files import kernels
from layoutopt.layout.layout import Layout

SM_90 = device("sm_90")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": [1, 1e400]}', "a[1]: a number has at most 64 bits; given 1e400"),
        ('{"a": {"b": 18446744073709551616}}', "a.b: a number has at most 64 bits"),
        ('{"a": ' + "7" * 5000 + "}", "a: a number has at most 64 bits; given 777"),
        ('{"a": "\\ud800"}', "a: half of a surrogate pair"),
        ('{"\\udfff": 1}', "half of a surrogate pair"),
        ('{"a": "\\ud83d"}', "a: half of a surrogate pair"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_is_not_read(text, message):
    with refused_with(message) as caught:
        json_data.parse(text.encode())
    assert len(str(caught.value)) < 300


def test_whole_pairs_and_64_bits_are_read():
    text = '{"\\ud83d\\ude00": [18446744073709551615, -9223372036854775808, 1e300, "\\\\ud800"]}'
    assert json_data.parse(text.encode()) == {"😀": [(1 << 64) - 1, -(1 << 63), 1e300, "\\ud800"]}


def test_a_file_beyond_its_bound_is_refused_not_cut(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(b"x" * 11)
    assert json_data.read(path, 11) == b"x" * 11
    with pytest.raises(ProblemFileError, match="has more than 10 bytes"):
        json_data.read(path, 10)


PROBLEM = data_of("8x8 f32, 32 threads", "a: load 4 [lane // 8, lane % 8]")


@pytest.mark.parametrize("name", ["abc\n", "\n", "a\x1b[31m", ""])
def test_names_are_one_line(name):
    for field, wrong in (
        ("name", name),
        ("accesses", [{**PROBLEM["accesses"][0], "for": {f"i{name}\n": 2}}]),
    ):
        with pytest.raises(ProblemFileError, match=field):
            from_data({**PROBLEM, field: wrong})


def test_unknown_fields_are_shown_short_and_visible():
    for field in ("\x1b]0;pwned\x07", "f" * 200_000, "x - at `$.y[0]`"):
        with pytest.raises(ProblemFileError, match="unknown field") as caught:
            from_data({**PROBLEM, field: 1})
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500


def npy(shape, payload=bytes(32), kind="<i8", version=(1, 0)):
    """A file whose header says so."""
    return raw(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}", payload, version)


def raw(head, payload=bytes(32), version=(1, 0)):
    return b"\x93NUMPY" + bytes(version) + len(head).to_bytes(2, "little") + head.encode() + payload


@pytest.mark.parametrize(
    "data",
    [
        b"", b"PK\x03\x04 no archive", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{",
        *(npy("(2, 2)", bytes(size)) for size in (31, 33)),
        *(npy(shape) for shape in ("(1000000000000, 32)", "(-2, -2)", "(2, '2')")),
        *(npy("(2, 2)", kind=kind) for kind in ("<f8", "|O")),
        *map(raw, ("{'descr': '<i8', 'fortran_order': False, 'shape': (2, 2)", "{'descr': '<i8'", "'", "(" * 5000)),
        npy("(2, 2)", version=(9, 0)),
    ],
)  # fmt: skip
def test_npy_files_that_hold_no_offsets(data, tmp_path):
    path = tmp_path / "t.npy"
    path.write_bytes(data)
    with pytest.raises(ProblemFileError, match="--table: "):
        read_offsets(path, (2, 2), "--table")


def test_the_header_is_checked_before_memory_is_asked_for(tmp_path):
    path = tmp_path / "sparse.npy"
    with path.open("wb") as file:
        shape = (1 << 27, 32)
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + (1 << 27) * 32 * 8)
    assert opened(path).shape == shape
    with pytest.raises(ProblemFileError, match=r"expected integers of shape \(2, 2\)"):
        read_offsets(path, (2, 2), "--table")


def test_a_listing_of_empty_lines_is_none(tmp_path):
    """What tells PTX from machine code looks at each line once."""
    path = tmp_path / "empty.sass"
    path.write_bytes(b"\n" * 500_000)
    with pytest.raises(ProblemFileError, match="no machine code"):
        kernels(path)


def test_more_dimensions_than_an_array_has(tmp_path):
    path = tmp_path / "t.npy"
    path.write_bytes(npy(f"({'1, ' * 65})", bytes(8)))
    with pytest.raises(ProblemFileError, match=r"--data: .* is no whole .npy file"):
        opened(path, "--data")


@pytest.mark.parametrize("order", ["C", "F"])
def test_offsets_are_read_in_both_orders(order, tmp_path):
    table = np.asarray(np.arange(6, dtype=np.int32).reshape(2, 3), order=order)
    np.save(tmp_path / "t.npy", table)
    assert read_offsets(tmp_path / "t.npy", (2, 3), "--table").tolist() == [[0, 1, 2], [3, 4, 5]]
    np.save(tmp_path / "t.npy", table.astype(np.uint64) << 60)
    with pytest.raises(ProblemFileError, match="at most"):
        read_offsets(tmp_path / "t.npy", (2, 3), "--table")


PLAIN = problem_of("4x8 f32, 32 threads; families none", "a: load 4 [tid // 8, tid % 8]")
RESULT = {**json.loads(json.dumps(solve(PLAIN).to_json())), "status": "feasible"}
LAYOUT = RESULT["layout"]


def with_stride(stride):
    first, second = LAYOUT["digits"]
    return {**LAYOUT, "digits": [{**first, "stride": stride}, second]}


@pytest.mark.parametrize(
    "layout",
    [
        None,
        [],
        *(with_stride(stride) for stride in (0, -8, 7, 1 << 63, 1 << 39)),
        *(LAYOUT | {"shape": shape} for shape in ([], [4], [1 << 20, 1 << 20], [1 << 40, 1], [4, 9])),
        *(LAYOUT | {"element_bytes": size} for size in (0, 1 << 62)),
        *(LAYOUT | {"packed": packed} for packed in (0, 3)),
        *(LAYOUT | {"interval": interval} for interval in ([1, 1 << 40], [0, 1])),
        *(LAYOUT | {"swizzle": [{"bit": bit, "mask": 1}]} for bit in (1 << 60, 2)),
        *(LAYOUT | {"digits": [], "lookup": table}
          for table in ([], [0] * 32, [*range(31)], [*range(31), 1 << 62])),
        LAYOUT | {"digits": [{"dim": 7, "divide": 1, "size": 4, "stride": 8}, *LAYOUT["digits"]]},
    ],
)  # fmt: skip
def test_layouts_that_are_none(layout):
    with pytest.raises(ProblemFileError, match="layout"):
        answer_from_data({**RESULT, "layout": layout})


def bounded(scope="every layout", **bounds):
    """The change of a result that has these lower bounds."""
    changed = {name: {"lower_bound": bound, "scope": scope} for name, bound in bounds.items()}
    return {"proof": {**RESULT["proof"], **changed}}


def test_a_result_that_agrees_with_its_layout():
    for offset in ("x0*8 + x1", "8*x0 + (x1 ^ 0)"):
        found = answer_from_data({**RESULT, "offset": offset})
        assert (found.layout, found.offset) == (msgspec.convert(LAYOUT, Layout), offset)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"bytes": 17}, "bytes"),
        ({"bytes": None}, "bytes"),
        ({"declared_bytes": 4096}, "declared_bytes"),
        ({"alignment_bytes": 3}, "alignment_bytes"),
        ({"alignment_bytes": 0}, "alignment_bytes"),
        ({"excess": 5}, "excess"),
        ({"offset": "x0*9 + x1"}, "offset"),
        ({"offset": "x0 int evil = 1; //"}, "offset"),
        ({"offset": None}, "offset"),
        ({"status": "infeasible"}, "status"),
        (bounded(excess=9), "proof.excess.lower_bound"),
        (bounded(bytes=129), "proof.bytes.lower_bound"),
        (bounded(bytes=-1), "proof.bytes.lower_bound"),
        (bounded("x" * 2000, bytes=128), "proof.bytes.scope"),
        ({"status": "optimal", **bounded("none", bytes=127)}, "status"),
        ({"weighted_excess": 1, **bounded("x", weighted_excess=2)}, "proof.weighted_excess.lower_bound"),
        ({"layout": None}, "status"),
        ({"layout": None, "status": "unknown"}, "excess"),
        ({"status": "optimal", "weighted_excess": 2.5}, "status"),
        ({"accesses": [{**RESULT["accesses"][0], "bank_conflicts": -1}]}, "accesses[0].bank_conflicts"),
        ({"schema": "layoutopt.result/2"}, "schema"),
        ({"problem": "a\n#define evil"}, "problem"),
    ],
)
def test_results_that_contradict_their_layout(change, field):
    with pytest.raises(ProblemFileError) as caught:
        answer_from_data({**RESULT, **change})
    assert caught.value.field == field


def test_a_weight_of_hundreds_of_decimals_is_refused_in_a_line():
    access = access_from("a: load 4 [tid]", weight=5e-324)
    with pytest.raises(ProblemFileError, match="weights need a common denominator of 2000") as caught:
        trace(problem_of("32 f32, 32 threads", access), SM_90)
    assert len(str(caught.value)) < 150
