"""The page of `show --html` in a real browser: pick, point, step, and all of it by keyboard alone."""

import os
import shutil

import pytest
from conftest import ROOT

from layoutopt.accesses.trace import trace
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.files.file import load
from layoutopt.hardware.devices import device
from layoutopt.report.banks_page import page
from layoutopt.study.show import views

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no chromium on this machine", allow_module_level=True)

pytestmark = pytest.mark.tools
PROBLEMS = ROOT / "problems"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        # Chromium's sandbox needs a user that is not root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        running = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield running
        running.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open the page of a problem; any error or request on it fails the test."""
    wrong = []
    contexts = []

    def visit(name, **context):
        problem = load(PROBLEMS / f"{name}.json")
        found = views(
            problem, device(problem.target), before="none", access=None, warp=None, iteration={}, time_limit=2
        )
        file = tmp_path / "page.html"
        file.write_text(page(found, None))
        contexts.append(browser.new_context(**context))
        tab = contexts[-1].new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        tab.on("request", lambda r: wrong.append(r.url) if not r.url.startswith("file:") else None)
        tab.goto(file.as_uri())
        return tab

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.mark.parametrize(
    "name",
    ["basics/transpose_16x32_f32", "basics/transpose_16x16_f32_sm_10", "marlin/a_64x64_f16",
     "flash_attention/forward_q_d64_128x64", "spectral_elements/specfem3d_gll5_f32",
     "cutlass/cute_tutorial_sgemm_tn_8x128"],
)  # fmt: skip
def test_the_page_counts_what_the_engine_counts(opened, name):
    """Every warp instruction in the page, by its own count."""
    tab = opened(name)
    counted = tab.evaluate(
        """() => data.layouts.map((layout) => data.accesses.map((access) => {
          const total = [];
          for (let row = 0; row < access.element.length / data.lanes; row++) {
            const lanes = [...access.element.subarray(row * data.lanes, (row + 1) * data.lanes)];
            const phases = serve(lanes.map((e) => (e < 0 ? -1 : layout.table[e])), access);
            total.push(phases.reduce((sum, p) => sum + p.passes.length + p.idle, 0));
          }
          return total;
        }))"""
    )
    problem = load(PROBLEMS / f"{name}.json")
    gpu = device(problem.target)
    tables = tab.evaluate("() => data.layouts.map((l) => [...l.table])")
    import numpy as np

    for table, mine in zip(tables, counted, strict=True):
        for access, rows in zip(trace(problem, gpu).accesses, mine, strict=True):
            address = np.array(table)[access.element]
            engine = count_wavefronts(address, access.active, access.operation, access.rule).wavefronts
            assert rows == engine.tolist()
    assert tab.locator("text=a bug").count() == 0


def test_pick_and_point(opened):
    tab = opened("basics/gemm_a_128x64_f16")
    assert tab.locator("figure").count() == 2
    assert "8-way" in tab.locator("figcaption").first.inner_text()
    tab.select_option("#access", label="fill: cp.async")
    tab.select_option("#iteration", label="i = 3")
    tab.select_option("#warp", "2")
    tab.hover("td.hit >> nth=0")
    detail = tab.inner_text("#detail").splitlines()
    assert detail[0] == "lane 0 touches (104, 0)"  # tid 64: row 64 // 8 + 32 * 3
    assert detail[1].startswith("row-major: byte 13312, bank 0-3, phase 1 of 4, wavefront 1")
    assert tab.locator("td.lane").count() == 8  # four words, in two pictures
    tab.hover("#lanes button >> nth=9")
    assert tab.inner_text("#detail").startswith("lane 9 touches (105, 8)")
    before = tab.locator("td.hit").first.evaluate("e => e.style.background")
    tab.select_option("#colour", "lane")
    assert tab.locator("td.hit").first.evaluate("e => e.style.background") != before
    lines = tab.locator("figure >> nth=0 >> tbody tr").count()
    tab.check("#all-lines")
    assert tab.locator("figure >> nth=0 >> tbody tr").count() == 128 > lines
    assert "takes 512 wavefronts" in tab.inner_text("#cost") or "takes 128 wavefronts" in tab.inner_text(
        "#cost"
    )


def test_step_through_wavefronts(opened):
    tab = opened("basics/transpose_16x32_f32")
    assert tab.inner_text("#where") == "all 16 at once"
    tab.click("#next")
    assert tab.inner_text("#where") == "wavefront 1 of 16: row-major 2 words, solved 32 words"
    assert tab.locator("figure >> nth=0 >> td.now").count() == 2
    assert tab.locator("figure >> nth=0 >> td.later").count() == 30
    tab.click("#next")
    assert tab.inner_text("#where") == "wavefront 2 of 16: row-major 2 words, solved done"
    assert tab.locator("figure >> nth=0 >> td.done").count() == 2
    assert tab.locator("figure >> nth=1 >> td.done").count() == 32
    tab.click("#back")
    assert tab.inner_text("#where").startswith("wavefront 1 of 16")
    tab.click("#play")
    tab.wait_for_function("() => state.step >= 3")
    tab.click("#play")
    assert tab.inner_text("#play") == "Play"
    tab.click("#first")
    assert tab.inner_text("#where") == "all 16 at once"


def test_keyboard_only(opened):
    tab = opened("basics/transpose_16x32_f32")
    reached = []
    for _ in range(12):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("() => document.activeElement.id || document.activeElement.className"))
    for name in ("access", "warp", "iteration", "colour", "all-lines", "first", "play", "next", "step"):
        assert name in reached
    tab.focus("#access")
    tab.keyboard.press("ArrowUp")
    assert tab.evaluate("() => document.getElementById('access').selectedOptions[0].text") == "rows: store"
    assert "1 wavefront, no conflict" in tab.locator("figcaption").first.inner_text()
    tab.keyboard.press("ArrowDown")
    tab.focus("#next")
    tab.keyboard.press("Enter")
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#where").startswith("wavefront 2 of 16")
    tab.keyboard.press("Home")
    assert tab.inner_text("#where") == "all 16 at once"
    tab.focus("#lanes button >> nth=0")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#detail").startswith("lane 2 touches (2, 0)")
    assert tab.inner_text("#where") == "all 16 at once"  # the arrows moved the lane, not the wavefront
    tab.keyboard.press("p")
    tab.wait_for_function("() => state.step >= 1")
    tab.keyboard.press("p")
    assert tab.inner_text("#play") == "Play"


def test_light_and_dark(opened):
    grounds = {}
    for scheme in ("light", "dark"):
        tab = opened("basics/transpose_16x32_f32", color_scheme=scheme)
        grounds[scheme] = tab.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert grounds == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 23, 26)"}
