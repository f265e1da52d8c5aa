"""Switch mechanisms of the search off, one by one or together, and say what each of them earns.

    python scripts/checkers/ablate.py run RECORD.jsonl [--count N] [--of NAME ...] [--together]
    python scripts/checkers/ablate.py table RECORD.jsonl

Problems are those of `record_answers.py`: the catalogue, random ones with constraints, tiles of five to eight
dimensions and large ones, free lanes, sets of tiles; in a random order: the first of them are a sample.
A problem is solved once more without each mechanism that had anything to say about it, and the answers are
ranked as there. Where they differ, both are asked again: what differs otherwise then varies from run to run.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from click.testing import CliRunner
from record_answers import objective, questions, standing

from layoutopt.cli.commands import main as layoutopt
from layoutopt.errors import LayoutoptError

KINDS: Final = ["catalogue", "random", "dimensions", "lanes", "sets"]


def nothing(*_: Any, **__: Any) -> None:
    return None


def none_of(*_: Any, **__: Any) -> Iterator[Any]:
    return iter(())


def start_alone(model: Any, hint: Any, *_: Any) -> Any:
    """Where a local search starts from."""
    flat = np.arange(model.tile.elements) * model.tile.element_bytes
    return flat.reshape(model.tile.shape) if hint is None else hint


# Of each mechanism: what it is asked by, as `module:name`, and what answers in its place.
MECHANISMS: Final[dict[str, list[tuple[str, Callable[..., Any]]]]] = {
    "a sample of many instructions": [("search.sample:is_large", nothing)],
    "orders counted together": [("search.reach_floor:likely", none_of)],
    "refuters of many": [("search.reach_floor:Refuters.learn", nothing)],
    "usual swizzles": [("search.cheaper:Cheaper._usual_alike", lambda *_: [])],
    "orders alike": [("search.cheaper:Cheaper._orders_alike", lambda *_: [])],
    "splits beside the cheapest": [("search.cheaper:Cheaper._unswizzled_alike", none_of)],
    "masks of few shifts": [("search.cheaper:Cheaper.of_few_shifts", none_of)],
    "the cheapest of those alike": [("search.cheaper:Cheaper.alike", lambda _, best, *__, **___: best)],
    "climbs where time ends": [("search.fall_back:_Climb.tops", none_of)],
    "matrices": [("search.scene:Scene._matrices", none_of)],
    "a table soon": [("search.reach_floor:at_floor", nothing), ("search.reach_floor:above_floor", nothing)],
    "a table instead": [("search.formulas:instead", nothing)],
    "a table in fewer bytes": [("search.beyond:smallest", nothing)],
    "exchanges of banks": [("search.tables:exchanged", nothing), ("model.placement:_exchanged", nothing)],
    "annealing": [("model.placement:_by_local_search", start_alone)],
    "cliques": [("proof.reasons:find_clique", nothing)],
    "packings": [("proof.reasons:find_packing", nothing)],
    "parity": [("proof.reasons:find_parity", nothing)],
    "the solver over placements": [("proof.reasons:free_assignment", nothing)],
}


def place(target: str) -> tuple[Any, str]:
    module, _, names = target.partition(":")
    owner: Any = import_module(f"layoutopt.{module}")
    *outer, name = names.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name


def answer(question: dict[str, Any], off: list[str], heard: set[str]) -> tuple[Any, float]:
    """The answer without some mechanisms, and its processor seconds; adds those to `heard` that spoke."""

    def listening(name: str, asked: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **how: Any) -> Any:
            said = asked(*args, **how)
            if said is not None and said is not False:
                heard.add(name)
            return said

        return ask

    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for mechanism, parts in MECHANISMS.items():
            for target, other in parts:
                owner, name = place(target)
                now = other if mechanism in off else listening(mechanism, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, now))
        os.chdir(folder)
        for name, data in question["files"].items():
            Path(name).write_text(json.dumps(data))
        begun = time.process_time()
        done = CliRunner().invoke(layoutopt, question["commands"][0])
        took = time.process_time() - begun
        os.chdir("/")
    if done.exception is not None and not isinstance(done.exception, (SystemExit, LayoutoptError)):
        raise done.exception
    return (json.loads(done.stdout) if done.stdout.startswith("{") else None), took


def verdict(question: dict[str, Any], known: Any, found: Any) -> str:
    """How an answer without mechanisms stands to the answer with them."""
    asked = objective(question, question["commands"][0])
    ranks = standing(known, asked), standing(found, asked)
    if ranks[0] == ranks[1] or None in ranks:
        return "same"
    return "worse" if ranks[1] > ranks[0] else "better"  # type: ignore[operator]


def run(args: argparse.Namespace) -> None:
    asked = list(questions(KINDS, args.count, 29, args.time_limit))
    random.Random(1).shuffle(asked)
    with args.record.open("a") as record:
        for question in asked:
            heard: set[str] = set()
            answer(question, [], heard)  # what is kept from one answer to the next is there for all
            known, took = answer(question, [], set())
            if known is None:
                continue  # the file contradicts itself
            each = [[name] for name in args.of if name in heard]
            for off in [args.of] if args.together else each:
                found, without = answer(question, off, set())
                how = verdict(question, known, found)
                if how != "same":
                    both = (answer(question, mechanisms, set())[0] for mechanisms in ([], off))
                    how = how if verdict(question, *both) == how else "varies"
                row = [question["name"], " + ".join(off), how, round(took, 3), round(without, 3)]
                print(json.dumps(row), file=record, flush=True)


def table(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    print("| without | asked | worse | better | varies | seconds with, without |")
    print("|---|---|---|---|---|---|")
    for name in dict.fromkeys([*MECHANISMS, *(row[1] for row in rows)]):
        mine = [row for row in rows if row[1] == name]
        how = Counter(row[2] for row in mine)
        seconds = [sum(row[k] for row in mine) for k in (3, 4)]
        counts = f"{len(mine)} | {how['worse']} | {how['better']} | {how['varies']}"
        print(f"| {name} | {counts} | {seconds[0]:.1f}, {seconds[1]:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("mode", choices=("run", "table"))
    parser.add_argument("record", type=Path)
    parser.add_argument("--count", type=int, default=200, help="random problems; fewer of the other kinds")
    parser.add_argument("--time-limit", type=float, default=2.0, metavar="S", help="of each answer")
    parser.add_argument("--of", nargs="+", choices=list(MECHANISMS), default=list(MECHANISMS))
    parser.add_argument("--together", action="store_true", help="switch all of --of off at once")
    args = parser.parse_args()
    args.record = args.record.absolute()
    table(args.record) if args.mode == "table" else run(args)


if __name__ == "__main__":
    sys.exit(main())
