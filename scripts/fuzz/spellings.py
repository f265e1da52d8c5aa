"""The same problem said otherwise, as arrays, template, one of several, or sweep: the answer stays."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
from commands import same_answer, same_counts, widths
from oracle.answers import Question, require
from process import Done
from session import Session


def written(session: Session, name: str, problem: dict) -> str:
    (session.folder / name).write_text(json.dumps(problem))
    return name


def arrays(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    """Every access as the coordinates of its lanes."""
    entries = session.problem["accesses"]
    if widths(session) or any("any" in e or isinstance(e.get("weight"), str) for e in entries):
        return
    problem = copy.deepcopy(session.problem)
    shape = asked.tile.shape
    for entry, access in zip(problem["accesses"], asked.accesses, strict=True):
        for key in ("index", "where", "for"):
            entry.pop(key, None)
        # Lanes beyond those that give a matrix instruction its addresses do not matter.
        given = 8 * int(entry["op"].split(".x")[1][0]) if "matrix" in entry["op"] else access.merge_lanes
        entry["coordinates"], entry["active"] = [], []
        for issue in access.issues:
            starts = [issue.first.get(lane, (0,))[0] for lane in range(access.merge_lanes)]
            entry["coordinates"].append([[int(x) for x in np.unravel_index(s, shape)] for s in starts])
            entry["active"].append(
                [lane in issue.first or lane >= given for lane in range(access.merge_lanes)]
            )
        if not any(map(any, entry["active"])):
            return
    done = session.call(
        "check", written(session, "a.json", problem), "--table", "t.npy", "--json", "--no-fix"
    )
    require(done.code != 2, "accesses as arrays are refused", done.err)
    same_counts(session, "check of arrays", done, answer)


def template(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    """Extents and threads as parameters with one value each."""
    values = {f"Q{d}": extent for d, extent in enumerate(asked.tile.shape)} | {
        "Qt": session.problem["threads"]
    }
    problem = copy.deepcopy(session.problem) | {"params": values, "threads": "Qt"}
    problem["tile"]["shape"] = [f"Q{d}" for d in range(len(asked.tile.shape))]
    if "published" in problem:
        del problem["published"]
    done = session.call(
        "check", written(session, "q.json", problem), "--table", "t.npy", "--json", "--no-fix"
    )
    require(done.code != 2, "a template of one problem is refused", done.err)
    same_counts(session, "check of a template", done, answer)


def several(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    """The problem twice in one command: a line each."""
    done = session.call("solve", "p.json", "p.json", "--json", *session.case["options"])
    rows = [json.loads(line) for line in done.out.splitlines()]
    require(len(rows) == 2, "solve of two problems prints otherwise than two lines", done.out[:300])
    for row in rows:
        same_answer(session, answer, row, done.wall_s / 2, "one of several")


def sweep(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    """A sweep of the problem, and what it exports."""
    if set(session.case["options"]) - {"--conflict-free"}:
        return
    arguments: list[Any] = ["-o", "s.sqlite", "--workers", 1, "--export", "o.json", "--json"]
    done: Done = session.call("sweep", "p.json", *arguments, *session.case["options"])
    require(done.code in (0, 1, 3), "sweep refuses what solve answers", done.err)
    (row,) = json.loads((session.folder / "o.json").read_text())
    same_answer(session, answer, row["result"], done.wall_s, "a sweep's")


SPELLINGS = {"arrays": arrays, "template": template, "several": several, "sweep": sweep}
