"""The code, the edits and the self-test of placed tiles: of several, where each lies, then those of each."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from layoutopt import __version__
from layoutopt.codegen import selftest
from layoutopt.codegen.edit import edit, edit_text
from layoutopt.codegen.languages import code, plan_for, run_plan
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.codegen.plan import Part as Only
from layoutopt.codegen.registry import LANGUAGES, Language
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.ground.escape import comment, described, identifier
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, Result
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Block, Problem, Resources
from layoutopt.search.block import solve
from layoutopt.study.block import Part, Placed, placed
from layoutopt.study.known import check_answer


def emit(
    problem: Problem | Block,
    layout: Result | Arrangement | str | None = None,
    *,
    lang: str = "cuda",
    target: Device | str | None = None,
    time_limit: float | None = None,
) -> str:
    """A layout as code: the offset of an element, and the addresses of each access.

    Args:
        problem: the tile and its accesses, or several.
        layout: an answer of `solve`; or, of one tile, element offsets as an expression over x0, x1, ...; None
            solves.
        lang: cuda, hip, opencl, c, cute, gluon, tilelang or numba.
        target: the device or its name, where it is not the one the problem names.
        time_limit: seconds to solve; None for no limit.

    Raises:
        LayoutError: there is no layout, or the language cannot express it.
        ProblemFileError: there is no such language, the result is not one of this problem and device, or the
            problem contradicts itself.
    """
    if not isinstance(lang, str) or lang not in LANGUAGES:
        raise ProblemFileError("lang", f"expected one of {', '.join(LANGUAGES)}, got {described(lang)}")
    gpu = target_of(problem, target)
    if layout is not None and not isinstance(layout, str):
        check_answer(problem, gpu, layout)
    if isinstance(layout, str) and isinstance(problem, Block):
        raise ProblemFileError("layout", "a formula is for one tile; of several, the answer of solve")
    answer = layout if layout is not None else solve(problem, target=gpu, time_limit=time_limit)
    if not isinstance(answer, str) and not answer.has_layout:
        raise LayoutError(f"the result has no layout (status {answer.status}), so there is no code")
    return code_of(lang, placed(problem, gpu, answer))


def code_of(language: str, tiles: Placed, *, only: Only = "all") -> str:
    """One text for all tiles; as for `plans_of` and `text_of`."""
    return text_of(tiles, plans_of(language, tiles, only=only))


@contextlib.contextmanager
def _about(part: Part) -> Iterator[None]:
    """Errors inside name the tile."""
    try:
        yield
    except LayoutError as error:
        raise LayoutError(f"tile {part.tile!r}: {error}") from None


def plans_of(
    language: str, tiles: Placed, *, name: str | None = None, only: Only = "all"
) -> tuple[Plan, ...]:
    """What is printed of each tile in a language, one of `LANGUAGES`.

    Args:
        language: which.
        tiles: with their layouts.
        name: what every name starts with; None for that of the problem.
        only: what to print: the offset of an element, the addresses of the accesses, or all.

    Raises:
        ProblemFileError: two names become the same identifier.
        LayoutError: the language cannot express the layout of a tile, which the text names.
    """
    if tiles.alone:
        (part,) = tiles.parts
        return (plan_for(language, part.problem, tiles.device, part.answer, name=name, only=only),)
    plans = []
    for part in tiles.parts:
        with _about(part):
            plans.append(plan_for(language, _beside(tiles, part), tiles.device, part.answer, only=only))
    names = Counter(f"{identifier(tiles.name)}_{field}" for field in ("bytes", "alignment", "cluster"))
    names.update(name for name, _ in _places(tiles))
    for plan in plans:
        names.update((f"{plan.name}_bytes", f"{plan.name}_offset"))
        names.update(name for access in plan.accesses for name in _functions(access))
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise ProblemFileError("tiles", f"two tiles or accesses are both {twice[0]} in the code; rename one")
    return tuple(plans)


def _beside(tiles: Placed, part: Part) -> Problem:
    """The problem of one of several tiles; what the block takes beside them stands in the head."""
    return msgspec.structs.replace(part.problem, name=f"{tiles.name} {part.tile}", block=Resources())


def text_of(tiles: Placed, plans: Sequence[Plan]) -> str:
    """The text of plans in their language; of several tiles, after constants of all.

    Raises:
        LayoutError: as for `plans_of`.
    """
    if tiles.alone:
        return code(plans[0])
    known = LANGUAGES[plans[0].language]
    text = "\n".join(_head(known, tiles)) + "\n"
    for part, plan in zip(tiles.parts, plans, strict=True):
        with _about(part):
            text += "\n" + code(plan)
    return text + "".join(f"{line}\n" for line in known.end)


def edits_of(tiles: Placed) -> list[tuple[str, dict[str, Any]]]:
    """What to change in the kernel, tile by tile: as text, and as JSON-ready data."""
    edits = [edit(part.problem, tiles.device, part.answer) for part in tiles.parts]
    return [(edit_text(change), msgspec.to_builtins(change)) for change in edits]


def self_test(tiles: Placed) -> str:
    """A CUDA program that tests each tile, and that none lies on another; `nvcc -arch=native` compiles it.

    Raises:
        LayoutError: no NVIDIA GPU has a tile's size or an access's instruction, or what an access costs is
            known at run time only.
    """
    if tiles.alone:
        (part,) = tiles.parts
        return selftest.program(run_plan(part.problem, tiles.device, part.answer))
    name, plans, tests = identifier(tiles.name), [], ""
    for part in tiles.parts:
        with _about(part):
            plans.append(run_plan(_beside(tiles, part), tiles.device, part.answer))
            tests += selftest.placed_tile_test(plans[-1], name, part.tile, part.stages)
    named = {part.tile: plan.name for part, plan in zip(tiles.parts, plans, strict=True)}
    always = [tile for tile in named if not any(tile in time for time in tiles.times)]
    times = [[named[tile] for tile in (*always, *time)] for time in tiles.times or ((),)]
    return selftest.block_program(name, text_of(tiles, plans), plans, tests, times)


def _functions(access: AccessPlan) -> list[str]:
    """Names that the code of an access has."""
    steps = ("base", "step", "each") if access.form.has_step else ()
    active = ("active",) if access.active is not None else ()
    return [access.name, *(f"{access.name}_{part}" for part in ("bytes", *steps, *active))]


def _head(language: Language, tiles: Placed) -> list[str]:
    name, mark = identifier(tiles.name), language.comment
    constants = [(f"{name}_bytes", tiles.bytes), (f"{name}_alignment", tiles.alignment_bytes)]
    if (cluster := tiles.parts[0].problem.block.cluster) is not None:
        constants.append((f"{name}_cluster", cluster))
    lines = [
        f"{mark} {comment(tiles.name)} on {tiles.device.name}: layouts by layoutopt {__version__}",
        f"{mark} {comment(tiles.summary)}",
        *language.start_of(name),
        "",
        *(language.constant.format(*constant) for constant in constants),
        f"{mark} {language.declared.format(name=name, alignment=tiles.alignment_bytes)}",
        f"{mark} Stage s of a tile begins at base + s * stage_bytes; the code below counts from there.",
    ]
    stages = {f"{name}_{part.tile}_stage_bytes": part.stages for part in tiles.parts}
    for constant, value in _places(tiles):
        note = f"  {mark} stages: {stages[constant]}" if constant in stages else ""
        lines.append(language.constant.format(constant, value) + note)
    return lines


def _places(tiles: Placed) -> list[tuple[str, int]]:
    """Constants that say where each tile lies."""
    name = identifier(tiles.name)
    return [
        constant
        for part in tiles.parts
        for constant in (
            (f"{name}_{part.tile}_base", part.base_bytes),
            (f"{name}_{part.tile}_stage_bytes", part.stage_bytes),
        )
    ]
