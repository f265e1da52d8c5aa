"""`emit --edit`: declaration and indices before and after, in the kernel's words."""

import json

import pytest
from command import layoutopt
from written import one_tile, reads, writes

from layoutopt.codegen.edit import edit, edit_text
from layoutopt.codegen.languages import emit
from layoutopt.errors import LayoutError
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device

GPU = device("sm_90")


def transpose(shape=(32, 32), element="f32", width=4, **more):
    rows = writes("rows", width, ["tid // 32 + 8*i", "tid % 32"], i=4)
    columns = reads("columns", width, ["lane", "warp + 8*i"], i=4)
    tile = {"shape": list(shape), "element": element}
    return from_data({"name": "t", "tile": tile, "threads": 256, "accesses": [rows, columns], **more})  # fmt: skip


def changed(problem, answer):
    found = edit(problem, GPU, answer)
    return [(line.before, line.after) for line in (found.declaration, *found.accesses)]


def test_a_pad_changes_the_declaration_only():
    assert changed(transpose(), "x0*33 + x1") == [
        ("__shared__ float tile[32][32];", "__shared__ float tile[32][33];"),
        ("tile[tid / 32 + i*8][tid % 32]", "tile[tid / 32 + i*8][tid % 32]"),
        ("tile[lane][warp + i*8]", "tile[lane][warp + i*8]"),
    ]
    assert "\n  tile[lane][warp + i*8]\n" in edit_text(edit(transpose(), GPU, "x0*33 + x1"))


def test_the_kernel_s_own_words_and_its_layout_in_use():
    names = {"array": "As", "variables": {"ty": "tid // 32", "tx": "tid % 32"}}
    problem = transpose(kernel=names, layout={"offset": "x0*33 + x1"})
    assert changed(problem, "x0*32 + (x1 ^ x0)") == [
        ("__shared__ float As[32][33];", "__shared__ alignas(128) float As[32][32];"),
        ("As[ty + i*8][tx]", "As[ty + i*8][tx ^ ty + i*8]"),
        ("As[tx][ty + i*8]", "As[tx][ty + i*8 ^ tx]"),
    ]


@pytest.mark.parametrize(
    ("shape", "offset", "array"),
    [
        ((32, 32), "x1*33 + x0", "tile[1055]"),
        ((32, 32), "x0*36 + x1 + x1 // 16 * 2", "tile[32][36]"),
        ((4, 32, 32), "x0*1056 + x1*33 + x2", "tile[4][32][33]"),
        ((4, 32, 32), "x0*1030 + x1*32 + x2", "tile[4114]"),
    ],
)
def test_outer_coordinates_that_stand_alone_are_dimensions(shape, offset, array):
    index = [["0"], []][len(shape) == 2]
    accesses = [reads("a", 4, [*index, "tid", "i"], i=32)]
    problem = from_data(one_tile("t", shape, "f32", 32, accesses))
    assert edit(problem, GPU, offset).declaration.after == f"__shared__ float {array};"


def test_several_elements_are_an_address():
    access = reads("a", 16, ["tid", "4*i"], i=8)
    tile = {"shape": [32, 32], "element": "f32"}
    problem = from_data({"name": "t", "tile": tile, "threads": 32, "accesses": [access]})
    assert changed(problem, "x0*36 + x1")[1:] == [("&tile[tid][i*4]", "&tile[tid][i*4]")]


def test_the_command():
    done = layoutopt("emit", "transpose_32x32_f32", "--edit", "--json")
    data = json.loads(done.stdout)
    assert data["edit"]["accesses"][1]["after"] == "tile[lane][warp ^ lane]"
    assert "- __shared__ float tile[32][33];\n+ __shared__ alignas(128) float tile[32][32];" in data["code"]
    assert layoutopt("emit", "transpose_32x32_f32", "--edit", "--lang", "c").returncode == 2


def test_what_an_edit_needs():
    with pytest.raises(LayoutError, match="elements overlap"):
        edit(transpose(layout={"offset": "x0 + x1"}), GPU, "x0*33 + x1")
    assert emit("cuda", transpose(), GPU, "x0*33 + x1")
