"""Audit the published layout of every problem in the catalogue and print what is wrong with each.

python scripts/benchmarks/check_catalogue.py
"""

from layoutopt import check, load, solve
from layoutopt.problems.catalogue import of_one_tile


def brief(audit):
    """The findings in a few words each."""
    for finding in audit.findings:
        details = finding.details
        match finding.kind:
            case "conflict":
                yield f"{finding.access} {details['wavefronts']}-way"
            case "unused_bytes":
                yield f"{100 * details['bytes'] / audit.bytes:.0f} % unused"
            case "idle_xor":
                yield f"{details['bits']} idle XOR bits"
            case "alignment" | "fix" | "fusion":
                pass
            case other:
                yield other


def main():
    row = "{:<48} {:>7} {:>7}  {:<62} {}"
    print(row.format("published layout", "excess", "bytes", "findings", "cheapest fix"))
    for name, path in of_one_tile().items():
        problem = load(path)
        if problem.published is None:
            continue
        audit = check(problem, solver=lambda p: solve(p, time_limit=5))
        fixes = [f.message for f in audit.findings if f.kind == "fix"]
        print(row.format(name, audit.excess, audit.bytes, ", ".join(brief(audit)), "".join(fixes)))


if __name__ == "__main__":
    main()
