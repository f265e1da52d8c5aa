"""The machine that evaluates kernels, on programs written by hand."""

import dataclasses

import numpy as np
import pytest

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.hardware.operations import Operation
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.program import (
    Barrier,
    Compute,
    Exit,
    Forget,
    Guard,
    Jump,
    Memory,
    Place,
    Program,
    Reconverge,
    Step,
)
from layoutopt.kernels.question.arrays import used_arrays
from layoutopt.kernels.question.summary import summary
from layoutopt.kernels.read import sass
from layoutopt.report.kernel_text import kernel_report

LOAD = Memory("load", "shared", 4, operation=Operation("load", 4), counter="ld", executed="ld")
STORE = Memory("store", "shared", 4, operation=Operation("store", 4), counter="st", executed="st")


def program(*actions):
    """Steps of an action, what it reads, what it writes and perhaps a guard; then the end."""
    steps = []
    for k, (action, sources, dests, *guard) in enumerate([*actions, (Exit(), (), ())]):
        how = {"sources": sources, "dests": dests, "guard": Guard(*guard) if guard else None}
        steps.append(Step(address=16 * k, text=f"STEP{k}", action=action, **how))
    return Program(name="p", title="p", target="sm_90", steps=tuple(steps))


def add(*constants):
    return Compute(lambda *v: (values.add(*v, *map(values.constant, constants)),))


def shifted(by):
    return Compute(lambda v: (values.shift_left(v, values.constant(by)),))


def less(than):
    return Compute(lambda v: (values.less(v, values.constant(than)),))


def count(p, launch):
    return evaluate(p, launch, device("sm_90"))


# Addresses of the thread's word, and of its row of banks; accesses of these; a predicate that nobody knows.
WORD = (shifted(2), ("$tid.x",), ("a",))
COLUMN = (shifted(7), ("$tid.x",), ("a",))
LOADED = (LOAD, ("a",), ("x",))
STORED = (STORE, ("a", values.ZERO), ())
UNKNOWN = (Memory("load", "global", 4), (values.constant(0, 64),), ("p",))
TOGETHER = (Barrier(), (values.ZERO,), ())


def test_a_column_is_32_way():
    p = program(COLUMN, STORED)
    found = count(p, Launch(block=(64, 1, 1), grid=(3, 5, 1)))
    tally = found.tallies[1]
    assert found.certain
    assert found.evaluated_blocks < 15
    assert (tally.executions, tally.wavefronts, tally.phases) == (30, 960, 30)


def test_blocks_that_differ_are_all_evaluated():
    p = program(
        (shifted(2), ("$ctaid.x",), ("b",)),
        (Compute(lambda a, b: (values.multiply(a, b),)), ("$tid.x", "b"), ("a",)),
        LOADED,
    )
    found = count(p, Launch(block=(32, 1, 1), grid=(5, 1, 1)))
    # Strides of 0 to 4 words.
    assert found.tallies[2].wavefronts == 1 + 1 + 2 + 1 + 4
    assert found.certain


def test_blocks_beside_one_that_is_not_certain_count_for_themselves():
    p = program(
        WORD,
        (less(3), ("$ctaid.y",), ("p",)),
        (LOAD, ("a",), ("x",), "p"),
        (LOAD, ("x",), ("y",), "p"),
    )
    for grid, blocks in (((1, 5, 1), 3), ((1000, 5, 7), 21_000)):
        found = count(p, Launch(block=(32, 1, 1), grid=grid))
        assert not found.certain
        assert found.bounded
        assert found.tallies[2].wavefronts == blocks
        assert (found.tallies[3].best, found.tallies[3].worst) == (blocks, 32 * blocks)


def test_too_many_blocks_beside_one_that_is_not_certain_have_no_worst_case():
    p = program(
        (Compute(lambda a, b: (values.multiply(a, b),)), ("$tid.x", "$ctaid.x"), ("m",)),
        (shifted(2), ("m",), ("a",)),
        (Compute(lambda a: (values.both(a, values.constant(4092)),)), ("a",), ("a",)),
        LOADED,
        (LOAD, ("x",), ("y",)),
    )
    found = count(p, Launch(block=(32, 1, 1), grid=(3_000_000, 1, 1)))
    assert not found.bounded
    assert found.evaluated_blocks < 3_000_000
    assert any("blocks that may differ" in why for why in found.doubts)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (1 << 24 | 64, "of another block of the cluster"),
        (1 << 18, "give the bytes"),
        (0xFFFFFFF0, "give the"),
    ],
)
def test_shared_memory_of_other_blocks_is_not_asked_of_the_launch(address, why):
    p = program((LOAD, (values.constant(address),), ("x",)))
    with pytest.raises(ProblemFileError, match=why):
        count(p, Launch(block=(32, 1, 1)))


def test_divergent_groups_execute_apart_until_they_meet():
    p = program(
        WORD,
        (less(5), ("$tid.x",), ("p",)),
        (Reconverge("mark", "B0"), (), ()),
        (Jump(5), (), (), "p"),
        LOADED,
        LOADED,
        (Reconverge("meet", "B0"), (), ()),
        LOADED,
    )
    found = count(p, Launch(block=(32, 1, 1)))
    assert [found.tallies[k].executions for k in (4, 5, 7)] == [1, 2, 1]


def test_a_loop_with_a_trip_count_of_its_own_for_each_thread():
    p = program(
        (Compute(lambda v: (v,)), ("$tid.x",), ("i",)),
        (LOAD, ("i",), ("x",)),
        (add(4), ("i",), ("i",)),
        (less(64), ("i",), ("p",)),
        (Jump(1), (), (), "p"),
    )
    found = count(p, Launch(block=(64, 1, 1)))
    assert found.tallies[1].executions == 16 + 8


def test_unknown_addresses_are_doubted_and_bounded():
    p = program(
        (Memory("load", "global", 4), (values.constant(0, 64),), ("a",)),
        LOADED,
    )
    found = count(p, Launch(block=(40, 1, 1)))
    tally = found.tallies[1]
    assert not found.certain
    assert (tally.unknown, tally.best, tally.worst) == (2, 2, 40)


def test_values_go_through_shared_memory_after_a_barrier():
    p = program(
        WORD,
        (STORE, ("a", "a"), ()),
        TOGETHER,
        (Compute(lambda v: (values.differ(v, values.constant(4 * 63)),)), ("a",), ("a",)),
        (LOAD, ("a",), ("b",)),
        (LOAD, ("b",), ("c",)),
    )
    assert count(p, Launch(block=(64, 1, 1))).certain
    racy = program(*((a, s, d) for k, (a, s, d) in enumerate(_plain(p)) if k != 2))
    assert not count(racy, Launch(block=(64, 1, 1))).certain


def _plain(p):
    return [(step.action, step.sources, step.dests) for step in p.steps]


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


def unknown_branch(*between):
    """Lanes go to the end of the part between, or through it, as a word of global memory says."""
    return program(
        COLUMN,
        UNKNOWN,
        (Reconverge("mark", "B0"), (), ()),
        (Jump(4 + len(between)), (), (), "p"),
        *between,
        (Reconverge("meet", "B0"), (), ()),
        STORED,
    )


def test_both_ways_of_an_unknown_branch_are_counted():
    p = unknown_branch(LOADED, WORD, LOADED)
    found = count(p, Launch(block=(64, 1, 1)))
    doubt, *_ = found.doubts
    assert "both ways are counted" in doubt
    for k, most in ((4, 64), (6, 2)):
        tally = found.tallies[k]
        assert (tally.wavefronts, tally.unknown, tally.best, tally.worst) == (0, 2, 0, most)
    # Only the lowest bits of the address agree after both ways: it is not known afterwards.
    assert found.tallies[8].unknown == 2


def test_what_both_ways_leave_alone_stays_known():
    p = unknown_branch(LOADED, TOGETHER)
    found = count(p, Launch(block=(64, 1, 1)))
    assert (found.tallies[7].wavefronts, found.tallies[7].unknown) == (64, 0)


def test_a_loop_that_data_ends_is_counted_once_more():
    p = program(
        WORD,
        LOADED,
        UNKNOWN,
        (Jump(1), (), (), "p"),
        STORED,
    )
    found = count(p, Launch(block=(32, 1, 1)))
    assert any("of rounds that it may begin one is counted" in why for why in found.doubts)
    tally = found.tallies[1]
    assert (tally.wavefronts, tally.best, tally.worst) == (1, 0, 1)
    assert found.tallies[4].wavefronts == 1


def test_a_loop_of_unknown_rounds_has_no_worst_case():
    p = program(
        WORD,
        LOADED,
        UNKNOWN,
        (Jump(1), (), (), "p"),
    )
    report = summary(count(p, Launch(block=(32, 1, 1))))
    data = report.to_json()
    assert data["totals"]["wavefronts_worst"] is None
    assert [access["worst"] for access in data["accesses"]] == [None]
    text = kernel_report(report)
    assert "at least 1" in text
    assert "at most" not in text


def test_an_evaluation_that_ends_early_knows_no_worst_case():
    """Nobody knows who waits; what comes behind is not counted, so that nothing is the most there may be."""
    p = program(
        WORD,
        LOADED,
        UNKNOWN,
        (Barrier(), (values.ZERO,), (), "p"),
        (LOAD, ("a",), ("y",)),
    )
    report = summary(count(p, Launch(block=(64, 1, 1))))
    assert report.to_json()["totals"]["wavefronts_worst"] is None
    text = kernel_report(report)
    assert "wavefronts, at least" in text
    assert "no worst case is known" in text


def test_lanes_that_may_have_ended_are_counted_as_such():
    p = program(
        COLUMN,
        UNKNOWN,
        (Exit(), (), (), "p"),
        TOGETHER,
        STORED,
    )
    found = count(p, Launch(block=(32, 1, 1)))
    assert not found.certain
    assert (found.tallies[4].best, found.tallies[4].worst) == (0, 32)


def test_code_that_is_not_at_hand_is_passed_over_and_named():
    p = program(
        COLUMN,
        (shifted(2), ("$tid.x",), ("b",)),
        (Forget("CALL leaves", counts=True), (), ("b",)),
        STORED,
        (STORE, ("b", values.ZERO), ()),
    )
    found = count(p, Launch(block=(32, 1, 1)))
    assert [why for why in found.doubts if "CALL leaves" in why]
    assert (found.tallies[3].wavefronts, found.tallies[4].unknown) == (32, 1)


def test_a_branch_of_lanes_that_are_all_there():
    """BRA.CONV goes on where the mask's lanes are together; BRA.DIV where they are not."""
    for mask, executions in (("CONV", 0), ("DIV", 1)):
        p = program(
            (Jump(2, mask=mask), (values.constant(0xFFFFFFFF),), ()),
            (LOAD, (values.ZERO,), ("x",)),
        )
        tally = count(p, Launch(block=(32, 1, 1))).tallies.get(1)
        assert (tally.executions if tally is not None else 0) == executions


def test_copies_of_one_instruction_use_one_array():
    """As compilers unroll loops: the same lanes, other bytes, one line of the source."""
    p = program(
        WORD,
        (add(1056), ("a",), ("b",)),
        (shifted(5), ("$tid.x",), ("c",)),
        (add(8192), ("c",), ("c",)),
        STORED,
        (STORE, ("b", values.ZERO), ()),
        (STORE, ("c", values.ZERO), ()),
    )
    steps = tuple(dataclasses.replace(step, place=Place("k.cu", 7)) for step in p.steps)
    found = count(dataclasses.replace(p, steps=steps), Launch(block=(64, 1, 1)))
    used = used_arrays(found)
    assert [(one.array.start, one.array.size, one.steps) for one in used] == [
        (0, 1312, (4, 5)),
        (8192, 63 * 32 + 4, (6,)),
    ]


ADDS_FLOATS = """code for sm_90
 Function : adds
 /*0000*/ S2R R7, SR_TID.X ;
 /*0010*/ LOP3.LUT R2, R7, 0xfffffffc, RZ, 0xc0, !PT ;
 /*0020*/ LDS R4, [R2] ;
 /*0030*/ FADD R5, R4, 2 ;
 /*0040*/ ATOMS.CAST.SPIN R5, [R2], R4, R5 ;
 /*0050*/ ISETP.EQ.U32.AND P0, PT, R5, 0x1, PT ;
 /*0060*/ @!P0 BRA 0x20 ;
 /*0070*/ EXIT ;
"""


def test_the_least_of_an_atomic_that_is_tried_again_has_no_conflicts():
    """An H200 counts 2 a warp instruction, 4 of a warp of which 4 lanes each share a word, and no conflicts."""
    (adds,) = sass.from_text(ADDS_FLOATS)
    launch = Launch(block=(32, 1, 1), shared_bytes=32)
    found = summary(evaluate(adds, launch, device("sm_90")))
    (atomic,) = (access for access in found.accesses if access.counter == "atom")
    assert not found.certain
    assert found.totals["wavefronts_atom"] <= 2 * 4
    assert found.totals["bank_conflicts_atom"] == 0
    assert (atomic.best, atomic.data_dependent) == (found.totals["wavefronts_atom"], True)
    # Served one by one, each of the 4 lanes of a word takes its time.
    assert atomic.worst >= 2 * 4


def test_an_atomic_at_an_unknown_address_may_have_no_conflicts():
    atomic = Memory("atomic", "shared", 4, operation=Operation("atomic", 4), counter="atom", executed="atom")
    p = program((Forget("clock"), (), ("x",)), (atomic, ("x",), ()))
    found = summary(evaluate(p, Launch(block=(32, 1, 1)), device("sm_90")))
    assert found.totals["wavefronts_atom"] == 1
    assert found.totals["wavefronts_worst_atom"] == 32
