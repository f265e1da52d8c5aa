"""Record what every command prints for every problem of the catalogue, or compare with a record.

    python scripts/checkers/record_answers.py write FILE.json [NAME ...]
    python scripts/checkers/record_answers.py compare FILE.json [NAME ...]

For a change that is meant to change nothing: write before it, compare after it. NAME keeps the problems whose
name holds it. An answer that a time limit cut short may differ from run to run, so that only what ends by
itself is kept, without the times it took. `compare` prints where each answer that is not the same begins to
differ.
"""

import argparse
import itertools
import json
import re
import tempfile
from pathlib import Path

from click.testing import CliRunner

from layoutopt.cli.commands import main as layoutopt
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.files.catalogue import problems

LIMIT = "20"
TIMES = re.compile(r'"seconds": ?[0-9.e-]+')


def printed(*arguments):
    """What a command prints, and its exit code."""
    outcome = CliRunner().invoke(layoutopt, list(arguments))
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        return f"{type(outcome.exception).__name__}: {outcome.exception}"
    return f"exit {outcome.exit_code}\n{TIMES.sub('', outcome.output)}"


def answers(path, folder):
    """Command -> what it prints for the problem in `path`."""
    name, result = str(path), folder / "result.json"
    solved = printed("solve", name, "--json", "--time-limit", LIMIT)
    found = {"solve": solved}
    lines = solved.splitlines()
    if '"status": "optimal"' in solved or '"status":"optimal"' in solved:
        found["solve text"] = printed("solve", name, "--time-limit", LIMIT)
        text = "\n".join(lines[1:])
        result.write_text(text)
        if '"tiles"' not in path.read_text():
            for language in LANGUAGES:
                found[f"emit {language}"] = printed(
                    "emit", str(result), "--problem", name, "--lang", language
                )
            found["emit self-test"] = printed("emit", str(result), "--problem", name, "--self-test")
            found["explain"] = printed("explain", name, "--json", "--time-limit", LIMIT)
            found["show"] = printed("show", name, "--layout", str(result), "--width", "100")
            found["compare"] = printed("compare", name, "--json", "--time-limit", "5")
        found["certificate"] = printed("solve", name, "--certificate", str(folder / "c.json"), "--json")
        if (folder / "c.json").exists():
            found["certificate"] = (folder / "c.json").read_text()
            (folder / "c.json").unlink()
    if '"published"' in path.read_text():
        found["check"] = printed("check", name, "--json", "--time-limit", "5")
    return {command: text.replace(str(folder), "") for command, text in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("write", "compare"))
    parser.add_argument("record", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    recorded = json.loads(args.record.read_text()) if args.mode == "compare" else {}
    paths = list(problems().values())
    differ = 0
    now = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            name = f"{path.parent.name}/{path.stem}"
            if args.names and not any(part in name for part in args.names):
                continue
            now[name] = answers(path, Path(folder))
            for command, text in now[name].items() if args.mode == "compare" else ():
                before = recorded.get(name, {}).get(command)
                if before != text:
                    differ += 1
                    pairs = enumerate(itertools.zip_longest(before or "", text))
                    at = next(i for i, (old, new) in pairs if old != new)
                    shown = [repr(t[max(0, at - 60) : at + 100]) for t in (before or "", text)]
                    print(f"{name}, {command}:\n  - {shown[0]}\n  + {shown[1]}", flush=True)
    if args.mode == "write":
        args.record.write_text(json.dumps(now))
    print(
        f"{sum(map(len, now.values()))} answers of {len(now)} problems"
        + (f", {differ} differ" if recorded else "")
    )


if __name__ == "__main__":
    main()
