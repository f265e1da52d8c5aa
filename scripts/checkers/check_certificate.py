"""Check a certificate with plain loops.

    python scripts/checkers/check_certificate.py PROBLEM.json CERTIFICATE.json

Uses the standard library and nothing of layoutopt. It takes from the certificate which lanes the
hardware serves together and, where the file leaves a choice, how wide (`served`), and derives everything
else from the problem file. Name, target and constraints must be those of the file: a certificate of a problem
that options changed is one of another problem. What only a solver answered is not checked here: give the
certificate's `questions` to another solver.

Of what the hardware moves by itself (TMA, tensor cores, bulk copies) every element is where the tensor map,
the matrix descriptor or the copy has it, and no other layout of boxes or pages that follow one another has
less excess, or as little with fewer instructions (check_by_hardware.py, the only other file).

Of several tiles: the certificate of each, at each place where it lies, that tiles which live together
share no byte, and the bytes and excess of all.

Exit code 0: all of it holds. 1: something in the certificate is wrong. 2: a file cannot be read, or is no
problem or no certificate. 3: some of it rests on a solver or on the families searched.
"""

import ast
import functools
import itertools
import json
import math
import re
import sys
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_by_hardware

NAMED = {1: "i8 u8 b8 f8 e4m3 e5m2", 2: "i16 u16 b16 f16 bf16", 4: "i32 u32 b32 f32 tf32 f16x2 bf16x2",
         8: "i64 u64 b64 f64 c64", 16: "b128 c128"}  # fmt: skip
PACKED = {2: "i4 u4 s4 b4 e2m1", 4: "i2 u2 s2 b2", 8: "b1 u1"}  # elements to a byte
ALLOWED = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name,
           ast.Constant, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)  # fmt: skip
UNBOUNDED = (ast.Pow, ast.MatMult, ast.Div, ast.LShift)  # `<<` becomes `shift`, which has a bound
DEFAULTS = {"families": None, "max_bytes": None, "alignment_bytes": None, "pitch_multiple_bytes": None,
            "order": None, "minimise": "excess", "offset": None, "must_be": None}  # fmt: skip
# Operations without lanes, and what makes an access one to be written out.
BY_ITSELF = re.compile(r"tma\.(load|store)|(wgmma|tcgen05)\..*|cp\.async\.bulk")
WRITTEN_OUT = {"fragment", "copy", "coordinates", "bases"}
# AMD's loads from global memory past the registers: lane l writes at the wave's base + l times the width.
DIRECT = re.compile(r"(?:buffer|global)_load_dword(?:x[34])?[. ]lds|global_load_lds_dword(?:x[34])?")
MAX_WORK = 1 << 24  # lanes and elements that are looked at to compare a layout with the others
WIDEST_BYTES = 16  # of any access, a row of a matrix among them
ERRORS = (SyntaxError, NameError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError)
# Lanes of a warp, banks and bytes of a bank, by the name of the target.
HARDWARE = (("sm_1[0-3]", 32, {16}, 4), ("sm_.*_8byte", 32, {32}, 8), ("sm_.*", 32, {32}, 4),
            ("gfx950", 64, {32, 64}, 4), ("gfx9.*", 64, {32}, 4), ("gfx1.*", 32, {32}, 4))  # fmt: skip


class Broken(Exception):
    """A file is no problem or no certificate."""


def require(holds, what):
    if not holds:
        shown = (c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in str(what)[:500])
        sys.exit("WRONG: " + "".join(shown))


def shift(a, b):
    if not 0 <= b <= 64:
        raise ValueError(f"a shift by {b}")
    return a << b


class Shifts(ast.NodeTransformer):
    """`a << b` as a call of `shift`."""

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if isinstance(node.op, ast.LShift):
            return ast.Call(ast.Name("shift", ast.Load()), [node.left, node.right], [])
        return node


@functools.cache
def compiled(text):
    tree = ast.fix_missing_locations(Shifts().visit(ast.parse(text.strip(), mode="eval")))
    nodes = list(ast.walk(tree))
    if not all(isinstance(node, ALLOWED) and not isinstance(node, UNBOUNDED) for node in nodes):
        raise ValueError("not an integer expression")
    if any(isinstance(node, ast.Constant) and type(node.value) is not int for node in nodes):
        raise ValueError("a constant that is no integer")
    return compile(tree, "", "eval")


def evaluate(text, env):
    known = {"__builtins__": {}, "min": min, "max": max, "shift": shift}
    try:
        return int(eval(compiled(str(text)), known, env))
    except ERRORS as error:
        raise Broken(f"the problem: {str(text)[:200]!r} cannot be evaluated: {error}") from None


def check_problem(problem):
    """That the file is a problem, as far as it is used here."""
    require_form(isinstance(problem, dict), "an object is needed")
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
        loops, index = access.get("for", {}), access.get("index", [0] * len(shape))
        require_form(isinstance(index, list) and len(index) == len(shape), "an index has other dimensions")
        trips = loops.values() if isinstance(loops, dict) else [None]
        require_form(all(type(n) is int for n in trips), "a loop has no trip count")


def require_form(holds, what):
    if not holds:
        raise Broken(what)


class Case:
    """The problem as the certificate's hardware executes it."""

    def __init__(self, problem, given):
        self.given, self.shape, element = given, [*problem["tile"]["shape"]], problem["tile"]["element"]
        sizes = {name: size for size, names in NAMED.items() for name in names.split()}
        packed = {name: count for count, names in PACKED.items() for name in names.split()}
        self.size = element["bytes"] if isinstance(element, dict) else sizes.get(element, 1)
        # Elements that share a byte move with it: from here on, such bytes are the elements.
        self.packed = 1 if isinstance(element, dict) else packed.get(element, 1)
        # Every layout starts every element at a multiple of this.
        self.align = (isinstance(element, dict) and element.get("align")) or self.size & -self.size
        require(self.size % self.align == 0 and self.align & (self.align - 1) == 0, "the element's alignment")
        self.shape[-1] //= self.packed
        self.elements = math.prod(self.shape)
        self.operations = {access["name"]: str(access.get("op")) for access in problem["accesses"]}
        self.runs = [run for access in problem["accesses"] for run in self.execute(problem, access)]
        self.vector = {}  # element -> bytes and first element of the aligned block that every layout keeps
        for name, _, _, _, lanes in self.runs:
            wide = given["served"][name]["bytes"]
            for e in lanes.values():
                for k in range(max(1, wide // self.size)):
                    self.vector[e + k] = max(self.vector.get(e + k, (0, 0)), (max(wide, self.align), e))

    def execute(self, problem, access):
        """(access, warp, iteration, weight, lane -> element) of every warp instruction."""
        warp_lanes, loops = self.given["lanes"], dict(access.get("for", {}))
        wide, step = self.given["served"][access["name"]]["bytes"], None
        widths = access.get("bytes") or wide
        if isinstance(widths, list):  # a narrower one is executed more often, part by part
            widest, part = max(widths), "part"
            require(wide in widths, f"access {access['name']!r}: {wide} bytes are no choice")
            while part in loops:
                part += "_"
            if wide < widest:
                loops[part], step = widest // wide, wide * self.packed // self.size
        else:
            require(widths == wide, f"access {access['name']!r}: {wide} bytes, not {widths}")
        for values in itertools.product(*map(range, loops.values())):
            env = dict(zip(loops, values, strict=True))
            weight = access.get("weight", 1)
            weight = Fraction(evaluate(weight, env)) if isinstance(weight, str) else Fraction(str(weight))
            warps = {}
            for tid in range(problem["threads"]):
                env |= {"tid": tid, "lane": tid % warp_lanes, "warp": tid // warp_lanes}
                used = tid % warp_lanes < self.given["served"][access["name"]]["lanes_used"]
                if used and evaluate(access.get("where", 1), env):
                    *outer, last = (evaluate(text, env) for text in access["index"])
                    at = [*outer, (last + (step * env[part] if step else 0)) // self.packed]
                    if not all(0 <= x < extent for x, extent in zip(at, self.shape, strict=True)):
                        raise Broken(f"access {access['name']!r} leaves the tile")
                    warps.setdefault(tid // warp_lanes, {})[tid % warp_lanes] = self.flat(at)
            for warp, lanes in warps.items():
                yield access["name"], warp, dict(zip(loops, values, strict=True)), weight, lanes

    def flat(self, coordinates):
        """The row-major index."""
        together = zip(coordinates, self.shape, strict=True)
        return functools.reduce(lambda flat, at: flat * at[1] + at[0], together, 0)

    def together(self, name, lanes):
        """The lanes of one instruction that are served at once, set by set."""
        rule = self.given["served"][name]
        phases = rule["phases"]
        pairs = (all(lanes.get(at ^ bit, e) == e for at, e in lanes.items()) for bit in (1, 2))
        if rule["merges_pairs"] and any(pairs):
            phases = [a + b for a, b in zip(phases[::2], phases[1::2], strict=True)]
        yield from (some for phase in phases if (some := [at for at in phase if at in lanes]))

    def requests(self, name, start):
        """Words of each request of one phase, from the byte at which each lane starts."""
        word, rule = self.given["bank_bytes"], self.given["served"][name]
        count = max(1, rule["bytes"] // word)
        groups = [[k] for k in range(count)] if rule["split_words"] else [range(count)]
        return [[s // word + k for s in start for k in group] for group in groups]

    def meetings(self):
        """For each set of words served at once, its weight where a conflict is excess; the counting bound.

        A word is (first element of its vector, place in the vector). Elements of narrower vectors may share
        words: as many as can start in one.
        """
        word, weight, counting = self.given["bank_bytes"], {}, Fraction(0)
        for name, _, _, times, lanes in self.runs:
            rule = self.given["served"][name]
            banks, every = rule["banks"], list if rule["serialises_equal"] else set
            for some in self.together(name, lanes):
                starts = [lanes[at] for at in some]
                loose = [e for e in starts if self.vector[e][0] < word]
                held = [self.words(e, rule["bytes"]) for e in starts if self.vector[e][0] >= word]
                split = [[words[k : k + 1] for words in held] for k in range(max(1, rule["bytes"] // word))]
                for request in split if rule["split_words"] else [held]:
                    listed = [w for words in request for w in words]
                    counts = {
                        (k, p): len(self.within(every(listed), k, p)) for k in (1, 2, 4) for p in range(k)
                    }
                    counts[1, 0] += -(-len(every(loose)) // -(-word // self.size))
                    least = max(-(-count // max(1, banks // k)) for (k, _), count in counts.items())
                    if rule["serialises_equal"]:
                        least = max(least, *map(starts.count, starts))
                    distinct, repeats = frozenset(listed), len(set(listed)) < len(listed)
                    ideal = -(-(len(distinct) + len(set(loose))) // banks)
                    counting += times * max(0, least - ideal)
                    firm = least == ideal == 1 and banks == self.given["banks"]
                    if firm and distinct and times and not (repeats and rule["serialises_equal"]):
                        weight[distinct] = weight.get(distinct, 0) + times
        return weight, counting

    def words(self, element, wide):
        """The words that a lane touches from an element on."""
        word, (_, head) = self.given["bank_bytes"], self.vector[element]
        place = (element - head) * self.size // word
        return [(head, place + k) for k in range(max(1, wide // word))]

    def word_of(self, given):
        """A word of the certificate: its first element, and the byte of it where the word starts."""
        flat = self.flat(given["element"])
        head = self.vector[flat][1]
        return head, ((flat - head) * self.size + given["byte"]) // self.given["bank_bytes"]

    def within(self, words, k, p):
        """Those of some words that lie at place p, modulo k, of vectors of k words at least."""
        require(k in (1, 2, 4), "vectors of so many words")
        wide = k * self.given["bank_bytes"]
        return [w for w in words if self.vector[w[0]][0] >= wide and w[1] % k == p]

    def named(self, where, lanes):
        """The words that some lanes touch in one execution; they must be served at once."""
        for name, warp, iteration, _, elements in self.runs:
            if (name, warp, iteration) == (where["access"], where["warp"], where["iteration"]):
                require(any(set(lanes) <= set(some) for some in self.together(name, elements)), where)
                return [self.words(elements[at], self.given["served"][name]["bytes"]) for at in lanes]
        return require(False, f"no such execution: {where}")


def check_layout(case, given):
    """Elements apart, vectors whole and aligned, wavefronts as stated."""
    table = given["byte_offsets"]
    require(len(table) == case.elements, f"{len(table)} offsets for {case.elements} elements")
    require(all(type(offset) is int for offset in table), "an offset is no whole number")
    order = sorted(table)
    require(not any(at % case.align for at in table), f"an element is not aligned to {case.align} bytes")
    require(order[0] >= 0, "an element lies below byte 0")
    require(all(b - a >= case.size for a, b in itertools.pairwise(order)), "elements overlap")
    require(order[-1] + case.size == given["bytes"], "the bytes")
    require(not (why := torn(case, table)), why)
    spent, total = count(case, table)
    require(spent == given["wavefronts"], f"wavefronts are {spent}")
    require(abs(total - Fraction(str(given["excess"]))) < Fraction(1, 10**6), f"the excess is {total}")
    return total


def torn(case, table):
    """What of an access is misaligned or not in one piece; of AMD's direct loads, not by lane."""
    for name, warp, _, _, lanes in case.runs:
        wide = case.given["served"][name]["bytes"]
        for e in lanes.values():
            if table[e] % wide:
                return f"access {name!r} is misaligned"
            if any(table[e + k] != table[e] + k * case.size for k in range(1, wide // case.size)):
                return "a vector is torn"
        direct = DIRECT.fullmatch(case.operations[name])
        if direct and len({table[e] - lane * wide for lane, e in lanes.items()}) > 1:
            return f"access {name!r}: lanes of warp {warp} do not write side by side"
    return ""


def count(case, table):
    """Wavefronts of each access, and the weighted excess."""
    total, spent = Fraction(0), dict.fromkeys(case.given["served"], 0)
    for name, _, _, times, lanes in case.runs:
        rule = case.given["served"][name]
        for some in case.together(name, lanes):
            for words in case.requests(name, [table[lanes[at]] for at in some]):
                counted = words if rule["serialises_equal"] else set(words)
                banks = [w % rule["banks"] for w in counted]
                cost = max(map(banks.count, set(banks))) + rule["extra_wavefronts"]
                ideal = -(-len(set(words)) // rule["banks"]) + rule["extra_wavefronts"]
                spent[name] += cost
                total += times * (cost - ideal)
    return spent, total


def check_reached(problem, case, given):
    """Every access that the hardware makes by itself reaches the tile by the descriptor stated."""
    table, named = given["layout"]["byte_offsets"], given.get("hardware", {})
    layout = {**DEFAULTS, **problem.get("layout", {})}
    if layout["must_be"] is not None:
        require(table in must_be(case, layout), f"no layout of {layout['must_be']}")
        print(f"layout.must_be: one of {layout['must_be']}: checked")
    own = {a["name"]: a["by_itself"] for a in problem["accesses"] if "by_itself" in a}
    require(set(named) == set(own), f"descriptors of {sorted(named)}, the hardware makes {sorted(own)}")
    for name, access in own.items():
        claim = named[name]
        wrong = check_by_hardware.wrong_claim(access, case.shape, case.size, case.packed, table, claim)
        require(not wrong, f"access {name!r}: {wrong}")
        times = check_by_hardware.repetitions(claim)
        mode = f"mode {claim['mode']}, " if "mode" in claim else ""
        print(f"{name}: {access['op']}, {mode}{times} instructions reach every element: checked")


def must_be(case, layout):
    """The layouts that `must_be` names."""
    names = [layout["must_be"]] if isinstance(layout["must_be"], str) else layout["must_be"]
    return check_by_hardware.must_be(names, case.shape, case.size, layout["order"])


def check_choice(problem, case, given):
    """That no other layout the hardware knows has less excess, or as little and fewer instructions.

    Returns how many there are, and their least excess and bytes; nothing where they are too many, or where
    the certificate asks for something else first.
    """
    layout = {**DEFAULTS, **problem.get("layout", {})}
    own = [a["by_itself"] for a in problem["accesses"] if "by_itself" in a]
    other = layout["minimise"] != "excess" or layout["alignment_bytes"] or layout["offset"]
    if other or any(a["op"] == "cp.async.bulk" for a in own):
        return None
    tile = case.shape, case.size
    named, last = layout["must_be"] is not None, (layout["order"] or [None])[-1]
    listed = must_be(case, layout) if named else check_by_hardware.layouts(own, *tile, case.packed)
    chosen = sum(map(check_by_hardware.repetitions, given.get("hardware", {}).values()))
    own_cost = Fraction(str(given["layout"]["excess"])), given["layout"]["bytes"], 0 if named else chosen
    work, seen, found = sum(len(run[4]) for run in case.runs) + case.elements, {}, []
    number = 0
    for number, table in enumerate(listed, 1):
        if number * work > MAX_WORK:
            return None
        size, every = max(table) + case.size, given["banks"] * given["bank_bytes"]
        large = layout["max_bytes"] is not None and size > layout["max_bytes"]
        if large or torn(case, table) or not check_by_hardware.contiguous(*tile, table, last):
            continue
        banks = tuple(at % every for at in table)
        if banks not in seen:
            seen[banks] = count(case, table)[1]
        if (seen[banks], size) <= own_cost[:2]:
            needed = check_by_hardware.instructions(own, *tile, case.packed, table)
            found += [(seen[banks], size, 0 if named else needed)] if needed is not None else []
    if not number:
        return None
    least = min(found, default=own_cost)
    if given["status"] == "optimal":
        better = f"{said(least)} instead of {said(own_cost)}"
        require(own_cost <= least, f"another layout that the hardware knows has {better}")
        print(f"choice: of {number} layouts of whole boxes or pages none is better: checked")
    return number, *least[:2]


def said(cost):
    return "weighted excess {}, {} bytes, {} instructions".format(*cost)


def check_clique(case, given, firm):
    """More words than banks, every two of them served at once: what a conflict of any two costs."""
    k, cost = given["vector_bytes"] // case.given["bank_bytes"], []
    words = set()
    for meeting in given["meetings"]:
        first, second = case.named(meeting, meeting["lanes"])
        pair = [case.word_of(given["words"][n]) for n in meeting["words"]]
        require(pair[0] in first and pair[1] in second, f"these lanes do not touch them: {meeting}")
        words.update(pair)
        cost.append(sum(w for some, w in firm.items() if set(pair) <= some))
    require(len(case.within(words, k, given["place"])) == len(words) == len(given["words"]), "the words")
    pairs = {tuple(sorted(m["words"])) for m in given["meetings"] if len(set(m["words"])) == 2}
    require(len(pairs) == len(words) * (len(words) - 1) // 2, "some pair does not meet")
    require(len(words) > case.given["banks"] // k, "as many banks as words")
    return min(cost)


def check_packing(case, given, firm):
    """Cliques that each force a conflict, and take shares of their phases: none takes more than there is."""
    took, total = {}, Fraction(0)
    for clique in given["cliques"]:
        k, share = clique["vector_bytes"] // case.given["bank_bytes"], clique["share"]
        require(type(share) is int and share >= 0, "a share")
        phases = [
            frozenset(w for words in case.named(p, p["lanes"]) for w in words) for p in clique["phases"]
        ]
        words = {case.word_of(word) for word in clique["words"]}
        require(all(phase in firm for phase in phases), "a conflict in some phase is no excess")
        require(len(set(phases)) == len(phases), "a phase is listed twice")
        require(len(case.within(words, k, clique["place"])) == len(words), "the words")
        require(len(words) > case.given["banks"] // k, "as many banks as words")
        for pair in itertools.combinations(words, 2):
            require(any(phase.issuperset(pair) for phase in phases), "some pair does not meet")
        for phase in phases:
            took[phase] = took.get(phase, 0) + Fraction(share, case.given["weight_unit"])
        total += Fraction(share, case.given["weight_unit"])
    require(all(spent <= firm[phase] for phase, spent in took.items()), "more shares than a phase weighs")
    return total


def check_parity(case, given, firm):
    """Weights that one word of every phase in each bank would contradict."""
    k = given["vector_bytes"] // case.given["bank_bytes"]
    touched = [frozenset(w for words in case.named(p, p["lanes"]) for w in words) for p in given["phases"]]
    held = [case.within(words, k, given["place"]) for words in touched]
    require(all(words in firm for words in touched), "a conflict in some phase is no excess")
    require(len(set(touched)) == len(touched), "a phase is listed twice")
    require(all(len(words) == case.given["banks"] // k for words in held), "a phase does not fill the banks")
    in_all = set(range(len(held)))
    for y in given["combinations"]:
        total = {}
        for words, weight in zip(held, y["weights"], strict=True):
            for w in words:
                total[w] = total.get(w, 0) + weight
        require(not any(value % y["modulus"] for value in total.values()), "a word's weights")
        require(sum(y["weights"]) % y["modulus"], "no contradiction")
        in_all &= {n for n, weight in enumerate(y["weights"]) if weight}
    cost = sorted(firm[words] for words in touched)
    return cost[0] if in_all else cost[0] + cost[1]


def check_bound(case, given):
    """Least excess of every layout, as far as it follows from counting, cliques or a parity."""
    weight, counting = case.meetings()
    more = [Fraction(0)]
    if given["clique"]:
        more.append(check_clique(case, given["clique"], weight))
    if given.get("packing"):
        more.append(check_packing(case, given["packing"], weight))
    if given["parity"]:
        more.append(check_parity(case, given["parity"], weight))
    return counting + max(more)


def check_named(problem, given):
    """The problem, the hardware and the constraints that the certificate speaks of are those of the file."""
    require(given["problem"] == problem["name"], f"it is of the problem {given['problem']!r}")
    target = problem.get("target", "sm_90")
    require(given["target"] == target, f"it is for {given['target']!r}, the problem for {target!r}")
    stated = {**DEFAULTS, **given.get("constraints", {})}
    for field, value in {**DEFAULTS, **problem.get("layout", {})}.items():
        wanted = sorted(value) if field == "families" and value else value
        said = sorted(stated[field]) if field == "families" and stated[field] else stated[field]
        require(said == wanted, f"layout.{field} was {said}, the problem has {wanted}")
    rules = given["served"].values()
    require(set(given["served"]) == {a["name"] for a in problem["accesses"]}, "the accesses served")
    banks = {(rule["banks"], rule["bank_bytes"]) for rule in rules}
    require((given["banks"], given["bank_bytes"]) in banks, "the banks are not those of an access")
    for rule in rules:
        served = sorted(lane for phase in rule["phases"] for lane in phase)
        used = rule["lanes_used"]
        once = len(set(served)) == len(served) >= used and set(range(used)) <= set(served)
        require(once, "some lane is served twice, or never")
        require(0 < rule["bytes"] <= WIDEST_BYTES, f"accesses of {rule['bytes']} bytes")
    for name, lanes, counts, wide in HARDWARE:
        if re.fullmatch(name, target):
            real = given["lanes"] == lanes and all(b in counts and w == wide for b, w in banks)
            return require(real, f"{target} has other banks or lanes")
    return None


def check_status(given):
    """A layout where there is one to have, and what was refuted where there is none."""
    status, has = given["status"], given["layout"] is not None
    require(status in ("optimal", "feasible", "infeasible", "unknown"), f"no status: {status!r}")
    require(has == (status in ("optimal", "feasible")), f"{status}, with{'' if has else 'out'} a layout")
    refuted = given["infeasible"] is not None
    require(refuted == (status == "infeasible"), f"{status}, with{'' if refuted else 'out'} a refutation")


def check_constraints(problem, case, found):
    """The layout's bytes and, where the families have no cuts, rotations and XORs, its strides."""
    layout = {**DEFAULTS, **problem.get("layout", {})}
    most, aligned = layout["max_bytes"], layout["alignment_bytes"]
    require(most is None or found["bytes"] <= most, f"{found['bytes']} bytes, more than {most}")
    widest = max(rule["bytes"] for rule in case.given["served"].values())
    require(aligned is None or widest <= aligned, f"an access of {widest} bytes needs more than {aligned}")
    families = set(layout["families"] or ["table"])
    if families - {"none", "order", "pad"}:
        return
    table, inner, strides = found["byte_offsets"], 1, []
    for extent in reversed(case.shape):
        strides.insert(0, (table[inner] - table[0]) if extent > 1 else None)
        inner *= extent
    for flat, x in enumerate(itertools.product(*map(range, case.shape))):
        linear = table[0] + sum(n * (stride or 0) for n, stride in zip(x, strides, strict=True))
        require(table[flat] == linear, "the layout has no strides, as its families do")
    used = [d for d, stride in enumerate(strides) if stride is not None]
    slowest_first = sorted(used, key=lambda d: -strides[d])
    order = [d for d in layout["order"] or range(len(strides)) if d in used]
    require("order" in families or slowest_first == order, "the dimensions are in another order")
    dense = found["bytes"] == case.elements * case.size
    require("pad" in families or dense, "the layout is padded")
    pitch = layout["pitch_multiple_bytes"] or 1
    require(not any(strides[d] % pitch for d in slowest_first[:-1]), f"a stride is no multiple of {pitch}")


def check(problem, given):
    """Print what holds and what is open; whether nothing is."""
    check_named(problem, given)
    check_status(given)
    case, found, stated = Case(problem, given), given["layout"], given["bound"]
    elements = case.elements * case.size
    claimed, least = Fraction(str(stated["excess"])), given["bytes"]["at_least"]
    widths = [f"{a['name']}: {given['served'][a['name']]['bytes']} bytes" for a in problem["accesses"]
              if isinstance(a.get("bytes"), list)]  # fmt: skip
    if widths:
        print(f"widths: {', '.join(widths)}; other choices are not compared here")
    choice = None
    if found:
        excess = check_layout(case, found)
        check_reached(problem, case, given)
        check_constraints(problem, case, found)
        choice = check_choice(problem, case, given) if dictated(problem) else None
        print(f"layout: {excess} weighted excess in {found['bytes']} bytes: checked")
        require(claimed <= excess + Fraction(1, 10**6), f"the layout has less excess than {claimed}")
        require(least <= found["bytes"], f"the layout has fewer bytes than {least}")
        if given["status"] == "optimal":
            best = (excess - claimed < Fraction(1, 10**6)) and least == found["bytes"]
            require(best, "optimal, but the bounds are lower")
    bound = check_bound(case, given) if claimed else Fraction(0)
    closed = [claimed <= bound]
    if closed[0]:
        print(f"bound: no layout of any kind has a weighted excess below {claimed}: checked")
    elif choice and claimed <= choice[1]:
        closed[0] = True
        print(f"bound: {claimed} in {stated['scope']}: checked, in all {choice[0]} of whole boxes or pages")
    else:
        by_hand = stated["rests_on"].startswith("arithmetic")
        require(not by_hand, f"the bound is {claimed}, arithmetic gives {bound}")
        print(f"bound: {claimed} in {stated['scope']}: NOT CHECKED, it rests on {stated['rests_on']}")
    if found and least <= elements:
        print(f"bytes: no layout of any kind takes fewer than {least}: checked")
    elif choice and least <= choice[2]:
        print(f"bytes: {least} in {given['bytes']['scope']}: checked, in all {choice[0]}")
    elif found:
        closed.append(False)
        print(f"bytes: {least} in {given['bytes']['scope']}: NOT CHECKED, it rests on layoutopt's search")
    if given["status"] == "unknown":
        closed.append(False)
        print("unknown: NOT CHECKED, no layout is claimed and none is refuted")
    if given["status"] == "infeasible":
        asked = problem.get("layout", {}).get("max_bytes")
        require(given["infeasible"]["max_bytes"] == asked, f"max_bytes is {asked}")
        closed.append(check_infeasible(given["infeasible"], elements, bound, bool(widths)))
    return all(closed)


def check_infeasible(given, elements, bound, other_widths):
    """Whether what was refuted is refuted by arithmetic."""
    most = given["max_bytes"]
    if most is not None and most < elements:
        print(f"infeasible: the elements alone take {elements} bytes, more than {most}: checked")
        return True
    if given["refuted"] == "a layout without conflicts" and bound > 0 and not other_widths:
        print("infeasible: no layout of any kind is without conflicts: checked")
        return True
    print(f"infeasible: {given['refuted']}: NOT CHECKED, that there is none rests on layoutopt's search")
    return False


def element_bits(tile):
    """Bits of an element of a tile."""
    element = tile["element"]
    if isinstance(element, dict):
        return 8 * element["bytes"]
    packed = [8 // count for count, names in PACKED.items() if element in names.split()]
    return packed[0] if packed else 8 * next(n for n, names in NAMED.items() if element in names.split())


def tile_bytes(tile):
    return math.prod(tile["shape"]) * element_bits(tile) // 8


def whole_tile(tiles):
    """Shape and element of what tiles that share a layout are beginnings of, in bytes, row-major."""
    bits, largest = min(map(element_bits, tiles)), max(tiles, key=tile_bytes)
    smallest = [tile for tile in tiles if element_bits(tile) == bits]
    finest = max(smallest, key=lambda tile: alignment(tile["element"], bits))["element"]
    if tile_bytes(tiles[0]) == tile_bytes(largest):
        return {"shape": tiles[0]["shape"], "element": finest}
    *outer, last = largest["shape"]
    return {"shape": [*outer, last * (element_bits(largest) // bits)], "element": finest}


def alignment(element, bits):
    size = max(1, bits // 8)
    return (isinstance(element, dict) and element.get("align")) or size & -size


def viewed(access, tile, whole):
    """The access in the coordinates of `whole`, which begins with the same bytes, row-major."""
    ratio = element_bits(tile) // element_bits(whole)
    same = len(tile["shape"]) == len(whole["shape"]) and tile["shape"][1:] == whole["shape"][1:]
    if (ratio == 1 and same) or "index" not in access:
        return access
    flat = functools.reduce(
        lambda text, at: f"({text})*{at[1]} + ({at[0]})",
        zip(access["index"], tile["shape"], strict=True),
        "0",
    )
    index, inner = [], 1
    for d, extent in reversed([*enumerate(whole["shape"])]):
        index.insert(0, f"({flat})*{ratio} // {inner}" + (f" % {extent}" if d else ""))
        inner *= extent
    return {**access, "index": index}


def tile_problem(block, names):
    """The problem of one of several tiles; of those that share a layout, with the accesses of all."""
    tiles = {tile["name"]: tile for tile in block["tiles"]}
    own, common, mine = tiles[names[0]], block.get("layout", {}), [tiles[name] for name in names]
    for tile in mine:
        check_problem({"name": "", "threads": 1, "accesses": [], "tile": tile})
    whole = whole_tile(mine)
    constraints = own.get("layout", {})
    layout = {field: value for field, value in constraints.items() if value is not None}
    families = [set(c["families"]) for c in (constraints, common) if c.get("families")]
    if families:
        allowed = set.intersection(*families)
        source = constraints.get("families") or common.get("families")
        layout["families"] = [family for family in source if family in allowed]
    aligned = [c["alignment_bytes"] for c in (constraints, common) if c.get("alignment_bytes")]
    pitches = [c["pitch_multiple_bytes"] for c in (constraints, common) if c.get("pitch_multiple_bytes")]
    layout |= {"alignment_bytes": min(aligned)} if aligned else {}
    layout |= {"pitch_multiple_bytes": math.lcm(*pitches)} if pitches else {}
    if len({tile_bytes(tile) for tile in mine}) > 1 and block.get("same_layout") is not True:
        # Each is the beginning of the largest, without holes.
        layout.setdefault("order", list(range(len(whole["shape"]))))
    accesses = [
        {field: value for field, value in viewed(access, tiles[name], whole).items() if field != "tile"}
        for name in names
        for access in block["accesses"]
        if access.get("tile") == name
    ]
    problem = {field: block[field] for field in ("threads", "target") if field in block}
    name = f"{block['name']} {names[0]}"
    return {**problem, "name": name, "layout": layout, "accesses": accesses, "tile": whole}


def check_block(block, given):
    """Print what holds and what is open of several tiles; whether nothing is."""
    require(given["problem"] == block["name"], f"it is of the problem {given['problem']!r}")
    require(given["target"] == block.get("target", "sm_90"), f"it is for {given['target']!r}")
    asked, most = block.get("layout", {}).get("max_bytes"), given["max_bytes"]  # else what the GPU has
    require(asked in (None, most), f"layout.max_bytes is {asked}")
    tiles = {tile["name"]: tile for tile in block["tiles"]}
    if not given["tiles"]:
        require(given["status"] in ("infeasible", "unknown"), f"{given['status']}, without a layout")
        print(f"{given['status']}: NOT CHECKED: {given['reason']}")
        return False
    named = [name for part in given["tiles"] for name in part["tiles"]]
    require(sorted(named) == sorted(tiles), "the tiles are not those of the file")
    excess, bound, elements, places, open_tiles = Fraction(0), Fraction(0), {}, {}, []
    for part in given["tiles"]:
        own, problem = part["certificate"], tile_problem(block, part["tiles"])
        check_problem(problem)
        problem = without_lanes(problem)
        if why := not_handled(problem, own):
            print(f"{', '.join(part['tiles'])}: NOT CHECKED: {why}")
            open_tiles += part["tiles"]
            continue
        print(f"{', '.join(part['tiles'])}:")
        check(problem, own)
        case, found = Case(problem, own), own["layout"]
        require([place["tile"] for place in part["places"]] == part["tiles"], "the places are of other tiles")
        for place in part["places"]:
            name, base, step = place["tile"], place["base_bytes"], place["stage_bytes"]
            stages, count = tiles[name].get("stages", 1), tile_bytes(tiles[name]) // case.size
            require(place["stages"] == stages, f"{name} has {stages} stages")
            size = max(found["byte_offsets"][:count]) + case.size
            places[name] = [(base + k * step, base + k * step + size) for k in range(stages)]
            elements[name] = stages * tile_bytes(tiles[name])
            unit = max((claim["alignment_bytes"] for claim in own.get("hardware", {}).values()), default=1)
            aligned = not any(start % unit for start, _ in places[name])
            require(aligned, f"{name} lies at no multiple of {unit} bytes")
        period = own["banks"] * own["bank_bytes"]
        for shift in {start % period for name in part["tiles"] for start, _ in places[name]} - {0}:
            moved = [at + shift for at in found["byte_offsets"]]
            check_layout(case, {**found, "byte_offsets": moved, "bytes": found["bytes"] + shift})
        excess += Fraction(str(found["excess"]))
        claimed = Fraction(str(own["bound"]["excess"]))
        bound += min(claimed, check_bound(case, own)) if claimed else 0
    check_places(block, places)
    if open_tiles:
        print(f"block: NOT CHECKED: its bytes and excess, for want of {', '.join(open_tiles)}")
        return False
    end = max(stop for spans in places.values() for _, stop in spans)
    require(given["bytes"] == end, f"the tiles end at byte {end}")
    require(most is None or end <= most, f"{end} bytes, more than {most}")
    require(abs(excess - Fraction(str(given["excess"]))) < Fraction(1, 10**6), f"the excess is {excess}")
    print(f"block: {excess} weighted excess in {end} bytes, no byte is of two tiles at a time: checked")
    times = [sum(elements.pop(name) for name in time) for time in block.get("overlay") or ()]
    least = sum(elements.values()) + max(times, default=0)
    closed = [bound >= Fraction(str(given["bound"]["excess"])), end <= least]
    by_hand = given["bound"]["rests_on"].startswith("arithmetic")
    require(closed[0] or not by_hand, f"the bound is {given['bound']['excess']}, arithmetic gives {bound}")
    for holds, what, stated in zip(closed, ("excess", "bytes"), ("bound", "bytes_bound"), strict=True):
        rests = "checked" if holds else "NOT CHECKED, it rests on layoutopt's search"
        print(f"{what}: of all tiles, in {given[stated]['scope']}: {rests}")
    return all(closed)


def check_places(block, places):
    """Tiles that live at the same time share no byte."""
    times = [set(time) for time in block.get("overlay") or ()]

    def together(one, other):
        here = [next((t for t, time in enumerate(times) if name in time), None) for name in (one, other)]
        return None in here or here[0] == here[1]

    for one, other in itertools.combinations_with_replacement(places, 2):
        if one != other and not together(one, other):
            continue
        pairs = itertools.product(places[one], places[other])
        pairs = itertools.combinations(places[one], 2) if one == other else pairs
        apart = all(b <= c or d <= a for (a, b), (c, d) in pairs)
        require(apart, f"{one} and {other} share bytes" if one != other else f"stages of {one} share bytes")


def is_by_itself(access):
    return bool(BY_ITSELF.fullmatch(str(access.get("op")))) or "hardware" in access


def without_lanes(problem):
    """The problem, its accesses that the hardware makes by itself as ones that no lane executes."""
    still = {"index": [0] * len(problem["tile"]["shape"]), "where": 0}
    accesses = [
        {"name": a["name"], "by_itself": a, **still} if is_by_itself(a) else a for a in problem["accesses"]
    ]
    return {**problem, "accesses": accesses}


def dictated(problem):
    """Whether the hardware, or `layout.must_be`, dictates the layout."""
    named = problem.get("layout", {}).get("must_be") is not None
    return named or any("by_itself" in a for a in problem["accesses"])


def not_handled(problem, given):
    """What of a certificate is not checked here; empty where all of it is."""
    left_out = [a["name"] for a in problem["accesses"] if "index" not in a or WRITTEN_OUT & a.keys()]
    if left_out:
        return f"accesses without an index: {', '.join(left_out)} are not handled here"
    rules = given["served"].values()
    if any(r["row_words"] > 1 or r["bank_bytes"] != given["bank_bytes"] for r in rules):
        return "rows or banks of two sizes are not handled here"
    return ""


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    try:
        problem, given = (json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:])
    except (OSError, ValueError, RecursionError) as error:
        print(f"two JSON files are needed, PROBLEM and CERTIFICATE: {error}", file=sys.stderr)
        return 2
    try:
        if isinstance(given, dict) and given.get("schema") == "layoutopt.block_certificate/1":
            return 0 if check_block(problem, given) else 3
        check_problem(problem)
        known = isinstance(given, dict) and given.get("schema") == "layoutopt.certificate/1"
        require_form(known, "the second file is no certificate")
        plain = without_lanes(problem)
        if why := not_handled(plain, given):
            hint = "; `layoutopt problems --expanded` writes them out" if "without an index" in why else ""
            print(f"NOT CHECKED: {why}{hint}")
        return 0 if not why and check(plain, given) else 3
    except Broken as error:
        print(str(error).encode("ascii", "backslashreplace").decode(), file=sys.stderr)
        return 2
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        return require(False, f"the certificate is not of this problem, or malformed: {error!r}")


if __name__ == "__main__":
    sys.exit(main())
