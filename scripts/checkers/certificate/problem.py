"""A problem file as far as a certificate needs it: expressions, elements, accesses."""

import ast
import functools
import math
import re
import sys
from fractions import Fraction

from certificate.operations import operation

NAMED = {1: "i8 u8 b8 f8 e4m3 e5m2", 2: "i16 u16 b16 f16 bf16 char2 uchar2",
         4: "i32 u32 b32 f32 tf32 f16x2 bf16x2 char4 uchar4 short2 ushort2",
         8: "i64 u64 b64 f64 c64 short4 ushort4 int2 uint2 float2", 12: "int3 uint3 float3",
         16: "b128 c128 int4 uint4 float4 double2"}  # fmt: skip
PACKED = {2: "i4 u4 s4 b4 e2m1", 4: "i2 u2 s2 b2", 8: "b1 u1"}  # elements to a byte
ALLOWED = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name,
           ast.Constant, ast.List, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
           ast.expr_context)  # fmt: skip
UNBOUNDED = (ast.Pow, ast.MatMult, ast.Div, ast.LShift)  # `<<` becomes `shift`, which has a bound
DEFAULTS = {"families": None, "max_bytes": None, "alignment_bytes": None, "pitch_multiple_bytes": None,
            "order": None, "minimise": "excess", "offset": None}  # fmt: skip
# Operations without lanes, what makes an access one to be written out, and one whose lanes are chosen.
BY_ITSELF = re.compile(r"tma\.(load|store)|(wgmma|tcgen05)\..*|cp\.async\.bulk")
WRITTEN_OUT = {"fragment", "copy", "coordinates", "bases", "covers", "threads", "repeat", "warps",
               "first_warp"}  # fmt: skip
CHOSEN = {"lanes", "values", "global", "any", "any_is"}
# Fields of a file; what no one asks for by a name that is not here would be passed over in silence.
TILE = {"shape", "element"}
EITHER = {"schema", "name", "target", "threads", "accesses", "layout", "block", "notes", "known_optimum"}
FIELDS = {
    "problem": EITHER | {"tile", "kernel", "published"},
    "block": EITHER | {"tiles", "overlay", "same_layout"},
    "tile": TILE,
    "named tile": TILE | {"name", "stages", "layout", "published", "base_bytes", "stage_bytes"},
    "layout": {*DEFAULTS},
    "access": {
        "name", "op", "index", "for", "where", "bytes", "weight", "notes", "tile", "hardware", "active",
        "order", "k", "mn", "major", "mode", "box", "rows", "multicast", "element",
    } | WRITTEN_OUT | CHOSEN,
}  # fmt: skip
TOLERANCE = Fraction(1, 10**6)  # of sums of weights, which are printed as decimals
ERRORS = (SyntaxError, NameError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError)


class Broken(Exception):
    """A file is no problem or no certificate."""


def plain(text):
    """The text in printable ASCII: neither an escape code nor a line of its own comes out of a file."""
    shown = (c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in str(text)[:500])
    return "".join(shown)


def say(text):
    print(plain(text))


def left_open(text):
    """Say what is not checked."""
    say(text)
    return False


def require(holds, what):
    if not holds:
        sys.exit("WRONG: " + plain(what))


def require_form(holds, what):
    if not holds:
        raise Broken(what)


def shift(a, b):
    if not 0 <= b <= 64:
        raise ValueError(f"a shift by {b}")
    return a << b


def entry(table, k):
    if not 0 <= k < len(table):
        raise ValueError(f"entry {k} of a table of {len(table)}")
    return table[k]


class Bounded(ast.NodeTransformer):
    """`a << b` as a call of `shift`, `[a, b][k]` as one of `entry`."""

    def visit_Subscript(self, node):
        self.generic_visit(node)
        if not isinstance(node.value, ast.List):
            return node
        return ast.Call(ast.Name("entry", ast.Load()), [node.value, node.slice], [])

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if isinstance(node.op, ast.LShift):
            return ast.Call(ast.Name("shift", ast.Load()), [node.left, node.right], [])
        return node


@functools.cache
def compiled(text):
    tree = ast.fix_missing_locations(Bounded().visit(ast.parse(text.strip(), mode="eval")))
    nodes = list(ast.walk(tree))
    if not all(isinstance(node, ALLOWED) and not isinstance(node, UNBOUNDED) for node in nodes):
        raise ValueError("not an integer expression")
    if any(isinstance(node, ast.Constant) and type(node.value) is not int for node in nodes):
        raise ValueError("a constant that is no integer")
    return compile(tree, "", "eval")


def evaluate(text, env):
    known = {"__builtins__": {}, "min": min, "max": max, "shift": shift, "entry": entry}
    try:
        return int(eval(compiled(str(text)), known, env))
    except ERRORS as error:
        raise Broken(f"the problem: {str(text)[:200]!r} cannot be evaluated: {error}") from None


def unique(pairs):
    """An object of a JSON file, every name in it once."""
    found = dict(pairs)
    require_form(len(found) == len(pairs), f"a name twice among {', '.join(name for name, _ in pairs)}")
    return found


def check_fields(value, kind):
    """That an object has no field that is not read."""
    unknown = value.keys() - FIELDS[kind] if isinstance(value, dict) else ()
    require_form(not unknown, f"the {kind} has an unknown field: {', '.join(sorted(unknown))}")


def check_problem(problem):
    """That the file is a problem, as far as it is used here."""
    require_form(isinstance(problem, dict), "an object is needed")
    check_fields(problem, "problem")
    check_fields(problem.get("tile"), "tile" if "name" not in (problem.get("tile") or {}) else "named tile")
    check_fields(problem.get("layout"), "layout")
    for field, kind in (("name", str), ("threads", int), ("accesses", list), ("tile", dict)):
        require_form(isinstance(problem.get(field), kind), f"{field} is needed")
    tile = problem["tile"]
    shape, element = tile.get("shape"), tile.get("element")
    counted = isinstance(shape, list) and shape and all(type(n) is int and n > 0 for n in shape)
    require_form(counted and problem["threads"] <= 1024, "tile.shape or threads")
    structure = isinstance(element, dict) and type(element.get("bytes")) is int and element["bytes"] > 0
    names = " ".join([*NAMED.values(), *PACKED.values()]).split()
    require_form(structure or element in names, "tile.element is unknown")
    require_form(isinstance(problem.get("layout", {}), dict), "layout is an object")
    for access in problem["accesses"]:
        require_form(isinstance(access, dict) and isinstance(access.get("name"), str), "an access, its name")
        check_fields(access, "access")
        loops, index = access.get("for", {}), access.get("index", [0] * len(shape))
        require_form(isinstance(index, list) and len(index) == len(shape), "an index has other dimensions")
        trips = loops.values() if isinstance(loops, dict) else [None]
        require_form(all(type(n) is int for n in trips), "a loop has no trip count")


def element_bits(tile):
    """Bits of an element of a tile."""
    element = tile["element"]
    if isinstance(element, dict):
        return 8 * element["bytes"]
    packed = [8 // count for count, names in PACKED.items() if element in names.split()]
    return packed[0] if packed else 8 * next(n for n, names in NAMED.items() if element in names.split())


def tile_bytes(tile):
    return math.prod(tile["shape"]) * element_bits(tile) // 8


def alignment(element, bits):
    size = max(1, bits // 8)
    return (isinstance(element, dict) and element.get("align")) or size & -size


def is_by_itself(access):
    return bool(BY_ITSELF.fullmatch(str(access.get("op")))) or "hardware" in access


def without_lanes(problem):
    """The problem, its accesses that the hardware makes by itself as ones that no lane executes."""
    still, element = {"index": [0] * len(problem["tile"]["shape"]), "where": 0}, problem["tile"]["element"]
    accesses = [
        {"name": a["name"], "by_itself": {**a, "of": element}, **still} if is_by_itself(a) else a
        for a in problem["accesses"]
    ]
    return {**problem, "accesses": accesses}


def constraints(problem):
    """What the file asks of the layout."""
    return {**DEFAULTS, **problem.get("layout", {})}


def by_itself(problem):
    """The accesses that the hardware makes by itself, as the file has them."""
    return [access["by_itself"] for access in problem["accesses"] if "by_itself" in access]


def dictated(problem):
    """Whether the hardware dictates the layout."""
    return bool(by_itself(problem))


def not_handled(problem):
    """Which accesses of a problem are not read here; empty where all of them are."""
    left_out = [a["name"] for a in problem["accesses"] if "index" not in a or WRITTEN_OUT & a.keys()]
    if left_out:
        return f"accesses without an index: {', '.join(left_out)} are not handled here"
    if chosen := [a["name"] for a in problem["accesses"] if CHOSEN & a.keys()]:
        return f"lanes or values of {', '.join(chosen)} are chosen by the answer or at run time"
    unknown = [a["name"] for a in problem["accesses"] if operation(a.get("by_itself", a)) is None]
    return f"operations that are not known here: {', '.join(unknown)}" if unknown else ""
