"""What the hardware reads and writes by itself: TMA, matrix descriptors, bulk copies."""

import json

import jsonschema
import msgspec
import pytest
from emit_programs import emit
from hardware_tiles import FILL, MEASURED, OWN_ROW, ROWS, data, of, solved
from written import access_from, data_of, problem_of, refused_with, rows_of

from layoutopt import check, compare, load_all, solve
from layoutopt.files.file import from_data, json_schema
from layoutopt.hardware.devices import device
from layoutopt.report.text import report

A = {"name": "A", "op": "wgmma.A"}
SWIZZLED, PADDED = "x0*64 + (x1 ^ x0 % 8 * 8)", "x0*72 + x1"


def kinds(audit):
    return {finding.kind for finding in audit.findings}


COLUMNS = access_from("columns: load 2 [tid, i]; i<64")
LOAD = {**FILL, "mode": "128B"}
TMA, PAGE = "CU_TENSOR_MAP_DATA_TYPE_", 128 * 128
CORNERS = tuple(m * 8192 + k % 4 * 32 + k // 4 * PAGE for m in range(2) for k in range(8))


def tile(*shape, element="f16", **more):
    return {"shape": shape, "element": element, **more}


# Accesses and their tile; what is found, of the result or of the descriptor of an access.
DICTATED = {
    "a load by itself is a tile": (
        [LOAD], {},
        {"status": "optimal", "excess": 0, "bytes": 16384, "alignment_bytes": 1024, "decided_by": "hardware",
         "accesses.0.wavefronts": 0, "accesses.0.ideal": 0, "fill.boxes": 1, "fill.box": (128, 64),
         "fill.box_dim": (64, 128), "fill.code": 3, "fill.data_type": f"{TMA}FLOAT16"},
    ),
    **{
        f"boxes in mode {mode}": (
            [{**FILL, "mode": mode}], {},
            {"fill.mode": mode, "fill.boxes": boxes, "fill.box": (128, 64 // boxes), "alignment_bytes": alignment},
        )
        for mode, boxes, alignment in (("none", 1, 128), ("32B", 4, 256), ("64B", 2, 512))
    },
    "boxes of at most 256 rows": (
        [FILL], tile(512, 64), {"fill.mode": "none", "fill.boxes": 2, "fill.box": (256, 64)},
    ),
    "elements of half a byte": (
        [{**FILL, "mode": "64B", "box": [128, 128]}], tile(128, 128, element="e2m1"),
        {"fill.boxes": 1, "fill.box": (128, 128), "alignment_bytes": 512, "fill.data_type": f"{TMA}UINT8"},
    ),
    "192 bytes are one and a half spans of 128: two boxes of 48, each row in a span of its own": (
        [LOAD], tile(64, 96), {"fill.boxes": 2, "fill.box": (64, 48), "alignment_bytes": 1024},
    ),
    "200 bytes are no whole number of rows of 16-byte chunks": ([LOAD], tile(64, 100), {"status": "infeasible"}),
    "modes of 32 and of 128 bytes keep the rows apart; one takes eight boxes and the other two": (
        [FILL, {**OWN_ROW, "for": {"i": 16}}], tile(64, 128),
        {"excess": 0, "fill.mode": "128B", "fill.boxes": 2, "fill.box": (64, 64), "fill.box_offsets": (0, 8192)},
    ),
    "boxes of 16-byte rows, each in a span of 64: the only ones that eight lanes in four rows write whole": (
        [{**FILL, "mode": "64B"}, access_from("w: store 16 [(tid*8 // 16) % 16, tid*8 % 16]")],
        tile(16, 16, threads=64), {"weighted_excess": 0, "bytes": 2048, "fill.box": (4, 8)},
    ),
    "a transposed global tensor must be asked for": ([FILL, COLUMNS], {}, {"fill.order": (0, 1)}),
    "a transposed global tensor": (
        [{**FILL, "order": [1, 0]}, COLUMNS], {}, {"excess": 0, "fill.box_dim": (128, 64)},
    ),
    "TMA and wgmma meet": (
        [FILL, A], tile(128, 128),
        {"fill.mode": "128B", "A.mode": "128B", "A.major": "K", "A.shape": (64, 16), "A.leading_byte_offset": 16,
         "A.stride_byte_offset": 1024, "A.code": 1, "A.descriptor": "0x4000004000010000", "A.starts": CORNERS},
    ),
    **{  # bf16 tiles of 64 k rows, 128 n: canonical MN-major layouts of the PTX ISA
        f"MN-major, {row} bytes": (
            [{"name": "B", "op": "wgmma.B", "major": "MN", "mode": f"{row}B"}], tile(64, 128, element="bf16"),
            {"B.leading_byte_offset": 64 * row, "B.stride_byte_offset": 8 * row,
             "B.starts": tuple(k * 16 * row for k in range(4))},
        )
        for row in (32, 64, 128)
    },
    "without a swizzle core matrices lie apart": (
        [{**FILL, "mode": "none"}, access_from("B: wgmma.B")], {"element": "bf16"},
        {"fill.boxes": 8, "fill.box": (128, 8), "B.leading_byte_offset": 128 * 16, "B.stride_byte_offset": 128},
    ),
    "tcgen05": (
        [FILL, access_from("A: tcgen05.A")], tile(128, 128, element="e4m3", target="sm_100a"),
        {"A.shape": (128, 32), "A.code": 2, "A.descriptor": "0x4000404000010000"},
    ),
    # ptxas knows m64n40k32 of e4m3, and not of s8 or u8.
    **{
        f"{rows} rows of {element}": (
            [access_from("b: wgmma.B")], tile(rows, 32, element=element), {"b.shape": (shape, 32)},
        )
        for element, *shapes in (("e4m3", 120, 40), ("i8", 24, 8), ("u8", 24, 8))
        for rows, shape in zip((120, 40), shapes, strict=True)
    },
    "bulk copies take pads": (
        [access_from("row: cp.async.bulk 128"), access_from("columns: load 4 [tid, i]; i<32")],
        tile(128, 32, element="f32"),
        {"offset": "x0*36 + x1", "bytes": 127 * 144 + 128, "excess": 32 * 4 * 3, "row.copies": 128,
         "row.starts.1": 144, "row.alignment_bytes": 16},
    ),
    "bulk copies of two rows": (
        [access_from("copies: cp.async.bulk 256"), ROWS], {}, {"copies.copies": 64, "bytes": 16384},
    ),
    "a published layout breaks no tie": ([FILL, ROWS], {}, {"fill.mode": "none"}),
    "the published layout breaks ties": (
        [FILL, ROWS], {"published": {"offset": SWIZZLED, "bytes": 16384}}, {"fill.mode": "128B"},
    ),
    "layouts that two instructions read in different modes": (
        [LOAD, {**A, "mode": "64B"}], {}, {"status": "infeasible"},
    ),
}  # fmt: skip


def told(result, path):
    """A field of a result, or of the descriptor of an access that is named."""
    first, _, rest = path.partition(".")
    found = result if hasattr(result, first) else of(result, first)
    for key in path.split(".") if found is result else rest.split("."):
        found = found[int(key)] if key.isdigit() else getattr(found, key)
    return found


@pytest.mark.parametrize("case", DICTATED)
def test_what_the_hardware_reads_and_writes_by_itself(case):
    accesses, more, facts = DICTATED[case]
    _, result = solved(*accesses, **more)
    assert {path: told(result, path) for path in facts} == facts


def test_what_is_said_of_a_load():
    text = report(*solved(LOAD))
    assert "fill: 1 box of 128x64, boxDim {64, 128}, CU_TENSOR_MAP_SWIZZLE_128B" in text
    assert "not run" not in text
    tile = {"target": "sm_100a", "element": "e4m3", "shape": (128, 128)}
    assert "tcgen05 by vendor document, not run" in report(*solved(FILL, access_from("A: tcgen05.A"), **tile))
    _, turned = solved(FILL, COLUMNS)
    assert all("x1 contiguous" in part for part in turned.reason.split("; "))
    # Of a mode, boxes with short rows take more bytes than the limit; those of whole rows do not.
    _, limited = solved(FILL, OWN_ROW, layout={"max_bytes": 16384})
    assert "128B" in limited.reason
    assert "max_bytes" not in limited.reason


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


@pytest.mark.parametrize("apart", [1 << 17, -64])
def test_an_offset_that_a_descriptor_cannot_hold_is_no_layout(apart):
    """14 bits of 16 bytes: columns 256 KiB apart are out of reach, as are those that come before."""
    problem = from_data(data({"name": "b", "op": "wgmma.B", "mode": "none"}, shape=(8, 32)))
    found = check(problem, f"x1 // 8 * {apart} + x0*8 + x1 % 8 + {max(0, -3 * apart)}")
    assert found.findings[0].kind == "unreached"


def test_what_the_hardware_cannot_reach_is_said():
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


REFUSED = [
    ({**FILL, "box": [128]}, {}, ".box: expected one extent for each of 2"),
    ({**FILL, "box": [100, 64]}, {}, ".box[0]: 100 does not divide the tile's 128"),
    ({**FILL, "box": [128, 4]}, {}, ".box[1]: a row of a box is a multiple of 16 bytes, not 8"),
    ({**FILL, "box": [128, 64], "mode": "64B"}, {}, ".box[1]: a row of a box has at most the 64 bytes of mode 64B, not 128"),
    ({**FILL, "mode": "256B"}, {}, ".mode: tma has the modes none, 32B, 64B, 128B, not '256B'"),
    ({**FILL, "mode": "128B_ATOM_32B"}, {}, "refuses them on an H200"),
    ({**FILL, "order": [0, 0]}, {}, ".order: expected each of 0..1 once"),
    ({**FILL, "major": "K"}, {}, ".major: tma.load has no such field; it has box, element, mode, order"),
    ({**FILL, "index": ["0", "0"]}, {}, ": object contains unknown field `index`"),
    ({**FILL, "element": "f128"}, {}, "has no 'f128'"),
    ({**A, "rows": 128}, {}, "has 64, not 128"),
    ({**FILL, "multicast": 2}, {}, "what divides block.cluster (not given), got 2"),
    ({**FILL, "op": "tma.store", "multicast": 2}, {}, "tma.load has"),
    ({**FILL, "box": [128, 64], "multicast": 2}, {}, "2 blocks cannot share 1 boxes evenly"),
    ({**FILL, "multicast": 3}, {}, "3 blocks cannot share 128x64 elements evenly"),
    (access_from("a: cp.async.bulk"), {}, ".bytes: cp.async.bulk needs the bytes"),
    (access_from("a: cp.async.bulk 24"), {}, "multiple of 16"),
    (access_from("a: cp.async.bulk 96"), {}, "do not cover rows"),
    (access_from("a: tcgen05.A"), {}, ".op: sm_90 has no tcgen05; sm_100 has"),
    (FILL, {"target": "sm_80"}, ".op: sm_80 has no tma; sm_90, sm_100 have"),
    ({"name": "A", "op": "tcgen05.A"}, {"target": "sm_120"}, ".op: sm_120 has no tcgen05"),
    ({**A, "major": "MN"}, {"element": "e4m3"}, "K-major; MN-major needs 2"),
    ({"name": "b", "op": "wgmma.B", "rows": 40}, tile(40, 32, element="i8"), "not 40"),
    (A, {"shape": (8, 16, 64)}, ".op: x1 has 16 rows (mn names more dim"),
    *(({**A, "mn": mn}, {"shape": (8, 16, 64)}, ".mn: expected some of the dim") for mn in ([2, 0], [0, 0], [5], [])),
    (FILL, {"layout": {"families": ["pad"]}}, "layout.families: an access of the hardware by itself"),
    (ROWS, {"target": "sm_80", "block": {"cluster": 2}}, "block.cluster: sm_80 has no"),
    (ROWS, {"block": {"cluster": 17}}, "block.cluster: expected 1 to 16"),
    *(({"name": "a", "op": op}, {}, f".op: '{op}' is not declared: {why}") for op, why in {
        "tma.load.im2col": "in shared memory its boxes lie as those of tma.load, pixels by channels",
        "cp.async.bulk.tensor.2d": "here it is tma.load or tma.store",
        "ld.shared::cluster.b32": "of another block's banks",
        "wgmma.sp.A": "operands that are sparse",
        "wgmma.D": "it is none of tma.load, tma.store, wgmma.A",
        "TMA.load": "it is none of tma.load",
    }.items()),
]  # fmt: skip


@pytest.mark.parametrize(("access", "more", "said"), REFUSED)
def test_what_there_is_not_is_refused(access, more, said):
    with refused_with(f"accesses[0]{said}" if said[0] in ".:" else said):
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
    with refused_with("accesses[0].op: 'wgmma.D' is not declared"):
        from_data({**one, "accesses": [{"tile": "A", **FILL, "op": "wgmma.D"}]})
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
