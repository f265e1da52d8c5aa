"""Audit the published layout of every problem in the catalogue and print what is wrong with each.

python scripts/check_catalogue.py
"""

from pathlib import Path

from layoutopt import check, load, solve

PROBLEMS = Path(__file__).parent.parent / "problems"


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
    for path in sorted(PROBLEMS.rglob("*/*.json")):
        problem = load(path)
        if problem.published is None:
            continue
        audit = check(problem, solver=lambda p: solve(p, time_limit=5))
        fixes = [f.message for f in audit.findings if f.kind == "fix"]
        name = path.relative_to(PROBLEMS).with_suffix("").as_posix()
        print(row.format(name, audit.excess, audit.bytes, ", ".join(brief(audit)), "".join(fixes)))


if __name__ == "__main__":
    main()
