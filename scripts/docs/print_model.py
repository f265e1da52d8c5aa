"""The one model of a problem, round by round: variables, constraints, objective, solution.

    python scripts/docs/print_model.py PROBLEM.json [--device-file FILE] [--families none,xor]

Rounds are those of `layoutopt solve --method model`. Of a round that follows another, what is new.

    bool_or        a or not b                  at_most_one    at most one of a, b
    exactly_one    exactly one of a, b         bool_xor       c = a xor b
    linear         a + 2 b in 1..3             with enforcement literals   x and y => ...
"""

import argparse
import itertools
import re
import sys
import textwrap
from pathlib import Path

import msgspec

from layoutopt import load, solve
from layoutopt.hardware.devices import device, load_devices
from layoutopt.model.layout_model import LayoutModel

_LIST = re.compile(r"(\w+):\[([-\d,]*)\]")
_FAR = 1 << 39  # a bound beyond it binds nothing


def printed(problem, target):
    """The text of every round."""
    rounds, seen = [], set()
    asked = LayoutModel.solve

    def solved(model, *arguments, **options):
        answer = asked(model, *arguments, **options)
        parts = readable(model.asked, model.answers[-1])
        *known, solution = parts
        new = {name: [item for item in parts[name] if item not in seen] for name in known}
        rounds.append({**new, solution: parts[solution]})
        seen.update(itertools.chain(*parts.values()))
        return answer

    LayoutModel.solve = solved
    try:
        solve(problem, method="model", target=target, time_limit=None)
    finally:
        LayoutModel.solve = asked
    return "\n".join(_round(number, parts) for number, parts in enumerate(rounds, start=1))


def _round(number, parts):
    lines = [f"round {number}" + (", what is new" if number > 1 else "")]
    for name, items in parts.items():
        if name == "constraints":
            lines += [f"  {name}", *(f"    {item}" for item in items)]
        elif items:
            text = f"{name}: {', '.join(items)}"
            lines += textwrap.wrap(text, 108, initial_indent="  ", subsequent_indent="    ")
    return "".join(line + "\n" for line in lines)


def readable(model, answer):
    """Variables with their ranges, constraints, the objective, and the variables that are not 0."""
    names = [model.names.get(v, f"v{v}") for v in range(model.size[0])]
    switches = [n for n, domain in zip(names, model.domains, strict=True) if domain == (0, 1)]
    domains = [(n, ends) for n, ends in zip(names, model.domains, strict=True) if ends != (0, 1)]
    numbers = [f"{n} in {low}..{high}" for n, (low, high) in domains]
    values = zip(names, answer.values, strict=False)
    found = [name if value == 1 else f"{name} = {value}" for name, value in values if value]
    return {
        "integers": numbers,
        "0 or 1": switches,
        "constraints": [_constraint(text, names) for text in model.constraints],
        "minimise": [_sum(model.objective, names)],
        "solution, and 0 for all others": found,
    }


def _constraint(text, names):
    lists = {key: [int(n) for n in numbers.split(",") if n] for key, numbers in _LIST.findall(text)}
    literals = [_literal(literal, names) for literal in lists.get("literals", ())]
    if "bool_or" in text:
        return " or ".join(literals)
    if "exactly_one" in text:
        return "exactly one of " + ", ".join(literals)
    if "at_most_one" in text:
        return "at most one of " + ", ".join(literals)
    if "bool_xor" in text:
        *others, (last) = literals
        return f"{last.removeprefix('not ')} = " + " xor ".join(others)
    said = _sum(list(zip(lists["vars"], lists["coeffs"], strict=True)), names) + _domain(lists["domain"])
    given = " and ".join(_literal(literal, names) for literal in lists.get("enforcement_literal", ()))
    return f"{given} => {said}" if given else said


def _literal(literal, names):
    return names[literal] if literal >= 0 else "not " + names[-literal - 1]


def _sum(terms, names):
    text = ""
    for variable, coefficient in terms:
        sign = " - " if coefficient < 0 else " + "
        times = "" if abs(coefficient) == 1 else f"{abs(coefficient)} "
        text += (sign if text else sign.strip(" +")) + times + names[variable]
    return text or "0"


def _domain(domain):
    if len(domain) > 2:
        parts = [(low, high) for low, high in zip(domain[::2], domain[1::2], strict=True) if low <= high]
        return " in " + ", ".join(f"{low}.." + (f"{high}" if high < _FAR else "") for low, high in parts)
    low, high = domain
    if low == high:
        return f" = {low}"
    if high >= _FAR:
        return f" >= {low}"
    return f" <= {high}" if low <= -_FAR else f" in {low}..{high}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", type=Path)
    parser.add_argument("--device-file", type=Path)
    parser.add_argument("--families", help="comma-separated")
    options = parser.parse_args()
    more = load_devices(options.device_file) if options.device_file else ()
    problem = load(options.problem)
    if options.families:
        layout = msgspec.structs.replace(problem.layout, families=tuple(options.families.split(",")))
        problem = msgspec.structs.replace(problem, layout=layout)
    sys.stdout.write(printed(problem, device(problem.target, more)))


if __name__ == "__main__":
    main()
