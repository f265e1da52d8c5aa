"""Layouts of several tiles under a clock: who has how much of the time."""

import msgspec
from written import reads

from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import device
from layoutopt.problems.answer import Status
from layoutopt.search.fronts import explore, plan_of, units_of
from layoutopt.search.solve import solve


def transposes(*columns):
    """Tiles of 32 rows, each read by rows and by columns."""
    accesses = [
        reads(f"{tile}_{way}", 4, index, tile=tile)
        for tile in (f"T{k}" for k in range(len(columns)))
        for way, index in (("rows", ["0", "tid % 32"]), ("columns", ["tid", "0"]))
    ]
    tiles = [{"name": f"T{k}", "shape": [32, n], "element": "f32"} for k, n in enumerate(columns)]
    return from_data({"name": "set", "tiles": tiles, "threads": 32, "accesses": accesses})


def explored(tile_set, clock, cut_short):
    """The excess of each tile, and who was solved: `cut_short` gives nothing but row-major at first."""
    gpu = device("sm_90")
    units = units_of(tile_set, gpu)
    asked = []

    def solver(unit, share, problem):
        name = unit.tiles[0].name
        asked.append(name)
        if name not in cut_short or asked.count(name) > 1:
            return solve(problem)
        clock.cut_short()
        plain = msgspec.structs.replace(problem.layout, families=("none",))
        found = solve(msgspec.structs.replace(problem, layout=plain))
        return msgspec.structs.replace(found, status=Status.FEASIBLE)

    choice = explore(units, plan_of(tile_set, units), None, solver, clock)
    return [int(point.value) for point in choice.points], asked


def test_what_was_cut_short_has_the_time_that_others_leave():
    assert explored(transposes(64, 32), Budget(1000.0), {"T1"}) == ([0, 0], ["T1", "T0", "T1"])


def test_the_last_had_all_of_the_time():
    excess, asked = explored(transposes(32, 64), Budget(1000.0), {"T1"})
    assert excess[1] > 0
    assert asked == ["T0", "T1"]


def test_without_a_limit_nothing_is_asked_again():
    excess, asked = explored(transposes(64, 32), Budget(), {"T1"})
    assert excess[1] > 0
    assert asked == ["T1", "T0"]
