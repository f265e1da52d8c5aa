"""Kernels of tests/data/kernels as they are and with layouts patched in: outputs, counters, times on a GPU.

    python3 scripts/measure/record_patched.py --write FOLDER     anywhere: both as cubins, what is predicted
    python3 scripts/measure/record_patched.py --measure FOLDER   on the GPU: writes FOLDER/patched.json

Outputs are all buffers after a launch, compared bit for bit. A launch marked `bench` is the kernel at a size
at which its time means something.
"""

import json
from dataclasses import replace
from pathlib import Path

import kernel_launches as collection
import on_gpu
import versions
from versions import KINDS


def write(folder: Path) -> None:
    """Patch every kernel that has conflicts and can be patched."""
    from layoutopt.errors import ProblemFileError
    from layoutopt.hardware.devices import device
    from layoutopt.kernels.machine.launch import Launch
    from layoutopt.kernels.question.summary import summary
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
        for kind, ptx, size in zip(KINDS, (text, changed), (kernel.shared, shared), strict=True):
            cubin = folder / f"{kernel.name}.{kind}.cubin"
            cubin.with_suffix(".ptx").write_text(ptx)
            cubin.write_bytes(assemble(ptx, "sm_90"))
            for more, one in (("", kernel), *((" bench", one) for one in collection.benches(kernel))):
                launches.append(replace(one, name=f"{kernel.name} {kind}{more}", source=cubin, shared=size))
        layouts = {m.name: [m.bytes_before, m.bytes_after] for m in found.arrays if m.offset is not None}
        row = {"name": kernel.name, "shared": shared, "layouts": layouts}
        totals = {
            kind: versions.totals(summary(one.evaluation).totals)
            for kind, one in zip(KINDS, (found.before, found.after), strict=True)
        }
        row |= {"certain": found.after.evaluation.certain, "predicted": totals}
        rows.append(row)
        print(row, flush=True)
    collection.write_list(folder, launches)
    (folder / "kernels.json").write_text(json.dumps(rows, indent=1))


def measure(folder: Path) -> None:
    """Outputs and times, and counters of a few kernels a run."""
    races, rows = versions.compared(folder), json.loads((folder / "kernels.json").read_text())
    seen = versions.profile(folder, [row["name"] for row in rows], collection.GROUP)
    for row in rows:
        race = races[row["name"]]
        row["outputs_equal"] = race["error"] if "error" in race else not race["differing"]
        both = {kind: seen[f"{row['name']} {kind}"] for kind in KINDS}
        if failed := [found for found in both.values() if isinstance(found, str)]:
            row["error"] = failed[0]
            continue
        row["counted"] = both
        timed = {"": race, " bench": races.get(f"{row['name']} bench", {})}
        row["seconds"] = {
            f"{kind}{size}": one["seconds"][k]
            for size, one in timed.items()
            if "seconds" in one
            for k, kind in enumerate(KINDS)
        }
        print(row, flush=True)
    about = "Kernels as compiled and with layouts patched into their PTX; counters of three launches each."
    on_gpu.write_record(folder / "patched.json", about, {"kernels": rows})


if __name__ == "__main__":
    on_gpu.command_line(__doc__, write, measure)
