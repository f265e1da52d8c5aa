"""Record the profiler's shared-memory counters of the kernels in tests/data/kernels, three launches each.

    python3 scripts/measure/record_kernels.py --record FOLDER

needs a GPU, nvcc and ncu, and writes counters.json;

    python3 scripts/measure/record_kernels.py --write-texts

needs nvcc and cuobjdump, and rewrites the SASS and PTX beside them.

Every kernel is compiled with the flags below and launched as its own first lines say. A kernel that fails or
hangs is recorded with its error. `code` is a digest of the machine code that ran: the SASS texts begin with
the same digest, so that a record can be told from one of another compiler.
"""

import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import kernel_launches as collection
import on_gpu

from layoutopt.hardware import machine

FLAGS = ("-std=c++17", "-O3", "-lineinfo")
# Some kernels are also kept for other architectures: of these, nothing is measured. Those of sm_70 are of
# CUDA 12, whose successors do not know it.
ALSO = {
    "sm_75": ("integer_division", "reduce_sequential", "scan_tree"),
    "sm_80": ("transpose_plain", "gemm_cp_async", "integer_division", "scan_tree", "gemm_registers"),
    "sm_86": ("reduce_sequential",),
    "sm_87": ("scan_tree", "transpose_plain"),
    "sm_100": ("transpose_plain", "gemm_cp_async", "integer_division", "scan_tree", "stmatrix_epilogue"),
    "sm_120": ("scan_tree", "transpose_plain"),
}
INSTRUCTIONS = (
    *(f"smsp__inst_executed_op_shared_{part}.sum" for part in on_gpu.PARTS),
    "smsp__inst_executed_op_ldsm.sum",
    "smsp__sass_inst_executed_op_ldgsts.sum",
)


def compiled(kernel: collection.Launch, folder: Path, arch: str) -> collection.Launch:
    """The kernel as a cubin."""
    cubin = folder / f"{kernel.name}.{arch}.cubin"
    flags = (*FLAGS, f"-arch={arch}", "-cubin", "-o", cubin)
    on_gpu.run("nvcc", *flags, kernel.source.name, cwd=kernel.source.parent)
    return replace(kernel, source=cubin)


def write_texts() -> None:
    """Rewrite the SASS, without the encodings and with single spaces, and the PTX."""
    kernels = {kernel.name: kernel for kernel in collection.launches()}
    wanted = [(name, "sm_90") for name in kernels] + [(n, arch) for arch, some in ALSO.items() for n in some]
    with tempfile.TemporaryDirectory() as folder:
        for name, arch in wanted:
            cubin = compiled(kernels[name], Path(folder), arch).source
            text = re.sub(r"/\* 0x[0-9a-f]{16} \*/", "", on_gpu.run("cuobjdump", "-sass", cubin))
            lines = [re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines()]
            head = f"// code {collection.code_digest(cubin.read_bytes(), kernels[name].symbol)}"
            path = collection.KERNELS / f"{name}.{arch}.sass"
            path.write_text("\n".join([head, *(line for line in lines if line)]) + "\n")
    for kernel in kernels.values():
        flags = ("-std=c++17", "-O3", "-arch=sm_90", "-ptx", "-o", f"{kernel.name}.ptx")
        on_gpu.run("nvcc", *flags, kernel.source.name, cwd=kernel.source.parent)


def metrics() -> dict[str, str]:
    """Those counters that this profiler has, by their names without the sum."""
    known = set(re.findall(r"^\w+", on_gpu.run("ncu", "--query-metrics"), re.M))
    every = {name.removesuffix(".sum"): name for name in (*machine.METRICS, *INSTRUCTIONS)}
    return {short: name for short, name in every.items() if short in known}


def record(folder: Path) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        cubins, kernels = Path(temporary), {}
        with ThreadPoolExecutor() as pool:
            jobs = [pool.submit(compiled, kernel, cubins, "sm_90") for kernel in collection.launches()]
            for job in jobs:
                try:
                    kernels[job.result().name] = job.result()
                except subprocess.CalledProcessError as error:
                    print(error, flush=True)
        collection.write_list(cubins, kernels.values())
        for name, seen in collection.profile(cubins, metrics()).items():
            code = collection.code_digest(kernels[name].source.read_bytes(), kernels[name].symbol)
            rows.append({"name": name, "code": code, "error" if isinstance(seen, str) else "launches": seen})
    about = "Nsight Compute's counters of the kernels beside this file, three launches each."
    on_gpu.write_record(folder / "counters.json", about, {"flags": list(FLAGS), "kernels": rows})


if __name__ == "__main__":
    on_gpu.command_line(__doc__, record, write_texts)
