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
from layoutopt.kernels.program import Array, Place
from layoutopt.kernels.question.arrays import used_arrays
from layoutopt.kernels.question.summary import summary
from layoutopt.report.kernel_text import kernel_report

# R1 is the thread, R2 its word; R3 its row of banks, P1 a predicate that nobody knows.
COLUMN = "IMAD R3, R1, 0x80, RZ"
HIDDEN = "LDG.E R4, desc[UR4][R6.64]"
UNKNOWN = (HIDDEN, "ISETP.NE.AND P1, PT, R4, RZ, PT")


def tallies(found):
    """What is counted of each instruction on shared memory, in the order of the code."""
    return [found.tallies[k] for k in sorted(found.tallies)]


def test_a_column_is_32_way():
    found = counted(COLUMN, "STS [R3], RZ", threads=64, grid=(3, 5, 1))
    (tally,) = tallies(found)
    assert found.certain
    assert found.evaluated_blocks < 15
    assert (tally.executions, tally.wavefronts, tally.phases) == (30, 960, 30)


def test_blocks_that_differ_are_all_evaluated():
    lines = ("S2R R3, SR_CTAID.X", "IMAD R3, R2, R3, RZ", "LDS R4, [R3]")
    found = counted(*lines, grid=(5, 1, 1))
    # Strides of 0 to 4 words.
    assert [tally.wavefronts for tally in tallies(found)] == [1 + 1 + 2 + 1 + 4]
    assert found.certain


@pytest.mark.parametrize(("grid", "blocks"), [((1, 5, 1), 3), ((1000, 5, 7), 21_000)])
def test_blocks_beside_one_that_is_not_certain_count_for_themselves(grid, blocks):
    lines = ("S2R R3, SR_CTAID.Y", "ISETP.LT.AND P1, PT, R3, 0x3, PT", "@P1 LDS R4, [R2]", "@P1 LDS R5, [R4]")
    found = counted(*lines, grid=grid)
    first, second = tallies(found)
    assert not found.certain
    assert found.bounded
    assert first.wavefronts == blocks
    assert (second.best, second.worst) == (blocks, 32 * blocks)


def test_too_many_blocks_beside_one_that_is_not_certain_have_no_worst_case():
    lines = ("S2R R3, SR_CTAID.X", "IMAD R3, R2, R3, RZ", "LOP3.LUT R3, R3, 0xffc, RZ, 0xc0, !PT")
    found = counted(*lines, "LDS R4, [R3]", "LDS R5, [R4]", grid=(3_000_000, 1, 1))
    assert not found.bounded
    assert found.evaluated_blocks < 3_000_000
    assert any("blocks that may differ" in why for why in found.doubts)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (1 << 24 | 64, "of another block of the cluster"),
        (1 << 18, "give its dynamic shared memory"),
        (0xFFFFFFF0, "give its dynamic"),
    ],
)
def test_shared_memory_of_other_blocks_is_not_asked_of_the_launch(address, why):
    with pytest.raises(ProblemFileError, match=why):
        counted(f"MOV R3, {address:#x}", "LDS R4, [R3]")


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ((Array("s", 0x400, 0x200),), r"s has 512 bytes, .* reaches byte 516 of it: is --block right"),
        ((), r"a block has 1,536: give its dynamic shared memory \(at least --shared 4\)"),
    ],
)
def test_shared_memory_that_is_left_says_what_a_block_has(arrays, why):
    code = program("MOV R3, 0x600", "LDS R4, [R3]", static_bytes=0x600, arrays=arrays)
    with pytest.raises(ProblemFileError, match=why):
        evaluate(code, Launch(block=(32, 1, 1)), device("sm_90"))


def test_divergent_groups_execute_apart_until_they_meet():
    found = counted(
        "ISETP.LT.AND P1, PT, R1, 0x5, PT", "BSSY B0, `(.L_M)", "@P1 BRA `(.L_A)", "LDS R4, [R2]",
        "A:", "LDS R4, [R2]", "M:", "BSYNC B0", "LDS R4, [R2]",
    )  # fmt: skip
    assert [tally.executions for tally in tallies(found)] == [1, 2, 1]


def test_a_loop_with_a_trip_count_of_its_own_for_each_thread():
    lines = ("MOV R3, R1", "L:", "LDS R4, [R3]", "VIADD R3, R3, 0x4", "ISETP.LT.AND P1, PT, R3, 0x40, PT")
    found = counted(*lines, "@P1 BRA `(.L_L)", threads=64)
    assert [tally.executions for tally in tallies(found)] == [16 + 8]


def test_unknown_addresses_are_doubted_and_bounded():
    found = counted(HIDDEN, "LDS R5, [R4]", threads=40)
    (tally,) = tallies(found)
    assert not found.certain
    assert (tally.unknown, tally.best, tally.worst) == (2, 2, 40)


def test_values_go_through_shared_memory_after_a_barrier():
    read = ("LOP3.LUT R3, R2, 0xfc, RZ, 0x3c, !PT", "LDS R4, [R3]", "LDS R5, [R4]")
    assert counted("STS [R2], R2", "BAR.SYNC 0x0", *read, threads=64).certain
    assert not counted("STS [R2], R2", *read, threads=64).certain


@pytest.mark.parametrize("load", ["M88", "MT88"])
@pytest.mark.parametrize("store", ["M88", "MT88"])
def test_matrices_go_through_registers(load, store):
    """Each half holds its own place; rows of four matrices are loaded in another order, and stored."""
    found = counted(
        "SHF.L.U32 R5, R1, 0x4, RZ",
        "LOP3.LUT R4, R5, 0x50, RZ, 0x3c, !PT",
        "IMAD R8, R5, 0x10001, 0x20000",
        *(f"IADD3 R{8 + k}, R8, {0x40004 * k:#x}, RZ" for k in (1, 2, 3)),
        "STS.128 [R5], R8",
        f"LDSM.16.{load}.4 R12, [R4]",
        "LOP3.LUT R6, R12, 0xffff, RZ, 0xc0, !PT",
        "LDS.U16 R7, [R6]",
        f"STSM.16.{store}.4 [R5+0x200], R12",
        *(line for k in range(8) for line in (f"LDS.U16 R6, [R5+{0x200 + 2 * k:#x}]", "LDS.U16 R7, [R6]")),
        shared_bytes=1024,
    )
    assert found.certain
    loads = [
        found.traces[k][0].address[0] for k in sorted(found.traces) if "[R6]" in found.program.steps[k].text
    ]
    place = 16 * (np.arange(32) ^ 5).reshape(4, 8, 1) + 2 * np.arange(8)
    lane = np.arange(32)
    own = (lane // 4, 2 * (lane % 4)) if load == "M88" else (2 * (lane % 4), lane // 4)
    assert (loads[0] == place[0][own]).all()
    stored = place if load == store else place.swapaxes(1, 2)
    assert (np.array(loads[1:]) == stored.reshape(32, 8).T).all()


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
    made = [
        values.Value(
            np.array([[pair[k][0] for pair in pairs]], np.uint64),
            np.array([[pair[k][1] for pair in pairs]], np.uint64),
        )
        for k in (0, 1)
    ]
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


def test_a_loop_that_begins_at_its_block_is_one_for_all_blocks():
    """for (k = 16 * block; k < 16 * block + 16 && k < size; k += 4)"""
    lines = ("S2R R3, SR_CTAID.X", "IMAD.SHL.U32 R3, R3, 0x10, RZ", "IADD3 R4, R3, 0x10, RZ", "L:")
    ends = ("ISETP.LT.AND P1, PT, R3, R4, PT", "ISETP.LT.AND P1, PT, R3, 0xfff5, P1", "@P1 BRA `(.L_L)")
    found = counted(*lines, "LDS R6, [R2]", "IADD3 R3, R3, 0x4, RZ", *ends, grid=(4096, 1, 1))
    assert found.certain
    assert found.evaluated_blocks <= 3
    assert [tally.wavefronts for tally in tallies(found)] == [4095 * 4 + 2]


def unknown_branch(*between):
    """Lanes go to the end of the part between, or through it, as a word of global memory says."""
    meeting = ("BSSY B0, `(.L_M)", "@P1 BRA `(.L_M)", *between, "M:", "BSYNC B0")
    return counted(COLUMN, *UNKNOWN, *meeting, "STS [R3], RZ", threads=64)


def test_both_ways_of_an_unknown_branch_are_counted():
    found = unknown_branch("LDS R5, [R3]", "MOV R3, R2", "LDS R5, [R3]")
    doubt, *_ = found.doubts
    assert "both ways are counted" in doubt
    *between, after = tallies(found)
    for tally, most in zip(between, (64, 2), strict=True):
        assert (tally.wavefronts, tally.unknown, tally.best, tally.worst) == (0, 2, 0, most)
    # Only the lowest bits of the address agree after both ways: it is not known afterwards.
    assert after.unknown == 2


def test_what_both_ways_leave_alone_stays_known():
    _, after = tallies(unknown_branch("LDS R5, [R3]", "BAR.SYNC 0x0"))
    assert (after.wavefronts, after.unknown) == (64, 0)


ROUNDS = ("L:", "LDS R5, [R2]", *UNKNOWN, "@P1 BRA `(.L_L)")


def test_a_loop_that_data_ends_is_counted_once_more():
    found = counted(*ROUNDS, "STS [R2], RZ")
    assert any("of rounds that it may begin one is counted" in why for why in found.doubts)
    inside, after = tallies(found)
    assert (inside.wavefronts, inside.best, inside.worst) == (1, 0, 1)
    assert after.wavefronts == 1


def test_a_loop_of_unknown_rounds_has_no_worst_case():
    report = summary(counted(*ROUNDS))
    data = report.to_json()
    assert data["totals"]["wavefronts_worst"] is None
    assert [access["worst"] for access in data["accesses"]] == [None]
    text = kernel_report(report)
    assert "at least 1" in text
    assert "at most" not in text


def test_an_evaluation_that_ends_early_knows_no_worst_case():
    """Nobody knows who waits; what comes behind is not counted, so that nothing is the most there may be."""
    lines = ("LDS R5, [R2]", *UNKNOWN, "@P1 BAR.SYNC 0x0", "LDS R6, [R2]")
    report = summary(counted(*lines, threads=64))
    assert report.to_json()["totals"]["wavefronts_worst"] is None
    text = kernel_report(report)
    assert "wavefronts, at least" in text
    assert "no worst case is known" in text


def test_lanes_that_may_have_ended_are_counted_as_such():
    found = counted(COLUMN, *UNKNOWN, "@P1 EXIT", "BAR.SYNC 0x0", "STS [R3], RZ")
    (tally,) = tallies(found)
    assert not found.certain
    assert (tally.best, tally.worst) == (0, 32)


def test_code_that_is_not_at_hand_is_passed_over_and_named():
    """A function that is called keeps what its caller keeps in registers from R16 on."""
    lines = ("IMAD R16, R1, 0x80, RZ", "MOV R3, R2", "CALL.REL.NOINC `(elsewhere)")
    found = counted(*lines, "STS [R16], RZ", "STS [R3], RZ")
    assert [why for why in found.doubts if "CALL" in why]
    kept, lost = tallies(found)
    assert (kept.wavefronts, lost.unknown) == (32, 1)


@pytest.mark.parametrize(("mask", "executions"), [("CONV", []), ("DIV", [1])])
def test_a_branch_of_lanes_that_are_all_there(mask, executions):
    """BRA.CONV goes on where the mask's lanes are together; BRA.DIV where they are not."""
    found = counted("UMOV UR4, 0xffffffff", f"BRA.{mask} UR4, `(.L_A)", "LDS R4, [RZ]", "A:", "NOP")
    assert [tally.executions for tally in tallies(found) if tally.executions] == executions


def test_copies_of_one_instruction_use_one_array():
    """As compilers unroll loops: the same lanes, other bytes, one line of the source."""
    kernel = program(
        "S2R R1, SR_TID.X", "IMAD R2, R1, 0x4, RZ", "IMAD R3, R1, 0x20, RZ",
        "STS [R2], RZ", "STS [R2+0x420], RZ", "STS [R3+0x2000], RZ",
    )  # fmt: skip
    steps = tuple(msgspec.structs.replace(step, place=Place("k.cu", 7)) for step in kernel.steps)
    launch = Launch(block=(64, 1, 1), shared_bytes=16384)
    used = used_arrays(evaluate(msgspec.structs.replace(kernel, steps=steps), launch, device("sm_90")))
    assert [(one.array.start, one.array.size, one.steps) for one in used] == [
        (0, 1312, (3, 4)),
        (8192, 63 * 32 + 4, (5,)),
    ]


def test_the_least_of_an_atomic_that_is_tried_again_has_no_conflicts():
    """An H200 counts 2 a warp instruction, 4 of a warp of which 4 lanes each share a word, and no conflicts."""
    found = summary(counted(
        "LOP3.LUT R3, R1, 0xfffffffc, RZ, 0xc0, !PT", "L:", "LDS R4, [R3]", "FADD R5, R4, 2",
        "ATOMS.CAST.SPIN R5, [R3], R4, R5", "ISETP.EQ.U32.AND P0, PT, R5, 0x1, PT", "@!P0 BRA `(.L_L)",
        shared_bytes=32,
    ))  # fmt: skip
    (atomic,) = (access for access in found.accesses if access.counter == "atom")
    assert not found.certain
    assert found.totals["wavefronts_atom"] <= 2 * 4
    assert found.totals["bank_conflicts_atom"] == 0
    assert (atomic.best, atomic.data_dependent) == (found.totals["wavefronts_atom"], True)
    # Served one by one, each of the 4 lanes of a word takes its time.
    assert atomic.worst >= 2 * 4


def test_an_atomic_at_an_unknown_address_may_have_no_conflicts():
    found = summary(counted("CS2R R3, SR_CLOCKLO", "ATOMS.ADD RZ, [R3], R1"))
    assert found.totals["wavefronts_atom"] == 1
    assert found.totals["wavefronts_worst_atom"] == 32


def test_whom_lanes_meet_behind_an_unknown_branch_is_what_it_was_before():
    """One way leaves those who wait behind it; those who come all the same are counted."""
    left = ("BSSY B1, `(.L_M)", *UNKNOWN, "@!P1 BRA `(.L_B)", "LDS R5, [R2]", "BREAK B1", "BRA `(.L_B)")
    found = counted(*left, "B:", "STS [R2], RZ", "M:", "BSYNC B1", "LDS R5, [R2]")
    assert found.bounded
    assert [tally.worst + tally.wavefronts for tally in tallies(found)] == [1, 1, 1]


# P2 and P3 are the same lanes: the upper half of the warp; R8 keeps it, as compilers keep predicates.
HALF = ("ISETP.GT.AND P2, PT, R1, 0xf, PT", "SEL R8, RZ, 0x1, !P2", "ISETP.NE.AND P3, PT, R8, RZ, PT")


@pytest.mark.parametrize(("guard", "kept"), [("P2", ()), ("!P2", ("shared",)), ("P3", ("shared",))])
def test_what_is_written_under_a_guard_is_not_asked_for_where_it_is_read_under_it(guard, kept):
    """Nobody reads what was loaded, if the guards are one; only then need shared memory not be followed."""
    lines = (*HALF, "LDS R5, [R2]", "@P2 MOV R5, R3", f"@{guard} LDS R6, [R5]")
    found = relevance(program("S2R R1, SR_TID.X", COLUMN, *lines), ("shared",))
    assert found.kept == set(kept)
    assert not found.bold


def test_results_that_nobody_asks_for_are_not_followed():
    found = relevance(program(*HALF, "LDS.64 R4, [R2]", "LDS R6, [R5]", "LDS.64 R6, [R6]"), ("shared",))
    loads = [step.dests for step in found.steps if step.text.startswith("LDS")]
    assert loads == [("", "R5"), ("R6",), ("", "")]


@pytest.mark.parametrize(("guard", "wavefronts"), [("P2", 16), ("P3", 16), ("!P3", 1), ("P1", 8)])
def test_a_guard_that_was_kept_is_the_same_one(guard, wavefronts):
    """What is stored below the guard is read where it is not what it seems: words of a row, or of a column."""
    lines = (*HALF, "STS [R2], R2", "BAR.SYNC 0x0", "ISETP.GT.AND P1, PT, R1, 0x17, PT", "LDS R5, [R2]")
    found = counted(COLUMN, *lines, "@P2 MOV R5, R3", f"@{guard} LDS R6, [R5]")
    assert found.certain
    assert tallies(found)[-1].wavefronts == wavefronts
    kept = [relevance(found.program, ("shared",), bold=bold).kept for bold in (True, False)]
    assert kept == [set(), set() if guard == "P2" else {"shared"}]


def test_what_does_not_fit_into_a_memory_is_unknown():
    memory = Bytes(2, 1, b"\7")
    at = np.zeros((2, 32), np.int64)
    rows = np.array([[0], [1]])
    assert (memory.load(rows, at, 1).bits == 7).all()
    assert memory.load(rows, at, 4).unknown.any()
