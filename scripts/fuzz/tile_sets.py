"""An answer for several tiles: each tile in its place, in every stage, and nothing in anything's way."""

from __future__ import annotations

import numpy as np
from oracle.answers import Finding, question, require, verify_table
from session import Session


def tile_set(session: Session, answer: dict) -> None:
    if answer["status"] in ("infeasible", "unknown"):
        return
    tables = np.load(session.folder / "t.npy")
    spans, end, excess = [], 0, 0
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
                end = max(end, start + own["bytes"])
            excess += own["excess"]
    apart(session, spans)
    require(answer["bytes"] == end, "tile set: bytes", (answer["bytes"], end))
    require(answer["excess"] == excess, "tile set: excess", (answer["excess"], excess))
    most = session.problem.get("layout", {}).get("max_bytes", answer["bytes"])
    require(answer["bytes"] <= most, "tile set: max_bytes exceeded", answer["bytes"])


def own_answer(group: dict, place: dict, single: dict) -> dict:
    """What is said of one tile: the whole result, or its part of one that several share."""
    if len(group["tiles"]) == 1:
        return {**group["result"]}
    names = [a["name"] for a in single["accesses"]]
    reports = [a for a in group["result"]["accesses"] if a["name"] in names]
    return {"bytes": place["bytes"], "accesses": reports, "excess": sum(r["excess"] for r in reports)}


def apart(session: Session, spans: list[tuple[int, int, str]]) -> None:
    times = session.problem.get("overlay", [])
    when = {name: k for k, names in enumerate(times) for name in names}
    for k, (a, b, one) in enumerate(spans):
        for c, d, other in spans[k + 1 :]:
            if when.get(one, -1) != when.get(other, -2) and one in when and other in when:
                continue
            require(b <= c or d <= a, "tile set: tiles overlap", (one, other, spans))
