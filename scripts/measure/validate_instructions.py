"""Run ten tiles with their instructions left to the solver on a GPU, under the profiler.

    python scripts/measure/validate_instructions.py --write FOLDER     here: solve, write one program a tile
    python scripts/measure/validate_instructions.py --measure FOLDER   on the GPU: measured.json

Each tile is run with the instructions of its file and with those that were chosen: values of every lane,
cycles of a pass, and the counters beside those predicted. The second step needs nvcc and ncu, as that of
record_run.py, which it is. `tests/data/h200_instructions.json` is what it wrote.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import on_gpu
from record_run import measure

ABOUT = (
    "Ten tiles on a GPU with the instructions of their files and with those that were chosen: values, cycles of "
    "a block for one pass of each access, and the profiler's counters beside those predicted."
)


def _access(
    name: str, op: str, size: int, index: list[str], free: Any = None, **loops: int
) -> dict[str, Any]:
    access: dict[str, Any] = {"name": name, "op": op, "bytes": size, "index": index, "for": loops}
    return access if free is None else access | {"instructions": free}


def _tile(shape: list[int], element: str, threads: int, *accesses: dict[str, Any]) -> dict[str, Any]:
    return {"tile": {"shape": shape, "element": element}, "threads": threads, "accesses": list(accesses)}


FILL = _access("fill", "store", 16, ["tid // 8 + 16*i", "tid % 8 * 8"], i=4)
TILES = {
    "sgemm A, columns of a row-major tile": _tile(
        [128, 8], "f32", 256, _access("fill", "store", 4, ["tid // 8 + 32*i", "tid % 8"], i=4),
        _access("read", "load", 4, ["tid // 16 * 8 + i", "k"], ["i"], k=8, i=8)),
    "sgemm B, rows": _tile(
        [8, 128], "f32", 256, _access("fill", "store", 4, ["tid // 128 + 2*i", "tid % 128"], i=4),
        _access("read", "load", 4, ["k", "tid % 16 * 8 + j"], ["j"], k=8, j=8)),
    "dgemm A": _tile(
        [64, 16], "f64", 256, _access("fill", "store", 8, ["tid // 16 + 16*i", "tid % 16"], i=4),
        _access("read", "load", 8, ["tid // 16 * 4 + i", "k"], ["i"], k=16, i=4)),
    "mma A": _tile(
        [64, 64], "f16", 128, FILL,
        _access("a", "load", 4, ["warp*16 + lane // 4 + 8*i", "16*k + lane % 4 * 2 + 8*j"], "free", k=4, j=2, i=2)),
    "mma B, stored by rows of k": _tile(
        [64, 64], "f16", 128, FILL,
        _access("b", "load", 2, ["16*k + lane % 4 * 2 + h + 8*j", "8*n + lane // 4"], "free", k=4, n=8, j=2, h=2)),
    "attention, P from accumulators to rows": _tile(
        [64, 64], "f16", 128,
        _access("p", "store", 2, ["warp*16 + lane // 4 + 8*i", "8*n + lane % 4 * 2 + h"], "free", n=8, i=2, h=2),
        _access("rows", "load", 2, ["tid // 8 + 16*i", "tid % 8 * 8 + j"], "free", i=4, j=8)),
    "transpose of words": _tile(
        [32, 32], "f32", 256, _access("w", "store", 4, ["tid // 32 + 8*i", "tid % 32"], "free", i=4),
        _access("r", "load", 4, ["tid % 32", "tid // 32 + 8*i"], "free", i=4)),
    "transpose of halves": _tile(
        [64, 64], "f16", 256, _access("w", "store", 2, ["tid // 8 + 32*i", "tid % 8 * 8 + j"], "free", i=2, j=8),
        _access("r", "load", 2, ["tid % 8 * 8 + j", "tid // 8 + 32*i"], "free", i=2, j=8)),
    "transpose of doubles": _tile(
        [32, 32], "f64", 256, _access("w", "store", 8, ["tid // 16 + 16*i", "tid % 16 * 2 + j"], "free", i=2, j=2),
        _access("r", "load", 8, ["tid % 16 * 2 + j", "tid // 16 + 16*i"], "free", i=2, j=2)),
    "transpose of three dimensions": _tile(
        [8, 16, 32], "f32", 128, _access("w", "store", 4, ["i", "tid // 8", "tid % 8 * 4 + j"], "free", i=8, j=4),
        _access("r", "load", 4, ["tid % 8", "tid // 8", "i"], "free", i=32)),
}  # fmt: skip


def write(folder: Path) -> None:
    from layoutopt import problem, solve
    from layoutopt.codegen.languages import run_plan
    from layoutopt.codegen.selftest import program
    from layoutopt.expressions.grammar import to_text
    from layoutopt.hardware.devices import counters, device

    folder.mkdir(parents=True, exist_ok=True)
    gpu, entries = device("sm_90"), []
    for name, fields in TILES.items():
        asked = problem({"name": name.replace(",", ""), "target": gpu.name, **fields})
        plain = tuple(msgspec.structs.replace(a, instructions=None) for a in asked.accesses)
        for kind, one in (("given", msgspec.structs.replace(asked, accesses=plain)), ("free", asked)):
            answer = solve(one, time_limit=20)
            planned = run_plan(msgspec.structs.replace(one, name=f"{one.name} {kind}"), gpu, answer)
            (folder / f"{len(entries):03}.cu").write_text(program(planned))
            entry: dict[str, Any] = {"problem": name, "instructions": kind, "offset": answer.offset}
            entry |= {"seen": to_text(planned.offset), "bytes": answer.bytes, "accesses": []}
            for a in planned.accesses:
                report = (a.report.wavefronts, a.report.bank_conflicts)
                told = {"name": a.access.name, "op": a.access.op, "bytes": a.access.bytes}
                told["predicted"] = counters(gpu, a.lanes.operation, *report)
                entry["accesses"].append(told)
            entries.append(entry)
            print(name, kind, answer.status, [(a.op, a.bytes, a.wavefronts) for a in answer.accesses])
    (folder / "entries.json").write_text(json.dumps(entries))


if __name__ == "__main__":
    on_gpu.write_or_measure(__doc__, write, partial(measure, about=ABOUT))
