"""What the hardware reads and writes by itself: TMA, matrix descriptors, bulk copies."""

import json
import re

import jsonschema
import msgspec
import pytest
from emit_programs import emit
from hardware_tiles import FILL, MEASURED, OWN_ROW, ROWS, data, of, solved
from written import access_from, data_of, problem_of, refused_with, rows_of

from layoutopt import check, compare, load_all, solve
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data, json_schema
from layoutopt.hardware.devices import device
from layoutopt.report.text import report

SWIZZLED, PADDED = "x0*64 + (x1 ^ x0 % 8 * 8)", "x0*72 + x1"


def kinds(audit):
    return {finding.kind for finding in audit.findings}


def test_a_load_by_itself_is_a_tile():
    problem, result = solved({**FILL, "mode": "128B"})
    got = str(result.status), result.excess, result.bytes, result.alignment_bytes, result.decided_by
    assert got == ("optimal", 0, 16384, 1024, "hardware")
    found = of(result, "fill")
    assert (found.boxes, found.box, found.box_dim, found.code) == (1, (128, 64), (64, 128), 3)
    assert found.data_type == "CU_TENSOR_MAP_DATA_TYPE_FLOAT16"
    assert "fill: 1 box of 128x64, boxDim {64, 128}, CU_TENSOR_MAP_SWIZZLE_128B" in report(problem, result)
    assert (result.accesses[0].wavefronts, result.accesses[0].ideal) == (0, 0)


@pytest.mark.parametrize(
    ("fill", "tile", "boxes", "box", "alignment"),
    [
        ({"mode": "none"}, {}, 1, (128, 64), 128),
        ({"mode": "32B"}, {}, 4, (128, 16), 256),
        ({"mode": "64B"}, {}, 2, (128, 32), 512),
        ({}, {"shape": (512, 64)}, 2, (256, 64), 128),  # of at most 256 rows
        ({"mode": "64B", "box": [128, 128]}, {"shape": (128, 128), "element": "e2m1"}, 1, (128, 128), 512),
        # 192 bytes are one and a half spans of 128: two boxes of 48, each row in a span of its own.
        ({"mode": "128B"}, {"shape": (64, 96)}, 2, (64, 48), 1024),
    ],
)
def test_boxes_of_a_load(fill, tile, boxes, box, alignment):
    _, result = solved({**FILL, **fill}, **tile)
    found = of(result, "fill")
    assert (found.boxes, found.box, result.alignment_bytes) == (boxes, box, alignment)
    assert found.mode == fill.get("mode", "none")
    assert found.data_type == f"CU_TENSOR_MAP_DATA_TYPE_{'UINT8' if 'element' in tile else 'FLOAT16'}"


def test_rows_of_no_whole_chunks_are_in_no_box():
    _, result = solved({**FILL, "mode": "128B"}, shape=(64, 100))
    assert result.status == "infeasible", "200 bytes are no whole number of rows of 16-byte chunks"


def test_fewest_boxes_before_the_cheapest_swizzle():
    """Modes of 32 and of 128 bytes keep the rows apart; one takes eight boxes and the other two."""
    _, result = solved(FILL, {**OWN_ROW, "for": {"i": 16}}, shape=(64, 128))
    found = of(result, "fill")
    assert (result.excess, found.mode, found.boxes, found.box) == (0, "128B", 2, (64, 64))
    assert found.box_offsets == (0, 8192)


def test_modes_that_fit_are_not_said_to_be_too_large():
    """Of a mode, boxes with short rows take more bytes than the limit; those of whole rows do not."""
    _, result = solved(FILL, OWN_ROW, layout={"max_bytes": 16384})
    assert "128B" in result.reason
    assert "max_bytes" not in result.reason


def test_rows_shorter_than_a_span_may_have_fewer_conflicts():
    """Boxes of 16-byte rows, each in a span of 64: the only ones that eight lanes in four rows write whole."""
    store = access_from("w: store 16 [(tid*8 // 16) % 16, tid*8 % 16]")
    _, result = solved({**FILL, "mode": "64B"}, store, shape=(16, 16), threads=64)
    assert (result.weighted_excess, result.bytes, of(result, "fill").box) == (0, 2048, (4, 8))


def test_a_transposed_global_tensor_must_be_asked_for():
    columns = access_from("columns: load 2 [tid, i]; i<64")
    _, result = solved(FILL, columns)
    assert of(result, "fill").order == (0, 1)
    assert all("x1 contiguous" in part for part in result.reason.split("; "))
    _, turned = solved({**FILL, "order": [1, 0]}, columns)
    assert (turned.excess, of(turned, "fill").box_dim) == (0, (128, 64))


def test_tma_and_wgmma_meet():
    _, result = solved(FILL, access_from("A: wgmma.A"), shape=(128, 128))
    found = of(result, "A")
    assert (of(result, "fill").mode, found.mode, found.major, found.shape) == ("128B", "128B", "K", (64, 16))
    assert (found.leading_byte_offset, found.stride_byte_offset, found.code) == (16, 1024, 1)
    assert found.descriptor == "0x4000004000010000"
    page = 128 * 128
    assert found.starts == tuple(m * 8192 + k % 4 * 32 + k // 4 * page for m in range(2) for k in range(8))


@pytest.mark.parametrize(
    ("mode", "leading", "stride", "starts"),
    [
        # bf16 tiles of 64 k rows, 128 n: canonical MN-major layouts of the PTX ISA
        ("128B", 64 * 128, 1024, (0, 2048, 4096, 6144)),
        ("64B", 64 * 64, 512, (0, 1024, 2048, 3072)),
        ("32B", 64 * 32, 256, (0, 512, 1024, 1536)),
    ],
)
def test_mn_major_descriptors(mode, leading, stride, starts):
    operand = {"name": "B", "op": "wgmma.B", "major": "MN", "mode": mode}
    _, result = solved(FILL, operand, shape=(64, 128), element="bf16")
    found = of(result, "B")
    assert (found.leading_byte_offset, found.stride_byte_offset, found.starts) == (leading, stride, starts)


@pytest.mark.parametrize("with_tma", [True, False])
def test_rows_of_a_matrix_may_be_several_dimensions(with_tma):
    """Pixels of an implicit product: 8 x 16 of them are the 128 rows of A."""
    operand = {"name": "A", "op": "wgmma.A", "mn": [0, 1]}
    _, result = solved(*([FILL] if with_tma else []), {**operand, "mode": "128B"}, shape=(8, 16, 64))
    _, flat = solved(*([FILL] if with_tma else []), {"name": "A", "op": "wgmma.A", "mode": "128B"})
    assert (result.table().reshape(128, 64) == flat.table()).all()
    assert msgspec.structs.replace(of(result, "A"), k_dim=1) == of(flat, "A")
    _, sparse = solved({"name": "B", "op": "wgmma.B", "mn": [0, 2], "k": 1, "mode": "64B"}, shape=(4, 32, 64))
    assert (sparse.status, of(sparse, "B").shape) == ("optimal", (256, 16))


@pytest.mark.parametrize(("element", "large", "small"), [("e4m3", 120, 40), ("i8", 24, 8), ("u8", 24, 8)])
def test_integers_of_8_bits_have_fewer_shapes(element, large, small):
    """ptxas knows m64n40k32 of e4m3, and not of s8 or u8."""
    for rows, shape in ((120, large), (40, small)):
        _, result = solved(access_from("b: wgmma.B"), shape=(rows, 32), element=element)
        assert of(result, "b").shape == (shape, 32)
    if small == 8:
        with refused_with("not 40"):
            from_data(data({"name": "b", "op": "wgmma.B", "rows": 40}, shape=(40, 32), element=element))


@pytest.mark.parametrize("apart", [1 << 17, -64])
def test_an_offset_that_a_descriptor_cannot_hold_is_no_layout(apart):
    """14 bits of 16 bytes: columns 256 KiB apart are out of reach, as are those that come before."""
    problem = from_data(data({"name": "b", "op": "wgmma.B", "mode": "none"}, shape=(8, 32)))
    found = check(problem, f"x1 // 8 * {apart} + x0*8 + x1 % 8 + {max(0, -3 * apart)}")
    assert found.findings[0].kind == "unreached"


def test_without_a_swizzle_core_matrices_lie_apart():
    _, result = solved({**FILL, "mode": "none"}, access_from("B: wgmma.B"), element="bf16")
    fill, found = of(result, "fill"), of(result, "B")
    assert (fill.boxes, fill.box) == (8, (128, 8))
    assert (found.leading_byte_offset, found.stride_byte_offset) == (128 * 16, 128)


def test_tcgen05_descriptors():
    tile = {"target": "sm_100a", "element": "e4m3", "shape": (128, 128)}
    problem, result = solved(FILL, access_from("A: tcgen05.A"), **tile)
    found = of(result, "A")
    assert (found.shape, found.code, found.descriptor) == ((128, 32), 2, "0x4000404000010000")
    assert "tcgen05 by vendor document, not run" in report(problem, result)
    assert "not run" not in report(*solved(FILL))


def test_bulk_copies_take_pads():
    columns = access_from("columns: load 4 [tid, i]; i<32")
    _, result = solved(access_from("row: cp.async.bulk 128"), columns, shape=(128, 32), element="f32")
    assert (result.offset, result.bytes, result.excess) == ("x0*36 + x1", 127 * 144 + 128, 32 * 4 * 3)
    found = of(result, "row")
    assert (found.copies, found.starts[1], found.alignment_bytes) == (128, 144, 16)
    _, two = solved(access_from("copies: cp.async.bulk 256"), ROWS)
    assert (of(two, "copies").copies, two.bytes) == (64, 16384)


def test_what_the_hardware_cannot_reach_is_said():
    _, torn = solved({**FILL, "mode": "128B"}, {"name": "A", "op": "wgmma.A", "mode": "64B"})
    assert str(torn.status) == "infeasible"
    problem = from_data(data(FILL, ROWS))
    audit = check(problem, PADDED)
    (finding,) = [f for f in audit.findings if f.kind == "unreached"]
    assert "no tensor map of mode none, 32B, 64B, 128B" in finding.message
    assert str(audit.status) == "infeasible"
    sound = check(problem, SWIZZLED)
    assert (sound.accesses[0].descriptor.mode, sound.alignment_bytes) == ("128B", 1024)
    assert "unreached" not in kinds(sound)
    other = check(from_data(data({**FILL, "mode": "64B"})), SWIZZLED)
    assert kinds(other) & {"unreached", "alignment"} == {"unreached"}


@pytest.mark.parametrize(
    ("access", "field", "reason"),
    [
        ({**FILL, "box": [128]}, "box", "one extent for each of 2"),
        ({**FILL, "box": [100, 64]}, r"box\[0\]", "100 does not divide the tile's 128"),
        ({**FILL, "box": [128, 4]}, r"box\[1\]", "multiple of 16 bytes, not 8"),
        ({**FILL, "box": [128, 64], "mode": "64B"}, r"box\[1\]", "at most the 64 bytes of mode 64B, not 128"),
        ({**FILL, "mode": "256B"}, "mode", "none, 32B, 64B, 128B, not '256B'$"),
        ({**FILL, "mode": "128B_ATOM_32B"}, "mode", "refuses them on an H200"),
        ({**FILL, "order": [0, 0]}, "order", r"each of 0\.\.1 once"),
        ({**FILL, "major": "K"}, "major", "no such field; it has box, element, mode, order"),
        ({**FILL, "index": ["0", "0"]}, "", "unknown field `index`"),
        ({**FILL, "element": "f128"}, "element", "has no 'f128'"),
        ({"name": "a", "op": "wgmma.A", "rows": 128}, "rows", "has 64, not 128"),
        ({**FILL, "multicast": 2}, "multicast", r"what divides block.cluster \(not given\), got 2"),
        ({**FILL, "op": "tma.store", "multicast": 2}, "multicast", "tma.load has"),
        ({**FILL, "box": [128, 64], "multicast": 2}, "multicast", "2 blocks cannot share 1 boxes evenly"),
        ({**FILL, "multicast": 3}, "multicast", "3 blocks cannot share 128x64 elements evenly"),
        (access_from("a: cp.async.bulk"), "bytes", "needs the bytes"),
        (access_from("a: cp.async.bulk 24"), "bytes", "multiple of 16"),
        (access_from("a: cp.async.bulk 96"), "bytes", "do not cover rows"),
        (access_from("a: tcgen05.A"), "op", "sm_90 has no tcgen05; sm_100 has"),
    ],
)
def test_errors_name_the_field(access, field, reason):
    place = r"accesses\[1\]" + (rf"\.{field}" if field else "")
    with pytest.raises(ProblemFileError, match=place + ".*" + reason):
        solve(from_data(data(ROWS, access)))


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("tma.load.im2col", "lie as those of tma.load, pixels by channels"),
        ("cp.async.bulk.tensor.2d", "here it is tma.load or tma.store"),
        ("ld.shared::cluster.b32", "another block's banks"),
        ("wgmma.sp.A", "sparse"),
        ("wgmma.D", "it is none of tma.load, tma.store, wgmma.A"),
        ("TMA.load", "it is none of tma.load"),
    ],
)
def test_what_is_not_declared_is_refused_by_name(op, why):
    said = rf"accesses\[0\]\.op: '{re.escape(op)}' is not declared: .*{why}"
    tiles = data_of("32 threads\ntile A: 8x64 f16", {"name": "a", "tile": "A", "op": op})
    for asked in (data({"name": "a", "op": op}), tiles):
        with pytest.raises(ProblemFileError, match=said):
            from_data(asked)


A = {"name": "A", "op": "wgmma.A"}


@pytest.mark.parametrize(
    ("access", "more", "said"),
    [
        (FILL, {"target": "sm_80"}, "accesses[0].op: sm_80 has no tma; sm_90, sm_100 have"),
        ({"name": "A", "op": "tcgen05.A"}, {"target": "sm_120"}, "accesses[0].op: sm_120 has no tcgen05"),
        ({**A, "major": "MN"}, {"element": "e4m3"}, "K-major; MN-major needs 2"),
        (A, {"shape": (8, 16, 64)}, "accesses[0].op: x1 has 16 rows (mn names more dim"),
        *(({**A, "mn": mn}, {"shape": (8, 16, 64)}, "accesses[0].mn: expected some of the dim")
          for mn in ([2, 0], [0, 0], [5], [])),
        (FILL, {"layout": {"families": ["pad"]}}, "layout.families: an access of the hardware by itself"),
        (ROWS, {"target": "sm_80", "block": {"cluster": 2}}, "block.cluster: sm_80 has no"),
        (ROWS, {"block": {"cluster": 17}}, "block.cluster: expected 1 to 16"),
    ],
)  # fmt: skip
def test_what_there_is_not_is_refused(access, more, said):
    with refused_with(said):
        solve(from_data(data(access, **more)))


def test_blocks_of_a_cluster_share_a_tile():
    shared = {**FILL, "multicast": 4}
    problem, result = solved(shared, access_from("A: wgmma.A"), ROWS, block={"cluster": 8})
    found = of(result, "fill")
    assert (found.multicast, found.boxes, found.box, found.mode) == (4, 4, (32, 64), "128B")
    assert "1 box by each of 4 blocks of the cluster to all of them" in report(problem, result)
    text = emit("cuda", problem, device("sm_90"), result)
    assert "block_cluster = 8;" in text
    assert ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" in text
    (alone,) = solved(FILL)[1].accesses
    assert "multicast" not in json.dumps(msgspec.to_builtins(alone))


def test_rows_shorter_than_the_span_leave_it_unfilled():
    """What an H200 did with 16 rows of 64 bytes in mode 128B: rows 128 bytes apart, chunks flipped."""
    _, result = solved({**FILL, "box": [16, 32], "mode": "128B"}, shape=(16, 32))
    words = {offset: element for element, offset in enumerate((result.table() // 2).ravel().tolist())}
    seen = MEASURED["short rows"]  # 2-byte words by place, the elements numbered row by row
    assert [words.get(at, 0xFFFF) for at in range(len(seen))] == seen
    assert (result.bytes, of(result, "fill").boxes) == (2048, 1)


def test_the_published_layout_breaks_ties():
    published = {"offset": SWIZZLED, "bytes": 16384}
    assert of(solved(FILL, ROWS)[1], "fill").mode == "none"
    assert of(solved(FILL, ROWS, published=published)[1], "fill").mode == "128B"


def test_a_problem_survives_its_data():
    problem = from_data(data({**FILL, "box": [128, 64]}, ROWS))
    assert from_data(msgspec.to_builtins(problem)) == problem


def test_tile_sets_hold_them_and_fragments():
    fragment = {"tile": "D", "name": "out", "op": "stmatrix.x4", "fragment": "wgmma.m64n8k16.C.f16"}
    tiles = problem_of(
        """128 threads; target sm_90; families none pad; max_bytes 65536
        tile A: 128x64 f16; stages 2
        tile D: 64x64 f16
        fill: tma.load; tile A
        operand: wgmma.A; tile A""",
        {**fragment, "repeat": {"n": 8}},
        "store: tma.store; tile D",
    )
    found = solve(tiles)
    got = str(found.status), found.excess, found.bytes, found.alignment_bytes
    assert got == ("optimal", 0, 40960, 1024)
    text = report(tiles, found)
    assert "operand: K-major, mode 128B (code 1)" in text
    assert "store: 1 box of 64x64" in text
    one = data_of("32 threads\ntile A: 8x64 f16", {"tile": "A", **FILL})
    jsonschema.validate(one, json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**one, "accesses": [FILL]}, json_schema())
    with refused_with("accesses[1].box[0]"):
        from_data({**one, "accesses": [{"tile": "A", **ROWS}, {"tile": "A", **FILL, "box": [3, 64]}]})


def test_the_layouts_that_the_hardware_knows_are_compared():
    rows = rows_of(compare(from_data(data(FILL, OWN_ROW, published={"offset": PADDED, "bytes": 18432}))))
    assert {"tma.none", "tma.128B", "tma.64B", "tma.32B", "all", "published"} <= {*rows}
    assert (rows["tma.128B"].excess, rows["tma.128B"].alignment_bytes, rows["all"].excess) == (0, 1024, 0)
    assert str(rows["published"].status) == "infeasible"


def test_compare_ranks_modes_as_solve_does():
    asked = from_data(data(FILL, OWN_ROW))
    comparison = compare(asked)
    titles = [row.title for row in comparison.rows]
    # Pages of 16 bytes have no conflicts either, in eight boxes; one box of whole rows has many.
    modes = ("128B", "1 box"), ("64B", "2 boxes"), ("32B", "4 boxes"), ("none", "8 boxes")
    assert titles[:4] == [f"tma.{mode}, x1 contiguous, {boxes}" for mode, boxes in modes]
    assert "tma.none, x1 contiguous, 1 box" in titles
    taken = comparison.recommendation
    assert (taken.family, taken.offset) == ("tma.128B", solve(asked).offset)


@pytest.mark.parametrize(
    ("offset", "kept"), [(SWIZZLED, True), ("x1 // 32 * 4096 + x0*32 + (x1 % 32 ^ x0 // 2 % 4 * 8)", False)]
)
def test_a_mode_in_use_is_kept_where_none_is_better_and_else_replaced(offset, kept):
    asked = data(FILL, OWN_ROW, published={"offset": offset, "bytes": 16384})
    taken = compare(from_data(asked)).recommendation
    assert taken.keep is kept
    assert kept or ("same bytes" in taken.text and "1 fewer instruction of the hardware" in taken.text)


def test_templates_may_say_boxes():
    asked = data({**FILL, "box": ["M // 2", "K"]}, shape=("M", "K"), params={"M": [64, 128], "K": 64})
    boxes = [of(solve(problem), "fill").box for problem in load_all({**asked, "name": "block {M}"})]
    assert boxes == [(32, 64), (64, 64)]
