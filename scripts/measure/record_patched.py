"""Kernels of tests/data/kernels as they are and with layouts patched in: outputs, counters, times on a GPU.

    python3 scripts/measure/record_patched.py --write FOLDER     anywhere: both as cubins, what is predicted
    python3 scripts/measure/record_patched.py --measure FOLDER   on the GPU: writes FOLDER/patched.json

Outputs are all buffers after a launch, compared bit for bit. A launch marked `bench` is the kernel at a size
at which its time means something.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernel_launches as collection
import on_gpu
from kernel_launches import PARTS

from layoutopt.hardware import machine

JOBS = 6  # processes that launch kernels side by side, where only what they leave is looked at
TIME = "gpu__time_duration.sum"
WAVEFRONTS = {part: f"{machine.WAVEFRONTS}_op_{part}.sum" for part in PARTS}
CONFLICTS = [f"{machine.BANK_CONFLICTS}_op_{part}.sum" for part in PARTS]


def predicted(evaluation: Any) -> dict[str, int]:
    """The totals that the profiler divides."""
    found = dict.fromkeys((*PARTS, "conflicts"), 0)
    for index, tally in evaluation.tallies.items():
        action = evaluation.program.steps[index].action
        if action.counter is not None:
            found[action.counter] += tally.wavefronts * (2 if action.doubled else 1)
            found["conflicts"] += tally.wavefronts - tally.phases
    return found


def write(folder: Path) -> None:
    """Patch every kernel that has conflicts and can be patched."""
    from layoutopt.errors import ProblemFileError
    from layoutopt.hardware.devices import device
    from layoutopt.kernels.machine.launch import Launch
    from layoutopt.kernels.read.files import assemble, from_ptx
    from layoutopt.study.patch import PtxCode
    from layoutopt.study.source_fix import Request, fix

    rows, launches = [], []
    for kernel in collection.launches():
        text = kernel.source.with_suffix(".ptx").read_text()
        numbers = collection.scalars(kernel)
        launch = Launch(block=kernel.block, grid=kernel.grid, arguments=numbers, shared_bytes=kernel.shared)
        try:
            (program,) = [one.read() for one in from_ptx(text) if one.name == kernel.symbol]
            request = Request(launch, device("sm_90"), minimise="excess")
            found = fix(PtxCode(text, kernel.name, kernel.symbol), program, request)
        except ProblemFileError as error:
            print(f"{kernel.name}: {error}", flush=True)
            continue
        if found.after is found.before:
            continue
        shared, changed = found.after.evaluation.launch.shared_bytes, found.files[kernel.name].decode()
        for kind, ptx, size in (("plain", text, kernel.shared), ("patched", changed, shared)):
            cubin = folder / f"{kernel.name}.{kind}.cubin"
            cubin.with_suffix(".ptx").write_text(ptx)
            cubin.write_bytes(assemble(ptx, "sm_90"))
            for more, one in (("", kernel), *((" bench", one) for one in collection.benches(kernel))):
                launches.append(replace(one, name=f"{kernel.name} {kind}{more}", source=cubin, shared=size))
        layouts = {m.name: [m.bytes_before, m.bytes_after] for m in found.arrays if m.offset is not None}
        row = {"name": kernel.name, "shared": shared, "layouts": layouts}
        both = found.before.evaluation, found.after.evaluation
        row |= {"certain": both[1].certain}
        row |= {"predicted": dict(zip(("plain", "patched"), map(predicted, both), strict=True))}
        rows.append(row)
        print(row, flush=True)
    collection.write_list(folder, launches)
    (folder / "kernels.json").write_text(json.dumps(rows, indent=1))


def measure(folder: Path) -> None:
    """Outputs of each kernel in a process of its own, counters and times of a few kernels a run."""
    rows = json.loads((folder / "kernels.json").read_text())
    seen = collection.profile(folder, [*WAVEFRONTS.values(), *CONFLICTS, TIME])
    kinds_of: dict[str, dict[str, str]] = {row["name"]: {} for row in rows}
    for name in seen:
        kinds_of[name.partition(" ")[0]][name.partition(" ")[2]] = name
    rows = [row for row in rows if kinds_of[row["name"]]]
    with ThreadPoolExecutor(JOBS) as workers:
        left_by = workers.map(
            lambda row: collection.watched(
                sys.executable, collection.__file__, folder, *kinds_of[row["name"]].values()
            ),
            rows,
        )
    for row in rows:
        kinds, (printed, errors) = kinds_of[row["name"]], next(left_by)
        left = dict(line.split("\t") for line in printed.splitlines())
        if set(kinds.values()) - left.keys():
            row["outputs_equal"] = errors.strip()[-300:]
        else:
            pairs = [(kind, kind.replace("plain", "patched")) for kind in kinds if "plain" in kind]
            row["outputs_equal"] = all(left[kinds[a]] == left[kinds[b]] for a, b in pairs)
        if failed := [seen[name] for name in kinds.values() if isinstance(seen[name], str)]:
            row["error"] = failed[0]
            continue
        counts = {kind: seen[name] for kind, name in kinds.items()}
        row["counted"] = {
            kind: [
                {part: one[metric] for part, metric in WAVEFRONTS.items()}
                | {"conflicts": sum(one[metric] for metric in CONFLICTS)}
                for one in launched
            ]
            for kind, launched in counts.items()
        }
        row["nanoseconds"] = {kind: [one[TIME] for one in launched] for kind, launched in counts.items()}
        print(row, flush=True)
    about = "Kernels as compiled and with layouts patched into their PTX; three launches each."
    on_gpu.write_record(folder / "patched.json", about, {"kernels": rows})


if __name__ == "__main__":
    on_gpu.write_or_measure(__doc__, write, measure)
