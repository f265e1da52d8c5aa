"""Everything that a problem file can say, alone and in pairs, in every command: one count, or one line why not.

A pair works, or it is refused by one line that names one of its features. What `solve` answers costs the same
in `check`, `compare`, `explain`, `show`, the code and the certificate.
"""

import itertools
import json
import re

import pytest
from click.testing import CliRunner
from written import access_from, data_of, saved

from layoutopt import Status, solve
from layoutopt.cli.commands import main
from layoutopt.errors import LayoutoptError
from layoutopt.files.file import from_data
from layoutopt.report.text import report


def layout(**constraints):
    return lambda data: data.setdefault("layout", {}).update(constraints)


def widths(data):
    data["accesses"][0]["bytes"] = [8, 4]


def packed(data):
    rows, columns = data["accesses"]
    data["tile"] = {"shape": [8, 64], "element": "i4"}
    rows |= {"index": ["tid // 4", "16*(tid % 4)"], "for": {"i": 1}}
    columns |= {"index": ["tid % 8", "8*(tid // 8 + 4*i)"], "for": {"i": 2}}


def run_time(data):
    columns = data["accesses"][1]
    columns["any"] = {"v": columns.pop("for")["i"]}
    columns["index"] = [re.sub(r"\bi\b", "v", text) for text in columns["index"]]


def expected(data):
    """All lanes choose from the same words, so that the expectation is exact."""
    columns = data["accesses"][1]
    columns.pop("for")
    columns |= {"any": {"v": 8}, "any_is": "uniform", "index": ["v", "0"]}


def free_lanes(data):
    data["accesses"][0] |= {"lanes": "free", "global": {"contiguous": 16, "order": "row"}}


def free_values(data):
    data["accesses"][1]["values"] = "free"


def weights(data):
    data["accesses"][1]["weight"] = 2.5


def by_itself(data):
    data["accesses"].append({"name": "out", "op": "tma.store"})


def offset(data):
    rows, columns = data["tile"]["shape"]
    layout(offset=f"x0*{columns + 4 * columns // rows} + x1")(data)


def published(data):
    columns = data["tile"]["shape"][1]
    data["published"] = {"offset": f"x0*{columns} + x1", "bytes": 4 * 64}


def tiles(data):
    one = {"name": "t", **data.pop("tile"), "layout": data.pop("layout", {})}
    data["tiles"] = [one, {"name": "u", "shape": [8], "element": "f32"}]
    for access in data["accesses"]:
        access["tile"] = "t"
    bias = access_from("bias: load 4 [tid % 8]; tile u")
    data["accesses"].append(bias)


# In the order in which they are applied, with the words by which a line may name them.
FEATURES = {
    "packed": (packed, "less than a byte|share a byte"),
    "widths": (widths, r"\.bytes\b"),
    "any": (run_time, r"\.any\b|run time"),
    "uniform": (expected, r"\.any\b|run time"),
    "free lanes": (free_lanes, "lanes"),
    "free values": (free_values, "values"),
    "weights": (weights, "weight"),
    "by itself": (by_itself, "by itself|hardware"),
    "families": (layout(families=["none", "pad", "xor"]), "families"),
    "max_bytes": (layout(max_bytes=400), "max_bytes"),
    "pitch": (layout(pitch_multiple_bytes=8), "pitch_multiple_bytes"),
    "order": (layout(order=[0, 1]), "order"),
    "alignment": (layout(alignment_bytes=256), "alignment_bytes"),
    "bytes first": (layout(minimise="bytes"), "minimise"),
    "instructions first": (layout(minimise="instructions"), "minimise"),
    "time first": (layout(minimise="time"), "minimise"),
    "offset": (offset, "offset"),
    "published": (published, "published"),
    "tiles": (tiles, "tile"),
}
# Two values of one field.
FIRST = {"bytes first", "instructions first", "time first"}
# Values are free by the same code as lanes.
EXCLUDED = ({"any", "uniform"}, *({"free values", name} for name in FEATURES if name not in ("any", "tiles")))
ALONE = [(name,) for name in FEATURES]
EVERY = itertools.combinations(FEATURES, 2)
PAIRS = [pair for pair in EVERY if {*pair} not in EXCLUDED and len(FIRST & {*pair}) < 2]


def problem(names):
    data = data_of("""8x8 f32, 32 threads
        rows: store 8 [tid // 4, 2*(tid % 4)]; i<1
        columns: load 4 [tid % 8, tid // 8 + 4*i]; i<2""")
    for name, (change, _) in FEATURES.items():
        if name in names:
            change(data)
    if "instructions first" in names:  # pads of any size, too, would take most of the time of all
        padded = ["pad"] if {"pitch", "max_bytes"} & set(names) else []
        data.setdefault("layout", {}).setdefault("families", ["none", *padded, "xor"])
    return data


def asked(names, *arguments):
    """What a command prints; None where it refuses in one line that names a feature."""
    outcome = CliRunner().invoke(main, [*map(str, arguments)])
    error = outcome.exception
    if outcome.exit_code in (0, 1) and (error is None or isinstance(error, SystemExit)):
        return outcome.stdout
    assert isinstance(error, SystemExit | LayoutoptError), (arguments, error)
    text = outcome.stderr.strip().splitlines()[-1] if isinstance(error, SystemExit) else str(error)
    assert "\n" not in text
    assert any(re.search(FEATURES[name][1], text) for name in names), (arguments, text)
    return None


def counts(answer):
    return [[a["name"], a["wavefronts"], a["ideal"], a["bank_conflicts"]] for a in answer["accesses"]]


@pytest.mark.parametrize("names", [*ALONE, *PAIRS], ids="+".join)
def test_features_work_together_or_are_refused_by_name(names, tmp_path):
    path, table = saved(tmp_path, "problem.json", problem(names)), tmp_path / "table.npy"

    def data(command, *arguments):
        printed = asked(names, command, path, *arguments, "--json")
        return None if printed is None else json.loads(printed)

    solved = data("solve", "--table", table)
    if solved is None:
        return
    assert solved["status"] in ("optimal", "feasible"), solved["reason"]
    if "tiles" in names:
        assert [a["op"] for tile in solved["tiles"] for a in tile["result"]["accesses"]]
        return
    excess = solved["excess"]
    audit = data("check", "--table", table)
    for field in ("excess", "bytes", "weighted_excess"):
        assert audit[field] == solved[field]
    assert counts(audit) == counts(solved)
    emitted = ("emit", saved(tmp_path, "result.json", solved), "--problem", path)
    assert float(re.search(r"([0-9.]+) excess wavefronts?", asked(names, *emitted))[1]) == excess
    if asked(names, *emitted, "--self-test") is None:
        assert {"any", "uniform"} & set(names)
    compared, explained, shown = data("compare"), data("explain"), data("show", "--layout", "solved")
    if compared is not None and not FIRST & set(names):
        (row,) = [row for row in compared["rows"] if row["family"] == "all"]
        assert (row["excess"], row["bytes"]) == (excess, solved["bytes"])
    if explained is not None:
        assert explained["excess"] == excess
        # Where excess does not come first, the answer may have conflicts that others have not.
        assert explained["conflict_free"] in (excess == 0, None, bool(FIRST & set(names)))
    if shown is not None:
        (wavefronts,) = [a["wavefronts"] for a in solved["accesses"] if a["name"] == shown["access"]]
        assert shown["pictures"][-1]["access_wavefronts"] == wavefronts


def test_conflicts_of_weight_0_are_conflicts():
    """They cost nothing, so that no search looks at them; but a layout with them is not free of conflicts."""
    problem = from_data(data_of("4x32 f32, 2 threads; families none", "a: store 4 [tid % 4, 0]; weight 0"))
    found = solve(problem)
    assert found.status is Status.OPTIMAL
    said = "optimal: 1 excess wavefront remains (more than the data needs), proved best as weighted;"
    assert said in report(problem, found)
    refused = solve(problem, conflict_free=True)
    assert (refused.status, "weight 0" in refused.reason) == (Status.UNKNOWN, True)
