"""Audits of blocks that are in use: where tiles lie, whether they fit, and what each costs."""

import copy
import json

import pytest
from command import layoutopt
from written import access_from, saved

from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data, load
from layoutopt.problems.answer import Status
from layoutopt.search.block import solve
from layoutopt.study.check import check

BLOCK = {
    "name": "block", "target": "sm_90", "threads": 32,
    "tiles": [
        {"name": "A", "shape": [32, 32], "element": "f32", "stages": 2,
         "published": {"offset": "x0*33 + x1", "bytes": 4224}},
        {"name": "B", "shape": [32, 32], "element": "f32", "published": {"offset": "x0*32 + x1", "bytes": 4096}},
    ],
    "accesses": [
        access_from("a: load 4 [tid, i]; i<32; tile A"),
        access_from("b: load 4 [tid, i]; i<32; tile B"),
    ],
}  # fmt: skip


def audited(**changes):
    data = copy.deepcopy(BLOCK)
    for name, fields in changes.items():
        if name in "AB":
            data["tiles"]["AB".index(name)].update(fields)
        else:
            data[name] = fields
    return check(from_data(data))


def kinds(audit):
    return [finding.kind for finding in audit.findings]


def test_each_tile_is_counted_and_they_lie_one_behind_the_other():
    audit = audited()
    assert [(part.base_bytes, part.stage_bytes) for part in audit.tiles] == [(0, 4224), (8448, 4096)]
    assert (audit.bytes, audit.excess, kinds(audit)) == (8448 + 4096, 31 * 32, [])
    assert [part.audit.excess for part in audit.tiles] == [0, 31 * 32]


def test_tiles_that_share_bytes_while_both_live():
    audit = audited(B={"base_bytes": 4224})
    assert (kinds(audit), audit.status) == (["overlap"], Status.INFEASIBLE)
    assert audit.findings[0].details == {"tiles": ["A", "B"], "bytes": [4224, 8320]}
    apart = audited(B={"base_bytes": 0}, overlay=[["A"], ["B"]])
    assert (kinds(apart), apart.bytes) == ([], 2 * 4224)


def test_stages_that_share_bytes_or_begin_where_no_element_may():
    assert kinds(audited(A={"stage_bytes": 4096})) == ["overlap"]
    misplaced = audited(A={"base_bytes": 2})
    assert kinds(misplaced) == ["misplaced"]
    assert "a stage begins at byte 2" in misplaced.findings[0].message


def test_where_the_file_does_not_say_a_tile_begins_where_its_elements_may():
    """The elements of 12 bytes end at 108; accesses of 4 bytes would let those of 8 begin there."""
    tiles = [
        {
            "name": name,
            "shape": [9],
            "element": {"bytes": size},
            "published": {"offset": "x0", "bytes": 9 * size},
        }
        for name, size in (("A", 12), ("B", 8))
    ]
    reads = {"op": "load", "bytes": 4, "index": ["lane % 5"]}
    accesses = [{**reads, "name": name, "tile": name} for name in "AB"]
    data = {"name": "t", "target": "sm_90", "threads": 32, "tiles": tiles, "accesses": accesses}
    bases = [part.base_bytes for part in check(from_data(data)).tiles]
    assert bases == [0, 112]
    given = check(from_data({**data, "layout": {"alignment_bytes": 4}}))
    assert [part.base_bytes for part in given.tiles] == [0, 108]


def test_the_block_has_a_budget():
    assert kinds(audited(layout={"max_bytes": 12544})) == []
    assert kinds(audited(layout={"max_bytes": 12543})) == ["budget"]
    assert kinds(audited(A={"stages": 60})) == ["budget"]  # what a block of this GPU may take


def test_a_tile_without_a_layout_is_named():
    data = copy.deepcopy(BLOCK)
    del data["tiles"][1]["published"]
    with pytest.raises(ProblemFileError, match=r"tiles\[1\]: no layout to check"):
        check(from_data(data))


def test_the_command_prints_the_block(tmp_path):
    path = saved(tmp_path, "block.json", BLOCK)
    done = layoutopt("check", path)
    assert done.returncode == 1
    assert "992 excess wavefronts" in done.stdout
    assert "B: fix:" in done.stdout
    data = json.loads(layoutopt("check", path, "--json", "--no-fix").stdout)
    assert (data["schema"], data["excess"]) == ("layoutopt.tile_set_audit/1", 992)
    assert [tile["tile"] for tile in data["tiles"]] == ["A", "B"]
    refused = layoutopt("check", path, "--offset", "x0*32 + x1")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "tiles[i].published.offset" in refused.stderr


# Blocks of public kernels: bytes to the end of the last tile, and conflicts, as their authors have them.
PUBLIC = {
    "flash_attention_3_forward_hdim128_bf16": (212_992, 0),
    "deep_gemm_fp8_1d2d_128x128": (199_168, 0),
    "thunderkittens_matmul_128x256_bf16": (196_608, 0),
    "flash_mla_decode_bf16": (229_376, 0),
    "composable_kernel_gemm_xdl_256x128_f16": (24_704, 64),
    "composable_kernel_gemm_xor_128x128_f16": (32_768, 0),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_blocks_of_public_kernels(name):
    tile_set = load(name)
    audit = check(tile_set)
    assert (audit.bytes, audit.excess, kinds(audit)) == (*PUBLIC[name], [])
    if PUBLIC[name][1]:
        return
    solved = {part.tiles[0]: part.result for part in solve(tile_set).tiles}
    for tile in tile_set.tiles:  # the modes, boxes and pages of the authors are those of the answer
        assert solved[tile.name].offset == tile.published.offset
