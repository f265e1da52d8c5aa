"""Numbers and arrays of a launch are converted to the types of the parameters, or refused."""

import struct

import numpy as np
import pytest
from machine_code import listing
from written import refused_with

from layoutopt.kernels.launches import argument
from layoutopt.kernels.machine.launch import Launch, arguments, buffer, element_type, packed
from layoutopt.kernels.program import Exit, Parameter, Program, Step
from layoutopt.kernels.ptx.text import read_ptx
from layoutopt.kernels.read import sass
from layoutopt.kernels.read.declarations import ptx_parameters

# A kernel with parameters of many types: float*, int const*, double, float, int, bool, short, a pointer.
NAME = "_Z1kPfPKidfibsPv"


def kernel(*parameters):
    step = Step(address=0, text="EXIT ;", action=Exit())
    return Program(name="k", title="k", target="sm_90", steps=(step,), parameters=parameters)


def given(program, values=(), arrays=()):
    return arguments(program, Launch(block=(32, 1, 1), arguments=dict(values), buffers=dict(arrays)))


@pytest.mark.parametrize(
    ("value", "kind", "form"),
    [
        (1, "float", "<f"), (1.0, "float", "<f"), (0.1, "float", "<f"), (1, "double", "<d"), (1, ".f64", "<d"),
        (float("inf"), ".f32", "<f"), (1, "__half", "<e"), (0.5, ".f16", "<e"), (2.0, "int", "<i"),
        (-1, "int", "<i"), (2e9, "long long", "<q"), (1, "bool", "<b"), (-128, "signed char", "<b"),
        (0x7F00_0000_0000, "float const*", "<q"),
    ],
)  # fmt: skip
def test_a_number_is_converted_to_its_type(value, kind, form):
    right = struct.pack(form, value if form[1] in "efd" else int(value))
    assert packed(value, kind, struct.calcsize(form)) == right


def test_bits_of_integers_and_numbers_without_a_type():
    assert packed(-1, "unsigned int", 4) == packed(0xFFFFFFFF, "int", 4) == b"\xff" * 4
    assert packed((1 << 64) - 1, "long", 8) == b"\xff" * 8
    assert packed(1, "", 4) == b"\1\0\0\0"
    assert packed(1.0, "", 4) == struct.pack("<f", 1)
    assert packed(1.0, "T", 8) == struct.pack("<d", 1)


@pytest.mark.parametrize(
    ("value", "kind", "size"),
    [
        (0.5, "int", 4), (float("nan"), "int", 4), (float("inf"), "long", 8), (1e30, "int", 4), (1 << 32, "int", 4),
        (16777217, "float", 4), (1e300, "float", 4), (1e-300, "float", 4), (1 << 64, "double", 8), (2, "bool", 1),
        ((1 << 63) - 1, "double", 8), ((1 << 64) - 1, "double", 8), (300, "unsigned char", 1), (0.5, "float*", 8),
        (16, "P", 24), (1.5, "", 2), (1e300, "", 4), (16, "", 12),
    ],
)  # fmt: skip
def test_a_number_that_the_type_does_not_hold_is_refused(value, kind, size):
    assert packed(value, kind, size) is None


def test_a_listing_with_a_name_of_cpp_knows_the_types():
    (program,) = sass.from_text(listing("EXIT", name=NAME))
    found = given(program, {"2": 1, "3": 1, "4": 2.0, "5": 1, "6": -1}).content
    assert struct.unpack("<dfi?xh", found[16:36]) == (1.0, 1.0, 2, True, -1)
    found = given(program, {"3": argument("4:f32"), "4": argument("4:u32")}).content
    assert found[24:32] == struct.pack("<fI", 4, 4)
    typed = "parameter {} ({}): expected a number of that type, got {}"
    for values, said in (
        ({"4": 0.5}, "parameter 4 (int): expected a number that int holds, got 0.5"),
        ({"3": argument("4:i32")}, typed.format(3, "float", "4:i32")),
        ({"4": argument("4:f32")}, typed.format(4, "int", "4:f32")),
        ({"2": argument("4:u64")}, typed.format(2, "double", "4:u64")),
        ({"2": "pointer"}, "--arg: parameter 2 (double)"),
        ({"3": "pointer"}, "--arg: parameter 3 (float)"),
    ):
        with refused_with(said):
            given(program, values)
    with refused_with("--data: parameter 2 (double)"):
        given(program, (), {"2": np.zeros(4)})


def test_a_structure_is_given_by_its_bytes_or_members():
    raw = bytes(range(24))
    alone = kernel(Parameter(0, 24, type="P"))
    assert given(alone, {"0": raw}).content == raw
    found = given(alone, {"0": raw, "0+8": struct.pack("<q", -2)})
    assert found.content == raw[:8] + struct.pack("<q", -2) + raw[16:]
    second = kernel(Parameter(0, 8), Parameter(8, 24, type="P"))
    assert struct.unpack_from("<fi", given(second, {"1+0": 1.0, "1+4": 3}).content, 8) == (1.0, 3)
    # A class of eight bytes is given by its halves.
    halves = kernel(*sass.described((Parameter(0, 8),), [("", "int2")]))
    assert given(halves, {"0+0": 1, "0+4": 2}).content == struct.pack("<ii", 1, 2)
    for program, values, said in (
        (alone, {"0": raw[1:]}, "parameter 0 (P) has 24 bytes, got 23"),
        (second, {"1": 16}, "parameter 1 (P) has 24 bytes: expected its members"),
        (halves, {"0": 1}, "parameter 0 (int2) is 8 bytes"),
    ):
        with refused_with(said):
            given(program, values)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.arange(64), "int const*"), (np.arange(64.0), "float*"), (np.array([np.nan, np.inf, 0.5]), "float*"),
        (np.arange(64.0), "int*"), (np.arange(8, dtype=np.float16), "int*"), (np.arange(8), "__half*"),
        (np.arange(64, dtype=">i4"), "int const* __restrict"),
        (np.array([True, False]), "unsigned char*"), (np.array([], np.int64), "int*"),
    ],
)  # fmt: skip
def test_arrays_are_converted_where_that_loses_nothing(array, kind):
    (found,) = given(kernel(Parameter(0, 8, type=kind)), (), {"0": array}).buffers.values()
    np.testing.assert_array_equal(np.frombuffer(found, element_type(kind)), array)


@pytest.mark.parametrize(
    ("array", "kind", "said"),
    [
        (
            np.array([1, 1 << 33]),
            "int*",
            "expected int32, or what it holds exactly, got int64 with 8589934592",
        ),
        (np.array([0, 1 / 3]), "float*", "got float64 with 0.333"),
        (np.array([1e300]), "float*", "got float64 with 1e+300"),
        (np.array([0, 0.5]), "int*", "got float64 with 0.5"),
        (np.array([1j]), "float*", "got complex128"),
        (np.array([(1 << 24) + 1]), "float*", "got int64 with 16777217"),
    ],
)
def test_other_arrays_are_refused(array, kind, said):
    with refused_with(said):
        given(kernel(Parameter(0, 8, type=kind)), (), {"0": array})


@pytest.mark.parametrize("kind", ["", "void*", "float2*", "T*", "float**"])
def test_arrays_of_unknown_elements_stay_as_they_are(kind):
    array = np.arange(64)
    (found,) = given(kernel(Parameter(0, 8, pointer=True, type=kind)), (), {"0": array}).buffers.values()
    assert found == array.tobytes()


def test_fills_have_the_elements_of_the_type():
    program = kernel(
        Parameter(0, 8, "a", type="float*"), Parameter(8, 8, "b", type="bool*"), Parameter(16, 8),
        Parameter(24, 8, "h", type="__half*"),
    )  # fmt: skip
    fills = [buffer(program, name, "random:1") for name in ("0", "a", "+0", "b", "2")]
    assert [fill.dtype for fill in fills] == [np.float32] * 3 + [bool, np.int32]
    assert set(fills[3].view(np.uint8).tolist()) == {0, 1}
    assert buffer(program, "h", "iota")[:4].tolist() == [0, 1, 2, 3]
    assert not buffer(program, "2", "zeros").any()
    found = given(program, arrays={"0": buffer(program, "0", "iota")})
    assert struct.unpack("<3f", next(iter(found.buffers.values()))[:12]) == (0, 1, 2)
    with refused_with("--data: 'c' is no parameter"):
        buffer(program, "c", "zeros")


def test_ptx_declares_types():
    listed = ".param .u64 k_0,\n .param .f32 k_1,\n .param .align 8 .b8 k_2[24]"
    module = read_ptx(f".target sm_90\n.visible .entry k(\n {listed}\n)\n{{ ret; }}", "k.ptx")
    told = ptx_parameters(module, "k")
    assert told == [("k_0", ".u64"), ("k_1", ".f32"), ("k_2", "")]
    assert ptx_parameters(module, "other") == []
    typed = sass.described((Parameter(0, 8), Parameter(8, 4), Parameter(16, 24)), told)
    assert given(kernel(*typed), {"1": 1}).content[8:12] == struct.pack("<f", 1)
    assert not typed[0].pointer
