"""Certificates of a few problems, and the script that checks them."""

import contextlib
import copy
import functools
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

import check_certificate
from certificate.subject import digest
from conftest import ROOT
from hardware_tiles import FILL
from oracle import toy
from written import data_of, lines_of, planes

from layoutopt import solve
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.search.certify import certificate

SCRIPT = ROOT / "scripts" / "checkers" / "check_certificate.py"


def toy_of(problem):
    """Lanes and banks of the toy device that a problem names, or nothing."""
    found = re.fullmatch(r"toy_(\d+)_(\d+)", problem.get("target", "")) if isinstance(problem, dict) else None
    return found and tuple(map(int, found.groups()))


def as_forged(problem, given):
    """The certificate with the digest of the problem as it is, which a forger can compute as anybody can."""
    given = copy.deepcopy(given)
    try:
        own = digest(problem)
    except (AttributeError, TypeError, KeyError, ValueError):
        return given
    parts = given.get("tiles") if isinstance(given, dict) else None
    certificates = [part.get("certificate") for part in parts or [] if isinstance(part, dict)]
    for one in (given, *certificates):
        if isinstance(one, dict) and "digest" in one:
            one["digest"] = own
    return given


def checked(problem, given, forged=True):
    """Exit code and output of the script, which is told of the toy device that a problem names.

    Either may be the text of a file. `forged`: the digest is made that of the problem.
    """
    contents = [problem, as_forged(problem, given) if forged else given]
    if lanes_and_banks := toy_of(problem):
        contents.append(toy.device_file(*lanes_and_banks))
    said = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        paths = [Path(folder, f"{k}.json") for k in range(len(contents))]
        for path, data in zip(paths, contents, strict=True):
            path.write_text(data if isinstance(data, str) else json.dumps(data))
        with mock.patch.object(sys, "argv", [SCRIPT.name, *map(str, paths)]):
            try:
                code = check_certificate.main()
            except SystemExit as wrong:
                code = 1 if isinstance(wrong.code, str) else wrong.code
                said.write(f"{wrong.code}\n")
    return code, said.getvalue()


def holds(problem, given, said="", code=0, **options):
    """The script says so and ends with the code; all that it prints."""
    found, text = checked(problem, given, **options)
    assert (found, said in text, "Traceback" in text) == (code, True, False), text
    return text


def certified(data, **options):
    """The certificate of what is found for a problem on the GPU that it names, as JSON."""
    lanes_and_banks = toy_of(data)
    gpu = toy.toy_device(*lanes_and_banks) if lanes_and_banks else device(data.get("target", "sm_90"))
    found = solve(from_data(data), target=gpu, **options)
    return json.loads(json.dumps(certificate(from_data(data), gpu, found)))


@functools.cache
def _true(case):
    data, options, *_ = CASES[case]
    return data, certified(data, **options)


def true_one(case):
    """The problem of a case and its certificate, to be changed."""
    return copy.deepcopy(_true(case))


def at(given, path):
    return functools.reduce(lambda holder, key: holder[key], path, given)


def plain_transpose(target="toy_8_8", **layout):
    return {**lines_of(8, lines=("rows", "columns"), **layout), "target": target}


BLOCK = data_of("""32 threads; name block; target sm_90; max_bytes 3072
    tile A: 32x8 f32; stages 2
    tile B: 32x8 f32; families none pad
    tile C: 8x32 f32
    a: load 4 [lane, i]; i<8; tile A
    b: load 4 [lane, i]; i<8; tile B
    c: store 4 [i, lane]; i<8; tile C""", overlay=[["B"], ["C"]])  # fmt: skip
SEVERAL_SIZES = data_of(
    """32 threads; name block; target sm_90
    tile A: 32x8 f32; stages 2
    tile C: 32x8 f16
    a: load 4 [lane, i]; i<8; tile A
    c: store 2 [lane, i]; i<8; tile C""",
    same_layout=[["A", "C"]],
)
ROWS = data_of("64x64 f16, 64 threads; target sm_90", FILL, "r: load 2 [tid, i]; i<4")
CLUSTER = data_of("128x64 f16, 128 threads", {**FILL, "multicast": 2}, "a: wgmma.A", block={"cluster": 2})
FREE, SOON = {"conflict_free": True}, {"time_limit": 5}
INFEASIBLE = {"status": "infeasible"}
REACHED = "mode 128B, {} instructions reach every element: checked"

# A problem and how it is asked; what the script ends with, and what it prints, or how often it says that something
# was checked; what stands in the certificate.
CASES = {
    "plain": (plain_transpose(), {}, 0, 3, {}),
    "plain, of a GPU": (plain_transpose("sm_90"), {}, 0, 3, {}),
    "spelt": (data_of("""16x16 f32, 32 threads; name s; target H100
        l: ld.shared.v4.b32 [lane // 4 + 8*i, lane % 4 * 4]; i<2
        m: ldmatrix.x2 [lane, 0]
        a: atomic 4 [lane % 16, 0]; weight 0.5"""), {}, 0, 3, {}),
    # Some conflicts remain, and the widest access might have been narrower.
    "wide": (data_of("""32x32 f32, 32 threads; target sm_90
        s: store 16 [tid, 4*i]; i<8
        l: load 4 [i, tid]; i<32
        c: load 4 [tid, i]; i<32"""), {}, 0, 3, {"bound.excess": 96}),
    "clique": (
        {**planes(), "target": "toy_2_2"}, FREE, 0,
        "bound: no layout of any kind has a weighted excess below 2: checked\n"
        "infeasible: no layout of any kind is without conflicts: checked\n",
        {**INFEASIBLE, "bound.scope": "every layout"},
    ),
    # Two windows that overlap but for a word each, and a phase that touches both words: three times.
    "packing": (data_of("""15 f32, 4 threads; target toy_4_4
        first: load 4 [5*c + tid]; c<3; weight 0.5
        second: load 4 [5*c + tid + 1]; c<3; weight 0.5
        ends: load 4 [5*c + 4*(tid % 2)]; c<3; weight 0.5"""), {}, 0, 3, {"bound.excess": 1.5}),
    # Rows, columns and wrapped diagonals, which no layout serves.
    "parity": ({**lines_of(8), "target": "toy_8_8"}, {**FREE, "time_limit": 20}, 0, 2, {}),
    "one phase": ({**lines_of(8, lines=("rows",)), "target": "toy_8_8"}, {}, 0, 3, {}),
    "two words of a row in a bank: 32 words, four apart, take two wavefronts of one tile, never one": (
        data_of("32 c128, 32 threads; target sm_30", "heads: load 4 [tid]"), FREE, 0, 2,
        {**INFEASIBLE, "bound.excess": 1},
    ),
    "too many bytes are arithmetic": (
        plain_transpose(max_bytes=255), {}, 0,
        "infeasible: the elements alone take 256 bytes, more than 255: checked\n", {},
    ),
    "what rests on the families searched": (
        plain_transpose(families=["none"]), FREE, 3,
        "infeasible: a layout in scope that keeps to the constraints: NOT CHECKED",
        {**INFEASIBLE, "questions": []},
    ),
    "a swizzle would serve it, which is not among the families": (
        plain_transpose(families=["none"]), {}, 3,
        "bound: 56 in families none: NOT CHECKED, it rests on layoutopt's search", {"questions": []},
    ),
    "a pad, and no fewer bytes among the families": (
        plain_transpose(families=["none", "pad"]), {}, 3, "bytes: 284 in families none, pad: NOT CHECKED",
        {"bytes.at_least": 284, "bytes.scope": "families none, pad"},
    ),
    "padded": (
        data_of("5x20 f32, 32 threads; target sm_90; families none pad", "rows: load 4 [i, lane % 20]; i<5"),
        {}, 0, 3, {},
    ),
    "elements that share bytes": (data_of("""16x64 s4, 32 threads; target sm_90
        rows: store 4 [tid // 8 + 4*i, 8*(tid % 8)]; i<4
        columns: load 4 [tid % 16, 8*(tid // 16 + 2*i)]; i<4"""), {}, 0, 3, {}),
    "elements that share bytes, padded: families are those of the bytes": (
        data_of("16x6 i4, 8 threads; target sm_30", "a: load 2 [(lane + 32*warp + 8*k) % 16, 0]; k<2"),
        {}, 3, "", {},
    ),
    "widths that were chosen, of which none has less than none in the tile's own bytes": (data_of(
        """8x8 f32, 8 threads; target toy_8_8
        rows: store 8|4 [2*i + tid // 4, 2*(tid % 4)]; i<4
        columns: load 4 [tid, i]; i<8"""), {}, 0, 3, {}),
    "16 words 16 bytes apart: a store sees 8 of its 32 banks, a load 16 of its 64": (data_of(
        """24x16 f32, 16 threads; target gfx950
        a: load 16 [tid, 0]
        b: store 1 [tid, 0]"""), {}, 0, 3, {"bound.excess": 1}),
    "two lanes add to each of two words: two wavefronts where the words alone need one": (
        data_of("2 f32, 4 threads; target toy_4_2\na: atomic 4 [tid // 2]"), {}, 0, 3, {"bound.excess": 1},
    ),
    "tables of integers in an index": (
        data_of("4x8 f32, 32 threads\na: load 4 [[0, 2, 1, 3][tid // 8], tid % 8]"), {}, 0, 3, {},
    ),
    "a fragment without an index is to be written out": (
        data_of("8x16 f16, 32 threads", {"name": "b", "op": "load", "bytes": 4,
                                         "fragment": "mma.m16n8k16.B.f16", "index": ["n", "k"]}),
        SOON, 3, "without an index: b are not handled here; `layoutopt problems --expanded` ", {},
    ),
    "wide elements": (
        data_of("32 16B, 32 threads", "a4: load 4 [tid]"), {}, 0, "no layout of any kind",
        {"bound.excess": 3, "bound.scope": "every layout"},
    ),
    "wide elements of no power of two": (
        data_of("32 12B, 32 threads", "a4: load 4 [tid]", "a8: load 8 [tid]"), {}, 3, "no layout of any kind",
        {"bound.excess": 1, "bound.scope": "every layout"},
    ),
    # What the hardware moves by itself.
    "hardware": (
        data_of("128x64 f16, 128 threads", "ld: tma.load", "a: wgmma.A"), {}, 0,
        f"ld: tma.load, {REACHED.format(1)}\na: wgmma.A, {REACHED.format(8)}\n", {},
    ),
    "operand": (data_of("64x16 f16, 128 threads; target sm_90", FILL, "a: wgmma.A"), SOON, 0, "", {}),
    # A row a thread: every mode has conflicts, and which has the fewest is a matter of counting them.
    "rows": (ROWS, SOON, 3, "bound: 24 in the layouts of tma.load, boxes side by side: NOT CHECKED", {}),
    "no rows": (ROWS, {**SOON, **FREE}, 3, "infeasible: a layout without conflicts: NOT CHECKED", {}),
    "rows of a matrix that are several dimensions": (
        data_of("4x32x64 f16, 128 threads", "ld: tma.load",
                {"name": "b", "op": "wgmma.B", "mn": [0, 1], "k": 2, "rows": 128}),
        {}, 0, f"b: wgmma.B, {REACHED.format(4)}", {},
    ),
    "blocks of a cluster share the boxes": (CLUSTER, {}, 0, f"fill: tma.load, {REACHED.format(2)}", {}),
    "direct loads write side by side": (
        data_of("8x64 f32, 64 threads; target gfx942", "d: buffer_load_dword.lds [i, lane]; i<8"), {}, 0, "", {},
    ),
    # Several tiles.
    "tiles": (data_of("""32 threads; name block; target sm_90
        tile A: 8x4 f32; stages 2
        tile C: 4x8 f32
        a: load 4 [lane % 8, i]; i<4; tile A
        c: store 4 [i, lane % 8]; i<4; tile C"""), {}, 0, 9, {}),
    "the base has 4 bytes, what the accesses need: elements of 16 lie as they do from the tile's start": (
        data_of("""16 threads; name block; target sm_90; alignment_bytes 4
            tile A: 5x5 f32
            tile B: 16x4 b128
            a: load 4 [0, lane % 5]; tile A
            b: load 2 [lane, 0]; tile B"""), {}, 0, "", {"tiles.1.places.0.base_bytes": 100},
    ),
    "several sizes": (SEVERAL_SIZES, {}, 0, "block: 0 weighted excess in 2560 bytes", {}),
    "an overlay": (
        BLOCK, {}, 3, "NOT CHECKED, it rests on layoutopt's search",
        {"bound.rests_on": "layoutopt's search of the families alone"},
    ),
    "what the solver alone knows of a tile": (data_of("""32 threads; target sm_90
        tile A: 24x64 f64; stages 2
        tile B: 32x16 i8
        one: store 1 [0, 0]; tile A
        rows: store 16 [(lane + 4*k) % 32, 0]; k<2; tile B
        bytes: load 1 [tid, 3*tid % 16]; tile B"""), {}, 3,
        "excess: of all tiles, in every layout: NOT CHECKED",
        {"bound.excess": 1, "bound.scope": "every layout"},
    ),
    "what is to be written out leaves the other tiles": (
        {**BLOCK, "layout": {}, "accesses": [{"name": "a", "tile": "A", "op": "store", "copy": {"bytes": 4}},
                                             *BLOCK["accesses"][1:]]},
        {}, 3, "A: NOT CHECKED: accesses without an index: a are not handled here", {},
    ),
    # Seven bytes read two by two: the next stage, if there were one, begins after eight.
    "stages": (data_of("""8 threads; target sm_90
        tile A: 7 i8
        tile B: 7 i8
        a: store 2 [tid % 3 * 2]; tile A
        b: store 2 [tid % 3 * 2]; tile B"""), {}, 3, "",
        {"tiles.0.stage_bytes": 8, "tiles.0.places.0.bytes": 7},
    ),
}  # fmt: skip
