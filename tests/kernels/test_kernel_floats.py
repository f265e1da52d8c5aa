"""What instructions compute of floats, and what is certain where the GPU only approximates."""

import json
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from machine_code import counted, program

from layoutopt.ground.budget import OutOfTime
from layoutopt.kernels.isa.floats import SPECIAL
from layoutopt.kernels.machine.values import Value
from layoutopt.kernels.program import Compute

RECORD = Path(__file__).parents[1] / "data/h200_floats.json"
EDGES = (0, 1, 0x7FFFFF, 0x800000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000)


def computed(line, *tables, function=None):
    """The bits of R0, and of R1 with two results, of operands R2, R4 and R6 with R3, R5 and R7 behind them."""
    (step, *_) = program(line).steps
    assert isinstance(step.action, Compute)
    cells = {
        f"R{2 + 2 * k + half}": Value(
            (np.uint64(table) >> np.uint64(32 * half) & np.uint64(0xFFFFFFFF))[None]
        )
        for k, table in enumerate(tables)
        for half in (0, 1)
    }
    given = (one.value(*map(cells.get, one.cells)) for one in step.sources)
    with np.errstate(all="ignore"):
        words = [word.bits[0] for word in (function or step.action.function)(*given)]
    return words[0] | words[1] << np.uint64(32) if len(words) > 1 else words[0]


def bits(number, wide=False):
    return int(np.float64(number).view(np.uint64)) if wide else int(np.float32(number).view(np.uint32))


def operands(count=600):
    """Three tables of 32-bit words: edges with each other, numbers near each other or tiny, and any bits."""
    rng = np.random.default_rng(5)
    edges = [edge | sign << 31 for edge in EDGES for sign in (0, 1)]
    near = rng.integers(0x3F000000, 0x41000000, (3, count)) | rng.integers(0, 2, (3, count)) << 31
    tiny = rng.integers(0, 0x02000000, (3, count)) | rng.integers(0, 2, (3, count)) << 31
    small = np.where(rng.random((3, count)) < 0.3, rng.integers(0x2F000000, 0x3F000000, (3, count)), near)
    any_ = rng.integers(0, 1 << 32, (3, count))
    met = rng.choice(edges, (3, 4 * count))
    return np.concatenate([met, near, tiny, small, any_], axis=1).astype(np.uint64)


def rounded(exact, way, zero):
    """The bits of a fraction as a float of 32 bits; `zero`: the sign of a sum of 0."""
    if not exact:
        return zero << 31
    negative, size = exact < 0, abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent = max(exponent - (size < Fraction(2) ** exponent), -126)
    whole, rest = divmod(size / Fraction(2) ** (exponent - 23), 1)
    nearest = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    whole += {"": nearest, ".RZ": False, ".RM": negative and rest > 0, ".RP": not negative and rest > 0}[way]
    # One more of the significand goes into the exponent, which is stored above it.
    found = whole if exponent == -126 and whole < 1 << 23 else ((exponent + 126) << 23) + whole
    if found >= 0x7F800000:
        found = 0x7F7FFFFF if way == ".RZ" or way == (".RP" if negative else ".RM") else 0x7F800000
    return negative << 31 | found


def reference(name, way, words):
    numbers = [np.uint32(word).view(np.float32) for word in words]
    a, b, *c = ([numbers[0], np.float32(1), numbers[1]] if name == "FADD" else numbers)[
        : 2 + (name != "FMUL")
    ]
    with np.errstate(all="ignore"):
        if not np.isfinite([a, b, *c]).all():
            found = np.float32(a * b if not c else np.float64(a) * np.float64(b) + np.float64(c[0]))
            return 0x7FFFFFFF if np.isnan(found) else bits(found)
    product = Fraction(float(a)) * Fraction(float(b))
    signs = {bool(np.signbit(a) ^ np.signbit(b)), *(bool(np.signbit(one)) for one in c)}
    zero = signs.pop() if len(signs) == 1 else way == ".RM"
    return rounded(product + sum(Fraction(float(one)) for one in c), way, zero)


@pytest.mark.parametrize("way", ["", ".RM", ".RP", ".RZ"])
@pytest.mark.parametrize(("name", "read"), [("FADD", "R2, R4"), ("FMUL", "R2, R4"), ("FFMA", "R2, R4, R6")])
def test_sums_and_products_are_exact_and_rounded_once(name, read, way):
    tables = operands()
    found = computed(f"{name}{way} R0, {read}", *tables).tolist()
    for words, one in zip(tables.T.tolist(), found, strict=True):
        assert one == reference(name, way, words), [hex(word) for word in words]


NAN, INF, TINY, LEAST = float("nan"), float("inf"), 2.0**-140, 2.0**-149


@pytest.mark.parametrize(
    ("line", "operands", "expected"),
    [
        ("FADD.FTZ R0, R2, R4", (TINY, -LEAST), 0.0),
        ("FMUL.FTZ R0, R2, R4", (2.0**-100, -(2.0**-40)), -0.0),
        ("FFMA.FTZ.RP R0, R2, R4, R6", (2.0**-100, 2.0**-49, 0.0), 0.0),
        ("FMUL.D2 R0, R2, R4", (3, 5), 7.5),
        ("FADD.SAT R0, R2, R4", (NAN, 1), 0.0),
        ("FADD.SAT R0, R2, R4", (-3, 1), 0.0),
        ("FMNMX R0, R2, R4, PT", (0.0, -0.0), -0.0),
        ("FMNMX R0, R2, R4, !PT", (-0.0, 0.0), 0.0),
        ("FMNMX R0, R2, R4, PT", (NAN, 3), 3.0),
        ("FMNMX.FTZ R0, R2, R4, !PT", (TINY, -1), 0.0),
        ("FRND.CEIL R0, R2", (TINY,), 1.0),
        ("FRND.FTZ.CEIL R0, R2", (TINY,), 0.0),
        ("MUFU.RCP R0, R2", (TINY,), INF),
        ("MUFU.RCP R0, R2", (2.0**127,), 0.0),
        ("MUFU.TANH R0, R2", (TINY,), TINY),
        ("MUFU.SIN R0, R2", (0.25,), 1.0),
        ("MUFU.SIN R0, R2", (-1e-9,), -0.0),
        ("MUFU.COS R0, R2", (3.5,), -1.0),
        ("MUFU.LG2 R0, R2", (8,), 3.0),
        ("MUFU.LG2 R0, R2", (0.125,), -3 + 2.0**-22),
    ],
)
def test_one_float(line, operands, expected):
    assert computed(line, *([bits(one)] for one in operands)).tolist() == [bits(expected)]


@pytest.mark.parametrize(
    ("line", "operand", "expected"),
    [
        ("FADD R0, R2, -R2", bits(INF), 0x7FFFFFFF),
        ("FMNMX.NAN R0, R2, 1, PT", bits(NAN), 0x7FFFFFFF),
        ("F2I.CEIL.NTZ R0, R2", bits(TINY), 1),
        ("F2I.FTZ.CEIL.NTZ R0, R2", bits(TINY), 0),
        ("F2I.FTZ.FLOOR.NTZ R0, R2", bits(-TINY), 0),
        ("F2I.TRUNC.NTZ R0, R2", bits(NAN), 0),
        ("F2I.F64.TRUNC R0, R2", bits(NAN, wide=True), 0x80000000),
        ("F2I.S64.TRUNC R0, R2", bits(NAN), 1 << 63),
        ("F2F.F32.F64.RP R0, R2", bits(1 + 2.0**-40, wide=True), 0x3F800001),
        ("F2F.F32.F64.RZ R0, R2", bits(-1e300, wide=True), 0xFF7FFFFF),
        ("I2F.U32.RM R0, R2", 0xFFFFFFFF, 0x4F7FFFFF),
        # Rounded to 64 bits first, it would be a tie.
        ("I2F.S64 R0, R2", (1 << 62) + (1 << 38) + 1, bits(2.0**62) + 1),
        ("MUFU.RCP64H R0, R2", 0x3FF80000, 0x3FE55555),
    ],
)
def test_one_number(line, operand, expected):
    assert computed(line, [operand]).tolist() == [expected]


def test_nothing_was_measured_outside_the_bounds():
    rows = json.loads(RECORD.read_text())["instructions"]
    approximate = {re.search(r"MUFU\.(\w+)", row["code"])[1]: row for row in rows if "MUFU" in row["code"]}
    assert approximate.keys() == SPECIAL.keys() | {"RCP64H", "RSQ64H"}
    assert all(row.get("outside", 0) == 0 for row in approximate.values())
    assert all(row.get("exact_differ", 0) == 0 for row in approximate.values())
    # Of doubles, what is no number, and a product that is 0 only rounded, is not followed to the bit.
    differ = {row["code"].split()[0] for row in rows if row["differ"] and row not in approximate.values()}
    assert differ <= {"DADD", "DMUL", "DFMA"}


@pytest.mark.parametrize("name", SPECIAL)
def test_approximations_are_moved_as_far_as_they_may_be_off(name):
    (step, *_) = program(f"MUFU.{name} R0, R2").steps
    operand = np.random.default_rng(3).uniform(0.3, 0.45, 400).astype(np.float32).view(np.uint32)
    true, *near = (
        computed(f"MUFU.{name} R0, R2", operand, function=one).astype(np.uint32).view(np.float32)
        for one in (step.action.function, *step.action.near)
    )
    off = [one.astype(np.float64) - true for one in near]
    assert {-1.0, 1.0} == set(np.sign(off[0]) * np.sign(off[2]))
    assert (np.sign(off[::2]) == -np.sign(off[1::2])).all()
    np.testing.assert_allclose(np.abs(off), np.broadcast_to(SPECIAL[name].error(true), (4, 400)), atol=1.2e-7)


FLOAT = "I2F R4, R1"
# To word 32 * R3, so that threads with other numbers have conflicts.
STORE = "SHF.L.U32 R3, R3, 0x7, RZ; LOP3.LUT R3, R3, 0xff80, RZ, 0xc0, !PT; STS [R3], R1"


@pytest.mark.parametrize(
    ("lines", "certain"),
    [
        # No half of 1 / n is near a whole number, but 1 is (1 / n) * n.
        (f"{FLOAT}; FADD R4, R4, 1; MUFU.RCP R5, R4; FMUL R5, R5, 0.5; F2I.TRUNC.NTZ R3, R5; {STORE}", True),
        (f"{FLOAT}; FADD R4, R4, 1; MUFU.RCP R5, R4; FMUL R5, R5, R4; F2I.TRUNC.NTZ R3, R5; {STORE}", False),
        # Of what is exact nothing is off.
        (f"{FLOAT}; MUFU.SIN R5, R4; F2I.TRUNC.NTZ R3, R5; {STORE}", True),
        (f"{FLOAT}; MUFU.EX2 R5, R4; F2I.U32.TRUNC.NTZ R3, R5; {STORE}", True),
        (f"{FLOAT}; MUFU.SQRT R3, R4; {STORE}", False),
        # It decides who stores, not where.
        (
            f"{FLOAT}; MUFU.RSQ R5, R4; FMUL R5, R5, R5; FMUL R5, R5, R4; FSETP.LT.AND P0, PT, R5, 1, PT; "
            "SHF.L.U32 R3, R1, 0x7, RZ; @P0 STS [R3], R1",
            False,
        ),
        # It decides nothing that is executed, or counted.
        (f"{FLOAT}; MUFU.SQRT R5, R4; @!PT STS [R5], R1; STS [R2], R1", True),
        (f"{FLOAT}; MUFU.SQRT R5, R4; STS [R2], R5", True),
    ],
)
def test_what_approximations_decide_is_not_certain(lines, certain):
    found = counted(lines)
    assert found.certain == certain, found.doubts
    if not certain:
        assert re.match(r"MUFU\.\w+ at 0x\w+ is an approximation, its last bits decide", min(found.doubts))


def test_only_those_that_decide_are_named():
    found = counted(
        f"{FLOAT}; FADD R5, R4, 3; MUFU.RCP R5, R5; F2I.TRUNC.NTZ R3, R5; {STORE}; MUFU.SQRT R3, R4; {STORE}"
    )
    assert [why.split()[0] for why in found.doubts if "approximation" in why] == ["MUFU.SQRT"]


def test_integers_are_divided_without_other_errors():
    """The reciprocal of I2F.RP is corrected by integers behind it."""
    ways = {
        line: [step.action for step in program(line, "MUFU.RCP R5, R4").steps if "MUFU" in step.text]
        for line in ("I2F.U32.RP R4, R1", "I2F.U32 R4, R1", "I2F.RP R4, R1; MOV R4, R2")
    }
    assert [len(action.near) for (action,) in ways.values()] == [0, 4, 4]


def test_without_the_time_to_try_other_errors_nothing_is_certain(monkeypatch):
    def late(*_):
        raise OutOfTime

    monkeypatch.setattr("layoutopt.kernels.machine.evaluate._deciding", late)
    found = counted(f"{FLOAT}; MUFU.SQRT R5, R4; STS [R2], R5")
    assert (found.certain, found.bounded) == (False, False)
