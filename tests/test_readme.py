"""What the README shows is what happens."""

import json
import re
import subprocess
import sys

from conftest import ROOT
from test_cli import layoutopt

from layoutopt.problem_file import from_data
from layoutopt.synthesize import solve

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_console_blocks_show_real_output():
    shown = blocks("console")
    assert shown
    for block in shown:
        command, _, output = block.partition("\n")
        program, *arguments = command.removeprefix("$ ").split()
        assert program == "layoutopt"
        done = layoutopt(*arguments, cwd=ROOT)
        assert done.stdout.rstrip() == output.rstrip()


def test_the_problem_shown_is_the_one_in_the_catalogue():
    (block,) = blocks("json")
    assert json.loads(block) == json.loads((ROOT / "problems/basics/gemm_a_128x64_f16.json").read_text())
    assert solve(from_data(json.loads(block))).excess == 0


def test_python_block_runs():
    (block,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "x0*32 + (x1 ^ x0) 4096 [396 392 388]\n"


def test_options_shown_are_the_options_there_are():
    help_text = layoutopt("solve", "--help").stdout
    options = set(re.findall(r"--[a-z-]+", help_text)) - {"--help"}
    synopsis = README.split("layoutopt solve P.json")[1].split("```")[0]
    assert options == set(re.findall(r"--[a-z-]+", synopsis))


def test_files_named_exist():
    for name in re.findall(r"`((?:problems|scripts|layoutopt|tests)/[\w./]*)`", README):
        assert (ROOT / name).exists(), name
