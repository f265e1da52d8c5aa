"""Look for accesses that some map to banks serves without conflicts, but no linear map does.

    python scripts/fuzz/search_conjecture.py [--dimensions 5] [--bank-bits 3] [--cases 200] [--seed 1]

Words are the vectors of F2^n, banks are 2^r. A set D of differences stands for the accesses: every two
words that differ by a member of D meet. A linear map works exactly when its kernel, a subspace of
dimension n - r, holds no member of D; any map works exactly when the Cayley graph of D can be coloured
with 2^r colours. Each case is a random D that meets every such subspace, made minimal: the fewest
meetings that still defeat every linear map, where another map has the best chance.

Without options, the known counterexample for 128 banks is checked first (docs/proofs.md).
"""

import argparse
import itertools
import random

from layoutopt.model.cp_sat import Model, Outcome

# Generator rows of the octacode, a code over the integers modulo 4 that is its own dual
# (Hammons, Kumar, Calderbank, Sloane and Solé 1994).
OCTACODE = (
    (1, 0, 0, 0, 3, 1, 2, 1),
    (0, 1, 0, 0, 1, 2, 3, 1),
    (0, 0, 1, 0, 3, 3, 3, 2),
    (0, 0, 0, 1, 2, 3, 1, 1),
)
GRAY = {(0, 0): 0, (0, 1): 1, (1, 1): 2, (1, 0): 3}
KNOWN_DIMENSIONS, KNOWN_BANK_BITS, KNOWN_WEIGHT = 12, 7, 4


def octacode_bank(word):
    """One of 256 banks, 128 of them used: the syndrome of a 12-bit word, with its parity as 16th bit.

    The Gray map takes pairs of bits to integers modulo 4 and Hamming to Lee distance. Words of one
    bank differ by an octacode word, of Lee weight 6 or more; with the parity bit that is a distance of
    5 or more between 12-bit words.
    """
    bits = [word >> k & 1 for k in range(12)] + [0, 0, 0]
    bits.append(sum(bits) % 2)
    digits = [GRAY[pair] for pair in zip(bits[::2], bits[1::2], strict=True)]
    syndrome = [sum(a * b for a, b in zip(row, digits, strict=True)) % 4 for row in OCTACODE]
    return sum(digit << 2 * k for k, digit in enumerate(syndrome))


def differences(dimensions, weight):
    """Every vector of at most this weight but 0."""
    return [d for d in range(1, 1 << dimensions) if d.bit_count() <= weight]


def conflicts(dimensions, meet, bank):
    """Pairs of words that meet and share a bank."""
    banks = [bank(word) for word in range(1 << dimensions)]
    return sum(banks[w] == banks[w ^ d] for w in range(1 << dimensions) for d in meet) // 2


def largest_linear(bank_bits):
    """Most dimensions n such that a linear map of F2^n to 2^r banks separates all distances up to 4.

    Such a map is n columns of r bits of which any four are independent. They may be taken to span all
    bits, and after a change of basis to begin with the unit vectors; others then have weight 4 or more,
    sums of two have 3 or more, sums of three 2 or more, and no four add up to 0.
    """
    best = bank_bits

    def grow(chosen, rest):
        nonlocal best
        best = max(best, bank_bits + len(chosen))
        for n, column in enumerate(rest):
            pairs = [column ^ a for a in chosen]
            triples = [column ^ a ^ b for a, b in itertools.combinations(chosen, 2)]
            quads = (column ^ a ^ b ^ c for a, b, c in itertools.combinations(chosen, 3))
            if (
                all(p.bit_count() >= 3 for p in pairs)
                and all(t.bit_count() >= 2 for t in triples)
                and all(quads)
            ):
                grow([*chosen, column], rest[n + 1 :])

    grow([], [c for c in range(1 << bank_bits) if c.bit_count() >= 4])
    return best


def subspaces(dimensions, size):
    """Every subspace of a dimension, as the set of its members but 0."""
    found = {frozenset()}
    for _ in range(size):
        found = {
            frozenset(space | {v} | {v ^ u for u in space})
            for space in found
            for v in range(1, 1 << dimensions)
            if v not in space
        }
    return sorted(found, key=sorted)


def minimal_blocking(kernels, dimensions, rng):
    """A random set of differences that meets every kernel, and of which each member is needed."""
    order = rng.sample(range(1, 1 << dimensions), (1 << dimensions) - 1)
    hits = [0] * len(kernels)
    holding = {d: [k for k, kernel in enumerate(kernels) if d in kernel] for d in order}
    for d in order:
        for k in holding[d]:
            hits[k] += 1
    kept = set(order)
    for d in order:
        if all(hits[k] > 1 for k in holding[d]):
            kept.remove(d)
            for k in holding[d]:
                hits[k] -= 1
    return sorted(kept)


def colourable(dimensions, bank_bits, meet, effort=20.0):
    """Whether any map to the banks works; None where the solver gives up."""
    model, banks = Model(), 1 << bank_bits
    at = [[model.boolean() for _ in range(banks)] for _ in range(1 << dimensions)]
    for literals in at:
        model.exactly_one(literals)
    for word in range(1 << dimensions):
        for other in (word ^ d for d in meet):
            if word < other:
                for a, b in zip(at[word], at[other], strict=True):
                    model.clause([-a - 1, -b - 1])
    model.clause([at[0][0]])
    model.clause([at[meet[0]][1]])
    outcome = model.solve(1, effort).outcome
    return None if outcome is Outcome.UNKNOWN else outcome is not Outcome.INFEASIBLE


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--dimensions", type=int, default=5)
    options.add_argument("--bank-bits", type=int, default=3)
    options.add_argument("--cases", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    meet = differences(KNOWN_DIMENSIONS, KNOWN_WEIGHT)
    print(
        f"known: {KNOWN_DIMENSIONS} dimensions, {len(meet)} differences, 128 banks: "
        f"{conflicts(KNOWN_DIMENSIONS, meet, octacode_bank)} conflicts by the octacode's syndrome; "
        f"linear maps reach {largest_linear(KNOWN_BANK_BITS)} dimensions"
    )
    rng = random.Random(chosen.seed)
    kernels = subspaces(chosen.dimensions, chosen.dimensions - chosen.bank_bits)
    seen, verdicts = set(), {True: 0, False: 0, None: 0}
    for _ in range(chosen.cases):
        case = tuple(minimal_blocking(kernels, chosen.dimensions, rng))
        if case in seen:
            continue
        seen.add(case)
        verdict = colourable(chosen.dimensions, chosen.bank_bits, case)
        verdicts[verdict] += 1
        if verdict:
            print(f"counterexample: {case}")
    print(
        f"n = {chosen.dimensions}, 2^{chosen.bank_bits} banks, {len(seen)} different minimal sets out of "
        f"{chosen.cases}: {verdicts[True]} counterexamples, {verdicts[False]} refuted, {verdicts[None]} open"
    )


if __name__ == "__main__":
    main()
