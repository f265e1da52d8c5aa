"""Run emitted conversions between register layouts on a GPU: every element, and the profiler's counters.

    python scripts/measure/validate_conversions.py --write FOLDER     here: convert, emit, write the program
    python scripts/measure/validate_conversions.py --measure FOLDER   on the GPU: compile, run; measured.json

The conversions are those of `scripts/checkers/triton_conversions.py` from seed 1 on, in turn with half of the
scratch, with the fewest instructions, and as they come. The second step needs nvcc, ncu and msgspec.
`tests/data/h200_conversions.json` is what it wrote.
"""

import sys
from pathlib import Path

import on_gpu

from layoutopt.codegen.templates import filled_text, parts_of

COUNT = 66
THREADS = 128
TYPES = {"f16": "unsigned short", "f32": "unsigned", "e4m3": "unsigned char"}
COUNTERS = {"load": on_gpu.COUNTERS["wavefronts_ld"], "store": on_gpu.COUNTERS["wavefronts_st"]}


def write(folder: Path) -> None:
    """The program and what its kernels are expected to count."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "checkers"))
    from triton_conversions import question

    from layoutopt.codegen.conversion import emit_conversion

    parts = parts_of(Path(__file__).with_suffix(".cu").read_text())
    text = parts["start"] + filled_text(parts["check"], THREADS=THREADS)
    rows, calls = [], ""
    for seed in range(1, COUNT + 1):
        shape, element, source, destination = question(seed)
        found = validated(seed, shape, element, source, destination)
        name = f"conversion_{seed}"

        def numbers(bases: dict) -> str:
            order = [*bases["register"], *bases["lane"], *bases["warp"]]
            return ", ".join(str(v[0] * shape[1] + v[1]) for v in order)  # noqa: B023

        text += filled_text(
            parts["kernel"], FUNCTION=emit_conversion(found, name), NAME=name, TYPE=TYPES[element],
            SCRATCH=max(found.bytes, 1), HELD=found.registers[0], WANTED=found.registers[1],
            SOURCE=numbers(source), DESTINATION=numbers(destination),
        )  # fmt: skip
        calls += f'    std::printf("{name} %d\\n", {name}_wrong());\n'
        row = {"seed": seed, "bytes": found.bytes, "rounds": found.rounds}
        rows.append(row | {"wavefronts": {kind: split(found, kind) for kind in COUNTERS}})
    (folder / "conversions.cu").write_text(text + filled_text(parts["end"], CALLS=calls))
    on_gpu.write_entries(folder, rows)


def validated(seed: int, shape: list, element: str, source: dict, destination: dict):
    """The conversion of a question, in turn with less scratch and with few instructions."""
    import layoutopt

    asked = {"shape": shape, "element": element, "source": source, "destination": destination}
    found = layoutopt.convert(**asked, threads=THREADS)
    if seed % 3 == 1:
        less = layoutopt.convert(**asked, threads=THREADS, max_bytes=max(1, found.bytes // 2))
        return less if less.status != "infeasible" else found
    return layoutopt.convert(**asked, threads=THREADS, minimise="instructions") if seed % 3 == 2 else found


def split(found, kind: str) -> int:
    """Wavefronts of the stores or loads of a conversion, by the conflict engine."""
    import numpy as np

    from layoutopt.engine.conflicts import count_wavefronts
    from layoutopt.hardware.devices import device

    total = 0
    for i in found.instructions:
        if i.kind == kind:
            address = np.maximum(i.byte_address, 0)
            rule = device(found.target).rule(i.operation)
            counts = count_wavefronts(address, i.byte_address >= 0, i.operation, rule)
            total += int(counts.wavefronts.sum())
    return total


def measure(folder: Path) -> None:
    """Compile, run, profile; one launch of each kernel a pass of its check."""
    program = on_gpu.built(folder / "conversions.cu")
    wrong = {name: int(count) for name, count in map(str.split, on_gpu.printed(program).splitlines())}
    launched = on_gpu.profiled(COUNTERS, "conversion_.*", program)
    counted = {one.kernel.removesuffix("_kernel"): one.counts for one in launched}
    rows = on_gpu.entries(folder)
    for row in rows:
        name = f"conversion_{row['seed']}"
        row |= {"counted": counted[name], "wrong": wrong[name]}
    about = "Emitted conversions between register layouts: scratch bytes, wavefronts, wrong elements."
    on_gpu.write_record(folder / "measured.json", about, {"conversions": rows})
    as_expected = sum(row["counted"] == row["wavefronts"] for row in rows)
    print(f"{sum(not row['wrong'] for row in rows)} of {len(rows)} right, {as_expected} counted as expected")


if __name__ == "__main__":
    on_gpu.command_line(__doc__, write, measure)
