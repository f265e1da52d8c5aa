"""Imports against the peers' own evaluation, and from their text to a problem that solves."""

import gzip
import json
import subprocess

import numpy as np
import pytest
from command import answer, layoutopt, refused
from conftest import ROOT
from written import access_from, one_tile, problem_of, refused_with

from layoutopt.accesses.ownership import widest_access
from layoutopt.accesses.trace import trace
from layoutopt.expressions.fit import fit_threads, guard
from layoutopt.expressions.grammar import evaluate, parse, to_text
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.imports import cute, cute_tiled, triton, triton_shared

with gzip.open(ROOT / "tests/data/peer_layouts.jsonl.gz", "rt") as file:
    ROWS = [json.loads(line) for line in file]
TRITON = [row for row in ROWS if "bases" in row]
CUTE = [row for row in ROWS if "table" in row]
SHARED = [row for row in ROWS if "offset" in row or "offsets" in row]


def xor_of(bases, number, rank):
    place = np.zeros(rank, np.int64)
    for bit, basis in enumerate(bases):
        if number >> bit & 1:
            place ^= np.array(basis)
    return place


def lanes_of(row):
    return 1 << len(row["bases"]["lane"]) if "bases" in row else 32


def test_triton_layout_is_what_triton_says():
    for row in TRITON:
        rank = len(row["tile"])
        register, lane, warp = (
            np.array([xor_of(bases, n, rank) for n in range(1 << len(bases))])
            for bases in (row["bases"][part] for part in ("register", "lane", "warp"))
        )
        want = (warp[:, None, None] ^ lane[:, None] ^ register).reshape(-1, *register.shape)
        assert np.array_equal(triton.thread_values(row["text"], row["tile"], lanes_of(row)), want), row


def test_cute_layout_is_what_pycute_says():
    for row in CUTE:
        want = np.stack(np.divmod(row["table"], row["tile"][0])[::-1], axis=-1)
        assert np.array_equal(cute.thread_values(row["text"], row["tile"]), want), row


def test_shared_layout_is_what_its_peer_says():
    for row in SHARED:
        if "offsets" in row:
            got, formula = cute.offsets(row["text"], row["tile"], 2)
            want = np.array(row["offsets"])
        else:
            got, formula = triton_shared.offsets(row["text"], row["tile"])
            want = np.full(row["tile"], -1)
            offset = np.arange(want.size)
            place = np.zeros((want.size, want.ndim), np.int64)
            for bit, basis in enumerate(row["offset"]):
                place ^= (offset >> bit & 1)[:, None] * np.array(basis)
            want[tuple(place.T)] = offset + sum(offset // interval * pad for interval, pad in row["pads"])
        assert (got == want).all(), row
        grids = dict(zip(("x0", "x1", "x2"), np.indices(row["tile"]), strict=False))
        assert (evaluate(parse(formula, frozenset(grids)), grids) == want).all(), row


def test_boxes_of_8_byte_elements():
    text = "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 64}>"
    row, column = np.indices((8, 32))
    want = column // 16 * 128 + row * 16 + (column // 2 % 8 ^ row) * 2 + column % 2
    assert (triton_shared.offsets(text, (8, 32))[0] == want).all()


def test_access_touches_what_the_table_says():
    for row in [row for row in [*TRITON, *CUTE][::5] if lanes_of(row) == 32]:
        table = (triton if "bases" in row else cute).thread_values(row["text"], row["tile"])
        access = widest_access(table, row["tile"], 2, "x", "load", None)
        loaded = from_data(one_tile("p", row["tile"], "f16", len(table), [access]))
        (lanes,) = trace(loaded, device("sm_90")).accesses
        threads = lanes.element.reshape(-1, -(-len(table) // 32) * 32)[:, : len(table)]
        got = threads[..., None] + np.arange(lanes.width_elements)
        flat = np.ravel_multi_index(tuple(np.moveaxis(table, -1, 0)), row["tile"])
        rows = zip(got.transpose(1, 0, 2).reshape(len(table), -1).tolist(), flat.tolist(), strict=True)
        assert all(set(a) == set(b) for a, b in rows), row


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("counts", "bases"), [([2, 2], [[0, 1], [1, 0]]), ([4, 1], [[1, 0], [2, 0]])])
@pytest.mark.parametrize("around", ["{}", "#ttg.dot_op<{{opIdx = 1, parent = {}, kWidth = 16}}>"])
def test_warps_of_wmma_as_triton_prints_them_before_and_since_3_5(version, counts, bases, around):
    """Before: Triton 3.4, lib/Dialect/TritonGPU/IR/LinearLayoutConversions.cpp (warps along the columns first)."""
    before, since = (
        f"#ttg.amd_wmma<{{version = {version}, isTranspose = false, {warps}}}>"
        for warps in (f"warpsPerCTA = {counts}", f"ctaLayout = {{warp = {bases}}}")
    )
    got = triton.thread_values(around.format(before), (64, 64))
    assert len(got) == 128
    assert (got == triton.thread_values(around.format(since), (64, 64))).all()


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


with gzip.open(ROOT / "tests/data/cute_tiled_mma.json.gz", "rt") as file:
    TILED_MMA = json.load(file)
MMA = TILED_MMA[0]["text"]
ATOM = "Copy_Atom\n  ThrID: {}:_1\n  ValLayoutSrc: {}\n  ValLayoutDst: {}\n  ValLayoutRef: {}\n  ValueType: 16b\n"
# make_tiled_copy(Copy_Atom<UniversalCopy<uint128_t>, half_t>, Layout<Shape<_16, _8>, Stride<_8, _1>>, ...)
VECTORS = (
    "TiledCopy\n  Tiler_MN:       (_16,_64)\n  TiledLayout_TV: ((_8,_16),_8):((_128,_1),_16)\n"
    + ATOM.format("_1", *["(_1,_8):(_0,_1)"] * 3)
)
# make_tiled_copy_A(Copy_Atom<SM75_U32x4_LDSM_N, half_t>, a TiledMMA of 2 x 2 warps)
MATRICES = (
    "TiledCopy\n  Tiler_MN:       (_32,_16)\n  TiledLayout_TV: "
    "((_4,_8,_2,_2),((_2,_2,_2),(_1,_1))):((_64,_1,_16,_0),((_32,_8,_256),(_0,_0)))\n"
    + ATOM.format("_32", "(_32,_8):(_8,_1)", *["(_32,(_2,_4)):(_2,(_1,_64))"] * 2)
)


# What reads a text, the texts, and what is said of them.
WRONG = {
    "CuTe": (lambda text: cute.thread_values(text, (16, 8)), [
        ("((4,8),(2,2))", "expected shape:stride"),
        ("((4,8),(2,2)):((32,1),(16))", "shape and stride are not alike"),
        ("(4,8),(2):(1,2)", "matching parentheses"),
        ("((4,8,(2,2)):((32,1),(16,8))", "matching parentheses"),
        ("((4,x),2):((32,1),2)", "expected integers, commas"),
        ("(4,8,2):(1,2,3)", "expected two modes"),
        ("(" * 50 + ":1", "matching parentheses"),
        ("(99999999,999999999):(1,1)", "more than"),
        ("((4,8),4):((32,1),1000)", "--tile"),
        ("(4 8):(1,2)", "expected integers, commas"),
        ("(4,0):(1,2)", "extent of 0"),
    ]),
    "Triton": (lambda text: triton.thread_values(text, (16, 16)), [
        ("", "no text"),
        ("hello", "cannot read 'hello'"),
        ("BlockedLayout(size_per_thread=[1, 8])", "blocked without threadsPerWarp, warpsPerCTA, order"),
        ("#ttg.amd_wmma<{version = 2, warpsPerCTA = [2, 2]}>", "amd_wmma without isTranspose"),
        ("#ttg.amd_wmma<{version = 2, isTranspose = true}>", "amd_wmma without warpsPerCTA or ctaLayout"),
        ("#ttg.amd_wmma<{version = 2, isTranspose = true, warpsPerCTA = [2, 1], ctaLayout = {warp = [[1, 0]]}}>", "warpsPerCTA and ctaLayout"),
        ("AMDWMMALayout(version=2, transposed=True)", "without warpsPerCTA or ctaLayout"),
        ("#ttg.amd_mfma<{version = 3, instrShape = [16, 16, 16]}>", "amd_mfma without warpsPerCTA, isTransposed"),
        ("#ttg.nvidia_mma<{}>", "nvidia_mma without versionMajor, warpsPerCTA, instrShape"),
        ("#ttg.dot_op<{opIdx = 0, parent = #ttg.nvidia_mma<{instrShape = [16, 8]}>, kWidth = 2}>", "nvidia_mma without versionMajor, warpsPerCTA"),
        ("#ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [4, 8], warpsPerCTA = [1, 1], order = [1, 0], bogus = 3}>", "blocked with unknown bogus (known: sizePerThread, "),
        ("#ttg.amd_wmma<{version = 1, bogus = 7, ctaLayout = {warp = [], odd = []}}>", "without isTranspose and with unknown bogus, odd"),
        ("#ttg.amd_wmma<{version = 1, versionMajor = 2}>", "has a field twice"),
        ("BlockedLayout(size_per_thread=[1, 1], threads_per_warp=[4, 8], warps_per_cta=[4, 1], order=[1, 0], ctas_per_cga=[2, 1])", "several blocks"),
        ("#ttg.foo<{}>", "shared_linear"),
        ("BlockedLayout(size_per_thread=[1, 3], threads_per_warp=[4, 8], warps_per_cta=[4, 1], order=[1, 0])", "powers of two"),
        ("BlockedLayout(size_per_thread=[1], threads_per_warp=[32], warps_per_cta=[4], order=[0])", "1 entries for a tile of 2"),
        ("BlockedLayout(size_per_thread=[1, 1], threads_per_warp=[8, 8], warps_per_cta=[4, 1], order=[1, 0])", "its warps have 64 threads, those of the target 32"),
        ("DistributedLinearLayout(reg_bases=[[0, 1]], lane_bases=[[1, 0], [2, 0]], warp_bases=[])", "its warps have 4 threads, those of the target 32"),
        ("#ttg.shared<{vec = 1}>", "none of blocked"),
        ("DotOperandLayout(operand_index=0, parent=3, k_width=2)", "parent of dot_op is no layout"),
        ("BlockedLayout(__import__('os'))", "cannot read"),
        # Without end.
        *((text, "not a Triton layout") for text in (
            f"DistributedLinearLayout(reg_bases=[{'[0,1],' * 60}], warp_bases=[], lane_bases=[[0,1],[0,2],[0,4],[1,0],[2,0]])",
            f"DotOperandLayout(operand_index=0, k_width={1 << 70}, parent="
            "NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]))",
            "NVMMADistributedLayout(version=[], warps_per_cta=[1, 1], instr_shape=[16, 8])",
            "BlockedLayout(CTAsPerCGA=3)", f"BlockedLayout(a=x{'.a' * 900})", f"BlockedLayout(a=1 + 0x{'f' * 4000})",
        )),
        ("BlockedLayout(size_per_thread=[1, 1], threads_per_warp=[4, 8], warps_per_cta=[4, 1], order=[1, 0], cga_layout=[[1, 0]])", "several blocks"),
    ]),
    "tiled MMA": (lambda text: cute_tiled.multiplied(text, (64, 32), "A"), [
        (MMA.replace("LayoutA_TV", "x"), "a line LayoutA_TV"),
        (MMA.replace("Shape_MNK", "x"), "a line Shape_MNK"),
        (MMA.replace("(_,_,_)", "(_,(_2,_4):(_4,_1),_)"), "moves elements"),
        (MMA.replace("(_16,_8,_16)", "(_8,_8,_8)"), "of its atom"),
    ]),
    "tiled copy": (lambda text: cute_tiled.copied(text, (32, 48), "load"), [
        (VECTORS, "repeats every 16x64 elements"),
        (VECTORS.replace("(_16,_64)", "(_16:_2,_64)"), "read where it is extents"),
        (VECTORS.replace("  Tiler_MN:       (_16,_64)\n", ""), "has a line Tiler_MN"),
        (VECTORS.replace("(_16,_64)", "(_8,_24)"), "of its tiler"),
        (MATRICES.replace("Src: (_32,_8):(_8,_1)", "Src: (_32,_8):(_8,_9)").replace("_16)\n", "_24)\n"), "Copy_Atom"),
    ]),
    "shared CuTe": (lambda text: cute.offsets(text, (8, 64), 2), [
        ("Sw<3,3,3> o (8,64):(64,1)", "expected Sw<B,M,S> o _0"),
        ("S<3,4,3> o 0 o (8,64):(64,1)", "counts bytes of a pointer, or elements of the layout"),
        ("Sw<9,3,3> o _0 o (8,64):(64,1)", "no swizzle that is read here"),
        ("Sw<3,4,3> o smem_ptr[32b](unset) o (8,64):(64,1)", "elements of 32 bits, not of 16"),
        ("Sw<3,0,3> o smem_ptr[16b](unset) o (8,64):(64,1)", "Sw<3,0,3> moves pieces of 2**0 bytes, which are no whole elements of 2"),
        ("Sw<3,3,3> o _0 o (8,32):(64,1)", "8x32 elements"),
        ("Sw<3,3,3> o 0 o (8,64):(64,2)", "puts (0, 32) and (1, 0) in one place, 64 elements in"),
        ("(8,64):(0,1)", "puts (0, 0) and (1, 0) in one place"),
    ]),
    "shared Triton": (lambda text: triton_shared.offsets(text, (8, 64)), [
        ("#ttg.swizzled_shared<{vec = 3, perPhase = 1, maxPhase = 8, order = [1, 0]}>", "vec: powers of two are expected, not 3"),
        ("#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 1]}>", "no order of 2"),
        ("#ttg.nvmma_shared<{swizzlingByteWidth = 48, transposed = false, elementBitWidth = 16}>", "is read for"),
        ("#ttg.shared_linear<{offset = [[0, 1], [0, 1]]}, alignment = 16>", "2 bases"),
        ("#ttg.padded_shared<[3:+4] {order = [1, 0], shape = [8, 64]}>", "intervals and pads"),
        # Gaps between elements of 4 bits.
        ("NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2, fp4_padded=True)", "fp4Padded"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text", "reason"), [(kind, *row) for kind in WRONG for row in WRONG[kind][1]]
)
def test_wrong_text(kind, text, reason):
    with refused_with(reason):
        WRONG[kind][0](text)


MEASURED = json.loads((ROOT / "tests/data/h200_fragments.json").read_text())


def imported(kind, *arguments):
    """The problem that is printed."""
    done = layoutopt("import", kind, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TRACES = {
    "transpose_none": ("32x32", "f32", 256, "x0*32 + x1", "transpose<32, 0>", "transpose<0, 0>"),
    "transpose_pad": ("32x32", "f32", 256, "x0*33 + x1", "transpose<33, 0>", "transpose<0, 0>"),
    "gemm_none": ("64x64", "f16", 128, "x0*64 + x1", "gemm<0, 0>", "gemm<1, 0>"),
}


@pytest.mark.parametrize("name", TRACES)
def test_recorded_trace_becomes_the_problem_that_the_profiler_saw(name, tmp_path):
    """Imported, checked (as the profiler counted the kernel in use) and solved (as it counted the one solved)."""
    tile, element, threads, offset, before, after = TRACES[name]
    path, recorded = tmp_path / "tile.json", tmp_path / "trace.jsonl"
    recorded.write_bytes(gzip.decompress((ROOT / f"tests/data/trace_{name}.jsonl.gz").read_bytes()))
    done = layoutopt("import", "trace", recorded, "--tile", tile, "--element", element, "--threads", threads,
                     "--offset", offset, "-o", path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    audit, result = answer("check", path, "--no-fix"), answer("solve", path)
    for field in ("bank_conflicts", "wavefronts"):
        for found, kernel in ((audit, before), (result, after)):
            assert sum(a[field] for a in found["accesses"]) == MEASURED["kernels"][kernel][field]
    assert layoutopt("count", recorded).returncode == 0


def record(**changes):
    line = {"access": "a", "op": "ld.shared.b32", "warp": 0, "sequence": 0, "active": "0xffffffff"}
    line |= {"byte_address": [4 * lane for lane in range(32)]} | changes
    return json.dumps(line)


def import_lines(tmp_path, *lines, threads=32, offset="x0*8 + x1", tile="8x8"):
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines) + "\n")
    launch = ("--threads", threads, "--offset", offset)
    return layoutopt("import", "trace", path, "--tile", tile, "--element", "f32", *launch)


def test_lanes_that_take_no_part(tmp_path):
    """A block of 40 threads, of which the last 24 lanes do not exist, reads 40 words."""
    rest = [4 * (32 + k) if k < 8 else 0 for k in range(32)]
    lines = record(warp=0), record(warp=1, active="0x000000ff", byte_address=rest)
    (access,) = json.loads(import_lines(tmp_path, *lines, threads=40).stdout)["accesses"]
    assert access == access_from("a: ld.shared.b32 [tid // 8, tid % 8]")
    # The same of a block of 64, where the condition has to be in the problem.
    loaded = from_data(json.loads(import_lines(tmp_path, *lines, threads=64).stdout))
    (lanes,) = trace(loaded, device("sm_90")).accesses
    assert lanes.element[lanes.active].tolist() == list(range(40))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1: "),
        ([record(byte_address=[0] * 31)], "line 1, byte_address: expected `array` of length >= 32"),
        ([record(byte_address=[2] * 32)], "line 1, byte_address[0]: byte 2 is where no 4-byte element"),
        ([record(byte_address=[1000] * 32)], "line 1, byte_address[0]: byte 1000"),
        ([record(warp=3)], "line 1: warp 3 is not in a block of 32 threads"),
        ([record(), record()], "line 2: warp 0 has sequence 0 of 'a' twice"),
        ([record(), record(op="st.shared.b32", sequence=1)], "line 2, op: site 'a' was 'ld.shared.b32'"),
        ([record(op="ld.global")], "line 1, op: unknown op"),
        ([record(active="x")], "line 1, active: "),
        ([record(active="0x0")], "the lanes of 'a': no lane with an address takes part"),
        ([record(sequence=10**9)], "sequence numbers reach 1000000000"),
        (
            [record(access=f"s{k}", sequence=600_000) for k in range(2)],
            "line 2: sequence numbers reach 600000; too many",
        ),
        ([record(access=f"s{k}") for k in range(300)], "line 257, access: more than 256 sites"),
        ([""], "no records"),
        ([record(sequence=-5)], "line 1, sequence: "),
        ([record(byte_address=[1 << 70] + [0] * 31)], "line 1, byte_address[0]: "),
        ([record(byte_address=[1 << 63] + [0] * 31)], "line 1, byte_address[0]: "),
        ([record(sequence=1 << 40)], "line 1: sequence"),
        ([record(active="0x" + "f" * 5000)], "line 1, active: "),
    ],
)
def test_wrong_traces(lines, message, tmp_path):
    done = import_lines(tmp_path, *lines)
    assert (done.returncode, done.stdout, message in done.stderr) == (2, "", True), done.stderr
    assert "Traceback" not in done.stderr


def test_irregular_addresses_are_tables(tmp_path):
    noise = np.random.default_rng(3).integers(0, 256, (40, 32)) * 4
    lines = [record(sequence=i, byte_address=row.tolist()) for i, row in enumerate(noise)]
    done = import_lines(tmp_path, *lines, tile="16x16", offset="x0*16 + x1")
    (lanes,) = trace(from_data(json.loads(done.stdout)), device("sm_90")).accesses
    assert (lanes.element * 4 == noise).all()


def test_the_layout_in_use_must_be_one(tmp_path):
    large = {"tile": "40000x40000", "offset": "x0*40000 + x1"}
    assert "--tile: at most 2097152 elements" in import_lines(tmp_path, record(), **large).stderr
    assert "puts two elements in one place" in import_lines(tmp_path, record(), offset="x0*4 + x1").stderr
    np.save(tmp_path / "table.npy", np.arange(64).reshape(8, 8) * 4)
    asked = ("import", "trace", tmp_path / "t.jsonl", "--tile", "8x8", "--element", "f32", "--threads", 32)
    table = ("--table", tmp_path / "table.npy")
    assert layoutopt(*asked, *table).returncode == 0
    refused("the layout in use is needed", *asked)
    refused("--offset and --table both give the layout in use", *asked, *table, "--offset", "x0*8 + x1")


BLOCKED = "BlockedLayout(size_per_thread=[1, 8], threads_per_warp=[4, 8], warps_per_cta=[4, 1], order=[1, 0])"
COMMON = ("--tile", "128x64", "--element", "f16")


def test_two_layouts_into_one_problem(tmp_path):
    path = tmp_path / "tile.json"
    mma = "NVMMADistributedLayout(version=[2, 0], warps_per_cta=[2, 2], instr_shape=[16, 8])"
    assert layoutopt("import", "triton", BLOCKED, *COMMON, "--name", "fill", "-o", path).returncode == 0
    done = layoutopt("import", "triton", mma, *COMMON, "--op", "load", "--name", "C", "--into", path)
    assert done.returncode == 0, done.stderr
    result = answer("solve", path)
    assert ([a["name"] for a in result["accesses"]], result["excess"]) == (["fill", "C"], 0)
    refused("", "import", "triton", mma, *COMMON, "--name", "C", "--into", path)
    other = ("--tile", "64x64", "--element", "f16", "--into", path)
    refused("has another tile", "import", "triton", mma, *other)


def test_a_shared_layout_becomes_the_published_one(tmp_path):
    path, table = tmp_path / "tile.json", tmp_path / "offsets.npy"
    swizzled = "#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>"
    atom = "Sw<3,4,3> o smem_ptr[16b](unset) o ((_8,_16),(_64,_1)):((_64,_512),(_1,_0))"
    layoutopt("import", "triton", BLOCKED, *COMMON, "-o", path)
    printed = layoutopt("import", "cute", atom, *COMMON).stdout.strip()
    assert layoutopt("import", "triton", swizzled, *COMMON, "--into", path).returncode == 0
    assert json.loads(path.read_text())["published"]["bytes"] == 16384
    assert layoutopt("import", "cute", atom, *COMMON, "-o", table).returncode == 0
    for more in ((), ("--offset", printed), ("--table", table)):
        assert answer("check", path, "--no-fix", *more)["accesses"][0]["wavefronts"] == 128
    refused("has a published layout already", "import", "cute", atom, *COMMON, "--into", path)


def test_waves_of_64():
    text = "#ttg.amd_mfma<{version = 3, warpsPerCTA = [4, 1], instrShape = [32, 32, 8], isTransposed = true}>"
    asked = ("triton", text, "--tile", "128x64", "--element", "f32")
    problem = imported(*asked, "--target", "gfx942")
    assert (problem["threads"], problem["accesses"][0]["bytes"]) == (256, 16)
    refused("its warps have 64 threads, those of the target 32", "import", *asked)


@pytest.mark.parametrize("row", TILED_MMA, ids=lambda row: row["operand"])
def test_a_printed_tiled_mma_is_what_cute_says(row):
    got = cute_tiled.multiplied(row["text"], row["tile"], row["operand"])
    assert (np.ravel_multi_index(tuple(np.moveaxis(got, -1, 0)), tuple(row["tile"])) == row["table"]).all()


def test_a_tiled_mma_becomes_an_access(tmp_path):
    (tmp_path / "mma.txt").write_text(MMA)
    asked = ("cute", f"@{tmp_path / 'mma.txt'}", "--element", "f16", "--op", "load", "--tile")
    problem = imported(*asked, "64x32", "--operand", "A")
    assert (problem["threads"], problem["accesses"][0]["bytes"]) == (128, 4)
    refused("operand A repeats every 32x16", "import", *asked, "40x32", "--operand", "A")
    refused("is one: say --operand", "import", *asked, "64x32")
    plain = ("import", "cute", "(8,8):(8,1)", "--element", "f16", "--tile", "8x8")
    refused("is none: leave out", *plain, "--operand", "A")


def test_a_printed_tiled_copy_is_repeated_over_the_tile():
    got, op = cute_tiled.copied(VECTORS, (32, 128), "cp.async")
    assert (op, got.shape) == ("cp.async", (128, 32, 2))
    # Thread 9 moves eight elements of row 1 from column 8 on, and the same 64 columns and 16 rows further.
    assert got[9, :8].tolist() == [[1, 8 + k] for k in range(8)]
    assert sorted(map(tuple, got[9, ::8].tolist())) == [(1, 8), (1, 72), (17, 8), (17, 72)]
    assert len(np.unique(got.reshape(-1, 2), axis=0)) == 32 * 128


def test_a_tiled_copy_of_matrices_addresses_their_rows(tmp_path):
    path = tmp_path / "copy.json"
    command = ("import", "cute", MATRICES, "--tile", "64x64", "--element", "f16")
    done = layoutopt(*command, "--op", "load", "-o", path)
    assert done.returncode == 0, done.stderr
    (access,) = json.loads(path.read_text())["accesses"]
    got = access["op"], access["index"]
    assert got == ("ldmatrix.x4", ["lane % 16 + warp % 2 * 16 + i // 4 * 32", "lane // 16 * 8 + i % 4 * 16"])
    refused("the Copy_Atom loads matrices: load is expected", *command)


def test_order_turns_the_tile():
    """Column-major pieces of a CuTe tile are wide only in a tile that has its dimensions turned."""
    asked = ("cute", "(32,8):(8,1)", "--tile", "16x16", "--element", "f16")
    widths = [imported(*asked, *more)["accesses"][0]["bytes"] for more in (("--order", "1,0"), ())]
    assert widths == [16, 2]
    refused("do not lie 16 bytes together", "import", *asked, "--bytes", 16)


def test_header_is_printed():
    done = layoutopt("import", "trace", "--header")
    assert done.stdout == (ROOT / "layoutopt/imports/layoutopt_record.cuh").read_text()


@pytest.mark.nvcc
def test_header_compiles_in_a_kernel(tmp_path):
    (tmp_path / "layoutopt_record.cuh").write_text(layoutopt("import", "trace", "--header").stdout)
    (tmp_path / "kernel.cu").write_text(
        """
#include "layoutopt_record.cuh"
__global__ void kernel(float* out) {
    __shared__ float tile[32][33];
    if (threadIdx.x < 20) {
        LAYOUTOPT_RECORD("rows", "st.shared.b32", tile, &tile[0][threadIdx.x]);
        tile[0][threadIdx.x] = 1;
    }
    out[threadIdx.x] = tile[0][0];
}
int main() { return layoutopt_record::dump("trace.jsonl") ? 0 : 1; }
"""
    )
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", "-c", "kernel.cu"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("threads", "trips", "index", "where"),
    [
        (96, 10, ["(tid + i*96) // 40", "(tid + i*96) % 40"], None),
        (128, 8, ["(tid + i*128) // 40", "(tid + i*128) % 40"], "tid + i*128 < 960"),
        (96, 3, ["tid // 10 + i*8", "tid % 10 * 4"], "tid < 80"),
        (96, 12, ["(tid + i*80) // 40", "(tid + i*80) % 40"], "tid < 80 and tid + i*80 < 950"),
        (160, 5, ["tid // 32 + i*5", "tid % 32"], "tid + i*160 < 768"),
        (160, 1, ["23 - tid % 24", "tid*7 % 40"], None),
        (64, 1, ["tid % 10", "17"], "tid < 10"),
        (64, 1, ["tid // 20", "tid % 20"], "tid >= 20 and tid < 55"),
        (128, 1, ["tid // 8", "tid % 8 // 2"], "tid % 4 == 0"),
        (64, 18, ["tid // 16 + i // 6", "tid % 16 + i % 3"], None),
        (64, 9, ["(tid + i // 3 * 64) // 34 + i % 3", "(tid + i // 3 * 64) % 34"], "tid + i // 3 * 64 < 170"),
        (64, 5, ["(tid + i*64 + 69) // 34", "(tid + i*64 + 1) % 34"], "tid + i*64 < 271"),
        (32, 8, ["i", "(lane + i) % 32"], None),
        (128, 4, ["warp % 4 + i*4", "(lane + warp*8) % 32"], "lane < 24"),
        (64, 1, ["tid + 1", "tid // 2"], "tid < 9 or tid >= 20 and tid < 30"),
    ],
)
def test_formulas_of_threads_and_iterations_are_found_again(threads, trips, index, where):
    """By values where threads take part, and by length: a list of cases is no formula that one can read."""
    tid = np.arange(threads, dtype=np.int64)[:, None]
    env = {"tid": tid, "lane": tid % 32, "warp": tid // 32, "i": np.arange(trips, dtype=np.int64)[None, :]}

    def values(text):
        return np.broadcast_to(evaluate(parse(text, frozenset(env)), env), (threads, trips))

    taking = values(where or "1") != 0
    found = guard(taking, 32) if where else None
    assert (found is None) == (where is None)
    if where:
        assert (values(to_text(found)) != 0).tolist() == taking.tolist()
        assert len(to_text(found)) <= len(where)
    for text in index:
        node = fit_threads(np.where(taking, values(text), 0), 32, taking)
        assert node is not None, text
        assert values(to_text(node))[taking].tolist() == values(text)[taking].tolist()
        assert len(to_text(node)) <= len(text) + 8


def test_a_copy_of_part_of_the_threads_comes_back_from_its_trace(tmp_path):
    fill = {"name": "fill", "op": "store", "copy": {"bytes": 4, "threads": 100}}
    (lanes,) = trace(problem_of("24x40 f32, 128 threads", fill), device("sm_90")).accesses
    lines = []
    for number, (element, active) in enumerate(zip(lanes.element, lanes.active, strict=True)):
        if active.any():
            mask = sum(1 << lane for lane in range(32) if active[lane])
            at = {"sequence": number // 4, "warp": number % 4, "byte_address": (element * 4).tolist()}
            lines.append(record(op="st.shared.b32", active=hex(mask), **at))
    done = import_lines(tmp_path, *lines, tile="24x40", threads=128, offset="x0*40 + x1")
    (access,) = json.loads(done.stdout)["accesses"]
    assert access["index"] == ["(tid + i*100) // 40", "(tid + i*100) % 40"]
    assert access["where"] == "tid < 100 and tid + i*100 < 960"
