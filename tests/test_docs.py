"""The README and the pages in docs/: what they show is what comes out, and the pages build."""

import json
import re
import subprocess
import sys

import pytest
import write_docs
from command import layoutopt, python
from conftest import ROOT
from written import data_of

import layoutopt as layoutopt_package
from layoutopt import load, solve
from layoutopt.files.file import from_data

README = (ROOT / "README.md").read_text()
WRITTEN = README + "".join(p.read_text() for p in (ROOT / "docs").rglob("*.md"))


def without_help(text):
    """Blocks of --help, whose wording is click's, as the options that they name."""
    return re.sub(
        r"(\$ layoutopt [^\n]*--help\n)(.*?)(?=\n```|\n\$ )",
        lambda match: match[1] + " ".join(sorted(set(re.findall(r"--[a-z][a-z-]*", match[2])))),
        text,
        flags=re.S,
    )


def assert_in_step(page, **tools):
    text = (ROOT / page).read_text()
    now = write_docs.with_outputs(text, **tools)
    assert without_help(now) == without_help(text), "run scripts/docs/write_docs.py"


@pytest.mark.parametrize("page", write_docs.RUN)
def test_commands_give_what_the_page_shows(page):
    assert_in_step(page, nvcc=False)


@pytest.mark.nvcc
@pytest.mark.parametrize(
    "page", [page for page in write_docs.RUN if write_docs.NEEDS_NVCC in (ROOT / page).read_text()]
)
def test_commands_that_compile_give_what_the_page_shows(page):
    assert_in_step(page)


@pytest.mark.parametrize("page", write_docs.GENERATED)
def test_generated_pages_are_in_step(page):
    assert (ROOT / "docs" / page).read_text() == write_docs.GENERATED[page](), (
        "run scripts/docs/write_docs.py"
    )


def test_every_command_has_its_help_on_a_page():
    commands = re.findall(r"^  ([a-z]+)  ", layoutopt("--help").stdout, re.M)
    assert len(commands) >= 7
    for command in commands:
        assert f"$ layoutopt {command} --help\n" in WRITTEN, "a page has its options"


def test_site_builds_strictly(tmp_path):
    pytest.importorskip(
        "material", reason="the documentation's tools (pip install -e '.[docs]') are not installed"
    )
    built = "-W", "ignore", "-m", "mkdocs", "build", "--strict", "-q", "-d", tmp_path / "site"
    done = python(*built, cwd=ROOT, env=None)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert (site / "tutorial/index.html").exists()
    assert "layoutopt.solve" in (site / "python/index.html").read_text()
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe)[^>]+(?:src|href)="([^"]*)"', page.read_text())
        assert not [address for address in fetched if "//" in address], "nothing comes from elsewhere"


def test_every_name_that_python_gives_has_its_place_in_the_reference():
    text = (ROOT / "docs/python.md").read_text()
    for name in layoutopt_package.__all__:
        if name != "__version__":
            home = layoutopt_package._HOMES[name]
            assert f"::: {home}.{name}\n    options:\n      heading: layoutopt.{name}\n" in text


def test_html_escapes_what_a_file_says():
    data = data_of("4x8 4B, 32 threads", "a&b: load 4 [lane // 8, lane % 8]; where lane < 9", name="<script>")
    problem = from_data(data)
    text = problem._repr_html_()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "lane &lt; 9" in text
    assert "a&amp;b" in solve(problem)._repr_html_()
    impossible = from_data(data | {"layout": {"max_bytes": 4}})
    assert "infeasible" in solve(impossible)._repr_html_()
    assert load("transpose_32x32_f32")._repr_html_().count("<tr>") == 3


@pytest.mark.nvcc
def test_the_kernel_of_the_tutorial_compiles(tmp_path):
    page = (ROOT / "docs/tutorial.md").read_text()
    (tmp_path / "kernel.cu").write_text(page.split("```cuda\n")[1].split("```")[0])
    layoutopt("new", "transpose", "-o", "tile.json", cwd=tmp_path)
    layoutopt("emit", "tile.json", "-o", "tile.cuh", cwd=tmp_path)
    subprocess.run(["nvcc", "-std=c++17", "-c", "kernel.cu"], cwd=tmp_path, check=True, capture_output=True)


def test_the_front_page_is_short():
    assert len(README.splitlines()) <= 160


def test_the_problem_explained_is_the_one_in_the_catalogue():
    block = (ROOT / "docs/problem-file.md").read_text().split("```json\n")[1].split("```")[0]
    assert json.loads(block) == json.loads((ROOT / "problems/basics/gemm_a_128x64_f16.json").read_text())
    assert solve(from_data(json.loads(block))).excess == 0


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_python_on_front_pages_prints_what_its_comments_say(page):
    code = (ROOT / page).read_text().split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == re.findall(r"^print\(.*\)  # (.*)$", code, re.M)


def test_files_named_exist():
    for name in re.findall(r"`((?:problems|scripts|layoutopt|tests)/[\w./]*)`", WRITTEN):
        assert (ROOT / name).exists(), name


def test_links_of_the_readme_lead_somewhere():
    for page, anchor in re.findall(r"\]\((?!https?:)([^)#]+)(?:#([^)]*))?\)", README):
        assert (ROOT / page).exists(), page
        if anchor:
            headings = re.findall(r"^#+ (.*)", (ROOT / page).read_text(), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings], anchor


def test_figures_of_the_readme_stand_on_the_pages_behind_them():
    section = README.split("## Why you can believe it\n")[1].split("\n## ")[0]
    lines = [line for line in section.split("\n- ") if "](docs/" in line]
    assert len(lines) == 5
    for line in lines:
        pages = "".join((ROOT / page).read_text() for page in re.findall(r"\]\((docs/[^)#]+)", line))
        for figure in re.findall(r"\b\d[\d,]*\d\b", re.sub(r"\(docs/[^)]*\)|`[^`]*`", "", line)):
            assert figure in pages, figure
