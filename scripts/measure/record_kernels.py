"""Record the profiler's shared-memory counters of the kernels in tests/data/kernels, three launches each.

    python3 scripts/measure/record_kernels.py --out FOLDER

needs a GPU, nvcc and ncu, and writes counters.json;

    python3 scripts/measure/record_kernels.py --write-texts

needs nvcc and cuobjdump, and rewrites the SASS and PTX beside them.

Every kernel is compiled with the flags below and launched as its own first lines say. A kernel that fails or
hangs is recorded with its error. `code` is a digest of the machine code that
ran: the SASS texts begin with the same digest, so that a record can be told from one of another compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kernel_launches as collection
import on_gpu
from on_gpu import RAW_PAGE, counted, provenance, tool

from layoutopt.hardware import machine

FLAGS = ("-std=c++17", "-O3", "-lineinfo")
REPEAT = 3
GROUP = 8  # kernels a run of the profiler: one that hangs takes few others with it
SECONDS_A_RUN = 40
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


def write_texts() -> None:
    """Rewrite the SASS, without the encodings and with single spaces, and the PTX."""
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
    for kernel in kernels.values():
        command = [tool("nvcc"), "-std=c++17", "-O3", "-arch=sm_90", "-ptx", "-o", f"{kernel.name}.ptx"]
        subprocess.run([*command, kernel.source.name], check=True, cwd=kernel.source.parent)


def launch_all(folder: Path, names: Sequence[str]) -> None:
    """Launch these cubins of a folder, one after the other; what the profiler watches."""
    device = collection.Device()
    kernels = {kernel.name: kernel for kernel in collection.launches()}
    for name in names:
        cubin = folder / f"{name}.sm_90.cubin"
        device.run(device.function(cubin, kernels[name].symbol), kernels[name], REPEAT)


def metrics() -> list[str]:
    """Those counters that this profiler has."""
    known = set(re.findall(r"^\w+", on_gpu.run("ncu", "--query-metrics"), re.M))
    wanted = [*machine.METRICS, *INSTRUCTIONS]
    return [name for name in wanted if name.removesuffix(".sum") in known]


def watched(command: list[Any]) -> tuple[str, str]:
    """What a command printed and complained of; one that hangs is ended with all that it started."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            return process.communicate(timeout=SECONDS_A_RUN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "", f"no end after {SECONDS_A_RUN} s"


def profile(
    launches: dict[str, int], names: Sequence[str], command: list[Any]
) -> dict[str, list[dict[str, str]] | str]:
    """Counters by kernel: a row for each of its launches, or the text of an error.

    Args:
        launches: how many there are, by kernel.
        names: the counters.
        command: it and names of kernels behind it launch these. Several kernels share a run of the profiler;
            where one of them fails, each has a run of its own.
    """
    found: dict[str, list[dict[str, str]] | str] = {}
    every = list(launches)
    groups = [every[k : k + GROUP] for k in range(0, len(every), GROUP)]
    while groups:
        group = groups.pop(0)
        watch = [tool("ncu"), "--metrics", ",".join(names), *RAW_PAGE]
        printed, errors = watched([*watch, *command, *group])
        rows = machine.launches(printed)
        whole = len(rows) == sum(launches[name] for name in group)
        if len(group) > 1 and (not whole or any("nan" in row.values() for row in rows)):
            print(f"one by one: {' '.join(group)}: {errors.strip()[-300:]}", flush=True)
            groups = [*([name] for name in group), *groups]
            continue
        for name in group:
            mine, rows = rows[: launches[name]], rows[launches[name] :]
            failed = len(mine) != launches[name] or any("nan" in row.values() for row in mine)
            found[name] = f"launch failed: {errors.strip()[-300:]}" if failed else mine
            print(name, found[name] if failed else "counted", flush=True)
    return found


def counts(rows: list[dict[str, str]] | str, names: Sequence[str]) -> Any:
    """The counters of each launch as numbers, or the text of the error."""
    if isinstance(rows, str):
        return rows
    return [{m.removesuffix(".sum"): counted(row, m) for m in names} for row in rows]


def record(out: Path, only: Sequence[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    kernels = [k for k in collection.launches() if not only or k.name in only]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with ThreadPoolExecutor() as pool:
            compiling = [pool.submit(compile_kernel, kernel, folder, "sm_90") for kernel in kernels]
            for kernel, future in zip(kernels, compiling, strict=True):
                try:
                    future.result()
                except subprocess.CalledProcessError as error:
                    print(f"{kernel.name}: nvcc failed ({error.returncode})", flush=True)
        print(f"compiled {len(kernels)} kernels", flush=True)
        compiled = [k.name for k in kernels if (folder / f"{k.name}.sm_90.cubin").exists()]
        names = metrics()
        command = [sys.executable, __file__, "--launch", folder]
        seen = profile(dict.fromkeys(compiled, REPEAT), names, command)
        found = {kernel: counts(launched, names) for kernel, launched in seen.items()}
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
    steps.add_argument(
        "--write-texts", action="store_true", help="rewrite the machine code and PTX of the collection"
    )
    steps.add_argument(
        "--launch", nargs="+", metavar="FOLDER NAME", help="launch these cubins of a folder, as --out does"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="record these kernels")
    args = parser.parse_args()
    if args.write_texts:
        write_texts()
    elif args.launch:
        launch_all(Path(args.launch[0]), args.launch[1:])
    else:
        record(args.out, args.only)


if __name__ == "__main__":
    main()
