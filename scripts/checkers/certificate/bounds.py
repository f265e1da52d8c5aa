"""Why no layout of any kind has less excess: counting, cliques, parities."""

import itertools
from fractions import Fraction

from certificate.problem import require


def view(case, given):
    """Words of the vectors that a reason speaks of, its place in them, and the banks of words there."""
    words, rest = divmod(given["vector_bytes"], case.given["bank_bytes"])
    require(words in (1, 2, 4) and not rest, f"vectors of {given['vector_bytes']} bytes")
    place, banks = given["place"], case.given["banks"] // words
    require(type(place) is int and 0 <= place < words, f"place {place} of {words} words")
    require(given["banks"] == banks, f"words at one place of {words} share {banks} banks")
    return words, place, banks


def check_clique(case, given, firm):
    """More words than banks, every two of them served at once: what a conflict of any two costs."""
    (k, place, banks), cost = view(case, given), []
    words = set()
    for meeting in given["meetings"]:
        require(len(set(meeting["words"])) == len(meeting["words"]) == 2, "two words meet")
        first, second = case.named(meeting, meeting["lanes"])
        pair = [case.word_of(given["words"][n]) for n in meeting["words"]]
        require(pair[0] in first and pair[1] in second, f"these lanes do not touch them: {meeting}")
        words.update(pair)
        cost.append(sum(w for some, w in firm.items() if set(pair) <= some))
    require(len(case.within(words, k, place)) == len(words) == len(given["words"]), "the words")
    pairs = {tuple(sorted(m["words"])) for m in given["meetings"]}
    require(len(pairs) == len(words) * (len(words) - 1) // 2, "some pair does not meet")
    require(len(words) > banks, "as many banks as words")
    return stated(case, given, min(cost))


def stated(case, given, excess):
    """The excess that follows, which must not be less than the one stated."""
    said = Fraction(given["excess"], case.given["weight_unit"])
    require(0 <= said <= excess, f"a reason for an excess of {excess}, not {said}")
    return excess


def served_at_once(case, phase):
    """The words of a phase; of one word of each lane, where each is a request of its own."""
    words = case.named(phase, phase["lanes"])
    if case.given["served"][phase["access"]]["split_words"]:
        number = phase["request"]
        require(type(number) is int and number >= 0, "a request")
        words = [some[number : number + 1] for some in words]
    return frozenset(w for some in words for w in some)


def check_packing(case, given, firm):
    """Cliques that each force a conflict, and take shares of their phases: none takes more than there is."""
    took, total = {}, Fraction(0)
    for clique in given["cliques"]:
        (k, place, banks), share = view(case, clique), clique["share"]
        require(type(share) is int and share >= 0, "a share")
        phases = [served_at_once(case, phase) for phase in clique["phases"]]
        words = {case.word_of(word) for word in clique["words"]}
        require(all(phase in firm for phase in phases), "a conflict in some phase is no excess")
        require(len(set(phases)) == len(phases), "a phase is listed twice")
        require(len(case.within(words, k, place)) == len(words), "the words")
        require(len(words) > banks, "as many banks as words")
        for pair in itertools.combinations(words, 2):
            require(any(phase.issuperset(pair) for phase in phases), "some pair does not meet")
        for phase in phases:
            took[phase] = took.get(phase, 0) + Fraction(share, case.given["weight_unit"])
        total += Fraction(share, case.given["weight_unit"])
    require(all(spent <= firm[phase] for phase, spent in took.items()), "more shares than a phase weighs")
    return stated(case, given, total)


def check_parity(case, given, firm):
    """Weights that one word of every phase in each bank would contradict."""
    k, place, banks = view(case, given)
    touched = [served_at_once(case, phase) for phase in given["phases"]]
    held = [case.within(words, k, place) for words in touched]
    require(all(words in firm for words in touched), "a conflict in some phase is no excess")
    require(len(set(touched)) == len(touched), "a phase is listed twice")
    require(all(len(words) == banks for words in held), "a phase does not fill the banks")
    require(given["combinations"], "no combination of weights")
    in_all = set(range(len(held)))
    for y in given["combinations"]:
        numbers = type(y["modulus"]) is int and y["modulus"] > 1 and all(type(n) is int for n in y["weights"])
        require(numbers, "weights and a modulus that are whole numbers")
        total = {}
        for words, weight in zip(held, y["weights"], strict=True):
            for w in words:
                total[w] = total.get(w, 0) + weight
        require(not any(value % y["modulus"] for value in total.values()), "a word's weights")
        require(sum(y["weights"]) % y["modulus"], "no contradiction")
        in_all &= {n for n, weight in enumerate(y["weights"]) if weight % y["modulus"]}
    cost = sorted(firm[words] for words in touched)
    return stated(case, given, cost[0] if in_all else cost[0] + cost[1])


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
