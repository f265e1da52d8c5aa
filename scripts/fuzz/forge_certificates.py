"""Forge certificates: false ones of every kind made from true ones; the checker must accept none.

    python scripts/fuzz/forge_certificates.py --count 2000 --seed 1

Small random problems are solved and certified, and rules falsify one statement each: of the file after it
was solved, or of the certificate. A forger can compute a digest as anybody can: where a rule changes the
file, the digest is made that of the changed file in every second forgery. A forgery is accepted where the
checker says that all of it holds (exit code 0). Exit code 1: one was accepted, or a true certificate was
called wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import itertools
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "checkers"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # where the oracle is

import check_certificate
from certificate.subject import digest
from generate import Maker, random_target, random_tile_set
from oracle.problem_file import hardware

from layoutopt import problem as problem_of
from layoutopt import solve
from layoutopt.errors import LayoutoptError
from layoutopt.hardware.devices import device
from layoutopt.problems.types import Problem
from layoutopt.search.certify import certificate, check_certifiable

Data = dict[str, Any]
# A problem file and a certificate that is false of it; nothing where the rule does not apply.
Forged = tuple[Data, Data] | None
Rule = Callable[[random.Random, Data, Data], Forged]


def verdict(problem: Data | str, given: Data | str) -> int:
    """What the checker says of a problem and a certificate, given as data or as the text of a file."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder, name)) for name in ("problem.json", "certificate.json")]
        for path, content in zip(paths, (problem, given), strict=True):
            Path(path).write_text(content if isinstance(content, str) else json.dumps(content))
        before, sys.argv = sys.argv, ["check_certificate.py", *paths]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                code = check_certificate.main()
        except SystemExit as wrong:
            code = 1 if isinstance(wrong.code, str) else int(wrong.code or 0)
        finally:
            sys.argv = before
    return code


# True certificates -------------------------------------------------------------------------------

FIXED = (
    {"tile": {"shape": [8, 8], "element": "f32"}, "threads": 32, "accesses": [
        {"name": "r", "op": "store", "bytes": 4, "index": ["tid // 8 + 4*i", "tid % 8"], "for": {"i": 2}},
        {"name": "c", "op": "load", "bytes": 4, "index": ["tid % 8", "tid // 8 + 4*i"], "for": {"i": 2}}]},
    {"tile": {"shape": [5, 20], "element": "f32"}, "threads": 32, "layout": {"families": ["none", "pad"]},
     "accesses": [
        {"name": "rows", "op": "load", "bytes": 4, "index": ["i", "lane % 20"], "for": {"i": 5}}]},
    {"tile": {"shape": [32, 32], "element": "f32"}, "threads": 32, "accesses": [
        {"name": "s", "op": "store", "bytes": 16, "index": ["tid", "4*i"], "for": {"i": 8}},
        {"name": "l", "op": "load", "bytes": 4, "index": ["i", "tid"], "for": {"i": 32}},
        {"name": "c", "op": "load", "bytes": 4, "index": ["tid", "i"], "for": {"i": 32}}]},
    {"tile": {"shape": [64, 16], "element": "f16"}, "threads": 128, "accesses": [
        {"name": "fill", "op": "tma.load"}, {"name": "a", "op": "wgmma.A"}]},
    {"tile": {"shape": [64, 64], "element": "f16"}, "threads": 128, "accesses": [
        {"name": "fill", "op": "tma.load"},
        {"name": "r", "op": "load", "bytes": 2, "index": ["tid % 64", "i"], "for": {"i": 4}}]},
    {"tile": {"shape": [32, 32], "element": "f32"}, "threads": 32, "layout": {"max_bytes": 4095},
     "accesses": [
        {"name": "l", "op": "load", "bytes": 4, "index": ["i", "tid"], "for": {"i": 32}}]},
    {"tile": {"shape": [32, 32], "element": "f32"}, "threads": 32, "accesses": [
        {"name": name, "op": "load", "bytes": 4, "index": index, "for": {"i": 32}}
        for name, index in (("r", ["i", "tid"]), ("c", ["tid", "i"]), ("d", ["tid", "(tid + i) % 32"]))]},
    {"tile": {"shape": [32], "element": "c128"}, "threads": 32, "accesses": [
        {"name": "s", "op": "store", "bytes": 16, "index": ["tid"]},
        {"name": "l", "op": "load", "bytes": 4, "index": ["tid"]}]},
    {"tile": {"shape": [16, 24], "element": "f32"}, "threads": 32,
     "layout": {"families": ["none", "pad", "order"]}, "accesses": [
        {"name": "r", "op": "store", "bytes": 4, "index": ["i", "tid % 24"], "for": {"i": 16}},
        {"name": "c", "op": "load", "bytes": 4, "index": ["tid % 16", "i"], "for": {"i": 24}}]},
    {"tile": {"shape": [16, 64], "element": "f16"}, "threads": 64, "layout": {"must_be": "tma"}, "accesses": [
        {"name": "r", "op": "load", "bytes": 4, "index": ["tid % 16", "tid // 16 * 2"]}]},
    {"tile": {"shape": [16, 64], "element": "f32"}, "threads": 64, "accesses": [
        {"name": "b", "op": "cp.async.bulk", "bytes": 256},
        {"name": "r", "op": "load", "bytes": 4, "index": ["tid % 16", "tid // 16 + 4*i"], "for": {"i": 16}}]},
)  # fmt: skip


def problems(rng: random.Random) -> Iterator[Data]:
    """Small problems: fixed ones, all of them first, and random ones of one tile and of several."""
    for number in itertools.count():
        kind = rng.random()
        if number < len(FIXED) or kind < 0.3:
            k = number if number < len(FIXED) else rng.randrange(len(FIXED))
            yield {
                "name": f"fixed {k}",
                "target": "sm_90a" if "tma" in str(FIXED[k]) else "sm_90",
                **FIXED[k],
            }
        elif kind < 0.5:
            yield random_tile_set(rng)
        else:
            target = random_target(rng)
            yield Maker(rng, target, hardware(target)).problem()


def certified(data: Data, rng: random.Random) -> Data | None:
    """The certificate of the answer to a problem; nothing where there is none."""
    try:
        asked = problem_of(data)
        check_certifiable(asked)
        gpu = device(asked.target)
        free = isinstance(asked, Problem) and rng.random() < 0.3
        answer = solve(asked, target=gpu, time_limit=1.0, conflict_free=free)
        return json.loads(json.dumps(certificate(asked, gpu, answer)))
    except LayoutoptError:
        return None


# Rules ---------------------------------------------------------------------------------------------


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value inside, with its path."""
    yield path, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from objects(part, (*path, key))


def changed(whole: Data, path: tuple[Any, ...], value: Any) -> Data:
    """The data with another value at a path."""
    found = copy.deepcopy(whole)
    at: Any = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return found


def certificates(given: Data) -> list[tuple[tuple[Any, ...], Data]]:
    """The certificates of single layouts, with their paths."""
    if "tiles" in given:
        return [(("tiles", k, "certificate"), part["certificate"]) for k, part in enumerate(given["tiles"])]
    return [((), given)]


def one_with_layout(rng: random.Random, given: Data) -> tuple[tuple[Any, ...], Data] | None:
    """One of them that has a layout."""
    found = [(path, own) for path, own in certificates(given) if own["layout"] is not None]
    return rng.choice(found) if found else None


def with_digest(rng: random.Random, problem: Data, given: Data) -> tuple[Data, Data]:
    """The certificate with the digest of the file as it is now, in every second case."""
    given = copy.deepcopy(given)
    if rng.random() < 0.5:
        for _, own in [((), given), *certificates(given)]:
            own["digest"] = digest(problem)
    return problem, given


def access_of(rng: random.Random, problem: Data) -> int:
    return rng.randrange(len(problem["accesses"]))


def lanes_freed(rng: random.Random, problem: Data, given: Data) -> Forged:
    """Lanes, values or widths are chosen, or values known at run time, after solving."""
    k = access_of(rng, problem)
    too_large = "tiles" in given and not given["tiles"]  # of which no access is looked at
    if "index" not in problem["accesses"][k] or too_large:
        return None
    more = rng.choice(
        [{"lanes": "free"}, {"values": "free"}, {"any": {"v": 2}}, {"any_is": "uniform", "any": {"b": 3}}]
    )
    return with_digest(rng, changed(problem, ("accesses", k), {**problem["accesses"][k], **more}), given)


def widths_opened(rng: random.Random, problem: Data, given: Data) -> Forged:
    """16 bytes chosen of [16, 8], where what the other choice would cost is not known to be more."""
    claimed = {name for _, own in certificates(given) if own["bound"]["excess"] for name in own["served"]}
    widths = [a.get("bytes") if a["name"] in claimed else None for a in problem["accesses"]]
    wide = [k for k, width in enumerate(widths) if isinstance(width, int) and width >= 8]
    if not wide:
        return None
    k = rng.choice(wide)
    either = changed(problem, ("accesses", k, "bytes"), [widths[k], widths[k] // 2])
    return with_digest(rng, either, given)


def constraint_added(rng: random.Random, problem: Data, given: Data) -> Forged:
    """A limit that the layout does not keep to, in the file, and in the certificate as well at times."""
    size = given["bytes"] if "tiles" in given else (given["layout"] or {}).get("bytes")
    if not size or problem.get("layout", {}).get("max_bytes"):
        return None
    false = {**problem, "layout": {**problem.get("layout", {}), "max_bytes": size - 1}}
    given = copy.deepcopy(given)
    if rng.random() < 0.5:
        given["max_bytes" if "tiles" in given else "constraints"] = (
            size - 1 if "tiles" in given else {**given["constraints"], "max_bytes": size - 1}
        )
    return with_digest(rng, false, given)


def problem_changed(rng: random.Random, problem: Data, given: Data) -> Forged:
    """The file says something else of an access than what was solved; the digest is the old one."""
    k = access_of(rng, problem)
    access = problem["accesses"][k]
    name, more = rng.choice(
        [("name", "other"), ("weight", 7), ("op", "atomic"), ("where", "tid < 3"), ("for", {"z": 3})]
    )
    if access.get(name) == more or (name == "weight" and "index" not in access):  # it counts for nothing
        return None
    return changed(problem, ("accesses", k), {**access, name: more}), given


def families_narrowed(rng: random.Random, problem: Data, given: Data) -> Forged:
    """Row-major alone was allowed, and the layout is another."""
    if "tiles" in given or given["layout"] is None or given["hardware"] or "must_be" in str(problem):
        return None
    size = given["layout"]["bytes"] // max(1, len(given["layout"]["byte_offsets"]))
    plain = all(at == k * size for k, at in enumerate(given["layout"]["byte_offsets"]))
    if plain or given["constraints"]["families"] or given["constraints"]["order"]:
        return None
    constraints = {**given["constraints"], "families": ["none"]}
    false = {**problem, "layout": {**problem.get("layout", {}), "families": ["none"]}}
    return with_digest(rng, false, {**given, "constraints": constraints})


def digest_changed(rng: random.Random, problem: Data, given: Data) -> Forged:
    """A digest of another problem, or none."""
    path, _ = rng.choice([((), given), *certificates(given)])
    if rng.random() < 0.5:
        return problem, changed(
            given, (*path, "digest"), rng.choice(["", "0" * 64, None, digest({"name": "x"})])
        )
    found = copy.deepcopy(given)
    at: Any = found
    for key in path:
        at = at[key]
    del at["digest"]
    return problem, found


def scope_relabelled(rng: random.Random, problem: Data, given: Data) -> Forged:
    """The words or the data of a scope are those of other layouts."""
    scopes = [
        (path, value) for path, value in objects(given) if isinstance(value, dict) and "covers" in value
    ]
    path, value = rng.choice(scopes)
    covers = [{"layouts": "every"}, {"layouts": "families", "families": ["none"], "max_bytes": None},
              {"layouts": "hardware", "by": ["tma"]}, {"layouts": "tiles", "max_bytes": 1}, {}]  # fmt: skip
    scope = rng.choice(
        ["every layout", "families none", "every layout of all", "the layouts of tma", "", "families"]
    )
    field, other = rng.choice([("covers", rng.choice(covers)), ("scope", scope)])
    return None if value[field] == other else (problem, changed(given, (*path, field), other))


def bound_raised(rng: random.Random, problem: Data, given: Data) -> Forged:
    """More excess or bytes than is proved, or than the layout has."""
    path, own = rng.choice([((), given), *certificates(given)])
    name = rng.choice(["excess", "at_least"])
    at = (
        ("bound", "excess")
        if name == "excess"
        else ("bytes_bound" if "bytes_bound" in own else "bytes", "at_least")
    )
    value = own[at[0]][at[1]]
    if given["status"] not in ("optimal", "infeasible"):
        return None  # the bound may be higher than what was proved
    # What refutes a layout without conflicts may force more than the one wavefront that was asked for.
    more = rng.choice([1, 2, 1000]) if given["status"] == "optimal" else 1000
    return problem, changed(given, (*path, *at), value + more)


def bound_is_arithmetic(rng: random.Random, problem: Data, given: Data) -> Forged:
    """What rests on the search is called arithmetic of every layout."""
    path, own = rng.choice([((), given), *certificates(given)])
    if "arithmetic" in own["bound"]["rests_on"] or verdict(problem, given) == 0:
        return None
    bound = {
        **own["bound"],
        "rests_on": "arithmetic: by hand",
        "scope": "every layout",
        "covers": {"layouts": "every"},
    }
    return problem, changed(given, (*path, "bound"), bound)


def _meets_its_bounds(problem: Data, own: Data) -> bool:
    """Whether nothing has less excess, or as little in fewer bytes; and no other objective comes first."""
    several = "tiles" in own
    layout, size = own if several else own["layout"], own["bytes_bound" if several else "bytes"]
    excess, used = layout["excess"], layout["bytes"]
    first = problem.get("layout", {}).get("minimise", "excess")
    return first == "excess" and (excess, used) == (own["bound"]["excess"], size["at_least"])


def status_raised(rng: random.Random, problem: Data, given: Data) -> Forged:
    """Another status, as it stands."""
    path, own = rng.choice([((), given), *certificates(given)])
    others = {"optimal", "infeasible", "unknown", "proved", ""} - {own["status"]}
    if own["status"] == "feasible" and _meets_its_bounds(problem, own):
        others.remove("optimal")  # which it is, though time ended before that was known
    return problem, changed(given, (*path, "status"), rng.choice(sorted(others)))


def layout_worse(rng: random.Random, problem: Data, given: Data) -> Forged:
    """Two elements change places, or all move, and the counts stay; or the counts change alone."""
    found = one_with_layout(rng, given)
    if found is None:
        return None
    path, own = found
    layout = copy.deepcopy(own["layout"])
    table = layout["byte_offsets"]
    kind = rng.choice(["onto", "wavefronts", "bytes", "excess", "cut", "apart"])
    if kind == "onto" and len(table) > 1:
        a, b = rng.sample(range(len(table)), 2)
        table[a] = table[b]
    elif kind == "wavefronts":
        name = rng.choice(sorted(layout["wavefronts"]))
        layout["wavefronts"][name] += rng.choice([-1, 1, 5])
    elif kind in ("bytes", "excess"):
        layout[kind] += rng.choice([-1, 1, 128])
    elif kind == "cut":
        table.pop()
    else:
        table[:] = [at + 1 for at in table]
    return problem, changed(given, (*path, "layout"), layout)


def rows_mirrored(rng: random.Random, problem: Data, given: Data) -> Forged:
    """Rows from right to left, where the families have strides only."""
    families, shape = problem.get("layout", {}).get("families"), problem.get("tile", {}).get("shape", [1])
    if (
        "tiles" in given
        or not families
        or not {*families} <= {"none", "pad", "order"}
        or given["layout"] is None
    ):
        return None
    table, last = given["layout"]["byte_offsets"], shape[-1]
    if last < 2 or len(table) % last or problem["tile"]["element"] in ("i4", "u4", "e2m1"):
        return None
    rows = [table[k : k + last][::-1] for k in range(0, len(table), last)]
    layout = {**given["layout"], "byte_offsets": [*itertools.chain(*rows)]}
    return problem, {**given, "layout": layout}


def refuted_relabelled(rng: random.Random, problem: Data, given: Data) -> Forged:
    """Something else was refuted, or a solvable problem is called infeasible."""
    refuted = ["a layout without conflicts", "a layout in scope that keeps to the constraints",
               "a layout of 1 bytes", "a layout of any kind", ""]  # fmt: skip
    if "tiles" in given:
        none = {"bytes": None, "excess": None, "tiles": [], "status": "infeasible"}
        return (problem, {**given, **none}) if given["tiles"] else None
    if given["infeasible"] is None:
        if given["layout"] is None or given["layout"]["excess"]:
            return None
        claim = {"refuted": rng.choice(refuted), "max_bytes": problem.get("layout", {}).get("max_bytes"),
                 "reason": "", "rests_on": "arithmetic"}  # fmt: skip
        bound = {**given["bound"], "excess": rng.choice([0, 1])}
        return problem, {**given, "status": "infeasible", "layout": None, "infeasible": claim, "bound": bound}
    other = rng.choice([text for text in refuted if text != given["infeasible"]["refuted"]])
    return problem, changed(given, ("infeasible", "refuted"), other)


def phases_unknown(rng: random.Random, problem: Data, given: Data) -> Forged:
    """Other phases than the GPU has, or a GPU that nobody knows."""
    if "tiles" in given and not given["tiles"]:  # too large, whatever the GPU
        return None
    if rng.random() < 0.3:
        told = {"target": "xpu_9", "problem": given["problem"]}
        return with_digest(rng, {**problem, "target": "xpu_9"}, {**given, **told})
    path, own = rng.choice(certificates(given)) if certificates(given) else ((), {"served": {}})
    if not own["served"]:
        return None
    name = rng.choice(sorted(own["served"]))
    rule = copy.deepcopy(own["served"][name])
    kind = rng.choice(
        ["phases", "merges_pairs", "split_words", "serialises_equal", "banks", "extra_wavefronts", "bytes"]
    )
    if kind == "phases":
        lanes = [*itertools.chain(*rule["phases"])]
        rule["phases"] = [lanes] if len(rule["phases"]) > 1 else [[lane] for lane in lanes]
    elif isinstance(rule[kind], bool):
        rule[kind] = not rule[kind]
    else:
        rule[kind] += 1
    return problem, changed(given, (*path, "served", name), rule)


def field_unknown(rng: random.Random, problem: Data, given: Data) -> Forged:
    """A field that no certificate has, wherever; or one less."""
    free = (
        "byte_offsets",
        "iteration",
        "wavefronts",
        "questions",
        "hardware",
        "constraints",
        "clique",
        "parity",
        "packing",
    )
    inner = [(p, v) for p, v in objects(given) if isinstance(v, dict) and not {*p} & {*free}]
    path, value = rng.choice([(p, v) for p, v in inner if not (p and p[-1] == "served")])
    found = copy.deepcopy(given)
    at: Any = found
    for key in path:
        at = at[key]
    if rng.random() < 0.5 or not value:
        at["checked"] = True
    else:
        left = sorted(at.keys() - {"reason", "source", "schema", "by", "questions"})
        del at[rng.choice(left)]
    return problem, found


def name_twice(rng: random.Random, problem: Data, given: Data) -> Forged:
    """A name twice in one object of a file: which of the two counts is a matter of the reader."""
    text = json.dumps(given)
    name = rng.choice(["status", "bound", "target", "problem", "digest"])
    return problem, text[:-1] + f', "{name}": {json.dumps(given[name])}}}'  # type: ignore[return-value]


def escape_codes(rng: random.Random, problem: Data, given: Data) -> Forged:
    """A line of its own in a text, which says that all is well."""
    texts = [
        p
        for p, v in objects(given)
        if isinstance(v, str) and p[-1] in ("scope", "rests_on", "by", "problem", "target", "refuted")
    ]
    return problem, changed(
        given, rng.choice(texts), "\x1b[2Kx\nbound: no layout of any kind has less: checked"
    )


def reason_forged(rng: random.Random, problem: Data, given: Data) -> Forged:
    """A word, phase, share or weight of a reason is another, and the bound one higher."""
    path, own = rng.choice(certificates(given)) if certificates(given) else ((), {})
    kinds = [kind for kind in ("clique", "packing", "parity") if own.get(kind)]
    if not kinds or given["status"] == "unknown":
        return None
    kind = rng.choice(kinds)
    raised = changed(given, (*path, "bound", "excess"), own["bound"]["excess"] + 1)
    numbers = [p for p, v in objects(own[kind]) if type(v) is int]
    at = rng.choice(numbers)
    value = next(v for p, v in objects(own[kind]) if p == at)
    return problem, changed(raised, (*path, kind, *at), value + rng.choice([1, -1, 7]))


def descriptor_changed(rng: random.Random, problem: Data, given: Data) -> Forged:
    """Another number in a tensor map, a matrix descriptor or a bulk copy."""
    paths = [p for p, v in objects(given) if "hardware" in p and type(v) is int and p[-1] != "multicast"]
    if not paths:
        return None
    path = rng.choice(paths)
    value = next(v for p, v in objects(given) if p == path)
    return problem, changed(given, path, value + rng.choice([1, -1, 16]))


def tiles_moved(rng: random.Random, problem: Data, given: Data) -> Forged:
    """A tile of several lies elsewhere, or has other stages, than is said."""
    paths = [p for p, _ in objects(given) if p[:1] == ("tiles",) and p[-1] in (
        "base_bytes", "stage_bytes", "stages", "bytes") and "certificate" not in p]  # fmt: skip
    if not paths:
        return None
    path = rng.choice(paths)
    value = next(v for p, v in objects(given) if p == path)
    return problem, changed(given, path, value + rng.choice([-1, 1, 7]))


RULES: tuple[Rule, ...] = (
    lanes_freed, widths_opened, constraint_added, problem_changed, families_narrowed, digest_changed,
    scope_relabelled, bound_raised, bound_is_arithmetic, status_raised, layout_worse, rows_mirrored,
    refuted_relabelled, phases_unknown, field_unknown, name_twice, escape_codes, reason_forged,
    descriptor_changed, tiles_moved,
)  # fmt: skip


class Campaign:
    """Forgeries made, by rule, those that were accepted, and true certificates by what the checker says."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.accepted: list[tuple[str, Data, Any]] = []
        self.true: Counter[int] = Counter()
        self.wrong: list[tuple[Data, Data]] = []

    def run(self, count: int, seed: int, each: int = 20) -> None:
        """So many forgeries, `each` of one certificate at most."""
        rng = random.Random(seed)
        for problem in problems(rng):
            given = certified(problem, rng)
            if given is None:
                continue
            code = verdict(problem, given)
            self.true[code] += 1
            if code in (1, 2):
                self.wrong.append((problem, given))
            for rule in rng.choices(RULES, k=each) if each < len(RULES) else RULES:
                if (forged := rule(rng, problem, given)) is not None:
                    self.made[rule.__name__] += 1
                    if verdict(*forged) == 0:
                        self.accepted.append((rule.__name__, *forged))
                if sum(self.made.values()) >= count:
                    return


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000, help="forgeries")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="write what was accepted or wrongly rejected to this file")
    args = parser.parse_args()
    campaign = Campaign()
    campaign.run(args.count, args.seed)
    for name, number in sorted(campaign.made.items()):
        accepted = sum(rule == name for rule, *_ in campaign.accepted)
        print(f"{number:6} {name}: {accepted} accepted")
    codes = ", ".join(f"{number} with exit code {code}" for code, number in sorted(campaign.true.items()))
    print(f"{sum(campaign.made.values())} forgeries, {len(campaign.accepted)} accepted; true: {codes}")
    if args.keep:
        args.keep.write_text(json.dumps({"accepted": campaign.accepted, "wrong": campaign.wrong}))
    return int(bool(campaign.accepted or campaign.wrong))


if __name__ == "__main__":
    sys.exit(main())
