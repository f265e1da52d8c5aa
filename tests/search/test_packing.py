"""Several tiles: the best combination, against every combination of every layout of tiny tiles; the clock."""

import itertools
import json
import random

import numpy as np
import pytest
from command import layoutopt
from conftest import TILE_SETS
from oracle import toy
from oracle.random_tiles import random_case
from written import access_from, constrained, data_of, problem_of, refused_with, saved

from layoutopt import Status, solve
from layoutopt.accesses.trace import trace
from layoutopt.codegen.block import code_of
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data, load
from layoutopt.files.result_file import answer_from_data
from layoutopt.ground.budget import Budget, spending
from layoutopt.hardware.devices import device
from layoutopt.problems.same_layout import groups
from layoutopt.search import block
from layoutopt.search.choices import solve_tile
from layoutopt.search.fronts import explore, plan_of, units_of
from layoutopt.search.packing import Plan
from layoutopt.search.proposal import Ask
from layoutopt.study.block import placed

SMALL = [(2, 4), (3, 3), (2, 6), (4, 2), (3, 4), (2, 2, 2), (12,), (3, 5)]


def ends(plan, sizes, alignments):
    """The end of every order of the blocks, in plain Python."""

    def row(items, at):
        for order in itertools.permutations(items):
            stops = [at]
            for item in order:
                if item == "overlay":
                    times = [[min(row(time, stop)) for time in plan.times] for stop in stops]
                    stops = [max(t) for t in times]
                else:
                    stops = [-(-stop // alignments[item]) * alignments[item] + sizes[item] for stop in stops]
            yield min(stops)

    yield from row([*plan.always, *(["overlay"] if plan.times else [])], 0)


def random_plan(rng, count):
    if count == 1 or rng.random() >= 0.5:
        return Plan(tuple(range(count)))
    cut = rng.randint(1, count - 1)
    times = ((0,), tuple(range(1, cut + 1))) if cut < count - 1 or rng.random() < 0.5 else ((0,),)
    return Plan(tuple(i for i in range(count) if all(i not in time for time in times)), times)


def random_set(seed):
    """Two or three tiny tiles with stages, and what each layout of each costs: (excess, bytes, alignment)."""
    rng = random.Random(seed)
    lanes, banks = rng.choice([(4, 2), (4, 4), (8, 4)])
    tiles, accesses, costs = [], [], []
    count = rng.choice([2, 2, 3])
    for k in range(count):
        while True:
            data, plain, its_lanes, its_banks, families = random_case(rng.randint(0, 10**6))
            if (its_lanes, its_banks) == (lanes, banks) and data["tile"]["shape"] in SMALL:
                break
        families = [f for f in families if f != "matrix"] or ["none"]
        name = f"t{k}"
        layout = {"families": families}
        tiles.append({"name": name, **data["tile"], "stages": rng.choice([1, 1, 2, 3]), "layout": layout})
        accesses += [{**a, "name": f"{name}{a['name']}", "tile": name} for a in data["accesses"]]
        shape = tuple(data["tile"]["shape"])
        widest = max(width for (_, width, _), _ in plain)
        mine = {}
        for allowed, alignment in (
            ([f for f in families if f != "xor"], widest),
            (families, max(widest, 4 * banks)),
        ):
            for offsets in toy.layouts(shape, plain, banks, allowed):
                mine.setdefault(offsets, alignment)
        costs.append({(toy.excess(plain, lanes, o, banks), 4 * (max(o) + 1), n) for o, n in mine.items()})
    plan = random_plan(rng, count)
    data = {
        "name": f"random {seed}", "threads": lanes, "tiles": tiles, "accesses": accesses,
        "overlay": [[f"t{i}" for i in time] for time in plan.times],
    }  # fmt: skip
    return rng, data, plan, costs, toy.toy_device(lanes, banks)


def every_combination(data, plan, costs):
    """Least bytes of every total excess, over every combination of layouts."""
    stages = [tile["stages"] for tile in data["tiles"]]
    found = {}

    def is_useful(cost, among):
        return not any(all(a <= b for a, b in zip(o, cost, strict=True)) and o != cost for o in among)

    for combination in itertools.product(*([c for c in mine if is_useful(c, mine)] for mine in costs)):
        excess = sum(c[0] for c in combination)
        staged = zip(stages, combination, strict=True)
        sizes = [(s - 1) * -(-size // a) * a + size for s, (_, size, a) in staged]
        total = min(ends(plan, sizes, [c[2] for c in combination]))
        found[excess] = min(found.get(excess, total), total)
    return found


@pytest.mark.parametrize("block", range(3))
def test_best_combination(block):
    tighter = 0
    for seed in range(block * 40, block * 40 + 40):
        rng, data, plan, costs, target = random_set(seed)
        if not all(costs):
            assert solve(from_data(data), target=target).status is Status.INFEASIBLE, seed
            continue
        totals = every_combination(data, plan, costs)
        limits = {None, min(totals.values()) - 1, *totals.values(), min(totals.values()) + rng.randint(0, 12)}
        for limit in sorted(limits, key=lambda n: n or 0)[-4:]:
            data["layout"] = {"max_bytes": limit}
            result = solve(from_data(data), target=target)
            fitting = [(e, size) for e, size in totals.items() if limit is None or size <= limit]
            if not fitting:
                assert result.status is Status.INFEASIBLE, (seed, limit)
                assert result.reason
                continue
            assert result.status is Status.OPTIMAL, (seed, limit, result.reason)
            assert (result.weighted_excess, result.bytes) == min(fitting), (seed, limit, result)
            bound = result.proof.objective
            assert (bound.lower_bound, result.proof.bytes.lower_bound) == min(fitting), (seed, limit)
            tighter += min(fitting)[0] > min(totals)
    assert tighter, "some budget forces a tile to a smaller layout"


def gemm(**changes):
    return {**data_of("""64 threads; name gemm
        tile A: 32x24 f16; stages 3
        tile B: 9x9 u8
        fill: store 16 [tid // 3, 8*(tid % 3)]; tile A; where tid < 48
        columns: load 2 [lane, i]; i<24; tile A
        bytes: load 1 [tid % 9, tid // 9]; tile B"""), **changes}  # fmt: skip


def test_every_byte_is_used_once_and_costs_hold_where_the_tile_lies():
    tile_set = from_data(gemm())
    result = solve(tile_set)
    assert result.status is Status.OPTIMAL
    used, gpu = [], device(tile_set.target)
    for (_, problem), part in zip(groups(tile_set), result.tiles, strict=True):
        for stage in range(part.stages):
            table = part.result.layout.table() + part.base_bytes + stage * part.stage_bytes
            assert table.min() % part.result.alignment_bytes == 0 or part.result.layout.swizzle
            used += [table.ravel() + k for k in range(problem.tile.element_bytes)]
            for access, report in zip(trace(problem, gpu).accesses, part.result.accesses, strict=True):
                address = table.ravel()[access.element]
                counts = count_wavefronts(address, access.active, access.operation, access.rule)
                assert int(counts.wavefronts.sum()) == report.wavefronts
    flat = np.concatenate(used)
    assert len(np.unique(flat)) == len(flat)
    assert flat.max() + 1 == result.bytes
    assert result.alignment_bytes == max(p.result.alignment_bytes for p in result.tiles)
    assert result.excess == sum(p.result.excess for p in result.tiles)
    limited = from_data(gemm(layout={"max_bytes": 5000}))
    assert solve(limited) == solve(limited) == solve(limited, workers=2)
    late = solve(tile_set, time_limit=1e-9)
    assert (late.status, "time" in late.reason, late.to_json()["bytes"]) == (Status.UNKNOWN, True, None)


PASSES = data_of("""512 threads; name two passes
    tile first: 32x16 f32
    tile second: 16x32 f32
    write 1: store 4 [tid // 16, tid % 16]; tile first
    read 1: load 4 [tid % 32, tid // 32]; tile first
    write 2: store 4 [tid // 32, tid % 32]; tile second
    read 2: load 4 [tid % 16, tid // 16]; tile second""")


def test_conflict_free_within_a_budget():
    gpu = toy.toy_device(8, 8)
    data = data_of("""64 threads; families none pad
        tile a: 8x8 f32
        tile b: 8x8 f32; stages 2
        rows a: load 4 [warp, lane]; tile a
        columns a: load 4 [lane, warp]; tile a
        rows b: load 4 [warp, lane]; tile b
        columns b: load 4 [lane, warp]; tile b""")
    free = solve(from_data(data), target=gpu, conflict_free=True)
    assert (free.status, free.excess) == (Status.OPTIMAL, 0)
    assert free.bytes == 3 * (7 * 9 + 8) * 4
    data["layout"]["max_bytes"] = free.bytes - 1
    none = solve(from_data(data), target=gpu, conflict_free=True)
    assert none.status is Status.INFEASIBLE
    assert none.tiles == ()
    # Of the two, the one with two stages frees more bytes; either suffices, and costs the same.
    tight = solve(from_data(data), target=gpu)
    got = tight.status, tight.excess, tight.bytes
    assert got == (Status.OPTIMAL, 7 * 8, 2 * 256 + (7 * 9 + 8) * 4)
    data["layout"] = {}
    assert solve(from_data(data), target=gpu).bytes == 3 * 256


def test_packed_elements_and_lanes_that_choose():
    tile_set = problem_of("""32 threads
        tile weights: 32x64 s4; stages 2
        tile bins: 4x32 u32
        rows: store 16 [lane // 2 + 16*i, 32*(lane % 2)]; i<2; tile weights
        columns: load 4 [lane, 8*i]; i<8; tile weights
        count: load 4 [bin, lane]; tile bins; any bin<4""")
    result = solve(tile_set)
    single = [block.solve(problem, device(problem.target)) for _, problem in groups(tile_set)]
    assert [part.result for part in result.tiles] == single
    assert result.bytes == 2 * single[0].bytes + single[1].bytes
    assert result.excess == sum(r.excess for r in single)
    assert result.tiles[1].result.accesses[0].any_is == "worst"


def test_what_no_block_of_the_gpu_has_is_infeasible():
    """232,448 bytes are there on sm_90 where the file says nothing; what it says is kept to."""
    data = data_of("""128 threads; target sm_90
        tile A: 128x128 f32; stages 2
        tile B: 128x128 f32; stages 2
        rows A: store 16 [tid // 32 + 4*i, 4*(tid % 32)]; i<32; tile A
        rows B: store 16 [tid // 32 + 4*i, 4*(tid % 32)]; i<32; tile B""")
    nothing = solve(from_data(data))
    assert (nothing.status, nothing.max_bytes) == (Status.INFEASIBLE, 232448)
    assert "a block of sm_90 has 232448" in nothing.reason
    assert solve(from_data({**data, "layout": {"max_bytes": 300000}})).bytes == 262144
    tiles = [{**tile, "stages": 1} for tile in data["tiles"]]
    less = solve(from_data({**data, "tiles": tiles, "block": {"other_shared_bytes": 101377}}))
    assert (less.status, less.max_bytes) == (Status.INFEASIBLE, 131071)


@pytest.mark.parametrize("path", TILE_SETS, ids=lambda path: path.stem)
def test_files_of_several_tiles(path):
    tile_set = load(path)
    result = solve(tile_set)
    assert result.status is Status.OPTIMAL
    known = tile_set.known_optimum
    assert (result.excess, result.bytes) == (known.excess, known.bytes)


ONE = {"name": "a", "shape": [4, 8], "element": "f32"}
OTHER = {**ONE, "name": "b"}
TOUCH = access_from("rows: load 4 [tid // 8, tid % 8]; tile a")
SHARED = {"overlay": [["a"], ["b"]], "same_layout": True}
LATER = {"tile": "b", "name": "r"}
BROKEN = {
    "same name": ({"tiles": [ONE, ONE]}, "tiles[1].name: 'a' is already the name of tiles[0]"),
    "unknown tile": ({"accesses": [{**TOUCH, "tile": "c"}]}, "accesses[0].tile: no tile is called 'c'; there are a, b"),
    "no tile named": ({"accesses": [access_from("rows: load 4 [tid // 8, tid % 8]")]}, "accesses[0]: object missing required field `tile`"),
    "untouched tile": ({"accesses": [TOUCH]}, "tiles[1]: no access names the tile 'b'"),
    "access named twice": ({"accesses": [TOUCH, {**TOUCH, "tile": "b"}]}, "accesses[1].name: 'rows' is already the name of accesses[0]"),
    "stages": ({"tiles": [{**ONE, "stages": 0}, OTHER]}, "tiles[0].stages: expected `int` >= 1"),
    "element": ({"tiles": [ONE, {**OTHER, "element": "f33"}]}, "tiles[1].element: unknown type 'f33'"),
    "coordinates": ({"accesses": [{**TOUCH, "index": ["tid"]}, {**TOUCH, **LATER}]}, "accesses[0].index: expected one expression for each of 2"),
    "outside its tile": ({"accesses": [TOUCH, {**TOUCH, **LATER, "index": ["tid", "0"]}]}, "accesses[1].index[0]: x0 must lie in 0..3, not 4"),
    "order of all": ({"layout": {"order": [0, 1]}}, "layout.order: belongs to one tile"),
    "offset of all": ({"layout": {"offset": "x0*8 + x1"}}, "layout.offset: belongs to one tile"),
    "offset of one": ({"tiles": [ONE, {**OTHER, "layout": {"offset": "x0*8 + x1"}}]}, "tiles[1].layout.offset: fixes the layout"),
    "no family left": ({"tiles": [{**ONE, "layout": {"families": ["pad"]}}, OTHER], "layout": {"families": ["xor"]}}, "tiles[0].layout.families: pad are allowed here"),
    "overlay of nothing": ({"overlay": [["a"], ["c"]]}, "overlay[1][0]: no tile is called 'c'"),
    "overlay twice": ({"overlay": [["a"], ["b", "a"]]}, "overlay[1][1]: 'a' already stands in overlay[0][0]"),
    "same layout of nothing": ({"same_layout": True}, "same_layout: needs an overlay of two or more times"),
    "same layout, other constraints": ({"tiles": [ONE, {**OTHER, "layout": {"max_bytes": 512}}], **SHARED}, "tiles[1]: same_layout asks for the same layout constraints"),
    "outside, seen through another": ({"tiles": [ONE, {**OTHER, "shape": [8, 4]}], **SHARED}, "accesses[1].index[1]: x1 must lie in 0..3, not 4"),
    "tile, too": ({"tile": {"shape": [4, 8], "element": "f32"}}, "object contains unknown field `tile`"),
}  # fmt: skip


def small(**changes):
    accesses = [TOUCH, {**TOUCH, "tile": "b", "name": "more rows"}]
    return {"name": "two", "threads": 32, "tiles": [ONE, OTHER], "accesses": accesses, **changes}


@pytest.mark.parametrize("case", BROKEN)
def test_errors_name_the_field(case):
    changes, message = BROKEN[case]
    with refused_with(message):
        solve(from_data(small(**changes)))


def test_command_line(tmp_path):
    path = saved(tmp_path, "tiles.json", PASSES)
    table, header = tmp_path / "t.npz", tmp_path / "t.cuh"
    done = layoutopt("solve", path, "--json", "--table", table, "--code", header)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert (next(iter(answer)), answer["schema"]) == ("schema", "layoutopt.arrangement/1")
    expected = solve(load(path))
    assert (answer["status"], answer["bytes"], expected.bytes) == ("optimal", 4096, 4096)
    tables, text = np.load(table), header.read_text()
    for part in expected.tiles:
        (name,) = part.tiles
        assert (tables[name] == part.result.layout.table() + part.base_bytes).all()
        assert f"constexpr uint32_t two_passes_{name}_base = {part.base_bytes};" in text
        assert f"constexpr uint32_t two_passes_{name}_stage_bytes = {part.stage_bytes};" in text
    report = layoutopt("solve", path).stdout
    assert "two passes  2 tiles  on sm_90" in report
    assert "optimal: no bank conflicts, proved best" in report
    for option, value, code in (
        ("--max-bytes", "4095", 1),
        ("--families", "none", 1),
        ("--minimise", "bytes", 0),
        ("--time-limit", "0.000001", 3),
    ):
        assert layoutopt("solve", path, option, value).returncode == code, option


def test_names_that_collide_in_the_code_are_refused():
    accesses = [TOUCH, {**TOUCH, "tile": "a_rows", "name": "more rows"}]
    tile_set = from_data(small(tiles=[ONE, {**ONE, "name": "a_rows"}], accesses=accesses))
    with refused_with("two_a_rows_bytes"):
        code_of("cuda", placed(tile_set, device("sm_90"), solve(tile_set)))


def test_stages_of_bytes_begin_where_their_counts_hold():
    """Whole words would cost three bytes. The halves have their counts at whole words only."""
    byte = "((tid + 64*i) % 544)"
    problem = problem_of(f"""64 threads; families none pad
        tile t0: 32x17 i8; stages 2
        tile t1: 16x8 f16; stages 2
        rows: store 1 [{byte} // 17, {byte} % 17]; i<2; tile t0
        columns: load 1 [{byte} % 32, {byte} // 32]; i<2; tile t0
        turned: store 2 [(tid + 64*i) % 16, (tid + 64*i) // 16]; i<2; tile t1""")
    result = solve(problem)
    assert (str(result.status), result.bytes, result.excess) == ("optimal", 1906, 0)
    assert (result.alignment_bytes, [p.stage_bytes for p in result.tiles]) == (4, [637, 316])


@pytest.mark.parametrize(
    ("change", "field"),
    [({"tiles": []}, "status"), ({"status": "infeasible"}, "status"), ({"tiles": [], "status": "unknown"}, "tiles")],
)  # fmt: skip
def test_an_answer_has_tiles_where_it_says_so(change, field):
    found = solve(from_data(small(tiles=[ONE], accesses=[TOUCH])))
    raw = json.loads(json.dumps(found.to_json()))
    assert answer_from_data(raw).tiles
    with pytest.raises(ProblemFileError) as wrong:
        answer_from_data({**raw, **change})
    assert wrong.value.field == field


@pytest.mark.parametrize(
    ("columns", "seconds", "conflicts", "order"),
    [
        ((64, 32), 1000.0, False, ["T1", "T0", "T1"]),
        ((32, 64), 1000.0, True, ["T0", "T1"]),  # the last had all of the time
        ((64, 32), None, True, ["T1", "T0"]),  # without a limit, nothing is asked again
    ],
)
def test_what_was_cut_short_has_the_time_that_others_leave(columns, seconds, conflicts, order):
    """Tiles of 32 rows, read by rows and by columns; at first the search of T1 ends with row-major."""
    text = "".join(f"""
        tile T{k}: 32x{n} f32
        T{k}_rows: load 4 [0, tid % 32]; tile T{k}
        T{k}_columns: load 4 [tid, 0]; tile T{k}""" for k, n in enumerate(columns))  # fmt: skip
    tile_set, asked, clock = problem_of("32 threads" + text), [], Budget(seconds)
    units = units_of(tile_set, groups(tile_set), device("sm_90"))

    def solver(unit, share, problem):
        asked.append(unit.tiles[0].name)
        if asked[-1] != "T1" or asked.count("T1") > 1:
            return solve_tile(problem, unit.case.device, Ask())
        clock.cut_short()
        plain = solve_tile(constrained(problem, families=("none",)), unit.case.device, Ask())
        return plain.saying(status=Status.FEASIBLE)

    with spending(clock):
        first, second = explore(units, plan_of(tile_set, units), None, solver).points
    assert (first.value, second.value > 0, asked) == (0, conflicts, order)
