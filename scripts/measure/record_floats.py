"""Compare what instructions compute of floats with a GPU, and measure how far its approximations are off.

    python scripts/measure/record_floats.py --write FOLDER     here: the operands and the program
    python scripts/measure/record_floats.py --measure FOLDER   on the GPU, with nvcc: h200_floats.json

Operands are random bits, denormals, numbers near 1 and up to 1,000, integers, powers of two, and edges. The
program computes each instruction of PTX with all of them; `layoutopt.kernels.isa.floats` does the same with
the machine code that it becomes. `tests/data/h200_floats.json` is what it wrote.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import on_gpu

from layoutopt.codegen.templates import filled_text, parts_of
from layoutopt.kernels.isa.floats import SPECIAL
from layoutopt.kernels.isa.listing import functions
from layoutopt.kernels.isa.table import steps
from layoutopt.kernels.machine.values import Value, cut, high
from layoutopt.kernels.program import Compute

PARTS: Final = parts_of(Path(__file__).with_suffix(".cu").read_text())
COUNT: Final = 1 << 16
_MODES: Final = {"": "rn", ".RM": "rm", ".RP": "rp", ".RZ": "rz"}
_WHOLE: Final = {"": "rni", ".FLOOR": "rmi", ".CEIL": "rpi", ".TRUNC": "rzi"}
_INTEGERS: Final = {"": "s32", ".U32": "u32", ".S64": "s64", ".U64": "u64"}
_EDGES: Final = (
    0x0,
    0x1,
    0x7FFFFF,
    0x800000,
    0x800001,
    0x3EFFFFFF,
    0x3F000000,
    0x4B000000,
    0x4EFFFFFF,
    0x4F000000,
    0x5F000000,
    0x7F7FFFFF,
    0x7F800000,
    0x7F800001,
)


def instructions() -> Iterator[tuple[str, str]]:
    """Machine code whose operands are R2, R4 and R6 and whose result is R0, and the PTX that becomes it."""
    for f, ftz in (("", ""), (".FTZ", ".ftz")):
        for m, mode in _MODES.items():
            yield f"FADD{f}{m} R0, R2, R4", f"add.{mode}{ftz}.f32 %0, %1, %2;"
            yield f"FMUL{f}{m} R0, R2, R4", f"mul.{mode}{ftz}.f32 %0, %1, %2;"
            yield f"FFMA{f}{m} R0, R2, R4, R6", f"fma.{mode}{ftz}.f32 %0, %1, %2, %3;"
        yield f"FADD{f}.SAT R0, R2, R4", f"add{ftz}.sat.f32 %0, %1, %2;"
        yield f"FFMA{f}.SAT R0, R2, R4, R6", f"fma.rn{ftz}.sat.f32 %0, %1, %2, %3;"
        for nan, name in (("", ""), (".NAN", ".NaN")):
            yield f"FMNMX{f}{nan} R0, R2, R4, PT", f"min{ftz}{name}.f32 %0, %1, %2;"
            yield f"FMNMX{f}{nan} R0, R2, R4, !PT", f"max{ftz}{name}.f32 %0, %1, %2;"
        for m, mode in _WHOLE.items():
            yield f"FRND{f}{m} R0, R2", f"cvt.{mode}{ftz}.f32.f32 %0, %1;"
            for i, kind in {".U32": "u32", "": "s32"}.items():
                yield f"F2I{f}{i}{m}.NTZ R0, R2", f"cvt.{mode}{ftz}.{kind}.f32 %0, %1;"
    yield "F2F.F64.F32 R0, R2", "cvt.f64.f32 %0, %1;"
    for i, kind in _INTEGERS.items():
        for m, mode in _WHOLE.items():
            yield f"F2I{i}.F64{m} R0, R2", f"cvt.{mode}.{kind}.f64 %0, %1;"
            if "64" in i:
                yield f"F2I{i}{m} R0, R2", f"cvt.{mode}.{kind}.f32 %0, %1;"
        for m, mode in _MODES.items():
            yield f"I2F{i}{m} R0, R2", f"cvt.{mode}.f32.{kind} %0, %1;"
        yield f"I2F.F64{i} R0, R2", f"cvt.rn.f64.{kind} %0, %1;"
    for m, mode in _MODES.items():
        yield f"F2F.F32.F64{m} R0, R2", f"cvt.{mode}.f32.f64 %0, %1;"
    yield "DADD R0, R2, R4", "add.f64 %0, %1, %2;"
    yield "DMUL R0, R2, R4", "mul.f64 %0, %1, %2;"
    yield "DFMA R0, R2, R4, R6", "fma.rn.f64 %0, %1, %2, %3;"
    for name, ptx in (("RCP", "rcp"), ("RSQ", "rsqrt"), ("SQRT", "sqrt"), ("EX2", "ex2"), ("LG2", "lg2")):
        yield f"MUFU.{name} R0, R2", f"{ptx}.approx.ftz.f32 %0, %1;"
    yield "MUFU.TANH R0, R2", "tanh.approx.f32 %0, %1;"
    for name, ptx in (("SIN", "sin"), ("COS", "cos")):
        yield f"FMUL.RZ R2, R2, 0.15915493667125701904; MUFU.{name} R0, R2", f"{ptx}.approx.ftz.f32 %0, %1;"
    for name, ptx in (("RCP64H", "rcp"), ("RSQ64H", "rsqrt")):
        yield f"MUFU.{name} R1, R3", f"{ptx}.approx.ftz.f64 %0, %1;"


def _wide(ptx: str) -> tuple[bool, bool]:
    """Whether the result and the operands of an instruction have 64 bits."""
    kinds = [part for part in ptx.split()[0].split(".") if part[1:] in ("32", "64")]
    return "64" in kinds[0], "64" in kinds[-1]


def operands() -> npt.NDArray[np.uint64]:
    """Three tables of words, and three of doubles, near floats of 32 bits or between two, or of any bits."""
    rng, shape = np.random.default_rng(1), (3, COUNT)
    kind, bits = rng.integers(0, 9, shape), rng.integers(0, 1 << 64, shape, np.uint64)
    whole = rng.integers(0, 1 << 24, shape) >> rng.integers(0, 24, shape)

    def of(numbers: npt.NDArray[Any] | float) -> npt.NDArray[np.uint32]:
        return np.float32(numbers).view(np.uint32)

    small, large, power = rng.random(shape) * 4, rng.random(shape) * 1000, 2.0 ** (whole % 277 - 149)
    found = np.choose(
        kind,
        [bits % 2**32, bits % 2**23, of(small), of(large), of(whole), of(whole * whole / 4), of(power),
         np.array(_EDGES)[whole % len(_EDGES)], of(1.0) + bits % 4096 - 2048],
    )  # fmt: skip
    words = np.uint32(found) ^ np.uint32(bits >> 32 & 2**31)
    low = np.array([0, 1, 2**28, 2**28 - 1, 2**28 + 1, 2**29 - 1])[whole % 6]
    doubles = np.where(bits % 4 > 0, np.float64(words.view(np.float32)).view(np.int64) + low, np.int64(bits))
    return np.concatenate([np.uint64(words), doubles.view(np.uint64)])


def source() -> str:
    """The program."""
    kernels, rows = [], []
    for k, (_, ptx) in enumerate(instructions()):
        result, given = _wide(ptx)
        kind = {(False, False): "WORDS", (True, True): "DOUBLES", (False, True): "NARROWER"}
        kernels.append(f'{kind.get((result, given), "WIDER")}(k{k}, "{ptx}")')
        rows.append(f"{{k{k}, {given:d}}}")
    host = filled_text(PARTS["host"], TABLE=", ".join(rows), COUNT=COUNT)
    return PARTS["start"] + "\n".join(kernels) + "\n" + host


def write(folder: Path) -> None:
    """Write the operands and the program."""
    with np.errstate(invalid="ignore"):  # of what is no number
        operands().tofile(folder / "operands")
    (folder / "floats.cu").write_text(source())


def measure(folder: Path) -> None:
    """Run the program, and compare."""
    program = on_gpu.built(folder / "floats.cu")
    on_gpu.printed(program, folder / "operands", folder / "results", check=True)
    rows = list(compared(folder))
    on_gpu.write_record(folder / "h200_floats.json", ABOUT, {"operands": COUNT, "instructions": rows})


ABOUT: Final = (
    "What a GPU computes of floats: of every instruction, how many results differ from the evaluation. Of "
    "approximations the greatest errors, in units in the last place, and absolute of results below 2; how "
    "many exact results there are and how many of them differ; how many are outside the bounds."
)


def compared(folder: Path) -> Iterator[dict[str, Any]]:
    """Each instruction with its results on the GPU."""
    given = np.fromfile(folder / "operands", np.uint64).reshape(6, COUNT)
    every = np.fromfile(folder / "results", np.uint64).reshape(-1, COUNT)
    for (lines, ptx), found in zip(instructions(), every, strict=True):
        result, wide = _wide(ptx)
        cells: dict[str, Value] = {}
        for k, table in enumerate(given[3 * wide :][:3]):
            whole = Value(table[None])
            cells |= {f"R{2 + 2 * k}": cut(whole), f"R{3 + 2 * k}": high(whole)}
        with np.errstate(all="ignore"):
            ours = _evaluated(lines, cells)
            bits = ours["R0"].bits[0] if "R0" in ours else np.zeros(COUNT, np.uint64)
            bits = bits | ours["R1"].bits[0] << np.uint64(32) if result else bits
            row: dict[str, Any] = {"code": lines, "ptx": ptx, "differ": int((bits != found).sum())}
            yield row | (_errors(lines, cells, bits, found) if "MUFU" in lines else {})
        if row["differ"] and "MUFU" not in lines:
            k = int((bits != found).argmax())
            shown = [f"{int(part[k]):x}" for part in (*given[3 * wide :][:3], found, bits)]
            print(f"{lines}: {row['differ']} differ, first {' '.join(shown)}", file=sys.stderr)


def _evaluated(lines: str, cells: dict[str, Value]) -> dict[str, Value]:
    text = "\n".join(f"/*{16 * k:04x}*/ {line} ;" for k, line in enumerate(lines.split("; ")))
    for step in steps(functions(f"code for sm_90\n{text}\n")[0]):
        assert isinstance(step.action, Compute), step.text
        found = step.action.function(*(one.value(*map(cells.get, one.cells)) for one in step.sources))
        cells |= dict(zip(step.dests, found, strict=True))
    return cells


def _errors(
    lines: str, cells: dict[str, Value], bits: npt.NDArray[np.uint64], found: npt.NDArray[np.uint64]
) -> dict[str, Any]:
    """How far the GPU's results are from the true ones; of high words, from these cut."""
    name = lines.split("MUFU.")[1].split()[0]
    if name.endswith("64H"):
        off = (found >> np.uint64(32)).astype(np.int64) - (bits >> np.uint64(32)).astype(np.int64)
        return {"units": int(np.abs(off).max())}
    theirs, ours = (one.astype(np.uint32).view(np.float32) for one in (found, bits))
    operand = cells["R2"].bits[0].astype(np.uint32).view(np.float32)
    tiny = (np.abs(operand) < np.finfo(np.float32).tiny) & (name != "TANH")
    true = SPECIAL[name].function(np.float64(np.where(tiny, np.copysign(np.float32(0), operand), operand)))
    numbers = np.isfinite(ours) & (ours != 0)
    off = np.abs(theirs.astype(np.float64) - ours)
    exact = numbers & (ours == true)
    return {
        "units": float((off / np.spacing(np.abs(ours)))[numbers].max()),
        "error": float(off[numbers & (np.abs(ours) < 2)].max()),
        "exact": int(exact.sum()),
        "exact_differ": int((exact & (off > 0)).sum()),
        "outside": int((np.where(numbers, off > SPECIAL[name].error(ours), bits != found)).sum()),
    }


if __name__ == "__main__":
    on_gpu.command_line(__doc__, write, measure)
