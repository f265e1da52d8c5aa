"""Run ten tiles with their instructions left to the solver on a GPU, under the profiler.

    python scripts/measure/validate_instructions.py --write FOLDER     here: solve, write one program a tile
    python scripts/measure/validate_instructions.py --measure FOLDER   on the GPU: measured.json

Each tile is run with the instructions of its file and with those that were chosen: values of every lane,
cycles of a pass, and the counters beside those predicted. The second step needs nvcc and ncu, as that of
record_run.py, which it is. `tests/data/h200_instructions.json` is what it wrote.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import on_gpu
from record_run import TARGET, measure, predicted

ABOUT = (
    "Ten tiles on a GPU with the instructions of their files and with those that were chosen: values, cycles of "
    "a block for one pass of each access, and the profiler's counters beside those predicted."
)
FILL = "fill: store 16 [tid // 8 + 16*i, tid % 8 * 8]; i<4"
# As tests/written.py reads them; `instructions` are free, or free over these loops.
TILES = {
    "sgemm A, columns of a row-major tile": """128x8 f32, 256 threads
        fill: store 4 [tid // 8 + 32*i, tid % 8]; i<4
        read: load 4 [tid // 16 * 8 + i, k]; k<8, i<8; instructions i""",
    "sgemm B, rows": """8x128 f32, 256 threads
        fill: store 4 [tid // 128 + 2*i, tid % 128]; i<4
        read: load 4 [k, tid % 16 * 8 + j]; k<8, j<8; instructions j""",
    "dgemm A": """64x16 f64, 256 threads
        fill: store 8 [tid // 16 + 16*i, tid % 16]; i<4
        read: load 8 [tid // 16 * 4 + i, k]; k<16, i<4; instructions i""",
    "mma A": f"""64x64 f16, 128 threads
        {FILL}
        a: load 4 [warp*16 + lane // 4 + 8*i, 16*k + lane % 4 * 2 + 8*j]; k<4, j<2, i<2; instructions free""",
    "mma B, stored by rows of k": f"""64x64 f16, 128 threads
        {FILL}
        b: load 2 [16*k + lane % 4 * 2 + h + 8*j, 8*n + lane // 4]; k<4, n<8, j<2, h<2; instructions free""",
    "attention, P from accumulators to rows": """64x64 f16, 128 threads
        p: store 2 [warp*16 + lane // 4 + 8*i, 8*n + lane % 4 * 2 + h]; n<8, i<2, h<2; instructions free
        rows: load 2 [tid // 8 + 16*i, tid % 8 * 8 + j]; i<4, j<8; instructions free""",
    "transpose of words": """32x32 f32, 256 threads
        w: store 4 [tid // 32 + 8*i, tid % 32]; i<4; instructions free
        r: load 4 [tid % 32, tid // 32 + 8*i]; i<4; instructions free""",
    "transpose of halves": """64x64 f16, 256 threads
        w: store 2 [tid // 8 + 32*i, tid % 8 * 8 + j]; i<2, j<8; instructions free
        r: load 2 [tid % 8 * 8 + j, tid // 8 + 32*i]; i<2, j<8; instructions free""",
    "transpose of doubles": """32x32 f64, 256 threads
        w: store 8 [tid // 16 + 16*i, tid % 16 * 2 + j]; i<2, j<2; instructions free
        r: load 8 [tid % 16 * 2 + j, tid // 16 + 16*i]; i<2, j<2; instructions free""",
    "transpose of three dimensions": """8x16x32 f32, 128 threads
        w: store 4 [i, tid // 8, tid % 8 * 4 + j]; i<8, j<4; instructions free
        r: load 4 [tid % 8, tid // 8, i]; i<32; instructions free""",
}


def programs() -> Iterator[tuple[dict[str, Any], str]]:
    """Each tile with the instructions of its file, and with those that are chosen."""
    from written import data_of

    from layoutopt import problem, solve

    for name, text in TILES.items():
        data = data_of(text, name=name.replace(",", ""), target=TARGET)
        for access in data["accesses"]:
            if access.get("instructions", "free") != "free":
                access["instructions"] = [access["instructions"]]
        asked = problem(data)
        plain = tuple(msgspec.structs.replace(a, instructions=None) for a in asked.accesses)
        for kind, one in (("given", msgspec.structs.replace(asked, accesses=plain)), ("free", asked)):
            answer = solve(one, time_limit=20)
            told = {"problem": name, "instructions": kind, "offset": str(answer.offset)}
            yield predicted(one, answer, kind, told)


if __name__ == "__main__":
    on_gpu.write_or_measure(
        __doc__, lambda folder: on_gpu.write_programs(folder, programs()), partial(measure, about=ABOUT)
    )
