"""Kernels of tests/data/kernels as they are and with layouts patched in: outputs, counters, times on a GPU.

    python3 scripts/measure/record_patched.py --write FOLDER

anywhere: both kinds as cubins, with what is predicted;

    python3 scripts/measure/record_patched.py --measure FOLDER

on the GPU: writes FOLDER/patched.json. Outputs are all buffers after a launch, compared bit for bit. A
launch marked `bench` is the kernel at a size at which its time means something.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernel_launches as collection
import on_gpu
from on_gpu import counted, provenance
from record_kernels import REPEAT, profile, watched

from layoutopt.hardware import machine

TIME = "gpu__time_duration.sum"
PARTS = tuple(
    f"{name}_op_{op}.sum"
    for name, ops in (
        (machine.WAVEFRONTS, ("ld", "st", "atom")),
        (machine.BANK_CONFLICTS, ("ld", "st", "atom")),
    )
    for op in ops
)


def predicted(evaluation: Any) -> dict[str, int]:
    """The totals that the profiler divides."""
    found = {"ld": 0, "st": 0, "atom": 0, "conflicts": 0}
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
    from layoutopt.study.patch import Request, patch

    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for kernel in collection.launches():
        text = (kernel.source.parent / f"{kernel.name}.ptx").read_text()
        launch = Launch(
            block=kernel.block,
            grid=kernel.grid,
            arguments=collection.scalars(kernel),
            shared_bytes=kernel.shared,
        )
        try:
            (program,) = [one for one in from_ptx(text) if one.name == kernel.symbol]
            found = patch(text, kernel.name, program, Request(launch, device("sm_90"), time_limit=10))
        except ProblemFileError as error:
            print(f"{kernel.name}: {error}", flush=True)
            continue
        if found.after is found.before:
            continue
        for name, ptx in (("plain", text), ("patched", found.text)):
            (folder / f"{kernel.name}.{name}.ptx").write_text(ptx)
            (folder / f"{kernel.name}.{name}.cubin").write_bytes(assemble(ptx, "sm_90"))
        row = {
            "name": kernel.name,
            "shared": found.shared_bytes,
            "layouts": {
                m.name: [m.bytes_before, m.bytes_after] for m in found.arrays if m.layout is not None
            },
            "certain": found.after.certain,
            "predicted": {"plain": predicted(found.before), "patched": predicted(found.after)},
        }
        rows.append(row)
        print(row, flush=True)
    (folder / "kernels.json").write_text(json.dumps(rows, indent=1))


def launch_all(folder: Path, names: list[str]) -> None:
    """Launch both kinds of these kernels, the plain one first; what the profiler watches."""
    device = collection.Device()
    for name in names:
        for kind, kernel in kinds(folder, name):
            for one in (kernel, *collection.benches(kernel)):
                device.run(device.function(folder / f"{name}.{kind}.cubin", kernel.symbol), one, REPEAT)


def kinds(folder: Path, name: str) -> list[tuple[str, collection.Launch]]:
    """The launches of the plain and the patched kernel."""
    kernel = next(k for k in collection.launches() if k.name == name)
    row = next(r for r in json.loads((folder / "kernels.json").read_text()) if r["name"] == name)
    return [("plain", kernel), ("patched", replace(kernel, shared=row["shared"] if kernel.shared else 0))]


def outputs_equal(folder: Path, name: str) -> bool:
    """Whether both kinds leave the same bytes in every buffer."""
    device = collection.Device()
    left = []
    for kind, kernel in kinds(folder, name):
        function = device.function(folder / f"{name}.{kind}.cubin", kernel.symbol)
        left.append(
            [b for one in (kernel, *collection.benches(kernel)) for b in device.run(function, one)[0]]
        )
    return all(a.tobytes() == b.tobytes() for a, b in zip(*left, strict=True))


def measure(folder: Path) -> None:
    """Outputs of each kernel in a process of its own, counters and times a few kernels a run."""
    rows = {row["name"]: row for row in json.loads((folder / "kernels.json").read_text())}
    for name, row in rows.items():
        printed, errors = watched([sys.executable, __file__, "--outputs", folder, name])
        row["outputs_equal"] = {"equal": True, "different": False}.get(printed.strip(), errors.strip()[-300:])
        print(name, row["outputs_equal"], flush=True)
    kernels = {name: kinds(folder, name)[0][1] for name in rows}
    launches = {name: 2 * REPEAT * (1 + len(collection.benches(one))) for name, one in kernels.items()}
    seen = profile(launches, [*PARTS, TIME], [sys.executable, __file__, "--launch", folder])
    for name, launched in seen.items():
        if isinstance(launched, str):
            rows[name]["error"] = launched
        else:
            _keep(rows[name], launched)
            print(name, rows[name]["counted"], rows[name]["nanoseconds"], flush=True)
    head: dict[str, object] = {
        "about": "Kernels as compiled and with layouts patched into their PTX; three launches each.",
        "provenance": provenance("record_patched.py"),
    }
    (folder / "patched.json").write_text(on_gpu.record(head, "kernels", list(rows.values())))
    print(f"wrote {folder / 'patched.json'}")


def _keep(row: dict[str, Any], launches: list[dict[str, str]]) -> None:
    """Sort the launches of a kernel: plain, then patched, each perhaps followed by its bench."""
    benched = len(launches) > 2 * REPEAT
    kinds = ("plain", "plain bench", "patched", "patched bench") if benched else ("plain", "patched")
    row["counted"], row["nanoseconds"] = {}, {}
    for k, kind in enumerate(kinds):
        mine = launches[k * REPEAT : (k + 1) * REPEAT]
        row["nanoseconds"][kind] = [float(one[TIME].replace(",", "")) for one in mine]
        row["counted"][kind] = [
            {
                **{op: counted(one, f"{machine.WAVEFRONTS}_op_{op}.sum") for op in ("ld", "st", "atom")},
                "conflicts": sum(
                    counted(one, f"{machine.BANK_CONFLICTS}_op_{op}.sum") for op in ("ld", "st", "atom")
                ),
            }
            for one in mine
        ]


def main() -> None:
    if sys.argv[1:2] == ["--launch"]:
        launch_all(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:2] == ["--outputs"]:
        print("equal" if outputs_equal(Path(sys.argv[2]), sys.argv[3]) else "different")
    else:
        on_gpu.write_or_measure(__doc__, write, measure)


if __name__ == "__main__":
    main()
