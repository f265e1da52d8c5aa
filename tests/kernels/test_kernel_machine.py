"""The machine that evaluates kernels: which lanes execute what, how often, and what is not known of it."""

import random

import msgspec
import numpy as np
import pytest
from machine_code import counted, program

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.machine.memory import Bytes
from layoutopt.kernels.machine.relevance import relevance
from layoutopt.kernels.program import LOCAL_WINDOW, SHARED_WINDOW, Array, Place
from layoutopt.kernels.question.arrays import used_arrays
from layoutopt.kernels.question.summary import summary
from layoutopt.report.kernel_text import kernel_report

# R1 is the thread, R2 its word; R3 its row of banks, P1 a predicate that nobody knows.
COLUMN = "IMAD R3, R1, 0x80, RZ"
HIDDEN = "LDG.E R4, desc[UR4][R6.64]"
UNKNOWN = f"{HIDDEN}; ISETP.NE.AND P1, PT, R4, RZ, PT"


def tallies(found):
    """What is counted of each instruction on shared memory, in the order of the code."""
    return [found.tallies[k] for k in sorted(found.tallies)]


PART = "BSSY B0, `(.L_M); @P1 BRA `(.L_M)"
THROUGH = "LOP3.LUT R3, R2, 0xfc, RZ, 0x3c, !PT; LDS R4, [R3]; LDS R5, [R4]"
LOWER = "S2R R3, SR_CTAID.Y; ISETP.LT.AND P1, PT, R3, 0x3, PT; @P1 LDS R4, [R2]; @P1 LDS R5, [R4]"
LEAVE = f"{HIDDEN}; ISETP.NE.AND P0, PT, R4, RZ, PT; STS [R2], R1; @P0 EXIT"
KIND = "MOV R4, R2; MOV R5, {}; QSPC.E.{} P0, RZ, [R4]; @!P0 BRA `(.L_END); LDS R6, [R2]; END:"
# What atomicAdd(half2*) becomes: where it is not done, the address is one of shared memory.
GENERIC = "ATOM.E.ADD.F16x2.RN.STRONG.GPU P0, RZ, desc[UR4][R4.64], R6; @P0 EXIT; LDS R6, [R2]; ATOMS.CAST.SPIN R7, [R2], R6, R6"
# An addition of floats to the word at a place, which is not done where P1 is false.
ADDED = "LDS R4, [{0}]; FADD R5, R4, 1.5; ATOMS.CAST.SPIN R6, [{0}], R4, R5; ISETP.EQ.AND P1, PT, R6, 0x1, PT"
BARRIER = f"{HIDDEN}; ISETP.NE.AND P0, PT, R4, RZ, PT; BAR.RED.POPC 0x0, P0; B2R.RESULT R3"
LINKED = "UMOV UR4, 32@lo(tile)"
TWO = {"threads": 64}
BOTH_WAYS, NOT_KNOWN = "both ways are counted", "is an instruction that is not known"
ADDRESS = "the address of "
# Code, and its launch; whether all is certain, or has a worst case at least, or not even that; of each instruction on
# shared memory its executions and wavefronts, and the fewest and most of what is not known; and a doubt that is said.
COUNTED = {
    "a column is 32-way": (f"{COLUMN}; STS [R3], RZ", {**TWO, "grid": (3, 5, 1)}, "certain", [(30, 960)], ""),
    "of blocks that differ, each, of strides of 0 to 4 words": (
        "S2R R3, SR_CTAID.X; IMAD R3, R2, R3, RZ; LDS R4, [R3]",
        {"grid": (5, 1, 1)}, "certain", [(5, 1 + 1 + 2 + 1 + 4)], "",
    ),
    "blocks beside one that is not certain": (
        LOWER, {"grid": (1, 5, 1)}, "bounded", [(5, 3), (5, 0, 3, 3 * 32)], ADDRESS,
    ),
    "thousands of blocks beside such ones": (
        LOWER, {"grid": (1000, 5, 7)}, "bounded", [(35_000, 21_000), (35_000, 0, 21_000, 21_000 * 32)], ADDRESS,
    ),
    "groups that diverge execute apart until they meet": (
        "ISETP.LT.AND P1, PT, R1, 0x5, PT; BSSY B0, `(.L_M); @P1 BRA `(.L_A); LDS R4, [R2]; A:; LDS R4, [R2]; M:; "
        "BSYNC B0; LDS R4, [R2]", {}, "certain", [(1, 1), (2, 2), (1, 1)], "",
    ),
    "a loop with a trip count of its own for each thread": (
        "SHF.L.U32 R3, R1, 0x4, RZ; L:; LDS R4, [R3]; VIADD R3, R3, 0x40; ISETP.LT.AND P1, PT, R3, 0x400, PT; @P1 BRA `(.L_L)",
        TWO, "certain", [(16 + 8, 52 + 20)], "",
    ),
    "a loop that begins at its block: for (k = 16 * block; k < 16 * block + 16 && k < size; k += 4)": (
        "S2R R3, SR_CTAID.X; IMAD.SHL.U32 R3, R3, 0x10, RZ; IADD3 R4, R3, 0x10, RZ; L:; LDS R6, [R2]; "
        "IADD3 R3, R3, 0x4, RZ; ISETP.LT.AND P1, PT, R3, R4, PT; ISETP.LT.AND P1, PT, R3, 0xfff5, P1; @P1 BRA `(.L_L)",
        {"grid": (4096, 1, 1)}, "certain", [(4095 * 4 + 2,) * 2], "",
    ),
    "values go through shared memory after a barrier": (
        f"STS [R2], R2; BAR.SYNC 0x0; {THROUGH}", TWO, "certain", [(2, 2)] * 3, "",
    ),
    "values do not without one": (
        f"STS [R2], R2; {THROUGH}", TWO, "bounded", [(2, 2), (2, 2), (2, 0, 2, 64)], ADDRESS,
    ),
    "a bulk copy leaves nothing known": (
        f"STS [R2], R2; BAR.SYNC 0x0; UBLKCP [UR4], [UR6], UR8; {THROUGH}",
        TWO, "bounded", [(2, 2), (2, 2), (2, 0, 2, 64)], ADDRESS,
    ),
    "an unknown address": (f"{HIDDEN}; LDS R5, [R4]", {"threads": 40}, "bounded", [(2, 0, 2, 40)], ADDRESS),
    "an unknown address of an atomic": ("CS2R R3, SR_CLOCKLO; ATOMS.ADD RZ, [R3], R1", {}, "bounded", [(1, 0, 1, 32)], ADDRESS),
    "both ways of a branch, after which only the lowest bits of the address agree": (
        f"{COLUMN}; {UNKNOWN}; {PART}; LDS R5, [R3]; MOV R3, R2; LDS R5, [R3]; M:; BSYNC B0; STS [R3], RZ",
        TWO, "bounded", [(2, 0, 0, 64), (2, 0, 0, 2), (2, 0, 2, 64)], BOTH_WAYS,
    ),
    "what both ways leave alone stays known": (
        f"{COLUMN}; {UNKNOWN}; {PART}; LDS R5, [R3]; BAR.SYNC 0x0; M:; BSYNC B0; STS [R3], RZ",
        TWO, "bounded", [(2, 0, 0, 64), (2, 64)], BOTH_WAYS,
    ),
    "one way leaves those who wait behind it; those who come all the same are counted": (
        f"BSSY B1, `(.L_M); {UNKNOWN}; @!P1 BRA `(.L_B); LDS R5, [R2]; BREAK B1; BRA `(.L_B); B:; STS [R2], RZ; "
        "M:; BSYNC B1; LDS R5, [R2]", {}, "bounded", [(1, 0, 0, 1), (1, 1), (1, 1)], BOTH_WAYS,
    ),
    "lanes that may have ended": (
        f"{COLUMN}; {UNKNOWN}; @P1 EXIT; BAR.SYNC 0x0; STS [R3], RZ",
        {}, "bounded", [(1, 0, 0, 32)], "lanes that may have ended are counted",
    ),
    "a return on data behind which nothing is counted": (
        f"{LEAVE}; STG.E desc[UR4][R6.64], R1", {}, "certain", [(1, 1)], "",
    ),
    "a return behind which threads wait": (f"{LEAVE}; BAR.SYNC 0x0", {}, "bounded", [(1, 1)], "whether EXIT"),
    "a return behind which a load is": (f"{LEAVE}; LDS R4, [R2]", {}, "bounded", [(1, 1), (1, 0, 0, 1)], "whether EXIT"),
    "a loop that data ends is counted once more": (
        f"L:; LDS R5, [R2]; {UNKNOWN}; @P1 BRA `(.L_L); STS [R2], RZ",
        {}, "open", [(2, 1, 0, 1), (1, 1)], "of rounds that it may begin one is counted",
    ),
    "a function that is not at hand keeps what its caller keeps in registers from R16 on": (
        "IMAD R16, R1, 0x80, RZ; MOV R3, R2; CALL.REL.NOINC `(elsewhere); STS [R16], RZ; STS [R3], RZ",
        {}, "open", [(1, 32), (1, 0, 1, 32)], "CALL",
    ),
    "a function that data names": ("LDG.E.64 R4, desc[UR4][R6.64]; CALL.ABS R4", {}, "open", [], "CALL.ABS"),
    "BRA.CONV goes on where the mask's lanes are together": (
        "UMOV UR4, 0xffffffff; BRA.CONV UR4, `(.L_A); LDS R4, [RZ]; A:; NOP", {}, "certain", [], "",
    ),
    "BRA.DIV goes on where they are not": (
        "UMOV UR4, 0xffffffff; BRA.DIV UR4, `(.L_A); LDS R4, [RZ]; A:; NOP", {}, "certain", [(1, 1)], "",
    ),
    "BRA.DIV lets all lanes jump where the guard leaves out one of the mask's": (
        "UMOV UR4, 0xffffffff; ISETP.GE.AND P1, PT, R1, 0x5, PT; @!P1 BRA.DIV UR4, `(.L_A); LDS R4, [RZ]; A:; NOP",
        {}, "certain", [], "",
    ),
    "WARPSYNC lets halves of a warp go on together": (
        "LOP3.LUT R3, R1, 0x10, RZ, 0xc0, !PT; MOV R4, 0xffff; SHF.L.U32 R3, R4, R3, RZ; WARPSYNC R3; LDS R4, [R2]",
        {}, "certain", [(1, 1)], "",
    ),
    "WARPSYNC.EXCLUSIVE lets each go on by itself until they meet": (
        "LOP3.LUT R3, R1, 0x10, RZ, 0xc0, !PT; MOV R4, 0xffff; SHF.L.U32 R3, R4, R3, RZ; BSSY B0, `(.L_M); "
        "WARPSYNC.EXCLUSIVE R3; LDS R4, [R2]; BSYNC B0; M:; LDS R5, [R2]", TWO, "certain", [(4, 4), (2, 2)], "",
    ),
    "WARPSYNC.COLLECTIVE lets each vote by itself": (
        "LOP3.LUT R3, R1, 0x10, RZ, 0xc0, !PT; MOV R4, 0xffff; SHF.L.U32 R3, R4, R3, RZ; BSSY B0, `(.L_M); "
        "ISETP.EQ.AND P1, PT, R1, 0x5, PT; WARPSYNC.COLLECTIVE R3, `(.L_M); VOTE.ANY R5, PT, P1; ENDCOLLECTIVE; M:; BSYNC B0; "
        "ISETP.NE.AND P1, PT, R5, RZ, PT; SHF.L.U32 R6, R1, 0x7, RZ; @P1 LDS R4, [R6]",
        {}, "certain", [(1, 16)], "",
    ),
    "lanes that wait in a call wait for none of those in a call inside it": (
        "ISETP.GE.AND P1, PT, R1, 0x5, PT; ISETP.NE.AND P2, PT, RZ, RZ, PT; BSSY B6, `(.L_M); @!P1 BRA `(.L_M); "
        "BMOV.32.CLEAR R18, B6; BSSY B6, `(.L_M); ISETP.EQ.AND P2, PT, RZ, RZ, PT; M:; BSYNC B6; @P2 BRA `(.L_R); "
        "LDS R4, [R2]; EXIT; R:; BMOV.32 B6, R18; ISETP.NE.AND P2, PT, RZ, RZ, PT; BRA `(.L_M)",
        {}, "certain", [(1, 1)], "",
    ),
    "an addition of floats, each lane to its own word, is done at the first try": (
        f"STS [R2], RZ; BAR.SYNC 0x0; L:; {ADDED.format('R2')}; @!P1 BRA `(.L_L)",
        TWO, "certain", [(2, 2)] * 3, "",
    ),
    "one of two lanes to each word may be tried again": (
        f"STS [R2], RZ; BAR.SYNC 0x0; LOP3.LUT R3, R2, 0x7c, RZ, 0xc0, !PT; L:; {ADDED.format('R3')}; @!P1 BRA `(.L_L)",
        TWO, "open", [(2, 2), (4, 2, 0, 2), (4, 2, 0, 2)], BOTH_WAYS,
    ),
    "additions of one without a result serve lanes of one word together": (
        "ATOMS.POPC.INC.32 RZ, [RZ]; ATOMS.ADD RZ, [RZ], R1", {}, "certain", [(1, 1), (1, 32)], "",
    ),
    # Counted as one that is not known.
    "an instruction that a listing cuts in the middle": ("VIADD R9; LDS R4, [R2]", {}, "certain", [(1, 1)], ""),
    "an unknown instruction matters only to addresses": ("FROB R3, R1; STS [R2], R3", {}, "certain", [(1, 1)], ""),
    "an unknown instruction that gives an address": ("FROB R2, R1; STS [R2], R1", {}, "bounded", [(1, 0, 1, 32)], f"FROB at 0x20 {NOT_KNOWN}"),
    "an unknown instruction that may touch shared memory": (
        "LDFROB [R1]; STS [R2], R1", {}, "open", [(1, 1)], f"LDFROB at 0x20 {NOT_KNOWN}; what it does is not counted",
    ),
    **{
        f"{line} is of control": (f"{line}; STS [R2], R1", {}, "open", [(1, 0, 1, 32)], NOT_KNOWN)
        for line in ("BMOV.32.PQUAD R0, B2", "BMOV.64 R0, ATEXIT_PC", "BXYZ R0")
    },
    "an address of the linker": (
        f"{LINKED}; STS [R2+UR4], R1", {}, "bounded", [(1, 0, 1, 32)], "gets an address that only the linker knows",
    ),
    "an address of the linker in global memory": (f"{LINKED}; STG.E desc[UR6][R4.64+UR4], R1; STS [R2], R1", {}, "certain", [(1, 1)], ""),
    "a generic address may be one of shared memory": ("LD.E R8, desc[UR4][R6.64]", {}, "open", [], "whether LD.E"),
    "a generic address is one of shared memory": (KIND.format(hex(SHARED_WINDOW), "S"), {}, "certain", [(1, 1)], ""),
    "a generic address is none of shared memory": (KIND.format("0x7f00", "S"), {}, "certain", [], ""),
    "a generic address is one of local memory": (KIND.format(hex(LOCAL_WINDOW), "L"), {}, "certain", [(1, 1)], ""),
    "a generic atomic of global memory is done": (f"MOV R4, R2; MOV R5, 0x7f00; {GENERIC}", {}, "certain", [(1, 1)], ""),
    "a generic atomic that asks is not done in shared memory": (
        f"IMAD R4, R1, 0x80, RZ; MOV R5, {SHARED_WINDOW:#x}; {GENERIC}", {}, "certain", [(1, 1)] * 3, "",
    ),
    "a generic atomic takes a wavefront of warps that reach global memory, too": (
        f"IMAD R4, R1, 0x80, RZ; LOP3.LUT P1, RZ, R1, 0x20, RZ, 0xc0, !PT; MOV R5, 0x7f00; @P1 MOV R5, {SHARED_WINDOW:#x}; "
        "ATOM.E.ADD.STRONG.GPU PT, RZ, desc[UR4][R4.64], R1", {"threads": 128}, "certain", [(4, 2 * 32 + 2)], "",
    ),
    "a generic atomic of some memory": (
        f"MOV R4, R2; MOV R5, R9; {GENERIC}", {}, "open", [(1, 0, 0, 1)] * 2, "reaches shared memory is not known",
    ),
    "a barrier joins what is unknown": (f"{BARRIER}; STS [R3], R1", {}, "bounded", [(1, 0, 1, 32)], ADDRESS),
    "what a barrier joins and nobody asks for": (f"{BARRIER}; STS [R2], R1", {}, "certain", [(1, 1)], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_what_is_counted_and_how_certain_it_is(name):
    code, launch, verdict, expected, why = COUNTED[name]
    found = counted(code, **launch)
    rows = [(t.executions, t.wavefronts, *((t.best, t.worst) if t.unknown else ())) for t in tallies(found)]
    assert rows == expected
    assert verdict == ("certain" if found.certain else "bounded" if found.bounded else "open")
    assert (why in " | ".join(found.doubts), why == "") == (True, not found.doubts)
    assert found.evaluated_blocks <= 5


CLUSTERED = (
    "S2R R3, SR_CgaCtaId; SHF.L.U32 R4, R3, 0x18, RZ; IADD3 R5, R2, R4, RZ; LDS R6, [R5]; UCGABAR_ARV; UCGABAR_WAIT; "
    "ISETP.NE.AND P1, PT, R3, RZ, PT; @P1 LDS R7, [R5+0x80]"
)


@pytest.mark.parametrize(("cluster", "others"), [((2, 1, 1), 12), ((2, 3, 1), 20), ((1, 1, 1), 0)])
def test_blocks_have_ranks_in_their_clusters(cluster, others):
    code = program("S2R R1, SR_TID.X; SHF.L.U32 R2, R1, 0x2, RZ", CLUSTERED, cluster=cluster)
    found = evaluate(code, Launch(block=(32, 1, 1), grid=(4, 6, 1)), device("sm_90"))
    assert found.certain
    assert [tally.wavefronts for tally in tallies(found)] == [24, others]
    assert found.evaluated_blocks == (1 if cluster == (1, 1, 1) else 24)


def test_ranks_in_clusters_of_which_nobody_says_the_size_are_not_known():
    found = counted(CLUSTERED, grid=(4, 6, 1))
    assert [(t.wavefronts, t.best, t.worst) for t in tallies(found)] == [(24, 0, 0), (0, 0, 24)]
    assert next(iter(found.doubts)) == "how many blocks a cluster has is not known"


def test_what_reaches_another_block_of_the_cluster_is_refused():
    other = f"LOP3.LUT R4, R4, 0x1000000, RZ, 0x3c, !PT; IADD3 R8, R2, R4, RZ; MOV R9, {SHARED_WINDOW:#x}; LD.E R6, [R8]"
    code = program("S2R R1, SR_TID.X; SHF.L.U32 R2, R1, 0x2, RZ", CLUSTERED, other, cluster=(2, 1, 1))
    with pytest.raises(ProblemFileError, match="of another block of the cluster"):
        evaluate(code, Launch(block=(32, 1, 1), grid=(4, 1, 1)), device("sm_90"))


def test_too_many_blocks_beside_one_that_is_not_certain_have_no_worst_case():
    lines = "S2R R3, SR_CTAID.X; IMAD R3, R2, R3, RZ; LOP3.LUT R3, R3, 0xffc, RZ, 0xc0, !PT; LDS R4, [R3]; LDS R5, [R4]"
    found = counted(lines, grid=(3_000_000, 1, 1))
    assert not found.bounded
    assert found.evaluated_blocks < 3_000_000
    assert any("blocks that may differ" in why for why in found.doubts)


@pytest.mark.parametrize(
    ("address", "arrays", "why"),
    [
        (1 << 24 | 64, (), "of another block of the cluster"),
        (1 << 18, (), "give its dynamic shared memory"),
        (0xFFFFFFF0, (), "give its dynamic"),
        # What is left of a block's memory says what the block has.
        (0x600, (Array("s", 0x400, 0x200),), r"s has 512 bytes, .* reaches byte 516 of it: is --block right"),
        (0x600, (), r"a block has 1,536: give its dynamic shared memory \(at least --shared 4\)"),
    ],
)
def test_shared_memory_that_a_block_has_not(address, arrays, why):
    code = program(f"MOV R3, {address:#x}; LDS R4, [R3]", static_bytes=0x600, arrays=arrays)
    with pytest.raises(ProblemFileError, match=why):
        evaluate(code, Launch(block=(32, 1, 1)), device("sm_90"))


@pytest.mark.parametrize("load", ["M88", "MT88"])
@pytest.mark.parametrize("store", ["M88", "MT88"])
def test_matrices_go_through_registers(load, store):
    """Each half holds its own place; rows of four matrices are loaded in another order, and stored."""
    found = counted(
        "SHF.L.U32 R5, R1, 0x4, RZ; LOP3.LUT R4, R5, 0x50, RZ, 0x3c, !PT; IMAD R8, R5, 0x10001, 0x20000",
        *(f"IADD3 R{8 + k}, R8, {0x40004 * k:#x}, RZ" for k in (1, 2, 3)),
        f"STS.128 [R5], R8; LDSM.16.{load}.4 R12, [R4]; LOP3.LUT R6, R12, 0xffff, RZ, 0xc0, !PT; LDS.U16 R7, [R6]",
        f"STSM.16.{store}.4 [R5+0x200], R12",
        *(f"LDS.U16 R6, [R5+{0x200 + 2 * k:#x}]; LDS.U16 R7, [R6]" for k in range(8)),
        shared_bytes=1024,
    )
    assert found.certain
    reads = (k for k in sorted(found.traces) if "[R6]" in found.program.steps[k].text)
    first, *others = (found.traces[k][0].address[0] for k in reads)
    place = 16 * (np.arange(32) ^ 5).reshape(4, 8, 1) + 2 * np.arange(8)
    lane = np.arange(32)
    own = (lane // 4, 2 * (lane % 4)) if load == "M88" else (2 * (lane % 4), lane // 4)
    assert (first == place[0][own]).all()
    stored = place if load == store else place.swapaxes(1, 2)
    assert (np.array(others) == stored.reshape(32, 8).T).all()


def test_what_is_known_of_unknown_bits():
    unsure = values.Value(np.array([[8]], np.uint64), np.array([[4]], np.uint64))  # 8 or 12
    total = values.add(unsure, values.constant(3))
    assert int(total.bits[0, 0] & 3) == 3
    assert int(total.unknown[0, 0] & 3) == 0
    assert values.less(unsure, values.constant(13)).sure
    assert not values.less(unsure, values.constant(12)).sure
    assert values.multiply(unsure, values.ZERO).sure
    assert values.both(unsure, values.constant(3)).sure


def test_what_is_said_to_be_known_holds_for_every_value():
    """All 4-bit values with unknown bits, against all numbers that they may be."""
    cases = [(bits, hidden) for hidden in range(8) for bits in range(8) if not bits & hidden]
    operations = {
        "add": (lambda a, b: values.add(a, b, width=4), lambda a, b: a + b),
        "subtract": (lambda a, b: values.subtract(a, b, width=4), lambda a, b: a - b),
        "multiply": (lambda a, b: values.multiply(a, b, width=4), lambda a, b: a * b),
        "and": (lambda a, b: values.both(a, b, 4), lambda a, b: a & b),
        "or": (lambda a, b: values.either(a, b, 4), lambda a, b: a | b),
        "less": (lambda a, b: values.less(a, b, 4, is_signed=False), lambda a, b: int(a < b)),
        "equal": (values.equal, lambda a, b: int(a == b)),
        "left": (lambda a, b: values.shift_left(a, b, 4), lambda a, b: a << b),
        "right": (lambda a, b: values.shift_right(a, b, 4), lambda a, b: a >> b),
        "least": (lambda a, b: values.least(a, b, 4), min),
    }
    pairs = [(a, b) for a in cases for b in cases]
    numbers = np.array(pairs, np.uint64).transpose(1, 2, 0)[:, :, None]
    made = [values.Value(*both) for both in numbers]
    for name, (ours, plain) in operations.items():
        found = ours(*made)
        bits = np.broadcast_to(found.bits, (1, len(pairs)))[0].tolist()
        hidden = np.broadcast_to(found.unknown, (1, len(pairs)))[0].tolist()
        for k, ((a, hide_a), (b, hide_b)) in enumerate(pairs):
            for x in (a | part for part in range(8) if part & ~hide_a == 0):
                for y in (b | part for part in range(8) if part & ~hide_b == 0):
                    assert plain(x, y) & 15 & ~hidden[k] == bits[k], (name, a, hide_a, b, hide_b)


def _one_of(random, a, b, some, number, width):
    """Two values of a box, one of a lane and a number that all have, put through one operation."""
    places = values.constant(random.randrange(5))
    return random.choice(
        [
            lambda: values.add(a, some, width=width),
            lambda: values.subtract(a, b, width),
            lambda: values.multiply(a, number, width),
            lambda: values.shift_left(a, places, width),
            lambda: values.shift_right(a, places, width),
            lambda: values.shift_right_signed(a, places, width),
            lambda: values.cut(values.add(a, some, values.TRUE, width=width + 4), width),
            lambda: values.cut(values.extend(a, width, 64), width),
            lambda: values.high(values.join(a, b)) if width == 32 else a,
            lambda: values.least(a, some, width, is_signed=random.random() < 0.5),
            lambda: values.select(values.less(a, b, width), a, some),
            lambda: values.chosen(np.arange(32)[None] < 9, a, some),
        ]
    )()


def _chain(random, value, width):
    """A value put through operations one after another, and how the results compare."""
    made, told = [value], []
    for _ in range(8):
        a, b = random.choice(made), random.choice(made)
        number = values.constant(random.choice([1, 3, 8, 40, -1, -5, 1 << 30]), width)
        some = random.choice([number, values.cut(values.known(np.arange(32)[None] * 7), width)])
        made.append(_one_of(random, a, b, some, number, width))
        told += [values.less(a, made[-1], width, random.random() < 0.5), values.equal(a, made[-1])]
        told += [values.less(made[-1], b, width, or_equal=True), values.equal(made[-1], some)]
    return made + told


@pytest.mark.parametrize("seed", range(60))
def test_what_is_said_of_a_box_of_blocks_holds_for_each(seed):
    """Bits, range and line of numbers made from an index, against the same for each index alone."""
    width = random.Random(seed).choice([5, 8, 32])
    low = random.Random(seed).randrange(20)
    high = low + random.Random(seed + 1).randrange(1, 12)
    first, last = (np.array([[end]], np.uint64) for end in (low, high))
    box = values.made(first, values.downward(first ^ last), width, (first, last, True))
    box = values.lined(box, values.Line(first, (1, 0, 0)), width)
    said = _chain(random.Random(seed), box, width)
    for index in range(low, high + 1):
        for one, real in zip(
            said, _chain(random.Random(seed), values.constant(index, width), width), strict=True
        ):
            assert real.sure
            assert (real.bits & ~one.unknown == one.bits).all()
            assert (one.span[0] <= real.bits).all()
            assert (real.bits <= one.span[1]).all()
            if one.line is not None:
                on = one.line.first + np.uint64(one.line.slopes[0]) * np.uint64(index - low)
                assert (on & values.mask(width) == real.bits).all()


@pytest.mark.parametrize("grid", [(40, 40, 40), (64, 43, 33), (2, 65_000, 3)])
def test_blocks_at_the_faces_of_a_grid_are_told_from_those_inside(grid):
    """A load that only threads inside do, of 32 numbers a block along x and one along y and z."""
    lines = ["S2R R3, SR_CTAID.X", "IMAD R3, R3, 0x20, R1", "S2R R4, SR_CTAID.Y", "S2R R5, SR_CTAID.Z"]
    for register, size in (("R3", 32 * grid[0] - 5), ("R4", grid[1]), ("R5", grid[2])):
        lines += [f"ISETP.GE.AND P1, PT, {register}, 0x1, PT", "@!P1 EXIT"]
        lines += [f"ISETP.GE.AND P1, PT, {register}, {size - 1:#x}, PT", "@P1 EXIT"]
    found = counted(*lines, "LDS R6, [R2]", grid=grid)
    inside = max(grid[1] - 2, 0) * max(grid[2] - 2, 0)
    assert found.certain
    assert found.evaluated_blocks < 64
    assert sum(tally.executions for tally in found.tallies.values()) == grid[0] * inside


@pytest.mark.parametrize(
    ("code", "worst"),
    [
        (f"L:; LDS R5, [R2]; {UNKNOWN}; @P1 BRA `(.L_L)", [None]),  # of rounds of which nobody knows how many
        # Nobody knows who waits; what comes behind is not counted, so that nothing is the most there may be.
        (f"LDS R5, [R2]; {UNKNOWN}; @P1 BAR.SYNC 0x0; LDS R6, [R2]", [0]),
    ],
)
def test_where_no_worst_case_is_known_none_is_said(code, worst):
    report = summary(counted(code, threads=64))
    data, text = report.to_json(), kernel_report(report)
    assert data["totals"]["wavefronts_worst"] is None
    assert [access["worst"] for access in data["accesses"]] == worst
    assert ("at least" in text, "at most" in text, "no worst case is known" in text) == (True, False, True)


def test_copies_of_one_instruction_use_one_array():
    """As compilers unroll loops: the same lanes, other bytes, one line of the source."""
    stores = "STS [R2], RZ; STS [R2+0x420], RZ; STS [R3+0x2000], RZ"
    kernel = program("S2R R1, SR_TID.X; IMAD R2, R1, 0x4, RZ; IMAD R3, R1, 0x20, RZ", stores)
    steps = tuple(msgspec.structs.replace(step, place=Place("k.cu", 7)) for step in kernel.steps)
    launch = Launch(block=(64, 1, 1), shared_bytes=16384)
    used = used_arrays(evaluate(msgspec.structs.replace(kernel, steps=steps), launch, device("sm_90")))
    assert [(one.array.start, one.array.size, one.steps) for one in used] == [
        (0, 1312, (3, 4)), (8192, 63 * 32 + 4, (5,)),
    ]  # fmt: skip


def test_the_least_of_an_atomic_that_is_tried_again_has_no_conflicts():
    """An H200 counts 2 a warp instruction, 4 of a warp of which 4 lanes each share a word, and no conflicts."""
    again = "LDS R4, [R3]; FADD R5, R4, 2; ATOMS.CAST.SPIN R5, [R3], R4, R5"
    ended = "ISETP.EQ.U32.AND P0, PT, R5, 0x1, PT; @!P0 BRA `(.L_L)"
    lines = f"LOP3.LUT R3, R1, 0xfffffffc, RZ, 0xc0, !PT; L:; {again}; {ended}"
    found = summary(counted(lines, shared_bytes=32))
    (atomic,) = (access for access in found.accesses if access.counter == "atom")
    assert not found.certain
    assert found.totals["wavefronts_atom"] <= 2 * 4
    assert found.totals["bank_conflicts_atom"] == 0
    assert (atomic.best, atomic.data_dependent) == (found.totals["wavefronts_atom"], True)
    # Served one by one, each of the 4 lanes of a word takes its time.
    assert atomic.worst >= 2 * 4


HALF = "ISETP.GT.AND P2, PT, R1, 0xf, PT; SEL R8, RZ, 0x1, !P2; ISETP.NE.AND P3, PT, R8, RZ, PT"


@pytest.mark.parametrize(("guard", "kept"), [("P2", ()), ("!P2", ("shared",)), ("P3", ("shared",))])
def test_what_is_written_under_a_guard_is_not_asked_for_where_it_is_read_under_it(guard, kept):
    """Nobody reads what was loaded, if the guards are one; only then need shared memory not be followed."""
    lines = f"{HALF}; LDS R5, [R2]; @P2 MOV R5, R3; @{guard} LDS R6, [R5]"
    found = relevance(program("S2R R1, SR_TID.X", COLUMN, lines), ("shared",))
    assert found.kept == set(kept)


def test_results_that_nobody_asks_for_are_not_followed():
    found = relevance(program(HALF, "LDS.64 R4, [R2]; LDS R6, [R5]; LDS.64 R6, [R6]"), ("shared",))
    loads = [step.dests for step in found.steps if step.text.startswith("LDS")]
    assert loads == [("", "R5"), ("R6",), ("", "")]


@pytest.mark.parametrize(("guard", "wavefronts"), [("P2", 16), ("P3", 16), ("!P3", 1), ("P1", 8)])
def test_a_guard_that_was_kept_is_the_same_one(guard, wavefronts):
    """What is stored below the guard is read where it is not what it seems: words of a row, or of a column."""
    lines = f"{HALF}; STS [R2], R2; BAR.SYNC 0x0; ISETP.GT.AND P1, PT, R1, 0x17, PT; LDS R5, [R2]"
    found = counted(COLUMN, lines, f"@P2 MOV R5, R3; @{guard} LDS R6, [R5]")
    assert (found.certain, tallies(found)[-1].wavefronts) == (True, wavefronts)


def test_what_does_not_fit_into_a_memory_is_unknown():
    memory = Bytes(2, 1, b"\7")
    at = np.zeros((2, 32), np.int64)
    rows = np.array([[0], [1]])
    assert (memory.load(rows, at, 1).bits == 7).all()
    assert memory.load(rows, at, 4).unknown.any()
