"""Certificates of several tiles, and of tiles that the hardware reads and writes by itself."""

import json

import pytest
from certificates_checked import certified, checked, plain_transpose
from command import layoutopt
from written import access_from, data_of

from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.search.certify import certificate
from layoutopt.search.solve import solve

BLOCK = data_of("""32 threads; name block; target sm_90
    tile A: 32x8 f32; stages 2
    tile B: 32x8 f32; families none pad
    tile C: 8x32 f32
    a: load 4 [lane, i]; i<8; tile A
    b: load 4 [lane, i]; i<8; tile B
    c: store 4 [i, lane]; i<8; tile C""", overlay=[["B"], ["C"]])  # fmt: skip


@pytest.fixture
def holds(tmp_path):
    """Asserts what the checker of certificates says, and its exit code."""

    def holds(data, given, said="", code=0):
        found, text = checked(data, given, tmp_path)
        assert (found, said in text) == (code, True), text

    return holds


def certificate_of(data, gpu="sm_90", **options):
    problem = from_data(data)
    return certificate(problem, device(gpu), solve(problem, time_limit=5, **options))


def block_certificate_of(data, tmp_path):
    path, out = tmp_path / "block.json", tmp_path / "out.json"
    path.write_text(json.dumps(data))
    assert layoutopt("solve", str(path), "--json", "--certificate", str(out)).returncode in (0, 1)
    return json.loads(out.read_text())


def test_several_tiles_are_checked_where_they_lie(holds, tmp_path):
    given = block_certificate_of({**BLOCK, "tiles": [BLOCK["tiles"][0], BLOCK["tiles"][2]], "accesses":
                                  [BLOCK["accesses"][0], BLOCK["accesses"][2]], "overlay": []}, tmp_path)  # fmt: skip
    problem = json.loads((tmp_path / "block.json").read_text())
    code, text = checked(problem, given, tmp_path)
    assert (code, text.count(": checked")) == (0, 9), text
    for change, error in (
        (lambda c: c["tiles"][1]["places"][0].update(base_bytes=1024), "A and C share bytes"),
        (lambda c: c["tiles"][1]["places"][0].update(base_bytes=2052), "the tiles end at byte"),
        (lambda c: c["tiles"].pop(), "the tiles are not those of the file"),
        (lambda c: c.update(excess=1), "the excess is 0"),
        (lambda c: c["tiles"][0]["certificate"]["layout"]["wavefronts"].update(a=9), "wavefronts are"),
    ):
        wrong = json.loads(json.dumps(given))
        change(wrong)
        holds(problem, wrong, error, 1)


def test_a_base_of_little_alignment_moves_whole_tiles(holds, tmp_path):
    """The base has 4 bytes, what the accesses need: elements of 16 lie as they do from the tile's start."""
    data = data_of("""16 threads; name block; target sm_90
        tile A: 5x5 f32
        tile B: 16x4 b128
        a: load 4 [0, lane % 5]; tile A
        b: load 2 [lane, 0]; tile B""")  # fmt: skip
    data["layout"] = {"alignment_bytes": 4}
    given = block_certificate_of(data, tmp_path)
    starts = [place["base_bytes"] for part in given["tiles"] for place in part["places"]]
    assert starts == [0, 100]
    holds(data, given)


def test_tiles_of_several_sizes_and_elements_that_share_a_layout_are_checked(holds, tmp_path):
    tiles = [BLOCK["tiles"][0], {"name": "C", "shape": [32, 8], "element": "f16"}]
    accesses = [BLOCK["accesses"][0], {**BLOCK["accesses"][2], "bytes": 2, "index": ["lane", "i"]}]
    data = {**BLOCK, "tiles": tiles, "accesses": accesses, "overlay": [], "same_layout": [["A", "C"]]}
    given = block_certificate_of(data, tmp_path)
    holds(data, given, "block: 0 weighted excess in 2560 bytes")
    given["tiles"][0]["certificate"]["layout"]["wavefronts"].update(c=9)
    holds(data, given, code=1)


def test_what_the_search_alone_knows_of_several_tiles_stays_open(holds, tmp_path):
    given = block_certificate_of({**BLOCK, "layout": {"max_bytes": 3072}}, tmp_path)
    assert given["bound"]["rests_on"] == "layoutopt's search of the families alone"
    problem = json.loads((tmp_path / "block.json").read_text())
    holds(problem, given, "NOT CHECKED, it rests on layoutopt's search", 3)
    claimed = json.loads(json.dumps(given))
    claimed["bound"].update(rests_on="arithmetic", scope="every layout")
    holds(problem, claimed, code=1)


def test_what_the_solver_alone_knows_of_a_tile_is_open_of_all(holds, tmp_path):
    data = data_of("""32 threads; target sm_90
        tile A: 24x64 f64; stages 2
        tile B: 32x16 i8
        one: store 1 [0, 0]; tile A
        rows: store 16 [(lane + 4*k) % 32, 0]; k<2; tile B
        bytes: load 1 [tid, 3*tid % 16]; tile B""")
    given = block_certificate_of(data, tmp_path)
    assert (given["bound"]["excess"], given["bound"]["scope"]) == (1, "every layout")
    holds(data, given, "excess: of all tiles, in every layout: NOT CHECKED", 3)


def test_what_is_to_be_written_out_leaves_the_other_tiles(tmp_path):
    copied = {"name": "a", "tile": "A", "op": "store", "copy": {"bytes": 4}}
    moved = access_from("ld: tma.load; tile B")
    tiles = [{**tile, "layout": {}} for tile in BLOCK["tiles"]]
    data = {**BLOCK, "tiles": tiles, "accesses": [copied, moved, BLOCK["accesses"][2]]}
    code, text = checked(data, block_certificate_of(data, tmp_path), tmp_path)
    lines = text.splitlines()
    assert (code, lines[0]) == (3, "A: NOT CHECKED: accesses without an index: a are not handled here")
    assert {"B:", "C:", "block: NOT CHECKED: its bytes and excess, for want of A"} <= set(lines)
    assert "ld: tma.load, mode none, 1 instructions reach every element: checked" in lines


TMA_ONLY = data_of("128x64 f16, 128 threads", "ld: tma.load", "a: wgmma.A")


def test_what_the_hardware_moves_by_itself_is_checked(tmp_path):
    given = certificate_of(TMA_ONLY)
    still = {"index": [0, 0], "where": "0"}
    expanded = [{**a, **still, "hardware": {"engine": a["op"].split(".")[0]}} for a in TMA_ONLY["accesses"]]
    for accesses in (TMA_ONLY["accesses"], expanded):
        code, text = checked({**TMA_ONLY, "accesses": accesses}, given, tmp_path)
        assert code == 0, text
        assert "ld: tma.load, mode 128B, 1 instructions reach every element: checked" in text
        assert "a: wgmma.A, mode 128B, 8 instructions reach every element: checked" in text
        assert "none is better: checked" in text


def swapped(given):
    """Two chunks of one row change places."""
    table = given["layout"]["byte_offsets"]
    table[:8], table[8:16] = table[8:16], table[:8]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (swapped, "access 'ld': element 0 does not lie as TMA moves it"),
        (lambda c: c["hardware"]["ld"].update(mode="64B", code=2, alignment_bytes=512), "128 bytes"),
        (lambda c: c["hardware"]["ld"].update(alignment_bytes=128), "the code or the alignment of mode 128B"),
        (lambda c: c["hardware"]["ld"].update(box=[64, 64]), "boxDim is another box"),
        (lambda c: c["hardware"]["ld"].update(box_offsets=[1024]), "do not lie as TMA moves them"),
        (lambda c: c["hardware"]["a"].update(stride_byte_offset=512), "the bits of the descriptor"),
        (lambda c: c["hardware"]["a"].update(descriptor="0x4000004000010001"), "the bits of the descriptor"),
        (lambda c: c["hardware"]["a"].update(starts=[0] * 8), "access 'a': element 16 does"),
        (lambda c: c["hardware"].pop("a"), "descriptors of ['ld']"),
    ],
)
def test_forged_descriptors(change, error, holds):
    given = certificate_of(TMA_ONLY)
    change(given)
    holds(TMA_ONLY, given, error, 1)


# A row a thread: every mode has conflicts, and which has the fewest is a matter of counting them.
OWN_ROW = data_of("64x64 f16, 64 threads", "ld: tma.load", "r: load 2 [tid, i]; i<4")


def test_the_choice_of_a_mode_is_checked(holds, tmp_path):
    given = certificate_of(OWN_ROW)
    assert given["bound"]["excess"] > 0
    holds(OWN_ROW, given, "layouts of whole boxes, pages or copies none is better: checked")
    pinned = {**OWN_ROW, "accesses": [{**OWN_ROW["accesses"][0], "mode": "none"}, OWN_ROW["accesses"][1]]}
    worse = certificate_of(pinned)
    code, text = checked(pinned, worse, tmp_path)
    assert code == 0, text
    holds(OWN_ROW, worse, "another layout that the hardware knows has weighted excess", 1)


def test_of_equals_the_fewest_boxes(holds):
    """Eight boxes of 16-byte rows serve an idle tile as well as one box does, and are not the answer."""
    idle = {**OWN_ROW, "accesses": [OWN_ROW["accesses"][0]]}
    pinned = {**idle, "accesses": [{**idle["accesses"][0], "mode": "none", "box": [64, 8]}]}
    given = certificate_of(pinned)
    holds(pinned, given)
    holds(idle, given, "8192 bytes, 1 instructions instead of", 1)


def test_rows_of_a_matrix_may_be_several_dimensions(holds):
    data = data_of(
        """4x32x64 f16, 128 threads
        ld: tma.load""",
        {"name": "b", "op": "wgmma.B", "mn": [0, 1], "k": 2, "rows": 128},
    )
    given = certificate_of(data)
    holds(data, given, "b: wgmma.B, mode 128B, 4 instructions reach")
    given["hardware"]["b"]["starts"] = [0, 16, 64, 96]
    holds(data, given, "access 'b'", 1)


def test_blocks_of_a_cluster_share_the_boxes(holds):
    shared = {**TMA_ONLY, "accesses": [{**TMA_ONLY["accesses"][0], "multicast": 2}], "block": {"cluster": 2}}
    given = certificate_of(shared)
    holds(shared, given, "ld: tma.load, mode none, 2 instructions reach")
    given["hardware"]["ld"]["multicast"] = 1
    holds(shared, given, code=1)


def test_a_layout_that_must_be_is_checked(holds, tmp_path):
    code, text, given = certified(plain_transpose(must_be="tma.none"), device("sm_90"), tmp_path)
    assert (code, "layout.must_be: one of tma.none: checked" in text) == (0, True), text
    data = plain_transpose(must_be="tma.32B")
    given["constraints"]["must_be"] = "tma.32B"
    given = json.loads(
        json.dumps(given).replace("of tma.none", "of tma.32B").replace('["tma.none"]', '["tma.32B"]')
    )
    holds(data, given, "no layout of tma.32B", 1)


def test_boxes_with_short_rows_are_among_what_must_be(holds, tmp_path):
    """Whole rows of 16 columns of f32 have 3 conflicts: 8 rows of 64 bytes; 16-byte rows have none."""
    data = data_of("8x16 f32, 8 threads; must_be tma.none", "r: load 16 [lane, 0]")
    given = certificate_of(data)
    code, text = checked(data, given, tmp_path)
    assert (code, given["bound"]["excess"], "none is better: checked" in text) == (0, 0, True), text
    whole = [64 * row + 4 * column for row in range(8) for column in range(16)]
    given["layout"] |= {"byte_offsets": whole, "wavefronts": {"r": 4}, "excess": 3}
    given["bound"]["excess"] = 3
    holds(data, given, "another layout that the hardware knows has weighted excess 0", 1)


def test_boxes_of_a_part_of_several_dimensions_are_compared(tmp_path):
    """Boxes of one x1 each have 2 conflicts; those of all twelve, nine."""
    data = data_of(
        "12x12x8 f64, 32 threads",
        {"name": "ld", "op": "tma.load", "mode": "32B", "order": [2, 1, 0]},
        "r: load 8 [0, lane*2 % 12, lane*3 % 8]",
    )
    given = certificate_of(data)
    code, text = checked(data, given, tmp_path)
    assert (code, given["bound"]["excess"], "none is better: checked" in text) == (0, 2, True), text


def test_what_must_be_serves_the_accesses_too(holds):
    """tma.none would have no conflicts here, and wgmma does not read it."""
    data = data_of("""64x48 bf16, 64 threads; must_be tma
        a: wgmma.A
        ld: tma.load
        r: load 16 [tid*8 // 48, tid*8 % 48]""")
    given = certificate_of(data)
    assert given["bound"]["excess"] > 0
    holds(data, given, "none is better: checked")


def test_direct_loads_write_side_by_side(holds):
    data = data_of("8x64 f32, 64 threads; target gfx942", "d: buffer_load_dword.lds [i, lane]; i<8")
    given = certificate_of(data, "gfx942")
    holds(data, given)
    table = given["layout"]["byte_offsets"]
    table[0], table[1] = table[1], table[0]
    holds(data, given, "lanes of warp 0 do not write side by side", 1)


PADS = {**OWN_ROW, "accesses": [access_from("ld: cp.async.bulk 128"), OWN_ROW["accesses"][1]]}


def test_the_pads_between_bulk_copies_are_checked(holds):
    given = certificate_of(PADS)
    holds(PADS, given, "choice: of 8 layouts of whole boxes, pages or copies none is better")
    dense = {**PADS, "layout": {"max_bytes": 8192}}
    worse = certificate_of(dense)
    holds(dense, worse)
    worse["constraints"]["max_bytes"] = None
    holds(PADS, worse, "another layout that the hardware knows has weighted excess", 1)


@pytest.mark.parametrize("layout", [{"minimise": "instructions"}, {"alignment_bytes": 256}])
def test_the_choice_under_more_constraints_is_checked(layout, holds):
    data = {**OWN_ROW, "layout": layout}
    given = certificate_of(data)
    holds(data, given, "none is better: checked")
    best = certificate_of(OWN_ROW)
    best["constraints"] = given["constraints"]
    holds(data, best, code=1)


def test_that_no_mode_serves_is_checked(tmp_path):
    given = certificate_of(OWN_ROW, conflict_free=True)
    code, text = checked(OWN_ROW, given, tmp_path)
    got = code, "layouts of whole boxes, pages or copies none is without conflicts: checked" in text
    assert got == (0, True)
    narrow = {**OWN_ROW, "layout": {"max_bytes": 8192}, "accesses": [{**OWN_ROW["accesses"][0], "mode": "128B",
              "box": [64, 32]}, OWN_ROW["accesses"][1]]}  # fmt: skip
    given = certificate_of(narrow)
    code, text = checked(narrow, given, tmp_path)
    assert (given["status"], code, "none serves: checked" in text) == ("infeasible", 0, True), text
