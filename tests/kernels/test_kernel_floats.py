"""What machine code does with floats and minima, where addresses and branches depend on them."""

import pytest

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import device
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.question.summary import summary
from layoutopt.kernels.read import sass
from layoutopt.kernels.read.files import chosen


def report(*lines):
    code = ["S2R R0, SR_TID.X", *lines, "EXIT"]
    text = "\n".join(f" /*{16 * k:04x}*/ {line} ;" for k, line in enumerate(code))
    (program,) = sass.from_text(f"code for sm_90\n Function : kernel\n{text}\n")
    call = Launch(block=(32, 1, 1))
    return summary(evaluate(program, call, device("sm_90")))


def ways(*lines):
    """Wavefronts of a load from the address in R9 of every lane."""
    found = report(*lines, "LDS R1, [R9]")
    assert found.certain, found.unknown
    return found.totals["wavefronts_ld"]


@pytest.mark.parametrize(
    "lines",
    [
        ("I2F.F64 R2, R0", "DMUL R4, R2, 128", "F2I.F64.TRUNC R9, R4"),
        ("I2F.F64.U32 R2, R0", "DFMA R4, R2, 127, R2", "F2I.F64 R9, R4"),
        ("I2F.F64 R2, R0", "DADD R4, -R2, |R2|", "DFMA R4, R2, 128, -R4", "F2I.F64 R9, R4"),
        ("I2F R2, R0", "F2F.F64.F32 R4, R2", "DMUL R4, R4, 128", "F2F.F32.F64 R6, R4", "F2I.TRUNC R9, R6"),
        ("I2F R2, R0", "FADD R2, R2, 0.25", "FRND.FLOOR R2, R2", "FMUL R2, R2, 128", "F2I R9, R2"),
        ("IMAD R2, R0, 0x80, RZ", "VIMNMX3 R9, R2, 0x7fffff, R2, PT"),
        ("IMAD R2, R0, 0x80, RZ", "VIMNMX3 R9, R2, RZ, R2, !PT"),
    ],
)
def test_numbers_become_addresses(lines):
    assert ways(*lines) == 32


def test_a_reciprocal_in_64_bits_is_repaired_by_what_follows():
    """1 / x as the compiler writes it: an approximation, two steps of Newton's."""
    lines = (
        "VIADD R0, R0, 0x1", "I2F.F64 R4, R0", "MUFU.RCP64H R7, R5", "IMAD.MOV.U32 R6, RZ, RZ, RZ",
        "DFMA R8, -R4, R6, 1", "DFMA R8, R8, R8, R8", "DFMA R8, R6, R8, R6", "DFMA R10, -R4, R8, 1",
        "DFMA R10, R8, R10, R8", "DMUL R10, R10, R4", "DMUL R10, R10, 128", "F2I.F64 R12, R10",
        "IMAD R9, R12, R0, RZ",
    )  # fmt: skip
    assert ways(*lines) == 32


def test_a_division_of_plain_numbers_takes_no_slow_path():
    """Nothing joins lanes behind the branch: it must be decided."""
    lines = ("I2F R2, R0", "FADD R2, R2, 1", "FCHK P0, R2, 3", "@P0 BRA 0x0", "IMAD R9, R0, 0x80, RZ")
    assert ways(*lines) == 32
    assert not report("I2F R2, R0", "FCHK P0, R2, 3", "@P0 BRA 0x0", "LDS R1, [R0]").certain


def test_a_single_lane_cannot_part_at_a_branch():
    """What a slow path between may write is unknown, the lane goes on alone in any case."""
    lines = (
        "LDG.E R2, [R4.64]", "ISETP.EQ.AND P1, PT, R2, RZ, PT", "ISETP.NE.AND P0, PT, R0, RZ, PT",
        "@P0 BRA 0x80", "@P1 BRA 0x70", "VIADD R3, R3, 0x1", "LDS R1, [RZ]",
    )  # fmt: skip
    found = report(*lines)
    assert found.certain
    assert found.totals["wavefronts_ld"] == 1


def test_which_lanes_have_the_same_number():
    lines = ("SHF.R.U32.HI R2, RZ, 0x3, R0", "MATCH.ANY R9, R2", "LOP3.LUT R9, R9, 0x10, RZ, 0xc0, !PT")
    found = report(*lines, "IMAD R9, R9, 0x8, RZ", "LDS R1, [R9]")
    assert found.certain
    assert found.totals["wavefronts_ld"] == 2  # the first eight lanes at byte 128, the others at 0


def test_what_the_disassembler_remarks_is_no_operand():
    found = report("IMAD R9, R0, 0x80, RZ", 'STL [R1+0x8], R9     (*"SpillRefill"*)', "LDS R2, [R9]")
    assert found.certain
    assert found.totals["wavefronts_ld"] == 32


def test_operations_without_a_rule_are_said_and_the_rest_is_counted():
    found = report("IMAD R9, R0, 0x80, RZ", "LDS R2, [R9]", "ATOMS.ADD.64 RZ, [R9], R2")
    assert found.totals["wavefronts_ld"] == 32
    assert found.unknown == ("ATOMS.ADD.64 at 0x30: how sm_90 serves atomic of 8 bytes is not known",)


def test_lanes_end_where_two_conditions_hold():
    lines = ("ISETP.LT.AND P0, PT, R0, 0x8, PT", "ISETP.LT.AND P1, PT, R0, 0x10, PT", "@!P0 EXIT !P1")
    found = report("IMAD R9, R0, 0x80, RZ", *lines, "LDS R1, [R9]")
    assert found.certain
    assert found.totals["wavefronts_ld"] == 16


def test_lanes_are_served_number_by_number():
    """Four numbers of eight lanes each: the loop goes round four times."""
    lines = (
        "SHF.R.U32.HI R2, RZ, 0x3, R0", "ISETP.EQ.AND P1, PT, RZ, RZ, PT", "@P1 R2UR P0, UR4, R2",
        "@P1 PLOP3.LUT P1, PT, P0, PT, PT, 0x80, 0x0", "LDS R1, [RZ]", "@P1 BRA.U.ANY 0x30",
    )  # fmt: skip
    found = report(*lines)
    assert found.certain
    assert found.totals["executed_ld"] == 4


def programs(*titles):
    return [sass.from_text(f"Function : {title}\n /*0000*/ EXIT ;\n", "sm_90")[0] for title in titles]


def test_an_entry_is_named_as_it_is_written():
    found = programs("_Z1kILj128ELb1EEvPf", "_Z1kILj256ELb1EEvPf", "_Z5otherPf")
    assert chosen(found, "k<256, true>") is found[1]
    assert chosen(found, "k<256u,true>") is found[1]
    assert chosen(found, "other") is found[2]
    with pytest.raises(ProblemFileError, match=r"'k' is several kernels: k<128u, true>, k<256u, true>"):
        chosen(found, "k")
    with pytest.raises(ProblemFileError, match=r"none of the kernels .*near it are k<128u"):
        chosen(found, "k<64u, true>")
    with pytest.raises(ProblemFileError, match=r"several kernels: k<128u, true>, .*other"):
        chosen(found, None)


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
    "I2F R2, R0", "LDG.E R3, [R4.64]", "MUFU.RCP R6, R3", "FCHK P0, R2, R3", "BSSY B0, 0xb0",
    "@!P0 BRA 0xa0", "MOV R20, 0xa0", "CALL.REL.NOINC 0xd0", "BSYNC B0", "LDS R1, [R9]", "EXIT",
    "MUFU.RCP R6, R3", "RET.REL.NODEC R20 0x0",
)  # fmt: skip


def test_what_slow_paths_ask_is_not_computed():
    """Nothing between the branch and its meeting point matters: floats do not, nor does what they load."""
    from layoutopt.kernels.machine.branches import sliced

    lines = ("IMAD R9, R0, 0x80, RZ", *SLOW_PATH)
    code = [f" /*{16 * k:04x}*/ {line} ;" for k, line in enumerate(["S2R R0, SR_TID.X", *lines])]
    (program,) = sass.from_text("code for sm_90\n Function : kernel\n" + "\n".join(code))
    found = sliced(program, ("shared", "local"), Budget())
    pairs = zip(program.steps, found.matters, strict=True)
    needed = {step.text.split()[0] for step, matters in pairs if matters}
    assert needed.isdisjoint({"I2F", "LDG.E", "MUFU.RCP", "FCHK", "CALL.REL.NOINC"})
    assert report(*lines).certain


@pytest.mark.parametrize(
    ("between", "wavefronts"), [("VIADD R9, R9, 0x4", 16), ("STS [R9], R0", 32), ("LDS R1, [R9]", 48)]
)
def test_branches_around_what_matters_are_decided(between, wavefronts):
    lines = (
        "IMAD R9, R0, 0x80, RZ", "ISETP.LT.AND P0, PT, R0, 0x10, PT", "BSSY B0, 0x70", "@P0 BRA 0x60", between,
        "BSYNC B0",
    )  # fmt: skip
    found = report(*lines, "LDS R1, [R9]")
    assert found.certain
    assert found.totals["wavefronts_ld"] == wavefronts
    assert found.totals["executed_ld"] + found.totals["executed_st"] == 1 + ("[R9]" in between)


def test_a_sum_of_nothing_is_not_read():
    """A listing cut in the middle: the instruction counts as one that is not known, and what it gives as unknown."""
    assert report("VIADD R9", "LDS R1, [R0]").totals["wavefronts_ld"] == 1
