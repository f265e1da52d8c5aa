"""Certificates changed, by hand, by the rules of a fuzzer and every field at a time: nothing false is confirmed."""

import copy
import json
import random

import pytest
from certificates_checked import CASES, at, certified, checked, digest, holds, true_one
from forge_certificates import RULES
from written import data_of


def meeting(given):
    return given["clique"]["meetings"][0]


def as_many_words_as_banks(given):
    given["clique"]["words"].pop()
    given["clique"]["meetings"] = given["clique"]["meetings"][:1]


def share(given):
    return given["packing"]["cliques"][0]


def swapped(given, size=1):
    """Two chunks change places."""
    table = given["layout"]["byte_offsets"]
    table[:size], table[size : 2 * size] = table[size : 2 * size], table[:size]


def stage_of_7_bytes(given):
    part = given["tiles"][0]
    part["stage_bytes"] = part["places"][0]["stage_bytes"] = 7


def interleaved(given):
    table = [4 * (4 * b + a) for a in range(5) for b in range(20)]
    layout = {**given["layout"], "byte_offsets": table, "bytes": max(table) + 4}
    given |= {"status": "feasible", "layout": layout}


def place_of_c(given):
    return given["tiles"][1]["places"][0]


def counted(given, tile):
    return given["tiles"][tile]["certificate"]["layout"]["wavefronts"]


# What is changed, what the script says of it, and the code that it ends with where that is not 1.
FORGED = {
    "plain": [
        (lambda g: g["layout"].update(byte_offsets=[b + 2 for b in g["layout"]["byte_offsets"]], bytes=258), "aligned"),
        (lambda g: g["layout"]["byte_offsets"].pop(), "63 offsets for 64 elements"),
        (lambda g: g["layout"]["byte_offsets"].append(256), "65 offsets for 64 elements"),
        (lambda g: g["layout"]["byte_offsets"].__setitem__(0, 0.5), "no whole number"),
        (lambda g: g["bound"].update(excess=1), "less excess than 1"),
        (lambda g: g["bytes"].update(at_least=300), "fewer bytes than 300"),
        (lambda g: g["bytes"].update(at_least=200), "optimal, but the bounds are lower"),
        (lambda g: g["served"]["rows"].update(bytes=8), "phases of access 'rows' is not that of toy_8_8"),
        (lambda g: g.pop("bound"), "malformed"),
        (lambda g: g.update(status={}), "no status"),
        (lambda g: g.update(status="infeasible"), "infeasible, with a layout"),
        (lambda g: g.update(banks=1024), "not those of an access"),
        (lambda g: g["served"]["columns"]["phases"][0].pop(), "served twice, or never"),
        (lambda g: g["served"]["columns"].update(lanes_used=1 << 62), "columns' uses 8 lanes"),
        (lambda g: g["served"]["columns"].update(bytes=1 << 62), "accesses of 4611686018427387904 bytes"),
        (lambda g: g["constraints"].update(max_bytes=256), "layout.max_bytes was 256, the problem has None"),
        (lambda g: g.update(checked=True), ""),
    ],
    "plain, of a GPU": [
        (lambda g: g["served"]["rows"].update(banks=1024), "banks of access 'rows' is not that of sm_90, 32"),
    ],
    "clique": [
        (lambda g: g["bound"].update(excess=3), "the bound is 3, arithmetic gives 2"),
        (lambda g: g["bound"].update(excess=3, rests_on="the solver alone"), "", 3),
        (lambda g: meeting(g)["lanes"].reverse(), "these lanes do not touch them"),
        (lambda g: meeting(g).update(access="line 2"), "these lanes do not touch them"),
        (lambda g: g["clique"]["meetings"].pop(), "some pair does not meet"),
        (as_many_words_as_banks, "as many banks as words"),
        (lambda g: g.update(banks=4), "not those of an access"),
    ],
    "packing": [
        (lambda g: share(g).update(share=2), "more shares than a phase weighs"),
        (lambda g: share(g).update(share=-1), "a share"),
        (lambda g: share(g)["words"].pop(), "as many banks as words"),
        (lambda g: share(g)["phases"].pop(), "some pair does not meet"),
        (lambda g: share(g)["phases"][0].update(iteration={"c": 2}), "some pair does not meet"),
        (lambda g: share(g).update(vector_bytes=12), "vectors of 12 bytes"),
    ],
    "parity": [
        (lambda g: g["parity"]["combinations"][0]["weights"].__setitem__(0, 1), ""),
        (lambda g: g["parity"]["combinations"][0].update(modulus=3), ""),
        (lambda g: g["parity"]["phases"][0].update(lanes=[0, 1]), ""),
    ],
    "padded": [(interleaved, "")],
    "hardware": [
        (lambda g: swapped(g, 8), "does not lie as TMA moves it"),
        (lambda g: g["hardware"]["ld"].update(mode="64B", code=2, alignment_bytes=512), "no tensor map of 64B"),
        (lambda g: g["hardware"]["ld"].update(alignment_bytes=128), "alignment_bytes is 128, it should be 1024"),
        (lambda g: g["hardware"]["ld"].update(box=[64, 64]), "box_dim is [64, 128]"),
        (lambda g: g["hardware"]["ld"].update(box_offsets=[1024]), "box_offsets is [1024]"),
        (lambda g: g["hardware"]["a"].update(stride_byte_offset=512), "stride_byte_offset is 512"),
        (lambda g: g["hardware"]["a"].update(descriptor="0x4000004000010001"), "descriptor is 0x"),
        (lambda g: g["hardware"]["a"].update(starts=[0] * 8), "access 'a': starts is [0, 0"),
        (lambda g: g["hardware"].pop("a"), "descriptors of ['ld']"),
    ],
    "rows of a matrix that are several dimensions": [
        (lambda g: g["hardware"]["b"].update(starts=[0, 16, 64, 96]), "access 'b'"),
    ],
    "blocks of a cluster share the boxes": [(lambda g: g["hardware"]["fill"].update(multicast=1), "")],
    "direct loads write side by side": [(swapped, "lanes of warp 0 do not write side by side")],
    # A list of modes is not every layout; what is refuted is read.
    "rows": [(lambda g: g["bound"].update(scope="every layout"), "")],
    "no rows": [
        (lambda g, words=words: g["infeasible"].update(refuted=words), "")
        for words in ("a layout of any kind, even with conflicts", "")
    ],
    "tiles": [
        (lambda g: place_of_c(g).update(base_bytes=128), "A and C share bytes"),
        (lambda g: place_of_c(g).update(base_bytes=260), "the tiles end at byte"),
        (lambda g: g["tiles"].pop(), "the tiles are not those of the file"),
        (lambda g: g.update(excess=1), "the excess is 0"),
        (lambda g: counted(g, 0).update(a=9), "wavefronts are"),
    ],
    "several sizes": [(lambda g: counted(g, 0).update(c=9), "")],
    "an overlay": [(lambda g: g["bound"].update(rests_on="arithmetic", scope="every layout"), "")],
    "stages": [(stage_of_7_bytes, "has accesses of 2 bytes in each stage")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [(kind, change, said) for kind, rows in FORGED.items() for change, *said in rows],
)
def test_what_is_changed_by_hand_is_said(kind, change, said):
    data, given = true_one(kind)
    change(given)
    holds(data, given, *said, **({} if len(said) > 1 else {"code": 1}))


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_of_the_fuzzer_makes_a_certificate_that_is_confirmed(rule):
    """Of fixed ones; scripts/fuzz/forge_certificates.py goes on with random ones."""
    kinds = ("plain, of a GPU", "spelt", "wide", "clique", "padded", "hardware", "rows", "tiles")
    forged = 0
    for kind in kinds:
        data, given = true_one(kind)
        for seed in range(8) if rule != "bound_is_arithmetic" or CASES[kind][2] else ():
            made = RULES[rule](random.Random(seed), data, given)
            if made is not None:
                code, text = checked(*made, forged=False)
                assert code in (1, 2, 3), (kind, seed, text)
                assert "\x1b" not in text
                assert not any(line.startswith("all:") for line in text.splitlines())
                forged += 1
    assert forged


# What may be any number, or be in any order: nothing is claimed by it. Of a GPU that the script does not know,
# how it serves accesses is the certificate's word.
FREE = {"questions", "reason", "source", "digest"}


def fields(value, path=()):
    """Paths of all fields; of lists those of the first and the last."""
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        if key not in FREE and (not isinstance(key, int) or key in (0, len(value) - 1)):
            yield from fields(item, (*path, key))


def changes(value):
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value - 1)
    elif isinstance(value, list) and value:
        yield from ([], value[1:] + value[:1] + value[:1])
    elif isinstance(value, str | dict) and value:
        yield type(value)()


def weaker(given, path, other):
    """Whether what is changed claims less than the certificate does, or the same in other words."""
    *above, last = path
    if "constraints" in path or last in ("clique", "packing", "parity"):
        return True  # left out: as the script assumes them; or not needed for the bound
    if last == "at_least" or (last == "excess" and "layout" not in above):
        return float(other) < at(given, path)
    return False


@pytest.mark.parametrize("kind", ["spelt", "operand", "tiles", "parity"])
def test_no_field_can_be_changed(kind):
    """Of a GPU that is known, of what the hardware moves, of several tiles, of a parity."""
    data, given = true_one(kind)
    found = set()
    for path, value in fields(given):
        for other in changes(value) if path else ():
            change = copy.deepcopy(given)
            at(change, path[:-1])[path[-1]] = other
            if not weaker(given, path, other) and checked(data, change)[0] == 0:
                found.add(path[:2])
    # A lane named twice is one, and a combination left out or put twice may leave as good a reason.
    of_parity = {("parity", "combinations"), ("parity", "phases")}
    allowed = of_parity | {path for path in found if path[0] == "served"} if kind == "parity" else set()
    assert found <= allowed


@pytest.mark.parametrize(
    ("combinations", "said"),
    [
        ([], "no combination of weights"),
        ([{"modulus": 8, "weights": []}], "malformed"),
        ([{"modulus": 0.5, "weights": [0.25]}], "whole numbers"),
        ([{"modulus": 1, "weights": [1]}], "whole numbers"),
        ([{"modulus": 2, "weights": [1]}], "a word's weights"),
        ([{"modulus": 8, "weights": [8]}], "no contradiction"),
    ],
)
def test_a_parity_needs_weights_that_contradict(combinations, said):
    """One phase that fills all banks, and no reason why it should have a conflict."""
    data, given = true_one("one phase")
    phase = {"access": "rows", "warp": 0, "iteration": {"i": 0}, "lanes": [*range(8)]}
    refuted = "a layout without conflicts"
    given |= {
        "status": "infeasible", "layout": None, "bound": {**given["bound"], "excess": 1},
        "infeasible": {"refuted": refuted, "max_bytes": None, "reason": "", "rests_on": "arithmetic"},
        "parity": {"vector_bytes": 4, "place": 0, "banks": 8, "excess": 1, "phases": [phase], "combinations": combinations},
    }  # fmt: skip
    holds(data, given, said, 1)


def test_a_bound_by_counting_rests_on_the_alignment_of_elements():
    """Without it the bound is false: for the 12-byte elements, where nothing aligns them to 8 bytes."""
    for size, kind in ((16, "wide elements"), (12, "wide elements of no power of two")):
        _, given = true_one(kind)
        given["served"] = {"a4": given["served"]["a4"]}
        given["layout"]["wavefronts"] = {"a4": given["layout"]["wavefronts"]["a4"]}
        holds(data_of(f"32 {size}B@4, 32 threads", "a4: load 4 [tid]"), given, "arithmetic gives 0", 1)


# Where the certificate is changed with the problem, what can be seen of the layout still binds.
PLAIN, OPERAND, NONE = "plain, of a GPU", "operand", None
LIMITS = {"max_bytes": 1024, "alignment_bytes": 4, "families": ["none"], "order": [0, 1]}
LIMITS = [{field: value} for field, value in [*LIMITS.items(), ("pitch_multiple_bytes", 16)]]
OTHERS = [
    (PLAIN, {"name": "another"}, {}, 1),
    (PLAIN, {"target": "sm_80"}, {}, 1),
    (PLAIN, {"layout": {"minimise": "bytes"}}, {}, 1),
    (PLAIN, {"target": "h100"}, {"target": "h100"}, 0),
    *((PLAIN, {"layout": limit}, {}, 1) for limit in LIMITS),
    *((PLAIN, {"layout": limit}, {"constraints": limit}, code) for limit, code in zip(LIMITS, (0, 0, 1, 3, 3), strict=True)),
    ("spelt", {"target": "xpu"}, {"target": "xpu"}, 3),  # of an unknown GPU phases are not believed
    ("spelt", {"famlies": 1}, {}, 2),
    ("spelt", {"tile": {"shape": [16, 16], "element": "f32", "pitch": 1}}, {}, 2),
    # A dictated tile whose layout keeps to none of these.
    (OPERAND, {"layout": {"order": [1, 0]}}, {"constraints": {"order": [1, 0]}}, 3),
    (OPERAND, {"layout": {"pitch_multiple_bytes": 48}}, {"constraints": {"pitch_multiple_bytes": 48}}, 3),
    (OPERAND, {"layout": {"alignment_bytes": 2}}, {"constraints": {"alignment_bytes": 2}}, 1),
    (OPERAND, {"layout": {"alignment_bytes": 16}}, {"constraints": {"alignment_bytes": 16}}, 1),
    ("tiles", {"same_layout": [["A", "C"]], "tiles": [
        {"name": "A", "shape": [8, 4], "element": "f32", "stages": 2}, {"name": "C", "shape": [8, 4], "element": "f32"}]}, {}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "problem", "certificate", "code"), OTHERS)
def test_a_certificate_is_of_one_problem(kind, problem, certificate, code):
    data, given = true_one(kind)
    merged = {k: {**given[k], **v} if k == "constraints" else v for k, v in certificate.items()}
    text = holds({**data, **problem}, {**given, **merged}, code=code)
    assert code != 1 or text.startswith("WRONG")


def test_a_name_twice_in_a_problem_is_no_verdict():
    data, given = true_one("spelt")
    holds(json.dumps(data)[:-1] + ', "threads": 64}', given, "a name twice", 2)


def test_the_digest_is_of_what_is_asked_and_without_one_that_is_not_checked():
    data, given = true_one("spelt")
    longer = {"notes": "x", "layout": {"minimise": "excess"}, "published": {"offset": "0", "bytes": 1}}
    assert digest(data) == given["digest"] == digest({**data, **longer})
    del given["digest"]
    holds(data, given, code=3, forged=False)


def test_the_best_by_instructions_is_not_called_checked():
    """A layout without excess in the tile's bytes need not have the cheapest index, which comes first here."""
    data = data_of("8x32 f32, 32 threads; target sm_90; minimise instructions", "a: load 4 [i, lane]; i<4")
    given = certified(data)
    assert given["bound"]["excess"] == given["layout"]["excess"] == 0
    holds(data, {**given, "status": "optimal"}, code=3)
