"""Kernel files of every kind: which tool reads which, and the kernels in them."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from layoutopt.errors import MachineError, ProblemFileError
from layoutopt.ground import json_data
from layoutopt.ground.budget import current
from layoutopt.ground.escape import shown
from layoutopt.ground.temporary import temporary_folder
from layoutopt.hardware.machine import ended, find_tool
from layoutopt.kernels.program import Program
from layoutopt.kernels.read import elf, sass
from layoutopt.kernels.read.compiled import kept
from layoutopt.kernels.read.declarations import (
    UNNAMED,
    base_name,
    demangled,
    without_types,
)

MAX_BYTES: Final = 256 << 20
DEFAULT_TARGET: Final = "sm_90"


class Listed(NamedTuple):
    """A kernel of a file: its name there, its name in C++, what reads its code, and the cubin it is in."""

    name: str
    title: str
    read: Callable[[], Program]
    image: bytes = b""

    @property
    def code(self) -> bytes:
        """Its machine code in the cubin, with that of functions that no kernel is."""
        found = elf.sections(self.image)
        others = {f"{elf.CODE}{name}" for name, _ in elf.kernels(found) if name != self.name}
        return b"".join(s.content for s in found if s.name.startswith(elf.CODE) and s.name not in others)


def kernels(path: Path, target: str | None = None, options: Sequence[str] = ()) -> tuple[Listed, ...]:
    """The kernels of a file; what takes long for a large one is done where one of them is read.

    Args:
        path: a cubin, a listing, a source, PTX, or a file with cubins in it.
        target: the GPU to compile or assemble for, or whose cubin to take, or of a listing that does not say.
        options: for nvcc.

    Raises:
        ProblemFileError: it cannot be read.
        MachineError: a tool is missing or fails.
    """
    if path.suffix.lower() == ".cu":
        with current().standing_still():
            cubin = compile_source(path, target or DEFAULT_TARGET, options)
        return tuple(one._replace(read=partial(_with_names, one, path)) for one in _from_cubin(cubin))
    data = json_data.read(path, MAX_BYTES)
    if elf.is_cubin(data):
        return _from_cubin(data)
    if elf.is_elf(data) or path.suffix.lower() in (".fatbin", ".exe", ".so", ".o"):
        return _from_container(path, target)
    text = data.decode("utf-8", "replace")
    if path.suffix.lower() == ".ptx" or re.search(r"^[^\S\n]*\.address_size\s", text, re.M):
        return from_ptx(text, target)
    if "\0" in text:
        raise ProblemFileError("", f"{shown(str(path))} is neither a cubin nor text")
    found = sass.from_text(text, target)
    return tuple(Listed(one.name, one.title, partial(replace, one)) for one in found)


def ptx_text(
    path: Path,
    target: str | None,
    entry: str | None,
    options: Sequence[str] = (),
) -> tuple[str, Program]:
    """The PTX of a file of PTX or of a CUDA source (`options` are nvcc's), and the kernel meant, assembled.

    Raises:
        ProblemFileError: it cannot be read, or which kernel is meant is not clear.
        MachineError: there is no nvcc, or no ptxas.
    """
    if path.suffix.lower() == ".cu":
        with current().standing_still():
            text = compile_source(path, target or DEFAULT_TARGET, options, "ptx").decode("utf-8", "replace")
        return text, _with_names(chosen(from_ptx(text, target), entry), path)
    if path.suffix.lower() != ".ptx":
        raise ProblemFileError("", f"expected PTX or a CUDA source (.ptx, .cu), got {shown(str(path))}")
    text = json_data.read(path, MAX_BYTES).decode("utf-8", "replace")
    return text, chosen(from_ptx(text, target), entry).read()


def from_ptx(text: str, target: str | None = None) -> tuple[Listed, ...]:
    """The kernels of PTX as ptxas assembles them, for the GPU that the text names where no other is given."""
    named = re.search(r"^\s*\.target\s+(sm_\d{2,3}[af]?)\b", text, re.M)
    with current().standing_still():
        cubin = assemble(text, target or (named[1] if named else DEFAULT_TARGET))
    return _from_cubin(cubin)


@lru_cache(1)
def assemble(text: str, target: str) -> bytes:
    """PTX made a cubin, with the lines of its source."""
    sass.check_target(target)
    with temporary_folder() as folder:
        (folder / "kernel.ptx").write_text(text, "utf-8")
        run_tool("ptxas", [f"-arch={target}", "-lineinfo", "-o", "kernel.cubin", "kernel.ptx"], folder)
        return (folder / "kernel.cubin").read_bytes()


def chosen(found: Sequence[Listed], entry: str | None) -> Listed:
    """The kernel that `--entry` names, as it is in the binary, in C++, or without types; or by its number.

    Spaces in a C++ name, and letters behind its numbers (`reduce<256u>`), need not be given; `*` stands for
    any letters. Numbers count from 1, as messages list the kernels.

    Raises:
        ProblemFileError: none or several are meant.
    """
    if not found:
        line = "template __global__ void my_kernel<256>(float*, int);"
        raise ProblemFileError("", f"no kernel in the file{_TEMPLATES}; to use it, add a line such as {line}")
    if entry is None:
        if len(found) == 1:
            return found[0]
        raise ProblemFileError(
            "--entry", f"the file has several kernels; choose one, as in --entry 1: {_some(found, found)}"
        )
    if entry.isascii() and entry.isdigit() and len(entry) < 10 and 1 <= int(entry) <= len(found):
        return found[int(entry) - 1]
    pattern = re.compile(".*".join(re.escape(part) for part in _plain(entry).split("*")))
    for form in _FORMS:
        matching = [program for program in found if form(program) == entry]
        matching = matching or [p for p in found if pattern.fullmatch(_plain(form(p)))]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise ProblemFileError(
                "--entry", f"{shown(entry)!r} is several kernels: {_some(found, matching)}"
            )
    close = [p for p in found if base_name(entry) and base_name(entry) in p.title]
    there = f"{'near it' if close else 'there'} are {_some(found, close or found)}"
    raise ProblemFileError("--entry", f"{shown(entry)!r} is none of the kernels{_TEMPLATES}; {there}")


_TEMPLATES: Final = " (a template is compiled only where the file uses it)"
# Names that `--entry` may give, the most precise first.
_FORMS: Final[tuple[Callable[[Listed], str], ...]] = (
    lambda p: p.name,
    lambda p: p.title,
    lambda p: without_types(p.title),
    lambda p: base_name(p.title),
)


def _plain(name: str) -> str:
    """A C++ name without spaces, and its numbers without what says their type."""
    return re.sub(r"(?<![\w.])(\d+)[uUlL]{1,3}\b", r"\1", name.replace(UNNAMED, "")).replace(" ", "")


def _some(found: Sequence[Listed], some: Sequence[Listed]) -> str:
    """Their numbers and names: without types where that tells them apart, and at most so many."""
    several = Counter(without_types(p.title) for p in found)
    numbered = [(k, p.title, without_types(p.title)) for k, p in enumerate(found, 1) if p in some]
    names = [f"{k} {shown(full if several[short] > 1 else short, 400)}" for k, full, short in numbered]
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


_SHOWN: Final = 40


def _from_cubin(data: bytes) -> tuple[Listed, ...]:
    found = elf.sections(data)
    return tuple(
        Listed(name, demangled(name), partial(_disassembled, data, name, symbol), data)
        for name, symbol in elf.kernels(found)
    )


def _disassembled(data: bytes, name: str, symbol: int) -> Program:
    with temporary_folder() as folder:
        path = folder / "kernel.cubin"
        path.write_bytes(data)
        # It may never end on a file that is damaged.
        listing = run_tool("nvdisasm", ["-gi", "-c", "-fun", str(symbol), str(path)], folder)
    found = [one for one in sass.from_cubin(data, listing) if one.name == name]
    if not found:
        raise ProblemFileError("", f"broken cubin: nvdisasm prints no code of {shown(name)}")
    return found[0]


def _from_container(path: Path, target: str | None) -> tuple[Listed, ...]:
    """Executables, libraries, objects and fat binaries: cuobjdump takes the cubins out."""
    with temporary_folder() as folder:
        run_tool("cuobjdump", ["-xelf", "all", os.path.realpath(path)], folder)
        cubins = sorted(folder.glob("*.cubin"))
        if target is not None:
            cubins = [cubin for cubin in cubins if f".{target}." in cubin.name]
        if not cubins:
            wanted = f" for {target}" if target is not None else ""
            raise ProblemFileError("", f"no machine code of a GPU{wanted} in {shown(str(path))}")
        targets = sorted({cubin.name.split(".")[-2] for cubin in cubins})
        if len(targets) > 1:
            raise ProblemFileError("--target", f"the file has code of several GPUs: {', '.join(targets)}")
        found = [kernel for cubin in cubins for kernel in _from_cubin(cubin.read_bytes())]
    by_name = {kernel.name: kernel for kernel in found}
    return tuple(by_name.values())


def _with_names(kernel: Listed, path: Path) -> Program:
    """The kernel with names of its parameters and types of pointers, which machine code does not hold.

    They are sought in its source, and in the headers that its instructions come from.
    """
    from layoutopt.kernels.read.source import source_parameters

    program = kernel.read()
    parameters = program.parameters or ()
    headers = (step.place.file for step in program.steps if step.place is not None)
    for file in dict.fromkeys((str(path), *headers)):
        with contextlib.suppress(ProblemFileError):
            text = json_data.read(Path(file), MAX_BYTES).decode("utf-8", "replace")
            if told := source_parameters(text, base_name(program.title)):
                return replace(program, parameters=sass.described(parameters, told))
    return program


_MOST_SAID: Final = 540  # characters of what a tool complains of
# nvcc hands names to a shell, between double quotes.
_RUNS_IN_SHELLS: Final = frozenset('"$`\\\n')
# What helps where a compiler says so.
_HINTS: Final = {
    "No such file or directory": " (-I DIR says where headers are)",
    "is undefined": " (-D NAME=VALUE defines a macro, --nvcc=OPTION passes other options)",
    "for option 'gpu-name'": " (--target says another GPU)",
}


def compile_source(path: Path, target: str, options: Sequence[str] = (), form: str = "cubin") -> bytes:
    """A CUDA source compiled with line information, to a cubin or to PTX.

    Raises:
        ProblemFileError: nvcc refuses it.
        MachineError: there is no nvcc.
    """
    sass.check_target(target)
    json_data.read(path, MAX_BYTES)
    for name in (os.path.realpath(path), *(o for o in options if o.startswith("-I"))):
        if _RUNS_IN_SHELLS.intersection(name):
            raise ProblemFileError("", f'nvcc takes no name with one of " $ ` \\ in it, given {shown(name)}')
    words = ["-lineinfo", f"-{form}", f"-arch={target}", *options, os.path.realpath(path)]
    with temporary_folder() as folder:
        output = folder / f"kernel.{form}"

        def compiled(rule: Path) -> bytes:
            run_tool("nvcc", [*words, "-MD", "-MF", str(rule), "-o", str(output)], folder, here=True)
            if not output.exists():
                raise ProblemFileError("", f"nvcc wrote nothing for {shown(str(path))}")
            return output.read_bytes()

        return kept(_tool("nvcc"), words, compiled, folder)


def macros(path: Path, target: str, options: Sequence[str] = ()) -> dict[str, str]:
    """The macros without parameters that a source ends with.

    Raises:
        ProblemFileError: nvcc refuses it.
        MachineError: there is no nvcc.
    """
    text = preprocessed(path, target, ("-Xcompiler", "-dM", *options))
    return dict(re.findall(r"^#define (\w+) (.+)$", text, re.M))


def preprocessed(path: Path, target: str, options: Sequence[str]) -> str:
    """What the host's preprocessor prints of a source; raises as `macros`."""
    words = ["-E", f"-arch={target}", *options, os.path.realpath(path)]
    with temporary_folder() as folder, current().standing_still():
        return run_tool("nvcc", words, folder, here=True)


def _tool(name: str) -> str:
    found = find_tool(name)
    if found is None:
        raise MachineError(f"{name} is not on this machine (pip install 'layoutopt[cuda]' brings it)")
    return found


def run_tool(tool: str, arguments: Sequence[str], folder: Path, *, here: bool = False) -> str:
    """Run a tool of the CUDA toolkit; returns its stdout.

    Args:
        tool: its name.
        arguments: files by whole names.
        folder: where it keeps what it writes meanwhile, and works.
        here: work where this process does.

    Raises:
        MachineError: it is not on this machine, or does not end.
        ProblemFileError: it fails.
    """
    done = ended([_tool(tool), *arguments], folder, here=here)
    if done.returncode:
        text = done.stderr or done.stdout
        lines = [line for line in text.splitlines() if re.search(r"\berror\b|\bfatal\b", line, re.I)]
        told = [" ".join(line.split()) for line in lines or text.splitlines()[:1] or ["?"]]
        said = shown(" | ".join(dict.fromkeys(told)), _MOST_SAID)
        hint = next((hint for known, hint in _HINTS.items() if known in said), "")
        raise ProblemFileError("", f"{tool} fails: {said}{hint}")
    return done.stdout
