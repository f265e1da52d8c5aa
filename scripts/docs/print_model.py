"""The one model of a problem, round by round: variables, constraints, objective, solution.

    python scripts/docs/print_model.py PROBLEM.json [--device-file FILE] [--families none,xor]

Rounds are those of `layoutopt solve --method model`. Of a round that follows another, what is new.
"""

import argparse
import itertools
import sys
import textwrap
from pathlib import Path

import msgspec

from layoutopt import load
from layoutopt.hardware.devices import device, load_devices
from layoutopt.model.layout_model import LayoutModel
from layoutopt.model.readable import readable
from layoutopt.search.solve import solve


def printed(problem, target):
    """The text of every round."""
    rounds, seen = [], set()
    asked = LayoutModel.solve

    def solved(model, *arguments, **options):
        answer = asked(model, *arguments, **options)
        parts = readable(model.asked, model.answer)
        *known, solution = parts
        new = {name: [item for item in parts[name] if item not in seen] for name in known}
        rounds.append({**new, solution: parts[solution]})
        seen.update(itertools.chain(*parts.values()))
        return answer

    LayoutModel.solve = solved
    try:
        solve(problem, method="model", target=target)
    finally:
        LayoutModel.solve = asked
    return "\n".join(_round(number, parts) for number, parts in enumerate(rounds, start=1))


def _round(number, parts):
    lines = [f"round {number}" + (", what is new" if number > 1 else "")]
    for name, items in parts.items():
        if name == "constraints":
            lines += [f"  {name}", *(f"    {item}" for item in items)]
        elif items:
            lines += textwrap.wrap(
                f"{name}: " + ", ".join(items), 108, initial_indent="  ", subsequent_indent="    "
            )
    return "".join(line + "\n" for line in lines)


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
