"""CONTRIBUTING.md: what it names is there, and each of its recipes adds one, in the places that it says."""

import json
import re
import sys
import types

import click
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT
from msgspec.structs import replace
from written import access_from, lines_of, ring, saved

from layoutopt import Status, check, solve
from layoutopt.cli import commands, import_
from layoutopt.codegen import registry
from layoutopt.errors import VerificationError
from layoutopt.files.file import from_data
from layoutopt.hardware import operations
from layoutopt.hardware.devices import load_devices
from layoutopt.layout.layout import Digit, Layout
from layoutopt.proof import reasons
from layoutopt.search import solve as solving
from layoutopt.search.proposal import Found

TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def transpose(n, **changes):
    return {**lines_of(n, lines=("rows", "columns")), **changes}


def gpu_of(tmp_path, *instructions):
    """The one GPU of a device file."""
    entry = {"name": "xpu_1", "title": "Of tomorrow", "lanes": 8, "banks": 8, "bank_bytes": 4}
    rules = [{"confidence": "inferred", "source": "a test", **rule} for rule in instructions]
    path = saved(tmp_path, "devices.json", {"devices": [{**entry, "instructions": rules}]})
    (gpu,) = load_devices(path)
    return gpu


def test_what_it_names_is_there():
    named = re.findall(r"`((?:layoutopt|scripts|tests|docs|problems)/[\w./]*)`", TEXT)
    assert len(named) > 20
    short = re.findall(
        r"`((?:hardware|engine|model|search|proof|layout|cli|accesses|index|files|problems)/\w+\.\w+)`", TEXT
    )
    for name in [*named, *(f"layoutopt/{name}" for name in short)]:
        assert (ROOT / name).exists(), name
    rooms = {path.name for path in (ROOT / "layoutopt").iterdir() if path.is_dir()} - {"__pycache__"}
    picture = TEXT.split("```")[3]
    assert rooms <= set(re.findall(r"(\w+)/", picture))


def test_an_operation(tmp_path, monkeypatch):
    """A transposing load of 8 bytes that a new GPU serves in phases of four lanes, unlike all loads."""
    spelling = (r"xpu_read_b64_turned", lambda _: operations.Written("transposing load", 8, (8,)))
    monkeypatch.setattr(operations, "SPELLINGS", (*operations.SPELLINGS, spelling))
    kind = operations.Kind("transposing load", returns=True, changes=False, by_pointer=True)
    monkeypatch.setitem(operations.KINDS, "transposing load", kind)
    gpu = gpu_of(
        tmp_path,
        {"ops": ["load"], "bytes": [4], "phase": 8},
        {"ops": ["transposing load"], "bytes": [8], "phase": 4},
    )
    rows, _ = transpose(8)["accesses"]
    wide = access_from("wide: xpu_read_b64_turned [tid, 2*i]; i<4")
    problem = from_data(transpose(8, accesses=[rows, wide]))
    assert check(problem, "x0*8 + x1", target=gpu).accesses[1].wavefronts == 4 * 2 * 4
    assert solve(problem, target=gpu).excess == 0


def test_a_language(tmp_path, monkeypatch):
    module = types.ModuleType("layoutopt.codegen.words")
    module.emit = lambda plan: f"{plan.name} takes {plan.bytes} bytes\n"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    words = registry.Language("words", "Words", ".txt", "a sentence")
    monkeypatch.setitem(registry.LANGUAGES, "words", words)
    from emit_programs import emit

    from layoutopt.hardware.devices import device

    problem = from_data(transpose(8))
    assert emit("words", problem, device("sm_90"), "x0*9 + x1") == "t takes 284 bytes\n"


def test_a_command(monkeypatch):
    module = types.ModuleType("layoutopt.cli.greet")
    module.command = click.command("greet")(lambda: click.echo("hello"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    added = commands.Command("greet", "greet", "About greetings", "Say hello.")
    monkeypatch.setattr(commands, "COMMANDS", (*commands.COMMANDS, added))
    assert re.search(r"^  greet +Say hello\.$", CliRunner().invoke(commands.main, ["--help"]).output, re.M)
    assert CliRunner().invoke(commands.main, ["greet"]).output == "hello\n"


def test_an_import(monkeypatch):
    """Threads along rows, values along columns: `rows` is all the text there is."""

    def thread_values(tile):
        return np.stack(np.meshgrid(range(tile[0]), range(tile[1]), indexing="ij"), axis=-1)

    @import_.layout_options
    def rows(**options):
        asked = import_.Imported(**options)
        assert (asked.text, asked.lanes) == ("rows", 32)
        return asked.used_by(thread_values(asked.tile))

    added = click.command("rows")(rows)
    monkeypatch.setitem(import_.command.commands, "rows", added)
    arguments = ["import", "rows", "rows", "--tile", "32x4", "--element", "f32"]
    (access,) = json.loads(CliRunner().invoke(commands.main, arguments).output)["accesses"]
    assert (access["bytes"], access["index"]) == (16, ["lane", "0"])


def test_another_who_proposes_layouts(monkeypatch):
    """Whoever comes last sees the best so far; the engine holds what it says against its own count."""
    row_major = Layout((8, 8), 4, (Digit(0, 1, 8, 8), Digit(1, 1, 8, 1)))

    def plain(search, best):
        assert best.found.weighted_excess == 0
        return replace(best, found=Found(row_major, "none", weighted_excess=excess, bytes=256))

    problem = from_data(transpose(8))
    excess = check(problem, "x0*8 + x1").excess
    monkeypatch.setattr(solving, "PROPOSERS", (*solving.PROPOSERS, plain))
    assert (solve(problem).offset, solve(problem).status) == ("x0*8 + x1", Status.FEASIBLE)
    excess += 1
    with pytest.raises(VerificationError, match="the engine counts"):
        solve(problem)


def test_a_reason(tmp_path, monkeypatch):
    odd = reasons.Reason(
        evidence="odd ring: it needs three banks where pairs need two",
        find=lambda subject, search: 5,
        bound=lambda subject, found: 1,
        data=lambda subject, problem, found: {"ring": found},
        sentences=lambda subject, problem, found: iter([f"a ring of {found} words"]),
        check=lambda subject, found: found % 2 == 1,
    )
    monkeypatch.setattr(reasons, "REASONS", (odd, *reasons.REASONS))
    gpu = gpu_of(tmp_path, {"ops": ["load"], "bytes": [4], "phase": 4, "banks": 4})
    result = solve(from_data(ring()), target=gpu, conflict_free=True)
    assert (result.status, result.proof.evidence) == (Status.INFEASIBLE, odd.evidence)
