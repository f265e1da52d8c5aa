"""Code for several tiles: where each lies, then the code of each, in any language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from layoutopt import __version__
from layoutopt.codegen.edit import edit, edit_text
from layoutopt.codegen.languages import code, plan_for
from layoutopt.codegen.plan import AccessPlan, Part, Plan
from layoutopt.codegen.registry import LANGUAGES, Language
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.ground.escape import comment, identifier
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement
from layoutopt.problems.types import Block, Resources
from layoutopt.study.block import PlacedBlock, solved_block

# How a kernel declares the bytes of all tiles, and comes to those of one.
_DECLARED: Final = {
    "opencl": "__local uchar smem[{name}_bytes] __attribute__((aligned({alignment})));",
    "c": "_Alignas({name}_alignment) unsigned char smem[{name}_bytes];",
    "gluon": "gl.allocate_shared_memory places each tile itself: the bases are those that were counted",
    "tilelang": "T.alloc_shared places each tile itself: the bases are those that were counted",
    "numba": "in {name}_bytes of dynamic shared memory: cuda.shared.array(0, dtype)[base // itemsize:]",
}
_IN_C_PLUS_PLUS: Final = "__shared__ alignas({name}_alignment) unsigned char smem[{name}_bytes];"


def arrangement_code(tile_set: Block, arrangement: Arrangement, gpu: Device) -> str:
    """The header of an arrangement that holds layouts, in the GPU's language; as for `block_code`."""
    return block_code(gpu.language, solved_block(tile_set, gpu, arrangement))


def block_code(language: str, block: PlacedBlock, *, only: Part = "all") -> str:
    """One text for all tiles of a block; as for `block_plans` and `text_of_plans`."""
    return text_of_plans(language, block, block_plans(language, block, only=only))


def block_plans(language: str, block: PlacedBlock, *, only: Part = "all") -> tuple[Plan, ...]:
    """The plans of the parts of a block.

    Raises:
        ProblemFileError: two names become the same identifier.
        LayoutError: the language cannot express the layout of a tile, which the text names.
    """
    plans = []
    for part in block.parts:
        try:
            name = f"{block.name} {part.tile}"
            alone = msgspec.structs.replace(part.problem, block=Resources())  # said once, in the head
            plans.append(plan_for(language, alone, block.device, part.answer, name=name, only=only))
        except LayoutError as error:
            raise LayoutError(f"tile {part.tile!r}: {error}") from None
    names = Counter(f"{identifier(block.name)}_{field}" for field in ("bytes", "alignment", "cluster"))
    names.update(name for name, _ in _places(block))
    for plan in plans:
        names.update((f"{plan.name}_bytes", f"{plan.name}_offset"))
        names.update(name for access in plan.accesses for name in _functions(access))
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise ProblemFileError("tiles", f"two tiles or accesses are both {twice[0]} in the code; rename one")
    return tuple(plans)


def text_of_plans(language: str, block: PlacedBlock, plans: Sequence[Plan]) -> str:
    """The text of plans that were made for this language: constants of the block, then each part's.

    Raises:
        LayoutError: as for `block_plans`.
    """
    known = LANGUAGES[language]
    text = "\n".join(_head(known, block)) + "\n"
    for part, plan in zip(block.parts, plans, strict=True):
        try:
            text += "\n" + code(language, plan)
        except LayoutError as error:
            raise LayoutError(f"tile {part.tile!r}: {error}") from None
    return text + ("\n#endif\n" if language == "c" else "")


def block_edits(block: PlacedBlock) -> list[tuple[str, dict[str, Any]]]:
    """What to change in the kernel, tile by tile: as text, and as JSON-ready data."""
    edits = [edit(part.problem, block.device, part.answer) for part in block.parts]
    return [(edit_text(change), msgspec.to_builtins(change)) for change in edits]


def _functions(access: AccessPlan) -> list[str]:
    """Names that the code of an access has."""
    steps = ("base", "step", "each") if access.form.has_step else ()
    active = ("active",) if access.active is not None else ()
    return [access.name, *(f"{access.name}_{part}" for part in ("bytes", *steps, *active))]


def _head(language: Language, block: PlacedBlock) -> list[str]:
    name, mark = identifier(block.name), language.comment
    declared = _DECLARED.get(language.name, _IN_C_PLUS_PLUS)
    usual = ("#pragma once", "#include <cstdint>") if mark == "//" else ()
    shown = declared.format(name=name, alignment=block.alignment_bytes)
    constants = [(f"{name}_bytes", block.bytes), (f"{name}_alignment", block.alignment_bytes)]
    if (cluster := block.parts[0].problem.block.cluster) is not None:
        constants.append((f"{name}_cluster", cluster))
    lines = [
        f"{mark} {comment(block.name)} on {block.device.name}: layouts by layoutopt {__version__}",
        f"{mark} {comment(block.summary)}",
        *(line.format(guard=f"{name}_H".upper()) for line in _PROLOGUES.get(language.name, usual)),
        "",
        *(language.constant.format(*constant) for constant in constants),
        f"{mark} {shown}",
        f"{mark} Stage s of a tile begins at base + s * stage_bytes; the code below counts from there.",
    ]
    stages = {f"{name}_{part.tile}_stage_bytes": part.stages for part in block.parts}
    for constant, value in _places(block):
        note = f"  {mark} stages: {stages[constant]}" if constant in stages else ""
        lines.append(language.constant.format(constant, value) + note)
    return lines


_PROLOGUES: Final[dict[str, tuple[str, ...]]] = {
    "c": ("#ifndef {guard}", "#define {guard}", "#include <stdint.h>"),
    "opencl": (),
}


def _places(block: PlacedBlock) -> list[tuple[str, int]]:
    """Constants that say where each tile lies."""
    name = identifier(block.name)
    return [
        constant
        for part in block.parts
        for constant in (
            (f"{name}_{part.tile}_base", part.base_bytes),
            (f"{name}_{part.tile}_stage_bytes", part.stage_bytes),
        )
    ]
