"""Cliques: more words of a view than it has banks, every two of them met in some phase; and several at once.

A clique is the smallest reason to print. What several force adds up as far as they count no phase twice:

**Theorem.** Let every pair of some words of one view meet in one of the phases F, and let there be more
words than the view has banks. In every layout two of the words share a bank, so some phase of F has an
excess wavefront. Let K_1, K_2, ... be such cliques with phases F_1, F_2, ..., and let y_i >= 0 be shares
such that the y_i of the cliques whose F_i hold a phase add up to no more than its weight. Then the
weighted excess of every layout is at least y_1 + y_2 + ...

*Proof.* With e_f the excess of phase f and w_f its weight: sum of w_f e_f >= sum over f, and i with f in
F_i, of y_i e_f = sum over i of y_i (sum of e_f, f in F_i) >= sum of y_i.

The cliques looked for have three phases. What V and W have in common needs banks that the rest of V and
the rest of W do not touch; a phase that touches more of the two rests than there are banks left clashes
with them:

    V    a b c d          banks: 4.  b c d take three, so a and e share the fourth.
    W      b c d e        f touches both: V, W and f cannot all be free of conflicts.
    f    a       e

Windows that move over a tile (stencils, convolutions) force the same again wherever they stand, and the
shares add that up.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from layoutopt.ground.budget import current
from layoutopt.model.cp_sat import Model
from layoutopt.problems.text import listed
from layoutopt.problems.types import Problem
from layoutopt.proof.board import Board, Subject, View, word_data

MAX_CLIQUE_WORDS: Final = 1 << 12
_NODES: Final = 20_000  # of the branch and bound for a clique
# Phases of a view beyond which no three are looked for (the time grows with their cube), and cliques kept.
MAX_PACKED_PHASES: Final = 320
_MOST_CLIQUES: Final = 2000
_EFFORT: Final = 1.0  # deterministic time to share the phases out
_SHOWN: Final = 8  # pairs of a clique in words


class Clique(Struct, frozen=True):
    """Words of one view that pairwise meet, more than the view has banks.

    Attributes:
        view: whose words.
        words: the words, sorted.
        meetings: for each pair, the index of a phase of the board that touches both.
        excess: weighted excess that every layout has because of it.
    """

    view: View
    words: tuple[int, ...]
    meetings: dict[tuple[int, int], int]
    excess: int


@lru_cache(4)
def find_clique(on: Board) -> Clique | None:
    """The smallest clique over all views that is larger than the view's banks; None if none is found.

    Only phases where a conflict costs more than the counting bound count as meetings, so that what
    counting gives and the clique's excess add up.
    """
    usable = [i for i, p in enumerate(on.phases) if p.firm]
    best: Clique | None = None
    for view in on.views():
        banks = on.banks // view[0]
        held = {i: on.within(on.phases[i].words, view) for i in usable}
        words = sorted({w for some in held.values() for w in some})
        if len(words) <= banks or len(words) > MAX_CLIQUE_WORDS or banks < 1:
            continue
        number = {w: n for n, w in enumerate(words)}
        meets = [0] * len(words)
        for some in held.values():
            mask = 0
            for w in some:
                mask |= 1 << number[w]
            for w in some:
                meets[number[w]] |= mask
        meets = [m & ~(1 << n) for n, m in enumerate(meets)]
        found = _vertices(meets, banks + 1)
        if found is not None and (best is None or len(found) < len(best.words)):
            best = _with_meetings(on, view, tuple(words[n] for n in found), usable)
    return best


def _with_meetings(on: Board, view: View, words: tuple[int, ...], usable: list[int]) -> Clique:
    chosen = set(words)
    meetings: dict[tuple[int, int], int] = {}
    weight: dict[tuple[int, int], int] = {}
    for i in usable:
        for pair in itertools.combinations(sorted(chosen.intersection(on.phases[i].words)), 2):
            meetings.setdefault(pair, i)
            weight[pair] = weight.get(pair, 0) + on.phases[i].weight
    return Clique(view, words, dict(sorted(meetings.items())), min(weight.values()))


def _vertices(meets: list[int], size: int) -> list[int] | None:
    """A clique of `size` vertices, or None; the search is cut off after a number of nodes.

    Branch and bound with greedy colouring (Tomita and Seki 2003), on integers as bit sets.
    """
    nodes = 0

    def colours(rest: int) -> list[tuple[int, int]]:
        """Vertices with their colour number, rising."""
        order, colour = [], 0
        while rest:
            colour += 1
            free = rest
            while free:
                low = free & -free
                v = low.bit_length() - 1
                order.append((v, colour))
                rest ^= low
                free &= ~meets[v] & ~low
        return order

    def grow(chosen: list[int], rest: int) -> list[int] | None:
        nonlocal nodes
        nodes += 1
        if len(chosen) == size:
            return chosen
        if nodes > _NODES:
            return None
        for v, colour in reversed(colours(rest)):
            if len(chosen) + colour < size or nodes > _NODES:
                return None
            found = grow([*chosen, v], rest & meets[v])
            if found is not None:
                return found
            rest &= ~(1 << v)
        return None

    everyone = sum(1 << v for v, m in enumerate(meets) if m.bit_count() >= size - 1)
    found = grow([], everyone)
    return sorted(found) if found is not None else None


def clique_holds(subject: Subject, clique: Clique) -> bool:
    """Whether every pair meets where it is said to, by plain loops."""
    on, words = subject.on, sorted(set(clique.words))
    if list(clique.words) != words or not _crowded(on, clique.view, words):
        return False
    touched = {w: {i for i, phase in enumerate(on.phases) if phase.firm and w in phase.words} for w in words}
    for pair in itertools.combinations(words, 2):
        both = touched[pair[0]] & touched[pair[1]]
        if clique.meetings[pair] not in both or clique.excess > sum(on.phases[i].weight for i in both):
            return False
    return True


def _crowded(on: Board, view: View, words: Sequence[int]) -> bool:
    """Whether these are more words of the view than it has banks."""
    k, p = view
    alike = all(w in on.place and on.vector_words[w] >= k and on.place[w] % k == p for w in words)
    return alike and len(words) > on.banks // k


def clique_data(subject: Subject, problem: Problem, clique: Clique) -> dict[str, Any]:
    """A clique as coordinates, with the meeting of every pair."""
    on, number = subject.on, {w: n for n, w in enumerate(clique.words)}
    meetings = []
    for pair, i in clique.meetings.items():
        place = on.phases[i].place
        where, lanes = place.data(problem, subject.device), [place.lanes[w][0] for w in pair]
        meetings.append({"words": [number[w] for w in pair], **where, "lanes": lanes})
    return {
        **on.view_data(clique.view),
        "excess": clique.excess,
        "words": [word_data(problem, w) for w in clique.words],
        "meetings": meetings,
    }


def clique_words(subject: Subject, problem: Problem, clique: Clique) -> Iterator[str]:
    """The words of a clique, and where some pairs of them meet."""
    data = clique_data(subject, problem, clique)
    words = [str(tuple(w["element"])) for w in data["words"]]
    lines = [
        f"Clique: these {len(words)} words pairwise meet in some phase, so each needs a bank of its own, "
        f"and there are {data['banks']}: {listed(words)}. For example"
    ]
    for meeting in data["meetings"][:_SHOWN]:
        u, v = (words[n] for n in meeting["words"])
        where = "".join(f", {name} = {value}" for name, value in meeting["iteration"].items())
        lanes = " and ".join(map(str, meeting["lanes"]))
        lines.append(f"    {u} and {v}: `{meeting['access']}`, warp {meeting['warp']}{where}, lanes {lanes}")
    if len(data["meetings"]) > _SHOWN:
        lines.append(f"    and {len(data['meetings']) - _SHOWN} more pairs (--json has them all)")
    yield "\n".join(lines)


# Several cliques --------------------------------------------------------------------------------


class Share(Struct, frozen=True):
    """A clique of three phases, and what it takes of their weights.

    Attributes:
        view: whose words.
        words: sorted.
        phases: indices into the board's phases; each pair of the words meets in one of them.
        weight: in units of `Trace.weight_unit`.
    """

    view: View
    words: tuple[int, ...]
    phases: tuple[int, ...]
    weight: int


class Packing(Struct, frozen=True):
    """Cliques whose shares of every phase are no more than its weight; the excess is their sum."""

    shares: tuple[Share, ...]
    excess: int


def find_packing(on: Board) -> Packing | None:
    """Cliques of three phases, shared out so that they force the most excess; None where there are none."""
    cliques: list[Share] = []
    for view in on.views():
        cliques += itertools.islice(_threes(on, view), _MOST_CLIQUES)
    if not cliques:
        return None
    weights = _shared_out([c.phases for c in cliques], [p.weight for p in on.phases])
    shares = [Share(c.view, c.words, c.phases, w) for c, w in zip(cliques, weights, strict=True) if w]
    return Packing(tuple(shares), sum(weights)) if shares else None


def _threes(on: Board, view: View) -> Iterator[Share]:
    """Three phases at a time that cannot all be free of conflicts, each three once."""
    banks = on.banks // view[0]
    held = {i: set(on.within(p.words, view)) for i, p in enumerate(on.phases) if p.firm}
    held = {i: words for i, words in held.items() if len(words) > 1}
    if not 3 <= len(held) <= MAX_PACKED_PHASES or banks < 2:
        return
    numbers, touched = list(held), _touched(list(held.values()))
    common = touched @ touched.T
    seen: set[tuple[int, ...]] = set()
    for a in range(len(numbers)):
        if current().spent:
            return
        # What a third phase has of V and of W may make up for the banks that V and W leave.
        others = common + common[a]
        np.fill_diagonal(others, 0)
        others[:, a] = 0
        likely = (common[a] > 0) & (common[a] + others.max(axis=1) > banks)
        for b in (np.flatnonzero(likely[a + 1 :]) + a + 1).tolist():
            # Of every phase, words that V or W touches, but not both.
            apart = common[:, a] + common[:, b] - 2 * (touched @ (touched[a] * touched[b]))
            for c in np.flatnonzero(common[a, b] + apart > banks).tolist():
                three = tuple(sorted(numbers[n] for n in {a, b, c}))
                if len(three) == 3 and three not in seen:
                    seen.add(three)
                    v, w, f = (held[numbers[n]] for n in (a, b, c))
                    yield Share(view, tuple(sorted(v & w | f & (v ^ w))), three, 0)


def _touched(held: Sequence[set[int]]) -> npt.NDArray[np.float32]:
    """Phases by words: 1 where a phase touches a word."""
    column = {w: n for n, w in enumerate(sorted(set().union(*held)))}
    touched = np.zeros((len(held), len(column)), np.float32)
    for row, words in zip(touched, held, strict=True):
        row[[column[w] for w in words]] = 1
    return touched


def _shared_out(cliques: Sequence[tuple[int, ...]], weights: Sequence[int]) -> list[int]:
    """A share for each clique, the sum as large as possible."""
    left, shares = list(weights), []
    for phases in cliques:  # greedily, to start from
        shares.append(min(left[i] for i in phases))
        for i in phases:
            left[i] -= shares[-1]
    model = Model()
    share = [model.integer(0, min(weights[i] for i in phases)) for phases in cliques]
    takers: dict[int, list[tuple[int, int]]] = {}
    for variable, phases, start in zip(share, cliques, shares, strict=True):
        model.hint(variable, start)
        for i in phases:
            takers.setdefault(i, []).append((variable, 1))
    for i, terms in takers.items():
        model.at_most(terms, weights[i])
    model.minimise([(variable, -1) for variable in share])
    found = model.solve(effort=_EFFORT)
    return list(found.values) if found.values and sum(found.values) > sum(shares) else shares


def packing_holds(subject: Subject, packing: Packing) -> bool:
    """Whether the theorem applies, by plain loops."""
    on = subject.on
    spent = [0] * len(on.phases)
    for share in packing.shares:
        words, phases = set(share.words), [on.phases[i] for i in share.phases]
        if not _crowded(on, share.view, [*words]) or share.weight < 0:
            return False
        if len(set(share.phases)) < len(phases) or not all(phase.firm for phase in phases):
            return False
        meet = [set(phase.words) for phase in phases]
        if any(not any({u, v} <= held for held in meet) for u, v in itertools.combinations(words, 2)):
            return False
        for i in share.phases:
            spent[i] += share.weight
    within = all(took <= phase.weight for took, phase in zip(spent, on.phases, strict=True))
    return within and packing.excess <= sum(share.weight for share in packing.shares)


def packing_data(subject: Subject, problem: Problem, packing: Packing) -> dict[str, Any]:
    """The cliques of a packing: their words, the phases in which these meet, and their shares."""
    on = subject.on
    cliques = [
        {
            **on.view_data(share.view),
            "share": share.weight,
            "words": [word_data(problem, w) for w in share.words],
            "phases": [on.phases[i].place.phase_data(problem, subject.device) for i in share.phases],
        }
        for share in packing.shares
    ]
    return {"excess": packing.excess, "cliques": cliques}


def packing_words(subject: Subject, _: Problem, packing: Packing) -> Iterator[str]:
    """How many cliques there are, of which accesses, and what they force together."""
    on, first = subject.on, packing.shares[0]
    names = listed(
        subject.named({on.phases[i].place.access for share in packing.shares for i in share.phases})
    )
    yield (
        f"Packing: {len(packing.shares)} cliques of {names}, each of more words than banks that pairwise "
        f"meet in three phases (the first: {len(first.words)} words for {on.banks // first.view[0]} banks), "
        "so that one of the three has a conflict. Each takes a share of the weight of its phases, all "
        f"together no more than there is: in all {subject.in_weights(packing.excess)} "
        "that no layout avoids (solve --certificate writes the cliques)."
    )
