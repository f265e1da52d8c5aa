"""Imports against the peers' own evaluation, and from their text to a problem that solves."""

import gzip
import json

import numpy as np
import pytest
from conftest import ROOT

from layoutopt.accesses import trace
from layoutopt.devices import device
from layoutopt.errors import ProblemFileError
from layoutopt.imports import cute, triton
from layoutopt.imports.tables import access_of
from layoutopt.problem_file import from_data

with gzip.open(ROOT / "tests/data/peer_layouts.jsonl.gz", "rt") as file:
    ROWS = [json.loads(line) for line in file]
TRITON = [row for row in ROWS if row["peer"].startswith("triton")]
CUTE = [row for row in ROWS if row["peer"].startswith("pycute")]


def xor_of(bases, number, rank):
    place = np.zeros(rank, np.int64)
    for bit, basis in enumerate(bases):
        if number >> bit & 1:
            place ^= np.array(basis)
    return place


def test_there_are_200_of_each():
    assert (len(TRITON), len(CUTE)) == (200, 200)


@pytest.mark.parametrize("row", TRITON, ids=lambda row: row["text"][:60])
def test_triton_layout_is_what_triton_says(row):
    got = triton.thread_values(row["text"], row["tile"])
    bases, rank = row["bases"], len(row["tile"])
    registers = [xor_of(bases["register"], r, rank) for r in range(1 << len(bases["register"]))]
    lanes = [xor_of(bases["lane"], r, rank) for r in range(1 << len(bases["lane"]))]
    warps = [xor_of(bases["warp"], r, rank) for r in range(1 << len(bases["warp"]))]
    want = np.array([[w ^ x ^ r for r in registers] for w in warps for x in lanes])
    assert got.shape == want.shape
    assert (got == want).all()


@pytest.mark.parametrize("row", CUTE, ids=lambda row: row["text"])
def test_cute_layout_is_what_pycute_says(row):
    got = cute.thread_values(row["text"], row["tile"])
    want = np.array(row["table"])
    rows = row["tile"][0]
    assert (got[..., 0] == want % rows).all()
    assert (got[..., 1] == want // rows).all()


@pytest.mark.parametrize("row", ROWS[::5], ids=lambda row: row["text"][:60])
def test_access_touches_what_the_table_says(row):
    module = triton if row in TRITON else cute
    table = module.thread_values(row["text"], row["tile"])
    access = access_of(table, row["tile"], 2, "x", "load", None)
    data = {
        "name": "p",
        "tile": {"shape": row["tile"], "element": "f16"},
        "threads": len(table),
        "accesses": [access],
    }
    loaded = from_data(data)
    (lanes,) = trace(loaded, device("sm_90")).accesses
    threads = lanes.element.reshape(-1, -(-len(table) // 32) * 32)[:, : len(table)]
    got = (threads[..., None] + np.arange(lanes.width_elements)).transpose(1, 0, 2).reshape(len(table), -1)
    flat = np.ravel_multi_index(tuple(np.moveaxis(table, -1, 0)), row["tile"])
    assert [set(a) for a in got.tolist()] == [set(b) for b in flat.tolist()]


def test_compiler_text_and_gluon_text_are_the_same():
    compiler = """
        #mma = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [2, 2], instrShape = [16, 8]}>
        #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>
    """
    gluon = (
        "DotOperandLayout(operand_index=0, parent=NVMMADistributedLayout(version=[2, 0], warps_per_cta=[2, 2], "
        "instr_shape=[16, 8], cga_layout=[]), k_width=2)"
    )
    assert (triton.thread_values(compiler, (64, 64)) == triton.thread_values(gluon, (64, 64))).all()
    linear = "#ttg.linear<{register = [[0, 1], [8, 0]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [], block = []}>"
    assert (triton.thread_values(linear, (16, 8)) == triton.thread_values(
        "NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8])", (16, 8))).all()  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("((4,8),(2,2))", "expected shape:stride"),
        ("((4,8),(2,2)):((32,1),(16))", "shape and stride are not alike"),
        ("(4,8),(2):(1,2)", "where an integer is expected"),
        ("((4,8,(2,2)):((32,1),(16,8))", "parentheses do not match"),
        ("((4,x),2):((32,1),2)", "is no integer, comma"),
        ("(4,8,2):(1,2,3)", "expected two modes"),
        ("(" * 50 + ":1", "nested too deeply"),
        ("(99999999,999999999):(1,1)", "more than"),
        ("((4,8),4):((32,1),1000)", "--tile"),
        ("(4 8):(1,2)", "a comma is missing"),
        ("(4,0):(1,2)", "extent of 0"),
    ],
)
def test_wrong_cute_text(text, reason):
    with pytest.raises(ProblemFileError) as caught:
        cute.thread_values(text, (16, 8))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no text"),
        ("hello", "cannot read 'hello'"),
        ("BlockedLayout(size_per_thread=[1, 8])", "blocked without order"),
        ("BlockedLayout(size_per_thread=[1, 3], threads_per_warp=[4, 8], warps_per_cta=[4, 1], order=[1, 0])", "powers of two"),
        ("BlockedLayout(size_per_thread=[1], threads_per_warp=[32], warps_per_cta=[4], order=[0])", "1 entries for a tile of 2"),
        ("#ttg.shared<{vec = 1}>", "none of blocked"),
        ("DotOperandLayout(operand_index=0, parent=3, k_width=2)", "parent of dot_op is no layout"),
        ("BlockedLayout(__import__('os'))", "cannot read"),
        ("BlockedLayout(size_per_thread=[1, 1], threads_per_warp=[4, 8], warps_per_cta=[4, 1], order=[1, 0], cga_layout=[[1, 0]])", "several blocks"),
    ],
)  # fmt: skip
def test_wrong_triton_text(text, reason):
    with pytest.raises(ProblemFileError) as caught:
        triton.thread_values(text, (16, 16))
    assert reason in str(caught.value)
