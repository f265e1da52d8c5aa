"""One problem through `solve`, and every claim of its answer."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from campaign import Case
from generate import FAMILIES
from oracle import placements
from oracle.answers import (
    Finding,
    Question,
    question,
    require,
    strides,
    verify_constraints,
    verify_offset,
    verify_table,
)
from oracle.members import Member, family_members
from oracle.problem_file import Misaligned, check_vectors
from process import MEMORY_BYTES, Done, call

# Processor time to look for a placement that refutes one bound; there are thousands of them.
ATTACK_S = 0.05


class Session:
    """One case in a folder of its own."""

    def __init__(self, case: Case, folder: Path, told: Counter) -> None:
        self.case, self.folder, self.told = case, folder, told
        self.problem, self.limit = case["problem"], case["limit"]
        self.rng = random.Random(case["seed"])
        (folder / "p.json").write_text(json.dumps(self.problem))
        self.solve_wall_s = 0.0
        self.device_file = None
        if "devices" in case:
            self.device_file = str(folder / "d.json")
            Path(self.device_file).write_text(json.dumps(case["devices"]))

    def call(self, *arguments: object, limited: bool = True) -> Done:
        extra = ["--device-file", self.device_file] if self.device_file else []
        limit = ["--time-limit", self.limit] if limited else []
        searches = 2 if arguments[0] in ("compare", "explain", "show") else 1
        budget = searches * (2 * self.limit + 2) * self.case.get("slack", 1)
        done = call(*arguments, *limit, *extra, folder=self.folder, cpu_s=budget)
        about = (done.command, done.code, done.err[-1200:])
        verb = done.command[0]
        require(
            "Traceback" not in done.err,
            f"{verb}: traceback {done.err.strip().splitlines()[-1:]}"[:120],
            about,
        )
        unconfirmed = re.search(r"the model p\w+ a \w+", done.err)
        require(not unconfirmed, f"{verb}: {unconfirmed and unconfirmed[0]}", about)
        late = done.cpu_s > budget or done.code in (-24, -9)
        require(not late, f"{verb}: processor time", (done.cpu_s, budget, done.command))
        require(done.code in (0, 1, 2, 3), f"{verb}: exit code {done.code}", about)
        require(done.memory_bytes <= MEMORY_BYTES, f"{verb}: memory", done.memory_bytes)
        if done.code == 2:
            one_line(done)
        return done

    def solve(self) -> dict | None:
        """The answer, its exit code checked; None where the problem is refused."""
        done = self.call("solve", "p.json", "--json", "--table", "t.npy", *self.case["options"])
        self.solve_wall_s = done.wall_s
        if done.code == 2:
            self.told["refused: " + re.sub(r"[0-9]+", "0", done.err.strip())[:110]] += 1
            return None
        answer = json.loads(done.out)
        self.told[f"solve: {answer['status']}"] += 1
        code = {"infeasible": 1, "unknown": 3}.get(answer["status"], 1 if answer["excess"] else 0)
        require(done.code == code, f"solve: exit {done.code} for {answer['status']}", answer["excess"])
        return answer

    def verified(self, answer: dict) -> tuple[Question, np.ndarray] | None:
        """The problem executed and the table, both found to be as the answer says; None where it has none."""
        layout = narrowed(self.problem.get("layout", {}), options_of(self.case["options"]))
        asked = question({**self.problem, "layout": layout}, self.device_file, answer["accesses"])
        if answer["layout"] is None:
            self.no_layout(asked, answer)
            return None
        table = np.load(self.folder / "t.npy")
        verify_table(asked, table, answer)
        verify_offset(asked, table, answer["offset"])
        verify_constraints(asked, table, answer, self.case["options"])
        self.claims(asked, answer)
        return asked, table

    def no_layout(self, asked: Question, answer: dict) -> None:
        if answer["status"] != "infeasible":
            return
        layout = asked.constraints
        barred = {"order", "pitch_multiple_bytes", "must_be"} & set(layout)
        free = "table" in layout.get("families", FAMILIES) and not barred
        below = 1e-9 if "--conflict-free" in self.case["options"] else float("inf")
        room = layout.get("max_bytes", 4 * asked.tile.tight_bytes + 512)
        if free:
            self.refute(asked, room, below, "false infeasible: " + answer["reason"][:60])
        for member in self.members(asked, layout):
            if max(member.flat) + asked.tile.size <= room:
                value = placements.cost(asked.tile, asked.accesses, member.flat)
                require(
                    value >= below, "false infeasible in families", (member.what, value, answer["reason"])
                )

    def claims(self, asked: Question, answer: dict) -> None:
        proof, layout = answer["proof"], asked.constraints
        excess = answer["weighted_excess"]
        bound = proof["weighted_excess"] or proof["excess"]
        require(proof["excess"]["lower_bound"] <= answer["excess"], "excess below its bound", proof)
        require(bound["lower_bound"] <= excess + 1e-9, "weighted excess below its bound", proof)
        by_bytes = layout.get("minimise") == "bytes"
        proved = abs(bound["lower_bound"] - excess) < 1e-9
        require(answer["status"] != "optimal" or proved or by_bytes, "optimal above its bound", proof)
        require(
            answer["bytes"] >= proof["bytes"]["lower_bound"] or not proved, "bytes below their bound", proof
        )
        room = 2 * asked.tile.tight_bytes + 256
        if bound["scope"].startswith("every layout") and bound["lower_bound"] > 0:
            if match := re.search(r"within (\d+) bytes", bound["scope"]):
                room = int(match[1])
            self.refute(
                asked, min(room, layout.get("max_bytes", room)), bound["lower_bound"], "false bound of excess"
            )
        least = proof["bytes"]
        if (
            least["scope"].startswith("every layout")
            and least["lower_bound"] > asked.tile.tight_bytes
            and (proved or by_bytes)
        ):
            below = float("inf") if by_bytes else excess + 1e-9
            self.refute(asked, least["lower_bound"] - 1, below, "false bound of bytes")
        if answer["status"] == "optimal" and layout.get("minimise", "excess") == "excess":
            self.beat(asked, answer)

    def beat(self, asked: Question, answer: dict) -> None:
        """No member of the families may be better than what is called optimal of them."""
        have = (answer["weighted_excess"], answer["bytes"])
        proof = answer["proof"]
        scope = (proof["weighted_excess"] or proof["excess"])["scope"]
        for member in self.members(asked, asked.constraints):
            size = max(member.flat) + asked.tile.size
            if size > asked.constraints.get("max_bytes", size):
                continue
            value = placements.cost(asked.tile, asked.accesses, member.flat)
            about = (member.what, value, size, have, proof)
            if covers(scope, member, asked):
                require(value > have[0] - 1e-9, "optimal is beaten by a family", about)
            if covers(scope, member, asked) and covers(proof["bytes"]["scope"], member, asked):
                require(
                    value > have[0] + 1e-9 or size >= have[1], "optimal bytes are beaten by a family", about
                )

    def members(self, asked: Question, layout: dict) -> Iterator[Member]:
        """Random members of the allowed families that keep to the constraints."""
        if "must_be" in layout or any(a.any_is for a in asked.accesses):
            return
        families = set(layout.get("families", FAMILIES))
        row_bytes = max(a.rule.banks * a.rule.bank_bytes for a in asked.accesses)
        banks = (asked.accesses[0].rule.bank_bytes, row_bytes)
        for member in family_members(asked.tile, self.rng, families, banks, 25):
            if not member.families <= families:
                continue  # row-major, where that is not allowed by itself
            try:
                for access in asked.accesses:
                    check_vectors(access, asked.tile, member.flat)
            except Misaligned:
                continue
            if not any(v % asked.tile.align for v in member.flat) and self.obeys(asked, layout, member):
                yield member

    @staticmethod
    def obeys(asked: Question, layout: dict, member: Member) -> bool:
        if {"pitch_multiple_bytes", "order", "alignment_bytes"} & set(layout) and not member.families <= {
            "none",
            "order",
            "pad",
        }:
            return False
        steps = strides(asked.tile, np.array(member.flat).reshape(asked.tile.shape))
        multiple = layout.get("pitch_multiple_bytes", 1)
        ranks = [steps[d] for d in layout.get("order", ()) if d in steps]
        need = max(
            [
                asked.tile.align,
                *(a.width & -a.width for a in asked.accesses),
                asked.accesses[0].rule.bank_bytes,
            ]
        )
        return (
            # The pad of a one-element dimension is inside a pitch: only neighbours side by side have none.
            not any(s % multiple for s in steps.values() if s > asked.tile.size)
            and ranks == sorted(ranks, reverse=True)
            and layout.get("alignment_bytes", need) >= need
        )

    def refute(self, asked: Question, room: int, below: float, kind: str) -> None:
        if any(a.any_is for a in asked.accesses) or asked.constraints.get("alignment_bytes", 1024) < 16:
            return
        size = sum(len(i.first) for a in asked.accesses for i in a.issues) * (1 + asked.tile.elements / 64)
        found = (
            placements.enumerate_placements(asked.tile, asked.accesses, room, below) if size < 200 else None
        )
        found = found or placements.better_placement(
            asked.tile, asked.accesses, room, below, ATTACK_S, self.rng
        )
        self.told["bounds attacked"] += 1
        if found:
            value = placements.cost(asked.tile, asked.accesses, found)
            raise Finding(kind, (f"excess {value} in {max(found) + asked.tile.size} bytes", found))


def covers(scope: str, member: Member, asked: Question) -> bool:
    """Whether a bound of this scope speaks of the member, without a condition on its bytes."""
    if " within " in scope or scope.startswith("every layout"):
        return " within " not in scope
    if leaves_swizzles_out(scope) and "xor" in member.families:
        return False
    return scope.startswith("families") and member.families <= set(re.findall(r"[a-z]+", scope))


def leaves_swizzles_out(scope: str) -> bool:
    return ", XOR sources" in scope or ", no XOR" in scope


def narrowed(layout: dict, options: dict) -> dict:
    """Both the file's constraints and those of the options hold."""
    both = {**layout, **options}
    if "max_bytes" in layout and "max_bytes" in options:
        both["max_bytes"] = min(layout["max_bytes"], options["max_bytes"])
    if "alignment_bytes" in layout and "alignment_bytes" in options:
        both["alignment_bytes"] = min(layout["alignment_bytes"], options["alignment_bytes"])
    if "pitch_multiple_bytes" in layout and "pitch_multiple_bytes" in options:
        both["pitch_multiple_bytes"] = math.lcm(
            layout["pitch_multiple_bytes"], options["pitch_multiple_bytes"]
        )
    return both


def options_of(options: list[str]) -> dict:
    """The constraints that options on the command line add to the file's."""
    names = {
        "--max-bytes": "max_bytes",
        "--pitch-multiple": "pitch_multiple_bytes",
        "--alignment": "alignment_bytes",
    }
    found: dict = {}
    for option, value in itertools.pairwise(options):
        if option in names:
            found[names[option]] = int(value)
        elif option == "--families":
            found["families"] = value.split(",")
        elif option == "--minimise":
            found["minimise"] = value
    return found


def one_line(done: Done) -> None:
    lines = [line for line in done.err.strip("\n").split("\n") if not line.startswith("warning: ")]
    require(
        len(lines) == 1 and lines[0], f"{done.command[0]}: exit 2 with {len(lines)} lines", done.err[:600]
    )
    require(
        lines[0].isprintable() and len(lines[0]) <= 600,
        f"{done.command[0]}: unfit error line",
        done.err[:600],
    )
