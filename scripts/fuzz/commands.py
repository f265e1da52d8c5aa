"""Samples of an answer through the other commands: each must say what `solve` said."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
from oracle import placements
from oracle.answers import Finding, Question, question, require, verify_table
from process import ROOT, Done
from session import Session, leaves_swizzles_out


def check(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    same_counts(
        session, "check", session.call("check", "p.json", "--table", "t.npy", "--json", "--no-fix"), answer
    )


def check_offset(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    if "lookup" not in answer["offset"]:
        done = session.call("check", "p.json", "--offset", answer["offset"], "--json")
        same_counts(session, "check --offset", done, answer)


def same_counts(session: Session, what: str, done: Done, answer: dict) -> None:
    """What `check` counts is what `solve` counted; at widths that may change, it is not more."""
    audit = json.loads(done.out)
    require(
        done.code == (1 if audit["excess"] else 0), f"{what}: exit {done.code}", (done.err, audit["excess"])
    )
    if widths(session):
        totals = [sum(a["wavefronts"] for a in side["accesses"]) for side in (audit, answer)]
        weights = any("weight" in a for a in session.problem["accesses"])
        # Of what conflicts, `check` may count widths that are cheaper all the same.
        bound = answer["status"] == "optimal" and "--conflict-free" not in session.case["options"]
        fair = totals[0] == totals[1] or (totals[0] < totals[1] and not bound)
        require(fair or weights, f"{what}: widths that cost otherwise than solve's", totals)
        return
    keys = ("name", "op", "wavefronts", "ideal", "excess", "bank_conflicts")
    rows = [[{k: a[k] for k in keys} for a in side["accesses"]] for side in (audit, answer)]
    require(rows[0] == rows[1], f"{what} counts otherwise than solve", rows)
    for key in ("bytes", "excess", "weighted_excess"):
        require(audit[key] == answer[key], f"{what}: {key} is not solve's", (audit[key], answer[key]))


def audit(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    """A table with one element moved at random: exit 0 only where it is sound and free of conflicts."""
    flat = [int(v) for v in table.ravel()]
    k = session.rng.randrange(len(flat))
    flat[k] = session.rng.choice(
        [flat[k] + 1, flat[k] + asked.tile.size, flat[(k * 7) % len(flat)], flat[k] + 64]
    )
    np.save(session.folder / "moved.npy", np.array(flat, np.int64).reshape(table.shape))
    done = session.call("check", "p.json", "--table", "moved.npy", "--json", "--no-fix")
    if done.code == 2:
        return
    audit = json.loads(done.out)
    asked = question(asked.problem, session.device_file, audit["accesses"])  # at the widths that serve it
    moved = np.array(flat, np.int64).reshape(table.shape)
    try:
        whole = max(128, *(a.rule.bank_bytes * a.rule.row_words for a in asked.accesses))
        verify_table(asked, moved, {**audit, "alignment_bytes": whole})
        sound = True
    except Finding as found:
        sound = found.kind
    if sound is True:
        most = session.problem.get("layout", {}).get("max_bytes", audit["bytes"])  # no option
        wrong = audit["excess"] or audit["bytes"] > most
        require(done.code == (1 if wrong else 0), f"check of a sound table: exit {done.code}", audit)
    elif sound in (
        "elements overlap",
        "element not at its alignment",
        "misaligned access",
        "negative offset",
        "a byte's elements are apart",
    ):
        require(done.code == 1, f"check passes a table: {sound}", (flat, audit))
    else:
        raise Finding(f"check of a moved table: {sound}", (flat, audit))


def compare(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    done = session.call("compare", "p.json", "--json")
    if done.code == 2:
        session.told["compare refused: " + re.sub(r"[0-9]+", "0", done.err.strip())[:90]] += 1
        return
    data = json.loads(done.out)
    comparable = (
        not session.case["options"]
        and asked.constraints.get("minimise", "excess") == "excess"
        and answer["status"] == "optimal"
        and not widths(session)
    )
    for row in data["rows"]:
        if row["offset"] is None or not row["accesses"] or "lookup" in row["offset"]:
            continue
        check_row(session, row, data)
        unsearched = "^" in row["offset"] and leaves_swizzles_out(answer["proof"]["bytes"]["scope"])
        if comparable and row["status"] != "given" and not unsearched:
            excess, least = weighted(session, row), answer["weighted_excess"]
            about = (row, least, answer["bytes"])
            require(excess > least - 1e-9, "compare has less excess than solve's optimum", about)
            require(
                excess > least + 1e-9 or row["bytes"] >= answer["bytes"], "compare has fewer bytes", about
            )


def widths(session: Session) -> bool:
    return any(isinstance(a.get("bytes"), list) for a in session.problem["accesses"])


def weighted(session: Session, row: dict) -> float:
    asked = question(session.problem, session.device_file, row["accesses"])
    return placements.cost(
        asked.tile, asked.accesses, [int(v) for v in table_of(asked, row["offset"]).ravel()]
    )


def check_row(session: Session, row: dict, data: dict) -> None:
    reports = row["accesses"]
    if data.get("widths"):
        reports = [{**r, "bytes": data["widths"].get(r["name"], r.get("bytes"))} for r in reports]
        reports = [{k: v for k, v in r.items() if v is not None} for r in reports]
    asked = question(session.problem, session.device_file, reports)
    table = table_of(asked, row["offset"])
    try:
        verify_table(asked, table, {**row, "weighted_excess": None})
    except Finding as found:
        raise Finding(f"compare, row {row['family']}: {found.kind}", (found.detail, row["offset"])) from None


def table_of(asked: Question, offset: str) -> np.ndarray:
    tile, code = asked.tile, compile(offset, "offset", "eval")
    table = np.zeros(tile.shape, np.int64)
    for x in np.ndindex(tile.shape):
        env = {f"x{d}": int(v) for d, v in enumerate(x)} | {"min": min, "max": max, "__builtins__": {}}
        value = int(eval(code, env))
        table[x] = value // tile.packed if tile.packed > 1 else value * tile.size
    return table


def explain(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    done = session.call("explain", "p.json", "--json")
    if done.code == 2:
        session.told["explain refused: " + re.sub(r"[0-9]+", "0", done.err.strip())[:90]] += 1
        return
    told = json.loads(done.out)
    if told["conflict_free"] is False and told["scope"] == "every layout":
        require(answer["excess"], "explain refutes what solve found", told)
    if told["conflict_free"] is True:
        require(
            answer["status"] != "optimal"
            or not answer["weighted_excess"]
            or session.case["options"]
            or asked.constraints
            or widths(session),
            "explain finds what solve refutes",
            told,
        )
    if told.get("lower_bound") is not None and told["scope"] == "every layout" and not widths(session):
        require(told["lower_bound"] <= answer["weighted_excess"] + 1e-9, "explain: bound above solve's", told)
        proved = (
            answer["proof"]["every_layout"] or answer["proof"]["weighted_excess"] or answer["proof"]["excess"]
        )
        if told["lower_bound"] > proved["lower_bound"] or proved["scope"] != "every layout":
            session.refute(
                asked, 4 * asked.tile.tight_bytes + 512, told["lower_bound"], "explain: false bound"
            )


def show(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    done = session.call("show", "p.json", "--width", session.rng.choice([80, 120, 200]))
    if done.code == 2:
        session.told["show refused: " + re.sub(r"[0-9]+", "0", done.err.strip())[:90]] += 1


def emit(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    (session.folder / "r.json").write_text(json.dumps(answer))
    done = session.call("emit", "r.json", "--lang", "c", "-o", "code.h", "--problem", "p.json")
    require(done.code in (0, 1), "emit refuses solve's answer", done.err)
    name = session.problem["name"]
    loops = "".join(f"for (uint32_t x{d} = 0; x{d} < {n}; ++x{d}) " for d, n in enumerate(table.shape))
    coordinates = ", ".join(f"x{d}" for d in range(table.ndim))
    (session.folder / "m.c").write_text(
        '#include <stdio.h>\n#include "code.h"\n'
        f'int main(void) {{ {loops}printf("%u\\n", {name}_offset_bytes({coordinates})); return 0; }}\n'
    )
    built = subprocess.run(
        ["gcc", "-std=c99", "-Wall", "-Wno-unused-function", "-o", "m", "m.c"],
        cwd=session.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    require(built.returncode == 0, "emitted C does not compile", built.stderr)
    require("warning" not in built.stderr, "emitted C warns", built.stderr)
    ran = subprocess.run(["./m"], cwd=session.folder, capture_output=True, text=True, check=True)
    require(
        list(map(int, ran.stdout.split())) == table.ravel().tolist(),
        "emitted C is not the table",
        ran.stdout[:200],
    )


def certificate(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    certified(session, any(a.any_is for a in asked.accesses))


def certified(session: Session, run_time_values: bool = False) -> None:
    """What is written to support the answer is confirmed, wherever there is a certificate."""
    if session.case["options"]:
        return  # what options change belongs in the file, says the checker
    done = session.call("solve", "p.json", "--certificate", "c.json")
    if done.code == 2:
        require(run_time_values, "certificate refused", done.err)
        return
    command = [
        sys.executable,
        str(ROOT / "scripts" / "checkers" / "check_certificate.py"),
        "p.json",
        "c.json",
        *filter(None, [session.device_file]),
    ]
    ran = subprocess.run(command, cwd=session.folder, capture_output=True, text=True, check=False)
    require(
        ran.returncode in (0, 3),
        f"certificate checker: {ran.returncode}",
        ran.stdout[-300:] + ran.stderr[-800:],
    )


def again(session: Session, answer: dict, asked: Question, table: np.ndarray, workers: int = 1) -> None:
    done = session.call("solve", "p.json", "--json", "--workers", workers, *session.case["options"])
    same_answer(session, answer, json.loads(done.out), done.wall_s, f"again with {workers} workers", workers)


def same_answer(
    session: Session, answer: dict, other: dict, wall_s: float, what: str, workers: int = 1
) -> None:
    """Where both are decided, the same layout; by several workers, one as good."""
    if not "optimal" == answer["status"] == other["status"]:
        return
    # What weighs nothing may cost more where time ends.
    keys = ("weighted_excess", "bytes") if workers > 1 else ("offset", "excess", "bytes", "layout")
    differ = [k for k in keys if answer[k] != other[k]]
    near = max(session.solve_wall_s, wall_s) > 0.2 * session.limit  # the share of its first stage
    if workers == 1 and near and all(answer[k] == other[k] for k in ("weighted_excess", "bytes")):
        return  # the time limit may have cut the search for the cheaper index
    require(not differ, f"{what}: {differ}", [(answer[k], other[k]) for k in differ])


def workers(session: Session, answer: dict, asked: Question, table: np.ndarray) -> None:
    again(session, answer, asked, table, workers=2)


COMMANDS = {
    "check": check,
    "check offset": check_offset,
    "audit": audit,
    "compare": compare,
    "explain": explain,
    "show": show,
    "emit": emit,
    "certificate": certificate,
    "again": again,
    "workers": workers,
}
