"""The certificate of several tiles: each at its place, and all together."""

import functools
import itertools
import math
from fractions import Fraction

from certificate.bounds import check_bound
from certificate.execution import DIRECT, Case, check_layout
from certificate.problem import (
    alignment,
    check_problem,
    element_bits,
    not_handled,
    require,
    tile_bytes,
    without_lanes,
)
from certificate.tile import check


def check_block(block, given):
    """Print what holds and what is open of several tiles; whether nothing is."""
    require(given["problem"] == block["name"], f"it is of the problem {given['problem']!r}")
    require(given["target"] == block.get("target", "sm_90"), f"it is for {given['target']!r}")
    asked, most = block.get("layout", {}).get("max_bytes"), given["max_bytes"]  # else what the GPU has
    require(asked in (None, most), f"layout.max_bytes is {asked}")
    tiles = {tile["name"]: tile for tile in block["tiles"]}
    if not given["tiles"]:
        require(given["status"] in ("infeasible", "unknown"), f"{given['status']}, without a layout")
        print(f"{given['status']}: NOT CHECKED: {given['reason']}")
        return False
    named = [name for part in given["tiles"] for name in part["tiles"]]
    require(sorted(named) == sorted(tiles), "the tiles are not those of the file")
    excess, bound, elements, places, open_tiles = Fraction(0), Fraction(0), {}, {}, []
    for part in given["tiles"]:
        own, problem = part["certificate"], tile_problem(block, part["tiles"])
        check_problem(problem)
        problem = without_lanes(problem)
        if why := not_handled(problem, own):
            print(f"{', '.join(part['tiles'])}: NOT CHECKED: {why}")
            open_tiles += part["tiles"]
            continue
        print(f"{', '.join(part['tiles'])}:")
        check(problem, own)
        case, found = Case(problem, own), own["layout"]
        require([place["tile"] for place in part["places"]] == part["tiles"], "the places are of other tiles")
        for place in part["places"]:
            name, base, step = place["tile"], place["base_bytes"], place["stage_bytes"]
            stages, count = tiles[name].get("stages", 1), tile_bytes(tiles[name]) // case.size
            require(place["stages"] == stages, f"{name} has {stages} stages")
            size = max(found["byte_offsets"][:count]) + case.size
            places[name] = [(base + k * step, base + k * step + size) for k in range(stages)]
            elements[name] = stages * tile_bytes(tiles[name])
            unit = max((claim["alignment_bytes"] for claim in own.get("hardware", {}).values()), default=1)
            aligned = not any(start % unit for start, _ in places[name])
            require(aligned, f"{name} lies at no multiple of {unit} bytes")
        period = own["banks"] * own["bank_bytes"]
        for shift in {start % period for name in part["tiles"] for start, _ in places[name]} - {0}:
            moved = [at + shift for at in found["byte_offsets"]]
            check_layout(case, {**found, "byte_offsets": moved, "bytes": found["bytes"] + shift})
        excess += Fraction(str(found["excess"]))
        claimed = Fraction(str(own["bound"]["excess"]))
        bound += min(claimed, check_bound(case, own)) if claimed else 0
    check_places(block, places)
    if open_tiles:
        print(f"block: NOT CHECKED: its bytes and excess, for want of {', '.join(open_tiles)}")
        return False
    end = max(stop for spans in places.values() for _, stop in spans)
    require(given["bytes"] == end, f"the tiles end at byte {end}")
    require(most is None or end <= most, f"{end} bytes, more than {most}")
    require(abs(excess - Fraction(str(given["excess"]))) < Fraction(1, 10**6), f"the excess is {excess}")
    print(f"block: {excess} weighted excess in {end} bytes, no byte is of two tiles at a time: checked")
    times = [sum(elements.pop(name) for name in time) for time in block.get("overlay") or ()]
    least = sum(elements.values()) + max(times, default=0)
    closed = [bound >= Fraction(str(given["bound"]["excess"])), end <= least]
    by_hand = given["bound"]["rests_on"].startswith("arithmetic")
    require(closed[0] or not by_hand, f"the bound is {given['bound']['excess']}, arithmetic gives {bound}")
    for holds, what, stated in zip(closed, ("excess", "bytes"), ("bound", "bytes_bound"), strict=True):
        rests = "checked" if holds else "NOT CHECKED, it rests on layoutopt's search"
        print(f"{what}: of all tiles, in {given[stated]['scope']}: {rests}")
    return all(closed)


def whole_tile(tiles):
    """Shape and element of what tiles that share a layout are beginnings of, in bytes, row-major."""
    bits, largest = min(map(element_bits, tiles)), max(tiles, key=tile_bytes)
    smallest = [tile for tile in tiles if element_bits(tile) == bits]
    finest = max(smallest, key=lambda tile: alignment(tile["element"], bits))["element"]
    if tile_bytes(tiles[0]) == tile_bytes(largest):
        return {"shape": tiles[0]["shape"], "element": finest}
    *outer, last = largest["shape"]
    return {"shape": [*outer, last * (element_bits(largest) // bits)], "element": finest}


def viewed(access, tile, whole):
    """The access in the coordinates of `whole`, which begins with the same bytes, row-major."""
    ratio = element_bits(tile) // element_bits(whole)
    same = len(tile["shape"]) == len(whole["shape"]) and tile["shape"][1:] == whole["shape"][1:]
    if (ratio == 1 and same) or "index" not in access:
        return access
    flat = functools.reduce(
        lambda text, at: f"({text})*{at[1]} + ({at[0]})",
        zip(access["index"], tile["shape"], strict=True),
        "0",
    )
    index, inner = [], 1
    for d, extent in reversed([*enumerate(whole["shape"])]):
        index.insert(0, f"({flat})*{ratio} // {inner}" + (f" % {extent}" if d else ""))
        inner *= extent
    return {**access, "index": index}


def tile_problem(block, names):
    """The problem of one of several tiles; of those that share a layout, with the accesses of all."""
    tiles = {tile["name"]: tile for tile in block["tiles"]}
    own, common, mine = tiles[names[0]], block.get("layout", {}), [tiles[name] for name in names]
    for tile in mine:
        check_problem({"name": "", "threads": 1, "accesses": [], "tile": tile})
    whole = whole_tile(mine)
    constraints = own.get("layout", {})
    layout = {field: value for field, value in constraints.items() if value is not None}
    families = [set(c["families"]) for c in (constraints, common) if c.get("families")]
    if families:
        allowed = set.intersection(*families)
        source = constraints.get("families") or common.get("families")
        layout["families"] = [family for family in source if family in allowed]
    aligned = [c["alignment_bytes"] for c in (constraints, common) if c.get("alignment_bytes")]
    pitches = [c["pitch_multiple_bytes"] for c in (constraints, common) if c.get("pitch_multiple_bytes")]
    layout |= {"alignment_bytes": min(aligned)} if aligned else {}
    layout |= {"pitch_multiple_bytes": math.lcm(*pitches)} if pitches else {}
    several = len({tile_bytes(tile) for tile in mine}) > 1 and block.get("same_layout") is not True
    ops = [str(access.get("op")) for access in block["accesses"] if access.get("tile") in names]
    if several and not any(map(DIRECT.fullmatch, ops)):
        # Each is the beginning of the largest, without holes.
        layout.setdefault("order", list(range(len(whole["shape"]))))
    accesses = [
        {field: value for field, value in viewed(access, tiles[name], whole).items() if field != "tile"}
        for name in names
        for access in block["accesses"]
        if access.get("tile") == name
    ]
    problem = {field: block[field] for field in ("threads", "target") if field in block}
    name = f"{block['name']} {names[0]}"
    return {**problem, "name": name, "layout": layout, "accesses": accesses, "tile": whole}


def check_places(block, places):
    """Tiles that live at the same time share no byte."""
    times = [set(time) for time in block.get("overlay") or ()]

    def together(one, other):
        here = [next((t for t, time in enumerate(times) if name in time), None) for name in (one, other)]
        return None in here or here[0] == here[1]

    for one, other in itertools.combinations_with_replacement(places, 2):
        if one != other and not together(one, other):
            continue
        pairs = itertools.product(places[one], places[other])
        pairs = itertools.combinations(places[one], 2) if one == other else pairs
        apart = all(b <= c or d <= a for (a, b), (c, d) in pairs)
        require(apart, f"{one} and {other} share bytes" if one != other else f"stages of {one} share bytes")
