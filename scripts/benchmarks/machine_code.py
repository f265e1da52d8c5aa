"""The machine code that nvcc makes of CUDA kernels, function by function."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from layoutopt.hardware.machine import find_tool

REGISTER = re.compile(r"\b(UR\d+|R\d+|UP\d+|P\d+)\b")


def functions(title: str, text: str, cubin: Path, arch: str, *flags: str | Path) -> dict[str, list[str]]:
    """The lines that cuobjdump prints of each kernel of a source; none where nvcc refuses it."""
    nvcc, dump = find_tool("nvcc"), find_tool("cuobjdump")
    if nvcc is None or dump is None:
        sys.exit("needs nvcc and cuobjdump")
    source = cubin.with_suffix(".cu")
    source.write_text(text)
    command = [nvcc, "-std=c++17", "-O3", "-w", f"-arch={arch}", *flags, "-cubin", "-o", cubin, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    source.unlink()
    if done.returncode:
        print(title, done.stderr[:500], file=sys.stderr)
        return {}
    path = f"{Path(dump).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # cuobjdump calls nvdisasm
    sass = subprocess.run(
        [dump, "-sass", cubin], capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}
    ).stdout
    return {part.split("\n")[0].strip(): part.split("\n") for part in sass.split("Function :")[1:]}
