"""The rule of the banks, by plain loops over lanes and words: the text of the rules, nothing clever."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """How one instruction is served; the package's `PhaseRule` has the same fields."""

    phases: tuple[tuple[int, ...], ...]
    banks: int
    bank_bytes: int
    serialises_equal: bool = False
    merges_pairs: bool = False
    split_words: bool = False
    row_words: int = 1
    extra_wavefronts: int = 0


def serve(address: dict[int, int], rule: Rule, width: int, lanes: int) -> tuple[int, int, int]:
    """Wavefronts, ideal and occupied phases of one warp instruction: `address` of each active lane, in bytes."""
    phases = list(rule.phases)
    if rule.merges_pairs and any(_pairs(address, bit, lanes) for bit in (1, 2)):
        phases = [phases[k] + phases[k + 1] for k in range(0, len(phases), 2)]
    words = max(1, width // rule.bank_bytes)
    cost = ideal = occupied = 0
    for phase in phases:
        first = [address[lane] // rule.bank_bytes for lane in phase if lane in address]
        parts = [[k] for k in range(words)] if rule.split_words else [range(words)]
        requests = [[word + k for word in first for k in part] for part in parts]
        for request in requests if first else ():
            busy, even = busiest(request, rule)
            cost += busy + rule.extra_wavefronts
            ideal += even + rule.extra_wavefronts
            occupied += 1
    return cost, ideal, occupied


def _pairs(address: dict[int, int], bit: int, lanes: int) -> bool:
    """Does every lane ask for what its neighbour asks for, where both ask?"""
    both = (lane for lane in range(lanes) if lane in address and lane ^ bit in address)
    return all(address[lane] == address[lane ^ bit] for lane in both)


def busiest(words: list[int], rule: Rule) -> tuple[int, int]:
    """Passes that the fullest bank takes, and how many an even spread would take.

    Of a rule with rows of words (Kepler), the words of one aligned row that share a bank are one.
    """
    if rule.row_words > 1:
        words = [place(word, rule) * rule.banks + word % rule.banks for word in words]
    distinct = set(words)
    load = [0] * rule.banks
    for word in words if rule.serialises_equal else distinct:
        load[word % rule.banks] += 1
    return max(load), -(-len(distinct) // rule.banks)


def place(word: int, rule: Rule) -> int:
    """Words of a bank that have one place are served together."""
    return word // (rule.banks if rule.row_words == 1 else rule.row_words)


def instruction(address, active, operation, device) -> tuple[int, int, int]:
    """`serve` for an operation on a device: addresses and activity of all lanes.

    Of a matrix instruction the first lanes give rows, whether they are active or not.
    """
    lanes = [lane for lane in range(device.lanes) if active[lane]]
    if operation.matrices and lanes:
        lanes = list(range(8 * operation.matrices))
    rule = device.rules[operation.kind, operation.width_bytes]
    return serve({lane: address[lane] for lane in lanes}, rule, operation.width_bytes, device.lanes)


def weighted_excess(table, lanes, device) -> int:
    """Wavefronts above the ideal of every traced access, by weight; `table`: byte offsets in the tile's shape."""
    flat, total = table.ravel(), 0
    for access in lanes.accesses:
        rows = zip(flat[access.element].tolist(), access.active.tolist(), access.weight.tolist(), strict=True)
        for address, active, weight in rows:
            cost, ideal, _ = instruction(address, active, access.operation, device)
            total += weight * (cost - ideal)
    return total
