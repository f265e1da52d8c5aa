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
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current
from layoutopt.model.cp_sat import Model
from layoutopt.problems.text import listed
from layoutopt.problems.types import Problem
from layoutopt.proof.board import Board, Subject, View, word_data

MAX_CLIQUE_WORDS: Final = 1 << 12
_NODES: Final = 20_000  # at most, of the branch and bound for a clique
# Phases of a view beyond which no three are looked for (the time grows with their cube), and cliques kept.
MAX_PACKED_PHASES: Final = 320
_MOST_CLIQUES: Final = 2000
_EFFORT: Final = 1.0  # deterministic time to share the phases out
_SHOWN: Final = 8  # pairs of a clique that its sentences name


class Clique(Struct, frozen=True):
    """Words of one view that pairwise meet, more than the view has banks."""

    view: View  # whose words
    words: tuple[int, ...]  # the words, sorted
    meetings: dict[tuple[int, int], int]  # for each pair, the index of a phase of the board that touches both
    excess: int  # weighted excess that every layout has because of it

    def holds(self, subject: Subject) -> bool:
        """Whether every pair meets where it is said to, by plain loops."""
        board, words = subject.board, sorted(set(self.words))
        if list(self.words) != words or not _exceeds_banks(board, self.view, words):
            return False
        counting = {i: set(phase.words) for i, phase in enumerate(board.phases) if phase.any_pair_costs}
        touching = {w: {i for i, of_phase in counting.items() if w in of_phase} for w in words}
        for u, v in itertools.combinations(words, 2):
            both = touching[u] & touching[v]
            if self.meetings[u, v] not in both or self.excess > sum(board.phases[i].weight for i in both):
                return False
        return True

    def data(self, subject: Subject, problem: Problem) -> dict[str, Any]:
        """The words as coordinates, with the meeting of every pair."""
        board, number = subject.board, {w: n for n, w in enumerate(self.words)}
        meetings = []
        for pair, i in self.meetings.items():
            first = board.phases[i].first
            where, lanes = first.data(problem, subject.device), [first.lanes[w][0] for w in pair]
            meetings.append({"words": [number[w] for w in pair], **where, "lanes": lanes})
        return {
            **board.view_data(self.view),
            "excess": self.excess,
            "words": [word_data(problem, w) for w in self.words],
            "meetings": meetings,
        }

    def sentences(self, subject: Subject, problem: Problem) -> Iterator[str]:
        """One text of several lines: the words, and where some pairs of them meet."""
        data = self.data(subject, problem)
        words = [str(tuple(w["element"])) for w in data["words"]]
        lines = [
            f"Clique: these {len(words)} words pairwise meet in some phase, so each needs a bank of its own, "
            f"and there are {data['banks']}: {listed(words)}. For example"
        ]
        for meeting in data["meetings"][:_SHOWN]:
            u, v = (words[n] for n in meeting["words"])
            where = "".join(f", {name} = {value}" for name, value in meeting["iteration"].items())
            lanes = " and ".join(map(str, meeting["lanes"]))
            at = f"`{meeting['access']}`, warp {meeting['warp']}{where}, lanes {lanes}"
            lines.append(f"    {u} and {v}: {at}")
        if len(data["meetings"]) > _SHOWN:
            lines.append(f"    and {len(data['meetings']) - _SHOWN} more pairs (--json has them all)")
        yield "\n".join(lines)


@lru_cache(4)
def find_clique(board: Board) -> Clique | None:
    """The smallest clique over all views that is larger than the view's banks; None if none is found.

    Words meet in the phases of `Board.sharp_phases`.
    """
    best: Clique | None = None
    for view, of_view in board.sharp_phases.items():
        banks, phases = board.view_banks(view), of_view.values()
        words = sorted(set().union(*phases))
        if not 1 <= banks < len(words) <= MAX_CLIQUE_WORDS:
            continue
        number = {w: n for n, w in enumerate(words)}
        meets = [0] * len(words)  # the graph of words that meet in some phase, as sets of bits
        for of_phase in phases:
            numbers = sum(1 << number[w] for w in of_phase)
            for w in of_phase:
                meets[number[w]] |= numbers
        meets = [neighbours & ~(1 << n) for n, neighbours in enumerate(meets)]
        found = _clique_of(meets, banks + 1)
        if found is not None and (best is None or len(found) < len(best.words)):
            best = _with_meetings(board, view, tuple(words[n] for n in found))
    return best


def _with_meetings(board: Board, view: View, words: tuple[int, ...]) -> Clique:
    """The clique of these words, with a phase for each pair; its excess is that of the rarest pair."""
    meetings: dict[tuple[int, int], int] = {}
    weight: dict[tuple[int, int], int] = {}
    for i, in_phase in board.sharp_phases[view].items():
        for pair in itertools.combinations(sorted(set(words).intersection(in_phase)), 2):
            meetings.setdefault(pair, i)
            weight[pair] = weight.get(pair, 0) + board.phases[i].weight
    return Clique(view, words, dict(sorted(meetings.items())), min(weight.values()))


def _clique_of(neighbours: list[int], size: int) -> list[int] | None:
    """A clique of `size` vertices of a graph, rising; None where none is found in a number of search nodes.

    Branch and bound with greedy colouring (Tomita and Seki 2003): a set of vertices that k colours suffice
    for has no clique of more than k.

    Args:
        neighbours: of each vertex, as a set of bits.
        size: of the clique.
    """
    nodes = 0

    def coloured(vertices: int) -> list[tuple[int, int]]:
        """(vertex, colour) of a set of bits, by rising colour from 1; neighbours differ in colour."""
        order, colour = [], 0
        while vertices:
            colour += 1
            open_to_colour = vertices
            while open_to_colour:
                lowest = open_to_colour & -open_to_colour
                v = lowest.bit_length() - 1
                order.append((v, colour))
                vertices ^= lowest
                open_to_colour &= ~neighbours[v] & ~lowest
        return order

    def grow(clique: list[int], candidates: int) -> list[int] | None:
        """`clique` grown to the size by candidates, each of which is a neighbour of all of it."""
        nonlocal nodes
        nodes += 1
        if len(clique) == size:
            return clique
        if nodes > _NODES:
            return None
        for v, colour in reversed(coloured(candidates)):
            if len(clique) + colour < size or nodes > _NODES:
                return None
            found = grow([*clique, v], candidates & neighbours[v])
            if found is not None:
                return found
            candidates &= ~(1 << v)
        return None

    found = grow([], sum(1 << v for v, near in enumerate(neighbours) if near.bit_count() >= size - 1))
    return sorted(found) if found is not None else None


def _exceeds_banks(board: Board, view: View, words: Sequence[int]) -> bool:
    """Whether these are words of the view, and more than it has banks."""
    in_view = all(w in board.place for w in words) and len(board.within(words, view)) == len(words)
    return in_view and len(words) > board.view_banks(view)


# Several cliques --------------------------------------------------------------------------------


class Share(Struct, frozen=True):
    """A clique of three phases, and what it takes of their weights."""

    view: View  # whose words
    words: tuple[int, ...]  # sorted
    phases: tuple[int, ...]  # indices into the board's phases; each pair of the words meets in one of them
    weight: int  # in units of `Trace.weight_unit`


class Packing(Struct, frozen=True):
    """Cliques whose shares of every phase are no more than its weight; the excess is their sum."""

    shares: tuple[Share, ...]
    excess: int

    def holds(self, subject: Subject) -> bool:
        """Whether the theorem applies, by plain loops."""
        board = subject.board
        taken = [0] * len(board.phases)
        for share in self.shares:
            words, phases = set(share.words), [board.phases[i] for i in share.phases]
            if not _exceeds_banks(board, share.view, [*words]) or share.weight < 0:
                return False
            if len(set(share.phases)) < len(phases) or not all(phase.any_pair_costs for phase in phases):
                return False
            sets = [set(phase.words) for phase in phases]
            if any(not words <= set().union(*(s for s in sets if w in s)) for w in words):  # whom w meets
                return False
            for i in share.phases:
                taken[i] += share.weight
        within = all(share <= phase.weight for share, phase in zip(taken, board.phases, strict=True))
        return within and self.excess <= sum(share.weight for share in self.shares)

    def data(self, subject: Subject, problem: Problem) -> dict[str, Any]:
        """The cliques: their words, the phases in which these meet, and their shares."""
        board = subject.board
        cliques = [
            {
                **board.view_data(share.view),
                "share": share.weight,
                "words": [word_data(problem, w) for w in share.words],
                "phases": [board.phases[i].first.phase_data(problem, subject.device) for i in share.phases],
            }
            for share in self.shares
        ]
        return {"excess": self.excess, "cliques": cliques}

    def sentences(self, subject: Subject, _: Problem) -> Iterator[str]:
        """How many cliques there are, of which accesses, and what they force together."""
        board, first = subject.board, self.shares[0]
        first_words, first_banks = len(first.words), board.view_banks(first.view)
        names = listed(
            subject.named({board.phases[i].first.access for share in self.shares for i in share.phases})
        )
        yield (
            f"Packing: {len(self.shares)} cliques of {names}, each of more words than banks that pairwise "
            f"meet in three phases (the first: {first_words} words for {first_banks} banks), "
            "so that one of the three has a conflict. Each takes a share of the weight of its phases, all "
            f"together no more than there is: in all {subject.in_weights(self.excess)} "
            "that no layout avoids (solve --certificate writes the cliques)."
        )


def find_packing(board: Board) -> Packing | None:
    """Cliques of three phases, shared out so that they force the most excess; None where there are none."""
    cliques: list[Share] = []
    for view in board.sharp_phases:
        cliques += itertools.islice(_threes(board, view), _MOST_CLIQUES)
    if not cliques:
        return None
    weights = _shared_out([c.phases for c in cliques], [p.weight for p in board.phases])
    shares = [Share(c.view, c.words, c.phases, w) for c, w in zip(cliques, weights, strict=True) if w]
    return Packing(tuple(shares), sum(weights)) if shares else None


def _threes(board: Board, view: View) -> Iterator[Share]:
    """Cliques of more words of a view than it has banks, each of three phases V, W, f; of weight 0 yet.

    The words are those that V and W have in common, and those of f that just one of V and W has: of any two
    of them, V, W or f touches both.
    """
    banks = board.view_banks(view)
    in_view = {i: set(words) for i, words in board.sharp_phases[view].items() if len(words) > 1}
    if not 3 <= len(in_view) <= MAX_PACKED_PHASES or banks < 2:
        return
    phases, words_of = list(in_view), list(in_view.values())
    touched = _touched(words_of)  # as bits
    common = np.array([_count(touched & of_phase) for of_phase in touched])  # words of two phases
    seen: set[tuple[int, ...]] = set()
    for v in range(len(phases)):
        if current().spent:
            return
        # For each W, at most what its clique has beside the common words: what f has of V, and of W.
        with_f = common + common[v]
        np.fill_diagonal(with_f, 0)  # f is neither W
        with_f[:, v] = 0  # nor V
        may_exceed = (common[v] > 0) & (common[v] + with_f.max(axis=1) > banks)
        second = np.flatnonzero(may_exceed[v + 1 :]) + v + 1
        # By W and phase, how many of its words V or W touches, but not both.
        in_one = common[v] + common[second] - 2 * _count((touched[second] & touched[v])[:, None] & touched)
        for n, f in np.argwhere(common[v, second][:, None] + in_one > banks).tolist():
            w = int(second[n])
            three = tuple(sorted(phases[n] for n in {v, w, f}))
            if len(three) == 3 and three not in seen:  # nor found with another as W or f
                seen.add(three)
                of_v, of_w, of_f = words_of[v], words_of[w], words_of[f]
                words = of_v & of_w | of_f & (of_v ^ of_w)
                yield Share(view, tuple(sorted(words)), phases=three, weight=0)


def _touched(phases: Sequence[set[int]]) -> npt.NDArray[np.uint64]:
    """The words of each phase (row) as bits; phases are sets of words."""
    column = {w: n for n, w in enumerate(sorted(set().union(*phases)))}
    touched = np.zeros((len(phases), -(-len(column) // 64) * 64), np.uint8)
    for row, words in zip(touched, phases, strict=True):
        row[[column[w] for w in words]] = 1
    return np.packbits(touched, axis=1).view(np.uint64)


def _count(bits: npt.NDArray[np.uint64]) -> IntArray:
    """How many bits are set along the last axis."""
    count: IntArray = np.bitwise_count(bits).sum(axis=-1, dtype=np.int64)
    return count


def _shared_out(cliques: Sequence[tuple[int, ...]], weights: Sequence[int]) -> list[int]:
    """The share of each clique, the sum as large as found; those that hold a phase take at most its weight.

    Args:
        cliques: the phases of each.
        weights: of the phases.
    """
    left, greedy = list(weights), []  # each takes what those before it leave; the solver starts there
    for phases in cliques:
        greedy.append(min(left[i] for i in phases))
        for i in phases:
            left[i] -= greedy[-1]
    # Where every clique holds one of some phases, the shares together are at most what these phases weigh.
    most, rest = 0, [*cliques]  # `rest`: cliques that hold none of those chosen so far
    while rest and most < sum(greedy):
        held = Counter(itertools.chain.from_iterable(rest))
        in_most = max(held, key=lambda i: held[i] / weights[i])
        most += weights[in_most]
        rest = [phases for phases in rest if in_most not in phases]
    if not rest and most == sum(greedy):
        return greedy
    model = Model()
    shares = [model.integer(0, min(weights[i] for i in phases)) for phases in cliques]
    of_phase: dict[int, list[tuple[int, int]]] = {}
    for share, phases, start in zip(shares, cliques, greedy, strict=True):
        model.hint(share, start)
        for i in phases:
            of_phase.setdefault(i, []).append((share, 1))
    for i, terms in of_phase.items():
        model.at_most(terms, weights[i])
    model.minimise([(share, -1) for share in shares])
    found = model.solve(effort=_EFFORT)
    return list(found.values) if found.values and sum(found.values) > sum(greedy) else greedy
