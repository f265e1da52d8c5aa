"""The recorder: `record.c`, compiled once with the host's compiler, and how a process loads it.

The driver loads the library that CUDA_INJECTION64_PATH names into every process that uses a GPU; CUPTI then
calls it (https://docs.nvidia.com/cupti/: callback API). Its header and library come with CUDA's toolkit, or
as the package nvidia-cuda-cupti.
"""

import contextlib
import ctypes
import gzip
import hashlib
import os
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

from layoutopt.errors import MachineError, ProblemFileError
from layoutopt.ground.escape import shown
from layoutopt.ground.temporary import cache_folder, replacing
from layoutopt.hardware.machine import ended, find_tool, toolkits

_FOLDER: Final = "LAYOUTOPT_CAPTURE"
_DATA: Final = "LAYOUTOPT_CAPTURE_DATA"


def recorder(scratch: Path) -> Path:
    """The library, in the user's cache, or in a folder where nothing is kept.

    Raises:
        MachineError: there is no compiler, no header of CUPTI, or the compiler refuses.
    """
    cupti, compiler = _library(), find_tool("cc") or find_tool("gcc")
    # Several places may each have a part: CUPTI's header in one package, CUDA's in another.
    folders = [folder for root in toolkits() for folder in (root / "include", root / "extras/CUPTI/include")]
    headers = [f"-I{folder}" for folder in folders if folder.is_dir()]
    source = resources.files("layoutopt.kernels.capture").joinpath("record.c").read_bytes()
    if compiler is None:
        raise MachineError("no C compiler (cc) on this machine; the recorder is compiled once")
    told = hashlib.sha256(source + f"{headers}{cupti}".encode()).hexdigest()
    made = (cache_folder() or scratch) / f"recorder-{told[:32]}.so"
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    text = scratch / "record.c"
    text.write_bytes(source)
    options = ["-O2", "-shared", "-fPIC", "-std=gnu11", *headers, str(text), str(cupti)]
    with replacing(made) as built:
        linked = ["-o", str(built), f"-Wl,-rpath,{cupti.parent}", "-ldl", "-lpthread"]
        done = ended([compiler, *options, *linked], scratch)
        if done.returncode:
            raise MachineError(f"{compiler} refuses the recorder: {shown(done.stderr, 400)}")
    return made


def _library() -> Path:
    """The library by the name that the loader looks for: libcupti.so.13."""
    for root in toolkits():
        for folder in (root / "lib64", root / "lib", root / "extras/CUPTI/lib64"):
            if found := sorted(folder.glob("libcupti.so.??")):
                return found[-1]
    raise MachineError("libcupti.so is not on this machine (pip install 'layoutopt[capture]' brings it)")


def new_folder(folder: Path) -> Path:
    """The folder of a recording, made; it may be there, and empty.

    Raises:
        ProblemFileError: it holds something, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ProblemFileError("-o", f"{shown(str(folder))} is not empty")
    except OSError as error:
        raise ProblemFileError("-o", f"cannot write {shown(str(folder))}: {error.strerror}") from None
    return folder.resolve()


def environment(library: Path, folder: Path, most_data: int) -> dict[str, str]:
    """What a process needs in its environment to be recorded.

    Args:
        library: the recorder.
        folder: what it writes to.
        most_data: bytes of an allocation up to which its contents are kept.
    """
    return {"CUDA_INJECTION64_PATH": str(library), _FOLDER: str(folder), _DATA: str(most_data)}


def compress(folder: Path) -> None:
    """Contents of allocations become .gz files; who reads the launches finds them by either name."""
    for path in folder.glob("*.bin"):
        with (
            replacing(f"{path}.gz") as packed,
            open(path, "rb") as source,
            gzip.open(packed, "wb", 6) as file,
        ):
            shutil.copyfileobj(source, file, 1 << 20)
        path.unlink()


@contextlib.contextmanager
def capture(folder: str | Path, *, data: int = 0) -> Iterator[None]:
    """Record what this process launches on GPUs meanwhile, for `layoutopt check FOLDER`.

    Code that was loaded to a GPU before is not known to the recorder: begin before the first kernel.

    Args:
        folder: new, or empty; launches are written to it as they happen.
        data: bytes of an allocation up to which its contents are kept, for kernels whose addresses depend
            on data; 0 keeps none.

    Raises:
        MachineError: there is no C compiler, no CUPTI or no driver; or the process was recorded before.
        ProblemFileError: the folder holds something, or cannot be made.
    """
    where = new_folder(Path(folder))
    library = ctypes.CDLL(str(recorder(where)))
    if library.layoutopt_capture_begin(os.fsencode(where), ctypes.c_ulonglong(data)):
        raise MachineError(
            "nothing is recorded: this process was before, has no NVIDIA driver, or is profiled"
        )
    try:
        yield
    finally:
        library.layoutopt_capture_end()
        compress(where)
