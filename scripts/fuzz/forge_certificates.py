"""Forge certificates: false ones of every kind made from true ones; the checker must accept none.

    python scripts/fuzz/forge_certificates.py --count 100 --seed 1

Small random problems are solved and certified, and of twenty rules each falsifies one statement: of the file
after it was solved, or of the certificate. A forger can compute a digest as anybody can: where a rule changes
the file, the digest is made that of the changed file in every second forgery. A forgery is accepted where the
checker says that all of it holds (exit code 0). Exit code 1: one was accepted, or a true certificate was
called wrong; it is saved.
"""

import copy
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from campaign import Case, run_campaign
from generate import Maker, random_target, random_tile_set
from oracle.answers import require
from oracle.problem_file import hardware
from process import ROOT, call

sys.path += [str(ROOT / "scripts/checkers"), str(ROOT / "tests/proof")]
from certificate.subject import digest
from certificates_checked import CASES
from certificates_checked import certified as certificate_of

from layoutopt import problem as problem_of
from layoutopt.errors import LayoutoptError
from layoutopt.problems.types import Problem
from layoutopt.search.certify import check_certifiable

CHECKER = ROOT / "scripts/checkers/check_certificate.py"
EACH = 20  # forgeries of one certificate
# Of each a certificate; those of toy GPUs name a device that no file here has.
FIXED = [data for data, *_ in CASES.values() if "toy" not in data.get("target", "")]


def make(rng: random.Random) -> Case:
    """A small problem, fixed or random, of one tile or of several, its certificate, and some rules."""
    given = None
    while given is None:
        kind = rng.random()
        if kind < 0.3:
            problem = {"target": "sm_90", **rng.choice(FIXED)}
        elif kind < 0.5:
            problem = random_tile_set(rng)
        else:
            target = random_target(rng)
            problem = Maker(rng, target, hardware(target)).problem()
        given = certified(problem, conflict_free=rng.random() < 0.3)
    rules = rng.choices(list(RULES), k=EACH)
    return {"problem": problem, "certificate": given, "rules": rules, "seed": rng.randrange(10**9)}


def certified(data: dict, conflict_free: bool) -> dict | None:
    """The certificate of the answer to a problem; nothing where there is none."""
    try:
        asked = problem_of(data)
        check_certifiable(asked)
        free = conflict_free and isinstance(asked, Problem)
        return certificate_of(data, time_limit=1.0, conflict_free=free)
    except LayoutoptError:
        return None


def check(case: Case, folder: Path, told: Counter) -> None:
    """The true certificate is not called wrong, and no forgery is accepted."""
    problem, given, rng = case["problem"], case["certificate"], random.Random(case["seed"])
    code = verdict(folder, problem, given)
    told[f"true: exit {code}"] += 1
    require(code in (0, 3), "a true certificate is called wrong", code)
    for name in case["rules"]:
        forged = RULES[name](rng, problem, given)
        if forged is not None and (code or name != "bound_is_arithmetic"):  # which all of this one is
            told[f"forged: {name}"] += 1
            require(verdict(folder, *forged), f"accepted: {name}", json.dumps(forged))


def verdict(folder: Path, *files: dict | str) -> int:
    """What the checker says of a problem and a certificate, given as data or as the text of a file."""
    names = ("problem.json", "certificate.json")
    for name, content in zip(names, files, strict=True):
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return call(*names, folder=folder, script=CHECKER, cpu_s=600).code


def smaller(case: Case) -> Iterator[Case]:
    """One rule alone, drawn anew."""
    for name in case["rules"] if len(case["rules"]) > 1 else ():
        for seed in range(3):
            yield {**case, "rules": [name], "seed": seed}


# What rules share ----------------------------------------------------------------------------------


def objects(value, path=()):
    """Every value inside, with its path."""
    yield path, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from objects(part, (*path, key))


def changed(whole, path, change):
    """The data with what is at a path changed."""
    found = {"whole": copy.deepcopy(whole)}
    *above, last = ("whole", *path)
    holder = found
    for key in above:
        holder = holder[key]
    holder[last] = change(holder[last])
    return found["whole"]


def put(whole, path, value):
    return changed(whole, path, lambda _: value)


def nudged(rng, given, steps, wanted):
    """A certificate with one whole number changed, of those whose path is wanted."""
    paths = [path for path, value in objects(given) if path and type(value) is int and wanted(path)]
    return changed(given, rng.choice(paths), lambda value: value + rng.choice(steps)) if paths else None


def certificates(given):
    """The certificates of single layouts, with their paths."""
    if "tiles" in given:
        return [(("tiles", k, "certificate"), part["certificate"]) for k, part in enumerate(given["tiles"])]
    return [((), given)]


def any_of(rng, given):
    """The certificate, or one of those inside it, with its path."""
    return rng.choice([((), given), *certificates(given)])


def with_digest(rng, problem, given):
    """The certificate with the digest of the file as it is now, in every second case."""
    given = copy.deepcopy(given)
    if rng.random() < 0.5:
        for _, own in [((), given), *certificates(given)]:
            own["digest"] = digest(problem)
    return problem, given


def constrained(problem, **more):
    return {**problem, "layout": {**problem.get("layout", {}), **more}}


def with_access(rng, problem, *choices):
    """The file with some fields put into an access; the access, and which fields."""
    k, more = rng.randrange(len(problem["accesses"])), rng.choice(choices)
    access = problem["accesses"][k]
    return put(problem, ("accesses", k), {**access, **more}), access, more


def unplaced(given):
    """Whether no access of several tiles was looked at, as they are too large."""
    return "tiles" in given and not given["tiles"]


# Rules: of a problem and its certificate a false pair, or nothing where the rule does not apply ------


def lanes_freed(rng, problem, given):
    """Lanes, values or widths are chosen, or values known at run time, after solving."""
    free = {"lanes": "free"}, {"values": "free"}, {"any": {"v": 2}}, {"any_is": "uniform", "any": {"b": 3}}
    false, access, _ = with_access(rng, problem, *free)
    return None if "index" not in access or unplaced(given) else with_digest(rng, false, given)


def widths_opened(rng, problem, given):
    """16 bytes chosen of [16, 8], where what the other choice would cost is not known to be more."""
    claimed = {name for _, own in certificates(given) if own["bound"]["excess"] for name in own["served"]}
    widths = [a.get("bytes") if a["name"] in claimed else None for a in problem["accesses"]]
    wide = [k for k, width in enumerate(widths) if isinstance(width, int) and width >= 8]
    if not wide:
        return None
    k = rng.choice(wide)
    return with_digest(rng, put(problem, ("accesses", k, "bytes"), [widths[k], widths[k] // 2]), given)


def constraint_added(rng, problem, given):
    """A limit that the layout does not keep to, in the file, and in the certificate as well at times."""
    several = "tiles" in given
    size = given["bytes"] if several else (given["layout"] or {}).get("bytes")
    if not size or problem.get("layout", {}).get("max_bytes"):
        return None
    if rng.random() < 0.5:
        own = size - 1 if several else {**given["constraints"], "max_bytes": size - 1}
        given = {**given, "max_bytes" if several else "constraints": own}
    return with_digest(rng, constrained(problem, max_bytes=size - 1), given)


def problem_changed(rng, problem, given):
    """The file says something else of an access than what was solved; the digest is the old one."""
    fields = {"name": "other", "weight": 7, "op": "atomic", "where": "tid < 3", "for": {"z": 3}}
    false, access, more = with_access(rng, problem, *({name: value} for name, value in fields.items()))
    nothing = "weight" in more and "index" not in access  # it counts for nothing
    return None if more.items() <= access.items() or nothing else (false, given)


def families_narrowed(rng, problem, given):
    """Row-major alone was allowed, and the layout is another."""
    if "tiles" in given or given["layout"] is None or given["hardware"]:
        return None
    table = given["layout"]["byte_offsets"]
    size = given["layout"]["bytes"] // max(1, len(table))
    if table == [k * size for k in range(len(table))]:
        return None
    if given["constraints"]["families"] or given["constraints"]["order"]:
        return None
    constraints = {**given["constraints"], "families": ["none"]}
    return with_digest(rng, constrained(problem, families=["none"]), {**given, "constraints": constraints})


def digest_changed(rng, problem, given):
    """A digest of another problem, or none."""
    path, own = any_of(rng, given)
    if rng.random() < 0.5:
        other = rng.choice(["", "0" * 64, None, digest({"name": "x"})])
        return problem, put(given, (*path, "digest"), other)
    return problem, put(given, path, {field: value for field, value in own.items() if field != "digest"})


def scope_relabelled(rng, problem, given):
    """The words or the data of a scope are those of other layouts."""
    scopes = [entry for entry in objects(given) if isinstance(entry[1], dict) and "covers" in entry[1]]
    path, value = rng.choice(scopes)
    covers = [{"layouts": "every"}, {"layouts": "families", "families": ["none"], "max_bytes": None},
              {"layouts": "hardware", "by": ["tma"]}, {"layouts": "tiles", "max_bytes": 1}, {}]  # fmt: skip
    words = ["every layout", "families none", "every layout of all", "the layouts of tma", "", "families"]
    field, other = rng.choice([("covers", rng.choice(covers)), ("scope", rng.choice(words))])
    return None if value[field] == other else (problem, put(given, (*path, field), other))


def bound_raised(rng, problem, given):
    """More excess or bytes than is proved, or than the layout has."""
    path, own = any_of(rng, given)
    size = "bytes_bound" if "bytes_bound" in own else "bytes"
    at = rng.choice([("bound", "excess"), (size, "at_least")])
    if given["status"] not in ("optimal", "infeasible"):
        return None  # the bound may be higher than what was proved
    # What refutes a layout without conflicts may force more than the one wavefront that was asked for.
    more = rng.choice([1, 2, 1000]) if given["status"] == "optimal" else 1000
    return problem, changed(given, (*path, *at), lambda value: value + more)


def bound_is_arithmetic(rng, problem, given):
    """What rests on the search is called arithmetic of every layout."""
    path, own = any_of(rng, given)
    if "arithmetic" in own["bound"]["rests_on"]:
        return None
    every = {"rests_on": "arithmetic: by hand", "scope": "every layout", "covers": {"layouts": "every"}}
    return problem, put(given, (*path, "bound"), {**own["bound"], **every})


def meets_its_bounds(problem, own):
    """Whether nothing has less excess, or as little in fewer bytes; and no other objective comes first."""
    several = "tiles" in own
    layout, size = own if several else own["layout"], own["bytes_bound" if several else "bytes"]
    first = problem.get("layout", {}).get("minimise", "excess")
    bounds = own["bound"]["excess"], size["at_least"]
    return first == "excess" and (layout["excess"], layout["bytes"]) == bounds


def status_raised(rng, problem, given):
    """Another status, as it stands."""
    path, own = any_of(rng, given)
    others = {"optimal", "infeasible", "unknown", "proved", ""} - {own["status"]}
    if own["status"] == "feasible" and meets_its_bounds(problem, own):
        others.remove("optimal")  # which it is, though time ended before that was known
    return problem, put(given, (*path, "status"), rng.choice(sorted(others)))


def layout_worse(rng, problem, given):
    """Two elements change places, or all move, and the counts stay; or the counts change alone."""
    some = [(path, own) for path, own in certificates(given) if own["layout"] is not None]
    if not some:
        return None
    path, own = rng.choice(some)
    layout = copy.deepcopy(own["layout"])
    table = layout["byte_offsets"]
    kind = rng.choice(["onto", "wavefronts", "bytes", "excess", "cut", "apart"])
    if kind == "onto" and len(table) > 1:
        a, b = rng.sample(range(len(table)), 2)
        table[a] = table[b]
    elif kind == "wavefronts":
        layout["wavefronts"][rng.choice(sorted(layout["wavefronts"]))] += rng.choice([-1, 1, 5])
    elif kind in ("bytes", "excess"):
        layout[kind] += rng.choice([-1, 1, 128])
    elif kind == "cut":
        table.pop()
    else:
        table[:] = [at + 1 for at in table]
    return problem, put(given, (*path, "layout"), layout)


def rows_mirrored(rng, problem, given):
    """Rows from right to left, where the families have strides only."""
    families = problem.get("layout", {}).get("families")
    if "tiles" in given or not families or not {*families} <= {"none", "pad", "order"} or not given["layout"]:
        return None
    table, last = given["layout"]["byte_offsets"], problem["tile"]["shape"][-1]
    if last < 2 or len(table) % last or problem["tile"]["element"] in ("i4", "u4", "e2m1"):
        return None
    rows = [table[k : k + last][::-1] for k in range(0, len(table), last)]
    return problem, put(given, ("layout", "byte_offsets"), [*itertools.chain(*rows)])


def refuted_relabelled(rng, problem, given):
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
    return problem, put(given, ("infeasible", "refuted"), other)


def phases_unknown(rng, problem, given):
    """Other phases than the GPU has, or a GPU that nobody knows."""
    if unplaced(given):
        return None
    if rng.random() < 0.3:
        return with_digest(rng, {**problem, "target": "xpu_9"}, {**given, "target": "xpu_9"})
    path, own = rng.choice(certificates(given))
    if not own["served"]:
        return None
    name = rng.choice(sorted(own["served"]))
    rule = copy.deepcopy(own["served"][name])
    flags = ["merges_pairs", "split_words", "serialises_equal"]
    kind = rng.choice(["phases", *flags, "banks", "extra_wavefronts", "bytes"])
    if kind == "phases":
        lanes = [*itertools.chain(*rule["phases"])]
        rule["phases"] = [lanes] if len(rule["phases"]) > 1 else [[lane] for lane in lanes]
    else:
        rule[kind] = not rule[kind] if kind in flags else rule[kind] + 1
    return problem, put(given, (*path, "served", name), rule)


# What may have other fields, or any.
LOOSE = {"byte_offsets", "iteration", "wavefronts", "questions", "hardware", "constraints", "clique",
         "parity", "packing"}  # fmt: skip


def field_unknown(rng, problem, given):
    """A field that no certificate has, wherever; or one less."""
    inner = [(p, v) for p, v in objects(given) if isinstance(v, dict) and not {*p} & LOOSE]
    path, value = rng.choice([(p, v) for p, v in inner if not (p and p[-1] == "served")])
    left = sorted(value.keys() - {"reason", "source", "schema", "by", "questions"})
    if rng.random() < 0.5 or not left:
        return problem, put(given, path, {**value, "checked": True})
    dropped = rng.choice(left)
    return problem, put(given, path, {field: part for field, part in value.items() if field != dropped})


def name_twice(rng, problem, given):
    """A name twice in one object of a file: which of the two counts is a matter of the reader."""
    name = rng.choice(["status", "bound", "target", "problem", "digest"])
    return problem, json.dumps(given)[:-1] + f', "{name}": {json.dumps(given[name])}}}'


def escape_codes(rng, problem, given):
    """A line of its own in a text, which says that all is well."""
    said = ("scope", "rests_on", "by", "problem", "target", "refuted")
    texts = [path for path, value in objects(given) if isinstance(value, str) and path[-1] in said]
    more = "\x1b[2Kx\nbound: no layout of any kind has less: checked"
    return problem, put(given, rng.choice(texts), more)


def reason_forged(rng, problem, given):
    """A word, phase, share or weight of a reason is another, and the bound one higher."""
    if unplaced(given) or given["status"] == "unknown":
        return None
    path, own = rng.choice(certificates(given))
    kinds = [(*path, kind) for kind in ("clique", "packing", "parity") if own.get(kind)]
    if not kinds:
        return None
    reason = rng.choice(kinds)
    raised = changed(given, (*path, "bound", "excess"), lambda excess: excess + 1)
    return problem, nudged(rng, raised, [1, -1, 7], lambda at: at[: len(reason)] == reason)


def descriptor_changed(rng, problem, given):
    """Another number in a tensor map, a matrix descriptor or a bulk copy."""
    other = nudged(rng, given, [1, -1, 16], lambda at: "hardware" in at and at[-1] != "multicast")
    return other and (problem, other)


def tiles_moved(rng, problem, given):
    """A tile of several lies elsewhere, or has other stages, than is said."""
    places = {"base_bytes", "stage_bytes", "stages", "bytes"}
    other = nudged(rng, given, [-1, 1, 7],
                   lambda at: at[0] == "tiles" and at[-1] in places and "certificate" not in at)  # fmt: skip
    return other and (problem, other)


RULES = {
    rule.__name__: rule
    for rule in (
        lanes_freed, widths_opened, constraint_added, problem_changed, families_narrowed, digest_changed,
        scope_relabelled, bound_raised, bound_is_arithmetic, status_raised, layout_worse, rows_mirrored,
        refuted_relabelled, phases_unknown, field_unknown, name_twice, escape_codes, reason_forged,
        descriptor_changed, tiles_moved,
    )
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(run_campaign(__doc__, make, check, smaller))
