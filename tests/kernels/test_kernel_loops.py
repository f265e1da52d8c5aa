"""Long loops counted without executing every round, against executing every round."""

import contextlib
import random

import numpy as np
import pytest
from machine_code import program

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.kernels.machine import loops
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.groups import Group
from layoutopt.kernels.machine.launch import Launch, arguments
from layoutopt.kernels.machine.registers import Registers
from layoutopt.kernels.machine.values import unknown
from layoutopt.kernels.program import Parameter


def kernel(before, body):
    start = ("LDC R1, c[0x0][0x210]", "S2R R2, SR_TID.X")
    parameters = (Parameter(0, 4), Parameter(8, 8, pointer=True))
    return program(*start, *before, "ROUND:", *body, "@P0 BRA `(.L_ROUND)", parameters=parameters)


def ends(step):
    """Where a round ends that R3 counts up to R1."""
    return (f"IADD3 R3, R3, {step:#x}, RZ", "ISETP.LT.U32.AND P0, PT, R3, R1, PT")


def counted(*asked, **options):
    return counts_of(evaluation(*asked, **options))


def counts_of(found):
    tallies = [(t.executions, t.wavefronts, t.phases, t.unknown) for t in found.tallies.values()]
    return tallies, found.certain


def traced(found):
    """Of each step in the traces: warps, lanes and the sum of their addresses, over all rounds."""

    def sums(one):
        parts = (len(one.warps), one.lanes.sum(), np.where(one.lanes, one.address, 0).sum())
        return np.array(parts, np.int64) * one.times

    return {index: sum(map(sums, ones)).tolist() for index, ones in found.traces.items()}


def evaluation(program_, rounds, every_round=False, blocks=1, at_once=False, **options):
    launch = Launch(block=(64, 1, 1), grid=(blocks, 1, 1), arguments={"0": rounds})
    with pytest.MonkeyPatch.context() as patch:
        if every_round:
            patch.setattr(loops.Loops, "__call__", lambda *_: None)
        if at_once:
            patch.setattr(loops, "WORTH_STEPS", 0)
        return evaluate(program_, launch, device("sm_90"), **options)


def costs_what_its_rounds_cost(*asked, **options):
    """However short the loop is, what is counted at once is what executing every round gives; so are the traces."""
    one, other = (evaluation(*asked, **{way: True}, **options) for way in ("at_once", "every_round"))
    assert counts_of(one) == counts_of(other)
    assert traced(one) == traced(other)


ZERO = ("MOV R3, RZ",)
STORE_ALIKE = ("SHF.L.U32 R4, R2, 0x4, RZ", "STS [R4], R2", "BAR.SYNC 0x0")
# What comes before a loop and what it repeats, R1 of the launch, its blocks, the steps that are enough; the rounds of
# each of two warps in all blocks, and the wavefronts of one.
LONG = {
    "many rounds that store alike": (
        ZERO, (*STORE_ALIKE, *ends(1)), 50_000, 1, 2000, (50_000, 4),
    ),
    "stages that are counted by themselves": (
        (*ZERO, "MOV R5, RZ"),
        ("IMAD R4, R2, 0x4, R5; STS [R4], R2; IADD3 R5, R5, 0x400, RZ",
         "ISETP.EQ.U32.AND P1, PT, R5, 0xc00, PT; SEL R5, RZ, R5, P1", *ends(1)),
        50_000, 1, 4000, (50_000, 1),
    ),
    "a loop in a loop": (
        ZERO,
        ("MOV R6, RZ; INNER:; SHF.L.U32 R7, R6, 0x5, RZ; LOP3.LUT R7, R7, 0x3ff, RZ, 0xc0, !PT; IMAD R4, R2, 0x4, R7",
         "LDS R8, [R4]; IADD3 R6, R6, 0x1, RZ; ISETP.NE.U32.AND P1, PT, R6, 0x1f4, PT; @P1 BRA `(.L_INNER)", *ends(2)),
        100, 1, 20_000, (50 * 500, 1),
    ),
    "rounds that do the same are executed once, however many there are, in each block another number": (
        (*ZERO, "S2R R60, SR_CTAID.X; IMAD R1, R60, 0x3, R1"), (*STORE_ALIKE, *ends(1)),
        300_000, 5, 400, (sum(300_000 + 3 * block for block in range(5)), 4),
    ),
    "blocks that leave one after another are not followed round by round": (
        (*ZERO, "S2R R60, SR_CTAID.X; IADD3 R1, R60, 0x3, RZ"),
        (*STORE_ALIKE[:2], *["NOP", "BAR.SYNC 0x0"] * 9, *ends(1)),
        0, 100, 300, (sum(block + 3 for block in range(100)), 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_rounds_are_counted_in_few_steps(name):
    before, body, rounds, blocks, steps, (executed, wavefronts) = LONG[name]
    found = counted(kernel(before, body), rounds, blocks=blocks, most_steps=steps)
    assert found == ([(2 * executed, 2 * executed * wavefronts, 2 * executed, 0)], True)


POPULATION = ("POPC R5, R3", "IMAD R4, R5, 0x80, R2", "LOP3.LUT R4, R4, 0xffc, RZ, 0xc0, !PT", "STS [R4], R2")


def test_a_loop_that_ends_where_numbers_are_equal_has_no_more_rounds():
    """Later rounds are none, though the numbers differ in them, too."""
    body = (*POPULATION, "IADD3 R3, R3, 0x4, RZ", "ISETP.NE.U32.AND P0, PT, R3, 0x3ff, PT")
    program_ = kernel(("MOV R3, 0x3",), body)
    assert counted(program_, 0) == counted(program_, 0, every_round=True)
    assert counted(program_, 0)[0][0][0] == 2 * 255


def test_a_loop_whose_rounds_hand_on_what_they_compute_is_refused_where_it_is_too_long():
    body = ("IMAD R5, R5, 0x5, R3", "LOP3.LUT R4, R5, 0xffc, RZ, 0xc0, !PT", "STS [R4], R2", *ends(1))
    with pytest.raises(ProblemFileError, match="--max-steps: more steps are needed"):
        counted(kernel((*ZERO, "MOV R5, R2"), body), 1_000_000, most_steps=2000)


def test_a_loop_in_which_nothing_changes_is_named():
    found = evaluation(kernel(ZERO, ("LDS R5, [R3]", "ISETP.NE.U32.AND P0, PT, R1, RZ, PT")), 7)
    assert any("waits for ever" in why for why in found.doubts)


def test_unknown_addresses_are_counted_in_every_round():
    body = ("LDG.E R4, desc[UR4][R8.64]", "LDS R5, [R4]", *ends(1))
    assert counted(kernel(ZERO, body), 10_000) == ([(20_000, 0, 0, 20_000)], False)


OPERATIONS = (
    ("IADD3 {d}, {a}, {c:#x}, RZ",), ("IADD3 {d}, {a}, -{c:#x}, RZ",), ("IADD3 {d}, -{a}, {c:#x}, RZ",),
    ("IMAD {d}, {a}, {c:#x}, RZ",), ("IMAD.HI.U32 {d}, {a}, 0xaaaaaaab, RZ",), ("IMAD {d}, {a}, -0x3, {b}",),
    ("SHF.L.U32 {d}, {a}, {s:#x}, RZ",), ("SHF.R.U32.HI {d}, RZ, {s:#x}, {a}",),
    ("SHF.R.S32.HI {d}, RZ, {s:#x}, {a}",), ("LOP3.LUT {d}, {a}, {m:#x}, RZ, 0xc0, !PT",),
    ("LOP3.LUT {d}, {a}, {m:#x}, RZ, 0x3c, !PT",), ("IADD3 {d}, {a}, {b}, RZ",), ("IADD3 {d}, {a}, -{b}, RZ",),
    ("VIMNMX.U32 {d}, {a}, {c:#x}, PT",), ("VIMNMX {d}, {a}, {b}, !PT",), ("LEA {d}, {a}, {b}, 0x2",),
    ("ISETP.LT.U32.AND {p}, PT, {a}, {c:#x}, PT", "SEL {d}, {a}, {b}, {p}"),
    ("ISETP.GE.AND {p}, PT, {a}, {b}, PT", "@{p} IADD3 {d}, {a}, 0x4, RZ"),
)  # fmt: skip


def random_body(draw):
    lines_ = []
    for k in range(draw.randint(2, 7)):
        names = [f"R{n}" for n in (2, 3, 5, 6, *range(20, 20 + k))]
        given = {
            "d": f"R{20 + k}", "p": f"P{1 + k % 6}", "a": draw.choice(names), "b": draw.choice(names),
            "c": draw.choice((1, 3, 4, 100, 1024, 65536)), "s": draw.randint(1, 9),
            "m": draw.choice((3, 15, 0x7C, 0xFFC, 0xF0F)),
        }  # fmt: skip
        lines_ += [line.format(**given) for line in draw.choice(OPERATIONS)]
        lines_ += [f"LOP3.LUT R{50 + k}, R{20 + k}, 0xffc, RZ, 0xc0, !PT", f"STS [R{50 + k}], R2"]
    more = ("IADD3 R6, R6, 0xc, RZ", "LOP3.LUT R6, R6, 0x40, RZ, 0x3c, !PT", "IADD3 R6, R6, -0x4, RZ", "NOP")
    start = draw.choice(("MOV R3, RZ", "MOV R3, 0x5"))
    zeros = [f"MOV R{20 + k}, RZ" for k in range(8)]
    before = (start, "MOV R6, 0x8", "SHF.L.U32 R5, R2, 0x2, RZ", *zeros)
    return before, (*lines_, draw.choice(more), *ends(draw.choice((1, 2, 3))))


@pytest.mark.parametrize("seed", range(16))
def test_random_loops_cost_what_their_rounds_cost(seed):
    costs_what_its_rounds_cost(kernel(*random_body(random.Random(seed))), 120 + seed)


@pytest.mark.parametrize("seed", range(8))
def test_blocks_go_round_as_often_as_each_does(seed):
    """Of an outer loop the blocks go through other rounds, and through other rounds of an inner one."""
    draw = random.Random(seed)
    before, body = random_body(draw)
    inner = "IADD3 R61, R61, 0x1, RZ; ISETP.LT.U32.AND P6, PT, R61, R62, PT; @P6 BRA `(.L_INNER)"
    mine = f"S2R R60, SR_CTAID.X; IMAD R1, R60, {draw.randint(0, 3):#x}, R1; IADD3 R62, R60, 0x14, RZ"
    other = draw.choice(("NOP", "IMAD R6, R60, 0x40, R6", "BAR.SYNC 0x0"))
    store = draw.choice(("STS [R5], R2", "STS [R5+0x40], R2", "STS [R5], R61", "NOP"))
    nested = (*body[:-2], "MOV R61, RZ; INNER:", store, other, inner, *body[-2:])
    costs_what_its_rounds_cost(kernel((*before, mine), nested), 9, blocks=6)


LANES_PART = ("BSSY B0, `(.L_MET)", "ISETP.GE.U32.AND P5, PT, R2, R3, PT; @P5 BRA `(.L_SKIP); STS [R5], R3")
MEET = ("SKIP:", "BSYNC B0", "MET:", "NOP")


@pytest.mark.parametrize("rounds", [21, 22, 43])
def test_all_may_leave_in_the_first_of_two_rounds_that_repeat(rounds):
    toggles = "LOP3.LUT R6, R6, 0x40, RZ, 0x3c, !PT; STS [R6], R2"
    before = (*ZERO, "MOV R6, 0x8; SHF.L.U32 R5, R2, 0x2, RZ")
    costs_what_its_rounds_cost(kernel(before, (toggles, *LANES_PART, *MEET, *ends(2))), rounds)


@pytest.mark.parametrize(
    "part", [(), ("BAR.SYNC 0x0",), (*LANES_PART, *MEET), (*LANES_PART[1:], "SKIP:", "NOP")]
)
@pytest.mark.parametrize(
    "bound",
    ["MOV R62, 0x9", "IADD3 R62, R3, 0x1, RZ", "LOP3.LUT R62, R3, 0x7, RZ, 0xc0, !PT",
     "LOP3.LUT R62, R2, 0x3, RZ, 0xc0, !PT"],
)  # fmt: skip
def test_loops_in_loops_in_loops_cost_what_their_rounds_cost(bound, part):
    """Rounds of an outer loop are executed side by side, with leaps of the loops inside them."""
    inner = (
        "MOV R63, RZ; INNER:; STS [R5], R2; IADD3 R63, R63, 0x1, RZ; ISETP.LT.U32.AND P1, PT, R63, R62, PT"
    )
    middle = ("MOV R61, RZ", bound, "MIDDLE:", inner, "@P1 BRA `(.L_INNER); STS [R4], R2", *part)
    again = "IADD3 R61, R61, 0x1, RZ; ISETP.LT.U32.AND P2, PT, R61, 0xc, PT; @P2 BRA `(.L_MIDDLE)"
    before = (*ZERO, "SHF.L.U32 R5, R2, 0x2, RZ; SHF.L.U32 R4, R2, 0x4, RZ")
    program_ = kernel(before, (*middle, again, "IADD3 R4, R4, 0x4, RZ", *ends(1)))
    costs_what_its_rounds_cost(program_, 10)


def test_rounds_of_several_blocks_whose_memory_is_held():
    """What is loaded is an address, and of what is loaded where nobody stored, nothing is known in any block."""
    mine = "S2R R60, SR_CTAID.X; IMAD R60, R60, 0x84, R2; SHF.L.U32 R4, R60, 0x2, RZ; MOV R6, R60"
    body = (
        "STS [R4], R4; BAR.SYNC 0x0; LDS R5, [R4]; STS [R5], R2; LOP3.LUT R7, R6, 0xffc, RZ, 0xc0, !PT",
        "STS [R7], R2; LDS R8, [R2+0x7000]; IADD3 R6, R5, R8, RZ", *ends(1),
    )  # fmt: skip
    costs_what_its_rounds_cost(kernel((*ZERO, mine), body), 90, blocks=5)


def test_random_loops_are_often_counted_at_once():
    done = 0
    for seed in (0, 1, 2, 4):
        with contextlib.suppress(ProblemFileError):
            done += counted(kernel(*random_body(random.Random(seed))), 1 << 13, most_steps=4000)[1]
    assert done == 4


def test_what_lanes_of_all_warps_have_alike_those_of_some_have():
    code, launch = program("NOP"), Launch(block=(64, 1, 1))
    cells = Registers(code, launch, arguments(code, launch), np.zeros((1, 3), np.int64))
    every = Group(0, np.arange(2), cells.live)
    rounds = cells.rounds(every, {"R1": unknown()._replace(alike=np.ones((1, 1), bool))}, 2)
    assert rounds.alike(Group(0, np.array([1, 3]), cells.live), ["R1"]).all()
