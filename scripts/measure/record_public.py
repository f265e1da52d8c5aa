"""Public kernels and the profiler: compile them, record an H200's counters, compare what `check` predicts.

    python3 scripts/measure/record_public.py --build FOLDER --clones CLONES      needs nvcc and git
    python3 scripts/measure/record_public.py --measure FOLDER --out OUT          needs a GPU and ncu
    python3 scripts/measure/record_public.py --compare FOLDER                    needs nvdisasm

Which kernels, from where, and how they are launched is public_kernels.json beside this file. CLONES holds a
clone of each repository, as OWNER+NAME or OWNER+NAME/repo. FOLDER receives a cubin for each source, and
launches.json. Nothing of the sources is kept: tests/data/kernels/public.json holds names and counts. The
second step writes the counters of three launches each to OUT/public.json; the third puts beside them what is
predicted from the machine code, without and with the contents of the buffers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kernel_launches
import on_gpu
from kernel_launches import PARTS, Launch

HERE = Path(__file__).parent
TABLE = HERE / "public_kernels.json"
DOCS = HERE.parents[1] / "docs/kernels.md"
MARK = "<!-- public kernels: scripts/measure/record_public.py --write-docs -->"
RECORD = HERE.parents[1] / "tests/data/kernels/public.json"
FLAGS = ("-std=c++17", "-O3", "-arch=sm_90", "-lineinfo", "-w", "-Dmain=unused_main", "-cubin")
# What CUDA has dropped since these were written, in code of the host only.
DROPPED = ("-DcudaThreadSynchronize=cudaDeviceSynchronize", "-DcudaThreadExit=cudaDeviceReset")
SOURCES = (".cu", ".cuh", ".h", ".hpp", ".hh", ".inl", ".def", ".c", ".cpp", ".py")
SECONDS = 60.0
COUNTERS = {
    f"{ours}_{part}": f"l1tex__data_{theirs}_mem_shared_op_{part}.sum"
    for ours, theirs in (("wavefronts", "pipe_lsu_wavefronts"), ("bank_conflicts", "bank_conflicts_pipe_lsu"))
    for part in PARTS
}
OURS = tuple(COUNTERS)


def table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TABLE.read_text())
    return found


def arguments(text: str) -> list[Any]:
    """`f32*1024 random, i32=5, {u32=1, u32=2}`: what kernel_launches takes."""
    return [_argument(part.strip()) for part in re.findall(r"\{[^}]*\}|[^,{}]+", text) if part.strip()]


def _argument(text: str) -> list[Any]:
    if text.startswith("{"):
        return ["struct", arguments(text[1:-1])]
    found = re.fullmatch(r"(\w+)(?:=(\S+)|\*(\d+)(?: (.+))?)", text)
    if found is None:
        raise SystemExit(f"{TABLE.name}: expected TYPE=VALUE or TYPE*COUNT FILL, got {text!r}")
    kind, value, count, fill = found.groups()
    if value is not None:
        return [kind, float(value) if kind.startswith("f") else int(value, 0)]
    return [f"{kind}*", int(count), fill or "zeros"]


# ------------------------------------------------------------------ compile


def checkout(clones: Path, source: dict[str, Any], repository: dict[str, Any], into: Path) -> Path:
    """The folder of a source and those that it includes, at the commit of the table."""
    name = repository["repository"].replace("/", "+")
    root = into / name
    clone = next(
        p for p in (clones / name / "repo", clones / name) if (p / "HEAD").exists() or (p / ".git").exists()
    )
    git = ["git", "--git-dir", str(clone if (clone / "HEAD").exists() else clone / ".git")]
    folders = [str(Path(source["file"]).parent), *repository.get("include", []), *source.get("include", [])]
    for folder in folders:
        if (root / folder / ".whole").exists():
            continue
        listed = subprocess.run(
            [*git, "ls-tree", "-r", "-z", "--name-only", repository["commit"], "--", folder + "/"],
            check=True, stdout=subprocess.PIPE, text=True,
        ).stdout.split("\0")  # fmt: skip
        wanted = [path for path in listed if path.endswith(SOURCES)]
        archive = [*git, "archive", repository["commit"], "--", *wanted]
        root.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(archive, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        subprocess.run(["tar", "-x", "-C", str(root)], input=packed, check=True)
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / ".whole").touch()
    return root


def wrapper(source: dict[str, Any], path: Path) -> str:
    """A source that includes the public one (or its first lines) and refers to each kernel that is wanted."""
    body = f'#include "{path.name}"\n'
    if "lines" in source or "replace" in source:
        first, last = source.get("lines", (1, None))
        body = "\n".join(path.read_text(errors="replace").splitlines()[first - 1 : last]) + "\n"
        for old, new in source.get("replace", {}).items():
            if old not in body:
                raise RuntimeError(f"{source['file']} has no {old!r}")
            body = body.replace(old, new)
    instances = [k["instance"] for k in source["kernels"] if "instance" in k]
    keep = "".join(f"void *keep_{n} = (void *)({one});\n" for n, one in enumerate(dict.fromkeys(instances)))
    return "\n".join(source.get("before", [])) + "\n" + body + keep


def compile_source(number: int, source: dict[str, Any], root: Path, folder: Path) -> Path:
    """The cubin of a source."""
    path = root / source["file"]
    wrapped = path.parent / f"layoutopt_wrapper_{number}.cu"
    wrapped.write_text(wrapper(source, path))
    cubin = folder / f"{number:03}_{path.stem}.cubin"
    stubs = root / f"layoutopt_empty_{number}"
    for header in source.get("empty", []):
        (stubs / header).parent.mkdir(parents=True, exist_ok=True)
        (stubs / header).touch()
    flags = [*FLAGS, *DROPPED, *source.get("flags", []), "-o", cubin.resolve(), wrapped.name]
    flags += [f"-I{one}" for one in (*(root / one for one in source["includes"]), stubs)]
    done = subprocess.run(
        [on_gpu.tool("nvcc"), *flags], cwd=path.parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).splitlines()
        errors = [line for line in said if "error" in line or "fatal" in line]
        raise RuntimeError(" | ".join(errors[:3])[:600])
    return cubin


def compile_triton(number: int, source: dict[str, Any], root: Path, folder: Path) -> Path:
    """The cubin of a kernel of Triton's; name, shared memory and hidden arguments go into the table."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    path = root / source["file"]
    module = path.parent / f"layoutopt_wrapper_{number}.py"
    module.write_text(wrapper(source, path))
    spec = importlib.util.spec_from_file_location(module.stem, module)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    (kernel,), how = source["kernels"], source["triton"]
    function = getattr(code, kernel["entry"])
    constants = {
        name: getattr(code.tl, value[3:]) if isinstance(value, str) and value.startswith("tl.") else value
        for name, value in how["constexprs"].items()
    }
    types = {name: text.split(":")[0] for name, text in how["signature"].items()}
    signature = {name: types.get(name, "constexpr") for name in function.arg_names}
    aligned = {
        (k,): [["tt.divisibility", 16]]
        for k, name in enumerate(function.arg_names)
        if how["signature"].get(name, "").endswith(":16")
    }
    target = GPUTarget("cuda", 90, 32)
    asked = ASTSource(function, signature, constants, aligned)
    try:
        compiled = triton.compile(asked, target=target, options=how["options"])
    except triton.TritonError as error:
        raise RuntimeError(" ".join(str(error).split())[-300:]) from None
    kernel["entry"], kernel["shared"] = compiled.metadata.name, compiled.metadata.shared
    kernel["args"] += ", u8*16, u8*16"  # its two buffers for scratch
    cubin = folder / f"{number:03}_{path.stem}.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    return cubin


def build(folder: Path, clones: Path) -> None:
    """Compile all sources, and write how their kernels are launched."""
    from layoutopt.errors import LayoutoptError
    from layoutopt.kernels.read.files import chosen, programs

    folder.mkdir(parents=True, exist_ok=True)
    data = table()
    launches = []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        jobs = []
        for number, source in enumerate(data["sources"]):
            repository = data["repositories"][source["repository"]]
            source["includes"] = [*repository.get("include", []), *source.get("include", [])]
            root = checkout(clones, source, repository, Path(name))
            compiler = compile_triton if "triton" in source else compile_source
            jobs.append((source, pool.submit(compiler, number, source, root, folder)))
        for source, job in jobs:
            try:
                cubin = job.result()
                found = programs(cubin)
            except (RuntimeError, LayoutoptError, ImportError, SyntaxError) as error:
                print(f"{source['file']}: {error}", flush=True)
                continue
            for kernel in source["kernels"]:
                try:
                    program = chosen(found, kernel.get("entry", kernel.get("instance")))
                except LayoutoptError as error:
                    print(f"{kernel['name']}: {error}", flush=True)
                    continue
                block, grid = (tuple([*kernel.get(key, []), 1, 1, 1][:3]) for key in ("block", "grid"))
                given = (block, grid, kernel.get("shared", 0), arguments(kernel["args"]))
                launches.append(Launch(kernel["name"], cubin, program.name, *given))
            print(f"compiled {source['file']}", flush=True)
    kernel_launches.write_list(folder, launches)
    print(f"{len(launches)} kernels", flush=True)


def digest(kernel: Launch) -> str:
    return kernel_launches.code_digest(kernel.source.read_bytes(), kernel.symbol)


# ------------------------------------------------------------------ measure


def measure(folder: Path, out: Path) -> None:
    records = []
    codes = {kernel.name: digest(kernel) for kernel in kernel_launches.listed(folder)}
    for name, seen in kernel_launches.profile(folder, list(COUNTERS.values())).items():
        what = {"error": seen} if isinstance(seen, str) else {"counters": counters(seen)}
        records.append({"name": name, "code": codes[name], **what})
    about = "Nsight Compute's counters of public kernels, three launches each."
    on_gpu.write_record(out / "public.json", about, {"kernels": records})
    print(f"{len(records)} kernels, {sum('error' in r for r in records)} with errors")


def counters(launches: Sequence[dict[str, int]]) -> dict[str, int | list[int]]:
    """By our name of a counter its value, or those of all repetitions where they differ."""
    found: dict[str, int | list[int]] = {}
    for ours, theirs in COUNTERS.items():
        seen = [launch[theirs] for launch in launches]
        found[ours] = seen[0] if len(set(seen)) == 1 else seen
    return found


# ------------------------------------------------------------------ compare


def call(kernel: Launch, data: bool) -> Any:
    """The launch as `check` takes it, with or without the contents of the buffers."""
    from layoutopt.kernels.machine import launch

    numbers: dict[str, int | float | str] = {}
    buffers = {}
    for k, argument in enumerate(kernel.args):
        kind, value = argument[0], argument[1]
        if kind == "struct":
            numbers[str(k)] = int.from_bytes(kernel_launches.pack([argument])[0].data, "little")
        elif not kind.endswith("*"):
            numbers[str(k)] = value
        elif data:
            buffers[str(k)] = kernel_launches.contents(argument)
        else:
            numbers[str(k)] = "pointer"
    return launch.Launch(
        block=kernel.block, grid=kernel.grid, arguments=numbers, shared_bytes=kernel.shared, buffers=buffers
    )


def predicted(program: Any, kernel: Launch, data: bool) -> dict[str, Any]:
    """What `check` says of a launch."""
    from layoutopt.errors import LayoutoptError
    from layoutopt.ground.budget import OutOfTime, deadline
    from layoutopt.hardware.devices import device
    from layoutopt.kernels.machine.evaluate import evaluate
    from layoutopt.kernels.question.summary import summary

    try:
        with deadline(SECONDS):
            found = summary(evaluate(program, call(kernel, data), device("sm_90")))
    except OutOfTime:
        return {"refused": f"no end after {SECONDS:.0f} s"}
    except LayoutoptError as error:
        return {"refused": _without_folders(str(error))}
    why = {} if found.certain else {"why": _without_folders(found.unknown[0])}
    return {"certain": found.certain, **{one: found.totals[one] for one in OURS}, **why}


def _without_folders(text: str) -> str:
    """A reason, of which the places are files without the folders of this machine."""
    return re.sub(r"\((?:[^()]*/)?([^/()]+:\d+)\)", r"(\1)", text)[:160]


def compare(folder: Path) -> None:
    """Write what is predicted into the record, and print where it is not what was counted."""
    from layoutopt.kernels.read.files import programs

    record = json.loads(RECORD.read_text())
    rows = {row["name"]: row for row in record["kernels"]}
    for kernel in kernel_launches.listed(folder):
        row = rows.get(kernel.name)
        if row is None or row["code"] != digest(kernel):
            print(f"{kernel.name}: not measured, or other machine code", flush=True)
            continue
        program = next(p for p in programs(kernel.source) if p.name == kernel.symbol)
        row["predicted"], row["with_data"] = (predicted(program, kernel, data) for data in (False, True))
        for found in (row["predicted"], row["with_data"]):
            if "counters" not in row or "refused" in found or not exact(row, found):
                print(f"{kernel.name}: {found}, counted {row.get('counters')}", flush=True)
    RECORD.write_text(on_gpu.text_of(record))


# ------------------------------------------------------------------ documentation


def summary_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table by collection, and the launches that are not certain even with data."""
    data = table()
    origin = {
        kernel["name"]: data["repositories"][source["repository"]]["repository"]
        for source in data["sources"]
        for kernel in source["kernels"]
    }
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "predicted" in row and "counters" in row:
            groups.setdefault(origin[row["name"]], []).append(row)
    head = "| from | launches | with conflicts | certain | certain with data | exact of the certain |"
    lines = [head, "| --- | --- | --- | --- | --- | --- |"]
    totals = [0] * 5
    for name, found in groups.items():
        numbers = [len(found), *map(sum, zip(*map(_kinds, found), strict=True))]
        totals = [a + b for a, b in zip(totals, numbers, strict=True)]
        lines.append(_table_line(name, numbers))
    lines.append(_table_line("all", totals))
    left = [row for found in groups.values() for row in found if not _kinds(row)[2]]
    return [*lines, "", *(f"- {row['name']}: {_reason(row)}" for row in left)]


def _table_line(title: str, numbers: Sequence[int]) -> str:
    return f"| {title} | " + " | ".join(map(str, numbers)) + " |"


def _kinds(row: dict[str, Any]) -> tuple[int, int, int, int]:
    """1 or 0 each: has conflicts, is certain, is certain at least with data, and what is certain is exact."""
    conflicts = any(
        row["counters"][one] not in (0, [0] * kernel_launches.REPEAT) for one in OURS if "conflicts" in one
    )
    alone, known = row["predicted"], row["with_data"]
    sure = [one for one in (alone, known) if one.get("certain")]
    return (
        conflicts,
        bool(alone.get("certain")),
        bool(sure),
        bool(sure) and all(exact(row, one) for one in sure),
    )


def exact(row: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether every counter is as predicted, except those that differ between the repetitions."""
    return all(isinstance(row["counters"][one], list) or found[one] == row["counters"][one] for one in OURS)


def _reason(row: dict[str, Any]) -> str:
    found = row["with_data"]
    why = re.sub(r" \([^()]*:\d+\)", "", str(found.get("why", found.get("refused", ""))))
    return why.split(": lanes")[0].split(": both")[0].split(": of rounds")[0]


def write_docs() -> None:
    """Put the table into docs/kernels.md, between its marks."""
    rows = json.loads(RECORD.read_text())["kernels"]
    text = DOCS.read_text()
    before, rest = text.split(MARK, 1)
    after = rest.split(MARK, 1)[1]
    DOCS.write_text(before + MARK + "\n" + "\n".join(summary_lines(rows)) + "\n" + MARK + after)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_mutually_exclusive_group(required=True)
    steps.add_argument("--build", type=Path, metavar="FOLDER")
    steps.add_argument("--measure", type=Path, metavar="FOLDER")
    steps.add_argument("--compare", type=Path, metavar="FOLDER")
    steps.add_argument(
        "--write-docs", action="store_true", help="put what the record holds into docs/kernels.md"
    )
    parser.add_argument("--clones", type=Path, metavar="CLONES", help="where the repositories are cloned")
    parser.add_argument("--out", type=Path, metavar="OUT", help="where public.json is written")
    args = parser.parse_args()
    if args.build:
        build(args.build, args.clones)
    elif args.measure:
        measure(args.measure, args.out)
    elif args.compare:
        compare(args.compare)
    else:
        write_docs()


if __name__ == "__main__":
    main()
