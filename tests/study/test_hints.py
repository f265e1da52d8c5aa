"""What `solve` prints beside its answer: what would do better, and what it cannot estimate."""

import json

import pytest
from command import layoutopt
from msgspec.structs import replace
from written import data_of, problem_of, rows_of, saved

from layoutopt import compare, explain, load, problem, solve
from layoutopt.engine.case import case_of
from layoutopt.engine.estimate import why_no_estimate
from layoutopt.files.catalogue import find
from layoutopt.ground.budget import Budget, spending
from layoutopt.hardware.devices import device
from layoutopt.search import block
from layoutopt.study.solve import other_instructions, with_faster, with_hints


def hint_of(asked):
    found = solve(asked)
    with spending(Budget(60)):
        (hint,) = with_hints(asked, found, device(asked.target)).hints
    return found, hint


def test_narrower_accesses_that_have_fewer_wavefronts_are_said_with_what_to_type():
    """The file stores 16 bytes a lane, so that columns of words conflict in every layout."""
    path = find("leimao_vectorised_swizzled_f32")
    found, hint = hint_of(load(path))
    assert found.excess == 384
    assert hint.startswith('"bytes": [16, 4] for `store_rows_vec`: 384 fewer wavefronts, x')
    data = json.loads(path.read_text())
    data["accesses"][0] |= {"bytes": [16, 4]}
    wide, narrow = (sum(a.wavefronts for a in result.accesses) for result in (found, solve(problem(data))))
    assert wide - narrow == 384
    assert hint in layoutopt("solve", path, "--time-limit", "60").stdout
    assert json.loads(layoutopt("solve", path, "--time-limit", "60", "--json").stdout)["hints"] == [hint]


def test_widths_that_the_file_leaves_open_are_not_told_again():
    asked = load("leimao_vectorised_swizzled_f32")
    (fixed, *others) = asked.accesses
    others[-1] = replace(others[-1], bytes=(others[-1].bytes, 4) if others[-1].bytes != 4 else (4,))
    told = explain(replace(asked, accesses=(fixed, *others)), time_limit=60)
    assert "narrower" in [relaxation.kind for relaxation in told.relaxations]


@pytest.mark.parametrize(("trips", "said"), [(4, ()), (3, ("[24, 0]",))])
def test_what_is_read_and_never_written_is_said(trips, said):
    asked = problem_of(f"""32x32 f32, 256 threads
        rows: store 4 [tid // 32 + 8*i, tid % 32]; i<{trips}
        columns: load 4 [tid % 32, tid // 32 + 8*j]; j<4""")
    hints = solve(asked).hints
    expected = [
        f"`columns` reads elements that no access writes, such as {s}: is a loop too short?" for s in said
    ]
    assert list(hints) == expected


def test_an_answer_that_takes_all_of_the_time_has_its_estimate():
    asked = load("transpose_32x32_f32")
    answer = block.solve(asked, time_limit=None)
    with spending(Budget(0)):
        assert with_faster(asked, answer, device(asked.target), None).estimate is not None


def test_other_instructions_are_said_where_no_width_helps():
    """A store of words, which may be wider or have its values in another order; narrower it cannot be."""
    asked = load("gemm4bit_b_128x64_bf16")
    found, hint = hint_of(asked)
    assert found.excess == 384
    saved = 'with `"instructions": "free"` 640 wavefronts instead of 1,024: '
    saved += "`dequant_store` 16 x store 4 bytes -> 4 x store 16 bytes"
    assert hint == saved
    free = [replace(a, values="free") if a.name == "dequant_store" else a for a in asked.accesses]
    assert solve(replace(asked, accesses=tuple(free))).excess == 0


def test_what_scalar_loads_of_a_loop_would_take_as_vectors():
    """The fill and the eight loads of a column of an SGEMM, as `import kernel` has them; rows are as they are."""
    fill, read = (
        "fill: store 4 [tid // 8 + i*32, tid % 8]; i<4",
        "read: load 4 [tid // 16 * 8 + i % 8, i // 8]; i<64",
    )
    text = other_instructions(problem_of("128x8 f32, 256 threads", fill, read))
    assert text is not None
    assert text.startswith('with `"instructions": "free"` 288 wavefronts instead of 544: ')
    assert "`read` 64 x load 4 bytes -> 16 x load 16 bytes" in text
    rows = problem_of("8x128 f32, 256 threads", "read: load 4 [i // 8, tid % 16 + i % 8 * 16]; i<64")
    assert other_instructions(rows) is None
    assert (
        other_instructions(problem_of("32x32 f32, 256 threads", "a: load 16 [tid // 8, tid % 8 * 4]")) is None
    )


@pytest.mark.parametrize("access", ["16|8 [tid % 32, 4*(tid // 32)]", "16 [tid // 8, 4*(tid % 8)]"])
def test_nothing_is_said_where_widths_are_open_or_nothing_conflicts(access, tmp_path):
    path = saved(tmp_path, "p.json", data_of("32x32 f32, 256 threads", f"a: store {access}"))
    assert json.loads(layoutopt("solve", path, "--time-limit", "60", "--json").stdout)["hints"] == []


def test_the_estimate_of_loops_that_diverge_is_not_made_and_recommends_nothing():
    """Estimated 5,420 and 5,372 cycles, where an H200 takes 18,652 and 3,618."""
    path = find("rodinia_lud_diagonal_16_f32")
    asked, said = load(path), "480 iterations of loads run under predicates that their loops change"
    assert why_no_estimate(case_of(asked, device("sm_90"))) == said
    answer = layoutopt("solve", path, "--time-limit", "60").stdout
    assert f"no time is estimated, as {said}" in answer
    assert "cycles a pass" not in answer
    found = compare(asked, time_limit=10)
    assert all(row.cycles is None and row.time is None for row in found.rows)
    assert found.no_estimate == said
    assert f"no time is estimated, as {said}, so wavefronts decide" in found.recommendation.text
    taken = rows_of(found)[found.recommendation.family]
    assert taken.wavefronts == min(row.wavefronts for row in found.rows if row.wavefronts is not None)
    first = layoutopt("solve", path, "--minimise", "time", "--json")
    assert (first.returncode, json.loads(first.stdout)["estimate"]) == (0, None)
    same = problem_of("128x32 f32, 32 threads", "a: load 4 [i, tid]; i<128; where tid < 8")
    assert why_no_estimate(case_of(same, device("sm_90"))) is None  # lanes that stay the same
