"""The certificate of one tile: what it says of the file, its layout, its bounds."""

import itertools
import math
from fractions import Fraction

from certificate import by_hardware
from certificate.bounds import check_bound
from certificate.execution import Case, check_layout, count
from certificate.form import CERTIFICATE, check_form
from certificate.hardware import check_served
from certificate.problem import (
    DEFAULTS,
    TOLERANCE,
    by_itself,
    constraints,
    dictated,
    left_open,
    not_handled,
    require,
    say,
)
from certificate.subject import check_scope

STRIDED = {"none", "order", "pad"}  # families whose layouts are strides
# What an infeasible certificate may refute, beside a layout of so many bytes.
ANY_IN_SCOPE, CONFLICT_FREE = "a layout in scope that keeps to the constraints", "a layout without conflicts"
WIDEST_BYTES = 16  # of any access, a row of a matrix among them


def not_checked(problem, given, devices):
    """What of a certificate is not checked here, if anything. Problem and hardware must be the file's."""
    check_form(given, CERTIFICATE)
    if why := not_handled(problem):
        return why
    check_named(problem, given)
    check_served(problem, given, devices)
    return ""


def check(problem, given, devices, implied=()):
    """Print what holds and what is open; whether nothing is.

    Of the constraints, those `implied` are of the certificate's making, and nothing that the file asks for.
    """
    check_status(given)
    case, found, stated, size = Case(problem, given), given["layout"], given["bound"], given["bytes"]
    elements, status = case.elements * case.size, given["status"]
    claimed, least = Fraction(str(stated["excess"])), size["at_least"]
    widths = [f"{a['name']}: {given['served'][a['name']]['bytes']} bytes" for a in problem["accesses"]
              if isinstance(a.get("bytes"), list)]  # fmt: skip
    closed = [check_scope(problem, part, case.size) for part in (stated, size)]
    if given["target"].lower() not in devices:
        what = f"{given['target']} is no GPU that is known here; give its device file"
        closed.append(left_open(f"hardware: NOT CHECKED, {what}"))
    if found is not None:
        excess = check_layout(case, found)
        check_reached(problem, case, given)
        unseen = [name for name in check_constraints(problem, case, found) if name not in implied]
        say(f"layout: {excess} weighted excess in {found['bytes']} bytes: checked")
        require(claimed <= excess + TOLERANCE, f"the layout has less excess than {claimed}")
        require(least <= found["bytes"], f"the layout has fewer bytes than {least}")
        best = excess - claimed < TOLERANCE and least == found["bytes"]
        require(best or status != "optimal", "optimal, but the bounds are lower")
        first = constraints(problem)["minimise"] in ("instructions", "time")
        if status == "optimal" and first and not dictated(problem):
            what = "what comes first in the file has no bound in a certificate"
            closed.append(left_open(f"status: NOT CHECKED, {what}"))
        if unseen:
            what = "the layout has other strides or none"
            closed.append(left_open(f"constraints: {', '.join(unseen)}: NOT CHECKED, {what}"))
    bound = check_bound(case, given) if claimed else Fraction(0)
    if widths and (found is None or claimed or least > elements):
        closed.append(left_open(f"widths: {', '.join(widths)}: NOT CHECKED, what other choices would cost"))
    if claimed <= bound:
        say(f"bound: no layout of any kind has a weighted excess below {claimed}: checked")
    else:
        by_hand = stated["rests_on"].startswith("arithmetic")
        require(not by_hand or case.by_rows, f"the bound is {claimed}, arithmetic gives {bound}")
        why = f"NOT CHECKED, it rests on {stated['rests_on']}"
        closed.append(left_open(f"bound: {claimed} in {stated['scope']}: {why}"))
    if least > elements:
        why = "NOT CHECKED, it rests on layoutopt's search"
        closed.append(left_open(f"bytes: {least} in {size['scope']}: {why}"))
    elif found is not None:
        say(f"bytes: no layout of any kind takes fewer than {least}: checked")
    if status == "unknown":
        closed.append(left_open("unknown: NOT CHECKED, no layout is claimed and none is refuted"))
    if status == "infeasible":
        asked = constraints(problem)["max_bytes"]
        require(given["infeasible"]["max_bytes"] == asked, f"max_bytes is {asked}")
        closed.append(check_infeasible(given["infeasible"], elements, bound, bool(widths), case.by_rows))
    return all(closed)


def check_infeasible(given, elements, bound, other_widths, by_rows):
    """Whether what was refuted is refuted by arithmetic."""
    most, refuted = given["max_bytes"], given["refuted"]
    known = refuted in (ANY_IN_SCOPE, CONFLICT_FREE, f"a layout of {most} bytes")
    require(known, f"nothing that a certificate refutes: {refuted!r}")
    if most is not None and most < elements:
        claim = f"a layout of {most} bytes"
        require(refuted == claim, f"it refutes {refuted!r}, not {claim}")
        say(f"infeasible: the elements alone take {elements} bytes, more than {most}: checked")
        return True
    if refuted == CONFLICT_FREE and bound > 0 and not other_widths:
        say("infeasible: no layout of any kind is without conflicts: checked")
        return True
    by_hand = given["rests_on"].startswith("arithmetic") and not other_widths and not by_rows
    require(not by_hand, f"no arithmetic refutes {refuted}")
    return left_open(f"infeasible: {refuted}: NOT CHECKED, that there is none rests on {given['rests_on']}")


def check_named(problem, given):
    """The problem, the hardware and the constraints that the certificate speaks of are those of the file."""
    require(given["problem"] == problem["name"], f"it is of the problem {given['problem']!r}")
    target = problem.get("target", "sm_90")
    require(given["target"] == target, f"it is for {given['target']!r}, the problem for {target!r}")
    stated = {**DEFAULTS, **given["constraints"]}
    for field, value in constraints(problem).items():
        wanted = sorted(value) if field == "families" and value else value
        said = sorted(stated[field]) if field == "families" and stated[field] else stated[field]
        require(said == wanted, f"layout.{field} was {said}, the problem has {wanted}")
    numbers = [a["weight"] for a in problem["accesses"] if not isinstance(a.get("weight", ""), str)]
    unit = math.lcm(*(Fraction(str(number)).denominator for number in numbers))
    require(given["weight_unit"] == unit, f"weights are in units of 1/{unit}")
    rules = given["served"].values()
    require(set(given["served"]) == {a["name"] for a in problem["accesses"]}, "the accesses served")
    banks = {(rule["banks"], rule["bank_bytes"]) for rule in rules}
    require((given["banks"], given["bank_bytes"]) in banks, "the banks are not those of an access")
    require(len({wide for _, wide in banks}) == 1, "banks of two sizes")
    for rule in rules:
        require(rule["bytes"] <= WIDEST_BYTES, f"accesses of {rule['bytes']} bytes")


def check_status(given):
    """A layout where there is one to have, and what was refuted where there is none."""
    status, has = given["status"], given["layout"] is not None
    require(status in ("optimal", "feasible", "infeasible", "unknown"), f"no status: {status!r}")
    require(has == (status in ("optimal", "feasible")), f"{status}, with{'' if has else 'out'} a layout")
    refuted = given["infeasible"] is not None
    require(refuted == (status == "infeasible"), f"{status}, with{'' if refuted else 'out'} a refutation")


def check_constraints(problem, case, found):
    """The layout's bytes and alignment and, where the families have no cuts, rotations and XORs, its strides.

    Returns the constraints that are not checked: of other families, where the layout has not the strides that
    would show that it keeps to them.
    """
    layout = constraints(problem)
    most, aligned = layout["max_bytes"], layout["alignment_bytes"]
    require(most is None or found["bytes"] <= most, f"{found['bytes']} bytes, more than {most}")
    widest = max((case.given["served"][name]["bytes"] for name, *_ in case.runs), default=1)
    require(aligned is None or widest <= aligned, f"an access of {widest} bytes needs more than {aligned}")
    wrong, families = wrong_strides(layout, case, found), set(layout["families"] or ["table"])
    require(not wrong or families - STRIDED, wrong)
    if aligned is not None and aligned < case.given["bank_bytes"]:
        moved = (count(case, [at + base for at in found["byte_offsets"]])
                 for base in range(aligned, case.given["bank_bytes"], aligned))  # fmt: skip
        same = all(found["wavefronts"] == spent for spent, _ in moved)
        require(same, f"other wavefronts at a base that is aligned to {aligned} bytes alone")
    own = dictated(problem)
    named = [name for name in ("families", "order", "pitch_multiple_bytes") if layout[name]]
    named = [name for name in named if name != "families"] if own else named
    if not wrong or (named == ["families"] and "table" in families):
        return []
    return named


def wrong_strides(layout, case, found):
    """Why a layout is none of strides in the order, with the pads and pitches that the constraints allow."""
    families, table, inner, strides = set(layout["families"] or STRIDED), found["byte_offsets"], 1, []
    for extent in reversed(case.shape):
        strides.insert(0, (table[inner] - table[0]) if extent > 1 else None)
        inner *= extent
    for flat, x in enumerate(itertools.product(*map(range, case.shape))):
        linear = table[0] + sum(n * (stride or 0) for n, stride in zip(x, strides, strict=True))
        if table[flat] != linear:
            return "the layout has no strides, as its families do"
    used = [d for d, stride in enumerate(strides) if stride is not None]
    slowest_first = sorted(used, key=lambda d: -strides[d])
    inside = case.size
    for d in reversed(slowest_first):
        if strides[d] < inside:
            return "a stride is shorter than what lies inside it"
        inside = strides[d] * case.shape[d]
    order = [d for d in layout["order"] or range(len(strides)) if d in used]
    if slowest_first != order and (layout["order"] or "order" not in families):
        return "the dimensions are in another order"
    if "pad" not in families and found["bytes"] != case.elements * case.size:
        return "the layout is padded"
    pitch = layout["pitch_multiple_bytes"] or 1
    return (
        f"a stride is no multiple of {pitch}" if any(strides[d] % pitch for d in slowest_first[:-1]) else ""
    )


def check_reached(problem, case, given):
    """Every access that the hardware makes by itself reaches the tile by the descriptor stated."""
    table, named = given["layout"]["byte_offsets"], given["hardware"]
    layout = constraints(problem)
    own = {access["name"]: access for access in by_itself(problem)}
    require(set(named) == set(own), f"descriptors of {sorted(named)}, the hardware makes {sorted(own)}")
    most = layout["alignment_bytes"]
    for name, access in own.items():
        claim = named[name]
        require(most is None or claim["alignment_bytes"] <= most, f"{name} needs more than {most} bytes")
        wrong = by_hardware.wrong_claim(access, case, table, claim)
        require(not wrong, f"access {name!r}: {wrong}")
        times = by_hardware.repetitions(claim)
        mode = f"mode {claim['mode']}, " if "mode" in claim else ""
        say(f"{name}: {access['op']}, {mode}{times} instructions reach every element: checked")
