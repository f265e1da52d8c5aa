"""Kernels of any length: reading and evaluating them asks the clock, and refuses what would fill memory."""

from types import SimpleNamespace

import pytest
from machine_code import program

from layoutopt.errors import ProblemFileError
from layoutopt.ground import budget
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import device
from layoutopt.hardware.tools import ended
from layoutopt.kernels.machine import relevance
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.ptx import text as ptx_text
from layoutopt.kernels.ptx.text import read_ptx
from layoutopt.kernels.read import files, sass

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{ .reg .b32 %r<9>;\n"
BODY = "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; st.shared.b32 [%r2], %r1; ret; }"
STORE = ("S2R R1, SR_TID.X", "SHF.L.U32 R2, R1, 0x2, RZ", "STS [R2], R1")
SASS = "code for sm_90\n Function : kernel\n /*0000*/ EXIT ;\n"


def spent():
    return Budget(0)


@pytest.mark.parametrize(
    "work",
    [
        lambda: read_ptx(HEAD + BODY, "k.ptx", spent()),
        lambda: sass.from_text(SASS, None, spent()),
        lambda: evaluate(program(*STORE), Launch(block=(32, 1, 1)), device("sm_90"), budget=spent()),
        lambda: relevance.relevance(program(*STORE), budget=spent()),
    ],
)
def test_without_time_nothing_is_read_or_evaluated(work):
    with pytest.raises(OutOfTime):
        work()


def test_what_is_too_large_is_said(monkeypatch):
    monkeypatch.setattr(relevance, "MOST_LIVE", 1)
    with pytest.raises(ProblemFileError, match="the kernel is too large: more than 1 live values"):
        relevance.relevance(program(*STORE))
    monkeypatch.setattr(ptx_text, "MAX_STATEMENTS", 4)
    with pytest.raises(ProblemFileError, match="expected at most 4 statements"):
        read_ptx(HEAD + BODY, "k.ptx")


def test_a_disassembler_that_never_ends_is_out_of_time(tmp_path, monkeypatch):
    with pytest.raises(OutOfTime, match="sleep worked"):
        ended(["sleep", "60"], budget=Budget(0.1))
    endless, kernel = tmp_path / "nvdisasm", tmp_path / "k.cubin"
    endless.write_text("#!/bin/sh\nsleep 60\n")
    endless.chmod(0o755)
    monkeypatch.setattr(files, "find_tool", lambda _: str(endless))
    monkeypatch.setattr(files.elf, "sections", lambda _: ())
    monkeypatch.setattr(files.elf, "is_cubin", lambda _: True)
    kernel.write_bytes(b"damaged")
    with pytest.raises(OutOfTime, match="nvdisasm worked"):
        files.programs(kernel, budget=Budget(0.1))


def test_the_time_that_a_compiler_takes_is_not_counted(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def compiled(*_):
        clock[0] += 1000
        return b"cubin"

    source = tmp_path / "k.cu"
    source.write_text("")
    monkeypatch.setattr(files, "compile_source", compiled)
    left = []
    monkeypatch.setattr(files, "_from_cubin", lambda _, budget: left.append(budget.seconds) or ())
    files.programs(source, budget=Budget(10))
    assert left == [10]
