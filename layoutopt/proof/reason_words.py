"""Reasons in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from layoutopt.accesses.trace import Trace
from layoutopt.problems.text import listed
from layoutopt.proof.obstructions import Board, Parity
from layoutopt.proof.packing import Packing

_SHOWN: Final = 8


def counting_words(lanes: Trace, on: Board) -> Iterator[str]:
    """Phases in which counting alone forces conflicts, one sentence for each access."""
    seen: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for phase in on.phases:
        if not phase.least:
            continue
        k, words = max(
            ((k, len(on.within(phase.words, (k, p)))) for k, p in on.views()), key=lambda v: v[0] * v[1]
        )
        seen.setdefault((phase.place.access, k), []).append((phase.least, words, phase.weight))
    for (a, k), found in seen.items():
        total = sum(least * weight for least, _, weight in found) / lanes.weight_unit
        words = max(count for _, count, _ in found)
        wide, banks = k * on.bank_bytes, max(1, on.banks // k)
        holders = [
            f"`{t.name}`" for t in lanes.accesses if t.width_elements > 1 and t.operation.width_bytes >= wide
        ]
        if holders:
            why = f"{listed(holders)} move{'s' if len(holders) == 1 else ''} whole vectors of {wide} bytes"
            where = "its place in its vector"
        else:
            why, where = f"elements start at multiples of {wide} bytes", "its place in them"
        yield (
            f"Counting: {why}, so each of their words keeps {where} in every layout. "
            f"`{lanes.accesses[a].name}` touches up to {words} words at one such place at a time, "
            f"which can lie in {banks} of the {on.banks} banks only: {-(-words // banks)} wavefronts "
            f"where one could do. In all {total:g} {lanes.excess} that no layout avoids."
        )


def clique_words(clique: dict[str, Any]) -> str:
    """A clique as a certificate holds it: the words, and where some pairs of them meet."""
    words = [str(tuple(w["element"])) for w in clique["words"]]
    lines = [
        f"Clique: these {len(words)} words pairwise meet in some phase, so each needs a bank of its own, "
        f"and there are {clique['banks']}: {listed(words)}. For example"
    ]
    for meeting in clique["meetings"][:_SHOWN]:
        u, v = (words[n] for n in meeting["words"])
        where = "".join(f", {name} = {value}" for name, value in meeting["iteration"].items())
        lanes = " and ".join(map(str, meeting["lanes"]))
        lines.append(f"    {u} and {v}: `{meeting['access']}`, warp {meeting['warp']}{where}, lanes {lanes}")
    if len(clique["meetings"]) > _SHOWN:
        lines.append(f"    and {len(clique['meetings']) - _SHOWN} more pairs (--json has them all)")
    return "\n".join(lines)


def packing_words(lanes: Trace, on: Board, packing: Packing) -> str:
    """How many cliques there are, of which accesses, and what they force together."""
    used = sorted({on.phases[i].place.access for share in packing.shares for i in share.phases})
    names = listed([f"`{lanes.accesses[a].name}`" for a in used])
    first = packing.shares[0]
    return (
        f"Packing: {len(packing.shares)} cliques of {names}, each of more words than banks that pairwise "
        f"meet in three phases (the first: {len(first.words)} words for {on.banks // first.view[0]} banks), "
        "so that one of the three has a conflict. Each takes a share of the weight of its phases, all "
        f"together no more than there is: in all {packing.excess / lanes.weight_unit:g} {lanes.excess} "
        "that no layout avoids (solve --certificate writes the cliques)."
    )


def parity_words(lanes: Trace, on: Board, parity: Parity) -> str:
    """What the weights of a parity's first combination contradict."""
    modulus, weight = parity.combinations[0]
    used = sorted({on.phases[i].place.access for i in weight})
    names = listed([f"`{lanes.accesses[a].name}`" for a in used])
    total = sum(weight.values()) % modulus
    banks = on.banks // parity.view[0]
    return (
        f"Parity: every phase of {names} that counts here fills all {banks} banks, so a bank without "
        f"conflicts takes exactly one word of each. Give each of {len(weight)} phases a weight such that "
        f"the weights of the phases through any one word add up to a multiple of {modulus}. Then so does "
        "the sum over the words of a bank, which is the sum of all weights; but that is "
        f"{total} modulo {modulus}. So every bank misses some phase, in every layout "
        "(solve --certificate writes the weights)."
    )
