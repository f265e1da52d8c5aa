"""What the record of public kernels holds: counters of an H200, and predictions of their machine code."""

import json
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "measure"))
import record_public

ROWS = json.loads(record_public.RECORD.read_text())["kernels"]
MEASURED = [row for row in ROWS if "counters" in row and "predicted" in row]


def test_what_is_certain_is_exact():
    for row in MEASURED:
        for found in (row["predicted"], row["with_data"]):
            if found.get("certain"):
                assert record_public.exact(row, found), row["name"]


def test_enough_was_tried():
    assert len(MEASURED) >= 190
    certain = [row for row in MEASURED if row["predicted"].get("certain")]
    conflicts = [
        r for r in certain if any(r["counters"][f"bank_conflicts_{part}"] for part in ("ld", "st", "atom"))
    ]
    assert len(certain) >= 160
    assert len(conflicts) >= 35


def test_what_depends_on_no_data_is_certain():
    """The table says which addresses, lanes or branches come from data."""
    launches = {k["name"]: k for source in record_public.table()["sources"] for k in source["kernels"]}
    for row in MEASURED:
        if not launches[row["name"]].get("data_dependent"):
            assert row["predicted"].get("certain"), row["name"]


def test_the_page_shows_the_record():
    text = record_public.DOCS.read_text().split(record_public.MARK)[1]
    assert text.strip().splitlines() == record_public.summary_lines(ROWS)
