"""One problem through `solve`, and every claim of its answer."""

import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from campaign import Case, judge
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
from process import Done, call

# Processor time to look for a placement that refutes one bound; there are thousands of them.
ATTACK_S = 0.05
# Constraints that options of the command line add to the file's: the field, and how both hold.
NARROWED = {
    "--max-bytes": ("max_bytes", min),
    "--alignment": ("alignment_bytes", min),
    "--pitch-multiple": ("pitch_multiple_bytes", math.lcm),
}


class Session:
    """One case in a folder of its own; once verified, with the answer, the problem executed and the table."""

    answer: dict
    asked: Question
    table: np.ndarray

    def __init__(self, case: Case, folder: Path, told: Counter) -> None:
        self.case, self.folder, self.told = case, folder, told
        self.problem, self.limit, self.options = case["problem"], case["limit"], case["options"]
        self.rng = random.Random(case["seed"])
        self.solve_wall_s = 0.0
        self.write("p.json", self.problem)
        self.device_file = None
        if "devices" in case:
            self.device_file = str(folder / self.write("d.json", case["devices"]))

    def write(self, name: str, data: object) -> str:
        (self.folder / name).write_text(json.dumps(data))
        return name

    def call(self, *arguments: object, lines: bool = False) -> Done:
        extra = ["--device-file", self.device_file] if self.device_file else []
        searches = 2 if arguments[0] in ("compare", "explain", "show") else 1
        budget = searches * (2 * self.limit + 2) * self.case.get("slack", 1)
        done = call(*arguments, "--time-limit", self.limit, *extra, folder=self.folder, cpu_s=budget)
        judge(done, done.command[0], budget, lines=lines)
        return done

    def told_of(self, done: Done) -> dict | None:
        """What a command answered; None where it refused, which is counted."""
        if done.code != 2:
            return json.loads(done.out)
        self.told[f"{done.command[0]} refused: " + re.sub(r"[0-9]+", "0", done.err.strip())[:110]] += 1
        return None

    def solve(self) -> bool:
        """Whether there is an answer; its exit code is checked."""
        done = self.call("solve", "p.json", "--json", "--table", "t.npy", *self.options)
        self.solve_wall_s = done.wall_s
        answer = self.told_of(done)
        if answer is None:
            return False
        self.answer = answer
        self.told[f"solve: {answer['status']}"] += 1
        code = {"infeasible": 1, "unknown": 3}.get(answer["status"], 1 if answer["excess"] else 0)
        require(done.code == code, f"solve: exit {done.code} for {answer['status']}", answer["excess"])
        return True

    def verified(self) -> bool:
        """Whether there is a layout; problem and table are found to be as the answer says."""
        layout = narrowed(self.problem.get("layout", {}), self.options)
        asked = question({**self.problem, "layout": layout}, self.device_file, self.answer["accesses"])
        self.asked = asked
        if self.answer["layout"] is None:
            if self.answer["status"] == "infeasible":
                self.no_layout()
            return False
        self.table = np.load(self.folder / "t.npy")
        verify_table(asked, self.table, self.answer)
        verify_offset(asked, self.table, self.answer["offset"])
        verify_constraints(asked, self.table, self.answer, self.options)
        self.claims()
        return True

    def no_layout(self) -> None:
        asked, layout, reason = self.asked, self.asked.constraints, self.answer["reason"]
        below = 1e-9 if "--conflict-free" in self.options else float("inf")
        room = layout.get("max_bytes", 4 * asked.tile.tight_bytes + 512)
        barred = {"order", "pitch_multiple_bytes"} & set(layout)
        if "table" in layout.get("families", FAMILIES) and not barred:
            self.refute(room, below, "false infeasible: " + reason[:60])
        for member in self.members():
            if max(member.flat) + asked.tile.size <= room:
                value = placements.cost(asked.tile, asked.accesses, member.flat)
                require(value >= below, "false infeasible in families", (member.what, value, reason))

    def claims(self) -> None:
        answer, tile, layout = self.answer, self.asked.tile, self.asked.constraints
        proof, excess = answer["proof"], answer["weighted_excess"]
        bound, least = proof["weighted_excess"] or proof["excess"], proof["bytes"]
        require(proof["excess"]["lower_bound"] <= answer["excess"], "excess below its bound", proof)
        require(bound["lower_bound"] <= excess + 1e-9, "weighted excess below its bound", proof)
        by_bytes = layout.get("minimise") == "bytes"
        proved = abs(bound["lower_bound"] - excess) < 1e-9
        require(answer["status"] != "optimal" or proved or by_bytes, "optimal above its bound", proof)
        require(answer["bytes"] >= least["lower_bound"] or not proved, "bytes below their bound", proof)
        room = 2 * tile.tight_bytes + 256
        if bound["scope"].startswith("every layout") and bound["lower_bound"] > 0:
            if match := re.search(r"within (\d+) bytes", bound["scope"]):
                room = int(match[1])
            room = min(room, layout.get("max_bytes", room))
            self.refute(room, bound["lower_bound"], "false bound of excess")
        every = least["scope"].startswith("every layout") and least["lower_bound"] > tile.tight_bytes
        if every and (proved or by_bytes):
            below = float("inf") if by_bytes else excess + 1e-9
            self.refute(least["lower_bound"] - 1, below, "false bound of bytes")
        if answer["status"] == "optimal" and layout.get("minimise", "excess") == "excess":
            self.beat(bound["scope"], least["scope"])

    def beat(self, scope: str, of_bytes: str) -> None:
        """No member of the families may be better than what is called optimal of them."""
        asked, have, size_have = self.asked, self.answer["weighted_excess"], self.answer["bytes"]
        for member in self.members():
            size = max(member.flat) + asked.tile.size
            if size > asked.constraints.get("max_bytes", size) or not covers(scope, member):
                continue
            value = placements.cost(asked.tile, asked.accesses, member.flat)
            about = (member.what, value, size, have, self.answer["proof"])
            require(value > have - 1e-9, "optimal is beaten by a family", about)
            if covers(of_bytes, member):
                fewer = value <= have + 1e-9 and size < size_have
                require(not fewer, "optimal bytes are beaten by a family", about)

    def members(self) -> Iterator[Member]:
        """Random members of the allowed families that keep to the constraints."""
        asked, layout = self.asked, self.asked.constraints
        if any(a.any_is for a in asked.accesses):
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
            if not any(v % asked.tile.align for v in member.flat) and self.obeys(member):
                yield member

    def obeys(self, member: Member) -> bool:
        asked, layout = self.asked, self.asked.constraints
        stepped = {"pitch_multiple_bytes", "order", "alignment_bytes"} & set(layout)
        if stepped and not member.families <= {"none", "order", "pad"}:
            return False
        steps = strides(asked.tile, np.array(member.flat).reshape(asked.tile.shape))
        multiple = layout.get("pitch_multiple_bytes", 1)
        ranks = [steps[d] for d in layout.get("order", ()) if d in steps]
        widths = [a.width & -a.width for a in asked.accesses]
        need = max(asked.tile.align, asked.accesses[0].rule.bank_bytes, *widths)
        return (
            # The pad of a one-element dimension is inside a pitch: only neighbours side by side have none.
            not any(s % multiple for s in steps.values() if s > asked.tile.size)
            and ranks == sorted(ranks, reverse=True)
            and layout.get("alignment_bytes", need) >= need
        )

    def refute(self, room: int, below: float, kind: str) -> None:
        """Look for a placement within `room` bytes that costs less than `below`."""
        tile, accesses = self.asked.tile, self.asked.accesses
        if any(a.any_is for a in accesses) or self.asked.constraints.get("alignment_bytes", 1024) < 16:
            return
        size = sum(len(i.first) for a in accesses for i in a.issues) * (1 + tile.elements / 64)
        found = placements.enumerate_placements(tile, accesses, room, below) if size < 200 else None
        found = found or placements.better_placement(tile, accesses, room, below, ATTACK_S, self.rng)
        self.told["bounds attacked"] += 1
        if found:
            value = placements.cost(tile, accesses, found)
            raise Finding(kind, (f"excess {value} in {max(found) + tile.size} bytes", found))


def covers(scope: str, member: Member) -> bool:
    """Whether a bound of this scope speaks of the member, without a condition on its bytes."""
    if " within " in scope or scope.startswith("every layout"):
        return " within " not in scope
    if leaves_swizzles_out(scope) and "xor" in member.families:
        return False
    return scope.startswith("families") and member.families <= set(re.findall(r"[a-z]+", scope))


def leaves_swizzles_out(scope: str) -> bool:
    return ", XOR sources" in scope or ", no XOR" in scope


def narrowed(layout: dict, options: list[str]) -> dict:
    """Both the file's constraints and those of the options hold."""
    both = dict(layout)
    for option, value in itertools.pairwise(options):
        if option in NARROWED:
            field, of_both = NARROWED[option]
            both[field] = of_both(int(value), layout.get(field, int(value)))
        elif option == "--families":
            both["families"] = value.split(",")
        elif option == "--minimise":
            both["minimise"] = value
    return both
