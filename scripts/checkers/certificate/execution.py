"""A problem as the certificate's hardware executes it: what is served at once, and what a layout costs."""

import functools
import itertools
import math
import re
from fractions import Fraction

from certificate.problem import TOLERANCE, Broken, alignment, element_bits, evaluate, require

# AMD's loads from global memory past the registers: lane l writes at the wave's base + l times the width.
DIRECT = re.compile(r"(?:buffer|global)_load_dword(?:x[34])?[. ]lds|global_load_lds_dword(?:x[34])?")

MAX_LANE_ACCESSES = 1 << 24  # the most that a problem file may have


class Case:
    """The problem as the certificate's hardware executes it."""

    def __init__(self, problem, given):
        self.given, self.shape, element = given, [*problem["tile"]["shape"]], problem["tile"]["element"]
        bits = element_bits(problem["tile"])
        # Elements that share a byte move with it: from here on, such bytes are the elements.
        self.size, self.packed = max(1, bits // 8), max(1, 8 // bits)
        # Every layout starts every element at a multiple of this.
        self.align = alignment(element, bits)
        require(self.size % self.align == 0 and self.align & (self.align - 1) == 0, "the element's alignment")
        self.shape[-1] //= self.packed
        self.elements = math.prod(self.shape)
        # Where words of one row of a bank are served together, counting alone bounds what other layouts cost.
        self.by_rows = any(rule["row_words"] > 1 for rule in given["served"].values())
        self.operations = {access["name"]: str(access.get("op")) for access in problem["accesses"]}
        executed = sum(math.prod(access.get("for", {}).values()) for access in problem["accesses"])
        if executed * problem["threads"] > MAX_LANE_ACCESSES:
            raise Broken(f"more than {MAX_LANE_ACCESSES} lane accesses")
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
            # Words of one row that share a bank are served as one (and then a group of lanes has 32 at most).
            shared = 1 if rule["serialises_equal"] else max(1, rule["row_words"] // banks)
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
                    least = max(
                        -(-count // (shared * max(1, banks // k))) for (k, _), count in counts.items()
                    )
                    if rule["serialises_equal"]:
                        least = max(least, *map(starts.count, starts))
                    distinct, repeats = frozenset(listed), len(set(listed)) < len(listed)
                    ideal = -(-(len(distinct) + len(set(loose))) // banks)
                    counting += times * max(0, least - ideal)
                    firm = least == ideal == 1 and banks == self.given["banks"] and rule["row_words"] == 1
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
        flat, byte = self.flat(given["element"]), given["byte"]
        inside = all(type(x) is int and 0 <= x < n for x, n in zip(given["element"], self.shape, strict=True))
        require(inside and type(byte) is int and 0 <= byte < self.size, f"no word: {given}")
        head = self.vector[flat][1]
        place, rest = divmod((flat - head) * self.size + byte, self.given["bank_bytes"])
        require(not rest, f"no word begins there: {given}")
        return head, place

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


def check_layout(case, given, start=0, promised=None):
    """Elements apart, vectors whole and aligned, wavefronts as stated.

    The tile starts at byte `start`: at a multiple of its elements' alignment, or of what is `promised` of the
    base where that is less.
    """
    table = given["byte_offsets"]
    require(len(table) == case.elements, f"{len(table)} offsets for {case.elements} elements")
    require(all(type(offset) is int for offset in table), "an offset is no whole number")
    order = sorted(table)
    apart = any((at - start) % case.align for at in table)
    require(not apart, f"an element is not aligned to {case.align} bytes")
    unit = min(case.align, promised or case.align)
    require(start % unit == 0, f"the tile starts at {start}, no multiple of {unit}")
    require(order[0] >= 0, "an element lies below byte 0")
    require(all(b - a >= case.size for a, b in itertools.pairwise(order)), "elements overlap")
    require(order[-1] + case.size == given["bytes"], "the bytes")
    require(not (why := torn(case, table)), why)
    spent, total = count(case, table)
    require(spent == given["wavefronts"], f"wavefronts are {spent}")
    require(abs(total - Fraction(str(given["excess"]))) < TOLERANCE, f"the excess is {total}")
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
                # A word, or what is served with it: those of its bank that lie in the same row.
                rows = [
                    (w % rule["banks"], w if rule["row_words"] == 1 else w // rule["row_words"])
                    for w in words
                ]
                banks = [bank for bank, _ in (rows if rule["serialises_equal"] else set(rows))]
                cost = max(map(banks.count, set(banks))) + rule["extra_wavefronts"]
                ideal = -(-len(set(rows)) // rule["banks"]) + rule["extra_wavefronts"]
                spent[name] += cost
                total += times * (cost - ideal)
    return spent, total
