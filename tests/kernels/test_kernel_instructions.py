"""What instructions of machine code compute, number by number, and what launches of small kernels do."""

import numpy as np
import pytest
from machine_code import counted, program

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.machine.relevance import relevance
from layoutopt.kernels.machine.values import Value, known
from layoutopt.kernels.program import Compute, Parameter
from layoutopt.kernels.question.arrays import used_arrays
from layoutopt.kernels.question.summary import summary
from layoutopt.kernels.read import sass
from layoutopt.kernels.read.files import chosen


def built(line):
    """The step of an instruction whose result is R0 or P0."""
    step = program(line).steps[0]
    assert isinstance(step.action, Compute)
    return step


def result(line, **cells):
    step = built(line)
    given = {cell: known(np.array([[cells.get(cell, 0)]], np.int64), 64) for cell in step.cells}
    return [int(value.bits[0, 0]) for value in computed(step, given)]


def computed(step, cells):
    return step.action.function(*(one.value(*map(cells.get, one.cells)) for one in step.sources))


EDGES = (0, 1, 2, 3, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF)


def by_halves(of):
    return lambda a, b: sum((of(a >> by & 0xFFFF, b >> by & 0xFFFF) & 0xFFFF) << by for by in (0, 16))


def signed(number, bits=32):
    return number - (1 << bits) if number >> (bits - 1) & 1 else number


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("IADD3 R0, R1, R2, RZ", lambda a, b: a + b),
        ("IADD3 R0, R1, -R2, RZ", lambda a, b: a - b),
        ("VIADD R0, R1, R2", lambda a, b: a + b),
        ("IMAD R0, R1, R2, RZ", lambda a, b: a * b),
        ("IMAD.HI.U32 R0, R1, R2, RZ", lambda a, b: a * b >> 32),
        ("IMAD.HI R0, R1, R2, RZ", lambda a, b: signed(a) * signed(b) >> 32),
        ("LEA R0, R1, R2, 0x3", lambda a, b: (a << 3) + b),
        ("LOP3.LUT R0, R1, R2, RZ, 0xc0, !PT", lambda a, b: a & b),
        ("LOP3.LUT R0, R1, R2, RZ, 0xfc, !PT", lambda a, b: a | b),
        ("LOP3.LUT R0, R1, R2, RZ, 0x3c, !PT", lambda a, b: a ^ b),
        ("LOP3.LUT R0, R1, R2, RZ, 0x30, !PT", lambda a, b: a & ~b),
        ("VIMNMX R0, R1, R2, PT", lambda a, b: min(signed(a), signed(b))),
        ("VIMNMX.U32 R0, R1, R2, !PT", lambda a, b: max(a, b)),
        ("VIADDMNMX R0, R1, 0x1, R2, PT", lambda a, b: min(signed(a + 1 & 0xFFFFFFFF), signed(b))),
        ("VIMNMX.S16x2 R0, R1, R2, PT", by_halves(lambda a, b: min(signed(a, 16), signed(b, 16)))),
        ("VIMNMX.U16x2 R0, R1, R2, !PT", by_halves(max)),
        ("VIMNMX.RELU R0, R1, R2, PT", lambda a, b: max(0, min(signed(a), signed(b)))),
        ("VIADDMNMX.U16x2 R0, R1, R2, R1, PT", by_halves(lambda a, b: min(a + b & 0xFFFF, a))),
        ("VIADD.16x2 R0, R1, -R2", by_halves(lambda a, b: a - b)),
        ("SHF.L.U32 R0, R1, R2, RZ", lambda a, b: a << b if b < 32 else 0),
        ("SHF.R.U32.HI R0, RZ, R2, R1", lambda a, b: a >> b if b < 32 else 0),
        ("SHF.R.S32.HI R0, RZ, R2, R1", lambda a, b: signed(a) >> min(b, 31)),
        ("SHF.L.W.U32.HI R0, R1, R2, R1", lambda a, b: a << (b & 31) | a >> 32 - (b & 31)),
        ("ISETP.LT.AND P0, PT, R1, R2, PT", lambda a, b: signed(a) < signed(b)),
        ("ISETP.GE.U32.AND P0, PT, R1, R2, PT", lambda a, b: a >= b),
        ("ISETP.EQ.OR P0, PT, R1, R2, PT", lambda a, b: True),
        ("ISETP.NE.AND P0, PT, R1, R2, PT", lambda a, b: a != b),
    ],
)
def test_two_operands(line, meaning):
    for a in EDGES:
        for b in EDGES:
            assert result(line, R1=a, R2=b)[0] == int(meaning(a, b)) & 0xFFFFFFFF, (a, b)


@pytest.mark.parametrize(
    ("line", "cells", "expected"),
    [
        ("IMAD.WIDE R0, R1, 0x4, R2", {"R1": 0xFFFFFFFF, "R2": 8, "R3": 0}, [4, 0]),
        ("IMAD.WIDE.U32 R0, R1, 0x2, R2", {"R1": 0xFFFFFFFF, "R2": 3}, [1, 2]),
        ("SGXT.U32 R0, R1, 0x8", {"R1": 0xABCD1234}, [0x34]),
        ("SGXT R0, R1, 0x8", {"R1": 0xABCD12F4}, [0xFFFFFFF4]),
        ("BMSK R0, R1, R2", {"R1": 4, "R2": 8}, [0xFF0]),
        ("PRMT R0, R1, 0x7160, R2", {"R1": 0x33221100, "R2": 0x77665544}, [0x77116600]),
        ("PRMT R0, R1, 0x8, RZ", {"R1": 0x80}, [0x808080FF]),
        ("LOP3.LUT R0, R1, R2, R3, 0x96, !PT", {"R1": 0xF0, "R2": 0xCC, "R3": 0xAA}, [0xF0 ^ 0xCC ^ 0xAA]),
        ("SHF.R.U64 R0, R1, 0x4, R2", {"R1": 0x12345678, "R2": 0x9}, [0x91234567]),
        ("BREV R0, R1", {"R1": 1}, [0x80000000]),
        ("POPC R0, R1", {"R1": 0xF0F0}, [8]),
        ("FLO.U32 R0, R1", {"R1": 0x10000}, [16]),
        ("FLO.U32.SH R0, R1", {"R1": 0x10000}, [15]),
        ("FLO.U32 R0, R1", {}, [0xFFFFFFFF]),
        ("IABS R0, R1", {"R1": 0xFFFFFFFE}, [2]),
        ("SEL R0, R1, R2, P1", {"R1": 7, "R2": 9}, [9]),
        ("PLOP3.LUT P0, PT, P1, P2, PT, 0x80, 0x8", {"P1": 1, "P2": 1}, [1]),
        ("R2P PR, R1, 0x6", {"R1": 4}, [0, 1]),
        ("R2P PR, R1.B1, 0x6", {"R1": 0x404}, [0, 1]),
        ("R2P PR, R1.B1, 0x6", {"R1": 0x004}, [0, 0]),
        ("P2R R0, PR, R1, 0x3", {"R1": 0xF0, "P0": 1, "P1": 0}, [0xF1]),
        ("P2R.B1 R0, PR, R1, 0x3", {"R1": 0xF0F3, "P0": 0, "P1": 1}, [0xF2F3]),
        ("UP2UR UR0, UPR, UR1, 0x3", {"UR1": 0xF0, "UP0": 1, "UP1": 0}, [0xF1]),
        ("F2I.TRUNC R0, R1", {"R1": 0xC0200000}, [0xFFFFFFFE]),
        ("I2F R0, R1", {"R1": 0xFFFFFFFE}, [0xC0000000]),
        ("FSETP.GTU.AND P0, PT, R1, RZ, PT", {"R1": 0x7FC00000}, [1]),
        *(("IADD3 R0, P0, R1, -R2, RZ", {"R1": a, "R2": b}, [a - b & 0xFFFFFFFF, a >= b]) for a, b in ((5, 3), (3, 5), (4, 0))),
        ("IADD3.X R0, R1, ~R2, RZ, P0, !PT", {"R1": 7, "R2": 2, "P0": 1}, [5]),
    ],
)  # fmt: skip
def test_one_result(line, cells, expected):
    assert result(line, **cells) == expected


def test_a_shift_by_an_unknown_amount_is_unknown():
    step = built("SHF.L.U32 R0, R1, R2, RZ")
    hidden = Value(np.zeros((1, 1), np.uint64), np.array([[31]], np.uint64))
    assert not computed(step, {"R1": known(np.array([[5]], np.int64)), "R2": hidden})[0].sure


@pytest.mark.parametrize("read", ["R3", "UR3"])
@pytest.mark.parametrize(("address", "certain"), [("R2", True), ("R8", False)])
def test_a_switch_on_data_is_passed_over_where_its_cases_touch_nothing_shared(read, address, certain):
    found = counted(
        "MOV R8, R2; LDG.E R3, desc[UR4][R6.64]; R2UR UR3, R3; BSSY B0, `(.L_meet)",
        f'BRX{"U" * (read[0] == "U")} {read} -0x70 (*"BRANCH_TARGETS .L_a,.L_b"*)',
        "a:; FADD R8, R9, R9; BRA `(.L_meet); b:; STG.E desc[UR4][R6.64], R9; meet:; BSYNC B0",
        f"STS [{address}], R1",
    )
    assert found.certain == certain
    assert all("the address of STS" in why for why in found.doubts)


@pytest.mark.parametrize(("start", "certain"), [(0, False), (16, True), (32, False)])
def test_constants_that_the_host_fills_are_not_zeros(start, certain):
    table = bytes(16) + b"".join(k.to_bytes(4, "little") for k in (4, 8, 12, 16)) + bytes(16)
    lines = (f"LDC R4, c[0x3][{start + 4:#x}]", "STS [R4], R4")
    kernel = program(*lines, constants={3: table}, unset={3: ((0, 16), (32, 16))})
    assert evaluate(kernel, Launch(block=(32, 1, 1)), device("sm_90")).certain == certain


START = (
    "S2R R1, SR_TID.X; MOV R2, 0x400; IMAD R3, R1, 0x40, R2; IMAD R5, R1, 0x4, R2; IMAD R6, R1, 0x80, R2; "
    "IMAD R4, R1, 0x40, RZ; LOP3.LUT R4, R4, 0x40, RZ, 0x3c, !PT; IADD3 R4, R4, R2, RZ; "
    "IMAD R7, R1, 0x80, RZ; LOP3.LUT R7, R7, 0x1000, RZ, 0x3c, !PT; IADD3 R7, R7, R2, RZ"
)
LOADED = "STS [R3], R1; STS [R5+0x1000], R1; BAR.SYNC 0x0; LDS R8, [R4]; LDS R9, [R5+0x1000]"
ROUND = (
    "MOV R20, RZ; L:; {}; IADD3 R20, R20, 0x1, RZ; ISETP.LT.U32.AND P0, PT, R20, 0x80, PT; @P0 BRA `(.L_L)"
)
EPILOGUE = "STS [R6], R1; BAR.SYNC 0x0; LDS R10, [R7]"


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (f"{LOADED}; BAR.SYNC 0x0; {EPILOGUE}", ["dynamic+0", "dynamic+0 (2)", "dynamic+4096"]),
        (f"{LOADED}; WARPSYNC.ALL; {EPILOGUE}", ["dynamic"]),
        (f"{LOADED}; LDS R11, [R4]; BAR.SYNC 0x0; LDS R12, [R4]; {EPILOGUE}", ["dynamic"]),
        # The epilogue reads what it did not write.
        (f"{LOADED}; BAR.SYNC 0x0; {EPILOGUE}; LDS R13, [R5+0x1000]", ["dynamic"]),
        # What is exchanged again in the same bytes is one array.
        ("STS [R5], R1; BAR.SYNC 0x0; LDS R8, [R5]; BAR.SYNC 0x0; STS [R5], R1", ["dynamic"]),
        # So is what a round of a loop reads where the last one wrote it, and what it has rewritten before.
        (ROUND.format("LDS R8, [R5]; BAR.SYNC 0x0; STS [R5], R1"), ["dynamic"]),
        (
            ROUND.format("STS [R5], R1; LDS R8, [R5]; BAR.SYNC 0x0; STS [R3], R1; BAR.SYNC 0x0"),
            ["dynamic+0", "dynamic+0 (2)"],
        ),
    ],
)
def test_dynamic_memory_holds_arrays_in_turn(body, names):
    """As the epilogue of a GEMM, behind a barrier of the whole block, takes the memory of its operands."""
    kernel = program(START, body, static_bytes=0x400)
    found = evaluate(kernel, Launch(block=(64, 1, 1), shared_bytes=8192), device("sm_90"))
    assert [used.array.name for used in used_arrays(found)] == names
    assert sum(len(used.steps) for used in used_arrays(found)) == len(found.tallies)


def test_members_of_a_structure_are_given_by_their_bytes():
    parameters = (Parameter(0, 4, "first"), Parameter(8, 24, "params"))
    lines = "S2R R2, SR_TID.X; LDC R1, c[0x0][0x224]; IMAD R3, R1, R2, RZ; SHF.L.U32 R3, R3, 0x2, RZ; STS [R3], R2"

    def given(key):
        launch = Launch(block=(32, 1, 1), arguments={key: 32})
        return evaluate(program(lines, parameters=parameters), launch, device("sm_90"))

    for key in ("params+12", "1+12"):
        assert (given(key).certain, given(key).tallies.popitem()[1].wavefronts) == (True, 32)
    for key in ("params+24", "nothing+4", "params+x"):
        with pytest.raises(ProblemFileError, match="--arg"):
            given(key)


def report(*lines):
    kernel = program("S2R R0, SR_TID.X", *lines)
    return summary(evaluate(kernel, Launch(block=(32, 1, 1)), device("sm_90")))


ROW = "IMAD R9, R0, 0x80, RZ"
WORD = "SHF.L.U32 R8, R0, 0x2, RZ"
SOME = "ISETP.LT.U32.AND P1, PT, R0, 0x7, PT"
ONE_FOR_ALL = (
    "LDS R2, [RZ]; ISETP.NE.AND P0, PT, R2, RZ, PT; @P0 BRA 0x60; MOV R4, 0x50; CALL.REL.NOINC 0xa0; NOP; "
    "IMAD R9, R0, 0x4, RZ; STS [R9], R0; EXIT; NOP; VIADD R3, R3, 0x1; RET.REL.NODEC R4 0x0"
)


CERTAIN = {
    "lanes that parted, on ways of different length, go on together": (
        f"{WORD}; BSSY B0, 0x70; {SOME}; @P1 BRA 0x60; VIADD R3, R0, 0x1; NOP; BSYNC B0; STS [R8], R3",
        {"executed_st": 1, "wavefronts_st": 1},
    ),
    "a mask of lanes is saved nowhere, as compilers for sm_75 clear one": (
        f"{WORD}; BSSY B0, 0x40; BMOV.32.CLEAR RZ, B0; STS [R8], R1", {"executed_st": 1},
    ),
    "a mask of lanes is copied": (
        f"{WORD}; BSSY B0, 0x60; BMOV.32 R5, B0; {SOME}; @P1 BRA 0x60; BSYNC B0; STS [R8], R1", {"executed_st": 1},
    ),
    "a mask of lanes is taken away and given back": (
        f"{WORD}; BSSY B0, 0x70; BMOV.32.CLEAR R5, B0; BMOV.32 B0, R5; {SOME}; @P1 BRA 0x70; BSYNC B0; STS [R8], R1",
        {"executed_st": 1},
    ),
    "lanes leave a loop one by one and go on together": (
        f"{WORD}; BSSY B0, 0x80; MOV R3, RZ; STS [R8], R3; VIADD R3, R3, 0x1; ISETP.LT.U32.AND P1, PT, R3, R0, PT; "
        "@P1 BRA 0x40; BSYNC B0; LDS R4, [R8]", {"executed_st": 31, "executed_ld": 1},
    ),
    "a single lane cannot part, though what a slow path writes is unknown": (
        "LDG.E R2, [R4.64]; ISETP.EQ.AND P1, PT, R2, RZ, PT; ISETP.NE.AND P0, PT, R0, RZ, PT; @P0 BRA 0x80; "
        "@P1 BRA 0x70; VIADD R3, R3, 0x1; LDS R1, [RZ]", {"wavefronts_ld": 1},
    ),
    "the first eight lanes, which have the same number, at byte 128, the others at 0": (
        "SHF.R.U32.HI R2, RZ, 0x3, R0; MATCH.ANY R9, R2; LOP3.LUT R9, R9, 0x10, RZ, 0xc0, !PT; IMAD R9, R9, 0x8, RZ; "
        "LDS R1, [R9]", {"wavefronts_ld": 2},
    ),
    "what the disassembler remarks is no operand": (
        f'{ROW}; STL [R1+0x8], R9     (*"SpillRefill"*); LDS R2, [R9]', {"wavefronts_ld": 32},
    ),
    "lanes end where two conditions hold": (
        f"{ROW}; ISETP.LT.AND P0, PT, R0, 0x8, PT; ISETP.LT.AND P1, PT, R0, 0x10, PT; @!P0 EXIT !P1; LDS R1, [R9]",
        {"wavefronts_ld": 16},
    ),
    "four numbers of eight lanes each: the loop goes round four times": (
        "SHF.R.U32.HI R2, RZ, 0x3, R0; ISETP.EQ.AND P1, PT, RZ, RZ, PT; @P1 R2UR P0, UR4, R2; "
        "@P1 PLOP3.LUT P1, PT, P0, PT, PT, 0x80, 0x0; LDS R1, [RZ]; @P1 BRA.U.ANY 0x30", {"executed_ld": 4},
    ),
    "a slow path takes lanes out of a group that it made itself": (
        f"{ROW}; LDS R2, [R9]; ISETP.NE.AND P0, PT, R2, RZ, PT; BSSY B0, 0xb0; @!P0 BRA 0xb0; BSSY B2, 0xa0; "
        "ISETP.LT.AND P1, PT, R2, RZ, PT; @P1 BREAK B2; @P1 BRA 0xb0; BSYNC B2; BSYNC B0; STS [R9], R0",
        {"executed_st": 1},
    ),
    "what a texture holds is unknown and no address": (
        f"{ROW}; TEX.SCR.LL R4, R16, R1, R8, 0x0, 0x60, 2D, 0xf; STS [R9], R4", {"wavefronts_st": 32},
    ),
    "one component of a texture is one register": (
        f"{ROW}; TEX.LL RZ, R8, R16, R1, UR4, 0x0, 2D, 0x1; STS [R9], R8", {"wavefronts_st": 32},
    ),
    # Compilers repair an approximation of 1 / x in 64 bits by two steps of Newton's.
    "a reciprocal in 64 bits is repaired by what follows": (
        "VIADD R0, R0, 0x1; I2F.F64 R4, R0; MUFU.RCP64H R7, R5; IMAD.MOV.U32 R6, RZ, RZ, RZ; DFMA R8, -R4, R6, 1; "
        "DFMA R8, R8, R8, R8; DFMA R8, R6, R8, R6; DFMA R10, -R4, R8, 1; DFMA R10, R8, R10, R8; DMUL R10, R10, R4; "
        "DMUL R10, R10, 128; F2I.F64 R12, R10; IMAD R9, R12, R0, RZ; LDS R1, [R9]", {"wavefronts_ld": 32},
    ),
    # Nothing joins lanes behind the branch: it must be decided.
    "a division of plain numbers takes no slow path": (
        f"I2F R2, R0; FADD R2, R2, 1; FCHK P0, R2, 3; @P0 BRA 0x0; {ROW}; LDS R1, [R9]", {"wavefronts_ld": 32},
    ),
    **{
        f"numbers become addresses: {lines}": (f"{lines}; LDS R1, [R9]", {"wavefronts_ld": 32})
        for lines in (
            "I2F.F64 R2, R0; DMUL R4, R2, 128; F2I.F64.TRUNC R9, R4",
            "I2F.F64.U32 R2, R0; DFMA R4, R2, 127, R2; F2I.F64 R9, R4",
            "I2F.F64 R2, R0; DADD R4, -R2, |R2|; DFMA R4, R2, 128, -R4; F2I.F64 R9, R4",
            "I2F R2, R0; F2F.F64.F32 R4, R2; DMUL R4, R4, 128; F2F.F32.F64 R6, R4; F2I.TRUNC R9, R6",
            "I2F R2, R0; FADD R2, R2, 0.25; FRND.FLOOR R2, R2; FMUL R2, R2, 128; F2I R9, R2",
            "IMAD R2, R0, 0x80, RZ; VIMNMX3 R9, R2, 0x7fffff, R2, PT",
            "IMAD R2, R0, 0x80, RZ; VIMNMX3 R9, R2, RZ, R2, !PT",
        )
    },
    **{
        f"a branch around what matters is decided: {between}": (
            f"{ROW}; ISETP.LT.AND P0, PT, R0, 0x10, PT; BSSY B0, 0x70; @P0 BRA 0x60; {between}; BSYNC B0; LDS R1, [R9]",
            totals,
        )
        for between, totals in (
            ("VIADD R9, R9, 0x4", {"wavefronts_ld": 16, "executed_ld": 1}),
            ("STS [R9], R0", {"wavefronts_ld": 32, "executed_ld": 1, "executed_st": 1}),
            ("LDS R1, [R9]", {"wavefronts_ld": 48, "executed_ld": 2}),
        )
    },
    # As in 1 / s[0]: the slow path is taken by all lanes or by none, and no lanes are told to meet again.
    "lanes that all test the same number do not part": (ONE_FOR_ALL, {"executed_st": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", CERTAIN)
def test_what_is_certain(name):
    lines, totals = CERTAIN[name]
    found = report(lines)
    assert found.certain, found.unknown
    assert found.totals | totals == found.totals


@pytest.mark.parametrize(
    "lines",
    [
        "I2F R2, R0; FCHK P0, R2, 3; @P0 BRA 0x0; LDS R1, [R0]",
        ONE_FOR_ALL.replace("LDS R2, [RZ]", "LDL R2, [R1]"),
        f"IMAD R8, R0, 0x4, RZ; {ONE_FOR_ALL.replace('[RZ]', '[R8]').replace('BRA 0x60', 'BRA 0x70')}",
    ],
)
def test_lanes_that_test_numbers_of_their_own_may_part(lines):
    assert not report(lines).certain


@pytest.mark.parametrize(
    ("atomic", "width"),
    [("ADD.64 RZ, [R9], R2", 8), ("EXCH.128 R4, [R9], R4", 16), ("CAS.128 RZ, [R9], R4, R12", 16)],
)
def test_operations_without_a_rule_are_said_and_the_rest_is_counted(atomic, width):
    """What an atomic leaves is loaded as an address behind it."""
    code = ("IMAD R9, R0, 0x80, RZ", "STS [R9], R9", f"ATOMS.{atomic}", "LDS R2, [R9]", "LDS R3, [R2]")
    found = report(*code)
    assert found.totals["wavefronts_ld"] == 32 + 1
    named, *_ = atomic.split()
    assert found.unknown == (
        f"ATOMS.{named} at 0x30: how sm_90 serves atomic of {width} bytes is not known",
        "the address of LDS at 0x50 is not known",
    )
    assert not found.bounded
    assert any(access.bytes == width and access.array for access in found.accesses)


def programs(*titles):
    return [sass.from_text(f"Function : {title}\n /*0000*/ EXIT ;\n", "sm_90")[0] for title in titles]


def test_an_entry_is_named_as_it_is_written():
    found = programs("_Z1kILj128ELb1EEvPf", "_Z1kILj256ELb1EEvPf", "_Z5otherPf")
    assert chosen(found, "k<256, true>") is found[1]
    assert chosen(found, "k<256u,true>") is found[1]
    assert chosen(found, "other") is found[2]
    with pytest.raises(ProblemFileError, match=r"'k' is several kernels: 1 k<128u, true>, 2 k<256u, true>"):
        chosen(found, "k")
    with pytest.raises(ProblemFileError, match=r"none of the kernels .*near it are 1 k<128u"):
        chosen(found, "k<64u, true>")
    with pytest.raises(ProblemFileError, match=r"choose one, as in --entry 1: 1 k<128u, true>, .*, 3 other"):
        chosen(found, None)
    assert chosen(found, "3") is found[2]
    assert chosen(found, "k<25*") is found[1]
    with pytest.raises(ProblemFileError, match=r"'k<\*' is several kernels: 1 k<128u, true>, 2 k"):
        chosen(found, "k<*")
    (hidden,) = programs("_ZN1m12_GLOBAL__N_11kEPf")
    assert hidden.title == "m::k(float*)"
    assert chosen([hidden, *found], "m::(anonymous namespace)::k") is hidden


@pytest.mark.parametrize(
    ("product", "registers"),
    [
        ("HMMA.16816.F16 R4, R12, R14, R4", 2),
        ("HMMA.16816.F32.BF16 R4, R12, R14, R4", 4),
        ("HMMA.1684.F32.TF32 R4, R12, R14, R4", 4),
        ("IMMA.16816.U8.U8 R4, R12.ROW, R14.COL, R4", 4),
        ("IMMA.8816.S8.S8 R4, R12.ROW, R14.COL, R4", 2),
        ("DMMA.8x8x4 R4, R12, R14, R4", 4),
        ("DMMA.16x8x8 R4, R12, R14, R4", 8),
    ],
)
def test_matrix_products_write_as_many_registers_as_their_results_take(product, registers):
    """What lies behind them stays known: kernels keep addresses there."""
    for k in range(8):
        found = report(f"IMAD R{4 + k}, R0, 0x80, RZ", product, f"LDS R1, [R{4 + k}]")
        assert found.certain == (k >= registers)


SLOW_PATH = (
    f"{ROW}; I2F R2, R0; LDG.E R3, [R4.64]; MUFU.RCP R6, R3; FCHK P0, R2, R3; BSSY B0, 0xb0; @!P0 BRA 0xa0; MOV R20, 0xa0; "
    "CALL.REL.NOINC 0xd0; BSYNC B0; LDS R1, [R9]; EXIT; MUFU.RCP R6, R3; RET.REL.NODEC R20 0x0"
)


def test_what_slow_paths_ask_is_not_computed():
    """Nothing between the branch and its meeting point matters: floats do not, nor does what they load."""
    kernel = program("S2R R0, SR_TID.X", SLOW_PATH)
    found = relevance(kernel, ("shared", "local"))
    pairs = zip(kernel.steps, found.matters, strict=True)
    needed = {step.text.split()[0] for step, matters in pairs if matters}
    assert needed.isdisjoint({"I2F", "LDG.E", "MUFU.RCP", "FCHK", "CALL.REL.NOINC"})
    assert report(SLOW_PATH).certain


@pytest.mark.parametrize(
    ("how", "read", "address"),
    [
        ("POPC", "B2R.RESULT R3; SHF.L.U32 R4, R3, 0x2, RZ", 40),
        ("OR", "B2R.RESULT RZ, P1; SEL R4, 0x4, RZ, P1", 4),
        ("AND", "B2R.RESULT RZ, P1; SEL R4, 0x4, RZ, P1", 0),
    ],
)
def test_a_barrier_tells_of_how_many_threads_a_predicate_holds(how, read, address):
    """Of threads 0 to 9, in the first of two warps: of some and not of all."""
    joined = f"ISETP.GE.AND P0, PT, R1, 0xa, PT; BAR.RED.{how}.DEFER_BLOCKING 0x0, !P0; {read}; STS [R4], R1"
    found = counted(joined, threads=64)
    (tally,) = found.tallies.values()
    assert found.certain, found.doubts
    assert (tally.low, tally.executions) == (address, 2)
