"""The pictures of docs/families.md are what the formulas give."""

import re

import numpy as np
import pytest
from conftest import ROOT

from layoutopt.expressions.grammar import evaluate, parse
from layoutopt.layout.families import FAMILIES

PAGE = (ROOT / "docs" / "families.md").read_text()
PICTURES = re.findall(r"```layout\n(.*?)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("formula", "drawn"), PICTURES)
def test_picture(formula, drawn):
    grids = {f"x{d}": g for d, g in enumerate(np.indices((4, 4)))}
    offsets = np.broadcast_to(evaluate(parse(formula, frozenset(grids)), grids), (4, 4))
    assert len(np.unique(offsets)) == 16
    numbers = [[int(n) for n in line.split()] for line in drawn.splitlines()]
    assert numbers == np.hstack((offsets, offsets % 4)).tolist()


NAMED = [family for family in FAMILIES if not family.special_case_of]


def test_every_family_has_its_section():
    headings = [(family.name, family.heading) for family in NAMED]
    assert re.findall(r"^## (\w+): (.*)", PAGE, re.MULTILINE) == headings


@pytest.mark.parametrize("family", NAMED, ids=lambda family: family.name)
def test_the_page_says_what_the_list_says(family):
    assert f"| `{family.name}` | {family.adds} | {family.bytes} | {family.index} |" in PAGE
    section = PAGE.split(f"\n## {family.name}: ")[1]
    assert section.split("```layout\n")[1].splitlines()[0] == family.picture
