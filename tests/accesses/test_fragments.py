"""Fragments against the piecewise tables of the PTX ISA, and named accesses against plain loops."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import access_from, one_tile, refused_with

from layoutopt.accesses.trace import trace
from layoutopt.expressions.fit import fit, fit_threads
from layoutopt.expressions.grammar import evaluate
from layoutopt.files.file import from_data, written_out
from layoutopt.hardware.devices import device
from layoutopt.hardware.fragments import fragments
from layoutopt.imports.triton import thread_values

FRAGMENTS = fragments()


def problem(*accesses, shape=(128, 64), element="f16", threads=256, **more):
    return one_tile("p", list(shape), element, threads, list(accesses), **more)


def lanes_of(data):
    """Tile coordinates of every lane: (instructions, lanes, dimensions) and the active mask."""
    loaded = from_data(data)
    access = traced(loaded)
    return np.stack(np.unravel_index(access.element, loaded.tile.shape), axis=-1), access.active


def traced(problem):
    """The lanes of its first access."""
    return trace(problem, device(problem.target)).accesses[0]


def places(held):
    """Coordinates of what each lane of one warp holds."""
    return np.stack([at[:, 0] for at in held.at.values()], axis=-1)


# The PTX ISA's own words for some fragments, as it states them: by cases over i.
# fmt: off
PTX = {
    "mma.m16n8k8.A.f16": lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    "mma.m16n8k8.B.bf16": lambda g, t, i: (t * 2 + i, g),
    "mma.m16n8k8.A.tf32": lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    "mma.m16n8k8.B.tf32": lambda g, t, i: (t if i == 0 else t + 4, g),
    "mma.m16n8k8.C.f32": lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    "mma.m16n8k16.A.f16": lambda g, t, i: (g if 0 <= i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (0 if i < 4 else 8)),
    "mma.m16n8k16.B.f16": lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g),
    "mma.m16n8k16.A.f64": lambda g, t, i: (g if i % 2 == 0 else g + 8, i * 2 + t if i % 2 == 0 else i * 2 - 2 + t),
    "mma.m16n8k16.B.f64": lambda g, t, i: (t + i * 4, g),
    "mma.m16n8k16.A.s8": lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
    "mma.m16n8k32.A.s8": lambda g, t, i: (g if 0 <= i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (0 if i < 8 else 16)),
    "mma.m16n8k32.B.e4m3": lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
    "mma.m16n8k32.A.s4": lambda g, t, i: (g if i < 8 else g + 8, t * 8 + (i & 7)),
    "mma.m16n8k64.A.u4": lambda g, t, i: (g if 0 <= i < 8 or 16 <= i < 24 else g + 8, t * 8 + (i & 7) + (0 if i < 16 else 32)),
    "mma.m16n8k64.B.s4": lambda g, t, i: (t * 8 + (i & 7) + (0 if i < 8 else 32), g),
    "mma.m16n8k256.A.b1": lambda g, t, i: (g if 0 <= i < 32 or 64 <= i < 96 else g + 8, t * 32 + (i & 31) + (0 if i < 64 else 128)),
    "mma.m8n8k4.A.f64": lambda g, t, i: (g, t),
    "mma.m8n8k4.C.f64": lambda g, t, i: (g, t * 2 + i),
    "mma.m8n8k16.B.s8": lambda g, t, i: (t * 4 + i, g),
    "mma.m16n8k4.A.tf32": lambda g, t, i: (g if i == 0 else g + 8, t),
}
# fmt: on


@pytest.mark.parametrize("name", PTX)
def test_fragment_is_what_the_ptx_isa_says(name):
    held = FRAGMENTS[name]
    first, second = held.at.values()
    for lane, i in itertools.product(range(32), range(held.values)):
        assert (first[lane, 0, i], second[lane, 0, i]) == PTX[name](lane // 4, lane % 4, i)


def test_every_element_is_held_once():
    """Each element of the operand by exactly one register; by one of each quad pair where there are four."""
    for name, held in FRAGMENTS.items():
        extent = tuple(held.extent.values())
        places = np.ravel_multi_index(tuple(held.at.values()), extent)
        copies = 4 if "quad pair" in held.note and held.bits != 64 else held.copies
        assert (np.bincount(places.ravel(), minlength=np.prod(extent)) == copies).all(), name
        assert held.source, name


A_64X2 = {"name": "A", "op": "ldmatrix.x4", "fragment": "mma.m16n8k16.A.f16", "warps": [4, 2]}


def test_fragment_is_the_hand_written_access():
    named = {**A_64X2, "repeat": {"m": 2, "k": 4}}
    by_hand = "A: ldmatrix.x4 [32*(warp % 4) + lane % 16 + 16*m, 8*(lane // 16) + 16*k]; m<2, k<4"
    got, want = lanes_of(problem(named)), lanes_of(problem(access_from(by_hand)))
    assert (got[0] == want[0]).all()
    assert (got[1] == want[1]).all()


@pytest.mark.parametrize("op", ["ldmatrix.x1", "ldmatrix.x2", "ldmatrix.x4"])
@pytest.mark.parametrize("name", ["mma.m16n8k16.A.f16", "mma.m16n8k8.A.tf32", "mma.m16n8k32.A.s8"])
def test_ldmatrix_delivers_the_fragment(op, name):
    """Play ldmatrix, a 16-byte row for each address, and look into the registers."""
    held = FRAGMENTS[name]
    shape, element = tuple(held.extent.values()), {16: "f16", 32: "f32", 8: "i8"}[held.bits]
    access = {"name": "A", "op": op, "fragment": name}
    lanes = traced(from_data(problem(access, shape=shape, element=element, threads=32)))
    matrices, per_register = int(op[-1]), 32 // held.bits
    received = [[] for _ in range(32)]
    for addresses, j, lane in itertools.product(lanes.element, range(matrices), range(32)):
        start = addresses[8 * j + lane // 4] + lane % 4 * per_register
        received[lane] += range(start, start + per_register)
    assert sorted(lanes.active.sum(axis=1)) == [8 * matrices] * len(lanes.element)
    assert received == np.ravel_multi_index(np.moveaxis(places(held), -1, 0), shape).tolist()


def test_ldmatrix_trans_delivers_rows_of_b():
    held = FRAGMENTS["mma.m16n8k16.B.f16"]
    access = {"name": "B", "op": "ldmatrix.x2.trans", "fragment": held.name}
    (addresses,) = traced(from_data(problem(access, shape=(16, 8), threads=32))).element
    for lane, j, e in itertools.product(range(32), range(2), range(2)):
        k, n = places(held)[lane, 2 * j + e]
        assert addresses[8 * j + 2 * (lane % 4) + e] + lane // 4 == k * 8 + n


@pytest.mark.parametrize(
    ("bits", "name", "element"),
    [
        (16, "mfma.32x32x16.B.f16", "f16"),
        (8, "mfma.32x32x64.B.e4m3", "e4m3"),
        (8, "mfma.16x16x128.B.e5m2", "e5m2"),
        (4, "mfma.32x32x64.B.e2m1", "e2m1"),
        (4, "mfma.16x16x128.B.e2m1", "e2m1"),
    ],
)
def test_transposing_loads_of_amd_deliver_columns(bits, name, element):
    """Play ds_read_b64_tr: of 16 lanes, each addresses 64 bits in rows of 16 elements, lane l gets column l."""
    held, rows = FRAGMENTS[name], 64 // bits
    access = {"name": "B", "op": f"ds_read_b64_tr_b{bits}", "fragment": held.name}
    shape, across = tuple(held.extent.values()), 16 // rows
    data = problem(access, shape=shape, element=element, threads=64, target="gfx950")
    pieces = traced(from_data(data)).element
    for piece, lane, j in itertools.product(range(held.values // rows), range(64), range(rows)):
        got = pieces[piece, lane // 16 * 16 + across * j + lane % 16 // rows] + lane % rows
        k, n = places(held)[lane, rows * piece + j]
        assert got == k * shape[1] + n


@pytest.mark.parametrize(("name", "side"), [("mfma.xf32.32x32x4", 32), ("mfma.xf32.16x16x8", 16)])
def test_xf32_is_what_the_matrix_instruction_calculator_prints(name, side):
    # A[0][0..3] is v0{0} v1{0} v0{32} v1{32}, and v0{0} v1{0} v0{16} v1{16}.
    held = FRAGMENTS[f"{name}.A.xf32"]
    assert {(int(held.at["k"][lane, 0, i]), lane, i) for lane in (0, side) for i in (0, 1)} == {
        (0, 0, 0), (1, 0, 1), (2, side, 0), (3, side, 1),
    }  # fmt: skip
    assert (held.at["m"][:, 0, 0] == np.arange(64) % side).all()


def dot_operand(operand, parent, width):
    return f"#ttg.dot_op<{{opIdx = {'AB'.index(operand)}, parent = {parent}, kWidth = {width}}}>"


@pytest.mark.parametrize("operand", ["A", "B"])
@pytest.mark.parametrize("shape", [[32, 32, 64], [16, 16, 128]])
def test_f8f6f4_is_what_triton_gives_its_operands(shape, operand):
    held = FRAGMENTS[f"mfma.{'x'.join(map(str, shape))}.{operand}.e4m3"]
    fields = f"version = 4, warpsPerCTA = [1, 1], instrShape = {shape}, isTransposed = true"
    parent = f"#ttg.amd_mfma<{{{fields}}}>"
    got = thread_values(dot_operand(operand, parent, 16), tuple(held.extent.values()), 64)
    assert (got == places(held)).all()


@pytest.mark.parametrize(("name", "version", "k_width"), [("wmma", 1, 16), ("wmma.gfx12", 2, 8)])
def test_wmma_is_as_triton_lays_it(name, version, k_width):
    parent = f"#ttg.amd_wmma<{{version = {version}, ctaLayout = {{warp = []}}, isTranspose = false}}>"
    operands = {f"{x}.f16": dot_operand(x, parent, k_width) for x in "AB"}
    for operand, text in {"C.f32": parent, **operands}.items():
        held = FRAGMENTS[f"{name}.16x16x16.{operand}"]
        assert (places(held) == thread_values(text, (16, 16), 32)).all()


def test_direct_loads_touch_the_fragment():
    """Element by element (packed ones together), the loads of all lanes are the fragment's table."""
    for name, held in FRAGMENTS.items():
        p, element = max(1, 8 // held.bits), {8: "i8", 16: "f16", 32: "f32", 64: "f64"}.get(held.bits, "u8")
        packed = next(c for c in ("k", "n", "m") if c in held.extent)  # below a byte, elements run along k
        shape = [e // (p if c == packed else 1) for c, e in held.extent.items()]
        target = "sm_90" if held.lanes == 32 else "gfx942"
        access = {"name": "x", "op": "load", "bytes": max(1, held.bits // 8), "fragment": name}
        threads = held.lanes * held.warps
        asked = problem(access, shape=shape, element=element, threads=threads, target=target)
        coordinates, _ = lanes_of(asked)
        got = coordinates.reshape(-1, held.warps, held.lanes, 2).transpose(2, 1, 0, 3)
        for d, (c, table) in enumerate(held.at.items()):
            assert (got[..., d] == table[:, :, ::p] // (p if c == packed else 1)).all(), name


def test_index_maps_coordinates_into_the_tile():
    """Two stages, B stored by its columns, four instructions of n at once through x4."""
    repeat = {"warps": [2, 2], "repeat": {"n": 4, "k": 2}, "index": ["s", "n", "k"], "for": {"s": 2}}
    access = {"name": "B", "op": "ldmatrix.x4", "fragment": "mma.m16n8k16.B.f16", **repeat}
    data = problem(access, shape=(2, 64, 32), threads=128)
    assert written_out(data)["accesses"][0]["for"] == {"s": 2, "n_step": 2, "k_step": 2}
    coordinates, _ = lanes_of(data)
    assert coordinates[..., 0].max() == 1
    assert coordinates[0, :, 1].tolist() == [*range(8), *range(8), *range(8, 16), *range(8, 16)]
    # All warps together touch the whole tile, in rows of 16 bytes.
    touched = {(s, n, k + e) for s, n, k in coordinates.reshape(-1, 3).tolist() for e in range(8)}
    assert len(touched) == 2 * 64 * 32


def test_a_loop_of_the_file_is_no_repetition_whatever_its_name():
    """m is not repeated, so `m_step` is free to use: it was taken for a step of 16 rows in the comparison."""
    access = {"name": "A", "op": "ldmatrix.x4", "fragment": "mma.m16n8k16.A.f16", "for": {"m_step": 2}}

    def of_index(*index):
        return problem({**access, "index": ["m", *index]}, shape=(32, 16), threads=32)

    coordinates, _ = lanes_of(of_index("k ^ (m // 16)"))
    assert coordinates[0].tolist() == coordinates[1].tolist()
    with refused_with("cannot move"):  # m // 16 is 0: the second iteration would tear k ^ 1
        from_data(of_index("k ^ (m_step - m // 16)"))


@pytest.mark.parametrize(
    ("shape", "element", "threads", "copy"),
    [
        ((128, 64), "f16", 256, {"bytes": 16}),
        ((3, 64, 32), "f16", 128, {"bytes": 16}),
        ((3, 5, 24), "f32", 64, {"bytes": 8}),
        ((48, 80), "f32", 128, {"bytes": 4, "threads": 96}),
        ((16, 96), "f32", 128, {"bytes": 16}),
        ((64, 96), "f32", 64, {"bytes": 4, "order": [1, 0]}),
        ((7,), "f64", 32, {"bytes": 8}),
        ((4, 8, 16, 8), "i8", 1024, {"bytes": 4}),
    ],
)
def test_copy_touches_every_piece_once_in_order(shape, element, threads, copy):
    access = {"name": "fill", "op": "store", "copy": copy}
    loaded = from_data(problem(access, shape=shape, element=element, threads=threads))
    lanes, vector = traced(loaded), copy["bytes"] // loaded.tile.element_bytes
    order = copy.get("order", list(range(len(shape))))
    want = np.arange(loaded.tile.elements).reshape(shape).transpose(order).ravel()[::vector]
    warps = -(-threads // 32)
    element, active = (a.reshape(-1, warps * 32)[:, :threads] for a in (lanes.element, lanes.active))
    assert element[active].tolist() == want.tolist()
    assert not active[:, copy.get("threads", threads) :].any()


FILL = {"name": "fill", "op": "store", "fragment": None, "warps": None}
STORE = {"name": "a", "op": "stmatrix.x4", "fragment": "wgmma.m64n8k16.C.f16", "warps": [2, 1]}
GROUPS = {**STORE, "repeat": {"n": 2}}, {"threads": 384}
TRANSPOSING = {"op": "ds_read_b64_tr_b16", "fragment": "mfma.32x32x16.B.f16", "warps": None}
OF_AMD = {"shape": (32, 32), "threads": 64, "target": "gfx950"}
WRONG = [
    ({**TRANSPOSING, "index": ["n", "k"]}, "cannot move", OF_AMD),
    ({**TRANSPOSING, "op": "ds_read_b64_tr_b8"}, "elements have 16", OF_AMD),
    ({**TRANSPOSING, "op": "ds_read_b96_tr_b6"}, "elements have 16", OF_AMD),
    ({**GROUPS[0], "first_warp": 2}, "first_warp: groups of 4 warps begin at a multiple of that, not at 2", GROUPS[1]),
    ({**GROUPS[0], "first_warp": 8}, "warps: 2 x 1 from warp 8 on end at 16, and there are 12", GROUPS[1]),
    (GROUPS[0], "warps: 2 x 1 is not 3, which 384 threads make; first_warp says which", GROUPS[1]),
    ({"fragment": "mma.m16n8k16.A.f17"}, "accesses[0].fragment: unknown fragment 'mma.m16n8k16.A.f17'; did you mean mma.m16n8k16.A.f16"),
    ({"warp": [1, 1]}, "accesses[0]: object contains unknown field `warp`"),
    ({"warps": None}, "accesses[0].warps: the block has 8 warps"),
    ({"warps": [2, 2]}, "accesses[0].warps: 2 x 2 is not 8, which 256 threads make"),
    ({"repeat": {"n": 2}}, "accesses[0].repeat: mma.m16n8k16.A.f16 has m and k, not n"),
    ({"op": "ldmatrix.x4.trans"}, "accesses[0].op: ldmatrix.x4.trans cannot move"),
    ({"op": "load", "bytes": 8}, "accesses[0].op: load cannot move"),
    (
        {"op": "load", "bytes": 16, "fragment": "mma.m16n8k8.B.f16", "repeat": {"k": 3}},
        "accesses[0].repeat: load moves 8 values a lane and mma.m16n8k8.B.f16 has 2: the first coordinate of repeat "
        "must be repeated a multiple of 4 times, but k is repeated 3 times",
    ),
    ({"index": ["m"]}, "accesses[0].index: expected one expression for each of 2 dimensions"),
    ({"index": ["m", "n"]}, "accesses[0].index[1]: unknown name 'n'"),
    ({"fragment": "mma.m16n8k32.A.s8"}, "has elements of 8 bits, the tile of 16"),
    ({"for": {"m": 2}}, "accesses[0].for: 'm' is reserved"),
    ({"op": "ldmatrix"}, "accesses[0].op: unknown op 'ldmatrix'"),
    ({**FILL, "copy": {"bytes": 3}}, "accesses[0].copy.bytes: invalid enum value 3"),
    ({**FILL, "copy": {"bytes": 1}}, "accesses[0].copy.bytes: 1 bytes are no whole number of 16-bit elements"),
    ({**FILL, "copy": {"bytes": 16, "order": [1, 0]}}, "must lie along the last dimension"),
    ({**FILL, "copy": {"bytes": 16, "threads": 512}}, "accesses[0].copy.threads: the block has 256 threads, not 512"),
    # Errors elsewhere come first.
    ({**FILL, "copy": {"bytes": 16}}, "tile.element: unknown type", {"element": "f17"}),
    ({**FILL, "copy": {"bytes": 16}}, "threads", {"element": "f17", "threads": None}),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message", "more"), [(*row, {})[:3] for row in WRONG])
def test_errors_name_the_field(change, message, more):
    with refused_with(message):
        from_data(problem({k: v for k, v in {**A_64X2, **change}.items() if v is not None}, **more))


def test_written_out_is_an_ordinary_problem():
    fill = {"name": "fill", "op": "cp.async", "copy": {"bytes": 16}}
    data = problem(fill, {**A_64X2, "repeat": {"m": 2, "k": 4}})
    plain = json.loads(json.dumps(written_out(data)))
    assert from_data(plain) == from_data(data)
    assert plain["accesses"][0] == access_from("fill: cp.async 16 [tid // 8 + i*32, tid % 8 * 8]; i<4")


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 5, 8]), st.integers(0, 9)), min_size=1, max_size=5), st.integers(0, 5))  # fmt: skip
def test_fit_finds_mixed_radix_digits(digits, constant):
    """A sum of digits of a lane and of a loop variable is found again, value by value."""
    size = int(np.prod([s for s, _ in digits]))
    v, table, rest = np.arange(size), np.full(size, constant), np.arange(size)
    for radix, stride in digits:
        table = table + rest % radix * stride
        rest = rest // radix
    both = table[:, None] + 7 * np.arange(4)[None, :]
    node = fit(both, {"lane": size, "i": 4})
    assert node is not None
    assert (evaluate(node, {"lane": v[:, None], "i": np.arange(4)[None, :]}) == both).all()


@given(st.lists(st.integers(0, 63), min_size=7, max_size=7))
def test_fit_finds_xor_bases(bases):
    tid = np.arange(128)
    table = np.zeros(128, np.int64)
    for b, basis in enumerate(bases):
        table ^= (tid >> b & 1) * basis
    node = fit_threads(table[:, None], 32, np.ones((128, 1), bool))
    assert node is not None
    env = {"tid": tid, "lane": tid % 32, "warp": tid // 32}
    assert (evaluate(node, env) == table).all()


def test_fit_gives_up_rather_than_guess():
    noise = np.random.default_rng(1).integers(0, 1 << 20, (32, 8))
    assert fit(noise, {"lane": 32, "i": 8}) is None
    few = np.array([5, 5, 5, 9, 9, 1, 1, 1])
    node = fit(few, {"lane": 8})
    assert node is not None
    assert evaluate(node, {"lane": np.arange(8)}).tolist() == few.tolist()


@pytest.mark.parametrize(("op", "fill"), [("ldmatrix.x4", {}), ("load", {"bytes": 4})])
def test_packed_elements_move_as_the_bytes_that_hold_them(op, fill):
    """Two s4 of a fragment are a byte: byte k // 2 of the one tile begins where element k of the other does."""
    access = {"name": "A", "op": op, **fill, "fragment": "mma.m16n8k64.A.s4", "repeat": {"m": 2, "k": 2}}
    packed, whole = (
        traced(from_data(problem(access, shape=(32, columns), element=element, threads=32)))
        for columns, element in ((128, "s4"), (64, "b8"))
    )
    assert packed.element.tolist() == (2 * whole.element).tolist()
    assert packed.active.tolist() == whole.active.tolist()


@pytest.mark.parametrize("first", [0, 4, 8])
def test_some_warps_of_a_block_take_part(first):
    """Two warpgroups of four: what two alone would do, at the warps that are named."""
    access = {**STORE, "repeat": {"n": 8}}
    alone, _ = lanes_of(problem(access))
    some, active = lanes_of(problem({**access, "first_warp": first}, threads=512))
    taking = active.all(axis=1)
    assert taking.sum() == len(alone)
    assert (some[taking] == alone).all()
    assert not active[~taking].any()
    (warps,) = np.nonzero(taking.reshape(-1, 16).all(axis=0))
    assert list(warps) == list(range(first, first + 8))


def test_some_warps_and_a_predicate_of_the_file():
    access = {"name": "a", "op": "load", "bytes": 4, "fragment": "mma.m16n8k16.A.f16", "first_warp": 1}
    data = written_out(problem({**access, "where": "lane < 8"}, shape=(16, 16), threads=96))
    assert data["accesses"][0]["where"] == "(warp >= 1) & (warp < 2) & (lane < 8)"


@pytest.mark.parametrize(
    ("element", "op"),
    [
        ("bf16", {"op": "stmatrix.x4"}),
        ("e4m3", {"op": "store", "bytes": 2}),
        ("f64", {"op": "store", "bytes": 16}),
    ],
)
def test_results_are_converted_before_they_are_stored(element, op):
    """Accumulators of 32 bits in a tile of another element lie where those of 16 bits lie in one of 16."""
    access = {"name": "a", "repeat": {"n": 2}, **op}
    wide, narrow = ({**access, "fragment": f"wgmma.m64n8k16.C.{kind}"} for kind in ("f32", "f16"))
    data = written_out(problem(wide, shape=(64, 16), element=element, threads=128))
    if element == "bf16":
        assert data["accesses"] == written_out(problem(narrow, shape=(64, 16), threads=128))["accesses"]
        return
    rows, columns = np.moveaxis(lanes_of(data)[0][..., :2], -1, 0)
    lane, warp = np.arange(32), np.arange(len(rows)) % 4
    assert (rows % 8 == lane // 4).all()
    assert (rows // 16 == warp[:, None]).all()
    assert (columns % 8 == lane % 4 * 2).all()
