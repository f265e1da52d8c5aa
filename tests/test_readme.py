"""What the README shows is what happens."""

import json
import re
import shlex
import subprocess
import sys

from command import layoutopt
from conftest import ROOT

from layoutopt.files.file import from_data
from layoutopt.search.solve import solve

README = (ROOT / "README.md").read_text()


def blocks(language):
    """The fenced blocks of one language (empty for plain ones)."""
    fenced = README.split("```")[1::2]
    return [block.partition("\n")[2] for block in fenced if block.partition("\n")[0] == language]


def test_console_blocks_show_real_output():
    shown = blocks("console")
    assert shown
    for block in shown:
        command, _, output = block.partition("\n")
        program, *arguments = shlex.split(command.removeprefix("$ "))
        assert program == "layoutopt"
        done = layoutopt(*arguments, cwd=ROOT)
        assert untimed(done.stdout).rstrip() == untimed(output).rstrip()


def untimed(text):
    """Times, and the space that aligns them, made equal."""
    return re.sub(r" +(\d+ ms|time)\b", " TIME", text)


def test_the_problem_shown_is_the_one_in_the_catalogue():
    (block,) = blocks("json")
    assert json.loads(block) == json.loads((ROOT / "problems/basics/gemm_a_128x64_f16.json").read_text())
    assert solve(from_data(json.loads(block))).excess == 0


def test_python_block_runs():
    (block,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "x0*32 + (x1 ^ x0) 4096 [396 392 388]\n"


def test_options_shown_are_the_options_there_are():
    for command in ("solve", "explain", "compare", "show", "count", "targets"):
        help_text = layoutopt(command, "--help").stdout
        options = set(re.findall(r"^  (--[a-z-]+)", help_text, re.M)) - {"--help"}
        blocks_of_it = [b for b in blocks("") if f"layoutopt {command}" in b]
        assert options <= set(re.findall(r"--[a-z-]+", "".join(blocks_of_it))), command


def test_files_named_exist():
    for name in re.findall(r"`((?:problems|scripts|layoutopt|tests)/[\w./]*)`", README):
        assert (ROOT / name).exists(), name
