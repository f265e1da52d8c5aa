"""What a problem file means, in plain Python: hardware, expressions, accesses, counts."""

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from oracle.banks import Rule, busiest, place, serve

DEVICES = Path(__file__).parents[2] / "layoutopt" / "hardware" / "devices.json"
NAMED = {1: "i8 u8 b8 f8 e4m3 e5m2", 2: "i16 u16 b16 f16 bf16", 4: "i32 u32 b32 f32 tf32 f16x2 bf16x2",
         8: "i64 u64 b64 f64 c64", 16: "b128 c128"}  # fmt: skip
PACKED = {2: "i4 u4 s4 b4 e2m1", 4: "i2 u2 s2 b2", 8: "b1 u1"}  # elements of a byte
MAX_VALUES = 5000


class Misaligned(Exception):
    """An access starts where its width does not allow, or a vector is torn."""


@dataclass(frozen=True)
class Hardware:
    """A device: its warp, and the rule of each instruction and width."""

    lanes: int
    rules: dict[tuple[str, int], Rule]


@cache
def hardware(target: str, device_file: str | None = None) -> Hardware:
    """The device that `target` names, in a device file or else in the package's."""
    for path in filter(None, (device_file, DEVICES)):
        if found := device_of(json.loads(Path(path).read_text()), target):
            return found
    raise KeyError(target)


def device_of(data: dict, target: str) -> Hardware | None:
    """The device of a device file that `target` names."""
    for device in data["devices"]:
        if target in (device["name"], *device.get("aliases", ())):
            return _hardware(device, data.get("instruction_sets", {}))
    return None


def _hardware(device: dict, sets: dict) -> Hardware:
    rules = {}
    for entry in device["instructions"]:
        for row in sets[entry] if isinstance(entry, str) else [entry]:
            phase, lanes = row["phase"], range(device["lanes"])
            if isinstance(phase, int):
                phase = [lanes[k : k + phase] for k in range(0, len(lanes), phase)]
            rule = Rule(
                tuple(map(tuple, phase)), row.get("banks", device["banks"]), device["bank_bytes"],
                row.get("count") == "lanes", row.get("merge") == "pairs", row.get("split_words", False),
                row.get("row_words", 1), row.get("extra_wavefronts", 0),
            )  # fmt: skip
            rules.update({(op, width): rule for op in row["ops"] for width in row["bytes"]})
    return Hardware(device["lanes"], rules)


@dataclass
class Tile:
    """Shape and element. `packed` elements share a byte (1: none do); then `size` is that byte's."""

    shape: tuple[int, ...]
    element: object
    size: int = 1
    packed: int = 1
    align: int = 1

    def __post_init__(self) -> None:
        told = self.element if isinstance(self.element, dict) else {}
        self.size = told.get("bytes") or self._of(NAMED)
        self.packed = 1 if told else self._of(PACKED)
        self.align = told.get("align", self.size & -self.size)

    def _of(self, names: dict[int, str]) -> int:
        return next((n for n, named in names.items() if self.element in named.split()), 1)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def tight_bytes(self) -> int:
        return self.elements * self.size // self.packed


@dataclass
class Issue:
    """One warp instruction: where each active lane starts, as flat element indices (or choices of them)."""

    weight: float
    first: dict[int, tuple[int, ...]]


@dataclass
class Access:
    """All warp instructions of one access, at one width."""

    name: str
    kind: str
    width: int
    rule: Rule
    merge_lanes: int
    any_is: str | None
    issues: list[Issue] = field(default_factory=list)


def kind_of(op: str, width: int) -> tuple[str, int]:
    """The hardware's name of an operation, and for matrices how many lanes give addresses."""
    if op.startswith(("ldmatrix", "stmatrix")):
        return op.split(".")[0], 8 * int(op.split(".x")[1][0])
    if op == "cp.async":
        return "cp.async.cg" if width == 16 else "cp.async.ca", 0
    return op, 0


def accesses(problem: dict, tile: Tile, device_file: str | None, widths: dict[str, int]) -> list[Access]:
    """Every access executed; `widths` says which of a list of widths was chosen."""
    device = hardware(problem.get("target", "sm_90"), device_file)
    return [_execute(problem, entry, tile, device, widths) for entry in problem["accesses"]]


def _execute(problem: dict, entry: dict, tile: Tile, device: Hardware, widths: dict[str, int]) -> Access:
    given = entry.get("bytes", 16)
    widest = max(given) if isinstance(given, list) else given
    width = widths.get(entry["name"], widest) if isinstance(given, list) else given
    kind, matrix_lanes = kind_of(entry["op"], width)
    access = Access(
        entry["name"], kind, width, device.rules[kind, width], device.lanes,
        entry.get("any_is", "worst") if entry.get("any") else None,
    )  # fmt: skip
    codes = [compile(str(text).strip(), "index", "eval") for text in entry["index"]]
    where = compile(str(entry.get("where", 1)).strip(), "where", "eval")
    weight = compile(str(entry.get("weight", 1)).strip(), "weight", "eval")
    loops, step = dict(entry.get("for", {})), width * tile.packed // tile.size
    parts = widest // width
    lanes = range(matrix_lanes or device.lanes)
    for values in itertools.product(*map(range, loops.values())):
        env = dict(zip(loops, values, strict=True))
        for part in range(parts):
            for warp in range(-(-problem["threads"] // device.lanes)):
                first = {}
                for lane in lanes:
                    tid = warp * device.lanes + lane
                    names = {**env, "tid": tid, "lane": lane, "warp": warp, **BUILTINS}
                    if tid < problem["threads"] and any(eval(where, env) for env in _choices(names, entry)):
                        first[lane] = tuple(_starts(codes, names, entry, tile, part * step))
                access.issues.append(Issue(float(eval(weight, dict(BUILTINS), env)), first))
    return access


BUILTINS = {"__builtins__": {}, "min": min, "max": max}


def _choices(names: dict, entry: dict) -> Iterator[dict]:
    free = entry.get("any", {})
    for values in itertools.product(*map(range, free.values())):
        yield {**names, **dict(zip(free, values, strict=True))}


def _starts(codes: list, names: dict, entry: dict, tile: Tile, shift: int) -> Iterator[int]:
    seen, uniform = set(), entry.get("any_is") == "uniform"
    for env in _choices(names, entry):
        flat = 0
        for code, extent in zip(codes, tile.shape, strict=True):
            value = int(eval(code, env))
            assert 0 <= value < extent, "the generator keeps indices inside"
            flat = flat * extent + value
        if uniform or flat + shift not in seen:
            seen.add(flat + shift)
            yield flat + shift


def span(access: Access, tile: Tile) -> int:
    """Elements that one lane touches."""
    return max(1, access.width * tile.packed // tile.size)


def check_vectors(access: Access, tile: Tile, table: list[int], base: int = 0) -> None:
    """Raise where a lane's bytes are torn or begin at no multiple of their width."""
    count = span(access, tile)
    step = access.width & -access.width
    for issue in access.issues:
        for start in set().union(*issue.first.values()):
            at = table[start]
            if (at + base) % step:
                raise Misaligned(f"{access.name}: element {start} at byte {at}, {access.width} bytes wide")
            if any(table[start + k] - at != k // tile.packed * tile.size for k in range(count)):
                raise Misaligned(f"{access.name}: the vector at element {start} is torn")


@dataclass
class Count:
    """Sums over the warp instructions of an access."""

    wavefronts: float = 0
    ideal: float = 0
    occupied: int = 0
    weighted_excess: float = 0.0


def count(access: Access, table: list[int], base: int = 0) -> Count:
    """Wavefronts by plain loops; of run-time values the worst or the mean, and no ideal."""
    total = Count()
    for issue in access.issues:
        if access.any_is:
            one = _worst if access.any_is == "worst" else _expected
            total.wavefronts += sum(one(phase, issue, access, table, base) for phase in access.rule.phases)
            continue
        address = {lane: table[starts[0]] + base for lane, starts in issue.first.items()}
        cost, ideal, occupied = serve(address, access.rule, access.width, access.merge_lanes)
        total.wavefronts += cost
        total.ideal += ideal
        total.occupied += occupied
        total.weighted_excess += issue.weight * (cost - ideal)
    return total


def _worst(phase: tuple[int, ...], issue: Issue, access: Access, table: list[int], base: int) -> int:
    """The most wavefronts over all values: lanes matched to distinct words of one bank."""
    rule, wanted = access.rule, defaultdict(dict)
    for lane in phase:
        for start in issue.first.get(lane, ()):
            word = (table[start] + base) // rule.bank_bytes
            wanted[word % rule.banks].setdefault(lane, set()).add(place(word, rule))
    if not wanted:
        return 0
    most = len if rule.serialises_equal else _matching
    return max(most(lanes) for lanes in wanted.values()) + rule.extra_wavefronts


def _expected(phase: tuple[int, ...], issue: Issue, access: Access, table: list[int], base: int) -> float:
    """The mean over all values, one after the other; NaN where they are too many."""
    rule, lanes = access.rule, [issue.first[lane] for lane in phase if lane in issue.first]
    if not lanes:
        return 0
    if math.prod(map(len, lanes)) > MAX_VALUES:
        return math.nan
    costs = [
        busiest([(table[start] + base) // rule.bank_bytes for start in starts], rule)[0]
        + rule.extra_wavefronts
        for starts in itertools.product(*lanes)
    ]
    return sum(costs) / len(costs)


def _matching(wanted: dict[int, set[int]]) -> int:
    taken: dict[int, int] = {}

    def place(lane: int, seen: set[int]) -> bool:
        for word in wanted[lane]:
            if word not in seen:
                seen.add(word)
                if word not in taken or place(taken[word], seen):
                    taken[word] = lane
                    return True
        return False

    return sum(place(lane, set()) for lane in wanted)
