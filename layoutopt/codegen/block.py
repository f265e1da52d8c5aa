"""The code and the self-test of placed tiles: of several, where each lies, then those of each."""

import contextlib
import importlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from layoutopt.codegen import selftest
from layoutopt.codegen.languages import plan, run_plan
from layoutopt.codegen.plan import Plan
from layoutopt.codegen.registry import LANGUAGES, Language
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.grammar import lookups
from layoutopt.ground.budget import deadline
from layoutopt.ground.escape import comment, described, identifier
from layoutopt.ground.version import __version__
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import offset_expression
from layoutopt.problems.answer import Arrangement, Result
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Block, Problem, Resources
from layoutopt.search.block import solve
from layoutopt.study.block import Part, Placed, check_answer, placed

_MOST_BYTES: Final = 1 << 31


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
    with deadline(time_limit):
        answer = layout if layout is not None else solve(problem, gpu)
    if not isinstance(answer, str) and not answer.has_layout:
        raise LayoutError(f"the result has no layout (status {answer.status}), so there is no code")
    return code_of(lang, placed(problem, gpu, answer))


def code_of(language: str, tiles: Placed) -> str:
    """One text for all tiles; as for `plans_of` and `text_of`."""
    return text_of(tiles, plans_of(language, tiles))


@contextlib.contextmanager
def _named(tiles: Placed, part: Part) -> Iterator[Problem]:
    """The problem of a tile under the name that its code has; errors inside name one of several tiles."""
    if tiles.alone:
        yield msgspec.structs.replace(part.problem, name=tiles.name)
        return
    try:  # what a block takes beside its tiles stands in the head
        name = f"{tiles.name} {part.tile}"
        yield msgspec.structs.replace(part.problem, name=name, block=Resources())
    except LayoutError as error:
        raise LayoutError(f"tile {part.tile!r}: {error}") from None


def plans_of(language: str, tiles: Placed) -> tuple[Plan, ...]:
    """What is printed of each tile in a language, one of `LANGUAGES`.

    Raises:
        ProblemFileError: two names become the same identifier.
        LayoutError: the language cannot express the layout of a tile, which the text names; offsets take more
            than 32 bits; or a formula does not hold the tile.
        ExpressionError: a formula cannot be read.
        VerificationError: the code would not equal a layout's table. Our bug.
    """
    known = LANGUAGES[language]
    plans = []
    for part in tiles.parts:
        with _named(tiles, part) as problem:
            _check_expressible(problem, part.answer, known)
            unit = problem.tile.storage.element_bytes if known.unit == "element" else 1
            plans.append(replace(plan(problem, tiles.device, part.answer, unit), language=language))
            if (size := max(tiles.bytes, plans[-1].bytes)) > _MOST_BYTES:
                raise LayoutError(f"code has offsets of 32 bits, some with a sign; this takes {size} bytes")
    if not tiles.alone:
        _check_names(tiles, plans)
    return tuple(plans)


def _check_expressible(problem: Problem, answer: Result | str, language: Language) -> None:
    layout = answer.layout if isinstance(answer, Result) else None
    if layout is not None and layout.shape != problem.tile.shape:
        raise LayoutError(f"made for a tile of shape {layout.shape}, not {problem.tile.shape}")
    table = layout is not None and bool(lookups(offset_expression(layout)))
    what = "a table of offsets" if table else "elements of less than a byte" * (problem.tile.packed > 1)
    if what and not language.has_tables:
        able = ", ".join(other.name for other in LANGUAGES.values() if other.has_tables)
        raise LayoutError(f"{language.name} cannot express {what}; {able} can")


def _check_names(tiles: Placed, plans: Sequence[Plan]) -> None:
    """Check that no two things of a block have one name in the code."""
    block = identifier(tiles.name)
    names = Counter(f"{block}_{field}" for field in ("bytes", "alignment", "cluster"))
    names.update(constant for part in tiles.parts for constant in _places(block, part))
    for planned in plans:
        names.update((f"{planned.name}_bytes", f"{planned.name}_offset"))
        for access in planned.accesses:
            parts = {"bytes", *(part for part, _, _ in access.functions)}
            parts |= {"each"} if access.form.has_step else set()
            names.update((access.name, *(f"{access.name}_{part}" for part in parts)))
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise ProblemFileError("tiles", f"two tiles or accesses are both {twice[0]} in the code; rename one")


def text_of(tiles: Placed, plans: Sequence[Plan]) -> str:
    """The text of plans in their language; of several tiles, after constants of all.

    Raises:
        LayoutError: as for `plans_of`.
    """
    known = LANGUAGES[plans[0].language]
    module: Any = importlib.import_module(known.module)
    texts: list[str] = []
    for part, planned in zip(tiles.parts, plans, strict=True):
        with _named(tiles, part):
            texts.append(module.emit(planned))
    if tiles.alone:
        return texts[0]
    head = "\n".join(_head(known, tiles)) + "\n"
    return "\n".join([head, *texts]) + "".join(f"{line}\n" for line in known.end)


def self_test(tiles: Placed) -> str:
    """A CUDA program that tests each tile, and that none lies on another; `nvcc -arch=native` compiles it.

    Raises:
        LayoutError: no NVIDIA GPU has a tile's size or an access's instruction, or what an access costs is
            known at run time only.
    """
    plans, tests = [], []
    for part in tiles.parts:
        with _named(tiles, part) as problem:
            plans.append(run_plan(problem, tiles.device, part.answer))
            if tiles.alone:
                return selftest.program(plans[0])
            tests.append(selftest.tile_test(plans[-1]))
    _check_names(tiles, plans)
    return selftest.block_program(tiles, text_of(tiles, plans), plans, tests)


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
    for part in tiles.parts:
        (base, stage), count = _places(name, part), f"  {mark} stages: {part.stages}"
        lines.append(language.constant.format(base, part.base_bytes))
        lines.append(language.constant.format(stage, part.stage_bytes) + count)
    return lines


def _places(name: str, part: Part) -> tuple[str, str]:
    """The constants of where a tile lies in the block of this name: its base, and from stage to stage."""
    return f"{name}_{part.tile}_base", f"{name}_{part.tile}_stage_bytes"
