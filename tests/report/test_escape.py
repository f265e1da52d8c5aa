"""Text of a user, in every place that reads some of its characters as more than text."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from emit_programs import emit
from written import problem_of

from layoutopt.codegen.registry import LANGUAGES
from layoutopt.ground import escape
from layoutopt.hardware.devices import device
from layoutopt.report import banks_page, banks_svg, banks_text, comparison_text
from layoutopt.study.compare import compare
from layoutopt.study.show import views

NASTY = "=1+1|<b>`x`</b>\u202e\ufffe$\\frac{$ */ --> \U0001f600 \"'&\\"
SM_90 = device("sm_90")


@pytest.fixture(scope="module")
def problem():
    families = {"families": ["none", "pad", "xor"]}
    return problem_of(
        f"""4x8 f32, 32 threads; name {NASTY}
        {NASTY}: store 4 [lane // 8, lane % 8]
        -2: load 4 [lane % 4, lane // 4]""",
        layout=families,
    )


@pytest.fixture(scope="module")
def comparison(problem):
    return compare(problem, time_limit=5)


@pytest.fixture(scope="module")
def found(problem):
    return views(problem, SM_90, before="none", access=None, warp=None, iteration={}, time_limit=5)


def test_characters():
    assert escape.terminal("a\nb é") == "a\nb é"
    assert (
        escape.terminal("\x1b[31m\u202e\ufffe\ud800\U000e0001") == "\\x1b[31m\\u202e\\ufffe\\ud800\\U000e0001"
    )
    assert escape.shown("x" * 100) == "x" * 29 + "..." + "x" * 28
    assert escape.csv_cell("=A1") == "'=A1"
    assert escape.csv_cell(-1) == -1
    assert escape.markdown("a|b_c") == "a\\|b\\_c"
    assert escape.markdown_code("x0 | `x1`") == "`x0 \\| 'x1'`"
    names = ("1 é\n", "transpose 32x32", "3-D", "Ω")
    assert [*map(escape.identifier, names)] == ["t1", "transpose_32x32", "t3_D", "tile"]
    assert escape.xml("<é\u3000\u202e\x9b\ufffe\n") == "&lt;é\u3000\ufffd\ufffd\ufffd\n"
    assert escape.comment("a\\\n*/ b\u202e") == "a/ * / b"
    assert escape.comment("a\\\n??/ \u202eb\u200b c\\") == "a/ ? b c/"
    text = json.dumps({"a": NASTY}, ensure_ascii=False)
    assert json.loads(escape.json_text(text)) == {"a": NASTY}
    assert escape.terminal(escape.json_text(text)) == escape.json_text(text)


def test_csv(comparison):
    rows = list(csv.reader(io.StringIO(comparison_text.csv_text(comparison))))
    assert not [cell for row in rows for cell in row if cell[:1] in "=+-@\t" and cell]


def test_markdown(problem, comparison):
    text = comparison_text.markdown(problem, comparison)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "<b>" not in text
    assert "\u202e" not in text


def test_svg_and_page(found):
    root = ElementTree.fromstring(banks_svg.document(found, None))
    assert "\ufffd" in root.find("{*}title").text
    page = banks_page.page(found, None)
    assert "<b>`x`" not in page
    assert "\u202e" not in page
    assert page.count("</script>") == page.count("<script")


def test_terminal(found):
    text = banks_text.report(found, 80, None, colour=False)
    assert escape.terminal(text) == text


@pytest.mark.parametrize("language", LANGUAGES)
def test_comments_of_code(problem, language):
    text = emit(language, problem, SM_90, "x0*8 + x1")
    for line in text.splitlines():
        assert line.isprintable()
        assert not line.endswith("\\") or "define" in line
    if language in ("numba", "tilelang", "gluon"):
        compile(text, "code", "exec")
    else:
        assert text.count("/*") == text.count("*/")
