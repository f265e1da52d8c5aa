"""The certificate of several tiles: each at its place, and all together."""

import functools
import itertools
import math
from fractions import Fraction

from certificate.bounds import check_bound
from certificate.execution import DIRECT, Case, check_layout
from certificate.form import BLOCK, PART, check_form
from certificate.hardware import room
from certificate.problem import (
    TOLERANCE,
    alignment,
    check_fields,
    check_problem,
    element_bits,
    left_open,
    require,
    say,
    tile_bytes,
    without_lanes,
)
from certificate.subject import check_digest, check_scope_of_tiles
from certificate.tile import WIDEST_BYTES, check, not_checked


def check_block(block, given, devices):
    """Print what holds and what is open of several tiles; whether nothing is."""
    return all([check_together(block, given, devices), check_digest(block, given)])


def check_together(block, given, devices):
    """The same but for the digest."""
    check_form(given, BLOCK)
    check_fields(block, "block")
    for tile in block["tiles"]:
        check_fields(tile, "named tile")
        check_fields(tile.get("layout"), "layout")
    target, most = block.get("target", "sm_90"), given["max_bytes"]
    require(given["problem"] == block["name"], f"it is of the problem {given['problem']!r}")
    require(given["target"] == target, f"it is for {given['target']!r}")
    about = [check_scope_of_tiles(given[bound], most) for bound in ("bound", "bytes_bound")]
    limit = block.get("layout", {}).get("max_bytes") or room(block, devices.get(target.lower()))
    require(limit in (None, most), f"the tiles have {limit} bytes, not {most}")
    status, found = given["status"], bool(given["tiles"])
    require(status in ("optimal", "feasible", "infeasible", "unknown"), f"no status: {status!r}")
    require(found == (status in ("optimal", "feasible")), f"{status}, with{'' if found else 'out'} layouts")
    if not found:
        return check_none(given, least_bytes(block), limit) and all(about)
    check_groups(block, given["tiles"])
    alike = all(part["certificate"].get("digest") == given.get("digest") for part in given["tiles"])
    require(alike, "the certificate of a tile is of another file")
    checked = [check_tiles(block, part, devices) for part in given["tiles"]]
    places = {name: spans for part in checked if part for name, spans in part[2].items()}
    check_places(block, places)
    if not all(checked):
        unread = [part["tiles"] for part, found in zip(given["tiles"], checked, strict=True) if not found]
        left_out = itertools.chain(*unread)
        return left_open(f"block: NOT CHECKED: its bytes and excess, for want of {', '.join(left_out)}")
    excess, bound = (sum(part[k] for part in checked) for k in (0, 1))
    end = max(stop for spans in places.values() for _, stop in spans)
    require(given["bytes"] == end, f"the tiles end at byte {end}")
    require(most is None or end <= most, f"{end} bytes, more than {most}")
    require(abs(excess - Fraction(str(given["excess"]))) < TOLERANCE, f"the excess is {excess}")
    for part in given["tiles"]:
        check_part(part)
    closed = [*about, *(part[3] for part in checked)]
    return check_bounds(block, given, (excess, bound, end)) and all(closed)


def check_groups(block, parts):
    """The tiles are those of the file, and those that share a layout are together."""
    names, same = [tile["name"] for tile in block["tiles"]], block.get("same_layout") or []
    groups = [names] if same is True else [*same]
    groups += [[name] for name in names if not any(name in group for group in groups)]
    for part in parts:
        check_form(part, PART)
    given = sorted(sorted(part["tiles"]) for part in parts)
    require(given == sorted(map(sorted, groups)), "the tiles are not those of the file")


def check_tiles(block, part, devices):
    """Excess, bound and places of the tiles of one layout, and whether nothing of it is open.

    Nothing, where its accesses are not read here.
    """
    own, problem, names = part["certificate"], tile_problem(block, part["tiles"]), ", ".join(part["tiles"])
    tiles = {tile["name"]: tile for tile in block["tiles"]}
    check_problem(problem)
    problem = without_lanes(problem)
    if why := not_checked(problem, own, devices):
        say(f"{names}: NOT CHECKED: {why}")
        return None
    say(f"{names}:")
    asked = {name for tile in part["tiles"] for name in tiles[tile].get("layout", {})}
    complete = check(problem, own, devices, implied={"order"} - asked)
    case, found, places = Case(problem, own), own["layout"], {}
    require(found is not None, f"{names}: no layout")
    require([place["tile"] for place in part["places"]] == part["tiles"], "the places are of other tiles")
    for place in part["places"]:
        name, base, step = place["tile"], place["base_bytes"], place["stage_bytes"]
        stages, count = tiles[name].get("stages", 1), tile_bytes(tiles[name]) // case.size
        require(place["stages"] == stages, f"{name} has {stages} stages")
        size = max(found["byte_offsets"][:count]) + case.size
        require(place["bytes"] == size <= step, f"{name} takes {size} bytes")
        whole = max(case.align, *(rule["bytes"] for rule in own["served"].values()))
        require(step % whole == 0, f"{name} has accesses of {whole} bytes in each stage")
        places[name] = [(base + k * step, base + k * step + size) for k in range(stages)]
        unit = max((claim["alignment_bytes"] for claim in own["hardware"].values()), default=1)
        aligned = not any(start % unit for start, _ in places[name])
        require(aligned, f"{name} lies at no multiple of {unit} bytes")
    period = math.lcm(own["banks"] * own["bank_bytes"], WIDEST_BYTES)
    for shift in {start % period for spans in places.values() for start, _ in spans} - {0}:
        moved = [at + shift for at in found["byte_offsets"]]
        there = {**found, "byte_offsets": moved, "bytes": found["bytes"] + shift}
        check_layout(case, there, shift, problem.get("layout", {}).get("alignment_bytes"))
    claimed = Fraction(str(own["bound"]["excess"]))
    bound = min(claimed, check_bound(case, own)) if claimed else Fraction(0)
    return Fraction(str(found["excess"])), bound, places, complete


def check_bounds(block, given, reached):
    """Print which bounds of all tiles are arithmetic; whether both are."""
    excess, bound, end = reached
    claimed, at_least = Fraction(str(given["bound"]["excess"])), given["bytes_bound"]["at_least"]
    require(claimed <= excess + TOLERANCE, f"the layouts have less excess than {claimed}")
    require(at_least <= end, f"the layouts have fewer bytes than {at_least}")
    best = excess - claimed < TOLERANCE and at_least == end
    require(best or given["status"] != "optimal", "optimal, but the bounds are lower")
    say(f"block: {excess} weighted excess in {end} bytes, no byte is of two tiles at a time: checked")
    closed = [bound >= claimed, at_least <= least_bytes(block)]
    by_hand = given["bound"]["rests_on"].startswith("arithmetic")
    require(closed[0] or not by_hand, f"the bound is {claimed}, arithmetic gives {bound}")
    for holds, what, stated in zip(closed, ("excess", "bytes"), ("bound", "bytes_bound"), strict=True):
        rests = "checked" if holds else "NOT CHECKED, it rests on layoutopt's search"
        say(f"{what}: of all tiles, in {given[stated]['scope']}: {rests}")
    return all(closed)


def least_bytes(block):
    """Bytes of the elements of all tiles and stages that live at one time, at most."""
    elements = {tile["name"]: tile.get("stages", 1) * tile_bytes(tile) for tile in block["tiles"]}
    times = [sum(elements.pop(name) for name in time) for time in block.get("overlay") or ()]
    return sum(elements.values()) + max(times, default=0)


def check_none(given, least, limit):
    """Print why there are no layouts; whether arithmetic refutes them."""
    require(given["bytes"] is None and given["excess"] is None, "bytes or excess, without a layout")
    open_bound = given["bound"]["excess"] > 0 or given["bytes_bound"]["at_least"] > least
    if given["status"] == "infeasible" and limit is not None and limit < least and not open_bound:
        say(f"infeasible: the elements alone take {least} bytes, more than {limit}: checked")
        return True
    return left_open(f"{given['status']}: NOT CHECKED: {given.get('reason')}")


def check_part(part):
    """That what is said of tiles which share a layout is what their places say."""
    places = part["places"]
    bases, stages = [place["base_bytes"] for place in places], [place["stages"] for place in places]
    require(part["bases_bytes"] == bases and part["base_bytes"] == bases[0], f"the tiles begin at {bases}")
    count = max(stages) if len(set(bases)) < len(bases) else sum(stages)
    require(part["stages"] == count, f"{', '.join(part['tiles'])}: {count} stages")
    step = max(place["stage_bytes"] for place in places)
    require(
        part["stage_bytes"] == step, f"{', '.join(part['tiles'])}: {step} bytes from one stage to the next"
    )


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
    layout |= {"minimise": common["minimise"]} if common.get("minimise") else {}
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
