"""Pictures: the same count as the engine, every element in its place, and what a newcomer asks."""

import json
import random
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from command import answer, layoutopt, refused
from conftest import PROBLEMS, ROOT, problem_id
from written import data_of, refused_with, saved

from layoutopt.engine.conflicts import addressing_lanes, count_wavefronts
from layoutopt.engine.witness import serve
from layoutopt.files.catalogue import find
from layoutopt.files.file import load
from layoutopt.hardware.devices import device, devices
from layoutopt.hardware.operations import Operation
from layoutopt.report import palette
from layoutopt.report.banks_svg import document
from layoutopt.report.banks_text import report
from layoutopt.study.show import views

BASICS = ROOT / "problems" / "basics"
TRANSPOSE = str(BASICS / "transpose_32x32_f32.json")


def seen(path, before="none", **chosen):
    problem = load(path)
    choice = {"access": None, "warp": None, "iteration": {}, **chosen}
    seconds = 10 if any(access.is_free for access in problem.accesses) else 0.2  # lanes are chosen first
    return views(problem, device(problem.target), before=before, time_limit=seconds, **choice)


@pytest.mark.filterwarnings("ignore::layoutopt.errors.DisputedRuleWarning")
@pytest.mark.parametrize("gpu", devices(), ids=lambda gpu: gpu.name)
def test_served_wavefronts_are_the_engines(gpu):
    rng = random.Random(gpu.name)
    for kind, width in sorted(gpu.rules):
        operation = Operation(kind, width, rng.choice((1, 2, 4)) if "matrix" in kind else 0)
        rule = gpu.rule(operation)
        for _ in range(12):
            places = rng.choice((8, 64, 512))
            address = [width * rng.randrange(places) for _ in range(gpu.lanes)]
            if rng.random() < 0.3:
                address = [address[lane // 2] for lane in range(gpu.lanes)]
            active = [operation.matrices > 0 or rng.random() < 0.9 for _ in range(gpu.lanes)]
            mask = np.array([active])
            counts = count_wavefronts(np.array([address]), mask, operation, gpu.rule(operation))
            phases = serve(address, active, operation, gpu)
            served = sum(p.wavefronts for p in phases)
            assert (served, len(phases)) == (counts.wavefronts[0], counts.phases[0])
            touched = {(t.lane, t.word) for p in phases for one in p.passes for t in one}
            using = np.flatnonzero(addressing_lanes(mask, operation)[0])
            assert len(touched) == len(using) * max(1, width // rule.bank_bytes)
            for one in (one for p in phases for one in p.passes):
                rows = {(t.bank, t.word // rule.row_words) for t in one}
                assert len(rows) == len({bank for bank, _ in rows})  # a bank gives one word a pass


def what_is_drawn(path):
    """What decides how a problem is drawn."""
    data = json.loads(path.read_text())
    accesses = {(a["op"], str(a.get("bytes")), "any" in a) for a in data["accesses"]}
    return {data.get("target"), (len(data["tile"]["shape"]), str(data["tile"]["element"])), *accesses}


def different():
    """Problems each of which has something that none before it has."""
    met = set()
    for path in PROBLEMS:
        if not met >= what_is_drawn(path):
            met |= what_is_drawn(path)
            yield path


@pytest.mark.parametrize("path", list(different()), ids=problem_id)
def test_problems_of_every_kind_can_be_drawn(path):
    if any(access.any for access in load(path).accesses):
        with refused_with("any: values known only at run time are not supported"):
            seen(path)
        return
    found = seen(path)
    for width in (80, 230):
        text = report(found, width, None, colour=False)
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text
    coloured, plain = (report(found, 80, "phase", colour=colour) for colour in (True, False))
    stripped = {line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()}
    assert {*plain.splitlines()} <= stripped
    svg = document(found, None)
    assert len(svg) < 1 << 20
    ElementTree.fromstring(svg)
    assert all(f" of {len(shown.lines)} lines" in svg for shown in found.pictures() if len(shown.lines) > 40)


@pytest.mark.parametrize(
    "name",
    ["transpose_16x32_f32", "rows_32x32_f64", "awq/a_128x32_f16", "n_body/rodinia_lavamd_positions_f64"],
)
def test_every_element_stands_in_its_word(name):
    found = seen(find(name))
    size = found.case.problem.tile.element_bytes
    for layout, shown in zip(found.layouts, found.pictures(), strict=True):
        first = {}
        every = np.ndindex(found.case.problem.tile.shape)
        for coordinates, byte in zip(every, layout.table.tolist(), strict=True):
            for word in range(byte // shown.bank_bytes, (byte + size - 1) // shown.bank_bytes + 1):
                held = byte // shown.bank_bytes == word, -byte, coordinates
                first[word] = max(first.get(word, held), held, key=lambda held: held[:2])
        for number, line in enumerate(shown.lines):
            assert line[0].byte_offset == number * shown.banks * shown.bank_bytes
            words = range(number * shown.banks, (number + 1) * shown.banks)
            assert [cell.coordinates for cell in line] == [first[w][2] if w in first else None for w in words]


def test_choosing_and_json():
    data = answer("show", TRANSPOSE, "--access", "rows", "--warp", "5", "--layout", "published")
    assert (data["access"], data["warp"], data["iteration"]) == ("rows", 5, {})
    published, solved = data["pictures"]
    assert (published["offset"], solved["offset"]) == ("x0*33 + x1", "x0*32 + (x1 ^ x0)")
    assert published["wavefronts"] == solved["wavefronts"] == 1
    assert {tuple(t["coordinates"]) for t in solved["touched"]} == {(5, lane) for lane in range(32)}
    data = answer("show", "gemm_a_128x64_f16", "--access", "fragments", "--iteration", "m=1,k=3")
    assert data["iteration"] == {"m": 1, "k": 3}
    assert [p["wavefronts"] for p in data["pictures"]] == [32, 4]
    rows = {t["coordinates"][0] % 32 for t in data["pictures"][0]["touched"]}
    assert rows == set(range(16, 32))


def test_any_formula_is_drawn():
    for offset, wavefronts in (("x0*33 + x1", 1), ("x0*32 + x1", 32)):
        pictures = answer("show", TRANSPOSE, "--access", "columns", "--layout", offset)["pictures"]
        assert [p["wavefronts"] for p in pictures] == [wavefronts, 1]
        assert (pictures[0]["layout"], pictures[0]["offset"]) == ("given", offset)


def test_wrong_use_is_one_line():
    for option, value, part in (
        ("--access", "no", "rows, columns"),
        ("--warp", "32", "0..31"),
        ("--iteration", "i=1", "no loop"),
        ("--iteration", "i", "NAME=NUMBER"),
        ("--iteration", "k=1,k=2", "k is given twice"),
        ("--layout", "x0*32 +", "--layout"),
        ("--layout", "x0*32 + y", "--layout"),
        # One cell a word would be gigabytes of empty picture.
        ("--layout", "(x0*32 + x1)*1000003", "4,092,012,280 bytes; a picture shows 16,777,216 at most"),
        ("--width", "40", "80"),
    ):
        refused(part, "show", TRANSPOSE, option, value)


def test_a_layout_that_cannot_serve_is_said(tmp_path):
    data = data_of("16x17 f32, 64 threads", "s: store 16 [tid // 4, tid % 4 * 4]")
    found = seen(saved(tmp_path, "p.json", data))
    assert [shown.name for shown in found.layouts] == ["solved"]
    assert "row-major cannot serve the accesses (access 's' is misaligned: lane" in found.note
    assert "note: row-major cannot serve" in " ".join(report(found, 80, None, colour=False).split())


def test_output_files(tmp_path):
    svg, page = tmp_path / "a.svg", tmp_path / "a.html"
    done = layoutopt("show", TRANSPOSE, "--svg", str(svg), "--html", str(page))
    assert (done.returncode, done.stdout) == (0, "")
    text = page.read_text()
    assert "http" not in re.sub(r"http-equiv", "", text)  # nothing is fetched
    assert "<script src" not in text
    assert ElementTree.fromstring(svg.read_text()).tag.endswith("svg")


def contrast(a, b):
    def luminance(colour):
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_on_colours_can_be_read():
    """WCAG AA: a contrast of at least 4.5 to 1."""
    grounds = [*palette.PHASES, *(palette.lane_colour(lane, 64) for lane in range(64))]
    assert min(contrast(ground, palette.ink_on(ground)) for ground in grounds) >= 4.4
    assert palette.lane_colour(0, 32) == "#00224E"
    assert palette.lane_colour(31, 32) == "#FEE838"


def test_lines_of_large_layouts_that_nothing_touches_are_blank(tmp_path):
    """A layout of 16 MiB has 4 million words, whose coordinates took gigabytes."""
    data = data_of("512x512 f32, 32 threads", "rows: store 4 [3, tid]")
    lines = seen(saved(tmp_path, "p.json", data)).pictures()[0].lines
    assert len(lines) == 8192
    assert [k for k, line in enumerate(lines) if line] == [48]
    assert lines[48][5].coordinates == (3, 5)
