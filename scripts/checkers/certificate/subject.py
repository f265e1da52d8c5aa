"""What a certificate is about: the digest of its problem, and the layouts that its bounds cover."""

import hashlib
import json
import math
import re
from fractions import Fraction

from certificate.operations import operation
from certificate.problem import WRITTEN_OUT, constraints, is_by_itself, left_open, require

# The digest of a problem -------------------------------------------------------------------------

DIGESTED = (
    "name", "target", "threads", "tile", "tiles", "accesses", "layout", "block", "overlay", "same_layout",
)  # fmt: skip
UNTOLD = {"notes", "published", "base_bytes", "stage_bytes", "engine"}
SAYS_NOTHING = {
    "weight": "1", "minimise": "excess", "any_is": "worst", "stages": "1", "other_shared_bytes": "0",
}  # fmt: skip
NO_LANE = {"index", "where", "weight", "hardware"}  # of what no lane executes


def digest(problem):
    """SHA-256 of what the file asks: its JSON with sorted names, numbers as text, and no defaults."""
    asked = {field: problem[field] for field in DIGESTED if field in problem}
    told = plainly({"target": "sm_90", **asked})
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def plainly(value):
    if isinstance(value, list):
        return [plainly(part) for part in value]
    if type(value) in (int, float):
        return str(Fraction(str(value)))
    if not isinstance(value, dict):
        return value
    if "op" in value and is_by_itself(value):
        whole = {**value, **value.get("hardware", {})}
        left_out = NO_LANE if "hardware" in value else {"weight"}
        value = {field: part for field, part in whole.items() if field not in left_out}
    told = {field: plainly(part) for field, part in value.items() if field not in UNTOLD}
    empty = {field for field, part in told.items() if part in (None, False, {}, [], SAYS_NOTHING.get(field))}
    return {field: part for field, part in told.items() if field not in empty}


def check_digest(problem, given):
    """Whether the certificate is of this problem, by its digest; some certificates have none."""
    if "digest" not in given:
        return left_open("digest: NOT CHECKED, the certificate has none")
    if any(WRITTEN_OUT & access.keys() for access in problem["accesses"]):
        return False  # it is of the file with these written out; they are named where they are read
    require(given["digest"] == digest(problem), "the digest is that of another problem")
    return True


# The layouts that a bound holds for --------------------------------------------------------------

# What a scope says of the layouts of its families that are not searched, and the bytes that they have.
LEFT_OUT = re.compile(
    r"(, no XOR over elements of \d+ bytes( but CuTe's over the dense tile)?"
    r"|, XOR sources outside groups of \d+ words)?"
    r"(, pads of any length)?( within \d+ bytes)?"
)
SMALLER = r"( that flip the fewest bits)?( within \d+ bytes)?"
LISTED = {"tma": "boxes", "wgmma": "pages", "tcgen05": "pages"}  # what lies side by side where all are listed
DIRECT = re.compile(r"the layouts of direct loads: [\w ,]+" + SMALLER)
FAMILIES = ("none", "order", "pad", "split", "interval", "rotate", "xor", "matrix", "table")


def check_scope(problem, stated, size):
    """The layouts that a bound covers are those that the problem leaves, and its words say no more.

    Args: the problem, what of a bound the certificate states, and bytes of an element.
    """
    scope, covers = stated["scope"], stated.get("covers")
    if covers is None:
        return left_open(f"scope: NOT CHECKED, the certificate does not say what {scope!r} covers")
    if covers["layouts"] == "every" or scope == "every layout":
        require(covers["layouts"] == "every" and scope == "every layout", f"{scope!r} is not {covers}")
        return True
    by = hardware(problem)
    if by:
        require(
            covers == {"layouts": "hardware", "by": by}, f"the hardware dictates it by {by}, not {covers}"
        )
        words = " and ".join(by)
        engines = {part.partition(".")[0] for part in by}
        side = [text for text in dict.fromkeys(LISTED.values()) if text in map(LISTED.get, engines)]
        rest = f", {' and '.join(side)} side by side" if side else ", row-major with pads below 128 bytes"
        every = re.compile(re.escape(f"the layouts of {words}{rest}") + SMALLER)
        known = (DIRECT if direct(problem) else every).fullmatch(scope)
        require(known, f"the scope {scope!r} is not that of layouts by {words}")
        return True
    layout = constraints(problem)
    searched = families_searched(layout, size)
    wanted = {"layouts": "families", "families": searched, "max_bytes": layout["max_bytes"]}
    require(covers == wanted, f"the families {', '.join(searched)} are searched, not {covers}")
    without = [family for family in searched if family != "matrix"] or ["none"]
    words = [f"families {', '.join(some)}" for some in (searched, without)]
    rest = [scope.removeprefix(text) for text in words if scope.startswith(text)]
    known = any(LEFT_OUT.fullmatch(text) for text in rest)
    require(known, f"the scope {scope!r} is not that of the families {', '.join(searched)}")
    return True


def check_scope_of_tiles(stated, limit):
    """The same of a bound of all tiles together."""
    scope, covers = stated["scope"], stated.get("covers")
    if covers is None:
        return left_open(f"scope: NOT CHECKED, the certificate does not say what {scope!r} covers")
    wanted = {"layouts": "every"} if scope == "every layout" else {"layouts": "tiles", "max_bytes": limit}
    require(covers == wanted, f"the scope {scope!r} covers {wanted}, not {covers}")
    return True


def families_searched(layout, size):
    """The families that a search goes through under these constraints."""
    named = layout["families"] or FAMILIES
    some = [family for family in FAMILIES if family in named and family != "table"] or ["none"]
    without = {"order", "split", "matrix"} if layout["order"] is not None else set()
    if (layout["pitch_multiple_bytes"] or 1) // math.gcd(layout["pitch_multiple_bytes"] or 1, size) > 1:
        without |= {"interval", "matrix"}
    return [family for family in some if family not in without] or some


def hardware(problem):
    """The operations that dictate the layout; nothing where none does."""
    own = [a.get("by_itself", a) for a in problem["accesses"]]
    ops = [str(a.get("op")) for a in own if is_by_itself(a) or operation(a)[0] == "load.lds"]
    return list(dict.fromkeys(ops))


def direct(problem):
    """Whether some access is a load past the registers."""
    return any(operation(a.get("by_itself", a))[0] == "load.lds" for a in problem["accesses"])
