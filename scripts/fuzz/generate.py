"""Random problem files of every feature, small enough to be evaluated lane by lane."""

import math
import random

from oracle.problem_file import NAMED, PACKED, Hardware, Tile, device_of, hardware

FAMILIES = ["none", "order", "pad", "split", "interval", "rotate", "xor", "matrix", "table"]
TARGETS = ["sm_90"] * 8 + [
    "sm_80", "a100", "sm_75", "sm_100", "sm_50", "sm_10", "sm_20", "sm_30", "sm_30_8byte",
    "gfx9", "gfx942", "gfx950", "gfx1100", "gfx1201",
]  # fmt: skip
WITHOUT_LANES = ("tma", "wgmma", "tcgen05", "cp.async.bulk")
MAX_LANE_ACCESSES = 6000


def random_target(rng: random.Random) -> str:
    """A GPU of the package's, sm_90 most often."""
    return rng.choice(TARGETS)


def toy_devices(rng: random.Random) -> dict:
    """A device file of one or two devices of a few lanes and banks."""
    devices = []
    for k in range(rng.choice([1, 1, 2])):
        lanes, banks = rng.choice([8, 8, 8, 16]), rng.choice([2, 4, 4, 8, 16])
        rows = [
            {"ops": ["load", "store"], "bytes": [1, 2, 4], "phase": lanes},
            {"ops": ["load", "store"], "bytes": [8], "phase": max(1, lanes // 2)},
            {"ops": ["load", "store"], "bytes": [16], "phase": max(1, lanes // 4)},
            {"ops": ["atomic"], "bytes": [4], "phase": lanes, "count": "lanes"},
            {"ops": ["reduce"], "bytes": [4], "phase": lanes},
        ]
        if lanes >= 4 and rng.random() < 0.3:
            rows.append({"ops": ["load"], "bytes": [8], "phase": lanes // 2, "merge": "pairs"})
        if rng.random() < 0.15:
            order, half = rng.sample(range(lanes), lanes), lanes // 2
            halves = [sorted(order[:half]), sorted(order[half:])]
            rows.append({"ops": ["load"], "bytes": [4], "phase": halves})
        if rng.random() < 0.1:
            rows.append({"ops": ["store"], "bytes": [4], "phase": lanes, "banks": 2 * banks})
        if rng.random() < 0.05:
            rows[1] |= {"split_words": True}
        if rng.random() < 0.05:
            rows[0] |= {"row_words": 2 * banks}
        about = {"confidence": "inferred", "source": "made up"}
        head = {"name": f"toy{k}", "title": "toy", "aliases": [], "lanes": lanes, "banks": banks}
        devices.append({**head, "bank_bytes": 4, "instructions": [row | about for row in rows]})
    return {"schema": "layoutopt.devices/1", "devices": devices}


def random_tile(rng: random.Random, most: int, toy: bool) -> tuple[list[int], object]:
    """Shape of at most about `most` elements, and an element."""
    kind = rng.random()
    if kind < 0.5:
        names = rng.choice(list(NAMED.values())[:4] if toy else list(NAMED.values()))
        element: object = rng.choice([*names.split(), "f32"])
    elif kind < 0.85:
        element = {"bytes": rng.randint(1, 16)}
        if rng.random() < 0.4:
            most_aligned = element["bytes"] & -element["bytes"]
            element["align"] = rng.choice([a for a in (1, 2, 4, 8, 16) if a <= most_aligned])
    else:
        element = rng.choice(" ".join(PACKED.values()).split())
    dims = rng.choice([1, 1, 2, 2, 2, 2, 2, 3, 3, 4] + ([5, 6, 7, 8] if rng.random() < 0.15 else []))
    extents = [1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 12, 16, 16, 16, 17, 20, 31, 32, 32, 32, 33, 48, 64, 64]
    if rng.random() < 0.4:
        extents = [4, 8, 16, 32, 64]
    shape: list[int] = []
    for _ in range(dims):
        left = most // math.prod(shape)
        shape.append(rng.choice([n for n in extents if n <= max(1, left) and (dims <= 3 or n <= 8)] or [1]))
    rng.shuffle(shape)
    packed = Tile((1,), element).packed
    if shape[-1] % packed:
        shape[-1] = packed * max(1, shape[-1] // packed)
    return shape, element


def named(rng: random.Random) -> dict:
    """The start of a problem."""
    return {"schema": "layoutopt.problem/1", "name": f"fuzz{rng.randrange(10**6)}"}


class Maker:
    """One random problem, field by field."""

    def __init__(self, rng: random.Random, target: str, device: Hardware, *, toy: bool = False) -> None:
        self.rng, self.toy, self.target, self.device = rng, toy, target, device

    def problem(self) -> dict:
        rng = self.rng
        sizes = [6, 8, 16, 24, 32, 64, 128] if self.toy else [16, 64, 128, 256, 512, 1024, 1024, 2048, 4096]
        shape, element = random_tile(rng, rng.choice(sizes), self.toy)
        # A tile written one way and read another: what the project is for, and where the proofs are.
        self.transpose = rng.random() < 0.4
        if self.transpose:
            extents = [4, 6, 8] if self.toy else [8, 16, 16, 20, 24, 32, 32, 33, 64]
            shape = [rng.choice(extents) for _ in range(rng.choice([2, 2, 2, 3] if self.toy else [2]))]
            element = rng.choice(["f32", "f32", "f16", "f64", "i8", {"bytes": 4 * rng.randint(1, 4)}])
        self.tile = Tile(tuple(shape), element)
        lanes = self.device.lanes
        self.threads = rng.choice([lanes, 2 * lanes, 4 * lanes])
        if not self.transpose:
            few = lanes // 2 or 1
            self.threads = rng.choice([lanes, lanes, lanes, 2 * lanes, 4 * lanes, few, lanes + 3, 1])
        problem = named(rng) | {"target": self.target, "tile": {"shape": shape, "element": element}}
        problem["threads"] = self.threads
        self.has_any = not self.tile.packed > 1 and rng.random() < 0.06
        problem["accesses"] = [self.access(k) for k in range(rng.choice([1, 2, 2, 2, 3, 3, 4]))]
        if rng.random() < 0.4:
            problem["layout"] = self.constraints()
        if rng.random() < 0.1:
            self.publish(problem)
        return problem

    def publish(self, problem: dict) -> None:
        """A row-major layout with a pad as the one in use."""
        pitch, terms = self.rng.randint(0, 2) * (4 if self.tile.size < 4 else 1) * self.tile.packed, []
        for d in reversed(range(len(self.tile.shape))):
            terms.append(f"x{d}*{pitch}" if terms else f"x{d}")
            pitch = pitch * self.tile.shape[d] if len(terms) > 1 else pitch + self.tile.shape[d]
        problem["published"] = {"offset": " + ".join(terms), "bytes": self.tile.tight_bytes}

    def access(self, number: int) -> dict:
        rng = self.rng
        ops = self.ops()
        op, width = rng.choice(ops)
        entry: dict = {"name": f"a{number}", "op": op}
        if "matrix" not in op:
            entry["bytes"] = width
            size = self.tile.size
            narrower = [w for o, w in ops if o == op and w < width and not width % w and not w % size]
            if narrower and not self.has_any and rng.random() < 0.15:
                some = rng.sample(narrower, rng.randint(1, len(narrower)))
                entry["bytes"] = sorted({width, *some}, reverse=True)
        names = rng.sample(["i", "j", "kk"], rng.choice([0, 0, 1, 1, 2]))
        loops = {v: rng.choice([1, 2, 3, 4]) for v in names}
        free = {}
        if self.has_any and number == 0 and width <= 4:
            free = {"b": rng.choice([2, 3, 4, 8, 16])}
        while math.prod(loops.values()) * max(self.threads, 8) * math.prod(free.values()) > MAX_LANE_ACCESSES:
            loops = dict(list(loops.items())[1:])
        self.order = list(range(len(self.tile.shape)))
        if not self.transpose or number > 1:
            rng.shuffle(self.order)
        elif number == 0:
            self.order.reverse()
        entry["index"] = self.index(width, [*loops, *free, *free], bool(free), set(loops))
        if loops:
            entry["for"] = loops
        if free:
            entry |= {"any": free, "any_is": rng.choice(["worst", "worst", "uniform"])}
        if "matrix" not in op and rng.random() < (0.05 if self.transpose else 0.2):
            entry["where"] = rng.choice([
                "tid % 3 != 1", f"lane < {rng.randint(1, self.device.lanes)}",
                "(tid ^ 5) & 3 and tid % 2 == 0 or tid == 0", "not (lane % 4 == 1)", "0 <= tid - 1 < 7",
                "warp == 0", "tid < 1",
            ])  # fmt: skip
        if rng.random() < 0.25:
            entry["weight"] = rng.choice([2, 3, 0, 0.5, 7, 2.5, 1e3] + [f"1 + {v}" for v in loops])
        return entry

    def ops(self) -> list[tuple[str, int]]:
        """Operations with widths that the device has and the tile can hold."""
        size, line = self.tile.size, self.tile.shape[-1] // self.tile.packed * self.tile.size
        found = []
        for kind, width in self.device.rules:
            if kind in WITHOUT_LANES:
                continue
            if width > size and (width % size or width > line):
                continue
            if kind in ("ldmatrix", "stmatrix"):
                if self.threads % self.device.lanes == 0:
                    count, turned = self.rng.choice([1, 2, 4]), self.rng.choice(["", ".trans"])
                    found.append((f"{kind}.x{count}{turned}", 16))
            else:
                either = kind.startswith("cp.async") and self.rng.random() < 0.5  # the width decides which
                found.append(("cp.async" if either else kind, width))
        plain = [f for f in found if f[0] in ("load", "store")]
        if not found:
            return [("load", min(4, self.tile.size & -self.tile.size))]
        return plain if plain and self.rng.random() < 0.6 else found

    def index(self, width: int, loops: list[str], free: bool, counted: set[str]) -> list[str]:
        rng, shape = self.rng, self.tile.shape
        span = max(1, width * self.tile.packed // self.tile.size)
        columns = shape[-1] // span
        aligned = rng.random() < 0.96 or self.tile.packed > 1
        extents = [*shape[:-1], columns if aligned else shape[-1] - span + 1]
        texts = []
        names = rng.choice([["tid"], ["tid"], ["lane", "warp"], ["lane"]])
        linear = self.linear(names, loops)
        below, made = 1, {}
        for d in self.order:
            made[d] = self.digit(linear, below, extents[d], names, loops)
            below *= extents[d]
        for d, extent in enumerate(extents):
            text = made[d] if extent > 1 else "0"
            if d == len(extents) - 1 and aligned and span > 1:
                text = f"{span}*({text})" if extent > 1 else "0"
            texts.append(text if rng.random() < 0.9 or not text.isdigit() else int(text))
        if free and not any("b" in str(t) for t in texts):
            d = rng.randrange(len(texts))
            texts[d] = f"b % {extents[d]}" + (f" * {span}" if d == len(extents) - 1 and aligned else "")
        return texts

    def linear(self, names: list[str], loops: list[str]) -> str:
        rng = self.rng
        terms = list(names[:1])
        if "warp" in names:
            terms.append(f"{rng.choice([self.device.lanes, 8, 1])}*warp")
        scale = rng.choice([1, 2, 4, 8, self.device.lanes, self.threads])
        for v in dict.fromkeys(loops):
            terms.append(f"{scale}*{v}" if scale > 1 else v)
            scale *= rng.choice([2, 4])
        return " + ".join(terms)

    def digit(self, linear: str, below: int, extent: int, names: list[str], loops: list[str]) -> str:
        """An expression of values in range(extent)."""
        rng, kind = self.rng, self.rng.random() * (0.65 if self.transpose else 1)
        plain = f"({linear}) // {below}" if below > 1 else f"({linear})"
        if kind < 0.6:
            return f"{plain} % {extent}"
        name = rng.choice([*names, *loops])
        if kind < 0.7:
            return f"({plain} + {rng.choice([name, '(' + name + ' // 4)', '3*' + name])}) % {extent}"
        if kind < 0.76:
            return f"({rng.choice([2, 3, 5, 8])}*{name} + {rng.randrange(4)}) % {extent}"
        if kind < 0.82:
            return f"({plain} ^ {name}) % {extent}"
        if kind < 0.87:
            return f"min({name}, {extent - 1})"
        if kind < 0.91:
            return f"max(0, {extent - 1} - {name})"
        if kind < 0.95:
            return f"({name} % {extent} if {name} & 1 else {plain} % {extent})"
        return str(rng.randrange(extent))

    def constraints(self) -> dict:
        rng, tile, found = self.rng, self.tile, {}
        if rng.random() < 0.5:
            found["families"] = sorted(rng.sample(FAMILIES, rng.randint(1, 5)), key=FAMILIES.index)
        if rng.random() < 0.3:
            tight = tile.tight_bytes
            some = [tight - 1, tight, tight + tile.size, tight * 5 // 4, 2 * tight]
            found["max_bytes"] = max(1, rng.choice(some))
        if rng.random() < 0.15:
            found["pitch_multiple_bytes"] = rng.choice([4, 8, 16, 3 * tile.size, tile.size])
        if rng.random() < 0.15:
            found["order"] = rng.sample(range(len(tile.shape)), len(tile.shape))
        if rng.random() < 0.25:
            found["alignment_bytes"] = rng.choice([1, 2, 4, 8, 16, 32, 128, 1024])
        if rng.random() < 0.2:
            found["minimise"] = rng.choice(["bytes", "instructions", "excess"])
        return found


def random_problem(rng: random.Random, toy: float) -> tuple[dict, dict | None]:
    """A problem of one tile for a GPU of the package, or for a toy device and the file of it."""
    if rng.random() < toy:
        devices = toy_devices(rng)
        target = rng.choice(devices["devices"])["name"]
        return Maker(rng, target, device_of(devices, target), toy=True).problem(), devices
    target = random_target(rng)
    return Maker(rng, target, hardware(target)).problem(), None


def share(rng: random.Random, problem: dict) -> None:
    """One more tile that shares the first's layout: as many columns, more rows or fewer stages."""
    first = problem["tiles"][0]
    rows, *rest = first["shape"]
    shape = [rows + rng.choice([0, 1, 3, rows]), *rest]
    problem["tiles"].append({**first, "name": "S", "shape": shape, "stages": rng.randint(1, 2)})
    problem["accesses"] += [
        {**access, "name": f"S{access['name']}", "tile": "S"}
        for access in problem["accesses"]
        if access["tile"] == first["name"]
    ]
    problem["same_layout"] = [[first["name"], "S"]]


def random_tile_set(rng: random.Random) -> dict:
    """Two or three tiles with stages and perhaps an overlay."""
    makers, tiles, entries = [], [], []
    target = rng.choice(TARGETS[:12])
    threads = None
    for k in range(rng.choice([2, 2, 3])):
        maker = Maker(rng, target, hardware(target))
        single = maker.problem()
        while any("any" in str(a) or isinstance(a.get("bytes"), list) for a in single["accesses"]):
            single = maker.problem()
        threads = threads or single["threads"]
        makers.append(maker)
        tiles.append({"name": f"T{k}", **single["tile"]})
        if rng.random() < 0.4:
            tiles[-1]["stages"] = rng.randint(2, 3)
        for access in single["accesses"]:
            if "matrix" in access["op"] and threads % maker.device.lanes:
                continue
            entries.append({**access, "name": f"T{k}{access['name']}", "tile": f"T{k}"})
    problem = named(rng) | {"target": target, "tiles": tiles, "threads": threads, "accesses": entries}
    if rng.random() < 0.4:
        names = [t["name"] for t in tiles]
        problem["overlay"] = [names[:1], names[1:2]] if rng.random() < 0.5 else [names[:1], names[1:]]
    elif rng.random() < 0.3:
        share(rng, problem)
    layout = {}
    if rng.random() < 0.4:
        tight = sum(m.tile.tight_bytes * t.get("stages", 1) for m, t in zip(makers, tiles, strict=False))
        layout["max_bytes"] = max(1, rng.choice([tight // 2, tight, tight + 16, tight * 5 // 4]))
    if rng.random() < 0.2:
        layout["families"] = sorted(rng.sample(FAMILIES, rng.randint(1, 5)), key=FAMILIES.index)
    if rng.random() < 0.1:
        layout["alignment_bytes"] = rng.choice([4, 16, 128])
    return problem | ({"layout": layout} if layout else {})
