"""Write what is generated in README.md and docs/: outputs, format, schema, hardware, picture, notebook.

    python scripts/docs/write_docs.py

A page is run in an empty folder, its blocks in order. Comments before a block: `<!-- lines 12 -->` shows the
first 12 lines of each output, `<!-- lines 1-4,9-12 -->` those and `...` for others, `<!-- nvcc -->` says that
nvcc is needed, `<!-- exit N -->` expects that exit code of its last command, `<!-- write FILE TEXT -->`,
`<!-- copy FILE PATH -->` and `<!-- trace NAME -->` put files into the folder. `<!-- model ARGUMENTS -->`
before a text block: what `scripts/docs/print_model.py` prints.
"""

import argparse
import contextlib
import gzip
import io
import json
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "tests"))  # where commands are forked

from command import layoutopt

from layoutopt.files.file import json_schema
from layoutopt.hardware.devices import devices
from layoutopt.hardware.dictated import engines, modes
from layoutopt.hardware.fragments import fragments
from layoutopt.hardware.operations import spelling

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"((?:<!-- [^\n]* -->\n)*)```console\n(.*?)```", re.S)
NEEDS_NVCC = "<!-- nvcc -->"
BENCH = re.compile(r"<!-- bench (\S+) -->\n(?:\n?\|[^\n]*\n(?:\|[^\n]*\n)*\n[^\n]*\n)?")
MODEL = re.compile(r"<!-- model ([^\n]*) -->\n```text\n.*?```", re.S)
HAND = "<!-- Written by scripts/docs/write_docs.py; change what it is generated from. -->\n\n"


def with_outputs(page: str, nvcc: bool = True) -> str:
    """The page with the output that its commands give now; without nvcc, blocks that need it stay."""

    def block(match: re.Match[str]) -> str:
        if NEEDS_NVCC in match[1] and not nvcc:
            return match[0]
        return _block(match[1], match[2], Path(folder))

    with tempfile.TemporaryDirectory() as folder:
        page = BLOCK.sub(block, page)
        page = BENCH.sub(lambda match: _bench(match[1]), page)
        return MODEL.sub(lambda match: _model(match[1], Path(folder)), page)


def _bench(name: str) -> str:
    """Kernels with several layouts, as `scripts/measure/bench.py` timed them."""
    record = json.loads((ROOT / "tests/data" / name).read_text())
    lines = [f"<!-- bench {name} -->", "| kernel | layout | | microseconds | registers |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for kernel in record["kernels"]:
        for row in kernel["times"]:
            offset = kernel["layouts"].get(row["layout"])
            title = "CuTe's swizzle" if row["layout"] == "cute" else row["layout"]
            if offset == kernel["recommended"]:
                title = "**recommended**" if title == "recommended" else f"{title}, **recommended**"
            times = ", ".join(f"{time:.1f}" for time in row["microseconds"])
            formula = f"`{offset}`" if offset else ""
            lines.append(f"| {kernel['kernel']} | {title} | {formula} | {times} | {row['registers'] or ''} |")
    made = record["provenance"]
    where = f"{made['gpu']}, driver {made['driver']}, CUDA {made['cuda']}, {made['date']}."
    return "\n".join([*lines, "", where]) + "\n"


def _model(arguments: str, folder: Path) -> str:
    script = ROOT / "scripts/docs/print_model.py"
    done = layoutopt(*shlex.split(arguments), script=script, cwd=folder, warn="default")
    if done.returncode:
        raise SystemExit(f"{script.name} {arguments}: {done.stderr}")
    return f"<!-- model {arguments} -->\n```text\n{done.stdout}```"


def _block(comments: str, body: str, folder: Path) -> str:
    lines, code = "", 0
    for comment in re.findall(r"<!-- (.*?) -->", comments):
        word, _, rest = comment.partition(" ")
        if word == "lines":
            lines = rest
        elif word == "exit":
            code = int(rest)
        elif word == "write":
            name, _, text = rest.partition(" ")
            (folder / name).write_text(text + "\n")
        elif word == "copy":
            name, _, path = rest.partition(" ")
            (folder / name).write_bytes((ROOT / path).read_bytes())
        elif word == "trace":
            packed = (ROOT / f"tests/data/trace_{rest}.jsonl.gz").read_bytes()
            (folder / "trace.jsonl").write_bytes(gzip.decompress(packed))
    commands = [line for line in body.splitlines() if line.startswith("$ ")]
    text = ""
    for number, command in enumerate(commands):
        output = run(command, folder, code if number == len(commands) - 1 else 0)
        text += f"{command}\n{_cut(output, lines)}"
    return f"{comments}```console\n{text}```"


def _cut(output: str, lines: str) -> str:
    """The lines asked for, the first `12` or `1-4,9-12`, or all; `...` stands for each run of others."""
    if not lines:
        return output
    shown: set[int] = set()
    for part in (f"1-{lines}" if lines.isdigit() else lines).split(","):
        first, _, last = part.partition("-")
        shown |= set(range(int(first), int(last or first) + 1))
    text = ""
    for number, line in enumerate(output.splitlines(keepends=True), 1):
        if number in shown:
            text += line
        elif number == 1 or number - 1 in shown:
            text += "...\n"
    return text


def run(command: str, folder: Path, code: int) -> str:
    """The standard output of a layoutopt command, or its error where that is what is shown."""
    program, *arguments = shlex.split(command.removeprefix("$ "))
    if program != "layoutopt":
        raise SystemExit(f"{command}: only layoutopt is run")
    done = layoutopt(*arguments, cwd=folder, warn="default", columns=100)
    if done.returncode != code:
        raise SystemExit(f"{command}: exit code {done.returncode}, not {code}: {done.stderr}")
    return done.stdout or (done.stderr if code else "")


def format_page() -> str:
    """The problem file, field by field, from its JSON Schema; what two types share stands at the first."""
    kinds = {name: kind for name, kind in json_schema()["$defs"].items() if "properties" in kind}
    text = HAND + "# The problem file\n\n`problems/problem.schema.json` is this page for programs.\n"
    order = ["Problem", "Tile", "Access", "FragmentAccess", "CopyAccess", "Copy", "CoverAccess", "GlobalSide"]
    order += ["ArrayAccess", "BasesAccess", "Bases", "HardwareAccess", "Constraints", "Block", "NamedTile"]
    order += ["Template"]
    written: dict[str, dict[str, Any]] = {}
    for name in [*order, *sorted(set(kinds) - set(order))]:
        kind = kinds[name]
        fields = kind["properties"].items()
        same = [one for one in written if written[one].items() <= fields]
        base = max(same, key=lambda one: len(written[one]), default=None)
        if base is not None and name == f"Tile{base}":
            continue  # an access to one of several tiles, which Block says
        text += f"\n## {name}\n\n{kind.get('description', '').strip()}\n\n"
        if base is not None:
            text += f"The fields of [{base}](#{base.lower()}), and:\n\n"
        if name == "Block":
            text += "Each access has `tile` beside its other fields: the name of its tile.\n\n"
        text += "| field | type | required | meaning |\n| --- | --- | --- | --- |\n"
        for field, value in fields:
            if base is None or field not in written[base]:
                required = "yes" if field in kind.get("required", ()) else ""
                meaning = _cell(value.get("description", ""))
                text += f"| `{field}` | {_cell(_type(value))} | {required} | {meaning} |\n"
        written[name] = kind["properties"]
    return text


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = re.sub(r"^Tile(?=\w*Access$)", "", value["$ref"].rpartition("/")[2])
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        kinds = [_type(option) for option in value["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in value:
        return ", ".join(f"`{option}`" for option in value["enum"])
    match value.get("type"):
        case "array" if value.get("items"):
            return f"list of {_type(value['items'])}"
        case "object" if isinstance(value.get("additionalProperties"), dict):
            return f"object of {_type(value['additionalProperties'])}"
    return str(value.get("type", "any"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def fragments_page() -> str:
    """Every fragment with its source."""
    text = HAND + "# Fragments\n\nNames for `fragment` in [a problem file](from-my-kernel.md#fragments). "
    text += "Below 8 bits, the tile holds the elements, packed, or bytes or words; its extent along k counts "
    text += "what it holds. Targets are those that execute the instruction; `layoutopt new` heeds them.\n\n"
    text += "| fragment | extent | a lane holds | warps | targets | source |\n"
    text += "| --- | --- | --- | --- | --- | --- |\n"
    for f in fragments().values():
        extent = ", ".join(f"{c} {e}" for c, e in f.extent.items())
        held = f"{f.values} x {f.bits} bits"
        text += f"| `{f.name}` | {extent} | {held} | {f.warps} | {f.targets} | {_cell(f.source)} |\n"
    return text


def hardware_page() -> str:
    """Every device and rule with its source, and the layouts that hardware dictates."""
    text = HAND + "# The hardware\n\nGenerated from `layoutopt/hardware/devices.json` and `dictated.json`. "
    text += (
        "Lanes of one phase are served together; a GPU that is missing is one entry in a `--device-file`. "
        "In brackets: the `op` that a file says.\n"
    )
    for device in devices():
        also = f" Also called {', '.join(device.aliases)}." if device.aliases else ""
        text += f"\n## {device.name}\n\n{device.title}: {device.lanes} lanes, {device.banks} banks of "
        text += f"{device.bank_bytes} bytes.{also}\n\n"
        text += "| instructions | phases | confidence | source |\n| --- | --- | --- | --- |\n"
        rules: dict[Any, list[str]] = {}
        for (kind, width), rule in device.rules.items():
            spelt = spelling(kind, width)
            rules.setdefault(rule, []).append(f"{kind} {width}" + (f" (`{spelt}`)" if spelt else ""))
        for rule, accesses in rules.items():
            phases = f"{len(rule.phases)} of {len(rule.phases[0])} lanes"
            text += f"| {', '.join(accesses)} | {phases} | {rule.confidence} | {_cell(rule.source)} |\n"
    text += "\n## Layouts that TMA and the tensor cores dictate\n\n"
    text += "| who | rule | confidence | source |\n| --- | --- | --- | --- |\n"
    for known in engines():
        text += f"| {known.name} | {_cell(known.rule)} | {known.confidence} | {_cell(known.source)} |\n"
    text += "\n| name | span | XOR of address bits | alignment | source |\n| --- | --- | --- | --- | --- |\n"
    for mode in modes():
        span = f"{mode.span_bytes} bytes" if mode.span_bytes else "a row"
        flips = ", ".join(f"{target} by {source}" for target, source in mode.xor) or "none"
        text += (
            f"| `{mode.name}` | {span} | {flips} | {mode.alignment_bytes} bytes | {_cell(mode.source)} |\n"
        )
    return text


def picture() -> str:
    """The banks under columns of a transpose, before and after, as README.md and index.md show them."""
    with tempfile.TemporaryDirectory() as folder:
        run("layoutopt show transpose_16x16_f32_sm_10 --svg transpose.svg", Path(folder), 0)
        return (Path(folder) / "transpose.svg").read_text()


def notebook() -> str:
    """The notebook with what its cells print and show now."""
    page, names = json.loads((DOCS / NOTEBOOK).read_text()), {}
    cells = [cell for cell in page["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        *lines, last = "".join(cell["source"]).splitlines()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec("\n".join(lines if last.isidentifier() else [*lines, last]), names)
        text, outputs = printed.getvalue().splitlines(keepends=True), []
        if text:
            outputs.append({"name": "stdout", "output_type": "stream", "text": text})
        if last.isidentifier():
            shown = {"text/html": [names[last]._repr_html_()]}
            about = {"execution_count": number, "metadata": {}, "output_type": "execute_result"}
            outputs.append({"data": shown, **about})
        cell |= {"execution_count": number, "outputs": outputs}
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"


NOTEBOOK = "kernel_to_layout.ipynb"
GENERATED = {
    "../problems/problem.schema.json": lambda: json.dumps(json_schema(), indent=1) + "\n",
    "format.md": format_page,
    "fragments.md": fragments_page,
    "hardware.md": hardware_page,
    NOTEBOOK: notebook,
    "transpose.svg": picture,
}
# README.md and the pages whose commands are run, by their paths from the root.
RUN = [
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if path.name not in GENERATED and "```console" in path.read_text()
]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for name, page in GENERATED.items():
        (DOCS / name).write_text(page())
    for name in RUN:
        (ROOT / name).write_text(with_outputs((ROOT / name).read_text()))
        print(f"ran {name}")


if __name__ == "__main__":
    main()
