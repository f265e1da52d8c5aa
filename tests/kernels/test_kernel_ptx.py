"""Kernels in PTX: totals as the profiler counted where ptxas changes no access, arithmetic as the ISA says."""

import json
import sys

import numpy as np
import pytest
from conftest import ROOT

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.kernels.apart import APART
from layoutopt.kernels.arrays import used_arrays
from layoutopt.kernels.evaluate import evaluate
from layoutopt.kernels.launch import Launch
from layoutopt.kernels.program import Compute
from layoutopt.kernels.ptx_program import OPERATIONS, programs
from layoutopt.kernels.ptx_reading import Reading
from layoutopt.kernels.values import Value, known

sys.path.insert(0, str(ROOT / "scripts" / "measure"))
import kernel_launches

LAUNCHES = {kernel.name: kernel for kernel in kernel_launches.launches()}
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_"
COUNTED = {
    row["name"]: row["launches"][0]
    for row in json.loads((kernel_launches.KERNELS / "counters.json").read_text())["kernels"]
}
# ptxas makes one wide access of several narrow ones.
FUSED = (
    "atomics_cas",
    "attention_tile",
    "conv_5x5",
    "divergent_paths",
    "gemm_tiled",
    "pointer_chosen",
    "predicated_edges",
    "sort_bitonic",
    "warp_specialised",
)
# Shared and global memory through one pointer; a structure by value.
NOT_COVERED = ("generic_pointer", "struct_argument")
KNOWN = [k.name for k in LAUNCHES.values() if not k.data_dependent and k.name not in NOT_COVERED]


def text_of(name):
    return (kernel_launches.KERNELS / f"{name}.ptx").read_text()


def launched(name):
    kernel = LAUNCHES[name]
    program = next(p for p in programs(text_of(name)) if p.name == kernel.symbol)
    scalars = {str(k): a[1] for k, a in enumerate(kernel.args) if a[0] != "struct" and not a[0].endswith("*")}
    launch = Launch(block=kernel.block, grid=kernel.grid, arguments=scalars, shared_bytes=kernel.shared)
    return evaluate(program, launch, device("sm_90"))


def totals(evaluation):
    found = {"ld": 0, "st": 0, "atom": 0, "conflicts": 0}
    for index, tally in evaluation.tallies.items():
        action = evaluation.program.steps[index].action
        if action.counter is not None:
            found[action.counter] += tally.wavefronts * (2 if action.doubled else 1)
            found["conflicts"] += tally.wavefronts - tally.phases
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_totals_are_those_that_the_profiler_counted(name):
    evaluation = launched(name)
    assert evaluation.certain, evaluation.doubts
    if name in FUSED or name not in COUNTED:
        return
    read = COUNTED[name]
    expected = {op: read[WAVEFRONTS + op] for op in ("ld", "st", "atom")}
    expected["conflicts"] = sum(read[CONFLICTS + op] for op in ("ld", "st", "atom"))
    assert totals(evaluation) == expected


@pytest.mark.parametrize("name", [k.name for k in LAUNCHES.values() if k.data_dependent])
def test_what_depends_on_data_is_not_certain(name):
    assert not launched(name).certain


class Plain:
    """Operands are cells of their own names."""

    def operand(self, text, width):
        return text

    def cells(self, text):
        return tuple(text.strip("{}").replace("|", ",").split(","))

    def read_later(self, cell):
        return True


def result(opcode, *numbers):
    words = tuple(opcode.split("."))
    builder = next(
        OPERATIONS[".".join(words[:n])] for n in range(len(words), 0, -1) if ".".join(words[:n]) in OPERATIONS
    )
    names = [f"s{k}" for k in range(len(numbers))]
    texts = [*names[:3], str(numbers[3])] if words[0] == "lop3" else names
    built = builder(Reading(words, ("d", *texts), Plain()))
    assert isinstance(built.action, Compute)
    values = dict(zip(names, (known(np.array([[n]], np.int64), 64) for n in numbers), strict=True))
    return int(built.action.function(*(values[s] for s in built.sources))[0].bits[0, 0])


EDGES = (0, 1, 2, 3, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF)


def signed(number, bits=32):
    return number - (1 << bits) if number >> (bits - 1) & 1 else number


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize(
    ("opcode", "meaning"),
    [
        ("add.s32", lambda a, b: a + b),
        ("sub.u32", lambda a, b: a - b),
        ("mul.lo.s32", lambda a, b: a * b),
        ("mul.hi.u32", lambda a, b: a * b >> 32),
        ("mul.hi.s32", lambda a, b: signed(a) * signed(b) >> 32),
        ("and.b32", lambda a, b: a & b),
        ("or.b32", lambda a, b: a | b),
        ("xor.b32", lambda a, b: a ^ b),
        ("min.s32", lambda a, b: min(signed(a), signed(b))),
        ("max.u32", lambda a, b: max(a, b)),
        ("shl.b32", lambda a, b: a << b if b < 32 else 0),
        ("shr.u32", lambda a, b: a >> b if b < 32 else 0),
        ("shr.s32", lambda a, b: signed(a) >> min(b, 31)),
        ("div.u32", lambda a, b: a // b if b else None),
        ("div.s32", lambda a, b: truncated(signed(a), signed(b)) if b else None),
        ("rem.s32", lambda a, b: signed(a) - signed(b) * truncated(signed(a), signed(b)) if b else None),
    ],
)
def test_two_operands(opcode, meaning):
    for a in EDGES:
        for b in EDGES:
            expected = meaning(a, b)
            if expected is not None:
                assert result(opcode, a, b) == expected & 0xFFFFFFFF, (a, b)


@pytest.mark.parametrize("wide", [0, 1, 0xFFFFFFFFFFFFFFFF, 0x8000000000000000, 0x123456789ABCDEF0])
def test_wide_products(wide):
    other = 0xFEDCBA9876543210
    assert result("mul.hi.u64", signed(wide, 64), signed(other, 64)) == wide * other >> 64
    expected = signed(wide, 64) * signed(other, 64) >> 64 & 0xFFFFFFFFFFFFFFFF
    assert result("mul.hi.s64", signed(wide, 64), signed(other, 64)) == expected


@pytest.mark.parametrize(
    ("opcode", "given", "expected"),
    [
        ("mul.wide.s32", (0xFFFFFFFF, 4), 0xFFFFFFFFFFFFFFFC),
        ("mad.lo.s32", (3, 5, 0xFFFFFFFF), 14),
        ("mad.wide.u32", (0xFFFFFFFF, 2, 3), 0x200000001),
        ("bfe.u32", (0xABCD1234, 8, 8), 0x12),
        ("bfe.s32", (0xABCD1234, 24, 8), 0xFFFFFFAB),
        ("bfe.s32", (0x80000000, 28, 8), 0xFFFFFFF8),
        ("bfe.u32", (0xFFFFFFFF, 4, 0), 0),
        ("bfi.b32", (0xFF, 0x12345678, 8, 4), 0x12345F78),
        ("prmt.b32", (0x33221100, 0x77665544, 0x7160), 0x77116600),
        ("prmt.b32", (0x00000080, 0, 0x8), 0x808080FF),
        ("lop3.b32", (0xF0, 0xCC, 0xAA, 0x96), 0xF0 ^ 0xCC ^ 0xAA),
        ("shf.l.wrap.b32", (0x80000000, 1, 33), 3),
        ("shf.r.clamp.b32", (0x80000000, 1, 40), 1),
        ("brev.b32", (1,), 0x80000000),
        ("popc.b32", (0xF0F0,), 8),
        ("clz.b32", (0x00010000,), 15),
        ("bfind.u32", (0x00010000,), 16),
        ("bfind.u32", (0,), 0xFFFFFFFF),
        ("cvt.s64.s32", (0xFFFFFFFE,), 0xFFFFFFFFFFFFFFFE),
        ("cvt.u64.u32", (0xFFFFFFFE,), 0xFFFFFFFE),
        ("cvt.u16.u32", (0x12345,), 0x2345),
        ("cvt.s32.s8", (0x1FF,), 0xFFFFFFFF),
        ("cvt.rzi.s32.f32", (0xC0200000,), 0xFFFFFFFE),
        ("cvt.rn.f32.s32", (0xFFFFFFFE,), 0xC0000000),
        ("setp.lt.s32", (0xFFFFFFFF, 0), 1),
        ("setp.lt.u32", (0xFFFFFFFF, 0), 0),
        ("setp.lo.u32", (1, 2), 1),
        ("setp.gtu.f32", (0x7FC00000, 0), 1),
        ("selp.b32", (7, 9, 0), 9),
        ("abs.s32", (0xFFFFFFFE,), 2),
    ],
)
def test_one_result(opcode, given, expected):
    assert result(opcode, *given) == expected


def test_a_shift_by_an_unknown_amount_is_unknown():
    built = OPERATIONS["shl"](Reading(("shl", "b32"), ("d", "a", "b"), Plain()))
    hidden = Value(np.zeros((1, 1), np.uint64), np.array([[31]], np.uint64))
    shifted = built.action.function(known(np.array([[5]], np.int64)), hidden)[0]
    assert shifted.unknown is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "this is no PTX",
        ".version 9.0\n.target sm_90\n",
        ".version 9.0\n.target sm_90\n.visible .entry k(",
        ".version 9.0\n.target sm_90\n.visible .entry k() { .reg .b32 %r<3>; mov.u32 %r1, %tid.x",
        ".version 9.0\n.target sm_90\n.visible .entry k() { bra nowhere; }",
        ".version 9.0\n.target sm_90\n.visible .entry k() { .reg .b32 %r<99999999>; ret; }",
        ".version 9.0\n.target sm_90\n.visible .entry k() " + "{" * 100,
        ".version 9.0\n.target sm_90\n.visible .entry k() { .shared .b8 a[99999999999999999999]; ret; }",
        ".version 9.0\n.target sm_90\n.visible .entry k(.param .u64 p, .param .u64 p) { ret; }",
    ],
)
def test_what_is_no_ptx_is_refused(text):
    with pytest.raises(ProblemFileError):
        programs(text)


HEAD = ".version 9.0\n.target sm_90\n.visible .entry k() { .reg .b32 %r<9>; .reg .pred %p<9>; .shared .b8 a[128];"


def counted(body, block=(32, 1, 1)):
    program = programs(HEAD + body + "}")[0]
    return evaluate(program, Launch(block=block), device("sm_90"))


def test_an_unknown_instruction_matters_only_to_addresses():
    plain = counted(
        "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; frob.x32 %r3, %r1; st.shared.b32 [%r2], %r3; ret;"
    )
    assert plain.certain
    with pytest.raises(ProblemFileError, match=r"frob\.x32"):
        counted("mov.u32 %r1, %tid.x; frob.x32 %r2, %r1; st.shared.b32 [%r2], %r1; ret;")


def test_lanes_that_parted_go_on_together():
    """Two ways of different length, then one store by all: one wavefront, not two."""
    body = (
        "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; setp.lt.u32 %p1, %r1, 7; @%p1 bra A; add.s32 %r3, %r1, 1; bra B;"
        "A: add.s32 %r3, %r1, 2; setp.eq.u32 %p2, %r1, 3; @%p2 bra B; add.s32 %r3, %r3, 1; B: st.shared.b32 [%r2], %r3; ret;"
    )
    (tally,) = counted(body).tallies.values()
    assert (tally.executions, tally.wavefronts) == (1, 1)


def test_lanes_leave_a_loop_one_by_one_and_go_on_together():
    body = (
        "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, 0; L: st.shared.b32 [%r2], %r3; add.s32 %r3, %r3, 1;"
        "setp.lt.u32 %p1, %r3, %r1; @%p1 bra L; ld.shared.b32 %r4, [%r2]; ret;"
    )
    tallies = list(counted(body).tallies.values())
    assert [t.executions for t in tallies] == [31, 1]


# Lane t goes t + 1 times around an inner loop, which lane 5 leaves for the end, in each of two rounds.
LEFT_EARLY = (
    "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, 0; O: mov.u32 %r4, 0; I: add.s32 %r4, %r4, 1;"
    "setp.gt.u32 %p1, %r4, %r1; @%p1 bra N; setp.eq.u32 %p2, %r4, 5; setp.eq.u32 %p3, %r1, {lane};"
    "and.pred %p2, %p2, %p3; @%p2 bra E; bra I; N: st.shared.b32 [%r2], %r3; add.s32 %r3, %r3, 1;"
    "setp.lt.u32 %p4, %r3, 2; @%p4 bra O; E: ret;"
)


def test_lanes_that_a_far_jump_keeps_apart_may_be_together():
    """The inner loop has a way to the end: it is not known that lanes meet behind it, nor that they do not."""
    evaluation = counted(LEFT_EARLY.format(lane=5))
    (tally,) = evaluation.tallies.values()
    assert list(evaluation.doubts) == [APART]
    assert evaluation.bounded
    # Two rounds of all lanes but one together; each of 31 lanes by itself.
    assert (tally.wavefronts + tally.best, tally.wavefronts + tally.worst) == (2, 62)


def test_lanes_that_come_to_one_place_by_two_conditions_may_be_together():
    """ptxas lets lanes of `a || b` meet before what both lead to."""
    evaluation = counted(
        "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; setp.lt.u32 %p1, %r1, 4; @%p1 bra Y; setp.lt.u32 %p2, %r1, 8;"
        "@%p2 bra Y; bra M; Y: st.shared.b32 [%r2], %r1; M: ld.shared.b32 %r3, [%r2]; ret;"
    )
    bounds = [(t.wavefronts + t.best, t.wavefronts + t.worst) for _, t in sorted(evaluation.tallies.items())]
    assert list(evaluation.doubts) == [APART]
    assert bounds == [(1, 2), (1, 1)]


def test_lanes_that_end_first_leave_the_others_together():
    """A guard, then an access in a part of each round of a loop: nothing else is apart."""
    evaluation = counted(
        "mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 20; @%p1 bra E; shl.b32 %r2, %r1, 2; mov.u32 %r3, 0;"
        "L: setp.lt.u32 %p2, %r1, %r3; @%p2 bra N; st.shared.b32 [%r2], %r3; N: add.s32 %r3, %r3, 1;"
        "setp.lt.u32 %p3, %r3, 4; @%p3 bra L; E: ret;"
    )
    (tally,) = evaluation.tallies.values()
    assert evaluation.certain
    assert (tally.executions, tally.wavefronts, tally.unknown) == (4, 4, 0)


def test_additions_of_one_are_counters_where_their_address_is_of_shared_memory():
    """Of a generic address the assembler makes no ATOMS.POPC.INC: lanes of one word are served in turn."""
    body = "mov.u32 %r1, a; red{}.add.u32 [{}], 1; ret;"
    near = counted(body.format(".shared", "%r1"))
    far = counted(
        ".reg .b64 %rd<3>; mov.u32 %r1, a; cvt.u64.u32 %rd1, %r1;"
        "cvta.shared.u64 %rd2, %rd1; red.add.u32 [%rd2], 1; ret;"
    )
    assert [[t.wavefronts for t in found.tallies.values()] for found in (near, far)] == [[1], [32]]
    assert near.certain
    assert far.certain


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.b64 %rd1, [%rd2]; call.uni (), %rd1, ();",
        "ld.global.b64 %rd1, [%rd2]; ld.b32 %r1, [%rd1];",
        "mov.u32 %r1, a; atom.shared.exch.b64 %rd1, [%r1], %rd2;",
    ],
)
def test_what_is_left_out_has_no_worst_case(body):
    found = counted(f".reg .b64 %rd<3>; {body} ret;")
    assert not found.certain
    assert not found.bounded


@pytest.mark.parametrize(("name", "certain"), [("first", False), ("second", True), ("third", False)])
def test_constants_that_the_host_fills_are_not_zeros(name, certain):
    text = (
        ".version 9.0\n.target sm_90\n.const .b32 first[4];\n.const .b32 second[4] = {4, 8, 12, 16};\n"
        ".const .b32 third[4] = {0, 0, 0, 0};\n.visible .entry k() { .reg .b32 %r<9>; .shared .b8 a[128];"
        "ld.const.b32 %r1, [first]; ld.const.b32 %r2, [second]; ld.const.b32 %r3, [third];"
        f"ld.const.b32 %r4, [{name}+4]; st.shared.b32 [%r4], %r4; ret; }}"
    )
    assert evaluate(programs(text)[0], Launch(block=(32, 1, 1)), device("sm_90")).certain == certain


def test_a_bulk_copy_leaves_nothing_known():
    """An index that a bulk copy may have replaced is unknown."""
    kept = (
        "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; st.shared.b32 [%r2], %r2; bar.sync 0; {} "
        "ld.shared.b32 %r3, [%r2]; ld.shared.b32 %r4, [%r3]; ret;"
    )
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [%rd1], 128, [a];"
    assert counted(kept.format("")).certain
    assert not counted(".reg .b64 %rd<3>; " + kept.format(copy)).certain


def test_what_a_texture_holds_is_unknown():
    read = "mov.u32 %r1, %tid.x; .reg .f32 %f<9>; tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [t, {%r1}]; "
    assert counted(read + "shl.b32 %r2, %r1, 2; st.shared.f32 [%r2], %f1; ret;").certain
    assert not counted(read + "mov.b32 %r3, %f1; st.shared.f32 [%r3], %f1; ret;").certain


DYNAMIC = """.version 9.0
.target sm_90
.extern .shared .align 16 .b8 s[];
.visible .entry k() { .reg .b32 %r<20>;
mov.u32 %r1, %tid.x; mov.u32 %r2, s; mad.lo.u32 %r3, %r1, 64, %r2; xor.b32 %r4, %r3, 64; mad.lo.u32 %r5, %r1, 4, %r2;
mad.lo.u32 %r6, %r1, 128, %r2; xor.b32 %r7, %r6, 4096;
"""
LOADED = "st.shared.b32 [%r3], 1; st.shared.b32 [%r5+4096], 2; bar.sync 0; ld.shared.b32 %r8, [%r4];"
LOADED += "ld.shared.b32 %r9, [%r5+4096];"
EPILOGUE = "st.shared.b32 [%r6], 3; bar.sync 0; ld.shared.b32 %r10, [%r7];"


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (LOADED + "bar.sync 0;" + EPILOGUE, ["dynamic+0", "dynamic+0 (2)", "dynamic+4096"]),
        (LOADED + "bar.warp.sync -1;" + EPILOGUE, ["dynamic"]),
        (LOADED + "ld.shared.b32 %r11, [%r4]; bar.sync 0; ld.shared.b32 %r12, [%r4];" + EPILOGUE, ["dynamic"]),
        # The epilogue reads what it did not write.
        (LOADED + "bar.sync 0;" + EPILOGUE + "ld.shared.b32 %r13, [%r5+4096];", ["dynamic"]),
        # What is exchanged again in the same bytes is one array.
        ("st.shared.b32 [%r5], 1; bar.sync 0; ld.shared.b32 %r8, [%r5]; bar.sync 0; st.shared.b32 [%r5], 3;", ["dynamic"]),
    ],
)  # fmt: skip
def test_dynamic_memory_holds_arrays_in_turn(body, names):
    """As the epilogue of a GEMM, behind a barrier of the whole block, takes the memory of its operands."""
    program = programs(DYNAMIC + body + "ret; }")[0]
    found = evaluate(program, Launch(block=(64, 1, 1), shared_bytes=8192), device("sm_90"))
    assert [used.array.name for used in used_arrays(found)] == names
    assert sum(len(used.steps) for used in used_arrays(found)) == len(found.tallies)


def test_members_of_a_structure_are_given_by_their_bytes():
    head = HEAD.replace("k()", "k(.param .u32 first, .param .align 8 .b8 params[24])")
    body = (
        "ld.param.u32 %r1, [params+12]; mov.u32 %r2, %tid.x; mul.lo.u32 %r3, %r1, %r2; shl.b32 %r3, %r3, 2;"
        "st.shared.b32 [%r3], %r2; ret;}"
    )
    program = programs(head.replace("a[128]", "a[8192]") + body)[0]
    for key, wavefronts in (("params+12", 32), ("1+12", 32)):
        launch = Launch(block=(32, 1, 1), arguments={key: 32})
        found = evaluate(program, launch, device("sm_90"))
        assert (found.certain, found.tallies.popitem()[1].wavefronts) == (True, wavefronts)
    for key in ("params+24", "nothing+4", "params+x"):
        with pytest.raises(ProblemFileError, match="--arg"):
            evaluate(program, Launch(block=(32, 1, 1), arguments={key: 32}), device("sm_90"))
