"""Record the profiler's shared-memory counters of the kernels in tests/data/kernels, three launches each.

    python3 scripts/measure/record_kernels.py --out FOLDER

needs a GPU, nvcc and ncu, and writes counters.json;

    python3 scripts/measure/record_kernels.py --write-sass

needs nvcc and cuobjdump, and rewrites the SASS texts.

Every kernel is compiled with the flags below and launched as its own first lines say. A kernel that fails is
recorded with its error, and the others go on in a new process. `code` is a digest of the machine code that
ran: the SASS texts begin with the same digest, so that a record can be told from one of another compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import kernel_launches as collection
import on_gpu
from on_gpu import RAW_PAGE, counted, provenance, tool

from layoutopt.hardware import machine

FLAGS = ("-std=c++17", "-O3", "-lineinfo")
REPEAT = 3
# Some kernels are also kept for other architectures: of these, nothing is measured.
ALSO = {
    "sm_80": ("transpose_plain", "gemm_cp_async", "integer_division", "scan_tree", "gemm_registers"),
    "sm_100": ("transpose_plain", "gemm_cp_async", "integer_division", "scan_tree", "stmatrix_epilogue"),
}
INSTRUCTIONS = (
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "smsp__inst_executed_op_shared_atom.sum",
    "smsp__inst_executed_op_ldsm.sum",
    "smsp__sass_inst_executed_op_ldgsts.sum",
)


def compile_kernel(kernel: collection.Launch, folder: Path, arch: str) -> Path:
    """The kernel as a cubin."""
    cubin = folder / f"{kernel.name}.{arch}.cubin"
    command = [tool("nvcc"), *FLAGS, f"-arch={arch}", "-cubin", "-o", cubin, kernel.source.name]
    subprocess.run(command, check=True, cwd=kernel.source.parent)
    return cubin


def code_digest(cubin: bytes, symbol: str) -> str:
    """The first 16 digits of SHA-256 of the section that holds the kernel's machine code."""
    table, size, count, names = (
        struct.unpack_from("<Q", cubin, 0x28)[0], *struct.unpack_from("<HHH", cubin, 0x3A),
    )  # fmt: skip
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + k * size) for k in range(count)]
    for section in sections:
        start = sections[names][4] + section[0]
        if cubin[start : cubin.index(b"\0", start)] == f".text.{symbol}".encode():
            return hashlib.sha256(cubin[section[4] : section[4] + section[5]]).hexdigest()[:16]
    raise SystemExit(f"no code of {symbol}")


def write_sass() -> None:
    """Rewrite the SASS texts, without the encodings and with single spaces."""
    kernels = {kernel.name: kernel for kernel in collection.launches()}
    wanted = [(name, "sm_90") for name in kernels] + [(n, arch) for arch, some in ALSO.items() for n in some]
    with tempfile.TemporaryDirectory() as folder:
        for name, arch in wanted:
            cubin = compile_kernel(kernels[name], Path(folder), arch)
            text = on_gpu.run("cuobjdump", "-sass", cubin)
            text = re.sub(r"/\* 0x[0-9a-f]{16} \*/", "", text)
            lines = [re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines()]
            head = f"// code {code_digest(cubin.read_bytes(), kernels[name].symbol)}"
            path = collection.KERNELS / f"{name}.{arch}.sass"
            path.write_text("\n".join([head, *(line for line in lines if line)]) + "\n")


def launch_all(folder: Path) -> None:
    """Launch every cubin of a folder; what the profiler watches. Progress goes to the file `done` there."""
    device = collection.Device()
    skip = set((folder / "done").read_text().split("\n")) if (folder / "done").exists() else set()
    for kernel in collection.launches():
        cubin = folder / f"{kernel.name}.sm_90.cubin"
        if kernel.name in skip or not cubin.exists():
            continue
        with (folder / "done").open("a") as done:  # before the launch: a fault ends this process
            done.write(f"{kernel.name}\n")
        device.run(device.function(cubin, kernel.symbol), kernel, REPEAT)


def metrics() -> list[str]:
    """Those counters that this profiler has."""
    known = set(re.findall(r"^\w+", on_gpu.run("ncu", "--query-metrics"), re.M))
    wanted = [*machine.METRICS, *INSTRUCTIONS]
    return [name for name in wanted if name.removesuffix(".sum") in known]


def profile(folder: Path, names: list[str]) -> dict[str, Any]:
    """Counters by kernel: a list of a dict for each launch, or the text of an error."""
    found: dict[str, Any] = {}
    expected = [
        kernel for kernel in collection.launches() if (folder / f"{kernel.name}.sm_90.cubin").exists()
    ]
    while len(found) < len(expected):
        before = len(found)
        command = [
            tool("ncu"),
            "--metrics",
            ",".join(names),
            *RAW_PAGE,
            sys.executable,
            __file__,
            "--launch",
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
        rows = machine.launches(done.stdout)
        started = (folder / "done").read_text().split() if (folder / "done").exists() else []
        for name in started[before:]:
            mine, rows = rows[:REPEAT], rows[REPEAT:]
            counters = [
                {metric.removesuffix(".sum"): counted(row, metric) for metric in names} for row in mine
            ]
            complete = len(mine) == REPEAT
            found[name] = counters if complete else f"launch failed: {done.stderr.strip()[-300:]}"
            print(name, counters[0] if complete else found[name], flush=True)
        if len(started) == before:
            sys.exit(f"ncu failed: {(done.stdout + done.stderr).strip()[-2000:]}")
    return found


def record(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    kernels = collection.launches()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kernel in kernels:
            try:
                compile_kernel(kernel, folder, "sm_90")
            except subprocess.CalledProcessError as error:
                print(f"{kernel.name}: nvcc failed ({error.returncode})", flush=True)
        found = profile(folder, metrics())
        for kernel in kernels:
            if kernel.name not in found:
                continue
            code = code_digest((folder / f"{kernel.name}.sm_90.cubin").read_bytes(), kernel.symbol)
            key = "error" if isinstance(found[kernel.name], str) else "launches"
            rows.append({"name": kernel.name, "code": code, key: found[kernel.name]})
    head: dict[str, object] = {
        "about": "Nsight Compute's counters of the kernels beside this file, three launches each.",
        "provenance": provenance("record_kernels.py"),
        "flags": list(FLAGS),
    }
    (out / "counters.json").write_text(on_gpu.record(head, "kernels", rows))
    print(f"wrote {len(rows)} kernels to {out / 'counters.json'}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_mutually_exclusive_group(required=True)
    steps.add_argument("--out", type=Path, metavar="FOLDER", help="record counters.json there")
    steps.add_argument("--write-sass", action="store_true", help="rewrite the SASS texts of the collection")
    steps.add_argument(
        "--launch", type=Path, metavar="FOLDER", help="launch the cubins of a folder, as --out does"
    )
    args = parser.parse_args()
    if args.write_sass:
        write_sass()
    elif args.launch:
        launch_all(args.launch)
    else:
        record(args.out)


if __name__ == "__main__":
    main()
