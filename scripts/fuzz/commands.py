"""Samples of an answer through the other commands, and the same problem said otherwise: the answer stays."""

import copy
import json
import subprocess

import numpy as np
from campaign import judge
from oracle import placements
from oracle.answers import Finding, Question, bytes_of, offsets_of, question, require, verify_table
from process import ROOT, Done, call
from session import Session, leaves_swizzles_out

UNSOUND = {
    *("elements overlap", "element not at its alignment", "misaligned access", "negative offset"),
    "a byte's elements are apart",
}


# What `check` counts ------------------------------------------------------------------------------


def check(session: Session) -> None:
    same_counts(session, "p.json", "--table", "t.npy", "--no-fix")


def check_offset(session: Session) -> None:
    if "lookup" not in session.answer["offset"]:
        same_counts(session, "p.json", "--offset", session.answer["offset"])


def arrays(session: Session) -> None:
    """Every access as the coordinates of its lanes."""
    entries, asked = session.problem["accesses"], session.asked
    if widths(session) or any("any" in e or isinstance(e.get("weight"), str) for e in entries):
        return
    problem = copy.deepcopy(session.problem)
    for entry, access in zip(problem["accesses"], asked.accesses, strict=True):
        for key in ("index", "where", "for"):
            entry.pop(key, None)
        # Lanes beyond those that give a matrix instruction its addresses do not matter.
        given = 8 * int(entry["op"].split(".x")[1][0]) if "matrix" in entry["op"] else access.merge_lanes
        lanes = range(access.merge_lanes)
        starts = [[issue.first.get(lane, (0,))[0] for lane in lanes] for issue in access.issues]
        entry["coordinates"] = np.stack(np.unravel_index(starts, asked.tile.shape), -1).tolist()
        taking = [{*issue.first, *range(given, len(lanes))} for issue in access.issues]
        entry["active"] = [[lane in some for lane in lanes] for some in taking]
        if not any(map(any, entry["active"])):
            return
    same_counts(session, session.write("arrays.json", problem), "--table", "t.npy", "--no-fix")


def template(session: Session) -> None:
    """Extents and threads as parameters with one value each."""
    extents = {f"Q{d}": extent for d, extent in enumerate(session.asked.tile.shape)}
    problem = copy.deepcopy(session.problem) | {"threads": "Qt"}
    problem["params"] = extents | {"Qt": session.problem["threads"]}
    problem["tile"]["shape"] = list(extents)
    problem.pop("published", None)
    same_counts(session, session.write("template.json", problem), "--table", "t.npy", "--no-fix")


def same_counts(session: Session, *arguments: str) -> None:
    """What `check` counts is what `solve` counted; at widths that may change, it is not more."""
    done, answer, what = session.call("check", *arguments, "--json"), session.answer, f"check {arguments[:2]}"
    require(done.code != 2, f"{what}: refused", done.err)
    audit = json.loads(done.out)
    expected = 1 if audit["excess"] else 0
    require(done.code == expected, f"{what}: exit {done.code}", (done.err, audit["excess"]))
    if widths(session):
        totals = [sum(a["wavefronts"] for a in side["accesses"]) for side in (audit, answer)]
        weights = any("weight" in a for a in session.problem["accesses"])
        # Of what conflicts, `check` may count widths that are cheaper all the same.
        bound = answer["status"] == "optimal" and "--conflict-free" not in session.options
        fair = totals[0] == totals[1] or (totals[0] < totals[1] and not bound)
        require(fair or weights, f"{what}: widths that cost otherwise than solve's", totals)
        return
    keys = ("name", "op", "wavefronts", "ideal", "excess", "bank_conflicts")
    rows = [[{k: a[k] for k in keys} for a in side["accesses"]] for side in (audit, answer)]
    require(rows[0] == rows[1], f"{what} counts otherwise than solve", rows)
    for key in ("bytes", "excess", "weighted_excess"):
        require(audit[key] == answer[key], f"{what}: {key} is not solve's", (audit[key], answer[key]))


def widths(session: Session) -> bool:
    return any(isinstance(a.get("bytes"), list) for a in session.problem["accesses"])


def audit(session: Session) -> None:
    """A table with one element moved at random: exit 0 only where it is sound and free of conflicts."""
    moved, asked = session.table.copy(), session.asked
    flat = moved.ravel()
    k = session.rng.randrange(len(flat))
    near = [flat[k] + step for step in (1, asked.tile.size, 64)]
    flat[k] = session.rng.choice([*near, flat[k * 7 % len(flat)]])
    np.save(session.folder / "moved.npy", moved)
    done = session.call("check", "p.json", "--table", "moved.npy", "--json", "--no-fix")
    if done.code == 2:
        return
    audit = json.loads(done.out)
    about = (flat.tolist(), audit)
    asked = question(asked.problem, session.device_file, audit["accesses"])  # at the widths that serve it
    try:
        whole = max(128, *(a.rule.bank_bytes * a.rule.row_words for a in asked.accesses))
        verify_table(asked, moved, {**audit, "alignment_bytes": whole})
    except Finding as found:
        if found.kind not in UNSOUND:
            raise Finding(f"check of a moved table: {found.kind}", about) from None
        require(done.code == 1, f"check passes a table: {found.kind}", about)
    else:
        most = session.problem.get("layout", {}).get("max_bytes", audit["bytes"])  # no option
        wrong = audit["excess"] or audit["bytes"] > most
        require(done.code == (1 if wrong else 0), f"check of a sound table: exit {done.code}", audit)


# What other commands say --------------------------------------------------------------------------


def compare(session: Session) -> None:
    data, answer = session.told_of(session.call("compare", "p.json", "--json")), session.answer
    if data is None:
        return
    plain = not session.options and not widths(session)
    by_excess = session.asked.constraints.get("minimise", "excess") == "excess"
    chooses = any(access.get("any") for access in session.problem["accesses"])
    comparable = plain and by_excess and not chooses and answer["status"] == "optimal"
    for row in data["rows"]:
        if row["offset"] is None or not row["accesses"] or "lookup" in row["offset"]:
            continue
        check_row(session, row, data.get("widths") or {})
        unsearched = "^" in row["offset"] and leaves_swizzles_out(answer["proof"]["bytes"]["scope"])
        if comparable and row["status"] != "given" and not unsearched:
            excess, least = weighted(session, row), answer["weighted_excess"]
            about = (row, least, answer["bytes"])
            require(excess > least - 1e-9, "compare has less excess than solve's optimum", about)
            fewer = excess <= least + 1e-9 and row["bytes"] < answer["bytes"]
            require(not fewer, "compare has fewer bytes", about)


def weighted(session: Session, row: dict) -> float:
    asked = question(session.problem, session.device_file, row["accesses"])
    return placements.cost(asked.tile, asked.accesses, table_of(asked, row["offset"]).ravel().tolist())


def check_row(session: Session, row: dict, chosen: dict) -> None:
    """The layout of a row, evaluated at the widths that `compare` chose."""
    reports = [{**r, "bytes": chosen.get(r["name"], r.get("bytes"))} for r in row["accesses"]]
    reports = [{k: v for k, v in r.items() if v is not None} for r in reports]
    asked = question(session.problem, session.device_file, reports if chosen else row["accesses"])
    try:
        verify_table(asked, table_of(asked, row["offset"]), {**row, "weighted_excess": None})
    except Finding as found:
        raise Finding(f"compare, row {row['family']}: {found.kind}", (found.detail, row["offset"])) from None


def table_of(asked: Question, offset: str) -> np.ndarray:
    return bytes_of(asked.tile, offsets_of(asked.tile, offset))


def explain(session: Session) -> None:
    told, answer = session.told_of(session.call("explain", "p.json", "--json")), session.answer
    if told is None:
        return
    every, bound = told["scope"] == "every layout", told.get("lower_bound")
    if told["conflict_free"] is False and every:
        require(answer["excess"], "explain refutes what solve found", told)
    if told["conflict_free"] is True and answer["status"] == "optimal" and answer["weighted_excess"]:
        free = session.options or session.asked.constraints or widths(session)
        require(free, "explain finds what solve refutes", told)
    if bound is not None and every and not widths(session):
        require(bound <= answer["weighted_excess"] + 1e-9, "explain: bound above solve's", told)
        proof = answer["proof"]
        proved = proof["every_layout"] or proof["weighted_excess"] or proof["excess"]
        if bound > proved["lower_bound"] or proved["scope"] != "every layout":
            session.refute(4 * session.asked.tile.tight_bytes + 512, bound, "explain: false bound")


def show(session: Session) -> None:
    done = session.call("show", "p.json", "--width", session.rng.choice([80, 120, 200]))
    if done.code == 2:
        session.told["show refused"] += 1


def emit(session: Session) -> None:
    """Emitted C, compiled and run at every coordinate."""
    session.write("r.json", session.answer)
    done = session.call("emit", "r.json", "--lang", "c", "-o", "code.h", "--problem", "p.json")
    require(done.code in (0, 1), "emit refuses solve's answer", done.err)
    shape = session.table.shape
    loops = "".join(f"for (uint32_t x{d} = 0; x{d} < {n}; ++x{d}) " for d, n in enumerate(shape))
    offset = f"{session.problem['name']}_offset_bytes({', '.join(f'x{d}' for d in range(len(shape)))})"
    (session.folder / "m.c").write_text(
        '#include <stdio.h>\n#include "code.h"\n'
        f'int main(void) {{ {loops}printf("%u\\n", {offset}); return 0; }}\n'
    )
    compiler = ["gcc", "-std=c99", "-Wall", "-Wno-unused-function", "-o", "m", "m.c"]
    within = {"cwd": session.folder, "capture_output": True, "text": True}
    built = subprocess.run(compiler, check=False, **within)
    require(built.returncode == 0, "emitted C does not compile", built.stderr)
    require("warning" not in built.stderr, "emitted C warns", built.stderr)
    ran = subprocess.run(["./m"], check=True, **within).stdout
    same = [*map(int, ran.split())] == session.table.ravel().tolist()
    require(same, "emitted C is not the table", ran[:200])


def certificate(session: Session) -> None:
    """What is written to support the answer is confirmed, wherever there is a certificate."""
    if session.options:
        return  # what options change belongs in the file, says the checker
    done = session.call("solve", "p.json", "--certificate", "c.json")
    if done.code == 2:
        run_time_values = any("any" in access for access in session.problem["accesses"])
        require(run_time_values, "certificate refused", done.err)
        return
    checker = ROOT / "scripts" / "checkers" / "check_certificate.py"
    files = ["p.json", "c.json", *filter(None, [session.device_file])]
    ran = call(*files, folder=session.folder, script=checker, cpu_s=600)
    judge(ran, "checker", 600, lines=True)
    require(ran.code in (0, 3), f"certificate checker: {ran.code}", ran.out[-300:] + ran.err[-800:])


# The same question again --------------------------------------------------------------------------


def again(session: Session, workers: int = 1) -> None:
    done = session.call("solve", "p.json", "--json", "--workers", workers, *session.options)
    same_answer(session, json.loads(done.out), done.wall_s, f"again with {workers} workers", workers)


def workers(session: Session) -> None:
    again(session, workers=2)


def several(session: Session) -> None:
    """The problem twice in one command: a line each."""
    done = session.call("solve", "p.json", "p.json", "--json", *session.options, lines=True)
    rows = [json.loads(line) for line in done.out.splitlines()]
    require(len(rows) == 2, "solve of two problems prints otherwise than two lines", done.out[:300])
    for row in rows:
        same_answer(session, row, done.wall_s / 2, "one of several")


def sweep(session: Session) -> None:
    """A sweep of the problem, and what it exports."""
    if set(session.options) - {"--conflict-free"}:
        return
    stored = ("-o", "s.sqlite", "--workers", 1, "--export", "o.json", "--json")
    done: Done = session.call("sweep", "p.json", *stored, *session.options)
    require(done.code in (0, 1, 3), "sweep refuses what solve answers", done.err)
    (row,) = json.loads((session.folder / "o.json").read_text())
    same_answer(session, row["result"], done.wall_s, "a sweep's")


def same_answer(session: Session, other: dict, wall_s: float, what: str, workers: int = 1) -> None:
    """Where both are decided, the same layout; by several workers, one as good."""
    answer = session.answer
    if not "optimal" == answer["status"] == other["status"]:
        return
    if answer["proof"]["excess"]["scope"] != other["proof"]["excess"]["scope"]:
        return  # where time ended, tables may not have been sought
    # What weighs nothing may cost more where time ends.
    keys = ("weighted_excess", "bytes") if workers > 1 else ("offset", "excess", "bytes", "layout")
    differ = [k for k in keys if answer[k] != other[k]]
    near = max(session.solve_wall_s, wall_s) > 0.2 * session.limit  # the share of its first stage
    if workers == 1 and near and all(answer[k] == other[k] for k in ("weighted_excess", "bytes")):
        return  # the time limit may have cut the search for the cheaper index
    require(not differ, f"{what}: {differ}", [(answer[k], other[k]) for k in differ])


# How often each is asked.
COMMANDS = dict.fromkeys(
    (check, check_offset, audit, compare, explain, show, emit, certificate, again, workers), 0.06
) | {arrays: 0.03, template: 0.03, several: 0.03, sweep: 0.005}


# Several tiles ------------------------------------------------------------------------------------


def tile_set(session: Session) -> None:
    """Each tile in its place, in every stage, and nothing in anything's way."""
    answer, spans, excess = session.answer, [], 0
    if answer["status"] in ("infeasible", "unknown"):
        return
    tables = np.load(session.folder / "t.npy")
    for group in answer["tiles"]:
        require([p["tile"] for p in group["places"]] == group["tiles"], "tile set: places", group["places"])
        for place in group["places"]:
            name, base = place["tile"], place["base_bytes"]
            entry = next(t for t in session.problem["tiles"] if t["name"] == name)
            single = {
                **session.problem, "tile": {k: entry[k] for k in ("shape", "element")},
                "accesses": [a for a in session.problem["accesses"] if a["tile"] == name],
            }  # fmt: skip
            asked, own, table = question(single, None), own_answer(group, place, single), tables[name] - base
            verify_table(asked, table, {**own, "alignment_bytes": 1 << 20})
            for stage in range(entry.get("stages", 1)):
                start = base + stage * place["stage_bytes"]
                try:
                    verify_table(asked, table, {**own, "alignment_bytes": answer["alignment_bytes"]}, start)
                except Finding as found:
                    raise Finding(f"tile set, in place: {found.kind}", found.detail) from None
                spans.append((start, start + own["bytes"], name))
            excess += own["excess"]
    apart(session.problem.get("overlay", []), spans)
    end = max(end for _, end, _ in spans)
    require(answer["bytes"] == end, "tile set: bytes", (answer["bytes"], end))
    require(answer["excess"] == excess, "tile set: excess", (answer["excess"], excess))
    most = session.problem.get("layout", {}).get("max_bytes", end)
    require(end <= most, "tile set: max_bytes exceeded", end)


def own_answer(group: dict, place: dict, single: dict) -> dict:
    """What is said of one tile: the whole result, or its part of one that several share."""
    if len(group["tiles"]) == 1:
        return group["result"]
    names = [a["name"] for a in single["accesses"]]
    reports = [a for a in group["result"]["accesses"] if a["name"] in names]
    return {"bytes": place["bytes"], "accesses": reports, "excess": sum(r["excess"] for r in reports)}


def apart(overlay: list[list[str]], spans: list[tuple[int, int, str]]) -> None:
    when = {name: k for k, names in enumerate(overlay) for name in names}
    for k, (a, b, one) in enumerate(spans):
        for c, d, other in spans[k + 1 :]:
            together = one not in when or other not in when or when[one] == when[other]
            require(not together or b <= c or d <= a, "tile set: tiles overlap", (one, other, spans))
