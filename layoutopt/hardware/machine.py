"""Programs of others, and self-tests run on this machine's GPU: values, cycles and the profiler's counters.

Self-tests are those of `layoutopt.codegen.selftest`. Everything is written to a temporary folder, which is
removed afterwards. A compiler starts programs and writes files of its own: each runs in a session of its own,
so that all of them end with this process or before.
"""

import contextlib
import csv
import glob
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from layoutopt.errors import MachineError
from layoutopt.ground.budget import OutOfTime, current
from layoutopt.ground.escape import shown
from layoutopt.ground.log import LOG
from layoutopt.ground.temporary import temporary_folder
from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS

TIMEOUT_S: Final = 600
# One in each launch, and one for each instruction that all lanes of a warp skip: no access causes these.
ELSEWHERE: Final = f"{WAVEFRONTS}_op_misc"
HARDWARE: Final = (
    *(f"{WAVEFRONTS}{part}" for part in ("", "_op_ld", "_op_st", "_op_atom")),
    *(f"{BANK_CONFLICTS}{part}" for part in ("", "_op_ld", "_op_st", "_op_atom", "_op_ldgsts")),
)
METRICS: Final = tuple(f"{name}.sum" for name in (*HARDWARE, ELSEWHERE))


class Gpu(Struct, frozen=True):
    """The GPU that programs run on."""

    name: str
    compute_capability: str
    driver: str

    @property
    def target(self) -> str:
        """What compilers call it."""
        return f"sm_{self.compute_capability.replace('.', '')}"


class Run(Struct, frozen=True):
    """What one access did.

    `predicted` is empty for instructions that the hardware does not count (cp.async.cg); `measured` is
    None where no profiler is present.
    """

    name: str
    op: str
    values_right: bool
    cycles: float
    predicted: dict[str, int]
    measured: dict[str, int] | None

    @property
    def agrees(self) -> bool:
        """Whether nothing differs from what was predicted."""
        return self.values_right and (self.measured is None or self.measured == self.predicted)


class Times(Struct, frozen=True):
    """Cycles of one pass of a block through all accesses of a layout; see `layoutopt.codegen.passes`."""

    row: int  # number of the layout in the program
    blocks: int  # how many fit on a multiprocessor
    registers: int  # of a thread
    # Addresses are computed in every pass (`once`), or kept where they do not change (`kept`): of one block
    # alone, or of a multiprocessor for one pass, where as many blocks as fit make passes (`_together`)
    once: float
    once_together: float
    kept: float
    kept_together: float


def ended(
    command: Sequence[str | Path],
    folder: Path | None = None,
    *,
    here: bool = False,
) -> subprocess.CompletedProcess[str]:
    """A program that has run to its end: its exit code and what it printed.

    Args:
        command: the program and its arguments.
        folder: where it works, and for its temporary files; None where it writes none.
        here: work where this process does.

    Raises:
        MachineError: it cannot be started, or takes longer than `TIMEOUT_S` seconds where there is no limit.
        OutOfTime: the time is over before it ends.
    """
    LOG.debug("runs %s", shlex.join(map(str, command)))
    try:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=None if here else folder,
            env=os.environ if folder is None else {**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
    except OSError as error:
        raise MachineError(f"{shown(str(command[0]))} cannot be started: {error.strerror}") from None
    left = current().seconds
    with process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S if left is None else left)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()  # which leaving the block does not do after Ctrl-C
            if isinstance(error, subprocess.TimeoutExpired):
                name = Path(command[0]).name
                if left is not None:
                    raise OutOfTime(f"{name} worked") from None
                raise MachineError(f"{name} takes longer than {TIMEOUT_S} seconds") from None
            raise
    texts = (data.decode("utf-8", "replace") for data in (out, err))
    return subprocess.CompletedProcess(process.args, process.returncode, *texts)


def parse_times(output: str) -> list[Times]:
    """Read what a program of `layoutopt.codegen.passes` prints."""
    rows = [line.split("\t")[1:] for line in output.splitlines() if line.startswith("pass\t")]
    return [Times(*map(int, row[:3]), *map(float, row[3:7])) for row in rows]


def run_passes(text: str, rows: int, gpu: Gpu) -> tuple[list[Times], list[dict[str, int]] | str]:
    """Compile and run a program of `layoutopt.codegen.passes`.

    Returns:
        A `Times` for each of the `rows` layouts, and the profiler's counters of one pass of a block of each,
        or why there are none.

    Raises:
        MachineError: a tool is missing or fails, or a layout was not timed.
    """
    with temporary_folder() as folder:
        program = compile_program(text, folder, gpu)
        done = ended([program], folder)
        times = parse_times(done.stdout)
        if done.returncode or len(times) != rows:
            timed, wrong = f"{len(times)} of {rows} layouts were timed", done.stderr.strip()[:300]
            raise MachineError(f"{timed}, status {done.returncode}: {wrong}")
        try:
            counted = run_counters(program, rows, "_pass")
        except MachineError as error:
            return times, str(error)
    return times, "ncu is not on this machine" if counted is None else counted


def find_tool(name: str) -> str | None:
    """A CUDA tool: on PATH, as the extra `cuda` installs it, or where NVIDIA's installers put it."""
    profilers = sorted(glob.glob("/opt/nvidia/nsight-compute/*"), reverse=True)
    folders = (*(str(root / "bin") for root in toolkits()), *profilers)
    candidates = [shutil.which(name), *(os.path.join(folder, name) for folder in folders)]
    return next((c for c in candidates if c and os.access(c, os.X_OK)), None)


def toolkits() -> list[Path]:
    """Folders with CUDA's bin, include and lib: of NVIDIA's packages, the newest first, and /usr/local."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec is not None else None
    by_pip = (Path(found) for root in roots or () for found in glob.glob(f"{root}/cu*"))
    return [*sorted(by_pip, reverse=True), Path("/usr/local/cuda")]


def gpu_present() -> Gpu:
    """The first GPU.

    Raises:
        MachineError: there is none.
    """
    smi = find_tool("nvidia-smi")
    fields = "--query-gpu=name,compute_cap,driver_version"
    done = None if smi is None else ended([smi, fields, "--format=csv,noheader"])
    if done is None or done.returncode or not done.stdout.strip():
        raise MachineError(
            "no NVIDIA GPU on this machine (nvidia-smi finds none); emit --self-test writes the program"
        )
    name, capability, driver = (part.strip() for part in done.stdout.splitlines()[0].split(","))
    return Gpu(name, capability, driver)


def compile_program(text: str, folder: Path, gpu: Gpu) -> Path:
    """Compile a self-test.

    Raises:
        MachineError: there is no nvcc, or it refuses the program.
    """
    nvcc = find_tool("nvcc")
    if nvcc is None:
        raise MachineError(
            "nvcc is not on this machine (pip install 'layoutopt[cuda]' brings it); "
            "emit --self-test writes the program"
        )
    source, program = folder / "selftest.cu", folder / "selftest"
    source.write_text(text, "utf-8")
    done = ended([nvcc, "-std=c++17", "-O3", f"-arch={gpu.target}", "-o", program, source], folder)
    if done.returncode:
        raise MachineError(f"nvcc failed: {(done.stderr or done.stdout).strip()[:500]}")
    return program


def parse_values(output: str) -> tuple[bool, list[tuple[bool, float]]]:
    """Read what a self-test prints.

    Returns:
        Whether offsets are distinct and, for each access, whether its values are right, and its cycles.
    """
    lines = output.splitlines()
    rows = [line.split("\t") for line in lines if line.count("\t") == 6 and line[0].isdigit()]
    distinct = any(line.endswith("own bytes: yes") for line in lines)
    return distinct, [(row[3] == "right", float(row[6])) for row in rows]


def run_counters(program: Path, accesses: int, kernels: str = "_access_") -> list[dict[str, int]] | None:
    """The profiler's counters of each launch of kernels so named; None where there is no profiler.

    Raises:
        MachineError: the profiler fails, as it does without permission to read counters.
    """
    ncu = find_tool("ncu")
    if ncu is None:
        return None
    command = [ncu, "--metrics", ",".join(METRICS), "--clock-control", "none", "--cache-control", "none",
               "--csv", "--page", "raw", "--print-units", "base", "--kernel-name", f"regex:{kernels}",
               str(program), "profile"]  # fmt: skip
    done = ended(command, program.parent)
    rows = parse_counters(done.stdout)
    if done.returncode or len(rows) != accesses:
        errors = [line for line in done.stdout.splitlines() if line.startswith("==ERROR==")]
        raise MachineError(f"ncu failed: {' '.join(errors)[:300] or f'status {done.returncode}'}")
    return rows


def parse_counters(output: str) -> list[dict[str, int]]:
    """Read ncu's CSV: for each launch, its counters by name (without `.sum`)."""
    return [
        {m.removesuffix(".sum"): int(float(row[m].replace(",", ""))) for m in METRICS}
        for row in launches(output)
    ]


def launches(output: str) -> list[dict[str, str]]:
    """Rows of the raw page of ncu's CSV: what each launch counted, as printed, in order."""
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    table = csv.DictReader(line for line in lines[start:] if line.startswith('"'))
    rows = [row for row in table if row["ID"].strip()]  # the second line holds units
    return sorted(rows, key=lambda row: int(row["ID"]))


def compared(predicted: dict[str, int], read: dict[str, int]) -> dict[str, int]:
    """The counters that were predicted, as measured, less what no access causes."""
    return {k: read[k] - (read[ELSEWHERE] if k == WAVEFRONTS else 0) for k in predicted}


def run(text: str, expected: Sequence[tuple[str, str, dict[str, int]]], gpu: Gpu) -> tuple[bool, list[Run]]:
    """Run a self-test.

    Args:
        text: the program.
        expected: name, op and predicted counters of each access.
        gpu: from `gpu_present`.

    Returns:
        Whether every element has its own bytes, and a `Run` for each access.

    Raises:
        MachineError: a tool is missing or fails.
    """
    with temporary_folder() as folder:
        program = compile_program(text, folder, gpu)
        done = ended([program], program.parent)
        distinct, values = parse_values(done.stdout)
        if done.returncode not in (0, 1) or len(values) != len(expected):
            wrong = done.stderr.strip()[:300]
            raise MachineError(f"the self-test ended with status {done.returncode}: {wrong}")
        read = run_counters(program, len(expected))
    runs = []
    for k, ((access, op, predicted), (right, cycles)) in enumerate(zip(expected, values, strict=True)):
        measured = None if read is None else compared(predicted, read[k])
        runs.append(Run(access, op, right, cycles, predicted, measured))
    return distinct, runs
