"""An answer against the plain evaluation of its problem."""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from oracle.problem_file import Access, Misaligned, Tile, accesses, check_vectors, count

SAMPLED = 0.03  # the mean over values may be one of 16,384 samples


class Finding(Exception):
    """Something that should not be: what kind, and the details."""

    def __init__(self, kind: str, detail: object = "") -> None:
        super().__init__(kind, detail)
        self.kind, self.detail = kind, str(detail)


def require(holds: object, kind: str, detail: object = "") -> None:
    if not holds:
        raise Finding(kind, detail)


@dataclass
class Question:
    """A problem executed, at the widths of one answer."""

    problem: dict
    tile: Tile
    accesses: list[Access]
    device_file: str | None

    @property
    def constraints(self) -> dict:
        return self.problem.get("layout", {})


def question(problem: dict, device_file: str | None, reports: list[dict] = ()) -> Question:
    tile = Tile(tuple(problem["tile"]["shape"]), problem["tile"]["element"])
    widths = {report["name"]: report["bytes"] for report in reports if "bytes" in report}
    return Question(problem, tile, accesses(problem, tile, device_file, widths), device_file)


def verify_table(asked: Question, table: np.ndarray, answer: dict, base: int = 0) -> None:
    """The elements apart, aligned and whole; bytes, counts and sums as `answer` says them."""
    tile = asked.tile
    require(table.dtype == np.int64 and table.shape == tile.shape, "table: dtype or shape", table.shape)
    flat = [int(v) for v in table.ravel()]
    verify_places(tile, flat)
    require(answer["bytes"] == max(flat) + tile.size, "bytes are not those of the table", answer["bytes"])
    if answer.get("declared_bytes") is not None:
        require(answer["declared_bytes"] >= answer["bytes"], "declared_bytes below bytes", answer)
    alignment = answer.get("alignment_bytes") or 1
    require(alignment & (alignment - 1) == 0, "alignment_bytes is no power of two", alignment)
    for shift in (0, alignment, 3 * alignment, 64 * alignment):
        try:
            verify_counts(asked, flat, answer, base + shift)
        except Misaligned as torn:
            kind = "misaligned at alignment_bytes" if shift else "misaligned access"
            raise Finding(kind, torn) from None


def verify_places(tile: Tile, flat: list[int]) -> None:
    require(min(flat) >= 0, "negative offset")
    if tile.packed > 1:
        groups = [flat[k : k + tile.packed] for k in range(0, len(flat), tile.packed)]
        require(all(len(set(group)) == 1 for group in groups), "a byte's elements are apart")
        flat = [group[0] for group in groups]
    ordered = sorted(flat)
    require(all(b - a >= tile.size for a, b in itertools.pairwise(ordered)), "elements overlap")
    require(not any(v % tile.align for v in flat), "element not at its alignment", tile.align)


def verify_counts(asked: Question, flat: list[int], answer: dict, base: int) -> None:
    where = "" if base == 0 else " at a base of alignment_bytes"
    reports = answer["accesses"]
    named = [r["name"] for r in reports] == [a.name for a in asked.accesses]
    require(named, "accesses of the answer", reports)
    excess = weighted = 0.0
    for access, report in zip(asked.accesses, reports, strict=True):
        check_vectors(access, asked.tile, flat, base)
        found = count(access, flat, base)
        allowed = SAMPLED if access.any_is == "uniform" else 0
        near = math.isclose(report["wavefronts"], found.wavefronts, rel_tol=allowed)
        about = (access.name, found, report)
        require(near or math.isnan(found.wavefronts), f"wavefronts{where}", about)
        if access.any_is:
            continue
        require(report["ideal"] == found.ideal, f"ideal{where}", about)
        require(report["excess"] == found.wavefronts - found.ideal, "excess of an access", report)
        conflicts = found.wavefronts - found.occupied
        served = access.rule.extra_wavefronts or report["bank_conflicts"] == conflicts
        require(served, f"bank_conflicts{where}", about)
        excess += report["excess"]
        weighted += found.weighted_excess
    if any(access.any_is for access in asked.accesses):
        return
    require(answer["excess"] == excess, "sum of excess", (excess, answer["excess"]))
    if answer.get("weighted_excess") is not None:
        require(math.isclose(answer["weighted_excess"], weighted), "weighted_excess", (weighted, answer))


def verify_offset(asked: Question, table: np.ndarray, text: str | None) -> None:
    """The printed formula at every coordinate; look-ups are left to the table."""
    if not text or "lookup" in text:
        return
    packed, values = asked.tile.packed, offsets_of(asked.tile, text)
    told = bytes_of(asked.tile, values)
    for x in np.argwhere(told != table)[:1]:
        raise Finding("offset formula is not the table", (text, x, values[tuple(x)], table[tuple(x)]))
    place = np.arange(table.shape[-1]) % packed
    require((values % packed == place).all(), "place in the byte", text)


def offsets_of(tile: Tile, text: str) -> np.ndarray:
    """A formula of element offsets at every coordinate."""
    code, values = compile(text, "offset", "eval"), np.zeros(tile.shape, np.int64)
    for x in np.ndindex(tile.shape):
        env = {f"x{d}": int(v) for d, v in enumerate(x)} | {"min": min, "max": max, "__builtins__": {}}
        values[x] = int(eval(code, env))
    return values


def bytes_of(tile: Tile, offsets: np.ndarray) -> np.ndarray:
    """Where elements at these offsets begin: packed ones at the byte that they share."""
    return offsets // tile.packed if tile.packed > 1 else offsets * tile.size


def verify_constraints(asked: Question, table: np.ndarray, result: dict, options: list[str]) -> None:
    layout, tile = asked.constraints, asked.tile
    if "max_bytes" in layout:
        require(result["bytes"] <= layout["max_bytes"], "max_bytes exceeded", result["bytes"])
    if "alignment_bytes" in layout:
        need, have = result["alignment_bytes"], layout["alignment_bytes"]
        require(have % need == 0, "alignment_bytes exceeded", (need, have))
    if "--conflict-free" in options:
        require(not result["excess"], "conflict-free with excess", result["excess"])
    families = set(layout.get("families", ()))
    if families and result.get("family"):
        if "matrix" in families:
            families.add("xor")  # a swizzle may follow a matrix
        if "order" in layout:
            families.add("order")  # which order is given, not searched
        require(allowed(result["family"], families), "family not allowed", (result["family"], families))
    if result.get("family") in ("none", "order", "pad"):
        steps = strides(tile, table)
        if "pitch_multiple_bytes" in layout and len(steps) > 1:
            outer = sorted(steps.values())[1:]
            require(not any(s % layout["pitch_multiple_bytes"] for s in outer), "pitch multiple", steps)
        if "order" in layout:
            ranks = [steps[d] for d in layout["order"] if d in steps]
            require(ranks == sorted(ranks, reverse=True), "order of dimensions", (layout["order"], steps))


def allowed(family: str, families: set[str]) -> bool:
    """Row-major belongs to every family: it is what the others change."""
    return family == "none" or family in families or set(family.replace("+", " ").split()) <= families


def strides(tile: Tile, table: np.ndarray) -> dict[int, int]:
    """Bytes between neighbours along each dimension that has some (packed: the bytes of the last)."""
    found = {}
    for d, extent in enumerate(tile.shape):
        step = tile.packed if d == len(tile.shape) - 1 else 1
        if extent > step:
            at = tuple(step if k == d else 0 for k in range(len(tile.shape)))
            found[d] = int(table[at] - table[(0,) * len(tile.shape)])
    return found
