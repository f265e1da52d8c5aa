"""Why no layout of any kind has less excess: counting, cliques, parities."""

import itertools
from fractions import Fraction

from certificate.problem import require


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
