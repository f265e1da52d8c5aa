"""Long loops counted without executing every round, against executing every round."""

import contextlib
import random

import numpy as np
import pytest

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.kernels import lines, loops, values
from layoutopt.kernels.evaluate import evaluate
from layoutopt.kernels.launch import Launch
from layoutopt.kernels.ptx_program import programs

KERNEL = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u32 n, .param .u64 p)
{{
 .reg .b32 %r<100>;
 .reg .b64 %d<10>;
 .reg .pred %p<40>;
 .shared .align 16 .b8 t[16384];
 ld.param.u32 %r1, [n];
 ld.param.u64 %d1, [p];
 mov.u32 %r2, %tid.x;
{before}
ROUND:
{body}
 @%p0 bra ROUND;
 ret;
}}
"""
COUNTED = """
 add.u32 %r3, %r3, {step};
 setp.lt.u32 %p0, %r3, %r1;"""


def kernel(before, body):
    (program,) = programs(KERNEL.format(before=before, body=body))
    return program


def counted(program, rounds, **options):
    launch = Launch(block=(64, 1, 1), arguments={"0": rounds, "1": "pointer"})
    found = evaluate(program, launch, device("sm_90"), **options)
    tallies = [(t.executions, t.wavefronts, t.phases, t.unknown) for t in found.tallies.values()]
    return tallies, found.certain


def test_a_loop_of_a_million_rounds_that_store_alike():
    body = "shl.b32 %r4, %r2, 4;\n st.shared.b32 [%r4], %r2;\n bar.sync 0;" + COUNTED.format(step=1)
    assert counted(kernel("mov.u32 %r3, 0;", body), 1_000_000, most_steps=2000) == (
        [(2_000_000, 8_000_000, 2_000_000, 0)],
        True,
    )


def test_stages_that_are_counted_by_themselves():
    before = "mov.u32 %r3, 0;\n mov.u32 %r5, 0;"
    body = (
        "mad.lo.u32 %r4, %r2, 4, %r5;\n st.shared.b32 [%r4], %r2;\n add.u32 %r5, %r5, 1024;\n"
        "setp.eq.u32 %p1, %r5, 3072;\n selp.b32 %r5, 0, %r5, %p1;" + COUNTED.format(step=1)
    )
    tallies, certain = counted(kernel(before, body), 1_000_000, most_steps=4000)
    assert certain
    assert tallies == [(2_000_000, 2_000_000, 2_000_000, 0)]


def test_a_loop_in_a_loop():
    before = "mov.u32 %r3, 0;"
    body = (
        "mov.u32 %r6, 0;\nINNER:\n shl.b32 %r7, %r6, 5;\n and.b32 %r7, %r7, 1023;\n mad.lo.u32 %r4, %r2, 4, %r7;\n"
        "ld.shared.b32 %r8, [%r4];\n add.u32 %r6, %r6, 1;\n setp.ne.u32 %p1, %r6, 500;\n @%p1 bra INNER;"
        + COUNTED.format(step=2)
    )
    tallies, certain = counted(kernel(before, body), 2_000, most_steps=20_000)
    assert certain
    assert tallies == [(2 * 1_000 * 500,) * 3 + (0,)]


def test_a_loop_that_ends_where_numbers_are_equal_has_no_more_rounds():
    """Later rounds are none, though the numbers differ in them, too."""
    body = (
        "popc.b32 %r5, %r3;\n mad.lo.u32 %r4, %r5, 128, %r2;\n and.b32 %r4, %r4, 0xffc;\n"
        "st.shared.b32 [%r4], %r2;\n add.u32 %r3, %r3, 4;\n setp.ne.u32 %p0, %r3, 0x3ff;"
    )
    tallies, certain = counted(kernel("mov.u32 %r3, 3;", body), 0)
    assert (tallies, certain) == counted(kernel("mov.u32 %r3, 3;", body), 0, every_round=True)
    assert tallies[0][0] == 2 * 255


def test_a_loop_that_cannot_be_counted_at_once_is_refused_by_its_length():
    body = (
        "popc.b32 %r5, %r3;\n mad.lo.u32 %r4, %r5, 128, %r2;\n and.b32 %r4, %r4, 0xffc;\n"
        "st.shared.b32 [%r4], %r2;" + COUNTED.format(step=1)
    )
    with pytest.raises(ProblemFileError, match=r"--max-steps: about [\d,]+ steps are needed for the loop"):
        counted(kernel("mov.u32 %r3, 0;", body), 1_000_000)


def test_a_loop_in_which_nothing_changes_is_named():
    body = "ld.shared.b32 %r5, [%r3];\n setp.ne.u32 %p0, %r1, 0;"
    launch = Launch(block=(64, 1, 1), arguments={"0": 7, "1": "pointer"})
    found = evaluate(kernel("mov.u32 %r3, 0;", body), launch, device("sm_90"))
    assert any("waits for ever" in why for why in found.doubts)


def test_unknown_addresses_are_counted_in_every_round():
    body = "ld.global.u32 %r4, [%d1];\n ld.shared.b32 %r5, [%r4];" + COUNTED.format(step=1)
    assert counted(kernel("mov.u32 %r3, 0;", body), 100_000) == ([(200_000, 0, 0, 200_000)], False)


OPERATIONS = (
    "add.u32 {d}, {a}, {c};", "sub.u32 {d}, {a}, {c};", "sub.u32 {d}, {c}, {a};", "mul.lo.u32 {d}, {a}, {c};",
    "mul.hi.u32 {d}, {a}, -1431655765;", "rem.u32 {d}, {a}, 3;", "div.s32 {d}, {a}, 5;",
    "mad.lo.s32 {d}, {a}, -3, {b};", "shl.b32 {d}, {a}, {s};",
    "shr.u32 {d}, {a}, {s};", "shr.s32 {d}, {a}, {s};", "and.b32 {d}, {a}, {m};", "xor.b32 {d}, {a}, {m};",
    "add.u32 {d}, {a}, {b};", "sub.u32 {d}, {a}, {b};", "min.u32 {d}, {a}, {c};", "max.s32 {d}, {a}, {b};",
    "setp.lt.u32 {p}, {a}, {c};\n selp.b32 {d}, {a}, {b}, {p};",
    "setp.ge.s32 {p}, {a}, {b};\n @{p} add.u32 {d}, {a}, 4;",
)  # fmt: skip


def random_body(draw):
    lines_ = []
    for k in range(draw.randint(2, 7)):
        names = [f"%r{n}" for n in (2, 3, 5, 6, *range(20, 20 + k))]
        lines_.append(
            draw.choice(OPERATIONS).format(
                d=f"%r{20 + k}", p=f"%p{10 + k}", a=draw.choice(names), b=draw.choice(names),
                c=draw.choice((1, 3, 4, 100, 1024, 65536)), s=draw.randint(1, 9),
                m=draw.choice((3, 15, 0x7C, 0xFFC, 0xF0F)),
            )
        )  # fmt: skip
        lines_.append(f"and.b32 %r{50 + k}, %r{20 + k}, 0xffc;\n st.shared.b32 [%r{50 + k}], %r2;")
    more = draw.choice(("add.u32 %r6, %r6, 12;", "xor.b32 %r6, %r6, 64;", "sub.u32 %r6, %r6, 4;", ""))
    zeros = "\n".join(f"mov.u32 %r{20 + k}, 0;" for k in range(8))
    before = f"mov.u32 %r3, {draw.choice((0, 5))};\n mov.u32 %r6, 8;\n shl.b32 %r5, %r2, 2;\n{zeros}"
    return before, "\n".join([*lines_, more]) + COUNTED.format(step=draw.choice((1, 2, 3)))


@pytest.mark.parametrize("seed", range(16))
def test_random_loops_cost_what_their_rounds_cost(seed, monkeypatch):
    monkeypatch.setattr(loops, "FIRST_ROUND", 4)
    monkeypatch.setattr(loops, "_LONGEST_PERIOD", 64)
    monkeypatch.setattr(loops, "_WORTH_STEPS", 0)
    program = kernel(*random_body(random.Random(seed)))
    rounds = 120 + seed
    assert counted(program, rounds) == counted(program, rounds, every_round=True)


def test_random_loops_are_often_counted_at_once():
    done = 0
    for seed in (0, 1, 2, 4, 5, 8, 10):
        with contextlib.suppress(ProblemFileError):
            done += counted(kernel(*random_body(random.Random(seed))), 1 << 20)[1]
    assert done == 5


def test_what_is_said_of_every_round_holds_in_every_round():
    """Lines of all kinds through every operation, against plain numbers round by round."""
    draw = random.Random(1)
    operations = {
        "add": lambda a, b: values.add(a, b),
        "subtract": lambda a, b: values.subtract(a, b),
        "multiply": lambda a, b: values.multiply(a, b),
        "wide": lambda a, b: values.multiply(a, b, 64),
        "high": lambda a, b: values.high(values.multiply(values.extend(a, 32), values.extend(b, 32), 64)),
        "left": lambda a, b: values.shift_left(a, values.both(b, values.constant(7))),
        "right": lambda a, b: values.shift_right(a, values.both(b, values.constant(7))),
        "signed right": lambda a, b: values.shift_right_signed(a, values.constant(3)),
        "less": lambda a, b: values.less(a, b),
        "not above": lambda a, b: values.less(a, b, is_signed=False, or_equal=True),
        "equal": values.equal,
        "not": lambda a, b: values.invert(a),
        "negate": lambda a, b: values.negate(a),
        "and": lambda a, b: values.both(a, b),
        "least": lambda a, b: values.least(a, b),
        "join": lambda a, b: values.join(a, values.both(b, values.constant(0xFF))),
        "choose": lambda a, b: values.select(values.both(a, values.constant(1)), a, b),
    }
    for _ in range(80):
        most = draw.choice((1, 3, 9))
        span = lines.Span(most)

        def drawn(span=span):
            start = np.array(
                [[draw.choice((0, 5, 1 << 20, (1 << 31) - 9, 1 << 31, (1 << 32) - 40)) for _ in "ab"]]
            )
            slope = np.array([[draw.choice((0, 1, 3, 4, -4, 1 << 16)) for _ in "ab"]])
            rounds = [values.known(start + slope * q) for q in range(span.most + 1)]
            even = values.of_line(start, slope, span, 32)
            return (
                (even, rounds)
                if even is not None and draw.random() < 0.8
                else (rounds[0], rounds[:1] * len(rounds))
            )

        (a, plain_a), (b, plain_b) = drawn(), drawn()
        for name, operation in operations.items():
            found = operation(a, b)
            hidden = np.uint64(0) if found.unknown is None else found.unknown
            for q, (x, y) in enumerate(zip(plain_a, plain_b, strict=True)):
                expected = operation(x, y).bits
                assert (expected & ~hidden == found.bits).all(), name
                if found.line is not None:
                    assert (expected == (found.line.start + found.line.slope * q).astype(np.uint64)).all(), (
                        name
                    )
