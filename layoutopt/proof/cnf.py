"""Models of clauses and parities as CNF, for SAT solvers that know nothing of CP-SAT.

    form in the model      clauses
    bool_or                itself
    bool_xor of three      the four that exclude an even number of true literals
    at_most_one            all pairs up to five literals, else a chain of counters (Sinz 2005)
    exactly_one            the same and one clause of all

What CNF cannot say in a few clauses, sums with other bounds and objectives, is refused.
"""

import itertools
import re
from collections.abc import Iterator

_PAIRS = 5
# A constraint's kind and its literals: none of a sum, of what holds conditionally, and of an objective.
_CONSTRAINT = re.compile(r"(?:constraints|objective)\{(\w+)[{:](literals:\[([-\d,]*)\])?")
_VARIABLE = re.compile(r"variables\{domain:\[(-?\d+),(-?\d+)\]\}")

Clause = tuple[int, ...]


def dimacs(model: str, comment: str = "") -> str | None:
    """DIMACS CNF that is satisfiable exactly when the model has a solution.

    Args:
        model: `CpModelProto` text as `layoutopt.model.cp_sat.Model` writes it. Its variable k is
            variable k + 1 of the CNF.
        comment: printed at the top, one `c` line for each of its lines.

    Returns:
        None where the model holds what CNF cannot say.
    """
    domains = [(int(low), int(high)) for low, high in _VARIABLE.findall(model)]
    if any(not 0 <= low <= high <= 1 for low, high in domains):
        return None
    clauses: list[Clause] = [(k + 1,) for k, (low, _) in enumerate(domains) if low == 1]
    clauses += [(-k - 1,) for k, (_, high) in enumerate(domains) if high == 0]
    fresh = itertools.count(len(domains) + 1)
    for kind, listed, numbers in _CONSTRAINT.findall(model):
        if not listed:  # a sum, a condition or an objective
            return None
        # -k - 1 negates variable k in the model, -(k + 1) in the CNF.
        literals = [n + 1 if n >= 0 else n for n in map(int, numbers.split(","))] if numbers else []
        match kind:
            case "bool_or":
                clauses.append(tuple(literals))
            case "bool_xor" if len(literals) == 3:
                clauses += _odd(literals)
            case "at_most_one":
                clauses += _at_most_one(literals, fresh)
            case "exactly_one":
                clauses += [tuple(literals), *_at_most_one(literals, fresh)]
            case _:
                return None
    head = [f"c {line}" for line in comment.splitlines()]
    head.append(f"p cnf {next(fresh) - 1} {len(clauses)}")
    return "\n".join([*head, *(" ".join(map(str, (*c, 0))) for c in clauses)]) + "\n"


def _odd(literals: list[int]) -> Iterator[Clause]:
    """Clauses that hold exactly where an odd number of the literals is true."""
    for signs in itertools.product((1, -1), repeat=len(literals)):
        if signs.count(-1) % 2 == 0:
            yield tuple(sign * literal for sign, literal in zip(signs, literals, strict=True))


def _at_most_one(literals: list[int], fresh: Iterator[int]) -> Iterator[Clause]:
    """Clauses of an at-most-one constraint (Sinz 2005); `fresh` numbers the new variables."""
    if len(literals) <= _PAIRS:
        for a, b in itertools.combinations(literals, 2):
            yield -a, -b
        return
    first, *rest = literals
    earlier = next(fresh)  # true where one of the literals so far is
    yield -first, earlier
    for literal in rest[:-1]:
        yield -earlier, -literal
        so_far = next(fresh)
        yield -literal, so_far
        yield -earlier, so_far
        earlier = so_far
    yield -earlier, -rest[-1]
